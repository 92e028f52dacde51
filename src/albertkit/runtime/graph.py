"""Weights to ONNX graphs: the embedding, the one shared layer, and the heads.

In: a config and weights (float arrays or int8 `QuantizedMatrix`es). Out: `Graph`s. Before this file: `builder.py`
collects the nodes. Next: `engine.py` opens the graphs in onnxruntime and applies the layer; `interop/onnx_export.py`
puts the same parts into one file.

The layer: one product for Q, K and V together, multi-head attention over the first n tokens of each text, the output
product, LayerNorm of a sum, the feed-forward products with their activation, and LayerNorm again.

With int8 weights, each token is scaled by its own largest number, so that what a text gets never depends on its
neighbours in the batch (the stock operator scales a whole batch at once). The activation's output is shifted up by the
most it can be below zero, so that all 8 bits are used; the shift comes off through the bias of the next product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from albertkit.config import AlbertConfig
from albertkit.quantized import QuantizedMatrix
from albertkit.runtime import graph_options
from albertkit.runtime.graph_builder import Builder, Graph, Levels, as_float

__all__ = [
    "Graph",
    "Levels",
    "Weights",
    "as_float",
    "dense_graph",
    "embedding_graph",
    "layer_feed",
    "layer_graph",
    "mlm_graph",
]

Weights = dict[str, "np.ndarray | QuantizedMatrix"]

# How far below zero each activation goes; None where it is not bounded closely.
LOWEST = {"gelu": 0.17, "gelu_new": 0.1701, "relu": 0.0, "silu": 0.2785, "tanh": None}


def stack_rows(parts: list[np.ndarray | QuantizedMatrix]) -> np.ndarray | QuantizedMatrix:
    """Several matrices as one, rows below rows."""
    if all(isinstance(part, QuantizedMatrix) for part in parts):
        matrices = [part for part in parts if isinstance(part, QuantizedMatrix)]
        for m in matrices[1:]:
            if not np.array_equal(m.smooth, matrices[0].smooth):  # type: ignore[arg-type]
                return np.concatenate([as_float(part) for part in parts])
        values, scale = np.concatenate([m.values for m in matrices]), np.concatenate([m.scale for m in matrices])
        return QuantizedMatrix(values, scale, matrices[0].smooth)  # the same for all, since they read the same input
    return np.concatenate([as_float(part) for part in parts])


def shifted_bias(weight: np.ndarray | QuantizedMatrix, bias: np.ndarray, shift: float) -> np.ndarray:
    """The bias that takes back what adding `shift` to every input of a product has added to its outputs."""
    rows = (
        weight.values.sum(axis=1, dtype=np.int64) * weight.scale
        if isinstance(weight, QuantizedMatrix)
        else weight.sum(axis=1)
    )
    return (bias - shift * rows).astype(np.float32)


@dataclass(frozen=True)
class LayerNames:
    """Tensors inside one layer: what the output, up and down products read, and what the layer gives."""

    context: str
    middle: str
    wide: str
    result: str


def sum_norm(b: Builder, x: str, bias: str, skip: str, norm: Sequence[str], eps: float, kind: str = "") -> str:
    """LayerNorm of x + bias + skip. (onnxruntime's one operator for this is four times slower than these three.)"""
    scale, shift = norm
    return b.norm(b.node("Add", b.node("Add", x, bias), skip), scale, shift, eps, kind)


def attention_block(
    b: Builder,
    config: AlbertConfig,
    weights: Weights,
    prefix: str,
    hidden: str,
    mask: str,
    local: str | bool = False,
) -> tuple[str, str]:
    """The first half of a layer: what its output product reads, and its result. `local`: whether it sees a window
    alone; or the name of a number that says so (`graph_options.kind_of`).
    """
    parts, bias = graph_options.input_parts(config, weights, prefix)
    mixed = b.product(hidden, "qkv", stack_rows(parts))
    bias_name = b.weight("qkv.bias", bias)
    if config.options.has_attention_options:
        mixed = b.node("Add", mixed, bias_name)
        context = graph_options.attend(b, config, weights, prefix, mixed, mask, local)
    else:
        context = b.attend(mixed, bias_name, mask, config.num_attention_heads, config.head_size)
    out = b.product(context, "output", graph_options.output_part(config, weights, prefix))
    bias_name, *norm = _vectors(
        b, weights, prefix, "attention.output.bias", "attention_norm.weight", "attention_norm.bias"
    )
    return context, sum_norm(b, out, bias_name, hidden, norm, config.layer_norm_eps, config.options.norm)


def ffn_block(b: Builder, config: AlbertConfig, weights: Weights, prefix: str, hidden: str) -> tuple[str, str]:
    """The second half of a layer: what its down product reads, and its result."""
    up = b.product(hidden, "up", weights[f"{prefix}.ffn.up.weight"])
    wide = b.activation(config.hidden_act, up, *_vectors(b, weights, prefix, "ffn.up.bias"))
    down = weights[f"{prefix}.ffn.down.weight"]
    floor = LOWEST[config.hidden_act] if isinstance(down, QuantizedMatrix) else None
    down_bias = as_float(weights[f"{prefix}.ffn.down.bias"])
    if floor is not None:
        down_bias = shifted_bias(down, down_bias, floor)
        wide = b.node("Add", wide, b.constant(floor, np.float32)) if floor else wide
    narrow = b.product(wide, "down", down, floor)
    norm = _vectors(b, weights, prefix, "ffn_norm.weight", "ffn_norm.bias")
    return wide, sum_norm(
        b, narrow, b.weight("ffn.down.bias", down_bias), hidden, norm, config.layer_norm_eps, config.options.norm
    )


def _vectors(b: Builder, weights: Weights, prefix: str, *names: str) -> list[str]:
    return [b.weight(name, as_float(weights[f"{prefix}.{name}"])) for name in names]


def layer(
    b: Builder,
    config: AlbertConfig,
    weights: Weights,
    prefix: str,
    hidden: str,
    mask: str,
    local: str | bool = False,
) -> LayerNames:
    """One layer over `hidden` (texts, length, H); `local` as in `attention_block`."""
    context, middle = attention_block(b, config, weights, prefix, hidden, mask, local)
    wide, result = ffn_block(b, config, weights, prefix, middle)
    return LayerNames(context, middle, wide, result)


def layer_graph(config: AlbertConfig, weights: Weights, prefix: str, levels: Levels, watch: bool = False) -> Graph:
    """One layer: `hidden` (texts, length, H) and `lengths` (texts,) → (texts, length, H).

    With `watch`, the inputs of the output, up and down products come out too, for calibration. With the option
    `window` there is an input `local`; `layer_feed` gives all of them.
    """
    b = Builder(levels)
    hidden = b.input("hidden", TensorProto.FLOAT, ["texts", "length", config.hidden_size])
    lengths = b.input("lengths", TensorProto.INT32, ["texts"])
    local = b.input("local", TensorProto.INT64, []) if config.options.window else False
    made = layer(b, config, weights, prefix, hidden, lengths, local)
    more = []
    if watch:
        more = [graph_options.expand_low_rank(b, config, weights, prefix, made.context), made.middle, made.wide]
    return b.graph(made.result, ["texts", "length", config.hidden_size], more)


def layer_feed(config: AlbertConfig, layer: int, hidden: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs of a layer's graph for layer number `layer` (from 0)."""
    fed = {"hidden": hidden, "lengths": lengths}
    if config.options.window:
        fed["local"] = np.array(graph_options.kind_of(config, layer, hidden.shape[1]), np.int64)
    return fed


def embedding(b: Builder, config: AlbertConfig, weights: Weights, ids: str, segments: str) -> str:
    """Word, segment and position vectors, their sum normalised and projected to H."""
    table = weights["encoder.embeddings.word.weight"]
    if isinstance(table, QuantizedMatrix):
        rows = b.node("Cast", b.node("Gather", b.weight("word", table.values), ids), to=TensorProto.FLOAT)
        scale = b.node("Gather", b.weight("word.scale", table.scale[:, None]), ids)
        words = b.node("Mul", rows, scale)
    else:
        words = b.node("Gather", b.weight("word", table), ids)
    if config.options.static:
        return words
    if config.options.scale_embedding:
        words = b.node("Mul", words, b.constant(config.embedding_size**0.5, np.float32))
    projection = weights["encoder.embeddings.projection.weight"]
    if config.options.brightmart_layout:
        words = b.float_product(words, "projection", projection)
    length = b.node("Gather", b.node("Shape", ids), b.constant([1], np.int64))
    places = b.node(
        "Slice", b.floats("position", weights["encoder.embeddings.position.weight"]),
        b.constant([0], np.int64), length,
    )  # fmt: skip
    kinds = b.node("Gather", b.floats("segment", weights["encoder.embeddings.segment.weight"]), segments)
    summed = b.node("Add", b.node("Add", words, kinds), places)
    scale, shift = (
        b.weight(f"norm.{p}", as_float(weights[f"encoder.embeddings.norm.{p}"])) for p in ("weight", "bias")
    )
    out = b.norm(summed, scale, shift, config.layer_norm_eps, config.options.norm)
    if not config.options.brightmart_layout:
        bias = b.weight("projection.bias", as_float(weights["encoder.embeddings.projection.bias"]))
        out = b.node("Add", b.float_product(out, "projection", projection), bias)
    return graph_options.gru(b, weights, out) if config.options.gru else out


def embedding_graph(config: AlbertConfig, weights: Weights, levels: Levels) -> Graph:
    """`ids` and `segments` (texts, length) → (texts, length, H)."""
    b = Builder(levels)
    ids = b.input("ids", TensorProto.INT64, ["texts", "length"])
    segments = b.input("segments", TensorProto.INT64, ["texts", "length"])
    return b.graph(embedding(b, config, weights, ids, segments), ["texts", "length", config.hidden_size])


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
    """Scores over the vocabulary, through the word table itself."""
    made = b.float_product(x, "dense", weights["heads.mlm.dense.weight"])
    inner = b.activation(config.hidden_act, made, b.weight("dense.bias", as_float(weights["heads.mlm.dense.bias"])))
    scale, shift = (b.weight(f"norm.{p}", as_float(weights[f"heads.mlm.norm.{p}"])) for p in ("weight", "bias"))
    inner = b.norm(inner, scale, shift, config.layer_norm_eps, config.options.norm)
    if config.options.brightmart_layout:
        inner = b.node("MatMul", inner, b.floats("projection", weights["encoder.embeddings.projection.weight"]))
    scores = b.product(inner, "word", weights["encoder.embeddings.word.weight"])
    return b.node("Add", scores, b.weight("bias", as_float(weights["heads.mlm.bias"])))


def mlm_graph(config: AlbertConfig, weights: Weights, levels: Levels) -> Graph:
    """`x` (n, H) → scores over the vocabulary (n, V)."""
    b = Builder(levels)
    x = b.input("x", TensorProto.FLOAT, ["n", config.hidden_size])
    return b.graph(mlm_head(b, config, weights, x), ["n", config.vocab_size])
