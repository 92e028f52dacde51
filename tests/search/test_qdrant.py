"""What is particular to Qdrant: folders of its client, keys, errors of a server, batches that are not one step."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import sqlite3
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from albertkit.errors import AlbertkitError
from albertkit.search.index import Index, Record
from albertkit.search.store_address import parse_address
from albertkit.search.stores import qdrant_connection
from albertkit.search.stores.qdrant_connection import folder_of
from albertkit.search.stores.qdrant_points import folders_of, point_id, vector_name
from albertkit.search.stores.qdrant_words import query_weights, text_weights, word_index
from tests.conftest import ROOT
from tests.search.test_index import Toy, many

pytest.importorskip("qdrant_client", reason="qdrant-client is not installed; make test installs it")


@pytest.fixture
def index(qdrant_folder):
    with Index.create(qdrant_folder, Toy()) as made:
        yield made


# Addresses and keys -----------------------------------------------------------------------------------------------


def test_a_place_that_begins_with_a_slash_or_a_dot_is_a_folder():
    for place in ("/data/notes", "./notes", "../notes", "C:/notes"):
        assert folder_of(parse_address(f"qdrant://{place}?table=a")) == Path(place)
    for place in ("localhost", "db:6333", "db/prefix", "192.168.0.1:6333", "[::1]:6333"):
        assert folder_of(parse_address(f"qdrant://{place}?https=true")) is None


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("qdrant://localhost?colour=red", "unknown option 'colour' of qdrant://localhost"),
        ("qdrant://localhost?https=yes", "https is 'yes'; choose one of true, false"),
        ("qdrant:///nowhere/at/all?https=true", "has no index"),
        ("qdrant://secret@localhost", r"Qdrant has no users. Pass a key as \?api_key=KEY or in QDRANT_API_KEY"),
        ("qdrant://localhost?apiKey=secret", r"unknown option 'apiKey' of qdrant://localhost\?apiKey=\*\*\*"),
        ("qdrant://localhost:port", "is not an address"),
        ("qdrant://notes.invalid", r"A folder is written as qdrant://./FOLDER"),
    ],
)
def test_a_wrong_address_is_an_error_with_a_remedy(address, says):
    with pytest.raises(AlbertkitError, match=says) as caught:
        Index.open(address, None)
    assert "secret" not in str(caught.value)


def test_an_option_of_a_server_is_an_error_with_a_folder(qdrant_folder):
    with pytest.raises(AlbertkitError, match="unknown option 'https' of qdrant:///"):
        Index.create(qdrant_folder + "&https=true", Toy())


def test_no_message_contains_a_key(monkeypatch):
    address = "qdrant://127.0.0.1:1?api_key=5ecret%2Bkey"
    for text, key in ((address, ""), ("qdrant://127.0.0.1:1", "5ecret+key")):
        monkeypatch.setenv("QDRANT_API_KEY", key)
        with pytest.raises(AlbertkitError, match="cannot be used .*Start the server, or check the host") as caught:
            Index.open(text, None)
        assert "5ecret" not in f"{caught.value} {parse_address(text)!r} {parse_address(text).name}"


def test_a_key_without_encryption_is_a_warning_except_on_this_computer():
    says = r"api_key=\*\*\* sends the key without encryption. Add https=true"
    for place in ("127.0.0.2:1", "localhost.invalid:1", "127.0.0.1.invalid"):
        with pytest.warns(UserWarning, match=says), pytest.raises(AlbertkitError):
            Index.open(f"qdrant://{place}?api_key=5ecret", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qdrant_connection.warnings, "warn", lambda *_, **__: pytest.fail("a warning"))
        for place in ("127.0.0.1:1", "localhost:1/prefix", "[::1]:1"):
            with pytest.raises(AlbertkitError):
                Index.open(f"qdrant://{place}?api_key=5ecret", None)


# What a server can answer -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def answering(status, body, version="1.18.0"):
    """A web server: its root says that it is Qdrant, unless version is empty, and all else has this answer."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers.get("api-key"))
            root = self.path == "/" and version
            data = json.dumps({"title": "qdrant", "version": version}).encode() if root else body
            self.send_response(200 if root else status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"qdrant://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, b"Must provide an API key", r"\(status 401 Unauthorized\). Check the key: api_key in the address, or"),
        (403, b'{"status":{"error":"Forbidden: read-only"}}', r"\(Forbidden: read-only\). Use a key that may do this"),
        (404, b"<html>", r"\(status 404 Not Found\). Check the host, the port and the path"),
        (413, b"", r"A text is too long for the server. Index by lines or paragraphs \(--split\)"),
        (429, b"", "Wait a while, then rerun the command to resume"),
        (500, b'{"status":{"error":"disk is full"}}', r"\(disk is full\). Check the server and its log"),
        (200, b"<html>", "no Qdrant server answered.*Check the host, the port"),
    ],
)
def test_an_error_of_a_server_has_a_remedy(status, body, says):
    with answering(status, body) as (address, _), pytest.raises(AlbertkitError, match=says):
        Index.open(address, None)


def test_an_old_server_and_another_server_are_errors():
    says = "is a server of Qdrant 1.15.4, but 1.16 is needed. Update the server"
    with answering(200, b"", version="1.15.4") as (address, _), pytest.raises(AlbertkitError, match=says):
        Index.open(address, None)
    with answering(200, b"[]", version="") as (address, _), pytest.raises(AlbertkitError, match="no Qdrant server"):
        Index.open(address, None)
    with (
        answering(200, b"") as (address, _),
        pytest.raises(AlbertkitError, match="or omit https=true if it uses no TLS"),
    ):
        Index.open(f"{address}?https=true", None)


def test_the_key_is_sent_from_the_address_or_the_environment(monkeypatch):
    monkeypatch.setenv("QDRANT_API_KEY", "from environment")
    for option, key in (("", "from environment"), ("?api_key=from%20address", "from address")):
        with answering(500, b"") as (address, seen), pytest.raises(AlbertkitError):
            Index.open(address + option, None)
        assert set(seen) == {key}


# Folders ----------------------------------------------------------------------------------------------------------

HOLDER = """
import sys
from tests.search.test_index import Toy
from albertkit.search.index import Index
index = Index.open(sys.argv[1], Toy())
print(len(index), flush=True)
sys.stdin.readline()
"""


def test_a_folder_admits_one_program_and_a_program_that_does_not_close_it_is_quiet(qdrant_folder):
    with Index.create(qdrant_folder, Toy()) as index:
        index.add(many(3))
    line, pipe = [sys.executable, "-c", HOLDER, qdrant_folder], subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT) as holder:
        assert holder.stdout.readline() == b"3\n"
        with pytest.raises(AlbertkitError, match="open in another program.*Wait until it is done, or use a server"):
            Index.open(qdrant_folder, Toy())
        assert holder.communicate(b"\n")[1] == b"" and holder.returncode == 0
    with Index.open(qdrant_folder, Toy()) as index:
        assert len(index) == 3


def test_a_closed_index_says_so_and_others_stay_open(index, qdrant_folder):
    with Index.open(qdrant_folder, Toy()) as other:
        other.add(many(2))
    other.close()
    assert len(index) == 2
    with pytest.raises(AlbertkitError, match="was closed. Open it again"):
        len(other)


def test_a_folder_may_be_open_by_two_paths(index, qdrant_folder, tmp_path):
    (tmp_path / "link").symlink_to(parse_address(qdrant_folder).location)
    with Index.open(f"qdrant://{tmp_path / 'link'}?table=notes", Toy()) as other:
        other.add(many(2))
    assert len(index) == 2


def test_looking_for_an_index_creates_no_folder(tmp_path):
    assert not Index.exists(f"qdrant://{tmp_path / 'typo'}")
    with pytest.raises(AlbertkitError, match="has no index"):
        Index.open(f"qdrant://{tmp_path / 'typo'}", None)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_server_is_refused(tmp_path):
    (tmp_path / "raft_state.json").write_text("{}")
    with pytest.raises(AlbertkitError, match="folder of a Qdrant server. Pass the server's address"):
        Index.create(f"qdrant://{tmp_path}", Toy())


class Code:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def stored(address):
    return next(Path(parse_address(address).location).rglob("storage.sqlite"))


@pytest.mark.parametrize("trick", ["pickle", "view"])
def test_a_folder_with_code_is_refused_and_nothing_runs(qdrant_folder, tmp_path, trick):
    with Index.create(qdrant_folder, Toy()) as index:
        index.add(many(3))
    with contextlib.closing(sqlite3.connect(stored(qdrant_folder))) as sql, sql:
        if trick == "view":  # which could return other rows to the client than to the check
            sql.execute("ALTER TABLE points RENAME TO others")
            sql.execute("CREATE VIEW points AS SELECT * FROM others")
        else:
            sql.execute("INSERT INTO points VALUES ('x', ?)", (pickle.dumps(Code(tmp_path / "ran")),))
    with pytest.raises(AlbertkitError, match="contains something other than points .*so it was not opened"):
        Index.open(qdrant_folder, Toy())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["a/b", "../elsewhere", ".", ""])
def test_a_collection_in_another_folder_is_refused_and_nothing_runs(qdrant_folder, tmp_path, name):
    with Index.create(qdrant_folder, Toy()) as index:
        index.add(many(3))
    file = stored(qdrant_folder)
    meta = file.parents[2] / "meta.json"
    (collection,) = json.loads(meta.read_text())["collections"].values()
    meta.write_text(json.dumps({"collections": {name: collection}, "aliases": {}}))
    with contextlib.closing(sqlite3.connect(file)) as sql, sql:
        sql.execute("INSERT INTO points VALUES ('x', ?)", (pickle.dumps(Code(tmp_path / "ran")),))
    other = file.parents[1] / name
    other.mkdir(parents=True, exist_ok=True)
    file.rename(other / file.name)
    with pytest.raises(AlbertkitError, match=r"contains the collection .*, so it was not opened\. Delete its folder"):
        Index.open(qdrant_folder, Toy())
    assert not (tmp_path / "ran").exists()


def test_the_files_of_an_old_client_are_refused(qdrant_folder):
    with Index.create(qdrant_folder, Toy()):
        pass
    stored(qdrant_folder).with_name("storage.dbm.db").touch()
    with pytest.raises(AlbertkitError, match=r"files of an old client\), so it was not opened"):
        Index.open(qdrant_folder, Toy())


def test_any_damaged_folder_is_opened_or_an_error(qdrant_folder):
    with Index.create(qdrant_folder, Toy()) as index:
        index.add(many(3))
    rng, place = random.Random(0), Path(parse_address(qdrant_folder).location)
    for path in (stored(qdrant_folder), place / "meta.json"):
        whole = path.read_bytes()
        for _ in range(30):
            damaged = bytearray(whole)
            for _ in range(3):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            path.write_bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])
            with contextlib.suppress(AlbertkitError), Index.open(qdrant_folder, Toy()) as index:
                index.search("w1")
        path.write_bytes(whole)
    with Index.open(qdrant_folder, Toy()) as index:
        assert len(index) == 3


def test_a_point_that_the_client_cannot_compare_is_an_error(qdrant_folder):
    with Index.create(qdrant_folder, Toy()) as index:
        index.add([Record("1", "tea and cake")])
    with contextlib.closing(sqlite3.connect(stored(qdrant_folder))) as sql, sql:
        ((data,),) = sql.execute("SELECT point FROM points").fetchall()
        point = pickle.loads(data)
        point.vector["words"].indices.reverse()
        sql.execute("UPDATE points SET point = ?", (pickle.dumps(point),))
    with (
        Index.open(qdrant_folder, Toy()) as index,
        pytest.raises(AlbertkitError, match="Check its folder and its disk"),
    ):
        index.search("tea", mode="keyword")


# Batches, changes of others, words --------------------------------------------------------------------------------


def test_a_batch_that_fails_in_the_middle_loses_nothing_on_a_rerun(index, monkeypatch):
    monkeypatch.setattr("albertkit.search.stores.qdrant_collection.REQUEST_BYTES", 1)  # one text per request
    upsert, calls = index._collection.client.upsert, []

    def fail(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 4:
            raise OSError("no space left on device")
        return upsert(*arguments, **options)

    monkeypatch.setattr(index._collection.client, "upsert", fail)
    with pytest.raises(AlbertkitError, match="no space left on device.*then rerun the command to resume"):
        index.add(many(10))
    assert len(index) == 3
    assert index.add(many(10)) == 7 and index.add(many(10)) == 0 and len(index) == 10


def test_a_text_that_is_deleted_during_a_search_is_no_hit(index, qdrant_folder):
    index.add(many(20))
    nearest = index._nearest

    def delete_first(*arguments):
        found = nearest(*arguments)
        index.delete(["r1"])
        return found

    index._nearest = delete_first
    assert "r1" not in {hit.id for hit in index.search("w1", 20, min_score=-1)}


def test_a_model_of_any_name_has_an_index(qdrant_folder):
    for name in ("words", "", "a/b: 模型", "x" * 300):
        toy = Toy(name=name or "plain")
        with Index.create(qdrant_folder, toy, overwrite=True) as index:
            index.add(many(3))
            assert index.search("w1", 1, min_score=-1)
    assert vector_name("f6912c51b4acdb0e-int8-mean-depth6-512") == "f6912c51b4acdb0e-int8-mean-depth6-512"


def test_ids_of_points_and_numbers_of_words_never_change():
    """Else a rerun would store each text twice, or find nothing."""
    assert point_id("notes.txt:1") == "7d25a2ab-4f46-5ed8-be8c-be354429e4ea"
    assert word_index("北 京") == 154339294
    assert set(query_weights("北京 Café")) == {word_index("北 京"), word_index("cafe")}
    assert set(text_weights("北京, café")) == {word_index(word) for word in ("北", "京", "北 京", "cafe")}
    assert text_weights("?!") == {}


def test_a_file_is_in_all_its_folders():
    assert folders_of("/a/b/c.txt") == ["", "/a", "/a/b"] and folders_of("c.txt") == []
