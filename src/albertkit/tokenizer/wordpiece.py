"""Texts to tokens with a WordPiece model, as BERT does it.

In: texts. Out: the ids of each text, or a `TokenSpans` with offsets into the text. Before this file: `vocabulary.py`.
After it: `tokenizer.py`.

A text is cleaned, ideographs and punctuation become words of their own, accents are removed and letters lowered. Then
each word is the longest token of the vocabulary that begins it, followed by the longest "##" tokens. The tokens of a
word do not depend on its neighbours, so each distinct word is tokenized once and cached.

The rules of a character are those of this Python's Unicode tables, as in `normalizer.py`. The `tokenizers` library has
older tables of punctuation and accents, and newer ones of letters; it differs for 559 rare characters (Python 3.11).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby

from albertkit.tokenizer.normalizer import MAX_CACHED_CHARACTERS
from albertkit.tokenizer.unigram import MAX_CACHED_BYTES, WORD_BYTES, TokenSpans
from albertkit.tokenizer.vocabulary import Vocabulary

INSIDE = "##"  # begins a token that is not the first of its word
MAX_WORD_CHARACTERS = 100  # a longer word is one unknown token
IDEOGRAPHS = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f\U0002b920-\U0002ceaf"
    "\U0002f800-\U0002fa1f]"
)
REMOVED = ("Cc", "Cf", "Co")  # categories: control, format and private-use characters
WORD = re.compile("[^ ]+")
# How decoded text is written: no space before these.
CONTRACTIONS = ((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
                (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"))  # fmt: skip


class CharacterRules(dict[int, str]):
    """What BERT makes of each character: a table for `str.translate`, filled when a character is first looked up.

    Ideographs and punctuation have spaces around them. A character whose place depends on its neighbours (a kept
    accent) becomes `MARK`, and `normalize` treats the whole text.
    """

    MARK = "\uffff"

    def __init__(self, lower: bool, strip_accents: bool) -> None:
        self.lower, self.strip = lower, strip_accents

    def __missing__(self, point: int) -> str:
        result = self.replacement(chr(point))
        if self.strip and any(map(unicodedata.combining, result)):
            result = self.MARK
        if len(self) >= MAX_CACHED_CHARACTERS:
            self.clear()
        self[point] = result
        return result

    def replacement(self, c: str) -> str:
        """What a character becomes by itself."""
        return "".join(self._finish(x) for x in self._decompose(c))

    def _decompose(self, c: str) -> str:
        """Spaces, no control characters, spaces around ideographs, and letters before their accents."""
        if c in "\t\n\r":
            return " "
        if c == "\ufffd" or unicodedata.category(c) in REMOVED:
            return ""
        if c.isspace():
            return " "
        decomposed = unicodedata.normalize("NFD", c) if self.strip else c
        return f" {decomposed} " if IDEOGRAPHS.match(c) else decomposed

    def _finish(self, c: str) -> str:
        """No accents, lower case, spaces around punctuation."""
        if self.strip and unicodedata.category(c) == "Mn":
            return ""
        character = c.lower() if self.lower else c
        return f" {character} " if is_punctuation(character) else character

    def normalize(self, text: str) -> tuple[str, list[int]]:
        """The normalised text, and the place in the text that each of its characters comes from."""
        parts = [self[ord(c)] for c in text]
        joined = "".join(parts)
        if self.MARK not in joined:
            return joined, [at for at, part in enumerate(parts) for _ in part]
        parts = [self._decompose(c) for c in text]
        places = [at for at, part in enumerate(parts) for _ in part]
        characters = canonical_order("".join(parts)) if self.strip else "".join(parts)
        finished = [self._finish(c) for c in characters]
        return "".join(finished), [at for at, part in zip(places, finished, strict=True) for _ in part]


def is_punctuation(c: str) -> bool:
    """Whether BERT makes a character a word of its own: also symbols of ASCII, such as "$" and "+"."""
    return c in string.punctuation if c.isascii() else unicodedata.category(c[0])[0] == "P"


def canonical_order(decomposed: str) -> Iterator[str]:
    """The characters of a decomposed text, with the accents of each letter in Unicode's order."""
    for _, run in groupby(decomposed, lambda c: unicodedata.combining(c) > 0):
        yield from sorted(run, key=unicodedata.combining)


class WordPiece:
    """A WordPiece model. The cache does not change results, so threads may share the model."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.rules = CharacterRules(vocabulary.lower, vocabulary.strip_accents)
        self.normalize = self.rules.normalize
        self._unknown = vocabulary.unk_id or 0
        self._longest = max(map(len, vocabulary.tokens))
        self._cache: dict[str, tuple[int, ...]] = {}
        self._cached_bytes = 0

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts."""
        normalized = (text.translate(self.rules) for text in texts)
        split = [
            (self.normalize(text)[0] if CharacterRules.MARK in characters else characters).split(" ")
            for text, characters in zip(texts, normalized, strict=True)
        ]
        find = self._cache_words(split).__getitem__
        return [list(chain.from_iterable(map(find, words))) for words in split]

    def spans(self, texts: Sequence[str]) -> list[TokenSpans]:
        """The tokens of many texts with their offsets."""
        normalized = [self.normalize(text) for text in texts]
        split = [[(match[0], match.start()) for match in WORD.finditer(text)] for text, _ in normalized]
        cache = self._cache_words([[word for word, _ in words] for words in split])
        rows = zip(split, normalized, strict=True)
        return [self._map_offsets(words, places, cache) for words, (_, places) in rows]

    def _map_offsets(
        self, words: list[tuple[str, int]], places: list[int], cache: dict[str, tuple[int, ...]]
    ) -> TokenSpans:
        """The tokens of words, each with its place in the normalised text, with offsets into the original text."""
        out, tokens = TokenSpans([], []), self.vocabulary.tokens
        for word, first in words:
            start = first
            for i in cache[word]:
                size = len(word) if i == self._unknown else len(tokens[i]) - (len(INSIDE) if start > first else 0)
                out.ids.append(i)
                out.offsets.append((places[start], places[start + size - 1] + 1))
                start += size
        return out

    def _cache_words(self, texts: list[list[str]]) -> dict[str, tuple[int, ...]]:
        """Add the words of some texts to the cache; returns it."""
        if self._cached_bytes > MAX_CACHED_BYTES:
            self._cache, self._cached_bytes = {}, 0  # another thread may still use the old one
        cache = self._cache
        new = set().union(*texts).difference(cache)
        self._cached_bytes += sum(map(len, new)) + WORD_BYTES * len(new)
        for word in new:
            cache[word] = self._longest_tokens(word)
        return cache

    def _longest_tokens(self, word: str) -> tuple[int, ...]:
        """The longest token that begins a word, then the longest that continue it; else one unknown token."""
        find, size = self.vocabulary.ids.get, len(word)
        if size > MAX_WORD_CHARACTERS:
            return (self._unknown,)
        ids: list[int] = []
        start, prefix = 0, ""
        while start < size:
            end = min(size, start + self._longest)
            while (token := find(prefix + word[start:end])) is None:
                end -= 1
                if end == start:
                    return (self._unknown,)
            ids.append(token)
            start, prefix = end, INSIDE
        return tuple(ids)


def join_tokens(tokens: Iterable[str]) -> str:
    """The text of tokens: a space before each word, and none before punctuation and contractions."""
    parts = []
    for number, token in enumerate(tokens):
        part = token
        if number:
            part = token.removeprefix(INSIDE) if token.startswith(INSIDE) else f" {token}"
        for old, new in CONTRACTIONS:
            part = part.replace(old, new)
        parts.append(part)
    return "".join(parts)
