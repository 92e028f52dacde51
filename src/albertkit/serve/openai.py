"""The endpoints that OpenAI's clients speak: vectors, and the list of models.

In: requests in OpenAI's shapes. Out: answers in OpenAI's shapes. Before this file: `work.py` computes; after it: `app.py`.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
from msgspec import Meta

from albertkit.serve.http_error import HttpError
from albertkit.serve.inference import RequestContext, Service, texts_or_tokens
from albertkit.serve.schemas import NUMBERS, TEXT, Depth, Dimensions, Long, Pooling, StrictRequest, TextsOrTokens
from albertkit.serve.served_models import ServedModel


class EmbeddingsRequest(StrictRequest):
    """Sentence vectors, as OpenAI's clients ask for them. Fields from `depth` on are ours."""

    input: TextsOrTokens
    model: Annotated[str, Meta(description="A served model's name.")]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Dimensions = None
    user: str | None = None
    depth: Depth = None
    pooling: Pooling = None
    long_texts: Long = "split"
    prompt: Annotated[str | None, Meta(description="A prompt's name or text, put before each text.")] = None


class EmbeddingItem(TypedDict):
    """One vector; as a string, it is base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: Annotated[Any, Meta(extra_json_schema={"anyOf": [NUMBERS, TEXT]})]


class TokenUsage(TypedDict):
    """Tokens the model read, special ones included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(TypedDict):
    """Vectors in the order of the input."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: TokenUsage


class ModelItem(TypedDict):
    """A served model: OpenAI's four fields, then what it is and can do."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    task: str
    labels: list[str]
    endpoints: list[str]
    dimensions: int
    max_tokens: int
    layers: int
    depth: int
    depths: Annotated[list[int], Meta(description="At which the model says something; others may be meaningless.")]
    heads: int
    parameters: int
    vocabulary: int
    tokenizer: str
    pooling: str
    prompts: dict[str, str]
    weights: str
    version: str


class ModelListResponse(TypedDict):
    """The served models."""

    object: Literal["list"]
    data: list[ModelItem]


async def embeddings(service: Service, context: RequestContext, body: EmbeddingsRequest) -> dict[str, Any]:
    """Sentence vectors."""
    model = service.pick(context, body.model, "embed")
    options = model.albert.embed_options(
        pooling=body.pooling, depth=body.depth, dim=body.dimensions, long_texts=body.long_texts, prompt=body.prompt
    )
    vectors = await service.vectors(context, model, texts_or_tokens(body.input, "input"), options)
    if body.encoding_format == "base64":
        shown: list[Any] = [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in vectors]
    else:
        shown = list(np.ascontiguousarray(vectors, np.float32))
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(shown)],
        "model": model.name,
        "usage": {"prompt_tokens": context.tokens, "total_tokens": context.tokens},
    }


async def models(service: Service, context: RequestContext, body: None) -> dict[str, Any]:
    """The served models, what they are and what they can do."""
    return {"object": "list", "data": [about(model) for model in service.models]}


async def one_model(service: Service, context: RequestContext, body: None, name: str) -> dict[str, Any]:
    """One served model."""
    for model in service.models:
        if model.name == name:
            return about(model)
    raise HttpError(
        404, f"there is no model {name!r}; served: {', '.join(m.name for m in service.models)}", name="model"
    )


def about(model: ServedModel) -> dict[str, Any]:
    """A model as OpenAI lists it, and what more we know."""
    facts = model.facts()
    opened = facts.pop("opened")
    return {**facts, "object": "model", "created": opened, "owned_by": "albertkit"}
