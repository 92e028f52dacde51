"""Replacing a folder by another one, and locking a folder.

In: folders. Out: the target is at every moment the old or the new folder. Where the system cannot exchange two names in
one step, a crash can leave a moment without a target; `recover_folder` ends it. Before this file: `file_io.py`, which
writes folders.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from albertkit.errors import AlbertkitError

CURRENT_FOLDER = -100  # AT_FDCWD: relative paths start at the current folder
EXCHANGE = 2  # RENAME_EXCHANGE
CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)  # old systems, some network disks
CRASH_SECONDS = 2.0  # a replacement takes milliseconds: after this time, its process was killed
LOCK = ".lock"
_locks: set[Path] = set()  # held by this process


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders in one step; False if the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if rename is None:
        return False
    if rename(CURRENT_FOLDER, os.fsencode(first), CURRENT_FOLDER, os.fsencode(second), ctypes.c_uint(EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(second))


def replace_folder(scratch: Path, target: Path) -> None:
    """Give a finished folder the name of the target, and delete the old target."""
    if not target.exists():
        scratch.rename(target)
    elif not exchange(scratch, target):
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
        target.rename(old / target.name)
        try:
            scratch.rename(target)
        except OSError:
            (old / target.name).rename(target)
            raise
        finally:
            if target.exists():
                shutil.rmtree(old, ignore_errors=True)


def recover_folder(target: Path) -> None:
    """Return the old folder to its name if a process was killed while it replaced it.

    Another process may be replacing it at this moment. So this waits until that process would be done.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100  keeps a symlinked parent as the user wrote it
    pattern = f".{glob.escape(target.name)}.*.old/{glob.escape(target.name)}"
    while not target.exists():
        with contextlib.suppress(OSError):
            moved = sorted((path.parent.stat().st_mtime, path) for path in target.parent.glob(pattern))
            if not moved:
                return
            moved_at, old = moved[-1]
            if 0 <= time.time() - moved_at < CRASH_SECONDS:
                time.sleep(0.05)
                continue
            old.rename(target)
            old.parent.rmdir()
        return


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs. The system ends the lock with this process, also if it is killed."""
    path = (folder / LOCK).absolute()
    if path in _locks:  # by this process: a run inside another one
        yield
        return
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise AlbertkitError(f"{folder} cannot be written: {error.strerror}. Choose another folder.") from None
    with file:
        lock_file(file, folder)
        _locks.add(path)
        try:
            yield
        finally:
            _locks.remove(path)


def lock_file(file: TextIO, folder: Path) -> None:
    """Lock a file and write this process into it, or raise an error that names the process that holds it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(200).strip() or "another process"
        raise AlbertkitError(f"{folder} is in use: {holder} is writing to it. Wait for it, or stop it.") from None
    except (ImportError, OSError):  # Windows, and disks without locks
        return
    with contextlib.suppress(OSError):  # a full disk: the lock holds without a name
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
