"""An index in a collection of Qdrant: a dense and a sparse vector per text, on a server or in a folder.

In: a `StoreAddress`. Out: a `QdrantIndex`. Before this file: `store_index.py`, `qdrant_collection.py`,
`qdrant_words.py`.

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
from albertkit.search.stores.qdrant_collection import Collection
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
from albertkit.search.stores.qdrant_points import FIELDS, WORDS, payload_of, point_id, record_of, slot_of, vector_name
from albertkit.search.stores.qdrant_words import query_weights, text_weights
from albertkit.search.stores.store_index import StoreIndex, block_of
from albertkit.search.vectors import BLOCK, Ranked, StoredVector, VectorBlock
from albertkit.text_reader import Record

CANDIDATES = 128  # of a search in the graph, at least
REPEATS = 3  # searches again if a text was deleted meanwhile


class PointGoneError(AlbertkitError):
    """Another program deleted a text between two steps of a search."""


class QdrantIndex(StoreIndex):
    """An index in a collection of Qdrant. One program should write at a time; a folder admits one program."""

    _collection: Collection

    def __init__(self, address: StoreAddress, embedder: Embedder | None) -> None:
        super().__init__(with_key(address), embedder)
        self._models: Any = need("qdrant_client.models", "qdrant", PURPOSE)
        self._folder = folder_of(address)
        self._connection: Connection | None = None
        self._is_open = True
        self._seen: set[str] = set()

    # The collection -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connection]:
        """The connection for one thread at a time, with errors as sentences."""
        with plain_errors(self.address):
            if not self._is_open:
                raise AlbertkitError(f"{self.path} was closed. Open it again.")
            if self._connection is None:
                self._connection = connect(self.address)
                self._collection = Collection(self._connection, self.address.table)
                speed_up(self._connection, self.address.table)
            with self._connection.lock:
                yield self._connection

    def has_table(self) -> bool:
        if self._folder is not None and not (self._folder / "meta.json").is_file():  # Qdrant would create it
            return False
        with self._connected():
            return self._collection.exists()

    def create_table(self, facts: Mapping[str, str], overwrite: bool) -> None:
        with self._connected() as connection:
            if self._collection.exists():
                if not overwrite or self._collection.facts() is None:  # or another program's collection
                    raise self.exists_error()
                connection.client.delete_collection(self.address.table)
            try:
                self._collection.create(facts)
            except Exception as error:
                if "already exists" in str(error):  # another program created it at this moment
                    raise self.exists_error() from None
                raise
            speed_up(connection, self.address.table)

    def read_facts(self) -> dict[str, str]:
        if not self.has_table():
            raise self.missing_error()
        with self._connected():
            stored = self._collection.facts()
        if stored is None:
            raise AlbertkitError(f"{self.path} is another program's collection. Choose another table.")
        return stored

    def check(self) -> None:
        super().check()
        self._collection.vectors = vector_name(self.model)

    def close(self) -> None:
        """Close the connection."""
        self._is_open = False
        if self._connection is not None:
            connection, self._connection = self._connection, None
            disconnect(connection)

    def drop(self) -> None:
        """Delete the collection with all its texts, and close the connection."""
        with self._write(), self._connected() as connection:
            connection.client.delete_collection(self.address.table)
        self.close()

    @contextlib.contextmanager
    def _read(self) -> Iterator[None]:
        with self._connected():
            try:
                yield
            except AlbertkitError:
                raise
            except Exception as error:  # Qdrant has no vectors of this name, or no such collection
                name = re.escape(self._collection.vectors)
                if self._facts and re.search(f"ector( name error:)? {name}\\b", str(error)):
                    raise self.replaced_error() from None
                if self.address.table in str(error) and re.search("not found|doesn't exist", str(error)):
                    raise self.missing_error() from None
                raise

    @contextlib.contextmanager
    def _write(self) -> Iterator[None]:
        with self._read():
            if (self._collection.facts() or {}).get("model") != self.model:
                raise self.replaced_error()
            self._collection.build_indexes()
            yield

    # Writing ------------------------------------------------------------------------------------------------------

    def _count(self) -> int:
        return self._collection.count()

    def _slots_used(self) -> int:
        return self._count()

    def _find_records(self, ids: list[str]) -> dict[str, Record]:
        points = self._collection.retrieve(map(point_id, ids), FIELDS)
        return {record.id: record for record in map(record_of, points)}

    def _known_texts(self, texts: list[str]) -> set[str]:
        points = self._collection.one_per_hash({text_hash(text) for text in texts}, False)
        return {str(point.payload["text"]) for point in points}

    def _text_vectors(self, texts: list[str]) -> dict[str, StoredVector]:
        points = self._collection.one_per_hash({text_hash(text) for text in texts}, True)
        vectors = {str(point.payload["text"]): self._vector(point) for point in points}
        return {text: vectors[text] for text in texts if text in vectors}

    def _upsert(self, records: list[Record], vectors: list[StoredVector]) -> None:
        self._collection.upsert(map(self._point, records, vectors))

    def _point(self, record: Record, vector: StoredVector) -> tuple[int, Any]:
        """A record as a point, with an upper bound of its bytes in a request."""
        weights = text_weights(record.text)
        named: dict[str, Any] = {self._collection.vectors: vector.floats().astype(np.float16).tolist()}
        if weights:
            named[WORDS] = self._collection.sparse(weights)
        size = 4 * len(record.text.encode()) + 40 * len(weights) + 24 * self.dim
        return size, self._models.PointStruct(id=point_id(record.id), vector=named, payload=payload_of(record))

    def _mark_seen(self, ids: Iterable[str]) -> None:
        self._seen.update(map(point_id, ids))

    def _delete_ids(self, ids: list[str]) -> int:
        with self._write():
            return self._collection.delete(map(point_id, ids))

    def _delete_source(self, source: str) -> int:
        with self._write():
            return self._collection.delete(self._collection.ids(self._collection.matches(source=source)))

    def _delete_unseen(self, places: list[tuple[str, str]]) -> int:
        deleted = 0
        for place, folder in places:
            inside = self._collection.matches(source=place, folders=folder[:-1])
            with self._write():
                unseen = [id for id in self._collection.ids(inside) if id not in self._seen]
                deleted += self._collection.delete(unseen)
        return deleted

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

    def _match_words(self, queries: Sequence[str], k: int) -> list[Ranked]:
        weights = [query_weights(query) for query in queries]
        ranked = iter(self._collection.best([self._collection.sparse(words) for words in weights if words], WORDS, k))
        return [next(ranked) if words else [] for words in weights]

    def _nearest(self, queries: np.ndarray, k: int, exact: bool) -> list[Ranked]:
        params = None  # a folder is always compared exactly
        if self._folder is None:
            params = self._models.SearchParams(exact=exact, hnsw_ef=max(CANDIDATES, 2 * k))
        return self._collection.best([query.tolist() for query in queries], self._collection.vectors, k, params)

    def _vector(self, point: Any) -> StoredVector:
        return StoredVector(1.0, np.asarray(point.vector[self._collection.vectors], np.float32))

    def _read_vectors(self, slots: Iterable[int]) -> dict[int, StoredVector]:
        return {slot: self._vector(point) for slot, point in self._by_slot(slots, vectors=True).items()}

    def _by_slot(self, slots: Iterable[int], fields: Sequence[str] = (), vectors: bool = False) -> dict[int, Any]:
        slot_set = set(slots)
        points = self._collection.retrieve((str(uuid.UUID(int=slot)) for slot in slot_set), fields, vectors)
        by_slot = {slot_of(point): point for point in points}
        if len(by_slot) < len(slot_set):
            raise PointGoneError(f"{self.path} was changed during the search. Search again.")
        return by_slot

    def _oldest_vectors(self) -> VectorBlock | None:
        if self._oldest is None or len(self._oldest.vectors) < BLOCK:
            page = next(self._collection.scroll(None, BLOCK, vectors=True))
            self._oldest = block_of([self._vector(point) for point in page])
        return self._oldest

    def _hits(self, ranked: Ranked, matched: str) -> list[SearchHit]:
        points = self._by_slot((slot for _, slot in ranked), FIELDS)
        scored = [(score, record_of(points[slot])) for score, slot in ranked]
        return [SearchHit(r.id, r.text, score, r.source, r.line, matched) for score, r in scored]
