"""Texts to distil sentence vectors from, as token ids sorted by length: drawn from shards, or made by a grammar.

In: the shards of `corpus.py`. Out: `Passages`, ragged ids on disk. After this file: `train/teachers.py` computes a
target vector for each. `everyday_sentences` adds what encyclopaedias and old books hardly contain: what people do,
questions, requests, headlines, opinions. They are made from `everyday_grammar.json`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from albertkit.data.shards import Shard, token_ids, word_starts
from albertkit.errors import AlbertkitError
from albertkit.file_io import read_json

MAX_WORD_TOKENS = 4  # of a word that is a text by itself, or replaces another
SAMPLED_WORDS = 4_000_000  # words among which different ones are looked for, for each number of tokens
GRAMMAR = Path(__file__).with_name("everyday_grammar.json")
NAME = re.compile(r"\{(\w+)\}")
TRIES_PER_SENTENCE = 20  # before the grammar counts as exhausted
MIN_COUNT = 2  # times that a word is seen there


@dataclass(frozen=True)
class PassageShares:
    """How many texts of each kind, for each sentence of the corpus."""

    sentences: float = 0.8
    passages: float = 0.15  # of two to eight sentences
    phrases: float = 0.25  # of two to ten words from inside a sentence
    questions: float = 1.0  # sentences that end with a question mark
    openings: float = 1.0  # of documents: often a definition or a title
    variants: float = 0.25  # sentences with one to three words replaced, to show what a single word changes
    words: float = 1.0  # of the different words, not of the sentences
    longest: int = 254  # tokens of the longest passage, without special ones


@dataclass(frozen=True)
class Passages:
    """Texts as token ids, without special tokens, shortest first."""

    ids: np.ndarray  # (tokens,) uint16 or uint32
    ends: np.ndarray  # (texts,) int64

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, at: int) -> np.ndarray:
        return self.ids[self.ends[at - 1] if at else 0 : self.ends[at]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text."""
        return np.diff(self.ends, prepend=0)

    def save(self, folder: Path) -> None:
        """Write two arrays."""
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "ids.npy", self.ids)
        np.save(folder / "ends.npy", self.ends)

    @classmethod
    def open(cls, folder: Path) -> Passages:
        """The arrays, memory-mapped."""
        try:
            found = [np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ("ids", "ends")]
        except (OSError, ValueError) as error:
            raise AlbertkitError(f"{folder} contains no passages ({error}). Draw them first.") from None
        return cls(*found)


def draw_passages(
    shards: Sequence[Shard],
    question_mark: int | None,
    shares: PassageShares,
    seed: int = 0,
    more: Sequence[Sequence[int]] = (),
) -> Passages:
    """Texts of all kinds from all shards, each once, and the `more` that are passed, as ids."""
    starts: list[np.ndarray] = []
    stops: list[np.ndarray] = []
    offset = 0
    for number, shard in enumerate(shards):
        begin, end = draw_spans(shard, question_mark, shares, np.random.default_rng([seed, number]))
        starts.append(begin + offset)
        stops.append(end + offset)
        offset += len(shard.tokens)
    marked = np.concatenate([np.asarray(shard.tokens) for shard in shards])
    whole, words = token_ids(marked), np.flatnonzero(word_starts(marked))
    rng = np.random.default_rng([seed, len(shards)])
    known = find_distinct_words(whole, words, rng)
    for size, places in known.items():
        some = places[rng.random(len(places)) < shares.words]
        starts.append(some)
        stops.append(some + size)
    begin, end = np.concatenate(starts), np.concatenate(stops)
    pairs = np.unique(begin * (2**20) + (end - begin))  # the same span drawn twice is one text
    begin, length = pairs >> 20, pairs & (2**20 - 1)
    texts = gather_spans(whole, begin, length)
    at = np.flatnonzero((length >= 6) & (length <= 48) & (rng.random(len(length)) < shares.variants))
    variants = exchange_words(whole, words, known, begin[at], length[at], rng)
    own = np.fromiter((token for text in more for token in text), texts.dtype)
    own_lengths = np.fromiter((len(text) for text in more), np.int64, len(more))
    tokens, lengths = np.concatenate([texts, variants, own]), np.concatenate([length, length[at], own_lengths])
    order = np.argsort(lengths, kind="stable")
    begin, lengths = (np.cumsum(lengths) - lengths)[order], lengths[order]
    return Passages(gather_spans(tokens, begin, lengths), np.cumsum(lengths))


def gather_spans(whole: np.ndarray, begin: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The tokens of some spans, one after the other."""
    ends = np.cumsum(length)
    return whole[np.repeat(begin - (ends - length), length) + np.arange(ends[-1] if len(ends) else 0)]


def find_distinct_words(whole: np.ndarray, words: np.ndarray, rng: np.random.Generator) -> dict[int, np.ndarray]:
    """One position of each different word that occurs repeatedly, by its number of tokens; `words`: starts of words."""
    sizes = np.diff(words, append=len(whole))
    found = {}
    for size in range(1, MAX_WORD_TOKENS + 1):
        places = words[sizes == size]
        if len(places) > SAMPLED_WORDS:
            places = places[rng.integers(0, len(places), SAMPLED_WORDS)]
        if len(places):
            rows = whole[places[:, None] + np.arange(size)]
            _, first, times = np.unique(rows, axis=0, return_index=True, return_counts=True)
            found[size] = np.sort(places[first[times >= MIN_COUNT]])
    return found


def distinct_words(shards: Sequence[Shard], seed: int = 0) -> list[list[int]]:
    """The different words of the first shard, as ids."""
    marked = np.asarray(shards[0].tokens)
    whole = token_ids(marked)
    known = find_distinct_words(whole, np.flatnonzero(word_starts(marked)), np.random.default_rng(seed))
    return [whole[place : place + size].tolist() for size, places in known.items() for place in places]


def exchange_words(
    whole: np.ndarray,
    words: np.ndarray,
    known: dict[int, np.ndarray],
    begin: np.ndarray,
    length: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """The spans with one to three words replaced by `known` words of as many tokens."""
    tokens = gather_spans(whole, begin, length)
    sizes = np.diff(words, append=len(whole))  # of each word
    first, after = np.searchsorted(words, begin), np.searchsorted(words, begin + length)
    offset = np.cumsum(length) - length
    times = rng.integers(1, 4, len(begin))
    for turn in range(3):
        chosen = first + (rng.random(len(begin)) * np.maximum(1, after - first)).astype(np.int64)
        chosen = np.minimum(chosen, len(words) - 1)
        inside = (words[chosen] >= begin) & (words[chosen] + sizes[chosen] <= begin + length) & (times > turn)
        for size, pool in known.items():
            here = np.flatnonzero(inside & (sizes[chosen] == size))
            if not len(pool) or not len(here):
                continue
            other = pool[rng.integers(0, len(pool), len(here))]
            to = offset[here] + words[chosen[here]] - begin[here]
            for step in range(size):
                tokens[to + step] = whole[other + step]
    return tokens


def draw_spans(
    shard: Shard, question_mark: int | None, shares: PassageShares, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Token ranges of the texts of one shard."""
    ends = np.asarray(shard.sentences, np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    lengths = ends - starts
    documents = np.asarray(shard.documents, np.int64)
    last = documents[np.searchsorted(documents, np.arange(len(ends)), side="right")]  # end of each one's document
    tokens = np.asarray(shard.tokens)
    found: list[tuple[np.ndarray, np.ndarray]] = []

    def some(share: float, which: np.ndarray) -> np.ndarray:
        return np.asarray(which[rng.random(len(which)) < share])

    whole = np.flatnonzero((lengths >= 4) & (lengths <= shares.longest))
    at = some(shares.sentences, whole)
    found.append((starts[at], ends[at]))
    if question_mark is not None:
        asks = whole[token_ids(tokens[ends[whole] - 1]) == question_mark]
        at = some(shares.questions, asks)
        found.append((starts[at], ends[at]))
    at = some(shares.openings, np.concatenate([[0], documents[:-1]]))
    at = at[lengths[at] <= shares.longest]
    found.append((starts[at], ends[at]))
    at = some(shares.passages, whole)
    stop = np.minimum(at + rng.integers(2, 9, len(at)), last[at])
    stop = np.minimum(stop, np.searchsorted(ends, starts[at] + shares.longest, side="right"))
    kept = stop > at + 1
    found.append((starts[at[kept]], ends[stop[kept] - 1]))
    at = some(shares.phrases, whole[lengths[whole] >= 12])
    found.append(_phrases(tokens, starts[at], ends[at], rng))
    return np.concatenate([a for a, _ in found]), np.concatenate([b for _, b in found])


def _phrases(
    tokens: np.ndarray, starts: np.ndarray, ends: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Two to ten whole words from inside each sentence."""
    words = np.flatnonzero(word_starts(tokens))
    first, after = np.searchsorted(words, starts), np.searchsorted(words, ends)
    count = rng.integers(2, 11, len(starts))
    room = after - first - count
    kept = room > 0
    begin = first[kept] + (rng.random(int(kept.sum())) * room[kept]).astype(np.int64)
    return words[begin], words[np.minimum(begin + count[kept], len(words) - 1)]


@cache
def everyday_grammar() -> dict[str, list[str]]:
    """The choices under each name; a name in braces inside a choice stands for one of its choices."""
    return read_json(GRAMMAR)


def everyday_sentences(
    count: int, seed: int = 0, words: Sequence[str] = (), grammar: Mapping[str, Sequence[str]] | None = None
) -> Iterator[str]:
    """`count` different sentences, or fewer if the grammar has no more; the same ones for the same seed.

    words: in half of the sentences one word is replaced by one of these, since the grammar contains only some hundreds.
    grammar: the choices under each name, beginning with `text` [default: `everyday_grammar.json`, in English].
    """
    rng, choices = random.Random(seed), grammar or everyday_grammar()
    seen: set[int] = set()
    for _ in range(count * TRIES_PER_SENTENCE):
        if len(seen) == count:
            return
        text = "{text}"
        while "{" in text:  # replace names in braces until none is left
            text = NAME.sub(lambda name: rng.choice(choices[name[1]]), text)
        if words and rng.random() < 0.5:
            parts = text.split(" ")
            parts[rng.randrange(len(parts))] = rng.choice(words)
            text = " ".join(parts)
        key = hash(text)
        if key not in seen:
            seen.add(key)
            yield text
