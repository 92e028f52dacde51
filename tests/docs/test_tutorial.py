"""ALBERT explained, and the documents claim by claim: code runs, numbers are computed, both languages agree."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys

import pytest
import torch

from albertkit.config import Options
from tests.conftest import ROOT, program

tutorial = program("docs/tutorial")

SECTIONS = range(len(tutorial.sections(tutorial.ALBERT[0].read_text(encoding="utf-8"))))


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("number", SECTIONS)
def test_a_section_shows_what_its_code_prints(number, one_thread):
    """Of albert.md and its twin."""
    for path, text in tutorial.stale(tutorial.albert_texts(numbers=[number])).items():
        assert path.read_text(encoding="utf-8") == text, "stale; run  python docs/tutorial.py"


def test_the_page_about_the_documents_shows_what_is_computed():
    assert not tutorial.stale(tutorial.documents_texts()), "stale; run  python docs/tutorial.py"


@pytest.mark.parametrize("number", SECTIONS)
def test_both_languages_have_the_same_code_output_headings_and_marks(number):
    english, chinese = (tutorial.sections(page.read_text(encoding="utf-8"))[number] for page in tutorial.ALBERT)
    (prose, code, output), (prose_zh, code_zh, output_zh) = (
        [tutorial.BLOCK.split(text)[kind::3] for kind in range(3)] for text in (english, chinese)
    )
    tutorial.compare_code(code, code_zh)
    assert output == output_zh
    for ours, theirs in zip(prose, prose_zh, strict=True):
        for same in (r"^#+", r"<!--±([\d.]+)-->", r"<!--=", r"^>"):
            assert re.findall(same, ours, re.M) == re.findall(same, theirs, re.M)


def test_both_pages_about_the_documents_are_in_step():
    rows = [
        [(line.count("|"), re.findall(r"`([^`]+)`", line)) for line in text.splitlines() if line.startswith(("|", "#"))]
        for text in (path.read_text(encoding="utf-8") for path in tutorial.DOCUMENTS)
    ]
    assert rows[0] == rows[1]


# Digits that need no computation: formulas, names, numbers of sections.
PLAIN = [
    r"```.*?^```",  # blocks
    r"<!--.*?-->[^<]*<!--/-->",  # computed
    r"<!--±[\d.]+-->",
    r"`[^`\n]*`",
    r"^>.*$",  # formulas
    r"arXiv [\d.]+|\]\([^)]*\)",
    r"^## \d\. ",
    r"(?i)\bsections? \d( (to|and) \d)?|第 \d( 至 \d|、\d)? 节",
    r"\b[1-9] bits\b|[1-9] 位",
    r"version \d|m = \d|length 1\b|长度 1\b|\b[Ll]ayer 0\b|第 0 层",
]


@pytest.mark.parametrize("page", tutorial.ALBERT, ids=("en", "zh"))
def test_no_number_is_written_by_hand(page):
    text = page.read_text(encoding="utf-8")
    for pattern in PLAIN:
        text = re.sub(pattern, "", text, flags=re.S | re.M if "```" in pattern else re.M)
    left = [line for line in text.splitlines() if re.search(r"[0-9]", line)]
    assert not left, f"write it as <!--=expression-->…<!--/-->: {left[0]!r}"


@pytest.mark.parametrize("page", tutorial.DOCUMENTS, ids=lambda path: path.parent.name)
def test_tests_and_options_named_beside_a_claim_exist(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) >= 15
    for file, function in named:
        assert f"\ndef {function}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{function}"
    known = {field.name for field in dataclasses.fields(Options)}
    assert set(re.findall(r"`Options\.(\w+)`", text)) <= known


@pytest.fixture
def verdicts(tmp_path, monkeypatch):
    """The words about measured claims, with lines of our own: two seeds of a variant that is smaller, as good, and not
    faster.
    """
    tutorial.facts()  # puts the folder on the path
    import verdicts

    def line(variant, seed, parameters):
        quality = {"mlm_accuracy": 0.4 + 0.01 * seed, "operations_per_token": parameters}
        return {"variant": variant, "seed": seed, "recipe": {"shape": "small"}, "parameters": parameters, **quality}

    lines = [line(name, seed, size) for name, size in (("canonical", 100), ("low_rank", 50)) for seed in (0, 1)]
    path = tmp_path / "ablation.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    monkeypatch.setattr(verdicts, "LINES", path)
    speeds = {"recipe": {"what": "reading", "shape": "small", "batch": 8}, "machine": {"device": "GPU"},
              "tokens_per_second": {"canonical": 100.0, "low_rank": 100.0}}  # fmt: skip
    (tmp_path / "speed.json").write_text(json.dumps([speeds]), encoding="utf-8")
    monkeypatch.setattr(verdicts, "SPEEDS", tmp_path / "speed.json")
    return verdicts


def test_a_measured_claim_gets_its_verdict_in_both_languages(verdicts):
    assert (
        verdicts.measured("low_rank")
        == " · [measured](../results/ideas.md): holds: smaller, fewer, no worse; does not hold: faster"
    )
    assert (
        verdicts.tested("low_rank")
        == " · [实测](../../results/ideas.md)：成立：参数更少、运算更少、质量不降；不成立：更快"
    )
    assert verdicts.measured("gru") == verdicts.tested("gru") == ""
    with verdicts.LINES.open("a", encoding="utf-8") as file:
        file.write(
            json.dumps({"variant": "gru", "seed": 0, "recipe": {"shape": "small"}, "failed": "it diverged"}) + "\n"
        )
    assert verdicts.measured("gru").endswith(": not seen: better") and verdicts.tested("gru").endswith(
        "：未见：质量更好"
    )
    verdicts.SPEEDS.unlink()
    assert verdicts.measured("low_rank").endswith("; not measured: faster") and verdicts.tested("low_rank").endswith(
        "；未测：更快"
    )


def test_every_verdict_that_the_page_asks_for_can_be_given(verdicts):
    for path, name in zip(tutorial.DOCUMENTS, ("measured", "tested"), strict=True):
        asked = re.findall(rf"<!--={name}\(([^)]*)\)-->", path.read_text(encoding="utf-8"))
        pairs = [(*re.findall(r'"([^"]+)"', one), "canonical")[:2] for one in asked]
        assert len(pairs) >= 10
        assert set(pairs) <= {(claim.variant, claim.baseline) for claim in verdicts.judge().CLAIMS}


# The program itself -----------------------------------------------------------------------------------------------

PAGE = """# Title

{word}

## 1. One

```python
x = 20 + 1  # {word}
print("x is", x)
```

{word}: <!--=x * 2-->0<!--/-->

```python
y = open("two.txt", "w").write("2")
```

## 2. Two

```python
import os

print("x" in globals(), os.listdir())
```
"""


@pytest.fixture
def pages(tmp_path):
    paths = tmp_path / "en.md", tmp_path / "zh.md"
    for path, word in zip(paths, ("words", "文字"), strict=True):
        path.write_text(PAGE.format(word=word), encoding="utf-8")
    return paths


def test_output_and_values_are_filled_in_and_stay(pages):
    texts = tutorial.albert_texts(pages)
    assert len(tutorial.stale(texts)) == 2
    for path, text in texts.items():
        assert "```text\nx is 21\n```\n" in text and "-->42<!--/-->" in text
        assert text.endswith("```text\nFalse []\n```\n"), "sections share no names and no files"
        path.write_text(text, encoding="utf-8")
    assert "文字: <!--=" in texts[pages[1]]
    assert not tutorial.stale(tutorial.albert_texts(pages))
    pages[0].write_text(texts[pages[0]].replace("x is 21", "x is 22"), encoding="utf-8")
    assert not tutorial.stale(tutorial.albert_texts(pages, numbers=[2]))
    assert list(tutorial.stale(tutorial.albert_texts(pages, numbers=[1]))) == [pages[0]]


@pytest.mark.parametrize("old,new", [("20 + 1", "20 + 2"), ("```python\nimport", "```py\nimport")])
def test_code_that_differs_between_languages_is_an_error(pages, old, new):
    pages[1].write_text(pages[1].read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(SystemExit, match="code block"):
        tutorial.albert_texts(pages)


def test_a_section_that_one_language_lacks_is_an_error(pages):
    pages[1].write_text(pages[1].read_text(encoding="utf-8").split("## 2.")[0], encoding="utf-8")
    with pytest.raises(SystemExit, match="3 sections in English, 2 in Chinese"):
        tutorial.albert_texts(pages)


@pytest.mark.parametrize(
    "one,other,near",
    [
        ("a 0.51", "a 0.53", True),
        ("a 0.51", "a 0.55", False),
        ("a 0.51", "b 0.51", False),
        ("-0.01", "0.01", True),
        ("1 of 2", "1 of 3", False),
        ("1", "1 2", False),
    ],
)
def test_numbers_that_processors_round_differently_are_near(one, other, near):
    assert tutorial.is_near(one, other, 0.03) is near


def test_check_exits_with_one_when_a_page_is_stale(tmp_path):
    """As a user calls it, on a copy whose first section shows something else."""
    docs = tmp_path / "docs"
    for folder in (docs / "understand", docs / "zh" / "understand"):
        folder.mkdir(parents=True)
        text = "# Title\n\n## 1. One\n\n```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
        (folder / "albert.md").write_text(text, encoding="utf-8")
    script = docs / "tutorial.py"
    script.write_text((ROOT / "docs" / "tutorial.py").read_text(encoding="utf-8"), encoding="utf-8")

    def call(*arguments):
        return subprocess.run([sys.executable, script, *arguments, "1"], capture_output=True, text=True)

    checked = call("--check")
    assert checked.returncode == 1 and "docs/understand/albert.md is stale" in checked.stdout
    assert call().returncode == 0
    assert call("--check").returncode == 0
