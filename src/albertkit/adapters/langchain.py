"""LangChain: `AlbertEmbeddings` for vectors, `AlbertVectorStore` for an index.

In: an `Albert` or an `Index`. Out: an `Embeddings` and a `VectorStore` of langchain-core. Both compute and search in
this process. Needs the extra `langchain`.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from albertkit.adapters.role_vectors import embed_role
from albertkit.albert import Albert
from albertkit.errors import AlbertkitError, need
from albertkit.search.index import Index, Record, SearchHit

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore
except ImportError:
    need("langchain_core", "langchain", "albertkit.adapters.langchain")
    raise

Metadata = dict[str, object]


class AlbertEmbeddings(Embeddings):
    """Sentence vectors. albert: the model; the default is the built-in English one. dim: keep the first dimensions.

    >>> len(AlbertEmbeddings(dim=128).embed_query("a cat"))
    128
    """

    def __init__(self, albert: Albert | None = None, dim: int | None = None) -> None:
        self.albert, self.dim = albert or Albert(), dim

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The vectors of texts that are searched."""
        vectors: list[list[float]] = embed_role(self.albert, texts, "passage", self.dim).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        vector: list[float] = embed_role(self.albert, [text], "query", self.dim)[0].tolist()
        return vector


class AlbertVectorStore(VectorStore):
    """An index of albertkit, whose file `albertkit search` reads too. The scores are cosines.

    Every search takes the keywords of `Index.search`: mode, min_score, exact.

    >>> store = AlbertVectorStore(Index.create("notes.idx", Albert()))
    >>> store.add_texts(["The doctor is in.", "The train was late."], ids=["1", "2"])
    ['1', '2']
    >>> store.similarity_search("where is a physician?", k=1)[0].id
    '1'
    """

    def __init__(self, index: Index) -> None:
        self.index = index

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[Metadata] | None = None,
        *,
        ids: list[str] | None = None,
        path: str | Path,
    ) -> AlbertVectorStore:
        """Add texts to the index at `path`, which is created if there is none."""
        if not isinstance(embedding, AlbertEmbeddings) or embedding.dim is not None:
            raise AlbertkitError(
                f"embedding is {type(embedding).__name__}: an index needs a model that it can name, at its full width. "
                "Pass AlbertEmbeddings() without dim."
            )
        store = cls(Index.open_or_create(path, embedding.albert))
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @property
    def embeddings(self) -> Embeddings | None:
        """The model of the index."""
        albert = self.index.embedder
        return AlbertEmbeddings(albert) if isinstance(albert, Albert) else None

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[Metadata] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
    ) -> list[str]:
        """Add texts, or replace those with the same ids; returns the ids. Metadata must be JSON.

        A text without an id gets a new one, since some documents of LangChain have ids and others None.
        """
        if isinstance(texts, str):
            raise AlbertkitError(f"texts is the single text {texts!r:.60}. Pass a list of texts.")
        rows = list(texts)
        keys: list[str | None] = [None] * len(rows) if ids is None else list(ids)
        notes = [{} for _ in rows] if metadatas is None else list(metadatas)
        if not len(rows) == len(keys) == len(notes):
            raise AlbertkitError(
                f"there are {len(rows)} texts, {len(keys)} ids and {len(notes)} metadatas. Pass one of each per text."
            )
        names = [str(uuid.uuid4()) if name is None else name for name in keys]
        self.index.add(to_record(*row) for row in zip(names, rows, notes, strict=True))
        return names

    def delete(self, ids: list[str] | None = None) -> bool:
        """Delete texts by id; returns whether all of them were there."""
        if ids is None:
            raise AlbertkitError("ids is None: deleting all texts is not available. Pass ids, or delete the file.")
        return self.index.delete(ids) == len(set(ids))

    def similarity_search(
        self, query: str, k: int = 4, mode: str = "hybrid", min_score: float | None = None, exact: bool = False
    ) -> list[Document]:
        """The k best texts for a query; fewer when fewer match."""
        return [document for document, _ in self.similarity_search_with_score(query, k, mode, min_score, exact)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, mode: str = "hybrid", min_score: float | None = None, exact: bool = False
    ) -> list[tuple[Document, float]]:
        """The k best texts, each with its cosine; in keyword mode, with its BM25."""
        return [(to_document(hit), hit.score) for hit in self.index.search(query, k, mode, min_score, exact)]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, min_score: float | None = None, exact: bool = False
    ) -> list[Document]:
        """The k texts whose vectors are nearest to a vector."""
        vectors = np.array([embedding], np.float32)
        (hits,) = self.index.search_many([""], k, "vector", vectors, min_score, exact)
        return [to_document(hit) for hit in hits]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """A cosine as a relevance from 0 to 1."""
        return lambda cosine: max(0.0, cosine)


def to_record(id: str, text: str, metadata: Metadata) -> Record:
    """A text with its metadata; an index has source and line, so other metadata is stored as JSON in the source."""
    source, line = metadata.get("source", ""), metadata.get("line", 0)
    if not isinstance(line, int) or isinstance(line, bool) or abs(line) >= 2**63:  # not as an index stores it
        line = 0
    if isinstance(source, str) and to_metadata(source, line) == metadata:
        return Record(id, text, source, line)
    try:
        return Record(id, text, json.dumps(metadata, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise AlbertkitError(
            f"the metadata of text {id!r} is not JSON: {error}. Remove or convert the value."
        ) from None


def to_metadata(source: str, line: int) -> Metadata:
    """The metadata of a record."""
    if source.startswith("{"):
        with contextlib.suppress(ValueError):  # else it is the name of a file
            metadata: Metadata = json.loads(source)
            return metadata
    return {**({"source": source} if source else {}), **({"line": line} if line else {})}


def to_document(hit: SearchHit) -> Document:
    """A hit as a document of LangChain."""
    return Document(id=hit.id, page_content=hit.text, metadata=to_metadata(hit.source, hit.line))
