"""Task results without torch: examples to features, features through the engine and a head, scores to results.

In: a fine-tuned `RuntimeModel`, and examples. Out: the task's results. Training uses the same code of `tasks/`.
Before this file: `embed.py` pools. After it: `albert.py`; the server calls `task_features` and `read_heads` around its
queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np

from albertkit.errors import AlbertkitError, check_finite
from albertkit.runtime.batching import token_batches
from albertkit.runtime.early_exit import EarlyExit, ExitStats, LayerWalk, exit_rule
from albertkit.runtime.embed import list_texts, pool, unit_length
from albertkit.runtime.runtime_model import RuntimeModel, check_trained_depth
from albertkit.tasks import TASKS
from albertkit.tasks.confidence import UncertaintyEstimator
from albertkit.tasks.examples import DialogueTurn, Example, TaggedExample, TextExample, split_words
from albertkit.tasks.tag import IntentResult
from albertkit.tasks.task import Feature
from albertkit.unreadable_text import find_unreadable, report_unreadable
from albertkit.weights import TOKEN_HEADS


class PredictKeywords(TypedDict, total=False):
    """The keywords of the task methods of `Albert`; each may be omitted."""

    depth: int | None
    """Layers to apply."""
    early_exit: EarlyExit
    """The early-exit rule: "99%" (or 0.99), "entropy:0.1", or "change:0.05" for values."""


def predict(
    model: RuntimeModel,
    examples: Sequence[Any],
    task: str,
    depth: int | None = None,
    early_exit: EarlyExit = None,
) -> list[Any]:
    """Results for examples, in their order; with `early_exit`, each result has the depth at which it exited."""
    check_task(model, task)
    if not examples:
        return []
    if task == "generate":
        from albertkit.runtime.generate import generate

        if early_exit is not None:
            raise AlbertkitError(
                "early_exit is not available: generation needs the full depth for every token. Omit it."
            )
        return list(generate(model, [example.source for example in examples], depth=depth))
    features = task_features(model, examples, task)
    if early_exit is None:
        return list(model.task.results(task_scores(model, features, depth), features, examples))
    stats = exit_scores(model, features, examples, early_exit, depth)
    results = model.task.results(stats.outputs, features, examples)
    for result, layers in zip(results, stats.depths.tolist(), strict=True):
        object.__setattr__(result, "depth", layers)  # results are frozen dataclasses
    return list(results)


def predict_intents(
    model: RuntimeModel, texts: str | Iterable[str], depth: int | None = None, early_exit: EarlyExit = None
) -> list[IntentResult]:
    """Intents and slots; a classifier returns intents without slots."""
    if model.metadata.task == "classify" and model.task.kind == "single":
        labels = predict(model, text_examples(texts), "classify", depth, early_exit)
        return [IntentResult.from_classification(label) for label in labels]
    return predict(model, word_examples(texts), "intent", depth, early_exit)


def check_task(model: RuntimeModel, task: str) -> None:
    """Raise if the model was fine-tuned for another task."""
    made = model.metadata.task
    if made != task:
        hint = f". Use {TASKS[made].usage}." if made in TASKS else ". Fine-tune it first."
        raise AlbertkitError(f"{task} is not available: this model was made for {made!r}{hint}")


def task_features(model: RuntimeModel, examples: Sequence[Any], task: str) -> list[Feature]:
    """The features of examples of a task. Raises if the model was made for another task."""
    check_task(model, task)
    check_pairs(model, examples)
    features = list(model.task.features(examples, model.tokenizer, model.max_task_tokens))
    unknown = model.tokenizer.unk_id
    places = sorted({f.example for f in features if unknown is None or unknown in f.ids})
    texts = [examples[place].joined_text() for place in places if isinstance(examples[place], Example)]
    found = find_unreadable(model.tokenizer, texts)
    report_unreadable(replace(found, total=len(examples)))
    return features


def check_pairs(model: RuntimeModel, examples: Sequence[Any]) -> None:
    """Raise if a classifier of pairs gets a single text: it would predict without having learnt to."""
    if model.metadata.task == "classify" and model.metadata.details.get("pairs"):
        single = next((e for e in examples if getattr(e, "pair", None) is None), None)
        if single is not None:
            raise AlbertkitError(
                f"{getattr(single, 'text', '')!r:.60} is a single text, but this model was trained on pairs of texts. "
                "Pass the second text too (--pair, or pairs in Python)."
            )


def task_depth(model: RuntimeModel, depth: int | None) -> int:
    """Layers to apply before the heads; a head on frozen sentence vectors supports trained depths only."""
    layers = model.layers_to_apply(depth)
    if reads_vectors(model):
        check_trained_depth(model.config, model.metadata, layers)
    return layers


def reads_vectors(model: RuntimeModel) -> bool:
    """Whether the head was trained on frozen sentence vectors."""
    return bool(model.metadata.details.get("reads") == "vector")


def task_scores(model: RuntimeModel, features: Sequence[Feature], depth: int | None = None) -> list[Any]:
    """The heads' scores for each feature: an array, or a tuple of arrays for a task of two heads."""
    found: list[Any] = [None] * len(features)
    layers = task_depth(model, depth)
    for batch in token_batches([f.ids for f in features], [f.segments for f in features], model.token_budget):
        scores = read_heads(model, model.engine.run(batch, layers), batch.lengths)
        for place, row in zip(batch.order, scores, strict=True):
            found[place] = row
    check_finite("scores", found)
    return found


def exit_scores(
    model: RuntimeModel,
    features: Sequence[Feature],
    examples: Sequence[Any],
    early_exit: EarlyExit,
    depth: int | None = None,
) -> ExitStats:
    """The heads' scores for each feature, at the depth where its example exited; `depths` are by example."""
    task = model.task
    task_depth(model, depth)  # raises if the depth is not available
    rule = exit_rule(model, early_exit, depth, task.uncertainty_measure)
    confidence = UncertaintyEstimator(task, features, examples)
    walk = LayerWalk(model, rule, lambda hidden, lengths: read_heads(model, hidden, lengths), confidence)
    stats = walk.run([f.ids for f in features], [f.segments for f in features])
    check_finite("scores", stats.outputs)
    if len(confidence.units) == len(examples):
        return stats
    deepest = np.zeros(len(examples), stats.depths.dtype)  # the two texts of a pair exit separately
    np.maximum.at(deepest, [f.example for f in features], stats.depths)
    return ExitStats(stats.outputs, deepest)


def read_heads(model: RuntimeModel, hidden: np.ndarray, lengths: np.ndarray) -> list[Any]:
    """Scores of each text of a batch from hidden states (texts, length, H); tuples for a task of two heads."""
    heads = model.task.heads
    for head in heads:
        if head != "vector" and head not in model.heads and head not in model.custom_heads:
            raise AlbertkitError(f"this model has no {head!r} head. Fine-tune it for the task first.")
    by_head = [head_scores(model, head, hidden, lengths) for head in heads]
    return by_head[0] if len(heads) == 1 else list(zip(*by_head, strict=True))


def head_scores(model: RuntimeModel, head: str, hidden: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """One head's scores for each text of a batch."""
    if head == "vector":
        return list(pool(model, hidden, lengths, "mean"))
    if head in model.custom_heads:
        rows = model.custom_heads[head].scores(hidden, lengths)
        return [row[:n] for row, n in zip(rows, lengths, strict=True)] if head in TOKEN_HEADS else list(rows)
    weight, bias = model.heads[head]
    if head in TOKEN_HEADS:
        scores = hidden.reshape(-1, hidden.shape[-1]) @ weight.T + bias  # one product for all texts
        by_text = scores.reshape(*hidden.shape[:2], -1)
        return [row[:length] for row, length in zip(by_text, lengths, strict=True)]
    if reads_vectors(model):
        return list(unit_length(pool(model, hidden, lengths, model.metadata.pooling)) @ weight.T + bias)
    pooling = "mean" if model.config.options.classifier == "mean" else "pooler"
    return list(pool(model, hidden, lengths, pooling) @ weight.T + bias)


# Texts to examples -----------------------------------------------------------------------------------------------


def text_examples(texts: str | Iterable[str], pairs: str | Iterable[str] | None = None) -> list[TextExample]:
    """Texts, or pairs of texts, to classify."""
    first = list_texts(texts)
    second: Sequence[str | None] = [None] * len(first) if pairs is None else list_texts(pairs)
    if len(second) != len(first):
        raise AlbertkitError(f"there are {len(first)} texts but {len(second)} pairs. Pass one pair for each text.")
    return [TextExample(a, b) for a, b in zip(first, second, strict=True)]


def word_examples(texts: str | Iterable[str]) -> list[TaggedExample]:
    return [TaggedExample(text, split_words(text)) for text in list_texts(texts)]


def dialogue_turns(turns: str | Iterable[str | tuple[str, str] | DialogueTurn]) -> list[DialogueTurn]:
    """Turns of dialogues; texts and pairs are numbered, as turns of one dialogue."""
    if isinstance(turns, str):
        return [DialogueTurn("", 0, "", turns)]
    if isinstance(turns, bytes | DialogueTurn) or not isinstance(turns, Iterable):
        raise AlbertkitError(f"turns is a {type(turns).__name__}. Pass the turns of a dialogue in a list, in order.")
    return [_turn(place, turn) for place, turn in enumerate(turns)]


def _turn(place: int, turn: str | tuple[str, str] | DialogueTurn) -> DialogueTurn:
    if isinstance(turn, DialogueTurn):
        return turn
    pair = ("", turn) if isinstance(turn, str) else turn
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise AlbertkitError(
            f"turn {place} is {turn!r:.60}. Pass the user's text, or a pair of the system's text and the user's text."
        )
    return DialogueTurn("", place, *pair)
