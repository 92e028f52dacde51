"""PL-BERT: an ALBERT over phonemes, part of speech synthesisers.

In: its PyTorch file (`step_….t7`, or a synthesiser's `.pth`) or an ONNX file that contains it (Kokoro).
Out: an `Artifact` with the encoder and a tokenizer of 178 symbols, one character each. The symbols are those of
PL-BERT; Kokoro uses the ids of some capital letters for other symbols.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.artifact import Artifact, ArtifactMetadata, load_weights
from albertkit.errors import AlbertkitError, short_reason
from albertkit.file_io import file_size, open_weights
from albertkit.interop.huggingface import WORD_TABLE, encoder_prefix, from_state_dict
from albertkit.interop.pickle_file import open_pickle
from albertkit.onnx_model import GraphProto, ModelProto, TensorProto
from albertkit.protobuf import protobuf_fields
from albertkit.tensor_file import StoredTensor, check_shape
from albertkit.tokenizer import Tokenizer

Tensors = dict[str, StoredTensor]

SYMBOLS = [
    "$",
    *';:,.!?¡¿—…"«»“” ',
    *"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
    *"ɑɐɒæɓʙβɔɕçɗɖðʤəɘɚɛɜɝɞɟʄɡɠɢʛɦɧħɥʜɨɪʝɭɬɫɮʟɱɯɰŋɳɲɴøɵɸθœɶʘɹɺɾɻʀʁɽʂʃʈʧʉʊʋⱱʌɣɤʍχʎʏʑʐʒʔʡʕʢǀǁǂǃˈˌːˑʼʴʰʱʲʷˠˤ˞↓↑→↗↘",
    "'",
    "\u0329",
    "'",
    "ᵻ",
]
# The tensors do not show these; every published PL-BERT has them.
HEADS = 12
LAYERS = 12
ENCODER_TENSOR = re.compile(r"(embeddings|albert_layer|embedding_hidden|pooler).*\.(weight|bias)$")
MAX_ONNX_BYTES = 2 * 2**30
MAX_GRAPH_FIELDS, MAX_GRAPH_BYTES = 100_000, 8 * 2**20
# Tags of an ONNX file: the graph of a model, the tensors of a graph, the numbers of a tensor (raw, float, double).
GRAPH, INITIALIZER, NUMBERS = 58, 42, (74, 34, 82)


def read_file(path: Path) -> Artifact:
    """Open a PL-BERT by its file."""
    if path.suffix == ".onnx":
        return _artifact(path, *read_onnx(path))
    with open_pickle(path) as content:
        return _artifact(path, _flatten(content), LAYERS)


def _artifact(path: Path, tensors: Tensors, layers: int) -> Artifact:
    shape = {**_shape(tensors), "num_hidden_layers": layers, "num_attention_heads": HEADS}
    config, stored = from_state_dict(tensors, shape)
    tokenizer = Tokenizer.from_symbols(SYMBOLS) if config.vocab_size == len(SYMBOLS) else None
    meta = ArtifactMetadata(task="embed", history=({"step": "convert", "from": path.name, "layout": "pl-bert"},))
    return Artifact(config, load_weights(config, stored), tokenizer, meta)


def _flatten(data: dict[str, Any], prefix: str = "") -> Tensors:
    """Nested dicts (`{"net": {…}}`, `{"bert": {…}}`) to one level; only tensors are kept."""
    flat: Tensors = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, StoredTensor):
            flat[prefix + key] = value
    return flat


def _shape(tensors: Tensors) -> dict[str, int]:
    prefix = encoder_prefix(tensors)
    words = tensors[prefix + WORD_TABLE]
    positions = tensors.get(f"{prefix}embeddings.position_embeddings.weight")
    up = tensors.get(f"{prefix}encoder.albert_layer_groups.0.albert_layers.0.ffn.weight")
    if positions is None or up is None or any(len(t.shape) != 2 for t in (words, positions, up)):
        raise AlbertkitError(
            "the ALBERT in this file has no position table or feed-forward matrix, so its shape is unknown; "
            "use a complete file"
        )
    return {
        "vocab_size": words.shape[0],
        "embedding_size": words.shape[1],
        "max_position_embeddings": positions.shape[0],
        "hidden_size": up.shape[1],
        "intermediate_size": up.shape[0],
    }


def read_onnx(path: Path) -> tuple[Tensors, int]:
    """The tensors under their PyTorch names, and the number of uses of the shared layer.

    ONNX files name biases and norms but not matrices: a matrix is found through the product its bias is added to.
    """
    try:
        graph = _read_graph(path)
        stored = {t.name: t for t in graph.initializer}
        if any(t.data_location == TensorProto.EXTERNAL for t in stored.values()):
            raise AlbertkitError(f"{path} has weights in other files, which are not read; save it as one file")
        tensors = {name: _stored(path, tensor) for name, tensor in stored.items() if ENCODER_TENSOR.search(name)}
        uses = 0
        for bias, matrix in _dense_layers(graph, [name for name in tensors if name.endswith(".bias")]):
            # nn.Linear is exported as x·Wᵀ, with Wᵀ stored.
            tensors[bias.removesuffix("bias") + "weight"] = _stored(path, stored[matrix], transpose=True)
            uses += bias.endswith("albert_layers.0.attention.query.bias")
    except AlbertkitError:
        raise
    except (OSError, ValueError, MemoryError) as error:
        raise AlbertkitError(f"{path} is not a readable ONNX file: {short_reason(error)}") from None
    return tensors, max(uses, 1)


def _read_graph(path: Path) -> GraphProto:
    """The graph of an ONNX file, after a check of its size."""
    with open_weights(path) as file:
        size = file_size(file)
        if size > MAX_ONNX_BYTES:
            raise AlbertkitError(
                f"{path} has {size:,} bytes; an ONNX file has at most {MAX_ONNX_BYTES:,}. Check the path."
            )
        data = file.read(size)
    _check_graph(data)
    return ModelProto.decode(memoryview(data)).graph


def _dense_layers(graph: GraphProto, biases: Collection[str]) -> Iterator[tuple[str, str]]:
    """The names of the bias and the matrix of each dense layer, at each of its uses."""
    stored = {tensor.name for tensor in graph.initializer}
    products = {output: node for node in graph.node if node.op_type == "MatMul" for output in node.output}
    for node in graph.node:
        bias = next((name for name in node.input if name in biases), None)
        product = next((products[name] for name in node.input if name in products), None)
        if node.op_type == "Add" and bias is not None and product is not None:
            matrix = next((name for name in product.input if name in stored), None)
            if matrix is not None:
                yield bias, matrix


def _check_graph(data: bytes) -> None:
    """Bound what a graph has beside numbers: each of its messages takes much more memory than its bytes."""
    count, payload_bytes = 0, 0
    for tag, _, graph in protobuf_fields(memoryview(data)):
        for part_tag, _, part in protobuf_fields(graph) if tag == GRAPH else [(tag, 0, graph)]:
            is_tensor = tag == GRAPH and part_tag == INITIALIZER
            for field_tag, _, field in protobuf_fields(part) if is_tensor else [(part_tag, 0, part)]:
                count += 1
                payload_bytes += 0 if is_tensor and field_tag in NUMBERS else len(field)
                if count > MAX_GRAPH_FIELDS or payload_bytes > MAX_GRAPH_BYTES:
                    limits = f"{MAX_GRAPH_FIELDS:,} parts or {MAX_GRAPH_BYTES:,} bytes"
                    raise ValueError(f"its graph has over {limits} beside the numbers of its tensors")


def _stored(path: Path, tensor: TensorProto, transpose: bool = False) -> StoredTensor:
    dtype, shape = tensor.dtype, tuple(tensor.dims)
    check_shape(tensor.name, shape, dtype)

    def read() -> np.ndarray:
        try:
            array = tensor.array()
        except (ValueError, OverflowError, MemoryError) as error:
            raise AlbertkitError(
                f"{path}: tensor {tensor.name!r} is damaged ({short_reason(error)}). Copy the file again."
            ) from None
        return array.T.copy() if transpose else array

    shape = shape[::-1] if transpose else shape
    source = f"tensor {tensor.name!r} in {path.name}"
    return StoredTensor(dtype, shape, source, 0, math.prod(shape) * dtype.itemsize, read)
