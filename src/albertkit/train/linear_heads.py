"""Two linear heads on frozen sentence vectors: logistic regression, and nearest centroid, which needs no training.

In: vectors of length 1 (texts, dim) and class numbers. Out: `LinearHead`, with probabilities of held-out examples where
there are enough. No torch. Next: `frozen_head.py` writes a head into a model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from albertkit.errors import need
from albertkit.tasks.task import softmax

STRENGTHS = (1.0, 10.0, 100.0)  # inverse regularization, scikit-learn's C
SCALES = np.geomspace(1, 256, 33)
USUAL_SCALE = 16.0  # the best scale for one example per class of CLINC150 and Snips
SCALE_SPREAD = 0.5  # of the natural logarithm; keeps a handful of examples from setting an extreme scale


@dataclass(frozen=True)
class LinearHead:
    """Logits = vectors @ weight.T + bias."""

    weight: np.ndarray
    """(classes, dim)"""
    bias: np.ndarray
    """(classes,)"""
    held_out: np.ndarray | None
    """Probabilities (texts, classes) of texts from heads that were fitted without them; None with too few examples."""
    details: dict[str, Any]
    """For the history of the model."""


def fit_logistic(vectors: np.ndarray, targets: np.ndarray, is_balanced: bool = False) -> LinearHead:
    """A logistic regression; cross-validation chooses the regularization. is_balanced: rare classes weigh more."""
    need("sklearn", "frozen", "a classifier on frozen vectors")
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    class_weight = "balanced" if is_balanced else None
    folds = min(5, *Counter(targets.tolist()).values())
    best: tuple[float, float, np.ndarray | None] = (-np.inf, 10.0, None)
    for strength in STRENGTHS if folds >= 2 else ():
        model = LogisticRegression(C=strength, max_iter=1000, class_weight=class_weight)
        probabilities = cross_val_predict(model, vectors, targets, cv=folds, method="predict_proba")
        score = float(np.log(np.maximum(probabilities[np.arange(len(targets)), targets], 1e-9)).mean())
        if score > best[0]:
            best = score, strength, probabilities
    _, strength, held_out = best
    model = LogisticRegression(C=strength, max_iter=1000, class_weight=class_weight).fit(vectors, targets)
    weight, bias = np.asarray(model.coef_), np.asarray(model.intercept_)
    if len(weight) == 1:  # scikit-learn has one row for two classes
        weight, bias = np.concatenate([-weight / 2, weight / 2]), np.concatenate([-bias / 2, bias / 2])
    return LinearHead(weight, bias, held_out, {"strength": strength})


def fit_nearest(vectors: np.ndarray, targets: np.ndarray) -> LinearHead:
    """The class whose centroid, the mean of its vectors, has the smallest Euclidean distance.

    The squared distance to the mean of n vectors is too large by variance / n on average, and this is subtracted.
    Otherwise classes with few examples would hardly be predicted. Logits are -scale / 2 times the squared distance
    without |vector|², which is the same for all classes. The scale is chosen by leaving out one example at a time.

    >>> head = fit_nearest(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 1]))
    >>> (np.array([[0.8, 0.6]]) @ head.weight.T + head.bias).argmax()
    0
    """
    vectors = vectors.astype(np.float64)
    counts = np.bincount(targets)
    centroids = np.zeros((len(counts), vectors.shape[1]))
    np.add.at(centroids, targets, vectors)
    centroids /= counts[:, None]
    spread = float((counts * (1 - (centroids**2).sum(1))).sum())  # squared distances from vectors to their centroids
    variance = spread / max(1, len(targets) - len(counts))
    bias = variance / (2 * counts) - (centroids**2).sum(1) / 2
    rows = np.flatnonzero(counts[targets] > 1)
    scores = leave_one_out(vectors[rows], targets[rows], centroids, bias, counts, variance)
    scale = choose_scale(scores, targets[rows])
    held_out = softmax(scale * scores) if len(rows) else None
    return LinearHead(scale * centroids, scale * bias, held_out, {"head": "nearest centroid", "scale": scale})


def leave_one_out(
    vectors: np.ndarray,
    targets: np.ndarray,
    centroids: np.ndarray,
    bias: np.ndarray,
    counts: np.ndarray,
    variance: float,
) -> np.ndarray:
    """Scores (texts, classes) without a scale. The centroid of a text's own class is computed without the text."""
    scores = vectors @ centroids.T + bias
    others = counts[targets] - 1
    without = (centroids[targets] * counts[targets, None] - vectors) / others[:, None]
    own_scores = (vectors * without - without**2 / 2).sum(1) + variance / (2 * others)
    scores[np.arange(len(targets)), targets] = own_scores
    return np.asarray(scores)


def choose_scale(scores: np.ndarray, targets: np.ndarray) -> float:
    """The scale with the lowest loss on held-out scores; near `USUAL_SCALE` if they are few, or none."""

    def loss(scale: float) -> float:
        scaled = scale * scores
        top = scaled.max(1)
        total = top + np.log(np.exp(scaled - top[:, None]).sum(1))
        prior = (np.log(scale / USUAL_SCALE) / SCALE_SPREAD) ** 2 / 2
        return float((total - scaled[np.arange(len(targets)), targets]).sum() + prior)

    return float(min(SCALES, key=loss))
