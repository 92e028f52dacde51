"""Uncertainty and prediction of each example after some layers, for early exit.

In: a task, features, and the scores of the heads after some layers. Out: the uncertainty of each example, from 0, and
its prediction, to compare with other depths. `runtime/`, `explain/` and `train/` share this module.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from albertkit.tasks.tag import example_words, label_tokens
from albertkit.tasks.task import Feature, Task, group_features

MAX_DIFFERENCE = 0.1  # values agree that differ by at most this many standard deviations
MIN_COSINE = 0.95  # vectors agree whose cosine is at least this


class UncertaintyEstimator:
    """The uncertainty of the examples of a task.

    It is the entropy of the class distribution, divided by its maximum; the scores have the scale of training. For
    several labels it is that of the most uncertain label; for tags, of the most uncertain word; for answers, the
    maximum of start and end. For values and vectors it is the change since the previous depth, in standard deviations
    or as 1 - cosine.

    The features of a unit exit together, so that windows and choices are compared at the same depth. `units` contains
    the features of each example, or of each text for tasks that compare vectors.
    """

    def __init__(self, task: Task, features: Sequence[Feature], examples: Sequence[Any]) -> None:
        self.task, self.features = task, features
        self.compares_depths = task.uncertainty_measure != "entropy"
        self.units = group_features(features, len(examples))
        if task.computes_vectors:
            self.units = [[index] for index in range(len(features))]
        tokens: list[list[int]] = [[] for _ in features]
        for example, indices in zip(examples, self.units, strict=True) if "tag" in task.heads else ():
            for window, token in label_tokens([features[p] for p in indices], example_words(example)):
                tokens[indices[window]].append(token)
        self.label_tokens = [np.array(positions, np.int64) for positions in tokens]
        """The tokens of each feature that predict a word, for tags."""

    def uncertainty(self, units: Sequence[int], scores: Sequence[Any], previous: Sequence[Any] | None) -> np.ndarray:
        """(units,) from the scores of each feature at this depth and, for values and vectors, at the previous one."""
        if self.compares_depths and previous is None:
            return np.full(len(units), np.inf)
        if self.task.heads == ("choose",):
            return np.array([_entropy(self._choice_scores(unit, scores)[None])[0] for unit in units])
        indices = [index for unit in units for index in self.units[unit]]
        uncertainty = np.zeros(len(indices))
        for number, head in enumerate(self.task.heads):
            rows = [scores[p][number] if len(self.task.heads) > 1 else scores[p] for p in indices]
            previous_rows = [previous[p] for p in indices] if self.compares_depths and previous is not None else rows
            uncertainty = np.maximum(uncertainty, self._head_uncertainty(head, indices, rows, previous_rows))
        starts = np.cumsum([0, *(len(self.units[unit]) for unit in units)])[:-1]
        return np.maximum.reduceat(uncertainty, starts) if len(uncertainty) else uncertainty

    def _head_uncertainty(
        self, head: str, indices: list[int], rows: list[np.ndarray], previous_rows: list[np.ndarray]
    ) -> np.ndarray:
        """(features,) for one head."""
        if head == "vector":
            return 1 - cosines(np.stack(rows), np.stack(previous_rows))
        if head == "tag":
            tokens = [self.label_tokens[p] for p in indices]
            uncertainty = np.zeros(len(indices))
            table = np.concatenate([row[words] for row, words in zip(rows, tokens, strict=True)])
            features = np.repeat(np.arange(len(indices)), list(map(len, tokens)))
            np.maximum.at(uncertainty, features, _entropy(table))
            return uncertainty
        if head == "answer":
            return np.array([max(_entropy(row[:, 0][None])[0], _entropy(row[:, 1][None])[0]) for row in rows])
        scale = float(getattr(self.task, "score_scale", 1.0))
        table = np.stack(rows) * scale
        if self.task.kind == "regression":
            return np.asarray(np.abs(table - np.stack(previous_rows) * scale)[:, 0])
        if self.task.kind == "multi":  # each class against its absence, as two scores
            pairs = np.stack([table, np.zeros_like(table)], -1)
            return _entropy(pairs.reshape(-1, 2)).reshape(table.shape).max(1)
        return _entropy(table)

    def predictions(self, units: Sequence[int], scores: Sequence[Any]) -> list[Hashable]:
        """The prediction of each unit, in a form that can be compared; not for values and vectors."""
        return [self._prediction(unit, scores) for unit in units]

    def _prediction(self, unit: int, scores: Sequence[Any]) -> Hashable:
        if self.task.heads == ("choose",):
            return int(self._choice_scores(unit, scores).argmax())
        predictions: list[Hashable] = []
        for index in self.units[unit]:
            rows = scores[index] if len(self.task.heads) > 1 else (scores[index],)
            for head, row in zip(self.task.heads, rows, strict=True):
                if head == "tag":
                    predictions.append(row[self.label_tokens[index]].argmax(1).tobytes())
                elif head == "answer":
                    predictions.append(row.argmax(0).tobytes())
                elif self.task.kind == "multi":
                    predictions.append((row >= self._score_threshold()).tobytes())
                else:
                    predictions.append(int(row.argmax()))
        return tuple(predictions)

    def _score_threshold(self) -> float:
        """The minimum score at which one of several labels is predicted."""
        threshold = min(max(float(getattr(self.task, "threshold", 0.5)), 1e-9), 1 - 1e-9)
        return float(getattr(self.task, "temperature", 1.0)) * math.log(threshold / (1 - threshold))

    def _choice_scores(self, unit: int, scores: Sequence[Any]) -> np.ndarray:
        return np.array([float(np.asarray(scores[index]).reshape(())) for index in self.units[unit]])


def _entropy(scores: np.ndarray) -> np.ndarray:
    """(n, classes) scores → (n,) entropies from 0 to 1."""
    if scores.shape[-1] < 2:
        return np.zeros(len(scores))
    scores = scores.astype(np.float64)
    scores = scores - scores.max(-1, keepdims=True)
    weights = np.exp(scores)
    total = weights.sum(-1)
    entropy: np.ndarray = (np.log(total) - (weights * scores).sum(-1) / total) / np.log(scores.shape[-1])
    return entropy.clip(0.0, 1.0)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cosine of each row with the row of the other table."""
    first, second = first.astype(np.float64), second.astype(np.float64)
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    return np.asarray((first * second).sum(-1) / np.maximum(lengths, 1e-12))


def results_agree(task: Task, results: Sequence[Any], full: Sequence[Any]) -> np.ndarray:
    """(examples,) whether two lists of results have the same predictions; values may differ by `MAX_DIFFERENCE`."""
    pairs = zip(results, full, strict=True)
    if task.kind == "regression":
        deviation = getattr(task, "std", 1.0) / getattr(task, "score_scale", 1.0)
        return np.array([abs(a.label - b.label) for a, b in pairs]) <= MAX_DIFFERENCE * deviation
    return np.array([prediction_of(a) == prediction_of(b) for a, b in pairs], bool)


def prediction_of(result: object, digits: int | None = None) -> object:
    """The prediction of a result, without its probabilities; a value is rounded to `digits`."""
    if hasattr(result, "spans"):
        return getattr(result, "intent", None), tuple((s.start, s.end, s.label) for s in result.spans)
    name = next((name for name in ("index", "goal", "label", "text") if hasattr(result, name)), None)
    prediction = result if name is None else getattr(result, name)
    return round(prediction, digits) if isinstance(prediction, float) and digits is not None else prediction
