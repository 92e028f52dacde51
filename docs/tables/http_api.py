"""The tables of docs/reference/http.md, from the server's own OpenAPI description.

`http-errors` and `http-limits` are tables; `http-openai`, `http-cohere`, `http-tei`, `http-tasks` and `http-server` are the endpoints
of a group, each with its fields and its response.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from albertkit.serve.app import COHERE, OPENAI, OWN, SERVER, TEI, description
from albertkit.serve.schemas import ERRORS
from albertkit.serve.serve_settings import ServeSettings
from tables import table

GROUPS = {"openai": OPENAI, "cohere": COHERE, "tei": TEI, "tasks": OWN, "server": SERVER}
LIMITS = ("max_texts", "max_tokens", "max_bytes", "deadline", "client_timeout", "max_pending_bytes", "max_connections")
TYPES = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false", "null": "null"}
PLURALS = {"text": "texts", "integer": "integers"}
INLINE = 90  # characters of a response that fits into a line


def errors() -> str:
    """Every status with its type and meaning."""
    return table(
        ("status", "`error_type`", "meaning"),
        [(status, f"`{kind}`", meaning) for status, (kind, meaning) in ERRORS.items()],
    )


def limits() -> str:
    """The settings that limit requests."""
    settings = {one.name: one for one in fields(ServeSettings)}
    rows = [
        (f"`--{name.replace('_', '-')}`", f"{settings[name].default:,}", settings[name].metadata["help"])
        for name in LIMITS
    ]
    return table(("option", "default", "meaning"), rows)


def endpoints(group: str) -> str:
    """The endpoints of a group."""
    return "\n".join(
        endpoint(method.upper(), path, operation)
        for path, methods in description()["paths"].items()
        for method, operation in methods.items()
        if group in operation["tags"]
    )


def endpoint(method: str, path: str, operation: dict[str, Any]) -> str:
    """One endpoint: its sentence, its fields, its response."""
    text = f"### {method} {path}\n\n{operation['summary']}\n"
    if "requestBody" in operation:
        request = resolve(operation["requestBody"]["content"]["application/json"]["schema"])
        names = sorted(request["properties"], key=lambda name: name not in request["required"])  # required ones first
        given = [(name, request["properties"][name]) for name in names]
        rows = [(f"`{n}`", type_of(one), default(n, one, request), one.get("description", "")) for n, one in given]
        text += "\n" + table(("field", "type", "default", "meaning"), rows)
    content = operation["responses"]["200"]["content"]
    schema = content["application/json"].get("schema") if len(content) == 1 else None
    if schema is None:
        return text
    line = shape(schema)
    if len(line) <= INLINE:
        return f"{text}\nResponse: `{line}`\n"
    return f"{text}\nResponse:\n\n```text\n{shape(schema, 0)}\n```\n"


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference points to."""
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = description()["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return found


def default(name: str, schema: dict[str, Any], request: dict[str, Any]) -> str:
    """The default of a field; empty for null, which each field explains itself."""
    if name in request.get("required", ()):
        return "required"
    value = schema.get("default")
    return "" if value is None else f"`{json.dumps(value)}`"


def type_of(schema: dict[str, Any]) -> str:
    """The type of a field of a request, in words."""
    schema = resolve(schema)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        kinds = dict.fromkeys(type_of(one) for one in schema["anyOf"] if one.get("type") != "null")
        return " or ".join(kinds)
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(type_of({"type": one}) for one in kind)
    if kind == "array":
        items = schema.get("items", {})
        kinds = dict.fromkeys(type_of(one) for one in items.get("anyOf", [items]))
        return (
            "list of " + " or ".join(PLURALS.get(kind, kind.replace("list ", "lists ", 1)) for kind in kinds)
            if items
            else "list"
        )
    if kind == "object" and "properties" in schema:
        return "{" + ", ".join(f"`{name}`: {type_of(one)}" for name, one in schema["properties"].items()) + "}"
    bounds = (schema.get("minimum"), schema.get("maximum"))
    limits = f" {bounds[0]}–{bounds[1]}" if None not in bounds else ""
    return TYPES.get(str(kind), str(kind)) + limits


def shape(schema: dict[str, Any], indent: int | None = None) -> str:
    """A response as JSON with types instead of values; on several lines from an indent on."""
    schema = resolve(schema)
    inner = None if indent is None else indent + 2
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(shape(one, indent) for one in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(TYPES.get(one, one) for one in kind)
    if kind == "array":
        return f"[{shape(schema.get('items', {}), indent)}, …]"
    if "properties" in schema:
        rows = [f'"{name}": {shape(one, inner)}' for name, one in schema["properties"].items()]
        if indent is None or (all(len(row) <= INLINE for row in rows) and sum(map(len, rows)) <= INLINE):
            return "{" + ", ".join(rows) + "}"
        pad = " " * (indent + 2)
        return "{\n" + "".join(f"{pad}{row}\n" for row in rows) + " " * indent + "}"
    if kind == "object":
        return f'{{"…": {shape(schema.get("additionalProperties") or {}, indent)}}}'
    return TYPES.get(str(kind), "value")


TABLES: dict[str, Callable[[], str]] = {
    "http-errors": errors,
    "http-limits": limits,
    **{f"http-{name}": partial(endpoints, group) for name, group in GROUPS.items()},
}
