"""One `Vocabulary` says everything about a tokenizer; here it is read from `spiece.model`, `vocab.txt` or symbols.

In: a file, or a list of symbols. Out: a `Vocabulary`. Before this file: `spiece.py`; after it: `tokenizer_json.py`, which
reads and writes the same as `tokenizer.json`, `unigram.py`, which runs it, and `training.py`, which makes new ones.

Every reader checks what it reads; bytes that are not what they should be raise `AlbertkitError` and nothing else.
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
FILE_LIMIT, PIECE_LIMIT = 64 << 20, spiece.PIECE_LIMIT


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
    spiece: bytes = b""  # the spiece.model it was read from, kept so that `save` can write it again
    split_scripts: bool = False  # unigram: runs of letters and digits are words; ideographs and punctuation have no "▁"

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each token."""
        return dict(zip(self.tokens, range(len(self.tokens)), strict=True))


def read_bytes(path: Path) -> bytes:
    """The bytes of a tokenizer file, or a sentence about why they cannot be had."""
    try:
        size = path.stat().st_size
        if size > FILE_LIMIT:
            raise AlbertkitError(
                f"{path} has {size} bytes, more than the {FILE_LIMIT} a tokenizer file may have: use the right file"
            )
        return path.read_bytes()
    except OSError as error:
        raise AlbertkitError(
            f"{path} cannot be read ({error.strerror or error}): check the path and its rights"
        ) from None


def check_tokens(made: Vocabulary, path: Path | str) -> Vocabulary:
    """The same vocabulary, which has no token twice and has ALBERT's special tokens."""
    if len(made.ids) != len(made.tokens):
        twice = next(token for i, token in enumerate(made.tokens) if made.ids[token] != i)
        raise AlbertkitError(
            f"{path} holds the token {twice!r} twice, and a token has one id: use the file that belongs to the checkpoint"
        )
    names = SPECIALS[made.kind]
    lacking = [name for name in names if name not in made.ids]
    if lacking:
        raise AlbertkitError(
            f"{path} lacks {', '.join(lacking)}, and a {made.kind} vocabulary of ALBERT has {' '.join(names)}: use the "
            "file that belongs to the checkpoint"
        )
    return made


def check_size(path: Path, vocabulary: Vocabulary, vocab_size: int) -> None:
    """A table of embeddings may be padded, but not smaller than the vocabulary, nor of quite another size."""
    size = len(vocabulary.tokens)
    if size <= vocab_size <= max(size * 1.1, size + 1024):
        return
    raise AlbertkitError(
        f"{path} holds {size} tokens and the model's vocab_size is {vocab_size}: they do not belong together, so use the "
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
            f"{path} is a SentencePiece model of type {model.rules['model_type']}, and ALBERT uses unigram (type 1): use "
            "the spiece.model that belongs to the checkpoint"
        )
    if [model.rules[name] for name in ("dummy_prefix", "extra_spaces", "escape", "suffix")] != [1, 1, 1, 0]:
        raise AlbertkitError(
            f"{path} treats spaces unlike ALBERT ({model.rules}): use a model with a dummy prefix and no whitespace suffix"
        )
    strange = next((i for i, sort in model.odd.items() if sort not in (2, 3, 4)), None)
    if strange is not None:
        raise AlbertkitError(
            f"piece {strange} of {path} is of sort {model.odd[strange]}, and ALBERT knows only normal, unknown, control "
            "and user-defined pieces: train the model without byte fallback and unused pieces"
        )
    unknown = [i for i, sort in model.odd.items() if sort == 2]
    if len(unknown) != 1:
        raise AlbertkitError(
            f"{path} has {len(unknown)} unknown pieces and must have one: copy the original file again"
        )
    made = Vocabulary(
        kind="unigram",
        tokens=model.tokens,
        scores=model.scores,
        hidden=frozenset(i for i, sort in model.odd.items() if sort in (2, 3)),
        unk_id=unknown[0],
        lower=lower,
        strip_accents=not keep_accents,
        charsmap=model.charsmap,
        spiece=data,
    )
    return check_tokens(made, path)


def read_vocab(path: Path, *, lower: bool, strip_accents: bool | None) -> Vocabulary:
    """The vocabulary in a `vocab.txt`: one token a line, the line number is the id."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AlbertkitError(f"{path} is not UTF-8 text ({error.reason}): vocab.txt holds one token a line") from None
    if "\0" in text:
        raise AlbertkitError(f"{path} holds binary data: vocab.txt is UTF-8 text with one token a line")
    tokens = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    return wordpiece(tokens, path, lower, lower if strip_accents is None else strip_accents)


def wordpiece(tokens: list[str], path: Path | str, lower: bool, strip_accents: bool) -> Vocabulary:
    """A WordPiece vocabulary, checked."""
    if len(tokens) > PIECE_LIMIT:
        raise AlbertkitError(f"{path} has {len(tokens)} tokens, more than {PIECE_LIMIT}: use the right file")
    made = check_tokens(Vocabulary("wordpiece", tokens, [], frozenset(), None, lower, strip_accents), path)
    hidden = [made.ids[name] for name in SPECIALS["wordpiece"]]
    return Vocabulary("wordpiece", tokens, [], frozenset(hidden), hidden[1], lower, strip_accents)


def symbols_vocabulary(symbols: list[str], lower: bool = False) -> Vocabulary:
    """One character, one id; "" keeps an id free; the last of repeated symbols counts, as in PL-BERT."""
    for i, symbol in enumerate(symbols):
        if not isinstance(symbol, str) or len(symbol) > 1:
            raise AlbertkitError(f"symbol {i} is {symbol!r}, and a symbol is one character: split it or use ''")
    if not symbols or len(symbols) > PIECE_LIMIT or not symbols[0]:
        raise AlbertkitError(f"a table of {len(symbols)} symbols is not usable: give 1 to {PIECE_LIMIT}, the pad first")
    last = {symbol: i for i, symbol in enumerate(symbols)}
    tokens = [symbol if last[symbol] == i else "" for i, symbol in enumerate(symbols)]
    return Vocabulary("phoneme", tokens, [], frozenset(), None, lower, False)


def comma_after_digit(piece: str) -> bool:
    """The pieces that ALBERT takes apart, such as "▁2010,"."""
    return piece[-1:] == "," and piece[-2:-1].isdigit()
