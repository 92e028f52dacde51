"""Texts → a corpus folder: token ids in shards, ready for pre-training.

In: files of text, JSONL or Parquet, and a tokenizer. Out: the folder that `shards.py` describes and opens. Before this
file: `reading.py`, `workers.py`, `writing.py` and `journal.py`, each of which does one thing for it; after it: training.

A document is dropped when its text came before or when it is short; which of the others are held out is decided by a hash
of the document, so that it stays held out when inputs are added. The folder does not depend on the number of workers, nor
on how often the run was killed: after each finished shard the journal says where to go on. The manifest comes last;
without it the folder is no corpus.
"""

from __future__ import annotations

import dataclasses
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.data.block_reader import CORPUS_FORMATS, Block, Place, blocks
from albertkit.data.corpus_folder import check_place, check_shards, discard, identity, same, sweep, write_tokenizer
from albertkit.data.corpus_settings import CorpusSettings
from albertkit.data.document_tokenizer import Pieces, Rules
from albertkit.data.resume_log import Journal, remove
from albertkit.data.shard_writer import Filling, Kept, Written, write_array, write_json
from albertkit.data.shards import FORMAT, MANIFEST, SPLITS, TOKENIZER, UNIGRAMS, Shards, token_type
from albertkit.data.word_cache import sums
from albertkit.data.workers import Cut, cut_blocks
from albertkit.errors import AlbertkitError
from albertkit.text_reader import TextFile, find_text_files
from albertkit.tokenizer import Tokenizer

SURE = 10_000  # tokens after which the share of unknown ones is judged
COUNTS = (
    "documents_read",
    "documents_kept",
    "duplicates",
    "too_short",
    "paragraph_duplicates",
    "bad_lines",
    "tokens_read",
    "unknown",
    "sentences",
    "tokens",
    "words",
)
Progress = Callable[[str, int, int, int], object]  # what is being done, bytes done, bytes in all, tokens so far


@dataclass(frozen=True)
class Built:
    """What `build` did."""

    shards: Shards
    there: bool  # the corpus was finished before, and nothing was done
    resumed: bool  # part of it was


def build(
    texts: Sequence[Path | str],
    folder: Path | str,
    tokenizer: Tokenizer,
    settings: CorpusSettings = CorpusSettings(),  # noqa: B008  frozen
    *,
    workers: int | None = None,
    force: bool = False,
    progress: Progress = lambda *_: None,
    cut: Cut = cut_blocks,
) -> Built:
    """Make a corpus, or finish one that was begun with the same inputs, settings and tokenizer.

    workers: processes that cut text into tokens, by default one for each core. force: replace the corpus that is there.
    cut: who does it; the corpus is the same.
    """
    folder, workers = Path(folder), _workers(workers)
    if tokenizer.kind == "phoneme":
        raise AlbertkitError("a tokenizer of phonemes makes no corpus: use a unigram or WordPiece vocabulary")
    sources = find_text_files(texts, settings.text_column, CORPUS_FORMATS)
    made = identity(sources, tokenizer, settings, progress)
    try:
        check_place(folder)
        if force:
            discard(folder)
        if (folder / MANIFEST).is_file():
            shards = Shards.open(folder)
            same(made, shards.manifest, folder)
            remove(folder)  # killed between the manifest and the end
            return Built(shards, there=True, resumed=False)
        folder.mkdir(parents=True, exist_ok=True)
        with closing(Journal(folder)) as journal:
            making = Making(folder, journal, sources, settings, tokenizer)
            try:
                resumed = making.open(made)
                write_tokenizer(tokenizer, folder)
                making.run(workers, progress, cut)
                manifest = making.finish()
            except BaseException:
                if not making.worth:
                    journal.close()
                    discard(folder)
                raise
            journal.delete()
    except (OSError, sqlite3.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise AlbertkitError(
            f"writing {folder} failed: {why}; put that right and run the same command again, which goes on from the last "
            "finished shard"
        ) from None
    return Built(Shards(folder, tokenizer.vocab_size, manifest), there=False, resumed=resumed)


def _workers(count: int | None) -> int:
    if count is None:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(count, 64)
    if not 1 <= count <= 256:
        raise AlbertkitError(f"workers is {count} and must be from 1 to 256: choose as many as there are cores")
    return count


class Making:
    """A corpus that is being made."""

    def __init__(
        self, folder: Path, journal: Journal, sources: list[TextFile], settings: CorpusSettings, tokenizer: Tokenizer
    ):
        self.folder, self.journal, self.sources, self.settings = folder, journal, sources, settings
        self.vocabulary, self.dtype = tokenizer.vocab_size, token_type(tokenizer.vocab_size)
        self.filling = {s: Filling(folder, s, self.dtype, self.vocabulary, settings.shard_tokens) for s in SPLITS}
        self.entries: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
        self.counts = dict.fromkeys(COUNTS, 0)
        self.unigrams = np.zeros(self.vocabulary, np.int64)
        self.place = Place()
        self.held = False  # whether the last document was held out
        self.worth = False  # whether the journal knows of a finished shard
        self.identity: dict[str, Any] = {}

    # --- the journal ------------------------------------------------------------

    def open(self, made: dict[str, Any]) -> bool:
        """Go to where the journal says; whether it said anything. Refuses the journal of another corpus."""
        state, arrays = self.journal.read()
        self.identity, self.worth = made, bool(state) and any(state["entries"].values())
        if not self.worth:
            sweep(self.folder)
            self.journal.forget()
            self._save()
            return False
        if any(source.name == "-" for source in self.sources):
            raise AlbertkitError(
                f"{self.folder} holds an unfinished corpus, and stdin cannot be read again from its middle: use --force "
                "to begin anew, or another folder"
            )
        same(made, state["identity"], self.folder)
        check_shards(self.folder, state["entries"])
        self.place, self.held = Place(**state["place"]), state["held"]
        self.entries, self.counts = state["entries"], state["counts"]
        self.unigrams = np.frombuffer(arrays["unigrams"], np.int64).copy()
        for split, filling in self.filling.items():
            types: tuple[Any, ...] = (self.dtype, np.int64, np.int64)
            parts = [np.frombuffer(arrays[f"{split} {i}"], kind) for i, kind in enumerate(types)]
            for _ in filling.add(Kept(*parts), 0):
                raise AssertionError("what a journal holds fits a shard")
        return True

    def _save(self) -> None:
        state = {
            "identity": self.identity,
            "place": dataclasses.asdict(self.place),
            "held": self.held,
            "entries": self.entries,
            "counts": self.counts,
        }
        arrays = {"unigrams": self.unigrams}
        for split, filling in self.filling.items():
            kept = filling.held()
            arrays |= {f"{split} {i}": a for i, a in enumerate((kept.tokens, kept.sentences, kept.documents))}
        self.journal.save(state, arrays)
        self.worth = any(self.entries.values())

    # --- the work ------------------------------------------------------------

    def run(self, workers: int, progress: Progress, cut_by: Cut = cut_blocks) -> None:
        """Read everything, from the place on where the journal stands."""
        settings = self.settings
        before = np.cumsum([0] + [source.size for source in self.sources]).tolist()
        rules = Rules(settings.max_sentence, settings.dedupe == "paragraphs", settings.skip_bad)
        stream = blocks(self.sources, settings.text_column, self.place)
        with closing(cut_by(stream, self.folder / TOKENIZER, rules, workers)) as cut:
            for block, pieces in cut:
                finished = self._take(block, pieces)
                self._check_unknown(SURE)
                if finished:
                    self._save()
                progress("corpus", before[block.at.source] + block.read, before[-1], self.counts["tokens"])

    def _take(self, block: Block, pieces: Pieces) -> bool:
        """Choose among the documents of a block and put them into shards; whether one was finished."""
        finished = False
        for split, kept in self.choose(pieces).items():
            for written in self.filling[split].add(kept, len(self.entries[split])):
                self._note(split, written)
                finished = True
        self.place = block.next
        return finished

    def choose(self, pieces: Pieces) -> dict[str, Kept]:
        """The documents that are kept, by split."""
        counts, settings = self.counts, self.settings
        total = len(pieces.documents)
        paragraphs = np.ones(len(pieces.paragraphs), bool)
        new = np.ones(total, bool)
        if settings.dedupe == "paragraphs":
            paragraphs = self.journal.first_seen(pieces.paragraph_hashes)
            counts["paragraph_duplicates"] += int(np.count_nonzero(~paragraphs))
        elif settings.dedupe == "documents":
            new = self.journal.first_seen(pieces.document_hashes)
        sizes = sums(pieces.sentences, pieces.paragraphs) * paragraphs  # tokens of each paragraph
        long = sums(sizes, pieces.documents) >= settings.min_tokens
        held = pieces.document_hashes < np.uint64(int(settings.held_out * 2.0**64))
        if total and pieces.inside:
            held[0] = self.held
        self.held = bool(held[-1]) if total else self.held
        counts["documents_read"] += total
        counts["documents_kept"] += int(np.count_nonzero(new & long))
        counts["duplicates"] += int(np.count_nonzero(~new))
        counts["too_short"] += int(np.count_nonzero(new & ~long))
        counts["bad_lines"] += pieces.bad
        counts["unknown"] += pieces.unknown
        counts["tokens_read"] += len(pieces.tokens)
        kept = {split: _pick(pieces, new & long & (held == (split == "held-out")), paragraphs) for split in SPLITS}
        for part in kept.values():
            counts["sentences"] += len(part.sentences)
            counts["tokens"] += len(part.tokens)
        return kept

    def _note(self, split: str, written: Written) -> None:
        self.entries[split].append(written.entry)
        self.counts["words"] += written.entry["words"]
        if split == "train":
            self.unigrams += written.unigrams

    def _check_unknown(self, least: int) -> None:
        """Stop when the vocabulary does not fit the text."""
        total, unknown, most = self.counts["tokens_read"], self.counts["unknown"], self.settings.max_unknown
        if total >= least and unknown > most * total:
            raise AlbertkitError(
                f"{unknown / total:.0%} of the first {total:,} tokens are unknown to the vocabulary, and at most {most:.0%} "
                "may be: use a tokenizer for the language of the text (albertkit tokenizer makes one), or raise --max-unknown"
            )

    def finish(self) -> dict[str, Any]:
        """Write the last shards, the counts and the manifest."""
        self._check_unknown(1)
        for split, filling in self.filling.items():
            if filling.used:
                self._note(split, filling.close(len(self.entries[split])))
        if not self.entries["train"]:
            raise AlbertkitError(_empty(self.counts, self.settings))
        hashed = write_array(self.folder / UNIGRAMS, self.unigrams)
        manifest = {
            "format": FORMAT,
            "vocabulary": self.vocabulary,
            "dtype": self.dtype.name,
            **self.identity,
            "unigrams": hashed,
            "counts": self.counts,
            "splits": self.entries,
        }
        write_json(self.folder / MANIFEST, manifest)
        return manifest


def _pick(pieces: Pieces, documents: np.ndarray, paragraphs: np.ndarray) -> Kept:
    """Some documents of a block, without the paragraphs that are dropped."""
    if documents.all() and paragraphs.all():
        return Kept(pieces.tokens, pieces.sentences, sums(pieces.paragraphs, pieces.documents))
    if not documents.any():
        return Kept.none(pieces.tokens.dtype)
    of_paragraphs = np.repeat(documents, pieces.documents) & paragraphs
    of_sentences = np.repeat(of_paragraphs, pieces.paragraphs)
    counts = sums(pieces.paragraphs * of_paragraphs, pieces.documents)[documents]
    return Kept(
        pieces.tokens[np.repeat(of_sentences, pieces.sentences)], pieces.sentences[of_sentences], counts[counts > 0]
    )


def _empty(counts: dict[str, int], settings: CorpusSettings) -> str:
    """Why there is nothing to train on."""
    read, short, twice = (counts[name] for name in ("documents_read", "too_short", "duplicates"))
    if not read:
        return "the inputs hold no text: give files with one paragraph a line and an empty line between documents"
    if counts["documents_kept"]:
        return (
            f"all {counts['documents_kept']:,} documents were held out and none is left for training: give more text, or "
            "lower --held-out"
        )
    return (
        f"none of {read:,} documents was kept: {short:,} have fewer than {settings.min_tokens} tokens, {twice:,} came "
        "before: give more text, or lower --min-tokens"
    )
