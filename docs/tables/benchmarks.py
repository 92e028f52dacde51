"""Tables of results/benchmarks.md: speed, memory and cost."""

from __future__ import annotations

import statistics
import sys
from typing import Any

from albertkit.compress.cost import ShapeCost, shape_cost
from albertkit.config import preset
from tables import ROOT, megabytes, percent, read, table, times

sys.path.append(str(ROOT / "bench"))
import benchmarks_page

BASE = "onnxruntime, export"  # what inference is compared with
PRETRAINING_TOKENS, STEP_TOKENS = 100e9, 2**21  # of the computed trainings; a step has 4,096 rows of 512
BANDWIDTH = {1: 1.0, 8: 400e9, 64: 50e9, 512: 50e9}  # bytes per second between so many GPUs
TEXTS = 10e9  # of the computed job for vectors


def report() -> str:
    rows = benchmarks_page.nearest(read("report.json"))
    number = benchmarks_page.number
    return table(
        (
            "measured",
            "unit",
            "albertkit",
            "nearest other program",
            "its best",
            "its defaults",
            "speedup or ratio",
            "share of peak",
        ),
        (
            (
                benchmarks_page.TITLES[r["what"]][0],
                r["unit"],
                number(r["value"]),
                r["peer"],
                number(r["theirs"]),
                number(r.get("default")) or "–",
                times(r["ratio"]),
                "–" if r["share"] is None else f"{r['share']:.0%}",
            )
            for r in rows
        ),
    )


def inference() -> str:
    found = read("inference.json")
    mixed, long, short = (found["workloads"][n] for n in ("mixed texts", "long documents", "one short text"))
    rows = []
    shares = found["peak"]["shares_at_128_tokens"]
    for name, one in mixed.items():
        size = found["bytes"].get(name)
        rows.append((
            name, f"{one['texts_per_second']:.1f}", times(one["texts_per_second"] / mixed[BASE]["texts_per_second"]), f"{long[name]['texts_per_second']:.2f}",
            f"{1000 / short[name]['texts_per_second']:.1f}", f"{shares[name]:.0%}" if name in shares else "–",
            f"{found['agreement'][name]:.4f}", megabytes(size) if size else "–",
        ))  # fmt: skip
    heads = ("program", "mixed texts/s", "speedup", "long documents/s", "one short text, ms", "share of peak at 128 tokens", "least cosine with transformers", "MB on disk")  # fmt: skip
    return table(heads, rows)


def encoders() -> str:
    """The built-in model beside MiniLM-L6; each peer with the faster of its settings."""
    found = read("encoders.json")
    works = found["workloads"]
    ours = next(name for name in works["mixed texts"] if "albertkit" in name)

    def speed(work: str, name: str) -> float:
        values = (works[work].get(key, {}).get("texts_per_second", 0.0) for key in (name, f"{name}, tuned"))
        return float(max(values))

    rows = []
    for name in (ours, *(n for n in works["mixed texts"] if n != ours and not n.endswith("tuned"))):
        cells = (
            f"{speed(work, name):,.0f} ({times(speed(work, ours) / speed(work, name))})" if name != ours else f"{speed(work, name):,.0f}"
            for work in works
        )  # fmt: skip
        size = found["bytes"].get(name)
        rows.append((name, *cells, percent(found["sts"][name]), megabytes(size) if size else "–"))
    return table(("program", *(f"{work}, texts/s" for work in works), "STS-B dev, Spearman", "MB on disk"), rows)


def cold_start() -> str:
    cold = read("inference.json")["cold"]
    rows = ((name, f"{one['seconds']:.2f}", f"{one['peak_rss_mb']:.0f}") for name, one in cold.items())
    return table(("program", "process start to first vector, s", "peak memory, MB"), rows)


def server() -> str:
    rows = []
    for run in read("server.json")["throughput"]:
        ms = run["milliseconds"]
        rows.append((run["size"], run["clients"], f"{run['texts_per_second']:.0f}", f"{run['bare']:.0f}", f"{ms['50']:.0f}", f"{ms['99']:.0f}", run["wrong"], run["lost"]))  # fmt: skip
    heads = ("texts per request", "clients", "texts/s", "engine without server, texts/s", "p50, ms", "p99, ms", "wrong", "lost")  # fmt: skip
    return table(heads, rows)


def server_overload() -> str:
    over = read("server.json")["overload"]
    run = over["overload"]
    return table(("measured", "result"), (
        (f"offered: requests/s of 8 texts, answers due in {over['deadline']:g} s", f"{over['rate']:.0f}"),
        ("answered", f"{run['answered']}, p99 {run['milliseconds']['99'] / 1000:.2f} s"),
        ("refused", f"{run['refused']}, p99 {run['refused_milliseconds_99']:.0f} ms"),
        ("lost or wrong", run["lost"] + run["wrong"]),
        ("speed afterwards, share of the usual one", f"{over['after']['texts_per_second'] / over['usual']['texts_per_second']:.0%}"),
    ))  # fmt: skip


def server_memory() -> str:
    found = read("server.json")
    steady, rows = found["steady"], []
    first, last = (steady["seen"][at]["rss"] / 2**20 for at in (0, -1))
    rows.append((f"albertkit, after {steady['requests'] // 10:,} and after {steady['requests']:,} requests", f"{first:.0f} and {last:.0f}"))  # fmt: skip
    rows.append(("albertkit, each further worker", f"{max(steady['workers']) / 2**20:.0f}"))
    for name, runs in found["peers"].items():
        sizes = [run["rss"] / 2**20 for run in runs if "failed" not in run]
        if sizes and not name.startswith("albertkit"):
            rows.append((name, f"{min(sizes):,.0f} to {max(sizes):,.0f}"))
    return table(("server", "memory, MB"), rows)


def server_peers() -> str:
    rows = []
    for name, runs in read("server.json")["peers"].items():
        for run in (run for run in runs if "failed" not in run):
            rows.append((name, run["size"], f"{run['requests_per_second']:.1f}", f"{run['milliseconds']['99']:,.0f}", f"{run['least_cosine']:.4f}"))  # fmt: skip
    return table(("server", "texts per request", "requests/s", "p99, ms", "least cosine with the stored model"), rows)  # fmt: skip


def search() -> str:
    rows = []
    for run in read("search.json")["runs"]:
        threads = min((1, 2), key=lambda count: run[f"query_ms_{count}"])
        milliseconds = (f"{run[f'query_{name}_{threads}']:,.1f}" for name in ("ms", "p99_ms"))
        changes = f"delete: {run['delete']}; crash-safe: {run['crash_safe']}"
        rows.append((f"{run['rows']:,}", run["label"], f"{run['build_s']:,.0f}", *milliseconds, f"{run['recall_10']:.3f}", f"{run['file_mb']:,.0f}", changes))  # fmt: skip
    heads = ("vectors", "program", "build, s", "query, median ms", "p99, ms", "recall@10", "file, MB", "changes")
    return table(heads, rows)


def corpus() -> str:
    rows = (
        (name, f"{megabytes(r['text_bytes'], 0)} MB", f"{r['counts']['tokens_read'] / 1e6:.1f} M", f"{r['seconds']:.1f}", f"{r['tokens_per_second'] / 1e6:.2f}", f"{r['peak_rss_mb']:.0f}", megabytes(r["corpus_bytes"], 0))
        for name, r in read("corpus.json")["runs"].items()
    )  # fmt: skip
    return table(("text", "size", "tokens", "seconds", "million tokens/s", "peak memory, MB", "shards, MB"), rows)


def pretraining() -> str:
    rows = []
    for shape, runs in read("pretraining.json")["shapes"].items():
        for name, run in ((name, run) for name, run in runs.items() if name != "rows"):
            speed, ours = run["tokens_per_second"], runs["albertkit"]["tokens_per_second"]
            share = f"{run['share_of_peak']:.0%}" if "share_of_peak" in run else "–"
            rows.append((shape, runs["rows"], name, f"{speed / 1e3:,.0f}", times(ours / speed), share, f"{run['bytes_per_token'] / 1e3:,.0f}"))  # fmt: skip
    heads = ("shape", "rows per batch", "program", "thousand tokens/s", "albertkit's speedup", "share of GPU peak", "memory per token, kB")  # fmt: skip
    return table(heads, rows)


def finetuning() -> str:
    rows = []
    for data, found in read("finetuning.json").items():
        for name, runs in found["runs"].items():
            scores = [one["accuracy"] for one in runs]
            spread = f" ± {percent(statistics.stdev(scores))}" if len(scores) > 1 else ""
            seconds = statistics.fmean(one["seconds"] for one in runs)
            rows.append((data, name, f"{seconds:.1f}", times(found["ratios"].get(name, 1)), percent(statistics.fmean(scores)) + spread))  # fmt: skip
    return table(("data", "program", "seconds", "albertkit's speedup", "accuracy"), rows)


def plan() -> str:
    rows: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for row in read("plan.json")["rows"]:
        rows.setdefault((row["shape"], "float32" if row["bits"] == 32 else "int8"), {})[row["length"]] = row
    lengths = sorted({length for of in rows.values() for length in of})
    heads = ["shape", "weights"]
    for length in lengths:
        heads += [f"{length} tokens: predicted, ms", "measured, ms", "error"]
    return table(heads, ([*key, *(cell for n in lengths for cell in predicted(of[n]))] for key, of in rows.items()))


def predicted(row: dict[str, float]) -> tuple[str, str, str]:
    """Prediction, measurement and error."""
    guess, real = row["predicted_ms"], row["measured_ms"]
    return f"{guess:.1f}", f"{real:.1f}", f"{guess / real - 1:+.0%}"


def bulk() -> str:
    found = read("bulk.json")
    names = {"plain": f"{found['workers']} plain processes", "ray": f"Ray, {found['kills']} workers killed"}
    rows = (
        (title, f"{r['seconds']:.0f}", f"{r['texts_per_second']:,.0f}", f"{r['worker_peak_mb']:.0f}", f"{r['worker_growth_mb']:.1f}", f"{r['other_peak_mb']:.0f}")
        for title, r in ((title, found[name]) for name, title in names.items())
    )  # fmt: skip
    return table(("run", "seconds", "texts/s", "largest worker, MB", "growth of a worker in the second half, MB", "Ray's own processes, MB"), rows)  # fmt: skip


def bulk_gpu() -> str:
    record = read("gpu-bulk.json")
    run, peer = record["bulk"], record["peer"]["by_batch"]
    best = max(peer.values())
    rows = [
        ("albertkit, file to file, after the start", run["rows_per_second_after_it"]),
        (f"albertkit, file to file, {run['rows'] / 1e6:.0f} M texts with the start", run["rows_per_second"]),
        *((f"sentence-transformers, float16, list to array, batches of {size}", speed) for size, speed in peer.items()),
    ]
    return table(("program", "texts/s", "speedup over sentence-transformers"), ((name, f"{speed:,.0f}", times(speed / best)) for name, speed in rows))  # fmt: skip


def bulk_gpu_stages() -> str:
    record = read("gpu-bulk.json")["stages"]
    titles = {
        "read": "read (worker)", "tokenize": "tokenize (worker)", "pack": "pack (worker)", "device": "compute (GPU)",
        "combine": "combine windows (worker)", "write": "write Parquet (worker)",
    }  # fmt: skip
    return table(("stage", "microseconds per text, one process"), ((title, f"{record['microseconds'][name]:.1f}") for name, title in titles.items()))  # fmt: skip


def bulk_gpu_layers() -> str:
    record = read("gpu-bulk.json")["layers"]
    lengths = [int(name.split()[1]) for name in record if name.startswith("small ")]
    rows = ((model, *(f"{record[f'{model} {length}']['share_of_peak']:.0%}" for length in lengths)) for model in ("small", "small-zh"))  # fmt: skip
    return table(("model", *(f"rows of {length}" for length in lengths)), rows)


def training_kernels() -> str:
    record = read("training-profile.json")["steps"]
    kinds = list(next(iter(record.values()))["ms_by_kind"])
    kinds.sort(key=lambda kind: -max(run["ms_by_kind"][kind] for run in record.values()))
    titles = {"compiled": "norms, activation, loss (compiled)", "other": "optimizer and other"}
    rows = (
        (name, f"{run['tokens_per_second'] / 1e3:,.0f}", f"{run['share_of_peak']:.0%}", *(f"{run['ms_by_kind'][kind]:.1f}" for kind in kinds))
        for name, run in record.items()
    )  # fmt: skip
    heads = (f"{titles.get(kind, kind)}, ms" for kind in kinds)
    return table(("attention", "thousand tokens/s", "share of GPU peak", *heads), rows)


def gradients(cost: ShapeCost, shared: bool = True) -> float:
    """Bytes of the gradients in float32."""
    encoder = cost.parameters["total"] if shared else cost.unshared
    return 4.0 * (encoder + cost.parameters["heads (masked word, order)"])


def hours(speed: float, traffic: float, gpus: int) -> float:
    """Computed: tokens of a GPU at its measured speed, plus a ring all-reduce that overlaps with nothing."""
    step = STEP_TOKENS / gpus / speed + 2 * (gpus - 1) / gpus * traffic / BANDWIDTH[gpus]
    return PRETRAINING_TOKENS / STEP_TOKENS * step / 3600


def scale_pretraining() -> str:
    rows = []
    for shape, runs in read("pretraining.json")["shapes"].items():
        speed, cost = runs["albertkit"]["tokens_per_second"], shape_cost(preset(shape))
        shared, unshared = gradients(cost), gradients(cost, shared=False)
        rows.append((shape, f"{megabytes(shared, 0)} MB", *(f"{hours(speed, shared, n):,.{0 if n == 1 else 1 if n < 512 else 2}f}" for n in BANDWIDTH), f"{hours(speed, unshared, 512):.2f}"))  # fmt: skip
    heads = ["shape", "gradients", *(f"hours on {n} GPU{'s' if n > 1 else ''}" for n in BANDWIDTH), "512 GPUs without layer sharing"]  # fmt: skip
    return table(heads, rows)


def scale_texts() -> str:
    rows: list[tuple[Any, ...]] = []
    for name, one in read("inference.json")["workloads"]["mixed texts"].items():
        days = TEXTS / one["texts_per_second"] / 86400
        rows.append((name, f"{one['texts_per_second']:.1f}", f"{days / 365:.1f}", f"{days / 7:,.0f}"))
    return table(
        ("program", "texts/s on 2 threads", "years on 2 threads", "2-thread workers needed for one week"), rows
    )


def scale_rest() -> str:
    corpus, bulk, index = read("corpus.json")["runs"]["English Wikipedia"], read("bulk.json"), read("search.json")
    tokens, run = corpus["counts"]["tokens"], max((r for r in index["runs"] if r["candidate"] == "albertkit"), key=lambda r: r["rows"])  # fmt: skip
    core = bulk["ray"]["texts_per_second"] / bulk["workers"]
    scan = run["exact_ms"] / 1000 / run["rows"]
    return table(("job", "computed cost"), (
        (f"corpus of {PRETRAINING_TOKENS / 1e9:.0f} G tokens", f"{PRETRAINING_TOKENS * corpus['text_bytes'] / tokens / 1e9:,.0f} GB of text, {PRETRAINING_TOKENS * corpus['corpus_bytes'] / tokens / 1e9:,.0f} GB of shards, {PRETRAINING_TOKENS / corpus['tokens_per_second'] / 3600:,.0f} hours on two cores"),
        (f"vectors of {TEXTS / 1e9:.0f} billion short texts with a tiny model, through Ray", f"{TEXTS / core / 3600:,.0f} core-hours, {TEXTS * bulk['output_bytes'] / bulk['texts'] / 1e12:.1f} TB of output"),
        (f"index of {TEXTS / 1e9:.0f} billion texts", f"{TEXTS * run['file_mb'] * 1e6 / run['rows'] / 1e12:.1f} TB; {TEXTS * scan / 60:,.0f} minutes per exact query on one thread"),
    ))  # fmt: skip


def newcomer() -> str:
    return table(("reached", "seconds after the start"), ((name, f"{s:.0f}") for name, s in read("newcomer.json")["reached_seconds"].items()))  # fmt: skip


TABLES = {
    "report": report, "inference": inference, "encoders": encoders, "cold-start": cold_start, "server": server, "server-overload": server_overload, "server-memory": server_memory, "server-peers": server_peers,
    "search": search, "corpus": corpus, "pretraining": pretraining, "finetuning": finetuning, "plan": plan, "bulk": bulk,
    "bulk-gpu": bulk_gpu, "bulk-gpu-stages": bulk_gpu_stages, "bulk-gpu-layers": bulk_gpu_layers, "training-kernels": training_kernels,
    "scale-pretraining": scale_pretraining, "scale-texts": scale_texts, "scale-rest": scale_rest, "newcomer": newcomer,
}  # fmt: skip
