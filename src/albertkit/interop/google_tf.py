"""Google's TensorFlow checkpoints (and albert_zh's), without TensorFlow.

In: a checkpoint prefix, or a folder with one, plus its albert_config.json and vocabulary. Out: an `Artifact`. A
checkpoint is `PREFIX.index`, a sorted table from tensor name to dtype, shape and offset, and shards
`PREFIX.data-0000N-of-0000M` with the raw values. Files may be hostile: every number is checked before it is used, every
failure is an `AlbertkitError`, and nothing in a checkpoint is executed. Shapes are compared with the config before
numbers are read. Before this file: `huggingface.py`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from albertkit.artifact import Artifact, ArtifactMetadata, load_weights
from albertkit.config import AlbertConfig, Options
from albertkit.errors import AlbertkitError, nearest
from albertkit.file_io import file_size, open_weights, read_file
from albertkit.interop.huggingface import layout_name, read_config, translate
from albertkit.protobuf import DecodeError, protobuf_fields, read_varint
from albertkit.tensor_file import BFLOAT16, StoredTensor, read_array, type_of
from albertkit.tokenizer import Tokenizer, check_size
from albertkit.weights import BRIGHTMART, PUBLIC, tensor_names

# Variables of the optimizer, beside the weights.
SLOTS = ("/adam_m", "/adam_v", "/lamb_m", "/lamb_v", "/Adam", "/Adam_1", "/LAMB", "/LAMB_1", "/m", "/v")
COUNTERS = ("global_step", "beta1_power", "beta2_power", "_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter")
COPY_AGAIN = "download or copy the checkpoint again"

MAX_ENTRIES, MAX_KEY_BYTES, MAX_DIMS, MAX_VALUE_BYTES = 100_000, 4096, 32, 1 << 20
MAX_INDEX_BYTES, MAX_TENSOR_BYTES, MAX_TOTAL_BYTES = 64 << 20, 8 << 30, 16 << 30
_MAGIC, _FOOTER, _TRAILER = 0xDB4775248B80FB57, 48, 5
# Types of tensors that are read, by their number in the index.
_DTYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 14: "bfloat16", 19: "float16"}
_ITEM_BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "bfloat16": 2, "float16": 2}
_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def read_checkpoint(prefix: Path) -> Artifact:
    """Open a checkpoint by its prefix (`model.ckpt-best` for model.ckpt-best.index)."""
    entries = list_bundle(prefix)
    variables = {n for n in entries if not n.endswith(SLOTS) and n.split("/")[-1] not in COUNTERS}
    name_prefix = _name_prefix(variables)
    brightmart = any("/layer_shared/" in name for name in variables)
    if not brightmart and not any("/transformer/group_0/" in name for name in variables):
        raise AlbertkitError(
            f"{prefix} is a TensorFlow checkpoint, but not an ALBERT: it has no variable 'transformer/group_0/…' or "
            f"'layer_shared/…' (first variables: {', '.join(sorted(variables)[:2])} …)"
        )
    settings = read_config(prefix.parent)
    if settings.get("hidden_act", "gelu") == "gelu":
        settings["hidden_act"] = "gelu_new"  # the tanh form, which that code calls `gelu`
    table_shape = entries[f"{name_prefix}bert/embeddings/word_embeddings"].shape
    if len(table_shape) != 2:
        raise AlbertkitError(f"{prefix} has a word table of shape {table_shape}; it must have two axes. Copy it again.")
    settings.setdefault("embedding_size", table_shape[-1])
    config = AlbertConfig.from_dict(settings)
    if brightmart:
        config = config.replace(options=Options(brightmart_layout=True))
    table = tensor_names(config, BRIGHTMART if brightmart else PUBLIC)
    with open_bundle(prefix, variables) as tensors:
        named = {name.removeprefix(name_prefix): tensor for name, tensor in tensors.items()}
        named |= {name.tf: _transposed(named[name.tf]) for name in table if name.transpose and name.tf in named}
        weights = load_weights(config, translate(named, table, lambda name: name.tf))
    task = "answer" if "heads.answer.linear.weight" in weights else "pretrain"
    step = {"step": "convert", "from": prefix.name, "layout": f"{layout_name(config)} (TensorFlow)"}
    tokenizer = read_tokenizer(prefix.parent, config.vocab_size)
    return Artifact(config, weights, tokenizer, ArtifactMetadata(task=task, history=(step,)))


def _transposed(tensor: StoredTensor) -> StoredTensor:
    """Kernels are stored as the transpose of our matrices."""
    return dataclasses.replace(
        tensor, shape=tensor.shape[::-1], read_numbers=lambda: np.ascontiguousarray(tensor.read_numbers().T)
    )


def read_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """The vocabulary beside a checkpoint: Google's releases call it 30k-clean.model or vocab_chinese.txt."""
    models = sorted([*folder.glob("*.model"), *folder.glob("assets/*.model")])
    lists = sorted([*folder.glob("vocab*.txt"), *folder.glob("assets/vocab*.txt")])
    has_common_name = any((folder / name).is_file() for name in ("tokenizer.json", "spiece.model", "vocab.txt"))
    if has_common_name or len(models) + len(lists) != 1:
        return Tokenizer.load(folder, vocab_size=vocab_size)
    tokenizer = Tokenizer.from_spiece(models[0]) if models else Tokenizer.from_vocab(lists[0])
    check_size(models[0] if models else lists[0], tokenizer.vocabulary, vocab_size)
    return tokenizer


def _name_prefix(variables: set[str]) -> str:
    """The prefix of all names: TF-Hub exports have `module/`."""
    tail = "bert/embeddings/word_embeddings"
    roots = [name.removesuffix(tail) for name in variables if name.endswith(tail)]
    if len(roots) != 1:
        raise AlbertkitError(f"the checkpoint has {len(roots)} variables named …{tail}; exactly one is needed")
    return roots[0]


# The files of a checkpoint ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BundleEntry:
    """One tensor of a checkpoint; `crc32c` is masked, as stored; shard -1 marks a tensor stored in slices."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int


def find_bundle(path: Path) -> Path | None:
    """The prefix of the checkpoint at a path (a prefix, one of its files, or a folder with one), or None."""
    with _report_errors(path):
        short = _SUFFIX.sub("", path.name)
        for name in filter(None, (path.name, short)):
            if (path.parent / f"{name}.index").is_file():
                return path.parent / name
        folder, start = (path, "") if path.is_dir() else (path.parent, f"{short}.ckpt")
        names = sorted(f.name[:-6] for f in folder.glob("[!.]*.index") if f.name.startswith(start))
        if len(names) > 1:
            raise _BundleError(f"{len(names)} checkpoints: {', '.join(names[:9])}", "give the path of one")
        return folder / names[0] if names else None


def list_bundle(prefix: Path) -> dict[str, BundleEntry]:
    """The tensors of a checkpoint by name, sorted; only the index file is read."""
    return _read_index(prefix)[1]


@contextmanager
def open_bundle(prefix: Path, names: Collection[str]) -> Iterator[dict[str, StoredTensor]]:
    """Tensors of a checkpoint, which become float32. Read their numbers inside the block."""
    shards, entries = _read_index(prefix)
    selected: list[BundleEntry] = []
    with _report_errors(prefix):
        for name in dict.fromkeys(names):
            if (entry := entries.get(name)) is None:
                raise _BundleError(f"there is no tensor {name!r}{nearest(name, entries)}", "see list_bundle")
            if entry.dtype not in _ITEM_BYTES:
                raise _BundleError(f"tensor {name!r} is {entry.dtype}, and only numbers are read", "omit it")
            if entry.shard < 0:
                raise _BundleError(f"tensor {name!r} is partitioned into slices, not whole", "save it again whole")
            selected.append(entry)
        if (total := sum(entry.size for entry in selected)) > MAX_TOTAL_BYTES:
            raise _BundleError(f"{total} bytes of tensors, over the limit of {MAX_TOTAL_BYTES}", "give fewer names")
    with ExitStack() as stack:
        files: dict[Path, BinaryIO] = {}
        tensors: dict[str, StoredTensor] = {}
        for entry in selected:
            path = Path(f"{prefix}.data-{entry.shard:05d}-of-{shards:05d}")
            if path not in files:
                files[path] = stack.enter_context(_open_shard(path, entry.name))
            tensors[entry.name] = _stored(path, files[path], entry)
        yield tensors


class _BundleError(Exception):
    """A fault and its remedy; `_report_errors` adds the file and raises `AlbertkitError`."""

    def __init__(self, fault: str, remedy: str = COPY_AGAIN) -> None:
        super().__init__(f"{fault}; {remedy}")


@contextmanager
def _report_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except _BundleError as error:
        raise AlbertkitError(f"{path}: {error}") from None
    except DecodeError as error:
        raise AlbertkitError(f"{path}: {error}; {COPY_AGAIN}") from None
    except UnicodeDecodeError as error:
        raise AlbertkitError(f"{path}: {error.object[:60]!r} is not UTF-8; copy the files again") from None
    except OSError as error:
        raise AlbertkitError(f"{path}: {error.strerror or error}; check the path and permissions") from None
    except MemoryError:
        raise AlbertkitError(f"{path}: does not fit in memory; read it on a machine with more") from None


def _open_shard(path: Path, name: str) -> BinaryIO:
    with _report_errors(path):
        if not path.exists():
            raise _BundleError(f"this shard, which holds tensor {name!r}, is missing", "put it beside the index")
        return open_weights(path)


def _stored(path: Path, file: BinaryIO, entry: BundleEntry) -> StoredTensor:
    dtype, end = type_of(entry.dtype), entry.offset + entry.size

    def read() -> np.ndarray:
        with _report_errors(path):
            array = read_array(file, path, entry.offset, dtype, entry.shape)
            if _masked_crc(array.reshape(-1).view(np.uint8)) != entry.crc32c:
                raise _BundleError(f"the values of tensor {entry.name!r} do not match their checksum")
            return array if dtype == BFLOAT16 else array.astype(np.float32, copy=False)  # `StoredTensor.read` converts

    with _report_errors(path):
        if end > (have := file_size(file)):
            raise _BundleError(f"it has {have} bytes, and tensor {entry.name!r} ends at byte {end}")
    return StoredTensor(dtype, entry.shape, path.name, entry.offset, end, read)


def _masked_crc(data: bytes | np.ndarray) -> int:
    import google_crc32c  # imported here, since only TensorFlow checkpoints need it

    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# The index: a table of blocks with the keys in order, whose values are protobuf messages -----------------------------


def _read_index(prefix: Path) -> tuple[int, dict[str, BundleEntry]]:
    """The number of shards, and the tensors."""
    path, shards, entries = Path(f"{prefix}.index"), 0, {}
    with _report_errors(path):
        if not path.exists():
            raise _BundleError("there is no such file", "give the checkpoint's prefix, its path without '.index'")
        for key, value in _read_table(read_file(path, MAX_INDEX_BYTES)):
            if not key:
                shards = _parse_header(value)
            elif key[0]:  # keys that begin with a zero byte place the slices of a partitioned tensor
                name = key.decode("utf-8")
                entries[name] = _parse_entry(name, value)
        last_shard = max((entry.shard for entry in entries.values()), default=0)
        if not max(0, last_shard) < shards < 100_000:
            raise _BundleError(f"its header gives {shards} shards, and there must be {last_shard + 1} to 99999")
    return shards, entries


def _read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise _BundleError(f"it ends in {data[-8:].hex() or 'nothing'}, and an index ends in 57fb808b247547db")
    position, handle = 0, [0, 0, 0, 0]
    for i in range(4):  # place and size of the meta block (not used), then of the block that lists all others
        handle[i], position = read_varint(data[-_FOOTER:], position, _FOOTER - 8)
    last, count, block_bytes, key_bytes = None, 0, 0, 0
    for _, value in _records(_read_block(data, handle[2], handle[3])):
        offset, position = read_varint(value, 0, len(value))
        size, _ = read_varint(value, position, len(value))
        block_bytes += size + _TRAILER
        if block_bytes > len(data):
            raise _BundleError(f"its blocks overlap, as together they are over its {len(data)} bytes")
        for key, content in _records(_read_block(data, offset, size)):
            if last is not None and key <= last:
                raise _BundleError(f"key {key[:80]!r} follows {last[:80]!r}, and keys must be in order")
            last, count, key_bytes = key, count + 1, key_bytes + len(key)
            if count > MAX_ENTRIES or key_bytes > MAX_INDEX_BYTES:
                raise _BundleError(f"it holds over {MAX_ENTRIES} entries, or names over {MAX_INDEX_BYTES} bytes")
            yield key, content


def _read_block(data: bytes, offset: int, size: int) -> bytes:
    stop = offset + size
    if stop + _TRAILER > len(data) - _FOOTER:
        raise _BundleError(f"a block of {size} bytes at {offset} does not fit in its {len(data)} bytes")
    if _masked_crc(data[offset : stop + 1]) != int.from_bytes(data[stop + 1 : stop + 5], "little"):
        raise _BundleError(f"the checksum of the block at byte {offset} does not match")
    if data[stop]:
        raise _BundleError(f"it is compressed (type {data[stop]}), not plain", "save it with TensorFlow 1.2 or newer")
    return data[offset:stop]


def _records(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The key and value of each record of a block; a key gives only what differs from the key before it."""
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    if end < 0:
        raise _BundleError("a block is shorter than its list of restart points")
    position, key = 0, b""
    while position < end:
        shared, position = read_varint(block, position, end)
        added, position = read_varint(block, position, end)
        length, position = read_varint(block, position, end)
        if shared > len(key) or shared + added > MAX_KEY_BYTES or length > min(MAX_VALUE_BYTES, end - position - added):
            raise _BundleError(f"a record has lengths {shared}, {added} and {length}, which do not fit its block")
        key = key[:shared] + block[position : position + added]
        yield key, block[position + added : position + added + length]
        position += added + length


def _parse_header(message: bytes) -> int:
    """The number of shards."""
    shards = 0
    for tag, number, inner in protobuf_fields(message):
        shards = number if tag == 8 else shards
        if tag == 16 and number:
            raise _BundleError("its numbers are big-endian", "save it on a little-endian machine")
        if tag == 26 and any(kind == 16 and version > 1 for kind, version, _ in protobuf_fields(inner)):
            raise _BundleError("it asks for a newer reader than version 1", "save it in format V2")
    return shards


def _parse_entry(name: str, message: bytes) -> BundleEntry:
    shape: tuple[int, ...] = ()
    numbers, sliced = dict.fromkeys((8, 24, 32, 40, 53), 0), False  # dtype, shard, offset, size, crc
    for tag, number, inner in protobuf_fields(message):
        shape = _parse_shape(inner) if tag == 18 else shape
        sliced = sliced or tag == 58
        if tag in numbers:
            numbers[tag] = number
    code, shard, offset, size, crc = numbers.values()
    dtype = _DTYPES.get(code, f"of type {code}")
    if dtype in _ITEM_BYTES:
        expected = math.prod(shape) * _ITEM_BYTES[dtype]
        if math.prod(max(dim, 1) for dim in shape) * _ITEM_BYTES[dtype] > MAX_TENSOR_BYTES:
            raise _BundleError(f"tensor {name!r} of shape {shape} is over the limit of {MAX_TENSOR_BYTES} bytes")
        if not sliced and size != expected:
            raise _BundleError(f"tensor {name!r} of {dtype} {shape} takes {expected} bytes, and {size} are given")
    return BundleEntry(name, dtype, shape, -1 if sliced else shard, offset, size, crc)


def _parse_shape(message: bytes | memoryview) -> tuple[int, ...]:
    dims: list[int] = []
    for tag, number, inner in protobuf_fields(message):
        if tag == 18:
            dims.append(([0] + [size for kind, size, _ in protobuf_fields(inner) if kind == 8])[-1])
        if len(dims) > MAX_DIMS or (tag == 24 and number):
            raise _BundleError(f"a tensor has an unknown number of axes, or over {MAX_DIMS}")
    return tuple(dims)
