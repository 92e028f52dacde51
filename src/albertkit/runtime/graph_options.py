"""Parts of the layer's graph beyond canonical ALBERT: attention of low rank, in a window, with shared keys, with a
bias; the GRU.

In: a builder, a config with options, weights. Out: names of tensors. `graph.py` asks here where an option is on; the
same functions make the engine's graphs and the exported file. `model/optional_modules.py` is the same in torch, with
the formulas.

Low rank is multiplied into the matrices around it when the graph is built, so that it runs as attention with narrow
heads; 8-bit matrices are rounded again for it. With a window the graph has an input `local`: one session, which holds
each weight once, serves all kinds of layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.quantized import QuantizedMatrix, quantize_rows
from albertkit.runtime.graph_builder import HIDDEN, Builder, as_float

Weights = dict[str, "np.ndarray | QuantizedMatrix"]
EVERYTHING, MASKED, BLOCKS = 0, 1, 2  # how a layer with a window is computed: within one, up to three, and beyond
FAR = 2**31 - 1  # an end of a slice that means the last


def multiply_heads(weight: np.ndarray | QuantizedMatrix, matrix: np.ndarray) -> np.ndarray | QuantizedMatrix:
    """A matrix whose rows, head by head, go through `matrix` (narrow, wide)."""
    plain = weight.values * weight.scale[:, None] if isinstance(weight, QuantizedMatrix) else weight
    made = (matrix @ plain.reshape(-1, matrix.shape[1], plain.shape[1])).reshape(-1, plain.shape[1])
    if not isinstance(weight, QuantizedMatrix):
        return made
    small = quantize_rows(made)
    return QuantizedMatrix(small.values, small.scale, weight.smooth)


def input_parts(
    config: AlbertConfig, weights: Weights, prefix: str
) -> tuple[list[np.ndarray | QuantizedMatrix], np.ndarray]:
    """The matrices of queries, keys and values, and their biases as one."""
    names = ("query", "key", "value")
    parts = [weights[f"{prefix}.attention.{name}.weight"] for name in names]
    biases = [as_float(weights[f"{prefix}.attention.{name}.bias"]) for name in names]
    if config.options.low_rank:
        low = [as_float(weights[f"{prefix}.attention.low.{name}"]) for name in names]
        parts = [multiply_heads(part, matrix) for part, matrix in zip(parts, low, strict=True)]
        biases = [(bias.reshape(-1, m.shape[1]) @ m.T).ravel() for bias, m in zip(biases, low, strict=True)]
    return parts, np.concatenate(biases).astype(np.float32)


def output_part(config: AlbertConfig, weights: Weights, prefix: str) -> np.ndarray | QuantizedMatrix:
    """The output matrix, for heads as wide as they are computed."""
    weight = weights[f"{prefix}.attention.output.weight"]
    if not config.options.low_rank:
        return weight
    plain = as_float(weight).reshape(config.hidden_size, config.num_attention_heads, config.head_size)
    made = (plain @ as_float(weights[f"{prefix}.attention.low.lift"])).reshape(config.hidden_size, -1)
    return quantize_rows(made) if isinstance(weight, QuantizedMatrix) else made


def expand_low_rank(b: Builder, config: AlbertConfig, weights: Weights, prefix: str, context: str) -> str:
    """What the output matrix as it is stored would read: heads brought up from low rank, (texts, length, A)."""
    if not config.options.low_rank:
        return context
    heads = b.node("Reshape", context, b.constant([0, 0, config.num_attention_heads, config.score_size], np.int64))
    lift = b.transpose("low.lift", as_float(weights[f"{prefix}.attention.low.lift"]))
    return b.node("Reshape", b.node("MatMul", heads, lift), b.constant([0, 0, config.attention_size], np.int64))


def attend(
    b: Builder, config: AlbertConfig, weights: Weights, prefix: str, mixed: str, mask: str, local: str | bool
) -> str:
    """Attention over the input product with its biases: (texts, length, rows) → (texts, length, heads · size)."""
    heads, size, few = config.num_attention_heads, config.score_size, config.key_heads
    parts = b.split_at(mixed, [heads * size, few * size, few * size])
    theta = ""
    if config.options.attention_bias:
        theta = b.weight("theta", as_float(weights[f"{prefix}.attention.theta"]))

    def whole(masked: bool = False) -> str:
        query, key, value = parts
        if few != heads:
            repeats = b.constant([1, 1, heads], np.int64)
            key, value = b.node("Tile", key, repeats), b.node("Tile", value, repeats)
        extra = _bias(b, config, theta, b.length_of(query), whole=True) if theta else ""
        if masked:
            apart = _apart(b, config, b.length_of(query))
            extra = b.node("Add", extra, apart) if extra else apart
        return b.attend_parts((query, key, value), mask, heads, size, extra)

    def blocks() -> str:
        return WindowAttention(b, config, theta).attend(parts, mask)

    # What no text of this model is long enough for is left out: blocks hold a table of window · 3 window numbers.
    most = kind_of_length(config, config.max_position_embeddings)
    kinds = (whole, lambda: whole(masked=True), blocks)
    if isinstance(local, bool):
        return kinds[most if local else EVERYTHING]()
    if most == EVERYTHING:
        return whole()
    is_masked, is_long = (b.node("Equal", local, b.constant(kind, np.int64)) for kind in (MASKED, BLOCKS))
    if most == MASKED:
        return b.choose(is_masked, kinds[MASKED], whole)
    return b.choose(is_long, blocks, lambda: b.choose(is_masked, kinds[MASKED], whole))


def kind_of(config: AlbertConfig, layer: int, length: int) -> int:
    """What the input `local` is for a layer number and a length: EVERYTHING, MASKED or BLOCKS."""
    return kind_of_length(config, length) if config.options.local(layer) else EVERYTHING


def kind_of_length(config: AlbertConfig, length: int) -> int:
    """How a layer that sees a window is computed for texts of a length."""
    window = config.options.window
    if length <= window + 1:
        return EVERYTHING
    return MASKED if length <= 3 * window else BLOCKS


def _apart(b: Builder, config: AlbertConfig, length: str) -> str:
    """HIDDEN for two tokens that do not see each other, else 0; (1, 1, length, length)."""
    place = b.node("Range", b.constant(0, np.int64), length, b.constant(1, np.int64))
    column = b.node("Unsqueeze", place, b.constant([1], np.int64))
    away = b.node("Abs", b.node("Sub", place, column))
    least = b.node("Min", place, column)  # 0 where one of the two is the first token
    far = b.node(
        "And",
        b.node("Greater", away, b.constant(config.options.window, np.int64)),
        b.node("Greater", least, b.constant(0, np.int64)),
    )
    made = b.node("Where", far, b.constant(HIDDEN, np.float32), b.constant(0.0, np.float32))
    return b.node("Unsqueeze", made, b.constant([0, 1], np.int64))


def _bias(b: Builder, config: AlbertConfig, theta: str, length: str, whole: bool) -> str:
    """θ on scores, (1, heads, length, length); without `whole`, on those of the first token, (1, heads, 1, length)."""
    place = b.node("Range", b.constant(0, np.int64), length, b.constant(1, np.int64))  # (length,)
    column = b.node("Unsqueeze", place, b.constant([1], np.int64))
    if config.options.attention_bias == "relative":
        away = b.node("Sub", place, column) if whole else b.node("Unsqueeze", place, b.constant([0], np.int64))
        found = b.node("Gather", theta, _index(b, config, away), axis=1)  # (heads, length or 1, length)
    else:
        shown = b.node("Cast", b.node("Equal", place, b.constant(0, np.int64)), to=1)
        tall = b.node("Unsqueeze", theta, b.constant([1, 2], np.int64))  # (heads, 1, 1)
        found = b.node("Mul", tall, shown)
        if whole:
            rows = b.node("Cast", b.node("GreaterOrEqual", column, b.constant(0, np.int64)), to=1)  # ones, (length, 1)
            found = b.node("Mul", found, rows)
    return b.node("Unsqueeze", found, b.constant([0], np.int64))


def _index(b: Builder, config: AlbertConfig, away: str) -> str:
    """Distances as places in the table of θ."""
    reach = config.options.relative_reach
    cut = b.node("Clip", away, b.constant(-reach, np.int64), b.constant(reach, np.int64))
    return b.node("Add", cut, b.constant(reach, np.int64))


@dataclass(frozen=True)
class WindowAttention:
    """Attention in a window: blocks of `window` queries over three blocks of keys; the first token attends to all."""

    b: Builder
    config: AlbertConfig
    theta: str

    def attend(self, parts: list[str], mask: str) -> str:
        """Queries, keys and values side by side → (texts, length, heads · size)."""
        b, config = self.b, self.config
        heads, size, few, w = config.num_attention_heads, config.score_size, config.key_heads, config.options.window
        length = b.length_of(parts[0])
        whole = b.constant(w, np.int64)
        count = b.node("Div", b.node("Add", length, b.constant(w - 1, np.int64)), whole)  # blocks
        rest = b.node("Sub", b.node("Mul", count, whole), length)
        query = b.node("Mul", parts[0], b.constant(size**-0.5, np.float32))
        asked = self._blocks(
            self._padded(query, b.constant(0, np.int64), rest, 0.0), heads
        )  # (texts, heads, n, w, size)
        known = b.key_mask(mask, length)  # (texts, length), 0 or HIDDEN
        keys, values = (self._neighbours(part, rest, few) for part in parts[1:])  # (texts, few, n, 3w, size)
        band = b.node("MatMul", asked, b.node("Transpose", keys, perm=[0, 1, 2, 4, 3]))  # (texts, heads, n, w, 3w)
        band = b.node("Add", b.node("Add", band, self._near()), self._seen(known, rest))
        firsts = [self._heads(self._first(part), few) for part in parts[1:]]  # (texts, few, 1, size)
        first = b.node("Unsqueeze", b.node("Transpose", firsts[0], perm=[0, 1, 3, 2]), b.constant([2], np.int64))
        first = b.node("MatMul", asked, first)  # (texts, heads, n, w, 1)
        if self.theta:
            first = b.node("Add", first, self._first_bias(count))
        chances = b.node("Softmax", b.node("Concat", band, first, axis=-1), axis=-1)
        near, top = b.split_at(chances, [3 * w, 1])
        context = b.node("MatMul", near, values)
        context = b.node("Add", context, b.node("Mul", top, b.node("Unsqueeze", firsts[1], b.constant([2], np.int64))))
        joined = b.node("Transpose", context, perm=[0, 2, 3, 1, 4])  # (texts, n, w, heads, size)
        joined = b.node("Reshape", joined, b.constant([0, -1, heads * size], np.int64))
        one = b.constant([1], np.int64)
        after = b.node("Slice", joined, one, b.node("Unsqueeze", length, b.constant([0], np.int64)), one)
        return b.node("Concat", self._sees_all(query, parts, known, length), after, axis=1)

    def _sees_all(self, query: str, parts: list[str], known: str, length: str) -> str:
        """The first token over all others, (texts, 1, heads · size); queries are scaled already."""
        b, config = self.b, self.config
        heads, size, few = config.num_attention_heads, config.score_size, config.key_heads
        asked = self._heads(self._first(query), heads)  # (texts, heads, 1, size)
        key, value = (self._heads(part, few) for part in parts[1:])
        scores = b.node("MatMul", asked, b.node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = b.node("Add", scores, b.node("Unsqueeze", known, b.constant([1, 2], np.int64)))
        if self.theta:
            scores = b.node("Add", scores, _bias(b, config, self.theta, length, whole=False))
        context = b.node("MatMul", b.node("Softmax", scores, axis=-1), value)  # (texts, heads, 1, size)
        return b.node(
            "Reshape", b.node("Transpose", context, perm=[0, 2, 1, 3]), b.constant([0, 0, heads * size], np.int64)
        )

    def _first(self, x: str) -> str:
        one = self.b.constant([1], np.int64)
        return self.b.node("Slice", x, self.b.constant([0], np.int64), one, one)

    def _heads(self, x: str, heads: int) -> str:
        """(texts, length, heads · size) → (texts, heads, length, size)."""
        wide = self.b.node("Reshape", x, self.b.constant([0, 0, heads, self.config.score_size], np.int64))
        return self.b.node("Transpose", wide, perm=[0, 2, 1, 3])

    def _padded(self, x: str, before: str, after: str, value: float, axes: int = 3) -> str:
        """More places before and after the second axis."""
        b = self.b
        zero, flat = b.constant([0], np.int64), b.constant([0], np.int64)
        ends = [b.node("Unsqueeze", end, flat) for end in (before, after)]
        more = [zero] * (axes - 2)
        pads = b.node("Concat", zero, ends[0], *more, zero, ends[1], *more, axis=0)
        return b.node("Pad", x, pads, b.constant(value, np.float32))

    def _blocks(self, x: str, heads: int) -> str:
        """(texts, n · w, heads · size) → (texts, heads, n, w, size)."""
        b, w = self.b, self.config.options.window
        cut = b.node("Reshape", x, b.constant([0, -1, w, heads, self.config.score_size], np.int64))
        return b.node("Transpose", cut, perm=[0, 3, 1, 2, 4])

    def _thrice(self, x: str, rest: str, value: float, axes: int) -> list[str]:
        """What stands in the block before, in this and in the next one, each (texts, n · w, …)."""
        b, w = self.b, self.config.options.window
        after = b.node("Add", rest, b.constant(w, np.int64))
        wide = self._padded(x, b.constant(w, np.int64), after, value, axes)
        one = b.constant([1], np.int64)
        ends = (-2 * w, -w, FAR)
        return [
            b.node("Slice", wide, b.constant([i * w], np.int64), b.constant([end], np.int64), one)
            for i, end in enumerate(ends)
        ]

    def _neighbours(self, x: str, rest: str, heads: int) -> str:
        """Keys or values of each block and its neighbours, (texts, heads, n, 3w, size)."""
        parts = [self._blocks(part, heads) for part in self._thrice(x, rest, 0.0, 3)]
        return self.b.node("Concat", *parts, axis=3)

    def _seen(self, known: str, rest: str) -> str:
        """0 for keys that are there, HIDDEN for others and for the first token, which stands apart: (texts, 1, n, 1,
        3w).
        """
        b, w = self.b, self.config.options.window
        one = b.constant([1], np.int64)
        others = b.node("Slice", known, one, b.constant([FAR], np.int64), one)
        known = b.node("Pad", others, b.constant([0, 1, 0, 0], np.int64), b.constant(HIDDEN, np.float32))
        cut = b.constant([0, -1, w], np.int64)
        parts = [b.node("Reshape", part, cut) for part in self._thrice(known, rest, HIDDEN, 2)]
        wide = b.node("Concat", *parts, axis=2)  # (texts, n, 3w)
        return b.node("Unsqueeze", wide, b.constant([1, 3], np.int64))

    def _near(self) -> str:
        """What distance adds to the scores of a block: HIDDEN beyond the window, else θ; (heads or 1, 1, w, 3w)."""
        b, w = self.b, self.config.options.window
        away = np.arange(3 * w)[None] - w - np.arange(w)[:, None]
        far = b.constant(np.where(np.abs(away) <= w, 0, HIDDEN)[None, None], np.float32)
        if self.config.options.attention_bias != "relative":
            return far
        found = b.node("Gather", self.theta, _index(b, self.config, b.constant(away, np.int64)), axis=1)
        return b.node("Add", b.node("Unsqueeze", found, b.constant([1], np.int64)), far)

    def _first_bias(self, count: str) -> str:
        """θ of the first token, as each query sees it: (heads, n or 1, w or 1, 1)."""
        b, w = self.b, self.config.options.window
        if self.config.options.attention_bias == "head":
            return b.node("Unsqueeze", self.theta, b.constant([1, 2, 3], np.int64))
        total = b.node("Mul", count, b.constant(w, np.int64))
        place = b.node("Range", b.constant(0, np.int64), total, b.constant(1, np.int64))
        found = b.node("Gather", self.theta, _index(b, self.config, b.node("Neg", place)), axis=1)  # (heads, n · w)
        return b.node("Reshape", found, b.constant([0, -1, w, 1], np.int64))


def gru(b: Builder, weights: Weights, x: str) -> str:
    """x + GRU(x) over (texts, length, H). ONNX wants update, reset, new; torch's order is reset, update, new."""
    parts = {}
    for part in ("input", "state"):
        for kind in ("weight", "bias"):
            reset, update, new = np.split(as_float(weights[f"encoder.embeddings.gru.{part}_{kind}"]), 3)
            parts[f"{part}_{kind}"] = np.concatenate([update, reset, new])
    size = parts["input_weight"].shape[1]
    biases = np.concatenate([parts["input_bias"], parts["state_bias"]])[None]
    made = b.node(
        "GRU", b.node("Transpose", x, perm=[1, 0, 2]), b.weight("gru.input", parts["input_weight"][None]),
        b.weight("gru.state", parts["state_weight"][None]), b.weight("gru.bias", biases),
        hidden_size=size, linear_before_reset=1,
    )  # fmt: skip
    # (length, 1, texts, H) → (texts, length, H)
    made = b.node("Transpose", b.node("Squeeze", made, b.constant([1], np.int64)), perm=[1, 0, 2])
    return b.node("Add", x, made)
