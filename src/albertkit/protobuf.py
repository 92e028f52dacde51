"""Protocol buffers, the encoding of ONNX files, SentencePiece models and TensorFlow's indexes: read and written.

In: bytes, or a `Message`. Out: the fields of the bytes, or the bytes of the message. A message is a dataclass with one
attribute per field: `scalar_field`, `optional_field`, `repeated_field` or `message_field`. Fields without an attribute
are skipped. Of a field that occurs twice and is not repeated, the last one counts. After this file: `onnx_model.py`.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Self

Buffer = bytes | memoryview
MAX_NESTING = 100  # as in Google's libraries
MAX_COST = 500_000  # of a message: one for each field inside it, and five for each message, as it takes more memory
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
WIRE_TYPES = {int: VARINT, float: FIXED32}  # strings, bytes and messages have BYTES


class DecodeError(ValueError):
    """The bytes are no message."""


# Fields of bytes -------------------------------------------------------------------------------------------------


def protobuf_fields(message: Buffer) -> Iterator[tuple[int, int, Buffer]]:
    """Each field of a message: its tag (number and wire type together), its number, its bytes.

    >>> list(protobuf_fields(b"\\x08\\x05\\x12\\x01a"))
    [(8, 5, b''), (18, 1, b'a')]
    """
    position, end = 0, len(message)
    while position < end:
        tag, position = read_varint(message, position, end)
        wire, number, width = tag & 7, 0, {FIXED64: 8, FIXED32: 4}.get(tag & 7, 0)
        if wire in (VARINT, BYTES):
            number, position = read_varint(message, position, end)
            width = number if wire == BYTES else 0
        if width > end - position or wire not in (VARINT, FIXED64, BYTES, FIXED32):
            raise DecodeError(f"a protobuf field of wire type {wire} and {width} bytes has {end - position} bytes left")
        payload, position = message[position : position + width], position + width
        yield tag, int.from_bytes(payload, "little") if wire in (FIXED64, FIXED32) else number, payload


def read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """The number of variable length at a place, and the place after it."""
    value = 0
    for place in range(position, min(position + 10, end)):
        value |= (data[place] & 127) << 7 * (place - position)
        if data[place] < 128:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
    raise DecodeError("a variable-length number in it does not end where it should")


def varint(value: int) -> bytes:
    """A number of variable length; a negative one has ten bytes.

    >>> varint(300)
    b'\\xac\\x02'
    """
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


# Messages --------------------------------------------------------------------------------------------------------


class Field(NamedTuple):
    """A field of a message."""

    name: str
    number: int
    kind: Any  # int, float, str, bytes, or a class of messages
    is_repeated: bool
    skipped: Any  # the value that is not written


def scalar_field(number: int, kind: type[int] | type[str]) -> Any:
    """A number or a text; 0 or "" if it is absent."""
    return dataclasses.field(default=kind(), metadata={"field": (number, kind, False, kind())})


def optional_field(number: int, kind: type | str) -> Any:
    """A field that may be absent (None), which differs from 0. kind: int, float, bytes, or the name of a message."""
    return dataclasses.field(default=None, metadata={"field": (number, kind, False, None)})


def repeated_field(number: int, kind: type | str) -> Any:
    """A list of any length."""
    return dataclasses.field(default_factory=list, metadata={"field": (number, kind, True, None)})


def message_field(number: int, kind: type) -> Any:
    """A message that is always written."""
    return dataclasses.field(default_factory=kind, metadata={"field": (number, kind, False, None)})


class Message:
    """The base of dataclasses whose attributes are fields."""

    _schema: ClassVar[list[Field]]

    def encode(self) -> bytes:
        """The bytes of the message, its fields in the order of its attributes."""
        parts: list[Buffer] = []
        for name, number, kind, is_repeated, skipped in self._fields():
            value = getattr(self, name)
            if value is None or value == skipped:
                continue
            wire = WIRE_TYPES.get(kind, BYTES)
            tag = varint(number << 3 | wire)
            for item in value if is_repeated else (value,):
                if wire == VARINT:
                    parts += (tag, varint(item))
                elif wire == FIXED32:
                    parts += (tag, struct.pack("<f", item))
                else:
                    payload = item if kind is bytes else item.encode()  # of a text, or of a message
                    parts += (tag, varint(len(payload)), payload)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """The message in some bytes; bytes fields are parts of `data`. Raises `DecodeError`."""
        return cls._decode(data, 0, [0])

    @classmethod
    def _decode(cls, data: Buffer, nesting: int, cost: list[int]) -> Self:
        """cost: one number, shared by the messages inside this one."""
        cost[0] += 5
        fields = {f.number: f for f in cls._fields()}
        message = cls()
        for tag, number, payload in protobuf_fields(data):
            cost[0] += 1
            if nesting > MAX_NESTING or cost[0] > MAX_COST:
                raise DecodeError(f"it has over {MAX_COST:,} parts, or some within {MAX_NESTING} others")
            field, wire = fields.get(tag >> 3), tag & 7
            if field is None:
                continue
            if issubclass(field.kind, Message):
                values = [field.kind._decode(payload, nesting + 1, cost)] if wire == BYTES else []
            else:
                values = _values(field, wire, number, payload)
            if field.is_repeated:
                getattr(message, field.name).extend(values)
            elif values:
                setattr(message, field.name, values[-1])
        return message

    @classmethod
    def _fields(cls) -> list[Field]:
        if "_schema" not in cls.__dict__:
            classes, schema = vars(sys.modules[cls.__module__]), []
            for field in dataclasses.fields(cls):  # type: ignore[arg-type]
                number, kind, *options = field.metadata["field"]
                schema.append(Field(field.name, number, classes[kind] if isinstance(kind, str) else kind, *options))
            cls._schema = schema  # complete, for other threads
        return cls._schema


def _values(field: Field, wire: int, number: int, payload: Buffer) -> list[Any]:
    """The values of one occurrence: several if numbers are packed, none if the wire type is another."""
    kind = field.kind
    if kind is int:
        if wire == VARINT:
            return [_signed(number)]
        return list(packed_ints(payload)) if wire == BYTES and field.is_repeated else []
    if kind is float:
        packs = wire == FIXED32 or (wire == BYTES and field.is_repeated)
        return [one for (one,) in struct.iter_unpack("<f", payload[: len(payload) & ~3])] if packs else []
    if wire != BYTES:
        return []
    try:
        return [payload if kind is bytes else str(payload, "utf-8")]
    except UnicodeDecodeError:
        raise DecodeError(f"{bytes(payload[:60])!r} is not UTF-8") from None


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def packed_ints(payload: Buffer) -> Iterator[int]:
    """The whole numbers of a packed field."""
    position, end = 0, len(payload)
    while position < end:
        number, position = read_varint(payload, position, end)
        yield _signed(number)
