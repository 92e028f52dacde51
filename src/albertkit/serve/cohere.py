"""The endpoint /v1/rerank, as Cohere and Jina have it.

In: a query and documents. Out: their indexes and relevance, the best first, from the same scores as TEI's `/rerank`.
Before: `tei.py`; next: `app.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

import numpy as np
from msgspec import Meta

from albertkit.serve.inference import RequestContext
from albertkit.serve.openai import TokenUsage
from albertkit.serve.response_size import PREDICTION_BYTES, text_bytes
from albertkit.serve.schemas import Served, StrictRequest, WarnedResponse
from albertkit.serve.tei import relevance_scores


class DocumentText(StrictRequest):
    """A document as an object."""

    text: str


class RankRequest(StrictRequest):
    """Documents to rank for a query."""

    query: str
    documents: Annotated[
        list[str | DocumentText], Meta(min_length=1, description="Documents to rank: texts, or objects with a text.")
    ]
    top_n: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="How many documents to return; the default is all.")
    ] = None
    return_documents: Annotated[bool, Meta(description="Return the documents' texts too.")] = False
    model: Served = None


class RankedDocument(TypedDict, total=False):
    """A document's index in the request, its relevance, and on request its text."""

    index: int
    relevance_score: float
    document: dict[str, str]


@dataclass(frozen=True)
class RankResponse(WarnedResponse):
    """Documents, the most relevant first."""

    results: list[RankedDocument]
    model: str
    usage: TokenUsage
    object: Literal["list"] = "list"


async def rank_documents(context: RequestContext, body: RankRequest) -> RankResponse:
    """Documents by their relevance for a query, the best first."""
    model = context.choose_model(body.model, "rerank")
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    size = len(texts) * PREDICTION_BYTES + (text_bytes(texts) if body.return_documents else 0)
    context.foresee_response(size, "Send fewer documents.")
    scores = await relevance_scores(context, model, body.query, texts)
    results: list[RankedDocument] = []
    for index in np.argsort(-scores, kind="stable")[: body.top_n].tolist():
        item: RankedDocument = {"index": index, "relevance_score": float(scores[index])}
        if body.return_documents:
            item["document"] = {"text": texts[index]}
        results.append(item)
    return RankResponse(results, model.name, TokenUsage(context.tokens, context.tokens))
