"""Search and grouping: texts in one SQLite file with their words and vectors, found by meaning, by words, or both.

In: files or records and an embedder. Out: an index on disk, hits, clusters.

The file holds the texts, an FTS5 table of their words, and blocks of 1,024 vectors as bytes, each vector with its own
scale. A vector search reads all blocks in turn and compares every row, so that it is exact up to the rounding to bytes
and takes the same few megabytes for a thousand rows as for a million. Every batch is one transaction: killed at any
moment, the index keeps the batches that were finished. docs/search.md has the measurements behind this choice.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from albertkit.errors import AlbertkitError, nearest
from albertkit.search import keywords as words
from albertkit.search import vectors
from albertkit.search.cluster import Clusters, cluster
from albertkit.search.keywords import KeywordTable
from albertkit.search.records import records_from, storable_record
from albertkit.search.vectors import Ranked, StoredVector, VectorTable, fuse
from albertkit.text_reader import Record, replace_surrogates

__all__ = ["Clusters", "Embedder", "Index", "Record", "SearchHit", "cluster", "records_from"]

FORMAT = 1
MAGIC = 0x414C4258  # "ALBX", in the header of the file
MODES = ("hybrid", "vector", "keyword")
REMEDIES = {
    "locked": "another program is writing it, so wait until it is done",
    "readonly": "it may not be written, so choose another place",
    "fts5": "use a Python whose SQLite has FTS5",
    "full": "free some space and run the same command again",
    "not a database": "make an index with  albertkit index FILES -o OUT",
    "unable to open": "check that you may read it",
}
SCHEMA = f"""
PRAGMA page_size = 16384; PRAGMA application_id = {MAGIC}; PRAGMA user_version = {FORMAT};
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE texts (slot INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source TEXT NOT NULL, line INTEGER NOT NULL,
                    hash INTEGER NOT NULL, text TEXT NOT NULL);
CREATE INDEX texts_hash ON texts (hash);
CREATE TABLE free (slot INTEGER PRIMARY KEY);
{vectors.SCHEMA}{words.SCHEMA}"""


class Embedder(Protocol):
    """What turns texts into vectors, which the index brings to length 1; `Albert` is one."""

    @property
    def dim(self) -> int: ...
    @property
    def name(self) -> str: ...
    def embed(self, texts: Iterable[str]) -> np.ndarray: ...


@dataclass(frozen=True)
class SearchHit:
    """A found text: the cosine in vector mode, BM25 in keyword mode, the sum of 1 / (60 + rank) in hybrid mode."""

    id: str
    text: str
    score: float
    source: str
    line: int


class Index:
    """An index on disk. Threads may share one; other processes may read while one writes."""

    def __init__(self, path: Path, embedder: Embedder | None) -> None:
        self.path, self.embedder = path, embedder
        self._lock = threading.RLock()
        uri = f"{Path(os.path.abspath(path)).as_uri()}?mode=rw"  # noqa: PTH100  keeps links as they are
        with self._errors():
            self._sql = sqlite3.connect(uri, uri=True, timeout=60, isolation_level=None, check_same_thread=False)
            self._sql.execute("PRAGMA trusted_schema = OFF")  # an index may come from anywhere
            self._sql.execute("PRAGMA cache_size = -32000")
            self._sql.execute(f"PRAGMA mmap_size = {2**40}")  # reads from the system's own cache, with no copy of ours
            self._sql.execute("CREATE TEMP TABLE seen (slot INTEGER PRIMARY KEY)")

    @classmethod
    def create(cls, path: Path | str, embedder: Embedder, overwrite: bool = False, place: str = "") -> Index:
        """A new, empty index; it appears whole or not at all. `place` is kept to tell where the model lay."""
        path = Path(path)
        if path.exists() and (path.is_dir() or not overwrite):
            raise AlbertkitError(f"{path} exists already; choose another place or allow overwriting (--force)")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
            os.close(handle)
        except OSError as error:
            raise AlbertkitError(f"{path} cannot be written: {error.strerror}; choose another place") from None
        scratch = Path(name)
        try:
            connection = sqlite3.connect(scratch, isolation_level=None)
            connection.executescript(SCHEMA)
            facts = {"model": embedder.name, "dim": str(embedder.dim), "place": place}
            connection.executemany("INSERT INTO meta VALUES (?, ?)", facts.items())
            connection.close()
            scratch.chmod(0o644)
            Path(f"{path}-journal").unlink(missing_ok=True)  # left by a killed writer of the file that is replaced
            scratch.replace(path)
        except (OSError, sqlite3.Error) as error:
            raise AlbertkitError(_sentence(path, error)) from None
        finally:
            scratch.unlink(missing_ok=True)
        return cls.open(path, embedder)

    @classmethod
    def open(cls, path: Path | str, embedder: Embedder | None) -> Index:
        """An index that exists. Without an embedder it can delete and search by keyword."""
        path = Path(path)
        if not path.is_file():
            raise AlbertkitError(f"{path} is not a file; make an index with  albertkit index FILES -o {path}")
        index = cls(path, embedder)
        try:
            index._check()
        except BaseException:
            index.close()
            raise
        return index

    def _check(self) -> None:
        """Is this an index, and of this model?"""
        with self._errors():
            magic, version = (self._one(f"PRAGMA {name}") for name in ("application_id", "user_version"))
            if magic != MAGIC:
                raise AlbertkitError(f"{self.path} is not an index; make one with  albertkit index FILES -o OUT")
            if version != FORMAT:
                raise AlbertkitError(f"{self.path} has format {version}; this albertkit reads {FORMAT}, so update it")
            facts = dict(self._sql.execute("SELECT key, value FROM meta"))
        self.model, dim = (str(facts.get(key, "")) for key in ("model", "dim"))
        if not self.model or not dim.isdecimal() or not 1 <= int(dim) <= 65_536:
            raise AlbertkitError(f"{self.path} is damaged: it does not name its model; index the files anew")
        self.dim, self.place = int(dim), str(facts.get("place", ""))
        with self._errors():
            self._words, self._blocks = KeywordTable(self._sql), VectorTable(self._sql, self.path, self.dim)
        ours = self.embedder
        if ours is not None and (ours.name, ours.dim) != (self.model, self.dim):
            raise AlbertkitError(
                f"{self.path} was made with model {self.model} ({dim} numbers a text) and this is {ours.name} "
                f"({ours.dim}); open it with the first, or index the files anew (--force)"
            )

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._transaction("DEFERRED"):
            return int(self._one("SELECT count(*) FROM texts"))

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._sql.close()

    # Writing ------------------------------------------------------------------------------------------------------

    def add(self, records: Iterable[Record], batch: int = 512, progress: Callable[[int], object] | None = None) -> int:
        """Add or replace records; returns how many were new or changed. A text that the index holds is not embedded
        again.

        Each batch is one transaction, so that after a crash a second run goes on where the first one ended.
        """
        changed, source = 0, iter(records)
        while group := list(islice(source, max(1, batch))):
            with self._transaction("IMMEDIATE"):
                changed += self._add({r.id: r for r in map(storable_record, group)})
            if progress is not None:
                progress(len(group))
        return changed

    def _add(self, group: dict[str, Record]) -> int:
        ask = "SELECT slot, text, source, line FROM texts WHERE id = ?"
        known = {id: row for id in group if (row := self._sql.execute(ask, (id,)).fetchone())}
        fresh = [r for r in group.values() if r.id not in known or known[r.id][1] != r.text]
        vectors = self._vectors(r.text for r in fresh)
        moved = [r for r in group.values() if r.id in known and known[r.id][2:] != (r.source, r.line)]
        rows = [(r.source, r.line, known[r.id][0]) for r in moved]
        self._sql.executemany("UPDATE texts SET source = ?, line = ? WHERE slot = ?", rows)
        slots = self._slots(sum(r.id not in known for r in fresh))
        stored = {}
        for record in fresh:
            if record.id in known:
                slot = known[record.id][0]
                self._words.remove(slot, known[record.id][1])
                change = (_hash(record.text), record.text, slot)
                self._sql.execute("UPDATE texts SET hash = ?, text = ? WHERE slot = ?", change)
            else:
                slot = next(slots)
                row = (slot, record.id, record.source, record.line, _hash(record.text), record.text)
                self._sql.execute("INSERT INTO texts VALUES (?, ?, ?, ?, ?, ?)", row)
            self._words.add(slot, record.text)
            stored[slot] = vectors[record.text]
        self._blocks.write(stored)
        seen = "INSERT OR IGNORE INTO seen SELECT slot FROM texts WHERE id = ?"
        self._sql.executemany(seen, [(id,) for id in group])
        return len({r.id for r in fresh} | {r.id for r in moved})

    def _vectors(self, texts: Iterable[str]) -> dict[str, StoredVector]:
        """The vector of each text: taken from the index where an equal text is there, else embedded."""
        ask, slots = "SELECT slot FROM texts WHERE hash = ? AND text = ? LIMIT 1", {}
        missing = []
        for text in dict.fromkeys(texts):
            row = self._sql.execute(ask, (_hash(text), text)).fetchone()
            if row is None:
                missing.append(text)
            else:
                slots[text] = row[0]
        held = self._blocks.read(slots.values())
        found = {text: held[slot] for text, slot in slots.items()}
        if missing:
            found |= zip(missing, StoredVector.all_from(self._embed(missing)), strict=True)
        return found

    def _embed(self, texts: list[str]) -> np.ndarray:
        if self.embedder is None:
            raise AlbertkitError(f"{self.path} was opened without a model; only keyword search works so (name it: -m)")
        rows = np.asarray(self.embedder.embed(texts), np.float32)
        if rows.shape != (len(texts), self.dim) or not np.isfinite(rows).all():
            raise AlbertkitError(
                f"the model gave vectors of shape {rows.shape}, or not finite ones; "
                f"{self.path} needs {(len(texts), self.dim)}"
            )
        unit: np.ndarray = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return unit

    def _slots(self, count: int) -> Iterator[int]:
        """Places for new rows: those that deleting freed, then new ones at the end."""
        top = 1 + max(self._one(f"SELECT coalesce(max(slot), -1) FROM {table}") for table in ("texts", "free"))
        old = [slot for (slot,) in self._sql.execute("SELECT slot FROM free LIMIT ?", (count,))]
        self._sql.executemany("DELETE FROM free WHERE slot = ?", [(slot,) for slot in old])
        return iter([*old, *range(top, top + count - len(old))])

    def delete(self, ids: Iterable[str]) -> int:
        """Delete records by id; returns how many there were."""
        return self._delete("id = ?", [(id,) for id in ids])

    def delete_source(self, source: str) -> int:
        """Delete all records of one file."""
        return self._delete("source = ?", [(source,)])

    def delete_unseen(self, places: Iterable[Path | str]) -> int:
        """Of these files and folders, delete the records that nothing added since the index was opened."""
        inside = "(source = ? OR substr(source, 1, length(?)) = ?) AND slot NOT IN seen"
        folders = [(str(place), str(place).rstrip("/") + "/") for place in places]
        return self._delete(inside, [(name, folder, folder) for name, folder in folders])

    def _delete(self, where: str, values: Sequence[tuple[str, ...]]) -> int:
        with self._transaction("IMMEDIATE"):
            ask = f"SELECT slot FROM texts WHERE {where}"
            gone = sorted({slot for value in values for (slot,) in self._sql.execute(ask, value)})
            for start in range(0, len(gone), 1000):
                slots = [(slot,) for slot in gone[start : start + 1000]]
                for (slot,) in slots:
                    self._words.remove(slot, self._one(f"SELECT text FROM texts WHERE slot = {slot}"))
                self._sql.executemany("DELETE FROM texts WHERE slot = ?", slots)
                self._sql.executemany("DELETE FROM seen WHERE slot = ?", slots)
                self._sql.executemany("INSERT INTO free VALUES (?)", slots)
                self._blocks.write({slot: StoredVector() for (slot,) in slots})
            return len(gone)

    # Searching ----------------------------------------------------------------------------------------------------

    def search(self, query: str, k: int = 10, mode: str = "hybrid") -> list[SearchHit]:
        """The k best texts for a query; fewer when fewer match."""
        return self.search_many([query], k, mode)[0]

    def search_many(self, queries: Sequence[str], k: int = 10, mode: str = "hybrid") -> list[list[SearchHit]]:
        """`search` for many queries, which share each pass over the vectors."""
        if mode not in MODES:
            raise AlbertkitError(f"mode is {mode!r}{nearest(str(mode), MODES)}; choose one of {', '.join(MODES)}")
        if not 1 <= k <= 10_000:
            raise AlbertkitError(f"k is {k}; it must be a whole number from 1 to 10000")
        depth = k if mode != "hybrid" else max(100, 2 * k)
        empty: list[Ranked] = [[] for _ in queries]
        vectors = self._embed(list(map(replace_surrogates, queries))) if mode != "keyword" and len(queries) else None
        with self._transaction("DEFERRED"):
            near = empty if vectors is None else self._blocks.nearest(vectors, depth)
            rows = self._one("SELECT coalesce(max(slot), 0) FROM texts")
            said = empty if mode == "vector" else [self._words.best(q, depth, rows) for q in queries]
            ranked = [fuse(a, b)[:k] if mode == "hybrid" else a or b for a, b in zip(near, said, strict=True)]
            return [self._hits(found) for found in ranked]

    def search_vectors(self, vectors: np.ndarray, k: int = 10) -> list[list[SearchHit]]:
        """The texts nearest to vectors that were made elsewhere with the same model."""
        with self._transaction("DEFERRED"):
            return [self._hits(found) for found in self._blocks.nearest(np.asarray(vectors, np.float32), k)]

    def _hits(self, ranked: Ranked) -> list[SearchHit]:
        ask = "SELECT id, text, source, line FROM texts WHERE slot = ?"
        rows = [(score, self._sql.execute(ask, (slot,)).fetchone()) for score, slot in ranked]
        return [SearchHit(row[0], row[1], float(score), row[2], row[3]) for score, row in rows if row]

    # The connection -----------------------------------------------------------------------------------------------

    def _one(self, sql: str) -> Any:
        return self._sql.execute(sql).fetchone()[0]

    @contextlib.contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        """All or nothing, one thread at a time."""
        with self._lock, self._errors():
            self._sql.execute(f"BEGIN {kind}")
            try:
                yield
                self._sql.execute("COMMIT")
            except BaseException:
                if self._sql.in_transaction:
                    self._sql.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the second from a damaged text
            raise AlbertkitError(_sentence(self.path, error)) from None


def _sentence(path: Path, error: Exception) -> str:
    says = "".join(c if c.isprintable() else "?" for c in str(error))
    remedies = [remedy for sign, remedy in REMEDIES.items() if sign in says]
    return f"{path} cannot be used ({says}); {remedies[0] if remedies else 'index the files anew'}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big", signed=True)
