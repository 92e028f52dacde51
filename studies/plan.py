"""The planner's predictions compared with measurements: ten shapes, float32 and int8, each in a separate process.

    python studies/plan.py              # measure (about ten minutes on two cores), write studies/results/plan.json

For each shape, layers and models are measured alternately (layers, models, layers), under the same load. Layers are
timed as in `albertkit plan`; the model has random weights and runs through the whole runtime. A round in which other
processes used more than a tenth of the processors is repeated, up to a few times. The fastest of the remaining rounds
counts. A prediction is good if it is within 25 %.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "studies" / "results" / "plan.json"
ALLOWED = 0.25
BUSY = 0.1  # share of the processors that other work may take in a round
KEPT, MOST = 5, 8  # rounds that count, and rounds that are tried to find them


def shapes() -> dict:
    """Ten shapes that differ in width, depth, heads, feed-forward, groups and pruning."""
    from albertkit.config import AlbertConfig, Options, preset

    return {
        "tiny": preset("tiny"),
        "tiny-zh": preset("tiny-zh"),
        "small": preset("small"),
        "small, 3 layers": preset("small").replace(num_hidden_layers=3),
        "small, 2 groups": preset("small").replace(num_hidden_groups=2),
        "base": preset("base"),
        "base, 4 layers": preset("base").replace(num_hidden_layers=4),
        "base, 8 of 12 heads, FFN 1536": preset("base").replace(
            num_attention_heads=8, intermediate_size=1536, options=Options(head_size=64)
        ),
        "448 wide, FFN 1000": AlbertConfig(
            hidden_size=448, num_attention_heads=7, intermediate_size=1000, num_hidden_layers=6
        ),
        "large, 6 layers": preset("large").replace(num_hidden_layers=6),
    }


def measure(lengths: list[int], threads: int | None, only: int | None = None) -> dict:
    from albertkit.artifact import model_folder, write_artifact
    from albertkit.compress.benchmark import random_model
    from albertkit.cpu_cores import cores
    from albertkit.tokenizer import Tokenizer

    threads = threads or cores()
    tokenizer = Tokenizer.load(model_folder(None))
    records = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, shape in list(shapes().items())[:only]:
            config = shape.replace(vocab_size=tokenizer.vocab_size)
            folders = {bits: Path(scratch) / f"{name}-{bits}" for bits in (32, 8)}
            for bits, folder in folders.items():
                write_artifact(random_model(config, tokenizer), folder, bits=None if bits == 32 else bits)
            for length in lengths:
                records += [{"shape": name, **row} for row in rows(config, folders, length, threads)]
                for row in records[-2:]:
                    print(
                        f"{name}, {length} tokens, {row['bits']} bits: {row['predicted_ms']:.2f} ms, measured {row['measured_ms']:.2f}, "
                        f"{row['predicted_ms'] / row['measured_ms']:.2f}; other work {row['others']:.0%}",
                        flush=True,
                    )
    records.sort(key=lambda row: row["length"])
    return {"machine": about(threads), "rows": records}


def rows(config, folders: dict[int, Path], length: int, threads: int) -> list[dict]:
    """One shape at one length: the quietest rounds of some."""
    rounds: list[tuple] = []
    while len(rounds) < MOST and sum(share <= BUSY for share, _, _ in rounds) < KEPT:
        rounds.append(one_round(config, folders, length, threads))
    quiet_rounds = sorted(rounds, key=lambda r: r[0])[:KEPT]
    return [
        {
            "length": length, "bits": bits, "predicted_ms": 1e3 * min(guesses[bits] for _, guesses, _ in quiet_rounds),
            "measured_ms": 1e3 * min(models[bits]["latency"] for _, _, models in quiet_rounds),
            "memory_mb": min(models[bits]["memory"] for _, _, models in quiet_rounds) / 1e6,
            "others": max(share for share, _, _ in quiet_rounds),
        }
        for bits in folders
    ]  # fmt: skip


def one_round(config, folders: dict[int, Path], length: int, threads: int) -> tuple:
    """The share of other work, and by bits what was predicted (the faster of before and after) and measured."""
    from albertkit.compress.benchmark import measure_folder
    from albertkit.compress.benchmark import measure_machine as machine_of

    start, before = time.perf_counter(), others()
    first = machine_of([config], length, threads, rounds=1)
    models = {bits: measure_folder(folder, length, threads) for bits, folder in folders.items()}
    last = machine_of([config], length, threads, rounds=1)
    share = (others() - before) / (time.perf_counter() - start) / (os.cpu_count() or 1)
    return share, {bits: min(rates.latency(config, bits) for rates in (first, last)) for bits in folders}, models


def others() -> float:
    """Seconds of processor time that other programs have taken so far; 0 where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, *more = (int(n) for n in stat.read_text().splitlines()[0].split()[1:9])
    own = os.times()
    busy = (user + nice + system + sum(more)) / os.sysconf("SC_CLK_TCK")
    return busy - own.user - own.system - own.children_user - own.children_system


def about(threads: int) -> dict:
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "threads": threads,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", type=int, help="the first shapes only, and keep nothing: to try the program")
    args = parser.parse_args()
    result = measure(args.lengths, args.threads, args.only)
    if args.only is None:
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    off = [abs(r["predicted_ms"] / r["measured_ms"] - 1) for r in result["rows"]]
    print(f"worst {max(off):.0%}; {sum(x <= ALLOWED for x in off)} of {len(off)} within {ALLOWED:.0%}")
    sys.exit(0 if max(off) <= ALLOWED else 1)


if __name__ == "__main__":
    main()
