"""README, its Chinese twin and docs: in step with each other, with the program, and runnable."""

from __future__ import annotations

import importlib.util
import re
import shlex

import click
import pytest

import albertkit
from tests.conftest import ROOT

PAGES = sorted(p for p in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.S | re.M)


def test_the_two_readmes_are_in_step():
    english, chinese = ((ROOT / n).read_text(encoding="utf-8") for n in ("README.md", "README.zh-CN.md"))
    headings = [re.findall(r"^(#+) ", text, re.M) for text in (english, chinese)]
    assert headings[0] == headings[1]
    assert blocks(english, "python") == blocks(chinese, "python")
    commands = [
        [line.split("#")[0].strip() for block in blocks(text, "bash") for line in block.splitlines()]
        for text in (english, chinese)
    ]
    assert commands[0] == commands[1]
    code = [
        re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)) for text in (english, chinese)
    ]
    assert code[0] == code[1]
    links = [
        sorted(set(re.findall(r"\]\(([^)]+)\)", text)) - {"README.md", "README.zh-CN.md"})
        for text in (english, chinese)
    ]
    assert links[0] == links[1]


def test_generated_pages_are_fresh():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for name, make in generate.PAGES.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == make(), f"{name} is stale; run  make docs"


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "```python" in p.read_text(encoding="utf-8")], ids=lambda p: p.name
)
def test_python_in_the_docs_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space: dict = {"__name__": "docs"}
    for block in blocks(page.read_text(encoding="utf-8"), "python"):
        exec(compile(block, str(page), "exec"), space)


def test_commands_in_the_docs_exist():
    """Every `albertkit …` line in the docs parses: the verb and its options are real."""
    from albertkit.cli import app

    seen = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for line in [line for block in blocks(text, "bash") for line in block.splitlines()] + re.findall(
            r"`([^`\n]+)`", text
        ):
            words = shlex.split(line.split("#")[0].split("|")[0], posix=True) if line.startswith("albertkit ") else []
            if len(words) < 2 or words[1].startswith("-") or words[1].isupper():
                continue
            command = app.commands.get(words[1])
            assert command is not None, f"{page.name}: {line}"
            try:
                parent = click.Context(app, info_name="albertkit", **app.context_settings)  # -h is click's to remember
                command.make_context(words[1], words[2:], parent=parent, resilient_parsing=False)
            except click.MissingParameter:
                pass
            except click.UsageError as error:
                raise AssertionError(f"{page.name}: {line}: {error.format_message()}") from None
            seen += 1
    assert seen >= 8


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_public_door():
    """Ten names, all there; anything else is an error that lists them."""
    assert sorted(albertkit.__all__) == [n for n in dir(albertkit) if n != "__version__"]
    for name in albertkit.__all__:
        assert getattr(albertkit, name).__doc__, name
    with pytest.raises(AttributeError, match="it offers Albert, AlbertConfig"):
        _ = albertkit.nothing


def test_the_inference_page_shows_what_was_measured():
    """docs/inference.md is written from bench/results/inference.json, and nothing else."""
    import json

    spec = importlib.util.spec_from_file_location("inference", ROOT / "bench" / "inference.py")
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    page = (ROOT / "docs" / "inference.md").read_text(encoding="utf-8")
    assert page == bench.table(json.loads(bench.RESULT.read_text()))
