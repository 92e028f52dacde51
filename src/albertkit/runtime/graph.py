"""Weights to ONNX graphs: the embedding, the one shared layer, and the heads.

In: a config and weights (float arrays or int8 `Matrix`es). Out: `Graph`, a serialised model without its weights, and
the arrays that belong in it, each held once. Next: `engine.py` opens them in onnxruntime and applies the layer.

The layer: one product for Q, K and V together, multi-head attention over the first n tokens of each text, the output
product, LayerNorm of a sum, the feed-forward products with their activation, and LayerNorm again.

With int8 weights, each token is scaled by its own largest number, so that what a text gets never depends on its
neighbours in the batch (the stock operator scales a whole batch at once). The activation's output is shifted up by
the most it can be below zero, so that all 8 bits are used; the shift comes off through the bias of the next product.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from albertkit.compress.quantize import Matrix
from albertkit.config import AlbertConfig

Weights = dict[str, "np.ndarray | Matrix"]
MICROSOFT = "com.microsoft"
OPSET, IR = 17, 8  # old enough for every onnxruntime we accept

# How far below zero each activation goes; None where it is not bounded closely.
LOWEST = {"gelu": 0.17, "gelu_new": 0.1701, "relu": 0.0, "silu": 0.2785, "tanh": None}


@dataclass(frozen=True)
class Levels:
    """How many levels an activation may take: products of two 8-bit numbers are summed in pairs into 16 bits by processors
    without VNNI instructions, and would overflow there; 7 bits fit.
    """

    top: int = 255

    @property
    def middle(self) -> int:
        """The level that stands for zero when numbers of both signs are written."""
        return (self.top + 1) // 2


@dataclass(frozen=True)
class Graph:
    """A serialised ONNX model and the arrays it expects by name."""

    model: bytes
    weights: dict[str, np.ndarray]


@dataclass
class _Builder:
    """Collects nodes; every `node` call returns the name of its output."""

    levels: Levels = field(default_factory=Levels)
    nodes: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    constants: list[Any] = field(default_factory=list)

    def input(self, name: str, kind: int, shape: list[Any]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def node(self, op: str, *names: str, **settings: Any) -> str:
        output = f"{op}_{len(self.nodes)}"
        domain = MICROSOFT if op in _FUSED else ""
        self.nodes.append(helper.make_node(op, list(names), [output], domain=domain, **settings))
        return output

    def split(self, name: str, parts: int) -> list[str]:
        outputs = [f"{name}_{i}" for i in range(parts)]
        self.nodes.append(helper.make_node("Split", [name], outputs, axis=-1))
        return outputs

    def constant(self, value: Any, dtype: Any) -> str:
        array = np.asarray(value, dtype)
        name = f"c{len(self.constants)}"
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.constants.append(helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True))
        return name

    def weight(self, name: str, array: np.ndarray) -> str:
        self.weights[name] = np.ascontiguousarray(array)
        return name

    def product(self, x: str, name: str, weight: np.ndarray | Matrix, floor: float | None = None) -> str:
        """x · Wᵀ. `floor`: x is nowhere below -floor, and has been shifted up by it (see `shifted_bias`)."""
        if isinstance(weight, np.ndarray):
            return self.node("MatMul", x, self.weight(name, weight.T))
        levels = self.levels
        if weight.smooth is not None:
            x = self.node("Mul", x, self.weight(f"{name}.smooth", weight.smooth))
        size = x if floor is not None else self.node("Abs", x)
        top = self.node("ReduceMax", size, axes=[-1], keepdims=1)
        reach = levels.top if floor is not None else levels.middle - 1
        # up to `reach` levels for the largest number of a token; a token of zeros stays zeros
        grow = self.node(
            "Div", self.constant(reach, np.float32), self.node("Max", top, self.constant(1e-20, np.float32))
        )
        zero = self.constant(0 if floor is not None else levels.middle, np.uint8)
        one = self.constant(1.0, np.float32)
        small = self.node("QuantizeLinear", self.node("Mul", x, grow), one, zero)
        scale = self.weight(f"{name}.scale", weight.scale)
        whole = self.node("MatMulIntegerToFloat", small, self.weight(name, weight.values.T), one, scale, zero)
        return self.node("Div", whole, grow)

    def sum_norm(self, x: str, bias: str, skip: str, scale: str, shift: str, eps: float) -> str:
        """LayerNorm of x + bias + skip. (onnxruntime's one operator for this is four times slower than these three.)"""
        summed = self.node("Add", self.node("Add", x, bias), skip)
        return self.node("LayerNormalization", summed, scale, shift, axis=-1, epsilon=eps)

    def graph(self, output: str, shape: list[Any], more: list[str] | None = None) -> Graph:
        stored = []
        for name, array in self.weights.items():
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
            tensor.external_data.add(key="location", value="weights")  # never opened: the engine hands the arrays over
            stored.append(tensor)
        results = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)]
        results += [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in more or []]
        made = helper.make_graph(self.nodes, "albertkit", self.inputs, results, initializer=[*self.constants, *stored])
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return Graph(helper.make_model(made, opset_imports=opsets, ir_version=IR).SerializeToString(), self.weights)


_FUSED = {"MultiHeadAttention", "FastGelu", "BiasGelu", "QuickGelu", "MatMulIntegerToFloat"}


def as_float(weight: np.ndarray | Matrix) -> np.ndarray:
    """A weight as floats, whatever it is stored as."""
    return weight.floats() if isinstance(weight, Matrix) else weight


def stacked(parts: list[np.ndarray | Matrix]) -> np.ndarray | Matrix:
    """Several matrices as one, rows below rows."""
    if all(isinstance(part, Matrix) for part in parts):
        matrices = [part for part in parts if isinstance(part, Matrix)]
        for m in matrices[1:]:
            if not np.array_equal(m.smooth, matrices[0].smooth):  # type: ignore[arg-type]
                return np.concatenate([as_float(part) for part in parts])
        values, scale = np.concatenate([m.values for m in matrices]), np.concatenate([m.scale for m in matrices])
        return Matrix(values, scale, matrices[0].smooth)  # the same for all, since they read the same input
    return np.concatenate([as_float(part) for part in parts])


def activation(builder: _Builder, kind: str, x: str, bias: str) -> str:
    """The activation of x + bias, in one operator where there is one."""
    if kind == "gelu_new":
        return builder.node("FastGelu", x, bias)
    if kind == "gelu":
        return builder.node("BiasGelu", x, bias)
    summed = builder.node("Add", x, bias)
    if kind == "silu":
        return builder.node("QuickGelu", summed, alpha=1.0)
    return builder.node({"relu": "Relu", "tanh": "Tanh"}[kind], summed)


def layer_graph(config: AlbertConfig, weights: Weights, prefix: str, levels: Levels, watch: bool = False) -> Graph:
    """One layer: `hidden` (texts, length, H) and `lengths` (texts,) → (texts, length, H).

    With `watch`, the inputs of the output, up and down products come out too, for calibration.
    """
    b = _Builder(levels)
    h, eps = config.hidden_size, config.layer_norm_eps
    hidden = b.input("hidden", TensorProto.FLOAT, ["texts", "length", h])
    lengths = b.input("lengths", TensorProto.INT32, ["texts"])

    def vector(name: str) -> str:
        return b.weight(name, as_float(weights[f"{prefix}.{name}"]))

    inputs = ("query", "key", "value")
    together = stacked([weights[f"{prefix}.attention.{part}.weight"] for part in inputs])
    bias = np.concatenate([as_float(weights[f"{prefix}.attention.{part}.bias"]) for part in inputs])
    q, k, v = b.split(b.product(hidden, "qkv", together), 3)
    context = b.node(
        "MultiHeadAttention", q, k, v, b.weight("qkv.bias", bias), lengths, num_heads=config.num_attention_heads
    )  # fmt: skip
    out = b.product(context, "output", weights[f"{prefix}.attention.output.weight"])
    hidden = b.sum_norm(
        out,
        vector("attention.output.bias"),
        hidden,
        vector("attention_norm.weight"),
        vector("attention_norm.bias"),
        eps,
    )

    up = b.product(hidden, "up", weights[f"{prefix}.ffn.up.weight"])
    wide = activation(b, config.hidden_act, up, vector("ffn.up.bias"))
    down = weights[f"{prefix}.ffn.down.weight"]
    floor = LOWEST[config.hidden_act] if isinstance(down, Matrix) else None
    down_bias = as_float(weights[f"{prefix}.ffn.down.bias"])
    if floor is not None:
        down_bias = shifted_bias(down, down_bias, floor)
        wide = b.node("Add", wide, b.constant(floor, np.float32)) if floor else wide
    narrow = b.product(wide, "down", down, floor)
    last = b.weight("ffn.down.bias", down_bias)
    result = b.sum_norm(narrow, last, hidden, vector("ffn_norm.weight"), vector("ffn_norm.bias"), eps)
    return b.graph(result, ["texts", "length", h], [context, hidden, wide] if watch else [])


def shifted_bias(weight: np.ndarray | Matrix, bias: np.ndarray, shift: float) -> np.ndarray:
    """The bias that takes back what adding `shift` to every input of a product has added to its outputs."""
    rows = (
        weight.values.sum(axis=1, dtype=np.int64) * weight.scale if isinstance(weight, Matrix) else weight.sum(axis=1)
    )
    return (bias - shift * rows).astype(np.float32)


def embedding_graph(config: AlbertConfig, weights: Weights, levels: Levels) -> Graph:
    """`ids` and `segments` (texts, length) → (texts, length, H)."""
    b = _Builder(levels)
    ids = b.input("ids", TensorProto.INT64, ["texts", "length"])
    segments = b.input("segments", TensorProto.INT64, ["texts", "length"])
    table = weights["encoder.embeddings.word.weight"]
    if isinstance(table, Matrix):
        rows = b.node("Cast", b.node("Gather", b.weight("word", table.values), ids), to=TensorProto.FLOAT)
        scale = b.node("Gather", b.weight("word.scale", table.scale[:, None]), ids)
        words = b.node("Mul", rows, scale)
    else:
        words = b.node("Gather", b.weight("word", table), ids)
    if config.options.scale_embedding:
        words = b.node("Mul", words, b.constant(config.embedding_size**0.5, np.float32))
    projection = as_float(weights["encoder.embeddings.projection.weight"])
    if config.options.brightmart_layout:
        words = b.product(words, "projection", projection)
    length = b.node("Gather", b.node("Shape", ids), b.constant([1], np.int64))
    places = b.node(
        "Slice", b.weight("position", as_float(weights["encoder.embeddings.position.weight"])),
        b.constant([0], np.int64), length,
    )  # fmt: skip
    kinds = b.node("Gather", b.weight("segment", as_float(weights["encoder.embeddings.segment.weight"])), segments)
    summed = b.node("Add", b.node("Add", words, kinds), places)
    scale, shift = (
        b.weight(f"norm.{p}", as_float(weights[f"encoder.embeddings.norm.{p}"])) for p in ("weight", "bias")
    )
    out = b.node("LayerNormalization", summed, scale, shift, axis=-1, epsilon=config.layer_norm_eps)
    if not config.options.brightmart_layout:
        bias = b.weight("projection.bias", as_float(weights["encoder.embeddings.projection.bias"]))
        out = b.node("Add", b.product(out, "projection", projection), bias)
    return b.graph(out, ["texts", "length", config.hidden_size])


def dense_graph(weights: Weights, name: str, tanh: bool = False) -> Graph:
    """A dense layer over rows: `x` (n, H) → (n, outputs); with `tanh`, the pooler."""
    b = _Builder()
    weight = as_float(weights[f"{name}.weight"])
    x = b.input("x", TensorProto.FLOAT, ["n", weight.shape[1]])
    out = b.node("Add", b.product(x, "weight", weight), b.weight("bias", as_float(weights[f"{name}.bias"])))
    return b.graph(b.node("Tanh", out) if tanh else out, ["n", weight.shape[0]])


def masked_word_graph(config: AlbertConfig, weights: Weights, levels: Levels) -> Graph:
    """`x` (n, H) → scores over the vocabulary (n, V), through the word table itself."""
    b = _Builder(levels)
    x = b.input("x", TensorProto.FLOAT, ["n", config.hidden_size])
    dense = b.product(x, "dense", as_float(weights["heads.mlm.dense.weight"]))
    inner = activation(b, config.hidden_act, dense, b.weight("dense.bias", as_float(weights["heads.mlm.dense.bias"])))
    scale, shift = (b.weight(f"norm.{p}", as_float(weights[f"heads.mlm.norm.{p}"])) for p in ("weight", "bias"))
    inner = b.node("LayerNormalization", inner, scale, shift, axis=-1, epsilon=config.layer_norm_eps)
    if config.options.brightmart_layout:
        inner = b.node(
            "MatMul", inner, b.weight("projection", as_float(weights["encoder.embeddings.projection.weight"]))
        )
    scores = b.product(inner, "word", weights["encoder.embeddings.word.weight"])
    return b.graph(
        b.node("Add", scores, b.weight("bias", as_float(weights["heads.mlm.bias"]))), ["n", config.vocab_size]
    )
