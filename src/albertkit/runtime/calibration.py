"""Calibration of early exit: thresholds for `early_exit="99%"` from held-out texts. No torch.

In: a model folder, and examples of its task, or texts for a vector model. Out: `ExitCalibration` (`early_exit.py`),
written into `albertkit.json`. Training (`train/elastic.py`) calibrates with its own scores. `fit_calibration` has the
statistics.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albertkit import builtin
from albertkit.artifact import (
    METADATA_FILE,
    ArtifactMetadata,
    model_folder,
    read_metadata,
    read_stored,
    write_metadata,
)
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.runtime.early_exit import (
    CONFIDENCE,
    FIT_SHARE,
    SMALL,
    Confidence,
    ExitCalibration,
    available_exit_depths,
    read_depths,
    risk_limits,
    stored_calibration,
)
from albertkit.runtime.embed import VectorConvergence, combine_windows, embed_options, pooled_reader, split_texts
from albertkit.runtime.predict import read_heads, task_features
from albertkit.runtime.runtime_model import RuntimeModel
from albertkit.tasks import TASKS
from albertkit.tasks.confidence import MIN_COSINE, UncertaintyEstimator, cosines, results_agree
from albertkit.tasks.task import Feature, Task

MIN_TEXTS = 40  # with fewer, nothing is guaranteed
RISKS = tuple(10 ** (step / 20) for step in range(-80, 0))  # probabilities of disagreement, the most conservative first
SAME_VECTOR = f"the cosine with the full depth's vector is at least {MIN_COSINE}"


def calibrate(model: Path | str, examples: Sequence[Any], exit_depths: Sequence[int] | None = None) -> ExitCalibration:
    """Calibrate early exit on held-out examples (texts, for a vector model), and write it into the model's folder.

    exit_depths: depths at which texts may exit. Default: the depths the model was calibrated or distilled for, or all.

    >>> from albertkit import calibrate
    >>> texts = open("texts.txt").read().splitlines()  # doctest: +SKIP
    >>> calibrate("my-model", texts, exit_depths=[3, 6, 9]).exit_depths  # doctest: +SKIP
    """
    folder = model_folder(model)
    if folder.parent == builtin.MODELS:
        raise AlbertkitError(
            f"{folder.name} is a built-in model, which cannot be changed. Copy {folder} and calibrate the copy."
        )
    if not (folder / METADATA_FILE).is_file():
        raise AlbertkitError(f"{folder} has no {METADATA_FILE}. Run  albertkit convert {folder} OUT  first.")
    stored = read_stored(folder)
    if stored.config.options.static:
        raise AlbertkitError(f"{folder} is a static model and has no layers. Pass another model.")
    full = depth_to_compare(stored.config, stored.metadata)
    runtime = RuntimeModel(stored, depth=full, source=folder)
    depths = sorted(set(exit_depths)) if exit_depths else [d for d in available_exit_depths(runtime) if d < full]
    if not depths:
        raise AlbertkitError(
            f"{folder} applies {full} layers and was trained for no smaller depth, so texts cannot exit early. "
            "Pass exit_depths to try others, or distil a model with --depths."
        )
    if not 1 <= depths[0] <= depths[-1] < full:
        raise AlbertkitError(f"exit_depths={exit_depths} is not available. Pass depths from 1 to {full - 1}.")
    measure = calibrate_task if runtime.metadata.task in TASKS else calibrate_vectors
    calibration = measure(runtime, examples, depths)
    if calibration is None:
        raise AlbertkitError(
            f"{len(examples)} texts are too few to calibrate. Pass {MIN_TEXTS} or more (about 400 for 99 %)."
        )
    metadata, files = read_metadata(folder)
    details = {**metadata.details, "early_exit": calibration.to_dict()}
    write_metadata(folder, dataclasses.replace(metadata, details=details), files)
    return calibration


def depth_to_compare(config: AlbertConfig, metadata: ArtifactMetadata) -> int:
    """The depth whose results early exits should give: that of an earlier calibration, that for which the heads of a
    task were trained, or all layers for vectors.
    """
    calibration = stored_calibration(metadata)
    if calibration is not None:
        return calibration.depth
    of_heads = metadata.depth if metadata.task in TASKS else None
    return of_heads or config.num_hidden_layers


def calibrate_task(model: RuntimeModel, examples: Sequence[Any], exit_depths: Sequence[int]) -> ExitCalibration | None:
    """For results of a task; None for too few examples."""
    features = task_features(model, examples, model.metadata.task)
    ids, segments = [f.ids for f in features], [f.segments for f in features]
    depths = [*exit_depths, model.depth]
    scores = read_depths(model, ids, segments, depths, lambda hidden, lengths: read_heads(model, hidden, lengths))
    return calibrate_scores(model.task, scores, features, examples)


def calibrate_vectors(model: RuntimeModel, texts: Sequence[str], exit_depths: Sequence[int]) -> ExitCalibration | None:
    """For sentence vectors; None for too few texts."""
    options = embed_options(model, normalize=False)
    windows = split_texts(model, texts, options)
    if len(texts) < MIN_TEXTS:
        return None
    depths, read = [*exit_depths, model.depth], pooled_reader(model, options.pooling)
    pooled = read_depths(model, windows.ids, None, depths, read)
    vectors = {depth: list(combine_windows(np.stack(rows), windows, options)) for depth, rows in pooled.items()}
    confidence = VectorConvergence([[index] for index in range(len(texts))], [1] * len(texts))
    agrees = [vectors_agree(vectors[depth], vectors[model.depth]) for depth in exit_depths]
    return fit_to_outputs(confidence, vectors, agrees, SAME_VECTOR)


def calibrate_scores(
    task: Task,
    scores: Mapping[int, Sequence[Any]],
    features: Sequence[Feature],
    examples: Sequence[Any],
    results: Mapping[int, Sequence[Any]] | None = None,
) -> ExitCalibration | None:
    """From the heads' scores of held-out examples at every exit depth, the full depth last; None if too few."""
    confidence = UncertaintyEstimator(task, features, examples)
    *exit_depths, full = sorted(scores)
    units = range(len(confidence.units))
    if len(units) < MIN_TEXTS or not exit_depths:
        return None
    if task.computes_vectors:
        agrees, criterion = [vectors_agree(scores[depth], scores[full]) for depth in exit_depths], SAME_VECTOR
    elif not task.has_independent_results:  # each turn of a dialogue is compared separately
        turns = {depth: confidence.predictions(units, rows) for depth, rows in scores.items()}
        agrees = [np.array([a == b for a, b in zip(turns[d], turns[full], strict=True)]) for d in exit_depths]
        criterion = "the prediction for the turn is the same"
    else:
        results_by_depth = results or {depth: task.results(rows, features, examples) for depth, rows in scores.items()}
        agrees = [results_agree(task, results_by_depth[depth], results_by_depth[full]) for depth in exit_depths]
        criterion = "the value is nearly the same" if confidence.compares_depths else "the result is the same"
    return fit_to_outputs(confidence, scores, agrees, criterion)


def vectors_agree(vectors: Sequence[np.ndarray], full: Sequence[np.ndarray]) -> np.ndarray:
    """(texts,) whether vectors have a high cosine with those of the full depth."""
    return cosines(np.stack(vectors), np.stack(full)) >= MIN_COSINE


# Statistics ------------------------------------------------------------------------------------------------------


def fit_to_outputs(
    confidence: Confidence, outputs: Mapping[int, Sequence[Any]], agrees: list[np.ndarray], criterion: str
) -> ExitCalibration | None:
    """From the outputs at every depth and, for each exit depth, whether each text agrees with the full depth."""
    *exit_depths, full = sorted(outputs)
    units, uncertainty = range(len(agrees[0])), list[np.ndarray]()
    before = None
    for depth in exit_depths:
        uncertainty.append(confidence.uncertainty(units, outputs[depth], before))
        before = outputs[depth]
    return fit_calibration(np.stack(uncertainty, 1), np.stack(agrees, 1), exit_depths, full, criterion)


def fit_calibration(
    uncertainty: np.ndarray, agrees: np.ndarray, exit_depths: Sequence[int], depth: int, criterion: str = ""
) -> ExitCalibration | None:
    """From uncertainty (texts, exit depths) and whether each agrees with the full depth; None for too few texts.

    A quarter of the texts fits, for each depth, the line log-odds(disagree) = a + b · log(uncertainty). Each r gives a
    rule: exit if this probability is at most r. The other texts test these rules, the most conservative first. The
    chosen rule is the last one before agreement falls below the share, with 95 % confidence (Clopper and Pearson's
    lower bound). So the share holds for similar texts, even if the lines fit badly ("Learn then Test", arXiv
    2110.01052).
    """
    count = len(uncertainty)
    if count < MIN_TEXTS or not exit_depths:
        return None
    order = np.random.default_rng(0).permutation(count)
    fitting, testing = order[: count // FIT_SHARE], order[count // FIT_SHARE :]
    lines = tuple(fit_line(uncertainty[fitting, i], agrees[fitting, i]) for i in range(len(exit_depths)))
    depths = np.array([*exit_depths, depth])
    always = np.ones((len(testing), 1), bool)
    tested, agrees_at = uncertainty[testing], np.concatenate([agrees[testing], always], 1)
    risks = []
    for risk in RISKS:
        exits = np.concatenate([tested <= np.array(risk_limits(lines, risk)), always], 1)
        exit_index = exits.argmax(1)
        agreeing = int(agrees_at[np.arange(len(testing)), exit_index].sum())
        risks.append((risk, lower_bound(agreeing, len(testing)), float(depths[exit_index].mean())))
    return ExitCalibration(depth, tuple(exit_depths), lines, tuple(risks), len(testing), criterion)


def fit_line(uncertainty: np.ndarray, agrees: np.ndarray) -> tuple[float, float] | None:
    """a and b of log-odds(disagree) = a + b · log(uncertainty), by Newton's method with a small ridge; None if an
    uncertainty is not finite.
    """
    if not np.isfinite(uncertainty).all():
        return None
    table = np.stack([np.ones(len(uncertainty)), np.log(uncertainty + SMALL)], 1)
    disagrees, coefficients, ridge = 1.0 - agrees, np.zeros(2), np.array([0.1, 0.1])
    for _ in range(50):
        probabilities = 1 / (1 + np.exp(-np.clip(table @ coefficients, -30, 30)))
        gradient = table.T @ (probabilities - disagrees) + ridge * coefficients
        curvature = (table * (probabilities * (1 - probabilities))[:, None]).T @ table + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        step *= min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-12))
        coefficients = coefficients - step
        if np.abs(step).max() < 1e-6:
            break
    return float(coefficients[0]), float(coefficients[1])


def lower_bound(successes: int, count: int) -> float:
    """Clopper and Pearson's lower bound of a share, given `successes` out of `count`.

    >>> round(lower_bound(299, 299), 4), round(lower_bound(290, 300), 4)
    (0.99, 0.9441)
    """
    if successes <= 0:
        return 0.0
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    misses = np.arange(count - successes + 1)
    combinations = logs[count] - logs[misses] - logs[count - misses]
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        terms = combinations + misses * math.log1p(-middle) + (count - misses) * math.log(middle)
        top = float(terms.max())
        tail = math.exp(top) * float(np.exp(terms - top).sum())  # probability of this many successes or more
        low, high = (middle, high) if tail < 1 - CONFIDENCE else (low, middle)
    return low
