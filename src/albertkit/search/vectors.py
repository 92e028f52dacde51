"""Vector search in an SQLite file: blocks of 1,024 int8 rows with one scale per row, compared by numpy.

In: a connection and rows. Out: the slots with the highest dot product. Blocks stay in memory after their first use, up
to `KEPT_BYTES`; others are read for each search. It is not thread-safe. Each row of an index has a `checksum`, here and
in `keywords.py` and `index.py`: damage is an error, not a wrong hit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import google_crc32c
import numpy as np

from albertkit.errors import AlbertkitError

BLOCK = 1024  # rows in a stored block
PART = 256  # rows converted to floats at a time, so that they fit into the processor's cache
QUERIES = 256  # queries answered in one pass over the blocks
KEPT_BYTES = 512 << 20  # of the blocks that stay in memory
Ranked: TypeAlias = list[tuple[float, int]]  # (score, slot), best first
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


def damage_error(path: Path, what: str) -> AlbertkitError:
    return AlbertkitError(f"{path} is damaged: {what}. Index the files again (--force).")


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


class VectorTable:
    """The two tables of vectors. The caller manages transactions."""

    def __init__(self, sql: sqlite3.Connection, path: Path, dim: int) -> None:
        self.sql, self.path, self.dim = sql, path, dim
        self.room = np.empty((BLOCK, dim), np.float32)
        self.kept: dict[int, VectorBlock] = {}

    def read(self, slots: Iterable[int]) -> dict[int, StoredVector]:
        found: dict[int, StoredVector] = {}
        for block, places in _by_block(slots).items():
            stored = self._find_block(block)
            rows = {} if stored is None else {i: (stored.scales[i], stored.vectors[i].copy()) for i in places}
            found |= {block * BLOCK + i: StoredVector(float(scale), vector) for i, (scale, vector) in rows.items()}
        return found

    def first(self) -> VectorBlock | None:
        """The first block: the oldest texts."""
        return self._find_block(0)

    def write(self, rows: dict[int, StoredVector]) -> None:
        """Put rows into slots; a row without data only changes the scale."""
        for block, places in _by_block(rows).items():
            stored = self._find_block(block)
            scales = np.zeros(BLOCK, "<f4") if stored is None else stored.scales.copy()
            vectors = np.zeros((BLOCK, self.dim), np.int8) if stored is None else stored.vectors.copy()
            here = {i: rows[block * BLOCK + i] for i in places}
            for i, row in here.items():
                scales[i] = row.scale
                if row.data is not None:
                    vectors[i] = row.data
            self._write_array("scales", block, scales)
            if any(row.data is not None for row in here.values()):
                self._write_array("vectors", block, vectors)

    def _write_array(self, table: str, block: int, array: np.ndarray) -> None:
        data = array.tobytes()
        self.sql.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", (block, checksum(block, data), data))

    def nearest(self, queries: np.ndarray, k: int, slots_used: int) -> list[Ranked]:
        """For each query the k slots with the highest dot product; equal ones in the order of their slots."""
        if len(queries) > QUERIES:
            first = self.nearest(queries[:QUERIES], k, slots_used)
            return first + self.nearest(queries[QUERIES:], k, slots_used)
        best: np.ndarray = np.empty((len(queries), 0), np.float32)
        slots: np.ndarray = np.empty((len(queries), 0), np.int64)
        for block, scores in self._scores(np.ascontiguousarray(queries.T), slots_used):
            if best.shape[1] == k and (scores.max(axis=1) <= best.min(axis=1)).all():
                continue
            here = np.broadcast_to(np.arange(block * BLOCK, (block + 1) * BLOCK), scores.shape)
            best, slots = np.concatenate([best, scores], axis=1), np.concatenate([slots, here], axis=1)
            if best.shape[1] > k:
                kept = np.argpartition(-best, k - 1, axis=1)[:, :k]
                best, slots = np.take_along_axis(best, kept, 1), np.take_along_axis(slots, kept, 1)
        rows = [zip(best[i].tolist(), slots[i].tolist(), strict=True) for i in range(len(queries))]
        return [sorted((r for r in row if r[0] > -np.inf), key=lambda r: (-r[0], r[1])) for row in rows]

    def _scores(self, turned: np.ndarray, slots_used: int) -> Iterator[tuple[int, np.ndarray]]:
        """Block by block, a row of scores for each query.

        Bytes are converted to floats in one reused buffer, since allocation costs more than the arithmetic. For one
        query, numpy gets a stack of single rows, in parts that fit into the processor's cache. With a matrix, BLAS
        would start its threads for each part, which takes longer than the product. For many queries it pays off.
        """
        count = turned.shape[1]
        step = PART if count == 1 else BLOCK
        room, found = self.room[:step], np.empty((BLOCK, count), np.float32)
        blocks = self.sql.execute(f"{CHECKSUMS} ORDER BY s.block").fetchall()
        if [block for block, *_ in blocks] != list(range(-(-slots_used // BLOCK))):
            raise damage_error(self.path, f"it has vectors of {len(blocks)} blocks for {slots_used} texts")
        for block, *checksums in blocks:
            _, scales, vectors = self._read_block(block, *checksums)
            for i in range(0, BLOCK, step):
                np.copyto(room, vectors[i : i + step])
                if count == 1:
                    np.matmul(room[:, None, :], turned, out=found[i : i + step, :, None])
                else:
                    np.matmul(room, turned, out=found)
            yield block, np.where(scales > 0, found.T * scales, np.float32(-np.inf))

    def _find_block(self, block: int) -> VectorBlock | None:
        """A block; None if it does not exist."""
        row = self.sql.execute(f"{CHECKSUMS} WHERE s.block = ?", (block,)).fetchone()
        return None if row is None else self._read_block(*row)

    def _read_block(self, block: int, *checksums: int) -> VectorBlock:
        """A block from memory if its checksums are these, otherwise from the file, where it is compared with them."""
        known = self.kept.get(block)
        if known is not None and known.checksums == checksums:
            return known
        arrays = []
        for table, wanted, dtype, size in (
            ("scales", checksums[0], "<f4", 4 * BLOCK),
            ("vectors", checksums[1], "|i1", BLOCK * self.dim),
        ):
            row = self.sql.execute(f"SELECT data FROM {table} WHERE block = ?", (block,)).fetchone()
            data = row[0] if row else None
            if not isinstance(data, bytes) or len(data) != size or checksum(block, data) != wanted:
                raise damage_error(self.path, f"block {block} of its {table} has a wrong size or checksum")
            arrays.append(np.frombuffer(data, dtype))
        if not ((arrays[0] >= 0) & (arrays[0] <= 1)).all():  # not of a unit vector, or NaN
            raise damage_error(self.path, f"block {block} of its scales has a number that no unit vector has")
        found = VectorBlock((checksums[0], checksums[1]), arrays[0], arrays[1].reshape(BLOCK, self.dim))
        if known is not None or (len(self.kept) + 1) * BLOCK * (self.dim + 4) <= KEPT_BYTES:
            self.kept[block] = found
        return found


def fuse(*lists: Ranked) -> Ranked:
    """Reciprocal rank fusion: rows with a high rank in several lists come first."""
    total: dict[int, float] = {}
    for ranked in lists:
        for rank, (_, slot) in enumerate(ranked, 1):
            total[slot] = total.get(slot, 0.0) + 1 / (60 + rank)
    return sorted(((score, slot) for slot, score in total.items()), key=lambda pair: -pair[0])


def _by_block(slots: Iterable[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for slot in sorted(slots):
        found.setdefault(slot // BLOCK, []).append(slot % BLOCK)
    return found
