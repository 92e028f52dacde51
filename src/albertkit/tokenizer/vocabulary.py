"""`Vocabulary`, the complete description of a tokenizer, and its readers for `spiece.model`, `vocab.txt` and symbols.

In: a file or a list of symbols. Out: a `Vocabulary`; a damaged file raises `AlbertkitError` and nothing else.
SentencePiece's files are read without its package. After this file: `tokenizer_files.py`, and `unigram.py`, which
runs it.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Literal

from albertkit.errors import AlbertkitError

Kind = Literal["unigram", "wordpiece", "phoneme"]
SPECIALS: dict[str, tuple[str, ...]] = {  # pad, unknown, cls, sep, mask: in the order of ALBERT's ids
    "unigram": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
}
MAX_FILE_BYTES, MAX_TOKENS = 64 << 20, 1_000_000
USE_RIGHT_FILE = "use the tokenizer file that came with the checkpoint"


@dataclass(frozen=True)
class Vocabulary:
    """A whole tokenizer as data: its tokens in the order of their ids, and its rules."""

    kind: Kind
    tokens: list[str]
    scores: list[float]  # unigram: the log-probability of each token, exact in 32 bits; otherwise empty
    hidden: frozenset[int]  # ids that no text can produce, such as [CLS]
    unk_id: int | None
    lower: bool
    strip_accents: bool
    charsmap: bytes = b""  # SentencePiece's compiled normalisation table; empty for a vocabulary trained here
    spiece: bytes = b""  # the spiece.model it was read from; `save` writes it again
    split_scripts: bool = False  # unigram: runs of letters and digits are words; ideographs, punctuation have no "▁"

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each token."""
        return dict(zip(self.tokens, range(len(self.tokens)), strict=True))


def read_bytes(path: Path) -> bytes:
    """Read a tokenizer file; AlbertkitError if it cannot be read."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise AlbertkitError(f"{path} has {size} bytes; a tokenizer file has at most {MAX_FILE_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise AlbertkitError(f"{path} cannot be read ({error.strerror or error}): check its permissions") from None


def check_tokens(vocabulary: Vocabulary, path: Path | str) -> Vocabulary:
    """Check that a vocabulary has no repeated token and has ALBERT's special tokens; returns it."""
    if len(vocabulary.ids) != len(vocabulary.tokens):
        twice = next(token for i, token in enumerate(vocabulary.tokens) if vocabulary.ids[token] != i)
        raise AlbertkitError(f"{path} contains the token {twice!r} twice: {USE_RIGHT_FILE}")
    missing = [name for name in SPECIALS[vocabulary.kind] if name not in vocabulary.ids]
    if missing:
        raise AlbertkitError(f"{path} lacks {', '.join(missing)}, which ALBERT needs: {USE_RIGHT_FILE}")
    return vocabulary


def check_size(path: Path, vocabulary: Vocabulary, vocab_size: int) -> None:
    """Check the vocabulary against a model: the embedding table may be padded, but not smaller nor much larger."""
    size = len(vocabulary.tokens)
    if not size <= vocab_size <= max(size * 1.1, size + 1024):
        raise AlbertkitError(f"{path} has {size} tokens and the model's vocab_size is {vocab_size}: {USE_RIGHT_FILE}")


def read_spiece(path: Path, *, lower: bool, keep_accents: bool) -> Vocabulary:
    """The vocabulary in a `spiece.model`."""
    data = read_bytes(path)
    try:
        model = parse_spiece(data)
    except ValueError as error:  # UnicodeDecodeError is one
        raise AlbertkitError(f"{path} is not a SentencePiece model ({error}): copy the original again") from None
    kind = model.rules["model_type"]
    if kind != 1:
        raise AlbertkitError(f"{path} is a model of type {kind} and must be unigram (type 1): {USE_RIGHT_FILE}")
    if model.rules != SentencePieceModel().rules:
        raise AlbertkitError(f"{path} does not treat spaces as ALBERT does ({model.rules}): {USE_RIGHT_FILE}")
    types = model.special_types
    if not {2, 3, 4}.issuperset(types.values()):
        raise AlbertkitError(f"{path} has byte or unused tokens, which ALBERT has not: train the model without them")
    unknown = [i for i, token_type in types.items() if token_type == 2]
    if len(unknown) != 1:
        raise AlbertkitError(f"{path} has {len(unknown)} unknown tokens and must have one: copy the original again")
    vocabulary = Vocabulary(
        kind="unigram",
        tokens=model.tokens,
        scores=model.scores,
        hidden=frozenset(i for i, token_type in types.items() if token_type in (2, 3)),
        unk_id=unknown[0],
        lower=lower,
        strip_accents=not keep_accents,
        charsmap=model.charsmap,
        spiece=data,
    )
    return check_tokens(vocabulary, path)


def read_vocab(path: Path, *, lower: bool, strip_accents: bool | None) -> Vocabulary:
    """The vocabulary in a `vocab.txt`: one token per line, the line number is the id."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AlbertkitError(f"{path} is not UTF-8 text ({error.reason}): vocab.txt has one token per line") from None
    if "\0" in text:
        raise AlbertkitError(f"{path} contains binary data: vocab.txt is UTF-8 text with one token per line")
    tokens = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    return wordpiece_vocabulary(tokens, path, lower, lower if strip_accents is None else strip_accents)


def wordpiece_vocabulary(tokens: list[str], path: Path | str, lower: bool, strip_accents: bool) -> Vocabulary:
    """A checked WordPiece vocabulary."""
    if len(tokens) > MAX_TOKENS:
        raise AlbertkitError(f"{path} has {len(tokens)} tokens, more than {MAX_TOKENS}: use the right file")
    vocabulary = check_tokens(Vocabulary("wordpiece", tokens, [], frozenset(), None, lower, strip_accents), path)
    hidden = [vocabulary.ids[name] for name in SPECIALS["wordpiece"]]
    return Vocabulary("wordpiece", tokens, [], frozenset(hidden), hidden[1], lower, strip_accents)


def symbols_vocabulary(symbols: list[str], lower: bool = False) -> Vocabulary:
    """One character, one id; "" keeps an id free; the last of repeated symbols counts, as in PL-BERT."""
    for i, symbol in enumerate(symbols):
        if not isinstance(symbol, str) or len(symbol) > 1:
            raise AlbertkitError(f"symbol {i} is {symbol!r}, and a symbol is one character: split it or use ''")
    if not symbols or len(symbols) > MAX_TOKENS or not symbols[0]:
        raise AlbertkitError(f"a table of {len(symbols)} symbols is not usable: pass 1 to {MAX_TOKENS}, padding first")
    last = {symbol: i for i, symbol in enumerate(symbols)}
    tokens = [symbol if last[symbol] == i else "" for i, symbol in enumerate(symbols)]
    return Vocabulary("phoneme", tokens, [], frozenset(), None, lower, False)


def is_digit_comma(token: str) -> bool:
    """Whether ALBERT splits the comma off a token, such as "▁2010,"."""
    return token[-1:] == "," and token[-2:-1].isdigit()


# The protobuf message in a spiece.model ------------------------------------------------------------------------------


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


def parse_spiece(data: bytes) -> SentencePieceModel:
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


def select_spiece_tokens(data: bytes, kept: Container[int]) -> bytes:
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
