"""A wider model with the same function: copies of every hidden unit, head and feed-forward column (Net2Net, arXiv
1511.05641).

In: an `Artifact` of H, heads and F. Out: an artifact with `times` as many of each. Its hidden states repeat those of the
first model `times` times. So the following sums are divided by `times`, and LayerNorm's mean and variance do not change.
E and the width of a head do not change. Its speed is that of the wide shape, its vectors are those of the narrow model.
Not supported: noise to distinguish copies for further training, and models with options beyond canonical ALBERT.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from albertkit.artifact import Artifact
from albertkit.compress.quantize import mean_vectors
from albertkit.errors import AlbertkitError
from albertkit.weights import expected_shapes


def widen(artifact: Artifact, times: int) -> Artifact:
    """The same function in a model `times` as wide."""
    config = artifact.config
    if times < 1:
        raise AlbertkitError(f"times is {times}; a model becomes 1 or more times as wide")
    if config.options.active():
        raise AlbertkitError(
            f"this model uses {', '.join(config.options.active())}; only canonical ALBERT is widened, so give one without options"
        )
    wide = config.replace(
        hidden_size=config.hidden_size * times,
        num_attention_heads=config.num_attention_heads * times,
        intermediate_size=config.intermediate_size * times,
    )
    shapes = expected_shapes(wide, {name: array.shape for name, array in artifact.weights.items()})
    unknown = sorted(set(artifact.weights) - set(shapes))
    if unknown:
        raise AlbertkitError(f"tensor {unknown[0]!r} belongs to a head of another program; take it out before widening")
    weights = {name: repeated(array, shapes[name]) for name, array in artifact.weights.items()}
    history = (*artifact.metadata.history, {"step": "widen", "times": times})
    return Artifact(wide, weights, artifact.tokenizer, dataclasses.replace(artifact.metadata, history=history))


def repeated(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An array (outputs,) or (outputs, inputs) repeated to a shape; what reads inputs several times over takes a part
    of each.
    """
    times = [new // old for new, old in zip(shape, array.shape, strict=True)]
    return np.tile(array, times) / np.float32(times[-1] if array.ndim == 2 else 1)


def widen_moments(moments: dict[str, np.ndarray], times: int) -> dict[str, np.ndarray]:
    """What a narrow model's matrices see (`calibrate.moments`), for `quantize.pack` of the wide one.

    Copies are taken as strangers, so that each is rounded as in the narrow model. From their real moments, GPTQ would
    let the error of one be made good by the other: a wide model loses less than the narrow one that way, and less than
    one that was trained at that width.
    """
    return {name: np.kron(np.eye(times, dtype=moment.dtype), moment) for name, moment in moments.items()}


def cosines(narrow: Artifact, wide: Artifact, ids: list[list[int]]) -> np.ndarray:
    """(texts,) agreement of the wide model's mean-pooled vectors with those of the narrow one, repeated."""
    times = wide.config.hidden_size // narrow.config.hidden_size
    narrow_vectors, wide_vectors = (mean_vectors(model.config, dict(model.weights), ids) for model in (narrow, wide))
    result: np.ndarray = (np.tile(narrow_vectors, times) * wide_vectors).sum(axis=1) / np.sqrt(times)
    return result
