"""A static model: one vector for each piece, distilled from a model, for answers in microseconds. The verb `static`.

In: a model folder of any kind and, if there are any, texts like those it will read. Out: an artifact whose `embed` is a weighted
mean of piece vectors, with no layers to compute. No torch.

Each piece is read by the model alone. The vectors are centred and turned by a principal component analysis; each direction is divided by the
fourth root of its variance, so that a few loud ones do not drown the others, and the first `dim` are kept. Frequent pieces count less:
a / (a + p), where p is how often the piece occurs (Arora et al. 2017, SIF); p comes from the texts and, for a unigram vocabulary, from its
scores. Model2Vec (github.com/MinishLab/model2vec) goes the same way. Order and context are lost, and the price is in `docs/compression.md`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from albertkit.albert import Albert
from albertkit.artifact import Artifact, write_artifact
from albertkit.config import AlbertConfig, Options
from albertkit.errors import AlbertkitError
from albertkit.runtime.activation_moments import Progress
from albertkit.runtime.batching import token_batches
from albertkit.tokenizer import Tokenizer

DIM = 256
RARE = 2e-4  # a: pieces that occur less often than this count almost fully
EVEN = 0.25  # the power of its variance that a direction is divided by
PRIOR = {"unigram": 10.0, "wordpiece": 0.1}  # how often each piece counts as seen, on average, before any text is read
LENGTH = 8192  # pieces of a text that are averaged at once; longer texts are windows


@dataclass(frozen=True)
class StaticModelResult:
    """What was made."""

    pieces: int
    dim: int
    bytes: int
    """Of the table, float32."""
    kept: float
    """Share of the variance in the directions that were kept."""
    texts: int
    """Texts that frequencies were counted in."""
    weighted: bool
    """Whether frequencies are known at all."""


def make_static_model(
    source: Path | str | None,
    target: Path | str,
    texts: Sequence[str] | None = None,
    dim: int | None = None,
    overwrite: bool = False,
    progress: Progress = lambda _: None,
) -> StaticModelResult:
    """Distil a model into a static one and write it."""
    albert = Albert(source)
    if albert.config.options.static:
        raise AlbertkitError(f"{source} is a static model already; give the model it was made from")
    size = min(DIM, albert.dim) if dim is None else dim
    if not 1 <= size <= albert.dim:
        raise AlbertkitError(f"dim is {dim}; this model's vectors have 1 to {albert.dim} numbers")
    if texts is not None and not any(text.strip() for text in texts):
        raise AlbertkitError(
            "there is no text to count pieces in; give lines like those it will read, or none (--texts)"
        )
    vectors = token_vectors(albert, progress)
    hidden = sorted(_silent(albert.tokenizer))
    heard = np.setdiff1d(np.arange(len(vectors)), hidden)
    progress("turning")
    table, kept = whiten(vectors, heard, size)
    known = frequencies(albert.tokenizer, texts)
    if known is not None:
        table *= (RARE / (RARE + known))[:, None]
    table[hidden] = 0
    table /= max(float(np.linalg.norm(table[heard], axis=1).mean()), 1e-12)
    meta = dataclasses.replace(
        albert.meta, task="embed", labels=(), pooling="mean", normalise=True, depth=None, quantisation=None,
        details={}, metrics={}, made=(*albert.meta.made, {"step": "static", "dim": size, "texts": len(texts or ())}),
    )  # fmt: skip
    weights = {"encoder.embeddings.word.weight": np.ascontiguousarray(table, np.float32)}
    config = static_config(albert.config, albert.tokenizer.vocab_size, size)
    write_artifact(Artifact(config, weights, albert.tokenizer, meta), target, overwrite)
    progress("")
    nbytes = weights["encoder.embeddings.word.weight"].nbytes
    return StaticModelResult(len(table), size, nbytes, kept, len(texts or ()), known is not None)


def static_config(config: AlbertConfig, pieces: int, dim: int) -> AlbertConfig:
    """The config of a static model; what belongs to layers is as small as it can be, and means nothing."""
    return AlbertConfig(
        vocab_size=pieces,
        embedding_size=dim,
        hidden_size=dim,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=1,
        max_position_embeddings=LENGTH,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        options=Options(static=True),
    )


def _silent(tokenizer: Tokenizer) -> set[int]:
    """Ids that say nothing about a text."""
    special = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
    return set(tokenizer.vocabulary.hidden) | {i for i in special if i is not None}


def token_vectors(albert: Albert, progress: Progress = lambda _: None) -> np.ndarray:
    """What the model says about each piece alone, pooled as it pools texts; (pieces, H)."""
    count = albert.tokenizer.vocab_size
    out = np.empty((count, albert.dim), np.float32)
    texts, _ = albert.cut([[i] for i in range(count)], "error")
    done = 0
    for batch in token_batches(texts, token_budget=albert.token_budget):
        out[batch.order] = albert._pool(albert.engine.run(batch, albert.depth), batch.lengths, albert.meta.pooling)
        done += len(batch.order)
        progress(f"{done:,} of {count:,} pieces read")
    return out


def whiten(vectors: np.ndarray, heard: np.ndarray, dim: int) -> tuple[np.ndarray, float]:
    """Vectors centred, turned so that the first directions vary most, evened out and cut; and the share of variance kept."""
    centred = vectors - vectors[heard].mean(axis=0)
    covariance = centred[heard].T.astype(np.float64) @ centred[heard] / len(heard)
    variance, directions = np.linalg.eigh(covariance)
    variance, directions = np.maximum(variance[::-1], 0), directions[:, ::-1]
    share = float(variance[:dim].sum() / max(variance.sum(), 1e-30))
    even = np.maximum(variance[:dim], 1e-9 * max(variance[0], 1e-30)) ** EVEN
    return (centred @ directions[:, :dim] / even).astype(np.float32), share


def frequencies(tokenizer: Tokenizer, texts: Sequence[str] | None) -> np.ndarray | None:
    """How often each piece occurs, by the texts and a unigram vocabulary's own scores; None where neither says anything."""
    count = tokenizer.vocab_size
    prior = np.full(count, 1 / count)
    if tokenizer.kind == "unigram":
        scores = np.array(tokenizer.vocabulary.scores)
        scores[scores >= 0] = scores[scores < 0].max(initial=-20.0)  # user-defined pieces have no score of their own
        prior = np.exp(scores)
        prior[sorted(_silent(tokenizer))] = 0
        prior /= prior.sum()
    elif texts is None:
        return None
    seen = np.zeros(count)
    for start in range(0, len(texts or ()), 4096):
        for ids in tokenizer.ids_batch((texts or ())[start : start + 4096]):
            np.add.at(seen, ids, 1)
    total = PRIOR.get(tokenizer.kind, 0.1) * count * prior + seen
    out: np.ndarray = total / total.sum()
    return out
