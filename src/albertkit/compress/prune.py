"""Heads, feed-forward columns, layers and words taken out of a model: the verb `prune`.

In: a model folder of any kind, and what is to stay. Out: an artifact with smaller matrices, and a `PruneResult`. No torch.

What a head or a column is worth is how much what it adds to the layer's output varies, over all tokens and summed over all uses of
the layer: the shared weights are seen at every depth at once. What does not vary is a constant, and goes into the bias. Then
the matrix that reads the rest is fitted again by least squares, so that it gives what the whole layer gave (the closed
form of the second step in Hassibi & Stork 1993, Optimal Brain Surgeon). On a trained model this keeps most of what plain
removal loses (see `LOG.md`); training afterwards recovers more (`albertkit distill`, `finetune`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from albertkit.artifact import Artifact, write_artifact
from albertkit.compress.cost import operations
from albertkit.compress.prune_vocabulary import prune_vocabulary
from albertkit.compress.quantize import vector_cosines
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import open_model
from albertkit.runtime.activation_moments import READS, Progress, calibration, own_kind, own_text, watch
from albertkit.runtime.depths import check_trained_depth

Amount = int | float  # how many stay, or as a float above 0 and up to 1 which share
WHOLE = 16  # a share of many columns is rounded to a multiple of this, which processors compute as fast as less
RIDGE = 0.001  # of the mean second moment: how much a fit is held back where texts say little


@dataclass(frozen=True)
class PruneSettings:
    """What stays; None leaves a part alone."""

    heads: Amount | None = None
    ffn: Amount | None = None
    layers: int | None = None
    vocabulary: Sequence[str] | None = None
    """Texts whose words stay."""
    fit: bool = True
    """Whether what stays is fitted again to give what the whole layer gave."""


@dataclass(frozen=True)
class PruneResult:
    """What pruning did."""

    parameters_before: int
    parameters: int
    operations_before: float
    """Multiplications and additions for a token in a text of 128."""
    operations: float
    heads: int
    ffn: int
    layers: int
    vocabulary: int
    cosine_mean: float
    """Agreement of mean-pooled vectors with the whole model's."""
    cosine_least: float
    texts: int
    about: str = "texts"
    """What kind of texts these were: those given, or what was made up in their place (`calibrate.own_kind`)."""


def prune(
    source: Path | str,
    target: Path | str,
    keep: PruneSettings,
    texts: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Progress = lambda _: None,
    recovery: Callable[[Artifact, Artifact], Artifact] | None = None,
) -> PruneResult:
    """Prune a model and write it. `texts` are like those it will read; without, some are made up (`calibrate.own_text`). A tenth is kept aside.

    recovery: gets the whole model and the pruned one, and gives the pruned one trained (`train/recover.py`).
    """
    before = open_model(source)
    _check(before, keep, source)
    truncate_layers(before, keep.layers)  # or says which depths there are
    if keep.layers is not None and recovery is None and before.meta.task == "embed":
        check_trained_depth(before.config, before.meta, keep.layers, ", or train what is left (--recover)")
    if texts is not None and len(texts) < 10:
        raise AlbertkitError(f"{len(texts)} calibration texts were given; give at least 10, better some hundred")
    sample, about = _sample(before, keep, texts)
    held = own_text(before, progress, texts=16, seed=1) if sample is None else calibration(before, sample)
    ids: list[list[int]] = []
    if keep.heads is not None or keep.ffn is not None:
        ids = calibration(before, None if texts is None else [t for i, t in enumerate(texts) if i % 10], progress)
    after = _noted(before, prune_heads_and_ffn(truncate_layers(before, keep.layers), keep, ids, progress))
    if recovery is not None:
        progress("")
        after = recovery(before, after)
    if keep.vocabulary is not None:  # last, so that a teacher and its student cut text alike
        progress("cutting the vocabulary")
        after = _noted(after, prune_vocabulary(after, keep.vocabulary))
    progress("comparing")
    cosine = vector_cosines(before, after, held, None if sample is None else calibration(after, sample))
    report = _report(before, after, cosine, about)
    write_artifact(after, target, overwrite)
    progress("")
    return report


def _sample(before: Artifact, keep: PruneSettings, texts: Sequence[str] | None) -> tuple[Sequence[str] | None, str]:
    """Texts to compare with, and what they are; None where text is made up, which a model of fewer words would not read as it is."""
    if texts is not None:
        return texts[::10], "texts"
    lines = [line for line in keep.vocabulary or () if line.strip()]
    if lines and before.tokenizer is not None:
        return lines[:: -(-len(lines) // 64)], "lines whose words stay"
    return None, own_kind(before)


def _check(artifact: Artifact, keep: PruneSettings, source: Path | str) -> None:
    if artifact.meta.quantisation is not None:
        raise AlbertkitError(
            f"{source} is stored as {artifact.meta.quantisation}; prune the float model it came from, then quantise the result "
            f"(without that model, make floats of this one:  albertkit convert {source} FLOAT)"
        )
    if keep == PruneSettings(fit=keep.fit):
        raise AlbertkitError("nothing was asked for; say what stays: heads, ffn, layers or vocabulary")
    if artifact.config.options.static and (keep.heads or keep.ffn or keep.layers):
        raise AlbertkitError("a static model has no layers; only its vocabulary can be pruned")
    for option, why in (("shared_heads", "one key and value matrix"), ("attention_bias", "a table of biases")):
        if keep.heads is not None and getattr(artifact.config.options, option):
            raise AlbertkitError(
                f"this model has the option {option}: its heads have {why} together, so no head can be taken out; "
                f"prune ffn, layers or vocabulary"
            )


def _report(before: Artifact, after: Artifact, cosine: np.ndarray, about: str) -> PruneResult:
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
        cosine_mean=float(cosine.mean()),
        cosine_least=float(cosine.min()),
        texts=len(cosine),
        about=about,
    )


def _noted(before: Artifact, after: Artifact) -> Artifact:
    """The result, with what is known about it: its history, and no scores or limits of early exit, since those were the whole model's."""
    parts = ("num_attention_heads", "intermediate_size", "num_hidden_layers", "vocab_size")
    if before.config == after.config:
        return after
    step: dict[str, object] = {"step": "prune"}
    for part in parts:
        if getattr(before.config, part) != getattr(after.config, part):
            step[part] = f"{getattr(before.config, part)} → {getattr(after.config, part)}"
    if before.meta.metrics:
        step["scores before"] = before.meta.metrics
    details = {name: value for name, value in after.meta.details.items() if name != "early_exit"}
    meta = dataclasses.replace(after.meta, metrics={}, details=details, made=(*after.meta.made, step))
    return dataclasses.replace(after, meta=meta)


# Layers ----------------------------------------------------------------------------------------------------------


def truncate_layers(artifact: Artifact, layers: int | None) -> Artifact:
    """The first `layers` layers."""
    config = artifact.config
    if layers is None or layers == config.num_hidden_layers:
        return artifact
    possible = [n for n in range(1, config.num_hidden_layers + 1) if _groups(config, n)]
    if layers not in possible:
        shown = f"1 to {possible[-1]}" if len(possible) == possible[-1] else ", ".join(map(str, possible))
        raise AlbertkitError(f"{layers} layers were asked for; this model can be cut to {shown}")
    groups = _groups(config, layers)
    weights = {
        name: array
        for name, array in artifact.weights.items()
        if not name.startswith("encoder.groups.") or int(name.split(".")[2]) < groups
    }
    meta = artifact.meta
    if meta.depth is not None and meta.depth >= layers:
        meta = dataclasses.replace(meta, depth=None)
    small = config.replace(num_hidden_layers=layers, num_hidden_groups=groups)
    return Artifact(small, weights, artifact.tokenizer, meta)


def _groups(config: AlbertConfig, layers: int) -> int:
    """How many groups `layers` layers need to use the same weights as before; 0 where no number gives that."""
    groups = config.group_of(layers - 1) + 1
    small = config.replace(num_hidden_layers=layers, num_hidden_groups=groups)
    return groups if all(small.group_of(i) == config.group_of(i) for i in range(layers)) else 0


# Heads and columns -----------------------------------------------------------------------------------------------


def resolve_count(wanted: Amount | None, there: int, what: str) -> int:
    """How many of `there` stay."""
    if wanted is None:
        return there
    number = wanted
    if isinstance(wanted, float):
        if not 0 < wanted <= 1:
            raise AlbertkitError(f"{what} is {wanted}; a share is above 0 and up to 1 (or give a whole number)")
        number = max(1, round(there * wanted))
        if there >= 8 * WHOLE:
            number = min(there, max(WHOLE, round(number / WHOLE) * WHOLE))
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= there:
        raise AlbertkitError(f"{what} is {wanted}; this model has {there}, so keep 1 to {there}, or a share below 1")
    return number


def prune_heads_and_ffn(
    artifact: Artifact, keep: PruneSettings, ids: list[list[int]], progress: Progress = lambda _: None
) -> Artifact:
    """The same model with fewer heads and feed-forward columns in its shared layers, judged by texts (token ids)."""
    config = artifact.config
    heads = resolve_count(keep.heads, config.num_attention_heads, "heads")
    columns = resolve_count(keep.ffn, config.intermediate_size, "ffn")
    if (heads, columns) == (config.num_attention_heads, config.intermediate_size):
        return artifact
    found = input_moments(artifact, ids, progress)
    weights = dict(artifact.weights)
    for prefix, (attention, ffn) in found.items():
        progress(f"pruning {prefix}")
        names = [f"{prefix}.attention.{part}" for part in ("query", "key", "value")]
        _shrink(weights, names, f"{prefix}.attention.output", attention, config.head_size, heads, keep.fit)
        _shrink(weights, [f"{prefix}.ffn.up"], f"{prefix}.ffn.down", ffn, 1, columns, keep.fit)
    fewer = heads != config.num_attention_heads
    options = dataclasses.replace(config.options, head_size=config.head_size) if fewer else config.options
    small = config.replace(num_attention_heads=heads, intermediate_size=columns, options=options)
    return Artifact(small, weights, artifact.tokenizer, artifact.meta)


def input_moments(
    artifact: Artifact, ids: list[list[int]], progress: Progress = lambda _: None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of each layer, the mean of x·xᵀ over what its output product and its down product read; x ends with a 1.

    Summed over all uses of the layer; (A + 1, A + 1) and (F + 1, F + 1).
    """
    sums: dict[str, list[np.ndarray | float]] = {}
    counts: dict[str, int] = {}
    for seen in watch(artifact.config, dict(artifact.weights), ids, progress):
        total = sums.setdefault(seen.prefix, [0.0, 0.0])
        for at, part in enumerate(("attention.output", "ffn.down")):
            x = seen.inputs[READS[part]]
            x = np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1)
            total[at] = total[at] + (x.T @ x).astype(np.float64)
        counts[seen.prefix] = counts.get(seen.prefix, 0) + len(seen.inputs[0])
    return {n: (np.asarray(a) / counts[n], np.asarray(f) / counts[n]) for n, (a, f) in sums.items()}


def importance(weight: np.ndarray, spread: np.ndarray, block: int) -> np.ndarray:
    """How much what each block of columns adds to the output varies: the trace of W·C·Wᵀ, C the covariance of its inputs."""
    mean = spread[:-1, -1]
    covariance = spread[:-1, :-1] - np.outer(mean, mean)
    return np.array(
        [
            np.einsum("hi,ij,hj->", weight[:, at], covariance[at, at], weight[:, at], optimize=True)
            for at in (slice(i, i + block) for i in range(0, weight.shape[1], block))
        ]
    )


def _shrink(
    weights: dict[str, np.ndarray], before: list[str], after: str, spread: np.ndarray, block: int, keep: int, fit: bool
) -> None:
    """Keep the `keep` best blocks of what `before` gives and `after` reads."""
    weight, bias = weights[f"{after}.weight"], weights[f"{after}.bias"]
    if keep * block == weight.shape[1]:
        return
    best = np.sort(np.argsort(importance(weight, spread, block))[-keep:])
    stay = (best[:, None] * block + np.arange(block)).ravel()
    gone = np.setdiff1d(np.arange(weight.shape[1]), stay)
    for name in before:
        for part in ("weight", "bias"):
            weights[f"{name}.{part}"] = np.ascontiguousarray(weights[f"{name}.{part}"][stay])
    kept = weight[:, stay]
    if fit:
        # what the columns that go have added, as well as the ones that stay and a constant can give it
        read = np.append(stay, len(spread) - 1)
        square = spread[np.ix_(read, read)].copy()
        square[np.arange(len(stay)), np.arange(len(stay))] += RIDGE * np.diag(spread)[:-1].mean()
        added = np.linalg.solve(square, spread[np.ix_(read, gone)] @ weight[:, gone].T).T  # (H, stay + 1)
        kept, bias = kept + added[:, :-1], bias + added[:, -1]
    weights[f"{after}.weight"] = np.ascontiguousarray(kept, np.float32)
    weights[f"{after}.bias"] = np.asarray(bias, np.float32)
