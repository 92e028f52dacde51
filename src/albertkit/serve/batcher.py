"""The batcher: one thread owns the engine and computes the rows of all requests together.

In: `BatchJob`s. Out: their results, delivered to the event loop. Before: `batch_queue.py`; next: `inference.py`.

While the engine computes one batch, rows collect for the next, so batches grow with the load and no request waits for
a full batch. The oldest row is always in the next batch, with waiting rows of similar length. A job that cannot meet
its deadline is rejected on arrival, estimated from the waiting work, the measured speed and how much longer others
waited than estimated. Jobs whose client has disconnected are not computed, nor jobs that were not started in time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from albertkit.runtime.batching import pad_batch
from albertkit.serve.batch_queue import (
    BatchJob,
    ComputeModel,
    ComputeRoute,
    QueuedRow,
    RowQueue,
    TokenCost,
    WaitFactor,
)
from albertkit.serve.schemas import HttpError

log = logging.getLogger("albertkit.serve")
WINDOW_BATCHES = 16  # at most so many batches of waiting tokens are sorted by length together
WINDOW_SHARE = 8  # and at most the deadline divided by this: rows in the window may overtake older ones
BatchObserver = Callable[[ComputeModel, int, int, float, float], None]
"""(model, rows, tokens, seconds, seconds that the oldest row waited), called after every batch."""


class Batcher:
    """The queues and the engine's thread."""

    def __init__(self, token_budget: int, deadline: float, observe: BatchObserver | None = None) -> None:
        self.token_budget, self.deadline, self._observe = token_budget, deadline, observe
        self._queues: dict[ComputeRoute, RowQueue] = {}
        self._calls: deque[BatchJob] = deque()
        self._waiting_work: dict[TokenCost, int] = {}
        self.wait_factor = WaitFactor()
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

    def check_queue(self, own_seconds: float = 0.0, deadline: float | None = None) -> float:
        """Reject a job that would finish after its deadline; returns the seconds of work ahead of it."""
        _, ahead = self.waiting()
        estimate = ahead * self.wait_factor.value
        left = self.deadline if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise self._timeout()
        if estimate + own_seconds > left:
            raise HttpError(
                429,
                f"about {estimate:.1f} s of work are waiting and the deadline is in {left:.2g} s; retry later",
                retry_after=estimate + own_seconds - left,
            )
        return ahead

    def check(self, model: ComputeModel, work: int, deadline: float | None = None) -> tuple[float, float]:
        """Reject work (tokens times layers) that would finish late; (seconds of work ahead, seconds of this work)."""
        seconds = work * model.token_cost.seconds
        if seconds > self.deadline:
            raise HttpError(
                413,
                f"this request takes about {seconds:.0f} s to compute, and the deadline is {self.deadline:g} s; "
                "send fewer texts per request",
            )
        return self.check_queue(seconds, deadline), seconds

    async def run(self, job: BatchJob) -> list[Any]:
        """The results of a job's rows, in order. If cancelled, the job is dropped."""
        if not job.ids and job.call is None:
            return []
        job.work = job.work or job.tokens * max(1, job.route.depth)
        job.seconds_ahead, job.own_seconds = self.check(job.route.model, job.work, job.deadline)
        loop = asyncio.get_running_loop()
        job.done = loop.create_future()
        self._add(job)
        timer = loop.call_later(max(0.0, job.deadline - time.monotonic()), self._expire, job)
        try:
            await job.done
        finally:
            timer.cancel()
            if job.is_live:
                with self._condition:
                    self._close(job)
        self._measure_wait(job)
        if job.error is not None:
            raise job.error
        return job.results

    def _measure_wait(self, job: BatchJob) -> None:
        """Update the wait factor after a job that waited long for others."""
        if job.seconds_ahead * WINDOW_SHARE > self.deadline and job.call is None:
            waited = time.monotonic() - job.arrived - job.own_seconds
            self.wait_factor.update(waited / job.seconds_ahead)

    def _expire(self, job: BatchJob) -> None:
        """At the deadline: reject a job that has not started."""
        with self._condition:
            is_late = job.is_live and not job.started
            if is_late:
                self._reject(job)
        if is_late:
            wake([job])

    def _reject(self, job: BatchJob) -> None:
        """Close a job that cannot start in time; the lock is held."""
        job.error = self._timeout()
        self._close(job)

    def _timeout(self) -> HttpError:
        return HttpError(503, f"the request could not be computed within {self.deadline:g} s; retry", retry_after=1)

    def _add(self, job: BatchJob) -> None:
        job.arrived = time.monotonic()
        job.results, job.missing = [None] * len(job.ids), len(job.ids)
        rows = [QueuedRow(job, place, len(ids)) for place, ids in enumerate(job.ids)]
        with self._condition:
            if self._is_stopped:
                raise HttpError(503, "the server is shutting down; send the request to another one", retry_after=1)
            cost = job.route.model.token_cost
            self._waiting_work[cost] = self._waiting_work.get(cost, 0) + job.work
            if job.call is not None:
                self._calls.append(job)
            else:
                self._queues.setdefault(job.route, RowQueue()).waiting.extend(rows)
            self._condition.notify()

    def _close(self, job: BatchJob) -> None:
        """Mark a job as finished or dropped, and subtract its work; the lock is held."""
        if job.is_live:
            job.is_live = False
            self._subtract_work(job, job.work)

    def _subtract_work(self, job: BatchJob, work: int) -> None:
        """Subtract computed work from the waiting work; the lock is held."""
        cost = job.route.model.token_cost
        job.work -= work
        left = self._waiting_work.get(cost, 0) - work
        self._waiting_work[cost] = left
        if left <= 0:
            del self._waiting_work[cost]

    # On the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._batch_started = time.monotonic()
            jobs = [batch] if isinstance(batch, BatchJob) else list({row.job for row in batch})
            try:
                if isinstance(batch, BatchJob):
                    self._call(batch)
                else:
                    self._compute(batch)
            except BaseException as problem:  # an error in this file: no request may wait forever
                log.exception("batcher failed")
                with self._condition:
                    for job in jobs:
                        job.error = job.error or problem
                        self._close(job)
                self._deliver(jobs)
            self._batch_started = None

    def _next(self) -> list[QueuedRow] | BatchJob | None:
        """Wait for the next batch or call, the oldest first; None if the server stops and nothing waits."""
        with self._condition:
            while True:
                now = time.monotonic()
                first: tuple[float, ComputeRoute | None] | None = None
                while self._calls and not self._is_in_time(self._calls[0], now):
                    self._calls.popleft()
                if self._calls:
                    first = (self._calls[0].arrived, None)
                for route, rows in list(self._queues.items()):
                    window = self._window_tokens(route)
                    row = rows.oldest(window)
                    while row is not None and not self._is_in_time(row.job, now):
                        row = rows.oldest(window)
                    if row is None:
                        del self._queues[route]
                    elif first is None or row.job.arrived < first[0]:
                        first = (row.job.arrived, route)
                if first is not None:
                    route_or_call = first[1]
                    if route_or_call is None:
                        call = self._calls.popleft()
                        call.started = now
                        return call
                    batch = self._queues[route_or_call].take(self.token_budget)
                    for job in {row.job for row in batch}:
                        job.started = job.started or now
                    return batch
                if self._is_stopped:
                    return None
                self._condition.wait()

    def _window_tokens(self, route: ComputeRoute) -> int:
        """How many waiting tokens are sorted by length together."""
        in_time = self.deadline / WINDOW_SHARE / (route.model.token_cost.seconds * max(1, route.depth))
        return int(min(WINDOW_BATCHES * self.token_budget, max(self.token_budget, in_time)))

    def _is_in_time(self, job: BatchJob, now: float) -> bool:
        """Whether a job is still wanted; one that was not started and cannot finish in time is rejected. The lock is
        held.

        A started job is finished: else, under overload, the engine might only compute results that are never delivered.
        """
        if job.is_live and not job.started and now + job.work * job.route.model.token_cost.seconds > job.deadline:
            self._reject(job)
            self._deliver([job])
        return job.is_live

    def _compute(self, batch: list[QueuedRow]) -> None:
        route = batch[0].job.route
        began = time.monotonic()
        error: BaseException | None = None
        results: list[Any] = []
        size = 0
        try:
            has_segments = any(row.job.segments is not None for row in batch)
            padded = pad_batch(
                [row.job.ids[row.place] for row in batch],
                [row.segments for row in batch] if has_segments else None,
                list(range(len(batch))),
            )
            size = padded.ids.size
            hidden = route.model.albert.engine.run(padded, route.depth)
            results = list(route.reader(route, hidden, padded.lengths, [row.argument for row in batch]))
        except BaseException as problem:  # the thread must continue after any failure
            log.exception("batch failed")
            error = problem
        seconds = time.monotonic() - began
        tokens = sum(row.length for row in batch)
        if size * 2 >= self.token_budget and route.depth and error is None:
            route.model.token_cost.update(seconds / (tokens * route.depth))
        if self._observe is not None:  # before the responses, so that metrics include them
            self._observe(route.model, len(batch), tokens, seconds, began - min(row.job.arrived for row in batch))
        self._deliver(self._store(batch, results, error, seconds))

    def _store(
        self, batch: list[QueuedRow], results: list[Any], error: BaseException | None, seconds: float
    ) -> list[BatchJob]:
        """Store the results of a batch; returns the finished jobs."""
        finished = []
        with self._condition:
            for job in {row.job for row in batch}:
                job.compute_seconds += seconds
            for at, row in enumerate(batch):
                job = row.job
                if not job.is_live:
                    continue
                if error is not None:
                    job.error = error
                else:
                    job.results[row.place] = results[at]
                    job.missing -= 1
                    self._subtract_work(job, min(job.work, row.length * max(1, job.route.depth)))
                if error is not None or not job.missing:
                    self._close(job)
                    finished.append(job)
        return finished

    def _call(self, job: BatchJob) -> None:
        began = time.monotonic()
        try:
            job.results = [job.call()] if job.call is not None else []
        except BaseException as problem:
            job.error = problem
        job.compute_seconds = time.monotonic() - began
        with self._condition:
            is_live = job.is_live
            self._close(job)
        if is_live:
            self._deliver([job])

    def _deliver(self, jobs: list[BatchJob]) -> None:
        if not jobs or self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(wake, jobs)
        except RuntimeError:  # the event loop is closed: nobody waits
            log.debug("results without an event loop")


def wake(jobs: list[BatchJob]) -> None:
    """Resume the requests that wait for some jobs."""
    for job in jobs:
        if job.done is not None and not job.done.done():
            job.done.set_result(None)
