"""The claims of the documents, compared with the recorded runs of studies/ablation.py.

In: lines of `ablation.jsonl` and the content of `ablation-speed.json`. Out: for each claim the measured differences and a
verdict, for docs/results/ideas.md and docs/understand/documents.md. Claims without measurements are marked.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

Line = dict[str, Any]
Speeds = dict[str, dict[str, float]]
"""Tokens per second of each variant, by work and machine: "reading, …" (inference) or "updates, …" (training)."""
Spreads = dict[str, tuple[float, int]]
"""For each measure: its spread over seeds, and the degrees of freedom."""
CANONICAL = "canonical"
SOME, QUICK = 0.02, 0.05  # ratios of counts, and of speeds, that are nearer to one are none
CHANCE = 0.55  # of sentence order: what lies below is a guess
STUDENT = {1: 63.7, 2: 9.9, 3: 5.8, 4: 4.6, 5: 4.0, 6: 3.7, 8: 3.4, 10: 3.2, 15: 2.9, 20: 2.8, 30: 2.7}
"""Standard errors that one comparison in a hundred passes by chance, by the degrees of freedom."""


@dataclass(frozen=True)
class Claim:
    """A claim of a document, the variant that tests it, and the results that it expects."""

    document: str
    text: str
    variant: str
    baseline: str
    expects: tuple[str, ...]
    """Of: smaller (fewer parameters), fewer (operations), faster (tokens a second when it reads), trains faster; of all
    measures of quality: better, no worse, worse.
    """


CLAIMS = (
    Claim("000–004", "ALBERT keeps the quality of BERT with far fewer parameters, and is faster.", CANONICAL, "no sharing, k = H", ("smaller", "faster", "no worse")),
    Claim("000", "Attention factorised into low-rank matrices cuts parameters and speeds the model up, at equal quality.", "low_rank", CANONICAL, ("smaller", "fewer", "faster", "no worse")),
    Claim("000, 003", "Sharing parameters across layers makes the model smaller and faster, and helps it generalise.", CANONICAL, "no sharing", ("smaller", "faster", "better")),
    Claim("001", "Sharing within m groups of layers cuts parameters about N/m times, at comparable quality.", "groups 4", "no sharing", ("smaller", "no worse")),
    Claim("001", "The same with two groups.", "groups 2", "no sharing", ("smaller", "no worse")),
    Claim("001, 003", "The factorised embedding cuts parameters by about E/k at comparable quality, and makes training more efficient.", CANONICAL, "k = H", ("smaller", "trains faster", "no worse")),
    Claim("001", "A small k is enough.", "k = 64", CANONICAL, ("smaller", "no worse")),
    Claim("–", "(In no document:) a larger k is better.", "k = 256", CANONICAL, ("better",)),
    Claim("001", "A consistency loss between layers improves generalisation.", "consistency cosine", CANONICAL, ("better",)),
    Claim("001", "Its similarity may be a dot product.", "consistency dot", CANONICAL, ("no worse",)),
    Claim("001", "A text is represented by the mean of its last hidden states.", "classifier mean", CANONICAL, ("no worse",)),
    Claim("002", "Local attention lowers the cost of computing, and may hurt global understanding.", "window", CANONICAL, ("fewer", "faster", "worse")),
    Claim("002", "Local and global attention are combined.", "window, every 3rd layer global", CANONICAL, ("fewer", "no worse")),
    Claim("002", "Parameters shared across heads cut parameters and computing at equal quality.", "shared_heads", CANONICAL, ("smaller", "fewer", "faster", "no worse")),
    Claim("003", "A recurrent network before the transformer improves performance further.", "gru", CANONICAL, ("better",)),
    Claim("003", "Layer normalisation as (x − μ)/(σ + ε) keeps training stable.", "norm document", CANONICAL, ("no worse",)),
    Claim("004", "A learnable bias θ in attention reduces computing and adapts in training (one per head).", "attention_bias head", CANONICAL, ("fewer", "better")),
    Claim("004", "The same with one θ per distance.", "attention_bias relative", CANONICAL, ("fewer", "better")),
    Claim("004", "layer_decay_rate speeds learning up.", "layer_decay 0.9", CANONICAL, ("better",)),
    Claim("004", "scale_embedding speeds learning up.", "scale_embedding", CANONICAL, ("better",)),
)  # fmt: skip


def mean_spread(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds."""
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0


def values_by_measure(lines: list[Line]) -> dict[str, list[float]]:
    """The measures of one variant, over its seeds."""
    values: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for name in ("parameters", "operations_per_token", "mlm_loss", "mlm_accuracy", "sop_accuracy"):
            if name in line:
                values[name].append(float(line[name]))
        for task, scores in line.get("tasks", {}).items():
            for score, value in scores.items():
                values[f"task {task} {score}"].append(float(value))
    return values


def finished_lines(lines: list[Line], variant: str) -> list[Line]:
    """The lines of a variant that came to their end."""
    return [line for line in lines if line["variant"] == variant and "failed" not in line]


def spreads(lines: list[Line]) -> Spreads:
    """The spread over seeds of all variants together: two or three seeds of one say little about it."""
    squares: dict[str, float] = defaultdict(float)
    free: dict[str, int] = defaultdict(int)
    for variant in {line["variant"] for line in lines}:
        for name, values in values_by_measure(finished_lines(lines, variant)).items():
            squares[name] += mean_spread(values)[1] ** 2 * (len(values) - 1)
            free[name] += len(values) - 1
    return {name: (math.sqrt(squares[name] / free[name]), free[name]) for name in free if free[name]}


def compare_means(values: list[float], baseline: list[float], spread: tuple[float, int] | None) -> str:
    """higher, lower, or the same as far as the seeds can tell."""
    if spread is None:
        return "same"
    (a, s), (b, t) = mean_spread(values), mean_spread(baseline)
    s, t = max(s, spread[0]), max(t, spread[0])  # a variant may spread more than the others do
    error = math.sqrt(s**2 / len(values) + t**2 / len(baseline))
    limit = STUDENT[max(n for n in STUDENT if n <= spread[1])]
    if abs(a - b) <= limit * error:
        return "same"
    return "higher" if a > b else "lower"


def speed_ratios(claim: Claim, expected: str, speeds: Speeds) -> dict[str, float]:
    """How many times the tokens a second, by where: of updates for a claim about training, else of reading."""
    kind = "updates" if expected == "trains faster" else "reading"
    comparable = {place: by for place, by in speeds.items() if claim.variant in by and claim.baseline in by}
    return {place: by[claim.variant] / by[claim.baseline] for place, by in comparable.items() if place.startswith(kind)}


def quality_measures(lines: list[Line]) -> list[str]:
    """The measures of quality that tell variants apart: masked words, sentence order if anyone learnt it, and of each
    task Matthews' correlation (a class that is frequent is no skill), or else its first score.
    """
    names = {name for line in lines for name in values_by_measure([line])}
    measures = [name for name in ("mlm_loss", "mlm_accuracy") if name in names]
    if "sop_accuracy" in names and not is_sentence_order_at_chance(lines):
        measures.append("sop_accuracy")
    for task in sorted({name.split()[1] for name in names if name.startswith("task ")}):
        scores = [score for line in lines for score in line.get("tasks", {}).get(task, {})]
        measures.append(f"task {task} {'mcc' if 'mcc' in scores else scores[0]}")
    return measures


def is_sentence_order_at_chance(lines: list[Line]) -> bool:
    """Whether nobody learnt sentence order."""
    orders = [
        values_by_measure(finished_lines(lines, name))["sop_accuracy"] for name in {line["variant"] for line in lines}
    ]
    return max((mean_spread(values)[0] for values in orders if values), default=0.0) < CHANCE


def quality_changes(claim: Claim, lines: list[Line]) -> dict[str, tuple[float, str]]:
    """Of each measure of quality, by how much the variant is above the other (points; loss as it is), and better, worse
    or same.
    """
    values, baseline = (values_by_measure(finished_lines(lines, name)) for name in (claim.variant, claim.baseline))
    spread, changes = spreads(lines), {}
    for name in quality_measures(lines):
        if not values[name] or not baseline[name]:
            continue
        change = mean_spread(values[name])[0] - mean_spread(baseline[name])[0]
        comparison, loss = compare_means(values[name], baseline[name], spread.get(name)), name == "mlm_loss"
        word = "same" if comparison == "same" else "better" if (comparison == "lower") == loss else "worse"
        changes[name] = (change if loss else 100 * change, word)
    return changes


def verdict(claim: Claim, lines: list[Line], speeds: Speeds) -> str:
    """Which parts of a claim hold in the runs of one recipe."""
    failed = [line for line in lines if line["variant"] == claim.variant and "failed" in line]
    values, baseline = (values_by_measure(finished_lines(lines, name)) for name in (claim.variant, claim.baseline))
    if not values and failed:
        return f"not seen: {', '.join(claim.expects)}"
    if not values or not baseline:
        return "not measured"
    ratios = {
        n: mean_spread(values[n])[0] / mean_spread(baseline[n])[0] for n in ("parameters", "operations_per_token")
    }
    quality = quality_changes(claim, lines)
    reading, training = speed_ratios(claim, "faster", speeds), speed_ratios(claim, "trains faster", speeds)
    words = {word for _, word in quality.values()}
    verdicts: dict[str, list[str]] = {
        "holds": [],
        "partly": [],
        "cannot tell": [],
        "does not hold": [],
        "not measured": [],
    }
    for expected in claim.expects:
        if expected in ("smaller", "fewer"):
            ratio = ratios["parameters" if expected == "smaller" else "operations_per_token"]
            word = "holds" if ratio < 1 - SOME else "does not hold"
        elif expected in ("faster", "trains faster"):
            fast = [ratio > 1 + QUICK for ratio in (reading if expected == "faster" else training).values()]
            word = "not measured" if not fast else "holds" if all(fast) else "partly" if any(fast) else "does not hold"
        elif not quality:
            word = "not measured"
        elif expected == "worse":
            word = "holds" if "worse" in words else "cannot tell"
        elif expected == "no worse":
            word = "does not hold" if "worse" in words else "holds"
        elif {"better", "worse"} <= words:
            word = "partly"
        else:
            word = "holds" if "better" in words else "does not hold" if "worse" in words else "cannot tell"
        verdicts[word].append(expected)
    text = "; ".join(f"{word}: {', '.join(wants)}" for word, wants in verdicts.items() if wants)
    has_one_seed = min(len(finished_lines(lines, name)) for name in (claim.variant, claim.baseline)) == 1
    return text + (" (one seed)" if has_one_seed else "")


def speeds_of(recipe: dict[str, Any], speeds: list[dict[str, Any]]) -> Speeds:
    """Tokens a second of the same shape and length, by what was done and where."""
    by_label: Speeds = {}
    for record in speeds:
        speed_recipe, machine = record["recipe"], record["machine"]
        if all(speed_recipe.get(name) == recipe.get(name) for name in ("shape", "layers", "length")):
            threads = f", {machine['threads']} threads" if machine["device"] == "CPU" else ""
            compiled = "" if speed_recipe.get("compile", "auto") == "auto" else f", compile {speed_recipe['compile']}"
            label = f"{speed_recipe.get('what', 'updates')}, {machine['device']}{threads}, {speed_recipe['batch']} rows{compiled}"
            by_label[label] = record["tokens_per_second"]
    return by_label
