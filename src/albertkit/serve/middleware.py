"""From a request to its endpoint and back: key, limits, decoding, disconnects, errors, headers, log and metrics.

In: an `Endpoint` and the `Service`. Out: an ASGI app. Before: the endpoints; next: `app.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any, get_type_hints

import msgspec
import orjson
from starlette.types import Receive, Scope, Send

from albertkit.errors import AlbertkitError
from albertkit.serve.inference import RequestContext, Service
from albertkit.serve.schemas import HttpError

log = logging.getLogger("albertkit.serve")
Headers = list[tuple[bytes, bytes]]
Handler = Callable[..., Awaitable[Any]]
"""(service, context, body, path parameters) → the response."""
OVERHEAD = 4096  # bytes of a request beside its body
LARGE_RESPONSE = 65536  # a larger response is counted until the client has received it
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_numbers = itertools.count(1)
OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
OPENAI_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


@dataclass(frozen=True)
class HttpReply:
    """A response as bytes."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    error_type: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """A path and its handler, whose annotations are the types of request and response."""

    method: str
    path: str
    handler: Handler
    group: str
    is_public: bool = False
    """Needs no API key."""
    is_admin: bool = False
    """Needs the admin key."""

    @cached_property
    def request(self) -> Any:
        """The struct of the body; None without a body."""
        body = get_type_hints(self.handler, include_extras=True)["body"]
        return None if body is NoneType else body

    @cached_property
    def response(self) -> Any:
        """The type of the response; None if it is not JSON."""
        result = get_type_hints(self.handler, include_extras=True)["return"]
        return None if result is HttpReply else result


class ClientDisconnected(Exception):
    """The client has closed the connection."""


class EndpointApp:
    """One endpoint as an ASGI app."""

    def __init__(self, endpoint: Endpoint, service: Service) -> None:
        self.endpoint, self.service = endpoint, service
        self.decoder = msgspec.json.Decoder(endpoint.request)
        self.seconds = service.metrics.seconds.labels(endpoint.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        context = RequestContext.begin(self.service.settings)
        headers = dict(scope["headers"])
        client_id = headers.get(b"x-request-id", b"")
        is_valid = REQUEST_ID.fullmatch(client_id) is not None
        request_id = client_id if is_valid else b"%s-%x" % (self.service.process_id, next(_numbers))
        reply: HttpReply | None = None
        try:
            reply = await self._reply(scope, headers, receive, context)
            if reply is not None:
                await send_reply(send, reply, self._headers(reply, context, request_id))
        finally:
            self.service.pending_bytes -= context.bytes
            self._record(reply, context, request_id, time.perf_counter() - began)

    async def _reply(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, context: RequestContext
    ) -> HttpReply | None:
        """The response; None if the client has disconnected."""
        path, parameters = scope["path"], scope.get("path_params", {})
        try:
            self._check_key(headers)
            if self.endpoint.request is None:
                result = await self.endpoint.handler(self.service, context, None, **parameters)
            else:
                self.service.batcher.check()  # before the body is read
                body = self._decode(await read_body(headers, receive, self.service, context))
                watch = asyncio.ensure_future(watch_disconnect(receive, context, asyncio.current_task()))
                try:
                    result = await self.endpoint.handler(self.service, context, body, **parameters)
                finally:
                    watch.cancel()
            if not isinstance(result, HttpReply):
                result = HttpReply(200, orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY))
            self.service.count_bytes(context, len(result.body))
            return result
        except ClientDisconnected:
            return None
        except asyncio.CancelledError:
            if not context.is_disconnected:
                raise
            return None
        except HttpError as error:
            return error_reply(path, error)
        except AlbertkitError as error:
            return error_reply(path, HttpError(422, str(error)))
        except Exception:
            log.exception("request failed", extra={"facts": {"endpoint": self.endpoint.path}})
            return error_reply(path, HttpError(500, "internal error; see the server's log"))

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        endpoint, keys = self.endpoint, self.service.keys
        header = headers.get(b"authorization", b"")
        if endpoint.is_admin:
            if keys.admin is None:
                raise HttpError(403, "this server has no admin key; set ALBERTKIT_SERVE_ADMIN_KEY, or send SIGHUP")
            if not keys.is_admin(header):
                raise HttpError(401, "the admin key is missing or wrong; send it as  Authorization: Bearer KEY")
        elif not endpoint.is_public and not keys.is_user(header):
            raise HttpError(401, "an API key is missing or wrong; send it as  Authorization: Bearer KEY")

    def _decode(self, body: bytes) -> Any:
        try:
            return self.decoder.decode(body)
        except msgspec.ValidationError as error:
            field = re.search(r"at `\$\.([^`]+)`", str(error))
            raise HttpError(422, f"invalid request: {error}", param=field.group(1) if field else None) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpError(400, f"the body is not valid JSON in UTF-8: {str(error)[:200]}") from None

    def _headers(self, reply: HttpReply, context: RequestContext, request_id: bytes) -> Headers:
        timing = f"wait;dur={1000 * context.wait_seconds:.2f}, compute;dur={1000 * context.compute_seconds:.2f}"
        return [
            (b"content-type", reply.content_type),
            (b"content-length", str(len(reply.body)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"x-request-id", request_id),
            (b"server-timing", timing.encode()),
            *reply.headers,
        ]

    def _record(self, reply: HttpReply | None, context: RequestContext, request_id: bytes, seconds: float) -> None:
        metrics, status = self.service.metrics, 499 if reply is None else reply.status
        metrics.requests.labels(self.endpoint.path, str(status)).inc()
        self.seconds.observe(seconds)
        if reply is None:
            metrics.disconnected.inc()
        elif reply.error_type is not None:
            metrics.rejected.labels(reply.error_type).inc()
        if not self.service.settings.access_log or self.endpoint.path.startswith(("/health", "/metrics")):
            return
        facts: dict[str, Any] = {
            "id": request_id.decode(),
            "endpoint": f"{self.endpoint.method} {self.endpoint.path}",
            "status": status,
            "ms": round(1000 * seconds, 2),
            "model": context.model,
            "texts": context.texts,
            "tokens": context.tokens,
            "wait_ms": round(1000 * context.wait_seconds, 2),
            "compute_ms": round(1000 * context.compute_seconds, 2),
        }
        if reply is None or reply.error_type is not None:
            facts["error_type"] = "disconnected" if reply is None else reply.error_type
        log.info("request", extra={"facts": facts})


async def read_body(headers: dict[bytes, bytes], receive: Receive, service: Service, context: RequestContext) -> bytes:
    """The body, within the limits."""
    most, pending_limit = service.settings.max_bytes, service.settings.max_pending_bytes
    content_type = headers.get(b"content-type", b"application/json").split(b";")[0].strip().lower()
    if content_type != b"application/json" and not content_type.endswith(b"+json"):
        raise HttpError(415, "the body must be JSON; send it with  Content-Type: application/json")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise HttpError(415, "the body is compressed; send it uncompressed")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length[:18]) > most:
        raise HttpError(413, f"the body has {int(length[:18]):,} bytes; send at most {most:,} per request")
    service.count_bytes(context, OVERHEAD + (int(length) if length.isdigit() else 0), pending_limit)
    parts, total = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        total += len(part)
        if total > most:
            raise HttpError(413, f"the body has more than {most:,} bytes; send fewer texts per request")
        if b"content-length" not in headers:
            service.count_bytes(context, len(part), pending_limit)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def watch_disconnect(receive: Receive, context: RequestContext, task: asyncio.Task[Any] | None) -> None:
    """Cancel a request's task when its client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    context.is_disconnected = True
    if task is not None:
        task.cancel()


def error_reply(path: str, error: HttpError) -> HttpReply:
    """An error in the endpoint's format: OpenAI's under /v1, else TEI's."""
    headers: Headers = []
    if error.retry_after is not None:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    status = error.status
    body: dict[str, Any] = {"error": error.message, "error_type": error.error_type}
    if path.startswith("/v1/"):
        status = 400 if status == 422 else status
        kind = OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        code = OPENAI_CODES.get(status, error.error_type)
        body = {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}
    return HttpReply(status, orjson.dumps(body), headers=tuple(headers), error_type=error.error_type)


async def send_reply(send: Send, reply: HttpReply, headers: Headers) -> None:
    """Send a reply; a large one in two messages, which waits until the client has received most of it."""
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if len(reply.body) <= LARGE_RESPONSE:
        await send({"type": "http.response.body", "body": reply.body})
        return
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
