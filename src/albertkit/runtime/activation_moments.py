"""Second moments of the shared layer's inputs: the mean of x·xᵀ over the inputs x of each matrix, over all uses of it.

In: an artifact and, optionally, texts similar to those in use. Out: `{matrix name: moments}` for
`quantized.quantize_weights`. Before this file: `engine.py`. After it: `runtime_model.py` (`bits=`), `compress/`.
Without texts, the masked-language-model head generates some. A model without that head uses plain English sentences if
its vocabulary is English, otherwise random tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, product

import numpy as np

from albertkit.artifact import Artifact, require_tokenizer
from albertkit.config import AlbertConfig
from albertkit.cpu_cores import cores
from albertkit.data.passages import everyday_sentences
from albertkit.errors import AlbertkitError
from albertkit.runtime import graph as graphs
from albertkit.runtime.batching import TokenBatch, token_batches
from albertkit.runtime.engine import Engine, OnnxEmbedding, machine_max_level, open_graph
from albertkit.runtime.graph_builder import as_float
from albertkit.tokenizer import Tokenizer
from albertkit.weights import ffn_prefixes

TEXTS, LENGTH, ROUNDS = 32, 64, 4
SENTENCES_EACH = 8  # for each `LENGTH` tokens
GENERATED, SENTENCES, RANDOM = "text that the model generated", "plain English sentences", "random tokens"
RANDOM_SHARE = 0.3  # share of random tokens in a generated text; with fewer, the model repeats its most frequent tokens
TOP_TOKENS = 50
SAMPLE = 12_000  # inputs used per matrix
# The recorded tensor that is the input of each matrix of a layer.
MATRIX_INPUTS = {
    "attention.query": 0,
    "attention.key": 0,
    "attention.value": 0,
    "attention.output": 1,
    "ffn.gate": 2,
    "ffn.up": 2,
    "ffn.down": 3,
}

Progress = Callable[[str], None]


def activation_moments(
    artifact: Artifact, texts: Iterable[str] | None = None, progress: Progress = lambda _: None
) -> dict[str, np.ndarray]:
    """Second moments of the inputs of every matrix in the shared layers."""
    ids = calibration_tokens(artifact, texts, progress)
    return token_moments(artifact.config, dict(artifact.weights), ids, progress)


def token_moments(
    config: AlbertConfig, weights: graphs.Weights, ids: list[list[int]], progress: Progress = lambda _: None
) -> dict[str, np.ndarray]:
    """`activation_moments` for token ids."""
    if config.options.static:
        return {}
    sums: dict[tuple[str, int], np.ndarray | float] = {}
    counts: dict[tuple[str, int], int] = {}
    for use in record_inputs(config, weights, ids, progress):
        for number, values in enumerate(use.inputs):
            key = use.reader(number), number
            counts[key] = counts.get(key, 0) + len(values)
            sums[key] = sums.get(key, 0.0) + values.T @ values
    moments = {
        f"{prefix}.{part}.weight": (np.asarray(sums[prefix, number]) / max(1, count)).astype(np.float32)
        for (prefix, number), count in counts.items()
        for part, read in MATRIX_INPUTS.items()
        if read == number and f"{prefix}.{part}.weight" in weights
    }
    if config.options.output_rank:  # the recorded input is that of the first of two matrices
        for prefix in {prefix for prefix, number in counts if number == MATRIX_INPUTS["attention.output"]}:
            context = moments[f"{prefix}.attention.output.weight"]
            down = as_float(weights[f"{prefix}.attention.output_down.weight"])
            moments[f"{prefix}.attention.output_down.weight"] = context
            moments[f"{prefix}.attention.output.weight"] = down @ context @ down.T
    return moments


@dataclass(frozen=True)
class LayerInputs:
    """The inputs of one use of one layer in one batch."""

    prefix: str
    """The layer's name, `encoder.groups.G.I`."""
    ffn_prefix: str
    """What the names of its feed-forward part begin with (`weights.ffn_prefixes`)."""
    inputs: tuple[np.ndarray, ...]
    """Inputs of its products by the numbers in `MATRIX_INPUTS`, each (tokens, width); the same tokens in all."""

    def reader(self, number: int) -> str:
        """What the names of the matrices begin with that read input number `number`."""
        return self.ffn_prefix if number >= MATRIX_INPUTS["ffn.up"] else self.prefix


def record_inputs(
    config: AlbertConfig, weights: graphs.Weights, ids: list[list[int]], progress: Progress = lambda _: None
) -> Iterator[LayerInputs]:
    """The inputs of the shared layers' matrices at every use; a sample of them if there are many tokens."""
    threads, max_level = cores(), machine_max_level()
    embedding = OnnxEmbedding(config, weights, threads, max_level)  # so that compiled layers change no quantized weight
    layers, inner_layers = config.num_hidden_layers, config.inner_group_num
    recorders = {
        (group, inner, ffn): open_graph(
            graphs.calibration_graph(config, weights, f"encoder.groups.{group}.{inner}", max_level, ffn),
            threads,
        )
        for group in range(config.layer_groups)
        for inner in range(inner_layers)
        for ffn in range(config.ffn_count(group))
    }
    tokens = sum(len(row) for row in ids)
    share = min(1.0, SAMPLE * len(recorders) / (tokens * layers * inner_layers))
    generator = np.random.default_rng(0)
    for batch in token_batches(ids):
        progress("recording activations")
        hidden = embedding.embed(batch.ids, batch.segments)
        inside = np.arange(batch.ids.shape[1])[None] < batch.lengths[:, None]
        for layer, inner in product(range(layers), range(inner_layers)):
            group, ffn = config.group_of(layer), config.ffn_of(layer)
            prefix = f"encoder.groups.{group}.{inner}"
            ffn_prefix = ffn_prefixes(prefix, config.ffn_count(group))[ffn]
            feed = graphs.layer_feed(config, layer, hidden, batch.lengths)
            result, *inputs = recorders[group, inner, ffn].run(None, feed)
            is_sampled = inside & (generator.random(inside.shape) < share)
            yield LayerInputs(prefix, ffn_prefix, tuple(values[is_sampled] for values in inputs))
            hidden = result


def calibration_tokens(
    artifact: Artifact, texts: Iterable[str] | None, progress: Progress = lambda _: None
) -> list[list[int]]:
    """Token ids of a few hundred texts; without texts, synthetic ones."""
    from albertkit.runtime.embed import text_chunks  # which imports this module to open a model

    if texts is None:
        return synthetic_tokens(artifact, progress)
    tokenizer = require_tokenizer(artifact)
    if isinstance(texts, str):
        raise AlbertkitError(f"the calibration texts are one text, {texts!r:.40}. Pass a list of texts.")
    checked = (text for chunk in text_chunks(texts) for text in chunk)
    sample = list(islice((text for text in checked if text.strip()), 512))
    if not sample:
        raise AlbertkitError("there are no calibration texts. Pass a few hundred texts similar to those in use.")
    limit = min(128, artifact.config.max_position_embeddings)
    return [e.ids for e in tokenizer.encode_batch(sample, max_length=limit)]


def random_tokens(config: AlbertConfig, texts: int, seed: int = 0) -> list[list[int]]:
    """Random token ids, which are enough to find the large channels."""
    first, length = min(5, config.vocab_size - 1), min(LENGTH, config.max_position_embeddings)
    return list(np.random.default_rng(seed).integers(first, config.vocab_size, (texts, length)).tolist())


def synthetic_kind(artifact: Artifact) -> str:
    """A description of the result of `synthetic_tokens` for a model."""
    tokenizer = artifact.tokenizer
    if tokenizer is not None and tokenizer.mask_id is not None and "heads.mlm.bias" in artifact.weights:
        return GENERATED
    return SENTENCES if tokenizer is not None and reads_english(tokenizer) else RANDOM


def synthetic_tokens(
    artifact: Artifact, progress: Progress = lambda _: None, texts: int = TEXTS, seed: int = 0
) -> list[list[int]]:
    """Token ids that are likely under the model. A model that cannot fill masks gets sentences or random tokens."""
    tokenizer, kind = artifact.tokenizer, synthetic_kind(artifact)
    if kind != GENERATED or tokenizer is None:
        return example_tokens(artifact.config, tokenizer, texts, seed)
    ids = np.array(random_tokens(artifact.config, texts, seed))
    ids[:, 0], ids[:, -1] = tokenizer.cls_id or 0, tokenizer.sep_id or 0
    generator = np.random.default_rng(seed)
    turns = generator.integers(0, ROUNDS, ids.shape)  # the round in which each position is filled
    turns[generator.random(ids.shape) < RANDOM_SHARE] = -1
    turns[:, [0, -1]] = -1
    engine = Engine(artifact.config, dict(artifact.weights), max_level=machine_max_level())
    for turn in range(ROUNDS):
        progress(f"generating text, {turn + 1} of {ROUNDS}")
        _fill_masks(engine, ids, turns - turn, tokenizer.mask_id or 0, generator)
    return [list(map(int, row)) for row in ids]


def example_tokens(config: AlbertConfig, tokenizer: Tokenizer | None, texts: int, seed: int = 0) -> list[list[int]]:
    """About `texts` times `LENGTH` token ids, without running a model: texts of one to four sentences for an English
    vocabulary, otherwise random tokens.
    """
    if tokenizer is None or not reads_english(tokenizer):
        return random_tokens(config, texts, seed)
    generated = everyday_sentences(texts * SENTENCES_EACH, seed)
    sentences = [" ".join(islice(generated, 1 + number % 4)) for number in range(texts * SENTENCES_EACH * 2 // 5)]
    return [e.ids for e in tokenizer.encode_batch(sentences, max_length=min(128, config.max_position_embeddings))]


def reads_english(tokenizer: Tokenizer) -> bool:
    """Whether most tokens of a vocabulary are in Latin letters, and English sentences have few, only known tokens."""
    tokens = [token.removeprefix("##").removeprefix("▁") for token in tokenizer.vocabulary.ids]
    letters = [token for token in tokens if token.isalpha()]
    if sum(token.isascii() for token in letters) < 0.8 * len(letters):
        return False
    sentences = list(everyday_sentences(50))
    ids = [token for row in tokenizer.ids_batch(sentences) for token in row]
    return tokenizer.unk_id not in ids and len(ids) < 2 * sum(len(text.split()) for text in sentences)


def _fill_masks(
    engine: Engine, ids: np.ndarray, when: np.ndarray, mask_id: int, generator: np.random.Generator
) -> None:
    """Sample a token for each position of `ids` where `when` is 0. Positions where `when` is 0 or more are masked.

    Tokens are sampled among the likeliest. Only these positions are scored, since each row of scores has the size of
    the vocabulary.
    """
    first = min(5, engine.config.vocab_size - 1)
    kept = min(TOP_TOKENS, engine.config.vocab_size - first)
    masked_ids = np.where(when >= 0, mask_id, ids).astype(np.int64)
    lengths = np.full(len(ids), ids.shape[1], np.int32)
    for start in range(0, len(ids), 16):
        part = slice(start, start + 16)
        now = when[part] == 0
        if not now.any():
            continue
        batch = TokenBatch(
            masked_ids[part], np.zeros_like(masked_ids[part]), lengths[part], np.arange(len(masked_ids[part]))
        )
        scores = engine.mlm_logits(engine.run(batch, engine.config.num_hidden_layers)[now])[:, first:]
        likely = np.argpartition(scores, -kept, axis=1)[:, -kept:]
        drawn = (np.take_along_axis(scores, likely, axis=1) + generator.gumbel(size=likely.shape)).argmax(axis=1)
        ids[part][now] = first + np.take_along_axis(likely, drawn[:, None], axis=1)[:, 0]
