"""Texts to tokens with a unigram model.

In: texts. Out: the ids of each text, or a `TokenSpans` with offsets into the text. Before this file: `normalizer.py`
and the model in the `tokenizers` library. After it: `tokenizer.py`.

The tokens of a word do not depend on its neighbours, so `ids` normalises and tokenizes each distinct word once and
caches the result. This is 1.5 to 5 times as fast as the library on whole texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models, pre_tokenizers

from albertkit.tokenizer.normalizer import SPACE, Normalizer, Spans
from albertkit.tokenizer.tokenizer_files import remove_bare_marks
from albertkit.tokenizer.vocabulary import Vocabulary, is_digit_comma

MAX_CACHED_BYTES = 24_000_000  # about 110,000 words
WORD_BYTES = 210  # of a cached word beside its characters
TEXTS_PER_STEP, WORDS_PER_CALL = 1024, 256


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
        names = vocabulary.tokens.copy()
        for i in vocabulary.hidden:
            names[i] = " " + names[i]  # no word contains a space, so "<pad>" in a text is ordinary text
        model = models.Unigram(list(zip(names, vocabulary.scores, strict=True)), vocabulary.unk_id, False)
        self._rust = RustTokenizer(model)  # puts "▁" before the text
        self._rust_no_prefix = RustTokenizer(model)
        steps: list[Any] = [pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")]
        steps += [remove_bare_marks()] if vocabulary.split_scripts else []
        self._rust.pre_tokenizer = pre_tokenizers.Sequence(steps)
        self._cache: dict[str, tuple[int, ...]] = {}
        self._cached_bytes = 0

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        result: list[list[int]] = []
        for start in range(0, len(texts), TEXTS_PER_STEP):
            chunk = texts[start : start + TEXTS_PER_STEP]
            split = [text.split() for text in chunk]
            find = self._cache_words(split).__getitem__
            result += [list(chain.from_iterable(map(find, words))) for words in split]
            for at, text in enumerate(chunk, start=start):
                if SPACE in text:  # a literal "▁" joins words, and is special at both ends of a text
                    result[at] = self.spans([text])[0].ids
        return result

    def _cache_words(self, texts: list[list[str]]) -> dict[str, tuple[int, ...]]:
        """Add the words of some texts to the cache; returns it."""
        if self._cached_bytes > MAX_CACHED_BYTES:
            self._cache, self._cached_bytes = {}, 0  # another thread may still use the old one
        cache, splits = self._cache, self._digit_comma_splits
        new = list(set().union(*texts).difference(cache))
        self._cached_bytes += sum(map(len, new)) + WORD_BYTES * len(new)
        groups = [new[start : start + WORDS_PER_CALL] for start in range(0, len(new), WORDS_PER_CALL)]
        normalized = [["" if SPACE in word else self.normalize(word)[0] for word in group] for group in groups]
        joined = [" ".join(filter(None, group)) for group in normalized]
        for words, word_texts, found in zip(groups, normalized, self._rust.encode_batch(joined), strict=True):
            ids, numbers = found.ids, found.word_ids
            starts = [i for i, number in enumerate(numbers) if i == 0 or number != numbers[i - 1]] + [len(ids)]
            at = 0
            for word, text in zip(words, word_texts, strict=True):
                end = at + text.count(" ") + 1 if text else at
                word_ids = ids[starts[at] : starts[end]]
                if "," in text and not splits.keys().isdisjoint(word_ids):
                    word_ids = [part for i in word_ids for part in (splits[i][0] if i in splits else (i,))]
                cache[word] = tuple(word_ids)
                at = end
        return cache

    def spans(self, texts: Sequence[str]) -> list[TokenSpans]:
        """The tokens of many texts with their offsets."""
        normalized = [self.normalize(text) for text in texts]
        found = self._rust.encode_batch([text for text, _ in normalized])
        return [self._map_offsets(e, text, spans) for e, (text, spans) in zip(found, normalized, strict=True)]

    def spans_inside_word(self, text: str) -> TokenSpans:
        """The tokens of a text that begins inside a word: the first has no "▁"."""
        normalized, spans = self.normalize(text)
        head, space, tail = normalized.partition(" ")
        out = self._map_offsets(self._rust_no_prefix.encode(head), head, spans)
        if tail:
            later = spans[len(head) :] if spans else [(i, i + 1) for i in range(len(head), len(normalized))]
            out.append(self._map_offsets(self._rust.encode(space + tail), space + tail, later), 0)
        return out

    def _map_offsets(self, found: Any, text: str, spans: Spans | None) -> TokenSpans:
        """The library's result with offsets into the original text, without spaces, and the digit-comma rule."""
        ids: list[int] = found.ids
        offsets = [(a + 1, b) if text[a] == " " else (a, b) for a, b in found.offsets]
        space_id = self.vocabulary.ids.get(SPACE)
        if ids and ids[0] == space_id and text[0] != " ":
            offsets[0] = (0, 0)  # a "▁" before a separate symbol covers no character
        if spans is not None:
            offsets = [(spans[a][0], spans[b - 1][1] if b > a else spans[a][0]) for a, b in offsets]
        if self._digit_comma_splits.keys().isdisjoint(ids):
            return TokenSpans(ids, offsets)
        out = TokenSpans([], [])
        for i, (start, stop) in zip(ids, offsets, strict=True):
            part_ids, sizes = self._digit_comma_splits.get(i, ([i], [-1]))
            at = start
            for part_id, size in zip(part_ids, sizes, strict=True):
                end = stop if size < 0 else max(at, min(at + size, stop - 1))
                out.ids.append(part_id)
                out.offsets.append((at, start if part_id == space_id else end))
                at = end
        return out

    @cached_property
    def _digit_comma_splits(self) -> dict[int, tuple[list[int], list[int]]]:
        """For each token such as "▁2010,": the ids that replace it, and their lengths (-1: the rest)."""
        tokens, ids = self.vocabulary.tokens, self.vocabulary.ids
        table = {}
        for token_id, token in enumerate(tokens):
            if token.endswith(",") and is_digit_comma(token) and token_id not in self.vocabulary.hidden:
                found = self._rust.encode(self.normalize(token[:-1].replace(SPACE, ""))[0])
                parts = [tokens[i] for i in found.ids]
                sizes = [0 if p == SPACE else b - a for p, (a, b) in zip(parts, found.offsets, strict=True)]
                if parts and token[0] != SPACE and parts[0][0] == SPACE:
                    parts[0] = parts[0][1:]
                part_ids = [ids.get(p, self.vocabulary.unk_id or 0) for p in [*parts, ","] if p]
                table[token_id] = (part_ids, [s for p, s in zip(parts, sizes, strict=True) if p] + [-1])
        return table
