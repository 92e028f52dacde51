"""Sentences → the bytes of their token ids, word by word, each word looked up where it was met before.

In: sentences. Out: for each, its ids with word starts, as the bytes that go to disk; the ids are those of
`Tokenizer.ids_batch`. Before this file: the tokenizer; after it: `pieces.py`.

The pieces of a word do not depend on its neighbours, and few words make up most of a text. So a word is cut once and its
bytes are remembered; a sentence is bytes joined. What a "word" is:

- unigram: what stands between spaces. A new one is first taken apart at punctuation where no piece of the vocabulary
  reaches across: "(Berlin)," is "▁", "(", "berlin", ")" and ",". The best way to cut the whole is then the best ways to
  cut its parts, and most parts are known. This is done for ASCII, whose normalisation goes letter by letter.
- WordPiece: a Chinese character, an ASCII punctuation mark, or what stands between those and spaces. The tokenizer cuts
  there by itself, before it looks at its vocabulary.

Against `ids_batch`, English Wikipedia takes four fifths of the time for the first 24 MB and two fifths when read again,
and Chinese Wikipedia with WordPiece less than a third.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.normalizer import SPACE, Normaliser

REMEMBERED = 2_000_000  # characters of words in a generation; in all about 600,000 words and parts, in 150 MB
SENTENCES = 1024  # looked up at a time
TOGETHER = 256  # parts that are given to the tokenizer as one text
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
WHOLE = "\ud800"  # marks a sentence that stands for a word: half of a character, which no text from bytes can hold
_HAN, _MARKS = "\u3400-\u4dbf\u4e00-\u9fff", re.escape(PUNCTUATION)
_CHUNKS = re.compile(f"[{_HAN}{_MARKS}]|[^ {_HAN}{_MARKS}]+")


class Words:
    """Sentences to bytes, for one tokenizer; what it remembers changes no result."""

    def __init__(self, tokenizer: Tokenizer, table: np.ndarray):
        """`table` gives for each id the number that is stored: the id, with the bit of a word start."""
        self.tokenizer, self.table = tokenizer, table
        self.cut: Callable[[str], list[str]] = _CHUNKS.findall if tokenizer.kind == "wordpiece" else str.split
        apart = Apart(tokenizer, table) if tokenizer.kind == "unigram" else None
        self.apart = apart if apart is not None and apart.usable else None
        self.known, self.parts = Memory(REMEMBERED), Memory(REMEMBERED // 2)

    def __call__(self, sentences: list[str]) -> tuple[bytes, np.ndarray]:
        """The bytes of all sentences, and the number of tokens in each."""
        some = [self._lookup(sentences[at : at + SENTENCES]) for at in range(0, len(sentences), SENTENCES)]
        lengths = [np.zeros(0, np.int64), *(length for _, length in some)]
        return b"".join(data for data, _ in some), np.concatenate(lengths)

    def _lookup(self, sentences: list[str]) -> tuple[bytes, np.ndarray]:
        rows = list(map(self.cut, sentences))
        if self.tokenizer.kind == "unigram":
            for number, sentence in enumerate(sentences):
                if SPACE in sentence:  # a literal "▁" joins words
                    rows[number] = [WHOLE + sentence]
        words = list(itertools.chain.from_iterable(rows))
        self.known.age()
        found: list[Any] = list(map(self.known.new.get, words))  # bytes, and None where a word is new
        absent = [number for number, there in enumerate(found) if there is None]
        self._learn(self.known.missing({words[number] for number in absent}))
        for number in absent:
            found[number] = self.known.new[words[number]]
        sizes = np.fromiter(map(len, found), np.int64, len(found)) // self.table.itemsize
        return b"".join(found), sums(sizes, np.array([len(row) for row in rows], np.int64))

    def _learn(self, words: list[str]) -> None:
        """Remember some words."""
        if self.apart is not None:
            plain = [word for word in words if word.isascii() and word.isprintable()]
            words = [word for word in words if not (word.isascii() and word.isprintable())]
            rows = self.apart.parts(plain)
            self.parts.age()
            fresh = self.parts.missing(set().union(*rows))
            self.parts.add(fresh, self.apart.bytes(fresh))
            find, join = self.parts.new.__getitem__, b"".join
            self.known.add(plain, [find(row[0]) if len(row) == 1 else join(map(find, row)) for row in rows])
        found = self.tokenizer.ids_batch([word[1:] if word[0] == WHOLE else word for word in words])
        self.known.add(words, [self.table[ids].tobytes() for ids in found])


class Memory:
    """Words and their bytes, in two generations: when the new one is full the old one is forgotten."""

    def __init__(self, room: int) -> None:
        self.room = room  # characters
        self.new: dict[str, bytes] = {}
        self.old: dict[str, bytes] = {}
        self.size = 0

    def age(self) -> None:
        """Begin a new generation if this one is full."""
        if self.size > self.room:
            self.old, self.new, self.size = self.new, {}, 0

    def missing(self, words: set[str]) -> list[str]:
        """Those that are not remembered; what only the old generation has is taken over into the new."""
        absent = words.difference(self.new)
        fresh = absent.difference(self.old)
        old = self.old
        moved = {word: old[word] for word in absent.difference(fresh)}
        self.new.update(moved)
        self.size += sum(map(len, moved))
        return list(fresh)

    def add(self, words: list[str], found: list[bytes]) -> None:
        """Remember some words."""
        self.new.update(zip(words, found, strict=True))
        self.size += sum(map(len, words))


class Apart:
    """Takes printable ASCII words apart at marks that no piece of a unigram vocabulary joins to their neighbours."""

    def __init__(self, tokenizer: Tokenizer, table: np.ndarray):
        made = tokenizer.vocabulary
        self.tokenizer, self.table, self.lower = tokenizer, table, made.lower
        before: dict[str, set[str]] = {c: set() for c in PUNCTUATION if c in made.ids}  # what pieces have beside a mark
        after: dict[str, set[str]] = {c: set() for c in before}
        for i, piece in enumerate(made.tokens):
            if i not in made.hidden:
                for one, two in itertools.pairwise(piece):
                    if two in before:
                        before[two].add(one)
                    if one in after:
                        after[one].add(two)
        self.alone = [c for c in before if not before[c] and not after[c]]  # no piece holds it and something else
        behind = [c for c in before if c not in self.alone and not any(map(str.isalpha, before[c]))]
        self.behind = re.compile(rf"([A-Za-z])(?=[{re.escape(''.join(behind))}])") if behind else None
        self.leads = np.array([piece.startswith(SPACE) for piece in made.tokens])
        plain = Normaliser(made.charsmap, made.lower, made.strip_accents).plain_ascii
        inner = any(SPACE in piece[1:] for piece in made.tokens)
        self.anchor = self.alone[0] if self.alone else ""  # a part from within is cut behind this mark, which then goes
        self.usable = plain and not inner and bool(self.alone) and len(tokenizer.ids_batch([self.anchor])[0]) == 2

    def parts(self, words: list[str]) -> list[list[str]]:
        """The parts of each word; the first begins with "▁"."""
        text = SPACE + f"\n{SPACE}".join(words)
        text = text.lower() if self.lower else text
        for mark in self.alone:
            text = text.replace(mark, f" {mark} ")
        if self.behind is not None:
            text = self.behind.sub(r"\1 ", text)
        return [line.split() for line in text.split("\n")] if words else []

    def bytes(self, parts: list[str]) -> list[bytes]:
        """The bytes of each part. The tokenizer gets them as words of a few long texts, which is quicker."""
        leads = [part[0] == SPACE and part != SPACE for part in parts]
        words = [part[1:] if lead else self.anchor + part.strip(SPACE) for part, lead in zip(parts, leads, strict=True)]
        texts = [" ".join(words[at : at + TOGETHER]) for at in range(0, len(words), TOGETHER)]
        ids = np.array([i for row in self.tokenizer.ids_batch(texts) for i in row], np.int64)
        starts = np.flatnonzero(self.leads[ids])  # each word has one piece with "▁", its first
        ends = np.append(starts[1:], len(ids))
        starts = starts + np.where(leads, 0, 2)  # without "▁" and the mark
        alone = np.array([part == SPACE for part in parts], bool)
        starts, ends = np.where(alone, starts - 2, starts), np.where(alone, starts - 1, ends)
        flat, size = self.table[ids].tobytes(), self.table.itemsize
        return [flat[a:b] for a, b in zip((starts * size).tolist(), (ends * size).tolist(), strict=True)]


def sums(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sum of each run of values; `counts` says how long the runs are, and may say 0."""
    total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    ends = np.cumsum(counts, dtype=np.int64)
    return total[ends] - total[ends - counts]
