"""Tokenized documents → shard files, each written completely or not at all.

In: the documents that are documents, block by block. Out: three .npy files for each full shard, and the entry that
the manifest has for it. Before this file: `document_tokenizer.py`; after it: `corpus.py`, and `shards.py`, which
opens what is written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.data.shards import run_sums, token_ids, word_starts
from albertkit.file_io import flush


@dataclass(frozen=True)
class DocumentArrays:
    """Some documents as tokens."""

    tokens: np.ndarray  # (tokens,) with word starts
    sentences: np.ndarray  # (sentences,) tokens in each
    documents: np.ndarray  # (documents,) sentences in each

    @classmethod
    def empty(cls, dtype: np.dtype[Any]) -> DocumentArrays:
        """No document."""
        return cls(np.zeros(0, dtype), np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class WrittenShard:
    """A finished shard."""

    entry: dict[str, Any]  # as the manifest has it
    unigrams: np.ndarray  # (vocabulary,) int64


class ShardWriter:
    """Fills and writes the shards of one split."""

    def __init__(self, folder: Path, split: str, dtype: Any, vocabulary: int, capacity: int):
        self.folder, self.split, self.vocabulary, self.capacity = folder, split, vocabulary, capacity
        self.tokens = np.zeros(capacity, dtype)  # uses memory only as far as it is filled
        self.used = 0
        self.sentences: list[np.ndarray] = []
        self.documents: list[np.ndarray] = []

    def add(self, documents: DocumentArrays, number: int) -> Iterator[WrittenShard]:
        """Add documents; each full shard is written, as number, number + 1, …"""
        counts = self._split_long(documents)
        sentence_ends = np.cumsum(np.concatenate([[0], counts]))
        lengths = np.concatenate([[0], np.cumsum(documents.sentences)])
        token_ends = lengths[sentence_ends]  # where each document ends; 0 first
        at = 0
        while at < len(counts):
            stop = int(np.searchsorted(token_ends, token_ends[at] + self.capacity - self.used, "right")) - 1
            if stop == at:
                yield self.close(number)
                number += 1
                continue
            part = slice(int(token_ends[at]), int(token_ends[stop]))
            size = part.stop - part.start
            self.tokens[self.used : self.used + size] = documents.tokens[part]
            self.used += size
            self.sentences.append(documents.sentences[sentence_ends[at] : sentence_ends[stop]])
            self.documents.append(counts[at:stop])
            at = stop

    def _split_long(self, documents: DocumentArrays) -> np.ndarray:
        """The sentences in each document; a document larger than a shard becomes several."""
        sizes = run_sums(documents.sentences, documents.documents)
        if not len(sizes) or int(sizes.max()) <= self.capacity:
            return documents.documents
        counts: list[int] = []
        start = 0
        for count, size in zip(documents.documents.tolist(), sizes.tolist(), strict=True):
            if size <= self.capacity:
                counts.append(count)
            else:
                tokens = taken = 0
                for length in documents.sentences[start : start + count].tolist():
                    if tokens + length > self.capacity:
                        counts.append(taken)
                        tokens = taken = 0
                    tokens, taken = tokens + length, taken + 1
                counts.append(taken)
            start += count
        return np.array(counts, np.int64)

    def close(self, number: int) -> WrittenShard:
        """Write the pending documents as a shard, and begin the next."""
        name = f"{self.split}-{number:05d}"
        tokens = self.tokens[: self.used]
        documents = self.pending()
        arrays = {
            "tokens": tokens,
            "sentences": np.cumsum(documents.sentences).astype(np.uint32),
            "documents": np.cumsum(documents.documents).astype(np.uint32),
        }
        files = {f"{name}.{part}.npy": write_array(self.folder / f"{name}.{part}.npy", a) for part, a in arrays.items()}
        entry = {
            "name": name,
            **{part: len(array) for part, array in arrays.items()},
            "words": int(np.count_nonzero(word_starts(tokens))),
            "files": files,
        }
        unigrams = np.zeros(self.vocabulary, np.int64)
        for start in range(0, len(tokens), 1 << 20):  # bincount makes 64-bit numbers of what it counts
            unigrams += np.bincount(token_ids(tokens[start : start + (1 << 20)]), minlength=self.vocabulary)
        self.used, self.sentences, self.documents = 0, [], []
        return WrittenShard(entry, unigrams)

    def pending(self) -> DocumentArrays:
        """The documents that are not yet written."""
        none = np.zeros(0, np.int64)
        return DocumentArrays(
            self.tokens[: self.used],
            np.concatenate([none, *self.sentences]),
            np.concatenate([none, *self.documents]),
        )


class HashingFile:
    """A file that hashes what is written to it."""

    def __init__(self, file: Any):
        self.file, self.hash = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return self.file.write(data)


def write_array(path: Path, array: np.ndarray) -> str:
    """Write an .npy file completely or not at all; its SHA-256."""
    return _replace(path, lambda file: np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False))


def write_json(path: Path, data: object) -> None:
    """Write indented JSON completely or not at all."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    _replace(path, lambda file: file.write(text.encode()))


def _replace(path: Path, write: Any) -> str:
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            hashed = HashingFile(file)
            write(hashed)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        flush(path.parent)
    finally:
        part.unlink(missing_ok=True)
    return hashed.hash.hexdigest()
