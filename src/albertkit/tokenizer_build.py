"""Where a vocabulary comes from and where it goes: reading, training and writing the files of a tokenizer.

In: the bytes of `spiece.model` (a SentencePiece unigram model), `vocab.txt` (WordPiece), `tokenizer.json`, a
list of symbols, or an iterator of texts to train on. Out: one `Vocabulary`, which says everything about a
tokenizer, and the text of a `tokenizer.json` made from it. `Normaliser` is what happens to a text before a
unigram model sees it. Before this file: nothing but the `tokenizers` library; after it: `tokenizer.py`, the
class that users hold.

Every reader checks what it reads; bytes that are not what they should be raise `AlbertkitError` and nothing
else.
"""

from __future__ import annotations

import base64
import functools
import json
import struct
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Rust

from albertkit.errors import AlbertkitError

Kind = Literal["unigram", "wordpiece", "phoneme"]
SPACE = "▁"  # how SentencePiece writes the beginning of a word
SPECIALS: dict[str, tuple[str, ...]] = {  # pad, unknown, cls, sep, mask: in the order of ALBERT's ids
    "unigram": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
}
APART = '()"-.–£€'  # symbols that are always a piece of their own in ALBERT's English vocabulary
FILE_LIMIT, PIECE_LIMIT = 64 << 20, 1_000_000
PENALTY = 100.0  # what transformers takes off the score of "2010,", so that the comma stays apart


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


# --- SentencePiece ------------------------------------------------------------


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of one protobuf message: numbers as int, everything else as bytes."""
    at, end = 0, len(data)

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


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, sort = b"", 0.0, 1
    size = data[1] if len(data) > 1 else 0
    if data[:1] == b"\x0a" and size < 128 and len(data) == size + 7 and data[size + 2] == 0x15:
        text = data[2 : size + 2]  # the usual layout, read at once: text and score, nothing else
        (score,) = struct.unpack_from("<f", data, size + 3)
        data = b""
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            text = value
        elif field == 2 and isinstance(value, bytes) and len(value) == 4:
            (score,) = struct.unpack("<f", value)
        elif field == 3 and isinstance(value, int):
            sort = value
    if not text or score != score or abs(score) > 1e6:
        raise ValueError("a piece has no text or no usable score")
    return text.decode("utf-8"), score, sort


def read_spiece(path: Path, *, lower: bool, keep_accents: bool) -> Vocabulary:
    """The vocabulary in a `spiece.model`, read without the sentencepiece package."""
    data = read_bytes(path)
    pieces: list[tuple[str, float, int]] = []
    charsmap, rules = b"", {"model_type": 1, "dummy_prefix": 1, "extra_spaces": 1, "escape": 1, "suffix": 0}
    try:
        for field, value in _fields(data):
            if not isinstance(value, bytes):
                continue
            if field == 1:
                if len(pieces) >= PIECE_LIMIT:
                    raise ValueError(f"more than {PIECE_LIMIT} pieces")
                pieces.append(_piece(value))
            elif field == 2:
                names = {3: "model_type", 24: "suffix"}
                rules |= {names[f]: v for f, v in _fields(value) if f in names and isinstance(v, int)}
            elif field == 3:
                for f, v in _fields(value):
                    if f == 2 and isinstance(v, bytes):
                        charsmap = v
                    elif f in (3, 4, 5) and isinstance(v, int):
                        rules[("dummy_prefix", "extra_spaces", "escape")[f - 3]] = v
    except ValueError as error:  # UnicodeDecodeError is one
        raise AlbertkitError(
            f"{path} is not a SentencePiece model ({error}): copy the original spiece.model again"
        ) from None
    if not pieces:
        raise AlbertkitError(f"{path} is not a SentencePiece model (it holds no pieces): copy the original file again")
    if rules["model_type"] != 1:
        raise AlbertkitError(
            f"{path} is a SentencePiece model of type {rules['model_type']}, and ALBERT uses unigram "
            "(type 1): "
            "use the spiece.model that belongs to the checkpoint"
        )
    if [rules[name] for name in ("dummy_prefix", "extra_spaces", "escape", "suffix")] != [1, 1, 1, 0]:
        raise AlbertkitError(
            f"{path} treats spaces unlike ALBERT ({rules}): use a model with a dummy prefix and no whitespace suffix"
        )
    odd = next(((i, sort) for i, (_, _, sort) in enumerate(pieces) if sort not in (1, 2, 3, 4)), None)
    if odd:
        raise AlbertkitError(
            f"piece {odd[0]} of {path} is of sort {odd[1]}, and ALBERT knows only normal, unknown, "
            "control and "
            "user-defined pieces: train the model without byte fallback and unused pieces"
        )
    if charsmap:
        charsmap_of(charsmap, str(path))
    unknown = [i for i, (_, _, sort) in enumerate(pieces) if sort == 2]
    if len(unknown) != 1:
        raise AlbertkitError(
            f"{path} has {len(unknown)} unknown pieces and must have one: copy the original file again"
        )
    tokens = [text for text, _, _ in pieces]
    check_tokens(tokens, "unigram", path)
    return Vocabulary(
        kind="unigram",
        tokens=tokens,
        scores=[score for _, score, _ in pieces],
        hidden=frozenset(i for i, (_, _, sort) in enumerate(pieces) if sort in (2, 3)),
        unk_id=unknown[0],
        lower=lower,
        strip_accents=not keep_accents,
        charsmap=charsmap,
        spiece=data,
    )


class Charsmap:
    """SentencePiece's compiled normalisation: strings, and what replaces them.

    The blob is a double-array trie (`darts-clone`) followed by the replacements, each ended by a zero byte.
    Branches share their ends, so that the trie has few nodes and very many strings: we walk it and never
    list it.
    """

    def __init__(self, blob: bytes):
        self.joins: set[str] = set()  # characters that stand second or later in some string of the table
        (size,) = struct.unpack_from("<I", blob)
        if size % 4 or size + 4 > len(blob) or not size or blob[-1:] != b"\0":
            raise ValueError("it is cut off")
        self.units = struct.unpack_from(f"<{size // 4}I", blob, 4)
        self.texts = blob[4 + size :]
        self._survey()

    @staticmethod
    def _jump(unit: int) -> int:
        return (unit >> 10) << ((unit & 512) >> 6)

    def _survey(self) -> None:
        """Visit every node once: check it, and collect `joins`."""
        children: dict[int, list[int]] = {}  # a unit at j with label l is a child of the node with base j ^ l
        for index, unit in enumerate(self.units):
            if unit < 1 << 31 and unit & 255:
                children.setdefault(index ^ (unit & 255), []).append(index)
        todo = [(self._jump(self.units[0]), b"", True)]  # base, bytes of the unfinished character, is it the first
        seen = set(todo)
        while todo:
            base, begun, first = todo.pop()
            for index in children.get(base, ()):
                unit = self.units[index]
                below, character = index ^ self._jump(unit), begun + bytes((unit & 255,))
                if unit >> 8 & 1:
                    self._replacement(self.units[below])
                width = 1 + sum(character[0] >= least for least in (0xC0, 0xE0, 0xF0))
                done = len(character) == width
                if done and not first:
                    self.joins.add(character.decode())
                state = (below, b"" if done else character, first and not done)
                if state not in seen:
                    seen.add(state)
                    todo.append(state)
            if len(seen) > PIECE_LIMIT:
                raise ValueError("its trie is too large")

    def _replacement(self, unit: int) -> str:
        start = unit & 0x7FFFFFFF
        return self.texts[start : self.texts.index(b"\0", start)].decode()

    def longest(self, text: str, at: int) -> tuple[int, str]:
        """How many characters of the text from `at` on are replaced together, and by what."""
        units, size, new = self.units, 1, text[at]
        here = self._jump(units[0])
        for count, c in enumerate(text[at : at + 64], start=1):
            for byte in c.encode():
                here ^= byte
                if here >= len(units) or units[here] & 0x800000FF != byte:
                    return size, new
                leaf = units[here] >> 8 & 1
                here ^= self._jump(units[here])
            if leaf:
                size, new = count, self._replacement(units[here])
        return size, new


@functools.lru_cache(maxsize=4)
def _parsed(blob: bytes) -> Charsmap | str:
    try:
        return Charsmap(blob)
    except (ValueError, IndexError, struct.error) as error:
        return str(error)


def charsmap_of(blob: bytes, path: str) -> Charsmap:
    """The table in a blob, read once for each blob."""
    table = _parsed(blob)
    if isinstance(table, str):
        raise AlbertkitError(f"the normalisation table of {path} is damaged ({table}): copy the original file again")
    return table


@functools.lru_cache(maxsize=1)
def _combining() -> str:
    """A regular expression for the characters with a combining class, by this Python's Unicode tables."""
    found = [c for c in range(0x300, 0x20000) if unicodedata.combining(chr(c))]
    members = set(found)
    starts = [c for c in found if c - 1 not in members]
    ends = [c for c in found if c + 1 not in members]
    return "[" + "".join(f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in zip(starts, ends, strict=True)) + "]"


class Normaliser:
    """What happens to a text before a unigram model sees it, with the way back to the characters of the text.

    This is the original `preprocess_text` (white space, NFKD, no combining characters, lower case) followed
    by SentencePiece's own normalisation (longest match in its table). Almost every character is changed the
    same way wherever it stands, so its result is remembered; the few that depend on their neighbours (a
    final sigma, Hangul letters that join, a literal "▁") send the text through `_in_context`, which does it
    by the book.
    """

    _MARK = "\uffff"  # stands for "look at the neighbours"

    def __init__(self, vocabulary: Vocabulary):
        self.lower, self.strip = vocabulary.lower, vocabulary.strip_accents
        self.table = charsmap_of(vocabulary.charsmap, "the tokenizer") if vocabulary.charsmap else None
        self.joins = self.table.joins if self.table else set()
        self.known: dict[str, str] = {}
        printable = map(chr, range(32, 127))
        self.plain_ascii = all(self._alone(c) == (c.lower() if self.lower else c) for c in printable)

    def __call__(self, text: str) -> tuple[str, list[tuple[int, int]] | None]:
        """The normalised text, and for each of its characters the span it came from (None: its own place).

        There is one space between words, and none at the ends.
        """
        if self.plain_ascii and text.isascii() and text.isprintable():
            return self._spaces(text.lower() if self.lower else text, None)
        known, parts = self.known, []
        for c in text:
            part = known.get(c)
            parts.append(self._alone(c) if part is None else part)
        joined = "".join(parts)
        if self._MARK in joined:
            return self._in_context(text)
        if len(joined) == len(text) and all(parts):
            return self._spaces(joined, None)
        spans: list[tuple[int, int]] = []
        for i, part in enumerate(parts):
            if part:
                spans += [(i, i + 1)] * len(part)
            elif spans and unicodedata.combining(text[i]):
                spans[-1] = (spans[-1][0], i + 1)  # an accent belongs to the letter before it
        return self._spaces(joined, spans)

    @staticmethod
    def _spaces(text: str, spans: list[tuple[int, int]] | None) -> tuple[str, list[tuple[int, int]] | None]:
        """One space between words and none at the ends."""
        if "  " not in text and text[:1] != " " and text[-1:] != " ":
            return text, spans
        kept = [i for i, c in enumerate(text) if c != " " or (i and text[i - 1] != " ")]
        while kept and text[kept[-1]] == " ":
            kept.pop()
        return "".join([text[i] for i in kept]), [spans[i] if spans else (i, i + 1) for i in kept]

    def _alone(self, c: str) -> str:
        """What one character becomes, or the mark when that depends on its neighbours."""
        prepared = self._prepare(c)
        if SPACE in prepared or (self.lower and "Σ" in prepared) or not self.joins.isdisjoint(prepared):
            result = self._MARK
        else:
            result = prepared.lower() if self.lower else prepared
            if self.table:
                result = "".join(self.table.longest(x, 0)[1] for x in result)
        self.known[c] = result
        return result

    def _prepare(self, c: str) -> str:
        """White space, compatibility forms and accents; a table of SentencePiece's does the rest later."""
        if c.isspace():
            return " "
        if self.strip:
            c = "".join(x for x in unicodedata.normalize("NFKD", c) if not unicodedata.combining(x))
        if self.table is None:  # a vocabulary trained here: controls vanish, what can be one character is one
            c = unicodedata.normalize("NFKC", "".join(x for x in c if unicodedata.category(x) not in ("Cc", "Cf")))
        return c

    def _in_context(self, text: str) -> tuple[str, list[tuple[int, int]] | None]:
        prepared = [(x, i) for i, c in enumerate(text) for x in self._prepare(c)]
        whole = "".join(x for x, _ in prepared)
        origin = [i for x, i in prepared for _ in (x.lower() if self.lower else x)]
        whole = whole.lower() if self.lower else whole  # of the whole text, since a final sigma is another letter
        at = 0
        out: list[str] = []
        spans: list[tuple[int, int]] = []
        while at < len(whole):
            size, new = self.table.longest(whole, at) if self.table else (1, whole[at])
            out += new
            spans += [(origin[at], origin[at + size - 1] + 1)] * len(new)
            at += size
        kept = len("".join(out).rstrip(" " + SPACE))  # SentencePiece takes a literal ▁ at the end for a space
        made, places = self._spaces("".join(out)[:kept], spans[:kept])
        if made.startswith(SPACE) and places:  # a literal ▁ at the start has the text's own ▁ before it
            made, places = SPACE + made, [places[0], *places]
        return made, places


# --- vocab.txt, tokenizer.json, symbols ------------------------------------------------------------


def check_tokens(tokens: list[str], kind: str, path: Path | str) -> None:
    """A vocabulary has no token twice and has ALBERT's special tokens."""
    if len(set(tokens)) != len(tokens):
        seen: set[str] = set()
        twice = next(t for t in tokens if t in seen or seen.add(t))  # type: ignore[func-returns-value]
        raise AlbertkitError(
            f"{path} holds the token {twice!r} twice, and a token has one id: use the file that belongs "
            "to the checkpoint"
        )
    lacking = [name for name in SPECIALS[kind] if name not in set(tokens)]
    if lacking:
        raise AlbertkitError(
            f"{path} lacks {', '.join(lacking)}, and a {kind} vocabulary of ALBERT has "
            f"{' '.join(SPECIALS[kind])}: "
            "use the file that belongs to the checkpoint"
        )


def read_vocab(path: Path, *, lower: bool, strip_accents: bool | None) -> Vocabulary:
    """The vocabulary in a `vocab.txt`: one token a line, the line number is the id."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AlbertkitError(f"{path} is not UTF-8 text ({error.reason}): vocab.txt holds one token a line") from None
    if "\0" in text:
        raise AlbertkitError(f"{path} holds binary data: vocab.txt is UTF-8 text with one token a line")
    tokens = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    return _wordpiece(tokens, path, lower, lower if strip_accents is None else strip_accents)


def _wordpiece(tokens: list[str], path: Path | str, lower: bool, strip_accents: bool) -> Vocabulary:
    if len(tokens) > PIECE_LIMIT:
        raise AlbertkitError(f"{path} has {len(tokens)} tokens, more than {PIECE_LIMIT}: use the right file")
    check_tokens(tokens, "wordpiece", path)
    hidden = frozenset(tokens.index(name) for name in SPECIALS["wordpiece"])
    unk = tokens.index(SPECIALS["wordpiece"][1])
    return Vocabulary("wordpiece", tokens, [], hidden, unk, lower, strip_accents)


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


def _flat(step: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer of tokenizer.json, in order."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [inner for one in step["normalizers"] for inner in _flat(one)]
    return [step]


def read_json(path: Path) -> Vocabulary:
    """The vocabulary and the rules in a `tokenizer.json`, ours or one that transformers wrote for ALBERT."""
    try:
        data = json.loads(read_bytes(path).decode("utf-8"))
        model, sort = data["model"], data["model"].get("type")
        steps = _flat(data.get("normalizer"))
        names = {step["type"] for step in steps}
        if sort == "Unigram":
            return _unigram_json(path, data, steps)
        if sort not in ("WordPiece", "WordLevel"):
            raise AlbertkitError(
                f"{path} holds a {sort} model, and ALBERT uses Unigram or WordPiece (or WordLevel for "
                "symbols): "
                "use the tokenizer.json that belongs to the checkpoint"
            )
        ids: dict[str, int] = model["vocab"]
        if not ids or not all(type(i) is int and 0 <= i < PIECE_LIMIT for i in ids.values()):
            raise TypeError("its ids are not small whole numbers")
        tokens = [""] * (max(ids.values()) + 1)
        for token, index in ids.items():
            tokens[index] = token
        if sort == "WordLevel":
            return symbols_vocabulary(tokens, lower="Lowercase" in names)
        if len(ids) != len(tokens):
            raise TypeError("some ids have no token or two")
        if len(steps) != 1 or names != {"BertNormalizer"}:
            raise TypeError(f"a WordPiece model needs a BertNormalizer, not {sorted(names)}")
        if model.get("continuing_subword_prefix") != "##":
            raise TypeError("its continuing_subword_prefix is not '##'")
        _added(data, tokens)
        lower = bool(steps[0]["lowercase"])
        strip = steps[0].get("strip_accents")
        return _wordpiece(tokens, path, lower, lower if strip is None else bool(strip))
    except AlbertkitError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise AlbertkitError(
            f"{path} is not a usable tokenizer.json ({what}): copy the original again, or remove it if "
            "spiece.model or vocab.txt is there"
        ) from None


def _added(data: dict[str, Any], tokens: list[str]) -> set[int]:
    """The ids of the special added tokens, all of which must be in the vocabulary."""
    index, special = {token: i for i, token in enumerate(tokens)}, set()
    for added in data.get("added_tokens") or []:
        if index.get(added["content"]) != added["id"]:
            raise TypeError(f"its added token {added['content']!r} is not in the vocabulary")
        if added.get("special"):
            special.add(index[added["content"]])
    return special


def _unigram_json(path: Path, data: dict[str, Any], steps: list[dict[str, Any]]) -> Vocabulary:
    names = {step["type"] for step in steps}
    known = {"Replace", "NFKD", "NFKC", "NFC", "Nmt", "StripAccents", "Lowercase", "Precompiled", "Strip"}
    if names - known:
        raise TypeError(f"albertkit has no rule for its normalizer {sorted(names - known)[0]}")
    pairs = data["model"]["vocab"]
    if len(pairs) > PIECE_LIMIT or not all(isinstance(t, str) and abs(float(s)) < 1e6 for t, s in pairs):
        raise TypeError("its vocab is not a list of tokens with scores")
    tokens = [token for token, _ in pairs]
    scores = [s + PENALTY if s < -0.75 * PENALTY and comma_after_digit(t) else float(s) for t, s in pairs]
    scores = list(struct.unpack(f"{len(scores)}f", struct.pack(f"{len(scores)}f", *scores)))
    unk = data["model"].get("unk_id")
    check_tokens(tokens, "unigram", path)
    if unk != tokens.index(SPECIALS["unigram"][1]) or data["model"].get("byte_fallback"):
        raise TypeError("its unknown token is not <unk>, or it falls back to bytes")
    hidden = {tokens.index(name) for name in SPECIALS["unigram"]}
    hidden |= _added(data, tokens)
    blobs = [step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"]
    charsmap = base64.b64decode(blobs[0], validate=True) if blobs else b""
    if charsmap:
        charsmap_of(charsmap, str(path))
    strip = bool(names & {"StripAccents", "NFKD"})
    return Vocabulary("unigram", tokens, scores, frozenset(hidden), unk, "Lowercase" in names, strip, charsmap)


def comma_after_digit(piece: str) -> bool:
    """The pieces that ALBERT takes apart, such as "▁2010,"."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


# --- the rust side: running, training, writing ------------------------------------------------------------


def _bert(tokenizer: Rust, vocabulary: Vocabulary) -> Rust:
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=vocabulary.strip_accents,
        lowercase=vocabulary.lower,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    return tokenizer


def _wordpiece_model(vocabulary: Vocabulary) -> models.WordPiece:
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    return models.WordPiece(ids, unk_token=SPECIALS["wordpiece"][1], max_input_chars_per_word=100)


def _words() -> pre_tokenizers.Sequence:
    parts = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")]
    return pre_tokenizers.Sequence(parts)


def runner(vocabulary: Vocabulary) -> Rust:
    """The rust tokenizer that `Tokenizer` runs; for a unigram model the text comes from `Normaliser`.

    It has no special tokens, and a hidden token is stored with a space before it, which no word contains: so
    "<pad>" in a text is ordinary text.
    """
    if vocabulary.kind == "wordpiece":
        return _bert(Rust(_wordpiece_model(vocabulary)), vocabulary)
    names = [" " + t if i in vocabulary.hidden else t for i, t in enumerate(vocabulary.tokens)]
    tokenizer = Rust(models.Unigram(list(zip(names, vocabulary.scores, strict=True)), vocabulary.unk_id, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")
    return tokenizer


def to_json(vocabulary: Vocabulary) -> str:
    """A self-contained tokenizer.json that transformers and the tokenizers library can open."""
    if vocabulary.kind == "phoneme":
        return _phoneme_json(vocabulary)
    if vocabulary.kind == "wordpiece":
        tokenizer = _bert(Rust(_wordpiece_model(vocabulary)), vocabulary)
    else:
        scored = [
            (t, s - PENALTY if comma_after_digit(t) else s)
            for t, s in zip(vocabulary.tokens, vocabulary.scores, strict=True)
        ]
        tokenizer = Rust(models.Unigram(scored, vocabulary.unk_id, False))
        gone = "" if vocabulary.charsmap else r"|[\p{Cc}\p{Cf}&&[^\s]]"
        steps: list[Any] = [normalizers.Replace(Regex(r"[\x{1c}-\x{1f}]"), " ")]
        if gone:
            steps.append(normalizers.Replace(Regex(gone[1:]), ""))
        if vocabulary.strip_accents:
            steps += [normalizers.NFKD(), normalizers.Replace(Regex(_combining()), "")]
        steps += [normalizers.Lowercase()] if vocabulary.lower else []
        steps += [normalizers.Precompiled(vocabulary.charsmap) if vocabulary.charsmap else normalizers.NFKC()]
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = _words()
        tokenizer.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    names = [vocabulary.tokens[i] for i in sorted(vocabulary.hidden)]
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False, lstrip=n == "[MASK]") for n in names])
    cls, sep = (vocabulary.tokens.index(n) for n in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    return str(tokenizer.to_str())


def _phoneme_json(vocabulary: Vocabulary) -> str:
    pad = vocabulary.tokens[0]
    ids = {symbol: i for i, symbol in enumerate(vocabulary.tokens) if symbol}
    tokenizer = Rust(models.WordLevel(ids, unk_token=pad))
    others = "[^" + "".join(f"\\x{{{ord(c):x}}}" for c in ids) + "]"
    steps: list[Any] = [normalizers.Lowercase()] if vocabulary.lower else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(others), "")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m:.)|\n"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    data = json.loads(tokenizer.to_str())
    ends = {"SpecialToken": {"id": "pad", "type_id": 0}}
    middle = [{"Sequence": {"id": "A", "type_id": 0}}]
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [ends, *middle, ends],
        "pair": [ends, *middle, {"Sequence": {"id": "B", "type_id": 0}}, ends],
        "special_tokens": {"pad": {"id": "pad", "ids": [0], "tokens": [pad]}},
    }
    return json.dumps(data, ensure_ascii=False)


def train(
    texts: Iterable[str], kind: Kind, vocab_size: int, *, lower: bool, keep_accents: bool, min_count: int
) -> Vocabulary:
    """A new vocabulary, at most `vocab_size` large, with ids in ALBERT's order; the texts are read once."""
    if kind not in SPECIALS:
        raise AlbertkitError(f"a vocabulary of kind {kind!r} cannot be trained: choose 'unigram' or 'wordpiece'")
    if isinstance(texts, str | bytes):
        raise AlbertkitError("one text was given where many are needed: pass a list or an iterator of texts")
    first = [*SPECIALS[kind], *(APART if kind == "unigram" else "")]
    if type(vocab_size) is not int or not len(first) < vocab_size <= PIECE_LIMIT:
        raise AlbertkitError(
            f"vocab_size is {vocab_size!r} and must be a number from {len(first) + 1} to {PIECE_LIMIT}"
        )
    empty = Vocabulary(kind, list(SPECIALS[kind]), [0.0] * 5, frozenset(range(5)), 1, lower, not keep_accents)
    count = 0
    prepare = Normaliser(empty) if kind == "unigram" else None

    def stream() -> Iterator[str]:
        nonlocal count
        for text in texts:
            count += 1
            clean = check_text(text)
            yield prepare(clean)[0] if prepare else clean

    try:
        if kind == "wordpiece":
            tokens = _learn_wordpiece(stream(), empty, vocab_size, min_count)
        else:
            learnt = _learn_unigram(stream(), first, vocab_size)
            tokens = [token for token, _ in learnt]
    except AlbertkitError:
        raise
    except Exception as error:  # the rust trainers raise bare exceptions
        raise AlbertkitError(f"{count} texts gave no vocabulary ({error}): give more text") from None
    if count == 0 or len(tokens) <= len(first):
        raise AlbertkitError(f"{count} texts gave no vocabulary: give at least a few hundred lines of text")
    if kind == "wordpiece":
        return _wordpiece(tokens, "the trained vocabulary", lower, empty.strip_accents)
    rest = sorted(((s, t) for t, s in learnt if t not in first), key=lambda pair: (-pair[0], pair[1]))
    scores = [0.0] * len(first) + [s for s, _ in rest]
    exact = list(struct.unpack(f"{len(scores)}f", struct.pack(f"{len(scores)}f", *scores)))
    tokens = first + [t for _, t in rest]
    return Vocabulary("unigram", tokens, exact, frozenset(range(5)), 1, lower, not keep_accents)


def _learn_unigram(texts: Iterator[str], first: list[str], vocab_size: int) -> list[tuple[str, float]]:
    tokenizer = Rust(models.Unigram())
    apart = pre_tokenizers.Split(Regex("[" + "".join(f"\\x{{{ord(c):x}}}" for c in APART) + "]"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([_words(), apart])
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=first, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return [(token, score) for token, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def _learn_wordpiece(texts: Iterator[str], empty: Vocabulary, vocab_size: int, min_count: int) -> list[str]:
    """Two rounds over the texts, which wait in a temporary file: the letters, then the pieces.

    The rust trainer numbers the letters inside words ("##a") as it meets them in a hash table, and breaks
    ties by those numbers, so that one round gives another vocabulary each time. Letters that are given
    beforehand stay in order.
    """

    def learn(lines: Iterable[str], size: int, given: list[str]) -> list[str]:
        tokenizer = _bert(Rust(models.WordPiece(unk_token="[UNK]")), empty)
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=given, min_frequency=min_count, show_progress=False
        )
        tokenizer.train_from_iterator(lines, trainer)
        ids = json.loads(tokenizer.to_str())["model"]["vocab"]
        return sorted(ids, key=ids.__getitem__)

    with tempfile.TemporaryFile("w+", encoding="utf-8") as waiting:
        waiting.writelines(text.replace("\n", " ") + "\n" for text in texts)
        waiting.seek(0)
        letters = sorted(set(learn(waiting, 0, empty.tokens)) - set(empty.tokens))
        given = empty.tokens + letters
        if len(given) > vocab_size:
            raise AlbertkitError(
                f"the texts have {len(letters)} letters, which do not fit a vocab_size of {vocab_size}: "
                "raise vocab_size"
            )
        waiting.seek(0)
        return learn(waiting, vocab_size, given)


def check_text(text: Any) -> str:
    """A text that rust can take: a str, in which lone surrogates became U+FFFD."""
    if isinstance(text, str):
        if text.isascii() or text.isprintable():  # surrogates are not printable
            return text
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    if isinstance(text, bytes):
        raise AlbertkitError("the text is bytes and must be str: decode it first, for example text.decode('utf-8')")
    raise AlbertkitError(f"the text is {type(text).__name__} ({text!r:.40}) and must be str: pass a string")
