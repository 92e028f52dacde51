"""Lines of bench/ablation.py to docs/ablation.md. What the documents claim is written here; every number comes from the lines.

In: lines of ablation.jsonl, and the content of ablation-lengths.json and ablation-speed.json. Out: the text of the page. What was not measured is left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

Line = dict[str, Any]
Speeds = dict[str, dict[str, float]]
CANONICAL = "canonical"


@dataclass(frozen=True)
class Claim:
    """What a document says, and what would show it."""

    document: str
    says: str
    variant: str
    against: str
    wants: tuple[str, ...]
    """Of: smaller (fewer parameters), fewer (operations), faster (tokens a second), better, no worse (all quality measures)."""


CLAIMS = (
    Claim("000", "Attention factorised into low-rank matrices cuts parameters and speeds the model up, at equal quality.", "low_rank", CANONICAL, ("smaller", "fewer", "faster", "no worse")),
    Claim("000, 003", "Sharing parameters across layers makes the model smaller and faster, and helps it generalise.", CANONICAL, "no sharing", ("smaller", "faster", "better")),
    Claim("001", "Sharing with m groups trades parameters against nothing that is said.", "groups 4", CANONICAL, ("better",)),
    Claim("001", "The factorised embedding cuts parameters by about E/k at comparable quality.", CANONICAL, "k = H", ("smaller", "no worse")),
    Claim("001", "A consistency loss between layers improves generalisation.", "consistency cosine", CANONICAL, ("better",)),
    Claim("001", "The similarity in it may be a dot product.", "consistency dot", CANONICAL, ("better",)),
    Claim("001", "The sentence is the mean of the last hidden states.", "classifier mean", CANONICAL, ("better",)),
    Claim("002", "Local attention lowers the cost of computing, and may hurt global understanding.", "window", CANONICAL, ("fewer", "faster", "no worse")),
    Claim("002", "Local and global attention are combined.", "window, every 3rd layer global", CANONICAL, ("fewer", "no worse")),
    Claim("002", "Parameters shared across heads cut parameters and computing at equal quality.", "shared_heads", CANONICAL, ("smaller", "fewer", "faster", "no worse")),
    Claim("003", "A recurrent network before the transformer improves performance further.", "gru", CANONICAL, ("better",)),
    Claim("003", "Layer normalisation as (x − μ)/(σ + ε) keeps training stable.", "norm document", CANONICAL, ("no worse",)),
    Claim("004", "A learnable bias θ in attention reduces computing and adapts in training (one a head).", "attention_bias head", CANONICAL, ("fewer", "better")),
    Claim("004", "The same, with one θ for each distance.", "attention_bias relative", CANONICAL, ("fewer", "better")),
    Claim("004", "layer_decay_rate speeds learning up.", "layer_decay 0.9", CANONICAL, ("better",)),
    Claim("004", "scale_embedding speeds learning up.", "scale_embedding", CANONICAL, ("better",)),
)  # fmt: skip


def mean_spread(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds."""
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0


def numbers(lines: list[Line]) -> dict[str, list[float]]:
    """The measures of one variant, over its seeds; higher is better in those that start with quality."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for name in (
            "parameters",
            "operations_per_token",
            "mlm_loss",
            "mlm_accuracy",
            "sop_accuracy",
        ):
            if name in line:
                found[name].append(float(line[name]))
        for task, scores in line.get("tasks", {}).items():
            found[f"task {task}"].append(float(next(iter(scores.values()))))
    return found


def differs(mine: list[float], theirs: list[float]) -> str:
    """higher, lower, or the same as far as the seeds can tell: two standard errors of the difference."""
    (a, s), (b, t) = mean_spread(mine), mean_spread(theirs)
    error = math.sqrt(s**2 / len(mine) + t**2 / len(theirs))
    if min(len(mine), len(theirs)) < 2 or abs(a - b) <= 2 * error:
        return "same"
    return "higher" if a > b else "lower"


def judged(
    claim: Claim, mine: dict[str, list[float]], theirs: dict[str, list[float]], speeds: Speeds
) -> tuple[str, str]:
    """What was measured, and the verdict."""
    said: list[str] = []
    verdicts: dict[str, list[str]] = {"holds": [], "not seen": [], "not measured": []}
    for want in claim.wants:
        name = {"smaller": "parameters", "fewer": "operations_per_token"}.get(want)
        if name is not None:
            ratio = mean_spread(mine[name])[0] / mean_spread(theirs[name])[0]
            said.append(f"{name.replace('_', ' ')} × {ratio:.3g}")
            fine = ratio < 0.98
        elif want == "faster":
            both = {device: by for device, by in speeds.items() if claim.variant in by and claim.against in by}
            ratios = {device: by[claim.variant] / by[claim.against] for device, by in both.items()}
            said += [f"tokens per second × {ratio:.3g} ({device})" for device, ratio in ratios.items()]
            if not ratios:
                verdicts["not measured"].append(want)
                continue
            fine = min(ratios.values()) > 1.02
        else:
            names = ("mlm_accuracy", "sop_accuracy")
            quality = [n for n in mine if n in theirs and (n.startswith("task ") or n in names)]
            moves = {n: differs(mine[n], theirs[n]) for n in quality}
            for n in quality:
                change = 100 * (mean_spread(mine[n])[0] - mean_spread(theirs[n])[0])
                said.append(f"{n.replace('task ', '').replace('_', ' ')} {change:+.2f} ({moves[n]})")
            fine = "lower" not in moves.values() and (want == "no worse" or "higher" in moves.values())
        verdicts["holds" if fine else "not seen"].append(want)
    seeds = min(len(mine["parameters"]), len(theirs["parameters"]))
    verdict = "; ".join(f"{word}: {', '.join(wants)}" for word, wants in verdicts.items() if wants)
    return ", ".join(said), verdict + ("" if seeds > 1 else " (one seed: chance is not excluded)")


def cell(values: list[float], scale: float = 1.0, digits: int = 2) -> str:
    """mean ± spread."""
    if not values:
        return ""
    mean, spread = mean_spread(values)
    return f"{mean * scale:,.{digits}f}" + (f" ± {spread * scale:.{digits}f}" if len(values) > 1 else "")


def variant_table(by: dict[str, list[Line]], speeds: Speeds) -> list[str]:
    """One row a variant."""
    found = {name: numbers(lines) for name, lines in by.items()}
    tasks = sorted({n for measures in found.values() for n in measures if n.startswith("task ")})
    heads = [
        "variant", "seeds", "parameters, M", "operations a token, M", *(f"thousand tokens/s, {device}" for device in speeds),
        "MLM loss", "MLM accuracy, %", "SOP accuracy, %", *(f"{t.removeprefix('task ')}, %" for t in tasks),
    ]  # fmt: skip
    rows = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name, m in found.items():
        failed = sum("failed" in line for line in by[name])
        cells = [
            name + (f" ({failed} failed)" if failed else ""), str(len(by[name])), cell(m["parameters"][:1], 1e-6), cell(m["operations_per_token"][:1], 1e-6, 1),
            *(cell([of[name]] if name in of else [], 1e-3, 1) for of in speeds.values()), cell(m["mlm_loss"], 1, 3), cell(m["mlm_accuracy"], 100), cell(m["sop_accuracy"], 100),
            *(cell(m[task], 100) for task in tasks),
        ]  # fmt: skip
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def speeds_of(recipe: dict[str, Any], speeds: list[dict[str, Any]]) -> Speeds:
    """Tokens a second of the same shape and length, by machine."""
    found: Speeds = {}
    for record in speeds:
        own, machine = record["recipe"], record["machine"]
        if all(own.get(name) == recipe.get(name) for name in ("shape", "layers", "length")):
            threads = f", {machine['threads']} threads" if machine["device"] == "CPU" else ""
            compiled = "" if own["compile"] == "auto" else f", compile {own['compile']}"
            found[f"{machine['device']}{threads}, {own['batch']} rows{compiled}"] = record["tokens_per_second"]
    return found


def length_tables(found: dict[str, Any]) -> list[str]:
    """One table for each machine."""
    out = []
    for name, part in found.items():
        out += [
            "", f"### {name}", "",
            f"One layer of `{part['shape']}`, one text, window {part['window']}, torch {part['machine']['torch']}, {part['machine']['threads']} threads.", "",
            "| tokens | all see all, ms | window, ms | times faster |", "|---|---|---|---|",
        ]  # fmt: skip
        for row in part["rows"]:
            out.append(
                f"| {row['length']} | {row['full'] * 1e3:.2f} | {row['window'] * 1e3:.2f} | {row['full'] / row['window']:.2f} |"
            )
        behind = [at for at, row in enumerate(part["rows"]) if row["window"] >= row["full"]]
        pays = next((row["length"] for row in part["rows"][(behind[-1] + 1 if behind else 0) :]), None)
        out += ["", f"It pays from {pays} tokens on." if pays else "It does not pay at these lengths."]
    return out


def page(lines: list[Line], lengths: dict[str, Any], speeds: list[dict[str, Any]] | None = None) -> str:
    """The whole page: for each recipe the variants and the claims, then the lengths."""
    out = [
        "# The documents' ideas, measured", "",
        "Written by `python bench/ablation.py table`; `docs/options.md` has the formulas. Every variant sees the same shards, the same budget and the same settings; only what its name",
        "says differs. ± is the standard deviation over seeds. A difference counts where it is larger than two standard errors. Speeds are of updates, each variant alone on the machine.",
    ]  # fmt: skip
    by_recipe: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_recipe[repr(sorted(line["recipe"].items()))].append(line)
    for of in by_recipe.values():
        by: dict[str, list[Line]] = defaultdict(list)
        for line in of:
            by[line["variant"]].append(line)
        recipe, machine = of[0]["recipe"], of[0]["machine"]
        fast, layers = speeds_of(recipe, speeds or []), recipe.get("layers")
        budget = f"{recipe['tokens']:,} tokens" if recipe["tokens"] else f"{recipe['minutes']:g} minutes"
        out += [
            "",
            f"## `{recipe['shape']}`{f' with {layers} layers' if layers else ''}, {budget} of length {recipe['length']}, {machine['device']}, torch {machine['torch']}",
            "",
            *variant_table(by, fast),
        ]
        whole = {name: numbers([x for x in rows if "failed" not in x]) for name, rows in by.items()}
        there = [c for c in CLAIMS if all(whole.get(name, {}).get("parameters") for name in (c.variant, c.against))]
        if there:
            out += ["", "| document | what it said | compared | what we measured | verdict |", "|---|---|---|---|---|"]
        for claim in there:
            said, verdict = judged(claim, whole[claim.variant], whole[claim.against], fast)
            out.append(
                f"| {claim.document} | {claim.says} | {claim.variant} with {claim.against} | {said} | {verdict} |"
            )
    if lengths:
        out += ["", "## Where a window begins to pay", *length_tables(lengths)]
    return "\n".join(out) + "\n"
