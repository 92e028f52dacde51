"""Task results without torch: examples to features, features through the engine and a head, scores to results.

In: an `Albert` whose model was fine-tuned, and examples. Out: the task's results. The same `tasks/` code trained it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.runtime.batching import rows
from albertkit.tasks.task import Feature

if TYPE_CHECKING:
    from albertkit.runtime.albert import Albert

VERBS = {
    "classify": "classify",
    "tag": "tag",
    "answer": "answer",
    "choose": "choose",
    "intent": "understand",
    "match": "similarity",
}


def predict(albert: Albert, examples: Sequence[Any], task: str, depth: int | None = None) -> list[Any]:
    """Results for examples, in their order."""
    made = albert.meta.task
    if made != task:
        hint = f"; use {VERBS[made]}" if made in VERBS else "; fine-tune it first"
        raise AlbertkitError(f"this model was made for {made!r} and cannot do {task!r}{hint}")
    known = albert.task
    length = min(int(albert.meta.details.get("max_length", albert.max_tokens)), albert.max_tokens)
    features = known.features(examples, albert.tokenizer, length)
    found: list[Any] = known.results(scores(albert, features, depth), features, examples)
    return found


def scores(albert: Albert, features: Sequence[Feature], depth: int | None = None) -> list[Any]:
    """The heads' scores for each feature: an array, or a tuple of arrays for a task of two heads."""
    heads = albert.task.head if isinstance(albert.task.head, tuple) else (albert.task.head,)
    for head in heads:
        if head != "vector" and head not in albert.heads:
            raise AlbertkitError(f"this model has no {head!r} head; fine-tune it for the task first")
    found: list[Any] = [None] * len(features)
    layers = albert._layers_to_apply(None, depth, "pooler")
    for batch in rows([f.ids for f in features], [f.segments for f in features], albert.budget):
        hidden = albert.engine.run(batch, layers)  # (texts, length, H)
        by_head = [_head(albert, head, hidden, batch.lengths) for head in heads]
        for at, place in enumerate(batch.order):
            found[place] = by_head[0][at] if len(heads) == 1 else tuple(part[at] for part in by_head)
    return found


def _head(albert: Albert, head: str, hidden: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """One head's scores for each text of a batch."""
    if head == "vector":
        return list(albert._pool(hidden, lengths, "mean"))
    weight, bias = albert.heads[head]
    if head in ("tag", "answer"):
        return [row[:length] @ weight.T + bias for row, length in zip(hidden, lengths, strict=True)]
    if albert.meta.details.get("reads") == "vector":  # a head on frozen sentence vectors
        vectors = albert._pool(hidden, lengths, albert.meta.pooling)
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return list(vectors @ weight.T + bias)
    return list(albert._pool(hidden, lengths, "pooler") @ weight.T + bias)


def listed(texts: str | Iterable[str]) -> tuple[list[str], bool]:
    """Texts as a list, and whether it was a single one."""
    if isinstance(texts, str):
        return [texts], True
    from albertkit.runtime.albert import windows

    return [text for window in windows(texts) for text in window], False  # which checks every one
