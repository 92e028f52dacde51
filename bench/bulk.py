"""Millions of short texts through `albertkit embed --engine ray` with workers killed on the way, beside plain processes.

    python bench/bulk.py [--texts 5000000] [--workers 2] [--file TEXT] [--kills 2]    measure, keep bench/results/bulk.json
    python bench/bulk.py --table [--wanted 10000000000] [--price PER_CORE_HOUR]         what follows from it for more texts

Texts are made of the words of a text file (by default this project's own docs), the same ones every time. A tiny model embeds them: what is measured is the
way through the engine, not the model. Both runs must give each row exactly once and the same bits; the exit code says so. Memory is that of the driver, of each
worker, and of Ray's own processes, looked at twice a second. Overhead is the time of Ray, its start and the work done twice after kills included, beside that
of the plain processes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))
RESULT = ROOT / "bench" / "results" / "bulk.json"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": sys.path[0]}
FILE_ROWS = 500_000
POINTS = 200  # of the curve of memory


def make_texts(folder: Path, count: int, source: Path | None) -> list[Path]:
    """Files of numbered texts of three to twelve words."""
    given = (
        source.read_text(encoding="utf-8")
        if source
        else "\n".join(p.read_text() for p in sorted((ROOT / "docs").glob("*.md")))
    )
    words = sorted({word for word in given.split() if word.isalnum()}) or ["text"]
    rng, files = random.Random(0), []
    for start in range(0, count, FILE_ROWS):
        files.append(folder / f"texts-{start // FILE_ROWS:04d}.txt")
        with files[-1].open("w", encoding="utf-8") as file:
            for number in range(start, min(start + FILE_ROWS, count)):
                file.write(f"{number} {' '.join(rng.choices(words, k=rng.randint(3, 12)))}\n")
    return files


def make_model(folder: Path) -> Path:
    """A tiny model with random weights."""
    import torch

    from albertkit import AlbertConfig, Tokenizer, write_artifact
    from albertkit.artifact import Artifact
    from albertkit.model import AlbertModel

    torch.manual_seed(0)
    config = AlbertConfig(
        hidden_size=32, num_attention_heads=2, intermediate_size=64, num_hidden_layers=1, embedding_size=16
    )
    tokenizer = Tokenizer.from_spiece(ROOT / "src" / "albertkit" / "models" / "small" / "spiece.model")
    write_artifact(Artifact(config, AlbertModel(config).weights(), tokenizer), folder / "model")
    return folder / "model"


def family(parent: int) -> dict[int, tuple[int, str, float]]:
    """Descendants of a process and itself: parent, command and MB of each."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            above = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            pages = int((path / "statm").read_text().split()[1])
        except OSError:
            continue
        found[int(path.name)] = (above, command, pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
    inside = {parent}
    while grown := {pid for pid, (above, _, _) in found.items() if above in inside} - inside:
        inside |= grown
    return {pid: found[pid] for pid in inside if pid in found}


def workers_of(processes: dict[int, tuple[int, str, float]]) -> list[int]:
    """Those that have a model."""
    return [
        pid for pid, (_, command, _) in processes.items() if command.startswith("ray::Actor") or "spawn_main" in command
    ]


def embed(
    engine: str, model: Path, files: list[Path], out: Path, args: argparse.Namespace, kills: int
) -> dict[str, Any]:
    """One run, watched; `kills` workers are ended on the way, evenly."""
    line = [
        sys.executable,
        "-m",
        "albertkit",
        "embed",
        "-m",
        str(model),
        "--engine",
        engine,
        "--workers",
        str(args.workers),
    ]
    line += ["--part-rows", str(args.part_rows), "--out", str(out), *map(str, files)]
    total = sum(-(-min(FILE_ROWS, args.texts - start) // args.part_rows) for start in range(0, args.texts, FILE_ROWS))
    curve, killed, began = [], [], time.perf_counter()
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True) as process:
        while process.poll() is None:
            processes = family(process.pid)
            workers = workers_of(processes)
            size = {pid: mb for pid, (_, _, mb) in processes.items()}
            parts = len(list(out.glob("part-*")))
            curve.append({
                "seconds": round(time.perf_counter() - began, 1), "parts": parts, "driver_mb": round(size.get(process.pid, 0), 1),
                "worker_mb": [round(size[pid], 1) for pid in workers],
                "other_mb": round(sum(mb for pid, mb in size.items() if pid != process.pid and pid not in workers), 1),
            })  # fmt: skip
            if workers and len(killed) < kills and parts > total * (len(killed) + 1) / (kills + 1):
                os.kill(workers[0], signal.SIGKILL)
                killed.append({"part": parts, "seconds": curve[-1]["seconds"]})
            time.sleep(0.5)
        output, errors = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{engine} failed: {errors[-2000:]}")
    seconds = time.perf_counter() - began
    said = json.loads(output)
    return {
        "seconds": round(seconds, 1), "texts_per_second": round(args.texts / seconds, 1), "parts": said["parts"], "killed": killed,
        "driver_peak_mb": max(point["driver_mb"] for point in curve),
        "worker_peak_mb": max((mb for point in curve for mb in point["worker_mb"]), default=0.0),
        "other_peak_mb": max(point["other_mb"] for point in curve),
        "memory": curve[:: max(1, len(curve) // POINTS)],
    }  # fmt: skip


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
        flags = seen.setdefault(source, np.zeros(FILE_ROWS, np.uint8))
        np.add.at(flags, numbers, 1)
        for number, vector in zip(numbers.tolist(), vectors, strict=True):
            row = hashlib.blake2b(f"{source} {number} ".encode() + vector.tobytes(), digest_size=8).digest()
            total = (total + int.from_bytes(row, "little")) % 2**64
    found = sum(int(flags.sum()) for flags in seen.values())
    if found != count or any(flags.max() > 1 for flags in seen.values()):
        raise SystemExit(f"{out}: {found} rows of {count}, or some of them twice")
    return found, f"{total:016x}"


def measure(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        folder = Path(name)
        files, model = make_texts(folder, args.texts, args.file), make_model(folder)
        result: dict[str, Any] = {
            "texts": args.texts,
            "workers": args.workers,
            "part_rows": args.part_rows,
            "cores": os.cpu_count(),
        }
        result["input_bytes"] = sum(path.stat().st_size for path in files)
        for engine, kills in (("local", 0), ("ray", args.kills)):
            out = folder / engine
            result[engine] = embed(engine, model, files, out, args, kills)
            result[engine]["rows"], result[engine]["hash"] = check(out, args.texts)
            result["output_bytes"] = sum(path.stat().st_size for path in out.glob("part-*"))
            print(
                f"{engine}: {result[engine]['seconds']} s, {result[engine]['texts_per_second']:,.0f} texts/s, hash {result[engine]['hash']}"
            )
    result["overhead_percent"] = round(100 * (result["ray"]["seconds"] / result["local"]["seconds"] - 1), 2)
    result["same"] = result["ray"]["hash"] == result["local"]["hash"]
    args.result.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"Ray with {len(result['ray']['killed'])} kills takes {result['overhead_percent']} % more; the same rows: {result['same']}"
    )
    if not result["same"] or len(result["ray"]["killed"]) != args.kills:
        raise SystemExit("the runs differ, or were over before the workers could be killed")


def table(args: argparse.Namespace) -> None:
    """Core-hours, days and bytes for many texts, from what was measured: they grow in proportion, since parts do not know of each other."""
    found = json.loads(args.result.read_text())
    each = found["ray"]["texts_per_second"] / found["workers"]
    hours = args.wanted / each / 3600
    print(
        f"{args.wanted:,} texts at {each:,.0f} texts a second and core: {hours:,.0f} core-hours, {args.wanted * found['output_bytes'] / found['texts'] / 1e12:,.2f} TB of output"
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
    parser.add_argument("--file", type=Path, help="text whose words are used")
    parser.add_argument("--scratch", type=Path, help="where the texts and vectors lie meanwhile")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--wanted", type=int, default=10_000_000_000)
    parser.add_argument("--price", type=float, help="of a core for an hour")
    args = parser.parse_args()
    (table if args.table else measure)(args)


if __name__ == "__main__":
    main()
