"""Who may call the server: keys on open addresses, host names, origins of web pages, content types, and what pages may
load.
"""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys

import pytest

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError
from albertkit.serve.browser_files import exported_files
from albertkit.serve.schemas import HttpError
from albertkit.serve.serve_settings import ApiKeys, ServeSettings
from tests.serve.conftest import MADE, Served, make

ASKED = {"inputs": "one"}
KEY = {"authorization": "Bearer first"}


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("KEYS", "ADMIN_KEY"):
        monkeypatch.delenv(f"ALBERTKIT_SERVE_{name}", raising=False)


# Keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "", "albert.example"])
def test_an_open_address_needs_keys_or_no_auth(host, monkeypatch):
    with pytest.raises(AlbertkitError, match="reachable from other machines.*--no-auth"):
        ApiKeys.read(ServeSettings(host=host))
    monkeypatch.setenv("ALBERTKIT_SERVE_ADMIN_KEY", "admin")  # it does not protect the other endpoints
    with pytest.raises(AlbertkitError, match="reachable from other machines"):
        ApiKeys.read(ServeSettings(host=host))
    assert ApiKeys.read(ServeSettings(host=host, auth=False)).is_user(b"")
    monkeypatch.setenv("ALBERTKIT_SERVE_KEYS", "first")
    assert not ApiKeys.read(ServeSettings(host=host)).is_user(b"")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_a_local_address_needs_no_keys(host):
    assert ApiKeys.read(ServeSettings(host=host)).is_user(b"")


@pytest.mark.parametrize("variable", ["ALBERTKIT_SERVE_KEYS", "ALBERTKIT_SERVE_ADMIN_KEY"])
@pytest.mark.parametrize("value", ["", " ", ",", "\n"])
def test_a_variable_without_a_key_is_an_error(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(AlbertkitError, match=f"{variable} is set but contains no key"):
        ApiKeys.read(ServeSettings())


def test_files_without_a_key_are_errors(tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.write_text("# none\n\n")
    monkeypatch.setenv("ALBERTKIT_SERVE_KEYS", "first")  # another source does not excuse it
    for setting in ("keys_file", "admin_key_file"):
        with pytest.raises(AlbertkitError, match="empty contains no key"):
            ApiKeys.read(ServeSettings(**{setting: str(empty)}))


def test_keys_and_no_auth_exclude_each_other(monkeypatch):
    monkeypatch.setenv("ALBERTKIT_SERVE_KEYS", "first")
    with pytest.raises(AlbertkitError, match="no-auth.*keys"):
        ApiKeys.read(ServeSettings(auth=False))


def test_the_command_refuses_an_open_address_without_keys(folders):
    command = [sys.executable, "-m", "albertkit.cli.entry_point", "serve", folders["words"], "--host", "0.0.0.0"]
    done = subprocess.run([*map(str, command), "--port", "0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--no-auth" in done.stderr and "Traceback" not in done.stderr, done.stderr


# Hosts and origins -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reachable(folders):
    """A server for other machines."""
    flags = ("--host", "0.0.0.0", "--hosts", "albert.example", "--cors-origins", "https://good.example")
    with Served(f"words={folders['words']}", *flags, "--threads", 1, env={"ALBERTKIT_SERVE_KEYS": "first"}) as made:
        yield made


def test_host_names_are_checked_on_every_address(reachable):
    for name in ("albert.example", "ALBERT.example:80", "127.0.0.1", "localhost", "10.1.2.3:8080", "[fe80::1]:80"):
        assert reachable.get("/health", headers={"host": name}).status_code == 200, name
    for name in ("evil.example", "albert.example.evil.example", "10.1.2.3.evil.example", "1e1", ""):
        answer = reachable.get("/health", headers={"host": name})
        assert answer.status_code == 421 and "--hosts" in answer.json()["error"], name


def test_any_host_only_if_asked_for():
    assert ServeSettings(host="0.0.0.0", hosts="*").allows_host("evil.example")
    for settings in (ServeSettings(), ServeSettings(host="0.0.0.0"), ServeSettings(host="0.0.0.0", hosts="a.example")):
        assert not settings.allows_host("evil.example") and settings.allows_host("localhost")
    assert ServeSettings(hosts="A.example").allows_host("a.example")
    assert ServeSettings(host="Box.example", auth=False).allows_host("box.example")
    assert not ServeSettings().allows_host("10.1.2.3")  # a local server has only its own addresses


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:{port}", "host": "127.0.0.1:{port}"}, 200),
        ({"origin": "https://albert.example", "host": "albert.example"}, 200),
        ({"origin": "https://good.example"}, 200),
        ({"origin": "https://albert.example", "sec-fetch-site": "same-origin"}, 200),  # a proxy changed the host
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "https://evil.example", "sec-fetch-site": "cross-site"}, 403),
        ({"origin": "https://good.example.evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
    ],
)
def test_pages_of_other_origins_are_refused(reachable, headers, status):
    headers = {name: value.format(port=reachable.port) for name, value in headers.items()}
    answer = reachable.post("/embed", ASKED, headers={**KEY, **headers})
    assert answer.status_code == status, answer.text
    assert status == 200 or ("--cors-origins" in answer.json()["error"] and answer.json()["error_type"] == "forbidden")


# Content types ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_json_endpoints_need_the_content_type(server, kind):
    """A web page can send the other types to any server without asking it."""
    for path, body in (("/embed", b'{"inputs": "one"}'), ("/v1/embeddings", b'{"model": "words", "input": "a"}')):
        answer = server.client.post(path, content=body, headers={} if kind is None else {"content-type": kind})
        assert answer.status_code == 415 and "-H 'Content-Type: application/json'" in answer.text, answer.text
        for right in ("application/json", "Application/JSON; charset=utf-8"):
            answer = server.client.post(path, content=body, headers={"content-type": right})
            assert answer.status_code == 200, answer.text


# What pages may load ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/docs", "/page/app.js", "/page/nothing.js", "/nothing", "/health"])
def test_every_response_has_a_content_security_policy(server, path):
    headers = server.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


def test_the_policy_allows_the_style_of_docs(server):
    answer = server.get("/docs")
    (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in answer.headers["content-security-policy"] and "style=" not in answer.text


def test_only_the_worker_may_run_webassembly(server):
    policies = {
        path: server.get(path).headers["content-security-policy"] for path in ("/", "/web/worker.js", "/web/model.js")
    }
    assert [path for path, policy in policies.items() if "'wasm-unsafe-eval'" in policy] == ["/web/worker.js"]
    assert "default-src 'none'" in policies["/web/worker.js"]


def test_the_files_of_a_model_are_those_of_the_export(server, folders):
    name = next(iter(folders))
    about = server.get(f"/browser/{name}/model.json")
    weights = server.get(f"/browser/{name}/weights.bin")
    assert len(weights.content) == about.json()["files"]["weights.bin"]["bytes"]
    assert server.get(f"/browser/{name}/..%2falbertkit.json").status_code == 404
    assert server.get("/browser/nothing/model.json").status_code == 404


def test_a_browser_gets_the_served_model_or_an_error(tmp_path):
    """The files may have been replaced since the server opened them."""
    folder = make(tmp_path / "m", *MADE["words"])
    served = Albert(folder, threads=1)
    make(folder, *MADE["words"], seed=5)
    with pytest.raises(HttpError, match="have changed since the server opened the model.*Reload the server") as found:
        exported_files(served)
    assert found.value.status == 409
    assert "model.json" in exported_files(Albert(folder, threads=1))
