"""Why a request is not answered: a status, a sentence, and when to come back.

In: what is wrong. Out: `HttpError`, raised by whatever finds it; `guard.py` turns it into a response in the shape its endpoint speaks.
"""

from __future__ import annotations

import math

# Status → what kind of problem it is, for programs.
KINDS = {
    400: "invalid",
    401: "key",
    403: "forbidden",
    404: "unknown",
    405: "method",
    408: "slow",
    409: "conflict",
    413: "too_large",
    415: "media_type",
    421: "host",
    422: "validation",
    424: "model",
    429: "overloaded",
    500: "internal",
    503: "unavailable",
}


class HttpError(Exception):
    """An answer that is not the one asked for. `again` is in how many seconds it is worth asking again."""

    def __init__(self, status: int, message: str, again: float | None = None, name: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.name = status, message, name
        self.again = None if again is None else max(1, math.ceil(again))

    @property
    def kind(self) -> str:
        """What kind of problem it is, for programs."""
        return KINDS[self.status]
