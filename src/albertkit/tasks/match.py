"""Semantic matching with a bi-encoder: both texts of a pair become vectors, which are compared by their cosine.

In: `TextExample` pairs with a score, one of two classes, or no label (all pairs match). Out: `MatchResult`s. Vectors
can be indexed for search. A cross-encoder (`classify.py` with pairs) is more accurate, but computes no vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from albertkit.errors import AlbertkitError, check_choice, need
from albertkit.tasks.examples import TextExample
from albertkit.tasks.task import Feature, Task, TaskResult, check_variety
from albertkit.tokenizer import Tokenizer

RANKED_ROWS = 512  # compared with all others at once
LOSSES = ("cosent", "mnrl", "contrastive")
CLASSES = ({"0", "1"}, {"no", "yes"}, {"false", "true"})


@dataclass(frozen=True)
class MatchResult(TaskResult):
    """The similarity of two texts.

    >>> from albertkit import MatchResult
    >>> MatchResult(score=0.83).score
    0.83
    """

    score: float
    rank: int | None = None
    """For pairs without labels: the rank of the second text among all second texts, from 1."""


@dataclass(frozen=True)
class MatchTask(Task):
    """Pairs to vectors.

    loss: cosent (ranks cosines; for scores or classes), mnrl (in-batch negatives; for matching pairs), contrastive
    (cosine 1 for matching pairs, below the margin for others).
    """

    labels: tuple[str, ...] = ()
    loss: str = "cosent"
    scale: float = 20.0
    """Factor of the cosines in the loss (inverse temperature)."""
    margin: float = 0.5

    name = "match"
    heads = ("vector",)
    usage = "index (in Python: similarity)"
    example_types = (TextExample,)
    setting_names = ("loss",)
    truncates = True
    computes_vectors = True
    has_correct_results = False

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, LOSSES)

    @classmethod
    def from_examples(cls, examples: Sequence[TextExample], loss: str | None = None) -> MatchTask:
        """The task of these pairs: cosent if they have scores or classes, mnrl if they have no labels."""
        for e in examples:
            if e.pair is None:
                raise AlbertkitError(f"{e.where or 'an example'} has no second text. Matching needs pairs.")
        labels = {str(e.label) for e in examples if not isinstance(e.label, float) and e.label is not None}
        has_labels = any(e.label is not None for e in examples)
        if loss == "mnrl" and has_labels and not labels:
            raise AlbertkitError(
                "loss='mnrl' needs matching pairs, but these have scores. Pass cosent, or write 1 and 0 as labels."
            )
        if labels and labels not in CLASSES:
            raise AlbertkitError(
                f"pairs have the classes {', '.join(sorted(labels)[:5])}; matching needs two classes or numbers. "
                "Write 1 for matching pairs and 0 for others."
            )
        check_variety(examples, {e.label for e in examples if e.label is not None}, "label")
        return cls(tuple(sorted(labels)), loss or ("cosent" if has_labels else "mnrl"))

    def target(self, example: TextExample) -> float:
        """The score; 1 for the second of two classes and for pairs without a label."""
        if example.label is None:
            return 1.0
        if isinstance(example.label, float):
            return example.label
        return float(not self.labels or str(example.label) == self.labels[-1])

    def features(self, examples: Sequence[TextExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Two features per pair; the first has the target. With mnrl, pairs that do not match have no target."""
        texts = [text for e in examples for text in (e.text, e.pair or "")]
        encodings = tokenizer.encode_batch(texts, max_length=max_length)
        targets: list[float | None] = [self.target(example) for example in examples]
        if self.loss == "mnrl":
            targets = [target or None for target in targets]
        return [
            Feature(encoding.ids, encoding.segments, i // 2, None if i % 2 else targets[i // 2])
            for i, encoding in enumerate(encodings)
        ]

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[TextExample]
    ) -> list[MatchResult]:
        table = np.stack(scores).astype(np.float64)
        table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
        cosines = (table[0::2] * table[1::2]).sum(1)
        if any(example.label is not None for example in examples):
            return [MatchResult(float(score)) for score in cosines]
        ranks = partner_ranks(table[0::2], table[1::2])
        return [MatchResult(float(score), rank) for score, rank in zip(cosines, ranks, strict=True)]

    def measure(self, results: Sequence[MatchResult], examples: Sequence[TextExample]) -> dict[str, float]:
        """Scores: correlations. Classes: area under the curve, average precision, best accuracy.

        No labels: share of pairs whose partner is the nearest text, and the mean reciprocal rank.
        """
        need("sklearn", "train", "measuring")
        from scipy.stats import pearsonr, spearmanr
        from sklearn import metrics

        cosines = np.array([r.score for r in results])
        truth = np.array([self.target(e) for e in examples])
        if len(set(truth.tolist())) < 2:
            mean = {"mean_cosine": float(cosines.mean())}
            ranks = [r.rank for r in results if r.rank is not None]
            if len(ranks) < len(results):
                return mean
            nearest = sum(rank == 1 for rank in ranks) / len(ranks)
            return {"nearest": nearest, "reciprocal_rank": sum(1 / rank for rank in ranks) / len(ranks), **mean}
        if not self.labels:
            return {
                "spearman": float(spearmanr(cosines, truth).statistic),
                "pearson": float(pearsonr(cosines, truth).statistic),
            }
        order = np.argsort(-cosines)
        hits = np.cumsum(truth[order])
        accuracy = (hits + (1 - truth).sum() - np.cumsum(1 - truth[order])) / len(truth)
        return {
            "auc": float(metrics.roc_auc_score(truth, cosines)),
            "average_precision": float(metrics.average_precision_score(truth, cosines)),
            "best_accuracy": float(max(accuracy.max(), (1 - truth).mean())),
        }


def partner_ranks(first: np.ndarray, second: np.ndarray) -> list[int]:
    """The rank of each row's partner among all second vectors (of length 1); in a tie the partner ranks last."""
    ranks: list[int] = []
    for start in range(0, len(first), RANKED_ROWS):
        table = first[start : start + RANKED_ROWS] @ second.T
        partner_scores = table[np.arange(len(table)), np.arange(start, start + len(table))]
        ranks += (table >= partner_scores[:, None] - 1e-9).sum(1).tolist()
    return ranks
