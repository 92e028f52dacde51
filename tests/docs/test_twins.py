"""Pages in English and Chinese: every guide has its twin, and both run the same commands."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.doc_commands import joined

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
MODEL_OPTIONS = {"-m", "--model"}  # Chinese pages name a Chinese model


def code_blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def command_shapes(page: Path) -> list[tuple[str, ...]]:
    """The shape of each command of a page."""
    return line_shapes(line for block in code_blocks(page, "bash") for line in joined(block))


def line_shapes(lines: Iterable[str]) -> list[tuple[str, ...]]:
    """Program, subcommand and option names of each command, without texts, files and models."""
    found = []
    for line in lines:
        for part in re.split(r"\s(?:\||&&)\s", line):
            words = shlex.split(part, comments=True)
            names = words[:2] if words[0] == "albertkit" else words[:1]
            options = sorted({w.split("=")[0] for w in words if re.match(r"--?[a-zA-Z]", w)} - MODEL_OPTIONS)
            found.append((*names, *options))
    return found


def called_names(page: Path) -> list[list[str]]:
    """The functions that each Python block calls."""
    return [
        [ast.unparse(node.func) for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
        for block in code_blocks(page, "python")
    ]


def heading_levels(page: Path) -> list[str]:
    return re.findall(r"^(#+) ", re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M), re.M)


def test_every_guide_has_a_chinese_twin():
    assert [p.name for p in GUIDES] == sorted(p.name for p in (ROOT / "docs" / "zh" / "guides").glob("*.md"))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda page: page.stem)
def test_both_languages_run_the_same_commands(guide):
    chinese = ROOT / "docs" / "zh" / "guides" / guide.name
    assert command_shapes(guide) == command_shapes(chinese)
    assert called_names(guide) == called_names(chinese)
    assert heading_levels(guide) == heading_levels(chinese)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda page: page.stem)
def test_chinese_guides_are_in_chinese(guide):
    """Most of what a reader reads: prose has more ideographs than Latin words."""
    text = (ROOT / "docs" / "zh" / "guides" / guide.name).read_text(encoding="utf-8")
    prose = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    assert len(re.findall(r"[\u4e00-\u9fff]", prose)) > 3 * len(re.findall(r"[A-Za-z]{2,}", prose))
    assert any(re.search(r"[\u4e00-\u9fff]", block) for kind in ("bash", "python") for block in code_blocks(ROOT / "docs" / "zh" / "guides" / guide.name, kind))  # fmt: skip
