"""Comparison of libraries that store and search vectors on disk.

python bench/search.py --rows 100000                 run every installed candidate, add to results/search.json
python bench/search.py --rows 1000000 --only usearch
python bench/search.py --rows 1000000 --vectors real.npy
                                                     vectors of texts, written by `albertkit embed --file`; the last
                                                     1,000 are the queries. Without it, vectors are synthetic.

Each phase is a separate process, so peak memory and import time are those of one library. `--site FOLDER` is a folder
with one `pip install --target` folder per library (FOLDER/usearch, FOLDER/faiss-cpu …). Without it, the libraries must
be importable.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import itertools
import json
import mmap
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "search.json"
DIM, CENTRES, QUERIES, ADDED, K = 384, 2000, 200, 1000, 10
EXACT_QUERIES = 20
TEXT = "How long does it take to travel from the airport to the old town by train?"
Phase = Callable[..., Any]


# The data -------------------------------------------------------------------------------------------------------


def make(folder: Path, rows: int) -> None:
    """Unit vectors around 2,000 centres that spread along 48 shared directions, and queries close to some of them."""
    rng = np.random.default_rng(20)
    centres = rng.standard_normal((CENTRES, DIM), dtype=np.float32)
    spread = rng.standard_normal((48, DIM), dtype=np.float32) * (0.95 ** np.arange(48, dtype=np.float32))[:, None]
    total = rows + ADDED
    base = np.lib.format.open_memmap(folder / "base.npy", "w+", np.float32, (total, DIM))
    for start in range(0, total, 50_000):
        size = min(50_000, total - start)
        block = centres[rng.integers(0, CENTRES, size)]
        block += 0.35 * rng.standard_normal((size, 48), dtype=np.float32) @ spread
        block += 0.3 * rng.standard_normal((size, DIM), dtype=np.float32)
        base[start : start + size] = unit(block)
    near = np.sort(rng.choice(total, QUERIES, replace=False))
    queries = unit(base[near] + 0.03 * rng.standard_normal((QUERIES, DIM), dtype=np.float32))
    find_neighbours(folder, base, queries)


def take(folder: Path, rows: int, source: Path) -> None:
    """Vectors of texts: the first ones of a file; its last 1,000 are the queries."""
    found = np.load(source, mmap_mode="r")
    if found.shape[1] != DIM or len(found) < rows + 2 * ADDED:
        raise SystemExit(f"{source} has shape {found.shape}; pass at least {rows + 2 * ADDED} rows of {DIM} numbers")
    base = np.lib.format.open_memmap(folder / "base.npy", "w+", np.float32, (rows + ADDED, DIM))
    for start, part in chunks(found[: rows + ADDED], 50_000):
        base[start : start + len(part)] = unit(part)
    find_neighbours(folder, base, unit(np.array(found[-ADDED:])))


def find_neighbours(folder: Path, base: np.ndarray, queries: np.ndarray) -> None:
    """The queries and their true neighbours."""
    np.save(folder / "queries.npy", queries)
    best: np.ndarray = np.full((len(queries), K), -np.inf, np.float32)
    truth: np.ndarray = np.zeros((len(queries), K), np.int64)
    for start in range(0, len(base), 50_000):
        scores = np.concatenate([best, queries @ base[start : start + 50_000].T], axis=1)
        ids = np.concatenate(
            [truth, np.tile(np.arange(start, min(start + 50_000, len(base))), (len(queries), 1))], axis=1
        )
        order = np.argsort(-scores, axis=1, kind="stable")[:, :K]
        best, truth = np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)
    np.save(folder / "truth.npy", truth)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def chunks(base: np.ndarray, size: int = 10_000) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(base), size):
        yield start, np.array(base[start : start + size])
        forget(base)


def forget(base: Any) -> None:
    """Let go of the mapped pages of the data, which would count as the candidate's memory."""
    if hasattr(mmap, "MADV_DONTNEED") and getattr(base, "_mmap", None) is not None:
        base._mmap.madvise(mmap.MADV_DONTNEED)


def int8(rows: np.ndarray) -> np.ndarray:
    return np.clip(np.round(rows * (127 / 0.35)), -127, 127).astype(np.int8)


# The candidates: build(path, base), add(path, first id, rows), open(path, threads) → query function ------------------


class Numpy32:
    """A .npy file of floats, every row compared."""

    label, package, exact, delete, safe = "numpy, float32, exact", "numpy", True, "rewrite", "no"

    def build(self, path: Path, base: np.ndarray) -> None:
        with path.open("wb") as file:
            for _, rows in chunks(base):
                file.write(np.ascontiguousarray(rows, np.float32).tobytes())

    def add(self, path: Path, first: int, rows: np.ndarray) -> None:
        with path.open("ab") as file:
            file.write(rows.tobytes())

    def open(self, path: Path, threads: int) -> Phase:
        matrix = np.memmap(path, np.float32, "r").reshape(-1, DIM)
        return lambda q: top(matrix @ q)


class Numpy8(Numpy32):
    """Bytes instead of floats: a quarter of the memory to read, turned into floats a few hundred rows at a time."""

    label = "numpy, int8, exact"

    def build(self, path: Path, base: np.ndarray) -> None:
        with path.open("wb") as file:
            for _, rows in chunks(base):
                file.write(int8(rows).tobytes())

    def add(self, path: Path, first: int, rows: np.ndarray) -> None:
        with path.open("ab") as file:
            file.write(int8(rows).tobytes())

    def open(self, path: Path, threads: int) -> Phase:
        from concurrent.futures import ThreadPoolExecutor

        matrix = np.memmap(path, np.int8, "r").reshape(-1, DIM)
        scores = np.empty(len(matrix), np.float32)
        pool = ThreadPoolExecutor(threads)

        def part(span: tuple[int, int], q: np.ndarray) -> None:
            room = np.empty((512, DIM), np.float32)
            for start in range(*span, 512):
                rows = matrix[start : min(start + 512, span[1])]
                np.copyto(room[: len(rows)], rows)
                np.dot(room[: len(rows)], q, out=scores[start : start + len(rows)])

        edges = np.linspace(0, len(matrix), threads + 1).astype(int)

        def query(q: np.ndarray) -> np.ndarray:
            list(pool.map(lambda span: part(span, q), itertools.pairwise(edges)))
            return top(scores)

        return query


class Usearch:
    """HNSW over bytes, opened as a view of the file."""

    label, package, exact, delete, safe = "usearch, HNSW int8", "usearch", False, "yes (marks)", "no (save rewrites)"

    def fresh(self) -> Any:
        from usearch.index import Index

        return Index(ndim=DIM, metric="cos", dtype="i8", connectivity=16, expansion_add=128, expansion_search=64)

    def build(self, path: Path, base: np.ndarray) -> None:
        index = self.fresh()
        for start, rows in chunks(base):
            index.add(np.arange(start, start + len(rows)), np.ascontiguousarray(rows), threads=2)
        index.save(str(path))

    def add(self, path: Path, first: int, rows: np.ndarray) -> None:
        index = self.fresh()
        index.load(str(path))
        index.add(np.arange(first, first + len(rows)), rows, threads=2)
        index.save(str(path))

    def open(self, path: Path, threads: int) -> Phase:
        index = self.fresh()
        index.view(str(path))
        return lambda q: index.search(q, K, threads=threads).keys


class Faiss:
    """HNSW over bytes."""

    label, package, exact, delete, safe = "faiss, HNSW32 SQ8", "faiss-cpu", False, "no", "no (save rewrites)"
    recipe = "HNSW32_SQ8"

    def build(self, path: Path, base: np.ndarray) -> None:
        import faiss

        faiss.omp_set_num_threads(2)
        index = faiss.index_factory(DIM, self.recipe, faiss.METRIC_INNER_PRODUCT)
        step = max(1, len(base) // 100_000)
        index.train(np.ascontiguousarray(base[::step]))
        for _, rows in chunks(base):
            index.add(np.ascontiguousarray(rows))
        faiss.write_index(index, str(path))

    def add(self, path: Path, first: int, rows: np.ndarray) -> None:
        import faiss

        index = faiss.read_index(str(path))
        index.add(rows)
        faiss.write_index(index, str(path))

    def open(self, path: Path, threads: int) -> Phase:
        import faiss

        faiss.omp_set_num_threads(threads)
        index = faiss.read_index(str(path))
        if "IVF" in self.recipe:
            faiss.extract_index_ivf(index).nprobe = 64
        elif "HNSW" in self.recipe:
            index.hnsw.efSearch = 64
        return lambda q: index.search(q[None], K)[1][0]


class FaissFlat(Faiss):
    """Every row compared, in floats."""

    label, exact, delete, recipe = "faiss, flat float32, exact", True, "yes", "Flat"


class FaissIvf(Faiss):
    """Cells of a k-means, 64 of them visited."""

    label, delete, recipe = "faiss, IVF1024 SQ8", "yes", "IVF1024,SQ8"


class Lance:
    """LanceDB with its IVF_HNSW_SQ index."""

    label, package, exact, delete, safe = "LanceDB, IVF_HNSW_SQ", "lancedb", False, "yes", "yes (versions)"

    def arrow(self, first: int, rows: np.ndarray) -> Any:
        import pyarrow as pa

        flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(flat, DIM)
        return pa.table({"id": pa.array(np.arange(first, first + len(rows))), "vector": vectors})

    def build(self, path: Path, base: np.ndarray) -> None:
        import lancedb

        table = lancedb.connect(str(path)).create_table("t", self.arrow(0, base[:10_000]))
        for start, rows in chunks(base[10_000:], 50_000):
            table.add(self.arrow(start + 10_000, rows))
        table.create_index(metric="cosine", vector_column_name="vector", index_type="IVF_HNSW_SQ")

    def add(self, path: Path, first: int, rows: np.ndarray) -> None:
        import lancedb

        lancedb.connect(str(path)).open_table("t").add(self.arrow(first, rows))

    def open(self, path: Path, threads: int) -> Phase:
        import lancedb

        table = lancedb.connect(str(path)).open_table("t")
        return lambda q: table.search(q).distance_type("cosine").limit(K).select(["id"]).to_arrow()["id"].to_numpy()


class SqliteVec:
    """sqlite-vec's vec0 table of bytes; needs an sqlite3 that loads extensions."""

    label, package, exact, delete, safe = "sqlite-vec, int8, exact", "sqlite-vec", True, "yes", "yes (transactions)"

    def connect(self, path: Path) -> Any:
        import sqlite_vec

        driver: Any = sqlite3
        if not hasattr(sqlite3.Connection, "enable_load_extension"):
            driver = importlib.import_module("pysqlite3")
        connection = driver.connect(str(path))
        connection.enable_load_extension(True)
        sqlite_vec.load(connection)
        return connection

    def build(self, path: Path, base: np.ndarray) -> None:
        connection = self.connect(path)
        connection.execute(f"CREATE VIRTUAL TABLE t USING vec0(v int8[{DIM}] distance_metric=cosine)")
        for start, rows in chunks(base):
            self.insert(connection, start, rows)
        connection.close()

    def insert(self, connection: Any, first: int, rows: np.ndarray) -> None:
        with connection:
            connection.executemany(
                "INSERT INTO t(rowid, v) VALUES (?, vec_int8(?))",
                ((first + i, row.tobytes()) for i, row in enumerate(int8(rows))),
            )

    def add(self, path: Path, first: int, rows: np.ndarray) -> None:
        connection = self.connect(path)
        self.insert(connection, first, rows)
        connection.close()

    def open(self, path: Path, threads: int) -> Phase:
        connection = self.connect(path)
        ask = "SELECT rowid FROM t WHERE v MATCH vec_int8(?) AND k = ? ORDER BY distance"
        return lambda q: np.array([r[0] for r in connection.execute(ask, (int8(q).tobytes(), K))])


class Own:
    """albertkit's index: SQLite holds texts, keywords and blocks of bytes; numpy compares signs, then the nearest rows."""

    label, package, exact, delete, safe = "albertkit index", "numpy", False, "yes", "yes (transactions)"

    def build(self, path: Path, base: np.ndarray) -> None:
        from albertkit.search.index import Index

        Index.create(path, Rows(base)).add(records(0, len(base)), batch=4096)

    def add(self, path: Path, first: int, rows: np.ndarray) -> None:
        from albertkit.search.index import Index

        Index.open(path, Rows(rows, first)).add(records(first, len(rows)))

    def open(self, path: Path, threads: int) -> Phase:
        from albertkit.search.index import Index

        index = Index.open(path, Rows(np.zeros((0, DIM), np.float32)))
        return lambda q, exact=False: np.array(
            [int(hit.id) for hit in index.search_many([""], K, "vector", q[None], -1, exact)[0]]
        )

    def others(self, query: Phase, queries: np.ndarray, threads: int) -> dict[str, float]:
        """Milliseconds of an exact query, and of a query with the vector of its text computed."""
        from albertkit import Albert

        albert = Albert(threads=threads)
        albert.embed(TEXT)
        exact = milliseconds([seconds(lambda q=q: query(q, exact=True)) for q in queries[:EXACT_QUERIES]])
        texts = [seconds(lambda: query(albert.embed(TEXT))) for _ in range(10 * EXACT_QUERIES)]
        return {"exact_ms": exact, "text_query_ms": milliseconds(texts)}


class Rows:
    """An embedder that knows each text's vector by the number at its end."""

    dim, name = DIM, "bench"

    def __init__(self, base: np.ndarray, first: int = 0) -> None:
        self.base, self.first = base, first

    def embed(self, texts: Iterable[str]) -> np.ndarray:
        from albertkit.search.relevance import NONSENSE  # has no vectors here; searches use no limit

        known = (self.base[0] if t in NONSENSE else self.base[int(t.rsplit(" ", 1)[1]) - self.first] for t in texts)
        found = np.stack(list(known))
        forget(self.base)
        return found


def records(first: int, count: int) -> Iterator[Any]:
    from albertkit.search.index import Record

    rng = np.random.default_rng(first)
    for start in range(0, count, 10_000):
        words = rng.zipf(1.3, (min(10_000, count - start), 12)) % 50_000
        for i, row in enumerate(words.tolist(), start):
            text = " ".join(f"w{word}" for word in row)
            yield Record(id=str(first + i), text=f"{text} {first + i}", source="bench", line=i)


CANDIDATES: dict[str, Any] = {
    "numpy32": Numpy32,
    "numpy8": Numpy8,
    "albertkit": Own,
    "sqlite-vec": SqliteVec,
    "faiss-flat": FaissFlat,
    "usearch": Usearch,
    "faiss-hnsw": Faiss,
    "faiss-ivf": FaissIvf,
    "lancedb": Lance,
}
MODULES = {"usearch": "usearch.index", "faiss-cpu": "faiss", "lancedb": "lancedb", "sqlite-vec": "sqlite_vec"}


def top(scores: np.ndarray) -> np.ndarray:
    found = np.argpartition(scores, -K)[-K:]
    return found[np.argsort(-scores[found])]


# One phase in one process -----------------------------------------------------------------------------------------


def phase(name: str, what: str, folder: Path, threads: int) -> dict[str, Any]:
    candidate, path = CANDIDATES[name](), folder / f"{name}.db"
    start = time.perf_counter()
    if name in ("numpy32", "numpy8", "albertkit"):
        imported = 0.0
    else:
        importlib.import_module(MODULES[candidate.package])
        imported = time.perf_counter() - start
    base = np.load(folder / "base.npy", mmap_mode="r")
    old, new = base[:-ADDED], np.array(base[-ADDED:])
    out: dict[str, Any] = {"import_s": round(imported, 3)}
    start = time.perf_counter()
    if what == "build":
        candidate.build(path, old)
    elif what == "add":
        candidate.add(path, len(old), new)
    else:
        query = candidate.open(path, threads)
        queries, truth = np.load(folder / "queries.npy"), np.load(folder / "truth.npy")
        query(queries[0])
        out["first_s"] = round(time.perf_counter() - start, 3)
        times, right, limit = [], 0, time.perf_counter() + 20
        for q, want in zip(queries, truth, strict=True):
            start = time.perf_counter()
            found = query(q)
            times.append(time.perf_counter() - start)
            right += len(set(found.tolist()) & set(want.tolist()))
            if time.perf_counter() > limit:
                break
        out |= {"query_ms": milliseconds(times), "query_p99_ms": milliseconds(times, 0.99), "queries": len(times)}
        out["recall"] = round(right / (K * len(times)), 4)
    out["seconds"] = round(time.perf_counter() - start, 3)
    out["rss_mb"], out["anonymous_mb"] = memory_mb("VmHWM"), memory_mb("RssAnon")
    if what == "query" and isinstance(candidate, Own):
        out |= candidate.others(query, queries, threads)
    return out


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def milliseconds(times: list[float], share: float = 0.5) -> float:
    return round(float(np.quantile(times, share)) * 1e3, 3)


def memory_mb(field: str) -> int | None:
    """A line of the process's own status: VmHWM is its peak, RssAnon what is no mapped file (Linux only)."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(field):
                return round(int(line.split()[1]) / 1024)
    except OSError:
        pass
    return None


def run(name: str, folder: Path, rows: int, site: Path | None) -> dict[str, Any]:
    candidate, path = CANDIDATES[name], folder / f"{name}.db"
    folders = [] if site is None else [site / candidate.package, site / "pysqlite3-binary"]

    def child(what: str, threads: int) -> dict[str, Any]:
        limits = {v: str(threads) for v in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "LANCE_CPU_THREADS")}  # fmt: skip
        tail = os.pathsep.join(str(f) for f in folders if f.is_dir())
        command = [sys.executable, __file__, "--phase", what, "--only", name, "--threads", str(threads), "--folder", str(folder)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **limits, "BENCH_SITE": tail})
        if done.returncode:
            raise RuntimeError(f"{name} {what}: {done.stderr[-600:]}")
        return json.loads(done.stdout)

    build = child("build", 2)
    add = child("add", 2)
    one, two = child("query", 1), child("query", 2)
    size = sum(f.stat().st_size for f in [path, *path.rglob("*")] if f.is_file())
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    return {
        "candidate": name,
        "label": candidate.label,
        "version": version(candidate.package, site),
        "rows": rows,
        "install_mb": installed(candidate.package, site),
        "import_s": build["import_s"],
        "build_s": round(build["seconds"], 1),
        "build_rss_mb": build["rss_mb"],
        "add_1000_s": round(add["seconds"], 2),
        "first_query_s": one["first_s"],
        "query_ms_1": one["query_ms"],
        "query_ms_2": two["query_ms"],
        "query_p99_ms_1": one["query_p99_ms"],
        "query_p99_ms_2": two["query_p99_ms"],
        **{key: two[key] for key in ("exact_ms", "text_query_ms") if key in two},
        "query_rss_mb": one["rss_mb"],
        "query_anonymous_mb": one["anonymous_mb"],
        "recall_10": one["recall"],
        "recall_queries": one["queries"],
        "file_mb": round(size / 1e6, 1),
        "delete": candidate.delete,
        "crash_safe": candidate.safe,
    }


def installed(package: str, site: Path | None) -> float | None:
    """Megabytes that pip adds to an environment that has numpy and tqdm already."""
    if package == "numpy":
        return 0.0
    if site is None:
        return None
    ours = ("numpy", "tqdm", "bin")
    top_level = [p for p in (site / package).iterdir() if not p.name.startswith(ours)]
    files = [f for p in top_level for f in ([p] if p.is_file() else p.rglob("*")) if f.is_file()]
    return round(sum(f.stat().st_size for f in files) / 1e6, 1)


def version(package: str, site: Path | None) -> str:
    if site is not None and package != "numpy":
        found = list(importlib.metadata.distributions(name=package, path=[str(site / package)]))
        if found:
            return found[0].version
    return importlib.metadata.version(package)


def machine() -> dict[str, Any]:
    cpu = platform.processor() or "unknown"
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        fields = dict(line.split(":", 1) for line in info.split("\n\n")[0].splitlines() if ":" in line)
        fields = {key.strip(): value.strip() for key, value in fields.items()}
        cpu = f"{fields['model name']} (family {fields['cpu family']}, model {fields['model']})"
    except (OSError, KeyError):
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(memory),
        "system": platform.system(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "loads_sqlite_extensions": hasattr(sqlite3.Connection, "enable_load_extension"),
        "dim": DIM,
    }


def keep(data: dict[str, Any], found: dict[str, Any]) -> None:
    """Take a run in; of an earlier one of the same kind, times that were shorter stay, since the machine was less busy."""
    keys = ("candidate", "rows", "version", "vectors")
    same = [r for r in data["runs"] if all(r.get(key) == found[key] for key in keys)]
    for key in found:
        if key.endswith("_s") or "_ms" in key:
            found[key] = min(r[key] for r in [found, *same] if r.get(key) is not None)
    data["runs"] = [r for r in data["runs"] if r not in same] + [found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--only", action="append", choices=list(CANDIDATES))
    parser.add_argument("--site", type=Path)
    parser.add_argument("--vectors", type=Path, help="vectors of texts (.npy)  [default: synthetic ones]")
    parser.add_argument("--folder", type=Path, help="where vectors and indexes are written  [default: a temporary one]")
    parser.add_argument("--phase", choices=("build", "add", "query"), help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        sys.path += [p for p in os.environ.get("BENCH_SITE", "").split(os.pathsep) if p]
        print(json.dumps(phase(options.only[0], options.phase, options.folder, options.threads)))
        return
    root = options.folder or Path(tempfile.mkdtemp(prefix="albertkit-bench-"))
    kind = "texts" if options.vectors else "synthetic"
    folder = root / f"{kind}-{options.rows}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "truth.npy").is_file():
        take(folder, options.rows, options.vectors) if options.vectors else make(folder, options.rows)
    for name in options.only or CANDIDATES:
        try:
            found = {**run(name, folder, options.rows, options.site), "vectors": kind}
        except RuntimeError as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
            continue
        data = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"runs": []}
        data["machine"] = machine()
        keep(data, found)
        order = list(CANDIDATES)
        data["runs"].sort(key=lambda r: (r["vectors"], r["rows"], order.index(r["candidate"])))
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(json.dumps(found), file=sys.stderr)
    if options.folder is None:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
