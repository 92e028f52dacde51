"""uvicorn's HTTP protocol with patience: clients that send too slowly, too much, or do not read are not waited for for ever.

In: bytes of a connection. Out: what uvicorn makes of them. Before this file: uvicorn; after it: `run.py`.

uvicorn itself waits without end for the rest of a request, keeps as many headers as come, and holds an answer for as long as its
client does not read it. Here a request must be complete `patience` seconds after its first byte, its head has at most 64 KB, an
answer must move within the same time, and beyond `most` connections a new one is told to come back.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger("albertkit.serve")
HEAD = 65536


def said(status: str, text: str, more: str = "") -> bytes:
    """A whole response, for connections on which nothing else can be said."""
    body = f'{{"error":"{text}","error_type":"connection"}}'
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{more}\r\n"
    return (head + body).encode()


SLOW = said("408 Request Timeout", "the request did not come in time; send it faster, or send less")
BUSY = said("503 Service Unavailable", "too many connections; come back later", "retry-after: 1\r\n")
LONG = said("431 Request Header Fields Too Large", "the head of the request is longer than 64 KB; shorten it")


class RejectedConnections:
    """Connections that were refused because there are too many: one line a second tells of all."""

    def __init__(self) -> None:
        self.count, self.due = 0, 0.0

    def add(self) -> None:
        """One more."""
        self.count += 1
        if time.monotonic() >= self.due:
            log.warning("connections refused", extra={"facts": {"reason": "too many", "count": self.count}})
            self.count, self.due = 0, time.monotonic() + 1


crowd = RejectedConnections()


class TimeoutProtocol(HttpToolsProtocol):
    """One connection. `patience` and `most` are set by `protocol_of`."""

    patience = 20.0
    most = 4096

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._head = 0
        self._in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:  # or an answer waits 40 ms for a sign from the client that its head has come
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > self.most:
            crowd.add()
            transport.write(BUSY)
            transport.close()
            return
        self._arm(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """A client went."""
        self._disarm()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self.transport.is_closing():
            return
        self._head += len(data) if self._in_head else 0
        super().data_received(data)
        if self._in_head and self._head > HEAD:
            self._refuse("head too long", LONG)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._arm(self.patience)

    def on_headers_complete(self) -> None:
        """The head of a request is complete."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._disarm()
        self._in_head, self._head = True, 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.patience, self._give_up)

    def resume_writing(self) -> None:
        """The client has read on."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        if self.flow is not None:
            super().resume_writing()

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """The request is not complete in time."""
        self._timer = None
        if self._head or not self._in_head:
            started = self.cycle is not None and not self._in_head and self.cycle.response_started
            self._refuse("slow client", b"" if started else SLOW)
        elif not self.transport.is_closing():
            self.transport.close()

    def _give_up(self) -> None:
        log.warning("connection closed", extra={"facts": {"reason": "the client does not read"}})
        self.transport.abort()

    def _refuse(self, reason: str, response: bytes) -> None:
        if self.transport.is_closing():
            return
        log.warning("connection closed", extra={"facts": {"reason": reason}})
        self.transport.write(response)
        self.transport.close()


def protocol_of(patience: float, most: int) -> type[TimeoutProtocol]:
    """The protocol with a server's settings."""
    return type("Patient", (TimeoutProtocol,), {"patience": patience, "most": most})
