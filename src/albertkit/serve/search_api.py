"""The endpoints /similar and /search.

In: texts. Out: cosines and search hits. Before: `inference.py`, `served_indexes.py`; next: `app.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict, cast

import numpy as np
from msgspec import Meta

from albertkit.data.sentences import split_sentences
from albertkit.runtime.runtime_model import named_depth
from albertkit.search.index_records import check_queries
from albertkit.serve.inference import RequestContext
from albertkit.serve.response_size import NUMBER_BYTES, TOKEN_BYTES
from albertkit.serve.schemas import Count, Dimensions, HttpError, ModelRequest, Table, WarnedResponse
from albertkit.serve.served_indexes import matches_index
from albertkit.serve.served_models import ServedModel


class SimilarRequest(ModelRequest, kw_only=True):
    """Texts to compare with each other, or with `others`."""

    texts: Annotated[list[str], Meta(min_length=1, description="Texts to compare.")]
    others: Annotated[list[str] | None, Meta(description="Compare with these; the default is `texts`.")] = None
    dimensions: Dimensions = None


@dataclass(frozen=True)
class SimilarResponse(WarnedResponse):
    """Cosines: one row per text."""

    model: str
    scores: Table


class SearchRequest(ModelRequest, kw_only=True):
    """A query, and what to search: `texts`, one `text` split into sentences or lines, or a served index."""

    query: str
    texts: Annotated[list[str] | None, Meta(description="Texts to search.")] = None
    text: Annotated[str | None, Meta(description="One text to split and search.")] = None
    split: Annotated[Literal["sentences", "lines"], Meta(description="How to split `text`.")] = "sentences"
    index: Annotated[str | None, Meta(description="Name of a served index; the default is the first.")] = None
    mode: Annotated[
        Literal["hybrid", "vector", "keyword"], Meta(description="For an index: by meaning, by keywords, or both.")
    ] = "hybrid"
    k: Count = 10
    min_score: Annotated[
        Annotated[float, Meta(ge=-1, le=1)] | None,
        Meta(description="Lowest cosine of a hit by meaning. Default: for an index, what nonsense does not reach."),
    ] = None
    exact: Annotated[bool, Meta(description="For an index: compare all vectors, which takes longer.")] = False


class HitItem(TypedDict, total=False):
    """A text, its cosine and its place: index (and characters of `text`) in a request, id and source in an index.

    Hits of an index also have `matched`: meaning, words or both. In keyword mode the score is BM25.
    """

    text: str
    score: float
    index: int
    start: int
    end: int
    id: str
    source: str
    line: int
    matched: str


@dataclass(frozen=True)
class SearchResponse(WarnedResponse):
    """Hits, the best first."""

    model: str
    hits: list[HitItem]
    left_out: Annotated[
        int,
        Meta(
            description="How many of the k best texts are no hits: below the lowest score, and in an index without a "
            "word of the query."
        ),
    ] = 0


async def similar(context: RequestContext, body: SimilarRequest) -> SimilarResponse:
    """Cosines of texts."""
    model = context.choose_model(body.model, "similar")
    options = model.albert.embed_options(normalize=True, depth=body.depth, dim=body.dimensions)
    columns_count = len(body.texts if body.others is None else body.others)
    context.foresee_response(len(body.texts) * columns_count * NUMBER_BYTES, "Send fewer texts.", memory=1)
    vectors = await context.embed_to_compare(model, [*body.texts, *(body.others or [])], options)
    rows = vectors[: len(body.texts)]
    columns = rows if body.others is None else vectors[len(body.texts) :]
    return SimilarResponse(model.name, np.ascontiguousarray(rows @ columns.T, np.float32))


async def search(context: RequestContext, body: SearchRequest) -> SearchResponse:
    """The texts that match a query best: of the request's texts, of the parts of one text, or of a served index."""
    model = context.choose_model(body.model, "search")
    check_queries([body.query])
    if body.texts is not None and body.text is not None:
        raise HttpError(422, "texts and text are both set; send one of them", param="texts")
    if body.texts is None and body.text is None:
        return await search_index(context, model, body)
    places: Sequence[tuple[int, int]] = ()
    texts = body.texts or []
    if body.text is not None:
        places = await context.run_tokenizer(split_text, body.text, body.split, context.settings.max_texts)
        texts = [body.text[a:b] for a, b in places]
    longest = sorted(map(len, texts), reverse=True)[: body.k]
    context.foresee_response(sum(longest) + len(longest) * TOKEN_BYTES, "Send fewer texts, or a lower k.")
    scores = await context.query_cosines(model, body.query, texts, body.depth) if texts else np.zeros(0)
    hits: list[HitItem] = []
    for i in np.argsort(-scores, kind="stable")[: body.k].tolist():
        hit: HitItem = {"text": texts[i], "score": float(scores[i]), "index": i}
        if body.text is not None:
            hit["start"], hit["end"] = places[i]
        hits.append(hit)
    close = [hit for hit in hits if body.min_score is None or hit["score"] >= body.min_score]
    return SearchResponse(model.name, close, len(hits) - len(close))


def split_text(text: str, unit: str, limit: int) -> list[tuple[int, int]]:
    """Characters of the lines of a text, or of the sentences in each line, without surrounding white space."""
    spans, position = [], 0
    for line in text.splitlines():
        for part in split_sentences(line) if unit == "sentences" else [line.strip()]:
            if part:
                position = text.index(part, position)
                spans.append((position, position + len(part)))
                position += len(part)
        if len(spans) > limit:
            message = f"the text has over {limit:,} {unit}; send at most {limit:,} per request"
            raise HttpError(413, message, param="text")
    return spans


async def search_index(context: RequestContext, model: ServedModel, body: SearchRequest) -> SearchResponse:
    served = context.service.indexes.choose(body.index)
    index = served.index
    if body.model is None or body.model == served.model.name:
        model = served.model
    if not matches_index(model, index):
        raise HttpError(
            424,
            f"index {served.name!r} was built with model {index.describe_model()}, but {model.name!r} is "
            f"{model.albert.name}",
        )
    context.model_name = model.name
    vectors = None
    if body.mode != "keyword":
        depth = named_depth(index.model)
        options = model.albert.embed_options(depth=None if depth == model.albert.depth else depth)
        vectors = await context.embed_to_compare(model, [body.query], options)
    search = index.search_results
    (result,) = await asyncio.to_thread(search, [body.query], body.k, body.mode, vectors, body.min_score, body.exact)
    context.foresee_response(sum(len(hit.text) + 2 * TOKEN_BYTES for hit in result.hits), "Request a lower k.")
    return SearchResponse(model.name, [cast(HitItem, vars(hit)) for hit in result.hits], result.left_out)
