"""Tables of results/data-size.md: learning curves, the presets beside the best measured settings, recipes, starts."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from albertkit.train.presets import preset_steps
from tables import FOLDERS, percent, table
from tables.tasks import TITLES

SIZES = (100, 300, 1000, 3000)
ALL = 0  # the size of a run with all examples
# Task, metric, its name, and the number of classes of a text with one class.
SETS: dict[str, tuple[str, str, str, int]] = {
    "sst-2": ("classify", "accuracy", "accuracy", 2), "chnsenticorp": ("classify", "accuracy", "accuracy", 2), "cola": ("classify", "mcc", "Matthews", 2),
    "clinc150-small": ("classify", "accuracy", "accuracy", 150), "mrpc": ("classify", "accuracy", "accuracy", 2), "rte": ("classify", "accuracy", "accuracy", 2),
    "afqmc": ("classify", "accuracy", "accuracy", 2), "sts-b": ("classify", "pearson", "Pearson", 0), "conll2003": ("tag", "f1", "entity F1", 0),
    "cluener": ("tag", "f1", "entity F1", 0), "atis": ("intent", "mean", "mean of intent accuracy and slot F1", 0),
    "snips": ("intent", "mean", "mean of intent accuracy and slot F1", 0), "woz2": ("dialogue", "joint_goal", "joint goal", 0),
}  # fmt: skip
Setting = (
    tuple[int, int, float | None] | tuple[int, None, None]
)  # batch size, steps, learning rate of AdamW; None: 10 epochs


def rows_of(name: str) -> list[dict[str, Any]]:
    """The runs of a recorded file without errors."""
    rows = map(json.loads, (FOLDERS[0] / name).read_text(encoding="utf-8").splitlines())
    return [row for row in rows if "error" not in row]


def score(row: dict[str, Any]) -> float:
    return float(row["metrics"][SETS[row["data"]][1]] or 0.0)


def adamw_curves() -> dict[tuple[str, int], dict[Setting, float]]:
    """The score of each setting of AdamW, by data set and number of examples."""
    scores: dict[tuple[str, int], dict[Setting, float]] = defaultdict(dict)
    for row in rows_of("curves.jsonl"):
        scores[row["data"], row["size"]][row["batch_size"], row["steps"], row["learning_rate"]] = score(row)
    return scores


def preset_curves() -> dict[tuple[str, int], dict[str, Any]]:
    """The run with the presets, which use Muon, by data set and number of examples."""
    return {(row["data"], row["size"]): row for row in rows_of("curves-muon.jsonl") if row["seed"] == 0}


def by_size() -> str:
    """Data sets down, numbers of examples across."""
    runs, rows = preset_curves(), []
    for name, (_, _, metric, _) in SETS.items():
        last = runs[name, ALL]
        scores = [percent(score(runs[name, size])) if runs[name, size]["examples"] == size else "–" for size in SIZES]
        rows.append((TITLES[name], metric, *scores, f"{percent(score(last))} ({last['examples']:,})"))
    return table(("data", "metric", *(f"{size:,}" for size in SIZES), "all (examples)"), rows)


def presets() -> str:
    """Tasks down, numbers of examples across: batch size × steps."""
    names = {"classify": "sst-2", "classify, under 5 examples per class": "clinc150-small", "tag, intent": "atis", "dialogue": "woz2"}  # fmt: skip
    rows = []
    for title, name in names.items():
        task, _, _, classes = SETS[name]
        rows.append((title, *("{} × {:,}".format(*preset_steps(task, size, classes)) for size in SIZES)))
    return table(("task", *(f"{size:,} examples" for size in SIZES)), rows)


def share_of_best() -> str:
    """The preset's share of the best measured score of either optimizer, in percent."""
    others, runs, rows = adamw_curves(), preset_curves(), []
    for name in SETS:
        cells = []
        for size in SIZES:
            preset = score(runs[name, size])
            best = max(preset, *others[name, size].values())
            below = preset < 0.9 * best
            cells.append(f"{percent(preset)} of {percent(best)}" if below else f"{100 * preset / best:.0f} %")
        rows.append((TITLES[name], *cells))
    return table(("data", *(f"{size:,}" for size in SIZES)), rows)


def all_settings() -> str:
    """Every measured setting of AdamW; the best of a row is bold."""
    scores, settings = adamw_curves(), list[Setting]()
    for found in scores.values():
        settings += [one for one in found if one not in settings]
    settings.sort(key=lambda one: (one[1] or 0, one[0], one[2] or 0))
    heads = [f"{batch} × {steps:,}" + (" at 2e-4" if rate == 2e-4 else "") if steps else f"{batch}, 10 epochs" for batch, steps, rate in settings]  # fmt: skip
    rows = []
    for name in SETS:
        for size in SIZES:
            found = scores[name, size]
            cells = [f"**{percent(found[one])}**" if found.get(one) == max(found.values()) else percent(found.get(one)) for one in settings]  # fmt: skip
            rows.append((f"{TITLES[name]}, {size:,}", *cells))
    return table(("data and examples", *heads), rows)


RECIPES = ("adamw", "adamw, rate × 0.5", "adamw, rate × 2", "adamw, dropout 0.1", "muon 1e-4", "muon 2e-4", "muon 3e-4")


def recipes() -> str:
    """Data sets down, recipes across: the mean of all runs, with the lowest and the highest score if they differ."""
    found: dict[tuple[str, int, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of("recipes.jsonl"):
        found[row["data"], row["size"], row["epochs"] or 0][row["recipe"]].append(score(row))
    rows = []
    for (name, size, epochs), scores in sorted(found.items(), key=lambda one: (not one[0][1], one[0])):
        title = TITLES[name] + (f", {size:,}" if size else "") + (f", {epochs:g} epochs" if epochs else "")
        rows.append((title, *(spread(scores[recipe]) if recipe in scores else "–" for recipe in RECIPES)))
    return table(("data", *RECIPES), rows)


STARTS = {
    "small-zh-pretrained": "`small-zh-pretrained`",
    "further": "the same, trained for 11 more minutes",
    "adapted": "and then on the texts of the three sets",
    "small-zh": "`small-zh`",
}


def chinese_starts() -> str:
    """Start models down, Chinese data sets across: the mean of all runs, and their range."""
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows_of("starts.jsonl"):
        scores[row["model"], row["data"]].append(score(row))
    sets = ("chnsenticorp", "afqmc", "cluener")
    rows = ((title, *(spread(scores[start, name]) for name in sets)) for start, title in STARTS.items())
    return table(("start", *(f"{TITLES[name]}, {SETS[name][2]}" for name in sets)), rows)


def spread(values: list[float]) -> str:
    """The mean, and the range of several runs."""
    shown = percent(sum(values) / len(values))
    return f"{shown} ({percent(min(values))} to {percent(max(values))})" if len(values) > 1 else shown


TABLES = {
    "data-size": by_size, "data-size-presets": presets, "data-size-share": share_of_best, "data-size-all": all_settings,
    "data-size-recipes": recipes, "data-size-starts": chinese_starts,
}  # fmt: skip
