"""The parts of `runtime/graph.py` in standard ONNX operators, which any ONNX runtime supports.

In: the calls of a `Builder`. Out: a `ModelProto` that contains each weight once, transposed or not.
Int8 products stay int8 (QuantizeLinear and MatMulInteger, one scale per token), as in the runtime; what the runtime
computes in float from int8 weights is dequantised in the graph. After this file: `onnx_export.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from albertkit.onnx_model import (
    GraphProto,
    ModelProto,
    StringStringEntryProto,
    TensorProto,
    make_model,
    make_tensor,
    make_value_info,
)
from albertkit.quantized import QuantizedMatrix
from albertkit.runtime.graph_builder import IR, OPSET, Builder


@dataclass
class PortableBuilder(Builder):
    """A builder that uses no operators specific to onnxruntime."""

    stored_arrays: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Hash of an array → the name it is stored under, and whether it is stored as its transpose."""
    unsigned: bool = False
    """Store the weights of integer products as unsigned numbers, whose products overflow on no CPU."""
    stored_constants: dict[tuple[str, bytes], str] = field(default_factory=dict)

    def fresh(self, op: str) -> str:
        """A short name: in a small model, names would take more than 3 % of the file."""
        self.count += 1
        return f"n{self.count:x}"

    def weight(self, name: str, array: np.ndarray) -> str:
        """An array in the file; equal arrays share one tensor."""
        return self._store_once(name, array, transposed=False)

    def transpose(self, name: str, array: np.ndarray) -> str:
        return self._store_once(name, array, transposed=True)

    def _store_once(self, name: str, array: np.ndarray, transposed: bool) -> str:
        plain = np.ascontiguousarray(array)
        key = hashlib.sha256(f"{plain.shape} {plain.dtype}".encode() + plain.tobytes()).hexdigest()
        if key not in self.stored_arrays:
            self.stored_arrays[key] = self.prefix + name, transposed
            self.weights[self.prefix + name] = np.ascontiguousarray(array.T) if transposed else plain
        stored, is_transposed = self.stored_arrays[key]
        return stored if is_transposed == transposed else self.node("Transpose", stored, perm=[1, 0])

    def constant(self, value: ArrayLike, dtype: DTypeLike) -> str:
        """A small array; equal arrays share one tensor."""
        array = np.asarray(value, dtype)
        key = (f"{array.dtype} {array.shape}", array.tobytes())
        if key not in self.stored_constants:
            self.stored_constants[key] = super().constant(value, dtype)
        return self.stored_constants[key]

    def floats(self, name: str, weight: np.ndarray | QuantizedMatrix) -> str:
        """A weight as floats, stored as it is."""
        if not isinstance(weight, QuantizedMatrix):
            return self.weight(name, weight)
        values, scale = self.weight(name, weight.values), self.weight(f"{name}.scale", weight.scale)
        floats = self.node("DequantizeLinear", values, scale, axis=0)
        return (
            floats if weight.smooth is None else self.node("Mul", floats, self.weight(f"{name}.smooth", weight.smooth))
        )

    def float_product(self, x: str, name: str, weight: np.ndarray | QuantizedMatrix) -> str:
        """x · Wᵀ in floats, W stored as it is."""
        if not isinstance(weight, QuantizedMatrix):
            return self.product(x, name, weight)
        # scaled after the product: with scaled weights, OpenVINO would quantise the activations too
        if weight.smooth is not None:
            x = self.node("Mul", x, self.weight(f"{name}.smooth", weight.smooth))
        floats = self.node("Cast", self.transpose(name, weight.values), to=TensorProto.FLOAT)
        return self.node("Mul", self.node("MatMul", x, floats), self.weight(f"{name}.scale", weight.scale))

    def integer_product(self, small: str, name: str, weight: QuantizedMatrix, zero: str) -> str:
        """The product of integers, multiplied with the scale of each row of W."""
        if self.unsigned:
            values = (weight.values.astype(np.int16) + 128).astype(np.uint8)
            middle = self.constant(128, np.uint8)
            summed = self.node("MatMulInteger", small, self.transpose(name, values), zero, middle)
        else:
            summed = self.node("MatMulInteger", small, self.transpose(name, weight.values), zero)
        scale = self.weight(f"{name}.scale", weight.scale)
        return self.node("Mul", self.node("Cast", summed, to=TensorProto.FLOAT), scale)

    def activation(self, kind: str, x: str, bias: str) -> str:
        """The activation of x + bias, written out."""
        x = self.node("Add", x, bias)
        if kind in ("relu", "tanh"):
            return self.node({"relu": "Relu", "tanh": "Tanh"}[kind], x)
        if kind == "silu":
            return self.node("Mul", x, self.node("Sigmoid", x))
        one, half = self.constant(1.0, np.float32), self.constant(0.5, np.float32)
        if kind == "gelu":
            inner = self.node("Erf", self.node("Div", x, self.constant(2**0.5, np.float32)))
        else:
            cube = self.node("Pow", x, self.constant(3.0, np.float32))
            polynomial = self.node("Add", x, self.node("Mul", cube, self.constant(0.044715, np.float32)))
            inner = self.node("Tanh", self.node("Mul", polynomial, self.constant((2 / np.pi) ** 0.5, np.float32)))
        return self.node("Mul", self.node("Mul", x, self.node("Add", inner, one)), half)

    def attend(self, mixed: str, bias: str, mask: str, heads: int, size: int) -> str:
        """Attention; `mask` (texts, 1, 1, length) is added to the scores."""
        return self.attend_parts(self.split(self.node("Add", mixed, bias), 3), mask, heads, (size, size))

    def attend_parts(self, parts: Sequence[str], mask: str, heads: int, sizes: tuple[int, int], extra: str = "") -> str:
        """The same over queries, keys and values; `extra` is added to the scores, too."""
        size, value_size = sizes
        shapes = [self.constant([0, 0, heads, wide], np.int64) for wide in (size, size, value_size)]
        query, key, value = (  # (texts, length, heads, size)
            self.node("Reshape", part, shape) for part, shape in zip(parts, shapes, strict=True)
        )
        query = self.node("Transpose", query, perm=[0, 2, 1, 3])
        query = self.node("Mul", query, self.constant(size**-0.5, np.float32))
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 2, 3, 1]))
        scores = self.node("Add", scores, extra) if extra else scores
        probabilities = self.node("Softmax", self.node("Add", scores, mask), axis=-1)
        context = self.node("MatMul", probabilities, self.node("Transpose", value, perm=[0, 2, 1, 3]))
        joined = self.constant([0, 0, heads * value_size], np.int64)
        return self.node("Reshape", self.node("Transpose", context, perm=[0, 2, 1, 3]), joined)

    def model(self, outputs: dict[str, list[Any]], metadata: dict[str, str]) -> ModelProto:
        """The finished file; `outputs` are named tensors of the graph and their shapes."""
        stored = [make_tensor(name, array) for name, array in self.weights.items()]
        results = [make_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
        for node in self.nodes:
            node.name = ""  # a node is known by its outputs
        graph = GraphProto(self.nodes, "albertkit", [*self.constants, *stored], self.inputs, results)
        model = make_model(graph, {"": OPSET}, IR)
        model.producer_name = "albertkit"
        model.metadata_props = [StringStringEntryProto(key, value) for key, value in metadata.items()]
        return model
