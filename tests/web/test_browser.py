"""The exported folder in Chromium: vectors and predictions equal Python's, offline, on phones, and with bad input."""

from __future__ import annotations

import os
import re
import shutil
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest

import albertkit
from albertkit.albert import Albert
from albertkit.artifact import ArtifactMetadata, write_artifact
from albertkit.explain.layer_predictions import DepthTrace
from albertkit.runtime.early_exit import last_exit_depth
from albertkit.tasks.examples import TextExample
from tests.conftest import tiny
from tests.test_albert import make
from tests.train import test_finetune as lessons
from tests.web.test_tokenizer import repository_texts

CHINESE = re.compile(r"[\u4e00-\u9fff]")
TEXTS = 1000


def texts_of(language: str) -> list[str]:
    """1,000 short texts of the documentation, no two the same."""
    lines = {re.sub(r"[`*#|]", "", line).strip()[:28] for line in repository_texts()}
    is_chinese = language == "small-zh"
    chosen = [line for line in sorted(lines) if len(line) > 8 and bool(CHINESE.search(line)) == is_chinese]
    halves = [line[len(line) // 2 :] for line in chosen]
    return [*chosen, *sorted(set(halves) - set(chosen))][:TEXTS]


def nearest(vectors: np.ndarray) -> np.ndarray:
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -1)
    return scores


def embed(one, texts: list[str], **options) -> np.ndarray:
    code = "return (await albert.embed(a[0], a[1])).map((row) => Array.from(row));"
    return np.array(one.run(code, texts, options), np.float32)


# Vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "small-zh"])
def test_vectors_and_neighbours_equal_pythons_up_to_rounding(name, visit, exported, monkeypatch):
    """Rounding to int8 may go either way. So the browser is as near to Python as Python is to itself after a change of
    its inputs by a millionth. Both computed by onnxruntime; compiled layers round attention to bfloat16.
    """
    monkeypatch.setenv("ALBERTKIT_LAYERS", "onnxruntime")
    texts = texts_of(name)
    assert len(texts) == TEXTS
    one = visit(f"{exported(name)}/package.json")
    albert = Albert(name, threads=1)
    if albert.engine.max_level < 255:
        pytest.skip("this processor has 7-bit activations, browsers have 8 bits")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # drawn boxes are unreadable
        found, wanted, changed = embed(one, texts), albert.embed(texts), embed_changed(albert, texts)
    cosines, rounding = (found * wanted).sum(axis=1), (changed * wanted).sum(axis=1)
    assert cosines.mean() >= 0.999 and 1 - cosines.mean() <= 1.2 * (1 - rounding.mean())
    assert cosines.min() >= 0.997
    scores, neighbours = nearest(wanted), nearest(found).argmax(axis=1)
    lost = scores.max(axis=1) - scores[np.arange(TEXTS), neighbours]
    assert (lost <= 0.002).mean() >= 0.98 and lost.max() < 0.02  # near ties may change places
    one.problems.clear()  # the warning about unreadable texts


def embed_changed(albert: Albert, texts: list[str]) -> np.ndarray:
    """Python's vectors from embeddings that are changed by a millionth."""
    embedding, noise = albert.engine._embedding, np.random.default_rng(0)

    class ChangedEmbedding:
        def embed(self, ids, segments):
            hidden = embedding.embed(ids, segments)
            return (hidden * (1 + 1e-6 * noise.standard_normal(hidden.shape))).astype(np.float32)

    albert.engine._embedding = ChangedEmbedding()
    try:
        return albert.embed(texts)
    finally:
        albert.engine._embedding = embedding


def test_options_of_vectors(visit, exported, monkeypatch):
    """Both computed by onnxruntime; compiled layers round attention to bfloat16."""
    monkeypatch.setenv("ALBERTKIT_LAYERS", "onnxruntime")
    one, albert = visit(f"{exported('small')}/package.json"), Albert("small", threads=1)
    texts = ["A man plays the guitar", "Someone makes music", "word " * 700]
    assert one.run("return albert.about.threads") == 1 and one.run("return albert.about.depths") == [3, 6, 9, 12]
    for options in ({"depth": 3, "dim": 64}, {"depth": 3, "normalize": False}, {"depth": 3, "prompt": "query: "}):
        found, wanted = embed(one, texts[:2], **options), albert.embed(texts[:2], **options)
        assert found.shape == wanted.shape and np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()
    long = embed(one, texts, depth=3)
    assert (long[2] @ albert.embed(texts[2], depth=3)) > 0.998
    cut = embed(one, texts, depth=3, longTexts="truncate")
    assert (cut[2] @ albert.embed(texts[2], depth=3, long_texts="truncate")) > 0.998
    assert "text 2 has 700 tokens, but the model supports" in one.error(
        "await albert.embed(a[0], { longTexts: 'error' })", texts
    )
    scores = np.array(one.run("return await albert.similarity(a[0], undefined, { depth: 3 })", texts[:2]))
    assert np.abs(scores - albert.similarity(texts[:2], depth=3)).max() < 0.01
    (best, *_) = one.run("return await albert.search('music', a[0], { depth: 3 })", texts[:2])
    assert best["text"] == texts[1] and best["place"] == 1


def test_progress_and_a_closed_model(visit, exported):
    one = visit(f"{exported('small')}/package.json")
    seen = one.run("""
        const seen = { load: [], embed: [] };
        const other = await Albert.load("./model", { onProgress: (p) => seen.load.push(p) });
        await other.embed(["a", "b c d e f g h i j", "c"], { depth: 3, onProgress: (p) => seen.embed.push(p) });
        other.close();
        seen.error = await other.embed("a").catch((error) => error.message);
        return seen;""")
    assert seen["load"][-1]["loaded"] == seen["load"][-1]["total"] > 6_000_000
    assert seen["embed"][-1] == {"done": 3, "total": 3} and seen["error"] == "this model is closed. Load it again."


# Tasks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Models fine-tuned on made-up sentences about animals and trees, and a Chinese head on frozen vectors."""
    folder = tmp_path_factory.mktemp("tuned")
    start = lessons.start.__wrapped__(tmp_path_factory)
    settings = lessons.FinetuneSettings(epochs=2, batch_size=16, optimizer="adamw", learning_rate=5e-3, max_length=40, device="cpu")  # fmt: skip
    for name, task, examples in (("topics", "classify", lessons.texts), ("names", "tag", lessons.tagged)):
        lessons.tune.finetune_examples(task, examples(96), examples(24, 9), folder / name, start, settings)
    examples = [TextExample(f"{a}{b}", label=label) for label, words in MEALS.items() for a in words for b in "了吗吧"]
    albertkit.finetune("classify", examples, output=folder / "meals", model="small-zh", freeze=True)
    return folder


MEALS = {
    "餐": ["我想吃饭", "面条很好吃", "晚饭吃什么", "这道菜太咸"],
    "车": ["汽车坏了", "火车几点开", "去车站", "堵车很久"],
}


@pytest.mark.slow
def test_classify_and_tag_equal_pythons(visit, exported, tuned):
    texts = [example.text for example in lessons.texts(12, 3)]
    for name, inputs in (("topics", texts), ("meals", ["饭菜凉了", "车在哪里", "米饭"])):
        one, albert = visit(f"{exported(name, tuned / name)}/package.json"), Albert(tuned / name, threads=1)
        found, wanted = one.run("return await albert.classify(a[0])", inputs), albert.classify(inputs)
        assert [f["label"] for f in found] == [w.label for w in wanted]
        assert [f["probabilities"] for f in found] == [pytest.approx(w.probabilities, abs=0.02) for w in wanted]
    one, albert = visit(f"{exported('names', tuned / 'names')}/package.json"), Albert(tuned / "names", threads=1)
    inputs = [example.text for example in lessons.tagged(8, 5)] + ["", "red " * 90]
    found, wanted = one.run("return await albert.tag(a[0])", inputs), albert.tag(inputs)
    places = [[(s["start"], s["end"], s["label"], s["text"]) for s in f["spans"]] for f in found]
    assert places == [[(s.start, s.end, s.label, s.text) for s in w.spans] for w in wanted]
    assert 'this model was made for "tag"' in one.error("await albert.classify('a')")


@pytest.mark.parametrize(
    ("labels", "details"),
    [
        ("abc", {"kind": "multi", "threshold": 0.4}),
        ("x", {"kind": "regression", "mean": 3.0, "std": 1.5, "pairs": True}),
    ],
)
def test_several_labels_and_numbers_equal_pythons(labels, details, visit, exported, tmp_path):
    made = make(tiny(vocab_size=3000), ("classify",), labels=len(labels))
    metadata = ArtifactMetadata(task="classify", labels=tuple(labels), details=details)
    write_artifact(replace(made, metadata=metadata), tmp_path / "m")
    one, albert = visit(f"{exported(details['kind'], tmp_path / 'm')}/package.json"), Albert(tmp_path / "m", bits=8)
    texts, pairs = ["a cat", "where is my parcel?"], ["a kitten", "it rains"] if "pairs" in details else None
    found = one.run("return albert.classify(a[0], a[1] ? { pairs: a[1] } : {})", texts, pairs)
    wanted = albert.classify(texts, pairs)
    near = list if details["kind"] == "multi" else (lambda label: pytest.approx(label, abs=0.05))
    assert [one["label"] for one in found] == [near(one.label) for one in wanted]
    probabilities = [one.probabilities and pytest.approx(one.probabilities, abs=0.02) for one in wanted]
    assert [one["probabilities"] for one in found] == probabilities
    explained = one.run("return albert.explain(a[0], a[1] ? { pair: a[1][0] } : {})", texts[0], pairs)
    assert explained["kind"] == "classify" and explained["depths"][-1]["prediction"]["label"] == near(wanted[0].label)
    if pairs:
        assert "pairs is missing. Pass the second texts." in one.error("await albert.classify('a cat')")


def test_fill_equals_pythons(visit, exported):
    one, albert = visit(f"{exported('small-pretrained')}/package.json"), Albert("small-pretrained", threads=1)
    text = "Paris is the [MASK] of France, and Rome of [MASK]."
    found, wanted = one.run("return await albert.fill(a[0], { k: 3 })", text), albert.fill_mask(text, k=3)
    assert [[p["word"] for p in mask] for mask in found] == [[p.word for p in mask] for mask in wanted]
    assert [p["score"] for p in found[0]] == pytest.approx([p.score for p in wanted[0]], abs=0.06)
    assert "has no [MASK]" in one.error("await albert.fill('a cat')")


# The index -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_index_of_1000_notes_is_kept(visit, exported):
    one = visit(f"{exported('small')}/package.json")
    notes = [f"note {number} about {topic}" for number in range(250) for topic in ("cats", "rain", "trains", "bread")]
    code = "const index = await albert.openIndex('notes', { depth: 3 });"
    assert one.run(f"{code} return [await index.add(a[0]), await index.add(a[0]), index.size]", notes) == [
        1000,
        0,
        1000,
    ]
    one.page.reload()
    assert one.run(f"{code} return index.size") == 1000
    found = one.run(f"{code} return await index.search('a kitten', {{ k: 3 }})")
    assert all("cats" in hit["text"] for hit in found) and found[0]["score"] >= found[1]["score"]
    assert "made with another model" in one.error("await albert.openIndex('notes', { depth: 6 })")
    gone = f"{code} await index.remove([a[0]]); const size = index.size; await index.clear(); return [size, index.size]"
    assert one.run(gone, notes[0]) == [999, 0]
    assert "item 0 has no text" in one.error(f"{code} await index.add([{{ id: 1 }}])")


def test_an_index_that_is_open_twice_is_one_index(visit, exported):
    one = visit(f"{exported('small')}/package.json")
    code = """
        const [here, there] = [await albert.openIndex("two", { depth: 3 }), await albert.openIndex("two", { depth: 3 })];
        await here.add(["a cat", "a bus"]);
        const found = [(await there.search("a kitten"))[0].text];
        await there.clear();
        return [...found, await here.add(["a cat"]), (await there.search("a kitten")).length];"""
    assert one.run(code) == ["a cat", 1, 1]
    gone = """
        const index = await albert.openIndex("two", { depth: 3 });
        await SearchIndex.delete("two");
        await index.add(["a dog"]);"""
    assert "is closed, or was deleted. Open it again" in one.error(gone)
    assert one.run("return (await albert.openIndex('two', { depth: 6 })).size") == 0


def test_a_browser_that_stores_nothing_is_an_error_that_loses_nothing(visit, exported):
    """An aborted transaction is what a full disk leads to."""
    one = visit(f"{exported('small')}/package.json")
    code = "const index = await albert.openIndex('full', { depth: 3 });"
    assert one.run(f"{code} return index.add(['a cat'])") == 1
    aborted = """
        const { put } = IDBObjectStore.prototype;
        IDBObjectStore.prototype.put = function (...values) {
          const made = put.apply(this, values);
          made.onsuccess = () => this.transaction.abort();
          return made;
        };
        try { await index.add(["a dog"]); } finally { IDBObjectStore.prototype.put = put; }"""
    assert "the browser cannot store the index" in one.error(f"{code} {aborted}")
    assert one.run(f"{code} return (await index.search('a kitten')).map((hit) => hit.text)") == ["a cat"]


# Bad input -------------------------------------------------------------------------------------------------------


def test_bad_input_names_the_remedy_and_the_model_goes_on(visit, exported):
    one = visit(f"{exported('small')}/package.json")
    cases = {
        "await albert.embed('x'.repeat(10_000_000))": "text 0 has 10,000,000 characters: the limit is 1,000,000. Split",
        "await albert.embed([null])": "text 0 is null; every text must be a string. Remove",
        "await albert.embed(7)": "texts is number. Pass a text",
        "await albert.embed('a', { depth: 5 })": "trained for depths 3, 6, 9, 12. Pass one",
        "await albert.embed('a', { dim: 0 })": "this model has 1 to 384 dimensions",
        "await albert.embed('a', { deep: 3 })": 'unknown option "deep"; choose one of depth',
        "await albert.embed(() => 1)": "cannot be copied",
        "await albert.fill('a [MASK]')": "no masked-language-model head, so it cannot fill masks. Export",
        "await albert.tag('a')": "albertkit finetune tag",
        "await Albert.load('./nothing')": "gave HTTP 404. Pass the folder",
    }
    for code, message in cases.items():
        assert message in one.error(code), code
    surrogates = embed(one, ["a\ud800b", "a\ufffdb"], depth=3)
    assert surrogates[0].tolist() == surrogates[1].tolist()
    assert one.run("return (await albert.embed('still here', { depth: 3 })).length") == 1
    one.problems.clear()  # Chromium logs the missing file


def damage(site, exported, name: str, change) -> str:
    folder = site / name
    shutil.copytree(site / exported("small"), folder)
    change(folder / "model")
    return name


def write(name: str, data: bytes):
    return lambda model: (model / name).write_bytes(data)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("page", write("model.json", b"<!doctype html>"), "model.json is not JSON, so this is not a model"),
        ("other", write("model.json", b'{"format": 99}'), "model.json has the format 99; this albertkit.js reads format 1"),
        ("cut", lambda m: (m / "weights.bin").write_bytes((m / "weights.bin").read_bytes()[:-1000]), "The download was cut"),
        ("changed", write("layer.onnx", b"x" * 4980), "model.json"),
        ("missing", lambda m: (m / "tokenizer.json").unlink(), "tokenizer.json gave HTTP 404"),
    ],
)  # fmt: skip
def test_the_page_says_what_is_wrong_with_the_files(name, change, message, visit, exported, site):
    one = visit(f"{damage(site, exported, name, change)}/").ready()
    assert one.page.get_attribute("html", "data-state") == "failed"
    assert message in one.page.inner_text("#error")
    one.problems.clear()


UPDATED = """async () => {
  const found = await navigator.serviceWorker.ready;
  await found.update();
  while (found.installing || found.waiting) await new Promise((resolve) => setTimeout(resolve, 20));
}"""


def replace_export(site, name: str, source: str) -> None:
    shutil.rmtree(site / name, ignore_errors=True)
    shutil.copytree(site / source, site / name)


def test_a_new_export_is_loaded_although_the_browser_has_cached_the_old_one(visit, exported, site):
    exported("small"), exported("small-zh")
    replace_export(site, "cached", "small")
    one = visit("cached/package.json", server="cached")
    assert one.run("return albert.about.name") == "small"
    replace_export(site, "cached", "small-zh")
    assert one.run("return (await Albert.load('./model')).about.name") == "small-zh"


def test_the_page_becomes_the_new_export(visit, exported, site):
    """Although the service worker and the browser have cached the old one."""
    exported("small"), exported("small-zh")
    replace_export(site, "replaced", "small")
    one = visit("replaced/", server="cached").ready()
    replace_export(site, "replaced", "small-zh")
    one.page.evaluate(UPDATED)
    one.page.reload()
    assert "small-zh" in one.ready().page.inner_text("#status") and one.page.inner_text("#error") == ""
    replace_export(site, "replaced", "small")
    for _ in range(2):  # the first visit may still show the old one, but never a mixture of both
        one.page.reload()
        assert one.ready().page.inner_text("#error") == ""
        one.page.evaluate(UPDATED)


def test_a_page_of_ones_own_is_fresh_and_works_offline(visit, exported, site):
    replace_export(site, "own", exported("small"))
    one = visit("own/").ready()
    mine = site / "own" / "mine.html"
    for text in ("first", "second"):
        mine.write_text(f"<!doctype html><link rel=icon href=data:,><title>{text}</title>")
        os.utime(mine, (0, time.time() + 10 * (text == "second")))  # hosts compare seconds
        one.page.goto(f"{one.url}mine.html")
        assert one.page.title() == text
    one.context.set_offline(True)
    one.page.reload()
    assert one.page.title() == "second" and one.run("return (await albert.embed('a', { depth: 3 })).length") == 1


# The page --------------------------------------------------------------------------------------------------------


def violations(page) -> list[str]:
    """What keeps people from using the page, by axe."""
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")
    page.evaluate(axe.AXE_FILE_PATH.read_text(encoding="utf-8"))
    return [f"{v['id']}: {v['nodes'][0]['html']}" for v in page.evaluate("axe.run()")["violations"]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "width"), [("small", 390), ("small-zh", 320)])
def test_the_page_on_a_phone_and_offline(name, width, visit, exported):
    one = visit(f"{exported(name)}/", viewport={"width": width, "height": 700}, color_scheme="dark").ready()
    page = one.page
    assert page.get_attribute("html", "lang") == ("zh" if name == "small-zh" else "en")
    depth = page.input_value("#depth")
    assert depth == str(Albert(name, threads=1).depth)
    page.click("#search-clear")
    page.click("#search-add")
    page.wait_for_selector("#search-add:not([disabled])")
    one.context.set_offline(True)
    page.reload()
    one.ready()
    assert page.evaluate("crossOriginIsolated") and "4" in page.inner_text("#search-size")
    page.select_option("#depth", "3")
    page.click("#compare-run")
    page.wait_for_selector("#compare-result td")
    found = [float(cell) for cell in page.locator("#compare-result td").all_inner_texts()]
    texts = page.input_value("#compare-texts").split("\n")
    assert found == pytest.approx(Albert(name, threads=1).similarity(texts, depth=3).ravel().tolist(), abs=0.02)
    page.select_option("#depth", depth)  # each depth has an index of its own
    page.wait_for_selector("#depth:not([disabled])")
    page.click("#search-run")
    page.wait_for_selector("#search-result li")
    assert page.inner_text("#search-result li >> nth=0").startswith(page.input_value("#search-texts").split("\n")[0])
    page.fill("#compare-texts", "x" * 1_000_001)
    page.click("#compare-run")
    page.wait_for_selector("#error:not([hidden])")
    assert "the limit is 1,000,000" in page.inner_text("#error")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.emulate_media(color_scheme="light")
    assert violations(page) == []


def test_the_page_opens_after_a_reload_past_the_service_worker(visit, exported):
    one = visit(f"{exported('small')}/").ready()
    with one.page.expect_navigation():
        one.context.new_cdp_session(one.page).send("Page.reload", {"ignoreCache": True})
    one.ready()
    assert not one.page.evaluate("navigator.serviceWorker.controller")
    assert "Ready: small" in one.page.inner_text("#status")


@pytest.mark.slow
def test_predictions_on_the_page(visit, exported, tuned):
    for name, words in (("topics", ["animal", "tree"]), ("small-pretrained", [])):
        one = visit(f"{exported(name, tuned / name if name == 'topics' else None)}/").ready()
        one.page.click("#predict-run")
        one.page.wait_for_selector("#predict-result li")
        shown = one.page.inner_text("#predict-result")
        assert all(word in shown for word in words) and one.page.locator("#predict-result li").count() >= 2
        one.page.select_option("#depth", "1")
        one.page.wait_for_selector("#depth:not([disabled])")
        one.page.click("#predict-run")
        one.page.wait_for_function(
            "(before) => document.getElementById('predict-result').innerText !== before", arg=shown
        )
        one.problems.clear()  # the tiny model cannot read the page's example


# Explanations ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_explanations_equal_pythons(visit, exported, tuned):
    cases = (
        ("small", None, "She sat on the bank of the river."),
        ("small-zh", None, "他坐在河岸上数钱。"),
        ("small-pretrained", None, "Paris is the [MASK] of France."),
        ("topics", tuned / "topics", lessons.texts(12, 3)[0].text),
    )
    for name, source, text in cases:
        one, albert = visit(f"{exported(name, source)}/package.json"), Albert(source or name, threads=1)
        found = one.run("const e = await albert.explain(a[0], { attention: true }); return { ...e, attention: Array.from(e.attention) }", text)  # fmt: skip
        trace, maps = DepthTrace.of(albert, text, None, None, 5), albert.explain(text).maps
        states, full = [trace.run(depth) for depth in trace.depths], trace.run(last_exit_depth(albert, None))
        assert (found["kind"], found["fullDepth"]) == (trace.kind, full.depth)
        assert [d["depth"] for d in found["depths"]] == [state.depth for state in states]
        cosines = [d["cosine"] for d in found["depths"]]
        assert cosines == pytest.approx([state.vector @ full.vector for state in states], abs=0.02)
        assert [t["text"] for t in found["tokens"]] == list(maps[0].tokens)
        assert [text[t["start"] : t["end"]] for t in found["tokens"] if t["text"] == "▁river"] in ([], ["river"])
        heads = np.array(found["attention"]).reshape(-1, *maps[0].attention.shape[1:])[: len(maps[0].attention)]
        assert np.abs(heads - maps[0].attention).mean() < 0.01 and heads.sum(axis=-1) == pytest.approx(1)
        exits, wanted = found["earlyExit"], trace.trace_early_exit()
        assert (exits is None) == (wanted is None)
        if wanted is not None:
            assert (exits["kind"], exits["exitDepths"]) == (wanted.kind, wanted.exit_depths)
            assert [u for u in exits["uncertainty"] if u is not None] == pytest.approx([u for u in wanted.uncertainty if u is not None], abs=0.05)  # fmt: skip
    one.problems.clear()
