"""The report of a fine-tuning: metrics, a picture, the worst errors, time and memory.

In: the finished run. Out: `report.md`, and `confusion.png` and `reliability.png` for classes.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.artifact import Artifact
from albertkit.tasks.classify import Classify
from albertkit.train.finetune import Finetuning

WORST = 20


def write_report(out: Path, work: Finetuning, artifact: Artifact, runs: list[dict[str, Any]]) -> Path:
    """Write the report beside the model."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)
    lines = ["# Report", "", f"Task: {artifact.meta.task}. {len(work.features):,} inputs to learn from, "
             f"{len(work.dev):,} examples held out. Peak memory {peak:,.0f} MB.", ""]  # fmt: skip
    names = [name for name in runs[0]["metrics"] if "_at_" not in name]
    if names:
        lines += [
            "| seed | rate | " + " | ".join(names) + " | seconds | collapsed before |",
            "|---" * (len(names) + 4) + "|",
        ]
        for run in runs:
            scores = " | ".join(f"{run['metrics'][name]:.4f}" for name in names)
            lines.append(f"| {run['seed']} | {run['rate']:g} | {scores} | {run['seconds']:.0f} | {run['collapsed']} |")
        lines.append("")
    spread = artifact.meta.metrics.get("dev over seeds")
    if spread:
        shown = ", ".join(f"{name} {mean:.4f} ± {deviation:.4f}" for name, (mean, deviation) in spread.items())
        lines += [f"Over {len(runs)} seeds: {shown}.", ""]
    at = artifact.meta.metrics.get("dev at depth")
    if at:
        lines += ["| depth | " + " | ".join(at) + " |", "|---" * (len(at) + 1) + "|",
                  "| score | " + " | ".join(f"{value:.4f}" for value in at.values()) + " |", ""]  # fmt: skip
    if len(work.dev):
        if isinstance(work.task, Classify) and work.task.kind == "single":
            lines += pictures(out, work, float(artifact.meta.details.get("temperature", 1.0)))
        if artifact.meta.task not in ("match", "generate"):  # a cosine is not right or wrong, nor is a summary
            lines += worst(work)
    (out / "report.md").write_text("\n".join(lines), encoding="utf-8")
    return out / "report.md"


def worst(work: Finetuning) -> list[str]:
    """The errors the model was surest of, as a table."""
    rows = []
    for example, result in zip(work.dev, work.results, strict=True):
        right = truth(example)
        found = said(result)
        if right is not None and right != found:
            rows.append((sureness(example, result), example, right, found))
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


def cell(value: Any, most: int = 60) -> str:
    """Something in a table's cell."""
    text = str(value).replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= most else text[: most - 1] + "…"


def truth(example: Any) -> Any:
    """What is right, in a form that compares with `said`."""
    if hasattr(example, "spans"):
        return tuple((s.start, s.end, s.label) for s in example.spans)
    if hasattr(example, "answers"):
        return example.answers[0][1] if example.answers else ""
    if hasattr(example, "right"):
        return example.right
    if hasattr(example, "target"):
        return example.target
    if hasattr(example, "state"):
        return dict(example.state)
    label = example.label
    return round(label, 2) if isinstance(label, float) else tuple(sorted(label)) if isinstance(label, tuple) else label


def said(result: Any) -> Any:
    """What the model said."""
    if hasattr(result, "spans"):
        return tuple((s.start, s.end, s.label) for s in result.spans)
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
    return float(getattr(result, "probability", 1.0) or 0.0)


def pictures(out: Path, work: Finetuning, temperature: float) -> list[str]:
    """Confusion matrix and reliability plot; nothing where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    labels = list(work.task.labels)
    names = {label: i for i, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)))
    for example, result in zip(work.dev, work.results, strict=True):
        if str(example.label) in names and result.label in names:
            table[names[str(example.label)], names[result.label]] += 1
    figure = Figure(figsize=(4.5, 4), layout="constrained")
    axes = figure.subplots()
    axes.imshow(table / np.maximum(table.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("found")
    axes.set_ylabel("right")
    if len(labels) <= 20:
        axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
        axes.set_yticks(range(len(labels)), labels, fontsize=7)
    if len(labels) <= 10:
        for (i, j), n in np.ndenumerate(table):
            axes.text(j, i, str(int(n)), ha="center", va="center", fontsize=7)
    figure.savefig(out / "confusion.png", dpi=110)
    figure = Figure(figsize=(4, 4), layout="constrained")
    axes = figure.subplots()
    right = np.array([str(e.label) == r.label for e, r in zip(work.dev, work.results, strict=True)], float)
    for name, task in (("as trained", work.task), (f"calibrated, T = {temperature:.2f}", None)):
        scale = 1.0 if task is not None else temperature
        scores = np.stack(work.last_scores).astype(np.float64) / scale
        scores = np.exp(scores - scores.max(1, keepdims=True))
        sure = (scores / scores.sum(1, keepdims=True)).max(1)
        bins = np.clip((sure * 10).astype(int), 0, 9)
        points = [(sure[bins == b].mean(), right[bins == b].mean()) for b in range(10) if (bins == b).sum() >= 5]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", ms=3, label=name)
    axes.plot([0, 1], [0, 1], "k:", lw=1)
    axes.set_xlabel("probability given")
    axes.set_ylabel("share that is right")
    axes.legend(fontsize=7)
    figure.savefig(out / "reliability.png", dpi=110)
    return [
        "![which classes are taken for which](confusion.png) ![how far probabilities can be trusted](reliability.png)",
        "",
    ]
