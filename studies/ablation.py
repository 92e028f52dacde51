"""The documents' ideas, measured: each option on and off, at one budget, with several seeds. The tables are in
docs/results/ideas.md.

    python studies/ablation.py run SHARDS --task sst-2=TRAIN,DEV --task mrpc=TRAIN,DEV --runs RUNS --shape small
    --tokens 200e6 --seeds 0,1,2 [--jobs 8]
    python studies/ablation.py speed SHARDS [--shape small] [--batch 64] [--steps 40] [--rounds 3] [--device auto]
    [--compile auto]
    python studies/ablation.py reading [--shape small] [--batch N] [--seconds 2] [--device auto]
    python studies/ablation.py lengths [--shape small] [--window 64] [--device auto]

`run` pre-trains every variant on the same shards with the same budget (--tokens, or --minutes). It evaluates MLM and
sentence order on held-out rows, fine-tunes the result on labelled files of classes, and writes one line per variant and
seed to studies/results/ablation.jsonl. Each variant runs in a separate process, --jobs of them at a time, the first
seed of all variants first. Rerun the command to resume: recorded variants are skipped, and interrupted ones resume from
their checkpoints. --only selects variants. Processes share torch's folder of compiled code, since most variants compile
the same layer. `speed` times training steps of each variant, one variant at a time. `reading` times inference with
random weights, by the torch-free runtime on a CPU and by torch on a GPU. `lengths` times one layer with and without a
window, in torch.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import hashlib
import json
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from jobs import each  # noqa: E402

import tasks  # noqa: E402
from albertkit.compress.cost import operations, parameter_counts  # noqa: E402
from albertkit.config import AlbertConfig, Options, preset  # noqa: E402
from albertkit.errors import AlbertkitError  # noqa: E402

RESULTS = Path(__file__).parent / "results"
LINES, LENGTHS, SPEEDS = (RESULTS / f"ablation{rest}" for rest in (".jsonl", "-lengths.json", "-speed.json"))
FILL = 32_768  # tokens that keep a GPU busy; with few, the time to start its kernels is all that is measured
USUAL = "128,256,512,1024,2048,4096"
LONG = f"{USUAL},8192,16384"
GROUP = 5  # updates that are timed together, since a GPU is asked for its results only at the end of them


@dataclass(frozen=True)
class Variant:
    """What differs from canonical ALBERT."""

    options: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    """Fields of the config; H, L and 2F/3 stand for the shape's width, its depth and 2/3 of its feed-forward size."""
    goals: dict[str, Any] = field(default_factory=dict)
    """For `train/train_settings.py`."""

    def config(self, shape: str, length: int, layers: int | None = None) -> AlbertConfig:
        """The variant of a preset, or of one with another number of layers."""
        base = preset(shape)
        base = base.replace(num_hidden_layers=layers) if layers else base
        letters = {"H": base.hidden_size, "L": base.num_hidden_layers, "2F/3": base.intermediate_size * 2 // 3}
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
    "output_rank": Variant({"output_rank": 128}),  # as in document 000, the embedding size
    "value_size": Variant({"value_size": 32}),
    "gru, 2 layers": Variant({"gru": True, "gru_layers": 2}),
    "gru, no residual": Variant({"gru": True, "gru_residual": False}),
    "norm document": Variant({"norm": "document"}),
    "classifier mean": Variant({"classifier": "mean"}),
    "scale_embedding": Variant({"scale_embedding": True}),
    "layer_decay 0.9": Variant(goals={"layer_decay": 0.9}),
    "consistency cosine": Variant(goals={"consistency_weight": 0.1}),
    "consistency dot": Variant(goals={"consistency_weight": 0.1, "consistency_similarity": "dot"}),
    "groups 2": Variant(shape={"num_hidden_groups": 2}),
    "groups 4": Variant(shape={"num_hidden_groups": 4}),
    "no sharing": Variant(shape={"num_hidden_groups": "L"}),
    "no sharing, k = H": Variant(shape={"num_hidden_groups": "L", "embedding_size": "H"}),
    "k = 64": Variant(shape={"embedding_size": 64}),
    "k = 256": Variant(shape={"embedding_size": 256}),
    "k = H": Variant(shape={"embedding_size": "H"}),
}
# Blocks from other encoders, alone and with relative positions.
BLOCKS: dict[str, Variant] = {
    "prelude 1": Variant({"prelude_layers": 1}),
    "coda 1": Variant({"coda_layers": 1}),
    "prelude 1, coda 1": Variant({"prelude_layers": 1, "coda_layers": 1}),
    "ffn_groups 3": Variant({"ffn_groups": 3}),
    "pre_norm": Variant({"pre_norm": True}),
    "gated_ffn, 2/3 of F": Variant({"gated_ffn": True}, {"intermediate_size": "2F/3"}),
}
RELATIVE = {"attention_bias": "relative"}
for _name, _block in BLOCKS.items():
    VARIANTS[_name] = _block
    VARIANTS[f"relative, {_name}"] = replace(_block, options={**RELATIVE, **_block.options})
VARIANTS["relative, groups 3"] = Variant(RELATIVE, {"num_hidden_groups": 3})


# One variant -----------------------------------------------------------------------------------------------------


def recipe(args: argparse.Namespace) -> dict[str, Any]:
    """What lines must have in common to be compared."""
    return {
        "shape": args.shape, "layers": args.layers, "length": args.length, "batch": args.batch, "tokens": args.tokens, "minutes": args.minutes,
        "learning_rate": args.learning_rate, "optimizer": args.optimizer, "epochs": args.epochs, "tasks": sorted(args.tasks), "examples": args.examples,
        "eval_rows": args.eval_rows, "corpus": corpus(args.shards),
    }  # fmt: skip


def corpus(folder: Path) -> str:
    """Which texts and which vocabulary, so that lines of two corpora are not compared."""
    from albertkit.data.shards import Shards

    manifest = Shards.open(folder).manifest
    tokens = sum(part["tokens"] for split in manifest["splits"].values() for part in split)
    mark = hashlib.sha256(json.dumps([manifest["tokenizer"], manifest["splits"]]).encode()).hexdigest()[:8]
    return f"{tokens:,} tokens ({mark})"


def place(name: str, seed: int, args: argparse.Namespace) -> Path:
    """The folder of one training; another recipe has other folders."""
    mark = hashlib.sha256(json.dumps(recipe(args)).encode()).hexdigest()[:8]
    plain: Path = args.runs / mark / f"{re.sub('[,=/]', '', name.replace(' ', '-'))}-{seed}"
    return plain


def measure(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Pre-train and fine-tune one variant with one seed."""
    folder = place(name, seed, args)
    began = time.perf_counter()
    found: dict[str, Any] = {"variant": name, "seed": seed, "recipe": recipe(args), "machine": about(args.device)}
    try:
        found |= pretrain(name, seed, folder, args)
        found["tasks"] = {task: finetune(folder / "model", task, seed, folder, args) for task in args.tasks}
    except Failed as error:
        found["failed"] = str(error)
    found["minutes"] = round((time.perf_counter() - began) / 60, 3)
    return found


class Failed(Exception):
    """A training that went wrong by itself (it diverged, it learnt nothing), which is a result."""


def trained(work: Any, settings: Any, folder: Path, label: str) -> Any:
    """The outcome of a training, from where it was left."""
    import torch

    from albertkit.train import loop

    try:
        done = loop.train(work, settings, folder, resume=True, log=lambda text: print(f"{label}: {text}", flush=True))
    except AlbertkitError as error:
        if isinstance(error.__context__, torch.OutOfMemoryError):
            raise  # too many jobs say nothing about the variant
        raise Failed(str(error)) from None
    if done.model is None:
        raise SystemExit(f"{label}: stopped; the same command goes on")
    return done


def pretrain(name: str, seed: int, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The budget's worth of masked words and sentence order; the scores on held-out rows."""
    work, settings = work_of(name, seed, args, tokens=args.tokens, minutes=args.minutes)
    outcome = trained(work, settings, folder, f"{name}, seed {seed}")
    fitted = outcome_config(folder)
    return {
        "parameters": parameter_counts(fitted)["total"],
        "operations_per_token": operations(fitted, args.length)["total"],
        "tokens": outcome.state.tokens,
        **{
            n: outcome.metrics[n]
            for n in ("mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy")
            if n in outcome.metrics
        },
    }


def work_of(name: str, seed: int, args: argparse.Namespace, **budget: Any) -> tuple[Any, Any]:
    """The pre-training of a variant, for the loop, and its settings."""
    from albertkit.train.pretrain import PretrainTask
    from albertkit.train.train_settings import PretrainSettings, TrainSettings

    variant = VARIANTS[name]
    goals = PretrainSettings(lengths=str(args.length), eval_rows=args.eval_rows, **variant.goals)
    settings = TrainSettings(
        **budget, batch_size=args.batch, seed=seed, device=args.device, optimizer=args.optimizer, learning_rate=args.learning_rate, evaluations=1,
        keep_checkpoints=1, log_every=args.log_every, tensorboard=False, compile=args.compile,
    )  # fmt: skip
    return PretrainTask(args.shards, variant.config(args.shape, args.length, args.layers), settings, goals), settings


def outcome_config(folder: Path) -> AlbertConfig:
    """The shape that was trained, with the corpus's vocabulary."""
    return AlbertConfig.from_dict(json.loads((folder / "model" / "config.json").read_text(encoding="utf-8")))


def finetune(model: Path, task: str, seed: int, folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Scores on held-out examples after fine-tuning, the last update's, so that no epoch is chosen by them."""
    from albertkit.artifact import read_artifact
    from albertkit.tasks import make_task
    from albertkit.tasks.readers import read_examples
    from albertkit.train.finetune_task import FinetuneTask
    from albertkit.train.presets import preset_epochs, preset_learning_rate
    from albertkit.train.train_settings import TrainSettings

    train, dev = (read_examples("classify", path).examples for path in args.tasks[task])
    if args.examples:
        train, dev = (rows[:: -(-len(rows) // args.examples)] for rows in (train, dev))
    start = read_artifact(model)
    epochs = args.epochs or preset_epochs(len(train))
    steps = max(1, round(epochs * len(train) / 32))
    settings = TrainSettings(
        steps=steps, batch_size=32, seed=seed, device=args.device, learning_rate=preset_learning_rate(start.config), warmup_ratio=0.1, evaluations=1,
        tensorboard=False, compile="no", keep_checkpoints=1,
    )  # fmt: skip
    work = FinetuneTask(make_task("classify", train), start, train, dev, settings, args.length)
    return dict(trained(work, settings, folder / f"task-{task}", f"{folder.name}, {task}").metrics)


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


def append(path: Path, line: dict[str, Any]) -> None:
    """One more line, whole, whoever else writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(line) + "\n")


def chosen(only: str | None) -> list[str]:
    """The variants asked for, in the order of the table."""
    asked = only.split(";") if only else list(VARIANTS)
    unknown = set(asked) - set(VARIANTS)
    if unknown:
        raise SystemExit(f"unknown variants: {'; '.join(sorted(unknown))}; there are: {'; '.join(VARIANTS)}")
    return [name for name in VARIANTS if name in asked]


def child(label: str, name: str, seed: int, args: argparse.Namespace) -> None:
    """One variant and seed, in a process of its own."""
    import torch

    torch.set_float32_matmul_precision("high")
    if tasks.missing():
        tasks.stand_in()
    found = measure(name, seed, args)
    append(args.results, found)
    if not args.keep and "failed" not in found:
        shutil.rmtree(place(name, seed, args), ignore_errors=True)
    shown = {k: found[k] for k in ("mlm_loss", "mlm_accuracy", "sop_accuracy", "tasks", "failed") if k in found}
    print(f"{label}: {shown} in {found['minutes']:.1f} min", flush=True)


def run(args: argparse.Namespace) -> None:
    """All variants, seed by seed, so that one seed of everything is there early."""
    args.tasks = dict(pair(given) for given in args.task)
    same = recipe(args)
    done = {(line["variant"], line["seed"]) for line in kept(args.results) if line["recipe"] == same}
    wanted = [(name, int(seed)) for seed in args.seeds.split(",") for name in chosen(args.only)]
    pieces = [(f"{name}, seed {seed}", name, seed, args) for name, seed in wanted if (name, seed) not in done]
    print(f"{len(pieces)} to train, {len(wanted) - len(pieces)} done before, {args.jobs} at a time", flush=True)
    failed = each(child, pieces, args.jobs)
    if failed:
        raise SystemExit(f"not done: {'; '.join(failed)}")


def pair(given: str) -> tuple[str, tuple[str, str]]:
    """NAME=TRAIN,DEV."""
    name, equals, files = given.partition("=")
    train, comma, dev = files.partition(",")
    if not (equals and comma):
        raise SystemExit(f"--task {given!r} must look like sst-2=train.tsv,dev.tsv")
    return name, (train, dev)


# Speed -----------------------------------------------------------------------------------------------------------


def speed(args: argparse.Namespace) -> None:
    """Tokens a second of updates of each variant."""
    import torch

    torch.set_float32_matmul_precision("high")
    same = {name: getattr(args, name) for name in ("shape", "layers", "length", "batch", "optimizer", "compile")}
    alone({"what": "updates", **same}, chosen(args.only), timed, args)


def reading(args: argparse.Namespace) -> None:
    """Tokens a second of each variant that reads in a way of its own."""
    args.batch = args.batch or (FILL // args.length if on_gpu(args.device) else 16)
    same = {name: getattr(args, name) for name in ("shape", "layers", "length", "batch")}
    own = [name for name in chosen(args.only) if not VARIANTS[name].goals]
    alone({"what": "reading", **same}, own, read_examples, args)


def alone(
    same: dict[str, Any], names: list[str], call: Callable[[str, argparse.Namespace], float], args: argparse.Namespace
) -> None:
    """One variant after the other, on a machine that does nothing else, --rounds times over; the best of each counts,
    and what was measured before stays.
    """
    import torch

    from albertkit.data.shards import write_json

    machine = about(args.device) | {"threads": str(torch.get_num_threads())}
    records = json.loads(args.results.read_text(encoding="utf-8")) if args.results.is_file() else []
    record = next((r for r in records if r["machine"] == machine and r["recipe"] == same), None)
    if record is None:
        record = {"machine": machine, "recipe": same, "tokens_per_second": {}}
        records.append(record)
    found = record["tokens_per_second"]
    wanted = [name for name in names if name not in found or args.only is not None]
    for name in wanted:
        found.pop(name, None)
    for name in wanted * args.rounds:
        try:
            found[name] = max(found.get(name, 0.0), call(name, args))
        except (AlbertkitError, RuntimeError) as error:
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
            continue
        print(f"{name}: {found[name]:,.0f} tokens/s", flush=True)
        args.results.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.results, records)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def read_examples(name: str, args: argparse.Namespace) -> float:
    """Tokens a second of a model with random weights: the runtime's on a processor, torch's in bf16 on a GPU."""
    import torch

    config = VARIANTS[name].config(args.shape, args.length, args.layers)
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

    return args.batch * args.length / usual(call, args.seconds)


def on_gpu(device: str) -> bool:
    """Whether a GPU is asked for, or there is one and nothing is asked for."""
    import torch

    return device == "cuda" or (device == "auto" and torch.cuda.is_available())


def timed(name: str, args: argparse.Namespace) -> float:
    """Tokens a second: the median over groups of updates, after some to warm up."""
    import torch

    from albertkit.train.distributed import process_group
    from albertkit.train.loop import TrainingRun

    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as scratch, process_group(args.device) as processes:
        work, settings = work_of(name, 0, args, steps=10**6)
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

    return {"full": usual(lambda: call(False), seconds), "window": usual(lambda: call(True), seconds)}


def lengths(args: argparse.Namespace) -> None:
    """Where a window begins to pay."""
    import torch

    device = "cuda" if on_gpu(args.device) else "cpu"
    asked = [int(n) for n in (args.lengths or (LONG if device == "cuda" else USUAL)).split(",")]
    tokens = args.tokens or (FILL if device == "cuda" else 0)
    config = preset(args.shape).replace(max_position_embeddings=max(asked), options=Options(window=args.window))
    before = json.loads(args.results.read_text(encoding="utf-8")) if args.results.is_file() else {}
    rows = []
    for length in asked:
        texts = max(1, tokens // length)
        rows.append({"length": length, "texts": texts, **torch_times(config, length, texts, device, args.seconds)})
        print(rows[-1], flush=True)
    where = about(args.device) | {"threads": str(torch.get_num_threads())}
    before[f"torch, {where['device']}"] = {"machine": where, "shape": args.shape, "window": args.window, "rows": rows}
    args.results.parent.mkdir(parents=True, exist_ok=True)
    args.results.write_text(json.dumps(before, indent=1) + "\n", encoding="utf-8")


def shape_options(parser: argparse.ArgumentParser, batch: int | None) -> None:
    """What `run`, `speed` and `reading` are all asked."""
    parser.add_argument("--shape", default="small")
    parser.add_argument("--layers", type=int, help="instead of the shape's")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--only", help="variants, with ; between them")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=3, help="speed and reading: measure all so often")


def shared_options(parser: argparse.ArgumentParser, batch: int) -> None:
    """What `run` and `speed` are both asked."""
    parser.add_argument("shards", type=Path)
    shape_options(parser, batch)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--compile", default="auto", help="auto (the layer, on a GPU), layer or no")
    parser.set_defaults(log_every=50, eval_rows=2048)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("run")
    shared_options(one, 256)
    one.add_argument("--task", action="append", default=[], help="NAME=TRAIN,DEV: labelled texts of classes")
    one.add_argument("--runs", type=Path, default=Path("runs/ablation"))
    one.add_argument("--tokens", type=lambda text: int(float(text)))
    one.add_argument("--minutes", type=float)
    one.add_argument("--seeds", default="0,1,2")
    one.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    one.add_argument("--epochs", type=float, help="of fine-tuning; default by the number of examples")
    one.add_argument("--examples", type=int, help="at most so many of each file")
    one.add_argument("--eval-rows", type=int)
    one.add_argument("--log-every", type=int)
    one.add_argument("--keep", action="store_true", help="keep the models")
    one.add_argument("--results", type=Path, default=LINES)
    one.set_defaults(call=run)
    fast = verbs.add_parser("speed")
    shared_options(fast, 64)
    fast.add_argument("--steps", type=int, default=40, help="updates that are timed")
    fast.add_argument("--warm", type=int, default=8, help="updates before")
    fast.add_argument("--results", type=Path, default=SPEEDS)
    fast.set_defaults(call=speed)
    plain = verbs.add_parser("reading")
    shape_options(plain, None)
    plain.add_argument("--seconds", type=float, default=2.0)
    plain.add_argument("--results", type=Path, default=SPEEDS)
    plain.set_defaults(call=reading)
    two = verbs.add_parser("lengths")
    two.add_argument("--shape", default="small")
    two.add_argument("--window", type=int, default=64)
    two.add_argument("--lengths", help=f"in tokens; default {USUAL}, on a GPU {LONG}")
    two.add_argument("--tokens", type=int, help=f"of all texts at once; default {FILL} on a GPU, else one text")
    two.add_argument("--device", default="auto")
    two.add_argument("--threads", type=int)
    two.add_argument("--seconds", type=float, default=1.0)
    two.add_argument("--results", type=Path, default=LENGTHS)
    two.set_defaults(call=lengths)
    args = parser.parse_args()
    if args.call is run and (args.tokens is None) == (args.minutes is None):
        parser.error("give one budget: --tokens or --minutes")
    args.call(args)


if __name__ == "__main__":
    main()
