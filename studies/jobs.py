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


def run_jobs(
    function: Callable[..., None], arguments: Sequence[tuple[Any, ...]], jobs: int, attempts: int = 1
) -> list[str]:
    """Call a function with each tuple of arguments, in this order, `jobs` calls at a time, each up to `attempts` times.

    Returns the first argument and the error of each call that failed or was not started.
    """
    share = str(max(1, (os.cpu_count() or 1) // jobs))
    for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        os.environ.setdefault(name, share)
    context = multiprocessing.get_context("spawn")
    running: set[Any] = set()
    stop = threading.Event()

    def run_with_attempts(job: tuple[Any, ...]) -> str:
        for _ in range(attempts):
            failure = run_once(job)
            if not failure or stop.is_set():
                break
        return failure

    def run_once(job: tuple[Any, ...]) -> str:
        process = context.Process(target=run_reporting_errors, args=(function, job))
        if stop.is_set():
            return "not started"
        process.start()
        running.add(process)
        if stop.is_set():  # a signal came while it was starting
            process.terminate()
        process.join()
        running.discard(process)
        return f"code {process.exitcode}" if process.exitcode else ""

    def terminate_all(number: int, frame: Any) -> None:
        stop.set()
        for process in list(running) if number == signal.SIGTERM else ():  # Ctrl-C reaches them by itself
            process.terminate()

    before = {number: signal.signal(number, terminate_all) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with ThreadPoolExecutor(jobs) as pool:
            failures = list(pool.map(run_with_attempts, arguments))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return [f"{job[0]} ({failure})" for job, failure in zip(arguments, failures, strict=True) if failure]


def run_reporting_errors(function: Callable[..., None], job: tuple[Any, ...]) -> None:
    """Call a function, print its traceback if it fails, and exit with 1."""
    try:
        function(*job)
    except SystemExit:
        raise
    except BaseException:
        print(f"{job[0]} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        sys.exit(1)
