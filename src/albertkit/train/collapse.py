"""Collapse detection: do the predictions for held-out examples show that a fine-tuning run learnt anything?

In: a `FinetuneTask` after its last evaluation. Out: the reason for the collapse, or None. `finetune.py` restarts a
collapsed run. A model has collapsed if it predicts the same for every example although the labels differ. It has also
collapsed if its loss equals that of a constant prediction. The loss is computed at several temperatures, since an
overconfident model may have a high loss and still have learnt something.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import logsumexp

from albertkit.tasks.choose import ChooseTask
from albertkit.tasks.tag import TagTask
from albertkit.tasks.task import IGNORE_INDEX
from albertkit.train.finetune_report import correct_answer, predicted_answer
from albertkit.train.finetune_task import FinetuneTask

MIN_EXAMPLES = 5  # held-out examples needed for any decision
MIN_VALUES = 20  # held-out examples needed for a regression
MIN_LOSS_EXAMPLES = 100  # held-out examples needed to compare losses
CHANCE = 0.995  # collapsed if the loss is at least this share of the loss at chance
EQUAL_CHOICES = 0.02  # collapsed if the mean gap between the most and the least likely choice is smaller
TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0)


def find_collapse(run: FinetuneTask) -> str | None:
    """The reason why the run collapsed; None if it did not, or if there are too few held-out examples to decide."""
    if len(run.dev) < MIN_EXAMPLES or len({repr(correct_answer(example)) for example in run.dev}) < 2:
        return None
    if _predicts_the_same(run):
        return "the model predicts the same for every example"
    intents = {result.intent for result in run.results if hasattr(result, "intent")}
    if len(intents) == 1 < len({getattr(example, "intent", None) for example in run.dev}):
        return "the model predicts the same intent for every text"
    if run.task.kind == "regression":
        return "values are no closer to the labels than their mean" if _predicts_the_mean(run) else None
    return "correct labels are no more likely than by chance" if is_at_chance(run) else None


def is_at_chance(run: FinetuneTask) -> bool:
    """Whether the loss on held-out examples equals that of predictions which ignore the text."""
    if len(run.dev) < MIN_LOSS_EXAMPLES:
        return False
    if run.task.kind == "multi":
        return _predicts_label_frequencies(run)
    has_classes = run.task.kind == "single" or isinstance(run.task, ChooseTask | TagTask)
    return has_classes and _predicts_class_frequencies(run)


def _predicts_the_same(run: FinetuneTask) -> bool:
    if isinstance(run.task, ChooseTask):  # among equal choices the argmax is random and looks like a prediction
        rows = [result.probabilities for result in run.results]
        return statistics.fmean(max(row) - min(row) for row in rows) < EQUAL_CHOICES
    return len({repr(predicted_answer(result, digits=4)) for result in run.results}) == 1


def _predicts_the_mean(run: FinetuneTask) -> bool:
    """Both sides are centred: values that are all too high, but in the right order, do not count as a collapse."""
    known = [i for i, feature in enumerate(run.dev_features) if feature.target is not None]
    if len(known) < MIN_VALUES:
        return False
    values = np.array([np.ravel(run.last_scores[i])[0] for i in known], np.float64)
    labels = np.array([run.dev_features[i].target for i in known], np.float64)
    values, labels = values - values.mean(), labels - labels.mean()
    error = min(((values / temperature - labels) ** 2).mean() for temperature in TEMPERATURES)
    return bool(labels.any() and error >= CHANCE * (labels**2).mean())


def _predicts_class_frequencies(run: FinetuneTask) -> bool:
    """Whether the loss equals that of the training class frequencies (with class weights), or of equal choices."""
    has_choices = isinstance(run.task, ChooseTask)
    rows, labels = _rows_with_labels(run.last_scores, [f.target for f in run.dev_features], has_choices)
    chance = np.log(np.isfinite(rows).sum(1))
    if not has_choices:
        targets = np.concatenate([np.ravel(f.target) for unit in run.features for f in unit])
        frequencies = np.bincount(targets[targets != IGNORE_INDEX], minlength=rows.shape[1]) + 1.0
        frequencies *= getattr(run.task, "class_weights", None) or 1.0
        chance = -np.log(frequencies / frequencies.sum())[labels]
    numbers = np.arange(len(rows))
    losses = [(logsumexp(rows / t, axis=1) - rows[numbers, labels] / t).mean() for t in TEMPERATURES]
    return bool(min(losses) >= CHANCE * chance.mean())


def _predicts_label_frequencies(run: FinetuneTask) -> bool:
    """The same for several labels per text. Scores are centred and added to the log-odds of the frequencies."""
    known = [i for i, feature in enumerate(run.dev_features) if feature.target is not None]
    labels = np.array([run.dev_features[i].target for i in known], np.float64)
    scores = np.array([run.last_scores[i] for i in known], np.float64)
    targets = np.array([f.target for unit in run.features for f in unit], np.float64)
    frequencies = (targets.sum(0) + 1) / (len(targets) + 2)
    log_odds, centred = np.log(frequencies / (1 - frequencies)), scores - scores.mean(0)

    def loss(table: np.ndarray) -> float:
        return float((np.logaddexp(0, table) - labels * table).mean())

    return min(loss(log_odds + centred / t) for t in TEMPERATURES) >= CHANCE * loss(log_odds + 0 * centred)


def _rows_with_labels(
    scores: Sequence[Any], targets: Sequence[Any], has_choices: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(n, classes) scores and (n,) labels of the labelled inputs; missing choices of a question score -inf."""
    if has_choices:  # the first choice of each question has the target
        firsts = [i for i, target in enumerate(targets) if target is not None]
        parts = [np.ravel(scores[a:b]) for a, b in pairwise([*firsts, len(targets)])]
        width = max(map(len, parts))
        rows = np.stack([np.pad(part, (0, width - len(part)), constant_values=-np.inf) for part in parts])
        return rows.astype(np.float64), np.array([targets[i] for i in firsts])
    known = [i for i, target in enumerate(targets) if target is not None]
    rows = np.concatenate([np.atleast_2d(scores[i]) for i in known]).astype(np.float64)
    labels = np.concatenate([np.ravel(targets[i]) for i in known])
    return rows[labels != IGNORE_INDEX], labels[labels != IGNORE_INDEX]
