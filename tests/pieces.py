"""Pieces of work for tests of bench/jobs.py; other processes import this file, so it imports little."""

from __future__ import annotations

import threading
from pathlib import Path


def noted(name: str, folder: str) -> None:
    """Leave a file behind; "bad" fails before."""
    if name == "bad":
        raise ValueError("this one is bad")
    (Path(folder) / name).write_text(name)


def endless(name: str, folder: str) -> None:
    """Leave a file behind, then do not end."""
    noted(name, folder)
    threading.Event().wait()
