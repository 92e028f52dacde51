"""Tables of the section "In the browser" of results/benchmarks.md."""

from __future__ import annotations

import statistics
from typing import Any

from tables import megabytes, read, table, times

PEER = "transformers.js, MiniLM-L6 q8"
PARTS = {
    "model": ("weights.bin", "model_quantized.onnx"),
    "onnxruntime-web": (".wasm", "ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "asyncify.mjs", "jsep.mjs"),
    "tokenizer": ("tokenizer.json", "tokenizer_config.json"),
}


def part_of(file: str) -> str:
    return next((part for part, ends in PARTS.items() if file.endswith(ends)), "page and scripts")


def transfer() -> str:
    rows = []
    for name, files in read("web.json")["transfer"].items():
        sums = {part: [0, 0, 0] for part in (*PARTS, "page and scripts")}
        for file, sizes in files.items():
            sums[part_of(file)] = [a + b for a, b in zip(sums[part_of(file)], sizes, strict=True)]
        total = [sum(column) for column in zip(*sums.values(), strict=True)]
        parts = (megabytes(sums[part][1]) for part in sums)
        rows.append((PEER if name == "peer" else f"`{name}`", *parts, megabytes(total[1]), megabytes(total[2])))
    heads = ("program", *(f"{part}, MB" for part in (*PARTS, "page and scripts")), "all with gzip, MB", "all with brotli, MB")  # fmt: skip
    return table(heads, rows)


def speed() -> str:
    found = read("web.json")["texts_per_second"]
    rows = []
    for name in found["one thread"]:
        label = PEER if name == "peer" else f"`small`, {name}"
        one, two = (found[threads][name]["second"] for threads in ("one thread", "two threads"))
        processor = found["one thread"][name]["processor_second"]
        ratio = times(processor / found["one thread"]["peer"]["processor_second"])
        rows.append((label, f"{processor:.1f}", ratio, f"{one:.1f}", f"{two:.1f}"))
    heads = (
        "program",
        "texts per processor second, one thread",
        "ratio",
        "texts/s, one thread",
        "texts/s, two threads",
    )
    return table(heads, rows)


def starts() -> str:
    found = read("web.json")
    seconds: dict[str, Any] = found["seconds_to_first_vector"]
    rows = [
        (name, f"{statistics.median(seconds[name]):.2f}", f"{max(seconds[name]):.2f}")
        for name in ("first visit", "second visit", "later visit")
    ]
    return table(("page load to first vector", "median, s", "longest, s"), rows)


def index() -> str:
    rows = (
        (f"`small`, {depth}", f"{one['seconds']:.1f}", f"{one['processor_seconds']:.1f}", f"{one['milliseconds']:.0f}")
        for depth, one in read("web.json")["index"].items()
    )
    return table(("one thread", "index of 1,000 notes, s", "of these, processor time", "query, ms"), rows)


def agreement() -> str:
    names = {"browser": "the browser", "compiled": "Python, compiled layers", "floats": "Python, float activations"}
    rows = [
        (f"`{name}`, depth {found['depth']}", label, *(f"{found[other][key]:.4f}" for key in ("cosine_mean", "cosine_least")),
         *(f"{100 * found[other][key]:.1f} %" for key in ("same_neighbour", "nearly_same_neighbour")), f"{found[other]['lost_score_most']:.4f}")
        for name, found in read("web.json")["agreement"].items()
        for other, label in names.items()
        if other in found
    ]  # fmt: skip
    heads = ("model", "compared with Python in onnxruntime", "mean cosine", "least cosine", "same nearest neighbour", "the same or a near tie", "largest loss of score")  # fmt: skip
    return table(heads, rows)


def memory() -> str:
    names = {"one thread": "`small`, one thread", "two threads": "`small`, two threads", "peer": PEER}
    found = read("web.json")["memory_mb"]
    return table(("program", "memory of the tab, MB"), ((label, f"{found[name]:.0f}") for name, label in names.items()))


TABLES = {
    "web-transfer": transfer,
    "web-speed": speed,
    "web-starts": starts,
    "web-index": index,
    "web-agreement": agreement,
    "web-memory": memory,
}
