"""Model files that are small on disk and large in memory, for `test_hostile_models.py`."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import onnx
import torch

from albertkit.config import AlbertConfig
from albertkit.weights import encoder_shapes, tensor_names
from tests.conftest import SPIECE, tiny
from tests.interop import bundle_writer

WORDS = "albert.embeddings.word_embeddings.weight"
LARGE = 4_000_000  # tokens; at 128 numbers each the table has 2 GB
GROUPS = 64  # of 33 MB each in `repeated`

Shape = tuple[int, ...]


def repeated() -> AlbertConfig:
    """A model of 2 GB whose groups of layers could be the same bytes."""
    size = {"hidden_size": 960, "intermediate_size": 2880, "num_attention_heads": 12}
    return tiny(vocab_size=30_000, num_hidden_layers=GROUPS, num_hidden_groups=GROUPS, **size)


def large() -> AlbertConfig:
    """A model with a word table of 2 GB."""
    return tiny(vocab_size=LARGE, embedding_size=128)


def model_folder(folder: Path, config: AlbertConfig) -> Path:
    """A folder with config.json and a vocabulary, without weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    shutil.copy(SPIECE, folder / "spiece.model")
    return folder


def public_shapes(config: AlbertConfig) -> dict[str, Shape]:
    shapes = encoder_shapes(config)
    return {name.torch: shapes[name.ours] for name in tensor_names(config) if name.ours in shapes}


# safetensors ---------------------------------------------------------------------------------------------------------


def safetensors_header(shapes: dict[str, Shape], places: dict[str, tuple[int, int]] | None = None) -> bytes:
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (places or {}).get(name, (at, end))}
        at = end
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def sparse_file(path: Path, head: bytes, size: int) -> None:
    """A file of zeros after its head that takes a few kilobytes on disk."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)


def sparse_safetensors(folder: Path, config: AlbertConfig, changes: dict[str, Shape]) -> Path:
    shapes = public_shapes(config) | changes
    size = sum(4 * int(np.prod(shape)) for shape in shapes.values())
    sparse_file(model_folder(folder, config) / "model.safetensors", safetensors_header(shapes), size)
    return folder


def placed_safetensors(folder: Path, shift: int) -> Path:
    """The last tensor begins `shift` bytes after (or before) the end of the tensor before it."""
    config = tiny(vocab_size=30_000)
    shapes = public_shapes(config)
    sizes = [4 * int(np.prod(shape)) for shape in shapes.values()]
    start = sum(sizes[:-1]) + shift
    head = safetensors_header(shapes, {list(shapes)[-1]: (start, start + sizes[-1])})
    (model_folder(folder, config) / "model.safetensors").write_bytes(head + bytes(start + sizes[-1]))
    return folder


# PyTorch -------------------------------------------------------------------------------------------------------------


def stride_zero(folder: Path, legacy: bool) -> Path:
    """A word table of 2 GB that is one number."""
    config = large()
    state = {name: torch.zeros(1).expand(shape) for name, shape in public_shapes(config).items()}
    new = not legacy
    torch.save(state, model_folder(folder, config) / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    return folder


def shared_storage(folder: Path) -> Path:
    """All groups of layers have the storage of one."""
    config = repeated()
    once: dict[str, torch.Tensor] = {}
    state = {}
    for name, shape in public_shapes(config).items():
        part = name.partition("albert_layers.0.")[2] or name
        state[name] = once.setdefault(part, torch.zeros(shape))
    torch.save(state, model_folder(folder, config) / "pytorch_model.bin")
    return folder


def deflated(folder: Path) -> Path:
    """A storage of 1 GB that is 1 MB of deflated zeros."""
    path = model_folder(folder, tiny(vocab_size=30_000)) / "pytorch_model.bin"
    torch.save({WORDS: torch.zeros(2**10)}, path)
    content = read_records(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in content.items():
            with archive.open(name, "w") as record:
                for part in [bytes(2**20)] * 2**10 if "/data/" in name else [data]:
                    record.write(part)
    return folder


def read_records(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def shortened_record(folder: Path) -> Path:
    """A record has 64 bytes, and the pickle gives its storage 480,000 numbers."""
    config = tiny(vocab_size=30_000)
    path = model_folder(folder, config) / "pytorch_model.bin"
    torch.save({name: torch.zeros(shape) for name, shape in public_shapes(config).items()}, path)
    content = read_records(path)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data[:64] if name.endswith("/data/0") else data)
    return folder


def overlapping_records(folder: Path) -> Path:
    """An archive whose directory gives every storage the bytes of the first one."""
    config = tiny(vocab_size=30_000)
    path = model_folder(folder, config) / "pytorch_model.bin"
    torch.save({name: torch.zeros(shape) for name, shape in public_shapes(config).items()}, path)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        first = next(info.header_offset for info in archive.infolist() if info.filename.endswith("/data/0"))
        at = archive.start_dir
    while data[at : at + 4] == b"PK\1\2":
        name, extra, comment = struct.unpack_from("<HHH", data, at + 28)
        if b"/data/" in data[at + 46 : at + 46 + name]:
            struct.pack_into("<I", data, at + 42, first)
        at += 46 + name + extra + comment
    path.write_bytes(data)
    return folder


def many_records(folder: Path) -> Path:
    """An archive with a directory of 200,000 records."""
    path = model_folder(folder, tiny(vocab_size=30_000)) / "pytorch_model.bin"
    torch.save({WORDS: torch.zeros(4)}, path)
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"x"
    directory = data[start : data.index(b"PK\6\6", start)] + entry * 200_000
    tail = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, len(directory), start, 0)
    path.write_bytes(data[:start] + directory + tail)
    return folder


# TensorFlow and ONNX -------------------------------------------------------------------------------------------------


def aliased_bundle(folder: Path) -> Path:
    """All groups of layers are the same bytes of the data file."""
    config = repeated()
    shapes, places, records, at = encoder_shapes(config), {}, {b"": bundle_writer.header()}, 0
    data, crcs = bytearray(), {}
    for name in tensor_names(config):
        if name.ours not in shapes:
            continue
        shape = shapes[name.ours][::-1] if name.transpose else shapes[name.ours]
        size = 4 * int(np.prod(shape))
        part = name.tf.partition("/inner_group_0/")[2] or name.tf
        if part not in places:
            places[part], at = at, at + size
            data += bytes(size)
            crcs[part] = bundle_writer.masked(bytes(size))
        records[name.tf.encode()] = bundle_writer.entry(1, shape, 0, places[part], size, crcs[part])
    model_folder(folder, config)
    (folder / "m.index").write_bytes(bundle_writer.table(sorted(records.items())))
    (folder / "m.data-00000-of-00001").write_bytes(data)
    return folder


def oversized_bundle(folder: Path) -> Path:
    """The word table has 2 GB in a sparse data file, and does not fit the config."""
    config = tiny(vocab_size=30_000)
    shapes, records, at = encoder_shapes(config), {b"": bundle_writer.header()}, 0
    for name in tensor_names(config):
        if name.ours in shapes:
            shape = shapes[name.ours][::-1] if name.transpose else shapes[name.ours]
            shape = (LARGE, 128) if name.tf.endswith("word_embeddings") else shape
            size = 4 * int(np.prod(shape))
            records[name.tf.encode()] = bundle_writer.entry(1, shape, 0, at, size, 0)
            at += size
    model_folder(folder, config)
    (folder / "m.index").write_bytes(bundle_writer.table(sorted(records.items())))
    sparse_file(folder / "m.data-00000-of-00001", b"", at)
    return folder


def aliased_onnx(folder: Path) -> Path:
    """Queries and keys are the same matrix."""
    folder.mkdir()
    shapes = public_shapes(tiny(vocab_size=178, hidden_size=96, num_attention_heads=12))
    prefix, nodes, stored = "encoder.bert.", [], []
    for name, shape in shapes.items():
        ours = prefix + name.removeprefix("albert.")
        if len(shape) == 1 or "embeddings." in name:
            stored.append(onnx.numpy_helper.from_array(np.zeros(shape, np.float32), ours))
            continue
        matrix, number = ours.replace("key", "query"), len(nodes)
        nodes.append(onnx.helper.make_node("MatMul", ["x", f"{matrix} transposed"], [f"product{number}"]))
        bias = ours.replace(".weight", ".bias")
        nodes.append(onnx.helper.make_node("Add", [f"product{number}", bias], [f"sum{number}"]))
        if matrix == ours:
            stored.append(onnx.numpy_helper.from_array(np.zeros(shape[::-1], np.float32), f"{matrix} transposed"))
    graph = onnx.helper.make_graph(nodes, "g", [], [], initializer=stored)
    (folder / "x.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    return folder


def crowded_onnx(folder: Path) -> Path:
    """A graph of eight million empty nodes of two bytes each."""
    folder.mkdir()
    nodes = b"\x0a\x00" * 8_000_000
    (folder / "x.onnx").write_bytes(bundle_writer.bytes_field(7, nodes))
    return folder
