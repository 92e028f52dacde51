"""`Vocabulary`, the complete description of a tokenizer, and its readers for `spiece.model`, `vocab.txt` and symbols.

In: a file or a list of symbols. Out: a `Vocabulary`; a damaged file raises `AlbertkitError` and nothing else.
Before this file: `spiece.py`. After it: `tokenizer_json.py` (reads and writes tokenizer.json), `unigram.py` (runs it).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from albertkit.errors import AlbertkitError
from albertkit.tokenizer import spiece

Kind = Literal["unigram", "wordpiece", "phoneme"]
SPECIALS: dict[str, tuple[str, ...]] = {  # pad, unknown, cls, sep, mask: in the order of ALBERT's ids
    "unigram": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
}
MAX_FILE_BYTES, MAX_TOKENS = 64 << 20, spiece.MAX_TOKENS


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
            raise AlbertkitError(
                f"{path} has {size} bytes, and a tokenizer file has at most {MAX_FILE_BYTES}: use the right file"
            )
        return path.read_bytes()
    except OSError as error:
        raise AlbertkitError(
            f"{path} cannot be read ({error.strerror or error}): check the path and its permissions"
        ) from None


def check_tokens(vocabulary: Vocabulary, path: Path | str) -> Vocabulary:
    """Check that a vocabulary has no repeated token and has ALBERT's special tokens; returns it."""
    if len(vocabulary.ids) != len(vocabulary.tokens):
        twice = next(token for i, token in enumerate(vocabulary.tokens) if vocabulary.ids[token] != i)
        raise AlbertkitError(
            f"{path} contains the token {twice!r} twice, and a token has one id: use the file that belongs to the "
            "checkpoint"
        )
    names = SPECIALS[vocabulary.kind]
    missing = [name for name in names if name not in vocabulary.ids]
    if missing:
        raise AlbertkitError(
            f"{path} lacks {', '.join(missing)}, and a {vocabulary.kind} vocabulary of ALBERT has {' '.join(names)}: "
            "use the file that belongs to the checkpoint"
        )
    return vocabulary


def check_size(path: Path, vocabulary: Vocabulary, vocab_size: int) -> None:
    """Check the vocabulary against a model: the embedding table may be padded, but not smaller nor much larger."""
    size = len(vocabulary.tokens)
    if size <= vocab_size <= max(size * 1.1, size + 1024):
        return
    raise AlbertkitError(
        f"{path} has {size} tokens and the model's vocab_size is {vocab_size}: they do not belong together. Use the "
        "tokenizer files that came with the checkpoint"
    )


def read_spiece(path: Path, *, lower: bool, keep_accents: bool) -> Vocabulary:
    """The vocabulary in a `spiece.model`."""
    data = read_bytes(path)
    try:
        model = spiece.parse(data)
    except ValueError as error:  # UnicodeDecodeError is one
        raise AlbertkitError(
            f"{path} is not a SentencePiece model ({error}): copy the original spiece.model again"
        ) from None
    if model.rules["model_type"] != 1:
        raise AlbertkitError(
            f"{path} is a SentencePiece model of type {model.rules['model_type']}, and ALBERT uses unigram (type 1): "
            "use the spiece.model that belongs to the checkpoint"
        )
    if [model.rules[name] for name in ("dummy_prefix", "extra_spaces", "escape", "suffix")] != [1, 1, 1, 0]:
        raise AlbertkitError(
            f"{path} does not treat spaces as ALBERT does ({model.rules}): use a model with a dummy prefix and no "
            "whitespace suffix"
        )
    types = model.special_types
    unsupported = next((i for i, token_type in types.items() if token_type not in (2, 3, 4)), None)
    if unsupported is not None:
        raise AlbertkitError(
            f"token {unsupported} of {path} is of type {types[unsupported]}, and ALBERT has only normal, unknown, "
            "control and user-defined tokens: train the model without byte fallback and unused tokens"
        )
    unknown = [i for i, token_type in types.items() if token_type == 2]
    if len(unknown) != 1:
        raise AlbertkitError(
            f"{path} has {len(unknown)} unknown tokens and must have one: copy the original file again"
        )
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
