"""The ONNX graph of a custom head: checks of the untrusted file, and its session in onnxruntime. No torch.

In: `head-NAME.onnx` of an artifact, and the tensors `heads.NAME.module.…`. Out: the scores of hidden states. Before
this file: `model/head_export.py` makes the graph from a user's module. After it: `artifact.py` stores the graph,
`runtime/predict.py` runs it, and `interop/onnx_export.py` copies its nodes.

    inputs    hidden (texts, length, H) float, mask (texts, length) bool, and each weight under the name of its tensor
    output    scores: (texts, outputs), or for a head over tokens (texts, length, outputs)

Weights are inputs, so that each is stored once, in the file of the weights. The operators are standard ones, without
loops, random numbers and references to other files. Nothing is computed before the first call, and then in bounded
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError, short_reason
from albertkit.file_io import read_file
from albertkit.onnx_model import GraphProto, ModelProto, NodeProto, TensorProto, make_external_tensor
from albertkit.onnx_session import open_session
from albertkit.protobuf import DecodeError
from albertkit.quantized import QuantizedMatrix
from albertkit.weights import TOKEN_HEADS, custom_heads

HEAD_OPSET = 17  # as in `runtime/graph_builder.py`, whose graphs the nodes are copied into
MAX_HEAD_BYTES = 4 * 2**20
MAX_HEAD_NODES = 10_000
MAX_HEAD_MEMORY = 2**30  # bytes that all custom heads of a process may use while they compute
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
INPUTS = ("hidden", "mask")
REMEDY = ". Create the model again, or use another copy."
HeadWeights = Mapping[str, "np.ndarray | QuantizedMatrix"]


def head_file(head: str) -> str:
    """The name of the file of a custom head.

    >>> head_file("classify")
    'head-classify.onnx'
    """
    return f"head-{head}.onnx"


def read_head_graphs(folder: Path, files: Mapping[str, str], weights: HeadWeights) -> dict[str, bytes]:
    """The checked graphs of the custom heads in a folder. files: the files that have a stored hash."""
    graphs = {}
    for head in custom_heads(weights):
        path = folder / head_file(head)
        if path.name not in files:
            raise AlbertkitError(
                f"{path} is not listed in albertkit.json, but the weights contain a custom head {head!r}, which is "
                "computed by this file. Copy the folder again."
            )
        graphs[head] = read_file(path, MAX_HEAD_BYTES)
        check_head_graph(str(path), graphs[head], weights)
    return graphs


def check_has_graphs(weights: HeadWeights, graphs: Mapping[str, bytes]) -> None:
    """Raise if a custom head has no graph, or a graph has no head."""
    heads = custom_heads(weights)
    if heads != sorted(graphs):
        raise AlbertkitError(
            f"the weights contain the custom heads {heads}, but there are graphs of {sorted(graphs)}. "
            "Pass one graph (head_graphs) for each custom head."
        )


# Checks --------------------------------------------------------------------------------------------------------------


def check_head_graph(name: str, data: bytes, weights: HeadWeights) -> ModelProto:
    """The graph as a message. Raises an error that names the file if it is not one that may be computed."""
    if len(data) > MAX_HEAD_BYTES:
        raise _refusal(name, f"has {len(data):,} bytes; at most {MAX_HEAD_BYTES:,} are read")
    try:
        model = ModelProto.decode(data)
    except DecodeError:
        raise _refusal(name, "is not an ONNX file") from None
    opsets = {(opset.domain or "ai.onnx", opset.version) for opset in model.opset_import}
    if opsets != {("ai.onnx", HEAD_OPSET)}:
        raise _refusal(name, f"uses the operator sets {sorted(opsets)}; only ai.onnx {HEAD_OPSET} is allowed")
    if model.functions or model.training_info:
        raise _refusal(name, "defines functions or training steps, which are not allowed")
    graph = model.graph
    if not graph.node or len(graph.node) > MAX_HEAD_NODES:
        raise _refusal(name, f"has {len(graph.node):,} operators; 1 to {MAX_HEAD_NODES:,} are allowed")
    if graph.sparse_initializer:
        raise _refusal(name, "contains sparse tensors, which are not allowed")
    for node in graph.node:
        _check_node(name, node)
    for tensor in graph.initializer:
        _check_tensor(name, tensor)
    _check_inputs(name, graph, weights)
    return model


def _refusal(name: str, problem: str) -> AlbertkitError:
    return AlbertkitError(f"{name} {problem}{REMEDY}")


def _check_node(name: str, node: NodeProto) -> None:
    if node.domain not in ("", "ai.onnx"):
        raise _refusal(name, f"uses the operator {node.domain}.{node.op_type}; only standard operators are allowed")
    if node.op_type in RANDOM:
        raise _refusal(name, f"uses the operator {node.op_type}; random numbers are not allowed")
    for attribute in node.attribute:
        if attribute.g is not None or attribute.graphs:
            raise _refusal(name, f"uses the operator {node.op_type}; loops and branches are not allowed")
        if attribute.sparse_tensor is not None or attribute.sparse_tensors:
            raise _refusal(name, "contains sparse tensors, which are not allowed")
        for tensor in (attribute.t, *attribute.tensors):
            if tensor is not None:
                _check_tensor(name, tensor)


def _check_tensor(name: str, tensor: TensorProto) -> None:
    if tensor.data_location or tensor.external_data:
        raise _refusal(name, f"refers to data in another file ({tensor.name!r}), which is not allowed")


def _check_inputs(name: str, graph: GraphProto, weights: HeadWeights) -> None:
    names = [entry.name for entry in graph.input]
    if len(set(names)) < len(names):
        raise _refusal(name, "has two inputs of the same name")
    for entry in graph.input:
        if entry.name in INPUTS:
            continue
        if entry.name not in weights:
            raise _refusal(
                name, f"has the input {entry.name!r}, which is neither hidden, mask nor a tensor of the model"
            )
        stored = _array(weights[entry.name]).shape
        if entry.shape != stored:
            raise _refusal(name, f"has the input {entry.name!r} of shape {entry.shape}; the tensor has {stored}")
    if [output.name for output in graph.output] != ["scores"]:
        raise _refusal(name, f"has the outputs {[output.name for output in graph.output]}; it must have one, 'scores'")


def _array(weight: np.ndarray | QuantizedMatrix) -> np.ndarray:
    return weight.floats() if isinstance(weight, QuantizedMatrix) else weight


# Inference -----------------------------------------------------------------------------------------------------------


class HeadSession:
    """A custom head in onnxruntime.

    outputs: the number of scores of a text or token; None: any.
    """

    def __init__(
        self, head: str, data: bytes, weights: HeadWeights, threads: int = 1, outputs: int | None = None
    ) -> None:
        import onnxruntime as ort

        self.head, self.outputs, self.file = head, outputs, head_file(head)
        model = check_head_graph(self.file, data, weights)
        names = [entry.name for entry in model.graph.input if entry.name not in INPUTS]
        arrays = [np.ascontiguousarray(_array(weights[name]), np.float32) for name in names]
        options = ort.SessionOptions()
        options.log_severity_level = 4  # errors are raised
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # folding has no memory limit
        options.add_external_initializers(names, [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays])
        # written again: onnxruntime receives only what was checked, and weights in place of inputs
        model.graph.input = [entry for entry in model.graph.input if entry.name in INPUTS]
        model.graph.initializer += [make_external_tensor(n, a) for n, a in zip(names, arrays, strict=True)]
        self.session = self._call(lambda: open_session(model.encode(), options, MAX_HEAD_MEMORY))
        self.inputs = {entry.name for entry in self.session.get_inputs()}

    def scores(self, hidden: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Scores (texts, outputs), or for a head over tokens (texts, length, outputs), from hidden states
        (texts, length, H). Values beyond a text's length are not read.
        """
        mask = np.arange(hidden.shape[1])[None] < np.asarray(lengths)[:, None]
        hidden = np.where(mask[..., None], hidden, np.float32(0))
        feed = {name: array for name, array in zip(INPUTS, (hidden, mask), strict=True) if name in self.inputs}
        scores = self._call(lambda: self.session.run(["scores"], feed)[0])
        shape = hidden.shape[: 2 if self.head in TOKEN_HEADS else 1]
        expected = (*shape, scores.shape[-1] if self.outputs is None and scores.ndim else self.outputs)
        if scores.shape != expected:
            raise _refusal(self.file, f"gives scores of shape {scores.shape}; {expected} is needed")
        return np.asarray(scores, np.float32)

    def _call(self, compute: Any) -> Any:
        try:
            return compute()
        except Exception as error:  # onnxruntime has a class for each of its error codes
            reason = short_reason(error)
            raise _refusal(self.file, f"cannot be computed by onnxruntime ({reason})") from None
