"""The tutorial: its code runs, its text says what the code gives, and both languages are in step."""

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

TUTORIAL = ROOT / "docs" / "tutorial"
make = program("docs/tutorial/make")

CHAPTERS = make.chapters()
LANGUAGES = (TUTORIAL, TUTORIAL / "zh")
TEXTS = [folder / page.name for folder in LANGUAGES for page in CHAPTERS]


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_says_what_its_code_gives(chapter, one_thread):
    for path, text in make.stale(make.chapter_texts(chapter)).items():
        assert path.read_text(encoding="utf-8") == text, "stale; run  python docs/tutorial/make.py"


def test_the_page_about_the_documents_says_what_is_computed():
    assert not make.stale(make.document_texts()), "stale; run  python docs/tutorial/make.py"


def test_every_chapter_is_there_twice_and_listed():
    assert [page.name[0] for page in CHAPTERS] == list("12345")
    for folder in LANGUAGES:
        listed = re.findall(r"\]\((\d-[\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
        assert listed == [page.name for page in CHAPTERS]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_both_languages_have_the_same_code_headings_and_marks(chapter):
    english, chinese = make.twins(chapter)  # raises where code differs
    for number, (ours, theirs) in enumerate(zip(english.prose, chinese.prose, strict=True)):
        assert re.findall(r"^#+", ours, re.M) == re.findall(r"^#+", theirs, re.M), f"part {number}"
        assert len(make.MARK.findall(ours)) == len(make.MARK.findall(theirs)), f"part {number}"
        assert make.ABOUT.findall(ours) == make.ABOUT.findall(theirs), f"part {number}"
    assert english.shown == chinese.shown


def test_both_pages_about_the_documents_are_in_step():
    rows = [
        [(line.count("|"), re.findall(r"`([^`]+)`", line)) for line in text.splitlines() if line.startswith(("|", "#"))]
        for text in (path.read_text(encoding="utf-8") for path in make.DOCUMENTS)
    ]
    assert rows[0] == rows[1]


# What may stand in a sentence as it is: formulas, names, numbers of documents and chapters.
PLAIN = [
    r"```.*?^```",  # blocks
    r"<!--.*?-->[^<]*<!--/-->",  # computed
    r"<!--±[\d.]+-->",
    r"`[^`\n]*`",
    r"^>.*$",  # formulas
    r"\]\([^)]*\)",
    r"^#+ \d\. ",
    r"\b00[0-4]\b",
    r"(?i)\bchapters? \d|第 \d 章|^\| \[\d\. ",
    r"\bint8\b|\b4 bits\b|4 位|float\d+",
    r"m = \d|H − 1|4·d·d_a|\(2w \+ 2\)·n",
    r"\b[Ll]ayer 0\b|第 0 层|length 1\b|长度 1\b",
]


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_number_is_written_by_hand(page):
    text = page.read_text(encoding="utf-8")
    for pattern in PLAIN:
        text = re.sub(pattern, "", text, flags=re.S | re.M if "```" in pattern else re.M)
    left = [line for line in text.splitlines() if re.search(r"[0-9]", line)]
    assert not left, f"write it as <!--=expression-->…<!--/-->: {left[0]!r}"


@pytest.mark.parametrize("page", make.DOCUMENTS, ids=lambda path: path.parent.name)
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
    make.facts()  # puts the folder on the path
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
        == " · [measured](ablation.md): holds: smaller, fewer, no worse; does not hold: faster"
    )
    assert verdicts.tested("low_rank") == " · [实测](../ablation.md)：成立：参数更少、运算更少、质量不降；不成立：更快"
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
    for path, name in zip(make.DOCUMENTS, ("measured", "tested"), strict=True):
        asked = re.findall(rf"<!--={name}\(([^)]*)\)-->", path.read_text(encoding="utf-8"))
        pairs = [(*re.findall(r'"([^"]+)"', one), "canonical")[:2] for one in asked]
        assert len(pairs) >= 10
        assert set(pairs) <= {(claim.variant, claim.against) for claim in verdicts.judge().CLAIMS}


# The maker itself ------------------------------------------------------------------------------------------------

CHAPTER = """# Title

{word}

```python
x = 20 + 1  # {word}
print("x is", x)
```

{word}: <!--=x * 2-->0<!--/-->

```bash
echo "$((1 + 1))" > two.txt  # {word}
cat two.txt
```

```python
y = open("two.txt").read().strip()
```
"""


@pytest.fixture
def pages(tmp_path):
    (tmp_path / "zh").mkdir()
    chapter = tmp_path / "1-one.md"
    chapter.write_text(CHAPTER.format(word="words"), encoding="utf-8")
    (tmp_path / "zh" / "1-one.md").write_text(CHAPTER.format(word="文字"), encoding="utf-8")
    return chapter


def test_output_and_values_are_filled_in_and_stay(pages):
    texts = make.chapter_texts(pages)
    assert len(make.stale(texts)) == 2
    for path, text in texts.items():
        assert "```text\nx is 21\n```\n" in text and "```text\n2\n```\n" in text and "-->42<!--/-->" in text
        assert text.endswith("strip()\n```\n")
        path.write_text(text, encoding="utf-8")
    assert "文字: <!--=" in texts[pages.parent / "zh" / "1-one.md"]
    assert not make.stale(make.chapter_texts(pages))
    pages.write_text(pages.read_text().replace("x is 21", "x is 22"), encoding="utf-8")
    assert list(make.stale(make.chapter_texts(pages))) == [pages]


@pytest.mark.parametrize("old,new", [("20 + 1", "20 + 2"), ("1 + 1", "1 + 2"), ("```bash", "```sh")])
def test_code_that_differs_between_languages_is_an_error(pages, old, new):
    twin = pages.parent / "zh" / pages.name
    twin.write_text(twin.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(SystemExit, match="code block"):
        make.chapter_texts(pages)


def test_a_failing_command_is_an_error(pages):
    for path in (pages, pages.parent / "zh" / pages.name):
        path.write_text(path.read_text(encoding="utf-8").replace("cat two.txt", "cat three.txt"), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"three\.txt"):
        make.chapter_texts(pages)


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
    assert make.near(one, other, 0.03) is near


def test_check_ends_with_one_when_a_page_is_stale(tmp_path):
    """As a user calls it, on a copy whose first chapter says something else."""
    docs = tmp_path / "docs"
    (docs / "tutorial" / "zh").mkdir(parents=True)
    script = docs / "tutorial" / "make.py"
    script.write_text((TUTORIAL / "make.py").read_text(encoding="utf-8"), encoding="utf-8")
    for folder in (docs / "tutorial", docs / "tutorial" / "zh"):
        (folder / "1-one.md").write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", encoding="utf-8")

    def call(*arguments):
        return subprocess.run([sys.executable, script, *arguments, "1"], capture_output=True, text=True)

    checked = call("--check")
    assert checked.returncode == 1 and "docs/tutorial/1-one.md is stale" in checked.stdout
    assert call().returncode == 0
    assert call("--check").returncode == 0
