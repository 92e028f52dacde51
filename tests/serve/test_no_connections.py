"""The server opens no connections, as the NetworkPolicy of deploy/ requires."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tests.serve.conftest import Served

HOOK = """
import os, sys
def note(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        with open(os.environ["CONNECTIONS"], "a") as file:
            file.write(f"{event} {arguments}\\n")
sys.addaudithook(note)
"""


@pytest.fixture
def watched(tmp_path):
    """(variables that make Python note connections, the file of notes)."""
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    notes = tmp_path / "connections.txt"
    notes.touch()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "CONNECTIONS": str(notes)}, notes


def test_the_server_opens_no_connection(watched, folders):
    variables, notes = watched
    with Served(f"words={folders['words']}", env=variables) as server:
        for _ in range(2):
            assert server.post("/v1/embeddings", {"input": "a text", "model": "words"}).status_code == 200
        assert server.get("/").status_code == 200 and server.get("/metrics").status_code == 200
    own = ("socket.getaddrinfo ('127.0.0.1',", "socket.getaddrinfo (b'127.0.0.1',")  # where it listens
    assert [line for line in notes.read_text().splitlines() if not line.startswith(own)] == []


def test_the_watch_sees_a_connection(watched):
    variables, notes = watched
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}))"
        subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, check=True)
    assert "socket.connect" in notes.read_text()
