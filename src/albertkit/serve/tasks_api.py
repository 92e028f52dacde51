"""Our own endpoints for tasks: classify, tag, intent, answer, choose, fill.

In: texts. Out: what `Albert` of the same name gives, as JSON. Before this file: `work.py` computes; after it: `app.py`. Each answer
names the model; results stand in the order of the texts.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from msgspec import Meta

from albertkit.serve.http_error import HttpError
from albertkit.serve.inference import RequestContext, Service, texts_of
from albertkit.serve.schemas import Count, Depth, Served, StrictRequest, Texts
from albertkit.tasks.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample
from albertkit.tasks.tag import IntentResult
from albertkit.tasks.word_alignment import split_words


class ClassifyRequest(StrictRequest):
    """What texts, or pairs of texts, are."""

    texts: Texts
    pairs: Annotated[list[str] | None, Meta(description="The second text of each.")] = None
    model: Served = None
    depth: Depth = None


class ClassificationItem(TypedDict):
    """The class, the classes, or the value; how sure; and the probability of every class."""

    label: Annotated[Any, Meta(extra_json_schema={"type": ["string", "number", "array"]})]
    probability: float
    probabilities: dict[str, float] | None


class ClassifyResponse(TypedDict):
    """A label for each text."""

    model: str
    results: list[ClassificationItem]


class TextsRequest(StrictRequest):
    """Some texts."""

    texts: Texts
    model: Served = None
    depth: Depth = None


class SpanItem(TypedDict):
    """Characters [start, end) of the text, what they are, and how sure."""

    text: str
    start: int
    end: int
    label: str
    score: float


class TagItem(TypedDict):
    """The entities of a text."""

    text: str
    spans: list[SpanItem]


class TagResponse(TypedDict):
    """Entities for each text."""

    model: str
    results: list[TagItem]


class IntentItem(TypedDict):
    """What a text asks for, how sure that is, and the slots it fills."""

    intent: str
    probability: float
    spans: list[SpanItem]


class IntentResponse(TypedDict):
    """Intent and slots for each text."""

    model: str
    results: list[IntentItem]


class AnswerRequest(StrictRequest):
    """A question about a text."""

    question: str
    context: str
    model: Served = None
    depth: Depth = None


class AnswerItem(TypedDict):
    """Characters [start, end) of the context; an empty text means that it holds no answer."""

    text: str
    start: int
    end: int
    score: float
    probability: float


class AnswerResponse(TypedDict):
    """The best answer, and the next best."""

    model: str
    text: str
    start: int
    end: int
    score: float
    probability: float
    others: list[AnswerItem]


class ChooseRequest(StrictRequest):
    """A question about a text, and choices of which one is right."""

    context: str
    question: str
    choices: Annotated[list[str], Meta(min_length=1, max_length=100)]
    model: Served = None
    depth: Depth = None


class ChooseResponse(TypedDict):
    """The choice, its place, and the probability of each."""

    model: str
    index: int
    text: str
    probabilities: list[float]


class FillRequest(StrictRequest):
    """Texts with [MASK] where a word is missing."""

    texts: Texts
    k: Count = 5
    model: Served = None
    depth: Depth = None


class MaskPredictionItem(TypedDict):
    """A word, its probability, and the text with it in its place."""

    word: str
    score: float
    text: str


class FillItem(TypedDict):
    """A text, and the likeliest words for each of its masks."""

    text: str
    masks: list[list[MaskPredictionItem]]


class FillResponse(TypedDict):
    """Words for each text."""

    model: str
    results: list[FillItem]


async def classify(service: Service, context: RequestContext, body: ClassifyRequest) -> dict[str, Any]:
    """What texts, or pairs of texts, are."""
    model = service.pick(context, body.model, "classify")
    texts = texts_of(body.texts, "texts")
    pairs = body.pairs if body.pairs is not None else [None] * len(texts)
    if len(pairs) != len(texts):
        raise HttpError(
            422, f"there are {len(texts)} texts and {len(pairs)} pairs; give one for each text", name="pairs"
        )
    examples = [TextExample(a, b) for a, b in zip(texts, pairs, strict=True)]
    return {"model": model.name, "results": await service.results(context, model, examples, "classify", body.depth)}


async def tag(service: Service, context: RequestContext, body: TextsRequest) -> dict[str, Any]:
    """The entities in texts."""
    model = service.pick(context, body.model, "tag")
    examples = await service.cut(tagged, texts_of(body.texts, "texts"))
    return {"model": model.name, "results": await service.results(context, model, examples, "tag", body.depth)}


async def intent(service: Service, context: RequestContext, body: TextsRequest) -> dict[str, Any]:
    """What texts ask for, and the slots they fill; classes of texts are intents without slots."""
    model = service.pick(context, body.model, "intent")
    texts = texts_of(body.texts, "texts")
    if model.albert.meta.task == "classify":  # intents without slots
        labels = await service.results(context, model, [TextExample(text) for text in texts], "classify", body.depth)
        return {"model": model.name, "results": [IntentResult.from_classification(label) for label in labels]}
    examples = await service.cut(tagged, texts)
    return {"model": model.name, "results": await service.results(context, model, examples, "intent", body.depth)}


def tagged(texts: list[str]) -> list[TaggedExample]:
    """Texts with their words found."""
    return [TaggedExample(text, split_words(text)) for text in texts]


async def answer(service: Service, context: RequestContext, body: AnswerRequest) -> dict[str, Any]:
    """Where a text answers a question."""
    model = service.pick(context, body.model, "answer")
    examples = [QuestionExample("0", body.question, body.context)]
    (found,) = await service.results(context, model, examples, "answer", body.depth)
    others = [plain(other) for other in found.others]
    return {"model": model.name, **plain(found), "others": others}


def plain(found: Any) -> dict[str, Any]:
    """An answer without the others."""
    return {name: getattr(found, name) for name in ("text", "start", "end", "score", "probability")}


async def choose(service: Service, context: RequestContext, body: ChooseRequest) -> dict[str, Any]:
    """Which of several choices is right."""
    model = service.pick(context, body.model, "choose")
    examples = [ChoiceExample(body.context, body.question, tuple(body.choices))]
    (found,) = await service.results(context, model, examples, "choose", body.depth)
    return {"model": model.name, "index": found.index, "text": found.text, "probabilities": found.probabilities}


async def fill(service: Service, context: RequestContext, body: FillRequest) -> dict[str, Any]:
    """The likeliest words for each [MASK]."""
    model = service.pick(context, body.model, "fill")
    texts = texts_of(body.texts, "texts")
    found = await service.words(context, model, texts, body.k, body.depth)
    return {
        "model": model.name,
        "results": [{"text": text, "masks": masks} for text, masks in zip(texts, found, strict=True)],
    }
