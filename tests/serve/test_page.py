"""The page in a real browser: every feature is clicked, on the built-in models and on small fine-tuned ones."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError
from albertkit.interop.web_export import runtime_files
from tests.serve.conftest import Served
from tests.serve.test_page_files import TABS, words
from tests.train import test_finetune as lessons

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; make test installs it")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium; install it, for example apt-get install chromium"
)
SHIFTS = """
window.shifted = 0;
const seen = (list) => { for (const one of list.getEntries()) if (!one.hadRecentInput) window.shifted += one.value; };
new PerformanceObserver(seen).observe({ type: "layout-shift", buffered: true });
"""
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 760}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with models that were fine-tuned on a few hundred made-up sentences about animals and trees."""
    place = tmp_path_factory.mktemp("tuned")
    start = lessons.start.__wrapped__(tmp_path_factory)
    options = lessons.FinetuneSettings(
        epochs=4, batch_size=16, optimizer="adamw", learning_rate=5e-3, max_length=40, device="cpu"
    )
    for name, task, examples in (("topics", "classify", lessons.texts), ("names", "tag", lessons.tagged), ("reader", "answer", lessons.questions)):  # fmt: skip
        lessons.tune.finetune_examples(task, examples(160), examples(40, 9), place / name, start, options)
    return place


@pytest.fixture(scope="module")
def site(models):
    folders = [str(models / name) for name in ("topics", "names", "reader")]
    with Served("small", "small-pretrained", *folders, "--threads", 1) as made:
        yield made


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        made = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield made
        made.close()


class Visit:
    """A page in a window of its own, and what went wrong in it."""

    def __init__(self, browser, url, viewport=DESK, theme="light", locale="en-US", tab="", **settings) -> None:
        settings = {"viewport": viewport, "color_scheme": theme, "locale": locale, **settings}
        self.context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **settings)
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.url, self.wrong, self.asked = url, [], []
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.wrong.append(said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.add_init_script(SHIFTS)
        self.page.goto(f"{url}/#{tab}")

    def open(self, tab):
        """Go to a tool and wait until its first example is done."""
        self.page.click(f"#tab-{tab}")
        return self.done(tab)

    def done(self, tab):
        panel = self.page.locator(f"#panel-{tab}")
        panel.locator(".result[aria-busy=false] > *").first.wait_for()
        return panel

    def run(self, tab):
        """Press the tool's button, and wait for the answer."""
        panel = self.page.locator(f"#panel-{tab}")
        panel.locator(".primary").click()
        playwright.expect(panel.locator(".result")).to_have_attribute("aria-busy", "false")
        return panel

    def program(self, panel, form) -> str:
        panel.locator(f"[data-form={form}]").click()
        return panel.locator(".code pre").inner_text()

    def close(self) -> None:
        self.context.close()
        local = (f"{self.url}/", f"blob:{self.url}/")
        assert [url for url in self.asked if not url.startswith(local)] == []
        assert self.wrong == []


@pytest.fixture
def visit(browser, site):
    made = []

    def go(**settings) -> Visit:
        made.append(Visit(browser, site.url, **settings))
        return made[-1]

    yield go
    for one in made:
        one.close()


# Tools -----------------------------------------------------------------------------------------------------------


def test_a_banner_says_that_the_model_cannot_read_the_text(visit):
    one = visit()
    panel = one.done("compare")
    banner = panel.locator(".unreadable")
    playwright.expect(banner).to_be_hidden()
    panel.locator("textarea").fill("我想退货\n今天天气很好")
    one.run("compare")
    playwright.expect(banner).to_be_visible()
    playwright.expect(banner).to_contain_text("cannot read")
    panel.locator("textarea").fill("a cat\na dog")
    one.run("compare")
    playwright.expect(banner).to_be_hidden()


@pytest.mark.slow
def test_run_in_this_browser_sends_no_request(visit):
    try:
        runtime_files()
    except AlbertkitError:
        pytest.skip("onnxruntime-web is not installed; run  make web")
    one = visit()
    panel = one.done("compare")
    texts = ["a man plays the guitar", "someone makes music", "it rains"]
    one.page.set_default_timeout(60_000)
    one.page.check("#local")
    status = one.page.locator("#local-status")
    playwright.expect(status).to_contain_text(
        "Runs in this browser: small, small-pretrained, topics, names.", timeout=60_000
    )
    one.run("compare")
    one.asked.clear()
    panel.locator("textarea").fill("\n".join(texts))
    one.run("compare")
    cells = [float(cell) for cell in panel.locator(".heat tbody td").all_inner_texts()]
    assert cells == pytest.approx(Albert(threads=1).similarity(texts).ravel().tolist(), abs=0.02)
    search = one.open("search")
    assert search.locator(".hits li").count() > 0
    classify = one.open("classify")
    classify.locator("textarea").first.fill("the fox and the bear")
    one.run("classify")
    assert "animal" in classify.locator(".result").inner_text()
    explain = one.open("explain")
    one.run("explain")
    assert explain.locator("table.layers tbody tr").count() == 12
    assert explain.locator(".small-map").count() == 12 * Albert("small-pretrained").config.num_attention_heads
    one.open("tag")
    one.page.click("#tab-answer")
    panel = one.page.locator("#panel-answer")
    panel.locator(".primary").click()
    playwright.expect(panel.locator(".status")).to_contain_text("needs the server")
    assert [url for url in one.asked if not url.endswith("/page/icon.svg")] == []  # Chromium's own, after a new address
    one.page.uncheck("#local")
    one.page.click("#tab-compare")
    one.run("compare")
    assert one.asked != []


def test_compare(visit):
    one = visit()
    panel = one.done("compare")
    texts = ["a man plays the guitar", "someone makes music", 'it\'s raining: "again" & <b>again</b>']
    panel.locator("textarea").fill("\n".join(texts))
    one.run("compare")
    wanted = Albert(threads=1).similarity(texts)
    playwright.expect(panel.locator(".heat tbody td")).to_have_count(9)
    cells = panel.locator(".heat tbody td").all_inner_texts()
    assert [float(cell) for cell in cells] == pytest.approx(wanted.ravel().tolist(), abs=0.006)
    assert panel.locator(".heat tbody th").nth(2).inner_text().endswith(texts[2])
    panel.locator(".heat tbody td").nth(2).hover()
    assert texts[2] in panel.locator(".readout").inner_text()
    with one.page.expect_download() as download:
        panel.locator("text=Download the vectors").click()
    vectors = json.loads(Path(download.value.path()).read_text())
    assert len(vectors) == 3 and len(vectors[0]["vector"]) == 384
    panel.locator("input[type=range]").fill("3")  # of 3, 6, 9 and 12; it asks again by itself
    playwright.expect(panel.locator(".said")).to_have_text("all 12")
    playwright.expect(panel.locator(".code code")).to_contain_text("depth=12")
    wanted = Albert(threads=1).similarity(texts, depth=12)
    playwright.expect(panel.locator(".heat tbody td").nth(1)).to_have_text(f"{wanted[0, 1]:.2f}")
    cells = panel.locator(".heat tbody td").all_inner_texts()
    assert [float(cell) for cell in cells] == pytest.approx(wanted.ravel().tolist(), abs=0.006)
    panel.locator("select").select_option("small-pretrained")
    playwright.expect(panel.locator(".code code")).to_contain_text('Albert("small-pretrained")')
    panel.locator(".chip").nth(1).click()
    playwright.expect(panel.locator(".heat tbody tr")).to_have_count(5)


def test_fill(visit):
    one = visit()
    panel = one.open("fill")
    assert panel.locator(".sentence mark").inner_text() == "capital"
    panel.locator(".bars button").nth(1).click()
    other = panel.locator(".bars .name").nth(1).inner_text()
    assert panel.locator(".sentence mark").inner_text() == other
    panel.locator("textarea").fill("She opened the  and walked into the [MASK].")
    panel.locator("textarea").evaluate("area => area.setSelectionRange(15, 15)")
    panel.locator("text=Insert [MASK]").click()
    one.run("fill")
    playwright.expect(panel.locator(".mask")).to_have_count(2)
    guesses = Albert("small-pretrained", threads=1).fill_mask("She opened the [MASK] and walked into the [MASK].", 8)
    shown = panel.locator(".bars .name").all_inner_texts()
    assert shown == [guess.word for mask in guesses for guess in mask]


def test_classify_tag_and_answer(visit, models):
    one = visit()
    panel = one.open("classify")
    panel.locator("textarea").first.fill("cat dog cow hen pig red\noak elm ash fir yew")
    one.run("classify")
    playwright.expect(panel.locator(".value-of")).to_have_text(["animal", "tree"])
    assert panel.locator(".bars").first.locator("li").count() == 2
    panel = one.open("tag")
    panel.locator("textarea").fill("red green blue fox white black oak")
    one.run("tag")
    playwright.expect(panel.locator(".entity")).to_have_count(2)
    assert [mark.replace("\n", "") for mark in panel.locator(".entity").all_inner_texts()] == ["foxanimal", "oaktree"]
    panel = one.open("answer")
    panel.locator("textarea").fill("red blue green owl elm fir yew")
    panel.locator("input[type=text]").fill("cat")
    panel.locator("input[type=text]").press("Enter")
    playwright.expect(panel.locator(".sentence mark")).to_have_text("owl")
    assert panel.locator(".value-of").inner_text().startswith("owl")


def test_search_in_a_pasted_and_in_an_uploaded_text(visit, tmp_path):
    one = visit()
    panel = one.open("search")
    playwright.expect(panel.locator(".hits > li")).to_have_count(5)
    notes = tmp_path / "notes.txt"
    parts = [f"Note {i} about something else." for i in range(150)]
    parts[97] = "The cat sleeps on the sofa.\nAll day long."
    notes.write_text("\n\n".join(parts), encoding="utf-8")
    panel.locator("input[type=file]").set_input_files(notes)
    panel.locator("input[value=paragraphs]").check()
    panel.locator("input[type=search]").fill("where is the kitten napping?")
    panel.locator("input[type=search]").press("Control+Enter")
    playwright.expect(panel.locator(".hits p").first).to_have_text("The cat sleeps on the sofa. All day long.")
    playwright.expect(panel.locator(".status")).to_contain_text("150 parts searched")
    asked = len(one.asked)
    panel.locator("input[type=search]").fill("something else")
    one.run("search")
    playwright.expect(panel.locator(".hits p").first).to_contain_text("about something else")
    assert len(one.asked) == asked + 1  # the parts are known already
    panel.locator(".hits button").first.click()
    assert panel.locator("textarea").evaluate("a => a.value.slice(a.selectionStart, a.selectionEnd)").startswith("Note")
    notes.write_bytes(b"\xff\xfe\x00\xd8")
    panel.locator("input[type=file]").set_input_files(notes)
    one.run("search")
    playwright.expect(panel.locator(".status.wrong")).to_have_text("notes.txt is not a text file in UTF-8.")


def test_explain(visit, models):
    one = visit()
    panel = one.open("explain")
    assert panel.locator(".layers tbody tr").count() == 12
    assert panel.locator(".layers tbody tr").nth(11).locator(".first").inner_text().startswith("university")
    playwright.expect(panel.locator(".verdict")).to_contain_text("Early exit would stop after layer")
    slider = panel.locator(".result input[type=range]")
    slider.fill("0.5")
    place = panel.locator(".layers .exit th").inner_text()
    assert f"after layer {place} of 12" in panel.locator(".verdict").inner_text()
    assert panel.locator(".layers .skipped").count() == 12 - int(place)
    slider.fill("0.99")
    playwright.expect(panel.locator(".verdict")).to_contain_text("never reached")
    assert panel.locator(".small-map").count() == 72
    panel.locator("[data-place='4-3']").click()
    panel.locator(".look", has_text="oxford").click()
    explanation = Albert("small-pretrained").explain("She is a professor at the [MASK] of Oxford.")
    shares = [int(re.sub(r"\D", "", said)) for said in panel.locator(".look small").all_inner_texts()]
    assert shares == pytest.approx((100 * explanation.maps[0].attention[4, 3, 9]).round().tolist(), abs=1)
    playwright.expect(panel.locator(".code code")).to_contain_text("maps[0].attention[4, 3]")
    panel.locator("[data-place='4-3']").focus()
    one.page.keyboard.press("ArrowDown")
    playwright.expect(panel.locator("h4")).to_have_text("Layer 6, head 4")
    panel.locator("canvas.map").click(position={"x": 5, "y": 5})
    playwright.expect(panel.locator(".chosen .readout")).to_contain_text("[CLS] attends to [CLS]")
    for name, said in (("small", None), ("topics", "animal"), ("names", "cat animal"), ("reader", "cat")):
        panel.locator("textarea").fill("red blue cat oak" if said else "A man plays the guitar.")
        with one.page.expect_response("**/explain"):
            panel.locator("select").select_option(name)
        rows = panel.locator(".layers tbody tr")
        playwright.expect(rows).to_have_count(3 if said else 4)  # the vectors are trained for depths 3, 6, 9 and 12
        if said:
            playwright.expect(rows.last).to_contain_text(said)
        else:  # leaves where `early_exit=` leaves
            slider.fill("0.95")
            left = Albert(threads=1).embed_early_exit(["A man plays the guitar."], early_exit="cosine:0.95")[1][0]
            assert f"after layer {left} of 12" in panel.locator(".verdict").inner_text()
            playwright.expect(panel.locator(".code code")).to_contain_text('early_exit="cosine:0.95"')
    slider.fill("0.5")
    playwright.expect(panel.locator(".code code")).to_contain_text('early_exit="entropy:0.5"')


def test_depth(visit):
    one = visit()
    panel = one.open("depth")
    slider = panel.locator(".result input[type=range]")
    seen = []
    for place, depth in (("3", "12"), ("1", "6"), ("0", "3")):  # among the trained depths
        slider.fill(place)
        playwright.expect(panel.locator(".result .said")).to_have_text(f"{depth} of 12")
        seen.append([re.sub(r"[^\d./]", "", value) for value in panel.locator(".numbers dd").all_inner_texts()])
        playwright.expect(panel.locator(".code code")).to_contain_text("depth")
    assert seen[0][0] == "1.0" and float(seen[0][1]) == pytest.approx(1)
    assert (
        min(float(seen[1][0]), float(seen[2][0])) > 0.5
    )  # times of one text on a busy machine; bench/ holds the real ones
    assert 0.5 < float(seen[2][1]) < float(seen[1][1]) < 1
    panel.locator(".chart .dot").nth(2).dispatch_event("click")  # measured times may put dots over each other
    playwright.expect(panel.locator(".chart .label")).to_have_text("9")


# Programs --------------------------------------------------------------------------------------------------------


def test_what_is_copied_runs(visit, models, tmp_path, monkeypatch, capsys):
    """Python in this process, curl for real, the command line through its own parser."""
    import shlex
    import subprocess

    from click.testing import CliRunner

    from albertkit.cli.entry_point import app

    monkeypatch.chdir(tmp_path)
    for name in ("topics", "names", "reader"):
        (tmp_path / name).symlink_to(models / name)
    one = visit()
    odd = 'It\'s "odd" \\n $HOME `x` 中文'
    for tab in TABS:
        panel = one.open(tab)
        if tab in ("compare", "classify"):
            panel.locator("textarea").first.fill(f"{odd}\nred cat\n-x")
            one.run(tab)
            playwright.expect(panel.locator(".code code")).to_contain_text("odd")
        if tab == "search":
            Path("notes.txt").write_text(panel.locator("textarea").input_value(), encoding="utf-8")
        python = one.program(panel, "python")
        exec(compile(python, tab, "exec"), {})
        printed = capsys.readouterr().out
        assert printed.strip(), tab
        said = subprocess.run(["bash", "-c", one.program(panel, "curl")], capture_output=True, check=True).stdout
        answer = json.loads(said)
        assert "error" not in answer, (tab, answer)
        command = one.program(panel, "cli")
        assert subprocess.run(["bash", "-nc", command]).returncode == 0
        if tab == "compare":
            assert answer["scores"][0][1] == pytest.approx(float(printed.split()[1]), abs=0.01)
        lines = [line.strip() for line in command.splitlines() if "albertkit" in line]
        for line in lines:
            words = shlex.split(line, comments=True)
            at = words.index("albertkit")
            given = words[2] if at else None  # what printf writes into the pipe
            result = CliRunner().invoke(app, words[at + 1 :], input=given)
            assert result.exit_code == 0, (line, result.output)
    panel.locator(".copy").first.click()
    playwright.expect(panel.locator(".copy").first).to_have_text("Copied")
    assert one.page.evaluate("navigator.clipboard.readText()") == panel.locator(".code pre").inner_text()


# The page itself -------------------------------------------------------------------------------------------------


def barriers(page, where="document") -> list:
    """What keeps people from using a part of the page, by axe."""
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")
    if not page.evaluate("window.axe !== undefined"):
        page.evaluate(axe.AXE_FILE_PATH.read_text(encoding="utf-8"))
    found = page.evaluate(f"axe.run({where}, {{resultTypes: ['violations']}})")["violations"]
    return [(v["id"], v["impact"], [node["html"][:200] for node in v["nodes"]][:3]) for v in found]


@pytest.mark.parametrize(("viewport", "theme", "locale"), [(DESK, "light", "en-US"), (PHONE, "dark", "zh-CN")])
def test_everybody_can_use_it(visit, viewport, theme, locale):
    """Axe finds nothing on any tab, nothing is wider than the window, and all is said in the chosen language."""
    one = visit(viewport=viewport, theme=theme, locale=locale, reduced_motion="reduce")
    page = one.page
    for tab in TABS:
        panel = one.open(tab)
        page.wait_for_function(
            "() => document.getAnimations().every(one => one.playState !== 'running')"
        )  # colours stand
        where = "document" if tab == "compare" else f"'#panel-{tab}'"  # the frame stays the same
        assert barriers(page, where) == [], tab
        assert page.evaluate("document.scrollingElement.scrollWidth") <= viewport["width"], tab
        assert (words()[f"{tab}.title"][locale == "zh-CN"]) == panel.locator("h2").inner_text()
    assert page.evaluate("shifted") < 0.05  # nothing jumps
    assert page.get_attribute("html", "lang") == ("zh-CN" if locale == "zh-CN" else "en")
    page.click("#language")
    for tab in TABS:
        one.open(tab)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= viewport["width"], tab


def test_language_and_colours_are_chosen_and_kept(visit):
    one = visit(tab="fill")
    page = one.page
    one.done("fill")
    page.click("#language")
    assert (
        page.locator("#panel-fill h2").inner_text() == "预测缺失的词" and page.locator("#panel-fill mark").count() == 1
    )
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper
    page.reload()
    one.done("fill")
    assert page.locator("#panel-fill h2").inner_text() == "预测缺失的词"
    assert page.get_attribute("html", "data-theme") == "dark" and page.url.endswith("#fill")
    page.click("#language")
    page.click("#theme")
    assert page.locator("#panel-fill h2").inner_text() == "Predict the missing word"
    page.evaluate("localStorage.clear()")
    page.emulate_media(color_scheme="dark")
    playwright.expect(page.locator("html")).to_have_attribute("data-theme", "dark")  # follows the system again


def test_samples_are_chinese_where_page_and_model_are(visit, site):
    one = visit(tab="fill", locale="zh-CN")
    area = one.done("fill").locator("textarea")
    assert area.input_value() == "Paris is the [MASK] of France."  # no served model reads Chinese
    listed = site.get("/v1/models").json()
    assert not any(model["can_read_chinese"] for model in listed["data"])
    for model in listed["data"]:
        model["can_read_chinese"] = model["id"] == "small-pretrained"
    one.page.route("**/v1/models", lambda route: route.fulfill(json=listed))
    one.page.route(
        "**/fill", lambda route: route.fulfill(json={"results": [{"masks": [[{"word": "首都", "score": 1}]]}]})
    )
    one.page.reload()
    one.done("fill")
    assert area.input_value() == "北京是中国的[MASK]。"
    one.page.click("#language")
    playwright.expect(area).to_have_value("Paris is the [MASK] of France.")
    area.fill("My own [MASK].")
    one.page.click("#language")
    assert area.input_value() == "My own [MASK]."  # what was typed stays


def test_the_keyboard_is_enough(visit):
    one = visit()
    page = one.page
    one.done("compare")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.focus("#tab-compare")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    one.done("fill")
    assert page.evaluate("document.activeElement.id") == "tab-fill"
    page.keyboard.press("End")
    assert page.locator("#panel-depth").is_visible() and page.locator("[role=tabpanel]:visible").count() == 1
    page.keyboard.press("Home")
    page.locator("#panel-compare textarea").fill("one\ntwo")
    page.locator("#panel-compare textarea").press("Control+Enter")
    playwright.expect(page.locator("#panel-compare .heat tbody tr")).to_have_count(2)


def test_tools_without_a_model_say_how_to_make_one(visit, site):
    one = visit(tab="tag")
    listed = site.get("/v1/models").json()
    listed["data"] = listed["data"][:1]
    one.page.route("**/v1/models", lambda route: route.fulfill(json=listed))
    one.page.reload()
    page = one.page
    for tab, command in (("tag", "albertkit finetune tag"), ("classify", "albertkit finetune classify"), ("answer", "albertkit finetune answer"), ("fill", "albertkit serve small small-pretrained")):  # fmt: skip
        page.click(f"#tab-{tab}")
        panel = page.locator(f"#panel-{tab}")
        assert command in panel.locator(".missing").inner_text() and panel.locator(".primary").is_disabled()
        assert "no model" in page.locator(f"#tab-{tab}").inner_text()
        assert panel.locator("textarea").first.is_disabled()
    assert barriers(page) == []
    one.open("compare")


def test_what_goes_wrong_is_said_in_a_sentence(visit):
    one = visit(tab="fill")
    page = one.page
    panel = one.done("fill")
    status = panel.locator(".status.wrong")
    panel.locator("textarea").fill("nothing is missing")
    one.run("fill")
    playwright.expect(status).to_have_text("Write [MASK] where a word is missing.")
    panel.locator("textarea").fill(" ".join(["word"] * 600) + " [MASK]")
    with expected(one):
        one.run("fill")
        playwright.expect(status).to_contain_text("The text has 60")
        page.route(
            "**/fill",
            lambda r: r.fulfill(status=429, headers={"retry-after": "7"}, json={"error": "too much is waiting"}),
        )
        one.run("fill")
        playwright.expect(status).to_have_text("Too much is waiting. Try again in 7 s.")
        page.route("**/fill", lambda route: route.fulfill(status=502, body="<html>"))
        one.run("fill")
        playwright.expect(status).to_have_text("The server answered with status 502.")
        page.route("**/fill", lambda route: route.abort())
        one.run("fill")
        playwright.expect(status).to_have_text("The server does not respond. Is it still running?")
    page.unroute("**/fill")
    panel.locator("textarea").fill("a [MASK]")
    one.run("fill")
    playwright.expect(status).to_have_count(0)
    page.click("#tab-compare")
    panel = one.done("compare")
    panel.locator("textarea").fill("only one")
    one.run("compare")
    playwright.expect(panel.locator(".status.wrong")).to_have_text("Enter at least two texts, one per line.")


def test_a_server_with_keys(visit):
    one = visit()
    one.done("compare")

    def guarded(route) -> None:
        if route.request.headers.get("authorization") == "Bearer secret":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": {"message": "an API key is missing or wrong"}})

    with expected(one):
        one.page.route("**/v1/models", guarded)
        one.page.reload()
        one.page.locator("#key").fill("secret")
        one.page.locator("#gate .primary").click()
        panel = one.done("compare")
    assert "Bearer $KEY" in one.program(panel, "curl")


@contextlib.contextmanager
def expected(one: Visit):
    """The browser itself reports every refused request; here they are wanted."""
    before = len(one.wrong)
    yield
    one.page.wait_for_load_state("networkidle")
    assert all("Failed to load resource" in said for said in one.wrong[before:])
    del one.wrong[before:]
