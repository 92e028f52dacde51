"""Documents → token ids with word starts, and the ends of sentences, paragraphs and documents.

In: a `Block`. Out: `Pieces`, numpy arrays. Before this file: `documents.py` and `sentences.py`, and the tokenizer; after it:
`corpus.py`, which decides what is kept. This is most of the work of making a corpus, and runs in every worker.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass

import numpy as np

from albertkit.data.block_reader import Block
from albertkit.data.documents import documents
from albertkit.data.sentences import CJK, split
from albertkit.data.shards import ids, token_type, word_bit
from albertkit.data.word_cache import Words, sums
from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.normalizer import SPACE

_IDEOGRAPH = re.compile(f"[{CJK}]")


@dataclass(frozen=True)
class Pieces:
    """What the documents of one block became; the arrays count what is in each part, in order."""

    tokens: np.ndarray  # (tokens,) ids, the highest bit set where a word starts
    sentences: np.ndarray  # (sentences,) tokens in each, never 0
    paragraphs: np.ndarray  # (paragraphs,) sentences in each
    documents: np.ndarray  # (documents,) paragraphs in each
    paragraph_hashes: np.ndarray  # (paragraphs,) uint64; empty when not asked for
    document_hashes: np.ndarray  # (documents,) uint64
    inside: bool  # the first document goes on with the last one of the block before
    unknown: int  # tokens that stand for something the vocabulary lacks
    bad: int  # lines that were no text


@dataclass(frozen=True)
class Rules:
    """What a worker has to know beside the tokenizer."""

    max_sentence: int = 512
    hash_paragraphs: bool = False
    skip_bad: bool = False


def start_table(tokenizer: Tokenizer) -> np.ndarray:
    """Which tokens start a word: bool (vocabulary,). The first token of a sentence always does.

    Unigram: pieces that begin with "▁", punctuation alone, and pieces that begin with an ideograph or kana. WordPiece:
    all but the "##" pieces.
    """
    tokens = tokenizer.vocabulary.tokens
    if tokenizer.kind == "wordpiece":
        return np.array([not token.startswith("##") for token in tokens])
    return np.array([token.startswith(SPACE) or _apart(token) for token in tokens])


def _apart(token: str) -> bool:
    if not token:
        return False
    return _IDEOGRAPH.match(token) is not None or all(unicodedata.category(c)[0] in "PS" for c in token)


class Cutter:
    """Blocks to pieces, for one tokenizer; what it remembers changes no result."""

    def __init__(self, tokenizer: Tokenizer, rules: Rules):
        self.tokenizer, self.rules = tokenizer, rules
        self.dtype = token_type(tokenizer.vocab_size)
        self.bit = self.dtype.type(word_bit(self.dtype))
        table = np.arange(tokenizer.vocab_size, dtype=self.dtype)  # id → id with its bit
        table[start_table(tokenizer)] |= self.bit
        self.words = Words(tokenizer, table)

    def __call__(self, block: Block) -> Pieces:
        """Read a block and cut it."""
        found = documents(block, self.rules.skip_bad)
        hashes = [hash64("\n".join(document)) for document in found.paragraphs]
        paragraphs = [paragraph for document in found.paragraphs for paragraph in document]
        split_up = [split(paragraph) for paragraph in paragraphs]
        tokens, sentences, made = self.encode([sentence for part in split_up for sentence in part])
        unknown = 0
        if self.tokenizer.unk_id is not None:
            unknown = int(np.count_nonzero(ids(tokens) == self.tokenizer.unk_id))
        return Pieces(
            tokens,
            sentences,
            sums(made, np.array([len(part) for part in split_up], np.int64)),
            np.array([len(document) for document in found.paragraphs], np.int64),
            np.array([hash64(p) for p in paragraphs] if self.rules.hash_paragraphs else [], np.uint64),
            np.array(hashes, np.uint64),
            found.inside,
            unknown,
            found.bad,
        )

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, the length of each sentence that came of it, and how many came of each that went in.

        None come of a sentence without tokens, and several of one that is too long.
        """
        data, lengths = self.words(sentences)
        tokens = np.frombuffer(data, self.dtype).copy()
        made = np.minimum(lengths, 1)
        if len(lengths) and int(lengths.max()) > self.rules.max_sentence:
            lengths, made = self._shorten(tokens, lengths)
        lengths = lengths[lengths > 0]
        if len(tokens):
            tokens[np.cumsum(lengths) - lengths] |= self.bit
        return tokens, lengths, made

    def _shorten(self, tokens: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Long sentences in parts of at most `max_sentence` tokens, cut before a word where one starts."""
        most = self.rules.max_sentence
        result: list[int] = []
        made = np.minimum(lengths, 1)
        start = 0
        for number, length in enumerate(lengths.tolist()):
            end = start + length
            while end - start > most:
                starts = np.flatnonzero(tokens[start + 1 : start + most + 1] & self.bit)
                size = int(starts[-1]) + 1 if len(starts) else most
                result.append(size)
                start += size
                made[number] += 1
            result.append(end - start)
            start = end
        return np.array(result, np.int64), made


def hash64(text: str) -> int:
    """64 bits of BLAKE2, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little")
