"""Inputs of `embed` and `classify` that would give another result than the one that was wanted: errors and warnings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from albertkit import Albert, AlbertkitError, TextExample, TruncatedTextWarning, finetune
from albertkit.artifact import ArtifactMetadata, write_artifact
from tests.conftest import tiny
from tests.serve.conftest import Served
from tests.test_albert import make

LONG = "a cat sat " * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier of single texts that reads 24 tokens."""
    artifact = make(tiny(vocab_size=3000, max_position_embeddings=64), heads=("classify",))
    details = {"max_length": 24, "pairs": False}
    metadata = replace(ArtifactMetadata(), task="classify", labels=("bad", "good"), details=details)
    return write_artifact(replace(artifact, metadata=metadata), tmp_path_factory.mktemp("m") / "classes")


@pytest.mark.parametrize("keywords", [{"dims": 8}, {"normalise": False}, {"layers": 3}, {"prompts": "q"}])
def test_an_unknown_option_of_embed_is_an_error(keywords):
    with pytest.raises(AlbertkitError, match=r"unknown option .* \(did you mean"):
        Albert(threads=1).embed("a cat", **keywords)


def test_a_word_as_a_prompt_is_the_name_of_one():
    albert = Albert(threads=1)
    with pytest.raises(AlbertkitError, match="prompt='query' is not the name of a prompt: this model has no prompts"):
        albert.embed("a cat", prompt="query")
    with pytest.raises(AlbertkitError, match="prompt=5 is not a string"):
        albert.embed("a cat", prompt=5)
    assert np.array_equal(albert.embed("a cat", prompt="query: "), albert.embed("query: a cat"))


def test_dimensions_are_whole_numbers():
    albert = Albert(threads=1)
    assert np.array_equal(albert.embed("a cat", dim=np.int64(8)), albert.embed("a cat", dim=8))
    with pytest.raises(AlbertkitError, match="dim=True is not available. Pass a whole number from 1 to 384"):
        albert.embed("a cat", dim=True)


def test_an_error_of_depth_offers_only_layers_that_the_model_has():
    with pytest.raises(AlbertkitError, match="Pass one of these; layer=5 gives the hidden states there"):
        Albert(threads=1).embed("a cat", depth=5)
    with pytest.raises(AlbertkitError, match="Pass one of these.$"):
        Albert(threads=1).embed("a cat", depth=13)


def test_a_classifier_of_texts_refuses_pairs(folder):
    with pytest.raises(AlbertkitError, match="has a second text, but this model was trained on single texts"):
        Albert(folder, threads=1).classify("a cat", pairs="a dog")


def test_fine_tuning_records_whether_examples_are_pairs(tmp_path):
    examples = [TextExample(text, label=text[:1]) for text in ["a cat", "b dog"] * 10]
    found = finetune("classify", examples, output=tmp_path / "m", model="small", freeze=True)
    with pytest.raises(AlbertkitError, match="trained on single texts"):
        Albert(found.model, threads=1).classify("a cat", pairs="a dog")


def test_texts_that_are_not_read_to_the_end_give_a_warning(folder):
    albert = Albert(folder, threads=1)
    with pytest.warns(TruncatedTextWarning, match="1 of 2 texts is longer than the 24 tokens that this model reads"):
        albert.classify(["a cat", LONG])
    exact = " ".join(["a"] * 22)
    assert len(albert.tokenizer.encode(exact).ids) == 24
    albert.classify(exact)  # a warning is an error here


def test_the_server_warns_of_texts_that_are_not_read_to_the_end(folder):
    with Served(f"classes={folder}", "--threads", 1) as server:
        answer = server.post("/classify", {"texts": [LONG, "a cat"]})
        assert answer.status_code == 200 and "longer than the 24 tokens" in answer.json()["warnings"][0]
        assert "longer than the 24 tokens" in answer.headers["x-albertkit-warning"]
        assert server.post("/classify", {"texts": ["a cat"]}).json()["warnings"] == []
