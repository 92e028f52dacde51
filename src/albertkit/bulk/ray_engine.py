"""Parts on a Ray cluster, or on a Ray that is started on this machine for the time of the work.

In: a `Job` and parts. Out: each part's `Done`, in the order in which they are finished.

Plain Ray actors with a list of parts of our own, not Ray Data. What Ray Data would write follows from how its scheduler cut blocks in that run: names of output files
are made from a random id, a retried task writes another file, and its checkpoints need a column of ids in the input and keep all finished ids in memory.
Numbered parts make exactly-once a matter of one rename, and resuming a look into a folder. So rows never pass through Ray's object store: an actor gets a number
and a range, reads its rows itself, and gives a count back. What Ray does here: processes on many machines, each with its model; replacing those that die
(`max_restarts`) and giving their part out again (`max_task_retries`). Back-pressure needs nothing: an actor has one part at a time.

Input, output and model must have the same path on every machine, or be URLs (the model: a folder, or built in); workers check the model's hash.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from albertkit.bulk.local import ATTEMPTS, check_attempts
from albertkit.bulk.parts import Part
from albertkit.bulk.worker import Done, Job, Worker
from albertkit.errors import AlbertkitError, need

STORE = 100 * 2**20  # bytes of Ray's object store on this machine; nothing but numbers goes through it


@contextmanager
def joined(address: str | None, cores: int) -> Iterator[Any]:
    """Ray, connected: to a cluster, or to one that ends with this work. A connection that is there already is used and kept."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else everything else on the machine goes before the work
    ray: Any = need("ray", "ray", "--engine ray")
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            ray.init("local", num_cpus=cores, include_dashboard=False, object_store_memory=STORE, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        why = str(error).split("\n")[0][:200]
        raise AlbertkitError(f"Ray cannot be reached at {address or 'this machine'}: {why}; check --address") from None
    try:
        yield ray
    finally:
        ray.shutdown()


class Actor:
    """A `Worker` in a Ray process. An error of ours is given back, not raised, so that Ray does not take it for a dead worker."""

    def __init__(self, job: Job) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores have workers of their own
        self.job = job
        self.worker: Worker | None = None

    def do(self, part: Part | None) -> Done | AlbertkitError | None:
        """Do one part; without one, only get ready."""
        try:
            self.worker = self.worker or Worker(self.job)
            return None if part is None else self.worker(part)
        except AlbertkitError as error:
            return error


def run(job: Job, parts: Iterable[Part], workers: int, address: str | None = None) -> Iterator[Done]:
    """Do the parts. An actor gets one when it is ready, so that those for which the cluster has no room yet keep nobody waiting."""
    todo, more = iter(parts), True
    with joined(address, workers * job.threads) as ray:
        kind = ray.remote(num_cpus=job.threads, max_restarts=-1, max_task_retries=ATTEMPTS - 1)(Actor)
        actors = [kind.remote(job) for _ in range(workers)]
        awaited: dict[Any, tuple[Any, Part | None]] = {actor.do.remote(None): (actor, None) for actor in actors}
        try:
            while more or any(part is not None for _, part in awaited.values()):
                ready = ray.wait(list(awaited), num_returns=1)[0][0]
                actor, part = awaited.pop(ready)
                done = _result(ray, ready, part)
                following = next(todo, None) if more else None
                if following is not None:
                    awaited[actor.do.remote(following)] = (actor, following)
                more = following is not None
                if done is not None:
                    yield done
        finally:
            for actor in actors:
                ray.kill(actor)


def _result(ray: Any, ready: Any, part: Part | None) -> Done | None:
    try:
        done: Done | AlbertkitError | None = ray.get(ready)
    except ray.exceptions.RayActorError:
        if part is not None:
            check_attempts(part.number, ATTEMPTS)
        raise AlbertkitError(
            "Ray's workers end while they open the model, perhaps for want of memory; use fewer --workers"
        ) from None
    if isinstance(done, AlbertkitError):
        raise done
    return done
