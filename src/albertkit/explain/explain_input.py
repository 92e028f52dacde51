"""The input of an explanation: texts as rows of tokens, with the word that each token belongs to.

In: an `Albert` and an `ExplainInput`. Out: a `TokenizedInput`. `attribution.py` selects the explained value. A word is
a run of characters of one part (`text`, `pair` or `question`). Special tokens belong to no word. If one token covers
characters of two words, the two count as one word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from albertkit.errors import AlbertkitError, check_choice, check_fields, check_type
from albertkit.explain.activations import MAX_TOKENS
from albertkit.input_warnings import find_problems, report_problems
from albertkit.runtime.embed import embed_options, report_untrained_vectors
from albertkit.runtime.mask_filling import MaskPrediction, encode_masks
from albertkit.runtime.predict import task_features
from albertkit.runtime.runtime_model import Depth
from albertkit.tasks import TASKS
from albertkit.tasks.answer import AnswerResult
from albertkit.tasks.classify import Classification
from albertkit.tasks.examples import QuestionExample, TaggedExample, TextExample, split_words
from albertkit.tasks.tag import IntentResult, TagResult
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Encoding

if TYPE_CHECKING:
    from albertkit.runtime.runtime_model import RuntimeModel

METHODS = ("occlusion", "gradients")
HIDE_MODES = ("mask", "drop", "pad")
MAX_CHARACTERS = 1_000_000
PARTS = {"classify": "pair", "similar": "pair", "answer": "question"}  # what is read beside the text
Example = TextExample | TaggedExample | QuestionExample
MaskPredictions = list[list[MaskPrediction]]
Prediction = Classification | TagResult | IntentResult | AnswerResult | MaskPredictions | float | None
"""A task's result; the words for each mask; a cosine; None for the vector of one text."""
Place = tuple[str, int, int]  # part, and characters [start, end) of it
Places = list[Place | None]  # one per token; None for special tokens
RowData = tuple[list[int], list[int], Places]  # ids, segments, places
PartsAndRows = tuple[dict[str, str], list[RowData]]


@dataclass(frozen=True)
class ExplainInput:
    """The texts to explain."""

    text: str
    pair: str | None = None
    question: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class ExplainSettings:
    """What to explain, and how."""

    methods: Sequence[str] = ("occlusion",)
    """occlusion, gradients (needs torch), or both."""
    target: str | None = None
    """The class, label or word to explain. The default is the prediction."""
    at: str | int | None = None
    """tag: a word or its number from 1; fill: the number of a mask; answer: start or end."""
    hide: str | None = None
    """How a word is hidden: mask, drop or pad. The default is mask, and for vectors drop (gradients: pad)."""
    depth: Depth | None = None
    """Layers to apply, or "full". The default is the model's depth."""
    k: int = 3
    """Words for each mask."""
    steps: int = 64
    """Interpolation steps for gradients."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_type("methods", self.methods, (str, Sequence), "occlusion, gradients, or both in a list")
        methods = (self.methods,) if isinstance(self.methods, str) else tuple(dict.fromkeys(self.methods))
        for method in methods:
            check_choice("method", method, METHODS)
        object.__setattr__(self, "methods", methods)
        object.__setattr__(self, "at", None if self.at is None else str(self.at))


class ExplainKeywords(TypedDict, total=False):
    """The fields of `ExplainSettings` as keywords of `Albert.explain`."""

    methods: str | Sequence[str]
    target: str | None
    at: str | int | None
    hide: str | None
    depth: Depth | None
    k: int
    steps: int


@dataclass(frozen=True)
class ExplainedWord:
    """Characters [start, end) of a part."""

    part: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class TokenRow:
    """One row of tokens, as the encoder reads it."""

    ids: list[int]
    segments: list[int]
    owner: np.ndarray  # (tokens,) the word of each token; -1 if it belongs to none
    places: Places


@dataclass(frozen=True)
class TokenizedInput:
    """Texts as rows of tokens whose words are known."""

    kind: str
    """fill, classify, tag, intent, answer; similar (cosine of a pair) or embed (vector of one text)."""
    parts: dict[str, str]
    rows: tuple[TokenRow, ...]
    words: tuple[ExplainedWord, ...]
    example: Example | None = None
    """None for masks and vectors."""


def can_fill_masks(albert: RuntimeModel) -> bool:
    """Whether the model has a masked-language-model head and a mask token."""
    return albert.tokenizer.mask_id is not None and albert.can_fill_masks


def prediction_kind(albert: RuntimeModel, text: str) -> str | None:
    """fill for a text with masks, else the model's task; None if the model computes only vectors."""
    if "[MASK]" in text and can_fill_masks(albert):
        return "fill"
    task = TASKS.get(albert.metadata.task)
    return task.name if task is not None and task.can_be_explained and not task.computes_vectors else None


def tokenize_input(albert: RuntimeModel, texts: ExplainInput) -> TokenizedInput:
    """Tokenize the texts for the model's prediction."""
    if albert.config.options.static:
        raise AlbertkitError("a static model has no layers to explain. Choose an ALBERT model.")
    kind = explain_kind(albert, texts)
    longest = max(len(text) for text in (texts.text, texts.pair or "", texts.question or ""))
    if longest > MAX_CHARACTERS:  # checked before tokenization
        raise AlbertkitError(
            f"the text has {longest:,} characters; an explained text has at most {MAX_TOKENS} tokens. Shorten it."
        )
    example = task_example(kind, texts)
    parts, rows = _parts_and_rows(albert, kind, texts, example)
    words: list[ExplainedWord] = []
    for part, text in parts.items():
        places = [place for _, _, all_places in rows for place in all_places if place and place[0] == part]
        words += [ExplainedWord(part, a, b, text[a:b]) for a, b in merge_words(split_words(text), places)]
    if not words:
        raise AlbertkitError("the text has no word to explain. Pass a text with words.")
    numbers = {(word.part, i): number for number, word in enumerate(words) for i in range(word.start, word.end)}
    token_rows = []
    for ids, segments, row_places in rows:
        _check_fits(len(ids), min(MAX_TOKENS, albert.max_tokens))
        token_rows.append(TokenRow(list(ids), list(segments), word_numbers(row_places, numbers), row_places))
    return TokenizedInput(kind, parts, tuple(token_rows), tuple(words), example)


def explain_kind(albert: RuntimeModel, texts: ExplainInput) -> str:
    """What is explained; an error if a part is missing or not used."""
    kind = prediction_kind(albert, texts.text)
    if kind is None:
        if albert.metadata.task in TASKS and not TASKS[albert.metadata.task].can_be_explained:
            raise AlbertkitError(
                f"a model for {albert.metadata.task!r} cannot be explained. Choose a model for another task."
            )
        kind = "embed" if texts.pair is None else "similar"
    for name in ("pair", "question"):
        if getattr(texts, name) is not None and PARTS.get(kind) != name:
            raise AlbertkitError(f"{name} is not used for {kind!r}. Omit it.")
    if kind == "answer" and texts.question is None:
        raise AlbertkitError("a model for 'answer' needs a question. Pass question with the text.")
    return kind


def task_example(kind: str | None, texts: ExplainInput) -> Example | None:
    """What the model's task reads; None for masks and vectors."""
    if kind == "classify":
        return TextExample(texts.text, texts.pair)
    if kind in ("tag", "intent"):
        return TaggedExample(texts.text, split_words(texts.text))
    return QuestionExample("0", texts.question or "", texts.text) if kind == "answer" else None


# Parts and rows of each kind -------------------------------------------------------------------------------------


def _parts_and_rows(albert: RuntimeModel, kind: str, texts: ExplainInput, example: Example | None) -> PartsAndRows:
    if kind == "fill":
        return _mask_rows(albert, texts)
    if example is None:
        return _vector_rows(albert, texts)
    features = task_features(albert, [example], kind)
    if kind == "classify":
        return _classify_rows(albert, texts, features[0])
    if len(features) != 1:
        limit = max(len(feature.ids) for feature in features)
        raise AlbertkitError(f"the text is longer than the model's maximum of {limit} tokens. Shorten it.")
    return _answer_rows(albert, texts, features[0]) if kind == "answer" else _tag_rows(texts, features[0])


def _places(encoding: Encoding, names: Sequence[str], skip: int = 0, mask_id: int | None = None) -> Places:
    """Where tokens lie in their parts, one name per segment, which begin after `skip` characters."""
    tokens = zip(encoding.ids, encoding.segments, encoding.offsets, encoding.specials, strict=True)
    return [
        None if special or token == mask_id or a < b <= skip else (names[segment], max(0, a - skip), b - skip)
        for token, segment, (a, b), special in tokens
    ]


def _mask_rows(albert: RuntimeModel, texts: ExplainInput) -> PartsAndRows:
    encoding = encode_masks(albert, texts.text, 1)[0]
    places = _places(encoding, ["text"], mask_id=albert.tokenizer.mask_id)
    return {"text": texts.text}, [(encoding.ids, encoding.segments, places)]


def _classify_rows(albert: RuntimeModel, texts: ExplainInput, feature: Feature) -> PartsAndRows:
    encoding = albert.tokenizer.encode(texts.text, texts.pair)
    _check_fits(len(encoding.ids), len(feature.ids))
    parts = _text_and_pair(texts)
    return parts, [(feature.ids, feature.segments, _places(encoding, list(parts)))]


def _tag_rows(texts: ExplainInput, feature: Feature) -> PartsAndRows:
    places: Places = [("text", a, b) if b > a else None for a, b in feature.offsets or []]
    return {"text": texts.text}, [(feature.ids, feature.segments, places)]


def _answer_rows(albert: RuntimeModel, texts: ExplainInput, feature: Feature) -> PartsAndRows:
    question = texts.question or ""
    encoding = albert.tokenizer.encode(question, add_specials=False)
    context: Places = [("text", a, b) if b > a else None for a, b in feature.offsets or []]
    count = feature.segments.count(0) - 2
    _check_fits(len(encoding.ids), count)
    places = [None, *_places(encoding, ["question"]), *context[count + 1 :]]
    return {"question": question, "text": texts.text}, [(feature.ids, feature.segments, places)]


def _vector_rows(albert: RuntimeModel, texts: ExplainInput) -> PartsAndRows:
    """One row per text. The model's prompt precedes it and belongs to no word."""
    prompt, parts = embed_options(albert).prompt, _text_and_pair(texts)
    rows: list[RowData] = []
    for name, text in parts.items():
        encoding = albert.tokenizer.encode(prompt + text)
        _check_fits(len(encoding.ids), albert.max_tokens)
        rows.append((encoding.ids, encoding.segments, _places(encoding, [name], skip=len(prompt))))
    report_problems(find_problems(albert.tokenizer, list(parts.values())))
    if texts.pair is not None:
        report_untrained_vectors(albert)
    return parts, rows


def _text_and_pair(texts: ExplainInput) -> dict[str, str]:
    return {"text": texts.text} if texts.pair is None else {"text": texts.text, "pair": texts.pair}


def _check_fits(tokens: int, room: int) -> None:
    if tokens > room:
        raise AlbertkitError(f"the text has {tokens} tokens; an explained text has at most {room}. Shorten it.")


# Words -----------------------------------------------------------------------------------------------------------


def merge_words(words: Sequence[tuple[int, int]], places: Sequence[Place]) -> list[tuple[int, int]]:
    """Words of a part that tokens cover, merged if one token covers characters of several.

    >>> merge_words([(0, 2), (2, 5), (6, 8)], [("text", 0, 3), ("text", 3, 5), ("text", 5, 8)])
    [(0, 5), (6, 8)]
    """
    covered: set[int] = set()
    joins: set[int] = set()
    for _, a, b in places:
        overlapping = [number for number, (start, end) in enumerate(words) if start < b and end > a]
        covered.update(overlapping)
        joins.update(overlapping[1:])
    merged: list[tuple[int, int]] = []
    for number, (a, b) in enumerate(words):
        if number in joins:
            merged[-1] = (merged[-1][0], b)
        elif number in covered:
            merged.append((a, b))
    return merged


def word_numbers(places: Places, numbers: dict[tuple[str, int], int]) -> np.ndarray:
    """(tokens,) the word of each token; a token without characters of a word belongs to that of the next token."""
    owner = np.full(len(places), -1, np.int64)
    for at in range(len(places) - 1, -1, -1):
        place = places[at]
        if place is None:
            continue
        part, a, b = place
        owners = [numbers[part, c] for c in range(a, b) if (part, c) in numbers]
        if owners:
            owner[at] = owners[0]
        elif at + 1 < len(places) and places[at + 1] is not None:
            owner[at] = owner[at + 1]
    return owner
