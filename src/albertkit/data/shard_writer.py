"""Pieces → shard files, each written whole or not at all.

In: the documents that are kept, block by block. Out: three .npy files for each full shard, and the entry that the
manifest has for it. Before this file: `pieces.py`; after it: `corpus.py`, and `shards.py`, which opens what is written.
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

from albertkit.artifact import flush
from albertkit.data.shards import ids, word_starts
from albertkit.data.word_cache import sums


@dataclass(frozen=True)
class Kept:
    """Documents on their way to a shard."""

    tokens: np.ndarray  # (tokens,) with word starts
    sentences: np.ndarray  # (sentences,) tokens in each
    documents: np.ndarray  # (documents,) sentences in each

    @classmethod
    def none(cls, dtype: Any) -> Kept:
        """No document."""
        return cls(np.zeros(0, dtype), np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Written:
    """A finished shard."""

    entry: dict[str, Any]  # as the manifest has it
    unigrams: np.ndarray  # (vocabulary,) int64


class Filling:
    """The shard of one split that is being filled."""

    def __init__(self, folder: Path, split: str, dtype: Any, vocabulary: int, room: int):
        self.folder, self.split, self.vocabulary, self.room = folder, split, vocabulary, room
        self.tokens = np.zeros(room, dtype)  # touched, and so in memory, only as far as it is filled
        self.used = 0
        self.sentences: list[np.ndarray] = []
        self.documents: list[np.ndarray] = []

    def add(self, kept: Kept, number: int) -> Iterator[Written]:
        """Take documents in; each time the shard is full it is written as number, number + 1, …"""
        documents = self._cut(kept)
        sentence_ends = np.cumsum(np.concatenate([[0], documents]))
        lengths = np.concatenate([[0], np.cumsum(kept.sentences)])
        token_ends = lengths[sentence_ends]  # where each document ends; 0 first
        at = 0
        while at < len(documents):
            stop = int(np.searchsorted(token_ends, token_ends[at] + self.room - self.used, "right")) - 1
            if stop == at:
                yield self.close(number)
                number += 1
                continue
            part = slice(int(token_ends[at]), int(token_ends[stop]))
            size = part.stop - part.start
            self.tokens[self.used : self.used + size] = kept.tokens[part]
            self.used += size
            self.sentences.append(kept.sentences[sentence_ends[at] : sentence_ends[stop]])
            self.documents.append(documents[at:stop])
            at = stop

    def _cut(self, kept: Kept) -> np.ndarray:
        """The sentences in each document, where one that does not fit an empty shard has become several."""
        sizes = sums(kept.sentences, kept.documents)
        if not len(sizes) or int(sizes.max()) <= self.room:
            return kept.documents
        counts: list[int] = []
        start = 0
        for count, size in zip(kept.documents.tolist(), sizes.tolist(), strict=True):
            if size <= self.room:
                counts.append(count)
            else:
                held = taken = 0
                for length in kept.sentences[start : start + count].tolist():
                    if held + length > self.room:
                        counts.append(taken)
                        held = taken = 0
                    held, taken = held + length, taken + 1
                counts.append(taken)
            start += count
        return np.array(counts, np.int64)

    def close(self, number: int) -> Written:
        """Write what there is as a shard, and begin the next."""
        name = f"{self.split}-{number:05d}"
        tokens = self.tokens[: self.used]
        kept = self.held()
        arrays = {
            "tokens": tokens,
            "sentences": np.cumsum(kept.sentences).astype(np.uint32),
            "documents": np.cumsum(kept.documents).astype(np.uint32),
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
            unigrams += np.bincount(ids(tokens[start : start + (1 << 20)]), minlength=self.vocabulary)
        written = Written(entry, unigrams)
        self.used, self.sentences, self.documents = 0, [], []
        return written

    def held(self) -> Kept:
        """What is in the shard now."""
        none = np.zeros(0, np.int64)
        return Kept(
            self.tokens[: self.used],
            np.concatenate([none, *self.sentences]),
            np.concatenate([none, *self.documents]),
        )


class _Hashed:
    """A file that hashes what is written to it."""

    def __init__(self, file: Any):
        self.file, self.hash = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return self.file.write(data)


def write_array(path: Path, array: np.ndarray) -> str:
    """Write an .npy file, whole or not at all; its SHA-256."""
    return _replace(path, lambda file: np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False))


def write_json(path: Path, data: Any) -> None:
    """Write readable JSON, whole or not at all."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    _replace(path, lambda file: file.write(text.encode()))


def _replace(path: Path, write: Any) -> str:
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            hashed = _Hashed(file)
            write(hashed)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        flush(path.parent)
    finally:
        part.unlink(missing_ok=True)
    return hashed.hash.hexdigest()
