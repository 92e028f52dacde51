"""Stage 1 of `small-zh`: masked-language-model and sentence-order pre-training on one GPU, resumable.

    python pretrain.py time shards --seconds 12         tokens per second of the attention variants
    python pretrain.py train shards run --minutes 25    the training; the same command resumes
    python pretrain.py save run out                     the last checkpoint in files of at most 15 MiB
    python pretrain.py join out folder                  those files as a folder again

It is `albertkit pretrain --shape small --option attention_bias=relative` with one difference: where `explicit` is faster than
torch's fused attention, whose kernels are slow with a bias that is trained, attention is written out and compiled.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import shutil
import sys
import tarfile
import time
from pathlib import Path

import torch
from torch import Tensor

from albertkit.artifact import read_artifact
from albertkit.config import AlbertConfig, preset
from albertkit.model.attention_options import OptionAttention
from albertkit.options import Options
from albertkit.train import checkpoint
from albertkit.train.goals import Goals
from albertkit.train.loop import Run, train
from albertkit.train.pretrain import Pretraining
from albertkit.train.settings import Settings
from albertkit.train.team import team

PART = 15 << 20  # bytes of a file
RECIPE = {"optimizer": "muon", "learning_rate": 1e-3, "warmup": 0.02, "tensorboard": False}
GOALS = {"lengths": "128:0.74,512:0.16,128:0.1", "short": 0.2, "single": 0.4}


def explicit(
    self: OptionAttention, query: Tensor, key: Tensor, value: Tensor, first: bool, local: bool, inside: Tensor | None
) -> Tensor:
    """Attention written out, for texts of one length without a mask."""
    if inside is not None or first or local:
        return fused(self, query, key, value, first, local, inside)
    bias = self.bias(query.shape[2], key.shape[2], key.device)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)[None]
    return scores.float().softmax(-1).to(value.dtype) @ value


fused = OptionAttention.texts


def shape(block: str, layers: int | None = None) -> AlbertConfig:
    """The shape, canonical or with a bias for each distance."""
    config = preset("small")
    if layers:
        config = config.replace(num_hidden_layers=layers)
    return config.replace(options=Options(attention_bias="relative")) if block == "relative" else config


def measure(given: argparse.Namespace) -> None:
    """Tokens per second of some steps, compilation apart."""
    for block, attention, length in [v.split(":") for v in given.variants.split(",")]:
        OptionAttention.texts = explicit if attention == "explicit" else fused  # type: ignore[method-assign]
        torch._dynamo.reset()
        settings = Settings(steps=100000, batch=given.batch, evaluations=0, device=given.device, **RECIPE)
        goals = Goals(**{**GOALS, "lengths": length, "short": 0.0})
        began = time.perf_counter()
        work = Pretraining(given.shards, shape(block, given.layers), settings, goals)
        with team(settings.device) as crew:
            run = Run(work, settings, given.shards, crew, print)
            for _ in range(5):
                run.step(0.1)
            run.sums.sum().item()
            compiled, start, steps = time.perf_counter() - began, time.perf_counter(), 0
            while time.perf_counter() - start < given.seconds:
                for _ in range(4):
                    run.step(0.1)
                run.sums.sum().item()
                steps += 4
            spent = time.perf_counter() - start
            memory = torch.cuda.max_memory_allocated() / 1e9 if crew.device.type == "cuda" else 0.0
        speed = steps * given.batch * int(length) / spent if given.batch else 0.0
        loss = float(run.sums[0, 0] / run.sums[0, 1].clamp(min=1))
        print(f"{block} {attention} {length}: ready after {compiled:.1f} s, {speed / 1e6:.3f} M tokens/s,", end=" ")
        print(f"{spent / steps * 1000:.1f} ms per step, {memory:.1f} GB, mean loss {loss:.2f}", flush=True)


def run(given: argparse.Namespace) -> None:
    """Train, or resume."""
    if given.attention == "explicit":
        OptionAttention.texts = explicit  # type: ignore[method-assign]
    settings = Settings(
        minutes=given.minutes, batch=given.batch, device=given.device, evaluations=given.evaluations, save_minutes=2.0,
        log_every=50, seed=given.seed, **{**RECIPE, "learning_rate": given.rate},
    )  # fmt: skip
    goals = Goals(**{**GOALS, "lengths": given.lengths})
    start = read_artifact(given.start) if given.start else None
    work = Pretraining(given.shards, shape(given.block, given.layers), settings, goals, start)
    outcome = train(work, settings, given.run, resume=True, say=lambda text: print(text, flush=True))
    print("done", json.dumps({"tokens": outcome.state.tokens, "step": outcome.state.step, **outcome.metrics}), flush=True)


def save(given: argparse.Namespace) -> None:
    """The last checkpoint as a tar file in parts; without `--whole` its model alone, without the optimizer's moments."""
    place = checkpoint.place(given.run, checkpoint.steps(given.run)[-1])
    folder = place if given.whole else place / "model"
    given.out.mkdir(parents=True, exist_ok=True)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.add(folder, folder.name)
    parts = data.getvalue()
    for at in range(0, len(parts), PART):
        (given.out / f"checkpoint.{at // PART}").write_bytes(parts[at : at + PART])
    shutil.copy(given.run / "metrics.jsonl", given.out)
    print("saved", folder, len(parts), "bytes")


def join(given: argparse.Namespace) -> None:
    """The parts as the folder they were."""
    data = b"".join(path.read_bytes() for path in sorted(given.parts.glob("checkpoint.*")))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(given.folder, filter="data")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, call in (("time", measure), ("train", run)):
        one = commands.add_parser(name)
        one.add_argument("shards", type=Path)
        one.add_argument("--batch", type=int, default=1024)
        one.add_argument("--device", default="cuda")
        one.add_argument("--layers", type=int)
        one.set_defaults(run_it=call)
        if name == "time":
            one.add_argument("--seconds", type=float, default=10.0)
            one.add_argument("--variants", default="relative:fused:128,relative:explicit:128")
        else:
            one.add_argument("run", type=Path)
            one.add_argument("--minutes", type=float, required=True)
            one.add_argument("--block", default="relative", choices=["relative", "canonical"])
            one.add_argument("--attention", default="fused", choices=["fused", "explicit"])
            one.add_argument("--evaluations", type=int, default=20)
            one.add_argument("--lengths", default=GOALS["lengths"])
            one.add_argument("--rate", type=float, default=1e-3)
            one.add_argument("--seed", type=int, default=0)
            one.add_argument("--start", type=Path)
    three = commands.add_parser("save")
    three.add_argument("run", type=Path)
    three.add_argument("out", type=Path)
    three.add_argument("--whole", action="store_true")
    three.set_defaults(run_it=save)
    four = commands.add_parser("join")
    four.add_argument("parts", type=Path)
    four.add_argument("folder", type=Path)
    four.set_defaults(run_it=join)
    given = parser.parse_args()
    given.run_it(given)


if __name__ == "__main__":
    sys.exit(main())
