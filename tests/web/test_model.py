"""The JavaScript of the browser in Node, with a stand-in for onnxruntime-web: options, tasks, warnings and errors."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from albertkit.builtin import resolve
from albertkit.interop.character_tables import word_classes
from albertkit.interop.web_export import RUNTIME_FOLDER, WEB
from albertkit.interop.web_tokenizer import tokenizer_data
from albertkit.runtime import embed
from albertkit.tasks.examples import split_words, word_class
from albertkit.tokenizer import Tokenizer
from tests.conftest import ROOT
from tests.web.node import HERE, find_node, run_node

LABELS = ["O", "B-X", "I-X"]
PAGE = ROOT / "src" / "albertkit" / "serve" / "page"
ABOUT = {
    "format": 1,
    "name": "fake",
    "id": "0" * 64,
    "task": "embed",
    "dim": 4,
    "depth": 6,
    "depths": [3, 6, 12],
    "exit_depths": [3],
    "full_depth": 6,
    "heads": 2,
    "max_tokens": 64,
    "max_task_tokens": 64,
    "pooling": "mean",
    "normalize": True,
    "prompts": {"query": "ask: "},
    "head": None,
    "pairs": False,
    "settings": {},
    "language": "English",
}
TASKS: dict[str, dict[str, Any]] = {
    "embed": {},
    "classify": {"head": "mean", "settings": {"labels": ["no", "yes"], "kind": "single", "temperature": 1}},
    "tag": {"head": "tokens", "settings": {"labels": LABELS, "overlap": 8}},
    "pretrain": {},
}
PARTS = {"classify": ["classify"], "tag": ["tag"], "pretrain": ["mlm"]}
UNREADABLE = "今天天气很好"
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve("small"))


@pytest.fixture(scope="module")
def scripts(tmp_path_factory, tokenizer) -> Path:
    """A folder with the scripts of the browser and of the server's page, and a tokenizer."""
    find_node()
    folder = tmp_path_factory.mktemp("scripts")
    shutil.copytree(WEB, folder / "web")
    shutil.copytree(PAGE, folder / "page")
    (folder / "package.json").write_text('{"type": "module"}')
    runtime = folder / "web" / RUNTIME_FOLDER
    runtime.mkdir()
    for name in json.loads((WEB / "onnxruntime-web.json").read_text())["files"]:
        shutil.copyfile(HERE / "fake_onnxruntime.mjs", runtime / name)
    (folder / "model").mkdir()
    (folder / "model" / "tokenizer.json").write_text(json.dumps(tokenizer_data(tokenizer)), encoding="utf-8")
    return folder


@pytest.fixture
def run(scripts) -> Run:
    """Runs code in Node with a model of a task. `changes` are those of its model.json."""

    def call(code: str, *args: Any, task: str = "embed", **changes: Any) -> Any:
        folder = scripts / "model"
        (folder / "weights.bin").write_bytes(b"\0")
        parts = ["embedding", "layer", "pooler", *PARTS.get(task, [])]
        for part in parts:
            (folder / f"{part}.onnx").write_text(part)
        names = ["weights.bin", "tokenizer.json", *(f"{part}.onnx" for part in parts)]
        data = {name: (folder / name).read_bytes() for name in names}
        files = {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in data.items()}
        words = {"word_classes": word_classes()} if task == "tag" else {}
        about = {**ABOUT, "task": task, **TASKS[task], **words, "parts": parts, "files": files, **changes}
        (folder / "model.json").write_text(json.dumps(about))
        request, result = scripts / "request.json", scripts / "result.json"
        request.write_text(json.dumps({"code": code, "args": args}))
        run_node(HERE / "page.mjs", scripts, request, result)
        return json.loads(result.read_text())

    return call


def errors(run: Run, calls: list[str], **model: Any) -> list[str]:
    """The errors of calls of one model."""
    return run(f"const albert = await load(); return [{', '.join(f'await failure({c})' for c in calls)}];", **model)


# Options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "call"), [("pretrain", 'fill("a [MASK]"'), ("embed", 'embed("a"'), ("tag", 'tag("a"')])  # fmt: skip
def test_a_depth_that_was_not_trained_is_an_error(run, task, call):
    depths = ("0", "-3", "'x'", "'full'", "4", "99999")
    for depth, message in zip(depths, errors(run, [f"albert.{call}, {{ depth: {d} }})" for d in depths], task=task), strict=True):  # fmt: skip
        assert message.startswith(f"AlbertError: depth={depth.strip(chr(39))} is not available"), message
        assert message.endswith("trained for depths 3, 6, 12. Pass one of these.")


def test_prompts_are_those_of_python(run):
    code = """
        const albert = await load(), vector = async (text, options) => Array.from((await albert.embed(text, options))[0]);
        const plain = await vector("a cat"), asked = await vector("ask: a cat");
        return [
          await vector("a cat", { prompt: null }), await vector("a cat", {}), plain,
          await vector("a cat", { prompt: "query" }), asked,
          await vector("a cat", { prompt: "constructor" }), await vector("constructora cat"),
        ];"""
    null, default, plain, named, asked, constructor, written = run(code)
    assert null == default == plain and named == asked != plain and constructor == written
    null, default, plain, *_ = run(code, prompts={"default": "text: "})
    assert null == default == plain
    for message, shown in zip(errors(run, ['albert.embed("a", { prompt: 7 })', 'albert.embed("a", { prompt: ["x"] })']), ("7", '["x"]'), strict=True):  # fmt: skip
        assert message == f"AlbertError: prompt is {shown}; it must be a string. Pass a text, or the name of a prompt."


@pytest.mark.parametrize("room", [1, 2, 20, 62, 64, 100, 200])
def test_windows_are_those_of_python_and_few(run, room, tokenizer):
    text = "word " * 500
    code = """
        const { Model } = await import(at("web/model.js"));
        const model = Object.assign(new Model(), { about: { max_tokens: a[0] + 2 }, tokenizer: { clsId: 2, sepId: 3 } });
        return model.windows(0, a[1], "split").map((row) => row.ids);"""
    (ids,) = tokenizer.ids_batch([text])

    class Small:
        special_tokens, max_tokens = ([2], [3]), room + 2

    windows = run(code, room, ids)
    assert windows == embed.split_tokens(Small, [ids], "split").ids
    assert len(windows) <= 2 * len(ids) / room + 1
    overlaps = [a[1:-1] for a in windows]
    assert all(len(a) <= room for a in overlaps) and overlaps[-1][-1] == ids[-1]


def test_an_infinite_first_token_is_an_error_of_every_pooling(run):
    for pooling in ("mean", "cls", "max", "pooler"):
        code = 'const albert = await load(); globalThis.infinite = true; return failure(albert.embed("a cat"));'
        assert "must be finite" in run(code, pooling=pooling), pooling


# The index -------------------------------------------------------------------------------------------------------


def test_of_items_with_one_id_the_last_is_kept(run):
    code = """
        const index = await (await load()).openIndex("notes");
        const items = [{ id: 1, text: "a much longer text" }, { id: 2, text: "b" }, { id: 1, text: "short" }];
        const computed = [await index.add(items), await index.add([...items].reverse())];
        const found = await index.search("short", { k: 9 });
        return [computed, index.size, found.map(({ id, text }) => `${id} ${text}`).sort()];"""
    assert run(code) == [[2, 1], 2, ["1 a much longer text", "2 b"]]


def test_options_of_an_index_are_checked(run):
    cases = {
        'albert.openIndex("x", { depth: 4 })': "depth=4 is not available",
        'albert.openIndex("x", { dim: 9 })': "this model has 1 to 4 dimensions",
        'albert.openIndex("x", { detph: 3 })': 'unknown option "detph"; choose one of depth, dim',
        'albert.openIndex("x").then((i) => i.add([null]))': "item 0 has no text",
        'albert.openIndex("x").then((i) => i.add([{ id: NaN, text: "a" }]))': "an id must be a text or a number",
        'albert.openIndex("x").then((i) => i.search("a", { k: -1 }))': "k=-1 is out of range. Pass 1 or more.",
        'albert.search("a", ["b"], { k: 0 })': "k=0 is out of range. Pass 1 or more.",
    }
    for message, wanted in zip(errors(run, list(cases)), cases.values(), strict=True):
        assert message.startswith("AlbertError") and wanted in message
    code = 'const index = await (await load()).openIndex("x"); return [await index.add("one text"), index.size];'
    assert run(code) == [1, 1]


def test_options_of_a_model_are_checked(run):
    calls = ('at("model"), { thraeds: 2 }', 'at("model"), { threads: 0 }', '"http://[bad"')
    code = f'const {{ Albert }} = await import(at("web/albertkit.js")); return [{", ".join(f"await failure(Albert.load({c}))" for c in calls)}];'  # fmt: skip
    unknown, threads, folder = run(code)
    assert 'unknown option "thraeds"' in unknown and "threads=0 is out of range" in threads
    assert folder == 'AlbertError: the folder "http://[bad" is not an address. Pass one such as "./model".'


# Warnings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "text"), [("embed", UNREADABLE), ("classify", UNREADABLE), ("tag", UNREADABLE), ("pretrain", UNREADABLE), ("pretrain", f"{UNREADABLE} [MASK]")])  # fmt: skip
def test_an_explanation_warns_once_about_unreadable_text(run, task, text):
    code = "const albert = await load(); await albert.explain(a[0]); await albert.explain('a cat'); return warnings;"
    (message,) = run(code, text, task=task)
    assert "cannot read the text" in message


def test_the_warnings_of_a_failed_call_come_with_its_error(run):
    code = """
        const albert = await load();
        const error = await failure(albert.fill(`${a[0]} [MASK]`, { depth: 4 }));
        const count = warnings.length;
        await albert.fill("a [MASK]");
        return [error, count, warnings.length];"""
    error, *counts = run(code, UNREADABLE, task="pretrain")
    assert "depth=4" in error and counts == [1, 1]


# Explanations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["embed", "classify"])
def test_calibrated_depths_that_were_not_distilled(run, task):
    """As after calibrate(model, texts, exit_depths=[3, 6, 9]) of a model that was distilled at 3, 6 and 12."""
    found = run("return (await load()).explain('a cat');", task=task, depth=12, exit_depths=[3, 6, 9], full_depth=12)
    assert [one["depth"] for one in found["depths"]] == [3, 6, 12] and found["fullDepth"] == 12
    assert found["earlyExit"]["exitDepths"] == [3, 6, 9] and len(found["earlyExit"]["uncertainty"]) == 4
    assert found["earlyExit"]["uncertainty"][1:] != [None] * 3


# Tokens and words ------------------------------------------------------------------------------------------------


def test_tokens_are_those_of_python(run, tokenizer):
    texts = ["A man plays 1,000 guitars.", "", "word " * 200, "a [MASK] b"]
    for model in ({}, {"task": "classify", "pairs": True}):
        found = run("return (await load()).tokenize(a[0]);", texts, **model)
        for text, tokens in zip(texts, found, strict=True):
            encoding = tokenizer.encode(text)
            assert [one["id"] for one in tokens] == list(encoding.ids)
            assert [one["text"] for one in tokens] == tokenizer.tokens(encoding.ids)
            assert [one["special"] for one in tokens] == list(encoding.specials)
            places = [None if s else list(p) for s, p in zip(encoding.specials, encoding.offsets, strict=True)]
            assert [None if one["start"] is None else [one["start"], one["end"]] for one in tokens] == places
    assert "texts is undefined" in run("return failure((await load()).tokenize());")


def test_the_page_of_the_server_tokenizes_pairs_and_long_texts(run, scripts):
    """Without computing depths, which explanations do."""
    shutil.rmtree(scripts / "browser", ignore_errors=True)
    (scripts / "browser").symlink_to(scripts)
    code = """
        const { answerHere, turnLocal } = await import(at("page/local.js"));
        await turnLocal(true, [{ id: "model" }], () => {});
        const { answer } = await answerHere("tokenize", { model: "model", inputs: a[0] });
        return answer.map((tokens) => tokens.length);"""
    assert run(code, ["a cat", "word " * 200], task="classify", pairs=True) == [4, 202]
    (scripts / "browser").unlink()


def test_every_character_has_the_class_of_python(run):
    code = """
        const { WordClasses } = await import(at("web/tagging.js"));
        const classes = new WordClasses(a[0]);
        return Array.from({ length: 0x110000 }, (_, c) => classes.get(String.fromCodePoint(c))).join("");"""
    found = run(code, word_classes())
    ours = [word_class(chr(c)) for c in range(sys.maxunicode + 1)]
    assert [hex(c) for c, (a, b) in enumerate(zip(found, ours, strict=True)) if a != b] == []


def test_words_are_those_of_python(run):
    """Contractions depend on the character, all else on its class, which is compared for every character."""
    known = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]
    forms = ["①. Ada", "⑴,⑵", "❶.❷ x²,3", *(f"{c}. Ada\n({c}),{c}\n1,{c}:{c}" for c in known[::20])]
    texts = [*forms, *(f"it'{c} a'l{c}" for c in known)]
    code = """
        const { WordClasses, splitWords } = await import(at("web/tagging.js"));
        const classes = new WordClasses(a[0]);
        return a[1].map((text) => splitWords(text, classes).map(([start, end]) => text.slice(start, end)));"""
    found = run(code, word_classes(), texts)
    wanted = [[text[a:b] for a, b in split_words(text)] for text in texts]
    assert [(t, a, b) for t, a, b in zip(texts, found, wanted, strict=True) if a != b][:5] == []


# The demo page ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["classify", "pretrain"])
def test_the_demo_predicts_at_the_chosen_depth(run, task, scripts):
    code = """
        document.baseURI = at("web/");
        await import(at("web/demo.js"));
        while (!document.documentElement.dataset.state) await new Promise((resolve) => setTimeout(resolve, 5));
        const find = (id) => document.getElementById(id), shown = {};
        for (const depth of ["3", "12"]) {
          find("depth").value = depth;
          await find("predict-run").onclick({ target: {} });
          shown[depth] = find("predict-result").text;
        }
        const albert = await load(), text = find("predict-text").value, depth = 3;
        const wanted = a[0] === "pretrain"
          ? (await albert.fill(text, { depth }))[0].map(({ word, score }) => [word, score])
          : Object.entries((await albert.classify([text], { depth }))[0].probabilities);
        return [find("error").textContent, shown, wanted];"""
    shutil.rmtree(scripts / "web" / "model", ignore_errors=True)
    (scripts / "web" / "model").symlink_to(scripts / "model")
    error, shown, wanted = run(code, task, task=task)
    (scripts / "web" / "model").unlink()
    assert error == "" and shown["3"] != shown["12"]
    assert all(f"{name} {score:.2f}" in shown["3"] for name, score in wanted)
