"""Types shared by the endpoints: fields of requests, tokens, errors.

Requests are msgspec structs, so decoding JSON also validates it; responses are dataclasses. `app.py` generates the
OpenAPI description from both. `HttpError` is raised by any handler; `middleware.py` turns it into a response.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

from msgspec import Meta, Struct, ValidationError

from albertkit.errors import nearest

NUMBERS = {"type": "array", "items": {"type": "number"}}
NOT_EMPTY = Meta(min_length=1)
WARNING_HEADER = "x-albertkit-warning"
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
Served = Annotated[str | None, Meta(description="Name of a served model; the default is the first with this endpoint.")]
Depth = Annotated[
    Annotated[int, Meta(ge=1, le=1024)] | Literal["full"] | None,
    Meta(description="Layers to apply, or full for all; the default is the model's."),
]
Dimensions = Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Keep the first dimensions of each vector.")]
Pooling = Annotated[
    Literal["mean", "cls", "pooler", "max"] | None, Meta(description="Pooling; the default is the model's.")
]
Normalize = Annotated[bool | None, Meta(description="Vectors of length 1; the default is the model's.")]
OutputDtype = Annotated[
    Literal["float", "int8", "ubinary"],
    Meta(description="Numbers of a vector: float32, 127 times each as int8, or one bit each, packed into uint8."),
]
DTYPES = {"float": "float32", "int8": "int8", "ubinary": "binary"}
PromptName = Annotated[str | None, Meta(description="One of the model's prompts.")]
Layer = Annotated[int | None, Meta(description="Hidden state to use: 0 the embeddings, -1 the last.")]
Count = Annotated[int, Meta(ge=1, le=1000, description="How many results to return.")]


class StrictRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request in which an unknown field is an error."""


class ModelRequest(StrictRequest, kw_only=True):
    """A request to a model, at a depth."""

    model: Served = None
    depth: Depth = None


@dataclass(frozen=True, slots=True)
class TokenItem:
    """A token: its id, its text, and the characters [start, stop) it covers (null for special tokens)."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


@dataclass(frozen=True, kw_only=True)
class WarnedResponse:
    """A response with warnings of texts and depths, as in Python. The header `WARNING_HEADER` has them, too."""

    warnings: Annotated[list[str], Meta(description="Why results may be wrong or meaningless; usually empty.")] = field(
        default_factory=list
    )


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
    400: ("invalid", "The request is not valid HTTP, or its body is not JSON in UTF-8."),
    401: ("key", "The API key is missing or wrong."),
    403: ("forbidden", "The page's origin is not allowed, or the server has no admin key."),
    404: ("unknown", "The path, model or index is not served."),
    405: ("method", "The path has other methods."),
    409: ("conflict", "A model or an index could not be reloaded, or its files have changed since it was opened."),
    413: ("too_large", "Too many bytes, texts or tokens, or more work than fits into the deadline."),
    415: ("media_type", "The Content-Type is not application/json, or the body is compressed."),
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


JSON_TYPES = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a JSON object",
}
LIMITS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}
EXPECTED = re.compile(r"Expected `([^`]+)`(?:(?P<length> of length)? (?P<sign>[<>]=?) (?P<limit>\S+))?")


def validation_error(error: ValidationError, values: object, request: type[Struct]) -> HttpError:
    """The error of msgspec as one sentence with value, rule and remedy. values: the request, None if unknown."""
    problem, _, path = str(error).partition(" - at `$")
    if field := re.search(r"(missing|unknown).* field `([^`]+)`", problem):
        name = field[2]
        if field[1] == "missing":
            return HttpError(422, f"the field {name!r} is missing, and the request needs it. Add it.", param=name)
        hint = nearest(name, request.__struct_fields__)
        return HttpError(422, f"unknown field {name!r}{hint}. Correct its name or remove it.", param=name)
    name = path.strip(".`")
    value: Any = values
    with suppress(LookupError, TypeError):  # a key that occurs twice
        for key, place in re.findall(r"\.(\w+)|\[(\d+)\]", path):
            value = value[key] if key else value[int(place)]
    allowed = choices(get_type_hints(request).get(name))
    rule = f"one of {', '.join(allowed)}" if allowed else "in the range of 64-bit numbers"
    if match := EXPECTED.match(problem):
        rule = " or ".join(JSON_TYPES.get(kind, kind) for kind in match[1].split(" | "))
        if match["sign"]:
            rule += f"{' of length' if match['length'] else ','} {LIMITS[match['sign']]} {match['limit']}"
    shown = (name or "body") + ("" if values is None else f"={json.dumps(value, ensure_ascii=False):.60}")
    return HttpError(
        422, f"{shown} is not valid: it must be {rule}. Correct it; see /openapi.json.", param=name or None
    )


def choices(annotation: object) -> list[str]:
    """The texts that a field with a `Literal` may be."""
    parts = get_args(annotation)
    return [text for part in parts for text in ([part] if isinstance(part, str) else choices(part))]
