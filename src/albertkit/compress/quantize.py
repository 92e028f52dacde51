"""A model in fewer bits, and how much of it is left: the verb `quantize`.

In: a model folder of any kind, or what `train/qat.py` trained for few bits. Out: a quantised artifact folder, and a `QuantizeResult` that compares its vectors
with the float model's on texts nobody calibrated with (or, without texts, on text made up for it, see `calibrate.py`). With a `QualityLimit`, nothing is written that loses
more than it may. No torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from albertkit.artifact import QUANTISED_FILE, Artifact, Stored, new_folder, read_stored, write_artifact
from albertkit.compress.evaluate import QualityLimit, QualityLoss, require_quality
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import open_model
from albertkit.quantized import BITS
from albertkit.runtime.activation_moments import moments, own_kind, own_text
from albertkit.runtime.batching import token_batches
from albertkit.runtime.engine import open_engine
from albertkit.runtime.graph import Weights


@dataclass(frozen=True)
class QuantizeResult:
    """What quantisation did."""

    bits: int
    bytes_before: int
    bytes: int
    cosine_mean: float
    """Agreement of mean-pooled vectors with the float model's."""
    cosine_least: float
    texts: int
    about: str = "texts"
    """What kind of texts these were: those given, or what was made up in their place (`calibrate.own_kind`)."""
    verdict: QualityLoss | None = None
    """What was lost on the examples of a check."""


@dataclass(frozen=True)
class TrainedWeights:
    """Float weights that were trained for few bits, and what their inputs are multiplied with."""

    artifact: Artifact
    smooths: dict[str, np.ndarray]


def open_float_model(source: Path | str) -> Artifact:
    """A model that is not quantised yet."""
    artifact = open_model(source)
    if artifact.meta.quantisation is not None:
        raise AlbertkitError(
            f"{source} is stored as {artifact.meta.quantisation} already; quantise the float model it came from, "
            f"or make floats of it first:  albertkit convert {source} FLOAT"
        )
    return artifact


def quantize(
    source: Path | str,
    target: Path | str,
    bits: int,
    texts: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    check: QualityLimit | None = None,
    trained: TrainedWeights | None = None,
) -> QuantizeResult:
    """Quantise a model and write it; a tenth of the texts is kept aside to compare with.

    check: what it is asked before it is written. trained: weights to store in the place of the source's.
    """
    if bits not in BITS:
        raise AlbertkitError(f"bits is {bits!r}; choose 8 or 4")
    artifact = open_float_model(source)
    if artifact.config.options.static and bits != 8:
        raise AlbertkitError(f"bits is {bits}; a static table is stored in 8 bits, so leave --bits away")
    if texts is not None and len(texts) < 10:
        raise AlbertkitError(f"{len(texts)} calibration texts were given; give at least 10, better some hundred")
    if texts is None:
        held = own_text(artifact, progress, texts=16, seed=1)  # not what it is calibrated on
    elif artifact.tokenizer is None:
        raise AlbertkitError("calibration texts need a tokenizer, and this model has none")
    else:
        limit = artifact.config.max_position_embeddings
        held = [e.ids for e in artifact.tokenizer.encode_batch(list(texts)[::10][:64], max_length=limit)]
    made = artifact if trained is None else trained.artifact
    seen = None
    if trained is None:
        seen = moments(artifact, None if texts is None else [text for i, text in enumerate(texts) if i % 10], progress)
    about = own_kind(artifact) if texts is None else "texts"
    known = about if texts is None else f"{len(texts)} texts"
    step = {"step": "quantize", "bits": bits, "calibration": known if trained is None else "as trained"}
    made = dataclasses.replace(made, meta=dataclasses.replace(made.meta, made=(*made.meta.made, step)))
    with new_folder(Path(target), overwrite) as scratch:
        progress("rounding")
        write_artifact(made, scratch, bits=bits, moments=seen, smooths=None if trained is None else trained.smooths)
        progress("comparing")
        cosine = vector_cosines(artifact, read_stored(scratch), held)
        verdict = None
        if check is not None:
            verdict = require_quality(source, scratch, check, remedy(bits, texts is not None, trained is not None))
        size = (scratch / QUANTISED_FILE).stat().st_size
    progress("")
    return QuantizeResult(
        bits=bits,
        bytes_before=sum(a.nbytes for a in artifact.weights.values()),
        bytes=size,
        cosine_mean=float(cosine.mean()),
        cosine_least=float(cosine.min()),
        texts=len(held),
        about=about,
        verdict=verdict,
    )


def remedy(bits: int, texts: bool, trained: bool) -> str:
    """What makes a quantised model lose less, the cheapest that was not done yet first."""
    if trained:
        return "Train longer, or on more examples (--train), or round it without training" + (
            ", or keep 8 bits (--bits 8)" if bits == 4 else ""
        )
    ways = [] if texts else ["round it on texts like those it will read (-f)"]
    if bits == 4:
        ways.append("keep 8 bits (--bits 8)")
    ways.append("train it while it is rounded (--train, needs torch)")
    said = " or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)
    return said[0].upper() + said[1:]


def vector_cosines(
    first: Artifact | Stored, second: Artifact | Stored, ids: list[list[int]], others: list[list[int]] | None = None
) -> np.ndarray:
    """Cosines of the mean-pooled vectors that two models give to token ids; `others` are the second one's, where its vocabulary is another."""
    given = ((first, ids), (second, ids if others is None else others))
    vectors = [mean_vectors(model.config, dict(model.weights), own) for model, own in given]
    cosine: np.ndarray = (vectors[0] * vectors[1]).sum(axis=1)
    return cosine


def mean_vectors(config: AlbertConfig, weights: Weights, ids: list[list[int]]) -> np.ndarray:
    """Mean-pooled unit vectors."""
    engine = open_engine(config, weights)
    out = np.empty((len(ids), config.hidden_size), np.float32)
    for batch in token_batches(ids):
        hidden = engine.run(batch, config.num_hidden_layers)
        for at, place in enumerate(batch.order):
            mean = hidden[at, : batch.lengths[at]].mean(axis=0)
            out[place] = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return out
