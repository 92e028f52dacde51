"""Blocks → tokens in several processes, in the order of the blocks.

In: blocks, and the folder of a tokenizer. Out: each block with its `TokenizedDocuments`, for any number of workers.
Before this file: `document_tokenizer.py`; after it: `corpus.py`. `bulk/engines.py` starts its workers the same way.

Worker i takes the blocks i, i + n, i + 2n …; two wait at each worker, so that it never idles while the results of the
others are awaited, and memory stays bounded. A thread in the worker receives what is sent, so that neither side
blocks the other; it also ends the worker when the parent is gone.
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
from typing import Any

from albertkit.data.document_tokenizer import DocumentTokenizer, TokenizedDocuments, TokenizeSettings
from albertkit.data.documents import Block
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer

WAITING = 2  # blocks at each worker
TokenizedBlocks = Generator[tuple[Block, TokenizedDocuments], None, None]


def worker_count(count: int | None) -> int:
    """The number of workers; by default one per core."""
    if count is None:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(count, 64)
    if not 1 <= count <= 256:
        raise AlbertkitError(f"workers is {count} and must be from 1 to 256. Pass the number of cores.")
    return count


def tokenize_blocks(
    blocks: Iterable[Block], tokenizer: Path, settings: TokenizeSettings, workers: int = 1
) -> TokenizedBlocks:
    """Each block with its tokens; one worker is this process itself."""
    if workers == 1:
        tokenize = DocumentTokenizer(Tokenizer.load(tokenizer, trusted=True), settings)
        yield from ((block, tokenize(block)) for block in blocks)
        return
    started = [start_process(_work, tokenizer, settings) for _ in range(workers)]
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


def start_process(target: Callable[..., None], *args: Any) -> tuple[Connection, BaseProcess]:
    """A process that runs `target(pipe, *args)`, and this side of the pipe."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=target, args=(other, *args), daemon=True)
    process.start()
    other.close()
    return pipe, process


def _send(pipe: Connection, block: Block) -> None:
    try:
        pipe.send(block)
    except OSError:
        raise _worker_died() from None


def _receive(block: Block, pipe: Connection) -> tuple[Block, TokenizedDocuments]:
    try:
        result = pipe.recv()
    except (EOFError, OSError):
        raise _worker_died() from None
    if isinstance(result, TokenizedDocuments):
        return block, result
    if isinstance(result, AlbertkitError):
        raise result
    raise RuntimeError(f"a worker failed:\n{result}")


def _worker_died() -> AlbertkitError:
    return AlbertkitError(
        "a worker process was killed, perhaps because memory ran out. Run the same command again with fewer --workers."
    )


def _work(pipe: Connection, tokenizer: Path, settings: TokenizeSettings) -> None:
    """The loop of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops, and closes the pipe
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores have workers of their own
    gc.disable()  # there are no reference cycles here, and looking for them is a tenth of the time
    blocks: queue.SimpleQueue[Block] = queue.SimpleQueue()
    threading.Thread(target=_receive_blocks, args=(pipe, blocks), daemon=True).start()
    tokenize = DocumentTokenizer(Tokenizer.load(tokenizer, trusted=True), settings)
    while True:
        block = blocks.get()
        result: object
        try:
            result = tokenize(block)
        except AlbertkitError as error:
            result = error
        except BaseException:
            result = traceback.format_exc()
        try:
            pipe.send(result)
        except OSError:
            return


def _receive_blocks(pipe: Connection, blocks: queue.SimpleQueue[Block]) -> None:
    while True:
        try:
            blocks.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)  # the parent is done, or dead
