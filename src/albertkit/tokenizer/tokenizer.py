"""The class that users hold: text to ids and back, from and to a folder.

In: texts, or the files of a tokenizer. Out: `Encoding`s, ids, texts, or files. Before this file: the others of this
package, each of which does one thing for it; after it: everything that runs or trains a model.
"""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError
from albertkit.tokenizer import tokenizer_files as folder_files
from albertkit.tokenizer import vocabulary
from albertkit.tokenizer.encoding import Encoding, EncodingTemplate, TokenSpans, Truncation, check_lengths
from albertkit.tokenizer.normalizer import SPACE, check_text
from albertkit.tokenizer.tokenizer_json import wordpiece_tokenizer
from albertkit.tokenizer.unigram import Unigram
from albertkit.tokenizer.vocabulary import SPECIALS, Kind, Vocabulary

_CJK = r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60]"
_BETWEEN_CJK = re.compile(f"(?<={_CJK}) (?={_CJK})")


class Tokenizer:
    """Text to ids and back, for one vocabulary; threads may share it."""

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
            self._unigram = Unigram(vocabulary)
        elif self.kind == "wordpiece":
            self._bert = wordpiece_tokenizer(vocabulary)

    # --- making one ------------------------------------------------------------

    @classmethod
    def load(cls, folder: Path | str, vocab_size: int | None = None, *, trusted: bool = False) -> Tokenizer:
        """The tokenizer in a model folder; `vocab_size` is the config's, and must fit the files.

        trusted: the files were written together (their hashes were checked), so they need not be compared.
        """
        with _no_collection():
            return cls(folder_files.read(Path(folder), vocab_size, trusted))

    @classmethod
    def from_spiece(cls, path: Path | str, lower: bool = True, keep_accents: bool = False) -> Tokenizer:
        """From a SentencePiece unigram model."""
        with _no_collection():
            return cls(vocabulary.read_spiece(Path(path), lower=lower, keep_accents=keep_accents))

    @classmethod
    def from_vocab(cls, path: Path | str, lower: bool = True, strip_accents: bool | None = None) -> Tokenizer:
        """From a WordPiece vocabulary; by default accents go where case goes."""
        return cls(vocabulary.read_vocab(Path(path), lower=lower, strip_accents=strip_accents))

    @classmethod
    def from_symbols(cls, symbols: Sequence[str]) -> Tokenizer:
        """One character, one id, the pad first; characters not in the table are dropped (PL-BERT, Kokoro)."""
        return cls(vocabulary.symbols_vocabulary(list(symbols)))

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
        charsmap: bytes = b"",
    ) -> Tokenizer:
        """A new vocabulary from texts, which are read once, one by one; `min_count` is for WordPiece only.

        split_scripts: for unigram vocabularies of languages without spaces; tokens cross neither punctuation nor scripts,
            and only runs of letters and digits begin with "▁".
        charsmap: a normalisation table that SentencePiece compiled; for unigram only.

        The same texts give the same vocabulary. (The unigram trainer of the tokenizers library has random order in it:
        we undo what we know of, and saw no difference in our trials, but it promises nothing; keep the result.)
        """
        from albertkit.tokenizer.train_vocabulary import train  # here, since few programs train one

        rules = {"lower": lower, "keep_accents": keep_accents, "split_scripts": split_scripts, "charsmap": charsmap}
        return cls(train(texts, kind, vocab_size, min_count=min_count, **rules))  # type: ignore[arg-type]

    # --- text to ids ------------------------------------------------------------

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest",
        stride: int | None = None,
        add_specials: bool = True,
        recognize_mask: bool = False,
    ) -> Encoding:
        """One text or pair; the options are those of `encode_batch`."""
        return self.encode_batch(
            [text],
            None if pair is None else [pair],
            max_length=max_length,
            truncation=truncation,
            stride=stride,
            add_specials=add_specials,
            recognize_mask=recognize_mask,
        )[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest",
        stride: int | None = None,
        add_specials: bool = True,
        recognize_mask: bool = False,
    ) -> list[Encoding]:
        """Many texts or pairs at once.

        max_length: the most tokens, special ones included; None keeps everything.
        truncation: what is cut when that is too few: the longer text, the first, the second, or nothing ("error").
        stride: instead of cutting, make windows over the second text (or the only one) that overlap by so many tokens;
            the first window is returned and holds the others in `overflow`.
        """
        if isinstance(texts, str | bytes) or isinstance(pairs, str | bytes):
            raise AlbertkitError("one text was given where many are needed: use encode, or pass a list of texts")
        firsts = [check_text(text) for text in texts]
        seconds = [check_text(text) for text in pairs] if pairs is not None else []
        if pairs is not None and len(seconds) != len(firsts):
            raise AlbertkitError(f"there are {len(firsts)} texts and {len(seconds)} pairs: give one pair for each text")
        if pairs is not None and self.kind == "phoneme":
            raise AlbertkitError("a phoneme model knows no pairs: pass one text")
        extra = 0 if not add_specials else 2 + (pairs is not None)
        check_lengths(max_length, truncation, stride, extra, pairs is not None)
        layout = EncodingTemplate(
            start_id=(self.pad_id if self.cls_id is None else self.cls_id) if add_specials else None,
            end_id=(self.pad_id if self.sep_id is None else self.sep_id) if add_specials else None,  # as Kokoro has it
            unk_id=self.unk_id,
            room=None if max_length is None else max_length - extra,
            truncation=truncation,
            stride=stride,
        )
        parts = self._parts(firsts + seconds, recognize_mask)
        if pairs is None:
            return [layout(part, None) for part in parts]
        return [layout(a, b) for a, b in zip(parts[: len(firsts)], parts[len(firsts) :], strict=True)]

    def ids_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Only the ids, without special tokens, of many texts: the fastest way through a corpus."""
        clean = [check_text(text) for text in texts]
        if self.kind == "unigram":
            return self._unigram.ids(clean)
        if self.kind == "wordpiece":
            return [found.ids for found in self._bert.encode_batch_fast(clean, add_special_tokens=False)]
        return [self._symbols(text).ids for text in clean]

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
            return _BETWEEN_CJK.sub("", str(self._bert.decoder.decode(tokens))) if tokens else ""
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

    def save(self, folder: Path | str, model_max_length: int = 512, compact: bool = False) -> None:
        """Write tokenizer.json, tokenizer_config.json, and spiece.model or vocab.txt where there was one.

        compact: for albertkit alone, so tokenizer.json is left out where spiece.model says the same.
        """
        folder_files.write(self.vocabulary, Path(folder), model_max_length, compact)

    def fingerprint(self) -> str:
        """A hash of the vocabulary and the rules: equal fingerprints give equal ids."""
        made = self.vocabulary
        table = hashlib.sha256(made.charsmap).hexdigest()
        rules = [made.kind, made.tokens, made.scores, made.lower, made.strip_accents, table]
        rules += [made.split_scripts] if made.split_scripts else []
        return hashlib.sha256(json.dumps(rules).encode()).hexdigest()

    # --- inside ------------------------------------------------------------

    def _parts(self, texts: list[str], recognize_mask: bool) -> list[TokenSpans]:
        if recognize_mask and self.mask_id is not None and any("[MASK]" in text for text in texts):
            return [self._masked(t) if "[MASK]" in t else self._parts([t], False)[0] for t in texts]
        if self.kind == "unigram":
            return self._unigram.parts(texts)
        if self.kind == "wordpiece":
            found: list[Any] = self._bert.encode_batch(texts, add_special_tokens=False)
            return [TokenSpans(e.ids, e.offsets, e.word_ids) for e in found]
        return [self._symbols(text) for text in texts]

    def _masked(self, text: str) -> TokenSpans:
        """A text in which [MASK] is the mask token; what follows it directly goes on inside the word."""
        out, at = TokenSpans([], [], []), 0
        for number, piece in enumerate(text.split("[MASK]")):
            if number:
                out.append(TokenSpans([self.mask_id or 0], [(0, len("[MASK]"))], [0]), at)
                at += len("[MASK]")
            head = len(piece.split(maxsplit=1)[0]) if piece.strip() and not piece[0].isspace() else 0
            if number and head and self.kind == "unigram":
                out.append(self._unigram.inside(piece[:head]), at)
                out.append(self._parts([piece[head:]], False)[0], at + head)
            else:
                out.append(self._parts([piece], False)[0], at)
            at += len(piece)
        return out

    def _symbols(self, text: str) -> TokenSpans:
        out, word = TokenSpans([], [], []), 0
        for at, c in enumerate(text.lower() if self.lower and len(text.lower()) == len(text) else text):
            word += at > 0 and c.isspace()
            if c in self._ids:
                out.ids.append(self._ids[c])
                out.offsets.append((at, at + 1))
                out.words.append(word)
        return out


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let Python's garbage collector wait: going through 30,000 new tokens again and again is a quarter of the loading."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
