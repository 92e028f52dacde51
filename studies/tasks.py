"""Fine-tuning on every labelled data set of a folder: the source of docs/results/tasks.md.

    python studies/tasks.py DATA [--start MODEL] [--start-zh MODEL] [--name built-in] [--out studies/results/tasks]
                          [--only sst-2,cola] [--seeds 3] [--jobs 1] [--device auto] [--examples 64 --epochs 1] [--keep]
    python studies/tasks.py score studies/results/tasks/built-in DATA

Writes OUT/NAME/DATASET.json, one file per data set. Existing ones are skipped, unless --only names them. `tasksets.py`
lists the data sets. Each runs in a separate process, --jobs of them at a time; a failed one prints its error and does
not stop the others. Checkpoints are stored in --runs until a data set is finished, so the same command resumes after a
kill, by seed and epoch. The seconds of an interrupted run are those since the last resume.

If scikit-learn, scipy or seqeval are missing, a run still selects its best epoch (`stand_in`), writes no metrics, and
writes its predictions (as with --predictions) to OUT/NAME/predictions/. `score` computes the metrics from them on a
machine that has the libraries.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib
import json
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from jobs import each  # noqa: E402
from tasksets import SETS, Set, load  # noqa: E402

LIBRARIES = ("sklearn", "scipy", "seqeval")


# One data set ----------------------------------------------------------------------------------------------------


def run(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune with each seed, predict what is held out, and write the record."""
    from albertkit.data.shards import replace_json
    from albertkit.interop.convert import open_model
    from albertkit.train.finetune import finetune_examples
    from albertkit.train.train_settings import FinetuneSettings

    chosen = SETS[name]
    measured = not missing()
    if not measured:
        stand_in()
    parts = load(chosen, args.data, args.examples)
    given = {**chosen.options, **({"epochs": args.epochs} if args.epochs else {})}
    restarts = 2 if args.examples is None else 0  # a handful of examples collapses, and that is all right
    options = FinetuneSettings(**given, seeds=args.seeds, restarts=restarts, device=args.device)
    start = (args.start_zh if chosen.chinese else args.start) or usual(chosen, parts["train"], options)
    artifact = open_model(start)
    folder, held = args.out / args.name, "test" if chosen.test else "dev"
    folder.mkdir(parents=True, exist_ok=True)
    runs, place = [], (args.runs or folder / "runs") / name
    done = finetune_examples(chosen.task, parts["train"], parts["dev"], place, artifact, options, **chosen.settings)
    for number, one in enumerate(done.runs):
        model = place / "runs" / f"seed-{one['seed']}" / "model"
        found = predictions(model, parts[held], options.device)
        if args.predictions or not measured:
            keep(folder / "predictions" / f"{name}-seed{number}.jsonl", found)
        kept = {k: one[k] for k in ("seed", "rate", "seconds", "collapsed")}
        runs.append({**kept, "metrics": measure(chosen, found, parts) if measured else None})
    record = {
        "data": name,
        "task": chosen.task,
        "note": chosen.note,
        "metrics": list(chosen.metrics),
        "start": {"name": start.name if chosen.chinese else args.name, "model": start.name, **identity(artifact)},
        "settings": {k: v for k, v in dataclasses.asdict(options).items() if v not in (None, False)} | chosen.settings,
        "examples": {part: len(rows) for part, rows in parts.items()},
        "held": held,
        "cap": args.examples,
        "jobs": args.jobs,
        "runs": runs,
        "device": device_name(options.device),
        "versions": versions(),
    }
    replace_json(folder / f"{name}.json", record)
    shutil.rmtree(place / "runs" if args.keep else place, ignore_errors=True)
    return record


def usual(chosen: Set, train: Sequence[Any], options: Any) -> Path:
    """The built-in model that `albertkit finetune` begins with."""
    from albertkit import builtin
    from albertkit.tasks.examples import TextExample
    from albertkit.train.frozen_head import choose_base_model

    texts = chosen.task == "intent" and isinstance(train[0], TextExample)
    return builtin.resolve(choose_base_model("classify" if texts else chosen.task, train, options.max_length)[0])


def predictions(model: Path, examples: Sequence[Any], device: str) -> list[Any]:
    """The results of a finished model, computed by torch in float32."""
    task, features, scores = torch_scores(model, examples, device)
    found: list[Any] = task.results(scores, features, examples)
    return found


def torch_scores(model: Path, examples: Sequence[Any], device: str) -> tuple[Any, list[Any], list[Any]]:
    """(task, features, the heads' scores of each feature) of a finished model."""
    from albertkit.artifact import read_artifact
    from albertkit.train.finetune_task import predict_scores

    return predict_scores(read_artifact(model), examples, device)


def measure(chosen: Set, found: Sequence[Any], parts: dict[str, list[Any]]) -> dict[str, float]:
    """The task's metrics on what is held out; with a class for out of scope, its scores too."""
    from albertkit.tasks import make_task
    from albertkit.tasks.classify import OUT_OF_SCOPE, out_of_scope_metrics
    from albertkit.tasks.examples import TextExample

    held = parts["test"] if chosen.test else parts["dev"]
    texts = chosen.task == "intent" and isinstance(held[0], TextExample)
    task = make_task("classify" if texts else chosen.task, parts["train"], **chosen.settings)
    scores: dict[str, float] = task.measure(found, held)
    if texts and any(e.label == OUT_OF_SCOPE for e in held):
        caught = [r.label == OUT_OF_SCOPE for r, e in zip(found, held, strict=True) if e.label == OUT_OF_SCOPE]
        scores |= {**out_of_scope_metrics(found, held), "out_of_scope_recall": sum(caught) / len(caught)}
    return scores


def identity(artifact: Any) -> dict[str, Any]:
    """Which model it was: a hash of its weights, and its shape."""
    import numpy as np

    seen, encoder = hashlib.sha256(), {n: w for n, w in artifact.weights.items() if n.startswith("encoder.")}
    for key in sorted(encoder):
        seen.update(key.encode() + np.ascontiguousarray(encoder[key]).tobytes())
    config = artifact.config
    return {
        "sha256": seen.hexdigest()[:16],
        "parameters": int(sum(w.size for w in encoder.values())),
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
    }


def device_name(device: str) -> str:
    """The GPU, or the processor and its threads."""
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    from inference import machine

    return f"{machine(0)['processor']}, {torch.get_num_threads()} threads"


def versions() -> dict[str, str]:
    """Of what computed it."""
    import numpy
    import torch

    import albertkit

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "albertkit": albertkit.__version__,
    }


# Without the libraries that measure ------------------------------------------------------------------------------


def missing() -> list[str]:
    """The libraries for metrics that cannot be imported."""
    out = []
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            out.append(name)
    return out


def stand_in() -> None:
    """Replace the metrics that need libraries by plain ones, which choose the best epoch and are not recorded."""
    import numpy as np

    from albertkit.tasks.classify import ClassifyTask
    from albertkit.tasks.tag import IntentTask, TagTask

    def classes(self: ClassifyTask, results: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        right, found = np.array([e.label for e in examples]), np.array([r.label for r in results])
        if self.kind == "regression":
            return {"pearson": float(np.corrcoef(right, found)[0, 1]) if found.std() else 0.0}
        names = np.unique(np.concatenate([right, found]))
        a, b = ((side[:, None] == names) - (side[:, None] == names).mean(0) for side in (right, found))
        return {
            "accuracy": float((right == found).mean()),
            "mcc": float((a * b).sum() / max(1e-9, np.sqrt((a * a).sum() * (b * b).sum()))),
        }

    def spans(self: Any, results: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        right, found = (
            [{(s.start, s.end, s.label) for s in one.spans} for one in side] for side in (examples, results)
        )
        hits = sum(len(a & b) for a, b in zip(right, found, strict=True))
        return {"f1": 2 * hits / max(1, sum(map(len, right)) + sum(map(len, found)))}

    def frames(self: IntentTask, results: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        intents = [r.intent == e.intent for r, e in zip(results, examples, strict=True)]
        return {"mean": (sum(intents) / len(intents) + spans(self, results, examples)["f1"]) / 2}

    ClassifyTask.measure, TagTask.measure, IntentTask.measure = classes, spans, frames  # type: ignore[method-assign]
    ClassifyTask.fit_temperature = lambda self, scores, examples: 1.0  # type: ignore[method-assign]


def keep(path: Path, results: Sequence[Any]) -> None:
    """One line for each result, without the text it is about."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for result in results:
            row = {k: v for k, v in dataclasses.asdict(result).items() if k not in ("probabilities", "others")}
            if "spans" in row:
                row.pop("text", None)
                row["spans"] = [[s["start"], s["end"], s["label"], s["score"]] for s in row["spans"]]
            file.write(json.dumps(row, ensure_ascii=False, default=sorted) + "\n")


def revive(row: dict[str, Any]) -> Any:
    """What `keep` wrote, as the task's result; the metrics look at nothing else."""
    if "spans" in row:
        row["spans"] = tuple(SimpleNamespace(start=a, end=b, label=label, score=s) for a, b, label, s in row["spans"])
    return SimpleNamespace(**{"others": (), **row, **({"requests": set(row["requests"])} if "requests" in row else {})})


def score(folder: Path, data: Path) -> None:
    """Fill in the metrics of every record in a folder from the predictions beside it."""
    from albertkit.data.shards import replace_json

    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        chosen = SETS[record["data"]]
        parts = load(chosen, data, record["cap"])
        for number, one in enumerate(record["runs"]):
            kept = folder / "predictions" / f"{record['data']}-seed{number}.jsonl"
            if kept.exists():
                rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
                one["metrics"] = measure(chosen, [revive(row) for row in rows], parts)
        replace_json(path, record)
        print(line(record), flush=True)


# All of them -----------------------------------------------------------------------------------------------------


def line(record: dict[str, Any]) -> str:
    """A record in a line."""
    seconds = " ".join(f"{one['seconds']:.0f}" for one in record["runs"])
    shown = [
        f"{name} " + " ".join(f"{one['metrics'][name]:.4f}" for one in record["runs"])
        for name in record["metrics"]
        if record["runs"][0]["metrics"]
    ]
    return f"{record['data']:15} {', '.join(shown) or 'not predict_scores yet'}; seconds {seconds}"


def child(name: str, args: argparse.Namespace) -> None:
    """One data set, in a process of its own."""
    began = time.perf_counter()
    print(f"{line(run(name, args))}; {time.perf_counter() - began:.0f} in all", flush=True)


def wanted(args: argparse.Namespace) -> list[str]:
    """The data sets to run, in the order of the table."""
    only = args.only.split(",") if args.only else []
    odd = [name for name in only if name not in SETS]
    if odd:
        sys.exit(f"there is no data set {odd[0]!r}; choose from {', '.join(SETS)}")
    out = []
    for name, chosen in SETS.items():
        if only and name not in only:
            continue
        if not only and (args.out / args.name / f"{name}.json").exists():
            print(f"{name}: done before", flush=True)
        elif chosen.chinese and args.start_zh is None:
            print(f"{name}: left out, no --start-zh", flush=True)
        elif not (args.data / chosen.train).exists():
            print(f"{name}: left out, {args.data / chosen.train} is not there", flush=True)
        else:
            out.append(name)
    return out


def main() -> None:
    if sys.argv[1:2] == ["score"]:
        score(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--start", type=Path, help="the model to start from  [default: as finetune, a built-in one]")
    parser.add_argument("--start-zh", type=Path, help="the model to start from for Chinese data")
    parser.add_argument("--name", default="built-in", help="what the model is called in the results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "tasks")
    parser.add_argument(
        "--runs", type=Path, help="folder for checkpoints of what is not done yet  [default: OUT/NAME/runs]"
    )
    parser.add_argument("--only", help="data sets, with commas between them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="data sets at once")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--predictions", action="store_true", help="keep what was predicted")
    parser.add_argument("--keep", action="store_true", help="keep the best model of each data set, in --runs")
    parser.add_argument("--examples", type=int, help="at most so many of each part, to try it out")
    parser.add_argument("--epochs", type=float, help="instead of those of the table")
    args = parser.parse_args()
    failed = each(child, [(name, args) for name in wanted(args)], args.jobs)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
