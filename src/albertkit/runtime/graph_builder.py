"""A builder of ONNX graphs, for the parts of a model in `graph.py`.

In: calls that add an operator and return the name of its output. Out: `Graph`, a serialised model without its weights,
and the arrays of the weights, each stored once. `Builder` uses onnxruntime's fused operators;
`interop/onnx_export.py` has a builder that writes the same model in standard operators only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from albertkit.onnx_model import (
    AttributeValue,
    GraphProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    make_external_tensor,
    make_model,
    make_node,
    make_tensor,
    make_value_info,
)
from albertkit.quantized import QuantizedMatrix

MICROSOFT = "com.microsoft"
OPSET, IR = 17, 8  # supported by every accepted onnxruntime
HIDDEN = -1e9  # added to the score of a masked token
MAX_LEVEL = 255  # of an 8-bit activation; 127 where 8-bit products overflow (`engine.machine_max_level`)
FUSED = {"MultiHeadAttention", "FastGelu", "BiasGelu", "QuickGelu", "MatMulIntegerToFloat"}


@dataclass(frozen=True)
class Graph:
    """A serialised ONNX model and the arrays it expects by name."""

    model: bytes
    weights: dict[str, np.ndarray]


def as_float(weight: np.ndarray | QuantizedMatrix) -> np.ndarray:
    """A weight as floats, whatever it is stored as."""
    return weight.floats() if isinstance(weight, QuantizedMatrix) else weight


@dataclass
class Builder:
    """Collects nodes; every `node` call returns the name of its output."""

    max_level: int = MAX_LEVEL
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: list[ValueInfoProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    constants: list[TensorProto] = field(default_factory=list)
    prefix: str = ""
    """The prefix of each weight's name, for a graph of several parts."""
    count: int = 0

    def input(self, name: str, kind: int, shape: list[Any]) -> str:
        """An input of the graph."""
        self.inputs.append(make_value_info(name, kind, shape))
        return name

    def node(self, op: str, *names: str, **attributes: AttributeValue) -> str:
        """An operator with one output."""
        output = self.fresh(op)
        domain = MICROSOFT if op in FUSED else ""
        self.nodes.append(make_node(op, names, [output], name=output, domain=domain, **attributes))
        return output

    def fresh(self, op: str) -> str:
        """A new name for the output of an operator."""
        self.count += 1
        return f"{op}_{self.count}"

    def split(self, name: str, parts: int | Sequence[int]) -> list[str]:
        """Split along the last axis, into equal parts or parts of given sizes."""
        count, inputs = (
            (parts, [name]) if isinstance(parts, int) else (len(parts), [name, self.constant(parts, np.int64)])
        )
        outputs = [f"{name}_{i}" for i in range(count)]
        self.nodes.append(make_node("Split", inputs, outputs, name=f"Split_{name}", axis=-1))
        return outputs

    def choose(self, flag: str, yes: Callable[[], str], no: Callable[[], str]) -> str:
        """One of two computations, chosen by a bool of the graph. Both share the weights of the graph."""
        branches = []
        for make in (yes, no):
            outer, self.nodes = self.nodes, []
            name = make()
            output = make_value_info(name, TensorProto.FLOAT, None)
            branches.append(GraphProto(self.nodes, f"branch_{name}", output=[output]))
            self.nodes = outer
        return self.node("If", flag, then_branch=branches[0], else_branch=branches[1])

    def select(self, number: str, make: Callable[[int], str], end: int, start: int = 0) -> str:
        """The computation `make(number)`, for a number of the graph from `start` to below `end`, found by halves."""
        if end - start == 1:
            return make(start)
        middle = (start + end) // 2
        is_below = self.node("Less", number, self.constant(middle, np.int64))
        return self.choose(
            is_below,
            lambda: self.select(number, make, middle, start),
            lambda: self.select(number, make, end, middle),
        )

    def constant(self, value: ArrayLike, dtype: DTypeLike) -> str:
        """A small array inside the graph."""
        array = np.asarray(value, dtype)
        name = f"c{len(self.constants)}"
        self.constants.append(make_tensor(name, array))
        return name

    def weight(self, name: str, array: np.ndarray) -> str:
        """An array that is stored outside the graph."""
        self.weights[self.prefix + name] = np.ascontiguousarray(array)
        return self.prefix + name

    def transpose(self, name: str, array: np.ndarray) -> str:
        """The transpose of an array."""
        return self.weight(name, array.T)

    def floats(self, name: str, weight: np.ndarray | QuantizedMatrix) -> str:
        """A weight as floats, in any storage format."""
        return self.weight(name, as_float(weight))

    def product(self, x: str, name: str, weight: np.ndarray | QuantizedMatrix, floor: float | None = None) -> str:
        """x · Wᵀ. `floor`: x was at least -floor, and was shifted up by floor (see `graph.LayerBuilder.ffn_block`)."""
        if isinstance(weight, np.ndarray):
            return self.node("MatMul", x, self.transpose(name, weight))
        middle = (self.max_level + 1) // 2  # zero point of signed numbers
        if weight.smooth is not None:
            x = self.node("Mul", x, self.weight(f"{name}.smooth", weight.smooth))
        size = x if floor is not None else self.node("Abs", x)
        top = self.node("ReduceMax", size, axes=[-1], keepdims=1)
        reach = self.max_level if floor is not None else middle - 1
        # up to `reach` levels for the largest number of a token; a token of zeros stays zeros
        grow = self.node(
            "Div", self.constant(reach, np.float32), self.node("Max", top, self.constant(1e-20, np.float32))
        )
        zero = self.constant(0 if floor is not None else middle, np.uint8)
        small = self.node("QuantizeLinear", self.node("Mul", x, grow), self.constant(1.0, np.float32), zero)
        return self.node("Div", self.integer_product(small, name, weight, zero), grow)

    def integer_product(self, small: str, name: str, weight: QuantizedMatrix, zero: str) -> str:
        """The product of integers, multiplied by the scale of each row of W."""
        one, scale = self.constant(1.0, np.float32), self.weight(f"{name}.scale", weight.scale)
        return self.node("MatMulIntegerToFloat", small, self.transpose(name, weight.values), one, scale, zero)

    def float_product(self, x: str, name: str, weight: np.ndarray | QuantizedMatrix) -> str:
        """x · Wᵀ in floats, for any storage format of W."""
        return self.product(x, name, as_float(weight))

    def norm(self, x: str, scale: str, shift: str, eps: float, kind: str = "") -> str:
        """LayerNorm over the last axis, or another `kind` of it (option `norm`)."""
        if kind == "document":
            size = len(self.weights[scale])
            centred = self.node("Sub", x, self.node("ReduceMean", x, axes=[-1], keepdims=1))
            variance = self.node("ReduceSumSquare", centred, axes=[-1], keepdims=1)
            spread = self.node("Sqrt", self.node("Mul", variance, self.constant(1 / (size - 1), np.float32)))
            unit = self.node("Div", centred, self.node("Add", spread, self.constant(max(eps, 1e-18), np.float32)))
            return self.node("Add", self.node("Mul", unit, scale), shift)
        return self.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=eps)

    def activation(self, kind: str, x: str, bias: str) -> str:
        """The activation of x + bias, in one operator if there is one."""
        if kind == "gelu_new":
            return self.node("FastGelu", x, bias)
        if kind == "gelu":
            return self.node("BiasGelu", x, bias)
        summed = self.node("Add", x, bias)
        if kind == "silu":
            return self.node("QuickGelu", summed, alpha=1.0)
        return self.node({"relu": "Relu", "tanh": "Tanh"}[kind], summed)

    def attend(self, mixed: str, bias: str, mask: str, heads: int, size: int) -> str:
        """Attention of `heads` heads of `size` over queries, keys and values side by side; `mask` is each text's
        length.
        """
        query, key, value = self.split(mixed, 3)
        return self.node("MultiHeadAttention", query, key, value, bias, mask, num_heads=heads)

    def attend_parts(self, parts: Sequence[str], mask: str, heads: int, sizes: tuple[int, int], extra: str = "") -> str:
        """The same over queries, keys and values, biases added; `extra` (1, heads, length, length) is added to the
        scores. `sizes`: of a head's queries and keys, and of its values.
        """
        more = [extra] if extra else []
        return self.node("MultiHeadAttention", *parts, "", mask, *more, num_heads=heads)

    def graph(self, output: str, shape: list[Any], extra_outputs: list[str] | None = None) -> Graph:
        """The finished graph, with one output, or more."""
        stored = [make_external_tensor(name, array) for name, array in self.weights.items()]
        results = [make_value_info(output, TensorProto.FLOAT, shape)]
        results += [make_value_info(name, TensorProto.FLOAT, None) for name in extra_outputs or []]
        graph = GraphProto(self.nodes, "albertkit", [*self.constants, *stored], self.inputs, results)
        return Graph(make_model(graph, {"": OPSET, MICROSOFT: 1}, IR).encode(), self.weights)
