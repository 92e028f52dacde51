"""Our own endpoints that compare and look into: similar, search, explain.

In: texts. Out: similarities, hits, and how an answer forms layer by layer. Before this file: `work.py` computes; after it: `app.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
from msgspec import Meta

from albertkit.data.sentences import split_sentences
from albertkit.errors import AlbertkitError
from albertkit.search.index import Index
from albertkit.serve.http_error import HttpError
from albertkit.serve.inference import RequestContext, Service
from albertkit.serve.schemas import Count, Depth, Dimensions, Served, StrictRequest, Table
from albertkit.serve.served_models import ServedModel, ServedModels


class SimilarRequest(StrictRequest):
    """Texts to compare all with all, or with `others`."""

    texts: Annotated[list[str], Meta(min_length=1)]
    others: Annotated[list[str] | None, Meta(description="The columns; else the texts themselves.")] = None
    model: Served = None
    depth: Depth = None
    dimensions: Dimensions = None


class SimilarResponse(TypedDict):
    """Cosines: a row for each text."""

    model: str
    scores: Table


class SearchRequest(StrictRequest):
    """A query, and where to look: in `texts`, in one `text` cut into sentences or lines, or in a served index."""

    query: str
    texts: list[str] | None = None
    text: str | None = None
    split: Literal["sentences", "lines"] = "sentences"
    index: Annotated[str | None, Meta(description="A served index's name; else the first.")] = None
    mode: Annotated[Literal["hybrid", "vector", "keyword"], Meta(description="For an index.")] = "hybrid"
    k: Count = 10
    model: Served = None
    depth: Depth = None


class HitLocation(TypedDict, total=False):
    """In given texts: its place (and characters of `text`). In an index: its id and where it came from."""

    index: int
    start: int
    end: int
    id: str
    source: str
    line: int


class HitItem(HitLocation):
    """A found text, and how well it fits."""

    text: str
    score: float


class SearchResponse(TypedDict):
    """The best first."""

    model: str
    hits: list[HitItem]


async def similar(service: Service, context: RequestContext, body: SimilarRequest) -> dict[str, Any]:
    """How alike texts are: their cosines."""
    model = service.pick(context, body.model, "similar")
    options = model.albert.embed_options(normalize=True, depth=body.depth, dim=body.dimensions)
    others = body.others or []
    vectors = await service.vectors(context, model, [*body.texts, *others], options)
    rows = vectors[: len(body.texts)]
    scores = rows @ (vectors[len(body.texts) :] if body.others is not None else rows).T
    return {"model": model.name, "scores": np.ascontiguousarray(scores, np.float32)}


# Search ----------------------------------------------------------------------------------------------------------


async def search(service: Service, context: RequestContext, body: SearchRequest) -> dict[str, Any]:
    """The texts that fit a query best: of those given, of the parts of one text, or of a served index."""
    model = service.pick(context, body.model, "search")
    if body.texts is not None and body.text is not None:
        raise HttpError(422, "texts and text were both given; choose one", name="texts")
    if body.texts is None and body.text is None:
        return {"model": model.name, "hits": await in_index(service, context, model, body)}
    places: Sequence[tuple[int, int]] = ()
    texts = body.texts or []
    if body.text is not None:
        places = await service.cut(parts_of, body.text, body.split)
        texts = [body.text[a:b] for a, b in places]
    scores = await service.fitting(context, model, body.query, texts, body.depth) if texts else np.zeros(0)
    hits = []
    for i in np.argsort(-scores, kind="stable")[: body.k].tolist():
        where = {"start": places[i][0], "end": places[i][1]} if body.text is not None else {}
        hits.append({"text": texts[i], "score": float(scores[i]), "index": i, **where})
    return {"model": model.name, "hits": hits}


def parts_of(text: str, kind: str) -> list[tuple[int, int]]:
    """Characters of the lines of a text, or of the sentences in each line; white space around them does not count."""
    found, at = [], 0
    for line in text.splitlines():
        for part in split_sentences(line) if kind == "sentences" else [line.strip()]:
            if part:
                at = text.index(part, at)
                found.append((at, at + len(part)))
                at += len(part)
    return found


class PrecomputedEmbedder:
    """An embedder for an index whose vectors were computed before, by the batcher; each thread has its own."""

    def __init__(self, name: str, dim: int) -> None:
        self.name, self.dim = name, dim
        self.vectors = threading.local()

    def embed(self, texts: Iterable[str]) -> np.ndarray:
        """The vectors that were put here."""
        found: np.ndarray = self.vectors.found
        return found


def open_indexes(paths: Iterable[Path], models: ServedModels) -> dict[str, Index]:
    """Indexes by the names of their files; each must have been made with a served model."""
    found: dict[str, Index] = {}
    for path in paths:
        with Index.open(path, None) as index:
            known = [model.albert for model in models if model.albert.name == index.model]
            if not known:
                served = ", ".join(model.albert.name for model in models)
                raise AlbertkitError(
                    f"{path} was made with model {index.model}, and served is {served}; serve that too"
                )
        found[path.stem] = Index.open(path, PrecomputedEmbedder(known[0].name, known[0].dim))
    return found


async def in_index(
    service: Service, context: RequestContext, model: ServedModel, body: SearchRequest
) -> list[dict[str, Any]]:
    """Hits in a served index."""
    name = body.index or next(iter(service.indexes), None)
    if name is None:
        raise HttpError(
            422, "no texts were given and no index is served; give texts or text, or serve with --index FILE"
        )
    if name not in service.indexes:
        raise HttpError(
            404, f"there is no index {name!r}; served: {', '.join(service.indexes) or 'none'}", name="index"
        )
    index = service.indexes[name]
    if body.model is None:  # the model the index was made with
        model = next((m for m in service.models if m.albert.name == index.model), model)
    if model.albert.name != index.model:
        raise HttpError(
            424, f"the index {name!r} was made with model {index.model}; {model.name!r} is {model.albert.name}"
        )
    context.model = model.name
    vectors = np.zeros((1, index.dim), np.float32)
    if body.mode != "keyword":
        vectors = await service.vectors(context, model, [body.query], model.albert.embed_options())

    def look() -> list[Any]:
        index.embedder.vectors.found = vectors
        hits: list[Any] = index.search(body.query, body.k, body.mode)
        return hits

    hits = await asyncio.get_running_loop().run_in_executor(service.slow, look)
    return [{"id": h.id, "text": h.text, "score": h.score, "source": h.source, "line": h.line} for h in hits]
