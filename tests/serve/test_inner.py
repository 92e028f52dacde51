"""Attention from the server: the numbers of `Inside`, in both forms, within limits, and of the model that is served."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace

import numpy as np
import pytest

from albertkit.runtime.inside import Inside
from albertkit.serve import inner
from albertkit.serve.inner import packed
from albertkit.serve.models import Source
from albertkit.serve.refusal import Refusal


def test_attention_in_both_forms(server, folders):
    wanted = Inside.open(folders["pairs"]).look("one text", "and another").attention
    asked = {"text": "one text", "pair": "and another", "model": "pairs"}
    found = server.post("/explain", {**asked, "attention": "float"}).json()
    assert np.allclose(found["attention"], wanted, atol=1e-5) and len(found["tokens"]) == wanted.shape[-1]
    found = server.post("/explain", {**asked, "attention": "base64"}).json()
    values = np.frombuffer(base64.b64decode(found["attention"]), "<u2").reshape(wanted.shape) / 65535
    assert np.allclose(values, wanted, atol=1e-5)
    assert server.post("/explain", asked).json()["attention"] is None
    masked = server.post("/explain", {"text": "a [MASK] text", "model": "words", "attention": "float"}).json()
    wanted = Inside.open(folders["words"]).look("a [MASK] text").attention
    assert masked["kind"] == "fill" and np.allclose(masked["attention"], wanted, atol=1e-5)


def test_limits(server, alberts):
    wrong = server.post("/explain", {"text": "a", "model": "words", "attention": "yes"})
    assert wrong.status_code == 422
    long = server.post("/explain", {"text": "word " * 100, "model": "words", "attention": "float"})
    assert long.status_code == 422 and "it must fit into 64" in long.json()["error"]
    model = SimpleNamespace(albert=alberts["words"])
    with pytest.raises(Refusal, match="it may have 50"):
        asyncio.run(inner.attention_of(None, None, model, SimpleNamespace(tokens=60), 100, "float"))


class Stub:
    """As much of a desk as opening needs."""

    def __init__(self, folders) -> None:
        self.models = type("Models", (), {"sources": [Source(name, path) for name, path in folders.items()]})


def test_two_models_stay_open_and_changed_files_are_refused(folders, alberts, monkeypatch):
    monkeypatch.setattr(inner, "_opened", type(inner._opened)())
    desk = Stub(folders)
    models = [
        type("Model", (), {"name": name, "number": -place, "albert": alberts[name]})
        for place, name in enumerate(("words", "pairs", "names"), 1)
    ]
    first = inner.inside_of(desk, models[0])
    assert inner.inside_of(desk, models[0]) is first
    for model in models[1:]:
        inner.inside_of(desk, model)
    assert len(inner._opened) == 2 and inner.inside_of(desk, models[0]) is not first
    models[2].number, models[2].albert = -9, alberts["pairs"]  # what is served is not what the folder holds
    with pytest.raises(inner.AlbertkitError, match="reload it first"):
        inner.inside_of(desk, models[2])


def test_packed():
    assert (
        packed(np.array([[0.0, 1.0], [0.5, 0.25]], np.float32))
        == base64.b64encode(np.array([0, 65535, 32768, 16384], "<u2").tobytes()).decode()
    )
