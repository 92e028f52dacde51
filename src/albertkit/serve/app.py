"""The Starlette app: the table of endpoints, the page, health, metrics and reload.

In: a `Service`. Out: an ASGI app. Before: the endpoints and `middleware.py`; next: `server.py` listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from albertkit.errors import AlbertkitError
from albertkit.serve import explain_api, openai, openapi, search_api, tasks_api, tei
from albertkit.serve.inference import RequestContext, Service
from albertkit.serve.middleware import Endpoint, EndpointApp, Message, RawBody, Receive, Send, error_reply
from albertkit.serve.schemas import ERROR_TYPES, HttpError, TokenItem, Vector
from albertkit.serve.serve_settings import ApiKeys, split_list
from albertkit.serve.tasks_api import TaskResults
from albertkit.tasks.classify import Classification
from albertkit.tasks.generation import GeneratedText
from albertkit.tasks.tag import IntentResult, TagResult

log = logging.getLogger("albertkit.serve")
PAGE = Path(__file__).parent / "page"
MAX_BATCH_AGE = 120.0  # seconds that a batch may take before the server reports itself as unhealthy
PARENT_VARIABLE = "ALBERTKIT_SERVE_PARENT"  # set in workers: the process that forwards a reload to all
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class HealthResponse:
    """The state of the server."""

    status: Literal["ok", "starting", "draining"]
    models: list[str]
    waiting_seconds: float


@dataclass(frozen=True)
class ReloadResponse:
    """For each model: same, reloaded, or why the old one was kept."""

    models: dict[str, str]


class EmptyRequest(Struct):
    """A request without fields."""


async def health(service: Service, context: RequestContext, body: None) -> HealthResponse:
    """Whether requests are answered: 200, or 503 while starting, stopping or stuck."""
    if not service.is_ready or service.is_draining:
        state = "shutting down" if service.is_draining else "starting"
        check_engine(service)
        raise HttpError(503, f"the server is {state}", retry_after=1)
    return server_state(service)


async def live(service: Service, context: RequestContext, body: None) -> HealthResponse:
    """Whether the process works; if not, restart it."""
    return server_state(service)


def check_engine(service: Service) -> None:
    """An error if the engine's thread has stopped or hangs."""
    age = service.batcher.batch_age()
    if age is None or age > MAX_BATCH_AGE:
        raise HttpError(503, "the engine does not respond; restart the server")


def server_state(service: Service) -> HealthResponse:
    """The state of a server whose engine works."""
    check_engine(service)
    status: Literal["ok", "starting", "draining"] = "ok" if service.is_ready else "starting"
    names = [model.name for model in service.models]
    waiting = round(service.batcher.waiting()[1], 3)
    return HealthResponse("draining" if service.is_draining else status, names, waiting)


async def metrics(service: Service, context: RequestContext, body: None) -> RawBody:
    """Metrics for Prometheus."""
    service.metrics.waiting.set(service.batcher.waiting()[1])
    service.metrics.pending_bytes.set(service.pending_bytes)
    return RawBody(service.metrics.export(), service.metrics.content_type)


async def reload(service: Service, context: RequestContext, body: EmptyRequest) -> ReloadResponse:
    """Reload changed models and API keys while requests run."""
    results = await reload_all(service)
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None:
        os.kill(int(parent), signal.SIGHUP)
    kept = {name: result for name, result in results.items() if result not in ("same", "reloaded")}
    if kept:
        raise HttpError(409, "; ".join(f"{name}: {result}" for name, result in kept.items()))
    return ReloadResponse(results)


async def reload_all(service: Service) -> dict[str, str]:
    """Reload models and keys; what cannot be read stays as it was."""
    results = await service.run_slow(service.models.reload)
    for result in results.values():
        service.metrics.reloads.labels(result if result in ("same", "reloaded") else "kept").inc()
    try:
        service.keys = ApiKeys.read(service.settings)
    except AlbertkitError as error:
        log.error("keys kept", extra={"facts": {"reason": str(error)}})
    return results


async def schema(service: Service, context: RequestContext, body: None) -> dict[str, Any]:
    """This description."""
    return description()


async def docs(service: Service, context: RequestContext, body: None) -> RawBody:
    """This description as HTML."""
    return RawBody(openapi.render_page(description()).encode(), "text/html; charset=utf-8")


OPENAI, TEI, OWN, SERVER = "OpenAI's", "text-embeddings-inference's", "albertkit's own", "the server"
ENDPOINTS = (
    Endpoint("POST", "/v1/embeddings", openai.embeddings, openai.EmbeddingsRequest, openai.EmbeddingsResponse, OPENAI),
    Endpoint("GET", "/v1/models", openai.models, None, openai.ModelListResponse, OPENAI),
    Endpoint("GET", "/v1/models/{name:path}", openai.one_model, None, openai.ModelInfo, OPENAI),
    Endpoint("POST", "/embed", tei.embed, tei.EmbedRequest, list[Vector], TEI),
    Endpoint("POST", "/rerank", tei.rerank, tei.RerankRequest, list[tei.RankItem], TEI),
    Endpoint("POST", "/predict", tei.predict, tei.PredictRequest, tei.Predictions, TEI),
    Endpoint("POST", "/similarity", tei.similarity, tei.SimilarityRequest, list[float], TEI),
    Endpoint("POST", "/tokenize", tei.tokenize, tei.TokenizeRequest, list[list[TokenItem]], TEI),
    Endpoint("POST", "/decode", tei.decode, tei.DecodeRequest, list[str], TEI),
    Endpoint("GET", "/info", tei.info, None, tei.InfoResponse, TEI),
    Endpoint("POST", "/", tei.root, tei.RootRequest, tei.RootResponse, TEI),
    Endpoint("POST", "/classify", tasks_api.classify, tasks_api.ClassifyRequest, TaskResults[Classification], OWN),
    Endpoint("POST", "/tag", tasks_api.tag, tasks_api.TextsRequest, TaskResults[TagResult], OWN),
    Endpoint("POST", "/intent", tasks_api.intent, tasks_api.TextsRequest, TaskResults[IntentResult], OWN),
    Endpoint("POST", "/answer", tasks_api.answer, tasks_api.AnswerRequest, tasks_api.AnswerResponse, OWN),
    Endpoint("POST", "/choose", tasks_api.choose, tasks_api.ChooseRequest, tasks_api.ChooseResponse, OWN),
    Endpoint("POST", "/fill", tasks_api.fill, tasks_api.FillRequest, TaskResults[tasks_api.FillItem], OWN),
    Endpoint("POST", "/generate", tasks_api.generate, tasks_api.GenerateRequest, TaskResults[GeneratedText], OWN),
    Endpoint("POST", "/similar", search_api.similar, search_api.SimilarRequest, search_api.SimilarResponse, OWN),
    Endpoint("POST", "/search", search_api.search, search_api.SearchRequest, search_api.SearchResponse, OWN),
    Endpoint("POST", "/explain", explain_api.explain, explain_api.ExplainRequest, explain_api.ExplainResponse, OWN),
    Endpoint("GET", "/health", health, None, HealthResponse, SERVER, is_public=True),
    Endpoint("GET", "/health/ready", health, None, HealthResponse, SERVER, is_public=True),
    Endpoint("GET", "/health/live", live, None, HealthResponse, SERVER, is_public=True),
    Endpoint("GET", "/metrics", metrics, None, None, SERVER),
    Endpoint("POST", "/admin/reload", reload, EmptyRequest, ReloadResponse, SERVER, is_admin=True),
    Endpoint("GET", "/openapi.json", schema, None, dict[str, Any], SERVER, is_public=True),
    Endpoint("GET", "/docs", docs, None, None, SERVER, is_public=True),
)


@functools.cache
def description() -> dict[str, Any]:
    """All endpoints as OpenAPI."""
    return openapi.describe(ENDPOINTS)


def make_app(service: Service) -> ASGIApp:
    """The app. The batcher starts and stops with it."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.batcher.start()
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[dict[str, str]]] = set()

        def start_reload() -> None:
            task = loop.create_task(reload_all(service))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, start_reload)
        service.is_ready = True
        yield
        service.is_ready = False
        await loop.run_in_executor(None, service.batcher.stop)
        for pool in (service.tokenizer_pool, service.slow_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    routes: list[BaseRoute] = [Route(e.path, EndpointApp(e, service), methods=[e.method]) for e in ENDPOINTS]
    if service.settings.page:
        routes += [Route("/", index_page, methods=["GET"]), Mount("/page", StaticFiles(directory=PAGE))]
    origins = split_list(service.settings.cors_origins or "")
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type"],
        expose_headers=["server-timing", "retry-after", "x-request-id"],
    )
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[cors] if origins else [],
        exception_handlers={HTTPException: handle_routing_error},
    )
    hosts = service.settings.allowed_hosts
    return app if hosts is None else restrict_hosts(app, hosts)


async def index_page(request: Request) -> Response:
    headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    return Response((PAGE / "index.html").read_bytes(), media_type="text/html", headers=headers)


async def handle_routing_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods as an error response."""
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in ERROR_TYPES else 400
    messages = {
        404: f"path {request.url.path!r} is unknown; choose one of {', '.join(description()['paths'])}",
        405: f"method {request.method} is not allowed for this path; see /docs",
    }
    reply = error_reply(request.url.path, HttpError(status, messages.get(status, error.detail)))
    return Response(reply.body, status, headers=dict(error.headers or {}), media_type="application/json")


def restrict_hosts(app: ASGIApp, hosts: frozenset[str]) -> ASGIApp:
    """An app that answers only requests whose Host header is allowed."""

    async def check_host(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1").lower()
            name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
            if name not in hosts:
                error = HttpError(421, f"host name {name!r} is not allowed; allow it with --hosts")
                await Response(error_reply("", error).body, 421, media_type="application/json")(scope, receive, send)
                return
        await app(scope, receive, send)

    return check_host
