"""Shared by the tests in Chromium: exported folders, a static server, one browser."""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from albertkit.errors import AlbertkitError
from albertkit.interop.web_export import export_web, runtime_files
from albertkit.interop.web_tokenizer import tokenizer_data
from albertkit.tokenizer import Tokenizer

CACHED = {"Cache-Control": "max-age=600"}
ISOLATION = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
OPEN = """
const { Albert, SearchIndex } = await import(new URL("albertkit.js", location.href).href);
const open = async (folder, options) => (window.opened ??= {})[folder] ??= await Albert.load(folder, options);
const albert = await open("./model");
"""


class StaticServer(ThreadingHTTPServer):
    """What `python -m http.server` is; with `headers`, as a host that can set them."""

    def __init__(self, folder: Path, headers: dict[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(StaticFiles, directory=str(folder)))
        self.headers = headers
        self.url = f"http://127.0.0.1:{self.server_port}"


class StaticFiles(SimpleHTTPRequestHandler):
    server: StaticServer

    def do_GET(self) -> None:
        if self.path != "/favicon.ico":  # which browsers request beside pages without an icon
            super().do_GET()
            return
        self.send_response(204)
        self.end_headers()

    def end_headers(self) -> None:
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *values: Any) -> None:
        pass


@pytest.fixture(scope="session", autouse=True)
def tokenizer_data_once() -> Iterator[None]:
    """Most exports have one of two tokenizers, whose data takes a second or two."""
    made: dict[str, dict[str, Any]] = {}

    def once(tokenizer: Tokenizer) -> dict[str, Any]:
        key = repr(tokenizer.vocabulary)
        if key not in made:
            made[key] = tokenizer_data(tokenizer)
        return made[key]

    with patch("albertkit.interop.web_export.tokenizer_data", once):
        yield


@pytest.fixture(scope="session")
def onnxruntime_web() -> None:
    """Skip without onnxruntime-web."""
    try:
        runtime_files()
    except AlbertkitError:
        pytest.skip("onnxruntime-web is not installed; run  make web")


@pytest.fixture(scope="session")
def site(tmp_path_factory, onnxruntime_web) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="session")
def exported(site) -> Callable[..., str]:
    """Exports a model into the site, once: the name of its folder."""

    def export(name: str, source: Path | str | None = None) -> str:
        if not (site / name).exists():
            export_web(source or name, site / name)
        return name

    return export


@pytest.fixture(scope="module")  # playwright keeps its event loop open, and other tests start theirs
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; make test installs it")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no chromium; install it, for example apt-get install chromium")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield made
        made.close()


@pytest.fixture(scope="session")
def servers(site) -> Iterator[dict[str, StaticServer]]:
    made = {
        "plain": StaticServer(site, {}),
        "isolated": StaticServer(site, ISOLATION),
        "cached": StaticServer(site, CACHED),
    }
    for server in made.values():
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made
    for server in made.values():
        server.shutdown()
        server.server_close()


class Visit:
    """A window with one page, its requests, and what went wrong in it."""

    def __init__(self, browser: Any, url: str, **settings: Any) -> None:
        self.context = browser.new_context(**settings)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.url, self.problems, self.requested = url, [], []
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.problems.append(m.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.context.on("request", lambda request: self.requested.append(request.url))
        self.page.goto(url)

    def ready(self) -> Visit:
        """Wait until the demo page has loaded its model, or has failed."""
        self.page.wait_for_selector("html[data-state]")
        return self

    def run(self, code: str, *arguments: Any) -> Any:
        """The result of JavaScript with `albert`, the model beside the page; `a` has the arguments."""
        return self.page.evaluate(f"async (a) => {{ {OPEN} {code} }}", list(arguments))

    def error(self, code: str, *arguments: Any) -> str:
        """The message of the AlbertError that JavaScript throws."""
        caught = "catch (error) { return error.name === 'AlbertError' ? error.message : `${error.name}!`; }"
        return self.run(f"try {{ {code} }} {caught} return 'nothing was thrown';", *arguments)

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def visit(browser, servers) -> Iterator[Callable[..., Visit]]:
    """Opens a page of the site. It fails if anything was requested from elsewhere."""
    made = []

    def open_page(path: str, server: str = "plain", **settings: Any) -> Visit:
        made.append(Visit(browser, f"{servers[server].url}/{path}", **settings))
        return made[-1]

    yield open_page
    own = tuple(form + server.url for form in ("", "blob:") for server in servers.values())
    for one in made:
        one.close()
        assert [url for url in one.requested if not url.startswith((*own, "data:"))] == []
        assert one.problems == []
