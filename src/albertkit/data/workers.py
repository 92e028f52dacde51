"""Blocks → pieces in several processes, in the order of the blocks.

In: blocks, and the folder of a tokenizer. Out: each block with its `Pieces`, whatever the number of workers. Before this
file: `pieces.py`; after it: `corpus.py`.

Worker i takes the blocks i, i + n, i + 2n …; two wait at each worker, so that it never idles while the results of the
others are awaited, and memory stays bounded. A thread in the worker takes in what is sent, so that neither side can wait
for the other; it also notices when the parent is gone, and ends the worker.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from albertkit.data.block_reader import Block
from albertkit.data.document_tokenizer import Cutter, Pieces, Rules
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer

WAITING = 2  # blocks at each worker
Cut = Callable[
    [Iterable[Block], Path, Rules, int], Generator[tuple[Block, Pieces], None, None]
]  # `cut_blocks`, or another that does the same


def cut_blocks(
    blocks: Iterable[Block], tokenizer: Path, rules: Rules, workers: int
) -> Generator[tuple[Block, Pieces], None, None]:
    """Each block with its pieces; one worker is this process itself."""
    if workers == 1:
        cutter = Cutter(Tokenizer.load(tokenizer, trusted=True), rules)
        yield from ((block, cutter(block)) for block in blocks)
        return
    started = [_start(tokenizer, rules) for _ in range(workers)]
    waiting: deque[tuple[Block, Connection]] = deque()
    try:
        for number, block in enumerate(blocks):
            pipe = started[number % workers][0]
            if len(waiting) == WAITING * workers:
                yield _receive(*waiting.popleft())
            _send(pipe, block)
            waiting.append((block, pipe))
        while waiting:
            yield _receive(*waiting.popleft())
    finally:
        for pipe, _ in started:
            pipe.close()  # which ends the worker
        for _, process in started:
            process.join(10)


def _start(tokenizer: Path, rules: Rules) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, tokenizer, rules), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _send(pipe: Connection, block: Block) -> None:
    try:
        pipe.send(block)
    except OSError:
        raise _gone() from None


def _receive(block: Block, pipe: Connection) -> tuple[Block, Pieces]:
    try:
        result = pipe.recv()
    except (EOFError, OSError):
        raise _gone() from None
    if isinstance(result, Pieces):
        return block, result
    if isinstance(result, AlbertkitError):
        raise result
    raise RuntimeError(f"a worker failed:\n{result}")


def _gone() -> AlbertkitError:
    return AlbertkitError(
        "a worker process was ended from outside, perhaps for want of memory: run the same command again, with fewer "
        "--workers"
    )


def _work(pipe: Connection, tokenizer: Path, rules: Rules) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops, and closes the pipe
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores have workers of their own
    gc.disable()  # nothing here goes in circles, and looking for it is a tenth of the time
    jobs: queue.SimpleQueue[Block] = queue.SimpleQueue()
    threading.Thread(target=_take, args=(pipe, jobs), daemon=True).start()
    cutter = Cutter(Tokenizer.load(tokenizer, trusted=True), rules)
    while True:
        block = jobs.get()
        result: object
        try:
            result = cutter(block)
        except AlbertkitError as error:
            result = error
        except BaseException:
            result = traceback.format_exc()
        try:
            pipe.send(result)
        except OSError:
            return


def _take(pipe: Connection, jobs: queue.SimpleQueue[Block]) -> None:
    while True:
        try:
            jobs.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)  # the parent is done, or dead
