"""Search: texts with their words and vectors, found by meaning, by words, or both.

In: files or records and an embedder. Out: an index, and hits. An index is one SQLite file (`local_index.py`) or a table
of a vector store (`stores/`); this file has what they share. Every batch is one transaction: after a crash, the index
has all finished batches. docs/results/benchmarks.md has measurements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from albertkit.errors import AlbertkitError, check_type
from albertkit.input_warnings import (
    CHECKED_TEXTS,
    MAX_UNREADABLE_TEXTS,
    InputProblems,
    check_readable,
    collect_problems,
    report_problems,
)
from albertkit.runtime.embed import report_untrained_vectors, unit_length
from albertkit.search.index_records import (
    RepeatedIds,
    SearchHit,
    SearchResult,
    check_embedder,
    check_queries,
    check_search,
    plain_record,
)
from albertkit.search.relevance import NONSENSE, RelevanceLimit
from albertkit.search.store_address import parse_address
from albertkit.search.vectors import Ranked, StoredVector, VectorBlock, damage_error, fuse
from albertkit.text_reader import Record, replace_surrogates

__all__ = ["Embedder", "Index", "Record", "SearchHit", "SearchResult"]

LIMIT = "nonsense"  # key of the vectors of nonsense among the facts of an index


class Embedder(Protocol):
    """A model that computes vectors of texts, such as `Albert`. The index normalizes the vectors."""

    @property
    def dim(self) -> int: ...
    @property
    def name(self) -> str: ...
    def embed(self, texts: Iterable[str]) -> np.ndarray: ...


class Index(ABC):
    """An index: a file, or a table of a vector store. Threads may share one; others may read while one writes.

    A path is a file. `pgvector://user@host/database?table=notes` is a table in Postgres, `lancedb://folder?table=notes`
    is a table of LanceDB, and `qdrant://host:6333?table=notes` is a collection of Qdrant.

    >>> from albertkit import Albert, Index, Record
    >>> index = Index.create("notes.idx", Albert())
    >>> index.add([Record("1", "The doctor is in."), Record("2", "The train was late.")])
    2
    >>> index.search("where is a physician?", k=1, mode="vector")[0].text
    'The doctor is in.'
    >>> index.close()
    """

    path: Path | str
    """The file, or the address without its password."""
    model: str
    dim: int
    model_path: str
    """The folder or the built-in name of the model, as `create` recorded it; may be empty."""

    def __new__(cls, *args: object, **keywords: object) -> Index:
        if cls is Index:
            raise AlbertkitError("Index() opens no index. Call Index.open(PATH, ALBERT) or Index.create(PATH, ALBERT).")
        return super().__new__(cls)

    def __init__(self, embedder: Embedder | None) -> None:
        self.embedder = embedder
        self.is_new = False  # whether `open_or_create` created it
        self._limit: RelevanceLimit | None = None

    @staticmethod
    def create(path: Path | str, embedder: Embedder, overwrite: bool = False, model_path: str = "") -> Index:
        """A new, empty index. Other programs see it, or the one that it overwrites, but nothing in between.

        `model_path` records the folder or the name of the model.
        """
        check_embedder(embedder)
        return _opener(path).create(embedder, overwrite, model_path)

    @staticmethod
    def open_or_create(path: Path | str, embedder: Embedder, model_path: str = "") -> Index:
        """The index at a path or address, or a new one. Several processes may do this at once; they share the index."""
        check_embedder(embedder)
        return _opener(path).open_or_create(embedder, model_path)

    @staticmethod
    def open(path: Path | str, embedder: Embedder | None) -> Index:
        """Open an index. Without an embedder, it supports deletion and keyword search only."""
        check_embedder(embedder)
        return _opener(path).open(embedder)

    @staticmethod
    def exists(path: Path | str) -> bool:
        """Whether there is a file at a path, or a table at an address."""
        return _opener(path).exists()

    def _check_model(self, facts: Mapping[str, str]) -> None:
        """Raise unless the facts are those of an index of this model."""
        self.model, dim = (facts.get(key, "") for key in ("model", "dim"))
        if not self.model or not dim.isdecimal() or not 1 <= int(dim) < 65_536:
            raise AlbertkitError(f"{self.path} is damaged: it does not name its model. Index the files again.")
        self.dim, self.model_path = int(dim), facts.get("place", "")
        ours = self.embedder
        if ours is not None and (ours.name, ours.dim) != (self.model, self.dim):
            raise AlbertkitError(
                f"{self.path} was built with model {self.describe_model()} ({dim} dimensions), not {ours.name} "
                f"({ours.dim}). Use the model of the index, at the same depth, or index the files again (--force)."
            )

    def describe_model(self) -> str:
        """The folder or the built-in name of the model, if it was recorded, and what identifies its vectors."""
        return f"{self.model_path}, {self.model}" if self.model_path else self.model

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._read():
            return self._count()

    # Writing ------------------------------------------------------------------------------------------------------

    def add(
        self,
        records: Iterable[Record],
        batch: int = 512,
        progress: Callable[[int], object] | None = None,
        max_unknown: float = MAX_UNREADABLE_TEXTS,
    ) -> int:
        """Add or replace records; returns the number of new or changed records. Only new texts are embedded.

        Of several records with one id, the last is kept; a `UserWarning` counts such ids.
        Each batch is one transaction, so a second run resumes after the last batch of a crashed run.
        max_unknown: the largest share of different texts that the model cannot read; more of them are an error. It is
        checked before the last batch is stored, and after 10,000 texts.
        """
        check_type("records", records, (Iterable,), "a list of records such as Record('1', 'a text')")
        changed, source, problems = 0, iter(records), InputProblems()
        with closing(RepeatedIds()) as ids:
            following = list(islice(source, max(1, batch)))
            while following:
                group = list(map(plain_record, following))
                following = list(islice(source, max(1, batch)))
                records_by_id = {record.id: record for record in group}
                texts = dict.fromkeys(record.text for record in records_by_id.values())
                with collect_problems() as batch_problems:
                    vectors = self._embed_new(texts)
                problems += replace(sum(batch_problems, InputProblems()), total=len(texts))
                if problems.total >= CHECKED_TEXTS or not following:
                    check_readable(problems, max_unknown)
                limit = None if self._read_limit() else self._embed_limit()
                with self._write():
                    if limit is not None:
                        self._set_fact(LIMIT, limit.to_text())
                    changed += self._add(records_by_id, vectors)
                ids.add(group)
                if progress is not None:
                    progress(len(group))
            ids.report()
        report_problems(problems)
        return changed

    def _embed_new(self, texts: Iterable[str]) -> dict[str, StoredVector]:
        """The vectors of the texts that the index does not contain, computed while other programs may write."""
        with self._read():
            missing = self._missing_texts(texts)
        return self._embed(missing) if missing else {}

    def _embed(self, texts: list[str]) -> dict[str, StoredVector]:
        return dict(zip(texts, self._stored_vectors(self._unit_vectors(texts)), strict=True))

    def _unit_vectors(self, texts: list[str], vectors: np.ndarray | None = None) -> np.ndarray:
        """The unit vectors of texts; computed if they are not passed."""
        if vectors is None and self.embedder is None:
            raise AlbertkitError(f"{self.path} was opened without a model: only keyword search works. Pass one (-m).")
        if vectors is None and self.embedder is not None:
            report_untrained_vectors(self.embedder)
            vectors = self.embedder.embed(texts)
        rows, shape = np.asarray(vectors, np.float32), (len(texts), self.dim)
        units = unit_length(rows) if rows.shape == shape else rows
        if units.shape != shape or not np.isfinite(units).all():
            raise AlbertkitError(
                f"the model returned vectors of shape {rows.shape}, or not finite ones: {self.path} needs {shape}. "
                "Check the model."
            )
        return units

    def delete(self, ids: str | Iterable[str]) -> int:
        """Delete records by id, or one record; returns the number of deleted records."""
        check_type("ids", ids, (str, Iterable), "an id, or several in a list")
        id_list = [ids] if isinstance(ids, str) else list(ids)
        invalid = [name for name in id_list if not isinstance(name, str)]
        if invalid:
            raise AlbertkitError(f"the id {invalid[0]!r} is not a string. Pass the ids that the records have.")
        return self._delete_ids(id_list)

    def delete_source(self, source: str) -> int:
        """Delete all records of one file."""
        return self._delete_source(source)

    def delete_unseen(self, places: Path | str | Iterable[Path | str]) -> int:
        """Delete the records of these files and folders that were not added since the index was opened."""
        places = [places] if isinstance(places, str | Path) else places
        return self._delete_unseen([(str(place), str(place).rstrip("/") + "/") for place in places])

    # Searching ----------------------------------------------------------------------------------------------------

    def search(
        self, query: str, k: int = 10, mode: str = "hybrid", min_score: float | None = None, exact: bool = False
    ) -> list[SearchHit]:
        """The k best texts for a query; fewer when fewer match. Hybrid mode ranks by reciprocal rank fusion.

        min_score: lowest cosine of a hit by meaning; -1 keeps all. The default depends on the model and on the text:
        it is the cosine that nonsense practically never reaches. Hits by words are kept at any cosine.
        exact: compute the cosine of every text, not only of the nearest by the signs of their vectors, 1,000 or more.
        The default may miss a neighbour.
        """
        return self.search_results([query], k, mode, min_score=min_score, exact=exact)[0].hits

    def search_many(
        self,
        queries: Sequence[str],
        k: int = 10,
        mode: str = "hybrid",
        vectors: np.ndarray | None = None,
        min_score: float | None = None,
        exact: bool = False,
    ) -> list[list[SearchHit]]:
        """`search` for many queries; `vectors` of the queries, if they are known."""
        return [result.hits for result in self.search_results(queries, k, mode, vectors, min_score, exact)]

    def search_results(
        self,
        queries: Sequence[str],
        k: int = 10,
        mode: str = "hybrid",
        vectors: np.ndarray | None = None,
        min_score: float | None = None,
        exact: bool = False,
    ) -> list[SearchResult]:
        """`search_many`, with the number of texts that were left out. A blank query is an error."""
        check_search(k, mode, min_score, exact)
        if vectors is None or mode != "vector":
            check_queries(queries)
        if not len(queries):
            return []
        by_keyword: list[Ranked] = [[]] * len(queries)
        depth = max(100, 2 * k) if mode == "hybrid" else k
        limit = self._read_limit() if mode != "keyword" and min_score is None else None
        if mode != "keyword":
            vectors = self._unit_vectors(list(map(replace_surrogates, queries)), vectors)
        with self._read():
            if mode != "vector":
                by_keyword = self._match_words(queries, depth)
            if mode == "keyword" or vectors is None:
                return [SearchResult(self._hits(ranked, "words"), 0) for ranked in by_keyword]
            by_vector = self._nearest(vectors, depth, exact)
            relevant = [[row for row in ranked if min_score is None or row[0] >= min_score] for ranked in by_vector]
            if limit is not None:
                texts = self._read_vectors({slot for ranked in by_vector for _, slot in ranked})
                relevant = limit.keep_relevant(by_vector, texts, self._oldest_vectors(), self._slots_used())
            lists = zip(vectors, by_vector, relevant, by_keyword, strict=True)
            return [self._fused_hits(*result_lists, k) for result_lists in lists]

    def _fused_hits(
        self, query: np.ndarray, by_vector: Ranked, relevant: Ranked, by_keyword: Ranked, k: int
    ) -> SearchResult:
        """The best of both searches, each with its cosine. relevant: those of `by_vector` that match by meaning."""
        cosines, keyword_slots = {slot: score for score, slot in by_vector}, {slot for _, slot in by_keyword}
        relevant_slots = {slot for _, slot in relevant}
        ranked = [slot for _, slot in fuse(by_vector, by_keyword)]
        best = [slot for slot in ranked if slot in relevant_slots or slot in keyword_slots][:k]
        missing_vectors = self._read_vectors(slot for slot in best if slot not in cosines)
        cosines |= {slot: vector.dot(query) for slot, vector in missing_vectors.items()}
        hits = self._hits([(min(cosines[slot], 1.0), slot) for slot in best], "both")
        matched = ["meaning" if s not in keyword_slots else "both" if s in relevant_slots else "words" for s in best]
        hits_with_match = [replace(hit, matched=how) for hit, how in zip(hits, matched, strict=True)]
        return SearchResult(hits_with_match, len(set(ranked[:k]) - relevant_slots - keyword_slots))

    def _read_limit(self) -> RelevanceLimit | None:
        """The limit of hits by meaning; None if the index has no texts yet."""
        with self._read():
            stored = self._fact(LIMIT)
            if stored is None and self._slots_used():
                raise damage_error(self.path, "it has no vectors of nonsense")
        if stored is not None and self._limit is None:
            self._limit = RelevanceLimit.from_text(stored, self.dim, self.path)
        return None if stored is None else self._limit

    def _embed_limit(self) -> RelevanceLimit:
        with collect_problems():  # a model need not read the ideographs
            return RelevanceLimit(self._unit_vectors(list(NONSENSE)))

    # What each kind of index implements ---------------------------------------------------------------------------

    @abstractmethod
    def close(self) -> None:
        """Close the file, or the connection."""

    @abstractmethod
    def drop(self) -> None:
        """Close the index and delete it with all its texts."""

    @abstractmethod
    def _read(self) -> AbstractContextManager[None]:
        """A transaction that reads, for one thread at a time."""

    @abstractmethod
    def _write(self) -> AbstractContextManager[None]:
        """A transaction that writes, for one program at a time."""

    @abstractmethod
    def _count(self) -> int: ...
    @abstractmethod
    def _slots_used(self) -> int:
        """An upper bound of the number of texts, fast to compute."""

    @abstractmethod
    def _fact(self, key: str) -> str | None: ...
    @abstractmethod
    def _set_fact(self, key: str, value: str) -> None: ...
    @abstractmethod
    def _missing_texts(self, texts: Iterable[str]) -> list[str]:
        """The texts that the index does not contain."""

    @abstractmethod
    def _add(self, group: dict[str, Record], new_vectors: dict[str, StoredVector]) -> int:
        """Add or replace records; returns the number of changed ones. new_vectors: of texts, from `_embed_new`."""

    def _stored_vectors(self, rows: np.ndarray) -> list[StoredVector]:
        """Unit vectors as the index stores them."""
        return [StoredVector(1.0, row) for row in rows]

    @abstractmethod
    def _delete_ids(self, ids: list[str]) -> int: ...
    @abstractmethod
    def _delete_source(self, source: str) -> int: ...
    @abstractmethod
    def _delete_unseen(self, places: list[tuple[str, str]]) -> int:
        """places: each file or folder, and what the paths of files in the folder begin with."""

    @abstractmethod
    def _nearest(self, queries: np.ndarray, k: int, exact: bool) -> list[Ranked]:
        """For each query the slots of the k texts with the highest cosine."""

    @abstractmethod
    def _match_words(self, queries: Sequence[str], k: int) -> list[Ranked]:
        """For each query the slots of the k best texts with its words."""

    @abstractmethod
    def _read_vectors(self, slots: Iterable[int]) -> dict[int, StoredVector]: ...
    @abstractmethod
    def _oldest_vectors(self) -> VectorBlock | None:
        """The vectors of up to 1,024 texts, the same ones for each search; None for an empty index."""

    @abstractmethod
    def _hits(self, ranked: Ranked, matched: str) -> list[SearchHit]: ...


class IndexOpener(Protocol):
    """Opens indexes of one kind at one place."""

    def create(self, embedder: Embedder, overwrite: bool, model_path: str) -> Index: ...
    def open_or_create(self, embedder: Embedder, model_path: str) -> Index: ...
    def open(self, embedder: Embedder | None) -> Index: ...
    def exists(self) -> bool: ...


def _opener(path: Path | str) -> IndexOpener:
    address = parse_address(path)
    if address is None:
        from albertkit.search.local_index import LocalOpener

        return LocalOpener(Path(path))
    from albertkit.search.stores import open_store

    return open_store(address)


def index_facts(embedder: Embedder, model_path: str) -> dict[str, str]:
    """What an index stores about its model."""
    return {"model": embedder.name, "dim": str(embedder.dim), "place": model_path}
