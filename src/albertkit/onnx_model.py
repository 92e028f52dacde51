"""The messages of an ONNX file, as far as albertkit writes and reads them, without the package `onnx`.

In: operators, arrays and shapes. Out: the messages of a model, with the names of the ONNX specification, and its bytes
(`ModelProto.encode`); and the reverse (`ModelProto.decode`). Before this file: `protobuf.py`. After it:
`runtime/graph_builder.py` and `interop/onnx_operators.py` make graphs, `head_graph.py` and `interop/plbert.py` read
them.
"""
# ruff: noqa: RUF009 (the functions of `protobuf.py` return dataclass fields)

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from albertkit.protobuf import (
    Buffer,
    Message,
    message_field,
    optional_field,
    packed_ints,
    repeated_field,
    scalar_field,
)

TYPES = {  # of the numbers of a tensor
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64",
}  # fmt: skip
TYPE_NUMBERS = {name: number for number, name in TYPES.items()}


@dataclass(eq=False)
class StringStringEntryProto(Message):
    """A key and a value."""

    key: str = scalar_field(1, str)
    value: str = scalar_field(2, str)


@dataclass(eq=False)
class TensorProto(Message):
    """An array."""

    FLOAT: ClassVar[int] = 1
    INT32: ClassVar[int] = 6
    INT64: ClassVar[int] = 7
    BOOL: ClassVar[int] = 9
    EXTERNAL: ClassVar[int] = 1

    dims: list[int] = repeated_field(1, int)
    data_type: int = scalar_field(2, int)
    float_data: list[Buffer] = repeated_field(4, bytes)  # packed
    int32_data: list[Buffer] = repeated_field(5, bytes)  # packed
    string_data: list[Buffer] = repeated_field(6, bytes)
    int64_data: list[Buffer] = repeated_field(7, bytes)  # packed
    name: str = scalar_field(8, str)
    raw_data: Buffer | None = optional_field(9, bytes)
    double_data: list[Buffer] = repeated_field(10, bytes)  # packed
    uint64_data: list[Buffer] = repeated_field(11, bytes)  # packed
    external_data: list[StringStringEntryProto] = repeated_field(13, "StringStringEntryProto")
    data_location: int = scalar_field(14, int)

    @property
    def dtype(self) -> np.dtype:
        """The type of its numbers. Raises ValueError if albertkit does not read it."""
        if self.data_type not in TYPES:
            raise ValueError(
                f"tensor {self.name!r} has the type {self.data_type}; {', '.join(TYPES.values())} are read"
            )
        return np.dtype(TYPES[self.data_type])

    def array(self) -> np.ndarray:
        """Its numbers. Raises ValueError if they do not have its shape."""
        dtype = self.dtype
        if self.raw_data is not None:
            flat = np.frombuffer(self.raw_data, dtype.newbyteorder("<")).astype(dtype)
        elif dtype == np.float32:
            flat = np.frombuffer(b"".join(self.float_data), "<f4").astype(dtype)
        elif dtype == np.float64:
            flat = np.frombuffer(b"".join(self.double_data), "<f8").astype(dtype)
        else:
            fields = {"int64": self.int64_data, "uint32": self.uint64_data, "uint64": self.uint64_data}
            packed = b"".join(fields.get(dtype.name, self.int32_data))
            if len(packed) > 10 * math.prod(self.dims):
                raise ValueError(f"its numbers have {len(packed):,} bytes, too many for the shape {self.dims}")
            numbers = np.array(list(packed_ints(packed)), np.int64)
            flat = numbers.astype(np.uint16).view(dtype) if dtype == np.float16 else numbers.astype(dtype)  # as bits
        return flat.reshape(self.dims)


@dataclass(eq=False)
class AttributeProto(Message):
    """A setting of an operator."""

    name: str = scalar_field(1, str)
    f: float | None = optional_field(2, float)
    i: int | None = optional_field(3, int)
    s: Buffer | None = optional_field(4, bytes)
    t: TensorProto | None = optional_field(5, "TensorProto")
    g: GraphProto | None = optional_field(6, "GraphProto")
    floats: list[float] = repeated_field(7, float)
    ints: list[int] = repeated_field(8, int)
    strings: list[Buffer] = repeated_field(9, bytes)
    tensors: list[TensorProto] = repeated_field(10, "TensorProto")
    graphs: list[GraphProto] = repeated_field(11, "GraphProto")
    type: int = scalar_field(20, int)
    ref_attr_name: str = scalar_field(21, str)
    sparse_tensor: Buffer | None = optional_field(22, bytes)
    sparse_tensors: list[Buffer] = repeated_field(23, bytes)


@dataclass(eq=False)
class NodeProto(Message):
    """An operator."""

    input: list[str] = repeated_field(1, str)
    output: list[str] = repeated_field(2, str)
    name: str = scalar_field(3, str)
    op_type: str = scalar_field(4, str)
    attribute: list[AttributeProto] = repeated_field(5, "AttributeProto")
    domain: str = scalar_field(7, str)


@dataclass(eq=False)
class Dimension(Message):
    """An axis: its size, or the name of its size."""

    dim_value: int | None = optional_field(1, int)
    dim_param: str = scalar_field(2, str)


@dataclass(eq=False)
class TensorShapeProto(Message):
    """The axes of a tensor."""

    dim: list[Dimension] = repeated_field(1, "Dimension")


@dataclass(eq=False)
class TensorTypeProto(Message):
    """The type and the shape of a tensor."""

    elem_type: int = scalar_field(1, int)
    shape: TensorShapeProto | None = optional_field(2, "TensorShapeProto")


@dataclass(eq=False)
class TypeProto(Message):
    """The type of a value; other values than tensors are skipped."""

    tensor_type: TensorTypeProto = message_field(1, TensorTypeProto)


@dataclass(eq=False)
class ValueInfoProto(Message):
    """An input or output of a graph."""

    name: str = scalar_field(1, str)
    type: TypeProto = message_field(2, TypeProto)

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis; 0 where it is not fixed."""
        shape = self.type.tensor_type.shape
        return tuple(dim.dim_value or 0 for dim in shape.dim) if shape else ()


@dataclass(eq=False)
class GraphProto(Message):
    """Operators with their inputs, outputs and stored tensors."""

    node: list[NodeProto] = repeated_field(1, "NodeProto")
    name: str = scalar_field(2, str)
    initializer: list[TensorProto] = repeated_field(5, "TensorProto")
    input: list[ValueInfoProto] = repeated_field(11, "ValueInfoProto")
    output: list[ValueInfoProto] = repeated_field(12, "ValueInfoProto")
    sparse_initializer: list[Buffer] = repeated_field(15, bytes)


@dataclass(eq=False)
class OperatorSetIdProto(Message):
    """A set of operators and its version."""

    domain: str = scalar_field(1, str)
    version: int = scalar_field(2, int)


@dataclass(eq=False)
class ModelProto(Message):
    """A file."""

    ir_version: int = scalar_field(1, int)
    producer_name: str = scalar_field(2, str)
    graph: GraphProto = message_field(7, GraphProto)
    opset_import: list[OperatorSetIdProto] = repeated_field(8, "OperatorSetIdProto")
    metadata_props: list[StringStringEntryProto] = repeated_field(14, "StringStringEntryProto")
    training_info: list[Buffer] = repeated_field(20, bytes)
    functions: list[Buffer] = repeated_field(25, bytes)


AttributeValue = int | float | str | Sequence[int] | Sequence[float] | GraphProto


# Making messages -------------------------------------------------------------------------------------------------


def make_node(
    op_type: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    name: str,
    domain: str = "",
    **attributes: AttributeValue,
) -> NodeProto:
    """An operator with its attributes.

    >>> make_node("Add", ["a", "b"], ["c"], name="sum").op_type
    'Add'
    """
    attribute_protos = [_attribute(key, attributes[key]) for key in sorted(attributes)]
    return NodeProto(list(inputs), list(outputs), name, op_type, attribute_protos, domain)


def _attribute(name: str, value: AttributeValue) -> AttributeProto:
    if isinstance(value, float):
        return AttributeProto(name, f=value, type=1)
    if isinstance(value, int):
        return AttributeProto(name, i=value, type=2)
    if isinstance(value, str):
        return AttributeProto(name, s=value.encode(), type=3)
    if isinstance(value, GraphProto):
        return AttributeProto(name, g=value, type=5)
    if any(isinstance(item, float) for item in value):
        return AttributeProto(name, floats=list(value), type=6)
    return AttributeProto(name, ints=[int(item) for item in value], type=7)


def make_tensor(name: str, array: np.ndarray) -> TensorProto:
    """An array with its numbers in the file."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return TensorProto(list(array.shape), TYPE_NUMBERS[array.dtype.name], name=name, raw_data=little.tobytes())


def make_external_tensor(name: str, array: np.ndarray) -> TensorProto:
    """An array whose numbers onnxruntime receives separately: the file that is named here is never opened."""
    place = StringStringEntryProto("location", "weights")
    return TensorProto(
        list(array.shape), TYPE_NUMBERS[array.dtype.name], name=name, external_data=[place],
        data_location=TensorProto.EXTERNAL,
    )  # fmt: skip


def make_value_info(name: str, data_type: int, shape: Sequence[int | str] | None) -> ValueInfoProto:
    """An input or output. shape: sizes, and names of sizes that are not fixed; None: unknown."""
    axes = None
    if shape is not None:
        axes = TensorShapeProto([Dimension(dim_param=n) if isinstance(n, str) else Dimension(n) for n in shape])
    return ValueInfoProto(name, TypeProto(TensorTypeProto(data_type, axes)))


def make_model(graph: GraphProto, opsets: Mapping[str, int], ir_version: int) -> ModelProto:
    """A file with one graph. opsets: the version of each set of operators."""
    imported = [OperatorSetIdProto(domain, version) for domain, version in opsets.items()]
    return ModelProto(ir_version, graph=graph, opset_import=imported)
