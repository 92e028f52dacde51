"""Messages written without the package `onnx` are those that it writes and reads."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from albertkit import onnx_model
from albertkit.config import Options
from albertkit.interop.onnx_export import ExportSettings, build
from albertkit.onnx_model import GraphProto, ModelProto, TensorProto, make_node, make_tensor, make_value_info
from albertkit.protobuf import MAX_COST, MAX_NESTING, DecodeError, varint
from albertkit.runtime import graph
from tests.conftest import tiny
from tests.test_albert import make

CONFIGS = {
    "plain": {},
    "groups": {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2},
    "window": {"options": Options(window=4)},
    "silu": {"hidden_act": "silu"},
}
ATTRIBUTES = {
    "axis": -1,
    "epsilon": 1e-12,
    "zero": 0,
    "mode": "linear",
    "perm": [0, 2, 1],
    "scales": [0.5, 2.0],
}


@pytest.fixture(params=CONFIGS)
def stored(request):
    return make(tiny(vocab_size=3000, **CONFIGS[request.param]))


def test_runtime_graphs_are_what_onnx_reads_and_writes(stored):
    prefixes = [f"encoder.groups.{g}.{i}" for g in range(stored.config.layer_groups) for i in range(stored.config.inner_group_num)]  # fmt: skip
    for made in (
        graph.layer_graph(stored.config, stored.weights, prefixes, 127),
        graph.embedding_graph(stored.config, stored.weights, 127),
    ):
        read = onnx.ModelProto.FromString(made.model)
        assert read.SerializeToString(deterministic=True) == made.model
        assert {t.name for t in read.graph.initializer if t.external_data} == set(made.weights)


def test_exported_files_pass_the_checker_of_onnx(stored):
    data = build(stored, ("vector",), 3, ExportSettings()).encode()
    read = onnx.load_model_from_string(data)
    onnx.checker.check_model(read, full_check=True)
    assert read.SerializeToString(deterministic=True) == data == ModelProto.decode(data).encode()


def test_nodes_equal_those_of_onnx():
    made = make_node("Op", ["a", "", "b"], ["c"], name="n", domain="d", **ATTRIBUTES)
    expected = helper.make_node("Op", ["a", "", "b"], ["c"], name="n", domain="d", **ATTRIBUTES)
    assert made.encode() == expected.SerializeToString(deterministic=True)


def test_a_branch_equals_that_of_onnx():
    body = GraphProto([make_node("Identity", ["a"], ["b"], name="i")], "body", output=[make_value_info("b", 1, None)])
    same = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["b"], name="i")],
        "body",
        [],
        [helper.make_tensor_value_info("b", 1, None)],
    )
    made, expected = make_node("If", ["x"], ["y"], name="f", then_branch=body), helper.make_node("If", ["x"], ["y"], name="f", then_branch=same)  # fmt: skip
    assert made.encode() == expected.SerializeToString(deterministic=True)


def test_inputs_and_their_shapes_equal_those_of_onnx():
    made = make_value_info("x", TensorProto.INT64, ["texts", 0, 128])
    assert made.encode() == helper.make_tensor_value_info("x", 7, ["texts", 0, 128]).SerializeToString()
    assert made.shape == (0, 0, 128)


@pytest.mark.parametrize("dtype", onnx_model.TYPE_NUMBERS)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_tensors_of_every_type_equal_those_of_onnx(dtype, shape):
    array = np.arange(6).astype(dtype)[: int(np.prod(shape))].reshape(shape)
    expected = numpy_helper.from_array(array, "t")
    assert make_tensor("t", array).encode() == expected.SerializeToString(deterministic=True)
    typed = helper.make_tensor("t", expected.data_type, shape, array.flatten().tolist())  # numbers as a list, not raw
    for tensor in (expected, typed):
        found = TensorProto.decode(tensor.SerializeToString()).array()
        assert found.dtype == array.dtype and np.array_equal(found, array)


def test_a_tensor_of_another_type_or_size_is_an_error():
    with pytest.raises(ValueError, match="has the type 16"):
        TensorProto([1], 16, name="t").array()
    with pytest.raises(ValueError):
        TensorProto([3], 1, name="t", raw_data=b"12345678").array()


def test_fields_that_are_not_known_are_skipped():
    node = onnx.NodeProto(op_type="Add", doc_string="file.py:3")
    assert onnx_model.NodeProto.decode(node.SerializeToString()).encode() == b"\x22\x03Add"


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_message_or_an_error(data):
    try:
        found = ModelProto.decode(data).encode()
    except DecodeError:
        return
    assert ModelProto.decode(found).encode() == found


def test_parts_of_messages_and_their_nesting_are_bounded():
    crowded = b"\x3a" + varint(2 * MAX_COST // 5) + b"\x0a\x00" * (MAX_COST // 5)
    unknown = b"\x3a" + varint(3 * MAX_COST) + b"\x90\x03\x00" * MAX_COST
    nested = b""
    for _ in range(MAX_NESTING):  # a graph of a node with an attribute with a graph
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            nested = tag + varint(len(nested)) + nested
    for data in (crowded, unknown, b"\x3a" + varint(len(nested)) + nested):
        with pytest.raises(DecodeError, match="parts"):
            ModelProto.decode(data)
