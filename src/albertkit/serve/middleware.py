"""The way of a request to its endpoint and back: key, limits, reading, cancelling, errors, headers, log and metrics.

In: an `Endpoint` and a `Service`. Out: an ASGI app that answers it. Before this file: the endpoints; after it: `app.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from albertkit.errors import AlbertkitError
from albertkit.serve.http_error import HttpError
from albertkit.serve.inference import RequestContext, Service, seconds_left

log = logging.getLogger("albertkit.serve")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
OVERHEAD = 4096  # bytes that a request takes beside its body
LARGE = 65536  # an answer beyond this is held until the client has taken it
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_numbers = itertools.count(1)
_OPENAI = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


@dataclass(frozen=True)
class Endpoint:
    """A path, what answers it, and what goes in and out."""

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    takes: Any = None
    """The struct of its body; None where there is none."""
    gives: Any = None
    """The type of its answer; None where it is no JSON."""
    group: str = "albertkit"
    open: bool = False
    """Needs no key."""
    admin: bool = False
    """Needs the admin key."""


@dataclass(frozen=True)
class RawBody:
    """An answer that is not JSON."""

    body: bytes
    content_type: str
    status: int = 200


@dataclass
class HttpReply:
    """What goes back."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"
    more: tuple[tuple[bytes, bytes], ...] = ()
    kind: str | None = None


class EndpointApp:
    """One endpoint as an ASGI app."""

    def __init__(self, endpoint: Endpoint, service: Service) -> None:
        self.endpoint, self.service = endpoint, service
        self.decoder = None if endpoint.takes is None else msgspec.json.Decoder(endpoint.takes)
        self.seconds = service.metrics.seconds.labels(endpoint.path)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        began = time.perf_counter()
        context = RequestContext(seconds_left(self.service.settings))
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        name = given if given and _ID.fullmatch(given) else b"%s-%x" % (self.service.name, next(_numbers))
        byte_counter = ByteCounter(self.service)
        reply: HttpReply | None = None
        try:
            reply = await self._reply(scope, headers, receive, context, byte_counter)
            if reply is not None:
                await respond(send, reply, self._headers(reply, context, name))
        finally:
            byte_counter.release()
            self._note(reply, context, name, time.perf_counter() - began)

    async def _reply(
        self,
        scope: MutableMapping[str, Any],
        headers: dict[bytes, bytes],
        receive: Receive,
        context: RequestContext,
        byte_counter: ByteCounter,
    ) -> HttpReply | None:
        """What to say; None when nobody is there any more."""
        path = scope["path"]
        try:
            self._check_key(headers)
            parameters = scope.get("path_params", {})
            if self.decoder is None:
                found = await self.endpoint.handler(self.service, context, None, **parameters)
            else:
                self.service.batcher.check_queue()  # before anything is read
                body = self._parse(await read(headers, receive, self.service, byte_counter))
                watch = asyncio.ensure_future(left(receive, context, asyncio.current_task()))
                try:
                    found = await self.endpoint.handler(self.service, context, body, **parameters)
                finally:
                    watch.cancel()
            reply = shown(found)
            byte_counter.add(len(reply.body))
            return reply
        except ClientDisconnected:
            return None
        except asyncio.CancelledError:
            if not context.gone:
                raise
            return None
        except HttpError as refusal:
            return refused(path, refusal)
        except AlbertkitError as error:
            return refused(path, HttpError(422, str(error)))
        except Exception:
            log.exception("request failed", extra={"facts": {"endpoint": self.endpoint.path}})
            return refused(path, HttpError(500, "something went wrong in the server; its log says where"))

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        endpoint, keys = self.endpoint, self.service.keys
        given = headers.get(b"authorization", b"")
        if endpoint.admin:
            if keys.admin is None:
                raise HttpError(403, "this server has no admin key; set ALBERTKIT_SERVE_ADMIN_KEY, or send it SIGHUP")
            if not keys.is_admin(given):
                raise HttpError(401, "the admin key is missing or wrong; send it as  Authorization: Bearer KEY")
        elif not endpoint.open and not keys.user(given):
            raise HttpError(401, "an API key is missing or wrong; send it as  Authorization: Bearer KEY")

    def _parse(self, body: bytes) -> Any:
        """The body, checked."""
        assert self.decoder is not None
        try:
            return self.decoder.decode(body or b"{}" if self.endpoint.admin else body)
        except msgspec.ValidationError as error:
            where = re.search(r"at `\$\.([^`]+)`", str(error))
            raise HttpError(422, f"the request does not fit: {error}", name=where.group(1) if where else None) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpError(400, f"the body is not valid JSON in UTF-8: {str(error)[:200]}") from None

    def _headers(self, reply: HttpReply, context: RequestContext, name: bytes) -> list[tuple[bytes, bytes]]:
        timing = f"wait;dur={1000 * context.waited:.2f}, compute;dur={1000 * context.computing:.2f}"
        return [
            (b"content-type", reply.content_type),
            (b"content-length", str(len(reply.body)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"x-request-id", name),
            (b"server-timing", timing.encode()),
            *reply.more,
        ]

    def _note(self, reply: HttpReply | None, context: RequestContext, name: bytes, seconds: float) -> None:
        """Count and log a request."""
        metrics, status = self.service.metrics, 499 if reply is None else reply.status
        metrics.requests.labels(self.endpoint.path, str(status)).inc()
        self.seconds.observe(seconds)
        if reply is None:
            metrics.gone.inc()
        elif reply.kind is not None:
            metrics.refused.labels(reply.kind).inc()
        if not self.service.settings.access_log or self.endpoint.path.startswith(("/health", "/metrics")):
            return
        facts: dict[str, Any] = {
            "id": name.decode(),
            "endpoint": f"{self.endpoint.method} {self.endpoint.path}",
            "status": status,
            "ms": round(1000 * seconds, 2),
            "model": context.model,
            "texts": context.texts,
            "tokens": context.tokens,
            "wait_ms": round(1000 * context.waited, 2),
            "compute_ms": round(1000 * context.computing, 2),
        }
        if reply is None or reply.kind is not None:
            facts["kind"] = "gone" if reply is None else reply.kind
        log.info("request", extra={"facts": facts})


class ClientDisconnected(Exception):
    """The client has left."""


class ByteCounter:
    """Bytes of one request, counted among those of all."""

    def __init__(self, service: Service) -> None:
        self.service, self.bytes = service, 0

    def add(self, count: int, most: int | None = None) -> None:
        """Count some more; with `most`, refuse if all requests together would have more."""
        if most is not None and self.service.held + count > most:
            raise HttpError(
                429, f"the requests at work already take {self.service.held:,} bytes; ask again later", again=1
            )
        self.bytes += count
        self.service.held += count

    def release(self) -> None:
        """The request is over."""
        self.service.held -= self.bytes
        self.bytes = 0


async def read(headers: dict[bytes, bytes], receive: Receive, service: Service, byte_counter: ByteCounter) -> bytes:
    """The body, within the limits."""
    settings = service.settings
    kind = headers.get(b"content-type", b"application/json").split(b";")[0].strip().lower()
    if kind != b"application/json" and not kind.endswith(b"+json"):
        raise HttpError(415, "the body must be JSON; send it with  Content-Type: application/json")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise HttpError(415, "the body is compressed; send it as it is")
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length[:18]) > settings.max_bytes:
        raise HttpError(413, f"the body has {int(length[:18]):,} bytes; send at most {settings.max_bytes:,} at a time")
    byte_counter.add(OVERHEAD + (int(length) if length.isdigit() else 0), settings.max_held)
    parts, total = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        total += len(part)
        if total > settings.max_bytes:
            raise HttpError(413, f"the body has more than {settings.max_bytes:,} bytes; send fewer texts at a time")
        if b"content-length" not in headers:
            byte_counter.add(len(part), settings.max_held)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def left(receive: Receive, context: RequestContext, task: asyncio.Task[Any] | None) -> None:
    """Wait for the client to leave; then what is done for it ends."""
    while (await receive())["type"] != "http.disconnect":
        pass
    context.gone = True
    if task is not None:
        task.cancel()


def shown(found: Any) -> HttpReply:
    """An endpoint's result as a reply."""
    if isinstance(found, RawBody):
        return HttpReply(found.status, found.body, found.content_type.encode())
    return HttpReply(200, orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY))


def refused(path: str, refusal: HttpError) -> HttpReply:
    """A refusal in the words of the endpoint's family: OpenAI's under /v1, else one sentence and its kind."""
    more: list[tuple[bytes, bytes]] = []
    if refusal.again is not None:
        more.append((b"retry-after", str(refusal.again).encode()))
    if refusal.status == 401:
        more.append((b"www-authenticate", b"Bearer"))
    status = refusal.status
    if path.startswith("/v1/"):
        status = 400 if status == 422 else status
        kind = _OPENAI.get(status, "server_error" if status >= 500 else "invalid_request_error")
        code = _CODES.get(status, refusal.kind)
        body: Any = {"error": {"message": refusal.message, "type": kind, "param": refusal.name, "code": code}}
    else:
        body = {"error": refusal.message, "error_type": refusal.kind}
    return HttpReply(status, orjson.dumps(body), more=tuple(more), kind=refusal.kind)


async def respond(send: Send, reply: HttpReply, headers: list[tuple[bytes, bytes]]) -> None:
    """Send a reply; a large one is waited for until the client has taken most of it, so that its bytes stay counted."""
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if len(reply.body) <= LARGE:
        await send({"type": "http.response.body", "body": reply.body})
        return
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
