"""A text written word by word, without torch: a fine-tuned model, sources in, `GeneratedText` out.

In: an `Albert` that was fine-tuned for `generate`, texts, `Style`. Out: one `GeneratedText` for each text. Before this file: `tasks/generation.py` says who sees
whom; `engine.py` gives embeddings and word scores.

Sources never see what is written, and what is written never sees what comes after it; so each use of the shared layer keeps the keys and values of its tokens, and a
step computes two tokens a text: the word just written, and a mask for the next. The mask's are thrown away. The same small graph reads the
source (nothing kept yet, many new tokens) and makes a step. Texts that have ended leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.runtime import graph as graphs
from albertkit.runtime.batching import TokenBatch, group_by_length, pad_batch
from albertkit.runtime.engine import Engine, open_graph
from albertkit.runtime.graph_builder import Builder, Graph, Levels, as_float
from albertkit.tasks.generation import GeneratedText, check_can_generate, special_ids
from albertkit.tokenizer import Tokenizer

if TYPE_CHECKING:
    from albertkit.albert import Albert

AWAY = np.float32(-1e9)  # added to the score of a token that may not be looked at
MOST_BEAMS = 100
HELD = 2  # times a batch's tokens: of so many, sources and what is written, keys and values are kept at once


@dataclass(frozen=True)
class Style:
    """How the next word is chosen: the likeliest one; or the best of several texts kept side by side; or drawn."""

    beams: int = 1
    """Texts kept side by side; the one with the best mean log-probability wins."""
    sample: bool = False
    """Draw words by their probability."""
    temperature: float = 1.0
    """Below 1 draws likely words more often, above 1 less often."""
    top_p: float = 1.0
    """Draw among the likeliest words that have this probability together."""
    seed: int = 0
    """Decides what is drawn, for each text by its place in the input."""
    no_repeat: int = 0
    """No run of so many tokens is written twice; 0 allows everything."""
    max_tokens: int | None = None
    """Most tokens to write; None takes what the model was trained with."""

    def __post_init__(self) -> None:
        if not 1 <= self.beams <= MOST_BEAMS:
            raise AlbertkitError(f"beams is {self.beams}; choose 1 to {MOST_BEAMS}")
        if self.sample and self.beams > 1:
            raise AlbertkitError(f"beams is {self.beams} and sample is on; choose one of them")
        if not 0 < self.temperature <= 100 or not 0 < self.top_p <= 1:
            raise AlbertkitError(
                f"temperature is {self.temperature} and top_p {self.top_p}; temperature is above 0, and top_p at most 1"
            )
        if not self.sample and (self.temperature != 1 or self.top_p != 1):
            raise AlbertkitError(
                f"temperature is {self.temperature} and top_p {self.top_p}, and nothing is drawn; turn sample on, or leave them away"
            )
        if self.seed < 0:
            raise AlbertkitError(f"seed is {self.seed}; choose 0 or above")
        if (self.max_tokens is not None and self.max_tokens < 1) or self.no_repeat < 0:
            raise AlbertkitError(
                f"max_tokens is {self.max_tokens} and no_repeat {self.no_repeat}; write at least 1 token, and no_repeat is 0 or above"
            )


# Graphs ----------------------------------------------------------------------------------------------------------


def step_graph(config: AlbertConfig, weights: graphs.Weights, prefix: str, levels: Levels) -> Graph:
    """One layer over new tokens: `hidden` (texts, new, H), what was kept (texts, past, A) twice, and `away` (texts, 1, new, past + new), which is
    added to the attention scores → hidden states, and the new keys and values.
    """
    b = Builder(levels)
    hidden = b.input("hidden", TensorProto.FLOAT, ["texts", "new", config.hidden_size])
    keys, values = (b.input(n, TensorProto.FLOAT, ["texts", "past", config.attention_size]) for n in ("keys", "values"))
    away = b.input("away", TensorProto.FLOAT, ["texts", 1, "new", "all"])
    inputs = ("query", "key", "value")
    together = graphs.stacked([weights[f"{prefix}.attention.{part}.weight"] for part in inputs])
    bias = np.concatenate([as_float(weights[f"{prefix}.attention.{part}.bias"]) for part in inputs])
    mixed = b.node("Add", b.product(hidden, "qkv", together), b.weight("qkv.bias", bias))
    query, key, value = b.split(mixed, 3)
    context = b.node(
        "MultiHeadAttention", query, b.node("Concat", keys, key, axis=1), b.node("Concat", values, value, axis=1),
        "", "", away, num_heads=config.num_attention_heads,
    )  # fmt: skip
    out = b.product(context, "output", weights[f"{prefix}.attention.output.weight"])
    names = ("attention.output.bias", "attention_norm.weight", "attention_norm.bias")
    vectors = [b.weight(name, as_float(weights[f"{prefix}.{name}"])) for name in names]
    middle = graphs.sum_norm(b, out, vectors[0], hidden, vectors[1:], config.layer_norm_eps)
    _, result = graphs.ffn_block(b, config, weights, prefix, middle)
    return b.graph(result, ["texts", "new", config.hidden_size], [key, value])


def target_embedding(config: AlbertConfig, weights: graphs.Weights, levels: Levels) -> Graph:
    """The embedding of targets at any position: `segments` takes positions, whose table has the second segment's vector added."""
    place, kind = "encoder.embeddings.position.weight", "encoder.embeddings.segment.weight"
    table = as_float(weights[place])
    both = {place: np.zeros_like(table), kind: table + as_float(weights[kind])[1]}
    return graphs.embedding_graph(config, {**weights, **both}, levels)


# Reading and stepping --------------------------------------------------------------------------------------------


@dataclass
class Kept:
    """Keys and values of some texts, for each use of a layer: (texts, room, A). The first `source` places hold sources, then come words."""

    keys: list[np.ndarray]
    values: list[np.ndarray]
    lengths: np.ndarray  # (texts,) tokens of each source
    source: int
    origin: np.ndarray  # (texts,) the number of the source
    written: int = 0

    def take(self, chosen: np.ndarray) -> None:
        """Go on with some of the texts, in this order; one may be taken several times."""
        if np.array_equal(self.origin[chosen], self.origin):  # beams of one source change places: its own keys stay
            for held in (*self.keys, *self.values):
                held[:, self.source : self.past] = held[chosen, self.source : self.past]
            return
        self.keys = [held[chosen] for held in self.keys]
        self.values = [held[chosen] for held in self.values]
        self.lengths, self.origin = self.lengths[chosen], self.origin[chosen]

    @property
    def past(self) -> int:
        """Places in use."""
        return self.source + self.written

    def away(self, new: int) -> np.ndarray:
        """What is added to the attention scores of new tokens: a source has an end, and a token sees none after it."""
        table = np.zeros((len(self.lengths), 1, new, self.past + new), np.float32)
        beyond = np.arange(self.source)[None] >= self.lengths[:, None]
        table[:, :, :, : self.source] = np.where(beyond, AWAY, np.float32(0))[:, None, None]
        table[:, :, :, self.past :] = np.triu(np.full((new, new), AWAY), 1)
        return table


class Writer:
    """The graphs that write, opened once for a model. `weights` are those the engine had before it took its layers out."""

    def __init__(self, config: AlbertConfig, weights: graphs.Weights, engine: Engine, tokenizer: Tokenizer) -> None:
        check_can_generate(config, weights)
        self.config, self.engine = config, engine
        self.end, self.mask = special_ids(tokenizer)[1:]
        banned = {tokenizer.pad_id, tokenizer.cls_id, tokenizer.mask_id, tokenizer.unk_id} - {None}
        self.vocabulary, self.banned = tokenizer.vocab_size, sorted(i for i in banned if i is not None)
        self._embedding = open_graph(target_embedding(config, weights, engine.levels), 1)
        self._layers = [
            [self._open(weights, f"encoder.groups.{g}.{i}") for i in range(config.inner_group_num)]
            for g in range(config.num_hidden_groups)
        ]

    def _open(self, weights: graphs.Weights, prefix: str) -> Any:
        return open_graph(step_graph(self.config, weights, prefix, self.engine.levels), self.engine.threads)

    def uses(self, depth: int) -> list[Any]:
        """The graph of each use of a layer, in order."""
        return [inner for layer in range(depth) for inner in self._layers[self.config.group_of(layer)]]

    def read(self, batch: TokenBatch, depth: int, room: int) -> Kept:
        """Read sources, and keep room for so many words."""
        hidden = self.engine.run(batch, 0)
        texts, length, _ = hidden.shape
        nothing = np.zeros((texts, 0, self.config.attention_size), np.float32)
        away = np.zeros((texts, 1, length, length), np.float32)
        away += np.where(np.arange(length)[None] >= batch.lengths[:, None], AWAY, np.float32(0))[:, None, None]
        kept = Kept([], [], batch.lengths.astype(np.int64), length, np.arange(texts))
        for use in self.uses(depth):
            hidden, key, value = use.run(None, {"hidden": hidden, "keys": nothing, "values": nothing, "away": away})
            for held, new in ((kept.keys, key), (kept.values, value)):
                held.append(np.empty((texts, length + room, new.shape[2]), np.float32))
                held[-1][:, :length] = new
        return kept

    def step(self, kept: Kept, last: np.ndarray | None, depth: int) -> np.ndarray:
        """Log-probabilities of the next word (texts, V), after the word `last` (texts,); None for the first."""
        masks = np.full(len(kept.lengths), self.mask, np.int64)
        ids = masks[:, None] if last is None else np.stack([last, masks], 1)
        new = ids.shape[1]
        positions = kept.lengths[:, None] + kept.written + np.arange(new)
        (hidden,) = self._embedding.run(None, {"ids": ids, "segments": positions})
        away, past = kept.away(new), kept.past
        for number, use in enumerate(self.uses(depth)):
            keys, values = kept.keys[number], kept.values[number]
            given = {"hidden": hidden, "keys": keys[:, :past], "values": values[:, :past], "away": away}
            hidden, key, value = use.run(None, given)
            if last is not None:
                keys[:, past], values[:, past] = key[:, 0], value[:, 0]
        kept.written += last is not None
        scores = self.engine.words(hidden[:, -1])[:, : self.vocabulary].astype(np.float64)
        scores[:, self.banned] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        chances: np.ndarray = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return chances


# Choosing words --------------------------------------------------------------------------------------------------

Pick = Callable[[np.ndarray, int], int]  # log-probabilities (V,) and the place of the text → a word


def drawn(style: Style) -> Pick:
    """Words drawn by their probability; each text has its own dice, so that its neighbours do not matter."""
    dice: dict[int, np.random.Generator] = {}

    def pick(chances: np.ndarray, place: int) -> int:
        rng = dice.setdefault(place, np.random.default_rng([style.seed, place]))
        with np.errstate(over="ignore"):  # at a temperature near 0 all but the likeliest are infinitely far
            share = np.exp((chances - chances.max()) / style.temperature)
        share /= share.sum()
        order = np.flatnonzero(share > (1 - style.top_p) / len(share))  # the others have less than 1 - top_p together
        if style.top_p < 1:
            order = order[np.argsort(-share[order], kind="stable")]
        summed = np.cumsum(share[order])
        count = min(int(np.searchsorted(summed, style.top_p * (1 - 1e-9))) + 1, len(order))
        at = np.searchsorted(summed[:count], rng.random() * summed[count - 1], side="right")
        return int(order[min(int(at), count - 1)])

    return pick


def likeliest(chances: np.ndarray, place: int) -> int:
    """The likeliest word."""
    return int(chances.argmax())


@dataclass
class Text:
    """A text being written."""

    ids: list[int]
    total: float = 0.0
    ended: bool = False

    @property
    def score(self) -> float:
        """Mean log-probability of its tokens."""
        return self.total / max(1, len(self.ids) + self.ended)


def bar(chances: np.ndarray, texts: Sequence[Text], size: int) -> None:
    """Take away the words that would end a run of `size` tokens which a text already holds."""
    for row, text in zip(chances, texts if size else (), strict=False):
        ids = text.ids
        runs = [ids[i : i + size] for i in range(len(ids) - size + 1)]
        row[[run[-1] for run in runs if run[:-1] == ids[len(ids) - size + 1 :]]] = -np.inf


def one_by_one(writer: Writer, batch: TokenBatch, pick: Pick, most: int, depth: int, style: Style) -> list[Text]:
    """One text for each source, a word at a time."""
    texts = [Text([]) for _ in batch.order]
    kept, going, last = writer.read(batch, depth, most), np.arange(len(texts)), None
    for _ in range(most):
        chances = writer.step(kept, last, depth)
        bar(chances, [texts[i] for i in going], style.no_repeat)
        last = np.array([pick(row, int(batch.order[i])) for row, i in zip(chances, going, strict=True)])
        for row, word, i in zip(chances, last.tolist(), going.tolist(), strict=True):
            texts[i].total += float(row[word])
            texts[i].ended = word == writer.end
            if word != writer.end:
                texts[i].ids.append(word)
        on = np.flatnonzero(last != writer.end)
        if not len(on):
            break
        if len(on) < len(last):
            kept.take(on)
            going, last = going[on], last[on]
    return texts


def side_by_side(writer: Writer, batch: TokenBatch, most: int, depth: int, style: Style) -> list[Text]:
    """Beam search: the best text of several for each source, by mean log-probability."""
    count, beams = len(batch.order), style.beams
    kept = writer.read(batch, depth, most)
    alive: list[list[Text]] = [[Text([])] for _ in range(count)]
    done: list[list[Text]] = [[] for _ in range(count)]
    going, last = list(range(count)), None
    for _ in range(most):
        chances, start, chosen = writer.step(kept, last, depth), 0, []
        bar(chances, [text for i in going for text in alive[i]], style.no_repeat)
        for i in going:
            own = alive[i]
            table = chances[start : start + len(own)]
            alive[i], parents = spread(table, own, done[i], beams, writer.end)
            if len(done[i]) >= beams and done[i][0].score >= max((t.score for t in alive[i]), default=-np.inf):
                alive[i], parents = [], []
            chosen += [start + parent for parent in parents]
            start += len(own)
        going = [i for i in going if alive[i]]
        if not going:
            break
        kept.take(np.array(chosen))
        last = np.array([text.ids[-1] for i in going for text in alive[i]])
    return [max([*ended, *texts], key=lambda t: t.score) for ended, texts in zip(done, alive, strict=True)]


def spread(
    chances: np.ndarray, own: list[Text], done: list[Text], beams: int, end: int
) -> tuple[list[Text], list[int]]:
    """The best next texts, and which text each goes on from; those that end go to `done`, which is kept in order."""
    totals = chances + np.array([text.total for text in own])[:, None]  # (texts, V)
    flat = totals.ravel()
    best = np.argpartition(-flat, min(2 * beams, len(flat) - 1))[: 2 * beams]
    texts: list[Text] = []
    parents: list[int] = []
    for place in best[np.argsort(-flat[best], kind="stable")].tolist():
        parent, word = divmod(place, chances.shape[1])
        if not np.isfinite(flat[place]) or len(texts) == beams:
            break
        if word == end:
            done.append(Text(own[parent].ids, float(flat[place]), True))
        else:
            texts.append(Text([*own[parent].ids, word], float(flat[place])))
            parents.append(parent)
    done.sort(key=lambda text: -text.score)
    del done[beams:]
    return texts, parents


def write(
    albert: Albert, texts: Sequence[str], style: Style | None = None, depth: int | None = None
) -> list[GeneratedText]:
    """What the model writes from each text."""
    style, writer, task = style or Style(), albert.writer, albert.task
    layers = albert._layers_to_apply(None, depth, "mean")
    length = min(int(albert.meta.details.get("max_length", albert.max_tokens)), albert.max_tokens)
    short = [albert._check_size(place, text, "truncate") for place, text in enumerate(texts)]
    sources = task.sources(short, albert.tokenizer, length)
    most = style.max_tokens or task.target_length
    longest = max(map(len, sources), default=0)
    if most > albert.max_tokens - longest:
        raise AlbertkitError(
            f"max_tokens is {most}; behind a source of {longest} tokens this model has {albert.max_tokens - longest} positions left"
        )
    found: list[Any] = [None] * len(sources)
    pick = drawn(style) if style.sample else likeliest
    for places in group_by_length(
        [len(source) + most for source in sources], max(1, HELD * albert.token_budget // style.beams)
    ):
        batch = pad_batch(sources, None, places)
        if style.beams > 1:
            made = side_by_side(writer, batch, most, layers, style)
        else:
            made = one_by_one(writer, batch, pick, most, layers, style)
        for place, text in zip(batch.order.tolist(), made, strict=True):
            found[place] = GeneratedText(albert.tokenizer.decode(text.ids), text.score, text.ended)
    return found
