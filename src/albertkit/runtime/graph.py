"""Weights to ONNX graphs: the embedding, the one shared layer, and the heads.

In: a config and weights (float arrays or int8 `QuantizedMatrix`es). Out: `Graph`s. Before this file:
`graph_builder.py` collects the nodes. Next: `engine.py` opens the graphs; `interop/onnx_export.py` puts the same parts
into one file. With int8 weights, each token has its own scale, so results do not depend on the batch. The output of the
activation function is shifted to be non-negative, to use all 8 bits; the next bias compensates for the shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.onnx_model import TensorProto
from albertkit.quantized import QuantizedMatrix, quantize_rows
from albertkit.runtime.graph_builder import HIDDEN, Builder, Graph, as_float
from albertkit.weights import gru_name

Weights = dict[str, "np.ndarray | QuantizedMatrix"]
QKV = ("query", "key", "value")

# The minimum of each activation function, negated; None without a tight bound.
LOWEST = {"gelu": 0.17, "gelu_new": 0.1701, "relu": 0.0, "silu": 0.2785, "tanh": None}


# The layer -------------------------------------------------------------------------------------------------------


def layer_graph(config: AlbertConfig, weights: Weights, prefixes: Sequence[str], max_level: int) -> Graph:
    """One of some layers: `hidden` (texts, length, H) and `lengths` (texts,) → (texts, length, H).

    With the option `window` there is an input `local` (`layer_feed`), with several layers or feed-forward parts `layer`
    and `ffn` (`weight_choice`). One session for all layers is faster than one for each, whose threads compete.
    """
    b, inputs = layer_inputs(config, max_level)
    number = b.input("layer", TensorProto.INT64, []) if len(prefixes) > 1 else ""
    ffn: str | int = b.input("ffn", TensorProto.INT64, []) if config.options.ffn_groups else 0

    def make(index: int) -> str:
        b.prefix = f"{prefixes[index]}." if number else ""
        return LayerBuilder(b, config, weights, prefixes[index]).layer(*inputs, ffn)[0]

    return b.graph(b.select(number, make, len(prefixes)), ["texts", "length", config.hidden_size])


def calibration_graph(config: AlbertConfig, weights: Weights, prefix: str, max_level: int, ffn: int) -> Graph:
    """One layer with feed-forward part `ffn`, for calibration: the inputs of its four products are outputs, too."""
    b, inputs = layer_inputs(config, max_level)
    layer = LayerBuilder(b, config, weights, prefix)
    result, (mixed, context, *others) = layer.layer(*inputs, ffn)
    return b.graph(result, ["texts", "length", config.hidden_size], [mixed, layer.expand_low_rank(context), *others])


def layer_inputs(config: AlbertConfig, max_level: int) -> tuple[Builder, tuple[str, str, str | bool]]:
    """A builder with the inputs of `layer_feed`."""
    b = Builder(max_level)
    hidden = b.input("hidden", TensorProto.FLOAT, ["texts", "length", config.hidden_size])
    lengths = b.input("lengths", TensorProto.INT32, ["texts"])
    return b, (hidden, lengths, b.input("local", TensorProto.BOOL, []) if config.options.window else False)


def weight_choice(config: AlbertConfig, layer: int, inner: int, depth: int) -> dict[str, np.ndarray]:
    """The inputs of the graph of all layers that choose the weights of layer number `layer` (from 0) of `depth`."""
    inputs = {}
    if config.layer_groups * config.inner_group_num > 1:
        inputs["layer"] = np.array(config.group_of(layer, depth) * config.inner_group_num + inner, np.int64)
    if config.options.ffn_groups:
        inputs["ffn"] = np.array(config.ffn_of(layer, depth), np.int64)
    return inputs


def layer_feed(config: AlbertConfig, layer: int, hidden: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs of a layer's graph for layer number `layer` (from 0)."""
    feed = {"hidden": hidden, "lengths": lengths}
    window = config.options.window
    if window:  # a text within one window needs no mask
        feed["local"] = np.array(config.options.local(layer) and hidden.shape[1] > window + 1)
    return feed


@dataclass(frozen=True)
class LayerBuilder:
    """Adds the nodes of one layer to a graph. The names of the layer's weights begin with `prefix`."""

    builder: Builder
    config: AlbertConfig
    weights: Weights
    prefix: str

    def layer(self, hidden: str, mask: str, local: str | bool = False, ffn: str | int = 0) -> tuple[str, list[str]]:
        """The layer over `hidden` (texts, length, H): its result, and the inputs of its four products in
        `MATRIX_INPUTS`.

        local: whether tokens attend inside the window only, or the name of a bool input. ffn: the feed-forward part, or
        the name of an input, where the inputs of its products are not known.
        """
        b, config = self.builder, self.config
        normed = input_norm(b, config, self.weights, f"{self.prefix}.attention_norm", hidden)
        mixed, bias = input_product(b, config, self.weights, self.prefix, normed)
        if config.options.has_attention_options:
            context = self.attend_with_options(b.node("Add", mixed, bias), mask, local)
        else:
            context = b.attend(mixed, bias, mask, config.num_attention_heads, config.head_size)
        middle = self.attention_output(context, hidden)
        inputs, result = self.choose_ffn(middle, ffn)
        return result, [normed, context, *inputs]

    def attention_output(self, context: str, hidden: str) -> str:
        """The end of the first half: the output product, its sum with the layer's input, and LayerNorm (post-LN)."""
        b, config, weights, name = self.builder, self.config, self.weights, f"{self.prefix}.attention"
        products = ("output_down", "output") if config.options.output_rank else ("output",)
        out = context
        for product in products:
            weight = weights[f"{name}.{product}.weight"]
            if config.options.low_rank and product == products[0]:  # for heads of width d_a
                plain = as_float(weight).reshape(-1, config.num_attention_heads, config.value_size)
                narrow = (plain @ as_float(weights[f"{name}.low.lift"])).reshape(len(plain), -1)
                weight = quantize_rows(narrow) if isinstance(weight, QuantizedMatrix) else narrow
            out = b.product(out, product, weight)
        bias = b.weight("attention.output.bias", as_float(weights[f"{name}.output.bias"]))
        return sum_norm(b, config, weights, f"{name}_norm", b.node("Add", out, bias), hidden)

    def choose_ffn(self, hidden: str, ffn: str | int) -> tuple[tuple[str, ...], str]:
        """The second half with the feed-forward part `ffn`, a number or the name of an input."""
        if f"{self.prefix}.ffn.up.weight" in self.weights:
            return self.ffn_block(self.prefix, hidden)

        def block(number: int) -> tuple[tuple[str, ...], str]:
            outer, self.builder.prefix = self.builder.prefix, f"{self.builder.prefix}ffn{number}."
            output = self.ffn_block(f"{self.prefix}.ffn_groups.{number}", hidden)
            self.builder.prefix = outer
            return output

        if isinstance(ffn, int):
            return block(ffn)
        return (), self.builder.select(ffn, lambda number: block(number)[1], self.config.ffns_per_group)

    def ffn_block(self, prefix: str, hidden: str) -> tuple[tuple[str, ...], str]:
        """The second half with the weights of `prefix`: the inputs of its up and down products, and its result."""
        b, config, weights = self.builder, self.config, self.weights
        normed = input_norm(b, config, weights, f"{prefix}.ffn_norm", hidden)
        names = ("gate", "up") if config.options.gated_ffn else ("up",)
        up = b.product(normed, "up", stack_rows([weights[f"{prefix}.ffn.{name}.weight"] for name in names]))
        first, *gated = b.split(up, 2) if config.options.gated_ffn else [up]
        biases = [b.weight(f"ffn.{name}.bias", as_float(weights[f"{prefix}.ffn.{name}.bias"])) for name in names]
        wide = b.activation(config.hidden_act, first, biases[0])
        for other in gated:
            wide = b.node("Mul", wide, b.node("Add", other, biases[1]))
        down = weights[f"{prefix}.ffn.down.weight"]
        down_bias = as_float(weights[f"{prefix}.ffn.down.bias"])
        floor = None
        if isinstance(down, QuantizedMatrix) and not gated:
            floor = LOWEST[config.hidden_act]
            if floor:  # the bias compensates for adding `floor` to every input
                wide = b.node("Add", wide, b.constant(floor, np.float32))
                rows = down.values.sum(axis=1, dtype=np.int64) * down.scale
                down_bias = (down_bias - floor * rows).astype(np.float32)
        narrow = b.product(wide, "down", down, floor)
        narrow = b.node("Add", narrow, b.weight("ffn.down.bias", down_bias))
        return (normed, wide), sum_norm(b, config, weights, f"{prefix}.ffn_norm", narrow, hidden)

    # Attention beyond canonical ALBERT. `model/optional_modules.py` is the same in torch, with the formulas. Low-rank
    # matrices are multiplied into their neighbours when the graph is built, so attention runs with narrow heads; 8-bit
    # matrices are rounded again.

    def expand_low_rank(self, context: str) -> str:
        """The input of the stored output matrix: heads expanded from low rank, (texts, length, A)."""
        b, config = self.builder, self.config
        if not config.options.low_rank:
            return context
        heads = config.num_attention_heads
        narrow = b.node("Reshape", context, b.constant([0, 0, heads, config.context_size], np.int64))
        lift = b.transpose("low.lift", as_float(self.weights[f"{self.prefix}.attention.low.lift"]))
        wide = b.constant([0, 0, heads * config.value_size], np.int64)
        return b.node("Reshape", b.node("MatMul", narrow, lift), wide)

    def attend_with_options(self, mixed: str, mask: str, local: str | bool) -> str:
        """Attention over the input product with its biases: (texts, length, rows) → (texts, length, heads · size)."""
        b, config = self.builder, self.config
        heads, key_heads, sizes = config.num_attention_heads, config.key_heads, (config.score_size, config.context_size)
        query, key, value = b.split(mixed, [heads * sizes[0], key_heads * sizes[0], key_heads * sizes[1]])
        if key_heads != heads:
            repeats = b.constant([1, 1, heads], np.int64)
            key, value = b.node("Tile", key, repeats), b.node("Tile", value, repeats)
        theta = ""
        if config.options.attention_bias:
            theta = theta_scores(b, config, as_float(self.weights[f"{self.prefix}.attention.theta"]), query)

        def attend_all() -> str:
            return b.attend_parts((query, key, value), mask, heads, sizes, theta)

        def attend_window() -> str:
            outside = outside_window(b, config.options.window, query)
            extra = b.node("Add", theta, outside) if theta else outside
            return b.attend_parts((query, key, value), mask, heads, sizes, extra)

        if isinstance(local, str):  # one session, with each weight once, for both kinds of layers
            return b.choose(local, attend_window, attend_all)
        return attend_window() if local else attend_all()


# Parts of a layer ------------------------------------------------------------------------------------------------


def input_norm(b: Builder, config: AlbertConfig, weights: Weights, name: str, x: str) -> str:
    """The input of attention or feed-forward: `x`, or with the option `pre_norm` its norm."""
    return norm(b, config, weights, name, x) if config.options.pre_norm else x


def norm(b: Builder, config: AlbertConfig, weights: Weights, name: str, x: str) -> str:
    """LayerNorm with the scale and shift `name`."""
    part = name.rpartition(".")[2]
    scale, shift = (b.weight(f"{part}.{kind}", as_float(weights[f"{name}.{kind}"])) for kind in ("weight", "bias"))
    return b.norm(x, scale, shift, config.layer_norm_eps, config.options.norm)


def input_product(b: Builder, config: AlbertConfig, weights: Weights, prefix: str, hidden: str) -> tuple[str, str]:
    """Queries, keys and values side by side, from one product; and their biases, not yet added."""
    parts = [weights[f"{prefix}.attention.{name}.weight"] for name in QKV]
    biases = [as_float(weights[f"{prefix}.attention.{name}.bias"]) for name in QKV]
    if config.options.low_rank:
        low = [as_float(weights[f"{prefix}.attention.low.{name}"]) for name in QKV]
        parts = [multiply_heads(part, matrix) for part, matrix in zip(parts, low, strict=True)]
        biases = [(bias.reshape(-1, m.shape[1]) @ m.T).ravel() for bias, m in zip(biases, low, strict=True)]
    mixed = b.product(hidden, "qkv", stack_rows(parts))
    return mixed, b.weight("qkv.bias", np.concatenate(biases).astype(np.float32))


def stack_rows(parts: list[np.ndarray | QuantizedMatrix]) -> np.ndarray | QuantizedMatrix:
    """Several matrices as one, stacked by rows."""
    matrices = [part for part in parts if isinstance(part, QuantizedMatrix)]
    smooth = matrices[0].smooth if matrices else None
    has_one_smooth = all(np.array_equal(m.smooth, smooth) for m in matrices)  # type: ignore[arg-type]
    if len(matrices) < len(parts) or not has_one_smooth:
        return np.concatenate([as_float(part) for part in parts])
    return QuantizedMatrix(
        np.concatenate([m.values for m in matrices]), np.concatenate([m.scale for m in matrices]), smooth
    )


def sum_norm(b: Builder, config: AlbertConfig, weights: Weights, name: str, x: str, skip: str) -> str:
    """LayerNorm of x + skip, or with the option `pre_norm` their sum. (onnxruntime's one operator for this, with the
    bias, is four times slower than the three.)
    """
    summed = b.node("Add", x, skip)
    return summed if config.options.pre_norm else norm(b, config, weights, name, summed)


def norm_graph(config: AlbertConfig, weights: Weights) -> Graph:
    """The output norm of the option `pre_norm`: `x` (n, H) → (n, H)."""
    b = Builder()
    x = b.input("x", TensorProto.FLOAT, ["n", config.hidden_size])
    return b.graph(norm(b, config, weights, "encoder.output_norm", x), ["n", config.hidden_size])


def multiply_heads(weight: np.ndarray | QuantizedMatrix, matrix: np.ndarray) -> np.ndarray | QuantizedMatrix:
    """A matrix whose rows are multiplied, head by head, by `matrix` (narrow, wide)."""
    plain = weight.values * weight.scale[:, None] if isinstance(weight, QuantizedMatrix) else weight
    product = (matrix @ plain.reshape(-1, matrix.shape[1], plain.shape[1])).reshape(-1, plain.shape[1])
    if not isinstance(weight, QuantizedMatrix):
        return product
    quantized = quantize_rows(product)
    return QuantizedMatrix(quantized.values, quantized.scale, weight.smooth)


def theta_scores(b: Builder, config: AlbertConfig, theta: np.ndarray, query: str) -> str:
    """θ of each score, (1, heads, length, length)."""
    table, (row, column) = b.weight("theta", theta), positions(b, query)
    if config.options.attention_bias == "relative":
        reach = config.options.relative_reach
        low, high = b.constant(-reach, np.int64), b.constant(reach, np.int64)
        distance = b.node("Clip", b.node("Sub", row, column), low, high)
        scores = b.node("Gather", table, b.node("Add", distance, high), axis=1)  # (heads, length, length)
    else:
        is_first = b.node("Cast", b.node("Equal", row, b.constant(0, np.int64)), to=1)
        ones = b.node("Cast", b.node("GreaterOrEqual", column, b.constant(0, np.int64)), to=1)  # (length, 1)
        by_head = b.node("Unsqueeze", table, b.constant([1, 2], np.int64))  # (heads, 1, 1)
        scores = b.node("Mul", b.node("Mul", by_head, is_first), ones)
    return b.node("Unsqueeze", scores, b.constant([0], np.int64))


def outside_window(b: Builder, window: int, query: str) -> str:
    """HIDDEN for two tokens that do not attend to each other, otherwise 0; (1, 1, length, length)."""
    row, column = positions(b, query)
    is_far = b.node("Greater", b.node("Abs", b.node("Sub", row, column)), b.constant(window, np.int64))
    is_later = b.node("Greater", b.node("Min", row, column), b.constant(0, np.int64))  # neither is the first token
    outside = b.node("And", is_far, is_later)
    scores = b.node("Where", outside, b.constant(HIDDEN, np.float32), b.constant(0.0, np.float32))
    return b.node("Unsqueeze", scores, b.constant([0, 1], np.int64))


def positions(b: Builder, x: str) -> tuple[str, str]:
    """The numbers of the tokens of x (texts, length, …), as a row (length,) and as a column (length, 1)."""
    length = b.node("Gather", b.node("Shape", x), b.constant(1, np.int64))
    row = b.node("Range", b.constant(0, np.int64), length, b.constant(1, np.int64))
    return row, b.node("Unsqueeze", row, b.constant([1], np.int64))


# The embedding and the heads ------------------------------------------------------------------------------------------


def embedding_graph(config: AlbertConfig, weights: Weights, max_level: int) -> Graph:
    """`ids` and `segments` (texts, length) → (texts, length, H)."""
    b = Builder(max_level)
    ids = b.input("ids", TensorProto.INT64, ["texts", "length"])
    segments = b.input("segments", TensorProto.INT64, ["texts", "length"])
    return b.graph(embedding(b, config, weights, ids, segments), ["texts", "length", config.hidden_size])


def word_vectors(b: Builder, weights: Weights, ids: str) -> str:
    """Rows of the word table (texts, length, E)."""
    table = weights["encoder.embeddings.word.weight"]
    if not isinstance(table, QuantizedMatrix):
        return b.node("Gather", b.weight("word", table), ids)
    rows = b.node("Cast", b.node("Gather", b.weight("word", table.values), ids), to=TensorProto.FLOAT)
    return b.node("Mul", rows, b.node("Gather", b.weight("word.scale", table.scale[:, None]), ids))


def embedding(b: Builder, config: AlbertConfig, weights: Weights, ids: str, segments: str) -> str:
    """Word, segment and position vectors, their sum normalised and projected to H."""
    words = word_vectors(b, weights, ids)
    if config.options.static:
        return words
    if config.options.scale_embedding:
        words = b.node("Mul", words, b.constant(config.embedding_size**0.5, np.float32))
    projection = weights["encoder.embeddings.projection.weight"]
    if config.options.brightmart_layout:
        words = b.float_product(words, "projection", projection)
    length = b.node("Gather", b.node("Shape", ids), b.constant([1], np.int64))
    position_vectors = b.node(
        "Slice", b.floats("position", weights["encoder.embeddings.position.weight"]),
        b.constant([0], np.int64), length,
    )  # fmt: skip
    segment_vectors = b.node("Gather", b.floats("segment", weights["encoder.embeddings.segment.weight"]), segments)
    summed = b.node("Add", b.node("Add", words, segment_vectors), position_vectors)
    out = norm(b, config, weights, "encoder.embeddings.norm", summed)
    if not config.options.brightmart_layout:
        bias = b.weight("projection.bias", as_float(weights["encoder.embeddings.projection.bias"]))
        out = b.node("Add", b.float_product(out, "projection", projection), bias)
    if not config.options.gru:
        return out
    states = b.node("Transpose", out, perm=[1, 0, 2])  # (length, texts, H)
    for number in range(config.options.gru_layers):
        states = gru_layer(b, weights, states, number)
    states = b.node("Transpose", states, perm=[1, 0, 2])
    return b.node("Add", out, states) if config.options.gru_residual else states


def gru_layer(b: Builder, weights: Weights, x: str, number: int) -> str:
    """A GRU over (length, texts, H). ONNX wants update, reset, new; torch's order is reset, update, new."""
    parts = {}
    for part in ("input", "state"):
        for kind in ("weight", "bias"):
            stored = as_float(weights[f"encoder.embeddings.gru.{gru_name(part, kind, number)}"])
            reset, update, new = np.split(stored, 3)
            parts[f"{part}_{kind}"] = np.concatenate([update, reset, new])
    size = parts["input_weight"].shape[1]
    biases = np.concatenate([parts["input_bias"], parts["state_bias"]])[None]
    outputs = b.node(
        "GRU", x, b.weight(f"gru{number}.input", parts["input_weight"][None]),
        b.weight(f"gru{number}.state", parts["state_weight"][None]), b.weight(f"gru{number}.bias", biases),
        hidden_size=size, linear_before_reset=1,
    )  # fmt: skip
    return b.node("Squeeze", outputs, b.constant([1], np.int64))  # (length, 1, texts, H) → (length, texts, H)


def dense(b: Builder, weights: Weights, name: str, x: str) -> str:
    """A dense layer over the last axis."""
    bias = b.weight("bias", as_float(weights[f"{name}.bias"]))
    return b.node("Add", b.float_product(x, "weight", weights[f"{name}.weight"]), bias)


def dense_graph(weights: Weights, name: str, tanh: bool = False) -> Graph:
    """A dense layer over rows: `x` (n, H) → (n, outputs); with `tanh`, the pooler."""
    b = Builder()
    outputs, inputs = as_float(weights[f"{name}.weight"]).shape
    out = dense(b, weights, name, b.input("x", TensorProto.FLOAT, ["n", inputs]))
    return b.graph(b.node("Tanh", out) if tanh else out, ["n", outputs])


def mlm_head(b: Builder, config: AlbertConfig, weights: Weights, x: str) -> str:
    """Scores over the vocabulary, with tied word embeddings."""
    dense = b.float_product(x, "dense", weights["heads.mlm.dense.weight"])
    inner = b.activation(config.hidden_act, dense, b.weight("dense.bias", as_float(weights["heads.mlm.dense.bias"])))
    inner = norm(b, config, weights, "heads.mlm.norm", inner)
    if config.options.brightmart_layout:
        inner = b.node("MatMul", inner, b.floats("projection", weights["encoder.embeddings.projection.weight"]))
    scores = b.product(inner, "word", weights["encoder.embeddings.word.weight"])
    return b.node("Add", scores, b.weight("bias", as_float(weights["heads.mlm.bias"])))


def mlm_graph(config: AlbertConfig, weights: Weights, max_level: int) -> Graph:
    """`x` (n, H) → scores over the vocabulary (n, V)."""
    b = Builder(max_level)
    x = b.input("x", TensorProto.FLOAT, ["n", config.hidden_size])
    return b.graph(mlm_head(b, config, weights, x), ["n", config.vocab_size])
