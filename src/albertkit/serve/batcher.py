"""The batcher: one thread owns the engine and computes the rows of all requests in shared batches.

In: `BatchJob`s. Out: their results, delivered to the event loop. Imports `served_models.py`; `inference.py` uses it.

While the engine computes one batch, rows collect for the next, so no request waits for a full batch. The oldest row is
always in the next batch, with waiting rows of similar length. A job that cannot meet its deadline is rejected.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from albertkit.runtime.batching import group_by_length, pad_batch
from albertkit.serve.schemas import HttpError
from albertkit.serve.served_models import NEW_WEIGHT, ServedModel, TokenCost

log = logging.getLogger("albertkit.serve")
DECREASE_WEIGHT = 0.005  # weight of a wait that was shorter than estimated
MAX_WAIT_FACTOR = 4.0
WINDOW_BATCHES = 16  # maximum batches of waiting tokens that are sorted by length
WINDOW_SHARE = 8  # and at most the deadline divided by this: rows in the window may overtake older ones
BatchObserver = Callable[[ServedModel, int, int, float, float], None]
"""(model, rows, tokens, seconds, seconds that the oldest row waited), called after every batch."""
Reader = Callable[["ComputeRoute", np.ndarray, np.ndarray, list[Any]], Sequence[Any]]
"""(route, hidden states (rows, length, H), lengths, arguments) → one result per row."""


@dataclass(frozen=True)
class ComputeRoute:
    """Rows of the same route can share a batch: same model, depth and reader."""

    model: ServedModel
    depth: int
    reader: Reader
    pooling: str = ""
    """For readers that pool."""

    @property
    def cost(self) -> TokenCost:
        return self.model.token_cost


@dataclass(frozen=True, eq=False)
class EngineCall:
    """A function that uses the engine, called on its thread, never in a shared batch."""

    cost: TokenCost
    function: Callable[[], Any]
    depth = 1


@dataclass(eq=False)
class BatchJob:
    """What one request needs computed: rows of tokens, or a call (as one row without tokens)."""

    route: ComputeRoute | EngineCall
    ids: Sequence[Sequence[int] | np.ndarray]
    """The tokens of each row."""
    deadline: float
    segments: Sequence[Sequence[int]] | None = None
    arguments: Sequence[Any] | None = None
    """One argument per row for the reader."""
    work: int = 0
    """Tokens times layers that are not computed yet."""
    results: list[Any] = field(default_factory=list)
    missing: int = 0
    """Rows without a result."""
    is_live: bool = True
    """Whether a request waits for it."""
    arrived: float = 0.0
    started: float = 0.0
    compute_seconds: float = 0.0
    """Seconds of the batches it was in."""
    error: BaseException | None = None
    done: asyncio.Future[None] | None = None

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))

    @property
    def seconds(self) -> float:
        """Estimated seconds for its work."""
        return self.work * self.route.cost.seconds


class QueuedRow(NamedTuple):
    """One row of a job."""

    job: BatchJob
    number: int  # of the row in the job
    length: int


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
        indices = next(p for p in group_by_length([row.length for row in self.window], token_budget) if 0 in p)
        batch = [self.window[index] for index in indices]
        taken = set(indices)
        self.window = [row for index, row in enumerate(self.window) if index not in taken]
        return batch


class Batcher:
    """The queues and the engine's thread."""

    def __init__(self, token_budget: int, deadline: float, observe: BatchObserver | None = None) -> None:
        self.token_budget, self.deadline, self._observe = token_budget, deadline, observe
        self._queues: dict[ComputeRoute | EngineCall, RowQueue] = {}
        self._waiting_work: dict[TokenCost, int] = {}
        self.wait_factor = 1.5  # how many times longer than the work ahead a slow request waits; at first cautious
        self._condition = threading.Condition()
        self._is_stopped = False
        self._batch_started: float | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the engine's thread; results go to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Compute what is waiting, then stop."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()

    def batch_age(self) -> float | None:
        """Seconds since the current batch started, 0 when idle; None if the thread does not run."""
        started = self._batch_started
        if self._thread is None or not self._thread.is_alive():
            return None
        return 0.0 if started is None else time.monotonic() - started

    # On the event loop -------------------------------------------------------------------------------------------

    def waiting(self) -> tuple[int, float]:
        """Tokens times layers that are waiting, and the seconds they will take."""
        with self._condition:
            works = list(self._waiting_work.items())
        return sum(work for _, work in works), sum(work * cost.seconds for cost, work in works)

    def check(self, seconds: float = 0.0, deadline: float | None = None) -> float:
        """Reject work of some seconds that would finish after its deadline; returns the seconds of work ahead of it."""
        if seconds > self.deadline:
            raise HttpError(
                413,
                f"this request takes about {seconds:.0f} s to compute, but the deadline is {self.deadline:g} s. "
                "Send fewer texts per request.",
            )
        _, ahead = self.waiting()
        estimate = ahead * self.wait_factor
        seconds_left = self.deadline if deadline is None else deadline - time.monotonic()
        if seconds_left <= 0:
            raise self.timeout_error()
        if estimate + seconds > seconds_left:
            raise HttpError(
                429,
                f"about {estimate:.1f} s of work are waiting and the deadline is in {seconds_left:.2g} s; retry later",
                retry_after=estimate + seconds - seconds_left,
            )
        return ahead

    async def run(self, job: BatchJob) -> list[Any]:
        """The results of a job's rows, in order. If cancelled, the job is dropped."""
        if not job.ids:
            return []
        job.work = job.work or job.tokens * max(1, job.route.depth)
        seconds = job.seconds
        ahead = self.check(seconds, job.deadline)
        loop = asyncio.get_running_loop()
        job.done = loop.create_future()
        self._add(job)
        timer = loop.call_later(max(0.0, job.deadline - time.monotonic()), self._expire, job)
        try:
            await job.done
        finally:
            timer.cancel()
            with self._condition:
                self._close(job)
        if ahead * WINDOW_SHARE > self.deadline and isinstance(job.route, ComputeRoute):  # it waited long for others
            self.update_wait_factor((time.monotonic() - job.arrived - seconds) / ahead)
        if job.error is not None:
            try:
                raise job.error
            finally:
                job.error = None  # its traceback refers to the job, which would stay in memory
        return job.results

    def update_wait_factor(self, factor: float) -> None:
        """Update the estimate after a wait. A longer wait has 40 times the weight, so that few responses are late."""
        factor = min(MAX_WAIT_FACTOR, factor)
        weight = NEW_WEIGHT if factor > self.wait_factor else DECREASE_WEIGHT
        self.wait_factor = max(1.0, self.wait_factor + weight * (factor - self.wait_factor))

    def _add(self, job: BatchJob) -> None:
        job.arrived = time.monotonic()
        job.results, job.missing = [None] * len(job.ids), len(job.ids)
        rows = [QueuedRow(job, index, len(ids)) for index, ids in enumerate(job.ids)]
        with self._condition:
            if self._is_stopped:
                raise HttpError(503, "the server is shutting down; send the request to another one", retry_after=1)
            self._waiting_work[job.route.cost] = self._waiting_work.get(job.route.cost, 0) + job.work
            self._queues.setdefault(job.route, RowQueue()).waiting.extend(rows)
            self._condition.notify()

    def _expire(self, job: BatchJob) -> None:
        """At the deadline: reject a job that has not started."""
        with self._condition:
            if job.is_live and not job.started:
                self._reject(job)

    # With the lock held ------------------------------------------------------------------------------------------

    def _reject(self, job: BatchJob) -> None:
        """Close a job that cannot start in time."""
        job.error = self.timeout_error()
        self._close(job)
        self._deliver([job])

    def timeout_error(self) -> HttpError:
        return HttpError(503, f"the request could not be computed within {self.deadline:g} s; retry", retry_after=1)

    def _close(self, job: BatchJob) -> None:
        """Mark a job as finished or dropped, and subtract its work."""
        if job.is_live:
            job.is_live = False
            self._subtract_work(job, job.work)

    def _subtract_work(self, job: BatchJob, work: int) -> None:
        """Subtract computed work from the waiting work."""
        job.work -= work
        remaining = self._waiting_work.pop(job.route.cost, 0) - work
        if remaining > 0:
            self._waiting_work[job.route.cost] = remaining

    def _window_tokens(self, route: ComputeRoute | EngineCall) -> int:
        """How many waiting tokens are sorted by length together."""
        in_time = self.deadline / WINDOW_SHARE / (route.cost.seconds * max(1, route.depth))
        return int(min(WINDOW_BATCHES * self.token_budget, max(self.token_budget, in_time)))

    def _is_in_time(self, job: BatchJob, now: float) -> bool:
        """Whether a job is still wanted; one that was not started and cannot finish in time is rejected.

        A started job is always finished. Otherwise, under overload, the engine could compute only undelivered results.
        """
        if job.is_live and not job.started and now + job.seconds > job.deadline:
            self._reject(job)
        return job.is_live

    def _deliver(self, jobs: list[BatchJob]) -> None:
        if not jobs or self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(resume_requests, jobs)
        except RuntimeError:  # the event loop is closed: nobody waits
            log.debug("results without an event loop")

    # On the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            began = self._batch_started = time.monotonic()
            results, error = [], None
            try:
                results = self._compute(batch)
                if len(results) != len(batch):
                    raise RuntimeError(f"the reader returned {len(results)} results for {len(batch)} rows")
            except BaseException as problem:  # the thread must continue after any failure; the requests report it
                error = problem
            self._store(batch, results, error, time.monotonic() - began)
            self._batch_started, batch, results, error = None, [], [], None  # an idle thread keeps no results

    def _next(self) -> list[QueuedRow] | None:
        """Wait for the batch with the oldest row; None if the server stops and nothing waits."""
        with self._condition:
            while True:
                now = time.monotonic()
                heads: list[tuple[float, RowQueue]] = []
                for route, queue in list(self._queues.items()):
                    window = self._window_tokens(route)
                    row = queue.oldest(window)
                    while row is not None and not self._is_in_time(row.job, now):
                        row = queue.oldest(window)
                    if row is None:
                        del self._queues[route]
                    else:
                        heads.append((row.job.arrived, queue))
                if heads:
                    batch = min(heads, key=lambda head: head[0])[1].take(self.token_budget)
                    for row in batch:
                        row.job.started = row.job.started or now
                    return batch
                if self._is_stopped:
                    return None
                self._condition.wait()

    def _compute(self, batch: list[QueuedRow]) -> list[Any]:
        """One result per row."""
        route = batch[0].job.route
        if isinstance(route, EngineCall):
            return [route.function()]
        began = time.monotonic()
        ids, segments = [row.job.ids[row.number] for row in batch], None
        if any(row.job.segments for row in batch):
            segments = [row.job.segments[row.number] if row.job.segments else [0] * row.length for row in batch]
        arguments = [row.job.arguments[row.number] if row.job.arguments else None for row in batch]
        padded = pad_batch(ids, segments, list(range(len(batch))))
        hidden = route.model.albert.engine.run(padded, route.depth)
        results = list(route.reader(route, hidden, padded.lengths, arguments))
        seconds, tokens = time.monotonic() - began, sum(row.length for row in batch)
        if padded.ids.size * 2 >= self.token_budget and route.depth:
            route.cost.update(seconds / (tokens * route.depth))
        if self._observe is not None:  # before the responses, so that metrics include them
            self._observe(route.model, len(batch), tokens, seconds, began - min(row.job.arrived for row in batch))
        return results

    def _store(self, batch: list[QueuedRow], results: list[Any], error: BaseException | None, seconds: float) -> None:
        """Store the results of a batch, and deliver the finished jobs."""
        finished = []
        with self._condition:
            for job in {row.job for row in batch}:
                job.compute_seconds += seconds
            for number, row in enumerate(batch):
                job = row.job
                if not job.is_live:
                    continue
                job.error = error
                if error is None:
                    job.results[row.number] = results[number]
                    job.missing -= 1
                    self._subtract_work(job, min(job.work, row.length * max(1, job.route.depth)))
                if error is not None or not job.missing:
                    self._close(job)
                    finished.append(job)
        self._deliver(finished)


def resume_requests(jobs: list[BatchJob]) -> None:
    """Resume the requests that wait for some jobs."""
    for job in jobs:
        if job.done is not None and not job.done.done():
            job.done.set_result(None)
