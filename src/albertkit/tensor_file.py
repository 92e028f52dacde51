"""Tensors of files: first their types, shapes and places, then their numbers.

In: a safetensors file. Out: `StoredTensor`s, whose numbers are read only after their shapes have been compared with the
config (`artifact.load_weights`). The readers of other formats in `interop/` return them too.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from albertkit.errors import AlbertkitError, type_with_article
from albertkit.file_io import file_size, open_weights

HEADER_LIMIT = 4 * 2**20  # bytes
MAX_DIMS = 32
MAX_TENSOR_BYTES = 16 * 2**30
BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # the upper half of a float32; numpy has no such type
TENSOR_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "bfloat16", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that has not been read."""

    dtype: np.dtype
    shape: tuple[int, ...]
    source: str
    """What contains its numbers: a file, or one of the records inside it."""
    start: int
    stop: int
    """Its bytes in the source."""
    read_numbers: Callable[[], np.ndarray]

    def read(self) -> np.ndarray:
        """The numbers; float16 and bfloat16 become float32."""
        array = self.read_numbers()
        if array.dtype == BFLOAT16:
            return (array.view("<u2").astype(np.uint32) << 16).view(np.float32)
        return array.astype(np.float32) if array.dtype == np.float16 else array


def type_of(name: str) -> np.dtype:
    """The type with a name such as "<f4" or "bfloat16"."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def check_separate(tensors: Mapping[str, StoredTensor]) -> None:
    """Raise if two tensors share bytes: a small file could then take any amount of memory."""
    placed = sorted((t.source, t.start, t.stop, name) for name, t in tensors.items() if t.stop > t.start)
    for (source, _, stop, name), (other, start, _, next_name) in itertools.pairwise(placed):
        if source == other and start < stop:
            raise AlbertkitError(
                f"tensors {name!r} and {next_name!r} share bytes of {source}; each weight needs its own. "
                "Save the model again with separate tensors."
            )


def read_array(file: BinaryIO, path: Path, start: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An array from its bytes in a file. The file is not mapped into memory: another program may overwrite it."""
    size = math.prod(shape) * dtype.itemsize
    try:
        numbers = np.empty(size, np.uint8)
        file.seek(start)
        count = file.readinto(numbers.data)  # type: ignore[attr-defined]
    except (OSError, MemoryError, ValueError) as error:
        raise AlbertkitError(
            f"{path}: {size:,} bytes cannot be read ({error}). Free memory or copy it again."
        ) from None
    if count != size:
        raise AlbertkitError(f"{path} ends within a tensor of {size:,} bytes at byte {start:,}. Copy the model again.")
    return numbers.view(dtype).reshape(shape)


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[dict[str, StoredTensor]]:
    """The tensors of a safetensors file, in the order of their bytes. Read their numbers inside the block."""
    try:
        opened = open_weights(path)
    except FileNotFoundError:
        raise AlbertkitError(f"{path} does not exist; a model folder contains model.safetensors") from None
    except OSError as error:
        raise AlbertkitError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from None
    with opened as file:
        try:
            tensors = _read_header(path, file)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)[:200]
            raise AlbertkitError(
                f"{path} is not a complete safetensors file: {reason}. Copy the model again."
            ) from None
        yield tensors


def _read_header(path: Path, file: BinaryIO) -> dict[str, StoredTensor]:
    """The header: JSON with type, shape and place of each tensor. The bytes of the tensors follow without gaps."""
    size, length = file_size(file), int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, HEADER_LIMIT):
        rule = f"it must fit in the file and have at most {HEADER_LIMIT:,}"
        raise ValueError(f"its header has {length:,} bytes, the file {size:,}; {rule}")
    header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise TypeError(f"its header is {type_with_article(header)}, not a JSON object")
    header.pop("__metadata__", None)
    tensors: dict[str, StoredTensor] = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = type_of(TENSOR_TYPES[entry["dtype"]]), entry["shape"]
        check_shape(name, shape, dtype)
        start, stop = entry["data_offsets"]
        if type(start) is not int or start != end or stop != start + math.prod(shape) * dtype.itemsize:
            extent = f"tensor {name!r} of {entry['dtype']} {list(shape)} begins at byte {start} and ends at {stop}"
            raise ValueError(f"{extent}, and the tensor before it ends at {end}; tensors must adjoin")
        read = partial(read_array, file, path, 8 + length + start, dtype, tuple(shape))
        tensors[name] = StoredTensor(dtype, tuple(shape), path.name, start, stop, read)
        end = stop
    if size != 8 + length + end:
        raise ValueError(f"its header and tensors have {8 + length + end:,} bytes, the file {size:,}")
    return tensors


def check_shape(name: str, shape: Any, dtype: np.dtype) -> None:
    """Raise a ValueError unless a shape is a list of sizes of a tensor that can be read."""
    is_shape = isinstance(shape, list | tuple) and len(shape) <= MAX_DIMS
    if not is_shape or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"tensor {name!r} has the shape {str(shape)[:80]}, not at most {MAX_DIMS} whole numbers")
    if math.prod(max(size, 1) for size in shape) * dtype.itemsize > MAX_TENSOR_BYTES:
        raise ValueError(f"tensor {name!r} of shape {list(shape)} has over {MAX_TENSOR_BYTES:,} bytes")
