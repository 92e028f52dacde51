"""Waiting for a condition: the only place where tests sleep. The limit guards against hanging; no test relies on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LIMIT = 120.0  # seconds; generous, because the machine may be busy
PAUSE = 0.005


def wait_until(condition: Callable[[], object], what: str | Callable[[], str] = "", limit: float = LIMIT) -> None:
    """Return as soon as `condition()` is true; fail after `limit` seconds and say what was expected."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, what() if callable(what) else what or "the condition did not become true"
        time.sleep(PAUSE)


async def wait_until_async(condition: Callable[[], object], what: str = "", limit: float = LIMIT) -> None:
    """As `wait_until`, while the event loop keeps running."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, what or "the condition did not become true"
        await asyncio.sleep(PAUSE)


async def pause(seconds: float = PAUSE) -> None:
    """What a client does after a refusal. Nothing may depend on how long it takes."""
    await asyncio.sleep(seconds)
