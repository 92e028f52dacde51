"""Requests to one collection of Qdrant, cut to sizes that a server accepts.

In: ids, conditions, points, queries. Out: points as the client returns them, and ranked slots. Before this file:
`qdrant_connection.py`, `qdrant_points.py`; after it: `qdrant.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from albertkit.errors import need
from albertkit.search.stores.qdrant_connection import PURPOSE, Connection
from albertkit.search.stores.qdrant_points import WORDS, ranked_points, vector_name
from albertkit.search.vectors import Ranked

METADATA = "albertkit"  # key of the facts in the metadata of the collection
INDEXED = {"hash": "integer", "source": "keyword", "folders": "keyword"}  # what filters use
REQUEST_BYTES = 16 << 20  # of points in one request; a server accepts 32 MB
POINTS = 1_000  # in a request without vectors
PAGE = 10_000  # points of which only ids are read


class Collection:
    """A collection, which need not exist yet. `vectors` is the name of its dense vectors, once it is known."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.models: Any = need("qdrant_client.models", "qdrant", PURPOSE)
        self.client, self.name, self.vectors = connection.client, name, ""
        self._is_folder, self._has_indexes = bool(connection.folder), False

    def exists(self) -> bool:
        return bool(self.client.collection_exists(self.name))

    def create(self, facts: Mapping[str, str]) -> None:
        """Create it with these facts; an error if it is there."""
        models = self.models
        vectors = models.VectorParams(
            size=int(facts["dim"]), distance=models.Distance.COSINE, datatype=models.Datatype.FLOAT16
        )
        self.client.create_collection(
            self.name,
            vectors_config={vector_name(facts["model"]): vectors},
            sparse_vectors_config={WORDS: models.SparseVectorParams(modifier=models.Modifier.IDF)},
            metadata={METADATA: dict(facts)},
        )

    def facts(self) -> dict[str, str] | None:
        """Its facts; None if it is another program's."""
        facts = (self.client.get_collection(self.name).config.metadata or {}).get(METADATA)
        return {str(key): str(value) for key, value in facts.items()} if isinstance(facts, dict) else None

    def build_indexes(self) -> None:
        """Build what is missing of the indexes that filters use. A folder has none."""
        if not self._is_folder and not self._has_indexes:
            indexed = self.client.get_collection(self.name).payload_schema or {}
            for name in INDEXED.keys() - indexed.keys():
                self.client.create_payload_index(self.name, name, INDEXED[name], wait=True)
        self._has_indexes = True

    def count(self) -> int:
        return int(self.client.count(self.name, exact=True).count)

    def retrieve(self, ids: Iterable[str], fields: Sequence[str] = (), vectors: bool = False) -> Iterator[Any]:
        """Those of the points that are there, with these parts of their payload, or with their dense vectors."""
        id_list, names = list(ids), [self.vectors] if vectors else False
        for start in range(0, len(id_list), POINTS):
            part = id_list[start : start + POINTS]
            yield from self.client.retrieve(self.name, part, with_payload=list(fields) or False, with_vectors=names)

    def scroll(self, where: Any, limit: int, fields: Sequence[str] = (), vectors: bool = False) -> Iterator[list[Any]]:
        """Pages of all points that meet a condition, in the order of their ids."""
        names, following = [self.vectors] if vectors else False, None
        while True:
            page, following = self.client.scroll(
                self.name, where, limit, offset=following, with_payload=list(fields) or False, with_vectors=names
            )
            yield page
            if following is None:
                return

    def matches(self, **values: str) -> Any:
        """The condition that any field has its value."""
        models = self.models
        parts = [models.FieldCondition(key=key, match=models.MatchValue(value=value)) for key, value in values.items()]
        return models.Filter(should=parts)

    def ids(self, where: Any) -> list[str]:
        return [str(point.id) for page in self.scroll(where, PAGE) for point in page]

    def one_per_hash(self, hashes: set[int], vectors: bool) -> Iterator[Any]:
        """One point of each text that is there, since a text may be in very many of them."""
        missing = self._known_hashes(hashes) if self._is_folder and hashes else hashes
        while missing:
            match = self.models.MatchAny(any=sorted(missing))
            where = self.models.Filter(must=[self.models.FieldCondition(key="hash", match=match)])
            page = next(self.scroll(where, len(missing), ("text", "hash"), vectors))
            points = {point.payload["hash"]: point for point in page}
            yield from points.values()
            if len(page) < len(missing):
                return
            missing = missing - points.keys()

    def _known_hashes(self, hashes: set[int]) -> set[int]:
        """Those that are there. In a folder, the client would compare each point with a long list."""
        facets = self.client.facet(self.name, "hash", limit=max(1, self.count()))
        return hashes & {hit.value for hit in facets.hits}

    def upsert(self, points: Iterable[tuple[int, Any]]) -> None:
        """Write points, each with an upper bound of its bytes: one request, or several."""
        part: list[Any] = []
        total = 0
        for size, point in points:
            if part and total + size > REQUEST_BYTES:
                self.client.upsert(self.name, part, wait=True)
                part, total = [], 0
            part.append(point)
            total += size
        if part:
            self.client.upsert(self.name, part, wait=True)

    def delete(self, ids: Iterable[str]) -> int:
        """Delete points; returns how many were there."""
        existing = [str(point.id) for point in self.retrieve(dict.fromkeys(ids))]
        for start in range(0, len(existing), POINTS):
            part = self.models.PointIdsList(points=existing[start : start + POINTS])
            self.client.delete(self.name, part, wait=True)
        return len(existing)

    def best(self, queries: Sequence[Any], name: str, k: int, params: Any = None) -> list[Ranked]:
        """The k best points for each query, by the vectors of this name."""
        requests = [
            self.models.QueryRequest(query=query, using=name, limit=k, params=params, with_payload=False)
            for query in queries
        ]
        responses = self.client.query_batch_points(self.name, requests) if requests else []
        return [ranked_points(response.points) for response in responses]

    def sparse(self, weights: dict[int, float]) -> Any:
        return self.models.SparseVector(indices=list(weights), values=list(weights.values()))
