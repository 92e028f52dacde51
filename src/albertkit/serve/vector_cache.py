"""Vectors of repeated texts, the longest unused forgotten first, within a bound in bytes.

In: a key for a text and how it is embedded. Out: its vector and how many tokens it had. Keys are hashes: no text is kept.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np

OVERHEAD = 400  # bytes of an entry beside its numbers, measured


class VectorCache:
    """Used by the event loop only, so it needs no lock."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._held: OrderedDict[bytes, tuple[np.ndarray, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: bytes) -> tuple[np.ndarray, int] | None:
        """What is known for a key."""
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
        return found

    def put(self, key: bytes, vector: np.ndarray, tokens: int) -> None:
        """Remember a vector; forget others if that is too much."""
        if key in self._held or vector.nbytes + OVERHEAD > self.limit:
            return
        self._held[key] = (vector.copy(), tokens)  # a copy: the vector may be a piece of a whole batch
        self.bytes += vector.nbytes + OVERHEAD
        while self.bytes > self.limit:
            _, (old, _) = self._held.popitem(last=False)
            self.bytes -= old.nbytes + OVERHEAD


def cache_key(settings: str, text: str) -> bytes:
    """16 bytes for a text and how it is embedded."""
    made = hashlib.blake2b(settings.encode() + b"\0", digest_size=16)
    made.update(text.encode("utf-8", "surrogatepass"))
    return made.digest()
