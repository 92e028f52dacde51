"""What large jobs would cost, from what was measured on small ones: for `generate.py`.

In: `pretraining.json`, `corpus.json`, `bulk.json` in `studies/results/`, and `inference.json`, `memory.json`,
`search.json` in `bench/results/`. Out: the text of docs/scale.md, and the rows of the many-GPU table of
docs/pretraining-cost.md. Every number is one that was measured, times or divided by the sizes named at the top.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from albertkit.compress.cost import ShapeCost, shape_cost
from albertkit.config import preset

RESULTS = Path(__file__).parent / "results"
MEASURED = Path(__file__).parent.parent / "bench" / "results"
BUDGET = 100e9  # tokens that pre-training is for
STEP = 2**21  # tokens in one update: 4,096 rows of 512, as in the original
LINKS = {
    8: ("NVLink, 400 GB/s", 400e9),
    64: ("400 Gb/s between machines", 50e9),
    512: ("400 Gb/s between machines", 50e9),
}
TEXTS = 10e9  # texts to embed
DAYS = 7.0


def read(name: str) -> Any:
    """A file of results, of a study or of a benchmark."""
    folder = RESULTS if (RESULTS / name).is_file() else MEASURED
    return json.loads((folder / name).read_text(encoding="utf-8"))


def hours(speed: float, gradients: float, count: int) -> float:
    """Hours for the budget on so many GPUs, if adding up the gradients hides behind nothing."""
    update = STEP / count / speed + 2 * (count - 1) / count * gradients / LINKS[count][1]
    return BUDGET / STEP * update / 3600


def ideal(speed: float, count: int) -> float:
    """Hours if adding up took no time."""
    return BUDGET / speed / count / 3600


def gradients(made: ShapeCost, shared: bool = True) -> float:
    """Bytes of the gradients in float32, with or without sharing of layers."""
    return 4.0 * (
        (made.parameters["total"] if shared else made.unshared) + made.parameters["heads (masked word, order)"]
    )


def cost_row(shape: str, runs: dict[str, Any]) -> str:
    """A shape on 1 to 512 GPUs."""
    traffic, speed = gradients(shape_cost(preset(shape))), runs["albertkit"]["tokens_per_second"]
    memory = runs["albertkit"]["bytes_per_token"] * runs["rows"] * 128
    cells = []
    for count in LINKS:
        taken = hours(speed, traffic, count)
        cells.append(f"{taken:,.1f} ({ideal(speed, count) / taken:.0%} of ideal)")
    first = [shape, f"{traffic / 1e6:,.0f} MB", f"{memory / 1e9:,.0f} GB", f"{BUDGET / speed / 3600:,.0f}"]
    return f"| {' | '.join([*first, *cells])} |"


def page() -> str:
    """The whole page."""
    return "\n".join([
        "<!-- Written by `make docs`; do not edit. -->", "", "# Toward internet scale", "",
        "What large jobs would cost. These are models, not measurements: each number is one that was recorded in `bench/results/` or `studies/results/`, times or divided by the size of the job, and each section says what",
        "was left out. `studies/scale_page.py` computes them.", "",
        *pretraining(), *corpus(), *embedding(), *engine(), *searching(),
    ])  # fmt: skip


def pretraining() -> list[str]:
    """Five hundred GPUs, with and without sharing."""
    found, most = read("pretraining.json"), max(LINKS)
    lines = ["## Pre-training on 512 GPUs", "",
             f"{BUDGET / 1e9:,.0f} G tokens in updates of {STEP / 1e6:.1f} M tokens, from the speed of one {found['machine']['gpu']} ([how](pretraining-cost.md)), {LINKS[most][0]}. Gradients are added up in float32",
             "in a ring, and nothing of that hides behind computing. The last column is the same model with the gradients of a model whose layers do not share their weights: the computing is",
             "the same, the traffic is not. Left out: starting, checkpoints, machines that fail.", "",
             "| shape | gradients | hours | share of ideal | gradients without sharing | hours without sharing |", "|---|---|---|---|---|---|"]  # fmt: skip
    for shape, runs in found["shapes"].items():
        made, speed = shape_cost(preset(shape)), runs["albertkit"]["tokens_per_second"]
        ours, theirs = (gradients(made, shared) for shared in (True, False))
        taken = hours(speed, ours, most)
        lines.append(f"| {shape} | {ours / 1e6:,.0f} MB | {taken:,.2f} | {ideal(speed, most) / taken:.0%} | {theirs / 1e6:,.0f} MB | {hours(speed, theirs, most):,.2f} |")  # fmt: skip
    return [*lines, ""]


def corpus() -> list[str]:
    """The tokens for it."""
    run = read("corpus.json")["runs"]["English Wikipedia"]
    count, speed = run["counts"]["tokens"], run["tokens_per_second"]
    return ["## Its corpus", "",
            f"{BUDGET / 1e9:,.0f} G tokens of text like English Wikipedia are {BUDGET * run['text_bytes'] / count / 1e9:,.0f} GB of text and {BUDGET * run['corpus_bytes'] / count / 1e9:,.0f} GB of shards. Two cores make {speed / 1e6:.2f} M",
            f"tokens a second ([measured](corpus.md)), so {BUDGET / speed / 3600:,.0f} hours; inputs may be divided among machines, one folder each. Left out: duplicates between such folders.", ""]  # fmt: skip


def embedding() -> list[str]:
    """Ten billion texts."""
    found, curve = read("inference.json"), read("memory.json")["curve"]
    machine, works = found["machine"], found["workloads"]["mixed texts"]
    lines = [f"## Embedding {TEXTS / 1e9:,.0f} billion texts", "",
             f"The base shape at full depth, texts of {found['tokens']['mean']:.0f} tokens in the mean, from the texts a second of {machine['threads']} threads of {machine['processor']} ([measured](inference.md)). Texts do not depend on each",
             f"other, so machines divide them; the last column is how many such pairs of threads end within {DAYS:.0f} days. Left out: reading and writing, machines that fail.", "",
             "| program | texts/s | years of 2 threads | pairs of threads for a week |", "|---|---|---|---|"]  # fmt: skip
    for name, speed in works.items():
        seconds = TEXTS / speed["texts_per_second"]
        lines.append(f"| {name} | {speed['texts_per_second']:.1f} | {seconds / 86400 / 365:,.1f} | {seconds / 86400 / DAYS:,.0f} |")  # fmt: skip
    late = [point["rss_mb"] for point in curve[len(curve) // 2 :]]
    return [*lines, "", f"Memory does not grow with the number of texts: over the second half of {curve[-1]['texts']:,} texts from a generator the process took {min(late):,.0f} to {max(late):,.0f} MB. A small shape, fewer layers",
            "(`depth=`) or a [static table](compression.md) need a fraction of this; [shapes](shapes.md) has the operations of each.", ""]  # fmt: skip


def engine() -> list[str]:
    """What the way through an engine costs."""
    found = read("bulk.json")
    plain, ray, machine = found["plain"], found["ray"], found["machine"]
    core = ray["texts_per_second"] / found["workers"]
    hours = TEXTS / core / 3600
    return ["### Through Ray, measured", "",
            f"`studies/bulk.py` embeds {found['texts'] / 1e6:.0f} million short texts with a tiny model, so that the engine and not the model is measured: {found['workers']} workers on {machine['threads']} threads of {machine['processor']}, Ray {found['libraries']['ray']},",
            f"{found['kills']} workers killed on the way. Every text was in the output exactly once, and the vectors had the same bits as those of plain processes, which read, embed and write and do nothing else.", "",
            "| | seconds | texts/s | largest worker, MB | growth of a worker, second half, MB | the command, MB | Ray's own processes, MB |", "|---|---|---|---|---|---|---|",
            *(f"| {name} | {run['seconds']:,.0f} | {run['texts_per_second']:,.0f} | {run['worker_peak_mb']:,.0f} | {run['worker_growth_mb']:.1f} | {run['driver_peak_mb'] or '–'} | {run['other_peak_mb'] or '–'} |"
              for name, run in ((f"{found['workers']} plain processes", plain), (f"Ray, {found['kills']} kills", ray))), "",
            f"Ray took {ray['seconds'] / plain['seconds'] - 1:.1%} longer, with its start, its plan and the work that was done twice. {TEXTS / 1e9:,.0f} billion such texts would take {hours:,.0f} hours of one core and write {TEXTS * found['output_bytes'] / found['texts'] / 1e12:,.1f} TB.", ""]  # fmt: skip


def searching() -> list[str]:
    """What to do with the vectors."""
    found = read("search.json")
    run = max((r for r in found["runs"] if r["candidate"] == "albertkit"), key=lambda r: r["rows"])
    size, scan = run["file_mb"] * 1e6 / run["rows"], run["query_ms_2"] / 1000 / run["rows"]
    return ["## Searching in them", "",
            f"An index of {found['machine']['dim']} numbers a text, texts and words included, takes {size:,.0f} bytes a text ([measured](search.md) at {run['rows']:,}): {TEXTS * size / 1e12:,.1f} TB for {TEXTS / 1e9:,.0f} billion. Search compares every vector,",
            f"{1 / scan / 1e6:,.1f} million a second on two threads, so one query through all of them would take {TEXTS * scan / 60:,.0f} minutes there, and a second on {TEXTS * scan:,.0f} pairs of threads. That is beyond what",
            "this index is for; at that size use an approximate index of another program on the vectors (`albertkit embed -o vectors.npy`).", ""]  # fmt: skip
