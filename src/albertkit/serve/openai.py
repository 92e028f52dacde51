"""OpenAI's endpoints: embeddings and the list of models.

In: requests in OpenAI's format. Out: responses in OpenAI's format. Before: `inference.py`; next: `app.py`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from albertkit.serve.inference import RequestContext
from albertkit.serve.request_texts import as_texts_or_tokens
from albertkit.serve.response_size import vector_bytes
from albertkit.serve.schemas import (
    DTYPES,
    NUMBERS,
    Depth,
    Dimensions,
    HttpError,
    Normalize,
    OutputDtype,
    Pooling,
    StrictRequest,
    TextsOrTokens,
    WarnedResponse,
)
from albertkit.serve.served_models import ModelInfo


class EmbeddingsRequest(StrictRequest):
    """Sentence vectors. The fields from `depth` on are not OpenAI's."""

    input: TextsOrTokens
    model: Annotated[str, Meta(description="Name of a served model.")]
    encoding_format: Annotated[
        Literal["float", "base64"], Meta(description="Vectors as numbers, or as little-endian float32 in base64.")
    ] = "float"
    dimensions: Dimensions = None
    user: Annotated[str | None, Meta(description="Ignored.")] = None
    depth: Depth = None
    pooling: Pooling = None
    long_texts: Annotated[
        Literal["split", "truncate", "error"],
        Meta(description="For texts beyond the model's length: the mean of windows, truncation, or an error."),
    ] = "split"
    prompt: Annotated[str | None, Meta(description="A prompt's name or text, put before each text.")] = None
    normalize: Normalize = None
    output_dtype: OutputDtype = "float"


@dataclass(frozen=True)
class EmbeddingItem:
    """One vector; in base64, it is little-endian float32."""

    index: int
    embedding: Annotated[Any, Meta(extra_json_schema={"anyOf": [NUMBERS, {"type": "string"}]})]
    object: Literal["embedding"] = "embedding"


@dataclass(frozen=True)
class TokenUsage:
    """Tokens that the model read, special tokens included."""

    prompt_tokens: int
    total_tokens: int


@dataclass(frozen=True)
class EmbeddingsResponse(WarnedResponse):
    """Vectors in the order of the input."""

    data: list[EmbeddingItem]
    model: str
    usage: TokenUsage
    object: Literal["list"] = "list"


@dataclass(frozen=True)
class ModelListResponse:
    """The served models."""

    data: list[ModelInfo]
    object: Literal["list"] = "list"


async def embeddings(context: RequestContext, body: EmbeddingsRequest) -> EmbeddingsResponse:
    """Sentence vectors."""
    model = context.choose_model(body.model, "embed")
    if body.encoding_format == "base64" and body.output_dtype != "float":  # clients would read it as float32
        raise HttpError(
            422,
            f"output_dtype {body.output_dtype!r} is not available in base64, which has float32; set encoding_format to "
            "float, which returns numbers of any type",
            param="encoding_format",
        )
    options = model.albert.embed_options(
        pooling=body.pooling,
        depth=body.depth,
        dim=body.dimensions,
        long_texts=body.long_texts,
        prompt=body.prompt,
        normalize=body.normalize,
        dtype=DTYPES[body.output_dtype],
    )
    texts = as_texts_or_tokens(body.input, "input")
    size = vector_bytes(len(texts), options.dim or model.albert.dim, body.encoding_format == "base64")
    context.foresee_response(size, "Send fewer texts, or set encoding_format to base64.", memory=1)
    vectors = await context.embed(model, texts, options)
    rows: list[Any] = list(np.ascontiguousarray(vectors))
    if body.encoding_format == "base64":
        rows = [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in rows]
    items = [EmbeddingItem(index, row) for index, row in enumerate(rows)]
    return EmbeddingsResponse(items, model.name, TokenUsage(context.tokens, context.tokens))


async def models(context: RequestContext, body: None) -> ModelListResponse:
    """The served models, with their properties and endpoints."""
    return ModelListResponse([model.info for model in context.service.models])


async def one_model(context: RequestContext, body: None, name: str) -> ModelInfo:
    """One served model."""
    return context.service.models[name].info
