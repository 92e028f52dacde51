"""The OpenAPI description of the endpoints, and a page that shows it without asking any other host.

In: the table of endpoints. Out: a dictionary, and HTML. Before this file: `guard.py` has the endpoints' form; after it: `app.py`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from albertkit import __version__
from albertkit.serve.middleware import Endpoint
from albertkit.serve.schemas import ErrorResponse, OpenAIErrorResponse

REFS = "#/components/schemas/{name}"
PROBLEMS = {
    400: "The body is not JSON in UTF-8.",
    401: "A key is missing or wrong.",
    404: "There is no such model or index.",
    413: "Too many bytes, texts or tokens, or more work than fits into the deadline.",
    415: "The body is no JSON, or compressed.",
    422: "A value is not allowed.",
    424: "No served model can do this.",
    429: "Too much is waiting; Retry-After says when to ask again.",
    500: "A fault of the server.",
    503: "There was no time, or the server is shutting down; Retry-After says when to ask again.",
}
TITLE = "albertkit"
ABOUT = "ALBERT models over HTTP: OpenAI's and text-embeddings-inference's endpoints, and albertkit's own."


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    kinds = [kind for e in endpoints for kind in (e.takes, e.gives) if kind is not None]
    schemas, components = msgspec.json.schema_components(
        [*kinds, ErrorResponse, OpenAIErrorResponse], ref_template=REFS
    )
    shapes = {
        id(kind): schema for kind, schema in zip([*kinds, ErrorResponse, OpenAIErrorResponse], schemas, strict=True)
    }
    paths: dict[str, dict[str, Any]] = {}
    for e in endpoints:
        problem = shapes[id(OpenAIErrorResponse if e.path.startswith("/v1/") else ErrorResponse)]
        paths.setdefault(e.path.replace(":path", ""), {})[e.method.lower()] = operation(e, shapes, problem)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": __version__, "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def operation(e: Endpoint, shapes: dict[int, Any], problem: dict[str, Any]) -> dict[str, Any]:
    """One endpoint."""
    answer: dict[str, Any] = {"description": "The answer."}
    if e.gives is not None:
        answer["content"] = {"application/json": {"schema": shapes[id(e.gives)]}}
    else:
        answer["content"] = {"text/plain": {}, "text/html": {}, "application/json": {}}
    numbers = set(PROBLEMS) if e.takes is not None else {401, 404, 500, 503}
    if e.path.startswith("/v1/"):
        numbers -= {422}
    if e.admin:
        numbers |= {403, 409}
    about = {**PROBLEMS, 403: "There is no admin key.", 409: "A model could not be reloaded; the old one stays."}
    told = {
        str(n): {"description": about[n], "content": {"application/json": {"schema": problem}}} for n in sorted(numbers)
    }
    made: dict[str, Any] = {
        "operationId": f"{e.method.lower()}_{e.handler.__name__}",
        "tags": [e.group],
        "summary": (e.handler.__doc__ or "").strip(),
        "responses": {"200": answer, **told},
        "security": [] if e.open else [{}, {"key": []}],
    }
    if e.takes is not None:
        made["requestBody"] = {
            "required": not e.admin,
            "content": {"application/json": {"schema": shapes[id(e.takes)]}},
        }
    if "{" in e.path:
        name = e.path.split("{")[1].split("}")[0].split(":")[0]
        made["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    return made


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color-scheme: light dark }
h2 { margin-top: 2.5rem } code, pre { font: 14px/1.45 ui-monospace, monospace } pre { overflow-x: auto; padding: .75rem;
border: 1px solid #8886; border-radius: .4rem } summary { cursor: pointer } .m { font-weight: 700 }
"""


def page(description: dict[str, Any]) -> str:
    """The description for people: every endpoint with its shapes."""
    schemas = description["components"]["schemas"]
    parts = [f"<p>{html.escape(ABOUT)} As data: <a href='openapi.json'>openapi.json</a>.</p>"]
    group = None
    for path, methods in description["paths"].items():
        for method, told in methods.items():
            if told["tags"][0] != group:
                group = told["tags"][0]
                parts.append(f"<h2>{html.escape(group)}</h2>")
            parts.append(f"<h3><span class=m>{method.upper()}</span> <code>{html.escape(path)}</code></h3>")
            parts.append(f"<p>{html.escape(told['summary'])}</p>")
            for title, content in (
                ("Request", told.get("requestBody", {}).get("content", {})),
                ("Answer", told["responses"]["200"]["content"]),
            ):
                schema = content.get("application/json", {}).get("schema")
                if schema:
                    shown = html.escape(json.dumps(opened(schema, schemas), indent=2, ensure_ascii=False))
                    parts.append(f"<details><summary>{title}</summary><pre>{shown}</pre></details>")
    body = "\n".join(parts)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{TITLE} {__version__}: endpoints</title><style>{STYLE}</style><h1>{TITLE} {__version__}</h1>{body}</html>"
    )


def opened(schema: Any, schemas: dict[str, Any]) -> Any:
    """A schema with what it refers to in its place."""
    if isinstance(schema, list):
        return [opened(part, schemas) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return opened(schemas[schema["$ref"].rsplit("/", 1)[1]], schemas)
    return {key: opened(value, schemas) for key, value in schema.items() if key != "title"}
