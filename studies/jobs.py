"""Jobs in separate processes, several at a time; used by tasks.py and ablation.py.

In: a function, and the arguments of each job. Out: the failed jobs. A failed job prints its error and does not stop the
others. SIGTERM is forwarded, so that training runs save a checkpoint, and no new job starts. The same command resumes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def each(call: Callable[..., None], pieces: Sequence[tuple[Any, ...]], jobs: int, attempts: int = 1) -> list[str]:
    """Call `call(*piece)` for each piece, begun in this order, `jobs` at a time, again after a failure up to `attempts`
    times; names those that failed or were not begun, by their first argument.
    """
    share = str(max(1, (os.cpu_count() or 1) // jobs))
    for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        os.environ.setdefault(name, share)
    context = multiprocessing.get_context("spawn")
    running: set[Any] = set()
    stop = threading.Event()

    def one(piece: tuple[Any, ...]) -> str:
        for _ in range(attempts):
            why = once(piece)
            if not why or stop.is_set():
                break
        return why

    def once(piece: tuple[Any, ...]) -> str:
        process = context.Process(target=guarded, args=(call, piece))
        if stop.is_set():
            return "not begun"
        process.start()
        running.add(process)
        if stop.is_set():  # asked while it was starting
            process.terminate()
        process.join()
        running.discard(process)
        return f"code {process.exitcode}" if process.exitcode else ""

    def end(number: int, frame: Any) -> None:
        stop.set()
        for process in list(running) if number == signal.SIGTERM else ():  # Ctrl-C reaches them by itself
            process.terminate()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with ThreadPoolExecutor(jobs) as pool:
            said = list(pool.map(one, pieces))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return [f"{piece[0]} ({why})" for piece, why in zip(pieces, said, strict=True) if why]


def guarded(call: Callable[..., None], piece: tuple[Any, ...]) -> None:
    """One piece, in its process."""
    try:
        call(*piece)
    except SystemExit:
        raise
    except BaseException:
        print(f"{piece[0]} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        sys.exit(1)
