"""The size of a response: foreseen before anything is computed, and JSON that is written in parts.

In: counts of numbers, tokens and predictions, or a finished response. Out: bytes. The endpoints foresee, `inference.py`
compares with the limits, and `middleware.py` writes. The JSON writer keeps the interpreter's lock while it runs, so a
large response is written in parts, between which the event loop answers others.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import orjson
from msgspec import Struct

NUMBER_BYTES = 14  # of a 32-bit number, with its comma
LONG_NUMBER_BYTES = 22  # of a 64-bit number
PREDICTION_BYTES = 64  # of a word or a class with its probability
TOKEN_BYTES = 80  # of a token with its place
SPAN_BYTES = 90  # of an entity, without its text
OBJECT_MEMORY = 3  # bytes in memory, for each byte of a response, while Python objects are computed and written
PART_BYTES = 65536  # of JSON that is written at a time


def encode_json(value: object, size: int) -> memoryview:
    """JSON of a response of about `size` bytes."""
    written = bytearray()
    for part in json_parts(value, size):
        written += part
    return memoryview(written)


def json_parts(value: object, size: int) -> Iterator[bytes]:
    """JSON in parts of about `PART_BYTES`, if lists divide `size` evenly."""
    if size > PART_BYTES and dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        for number, name in enumerate(names):
            yield (b"," if number else b"{") + orjson.dumps(name) + b":"
            yield from json_parts(getattr(value, name), size)
        yield b"}"
    elif size > PART_BYTES and isinstance(value, list | tuple | np.ndarray) and len(value) > 1:
        step = max(1, len(value) * PART_BYTES // size)
        for start in range(0, len(value), step):
            yield b"," if start else b"["
            if step == 1:
                yield from json_parts(value[start], size // len(value))
            else:
                yield orjson.dumps(value[start : start + step], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        yield b"]"
    elif size > PART_BYTES and isinstance(value, list | tuple) and value:
        yield b"["
        yield from json_parts(value[0], size)
        yield b"]"
    else:
        yield orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def vector_bytes(texts: int, dim: int, is_base64: bool = False) -> int:
    """Vectors as numbers, or in base64."""
    return texts * (64 + (dim * 16 // 3 if is_base64 else dim * NUMBER_BYTES))


def label_bytes(texts: int, labels: Sequence[str]) -> int:
    return texts * sum(PREDICTION_BYTES + len(label) for label in labels)


def text_bytes(texts: Sequence[str]) -> int:
    """Texts that are returned, without special characters."""
    return sum(map(len, texts)) + 8 * len(texts)


def memory_of(value: object) -> int:
    """Bytes that a decoded request takes: a text may take 4 times its JSON, a list of small numbers 20 times."""
    if isinstance(value, Struct):
        return sum(memory_of(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, list) and value and isinstance(value[0], int):
        return 40 * len(value)
    if isinstance(value, list):
        return 64 + 8 * len(value) + sum(map(memory_of, value))
    if isinstance(value, dict):
        return 64 + sum(100 + memory_of(part) for part in value.values())
    return sys.getsizeof(value)
