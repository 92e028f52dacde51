"""Texts → a corpus folder: token ids in shards, ready for pre-training.

In: files of text, JSONL or Parquet, and a tokenizer. Out: the folder that `shards.py` describes and opens. Documents
that are short or duplicates are dropped. A hash of the document determines whether it is held out, so it stays held
out when inputs are added. After each finished shard, the resume log stores the position. The folder does not depend on
the number of workers or on interruptions.
"""

from __future__ import annotations

import dataclasses
import itertools
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.data import corpus_folder
from albertkit.data.corpus_folder import CorpusSettings, Progress, ResumeLog
from albertkit.data.document_tokenizer import (
    DocumentTokenizer,
    TokenizedDocuments,
    tokenize_blocks,
    worker_count,
)
from albertkit.data.documents import BlockPosition, read_blocks
from albertkit.data.shards import (
    FORMAT,
    MANIFEST,
    SPLITS,
    TOKENIZER,
    UNIGRAMS,
    DocumentArrays,
    Shards,
    ShardWriter,
    check_files,
    replace_json,
    run_sums,
    token_dtype,
    write_array,
)
from albertkit.errors import AlbertkitError, short_reason
from albertkit.text_reader import TextFile, check_text_column, find_text_files
from albertkit.tokenizer import Tokenizer

__all__ = ["BuildResult", "CorpusEstimate", "CorpusSettings", "build_corpus", "estimate_corpus"]

CHECKED_TOKENS = 10_000  # tokens after which the share of unknown tokens is checked
SAMPLED_FILES = 4  # files that an estimate reads
COUNTS = (
    *("documents_read", "documents_kept", "duplicates", "too_short", "bad_lines"),
    *("tokens_read", "unknown", "sentences", "tokens", "words"),
)


@dataclass(frozen=True)
class BuildResult:
    """The result of `build_corpus`."""

    shards: Shards
    was_complete: bool  # the corpus was already complete
    was_resumed: bool  # part of the corpus existed


@dataclass(frozen=True)
class CorpusEstimate:
    """The size of a corpus, estimated from a megabyte of a few inputs."""

    inputs: int
    bytes: int  # of the inputs on disk, compressed or not
    tokens: int
    shards: int
    corpus_bytes: int


def build_corpus(
    texts: Sequence[Path | str],
    output: Path | str,
    tokenizer: Tokenizer,
    settings: CorpusSettings = CorpusSettings(),  # noqa: B008  frozen
    *,
    workers: int | None = None,
    force: bool = False,
    progress: Progress = lambda *_: None,
) -> BuildResult:
    """Build a corpus, or resume one that was started with the same inputs, settings and tokenizer.

    workers: processes that tokenize, by default one per core; the corpus does not depend on it. force: replace an
    existing corpus.
    """
    folder = Path(output)
    workers = worker_count(workers)
    if tokenizer.kind == "phoneme":
        raise AlbertkitError("a phoneme tokenizer cannot build a corpus. Use a unigram or WordPiece vocabulary.")
    files = find_text_files(texts, settings.text_column)
    check_text_column(files, settings.text_column)
    identity = corpus_folder.corpus_identity(files, tokenizer, settings, progress)
    try:
        corpus_folder.check_folder(folder)
        if force:
            corpus_folder.delete_corpus(folder)
        if (folder / MANIFEST).is_file():
            shards = Shards.open(folder)
            corpus_folder.check_same_corpus(identity, shards.manifest, folder)
            corpus_folder.delete_resume_log(folder)  # the run was killed after it wrote the manifest
            return BuildResult(shards, was_complete=True, was_resumed=False)
        folder.mkdir(parents=True, exist_ok=True)
        with closing(ResumeLog(folder)) as log:
            builder = CorpusBuilder(folder, log, files, settings, tokenizer)
            try:
                was_resumed = builder.resume(identity)
                corpus_folder.write_tokenizer(tokenizer, folder)
                builder.run(workers, progress)
                manifest = builder.finish()
            except BaseException:
                if not builder.saved_shards:
                    log.close()
                    corpus_folder.delete_corpus(folder)
                raise
        corpus_folder.delete_resume_log(folder)
    except (OSError, sqlite3.Error) as error:
        raise AlbertkitError(
            f"writing {folder} failed: {short_reason(error)}. Fix this, then rerun the command to resume after "
            "the last finished shard."
        ) from None
    return BuildResult(Shards(folder, tokenizer.vocab_size, manifest), was_complete=False, was_resumed=was_resumed)


def estimate_corpus(texts: Sequence[Path | str], tokenizer: Tokenizer, settings: CorpusSettings) -> CorpusEstimate:
    """Estimate the size of a corpus from the first megabyte of a few inputs; writes nothing."""
    files = find_text_files(texts, settings.text_column)
    check_text_column(files, settings.text_column)
    tokenize = DocumentTokenizer(tokenizer, settings)
    regular = [file for file in files if file.name != "-"]
    read = tokens = 0
    for file in regular[:: max(1, len(regular) // SAMPLED_FILES)][:SAMPLED_FILES]:
        blocks = list(itertools.islice(read_blocks([file], settings.text_column), 2))
        if blocks:  # bytes are counted when they are read, so the second block's difference is the size of the first
            read += blocks[1].bytes_read - blocks[0].bytes_read if len(blocks) == 2 else file.size
            tokens += len(tokenize(blocks[0]).tokens)
    total = sum(file.size for file in regular)
    tokens = tokens * total // max(read, 1)
    size = tokens * token_dtype(tokenizer.vocab_size).itemsize
    return CorpusEstimate(len(files), total, tokens, -(-tokens // settings.shard_tokens), size)


class CorpusBuilder:
    """A corpus that is being built."""

    def __init__(
        self, folder: Path, log: ResumeLog, files: list[TextFile], settings: CorpusSettings, tokenizer: Tokenizer
    ):
        self.folder, self.log, self.files, self.settings = folder, log, files, settings
        self.vocabulary = tokenizer.vocab_size
        self.writers = {s: ShardWriter(folder, s, self.vocabulary, settings.shard_tokens) for s in SPLITS}
        self.counts = dict.fromkeys(COUNTS, 0)
        self.position = BlockPosition()
        self.is_held_out = False  # whether the last document was held out
        self.saved_shards = 0  # finished shards in the resume log
        self.identity: dict[str, Any] = {}

    def entries(self) -> dict[str, list[dict[str, Any]]]:
        """The finished shards of each split."""
        return {split: writer.entries for split, writer in self.writers.items()}

    def resume(self, identity: dict[str, Any]) -> bool:
        """Restore the position from the resume log; False if there is none. Raises if the log is of another corpus."""
        state, arrays = self.log.read()
        self.identity, self.saved_shards = identity, sum(map(len, state.get("entries", {}).values()))
        if not self.saved_shards:
            corpus_folder.delete_arrays(self.folder)
            self.log.clear()
            self._save()
            return False
        if any(file.name == "-" for file in self.files):
            raise AlbertkitError(
                f"{self.folder} contains an incomplete corpus, and stdin cannot be resumed. Use --force to "
                "start over, or another folder."
            )
        corpus_folder.check_same_corpus(identity, state["identity"], self.folder)
        self.position, self.is_held_out = BlockPosition(**state["position"]), state["is_held_out"]
        self.counts = state["counts"]
        self.writers["train"].unigrams = np.frombuffer(arrays["unigrams"], np.int64).copy()
        for split, writer in self.writers.items():
            writer.entries = state["entries"][split]
            for entry in writer.entries:
                check_files(self.folder, entry)
            types: tuple[Any, ...] = (token_dtype(self.vocabulary), np.int64, np.int64)
            writer.add(DocumentArrays(*(np.frombuffer(arrays[f"{split} {i}"], t) for i, t in enumerate(types))))
        return True

    def _save(self) -> None:
        state = {
            "identity": self.identity,
            "position": dataclasses.asdict(self.position),
            "is_held_out": self.is_held_out,
            "entries": self.entries(),
            "counts": self.counts,
        }
        arrays = {"unigrams": self.writers["train"].unigrams}
        for split, writer in self.writers.items():
            pending = writer.pending()
            arrays |= {f"{split} {i}": a for i, a in enumerate((pending.tokens, pending.sentences, pending.documents))}
        self.log.save(state, arrays)
        self.saved_shards = sum(map(len, self.entries().values()))

    def run(self, workers: int, progress: Progress) -> None:
        """Read and tokenize all inputs from the current position."""
        settings = self.settings
        before = np.cumsum([0] + [file.size for file in self.files]).tolist()
        blocks = read_blocks(self.files, settings.text_column, self.position)
        with closing(tokenize_blocks(blocks, self.folder / TOKENIZER, settings, workers)) as results:
            for block, documents in results:
                for split, kept in self.split_documents(documents).items():
                    self.writers[split].add(kept)
                self.position = block.end
                self._check_unknown(CHECKED_TOKENS)
                if sum(map(len, self.entries().values())) > self.saved_shards:
                    self._save()
                progress("corpus", before[block.start.source] + block.bytes_read, before[-1], self.counts["tokens"])

    def split_documents(self, documents: TokenizedDocuments) -> dict[str, DocumentArrays]:
        """The documents that are kept, by split."""
        counts, settings, total = self.counts, self.settings, len(documents.documents)
        new = self.log.first_seen(documents.hashes)
        long = run_sums(documents.sentences, documents.documents) >= settings.min_tokens
        held_out = documents.hashes < np.uint64(int(settings.held_out * 2.0**64))
        if total and documents.is_inside:
            held_out[0] = self.is_held_out
        self.is_held_out = bool(held_out[-1]) if total else self.is_held_out
        counts["documents_read"] += total
        counts["documents_kept"] += int(np.count_nonzero(new & long))
        counts["duplicates"] += int(np.count_nonzero(~new))
        counts["too_short"] += int(np.count_nonzero(new & ~long))
        counts["bad_lines"] += documents.bad_lines
        counts["unknown"] += documents.unknown
        counts["tokens_read"] += len(documents.tokens)
        kept = {"train": new & long & ~held_out, "held-out": new & long & held_out}
        by_split = {split: _select_documents(documents, kept[split]) for split in SPLITS}
        for part in by_split.values():
            counts["sentences"] += len(part.sentences)
            counts["tokens"] += len(part.tokens)
        return by_split

    def _check_unknown(self, min_tokens: int) -> None:
        """Raise if at least `min_tokens` were read and the vocabulary does not fit them."""
        total, unknown, limit = self.counts["tokens_read"], self.counts["unknown"], self.settings.max_unknown
        if total >= min_tokens and unknown > limit * total:
            raise AlbertkitError(
                f"{unknown / total:.0%} of the first {total:,} tokens are unknown to the vocabulary: the limit is "
                f"{limit:.0%}. Use a tokenizer for the language of the text (albertkit tokenizer trains one), "
                "or raise --max-unknown."
            )

    def finish(self) -> dict[str, Any]:
        """Write the last shards, the counts and the manifest."""
        self._check_unknown(1)
        for writer in self.writers.values():
            writer.finish_shard()
            self.counts["words"] += sum(entry["words"] for entry in writer.entries)
        if not self.writers["train"].entries:
            raise AlbertkitError(_no_documents_reason(self.counts, self.settings))
        manifest = {
            "format": FORMAT,
            "vocabulary": self.vocabulary,
            "dtype": token_dtype(self.vocabulary).name,
            **self.identity,
            "unigrams": write_array(self.folder / UNIGRAMS, self.writers["train"].unigrams),
            "counts": self.counts,
            "splits": self.entries(),
        }
        replace_json(self.folder / MANIFEST, manifest)
        return manifest


def _select_documents(documents: TokenizedDocuments, is_kept: np.ndarray) -> DocumentArrays:
    of_sentences = np.repeat(is_kept, documents.documents)
    tokens = documents.tokens[np.repeat(of_sentences, documents.sentences)]
    return DocumentArrays(tokens, documents.sentences[of_sentences], documents.documents[is_kept])


def _no_documents_reason(counts: dict[str, int], settings: CorpusSettings) -> str:
    """The reason why there is nothing to train on."""
    read, short, twice = (counts[name] for name in ("documents_read", "too_short", "duplicates"))
    if not read:
        return "the inputs contain no text. Pass files with one paragraph per line and a blank line between documents."
    if counts["documents_kept"]:
        return (
            f"all {counts['documents_kept']:,} documents were held out and none is left for training. Pass more "
            "text, or lower --held-out."
        )
    return (
        f"none of {read:,} documents was kept: {short:,} have fewer than {settings.min_tokens} tokens, {twice:,} are "
        "duplicates. Pass more text, or lower --min-tokens."
    )
