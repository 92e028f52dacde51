"""Learning curves: every data set at several numbers of examples, fine-tuned with several settings.

    python studies/curves.py DATA OUT.jsonl [--plan settings] [--workers 14] [--minutes 9] [--only atis,cola]
        [--start small-zh --start NAME=FOLDER]
    python studies/curves.py table OUT.jsonl        # the best setting of each size, and what the preset loses to it

Each line of OUT is one run. Runs that are there are skipped, so the same command resumes; no run begins after
--minutes. Metrics are the plain ones of `tasks.stand_in`, so that the script needs no library for them. Plans:

    preset:1    what `albertkit finetune` does without options, at 100, 300, 1,000, 3,000 and all examples, with seed 1
    settings    other batch sizes, steps and learning rates (`GRID`) at 100, 300, 1,000 and 3,000 examples, one seed
    recipes:1   all examples, or 8,000, with each recipe of `recipes.py` and seed 1; recipes:1:muon: those that begin so
    collapse    30 times the learning rate, at 1,000 examples
    few         recipes with few examples, mixed with whole sets
    promises    900 sentences of CoNLL-2003, 800 of ATIS, 60 dialogues of WoZ 2.0, three seeds, two learning rates
    starts      all examples of the Chinese sets, three seeds, from each --start: a built-in model or NAME=FOLDER

The first 200 examples of dev choose the epoch, the next 1,000 are measured. In the plans recipes, promises and starts, a
tenth of the training examples (at most 500) chooses the epoch, and all of dev is measured, at most 2,000 examples (starts:
5,000).
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from recipes import RECIPES, Recipe  # noqa: E402
from tasksets import SETS, load  # noqa: E402

from albertkit.train.presets import preset_learning_rate, preset_steps  # noqa: E402
from tasks import stand_in, torch_scores, usual  # noqa: E402

CHOOSING, MEASURED, MOST, MOST_OF_STARTS = 200, 1000, 2000, 5000
RATE_X30 = 6e-3  # 30 times the preset of the built-in models
# Batch size, training steps and learning rate, None: the preset's.
GRID: tuple[tuple[int | None, int | None, float | None], ...] = (
    (None, None, 4e-4),
    (32, 2400, None),
    (8, 1600, None),
    (None, None, 1e-4),
    (16, 800, None),
)
RECIPE_SETS = {"cola": 0, "mrpc": 0, "rte": 0, "sst-2": 8000, "conll2003": 0, "snips": 0, "woz2": 0, "chnsenticorp": 0, "cluener": 0, "afqmc": 8000}  # fmt: skip
METRIC = {"cola": "mcc", "sts-b": "pearson", "woz2": "joint_goal", "conll2003": "f1", "cluener": "f1", "atis": "mean", "snips": "mean"}  # fmt: skip
NAMES = ("sst-2", "cola", "mrpc", "rte", "sts-b", "conll2003", "atis", "snips", "woz2", "clinc150-small", "chnsenticorp", "cluener", "afqmc")  # fmt: skip

SIZES = (100, 300, 1000, 3000)
SEEDS = 3
HIGHER_RATE = 4e-4
FEW = (("conll2003", 900), ("atis", 800), ("woz2", 265))  # 265 turns: the first 60 dialogues
FEW_RECIPES = list(RECIPES)
CHINESE = ("chnsenticorp", "afqmc", "cluener")
RECIPE_FIRST = ("cola", "rte", "mrpc", "conll2003", "cluener", "afqmc")


@dataclass(frozen=True)
class Run:
    """One fine-tuning."""

    data: str
    size: int  # 0: all examples
    batch_size: int | None = None
    steps: int | None = None
    learning_rate: float | None = None
    seed: int = 0
    recipe: str = ""
    epochs: float | None = None
    measures_all: bool = False
    from_start: bool = False  # the first examples of the file, instead of random ones
    model: str = ""  # a name of --start


def plan(name: str, only: Sequence[str], starts: Sequence[str] = ()) -> list[Run]:
    """All runs of a plan, the most important first."""
    names = list(only or NAMES)
    if name == "settings":
        return [Run(data, size, *setting) for setting in GRID for size in SIZES for data in names
                if setting[:2] != preset_steps(SETS[data].task, size)]  # fmt: skip
    if name.startswith("preset"):
        seed = int(name.partition(":")[2] or 0)
        return [Run(data, size, seed=seed) for size in (*SIZES[::-1], 0) for data in names]
    if name.startswith("recipes"):
        _, seed, prefix = (*name.split(":"), "", "")[:3]
        return [
            Run(data, RECIPE_SETS[data], seed=int(seed or 0), recipe=recipe, measures_all=True)
            for recipe in RECIPES
            if recipe.startswith(prefix)
            for data in only or RECIPE_SETS
        ]
    if name == "starts":
        return [Run(data, 0, seed=seed, measures_all=True, model=model)
                for seed, model, data in itertools.product(range(SEEDS), starts, only or CHINESE)]  # fmt: skip
    if name == "collapse":
        return [Run(data, 1000, learning_rate=RATE_X30) for data in names]
    if name == "few":
        first = [Run(data, size, recipe=r, epochs=epochs, measures_all=True, from_start=True)
                 for epochs in (None, 3.0) for r in FEW_RECIPES for data, size in FEW]  # fmt: skip
        return [run for pair in itertools.zip_longest(first, plan("recipes", RECIPE_FIRST)) for run in pair if run]
    if name != "promises":
        raise SystemExit(f"unknown plan {name!r}; the plans are in --help")
    runs = []
    for seed, rate, epochs in itertools.product(range(SEEDS), (None, HIGHER_RATE), (3.0, None)):
        for (data, size), from_start in itertools.product(FEW, (True, False)):
            if from_start or data == "conll2003":
                runs.append(
                    Run(data, size, None, None, rate, seed, "", epochs, measures_all=True, from_start=from_start)
                )
    return runs


def open_start(name: str, folders: dict[str, Path]) -> Path:
    """The folder of a name of --start, or of a built-in model."""
    from albertkit import builtin

    return folders.get(name) or builtin.resolve(name)


def finetune(run: Run, parts: dict[str, list[Any]], device: str, folders: dict[str, Path]) -> dict[str, Any]:
    """One run and its record."""
    from albertkit.interop.convert import open_model
    from albertkit.train.finetune import finetune_examples
    from albertkit.train.train_settings import FinetuneSettings

    chosen, recipe = SETS[run.data], RECIPES.get(run.recipe, Recipe())
    train = parts["first" if run.from_start else "train"][: run.size or None]
    choose, measured = parts["choose"], parts["measure"]
    if run.measures_all:
        tenth = min(500, len(train) // 10)
        choose, train, measured = train[-tenth:], train[:-tenth], parts["all"][: MOST_OF_STARTS if run.model else MOST]
    epochs = run.epochs if run.steps is None else max(1.0, run.steps * (run.batch_size or 32) / len(train))
    given = {k: v for k, v in chosen.options.items() if k in ("max_length", "metric")} | recipe.finetune
    if run.model or chosen.chinese:
        start = open_start(run.model or "small-zh-pretrained", folders)
    else:
        start = usual(chosen, train, FinetuneSettings(**given))
    model = open_model(start)
    rate = run.learning_rate
    if rate is None and run.recipe:
        rate = recipe.rate_factor * preset_learning_rate(model.config)
    settings = FinetuneSettings(
        epochs=epochs, batch_size=run.batch_size, learning_rate=rate, restarts=0, seed=run.seed, device=device, **given
    )
    began, lines = time.perf_counter(), []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder, recipe.applied():
        place = Path(folder) / "run"
        found = finetune_examples(
            chosen.task, train, choose, place, model, settings, log=lines.append, **chosen.settings
        )
        task, features, scores = torch_scores(place / "model", measured, device)
        metrics = task.measure(task.results(scores, features, measured), measured)
        shutil.rmtree(place, ignore_errors=True)
    record = {
        "examples": len(train),
        "start": run.model or start.name,
        "metrics": metrics,
        "schedule": next((line for line in lines if "steps of" in line), ""),
    }
    return {
        **asdict(run), **record, "collapsed": [bool(one.get("collapsed")) for one in found.runs],
        "says": [line for line in lines if "collaps" in line][:2], "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def parts_of(name: str, data: Path) -> dict[str, list[Any]]:
    """Shuffled training examples, two parts of dev, and all of it."""
    found = load(SETS[name], data)
    dev = list(found["dev"])
    train = random.Random(0).sample(found["train"], len(found["train"]))
    if SETS[name].task != "dialogue":  # turns of a dialogue stay together
        random.Random(1).shuffle(dev)
    parts = {
        "train": train,
        "first": found["train"],
        "choose": dev[:CHOOSING],
        "measure": dev[CHOOSING : CHOOSING + MEASURED],
    }
    return {**parts, "all": dev}


def work(queue: Any, results: Any, args: argparse.Namespace) -> None:
    """Runs from the queue, until it is empty."""
    import torch

    torch.set_num_threads(1)
    stand_in()
    cache: dict[str, dict[str, list[Any]]] = {}
    while (run := queue.get()) is not None:
        try:
            if run.data not in cache:
                cache[run.data] = parts_of(run.data, args.data)
            results.put(finetune(run, cache[run.data], args.device, args.folders))
        except Exception as error:  # a failed run is recorded, and the others go on
            results.put({**asdict(run), "error": f"{type(error).__name__}: {error}"[:300]})
    results.put(None)


def measure(args: argparse.Namespace) -> None:
    """All runs, in worker processes, until the time is over."""
    began = time.monotonic()
    done: set[Run] = set()
    known = {field.name for field in fields(Run)}
    for line in args.out.read_text().splitlines() if args.out.exists() else ():
        row = json.loads(line)
        if "error" not in row:
            done.add(Run(**{name: value for name, value in row.items() if name in known}))
    only = args.only.split(",") if args.only else []
    given = [name.partition("=") for name in args.start]
    args.folders = {name: Path(folder) for name, _, folder in given if folder}
    starts = [name for name, *_ in given]
    todo = [run for name in args.plan.split(",") for run in plan(name, only, starts) if run not in done]
    todo = [replace(run, steps=args.steps) if args.steps else run for run in todo][: args.limit]
    print(f"{len(todo)} runs to do, {len(done)} done", flush=True)
    context = multiprocessing.get_context("spawn")
    queue, results = context.Queue(1), context.Queue()
    workers = [context.Process(target=work, args=(queue, results, args)) for _ in range(args.workers)]
    for worker in workers:
        worker.start()
    open_workers, left = args.workers, iter(todo)
    with args.out.open("a", encoding="utf-8") as file:
        while open_workers:
            if not queue.full():
                over = time.monotonic() - began > 60 * args.minutes
                queue.put(None if over else next(left, None))
            try:
                row = results.get(timeout=0.05)
            except Exception:  # queue.Empty of the context
                continue
            if row is None:
                open_workers -= 1
                continue
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{time.monotonic() - began:4.0f} s {json.dumps(row)[:230]}", flush=True)
    for worker in workers:
        worker.join(5)


def table(path: Path) -> None:
    """For each set and size: the score of each setting, the best, and the share of it that the preset reaches."""
    scores: dict[tuple[str, int], dict[tuple[Any, ...], float]] = defaultdict(dict)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if "error" not in row and not row.get("seed") and not row.get("recipe") and row["size"]:
            setting = (row["batch_size"], row["steps"], row["learning_rate"])
            value = row["metrics"].get(METRIC.get(row["data"], "accuracy"))
            scores[row["data"], row["size"]][setting] = float("nan") if value is None else 100 * value
    print("| data | examples | " + " | ".join(f"{b} × {s or 'preset'} at {r or 'preset'}" for b, s, r in GRID) + " |")
    print("|---|---|" + "---|" * len(GRID))
    for (name, size), found in sorted(scores.items()):
        best = max(found.values())
        cells = [
            f"**{found[s]:.1f}**" if found.get(s) == best else f"{found[s]:.1f}" if s in found else "–" for s in GRID
        ]
        print(f"| {name} | {size:,} | " + " | ".join(cells) + " |")


def main() -> None:
    if sys.argv[1:2] == ["table"]:
        table(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--minutes", type=float, default=9.0, help="no run begins later")
    parser.add_argument("--only", help="data sets, with commas between them")
    parser.add_argument("--plan", default="settings", help="names of plans, with commas between them")
    parser.add_argument("--start", action="append", default=[], help="for the plan starts: a name or NAME=FOLDER")
    parser.add_argument("--limit", type=int, help="at most so many runs, to try it out")
    parser.add_argument("--steps", type=int, help="instead of those of the plan, to try it out")
    parser.add_argument("--device", default="auto")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
