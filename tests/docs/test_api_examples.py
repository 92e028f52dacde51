"""Every public name has an example, and the examples run as they stand, in a folder with examples/."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import albertkit
from tests.conftest import ROOT, program

api_page = program("docs/api_page")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "finetune" else name for name in albertkit.__all__]
)
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch):
    """Lines with `+SKIP` need a model or a server of the reader's; the guides run the same calls."""
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")
    text = inspect.getdoc(api_page.public(name))
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert example.examples, f"{name} has no example"
    assert example.examples[0].source.startswith("from albertkit import ")
    printed: list[str] = []
    failed, _ = doctest.DocTestRunner().run(example, out=printed.append)
    assert not failed, "".join(printed)
