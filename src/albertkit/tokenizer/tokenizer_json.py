"""The content of a `tokenizer.json`, the format of the `tokenizers` library, which transformers opens.

In: a `Vocabulary`. Out: JSON text, as the library itself writes it; the library is not needed. Before this file:
`wordpiece.py`. After it: `tokenizer_files.py`, which reads this format, and `train_vocabulary.py`, which trains with
the same rules.
"""

from __future__ import annotations

import base64
import functools
import json
import unicodedata
from collections.abc import Iterable
from typing import Any

from albertkit.tokenizer.normalizer import CJK, SPACE
from albertkit.tokenizer.vocabulary import SPECIALS, Vocabulary, is_digit_comma
from albertkit.tokenizer.wordpiece import INSIDE, MAX_WORD_CHARACTERS

LETTERS = rf"[[\p{{L}}\p{{N}}]&&[^{CJK}]]"  # as in `normalizer.py`, for the tokenizers library
BARE_MARK = rf"^{SPACE}(?!{LETTERS})"  # the "▁" before ideographs and punctuation
PENALTY = 100.0  # transformers lowers the score of "2010," by this, so that the comma is separate; reading undoes it
METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
Step = dict[str, Any]  # a normalizer, pre-tokenizer, post-processor, decoder or model


def to_json(vocabulary: Vocabulary) -> str:
    """A self-contained tokenizer.json that transformers and the tokenizers library can open."""
    make = {"unigram": _unigram_rules, "wordpiece": _wordpiece_rules, "phoneme": _phoneme_rules}[vocabulary.kind]
    hidden = sorted(vocabulary.hidden)
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special_token(i, vocabulary.tokens[i]) for i in hidden],
        **make(vocabulary),
    }
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def special_token(index: int, name: str) -> Step:
    """A special token; spaces before [MASK] belong to it."""
    return {
        "id": index,
        "content": name,
        "single_word": False,
        "lstrip": name == "[MASK]",
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def sequence(what: str, steps: list[Step]) -> Step:
    """Several normalizers or pretokenizers, one after the other."""
    return {"type": "Sequence", what: steps}


def replace(pattern: str, content: str) -> Step:
    """A normalizer that replaces what a regular expression finds."""
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def split(pattern: str, behavior: str = "Isolated") -> Step:
    """A pre-tokenizer that makes what a regular expression finds words of their own, or removes it."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def metaspace_words(split_scripts: bool = False) -> list[Step]:
    """Words with a "▁" before each; with `split_scripts`, only before runs of letters and digits."""
    spaces = {"type": "WhitespaceSplit"}
    if not split_scripts:
        return [spaces, METASPACE]
    return [spaces, split(f"{LETTERS}+"), METASPACE, split(BARE_MARK, "Removed")]


def bert_rules(lower: bool, strip_accents: bool) -> dict[str, Step]:
    """The normalizer and the pre-tokenizer of BERT."""
    rules = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": strip_accents, "lowercase": lower}
    return {"normalizer": {"type": "BertNormalizer", **rules}, "pre_tokenizer": {"type": "BertPreTokenizer"}}


def wordpiece_model(ids: dict[str, int]) -> Step:
    """A WordPiece model."""
    return {
        "type": "WordPiece",
        "unk_token": SPECIALS["wordpiece"][1],
        "continuing_subword_prefix": INSIDE,
        "max_input_chars_per_word": MAX_WORD_CHARACTERS,
        "vocab": ids,
    }


def _wordpiece_rules(vocabulary: Vocabulary) -> dict[str, Step]:
    return {
        **bert_rules(vocabulary.lower, vocabulary.strip_accents),
        "post_processor": _albert_template(vocabulary.ids),
        "decoder": {"type": "WordPiece", "prefix": INSIDE, "cleanup": True},
        "model": wordpiece_model(vocabulary.ids),
    }


def _unigram_rules(vocabulary: Vocabulary) -> dict[str, Step]:
    """The closest equivalent of our `Unigram` in the tokenizers library."""
    steps = [replace(r"[\x{1c}-\x{1f}]", " ")]
    if not vocabulary.charsmap:
        steps.append(replace(r"[\p{Cc}\p{Cf}&&[^\s]]", ""))
    if vocabulary.strip_accents:
        steps += [{"type": "NFKD"}, replace(_combining_characters(), "")]
    if vocabulary.lower:
        steps.append({"type": "Lowercase"})
    table = base64.b64encode(vocabulary.charsmap).decode()
    steps.append({"type": "Precompiled", "precompiled_charsmap": table} if table else {"type": "NFKC"})
    scored = [
        [token, score - PENALTY if is_digit_comma(token) else score]
        for token, score in zip(vocabulary.tokens, vocabulary.scores, strict=True)
    ]
    return {
        "normalizer": sequence("normalizers", steps),
        "pre_tokenizer": sequence("pretokenizers", metaspace_words(vocabulary.split_scripts)),
        "post_processor": _albert_template(vocabulary.ids),
        "decoder": METASPACE,
        "model": {"type": "Unigram", "unk_id": vocabulary.unk_id, "vocab": scored, "byte_fallback": False},
    }


@functools.cache
def _combining_characters() -> str:
    """A regular expression for the characters with a combining class, by this Python's Unicode tables."""
    ranges = code_point_ranges(c for c in map(chr, range(0x300, 0x20000)) if unicodedata.combining(c))
    return "[" + "".join(f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in ranges) + "]"


def code_point_ranges(characters: Iterable[str]) -> list[tuple[int, int]]:
    """A set of characters as ranges: the first and the last code point of each."""
    points = sorted(map(ord, characters))
    known = set(points)
    starts = (c for c in points if c - 1 not in known)
    ends = (c for c in points if c + 1 not in known)
    return list(zip(starts, ends, strict=True))


def _phoneme_rules(vocabulary: Vocabulary) -> dict[str, Step]:
    """Characters to ids, with the padding symbol at both ends; other characters are dropped."""
    pad = vocabulary.tokens[0]
    ids = {symbol: i for i, symbol in enumerate(vocabulary.tokens) if symbol}
    others = replace("[^" + "".join(f"\\x{{{ord(c):x}}}" for c in ids) + "]", "")
    steps = [{"type": "Lowercase"}, others] if vocabulary.lower else [others]
    return {
        "normalizer": sequence("normalizers", steps),
        "pre_tokenizer": split(r"(?m:.)|\n"),
        "post_processor": _template("$pad A $pad", "$pad A B $pad", {"pad": (0, pad)}),
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": pad},
    }


def _albert_template(ids: dict[str, int]) -> Step:
    """[CLS] and [SEP] around one text or two."""
    special = {name: (ids[name], name) for name in ("[CLS]", "[SEP]")}
    return _template("$[CLS] A $[SEP]", "$[CLS] A $[SEP] B:1 $[SEP]:1", special)


def _template(single: str, pair: str, special: dict[str, tuple[int, str]]) -> Step:
    """A post-processor. "$" begins the name of a special token, and ":1" ends a part of the second segment."""

    def part(text: str) -> Step:
        name, _, segment = text.partition(":")
        kind = "SpecialToken" if name.startswith("$") else "Sequence"
        return {kind: {"id": name.removeprefix("$"), "type_id": int(segment or 0)}}

    return {
        "type": "TemplateProcessing",
        "single": [part(text) for text in single.split(" ")],
        "pair": [part(text) for text in pair.split(" ")],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [token]} for name, (i, token) in special.items()},
    }
