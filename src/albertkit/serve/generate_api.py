"""Our own endpoint that writes: generate.

In: texts, and how words are chosen. Out: what `Albert.generate` gives, as JSON. Before this file: `work.py` computes; after it: `app.py`.

Writing goes word by word and keeps the engine busy for longer than reading does, with batches that are never full. So it has a pace of its own, learnt from what was
written, by which requests that could not be answered in time are refused; and a request takes the engine for a few texts at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, TypedDict
from weakref import WeakKeyDictionary

from msgspec import Meta

from albertkit.runtime.embed import shorten
from albertkit.runtime.generate import GenerateSettings
from albertkit.serve.batch_queue import TokenCost
from albertkit.serve.http_error import HttpError
from albertkit.serve.inference import RequestContext, Service, texts_of
from albertkit.serve.schemas import Depth, Served, StrictRequest, Texts
from albertkit.serve.served_models import ServedModel

TURN = 8  # texts that are written together
SLOWER = 8.0  # times that a token takes when it is written, until that was seen


class GenerateRequest(StrictRequest):
    """Texts to write from, and how words are chosen: see `docs/generation.md`."""

    texts: Texts
    beams: Annotated[int, Meta(ge=1, le=16, description="Texts kept side by side; the best is given.")] = 1
    sample: Annotated[bool, Meta(description="Draw words by their probability.")] = False
    temperature: Annotated[float, Meta(gt=0, le=100, description="With `sample`: below 1 draws likely words.")] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1, description="With `sample`: draw among the words of this share.")] = 1.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="With `sample`: decides what is drawn.")] = 0
    no_repeat: Annotated[int, Meta(ge=0, le=100, description="Write no run of so many tokens twice.")] = 0
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None, Meta(description="Most tokens to write; else as it was trained.")
    ] = None
    model: Served = None
    depth: Depth = None


class GeneratedItem(TypedDict):
    """A text, the mean log-probability of its tokens, and whether it came to an end by itself."""

    text: str
    score: float
    finished: bool


class GenerateResponse(TypedDict):
    """What was written from each text."""

    model: str
    results: list[GeneratedItem]


@dataclass(eq=False)
class GenerationModel:
    """A model as it computes when it writes."""

    albert: Any
    token_cost: TokenCost


_writing: WeakKeyDictionary[ServedModel, GenerationModel] = WeakKeyDictionary()


def writing(model: ServedModel) -> GenerationModel:
    """The same for every request to a model."""
    if model not in _writing:
        _writing[model] = GenerationModel(model.albert, TokenCost(SLOWER * model.token_cost.seconds))
    return _writing[model]


async def generate(service: Service, context: RequestContext, body: GenerateRequest) -> dict[str, Any]:
    """What a model writes from texts."""
    model = service.pick(context, body.model, "generate")
    texts = texts_of(body.texts, "texts")
    service.count(context, texts)
    chosen = {name: getattr(body, name) for name in GenerateSettings.__dataclass_fields__}
    style, albert = GenerateSettings(**chosen), model.albert
    layers = albert.layers_to_apply(body.depth)
    most = style.max_tokens or albert.task.target_length
    written = len(texts) * style.beams * most
    if written > service.settings.max_tokens:
        raise HttpError(
            413, f"up to {written:,} tokens would be written; ask for at most {service.settings.max_tokens:,} at a time"
        )
    sizes = await service.cut(lengths, model, texts)
    works = [(size + 2 * style.beams * most) * layers for size in sizes]
    context.tokens += sum(sizes)
    writer = writing(model)
    service.batcher.check(writer, sum(works), context.deadline)
    step = len(texts) if style.sample else TURN  # what is drawn depends on a text's place in the input
    found: list[Any] = []
    for start in range(0, len(texts), step):
        work = sum(works[start : start + step])
        call = partial(turn, writer, texts[start : start + step], chosen, body.depth, work)
        found += await service.call(context, writer, call, work)
    return {"model": model.name, "results": [asdict(one) for one in found]}


def lengths(model: ServedModel, texts: Sequence[str]) -> list[int]:
    """Tokens of each text that are read."""
    albert = model.albert
    short = [shorten(albert, place, text, "truncate") for place, text in enumerate(texts)]
    return [min(len(ids) + 2, albert.max_tokens) for ids in albert.tokenizer.ids_batch(short)]


def turn(writer: GenerationModel, texts: list[str], style: dict[str, Any], depth: int | None, work: int) -> list[Any]:
    """Write from some texts, and learn how long it takes; on the engine's thread."""
    began = time.monotonic()
    found: list[Any] = writer.albert.generate(texts, depth=depth, **style)
    writer.token_cost.learn((time.monotonic() - began) / work)
    return found
