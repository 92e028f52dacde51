"""Kill a training run with SIGKILL at random moments, resume it, and compare it with an uninterrupted run.

    python studies/kill.py [--kills 50] [--steps 50·kills] [--seed 0] [--optimizer adamw]

A small model is trained on a CPU by `albertkit pretrain`, with a checkpoint every few steps. Each process is killed at
a random moment while it starts, resumes, trains or writes checkpoints. After the last kill the run finishes. Weights,
optimizer state and metrics must equal those of the uninterrupted run, bit for bit; otherwise the exit code is not 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from albertkit.data.corpus import CorpusSettings, build_corpus
from albertkit.tokenizer import Tokenizer

SHAPE = {
    "vocab_size": 300,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.1,
}
CLOCKS = ("seconds", "tokens_per_second")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": sys.path[0]}


def corpus(folder: Path, seed: int) -> Path:
    """A few hundred documents of made-up words, each document with twenty words of its own (learnable: no alarm)."""
    rng = random.Random(seed)
    words = [
        "".join(rng.choice("aeiou") if i % 2 else rng.choice("bdfgklmnprst") for i in range(5)) for _ in range(200)
    ]
    texts = []
    for _ in range(400):
        at = rng.randrange(10) * 20
        lines = [" ".join(rng.choices(words[at : at + 20], k=rng.randint(4, 12))) for _ in range(rng.randint(3, 15))]
        texts.append(" ".join(f"{line.capitalize()}." for line in lines))
    (folder / "text.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.train(texts, "wordpiece", 290)
    build_corpus([folder / "text.txt"], folder / "shards", tokenizer, CorpusSettings(held_out=0.05), workers=1)
    return folder / "shards"


def start(shards: Path, out: Path, steps: int, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """The command a user types, in a process of its own."""
    settings = {
        "shape": shards.parent / "shape.json", "steps": steps, "batch-size": 8, "lengths": "16:0.5,32:0.5", "log-every": 5, "save-steps": 5,
        "evaluations": 10, "eval-rows": 64, "seed": options.seed, "optimizer": options.optimizer,
        "learning-rate": 3e-3, "device": "cpu",
    }  # fmt: skip
    line = [sys.executable, "-m", "albertkit", "pretrain", str(shards), "-o", str(out), "--resume", "--no-tensorboard"]
    line += [f"--{name}={value}" for name, value in settings.items()]
    return subprocess.Popen(line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> float:
    """Wait for the end; seconds it took. A failure ends the program with what the process said."""
    began = time.perf_counter()
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"the training failed: {errors.decode()[-2000:]}")
    return time.perf_counter() - began


def last(out: Path) -> int:
    """Step of the last checkpoint, -1 before the first."""
    found = sorted(out.glob("checkpoints/step-*"))
    return int(found[-1].name[5:]) if found else -1


def start_time(shards: Path, out: Path, steps: int, options: argparse.Namespace) -> float:
    """Seconds from the start of a process to its first checkpoint."""
    began = time.perf_counter()
    process = start(shards, out, steps, options)
    while last(out) < 5 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    return time.perf_counter() - began


def outcome(out: Path) -> dict[str, Any]:
    """What must be equal."""
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    final = sorted(out.glob("checkpoints/step-*"))[-1]
    return {
        "weights": (out / "model" / "model.safetensors").read_bytes(),
        "optimizer": (final / "training.safetensors").read_bytes(),
        "checkpoints": [path.name for path in sorted(out.glob("checkpoints/*"))],
        "metrics": [{k: v for k, v in line.items() if k not in CLOCKS} for line in metrics],
    }


def main() -> None:
    """Run both trainings and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="how often the process is killed [50]")
    parser.add_argument("--steps", type=int, help="updates of the whole training [50 for each kill]")
    parser.add_argument("--seed", type=int, default=0, help="of the corpus, the training and the moments [0]")
    parser.add_argument("--optimizer", default="adamw", help="adamw or lamb [adamw]")
    options = parser.parse_args()
    steps = options.steps or 50 * options.kills
    rng = random.Random(options.seed)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="albertkit-kill-") as scratch:
        folder = Path(scratch)
        shards = corpus(folder, options.seed)
        (folder / "shape.json").write_text(json.dumps(SHAPE))
        warm = start_time(shards, folder / "warm", steps, options)
        took = finish(start(shards, folder / "straight", steps, options))
        print(f"undisturbed: {steps} updates in {took:.0f} s; a process takes {warm:.1f} s to its first checkpoint")
        out, where, kills = folder / "killed", Counter[str](), 0
        while kills < options.kills:
            before = last(out)
            process = start(shards, out, steps, options)
            try:
                process.wait(rng.uniform(0.6 * warm, warm + 1.0))
                break  # it got to its end
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                kills += 1
            if any(out.glob("checkpoints/.step-*")):
                where["while a checkpoint was written or deleted"] += 1
            else:
                where["in training" if last(out) > before else "before a new checkpoint"] += 1
        reached = last(out)
        finish(start(shards, out, steps, options))
        print(
            f"killed {kills} times, the last time after update {reached}: "
            + ", ".join(f"{v} {k}" for k, v in where.items())
        )
        one, other = outcome(folder / "straight"), outcome(out)
    different = [name for name in one if one[name] != other[name]]
    verdict = (
        f"DIFFERENT: {', '.join(different)}"
        if different
        else "weights, optimizer state and metrics are equal, bit for bit"
    )
    print(f"{verdict} ({time.perf_counter() - began:.0f} s)")
    sys.exit(1 if different or kills < options.kills else 0)


if __name__ == "__main__":
    main()
