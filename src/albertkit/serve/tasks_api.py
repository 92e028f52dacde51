"""Endpoints of the tasks: classify, tag, intent, answer, choose, fill, generate.

In: texts. Out: the results of the method of `Albert` with the same name, in the order of the texts. Before:
`inference.py`; next: `app.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta

from albertkit.albert import Albert
from albertkit.runtime.embed import shorten
from albertkit.runtime.generate import GenerateSettings
from albertkit.runtime.mask_filling import MaskPrediction
from albertkit.runtime.runtime_model import Depth
from albertkit.serve.inference import TOKEN_CHARACTERS, RequestContext
from albertkit.serve.request_texts import as_texts
from albertkit.serve.response_size import PREDICTION_BYTES, SPAN_BYTES, label_bytes
from albertkit.serve.schemas import Count, HttpError, ModelRequest, Texts, WarnedResponse
from albertkit.serve.served_models import ServedModel
from albertkit.tasks.choose import ChoiceResult
from albertkit.tasks.classify import Classification
from albertkit.tasks.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample, split_words
from albertkit.tasks.generation import GeneratedText, GenerateTask
from albertkit.tasks.tag import IntentResult, TagResult

T = TypeVar("T")
GENERATE_TEXTS = 8  # texts that are generated together


@dataclass(frozen=True)
class TaskResults(WarnedResponse, Generic[T]):
    """One result per text."""

    model: str
    results: list[T]


class TextsRequest(ModelRequest, kw_only=True):
    """Texts."""

    texts: Texts


class ClassifyRequest(TextsRequest):
    """Texts, or pairs of texts, to classify."""

    pairs: Annotated[list[str] | None, Meta(description="The second text of each pair.")] = None


class FillRequest(TextsRequest):
    """Texts with [MASK] for missing words."""

    k: Count = 5


class GenerateRequest(TextsRequest):
    """Texts to generate from, with the settings of generation."""

    beams: Annotated[int, Meta(ge=1, le=16, description="Width of the beam search.")] = 1
    no_repeat: Annotated[int, Meta(ge=0, le=100, description="Do not repeat n-grams of this size; 0 allows them.")] = 0
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="Most tokens to generate; the default is that of training."),
    ] = None


class AnswerRequest(ModelRequest, kw_only=True):
    """A question about a context."""

    question: str
    context: str


class ChooseRequest(AnswerRequest, kw_only=True):
    """A question about a context, and choices of which one is right."""

    choices: Annotated[list[str], Meta(min_length=1, max_length=100)]


@dataclass(frozen=True)
class AnswerItem:
    """Characters [start, end) of the context; an empty text means that it has no answer."""

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class AnswerResponse(AnswerItem, WarnedResponse):
    """The best answer, and the next best."""

    model: str
    others: list[AnswerItem]


@dataclass(frozen=True)
class ChooseResponse(ChoiceResult, WarnedResponse):
    """The best choice, its index, and the probability of each."""

    model: str


@dataclass(frozen=True)
class FillItem:
    """A text, and the most likely words for each of its masks."""

    text: str
    masks: list[list[MaskPrediction]]


async def classify(context: RequestContext, body: ClassifyRequest) -> TaskResults[Classification]:
    """Classes of texts, or of pairs of texts."""
    model = context.choose_model(body.model, "classify")
    texts = as_texts(body.texts)
    pairs = body.pairs if body.pairs is not None else [None] * len(texts)
    if len(pairs) != len(texts):
        raise HttpError(
            422, f"there are {len(texts)} texts and {len(pairs)} pairs; send one pair per text", param="pairs"
        )
    context.foresee_response(label_bytes(len(texts), model.albert.metadata.labels), "Send fewer texts.")
    examples = [TextExample(a, b) for a, b in zip(texts, pairs, strict=True)]
    return TaskResults(model.name, await context.predict(model, examples, "classify", body.depth))


async def tag(context: RequestContext, body: TextsRequest) -> TaskResults[TagResult]:
    """The entities in texts."""
    model = context.choose_model(body.model, "tag")
    examples = await tagging_examples(context, as_texts(body.texts))
    return TaskResults(model.name, await context.predict(model, examples, "tag", body.depth))


async def intent(context: RequestContext, body: TextsRequest) -> TaskResults[IntentResult]:
    """Intents of texts with their slots; a classifier gives intents without slots."""
    model = context.choose_model(body.model, "intent")
    texts = as_texts(body.texts)
    if model.albert.metadata.task == "classify":
        context.foresee_response(len(texts) * PREDICTION_BYTES, "Send fewer texts.")
        labels = await context.predict(model, [TextExample(text) for text in texts], "classify", body.depth)
        return TaskResults(model.name, [IntentResult.from_classification(label) for label in labels])
    examples = await tagging_examples(context, texts)
    return TaskResults(model.name, await context.predict(model, examples, "intent", body.depth))


async def tagging_examples(context: RequestContext, texts: list[str]) -> list[TaggedExample]:
    """Texts with their words, each of which may be an entity."""
    context.foresee_response(sum(map(len, texts)) * SPAN_BYTES // 2, "Send fewer or shorter texts.")
    return await context.run_tokenizer(lambda: [TaggedExample(text, split_words(text)) for text in texts])


async def answer(context: RequestContext, body: AnswerRequest) -> AnswerResponse:
    """The answer to a question, as characters of the context."""
    model = context.choose_model(body.model, "answer")
    examples = [QuestionExample("0", body.question, body.context)]
    (best,) = await context.predict(model, examples, "answer", body.depth)
    others = [AnswerItem(a.text, a.start, a.end, a.score, a.probability) for a in best.others]
    return AnswerResponse(best.text, best.start, best.end, best.score, best.probability, model.name, others)


async def choose(context: RequestContext, body: ChooseRequest) -> ChooseResponse:
    """Which of several choices is right."""
    model = context.choose_model(body.model, "choose")
    examples = [ChoiceExample(body.context, body.question, tuple(body.choices))]
    (best,) = await context.predict(model, examples, "choose", body.depth)
    return ChooseResponse(best.index, best.text, best.probabilities, model.name)


async def fill(context: RequestContext, body: FillRequest) -> TaskResults[FillItem]:
    """The most likely words for each [MASK]."""
    model = context.choose_model(body.model, "fill")
    texts = as_texts(body.texts)
    masks = await context.fill_masks(model, texts, body.k, body.depth)
    return TaskResults(model.name, [FillItem(text, words) for text, words in zip(texts, masks, strict=True)])


async def generate(context: RequestContext, body: GenerateRequest) -> TaskResults[GeneratedText]:
    """Texts generated from texts."""
    model = context.choose_model(body.model, "generate")
    texts = as_texts(body.texts)
    context.count_texts(texts)
    settings = {name: getattr(body, name) for name in GenerateSettings.__dataclass_fields__}
    GenerateSettings(**settings)  # checks them
    layers = model.albert.layers_to_apply(body.depth)
    task = model.albert.task
    assert isinstance(task, GenerateTask), "only models that generate have this endpoint"
    max_tokens = body.max_tokens or task.target_length
    total, allowed = len(texts) * body.beams * max_tokens, context.settings.max_tokens
    if total > allowed:
        raise HttpError(413, f"up to {total:,} tokens would be generated; request at most {allowed:,} at a time")
    context.foresee_response(len(texts) * (max_tokens * TOKEN_CHARACTERS + PREDICTION_BYTES), "Send fewer texts.")
    lengths: list[int] = []
    async for part in context.tokenize(partial(source_lengths, model.albert), texts):
        lengths += part
    works = [(length + 2 * body.beams * max_tokens) * layers for length in lengths]
    context.tokens += sum(lengths)
    context.service.batcher.check(sum(works) * model.generate_cost.seconds, context.deadline)
    results: list[GeneratedText] = []
    for start in range(0, len(texts), GENERATE_TEXTS):  # one turn each, so that other requests are computed in between
        work = sum(works[start : start + GENERATE_TEXTS])
        call = partial(generate_batch, model, texts[start : start + GENERATE_TEXTS], settings, body.depth, work)
        results += await context.run_engine(model.generate_cost, call, work, are_new_texts=True)
    return TaskResults(model.name, results)


def source_lengths(albert: Albert, texts: Sequence[str], start: int) -> list[int]:
    """Tokens of each text that are read."""
    short = [shorten(albert, place, text, "truncate") for place, text in enumerate(texts)]
    return [min(len(ids) + 2, albert.max_tokens) for ids in albert.tokenizer.ids_batch(short)]


def generate_batch(
    model: ServedModel, texts: list[str], settings: dict[str, Any], depth: Depth | None, work: int
) -> list[GeneratedText]:
    """Generate from some texts and measure the cost; on the engine's thread."""
    began = time.monotonic()
    results: list[GeneratedText] = model.albert.generate(texts, depth=depth, **settings)
    model.generate_cost.update((time.monotonic() - began) / work)
    return results
