"""The cost of building a corpus: tokens per second, processor time, and the memory of all processes together.

    python studies/corpus.py TEXTS… -o FOLDER --name "English Wikipedia"      # adds to studies/results/corpus.json
    python studies/corpus.py TEXTS… -o FOLDER --name "Chinese Wikipedia, WordPiece" --tokenizer vocab.txt

The command runs in a separate process. Memory is the sum of the resident sizes of that process and its children,
sampled ten times a second; shared pages count more than once.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

RESULT = Path(__file__).parent / "results" / "corpus.json"
SHARED = Path(os.environ.get("ALBERTKIT_SHARED", Path(__file__).parent.parent.parent / "shared"))


def measure(texts: list[str], folder: Path, options: list[str]) -> dict:
    shutil.rmtree(folder, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "albertkit.cli.entry_point",
        "corpus",
        *texts,
        "-o",
        str(folder),
        "--json",
        *options,
    ]
    start, before, spent = time.perf_counter(), busy(), own()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    peak = {"all": 0.0, "parent": 0.0, "processes": 0}
    while process.poll() is None:
        sizes = tree(process.pid)
        if sum(sizes) > peak["all"]:
            peak = {"all": sum(sizes), "parent": sizes[0], "processes": len(sizes)}
        time.sleep(0.1)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"the command failed: {' '.join(command)}")
    mine, watching = (now - then for now, then in zip(own(), spent, strict=True))
    others = busy() - before - mine - watching
    manifest = json.loads((folder / "manifest.json").read_text())
    counts = manifest["counts"]
    return {
        "files": [Path(row["name"]).name for row in manifest["inputs"]],
        "packed_bytes": sum(row["bytes"] for row in manifest["inputs"]),
        "settings": manifest["settings"],
        "vocabulary": manifest["vocabulary"],
        "counts": counts,
        "shards": {name: len(entries) for name, entries in manifest["splits"].items()},
        "corpus_bytes": sum(path.stat().st_size for path in folder.rglob("*.npy")),
        "seconds": seconds,
        "processor_seconds": mine,
        "processor_seconds_of_other_programs": max(others, 0.0),
        "tokens_per_second": counts["tokens_read"] / seconds,
        "peak_rss_mb": peak["all"],
        "peak_rss_parent_mb": peak["parent"],
        "processes": peak["processes"],
    }


def own() -> tuple[float, float]:
    """Processor seconds of all commands run so far, and of this program itself."""
    children, this = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
    return children.ru_utime + children.ru_stime, this.ru_utime + this.ru_stime


def busy() -> float:
    """Seconds that the processors of this machine have worked since it started."""
    fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[float]:
    """Resident megabytes of a process and of all below it, the process itself first."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    processes = [root]
    for pid in processes:
        processes += [child for child, parent in parents.items() if parent == pid]
    page = os.sysconf("SC_PAGE_SIZE") / 1e6
    sizes = []
    for pid in processes:
        try:
            sizes.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page)
        except OSError:
            sizes.append(0.0)
    return sizes


def unpacked(texts: list[str]) -> int:
    """Bytes of text in some files."""
    from albertkit.data.documents import read_blocks
    from albertkit.text_reader import find_text_files

    return sum(len(block.data) for block in read_blocks(find_text_files(texts)))


def machine() -> dict:
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", default=sorted(map(str, SHARED.glob("corpus/enwiki-*"))))
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--name", default="English Wikipedia", help="row of the table")
    parser.add_argument("--tokenizer")
    parser.add_argument("--repeat", type=int, default=1, help="measure so often, and keep the run in the middle")
    args = parser.parse_args()
    data = json.loads(RESULT.read_text()) if RESULT.exists() else {"machine": machine(), "runs": {}}
    if args.output is None:
        parser.error("name a folder for the corpus (-o)")
    options = ["--tokenizer", args.tokenizer] if args.tokenizer else []
    runs = sorted(
        (measure(args.texts, args.output, options) for _ in range(args.repeat)), key=lambda row: row["seconds"]
    )
    row = {**runs[len(runs) // 2], "seconds_of_all_runs": [round(run["seconds"], 1) for run in runs]}
    data["machine"] = machine()
    data["runs"][args.name] = {"text_bytes": unpacked(args.texts), **row}
    RESULT.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
