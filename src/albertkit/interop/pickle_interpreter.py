"""The pickle inside a PyTorch file, interpreted without `pickle`: nothing can be called or imported.

In: the bytes of a pickle. Out: dicts, lists and plain values, with a `TensorView` for each tensor. Any other class or
function is a `CodeError`. After this file: `pickle_file.py`, which reads the numbers.
"""

from __future__ import annotations

import io
import math
import pickletools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from albertkit.tensor_file import type_of

STORAGES = {
    "Double": "<f8", "Float": "<f4", "Half": "<f2", "BFloat16": "bfloat16", "Long": "<i8", "Int": "<i4", "Short": "<i2",
    "Char": "|i1", "Byte": "|u1", "Bool": "|b1",
}  # fmt: skip
STORAGE_MODULES = ("torch", "torch.cuda", "torch.storage")
# Values beside the tensors, such as settings of an optimizer: they are dropped.
PLAIN_GLOBALS = ("torch Size", "torch device", "_codecs encode", "builtins set", "__builtin__ set")
TORCH_TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
MAX_VALUES = 100_000  # in dicts
# What the interpreter raises for a damaged pickle.
PICKLE_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RuntimeError)


class CodeError(Exception):
    """A function or class that is neither a tensor nor a plain value."""


@dataclass(frozen=True)
class TensorStorage:
    """A run of numbers: one record of an archive."""

    dtype: np.dtype
    key: str
    length: int


@dataclass(frozen=True)
class TensorView:
    """A tensor as the pickle describes it: a part of a storage."""

    storage: TensorStorage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def span(self) -> int:
        """Elements from the first to the last."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return last + 1 if math.prod(self.shape) else 0

    def repeats(self) -> bool:
        """Whether an element of the storage may be used twice, as with a stride of 0."""
        end = 1
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if size > 1 and stride < end:
                return True
            end += max(size - 1, 0) * stride
        return False


_MARK = object()
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: _MARK,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": list,
}
# Opcodes that push their argument.
_VALUES = (
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
)  # fmt: skip


def run_pickle(file: io.BytesIO, storages: dict[str, TensorStorage] | None = None) -> Any:
    """The value of the next pickle of a file: tensors become `TensorView`s. `storages` collects their storages."""
    return _Interpreter({} if storages is None else storages).run(file)


class _Interpreter:
    """Runs the opcodes that torch.save writes."""

    def __init__(self, storages: dict[str, TensorStorage]):
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages = storages
        self.items = 0  # of all dicts

    def run(self, file: io.BytesIO) -> Any:
        name: str
        argument: Any
        for opcode, argument, _ in pickletools.genops(file):
            name = opcode.name
            if name == "STOP":
                return self.stack.pop()
            if name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name]())
            elif name in _VALUES:
                self.stack.append(argument)
            elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
                self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                self.stack.append(self.memo[argument])
            elif name in ("GLOBAL", "STACK_GLOBAL"):
                self.stack.append(_global(argument if name == "GLOBAL" else " ".join(self.pop(2))))
            elif name not in ("PROTO", "FRAME"):
                self.build(name)
        raise ValueError("its pickle has no end")

    def pop(self, count: int) -> list[Any]:
        """The last values, in order."""
        if len(self.stack) < count:
            raise ValueError("its pickle is damaged")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def pop_to_mark(self) -> list[Any]:
        """The values after the last mark."""
        values = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def build(self, name: str) -> None:
        """Run an opcode that combines values."""
        if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            self.stack.append(tuple(self.pop(int(name[-1]))))
        elif name == "TUPLE":
            self.stack.append(tuple(self.pop_to_mark()))
        elif name in ("SETITEM", "SETITEMS"):
            items = self.pop(2) if name == "SETITEM" else self.pop_to_mark()
            self.set_items(self.stack[-1], zip(items[::2], items[1::2], strict=True))
        elif name in ("APPEND", "APPENDS", "ADDITEMS"):
            items = self.pop(1) if name == "APPEND" else self.pop_to_mark()
            self.stack[-1].extend(items)
        elif name == "REDUCE":
            self.stack.append(self.call(*self.pop(2)))
        elif name == "BUILD":
            self.pop(1)  # attributes of a dict, such as the versions of its modules
        elif name == "BINPERSID":
            self.stack.append(self.storage(*self.pop(1)))
        else:
            raise ValueError(f"its pickle has the opcode {name}, which torch.save does not write")

    def call(self, function: object, arguments: tuple[Any, ...]) -> object:
        if not isinstance(function, str):
            raise ValueError("its pickle calls a value that is no function")
        if function == "collections OrderedDict":
            made: dict[Any, Any] = {}
            self.set_items(made, *arguments)  # Python 2 passes the items
            return made
        return _FUNCTIONS[function](*arguments) if function in _FUNCTIONS else None

    def set_items(self, target: dict[Any, Any], items: Iterable[tuple[Any, Any]] = ()) -> None:
        """Items of a dict. A tuple of tuples as a key could take any time to hash, and a list could be copied often."""
        for key, value in items:
            self.items += 1
            if type(key) not in (str, int, float, bool, type(None)) or self.items > MAX_VALUES:
                raise ValueError(f"its dicts have keys that are no names, or over {MAX_VALUES:,} items")
            target[key] = value

    def storage(self, id: Any) -> TensorStorage:
        kind, dtype, key, _, length, *view = id
        is_known = kind == "storage" and isinstance(dtype, np.dtype) and type(key) in (str, int) and not any(view)
        if not is_known or not _is_size(length):
            raise ValueError("a storage is described in an unknown way; save the file with a newer PyTorch")
        storage = TensorStorage(dtype, str(key), length)
        if self.storages.setdefault(storage.key, storage) != storage:
            raise ValueError(f"storage {storage.key!r} has two types or sizes")
        return storage


def _is_size(number: Any) -> bool:
    return type(number) is int and 0 <= number < 2**63


def _global(name: str) -> str | np.dtype:
    """What a pickle may name: the type of a storage as a dtype, and the functions that `call` knows."""
    module, _, attribute = name.partition(" ")
    kind = attribute.removesuffix("Storage")
    if module in STORAGE_MODULES and attribute.endswith("Storage") and kind in STORAGES:
        return type_of(STORAGES[kind])
    is_known = name in _FUNCTIONS or name in PLAIN_GLOBALS or (module == "torch" and attribute in TORCH_TYPES)
    if not is_known and name != "collections OrderedDict":
        raise CodeError(name.replace(" ", ".")[:80])
    return name


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> TensorView:
    is_known = isinstance(storage, TensorStorage) and isinstance(shape, tuple) and isinstance(strides, tuple)
    if not is_known or len(shape) != len(strides) or not all(map(_is_size, (offset, *shape, *strides))):
        raise ValueError("a tensor is described in an unknown way; its shape and strides must be whole numbers")
    return TensorView(storage, offset, shape, strides)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch._utils _rebuild_tensor": _tensor,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_parameter": lambda tensor, *_: tensor,
}
