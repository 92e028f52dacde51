"""What is looked into: a text with what belongs to it, as rows of tokens whose words are known.

In: an `Albert`, a text, and a pair, a question or choices. Out: a `TokenizedInput`. After this file: `target.py` chooses what about it is
explained. A word is a run of characters of one part (`text`, `pair`, `question`, `choice 2`, …) and owns the tokens that stand for it;
special tokens belong to no word. Where one token stands for parts of two words, the two count as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from albertkit.albert import MAX_CHARACTERS, Albert
from albertkit.errors import AlbertkitError
from albertkit.explain.activations import LONGEST
from albertkit.runtime.predict import features_of
from albertkit.tasks.choose import join_choice
from albertkit.tasks.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample
from albertkit.tasks.word_alignment import split_words

MOST_CHOICES = 26
Place = tuple[str, int, int]  # part, and characters of it


@dataclass(frozen=True)
class ExplainedWord:
    """Characters [start, end) of a part."""

    part: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class TokenRow:
    """What the encoder reads once."""

    ids: list[int]
    segments: list[int]
    owner: np.ndarray  # (tokens,) the word each token belongs to; -1 where it belongs to none
    places: list[Place | None]


@dataclass(frozen=True)
class TokenizedInput:
    """A text, ready to be looked into."""

    kind: str
    """fill, classify, tag, intent, answer, choose; similar (the cosine of a pair) or embed (the vector of one text)."""
    parts: dict[str, str]
    rows: tuple[TokenRow, ...]
    words: tuple[ExplainedWord, ...]
    example: Any = None
    """As the task has it; None for masks and vectors."""


@dataclass(frozen=True)
class ExplainInput:
    """What the user gave."""

    text: str
    pair: str | None = None
    question: str | None = None
    choices: tuple[str, ...] = ()


def tokenize_input(albert: Albert, given: ExplainInput) -> TokenizedInput:
    """The subject that a model can say something about."""
    if albert.config.options.static:
        raise AlbertkitError("a static model is a table without layers; there is nothing to look into")
    kind = kind_of(albert, given)
    most = max(len(text) for text in (given.text, given.pair or "", given.question or "", *given.choices))
    if most > MAX_CHARACTERS:  # before it is cut into tokens
        raise AlbertkitError(f"the text has {most:,} characters; to look inside, it must fit into {LONGEST} tokens")
    if kind == "fill":
        made = albert.masked(given.text, 1)[0]
        places = [
            None if token == albert.tokenizer.mask_id else ("text", a, b)
            for token, (a, b) in zip(made.ids, made.offsets, strict=True)
        ]
        return _built(albert, kind, {"text": given.text}, [(made.ids, made.segments, places)])
    makers = {"classify": _classified, "tag": _tagged, "intent": _tagged, "answer": _asked, "choose": _chosen}
    return makers[kind](albert, given, kind) if kind in makers else _compared(albert, given, kind)


def kind_of(albert: Albert, given: ExplainInput) -> str:
    """What is looked at, or an error where something is missing or too much."""
    masked = "[MASK]" in given.text and albert.tokenizer.mask_id is not None
    task = albert.meta.task
    if masked and "heads.mlm.bias" in albert.engine.weights:
        kind = "fill"
    elif task in ("classify", "tag", "intent", "answer", "choose"):
        kind = task
    elif task in ("dialogue", "generate"):
        raise AlbertkitError(
            f"this model was made for {task!r}, which explain does not know; choose one for another task"
        )
    else:
        kind = "embed" if given.pair is None else "similar"
    takes = {"classify": {"pair"}, "similar": {"pair"}, "answer": {"question"}, "choose": {"question", "choices"}}.get(
        kind, set()
    )
    for name in ("pair", "question", "choices"):
        there = getattr(given, name) not in (None, ())
        if there and name not in takes:
            raise AlbertkitError(f"{name} was given, and for {kind!r} nothing reads it; leave it away")
        if not there and name in takes and kind in ("answer", "choose"):
            raise AlbertkitError(f"this model was made for {kind!r}, which needs {name}; give it beside the text")
    if kind == "choose" and not 2 <= len(given.choices) <= MOST_CHOICES:
        raise AlbertkitError(f"there are {len(given.choices)} choices; give 2 to {MOST_CHOICES}")
    return kind


# One for each kind -----------------------------------------------------------------------------------------------

Places = list[Place | None]
Made = tuple[list[int], list[int], Places]


def _classified(albert: Albert, given: ExplainInput, kind: str) -> TokenizedInput:
    example = TextExample(given.text, given.pair)
    (feature,) = features_of(albert, [example], kind)
    made = albert.tokenizer.encode(given.text, given.pair)
    _fits(len(made.ids), len(feature.ids))
    parts = {"text": given.text} if given.pair is None else {"text": given.text, "pair": given.pair}
    names = list(parts)
    places: Places = [
        (names[segment], a, b) if not special else None
        for segment, (a, b), special in zip(made.segments, made.offsets, made.specials, strict=True)
    ]
    return _built(albert, kind, parts, [(feature.ids, feature.segments, places)], example)


def _tagged(albert: Albert, given: ExplainInput, kind: str) -> TokenizedInput:
    example = TaggedExample(given.text, split_words(given.text))
    feature = _single(features_of(albert, [example], kind))
    places: Places = [("text", a, b) if b > a else None for a, b in feature.places or []]
    return _built(albert, kind, {"text": given.text}, [(feature.ids, feature.segments, places)], example)


def _asked(albert: Albert, given: ExplainInput, kind: str) -> TokenizedInput:
    question = given.question or ""
    example = QuestionExample("0", question, given.text)
    feature = _single(features_of(albert, [example], kind))
    asked = albert.tokenizer.encode(question, add_specials=False)
    context: Places = [("text", a, b) if b > a else None for a, b in feature.places or []]
    count = feature.segments.count(0) - 2
    _fits(len(asked.ids), count)
    places = [None, *(("question", a, b) for a, b in asked.offsets), *context[count + 1 :]]
    return _built(
        albert, kind, {"question": question, "text": given.text}, [(feature.ids, feature.segments, places)], example
    )


def _chosen(albert: Albert, given: ExplainInput, kind: str) -> TokenizedInput:
    """The context and, where it has no blank, the question are the same words in all rows."""
    question = given.question or ""
    example = ChoiceExample(given.text, question, given.choices)
    features = features_of(albert, [example], kind)
    first = albert.tokenizer.encode(given.text, add_specials=False)
    apart = "_" not in question and bool(question)
    parts = {"text": given.text, **({"question": question} if apart else {})}
    rows: list[Made] = []
    for number, (choice, feature) in enumerate(zip(given.choices, features, strict=True), 1):
        second = albert.tokenizer.encode(join_choice(question, choice), add_specials=False)
        _fits(len(first.ids) + len(second.ids) + 3, len(feature.ids))
        name, shift = f"choice {number}", len(question) + 1 if apart else 0
        parts[name] = choice if apart else join_choice(question, choice)
        behind: Places = [
            ("question", a, min(b, len(question)))
            if apart and a < len(question)
            else (name, max(0, a - shift), b - shift)
            for a, b in second.offsets
        ]
        places: Places = [None, *(("text", a, b) for a, b in first.offsets), None, *behind, None]
        rows.append((feature.ids, feature.segments, places))
    return _built(albert, kind, parts, rows, example)


def _compared(albert: Albert, given: ExplainInput, kind: str) -> TokenizedInput:
    """One row for each text; the model's prompt stands before it and belongs to no word."""
    before = albert.embed_options().prompt
    parts = {"text": given.text} if given.pair is None else {"text": given.text, "pair": given.pair}
    rows: list[Made] = []
    for name, text in parts.items():
        made = albert.tokenizer.encode(before + text)
        _fits(len(made.ids), albert.max_tokens)
        places: Places = [
            (name, max(0, a - len(before)), b - len(before)) if b > len(before) or (b == a and not special) else None
            for (a, b), special in zip(made.offsets, made.specials, strict=True)
        ]
        rows.append((made.ids, made.segments, places))
    return _built(albert, kind, parts, rows)


# Words -----------------------------------------------------------------------------------------------------------


def _built(
    albert: Albert, kind: str, parts: dict[str, str], rows: Sequence[Made], example: Any = None
) -> TokenizedInput:
    """Rows whose tokens know their words."""
    spans = {part: merge_words(split_words(text), [p for _, _, places in rows for p in places if p and p[0] == part])
             for part, text in parts.items()}  # fmt: skip
    words = [ExplainedWord(part, a, b, parts[part][a:b]) for part, own in spans.items() for a, b in own]
    numbers = {(word.part, at): number for number, word in enumerate(words) for at in range(word.start, word.end)}
    made = []
    for ids, segments, places in rows:
        _fits(len(ids), min(LONGEST, albert.max_tokens))
        made.append(TokenRow(list(ids), list(segments), owners(places, numbers), places))
    held = {number for row in made for number in row.owner.tolist() if number >= 0}
    if not held:
        raise AlbertkitError("the text holds no word that could be looked at; give one with words")
    again = {old: new for new, old in enumerate(sorted(held))}
    renamed = tuple(
        replace(row, owner=np.array([again.get(number, -1) for number in row.owner.tolist()], np.int64)) for row in made
    )
    return TokenizedInput(kind, parts, renamed, tuple(words[old] for old in sorted(held)), example)


def merge_words(words: Sequence[tuple[int, int]], places: Sequence[Place]) -> list[tuple[int, int]]:
    """Words of a part, joined where one token stands for characters of several.

    >>> merged([(0, 2), (2, 5), (6, 8)], [("text", 0, 3), ("text", 3, 5), ("text", 5, 8)])
    [(0, 5), (6, 8)]
    """
    joins: set[int] = set()
    for _, a, b in places:
        touched = [number for number, (start, end) in enumerate(words) if start < b and end > a]
        joins.update(touched[1:])
    out: list[tuple[int, int]] = []
    for number, (a, b) in enumerate(words):
        if number in joins:
            out[-1] = (out[-1][0], b)
        else:
            out.append((a, b))
    return out


def owners(places: Places, numbers: dict[tuple[str, int], int]) -> np.ndarray:
    """(tokens,) the word of each token; one that stands for no character of a word goes with the token behind it."""
    out = np.full(len(places), -1, np.int64)
    for at in range(len(places) - 1, -1, -1):
        place = places[at]
        if place is None:
            continue
        part, a, b = place
        found = [numbers[part, c] for c in range(a, b) if (part, c) in numbers]
        if found:
            out[at] = found[0]
        elif at + 1 < len(places) and places[at + 1] is not None:
            out[at] = out[at + 1]
    return out


def _single(features: Sequence[Any]) -> Any:
    if len(features) != 1:
        most = max(len(feature.ids) for feature in features)
        raise AlbertkitError(f"the text does not fit into the {most} tokens that this model reads at once; shorten it")
    return features[0]


def _fits(tokens: int, room: int) -> None:
    if tokens > room:
        raise AlbertkitError(f"the text has {tokens} tokens; to look inside, it must fit into {room}")
