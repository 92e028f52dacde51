"""A server through 10,000 hostile requests, in an address space of 1 GiB: it stays small and keeps answering."""

from __future__ import annotations

import json
import re
import resource
import socket
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from albertkit.albert import Albert
from tests.serve.conftest import Served
from tests.waiting import LIMIT, wait_until

REQUESTS, CLIENTS = 10_000, 8
EVERY = 250  # one of so many requests is as large as is allowed; most others are refused before they are computed
LARGE_AT_ONCE = 3
MOST = 400 * 10**6  # bytes of resident memory
GIBIBYTE = 2**30
HEAD = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
ORDINARY = b'{"inputs": "an ordinary request"}'


def words(count: int, start: int) -> str:
    """Words that occur nowhere else, which a tokenizer would keep."""
    return " ".join(f"qzx{i}" for i in range(start, start + count))


def encoded(*requests: tuple[str, dict]) -> list[tuple[str, bytes]]:
    return [(path, json.dumps(body).encode()) for path, body in requests]


ALLOWED = encoded(
    ("/fill", {"texts": "[MASK] " * 250, "k": 1000}),
    ("/fill", {"texts": ["a [MASK]"] * 260, "k": 1000}),
    ("/tokenize", {"inputs": ["a " * 50_000] * 3}),
    ("/tokenize", {"inputs": "猫" * 100_000}),
    ("/embed", {"inputs": ["a"] * 1024}),
    ("/similar", {"texts": ["a"] * 1000}),
    ("/explain", {"text": "a " * 250, "attention": "base64", "vectors": True, "model": "small"}),
    ("/explain", {"text": "a " * 100, "attention": "float", "vectors": True, "model": "small-pretrained"}),
    ("/explain", {"text": "[MASK] " * 20, "k": 1000, "vectors": True}),
    ("/decode", {"ids": [300] * 200_000}),
    *(("/embed", {"inputs": words(1000, 1000 * i), "depth": 3}) for i in range(10)),
)
REFUSED = encoded(
    ("/fill", {"texts": "[MASK] " * 500, "k": 1000}),
    ("/fill", {"texts": ["[MASK]"] * 1024, "k": 1000}),
    ("/fill", {"texts": "[MASK]", "k": 1001}),
    ("/embed", {"inputs": ["a"] * 1025}),
    ("/explain", {"text": "a " * 250, "attention": "float", "vectors": True}),
    ("/explain", {"text": "a " * 5_000}),
    ("/similar", {"texts": ["a"] * 1024, "others": ["b"] * 2000}),
    ("/search", {"query": "a", "text": "A.\n" * 2_000, "k": 1000}),
    ("/decode", {"ids": [10**9]}),
    ("/embed", {"inputs": {"a": [[[[[[]]]]]]}}),
)

REFUSED_LARGE = encoded(
    ("/tokenize", {"inputs": ["a " * 50_000] * 30}),
    ("/tokenize", {"inputs": "\ufdfa" * 20_000}),
    ("/embed", {"inputs": "a" * 100_001}),
    ("/embed", {"inputs": [300] * 200_001}),
)


class Connection:
    """A client in few steps, so that the server gets the processors."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.socket: socket.socket | None = None

    def send(self, path: str, body: bytes) -> socket.socket:
        self.socket = self.socket or socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT)
        self.socket.sendall(HEAD.format(path, len(body)).encode() + body)
        return self.socket

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket = None

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and content of the answer."""
        peer, data = self.send(path, body), bytearray()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += received(peer)
        head = bytes(data[:end]).lower()
        length = int(re.findall(rb"content-length: (\d+)", head)[0])
        while len(data) < end + 4 + length:
            data += received(peer)
        if b"connection: close" in head:
            self.close()
        return int(head[9:12]), bytes(data[end + 4 :])


def received(peer: socket.socket) -> bytes:
    part = peer.recv(2**20)
    assert part, "the server closed the connection"
    return part


class Clients:
    """Clients that share the numbers of requests, each on a connection of its own."""

    def __init__(self, server: Served) -> None:
        self.server, self.lock, self.next = server, threading.Lock(), 0
        self.large = threading.Semaphore(LARGE_AT_ONCE)
        self.answers: Counter[tuple[str, int]] = Counter()
        self.problems: list[str] = []
        self.right = Albert("small", threads=1).embed(["an ordinary request"])

    def run(self) -> None:
        connection = Connection(self.server.port)
        while True:
            with self.lock:
                number = self.next
                self.next += 1
            if number >= REQUESTS or self.problems:
                return
            try:
                self.ask(connection, number)
            except Exception as error:
                self.problems.append(f"request {number}: {error!r}")

    def ask(self, connection: Connection, number: int) -> None:
        group, place = divmod(number, EVERY)
        if place == 0:
            path, body = ALLOWED[group % len(ALLOWED)]
            with self.large:  # asked until it is computed
                wait_until(lambda: self.answer(connection, "large", path, body)[0] == 200)
        elif place == 1:  # a client that does not wait
            path, body = ALLOWED[group % len(ALLOWED)]
            connection.send(path, body)
            connection.close()
        elif place % 10 == 2:
            status, content = self.answer(connection, "ordinary", "/embed", ORDINARY)
            assert status != 200 or np.array_equal(np.array(json.loads(content), np.float32), self.right)
        else:
            requests = REFUSED_LARGE if place % 25 == 3 else REFUSED
            status, content = self.answer(connection, "refused", *requests[(group + number) % len(requests)])
            assert status != 200, content[:200]

    def answer(self, connection: Connection, kind: str, path: str, body: bytes) -> tuple[int, bytes]:
        status, content = connection.post(path, body)
        with self.lock:
            self.answers[kind, status] += 1
        assert status in (200, 400, 413, 422, 429, 503), (path, status, content[:200])
        return status, content


def memory_of(server: Served) -> dict[str, int]:
    """Bytes by name, such as VmHWM for the peak of resident memory."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return {name: 1024 * int(size) for name, size in re.findall(r"^(Vm\w+):\s+(\d+) kB", status, re.M)}


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and prlimit")
def test_memory_stays_bounded_through_10000_hostile_requests():
    with Served("--threads", 1, "--no-access-log") as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (GIBIBYTE, GIBIBYTE))
        clients = Clients(server)
        threads = [threading.Thread(target=clients.run, daemon=True) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not clients.problems, clients.problems[:3]
        assert clients.answers["large", 200] == REQUESTS // EVERY
        assert memory_of(server)["VmHWM"] < MOST
        assert server.get("/health").status_code == 200
