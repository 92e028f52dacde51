"""Vector search in an SQLite file: blocks of 1,024 int8 rows with one scale per row, compared by numpy.

In: a connection and rows. Out: the slots with the highest dot product. Only a few blocks are in memory at a time. It
is not thread-safe.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from albertkit.errors import AlbertkitError

BLOCK = 1024  # rows in a stored block
PART = 256  # rows converted to floats at a time, so that they fit into the processor's cache
QUERIES = 256  # queries answered in one pass over the blocks
Ranked: TypeAlias = list[tuple[float, int]]  # (score, slot), best first
SCHEMA = """
CREATE TABLE scales (block INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE vectors (block INTEGER PRIMARY KEY, data BLOB NOT NULL);
"""
JOINED = "scales s JOIN vectors v ON s.block = v.block"


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

    def dot(self, vector: np.ndarray) -> float:
        """The dot product with a row of floats."""
        return 0.0 if self.data is None else self.scale * float(self.data @ vector)


class VectorTable:
    """The two tables of vectors. The caller manages transactions."""

    def __init__(self, sql: sqlite3.Connection, path: Path, dim: int) -> None:
        self.sql, self.path, self.dim = sql, path, dim
        self.room = np.empty((BLOCK, dim), np.float32)

    def read(self, slots: Iterable[int]) -> dict[int, StoredVector]:
        """The rows in some slots."""
        found: dict[int, StoredVector] = {}
        for block, places in _by_block(slots).items():
            scales, vectors = self._block(block)
            found |= {block * BLOCK + i: StoredVector(float(scales[i]), vectors[i].copy()) for i in places}
        return found

    def write(self, rows: dict[int, StoredVector]) -> None:
        """Put rows into slots; a row without data only changes the scale."""
        for block, places in _by_block(rows).items():
            scales, vectors = (array.copy() for array in self._block(block))
            here = {i: rows[block * BLOCK + i] for i in places}
            for i, row in here.items():
                scales[i] = row.scale
                if row.data is not None:
                    vectors[i] = row.data
            self.sql.execute("INSERT OR REPLACE INTO scales VALUES (?, ?)", (block, scales.tobytes()))
            if any(row.data is not None for row in here.values()):
                self.sql.execute("INSERT OR REPLACE INTO vectors VALUES (?, ?)", (block, vectors.tobytes()))

    def nearest(self, queries: np.ndarray, k: int) -> list[Ranked]:
        """For each query the k slots with the highest dot product; equal ones in the order of their slots."""
        if len(queries) > QUERIES:
            return self.nearest(queries[:QUERIES], k) + self.nearest(queries[QUERIES:], k)
        best: np.ndarray = np.empty((len(queries), 0), np.float32)
        slots: np.ndarray = np.empty((len(queries), 0), np.int64)
        for block, scores in self._scores(np.ascontiguousarray(queries.T)):
            if best.shape[1] == k and (scores.max(axis=1) <= best.min(axis=1)).all():
                continue
            here = np.broadcast_to(np.arange(block * BLOCK, (block + 1) * BLOCK), scores.shape)
            best, slots = np.concatenate([best, scores], axis=1), np.concatenate([slots, here], axis=1)
            if best.shape[1] > k:
                kept = np.argpartition(-best, k - 1, axis=1)[:, :k]
                best, slots = np.take_along_axis(best, kept, 1), np.take_along_axis(slots, kept, 1)
        rows = [zip(best[i].tolist(), slots[i].tolist(), strict=True) for i in range(len(queries))]
        return [sorted((r for r in row if r[0] > -np.inf), key=lambda r: (-r[0], r[1])) for row in rows]

    def _scores(self, turned: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Block by block, a row of scores for each query.

        Bytes are converted to floats in one reused buffer, since allocation costs more than the arithmetic. For one
        query, numpy gets a stack of single rows, in parts that fit into the processor's cache. With a matrix, BLAS
        would start its threads for each part, which takes longer than the product. For many queries it pays off.
        """
        count = turned.shape[1]
        step = PART if count == 1 else BLOCK
        room, found = self.room[:step], np.empty((BLOCK, count), np.float32)
        for block, *data in self.sql.execute(f"SELECT s.block, s.data, v.data FROM {JOINED} ORDER BY s.block"):
            scales, vectors = self._arrays(*data)
            for i in range(0, BLOCK, step):
                np.copyto(room, vectors[i : i + step])
                if count == 1:
                    np.matmul(room[:, None, :], turned, out=found[i : i + step, :, None])
                else:
                    np.matmul(room, turned, out=found)
            yield block, np.where(scales > 0, found.T * scales, np.float32(-np.inf))

    def _block(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        row = self.sql.execute(f"SELECT s.data, v.data FROM {JOINED} WHERE s.block = ?", (block,)).fetchone()
        return self._arrays(*(row or (bytes(4 * BLOCK), bytes(BLOCK * self.dim))))

    def _arrays(self, scales: bytes, vectors: bytes) -> tuple[np.ndarray, np.ndarray]:
        sizes = [len(data) if isinstance(data, bytes) else -1 for data in (scales, vectors)]
        if sizes != [4 * BLOCK, BLOCK * self.dim]:
            raise AlbertkitError(f"{self.path} is damaged (a block has the wrong size). Index the files again.")
        return np.frombuffer(scales, "<f4"), np.frombuffer(vectors, np.int8).reshape(BLOCK, self.dim)


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
