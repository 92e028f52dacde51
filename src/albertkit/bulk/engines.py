"""Engines: run parts in several local processes, or on a Ray cluster.

In: a `BulkJob` and parts. Out: the `PartResult` of each part, in the order of completion. A killed worker is replaced
and its part is repeated; a part that kills several workers stops the run. Ray runs plain actors, not Ray Data, whose
output files differ from run to run. Before this file: `worker.py`; after it: `bulk_run.py`.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

import numpy as np

from albertkit.bulk.device import DeviceClient, device_process, open_outputs
from albertkit.bulk.parts import WorkPart
from albertkit.bulk.worker import BulkJob, PartResult, PartWorker
from albertkit.data.document_tokenizer import follow_parent
from albertkit.errors import AlbertkitError, need, short_reason
from albertkit.runtime.packed_texts import OutputRequest, PackedOutputs, PackedTexts

MAX_ATTEMPTS = 4  # per part
DEVICE_CALLS = 4  # of workers that a device prepares, computes and answers at the same time
OBJECT_STORE_BYTES = 100 << 20  # of a local Ray; only small results pass through it


def check_attempts(number: int, failures: int) -> None:
    """Raise if too many workers were killed on a part."""
    if failures >= MAX_ATTEMPTS:
        raise AlbertkitError(
            f"part {number} was tried by {failures} workers and each was killed, perhaps because memory ran out. "
            "Rerun the command with fewer --workers."
        )


# Local processes ----------------------------------------------------------------------------------------------------


def run_local(job: BulkJob, parts: Iterable[WorkPart], workers: int) -> Iterator[PartResult]:
    with device_process(job) as address:
        yield from _run_workers(replace(job, device_address=address), parts, workers)


def _run_workers(job: BulkJob, parts: Iterable[WorkPart], workers: int) -> Iterator[PartResult]:
    todo, failures = iter(parts), Counter[int]()
    running: dict[Connection, tuple[BaseProcess, WorkPart]] = {}

    def assign(pipe: Connection, process: BaseProcess, part: WorkPart) -> None:
        running[pipe] = process, part
        with contextlib.suppress(OSError):  # `_receive` detects a dead worker
            pipe.send(part)

    def stop(pipe: Connection) -> None:
        process, _ = running.pop(pipe)
        process.kill()  # an unfinished part is repeated, or no longer needed
        process.join()
        pipe.close()

    try:
        for part in islice(todo, workers):
            assign(*_start_process(job), part)
        while running:
            for pipe in cast("list[Connection]", wait(list(running))):
                process, part = running[pipe]
                result = _receive(pipe)
                if result is None:
                    failures[part.number] += 1
                    check_attempts(part.number, failures[part.number])
                    stop(pipe)
                    assign(*_start_process(job), part)
                    continue
                following = next(todo, None)
                if following is None:
                    stop(pipe)
                else:
                    assign(pipe, process, following)
                yield result
    finally:
        for pipe in list(running):
            stop(pipe)


def _start_process(job: BulkJob) -> tuple[Connection, BaseProcess]:
    """A worker process, and this side of the pipe to it."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_work, args=(other, job), daemon=True)
    process.start()
    other.close()
    return pipe, process


def _receive(pipe: Connection) -> PartResult | None:
    """The result of a worker; None if it has died."""
    try:
        result = pipe.recv()
    except (EOFError, OSError):
        return None
    if isinstance(result, PartResult):
        return result
    if isinstance(result, AlbertkitError):
        raise result
    raise RuntimeError(f"a worker failed:\n{result}")


def _work(pipe: Connection, job: BulkJob) -> None:
    """The loop of a worker process."""
    follow_parent()
    result: Any
    worker: PartWorker | None = None
    while True:
        try:
            part = pipe.recv()
            if worker is None:
                client = DeviceClient(job.device_address, job.options.device) if job.device_address else None
                worker = PartWorker(job, client)
            result = worker(part)
        except (EOFError, OSError):
            return
        except AlbertkitError as error:
            result = error
        except BaseException:
            result = traceback.format_exc()
        pipe.send(result)


# Ray ----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def connect_ray(address: str | None, cores: int) -> Iterator[Any]:
    """Connect to a Ray cluster, or start a local one for this run. An existing connection is reused."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # otherwise Ray lowers the priority of its workers
    ray: Any = need("ray", "ray", "--engine ray")
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            ray.init("local", num_cpus=cores, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise AlbertkitError(
            f"Ray cannot be reached at {address or 'this machine'}: {short_reason(error)}. Check --address."
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


class PartActor:
    """A `PartWorker` in a Ray process. It returns our errors, since Ray treats a raised one as a dead worker."""

    def __init__(self, job: BulkJob, outputs: PackedOutputs | None = None) -> None:
        self.job, self.outputs = job, outputs
        self.worker: PartWorker | None = None

    def run(self, part: WorkPart | None) -> PartResult | AlbertkitError | None:
        """Run one part; with None, only open the model."""
        try:
            self.worker = self.worker or PartWorker(self.job, self.outputs)
            return None if part is None else self.worker(part)
        except AlbertkitError as error:
            return error


class DeviceActor:
    """A model on a device in a Ray process. It returns our errors, as `PartActor` does."""

    def __init__(self, job: BulkJob) -> None:
        self.job, self.lock = job, threading.Lock()  # for calls at the same time
        self.compute: PackedOutputs | None = None

    def outputs(
        self, texts: PackedTexts, depth: int, requests: Sequence[OutputRequest]
    ) -> list[np.ndarray] | AlbertkitError:
        """See `PackedOutputs`."""
        try:
            with self.lock:
                self.compute = self.compute or open_outputs(self.job)
            return self.compute(texts, depth, requests)
        except AlbertkitError as error:
            return error


class RayOutputs:
    """The `PackedOutputs` of a `DeviceActor`, for a worker anywhere in the cluster."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __call__(self, texts: PackedTexts, depth: int, requests: Sequence[OutputRequest]) -> list[np.ndarray]:
        ray: Any = need("ray", "ray", "--engine ray")
        reply: list[np.ndarray] | AlbertkitError = ray.get(self.actor.outputs.remote(texts, depth, requests))
        if isinstance(reply, AlbertkitError):
            raise reply
        return reply


def _start_devices(ray: Any, job: BulkJob) -> list[Any]:
    """One actor for each free GPU of the cluster; none if the job runs on the CPU."""
    if job.options.device == "cpu":
        return []
    is_gpu = job.options.device.startswith("cuda")
    count = _free_gpus(ray, job.options.device) if is_gpu else 1
    remote = ray.remote(
        num_cpus=0,
        num_gpus=int(is_gpu),
        max_restarts=-1,
        max_task_retries=MAX_ATTEMPTS - 1,
        max_concurrency=DEVICE_CALLS,
    )(DeviceActor)
    return [remote.remote(job) for _ in range(count)]


def _free_gpus(ray: Any, device: str) -> int:
    """The number of GPUs that no other program of the cluster uses; an actor for another one would wait for it."""
    total, free = (int(resources.get("GPU", 0)) for resources in (ray.cluster_resources(), ray.available_resources()))
    if not total:
        raise AlbertkitError(f"device={device!r} is not available: Ray finds no GPU. Omit device.")
    if not free:
        raise AlbertkitError(
            f"device={device!r} is not available: other programs use all GPUs of the Ray cluster ({total}). Wait until "
            "one is free, or omit device."
        )
    if free < total:
        warnings.warn(
            f"other programs use {total - free} of {total} GPUs of the Ray cluster; this run uses {free}.", stacklevel=2
        )
    return free


def run_ray(job: BulkJob, parts: Iterable[WorkPart], workers: int, address: str | None = None) -> Iterator[PartResult]:
    """Run the parts on Ray. An actor gets a part when it is ready, so pending actors do not delay the run."""
    todo, has_more, threads = iter(parts), True, job.options.threads
    with connect_ray(address, workers * threads) as ray:
        # Ray restarts an actor that dies, and repeats its call.
        remote = ray.remote(num_cpus=threads, max_restarts=-1, max_task_retries=MAX_ATTEMPTS - 1)(PartActor)
        devices = _start_devices(ray, job)
        outputs = [RayOutputs(devices[number % len(devices)]) if devices else None for number in range(workers)]
        actors = [remote.remote(job, output) for output in outputs]
        calls: dict[Any, tuple[Any, WorkPart | None]] = {actor.run.remote(None): (actor, None) for actor in actors}
        try:
            while has_more or any(part is not None for _, part in calls.values()):
                ready = ray.wait(list(calls), num_returns=1)[0][0]
                actor, part = calls.pop(ready)
                result = _part_result(ray, ready, part)
                following = next(todo, None) if has_more else None
                if following is not None:
                    calls[actor.run.remote(following)] = (actor, following)
                has_more = following is not None
                if result is not None:
                    yield result
        finally:
            for actor in [*actors, *devices]:
                ray.kill(actor)


def _part_result(ray: Any, ready: Any, part: WorkPart | None) -> PartResult | None:
    try:
        result: PartResult | AlbertkitError | None = ray.get(ready)
    except ray.exceptions.RayActorError:
        if part is not None:
            check_attempts(part.number, MAX_ATTEMPTS)
        raise AlbertkitError(
            "Ray's workers died while they opened the model, perhaps because memory ran out. Use fewer --workers."
        ) from None
    if isinstance(result, AlbertkitError):
        raise result
    return result
