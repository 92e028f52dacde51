"""Models with fewer heads, feed-forward columns, layers or tokens: the public `prune`. No torch.

In: any ALBERT checkpoint or artifact, and what to keep. Out: an artifact with smaller matrices, and a `PruneResult`.
The importance of a head or column is the variance of its contribution over all tokens and all uses of the shared
layer. The following matrix is fitted again by least squares to the output of the full layer (Optimal Brain Surgeon,
Hassibi & Stork 1993). `train/recover.py` recovers more by training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from albertkit.artifact import Artifact, write_artifact
from albertkit.compress.cost import Amount, operations, pruned_config
from albertkit.compress.metric_loss import MetricLoss, metric_loss, open_in_memory
from albertkit.compress.prune_vocabulary import prune_vocabulary
from albertkit.compress.quantize import split_texts, vector_cosines
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, check_fields
from albertkit.interop.convert import open_model
from albertkit.runtime.activation_moments import (
    MATRIX_INPUTS,
    Progress,
    calibration_tokens,
    record_inputs,
    synthetic_kind,
    synthetic_tokens,
)
from albertkit.runtime.runtime_model import check_trained_depth

RIDGE = 0.001  # regularization of the fit, as a share of the mean second moment


@dataclass(frozen=True)
class PruneSettings:
    """What `prune` keeps: a count, or a share below 1. None keeps all.

    >>> from albertkit import PruneSettings
    >>> PruneSettings(ffn=0.5, heads=4).heads
    4
    """

    heads: Amount | None = None
    """A number, or a share as a float."""
    ffn: Amount | None = None
    layers: int | None = None
    """The first layers."""
    vocabulary: Sequence[str] | None = None
    """Texts whose tokens are kept."""
    fit: bool = True
    """Whether the remaining weights are fitted again to the output of the full layer."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class PruneResult:
    """The result of `prune`: the new shape, and how similar the vectors are.

    >>> from albertkit import PruneSettings, prune
    >>> result = prune("my-model", "half", PruneSettings(ffn=0.5), texts=texts)  # doctest: +SKIP
    >>> result.operations / result.operations_before  # doctest: +SKIP
    """

    parameters_before: int
    parameters: int
    operations_before: float
    """Multiplications and additions per token in a text of 128."""
    operations: float
    heads: int
    ffn: int
    layers: int
    vocabulary: int
    cosine_mean: float
    """Agreement of mean-pooled vectors with those of the full model."""
    cosine_least: float
    texts: int
    """The number of compared texts."""
    text_kind: str = "texts"
    """The kind of these texts: the `texts` argument, or synthetic ones (`activation_moments.synthetic_kind`)."""
    metric_loss: MetricLoss | None = None
    """What is lost in the model's own metric; None if the model has no tokenizer, or reads no built-in sentences."""


def prune(
    source: Path | str,
    target: Path | str,
    settings: PruneSettings,
    texts: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Progress = lambda _: None,
    recovery: Callable[[Artifact, Artifact], Artifact] | None = None,
) -> PruneResult:
    """Prune a model and write it.

    texts: a few hundred texts similar to those in use; one in ten is held out to compare. Without texts, the model
    generates them.
    recovery: trains the pruned model; called with the full and the pruned model (`train/recover.py`).

    >>> from albertkit import PruneSettings, prune
    >>> texts = open("texts.txt").read().splitlines()  # doctest: +SKIP
    >>> prune("my-model", "smaller", PruneSettings(ffn=0.5, heads=8), texts=texts).cosine_mean  # doctest: +SKIP
    """
    before = open_model(source)
    _check_request(before, settings, source)
    shallow = truncate_layers(before, settings.layers)
    if settings.layers is not None and recovery is None and before.metadata.task == "embed":
        check_trained_depth(before.config, before.metadata, settings.layers, ", or train the pruned model (--train)")
    fitted, held_out = split_texts(texts)
    sample, text_kind = _comparison_texts(before, settings, held_out)
    if sample is None:
        compared_ids = synthetic_tokens(before, progress, texts=16, seed=1)
    else:
        compared_ids = calibration_tokens(before, sample)
    ids: list[list[int]] = []
    if settings.heads is not None or settings.ffn is not None:
        ids = calibration_tokens(before, fitted, progress)
    after = _with_history(before, prune_heads_and_ffn(shallow, settings, ids, progress))
    if recovery is not None:
        progress("")
        after = recovery(before, after)
    if settings.vocabulary is not None:  # last, so that both models are compared on the same tokens
        progress("pruning the vocabulary")
        after = _with_history(after, prune_vocabulary(after, settings.vocabulary))
    progress("comparing")
    cosines = vector_cosines(before, after, compared_ids, None if sample is None else calibration_tokens(after, sample))
    loss = None
    if before.tokenizer is not None:
        loss = metric_loss(
            open_in_memory(before, "the full model"), open_in_memory(after, "the result"), sample, text_kind
        )
    write_artifact(after, target, overwrite)
    progress("")
    old, new = before.config, after.config
    return PruneResult(
        parameters_before=sum(array.size for array in before.weights.values()),
        parameters=sum(array.size for array in after.weights.values()),
        operations_before=operations(old, min(128, old.max_position_embeddings))["total"],
        operations=operations(new, min(128, new.max_position_embeddings))["total"],
        heads=new.num_attention_heads,
        ffn=new.intermediate_size,
        layers=new.num_hidden_layers,
        vocabulary=new.vocab_size,
        cosine_mean=float(cosines.mean()),
        cosine_least=float(cosines.min()),
        texts=len(cosines),
        text_kind=text_kind,
        metric_loss=loss,
    )


def _comparison_texts(
    artifact: Artifact, settings: PruneSettings, texts: Sequence[str] | None
) -> tuple[Sequence[str] | None, str]:
    """Texts to compare on, and their kind; None for generated token ids, which need the full vocabulary."""
    if texts is not None:
        return texts, "texts"
    lines = [line for line in settings.vocabulary or () if line.strip()]
    if lines and artifact.tokenizer is not None:
        return lines[:: -(-len(lines) // 64)], "lines of the vocabulary"
    return None, synthetic_kind(artifact)


def _check_request(artifact: Artifact, settings: PruneSettings, source: Path | str) -> None:
    if artifact.metadata.quantization is not None:
        raise AlbertkitError(
            f"{source} is stored as {artifact.metadata.quantization}: quantized weights cannot be pruned. Prune "
            "its float model, then quantize. If you do not have it, convert this one first:  "
            f"albertkit convert {source} FLOAT"
        )
    if settings == PruneSettings(fit=settings.fit):
        raise AlbertkitError("there is nothing to prune. Pass heads, ffn, layers or vocabulary.")
    if artifact.config.options.static and (settings.heads or settings.ffn or settings.layers):
        raise AlbertkitError(
            "a static model has no layers: only its vocabulary can be pruned. Omit heads, ffn and layers."
        )
    if settings.ffn is not None and artifact.config.options.outer_intermediate_size:
        raise AlbertkitError(
            f"ffn={settings.ffn} is not available: this model has the option outer_intermediate_size, so its "
            "feed-forward parts have two sizes. Prune heads, layers or vocabulary."
        )
    for option, shared in (("shared_heads", "one key and value matrix"), ("attention_bias", "a table of biases")):
        if settings.heads is not None and getattr(artifact.config.options, option):
            raise AlbertkitError(
                f"heads={settings.heads} is not available: this model has the option {option}, so its heads share "
                f"{shared}. Prune ffn, layers or vocabulary."
            )


def _with_history(before: Artifact, after: Artifact) -> Artifact:
    """The result with this step in its history. Scores and early-exit thresholds of the full model are removed."""
    if before.config == after.config:
        return after
    step: dict[str, object] = {"step": "prune"}
    for part in ("num_attention_heads", "intermediate_size", "num_hidden_layers", "vocab_size"):
        if getattr(before.config, part) != getattr(after.config, part):
            step[part] = f"{getattr(before.config, part)} → {getattr(after.config, part)}"
    if before.metadata.metrics:
        step["scores before"] = before.metadata.metrics
    details = {name: value for name, value in after.metadata.details.items() if name != "early_exit"}
    meta = dataclasses.replace(after.metadata, metrics={}, details=details, history=(*after.metadata.history, step))
    return dataclasses.replace(after, metadata=meta)


# Layers ----------------------------------------------------------------------------------------------------------


def truncate_layers(artifact: Artifact, layers: int | None) -> Artifact:
    """The model with its first `layers` layers."""
    config = artifact.config
    if layers is None or layers == config.num_hidden_layers:
        return artifact
    if config.options.ffn_groups:
        raise AlbertkitError(
            f"layers={layers} is not available: this model has the option ffn_groups, and its feed-forward parts are "
            "those of all its layers. Prune heads, ffn or vocabulary."
        )
    possible = [n for n in range(1, config.num_hidden_layers + 1) if _kept_groups(config, n)]
    if layers not in possible:
        shown = f"1 to {possible[-1]}" if len(possible) == possible[-1] else ", ".join(map(str, possible))
        raise AlbertkitError(f"layers={layers} is not available: this model can be cut to {shown}. Pass one of these.")
    kept = _kept_groups(config, layers)
    weights = {}
    for name, array in artifact.weights.items():
        if not name.startswith("encoder.groups."):
            weights[name] = array
            continue
        group, rest = name.removeprefix("encoder.groups.").split(".", 1)
        if int(group) in kept:
            weights[f"encoder.groups.{kept[int(group)]}.{rest}"] = array
    groups = len(kept) - config.layer_groups + config.num_hidden_groups
    meta = artifact.metadata
    if meta.depth is not None and meta.depth >= layers:
        meta = dataclasses.replace(meta, depth=None)
    smaller = config.replace(num_hidden_layers=layers, num_hidden_groups=groups)
    return dataclasses.replace(artifact, config=smaller, weights=weights, metadata=meta)


def _kept_groups(config: AlbertConfig, layers: int) -> dict[int, int]:
    """The groups that `layers` layers use, and their numbers in a model of so many layers; empty if there is none."""
    used = sorted({config.group_of(i, layers) for i in range(layers)})
    outer = config.layer_groups - config.num_hidden_groups
    if len(used) <= outer:
        return {}
    numbers = {group: number for number, group in enumerate(used)}
    smaller = config.replace(num_hidden_layers=layers, num_hidden_groups=len(used) - outer)
    is_same = all(smaller.group_of(i) == numbers[config.group_of(i, layers)] for i in range(layers))
    return numbers if is_same else {}


# Heads and columns -----------------------------------------------------------------------------------------------


def prune_heads_and_ffn(
    artifact: Artifact, settings: PruneSettings, ids: list[list[int]], progress: Progress = lambda _: None
) -> Artifact:
    """The model with fewer heads and feed-forward columns, selected on texts (token ids)."""
    config, smaller = artifact.config, pruned_config(artifact.config, settings.heads, settings.ffn)
    if smaller == config:
        return artifact
    heads, columns = smaller.num_attention_heads, smaller.intermediate_size
    weights = dict(artifact.weights)
    outputs = ("output_down", "output") if config.options.output_rank else ("output",)
    ups = ("up", "gate") if config.options.gated_ffn else ("up",)
    for name, moments in input_moments(artifact, ids, progress).items():
        part = name.rpartition(".")[0]  # the attention or feed-forward part of a layer
        progress(f"pruning {part}")
        if name.endswith(".attention.output"):
            before, after = [f"{part}.{x}" for x in ("query", "key", "value")], [f"{part}.{x}" for x in outputs]
            _keep_blocks(weights, before, after, moments, config.value_size, heads, settings.fit)
        else:
            _keep_blocks(weights, [f"{part}.{up}" for up in ups], [name], moments, 1, columns, settings.fit)
    return dataclasses.replace(artifact, config=smaller, weights=weights)


def input_moments(
    artifact: Artifact, ids: list[list[int]], progress: Progress = lambda _: None
) -> dict[str, np.ndarray]:
    """By name of each output and down matrix, the mean of x·xᵀ over its inputs x in all uses.

    A 1 is appended to x; (A + 1, A + 1) and (F + 1, F + 1).
    """
    sums: dict[str, np.ndarray | float] = {}
    counts: dict[str, int] = {}
    for use in record_inputs(artifact.config, dict(artifact.weights), ids, progress):
        for part in ("attention.output", "ffn.down"):
            at = MATRIX_INPUTS[part]
            name, x = f"{use.reader(at)}.{part}", use.inputs[at]
            x = np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1)
            sums[name] = sums.get(name, 0.0) + (x.T @ x).astype(np.float64)
            counts[name] = counts.get(name, 0) + len(x)
    return {name: np.asarray(total) / counts[name] for name, total in sums.items()}


def importance(weight: np.ndarray, moments: np.ndarray, block: int) -> np.ndarray:
    """The variance of each block's contribution: the trace of W·C·Wᵀ, with C the covariance of its inputs."""
    mean = moments[:-1, -1]
    covariance = moments[:-1, :-1] - np.outer(mean, mean)
    return np.array(
        [
            np.einsum("hi,ij,hj->", weight[:, columns], covariance[columns, columns], weight[:, columns], optimize=True)
            for columns in (slice(i, i + block) for i in range(0, weight.shape[1], block))
        ]
    )


def _keep_blocks(
    weights: dict[str, np.ndarray],
    before: list[str],
    after: list[str],
    moments: np.ndarray,
    block: int,
    keep: int,
    fit: bool,
) -> None:
    """Keep the `keep` most important blocks between the matrices `before` and `after`.

    block: columns of a block. after: the matrix that reads them, and with `output_rank` the one that follows it.
    """
    first, last = f"{after[0]}.weight", after[-1]
    weight, bias = weights[first], weights[f"{last}.bias"]
    if keep * block == weight.shape[1]:
        return
    up = weights[f"{last}.weight"] if len(after) > 1 else None
    best = np.sort(np.argsort(importance(weight if up is None else up @ weight, moments, block))[-keep:])
    kept = (best[:, None] * block + np.arange(block)).ravel()
    removed = np.setdiff1d(np.arange(weight.shape[1]), kept)
    count = weight.shape[1] // block
    for name in before:
        for part in ("weight", "bias"):
            stored = weights[f"{name}.{part}"]
            weights[f"{name}.{part}"] = stored.reshape(count, -1, *stored.shape[1:])[best].reshape(
                -1, *stored.shape[1:]
            )
    smaller = weight[:, kept]
    if fit:
        # the best approximation of the removed columns by the kept columns and a constant
        read = np.append(kept, len(moments) - 1)
        square = moments[np.ix_(read, read)].copy()
        square[np.arange(len(kept)), np.arange(len(kept))] += RIDGE * np.diag(moments)[:-1].mean()
        added = np.linalg.solve(square, moments[np.ix_(read, removed)] @ weight[:, removed].T).T  # (H, kept + 1)
        smaller, bias = smaller + added[:, :-1], bias + (added[:, -1] if up is None else up @ added[:, -1])
    weights[first] = np.ascontiguousarray(smaller, np.float32)
    weights[f"{last}.bias"] = np.asarray(bias, np.float32)
