"""`Vocabulary`, the complete description of a tokenizer, and its readers for `spiece.model`, `vocab.txt` and symbols.

In: a file or a list of symbols. Out: a `Vocabulary`; a damaged file raises `AlbertkitError` and nothing else.
Before this file: `spiece_file.py`. After it: `tokenizer_files.py`, and `unigram.py`, which runs it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from albertkit.errors import AlbertkitError
from albertkit.file_io import read_file
from albertkit.tokenizer.spiece_file import parse_spiece

Kind = Literal["unigram", "wordpiece", "phoneme"]
SPECIALS: dict[str, tuple[str, ...]] = {  # pad, unknown, cls, sep, mask: in the order of ALBERT's ids
    "unigram": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
}
MAX_FILE_BYTES, MAX_TOKENS = 64 << 20, 1_000_000
USE_RIGHT_FILE = "Use the tokenizer file of the checkpoint."


@dataclass(frozen=True)
class Vocabulary:
    """A complete tokenizer as data: its tokens in the order of their ids, and its rules."""

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

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        return dict(zip(self.tokens, range(len(self.tokens)), strict=True))


def read_bytes(path: Path) -> bytes:
    try:
        return read_file(path, MAX_FILE_BYTES)
    except OSError as error:
        raise AlbertkitError(
            f"{path} cannot be read ({error.strerror or error}). Check the path and its permissions."
        ) from None


def check_tokens(vocabulary: Vocabulary, path: Path | str) -> Vocabulary:
    """Check that a vocabulary has no repeated token and has ALBERT's special tokens; returns it."""
    if len(vocabulary.ids) != len(vocabulary.tokens):
        twice = next(token for i, token in enumerate(vocabulary.tokens) if vocabulary.ids[token] != i)
        raise AlbertkitError(f"{path} contains the token {twice!r} twice. {USE_RIGHT_FILE}")
    missing = [name for name in SPECIALS[vocabulary.kind] if name not in vocabulary.ids]
    if missing:
        raise AlbertkitError(f"{path} lacks {', '.join(missing)}, which ALBERT needs. {USE_RIGHT_FILE}")
    return vocabulary


def check_size(path: Path, vocabulary: Vocabulary, vocab_size: int) -> None:
    """Check the vocabulary against a model: the embedding table may be padded, but not smaller or much larger."""
    size = len(vocabulary.tokens)
    if not size <= vocab_size <= max(size * 1.1, size + 1024):
        raise AlbertkitError(f"{path} has {size} tokens, but the model's vocab_size is {vocab_size}. {USE_RIGHT_FILE}")


def read_spiece(path: Path, *, lower: bool, keep_accents: bool) -> Vocabulary:
    """The vocabulary in a `spiece.model`."""
    data = read_bytes(path)
    try:
        model = parse_spiece(data, MAX_TOKENS)
        tokens, scores, types = [text.decode() for text in model.texts], model.scores, model.types
        if "" in tokens or not (math.isfinite(sum(scores)) and max(map(abs, scores)) <= 1e6):
            raise ValueError("a token has no text or no usable score")
    except ValueError as error:  # UnicodeDecodeError is one
        raise AlbertkitError(f"{path} is not a SentencePiece model ({error}). Copy the original again.") from None
    if model.model_type != 1:
        raise AlbertkitError(f"{path} is a model of type {model.model_type}, not unigram (type 1). {USE_RIGHT_FILE}")
    if not model.has_usual_spaces:
        raise AlbertkitError(f"{path} does not treat spaces as ALBERT does. {USE_RIGHT_FILE}")
    if not {1, 2, 3, 4}.issuperset(types):  # normal, unknown, control, user-defined
        raise AlbertkitError(
            f"{path} has byte or unused tokens, which ALBERT does not support. Train the model without them."
        )
    if types.count(2) != 1:
        raise AlbertkitError(f"{path} has {types.count(2)} unknown tokens, not one. Copy the original again.")
    vocabulary = Vocabulary(
        kind="unigram",
        tokens=tokens,
        scores=scores,
        hidden=frozenset(i for i, token_type in enumerate(types) if token_type in (2, 3)),
        unk_id=types.index(2),
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
        raise AlbertkitError(f"{path} is not UTF-8 text ({error.reason}). Write one token per line in UTF-8.") from None
    if "\0" in text:
        raise AlbertkitError(f"{path} contains binary data. Write one token per line in UTF-8.")
    tokens = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    return wordpiece_vocabulary(tokens, path, lower, lower if strip_accents is None else strip_accents)


def wordpiece_vocabulary(tokens: list[str], path: Path | str, lower: bool, strip_accents: bool) -> Vocabulary:
    """A checked WordPiece vocabulary."""
    if len(tokens) > MAX_TOKENS:
        raise AlbertkitError(f"{path} has {len(tokens)} tokens, more than {MAX_TOKENS}. {USE_RIGHT_FILE}")
    vocabulary = check_tokens(Vocabulary("wordpiece", tokens, [], frozenset(), None, lower, strip_accents), path)
    hidden = [vocabulary.ids[name] for name in SPECIALS["wordpiece"]]
    return Vocabulary("wordpiece", tokens, [], frozenset(hidden), hidden[1], lower, strip_accents)


def symbols_vocabulary(symbols: list[str], lower: bool = False) -> Vocabulary:
    """One id per character; "" reserves an id. Of repeated symbols the last one is used, as in PL-BERT."""
    for i, symbol in enumerate(symbols):
        if not isinstance(symbol, str) or len(symbol) > 1:
            raise AlbertkitError(f"symbol {i} is {symbol!r}: a symbol must be one character. Split it or use ''.")
    if not symbols or len(symbols) > MAX_TOKENS or not symbols[0]:
        raise AlbertkitError(f"{len(symbols)} symbols were passed. Pass 1 to {MAX_TOKENS} symbols, padding first.")
    last = {symbol: i for i, symbol in enumerate(symbols)}
    tokens = [symbol if last[symbol] == i else "" for i, symbol in enumerate(symbols)]
    return Vocabulary("phoneme", tokens, [], frozenset(), None, lower, False)


def is_digit_comma(token: str) -> bool:
    """Whether ALBERT splits the comma off a token, such as "▁2010,"."""
    return token[-1:] == "," and token[-2:-1].isdigit()
