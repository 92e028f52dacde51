"""PyTorch files (`pytorch_model.bin`, `.pth`, `.t7`) without torch: a zip archive, or the format before PyTorch 1.6.

In: a path. Out: nested dicts, whose tensors are `StoredTensor`s. Files may be hostile. Each tensor that is read has its
own bytes of the file, so a small file never becomes a large model. Before this file: `pickle_interpreter.py`. After it:
`huggingface.py`, `plbert.py`.
"""

from __future__ import annotations

import contextlib
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from albertkit.errors import AlbertkitError, short_reason, type_with_article
from albertkit.file_io import file_size, open_weights
from albertkit.interop.pickle_interpreter import (
    MAX_VALUES,
    PICKLE_ERRORS,
    CodeError,
    TensorStorage,
    TensorView,
    run_pickle,
)
from albertkit.tensor_file import StoredTensor, check_shape, read_array

PICKLE_LIMIT = 4 * 2**20  # bytes of a pickle, and of the directory of an archive
MAX_DEPTH = 16  # of dicts in dicts
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of the format before PyTorch 1.6


@contextlib.contextmanager
def open_pickle(path: Path) -> Iterator[dict[str, Any]]:
    """The content of a PyTorch file: dicts whose tensors have not been read. Read their numbers inside the block."""
    try:
        opened = open_weights(path)
    except OSError as error:
        raise AlbertkitError(f"{path} cannot be read: {error.strerror}. Check the path.") from None
    with opened as file:
        try:
            data = _read_archive(path, file) if file.read(4) == b"PK\3\4" else _read_legacy(path, file)
        except AlbertkitError:
            raise
        except CodeError as error:
            raise AlbertkitError(
                f"{path} contains more than tensors and could run code ({error}), so it was not loaded. Save its state "
                "dict only."
            ) from None
        except (OSError, MemoryError, zipfile.BadZipFile, NotImplementedError, *PICKLE_ERRORS) as error:
            raise AlbertkitError(
                f"{path} is not a complete PyTorch file: {short_reason(error)}. Copy the model again."
            ) from None
        yield data


# Reads elements `start` to `stop` of a storage.
ReadElements = Callable[[int, int], np.ndarray]


def _stored(path: Path, view: TensorView, read: ReadElements) -> StoredTensor:
    storage, span = view.storage, view.span()
    check_shape("of a PyTorch file", view.shape, storage.dtype)
    start = view.offset if span else 0
    if start + span > storage.length:
        raise ValueError(f"a tensor ends at element {start + span}, its storage has {storage.length}")

    def numbers() -> np.ndarray:
        if view.repeats():
            problem = f"a tensor of shape {list(view.shape)} has the strides {list(view.strides)}"
            raise AlbertkitError(f"{path}: {problem}, which repeat numbers. Save it after tensor.contiguous().")
        flat = read(start, start + span)
        steps = [stride * storage.dtype.itemsize for stride in view.strides]
        array = np.lib.stride_tricks.as_strided(flat, view.shape, steps) if span else flat.reshape(view.shape)
        array = np.ascontiguousarray(array).reshape(view.shape)
        return array.astype(np.float32) if storage.dtype == np.float64 else array

    width = storage.dtype.itemsize
    place = start * width, (start + span) * width
    return StoredTensor(storage.dtype, view.shape, f"storage {storage.key!r} in {path.name}", *place, numbers)


def _with_tensors(data: Any, make: Callable[[TensorView], StoredTensor]) -> dict[str, Any]:
    """The loaded dict with `StoredTensor`s. Dicts may contain each other, so their depth and number are bounded."""
    if not isinstance(data, dict):
        raise ValueError(f"it contains {type_with_article(data)}, and a state dict of tensors is needed")
    seen = 0

    def convert(value: object, depth: int) -> object:
        nonlocal seen
        seen += 1
        if depth > MAX_DEPTH or seen > MAX_VALUES:
            raise ValueError(f"its dicts are nested over {MAX_DEPTH} deep or have over {MAX_VALUES:,} values")
        if isinstance(value, dict):
            return {str(key): convert(item, depth + 1) for key, item in value.items()}
        return make(value) if isinstance(value, TensorView) else value

    return cast("dict[str, Any]", convert(data, 0))


# Archives ------------------------------------------------------------------------------------------------------------


class _BoundedReads:
    """A file whose single reads are bounded: `zipfile` reads the directory of an archive at once."""

    def __init__(self, file: BinaryIO):
        self.file, self.seek, self.tell = file, file.seek, file.tell

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size > PICKLE_LIMIT:
            raise zipfile.BadZipFile(f"its directory has {size:,} bytes, the limit is {PICKLE_LIMIT:,}")
        return self.file.read(size)


def _read_archive(path: Path, file: BinaryIO) -> dict[str, Any]:
    archive = zipfile.ZipFile(_BoundedReads(file))
    records = {info.filename: info for info in archive.infolist()}
    _check_records(archive)
    pickles = [name for name in records if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError(f"it has {len(pickles)} records named data.pkl, not one")
    root = pickles[0].removesuffix("data.pkl")
    order = records.get(f"{root}byteorder")
    if order is not None and archive.read(order) != b"little":
        raise ValueError("its numbers are big-endian; save it on a little-endian machine")
    size = records[pickles[0]].file_size
    if size > PICKLE_LIMIT:
        raise ValueError(f"its pickle has {size:,} bytes, the limit is {PICKLE_LIMIT:,}")
    data = run_pickle(io.BytesIO(archive.read(pickles[0])))

    def make(view: TensorView) -> StoredTensor:
        storage, record = view.storage, records[f"{root}data/{view.storage.key}"]
        if record.file_size != storage.length * storage.dtype.itemsize:
            expected = storage.length * storage.dtype.itemsize
            raise ValueError(f"record {record.filename!r} has {record.file_size} bytes, and {expected} are needed")
        return _stored(path, view, partial(_read_record, path, file, record, storage.dtype))

    return _with_tensors(data, make)


def _check_records(archive: zipfile.ZipFile) -> None:
    """Records are stored as they are, one after the other. So together they are not larger than the file."""
    infos, end, previous = sorted(archive.infolist(), key=lambda info: info.header_offset), 0, ""
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size or info.flag_bits & 1:
            raise ValueError(f"record {info.filename!r} is compressed or encrypted; save the file with torch.save")
        if info.header_offset < end:
            raise ValueError(f"records {previous!r} and {info.filename!r} overlap")
        end, previous = info.header_offset + 30 + len(info.filename) + info.file_size, info.filename
    if end > archive.start_dir:
        raise ValueError(f"record {previous!r} and the directory overlap")


def _read_record(
    path: Path, file: BinaryIO, record: zipfile.ZipInfo, dtype: np.dtype, start: int, stop: int
) -> np.ndarray:
    """Elements of a record; the checksum is compared if all are read."""
    file.seek(record.header_offset)
    head = file.read(30)
    if len(head) != 30 or head[:4] != b"PK\3\4":
        raise AlbertkitError(f"{path}: record {record.filename!r} has no header. Copy the model again.")
    begin = record.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    array = read_array(file, path, begin + start * dtype.itemsize, dtype, (stop - start,))
    if array.nbytes == record.file_size and zlib.crc32(array.view(np.uint8).data) != record.CRC:
        raise AlbertkitError(f"{path}: record {record.filename!r} does not match its checksum. Copy the model again.")
    return array


# The format before PyTorch 1.6: five pickles, then for each storage its length in elements and its numbers -----------


def _read_legacy(path: Path, file: BinaryIO) -> dict[str, Any]:
    file.seek(0)
    pickles = io.BytesIO(file.read(PICKLE_LIMIT))
    if run_pickle(pickles) != MAGIC or run_pickle(pickles) != PROTOCOL:
        raise ValueError("it is neither an archive nor in the format before PyTorch 1.6")
    if not run_pickle(pickles).get("little_endian", True):
        raise ValueError("its numbers are big-endian; save it on a little-endian machine")
    storages: dict[str, TensorStorage] = {}
    data, keys = run_pickle(pickles, storages), run_pickle(pickles)
    position, places = pickles.tell(), {}
    for key in keys:
        storage = storages[key]
        file.seek(position)
        length = int.from_bytes(file.read(8), "little")
        places[storage.key], position = position + 8, position + 8 + storage.length * storage.dtype.itemsize
        if length != storage.length or position > file_size(file):
            raise ValueError(f"storage {storage.key!r} has {length} elements or is truncated, not {storage.length}")

    def make(view: TensorView) -> StoredTensor:
        begin, dtype = places[view.storage.key], view.storage.dtype

        def read(start: int, stop: int) -> np.ndarray:
            return read_array(file, path, begin + start * dtype.itemsize, dtype, (stop - start,))

        return _stored(path, view, read)

    return _with_tensors(data, make)
