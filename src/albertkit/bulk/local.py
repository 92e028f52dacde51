"""Parts in several processes of this machine: the plain engine, and what the others are compared with.

In: a `Job` and parts. Out: each part's `Done`, in the order in which they are finished. Each worker has one part at a time. A worker that was ended from
outside is replaced and its part given out again; a part that ends its worker again and again ends the run.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from albertkit.bulk.parts import Part
from albertkit.bulk.worker import Done, Job, Worker
from albertkit.errors import AlbertkitError

ATTEMPTS = 4  # that a part gets


@dataclass
class Hand:
    """A worker process and the part it has."""

    process: BaseProcess
    pipe: Connection
    has: Part | None = None


def run(job: Job, parts: Iterable[Part], workers: int) -> Iterator[Done]:
    """Do the parts."""
    todo, again, ended = iter(parts), list[Part](), Counter[int]()
    hands: list[Hand] = []

    def give(hand: Hand) -> bool:
        hand.has = again.pop() if again else next(todo, None)
        if hand.has is not None:
            with contextlib.suppress(OSError):  # it is gone, which is noticed when it is asked
                hand.pipe.send(hand.has)
        return hand.has is not None

    try:
        for _ in range(workers):
            hand = _start(job)
            hands.append(hand)
            if not give(hand):
                break
        while busy := {hand.pipe: hand for hand in hands if hand.has is not None}:
            for pipe in wait(list(busy)):
                hand = busy[pipe]  # type: ignore[index]
                done, had = _receive(hand), hand.has
                if done is None and had is not None:
                    ended[had.number] += 1
                    check_attempts(had.number, ended[had.number])
                    again.append(had)
                    hands.remove(hand)
                    hand = _start(job)
                    hands.append(hand)
                give(hand)
                if done is not None:
                    yield done
    finally:
        for hand in hands:
            hand.process.kill()  # what is half-done is done again, or was not wanted
            hand.process.join()
            hand.pipe.close()


def check_attempts(number: int, ended: int) -> None:
    """Give a part up that no worker survives."""
    if ended >= ATTEMPTS:
        raise AlbertkitError(
            f"part {number} was given to {ended} workers and each was ended from outside, perhaps for want of memory: run the same "
            "command again with fewer --workers"
        )


def _start(job: Job) -> Hand:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, job), daemon=True)
    process.start()
    theirs.close()
    return Hand(process, ours)


def _receive(hand: Hand) -> Done | None:
    """What a worker says; None if it is gone."""
    try:
        said = hand.pipe.recv()
    except (EOFError, OSError):
        hand.pipe.close()
        hand.process.join()
        return None
    if isinstance(said, Done):
        return said
    if isinstance(said, AlbertkitError):
        raise said
    raise RuntimeError(f"a worker failed:\n{said}")


def _work(pipe: Connection, job: Job) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops, and ends this process
    threading.Thread(target=_follow_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores have workers of their own
    said: Any
    worker: Worker | None = None
    while True:
        try:
            part = pipe.recv()
            worker = worker or Worker(job)
            said = worker(part)
        except (EOFError, OSError):
            return
        except AlbertkitError as error:
            said = error
        except BaseException:
            said = traceback.format_exc()
        pipe.send(said)


def _follow_parent() -> None:
    """End this process when the one that started it is gone, even in the middle of a part."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
