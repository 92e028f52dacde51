"""`Tokenizer`: text to token ids and back, and the tokenizer files of a model folder.

In: texts, or a folder, whose files decide the kind of tokenizer. Out: `Encoding`s, ids, texts, or files.
Before this file: the other files of this package. After it: everything that runs or trains a model.
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError
from albertkit.tokenizer.encoding import Encoding, EncodingTemplate, TokenSpans, Truncation, check_lengths
from albertkit.tokenizer.normalizer import SPACE, check_text
from albertkit.tokenizer.tokenizer_json import read_json, to_json, wordpiece_tokenizer
from albertkit.tokenizer.unigram import Unigram
from albertkit.tokenizer.vocabulary import (
    SPECIALS,
    Kind,
    Vocabulary,
    check_size,
    read_bytes,
    read_spiece,
    read_vocab,
    symbols_vocabulary,
)

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

    # --- constructors ------------------------------------------------------------

    @classmethod
    def load(cls, folder: Path | str, vocab_size: int | None = None, *, trusted: bool = False) -> Tokenizer:
        """Load the tokenizer of a model folder; `vocab_size` is the config's and must fit the files.

        trusted: the files were written together (their hashes were checked), so they are not compared.
        """
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
        charsmap: bytes = b"",
    ) -> Tokenizer:
        """Train a new vocabulary; the texts are read once, one by one.

        min_count: how often a pair of tokens must occur to be merged; for WordPiece only.
        split_scripts: for unigram vocabularies of languages without spaces; tokens cross neither punctuation nor
            scripts, and only runs of letters and digits begin with "▁".
        charsmap: a compiled normalisation table of SentencePiece; for unigram only.

        The same texts gave the same vocabulary in all our trials. The unigram trainer of the tokenizers library does
        not guarantee it, so keep the result.
        """
        from albertkit.tokenizer.train_vocabulary import train  # imported here, since few programs need it

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

        max_length: the maximum number of tokens, special ones included; None: no limit.
        truncation: which text is cut if there are more: the longer one, the first, the second, or none ("error").
        stride: instead of cutting, make windows over the second text (or the only one) that overlap by this many
            tokens; the first window is returned and has the others in `overflow`.
        add_specials: add [CLS] and [SEP].
        recognize_mask: "[MASK]" in a text is the mask token; otherwise it is ordinary text.
        """
        if isinstance(texts, str | bytes) or isinstance(pairs, str | bytes):
            raise AlbertkitError("texts is one text: use encode, or pass a list of texts")
        firsts = [check_text(text) for text in texts]
        seconds = [check_text(text) for text in pairs] if pairs is not None else []
        if pairs is not None and len(seconds) != len(firsts):
            raise AlbertkitError(f"there are {len(firsts)} texts and {len(seconds)} pairs: pass one pair for each text")
        if pairs is not None and self.kind == "phoneme":
            raise AlbertkitError("a phoneme model takes no pairs: pass one text")
        extra = 0 if not add_specials else 2 + (pairs is not None)
        check_lengths(max_length, truncation, stride, extra, pairs is not None)
        template = EncodingTemplate(
            start_id=(self.pad_id if self.cls_id is None else self.cls_id) if add_specials else None,
            end_id=(self.pad_id if self.sep_id is None else self.sep_id) if add_specials else None,  # as Kokoro has it
            unk_id=self.unk_id,
            max_tokens=None if max_length is None else max_length - extra,
            truncation=truncation,
            stride=stride,
        )
        spans = self._spans(firsts + seconds, recognize_mask)
        if pairs is None:
            return [template(first, None) for first in spans]
        return [template(a, b) for a, b in zip(spans[: len(firsts)], spans[len(firsts) :], strict=True)]

    def ids_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Only the ids of many texts, without special tokens; the fastest method for a corpus."""
        clean = [check_text(text) for text in texts]
        if self.kind == "unigram":
            return self._unigram.ids(clean)
        if self.kind == "wordpiece":
            return [found.ids for found in self._bert.encode_batch_fast(clean, add_special_tokens=False)]
        return [self._symbol_spans(text).ids for text in clean]

    def check_known(self, text: str) -> str | None:
        """A warning if over half of the tokens are unknown, else None."""
        share = self.encode(text).unknown_fraction
        if share <= 0.5:
            return None
        return (
            f"{share:.0%} of the tokens of {text[:30]!r} are unknown to this {self.kind} vocabulary of "
            f"{self.vocab_size} tokens: the text is probably in a language that the model was not trained on"
        )

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
        vocabulary = self.vocabulary
        table = hashlib.sha256(vocabulary.charsmap).hexdigest()
        rules: list[Any] = [vocabulary.kind, vocabulary.tokens, vocabulary.scores]
        rules += [vocabulary.lower, vocabulary.strip_accents, table]
        rules += [vocabulary.split_scripts] if vocabulary.split_scripts else []
        return hashlib.sha256(json.dumps(rules).encode()).hexdigest()

    # --- tokens of each kind ------------------------------------------------------------

    def _spans(self, texts: list[str], recognize_mask: bool) -> list[TokenSpans]:
        if recognize_mask and self.mask_id is not None and any("[MASK]" in text for text in texts):
            return [self._masked_spans(t) if "[MASK]" in t else self._spans([t], False)[0] for t in texts]
        if self.kind == "unigram":
            return self._unigram.spans(texts)
        if self.kind == "wordpiece":
            found: list[Any] = self._bert.encode_batch(texts, add_special_tokens=False)
            return [TokenSpans(e.ids, e.offsets, e.word_ids) for e in found]
        return [self._symbol_spans(text) for text in texts]

    def _masked_spans(self, text: str) -> TokenSpans:
        """A text in which [MASK] is the mask token; text directly after it continues the word."""
        out, at = TokenSpans([], [], []), 0
        for number, between in enumerate(text.split("[MASK]")):
            if number:
                out.append(TokenSpans([self.mask_id or 0], [(0, len("[MASK]"))], [0]), at)
                at += len("[MASK]")
            head = len(between.split(maxsplit=1)[0]) if between.strip() and not between[0].isspace() else 0
            if number and head and self.kind == "unigram":
                out.append(self._unigram.spans_inside_word(between[:head]), at)
                out.append(self._spans([between[head:]], False)[0], at + head)
            else:
                out.append(self._spans([between], False)[0], at)
            at += len(between)
        return out

    def _symbol_spans(self, text: str) -> TokenSpans:
        out, word = TokenSpans([], [], []), 0
        for at, c in enumerate(text.lower() if self.lower and len(text.lower()) == len(text) else text):
            word += at > 0 and c.isspace()
            if c in self._ids:
                out.ids.append(self._ids[c])
                out.offsets.append((at, at + 1))
                out.words.append(word)
        return out


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Without garbage collection: visiting 30,000 new tokens again and again takes a quarter of the loading time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# --- the files of a folder ------------------------------------------------------------


def read_folder(folder: Path, vocab_size: int | None, trusted: bool) -> Vocabulary:
    """The vocabulary in a folder; see `Tokenizer.load`."""
    tokenizer_json, spiece, vocab = (folder / name for name in ("tokenizer.json", "spiece.model", "vocab.txt"))
    options = _read_options(folder / "tokenizer_config.json")
    lower, accents = options.get("do_lower_case", True), options.get("keep_accents", False)
    if tokenizer_json.is_file():
        path, vocabulary = tokenizer_json, read_json(tokenizer_json)
        if vocabulary.kind == "unigram" and spiece.is_file():
            tokens = vocabulary.tokens if trusted else read_spiece(spiece, lower=lower, keep_accents=accents).tokens
            if tokens != vocabulary.tokens:
                raise AlbertkitError(
                    f"tokenizer.json and spiece.model in {folder} have different vocabularies "
                    f"({len(vocabulary.tokens)} and {len(tokens)} tokens): remove the one that does not belong "
                    "to the checkpoint"
                )
            vocabulary = dataclasses.replace(vocabulary, spiece=read_bytes(spiece))
    elif spiece.is_file() and vocab.is_file():
        raise AlbertkitError(
            f"{folder} contains both spiece.model and vocab.txt: remove vocab.txt if the model is English ALBERT "
            "(SentencePiece), or spiece.model if it is Chinese or Korean ALBERT (WordPiece)"
        )
    elif spiece.is_file():
        path, vocabulary = spiece, read_spiece(spiece, lower=lower, keep_accents=accents)
    elif vocab.is_file():
        path, vocabulary = vocab, read_vocab(vocab, lower=lower, strip_accents=options.get("strip_accents"))
    else:
        raise AlbertkitError(
            f"{folder} contains no tokenizer: put tokenizer.json, spiece.model or vocab.txt of the checkpoint there"
        )
    if vocab_size is not None:
        check_size(path, vocabulary, vocab_size)
    return vocabulary


def _read_options(path: Path) -> dict[str, bool]:
    """The rules for case and accents in a tokenizer_config.json."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(read_bytes(path).decode("utf-8"))
        found = {k: data[k] for k in ("do_lower_case", "keep_accents", "strip_accents") if data.get(k) is not None}
    except AlbertkitError:
        raise
    except (ValueError, AttributeError, RecursionError) as error:
        raise AlbertkitError(f"{path} is not a JSON object ({error}): correct it or remove it") from None
    for key, value in found.items():
        if not isinstance(value, bool):
            raise AlbertkitError(f"{key} in {path} is {value!r} and must be true or false: correct it")
    return found


def write_folder(vocabulary: Vocabulary, folder: Path, model_max_length: int, compact: bool = False) -> None:
    """Write tokenizer.json, tokenizer_config.json, and the spiece.model or vocab.txt it was read from.

    compact: for albertkit only; omits tokenizer.json if spiece.model has the same content.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keys = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": model_max_length,
        "do_lower_case": vocabulary.lower,
        **({"keep_accents": not vocabulary.strip_accents} if vocabulary.kind == "unigram" else {}),
        **({"strip_accents": vocabulary.strip_accents} if vocabulary.kind == "wordpiece" else {}),
        **dict(zip(keys, SPECIALS.get(vocabulary.kind, vocabulary.tokens[:1]), strict=False)),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if vocabulary.spiece:
        (folder / "spiece.model").write_bytes(vocabulary.spiece)
        rules = {"lower": vocabulary.lower, "keep_accents": not vocabulary.strip_accents}
        if compact and read_spiece(folder / "spiece.model", **rules) == vocabulary:
            return
    (folder / "tokenizer.json").write_text(to_json(vocabulary), encoding="utf-8")
    if vocabulary.kind == "wordpiece":
        (folder / "vocab.txt").write_bytes("".join(token + "\n" for token in vocabulary.tokens).encode())
