"""Which connections a server keeps when there are too many.

In: connections as they open, work, rest and close. Out: whether a new one may stay, and which idle one closes for it.
`http_protocol.py` reports to the table.

A client has at most `client` connections, all clients together `total`. At either limit the oldest idle connection
closes. If none is idle, the new one gets a place in a small room of its own, in which only /health is answered.
"""

from __future__ import annotations

import ipaddress
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

HEALTH_ROOM = 64  # connections beyond the limits
BUSY = b'{"error":"too many connections are open; retry later","error_type":"unavailable"}'
BUSY_HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(BUSY)).encode()),
    (b"connection", b"close"),
    (b"retry-after", b"1"),
]


class IdleClosable(Protocol):
    """A connection that can be closed while it is idle."""

    def close_idle(self) -> None: ...


class ConnectionTable:
    """The open connections of one process."""

    def __init__(self, total: int, client: int) -> None:
        self.total, self.client = total, client
        self.connections: dict[IdleClosable, str] = {}
        """Each connection and its client."""
        self.counts: dict[str, int] = {}
        """Connections of each client."""
        self.idle: dict[IdleClosable, None] = {}
        """Those without a request, the oldest first."""
        self.health_room: dict[IdleClosable, None] = {}

    def add(self, connection: IdleClosable, client: str) -> bool:
        """Add an idle connection; False if it has to stay in the room for health."""
        if self.counts.get(client, 0) >= self.client and not self._evict(client):
            return self._add_for_health(connection)
        if len(self.connections) >= self.total and not self._evict():
            return self._add_for_health(connection)
        self.connections[connection] = client
        self.counts[client] = self.counts.get(client, 0) + 1
        self.idle[connection] = None
        return True

    def mark_busy(self, connection: IdleClosable) -> None:
        self.idle.pop(connection, None)

    def mark_idle(self, connection: IdleClosable) -> None:
        """The response was sent."""
        if connection in self.connections:
            self.idle.pop(connection, None)
            self.idle[connection] = None

    def remove(self, connection: IdleClosable) -> None:
        self.idle.pop(connection, None)
        self.health_room.pop(connection, None)
        client = self.connections.pop(connection, None)
        if client is None:
            return
        self.counts[client] -= 1
        if not self.counts[client]:
            del self.counts[client]

    def _evict(self, client: str | None = None) -> bool:
        """Close the oldest idle connection, of a client or of all; False if none is idle."""
        oldest = next((idle for idle in self.idle if client is None or self.connections[idle] == client), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.close_idle()
        return True

    def _add_for_health(self, connection: IdleClosable) -> bool:
        if len(self.health_room) >= HEALTH_ROOM:
            oldest = next(iter(self.health_room))
            self.remove(oldest)
            oldest.close_idle()
        self.health_room[connection] = None
        return False


def client_of(address: tuple[str, int] | None) -> str:
    """The client of an address: itself, or its network of 64 bits for IPv6, which belongs to one customer."""
    if address is None:
        return ""
    try:
        ip = ipaddress.ip_address(address[0])
    except ValueError:
        return address[0]
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip) >> 64 << 64, 64)))


def health_only(app: ASGIApp) -> ASGIApp:
    """An app that answers only /health; other requests get 503."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/health"):
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 503, "headers": BUSY_HEADERS})
        await send({"type": "http.response.body", "body": BUSY})

    return respond
