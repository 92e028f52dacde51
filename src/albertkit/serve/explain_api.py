"""The endpoint /explain: predictions at every trained depth, early exit and attention of one text.

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
from albertkit.explain.activations import ActivationEncoder
from albertkit.explain.explainer import Explainer
from albertkit.explain.layer_predictions import DepthTrace, EarlyExitTrace, stable_depth
from albertkit.runtime.early_exit import last_exit_depth
from albertkit.serve.inference import RequestContext
from albertkit.serve.response_size import (
    LONG_NUMBER_BYTES,
    NUMBER_BYTES,
    PREDICTION_BYTES,
    SPAN_BYTES,
    TOKEN_BYTES,
    label_bytes,
)
from albertkit.serve.schemas import NUMBERS, Count, Served, StrictRequest, TokenItem, WarnedResponse
from albertkit.serve.served_models import ServedModel
from albertkit.serve.tei import token_items

ATTENTION_COST = 4  # numpy is about this many times slower than the engine
ATTENTION_BYTES = {"float": 10.0, "base64": 8 / 3}  # of one number
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
class ExplainResponse(WarnedResponse):
    """The prediction at each depth for which the model was trained.

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
    """The prediction at each depth for which the model was trained."""
    model = context.choose_model(body.model, "explain")
    albert = model.albert
    context.count_texts([body.text])
    await context.check_characters([body.text, body.pair or "", body.question or ""])
    trace = await context.run_tokenizer(DepthTrace.of, albert, body.text, body.pair, body.question, body.k)
    context.foresee_response(explain_bytes(trace, body), "Shorten the text, or request a lower k and no attention.")
    deepest, states = trace.depths[-1], []
    for depth in trace.depths:  # one turn each, so that other requests are computed in between
        work = trace.tokens * depth * 2
        states.append(await context.run_engine(model.token_cost, partial(trace.run, depth), work))
    context.tokens = trace.tokens
    early_exit = await context.run_engine(model.token_cost, trace.trace_early_exit, trace.tokens * deepest)
    attention = await attention_of(context, model, trace, deepest, body.attention) if body.attention else None
    has_masks = trace.kind == "fill"
    tokens = await context.run_tokenizer(lambda: token_items(model, body.text, body.pair, recognize_mask=has_masks))
    full = states[trace.depths.index(last_exit_depth(albert, None))]
    matches = {state.depth: state.choice == full.choice for state in states}
    depths = [
        DepthItem(
            depth=state.depth,
            milliseconds=round(1000 * state.seconds, 4),
            cosine=float(state.vector @ full.vector),
            token_cosines=(state.tokens * full.tokens).sum(axis=1).tolist(),
            prediction=state.prediction,
            matches_full_depth=None if trace.kind is None else matches[state.depth],
            vector=state.vector if body.vectors else None,
        )
        for state in states
    ]
    return ExplainResponse(
        model=model.name,
        task=albert.metadata.task,
        kind=trace.kind,
        full_depth=full.depth,
        tokens=tokens,
        depths=depths,
        stable_depth=None
        if trace.kind is None
        else stable_depth({d: s for d, s in matches.items() if d <= full.depth}),
        early_exit=early_exit,
        attention=attention,
    )


def explain_bytes(trace: DepthTrace, body: ExplainRequest) -> int:
    albert, tokens = trace.albert, trace.tokens
    each = 256 + tokens * LONG_NUMBER_BYTES + (albert.dim * NUMBER_BYTES if body.vectors else 0)
    if trace.kind == "fill":
        each += body.text.count("[MASK]") * body.k * PREDICTION_BYTES
    elif trace.kind is not None:
        each += tokens * SPAN_BYTES + label_bytes(1, albert.metadata.labels)
    numbers = trace.depths[-1] * albert.config.num_attention_heads * tokens**2 if body.attention else 0
    return int(len(trace.depths) * each + tokens * TOKEN_BYTES + numbers * ATTENTION_BYTES[body.attention or "float"])


async def attention_of(
    context: RequestContext, model: ServedModel, trace: DepthTrace, depth: int, form: AttentionFormat
) -> np.ndarray | str:
    """Attention of each head: layers × heads × from token × to token."""
    encoder = await asyncio.to_thread(open_encoder, model.albert)
    compute = partial(rounded_attention, encoder, trace, depth, form)
    attention = await context.run_engine(model.token_cost, compute, trace.tokens * depth * ATTENTION_COST)
    return base64.b64encode(attention.data).decode("ascii") if form == "base64" else attention


@lru_cache(maxsize=2)  # their float weights are large
def open_encoder(albert: Albert) -> ActivationEncoder:
    """The float weights of a served model, opened on first use."""
    return Explainer(albert).encoder


def rounded_attention(encoder: ActivationEncoder, trace: DepthTrace, depth: int, form: AttentionFormat) -> np.ndarray:
    """Attention (layers, heads, from token, to token): rounded floats, or for base64 little-endian 16-bit numbers, each
    65535 times the attention. No other copy of it is in memory.
    """
    shape = (depth, encoder.config.num_attention_heads, trace.tokens, trace.tokens)
    rounded = np.empty(shape, "<u2" if form == "base64" else np.float32)
    layers = encoder.run_layers(trace.batch.ids[0], trace.batch.segments[0], depth)
    for numbers, attention in zip(rounded, (weights for _, weights in layers if weights is not None), strict=True):
        numbers[...] = np.rint(attention * MAX_UINT16) if form == "base64" else np.round(attention, 6)
    return rounded
