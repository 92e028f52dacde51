"""Clusters of vectors, each with its most central row: deterministic spherical k-means in numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from albertkit.errors import AlbertkitError, check_count, check_type

ROWS = 8192  # rows compared with the centres at a time
MOST = 100  # default limit of the number of clusters
STARTS = 4  # random initializations; the best is kept
STEPS = 50  # maximum iterations per start


@dataclass(frozen=True)
class Clusters:
    """The result of `cluster`: the cluster of each row, largest cluster first, and the most central row of each.

    >>> from albertkit import Albert, cluster
    >>> texts = ["a cat", "a kitten", "the train", "a railway"]
    >>> clusters = cluster(Albert().embed(texts), k=2)
    >>> sorted(texts[row] for row in clusters.members(0).tolist())
    ['a railway', 'the train']
    """

    labels: np.ndarray
    """The number of each row's cluster."""
    central: np.ndarray
    """For each cluster, the row nearest to its mean."""
    sizes: np.ndarray
    """Rows in each cluster."""
    closeness: np.ndarray
    """The cosine of each row with the mean of its cluster."""

    def members(self, number: int) -> np.ndarray:
        """Rows of one cluster, the most central first."""
        rows = np.flatnonzero(self.labels == number)
        return rows[np.argsort(-self.closeness[rows], kind="stable")]


def cluster(vectors: np.ndarray, k: int | None = None, seed: int = 0) -> Clusters:
    """Group vectors by direction into at most k clusters; by default the square root of n / 2, and not more than 100.

    The best of a few initializations is kept. The result has fewer clusters if fewer rows are distinct.

    >>> from albertkit import Albert, cluster
    >>> clusters = cluster(Albert().embed(["a cat", "a kitten", "the train", "a railway"]), k=2)
    >>> clusters.labels.tolist()
    [1, 1, 0, 0]
    """
    try:
        rows = np.ascontiguousarray(vectors, np.float32)
    except (TypeError, ValueError):
        check_type("vectors", vectors, (), "the vectors of texts, such as Albert().embed(texts)")
    if rows.ndim != 2 or not len(rows):
        raise AlbertkitError(f"the vectors have shape {rows.shape}. Pass one row per text, for at least one text.")
    if not np.isfinite(rows).all():
        raise AlbertkitError("the vectors contain NaN or infinity. Check the model that computed them.")
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    if k is None:
        k = min(MOST, max(1, round(math.sqrt(len(rows) / 2))))
    check_count("k", k)
    check_count("seed", seed, 0)
    rng = np.random.default_rng(seed)
    results = [_means(rows, _seeds(rows, min(k, len(rows)), rng)) for _ in range(STARTS)]
    labels, closeness = max(results, key=lambda result: float(result[1].sum()))
    used, sizes = np.unique(labels, return_counts=True)
    order = np.argsort(-sizes, kind="stable")
    rank = np.empty(int(used.max()) + 1, np.int64)
    rank[used[order]] = np.arange(len(used))
    labels = rank[labels]
    best = np.lexsort((-closeness, labels))
    central = best[np.searchsorted(labels[best], np.arange(len(used)))]
    return Clusters(labels, central, sizes[order], closeness)


def _seeds(rows: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """k-means++: each next centre is drawn with a preference for rows far from all previous centres."""
    seeds = [int(rng.integers(len(rows)))]
    far = np.maximum(1 - rows @ rows[seeds[0]], 0).astype(np.float64)
    while len(seeds) < k:
        far[far < 1e-6] = 0
        total = far.sum()
        if total <= 0:  # every row equals a centre
            break
        seeds.append(min(int(np.searchsorted(np.cumsum(far), rng.random() * total, side="right")), len(rows) - 1))
        far = np.minimum(far, np.maximum(1 - rows @ rows[seeds[-1]], 0))
    return rows[seeds]


def _means(rows: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    labels, closeness = _assign(rows, centres)
    for _ in range(STEPS):
        sums = np.zeros_like(centres)
        order = np.argsort(labels, kind="stable")
        present, begins = np.unique(labels[order], return_index=True)
        for number, start, end in zip(present, begins, [*begins[1:], len(rows)], strict=True):
            for i in range(start, end, ROWS):
                sums[number] += rows[order[i : min(i + ROWS, end)]].sum(axis=0)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(norms > 0, sums / np.maximum(norms, 1e-12), centres)
        before = labels
        labels, closeness = _assign(rows, centres)
        if (labels == before).all():
            break
    return labels, closeness


def _assign(rows: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    labels: np.ndarray = np.empty(len(rows), np.int64)
    closeness: np.ndarray = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), ROWS):
        scores = rows[start : start + ROWS] @ centres.T
        labels[start : start + ROWS] = scores.argmax(axis=1)
        closeness[start : start + ROWS] = scores.max(axis=1)
    return labels, closeness
