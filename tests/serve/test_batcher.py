"""The batcher with an engine that counts: which rows share a batch, which jobs are rejected or dropped."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.serve.batcher import MAX_WAIT_FACTOR, Batcher, BatchJob, ComputeRoute, EngineCall
from albertkit.serve.schemas import HttpError
from albertkit.serve.served_models import ModelSource, TokenCost
from tests.waiting import LIMIT, wait_until, wait_until_async


class Engine:
    """Hidden states are the ids themselves; every batch is noted; it computes while `gate` is open."""

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fail = False

    def run(self, rows, depth):
        assert self.gate.wait(LIMIT)
        if self.fail:
            raise MemoryError("no room")
        self.batches.append([row[:n].tolist() for row, n in zip(rows.ids, rows.lengths, strict=True)])
        return rows.ids[:, :, None].astype(np.float32) + 1000 * rows.segments[:, :, None]


def total(route, hidden, lengths, arguments):
    return [float(row[:n].sum()) for row, n in zip(hidden, lengths, strict=True)]


class Model:
    def __init__(self, seconds):
        self.name, self.albert, self.token_cost = "model", SimpleNamespace(engine=Engine()), TokenCost(seconds)


def model(seconds=1e-6):
    return Model(seconds)


def job(made, *rows, depth=1, deadline=LIMIT, **more):
    return BatchJob(ComputeRoute(made, depth, total), list(rows), time.monotonic() + deadline, **more)


def call(made, function, deadline=LIMIT):
    return BatchJob(EngineCall(made.token_cost, function), [()], time.monotonic() + deadline, work=1)


async def begun(batcher):
    """The engine is computing: it waits at its gate."""
    await wait_until_async(batcher.batch_age, "nothing is being computed")


async def queued(batcher, tokens):
    """So many tokens times layers wait or are being computed."""
    await wait_until_async(lambda: batcher.waiting()[0] == tokens, f"{tokens} tokens were not queued")


def running(test, budget=64, deadline=LIMIT):
    """Run an async test with a batcher."""

    async def go():
        batcher = Batcher(budget, deadline)
        batcher.start()
        try:
            await asyncio.wait_for(test(batcher), LIMIT)
        finally:
            await asyncio.to_thread(batcher.stop)
        assert batcher.waiting() == (0, 0.0)

    asyncio.run(go())


def test_waiting_rows_share_a_batch_and_keep_their_order():
    made = model()
    engine = made.albert.engine

    async def test(batcher):
        engine.gate.clear()
        first = asyncio.ensure_future(batcher.run(job(made, [1, 2, 3])))
        await begun(batcher)  # the others gather
        jobs = [job(made, *[[i] * n for n in (2, 8, 5)]) for i in range(1, 5)]
        rest = [asyncio.ensure_future(batcher.run(one)) for one in jobs]
        await queued(batcher, 3 + 4 * (2 + 8 + 5))
        engine.gate.set()
        assert await first == [6.0]
        assert await asyncio.gather(*rest) == [[2.0 * i, 8.0 * i, 5.0 * i] for i in range(1, 5)]

    running(test)
    assert engine.batches[0] == [[1, 2, 3]]
    sizes = [[len(row) for row in batch] for batch in engine.batches[1:]]
    assert sum(len(batch) for batch in sizes) == 12 and len(sizes) <= 3
    assert all(batch == sorted(batch, reverse=True) and len(batch) * batch[0] <= 64 for batch in sizes)


def test_the_oldest_goes_first_whatever_its_length():
    made = model()
    engine = made.albert.engine

    async def test(batcher):
        engine.gate.clear()
        blocker = asyncio.ensure_future(batcher.run(job(made, [9])))
        await begun(batcher)
        old = asyncio.ensure_future(batcher.run(job(made, [7] * 3)))
        new = [asyncio.ensure_future(batcher.run(job(made, [1] * 60))) for _ in range(5)]
        await queued(batcher, 1 + 3 + 5 * 60)
        engine.gate.set()
        await asyncio.gather(blocker, old, *new)

    running(test)
    assert engine.batches[1] == [[7] * 3]


@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=20), min_size=1, max_size=12), st.integers(60, 400))
@settings(max_examples=40)
def test_every_row_is_computed_once(requests, budget):
    made = model()

    async def test(batcher):
        jobs = [job(made, *[[k] * n for n in lengths]) for k, lengths in enumerate(requests, 1)]
        found = await asyncio.gather(*[batcher.run(one) for one in jobs])
        for k, (lengths, results) in enumerate(zip(requests, found, strict=True), 1):
            assert results == [float(k * n) for n in lengths]

    running(test, budget)
    assert sum(map(len, made.albert.engine.batches)) == sum(map(len, requests))


def test_routes_and_segments_do_not_mix():
    made, other = model(), model()

    async def test(batcher):
        jobs = [
            job(made, [1, 1], depth=1),
            job(made, [1, 1], depth=2),
            job(other, [1, 1]),
            job(made, [1, 1], depth=1, segments=[[0, 1]]),
        ]
        assert await asyncio.gather(*[batcher.run(one) for one in jobs]) == [[2.0], [2.0], [2.0], [1002.0]]

    running(test)
    assert len(made.albert.engine.batches) >= 2 and len(other.albert.engine.batches) == 1


def test_work_that_cannot_finish_in_time_is_rejected_at_once():
    made = model(seconds=1.0)

    async def test(batcher):
        with pytest.raises(HttpError, match="takes about 60 s .* deadline is 50 s") as caught:
            await batcher.run(job(made, [1] * 60))
        assert caught.value.status == 413 and caught.value.retry_after is None
        made.albert.engine.gate.clear()
        waiting = [asyncio.ensure_future(batcher.run(job(made, [1] * 10, deadline=50.0))) for _ in range(2)]
        await queued(batcher, 20)
        with pytest.raises(HttpError, match="s of work are waiting") as caught:
            await batcher.run(job(made, [1] * 40, deadline=50.0))
        assert caught.value.status == 429 and 10 <= caught.value.retry_after <= 60
        with pytest.raises(
            HttpError, match=r"deadline is in \d(\.\d)? s"
        ) as caught:  # what cutting its texts took is gone
            await batcher.run(job(made, [1], deadline=9.0))
        assert caught.value.status == 429
        made.albert.engine.gate.set()
        assert await asyncio.gather(*waiting) == [[10.0], [10.0]]

    running(test, deadline=50.0)


def test_late_jobs_are_rejected_and_not_computed():
    made = model()
    engine = made.albert.engine

    async def test(batcher):
        engine.gate.clear()
        first = asyncio.ensure_future(batcher.run(job(made, [1])))
        await begun(batcher)
        late = asyncio.ensure_future(batcher.run(job(made, [2], deadline=0.1)))
        late_call = asyncio.ensure_future(batcher.run(call(made, lambda: 1, deadline=0.1)))
        await wait_until_async(lambda: late.done() and late_call.done())
        engine.gate.set()
        assert await first == [1.0]
        for one in (late, late_call):
            with pytest.raises(HttpError, match="could not be computed within") as caught:
                await one
            assert caught.value.status == 503 and caught.value.retry_after == 1

    running(test)
    assert engine.batches == [[[1]]]


def test_jobs_that_did_not_start_are_rejected_at_their_deadline():
    made = model()
    engine = made.albert.engine

    async def test(batcher):
        engine.gate.clear()
        computed = job(made, [1], deadline=2.0)
        first = asyncio.ensure_future(batcher.run(computed))
        await begun(batcher)
        for one in (job(made, [2], deadline=0.3), call(made, lambda: 1, deadline=0.3)):
            with pytest.raises(HttpError, match="could not be computed within") as caught:
                await batcher.run(one)
            assert caught.value.status == 503
        with pytest.raises(HttpError, match="could not be computed within"):  # its time was over before it came here
            await batcher.run(job(made, [3], deadline=-0.1))
        await wait_until_async(lambda: time.monotonic() > computed.deadline)
        assert not first.done() and batcher.waiting()[0] == 1  # what was begun is finished, even if late
        engine.gate.set()
        assert await first == [1.0]

    running(test)
    assert engine.batches == [[[1]]]


def test_jobs_that_cannot_finish_in_time_do_not_start():
    made = model(seconds=0.01)
    engine = made.albert.engine

    async def test(batcher):
        engine.gate.clear()
        first = asyncio.ensure_future(batcher.run(job(made, [1])))
        await begun(batcher)
        long = job(made, [2] * 60, deadline=2.0)  # takes 0.6 s, as far as is known
        hopeless = asyncio.ensure_future(batcher.run(long))
        await wait_until_async(lambda: time.monotonic() + 0.6 > long.deadline)
        engine.gate.set()
        with pytest.raises(HttpError, match="could not be computed within"):
            await hopeless
        assert await first == [1.0]

    running(test)
    assert engine.batches == [[[1]]]


def test_a_started_job_of_many_batches_is_finished():
    made = model()

    async def test(batcher):
        run, one = made.albert.engine.run, job(made, *[[1] * 60] * 8, deadline=1.0)

        def late(rows, depth):
            wait_until(lambda: time.monotonic() > one.deadline)
            return run(rows, depth)

        made.albert.engine.run = late
        assert await batcher.run(one) == [60.0] * 8

    running(test)
    assert len(made.albert.engine.batches) == 8


@given(st.lists(st.floats(0, 100), max_size=300))
@settings(max_examples=60)
def test_the_wait_factor_stays_in_bounds(waits):
    batcher = Batcher(1024, 30.0)
    for times in waits:
        before = batcher.wait_factor
        batcher.update_wait_factor(times)
        assert 1.0 <= batcher.wait_factor <= MAX_WAIT_FACTOR
        assert (batcher.wait_factor - before) * (min(times, MAX_WAIT_FACTOR) - before) >= 0  # towards what was seen


def test_longer_waits_than_estimated_make_it_reject_more():
    made = model(seconds=0.01)

    async def test(batcher):
        made.albert.engine.gate.clear()
        first = asyncio.ensure_future(batcher.run(job(made, [1] * 60)))
        await begun(batcher)
        assert batcher.check(1.0) == pytest.approx(0.6)
        for _ in range(20):
            batcher.update_wait_factor(3.0)
        with pytest.raises(HttpError, match="about 1.8 s"):
            batcher.check(1.0)
        for _ in range(2000):
            batcher.update_wait_factor(0.8)
        assert batcher.check(1.0) == pytest.approx(0.6)
        made.albert.engine.gate.set()
        await first

    running(test, deadline=2.0)


def test_a_long_queue_raises_the_wait_factor():
    """Batches that take three times as long as was foreseen when the jobs came: those who waited tell."""
    made = model(seconds=0.0005)

    async def test(batcher):
        run = made.albert.engine.run
        made.albert.engine.run = lambda rows, depth: time.sleep(0.0015 * int(rows.lengths.sum())) or run(rows, depth)
        batcher.wait_factor = 1.0
        jobs = [job(made, [1] * 20, deadline=1.0) for _ in range(20)]
        await asyncio.gather(*[batcher.run(one) for one in jobs], return_exceptions=True)
        assert batcher.wait_factor > 1.2

    running(test, budget=20, deadline=1.0)


def test_jobs_of_disconnected_clients_are_not_computed():
    made = model()
    engine = made.albert.engine

    async def test(batcher):
        engine.gate.clear()
        first = asyncio.ensure_future(batcher.run(job(made, [1])))
        await begun(batcher)
        gone = [asyncio.ensure_future(batcher.run(job(made, [2] * 30))) for _ in range(50)]
        stays = asyncio.ensure_future(batcher.run(job(made, [3])))
        await queued(batcher, 1502)
        for one in gone:
            one.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        assert batcher.waiting()[0] == 2
        first.cancel()  # while it is being computed
        engine.gate.set()
        assert await stays == [3.0]

    running(test)
    assert engine.batches == [[[1]], [[3]]]


def test_a_batch_that_fails_fails_alone():
    made = model()

    async def test(batcher):
        made.albert.engine.fail = True
        with pytest.raises(MemoryError):
            await batcher.run(job(made, [1], [2]))
        made.albert.engine.fail = False
        assert await batcher.run(job(made, [1], [2])) == [1.0, 2.0]
        loses_a_row = ComputeRoute(made, 1, lambda *given: total(*given)[1:])
        with pytest.raises(RuntimeError, match="1 results for 2 rows"):
            await batcher.run(BatchJob(loses_a_row, [[1], [2]], time.monotonic() + LIMIT))
        with pytest.raises(ZeroDivisionError):
            await batcher.run(call(made, lambda: 1 // 0))
        assert await batcher.run(call(made, lambda: 5)) == [5] and batcher.batch_age() is not None

    running(test)


def test_stopping_computes_waiting_jobs_and_rejects_new_ones():
    made = model()

    async def go():
        batcher = Batcher(64, LIMIT)
        assert batcher.batch_age() is None
        batcher.start()
        made.albert.engine.gate.clear()
        jobs = [asyncio.ensure_future(batcher.run(job(made, [1] * n))) for n in range(1, 30)]
        await queued(batcher, sum(range(1, 30)))
        stopping = asyncio.ensure_future(asyncio.to_thread(batcher.stop))
        await wait_until_async(lambda: batcher._is_stopped)
        with pytest.raises(HttpError, match="shutting down"):
            await batcher.run(job(made, [1]))
        made.albert.engine.gate.set()
        assert await asyncio.gather(*jobs) == [[float(n)] for n in range(1, 30)]
        await stopping

    asyncio.run(go())


def test_the_token_cost_is_measured_on_full_batches():
    made = model(seconds=1.0)
    made.token_cost.seconds = 1e-9

    async def test(batcher):
        await batcher.run(job(made, [1]))
        assert made.token_cost.seconds == 1e-9
        await batcher.run(job(made, *[[1] * 60] * 3))
        assert made.token_cost.seconds > 1e-9

    running(test)


# Beside it -------------------------------------------------------------------------------------------------------


def test_names_of_models(tmp_path):
    assert ModelSource.parse(f"en={tmp_path}") == ModelSource("en", tmp_path)
    assert ModelSource.parse_all([])[0].folder is None
    (tmp_path / "a=b").mkdir()
    assert ModelSource.parse(str(tmp_path / "a=b")).name == "a=b"
    with pytest.raises(ValueError, match="two models have the name 'x'"):
        ModelSource.parse_all(["a/x", "b/x"])
