"""A classifier on frozen sentence vectors: minutes become seconds, and a handful of examples is enough. No torch.

In: `TextExample` examples with one class each, and a model whose vectors are good. Out: an artifact whose head reads the vector itself.

Every text is encoded once, by the torch-free runtime: vectors are remembered within a process, and `freeze` keeps them in OUT/vectors.npy for the
next run. The head is scikit-learn's logistic regression; its strength is chosen by cross-validation.
With a floor, a text that fits no class well is out of scope. `freeze` is `finetune --freeze`: all of it, with a report of its scores.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit import builtin
from albertkit.albert import Albert
from albertkit.artifact import Artifact, write_artifact
from albertkit.data.shard_writer import write_array, write_json
from albertkit.errors import AlbertkitError, need
from albertkit.interop.convert import open_model, open_stored
from albertkit.quantized import QuantizedMatrix
from albertkit.runtime.embed import unit_length, window_vectors
from albertkit.serve.vector_cache import OVERHEAD, VectorCache, cache_key
from albertkit.tasks import TASKS
from albertkit.tasks.classify import OUT_OF_SCOPE, ClassifyTask
from albertkit.tasks.examples import TextExample
from albertkit.train.finetune_report import write_report
from albertkit.train.train_settings import FinetuneSettings

STRENGTHS = (1.0, 10.0, 100.0)
MOST_BYTES = 512 * 2**20
REMEMBERED = VectorCache(MOST_BYTES)  # vectors of texts, the longest unused forgotten first
LOCK = threading.Lock()  # fits may run in threads


def few(examples: Sequence[TextExample], shots: int, seed: int = 0) -> list[TextExample]:
    """`shots` examples of each class, drawn."""
    by_class: dict[Any, list[TextExample]] = defaultdict(list)
    for example in examples:
        by_class[example.label].append(example)
    rng = np.random.default_rng(seed)
    return [
        own[i] for label in sorted(by_class) for own in [by_class[label]] for i in rng.permutation(len(own))[:shots]
    ]


@dataclass(frozen=True)
class FinetuneResult:
    """How a fine-tuning ended, frozen or not."""

    model: Path
    metrics: dict[str, float]
    runs: list[dict[str, Any]]
    """Seed, metrics, seconds and whether it collapsed, for each run."""


def freeze(
    task: str,
    examples: Sequence[Any],
    dev: Sequence[Any],
    output: Path,
    model: Path | str | None,
    options: FinetuneSettings,
) -> FinetuneResult:
    """A head on the frozen vectors of the model at `model`. Examples of the class `oos` set the floor below which a text is out of scope."""
    model = builtin.resolve(model, builtin.DEFAULT)
    if not TASKS[task].can_train_on_frozen_vectors or not all(isinstance(e, TextExample) for e in examples):
        raise AlbertkitError(f"only classes of texts are learnt on frozen vectors; leave --freeze away for {task}")
    if options.shots:
        examples = few(examples, options.shots, options.seed)
    began = time.perf_counter()
    inside = [e for e in examples if e.label != OUT_OF_SCOPE]
    strange = [e for e in examples if e.label == OUT_OF_SCOPE]
    given = options.seed, options.max_length, options.class_weights
    base = Albert(model)
    recall(output / "vectors.npy")
    made = fit(base, open_model(model), inside, strange, *given)
    seconds = time.perf_counter() - began
    write(made, model, output / "model", overwrite=(output / "model").exists())
    albert = Albert(output / "model")
    metrics: dict[str, float] = {}
    judged = judge(albert, base, examples, dev)
    keep(output / "vectors.npy", base, [*examples, *dev], made.meta.details["max_length"])
    if len(dev):
        metrics = albert.task.measure(judged.results, dev)
        made = dataclasses.replace(made, meta=dataclasses.replace(made.meta, metrics={"dev": metrics}))
        write(made, model, output / "model", overwrite=True)
    runs = [{"seed": options.seed, "metrics": metrics, "seconds": seconds, "collapsed": 0}]
    write_json(output / "runs.json", runs)
    write_report(output, judged, made, runs)
    return FinetuneResult(output / "model", metrics, runs)


@dataclass(frozen=True)
class HeadEvaluation:
    """What a head says of held-out examples, for the report."""

    features: Sequence[Any]
    dev: Sequence[Any]
    task: Any
    results: Sequence[Any]
    last_scores: Sequence[Any]


def judge(albert: Albert, base: Albert, examples: Sequence[Any], dev: Sequence[Any]) -> HeadEvaluation:
    """The head of `albert` on what was held out; its vectors are those of `base`, from which it was made."""
    refuse_pairs(dev)
    weight, bias = albert.heads["classify"]
    found = list(vectors_of(base, dev, albert.meta.details["max_length"]) @ weight.T + bias)
    return HeadEvaluation(examples, dev, albert.task, albert.task.results(found, (), dev), found)


def refuse_pairs(examples: Sequence[TextExample]) -> None:
    """A vector is of one text."""
    if any(example.pair is not None for example in examples):
        raise AlbertkitError("frozen vectors are of single texts; fine-tune the whole model for pairs")


def vectors_of(albert: Albert, examples: Sequence[TextExample], length: int) -> np.ndarray:
    """Unit vectors of texts, cut to `length` tokens, as `predict` reads them; what is remembered is not computed again."""
    keys, ids = keyed(albert, examples, length)
    with LOCK:
        known = {key: found[0] for key in keys if (found := REMEMBERED.get(key)) is not None}
    missing = {key: row for key, row in zip(keys, ids, strict=True) if key not in known}
    known.update(zip(missing, encode(albert, list(missing.values())), strict=True))
    with LOCK:
        for key in missing:
            REMEMBERED.put(key, known[key], 0)
    return np.array([known[key] for key in keys], np.float32).reshape(len(keys), albert.dim)


def keyed(albert: Albert, examples: Sequence[TextExample], length: int) -> tuple[list[bytes], list[list[int]]]:
    """What the encoder reads of each text, and the keys of its vectors: hashes of that and of the model."""
    ids = [e.ids for e in albert.tokenizer.encode_batch([e.text for e in examples], max_length=length)]
    model = f"{albert.name} {albert.device} {albert.config}"
    return [cache_key(model, str(row)) for row in ids], ids


def encode(albert: Albert, ids: list[list[int]]) -> np.ndarray:
    """Unit vectors (texts, dim) of token ids."""
    return unit_length(window_vectors(albert, ids, albert.depth, albert.meta.pooling))


def keep(path: Path, albert: Albert, examples: Sequence[TextExample], length: int) -> None:
    """Write the vectors of texts, for `recall`: keys and numbers, no text."""
    keys, _ = keyed(albert, examples, length)
    if len(keys) * (4 * albert.dim + OVERHEAD) > MOST_BYTES:
        return  # more than is remembered
    table = np.empty(len(keys), [("key", "u1", 16), ("vector", "<f4", albert.dim)])
    table["key"] = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16)
    table["vector"] = vectors_of(albert, examples, length)
    write_array(path, table)


def recall(path: Path) -> None:
    """Remember the vectors that `keep` wrote. Keys name the model, so those of another one do no harm; a damaged file is as none."""
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            return
        table = np.load(path, allow_pickle=False)
        pairs = list(zip(table["key"], table["vector"], strict=True))
    except (OSError, ValueError, EOFError, IndexError):
        return
    with LOCK:
        for key, vector in pairs:
            REMEMBERED.put(key.tobytes(), vector, 0)


def fit(
    albert: Albert,
    start: Artifact,
    examples: Sequence[TextExample],
    outside: Sequence[TextExample] = (),
    seed: int = 0,
    max_length: int | None = None,
    balanced: bool = False,
) -> Artifact:
    """Learn a head; `outside` are examples that fit no class, from which the floor is set (else from the classes alone).

    max_length: tokens of a text that are read; by default as many as the model can. balanced: rare classes weigh more.
    """
    need("sklearn", "frozen", "a classifier on frozen vectors")
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    if not all(isinstance(example.label, str) for example in examples):
        raise AlbertkitError(
            "a head on frozen vectors learns one class for each text; fine-tune the whole model instead"
        )
    task = ClassifyTask.from_examples(examples, "single")
    refuse_pairs(examples)
    length = min(max_length or albert.max_tokens, albert.max_tokens)
    vectors = vectors_of(albert, examples, length)
    targets = np.array([task.target(example) for example in examples])
    least = min(Counter(targets.tolist()).values())
    folds = min(5, least)
    weighing = "balanced" if balanced else None
    best: tuple[float, float, np.ndarray | None] = (-np.inf, 10.0, None)
    for strength in STRENGTHS if folds >= 2 else ():
        model = LogisticRegression(C=strength, max_iter=1000, class_weight=weighing)
        chances = cross_val_predict(model, vectors, targets, cv=folds, method="predict_proba")
        score = float(np.log(np.maximum(chances[np.arange(len(targets)), targets], 1e-9)).mean())
        if score > best[0]:
            best = score, strength, chances
    model = LogisticRegression(C=best[1], max_iter=1000, class_weight=weighing).fit(vectors, targets)
    weight, bias = rows_of(model)
    floor = 0.0
    if len(outside):
        strange = vectors_of(albert, outside, length)
        floor = cut(
            task.probabilities(strange @ weight.T + bias).max(1), best[2].max(1) if best[2] is not None else np.ones(1)
        )
    task = dataclasses.replace(task, min_probability=floor)
    weights = {n: w for n, w in start.weights.items() if n.startswith("encoder.")}
    weights |= {
        "heads.classify.linear.weight": weight.astype(np.float32),
        "heads.classify.linear.bias": bias.astype(np.float32),
    }
    done = {"step": "frozen classifier", "examples": len(examples), "strength": best[1], "seed": seed}
    details = {k: v for k, v in dataclasses.asdict(task).items() if k != "labels"}
    meta = dataclasses.replace(
        start.meta, task="classify", labels=task.labels, made=(*start.meta.made, done), quantisation=None,
        details={**details, "reads": "vector", "max_length": length},
    )  # fmt: skip
    return Artifact(start.config, weights, start.tokenizer, meta)


def write(made: Artifact, start: Path | str | None, folder: Path, overwrite: bool = False) -> Path:
    """Write what `fit` made from the model at `start`. Matrices that are 8-bit there stay so, and the vectors stay the same to the bit."""
    before = open_stored(start).weights
    kept = {
        name: matrix for name, matrix in before.items() if isinstance(matrix, QuantizedMatrix) and name in made.weights
    }
    return write_artifact(made, folder, overwrite, kept=kept)


def rows_of(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Weights and biases with a row for each class; two classes share one in scikit-learn."""
    weight, bias = np.asarray(model.coef_), np.asarray(model.intercept_)
    if len(weight) == 1:
        return np.concatenate([-weight / 2, weight / 2]), np.concatenate([-bias / 2, bias / 2])
    return weight, bias


def cut(strange: np.ndarray, known: np.ndarray) -> float:
    """The floor that tells strange texts from known ones best, by the mean of both rates."""
    edges = np.unique(np.concatenate([strange, known]))
    rates = [((strange < edge).mean() + (known >= edge).mean()) / 2 for edge in edges]
    return float(edges[int(np.argmax(rates))])
