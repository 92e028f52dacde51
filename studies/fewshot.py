"""Few-shot classification with eight examples per intent of CLINC150: a head on frozen vectors, compared with setfit
and with logistic regression on MiniLM's vectors.

    python studies/fewshot.py DATA_SMALL_JSON --model OURS --minilm FOLDER --setfit-python VENV/bin/python [--seeds 3]
    [--classes 10]

All sides get the same texts, drawn from the train split with the seed: `--shots` of each intent, and as many
out-of-scope ones. All are evaluated on the test split. albertkit uses the out-of-scope texts to set a threshold; for
the others they are one more class. Seconds are from loading the model to the finished classifier. Each side runs in a
separate process. setfit and sentence-transformers need a separate environment (--setfit-python).

setfit trains on pairs of texts, of which there are hundreds of thousands here: --setfit-steps limits its training.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

OUTSIDE = "oos"
METRICS = {
    "closed_accuracy": "in-scope texts, when out of scope cannot be said",
    "in_scope_accuracy": "in-scope texts, when it can",
    "out_of_scope_f1": "finding the out-of-scope texts",
}
Rows = list[tuple[str, str]]


def draw(path: Path, shots: int, classes: int | None, seed: int) -> dict[str, Rows]:
    """(text, intent) to learn from, and to be measured on."""
    from albertkit.tasks.readers import ReadOptions, read_examples
    from albertkit.train.frozen_head import draw_shots

    parts = {split: read_examples("intent", path, ReadOptions(split=split)).examples for split in ("train", "test")}
    names = sorted({e.label for e in parts["train"]} - {OUTSIDE})[:classes]
    parts = {split: [e for e in rows if e.label in (*names, OUTSIDE)] for split, rows in parts.items()}
    parts["train"] = draw_shots(parts["train"], shots, seed)
    return {split: [(e.text, e.label) for e in rows] for split, rows in parts.items()}


# The sides: each gives the seconds it learnt for, the answers, and the answers among the intents alone
# -------------------


def run_albertkit(job: dict[str, Any]) -> dict[str, Any]:
    """albertkit's frozen mode."""
    from albertkit.albert import Albert
    from albertkit.runtime.predict import predict
    from albertkit.tasks.examples import TextExample
    from albertkit.train.finetune import finetune_examples
    from albertkit.train.train_settings import FinetuneSettings

    train, test = ([TextExample(text, None, label) for text, label in job[split]] for split in ("train", "test"))
    with tempfile.TemporaryDirectory() as out:
        done = finetune_examples("classify", train, [], out, job["model"], FinetuneSettings(freeze=True, device="cpu"))
        results = predict(Albert(done.model), test, "classify")
    return {
        "seconds": done.runs[0]["seconds"],
        "said": [r.label for r in results],
        "closed": [max(r.probabilities, key=r.probabilities.get) for r in results],
        "versions": {"albertkit": version("albertkit")},
    }


def run_regression(job: dict[str, Any]) -> dict[str, Any]:
    """scikit-learn's logistic regression on vectors of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sklearn.linear_model import LogisticRegression

    began = time.perf_counter()
    model = SentenceTransformer(job["minilm"], device="cpu")
    vectors = model.encode([text for text, _ in job["train"]], normalize_embeddings=True)
    head = LogisticRegression(C=10.0, max_iter=1000).fit(vectors, [label for _, label in job["train"]])
    seconds = time.perf_counter() - began
    tested = model.encode([text for text, _ in job["test"]], normalize_embeddings=True)
    versions = {name: version(name) for name in ("sentence-transformers", "scikit-learn")}
    return {"seconds": seconds, **predicted_labels(head.predict_proba(tested), head.classes_), "versions": versions}


def run_setfit(job: dict[str, Any]) -> dict[str, Any]:
    """setfit: contrastive fine-tuning of the encoder, then logistic regression."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    began = time.perf_counter()
    model = SetFitModel.from_pretrained(job["minilm"], device="cpu")
    table = Dataset.from_dict({"text": [t for t, _ in job["train"]], "label": [label for _, label in job["train"]]})
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            out, batch_size=16, num_epochs=1, max_steps=job["steps"], seed=job["seed"], report_to="none",
            eval_strategy="no", save_strategy="no",
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=table).train()
    seconds = time.perf_counter() - began
    chances = model.predict_proba([text for text, _ in job["test"]], as_numpy=True)
    versions = {name: version(name) for name in ("setfit", "sentence-transformers", "transformers", "torch")}
    return {"seconds": seconds, **predicted_labels(chances, model.model_head.classes_), "versions": versions}


def predicted_labels(chances: Any, names: Any) -> dict[str, list[str]]:
    """Probabilities of classes, out of scope among them, as answers."""
    import numpy as np

    names = [str(name) for name in names]
    inside = [i for i, name in enumerate(names) if name != OUTSIDE]
    return {
        "said": [names[i] for i in np.asarray(chances).argmax(1)],
        "closed": [names[inside[i]] for i in np.asarray(chances)[:, inside].argmax(1)],
    }


SIDES = {
    "albertkit, frozen": run_albertkit,
    "MiniLM + logistic regression": run_regression,
    "setfit, MiniLM": run_setfit,
}


# The run -----------------------------------------------------------------------------------------------------------


def measure(test: Rows, predicted: list[str], closed: list[str]) -> dict[str, float]:
    """See `METRICS`."""
    inside = [(label, a, b) for (_, label), a, b in zip(test, predicted, closed, strict=True) if label != OUTSIDE]
    strange = [label == OUTSIDE for _, label in test]
    hits = sum(s and a == OUTSIDE for s, a in zip(strange, predicted, strict=True))
    return {
        "closed_accuracy": sum(label == b for label, _, b in inside) / len(inside),
        "in_scope_accuracy": sum(label == a for label, a, _ in inside) / len(inside),
        "out_of_scope_f1": 2 * hits / max(1, sum(strange) + predicted.count(OUTSIDE)),
    }


def run(name: str, python: str, job: dict[str, Any]) -> dict[str, Any]:
    """One side in a process of its own; what it says when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        job_file, result_file = Path(folder, "job.json"), Path(folder, "found.json")
        job_file.write_text(json.dumps(job), encoding="utf-8")
        done = subprocess.run(
            [python, __file__, "side", name, job_file, result_file], stderr=subprocess.PIPE, text=True
        )
        if done.returncode or not result_file.exists():
            return {"error": (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]}
        result: dict[str, Any] = json.loads(result_file.read_text(encoding="utf-8"))
    scores = measure(job["test"], result.pop("said"), result.pop("closed"))
    return {**result, **scores}


def mean(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean over the seeds of every number."""
    wrong = [run["error"] for run in runs if "error" in run]
    if wrong:
        return {"error": wrong[0]}
    numbers = {k: statistics.fmean(run[k] for run in runs) for k in ("seconds", *METRICS)}
    return {**numbers, "versions": runs[0]["versions"]}


def main() -> None:
    if sys.argv[1:2] == ["side"]:
        name, job_file, result_file = sys.argv[2:]
        result = SIDES[name](json.loads(Path(job_file).read_text(encoding="utf-8")))
        Path(result_file).write_text(json.dumps(result), encoding="utf-8")
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="our embedding model")
    parser.add_argument("--name", help="what it is called in the results")
    parser.add_argument("--minilm", type=Path, required=True, help="a sentence-transformers folder")
    parser.add_argument("--setfit-python", default=sys.executable, help="the Python that has setfit")
    parser.add_argument("--setfit-steps", type=int, default=500)
    parser.add_argument("--shots", type=int, default=8)
    parser.add_argument("--classes", type=int, help="only the first so many intents, to try it out")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "fewshot.json")
    args = parser.parse_args()
    from inference import machine

    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SIDES}
    for seed in range(args.seeds):
        rows = draw(args.data, args.shots, args.classes, seed)
        paths = {"model": str(args.model.resolve()), "minilm": str(args.minilm.resolve())}
        job = {**rows, **paths, "seed": seed, "steps": args.setfit_steps}
        for name, side in SIDES.items():
            runs[name].append(run(name, sys.executable if side is run_albertkit else args.setfit_python, job))
            print(seed, name, runs[name][-1], flush=True)
    classes = len({label for _, label in rows["train"]} - {OUTSIDE})
    result = {
        "machine": machine(2),
        "model": args.name or args.model.name,
        "shots": args.shots,
        "classes": classes,
        "seeds": args.seeds,
        "examples": {split: len(examples) for split, examples in rows.items()},
        "setfit_steps": args.setfit_steps,
        "sides": {name: mean(result_file) for name, result_file in runs.items()},
    }
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
