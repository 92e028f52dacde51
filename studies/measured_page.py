"""Measured tables inside pages that are otherwise written by hand: for `generate.py`.

In: a page with the two marks below, and the results of a bench. Out: the page with what was measured between the marks,
and nothing there where nothing was measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
RESULTS = Path(__file__).parent / "results"
MARKS = re.compile(r"(<!-- measured; written by `make docs` -->\n).*?(<!-- /measured -->\n)", re.S)
MEANS = ("accuracy", "seconds", "memory", "rate", "trained", "bytes")  # of a way of training, over its seeds
SHOWN = 3  # texts of a data set that are shown


def page(name: str, folder: Path = RESULTS) -> str:
    """The page with its table."""
    text = (DOCS / name).read_text(encoding="utf-8")
    made, count = MARKS.subn(lambda m: m[1] + between(name, folder) + m[2], text)
    if count != 1:
        raise SystemExit(f"docs/{name} must have the two marks of measured_page.py once; it has them {count} times")
    return made


def between(name: str, folder: Path) -> str:
    """What stands between the marks."""
    file, table = TABLES[name]
    path = folder / file
    return table(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else ""


def generation(found: dict[str, Any]) -> str:
    """What `studies/generation.py` measured: each way of writing beside a copy, and some of the texts."""
    lines: list[str] = []
    for name, one in found["sets"].items():
        lines += [
            f"### {name}", "",
            f"`{one['start']}`, taught with {one['examples']['train']:,} pairs in {one['minutes']:.1f} minutes; {one['examples']['test']:,} pairs that it has not seen, by `studies/generation.py`. Scores are of 100.", "",
            "| way | ROUGE-L | BLEU | length | ended by itself |", "|---|---|---|---|---|",
        ]  # fmt: skip
        for way, m in one["ways"].items():
            length = f"{m['length_ratio']:.2f}" if "length_ratio" in m else ""
            ended = f"{m['finished']:.0%}" if "finished" in m else ""
            lines.append(f"| {way} | {100 * m['rouge_l']:.1f} | {100 * m['bleu']:.1f} | {length} | {ended} |")
        lines += ["", "| source | right | written, greedily |", "|---|---|---|"]
        for text in one["shown"][:SHOWN]:
            lines.append("| " + " | ".join(cell(text[part]) for part in ("source", "target", "written")) + " |")
        lines.append("")
    return "\n".join(lines) + "\n" if lines else ""


def faithfulness(found: dict[str, Any]) -> str:
    """What `studies/faithfulness.py` measured: each method against random words."""
    lines: list[str] = []
    for name, one in found.items():
        lines += [
            f"### {name}", "", f"{one['rows'][0]['texts']} texts, {one['steps']} points for gradients.", "",
            "| method | hidden by | without them | random | gain | wins | them alone | random |", "|---|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for row in one["rows"]:
            if row["method"] not in ("occlusion", "gradients"):
                continue  # measured before the method was removed
            fall = f"{row['comprehensiveness']:.3f} | {row['random_comprehensiveness']:.3f}"
            left = f"{row['sufficiency']:.3f} | {row['random_sufficiency']:.3f}"
            gain = f"{row['gain']:+.3f} ± {row['gain_error']:.3f}"
            lines.append(f"| {row['method']} | {row['hide']} | {fall} | {gain} | {row['wins']:.0%} | {left} |")
        lines.append("")
    return "\n".join(lines) + "\n" if lines else ""


def adapters(found: dict[str, Any]) -> str:
    """What `studies/adapters.py` measured: LoRA beside training everything."""
    ways, dev = found["ways"], next(iter(found["ways"].values()))["runs"][0]["dev"]
    mean = {name: {k: fmean(run[k] for run in way["runs"]) for k in MEANS} for name, way in ways.items()}
    whole = mean["everything"]
    error = 100 * (whole["accuracy"] * (1 - whole["accuracy"]) / dev) ** 0.5
    lines = [
        "## Adapters", "",
        f"Do small matrices beside a frozen layer (LoRA) pay, when there is one layer that all depths share? `studies/adapters.py` on {found['data']}: `{found['start']}`, {found['examples']:,} examples, epochs: {found['epochs']:g}, "
        f"seeds: {len(ways['everything']['runs'])}, {dev:,} held-out texts; an accuracy near the first one has a standard error of {error:.1f} points. Head and pooler are trained in every way, the embeddings in the first alone.", "",
        "| trained | rate | accuracy | seconds | peak memory | trained parameters | a task adds |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, way in ways.items():
        m, runs = mean[name], way["runs"]
        notes = [word for word, there in (("collapsed", any(r["collapsed"] for r in runs)), ("rate halved", any(r["backoff"] < 1 for r in runs))) if there]  # fmt: skip
        lines.append(
            f"| {', '.join([name, *notes])} | {m['rate']:g} | {100 * m['accuracy']:.1f} | {m['seconds']:,.0f} | {m['memory'] / 1e6:,.0f} MB "
            f"| {m['trained']:,.0f} | {m['bytes'] / 1e6:.2f} MB |"
        )
    best = max((name for name, way in ways.items() if way["rank"]), key=lambda name: mean[name]["accuracy"])
    b, noise = mean[best], chance(ways, mean)
    lines += [
        "",
        f"The best adapters ({best}; the best of {sum(way['rank'] > 0 for way in ways.values())} on the same texts, which flatters them) are {100 * (b['accuracy'] - whole['accuracy']):+.1f} points from training everything, in {b['seconds'] / whole['seconds']:.2f} times the time, with {(b['memory'] - whole['memory']) / 1e6:+,.0f} MB. "
        f"Runs that differ in the rate alone differ by up to {noise['seconds']:.0f} s and {noise['memory'] / 1e6:,.0f} MB, so smaller differences of time and memory say nothing. What a task adds is a whole int8 folder in the first row, "
        "int8 tensors in the second, and a float32 file below. Adapters are summed into the matrices here; applied to hidden states instead, they would leave out the gradient of the matrices, at most a third of the operations. No verb reads adapters.",
        "",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def chance(ways: dict[str, Any], mean: dict[str, dict[str, float]]) -> dict[str, float]:
    """How far time and memory lie apart where they should be equal: between rates of the same rank."""
    same = [[mean[name] for name, way in ways.items() if way["rank"] == rank] for rank in {w["rank"] for w in ways.values() if w["rank"]}]  # fmt: skip
    return {
        k: max(max(m[k] for m in group) - min(m[k] for m in group) for group in same) for k in ("seconds", "memory")
    }


def cell(text: str) -> str:
    """A text of others inside a table."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", " ".join(text.split()))


TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "generation.md": ("generation.json", generation),
    "explain.md": ("faithfulness.json", faithfulness),
    "finetuning.md": ("adapters.json", adapters),
}
