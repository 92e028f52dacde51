"""Learning curves: every data set at several numbers of examples, fine-tuned with several settings.

    python studies/curves.py DATA OUT.jsonl [--workers 14] [--minutes 9] [--only atis,cola] [--sizes 100,300,1000,3000]
    python studies/curves.py table OUT.jsonl        # the best setting of each size, and what the preset loses to it

Each line of OUT is one run. Runs that are there are skipped, so the same command resumes; no run begins after
--minutes. The first 200 examples of dev choose the epoch, the next 1,000 are measured. Metrics are the plain ones of
`tasks.stand_in`, so that the script needs no library for them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from tasksets import SETS, load  # noqa: E402

from tasks import stand_in, torch_scores, usual  # noqa: E402

CHOOSING, MEASURED = 200, 1000
# Batch size, training steps (None: the preset's epochs) and learning rate (None: the preset's).
GRID: tuple[tuple[int, int | None, float | None], ...] = (
    (32, None, None),
    (16, 800, 1e-4),
    (16, 800, 2e-4),
    (8, 1600, 1e-4),
    (32, 1200, 1e-4),
    (8, 400, 1e-4),
    (32, 2400, 1e-4),
)
METRIC = {"cola": "mcc", "sts-b": "pearson", "woz2": "joint_goal", "conll2003": "f1", "cluener": "f1", "atis": "mean", "snips": "mean"}  # fmt: skip
NAMES = ("sst-2", "cola", "mrpc", "rte", "sts-b", "conll2003", "atis", "snips", "woz2", "clinc150-small", "chnsenticorp", "cluener", "afqmc")  # fmt: skip

Run = tuple[str, int, int, int | None, float | None]


def runs(names: list[str], sizes: list[int], done: set[Run]) -> list[Run]:
    """All runs that are not done, each setting over all sets before the next setting."""
    return [one for setting in GRID for size in sizes for name in names if (one := (name, size, *setting)) not in done]


def finetune(run: Run, parts: dict[str, list[Any]], device: str) -> dict[str, Any]:
    """One run and its record."""
    from albertkit import builtin
    from albertkit.interop.convert import open_model
    from albertkit.train.finetune import finetune_examples
    from albertkit.train.train_settings import FinetuneSettings

    name, size, batch, steps, rate = run
    chosen = SETS[name]
    train = parts["train"][:size]
    epochs = None if steps is None else max(1.0, steps * batch / len(train))
    given = {k: v for k, v in chosen.options.items() if k in ("max_length", "metric")}
    settings = FinetuneSettings(epochs=epochs, batch_size=batch, learning_rate=rate, restarts=0, device=device, **given)
    start = builtin.resolve("small-zh-pretrained") if chosen.chinese else usual(chosen, train, settings)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        place = Path(folder) / "run"
        found = finetune_examples(
            chosen.task, train, parts["choose"], place, open_model(start), settings, **chosen.settings
        )
        task, features, scores = torch_scores(place / "model", parts["measure"], device)
        metrics = task.measure(task.results(scores, features, parts["measure"]), parts["measure"])
        shutil.rmtree(place, ignore_errors=True)
    keys = {"data": name, "size": size, "batch_size": batch, "steps": steps, "learning_rate": rate}
    record = {"examples": len(train), "start": start.name, "metrics": metrics, "epochs": epochs}
    collapsed = [bool(one.get("collapsed")) for one in found.runs]
    return {**keys, **record, "collapsed": collapsed, "seconds": round(time.perf_counter() - began, 1)}


def parts_of(name: str, data: Path) -> dict[str, list[Any]]:
    """Shuffled training examples, and two parts of dev."""
    found = load(SETS[name], data)
    random.Random(0).shuffle(found["train"])
    dev = list(found["dev"])
    if SETS[name].task != "dialogue":  # turns of a dialogue stay together
        random.Random(1).shuffle(dev)
    return {"train": found["train"], "choose": dev[:CHOOSING], "measure": dev[CHOOSING : CHOOSING + MEASURED]}


def work(queue: Any, results: Any, data: Path, device: str) -> None:
    """Runs from the queue, until it is empty."""
    import torch

    torch.set_num_threads(1)
    stand_in()
    cache: dict[str, dict[str, list[Any]]] = {}
    while (run := queue.get()) is not None:
        try:
            if run[0] not in cache:
                cache[run[0]] = parts_of(run[0], data)
            results.put(finetune(run, cache[run[0]], device))
        except Exception as error:  # a failed run is recorded, and the others go on
            keys = dict(zip(("data", "size", "batch_size", "steps", "learning_rate"), run, strict=True))
            results.put({**keys, "error": f"{type(error).__name__}: {error}"[:300]})
    results.put(None)


def measure(args: argparse.Namespace) -> None:
    """All runs, in worker processes, until the time is over."""
    began = time.monotonic()
    done: set[Run] = set()
    for line in args.out.read_text().splitlines() if args.out.exists() else ():
        row = json.loads(line)
        if "error" not in row:
            done.add(tuple(row[k] for k in ("data", "size", "batch_size", "steps", "learning_rate")))  # type: ignore[arg-type]
    todo = runs(args.only.split(",") if args.only else list(NAMES), [int(s) for s in args.sizes.split(",")], done)
    if args.limit:
        todo = todo[: args.limit]
    print(f"{len(todo)} runs to do, {len(done)} done", flush=True)
    context = multiprocessing.get_context("spawn")
    queue, results = context.Queue(1), context.Queue()
    workers = [context.Process(target=work, args=(queue, results, args.data, args.device)) for _ in range(args.workers)]
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
        if "error" not in row:
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
    parser.add_argument("--sizes", default="100,300,1000,3000")
    parser.add_argument("--limit", type=int, help="at most so many runs, to try it out")
    parser.add_argument("--device", default="auto")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
