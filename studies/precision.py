"""Fine-tuned models in torch and in the torch-free runtime, in float32, 8 and 4 bits, on held-out examples.

    python studies/precision.py DATA --models MODELS [--only sst-2,mrpc] [--most 1000] [--threads 1] [--out
    studies/results/precision.json]

MODELS contains MODELS/SET/model, or MODELS/SET/plain/model from `elastic.py train`, where SET is a name of
`tasksets.py`. For each one: torch in float32, the runtime in float32, and the runtime with 8 and 4 bits, quantized as
by `albertkit quantize -f` on 500 texts of the training data. Logits and probabilities (softmax or sigmoid, no
temperature; values of a regression) of torch and the runtime are compared. Earlier results of other data sets are
kept. --most limits the held-out examples, for a test run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from inference import machine, versions  # noqa: E402
from tasksets import SETS, Set, load  # noqa: E402

import tasks  # noqa: E402

RESULT = Path(__file__).parent / "results" / "precision.json"
BITS = {"int8": 8, "4-bit": 4}
TEXTS = 500
CLOSE = 1e-4  # what scores in float32 should differ by at most
DRAWS = 4


def model_of(models: Path, name: str) -> Path | None:
    """The folder of a data set's model, if there is one."""
    places = (models / name / "model", models / name / "plain" / "model")
    return next((place for place in places if (place / "albertkit.json").is_file()), None)


def sample(examples: Sequence[Any], most: int) -> list[Any]:
    """At most so many, from all over the list."""
    count = min(most, len(examples))
    return [examples[place * len(examples) // count] for place in range(count)]


def texts_of(examples: Sequence[Any]) -> list[str]:
    """Texts to calibrate with: the text of an example, its context, or what its user says."""
    named = [getattr(e, "text", None) or getattr(e, "context", None) or getattr(e, "user", "") for e in examples]
    return sample([text for text in named if text.strip()], TEXTS)


def score_differences(mine: Sequence[Any], theirs: Sequence[Any]) -> list[float]:
    """The largest absolute difference in each row of two lists of scores, whatever their shapes; a task of two heads
    has tuples.
    """
    differences = []
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(a, tuple):
            differences.append(max(score_differences(a, b)))
            continue
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if a.shape != b.shape:
            raise ValueError(f"scores of shapes {a.shape} and {b.shape} are of different inputs")
        differences.append(float(np.abs(a - b).max(initial=0.0)))
    return differences


def chances(task: Any, features: Sequence[Any], scores: Sequence[Any]) -> list[Any]:
    """Scores as probabilities; a value stays a value. Choices are probable beside the others of their question."""
    heads = task.heads
    if heads == ("choose",):
        probabilities: dict[int, list[float]] = {}
        for feature, row in zip(features, scores, strict=True):
            probabilities.setdefault(feature.example, []).append(float(np.asarray(row).reshape(())))
        return [softmax(np.array(rows), 0) for rows in probabilities.values()]
    by_head = [[chance(task, head, row) for head, row in zip(heads, as_tuple(rows), strict=True)] for rows in scores]
    return [tuple(row) if len(row) > 1 else row[0] for row in by_head]


def as_tuple(rows: Any) -> tuple[Any, ...]:
    return rows if isinstance(rows, tuple) else (rows,)


def chance(task: Any, head: str, row: np.ndarray) -> np.ndarray:
    """The probabilities of one head for one text: of its classes, of its labels at each token, or of each token to
    begin or end an answer.
    """
    kind = getattr(task, "kind", "single") if head == "classify" else "single"
    row = np.asarray(row, np.float64)
    if kind == "multi":
        return 1 / (1 + np.exp(-row))
    return row if kind == "regression" else softmax(row, 0 if head == "answer" else -1)


def softmax(row: np.ndarray, axis: int) -> np.ndarray:
    top: np.ndarray = np.exp(row - row.max(axis, keepdims=True))
    return top / top.sum(axis, keepdims=True)


def compare(task: Any, features: Sequence[Any], mine: Sequence[Any], theirs: Sequence[Any]) -> dict[str, float]:
    """How far the runtime's scores are from torch's."""
    by_text = np.array(score_differences(mine, theirs))
    sides = (chances(task, features, scores) for scores in (mine, theirs))
    return {
        "logits": float(by_text.max()),
        "logits_median": float(np.median(by_text)),
        "texts": len(by_text),
        "texts_above": int((by_text > CLOSE).sum()),
        "probabilities": max(score_differences(*sides)),
    }


def padding_effect(model: Path, feature: Any, threads: int) -> float:
    """How far the runtime's scores of one text move when every word weight is moved by its last bit, up or down: what
    float32 leaves open there.
    """
    from albertkit.albert import Albert
    from albertkit.artifact import read_artifact
    from albertkit.runtime.engine import open_engine
    from albertkit.runtime.predict import task_scores

    albert, weights, name = (
        Albert(model, threads=threads),
        read_artifact(model).weights,
        "encoder.embeddings.word.weight",
    )
    before, largest = task_scores(albert, [feature]), 0.0
    for seed in range(DRAWS):
        up = np.random.default_rng(seed).random(weights[name].shape) < 0.5
        moved = np.nextafter(weights[name], np.where(up, np.inf, -np.inf).astype(np.float32))
        albert.engine = open_engine(albert.config, {**weights, name: moved}, threads)
        largest = max(largest, *score_differences(task_scores(albert, [feature]), before))
    return largest


def differing_predictions(task: Any, mine: Sequence[Any], theirs: Sequence[Any]) -> int:
    """Examples whose results differ."""
    from albertkit.tasks.confidence import results_agree
    from albertkit.tasks.dialogue import DialogueTask

    if isinstance(task, DialogueTask):
        return sum(a != b for a, b in zip(mine, theirs, strict=True))
    return int((~results_agree(task, mine, theirs)).sum())


def measure(data_set: Set, model: Path, parts: dict[str, list[Any]], most: int | None, threads: int) -> dict[str, Any]:
    """One data set: scores of torch and of the runtime, and the metrics of every precision."""
    from albertkit.albert import Albert
    from albertkit.compress.quantize import quantize
    from albertkit.runtime.predict import task_features, task_scores

    split = "test" if data_set.test else "dev"
    count = len(parts[split])
    parts = {**parts, split: sample(parts[split], most or count)}
    examples, metric = parts[split], data_set.metrics[0]
    task, features, expected = tasks.torch_scores(model, examples, "cpu")
    results = {"torch": task.results(expected, features, examples)}

    def read(folder: Path) -> tuple[list[Any], list[Any]]:
        albert = Albert(folder, threads=threads)
        features_of_model = task_features(albert, examples, albert.metadata.task)
        found = task_scores(albert, features_of_model)
        return found, albert.task.results(found, features_of_model, examples)

    found, results["runtime"] = read(model)
    worst = features[int(np.argmax(score_differences(found, expected)))]
    texts, cosines = texts_of(parts["train"]), {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, bits in BITS.items():
            cosines[name] = quantize(model, Path(scratch) / name, bits, texts).cosine_mean
            _, results[name] = read(Path(scratch) / name)
    measured = {name: tasks.task_metrics(data_set, rows, parts) for name, rows in results.items()}
    return {
        "task": data_set.task,
        "note": data_set.note,
        "metric": metric,
        "examples": len(examples),
        "of": count,
        "difference": {**compare(task, features, found, expected), "sway": padding_effect(model, worst, threads)},
        "unlike": {
            name: differing_predictions(task, rows, results["torch"])
            for name, rows in results.items()
            if name != "torch"
        },
        "metrics": measured,
        "points": {name: 100 * (measured[name][metric] - measured["runtime"][metric]) for name in BITS},
        "calibration_texts": len(texts),
        "cosine": cosines,
    }


def line(name: str, record: dict[str, Any]) -> str:
    """A record in a line."""
    shown = ", ".join(f"{side} {values[record['metric']]:.4f}" for side, values in record["metrics"].items())
    apart = ", ".join(f"{what} {value:.2g}" for what, value in record["difference"].items())
    return (
        f"{name}: {record['metric']} {shown}; int8 {record['points']['int8']:+.2f} points; torch and runtime differ: "
        f"{apart}; results unlike torch's {record['unlike']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", default="", help="data sets, with commas between them")
    parser.add_argument("--most", type=int, help="at most so many held-out examples, to try it out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    only = [name for name in args.only.split(",") if name] or list(SETS)
    unknown = [name for name in only if name not in SETS]
    if unknown:
        sys.exit(f"there is no data set {unknown[0]!r}; choose from {', '.join(SETS)}")
    models = {name: place for name in only if (place := model_of(args.models, name)) is not None}
    if not models:
        sys.exit(f"{args.models} holds no model of {', '.join(only)}; it should hold SET/model or SET/plain/model")
    run(models, args)


def run(models: dict[str, Path], args: argparse.Namespace) -> None:
    """Every data set that has a model; what is done is written before the next begins."""
    import torch

    from albertkit.data.shards import replace_json

    torch.set_num_threads(args.threads)
    recorded = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {"sets": {}}
    for name, model in models.items():
        record = measure(SETS[name], model, load(SETS[name], args.data), args.most, args.threads)
        recorded["sets"][name] = record
        recorded |= {"machine": machine(args.threads), "libraries": versions()}
        replace_json(args.out, recorded)
        print(line(name, record), flush=True)


if __name__ == "__main__":
    main()
