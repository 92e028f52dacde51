"""Types shared by the endpoints: fields of requests, tokens, errors.

Requests are msgspec structs, so decoding JSON also validates it; responses are dataclasses. `app.py` generates the
OpenAPI description from both. `HttpError` is raised by any handler; `middleware.py` turns it into a response.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta, Struct

NUMBERS = {"type": "array", "items": {"type": "number"}}
NOT_EMPTY = Meta(min_length=1)
TokenIds = Annotated[list[Annotated[int, Meta(ge=0)]], NOT_EMPTY]
Texts = Annotated[str | Annotated[list[str], NOT_EMPTY], Meta(description="A text, or several.")]
TextsOrTokens = Annotated[
    str | Annotated[list[str | Annotated[int, Meta(ge=0)] | TokenIds], NOT_EMPTY],
    Meta(description="A text, several, the token ids of one, or of several."),
]
TextsOrPairs = Annotated[
    str | Annotated[list[str | Annotated[list[str], Meta(min_length=1, max_length=2)]], NOT_EMPTY],
    Meta(description="A text, a pair of texts, or a list of [text] and [text, text]."),
]
IdsOrMany = Annotated[
    list[Annotated[int, Meta(ge=0)] | TokenIds],
    Meta(min_length=1, description="Token ids of a text, or of several."),
]
Vector = Annotated[Any, Meta(extra_json_schema=NUMBERS)]
Table = Annotated[Any, Meta(extra_json_schema={"type": "array", "items": NUMBERS})]
Served = Annotated[str | None, Meta(description="Name of a served model; default the first with this endpoint.")]
Depth = Annotated[Annotated[int, Meta(ge=1, le=1024)] | None, Meta(description="Layers to apply; default the model's.")]
Dimensions = Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Keep the first numbers of each vector.")]
Pooling = Annotated[Literal["mean", "cls", "pooler", "max"] | None, Meta(description="Default the model's.")]
Count = Annotated[int, Meta(ge=1, le=1000, description="How many results to return.")]


class StrictRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request in which an unknown field is an error."""


class ModelRequest(StrictRequest, kw_only=True):
    """A request to a model, at a depth."""

    model: Served = None
    depth: Depth = None


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


ERRORS = {
    400: ("invalid", "The body is not JSON in UTF-8."),
    401: ("key", "The API key is missing or wrong."),
    403: ("forbidden", "The server has no admin key."),
    404: ("unknown", "The path, model or index is not served."),
    405: ("method", "The path has other methods."),
    409: ("conflict", "A model could not be reloaded; the old one is kept."),
    413: ("too_large", "Too many bytes, texts or tokens, or more work than fits into the deadline."),
    415: ("media_type", "The body is not JSON, or compressed."),
    421: ("host", "The host name is not allowed."),
    422: ("validation", "A value is not valid."),
    424: ("model", "No served model has this endpoint."),
    429: ("overloaded", "Too much work is waiting; retry after Retry-After seconds."),
    500: ("internal", "An internal error."),
    503: ("unavailable", "The deadline was missed, or the server is shutting down; retry after Retry-After seconds."),
}
"""Status → its type for programs, and what it means."""


class HttpError(Exception):
    """An error response. `retry_after`: seconds until a retry can succeed; `param`: the field that is wrong."""

    def __init__(self, status: int, message: str, retry_after: float | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.error_type = ERRORS[status][0]
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))
