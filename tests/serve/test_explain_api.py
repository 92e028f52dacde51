"""/explain: attention equals that of the numpy encoder, and early exit is where `early_exit=` exits."""

from __future__ import annotations

import base64
from types import SimpleNamespace

import numpy as np
import pytest

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError
from albertkit.explain import Explainer
from albertkit.explain.layer_predictions import calibrated_exit_depth
from albertkit.runtime.early_exit import ExitCalibration
from albertkit.runtime.predict import exit_scores, task_features
from albertkit.serve import explain_api
from albertkit.tasks.examples import QuestionExample, TaggedExample, TextExample, split_words


def attention(albert, text, pair=None):
    encoding = albert.tokenizer.encode(text, pair, recognize_mask="[MASK]" in text)
    return Explainer(albert).encoder.run(encoding.ids, encoding.segments).attention


def test_attention_in_both_formats(server, alberts):
    wanted = attention(alberts["pairs"], "one text", "and another")
    asked = {"text": "one text", "pair": "and another", "model": "pairs"}
    found = server.post("/explain", {**asked, "attention": "float"}).json()
    assert np.allclose(found["attention"], wanted, atol=1e-5) and len(found["tokens"]) == wanted.shape[-1]
    found = server.post("/explain", {**asked, "attention": "base64"}).json()
    values = np.frombuffer(base64.b64decode(found["attention"]), "<u2").reshape(wanted.shape) / 65535
    assert np.allclose(values, wanted, atol=1e-5)
    assert server.post("/explain", asked).json()["attention"] is None
    masked = server.post("/explain", {"text": "a [MASK] text", "model": "words", "attention": "float"}).json()
    wanted = attention(alberts["words"], "a [MASK] text")
    assert masked["kind"] == "fill" and np.allclose(masked["attention"], wanted, atol=1e-5)


def test_limits(server):
    wrong = server.post("/explain", {"text": "a", "model": "words", "attention": "yes"})
    assert wrong.status_code == 422
    long = server.post("/explain", {"text": "word " * 100, "model": "words", "attention": "float"})
    assert long.status_code == 422 and "has at most 64" in long.json()["error"]


def test_two_encoders_stay_open_and_changed_files_are_refused(folders, alberts):
    explain_api.open_encoder.cache_clear()
    first = explain_api.open_encoder(alberts["words"])
    assert explain_api.open_encoder(alberts["words"]) is first
    for name in ("pairs", "names"):
        explain_api.open_encoder(alberts[name])
    assert explain_api.open_encoder(alberts["words"]) is not first
    albert = Albert(folders["pairs"], threads=1)
    albert.source = folders["names"]  # the folder no longer has what is served
    with pytest.raises(AlbertkitError, match="have changed"):
        explain_api.open_encoder(albert)


def leaves(told, limit) -> int:
    """Where a text leaves with a limit on its doubt, by what /explain says."""
    found = [
        d
        for d, doubt in zip(told["exit_depths"], told["uncertainty"], strict=False)
        if doubt is not None and doubt <= limit
    ]
    return min(found, default=3)


def test_early_exit_equals_that_of_predictions(server, alberts):
    text = "a text about Angela Merkel"
    examples = {
        "pairs": ({"pair": "another"}, TextExample(text, "another")),
        "names": ({}, TaggedExample(text, split_words(text))),
        "reader": ({"question": "who is it?"}, QuestionExample("0", "who is it?", text)),
    }
    for name, (more, example) in examples.items():
        albert = alberts[name]
        told = server.post("/explain", {"text": text, "model": name, **more}).json()["early_exit"]
        assert told["kind"] == "entropy" and told["exit_depths"] == [1, 2] and len(told["uncertainty"]) == 3
        features = task_features(albert, [example], albert.metadata.task)
        for limit in sorted(
            {0.0, 1.0, *(round(doubt + step, 4) for doubt in told["uncertainty"] for step in (-0.01, 0.01))}
        ):
            if 0 <= limit <= 1:
                left = exit_scores(albert, features, [example], f"entropy:{limit}")
                assert left.depths[0] == leaves(told, limit), (name, limit, told)
    told = server.post("/explain", {"text": text, "model": "words"}).json()["early_exit"]
    assert told["kind"] == "cosine" and told["uncertainty"][0] is None and told["exit_depth_99"] is None
    for cosine in (0.0, 0.5, 0.99):
        assert alberts["words"].embed_early_exit([text], f"cosine:{cosine}")[1][0] == leaves(told, 1 - cosine)
    assert server.post("/explain", {"text": "a [MASK]", "model": "words"}).json()["early_exit"] is None
    value = server.post("/explain", {"text": text, "model": "stars"}).json()["early_exit"]
    assert value["kind"] == "change" and value["uncertainty"][0] is None


def test_a_calibrated_model_has_an_exit_depth():
    exits = ExitCalibration(3, (1, 2), ((0.0, 2.0), (0.0, 2.0)), tuple((r, 0.999, 2.0) for r in (1e-3, 1e-2)), 900)
    albert = SimpleNamespace(depth=3, metadata=SimpleNamespace(details={"early_exit": exits.to_dict()}))
    limit = exits.limits(0.99)[0]
    assert calibrated_exit_depth(albert, [1, 2], [limit / 2, 0.9, 0.0]) == 1
    assert calibrated_exit_depth(albert, [1, 2], [limit * 2, limit / 2, 0.0]) == 2
    assert calibrated_exit_depth(albert, [1, 2], [None, 0.9, 0.0]) == 3
    albert.metadata.details["early_exit"] = {"depth": 3}  # damaged
    assert calibrated_exit_depth(albert, [1, 2], [0.0, 0.0, 0.0]) is None
