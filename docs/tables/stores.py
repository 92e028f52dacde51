"""Tables of guides/stores.md and results/benchmarks.md: where an index can be, and what it costs at each size."""

from __future__ import annotations

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


def largest_runs() -> dict[str, Any]:
    """The largest measured run of each place."""
    runs: dict[str, Any] = {}
    for run in read("stores.json")["runs"]:
        if run["vectors"] == "texts" and run["rows"] > runs.get(run["place"], {"rows": 0})["rows"]:
            runs[run["place"]] = run
    return runs


def bytes_per_text() -> dict[str, tuple[float, float]]:
    """Of each place, the bytes on disk and in memory; those in memory are what a fast search reads."""
    found = {}
    for place, run in largest_runs().items():
        texts = run["rows"] + run["added"]
        found[place] = (run["disk_mb"] * 1e6 / texts, run["memory_mb"] * 1e6 / texts)
    return found


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
    per_text, measured = bytes_per_text(), measured_file()
    rows = []
    for choice in CHOICES:
        if choice.place == "local" and choice.texts in measured:
            costs = [size(count) for count in measured[choice.texts]]
        else:
            costs = [COMPUTED + size(count * choice.texts) for count in per_text[choice.place]]
        rows.append((f"{choice.texts:,}", choice.use[language], *costs, choice.who[language]))
    return table(HEADS[language], rows)


def stores() -> str:
    rows = []
    for run in read("stores.json")["runs"]:
        if run["vectors"] == "texts":
            costs = (f"{run[key]:,.0f}" for key in ("disk_mb", "memory_mb"))
            rows.append((f"{run['rows']:,}", run["label"], f"{run['recall_10']:.3f}", *costs))
    return table(("texts", "index in", "recall@10", "disk, MB", "vectors or graph, MB"), rows)


TABLES = {"stores": stores, "store_sizes": lambda: sizes(0), "store_sizes_zh": lambda: sizes(1)}
