"""`albertkit` in a process of its own that kills itself (SIGKILL) after some progress, never after some time.

Progress is counted in changes of files, SQL statements and training steps. Imported by the processes themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import LIMIT

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
STATEMENTS = ("BEGIN", "COMMIT", "CREATE", "DELETE", "INSERT INTO", "UPDATE")
PRELOADED = ["torch._dynamo", "matplotlib.figure", "albertkit.train.loop", "onnxruntime", "tests.faults.killed_command"]


def run_command(line: list[str], errors: Path, left: int | None) -> None:
    """What the forked process does: a command that is killed before its next change, after `left` of them."""
    from albertkit.cli.entry_point import main

    count = 0

    def advance(*anything: object) -> None:
        nonlocal count
        count += 1
        if left is not None and count > left:
            os.kill(os.getpid(), signal.SIGKILL)

    os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), 2)
    os.dup2(2, 1)
    os.fsync = lambda handle: None  # type: ignore[assignment]  # a kill loses no file that was written
    sys.dont_write_bytecode = True
    count_statements(advance)
    count_training_steps(advance)
    run_bulk_work_here()
    sys.addaudithook(lambda event, arguments: watch(event, arguments, advance))
    sys.argv = ["albertkit", *line]
    main()


def watch(event: str, arguments: Any, advance: Callable[..., None]) -> None:
    """Count changes of files."""
    if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        advance()


def count_statements(advance: Callable[..., None]) -> None:
    """Count SQL statements that change something."""
    connect = sqlite3.connect

    def trace(statement: str) -> None:
        if statement.startswith(STATEMENTS):
            advance()

    def connected(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made = connect(*arguments, **options)
        made.set_trace_callback(trace)
        return made

    sqlite3.connect = connected  # type: ignore[assignment]


def count_training_steps(advance: Callable[..., None]) -> None:
    import torch

    from albertkit.train.loop import TrainingRun

    torch.set_num_threads(1)
    step = TrainingRun.step

    def counted(run: TrainingRun, progress: float) -> None:
        advance()
        step(run, progress)

    TrainingRun.step = counted  # type: ignore[method-assign]


def run_bulk_work_here() -> None:
    """Bulk work without worker processes: the process that is killed writes the parts."""
    from albertkit.bulk import engines
    from albertkit.bulk.worker import PartWorker

    def run_here(job: Any, parts: Any, workers: int) -> Any:
        yield from map(PartWorker(job), parts)

    engines.run_local = run_here  # type: ignore[assignment]


class KilledCommand:
    """One command, run again and again in one folder."""

    def __init__(self, errors: Path, *line: object) -> None:
        self.line, self.errors = [str(part) for part in line], errors
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)

    def run(self, left: int | None) -> int | None:
        """Its exit code; `left` as in `run_command`."""
        process = self.context.Process(target=run_command, args=(self.line, self.errors, left))
        process.start()
        process.join(LIMIT)
        return process.exitcode

    def kill(self, left: int) -> None:
        assert self.run(left) == -signal.SIGKILL, self.errors.read_text()[-2000:]

    def finish(self) -> None:
        assert self.run(None) == 0, self.errors.read_text()[-2000:]
