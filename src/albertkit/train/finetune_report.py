"""The result of a fine-tuning, and its report: metrics, plots, the worst errors, time and memory. No torch here.

In: the finished run. Out: `report.md`; for classes `confusion.png` and `reliability.png`, for values `values.png`.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from albertkit.artifact import Artifact
from albertkit.tasks.classify import OUT_OF_SCOPE, ClassifyTask

MAX_ERRORS = 20
MAX_COLUMNS = 8  # metrics side by side; the others are rows


@dataclass(frozen=True)
class FinetuneResult:
    """How a fine-tuning ended."""

    model: Path
    metrics: dict[str, float]
    runs: list[dict[str, Any]]
    """Seed, metrics, seconds and number of collapses of each run."""


class EvaluatedRun(Protocol):
    """What a report describes: a `FinetuneTask`, or a head on frozen vectors."""

    @property
    def features(self) -> Sequence[Any]:
        """The training inputs."""

    @property
    def dev(self) -> Sequence[Any]:
        """The held-out examples."""

    @property
    def task(self) -> Any:
        """The task."""

    @property
    def results(self) -> Sequence[Any]:
        """The result of each held-out example."""

    @property
    def last_scores(self) -> Sequence[Any]:
        """The scores of each held-out input."""


def write_report(output: Path, run: EvaluatedRun, artifact: Artifact, runs: list[dict[str, Any]]) -> Path:
    """Write the report beside the model."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)
    lines = ["# Report", "", f"Task: {artifact.metadata.task}. {len(run.features):,} training inputs, "
             f"{len(run.dev):,} examples held out. Peak memory {peak:,.0f} MB.", ""]  # fmt: skip
    lines += metrics_table(runs)
    failed = next((run["failed"] for run in runs if run.get("failed")), None)
    if failed:
        lines += [
            f"**Collapsed:** {failed}, also after the last restart. "
            "Pass more examples or epochs, a lower learning rate, or train a head only (`--freeze`).",
            "",
        ]
    spread = artifact.metadata.metrics.get("dev over seeds")
    if spread:
        shown = ", ".join(
            f"{name} {mean:.4f} ± {spread[name][1]:.4f}" for name, (mean, _) in list(spread.items())[:MAX_COLUMNS]
        )
        lines += [f"Over {len(runs)} seeds: {shown}.", ""]
    at = artifact.metadata.metrics.get("dev at depth")
    if at:
        lines += ["| depth | " + " | ".join(at) + " |", "|---" * (len(at) + 1) + "|",
                  "| score | " + " | ".join(f"{value:.4f}" for value in at.values()) + " |", ""]  # fmt: skip
    if len(run.dev):
        if isinstance(run.task, ClassifyTask):
            lines += draw_plots(output, run, float(artifact.metadata.details.get("temperature", 1.0)))
        if run.task.has_correct_results:
            lines += errors_table(run)
    (output / "report.md").write_text("\n".join(lines), encoding="utf-8")
    return output / "report.md"


def metrics_table(runs: list[dict[str, Any]]) -> list[str]:
    """A table of the metrics of each run; further metrics have a row each."""
    names = [name for name in runs[0]["metrics"] if "_at_" not in name]
    if not names:
        return []
    some = names[:MAX_COLUMNS]
    lines = [
        "| seed | learning rate | " + " | ".join(some) + " | seconds | collapses |",
        "|---" * (len(some) + 4) + "|",
    ]
    for run in runs:
        scores = " | ".join(f"{run['metrics'][name]:.4f}" for name in some)
        rate = f"{run['rate']:g}" if "rate" in run else "-"
        lines.append(f"| {run['seed']} | {rate} | {scores} | {run['seconds']:.0f} | {run['collapsed']} |")
    lines.append("")
    if len(names) > MAX_COLUMNS:
        lines += [
            "| metric | " + " | ".join(f"seed {run['seed']}" for run in runs) + " |",
            "|---" * (len(runs) + 1) + "|",
        ]
        lines += [
            f"| {n} | " + " | ".join(f"{run['metrics'].get(n, 0.0):.4f}" for run in runs) + " |"
            for n in names[MAX_COLUMNS:]
        ]
        lines.append("")
    return lines


def errors_table(run: EvaluatedRun) -> list[str]:
    """A table of the errors with the highest confidence."""
    rows = []
    for example, result in zip(run.dev, run.results, strict=True):
        correct, predicted = correct_answer(example), predicted_answer(result)
        if hasattr(example, "spans") and not hasattr(result, "intent"):  # a task of entities only
            correct = None, correct[1]
        if correct is not None and correct != predicted:
            answers = (_readable(correct, example), _readable(predicted, example))
            rows.append((_error_size(example, result), example, *answers))
    rows.sort(key=lambda row: -row[0])
    if not rows:
        return ["No errors on the held-out examples.", ""]
    lines = [
        f"## The {min(MAX_ERRORS, len(rows))} worst of {len(rows)} errors",
        "",
        "| confidence | correct | predicted | text |",
        "|---|---|---|---|",
    ]
    for confidence, example, correct, predicted in rows[:MAX_ERRORS]:
        text = next((getattr(example, n) for n in ("text", "question", "user") if hasattr(example, n)), "")
        second = getattr(example, "pair", None)
        shown = f"{text} ⟂ {second}" if second else text
        lines.append(f"| {confidence:.2f} | {_cell(correct)} | {_cell(predicted)} | {_cell(shown, 160)} |")
    return [*lines, ""]


def _readable(value: Any, example: Any) -> Any:
    """An answer as text instead of character offsets or the number of a choice."""
    if hasattr(example, "choices"):
        return example.choices[value]
    if not hasattr(example, "spans"):
        return ", ".join(value) or "none" if isinstance(value, tuple) else value
    intent, spans = value
    shown = ", ".join(f"{label}: {example.text[start:end]}" for start, end, label in spans) or "no entity"
    return shown if intent is None else f"{intent}; {shown}"


def _cell(value: object, most: int = 60) -> str:
    text = str(value).replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= most else text[: most - 1] + "…"


def correct_answer(example: Any) -> Any:
    """The label of an example, in a form that compares with `predicted_answer`."""
    if hasattr(example, "spans"):
        return example.intent, tuple((s.start, s.end, s.label) for s in example.spans)
    if hasattr(example, "answers"):
        return example.answers[0][1] if example.answers else ""
    if hasattr(example, "choices"):
        return example.answer
    if hasattr(example, "target"):
        return example.target
    if hasattr(example, "state"):
        return dict(example.state)
    label = example.label
    return round(label, 2) if isinstance(label, float) else tuple(sorted(label)) if isinstance(label, tuple) else label


def predicted_answer(result: Any) -> Any:
    """The prediction of a result, without its confidence."""
    if hasattr(result, "spans"):
        return getattr(result, "intent", None), tuple((s.start, s.end, s.label) for s in result.spans)
    if hasattr(result, "index"):
        return result.index
    if hasattr(result, "goal"):
        return result.goal
    if hasattr(result, "label"):
        return round(result.label, 2) if isinstance(result.label, float) else result.label
    return result.text


def _error_size(example: Any, result: Any) -> float:
    """The probability of the prediction, or the distance of a value."""
    if isinstance(getattr(result, "label", None), float):
        return abs(result.label - float(example.label))
    if hasattr(result, "index"):
        return float(result.probabilities[result.index])
    if hasattr(result, "spans") and not hasattr(result, "intent"):
        return max((float(span.score) for span in result.spans), default=0.0)
    return float(getattr(result, "probability", 1.0) or 0.0)


def draw_plots(output: Path, run: EvaluatedRun, temperature: float) -> list[str]:
    """Plot the confusion of classes and the reliability of probabilities, or values; nothing without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    plots: dict[str, tuple[str, Callable[[Any], None]]] = {}
    if run.task.kind == "regression":
        plots["values"] = "predicted and correct values", lambda axes: _draw_values(axes, run)
    else:
        if run.task.kind == "single":
            plots["confusion"] = "confusion of classes", lambda axes: _draw_confusion(axes, run)
        plots["reliability"] = "reliability of probabilities", lambda axes: _draw_reliability(axes, run, temperature)
    for name, (_, draw) in plots.items():
        figure = Figure(figsize=(4.5, 4), layout="constrained")
        draw(figure.subplots())
        figure.savefig(output / f"{name}.png", dpi=110)
    return [" ".join(f"![{title}]({name}.png)" for name, (title, _) in plots.items()), ""]


def _draw_confusion(axes: Any, run: EvaluatedRun) -> None:
    """Rows are correct classes, columns predicted ones; names and numbers where there is room."""
    labels = list(run.task.labels)
    if OUT_OF_SCOPE not in labels and any(example.label == OUT_OF_SCOPE for example in run.dev):
        labels.append(OUT_OF_SCOPE)
    names = {label: i for i, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)))
    for example, result in zip(run.dev, run.results, strict=True):
        if str(example.label) in names and result.label in names:
            table[names[str(example.label)], names[result.label]] += 1
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted")
    axes.set_ylabel("correct")
    if len(labels) <= 20:
        axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
        axes.set_yticks(range(len(labels)), labels, fontsize=7)
    if len(labels) <= 10:
        for (i, j), n in np.ndenumerate(table):
            color = "white" if shares[i, j] > 0.6 else "black"
            axes.text(j, i, str(int(n)), ha="center", va="center", fontsize=7, color=color)


def _draw_reliability(axes: Any, run: EvaluatedRun, temperature: float) -> None:
    """The accuracy of predictions by their probability: on the diagonal if calibrated."""
    known = [i for i, example in enumerate(run.dev) if run.task.has_known_label(example)]
    targets = np.array([run.task.target(run.dev[i]) for i in known])
    scores = np.stack(run.last_scores).astype(np.float64)[known]
    for name, scale in (("as trained", 1.0), (f"calibrated, T = {temperature:.2f}", temperature)):
        probabilities = replace(run.task, temperature=scale).probabilities(scores)
        if run.task.kind == "multi":  # every class of every text
            confidence, is_correct = probabilities.ravel(), targets.ravel().astype(float)
        else:
            confidence, is_correct = probabilities.max(1), (probabilities.argmax(1) == targets).astype(float)
        bins = np.clip((confidence * 10).astype(int), 0, 9)
        points = [
            (confidence[bins == b].mean(), is_correct[bins == b].mean()) for b in range(10) if (bins == b).sum() >= 5
        ]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", ms=3, label=name)
            axes.legend(fontsize=7)
    axes.plot([0, 1], [0, 1], "k:", lw=1)
    axes.set_xlabel("predicted probability")
    axes.set_ylabel("accuracy")


def _draw_values(axes: Any, run: EvaluatedRun) -> None:
    """A point for each held-out example."""
    correct = [run.task.numeric_label(example) for example in run.dev]
    axes.plot(correct, [result.label for result in run.results], "o", ms=3, alpha=0.5)
    axes.plot([min(correct), max(correct)], [min(correct), max(correct)], "k:", lw=1)
    axes.set_xlabel("correct")
    axes.set_ylabel("predicted")
