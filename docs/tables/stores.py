"""Tables of guides/stores.md and results/benchmarks.md: where an index can be, and what it costs at each size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tables import read, table


@dataclass(frozen=True)
class Choice:
    """A place for so many texts, in the words of both languages."""

    texts: int
    place: str
    use: tuple[str, str]
    who: tuple[str, str]


CHOICES = (
    Choice(10_000, "local", ("a file", "一个文件"), ("nobody: it is part of your program", "无人：它是程序的一部分")),
    Choice(1_000_000, "local", ("a file", "一个文件"), ("nobody", "无人")),
    Choice(
        1_000_000,
        "pgvector",
        ("Postgres, if you run one, or if several machines write", "Postgres：已有数据库，或多台机器写入时"),
        ("whoever runs your database", "维护数据库的人"),
    ),
    Choice(
        100_000_000,
        "pgvector",
        ("Postgres, with the graph of vectors in memory", "Postgres，向量图放在内存中"),
        ("an administrator of a large server", "大型服务器的管理员"),
    ),
    Choice(
        100_000_000,
        "lancedb",
        ("LanceDB, where memory is short", "LanceDB：内存不足时"),
        ("nobody: a folder on a fast disk", "无人：快速磁盘上的一个文件夹"),
    ),
    Choice(
        1_000_000_000,
        "lancedb",
        ("several tables of LanceDB, or a service for vectors", "多个 LanceDB 表，或专门的向量服务"),
        ("a team", "一个团队"),
    ),
)
HEADS = (
    ("texts", "use", "disk", "memory", "who runs it"),
    ("文本数", "使用", "磁盘", "内存", "由谁维护"),
)
COMPUTED = "≈ "


def text_runs() -> list[dict[str, Any]]:
    """The runs with vectors of texts."""
    return [run for run in read("stores.json")["runs"] if run["vectors"] == "texts"]


def nearest_run(place: str, texts: int) -> dict[str, Any]:
    """The run of a place whose number of texts is the nearest, as a ratio."""
    runs = [run for run in text_runs() if run["place"] == place]
    return min(runs, key=lambda run: abs(math.log(run["rows"] / texts)))


def bytes_per_text(run: dict[str, Any]) -> tuple[float, float]:
    """Of a run, the bytes on disk and in memory; those in memory are what a fast search reads."""
    texts = run["rows"] + run["added"]
    return (run["disk_mb"] * 1e6 / texts, run["memory_mb"] * 1e6 / texts)


def measured_file() -> dict[int, tuple[float, float]]:
    """Texts → bytes on disk and in memory of an index in a file, as bench/search.py measured them."""
    runs = [run for run in read("search.json")["runs"] if run["candidate"] == "albertkit"]
    return {run["rows"]: (run["file_mb"] * 1e6, run["query_anonymous_mb"] * 1e6) for run in runs}


def size(count: float) -> str:
    for unit, least in (("TB", 1e12), ("GB", 1e9)):
        if count >= least:
            return f"{count / least:,.1f} {unit}" if count < 10 * least else f"{count / least:,.0f} {unit}"
    return f"{count / 1e6:,.0f} MB"


def sizes(language: int) -> str:
    measured = measured_file()
    rows = []
    for choice in CHOICES:
        if choice.place == "local" and choice.texts in measured:
            costs = [size(count) for count in measured[choice.texts]]
        else:
            run = nearest_run(choice.place, choice.texts)
            mark = "" if run["rows"] == choice.texts else COMPUTED
            costs = [mark + size(count * choice.texts) for count in bytes_per_text(run)]
        rows.append((f"{choice.texts:,}", choice.use[language], *costs, choice.who[language]))
    return table(HEADS[language], rows)


def stores() -> str:
    rows = []
    for run in text_runs():
        costs = (f"{run[key]:,.0f}" for key in ("disk_mb", "memory_mb", "build_rss_mb"))
        rows.append((f"{run['rows']:,}", run["label"], f"{run['recall_10']:.3f}", *costs))
    heads = ("texts", "index in", "recall@10", "disk, MB", "vectors or graph, MB", "peak memory of the build, MB")
    return table(heads, rows)


def store_times() -> str:
    rows = []
    for run in text_runs():
        query, hybrid = (f"{run[f'{kind}_ms']:,.1f}; {run[f'{kind}_p99_ms']:,.1f}" for kind in ("query", "hybrid"))
        load = "; ".join(f"{value:.1f}" for value in run["load"])
        times = (f"{run['build_s']:,.0f}", f"{run['add_1000_s']:.1f}", query, hybrid, f"{run['exact_ms']:,.1f}")
        rows.append((f"{run['rows']:,}", run["label"], *times, load))
    heads = ("build, s", "add 1,000, s", "query, ms: median; p99", "hybrid, ms: median; p99", "exact, ms", "load")
    return table(("texts", "index in", *heads), rows)


TABLES = {
    "stores": stores,
    "store_times": store_times,
    "store_sizes": lambda: sizes(0),
    "store_sizes_zh": lambda: sizes(1),
}
