"""Static models: one vector per token, distilled from a model; embeds a text in microseconds. No torch.

In: any ALBERT checkpoint or artifact and, optionally, texts similar to those in use. Out: an artifact whose `embed` is
a weighted mean of token vectors. The model encodes each token alone. Principal components are divided by the fourth
root of their variance, and the first `dim` are kept. Tokens of frequency p have weight a / (a + p) (SIF, Arora et al.
2017). Model2Vec (github.com/MinishLab/model2vec) uses the same method.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from albertkit.albert import Albert
from albertkit.artifact import Artifact, write_artifact
from albertkit.compress.cost import STATIC_DIM, static_config
from albertkit.compress.metric_loss import MetricLoss, metric_loss
from albertkit.errors import AlbertkitError
from albertkit.runtime.activation_moments import Progress
from albertkit.runtime.agreement import COMPARED
from albertkit.runtime.batching import token_batches
from albertkit.runtime.embed import pool, split_tokens
from albertkit.tokenizer import Tokenizer

SIF_A = 2e-4  # tokens of a lower frequency have almost full weight
WHITENING_POWER = 0.25  # a direction is divided by this power of its variance
PRIOR = {"unigram": 10.0, "wordpiece": 0.1}  # prior mean count of each token


@dataclass(frozen=True)
class StaticModelResult:
    """The result of `make_static_model`.

    >>> from albertkit import make_static_model
    >>> make_static_model("small", "static", dim=64).bytes  # doctest: +SKIP
    """

    tokens: int
    dim: int
    bytes: int
    """Of the token vectors, float32."""
    explained_variance: float
    """Share of the variance in the kept directions."""
    texts: int
    """Texts in which frequencies were counted."""
    has_frequencies: bool
    """Whether tokens are weighted by frequency."""
    metric_loss: MetricLoss | None = None
    """How similar the ranking of similarities is to that of the source model."""


def make_static_model(
    source: Path | str | None,
    target: Path | str,
    texts: Sequence[str] | None = None,
    dim: int | None = None,
    overwrite: bool = False,
    progress: Progress = lambda _: None,
) -> StaticModelResult:
    """Distill a model into a static model and write it.

    texts: texts similar to those in use, to count token frequencies.

    >>> from albertkit import make_static_model
    >>> texts = open("texts.txt").read().splitlines()  # doctest: +SKIP
    >>> make_static_model("my-model", "static", texts=texts, dim=256).dim  # doctest: +SKIP
    """
    albert = Albert(source)
    if albert.config.options.static:
        raise AlbertkitError(f"{source} is a static model already. Pass its source model.")
    size = min(STATIC_DIM, albert.dim) if dim is None else dim
    if not 1 <= size <= albert.dim:
        raise AlbertkitError(
            f"dim={dim} is out of range: this model's vectors have {albert.dim} dimensions. Pass 1 to {albert.dim}."
        )
    if texts is not None and not any(text.strip() for text in texts):
        raise AlbertkitError("the texts are empty, so token frequencies cannot be counted. Pass other texts, or none.")
    vectors = token_vectors(albert, progress)
    special = sorted(_special_ids(albert.tokenizer))
    used = np.setdiff1d(np.arange(len(vectors)), special)
    progress("computing principal components")
    table, explained = whiten(vectors, used, size)
    frequency = token_frequencies(albert.tokenizer, texts)
    if frequency is not None:
        table *= (SIF_A / (SIF_A + frequency))[:, None]
    table[special] = 0
    table /= max(float(np.linalg.norm(table[used], axis=1).mean()), 1e-12)
    meta = dataclasses.replace(
        albert.metadata, task="embed", labels=(), pooling="mean", normalize=True, depth=None, quantization=None,
        details={}, metrics={},
        history=(*albert.metadata.history, {"step": "static", "dim": size, "texts": len(texts or ())}),
    )  # fmt: skip
    weights = {"encoder.embeddings.word.weight": np.ascontiguousarray(table, np.float32)}
    config = static_config(albert.config, albert.tokenizer.vocab_size, size)
    write_artifact(Artifact(config, weights, albert.tokenizer, meta), target, overwrite)
    progress("comparing")
    sample = None if texts is None else [text for text in texts if text.strip()][:COMPARED]
    loss = metric_loss(albert, Albert(target), sample)
    progress("")
    nbytes = weights["encoder.embeddings.word.weight"].nbytes
    return StaticModelResult(len(table), size, nbytes, explained, len(texts or ()), frequency is not None, loss)


def _special_ids(tokenizer: Tokenizer) -> set[int]:
    """Ids of special tokens, which have no meaning."""
    special = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
    return set(tokenizer.vocabulary.hidden) | {i for i in special if i is not None}


def token_vectors(albert: Albert, progress: Progress = lambda _: None) -> np.ndarray:
    """The vector of each token alone, pooled as the model pools texts; (tokens, H)."""
    count = albert.tokenizer.vocab_size
    out = np.empty((count, albert.dim), np.float32)
    texts = split_tokens(albert, [[i] for i in range(count)], "error").ids
    done = 0
    for batch in token_batches(texts, token_budget=albert.token_budget):
        out[batch.order] = pool(albert, albert.engine.run(batch, albert.depth), batch.lengths, albert.metadata.pooling)
        done += len(batch.order)
        progress(f"{done:,} of {count:,} tokens encoded")
    return out


def whiten(vectors: np.ndarray, used: np.ndarray, dim: int) -> tuple[np.ndarray, float]:
    """Centred vectors in their first principal components, scaled by variance; and the share of variance kept.

    used: the rows that the components are computed from.
    """
    centred = vectors - vectors[used].mean(axis=0)
    covariance = centred[used].T.astype(np.float64) @ centred[used] / len(used)
    variance, directions = np.linalg.eigh(covariance)
    variance, directions = np.maximum(variance[::-1], 0), directions[:, ::-1]
    share = float(variance[:dim].sum() / max(variance.sum(), 1e-30))
    scale = np.maximum(variance[:dim], 1e-9 * max(variance[0], 1e-30)) ** WHITENING_POWER
    return (centred @ directions[:, :dim] / scale).astype(np.float32), share


def token_frequencies(tokenizer: Tokenizer, texts: Sequence[str] | None) -> np.ndarray | None:
    """The frequency of each token, from the texts and the scores of a unigram vocabulary; None without either."""
    count = tokenizer.vocab_size
    prior = np.full(count, 1 / count)
    if tokenizer.kind == "unigram":
        scores = np.array(tokenizer.vocabulary.scores)
        scores[scores >= 0] = scores[scores < 0].max(initial=-20.0)  # user-defined tokens have no score of their own
        prior = np.exp(scores)
        prior[sorted(_special_ids(tokenizer))] = 0
        prior /= prior.sum()
    elif texts is None:
        return None
    occurrences = np.zeros(count)
    for start in range(0, len(texts or ()), 4096):
        for ids in tokenizer.ids_batch((texts or ())[start : start + 4096]):
            np.add.at(occurrences, ids, 1)
    total = PRIOR.get(tokenizer.kind, 0.1) * count * prior + occurrences
    return np.asarray(total / total.sum())
