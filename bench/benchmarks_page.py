"""The comparison with other programs: its rows, its picture and README's table, for `docs/generate.py`.

In: `bench/results/report.json`, which `bench/report.py` writes. Out: docs/images/benchmarks.png, and the part of README.md
and README.zh-CN.md between two marks.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
REPORT = Path(__file__).parent / "results" / "report.json"
MARKS = re.compile(r"(<!-- benchmarks: begin[^>]*-->\n).*?(<!-- benchmarks: end -->)", re.S)
RECALL, LEAST_RECALL = re.compile(r"recall (\d\.\d+)"), 0.95
README_ROWS = (
    "mixed texts",
    "one short text",
    "mixed texts, built-in model",
    "server, 8 texts a request",
    "cold start",
    "fine-tuning",
    "pre-training",
)
FLOAT, BUILT_IN = ("float32", "float32"), ("built-in model beside MiniLM-L6", "内置模型与 MiniLM-L6 相比")
TITLES = {  # what was measured → its name in README.md and in README.zh-CN.md
    "one short text": ("one short text", "一条短文本"),
    "one text of 128 tokens": ("one text of 128 tokens", "一条 128 个词元的文本"),
    "128 tokens": ("texts of 128 tokens", "128 个词元的文本"),
    "long documents": ("long documents", "长文档"),
    "mixed texts": ("short and long texts, mixed", "长短混合的文本"),
    "cold start": ("process start to first vector", "从启动进程到得到第一个向量"),
    "cold memory": ("memory of a new process", "新进程的内存"),
    "on disk": ("size on disk", "磁盘大小"),
    "pre-training": ("pre-training", "预训练"),
    "fine-tuning": ("fine-tuning", "微调"),
    "search": ("search of a small collection", "小型文本库的搜索"),
    "server, one text a request": ("server, one text per request", "服务器，每个请求一条文本"),
    "server, 8 texts a request": ("server, 8 texts per request", "服务器，每个请求 8 条文本"),
}
TITLES |= {
    f"{work}, {key}": (f"{TITLES[work][0]}, {names[0]}", f"{TITLES[work][1]}，{names[1]}")
    for work in ("one short text", "one text of 128 tokens", "128 tokens", "long documents", "mixed texts")
    for key, names in (("float32", FLOAT), ("built-in model", BUILT_IN))
}
README_WORDS = {
    "README.md": {
        "head": "| | albertkit | nearest peer | speedup |",
        "default": " (defaults: {0})",
        "measured": "Measured by `make bench` on {threads} threads of an {cpu}, {date}. [Benchmarks](docs/results/benchmarks.md) has every program and every row.",
        "losses": "A peer is ahead in {0}.",
        "loss": "{title} ({peer}: {theirs}, albertkit: {ours})",
        "and": (", ", " and "),
    },
    "README.zh-CN.md": {
        "head": "| | albertkit | 最接近的同类程序 | 加速比 |",
        "default": "（默认设置：{0}）",
        "measured": "由 `make bench` 在 {cpu}（{threads} 个线程）上测得，{date}。所有程序和数据见[基准测试](docs/results/benchmarks.md)。",
        "losses": "同类程序领先的有：{0}。",
        "loss": "{title}（{peer}：{theirs}，albertkit：{ours}）",
        "and": ("；", "；"),
    },
}  # fmt: skip


def load(path: Path = REPORT) -> dict[str, Any] | None:
    """The report, if benchmarks were run."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows of the parts that ran."""
    return [row for part in report["parts"].values() for row in part.get("rows", ())]


def nearest(report: dict[str, Any]) -> list[dict[str, Any]]:
    """For each thing that was measured, our best row against the other program that comes nearest, or beats us by most,
    and gives about the same answers.
    """
    by_measurement: dict[str, list[dict[str, Any]]] = {}
    for row in rows(report):
        if row["ratio"] is not None and recall(row["peer"]) >= LEAST_RECALL:
            by_measurement.setdefault(row["what"], []).append(row)
    return [min(best(of), key=lambda row: row["ratio"]) for of in by_measurement.values()]


def recall(peer: str | None) -> float:
    """The share of the right answers that a program finds, where its name tells it; else all."""
    match = RECALL.search(peer or "")
    return float(match[1]) if match else 1.0


def best(rows_of_measurement: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of our best value."""
    value = (max if rows_of_measurement[0]["more_is_better"] else min)(row["value"] for row in rows_of_measurement)
    return [row for row in rows_of_measurement if row["value"] == value]


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(report: dict[str, Any], name: str) -> str:
    """README's part, in its language: at most seven speedups, and one sentence about what a peer does better."""
    words, language = README_WORDS[name], list(README_WORDS).index(name)
    by_measurement = {row["what"]: row for row in nearest(report)}
    lines = ["", words["head"], "|---|---|---|---|"]
    for row in (
        by_measurement[what] for what in README_ROWS if what in by_measurement and by_measurement[what]["ratio"] > 1
    ):
        ours, theirs = (f"{number(row[side])} {row['unit']}" for side in ("value", "theirs"))
        default = "" if row.get("default") is None else words["default"].format(number(row["default"]))
        lines.append(
            f"| {TITLES[row['what']][language]} | {ours} | {row['peer']}: {theirs}{default} | {row['ratio']:.1f}× |"
        )
    losses = [
        words["loss"].format(
            title=TITLES[row["what"]][language],
            peer=row["peer"].split(" (recall")[0],
            theirs=f"{number(row['theirs'])} {row['unit']}",
            ours=f"{number(row['value'])} {row['unit']}",
        )
        for row in sorted(by_measurement.values(), key=lambda row: float(row["ratio"]))
        if row["ratio"] < 1
    ]
    machine = report["machine"]
    cpu = machine["processor"].replace("(R)", "").removesuffix(" Processor")
    sentences = [words["measured"].format(cpu=cpu, threads=machine["threads"], date=machine["date"])]
    if losses:
        comma, last = words["and"]
        sentences.append(words["losses"].format(last.join(filter(None, (comma.join(losses[:-1]), losses[-1])))))
    return "\n".join([*lines, "", *sentences, "", ""])


def readme(text: str, report: dict[str, Any] | None, name: str) -> str:
    """README with the part between its marks renewed; as it is, without a report."""
    if report is None:
        return text
    if not MARKS.search(text):
        raise ValueError(f"{name} has no marks for the table of benchmarks")
    return MARKS.sub(lambda match: match.group(1) + table(report, name) + match.group(2), text)


def picture(report: dict[str, Any], path: Path = DOCS / "images" / "benchmarks.png") -> Path:
    """The ratio to the nearest other program, one bar for each measurement."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = nearest(report)
    figure, axes = pyplot.subplots(figsize=(9, 0.5 * len(shown) + 1.2))
    names = [f"{TITLES[row['what']][0]}\nbeside {row['peer'].split(' (recall')[0]}" for row in shown]
    ratios = [row["ratio"] for row in shown]
    axes.barh(
        names, [ratio - 1 for ratio in ratios], left=1, color=["#00897b" if r >= 1 else "#c0392b" for r in ratios]
    )
    axes.set_xscale("log")
    axes.axvline(1, color="#46505c", linewidth=1)
    for at, ratio in enumerate(ratios):
        axes.annotate(f"{ratio:.2f}×", (ratio, at), xytext=(4 if ratio >= 1 else -4, 0), textcoords="offset points", va="center", ha="left" if ratio >= 1 else "right", fontsize=8)  # fmt: skip
    axes.margins(x=0.2)
    axes.invert_yaxis()
    axes.set_xlabel("ratio; above 1 albertkit is better")
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    return path
