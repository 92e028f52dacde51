"""An index in a collection of Qdrant: a dense and a sparse vector per text, on a server or in a folder.

In: a `StoreAddress`. Out: a `QdrantIndex`. Before this file: `store_index.py`, `qdrant_connection.py`,
`qdrant_points.py`.

A record is a point, whose id is computed from the id of the record. So a repeated write changes nothing, and a slot is
that id as an integer. The metadata of the collection are the facts. The dense vectors are named after the model, so
that Qdrant refuses those of another one.

A point is written in one step, a batch is not: after a crash, a rerun adds what is missing. Qdrant builds its graph of
vectors by itself.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError, need
from albertkit.search.index import Embedder
from albertkit.search.index_records import SearchHit, SearchResult, text_hash
from albertkit.search.store_address import StoreAddress
from albertkit.search.stores.qdrant_connection import (
    PURPOSE,
    Connection,
    connect,
    disconnect,
    folder_of,
    plain_errors,
    speed_up,
    with_key,
)
from albertkit.search.stores.qdrant_points import (
    FIELDS,
    WORDS,
    payload_of,
    point_id,
    ranked_points,
    record_of,
    slot_of,
    vector_name,
)
from albertkit.search.stores.qdrant_words import query_weights, text_weights
from albertkit.search.stores.store_index import StoreIndex, block_of
from albertkit.search.vectors import BLOCK, Ranked, StoredVector, VectorBlock
from albertkit.text_reader import Record

METADATA = "albertkit"  # key of the facts in the metadata of the collection
INDEXED = {"hash": "integer", "source": "keyword", "folders": "keyword"}  # what filters use
REQUEST_BYTES = 16 << 20  # of points in one request; a server accepts 32 MB
POINTS = 1_000  # in a request without vectors
PAGE = 10_000  # points of which only ids are read
CANDIDATES = 128  # of a search in the graph, at least
REPEATS = 3  # searches again if a text was deleted meanwhile


class PointGoneError(AlbertkitError):
    """Another program deleted a text between two steps of a search."""


class QdrantIndex(StoreIndex):
    """An index in a collection of Qdrant. One program should write at a time; a folder admits one program."""

    def __init__(self, address: StoreAddress, embedder: Embedder | None) -> None:
        super().__init__(with_key(address), embedder)
        self._models: Any = need("qdrant_client.models", "qdrant", PURPOSE)
        self._table, self._folder = address.table, folder_of(address)
        self._connection: Connection | None = None
        self._is_open, self._has_indexes = True, False
        self._seen: set[str] = set()

    # The collection -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """A connection for one thread at a time, with errors as sentences."""
        with plain_errors(self.address):
            if not self._is_open:
                raise AlbertkitError(f"{self.path} was closed. Open it again.")
            if self._connection is None:
                self._connection = connect(self.address)
                if self._connection.folder:
                    speed_up(self._connection, self._table)
            with self._connection.lock:
                yield

    @property
    def _client(self) -> Any:
        assert self._connection is not None
        return self._connection.client

    @property
    def _vectors_name(self) -> str:
        return vector_name(self.model)

    def has_table(self) -> bool:
        if self._folder is not None and not (self._folder / "meta.json").is_file():  # Qdrant would create it
            return False
        with self._connected():
            return bool(self._client.collection_exists(self._table))

    def create_table(self, facts: Mapping[str, str], overwrite: bool) -> None:
        models = self._models
        with self._connected():
            if self._client.collection_exists(self._table):
                if not overwrite or self._stored_facts() is None:  # or another program's collection
                    raise self.exists_error()
                self._client.delete_collection(self._table)
            vectors = models.VectorParams(
                size=int(facts["dim"]), distance=models.Distance.COSINE, datatype=models.Datatype.FLOAT16
            )
            try:
                self._client.create_collection(
                    self._table,
                    vectors_config={vector_name(facts["model"]): vectors},
                    sparse_vectors_config={WORDS: models.SparseVectorParams(modifier=models.Modifier.IDF)},
                    metadata={METADATA: dict(facts)},
                )
            except Exception as error:
                if "already exists" in str(error):
                    raise self.exists_error() from None
                raise
            if self._connection and self._connection.folder:
                speed_up(self._connection, self._table)

    def _stored_facts(self) -> dict[str, Any] | None:
        """The facts of the collection; None if it is another program's."""
        facts = (self._client.get_collection(self._table).config.metadata or {}).get(METADATA)
        return facts if isinstance(facts, dict) else None

    def _build_indexes(self) -> None:
        """Build what is missing of the indexes that filters use. A folder has none."""
        if self._folder is None and not self._has_indexes:
            there = self._client.get_collection(self._table).payload_schema or {}
            for name in INDEXED.keys() - there.keys():
                self._client.create_payload_index(self._table, name, INDEXED[name], wait=True)
        self._has_indexes = True

    def read_facts(self) -> dict[str, str]:
        if not self.has_table():
            raise self.missing_error()
        with self._connected():
            stored = self._stored_facts()
        if stored is None:
            raise AlbertkitError(f"{self.path} is another program's collection. Choose another table.")
        return {str(key): str(value) for key, value in stored.items()}

    def close(self) -> None:
        """Close the connection."""
        self._has_written, self._is_open = False, False
        if self._connection is not None:
            connection, self._connection = self._connection, None
            disconnect(connection)

    def drop(self) -> None:
        """Delete the collection with all its texts, and close the connection."""
        with self._write():
            self._client.delete_collection(self._table)
        self.close()

    @contextlib.contextmanager
    def _read(self) -> Iterator[None]:
        with self._connected():
            try:
                yield
            except AlbertkitError:
                raise
            except Exception as error:  # Qdrant has no vectors of this name, or no such collection
                if self._facts and self._vectors_name in str(error) and "ector" in str(error):
                    raise self.replaced_error() from None
                if self._table in str(error) and re.search("not found|doesn't exist", str(error)):
                    raise self.missing_error() from None
                raise

    @contextlib.contextmanager
    def _write(self) -> Iterator[None]:
        with self._read():
            facts = self._stored_facts()
            if facts is None or facts.get("model") != self.model:
                raise self.replaced_error()
            self._build_indexes()
            yield

    # Writing ------------------------------------------------------------------------------------------------------

    def _count(self) -> int:
        return int(self._client.count(self._table, exact=True).count)

    def _slots_used(self) -> int:
        return self._count()

    def _retrieve(self, ids: Iterable[str], fields: Sequence[str] = (), vectors: bool = False) -> Iterator[Any]:
        """Those of the points that are there, with these parts of their payload, or with their dense vectors."""
        wanted, names = list(ids), [self._vectors_name] if vectors else False
        for start in range(0, len(wanted), POINTS):
            part = wanted[start : start + POINTS]
            yield from self._client.retrieve(self._table, part, with_payload=list(fields) or False, with_vectors=names)

    def _scroll(self, where: Any, limit: int, fields: Sequence[str] = (), vectors: bool = False) -> Iterator[list[Any]]:
        """Pages of all points that meet a condition, in the order of their ids."""
        names, following = [self._vectors_name] if vectors else False, None
        while True:
            page, following = self._client.scroll(
                self._table, where, limit, offset=following, with_payload=list(fields) or False, with_vectors=names
            )
            yield page
            if following is None:
                return

    def _match(self, key: str, value: str) -> Any:
        return self._models.FieldCondition(key=key, match=self._models.MatchValue(value=value))

    def _find_records(self, ids: list[str]) -> dict[str, Record]:
        points = self._retrieve(map(point_id, ids), FIELDS)
        return {record.id: record for record in map(record_of, points)}

    def _known_texts(self, texts: list[str]) -> set[str]:
        return {str(point.payload["text"]) for point in self._one_per_hash(texts, False)}

    def _text_vectors(self, texts: list[str]) -> dict[str, StoredVector]:
        found = {str(point.payload["text"]): self._vector(point) for point in self._one_per_hash(texts, True)}
        return {text: found[text] for text in texts if text in found}

    def _one_per_hash(self, texts: list[str], vectors: bool) -> Iterator[Any]:
        """One point of each text that is there, since a text may be in very many of them."""
        missing = self._hashes_there({text_hash(text) for text in texts})
        while missing:
            match = self._models.MatchAny(any=sorted(missing))
            where = self._models.Filter(must=[self._models.FieldCondition(key="hash", match=match)])
            page = next(self._scroll(where, len(missing), ("text", "hash"), vectors))
            points = {point.payload["hash"]: point for point in page}
            yield from points.values()
            if len(page) < len(missing):
                return
            missing -= points.keys()

    def _hashes_there(self, hashes: set[int]) -> set[int]:
        """For a folder only those that are in it: its client compares each point with a long list."""
        if self._folder is None or not hashes:
            return hashes
        found = self._client.facet(self._table, "hash", limit=max(1, self._count()))
        return hashes & {hit.value for hit in found.hits}

    def _upsert(self, records: list[Record], vectors: list[StoredVector]) -> None:
        points: list[Any] = []
        total = 0
        for record, vector in zip(records, vectors, strict=True):
            weights = text_weights(record.text)
            size = 4 * len(record.text.encode()) + 40 * len(weights) + 24 * self.dim
            if points and total + size > REQUEST_BYTES:
                self._client.upsert(self._table, points, wait=True)
                points, total = [], 0
            points.append(self._point(record, vector, weights))
            total += size
        if points:
            self._client.upsert(self._table, points, wait=True)

    def _point(self, record: Record, vector: StoredVector, weights: dict[int, float]) -> Any:
        named: dict[str, Any] = {self._vectors_name: vector.floats().astype(np.float16).tolist()}
        if weights:
            named[WORDS] = self._sparse(weights)
        return self._models.PointStruct(id=point_id(record.id), vector=named, payload=payload_of(record))

    def _sparse(self, weights: dict[int, float]) -> Any:
        return self._models.SparseVector(indices=list(weights), values=list(weights.values()))

    def _mark_seen(self, ids: Iterable[str]) -> None:
        self._seen.update(map(point_id, ids))

    def _delete_points(self, ids: Iterable[str]) -> int:
        there = [str(point.id) for point in self._retrieve(dict.fromkeys(ids))]
        for start in range(0, len(there), POINTS):
            part = self._models.PointIdsList(points=there[start : start + POINTS])
            self._client.delete(self._table, part, wait=True)
        return len(there)

    def _delete_ids(self, ids: list[str]) -> int:
        with self._write():
            return self._delete_points(map(point_id, ids))

    def _delete_source(self, source: str) -> int:
        return self._delete_where(self._models.Filter(must=[self._match("source", source)]), set())

    def _delete_unseen(self, places: list[tuple[str, str]]) -> int:
        deleted = 0
        for place, folder in places:
            inside = self._models.Filter(should=[self._match("source", place), self._match("folders", folder[:-1])])
            deleted += self._delete_where(inside, self._seen)
        return deleted

    def _delete_where(self, where: Any, kept: set[str]) -> int:
        with self._write():
            ids = [str(point.id) for page in self._scroll(where, PAGE) for point in page]
            return self._delete_points(id for id in ids if id not in kept)

    # Searching ----------------------------------------------------------------------------------------------------

    def search_results(
        self,
        queries: Sequence[str],
        k: int = 10,
        mode: str = "hybrid",
        vectors: np.ndarray | None = None,
        min_score: float | None = None,
        exact: bool = False,
    ) -> list[SearchResult]:
        for _ in range(REPEATS):
            with contextlib.suppress(PointGoneError):
                return super().search_results(queries, k, mode, vectors, min_score, exact)
        return super().search_results(queries, k, mode, vectors, min_score, exact)

    def _best(self, queries: Sequence[Any], name: str, k: int, params: Any = None) -> list[Ranked]:
        """The k best points for each query, by the vectors of this name."""
        requests = [
            self._models.QueryRequest(query=query, using=name, limit=k, params=params, with_payload=False)
            for query in queries
        ]
        found = self._client.query_batch_points(self._table, requests) if requests else []
        return [ranked_points(response.points) for response in found]

    def _match_words(self, queries: Sequence[str], k: int) -> list[Ranked]:
        weights = [query_weights(query) for query in queries]
        found = iter(self._best([self._sparse(words) for words in weights if words], WORDS, k))
        return [next(found) if words else [] for words in weights]

    def _nearest(self, queries: np.ndarray, k: int, exact: bool) -> list[Ranked]:
        params = None  # a folder is always compared exactly
        if self._folder is None:
            params = self._models.SearchParams(exact=exact, hnsw_ef=max(CANDIDATES, 2 * k))
        return self._best([query.tolist() for query in queries], self._vectors_name, k, params)

    def _vector(self, point: Any) -> StoredVector:
        return StoredVector(1.0, np.asarray(point.vector[self._vectors_name], np.float32))

    def _read_vectors(self, slots: Iterable[int]) -> dict[int, StoredVector]:
        points = self._by_slot(slots, vectors=True)
        return {slot: self._vector(point) for slot, point in points.items()}

    def _by_slot(self, slots: Iterable[int], fields: Sequence[str] = (), vectors: bool = False) -> dict[int, Any]:
        wanted = set(slots)
        points = self._retrieve((str(uuid.UUID(int=slot)) for slot in wanted), fields, vectors)
        found = {slot_of(point): point for point in points}
        if len(found) < len(wanted):
            raise PointGoneError(f"{self.path} was changed during the search. Search again.")
        return found

    def _oldest_vectors(self) -> VectorBlock | None:
        if self._oldest is None or len(self._oldest.vectors) < BLOCK:
            self._oldest = block_of([self._vector(point) for point in next(self._scroll(None, BLOCK, vectors=True))])
        return self._oldest

    def _hits(self, ranked: Ranked, matched: str) -> list[SearchHit]:
        points = self._by_slot((slot for _, slot in ranked), FIELDS)
        found = [(score, record_of(points[slot])) for score, slot in ranked]
        return [SearchHit(one.id, one.text, score, one.source, one.line, matched) for score, one in found]
