"""Blocks of documents → token ids, in one process or in several.

In: a `Block`. Out: `TokenizedDocuments`, ready for shards. Before this file: `documents.py` and `sentences.py`; after
it: `corpus.py`, which drops duplicates. The tokens of a word do not depend on its neighbours, so `WordTokenizer`
tokenizes each distinct word once. The ids equal those of `Tokenizer.ids_batch`.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import multiprocessing
import os
import re
import signal
import threading
import unicodedata
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from albertkit.cpu_cores import cores
from albertkit.data.corpus_folder import CorpusSettings
from albertkit.data.documents import Block, parse_documents
from albertkit.data.sentences import split_sentences
from albertkit.data.shards import run_sums, token_dtype, token_ids, word_bit
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.normalizer import CJK, SPACE

CACHED_CHARACTERS = 4_000_000  # total length of cached words; about 600,000 words in 150 MB
LOOKUP_SENTENCES = 1024  # sentences looked up at a time
WAITING = 2  # blocks queued for each worker, so that it never idles
WHOLE = "\ud800"  # marks a sentence that is tokenized as a whole: a lone surrogate, which decoded text never contains
_HAN, _MARKS = "\u3400-\u4dbf\u4e00-\u9fff", re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_CHUNKS = re.compile(f"[{_HAN}{_MARKS}]|[^ {_HAN}{_MARKS}]+")
_IDEOGRAPH = re.compile(f"[{CJK}]")


@dataclass(frozen=True)
class TokenizedDocuments:
    """The documents of one block as tokens."""

    tokens: np.ndarray  # (tokens,) ids, the highest bit set where a word starts
    sentences: np.ndarray  # (sentences,) tokens in each, at least 1
    documents: np.ndarray  # (documents,) sentences in each, 0 or more
    hashes: np.ndarray  # (documents,) uint64, of their texts
    is_inside: bool  # the first document continues the last one of the previous block
    unknown: int  # tokens that are [UNK]
    bad_lines: int  # skipped lines that were not text


def word_start_table(tokenizer: Tokenizer) -> np.ndarray:
    """Which tokens start a word, bool (vocabulary,). The first token of a sentence always does.

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
    """Blocks to tokens, for one tokenizer. The cache does not change results."""

    def __init__(self, tokenizer: Tokenizer, settings: CorpusSettings):
        self.tokenizer, self.settings = tokenizer, settings
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.bit = self.dtype.type(word_bit(self.dtype))
        table = np.arange(tokenizer.vocab_size, dtype=self.dtype)  # id → id with its bit
        table[word_start_table(tokenizer)] |= self.bit
        self.words = WordTokenizer(tokenizer, table)

    def __call__(self, block: Block) -> TokenizedDocuments:
        parsed = parse_documents(block, self.settings.skip_bad)
        sentences = [[s for text in document for s in split_sentences(text)] for document in parsed.paragraphs]
        tokens, lengths, counts = self.encode([sentence for document in sentences for sentence in document])
        unknown = self.tokenizer.unk_id
        return TokenizedDocuments(
            tokens,
            lengths,
            run_sums(counts, np.array([len(document) for document in sentences], np.int64)),
            np.array([hash64("\n".join(document)) for document in parsed.paragraphs], np.uint64),
            parsed.is_inside,
            0 if unknown is None else int(np.count_nonzero(token_ids(tokens) == unknown)),
            parsed.bad_lines,
        )

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens, the length of each output sentence, and the number of output sentences per input sentence.

        A sentence without tokens is dropped, and one that is too long is split.
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
        """Split long sentences into parts of at most `max_sentence` tokens, at the start of a word if possible."""
        limit = self.settings.max_sentence
        result: list[int] = []
        counts = np.minimum(lengths, 1)
        start = 0
        for number, length in enumerate(lengths.tolist()):
            end = start + length
            while end - start > limit:
                starts = np.flatnonzero(tokens[start + 1 : start + limit + 1] & self.bit)
                size = int(starts[-1]) + 1 if len(starts) else limit
                result.append(size)
                start += size
                counts[number] += 1
            result.append(end - start)
            start = end
        return np.array(result, np.int64), counts


class WordTokenizer:
    """Sentences to the bytes of their token ids, for one tokenizer. The cache does not change results.

    Spaces separate words. For WordPiece, Chinese characters and ASCII punctuation marks are also words, since the
    tokenizer splits there before it uses its vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, table: np.ndarray):
        """`table` has the stored number of each id: the id, with the bit of a word start."""
        self.tokenizer, self.table = tokenizer, table
        self.split_words: Callable[[str], list[str]] = _CHUNKS.findall if tokenizer.kind == "wordpiece" else str.split
        self.cache: dict[str, bytes] = {}
        self.cached_characters = 0

    def __call__(self, sentences: list[str]) -> tuple[bytes, np.ndarray]:
        """The bytes of all sentences, and the number of tokens in each."""
        starts = range(0, len(sentences), LOOKUP_SENTENCES)
        groups = [self._lookup(sentences[start : start + LOOKUP_SENTENCES]) for start in starts]
        lengths = [np.zeros(0, np.int64), *(length for _, length in groups)]
        return b"".join(data for data, _ in groups), np.concatenate(lengths)

    def _lookup(self, sentences: list[str]) -> tuple[bytes, np.ndarray]:
        rows = list(map(self.split_words, sentences))
        if self.tokenizer.kind == "unigram":
            for number, sentence in enumerate(sentences):
                if SPACE in sentence:  # a literal "▁" joins words
                    rows[number] = [WHOLE + sentence]
        words = list(itertools.chain.from_iterable(rows))
        self._cache_words(set(words))
        encoded = list(map(self.cache.__getitem__, words))
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded)) // self.table.itemsize
        return b"".join(encoded), run_sums(sizes, np.array([len(row) for row in rows], np.int64))

    def _cache_words(self, words: set[str]) -> None:
        """Tokenize the words that are not cached; a full cache is emptied first."""
        if self.cached_characters > CACHED_CHARACTERS:
            self.cache, self.cached_characters = {}, 0
        new = list(words.difference(self.cache))
        ids = self.tokenizer.ids_batch([word[1:] if word[0] == WHOLE else word for word in new])
        self.cache.update(zip(new, [self.table[row].tobytes() for row in ids], strict=True))
        self.cached_characters += sum(map(len, new))


def hash64(text: str) -> int:
    """64 bits of BLAKE2, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little")


# Several processes --------------------------------------------------------------------------------------------------


TokenizedBlocks = Generator[tuple[Block, TokenizedDocuments], None, None]


def worker_count(count: int | None) -> int:
    """The number of workers; by default one per core."""
    if count is None:
        return min(cores(), 64)
    if not 1 <= count <= 256:
        raise AlbertkitError(f"workers={count} is out of range: it must be from 1 to 256. Pass the number of cores.")
    return count


def _submit(
    pool: ProcessPoolExecutor, block: Block, tokenizer: Path, settings: CorpusSettings
) -> Future[TokenizedDocuments]:
    try:
        return pool.submit(_tokenize, block, tokenizer, settings)
    except OSError:  # the pool closes its pipe while it breaks
        raise BrokenProcessPool from None


def tokenize_blocks(
    blocks: Iterable[Block], tokenizer: Path, settings: CorpusSettings, workers: int = 1
) -> TokenizedBlocks:
    """Each block with its tokens, in order. With one worker, this process tokenizes."""
    if workers == 1:
        tokenize = DocumentTokenizer(Tokenizer.load(tokenizer, trusted=True), settings)
        yield from ((block, tokenize(block)) for block in blocks)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_worker)
    waiting: deque[tuple[Block, Future[TokenizedDocuments]]] = deque()
    try:
        for block in blocks:
            waiting.append((block, _submit(pool, block, tokenizer, settings)))
            if len(waiting) > WAITING * workers:
                first, result = waiting.popleft()
                yield first, result.result()
        yield from ((block, result.result()) for block, result in waiting)
    except BrokenProcessPool:
        raise AlbertkitError(
            "a worker process was killed, perhaps because memory ran out. Rerun the command with fewer --workers."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _tokenize(block: Block, tokenizer: Path, settings: CorpusSettings) -> TokenizedDocuments:
    return _load_tokenizer(tokenizer, settings)(block)


@cache
def _load_tokenizer(tokenizer: Path, settings: CorpusSettings) -> DocumentTokenizer:
    return DocumentTokenizer(Tokenizer.load(tokenizer, trusted=True), settings)


def _start_worker() -> None:
    follow_parent()
    gc.disable()  # there are no reference cycles, and garbage collection takes a tenth of the time


def follow_parent() -> None:
    """In a worker process: let the parent handle Ctrl-C, and end when it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
