"""Task results without torch: examples to features, features through the engine and a head, scores to results.

In: an `Albert` whose model was fine-tuned, and examples. Out: the task's results. The same `tasks/` code trained it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.runtime.batching import token_batches
from albertkit.runtime.depths import check_trained_depth
from albertkit.tasks.examples import DialogueTurn
from albertkit.tasks.task import Feature

if TYPE_CHECKING:
    from albertkit.albert import Albert

VERBS = {  # what a model of each task can do, as messages name it
    "classify": "classify",
    "tag": "tag",
    "answer": "answer",
    "choose": "choose",
    "intent": "intent (in Python: understand)",
    "dialogue": "track",
    "match": "index (in Python: similarity)",
    "generate": "generate",
}


def predict(
    albert: Albert, examples: Sequence[Any], task: str, depth: int | None = None, early_exit: str | float | None = None
) -> list[Any]:
    """Results for examples, in their order; with `early_exit`, each leaves when it is sure, and says at which depth (`runtime/early_exit.py`)."""
    if task == "generate" == albert.meta.task:
        from albertkit.runtime.generate import write

        if early_exit is not None:
            raise AlbertkitError("a model that writes needs its full depth for every word; leave early_exit away")
        return list(write(albert, [example.source for example in examples], depth=depth))
    features = features_of(albert, examples, task)
    if early_exit is not None:
        from albertkit.runtime.early_exit import leave_task

        left = leave_task(albert, features, examples, early_exit, depth)
        results = albert.task.results(left.scores, features, examples)
        for result, layers in zip(results, left.depths.tolist(), strict=True):
            object.__setattr__(result, "depth", layers)  # fresh, and frozen for everybody else
        return list(results)
    found: list[Any] = albert.task.results(scores(albert, features, depth), features, examples)
    return found


def features_of(albert: Albert, examples: Sequence[Any], task: str) -> list[Feature]:
    """What the encoder reads for examples of a task; an error when the model was made for another one."""
    check_made(albert, task)
    length = min(int(albert.meta.details.get("max_length", albert.max_tokens)), albert.max_tokens)
    features: list[Feature] = albert.task.features(examples, albert.tokenizer, length)
    return features


def check_made(albert: Albert, task: str) -> None:
    """Refuse a model that was made for another task."""
    made = albert.meta.task
    if made != task:
        hint = f"; use {VERBS[made]}" if made in VERBS else "; fine-tune it first"
        raise AlbertkitError(f"this model was made for {made!r} and cannot do {task!r}{hint}")


def layers_of(albert: Albert, depth: int | None) -> int:
    """Layers to apply before the heads; a head on frozen sentence vectors reads those of taught depths only."""
    layers = albert._layers_to_apply(None, depth, "pooler")
    if albert.meta.details.get("reads") == "vector":
        check_trained_depth(albert.config, albert.meta, layers)
    return layers


def scores(albert: Albert, features: Sequence[Feature], depth: int | None = None) -> list[Any]:
    """The heads' scores for each feature: an array, or a tuple of arrays for a task of two heads."""
    found: list[Any] = [None] * len(features)
    layers = layers_of(albert, depth)
    for batch in token_batches([f.ids for f in features], [f.segments for f in features], albert.token_budget):
        by_text = read_heads(albert, albert.engine.run(batch, layers), batch.lengths)
        for at, place in enumerate(batch.order):
            found[place] = by_text[at]
    return found


def read_heads(albert: Albert, hidden: np.ndarray, lengths: np.ndarray) -> list[Any]:
    """The scores of each text of a batch, from its hidden states (texts, length, H); for a task of two heads, tuples."""
    heads = albert.task.head if isinstance(albert.task.head, tuple) else (albert.task.head,)
    for head in heads:
        if head != "vector" and head not in albert.heads:
            raise AlbertkitError(f"this model has no {head!r} head; fine-tune it for the task first")
    by_head = [_head(albert, head, hidden, lengths) for head in heads]
    return by_head[0] if len(heads) == 1 else list(zip(*by_head, strict=True))


def _head(albert: Albert, head: str, hidden: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """One head's scores for each text of a batch."""
    if head == "vector":
        return list(albert._pool(hidden, lengths, "mean"))
    weight, bias = albert.heads[head]
    if head in ("tag", "answer"):
        scores = hidden.reshape(-1, hidden.shape[-1]) @ weight.T + bias  # one product for all texts
        by_text = scores.reshape(*hidden.shape[:2], -1)
        return [row[:length] for row, length in zip(by_text, lengths, strict=True)]
    if albert.meta.details.get("reads") == "vector":  # a head on frozen sentence vectors
        vectors = albert._pool(hidden, lengths, albert.meta.pooling)
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return list(vectors @ weight.T + bias)
    how = "mean" if albert.config.options.classifier == "mean" else "pooler"
    return list(albert._pool(hidden, lengths, how) @ weight.T + bias)


def listed(texts: str | Iterable[str]) -> tuple[list[str], bool]:
    """Texts as a list, and whether it was a single one."""
    if isinstance(texts, str):
        return [texts], True
    from albertkit.albert import windows

    return [text for window in windows(texts) for text in window], False  # which checks every one


def turns_of(turns: str | Iterable[str | tuple[str, str] | DialogueTurn]) -> tuple[list[DialogueTurn], bool]:
    """Turns as a list, and whether it was a single text; texts and pairs are numbered, as turns of one dialogue."""
    if isinstance(turns, str):
        return [DialogueTurn("", 0, "", turns)], True
    if isinstance(turns, bytes | DialogueTurn) or not isinstance(turns, Iterable):
        raise AlbertkitError(
            f"turns is a {type(turns).__name__}; give the turns of a dialogue in a list, in their order"
        )
    return [_turn(place, turn) for place, turn in enumerate(turns)], False


def _turn(place: int, turn: Any) -> DialogueTurn:
    """A `DialogueTurn` from a user's words, or from what the system said and the user says."""
    if isinstance(turn, DialogueTurn):
        return turn
    pair = ("", turn) if isinstance(turn, str) else turn
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise AlbertkitError(
            f"turn {place} is {turn!r:.60}; a turn is what the user says, or a pair: what the system said and what the user says"
        )
    return DialogueTurn("", place, *pair)
