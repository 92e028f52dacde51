"""`evaluate`: a fine-tuned model and labelled examples → metrics, on the torch-free runtime.

In: a model and a file or list of examples. Out: `EvaluationResult`. Before this file: `runtime/predict.py` and
`tasks/`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError, need
from albertkit.runtime.early_exit import EarlyExit
from albertkit.runtime.predict import predict
from albertkit.tasks import TASKS
from albertkit.tasks.readers.read_examples import ReadOptions
from albertkit.tasks.validate import check_known_labels, read_parts


@dataclass(frozen=True)
class EvaluationResult:
    """The metrics of a model on labelled examples."""

    examples: int
    metrics: dict[str, float]


def evaluate(
    model: Albert | Path | str,
    test: Path | str | Sequence[Any],
    *,
    depth: int | None = None,
    early_exit: EarlyExit = None,
    options: ReadOptions | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> EvaluationResult:
    """Measure a fine-tuned model on labelled examples: a file, or a list of `albertkit.tasks.examples`.

    Example:

        evaluate("sentiment", "test.tsv").metrics["accuracy"]
    """
    albert = model if isinstance(model, Albert) else Albert(model)
    task, options = albert.metadata.task, options or ReadOptions()
    if task not in TASKS:
        raise AlbertkitError(f"{model} was made for {task!r}, which has no metrics. Fine-tune it for a task first.")
    if task == "generate":  # before the work, not after it
        need("rouge_score", "generate", "measuring generated texts")
        need("sacrebleu", "generate", "measuring generated texts")
    if task == "classify" and options.kind == "auto" and options.separator is None:
        options = dataclasses.replace(options, kind=albert.task.kind)
    examples = read_parts(task, {"test": test}, options, log)["test"]
    for text in check_known_labels(albert.task, examples):
        log(text)
    results = predict(albert, examples, task, depth, early_exit)
    metrics = dict(albert.task.measure(results, examples))
    if early_exit is not None and results:
        metrics["mean_depth"] = sum(result.depth for result in results) / len(results)
        metrics["speedup_in_layers"] = (depth or albert.depth) / metrics["mean_depth"]
    return EvaluationResult(len(examples), metrics)
