"""Being asked to stop: SIGTERM and Ctrl-C, remembered until the update in progress is done. No torch here."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class StopRequest:
    """Whether someone asked to stop."""

    asked: bool = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """SIGTERM and Ctrl-C ask once; the step in progress is finished and saved. A second Ctrl-C breaks off."""
    stop = StopRequest()

    def ask(number: int, frame: Any) -> None:
        if stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.asked = True

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread: nobody can send us signals
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
