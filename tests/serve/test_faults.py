"""What goes wrong in real life: it keeps serving, says what happened, and loses no answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import threading
from pathlib import Path

import httpx2
import numpy as np
import pytest

from albertkit.albert import Albert
from tests.serve.conftest import MADE, Served, make
from tests.waiting import LIMIT, wait_until

HEAD = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
TEXTS = [f"text number {i} of many, {'with more words ' * (i % 7)}" for i in range(40)]


def raw(server, data: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT)
    made.sendall(data)
    return made


def whole(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            got += part
    return got


class Load:
    """Clients that ask without pause, each answer compared with the engine's."""

    def __init__(self, server, wanted: list[np.ndarray], clients: int = 4) -> None:
        self.server, self.wanted = server, wanted
        self.right, self.wrong, self.lost, self.refused, self.over = 0, 0, 0, 0, threading.Event()
        self.rounds = [0] * clients
        self.threads = [threading.Thread(target=self.ask, args=(n,), daemon=True) for n in range(clients)]

    def ask(self, number: int) -> None:
        with httpx2.Client(base_url=self.server.url, timeout=LIMIT) as client:
            at = number
            while not self.over.is_set():
                self.rounds[number] += 1
                places = [(at * 7 + i) % len(TEXTS) for i in range(1 + at % 5)]
                at += 1
                try:
                    answer = client.post("/embed", json={"inputs": [TEXTS[p] for p in places]})
                except httpx2.HTTPError:
                    self.lost += 1
                    continue
                if answer.status_code != 200:
                    self.refused += 1
                    continue
                fits = [np.allclose(answer.json(), known[places], atol=1e-5) for known in self.wanted]
                self.right += any(fits)
                self.wrong += not any(fits)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *problem):
        self.over.set()
        for thread in self.threads:
            thread.join(LIMIT)

    def settle(self) -> None:
        """Wait until every client has got the answer that was on its way."""
        before = list(self.rounds)
        wait_until(lambda: all(now > then for now, then in zip(self.rounds, before, strict=True)))

    def until(self, right: int) -> None:
        """Wait for some right answers."""
        wait_until(lambda: self.right >= right, lambda: str(vars(self)))


def rss(pid: int) -> int:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()).group(1)) * 1024


@pytest.fixture(scope="module")
def brisk(folders):
    """A server with short timeouts."""
    flags = ("--client-timeout", 1, "--keep-alive", 3, "--max-connections", 60, "--threads", 1, "--no-access-log")
    with Served(f"words={folders['words']}", *flags) as made:
        yield made


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A model that takes its time."""
    shape = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 24}
    return make(tmp_path_factory.mktemp("slow") / "slow", *MADE["words"], **shape)


# Clients ---------------------------------------------------------------------------------------------------------


def test_slow_clients_do_not_hold_the_server(brisk):
    slow = [
        raw(brisk, b"POST /embed HT"),
        raw(brisk, HEAD + b"Content-Length: 100\r\n\r\n{"),
        raw(brisk, HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"),
    ]
    drip = raw(brisk, b"GET / HTTP/1.1\r\n")
    for i in range(8):  # a header now and then does not help
        with contextlib.suppress(OSError):
            drip.sendall(b"X-%d: a\r\n" % i)
        with contextlib.suppress(TimeoutError, OSError):
            drip.settimeout(0.2)
            drip.recv(1, socket.MSG_PEEK)
    drip.settimeout(LIMIT)
    assert brisk.post("/embed", {"inputs": "one"}).status_code == 200
    for connection in slow:
        assert b"408" in whole(connection)[:30]
    assert whole(drip)[:12] in (b"", b"HTTP/1.1 408")  # what it sends after the end may wipe the answer out
    assert {e["reason"] for e in brisk.wait_for("connection closed", count=4)} == {"slow client"}
    assert whole(raw(brisk, b"")) == b""  # and one that says nothing is closed without a word


def test_an_endless_head_and_too_many_connections(brisk):
    with contextlib.suppress(OSError):
        endless = raw(brisk, b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000)
        assert b"431" in whole(endless)[:30]
    many = [raw(brisk, b"") for _ in range(80)]
    # A new connection each: an idle one may have closed.
    assert httpx2.post(f"{brisk.url}/embed", json={"inputs": "one"}, timeout=LIMIT).status_code == 200
    assert {whole(connection) for connection in many} == {b""}  # closed without a word, the oldest at once
    assert httpx2.post(f"{brisk.url}/embed", json={"inputs": "one"}, timeout=LIMIT).status_code == 200


def test_a_client_that_does_not_read(brisk, alberts):
    """Its answers stay within bounds, and it is let go."""
    body = json.dumps({"inputs": ["one"] * 1000}).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(("127.0.0.1", brisk.port))
    with contextlib.suppress(OSError):
        deaf.settimeout(0.5)
        for _ in range(20):
            deaf.sendall(request)
    assert brisk.post("/embed", {"inputs": "one"}).status_code == 200
    wait_until(lambda: "the client does not read" in {e["reason"] for e in brisk.events("connection closed")})
    deaf.close()


def test_a_body_of_100_megabytes(brisk):
    before = rss(brisk.process.pid)
    part = b" " * 2**20
    for length in (b"Content-Length: 104857600\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
        connection = raw(brisk, HEAD + length)
        with contextlib.suppress(OSError):
            for _ in range(100):
                connection.sendall(part if b"Length" in length else b"100000\r\n" + part + b"\r\n")
        assert b"413" in connection.recv(65536)[:30]
        connection.close()
    assert rss(brisk.process.pid) - before < 40 * 2**20
    assert brisk.post("/embed", {"inputs": "one"}).status_code == 200


def test_garbage(brisk):
    for data in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        bytes(range(256)),
    ):
        connection = raw(brisk, data)
        assert b"200 OK" not in whole(connection)[:20]
    for path in (b"/%00", b"/../../etc/passwd", b"/page/../settings.py", b"/page/%2e%2e/settings.py", b"//", b"/\xff"):
        connection = raw(brisk, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert re.match(rb"HTTP/1.1 4\d\d", whole(connection)), path
    assert brisk.get("/health").status_code == 200


@pytest.mark.parametrize(
    "lengths",
    [
        [b"0" * 5000],
        [b"0" * 19],
        [b"9" * 5000],
        [b"+2"],
        [b"-2"],
        [b"2 2"],
        [b"0x2"],
        [b"2", b"2"],
        [b"2", b"3"],
        [b""],
    ],
    ids=lambda lengths: b",".join(lengths)[:8].decode(),
)
@pytest.mark.parametrize("head", [HEAD, b"GET /health HTTP/1.1\r\nHost: localhost\r\n"], ids=["POST", "GET"])
def test_a_length_that_is_no_number_is_a_bad_request(brisk, lengths, head):
    lines = b"".join(b"Content-Length: %s\r\n" % length for length in lengths)
    answer = whole(raw(brisk, head + lines + b"\r\n{}"))
    assert answer.startswith(b"HTTP/1.1 400") and b'"error_type":"invalid"' in answer and b"connection: close" in answer
    assert not any("error" in e for e in map(json.loads, list(brisk.lines)))  # no stack trace


def test_a_disconnect_frees_the_engine(slow):
    """A hundred clients ask for minutes of work and hang up; the next one does not wait for it."""
    with Served(f"slow={slow}", "--threads", 1, "--deadline", 600) as server:
        body = json.dumps({"inputs": ["word " * 60] * 300}).encode()
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        for _ in range(5):
            connections = [raw(server, request) for _ in range(20)]
            wait_until(lambda: held(server) >= 20 * len(body))  # all have been read
            for connection in connections:
                connection.close()
        assert server.post("/embed", {"inputs": "one"}).status_code == 200
        gone = server.wait_for("request", count=101)
        assert sum(e["status"] == 499 for e in gone) == 100
        assert server.get("/health").json()["waiting_seconds"] == 0
        page = server.get("/metrics").text
        assert "albertkit_disconnected_total 100.0" in page and "albertkit_pending_bytes 0.0" in page


def test_many_tiny_requests_at_once(server, alberts):
    """Each on a connection of its own, all at the same time: every one is answered, rightly."""
    count = 300
    wanted = alberts["words"].embed(TEXTS)

    async def one(number: int) -> bool:
        body = json.dumps({"inputs": TEXTS[number % 40]}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        answer = await reader.read()
        writer.close()
        head, _, found = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        return np.allclose(json.loads(found), [wanted[number % 40]], atol=1e-5)

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*[one(i) for i in range(count)])

    assert sum(asyncio.run(all_of_them())) == count


# The server ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_under_load_finishes_started_requests(slow):
    wanted = Albert(slow, threads=1).embed(TEXTS)
    with Served(f"slow={slow}", "--threads", 1) as server:
        body = json.dumps({"inputs": TEXTS * 4}).encode()
        connections = [raw(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(6)]
        for connection in connections:
            got = b""
            while not got.endswith(b"}"):
                got += connection.recv(65536)
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: held(server) >= 6 * len(body))  # all have been read
        server.signal(signal.SIGTERM)
        for connection in connections:
            head, _, answer = whole(connection).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and b"connection: close" in head
            assert np.allclose(json.loads(answer), np.tile(wanted, (4, 1)), atol=1e-5)
        assert server.process.wait(LIMIT) == 0
        assert server.wait_for("stopped")
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{server.url}/health")


def held(server) -> float:
    """Bytes of requests at work."""
    return float(re.search(r"^albertkit_pending_bytes (\S+)$", server.get("/metrics").text, re.M).group(1))


@pytest.mark.slow
def test_reload_under_load_drops_nothing(tmp_path):
    folder = tmp_path / "m"
    make(folder, *MADE["words"], seed=1)
    first = Albert(folder, threads=1).embed(TEXTS)
    with Served(f"m={folder}", "--threads", 1, env={"ALBERTKIT_SERVE_ADMIN_KEY": "k"}) as server:
        admin = {"authorization": "Bearer k"}
        wanted = [first]
        with Load(server, wanted) as load:
            load.until(20)
            for seed in (2, 3):
                make(tmp_path / "new", *MADE["words"], seed=seed)
                wanted.append(Albert(tmp_path / "new", threads=1).embed(TEXTS))
                shutil.rmtree(folder)
                (tmp_path / "new").rename(folder)
                if seed == 2:
                    answer = server.post("/admin/reload", headers=admin)
                    assert answer.json() == {"models": {"m": "reloaded"}, "indexes": {}}
                else:
                    server.signal(signal.SIGHUP)
                    server.wait_for("reloaded", count=2)
                del wanted[:-1]  # from now on only the new model's answers are right, but for those on their way
                load.settle()
                load.wrong = 0
                load.until(load.right + 20)
                assert load.wrong == 0
        assert load.lost == load.refused == 0

        # A file that was damaged is noticed, and the old model stays.
        weights = folder / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        answer = server.post("/admin/reload", headers=admin)
        assert answer.status_code == 409 and "has changed since it was written" in answer.json()["error"]
        server.signal(signal.SIGHUP)
        assert "hash differs" in server.wait_for("reload failed", count=2)[-1]["reason"]
        shutil.rmtree(folder)
        answer = server.post("/admin/reload", headers=admin)
        assert answer.status_code == 409 and "kept the old one" in answer.json()["error"]
        assert np.allclose(server.post("/embed", {"inputs": TEXTS}).json(), wanted[-1], atol=1e-5)
        assert 'albertkit_reloads_total{result="kept"} 3.0' in server.get("/metrics").text


def children(server) -> list[int]:
    return [int(p) for p in Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()]


@pytest.mark.slow
def test_workers_share_a_port_and_survive_being_killed(folders, alberts, tmp_path):
    folder = tmp_path / "words"
    shutil.copytree(folders["words"], folder)
    wanted = [alberts["words"].embed(TEXTS)]
    with Served(f"words={folder}", "--workers", 2, "--threads", 1) as server:
        server.wait_for("listening", count=2)
        with Load(server, wanted, clients=6) as load:
            load.until(30)
            one, other = children(server)
            os.kill(one, signal.SIGKILL)
            died = server.wait_for("worker died")[0]
            assert died["child"] == one and died["cause"] == "signal 9"
            server.wait_for("listening", count=3)
            load.until(load.right + 30)
        assert load.wrong == 0 and load.refused == 0 and load.lost <= 6  # only what the killed worker had in its hands
        assert len(children(server)) == 2 and other in children(server)

        # Numbers are those of all workers, dead ones included, but for what one had answered and not yet counted.
        page = server.get("/metrics").text
        counted = sum(map(float, re.findall(r'^albertkit_requests_total{.*"/embed".*} (\S+)$', page, re.M)))
        assert counted >= load.right - 6

        # A reload reaches all of them.
        make(tmp_path / "new", *MADE["words"], seed=9)
        shutil.rmtree(folder)
        (tmp_path / "new").rename(folder)
        server.signal(signal.SIGHUP)
        server.wait_for("reloaded", count=2)
        new = Albert(folder, threads=1).embed(TEXTS)
        for _ in range(8):  # each on a new connection
            answer = httpx2.post(f"{server.url}/embed", json={"inputs": TEXTS})
            assert np.allclose(answer.json(), new, atol=1e-5)
        os.kill(children(server)[0], signal.SIGKILL)  # a worker that is born later has the new model too
        server.wait_for("listening", count=4)
        for _ in range(8):
            answer = httpx2.post(f"{server.url}/embed", json={"inputs": TEXTS})
            assert np.allclose(answer.json(), new, atol=1e-5)
        server.signal(signal.SIGTERM)
        assert server.process.wait(LIMIT) == 0 and len(server.wait_for("stopped", count=3)) == 3


def test_workers_share_memory(folders):
    """A worker's own memory is a small part of what it uses."""
    with Served(f"words={folders['words']}", "--workers", 2, "--threads", 1) as server:
        server.wait_for("listening", count=2)
        for _ in range(4):
            httpx2.post(f"{server.url}/embed", json={"inputs": TEXTS})
        for pid in children(server):
            sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M))
            own = int(sizes["Private_Dirty"]) + int(sizes["Private_Clean"])
            assert own < 0.6 * int(sizes["Rss"]), sizes


@pytest.mark.slow
def test_workers_end_with_their_parent(folders):
    with Served(f"words={folders['words']}", "--workers", 2, "--threads", 1) as server:
        server.wait_for("listening", count=2)
        own = children(server)
        server.process.kill()
        wait_until(lambda: not any(lives(pid) for pid in own), "the workers live on")


def lives(pid: int) -> bool:
    """Whether a process runs; one that ended and was not collected does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
