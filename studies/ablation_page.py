"""Lines of studies/ablation.py to docs/ablation.md. What the documents claim is written here; every number comes from
the lines.

In: lines of ablation.jsonl, and the content of ablation-lengths.json and ablation-speed.json. Out: the text of the
page. A claim that was not measured says so.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = dict[str, Any]
Speeds = dict[str, dict[str, float]]
"""Tokens a second of each variant, by what was done and where: "reading, …" or "updates, …"."""
Spreads = dict[str, tuple[float, int]]
"""Of each measure, the spread over seeds, and how many numbers it rests on beyond one a variant."""
RESULTS = Path(__file__).parent / "results"
CANONICAL = "canonical"
SOME, QUICK = 0.02, 0.05  # ratios of counts, and of speeds, that are nearer to one are none
CORPORA = {
    "2797892f": "; `albertkit corpus` made the shards of 27 MB of English Wikipedia (compressed), with the built-in vocabulary"
}
CHANCE = 0.55  # of sentence order: what lies below is a guess
STUDENT = {1: 63.7, 2: 9.9, 3: 5.8, 4: 4.6, 5: 4.0, 6: 3.7, 8: 3.4, 10: 3.2, 15: 2.9, 20: 2.8, 30: 2.7}
"""Standard errors that one comparison in a hundred passes by chance, by the degrees of freedom."""


@dataclass(frozen=True)
class Claim:
    """What a document says, and what would show it."""

    document: str
    says: str
    variant: str
    against: str
    wants: tuple[str, ...]
    """Of: smaller (fewer parameters), fewer (operations), faster (tokens a second when it reads), trains faster; of all
    measures of quality: better, no worse, worse.
    """
    note: str = ""


SHORT = "rows of this length are too short for a window to save much: see [where it begins to pay](#where-a-window-begins-to-pay)"
CLAIMS = (
    Claim("000–004", "ALBERT keeps the quality of BERT with far fewer parameters, and is faster.", CANONICAL, "no sharing, k = H", ("smaller", "faster", "no worse")),
    Claim("000", "Attention factorised into low-rank matrices cuts parameters and speeds the model up, at equal quality.", "low_rank", CANONICAL, ("smaller", "fewer", "faster", "no worse")),
    Claim("000, 003", "Sharing parameters across layers makes the model smaller and faster, and helps it generalise.", CANONICAL, "no sharing", ("smaller", "faster", "better")),
    Claim("001", "Sharing within m groups of layers cuts parameters about N/m times, at comparable quality.", "groups 4", "no sharing", ("smaller", "no worse")),
    Claim("001", "The same, with fewer groups.", "groups 2", "no sharing", ("smaller", "no worse")),
    Claim("001, 003", "The factorised embedding cuts parameters by about E/k at comparable quality, and makes training more efficient.", CANONICAL, "k = H", ("smaller", "trains faster", "no worse")),
    Claim("001", "k is a small part of the width; a smaller one still does.", "k = 64", CANONICAL, ("smaller", "no worse")),
    Claim("–", "(No document says it; the other way round: a larger k is better.)", "k = 256", CANONICAL, ("better",)),
    Claim("001", "A consistency loss between layers improves generalisation.", "consistency cosine", CANONICAL, ("better",)),
    Claim("001", "The similarity in it may be a dot product.", "consistency dot", CANONICAL, ("no worse",)),
    Claim("001", "The sentence is the mean of the last hidden states.", "classifier mean", CANONICAL, ("no worse",)),
    Claim("002", "Local attention lowers the cost of computing, and may hurt global understanding.", "window", CANONICAL, ("fewer", "faster", "worse"), SHORT),
    Claim("002", "Local and global attention are combined.", "window, every 3rd layer global", CANONICAL, ("fewer", "no worse"), SHORT),
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
    """The measures of one variant, over its seeds."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        for name in ("parameters", "operations_per_token", "mlm_loss", "mlm_accuracy", "sop_accuracy"):
            if name in line:
                found[name].append(float(line[name]))
        for task, scores in line.get("tasks", {}).items():
            for score, value in scores.items():
                found[f"task {task} {score}"].append(float(value))
    return found


def whole(lines: list[Line], variant: str) -> list[Line]:
    """The lines of a variant that came to their end."""
    return [line for line in lines if line["variant"] == variant and "failed" not in line]


def spreads(lines: list[Line]) -> Spreads:
    """The spread over seeds of all variants together: two or three seeds of one say little about it."""
    squares: dict[str, float] = defaultdict(float)
    free: dict[str, int] = defaultdict(int)
    for variant in {line["variant"] for line in lines}:
        for name, values in numbers(whole(lines, variant)).items():
            squares[name] += mean_spread(values)[1] ** 2 * (len(values) - 1)
            free[name] += len(values) - 1
    return {name: (math.sqrt(squares[name] / free[name]), free[name]) for name in free if free[name]}


def differs(mine: list[float], theirs: list[float], spread: tuple[float, int] | None) -> str:
    """higher, lower, or the same as far as the seeds can tell."""
    if spread is None:
        return "same"
    (a, s), (b, t) = mean_spread(mine), mean_spread(theirs)
    s, t = max(s, spread[0]), max(t, spread[0])  # a variant may spread more than the others do
    error = math.sqrt(s**2 / len(mine) + t**2 / len(theirs))
    limit = STUDENT[max(n for n in STUDENT if n <= spread[1])]
    if abs(a - b) <= limit * error:
        return "same"
    return "higher" if a > b else "lower"


def quicker(claim: Claim, want: str, speeds: Speeds) -> dict[str, float]:
    """How many times the tokens a second, by where: of updates for a claim about training, else of reading."""
    kind = "updates" if want == "trains faster" else "reading"
    both = {place: by for place, by in speeds.items() if claim.variant in by and claim.against in by}
    return {place: by[claim.variant] / by[claim.against] for place, by in both.items() if place.startswith(kind)}


def telling(lines: list[Line]) -> list[str]:
    """The measures of quality that tell variants apart: masked words, sentence order if anyone learnt it, and of each
    task Matthews' correlation (a class that is frequent is no skill), or else its first score.
    """
    names = {name for line in lines for name in numbers([line])}
    found = [name for name in ("mlm_loss", "mlm_accuracy") if name in names]
    if "sop_accuracy" in names and not unlearnt(lines):
        found.append("sop_accuracy")
    for task in sorted({name.split()[1] for name in names if name.startswith("task ")}):
        scores = [score for line in lines for score in line.get("tasks", {}).get(task, {})]
        found.append(f"task {task} {'mcc' if 'mcc' in scores else scores[0]}")
    return found


def unlearnt(lines: list[Line]) -> bool:
    """Whether nobody learnt sentence order."""
    orders = [numbers(whole(lines, name))["sop_accuracy"] for name in {line["variant"] for line in lines}]
    return max((mean_spread(values)[0] for values in orders if values), default=0.0) < CHANCE


def moves(claim: Claim, lines: list[Line]) -> dict[str, tuple[float, str]]:
    """Of each measure of quality, by how much the variant is above the other (points; loss as it is), and better, worse
    or same.
    """
    mine, theirs = (numbers(whole(lines, name)) for name in (claim.variant, claim.against))
    known, found = spreads(lines), {}
    for name in telling(lines):
        if not mine[name] or not theirs[name]:
            continue
        change = mean_spread(mine[name])[0] - mean_spread(theirs[name])[0]
        said, loss = differs(mine[name], theirs[name], known.get(name)), name == "mlm_loss"
        word = "same" if said == "same" else "better" if (said == "lower") == loss else "worse"
        found[name] = (change if loss else 100 * change, word)
    return found


def least(lines: list[Line]) -> str:
    """The smallest differences of two variants with as many seeds as most have that count."""
    counts = [len(whole(lines, name)) for name in {line["variant"] for line in lines}]
    seeds, known, parts = max(set(counts), key=counts.count), spreads(lines), []
    for name in telling(lines):
        if name in known and seeds:
            spread, free = known[name]
            limit = STUDENT[max(n for n in STUDENT if n <= free)] * spread * math.sqrt(2 / seeds)
            parts.append(f"{shown(name)} {limit:.3f}" if name == "mlm_loss" else f"{shown(name)} {100 * limit:.1f}")
    return ", ".join(parts)


def shown(name: str) -> str:
    """A measure as it is called on the page."""
    return (
        name.removeprefix("task ")
        .replace("_", " ")
        .replace("mlm", "MLM")
        .replace("sop", "SOP")
        .replace("mcc", "Matthews")
    )


def judged(claim: Claim, lines: list[Line], speeds: Speeds) -> tuple[str, str]:
    """What the lines of one recipe say about a claim, and the verdict."""
    failed = [line for line in lines if line["variant"] == claim.variant and "failed" in line]
    mine, theirs = (numbers(whole(lines, name)) for name in (claim.variant, claim.against))
    if not mine and failed:
        return f"no training came to its end: {failed[0]['failed']}", f"not seen: {', '.join(claim.wants)}"
    if not mine or not theirs:
        return "", "not measured"
    ratios = {n: mean_spread(mine[n])[0] / mean_spread(theirs[n])[0] for n in ("parameters", "operations_per_token")}
    quality = moves(claim, lines)
    reading, training = quicker(claim, "faster", speeds), quicker(claim, "trains faster", speeds)
    said = [f"{len(failed)} trainings failed"] if failed else []
    said += [f"{name.replace('_', ' ')} × {ratio:.3g}" for name, ratio in ratios.items()]
    said += [f"tokens per second × {ratio:.3g} ({place})" for place, ratio in reading.items()]
    said += [f"tokens per second × {r:.3g} ({p})" for p, r in training.items() if "trains faster" in claim.wants]
    said += [
        f"{shown(n)} {c:+.3f} ({word})" if n == "mlm_loss" else f"{shown(n)} {c:+.2f} ({word})"
        for n, (c, word) in quality.items()
    ]
    words = {word for _, word in quality.values()}
    verdicts: dict[str, list[str]] = {
        "holds": [],
        "partly": [],
        "cannot tell": [],
        "does not hold": [],
        "not measured": [],
    }
    for want in claim.wants:
        if want in ("smaller", "fewer"):
            ratio = ratios["parameters" if want == "smaller" else "operations_per_token"]
            word = "holds" if ratio < 1 - SOME else "does not hold"
        elif want in ("faster", "trains faster"):
            fast = [ratio > 1 + QUICK for ratio in (reading if want == "faster" else training).values()]
            word = "not measured" if not fast else "holds" if all(fast) else "partly" if any(fast) else "does not hold"
        elif not quality:
            word = "not measured"
        elif want == "worse":
            word = "holds" if "worse" in words else "cannot tell"
        elif want == "no worse":
            word = "does not hold" if "worse" in words else "holds"
        elif {"better", "worse"} <= words:
            word = "partly"
        else:
            word = "holds" if "better" in words else "does not hold" if "worse" in words else "cannot tell"
        verdicts[word].append(want)
    verdict = "; ".join(f"{word}: {', '.join(wants)}" for word, wants in verdicts.items() if wants)
    once = min(len(whole(lines, name)) for name in (claim.variant, claim.against)) == 1
    return ", ".join(said + ([claim.note] if claim.note else [])), verdict + (" (one seed)" if once else "")


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
        "variant", "what differs", "seeds", "parameters, M", "operations a token, M", *(f"thousand tokens/s, {device}" for device in speeds),
        "MLM loss", "MLM accuracy, %", "SOP accuracy, %", *(f"{shown(t)}, %" for t in tasks),
    ]  # fmt: skip
    rows = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name, m in found.items():
        failed = sum("failed" in line for line in by[name])
        cells = [
            name + (f" ({failed} failed)" if failed else ""), given(name, by[name][0]["recipe"]), str(len(by[name])), cell(m["parameters"][:1], 1e-6), cell(m["operations_per_token"][:1], 1e-6, 1),
            *(cell([of[name]] if name in of else [], 1e-3, 1) for of in speeds.values()), cell(m["mlm_loss"], 1, 3), cell(m["mlm_accuracy"], 100), cell(m["sop_accuracy"], 100),
            *(cell(m[task], 100) for task in tasks),
        ]  # fmt: skip
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def speeds_of(recipe: dict[str, Any], speeds: list[dict[str, Any]]) -> Speeds:
    """Tokens a second of the same shape and length, by what was done and where."""
    found: Speeds = {}
    for record in speeds:
        own, machine = record["recipe"], record["machine"]
        if all(own.get(name) == recipe.get(name) for name in ("shape", "layers", "length")):
            threads = f", {machine['threads']} threads" if machine["device"] == "CPU" else ""
            compiled = "" if own.get("compile", "auto") == "auto" else f", compile {own['compile']}"
            label = f"{own.get('what', 'updates')}, {machine['device']}{threads}, {own['batch']} rows{compiled}"
            found[label] = record["tokens_per_second"]
    return found


def length_tables(found: dict[str, Any]) -> list[str]:
    """One table for each machine."""
    out = []
    for name, part in found.items():
        out += [
            "", f"### {name}", "",
            f"One layer of `{part['shape']}`, window {part['window']}, torch {part['machine']['torch']}, {part['machine']['threads']} threads.", "",
            "| tokens | texts at once | all see all, ms | window, ms | times faster |", "|---|---|---|---|---|",
        ]  # fmt: skip
        for row in part["rows"]:
            times = f"{row['full'] * 1e3:.2f} | {row['window'] * 1e3:.2f} | {row['full'] / row['window']:.2f}"
            out.append(f"| {row['length']} | {row['texts']} | {times} |")
        behind = [at for at, row in enumerate(part["rows"]) if row["full"] <= (1 + QUICK) * row["window"]]
        pays = next((row["length"] for row in part["rows"][(behind[-1] + 1 if behind else 0) :]), None)
        out += ["", f"It pays from {pays} tokens on." if pays else "It does not pay at these lengths."]
    return out


def command(recipe: dict[str, Any], seeds: list[int]) -> str:
    """How to measure a recipe again."""
    given = {name: recipe.get(name) for name in ("shape", "layers", "length", "batch", "tokens", "minutes", "optimizer", "learning_rate", "epochs", "examples")}  # fmt: skip
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in given.items() if value is not None]
    tasks = [f"--task {name}=TRAIN,DEV" for name in recipe.get("tasks", [])]
    return " ".join(["python studies/ablation.py run SHARDS", *tasks, *flags, f"--seeds {','.join(map(str, seeds))}"])


def given(name: str, recipe: dict[str, Any]) -> str:
    """What a variant changes, in the words of its config."""
    from ablation import VARIANTS

    if name not in VARIANTS:
        return ""
    variant = VARIANTS[name]
    config, plain = (
        v.config(recipe["shape"], recipe["length"], recipe.get("layers")) for v in (variant, VARIANTS[CANONICAL])
    )
    if name == CANONICAL:
        return f"k = {plain.embedding_size}, H = {plain.hidden_size}, {plain.num_attention_heads} heads, one group"
    own = {n: getattr(config.options, n) for n in variant.options} | {n: getattr(config, n) for n in variant.shape}
    return ", ".join(f"`{n}={value}`" for n, value in (own | variant.goals).items())


def again(recipe: dict[str, Any], machine: dict[str, str]) -> str:
    """How to measure a speed again."""
    what = recipe.get("what", "updates")
    flags = [
        f"--{n} {recipe[n]}"
        for n in ("shape", "layers", "length", "batch", "optimizer", "compile")
        if recipe.get(n) is not None
    ]
    verb = "speed SHARDS" if what == "updates" else "reading"
    return f"`python studies/ablation.py {verb} {' '.join(flags)} --device {'cpu' if machine['device'] == 'CPU' else 'cuda'}`"


def recipe_part(lines: list[Line], speeds: list[dict[str, Any]]) -> list[str]:
    """What was measured with one recipe: the command, the variants, the claims."""
    by: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by[line["variant"]].append(line)
    recipe, machine = lines[0]["recipe"], lines[0]["machine"]
    fast, layers = speeds_of(recipe, speeds), recipe.get("layers")
    budget = f"{recipe['tokens']:,} tokens" if recipe["tokens"] else f"{recipe['minutes']:g} minutes"
    many = f" with {layers} layers" if layers else ""
    corpus = f" The corpus: {recipe['corpus']}{CORPORA.get(recipe['corpus'][-9:-1], '')}." if "corpus" in recipe else ""
    timed = [again(record["recipe"], record["machine"]) for record in speeds if speeds_of(recipe, [record])]
    out = [
        "", f"## `{recipe['shape']}`{many}, {budget} of length {recipe['length']}, {machine['device']}, torch {machine['torch']}", "",
        f"`{command(recipe, sorted({line['seed'] for line in lines}))}`{corpus}", "",
        *([f"Speeds: {', '.join(timed)}.", ""] if timed else []),
        *variant_table(by, fast), "",
        *(["Nobody learnt sentence order with this budget (half of the answers are right by chance): it is left out of the verdicts.", ""] if "sop_accuracy" in numbers(lines) and unlearnt(lines) else []),
        f"The smallest differences that count: {least(lines)}. Below, in some eighty comparisons, chance makes about one.", "",
        "| document | what it said | compared | what we measured | verdict |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for claim in CLAIMS:
        said, verdict = judged(claim, lines, fast)
        out.append(f"| {claim.document} | {claim.says} | {claim.variant} with {claim.against} | {said} | {verdict} |")
    return out


INTRODUCTION = """# The documents' ideas, measured

Written by `python studies/ablation.py table`; [options](options.md) has the formulas, and [claim by claim](documents.md) all that the documents say, with what needs no training to be judged. Every variant sees the same
shards, the same budget and the same settings; only what its name says differs, and nothing was tuned for one of them. TRAIN and DEV are those of the data sets named, with at most `--examples` rows each. ± is the standard deviation over seeds.

A difference counts (better, worse) where chance makes one so large in one comparison of a hundred, with the spread of all variants together, or of the two where that is larger; otherwise the seeds cannot tell (same). Of tasks Matthews' correlation is judged, since
a frequent class is no skill. The verdict says of each thing that the document expects whether it *holds*, *does not hold*, holds *partly* (on one machine, or in one measure and not in another), or whether the seeds *cannot tell*. *smaller*: at least 2 % fewer parameters, of the whole model. *fewer*: at least 2 % fewer operations. *faster*: at
least 5 % more tokens a second when texts are read, on every machine; *trains faster*: the same for updates. *better*: a measure of quality is better and none is worse; *no worse*: none is seen to be worse; *worse*: one is. Speeds are of each variant alone on the machine, the best of
several rounds."""


def page(lines: list[Line], lengths: dict[str, Any], speeds: list[dict[str, Any]] | None = None) -> str:
    """The whole page: for each recipe the variants and the claims, then the lengths."""
    out = [INTRODUCTION]
    by_recipe: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_recipe[repr(sorted(line["recipe"].items()))].append(line)
    for of in by_recipe.values():
        out += recipe_part(of, speeds or [])
    if lengths:
        out += [
            "", "## Where a window begins to pay", "",
            "`python studies/ablation.py lengths`: the time of one layer, with all tokens seeing all and in a window.",
            *length_tables(lengths),
        ]  # fmt: skip
    return "\n".join(out) + "\n"


def written(lines: Path = RESULTS / "ablation.jsonl", lengths: Path = RESULTS / "ablation-lengths.json", speeds: Path = RESULTS / "ablation-speed.json") -> str:  # fmt: skip
    """The page of what was kept, with the variants in the order of the bench."""
    from ablation import VARIANTS

    order = list(VARIANTS)
    found = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()] if lines.is_file() else []
    found.sort(key=lambda line: (order.index(line["variant"]), line["seed"]))
    others = [json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None for path in (lengths, speeds)]
    return page(found, others[0] or {}, others[1])
