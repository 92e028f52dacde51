"""A classifier on frozen sentence vectors: trains in seconds, on a handful of examples. No torch.

In: `TextExample`s with one class each, and a model. Out: an artifact with a head of `linear_heads.py` on the sentence
vector. `train_frozen_head` is `finetune --freeze` and `finetune --nearest`. `choose_base_model` chooses the built-in
model from which `finetune.py` starts.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albertkit import builtin
from albertkit.albert import Albert
from albertkit.artifact import Artifact, write_artifact
from albertkit.data.shards import replace_json
from albertkit.errors import AlbertkitError, check_finite
from albertkit.input_warnings import InputProblems, check_training_texts, collect_problems, report_problems
from albertkit.interop.convert import open_model, open_stored
from albertkit.quantized import QuantizedMatrix
from albertkit.runtime.embed import unit_length, window_vectors
from albertkit.runtime.predict import predict
from albertkit.tasks import TASKS
from albertkit.tasks.classify import OUT_OF_SCOPE, ClassifyTask
from albertkit.tasks.dataset import HELD_OUT, TRAIN, report_truncated
from albertkit.tasks.examples import TextExample
from albertkit.train.finetune_report import EvaluatedRun, FinetuneResult, write_report
from albertkit.train.linear_heads import LinearHead, fit_logistic, fit_nearest
from albertkit.train.run_settings import begin_run
from albertkit.train.train_settings import FinetuneSettings

OUT_OF_SCOPE_SHARE = 0.75
MAX_TRIAL_EXAMPLES, MIN_TRIAL_EXAMPLES = 1_200, 200
ERROR_RATIO = 0.8  # the vector model is chosen if its error rate is below this share of the other's
RIDGE = 1e-3


def train_frozen_head(
    task: str,
    train: Sequence[Any],
    dev: Sequence[Any],
    output: Path,
    model: Path | str | None,
    settings: FinetuneSettings,
) -> FinetuneResult:
    """Train a head on the vectors of a model. Examples of the class `oos` set the out-of-scope probability."""
    model = builtin.resolve(model, builtin.base_models(train)[0])
    if not TASKS[task].can_train_on_frozen_vectors or not all(isinstance(e, TextExample) for e in train):
        flag = "--nearest" if settings.nearest else "--freeze"
        raise AlbertkitError(
            f"{flag} is not available for {task}: frozen vectors are for classes of single texts. Omit {flag}."
        )
    _check_single_texts([*train, *dev])
    if settings.shots:
        train = draw_shots(train, settings.shots, settings.seed)
    began = time.perf_counter()
    base = Albert(model)
    in_scope = [e for e in train if e.label != OUT_OF_SCOPE]
    out_of_scope = [e for e in train if e.label == OUT_OF_SCOPE]
    artifact = fit_head(base, open_model(model), in_scope, out_of_scope, settings)
    seconds = time.perf_counter() - began
    begin_run(output, task, settings)
    write_head(artifact, model, output / "model", overwrite=(output / "model").exists())
    albert = Albert(output / "model")
    features = albert.task.features(train, albert.tokenizer, albert.max_task_tokens)
    dev_features = albert.task.features(dev, albert.tokenizer, albert.max_task_tokens)
    parts = {TRAIN: (train, features), HELD_OUT: (dev, dev_features)}
    report_truncated(albert.task, parts, albert.tokenizer, albert.max_task_tokens, albert.max_tokens)
    with collect_problems() as problems:
        results = predict(albert, dev, "classify") if len(dev) else []
    report_problems(dataclasses.replace(sum(problems, InputProblems()), truncated=0))  # they were reported by file
    metrics: dict[str, float] = {}
    if len(dev):
        metrics = albert.task.measure(results, dev)
        metadata = dataclasses.replace(artifact.metadata, metrics={"dev": metrics})
        artifact = dataclasses.replace(artifact, metadata=metadata)
        write_head(artifact, model, output / "model", overwrite=True)
    runs = [{"seed": settings.seed, "metrics": metrics, "seconds": seconds, "collapsed": 0}]
    replace_json(output / "runs.json", runs)
    write_report(output, EvaluatedRun(train, dev, albert.task, results), artifact, runs)
    return FinetuneResult(output / "model", metrics, runs, len(dev))


def draw_shots(examples: Sequence[TextExample], shots: int, seed: int = 0) -> list[TextExample]:
    """Draw `shots` examples of each class."""
    by_class: dict[Any, list[TextExample]] = defaultdict(list)
    for example in examples:
        by_class[example.label].append(example)
    rng = np.random.default_rng(seed)
    return [by_class[c][i] for c in sorted(by_class) for i in rng.permutation(len(by_class[c]))[:shots]]


def _check_single_texts(examples: Sequence[TextExample]) -> None:
    if any(example.pair is not None for example in examples):
        raise AlbertkitError(
            "pairs are not available with frozen vectors, which need single texts. Fine-tune the whole model."
        )


def encode_texts(albert: Albert, examples: Sequence[TextExample], length: int) -> np.ndarray:
    """Unit vectors (texts, dim) of texts that are truncated to `length` tokens."""
    ids = [e.ids for e in albert.tokenizer.encode_batch([e.text for e in examples], max_length=length)]
    vectors = unit_length(window_vectors(albert, ids, albert.depth, albert.metadata.pooling))
    check_finite("vectors", vectors)
    return np.asarray(vectors, np.float32).reshape(len(ids), albert.dim)


def fit_head(
    albert: Albert,
    base: Artifact,
    examples: Sequence[TextExample],
    out_of_scope: Sequence[TextExample] = (),
    settings: FinetuneSettings | None = None,
) -> Artifact:
    """Fit a head on the vectors of `albert`, whose artifact is `base`.

    out_of_scope: examples of no class. They set the probability below which a text is out of scope.
    settings: without them, texts are truncated to the maximum length of the model.
    """
    if not all(isinstance(example.label, str) for example in examples):
        raise AlbertkitError("a head on frozen vectors needs one class per text. Fine-tune the whole model instead.")
    _check_single_texts(examples)
    settings = settings or FinetuneSettings(max_length=max(8, albert.max_tokens))
    check_training_texts(albert.tokenizer, [e.text for e in (*examples, *out_of_scope)], settings.max_unknown)
    task = ClassifyTask.from_examples(examples, "single")
    length = min(settings.max_length, albert.max_tokens)
    vectors = encode_texts(albert, examples, length)
    targets = np.array([task.target(example) for example in examples])
    head = fit_nearest(vectors, targets) if settings.nearest else fit_logistic(vectors, targets, settings.class_weights)
    if len(out_of_scope):
        logits = encode_texts(albert, out_of_scope, length) @ head.weight.T + head.bias
        limit = out_of_scope_limit(task.probabilities(logits).max(1), head)
        task = dataclasses.replace(task, min_probability=limit)
    weights = {n: w for n, w in base.weights.items() if n.startswith("encoder.")}
    weights |= {
        "heads.classify.linear.weight": head.weight.astype(np.float32),
        "heads.classify.linear.bias": head.bias.astype(np.float32),
    }
    step = {"step": "frozen classifier", "examples": len(examples), **head.details, "seed": settings.seed}
    details = {k: v for k, v in dataclasses.asdict(task).items() if k != "labels"}
    details |= {"reads": "vector", "pairs": False, "max_length": length}
    history = (*base.metadata.history, step)
    meta = dataclasses.replace(
        base.metadata, task="classify", labels=task.labels, history=history, quantization=None, details=details
    )
    return Artifact(base.config, weights, base.tokenizer, meta)


def out_of_scope_limit(outside: np.ndarray, head: LinearHead) -> float:
    """The lowest probability of a text in scope, from the probabilities of texts out of scope.

    With one example per class, nothing is known about texts in scope. Then three of four texts out of scope are below
    the limit.
    """
    if head.held_out is None:
        return float(np.quantile(outside, OUT_OF_SCOPE_SHARE))
    return best_boundary(outside, head.held_out.max(1))


def best_boundary(outside: np.ndarray, inside: np.ndarray) -> float:
    """The threshold that best separates texts out of scope from others, by the mean of both recalls."""
    edges = np.unique(np.concatenate([outside, inside]))
    rates = [((outside < edge).mean() + (inside >= edge).mean()) / 2 for edge in edges]
    return float(edges[int(np.argmax(rates))])


def write_head(artifact: Artifact, base: Path | str | None, folder: Path, overwrite: bool = False) -> Path:
    """Write the result of `fit_head` for the model at `base`. 8-bit matrices stay 8-bit, so vectors are identical."""
    stored = open_stored(base).weights
    kept = {n: w for n, w in stored.items() if isinstance(w, QuantizedMatrix) and n in artifact.weights}
    return write_artifact(artifact, folder, overwrite, kept=kept)


def choose_base_model(task: str, examples: Sequence[Any], max_length: int) -> tuple[str, str]:
    """(name of a built-in model, reason).

    One built-in model is trained for sentence vectors, the other for tokens in context. Classes of texts may need
    either: the vectors of the first contain the sentiment of a review, but not its grammaticality (numbers in LOG.md).
    So both are compared on some examples, by least squares on their vectors, which takes seconds.
    """
    vectors, pretrained = builtin.base_models(examples)
    if max_length > builtin.describe(vectors).shape["length"]:
        return pretrained, "it supports texts of that length"
    if task == "match":
        return vectors, "it is trained for sentence vectors"
    if task != "classify" or any(e.pair for e in examples):
        return pretrained, "it is trained for tokens in context"
    if len(examples) < MIN_TRIAL_EXAMPLES or not all(isinstance(e.label, str) for e in examples):
        return vectors, "it is trained for the meaning of whole texts"
    numbers = np.random.default_rng(0).permutation(len(examples))[:MAX_TRIAL_EXAMPLES]
    sample = [examples[i] for i in numbers]
    labels = np.unique([e.label for e in sample], return_inverse=True)[1]
    accuracy = {
        name: linear_accuracy(encode_texts(Albert(builtin.resolve(name)), sample, max_length), labels)
        for name in (vectors, pretrained)
    }
    is_better = 1 - accuracy[vectors] < ERROR_RATIO * (1 - accuracy[pretrained])
    shown = " and ".join(f"{value:.1%} with {name}" for name, value in accuracy.items())
    name = vectors if is_better else pretrained
    return name, f"the accuracy of a linear model on {len(sample):,} vectors is {shown}"


def linear_accuracy(vectors: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy of least squares for every third vector, fitted on the others."""
    is_held_out = np.arange(len(labels)) % 3 == 2
    scaled = (vectors - vectors[~is_held_out].mean(0)) / (vectors[~is_held_out].std(0) + 1e-6)
    inputs, targets = scaled[~is_held_out], np.eye(labels.max() + 1)[labels[~is_held_out]]
    shares = targets.mean(0)
    gram = inputs.T @ inputs + RIDGE * len(inputs) * vectors.shape[1] * np.eye(vectors.shape[1])
    weights = np.linalg.solve(gram, inputs.T @ (targets - shares))
    return float(((scaled[is_held_out] @ weights + shares).argmax(1) == labels[is_held_out]).mean())
