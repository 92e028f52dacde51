"""The lock of a training folder: two runs never write to the same one, and no run into a folder of other files.

In: a folder. Out: a context that holds its lock. `loop.py`, `finetune.py`, `finetune_runs.py` and `distill.py` use it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from albertkit.errors import AlbertkitError
from albertkit.folder_replace import LOCK, lock_folder

RUN_MARKS = (LOCK, "settings.json")  # a folder with one of them contains a training run


@contextlib.contextmanager
def lock_run(output: Path) -> Iterator[None]:
    """Create and lock a training folder. Of the processes that torchrun starts, the first one does."""
    if int(os.environ.get("RANK", 0)):
        yield
        return
    check_run_folder(output)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AlbertkitError(f"{output} cannot be written: {error.strerror}. Choose another folder.") from None
    with lock_folder(output):
        yield


def check_run_folder(output: Path) -> None:
    """Raise if a folder contains visible files, but no training run."""
    if not output.is_dir() or any((output / mark).exists() for mark in RUN_MARKS):
        return
    name = min((path.name for path in output.iterdir() if not path.name.startswith(".")), default=None)
    if name is not None:
        raise AlbertkitError(
            f"{output} contains {name} and no training run, but a run needs its own folder. Choose a new or empty one."
        )
