"""Text to ids, segments and character offsets, and back.

In: a text (or a pair), and the files of a checkpoint: `tokenizer.json`, `spiece.model` (SentencePiece
unigram, English ALBERT) or `vocab.txt` (WordPiece, Chinese and Korean ALBERT), or a table of symbols (the
phoneme model PL-BERT). The files decide the kind. Out: an `Encoding`. Before this file:
`tokenizer_build.py`, which reads and writes the files; after it: everything that runs or trains a model.

The unigram kind equals the original google-research code: its white space, NFKD, dropped accents and lower
case, then SentencePiece, then the rule that a piece such as "▁2010," becomes "▁2010" and ",". (The original
does not turn `` and '' into quotation marks; transformers does; we do not.) What is left out, all of it on
purpose:

- Ties. Where two ways to cut a word have the same score ("888" is "8 88" or "88 8"), SentencePiece's choice
  depends on the 32-bit rounding of everything before it in the text; ours depends on the word alone. About
  one line of English Wikipedia in 10,000 holds such a word.
- A lone surrogate, which is not a character, is read as U+FFFD.
- `tokenizer.json` is for other programs. There the digit-comma pieces have their score lowered by 100, which
  is how transformers imitates the rule; reading the file lifts that again, so that ours stays exact. The
  library's own normalisation there differs from ours for rare characters (Hangul letters, a final sigma).

Special tokens written in a text, such as "[SEP]" or "<pad>", are ordinary text; `recognise_mask=True`
recognises [MASK] and nothing else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer as Rust

from albertkit import tokenizer_build as build
from albertkit.errors import AlbertkitError
from albertkit.tokenizer_build import SPACE, Kind, Vocabulary

Truncation = Literal["longest", "first", "second", "error"]
_BETWEEN_CJK = re.compile(
    r"(?<=[\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60]) (?=[\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60])"
)


@dataclass(frozen=True)
class Encoding:
    """One text or pair as the model takes it; all lists have the same length."""

    ids: list[int]
    segments: list[int]  # 0 in the first text, 1 in the second
    offsets: list[tuple[int, int]]  # characters of the text of that segment; (0, 0) at special tokens
    specials: list[bool]  # True at [CLS] and [SEP]
    words: list[int | None]  # the word of its text that a piece belongs to; None at special tokens
    overflow: list[Encoding] = field(default_factory=list)  # the further windows, when a stride was given
    unk_id: int | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def unknown_fraction(self) -> float:
        """The share of unknown pieces among those that stand for text; 0 for an empty text."""
        real = sum(b > a for a, b in self.offsets)
        return self.ids.count(self.unk_id) / real if real and self.unk_id is not None else 0.0


@dataclass(frozen=True)
class _Part:
    """The pieces of one text, before special tokens."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    words: list[int | None]

    def cut(self, start: int, stop: int) -> _Part:
        if start == 0 and stop >= len(self.ids):
            return self
        return _Part(self.ids[start:stop], self.offsets[start:stop], self.words[start:stop])


class Tokenizer:
    """Text to ids and back, for one vocabulary; nothing in it changes later, so threads may share it."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.kind: Kind = vocabulary.kind
        self.lower = vocabulary.lower
        self.vocab_size = len(vocabulary.tokens)
        self._ids = {token: i for i, token in enumerate(vocabulary.tokens)}
        names = build.SPECIALS.get(self.kind, ())
        special: list[int | None] = [self._ids[name] for name in names] or [0, None, None, None, None]
        self.pad_id: int = special[0] or 0
        self.unk_id, self.cls_id, self.sep_id, self.mask_id = special[1:]
        self._split: dict[int, tuple[list[int], list[int]]] = {}
        if self.kind != "phoneme":
            self._rust = build.runner(vocabulary)
        if self.kind == "unigram":
            self._inside = Rust(self._rust.model)  # the same model for text that goes on inside a word
            self._normalise = build.Normaliser(vocabulary)
            self._split = self._digit_commas()

    # --- making one ------------------------------------------------------------

    @classmethod
    def load(cls, folder: Path | str, vocab_size: int | None = None) -> Tokenizer:
        """The tokenizer in a model folder; `vocab_size` is the config's, and must fit the files."""
        folder = Path(folder)
        whole, spiece, vocab = (folder / name for name in ("tokenizer.json", "spiece.model", "vocab.txt"))
        options = _options(folder / "tokenizer_config.json")
        lower = options.get("do_lower_case", True)
        if whole.is_file():
            made = build.read_json(whole)
            path = whole
            if made.kind == "unigram" and spiece.is_file():
                original = build.read_spiece(spiece, lower=made.lower, keep_accents=not made.strip_accents)
                if original.tokens != made.tokens:
                    raise AlbertkitError(
                        f"tokenizer.json and spiece.model in {folder} hold different vocabularies "
                        f"({len(made.tokens)} "
                        f"and {len(original.tokens)} tokens): remove the one that does not belong to the "
                        "checkpoint"
                    )
                made = dataclasses.replace(made, spiece=original.spiece)
        elif spiece.is_file() and vocab.is_file():
            raise AlbertkitError(
                f"{folder} holds both spiece.model and vocab.txt: remove vocab.txt if the model is "
                "English ALBERT "
                "(SentencePiece), or spiece.model if it is Chinese or Korean ALBERT (WordPiece)"
            )
        elif spiece.is_file():
            path, accents = spiece, options.get("keep_accents", False)
            made = build.read_spiece(spiece, lower=lower, keep_accents=accents)
        elif vocab.is_file():
            path = vocab
            made = build.read_vocab(vocab, lower=lower, strip_accents=options.get("strip_accents"))
        else:
            raise AlbertkitError(
                f"{folder} holds no tokenizer: put tokenizer.json, spiece.model or vocab.txt of the checkpoint there"
            )
        if vocab_size is not None:
            check_size(path, made, vocab_size)
        return cls(made)

    @classmethod
    def from_spiece(cls, path: Path | str, lower: bool = True, keep_accents: bool = False) -> Tokenizer:
        """From a SentencePiece unigram model."""
        return cls(build.read_spiece(Path(path), lower=lower, keep_accents=keep_accents))

    @classmethod
    def from_vocab(cls, path: Path | str, lower: bool = True, strip_accents: bool | None = None) -> Tokenizer:
        """From a WordPiece vocabulary; by default accents go where case goes."""
        return cls(build.read_vocab(Path(path), lower=lower, strip_accents=strip_accents))

    @classmethod
    def from_symbols(cls, symbols: Sequence[str]) -> Tokenizer:
        """One character, one id, the pad first; characters not in the table are dropped (PL-BERT, Kokoro)."""
        return cls(build.symbols_vocabulary(list(symbols)))

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        kind: Kind = "unigram",
        vocab_size: int = 30000,
        *,
        lower: bool = True,
        keep_accents: bool = False,
        min_count: int = 2,
    ) -> Tokenizer:
        """A new vocabulary from texts, which are read once, one by one; `min_count` is for WordPiece only.

        WordPiece gives the same vocabulary each time. The unigram trainer of the tokenizers library does not
        quite: its scores change in the fourth digit from run to run, so keep the result with `save`.
        """
        return cls(build.train(texts, kind, vocab_size, lower=lower, keep_accents=keep_accents, min_count=min_count))

    # --- text to ids ------------------------------------------------------------

    def encode(self, text: str, pair: str | None = None, **options: Any) -> Encoding:
        """One text or pair; the options are those of `encode_batch`."""
        return self.encode_batch([text], None if pair is None else [pair], **options)[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest",
        stride: int | None = None,
        add_specials: bool = True,
        recognise_mask: bool = False,
    ) -> list[Encoding]:
        """Many texts or pairs at once, on all cores.

        max_length: the most tokens, special ones included; None keeps everything.
        truncation: what is cut when that is too few: the longer text, the first, the second, or nothing
        ("error").
        stride: instead of cutting, make windows over the second text (or the only one) that overlap by so
        many
            tokens; the first window is returned and holds the others in `overflow`.
        """
        if isinstance(texts, str | bytes) or isinstance(pairs, str | bytes):
            raise AlbertkitError("one text was given where many are needed: use encode, or pass a list of texts")
        firsts = [build.check_text(text) for text in texts]
        seconds = [build.check_text(text) for text in pairs] if pairs is not None else []
        if pairs is not None and len(seconds) != len(firsts):
            raise AlbertkitError(f"there are {len(firsts)} texts and {len(seconds)} pairs: give one pair for each text")
        if pairs is not None and self.kind == "phoneme":
            raise AlbertkitError("a phoneme model knows no pairs: pass one text")
        extra = 0 if not add_specials else 2 + (pairs is not None and self.cls_id is not None)
        self._check_options(max_length, truncation, stride, extra, pairs is not None)
        parts = self._parts(firsts + seconds, recognise_mask)
        room = None if max_length is None else max_length - extra
        ends: Iterable[_Part | None] = parts[len(firsts) :] if pairs is not None else [None] * len(firsts)
        return [
            self._windows(first, second, room, truncation, stride, add_specials)
            for first, second in zip(parts, ends, strict=False)
        ]

    def ids_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Only the ids, without special tokens, of many texts: the fastest way through a corpus."""
        clean = [build.check_text(text) for text in texts]
        if self.kind == "phoneme":
            return [self._symbols(text).ids for text in clean]
        if self.kind == "unigram":
            clean = [self._normalise(text)[0] for text in clean]
        result = [found.ids for found in self._rust.encode_batch_fast(clean, add_special_tokens=False)]
        for at, ids in enumerate(result):
            if self._split and not self._split.keys().isdisjoint(ids):
                result[at] = [new for i in ids for new in (self._split[i][0] if i in self._split else (i,))]
        return result

    def check_known(self, text: str) -> str | None:
        """A sentence to warn with when over half of the pieces are unknown; None when all is well."""
        share = self.encode(text).unknown_fraction
        if share <= 0.5:
            return None
        return (
            f"{share:.0%} of the pieces of {text[:30]!r} are unknown to this {self.kind} vocabulary of "
            f"{self.vocab_size} tokens: the text is probably in a language the model was not trained on"
        )

    # --- ids to text ------------------------------------------------------------

    def decode(self, ids: Iterable[int], skip_specials: bool = True) -> str:
        """The text of some ids, as far as it can be known: case, accents and odd spaces are gone."""
        skip = {self.pad_id, self.cls_id, self.sep_id, self.mask_id} if skip_specials else set()
        tokens = self.tokens(i for i in ids if i not in skip)
        if self.kind == "unigram":
            special = self.vocabulary.hidden
            text = "".join(f" {t} " if self._ids[t] in special else t.replace(SPACE, " ") for t in tokens)
            return re.sub(" +", " ", text).strip()
        if self.kind == "wordpiece":
            return _BETWEEN_CJK.sub("", str(self._rust.decoder.decode(tokens))) if tokens else ""
        return "".join(tokens)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The token of each id."""
        found = []
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise AlbertkitError(f"id {i} is not in the vocabulary: ids go from 0 to {self.vocab_size - 1}")
            found.append(self.vocabulary.tokens[i])
        return found

    def id_of(self, token: str) -> int | None:
        """The id of a token, or None when the vocabulary lacks it."""
        return self._ids.get(token) if token else None

    # --- to a folder ------------------------------------------------------------

    def save(self, folder: Path | str, model_max_length: int = 512) -> None:
        """Write tokenizer.json, tokenizer_config.json, and spiece.model or vocab.txt where there was one."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        made = self.vocabulary
        keys = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        names = build.SPECIALS.get(self.kind, made.tokens[:1])
        accents = {"keep_accents": not made.strip_accents} if self.kind == "unigram" else {}
        accents |= {"strip_accents": made.strip_accents} if self.kind == "wordpiece" else {}
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            "model_max_length": model_max_length,
            "do_lower_case": self.lower,
            **accents,
            **dict(zip(keys, names, strict=False)),
        }
        (folder / "tokenizer.json").write_text(build.to_json(made), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if made.spiece:
            (folder / "spiece.model").write_bytes(made.spiece)
        if self.kind == "wordpiece":
            (folder / "vocab.txt").write_bytes("".join(token + "\n" for token in made.tokens).encode())

    def fingerprint(self) -> str:
        """A hash of the vocabulary and the rules: equal fingerprints give equal ids."""
        made = self.vocabulary
        table = hashlib.sha256(made.charsmap).hexdigest()
        rules = [made.kind, made.tokens, made.scores, made.lower, made.strip_accents, table]
        return hashlib.sha256(json.dumps(rules).encode()).hexdigest()

    # --- inside ------------------------------------------------------------

    def _parts(self, texts: list[str], recognise_mask: bool) -> list[_Part]:
        if recognise_mask and self.mask_id is not None and any("[MASK]" in text for text in texts):
            return [self._masked(t) if "[MASK]" in t else self._parts([t], False)[0] for t in texts]
        if self.kind == "phoneme":
            return [self._symbols(text) for text in texts]
        if self.kind == "wordpiece":
            found = self._rust.encode_batch(texts, add_special_tokens=False)
            return [_Part(e.ids, e.offsets, e.word_ids) for e in found]
        ready = [self._normalise(text) for text in texts]
        found = self._rust.encode_batch([text for text, _ in ready], add_special_tokens=False)
        return [self._unigram(e, text, spans) for e, (text, spans) in zip(found, ready, strict=True)]

    def _unigram(self, found: Any, text: str, spans: list[tuple[int, int]] | None) -> _Part:
        """Rust's result with offsets into the user's text, without spaces, and the digit-comma rule."""
        ids, words = found.ids, found.word_ids
        offsets = [(a + 1, b) if text[a] == " " else (a, b) for a, b in found.offsets]
        lone = self._ids.get(SPACE)
        if ids and ids[0] == lone:
            offsets[0] = (0, 0)  # a "▁" before a piece that is always apart stands for no character
        if spans is not None:
            offsets = [(spans[a][0], spans[b - 1][1] if b > a else spans[a][0]) for a, b in offsets]
        if self._split.keys().isdisjoint(ids):
            return _Part(ids, offsets, words)
        out = _Part([], [], [])
        for i, (start, stop), word in zip(ids, offsets, words, strict=True):
            new, sizes = self._split.get(i, ([i], [-1]))
            at = start
            for piece, size in zip(new, sizes, strict=True):
                end = stop if size < 0 else max(at, min(at + size, stop - 1))
                out.ids.append(piece)
                out.offsets.append((at, start if piece == lone else end))
                out.words.append(word)
                at = end
        return out

    def _digit_commas(self) -> dict[int, tuple[list[int], list[int]]]:
        """For each piece such as "▁2010,": the ids that replace it, and their lengths (-1: the rest)."""
        hidden = self.vocabulary.hidden
        old = [(i, p) for i, p in enumerate(self.vocabulary.tokens) if build.comma_after_digit(p) and i not in hidden]
        texts = [self._normalise(piece[:-1].replace(SPACE, ""))[0] for _, piece in old]
        table = {}
        for (i, piece), found in zip(old, self._rust.encode_batch(texts, add_special_tokens=False), strict=True):
            pieces = self.tokens(found.ids)
            sizes = [0 if p == SPACE else b - a for p, (a, b) in zip(pieces, found.offsets, strict=True)]
            if pieces and piece[0] != SPACE and pieces[0][0] == SPACE:
                pieces[0] = pieces[0][1:]
            new = [self._ids.get(p, self.unk_id or 0) for p in [*pieces, ","] if p]
            table[i] = (new, [s for p, s in zip(pieces, sizes, strict=True) if p] + [-1])
        return table

    def _masked(self, text: str) -> _Part:
        """A text in which [MASK] is the mask token; what follows it directly goes on inside the word."""
        out, at = _Part([], [], []), 0
        for number, piece in enumerate(text.split("[MASK]")):
            if number:
                self._append(out, _Part([self.mask_id or 0], [(0, len("[MASK]"))], [0]), at)
                at += len("[MASK]")
            head = len(piece.split(maxsplit=1)[0]) if piece.strip() and not piece[0].isspace() else 0
            if number and head and self.kind == "unigram":
                normal, spans = self._normalise(piece[:head])
                found = self._inside.encode(normal, add_special_tokens=False)
                part = self._unigram(found, normal, spans)
                self._append(out, _Part(part.ids, part.offsets, [0] * len(part.ids)), at)
                self._append(out, self._parts([piece[head:]], False)[0], at + head)
            else:
                self._append(out, self._parts([piece], False)[0], at)
            at += len(piece)
        return out

    @staticmethod
    def _append(out: _Part, part: _Part, shift: int) -> None:
        word = next((w + 1 for w in reversed(out.words) if w is not None), 0)
        out.ids.extend(part.ids)
        out.offsets.extend((a + shift, b + shift) for a, b in part.offsets)
        out.words.extend(None if w is None else w + word for w in part.words)

    def _symbols(self, text: str) -> _Part:
        out, word = _Part([], [], []), 0
        for at, c in enumerate(text.lower() if self.lower and len(text.lower()) == len(text) else text):
            word += at > 0 and c.isspace()
            if c in self._ids:
                out.ids.append(self._ids[c])
                out.offsets.append((at, at + 1))
                out.words.append(word)
        return out

    def _windows(
        self,
        first: _Part,
        second: _Part | None,
        room: int | None,
        truncation: str,
        stride: int | None,
        specials: bool,
    ) -> Encoding:
        a, b = len(first.ids), len(second.ids) if second else 0
        if room is None or a + b <= room:
            return self._finish(first, second, specials)
        if stride is None:
            a, b = _shorten(a, b, room, truncation)
            return self._finish(first.cut(0, a), second.cut(0, b) if second else None, specials)
        size = room if second is None else room - a
        if size <= stride:
            raise AlbertkitError(
                f"windows of {size} tokens cannot overlap by {stride} (the first text takes {room - size} "
                f"of {room}): "
                "raise max_length, lower stride or shorten the first text"
            )
        long = first if second is None else second
        starts = range(0, max(len(long.ids) - stride, 1), size - stride)
        views = [long.cut(start, start + size) for start in starts]
        made = [self._finish(v, None, specials) if second is None else self._finish(first, v, specials) for v in views]
        return dataclasses.replace(made[0], overflow=made[1:])

    def _finish(self, first: _Part, second: _Part | None, specials: bool) -> Encoding:
        """Put the special tokens around the pieces."""
        a, b = len(first.ids), len(second.ids) if second else 0
        if not specials:
            ids, offsets, words = list(first.ids), list(first.offsets), list(first.words)
            if second:
                ids, offsets, words = ids + second.ids, offsets + second.offsets, words + second.words
            return Encoding(ids, [0] * a + [1] * b, offsets, [False] * (a + b), words, unk_id=self.unk_id)
        start = self.pad_id if self.cls_id is None else self.cls_id  # Kokoro puts its pad at both ends
        end = self.pad_id if self.sep_id is None else self.sep_id
        ids = [start, *first.ids, end]
        offsets, words = [(0, 0), *first.offsets, (0, 0)], [None, *first.words, None]
        flags, segments = [True, *[False] * a, True], [0] * (a + 2)
        if second is not None:
            ids += [*second.ids, end]
            offsets += [*second.offsets, (0, 0)]
            words += [*second.words, None]
            flags += [*[False] * b, True]
            segments += [1] * (b + 1)
        return Encoding(ids, segments, offsets, flags, words, unk_id=self.unk_id)

    @staticmethod
    def _check_options(max_length: int | None, truncation: str, stride: int | None, extra: int, pair: bool) -> None:
        if truncation not in ("longest", "first", "second", "error"):
            raise AlbertkitError(f"truncation is {truncation!r}: choose 'longest', 'first', 'second' or 'error'")
        if truncation == "second" and not pair:
            raise AlbertkitError("truncation is 'second' and there is no second text: choose 'longest' or 'first'")
        if max_length is not None and (type(max_length) is not int or max_length < extra + 1 + pair):
            raise AlbertkitError(
                f"max_length is {max_length!r} and must be at least {extra + 1 + pair}: {extra} special "
                "tokens and "
                "one token of each text"
            )
        if stride is not None and (type(stride) is not int or stride < 0 or max_length is None):
            raise AlbertkitError(
                f"stride is {stride!r} with max_length {max_length!r}: give a stride of 0 or more, and a max_length"
            )
        if stride is not None and max_length is not None and stride >= max_length - extra:
            raise AlbertkitError(f"stride is {stride} and must be below {max_length - extra}, the pieces in a window")


def _shorten(a: int, b: int, room: int, truncation: str) -> tuple[int, int]:
    """The lengths that two texts of a and b pieces keep; ties go against the second, as in the original."""
    over = a + b - room
    if truncation == "longest":
        gap = min(over, abs(a - b))
        a, b, over = (a - gap, b, over - gap) if a > b else (a, b - gap, over - gap)
        return a - over // 2, b - (over + 1) // 2
    if truncation == "error":
        raise AlbertkitError(
            f"the text has {a + b} pieces and {room} fit: raise max_length, or choose truncation or a stride"
        )
    cut, kept = (a, b) if truncation == "first" else (b, a)
    if cut <= over:
        raise AlbertkitError(
            f"the {truncation} text has {cut} pieces and the other {kept}, and {room} fit: cutting the "
            f"{truncation} "
            "leaves nothing of it, so choose truncation 'longest' or raise max_length"
        )
    return (a - over, b) if truncation == "first" else (a, b - over)


def _options(path: Path) -> dict[str, Any]:
    """What a tokenizer_config.json says about case and accents."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(build.read_bytes(path).decode("utf-8"))
        found = {k: data[k] for k in ("do_lower_case", "keep_accents", "strip_accents") if data.get(k) is not None}
    except (ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, AlbertkitError):
            raise
        raise AlbertkitError(f"{path} is not a JSON object ({error}): correct it or remove it") from None
    for key, value in found.items():
        if not isinstance(value, bool):
            raise AlbertkitError(f"{key} in {path} is {value!r} and must be true or false: correct it")
    return found


def check_size(path: Path, vocabulary: Vocabulary, vocab_size: int) -> None:
    """A table of embeddings may be padded, but not smaller than the vocabulary, nor of quite another size."""
    size = len(vocabulary.tokens)
    if size <= vocab_size <= max(size * 1.1, size + 1024):
        return
    raise AlbertkitError(
        f"{path} holds {size} tokens and the model's vocab_size is {vocab_size}: they do not belong "
        "together, so use "
        "the tokenizer files that came with the checkpoint"
    )
