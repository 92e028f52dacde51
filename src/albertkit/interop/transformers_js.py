"""The tokenizer of a model for transformers.js, whose library has its own rules for tokenizer.json.

In: a `Tokenizer`. Out: the content of a tokenizer.json that gives the same ids in JavaScript, and notes on what
differs. transformers.js ignores the normalisation tables of SentencePiece, knows other Unicode tables than Python and
has fewer regular expressions. So the rules are written as lists of characters. Before this file: `tokenizer/` and
`character_tables.py`. After it: `layouts.py`.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping

from albertkit.errors import AlbertkitError
from albertkit.interop.character_tables import MAX_STRINGS, assigned_characters, charsmap_strings
from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.normalizer import LETTER_RUN, SPACE, Charsmap, Normalizer
from albertkit.tokenizer.tokenizer_json import Step, code_point_ranges, replace, sequence, split, to_json
from albertkit.tokenizer.vocabulary import Vocabulary, is_digit_comma

# The ideographs beyond 16 bits that BERT separates; transformers.js separates only the others.
WIDE_IDEOGRAPHS = (
    "[\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)
SHOWN_STRINGS = 5  # in a note


def tokenizer_json(tokenizer: Tokenizer) -> tuple[str, list[str]]:
    """The content of tokenizer.json for transformers.js, and what it does differently. It takes one or two seconds."""
    vocabulary = tokenizer.vocabulary
    if vocabulary.kind == "phoneme":
        raise AlbertkitError(
            "the tokenizer is a table of phonemes, which transformers.js does not support. "
            "Export one ONNX file (albertkit export without --layout)."
        )
    data, notes = json.loads(to_json(vocabulary)), []
    if vocabulary.kind == "wordpiece":
        final_sigma = [replace("[Σ]", "σ")] if vocabulary.lower else []  # which transformers.js lowers to "ς"
        data["normalizer"] = sequence("normalizers", [*final_sigma, data["normalizer"]])
        data["pre_tokenizer"] = sequence("pretokenizers", [data["pre_tokenizer"], split(WIDE_IDEOGRAPHS)])
        notes.append("some rare characters, and those newer than Unicode 8, may have other tokens")
    else:
        steps, notes = _unigram_steps(vocabulary)
        data["normalizer"] = sequence("normalizers", steps)
        if vocabulary.split_scripts:
            data["pre_tokenizer"] = sequence("pretokenizers", _script_steps(data["pre_tokenizer"]["pretokenizers"]))
            notes.append("neighbouring words that are unknown become one unknown token")
        if vocabulary.split_scripts or not vocabulary.charsmap:
            notes.append(f"the character {SPACE} in a text may have other tokens")
    if any(map(is_digit_comma, vocabulary.tokens)):
        notes.append("a number with a digit before a comma may have other tokens")
    special = ", ".join(sorted(vocabulary.tokens[i] for i in vocabulary.hidden))
    notes.append(f"the strings {special} in a text become special tokens; albertkit reads them as ordinary text")
    return json.dumps(data, ensure_ascii=False), notes


def character_class(characters: Iterable[str]) -> str:
    """A regular expression for some characters, which Rust and JavaScript read alike."""
    ranges = (_escape(a) if a == b else f"{_escape(a)}-{_escape(b)}" for a, b in code_point_ranges(characters))
    return f"[{''.join(ranges)}]"


def _escape(point: int) -> str:
    return f"\\u{point:04x}" if point < 0x10000 else chr(point)


def _unigram_steps(vocabulary: Vocabulary) -> tuple[list[Step], list[str]]:
    """The steps of `Normalizer`, and notes."""
    normalize = Normalizer(vocabulary.charsmap, vocabulary.lower, vocabulary.strip_accents)
    characters = assigned_characters()
    steps = [replace(character_class(c for c in characters if c.isspace()), " ")]
    lower = [{"type": "Lowercase"}] if vocabulary.lower else []
    if vocabulary.strip_accents:
        accents = character_class(c for c in characters if unicodedata.combining(c))
        steps += [{"type": "NFKD"}, replace(accents, "")]
    if normalize.table is not None:
        prepared = (normalize.prepare(c) for c in characters)
        alphabet = {x for text in prepared for x in (text.lower() if vocabulary.lower else text)}
        table, notes = _table_steps(normalize.table, alphabet)
        return [*steps, *lower, *table], notes
    if vocabulary.strip_accents:
        controls = (c for c in characters if unicodedata.category(c) in ("Cc", "Cf") and not c.isspace())
        return [*steps, replace(character_class(controls), ""), {"type": "NFKC"}, *lower], []
    replaced = {c: normalize.prepare(c) for c in characters if not c.isspace()}  # each character by itself
    return [*steps, *_replacements(replaced), *lower], []


def _replacements(strings: Mapping[str, str]) -> list[Step]:
    """Steps that replace characters, one for each replacement."""
    groups: dict[str, list[str]] = {}
    for old, new in strings.items():
        if len(old) == 1 and old != new:
            groups.setdefault(new, []).append(old)
    return [replace(character_class(old), new) for new, old in groups.items()]


def _table_steps(table: Charsmap, alphabet: set[str]) -> tuple[list[Step], list[str]]:
    """The steps that replace what a normalisation table replaces, and notes."""
    strings = charsmap_strings(table, alphabet)
    if strings is None:
        raise AlbertkitError(
            f"the tokenizer's normalisation table replaces over {MAX_STRINGS:,} strings, too many for transformers.js. "
            "Export one ONNX file (albertkit export without --layout)."
        )
    composed = {old: new for old, new in strings.items() if len(old) > 1}
    missed = [old for old, new in composed.items() if unicodedata.normalize("NFC", old) != new]
    shown = ", ".join(map(repr, missed[:SHOWN_STRINGS])) + (" …" if len(missed) > SHOWN_STRINGS else "")
    notes = [f"{len(missed):,} strings of the normalisation table are not replaced: {shown}"] if missed else []
    compose: list[Step] = [{"type": "NFC"}] if len(composed) > len(missed) else []
    return [*_replacements(strings), *compose], notes


def _script_steps(steps: list[Step]) -> list[Step]:
    """The steps of `metaspace_words(split_scripts=True)`, with lists of characters."""
    letters = character_class(c for c in assigned_characters() if LETTER_RUN.match(c))
    spaces, _, mark, _ = steps
    return [spaces, split(f"{letters}+"), mark, split(f"^{SPACE}(?!{letters})", "Removed")]
