"""Every adapter names its pip line without its framework, and its example runs where the framework is installed."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys

import pytest

ADAPTERS = {
    "langchain": "langchain_core",
    "llama_index": "llama_index",
    "chroma": "chromadb",
    "spacy": "spacy",
}


@pytest.mark.parametrize(("adapter", "package"), ADAPTERS.items())
def test_without_its_framework_an_adapter_names_the_pip_line(adapter, package):
    """A finder hides the package, also where it is installed."""
    code = f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
from albertkit import AlbertkitError
try:
    import albertkit.adapters.{adapter}
except AlbertkitError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    extra = adapter.replace("_", "-")
    assert done.stdout == (
        f"albertkit.adapters.{adapter} needs {package!r}, which is not installed: "
        f"run  pip install 'albertkit[{extra}]'\n"
    )


@pytest.mark.parametrize(("adapter", "package"), ADAPTERS.items())
def test_examples_of_an_adapter_run(adapter, package, tmp_path, monkeypatch):
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(f"albertkit.adapters.{adapter}")
    found = doctest.testmod(module, extraglobs={"Albert": importlib.import_module("albertkit").Albert})
    assert found.failed == 0 and (found.attempted or adapter == "spacy")
