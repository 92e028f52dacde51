"""Texts cut into pieces by a unigram model.

In: texts. Out: the ids of each, or a `TokenSpans` with offsets into the text. Before this file: `normalise.py`, and the rust
model in the `tokenizers` library; after it: `tokenizer.py`.

The pieces of a word do not depend on the words around it, and few words make up most of a text. So where only ids are
wanted, each word is normalised and cut once and then remembered. Against rust on whole texts that was 1.5 times as fast
on the first 16,000 lines of Wikipedia, 2.2 times on the next 16,000, and 5 times where no word was new.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from tokenizers import Tokenizer as Rust
from tokenizers import models, pre_tokenizers

from albertkit.tokenizer.encoding import TokenSpans
from albertkit.tokenizer.normalizer import SPACE, Normalizer, Spans
from albertkit.tokenizer.tokenizer_json import remove_bare_marks
from albertkit.tokenizer.vocabulary import Vocabulary, comma_after_digit

REMEMBERED = 2_000_000  # characters of words: about 250,000 words of English, in 50 MB
TEXTS, WORDS = 1024, 256  # how many are done at a time: texts looked up, new words given to rust as one text


class Unigram:
    """A unigram model that runs; what it remembers changes no result, so threads may share it."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        rules = (vocabulary.lower, vocabulary.strip_accents, vocabulary.split_scripts)
        self.normalise = Normalizer(vocabulary.charsmap, *rules)
        names = vocabulary.tokens.copy()
        for i in vocabulary.hidden:
            names[i] = " " + names[i]  # no word contains a space: so "<pad>" in a text is ordinary text
        model = models.Unigram(list(zip(names, vocabulary.scores, strict=True)), vocabulary.unk_id, False)
        self._rust, self._inside = Rust(model), Rust(model)  # two ways to run the one model
        words = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")
        self._rust.pre_tokenizer = (
            pre_tokenizers.Sequence([words, remove_bare_marks()]) if vocabulary.split_scripts else words
        )
        self._known: dict[str, tuple[int, ...]] = {}
        self._size = 0

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts."""
        result: list[list[int]] = []
        for start in range(0, len(texts), TEXTS):
            some = texts[start : start + TEXTS]
            split = [text.split() for text in some]
            find = self._learn(split).__getitem__
            result += [list(chain.from_iterable(map(find, words))) for words in split]
            for at, text in enumerate(some, start=start):
                if SPACE in text:  # a literal "▁" joins words, and is special at both ends of a text
                    result[at] = self.parts([text])[0].ids
        return result

    def _learn(self, texts: list[list[str]]) -> dict[str, tuple[int, ...]]:
        """What is remembered, with every word of some texts in it."""
        if self._size > REMEMBERED:
            self._known, self._size = {}, 0  # another thread goes on with the old one
        known, apart = self._known, self._apart
        new = list(set().union(*texts).difference(known))
        self._size += sum(map(len, new))
        groups = [new[start : start + WORDS] for start in range(0, len(new), WORDS)]
        normal = [["" if SPACE in word else self.normalise(word)[0] for word in group] for group in groups]
        joined = [" ".join(filter(None, group)) for group in normal]
        for words, made, found in zip(groups, normal, self._rust.encode_batch(joined), strict=True):
            ids, numbers = found.ids, found.word_ids
            starts = [i for i, number in enumerate(numbers) if i == 0 or number != numbers[i - 1]] + [len(ids)]
            at = 0
            for word, text in zip(words, made, strict=True):
                end = at + text.count(" ") + 1 if text else at
                pieces = ids[starts[at] : starts[end]]
                if "," in text and not apart.keys().isdisjoint(pieces):
                    pieces = [new for i in pieces for new in (apart[i][0] if i in apart else (i,))]
                known[word] = tuple(pieces)
                at = end
        return known

    def parts(self, texts: Sequence[str]) -> list[TokenSpans]:
        """The pieces of many texts."""
        ready = [self.normalise(text) for text in texts]
        found = self._rust.encode_batch([text for text, _ in ready])
        return [self._part(e, text, spans) for e, (text, spans) in zip(found, ready, strict=True)]

    def inside(self, text: str) -> TokenSpans:
        """The pieces of a text that goes on inside a word: the first has no "▁"."""
        normal, spans = self.normalise(text)
        head, space, tail = normal.partition(" ")
        out = self._part(self._inside.encode(head), head, spans)
        if tail:
            later = spans[len(head) :] if spans else [(i, i + 1) for i in range(len(head), len(normal))]
            out.append(self._part(self._rust.encode(space + tail), space + tail, later), 0)
        return out

    def _part(self, found: Any, text: str, spans: Spans | None) -> TokenSpans:
        """Rust's result with offsets into the user's text, without spaces, and the digit-comma rule."""
        ids, words = found.ids, found.word_ids
        offsets = [(a + 1, b) if text[a] == " " else (a, b) for a, b in found.offsets]
        lone = self.vocabulary.ids.get(SPACE)
        if ids and ids[0] == lone and text[0] != " ":
            offsets[0] = (0, 0)  # a "▁" before a piece that is always apart stands for no character
        if spans is not None:
            offsets = [(spans[a][0], spans[b - 1][1] if b > a else spans[a][0]) for a, b in offsets]
        if self._apart.keys().isdisjoint(ids):
            return TokenSpans(ids, offsets, words)
        out = TokenSpans([], [], [])
        for i, (start, stop), word in zip(ids, offsets, words, strict=True):
            new, sizes = self._apart.get(i, ([i], [-1]))
            at = start
            for piece, size in zip(new, sizes, strict=True):
                end = stop if size < 0 else max(at, min(at + size, stop - 1))
                out.ids.append(piece)
                out.offsets.append((at, start if piece == lone else end))
                out.words.append(word)
                at = end
        return out

    @cached_property
    def _apart(self) -> dict[int, tuple[list[int], list[int]]]:
        """For each piece such as "▁2010,": the ids that replace it, and their lengths (-1: the rest)."""
        tokens, ids = self.vocabulary.tokens, self.vocabulary.ids
        table = {}
        for i, piece in enumerate(tokens):
            if piece.endswith(",") and comma_after_digit(piece) and i not in self.vocabulary.hidden:
                found = self._rust.encode(self.normalise(piece[:-1].replace(SPACE, ""))[0])
                pieces = [tokens[i] for i in found.ids]
                sizes = [0 if p == SPACE else b - a for p, (a, b) in zip(pieces, found.offsets, strict=True)]
                if pieces and piece[0] != SPACE and pieces[0][0] == SPACE:
                    pieces[0] = pieces[0][1:]
                new = [ids.get(p, self.vocabulary.unk_id or 0) for p in [*pieces, ","] if p]
                table[i] = (new, [s for p, s in zip(pieces, sizes, strict=True) if p] + [-1])
        return table
