"""Request handling around an endpoint: keys, limits, decoding, disconnects, errors, headers, log and metrics.

In: an `Endpoint` and the `Service`. Out: an ASGI app, which `app.py` mounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cached_property
from types import NoneType
from typing import Any, get_type_hints

import msgspec
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from albertkit.errors import AlbertkitError, NonFiniteError
from albertkit.serve.inference import RequestContext, Service
from albertkit.serve.process_memory import return_freed_memory
from albertkit.serve.response_size import encode_json, memory_of
from albertkit.serve.schemas import WARNING_HEADER, HttpError, WarnedResponse, validation_error

log = logging.getLogger("albertkit.serve")
Handler = Callable[..., Awaitable[Any]]
"""(context, body, path parameters) → the response."""
JSON = "application/json"
OVERHEAD = 4096  # bytes of a request beside its body
LARGE_RESPONSE = 65536  # a larger response is counted until the client has received it, and written in parts
TRIM_BYTES = 2**20  # of a request and its response: then freed memory is returned to the system
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_numbers = itertools.count(1)
OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
OPENAI_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


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
    errors: tuple[int, ...] = ()
    """Statuses of errors beside those of its method."""

    @cached_property
    def request(self) -> type[msgspec.Struct] | None:
        """The struct of the body; None without a body."""
        body = get_type_hints(self.handler, include_extras=True)["body"]
        return None if body is NoneType else body

    @cached_property
    def response(self) -> type | None:
        """The type of the response; None if it is not JSON."""
        result = get_type_hints(self.handler, include_extras=True)["return"]
        return None if result is Response else result


class ClientDisconnected(Exception):
    """The client has closed the connection."""


class EndpointApp:
    """One endpoint as an ASGI app."""

    def __init__(self, endpoint: Endpoint, service: Service) -> None:
        self.endpoint, self.service = endpoint, service
        self.decoder = msgspec.json.Decoder(endpoint.request)
        self.seconds = service.metrics.seconds.labels(endpoint.path)
        self.is_probe = endpoint.path.startswith(("/health", "/metrics"))  # not logged, not traced

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        context = RequestContext(self.service)
        headers = dict(scope["headers"])
        client_id = headers.get(b"x-request-id", b"")
        is_valid = REQUEST_ID.fullmatch(client_id) is not None
        request_id = client_id if is_valid else b"%s-%x" % (self.service.process_id, next(_numbers))
        response: Response | None = None
        try:
            response = await self._respond(scope, headers, receive, context)
            if response is not None:
                wait, compute = 1000 * context.wait_seconds, 1000 * context.compute_seconds
                response.headers["cache-control"] = "no-store"
                response.headers["x-request-id"] = request_id.decode()
                response.headers["server-timing"] = f"wait;dur={wait:.2f}, compute;dur={compute:.2f}"
                await send_response(send, response)
        finally:
            self.service.pending_bytes -= context.bytes
            if context.bytes + context.response_memory > TRIM_BYTES:
                asyncio.get_running_loop().call_soon(trim_memory, self.service)
            status = 499 if response is None else response.status_code
            seconds = time.perf_counter() - began
            self._record(status, context, request_id, seconds)
            if self.service.telemetry is not None and not self.is_probe:
                self.service.telemetry.record_request(self.endpoint, status, seconds, headers, context)

    async def _respond(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, context: RequestContext
    ) -> Response | None:
        """The response; None if the client has disconnected."""
        parameters = scope.get("path_params", {})
        try:
            self._check_key(headers)
            if self.endpoint.request is None:
                return await make_response(context, await self.endpoint.handler(context, None, **parameters))
            self.service.batcher.check()  # before the body is read
            body = await self._read_request(headers, receive, context)
            watch = asyncio.ensure_future(watch_disconnect(receive, context, asyncio.current_task()))
            try:
                result = await self.endpoint.handler(context, body, **parameters)
                return await make_response(context, result, context.settings.max_response_bytes)
            finally:
                watch.cancel()
                context.release_response_lock()
        except ClientDisconnected:
            context.is_disconnected = True
            return None
        except asyncio.CancelledError:
            if not context.is_disconnected:
                raise
            return None
        except HttpError as error:
            # No variable keeps it: its traceback refers to the request, which would stay in memory.
            return error_response(scope["path"], error, context)
        except NonFiniteError as error:
            return error_response(scope["path"], HttpError(500, str(error)), context)
        except AlbertkitError as error:
            return error_response(scope["path"], HttpError(422, str(error)), context)
        except Exception:
            log.exception("request failed", extra={"facts": {"endpoint": self.endpoint.path}})
            return error_response(scope["path"], HttpError(500, "internal error; see the server's log"), context)

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

    async def _read_request(self, headers: dict[bytes, bytes], receive: Receive, context: RequestContext) -> Any:
        """The decoded body, whose memory is counted."""
        body = await read_body(headers, receive, context)
        request = self._decode(body)
        if len(body) > LARGE_RESPONSE:
            context.count_bytes(memory_of(request) - len(body), context.settings.max_pending_bytes)
        return request

    def _decode(self, body: bytes) -> Any:
        try:
            return self.decoder.decode(body)
        except msgspec.ValidationError as error:
            assert self.endpoint.request is not None
            values = None
            if len(body) <= LARGE_RESPONSE:
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    values = msgspec.json.decode(body)
            raise validation_error(error, values, self.endpoint.request) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpError(400, f"the body is not valid JSON in UTF-8: {str(error)[:200]}") from None

    def _record(self, status: int, context: RequestContext, request_id: bytes, seconds: float) -> None:
        """Count and log a finished request."""
        metrics = self.service.metrics
        metrics.requests.labels(self.endpoint.path, str(status)).inc()
        self.seconds.observe(seconds)
        if context.is_disconnected:
            metrics.disconnected.inc()
        elif context.error_type is not None:
            metrics.rejected.labels(context.error_type).inc()
        if not self.service.settings.access_log or self.is_probe:
            return
        facts: dict[str, Any] = {
            "id": request_id.decode(),
            "endpoint": f"{self.endpoint.method} {self.endpoint.path}",
            "status": status,
            "ms": round(1000 * seconds, 2),
            "model": context.model_name,
            "texts": context.texts,
            "tokens": context.tokens,
            "wait_ms": round(1000 * context.wait_seconds, 2),
            "compute_ms": round(1000 * context.compute_seconds, 2),
        }
        if context.problems.unreadable:
            facts["unreadable_texts"] = context.problems.unreadable
        if context.is_disconnected or context.error_type is not None:
            facts["error_type"] = context.error_type or "disconnected"
        log.info("request", extra={"facts": facts})


async def read_body(headers: dict[bytes, bytes], receive: Receive, context: RequestContext) -> bytes:
    """The body, within the limits."""
    limit, pending_limit = context.settings.max_bytes, context.settings.max_pending_bytes
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    if content_type.partition(";")[0].strip().lower() != JSON:
        shown = f"Content-Type {content_type[:60]!r} is not JSON" if content_type else "the request has no Content-Type"
        raise HttpError(415, f"{shown}: the body must be JSON. Add  -H 'Content-Type: {JSON}'")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise HttpError(415, "the body is compressed; send it uncompressed")
    length = int(headers.get(b"content-length", b"0"))  # `http_protocol.py` has checked it
    if length > limit:
        raise HttpError(413, f"the body has {length:,} bytes; send at most {limit:,} per request")
    context.count_bytes(OVERHEAD + length, pending_limit)
    parts, total = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        total += len(part)
        if total > limit:
            raise HttpError(413, f"the body has more than {limit:,} bytes; send fewer texts per request")
        if b"content-length" not in headers:
            context.count_bytes(len(part), pending_limit)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def make_response(context: RequestContext, result: object, limit: int | None = None) -> Response:
    """The response of a result, of at most `limit` bytes. A large one is written on another thread, in parts."""
    if isinstance(result, Response):
        return result
    problems, header = context.problems, ""
    if problems.has_any:  # finding a remedy may open a tokenizer
        warnings, without_example = await context.run_tokenizer(lambda: (problems.messages(), problems.messages(False)))
        header = " ".join(without_example)
        if isinstance(result, WarnedResponse):
            result = replace(result, warnings=warnings)
    foreseen = context.response_bytes
    body: bytes | memoryview
    if foreseen > LARGE_RESPONSE:
        body = await context.run_tokenizer(encode_json, result, foreseen)
    else:
        body = orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY)
    context.count_bytes(len(body) - context.response_memory)
    if limit is not None and len(body) > limit:
        raise HttpError(413, f"the response has {len(body):,} bytes; the limit is {limit:,}. Request less at a time.")
    response = Response(body, media_type=JSON)
    if header:
        response.headers[WARNING_HEADER] = header
    return response


def trim_memory(service: Service) -> None:
    """Return the memory of a finished request, on another thread."""
    with contextlib.suppress(RuntimeError):  # the server is stopping
        service.tokenizer_pool.submit(return_freed_memory)


async def watch_disconnect(receive: Receive, context: RequestContext, task: asyncio.Task[Any] | None) -> None:
    """Cancel a request's task when its client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    context.is_disconnected = True
    if task is not None:
        task.cancel()


def error_response(path: str, error: HttpError, context: RequestContext | None = None) -> Response:
    """An error in the endpoint's format: OpenAI's under /v1, else TEI's. Its type is noted in the context."""
    if context is not None:
        context.error_type = error.error_type
    status = error.status
    body: dict[str, Any] = {"error": error.message, "error_type": error.error_type}
    if path.startswith("/v1/"):
        status = 400 if status == 422 else status
        kind = OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        code = OPENAI_CODES.get(status, error.error_type)
        body = {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}
    response = Response(orjson.dumps(body), status, media_type=JSON)
    if error.retry_after is not None:
        response.headers["retry-after"] = str(error.retry_after)
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


async def send_response(send: Send, response: Response) -> None:
    """Send a response; a large one in two messages, which waits until the client has received most of it."""
    is_large = len(response.body) > LARGE_RESPONSE
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": is_large})
    if is_large:
        await send({"type": "http.response.body", "body": b""})
