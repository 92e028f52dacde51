"""The report of a fine-tuning: metrics, a picture, the worst errors, time and memory.

In: the finished run. Out: `report.md`; for classes `confusion.png` and `reliability.png`, for numbers `values.png`. No torch here.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from albertkit.artifact import Artifact
from albertkit.tasks.classify import OUT_OF_SCOPE, ClassifyTask

WORST = 20
WIDE = 8  # metrics side by side; the rest stand below each other


class EvaluatedRun(Protocol):
    """What a report tells of: a `FinetuneTask`, or a head on frozen vectors."""

    @property
    def features(self) -> Sequence[Any]:
        """What was learnt from."""

    @property
    def dev(self) -> Sequence[Any]:
        """What was held out."""

    @property
    def task(self) -> Any:
        """What it was about."""

    @property
    def results(self) -> Sequence[Any]:
        """What is said of each held-out example."""

    @property
    def last_scores(self) -> Sequence[Any]:
        """And with which scores."""


def write_report(output: Path, work: EvaluatedRun, artifact: Artifact, runs: list[dict[str, Any]]) -> Path:
    """Write the report beside the model."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)
    lines = ["# Report", "", f"Task: {artifact.meta.task}. {len(work.features):,} inputs to learn from, "
             f"{len(work.dev):,} examples held out. Peak memory {peak:,.0f} MB.", ""]  # fmt: skip
    lines += scores_of(runs)
    failed = next((run["failed"] for run in runs if run.get("failed")), None)
    if failed:
        lines += [
            f"**Collapsed:** {failed}, after the last new start too. "
            "Give more examples or epochs, a lower rate, or learn a head alone (`--freeze`).",
            "",
        ]
    spread = artifact.meta.metrics.get("dev over seeds")
    if spread:
        shown = ", ".join(
            f"{name} {mean:.4f} ± {spread[name][1]:.4f}" for name, (mean, _) in list(spread.items())[:WIDE]
        )
        lines += [f"Over {len(runs)} seeds: {shown}.", ""]
    at = artifact.meta.metrics.get("dev at depth")
    if at:
        lines += ["| depth | " + " | ".join(at) + " |", "|---" * (len(at) + 1) + "|",
                  "| score | " + " | ".join(f"{value:.4f}" for value in at.values()) + " |", ""]  # fmt: skip
    if len(work.dev):
        if isinstance(work.task, ClassifyTask):
            lines += pictures(output, work, float(artifact.meta.details.get("temperature", 1.0)))
        if work.task.has_correct_results:
            lines += worst(work)
    (output / "report.md").write_text("\n".join(lines), encoding="utf-8")
    return output / "report.md"


def scores_of(runs: list[dict[str, Any]]) -> list[str]:
    """The metrics of each run as a table; where there are many, those of the best run below each other."""
    names = [name for name in runs[0]["metrics"] if "_at_" not in name]
    if not names:
        return []
    some = names[:WIDE]
    lines = ["| seed | rate | " + " | ".join(some) + " | seconds | collapsed before |", "|---" * (len(some) + 4) + "|"]
    for run in runs:
        scores = " | ".join(f"{run['metrics'][name]:.4f}" for name in some)
        rate = f"{run['rate']:g}" if "rate" in run else "-"
        lines.append(f"| {run['seed']} | {rate} | {scores} | {run['seconds']:.0f} | {run['collapsed']} |")
    lines.append("")
    if len(names) > WIDE:
        lines += [
            "| metric | " + " | ".join(f"seed {run['seed']}" for run in runs) + " |",
            "|---" * (len(runs) + 1) + "|",
        ]
        lines += [
            f"| {n} | " + " | ".join(f"{run['metrics'].get(n, 0.0):.4f}" for run in runs) + " |" for n in names[WIDE:]
        ]
        lines.append("")
    return lines


def worst(work: EvaluatedRun) -> list[str]:
    """The errors the model was surest of, as a table."""
    rows = []
    for example, result in zip(work.dev, work.results, strict=True):
        right, found = truth(example), said(result)
        if hasattr(example, "spans") and not hasattr(result, "intent"):  # entities alone were asked for
            right = None, right[1]
        if right is not None and right != found:
            rows.append((sureness(example, result), example, readable(right, example), readable(found, example)))
    rows.sort(key=lambda row: -row[0])
    if not rows:
        return ["No errors on the held-out examples.", ""]
    lines = [
        f"## The {min(WORST, len(rows))} worst of {len(rows)} errors",
        "",
        "| sure | right | found | text |",
        "|---|---|---|---|",
    ]
    for sure, example, right, found in rows[:WORST]:
        text = next((getattr(example, n) for n in ("text", "question", "user") if hasattr(example, n)), "")
        second = getattr(example, "pair", None)
        shown = f"{text} ⟂ {second}" if second else text
        lines.append(f"| {sure:.2f} | {cell(right)} | {cell(found)} | {cell(shown, 160)} |")
    return [*lines, ""]


def readable(value: Any, example: Any) -> Any:
    """What is right or was said, for people: words instead of the numbers of characters or choices."""
    if hasattr(example, "choices"):
        return example.choices[value]
    if not hasattr(example, "spans"):
        return ", ".join(value) or "none" if isinstance(value, tuple) else value
    intent, spans = value
    shown = ", ".join(f"{label}: {example.text[start:end]}" for start, end, label in spans) or "no entity"
    return shown if intent is None else f"{intent}; {shown}"


def cell(value: Any, most: int = 60) -> str:
    """Something in a table's cell."""
    text = str(value).replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= most else text[: most - 1] + "…"


def truth(example: Any) -> Any:
    """What is right, in a form that compares with `said`."""
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


def said(result: Any) -> Any:
    """What the model said."""
    if hasattr(result, "spans"):
        return getattr(result, "intent", None), tuple((s.start, s.end, s.label) for s in result.spans)
    if hasattr(result, "index"):
        return result.index
    if hasattr(result, "goal"):
        return result.goal
    if hasattr(result, "label"):
        return round(result.label, 2) if isinstance(result.label, float) else result.label
    return result.text


def sureness(example: Any, result: Any) -> float:
    """How wrong it is: the probability of what was said, or the distance of a value."""
    if isinstance(getattr(result, "label", None), float):
        return abs(result.label - float(example.label))
    if hasattr(result, "index"):
        return float(result.probabilities[result.index])
    if hasattr(result, "spans") and not hasattr(result, "intent"):
        return max((float(span.score) for span in result.spans), default=0.0)
    return float(getattr(result, "probability", 1.0) or 0.0)


def pictures(output: Path, work: EvaluatedRun, temperature: float) -> list[str]:
    """What a picture says best: which classes are taken for which, how far probabilities can be trusted, or values beside right ones.

    Nothing where matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    drawn: list[tuple[Callable[[Any], None], str, str]] = []
    if work.task.kind == "regression":
        drawn.append((lambda axes: draw_values(axes, work), "values", "values found beside right ones"))
    else:
        if work.task.kind == "single":
            drawn.append((lambda axes: draw_confusion(axes, work), "confusion", "which classes are taken for which"))
        drawn.append(
            (lambda axes: draw_trust(axes, work, temperature), "reliability", "how far probabilities can be trusted")
        )
    for draw, name, _ in drawn:
        figure = Figure(figsize=(4.5, 4), layout="constrained")
        draw(figure.subplots())
        figure.savefig(output / f"{name}.png", dpi=110)
    return [" ".join(f"![{what}]({name}.png)" for _, name, what in drawn), ""]


def draw_confusion(axes: Any, work: EvaluatedRun) -> None:
    """Rows are right classes, columns those found; names and numbers where there is room."""
    labels = list(work.task.labels)
    if OUT_OF_SCOPE not in labels and any(example.label == OUT_OF_SCOPE for example in work.dev):
        labels.append(OUT_OF_SCOPE)
    names = {label: i for i, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)))
    for example, result in zip(work.dev, work.results, strict=True):
        if str(example.label) in names and result.label in names:
            table[names[str(example.label)], names[result.label]] += 1
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("found")
    axes.set_ylabel("right")
    if len(labels) <= 20:
        axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
        axes.set_yticks(range(len(labels)), labels, fontsize=7)
    if len(labels) <= 10:
        for (i, j), n in np.ndenumerate(table):
            color = "white" if shares[i, j] > 0.6 else "black"
            axes.text(j, i, str(int(n)), ha="center", va="center", fontsize=7, color=color)


def draw_trust(axes: Any, work: EvaluatedRun, temperature: float) -> None:
    """Of answers given with a probability, the share that is right: on the diagonal where probabilities mean what they say."""
    known = [i for i, example in enumerate(work.dev) if work.task.has_known_label(example)]
    targets = np.array([work.task.target(work.dev[i]) for i in known])
    scores = np.stack(work.last_scores).astype(np.float64)[known]
    for name, scale in (("as trained", 1.0), (f"calibrated, T = {temperature:.2f}", temperature)):
        chances = replace(work.task, temperature=scale).probabilities(scores)
        if work.task.kind == "multi":  # every class of every text
            sure, right = chances.ravel(), targets.ravel().astype(float)
        else:
            sure, right = chances.max(1), (chances.argmax(1) == targets).astype(float)
        bins = np.clip((sure * 10).astype(int), 0, 9)
        points = [(sure[bins == b].mean(), right[bins == b].mean()) for b in range(10) if (bins == b).sum() >= 5]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", ms=3, label=name)
            axes.legend(fontsize=7)
    axes.plot([0, 1], [0, 1], "k:", lw=1)
    axes.set_xlabel("probability given")
    axes.set_ylabel("share that is right")


def draw_values(axes: Any, work: EvaluatedRun) -> None:
    """A point for each held-out example."""
    right = [work.task.numeric_label(example) for example in work.dev]
    axes.plot(right, [result.label for result in work.results], "o", ms=3, alpha=0.5)
    axes.plot([min(right), max(right)], [min(right), max(right)], "k:", lw=1)
    axes.set_xlabel("right")
    axes.set_ylabel("found")
