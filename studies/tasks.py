"""Fine-tuning on every labelled data set of a folder: the source of docs/results/tasks.md.

    python studies/tasks.py DATA [--start MODEL] [--start-zh MODEL] [--name built-in] [--out studies/results/tasks]
                          [--only sst-2,cola] [--seeds 3] [--jobs 1] [--device auto] [--examples 64 --epochs 1] [--keep]
    python studies/tasks.py score studies/results/tasks/built-in DATA

Writes OUT/NAME/DATASET.json, one file per data set. Existing ones are skipped, unless --only names them. `tasksets.py`
lists the data sets. Each runs in a separate process, --jobs of them at a time; a failed one prints its error and does
not stop the others. Checkpoints are stored in --runs until a data set is finished, so the same command resumes after a
kill, by seed and epoch. The seconds of an interrupted run are those since the last resume.

If scikit-learn, scipy or seqeval are missing, a run still selects its best epoch (`use_simple_metrics`), writes no metrics, and
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

from jobs import run_jobs  # noqa: E402
from tasksets import SETS, Set, load  # noqa: E402

LIBRARIES = ("sklearn", "scipy", "seqeval")


# One data set ----------------------------------------------------------------------------------------------------


def run(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune with each seed, predict what is held out, and write the record."""
    from albertkit.data.shards import replace_json
    from albertkit.interop.convert import open_model
    from albertkit.train.finetune import finetune_examples
    from albertkit.train.train_settings import FinetuneSettings

    data_set = SETS[name]
    can_measure = not missing_libraries()
    if not can_measure:
        use_simple_metrics()
    parts = load(data_set, args.data, args.examples)
    options_of_set = {**data_set.options, **({"epochs": args.epochs} if args.epochs else {})}
    restarts = 2 if args.examples is None else 0  # a handful of examples collapses, and that is all right
    options = FinetuneSettings(**options_of_set, seeds=args.seeds, restarts=restarts, device=args.device)
    start = (args.start_zh if data_set.chinese else args.start) or default_start(data_set, parts["train"], options)
    artifact = open_model(start)
    folder, held_out = args.out / args.name, "test" if data_set.test else "dev"
    folder.mkdir(parents=True, exist_ok=True)
    runs, place = [], (args.runs or folder / "runs") / name
    done = finetune_examples(data_set.task, parts["train"], parts["dev"], place, artifact, options, **data_set.settings)
    for number, seed_run in enumerate(done.runs):
        model = place / "runs" / f"seed-{seed_run['seed']}" / "model"
        results = predictions(model, parts[held_out], options.device)
        if args.predictions or not can_measure:
            write_predictions(folder / "predictions" / f"{name}-seed{number}.jsonl", results)
        facts = {k: seed_run[k] for k in ("seed", "rate", "seconds", "collapsed")}
        runs.append({**facts, "metrics": task_metrics(data_set, results, parts) if can_measure else None})
    record = {
        "data": name,
        "task": data_set.task,
        "note": data_set.note,
        "metrics": list(data_set.metrics),
        "start": {"name": start.name if data_set.chinese else args.name, "model": start.name, **identity(artifact)},
        "settings": {k: v for k, v in dataclasses.asdict(options).items() if v not in (None, False)}
        | data_set.settings,
        "examples": {part: len(rows) for part, rows in parts.items()},
        "held": held_out,
        "cap": args.examples,
        "jobs": args.jobs,
        "runs": runs,
        "device": device_name(options.device),
        "versions": versions(),
    }
    replace_json(folder / f"{name}.json", record)
    shutil.rmtree(place / "runs" if args.keep else place, ignore_errors=True)
    return record


def default_start(data_set: Set, train: Sequence[Any], options: Any) -> Path:
    """The built-in model that `albertkit finetune` begins with."""
    from albertkit import builtin
    from albertkit.tasks.examples import TextExample
    from albertkit.train.frozen_head import choose_base_model

    texts = data_set.task == "intent" and isinstance(train[0], TextExample)
    return builtin.resolve(choose_base_model("classify" if texts else data_set.task, train, options.max_length)[0])


def predictions(model: Path, examples: Sequence[Any], device: str) -> list[Any]:
    """The results of a finished model, computed by torch in float32."""
    task, features, scores = torch_scores(model, examples, device)
    results: list[Any] = task.results(scores, features, examples)
    return results


def torch_scores(model: Path, examples: Sequence[Any], device: str) -> tuple[Any, list[Any], list[Any]]:
    """(task, features, the heads' scores of each feature) of a finished model."""
    from albertkit.artifact import read_artifact
    from albertkit.train.finetune_task import predict_scores

    return predict_scores(read_artifact(model), examples, device)


def task_metrics(data_set: Set, results: Sequence[Any], parts: dict[str, list[Any]]) -> dict[str, float]:
    """The task's metrics on what is held out; with a class for out of scope, its scores too."""
    from albertkit.tasks import make_task
    from albertkit.tasks.classify import OUT_OF_SCOPE, out_of_scope_metrics
    from albertkit.tasks.examples import TextExample

    examples = parts["test"] if data_set.test else parts["dev"]
    texts = data_set.task == "intent" and isinstance(examples[0], TextExample)
    task = make_task("classify" if texts else data_set.task, parts["train"], **data_set.settings)
    scores: dict[str, float] = task.measure(results, examples)
    if texts and any(e.label == OUT_OF_SCOPE for e in examples):
        caught = [r.label == OUT_OF_SCOPE for r, e in zip(results, examples, strict=True) if e.label == OUT_OF_SCOPE]
        scores |= {**out_of_scope_metrics(results, examples), "out_of_scope_recall": sum(caught) / len(caught)}
    return scores


def identity(artifact: Any) -> dict[str, Any]:
    """Which model it was: a hash of its weights, and its shape."""
    import numpy as np

    digest, encoder = hashlib.sha256(), {n: w for n, w in artifact.weights.items() if n.startswith("encoder.")}
    for key in sorted(encoder):
        digest.update(key.encode() + np.ascontiguousarray(encoder[key]).tobytes())
    config = artifact.config
    return {
        "sha256": digest.hexdigest()[:16],
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


def missing_libraries() -> list[str]:
    """The libraries for metrics that cannot be imported."""
    out = []
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            out.append(name)
    return out


def use_simple_metrics() -> None:
    """Replace the metrics that need libraries by plain ones, which choose the best epoch and are not recorded."""
    import numpy as np

    from albertkit.tasks.classify import ClassifyTask
    from albertkit.tasks.tag import IntentTask, TagTask

    def classes(self: ClassifyTask, results: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        correct, predicted = np.array([e.label for e in examples]), np.array([r.label for r in results])
        if self.kind == "regression":
            return {"pearson": float(np.corrcoef(correct, predicted)[0, 1]) if predicted.std() else 0.0}
        names = np.unique(np.concatenate([correct, predicted]))
        a, b = ((side[:, None] == names) - (side[:, None] == names).mean(0) for side in (correct, predicted))
        return {
            "accuracy": float((correct == predicted).mean()),
            "mcc": float((a * b).sum() / max(1e-9, np.sqrt((a * a).sum() * (b * b).sum()))),
        }

    def spans(self: Any, results: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        correct, predicted = (
            [{(s.start, s.end, s.label) for s in example.spans} for example in side] for side in (examples, results)
        )
        hits = sum(len(a & b) for a, b in zip(correct, predicted, strict=True))
        return {"f1": 2 * hits / max(1, sum(map(len, correct)) + sum(map(len, predicted)))}

    def frames(self: IntentTask, results: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        intents = [r.intent == e.intent for r, e in zip(results, examples, strict=True)]
        return {"mean": (sum(intents) / len(intents) + spans(self, results, examples)["f1"]) / 2}

    ClassifyTask.measure, TagTask.measure, IntentTask.measure = classes, spans, frames  # type: ignore[method-assign]
    ClassifyTask.fit_temperature = lambda self, scores, examples: 1.0  # type: ignore[method-assign]


stand_in, usual = use_simple_metrics, default_start  # what `curves.py` imports


def write_predictions(path: Path, results: Sequence[Any]) -> None:
    """One line for each result, without the text it is about."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for result in results:
            row = {k: v for k, v in dataclasses.asdict(result).items() if k not in ("probabilities", "others")}
            if "spans" in row:
                row.pop("text", None)
                row["spans"] = [[s["start"], s["end"], s["label"], s["score"]] for s in row["spans"]]
            file.write(json.dumps(row, ensure_ascii=False, default=sorted) + "\n")


def read_result(row: dict[str, Any]) -> Any:
    """What `write_predictions` wrote, as the task's result; the metrics look at nothing else."""
    if "spans" in row:
        row["spans"] = tuple(SimpleNamespace(start=a, end=b, label=label, score=s) for a, b, label, s in row["spans"])
    return SimpleNamespace(**{"others": (), **row, **({"requests": set(row["requests"])} if "requests" in row else {})})


def score(folder: Path, data: Path) -> None:
    """Fill in the metrics of every record in a folder from the predictions beside it."""
    from albertkit.data.shards import replace_json

    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        data_set = SETS[record["data"]]
        parts = load(data_set, data, record["cap"])
        for number, seed_run in enumerate(record["runs"]):
            file = folder / "predictions" / f"{record['data']}-seed{number}.jsonl"
            if file.exists():
                rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
                seed_run["metrics"] = task_metrics(data_set, [read_result(row) for row in rows], parts)
        replace_json(path, record)
        print(format_record(record), flush=True)


# All of them -----------------------------------------------------------------------------------------------------


def format_record(record: dict[str, Any]) -> str:
    """A record in a line."""
    seconds = " ".join(f"{seed_run['seconds']:.0f}" for seed_run in record["runs"])
    shown = [
        f"{name} " + " ".join(f"{seed_run['metrics'][name]:.4f}" for seed_run in record["runs"])
        for name in record["metrics"]
        if record["runs"][0]["metrics"]
    ]
    return f"{record['data']:15} {', '.join(shown) or 'not predict_scores yet'}; seconds {seconds}"


def run_set(name: str, args: argparse.Namespace) -> None:
    """One data set, in a process of its own."""
    began = time.perf_counter()
    print(f"{format_record(run(name, args))}; {time.perf_counter() - began:.0f} in all", flush=True)


def sets_to_run(args: argparse.Namespace) -> list[str]:
    """The data sets to run, in the order of the table."""
    only = args.only.split(",") if args.only else []
    unknown = [name for name in only if name not in SETS]
    if unknown:
        sys.exit(f"there is no data set {unknown[0]!r}; choose from {', '.join(SETS)}")
    names = []
    for name, data_set in SETS.items():
        if only and name not in only:
            continue
        if not only and (args.out / args.name / f"{name}.json").exists():
            print(f"{name}: done before", flush=True)
        elif data_set.chinese and args.start_zh is None:
            print(f"{name}: left out, no --start-zh", flush=True)
        elif not (args.data / data_set.train).exists():
            print(f"{name}: left out, {args.data / data_set.train} is not there", flush=True)
        else:
            names.append(name)
    return names


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
    failed = run_jobs(run_set, [(name, args) for name in sets_to_run(args)], args.jobs)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
