"""The files of the page: every sentence in both languages, nothing inline, nothing from elsewhere, nothing large."""

from __future__ import annotations

import json
import re
from pathlib import Path

from starlette.applications import Starlette
from starlette.testclient import TestClient

from albertkit.input_warnings import InputProblems
from albertkit.interop.web_export import WEB
from albertkit.serve.browser_files import script_routes

SAME = ("language", "code.python", "code.curl", "depth.of")  # not in Chinese signs
TABS = ("compare", "search", "fill", "classify", "tag", "answer", "explain", "depth")
MADE = {f"{tab}.{part}" for tab in TABS for part in ("tab", "title", "lead", "run")} | {
    *("search.lines", "search.paragraphs", "code.python", "code.curl", "code.cli")
}  # keys that are put together
PAGE = Path(__file__).parents[2] / "src" / "albertkit" / "serve" / "page"


def words() -> dict[str, list[str]]:
    text = (PAGE / "messages.js").read_text(encoding="utf-8")
    table = text[text.index("MESSAGES = {") + 11 : text.index("\n};") + 2]
    return json.loads(re.sub(r",(\s*[\]}])", r"\1", table))


def test_both_languages_say_everything():
    table = words()
    source = "".join(file.read_text(encoding="utf-8") for file in PAGE.iterdir() if file.name != "messages.js")
    for key, said in table.items():
        assert len(said) == 2 and all(said), key
        english, chinese = ({*re.findall(r"\{\w+\}", one)} for one in said)
        assert english == chinese, key
        assert re.search(r"[\u4e00-\u9fff]", said[1]) or key in SAME, key
        assert f'"{key}"' in source or key in MADE, f"nobody says {key}"
    for key in re.findall(r"""(?:\bt\(|"data-t(?:-label)?": |data-t(?:-label)?=)"([a-z.]+)\"""", source):
        assert key in table, key


def test_nothing_is_inline_and_nothing_is_large(server):
    answer = server.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*src=)|<style| style=|\son\w+=|https?://", answer.text)
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8")
        assert text.count("\n") <= 400, file
        assert not re.search(r"innerHTML|\beval\b|@import|\burl\(", text), file
        assert not set(re.findall(r"https?://[^\s\"']+", text)) - {"http://www.w3.org/2000/svg"}, file
        assert server.get(f"/page/{file.name}").status_code == 200


def test_the_server_has_no_demo_page_and_no_service_worker():
    """The worker would keep files in the browser beyond the next upgrade of the server."""
    client = TestClient(Starlette(routes=script_routes()))
    found = {path.name: client.get(f"/web/{path.name}").status_code for path in WEB.iterdir()}
    missing = {name for name, status in found.items() if status != 200}
    assert missing == {"index.html", "demo.js", "demo.css", "service-worker.js"}
    assert {found[name] for name in missing} == {404}


def test_the_page_knows_the_warning_of_unreadable_texts_from_others():
    found = InputProblems(1, 2, "我", 1.0, truncated=1, limit=8, blank=1, is_untrained_depth=True)
    unreadable, *others = found.messages()
    phrase = re.search(r'x-albertkit-warning"\)\?\.includes\("([^"]+)"', (PAGE / "api.js").read_text())[1]
    assert phrase in unreadable and len(others) == 3 and not any(phrase in message for message in others)
