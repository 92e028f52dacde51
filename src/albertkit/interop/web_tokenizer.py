"""A tokenizer as plain data for `web/tokenizer.js`, which gives the same ids in a browser.

In: a `Tokenizer`. Out: a dict of JSON values. The Unicode tables of browsers and of Python differ, so the data contains
the rules for every character, as this Python applies them. Before this file: `tokenizer/` and `character_tables.py`.
"""

from __future__ import annotations

import base64
import struct
import unicodedata
from collections.abc import Sequence
from typing import Any

from albertkit.errors import AlbertkitError
from albertkit.interop.character_tables import (
    HANGUL,
    assigned_characters,
    bert_tables,
    charsmap_strings,
    encode_deltas,
    encode_ranges,
    encode_strings,
    encode_table,
    sigma_context,
)
from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.normalizer import LETTER_RUN, SPACE, Charsmap
from albertkit.tokenizer.unigram import Unigram
from albertkit.tokenizer.vocabulary import Vocabulary

FORMAT = 1  # of the data; `tokenizer.js` reads this one only
SCORE_SCALES = (1000, 10_000)  # trained vocabularies have scores of 3 or 4 decimals


def tokenizer_data(tokenizer: Tokenizer) -> dict[str, Any]:
    """The data that `Tokenizer` of `web/tokenizer.js` reads. It takes one to three seconds.

    >>> from albertkit import Albert
    >>> data = tokenizer_data(Albert().tokenizer)
    >>> data["kind"], data["tokens"].count("\\n")
    ('unigram', 29999)
    """
    vocabulary = tokenizer.vocabulary
    if vocabulary.kind == "phoneme":
        raise AlbertkitError(
            "the tokenizer is a table of phonemes, which browsers do not support. Export a model of texts instead."
        )
    rules = _unigram_rules(vocabulary) if vocabulary.kind == "unigram" else _wordpiece_rules(vocabulary)
    return {
        "format": FORMAT,
        "kind": vocabulary.kind,
        "tokens": encode_strings(vocabulary.tokens),
        "hidden": sorted(vocabulary.hidden),
        "unknown": vocabulary.unk_id,
        **rules,
    }


def _wordpiece_rules(vocabulary: Vocabulary) -> dict[str, Any]:
    tables = bert_tables(vocabulary.lower, vocabulary.strip_accents)
    return {
        "spaces": "".join(c for c, new in tables.replacements.items() if new == " "),
        **encode_table(tables.replacements),
        "isolated": encode_ranges(tables.isolated),
        "order": [list(map(ord, tables.order)), list(tables.order.values())],
    }


def _unigram_rules(vocabulary: Vocabulary) -> dict[str, Any]:
    model = Unigram(vocabulary)
    normalize = model.normalize
    continuations = normalize.table.continuations if normalize.table else frozenset()
    prepared = {c: normalize.prepare(c) for c in sorted({*assigned_characters(), *continuations})}
    special = {*continuations, SPACE, *("Σ" if vocabulary.lower else ())}
    contextual = {c for c, new in prepared.items() if not special.isdisjoint(new)}
    if vocabulary.lower:
        prepared = {c: _lower(new) for c, new in prepared.items()}
    accents = [c for c in prepared.keys() - contextual if unicodedata.combining(c)]
    rules = {
        "spaces": "".join(c for c in prepared if c.isspace()),
        **encode_table({c: new for c, new in prepared.items() if new != c}),
        "contextual": encode_ranges(contextual),
        "marks": encode_ranges(c for c in accents if not normalize(c)[0]),
        "scores": _scores(vocabulary.scores),
        "splits": [[i, *parts] for i, parts in model.digit_comma_splits.items()],
    }
    if vocabulary.lower:
        rules["sigma"] = dict(zip(("cased", "ignorable"), map(encode_ranges, sigma_context()), strict=True))
    if vocabulary.split_scripts:  # letters that are words of their own and keep a "▁" before them
        rules["scripts"] = {"letters": encode_ranges(c for c in assigned_characters() if LETTER_RUN.match(c))}
    return rules | _charsmap_rules(normalize.table, {x for new in prepared.values() for x in new})


def _lower(text: str) -> str:
    """Lower case, but for Σ: its lower case depends on its neighbours."""
    return "".join(c if c == "Σ" else c.lower() for c in text)


def _charsmap_rules(table: Charsmap | None, alphabet: set[str]) -> dict[str, Any]:
    """The strings that a normalisation table replaces, or the whole table where these are too many."""
    if table is None:
        return {}
    strings = charsmap_strings(table, alphabet)
    if strings is None:
        blob = struct.pack(f"<I{len(table.units)}I", len(table.units) * 4, *table.units) + table.texts
        return {"charsmap": base64.b64encode(blob).decode()}
    jamo = {unicodedata.normalize("NFD", c): c for c in HANGUL}
    has_hangul = jamo.items() <= strings.items()
    if has_hangul:
        strings = {old: new for old, new in strings.items() if old not in jamo}
    return {
        "strings": [encode_strings(list(strings)), encode_strings(list(strings.values()))],
        "composesHangul": has_hangul,
    }


def _scores(scores: Sequence[float]) -> dict[str, Any]:
    """The exact 32-bit scores: as decimal fractions where they are, otherwise as the bits of the numbers."""
    for scale in SCORE_SCALES:
        numbers = [round(score * scale) for score in scores]
        if [_float32(number / scale) for number in numbers] == list(scores):
            return {"scale": scale, "deltas": encode_deltas(numbers)}
    return {
        "scale": 0,
        "deltas": encode_deltas(struct.unpack(f"<{len(scores)}I", struct.pack(f"<{len(scores)}f", *scores))),
    }


def _float32(number: float) -> float:
    (result,) = struct.unpack("<f", struct.pack("<f", number))
    return float(result)
