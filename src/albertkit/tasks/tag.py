"""Entity recognition, and intents with slots: tokens predict the tags of words; results are character spans.

In: `TaggedExample`s. Out: `TagResult`s or `IntentResult`s. Imports `task.py` and `classify.py`.

Each word is tokenized separately, so no token belongs to two words. Its first token predicts its tag. A long text is
split into windows of words. Each word is predicted once, by the window with most of its context.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf

import numpy as np

from albertkit.errors import AlbertkitError, need
from albertkit.tasks.classify import Classification
from albertkit.tasks.examples import Span, TaggedExample, TextExample, Words, split_words
from albertkit.tasks.task import (
    IGNORE_INDEX,
    Feature,
    Task,
    TaskResult,
    check_variety,
    encode_once,
    group_features,
    softmax,
)
from albertkit.tokenizer import Tokenizer


@dataclass(frozen=True)
class Entity:
    """Characters [start, end) of the text, their label, and the mean probability of the words' tags."""

    text: str
    start: int
    end: int
    label: str
    score: float


@dataclass(frozen=True)
class TagResult(TaskResult):
    """The entities of a text, in order.

    >>> from albertkit import TagResult
    >>> TagResult("Ada lives in London.", spans=()).text
    'Ada lives in London.'
    """

    text: str
    spans: tuple[Entity, ...]


@dataclass(frozen=True)
class IntentResult(TaskResult):
    """The intent of a text with its probability, and the slots.

    >>> from albertkit import IntentResult
    >>> IntentResult("play_music", probability=0.99, spans=()).intent
    'play_music'
    """

    intent: str
    probability: float
    spans: tuple[Entity, ...]

    @classmethod
    def from_classification(cls, result: Classification) -> IntentResult:
        """A class as an intent without slots."""
        intent = cls(str(result.label), result.probability, ())
        if result.depth is not None:
            object.__setattr__(intent, "depth", result.depth)
        return intent


@dataclass(frozen=True)
class TagTask(Task):
    """Entities with IOB2 tags: "O", "B-PER" for the first word of an entity, "I-PER" for the others."""

    labels: tuple[str, ...]
    overlap: int = 64
    """Tokens that two windows of a long text share."""

    name = "tag"
    heads = ("tag",)
    usage = "tag"
    example_types = (TaggedExample,)
    setting_names = ("overlap",)

    def __post_init__(self) -> None:
        malformed = [label for label in self.labels if label != "O" and label[:2] not in ("B-", "I-")]
        if malformed or "O" not in self.labels:
            problem = f"labels contain {malformed[0]!r}" if malformed else "labels do not contain 'O'"
            raise AlbertkitError(f"{problem}. Use IOB2 labels such as O, B-PER, I-PER.")
        if self.overlap < 0:
            raise AlbertkitError(f"overlap={self.overlap} is negative. Pass 0 or more tokens.")

    @classmethod
    def from_examples(cls, examples: Sequence[TaggedExample], overlap: int = 64) -> TagTask:
        """The task with all entity labels of these examples."""
        names = sorted({span.label for example in examples for span in example.spans})
        if not names:
            raise AlbertkitError(
                f"none of the {len(examples)} examples contains an entity. Add examples with entities."
            )
        return cls(("O", *(f"{prefix}-{name}" for name in names for prefix in "BI")), overlap)

    def features(self, examples: Sequence[TaggedExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Windows of each text, at least one; with targets if the example has words, entities or an intent.

        Unknown entity labels are ignored in training; `measure` counts them as missed. A word longer than half a
        window is truncated.
        """
        room = max_length - 2
        longest = max(1, room // 2)
        words = [example_words(example) for example in examples]
        texts = {e.text[a:b] for e, spans in zip(examples, words, strict=True) for a, b in spans}
        tokens = word_tokens(texts, tokenizer)
        specials = tokenizer.encode("", max_length=max_length).ids
        features: list[Feature] = []
        for number, (example, spans) in enumerate(zip(examples, words, strict=True)):
            tokens_by_word = [
                [(i, (start + a, start + b)) for i, (a, b) in tokens[example.text[start:end]][:longest]]
                for start, end in spans
            ]
            windows = []
            for window in word_windows([len(t) for t in tokens_by_word], room, min(self.overlap, room - longest)):
                inside = [token for word in window for token in tokens_by_word[word]]
                ids = [specials[0], *(i for i, _ in inside), specials[1]]
                offsets = [(0, 0), *(span for _, span in inside), (0, 0)]
                windows.append(Feature(ids, [0] * len(ids), number, None, offsets))
            if example.words or example.spans or example.intent is not None:
                windows = self._with_targets(windows, spans, example)
            features += windows
        return features

    def _with_targets(self, features: list[Feature], words: Words, example: TaggedExample) -> list[Feature]:
        rows = {label: i for i, label in enumerate(self.labels)}
        targets = [[IGNORE_INDEX] * len(feature.ids) for feature in features]
        tags = iob2_tags(words, example.spans, example.where)
        for tag, (window, token) in zip(tags, label_tokens(features, words), strict=True):
            targets[window][token] = rows.get(tag, IGNORE_INDEX)
        return [replace(feature, target=target) for feature, target in zip(features, targets, strict=True)]

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[TaggedExample]
    ) -> list[TagResult]:
        """The entities of each text, from (tokens, labels) scores of each feature."""
        results = []
        for example, indices in zip(examples, group_features(features, len(examples)), strict=True):
            words = example_words(example)
            positions = label_tokens([features[i] for i in indices], words)
            table = [np.asarray(scores[indices[window]][token], np.float64) for window, token in positions]
            results.append(TagResult(example.text, self._entities(example.text, words, np.array(table))))
        return results

    def _entities(self, text: str, words: Words, scores: np.ndarray) -> tuple[Entity, ...]:
        """(words, labels) scores → entities."""
        if not len(words):
            return ()
        logs = scores - scores.max(1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(1, keepdims=True))
        path = self._best_path(logs)
        probabilities = np.exp(logs[np.arange(len(path)), path])
        tags = [self.labels[i] for i in path]
        starts = [
            i
            for i, (before, tag) in enumerate(pairwise(["O", *tags]))
            if tag[0] == "B" or (tag[0] == "I" and before[2:] != tag[2:])
        ]
        entities = []
        for first, limit in pairwise([*starts, len(tags)]):
            stop = next((i for i in range(first, limit) if tags[i] == "O"), limit)
            a, b = words[first][0], words[stop - 1][1]
            entities.append(Entity(text[a:b], a, b, tags[first][2:], float(probabilities[first:stop].mean())))
        return tuple(entities)

    def _best_path(self, logs: np.ndarray) -> np.ndarray:
        """The most likely valid IOB2 tags (Viterbi): (words, labels) log probabilities → (words,)."""
        path: np.ndarray = logs.argmax(1)
        begin = self._transitions[self.labels.index("O")]
        if begin[path[0]] == 0 and not self._transitions[path[:-1], path[1:]].any():  # the best tags are valid
            return path
        best = logs[0] + begin
        back = []
        for row in logs[1:]:
            table = best[:, None] + self._transitions
            back.append(table.argmax(0))
            best = table.max(0) + row
        path[-1] = best.argmax()
        for i in range(len(back) - 1, -1, -1):
            path[i] = back[i][path[i + 1]]
        return path

    @cached_property
    def _transitions(self) -> np.ndarray:
        """(labels, labels): 0 if the second may follow the first, else -inf. The start of a text is like "O"."""
        table = np.zeros((len(self.labels), len(self.labels)))
        for j, label in enumerate(self.labels):
            if label[0] == "I" and "B" + label[1:] in self.labels:
                table[:, j] = [0 if before[1:] == label[1:] else -inf for before in self.labels]
        return table

    def measure(self, results: Sequence[TagResult], examples: Sequence[TaggedExample]) -> dict[str, float]:
        """F1, precision and recall of entities, as seqeval computes them, then the F1 of each label."""
        return entity_metrics([result.spans for result in results], examples)


@dataclass(frozen=True)
class IntentTask(Task):
    """Intents with slots, by two heads: one class for the text, one tag for each word."""

    intents: tuple[str, ...]
    labels: tuple[str, ...]
    """Of the slots, as in `TagTask`."""
    overlap: int = 64
    """Tokens that two windows of a long text share."""

    name = "intent"
    heads = ("classify", "tag")
    usage = "intent (in Python: understand)"
    example_types = (TaggedExample, TextExample)
    setting_names = ("overlap",)
    can_train_on_frozen_vectors = True

    @classmethod
    def from_examples(cls, examples: Sequence[TaggedExample], overlap: int = 64) -> IntentTask:
        """The task with all intents and slots of these examples."""
        intents = sorted({e.intent for e in examples if e.intent is not None})
        check_variety(examples, intents, "intent")
        return cls(tuple(intents), TagTask.from_examples(examples).labels, overlap)

    def outputs(self, head: str) -> int:
        return len(self.intents if head == "classify" else self.labels)

    @cached_property
    def slots(self) -> TagTask:
        """The part of the task about words."""
        return TagTask(self.labels, self.overlap)

    def features(self, examples: Sequence[TaggedExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """As those of `TagTask`; a target is (row of the intent or IGNORE_INDEX, tags)."""
        rows: dict[str | None, int] = {intent: i for i, intent in enumerate(self.intents)}
        return [
            f if f.target is None else replace(f, target=(rows.get(examples[f.example].intent, IGNORE_INDEX), f.target))
            for f in self.slots.features(examples, tokenizer, max_length)
        ]

    def results(
        self,
        scores: Sequence[tuple[np.ndarray, np.ndarray]],
        features: Sequence[Feature],
        examples: Sequence[TaggedExample],
    ) -> list[IntentResult]:
        """Intent and slots, from ((intents,), (tokens, labels)) scores; the probabilities of windows are averaged."""
        probabilities = np.zeros((len(examples), len(self.intents)))
        for (row, _), feature in zip(scores, features, strict=True):
            probabilities[feature.example] += softmax(np.asarray(row, np.float64))
        probabilities /= np.maximum(probabilities.sum(1, keepdims=True), 1e-300)
        slots = self.slots.results([tags for _, tags in scores], features, examples)
        return [
            IntentResult(self.intents[int(row.argmax())], float(row.max()), tagged.spans)
            for row, tagged in zip(probabilities, slots, strict=True)
        ]

    def measure(self, results: Sequence[IntentResult], examples: Sequence[TaggedExample]) -> dict[str, float]:
        """Intent and all slots correct ("exact"), intent correct ("accuracy"), and the metrics of `TagTask`."""
        pairs = list(zip(results, examples, strict=True))
        intents = np.array([r.intent == e.intent for r, e in pairs], bool)
        slots = np.array([_span_set(r.spans) == _span_set(e.spans) for r, e in pairs], bool)
        count = max(1, len(examples))
        return {
            "exact": float((intents & slots).sum() / count),
            "accuracy": float(intents.sum() / count),
            **entity_metrics([result.spans for result in results], examples),
        }


def entity_metrics(predicted: Sequence[Sequence[Entity | Span]], examples: Sequence[TaggedExample]) -> dict[str, float]:
    """F1, precision and recall over all entities ("f1", …), and the F1 of each label ("f1_PER")."""
    report = need("seqeval.metrics", "train", "measuring entities").classification_report
    words = [example_words(example) for example in examples]
    truth = [iob2_tags(w, e.spans, e.where) for w, e in zip(words, examples, strict=True)]
    predictions = [iob2_tags(w, spans) for w, spans in zip(words, predicted, strict=True)]
    if not any(tag != "O" for tags in (*truth, *predictions) for tag in tags):
        return {"f1": 0.0, "precision": 0.0, "recall": 0.0}  # seqeval would divide 0 by 0
    rows = report(truth, predictions, output_dict=True, zero_division=0)
    total = rows["micro avg"]
    names = [name for name in rows if name not in ("micro avg", "macro avg", "weighted avg")]
    return {
        "f1": float(total["f1-score"]),
        "precision": float(total["precision"]),
        "recall": float(total["recall"]),
        **{f"f1_{name}": float(rows[name]["f1-score"]) for name in names},
    }


def _span_set(spans: Iterable[Entity | Span]) -> set[tuple[int, int, str]]:
    return {(span.start, span.end, span.label) for span in spans}


# Words, tags and tokens ----------------------------------------------------------------------------------------------


def example_words(example: TaggedExample) -> Words:
    """The words of an example: its own, or those of its text."""
    if not example.words:
        return split_words(example.text)
    before = 0
    for a, b in example.words:
        if not before <= a < b <= len(example.text):
            raise AlbertkitError(
                f"{example.where or 'an example'} has a word from {a} to {b} in a text of {len(example.text)} "
                f"characters, after a word that ends at {before}. Words must be in order, not empty, and in the text."
            )
        before = b
    return example.words


def iob2_tags(words: Words, spans: Iterable[Entity | Span], where: str = "") -> list[str]:
    """The IOB2 tag of each word. Of overlapping entities the one that starts first is kept, then the longer one."""
    tags = ["O"] * len(words)
    first = {a: i for i, (a, _) in enumerate(words)}
    last = {b: i for i, (_, b) in enumerate(words)}
    for span in sorted(spans, key=lambda s: (s.start, -s.end)):
        i, j = first.get(span.start), last.get(span.end)
        if i is None or j is None or j < i:
            raise AlbertkitError(
                f"{where or 'an example'} has the entity {span.label!r} from {span.start} to {span.end}, which does "
                "not start and end at a word. Correct the entity or the words."
            )
        if all(tag == "O" for tag in tags[i : j + 1]):
            tags[i : j + 1] = [f"B-{span.label}"] + [f"I-{span.label}"] * (j - i)
    return tags


def word_tokens(words: Iterable[str], tokenizer: Tokenizer) -> dict[str, list[tuple[int, tuple[int, int]]]]:
    """(id, characters) of the tokens of each word, without empty tokens; a word has at least one token."""
    unknown = tokenizer.pad_id if tokenizer.unk_id is None else tokenizer.unk_id
    tokens = {}
    for text, encoding in encode_once(words, tokenizer).items():
        real = [(i, (a, b)) for i, (a, b) in zip(encoding.ids, encoding.offsets, strict=True) if b > a]
        tokens[text] = real or [(unknown, (0, len(text)))]
    return tokens


def word_windows(sizes: Sequence[int], room: int, overlap: int) -> list[range]:
    """Ranges of words that fit into `room` tokens and share at most `overlap` tokens.

    sizes: tokens of each word, at most room - overlap, so that a word always fits after the overlap.
    """
    windows, start = [], 0
    while True:
        end, used = start, 0
        while end < len(sizes) and used + sizes[end] <= room:
            used += sizes[end]
            end += 1
        windows.append(range(start, end))
        if end == len(sizes):
            return windows
        start, shared = end, sizes[end - 1]
        while shared <= overlap:
            start -= 1
            shared += sizes[start - 1]


def label_tokens(features: Sequence[Feature], words: Words) -> list[tuple[int, int]]:
    """The (window, token) that predicts each word: its first token, in the window with the most context on both sides.

    The start and the end of the text do not count as missing context.
    """
    starts = [a for a, _ in words]
    best: list[tuple[float, int, int]] = [(-1, 0, 0)] * len(words)
    for number, feature in enumerate(features):
        offsets, last = feature.offsets or [], len(feature.ids) - 1
        owners = [bisect_right(starts, a) - 1 for a, _ in offsets[1:last]]
        for token, (before, word) in enumerate(pairwise([-1, *owners]), start=1):
            if before != word:
                left = inf if owners[0] == 0 else token
                right = inf if owners[-1] == len(words) - 1 else last - token
                best[word] = max(best[word], (min(left, right), -number, token))
    return [(-number, token) for _, number, token in best]
