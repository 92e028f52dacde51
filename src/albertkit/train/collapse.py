"""Collapse detection: did a fine-tuning run learn anything, and if not, has it collapsed or was it too short?

In: a finished `FinetuneTask` and its training loss. Out: a `Failure`, or None. `finetune_runs.py` restarts them.

A run has learnt nothing if it predicts the same for every held-out example although the labels differ, or if its loss
equals that of a constant prediction. The loss is computed at several temperatures, since an overconfident model may
have a high loss and still have learnt something. Such a run has collapsed only if its learning rate has been high for
long enough, or if its training loss rose again: every model predicts the same at first.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp

from albertkit.tasks.choose import ChooseTask
from albertkit.tasks.confidence import prediction_of
from albertkit.tasks.tag import TagTask
from albertkit.tasks.task import IGNORE_INDEX
from albertkit.train.finetune_report import correct_answer
from albertkit.train.finetune_task import FinetuneTask
from albertkit.train.train_settings import TrainSettings

MIN_STEPS = 300  # steps at the preset learning rate, before which a run is too short to have collapsed
RISEN = 1.3  # a loss above this share of its lowest has risen
MIN_RISE = 0.05  # a smaller rise is noise, if the predictions show that something was learnt
FALLEN = 0.9  # a loss below this share of that after the warm-up has fallen
MIN_EXAMPLES = 5  # held-out examples needed for any decision
MIN_VALUES = 20  # held-out examples needed for a regression
MIN_LOSS_EXAMPLES = 100  # held-out examples needed to compare losses
CHANCE = 0.995  # collapsed if the loss is at least this share of the loss at chance
EQUAL_CHOICES = 0.02  # collapsed if the mean gap between the most and the least likely choice is smaller
TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0)


@dataclass(frozen=True)
class Failure:
    """Why a run learnt nothing, and what may help."""

    kind: str  # collapsed, too short, or does not generalize
    reason: str
    remedy: str

    @property
    def is_collapse(self) -> bool:
        """Whether a restart with a lower learning rate may help."""
        return self.kind == "collapsed"


def find_failure(run: FinetuneTask, folder: Path, preset_rate: float) -> Failure | None:
    """The failure of a finished run, whose metrics are in `folder`; None if it learnt something.

    preset_rate: the preset learning rate of the model.
    """
    curve = LossCurve.read(folder / "metrics.jsonl")
    freeze = ", or --freeze" if can_freeze(run) else ""
    reason = no_learning_reason(run)
    if curve.has_risen and (reason is not None or curve.last - curve.lowest >= MIN_RISE):
        reason = reason or f"the training loss was {curve.lowest:.2f} and is {curve.last:.2f}"
        return Failure("collapsed", reason, f"Pass a lower --learning-rate{freeze}.")
    if reason is None:
        return None
    if steps_at_preset_rate(run.settings, curve.steps, preset_rate) < MIN_STEPS:
        higher = "a higher --learning-rate, " if run.settings.peak_learning_rate < preset_rate / 2 else ""
        reason += f" after {curve.steps:,} steps with a peak learning rate of {run.settings.peak_learning_rate:g}"
        return Failure("too short", reason, f"Pass {higher}more --epochs, or a smaller --batch-size{freeze}.")
    if constant_prediction_reason(run) is None and curve.has_fallen:
        return Failure("does not generalize", f"{reason} on held-out examples", f"Pass more examples{freeze}.")
    return Failure("collapsed", reason, f"Pass more examples, more --epochs, a lower --learning-rate{freeze}.")


def can_freeze(run: FinetuneTask) -> bool:
    """Whether `finetune --freeze` accepts these examples: single texts with one class each."""
    can_train = getattr(run.task, "can_train_on_frozen_vectors", False) and run.task.kind == "single"
    is_elastic = hasattr(run, "elastic")
    return can_train and not is_elastic and all(getattr(e, "pair", None) is None for e in run.examples)


@dataclass(frozen=True)
class LossCurve:
    """The training loss of a run: the mean of each tenth of its training steps."""

    means: tuple[float, ...]
    steps: int

    @classmethod
    def read(cls, path: Path) -> LossCurve:
        """The curve of a log of metrics."""
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
        losses = [(line["step"], line["loss"]) for line in lines if line["kind"] == "train" and "loss" in line]
        parts = np.array_split([loss for _, loss in losses], min(10, len(losses)) or 1)
        return cls(tuple(float(part.mean()) for part in parts if len(part)), losses[-1][0] if losses else 0)

    @property
    def lowest(self) -> float:
        """The lowest mean."""
        return min(self.means)

    @property
    def last(self) -> float:
        """The mean at the end."""
        return self.means[-1]

    @property
    def has_risen(self) -> bool:
        """Whether the loss rose again after it had fallen, or never fell."""
        return len(self.means) == 10 and self.last > RISEN * self.lowest and self.last > 0.5 * self.means[0]

    @property
    def has_fallen(self) -> bool:
        """Whether the loss fell after the warm-up, which is the first tenth."""
        return len(self.means) == 10 and self.last < FALLEN * self.means[1]


def steps_at_preset_rate(settings: TrainSettings, steps: int, preset_rate: float) -> float:
    """The number of steps at the preset learning rate with the same sum of learning rates as these first steps."""
    total = settings.steps or steps
    factors = sum(settings.learning_rate_factor(step / total) for step in range(steps))
    return factors * settings.peak_learning_rate / preset_rate


def no_learning_reason(run: FinetuneTask) -> str | None:
    """How the predictions show that nothing was learnt; None if they do not, or if there are too few to decide."""
    return constant_prediction_reason(run) or chance_level_reason(run)


def has_variety(run: FinetuneTask) -> bool:
    """Whether there are enough held-out examples, with different labels."""
    return len(run.dev) >= MIN_EXAMPLES and len({repr(correct_answer(example)) for example in run.dev}) > 1


def constant_prediction_reason(run: FinetuneTask) -> str | None:
    """What is the same in all predictions."""
    if not has_variety(run):
        return None
    if _predicts_the_same(run):
        return "the model predicts the same for every example"
    intents = {result.intent for result in run.results if hasattr(result, "intent")}
    if len(intents) == 1 < len({getattr(example, "intent", None) for example in run.dev}):
        return "the model predicts the same intent for every text"
    return None


def chance_level_reason(run: FinetuneTask) -> str | None:
    """Why the predictions are no better than those of a model that ignores the text."""
    if not has_variety(run):
        return None
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
    return len({repr(prediction_of(result, digits=4)) for result in run.results}) == 1


def _predicts_the_mean(run: FinetuneTask) -> bool:
    """Both sides are centred: values that are all too high, but in the right order, do not count as a collapse."""
    labelled = [i for i, feature in enumerate(run.dev_features) if feature.target is not None]
    if len(labelled) < MIN_VALUES:
        return False
    values = np.array([np.ravel(run.last_scores[i])[0] for i in labelled], np.float64)
    labels = np.array([run.dev_features[i].target for i in labelled], np.float64)
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
    labelled = [i for i, feature in enumerate(run.dev_features) if feature.target is not None]
    labels = np.array([run.dev_features[i].target for i in labelled], np.float64)
    scores = np.array([run.last_scores[i] for i in labelled], np.float64)
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
    labelled = [i for i, target in enumerate(targets) if target is not None]
    rows = np.concatenate([np.atleast_2d(scores[i]) for i in labelled]).astype(np.float64)
    labels = np.concatenate([np.ravel(targets[i]) for i in labelled])
    return rows[labels != IGNORE_INDEX], labels[labels != IGNORE_INDEX]
