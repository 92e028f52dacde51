"""The documents' ideas, measured: each option on and off, at one budget, with several seeds; the source of docs/ablation.md.

    python bench/ablation.py run SHARDS --task sst-2=TRAIN,DEV --task mrpc=TRAIN,DEV --runs RUNS --shape small --tokens 200e6 --seeds 0,1,2
    python bench/ablation.py lengths [--shape small] [--window 64] [--device auto]
    python bench/ablation.py table

`run` pre-trains every variant on the same shards with the same budget (--tokens, or --minutes of the machine), measures masked words and sentence order on held-out rows,
fine-tunes the result on labelled files of classes, and writes one line for each variant and seed to bench/results/ablation.jsonl. What has its line is not done again, and what was
interrupted goes on from its checkpoint, so the same command may be given as often as needed; --only chooses variants. `lengths` times one layer with a window and without, in torch and in the
runtime. `table` writes docs/ablation.md from what was kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / "src"), str(Path(__file__).parent)]

from albertkit.compress.plan import operations, parameters  # noqa: E402
from albertkit.config import AlbertConfig, Options, preset  # noqa: E402
from albertkit.errors import AlbertkitError  # noqa: E402

RESULTS = Path(__file__).parent / "results"
LINES, LENGTHS = RESULTS / "ablation.jsonl", RESULTS / "ablation-lengths.json"


@dataclass(frozen=True)
class Variant:
    """What differs from canonical ALBERT."""

    options: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    """Fields of the config; H and L stand for the shape's width and depth."""
    goals: dict[str, Any] = field(default_factory=dict)
    """For `train/goals.py`."""

    def config(self, shape: str, length: int) -> AlbertConfig:
        """The variant of a preset."""
        base = preset(shape)
        letters = {"H": base.hidden_size, "L": base.num_hidden_layers}
        changes = {name: letters.get(value, value) for name, value in self.shape.items()}
        options = dict(self.options)
        if options.get("low_rank") == "half":
            options["low_rank"] = base.head_size // 2
        if options.get("window") == "quarter":
            options["window"] = length // 4
        return base.replace(**changes, options=Options(**options))


VARIANTS: dict[str, Variant] = {
    "canonical": Variant(),
    "low_rank": Variant({"low_rank": "half"}),
    "window": Variant({"window": "quarter"}),
    "window, every 3rd layer global": Variant({"window": "quarter", "global_every": 3}),
    "shared_heads": Variant({"shared_heads": True}),
    "attention_bias head": Variant({"attention_bias": "head"}),
    "attention_bias relative": Variant({"attention_bias": "relative"}),
    "gru": Variant({"gru": True}),
    "norm document": Variant({"norm": "document"}),
    "classifier mean": Variant({"classifier": "mean"}),
    "scale_embedding": Variant({"scale_embedding": True}),
    "layer_decay 0.9": Variant(goals={"layer_decay": 0.9}),
    "consistency cosine": Variant(goals={"consistency": 0.1}),
    "consistency dot": Variant(goals={"consistency": 0.1, "likeness": "dot"}),
    "groups 2": Variant(shape={"num_hidden_groups": 2}),
    "groups 4": Variant(shape={"num_hidden_groups": 4}),
    "no sharing": Variant(shape={"num_hidden_groups": "L"}),
    "no sharing, k = H": Variant(shape={"num_hidden_groups": "L", "embedding_size": "H"}),
    "k = 64": Variant(shape={"embedding_size": 64}),
    "k = 256": Variant(shape={"embedding_size": 256}),
    "k = H": Variant(shape={"embedding_size": "H"}),
}


# One variant -----------------------------------------------------------------------------------------------------


def recipe(args: argparse.Namespace) -> dict[str, Any]:
    """What lines must have in common to be compared."""
    return {
        "shape": args.shape, "length": args.length, "batch": args.batch, "tokens": args.tokens, "minutes": args.minutes,
        "learning_rate": args.learning_rate, "optimizer": args.optimizer, "epochs": args.epochs, "tasks": sorted(args.tasks), "examples": args.examples,
    }  # fmt: skip


def measure(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Pre-train and fine-tune one variant with one seed."""
    variant = VARIANTS[name]
    folder = args.runs / f"{name.replace(' ', '-').replace(',', '').replace('=', '')}-{seed}"
    began = time.perf_counter()
    found: dict[str, Any] = {"variant": name, "seed": seed, "recipe": recipe(args), "machine": about(args.device)}
    config = variant.config(args.shape, args.length)
    try:
        pretrained = pretrain(variant, config, seed, folder, args)
        found |= pretrained
        found["tasks"] = {task: finetune(folder / "model", task, seed, folder, args) for task in args.tasks}
    except AlbertkitError as error:
        found["failed"] = str(error)
    found["minutes"] = round((time.perf_counter() - began) / 60, 3)
    if not args.keep and "failed" not in found:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def pretrain(
    variant: Variant, config: AlbertConfig, seed: int, folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """The budget's worth of masked words and sentence order; the scores on held-out rows."""
    import torch

    from albertkit.train import loop
    from albertkit.train.goals import Goals
    from albertkit.train.pretrain import Pretraining
    from albertkit.train.report import read
    from albertkit.train.settings import Settings

    torch._dynamo.reset()
    goals = Goals(lengths=str(args.length), eval_rows=args.eval_rows, **variant.goals)
    settings = Settings(
        tokens=args.tokens, minutes=args.minutes, batch=args.batch, seed=seed, device=args.device, optimizer=args.optimizer,
        learning_rate=args.learning_rate, evaluations=1, keep=1, log_every=args.log_every, tensorboard=False, compile=args.compile,
    )  # fmt: skip
    work = Pretraining(args.shards, config, settings, goals)
    outcome = loop.train(work, settings, folder, resume=True, say=lambda text: print("   ", text, flush=True))
    if outcome.model is None:
        raise SystemExit("stopped; the same command goes on")
    speeds = [line["tokens_per_second"] for line in read(folder / "metrics.jsonl") if line["kind"] == "train"]
    del work
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    fitted = outcome_config(folder)
    return {
        "parameters": parameters(fitted)["total"],
        "operations_per_token": operations(fitted, args.length)["total"],
        "tokens_per_second": float(np.median(speeds[1:] or speeds)),  # the first lines hold the time of compiling
        "tokens": outcome.state.tokens,
        **{
            n: outcome.metrics[n]
            for n in ("mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy")
            if n in outcome.metrics
        },
    }


def outcome_config(folder: Path) -> AlbertConfig:
    """The shape that was trained, with the corpus's vocabulary."""
    return AlbertConfig.from_dict(json.loads((folder / "model" / "config.json").read_text(encoding="utf-8")))


def finetune(model: Path, task: str, seed: int, folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Scores on held-out examples after fine-tuning, the last update's, so that no epoch is chosen by them."""
    from albertkit.artifact import read_artifact
    from albertkit.tasks.make import make_task
    from albertkit.tasks.reading import read
    from albertkit.train import loop
    from albertkit.train.finetune import Finetuning
    from albertkit.train.settings import Settings
    from albertkit.train.tuning import preset_epochs, preset_rate

    train, dev = (read("classify", path).examples for path in args.tasks[task])
    if args.examples:
        train, dev = (rows[:: -(-len(rows) // args.examples)] for rows in (train, dev))
    start = read_artifact(model)
    epochs = args.epochs or preset_epochs(len(train))
    steps = max(1, round(epochs * len(train) / 32))
    settings = Settings(
        steps=steps, batch=32, seed=seed, device=args.device, learning_rate=preset_rate(start.config), warmup=0.1, evaluations=1,
        tensorboard=False, compile="no", keep=1,
    )  # fmt: skip
    work = Finetuning(make_task("classify", train), start, train, dev, settings, args.length)
    return dict(loop.train(work, settings, folder / f"task-{task}", resume=True).metrics)


def about(device: str) -> dict[str, str]:
    """Where it ran."""
    import torch

    cuda = torch.cuda.is_available() and device in ("auto", "cuda")
    return {
        "device": torch.cuda.get_device_name() if cuda else "CPU",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def kept(path: Path = LINES) -> list[dict[str, Any]]:
    """The lines there are."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def run(args: argparse.Namespace) -> None:
    """All variants, seed by seed, so that one seed of everything is there early."""
    import torch

    torch.set_float32_matmul_precision("high")
    args.tasks = dict(pair(given) for given in args.task)
    names = [name for name in VARIANTS if args.only is None or name in args.only.split(";")]
    unknown = set(args.only.split(";") if args.only else ()) - set(VARIANTS)
    if unknown:
        raise SystemExit(f"unknown variants: {'; '.join(sorted(unknown))}; there are: {'; '.join(VARIANTS)}")
    done = {(line["variant"], line["seed"]) for line in kept(args.results) if line["recipe"] == recipe(args)}
    for seed in (int(n) for n in args.seeds.split(",")):
        for name in names:
            if (name, seed) in done:
                continue
            print(f"{name}, seed {seed}", flush=True)
            found = measure(name, seed, args)
            args.results.parent.mkdir(parents=True, exist_ok=True)
            with args.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            shown = {k: found[k] for k in ("mlm_loss", "sop_accuracy", "tokens_per_second", "failed") if k in found}
            print(f"    {shown} in {found['minutes']:.1f} min", flush=True)


def pair(given: str) -> tuple[str, tuple[str, str]]:
    """NAME=TRAIN,DEV."""
    name, equals, files = given.partition("=")
    train, comma, dev = files.partition(",")
    if not (equals and comma):
        raise SystemExit(f"--task {given!r} must look like sst-2=train.tsv,dev.tsv")
    return name, (train, dev)


# Lengths ---------------------------------------------------------------------------------------------------------


def usual(call: Callable[[], object], seconds: float) -> float:
    """Seconds of a call: the median of several."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def torch_times(config: AlbertConfig, length: int, device: str, seconds: float) -> dict[str, float]:
    """Seconds of one layer over one text, all seeing all and in the window."""
    import torch

    from albertkit.model import Batch
    from albertkit.model.encoder import Layer

    torch.manual_seed(0)
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    layer = Layer(config).eval().to(device, kind)
    hidden = torch.randn(length, config.hidden_size, device=device, dtype=kind)
    batch = Batch.of([[5] * length]).to(device)

    def call(local: bool) -> None:
        with torch.inference_mode():
            layer(hidden, batch, False, local)
        if device == "cuda":
            torch.cuda.synchronize()

    return {"full": usual(lambda: call(False), seconds), "window": usual(lambda: call(True), seconds)}


def runtime_times(config: AlbertConfig, length: int, threads: int | None, seconds: float) -> dict[str, float]:
    """The same in onnxruntime."""
    from albertkit.compress.machine import layer_weights
    from albertkit.runtime.engine import cores, levels, open_graph
    from albertkit.runtime.graph import layer_feed, layer_graph

    session = open_graph(layer_graph(config, layer_weights(config, 32), "layer", levels()), threads or cores())
    hidden = np.random.default_rng(0).normal(size=(1, length, config.hidden_size)).astype(np.float32)
    near = layer_feed(config, 0, hidden, np.array([length], np.int32))
    fed = {"full": near | {"local": np.array(0)}, "window": near}
    return {name: usual(lambda given=given: session.run(None, given), seconds) for name, given in fed.items()}


def lengths(args: argparse.Namespace) -> None:
    """Where a window begins to pay."""
    import torch

    device = "cuda" if args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available()) else "cpu"
    longest = max(int(n) for n in args.lengths.split(","))
    config = preset(args.shape).replace(max_position_embeddings=longest, options=Options(window=args.window))
    before = json.loads(args.results.read_text(encoding="utf-8")) if args.results.is_file() else {}
    for name, times in (
        ("torch", lambda n: torch_times(config, n, device, args.seconds)),
        ("runtime", lambda n: runtime_times(config, n, args.threads, args.seconds)),
    ):
        if name == "runtime" and device == "cuda":
            continue  # the runtime is for processors; measure it on one
        rows = []
        for length in (int(n) for n in args.lengths.split(",")):
            rows.append({"length": length, **times(length)})
            print(name, rows[-1], flush=True)
        where = about(args.device) | {"threads": str(torch.get_num_threads())}
        before[f"{name}, {where['device']}"] = {
            "machine": where,
            "shape": args.shape,
            "window": args.window,
            "rows": rows,
        }
    args.results.parent.mkdir(parents=True, exist_ok=True)
    args.results.write_text(json.dumps(before, indent=1) + "\n", encoding="utf-8")


def table(args: argparse.Namespace) -> None:
    """The page."""
    from ablation_page import page

    found = json.loads(args.lengths_file.read_text(encoding="utf-8")) if args.lengths_file.is_file() else {}
    args.page.write_text(page(kept(args.results), found), encoding="utf-8")
    print(args.page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("run")
    one.add_argument("shards", type=Path)
    one.add_argument("--task", action="append", default=[], help="NAME=TRAIN,DEV: labelled texts of classes")
    one.add_argument("--runs", type=Path, default=Path("runs/ablation"))
    one.add_argument("--shape", default="small")
    one.add_argument("--length", type=int, default=128)
    one.add_argument("--batch", type=int, default=256)
    one.add_argument("--tokens", type=lambda text: int(float(text)))
    one.add_argument("--minutes", type=float)
    one.add_argument("--seeds", default="0,1,2")
    one.add_argument("--only", help="variants, with ; between them")
    one.add_argument("--epochs", type=float, help="of fine-tuning; default by the number of examples")
    one.add_argument("--examples", type=int, help="at most so many of each file")
    one.add_argument("--eval-rows", type=int, default=2048)
    one.add_argument("--learning-rate", type=float)
    one.add_argument("--optimizer", default="adamw")
    one.add_argument("--log-every", type=int, default=50)
    one.add_argument("--device", default="auto")
    one.add_argument("--compile", default="auto")
    one.add_argument("--keep", action="store_true", help="keep the models")
    one.add_argument("--results", type=Path, default=LINES)
    one.set_defaults(call=run)
    two = verbs.add_parser("lengths")
    two.add_argument("--shape", default="small")
    two.add_argument("--window", type=int, default=64)
    two.add_argument("--lengths", default="128,256,512,1024,2048,4096")
    two.add_argument("--device", default="auto")
    two.add_argument("--threads", type=int)
    two.add_argument("--seconds", type=float, default=1.0)
    two.add_argument("--results", type=Path, default=LENGTHS)
    two.set_defaults(call=lengths)
    three = verbs.add_parser("table")
    three.add_argument("--results", type=Path, default=LINES)
    three.add_argument("--lengths-file", type=Path, default=LENGTHS)
    three.add_argument("--page", type=Path, default=Path(__file__).parent.parent / "docs" / "ablation.md")
    three.set_defaults(call=table)
    args = parser.parse_args()
    if args.call is run and (args.tokens is None) == (args.minutes is None):
        parser.error("give one budget: --tokens or --minutes")
    args.call(args)


if __name__ == "__main__":
    main()
