"""Vector search in an SQLite file: blocks of 1,024 int8 rows with one scale per row, compared by numpy.

In: a connection and rows. Out: the slots with the highest dot product. A search compares the signs of all rows with
those of the query, 64 at a time, and computes the exact dot product of the rows with the most equal signs. Rows are
rotated (`rotate`) before they are stored, so that each number contributes equally to both steps.

Blocks stay in memory after the first search, up to `KEPT_BYTES`; others are read and compared exactly for each search.
It is not thread-safe. Each row of an index has a `checksum`, here and in `keywords.py` and `local_index.py`: damage is
an error, not a wrong hit.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

import google_crc32c
import numpy as np

from albertkit.errors import AlbertkitError

BLOCK = 1024  # rows in a stored block
SEGMENT = 32 * BLOCK  # rows of an array in memory
PART = 256  # rows converted to floats at a time, so that they fit into the processor's cache
SIGN_WORDS = 6 * SEGMENT  # words of signs compared at a time, likewise
KEPT_BYTES = 512 << 20  # of the blocks that stay in memory
EXACT_BYTES = (400_000, 1_250_000)  # of the rows whose dot products are computed, at least and at most
EXACT_BYTES_PER_ROW = 6  # of the rows in memory: 1,562 of 100,000 rows with 384 numbers
EMPTY = np.iinfo(np.uint16).max  # distance of an empty slot
Ranked: TypeAlias = list[tuple[float, int]]  # (score, slot), best first
Best: TypeAlias = tuple[np.ndarray, np.ndarray]  # scores and slots, best first
SCHEMA = """
CREATE TABLE scales (block INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE vectors (block INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, data BLOB NOT NULL);
"""
CHECKSUMS = "SELECT s.block, s.checksum, v.checksum FROM scales s LEFT JOIN vectors v ON s.block = v.block"


def checksum(*parts: bytes | str | int) -> int:
    """The CRC-32C of some values, with their types and lengths.

    >>> checksum("ab", 1) == checksum("a", "b1")
    False
    """
    total = 0
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        total = google_crc32c.extend(google_crc32c.extend(total, f"{type(part).__name__} {len(data)} ".encode()), data)
    return int(total)


def damage_error(path: Path | str, what: str) -> AlbertkitError:
    return AlbertkitError(f"{path} is damaged: {what}. Index the files again (--force).")


def rotate(vectors: np.ndarray) -> np.ndarray:
    """Rows turned by a fixed rotation, which keeps all dot products and spreads each row evenly over its numbers.

    It multiplies each frequency of a row by a pseudo-random complex number of length 1. In float64, the result of a row
    does not depend on the others.

    >>> rows = rotate(np.eye(4, dtype=np.float32))
    >>> bool(np.allclose(rows @ rows.T, np.eye(4), atol=1e-6))
    True
    """
    dim = vectors.shape[1]
    turned = np.fft.rfft(vectors.astype(np.float64)) * _phases(dim)
    return np.asarray(np.fft.irfft(turned, n=dim).astype(np.float32))


@lru_cache(maxsize=8)
def _phases(dim: int) -> np.ndarray:
    rng = random.Random(1)  # gives the same numbers in every version of Python
    phases = np.exp(2j * np.pi * np.array([rng.random() for _ in range(dim // 2 + 1)]))
    phases[0] = 1  # the mean, and the highest frequency of an even width, are real
    if dim % 2 == 0:
        phases[-1] = 1
    return np.asarray(phases)


class VectorBlock(NamedTuple):
    """1,024 rows."""

    checksums: tuple[int, int]  # of the scales and of the vectors
    scales: np.ndarray  # (rows,)
    vectors: np.ndarray  # (rows, dim) int8


class StoredVector(NamedTuple):
    """One vector as bytes and a scale; a scale of 0 marks an empty slot."""

    scale: float = 0.0
    data: np.ndarray | None = None

    @classmethod
    def all_from(cls, vectors: np.ndarray) -> list[StoredVector]:
        """Rows of floats, rounded to 255 levels of each row's largest value."""
        scales = np.maximum(np.abs(vectors).max(axis=1), 1e-12) / 127
        data = np.round(vectors / scales[:, None]).astype(np.int8)
        return [cls(float(scale), row) for scale, row in zip(scales, data, strict=True)]

    def floats(self) -> np.ndarray:
        return np.asarray(np.float32(self.scale) * (np.zeros(0) if self.data is None else self.data))

    def dot(self, vector: np.ndarray) -> float:
        """The dot product with a row of floats."""
        return 0.0 if self.data is None else self.scale * float(self.data @ vector)


class Segment:
    """Rows of up to 32 blocks in memory, with their signs."""

    def __init__(self, rows: int, dim: int) -> None:
        self.vectors = np.zeros((rows, dim), np.int8)
        self.scales = np.zeros(rows, np.float32)
        self.signs = np.zeros((-(-dim // 64), rows), np.uint64)  # (words, rows)
        self.empty: np.ndarray = np.arange(0)  # rows of the blocks so far without a vector

    def put(self, start: int, block: VectorBlock) -> None:
        rows = slice(start, start + BLOCK)
        self.vectors[rows], self.scales[rows], self.signs[:, rows] = block.vectors, block.scales, _signs(block.vectors)
        others = self.empty[(self.empty < rows.start) | (self.empty >= rows.stop)]
        self.empty = np.concatenate([others, rows.start + np.flatnonzero(block.scales == 0)])


class VectorTable:
    """The two tables of vectors. The caller manages transactions."""

    def __init__(self, sql: sqlite3.Connection, path: Path, dim: int) -> None:
        self.sql, self.path, self.dim = sql, path, dim
        self.kept: list[tuple[int, int]] = []  # checksums of the blocks in memory, which are the first ones
        self.blocks = 0  # also those that are not in memory
        self._segments: list[Segment] = []
        self._version: tuple[int, int] | None = None  # of the file when `kept` was compared with it

    def read(self, slots: Iterable[int]) -> dict[int, StoredVector]:
        result: dict[int, StoredVector] = {}
        is_current = self._version == self._file_version()
        for block, places in _by_block(slots).items():
            stored = self._kept_block(block) if is_current and block < len(self.kept) else self._find_block(block)
            rows = {} if stored is None else {i: (stored.scales[i], stored.vectors[i].copy()) for i in places}
            result |= {block * BLOCK + i: StoredVector(float(scale), vector) for i, (scale, vector) in rows.items()}
        return result

    def first(self) -> VectorBlock | None:
        """The first block: the oldest texts."""
        return self._kept_block(0) if self.kept and self._version == self._file_version() else self._find_block(0)

    def write(self, rows: dict[int, StoredVector]) -> None:
        """Put rows into slots; a row without data only changes the scale."""
        for block, places in _by_block(rows).items():
            stored = self._find_block(block)
            scales = np.zeros(BLOCK, "<f4") if stored is None else stored.scales.copy()
            vectors = np.zeros((BLOCK, self.dim), np.int8) if stored is None else stored.vectors.copy()
            changed = {i: rows[block * BLOCK + i] for i in places}
            for i, row in changed.items():
                scales[i] = row.scale
                if row.data is not None:
                    vectors[i] = row.data
            self._write_array("scales", block, scales)
            if any(row.data is not None for row in changed.values()):
                self._write_array("vectors", block, vectors)

    def _write_array(self, table: str, block: int, array: np.ndarray) -> None:
        data = array.tobytes()
        self.sql.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", (block, checksum(block, data), data))

    def nearest(self, queries: np.ndarray, k: int, slots_used: int, exact: bool = False) -> list[Ranked]:
        """For each query the k slots with the highest dot product; equal ones in the order of their slots.

        exact: compute all dot products, instead of those of the rows whose signs are nearest to those of the query.
        """
        self._refresh(slots_used)
        best = [self._nearest_kept(query, k, exact) for query in queries]
        for number in range(len(self.kept), self.blocks):
            block = self._find_block(number)
            if block is None:
                raise damage_error(self.path, f"block {number} of its vectors is missing")
            places = np.flatnonzero(block.scales)
            for i, query in enumerate(queries):
                scores, slots = _dots(block.vectors[places], block.scales[places], query), number * BLOCK + places
                best[i] = _best(np.concatenate([best[i][0], scores]), np.concatenate([best[i][1], slots]), k)
        return [list(zip(scores.tolist(), slots.tolist(), strict=True)) for scores, slots in best]

    def _nearest_kept(self, query: np.ndarray, k: int, exact: bool) -> Best:
        """The k best slots of the blocks in memory."""
        distances = self._sign_distances(query)
        lowest, highest = EXACT_BYTES
        candidates = max(8 * k, min(max(lowest, EXACT_BYTES_PER_ROW * len(distances)), highest) // self.dim)
        slots = _smallest(distances, len(distances) if exact else candidates, self.dim)
        scores: np.ndarray = np.empty(len(slots), np.float32)
        edges = np.searchsorted(slots, SEGMENT * np.arange(len(self._segments) + 1)).tolist()
        for number, (start, end) in enumerate(pairwise(edges)):
            segment = self._segments[number]
            for i in range(start, end, PART):
                places = slots[i : min(i + PART, end)] - number * SEGMENT
                rows, scales = segment.vectors.take(places, axis=0), segment.scales.take(places)
                scores[i : i + len(places)] = _dots(rows, scales, query)
        return _best(scores, slots, k)

    def _sign_distances(self, query: np.ndarray) -> np.ndarray:
        """The number of signs in which each row in memory differs from the query; `EMPTY` for empty slots."""
        query_signs = _signs(query[None])
        step = max(1, SIGN_WORDS // len(query_signs))
        different = np.empty((len(query_signs), min(step, SEGMENT)), np.uint64)
        counts = np.empty(different.shape, np.uint8)
        distances = np.empty(len(self.kept) * BLOCK, np.uint16)
        for number, segment in enumerate(self._segments):
            segment_distances = distances[number * SEGMENT : (number + 1) * SEGMENT]
            for i in range(0, len(segment_distances), step):
                part = segment_distances[i : i + step]
                size = len(part)
                np.bitwise_xor(segment.signs[:, i : i + size], query_signs, out=different[:, :size])
                np.bitwise_count(different[:, :size], out=counts[:, :size])
                counts[:, :size].sum(axis=0, dtype=np.uint16, out=part)
            segment_distances[segment.empty] = EMPTY
        return distances

    def _refresh(self, slots_used: int) -> None:
        """Read the blocks that were changed since the last search, here or by another program."""
        version = self._file_version()
        if version == self._version:
            return
        blocks = self.sql.execute(f"{CHECKSUMS} ORDER BY s.block").fetchall()
        if [block for block, *_ in blocks] != list(range(-(-slots_used // BLOCK))):
            raise damage_error(self.path, f"it has vectors of {len(blocks)} blocks for {slots_used} texts")
        if len(blocks) < len(self.kept):
            self.kept, self._segments = [], []
        max_blocks = KEPT_BYTES // (BLOCK * (self.dim + 4 + 8 * -(-self.dim // 64)))  # blocks in memory
        for number, *checksums in blocks[:max_blocks]:
            if number * BLOCK == len(self._segments) * SEGMENT:
                self._segments.append(Segment(min(SEGMENT, max_blocks * BLOCK), self.dim))
            if number == len(self.kept) or self.kept[number] != tuple(checksums):
                block = self._read_block(number, *checksums)
                self._segments[number * BLOCK // SEGMENT].put(number * BLOCK % SEGMENT, block)
                self.kept[number : number + 1] = [block.checksums]
        self.blocks, self._version = len(blocks), version

    def _file_version(self) -> tuple[int, int]:
        """What changes with every change of the file: the first number by others, the second by this connection."""
        return int(self.sql.execute("PRAGMA data_version").fetchone()[0]), self.sql.total_changes

    def _kept_block(self, number: int) -> VectorBlock:
        segment, place = self._segments[number * BLOCK // SEGMENT], number * BLOCK % SEGMENT
        rows = slice(place, place + BLOCK)
        return VectorBlock(self.kept[number], segment.scales[rows], segment.vectors[rows])

    def _find_block(self, number: int) -> VectorBlock | None:
        """A block of the file; None if it does not exist."""
        row = self.sql.execute(f"{CHECKSUMS} WHERE s.block = ?", (number,)).fetchone()
        return None if row is None else self._read_block(*row)

    def _read_block(self, block: int, *checksums: int) -> VectorBlock:
        """A block of the file, if its checksums are these."""
        arrays = []
        for table, expected, dtype, size in (
            ("scales", checksums[0], "<f4", 4 * BLOCK),
            ("vectors", checksums[1], "|i1", BLOCK * self.dim),
        ):
            row = self.sql.execute(f"SELECT data FROM {table} WHERE block = ?", (block,)).fetchone()
            data = row[0] if row else None
            if not isinstance(data, bytes) or len(data) != size or checksum(block, data) != expected:
                raise damage_error(self.path, f"block {block} of its {table} has a wrong size or checksum")
            arrays.append(np.frombuffer(data, dtype))
        if not ((arrays[0] >= 0) & (arrays[0] <= 1)).all():  # not of a unit vector, or NaN
            raise damage_error(self.path, f"block {block} of its scales has a number that no unit vector has")
        return VectorBlock((checksums[0], checksums[1]), arrays[0], arrays[1].reshape(BLOCK, self.dim))


def fuse(*lists: Ranked) -> Ranked:
    """Reciprocal rank fusion: rows with a high rank in several lists come first."""
    total: dict[int, float] = {}
    for ranked in lists:
        for rank, (_, slot) in enumerate(ranked, 1):
            total[slot] = total.get(slot, 0.0) + 1 / (60 + rank)
    return sorted(((score, slot) for slot, score in total.items()), key=lambda pair: -pair[0])


def _signs(rows: np.ndarray) -> np.ndarray:
    """The signs of rows as bits of integers, (words, rows)."""
    packed = np.packbits(rows > 0, axis=1)
    return np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8))).view(np.uint64).T


def _smallest(distances: np.ndarray, count: int, highest: int) -> np.ndarray:
    """The places of the smallest distances up to `highest`, at most `count`, ascending; of equals the first."""
    low, high = 0, highest
    while low < high:
        middle = (low + high) // 2
        if np.count_nonzero(distances <= middle) < count:
            low = middle + 1
        else:
            high = middle
    near = np.flatnonzero(distances <= low)
    if len(near) <= count:
        return near
    return np.delete(near, np.flatnonzero(distances[near] == low)[count - len(near) :])


def _dots(rows: np.ndarray, scales: np.ndarray, query: np.ndarray) -> np.ndarray:
    """The dot product of each row with the query. As a stack of single rows, a result does not depend on the others."""
    return np.asarray(np.matmul(rows.astype(np.float32)[:, None, :], query[:, None])[:, 0, 0] * scales)


def _best(scores: np.ndarray, slots: np.ndarray, k: int) -> Best:
    if len(scores) > k:
        is_high = scores >= np.partition(scores, -k)[-k]
        scores, slots = scores[is_high], slots[is_high]
    order = np.lexsort((slots, -scores))[:k]
    return scores[order], slots[order]


def _by_block(slots: Iterable[int]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for slot in sorted(slots):
        places.setdefault(slot // BLOCK, []).append(slot % BLOCK)
    return places
