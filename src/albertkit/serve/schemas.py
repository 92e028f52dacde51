"""What the shapes of requests and answers are made of. What is read is checked against them, and the OpenAPI description is made of them.

In: nothing. Out: types. Requests are msgspec structs, so that reading JSON is checking it; answers are dictionaries of known form.
After this file: `openai.py`, `tei.py`, `own.py` and `look.py` have the shapes of their endpoints; `openapi.py` describes all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta, Struct

NUMBERS = {"type": "array", "items": {"type": "number"}}
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
ONE_OR_MANY = {"anyOf": [TEXT, TEXTS]}
TEXTS_OR_TOKENS = {"anyOf": [TEXT, TEXTS, IDS, {"type": "array", "items": IDS, "minItems": 1}]}
PAIR = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2}

Texts = Annotated[Any, Meta(description="A text, or several.", extra_json_schema=ONE_OR_MANY)]
TextsOrTokens = Annotated[
    Any, Meta(description="A text, several, the token ids of one, or of several.", extra_json_schema=TEXTS_OR_TOKENS)
]
TextsOrPairs = Annotated[
    Any,
    Meta(
        description="A text, a pair of texts, or a list of which each is [text] or [text, text].",
        extra_json_schema={"anyOf": [TEXT, PAIR, {"type": "array", "items": PAIR, "minItems": 1}]},
    ),
]
IdsOrMany = Annotated[
    Any,
    Meta(
        description="Token ids of a text, or of several.",
        extra_json_schema={"anyOf": [IDS, {"type": "array", "items": IDS, "minItems": 1}]},
    ),
]
Vector = Annotated[Any, Meta(extra_json_schema=NUMBERS)]
Table = Annotated[Any, Meta(extra_json_schema={"type": "array", "items": NUMBERS})]
Served = Annotated[str | None, Meta(description="A served model's name; else the first that can do it.")]
Depth = Annotated[
    Annotated[int, Meta(ge=1, le=1024)] | None, Meta(description="Layers to apply; else the model's own number.")
]
Dimensions = Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Keep the first numbers of each vector.")]
Pooling = Annotated[
    Literal["mean", "cls", "pooler", "max"] | None, Meta(description="How token vectors become one; else the model's.")
]
Long = Annotated[
    Literal["split", "truncate", "error"],
    Meta(description="What to do with a text beyond the model's length: windows and their mean, cut, or refuse."),
]
Count = Annotated[int, Meta(ge=1, le=1000, description="How many to give.")]


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
    """An error: one sentence with what was found, the rule and the remedy; and its kind, for programs."""

    error: str
    error_type: str


class OpenAIErrorDetail(TypedDict):
    """What is wrong, as OpenAI says it."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorResponse(TypedDict):
    """An error of the endpoints under /v1."""

    error: OpenAIErrorDetail
