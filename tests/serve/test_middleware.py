"""The door: keys, names, origins, limits, what is logged and counted, and settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from openai import AuthenticationError, OpenAI

from albertkit.errors import AlbertkitError
from albertkit.serve.serve_settings import ApiKeys, ServeSettings, hash_key
from albertkit.serve.server import bind
from tests.serve.conftest import Served

KEY = {"authorization": "Bearer second"}
SECRET = "a text nobody else may read"


@pytest.fixture(scope="module")
def guarded(folders, tmp_path_factory):
    """Settings from flags, from the environment and from files."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("# users\nsecond\n")
    env = {
        "ALBERTKIT_SERVE_MODELS": f"words={folders['words']}",
        "ALBERTKIT_SERVE_KEYS": "first, other",
        "ALBERTKIT_SERVE_ADMIN_KEY": "admin",
        "ALBERTKIT_SERVE_MAX_TEXTS": "5",
        "ALBERTKIT_SERVE_ACCESS_LOG": "1",
    }
    flags = (
        "--keys-file",
        keys,
        "--max-bytes",
        5000,
        "--max-tokens",
        100,
        "--max-response-bytes",
        20_000,
        "--max-pending-bytes",
        30_000,
        "--threads",
        1,
    )
    with Served(*flags, "--cors-origins", "https://good.example", "--no-page", env=env) as made:
        yield made


def test_keys(guarded):
    asked = {"inputs": "one"}
    for key in ("first", "other", "second", "admin"):
        assert guarded.post("/embed", asked, headers={"authorization": f"Bearer {key}"}).status_code == 200
    for wrong in ("", "Bearer", "Bearer fir", "Bearer firstt", "Basic first", "first", "Bearer first second"):
        answer = guarded.post("/embed", asked, headers={"authorization": wrong})
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer", wrong
    assert guarded.post("/embed", asked).json()["error_type"] == "key"
    assert guarded.get("/metrics").status_code == 401 and guarded.get("/v1/models").status_code == 401
    assert guarded.get("/browser/words/model.json").status_code == 401
    for path in ("/health", "/health/live", "/health/ready", "/openapi.json", "/docs"):
        assert guarded.get(path).status_code == 200
    with pytest.raises(AuthenticationError):
        OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong").embeddings.create(model="words", input="a")
    assert OpenAI(base_url=f"{guarded.url}/v1", api_key="first").models.list().data[0].id == "words"
    assert guarded.get("/", headers=KEY).status_code == 405  # no page was wanted


def test_only_the_admin_reloads(guarded, server):
    assert guarded.post("/admin/reload", headers=KEY).status_code == 401
    answer = guarded.post("/admin/reload", headers={"authorization": "Bearer admin"})
    assert answer.json() == {"models": {"words": "same"}, "indexes": {}}
    assert server.post("/admin/reload").status_code == 403  # it has no admin key


def test_keys_are_compared_as_a_whole(monkeypatch, tmp_path):
    made = ApiKeys((hash_key("a"), hash_key("b")), hash_key("c"))
    assert (
        made.is_user(b"Bearer a")
        and made.is_user(b"bearer  b ")
        and made.is_user(b"Bearer c")
        and not made.is_user(b"Bearer ")
    )
    assert made.is_admin(b"Bearer c") and not made.is_admin(b"Bearer a") and not ApiKeys().is_admin(b"Bearer ")
    assert ApiKeys().is_user(b"")
    (tmp_path / "empty").write_text("# none\n")
    with pytest.raises(AlbertkitError, match="contains no key"):
        ApiKeys.read(ServeSettings(keys_file=str(tmp_path / "empty")))
    with pytest.raises(AlbertkitError, match="cannot be read"):
        ApiKeys.read(ServeSettings(keys_file=str(tmp_path / "missing")))


def test_names_and_origins(server, guarded):
    for name in ("127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:80"):
        assert server.get("/health", headers={"host": name}).status_code == 200
    for name in ("evil.example", "127.0.0.1.evil.example", ""):
        answer = server.get("/health", headers={"host": name})
        assert answer.status_code == 421 and "--hosts" in answer.json()["error"]
    asked = {"origin": "https://good.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in server.client.options("/embed", headers=asked).headers
    assert "access-control-allow-origin" not in server.get("/health", headers=asked).headers
    answer = guarded.client.options("/embed", headers=asked)
    assert answer.headers["access-control-allow-origin"] == "https://good.example"
    bad = {**asked, "origin": "https://bad.example"}
    assert "access-control-allow-origin" not in guarded.client.options("/embed", headers=bad).headers


def test_limits(guarded):
    def said(path, body, **more):
        answer = guarded.post(path, body, headers={**KEY, **more})
        return answer.status_code, answer.json()

    assert said("/embed", {"inputs": ["a"] * 6})[0] == 413
    assert "at most 5 per request" in said("/embed", {"inputs": ["a"] * 6})[1]["error"]
    assert said("/similar", {"texts": ["a"] * 3, "others": ["a"] * 3})[0] == 413
    assert "at most 100 per request" in said("/embed", {"inputs": "word " * 120})[1]["error"]
    assert "5,000" in said("/embed", {"inputs": "x" * 5000})[1]["error"]
    assert said("/v1/embeddings", {"input": ["a"] * 6, "model": "words"})[1]["error"]["type"] == "invalid_request_error"
    parts = (b"x" * 1000 for _ in range(9))  # without a length
    answer = guarded.client.post("/embed", content=parts, headers={**KEY, "content-type": "application/json"})
    assert answer.status_code == 413
    answer = guarded.client.post("/embed", content=b"inputs=one", headers={**KEY, "content-type": "text/plain"})
    assert answer.status_code == 415 and "application/json" in answer.json()["error"]
    assert said("/embed", {"inputs": "a"}, **{"content-encoding": "gzip"})[0] == 415


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 4000, 422),
        (b'{"inputs": "\xff"}', 400),
        (b'{"inputs": "\xed\xa0\x80"}', 400),
        (b'{"inputs": "\\ud800"}', 400),
        (b'{"inputs": "\\u0000"}', 200),
        (b'{"inputs": NaN}', 400),
        (b'{"inputs": 1e999}', 422),
        (b'{"inputs": "a", "dimensions": 1e999}', 422),
        (b"null", 422),
        (b'{"inputs": {}}', 422),
        (b'{"inputs": [[[1]]]}', 422),
        (b'{"inputs": [123456789012345678901234567890]}', 422),
        (b'{"inputs": [true]}', 422),
    ],
)
def test_bodies_that_are_no_requests(guarded, body, status):
    answer = guarded.client.post("/embed", content=body, headers={**KEY, "content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert status == 200 or set(answer.json()) == {"error", "error_type"}


def metric(server, name, **headers) -> float:
    page = server.get("/metrics", headers=headers).text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.M))


def test_logs_hold_no_text(guarded):
    for path, body in (
        ("/embed", {"inputs": SECRET}),
        ("/embed", {"inputs": [SECRET] * 9}),
        ("/fill", {"texts": SECRET}),
        ("/similar", {"texts": SECRET}),
        (f"/{SECRET}", {}),
        ("/embed?text=" + SECRET, {"inputs": "one"}),
    ):
        guarded.post(path, body, headers=KEY)
    guarded.client.post("/embed", content=f'{{"inputs": {SECRET}'.encode(), headers=KEY)
    answer = guarded.post("/embed", {"inputs": "one"}, headers={**KEY, "x-request-id": "my-id.1"})
    assert answer.headers["x-request-id"] == "my-id.1"
    odd = guarded.post("/embed", {"inputs": "one"}, headers={**KEY, "x-request-id": SECRET})
    assert re.fullmatch("[0-9a-f]{8}-[0-9a-f]+", odd.headers["x-request-id"])
    for _ in range(100):
        if any(e.get("id") == odd.headers["x-request-id"] for e in guarded.events("request")):
            break
    logged = "".join(guarded.lines)
    assert SECRET not in logged and "nobody" not in logged and "Bearer" not in logged and "second" not in logged
    mine = next(e for e in guarded.events("request") if e.get("id") == "my-id.1")
    assert mine["endpoint"] == "POST /embed" and mine["status"] == 200 and mine["texts"] == 1 and mine["tokens"] == 3
    assert all(json.loads(line) for line in guarded.lines)


def test_metrics(server):
    before = metric(server, "albertkit_tokens_total")
    server.post("/embed", {"inputs": ["one", "one two"]})
    server.post("/embed", {"inputs": 3})
    assert metric(server, "albertkit_tokens_total") == before + 7
    assert metric(server, "albertkit_rejected_total") >= 1 and metric(server, "albertkit_waiting_seconds") == 0
    assert metric(server, "albertkit_pending_bytes") == 0 and metric(server, "albertkit_batch_texts_count") > 0


# Settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"port": 70000}, "port=70000"),
        ({"workers": 0}, "workers=0"),
        ({"deadline": -1.0}, "deadline=-1"),
        ({"bits": 3}, "bits=3"),
        ({"threads": 0}, "threads=0"),
        ({"workers": 2, "threads": 2}, "threads=2"),
        ({"max_pending_bytes": 10}, "below max_bytes"),
    ],
)
def test_wrong_settings(given, message):
    with pytest.raises(AlbertkitError, match=message):
        ServeSettings(**given)


def run(*arguments):
    command = [sys.executable, "-m", "albertkit.cli.entry_point", "serve", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_errors_at_the_start_are_one_sentence(folders, server, tmp_path):
    for arguments, message in (
        ((tmp_path / "nothing",), "nothing"),
        ((folders["words"], "--port", server.port), "cannot listen on"),
        ((folders["words"], "--port", 0, "--index", tmp_path / "none.idx"), "is not a file"),
    ):
        done = run(*arguments)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr, done.stderr
    listeners = bind(ServeSettings(port=0, workers=3))
    assert len({listener.getsockname()[1] for listener in listeners}) == 1
    for listener in listeners:
        listener.close()
    with pytest.raises(AlbertkitError, match=r"cannot listen on 256\.1\.1\.1:8080"):
        bind(ServeSettings(host="256.1.1.1"))


def test_no_torch_in_the_server():
    code = (
        "import sys; from albertkit.serve import app, http_protocol, server\n"
        "print([m for m in ('torch', 'transformers', 'sentencepiece', 'sklearn', 'pydantic') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
