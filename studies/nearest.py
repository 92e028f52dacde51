"""A few labelled texts per class: the nearest centroid beside logistic regression, both on frozen sentence vectors.

    python studies/nearest.py DATA [--sets snips,sst-2] [--seeds 5]

DATA is a folder with clinc150, snips, sst-2 and chnsenticorp. The examples are those of `albertkit finetune classify
--shots N --seed S`, with --nearest and with --freeze. In the unbalanced draw, every second class has 2 examples and the
others have 16; the classes change places with the seed. Out-of-scope texts are omitted. Accuracy is on the test split
(CLINC150) or dev. Seconds are processor time of the head alone, on one thread, without the vectors. Each text is
embedded once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.model_selection  # noqa: F401  imported here, so that it is not part of the seconds
from threadpoolctl import threadpool_limits

from albertkit.albert import Albert
from albertkit.tasks.examples import TextExample
from albertkit.tasks.readers import ReadOptions, read_examples
from albertkit.train.frozen_head import draw_shots, encode_texts
from albertkit.train.linear_heads import LinearHead, fit_logistic, fit_nearest

SETS = {  # task, model, training examples, test examples: a file and its split
    "CLINC150": ("intent", "small", ("clinc150/data_small.json", "train"), ("clinc150/data_small.json", "test")),
    "Snips": ("intent", "small", ("snips/train", None), ("snips/dev", None)),
    "SST-2": ("classify", "small", ("sst-2/train.tsv", None), ("sst-2/dev.tsv", None)),
    "ChnSentiCorp": ("classify", "small-zh", ("chnsenticorp/train.tsv", None), ("chnsenticorp/dev.tsv", None)),
}
SHOTS = (1, 2, 4, 8, 16)
UNBALANCED = (2, 16)
MAX_LENGTH = 128
HEADS: dict[str, Callable[[np.ndarray, np.ndarray], LinearHead]] = {
    "nearest": fit_nearest,
    "freeze": fit_logistic,
    "freeze, class weights": partial(fit_logistic, is_balanced=True),
}


class Vectors:
    """The vectors of texts, each computed once."""

    def __init__(self, model: str) -> None:
        self.albert, self.found = Albert(model), dict[str, np.ndarray]()

    def __call__(self, examples: Sequence[TextExample]) -> np.ndarray:
        missing = [e for e in {e.text: e for e in examples}.values() if e.text not in self.found]
        vectors = encode_texts(self.albert, missing, MAX_LENGTH)
        self.found |= {e.text: row for e, row in zip(missing, vectors, strict=True)}
        return np.stack([self.found[e.text] for e in examples])


def read(task: str, path: Path, split: str | None) -> list[TextExample]:
    """Texts with one class each."""
    options = ReadOptions() if split is None else ReadOptions(split=split)
    rows = read_examples(task, path, options).examples
    labelled = [(e.text, e.label if isinstance(e, TextExample) else e.intent) for e in rows]
    return [TextExample(text, label=label) for text, label in labelled if label != "oos"]


def draw_unbalanced(train: Sequence[TextExample], seed: int) -> list[TextExample]:
    """Few examples of every second class, more of the others."""
    classes = sorted({str(e.label) for e in train})
    is_rare = dict(zip(classes, [(place + seed) % 2 == 0 for place in range(len(classes))], strict=True))
    few, more = (draw_shots(train, shots, seed) for shots in UNBALANCED)
    return [e for e in few if is_rare[str(e.label)]] + [e for e in more if not is_rare[str(e.label)]]


def measure(vectors: Vectors, drawn: list[TextExample], test: list[TextExample]) -> dict[str, dict[str, float]]:
    """Accuracy and seconds of each head. Class weights matter only if the classes have different sizes."""
    classes = sorted({str(e.label) for e in drawn})
    number = {label: place for place, label in enumerate(classes)}
    targets = np.array([number[str(e.label)] for e in drawn])
    truth = np.array([number.get(str(e.label), -1) for e in test])
    inputs, tested, results = vectors(drawn), vectors(test), {}
    for name, fit in list(HEADS.items())[: 2 if len(set(np.bincount(targets))) == 1 else 3]:
        with threadpool_limits(1):
            began = time.process_time()
            head = fit(inputs, targets)
            seconds = time.process_time() - began
        right = (tested @ head.weight.T + head.bias).argmax(1) == truth
        results[name] = {"accuracy": float(right.mean()), "seconds": seconds}
    return results


def summarize(runs: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Mean over the seeds, and the standard deviation of the accuracy."""
    table = {}
    for name in runs[0]:
        accuracies = [run[name]["accuracy"] for run in runs]
        table[name] = {
            "accuracy": round(statistics.fmean(accuracies), 4),
            "deviation": round(statistics.stdev(accuracies), 4) if len(runs) > 1 else 0.0,
            "seconds": round(statistics.fmean(run[name]["seconds"] for run in runs), 4),
        }
    return table


def study(name: str, data: Path, seeds: int) -> dict[str, Any]:
    """One data set."""
    task, model, *files = SETS[name]
    train, test = (read(task, data / path, split) for path, split in files)
    vectors = Vectors(model)
    draws = {str(shots): lambda seed, shots=shots: draw_shots(train, shots, seed) for shots in SHOTS}
    draws["unbalanced"] = lambda seed: draw_unbalanced(train, seed)
    results = {}
    for shots, draw in draws.items():
        results[shots] = summarize([measure(vectors, draw(seed), test) for seed in range(seeds)])
        print(name, shots, results[shots], flush=True)
    classes = len({e.label for e in train})
    return {"model": model, "classes": classes, "test_texts": len(test), "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "nearest.json")
    args = parser.parse_args()
    sys.path.append(str(Path(__file__).parent.parent / "bench"))
    from inference import machine

    warnings.filterwarnings("ignore", message="The number of unique classes")
    sets = {name: study(name, args.data, args.seeds) for name in SETS if name in args.sets.split(",")}
    result = {"machine": machine(2), "seeds": args.seeds, "unbalanced": list(UNBALANCED), "sets": sets}
    args.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
