"""Weights in 8 or 4 bits: the public `quantize`, and the check of its quality loss. No torch.

In: any ALBERT checkpoint or artifact, or the `TrainedWeights` of `train/recover.py`. Out: a quantized artifact
folder, and a `QuantizeResult` that compares its vectors with those of the float model on held-out texts. With a
`QualityLimit`, nothing is written that loses more. `quantized.py` rounds and stores the weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.albert import Albert
from albertkit.artifact import QUANTIZED_FILE, Artifact, StoredModel, read_stored, require_tokenizer, write_artifact
from albertkit.compress.metric_loss import MetricLoss, masked_predictions, metric_loss, open_in_memory
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.file_io import new_folder
from albertkit.interop.convert import open_model
from albertkit.quantized import BITS
from albertkit.runtime.activation_moments import Progress, activation_moments, synthetic_kind, synthetic_tokens
from albertkit.runtime.agreement import Agreement, compared_texts
from albertkit.runtime.batching import token_batches
from albertkit.runtime.embed import list_texts
from albertkit.runtime.engine import open_engine
from albertkit.runtime.graph import Weights
from albertkit.runtime.predict import predict
from albertkit.tasks import TASKS
from albertkit.tasks.task import lower_is_better

TOLERANCES = {"cosine": 0.02, "masks": 0.1}
TASK_TOLERANCE = 0.01  # one point


@dataclass(frozen=True)
class QualityScore:
    """The quality of a model."""

    metric: str
    """The first metric of the task, `cosine` with the vectors of the full model, or `masks`: the share of masked tokens
    with the same prediction by both models."""
    value: float
    accuracy: float | None = None
    """For `masks`: the share of masked tokens that are predicted correctly."""


@dataclass(frozen=True)
class QualityLimit:
    """The maximum quality loss at which a compressed model is written."""

    examples: Sequence[Any]
    tolerance: float | None = None
    """The maximum loss. Default: 0.01 of a task's score, 0.02 of cosine, 0.1 of masks."""


@dataclass(frozen=True)
class QualityLoss:
    """The quality before and after compression."""

    metric: str
    before: float
    after: float
    loss: float
    tolerance: float
    accuracy: tuple[float, float] | None = None
    """For `masks`: the share of masked tokens predicted correctly, before and after."""

    def __str__(self) -> str:
        text = f"{self.metric} {self.before:.4f} before, {self.after:.4f} after: {self.loss:.4f} lost"
        if self.accuracy is None:
            return text
        return f"{text} (predicted as in the text: {self.accuracy[0]:.4f} before, {self.accuracy[1]:.4f} after)"


@dataclass(frozen=True)
class QuantizeResult:
    """The result of `quantize`: sizes, and how similar the vectors are.

    >>> from albertkit import quantize
    >>> result = quantize("my-model", "my-model-int8")  # doctest: +SKIP
    >>> result.bytes / result.bytes_before  # doctest: +SKIP
    """

    bits: int
    bytes_before: int
    bytes: int
    cosine_mean: float
    """Agreement of mean-pooled vectors with those of the float model."""
    cosine_least: float
    texts: int
    """The number of compared texts."""
    text_kind: str = "texts"
    """The kind of these texts: the `texts` argument, built-in sentences, or random tokens."""
    verdict: str = ""
    """`good`, `fair` or `poor`, by the cosines (`runtime/agreement.py`)."""
    metric_loss: MetricLoss | None = None
    """What is lost in the model's own metric; None if the model has no tokenizer, or reads no built-in sentences."""
    check: QualityLoss | None = None
    """The loss on the examples of a `QualityLimit`."""
    float_heads: tuple[str, ...] = ()
    """Custom heads, which stay in float."""


@dataclass(frozen=True)
class TrainedWeights:
    """Float weights from quantization-aware training (`train/recover.py`), to be rounded to the nearest value."""

    source: Path | str
    """The float model before training."""
    artifact: Artifact
    smooth: dict[str, np.ndarray]
    """The smoothing factors they were trained with."""
    metrics: dict[str, float] = field(default_factory=dict)


def check_bits(bits: int) -> None:
    """Raise unless weights can be stored in this number of bits."""
    if bits not in BITS:
        raise AlbertkitError(f"bits={bits!r} is not available: weights are stored in 8 or 4 bits. Pass one of these.")


def open_float_model(source: Path | str) -> Artifact:
    artifact = open_model(source)
    if artifact.metadata.quantization is not None:
        raise AlbertkitError(
            f"{source} is already stored as {artifact.metadata.quantization}. Quantize its float model, "
            f"or convert it to floats first:  albertkit convert {source} FLOAT"
        )
    return artifact


def quantize(
    source: Path | str | TrainedWeights,
    target: Path | str,
    bits: int = 8,
    texts: Sequence[str] | None = None,
    overwrite: bool = False,
    check: QualityLimit | None = None,
    progress: Progress = lambda _: None,
) -> QuantizeResult:
    """Write a model with weights in 8 or 4 bits, and compare it with the float model.

    texts: a few hundred texts similar to those in use; one in ten is held out to compare. Without texts, the model
    generates them.
    check: examples to measure the loss on before anything is written.

    >>> from albertkit import quantize
    >>> texts = open("texts.txt").read().splitlines()  # doctest: +SKIP
    >>> quantize("my-model", "my-model-int8", bits=8, texts=texts).cosine_mean  # doctest: +SKIP
    """
    trained = source if isinstance(source, TrainedWeights) else None
    folder = source.source if isinstance(source, TrainedWeights) else source
    check_bits(bits)
    artifact = open_float_model(folder)
    if artifact.config.options.static and bits != 8:
        raise AlbertkitError(f"bits={bits} is not available: a static model is stored in 8 bits. Omit bits.")
    fitted, held_out = split_texts(texts)
    compared_ids, text_kind = _compared_ids(artifact, held_out, progress)
    moments, calibration = None, "as trained"
    if trained is None:
        moments = activation_moments(artifact, fitted, progress)
        calibration = synthetic_kind(artifact) if texts is None else f"{len(texts)} texts"
    stored = artifact if trained is None else trained.artifact
    step = {"step": "quantize", "bits": bits, "calibration": calibration}
    stored = dataclasses.replace(
        stored, metadata=dataclasses.replace(stored.metadata, history=(*stored.metadata.history, step))
    )
    with new_folder(Path(target), overwrite) as scratch:
        progress("rounding")
        write_artifact(stored, scratch, bits=bits, moments=moments, smooths=None if trained is None else trained.smooth)
        progress("comparing")
        agreement = Agreement.of(vector_cosines(artifact, read_stored(scratch), compared_ids), text_kind)
        lost = None
        if artifact.tokenizer is not None:
            models = open_in_memory(artifact, "the full model"), open_in_memory(read_stored(scratch), "the result")
            lost = metric_loss(*models, held_out)
        loss = None
        if check is not None:
            loss = require_quality(folder, scratch, check, loss_remedy(bits, texts is not None, trained is not None))
        size = (scratch / QUANTIZED_FILE).stat().st_size
    progress("")
    return QuantizeResult(
        bits=bits,
        bytes_before=sum(a.nbytes for a in artifact.weights.values()),
        bytes=size,
        cosine_mean=agreement.mean,
        cosine_least=agreement.least,
        texts=agreement.texts,
        text_kind=text_kind,
        verdict=agreement.verdict,
        metric_loss=lost,
        check=loss,
        float_heads=tuple(artifact.head_graphs),
    )


def split_texts(texts: Sequence[str] | None) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    """Calibration texts, and one in ten held out to compare on."""
    if texts is None:
        return None, None
    if isinstance(texts, str):
        raise AlbertkitError(f"the calibration texts are one text, {texts!r:.40}. Pass a list of texts.")
    texts = list_texts(texts)
    if len(texts) < 10:
        raise AlbertkitError(f"{len(texts)} calibration texts are too few. Pass at least 10, better hundreds.")
    return [text for i, text in enumerate(texts) if i % 10], texts[::10]


def _compared_ids(artifact: Artifact, texts: Sequence[str] | None, progress: Progress) -> tuple[list[list[int]], str]:
    """Texts to compare vectors on, as token ids, and their kind: held-out ones, else built-in sentences."""
    if texts is not None:
        require_tokenizer(artifact)
    compared = compared_texts(artifact.tokenizer, texts)
    if compared is None or artifact.tokenizer is None:
        return synthetic_tokens(artifact, progress, texts=16, seed=1), f"texts of {synthetic_kind(artifact)}"
    limit = artifact.config.max_position_embeddings
    return [e.ids for e in artifact.tokenizer.encode_batch(compared.texts, max_length=limit)], compared.kind


def loss_remedy(bits: int, has_texts: bool, is_trained: bool) -> str:
    """Remedies for the loss of a quantized model, the cheapest first."""
    if is_trained:
        return "Train longer, or on more examples (--train), or quantize without training" + (
            ", or keep 8 bits (--bits 8)" if bits == 4 else ""
        )
    ways = [] if has_texts else ["calibrate on texts similar to those in use (-f)"]
    if bits == 4:
        ways.append("keep 8 bits (--bits 8)")
    ways.append("use quantization-aware training (--train, needs torch)")
    text = " or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)
    return text[0].upper() + text[1:]


def vector_cosines(
    first: Artifact | StoredModel,
    second: Artifact | StoredModel,
    ids: list[list[int]],
    second_ids: list[list[int]] | None = None,
) -> np.ndarray:
    """Cosines of the mean-pooled vectors of two models; `second_ids` are the same texts in another vocabulary."""
    vectors = mean_vectors(first.config, dict(first.weights), ids)
    others = mean_vectors(second.config, dict(second.weights), ids if second_ids is None else second_ids)
    return np.asarray((vectors * others).sum(axis=1))


def mean_vectors(config: AlbertConfig, weights: Weights, ids: list[list[int]], depth: int | None = None) -> np.ndarray:
    """Mean-pooled unit vectors, after `depth` layers or all."""
    engine = open_engine(config, weights)
    out = np.empty((len(ids), config.hidden_size), np.float32)
    for batch in token_batches(ids):
        hidden = engine.run(batch, depth or config.num_hidden_layers)
        for row, index in enumerate(batch.order):
            mean = hidden[row, : batch.lengths[row]].mean(axis=0)
            out[index] = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return out


# Quality loss ----------------------------------------------------------------------------------------------------


class QualityCheck:
    """Scores compressed folders against the full model."""

    def __init__(self, full: Path | str | None, examples: Sequence[Any]) -> None:
        if not len(examples):
            raise AlbertkitError("there are no examples to compare models on. Pass a file with some hundred.")
        self.full, self.examples = Albert(full), examples
        self.task = self.full.metadata.task if self.full.metadata.task in TASKS else None
        has_masks = self.full.can_fill_masks and self.full.tokenizer.mask_id is not None
        self.metric = "masks" if self.full.metadata.task == "pretrain" and has_masks else "cosine"

    def score(self, folder: Path | str, depth: int | None = None) -> QualityScore:
        """The score of one model; for a task, at a depth or the default depth."""
        albert = Albert(folder)
        if self.task is not None:
            name, value = next(iter(self._task_metrics(albert, depth).items()))
            return QualityScore(name, float(value))
        if self.metric == "masks":
            predicted, original = masked_predictions(albert, self.examples)
            agreement, accuracy = np.mean(predicted == self.reference[0]), np.mean(predicted == original)
            return QualityScore("masks", float(agreement), float(accuracy))
        texts = list(self.examples)
        vectors, full = (a.embed(texts, long_texts="truncate", normalize=True) for a in (albert, self.full))
        return QualityScore("cosine", float((vectors * full).sum(axis=1).mean()))

    def _task_metrics(self, albert: Albert, depth: int | None = None) -> dict[str, float]:
        results = predict(albert, self.examples, self.task or "", depth)
        metrics: dict[str, float] = albert.task.measure(results, self.examples)
        return metrics

    @cached_property
    def reference(self) -> tuple[np.ndarray, np.ndarray]:
        """The `masked_predictions` of the full model."""
        return masked_predictions(self.full, self.examples)

    def loss(self, folder: Path | str, tolerance: float | None = None) -> QualityLoss:
        after = self.score(folder)
        before = 1.0 if self.task is None else float(self._task_metrics(self.full)[after.metric])
        loss = before - after.value
        if lower_is_better(after.metric):
            loss = -loss
        allowed = TOLERANCES.get(after.metric, TASK_TOLERANCE) if tolerance is None else tolerance
        accuracy = None
        if after.accuracy is not None:
            accuracy = float(np.mean(self.reference[0] == self.reference[1])), after.accuracy
        return QualityLoss(after.metric, before, after.value, loss, allowed, accuracy)


def require_quality(full: Path | str | None, compressed: Path | str, limit: QualityLimit, remedy: str) -> QualityLoss:
    """The quality loss of a folder. Raises with numbers and remedy if it exceeds the limit."""
    quality = QualityCheck(full, limit.examples).loss(compressed, limit.tolerance)
    if quality.before == 0:
        raise AlbertkitError(
            f"{quality.metric} of the full model is 0 on these examples, so the loss cannot be measured. Nothing was "
            "written. Check that the labels are those of this model, and that the columns are correct "
            "(--text-column, --label-column)."
        )
    if not quality.loss <= quality.tolerance:  # also true for NaN
        raise AlbertkitError(
            f"{quality}, but the tolerance is {quality.tolerance:g}. Nothing was written. {remedy}, or raise the "
            f"tolerance (--tolerance {math.ceil(quality.loss * 100) / 100:g})."
        )
    return quality
