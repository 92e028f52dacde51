"""Tables of results/ideas.md: the documents' ideas, generation, adapters, faithfulness of explanations."""

from __future__ import annotations

import json
import re
import sys
from statistics import fmean
from typing import Any

from tables import FOLDERS, ROOT, megabytes, percent, read, table, times

sys.path.append(str(ROOT / "studies"))
import claims as judging

CPU, GPU = "reading, CPU", "reading, NVIDIA"


def runs() -> tuple[list[dict[str, Any]], judging.Speeds]:
    """The recorded trainings of the comparison with the most lines, and the speeds of its shape."""
    largest = largest_comparison("ablation.jsonl")
    return largest, judging.speeds_of(largest[0]["recipe"], read("ablation-speed.json"))


def largest_comparison(name: str) -> list[dict[str, Any]]:
    """The lines of the recipe with the most lines."""
    by_recipe: dict[str, list[dict[str, Any]]] = {}
    for line in (FOLDERS[0] / name).read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        by_recipe.setdefault(repr(sorted(run["recipe"].items())), []).append(run)
    return max(by_recipe.values(), key=len)


def claims() -> str:
    lines, speeds = runs()
    rows = []
    for claim in judging.CLAIMS:
        mine, theirs = (
            judging.values_by_measure(judging.finished_lines(lines, name)) for name in (claim.variant, claim.baseline)
        )
        if not mine or not theirs:
            continue
        ratios = [f"× {fmean(mine[n]) / fmean(theirs[n]):.2f}" for n in ("parameters", "operations_per_token")]
        changes = judging.quality_changes(claim, lines)
        loss, accuracy = changes["mlm_loss"][0], changes["mlm_accuracy"][0]
        rows.append((claim.document, claim.text, f"{claim.variant} / {claim.baseline}", *ratios, f"{loss:+.2f}", f"{accuracy:+.1f}", judging.verdict(claim, lines, speeds)))  # fmt: skip
    heads = ("document", "claim", "compared", "parameters", "operations", "MLM loss", "MLM accuracy, points", "verdict")
    return table(heads, rows)


def variants() -> str:
    from variants import VARIANTS

    lines, speeds = runs()
    rows = []
    for name in VARIANTS:
        m = judging.values_by_measure(judging.finished_lines(lines, name))
        if not m["parameters"]:  # not measured yet
            continue
        fast = [next((by[name] for place, by in speeds.items() if place.startswith(where) and name in by), None) for where in (CPU, GPU)]  # fmt: skip
        rows.append((
            name, f"{m['parameters'][0] / 1e6:.2f}", f"{m['operations_per_token'][0] / 1e6:.1f}", *("–" if speed is None else f"{speed / 1e3:,.1f}" for speed in fast),
            spread(m["mlm_loss"], 1, 2), spread(m["task sst-2 mcc"]), spread(m["task mrpc mcc"]),
        ))  # fmt: skip
    heads = ("variant", "parameters, M", "operations per token, M", "CPU, k tokens/s", "GPU, k tokens/s", "MLM loss", "SST-2 Matthews", "MRPC Matthews")  # fmt: skip
    return table(heads, rows)


def blocks() -> str:
    """Blocks at one budget, small models first, at the tokens of the anchor's curve; a run that did not end has gaps."""
    lines = {(run["variant"], run["seed"]): run for run in largest_comparison("blocks.jsonl") if run.get("curve")}
    ends = sorted({round(point["tokens"], -7) for run in lines.values() for point in run["curve"]})
    shown, rows = ends[1::2] or ends, []
    for (name, _), run in sorted(lines.items(), key=lambda item: (item[1]["int8_bytes"] // 10**5, -item[1]["mlm_accuracy"])):  # fmt: skip
        at = {round(point["tokens"], -7): percent(point["mlm_accuracy"]) for point in run["curve"]}
        loss = "–" if "unfinished" in run else f"{run['mlm_loss']:.3f}"
        rows.append((name, megabytes(run["int8_bytes"]), f"{run['operations_per_token'] / 1e6:.1f}", *(at.get(end, "–") for end in shown), loss))  # fmt: skip
    heads = (f"{end / 1e6:,.0f} M tokens, %" for end in shown)
    return table(("block", "int8, MB", "operations per token, M", *heads, "MLM loss"), rows)


def spread(values: list[float], scale: float = 100, digits: int = 1) -> str:
    """Mean and standard deviation over seeds."""
    mean, deviation = judging.mean_spread(values)
    return f"{scale * mean:.{digits}f} ± {scale * deviation:.{digits}f}"


def windows() -> str:
    rows = []
    for name, part in read("ablation-lengths.json").items():
        for row in part["rows"]:
            rows.append((name.removeprefix("torch, "), f"{row['length']:,}", row["texts"], f"{1e3 * row['full']:.2f}", f"{1e3 * row['window']:.2f}", times(row["full"] / row["window"])))  # fmt: skip
    return table(("machine", "tokens", "texts at once", "full attention, ms", "window of 64, ms", "speedup"), rows)


def generation() -> str:
    rows = []
    for one in read("generation.json")["sets"].values():
        for name, m in one["ways"].items():
            length = f"{m['length_ratio']:.2f}" if "length_ratio" in m else "–"
            speed = f"{m['texts_per_second']:.1f}" if "texts_per_second" in m else "–"
            rows.append((name, percent(m["rouge_l"]), percent(m["bleu"]), length, speed))
    return table(("decoding", "ROUGE-L", "BLEU", "length, share of the target's", "texts/s"), rows)


def generated() -> str:
    shown = next(iter(read("generation.json")["sets"].values()))["shown"][:3]
    return table(("source", "target", "generated"), ([escape(one[part]) for part in ("source", "target", "written")] for one in shown))  # fmt: skip


def escape(text: str) -> str:
    """A text of others inside a table."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(text.split()))


def adapters() -> str:
    rows = []
    for name, way in read("adapters.json")["ways"].items():
        mean = {key: fmean(run[key] for run in way["runs"]) for key in ("accuracy", "seconds", "memory", "rate", "trained", "bytes")}  # fmt: skip
        rows.append((name.replace("rate", "learning rate"), percent(mean["accuracy"]), f"{mean['seconds']:.0f}", f"{megabytes(mean['memory'], 0)}", f"{mean['trained']:,.0f}", megabytes(mean["bytes"], 2)))  # fmt: skip
    return table(("trained", "accuracy", "seconds", "peak memory, MB", "trained parameters", "MB per task"), rows)


def faithfulness() -> str:
    rows = []
    for one in read("faithfulness.json").values():
        for row in (row for row in one["rows"] if row["method"] in ("occlusion", "gradients")):
            numbers = [f"{row[key]:.2f}" for key in ("comprehensiveness", "random_comprehensiveness", "sufficiency", "random_sufficiency")]  # fmt: skip
            rows.append((row["method"], row["hide"], *numbers, f"{row['gain']:+.2f} ± {row['gain_error']:.2f}", f"{row['wins']:.0%}"))  # fmt: skip
    heads = ("method", "`--hide`", "without the words", "without random words", "the words only", "random words only", "gain", "texts where it wins")  # fmt: skip
    return table(heads, rows)


def sentence_order() -> str:
    """Held-out accuracies while `small-pretrained` was trained on rows of 128 tokens."""
    lines = (FOLDERS[0] / "pretraining-small.jsonl").read_text(encoding="utf-8").splitlines()
    found = [row for row in map(json.loads, lines) if row["kind"] != "train" and row["sitting"] <= 2]
    rows = [
        (f"{row['tokens'] / 1e6:,.0f} M", percent(row["mlm_accuracy"]), percent(row["sop_accuracy"])) for row in found
    ]
    return table(("tokens", "masked words, %", "sentence order, %"), rows)


TABLES = {
    "sentence-order": sentence_order,
    "claims": claims, "variants": variants, "windows": windows, "generation": generation, "generated": generated, "adapters": adapters, "faithfulness": faithfulness,
}  # fmt: skip
if (FOLDERS[0] / "blocks.jsonl").is_file():  # no run is recorded yet
    TABLES["blocks"] = blocks
