"""The planner's predictions beside measurements: ten varied shapes, float32 and int8, each in a process of its own.

    python bench/plan.py              # measure (about two minutes on two cores), keep bench/results/plan.json
    python bench/plan.py --table      # docs/planning.md from the kept data

The machine is measured once, on a grid of sizes that none of the shapes need lie on; every shape is predicted from that, then built with random
weights and measured through the whole runtime. A prediction is good within 25 %.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "bench" / "results" / "plan.json"
PAGE = ROOT / "docs" / "planning.md"
ALLOWED = 0.25


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
    from albertkit.compress.machine import measure as machine_of
    from albertkit.compress.trial import _random, measured
    from albertkit.runtime.engine import cores
    from albertkit.tokenizer import Tokenizer

    threads = threads or cores()
    chosen = dict(list(shapes().items())[:only])
    tokenizer = Tokenizer.load(model_folder(None))
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for length in lengths:
            start = time.perf_counter()
            machine = machine_of(list(chosen.values()), length, threads)
            spent = time.perf_counter() - start
            print(f"{length} tokens: the machine was measured in {spent:.1f} s", flush=True)
            for name, config in chosen.items():
                config = config.replace(vocab_size=tokenizer.vocab_size)
                for bits in (32, 8):
                    folder = Path(scratch) / f"{name}-{bits}"
                    if not folder.exists():
                        write_artifact(_random(config, tokenizer), folder, bits=None if bits == 32 else bits)
                    found = min((measured(folder, length, threads) for _ in range(3)), key=lambda f: f["latency"])
                    guess = machine.latency(config, bits)
                    row = {
                        "shape": name, "length": length, "bits": bits, "predicted_ms": 1e3 * guess,
                        "measured_ms": 1e3 * found["latency"], "memory_mb": found["memory"] / 1e6,
                    }  # fmt: skip
                    rows.append(row)
                    print(
                        f"  {name}, {bits} bits: {row['predicted_ms']:.2f} ms, measured {row['measured_ms']:.2f}",
                        flush=True,
                    )
    return {"machine": about(threads), "rows": rows}


def about(threads: int) -> dict:
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "threads": threads,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def table(result: dict) -> str:
    machine, rows = result["machine"], result["rows"]
    off = [abs(r["predicted_ms"] / r["measured_ms"] - 1) for r in rows]
    within = sum(x <= ALLOWED for x in off)
    lines = [
        "<!-- Written by `python bench/plan.py --table`; do not edit. -->", "", "# Predicted and measured latency", "",
        f"`albertkit plan` measures the machine for some seconds and predicts any shape from that. Here its predictions for ten shapes stand beside "
        f"measurements of the same shapes, one text at a time, on {machine['threads']} threads of {machine['processor']}, {machine['date']}: "
        f"{within} of {len(rows)} are within {ALLOWED:.0%}, the worst is {max(off):.0%} off.", "",
        "| shape | tokens | weights | predicted, ms | measured, ms | predicted ÷ measured |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {r['shape']} | {r['length']} | {'float32' if r['bits'] == 32 else 'int8'} | {r['predicted_ms']:.2f} "
        f"| {r['measured_ms']:.2f} | {r['predicted_ms'] / r['measured_ms']:.2f} |"
        for r in rows
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="write docs/planning.md from the kept result")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", type=int, help="the first shapes only, and keep nothing: to try the program")
    given = parser.parse_args()
    if not given.table:
        result = measure(given.lengths, given.threads, given.only)
        if given.only is not None:
            print(table(result))
            return
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    PAGE.write_text(table(result), encoding="utf-8")
    off = [abs(r["predicted_ms"] / r["measured_ms"] - 1) for r in result["rows"]]
    print(f"worst {max(off):.0%}; {sum(x <= ALLOWED for x in off)} of {len(off)} within {ALLOWED:.0%}")
    sys.exit(0 if max(off) <= ALLOWED else 1)


if __name__ == "__main__":
    main()
