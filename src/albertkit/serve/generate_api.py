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

from albertkit.runtime.generate import Style
from albertkit.serve.batch_queue import Pace
from albertkit.serve.http_error import Refusal
from albertkit.serve.inference import Ask, Desk, texts_of
from albertkit.serve.schemas import Depth, Served, Strict, Texts
from albertkit.serve.served_models import Model

TURN = 8  # texts that are written together
SLOWER = 8.0  # times that a token takes when it is written, until that was seen


class GenerateRequest(Strict):
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


class WrittenAnswer(TypedDict):
    """A text, the mean log-probability of its tokens, and whether it came to an end by itself."""

    text: str
    score: float
    finished: bool


class GenerateAnswer(TypedDict):
    """What was written from each text."""

    model: str
    results: list[WrittenAnswer]


@dataclass(eq=False)
class Writing:
    """A model as it computes when it writes."""

    albert: Any
    pace: Pace


_writing: WeakKeyDictionary[Model, Writing] = WeakKeyDictionary()


def writing(model: Model) -> Writing:
    """The same for every request to a model."""
    if model not in _writing:
        _writing[model] = Writing(model.albert, Pace(SLOWER * model.pace.seconds))
    return _writing[model]


async def generate(desk: Desk, ask: Ask, body: GenerateRequest) -> dict[str, Any]:
    """What a model writes from texts."""
    model = desk.pick(ask, body.model, "generate")
    texts = texts_of(body.texts, "texts")
    desk.count(ask, texts)
    chosen = {name: getattr(body, name) for name in Style.__dataclass_fields__}
    style, albert = Style(**chosen), model.albert
    layers = albert._layers_to_apply(None, body.depth, "mean")
    most = style.max_tokens or albert.task.target_length
    written = len(texts) * style.beams * most
    if written > desk.settings.max_tokens:
        raise Refusal(
            413, f"up to {written:,} tokens would be written; ask for at most {desk.settings.max_tokens:,} at a time"
        )
    sizes = await desk.cut(lengths, model, texts)
    works = [(size + 2 * style.beams * most) * layers for size in sizes]
    ask.tokens += sum(sizes)
    writer = writing(model)
    desk.batcher.check(writer, sum(works), ask.deadline)
    step = len(texts) if style.sample else TURN  # what is drawn depends on a text's place in the input
    found: list[Any] = []
    for start in range(0, len(texts), step):
        work = sum(works[start : start + step])
        call = partial(turn, writer, texts[start : start + step], chosen, body.depth, work)
        found += await desk.call(ask, writer, call, work)
    return {"model": model.name, "results": [asdict(one) for one in found]}


def lengths(model: Model, texts: Sequence[str]) -> list[int]:
    """Tokens of each text that are read."""
    albert = model.albert
    short = [albert._check_size(place, text, "truncate") for place, text in enumerate(texts)]
    return [min(len(ids) + 2, albert.max_tokens) for ids in albert.tokenizer.ids_batch(short)]


def turn(writer: Writing, texts: list[str], style: dict[str, Any], depth: int | None, work: int) -> list[Any]:
    """Write from some texts, and learn how long it takes; on the engine's thread."""
    began = time.monotonic()
    found: list[Any] = writer.albert.generate(texts, depth=depth, **style)
    writer.pace.learn((time.monotonic() - began) / work)
    return found
