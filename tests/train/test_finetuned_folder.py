"""The folder that fine-tuning writes: transformers refuses it until it is converted, then computes the same."""

from __future__ import annotations

import pytest
import transformers

from albertkit.albert import Albert
from albertkit.artifact import write_artifact
from albertkit.interop.convert import convert
from albertkit.train.finetune import finetune_examples
from albertkit.train.train_settings import FinetuneSettings
from tests.train.test_finetune import start as start  # the fixture
from tests.train.test_finetune import texts

QUICK = {"epochs": 2, "restarts": 0, "batch_size": 16, "learning_rate": 2e-3, "device": "cpu"}


def test_pipeline_gives_the_probabilities_of_a_fine_tuned_model(start, tmp_path):
    done = finetune_examples("classify", texts(80), texts(30, 9), tmp_path, start, FinetuneSettings(**QUICK))
    albert, chosen = Albert(done.model), [example.text for example in texts(8, 5)]
    assert albert.task.temperature != 1.0
    with pytest.raises(ValueError, match="does not recognize this architecture"):
        transformers.pipeline("text-classification", str(done.model))
    convert(done.model, tmp_path / "out")
    found = transformers.pipeline("text-classification", str(tmp_path / "out"), device="cpu", top_k=None)(chosen)
    for result, row in zip(albert.classify(chosen), found, strict=True):
        assert {each["label"]: each["score"] for each in row} == pytest.approx(result.probabilities, abs=1e-4)


def test_head_on_frozen_vectors_does_not_open(start, tmp_path):
    base = write_artifact(start, tmp_path / "base")
    done = finetune_examples("classify", texts(60), texts(30, 9), tmp_path / "out", base, FinetuneSettings(freeze=True))
    with pytest.raises(ValueError, match="does not recognize this architecture"):
        transformers.pipeline("text-classification", str(done.model))
    assert "reads the sentence vector" in (done.model / "README.md").read_text()
