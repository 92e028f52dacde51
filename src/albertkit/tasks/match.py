"""Semantic matching with vectors: two texts are encoded by themselves and compared by their cosine (a bi-encoder, for search).

In: `TextExample` pairs with a score, a class of two, or none (then every pair belongs together). Out: `MatchResult` results. For a cross-encoder, which reads both
texts at once and is more exact but cannot be indexed, use `classify.py` with pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from albertkit.errors import AlbertkitError, need
from albertkit.tasks.examples import TextExample
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Tokenizer

LOSSES = ("cosent", "mnrl", "contrastive")


@dataclass(frozen=True)
class MatchResult:
    """How alike two texts are."""

    score: float
    rank: int | None = None
    """Where pairs have no labels: the place of the second text among all second texts, the nearest first, from 1."""
    depth: ClassVar[int | None] = None
    """Layers applied, on results of texts that may leave early (`early_exit=`); no part of what is compared or written."""


@dataclass(frozen=True)
class MatchTask:
    """Pairs to vectors.

    loss: cosent (pairs that are more alike get the higher cosine; scores or classes), mnrl (each text finds its partner among
    all of the batch; pairs that belong together), contrastive (together: cosine 1; apart: below the margin).
    """

    labels: tuple[str, ...] = ()
    loss: str = "cosent"
    scale: float = 20.0
    """Cosines are multiplied with it before they are compared."""
    margin: float = 0.5

    name = "match"
    head = "vector"

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise AlbertkitError(f"loss is {self.loss!r}; choose one of {', '.join(LOSSES)}")

    @classmethod
    def from_examples(cls, examples: Sequence[TextExample], loss: str | None = None) -> MatchTask:
        """The task of these pairs: cosent where they have scores or classes, mnrl where they only belong together."""
        for e in examples:
            if e.pair is None:
                raise AlbertkitError(f"{e.where or 'an example'} has no second text; matching needs pairs")
        labels = {str(e.label) for e in examples if not isinstance(e.label, float) and e.label is not None}
        if len(labels) > 2:
            raise AlbertkitError(
                f"pairs have the classes {', '.join(sorted(labels)[:5])} …; matching knows two, or numbers"
            )
        graded = any(e.label is not None for e in examples)
        if loss == "mnrl" and graded and not labels:
            raise AlbertkitError(
                "mnrl learns from pairs that belong together, and these have scores; use cosent, or write 1 and 0 as labels"
            )
        if labels and labels not in ({"0", "1"}, {"no", "yes"}, {"false", "true"}):
            raise AlbertkitError(
                f"pairs have the classes {', '.join(sorted(labels))}; write 1 for those that belong together and 0 for the others"
            )
        return cls(tuple(sorted(labels)), loss or ("cosent" if graded else "mnrl"))

    @property
    def outputs(self) -> int:
        """Vectors have no classes."""
        return 0

    def target(self, example: TextExample) -> float | None:
        """The score, or 1 for the second of two classes and for pairs that belong together."""
        if example.label is None:
            return 1.0
        if isinstance(example.label, float):
            return example.label
        return float(not self.labels or str(example.label) == self.labels[-1])

    def features(self, examples: Sequence[TextExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Two features for each pair; the target stands at the first. With mnrl, pairs that do not belong together have none."""
        texts = [text for e in examples for text in (e.text, e.pair or "")]
        found = tokenizer.encode_batch(texts, max_length=max_length)
        targets = [self.target(example) for example in examples]
        if self.loss == "mnrl":
            targets = [target or None for target in targets]
        return [
            Feature(encoding.ids, encoding.segments, i // 2, None if i % 2 else targets[i // 2])
            for i, encoding in enumerate(found)
        ]

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[TextExample]
    ) -> list[MatchResult]:
        """The cosine of each pair's vectors."""
        table = np.stack(scores).astype(np.float64)
        table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
        cosines = (table[0::2] * table[1::2]).sum(1)
        if any(example.label is not None for example in examples):
            return [MatchResult(float(score)) for score in cosines]
        return [
            MatchResult(float(score), rank)
            for score, rank in zip(cosines, partner_ranks(table[0::2], table[1::2]), strict=True)
        ]

    def measure(self, results: Sequence[MatchResult], examples: Sequence[TextExample]) -> dict[str, float]:
        """Rank correlation for scores; for classes the area under the curve, average precision and the best accuracy;
        for pairs without labels how often the partner is the nearest of all, and the mean of 1 / its place.
        """
        need("sklearn", "train", "measuring")
        from scipy.stats import pearsonr, spearmanr
        from sklearn import metrics

        found = np.array([r.score for r in results])
        right = np.array([self.target(e) or 0.0 for e in examples])
        if len(set(right.tolist())) < 2:
            places = [r.rank for r in results if r.rank is not None]
            if len(places) < len(found):
                return {"mean_cosine": float(found.mean())}
            near = {
                "nearest": sum(place == 1 for place in places),
                "reciprocal_rank": sum(1 / place for place in places),
            }
            return {**{name: total / len(places) for name, total in near.items()}, "mean_cosine": float(found.mean())}
        if not self.labels:
            return {
                "spearman": float(spearmanr(found, right).statistic),
                "pearson": float(pearsonr(found, right).statistic),
            }
        order = np.argsort(-found)
        hits = np.cumsum(right[order])
        accuracy = (hits + (1 - right).sum() - np.cumsum(1 - right[order])) / len(right)
        return {
            "auc": float(metrics.roc_auc_score(right, found)),
            "average_precision": float(metrics.average_precision_score(right, found)),
            "best_accuracy": float(max(accuracy.max(), (1 - right).mean())),
        }


def partner_ranks(first: np.ndarray, second: np.ndarray, block: int = 512) -> list[int]:
    """For each row of unit vectors, the place of its partner among all second ones; as near ones stand before it, so that equal vectors gain nothing."""
    found: list[int] = []
    for start in range(0, len(first), block):
        table = first[start : start + block] @ second.T
        own = table[np.arange(len(table)), np.arange(start, start + len(table))]
        found += (table >= own[:, None] - 1e-9).sum(1).tolist()
    return found
