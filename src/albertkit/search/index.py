"""Search: texts in one SQLite file with their words and vectors, found by meaning, by words, or both.

In: files or records and an embedder. Out: an index on disk, and hits. Every batch is one transaction: after a crash,
the index has all finished batches. docs/results/benchmarks.md has measurements.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from albertkit.errors import AlbertkitError, check_choice
from albertkit.search.index_file import IndexFile, create_index_file
from albertkit.search.index_records import SearchHit, SearchResult, without_surrogates
from albertkit.search.keywords import KeywordTable
from albertkit.search.relevance import NONSENSE, RelevanceLimit
from albertkit.search.vectors import Ranked, StoredVector, VectorTable, checksum, damage_error, fuse
from albertkit.text_reader import Record, replace_surrogates
from albertkit.unreadable_text import (
    CHECKED_TEXTS,
    MAX_UNREADABLE_TEXTS,
    UnreadableTexts,
    check_readable,
    collect_unreadable,
    report_unreadable,
)

__all__ = ["Embedder", "Index", "Record", "SearchHit", "SearchResult"]

MODES = ("hybrid", "vector", "keyword")
SEAL = "keywords"  # key of the checksum of all keywords in the table of facts
LIMIT = "nonsense"  # key of the vectors of nonsense in the table of facts


class Embedder(Protocol):
    """A model that computes vectors of texts, such as `Albert`. The index normalizes the vectors."""

    @property
    def dim(self) -> int: ...
    @property
    def name(self) -> str: ...
    def embed(self, texts: Iterable[str]) -> np.ndarray: ...


class Index:
    """An index on disk. Threads may share one; other processes may read while one writes.

    >>> from albertkit import Albert, Index, Record
    >>> index = Index.create("notes.idx", Albert())
    >>> index.add([Record("1", "The doctor is in."), Record("2", "The train was late.")])
    2
    >>> index.search("where is a physician?", k=1, mode="vector")[0].text
    'The doctor is in.'
    >>> index.close()
    """

    def __init__(self, path: Path, embedder: Embedder | None) -> None:
        self.path, self.embedder = path, embedder
        self._file = IndexFile(path)
        self._sql, self._transaction, self._value = self._file.sql, self._file.transaction, self._file.value
        self._has_written = False
        self.is_new = False  # whether `open_or_create` created the file
        self._limit: RelevanceLimit | None = None

    @classmethod
    def create(cls, path: Path | str, embedder: Embedder, overwrite: bool = False, place: str = "") -> Index:
        """A new, empty index, created atomically. `place` records the path of the model."""
        path = Path(path)
        is_taken = path.exists() and (path.is_dir() or not overwrite)
        if is_taken or not create_index_file(path, _facts(embedder, place), overwrite):
            raise AlbertkitError(f"{path} already exists. Choose another path, or overwrite it (--force).")
        return cls.open(path, embedder)

    @classmethod
    def open_or_create(cls, path: Path | str, embedder: Embedder, place: str = "") -> Index:
        """The index at a path, or a new one. Several processes may do this at once; they share the index."""
        is_new = not Path(path).exists() and create_index_file(Path(path), _facts(embedder, place), overwrite=False)
        index = cls.open(path, embedder)
        index.is_new = is_new
        return index

    @classmethod
    def open(cls, path: Path | str, embedder: Embedder | None) -> Index:
        """Open an index. Without an embedder, it supports deletion and keyword search only."""
        path = Path(path)
        if not path.is_file():
            raise AlbertkitError(f"{path} is not a file. Build an index with  albertkit index FILES -o {path}")
        index = cls(path, embedder)
        try:
            index._check()
        except BaseException:
            index._sql.close()
            raise
        return index

    def _check(self) -> None:
        """Raise unless this is an index of this model."""
        facts = self._file.read_facts()
        self.model, dim = (facts.get(key, "") for key in ("model", "dim"))
        if not self.model or not dim.isdecimal() or not 1 <= int(dim) <= 65_536:
            raise AlbertkitError(f"{self.path} is damaged: it does not name its model. Index the files again.")
        self.dim, self.place = int(dim), facts.get("place", "")
        with self._file.errors():
            self._words, self._blocks = KeywordTable(self._sql, self.path), VectorTable(self._sql, self.path, self.dim)
        ours = self.embedder
        if ours is not None and (ours.name, ours.dim) != (self.model, self.dim):
            raise AlbertkitError(
                f"{self.path} was built with model {self.model} ({dim} dimensions), not {ours.name} ({ours.dim}). "
                "Open it with the former, or index the files again (--force)."
            )

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._transaction("DEFERRED"):
            return int(self._value("SELECT count(*) FROM texts"))

    def __del__(self) -> None:
        if hasattr(self, "_sql"):
            self._sql.close()

    def close(self) -> None:
        """Close the file."""
        with self._file.lock:
            if self._has_written:
                self._seal()
            self._has_written = False
            self._sql.close()

    # Writing ------------------------------------------------------------------------------------------------------

    def add(
        self,
        records: Iterable[Record],
        batch: int = 512,
        progress: Callable[[int], object] | None = None,
        max_unknown: float = MAX_UNREADABLE_TEXTS,
    ) -> int:
        """Add or replace records; returns the number of new or changed records. Only new texts are embedded.

        Each batch is one transaction, so a second run resumes after the last batch of a crashed run.
        max_unknown: the largest share of different texts that the model cannot read; more of them are an error. It is
        checked before the last batch is stored, and after 10,000 texts.
        """
        changed, source, unreadable = 0, iter(records), UnreadableTexts(0, 0)
        following = list(islice(source, max(1, batch)))
        while group := following:
            following = list(islice(source, max(1, batch)))
            records_by_id = {record.id: record for record in map(without_surrogates, group)}
            texts = dict.fromkeys(record.text for record in records_by_id.values())
            with collect_unreadable() as found:
                vectors = self._embed_new(texts)
            unreadable += replace(sum(found, UnreadableTexts(0, 0)), total=len(texts))
            if unreadable.total >= CHECKED_TEXTS or not following:
                check_readable(unreadable, max_unknown)
            limit = None if self._read_limit() else self._embed_limit()
            with self._write():
                if limit is not None:
                    self._sql.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (LIMIT, limit.to_text()))
                changed += self._add(records_by_id, vectors)
            if progress is not None:
                progress(len(group))
        report_unreadable(unreadable)
        return changed

    def _embed_new(self, texts: Iterable[str]) -> dict[str, StoredVector]:
        """The vectors of the texts that the index does not contain, computed while other programs may write."""
        with self._transaction("DEFERRED"):
            missing = [text for text in texts if self._find_text(text) is None]
        return dict(zip(missing, StoredVector.all_from(self._unit_vectors(missing)), strict=True)) if missing else {}

    def _find_text(self, text: str) -> int | None:
        ask = "SELECT slot FROM texts WHERE hash = ? AND text = ? LIMIT 1"
        row = self._sql.execute(ask, (_hash(text), text)).fetchone()
        return None if row is None else int(row[0])

    def _add(self, group: dict[str, Record], new: dict[str, StoredVector]) -> int:
        ask = "SELECT slot, text, source, line FROM texts WHERE id = ?"
        known = {id: row for id in group if (row := self._sql.execute(ask, (id,)).fetchone())}
        changed_texts = (r.text for r in group.values() if r.id not in known or known[r.id][1] != r.text)
        vectors = self._vectors(changed_texts, new)
        slots = self._slots(len(group) - len(known))
        stored, changed = {}, 0
        for record in group.values():
            slot, *old = known.get(record.id) or (next(slots), None, None, None)
            if old == [record.text, record.source, record.line]:
                continue
            changed += 1
            content = (slot, record.id, record.source, record.line)
            row = (*content, _hash(record.text), record.text, checksum(*content, record.text))
            self._sql.execute("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            if old[0] != record.text:
                if old[0] is not None:
                    self._words.remove(slot, old[0])
                self._words.add(slot, record.text)
                stored[slot] = vectors[record.text]
        self._blocks.write(stored)
        seen = "INSERT OR IGNORE INTO seen SELECT slot FROM texts WHERE id = ?"
        self._sql.executemany(seen, [(id,) for id in group])
        return changed

    def _vectors(self, texts: Iterable[str], new: dict[str, StoredVector]) -> dict[str, StoredVector]:
        """The vector of each text: from the index if it contains an equal text, otherwise a new one."""
        slots = {text: self._find_text(text) for text in texts}
        known = self._blocks.read(slot for slot in slots.values() if slot is not None)
        lost = [text for text, slot in slots.items() if slot is None and text not in new]  # deleted by another program
        if lost:
            new = new | dict(zip(lost, StoredVector.all_from(self._unit_vectors(lost)), strict=True))
        return {text: new[text] if slot is None else known[slot] for text, slot in slots.items()}

    def _unit_vectors(self, texts: list[str], vectors: np.ndarray | None = None) -> np.ndarray:
        """The unit vectors of texts; computed if they are not passed."""
        if vectors is None and self.embedder is None:
            raise AlbertkitError(f"{self.path} was opened without a model: only keyword search works. Pass one (-m).")
        if vectors is None and self.embedder is not None:
            vectors = self.embedder.embed(texts)
        rows = np.asarray(vectors, np.float32)
        if rows.shape != (len(texts), self.dim) or not np.isfinite(rows).all():
            raise AlbertkitError(
                f"the model returned vectors of shape {rows.shape}, or not finite ones: "
                f"{self.path} needs {(len(texts), self.dim)}. Check the model."
            )
        return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))

    def _slots(self, count: int) -> Iterator[int]:
        """Slots for new rows: first those of deleted rows, then new ones at the end."""
        top = self._slots_used()
        old = [slot for (slot,) in self._sql.execute("SELECT slot FROM free LIMIT ?", (count,))]
        self._sql.executemany("DELETE FROM free WHERE slot = ?", [(slot,) for slot in old])
        return iter([*old, *range(top, top + count - len(old))])

    def _slots_used(self) -> int:
        """The number of slots, with those of deleted rows."""
        return 1 + max(int(self._value(f"SELECT coalesce(max(slot), -1) FROM {table}")) for table in ("texts", "free"))

    def delete(self, ids: Iterable[str]) -> int:
        """Delete records by id; returns the number of deleted records."""
        return self._delete("id = ?", [(id,) for id in ids])

    def delete_source(self, source: str) -> int:
        """Delete all records of one file."""
        return self._delete("source = ?", [(source,)])

    def delete_unseen(self, places: Iterable[Path | str]) -> int:
        """Delete the records of these files and folders that were not added since the index was opened."""
        inside = "(source = ? OR substr(source, 1, length(?)) = ?) AND slot NOT IN seen"
        folders = [(str(place), str(place).rstrip("/") + "/") for place in places]
        return self._delete(inside, [(name, folder, folder) for name, folder in folders])

    @contextlib.contextmanager
    def _write(self) -> Iterator[None]:
        """A transaction that writes. It breaks the seal of the keywords."""
        with self._transaction("IMMEDIATE"):
            self._sql.execute("DELETE FROM meta WHERE key = ?", (SEAL,))
            yield
        self._has_written = True

    def _seal(self) -> None:
        """Store the checksum of the keywords, unless another program writes; then that program will."""
        self._sql.execute("PRAGMA busy_timeout = 0")
        with contextlib.suppress(AlbertkitError), self._transaction("IMMEDIATE"):
            row = (SEAL, str(self._words.checksum()))
            self._sql.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", row)

    def _delete(self, where: str, values: Sequence[tuple[str, ...]]) -> int:
        with self._write():
            ask = f"SELECT slot FROM texts WHERE {where}"
            gone = sorted({slot for value in values for (slot,) in self._sql.execute(ask, value)})
            for start in range(0, len(gone), 1000):
                slots = [(slot,) for slot in gone[start : start + 1000]]
                for (slot,) in slots:
                    self._words.remove(slot, self._value(f"SELECT text FROM texts WHERE slot = {slot}"))
                self._sql.executemany("DELETE FROM texts WHERE slot = ?", slots)
                self._sql.executemany("DELETE FROM seen WHERE slot = ?", slots)
                self._sql.executemany("INSERT INTO free VALUES (?)", slots)
                self._blocks.write({slot: StoredVector() for (slot,) in slots})
            return len(gone)

    # Searching ----------------------------------------------------------------------------------------------------

    def search(self, query: str, k: int = 10, mode: str = "hybrid", min_score: float | None = None) -> list[SearchHit]:
        """The k best texts for a query; fewer when fewer match.

        Hybrid mode ranks by reciprocal rank fusion: a text with many words of the query may precede a closer one.
        min_score: lowest cosine of a hit by meaning; -1 keeps all. The default depends on the model and on the text:
        it is the cosine that nonsense practically never reaches. Hits by words are kept at any cosine.
        """
        return self.search_results([query], k, mode, min_score=min_score)[0].hits

    def search_many(
        self,
        queries: Sequence[str],
        k: int = 10,
        mode: str = "hybrid",
        vectors: np.ndarray | None = None,
        min_score: float | None = None,
    ) -> list[list[SearchHit]]:
        """`search` for many queries in one pass over the vectors; `vectors` of the queries, if they are known."""
        return [result.hits for result in self.search_results(queries, k, mode, vectors, min_score)]

    def search_results(
        self,
        queries: Sequence[str],
        k: int = 10,
        mode: str = "hybrid",
        vectors: np.ndarray | None = None,
        min_score: float | None = None,
    ) -> list[SearchResult]:
        """`search_many`, with the number of texts that were left out."""
        check_choice("mode", mode, MODES)
        if not 1 <= k <= 10_000:
            raise AlbertkitError(f"k={k} is out of range. Pass a whole number from 1 to 10000.")
        if min_score is not None and (mode == "keyword" or not -1 <= min_score <= 1):
            raise AlbertkitError(
                f"min_score={min_score} in mode {mode} is not available: it is a cosine from -1 to 1, and keyword "
                "search has none. Pass such a number with another mode, or omit it."
            )
        if not len(queries):
            return []
        by_keyword: list[Ranked] = [[]] * len(queries)
        depth = k if mode != "hybrid" else max(100, 2 * k)
        if mode != "keyword":
            vectors = self._unit_vectors(list(map(replace_surrogates, queries)), vectors)
        limit = self._read_limit() if mode != "keyword" and min_score is None else None
        with self._transaction("DEFERRED"):
            if mode != "vector":
                self._words.verify(self._sql.execute("SELECT value FROM meta WHERE key = ?", (SEAL,)).fetchone())
                rows = self._value("SELECT coalesce(max(slot), 0) FROM texts")
                by_keyword = [self._words.best(query, depth, rows) for query in queries]
            if mode == "keyword" or vectors is None:
                return [SearchResult(self._hits(ranked, "words"), 0) for ranked in by_keyword]
            by_vector = self._blocks.nearest(vectors, depth, self._slots_used())
            close = [[row for row in ranked if min_score is None or row[0] >= min_score] for ranked in by_vector]
            if limit is not None:
                close = limit.keep_relevant(by_vector, self._blocks, self._slots_used())
            lists = zip(vectors, by_vector, close, by_keyword, strict=True)
            return [self._fused_hits(*found, k) for found in lists]

    def _fused_hits(
        self, query: np.ndarray, by_vector: Ranked, close: Ranked, by_keyword: Ranked, k: int
    ) -> SearchResult:
        """The best of both searches, each with its cosine. close: those of `by_vector` that match by meaning."""
        cosines, worded = {slot: score for score, slot in by_vector}, {slot for _, slot in by_keyword}
        meant = {slot for _, slot in close}
        ranked = [slot for _, slot in fuse(by_vector, by_keyword)]
        best = [slot for slot in ranked if slot in meant or slot in worded][:k]
        far = self._blocks.read(slot for slot in best if slot not in cosines)
        found: list[SearchHit] = []
        for slot in best:
            cosine = far[slot].dot(query) if slot in far else cosines[slot]
            matched = "meaning" if slot not in worded else "both" if slot in meant else "words"
            found += self._hits([(min(cosine, 1.0), slot)], matched)
        return SearchResult(found, len(set(ranked[:k]) - meant - worded))

    def _read_limit(self) -> RelevanceLimit | None:
        """The limit of hits by meaning; None if the index has no texts yet."""
        with self._transaction("DEFERRED"):
            row = self._sql.execute("SELECT value FROM meta WHERE key = ?", (LIMIT,)).fetchone()
            if row is None and self._slots_used():
                raise damage_error(self.path, "it has no vectors of nonsense")
        if row is not None and self._limit is None:
            self._limit = RelevanceLimit.from_text(str(row[0]), self.dim, self.path)
        return None if row is None else self._limit

    def _embed_limit(self) -> RelevanceLimit:
        with collect_unreadable():  # a model need not read the ideographs
            return RelevanceLimit(self._unit_vectors(list(NONSENSE)))

    def _hits(self, ranked: Ranked, matched: str) -> list[SearchHit]:
        found = []
        ask = "SELECT slot, id, source, line, text, checksum FROM texts WHERE slot = ?"
        for score, slot in ranked:
            row = self._sql.execute(ask, (slot,)).fetchone()
            if row is None or row[5] != checksum(*row[:5]):
                raise damage_error(self.path, f"the checksum of text {slot} differs")
            found.append(SearchHit(row[1], row[4], float(score), row[2], row[3], matched))
        return found


def _facts(embedder: Embedder, place: str) -> dict[str, str]:
    return {"model": embedder.name, "dim": str(embedder.dim), "place": place}


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big", signed=True)
