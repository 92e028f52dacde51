"""Types shared by the endpoints: fields of requests, tokens, errors.

Requests are msgspec structs, so decoding JSON also validates it; responses are dataclasses. The OpenAPI description
is generated from both. `HttpError` is raised by any handler; `middleware.py` turns it into a response. Next: the
endpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta, Struct

NUMBERS = {"type": "array", "items": {"type": "number"}}
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
MANY_IDS = {"type": "array", "items": IDS, "minItems": 1}
PAIR = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2}
ONE_OR_MANY = {"anyOf": [TEXT, TEXTS]}


def union(description: str, *schemas: dict[str, Any]) -> Meta:
    """A field that takes one of several JSON types; the handler validates it."""
    return Meta(description=description, extra_json_schema={"anyOf": list(schemas)})


Texts = Annotated[Any, union("A text, or several.", TEXT, TEXTS)]
TextsOrTokens = Annotated[
    Any, union("A text, several, the token ids of one, or of several.", TEXT, TEXTS, IDS, MANY_IDS)
]
TextsOrPairs = Annotated[
    Any,
    union(
        "A text, a pair of texts, or a list of [text] and [text, text].",
        TEXT,
        PAIR,
        {"type": "array", "items": PAIR, "minItems": 1},
    ),
]
IdsOrMany = Annotated[Any, union("Token ids of a text, or of several.", IDS, MANY_IDS)]
Vector = Annotated[Any, Meta(extra_json_schema=NUMBERS)]
Table = Annotated[Any, Meta(extra_json_schema={"type": "array", "items": NUMBERS})]
Served = Annotated[str | None, Meta(description="Name of a served model; default the first with this endpoint.")]
Depth = Annotated[Annotated[int, Meta(ge=1, le=1024)] | None, Meta(description="Layers to apply; default the model's.")]
Dimensions = Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Keep the first numbers of each vector.")]
Pooling = Annotated[Literal["mean", "cls", "pooler", "max"] | None, Meta(description="Default the model's.")]
LongTexts = Annotated[
    Literal["split", "truncate", "error"],
    Meta(description="For texts beyond the model's length: the mean of windows, truncation, or an error."),
]
Count = Annotated[int, Meta(ge=1, le=1000, description="How many results to return.")]


class StrictRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request in which an unknown field is an error."""


@dataclass(frozen=True)
class TokenItem:
    """A token: its id, its text, and the characters [start, stop) it covers (null for special tokens)."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class ErrorResponse(TypedDict):
    """An error: a message with value, rule and remedy, and its type for programs."""

    error: str
    error_type: str


class OpenAIErrorDetail(TypedDict):
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorResponse(TypedDict):
    """An error of the endpoints under /v1."""

    error: OpenAIErrorDetail


ERROR_TYPES = {
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
    """An error response. `retry_after`: seconds until a retry can succeed; `param`: the field that is wrong."""

    def __init__(self, status: int, message: str, retry_after: float | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))

    @property
    def error_type(self) -> str:
        """The kind of error, for programs."""
        return ERROR_TYPES[self.status]
