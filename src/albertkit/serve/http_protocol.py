"""uvicorn's HTTP protocol with timeouts and limits for slow or malicious clients.

A request must be complete `timeout` seconds after its first byte. Its head has at most 64 KB. A response must make
progress within the same time. `connection_limits.py` decides which connections stay. `server.py` uses it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from albertkit.serve.connection_limits import ConnectionTable, client_of, health_only
from albertkit.serve.serve_settings import ServeSettings

log = logging.getLogger("albertkit.serve")
MAX_HEAD = 65536
CONTENT_LENGTH = re.compile(rb"[0-9]{1,18}")  # more digits than any length, and int() reads at most 4,300


def raw_response(status: str, text: str, error_type: str = "connection") -> bytes:
    """A complete response for a connection that is closed after it."""
    body = f'{{"error":"{text}","error_type":"{error_type}"}}'
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\nconnection: close\r\n\r\n{body}".encode()


TIMEOUT = raw_response("408 Request Timeout", "the request was not complete in time; send it faster, or send less")
BAD_REQUEST = raw_response("400 Bad Request", "the request is not valid HTTP/1.1; correct it", error_type="invalid")
TOO_LONG = raw_response("431 Request Header Fields Too Large", "the head has over 64 KB; shorten it")


class TimeoutProtocol(HttpToolsProtocol):
    """One connection. `make_protocol` sets the limits."""

    timeout = 20.0
    table = ConnectionTable(4096, 1024)
    next_log = 0.0  # rejected connections are logged at most once per second

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._is_in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:  # else a response waits 40 ms for the client's acknowledgement of its head
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        has_place = self.table.add(self, client_of(self.client))
        if not has_place:
            self.app = health_only(self.app)
            if time.monotonic() >= TimeoutProtocol.next_log:
                TimeoutProtocol.next_log = time.monotonic() + 1
                log.warning("connections rejected", extra={"facts": {"reason": "too many"}})
        self._start_timer(self.timeout_keep_alive if has_place else self.timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.remove(self)
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._head_bytes += len(data) if self._is_in_head else 0
        super().data_received(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD:
            self._close("head too long", TOO_LONG)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_timer(self.timeout)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-length" and not CONTENT_LENGTH.fullmatch(value):
            raise ValueError("Content-Length is not a number of bytes")  # the parser's caller answers with 400
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not valid HTTP, in the server's format."""
        self.transport.write(BAD_REQUEST)
        self.transport.close()

    def on_headers_complete(self) -> None:
        self.table.mark_busy(self)
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._is_in_head, self._head_bytes = True, 0
        super().on_message_complete()
        self._update_table()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_table()

    def _update_table(self) -> None:
        """The connection is idle once its requests have arrived and are answered."""
        if self._is_in_head and self.cycle.response_complete and not self.pipeline:
            self.table.mark_idle(self)

    def close_idle(self) -> None:
        """Make room for another connection."""
        self._stop_timer()
        self.transport.close()

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.timeout, self._abort)

    def resume_writing(self) -> None:
        """The client has read more."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self.flow is not None:
            super().resume_writing()

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._request_timer = self.loop.call_later(seconds, self._expire)

    def _stop_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _expire(self) -> None:
        """The request is not complete in time, or the connection was idle."""
        self._request_timer = None
        if self._head_bytes or not self._is_in_head:
            has_response = self.cycle is not None and not self._is_in_head and self.cycle.response_started
            self._close("slow client", b"" if has_response else TIMEOUT)
        elif not self.transport.is_closing():
            self.transport.close()

    def _abort(self) -> None:
        log.warning("connection closed", extra={"facts": {"reason": "the client does not read"}})
        self.transport.abort()

    def _close(self, reason: str, response: bytes) -> None:
        if self.transport.is_closing():
            return
        log.warning("connection closed", extra={"facts": {"reason": reason}})
        self.transport.write(response)
        self.transport.close()


def make_protocol(settings: ServeSettings) -> type[TimeoutProtocol]:
    table = ConnectionTable(settings.max_connections, settings.max_client_connections)
    return type("LimitedProtocol", (TimeoutProtocol,), {"timeout": settings.client_timeout, "table": table})
