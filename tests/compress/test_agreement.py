"""`quantize` and `export` print one verdict, measured on real sentences."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from click.testing import CliRunner
from onnxruntime import InferenceSession

from albertkit.albert import Albert
from albertkit.artifact import write_artifact
from albertkit.builtin import BUILTINS
from albertkit.cli.entry_point import app
from albertkit.errors import AlbertkitError
from albertkit.runtime.agreement import SENTENCES, Agreement, compared_texts
from tests.conftest import tiny
from tests.test_albert import make


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A tiny float model."""
    folder = tmp_path_factory.mktemp("models") / "float"
    write_artifact(make(tiny(vocab_size=3000)), folder)
    return folder


def run(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize(
    ("cosines", "verdict"),
    [
        ([1.0, 1.0], "good"),
        ([0.99, 0.97], "good"),
        ([1.0, 1.0, 1.0, 1.0, 0.89], "fair"),
        ([0.97, 0.97], "fair"),
        ([1.0, 1.0, 1.0, 1.0, 0.6], "poor"),
        ([0.8, 0.8], "poor"),
        ([1.0, float("nan")], "poor"),
    ],
)
def test_the_verdict_depends_on_the_mean_and_on_the_lowest_cosine(cosines, verdict):
    agreement = Agreement.of(np.array(cosines), "texts")
    assert agreement.verdict == verdict and str(agreement).endswith(f"on {len(cosines)} texts: {verdict}")


@pytest.mark.parametrize("name", BUILTINS)
def test_built_in_sentences_are_in_the_language_of_the_model(name):
    language = "Chinese" if "zh" in name else "English"
    compared = compared_texts(Albert(name).tokenizer)
    assert compared.kind == f"built-in {language} sentences" and len(set(compared.texts)) == 64


def test_sentences_of_the_user_come_first():
    tokenizer = Albert("small").tokenizer
    assert compared_texts(tokenizer, ["a", " ", "b"]) == (["a", "b"], "texts")
    with pytest.raises(AlbertkitError, match="no texts"):
        compared_texts(tokenizer, ["", " "])
    assert compared_texts(None, ["a"]) is None
    assert set(json.loads(SENTENCES.read_text(encoding="utf-8"))) == {"English", "Chinese"}


def test_quantize_prints_one_verdict_on_real_sentences(source, tmp_path):
    done = run("quantize", source, tmp_path / "int8")
    (line,) = [line for line in done.stdout.splitlines() if "agreement" in line]
    assert line.endswith("on 64 built-in English sentences: good") and "random" not in done.output
    assert "differ" not in done.stderr
    (tmp_path / "texts.txt").write_text("".join(f"text number {i}\n" for i in range(40)))
    assert "on 4 texts: good" in run("quantize", source, tmp_path / "own", "-f", tmp_path / "texts.txt").stdout
    assert json.loads(run("quantize", source, tmp_path / "json", "--json").stdout)["verdict"] == "good"


@pytest.mark.parametrize("bits", [None, 8])
def test_export_prints_one_verdict_on_real_sentences(bits, tmp_path):
    write_artifact(make(tiny(vocab_size=3000), ("mlm",)), tmp_path / "m", bits=bits)
    done = run("export", tmp_path / "m", tmp_path / "m.onnx")
    (line,) = [line for line in done.stdout.splitlines() if "agreement" in line]
    assert line.endswith("on 64 built-in English sentences: good") and "random" not in done.output
    (tmp_path / "texts.txt").write_text("one\n\ntwo\n")
    more = ("export", tmp_path / "m", tmp_path / "v.onnx", "--head", "vector", "-f", tmp_path / "texts.txt", "--json")
    found = json.loads(run(*more).stdout)
    assert (found["texts"], found["text_kind"], found["verdict"]) == (2, "texts", "good")
    onnx, albert = InferenceSession(tmp_path / "v.onnx"), Albert(tmp_path / "m")
    encoding = albert.tokenizer.encode("one")
    inputs = {"input_ids": encoding.ids, "attention_mask": [1] * len(encoding.ids), "token_type_ids": encoding.segments}
    (vector,) = onnx.run(["sentence_embedding"], {name: np.array([row]) for name, row in inputs.items()})[0]
    cosine = vector @ albert.embed("one", normalize=True) / np.linalg.norm(vector)
    assert found["agreement_least"] - 0.01 < cosine


def test_a_poor_result_is_a_warning_with_a_remedy(tmp_path):
    """One huge channel in every matrix: four bits cannot represent the others."""
    artifact = make(tiny(vocab_size=3000))
    rng = np.random.default_rng(0)
    wild = {
        name: array * np.exp(3 * rng.standard_normal(array.shape)).astype(np.float32)
        if array.ndim == 2 and ".groups." in name
        else array
        for name, array in artifact.weights.items()
    }
    write_artifact(dataclasses.replace(artifact, weights=wild), tmp_path / "wild")
    done = run("quantize", tmp_path / "wild", tmp_path / "4", "--bits", "4")
    assert ": good" not in done.stdout
    assert "differ from those of" in done.stderr and "--bits 8" in done.stderr and "--check" in done.stderr
