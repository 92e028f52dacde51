"""How sure the scores of a text are, and what they say: what decides whether a text may leave after few layers.

In: a task, features, and the heads' scores after some depth. Out: a doubt for each example, from 0, and what it was found to be, to compare with
another depth. No torch; training (`train/elastic.py`) and use (`runtime/early_exit.py`) ask the same code.

Doubt is the entropy of the classes as a share of the highest possible one (at temperature 1); for several labels, that of the least sure one; for tags, that of the
least sure word; for answers, the larger of first and last token; for choices, over the choices. Values and vectors have no distribution: their doubt is how far they
moved since the last look, in spreads of the training values or as 1 - cosine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.match import MatchTask
from albertkit.tasks.task import Feature
from albertkit.tasks.word_alignment import example_words, label_tokens

MAX_DIFFERENCE = 0.1  # values agree that differ by this many spreads at most
MIN_COSINE = 0.95  # vectors agree that have this cosine at least


class UncertaintyEstimator:
    """The uncertainty of some examples of a task.

    All features of an example leave together, so that windows and choices are compared at one depth; a text to match is by itself.
    """

    def __init__(self, task: Any, features: Sequence[Feature], examples: Sequence[Any]) -> None:
        self.task, self.features = task, features
        self.heads = task.head if isinstance(task.head, tuple) else (task.head,)
        self.compares_depths = isinstance(task, MatchTask) or getattr(task, "kind", "") == "regression"
        alone = isinstance(task, MatchTask)
        self.units: list[list[int]] = [[] for _ in (features if alone else examples)]
        for place, feature in enumerate(features):
            self.units[place if alone else feature.example].append(place)
        self.reads: list[np.ndarray] = []
        if "tag" in self.heads:
            self.reads = word_token_positions(features, examples, self.units)

    def uncertainty(self, units: Sequence[int], now: Sequence[Any], before: Sequence[Any] | None) -> np.ndarray:
        """(units,) uncertainty, from scores by feature at this look and, where depths are compared, at the last one."""
        if self.compares_depths and before is None:
            return np.full(len(units), np.inf)
        if self.heads == ("choose",):
            return np.array([_entropy(self._choices(u, now)[None])[0] for u in units])
        places = [place for u in units for place in self.units[u]]
        found = np.zeros(len(places))
        for number, head in enumerate(self.heads):
            rows = [now[p][number] if len(self.heads) > 1 else now[p] for p in places]
            old = None if before is None or not self.compares_depths else [before[p] for p in places]
            found = np.maximum(found, self._head(head, places, rows, old))
        starts = np.cumsum([0, *(len(self.units[u]) for u in units)])[:-1]
        return np.maximum.reduceat(found, starts) if len(found) else found

    def _head(self, head: str, places: list[int], rows: list[np.ndarray], old: list[np.ndarray] | None) -> np.ndarray:
        """One head's doubt for each feature."""
        if head == "vector":
            return 1 - cosines(np.stack(rows), np.stack(old or rows))
        if head == "tag":
            reads = [self.reads[p] for p in places]
            found = np.zeros(len(places))
            table = np.concatenate([row[read] for row, read in zip(rows, reads, strict=True)])
            np.maximum.at(found, np.repeat(np.arange(len(places)), [len(r) for r in reads]), _entropy(table))
            return found
        if head == "answer":
            return np.array([max(_entropy(row[:, 0][None])[0], _entropy(row[:, 1][None])[0]) for row in rows])
        table = np.stack(rows)
        kind = getattr(self.task, "kind", "single")
        if kind == "regression":
            moved: np.ndarray = np.abs(table - np.stack(old or rows))[:, 0]
            return moved
        if kind == "multi":  # each class against its absence, as two scores
            pairs = np.stack([table, np.zeros_like(table)], -1)
            return _entropy(pairs.reshape(-1, 2)).reshape(table.shape).max(1)
        return _entropy(table)

    def predictions(self, units: Sequence[int], now: Sequence[Any]) -> list[Any]:
        """What the scores of each unit mean, in a form that can be compared; not where depths are compared."""
        return [self._says(unit, now) for unit in units]

    def _says(self, unit: int, now: Sequence[Any]) -> Any:
        if self.heads == ("choose",):
            return int(self._choices(unit, now).argmax())
        found = []
        for place in self.units[unit]:
            rows = now[place] if len(self.heads) > 1 else (now[place],)
            for head, row in zip(self.heads, rows, strict=True):
                if head == "tag":
                    found.append(row[self.reads[place]].argmax(1).tobytes())
                elif head == "answer":
                    found.append(row.argmax(0).tobytes())
                elif getattr(self.task, "kind", "single") == "multi":
                    found.append((row >= self._least()).tobytes())
                else:
                    found.append(int(row.argmax()))
        return tuple(found)

    def _least(self) -> float:
        """The score from which on one of several labels is given."""
        threshold = min(max(float(self.task.threshold), 1e-9), 1 - 1e-9)
        return float(getattr(self.task, "temperature", 1.0)) * math.log(threshold / (1 - threshold))

    def _choices(self, unit: int, now: Sequence[Any]) -> np.ndarray:
        return np.array([float(np.asarray(now[place]).reshape(())) for place in self.units[unit]])


def _entropy(scores: np.ndarray) -> np.ndarray:
    """(n, classes) scores → (n,) entropies from 0 to 1."""
    if scores.shape[-1] < 2:
        return np.zeros(len(scores))
    scores = scores.astype(np.float64)
    scores = scores - scores.max(-1, keepdims=True)
    weights = np.exp(scores)
    total = weights.sum(-1)
    found: np.ndarray = (np.log(total) - (weights * scores).sum(-1) / total) / np.log(scores.shape[-1])
    return np.maximum(found, 0.0)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Of rows with rows."""
    first, second = first.astype(np.float64), second.astype(np.float64)
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    found: np.ndarray = (first * second).sum(-1) / np.maximum(lengths, 1e-12)
    return found


def word_token_positions(
    features: Sequence[Feature], examples: Sequence[Any], units: list[list[int]]
) -> list[np.ndarray]:
    """The tokens of each feature that read a word."""
    found: list[list[int]] = [[] for _ in features]
    for example, places in zip(examples, units, strict=True):
        for window, token in label_tokens([features[p] for p in places], example_words(example)):
            found[places[window]].append(token)
    return [np.array(tokens, np.int64) for tokens in found]


def results_agree(task: Any, mine: Sequence[Any], full: Sequence[Any]) -> np.ndarray:
    """(examples,) whether two lists of results say the same; values may differ by `MAX_DIFFERENCE` spreads."""
    if isinstance(task, ClassifyTask) and task.kind == "regression":
        gaps = [abs(a.label - b.label) for a, b in zip(mine, full, strict=True)]
        return np.array(gaps) <= MAX_DIFFERENCE * task.std
    return np.array([prediction_of(a) == prediction_of(b) for a, b in zip(mine, full, strict=True)], bool)


def prediction_of(result: Any) -> Any:
    """What a result says, without how sure it is."""
    if hasattr(result, "spans"):
        spans = tuple((s.start, s.end, s.label) for s in result.spans)
        return (getattr(result, "intent", None), spans)
    for name in ("index", "label"):
        if hasattr(result, name):
            return getattr(result, name)
    return result.text
