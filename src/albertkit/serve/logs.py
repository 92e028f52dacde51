"""Logs as JSON, one line for each event, on stderr. They hold no text of users.

In: log records; facts ride in `extra={"facts": {...}}`. Out: lines. Of an error its type and the lines of code are told, not its message,
which might quote what a user sent.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from typing import Any

import orjson

QUIET = (
    "Started server process",
    "Finished server process",
    "Waiting for application",
    "Application ",
    "Shutting down",
)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        shown: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "pid": os.getpid(),
        }
        shown.update(getattr(record, "facts", {}))
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info
            frames = traceback.extract_tb(trace)[-8:]
            shown["error"] = kind.__name__
            shown["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return orjson.dumps(shown, default=str).decode()


class UvicornFilter(logging.Filter):
    """Leaves out what uvicorn says about itself when all is well."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to keep a record."""
        return not str(record.msg).startswith(QUIET)


def set_up() -> None:
    """Send our records and uvicorn's to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(UvicornFilter())
    for name in ("albertkit.serve", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.setLevel(logging.INFO)
        logger.propagate = name == "uvicorn.error"
    logging.getLogger("uvicorn.access").disabled = True
