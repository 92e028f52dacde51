"""Speeds of the variants in `variants.py`, one variant after the other on a machine that does nothing else.

    python studies/ablation_speed.py speed SHARDS [--shape small] [--batch 64] [--steps 40] [--rounds 3] [--device auto]
    [--compile auto]
    python studies/ablation_speed.py reading [--shape small] [--batch N] [--seconds 2] [--device auto]
    python studies/ablation_speed.py lengths [--shape small] [--window 64] [--device auto]

`speed` times training steps. `reading` times inference with random weights, by the torch-free runtime on a CPU and by
torch on a GPU. `lengths` times one layer with and without a window, in torch. The tables are in docs/results/ideas.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "studies")]

from ablation import device_facts, pretrain_task, shape_options, shared_options  # noqa: E402
from variants import select_variants, variant  # noqa: E402

from albertkit.config import AlbertConfig, Options, preset  # noqa: E402
from albertkit.errors import AlbertkitError  # noqa: E402

RESULTS = Path(__file__).parent / "results"
LENGTHS, SPEEDS = RESULTS / "ablation-lengths.json", RESULTS / "ablation-speed.json"
FILL = 32_768  # tokens that keep a GPU busy; with few, the time to start its kernels is all that is measured
USUAL = "128,256,512,1024,2048,4096"
LONG = f"{USUAL},8192,16384"
GROUP = 5  # updates that are timed together, since a GPU is asked for its results only at the end of them


def measure_training(args: argparse.Namespace) -> None:
    """Tokens a second of updates of each variant."""
    import torch

    torch.set_float32_matmul_precision("high")
    recipe = {name: getattr(args, name) for name in ("shape", "layers", "length", "batch", "optimizer", "compile")}
    measure_variants({"what": "updates", **recipe}, select_variants(args.only), training_speed, args)


def measure_inference(args: argparse.Namespace) -> None:
    """Tokens a second of each variant that reads in a way of its own."""
    args.batch = args.batch or (FILL // args.length if on_gpu(args.device) else 16)
    recipe = {name: getattr(args, name) for name in ("shape", "layers", "length", "batch")}
    names = [name for name in select_variants(args.only) if not variant(name).goals]
    measure_variants({"what": "reading", **recipe}, names, inference_speed, args)


def measure_variants(
    recipe: dict[str, Any],
    names: list[str],
    measure: Callable[[str, argparse.Namespace], float],
    args: argparse.Namespace,
) -> None:
    """One variant after the other, on a machine that does nothing else, --rounds times over; the best of each counts,
    and what was measured before stays.
    """
    import torch

    from albertkit.data.shards import replace_json

    machine = device_facts(args.device) | {"threads": str(torch.get_num_threads())}
    records = json.loads(args.results.read_text(encoding="utf-8")) if args.results.is_file() else []
    record = next((r for r in records if r["machine"] == machine and r["recipe"] == recipe), None)
    if record is None:
        record = {"machine": machine, "recipe": recipe, "tokens_per_second": {}}
        records.append(record)
    speeds = record["tokens_per_second"]
    to_measure = [name for name in names if name not in speeds or args.only is not None]
    for name in to_measure:
        speeds.pop(name, None)
    for name in to_measure * args.rounds:
        try:
            speeds[name] = max(speeds.get(name, 0.0), measure(name, args))
        except (AlbertkitError, RuntimeError) as error:
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
            continue
        print(f"{name}: {speeds[name]:,.0f} tokens/s", flush=True)
        args.results.parent.mkdir(parents=True, exist_ok=True)
        replace_json(args.results, records)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def inference_speed(name: str, args: argparse.Namespace) -> float:
    """Tokens a second of a model with random weights: the runtime's on a processor, torch's in bf16 on a GPU."""
    import torch

    config = variant(name).config(args.shape, args.length, args.layers)
    texts = np.random.default_rng(0).integers(5, config.vocab_size, (args.batch, args.length)).tolist()
    if on_gpu(args.device):
        from albertkit.model import AlbertModel, Batch

        encoder = AlbertModel(config).encoder.eval().to("cuda", torch.bfloat16)
        batch = Batch.of(texts).to("cuda")

        def call() -> None:
            with torch.inference_mode():
                encoder(batch)
            torch.cuda.synchronize()
    else:
        from albertkit.compress.benchmark import random_weights
        from albertkit.runtime.batching import token_batches
        from albertkit.runtime.engine import Engine
        from albertkit.weights import encoder_shapes

        weights = random_weights(encoder_shapes(config, pooler=False), 32)
        engine = Engine(config, weights, torch.get_num_threads())
        (packed,) = token_batches(texts, token_budget=args.batch * args.length)

        def call() -> None:
            engine.run(packed, config.num_hidden_layers)

    return args.batch * args.length / median_seconds(call, args.seconds)


def on_gpu(device: str) -> bool:
    """Whether a GPU is asked for, or there is one and nothing is asked for."""
    import torch

    return device == "cuda" or (device == "auto" and torch.cuda.is_available())


def training_speed(name: str, args: argparse.Namespace) -> float:
    """Tokens a second: the median over groups of updates, after some to warm up."""
    import torch

    from albertkit.train.distributed import process_group
    from albertkit.train.loop import TrainingRun

    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as scratch, process_group(args.device) as processes:
        work, settings = pretrain_task(name, 0, args, steps=10**6)
        updates = TrainingRun(work, settings, Path(scratch), processes, print)

        def seconds(count: int) -> float:
            began = time.perf_counter()
            for _ in range(count):
                updates.step(0.5)
            if processes.device.type == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - began

        seconds(args.warm)
        count = min(GROUP, args.steps)
        times = [seconds(count) for _ in range(max(1, args.steps // count))]
        return count * args.batch * args.length / float(np.median(times))


def median_seconds(call: Callable[[], object], seconds: float) -> float:
    """Seconds of a call: the median of several."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def torch_times(config: AlbertConfig, length: int, texts: int, device: str, seconds: float) -> dict[str, float]:
    """Seconds of one layer over some texts, all seeing all and in the window."""
    import torch

    from albertkit.model import Batch
    from albertkit.model.encoder import Layer

    torch.manual_seed(0)
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    layer = Layer(config).eval().to(device, kind)
    hidden = torch.randn(texts * length, config.hidden_size, device=device, dtype=kind)
    batch = Batch.of([[5] * length] * texts).to(device)

    def call(local: bool) -> None:
        with torch.inference_mode():
            layer(hidden, batch, False, local)
        if device == "cuda":
            torch.cuda.synchronize()

    return {"full": median_seconds(lambda: call(False), seconds), "window": median_seconds(lambda: call(True), seconds)}


def measure_lengths(args: argparse.Namespace) -> None:
    """Where a window begins to pay."""
    import torch

    device = "cuda" if on_gpu(args.device) else "cpu"
    lengths = [int(n) for n in (args.lengths or (LONG if device == "cuda" else USUAL)).split(",")]
    tokens = args.tokens or (FILL if device == "cuda" else 0)
    config = preset(args.shape).replace(max_position_embeddings=max(lengths), options=Options(window=args.window))
    results = json.loads(args.results.read_text(encoding="utf-8")) if args.results.is_file() else {}
    rows = []
    for length in lengths:
        texts = max(1, tokens // length)
        rows.append({"length": length, "texts": texts, **torch_times(config, length, texts, device, args.seconds)})
        print(rows[-1], flush=True)
    machine = device_facts(args.device) | {"threads": str(torch.get_num_threads())}
    results[f"torch, {machine['device']}"] = {
        "machine": machine,
        "shape": args.shape,
        "window": args.window,
        "rows": rows,
    }
    args.results.parent.mkdir(parents=True, exist_ok=True)
    args.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    speed_parser = verbs.add_parser("speed")
    shared_options(speed_parser, 64)
    speed_parser.add_argument("--steps", type=int, default=40, help="updates that are timed")
    speed_parser.add_argument("--warm", type=int, default=8, help="updates before")
    speed_parser.add_argument("--results", type=Path, default=SPEEDS)
    speed_parser.set_defaults(call=measure_training)
    reading_parser = verbs.add_parser("reading")
    shape_options(reading_parser, None)
    reading_parser.add_argument("--seconds", type=float, default=2.0)
    reading_parser.add_argument("--results", type=Path, default=SPEEDS)
    reading_parser.set_defaults(call=measure_inference)
    lengths_parser = verbs.add_parser("lengths")
    lengths_parser.add_argument("--shape", default="small")
    lengths_parser.add_argument("--window", type=int, default=64)
    lengths_parser.add_argument("--lengths", help=f"in tokens; default {USUAL}, on a GPU {LONG}")
    lengths_parser.add_argument(
        "--tokens", type=int, help=f"of all texts at once; default {FILL} on a GPU, else one text"
    )
    lengths_parser.add_argument("--device", default="auto")
    lengths_parser.add_argument("--threads", type=int)
    lengths_parser.add_argument("--seconds", type=float, default=1.0)
    lengths_parser.add_argument("--results", type=Path, default=LENGTHS)
    lengths_parser.set_defaults(call=measure_lengths)
    args = parser.parse_args()
    args.call(args)


if __name__ == "__main__":
    main()
