"""Texts to tokens with a unigram model.

In: texts. Out: the ids of each text, or a `TokenSpans` with offsets into the text. Before this file: `normalizer.py`.
After it: `tokenizer.py`.

The tokens of a word do not depend on its neighbours, so `ids` normalises and tokenizes each distinct word once.
Repeated words come from a cache.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

from albertkit.tokenizer.normalizer import LETTER, SPACE, Normalizer, Spans
from albertkit.tokenizer.vocabulary import Vocabulary, is_digit_comma

MAX_CACHED_BYTES = 24_000_000  # about 110,000 words
WORD_BYTES = 210  # of a cached word beside its characters
TEXTS_PER_STEP = 1024
MANY_CHARACTERS = 2_000  # of new words; for more it pays to know the longest token of each first character (4 ms)
UNKNOWN_PENALTY = 10.0  # an unknown character has the lowest score minus this
UNITS = re.compile(f"{SPACE}?[^{SPACE}]+|{SPACE}")  # what is tokenized by itself: a "▁" and what follows it
UnitTokens = dict[str, tuple[list[int], list[int]]]  # the ids of each unit, and where each token ends
BARE_MARK = re.compile(f"{SPACE}(?!{LETTER})")


class TokenSpans(NamedTuple):
    """The tokens of one text, without special tokens, and the characters that each token covers."""

    ids: list[int]
    offsets: Spans

    def first(self, count: int) -> TokenSpans:
        return TokenSpans(self.ids[:count], self.offsets[:count])

    def append(self, other: TokenSpans, shift: int) -> None:
        """Append the tokens of a text that begins at character `shift`."""
        self.ids.extend(other.ids)
        self.offsets.extend([(start + shift, end + shift) for start, end in other.offsets])


class Unigram:
    """A unigram model. The cache does not change results, so threads may share the model."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        rules = (vocabulary.lower, vocabulary.strip_accents, vocabulary.split_scripts)
        self.normalize = Normalizer(vocabulary.charsmap, *rules)
        self._token_ids = vocabulary.ids.copy()
        for i in vocabulary.hidden:
            del self._token_ids[vocabulary.tokens[i]]  # "<pad>" in a text is ordinary text
        self._longest = max(map(len, self._token_ids), default=1)
        self._longest_from: dict[str, int] = {}  # the same for tokens with a first character, if many words were found
        self._unknown_score = min(vocabulary.scores) - UNKNOWN_PENALTY
        self._cache: dict[str, tuple[int, ...]] = {}
        self._cached_bytes = 0

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        result: list[list[int]] = []
        for start in range(0, len(texts), TEXTS_PER_STEP):
            chunk = texts[start : start + TEXTS_PER_STEP]
            split = [text.split() for text in chunk]
            find = self._cache_words(split).__getitem__
            result += [list(chain.from_iterable(map(find, words))) for words in split]
            for index, text in enumerate(chunk, start=start):
                if SPACE in text:  # a literal "▁" joins words, and is special at both ends of a text
                    result[index] = self.spans([text])[0].ids
        return result

    def _cache_words(self, texts: list[list[str]]) -> dict[str, tuple[int, ...]]:
        """Add the words of some texts to the cache; returns it."""
        if self._cached_bytes > MAX_CACHED_BYTES:
            self._cache, self._cached_bytes = {}, 0  # another thread may still use the old one
        cache = self._cache
        new = list(set().union(*texts).difference(cache))
        self._cached_bytes += sum(map(len, new)) + WORD_BYTES * len(new)
        normalized = ["" if SPACE in word else self.normalize(word)[0] for word in new]
        units = [[unit for _, unit in self._units(text)] for text in normalized]
        unit_tokens = self._find(chain.from_iterable(units))
        for word, text, parts in zip(new, normalized, units, strict=True):
            ids = [i for unit in parts for i in unit_tokens[unit][0]]
            if "," in text:
                ids = [part for i in ids for part in self.digit_comma_splits.get(i, ([i], [-1]))[0]]
            cache[word] = tuple(ids)
        return cache

    def spans(self, texts: Sequence[str]) -> list[TokenSpans]:
        """The tokens of many texts with their offsets."""
        normalized = [self.normalize(text) for text in texts]
        units = [self._units(text) for text, _ in normalized]
        tokens = self._find(unit for text in units for _, unit in text)
        return [self._map_offsets(text, u, tokens, spans) for u, (text, spans) in zip(units, normalized, strict=True)]

    def spans_inside_word(self, text: str) -> TokenSpans:
        """The tokens of a text that begins inside a word: the first has no "▁"."""
        normalized, spans = self.normalize(text)
        head, space, tail = normalized.partition(" ")
        units, later = self._units(space + tail), None
        unit_tokens = self._find([head, *(unit for _, unit in units)])
        out = self._map_offsets(head, [(0, head)], unit_tokens, spans)
        if tail:
            later = spans[len(head) :] if spans else [(i, i + 1) for i in range(len(head), len(normalized))]
            out.append(self._map_offsets(space + tail, units, unit_tokens, later), 0)
        return out

    def _map_offsets(
        self, text: str, units: list[tuple[int, str]], unit_tokens: UnitTokens, spans: Spans | None
    ) -> TokenSpans:
        """The tokens of units with offsets into the original text, without spaces, and the digit-comma rule."""
        ids, offsets = _join_units(units, unit_tokens)
        offsets = [(a + 1, b) if text[a] == " " else (a, b) for a, b in offsets]
        space_id = self.vocabulary.ids.get(SPACE)
        if ids and ids[0] == space_id and text[0] != " ":
            offsets[0] = (0, 0)  # a "▁" before a separate symbol covers no character
        if spans is not None:
            offsets = [(spans[a][0], spans[b - 1][1] if b > a else spans[a][0]) for a, b in offsets]
        if "," not in text or self.digit_comma_splits.keys().isdisjoint(ids):
            return TokenSpans(ids, offsets)
        out = TokenSpans([], [])
        for i, (start, stop) in zip(ids, offsets, strict=True):
            part_ids, sizes = self.digit_comma_splits.get(i, ([i], [-1]))
            at = start
            for part_id, size in zip(part_ids, sizes, strict=True):
                end = stop if size < 0 else max(at, min(at + size, stop - 1))
                out.ids.append(part_id)
                out.offsets.append((at, start if part_id == space_id else end))
                at = end
        return out

    @cached_property
    def digit_comma_splits(self) -> dict[int, tuple[list[int], list[int]]]:
        """For each token such as "▁2010,": the ids that replace it, and their lengths (-1: the rest)."""
        tokens, ids = self.vocabulary.tokens, self.vocabulary.ids
        table = {}
        for token_id, token in enumerate(tokens):
            if token.endswith(",") and is_digit_comma(token) and token_id not in self.vocabulary.hidden:
                units = self._units(self.normalize(token[:-1].replace(SPACE, ""))[0])
                token_ids, offsets = _join_units(units, self._find(unit for _, unit in units))
                parts = [tokens[i] for i in token_ids]
                sizes = [0 if p == SPACE else b - a for p, (a, b) in zip(parts, offsets, strict=True)]
                if parts and token[0] != SPACE and parts[0][0] == SPACE:
                    parts[0] = parts[0][1:]
                part_ids = [ids.get(p, self.vocabulary.unk_id or 0) for p in [*parts, ","] if p]
                table[token_id] = (part_ids, [s for p, s in zip(parts, sizes, strict=True) if p] + [-1])
        return table

    # The tokens of a normalised text -----------------------------------------------------------------------------

    def _units(self, text: str) -> list[tuple[int, str]]:
        """The parts of a text that are tokenized by themselves, each with its place. A "▁" is put before the text."""
        marked, offset = text.replace(" ", SPACE), 0
        if marked and marked[0] != SPACE:
            marked, offset = SPACE + marked, -1
        units = [(offset + match.start(), match[0]) for match in UNITS.finditer(marked)]
        if not self.vocabulary.split_scripts:
            return units
        return [(offset + 1, unit[1:]) if BARE_MARK.match(unit) else (offset, unit) for offset, unit in units]

    def _find(self, units: Iterable[str]) -> UnitTokens:
        """The tokens of each distinct unit."""
        new = list(dict.fromkeys(units))
        if not self._longest_from and sum(map(len, new)) > MANY_CHARACTERS:
            self._longest_from = {token[0]: len(token) for token in sorted(self._token_ids, key=len) if token}
        return {unit: self._best_tokens(unit) for unit in new}

    def _best_tokens(self, text: str) -> tuple[list[int], list[int]]:
        """The tokens with the highest sum of scores (Viterbi), and where each ends."""
        find, scores = self._token_ids.get, self.vocabulary.scores
        unknown, size = self.vocabulary.unk_id or 0, len(text)
        longest_from, longest = self._longest_from.get, self._longest
        best, last, starts = [0.0] + [-math.inf] * size, [unknown] * (size + 1), [0] * (size + 1)  # at each end
        for start in range(size):
            score = best[start]
            if text[start] not in self._token_ids and score + self._unknown_score > best[start + 1]:
                best[start + 1], last[start + 1], starts[start + 1] = score + self._unknown_score, unknown, start
            for end in range(start + 1, min(start + longest_from(text[start], longest), size) + 1):
                token = find(text[start:end])
                if token is not None and score + scores[token] > best[end]:
                    best[end], last[end], starts[end] = score + scores[token], token, start
        ids: list[int] = []
        ends: list[int] = []
        end = size
        while end:
            start = starts[end]
            while last[end] == last[start] == unknown and start:
                start = starts[start]  # unknown characters side by side are one token
            ids.append(find(text[start:end], unknown) if last[end] == unknown else last[end])
            ends.append(end)
            end = start
        return ids[::-1], ends[::-1]


def _join_units(units: list[tuple[int, str]], unit_tokens: UnitTokens) -> tuple[list[int], Spans]:
    """The ids of units side by side, and the characters of each token."""
    ids: list[int] = []
    spans: Spans = []
    for offset, unit in units:
        ids += unit_tokens[unit][0]
        spans += [(max(offset + start, 0), offset + end) for start, end in pairwise((0, *unit_tokens[unit][1]))]
    return ids, spans
