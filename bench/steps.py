"""A pre-training step on the CPU, with the real data pipeline, compared with transformers in interleaved rounds.

    python bench/steps.py [--shape small] [--rows 8] [--steps 4] [--rounds 3]

The corpus is `runs/tiny.txt.xz`, tokenized with the English vocabulary. albertkit reads rows from memory-mapped shards,
draws masks and order, and steps the optimizer, as in `albertkit pretrain`. transformers gets rows that are masked
already. Both use float32 and AdamW, in one process, one after the other in each round. `studies/pretraining.py` does
the same on a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from albertkit import Tokenizer
from albertkit.compress.cost import operations
from albertkit.config import preset
from albertkit.data.corpus import CorpusSettings, build_corpus
from albertkit.train import loop, pretrain
from albertkit.train.distributed import ProcessGroup, fast_float32_products
from albertkit.train.train_settings import TrainSettings

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "bench" / "results" / "steps.json"
LENGTH = 128


def share_of_peak(tokens_per_second: float, work: pretrain.PretrainTask, device: torch.device) -> float:
    """The operations of a training at this speed, as a share of those of large matrix products on the device."""
    config = work.config
    output_layer = 2 * config.embedding_size * (config.hidden_size + config.vocab_size)
    forward = operations(config, work.length)["total"] + work.pretrain.mask_ratio * output_layer
    return tokens_per_second * 3 * forward / measure_peak_flops(device)


def measure_peak_flops(device: torch.device, size: int | None = None) -> float:
    """Operations per second of a large matrix product on this device: bf16 on a GPU, float32 elsewhere."""
    is_cuda = device.type == "cuda"
    size = size or (8192 if is_cuda else 1024)
    x = torch.randn(size, size, device=device, dtype=torch.bfloat16 if is_cuda else torch.float32)
    best = math.inf
    with fast_float32_products(device):
        for _ in range(40):  # of which a busy machine leaves some alone
            began = time.perf_counter()
            y = x @ x
            if is_cuda:
                torch.cuda.synchronize()
            else:
                y.sum().item()
            best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def ours(shards: Path, shape: str, rows: int, folder: Path) -> tuple[Callable[[], None], Callable[[float], float]]:
    """A step of the loop, and the share of the machine's peak that a speed is."""
    settings = TrainSettings(steps=10**6, batch_size=rows, evaluations=0, tensorboard=False, device="cpu")
    work = pretrain.PretrainTask(shards, preset(shape), settings)
    run = loop.TrainingRun(work, settings, folder, ProcessGroup(0, 1, torch.device("cpu")), print)
    run.open(False)
    run.reset_sums()

    def step() -> None:
        with fast_float32_products(torch.device("cpu")):  # as in `loop.train`
            run.step(0.5)

    return step, lambda speed: share_of_peak(speed, work, torch.device("cpu"))


def theirs(shape: str, rows: int) -> Callable[[], None]:
    """AlbertForPreTraining with torch's fused attention and AdamW."""
    from transformers import AlbertConfig, AlbertForPreTraining

    config = dataclasses.asdict(preset(shape))
    config.pop("options")
    model = AlbertForPreTraining(AlbertConfig(**config, attn_implementation="sdpa")).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(5, config["vocab_size"], (rows, LENGTH))
    labels, order = torch.where(torch.rand(rows, LENGTH) < 0.15, ids, -100), torch.randint(0, 2, (rows,))

    def step() -> None:
        model(input_ids=ids, labels=labels, sentence_order_label=order).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="small")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    from inference import machine, versions

    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = Tokenizer.from_spiece(ROOT / "src" / "albertkit" / "models" / "small" / "spiece.model")
        build_corpus(
            [str(ROOT / "runs" / "tiny.txt.xz")], Path(scratch) / "shards", tokenizer, CorpusSettings(), workers=1
        )
        step, share = ours(Path(scratch) / "shards", args.shape, args.rows, Path(scratch) / "run")
        sides = {"albertkit": step, "transformers": theirs(args.shape, args.rows)}
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(args.rounds + 1):  # the first warms up
            for name, call in sides.items():
                began = time.perf_counter()
                for _ in range(args.steps):
                    call()
                if number:
                    seconds[name].append(time.perf_counter() - began)
    tokens = args.steps * args.rows * LENGTH
    speeds = {name: tokens / statistics.median(taken) for name, taken in seconds.items()}
    result = {
        "machine": machine(torch.get_num_threads()), "libraries": versions(), "shape": args.shape, "rows": args.rows, "length": LENGTH,
        "tokens_per_second": speeds, "share_of_peak": share(speeds["albertkit"]),
    }  # fmt: skip
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
