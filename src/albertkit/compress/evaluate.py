"""What compressing a model costs, on examples that say so: the score of its task, the likeness of its vectors, or of its guesses. No torch.

In: the folder of the model as it was, and examples: labelled ones for a fine-tuned model, texts for any other. Out: a `QualityScore` for each folder asked about,
and `QualityLoss`, which refuses what loses more than a tolerance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError
from albertkit.runtime.batching import token_batches
from albertkit.runtime.predict import predict
from albertkit.tasks import TASKS

TOLERANCES = {"cosine": 0.02, "masks": 0.1}
TOLERANCE = 0.01  # of a task's score: one point
MASKED = 0.15


@dataclass(frozen=True)
class QualityScore:
    """A model's quality."""

    metric: str
    """The first metric of its task; `cosine` with the whole model's vectors; `masks`, the share of masked words guessed as the whole model does."""
    value: float
    right: float | None = None
    """Of `masks`: the share of masked words that were guessed as they stood in the text."""


@dataclass(frozen=True)
class QualityLimit:
    """What a compressed model is asked before it is written."""

    examples: Sequence[Any]
    tolerance: float | None = None
    """The most that may be lost; by default 0.01 of a task's score, 0.02 of cosine, 0.1 of masks."""
    accept: bool = False
    """Whether it is written all the same."""


@dataclass(frozen=True)
class QualityLoss:
    """What was lost."""

    metric: str
    before: float
    after: float
    loss: float
    tolerance: float
    right: tuple[float, float] | None = None
    """Of `masks`: the share of masked words guessed as they stood in the text, before and after."""

    @property
    def good(self) -> bool:
        """Whether no more was lost than may be."""
        return self.loss <= self.tolerance

    def __str__(self) -> str:
        said = f"{self.metric} {self.before:.4f} before, {self.after:.4f} after: {self.loss:.4f} lost"
        if self.right is None:
            return said
        return f"{said} (guessed as in the text: {self.right[0]:.4f} before, {self.right[1]:.4f} after)"


@dataclass(frozen=True)
class MaskedPredictions:
    """What a model finds likeliest at masked places, and what stood there, as ids."""

    words: np.ndarray
    stood: np.ndarray

    @property
    def right(self) -> float:
        """The share that was guessed as it stood."""
        return float(np.mean(self.words == self.stood))


class QualityCheck:
    """Scores folders against the model they were made from."""

    def __init__(self, whole: Path | str | None, examples: Sequence[Any]) -> None:
        if not len(examples):
            raise AlbertkitError("there are no examples to judge by; give a file with some hundred")
        self.whole, self.examples = Albert(whole), examples
        heads = self.whole.engine.weights if hasattr(self.whole.engine, "weights") else {}
        self.task = self.whole.meta.task if self.whole.meta.task in TASKS else None
        self.metric = "cosine"
        self.known: MaskedPredictions | None = None
        if (
            self.task is None
            and self.whole.meta.task == "pretrain"
            and "heads.mlm.bias" in heads
            and self.whole.tokenizer.mask_id is not None
        ):
            self.metric = "masks"

    def __call__(self, folder: Path | str) -> QualityScore:
        """One model's score."""
        albert = Albert(folder)
        if self.task is not None:
            metrics = albert.task.measure(predict(albert, self.examples, self.task), self.examples)
            name, value = next(iter(metrics.items()))
            return QualityScore(name, float(value))
        if self.metric == "masks":
            self.known = self.guesses(self.whole) if self.known is None else self.known
            found = self.guesses(albert)
            return QualityScore("masks", float(np.mean(found.words == self.known.words)), found.right)
        texts = list(self.examples)
        mine, theirs = (a.embed(texts, long_texts="truncate", normalize=True) for a in (albert, self.whole))
        return QualityScore("cosine", float((mine * theirs).sum(axis=1).mean()))

    def guesses(self, albert: Albert) -> MaskedPredictions:
        """The likeliest word at each masked place; the same places for every model of the same vocabulary."""
        generator, found, stood = np.random.default_rng(0), [], []
        limit = min(128, albert.config.max_position_embeddings)
        ids = [e.ids for e in albert.tokenizer.encode_batch(list(self.examples), max_length=limit)]
        for batch in token_batches(ids):
            inside = np.arange(batch.ids.shape[1])[None] < batch.lengths[:, None]
            inside[:, 0] = inside[np.arange(len(inside)), batch.lengths - 1] = False
            chosen = (generator.random(batch.ids.shape) < MASKED) & inside
            if not chosen.any():
                chosen[0, min(1, chosen.shape[1] - 1)] = True
            asked = dataclasses.replace(batch, ids=np.where(chosen, albert.tokenizer.mask_id or 0, batch.ids))
            found.append(albert.engine.words(albert.engine.run(asked, albert.depth)[chosen]).argmax(axis=1))
            stood.append(batch.ids[chosen])
        return MaskedPredictions(np.concatenate(found), np.concatenate(stood))

    def verdict(self, folder: Path | str, tolerance: float | None = None) -> QualityLoss:
        """What a folder has lost."""
        after = self(folder)
        before = self.measure_whole(after.metric)
        lost = before - after.value
        if after.metric == "rmse" or "loss" in after.metric:  # where less is better
            lost = -lost
        allowed = TOLERANCES.get(after.metric, TOLERANCE) if tolerance is None else tolerance
        right = None if after.right is None or self.known is None else (self.known.right, after.right)
        return QualityLoss(after.metric, before, after.value, lost, allowed, right)

    def measure_whole(self, metric: str) -> float:
        """The whole model's own score."""
        if self.task is None:
            return 1.0
        found = self.whole.task.measure(predict(self.whole, self.examples, self.task), self.examples)
        return float(found[metric])


def require_quality(whole: Path | str | None, made: Path | str, check: QualityLimit, remedy: str) -> QualityLoss:
    """The verdict on a folder; an error, with the numbers and the remedy, if it loses more than it may and nobody accepts that."""
    found = QualityCheck(whole, check.examples).verdict(made, check.tolerance)
    if found.before == 0 and not check.accept:
        raise AlbertkitError(
            f"{found.metric} of the model as it is is 0 on these examples, so no loss could be seen; nothing was written. Do their labels belong to "
            "this model, and are the right columns read (--text-column, --label-column)?"
        )
    if not found.good and not check.accept:
        allow = f"allow as much (--tolerance {math.ceil(found.loss * 100) / 100:g}), or " if found.loss <= 1 else ""
        raise AlbertkitError(
            f"{found}, and the tolerance is {found.tolerance:g}; nothing was written. {remedy}; or {allow}accept it whatever it loses (--accept)"
        )
    return found
