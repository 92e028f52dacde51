"""The input of an explanation: texts as rows of tokens, with the word that each token belongs to.

In: an `Albert` and an `ExplainInput`. Out: a `TokenizedInput`. Next: `target.py` chooses what is explained. A word is
a run of characters of one part (`text`, `pair`, `question`, `choice 2`, …). Special tokens belong to no word. If one
token covers characters of two words, the two count as one word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.explain.activations import MAX_TOKENS
from albertkit.runtime.embed import embed_options
from albertkit.runtime.mask_filling import MaskPrediction, encode_masks
from albertkit.runtime.predict import task_features
from albertkit.tasks import TASKS
from albertkit.tasks.answer import AnswerResult
from albertkit.tasks.choose import ChoiceResult, join_choice
from albertkit.tasks.classify import Classification
from albertkit.tasks.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample
from albertkit.tasks.tag import IntentResult, TagResult
from albertkit.tasks.word_alignment import split_words

if TYPE_CHECKING:
    from albertkit.runtime.runtime_model import RuntimeModel

MAX_CHARACTERS = 1_000_000
MAX_CHOICES = 26
OPTIONAL_PARTS = {
    "classify": {"pair"},
    "similar": {"pair"},
    "answer": {"question"},
    "choose": {"question", "choices"},
}
Example = TextExample | TaggedExample | QuestionExample | ChoiceExample
MaskPredictions = list[list[MaskPrediction]]
Prediction = Classification | TagResult | IntentResult | AnswerResult | ChoiceResult | MaskPredictions | float | None
"""A task's result; the words for each mask; a cosine; None for the vector of one text."""
Place = tuple[str, int, int]  # part, and characters [start, end) of it
Places = list[Place | None]  # one per token; None for special tokens
RowData = tuple[list[int], list[int], Places]  # ids, segments, places


@dataclass(frozen=True)
class ExplainInput:
    """The texts to explain."""

    text: str
    pair: str | None = None
    question: str | None = None
    choices: tuple[str, ...] = ()


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
    """fill, classify, tag, intent, answer, choose; similar (cosine of a pair) or embed (vector of one text)."""
    parts: dict[str, str]
    rows: tuple[TokenRow, ...]
    words: tuple[ExplainedWord, ...]
    example: Example | None = None
    """None for masks and vectors."""


def can_fill_masks(albert: RuntimeModel) -> bool:
    """Whether the model has a masked-language-model head and a mask token."""
    return albert.tokenizer.mask_id is not None and albert.can_fill_masks


def prediction_kind(albert: RuntimeModel, text: str) -> str | None:
    """fill for a text with masks, else the model's task; None if the model predicts nothing but vectors."""
    if "[MASK]" in text and can_fill_masks(albert):
        return "fill"
    task = TASKS.get(albert.metadata.task)
    return task.name if task is not None and task.can_be_explained and not task.gives_vectors else None


def tokenize_input(albert: RuntimeModel, texts: ExplainInput) -> TokenizedInput:
    """Texts as rows of tokens for what the model predicts about them."""
    if albert.config.options.static:
        raise AlbertkitError("a static model has no layers to explain; choose an ALBERT model")
    kind = explain_kind(albert, texts)
    longest = max(len(text) for text in (texts.text, texts.pair or "", texts.question or "", *texts.choices))
    if longest > MAX_CHARACTERS:  # checked before tokenization
        raise AlbertkitError(
            f"the text has {longest:,} characters; an explained text must fit into {MAX_TOKENS} tokens"
        )
    if kind == "fill":
        return _mask_input(albert, texts)
    if kind == "classify":
        return _classify_input(albert, texts)
    if kind in ("tag", "intent"):
        return _tag_input(albert, texts, kind)
    if kind == "answer":
        return _answer_input(albert, texts)
    if kind == "choose":
        return _choice_input(albert, texts)
    return _vector_input(albert, texts, kind)


def explain_kind(albert: RuntimeModel, texts: ExplainInput) -> str:
    """What is explained; an error if a part is missing or not used."""
    kind = prediction_kind(albert, texts.text)
    if kind is None:
        if albert.metadata.task in TASKS and not TASKS[albert.metadata.task].can_be_explained:
            raise AlbertkitError(
                f"a model for {albert.metadata.task!r} cannot be explained; choose a model for another task"
            )
        kind = "embed" if texts.pair is None else "similar"
    used = OPTIONAL_PARTS.get(kind, set())
    for name in ("pair", "question", "choices"):
        is_given = getattr(texts, name) not in (None, ())
        if is_given and name not in used:
            raise AlbertkitError(f"{name} is not used for {kind!r}; omit it")
        if not is_given and name in used and kind in ("answer", "choose"):
            raise AlbertkitError(f"a model for {kind!r} needs {name}; pass it with the text")
    if kind == "choose" and not 2 <= len(texts.choices) <= MAX_CHOICES:
        raise AlbertkitError(f"there are {len(texts.choices)} choices; pass 2 to {MAX_CHOICES}")
    return kind


# One function per kind -------------------------------------------------------------------------------------------


def _mask_input(albert: RuntimeModel, texts: ExplainInput) -> TokenizedInput:
    encoding = encode_masks(albert, texts.text, 1)[0]
    places: Places = [
        None if token == albert.tokenizer.mask_id else ("text", a, b)
        for token, (a, b) in zip(encoding.ids, encoding.offsets, strict=True)
    ]
    return _build(albert, "fill", {"text": texts.text}, [(encoding.ids, encoding.segments, places)])


def _classify_input(albert: RuntimeModel, texts: ExplainInput) -> TokenizedInput:
    example = TextExample(texts.text, texts.pair)
    (feature,) = task_features(albert, [example], "classify")
    encoding = albert.tokenizer.encode(texts.text, texts.pair)
    _check_fits(len(encoding.ids), len(feature.ids))
    parts = _text_and_pair(texts)
    names = list(parts)
    places: Places = [
        (names[segment], a, b) if not special else None
        for segment, (a, b), special in zip(encoding.segments, encoding.offsets, encoding.specials, strict=True)
    ]
    return _build(albert, "classify", parts, [(feature.ids, feature.segments, places)], example)


def _tag_input(albert: RuntimeModel, texts: ExplainInput, kind: str) -> TokenizedInput:
    example = TaggedExample(texts.text, split_words(texts.text))
    feature = _single(task_features(albert, [example], kind))
    places: Places = [("text", a, b) if b > a else None for a, b in feature.offsets or []]
    return _build(albert, kind, {"text": texts.text}, [(feature.ids, feature.segments, places)], example)


def _answer_input(albert: RuntimeModel, texts: ExplainInput) -> TokenizedInput:
    question = texts.question or ""
    example = QuestionExample("0", question, texts.text)
    feature = _single(task_features(albert, [example], "answer"))
    encoding = albert.tokenizer.encode(question, add_specials=False)
    context: Places = [("text", a, b) if b > a else None for a, b in feature.offsets or []]
    count = feature.segments.count(0) - 2
    _check_fits(len(encoding.ids), count)
    places = [None, *(("question", a, b) for a, b in encoding.offsets), *context[count + 1 :]]
    parts = {"question": question, "text": texts.text}
    return _build(albert, "answer", parts, [(feature.ids, feature.segments, places)], example)


def _choice_input(albert: RuntimeModel, texts: ExplainInput) -> TokenizedInput:
    """One row per choice. The context and, without a blank, the question are the same words in all rows."""
    question = texts.question or ""
    example = ChoiceExample(texts.text, question, texts.choices)
    features = task_features(albert, [example], "choose")
    first = albert.tokenizer.encode(texts.text, add_specials=False)
    is_separate = "_" not in question and bool(question)
    parts = {"text": texts.text, **({"question": question} if is_separate else {})}
    rows: list[RowData] = []
    for number, (choice, feature) in enumerate(zip(texts.choices, features, strict=True), 1):
        second = albert.tokenizer.encode(join_choice(question, choice), add_specials=False)
        _check_fits(len(first.ids) + len(second.ids) + 3, len(feature.ids))
        name, shift = f"choice {number}", len(question) + 1 if is_separate else 0
        parts[name] = choice if is_separate else join_choice(question, choice)
        behind: Places = [
            ("question", a, min(b, len(question)))
            if is_separate and a < len(question)
            else (name, max(0, a - shift), b - shift)
            for a, b in second.offsets
        ]
        places: Places = [None, *(("text", a, b) for a, b in first.offsets), None, *behind, None]
        rows.append((feature.ids, feature.segments, places))
    return _build(albert, "choose", parts, rows, example)


def _vector_input(albert: RuntimeModel, texts: ExplainInput, kind: str) -> TokenizedInput:
    """One row per text. The model's prompt precedes it and belongs to no word."""
    prompt = embed_options(albert).prompt
    size = len(prompt)
    parts = _text_and_pair(texts)
    rows: list[RowData] = []
    for name, text in parts.items():
        encoding = albert.tokenizer.encode(prompt + text)
        _check_fits(len(encoding.ids), albert.max_tokens)
        places: Places = [
            (name, max(0, a - size), b - size) if b > size or (b == a and not special) else None
            for (a, b), special in zip(encoding.offsets, encoding.specials, strict=True)
        ]
        rows.append((encoding.ids, encoding.segments, places))
    return _build(albert, kind, parts, rows)


def _text_and_pair(texts: ExplainInput) -> dict[str, str]:
    return {"text": texts.text} if texts.pair is None else {"text": texts.text, "pair": texts.pair}


# Words -----------------------------------------------------------------------------------------------------------


def _build(
    albert: RuntimeModel, kind: str, parts: dict[str, str], rows: Sequence[RowData], example: Example | None = None
) -> TokenizedInput:
    """Find the words of all parts, and the word of each token."""
    words: list[ExplainedWord] = []
    for part, text in parts.items():
        places = [place for _, _, all_places in rows for place in all_places if place and place[0] == part]
        words += [ExplainedWord(part, a, b, text[a:b]) for a, b in merge_words(split_words(text), places)]
    numbers = {(word.part, at): number for number, word in enumerate(words) for at in range(word.start, word.end)}
    token_rows = []
    for ids, segments, row_places in rows:
        _check_fits(len(ids), min(MAX_TOKENS, albert.max_tokens))
        token_rows.append(TokenRow(list(ids), list(segments), word_numbers(row_places, numbers), row_places))
    used = sorted({number for row in token_rows for number in row.owner.tolist() if number >= 0})
    if not used:
        raise AlbertkitError("the text has no word to explain; pass a text with words")
    renumber = {old: new for new, old in enumerate(used)}
    token_rows = [
        replace(row, owner=np.array([renumber.get(number, -1) for number in row.owner.tolist()], np.int64))
        for row in token_rows
    ]
    return TokenizedInput(kind, parts, tuple(token_rows), tuple(words[old] for old in used), example)


def merge_words(words: Sequence[tuple[int, int]], places: Sequence[Place]) -> list[tuple[int, int]]:
    """Words of a part, merged if one token covers characters of several.

    >>> merge_words([(0, 2), (2, 5), (6, 8)], [("text", 0, 3), ("text", 3, 5), ("text", 5, 8)])
    [(0, 5), (6, 8)]
    """
    joins: set[int] = set()
    for _, a, b in places:
        overlapping = [number for number, (start, end) in enumerate(words) if start < b and end > a]
        joins.update(overlapping[1:])
    merged: list[tuple[int, int]] = []
    for number, (a, b) in enumerate(words):
        if number in joins:
            merged[-1] = (merged[-1][0], b)
        else:
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
        found = [numbers[part, c] for c in range(a, b) if (part, c) in numbers]
        if found:
            owner[at] = found[0]
        elif at + 1 < len(places) and places[at + 1] is not None:
            owner[at] = owner[at + 1]
    return owner


def _single(features: Sequence[Any]) -> Any:
    if len(features) != 1:
        most = max(len(feature.ids) for feature in features)
        raise AlbertkitError(f"the text does not fit into the {most} tokens that this model reads at once; shorten it")
    return features[0]


def _check_fits(tokens: int, room: int) -> None:
    if tokens > room:
        raise AlbertkitError(f"the text has {tokens} tokens; an explained text must fit into {room}")
