"""Idle connections shut nobody out: a cap per client, the oldest idle connection closes first, and health has its own
room.
"""

from __future__ import annotations

import contextlib
import re
import socket

import pytest

from albertkit.serve.connection_limits import ConnectionTable, client_of
from tests.serve.conftest import Served
from tests.waiting import LIMIT

ASKED = b'{"inputs": "one"}'
EMBED = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIMITS = {"total": 40, "client": 20}


@pytest.fixture(scope="module")
def crowded(folders):
    """A server with few connections."""
    flags = ("--max-connections", LIMITS["total"], "--max-client-connections", LIMITS["client"], "--threads", 1)
    with Served(f"words={folders['words']}", *flags) as made:
        yield made


def connect(server, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT, source_address=(address, 0))


def ask(connection: socket.socket, request: bytes) -> bytes:
    """The status line of the whole answer; empty if the server has closed the connection."""
    got, size = b"", None
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(request)
        while (size is None or len(got) < size) and (part := connection.recv(65536)):
            got += part
            head, end, _ = got.partition(b"\r\n\r\n")
            if end:
                length = re.search(rb"content-length: (\d+)", head.lower())
                size = len(head + end) + (int(length[1]) if length else 0)
    return got[:12]


def closed(connection: socket.socket) -> bool:
    """Whether the server has closed it; waits for that."""
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_the_oldest_idle_connection_of_a_client_makes_room(crowded):
    with contextlib.ExitStack() as open_ones:
        mine = [open_ones.enter_context(connect(crowded, "127.0.0.2")) for _ in range(LIMITS["client"])]
        assert ask(mine[0], EMBED + ASKED) == b"HTTP/1.1 200"  # the first one is now the newest
        more = open_ones.enter_context(connect(crowded, "127.0.0.2"))
        assert ask(more, EMBED + ASKED) == b"HTTP/1.1 200"
        assert closed(mine[1]) and ask(mine[0], HEALTH) == b"HTTP/1.1 200" and ask(mine[2], HEALTH) == b"HTTP/1.1 200"


def test_idle_connections_of_many_addresses_shut_nobody_out(crowded):
    with contextlib.ExitStack() as open_ones:
        idle = [open_ones.enter_context(connect(crowded, f"127.0.1.{1 + i % 8}")) for i in range(3 * LIMITS["total"])]
        other = open_ones.enter_context(connect(crowded, "127.0.0.9"))
        assert ask(other, EMBED + ASKED) == b"HTTP/1.1 200"
        assert closed(idle[0])


def test_busy_connections_stay_and_health_has_its_own_room(crowded):
    """Bodies that are on their way keep their connections; others get 503, and health is still answered."""
    with contextlib.ExitStack() as open_ones:
        busy = []
        for i in range(LIMITS["total"]):
            busy.append(open_ones.enter_context(connect(crowded, f"127.0.2.{1 + i % 8}")))
            head = EMBED.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
            assert ask(busy[-1], head) == b"HTTP/1.1 100"  # the server waits for the body
        for _ in range(5):
            probe = open_ones.enter_context(connect(crowded, "127.0.0.9"))
            assert ask(probe, HEALTH) == b"HTTP/1.1 200"
        other = open_ones.enter_context(connect(crowded, "127.0.0.9"))
        assert ask(other, EMBED + ASKED) == b"HTTP/1.1 503"
        for _ in range(200):  # idle connections in the room of health make way too
            open_ones.enter_context(connect(crowded, "127.0.2.1"))
        assert ask(open_ones.enter_context(connect(crowded, "127.0.0.9")), HEALTH) == b"HTTP/1.1 200"
        for connection in busy:
            assert ask(connection, ASKED) == b"HTTP/1.1 200"
    assert crowded.wait_for("connections rejected")


def test_a_client_of_ipv6_is_its_network():
    assert (
        client_of(("2001:db8:1:2:3::1", 1)) == client_of(("2001:db8:1:2:ffff::9", 2)) != client_of(("2001:db8::1", 1))
    )
    assert client_of(("10.0.0.1", 1)) != client_of(("10.0.0.2", 1))
    assert client_of(("::ffff:10.0.0.1", 1)) == client_of(("10.0.0.1", 9))
    assert client_of(None) == ""


def test_the_table_forgets_what_has_closed():
    class Connection:
        def close_idle(self) -> None:
            closed.append(self)

    closed: list[Connection] = []
    table = ConnectionTable(total=3, client=2)
    a, b, c, d = (Connection() for _ in range(4))
    assert table.add(a, "x") and table.add(b, "x") and table.add(c, "x") and closed == [a]  # the client's own
    table.remove(a)  # what the protocol does later
    table.mark_busy(b)
    assert table.add(d, "y") and closed == [a]
    for one in (b, c, d):
        table.remove(one)
        table.remove(one)
    assert not table.connections and not table.idle and not table.counts
