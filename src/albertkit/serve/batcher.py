"""The batcher: one thread owns the engine and computes what all clients ask for, together.

In: `BatchJob`s, each some rows of tokens to be read in one way. Out: their results, given to the event loop. Before this file: `jobs.py`,
where rows wait; `runtime/batching.py` decides which are computed together. After it: `work.py` makes jobs of requests.

While the engine computes one batch, rows gather for the next, so that batches grow with the load and nobody waits for company. The
oldest row is always in the next batch, with those of the waiting rows that fit to it by length. A job that cannot be done before its
deadline is refused when it comes, from what is waiting, how fast the engine has been, and by how much others waited longer than
foreseen. One whose client has gone is not computed any more, nor one that was not begun while there was time for it; that is told
when its time is over, whatever the engine is doing.
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
    mark_of,
    segments_of,
)
from albertkit.serve.http_error import HttpError

log = logging.getLogger("albertkit.serve")
WINDOW = 16  # batches' worth of waiting tokens that are sorted by length together, at most
SHARE = 8  # of the deadline, divided by this, is what sorted tokens may take: those that came later go before some of the others


class Batcher:
    """The queue and the thread. `watch` is told of every batch: model, texts, tokens, seconds, and how long its oldest row waited."""

    def __init__(self, token_budget: int, deadline: float, watch: Callable[..., None] | None = None) -> None:
        self.token_budget, self.deadline = token_budget, deadline
        self._watch = watch or (lambda *about: None)
        self._lanes: dict[ComputeRoute, RowQueue] = {}
        self._calls: deque[BatchJob] = deque()
        self._owed: dict[TokenCost, int] = {}
        self.wait_factor = WaitFactor()
        self._ready = threading.Condition()
        self._stopped = False
        self._began: float | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to compute; results go to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Compute what is waiting, then end."""
        with self._ready:
            self._stopped = True
            self._ready.notify()
        if self._thread is not None:
            self._thread.join()

    def stuck(self) -> float | None:
        """Seconds since the batch now computed began, 0 when idle; None when the thread does not run."""
        began = self._began
        if self._thread is None or not self._thread.is_alive():
            return None
        return 0.0 if began is None else time.monotonic() - began

    # On the event loop -------------------------------------------------------------------------------------------

    def waiting(self) -> tuple[int, float]:
        """Tokens times layers that are waiting, and the seconds they will take."""
        with self._ready:
            owed = list(self._owed.items())
        return sum(work for _, work in owed), sum(work * token_cost.seconds for token_cost, work in owed)

    def check_queue(self, alone: float = 0.0, until: float | None = None) -> float:
        """Refuse what would wait too long, if it takes `alone` seconds itself and is due at `until`; gives the seconds of work ahead of it."""
        _, ahead = self.waiting()
        foreseen = ahead * self.wait_factor.times
        left = self.deadline if until is None else until - time.monotonic()
        if left <= 0:
            raise self._late()
        if foreseen + alone > left:
            raise HttpError(
                429,
                f"about {foreseen:.1f} s of work are waiting and an answer is due in {left:.2g} s; ask again later",
                again=foreseen + alone - left,
            )
        return ahead

    def check(self, model: ComputeModel, work: int, until: float | None = None) -> tuple[float, float]:
        """Refuse work (tokens times layers) that could not be done in time; (seconds of work ahead of it, seconds it takes itself)."""
        alone = work * model.token_cost.seconds
        if alone > self.deadline:
            raise HttpError(
                413,
                f"this request takes about {alone:.0f} s to compute and an answer is due in {self.deadline:g} s; "
                "send fewer texts at a time",
            )
        return self.check_queue(alone, until), alone

    async def run(self, job: BatchJob) -> list[Any]:
        """Results of a job's rows, in their order. Cancelled, the job is forgotten."""
        if not job.ids and job.call is None:
            return []
        job.work = job.work or job.tokens * max(1, job.route.depth)
        job.ahead, job.alone = self.check(job.route.model, job.work, job.deadline)
        loop = asyncio.get_running_loop()
        job.done = loop.create_future()
        self._add(job)
        clock = loop.call_later(max(0.0, job.deadline - time.monotonic()), self._expire, job)
        try:
            await job.done
        finally:
            clock.cancel()
            if job.live:
                self._forget(job)
        self._compare(job)
        if job.error is not None:
            raise job.error
        return job.results

    def _compare(self, job: BatchJob) -> None:
        """Learn from a job that had to wait for others how long that took."""
        if job.ahead * SHARE > self.deadline and job.call is None:
            self.wait_factor.learn((time.monotonic() - job.arrived - job.alone) / job.ahead)

    def _expire(self, job: BatchJob) -> None:
        """The time of a job is over: if it was not begun, its client is told now."""
        with self._ready:
            late = job.live and not job.started
            if late:
                self._refuse(job)
        if late:
            answered([job])

    def _refuse(self, job: BatchJob) -> None:
        """A job has waited too long to be begun; the lock is held."""
        job.error = self._late()
        self._settle(job)

    def _late(self) -> HttpError:
        return HttpError(503, f"there was no time for this request within {self.deadline:g} s; ask again", again=1)

    def _add(self, job: BatchJob) -> None:
        job.arrived = time.monotonic()
        job.results, job.left = [None] * len(job.ids), len(job.ids)
        rows = [QueuedRow(job, place, len(ids)) for place, ids in enumerate(job.ids)]
        with self._ready:
            if self._stopped:
                raise HttpError(503, "the server is shutting down; ask another one", again=1)
            token_cost = job.route.model.token_cost
            self._owed[token_cost] = self._owed.get(token_cost, 0) + job.work
            if job.call is not None:
                self._calls.append(job)
            else:
                self._lanes.setdefault(job.route, RowQueue()).waiting.extend(rows)
            self._ready.notify()

    def _forget(self, job: BatchJob) -> None:
        """Nobody waits any more: its rows will be passed over."""
        with self._ready:
            self._settle(job)

    def _settle(self, job: BatchJob) -> None:
        """Take a job that is finished or given up off the books; the lock is held."""
        if job.live:
            job.live = False
            self._pay(job, job.work)

    def _pay(self, job: BatchJob, work: int) -> None:
        """Some of what a job owed is done; the lock is held."""
        token_cost = job.route.model.token_cost
        job.work -= work
        left = self._owed.get(token_cost, 0) - work
        self._owed[token_cost] = left
        if left <= 0:
            del self._owed[token_cost]

    # On the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self._began = time.monotonic()
            jobs = [batch] if isinstance(batch, BatchJob) else list({row.job for row in batch})
            try:
                if isinstance(batch, BatchJob):
                    self._call(batch)
                else:
                    self._compute(batch)
            except BaseException as problem:  # a fault of ours: nobody must wait for ever
                log.exception("batcher failed")
                with self._ready:
                    for job in jobs:
                        job.error = job.error or problem
                        self._settle(job)
                self._deliver(jobs)
            self._began = None

    def _next(self) -> list[QueuedRow] | BatchJob | None:
        """The next batch or call; waits for one. None when all is done and the server stops."""
        with self._ready:
            while True:
                now = time.monotonic()
                first: tuple[float, ComputeRoute | None] | None = None
                while self._calls and not self._in_time(self._calls[0], now):
                    self._calls.popleft()
                if self._calls:
                    first = (self._calls[0].arrived, None)
                for route, lane in list(self._lanes.items()):
                    room = self._room(route)
                    row = lane.oldest(room)
                    while row is not None and not self._in_time(row.job, now):
                        row = lane.oldest(room)
                    if row is None:
                        del self._lanes[route]
                    elif first is None or row.job.arrived < first[0]:
                        first = (row.job.arrived, route)
                if first is not None:
                    batch = self._calls.popleft() if first[1] is None else self._lanes[first[1]].take(self.token_budget)
                    for job in [batch] if isinstance(batch, BatchJob) else {row.job for row in batch}:
                        job.started = job.started or now
                    return batch
                if self._stopped:
                    return None
                self._ready.wait()

    def _room(self, route: ComputeRoute) -> int:
        """How many waiting tokens are sorted by length together."""
        quick = self.deadline / SHARE / (route.model.token_cost.seconds * max(1, route.depth))
        return int(min(WINDOW * self.token_budget, max(self.token_budget, quick)))

    def _in_time(self, job: BatchJob, now: float) -> bool:
        """Whether somebody waits for a job; one that was not begun and could not be done in time any more is told so. The lock is held.

        What was begun is finished: else, under too much load, the engine might spend its time on answers nobody gets.
        """
        if job.live and not job.started and now + job.work * job.route.model.token_cost.seconds > job.deadline:
            self._refuse(job)
            self._deliver([job])
        return job.live

    def _compute(self, batch: list[QueuedRow]) -> None:
        route = batch[0].job.route
        began = time.monotonic()
        error, found, size = None, list[Any](), 0
        try:
            rows = pad_batch(
                [row.job.ids[row.place] for row in batch],
                None if all(row.job.segments is None for row in batch) else [segments_of(row) for row in batch],
                list(range(len(batch))),
            )
            size = rows.ids.size
            hidden = route.model.albert.engine.run(rows, route.depth)
            found = list(route.reader(route, hidden, rows.lengths, [mark_of(row) for row in batch]))
        except BaseException as problem:  # the thread must live on, whatever a batch does
            log.exception("batch failed")
            error = problem
        seconds = time.monotonic() - began
        tokens = sum(row.length for row in batch)
        if size * 2 >= self.token_budget and route.depth and error is None:
            route.model.token_cost.learn(seconds / (tokens * route.depth))
        waited = began - min(row.job.arrived for row in batch)
        self._watch(route.model, len(batch), tokens, seconds, waited)  # counted before it is answered
        self._deliver(self._keep(batch, found, error, seconds))

    def _keep(
        self, batch: list[QueuedRow], found: list[Any], error: BaseException | None, seconds: float
    ) -> list[BatchJob]:
        """Put results where they belong; returns the jobs that are done with."""
        finished = []
        with self._ready:
            for job in {row.job for row in batch}:
                job.computing += seconds
            for at, row in enumerate(batch):
                job = row.job
                if not job.live:
                    continue
                if error is not None:
                    job.error = error
                else:
                    job.results[row.place] = found[at]
                    job.left -= 1
                    self._pay(job, min(job.work, row.length * max(1, job.route.depth)))
                if error is not None or not job.left:
                    self._settle(job)
                    finished.append(job)
        return finished

    def _call(self, job: BatchJob) -> None:
        began = time.monotonic()
        try:
            job.results = [job.call()] if job.call is not None else []
        except BaseException as problem:
            job.error = problem
        job.computing = time.monotonic() - began
        with self._ready:
            live = job.live
            self._settle(job)
        if live:
            self._deliver([job])

    def _deliver(self, jobs: list[BatchJob]) -> None:
        if not jobs or self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(answered, jobs)
        except RuntimeError:  # the loop is closed: nobody is left to hear
            log.debug("answers without a loop")


def answered(jobs: list[BatchJob]) -> None:
    """Wake those who wait for some jobs."""
    for job in jobs:
        if job.done is not None and not job.done.done():
            job.done.set_result(None)
