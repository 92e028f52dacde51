"""SentencePiece's `spiece.model`, read without the sentencepiece package.

In: the bytes of the file, a protobuf message. Out: a `SentencePieceModel`: tokens, scores, normalisation table.
After this file: `vocabulary.py` checks that ALBERT can use the model. `_read_common_layout` is a fast reader of what
SentencePiece itself writes; `_fields` reads any other protobuf message.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from math import isfinite

MAX_TOKENS = 1_000_000


@dataclass
class SentencePieceModel:
    """The parts of a SentencePiece model that a tokenizer needs."""

    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    special_types: dict[int, int] = field(default_factory=dict)  # type of each token that is not normal (1)
    charsmap: bytes = b""
    rules: dict[str, int] = field(
        default_factory=lambda: {"model_type": 1, "dummy_prefix": 1, "extra_spaces": 1, "escape": 1, "suffix": 0}
    )


def parse(data: bytes) -> SentencePieceModel:
    """Read a model from bytes; ValueError if they are not a SentencePiece model."""
    model = SentencePieceModel()
    rest = _read_common_layout(data, model)
    for number, value in _fields(data, rest):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            _read_token(value, model)
        elif number == 2:
            names = {3: "model_type", 24: "suffix"}
            model.rules |= {names[f]: v for f, v in _fields(value) if f in names and isinstance(v, int)}
        elif number == 3:
            for f, v in _fields(value):
                if f == 2 and isinstance(v, bytes):
                    model.charsmap = v
                elif f in (3, 4, 5) and isinstance(v, int):
                    model.rules[("dummy_prefix", "extra_spaces", "escape")[f - 3]] = v
    if not model.tokens:
        raise ValueError("it contains no tokens")
    if len(model.tokens) > MAX_TOKENS:
        raise ValueError(f"more than {MAX_TOKENS} tokens")
    if "" in model.tokens or not (isfinite(sum(model.scores)) and max(map(abs, model.scores)) <= 1e6):
        raise ValueError("a token has no text or no usable score")
    return model


def _read_common_layout(data: bytes, model: SentencePieceModel) -> int:
    """Read tokens (text, score, optional type) while they have the common layout; returns the number of bytes read."""
    at = 0
    texts: list[bytes] = []
    scores: list[bytes] = []
    try:
        while data[at] == 10 and data[at + 2] == 10:
            size, text = data[at + 1], data[at + 3]  # 128 and more would go on in the next byte
            end = at + 4 + text
            if data[end] != 21 or size > 127 or at + 2 + size > len(data):
                break
            if size != text + 7:
                if size != text + 9 or data[end + 5] != 24 or not 1 < data[end + 6] < 128:
                    break
                model.special_types[len(texts)] = data[end + 6]
            texts.append(data[at + 4 : end])
            scores.append(data[end + 1 : end + 5])
            at += 2 + size
    except IndexError:
        pass
    model.tokens = [text.decode() for text in texts]
    model.scores = list(struct.unpack(f"<{len(scores)}f", b"".join(scores)))
    return at


def _read_token(data: bytes, model: SentencePieceModel) -> None:
    text, score, token_type = b"", 0.0, 1
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            text = value
        elif number == 2 and isinstance(value, bytes) and len(value) == 4:
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            token_type = value
    if token_type != 1:
        model.special_types[len(model.tokens)] = token_type
    model.tokens.append(text.decode())
    model.scores.append(score)


def _fields(data: bytes, at: int = 0) -> Iterator[tuple[int, int | bytes]]:
    """The fields of one protobuf message: numbers as int, everything else as bytes."""
    end = len(data)

    def varint() -> int:
        nonlocal at
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                break
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number is cut off")

    while at < end:
        key = varint()
        wire = key & 7
        if wire == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(wire, -1) if wire != 2 else varint()
        if size < 0 or at + size > end:
            raise ValueError("a field is cut off or of an unknown type")
        yield key >> 3, data[at : at + size]
        at += size


def select_tokens(data: bytes, kept: Container[int]) -> bytes:
    """The same model with the tokens of the ids in `kept` only; everything else is unchanged."""
    out, number = bytearray(), 0
    for field_number, value in _fields(data):
        if not isinstance(value, bytes):
            raise ValueError("a SentencePiece model contains messages only")
        number += field_number == 1
        if field_number != 1 or number - 1 in kept:
            out += _write_varint(field_number << 3 | 2) + _write_varint(len(value)) + value
    return bytes(out)


def _write_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
