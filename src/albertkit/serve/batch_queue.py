"""The batcher's data: jobs, their rows, the queues in which rows wait, and the estimates of compute and waiting time.

In: what a request needs computed. Out: the next batch of a queue. Next: `batcher.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from albertkit.albert import Albert
from albertkit.runtime.batching import group_by_length

NEW_WEIGHT = 0.2  # weight of a new measurement in a moving average
DECREASE_WEIGHT = 0.005  # weight of a wait that was shorter than estimated


class TokenCost:
    """Seconds per token and layer of a model: a moving average over batches that are at least half full."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def update(self, seconds: float) -> None:
        self.seconds += NEW_WEIGHT * (seconds - self.seconds)


class WaitFactor:
    """How many times longer than the work ahead a slow request waits, because others are put before it.

    A longer wait counts forty times as much as a shorter one, so that few responses are later than estimated. The first
    value is cautious.
    """

    MAX = 4.0

    def __init__(self) -> None:
        self.value = 1.5

    def update(self, factor: float) -> None:
        factor = min(self.MAX, factor)
        weight = NEW_WEIGHT if factor > self.value else DECREASE_WEIGHT
        self.value = max(1.0, self.value + weight * (factor - self.value))


class ComputeModel(Protocol):
    """A model with its measured cost: `ServedModel`."""

    @property
    def name(self) -> str: ...
    @property
    def albert(self) -> Albert: ...
    @property
    def token_cost(self) -> TokenCost: ...


Reader = Callable[["ComputeRoute", np.ndarray, np.ndarray, list[Any]], Sequence[Any]]
"""(route, hidden states (rows, length, H), lengths, arguments) → one result per row."""


@dataclass(frozen=True)
class ComputeRoute:
    """Rows of the same route can share a batch: same model, depth and reader."""

    model: ComputeModel
    depth: int
    reader: Reader
    pooling: str = ""
    """For readers that pool."""


@dataclass(eq=False)
class BatchJob:
    """What one request needs computed: rows of tokens, or a call."""

    route: ComputeRoute
    ids: Sequence[Sequence[int] | np.ndarray]
    """The tokens of each row."""
    deadline: float
    segments: Sequence[Sequence[int]] | None = None
    arguments: Sequence[Any] | None = None
    """One argument per row for the reader."""
    call: Callable[[], Any] | None = None
    """Instead of rows: a function to call on the engine's thread."""
    work: int = 0
    """Tokens times layers that are not computed yet."""
    results: list[Any] = field(default_factory=list)
    missing: int = 0
    """Rows without a result."""
    is_live: bool = True
    """Whether somebody waits for it."""
    arrived: float = 0.0
    started: float = 0.0
    compute_seconds: float = 0.0
    """Seconds of the batches it was in."""
    error: BaseException | None = None
    done: asyncio.Future[None] | None = None
    seconds_ahead: float = 0.0
    """Seconds of work that were waiting when it arrived."""
    own_seconds: float = 0.0
    """Estimated seconds for its own work."""

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))


@dataclass(eq=False)
class QueuedRow:
    """One row of a job."""

    __slots__ = ("job", "length", "place")
    job: BatchJob
    place: int
    length: int

    @property
    def segments(self) -> Sequence[int] | np.ndarray:
        """The segments of the row; 0 everywhere if the job has none."""
        segments = self.job.segments
        return np.zeros(self.length, np.int64) if segments is None else segments[self.place]

    @property
    def argument(self) -> object:
        return None if self.job.arguments is None else self.job.arguments[self.place]


class RowQueue:
    """Rows of one route, in the order of arrival. The first of them, the window, are sorted by length into batches."""

    def __init__(self) -> None:
        self.window: list[QueuedRow] = []
        self.waiting: deque[QueuedRow] = deque()

    def oldest(self, tokens: int) -> QueuedRow | None:
        """The first live row; fills the window up to `tokens`."""
        self.window = [row for row in self.window if row.job.is_live]
        size = sum(row.length for row in self.window)
        while self.waiting and size < tokens:
            row = self.waiting.popleft()
            if row.job.is_live:
                self.window.append(row)
                size += row.length
        return self.window[0] if self.window else None

    def take(self, token_budget: int) -> list[QueuedRow]:
        """The batch that contains the oldest row, the longest row first."""
        places = next(p for p in group_by_length([row.length for row in self.window], token_budget) if 0 in p)
        batch = [self.window[place] for place in places]
        taken = set(places)
        self.window = [row for place, row in enumerate(self.window) if place not in taken]
        return batch
