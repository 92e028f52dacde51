"""Shards → rows: an endless, seeded, resumable stream of training rows, all of one length, without padding.

In: the shards of `corpus.py`. Out: `SegmentPairs`, for `masking.py`. A row is a run of whole sentences of one document,
split in two at the end of a sentence. The lengths of the segments do not reveal their order. Rows without such a split
have no sentence-order target. Every epoch splits the documents at other places. Shards are planned and shuffled in
groups, so memory does not grow with the corpus. A position in the stream is three numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from albertkit.data.shards import Shard
from albertkit.errors import AlbertkitError

SPECIALS = 3  # [CLS] first [SEP] second [SEP]
GROUP_TOKENS = 256 * 2**20  # tokens planned and shuffled together
SPLIT_TRIES = 16  # attempts to find a place to split a row


@dataclass(frozen=True)
class StreamPosition:
    """The position of the next row."""

    epoch: int = 0
    group: int = 0
    row: int = 0


@dataclass(frozen=True)
class SegmentPairs:
    """Rows of two consecutive segments, in the order of the document."""

    tokens: np.ndarray  # (rows, length - 2) uint16 or uint32; the highest bit marks the start of a word
    first: np.ndarray  # (rows,) tokens of the first segment; all for a single text, otherwise the last column is unused
    ordered: np.ndarray  # (rows,) whether both are from one document and meet at the end of a sentence

    def __getitem__(self, rows: slice) -> SegmentPairs:
        return SegmentPairs(self.tokens[rows], self.first[rows], self.ordered[rows])

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class RowSpans:
    """The spans of the two segments of each row in their shard: [a0, a1) and [b0, b1)."""

    a0: np.ndarray
    a1: np.ndarray
    b0: np.ndarray
    b1: np.ndarray
    ordered: np.ndarray

    def __len__(self) -> int:
        return len(self.a0)


@dataclass(frozen=True)
class SentenceRuns:
    """Sentences that fill a row, by their indices in the shard."""

    first: np.ndarray
    last: np.ndarray
    tail: np.ndarray  # whether the run ends with its document; others start at a sentence


Arrays = TypeVar("Arrays", SegmentPairs, RowSpans, SentenceRuns)


def _concatenate(parts: Sequence[Arrays]) -> Arrays:
    """One object with the arrays of all parts."""
    names = [field.name for field in fields(parts[0])]
    return type(parts[0])(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def plan_rows(shard: Shard, width: int, epoch: int, rng: np.random.Generator, single: float = 0.0) -> RowSpans:
    """Cut a shard into rows of `width` tokens, or one more for the share that is a `single` text.

    Tokens that are trimmed in one epoch are used in another.
    """
    ends = np.asarray(shard.sentences, np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    last = np.asarray(shard.documents, np.int64) - 1  # last sentence of each document
    begin = starts[np.concatenate([[0], last[:-1] + 1])]
    end = ends[last]
    long = end - begin >= width
    inside = _find_runs(starts, ends, (begin[long], end[long]), width, epoch, rng)
    parts = [_split_runs(starts, ends, inside, width, rng)]
    short = np.flatnonzero(~long)
    if len(short) and ends[-1] >= width:
        kept = short[rng.random(len(short)) < (end[short] - begin[short]) / width]
        parts.append(_cross_documents(begin[kept], end, int(ends[-1]), width))
    spans = _concatenate(parts)
    return _join_segments(spans, width, int(ends[-1]), rng.random(len(spans)) < single)


def _join_segments(spans: RowSpans, width: int, tokens: int, chosen: np.ndarray) -> RowSpans:
    """The chosen rows as single texts: from their start, without a gap."""
    chosen = chosen & (tokens > width)
    begin = np.minimum(spans.a0, tokens - width - 1)
    end = begin + width + 1
    return RowSpans(
        np.where(chosen, begin, spans.a0),
        np.where(chosen, end, spans.a1),
        np.where(chosen, end, spans.b0),
        np.where(chosen, end, spans.b1),
        spans.ordered & ~chosen,
    )


def _find_runs(
    starts: np.ndarray,
    ends: np.ndarray,
    documents: tuple[np.ndarray, np.ndarray],
    width: int,
    epoch: int,
    rng: np.random.Generator,
) -> SentenceRuns:
    """The sentences of each row inside the documents, computed for all documents at once."""
    begin, end = documents
    first_sentence = np.searchsorted(starts, begin)
    runs: list[SentenceRuns] = [SentenceRuns(first_sentence[:0], first_sentence[:0], np.empty(0, bool))]

    def add(first: np.ndarray, last: np.ndarray, tail: bool) -> None:
        runs.append(SentenceRuns(first, last, np.full(len(first), tail)))

    if epoch:  # other splits: start up to one row later, if the document is long enough
        later = np.searchsorted(starts, begin + (rng.random(len(begin)) * width).astype(np.int64))
        moved = starts[np.minimum(later, len(starts) - 1)]
        fits = (later < len(starts)) & (end - moved >= width)
        head = fits & (rng.random(len(begin)) < (moved - begin) / width)
        # the skipped tokens and the following ones
        add(first_sentence[head], np.searchsorted(ends, begin[head] + width), False)
        first_sentence = np.where(fits, later, first_sentence)
    while len(first_sentence):
        stop = np.searchsorted(ends, starts[first_sentence] + width)  # the sentence that fills the row
        add(first_sentence, stop, False)
        left = end - ends[stop]
        tail = (left > 0) & (left < width) & (rng.random(len(first_sentence)) < left / width)
        if tail.any():  # a remainder too short for a row is extended to the left
            first = np.searchsorted(starts, end[tail] - width, side="right") - 1
            add(first, np.searchsorted(ends, end[tail]), True)
        continues = left >= width
        first_sentence, end = stop[continues] + 1, end[continues]
    return _concatenate(runs)


def _split_runs(
    starts: np.ndarray, ends: np.ndarray, runs: SentenceRuns, width: int, rng: np.random.Generator
) -> RowSpans:
    """Split runs of sentences in two at the end of a sentence, and trim both to `width` tokens in total.

    The last sentence of a run completes the row, so it is longer than most. A run is split only after a sentence that
    would also complete a row: then both segments have similar length distributions, and the swapped row would be a
    valid row too. (In a run that ends with its document, the same holds for first sentences.)
    """
    begin, end = starts[runs.first], ends[runs.last]
    excess = end - begin - width
    half = np.full(len(begin), -1)
    open_runs = np.flatnonzero(runs.last > runs.first)
    for _ in range(SPLIT_TRIES):
        first, last = runs.first[open_runs], runs.last[open_runs]
        split = first + (rng.random(len(open_runs)) * (last - first)).astype(np.int64)
        similar = split + runs.tail[open_runs]
        fits = ends[similar] - starts[similar] > excess[open_runs]
        half[open_runs[fits]] = ends[split[fits]]
        open_runs = open_runs[~fits]
    ordered = half >= 0
    before, after = half - begin, end - half
    odd = rng.integers(0, 2, len(begin))  # the side of an odd token is random: a fixed side would reveal the order
    off_first = np.clip((excess + before - after + odd) // 2, 0, excess)
    off_second = excess - off_first
    front = (rng.random(len(begin)) * (off_first + 1)).astype(np.int64)
    front_second = (rng.random(len(begin)) * (off_second + 1)).astype(np.int64)
    plain = begin + (rng.random(len(begin)) * (excess + 1)).astype(np.int64)  # without a target: no gap
    return RowSpans(
        np.where(ordered, begin + front, plain),
        np.where(ordered, half - off_first + front, plain + width // 2),
        np.where(ordered, half + front_second, plain + width // 2),
        np.where(ordered, end - off_second + front_second, plain + width),
        ordered,
    )


def _cross_documents(begin: np.ndarray, document_ends: np.ndarray, tokens: int, width: int) -> RowSpans:
    """Rows that start with a short document and continue into the next ones, split at the end of a document."""
    begin = np.minimum(begin, tokens - width)
    half = document_ends[np.searchsorted(document_ends, begin, side="right")]
    half = np.where(half < begin + width, half, begin + width // 2)
    return RowSpans(begin, half, half, begin + width, np.zeros(len(begin), bool))


class RowStream:
    """An endless stream of rows: epoch after epoch, group after group of shards, each shuffled."""

    def __init__(
        self,
        shards: Sequence[Shard],
        length: int,
        seed: int,
        position: StreamPosition | None = None,
        single: float = 0.0,
    ) -> None:
        self.shards, self.width, self.seed, self.single = shards, length - SPECIALS, seed, single
        if self.width < 2:
            raise AlbertkitError(f"length={length} is too small: a row needs at least {SPECIALS + 2} tokens.")
        sizes = [len(shard.tokens) for shard in shards]
        if max(sizes, default=0) < self.width:
            raise AlbertkitError(
                f"the largest shard has {max(sizes, default=0):,} tokens, but a row needs {self.width}. "
                "Pass more text or smaller --lengths."
            )
        self.position = position or StreamPosition()
        self._open(self.position)

    def _groups(self, epoch: int) -> list[list[int]]:
        """The shards of each group, in this epoch's order."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.shards))
        groups: list[list[int]] = [[]]
        size = 0
        for number in order.tolist():
            tokens = len(self.shards[number].tokens)
            if groups[-1] and size + tokens > GROUP_TOKENS:
                groups.append([])
                size = 0
            groups[-1].append(number)
            size += tokens
        return groups

    def _open(self, position: StreamPosition) -> None:
        """Plan and shuffle the group at a position."""
        groups = self._groups(position.epoch)
        self._is_last = position.group == len(groups) - 1
        self._members = groups[position.group]
        self._spans = []
        for number in self._members:
            rng = np.random.default_rng([self.seed, position.epoch, number, self.width])
            self._spans.append(plan_rows(self.shards[number], self.width, position.epoch, rng, self.single))
        counts = np.array([len(spans) for spans in self._spans])
        self._bounds = np.concatenate([[0], np.cumsum(counts)])
        order = np.random.default_rng([self.seed, position.epoch, position.group, self.width, 1])
        self._order = order.permutation(int(counts.sum()))

    def take(self, rows: int, share: slice = slice(None)) -> SegmentPairs:
        """The next `rows` rows. Only those in `share` are read, the part of this process."""
        is_own_row = np.zeros(rows, bool)
        is_own_row[share] = True
        parts = []
        while rows:
            numbers = self._order[self.position.row : self.position.row + rows]
            if len(numbers):
                parts.append(self._read(numbers[is_own_row[: len(numbers)]]))
                is_own_row = is_own_row[len(numbers) :]
                rows -= len(numbers)
            epoch, group, row = self.position.epoch, self.position.group, self.position.row
            if rows:
                self.position = StreamPosition(epoch + 1) if self._is_last else StreamPosition(epoch, group + 1)
                self._open(self.position)
            else:
                self.position = StreamPosition(epoch, group, row + len(numbers))
        return _concatenate(parts)

    def _read(self, numbers: np.ndarray) -> SegmentPairs:
        """Gather rows of the group, by their numbers, from their shards."""
        shard_of_row = np.searchsorted(self._bounds, numbers, side="right") - 1
        tokens = np.empty((len(numbers), self.width + 1), self.shards[0].tokens.dtype)
        first = np.empty(len(numbers), np.int32)
        ordered = np.empty(len(numbers), bool)
        column = np.arange(self.width + 1)
        for member in np.unique(shard_of_row):
            rows = np.flatnonzero(shard_of_row == member)
            spans, row = self._spans[member], numbers[rows] - self._bounds[member]
            length = spans.a1[row] - spans.a0[row]
            jump = np.where(column[None] < length[:, None], spans.a0[row][:, None], (spans.b0[row] - length)[:, None])
            shard = self.shards[self._members[member]].tokens
            tokens[rows] = shard[np.minimum(jump + column[None], len(shard) - 1)]
            first[rows], ordered[rows] = length, spans.ordered[row]
        return SegmentPairs(tokens, first, ordered)

    @property
    def rows_in_group(self) -> int:
        """Rows of the current group; the whole epoch, for a corpus of one group."""
        return len(self._order)
