"""A custom head over HTTP: the endpoints of its task, without torch."""

from __future__ import annotations

import pytest

from albertkit.albert import Albert
from tests.custom_heads import save
from tests.serve.conftest import Served

TEXTS = ["a lovely film", "rather dull", "Ann met Bob in Rome"]


def test_endpoints_predict_as_the_model_does(tmp_path):
    for head in ("classify", "tag"):
        save(tmp_path / head, head)
    (tmp_path / "torch.py").write_text("raise ImportError('torch is not installed here')\n")
    folders = [f"{head}={tmp_path / head}" for head in ("classify", "tag")]
    with Served(*folders, "--workers", 2, env={"PYTHONPATH": str(tmp_path)}) as server:
        classes = server.post("/classify", {"texts": TEXTS, "model": "classify"}).json()["results"]
        tags = server.post("/tag", {"texts": TEXTS, "model": "tag"}).json()["results"]
    for found, wanted in zip(classes, Albert(tmp_path / "classify").classify(TEXTS), strict=True):
        assert found["label"] == wanted.label
        assert found["probabilities"] == pytest.approx(wanted.probabilities, abs=1e-5)
    for found, wanted in zip(tags, Albert(tmp_path / "tag").tag(TEXTS), strict=True):
        assert [span["label"] for span in found["spans"]] == [span.label for span in wanted.spans]
