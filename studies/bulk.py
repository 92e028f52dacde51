"""Overhead of `albertkit embed --engine ray` on millions of short texts, with killed workers, over plain processes.

    python studies/bulk.py [--texts 5000000] [--workers 2] [--kills 2]      measure, write studies/results/bulk.json;
    about a quarter of an hour on two cores
    python studies/bulk.py --engines plain,local,ray                         our own processes, too
    python studies/bulk.py --table [--wanted 10000000000] [--price PER_CORE_HOUR]         extrapolation to more
    texts

Texts are spans of three to twelve words of a text file (by default the books in `runs/tiny.txt.xz`), the same ones
every time. A tiny model embeds them, since the engine is measured, not the model. Each plain process opens the model,
reads its share of the files, embeds the lines, and writes the vectors as Parquet, without planning or checks. Every run
must give each row exactly once, with identical bits; otherwise the exit code is not 0. Memory is that of the driver, of
each worker, and of Ray's own processes, sampled twice a second. Overhead is the time of Ray, including its start, the
planning and repeated work after kills, compared with the plain processes.

Rerun the command to resume: texts, model and finished engines are kept in the scratch folder. Only the interrupted
engine starts again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / name) for name in ("src", "bench", "studies")]
RESULT = ROOT / "studies" / "results" / "bulk.json"
CORPUS = ROOT / "runs" / "tiny.txt.xz"
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONPATH": str(ROOT / "src"),
}
FILES = 10
POINTS = 200  # of the curve of memory
LOOK = 0.5  # seconds between two looks
SAY = 30.0  # seconds between two lines about the progress


def file_rows(texts: int) -> int:
    """Rows of each input file."""
    return -(-texts // FILES)


def make_texts(folder: Path, count: int, source: Path) -> list[Path]:
    """Files of numbered texts of three to twelve words, that stand together in the corpus."""
    with lzma.open(source, "rt", encoding="utf-8") if source.suffix == ".xz" else source.open(encoding="utf-8") as file:
        words = file.read().split()
    rng, files, rows_per_file = random.Random(0), [], file_rows(count)
    for start in range(0, count, rows_per_file):
        files.append(folder / f"texts-{start // rows_per_file:04d}.txt")
        if files[-1].is_file():
            for _ in range(start, min(start + rows_per_file, count)):
                rng.random(), rng.random()
            continue
        part = files[-1].with_suffix(".part")
        with part.open("w", encoding="utf-8") as out:
            for number in range(start, min(start + rows_per_file, count)):
                at, length = int(rng.random() * (len(words) - 12)), 3 + int(rng.random() * 10)
                out.write(f"{number} {' '.join(words[at : at + length])}\n")
        part.replace(files[-1])
        print(f"  texts: {min(start + rows_per_file, count):,} of {count:,}", flush=True)
    return files


def make_model(folder: Path) -> Path:
    """A tiny model with random weights."""
    if (folder / "model" / "config.json").is_file():
        return folder / "model"
    import torch

    from albertkit import AlbertConfig, Tokenizer, write_artifact
    from albertkit.artifact import Artifact
    from albertkit.model import AlbertModel

    torch.manual_seed(0)
    config = AlbertConfig(
        hidden_size=64, num_attention_heads=2, intermediate_size=128, num_hidden_layers=2, embedding_size=16
    )
    tokenizer = Tokenizer.from_spiece(ROOT / "src" / "albertkit" / "models" / "small" / "spiece.model")
    write_artifact(Artifact(config, AlbertModel(config).weights(), tokenizer), folder / "model")
    return folder / "model"


def plain(model: Path, out: Path, part_rows: int, files: list[Path]) -> None:
    """One plain process: lines to vectors to Parquet files, a group of rows at a time."""
    import pyarrow as arrow
    from pyarrow import parquet

    from albertkit import Albert

    albert = Albert(model, threads=1)
    for file in files:
        with file.open(encoding="utf-8") as lines:
            vectors = albert.embed_iter(line.rstrip("\n") for line in lines)
            for start in range(0, 10**12, part_rows):
                group = list(islice(vectors, part_rows))
                if not group:
                    break
                flat = arrow.FixedSizeListArray.from_arrays(arrow.array(np.concatenate(group)), albert.dim)
                names = arrow.DictionaryArray.from_arrays(arrow.array([0] * len(group), arrow.int32()), [file.name])
                columns = {"source": names, "row": arrow.array(range(start, start + len(group)), arrow.int64()), "vector": flat}  # fmt: skip
                place = out / f"part-{file.stem}-{start:09d}.parquet"
                parquet.write_table(arrow.table(columns), place, use_dictionary=["source"], write_statistics=["row"])


def worker_commands(
    engine: str, model: Path, files: list[Path], out: Path, args: argparse.Namespace
) -> list[list[str]]:
    """The commands to be run side by side."""
    if engine == "plain":
        command = [sys.executable, str(Path(__file__).resolve()), "--plain", str(model), str(out), str(args.part_rows)]
        return [[*command, *map(str, files[at :: args.workers])] for at in range(args.workers)]
    line = [sys.executable, "-m", "albertkit", "embed", "-m", str(model), "--engine", engine, "--workers", str(args.workers)]  # fmt: skip
    return [[*line, "--format", "parquet", "--part-rows", str(args.part_rows), "--output", str(out), *map(str, files)]]


def process_tree(parent: int) -> dict[int, tuple[int, str, float]]:
    """Descendants of a process and itself: parent, command and MB of each."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent_id = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            pages = int((path / "statm").read_text().split()[1])
        except OSError:
            continue
        processes[int(path.name)] = (parent_id, command, pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
    inside = {parent}
    while children := {pid for pid, (parent_id, _, _) in processes.items() if parent_id in inside} - inside:
        inside |= children
    return {pid: processes[pid] for pid in inside if pid in processes}


def workers_of(processes: dict[int, tuple[int, str, float]]) -> list[int]:
    """Those that have a model."""
    marks = ("spawn_main", "--plain")
    return [
        pid
        for pid, (_, command, _) in processes.items()
        if command.startswith("ray::Actor") or any(mark in command for mark in marks)
    ]


def sample_memory(pids: list[int], out: Path, began: float) -> tuple[dict[str, Any], list[int]]:
    """What there is at this moment, and the workers."""
    processes = {pid: about for parent in pids for pid, about in process_tree(parent).items()}
    workers = workers_of(processes)
    size = {pid: mb for pid, (_, _, mb) in processes.items()}
    drivers = [pid for pid in pids if pid not in workers]
    others = [mb for pid, mb in size.items() if pid not in drivers and pid not in workers]
    point = {
        "seconds": round(time.perf_counter() - began, 1), "parts": len(list(out.glob("part-*"))),
        "driver_mb": round(sum(size.get(pid, 0.0) for pid in drivers), 1),
        "worker_mb": [round(size[pid], 1) for pid in workers], "other_mb": round(sum(others), 1),
    }  # fmt: skip
    return point, workers


def embed(
    engine: str, model: Path, files: list[Path], out: Path, args: argparse.Namespace, kills: int
) -> dict[str, Any]:
    """One run, watched; `kills` workers are ended on the way, evenly."""
    rows_per_file = file_rows(args.texts)
    total = sum(
        -(-min(rows_per_file, args.texts - start) // args.part_rows) for start in range(0, args.texts, rows_per_file)
    )
    curve, killed, began, printed_at = [], [], time.perf_counter(), time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        commands = worker_commands(engine, model, files, out, args)
        processes = [subprocess.Popen(line, stdout=log, stderr=log, env=ENVIRONMENT) for line in commands]
        try:
            while any(process.poll() is None for process in processes):
                point, workers = sample_memory(
                    [process.pid for process in processes if process.poll() is None], out, began
                )
                curve.append(point)
                if workers and len(killed) < kills and point["parts"] > total * (len(killed) + 1) / (kills + 1):
                    os.kill(workers[0], signal.SIGKILL)
                    killed.append({"part": point["parts"], "seconds": point["seconds"]})
                if time.perf_counter() - printed_at > SAY:
                    printed_at = time.perf_counter()
                    print(f"  {engine}: {point['parts']} of {total} parts after {point['seconds']:.0f} s", flush=True)
                time.sleep(LOOK)
        finally:
            for process in processes:
                process.terminate()
                process.wait()
        seconds = time.perf_counter() - began
        if any(process.returncode for process in processes):
            log.seek(0)
            raise SystemExit(f"{engine} failed: {log.read()[-2000:]}")
    return {
        "seconds": round(seconds, 1), "texts_per_second": round(args.texts / seconds, 1), "parts": total, "killed": killed,
        "driver_peak_mb": max(point["driver_mb"] for point in curve), "worker_peak_mb": peak_memory(curve),
        "worker_growth_mb": round(peak_memory(curve[len(curve) // 2 :]) - peak_memory(curve[: len(curve) // 2]), 1),
        "other_peak_mb": max(point["other_mb"] for point in curve),
        "memory": curve[:: max(1, len(curve) // POINTS)],
    }  # fmt: skip


def peak_memory(curve: list[dict[str, Any]]) -> float:
    """The most that a worker had."""
    return max((mb for point in curve for mb in point["worker_mb"]), default=0.0)


def rows(out: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Of each part: the source, row numbers and vectors."""
    from pyarrow.parquet import read_table

    for path in sorted(out.glob("part-*.parquet")):
        table = read_table(path)
        sources = table["source"].unique().to_pylist()
        vectors = table["vector"].combine_chunks()
        yield Path(sources[0]).name, table["row"].to_numpy(), vectors.flatten().to_numpy().reshape(len(table), -1)


def check(out: Path, count: int) -> tuple[int, str]:
    """(rows, a hash over a hash of every row); ends the program if a row is missing or there twice."""
    seen: dict[str, np.ndarray] = {}
    total = 0
    for source, numbers, vectors in rows(out):
        flags = seen.setdefault(source, np.zeros(file_rows(count), np.uint8))
        np.add.at(flags, numbers, 1)
        for number, vector in zip(numbers.tolist(), vectors, strict=True):
            row = hashlib.blake2b(f"{source} {number} ".encode() + vector.tobytes(), digest_size=8).digest()
            total = (total + int.from_bytes(row, "little")) % 2**64
    missing = sum(int(flags.sum()) for flags in seen.values())
    if missing != count or any(flags.max() > 1 for flags in seen.values()):
        raise SystemExit(f"{out}: {missing} rows of {count}, or some of them twice")
    return missing, f"{total:016x}"


def check_options(args: argparse.Namespace, folder: Path) -> Path:
    """The file of what is finished; anew if another size was asked for before."""
    options = {name: getattr(args, name) for name in ("texts", "workers", "part_rows", "kills")} | {
        "file": str(args.file)
    }
    finished_file = folder / "finished.json"
    if finished_file.is_file() and json.loads(finished_file.read_text())["options"] != options:
        print(f"{folder} holds a run of another size, which is deleted")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not finished_file.is_file():
        finished_file.write_text(json.dumps({"options": options}))
    return finished_file


def measure(args: argparse.Namespace) -> None:
    from inference import machine, versions

    folder = (args.scratch or Path(tempfile.gettempdir())) / "albertkit-bulk"
    finished_file = check_options(args, folder)
    files, model = make_texts(folder, args.texts, args.file), make_model(folder)
    finished: dict[str, Any] = json.loads(finished_file.read_text())
    for engine in args.engines.split(","):
        if engine in finished:
            print(f"{engine}: finished before")
            continue
        out = folder / engine
        shutil.rmtree(out, ignore_errors=True)
        record = embed(engine, model, files, out, args, args.kills if engine == "ray" else 0)
        record["rows"], record["hash"] = check(out, args.texts)
        record["output_bytes"] = sum(path.stat().st_size for path in out.glob("part-*"))
        finished[engine] = record
        finished_file.write_text(json.dumps(finished))
        shutil.rmtree(out)
        print(
            f"{engine}: {record['seconds']} s, {record['texts_per_second']:,.0f} texts/s, hash {record['hash']}",
            flush=True,
        )
    options = finished.pop("options")
    result = {
        "machine": machine(os.cpu_count() or 1), "libraries": {**versions(), "ray": version("ray")},
        **{name: value for name, value in options.items() if name != "file"},
        "input_bytes": sum(path.stat().st_size for path in files), "output_bytes": finished["ray"]["output_bytes"], **finished,
    }  # fmt: skip
    result["overhead_percent"] = round(100 * (finished["ray"]["seconds"] / finished["plain"]["seconds"] - 1), 2)
    result["same"] = len({one["hash"] for one in finished.values()}) == 1
    args.result.write_text(json.dumps(result, indent=1) + "\n")
    killed = len(finished["ray"]["killed"])
    print(f"Ray with {killed} kills takes {result['overhead_percent']} % more; the same rows: {result['same']}")
    if not result["same"] or killed != args.kills:
        raise SystemExit("the runs differ, or were over before the workers could be killed")
    shutil.rmtree(folder)


def table(args: argparse.Namespace) -> None:
    """Core-hours, days and bytes for many texts, from what was measured: they grow in proportion, since parts do not
    know of each other.
    """
    result = json.loads(args.result.read_text())
    texts_per_core = result["ray"]["texts_per_second"] / result["workers"]
    hours = args.wanted / texts_per_core / 3600
    print(
        f"{args.wanted:,} texts at {texts_per_core:,.0f} texts a second and core: {hours:,.0f} core-hours, {args.wanted * result['output_bytes'] / result['texts'] / 1e12:,.2f} TB of output"
    )
    if args.price is not None:
        print(f"at {args.price} a core-hour: {hours * args.price:,.0f}")
    print("\n| cores | days |\n|---|---|")
    for cores in (16, 64, 256, 1024, 4096):
        print(f"| {cores:,} | {hours / cores / 24:,.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=5_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--part-rows", type=int, default=50_000)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--engines", default="plain,ray", help="with commas between: plain and ray, and local")
    parser.add_argument("--file", type=Path, default=CORPUS, help="text whose words are used; .xz too")
    parser.add_argument(
        "--scratch",
        type=Path,
        help="where texts, vectors and what is finished lie meanwhile, in albertkit-bulk  [default: the system's temporary folder]",
    )
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--wanted", type=int, default=10_000_000_000)
    parser.add_argument("--price", type=float, help="of a core for an hour")
    parser.add_argument("--plain", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.plain:
        model, out, part_rows, *files = args.plain
        plain(Path(model), Path(out), int(part_rows), [Path(file) for file in files])
        return
    if not {"plain", "ray"} <= set(args.engines.split(",")) <= {"plain", "local", "ray"}:
        parser.error(f"engines are {args.engines!r}; give plain and ray, and local if you like")
    (table if args.table else measure)(args)


if __name__ == "__main__":
    main()
