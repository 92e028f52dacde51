"""The examples of the guide run in both languages, where their framework is installed, and print what the guide shows."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from tests.conftest import ROOT
from tests.serve.conftest import MADE, make

PACKAGES = {
    "LangChain": "langchain_core",
    "LlamaIndex": "llama_index",
    "Chroma": "chromadb",
    "scikit-learn": "sklearn",
    "spaCy": "spacy",
}


@pytest.mark.parametrize("language", ["", "zh/"])
@pytest.mark.parametrize(("title", "package"), PACKAGES.items())
def test_an_example_of_the_guide_runs(title, package, language, tmp_path, monkeypatch):
    framework = pytest.importorskip(package)
    if title == "Chroma":
        framework.api.client.SharedSystemClient.clear_system_cache()  # it knows databases by their relative path
    page = (ROOT / f"docs/{language}guides/migration.md").read_text(encoding="utf-8")
    section = page.partition(f"\n### {title}\n")[2].partition("\n##")[0]
    (code,) = re.findall(r"^```py\n(.*?)^```", section, re.S | re.M)
    shown = re.findall(r"^```text\n(.*?)^```", section, re.S | re.M)
    monkeypatch.chdir(tmp_path)
    if title == "spaCy":
        make(tmp_path / "ner" / "model", *MADE["names"])
        make(tmp_path / "sentiment" / "model", *MADE["topics"])
        import albertkit.adapters.spacy  # noqa: F401  as the entry point does
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, title, "exec"), {"__name__": "guide"})
    assert printed.getvalue() and [printed.getvalue()] == (shown or [printed.getvalue()])
