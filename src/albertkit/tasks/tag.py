"""Entities in a text, and intents with slots: labels of words become labels of pieces, and come back as characters.

In: `TaggedExample` examples. Out: `TagResult` or `IntentResult`. Before this file: `words.py`; beside it: `classify.py`.

Each word is cut into pieces for itself, so a word looks the same with and without a comma behind it, and no piece
belongs to two words. The first piece of a word reads its label. A long text becomes windows of whole words; each word
is read once, by the window that shows most of its surroundings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any, ClassVar

import numpy as np

from albertkit.errors import AlbertkitError, need
from albertkit.tasks.examples import TaggedExample
from albertkit.tasks.task import Feature
from albertkit.tasks.word_alignment import (
    Marked,
    Words,
    example_words,
    iob2_tags,
    label_tokens,
    word_tokens,
    word_windows,
)
from albertkit.tokenizer import Tokenizer

IGNORE_INDEX = -100  # a target that no loss looks at


@dataclass(frozen=True)
class Entity:
    """Characters [start, end) of the text, what they are, and how sure: the mean probability of the words' labels."""

    text: str
    start: int
    end: int
    label: str
    score: float


@dataclass(frozen=True)
class TagResult:
    """The entities of a text, in order."""

    text: str
    spans: tuple[Entity, ...]
    depth: ClassVar[int | None] = None
    """Layers applied, on results of texts that may leave early (`early_exit=`); no part of what is compared or written."""


@dataclass(frozen=True)
class IntentResult:
    """What the user wants, how sure that is, and the slots."""

    intent: str
    probability: float
    spans: tuple[Entity, ...]
    depth: ClassVar[int | None] = None
    """Layers applied, on results of texts that may leave early (`early_exit=`); no part of what is compared or written."""

    @classmethod
    def from_classification(cls, label: Any) -> IntentResult:
        """A `Classification` as an intent without slots."""
        made = cls(label.label, label.probability, ())
        if label.depth is not None:
            object.__setattr__(made, "depth", label.depth)  # fresh, and frozen for everybody else
        return made


@dataclass(frozen=True)
class TagTask:
    """Entities with IOB2 labels: "O", "B-PER" for the first word of an entity, "I-PER" for the others."""

    labels: tuple[str, ...]
    overlap: int = 64
    """Tokens that two windows of a long text share."""

    name = "tag"
    head = "tag"

    def __post_init__(self) -> None:
        odd = [label for label in self.labels if label != "O" and label[:2] not in ("B-", "I-")]
        if odd or "O" not in self.labels:
            found = f"labels have {odd[0]!r}" if odd else "labels have no 'O'"
            raise AlbertkitError(f"{found}; write them as O, B-PER, I-PER and so on")
        if self.overlap < 0:
            raise AlbertkitError(f"overlap is {self.overlap}; choose 0 or more tokens")

    @classmethod
    def from_examples(cls, examples: Sequence[TaggedExample], **settings: Any) -> TagTask:
        """The task with all kinds of entities in these examples."""
        kinds = sorted({span.label for example in examples for span in example.spans})
        if not kinds:
            raise AlbertkitError(f"none of the {len(examples)} examples holds an entity; training needs some")
        return cls(("O", *(f"{part}-{kind}" for kind in kinds for part in "BI")), **settings)

    @property
    def outputs(self) -> int:
        """Rows of the head."""
        return len(self.labels)

    def features(self, examples: Sequence[TaggedExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Windows of each text; targets where words or entities are given. Every example has at least one.

        A kind of entity that is not among the labels is not learnt from; `measure` counts it as missed. A word of more
        than half a window keeps its first pieces.
        """
        start, end = tokenizer.encode("", max_length=max_length).ids
        room = max_length - 2
        most = max(1, room // 2)
        rows = {label: i for i, label in enumerate(self.labels)}
        words = [example_words(example) for example in examples]
        cut = word_tokens({e.text[a:b] for e, own in zip(examples, words, strict=True) for a, b in own}, tokenizer)
        out: list[Feature] = []
        for number, (example, own) in enumerate(zip(examples, words, strict=True)):
            pieces = [cut[example.text[a:b]][:most] for a, b in own]
            windows = word_windows([len(p) for p in pieces], room, min(self.overlap, room - most))
            made = []
            for window in windows:
                tokens = [(i, (own[w][0] + a, own[w][0] + b)) for w in window for i, (a, b) in pieces[w]]
                ids = [start, *(i for i, _ in tokens), end]
                places = [(0, 0), *(place for _, place in tokens), (0, 0)]
                made.append(Feature(ids, [0] * len(ids), number, None, places))
            if example.words or example.spans or example.intent is not None:
                targets = [[IGNORE_INDEX] * len(feature.ids) for feature in made]
                tags = iob2_tags(own, example.spans, example.where)
                for tag, (window_number, token) in zip(tags, label_tokens(made, own), strict=True):
                    targets[window_number][token] = rows.get(tag, IGNORE_INDEX)
                made = [replace(f, target=target) for f, target in zip(made, targets, strict=True)]
            out += made
        return out

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[TaggedExample]
    ) -> list[TagResult]:
        """The entities of each text, from (tokens, labels) scores of each feature."""
        own: list[list[int]] = [[] for _ in examples]
        for i, feature in enumerate(features):
            own[feature.example].append(i)
        out = []
        for example, windows in zip(examples, own, strict=True):
            words = example_words(example)
            readers = label_tokens([features[i] for i in windows], words)
            table = [np.asarray(scores[windows[window]][token], np.float64) for window, token in readers]
            out.append(TagResult(example.text, self._entities(example.text, words, np.array(table))))
        return out

    def _entities(self, text: str, words: Words, table: np.ndarray) -> tuple[Entity, ...]:
        """(words, labels) scores → entities."""
        if not len(words):
            return ()
        logs = table - table.max(1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(1, keepdims=True))
        path = self._path(logs)
        probabilities = np.exp(logs[np.arange(len(path)), path])
        tags = [self.labels[i] for i in path]
        starts = [
            i
            for i, (before, tag) in enumerate(pairwise(["O", *tags]))
            if tag[0] == "B" or (tag[0] == "I" and before[2:] != tag[2:])
        ]
        out = []
        for first, limit in pairwise([*starts, len(tags)]):
            stop = next((i for i in range(first, limit) if tags[i] == "O"), limit)
            a, b = words[first][0], words[stop - 1][1]
            out.append(Entity(text[a:b], a, b, tags[first][2:], float(probabilities[first:stop].mean())))
        return tuple(out)

    def _path(self, logs: np.ndarray) -> np.ndarray:
        """The likeliest labels that are valid IOB2 (Viterbi): (words, labels) log probabilities → (words,)."""
        path: np.ndarray = logs.argmax(1)
        moves, first = self._moves[path[:-1], path[1:]], self._moves[self.labels.index("O"), path[0]]
        if first == 0 and not moves.any():  # what is best word by word is best of all, when it is valid
            return path
        best = logs[0] + self._moves[self.labels.index("O")]
        back = []
        for row in logs[1:]:
            table = best[:, None] + self._moves
            back.append(table.argmax(0))
            best = table.max(0) + row
        path[-1] = best.argmax()
        for i in range(len(back) - 1, -1, -1):
            path[i] = back[i][path[i + 1]]
        return path

    @cached_property
    def _moves(self) -> np.ndarray:
        """(labels, labels): 0 where the second may follow the first, -inf where not. A text begins as after "O"."""
        table = np.zeros((len(self.labels), len(self.labels)))
        for j, label in enumerate(self.labels):
            if label[0] == "I" and "B" + label[1:] in self.labels:
                table[:, j] = [0 if before[1:] == label[1:] else -inf for before in self.labels]
        return table

    def measure(self, results: Sequence[TagResult], examples: Sequence[TaggedExample]) -> dict[str, float]:
        """F1, precision and recall of whole entities, as seqeval counts them, then the F1 of each kind."""
        return measure_entities([result.spans for result in results], examples)


@dataclass(frozen=True)
class IntentTask:
    """Intents and slots at once, with two heads: one class for the text, one label for each word."""

    intents: tuple[str, ...]
    labels: tuple[str, ...]
    """Of the slots, as in `TagTask`."""
    overlap: int = 64
    """Tokens that two windows of a long text share."""

    name = "intent"
    head = ("classify", "tag")

    @classmethod
    def from_examples(cls, examples: Sequence[TaggedExample], **settings: Any) -> IntentTask:
        """The task with all intents and slots in these examples."""
        bare = next((e for e in examples if e.intent is None), None)
        if bare is not None or not examples:
            raise AlbertkitError(
                f"{(bare and bare.where) or 'an example'} has no intent; training needs one for each text"
            )
        return cls(
            tuple(sorted({e.intent for e in examples if e.intent is not None})),
            TagTask.from_examples(examples).labels,
            **settings,
        )

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows of the two heads."""
        return len(self.intents), len(self.labels)

    @cached_property
    def slots(self) -> TagTask:
        """The half of the task that is about words."""
        return TagTask(self.labels, self.overlap)

    def features(self, examples: Sequence[TaggedExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """As `TagTask` has them; a target is (row of the intent or -100, list of labels)."""
        rows: dict[str | None, int] = {intent: i for i, intent in enumerate(self.intents)}
        found = self.slots.features(examples, tokenizer, max_length)
        return [
            f if f.target is None else replace(f, target=(rows.get(examples[f.example].intent, IGNORE_INDEX), f.target))
            for f in found
        ]

    def results(
        self,
        scores: Sequence[tuple[np.ndarray, np.ndarray]],
        features: Sequence[Feature],
        examples: Sequence[TaggedExample],
    ) -> list[IntentResult]:
        """Intent and slots, from ((intents,), (tokens, labels)) scores; windows of one text vote with their probabilities."""
        probabilities = np.zeros((len(examples), len(self.intents)))
        for (classes, _), feature in zip(scores, features, strict=True):
            row = np.asarray(classes, np.float64)
            row = np.exp(row - row.max())
            probabilities[feature.example] += row / row.sum()
        probabilities /= np.maximum(probabilities.sum(1, keepdims=True), 1e-300)
        slots = self.slots.results([words for _, words in scores], features, examples)
        return [
            IntentResult(self.intents[int(row.argmax())], float(row.max()), found.spans)
            for row, found in zip(probabilities, slots, strict=True)
        ]

    def measure(self, results: Sequence[IntentResult], examples: Sequence[TaggedExample]) -> dict[str, float]:
        """Texts with intent and all slots right ("exact"), intents right ("accuracy"), and the slots as `TagTask` measures them."""
        intents = np.array([r.intent == e.intent for r, e in zip(results, examples, strict=True)], bool)
        slots = np.array([_plain(r.spans) == _plain(e.spans) for r, e in zip(results, examples, strict=True)], bool)
        count = max(1, len(examples))
        return {
            "exact": float((intents & slots).sum() / count),
            "accuracy": float(intents.sum() / count),
            **measure_entities([result.spans for result in results], examples),
        }


def measure_entities(found: Sequence[Sequence[Marked]], examples: Sequence[TaggedExample]) -> dict[str, float]:
    """Entity-level F1, precision and recall over all kinds ("f1", …), and the F1 of each kind ("f1_PER")."""
    report = need("seqeval.metrics", "train", "measuring entities").classification_report
    words = [example_words(example) for example in examples]
    right = [iob2_tags(w, e.spans, e.where) for w, e in zip(words, examples, strict=True)]
    guess = [iob2_tags(w, spans) for w, spans in zip(words, found, strict=True)]
    if not any(tag != "O" for tags in (*right, *guess) for tag in tags):
        return {"f1": 0.0, "precision": 0.0, "recall": 0.0}  # seqeval cannot take it, and would divide 0 by 0
    rows = report(right, guess, output_dict=True, zero_division=0)
    total = rows["micro avg"]
    kinds = [name for name in rows if name not in ("micro avg", "macro avg", "weighted avg")]
    return {
        "f1": float(total["f1-score"]),
        "precision": float(total["precision"]),
        "recall": float(total["recall"]),
        **{f"f1_{kind}": float(rows[kind]["f1-score"]) for kind in kinds},
    }


def _plain(spans: Iterable[Marked]) -> set[tuple[int, int, str]]:
    return {(span.start, span.end, span.label) for span in spans}
