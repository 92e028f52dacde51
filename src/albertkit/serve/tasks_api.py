"""Endpoints of the tasks: classify, tag, intent, answer, choose, fill, generate.

In: texts. Out: the results of the method of `Albert` with the same name, in the order of the texts. Before:
`inference.py`; next: `app.py`.

Generation computes token by token in small batches, so it costs more per token than reading. It has a token cost of
its own, measured as it runs, and uses the engine for a few texts at a time, so that other requests are computed in
between.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from msgspec import Meta

from albertkit.albert import Albert
from albertkit.runtime.embed import shorten
from albertkit.runtime.generate import GenerateSettings
from albertkit.runtime.mask_filling import MaskPrediction
from albertkit.serve.batch_queue import TokenCost
from albertkit.serve.inference import RequestContext, Service, as_texts
from albertkit.serve.schemas import Count, Depth, HttpError, Served, StrictRequest, Texts
from albertkit.serve.served_models import ServedModel
from albertkit.tasks.classify import Classification
from albertkit.tasks.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample
from albertkit.tasks.generation import GeneratedText
from albertkit.tasks.tag import IntentResult, TagResult
from albertkit.tasks.word_alignment import split_words

T = TypeVar("T")
GENERATE_TEXTS = 8  # texts that are generated together
GENERATE_COST = 8.0  # first estimate: how many times more a generated token costs than one that is read


@dataclass(frozen=True)
class TaskResults(Generic[T]):
    """One result per text."""

    model: str
    results: list[T]


class ClassifyRequest(StrictRequest):
    """Texts, or pairs of texts, to classify."""

    texts: Texts
    pairs: Annotated[list[str] | None, Meta(description="The second text of each pair.")] = None
    model: Served = None
    depth: Depth = None


class TextsRequest(StrictRequest):
    """Texts."""

    texts: Texts
    model: Served = None
    depth: Depth = None


class AnswerRequest(StrictRequest):
    """A question about a context."""

    question: str
    context: str
    model: Served = None
    depth: Depth = None


@dataclass(frozen=True)
class AnswerItem:
    """Characters [start, end) of the context; an empty text means that it has no answer."""

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class AnswerResponse(AnswerItem):
    """The best answer, and the next best."""

    model: str
    others: list[AnswerItem]


class ChooseRequest(StrictRequest):
    """A question about a context, and choices of which one is right."""

    context: str
    question: str
    choices: Annotated[list[str], Meta(min_length=1, max_length=100)]
    model: Served = None
    depth: Depth = None


@dataclass(frozen=True)
class ChooseResponse:
    """The best choice, its index, and the probability of each."""

    model: str
    index: int
    text: str
    probabilities: tuple[float, ...]


class FillRequest(StrictRequest):
    """Texts with [MASK] for missing words."""

    texts: Texts
    k: Count = 5
    model: Served = None
    depth: Depth = None


@dataclass(frozen=True)
class FillItem:
    """A text, and the most likely words for each of its masks."""

    text: str
    masks: list[list[MaskPrediction]]


class GenerateRequest(StrictRequest):
    """Texts to generate from, with the settings of generation (see `docs/generation.md`)."""

    texts: Texts
    beams: Annotated[int, Meta(ge=1, le=16, description="Width of the beam search.")] = 1
    sample: Annotated[bool, Meta(description="Sample tokens by their probability.")] = False
    temperature: Annotated[float, Meta(gt=0, le=100, description="With `sample`: below 1 prefers likely tokens.")] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1, description="With `sample`: nucleus sampling.")] = 1.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="With `sample`: the random seed.")] = 0
    no_repeat: Annotated[int, Meta(ge=0, le=100, description="Generate no n-gram of this size twice.")] = 0
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None, Meta(description="Most tokens to generate; default as trained.")
    ] = None
    model: Served = None
    depth: Depth = None


async def classify(service: Service, context: RequestContext, body: ClassifyRequest) -> TaskResults[Classification]:
    """Classes of texts, or of pairs of texts."""
    model = service.choose_model(context, body.model, "classify")
    texts = as_texts(body.texts, "texts")
    pairs = body.pairs if body.pairs is not None else [None] * len(texts)
    if len(pairs) != len(texts):
        raise HttpError(
            422, f"there are {len(texts)} texts and {len(pairs)} pairs; send one pair per text", param="pairs"
        )
    examples = [TextExample(a, b) for a, b in zip(texts, pairs, strict=True)]
    return TaskResults(model.name, await service.predict(context, model, examples, "classify", body.depth))


async def tag(service: Service, context: RequestContext, body: TextsRequest) -> TaskResults[TagResult]:
    """The entities in texts."""
    model = service.choose_model(context, body.model, "tag")
    examples = await service.run_tokenizer(tagging_examples, as_texts(body.texts, "texts"))
    return TaskResults(model.name, await service.predict(context, model, examples, "tag", body.depth))


async def intent(service: Service, context: RequestContext, body: TextsRequest) -> TaskResults[IntentResult]:
    """Intents of texts with their slots; a classifier gives intents without slots."""
    model = service.choose_model(context, body.model, "intent")
    texts = as_texts(body.texts, "texts")
    if model.albert.metadata.task == "classify":
        labels = await service.predict(context, model, [TextExample(text) for text in texts], "classify", body.depth)
        return TaskResults(model.name, [IntentResult.from_classification(label) for label in labels])
    examples = await service.run_tokenizer(tagging_examples, texts)
    return TaskResults(model.name, await service.predict(context, model, examples, "intent", body.depth))


def tagging_examples(texts: list[str]) -> list[TaggedExample]:
    return [TaggedExample(text, split_words(text)) for text in texts]


async def answer(service: Service, context: RequestContext, body: AnswerRequest) -> AnswerResponse:
    """The answer to a question, as characters of the context."""
    model = service.choose_model(context, body.model, "answer")
    examples = [QuestionExample("0", body.question, body.context)]
    (best,) = await service.predict(context, model, examples, "answer", body.depth)
    others = [AnswerItem(one.text, one.start, one.end, one.score, one.probability) for one in best.others]
    return AnswerResponse(best.text, best.start, best.end, best.score, best.probability, model.name, others)


async def choose(service: Service, context: RequestContext, body: ChooseRequest) -> ChooseResponse:
    """Which of several choices is right."""
    model = service.choose_model(context, body.model, "choose")
    examples = [ChoiceExample(body.context, body.question, tuple(body.choices))]
    (best,) = await service.predict(context, model, examples, "choose", body.depth)
    return ChooseResponse(model.name, best.index, best.text, best.probabilities)


async def fill(service: Service, context: RequestContext, body: FillRequest) -> TaskResults[FillItem]:
    """The most likely words for each [MASK]."""
    model = service.choose_model(context, body.model, "fill")
    texts = as_texts(body.texts, "texts")
    masks = await service.fill_masks(context, model, texts, body.k, body.depth)
    return TaskResults(model.name, [FillItem(text, words) for text, words in zip(texts, masks, strict=True)])


# Generation ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class GenerationModel:
    """A model with the token cost of its generation."""

    name: str
    albert: Albert
    token_cost: TokenCost


_generation_models: WeakKeyDictionary[ServedModel, GenerationModel] = WeakKeyDictionary()


def generation_model(model: ServedModel) -> GenerationModel:
    """The same for every request to a model."""
    if model not in _generation_models:
        cost = TokenCost(GENERATE_COST * model.token_cost.seconds)
        _generation_models[model] = GenerationModel(model.name, model.albert, cost)
    return _generation_models[model]


async def generate(service: Service, context: RequestContext, body: GenerateRequest) -> TaskResults[GeneratedText]:
    """Texts generated from texts."""
    model = service.choose_model(context, body.model, "generate")
    texts = as_texts(body.texts, "texts")
    service.count_texts(context, texts)
    settings = {name: getattr(body, name) for name in GenerateSettings.__dataclass_fields__}
    GenerateSettings(**settings)  # checks them
    layers = model.albert.layers_to_apply(body.depth)
    most = body.max_tokens or model.albert.task.target_length
    total, allowed = len(texts) * body.beams * most, service.settings.max_tokens
    if total > allowed:
        raise HttpError(413, f"up to {total:,} tokens would be generated; request at most {allowed:,} at a time")
    lengths = await service.run_tokenizer(source_lengths, model.albert, texts)
    works = [(length + 2 * body.beams * most) * layers for length in lengths]
    context.tokens += sum(lengths)
    generator = generation_model(model)
    service.batcher.check(generator, sum(works), context.deadline)
    step = len(texts) if body.sample else GENERATE_TEXTS  # samples depend on a text's place in the input
    results: list[GeneratedText] = []
    for start in range(0, len(texts), step):
        work = sum(works[start : start + step])
        call = partial(generate_batch, generator, texts[start : start + step], settings, body.depth, work)
        results += await service.run_engine(context, generator, call, work)
    return TaskResults(model.name, results)


def source_lengths(albert: Albert, texts: Sequence[str]) -> list[int]:
    """Tokens of each text that are read."""
    short = [shorten(albert, place, text, "truncate") for place, text in enumerate(texts)]
    return [min(len(ids) + 2, albert.max_tokens) for ids in albert.tokenizer.ids_batch(short)]


def generate_batch(
    generator: GenerationModel, texts: list[str], settings: dict[str, Any], depth: int | None, work: int
) -> list[GeneratedText]:
    """Generate from some texts and measure the cost; on the engine's thread."""
    began = time.monotonic()
    results: list[GeneratedText] = generator.albert.generate(texts, depth=depth, **settings)
    generator.token_cost.update((time.monotonic() - began) / work)
    return results
