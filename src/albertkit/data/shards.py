"""A corpus folder: token ids in memory-mapped arrays, with the ends of sentences and documents. No torch here.

    manifest.json               counts, settings, inputs, and the hash of each file; written last
    tokenizer/                  the tokenizer of the ids
    unigrams.npy                int64 (vocabulary,): how often each id occurs in the train split
    train-00000.tokens.npy      uint16 or uint32: ids of all sentences; the highest bit is set where a word starts
    train-00000.sentences.npy   uint32: the token at which each sentence ends
    train-00000.documents.npy   uint32: the sentence at which each document ends

`corpus.py` fills a `ShardWriter` for each split; `row_stream.py` and `passages.py` read `Shards`. Each file is written
atomically.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from albertkit.errors import AlbertkitError, check_choice
from albertkit.file_io import digest, flush, json_bytes, read_json
from albertkit.tokenizer import Tokenizer

FORMAT = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
UNIGRAMS = "unigrams.npy"
SPLITS = ("train", "held-out")
PARTS = ("tokens", "sentences", "documents")
UINT16_VOCABULARY = 1 << 15  # ids of a larger vocabulary leave no free bit in uint16


def token_dtype(vocabulary: int) -> np.dtype[Any]:
    """The dtype of stored ids for a vocabulary size; one bit marks word starts."""
    return np.dtype(np.uint16 if vocabulary <= UINT16_VOCABULARY else np.uint32)


def word_bit(dtype: np.dtype[Any]) -> int:
    """The bit that marks a word start: 0x8000 for uint16, 0x80000000 for uint32."""
    return 1 << (8 * np.dtype(dtype).itemsize - 1)


def token_ids(tokens: np.ndarray) -> np.ndarray:
    """The ids without the word bit, in the same dtype."""
    return tokens & tokens.dtype.type(word_bit(tokens.dtype) - 1)


def run_sums(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sum of each run of values; `counts` are the lengths of the runs, and may be 0."""
    total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    ends = np.cumsum(counts, dtype=np.int64)
    return total[ends] - total[ends - counts]


def word_starts(tokens: np.ndarray) -> np.ndarray:
    """True where a word starts."""
    return tokens >= tokens.dtype.type(word_bit(tokens.dtype))


@dataclass(frozen=True)
class Shard:
    """One shard: three arrays, memory-mapped."""

    name: str
    tokens: np.ndarray  # (tokens,) ids, the highest bit set where a word starts
    sentences: np.ndarray  # (sentences,) the token at which each ends
    documents: np.ndarray  # (documents,) the sentence at which each ends


@dataclass(frozen=True)
class Shards:
    """A finished corpus folder."""

    folder: Path
    vocabulary: int
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: Path | str, verify: bool = False) -> Shards:
        """Open a corpus folder and check that it is complete; `verify` also checks the hash of every file."""
        folder = Path(folder)
        if not (folder / MANIFEST).is_file():
            raise AlbertkitError(_missing(folder))
        manifest = read_json(folder / MANIFEST)
        _check_manifest(manifest, folder / MANIFEST)
        shards = cls(folder, manifest["vocabulary"], manifest)
        if digest(_require(folder / TOKENIZER / "tokenizer.json")) != manifest["tokenizer"]:
            raise AlbertkitError(f"the tokenizer in {folder} has changed (its hash differs). Copy the folder again.")
        shards.unigrams()
        for split in SPLITS:
            shards.split(split)
            for entry in manifest["splits"][split] if verify else ():
                check_files(folder, entry)
        return shards

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the ids."""
        return Tokenizer.load(self.folder / TOKENIZER, vocab_size=self.vocabulary)

    def unigrams(self) -> np.ndarray:
        """How often each id occurs in the train split: int64 (vocabulary,)."""
        return np.array(_load(self.folder / UNIGRAMS, np.dtype(np.int64), self.vocabulary))

    def split(self, name: str) -> list[Shard]:
        """The shards of `train` or `held-out`, in order."""
        check_choice("split", name, SPLITS)
        return [self._shard(entry) for entry in self.manifest["splits"][name]]

    def _shard(self, entry: dict[str, Any]) -> Shard:
        name, ends = entry["name"], np.dtype(np.uint32)
        types = {"tokens": token_dtype(self.vocabulary), "sentences": ends, "documents": ends}
        arrays = {part: _load(self.folder / f"{name}.{part}.npy", types[part], entry[part]) for part in PARTS}
        for part, within in (("sentences", "tokens"), ("documents", "sentences")):
            last = int(arrays[part][-1])
            if last != entry[within]:
                raise AlbertkitError(
                    f"{name}.{part}.npy in {self.folder} ends at {last:,}, but the shard has {entry[within]:,} "
                    f"{within}: the file is damaged. Copy the folder again."
                )
        return Shard(name, **arrays)


def _missing(folder: Path) -> str:
    """The reason why a folder without a manifest cannot be opened."""
    if not folder.is_dir():
        return f"{folder} is not a folder. Build a corpus with  albertkit corpus TEXTS -o {folder}"
    if any(folder.iterdir()):
        return f"{folder} contains no {MANIFEST}, so the corpus is incomplete. Rerun the command to resume."
    return f"{folder} is empty. Build a corpus with  albertkit corpus TEXTS -o {folder}"


def _check_manifest(data: dict[str, Any], path: Path) -> None:
    """Raise if a manifest is incomplete or names files outside its folder."""
    if data.get("format") != FORMAT:
        raise AlbertkitError(f"{path} has format {data.get('format')!r}, not {FORMAT}. Update albertkit.")
    try:
        is_complete = (
            _is_count(data["vocabulary"])
            and data["dtype"] == token_dtype(data["vocabulary"]).name
            and isinstance(data["tokenizer"], str)
            and all(_is_complete(data["splits"][split], split) for split in SPLITS)
        )
    except (KeyError, TypeError):
        is_complete = False
    if not is_complete:
        raise AlbertkitError(f"{path} is incomplete or was changed. Build the corpus again.")


def _is_complete(entries: list[dict[str, Any]], split: str) -> bool:
    """Whether the shards of a split are numbered, and have their three files and counts."""
    names = [f"{split}-{number:05d}" for number in range(len(entries))]
    return all(
        entry["name"] == name
        and set(entry["files"]) == {f"{name}.{part}.npy" for part in PARTS}
        and all(_is_count(entry[part]) for part in PARTS)
        for name, entry in zip(names, entries, strict=True)
    )


def _is_count(value: object) -> bool:
    """Whether a value is a positive whole number."""
    return type(value) is int and value > 0


def _require(path: Path) -> Path:
    if not path.is_file():
        raise AlbertkitError(f"{path} is missing, but {MANIFEST} lists it. Copy the folder again.")
    return path


def _load(path: Path, dtype: np.dtype[Any], length: int) -> np.ndarray:
    """A one-dimensional array on disk, with the dtype and length in the manifest."""
    try:
        array = np.load(_require(path), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, AlbertkitError):
            raise
        raise AlbertkitError(
            f"{path} is not a complete .npy file ({str(error)[:100]}). Copy the folder again."
        ) from None
    if array.dtype != dtype or array.shape != (length,):
        raise AlbertkitError(
            f"{path} contains {array.dtype} {array.shape}: {MANIFEST} has {dtype} ({length},). Copy it again."
        )
    return array


def check_files(folder: Path, entry: dict[str, Any]) -> None:
    """Raise if the files of a shard have changed since they were written."""
    for name, sha256 in entry["files"].items():
        if not (folder / name).is_file() or digest(folder / name) != sha256:
            raise AlbertkitError(
                f"{folder / name} is missing or has changed since it was written. Copy the folder again, or build the "
                "corpus again with --force."
            )


# Writing ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DocumentArrays:
    """Some documents as tokens."""

    tokens: np.ndarray  # (tokens,) with word starts
    sentences: np.ndarray  # (sentences,) tokens in each
    documents: np.ndarray  # (documents,) sentences in each


class ShardWriter:
    """Fills and writes the shards of one split."""

    def __init__(self, folder: Path, split: str, vocabulary: int, capacity: int):
        self.folder, self.split, self.vocabulary, self.capacity = folder, split, vocabulary, capacity
        self.entries: list[dict[str, Any]] = []  # manifest entries of the finished shards
        self.unigrams = np.zeros(vocabulary, np.int64)  # of the finished shards
        self.parts: list[DocumentArrays] = []  # of the current shard
        self.used = 0  # tokens in `parts`

    def add(self, documents: DocumentArrays) -> None:
        """Add documents, and write each full shard. A document above the capacity gets a separate shard."""
        sentence_ends = np.cumsum(np.concatenate([[0], documents.documents]))
        token_ends = np.concatenate([[0], np.cumsum(documents.sentences)])[sentence_ends]  # of each document; 0 first
        position = 0
        while position < len(documents.documents):
            stop = int(np.searchsorted(token_ends, token_ends[position] + self.capacity - self.used, "right")) - 1
            if stop <= position and self.used:
                self.finish_shard()
                continue
            stop = max(stop, position + 1)
            tokens = documents.tokens[token_ends[position] : token_ends[stop]]
            sentences = documents.sentences[sentence_ends[position] : sentence_ends[stop]]
            self.parts.append(DocumentArrays(tokens, sentences, documents.documents[position:stop]))
            self.used += len(tokens)
            position = stop

    def finish_shard(self) -> None:
        """Write the pending documents as a shard, if there are any, and start the next."""
        if not self.used:
            return
        name, pending = f"{self.split}-{len(self.entries):05d}", self.pending()
        arrays = {
            "tokens": pending.tokens,
            "sentences": np.cumsum(pending.sentences).astype(np.uint32),
            "documents": np.cumsum(pending.documents).astype(np.uint32),
        }
        files = {f"{name}.{part}.npy": write_array(self.folder / f"{name}.{part}.npy", a) for part, a in arrays.items()}
        counts = {part: len(array) for part, array in arrays.items()}
        words = int(np.count_nonzero(word_starts(pending.tokens)))
        self.entries.append({"name": name, **counts, "words": words, "files": files})
        for part in self.parts:
            self.unigrams += np.bincount(token_ids(part.tokens), minlength=self.vocabulary)
        self.parts, self.used = [], 0

    def pending(self) -> DocumentArrays:
        """The documents that are not yet written."""
        none = np.zeros(0, np.int64)
        return DocumentArrays(
            np.concatenate([none.astype(token_dtype(self.vocabulary)), *(part.tokens for part in self.parts)]),
            np.concatenate([none, *(part.sentences for part in self.parts)]),
            np.concatenate([none, *(part.documents for part in self.parts)]),
        )


def write_array(path: Path, array: np.ndarray) -> str:
    """Write an .npy file atomically; returns its SHA-256."""
    with _replace(path) as file:
        np.save(file, array, allow_pickle=False)
    return digest(path)


def replace_json(path: Path, data: object) -> None:
    """Write indented JSON atomically."""
    with _replace(path) as file:
        file.write(json_bytes(data))


@contextmanager
def _replace(path: Path) -> Iterator[BinaryIO]:
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        flush(path.parent)
    finally:
        part.unlink(missing_ok=True)
