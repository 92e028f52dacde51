"""Task results without torch: examples to features, features through the engine and a head, scores to results.

In: a fine-tuned `RuntimeModel`, and examples. Out: the task's results. Training uses the same code of `tasks/`.
Before this file: `embed.py` pools. After it: `albert.py`; the server calls `task_features` and `read_heads` around its
queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypedDict

import numpy as np

from albertkit.errors import AlbertkitError, check_finite, type_with_article
from albertkit.input_warnings import InputProblems, find_problems, report_problems
from albertkit.runtime.batching import token_batches
from albertkit.runtime.early_exit import EarlyExit, EarlyExitRunner, ExitStats, exit_rule
from albertkit.runtime.embed import list_texts, pool, unit_length
from albertkit.runtime.packed_texts import OutputRequest, PackedOutputs, PackedTexts
from albertkit.runtime.runtime_model import Depth, RuntimeModel, check_trained_depth, is_full_depth_only
from albertkit.tasks import TASKS
from albertkit.tasks.confidence import UncertaintyEstimator
from albertkit.tasks.examples import DialogueTurn, Example, TaggedExample, TextExample, split_words
from albertkit.tasks.tag import IntentResult
from albertkit.tasks.task import Feature
from albertkit.weights import TOKEN_HEADS


class PredictKeywords(TypedDict, total=False):
    """The keywords of the task methods of `Albert`; each may be omitted."""

    depth: Depth | None
    """Layers to apply."""
    early_exit: EarlyExit
    """The early-exit rule: "99%" (or 0.99), "entropy:0.1", or "change:0.05" for values."""


def predict(
    model: RuntimeModel,
    examples: Sequence[Any],
    task: str,
    depth: Depth | None = None,
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
    report_untrained_depth(model, depth, early_exit)
    features = task_features(model, examples, task)
    if early_exit is None:
        return list(model.task.results(task_scores(model, features, depth), features, examples))
    stats = exit_scores(model, features, examples, early_exit, depth)
    results = model.task.results(stats.outputs, features, examples)
    for result, layers in zip(results, stats.depths.tolist(), strict=True):
        object.__setattr__(result, "depth", layers)  # results are frozen dataclasses
    return list(results)


def predict_intents(
    model: RuntimeModel, texts: str | Iterable[str], depth: Depth | None = None, early_exit: EarlyExit = None
) -> list[IntentResult]:
    """Intents and slots; a classifier returns intents without slots."""
    if model.metadata.task == "classify" and model.task.kind == "single":
        labels = predict(model, text_examples(texts), "classify", depth, early_exit)
        return [IntentResult.from_classification(label) for label in labels]
    return predict(model, word_examples(texts), "intent", depth, early_exit)


def check_task(model: RuntimeModel, task: str) -> None:
    """Raise if the model was fine-tuned for another task."""
    model_task = model.metadata.task
    if model_task != task:
        hint = f". Use {TASKS[model_task].usage}." if model_task in TASKS else ". Fine-tune it first."
        raise AlbertkitError(f"{task} is not available: this model was made for {model_task!r}{hint}")


def task_features(model: RuntimeModel, examples: Sequence[Any], task: str) -> list[Feature]:
    """The features of examples of a task. Raises if the model was made for another task."""
    check_task(model, task)
    check_pairs(model, examples)
    features = list(model.task.features(examples, model.tokenizer, model.max_task_tokens))
    unknown = model.tokenizer.unk_id
    indices = sorted({f.example for f in features if unknown is None or unknown in f.ids})
    texts = [examples[index].joined_text() for index in indices if isinstance(examples[index], Example)]
    problems = find_problems(model.tokenizer, texts)
    truncated = model.task.find_truncated(examples, features, model.tokenizer, model.max_task_tokens)
    blank = sum(isinstance(example, Example) and example.is_blank() for example in examples)
    problems = replace(problems, total=len(examples), truncated=len(truncated), blank=blank)
    report_problems(replace(problems, limit=model.task.text_room(model.max_task_tokens), longest=model.max_tokens))
    return features


def report_untrained_depth(model: RuntimeModel, depth: Depth | None, early_exit: EarlyExit = None) -> None:
    """Warn if a model that was fine-tuned at its full depth only predicts at others."""
    full = model.metadata.depth or model.config.num_hidden_layers
    has_rule = isinstance(early_exit, str) and ":" in early_exit  # thresholds that were calibrated are safe
    if (has_rule or model.layers_to_apply(depth) != full) and is_full_depth_only(model.metadata.history):
        report_problems(InputProblems(is_untrained_depth=True))


def check_pairs(model: RuntimeModel, examples: Sequence[Any]) -> None:
    """Raise if a classifier of pairs gets a single text, or one of texts a pair: it has not learnt to predict these."""
    pairs = model.metadata.details.get("pairs") if model.metadata.task == "classify" else None
    if pairs is None:
        return
    other = next((e for e in examples if (getattr(e, "pair", None) is not None) != pairs), None)
    if other is None:
        return
    shown = f"{getattr(other, 'text', '')!r:.60}"
    if pairs:
        raise AlbertkitError(
            f"{shown} is a single text, but this model was trained on pairs of texts. "
            "Pass the second text too (--pair, or pairs in Python)."
        )
    raise AlbertkitError(
        f"{shown} has a second text, but this model was trained on single texts. Omit --pair, or pairs in Python."
    )


def task_depth(model: RuntimeModel, depth: Depth | None) -> int:
    """Layers to apply before the heads; a head on frozen sentence vectors supports trained depths only."""
    layers = model.layers_to_apply(depth)
    if has_frozen_head(model):
        check_trained_depth(model.config, model.metadata, layers)
    return layers


def has_frozen_head(model: RuntimeModel) -> bool:
    """Whether the head was trained on frozen sentence vectors."""
    return bool(model.metadata.details.get("reads") == "vector")


def task_scores(model: RuntimeModel, features: Sequence[Feature], depth: Depth | None = None) -> list[Any]:
    """The heads' scores for each feature: an array, or a tuple of arrays for a task of two heads."""
    layers = task_depth(model, depth)
    if model.packed_outputs is not None and not model.custom_heads:  # these run on the CPU
        return packed_scores(model, model.packed_outputs, features, layers)
    all_scores: list[Any] = [None] * len(features)
    for batch in token_batches([f.ids for f in features], [f.segments for f in features], model.token_budget):
        scores = read_heads(model, model.engine.run(batch, layers), batch.lengths)
        for index, row in zip(batch.order, scores, strict=True):
            all_scores[index] = row
    check_finite("scores", all_scores)
    return all_scores


def exit_scores(
    model: RuntimeModel,
    features: Sequence[Feature],
    examples: Sequence[Any],
    early_exit: EarlyExit,
    depth: Depth | None = None,
) -> ExitStats:
    """The heads' scores for each feature, at the depth where its example exited; `depths` are by example."""
    task = model.task
    task_depth(model, depth)  # raises if the depth is not available
    rule = exit_rule(model, early_exit, depth, task.uncertainty_measure)
    confidence = UncertaintyEstimator(task, features, examples)
    runner = EarlyExitRunner(model, rule, lambda hidden, lengths: read_heads(model, hidden, lengths), confidence)
    stats = runner.run([f.ids for f in features], [f.segments for f in features])
    check_finite("scores", stats.outputs)
    if len(confidence.units) == len(examples):
        return stats
    deepest = np.zeros(len(examples), stats.depths.dtype)  # the two texts of a pair exit separately
    np.maximum.at(deepest, [f.example for f in features], stats.depths)
    return ExitStats(stats.outputs, deepest)


def read_heads(model: RuntimeModel, hidden: np.ndarray, lengths: np.ndarray) -> list[Any]:
    """Scores of each text of a batch from hidden states (texts, length, H); tuples for a task of two heads."""
    by_head = [head_scores(model, head, hidden, lengths) for head in task_heads(model)]
    return by_head[0] if len(by_head) == 1 else list(zip(*by_head, strict=True))


def task_heads(model: RuntimeModel) -> tuple[str, ...]:
    """The heads of the model's task. Raises if one is missing."""
    heads: tuple[str, ...] = model.task.heads
    for head in heads:
        if head != "vector" and head not in model.heads and head not in model.custom_heads:
            raise AlbertkitError(f"this model has no {head!r} head. Fine-tune it for the task first.")
    return heads


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
    return text_scores(model, head, pool(model, hidden, lengths, head_pooling(model)))


def head_pooling(model: RuntimeModel) -> str:
    """The vector that a head reads."""
    if has_frozen_head(model):
        return model.metadata.pooling
    return "mean" if model.config.options.classifier == "mean" else "pooler"


def text_scores(model: RuntimeModel, head: str, vectors: np.ndarray) -> list[np.ndarray]:
    """One head's scores for the vectors (texts, H) that it reads."""
    weight, bias = model.heads[head]
    return list((unit_length(vectors) if has_frozen_head(model) else vectors) @ weight.T + bias)


def packed_scores(model: RuntimeModel, outputs: PackedOutputs, features: Sequence[Feature], layers: int) -> list[Any]:
    """`task_scores` on a device."""
    if not features:
        return []
    texts = PackedTexts.of([f.ids for f in features], [f.segments for f in features])
    heads, by_head = task_heads(model), []
    for head, output in zip(heads, outputs(texts, layers, [head_request(model, head) for head in heads]), strict=True):
        if head == "vector":
            by_head.append(list(output))
        elif head in TOKEN_HEADS:
            by_head.append(np.split(output, texts.starts[1:]))
        else:
            by_head.append(text_scores(model, head, output))
    check_finite("scores", chain.from_iterable(by_head))
    return by_head[0] if len(by_head) == 1 else list(zip(*by_head, strict=True))


def head_request(model: RuntimeModel, head: str) -> OutputRequest:
    """What a device computes for a head: a tagger's scores, or the vector that another head reads."""
    if head == "vector":
        return OutputRequest("mean")
    return OutputRequest(None, *model.heads[head]) if head in TOKEN_HEADS else OutputRequest(head_pooling(model))


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
        raise AlbertkitError(f"turns is {type_with_article(turns)}. Pass the turns of a dialogue in a list, in order.")
    return [_turn(index, turn) for index, turn in enumerate(turns)]


def _turn(index: int, turn: str | tuple[str, str] | DialogueTurn) -> DialogueTurn:
    if isinstance(turn, DialogueTurn):
        return turn
    pair = ("", turn) if isinstance(turn, str) else turn
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise AlbertkitError(
            f"turn {index} is {turn!r:.60}. Pass the user's text, or a pair of the system's text and the user's text."
        )
    return DialogueTurn("", index, *pair)
