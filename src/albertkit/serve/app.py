"""The server's app: all endpoints in one table, the page, and what starts and stops with it.

In: a `Service`. Out: a Starlette app. Before this file: the endpoints and `guard.py`; after it: `run.py` listens.
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
from pathlib import Path
from typing import Any, Literal, TypedDict

from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from albertkit.errors import AlbertkitError
from albertkit.serve import explain_api, openai, openapi, tei
from albertkit.serve import generate_api as write
from albertkit.serve import search_api as look
from albertkit.serve import tasks_api as own
from albertkit.serve.http_error import KINDS, HttpError
from albertkit.serve.inference import RequestContext, Service
from albertkit.serve.middleware import Endpoint, EndpointApp, Message, RawBody, Receive, Send, refused
from albertkit.serve.schemas import TokenItem, Vector
from albertkit.serve.serve_settings import ApiKeys, split_list

log = logging.getLogger("albertkit.serve")
PAGE = Path(__file__).parent / "page"
STUCK = 120.0  # seconds that a batch may take before the server calls itself ill
TELL_OTHERS = "ALBERTKIT_SERVE_PARENT"  # set in workers: the process that passes a reload on to all
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class HealthResponse(TypedDict):
    """How the server is."""

    status: Literal["ok", "starting", "draining"]
    models: list[str]
    waiting_seconds: float


class ReloadResponse(TypedDict):
    """For each model: same, reloaded, or why the old one was kept."""

    models: dict[str, str]


class EmptyRequest(Struct):
    """A request without a body."""


async def health(service: Service, context: RequestContext, body: None) -> Any:
    """Whether requests are answered: 200, or 503 while starting, stopping or stuck."""
    return well(service, service.ready and not service.draining)


async def live(service: Service, context: RequestContext, body: None) -> Any:
    """Whether the process works; if not, it should be started anew."""
    return well(service, True)


def well(service: Service, ready: bool) -> dict[str, Any]:
    """How the server is; a refusal if it is not well."""
    stuck = service.batcher.stuck()
    if stuck is None or stuck > STUCK:
        raise HttpError(503, "the engine does not answer; start the server anew")
    if not ready:
        raise HttpError(
            503, "the server is starting" if not service.draining else "the server is shutting down", again=1
        )
    status = "draining" if service.draining else "ok" if service.ready else "starting"
    names = [model.name for model in service.models]
    return {"status": status, "models": names, "waiting_seconds": round(service.batcher.waiting()[1], 3)}


async def metrics(service: Service, context: RequestContext, body: None) -> RawBody:
    """Numbers for Prometheus."""
    service.metrics.waiting.set(service.batcher.waiting()[1])
    service.metrics.held.set(service.held)
    return RawBody(service.metrics.page(), service.metrics.content_type)


async def reload(service: Service, context: RequestContext, body: EmptyRequest) -> dict[str, Any]:
    """Open models again that have changed on disk, and read the keys again; nobody is kept waiting for it."""
    found = await renew(service)
    parent = os.environ.get(TELL_OTHERS)
    if parent is not None:
        os.kill(int(parent), signal.SIGHUP)
    kept = {name: result for name, result in found.items() if result not in ("same", "reloaded")}
    if kept:
        raise HttpError(409, "; ".join(f"{name}: {result}" for name, result in kept.items()))
    return {"models": found}


async def renew(service: Service) -> dict[str, str]:
    """Reload models and keys; what cannot be read stays as it was."""
    found = await asyncio.get_running_loop().run_in_executor(service.slow, service.models.reload)
    for result in found.values():
        service.metrics.reloads.labels(result if result in ("same", "reloaded") else "kept").inc()
    try:
        service.keys = ApiKeys.read(service.settings)
    except AlbertkitError as error:
        log.error("keys kept", extra={"facts": {"reason": str(error)}})
    return found


async def schema(service: Service, context: RequestContext, body: None) -> dict[str, Any]:
    """This description."""
    return description()


async def docs(service: Service, context: RequestContext, body: None) -> RawBody:
    """This description, for people."""
    return RawBody(openapi.page(description()).encode(), "text/html; charset=utf-8")


OPENAI, TEI, OWN, SERVER = "OpenAI's", "text-embeddings-inference's", "albertkit's own", "the server"
ENDPOINTS = (
    Endpoint("POST", "/v1/embeddings", openai.embeddings, openai.EmbeddingsRequest, openai.EmbeddingsResponse, OPENAI),
    Endpoint("GET", "/v1/models", openai.models, None, openai.ModelListResponse, OPENAI),
    Endpoint("GET", "/v1/models/{name:path}", openai.one_model, None, openai.ModelItem, OPENAI),
    Endpoint("POST", "/embed", tei.embed, tei.EmbedRequest, list[Vector], TEI),
    Endpoint("POST", "/rerank", tei.rerank, tei.RerankRequest, list[tei.RankItem], TEI),
    Endpoint("POST", "/predict", tei.predict, tei.PredictRequest, tei.Predictions, TEI),
    Endpoint("POST", "/similarity", tei.similarity, tei.SimilarityRequest, list[float], TEI),
    Endpoint("POST", "/tokenize", tei.tokenize, tei.TokenizeRequest, list[list[TokenItem]], TEI),
    Endpoint("POST", "/decode", tei.decode, tei.DecodeRequest, list[str], TEI),
    Endpoint("GET", "/info", tei.info, None, tei.InfoResponse, TEI),
    Endpoint("POST", "/", tei.root, tei.RootRequest, tei.RootResponse, TEI),
    Endpoint("POST", "/classify", own.classify, own.ClassifyRequest, own.ClassifyResponse, OWN),
    Endpoint("POST", "/tag", own.tag, own.TextsRequest, own.TagResponse, OWN),
    Endpoint("POST", "/intent", own.intent, own.TextsRequest, own.IntentResponse, OWN),
    Endpoint("POST", "/answer", own.answer, own.AnswerRequest, own.AnswerResponse, OWN),
    Endpoint("POST", "/choose", own.choose, own.ChooseRequest, own.ChooseResponse, OWN),
    Endpoint("POST", "/fill", own.fill, own.FillRequest, own.FillResponse, OWN),
    Endpoint("POST", "/generate", write.generate, write.GenerateRequest, write.GenerateResponse, OWN),
    Endpoint("POST", "/similar", look.similar, look.SimilarRequest, look.SimilarResponse, OWN),
    Endpoint("POST", "/search", look.search, look.SearchRequest, look.SearchResponse, OWN),
    Endpoint("POST", "/explain", explain_api.explain, explain_api.ExplainRequest, explain_api.ExplainResponse, OWN),
    Endpoint("GET", "/health", health, None, HealthResponse, SERVER, open=True),
    Endpoint("GET", "/health/ready", health, None, HealthResponse, SERVER, open=True),
    Endpoint("GET", "/health/live", live, None, HealthResponse, SERVER, open=True),
    Endpoint("GET", "/metrics", metrics, None, None, SERVER),
    Endpoint("POST", "/admin/reload", reload, EmptyRequest, ReloadResponse, SERVER, admin=True),
    Endpoint("GET", "/openapi.json", schema, None, dict[str, Any], SERVER, open=True),
    Endpoint("GET", "/docs", docs, None, None, SERVER, open=True),
)


@functools.cache
def description() -> dict[str, Any]:
    """All endpoints in OpenAPI's words."""
    return openapi.describe(ENDPOINTS)


def make_app(service: Service) -> Any:
    """The app. It begins to compute when the server starts it, and ends what is waiting when the server stops it."""

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        service.batcher.start()
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[Any]] = set()

        def hang_up() -> None:
            task = loop.create_task(renew(service))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, hang_up)
        service.ready = True
        yield
        service.ready = False
        await loop.run_in_executor(None, service.batcher.stop)
        for pool in (service.pool, service.slow):
            pool.shutdown(wait=False, cancel_futures=True)

    routes: list[BaseRoute] = [Route(e.path, EndpointApp(e, service), methods=[e.method]) for e in ENDPOINTS]
    if service.settings.page:
        routes.append(Route("/", front, methods=["GET"]))
        if PAGE.is_dir():
            routes.append(Mount("/page", StaticFiles(directory=PAGE)))
    origins = split_list(service.settings.cors or "")
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type"],
        expose_headers=["server-timing", "retry-after", "x-request-id"],
    )
    app = Starlette(
        routes=routes,
        lifespan=life,
        middleware=[cors] if origins else [],
        exception_handlers={HTTPException: not_there},
    )
    return named(app, service.settings.allowed_hosts)


async def front(request: Request) -> Response:
    """The page at /."""
    file = PAGE / "index.html"
    body = file.read_bytes() if file.is_file() else b"<!doctype html><title>albertkit</title><a href=docs>albertkit</a>"
    headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    return Response(body, media_type="text/html", headers=headers)


async def not_there(request: Request, error: Exception) -> Response:
    """Paths and methods that do not exist, in our words."""
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in KINDS else 400
    paths = description()["paths"]
    said = {
        404: f"there is no {request.url.path!r}; there is {', '.join(paths)}",
        405: "this path wants another method",
    }
    reply = refused(request.url.path, HttpError(status, said.get(status, error.detail)))
    return Response(reply.body, status, headers=dict(error.headers or {}), media_type="application/json")


def named(app: Any, hosts: frozenset[str] | None) -> Any:
    """An app that answers only to some host names; None to all."""
    if hosts is None:
        return app

    async def check(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"host", b"").decode("latin-1").lower()
            name = given[1 : given.find("]")] if given.startswith("[") else given.partition(":")[0]
            if name not in hosts:
                reply = refused("", HttpError(421, f"this server is not called {name!r}; name it with --hosts"))
                headers = [(b"content-type", b"application/json"), (b"content-length", str(len(reply.body)).encode())]
                await send({"type": "http.response.start", "status": reply.status, "headers": headers})
                await send({"type": "http.response.body", "body": reply.body})
                return
        await app(scope, receive, send)

    return check
