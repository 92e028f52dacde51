"""What the batcher works with: jobs, their rows, and the lanes in which rows wait.

In: what a request wants computed. Out: the batch that is next in a lane. After this file: `batcher.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from albertkit.runtime.batching import group_by_length

LEARN = 0.2  # how much the newest full batch counts in the pace
FORGET = 0.005  # how much a wait that was shorter than foreseen counts


class TokenCost:
    """How fast a model is: seconds for a token in a layer, learnt from batches that are at least half full."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def learn(self, seconds: float) -> None:
        """Take a new measurement into account."""
        self.seconds += LEARN * (seconds - self.seconds)


class WaitFactor:
    """By how much longer than foreseen the slower ones wait: others are put before them, and no two batches take the same time.

    A longer wait counts forty times as much as a shorter one, so that few are answered later than foreseen. It begins on the safe side.
    """

    MOST = 4.0

    def __init__(self) -> None:
        self.times = 1.5

    def learn(self, times: float) -> None:
        """A wait was so many times as long as the work that was ahead."""
        times = min(self.MOST, times)
        self.times = max(1.0, self.times + (LEARN if times > self.times else FORGET) * (times - self.times))


class ComputeModel(Protocol):
    """What computes: `models.ServedModel`."""

    @property
    def albert(self) -> Any: ...
    @property
    def token_cost(self) -> TokenCost: ...


Reader = Callable[["ComputeRoute", np.ndarray, np.ndarray, list[Any]], Sequence[Any]]
"""(route, hidden states (texts, length, H), lengths, marks) → one result for each text."""


@dataclass(frozen=True)
class ComputeRoute:
    """Rows that are computed alike can share a batch: by one model, to one depth, and read in one way."""

    model: ComputeModel
    depth: int
    reader: Reader
    how: str = ""
    """Something for the reader, the same for all rows."""


@dataclass(eq=False)
class BatchJob:
    """What one request wants computed."""

    route: ComputeRoute
    ids: Sequence[Any]
    """The tokens of each row."""
    deadline: float
    segments: Sequence[Any] | None = None
    marks: list[Any] | None = None
    """Something for the reader, for each row."""
    results: list[Any] = field(default_factory=list)
    left: int = 0
    live: bool = True
    arrived: float = 0.0
    started: float = 0.0
    computing: float = 0.0
    """Seconds of the batches it was in."""
    error: BaseException | None = None
    done: asyncio.Future[None] | None = None
    call: Callable[[], Any] | None = None
    """Instead of rows: something to be called on the engine's thread."""
    work: int = 0
    """Tokens times layers still to be computed."""
    ahead: float = 0.0
    """Seconds of work that were waiting when it came."""
    alone: float = 0.0
    """Seconds that it takes itself."""

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(map(len, self.ids))


@dataclass(eq=False)
class QueuedRow:
    """One row of a job."""

    __slots__ = ("job", "length", "place")
    job: BatchJob
    place: int
    length: int


class RowQueue:
    """Rows waiting for one way, in the order they came."""

    def __init__(self) -> None:
        self.window: list[QueuedRow] = []
        self.waiting: deque[QueuedRow] = deque()

    def oldest(self, tokens: int) -> QueuedRow | None:
        """The first row that somebody still waits for; fills the window up to `tokens`."""
        self.window = [row for row in self.window if row.job.live]
        held = sum(row.length for row in self.window)
        while self.waiting and held < tokens:
            row = self.waiting.popleft()
            if row.job.live:
                self.window.append(row)
                held += row.length
        return self.window[0] if self.window else None

    def take(self, token_budget: int) -> list[QueuedRow]:
        """The batch that holds the oldest row, the longest row first."""
        places = next(p for p in group_by_length([row.length for row in self.window], token_budget) if 0 in p)
        batch = [self.window[place] for place in places]
        gone = set(places)
        self.window = [row for place, row in enumerate(self.window) if place not in gone]
        return batch


def segments_of(row: QueuedRow) -> Any:
    """The segments of a row; 0 everywhere where a job has none."""
    segments = row.job.segments
    return np.zeros(row.length, np.int64) if segments is None else segments[row.place]


def mark_of(row: QueuedRow) -> Any:
    """What the reader wants to know about a row."""
    return None if row.job.marks is None else row.job.marks[row.place]
