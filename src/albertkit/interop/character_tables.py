"""What a tokenizer does with each character, as compact JSON values.

In: the rules of a tokenizer. Out: tables from characters to replacements, and sets of characters. Before this file:
`tokenizer/` and `tasks/examples.py`. After it: `web_tokenizer.py`, `transformers_js.py`.

Sets and tables are encoded as differences, which compress well: a set is the list of the code points where it begins
and ends, a table the list of its code points and the string of its values, separated by line feeds.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from albertkit.tasks.examples import word_class
from albertkit.tokenizer.normalizer import Charsmap
from albertkit.tokenizer.tokenizer_json import code_point_ranges
from albertkit.tokenizer.wordpiece import CharacterRules

HANGUL = [chr(c) for c in range(0xAC00, 0xD7A4)]
MAX_STRINGS = 20_000  # of a normalisation table; a larger table is exported as it is
MAX_STRING_CHARACTERS = 64  # `Charsmap.longest_match` reads as many
MAX_STEPS = 1_000_000


@functools.cache
def all_characters() -> list[str]:
    """Every code point but the surrogates."""
    return [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


@functools.cache
def assigned_characters() -> list[str]:
    """The characters that this Python knows; no rule of Python changes the others."""
    return [c for c in all_characters() if unicodedata.category(c) != "Cn"]


# --- encodings ------------------------------------------------------------


def encode_deltas(numbers: Iterable[int]) -> list[int]:
    """The first number, then the difference of each number to the one before it."""
    values = list(numbers)
    return [b - a for a, b in zip([0, *values], values, strict=False)]


def encode_ranges(characters: Iterable[str]) -> list[int]:
    """A set of characters: the code points where it begins and ends, in turn, as differences."""
    return encode_deltas(edge for first, last in code_point_ranges(characters) for edge in (first, last + 1))


def encode_strings(strings: Sequence[str]) -> str | list[str]:
    """Strings separated by line feeds, or a list where one contains a line feed."""
    return list(strings) if any("\n" in s for s in strings) else "\n".join(strings)


def encode_table(replacements: dict[str, str]) -> dict[str, Any]:
    """A table of characters and their replacements. Hangul that is only decomposed needs no table."""
    decomposes_hangul = all(replacements.get(c) == unicodedata.normalize("NFD", c) for c in HANGUL)
    hangul = set(HANGUL if decomposes_hangul else ())
    single = {c: replacements[c] for c in sorted(replacements.keys() - hangul) if replacements[c]}
    return {
        "replaced": [encode_deltas(map(ord, single)), encode_strings(list(single.values()))],
        "removed": encode_ranges(c for c, new in replacements.items() if not new),
        "decomposesHangul": decomposes_hangul,
    }


# --- Python's rules ------------------------------------------------------------


def sigma_context() -> tuple[list[str], list[str]]:
    """The characters that are cased, and those that are skipped, when Python decides whether a sigma is final."""
    cased = [c for c in assigned_characters() if f"{c}Σ".lower()[-1] == "ς"]
    either = [c for c in assigned_characters() if f"a{c}Σ".lower()[-1] == "ς"]
    return cased, sorted(set(either).difference(cased))


@functools.cache
def word_classes() -> tuple[list[int], str]:
    """The `word_class` of every code point: the code points where it changes, as differences, and each new class."""
    classes = [word_class(chr(c)) for c in range(0x110000)]
    starts = [c for c, number in enumerate(classes) if c == 0 or number != classes[c - 1]]
    return encode_deltas(starts), "".join(classes[c] for c in starts)


def charsmap_strings(table: Charsmap, alphabet: set[str]) -> dict[str, str] | None:
    """The strings of an alphabet that a normalisation table replaces; None if there are too many."""
    children: dict[int, list[int]] = {}
    for index, unit in enumerate(table.units):
        if unit < 1 << 31 and unit & 255:
            children.setdefault(index ^ (unit & 255), []).append(index)
    replacements: dict[str, str] = {}
    todo = [(table.jump(table.units[0]), "", b"")]  # base, complete characters, bytes of the unfinished one
    for _ in range(MAX_STEPS):
        if not todo or len(replacements) > MAX_STRINGS:
            break
        base, text, prefix = todo.pop()
        for index in children.get(base, ()):
            unit = table.units[index]
            below, character = index ^ table.jump(unit), prefix + bytes((unit & 255,))
            if len(character) < 1 + sum(character[0] >= least for least in (0xC0, 0xE0, 0xF0)):
                todo.append((below, text, character))
                continue
            string = text + character.decode()
            if string[-1] not in alphabet or len(string) > MAX_STRING_CHARACTERS:
                continue
            if unit >> 8 & 1:
                replacements[string] = table.replacement(table.units[below])
            todo.append((below, string, b""))
    return None if todo else dict(sorted(replacements.items()))


# --- BERT's rules ------------------------------------------------------------


class BertTables(NamedTuple):
    """What `CharacterRules` makes of each character."""

    replacements: dict[str, str]
    isolated: set[str]  # characters that are words of their own
    order: dict[str, int]  # accents that are kept, and their rank: lower ranks come first


@functools.cache
def bert_tables(lower: bool, strip_accents: bool) -> BertTables:
    """The tables for one pair of rules."""
    rules = CharacterRules(lower, strip_accents)
    results = {c: rules.replacement(c) for c in all_characters()}
    spaced = {c: new.strip(" ") for c, new in results.items() if len(new) > 1 and new[0] == new[-1] == " "}
    results |= spaced
    accents = {x for new in results.values() for x in new if unicodedata.combining(x)} if strip_accents else set()
    order = {accent: unicodedata.combining(accent) for accent in sorted(accents)}
    return BertTables({c: new for c, new in results.items() if c != new}, set(spaced.values()), order)
