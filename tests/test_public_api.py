"""The public API: every name imports, is documented and typed; importing the package loads nothing heavy; models can be
pickled.
"""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest

import albertkit
from albertkit.albert import Albert

PUBLIC_METHODS = [name for name, _ in inspect.getmembers(Albert, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("name", albertkit.__all__)
def test_every_public_name_imports_and_is_documented(name):
    assert inspect.getdoc(getattr(albertkit, name)), f"{name} has no docstring"


def test_the_names_and_their_modules_are_one_list():
    assert sorted(albertkit.__all__) == sorted(albertkit._MODULES) and set(albertkit.__all__) <= set(dir(albertkit))
    with pytest.raises(AttributeError, match="has no attribute 'Bert'; it has Albert"):
        albertkit.Bert  # noqa: B018


def test_serve_is_a_function_and_a_package():
    from albertkit import serve
    from albertkit.serve.server import serve as function

    assert callable(serve) and serve.server.serve is function


@pytest.mark.parametrize("name", [n for n in albertkit.__all__ if n.endswith(("Result", "Prediction", "Hit"))])
def test_results_are_frozen(name):
    kind = getattr(albertkit, name)
    assert dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen


@pytest.mark.parametrize("name", PUBLIC_METHODS)
def test_methods_of_albert_are_typed_and_show_an_example(name):
    method = getattr(Albert, name)
    annotations = dict(inspect.signature(method).parameters)
    annotations.pop("self")
    assert all(p.annotation not in (inspect.Parameter.empty, "Any") for p in annotations.values())
    assert inspect.signature(method).return_annotation not in (inspect.Signature.empty, "Any")
    if method.__qualname__.startswith("Albert."):
        assert ">>>" in (inspect.getdoc(method) or ""), f"{name} shows no example"


def test_importing_the_package_loads_nothing_heavy():
    heavy = ("numpy", "onnx", "onnxruntime", "tokenizers", "torch", "sklearn", "click")
    code = f"import sys, albertkit; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_pickled_model_opens_again_with_its_options():
    albert = Albert(threads=1, depth=6, token_budget=512)
    again = pickle.loads(pickle.dumps(albert))
    assert (again.name, again.depth, again.token_budget, again.engine.threads) == (albert.name, 6, 512, 1)
    assert np.array_equal(again.embed("a cat"), albert.embed("a cat")) and repr(again) == repr(albert)
    assert "depth=6" in repr(albert) and "int8" in repr(albert)
