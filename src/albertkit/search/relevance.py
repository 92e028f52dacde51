"""When is a hit by meaning relevant? When its cosine is far above the cosines of nonsense.

In: the vectors of `NONSENSE`, computed by the index's own model, and stored texts. Out: the lowest cosine of a relevant
hit, for each text. So the limit fits any model, and a text that is close to everything needs a higher cosine. Before
this file: `vectors.py`; after it: `index.py`. LOG.md has the measurements, `studies/search_limit.py` repeats them.
"""

from __future__ import annotations

import base64
import binascii
import random
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist

import numpy as np

from albertkit.search.vectors import Ranked, StoredVector, VectorBlock, checksum, damage_error

CHANCE = 1e-7  # of one nonsense query to reach the limit of any text, if cosines were normally distributed
CONSONANTS, HEXADECIMAL = "bcdfghjklmnpqrstvwxz", "0123456789abcdef"


def make_nonsense() -> Iterator[str]:
    """64 strings without meaning: letters, consonants, hexadecimal digits and ideographs."""
    rng = random.Random(1)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    ideographs = [bytes([high, low]).decode("gb2312") for high in range(0xB0, 0xD7) for low in range(0xA1, 0xFF)]
    for number in range(16):
        for alphabet in (letters, list(CONSONANTS)):
            yield " ".join("".join(rng.choices(alphabet, k=rng.randint(3, 8))) for _ in range(1 + number % 4))
        yield "".join(rng.choices(HEXADECIMAL, k=rng.randint(8, 32)))
        yield "".join(rng.choices(ideographs, k=rng.randint(2, 12)))


NONSENSE = tuple(make_nonsense())


class RelevanceLimit:
    """The limit of each text of an index.

    The cosines of one text with nonsense are taken as normally distributed after Fisher's transformation (artanh),
    which keeps every limit below 1. The mean is that of the text, the deviation the median of many texts.
    """

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = vectors.astype("<f2")  # of `NONSENSE`, (64, dim)
        self._known: tuple[tuple[int, int] | None, float] = (None, 0.0)  # checksums of a block, deviation

    def keep_relevant(
        self, by_vector: list[Ranked], texts: dict[int, StoredVector], block: VectorBlock | None, count: int
    ) -> list[Ranked]:
        """The rows of each list whose cosine nonsense reaches for one of `count` texts with `CHANCE` only.

        texts: the vectors of all rows. block: vectors of texts from which the deviation is computed.
        """
        if not texts or block is None:
            return by_vector
        if self._known[0] != block.checksums:
            used = block.scales > 0
            spread = self._transformed_cosines(block.vectors[used] * block.scales[used, None]).var(axis=1)
            self._known = block.checksums, float(np.sqrt(np.median(spread))) if len(spread) else 0.0
        means = self._transformed_cosines(np.stack([text.floats() for text in texts.values()])).mean(axis=1)
        margin = -self._known[1] * NormalDist().inv_cdf(CHANCE / max(1, count))
        limits = dict(zip(texts, np.tanh(means + margin).tolist(), strict=True))
        return [[row for row in ranked if row[0] >= limits[row[1]]] for ranked in by_vector]

    def _transformed_cosines(self, rows: np.ndarray) -> np.ndarray:
        """Cosines of texts with nonsense after Fisher's transformation, (texts, 64)."""
        return np.asarray(np.arctanh(np.clip(rows @ self.vectors.astype(np.float32).T, -0.999, 0.999)))

    def to_text(self) -> str:
        """The vectors with their checksum, for the index."""
        data = self.vectors.tobytes()
        return f"{checksum(data)} {base64.b64encode(data).decode()}"

    @classmethod
    def from_text(cls, stored: str, dim: int, path: Path | str) -> RelevanceLimit:
        """The vectors that an index stores."""
        digest, _, encoded = stored.partition(" ")
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            data = b""
        if str(checksum(data)) != digest or len(data) != 2 * len(NONSENSE) * dim:
            raise damage_error(path, "the checksum of its vectors of nonsense differs")
        return cls(np.frombuffer(data, "<f2").reshape(len(NONSENSE), dim))
