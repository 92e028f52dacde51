"""Logs as JSON, one line per event, on stderr. They contain no text of users.

In: log records with `extra={"facts": {...}}`. Out: lines. Of an exception the type and the code lines are logged, not
its message, which might quote a text.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from typing import Any

import orjson

UVICORN_MESSAGES = (
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
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "pid": os.getpid(),
        }
        line.update(getattr(record, "facts", {}))
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info
            frames = traceback.extract_tb(trace)[-8:]
            line["error"] = kind.__name__
            line["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return orjson.dumps(line, default=str).decode()


def configure_logging() -> None:
    """Send the records of the server and of uvicorn to stderr, without uvicorn's routine messages."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(lambda record: not str(record.msg).startswith(UVICORN_MESSAGES))
    for name in ("albertkit.serve", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.setLevel(logging.INFO)
        logger.propagate = name == "uvicorn.error"
    logging.getLogger("uvicorn.access").disabled = True
