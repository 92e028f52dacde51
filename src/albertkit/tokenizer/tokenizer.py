"""`Tokenizer`: text to token ids and back.

In: texts, or a folder, whose files decide the kind of tokenizer. Out: `Encoding`s, ids, texts, or files.
Before this file: `unigram.py`, `wordpiece.py`, `tokenizer_files.py`. After it: everything that runs or trains a model.
"""

from __future__ import annotations

import gc
import hashlib
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from albertkit.errors import AlbertkitError, check_path, need
from albertkit.tokenizer.normalizer import SPACE, check_text
from albertkit.tokenizer.tokenizer_files import read_folder, write_folder
from albertkit.tokenizer.unigram import TokenSpans, Unigram
from albertkit.tokenizer.vocabulary import SPECIALS, Kind, Vocabulary, read_spiece, read_vocab, symbols_vocabulary
from albertkit.tokenizer.wordpiece import WordPiece, join_tokens

_CJK = r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60]"
_BETWEEN_CJK = re.compile(f"(?<={_CJK}) (?={_CJK})")


@dataclass(frozen=True)
class Encoding:
    """One text or pair as a model input; all lists have the same length."""

    ids: list[int]
    segments: list[int]  # 0 in the first text, 1 in the second
    offsets: list[tuple[int, int]]  # characters of the text of that segment; (0, 0) at special tokens
    specials: list[bool]  # True at [CLS] and [SEP]
    unk_id: int | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def unknown_fraction(self) -> float:
        """The share of unknown tokens among the tokens that cover text; 0 for an empty text."""
        text_tokens = sum(end > start for start, end in self.offsets)
        return self.ids.count(self.unk_id) / text_tokens if text_tokens and self.unk_id is not None else 0.0


class Tokenizer:
    """Text to ids and back, for one vocabulary. It is thread-safe.

    >>> from albertkit import Albert
    >>> tokenizer = Albert().tokenizer
    >>> encoding = tokenizer.encode("a cat sat")
    >>> tokenizer.decode(encoding.ids)
    'a cat sat'
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        self.kind: Kind = vocabulary.kind
        self.lower = vocabulary.lower
        self.vocab_size = len(vocabulary.tokens)
        self._ids = vocabulary.ids
        names = SPECIALS.get(self.kind, ())
        special: list[int | None] = [self._ids[name] for name in names] or [0, None, None, None, None]
        self.pad_id: int = special[0] or 0
        self.unk_id, self.cls_id, self.sep_id, self.mask_id = special[1:]
        if self.kind == "unigram":
            self.model: Unigram | WordPiece | None = Unigram(vocabulary)
        else:
            self.model = WordPiece(vocabulary) if self.kind == "wordpiece" else None

    # --- constructors ------------------------------------------------------------

    @classmethod
    def load(cls, folder: Path | str, vocab_size: int | None = None, *, trusted: bool = False) -> Tokenizer:
        """Load the tokenizer of a model folder. `vocab_size` is that of the config and must match the files.

        trusted: the files were written together (their hashes were checked), so they are not compared.
        """
        check_path("folder", folder)
        with _pause_garbage_collection():
            return cls(read_folder(Path(folder), vocab_size, trusted))

    @classmethod
    def from_spiece(cls, path: Path | str, lower: bool = True, keep_accents: bool = False) -> Tokenizer:
        """From a SentencePiece unigram model."""
        with _pause_garbage_collection():
            return cls(read_spiece(Path(path), lower=lower, keep_accents=keep_accents))

    @classmethod
    def from_vocab(cls, path: Path | str, lower: bool = True, strip_accents: bool | None = None) -> Tokenizer:
        """From a WordPiece vocabulary; by default accents are stripped if texts are lower-cased."""
        return cls(read_vocab(Path(path), lower=lower, strip_accents=strip_accents))

    @classmethod
    def from_symbols(cls, symbols: Sequence[str]) -> Tokenizer:
        """One character per id, the padding symbol first; other characters are dropped (PL-BERT, Kokoro)."""
        return cls(symbols_vocabulary(list(symbols)))

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
        split_scripts: bool = False,
    ) -> Tokenizer:
        """Train a new vocabulary. The texts are read once, one by one.

        min_count: how often a pair of tokens must occur to be merged; for WordPiece only.
        split_scripts: for unigram vocabularies of languages without spaces; tokens cross neither punctuation nor
            scripts, and only runs of letters and digits begin with "▁".

        The tokenizers library trains it; the extra `train` installs it. Its unigram trainer does not guarantee the same
        vocabulary for the same texts, so keep the result.
        """
        need("tokenizers", "train", "training a vocabulary")
        from albertkit.tokenizer import train_vocabulary  # imported here, since it is rarely needed

        if kind == "unigram":
            return cls(train_vocabulary.train_unigram(texts, vocab_size, lower, not keep_accents, split_scripts))
        if kind != "wordpiece" or split_scripts:
            raise AlbertkitError(f"kind is {kind!r}. Choose 'unigram', or 'wordpiece' without split_scripts.")
        return cls(train_vocabulary.train_wordpiece(texts, vocab_size, lower, not keep_accents, min_count))

    # --- text to ids ------------------------------------------------------------

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        max_length: int | None = None,
        add_specials: bool = True,
        recognize_mask: bool = False,
    ) -> Encoding:
        """One text or pair; the options are those of `encode_batch`."""
        pairs = None if pair is None else [pair]
        return self.encode_batch(
            [text], pairs, max_length=max_length, add_specials=add_specials, recognize_mask=recognize_mask
        )[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        add_specials: bool = True,
        recognize_mask: bool = False,
    ) -> list[Encoding]:
        """Many texts or pairs at once.

        max_length: the maximum number of tokens, with special tokens. The longer text of a pair is truncated first.
        add_specials: add [CLS] and [SEP].
        recognize_mask: "[MASK]" in a text is the mask token; otherwise it is ordinary text.
        """
        if isinstance(texts, str | bytes) or isinstance(pairs, str | bytes):
            raise AlbertkitError("texts is a single text. Use encode, or pass a list of texts.")
        texts, pairs = list(texts), None if pairs is None else list(pairs)
        if pairs is not None and len(pairs) != len(texts):
            raise AlbertkitError(f"there are {len(texts)} texts but {len(pairs)} pairs. Pass one pair for each text.")
        if pairs is not None and self.kind == "phoneme":
            raise AlbertkitError("a phoneme model does not support pairs. Pass one text.")
        extra = 0 if not add_specials else 2 + (pairs is not None)
        least = extra + 1 + (pairs is not None)
        if max_length is not None and (type(max_length) is not int or max_length < least):
            raise AlbertkitError(
                f"max_length={max_length!r} is too small for the special tokens and one token per text. "
                f"Pass at least {least}."
            )
        spans = self._spans([check_text(text) for text in [*texts, *(pairs or ())]], recognize_mask)
        rows: Iterable[Sequence[TokenSpans]] = zip(spans[: len(texts)], spans[len(texts) :], strict=True)
        if pairs is None:
            rows = ([first] for first in spans)
        limit = None if max_length is None else max_length - extra
        return [self._encoding(_truncate(row, limit), add_specials) for row in rows]

    def _encoding(self, texts: Sequence[TokenSpans], add_specials: bool) -> Encoding:
        """Put the special tokens around the texts."""
        cls = self.pad_id if self.cls_id is None else self.cls_id
        sep = self.pad_id if self.sep_id is None else self.sep_id  # as in Kokoro
        out = Encoding([], [], [], [], unk_id=self.unk_id)

        def add(spans: TokenSpans, segment: int, special: bool = False) -> None:
            out.ids.extend(spans.ids)
            out.segments.extend([segment] * len(spans.ids))
            out.offsets.extend(spans.offsets)
            out.specials.extend([special] * len(spans.ids))

        if add_specials:
            add(TokenSpans([cls], [(0, 0)]), 0, special=True)
        for segment, spans in enumerate(texts):
            add(spans, segment)
            if add_specials:
                add(TokenSpans([sep], [(0, 0)]), segment, special=True)
        return out

    def ids_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Only the ids of many texts, without special tokens; the fastest method for a corpus."""
        clean = [check_text(text) for text in texts]
        return self.model.ids(clean) if self.model else [self._symbol_spans(text).ids for text in clean]

    # --- ids to text ------------------------------------------------------------

    def decode(self, ids: Iterable[int], skip_specials: bool = True) -> str:
        """The text of ids; case, accents and repeated spaces are lost."""
        skip = {self.pad_id, self.cls_id, self.sep_id, self.mask_id} if skip_specials else set()
        tokens = self.tokens(i for i in ids if i not in skip)
        if self.kind == "unigram":
            special = self.vocabulary.hidden
            text = "".join(f" {t} " if self._ids[t] in special else t.replace(SPACE, " ") for t in tokens)
            return re.sub(" +", " ", text).strip()
        if self.kind == "wordpiece":
            return _BETWEEN_CJK.sub("", join_tokens(tokens))
        return "".join(tokens)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The token of each id."""
        tokens = []
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise AlbertkitError(f"id {i} is not in the vocabulary. Pass ids from 0 to {self.vocab_size - 1}.")
            tokens.append(self.vocabulary.tokens[i])
        return tokens

    def id_of(self, token: str) -> int | None:
        """The id of a token, or None if it is not in the vocabulary."""
        return self._ids.get(token) if token else None

    # --- to a folder ------------------------------------------------------------

    def save(self, folder: Path | str, model_max_length: int = 512, compact: bool = False) -> None:
        """Write tokenizer.json, tokenizer_config.json, and the spiece.model or vocab.txt it was read from.

        compact: for albertkit only; omits tokenizer.json if spiece.model has the same content.
        """
        write_folder(self.vocabulary, Path(folder), model_max_length, compact)

    def fingerprint(self) -> str:
        """A hash of the vocabulary and the rules: equal fingerprints give equal ids."""
        v = self.vocabulary
        rules = [v.kind, sorted(v.hidden), v.unk_id, v.lower, v.strip_accents, v.split_scripts]
        total = hashlib.sha256(json.dumps([rules, v.tokens]).encode())
        for data in (array("d", v.scores).tobytes(), v.charsmap):
            total.update(len(data).to_bytes(8, "little") + data)
        return total.hexdigest()

    # --- tokens of each kind ------------------------------------------------------------

    def _spans(self, texts: list[str], recognize_mask: bool) -> list[TokenSpans]:
        if recognize_mask and self.mask_id is not None and any("[MASK]" in text for text in texts):
            return [self._masked_spans(t) if "[MASK]" in t else self._spans([t], False)[0] for t in texts]
        return self.model.spans(texts) if self.model else [self._symbol_spans(text) for text in texts]

    def _masked_spans(self, text: str) -> TokenSpans:
        """A text in which [MASK] is the mask token; text directly after it continues the word."""
        out, at = TokenSpans([], []), 0
        for number, between in enumerate(text.split("[MASK]")):
            if number:
                out.append(TokenSpans([self.mask_id or 0], [(0, len("[MASK]"))]), at)
                at += len("[MASK]")
            head = len(between.split(maxsplit=1)[0]) if between.strip() and not between[0].isspace() else 0
            if number and head and isinstance(self.model, Unigram):
                out.append(self.model.spans_inside_word(between[:head]), at)
                out.append(self._spans([between[head:]], False)[0], at + head)
            else:
                out.append(self._spans([between], False)[0], at)
            at += len(between)
        return out

    def _symbol_spans(self, text: str) -> TokenSpans:
        lowered = text.lower() if self.lower and len(text.lower()) == len(text) else text
        places = [at for at, c in enumerate(lowered) if c in self._ids]
        return TokenSpans([self._ids[lowered[at]] for at in places], [(at, at + 1) for at in places])


def _truncate(texts: Sequence[TokenSpans], limit: int | None) -> Sequence[TokenSpans]:
    """One or two texts with at most `limit` tokens. The longer text is truncated first, of equal ones the second."""
    lengths = [len(spans.ids) for spans in texts]
    over = 0 if limit is None else sum(lengths) - limit
    if over <= 0:
        return texts
    if len(texts) == 1:
        return [texts[0].first(lengths[0] - over)]
    a, b = lengths
    gap = min(over, abs(a - b))
    a, b, over = (a - gap, b, over - gap) if a > b else (a, b - gap, over - gap)
    return [texts[0].first(a - over // 2), texts[1].first(b - (over + 1) // 2)]


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Disable garbage collection, which takes a quarter of the time to load 30,000 tokens."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
