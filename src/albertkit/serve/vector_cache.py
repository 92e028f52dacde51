"""A cache of sentence vectors, limited in bytes; the least recently used entry is removed first.

In: a key of a text and its options. Out: its vector and number of tokens. Keys are hashes: no text is stored.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np

OVERHEAD = 400  # bytes of an entry beside its vector, measured


class VectorCache:
    """Used by the event loop only, so it needs no lock."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._entries: OrderedDict[bytes, tuple[np.ndarray, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> tuple[np.ndarray, int] | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: bytes, vector: np.ndarray, tokens: int) -> None:
        """Add a vector; remove others if the limit is exceeded."""
        if key in self._entries or vector.nbytes + OVERHEAD > self.limit:
            return
        self._entries[key] = (vector.copy(), tokens)  # a copy: the vector may be a view of a whole batch
        self.bytes += vector.nbytes + OVERHEAD
        while self.bytes > self.limit:
            _, (old, _) = self._entries.popitem(last=False)
            self.bytes -= old.nbytes + OVERHEAD


def cache_key(options: str, text: str) -> bytes:
    """16 bytes for a text and the options it is embedded with."""
    digest = hashlib.blake2b(options.encode() + b"\0", digest_size=16)
    digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.digest()
