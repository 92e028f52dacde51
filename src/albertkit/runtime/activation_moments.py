"""What the shared layer's matrices see: the mean of x·xᵀ over their inputs x, summed over all uses of the layer.

In: an artifact and, if there are any, texts like those it will read. Out: `{matrix name: moments}` for
`quantized.quantize_weights`, which smooths inputs by them, and rounds weights so that errors cancel on such inputs.
Without texts, the model writes its own: random words stand in some places, and its masked-word head fills the others
in a few rounds, each place once, beside what stands there by then. A model without that head is shown plain English
sentences (`data/everyday_sentences.py`), if its vocabulary is English; what is left is random pieces. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from albertkit.artifact import Artifact
from albertkit.config import AlbertConfig
from albertkit.data.passages import everyday_sentences
from albertkit.errors import AlbertkitError
from albertkit.runtime import graph as graphs
from albertkit.runtime.batching import TokenBatch, token_batches
from albertkit.runtime.engine import Engine, cores, open_graph
from albertkit.tokenizer import Tokenizer

TEXTS, LENGTH, ROUNDS = 32, 64, 4
SENTENCES_EACH = 8  # for each `LENGTH` tokens
WRITTEN, SENTENCES, RANDOM = "text it wrote itself", "plain English sentences", "random pieces"
GIVEN = 0.3  # of the places of a text hold random words that stay; with fewer, the model repeats its commonest pieces
LIKELY = 50
SAMPLE = 12_000  # inputs of each matrix that are kept
# Which of the watched tensors each matrix of a layer reads.
READS = {
    "attention.query": 0,
    "attention.key": 0,
    "attention.value": 0,
    "attention.output": 1,
    "ffn.up": 2,
    "ffn.down": 3,
}

Progress = Callable[[str], None]


def moments(
    artifact: Artifact, texts: Iterable[str] | None = None, progress: Progress = lambda _: None
) -> dict[str, np.ndarray]:
    """Second moments of the inputs of every matrix in the shared layers."""
    ids = calibration(artifact, texts, progress)
    return moments_of(artifact.config, dict(artifact.weights), ids, progress)


def moments_of(
    config: AlbertConfig, weights: graphs.Weights, ids: list[list[int]], progress: Progress = lambda _: None
) -> dict[str, np.ndarray]:
    """The same, for token ids."""
    if config.options.static:
        return {}
    sums: dict[tuple[str, int], np.ndarray | float] = {}
    counts: dict[str, int] = {}
    for seen in watch(config, weights, ids, progress):
        counts[seen.prefix] = counts.get(seen.prefix, 0) + len(seen.inputs[0])
        for at, values in enumerate(seen.inputs):
            sums[seen.prefix, at] = sums.get((seen.prefix, at), 0.0) + values.T @ values
    return {
        f"{prefix}.{part}.weight": (np.asarray(sums[prefix, at]) / max(1, count)).astype(np.float32)
        for prefix, count in counts.items()
        for part, at in READS.items()
    }


@dataclass(frozen=True)
class Seen:
    """What one use of one layer saw in one batch."""

    prefix: str
    """The layer's name, `encoder.groups.G.I`."""
    inputs: tuple[np.ndarray, ...]
    """Inputs of its products by the numbers in `READS`, each (tokens, width); the same tokens in all."""


def watch(
    config: AlbertConfig, weights: graphs.Weights, ids: list[list[int]], progress: Progress = lambda _: None
) -> Iterator[Seen]:
    """What the products of the shared layers read, at every use of them; of many tokens a sample."""
    threads = cores()
    engine = Engine(config, dict(weights), threads)
    places = [(g, i) for g in range(config.num_hidden_groups) for i in range(config.inner_group_num)]
    prefixes = {(g, i): f"encoder.groups.{g}.{i}" for g, i in places}
    watched = {
        place: open_graph(graphs.layer_graph(config, weights, prefix, engine.levels, watch=True), threads)
        for place, prefix in prefixes.items()
    }
    tokens = sum(len(row) for row in ids)
    share = min(1.0, SAMPLE * len(places) / (tokens * config.num_hidden_layers * config.inner_group_num))
    generator = np.random.default_rng(0)
    for batch in token_batches(ids):
        progress("watching the layer")
        hidden = engine.run(batch, 0)
        inside = np.arange(batch.ids.shape[1])[None] < batch.lengths[:, None]
        for layer in range(config.num_hidden_layers):
            for inner in range(config.inner_group_num):
                place = (config.group_of(layer), inner)
                before = hidden
                hidden, *seen = watched[place].run(None, graphs.layer_feed(config, layer, hidden, batch.lengths))
                chosen = inside & (generator.random(inside.shape) < share)
                yield Seen(prefixes[place], tuple(values[chosen] for values in [before, *seen]))


def calibration(
    artifact: Artifact, texts: Iterable[str] | None, progress: Progress = lambda _: None
) -> list[list[int]]:
    """Token ids of some hundred texts; without texts, of the model's own."""
    if texts is None:
        return own_text(artifact, progress)
    if artifact.tokenizer is None:
        raise AlbertkitError("calibration texts need a tokenizer, and this model has none")
    chosen = list(islice((text for text in texts if text.strip()), 512))
    if not chosen:
        raise AlbertkitError(
            "there are no calibration texts; give a file with some hundred lines like those the model will read"
        )
    limit = min(128, artifact.config.max_position_embeddings)
    return [e.ids for e in artifact.tokenizer.encode_batch(chosen, max_length=limit)]


def random_tokens(config: AlbertConfig, texts: int, seed: int = 0) -> list[list[int]]:
    """Token ids that mean nothing: enough to see which channels are large."""
    first, length = min(5, config.vocab_size - 1), min(LENGTH, config.max_position_embeddings)
    drawn: list[list[int]] = np.random.default_rng(seed).integers(first, config.vocab_size, (texts, length)).tolist()
    return drawn


def own_kind(artifact: Artifact) -> str:
    """What `own_text` gives for a model, in words; `RANDOM` says least."""
    tokenizer = artifact.tokenizer
    if tokenizer is not None and tokenizer.mask_id is not None and "heads.mlm.bias" in artifact.weights:
        return WRITTEN
    return SENTENCES if tokenizer is not None and reads_english(tokenizer) else RANDOM


def own_text(
    artifact: Artifact, progress: Progress = lambda _: None, texts: int = TEXTS, seed: int = 0
) -> list[list[int]]:
    """Token ids the model finds likely; for a model that cannot fill masks about as many tokens of sentences, or plain
    random ones.
    """
    tokenizer, kind = artifact.tokenizer, own_kind(artifact)
    if kind != WRITTEN or tokenizer is None:
        return example_text(artifact.config, tokenizer, texts, seed)
    ids = np.array(random_tokens(artifact.config, texts, seed))
    ids[:, 0], ids[:, -1] = tokenizer.cls_id or 0, tokenizer.sep_id or 0
    generator = np.random.default_rng(seed)
    turns = generator.integers(0, ROUNDS, ids.shape)  # the round in which each place is filled
    turns[generator.random(ids.shape) < GIVEN] = -1
    turns[:, [0, -1]] = -1
    engine = Engine(artifact.config, dict(artifact.weights))
    for turn in range(ROUNDS):
        progress(f"writing its own text, {turn + 1} of {ROUNDS}")
        _fill(engine, ids, turns - turn, tokenizer.mask_id or 0, generator)
    return [list(map(int, row)) for row in ids]


def example_text(config: AlbertConfig, tokenizer: Tokenizer | None, texts: int, seed: int = 0) -> list[list[int]]:
    """Token ids of about `texts` times `LENGTH` tokens, without asking a model: sentences for an English vocabulary,
    else random pieces.

    A text has one to four sentences.
    """
    if tokenizer is None or not reads_english(tokenizer):
        return random_tokens(config, texts, seed)
    made = everyday_sentences(texts * SENTENCES_EACH, seed)
    wanted = [" ".join(islice(made, 1 + number % 4)) for number in range(texts * SENTENCES_EACH * 2 // 5)]
    return [e.ids for e in tokenizer.encode_batch(wanted, max_length=min(128, config.max_position_embeddings))]


def reads_english(tokenizer: Tokenizer) -> bool:
    """Whether most pieces of a vocabulary are written in Latin letters, and plain English sentences are cut into few
    of them, all known.
    """
    pieces = [piece.removeprefix("##").removeprefix("▁") for piece in tokenizer.vocabulary.ids]
    letters = [piece for piece in pieces if piece.isalpha()]
    if sum(piece.isascii() for piece in letters) < 0.8 * len(letters):
        return False
    sentences = list(everyday_sentences(50))
    ids = [place for row in tokenizer.ids_batch(sentences) for place in row]
    return tokenizer.unk_id not in ids and len(ids) < 2 * sum(len(text.split()) for text in sentences)


def _fill(engine: Engine, ids: np.ndarray, when: np.ndarray, mask_id: int, generator: np.random.Generator) -> None:
    """Write a word into each place of `ids` where `when` is 0, with masks there and where it is more.

    It is drawn by its probability among the likeliest. Only these places are scored: a row of scores is as long as the
    vocabulary.
    """
    first = min(5, engine.config.vocab_size - 1)
    kept = min(LIKELY, engine.config.vocab_size - first)
    asked = np.where(when >= 0, mask_id, ids).astype(np.int64)
    lengths = np.full(len(ids), ids.shape[1], np.int32)
    for start in range(0, len(ids), 16):
        part = slice(start, start + 16)
        now = when[part] == 0
        if not now.any():
            continue
        batch = TokenBatch(asked[part], np.zeros_like(asked[part]), lengths[part], np.arange(len(asked[part])))
        scores = engine.mlm_logits(engine.run(batch, engine.config.num_hidden_layers)[now])[:, first:]
        likely = np.argpartition(scores, -kept, axis=1)[:, -kept:]
        drawn = (np.take_along_axis(scores, likely, axis=1) + generator.gumbel(size=likely.shape)).argmax(axis=1)
        ids[part][now] = first + np.take_along_axis(likely, drawn[:, None], axis=1)[:, 0]
