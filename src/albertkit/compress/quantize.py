"""Weights in 8 or 4 bits: the public `quantize`.

In: any ALBERT checkpoint or artifact, or the `TrainedWeights` of `train/qat.py`. Out: a quantized artifact folder,
and a `QuantizeResult` that compares its vectors with those of the float model on texts that were not used for
calibration. With a `QualityLimit` (`evaluate.py`), nothing is written that loses more. `quantized.py` rounds and
stores the weights. No torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from albertkit.artifact import QUANTISED_FILE, Artifact, Stored, read_stored, write_artifact
from albertkit.compress.evaluate import QualityLimit, QualityLoss, require_quality
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.file_io import new_folder
from albertkit.interop.convert import open_model
from albertkit.quantized import BITS
from albertkit.runtime.activation_moments import Progress, moments, own_kind, own_text
from albertkit.runtime.batching import token_batches
from albertkit.runtime.engine import open_engine
from albertkit.runtime.graph import Weights


@dataclass(frozen=True)
class QuantizeResult:
    """What quantization did."""

    bits: int
    bytes_before: int
    bytes: int
    cosine_mean: float
    """Agreement of mean-pooled vectors with those of the float model."""
    cosine_least: float
    texts: int
    """How many texts were compared."""
    text_kind: str = "texts"
    """What these texts were: `texts` that were passed, or what replaced them (`activation_moments.own_kind`)."""
    check: QualityLoss | None = None
    """What was lost on the examples of a `QualityLimit`."""


@dataclass(frozen=True)
class TrainedWeights:
    """Float weights that were trained for few bits (`train/qat.py`), to be rounded to the nearest value."""

    source: Path | str
    """The float model before training."""
    artifact: Artifact
    smooth: dict[str, np.ndarray]
    """The smoothing factors they were trained with."""
    metrics: dict[str, float] = field(default_factory=dict)


def open_float_model(source: Path | str) -> Artifact:
    """A model that is not quantized yet."""
    artifact = open_model(source)
    if artifact.meta.quantisation is not None:
        raise AlbertkitError(
            f"{source} is already stored as {artifact.meta.quantisation}. Quantize the float model it came from, or "
            f"convert it to floats first:  albertkit convert {source} FLOAT"
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
    """Write a model with its weights in 8 or 4 bits, and compare the two.

        quantize("my-model", "my-model-int8", bits=8, texts=lines).cosine_mean

    texts: some hundred like those the model will read; one in ten is only compared. Without them, the model writes
    its own.
    check: examples to measure the loss on before anything is written.
    """
    trained = source if isinstance(source, TrainedWeights) else None
    folder = source.source if isinstance(source, TrainedWeights) else source
    if bits not in BITS:
        raise AlbertkitError(f"bits={bits!r} is not available: weights are stored in 8 or 4 bits. Pass one of these.")
    artifact = open_float_model(folder)
    if artifact.config.options.static and bits != 8:
        raise AlbertkitError(f"bits={bits} is not available: a static table is stored in 8 bits. Omit bits.")
    if texts is not None and len(texts) < 10:
        raise AlbertkitError(f"{len(texts)} calibration texts are too few. Pass at least 10, better hundreds.")
    held = _held_out_ids(artifact, texts, progress)
    text_kind = own_kind(artifact) if texts is None else "texts"
    seen = None
    if trained is None:
        seen = moments(artifact, None if texts is None else [text for i, text in enumerate(texts) if i % 10], progress)
        calibration = text_kind if texts is None else f"{len(texts)} texts"
    else:
        calibration = "as trained"
    stored = artifact if trained is None else trained.artifact
    step = {"step": "quantize", "bits": bits, "calibration": calibration}
    stored = dataclasses.replace(stored, meta=dataclasses.replace(stored.meta, made=(*stored.meta.made, step)))
    with new_folder(Path(target), overwrite) as scratch:
        progress("rounding")
        write_artifact(stored, scratch, bits=bits, moments=seen, smooths=None if trained is None else trained.smooth)
        progress("comparing")
        cosines = vector_cosines(artifact, read_stored(scratch), held)
        loss = None
        if check is not None:
            loss = require_quality(folder, scratch, check, _remedy(bits, texts is not None, trained is not None))
        size = (scratch / QUANTISED_FILE).stat().st_size
    progress("")
    return QuantizeResult(
        bits=bits,
        bytes_before=sum(a.nbytes for a in artifact.weights.values()),
        bytes=size,
        cosine_mean=float(cosines.mean()),
        cosine_least=float(cosines.min()),
        texts=len(held),
        text_kind=text_kind,
        check=loss,
    )


def _held_out_ids(artifact: Artifact, texts: Sequence[str] | None, progress: Progress) -> list[list[int]]:
    """Texts to compare vectors on, as token ids; other ones than those that are calibrated on."""
    if texts is None:
        return own_text(artifact, progress, texts=16, seed=1)
    if artifact.tokenizer is None:
        raise AlbertkitError("this model has no tokenizer, so it cannot read calibration texts. Convert it with one.")
    limit = artifact.config.max_position_embeddings
    return [e.ids for e in artifact.tokenizer.encode_batch(list(texts)[::10][:64], max_length=limit)]


def _remedy(bits: int, has_texts: bool, is_trained: bool) -> str:
    """What makes a quantized model lose less, the cheapest first."""
    if is_trained:
        return "Train longer, or on more examples (--train), or quantize without training" + (
            ", or keep 8 bits (--bits 8)" if bits == 4 else ""
        )
    ways = [] if has_texts else ["calibrate on texts like those it will read (-f)"]
    if bits == 4:
        ways.append("keep 8 bits (--bits 8)")
    ways.append("train it for few bits (--train, needs torch)")
    text = " or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)
    return text[0].upper() + text[1:]


def vector_cosines(
    first: Artifact | Stored,
    second: Artifact | Stored,
    ids: list[list[int]],
    second_ids: list[list[int]] | None = None,
) -> np.ndarray:
    """Cosines of the mean-pooled vectors of two models; `second_ids` are the same texts in another vocabulary."""
    vectors = mean_vectors(first.config, dict(first.weights), ids)
    others = mean_vectors(second.config, dict(second.weights), ids if second_ids is None else second_ids)
    cosines: np.ndarray = (vectors * others).sum(axis=1)
    return cosines


def mean_vectors(config: AlbertConfig, weights: Weights, ids: list[list[int]]) -> np.ndarray:
    """Mean-pooled vectors of length 1."""
    engine = open_engine(config, weights)
    out = np.empty((len(ids), config.hidden_size), np.float32)
    for batch in token_batches(ids):
        hidden = engine.run(batch, config.num_hidden_layers)
        for at, place in enumerate(batch.order):
            mean = hidden[at, : batch.lengths[at]].mean(axis=0)
            out[place] = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return out
