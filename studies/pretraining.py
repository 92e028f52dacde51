"""Pre-training speed on a GPU, with the real data pipeline, compared with transformers, eager and compiled, in one run.

    python studies/pretraining.py SHARDS [--shapes base small] [--alone large xlarge xxlarge] [--steps 30]

SHARDS is a folder made by `albertkit corpus`. Every number is the best of three rounds of `steps` training steps after
warm-up: tokens per second, share of the measured bf16 peak, and peak allocated memory divided by the tokens of a batch.
albertkit reads rows from the memory-mapped shards, draws masks and order on the device, steps the optimizer and reads
the losses, as in `albertkit pretrain`. transformers gets masked tokens with labels that are already on the device.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from steps import measure_peak_flops, share_of_peak

from albertkit.config import preset
from albertkit.train import loop, pretrain
from albertkit.train.distributed import ProcessGroup
from albertkit.train.train_settings import TrainSettings

ROWS = {"small": 512, "base": 512, "large": 192, "xlarge": 96, "xxlarge": 64}  # rows of 128 tokens at once


def timed(step: Callable[[], Any], tokens: int, steps: int) -> dict[str, float]:
    """Tokens a second and bytes a token of a step."""
    began = time.perf_counter()
    for _ in range(8):
        step()
    torch.cuda.synchronize()
    warm = time.perf_counter() - began
    torch.cuda.reset_peak_memory_stats()
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        best = max(best, steps * tokens / (time.perf_counter() - began))
    return {
        "tokens_per_second": best,
        "bytes_per_token": torch.cuda.max_memory_allocated() / tokens,
        "warm_up_seconds": warm,
    }


def ours(shards: Path, shape: str, batch: int, steps: int) -> dict[str, float]:
    """The loop's own steps, losses read every twenty, on rows from the shards."""
    settings = TrainSettings(steps=10**6, batch_size=batch, evaluations=0, tensorboard=False)
    work = pretrain.PretrainTask(shards, preset(shape), settings)
    with tempfile.TemporaryDirectory() as folder:
        processes = ProcessGroup(0, 1, torch.device("cuda", 0))
        run = loop.TrainingRun(work, settings, Path(folder), processes, print)
        run.open(False)
        run.reset_sums()

        def step() -> None:
            run.step(0.5)
            if run.state.step % settings.log_every == 0:
                run.log_metrics(0.0)

        result = timed(step, batch * work.length, steps)
    result["share_of_peak"] = share_of_peak(result["tokens_per_second"], work, processes.device)
    result["peak_tflops"] = measure_peak_flops(processes.device) / 1e12
    return result


def transformers(shape: str, batch: int, steps: int, compiled: bool) -> dict[str, float]:
    """AlbertForPreTraining with torch's fused attention, bf16 autocast and fused AdamW."""
    from transformers import AlbertConfig, AlbertForPreTraining

    config = dataclasses.asdict(preset(shape))
    config.pop("options")
    model = AlbertForPreTraining(AlbertConfig(**config, attn_implementation="sdpa")).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(5, config["vocab_size"], (batch, 128), device="cuda")
    labels = torch.where(torch.rand(batch, 128, device="cuda") < 0.15, ids, -100)
    order = torch.randint(0, 2, (batch,), device="cuda")
    call = torch.compile(model) if compiled else model

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = call(input_ids=ids, labels=labels, sentence_order_label=order).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return timed(step, batch * 128, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--shapes", nargs="+", default=["base", "small"])
    parser.add_argument(
        "--alone", nargs="*", default=["large", "xlarge", "xxlarge"], help="shapes measured without peers"
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "pretraining.json")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    results: dict[str, Any] = {}
    facts = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "length": 128,
    }
    for shape in (*args.shapes, *args.alone):
        rows = ROWS[shape]
        steps = max(5, args.steps * rows // 512)
        runs: dict[str, Callable[[], dict[str, float]]] = {
            "albertkit": lambda s=shape, r=rows, n=steps: ours(args.shards, s, r, n)
        }
        if shape in args.shapes:
            for name, compiled in (("transformers, eager", False), ("transformers, compiled", True)):
                runs[name] = lambda s=shape, c=compiled, r=rows, n=steps: transformers(s, r, n, c)
        results[shape] = {"rows": rows}
        for name, call in runs.items():
            torch._dynamo.reset()
            result = results[shape][name] = call()
            gc.collect()
            torch.cuda.empty_cache()
            print(shape, name, {k: round(v, 3) for k, v in result.items()}, flush=True)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"machine": facts, "shapes": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
