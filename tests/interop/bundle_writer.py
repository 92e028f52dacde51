"""Write TensorFlow tensor bundles: any tensors, any damage, always with valid checksums; and read them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import google_crc32c
import numpy as np

from albertkit.artifact import Artifact
from albertkit.interop.google_tf import open_bundle
from albertkit.tensor_file import check_separate
from albertkit.weights import BRIGHTMART, PUBLIC, tensor_names

CODES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "bfloat16": 14, "float16": 19}
Spoil = Callable[[int, bytes], bytes]


def masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def varint(number: int) -> bytes:
    number %= 2**64
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def number_field(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""


def bytes_field(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def header(shards: int = 1, big: bool = False, min_consumer: int = 0) -> bytes:
    version = number_field(1, 1) + number_field(2, min_consumer)
    return number_field(1, shards) + number_field(2, int(big)) + bytes_field(3, version)


def entry(code: int, shape: tuple[int, ...], shard: int = 0, offset: int = 0, size: int = 0, crc: int = 0) -> bytes:
    dims = b"".join(bytes_field(2, number_field(1, dim)) for dim in shape)
    place = number_field(3, shard) + number_field(4, offset) + number_field(5, size)
    return number_field(1, code) + bytes_field(2, dims) + place + varint(6 << 3 | 5) + struct.pack("<I", crc)


def block(records: list[tuple[bytes, bytes]], restart_every: int = 16) -> bytes:
    out, restarts, last = bytearray(), [], b""
    for i, (key, value) in enumerate(records):
        shared = 0
        if i % restart_every == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(
    records: list[tuple[bytes, bytes]],
    block_bytes: int = 4096,
    restart_every: int = 16,
    spoil: Spoil | None = None,
    compression: int = 0,
) -> bytes:
    """The bytes of an index file; `spoil` may change block number i before it gets its checksum.

    The data blocks are numbered from 0; after them come the meta block and the list of data blocks.
    """
    out, places, group, sealed = bytearray(), [], [], []
    spoil = spoil or (lambda _, content: content)

    def seal(content: bytes) -> bytes:
        content = spoil(len(sealed), content)
        sealed.append(content)
        handle = varint(len(out)) + varint(len(content))
        body = content + bytes([compression])
        out.extend(body + struct.pack("<I", masked(body)))
        return handle

    for i, (key, value) in enumerate(records):
        group.append((key, value))
        if i + 1 == len(records) or len(block(group, restart_every)) >= block_bytes:
            places.append((key, seal(block(group, restart_every))))
            group = []
    meta = seal(block([]))
    handles = meta + seal(block(places, 1))
    return bytes(out) + handles.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def write_bundle(
    prefix: Path,
    tensors: Mapping[str, np.ndarray],
    shards: int = 1,
    extra: Mapping[bytes, bytes] | None = None,
    bfloat16: frozenset[str] = frozenset(),
    **options: object,
) -> None:
    """Tensors in turn over the shards; of the float32 named in `bfloat16`, only the upper half is stored."""
    data = [bytearray() for _ in range(shards)]
    records = {b"": header(shards), **(extra or {})}
    for i, (name, values) in enumerate(tensors.items()):
        code = CODES[str(values.dtype)]
        if name in bfloat16:
            code, values = 14, np.asarray(values.view(np.uint32) >> 16, np.uint16)
        raw = values.tobytes()
        shard = data[i % shards]
        records[name.encode()] = entry(code, values.shape, i % shards, len(shard), len(raw), masked(raw))
        shard += raw
    Path(f"{prefix}.index").write_bytes(table(sorted(records.items()), **options))
    for i, shard in enumerate(data):
        Path(f"{prefix}.data-{i:05d}-of-{shards:05d}").write_bytes(shard)


def to_variables(artifact: Artifact) -> dict[str, np.ndarray]:
    """The weights under Google's variable names."""
    rows = BRIGHTMART if artifact.config.options.brightmart_layout else PUBLIC
    names = [name for name in tensor_names(artifact.config, rows) if name.ours in artifact.weights]
    arrays = {
        name.tf: artifact.weights[name.ours].T if name.transpose else artifact.weights[name.ours] for name in names
    }
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def read_bundle(prefix: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    with open_bundle(prefix, names) as tensors:
        check_separate(tensors)
        return {name: tensor.read() for name, tensor in tensors.items()}
