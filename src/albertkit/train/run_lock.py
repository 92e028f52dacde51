"""The lock of a training folder: two runs never write to the same one.

In: a folder. Out: a context that holds its lock. `loop.py`, `finetune.py`, `finetune_runs.py` and `distill.py` use it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from albertkit.errors import AlbertkitError
from albertkit.folder_replace import lock_folder


@contextlib.contextmanager
def lock_run(output: Path) -> Iterator[None]:
    """Create and lock a training folder. Of the processes that torchrun starts, the first one does."""
    if int(os.environ.get("RANK", 0)):
        yield
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AlbertkitError(f"{output} cannot be written: {error.strerror}. Choose another folder.") from None
    with lock_folder(output):
        yield
