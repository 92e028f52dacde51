"""A model with the options that are not ALBERT's is served like any other."""

from __future__ import annotations

import numpy as np

from albertkit.albert import Albert
from albertkit.config import Options
from albertkit.explain import Explainer
from tests.model.test_options import CASES
from tests.serve.conftest import MADE, Served, make


def test_a_model_with_all_options_is_served(tmp_path):
    folder = make(tmp_path / "odd", *MADE["pairs"], options=Options(**CASES["everything"]))
    texts = ["one text", "and another one, which is longer"]
    with Served(f"odd={folder}", "--threads", 1) as server:
        found = server.post("/classify", {"texts": texts}).json()
        looked = server.post("/explain", {"text": texts[0], "attention": "float"}).json()
    albert = Albert(folder, threads=1)
    expected = albert.classify(texts)
    encoding = albert.tokenizer.encode(texts[0])
    attention = Explainer(albert).encoder.run(encoding.ids, encoding.segments).attention
    assert [r["label"] for r in found["results"]] == [r.label for r in expected]
    assert np.allclose([r["probability"] for r in found["results"]], [r.probability for r in expected], atol=1e-4)
    assert np.allclose(looked["attention"], attention, atol=1e-4)
