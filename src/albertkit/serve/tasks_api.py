"""Our own endpoints for tasks: classify, tag, intent, answer, choose, fill.

In: texts. Out: what `Albert` of the same name gives, as JSON. Before this file: `work.py` computes; after it: `app.py`. Each answer
names the model; results stand in the order of the texts.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from msgspec import Meta

from albertkit.serve.http_error import Refusal
from albertkit.serve.inference import Ask, Desk, texts_of
from albertkit.serve.schemas import Count, Depth, Served, Strict, Texts
from albertkit.tasks.examples import Choice, Question, Tagged, Text
from albertkit.tasks.tag import Understood, words_of


class ClassifyRequest(Strict):
    """What texts, or pairs of texts, are."""

    texts: Texts
    pairs: Annotated[list[str] | None, Meta(description="The second text of each.")] = None
    model: Served = None
    depth: Depth = None


class LabelAnswer(TypedDict):
    """The class, the classes, or the value; how sure; and the probability of every class."""

    label: Annotated[Any, Meta(extra_json_schema={"type": ["string", "number", "array"]})]
    probability: float
    probabilities: dict[str, float] | None


class ClassifyAnswer(TypedDict):
    """A label for each text."""

    model: str
    results: list[LabelAnswer]


class TextsRequest(Strict):
    """Some texts."""

    texts: Texts
    model: Served = None
    depth: Depth = None


class SpanAnswer(TypedDict):
    """Characters [start, end) of the text, what they are, and how sure."""

    text: str
    start: int
    end: int
    label: str
    score: float


class Tags(TypedDict):
    """The entities of a text."""

    text: str
    spans: list[SpanAnswer]


class TagAnswer(TypedDict):
    """Entities for each text."""

    model: str
    results: list[Tags]


class IntentResult(TypedDict):
    """What a text asks for, how sure that is, and the slots it fills."""

    intent: str
    probability: float
    spans: list[SpanAnswer]


class IntentAnswer(TypedDict):
    """Intent and slots for each text."""

    model: str
    results: list[IntentResult]


class AnswerRequest(Strict):
    """A question about a text."""

    question: str
    context: str
    model: Served = None
    depth: Depth = None


class FoundAnswer(TypedDict):
    """Characters [start, end) of the context; an empty text means that it holds no answer."""

    text: str
    start: int
    end: int
    score: float
    probability: float


class AnswerAnswer(TypedDict):
    """The best answer, and the next best."""

    model: str
    text: str
    start: int
    end: int
    score: float
    probability: float
    others: list[FoundAnswer]


class ChooseRequest(Strict):
    """A question about a text, and choices of which one is right."""

    context: str
    question: str
    choices: Annotated[list[str], Meta(min_length=1, max_length=100)]
    model: Served = None
    depth: Depth = None


class ChooseAnswer(TypedDict):
    """The choice, its place, and the probability of each."""

    model: str
    index: int
    text: str
    probabilities: list[float]


class FillRequest(Strict):
    """Texts with [MASK] where a word is missing."""

    texts: Texts
    k: Count = 5
    model: Served = None
    depth: Depth = None


class GuessAnswer(TypedDict):
    """A word, its probability, and the text with it in its place."""

    word: str
    score: float
    text: str


class Filled(TypedDict):
    """A text, and the likeliest words for each of its masks."""

    text: str
    masks: list[list[GuessAnswer]]


class FillAnswer(TypedDict):
    """Words for each text."""

    model: str
    results: list[Filled]


async def classify(desk: Desk, ask: Ask, body: ClassifyRequest) -> dict[str, Any]:
    """What texts, or pairs of texts, are."""
    model = desk.pick(ask, body.model, "classify")
    texts = texts_of(body.texts, "texts")
    pairs = body.pairs if body.pairs is not None else [None] * len(texts)
    if len(pairs) != len(texts):
        raise Refusal(422, f"there are {len(texts)} texts and {len(pairs)} pairs; give one for each text", name="pairs")
    examples = [Text(a, b) for a, b in zip(texts, pairs, strict=True)]
    return {"model": model.name, "results": await desk.results(ask, model, examples, "classify", body.depth)}


async def tag(desk: Desk, ask: Ask, body: TextsRequest) -> dict[str, Any]:
    """The entities in texts."""
    model = desk.pick(ask, body.model, "tag")
    examples = await desk.cut(tagged, texts_of(body.texts, "texts"))
    return {"model": model.name, "results": await desk.results(ask, model, examples, "tag", body.depth)}


async def intent(desk: Desk, ask: Ask, body: TextsRequest) -> dict[str, Any]:
    """What texts ask for, and the slots they fill; classes of texts are intents without slots."""
    model = desk.pick(ask, body.model, "intent")
    texts = texts_of(body.texts, "texts")
    if model.albert.meta.task == "classify":  # intents without slots
        labels = await desk.results(ask, model, [Text(text) for text in texts], "classify", body.depth)
        return {"model": model.name, "results": [Understood.of(label) for label in labels]}
    examples = await desk.cut(tagged, texts)
    return {"model": model.name, "results": await desk.results(ask, model, examples, "intent", body.depth)}


def tagged(texts: list[str]) -> list[Tagged]:
    """Texts with their words found."""
    return [Tagged(text, words_of(text)) for text in texts]


async def answer(desk: Desk, ask: Ask, body: AnswerRequest) -> dict[str, Any]:
    """Where a text answers a question."""
    model = desk.pick(ask, body.model, "answer")
    examples = [Question("0", body.question, body.context)]
    (found,) = await desk.results(ask, model, examples, "answer", body.depth)
    others = [plain(other) for other in found.others]
    return {"model": model.name, **plain(found), "others": others}


def plain(found: Any) -> dict[str, Any]:
    """An answer without the others."""
    return {name: getattr(found, name) for name in ("text", "start", "end", "score", "probability")}


async def choose(desk: Desk, ask: Ask, body: ChooseRequest) -> dict[str, Any]:
    """Which of several choices is right."""
    model = desk.pick(ask, body.model, "choose")
    examples = [Choice(body.context, body.question, tuple(body.choices))]
    (found,) = await desk.results(ask, model, examples, "choose", body.depth)
    return {"model": model.name, "index": found.index, "text": found.text, "probabilities": found.probabilities}


async def fill(desk: Desk, ask: Ask, body: FillRequest) -> dict[str, Any]:
    """The likeliest words for each [MASK]."""
    model = desk.pick(ask, body.model, "fill")
    texts = texts_of(body.texts, "texts")
    found = await desk.words(ask, model, texts, body.k, body.depth)
    return {
        "model": model.name,
        "results": [{"text": text, "masks": masks} for text, masks in zip(texts, found, strict=True)],
    }
