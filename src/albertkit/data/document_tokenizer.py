"""Blocks → token ids with word starts, and the ends of sentences, paragraphs and documents.

In: a `Block`. Out: `TokenizedDocuments`, numpy arrays. Before this file: `documents.py`, `sentences.py` and the
tokenizer; after it: `corpus.py`, which decides what is kept. This is most of the work of building a corpus, and runs
in every worker.

The tokens of a word do not depend on its neighbours, and few words make up most of a text. So `WordTokenizer`
tokenizes a word once and caches its bytes; a sentence is bytes joined. The ids equal those of `Tokenizer.ids_batch`.
A "word" is:

- unigram: what is between spaces. A new one is first split at punctuation where no token of the vocabulary reaches
  across: "(Berlin)," is "▁", "(", "berlin", ")" and ",". The best tokenization of the whole is then that of its
  parts, and most parts are cached. This is done for ASCII, whose normalization goes letter by letter.
- WordPiece: a Chinese character, an ASCII punctuation mark, or what is between those and spaces. The tokenizer splits
  there by itself, before it looks at its vocabulary.

Against `ids_batch`, English Wikipedia takes four fifths of the time for the first 24 MB and two fifths when read
again, and Chinese Wikipedia with WordPiece less than a third.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from albertkit.data.documents import Block, parse_documents
from albertkit.data.sentences import split_sentences
from albertkit.data.shards import run_sums, token_dtype, token_ids, word_bit
from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.normalizer import CJK, SPACE, Normalizer

CACHE_CHARACTERS = 2_000_000  # of words in a generation; in all about 600,000 words and parts, in 150 MB
LOOKUP_SENTENCES = 1024  # looked up at a time
JOINED_PARTS = 256  # parts that the tokenizer gets as one text
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
WHOLE = "\ud800"  # marks a sentence that stands for a word: a lone surrogate, which no text from bytes contains
_HAN, _MARKS = "\u3400-\u4dbf\u4e00-\u9fff", re.escape(PUNCTUATION)
_CHUNKS = re.compile(f"[{_HAN}{_MARKS}]|[^ {_HAN}{_MARKS}]+")
_IDEOGRAPH = re.compile(f"[{CJK}]")


@dataclass(frozen=True)
class TokenizedDocuments:
    """The documents of one block as tokens; the arrays count what is in each part, in order."""

    tokens: np.ndarray  # (tokens,) ids, the highest bit set where a word starts
    sentences: np.ndarray  # (sentences,) tokens in each, never 0
    paragraphs: np.ndarray  # (paragraphs,) sentences in each
    documents: np.ndarray  # (documents,) paragraphs in each
    paragraph_hashes: np.ndarray  # (paragraphs,) uint64; empty unless paragraphs are deduplicated
    document_hashes: np.ndarray  # (documents,) uint64
    is_inside: bool  # the first document continues the last one of the block before
    unknown: int  # tokens that are [UNK]
    bad_lines: int  # lines that were not text, skipped


@dataclass(frozen=True)
class TokenizeSettings:
    """What a worker needs besides the tokenizer."""

    max_sentence: int = 512
    hash_paragraphs: bool = False
    skip_bad: bool = False


def word_start_table(tokenizer: Tokenizer) -> np.ndarray:
    """Which tokens start a word: bool (vocabulary,). The first token of a sentence always does.

    Unigram: tokens that begin with "▁", an ideograph or kana, and punctuation. WordPiece: all but the "##" tokens.
    """
    tokens = tokenizer.vocabulary.tokens
    if tokenizer.kind == "wordpiece":
        return np.array([not token.startswith("##") for token in tokens])
    return np.array([token.startswith(SPACE) or _is_own_word(token) for token in tokens])


def _is_own_word(token: str) -> bool:
    if not token:
        return False
    return _IDEOGRAPH.match(token) is not None or all(unicodedata.category(c)[0] in "PS" for c in token)


class DocumentTokenizer:
    """Blocks to tokens, for one tokenizer; its cache changes no result."""

    def __init__(self, tokenizer: Tokenizer, settings: TokenizeSettings):
        self.tokenizer, self.settings = tokenizer, settings
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.bit = self.dtype.type(word_bit(self.dtype))
        table = np.arange(tokenizer.vocab_size, dtype=self.dtype)  # id → id with its bit
        table[word_start_table(tokenizer)] |= self.bit
        self.words = WordTokenizer(tokenizer, table)

    def __call__(self, block: Block) -> TokenizedDocuments:
        """The tokens of a block."""
        found = parse_documents(block, self.settings.skip_bad)
        hashes = [hash64("\n".join(document)) for document in found.paragraphs]
        paragraphs = [paragraph for document in found.paragraphs for paragraph in document]
        sentence_lists = [split_sentences(paragraph) for paragraph in paragraphs]
        tokens, sentences, counts = self.encode([sentence for part in sentence_lists for sentence in part])
        unknown = 0
        if self.tokenizer.unk_id is not None:
            unknown = int(np.count_nonzero(token_ids(tokens) == self.tokenizer.unk_id))
        return TokenizedDocuments(
            tokens,
            sentences,
            run_sums(counts, np.array([len(part) for part in sentence_lists], np.int64)),
            np.array([len(document) for document in found.paragraphs], np.int64),
            np.array([hash64(p) for p in paragraphs] if self.settings.hash_paragraphs else [], np.uint64),
            np.array(hashes, np.uint64),
            found.is_inside,
            unknown,
            found.bad_lines,
        )

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, the length of each resulting sentence, and how many resulted from each that was given.

        A sentence without tokens gives none, and one that is too long gives several.
        """
        data, lengths = self.words(sentences)
        tokens = np.frombuffer(data, self.dtype).copy()
        counts = np.minimum(lengths, 1)
        if len(lengths) and int(lengths.max()) > self.settings.max_sentence:
            lengths, counts = self._split_long(tokens, lengths)
        lengths = lengths[lengths > 0]
        if len(tokens):
            tokens[np.cumsum(lengths) - lengths] |= self.bit
        return tokens, lengths, counts

    def _split_long(self, tokens: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Long sentences in parts of at most `max_sentence` tokens, cut before a word where one starts."""
        most = self.settings.max_sentence
        result: list[int] = []
        counts = np.minimum(lengths, 1)
        start = 0
        for number, length in enumerate(lengths.tolist()):
            end = start + length
            while end - start > most:
                starts = np.flatnonzero(tokens[start + 1 : start + most + 1] & self.bit)
                size = int(starts[-1]) + 1 if len(starts) else most
                result.append(size)
                start += size
                counts[number] += 1
            result.append(end - start)
            start = end
        return np.array(result, np.int64), counts


class WordTokenizer:
    """Sentences to the bytes of their token ids, for one tokenizer; its cache changes no result."""

    def __init__(self, tokenizer: Tokenizer, table: np.ndarray):
        """`table` gives for each id the number that is stored: the id, with the bit of a word start."""
        self.tokenizer, self.table = tokenizer, table
        self.split_words: Callable[[str], list[str]] = _CHUNKS.findall if tokenizer.kind == "wordpiece" else str.split
        splitter = PunctuationSplitter(tokenizer, table) if tokenizer.kind == "unigram" else None
        self.splitter = splitter if splitter is not None and splitter.is_usable else None
        self.cache, self.part_cache = WordCache(CACHE_CHARACTERS), WordCache(CACHE_CHARACTERS // 2)

    def __call__(self, sentences: list[str]) -> tuple[bytes, np.ndarray]:
        """The bytes of all sentences, and the number of tokens in each."""
        some = [
            self._lookup(sentences[at : at + LOOKUP_SENTENCES]) for at in range(0, len(sentences), LOOKUP_SENTENCES)
        ]
        lengths = [np.zeros(0, np.int64), *(length for _, length in some)]
        return b"".join(data for data, _ in some), np.concatenate(lengths)

    def _lookup(self, sentences: list[str]) -> tuple[bytes, np.ndarray]:
        rows = list(map(self.split_words, sentences))
        if self.tokenizer.kind == "unigram":
            for number, sentence in enumerate(sentences):
                if SPACE in sentence:  # a literal "▁" joins words
                    rows[number] = [WHOLE + sentence]
        words = list(itertools.chain.from_iterable(rows))
        self.cache.start_generation()
        found: list[Any] = list(map(self.cache.new.get, words))  # bytes, and None where a word is new
        absent = [number for number, there in enumerate(found) if there is None]
        self._add_words(self.cache.missing({words[number] for number in absent}))
        for number in absent:
            found[number] = self.cache.new[words[number]]
        sizes = np.fromiter(map(len, found), np.int64, len(found)) // self.table.itemsize
        return b"".join(found), run_sums(sizes, np.array([len(row) for row in rows], np.int64))

    def _add_words(self, words: list[str]) -> None:
        """Tokenize and cache some words."""
        if self.splitter is not None:
            ascii_words = [word for word in words if word.isascii() and word.isprintable()]
            words = [word for word in words if not (word.isascii() and word.isprintable())]
            rows = self.splitter.split(ascii_words)
            self.part_cache.start_generation()
            fresh = self.part_cache.missing(set().union(*rows))
            self.part_cache.add(fresh, self.splitter.encode_parts(fresh))
            find, join = self.part_cache.new.__getitem__, b"".join
            self.cache.add(ascii_words, [find(row[0]) if len(row) == 1 else join(map(find, row)) for row in rows])
        found = self.tokenizer.ids_batch([word[1:] if word[0] == WHOLE else word for word in words])
        self.cache.add(words, [self.table[ids].tobytes() for ids in found])


class WordCache:
    """Words and their bytes, in two generations: when the new one is full the old one is dropped."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity  # characters
        self.new: dict[str, bytes] = {}
        self.old: dict[str, bytes] = {}
        self.size = 0

    def start_generation(self) -> None:
        """Begin a new generation if this one is full."""
        if self.size > self.capacity:
            self.old, self.new, self.size = self.new, {}, 0

    def missing(self, words: set[str]) -> list[str]:
        """Those that are not cached; what only the old generation has moves to the new one."""
        absent = words.difference(self.new)
        fresh = absent.difference(self.old)
        old = self.old
        moved = {word: old[word] for word in absent.difference(fresh)}
        self.new.update(moved)
        self.size += sum(map(len, moved))
        return list(fresh)

    def add(self, words: list[str], found: list[bytes]) -> None:
        """Cache some words."""
        self.new.update(zip(words, found, strict=True))
        self.size += sum(map(len, words))


class PunctuationSplitter:
    """Splits printable ASCII words at marks that no token of a unigram vocabulary joins to their neighbours."""

    def __init__(self, tokenizer: Tokenizer, table: np.ndarray):
        vocabulary = tokenizer.vocabulary
        self.tokenizer, self.table, self.lower = tokenizer, table, vocabulary.lower
        # which characters the tokens have before and after each mark
        before: dict[str, set[str]] = {c: set() for c in PUNCTUATION if c in vocabulary.ids}
        after: dict[str, set[str]] = {c: set() for c in before}
        for i, token in enumerate(vocabulary.tokens):
            if i not in vocabulary.hidden:
                for one, two in itertools.pairwise(token):
                    if two in before:
                        before[two].add(one)
                    if one in after:
                        after[one].add(two)
        self.separate_marks = [c for c in before if not before[c] and not after[c]]  # they are tokens of their own
        trailing = [c for c in before if c not in self.separate_marks and not any(map(str.isalpha, before[c]))]
        self.trailing_mark = re.compile(rf"([A-Za-z])(?=[{re.escape(''.join(trailing))}])") if trailing else None
        self.has_space = np.array([token.startswith(SPACE) for token in vocabulary.tokens])
        plain = Normalizer(vocabulary.charsmap, vocabulary.lower, vocabulary.strip_accents).plain_ascii
        inner = any(SPACE in token[1:] for token in vocabulary.tokens)
        # a part from within a word is tokenized after this mark, which is then removed
        self.anchor = self.separate_marks[0] if self.separate_marks else ""
        plain = plain and not vocabulary.split_scripts
        self.is_usable = plain and not inner and bool(self.anchor) and len(tokenizer.ids_batch([self.anchor])[0]) == 2

    def split(self, words: list[str]) -> list[list[str]]:
        """The parts of each word; the first begins with "▁"."""
        text = SPACE + f"\n{SPACE}".join(words)
        text = text.lower() if self.lower else text
        for mark in self.separate_marks:
            text = text.replace(mark, f" {mark} ")
        if self.trailing_mark is not None:
            text = self.trailing_mark.sub(r"\1 ", text)
        return [line.split() for line in text.split("\n")] if words else []

    def encode_parts(self, parts: list[str]) -> list[bytes]:
        """The bytes of each part. The tokenizer gets them as words of a few long texts, which is faster."""
        leads = [part[0] == SPACE and part != SPACE for part in parts]
        words = [part[1:] if lead else self.anchor + part.strip(SPACE) for part, lead in zip(parts, leads, strict=True)]
        texts = [" ".join(words[at : at + JOINED_PARTS]) for at in range(0, len(words), JOINED_PARTS)]
        ids = np.array([i for row in self.tokenizer.ids_batch(texts) for i in row], np.int64)
        starts = np.flatnonzero(self.has_space[ids])  # each word has one token with "▁", its first
        ends = np.append(starts[1:], len(ids))
        starts = starts + np.where(leads, 0, 2)  # without "▁" and the mark
        alone = np.array([part == SPACE for part in parts], bool)
        starts, ends = np.where(alone, starts - 2, starts), np.where(alone, starts - 1, ends)
        flat, size = self.table[ids].tobytes(), self.table.itemsize
        return [flat[a:b] for a, b in zip((starts * size).tolist(), (ends * size).tolist(), strict=True)]


def hash64(text: str) -> int:
    """64 bits of BLAKE2, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little")
