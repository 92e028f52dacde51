"""What compression loses, measured on examples: the score of a task, the cosine of vectors, or masked tokens. No torch.

In: the folder of the full model, and examples: labelled ones for a fine-tuned model, texts for any other. Out: a
`QualityScore` for each compressed folder, and `QualityLoss`. `quantize.py` and `train/recover.py` use it.
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
from albertkit.tasks.task import lower_is_better

TOLERANCES = {"cosine": 0.02, "masks": 0.1}
TASK_TOLERANCE = 0.01  # one point
MASKED_SHARE = 0.15


@dataclass(frozen=True)
class QualityScore:
    """The quality of a model."""

    metric: str
    """The first metric of its task; `cosine` with the vectors of the full model; `masks`, the share of masked tokens
    for which both models predict the same."""
    value: float
    accuracy: float | None = None
    """For `masks`: the share of masked tokens that are predicted as in the text."""


@dataclass(frozen=True)
class QualityLimit:
    """What a compressed model must keep to be written."""

    examples: Sequence[Any]
    tolerance: float | None = None
    """The most that may be lost. Default: 0.01 of a task's score, 0.02 of cosine, 0.1 of masks."""
    accept: bool = False
    """Whether it is written even if it loses more."""


@dataclass(frozen=True)
class QualityLoss:
    """What was lost."""

    metric: str
    before: float
    after: float
    loss: float
    tolerance: float
    accuracy: tuple[float, float] | None = None
    """For `masks`: the share of masked tokens predicted as in the text, before and after."""

    @property
    def is_tolerable(self) -> bool:
        """Whether no more was lost than allowed."""
        return self.loss <= self.tolerance

    def __str__(self) -> str:
        text = f"{self.metric} {self.before:.4f} before, {self.after:.4f} after: {self.loss:.4f} lost"
        if self.accuracy is None:
            return text
        return f"{text} (predicted as in the text: {self.accuracy[0]:.4f} before, {self.accuracy[1]:.4f} after)"


@dataclass(frozen=True)
class MaskedPredictions:
    """What a model predicts at masked positions, and the tokens of the text there, as ids."""

    predicted: np.ndarray
    original: np.ndarray

    @property
    def accuracy(self) -> float:
        """The share that is predicted as in the text."""
        return float(np.mean(self.predicted == self.original))


class QualityCheck:
    """Scores compressed folders against the full model."""

    def __init__(self, full: Path | str | None, examples: Sequence[Any]) -> None:
        if not len(examples):
            raise AlbertkitError("there are no examples to compare models on. Pass a file with some hundred.")
        self.full, self.examples = Albert(full), examples
        weights = self.full.engine.weights if hasattr(self.full.engine, "weights") else {}
        self.task = self.full.meta.task if self.full.meta.task in TASKS else None
        self.reference: MaskedPredictions | None = None
        has_masks = "heads.mlm.bias" in weights and self.full.tokenizer.mask_id is not None
        self.metric = "masks" if self.full.meta.task == "pretrain" and has_masks else "cosine"

    def score(self, folder: Path | str) -> QualityScore:
        """The score of one model."""
        albert = Albert(folder)
        if self.task is not None:
            name, value = next(iter(self._task_metrics(albert).items()))
            return QualityScore(name, float(value))
        if self.metric == "masks":
            self.reference = self.masked_predictions(self.full) if self.reference is None else self.reference
            found = self.masked_predictions(albert)
            return QualityScore("masks", float(np.mean(found.predicted == self.reference.predicted)), found.accuracy)
        texts = list(self.examples)
        vectors, full = (a.embed(texts, long_texts="truncate", normalize=True) for a in (albert, self.full))
        return QualityScore("cosine", float((vectors * full).sum(axis=1).mean()))

    def _task_metrics(self, albert: Albert) -> dict[str, float]:
        metrics: dict[str, float] = albert.task.measure(predict(albert, self.examples, self.task or ""), self.examples)
        return metrics

    def masked_predictions(self, albert: Albert) -> MaskedPredictions:
        """The likeliest token at each masked position; the same positions for all models of one vocabulary."""
        generator, predicted, original = np.random.default_rng(0), [], []
        limit = min(128, albert.config.max_position_embeddings)
        ids = [e.ids for e in albert.tokenizer.encode_batch(list(self.examples), max_length=limit)]
        for batch in token_batches(ids):
            inside = np.arange(batch.ids.shape[1])[None] < batch.lengths[:, None]
            inside[:, 0] = inside[np.arange(len(inside)), batch.lengths - 1] = False
            chosen = (generator.random(batch.ids.shape) < MASKED_SHARE) & inside
            if not chosen.any():
                chosen[0, min(1, chosen.shape[1] - 1)] = True
            masked = dataclasses.replace(batch, ids=np.where(chosen, albert.tokenizer.mask_id or 0, batch.ids))
            predicted.append(albert.engine.mlm_logits(albert.engine.run(masked, albert.depth)[chosen]).argmax(axis=1))
            original.append(batch.ids[chosen])
        return MaskedPredictions(np.concatenate(predicted), np.concatenate(original))

    def loss(self, folder: Path | str, tolerance: float | None = None) -> QualityLoss:
        """What the model in a folder has lost."""
        after = self.score(folder)
        before = 1.0 if self.task is None else float(self._task_metrics(self.full)[after.metric])
        lost = before - after.value
        if lower_is_better(after.metric):
            lost = -lost
        allowed = TOLERANCES.get(after.metric, TASK_TOLERANCE) if tolerance is None else tolerance
        accuracy = None
        if after.accuracy is not None and self.reference is not None:
            accuracy = self.reference.accuracy, after.accuracy
        return QualityLoss(after.metric, before, after.value, lost, allowed, accuracy)


def require_quality(full: Path | str | None, compressed: Path | str, limit: QualityLimit, remedy: str) -> QualityLoss:
    """What a folder has lost; an error with the numbers and the remedy if that is more than the limit allows."""
    found = QualityCheck(full, limit.examples).loss(compressed, limit.tolerance)
    if found.before == 0 and not limit.accept:
        raise AlbertkitError(
            f"{found.metric} of the full model is 0 on these examples, so a loss cannot be measured; nothing was "
            "written. Check that their labels belong to this model, and that the right columns are read "
            "(--text-column, --label-column)."
        )
    if not found.is_tolerable and not limit.accept:
        more = f"allow as much (--tolerance {math.ceil(found.loss * 100) / 100:g}), or " if found.loss <= 1 else ""
        raise AlbertkitError(
            f"{found}, but the tolerance is {found.tolerance:g}; nothing was written. {remedy}; or {more}write it "
            "anyway (--accept)."
        )
    return found
