"""SentencePiece's `spiece.model`: a protocol buffer with tokens and rules. It is read without SentencePiece's package.

In: the bytes of a file. Out: a `SpieceModel`, or the bytes of a file with fewer tokens. Before this file:
`protobuf.py`. After it: `vocabulary.py`, which checks the content.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Container
from dataclasses import dataclass

from albertkit.protobuf import Buffer, protobuf_fields, varint

TOKEN, TRAINER, NORMALIZER = 0x0A, 0x12, 0x1A  # tags of the file: fields 1, 2 and 3
TEXT, SCORE, TYPE = 0x0A, 0x15, 0x18  # tags of a token
TYPES = {b"": 1, b"\x18\x01": 1, b"\x18\x02": 2, b"\x18\x03": 3, b"\x18\x04": 4}  # what follows the score, usually
MODEL_TYPE, WHITESPACE_SUFFIX = 3 << 3, 24 << 3  # tags of the trainer's settings
CHARSMAP, DUMMY_PREFIX, EXTRA_SPACES, ESCAPE = 0x12, 0x18, 0x20, 0x28  # tags of the normalizer's


@dataclass(frozen=True)
class SpieceModel:
    """What ALBERT needs of a file."""

    texts: list[bytes]
    scores: list[float]
    types: list[int]  # 1 normal, 2 unknown, 3 control, 4 user-defined
    model_type: int  # 1 unigram
    charsmap: bytes
    has_usual_spaces: bool  # a "▁" before the text and for each run of spaces


def parse_spiece(data: bytes, max_tokens: int) -> SpieceModel:
    """The content of a file. Raises ValueError if it is invalid or has no tokens."""
    texts, scores, types, start = _usual_tokens(data)
    trainer: dict[int, int] = {}
    normalizer: dict[int, int] = {}
    charsmap: Buffer = b""
    for tag, _, payload in protobuf_fields(data[start:]):
        if tag == TOKEN:
            fields = {key: (number, value) for key, number, value in protobuf_fields(payload)}
            texts.append(bytes(fields.get(TEXT, (0, b""))[1]))
            scores.append(bytes(fields.get(SCORE, (0, bytes(4)))[1]))
            types.append(fields.get(TYPE, (1, b""))[0])
        elif tag == TRAINER:
            trainer |= {key: number for key, number, _ in protobuf_fields(payload)}
        elif tag == NORMALIZER:
            for key, number, value in protobuf_fields(payload):
                normalizer[key], charsmap = number, value if key == CHARSMAP else charsmap
    if not texts:
        raise ValueError("it contains no tokens")
    if len(texts) > max_tokens:
        raise ValueError(f"it contains more than {max_tokens} tokens")
    numbers = array("f", b"".join(scores))
    if sys.byteorder == "big":
        numbers.byteswap()
    is_usual = all(normalizer.get(key, 1) for key in (DUMMY_PREFIX, EXTRA_SPACES, ESCAPE))
    has_usual_spaces = is_usual and not trainer.get(WHITESPACE_SUFFIX)
    return SpieceModel(texts, numbers.tolist(), types, trainer.get(MODEL_TYPE, 1), bytes(charsmap), has_usual_spaces)


def _usual_tokens(data: bytes) -> tuple[list[bytes], list[bytes], list[int], int]:
    """Texts, scores and types of the first tokens, and where they end. Each has under 128 bytes: a text, a score and
    perhaps a type. This takes a tenth of the time of `protobuf_fields`.
    """
    texts: list[bytes] = []
    scores: list[bytes] = []
    types: list[int] = []
    start, last = 0, len(data) - 4
    while start < last and data[start] == TOKEN:
        size, length = data[start + 1], data[start + 3]
        stop, score = start + 2 + size, start + 4 + length
        kind = TYPES.get(data[score + 5 : stop])
        if kind is None or size > 127 or length > 127 or not score + 5 <= stop <= len(data):
            break
        if data[start + 2] != TEXT or data[score] != SCORE:
            break
        texts.append(data[start + 4 : score])
        scores.append(data[score + 1 : score + 5])
        types.append(kind)
        start = stop
    return texts, scores, types, start


def select_spiece_tokens(data: bytes, kept: Container[int]) -> bytes:
    """The same file with the tokens of the ids in `kept` only; everything else is unchanged."""
    out, count = [], 0
    for tag, number, payload in protobuf_fields(data):
        is_dropped = tag == TOKEN and count not in kept
        count += tag == TOKEN
        if is_dropped:
            continue
        wire = tag & 7
        size = varint(len(payload)) if wire == 2 else varint(number) if wire == 0 else b""
        out += [varint(tag), size, bytes(payload)]
    return b"".join(out)
