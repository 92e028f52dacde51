"""The endpoint /explain: predictions at every depth, early exit and attention of one text.

In: a text. Out: JSON. `explain/` computes everything; this file schedules it, one depth per batcher turn, and keeps the
float weights of two models for attention. Next: `app.py`.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from albertkit.albert import Albert
from albertkit.explain.activations import NumpyEncoder
from albertkit.explain.explainer import Explainer
from albertkit.explain.layer_predictions import DepthTrace, EarlyExitTrace, stable_depth
from albertkit.serve.inference import RequestContext
from albertkit.serve.schemas import NUMBERS, Count, HttpError, Served, StrictRequest, TokenItem
from albertkit.serve.served_models import ServedModel
from albertkit.serve.tei import token_items

ATTENTION_COST = 4  # numpy is about this many times slower than the engine
MAX_NUMBERS = {"float": 1_000_000, "base64": 5_000_000}  # of attention in one response
MAX_UINT16 = 65535
AttentionFormat = Literal["float", "base64"]


class ExplainRequest(StrictRequest):
    """A text to explain, with the second text or the question that the model's task needs."""

    text: str
    pair: Annotated[str | None, Meta(description="The second text, for a model of pairs.")] = None
    question: Annotated[str | None, Meta(description="For a model that answers questions.")] = None
    k: Count = 5
    vectors: Annotated[bool, Meta(description="Return the sentence vector at each depth.")] = False
    attention: Annotated[
        AttentionFormat | None, Meta(description="Return the attention of each head: as numbers, or in base64.")
    ] = None
    model: Served = None


@dataclass(frozen=True)
class DepthItem:
    """The model with `depth` layers applied.

    milliseconds: engine time for this text alone. cosine: of the sentence vector with that at full depth.
    token_cosines: the same for each token. prediction: the result of the task's endpoint (null for a model without a
    task and for a text without masks). matches_full_depth: whether its first choice is that of full depth.
    """

    depth: int
    milliseconds: float
    cosine: float
    token_cosines: list[float]
    prediction: Annotated[Any, Meta(extra_json_schema={"type": ["object", "array", "null"]})]
    matches_full_depth: bool | None
    vector: Annotated[Any, Meta(extra_json_schema={"anyOf": [NUMBERS, {"type": "null"}]})]


@dataclass(frozen=True)
class ExplainResponse:
    """The prediction after each layer.

    stable_depth: the first depth after which the prediction no longer changes. attention: on request, layers × heads ×
    from token × to token; each row sums to 1. base64 encodes little-endian 16-bit numbers, each 65535 times the
    attention.
    """

    model: str
    task: str
    kind: Annotated[str | None, Meta(description="The endpoint whose result `prediction` is.")]
    full_depth: int
    tokens: list[TokenItem]
    depths: list[DepthItem]
    stable_depth: int | None
    early_exit: Annotated[EarlyExitTrace | None, Meta(description="Where the text could exit early; null for masks.")]
    attention: Annotated[Any, Meta(extra_json_schema={"type": ["array", "string", "null"]})]


async def explain(context: RequestContext, body: ExplainRequest) -> ExplainResponse:
    """The prediction after each layer."""
    model = context.choose_model(body.model, "explain")
    albert = model.albert
    context.count_texts([body.text])
    trace = await context.run_tokenizer(DepthTrace.of, albert, body.text, body.pair, body.question, body.k)
    deepest = max(albert.depth, albert.config.num_hidden_layers)
    states = []
    for depth in range(1, deepest + 1):  # one turn each, so that other requests are computed in between
        work = trace.tokens * depth * 2
        states.append(await context.run_engine(model.token_cost, partial(trace.run, depth), work))
    context.tokens = trace.tokens
    early_exit = await context.run_engine(model.token_cost, trace.trace_early_exit, trace.tokens * deepest)
    attention = await attention_of(context, model, trace, deepest, body.attention) if body.attention else None
    has_masks = trace.kind == "fill"
    tokens = await context.run_tokenizer(lambda: token_items(model, body.text, body.pair, recognize_mask=has_masks))
    full = states[albert.depth - 1]
    matches = [state.choice == full.choice for state in states]
    depths = [
        DepthItem(
            depth=state.depth,
            milliseconds=round(1000 * state.seconds, 4),
            cosine=float(state.vector @ full.vector),
            token_cosines=(state.tokens * full.tokens).sum(axis=1).tolist(),
            prediction=state.prediction,
            matches_full_depth=None if trace.kind is None else is_same,
            vector=state.vector if body.vectors else None,
        )
        for state, is_same in zip(states, matches, strict=True)
    ]
    return ExplainResponse(
        model=model.name,
        task=albert.metadata.task,
        kind=trace.kind,
        full_depth=albert.depth,
        tokens=tokens,
        depths=depths,
        stable_depth=None if trace.kind is None else stable_depth(matches[: albert.depth]),
        early_exit=early_exit,
        attention=attention,
    )


async def attention_of(
    context: RequestContext, model: ServedModel, trace: DepthTrace, depth: int, form: AttentionFormat
) -> np.ndarray | str:
    """Attention of each head: layers × heads × from token × to token."""
    heads, tokens = model.albert.config.num_attention_heads, trace.tokens
    if depth * heads * tokens**2 > MAX_NUMBERS[form]:
        most = int((MAX_NUMBERS[form] / (depth * heads)) ** 0.5)
        raise HttpError(
            413, f"the text has {tokens} tokens; with attention={form!r} it may have {most}: shorten it", param="text"
        )
    encoder = await asyncio.to_thread(open_encoder, model.albert)
    compute = partial(encoder.run, trace.batch.ids[0], trace.batch.segments[0], depth)
    activations = await context.run_engine(model.token_cost, compute, tokens * depth * ATTENTION_COST)
    if form == "base64":
        return await context.run_tokenizer(pack_attention, activations.attention)
    return activations.attention.round(6)


@lru_cache(maxsize=2)  # their float weights are large
def open_encoder(albert: Albert) -> NumpyEncoder:
    """The float weights of a served model, opened on first use."""
    return Explainer(albert).encoder


def pack_attention(attention: np.ndarray) -> str:
    """Base64 of little-endian 16-bit numbers, each 65535 times the attention, in the order of the axes."""
    return base64.b64encode(np.rint(attention * MAX_UINT16).astype("<u2").tobytes()).decode("ascii")
