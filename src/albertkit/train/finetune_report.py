"""The result of fine-tuning and its report: metrics, the worst errors, time and memory. No torch here.

In: the finished run. Out: `report.md`, and `confusion.png` for texts of one class each. Before this file:
`finetune_runs.py` and `frozen_head.py`, which train.
"""

from __future__ import annotations

import dataclasses
import math
import resource
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.artifact import Artifact
from albertkit.tasks.classify import OUT_OF_SCOPE, ClassifyTask
from albertkit.tasks.confidence import prediction_of
from albertkit.tasks.examples import ChoiceExample, Example, TaggedExample

FEW_DEV_EXAMPLES = 30  # with 30, chance alone moves an accuracy near 90 % by 11 points, and one example by 3
MAX_ERRORS = 20
MAX_COLUMNS = 8  # metrics in the line of mean and spread over seeds
CHINESE_FONTS = (
    "Noto Sans CJK SC", "Source Han Sans SC", "PingFang SC", "Microsoft YaHei", "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei", "SimHei",
)  # fmt: skip


class SmallDevSetWarning(UserWarning):
    """There are so few held-out examples that the scores of a training are not reliable.

    >>> from albertkit import SmallDevSetWarning
    >>> import warnings
    >>> warnings.simplefilter("ignore", SmallDevSetWarning)
    >>> warnings.simplefilter("default", SmallDevSetWarning)
    """


@dataclass(frozen=True)
class FinetuneResult:
    """The result of fine-tuning: the model folder, its metrics and all runs.

    >>> from albertkit import finetune
    >>> result = finetune("classify", "train.tsv", "dev.tsv", output="sentiment")  # doctest: +SKIP
    >>> result.metrics["accuracy"]  # doctest: +SKIP
    """

    model: Path
    metrics: dict[str, float]
    runs: list[dict[str, Any]]
    """Seed, metrics, seconds and number of collapses of each run."""
    dev_examples: int = 0
    """Number of held-out examples, of which the metrics are."""


@dataclass(frozen=True)
class EvaluatedRun:
    """The content of a report: the predictions of a finished run for held-out examples."""

    features: Sequence[Any]  # the training inputs
    dev: Sequence[Any]
    task: Any
    results: Sequence[Any]  # one for each held-out example


def write_report(output: Path, run: EvaluatedRun, artifact: Artifact, runs: list[dict[str, Any]]) -> Path:
    """Write the report beside the model."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)
    sizes = f"{len(run.features):,} training inputs, {len(run.dev):,} examples held out"
    lines = ["# Report", "", f"Task: {artifact.metadata.task}. {sizes}. Peak memory {peak:,.0f} MB.", ""]
    if 0 < len(run.dev) < FEW_DEV_EXAMPLES:
        lines += [f"**Unreliable:** {describe_few(len(run.dev))}", ""]
    lines += metrics_table(runs)
    failed = next((run for run in runs if run.get("failed")), None)
    if failed:
        lines += [f"**{failed['failure'].capitalize()}:** {failed['failed']}. {failed['remedy']}", ""]
    spread = artifact.metadata.metrics.get("dev over seeds")
    if spread:
        columns = list(spread.items())[:MAX_COLUMNS]
        shown = ", ".join(f"{name} {mean:.4f} ± {deviation:.4f}" for name, (mean, deviation) in columns)
        lines += [f"Over {len(runs)} seeds: {shown}.", ""]
    by_depth = artifact.metadata.metrics.get("dev at depth")
    if by_depth:
        lines += table(["depth", *by_depth], [["score", *(f"{value:.4f}" for value in by_depth.values())]])
    if len(run.dev):
        if isinstance(run.task, ClassifyTask) and run.task.kind == "single":
            lines += draw_confusion(output / "confusion.png", run)
        if run.task.has_correct_results:
            lines += errors_table(run)
    (output / "report.md").write_text("\n".join(lines), encoding="utf-8")
    return output / "report.md"


def describe_few(count: int) -> str:
    """What a score of few held-out examples means."""
    subject = "1 held-out example" if count == 1 else f"{count} held-out examples"
    return (
        f"the scores are those of {subject}, and fewer than {FEW_DEV_EXAMPLES} are not reliable: other examples may "
        f"give an accuracy that is {error_points(count):.0f} points higher or lower. Pass more with --dev."
    )


def error_points(count: int) -> float:
    """Half of the 95 % interval of an accuracy near 90 %, in points (normal approximation)."""
    return 100 * 1.96 * math.sqrt(0.9 * 0.1 / count)


def warn_of_few(count: int) -> None:
    """Warn if there are too few held-out examples for reliable scores."""
    if 0 < count < FEW_DEV_EXAMPLES:
        warnings.warn(describe_few(count), SmallDevSetWarning, stacklevel=3)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, and an empty line."""
    return [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {' | '.join(row)} |" for row in rows), ""]


def metrics_table(runs: list[dict[str, Any]]) -> list[str]:
    """One column per run: its seed, learning rate, metrics, time and collapses."""
    names = [name for name in runs[0]["metrics"] if "_at_" not in name]
    rows = [["learning rate", *(f"{run['rate']:g}" if "rate" in run else "-" for run in runs)]]
    rows += [[name, *(f"{run['metrics'].get(name, 0.0):.4f}" for run in runs)] for name in names]
    rows += [["seconds", *(f"{run['seconds']:.0f}" for run in runs)]]
    rows += [["collapses", *(str(run["collapsed"]) for run in runs)]]
    return table(["", *(f"seed {run['seed']}" for run in runs)], rows) if names else []


def errors_table(run: EvaluatedRun) -> list[str]:
    """A table of the errors with the highest confidence."""
    rows = []
    for example, result in zip(run.dev, run.results, strict=True):
        if isinstance(example, TaggedExample) and not hasattr(result, "intent"):  # a task of entities only
            example = dataclasses.replace(example, intent=None)
        correct, predicted = correct_answer(example), prediction_of(result, digits=2)
        if correct is not None and correct != predicted:
            answers = (_format_answer(correct, example), _format_answer(predicted, example))
            rows.append((_error_severity(example, result), example, *answers))
    rows.sort(key=lambda row: -row[0])
    if not rows:
        return ["No errors on the held-out examples.", ""]
    cells = []
    for confidence, example, correct, predicted in rows[:MAX_ERRORS]:
        text = next((getattr(example, n) for n in ("text", "question", "user") if hasattr(example, n)), "")
        second = getattr(example, "pair", None)
        shown = f"{text} ⟂ {second}" if second else text
        cells.append([f"{confidence:.2f}", _cell(correct), _cell(predicted), _cell(shown, 160)])
    title = f"## The {len(cells)} worst of {len(rows)} errors"
    return [title, "", *table(["confidence", "correct", "predicted", "text"], cells)]


def _format_answer(value: Any, example: Any) -> Any:
    """An answer as text instead of character offsets or the number of a choice."""
    if hasattr(example, "choices"):
        return example.choices[value]
    if not hasattr(example, "spans"):
        return ", ".join(value) or "none" if isinstance(value, tuple) else value
    intent, spans = value
    shown = ", ".join(f"{label}: {example.text[start:end]}" for start, end, label in spans) or "no entity"
    return shown if intent is None else f"{intent}; {shown}"


def _cell(value: object, limit: int = 60) -> str:
    text = str(value).replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def correct_answer(example: Example) -> object:
    """The label of an example, in a form that compares with `prediction_of`."""
    if isinstance(example, TaggedExample):
        return example.intent, tuple((s.start, s.end, s.label) for s in example.spans)
    if hasattr(example, "answers"):
        return example.answers[0][1] if example.answers else ""
    if isinstance(example, ChoiceExample):
        return example.answer
    if hasattr(example, "target"):
        return example.target
    if hasattr(example, "state"):
        return dict(example.state)
    label = getattr(example, "label", None)
    if isinstance(label, float):
        return round(label, 2)
    return tuple(sorted(label)) if isinstance(label, tuple) else label


def _error_severity(example: Any, result: Any) -> float:
    """The probability of the prediction, or the distance of a value."""
    if isinstance(getattr(result, "label", None), float):
        return abs(float(result.label) - float(example.label))
    if hasattr(result, "index"):
        return float(result.probabilities[result.index])
    if hasattr(result, "spans") and not hasattr(result, "intent"):
        return max((float(span.score) for span in result.spans), default=0.0)
    return float(getattr(result, "probability", 1.0) or 0.0)


def draw_confusion(path: Path, run: EvaluatedRun) -> list[str]:
    """Plot the confusion matrix: rows are correct classes, columns predicted ones. Needs matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    labels = list(run.task.labels)
    if OUT_OF_SCOPE not in labels and any(example.label == OUT_OF_SCOPE for example in run.dev):
        labels.append(OUT_OF_SCOPE)
    names = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)))
    for example, result in zip(run.dev, run.results, strict=True):
        if str(example.label) in names and result.label in names:
            counts[names[str(example.label)], names[result.label]] += 1
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure = Figure(figsize=(4.5, 4), layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted")
    axes.set_ylabel("correct")
    font, caption = _tick_font(labels), []
    if len(labels) <= 20:  # there is room for names
        names_shown = labels if font else [str(number) for number in range(1, len(labels) + 1)]
        axes.set_xticks(range(len(labels)), names_shown, rotation=90, fontsize=7, fontfamily=font)
        axes.set_yticks(range(len(labels)), names_shown, fontsize=7, fontfamily=font)
        if not font:
            caption = [" · ".join(f"{number} {label}" for number, label in enumerate(labels, 1)), ""]
    if len(labels) <= 10:  # and for numbers
        for (i, j), n in np.ndenumerate(counts):
            color = "white" if shares[i, j] > 0.6 else "black"
            axes.text(j, i, str(int(n)), ha="center", va="center", fontsize=7, color=color)
    figure.savefig(path, dpi=110)
    return [f"![confusion of classes]({path.name})", "", *caption]


def _tick_font(labels: Sequence[str]) -> str | None:
    """An installed font with the characters of the labels; None if there is none for Chinese."""
    from matplotlib import font_manager

    if all(ord(character) < 0x2E80 for label in labels for character in label):
        return "sans-serif"
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return next((font for font in CHINESE_FONTS if font in installed), None)
