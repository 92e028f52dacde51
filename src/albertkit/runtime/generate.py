"""Texts generated token by token, without torch, by a model fine-tuned for `generate`.

In: a `RuntimeModel`, source texts, `GenerateSettings`. Out: one `GeneratedText` per text. Before this file:
`tasks/generation.py` defines which token attends to which. No token attends to later ones, so each use of the shared
layer caches keys and values. A step computes two tokens per text: the last one, and a mask for the next, whose keys are
discarded. The same small graph reads the source, with an empty cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, check_fields, check_finite
from albertkit.input_warnings import find_problems, report_problems
from albertkit.onnx_model import TensorProto
from albertkit.runtime import graph as graphs
from albertkit.runtime.batching import TokenBatch, group_by_length, pad_batch
from albertkit.runtime.embed import shorten
from albertkit.runtime.engine import Engine, open_graph
from albertkit.runtime.graph_builder import Builder, Graph, as_float
from albertkit.runtime.predict import report_untrained_depth
from albertkit.runtime.runtime_model import Depth, RuntimeModel
from albertkit.tasks.examples import RewriteExample
from albertkit.tasks.generation import GeneratedText, GenerateTask, check_can_generate, special_ids
from albertkit.tokenizer import Tokenizer

if TYPE_CHECKING:
    import onnxruntime

EXCLUDED = np.float32(-1e9)  # added to the attention score of a token that may not be attended to
MAX_BEAMS = 100
MAX_BATCHES = 2  # times the token budget: sources and targets whose keys and values are cached at once


@dataclass(frozen=True)
class GenerateSettings:
    """How texts are generated: greedily, or with beam search.

    >>> from albertkit import GenerateSettings
    >>> GenerateSettings(beams=4, no_repeat=3).beams
    4
    """

    beams: int = 1
    """Beams of beam search; the text with the best mean log-probability wins. 1 is greedy decoding."""
    no_repeat: int = 0
    """No n-gram of this size is generated twice; 0 allows repetition."""
    max_tokens: int | None = None
    """Maximum number of tokens to generate; the default is that of training."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 <= self.beams <= MAX_BEAMS:
            raise AlbertkitError(f"beams={self.beams} is out of range. Pass 1 to {MAX_BEAMS}.")
        if (self.max_tokens is not None and self.max_tokens < 1) or self.no_repeat < 0:
            raise AlbertkitError(
                f"max_tokens is {self.max_tokens} and no_repeat is {self.no_repeat}. "
                f"Pass max_tokens of 1 or more, and no_repeat of 0 or more."
            )


class GenerateKeywords(TypedDict, total=False):
    """The keywords of `Albert.generate`: the fields of `GenerateSettings`."""

    beams: int
    no_repeat: int
    max_tokens: int | None


# Graphs ----------------------------------------------------------------------------------------------------------


def step_graph(config: AlbertConfig, weights: graphs.Weights, prefix: str, max_level: int) -> Graph:
    """One layer over new tokens: `hidden` (texts, new, H), cached `keys` and `values` (texts, past, A), and `bias`
    (texts, 1, new, past + new), added to the attention scores → hidden states, and the new keys and values.
    """
    b = Builder(max_level)
    hidden = b.input("hidden", TensorProto.FLOAT, ["texts", "new", config.hidden_size])
    keys, values = (b.input(n, TensorProto.FLOAT, ["texts", "past", config.attention_size]) for n in ("keys", "values"))
    bias = b.input("bias", TensorProto.FLOAT, ["texts", 1, "new", "all"])
    mixed, qkv_bias = graphs.input_product(b, config, weights, prefix, hidden)
    query, key, value = b.split(b.node("Add", mixed, qkv_bias), 3)
    context = b.node(
        "MultiHeadAttention", query, b.node("Concat", keys, key, axis=1), b.node("Concat", values, value, axis=1),
        "", "", bias, num_heads=config.num_attention_heads,
    )  # fmt: skip
    layer = graphs.LayerBuilder(b, config, weights, prefix)
    _, result = layer.ffn_block(prefix, layer.attention_output(context, hidden))
    return b.graph(result, ["texts", "new", config.hidden_size], [key, value])


def target_embedding(config: AlbertConfig, weights: graphs.Weights, max_level: int) -> Graph:
    """The embedding of targets at any position: `segments` takes positions; their table includes the second segment's
    vector.
    """
    position_name, segment_name = "encoder.embeddings.position.weight", "encoder.embeddings.segment.weight"
    table = as_float(weights[position_name])
    tables = {position_name: np.zeros_like(table), segment_name: table + as_float(weights[segment_name])[1]}
    return graphs.embedding_graph(config, {**weights, **tables}, max_level)


# Reading and stepping --------------------------------------------------------------------------------------------


@dataclass
class KeyValueCache:
    """Keys and values of some texts, for each use of a layer: (texts, room, A). The first `source` positions are
    sources, then targets.
    """

    keys: list[np.ndarray]
    values: list[np.ndarray]
    lengths: np.ndarray  # (texts,) tokens of each source
    source: int
    origin: np.ndarray  # (texts,) the number of the source
    generated: int = 0

    def take(self, rows: np.ndarray) -> None:
        """Select some of the texts, in this order, possibly with repetitions."""
        if np.array_equal(rows, np.arange(len(self.origin))):
            return
        if np.array_equal(self.origin[rows], self.origin):  # beams of a source are permuted: its keys stay
            for table in (*self.keys, *self.values):
                table[:, self.source : self.past] = table[rows, self.source : self.past]
            return
        self.keys = [table[rows] for table in self.keys]
        self.values = [table[rows] for table in self.values]
        self.lengths, self.origin = self.lengths[rows], self.origin[rows]

    @property
    def past(self) -> int:
        """The number of cached positions."""
        return self.source + self.generated

    def attention_bias(self, new_tokens: int) -> np.ndarray:
        """Added to the attention scores of new tokens: excludes padding of sources, and later tokens."""
        table = np.zeros((len(self.lengths), 1, new_tokens, self.past + new_tokens), np.float32)
        table[:, :, :, : self.source] = padding_bias(self.lengths, self.source)
        table[:, :, :, self.past :] = np.triu(np.full((new_tokens, new_tokens), EXCLUDED), 1)
        return table


def padding_bias(lengths: np.ndarray, width: int) -> np.ndarray:
    """Added to the attention scores of `width` source tokens: excludes padding, (texts, 1, 1, width)."""
    is_padding = np.arange(width)[None] >= lengths[:, None]
    return np.asarray(np.where(is_padding, EXCLUDED, np.float32(0))[:, None, None])


class TextGenerator:
    """The graphs for generation, opened once for a model. `weights` are the complete weights, from before `Engine`
    removed its layers.
    """

    def __init__(self, config: AlbertConfig, weights: graphs.Weights, engine: Engine, tokenizer: Tokenizer) -> None:
        check_can_generate(config, weights)
        self.config, self.engine = config, engine
        self.end, self.mask = special_ids(tokenizer)[1:]
        special = {tokenizer.pad_id, tokenizer.cls_id, tokenizer.mask_id, tokenizer.unk_id}
        self.vocabulary, self.banned = tokenizer.vocab_size, sorted(i for i in special if i is not None)
        self._embedding = open_graph(target_embedding(config, weights, engine.max_level), 1)
        self._layers = [
            [
                open_graph(step_graph(config, weights, f"encoder.groups.{g}.{i}", engine.max_level), engine.threads)
                for i in range(config.inner_group_num)
            ]
            for g in range(config.num_hidden_groups)
        ]

    def layer_sessions(self, depth: int) -> list[onnxruntime.InferenceSession]:
        """The graph of each use of a layer, in order."""
        return [inner for layer in range(depth) for inner in self._layers[self.config.group_of(layer)]]

    def read(self, batch: TokenBatch, depth: int, room: int) -> KeyValueCache:
        """Encode sources, with room for `room` target tokens."""
        hidden = self.engine.run(batch, 0)
        texts, length, _ = hidden.shape
        nothing = np.zeros((texts, 0, self.config.attention_size), np.float32)
        bias = np.repeat(padding_bias(batch.lengths, length), length, axis=2)
        cache = KeyValueCache([], [], batch.lengths.astype(np.int64), length, np.arange(texts))
        for use in self.layer_sessions(depth):
            hidden, key, value = use.run(None, {"hidden": hidden, "keys": nothing, "values": nothing, "bias": bias})
            for tables, new in ((cache.keys, key), (cache.values, value)):
                tables.append(np.empty((texts, length + room, new.shape[2]), np.float32))
                tables[-1][:, :length] = new
        return cache

    def step(self, cache: KeyValueCache, last: np.ndarray | None, depth: int) -> np.ndarray:
        """Log-probabilities of the next token (texts, V), after the token `last` (texts,); None for the first."""
        masks = np.full(len(cache.lengths), self.mask, np.int64)
        ids = masks[:, None] if last is None else np.stack([last, masks], 1)
        new_tokens = ids.shape[1]
        positions = cache.lengths[:, None] + cache.generated + np.arange(new_tokens)
        (hidden,) = self._embedding.run(None, {"ids": ids, "segments": positions})
        bias, past = cache.attention_bias(new_tokens), cache.past
        for number, use in enumerate(self.layer_sessions(depth)):
            keys, values = cache.keys[number], cache.values[number]
            inputs = {"hidden": hidden, "keys": keys[:, :past], "values": values[:, :past], "bias": bias}
            hidden, key, value = use.run(None, inputs)
            if last is not None:
                keys[:, past], values[:, past] = key[:, 0], value[:, 0]
        cache.generated += last is not None
        scores = self.engine.mlm_logits(hidden[:, -1])[:, : self.vocabulary].astype(np.float64)
        check_finite("scores", scores)
        scores[:, self.banned] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))


# Choosing tokens -------------------------------------------------------------------------------------------------


@dataclass
class Hypothesis:
    """A text being generated."""

    ids: list[int]
    total: float = 0.0
    ended: bool = False

    @property
    def score(self) -> float:
        """Mean log-probability of its tokens."""
        return self.total / max(1, len(self.ids) + self.ended)


def exclude_repeats(log_probabilities: np.ndarray, texts: Sequence[Hypothesis], size: int) -> None:
    """Exclude the tokens that would complete an n-gram of `size` tokens which a text already contains."""
    for row, text in zip(log_probabilities, texts if size else (), strict=False):
        ids = text.ids
        runs = [ids[i : i + size] for i in range(len(ids) - size + 1)]
        row[[run[-1] for run in runs if run[:-1] == ids[len(ids) - size + 1 :]]] = -np.inf


def expand_text(row: np.ndarray, text: Hypothesis, done: list[Hypothesis], end: int) -> list[Hypothesis]:
    """A text with its likeliest next token; a finished text is moved to `done`."""
    word = int(row.argmax())
    total = text.total + float(row[word])
    if word != end:
        return [Hypothesis([*text.ids, word], total)]
    done.append(Hypothesis(text.ids, total, True))
    return []


def expand_beams(
    log_probabilities: np.ndarray, hypotheses: list[Hypothesis], done: list[Hypothesis], beams: int, end: int
) -> tuple[list[Hypothesis], list[int]]:
    """The best continuations, and the text that each continues. Finished ones are moved to `done`, which is sorted."""
    totals = log_probabilities + np.array([text.total for text in hypotheses])[:, None]  # (texts, V)
    flat = totals.ravel()
    likeliest = np.argpartition(-flat, min(2 * beams, len(flat) - 1))[: 2 * beams]
    texts: list[Hypothesis] = []
    parents: list[int] = []
    for index in likeliest[np.argsort(-flat[likeliest], kind="stable")].tolist():
        parent, word = divmod(index, log_probabilities.shape[1])
        if not np.isfinite(flat[index]) or len(texts) == beams:
            break
        if word == end:
            done.append(Hypothesis(hypotheses[parent].ids, float(flat[index]), True))
        else:
            texts.append(Hypothesis([*hypotheses[parent].ids, word], float(flat[index])))
            parents.append(parent)
    done.sort(key=lambda text: -text.score)
    del done[beams:]
    return texts, parents


def decode(
    generator: TextGenerator, batch: TokenBatch, max_tokens: int, depth: int, settings: GenerateSettings
) -> list[Hypothesis]:
    """The best text for each source, by greedy decoding or beam search."""
    cache = generator.read(batch, depth, max_tokens)
    alive = [[Hypothesis([])] for _ in batch.order]
    done: list[list[Hypothesis]] = [[] for _ in batch.order]
    active, last = list(range(len(alive))), None
    for _ in range(max_tokens):
        log_probabilities, start, parent_rows = generator.step(cache, last, depth), 0, list[int]()
        exclude_repeats(log_probabilities, [text for i in active for text in alive[i]], settings.no_repeat)
        for i in active:
            beams = alive[i]
            table = log_probabilities[start : start + len(beams)]
            if settings.beams > 1:
                alive[i], parents = expand_beams(table, beams, done[i], settings.beams, generator.end)
            else:
                alive[i], parents = expand_text(table[0], beams[0], done[i], generator.end), [0]
            if len(done[i]) >= settings.beams and done[i][0].score >= max((t.score for t in alive[i]), default=-np.inf):
                alive[i] = []
            parent_rows += [start + parent for parent in parents[: len(alive[i])]]
            start += len(beams)
        active = [i for i in active if alive[i]]
        if not active:
            break
        cache.take(np.array(parent_rows))
        last = np.array([text.ids[-1] for i in active for text in alive[i]])
    return [max([*ended, *texts], key=lambda t: t.score) for ended, texts in zip(done, alive, strict=True)]


def generate(
    model: RuntimeModel, texts: Sequence[str], settings: GenerateSettings | None = None, depth: Depth | None = None
) -> list[GeneratedText]:
    """The text generated from each of `texts`, in their order."""
    settings, generator, task = settings or GenerateSettings(), model.generator, model.task
    assert isinstance(task, GenerateTask), "`generator` was opened"
    layers = model.layers_to_apply(depth)
    short = [shorten(model, index, text, "truncate") for index, text in enumerate(texts)]
    length = model.max_task_tokens
    sources = task.sources(short, model.tokenizer, length)
    problems = find_problems(model.tokenizer, short, sources)
    examples = [RewriteExample(text) for text in short]
    truncated, room = len(task.find_truncated(examples, (), model.tokenizer, length)), task.text_room(length)
    report_problems(replace(problems, truncated=truncated, limit=room, longest=model.max_tokens - length + room))
    report_untrained_depth(model, depth)
    max_tokens = settings.max_tokens or task.target_length
    longest = max(map(len, sources), default=0)
    if max_tokens > model.max_tokens - longest:
        raise AlbertkitError(
            f"max_tokens={max_tokens} is too large: after a source of {longest} tokens, this model has "
            f"{model.max_tokens - longest} positions left. Pass fewer."
        )
    results: dict[int, GeneratedText] = {}
    token_budget = max(1, MAX_BATCHES * model.token_budget // settings.beams)
    for indices in group_by_length([len(source) + max_tokens for source in sources], token_budget):
        batch = pad_batch(sources, None, indices)
        outputs = decode(generator, batch, max_tokens, layers, settings)
        for index, text in zip(batch.order.tolist(), outputs, strict=True):
            results[index] = GeneratedText(model.tokenizer.decode(text.ids), text.score, text.ended)
    return [results[index] for index in range(len(sources))]
