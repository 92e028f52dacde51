"""Trains the variants of ALBERT in `variants.py` at one budget, on the same data, with several seeds. The tables are in
docs/results/ideas.md; `ablation_speed.py` has the speeds, `blocks/` a script for a GPU that is available for half an hour.

    python studies/ablation.py run SHARDS --task sst-2=TRAIN,DEV --task mrpc=TRAIN,DEV --runs RUNS --shape small
    --tokens 200e6 --seeds 0,1,2 [--jobs 8]
    python studies/ablation.py collect RUNS RESULTS OUT      # the results, and runs that are not finished
    python studies/ablation.py best RUNS [--count 2]         # the models with the highest accuracy

`run` pre-trains every variant on the same shards with the same budget (--tokens, or --minutes). It evaluates MLM and
sentence order on held-out rows, --evaluations times, fine-tunes the result on labelled files of classes, and writes one
line per variant and seed to studies/results/ablation.jsonl. Each variant runs in a separate process, --jobs of them at a
time, in the order of --only, the first seed of all variants first. Rerun the command to resume: finished variants are
skipped, and interrupted ones resume from their checkpoints. If compilation fails, a variant resumes without it.
Processes share torch's folder of compiled code, since most variants compile the same layer.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import platform
import re
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from jobs import run_jobs  # noqa: E402
from variants import select_variants, variant  # noqa: E402

import tasks  # noqa: E402
from albertkit.compress.cost import operations, parameter_counts, shape_cost  # noqa: E402
from albertkit.config import AlbertConfig  # noqa: E402
from albertkit.errors import AlbertkitError  # noqa: E402
from albertkit.weights import head_shapes  # noqa: E402

LINES = Path(__file__).parent / "results" / "ablation.jsonl"
RECOMPILATIONS = 64  # instead of 8: a layer is compiled for each of its feed-forward parts and each length of rows
IDENTITY = "variant.json"
KEY = ("variant", "seed", "recipe")
SCORES = ("mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy")


def run_recipe(args: argparse.Namespace) -> dict[str, Any]:
    """What lines must have in common to be compared."""
    return {
        "shape": args.shape, "layers": args.layers, "length": args.length, "batch": args.batch, "tokens": args.tokens, "minutes": args.minutes,
        "learning_rate": args.learning_rate, "optimizer": args.optimizer, "epochs": args.epochs, "tasks": sorted(args.tasks), "examples": args.examples,
        "eval_rows": args.eval_rows, "corpus": corpus_identity(args.shards),
    }  # fmt: skip


def corpus_identity(folder: Path) -> str:
    """Which texts and which vocabulary, so that lines of two corpora are not compared."""
    from albertkit.data.shards import Shards

    manifest = Shards.open(folder).manifest
    tokens = sum(part["tokens"] for split in manifest["splits"].values() for part in split)
    mark = hashlib.sha256(json.dumps([manifest["tokenizer"], manifest["splits"]]).encode()).hexdigest()[:8]
    return f"{tokens:,} tokens ({mark})"


def run_folder(name: str, seed: int, args: argparse.Namespace) -> Path:
    """The folder of one training; another recipe has other folders."""
    mark = hashlib.sha256(json.dumps(run_recipe(args)).encode()).hexdigest()[:8]
    folder: Path = args.runs / mark / f"{re.sub('[,=/]', '', name.replace(' ', '-'))}-{seed}"
    return folder


# One variant -----------------------------------------------------------------------------------------------------


def train_variant(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Pre-train and fine-tune one variant with one seed."""
    folder = run_folder(name, seed, args)
    began = time.perf_counter()
    record = {"variant": name, "seed": seed, "recipe": run_recipe(args), "machine": device_facts(args.device)}
    try:
        record |= pretrain(name, seed, folder, args, record)
        record["tasks"] = {task: finetune(folder / "model", task, seed, folder, args) for task in args.tasks}
    except TrainingFailed as error:
        record["failed"] = str(error)
    record["minutes"] = round((time.perf_counter() - began) / 60, 3)
    return record


class TrainingFailed(Exception):
    """A training that went wrong by itself (it diverged, it learnt nothing), which is a result."""


def run_training(task: Any, settings: Any, folder: Path, label: str) -> Any:
    """The outcome of a training, from where it was left."""
    from albertkit.train import loop

    try:
        result = loop.train(task, settings, folder, resume=True, log=lambda text: print(f"{label}: {text}", flush=True))
    except AlbertkitError as error:
        if not str(error).startswith(("step ", "stopped at step ")):
            raise  # too little memory or disk say nothing about the variant
        raise TrainingFailed(str(error)) from None
    if result.model is None:
        raise SystemExit(f"{label}: stopped; the same command goes on")
    return result


def pretrain(name: str, seed: int, folder: Path, args: argparse.Namespace, identity: dict[str, Any]) -> dict[str, Any]:
    """The budget's worth of masked words and sentence order; the scores on held-out rows."""
    from albertkit.data.shards import replace_json
    from albertkit.train.run_lock import lock_run

    task, settings = pretrain_task(name, seed, args, tokens=args.tokens, minutes=args.minutes)
    with lock_run(folder):
        replace_json(folder / IDENTITY, identity | cost(task.config, args.length))
    run_training(task, settings, folder, f"{name}, seed {seed}")
    return read_run(folder)


def cost(config: AlbertConfig, length: int) -> dict[str, float]:
    """Parameters, operations, and bytes of the encoder and the MLM head in int8."""
    stored = shape_cost(config, length, heads=head_shapes(config, "mlm")).bytes["int8"]
    total = parameter_counts(config)["total"]
    return {"parameters": total, "operations_per_token": operations(config, length)["total"], "int8_bytes": stored}


def read_run(folder: Path) -> dict[str, Any]:
    """The line of a training so far: its cost, its last scores, and the curve of its scores on held-out rows."""
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(row) for row in text.splitlines(keepends=True) if row.endswith("\n")]
    curve = [{n: row[n] for n in ("tokens", *SCORES) if n in row} for row in rows if row["kind"] == "eval"]
    return {**json.loads((folder / IDENTITY).read_text(encoding="utf-8")), **(curve or [{}])[-1], "curve": curve}


def collect(args: argparse.Namespace) -> None:
    """The recorded lines, and those of trainings that are not finished."""
    lines = {json.dumps([line[n] for n in KEY]): line for line in read_records(args.results)}
    for path in sorted(args.runs.glob(f"*/*/{IDENTITY}")):
        line = read_run(path.parent) if (path.parent / "metrics.jsonl").is_file() else {}
        before = lines.get(key := json.dumps([line.get(n) for n in KEY]), {})
        if line.get("curve") and "failed" not in before and before.get("tokens", 0) < line["tokens"]:
            lines[key] = line | {"unfinished": True}
    text = "".join(json.dumps(line) + "\n" for line in lines.values())
    args.out.write_text(text, encoding="utf-8")
    for line in lines.values():
        shown = [f"{point['tokens'] / 1e6:.0f} M {100 * point['mlm_accuracy']:.1f}" for point in line.get("curve", ())]
        print(f"{line['variant']}, seed {line['seed']}: {', '.join(shown)} {line.get('failed', '')}")


def print_best(args: argparse.Namespace) -> None:
    """The trainings with the highest accuracy, the finished ones first: a name and the folder of the newest model."""
    models_by_score = []
    for path in args.runs.glob(f"*/*/{IDENTITY}"):
        models = [*sorted(path.parent.glob("checkpoints/step-*/model")), *path.parent.glob("model")]
        line = read_run(path.parent) if models and (path.parent / "metrics.jsonl").is_file() else {}
        if "mlm_accuracy" in line:
            models_by_score.append(
                (models[-1].parent == path.parent, line["mlm_accuracy"], path.parent.name, models[-1])
            )
    for *_, name, model in sorted(models_by_score, reverse=True)[: args.count]:
        print(f"{name}\t{model}")


def pretrain_task(name: str, seed: int, args: argparse.Namespace, **budget: Any) -> tuple[Any, Any]:
    """The pre-training of a variant, for the loop, and its settings."""
    from albertkit.train.pretrain import PretrainTask
    from albertkit.train.train_settings import PretrainSettings, TrainSettings

    goals = PretrainSettings(lengths=str(args.length), eval_rows=args.eval_rows, **variant(name).goals)
    settings = TrainSettings(
        **budget, batch_size=args.batch, seed=seed, device=args.device, optimizer=args.optimizer, learning_rate=args.learning_rate, evaluations=args.evaluations,
        keep_checkpoints=1, log_every=args.log_every, tensorboard=False, compile=args.compile,
    )  # fmt: skip
    config = variant(name).config(args.shape, args.length, args.layers)
    return PretrainTask(args.shards, config, settings, goals), settings


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
    finetune_task = FinetuneTask(make_task("classify", train), start, train, dev, settings, args.length)
    return dict(run_training(finetune_task, settings, folder / f"task-{task}", f"{folder.name}, {task}").metrics)


def device_facts(device: str) -> dict[str, str]:
    """Where it ran."""
    import torch

    cuda = torch.cuda.is_available() and device in ("auto", "cuda")
    return {
        "device": torch.cuda.get_device_name() if cuda else "CPU",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def read_records(path: Path = LINES) -> list[dict[str, Any]]:
    """The lines there are."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def append_record(path: Path, line: dict[str, Any]) -> None:
    """One more line, whole, whoever else writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(line) + "\n")


def run_variant(label: str, name: str, seed: int, args: argparse.Namespace) -> None:
    """One variant and seed, in a process of its own."""
    import torch

    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = RECOMPILATIONS
    if args.tasks and tasks.missing_libraries():
        tasks.use_simple_metrics()
    try:
        record = train_variant(name, seed, args)
    except AlbertkitError:
        raise
    except Exception:
        if args.compile == "no":
            raise
        print(f"{label}: resumes without compilation, after\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        args.compile = "no"
        record = train_variant(name, seed, args)
    append_record(args.results, record)
    if not args.keep and "failed" not in record:
        shutil.rmtree(run_folder(name, seed, args), ignore_errors=True)
    shown = {k: record[k] for k in ("mlm_loss", "mlm_accuracy", "sop_accuracy", "tasks", "failed") if k in record}
    print(f"{label}: {shown} in {record['minutes']:.1f} min", flush=True)


def run(args: argparse.Namespace) -> None:
    """All variants, seed by seed, so that one seed of everything is there early."""
    args.tasks = dict(parse_task(text) for text in args.task)
    recipe = run_recipe(args)
    recorded = [line for line in read_records(args.results) if line["recipe"] == recipe and "unfinished" not in line]
    done = {(line["variant"], line["seed"]) for line in recorded}
    variants = [(name, int(seed)) for seed in args.seeds.split(",") for name in select_variants(args.only)]
    jobs = [(f"{name}, seed {seed}", name, seed, args) for name, seed in variants if (name, seed) not in done]
    print(f"{len(jobs)} to train, {len(variants) - len(jobs)} done before, {args.jobs} at a time", flush=True)
    failed = run_jobs(run_variant, jobs, args.jobs, attempts=2)
    if failed:
        raise SystemExit(f"not done: {'; '.join(failed)}")


def parse_task(text: str) -> tuple[str, tuple[str, str]]:
    """NAME=TRAIN,DEV."""
    name, equals, files = text.partition("=")
    train, comma, dev = files.partition(",")
    if not (equals and comma):
        raise SystemExit(f"--task {text!r} must look like sst-2=train.tsv,dev.tsv")
    return name, (train, dev)


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
    parser.set_defaults(log_every=50, eval_rows=2048, evaluations=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    run_parser = verbs.add_parser("run")
    shared_options(run_parser, 256)
    run_parser.add_argument("--task", action="append", default=[], help="NAME=TRAIN,DEV: labelled texts of classes")
    run_parser.add_argument("--runs", type=Path, default=Path("runs/ablation"))
    run_parser.add_argument("--tokens", type=lambda text: int(float(text)))
    run_parser.add_argument("--minutes", type=float)
    run_parser.add_argument("--seeds", default="0,1,2")
    run_parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    run_parser.add_argument("--epochs", type=float, help="of fine-tuning; default by the number of examples")
    run_parser.add_argument("--examples", type=int, help="at most so many of each file")
    run_parser.add_argument("--eval-rows", type=int)
    run_parser.add_argument("--log-every", type=int)
    run_parser.add_argument("--evaluations", type=int, help="on held-out rows, in equal steps of the budget")
    run_parser.add_argument("--keep", action="store_true", help="keep the models")
    run_parser.add_argument("--results", type=Path, default=LINES)
    run_parser.set_defaults(call=run)
    collect_parser = verbs.add_parser("collect", help="recorded runs and those that are not finished, into OUT")
    collect_parser.add_argument("runs", type=Path)
    collect_parser.add_argument("results", type=Path)
    collect_parser.add_argument("out", type=Path)
    collect_parser.set_defaults(call=collect)
    best_parser = verbs.add_parser("best", help="folders of the best models so far")
    best_parser.add_argument("runs", type=Path)
    best_parser.add_argument("--count", type=int, default=2)
    best_parser.set_defaults(call=print_best)
    args = parser.parse_args()
    if args.call is run and (args.tokens is None) == (args.minutes is None):
        parser.error("give one budget: --tokens or --minutes")
    args.call(args)


if __name__ == "__main__":
    main()
