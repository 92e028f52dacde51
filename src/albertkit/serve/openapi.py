"""The OpenAPI description of the endpoints, and an HTML page that shows it without external requests.

In: the table of endpoints. Out: a dictionary, and HTML. Before: `middleware.py` (`Endpoint`); next: `app.py`.
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

REF_TEMPLATE = "#/components/schemas/{name}"
ERRORS = {
    400: "The body is not JSON in UTF-8.",
    401: "The API key is missing or wrong.",
    403: "The server has no admin key.",
    404: "The model or index is not served.",
    409: "A model could not be reloaded; the old one is kept.",
    413: "Too many bytes, texts or tokens, or more work than fits into the deadline.",
    415: "The body is not JSON, or compressed.",
    422: "A value is not valid.",
    424: "No served model has this endpoint.",
    429: "Too much work is waiting; retry after Retry-After seconds.",
    500: "An internal error.",
    503: "The deadline was missed, or the server is shutting down; retry after Retry-After seconds.",
}
ADMIN_ERRORS = {403, 409}
TITLE = "albertkit"
SUMMARY = "ALBERT models over HTTP: OpenAI's and text-embeddings-inference's endpoints, and albertkit's own."
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
color-scheme: light dark } h2 { margin-top: 2.5rem } code, pre { font: 14px/1.45 ui-monospace, monospace }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8886; border-radius: .4rem }
summary { cursor: pointer } .m { font-weight: 700 }
"""


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The endpoints as OpenAPI 3.1."""
    types = [one for e in endpoints for one in (e.request, e.response) if one is not None]
    types += [ErrorResponse, OpenAIErrorResponse]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF_TEMPLATE)
    schema_of = {id(one): schema for one, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for e in endpoints:
        error = schema_of[id(OpenAIErrorResponse if e.path.startswith("/v1/") else ErrorResponse)]
        paths.setdefault(e.path.replace(":path", ""), {})[e.method.lower()] = describe_endpoint(e, schema_of, error)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": __version__, "description": SUMMARY},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def describe_endpoint(e: Endpoint, schema_of: dict[int, Any], error: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"text/plain": {}, "text/html": {}, "application/json": {}}
    if e.response is not None:
        content = {"application/json": {"schema": schema_of[id(e.response)]}}
    statuses = set(ERRORS) - ADMIN_ERRORS if e.request is not None else {401, 404, 500, 503}
    if e.path.startswith("/v1/"):
        statuses -= {422}
    if e.is_admin:
        statuses |= ADMIN_ERRORS
    errors = {
        str(status): {"description": ERRORS[status], "content": {"application/json": {"schema": error}}}
        for status in sorted(statuses)
    }
    operation: dict[str, Any] = {
        "operationId": f"{e.method.lower()}_{e.handler.__name__}",
        "tags": [e.group],
        "summary": (e.handler.__doc__ or "").strip(),
        "responses": {"200": {"description": "The response.", "content": content}, **errors},
        "security": [] if e.is_public else [{}, {"key": []}],
    }
    if e.request is not None:
        operation["requestBody"] = {
            "required": not e.is_admin,
            "content": {"application/json": {"schema": schema_of[id(e.request)]}},
        }
    if "{" in e.path:
        name = e.path.split("{")[1].split("}")[0].split(":")[0]
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def render_page(description: dict[str, Any]) -> str:
    """The description as HTML: every endpoint with its schemas."""
    schemas = description["components"]["schemas"]
    parts = [f"<p>{html.escape(SUMMARY)} As data: <a href='openapi.json'>openapi.json</a>.</p>"]
    group = None
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            if operation["tags"][0] != group:
                group = operation["tags"][0]
                parts.append(f"<h2>{html.escape(group)}</h2>")
            parts.append(f"<h3><span class=m>{method.upper()}</span> <code>{html.escape(path)}</code></h3>")
            parts.append(f"<p>{html.escape(operation['summary'])}</p>")
            for title, content in (
                ("Request", operation.get("requestBody", {}).get("content", {})),
                ("Response", operation["responses"]["200"]["content"]),
            ):
                schema = content.get("application/json", {}).get("schema")
                if schema:
                    text = html.escape(json.dumps(inline_refs(schema, schemas), indent=2, ensure_ascii=False))
                    parts.append(f"<details><summary>{title}</summary><pre>{text}</pre></details>")
    title, body = f"{TITLE} {__version__}", "\n".join(parts)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}: endpoints</title><style>{STYLE}</style><h1>{title}</h1>{body}</html>"
    )


def inline_refs(schema: object, schemas: dict[str, Any]) -> object:
    """A schema with its references replaced by what they refer to."""
    if isinstance(schema, list):
        return [inline_refs(part, schemas) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return inline_refs(schemas[schema["$ref"].rsplit("/", 1)[1]], schemas)
    return {key: inline_refs(value, schemas) for key, value in schema.items() if key != "title"}
