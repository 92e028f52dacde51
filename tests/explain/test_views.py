"""What people see: the terminal, JSON, the page in a real browser, the picture."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from albertkit.cli import inspect_commands
from albertkit.cli.entry_point import app
from albertkit.errors import AlbertkitError
from albertkit.explain.activations import AttentionMap, rollout
from albertkit.explain.explain_input import METHODS
from albertkit.explain.views import MAX_NUMBERS, pack_map, render_page
from tests.explain.conftest import explain

ODD = 'cat <script>alert("1")</script> & dog </script> oak'


def run(*arguments, text=None):
    done = CliRunner().invoke(app, ["explain", "-m", *map(str, arguments)], input=text)
    assert done.exception is None, (done.output, done.exception)
    return done.output


@pytest.fixture(scope="module")
def found(learnt):
    return explain(learnt, ODD, methods=["occlusion", "gradients"])


def test_the_terminal_view(topics):
    out = run(topics, "cat dog oak", "--method", "occlusion", "--method", "gradients")
    assert re.search(r"^classify: (animal|tree), \d+\.\d% \(log-odds", out) and "layer by layer" in out
    assert len(re.findall(r"^  cat +[+-]\d", out, re.M)) == 2
    assert out == run(topics, "--method", "occlusion", "--method", "gradients", text="cat dog oak\n")


def test_json_holds_what_python_holds(topics, learnt):
    told = json.loads(run(topics, "cat dog oak", "--json", "--target", "tree"))
    assert told == json.loads(json.dumps(explain(learnt, "cat dog oak", target="tree").to_dict()))
    assert told["words"][2] == {
        "part": "text",
        "start": 8,
        "end": 11,
        "text": "oak",
        "values": told["words"][2]["values"],
    }
    assert told["parts"] == {"text": "cat dog oak"} and "attention" not in told["maps"][0]
    whole = json.loads(run(topics, "cat dog oak", "--json", "--attention"))
    assert np.array(whole["maps"][0]["attention"]).sum(-1) == pytest.approx(1, abs=1e-3)
    assert [layer["depth"] for layer in told["layers"]] == [1, 2, 3]


def test_controls_do_not_reach_the_terminal(topics):
    assert "\x1b" not in run(topics, "cat\x1b[2Jdog \x07oak")


def test_the_page_begins_at_the_token_that_is_read(explainers):
    found = explain(explainers["words"], "a b [MASK] c")
    assert found.maps[0].tokens[found.maps[0].reader] == "[MASK]"
    assert pack_map(found.maps[0], MAX_NUMBERS)[0]["from"] == found.maps[0].reader
    assert explain(explainers["pairs"], "a b").maps[0].reader == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["x", "-o", "a.pdf"], "is an .html page"),
    ],
)
def test_errors(topics, arguments, why):
    done = CliRunner().invoke(app, ["explain", "-m", str(topics), *arguments])
    assert isinstance(done.exception, AlbertkitError) and why in str(done.exception)


def test_the_methods_of_the_command_line_are_those_there_are():
    assert tuple(inspect_commands.METHODS) == METHODS


def test_nothing_needs_torch(topics, tmp_path):
    code = f"""
import sys
sys.modules["torch"] = None
from albertkit import Albert
albert = Albert({str(topics)!r})
found = albert.explain("cat dog oak", methods=["occlusion"])
found.to_html({str(tmp_path / "a.html")!r})
try:
    albert.explain("cat dog oak", methods="gradients")
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'albertkit[explain]'" in done.stdout, done.stderr
    assert (tmp_path / "a.html").stat().st_size > 5000


def test_files_are_whole_and_not_replaced_unasked(found, tmp_path):
    path = found.to_html(tmp_path / "a.html")
    with pytest.raises(AlbertkitError, match="exists"):
        found.to_html(path)
    found.to_html(path, overwrite=True)
    assert [one.name for one in tmp_path.iterdir()] == ["a.html"]


def test_large_maps_are_made_smaller_and_it_is_said():
    def of(layers, heads, tokens):
        shares = np.full((layers, heads, tokens, tokens), 1 / tokens, np.float32)
        return pack_map(AttentionMap(0, ("a",) * tokens, shares, rollout(shares[:1])), MAX_NUMBERS)

    (small, no_note), (middle, note), (large, large_note) = of(12, 12, 60), of(12, 12, 256), of(24, 2, 256)
    assert no_note == "" and len(small["heads"]) == 12 and len(small["layers"]) == 12
    assert middle["heads"] == ["mean of all"] and len(middle["layers"]) == 12 and "mean" in note
    assert len(large["layers"]) == 14 and large["layers"][-1] == "24" and "14 of 24 layers" in large_note
    for one in (small, middle, large):
        assert len(json.dumps(one)) < 1_500_000


def test_the_page_holds_no_way_out(found):
    made = render_page(found)
    assert len(made) < 2_000_000 and "http" not in made.replace("http-equiv", "")
    assert made.count("<script") == 2 and "&lt;" in made and "<script>alert" not in made


# In a browser ----------------------------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; make test installs it")
    if CHROMIUM is None:
        pytest.skip("there is no chromium; install it, for example apt-get install chromium")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
def test_the_page_in_a_browser(browser, found, tmp_path, width, scheme):
    from playwright.sync_api import expect

    path = found.to_html(tmp_path / "a.html")
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    wrong, asked = [], []
    page.on("console", lambda said: wrong.append(said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    expect(page.locator(".text").first).to_have_text(ODD)
    expect(page.locator("tbody").nth(1).locator("tr")).to_have_count(3)
    tokens = found.maps[0].tokens
    expect(page.locator(".pieces li")).to_have_count(len(tokens))
    layer, head, token = (page.get_by_role("combobox", name=name) for name in ("layer", "head", "token"))
    expect(head).to_be_disabled()
    layer.focus()
    page.keyboard.press("ArrowDown")  # a keyboard is enough
    expect(head).to_be_enabled()
    head.select_option(index=1)
    token.select_option(index=0)
    shares = found.maps[0].attention[0, 1, 0]
    for place in (0, len(tokens) - 1):
        share = round(100 * round(float(shares[place]) * 255) / 255)
        expect(page.locator(".pieces li small").nth(place)).to_have_text(f"{share} %")
    page.locator("canvas.all").click(position={"x": 3, "y": 3})
    expect(head).to_have_value("0")
    page.locator("summary").click()
    expect(page.locator("details table")).to_be_visible()
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(250, 249, 246)" if scheme == "light" else "rgb(21, 25, 27)")
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")
    page.evaluate(axe.AXE_FILE_PATH.read_text(encoding="utf-8"))
    barriers = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:150]) for one in barriers] == []
    context.close()
    assert wrong == [] and asked == [path.as_uri()]
