"""sentence-transformers folders: read with equal vectors, written with equal vectors, refused when we would differ."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from albertkit.albert import Albert
from albertkit.artifact import write_artifact
from albertkit.errors import AlbertkitError
from albertkit.interop.layouts import export_layout
from albertkit.interop.onnx_export import ExportSettings
from albertkit.sklearn import AlbertVectorizer
from tests.conftest import tiny
from tests.test_albert import TEXTS, make


@pytest.fixture(scope="module")
def artifact():
    return make(tiny(vocab_size=3000))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_round_trip_keeps_the_vectors(artifact, tmp_path, pooling, normalize):
    meta = dataclasses.replace(
        artifact.metadata, task="embed", pooling=pooling, normalize=normalize, prompts={"query": "ask: "}
    )
    artifact = dataclasses.replace(artifact, metadata=meta)
    write_artifact(artifact, tmp_path / "ours")
    export_layout(tmp_path / "ours", tmp_path / "theirs", "sentence-transformers")
    ours, back = Albert(tmp_path / "ours"), Albert(tmp_path / "theirs")
    assert np.abs(ours.embed(TEXTS) - back.embed(TEXTS)).max() <= 1e-6
    assert back.metadata.pooling == pooling and back.metadata.normalize is normalize
    assert np.abs(ours.embed("x", prompt="query") - back.embed("ask: x")).max() <= 1e-6
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    texts = [t for t in TEXTS if t]
    assert np.abs(theirs.encode(texts) - back.embed(texts)).max() <= 1e-5
    assert np.abs(theirs.encode(["x"], prompt_name="query")[0] - back.embed("x", prompt="query")).max() <= 1e-5


@pytest.mark.parametrize("case", ["depth", "default prompt", "frozen head", "long text"])
def test_written_folder_gives_our_vectors(case, artifact, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    changes = {
        "depth": {"depth": 2},
        "default prompt": {"prompts": {"default": "text: ", "query": "ask: "}},
        "frozen head": {"task": "classify", "labels": ("a", "b"), "details": {"reads": "vector", "temperature": 2.0}},
        "long text": {},
    }[case]
    heads = ("classify",) if case == "frozen head" else ("mlm",)
    made = make(tiny(vocab_size=3000), heads)
    made = dataclasses.replace(made, metadata=dataclasses.replace(made.metadata, **{"task": "embed", **changes}))
    write_artifact(made, tmp_path / "ours")
    export_layout(tmp_path / "ours", tmp_path / "theirs", "sentence-transformers", ExportSettings(head="vector"))
    texts = ["many words " * 60] if case == "long text" else [text for text in TEXTS if text]
    theirs = library.SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    ours = Albert(tmp_path / "ours").embed(texts, long_texts="truncate")
    assert np.abs(theirs.encode(texts) - ours).max() <= 1e-5


def write_layout(artifact, folder):
    write_artifact(artifact, folder.with_name("source"))
    export_layout(folder.with_name("source"), folder, "sentence-transformers")


def test_their_shorter_length_is_honoured(artifact, tmp_path):
    write_layout(artifact, tmp_path / "m")
    (tmp_path / "m" / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16}))
    albert = Albert(tmp_path / "m")
    assert albert.max_tokens == 16
    assert albert.embed("word " * 50, long_texts="truncate").shape == (32,)


def test_what_we_would_compute_differently_is_refused(artifact, tmp_path):
    write_layout(artifact, tmp_path / "m")
    modules = json.loads((tmp_path / "m" / "modules.json").read_text())
    pooling = json.loads((tmp_path / "m" / "1_Pooling" / "config.json").read_text())

    def refused(words, new_modules=modules, new_pooling=pooling):
        (tmp_path / "m" / "modules.json").write_text(json.dumps(new_modules))
        (tmp_path / "m" / "1_Pooling" / "config.json").write_text(json.dumps(new_pooling))
        with pytest.raises(AlbertkitError, match=words):
            Albert(tmp_path / "m")

    dense = {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    refused("albertkit supports Transformer", [*modules, dense])
    refused("only plain names", [{**modules[0], "path": "../elsewhere"}, *modules[1:]])
    refused("must be a list", {"a": 1})
    refused("uses the pooling", new_pooling={"pooling_mode_weightedmean_tokens": True})


@pytest.fixture(scope="module")
def scorer(artifact, tmp_path_factory):
    """The folder of a classifier with one output, as transformers writes it."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("scorer")
    settings = transformers.AlbertConfig(**tiny(vocab_size=3000).to_dict(), num_labels=1)
    transformers.AlbertForSequenceClassification(settings).save_pretrained(folder)
    artifact.tokenizer.save(folder)
    return folder


def test_a_cross_encoder_is_a_model_of_pairs(scorer, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    theirs = library.CrossEncoder(str(scorer), device="cpu")
    theirs.save_pretrained(str(tmp_path / "m"))
    ours = Albert(tmp_path / "m")
    assert ours.metadata.details["pairs"] and ours.metadata.task == "classify"
    found = [one.label for one in ours.classify(TEXTS[:3], ["a cat"] * 3)]
    wanted = theirs.predict([(text, "a cat") for text in TEXTS[:3]], activation_fn=torch.nn.Identity())
    assert found == pytest.approx(wanted.tolist(), abs=1e-5)


@pytest.mark.parametrize("key", [None, "sentence_transformers", "sbert_ce_default_activation_function"])
def test_a_cross_encoder_of_an_older_version_is_known_by_its_config(scorer, tmp_path, key):
    folder = shutil.copytree(scorer, tmp_path / "m")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **({key: {}} if key else {})}))
    assert Albert(folder).metadata.details.get("pairs", False) is (key is not None)


def test_wrappers(artifact, tmp_path):
    write_artifact(artifact, tmp_path / "m")
    step = AlbertVectorizer(tmp_path / "m", pooling="cls")
    assert step.get_params()["pooling"] == "cls" and np.allclose(
        step.fit_transform(TEXTS), Albert(tmp_path / "m").embed(TEXTS, pooling="cls")
    )
    pipeline = pytest.importorskip("sklearn.pipeline")
    linear = pytest.importorskip("sklearn.linear_model")
    model = pipeline.make_pipeline(AlbertVectorizer(tmp_path / "m"), linear.LogisticRegression())
    assert list(model.fit(["good", "bad"] * 4, [1, 0] * 4).predict(["good", "bad"])) == [1, 0]
