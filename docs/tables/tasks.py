"""Tables of results/tasks.md: fine-tuning beside published numbers."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from typing import Any

from tables import FOLDERS, percent, read, table

SENTENCES = {"sst-2": "SST-2", "cola": "CoLA", "mrpc": "MRPC", "rte": "RTE", "sts-b": "STS-B", "squad": "SQuAD 1.1", "race-middle": "RACE-M"}  # fmt: skip
WORDS = {"conll2003": "CoNLL-2003", "atis": "ATIS", "snips": "Snips", "clinc150-small": "CLINC150 small", "clinc150-full": "CLINC150 OOS+", "woz2": "WoZ 2.0"}  # fmt: skip
CHINESE = {"chnsenticorp": "ChnSentiCorp", "afqmc": "AFQMC", "cluener": "CLUENER", "cmrc2018": "CMRC 2018"}
TITLES = SENTENCES | WORDS | CHINESE
METRICS = {
    "accuracy": "accuracy", "mcc": "Matthews", "f1": "F1", "exact": "exact", "spearman": "Spearman", "pearson": "Pearson", "joint_goal": "joint goal",
    "requests": "requests", "in_scope_accuracy": "in-scope accuracy", "out_of_scope_recall": "out-of-scope recall", "out_of_scope_f1": "out-of-scope F1",
}  # fmt: skip
NEAREST = {"nearest": "`--nearest`", "freeze": "`--freeze`", "freeze, class weights": "`--freeze --class-weights`"}
CLEARER = {("intent", "accuracy"): "intent accuracy", ("intent", "f1"): "slot F1", ("intent", "exact"): "whole frame", ("tag", "f1"): "entity F1", ("answer", "exact"): "exact match"}  # fmt: skip


def records(titles: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The recorded fine-tunings of data sets, on all of their data."""
    for name in titles:
        for path in sorted((FOLDERS[0] / "tasks").glob(f"*/{name}.json")):
            one = json.loads(path.read_text(encoding="utf-8"))
            if one["cap"] is None and all(run["metrics"] for run in one["runs"]):
                yield one


def metric_name(task: str, metric: str, metrics: Any) -> str:
    """A metric's name; the accuracy of an intent alone needs no other name."""
    joint = task != "intent" or "exact" in metrics
    return (CLEARER.get((task, metric)) if joint else None) or METRICS[metric]


def score(record: dict[str, Any], metric: str) -> str:
    """Mean and standard deviation over seeds."""
    values = [run["metrics"][metric] for run in record["runs"]]
    return f"**{percent(statistics.fmean(values))}**" + (f" ± {percent(statistics.stdev(values))}" if len(values) > 1 else "")  # fmt: skip


def scores(titles: dict[str, str]) -> str:
    """Data sets and metrics down; albertkit and the models with published numbers for any of them across."""
    published = read("published.json")
    others = {name: published["scores"].get(name, {}) for name in titles}
    with_score = {model for of in others.values() for by in of.values() for model in by}
    peers = [model for model in published["models"] if model in with_score]
    rows = []
    for one in records(titles):
        for number, metric in enumerate(name for name in one["metrics"] if name in METRICS):
            theirs = others[one["data"]].get(metric, {})
            cells = [f"{theirs[peer]:g}" if peer in theirs else "–" for peer in peers]
            rows.append((titles[one["data"]] if number == 0 else "", metric_name(one["task"], metric, one["metrics"]), score(one, metric), *cells))  # fmt: skip
    size = next(records(titles))["start"]["parameters"] / 1e6
    heads = [f"{peer} ({published['models'][peer]['parameters']:g} M)" for peer in peers]
    return table(("data", "metric", f"albertkit ({size:.1f} M)", *heads), rows)


def data_sets() -> str:
    rows = []
    for one in records(TITLES):
        seconds = statistics.fmean(run["seconds"] for run in one["runs"])
        start = one["start"].get("model", "albert_tiny_zh" if one["data"] in CHINESE else "small-pretrained")
        restarts = sum(run.get("collapsed", 0) for run in one["runs"])
        rows.append((TITLES[one["data"]], f"{one['examples']['train']:,}", f"{one['examples'][one['held']]:,}", one["note"], start.replace(", before it was rounded to 8 bits", " (float32)"), f"{seconds:.0f}", restarts))  # fmt: skip
    return table(("data", "trained on", "measured on", "which part", "start", "seconds per seed", "restarts"), rows)


def fewshot() -> str:
    rows = []
    for name, side in read("fewshot.json")["sides"].items():
        if "error" not in side:
            rows.append((name, f"{side['seconds']:.1f}", *(percent(side[key]) for key in ("closed_accuracy", "in_scope_accuracy", "out_of_scope_f1"))))  # fmt: skip
    return table(("program", "seconds", "accuracy without out-of-scope", "in-scope accuracy", "out-of-scope F1"), rows)


def nearest() -> str:
    rows = []
    for name, one in read("nearest.json")["sets"].items():
        for place, head in enumerate(one["results"]["unbalanced"]):
            cells = (result.get(head) for result in one["results"].values())
            shown = (f"{percent(c['accuracy'])} ± {percent(c['deviation'])}" if c else "" for c in cells)
            rows.append((f"{name} ({one['classes']} classes)" if place == 0 else "", NEAREST[head], *shown))
    shots = [f"{number} per class" if number.isdecimal() else "2 or 16" for number in one["results"]]
    return table(("data", "head", *shots), rows)


def runtime() -> str:
    rows = []
    for name, one in in_order(read("precision.json")["sets"]):
        gap = one["difference"]
        cells = [f"{gap[key]:.1e}" for key in ("logits_median", "logits", "probabilities")]
        rows.append((TITLES[name], f"{one['examples']:,}", *cells, gap["texts_above"], one["unlike"]["runtime"]))
    return table(("data", "texts", "logits, median", "logits, largest", "probabilities, largest", "texts above 1e-4", "different predictions"), rows)  # fmt: skip


def in_order(sets: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, sets[name]) for name in TITLES if name in sets]


def sources() -> str:
    models = read("published.json")["models"]
    return table(("model", "parameters", "source"), ((name, f"{one['parameters']:g} M", one["source"]) for name, one in models.items()))  # fmt: skip


TABLES = {
    "tasks-sentences": lambda: scores(SENTENCES), "tasks-words": lambda: scores(WORDS), "tasks-chinese": lambda: scores(CHINESE),
    "tasks-data": data_sets, "fewshot": fewshot, "nearest": nearest, "runtime": runtime, "published": sources,
}  # fmt: skip
