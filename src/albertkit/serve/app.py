"""The Starlette app: the table of endpoints and its OpenAPI description, the page, health, metrics and reload.

In: a `Service`. Out: an ASGI app, which `server.py` runs. Imports the endpoints and `middleware.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import html
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from albertkit import __version__
from albertkit.errors import AlbertkitError
from albertkit.serve import browser_files, cohere, explain_api, openai, search_api, tasks_api, tei
from albertkit.serve.inference import RequestContext, Service
from albertkit.serve.middleware import Endpoint, EndpointApp, error_response
from albertkit.serve.schemas import ERRORS, WARNING_HEADER, ErrorResponse, HttpError, OpenAIErrorResponse
from albertkit.serve.serve_settings import PARENT_VARIABLE, ApiKeys
from albertkit.serve.web_security import protect

log = logging.getLogger("albertkit.serve")
PAGE = Path(__file__).parent / "page"
MAX_BATCH_AGE = 120.0  # seconds that a batch may take before the server reports itself as unhealthy
GET_ERRORS = {401, 403, 404, 500, 503}
POST_ERRORS = {400, 401, 403, 404, 413, 415, 422, 424, 429, 500, 503}
SUMMARY = (
    "ALBERT models over HTTP: the endpoints of OpenAI, Cohere, Jina and text-embeddings-inference, and albertkit's own."
)
STYLE = "body { font: 16px/1.5 system-ui; margin: 2rem; color-scheme: light dark } td { padding-right: 2rem }"


@dataclass(frozen=True)
class HealthResponse:
    """The state of the server."""

    status: Literal["ok", "starting", "draining"]
    models: list[str]
    waiting_seconds: float


@dataclass(frozen=True)
class ReloadResponse:
    """For each model and index: same, reloaded, or why the old one was kept."""

    models: dict[str, str]
    indexes: dict[str, str]


async def health(context: RequestContext, body: None) -> HealthResponse:
    """Whether requests are answered: 200, or 503 while starting, stopping or stuck."""
    state = server_state(context.service)
    if state.status != "ok":
        reason = "shutting down" if context.service.is_draining else "starting"
        raise HttpError(503, f"the server is {reason}", retry_after=1)
    return state


async def live(context: RequestContext, body: None) -> HealthResponse:
    """Whether the process works; if not, restart it."""
    return server_state(context.service)


def server_state(service: Service) -> HealthResponse:
    """The state of the server; an error if the engine's thread has stopped or hangs."""
    age = service.batcher.batch_age()
    if age is None or age > MAX_BATCH_AGE:
        raise HttpError(503, "the engine does not respond. Restart the server.")
    status: Literal["ok", "starting", "draining"] = "ok" if service.is_ready else "starting"
    names = [model.name for model in service.models]
    waiting = round(service.batcher.waiting()[1], 3)
    return HealthResponse("draining" if service.is_draining else status, names, waiting)


async def metrics(context: RequestContext, body: None) -> Response:
    """Metrics for Prometheus."""
    context.service.refresh_gauges()
    return Response(generate_latest(context.service.metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})


async def reload(context: RequestContext, body: None) -> ReloadResponse:
    """Reload changed models, indexes and API keys while requests run."""
    results = await reload_all(context.service)
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None:
        os.kill(int(parent), signal.SIGHUP)
    pairs = [*results.models.items(), *results.indexes.items()]
    failures = [f"{name}: {result}" for name, result in pairs if result not in ("same", "reloaded")]
    if failures:
        raise HttpError(409, "; ".join(failures))
    return results


async def reload_all(service: Service) -> ReloadResponse:
    """Reload models, indexes and keys. If one cannot be read, the old one is kept."""
    models = await asyncio.to_thread(service.models.reload)
    indexes = await asyncio.to_thread(service.indexes.reload)
    explain_api.open_encoder.cache_clear()  # it holds the old models
    browser_files.exported_files.cache_clear()
    for result in models.values():
        service.metrics.reloads.labels(result if result in ("same", "reloaded") else "kept").inc()
    try:
        service.keys = ApiKeys.read(service.settings)
    except AlbertkitError as error:
        log.error("keys kept", extra={"facts": {"reason": str(error)}})
    return ReloadResponse(models, indexes)


async def schema(context: RequestContext, body: None) -> dict[str, Any]:
    """This description."""
    return description()


async def docs(context: RequestContext, body: None) -> Response:
    """The endpoints as HTML."""
    cells = ((e.group, e.method, e.path, e.handler.__doc__ or "") for e in ENDPOINTS)
    rows = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in row) for row in cells)
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>albertkit {__version__}</title><style>{STYLE}</style>"
        f"<h1>albertkit {__version__}</h1><p>{SUMMARY} Every field is in <a href='openapi.json'>openapi.json</a>.</p>"
        f"<table>{rows}</table></html>"
    )
    return Response(page, media_type="text/html")


OPENAI, COHERE, TEI = "OpenAI's", "Cohere's and Jina's", "text-embeddings-inference's"
OWN, SERVER = "albertkit's own", "the server"
ENDPOINTS = (
    Endpoint("POST", "/v1/embeddings", openai.embeddings, OPENAI),
    Endpoint("GET", "/v1/models", openai.models, OPENAI),
    Endpoint("GET", "/v1/models/{name:path}", openai.one_model, OPENAI),
    Endpoint("POST", "/v1/rerank", cohere.rank_documents, COHERE),
    Endpoint("POST", "/embed", tei.embed, TEI),
    Endpoint("POST", "/embed_all", tei.embed_all, TEI),
    Endpoint("POST", "/rerank", tei.rerank, TEI),
    Endpoint("POST", "/predict", tei.predict, TEI),
    Endpoint("POST", "/similarity", tei.similarity, TEI),
    Endpoint("POST", "/tokenize", tei.tokenize, TEI),
    Endpoint("POST", "/decode", tei.decode, TEI),
    Endpoint("GET", "/info", tei.info, TEI),
    Endpoint("POST", "/", tei.root, TEI),
    Endpoint("POST", "/classify", tasks_api.classify, OWN),
    Endpoint("POST", "/tag", tasks_api.tag, OWN),
    Endpoint("POST", "/intent", tasks_api.intent, OWN),
    Endpoint("POST", "/answer", tasks_api.answer, OWN),
    Endpoint("POST", "/choose", tasks_api.choose, OWN),
    Endpoint("POST", "/fill", tasks_api.fill, OWN),
    Endpoint("POST", "/generate", tasks_api.generate, OWN),
    Endpoint("POST", "/similar", search_api.similar, OWN),
    Endpoint("POST", "/search", search_api.search, OWN),
    Endpoint("POST", "/explain", explain_api.explain, OWN),
    Endpoint("GET", "/browser/{name:path}", browser_files.model_file, OWN, errors=(409, 422)),
    Endpoint("GET", "/health", health, SERVER, is_public=True),
    Endpoint("GET", "/health/ready", health, SERVER, is_public=True),
    Endpoint("GET", "/health/live", live, SERVER, is_public=True),
    Endpoint("GET", "/metrics", metrics, SERVER),
    Endpoint("POST", "/admin/reload", reload, SERVER, is_admin=True, errors=(409,)),
    Endpoint("GET", "/openapi.json", schema, SERVER, is_public=True),
    Endpoint("GET", "/docs", docs, SERVER, is_public=True),
)


@functools.cache
def description() -> dict[str, Any]:
    """All endpoints as OpenAPI 3.1."""
    types = [struct for e in ENDPOINTS for struct in (e.request, e.response) if struct is not None]
    types += [ErrorResponse, OpenAIErrorResponse]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = {id(struct): schema for struct, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for e in ENDPOINTS:
        paths.setdefault(e.path.replace(":path", ""), {})[e.method.lower()] = describe(e, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "albertkit", "version": __version__, "description": SUMMARY},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def describe(e: Endpoint, schema_of: dict[int, Any]) -> dict[str, Any]:
    """One endpoint as an OpenAPI operation; `schema_of` has the schema of each type, by its id."""
    kinds = ("text/plain", "text/html", "application/json", "application/octet-stream")
    content: dict[str, Any] = {kind: {} for kind in kinds}
    if e.response is not None:
        content = {"application/json": {"schema": schema_of[id(e.response)]}}
    is_openai = e.path.startswith("/v1/")
    statuses = GET_ERRORS if e.request is None else POST_ERRORS - ({422} if is_openai else set())
    error = schema_of[id(OpenAIErrorResponse if is_openai else ErrorResponse)]
    errors = {
        str(status): {"description": ERRORS[status][1], "content": {"application/json": {"schema": error}}}
        for status in sorted(statuses.union(e.errors))
    }
    operation: dict[str, Any] = {
        "operationId": f"{e.method.lower()}_{e.handler.__name__}",
        "tags": [e.group],
        "summary": (e.handler.__doc__ or "").strip(),
        "responses": {"200": {"description": "The response.", "content": content}, **errors},
        "security": [] if e.is_public else [{}, {"key": []}],
    }
    if e.request is not None:
        body = {"application/json": {"schema": schema_of[id(e.request)]}}
        operation["requestBody"] = {"required": True, "content": body}
    if "{name:path}" in e.path:
        operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def make_app(service: Service) -> ASGIApp:
    """The app. The batcher starts and stops with it."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.batcher.start()
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[ReloadResponse]] = []  # the event loop keeps no reference to them
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, lambda: tasks.append(loop.create_task(reload_all(service))))
        service.is_ready = True
        yield
        service.is_ready = False
        await asyncio.to_thread(service.batcher.stop)
        service.tokenizer_pool.shutdown(wait=False, cancel_futures=True)
        if service.telemetry is not None:
            await asyncio.to_thread(service.telemetry.stop)

    routes: list[BaseRoute] = [Route(e.path, EndpointApp(e, service), methods=[e.method]) for e in ENDPOINTS]
    if service.settings.page:
        routes += [Route("/", index_page, methods=["GET"]), Mount("/page", StaticFiles(directory=PAGE))]
        routes += browser_files.script_routes()
    origins = sorted(service.settings.allowed_origins)
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type"],
        expose_headers=["server-timing", "retry-after", "x-request-id", WARNING_HEADER],
    )
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[cors] if origins else [],
        exception_handlers={HTTPException: handle_routing_error},
    )
    return protect(app, service.settings, STYLE)


async def index_page(request: Request) -> Response:
    return Response((PAGE / "index.html").read_bytes(), media_type="text/html")


async def handle_routing_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods as an error response."""
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in ERRORS else 400
    messages = {
        404: f"path {request.url.path!r} is unknown; choose one of {', '.join(description()['paths'])}",
        405: f"method {request.method} is not allowed for this path; see /docs",
    }
    response = error_response(request.url.path, HttpError(status, messages.get(status, error.detail)))
    response.headers.update(error.headers or {})
    return response
