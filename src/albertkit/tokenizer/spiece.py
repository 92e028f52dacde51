"""SentencePiece's `spiece.model`, read without the sentencepiece package.

In: the bytes of the file, a protobuf message. Out: a `Spiece`, its pieces and its normalisation table. Before this file:
nothing; after it: `vocabulary.py`, which judges whether the model is one that ALBERT can use.

`_usual` reads the layout that SentencePiece itself writes, and is fast; what it does not know it leaves to `_fields`, a
reader for any protobuf message.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from math import isfinite

PIECE_LIMIT = 1_000_000


@dataclass
class Spiece:
    """What a SentencePiece model says that matters here."""

    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    odd: dict[int, int] = field(default_factory=dict)  # the sort of each piece that is not an ordinary one (1)
    charsmap: bytes = b""
    rules: dict[str, int] = field(
        default_factory=lambda: {"model_type": 1, "dummy_prefix": 1, "extra_spaces": 1, "escape": 1, "suffix": 0}
    )


def parse(data: bytes) -> Spiece:
    """The model in some bytes; ValueError when they are not a SentencePiece model."""
    model = Spiece()
    rest = _usual(data, model)
    for number, value in _fields(data, rest):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            _piece(value, model)
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
        raise ValueError("it holds no pieces")
    if len(model.tokens) > PIECE_LIMIT:
        raise ValueError(f"more than {PIECE_LIMIT} pieces")
    if "" in model.tokens or not (isfinite(sum(model.scores)) and max(map(abs, model.scores)) <= 1e6):
        raise ValueError("a piece has no text or no usable score")
    return model


def _usual(data: bytes, model: Spiece) -> int:
    """Read pieces (text, score, perhaps a sort) as long as they have the usual layout; how many bytes that took."""
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
                model.odd[len(texts)] = data[end + 6]
            texts.append(data[at + 4 : end])
            scores.append(data[end + 1 : end + 5])
            at += 2 + size
    except IndexError:
        pass
    model.tokens = [text.decode() for text in texts]
    model.scores = list(struct.unpack(f"<{len(scores)}f", b"".join(scores)))
    return at


def _piece(data: bytes, model: Spiece) -> None:
    text, score, sort = b"", 0.0, 1
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            text = value
        elif number == 2 and isinstance(value, bytes) and len(value) == 4:
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            sort = value
    if sort != 1:
        model.odd[len(model.tokens)] = sort
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
            raise ValueError("a field is cut off or of an unknown sort")
        yield key >> 3, data[at : at + size]
        at += size


def only(data: bytes, kept: Container[int]) -> bytes:
    """The same model with some of its pieces only, by their numbers; everything else stays as it is."""
    out, number = bytearray(), 0
    for field_number, value in _fields(data):
        if not isinstance(value, bytes):
            raise ValueError("a SentencePiece model is made of messages alone")
        number += field_number == 1
        if field_number != 1 or number - 1 in kept:
            out += _varint(field_number << 3 | 2) + _varint(len(value)) + value
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
