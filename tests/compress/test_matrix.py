"""Every compressed model goes through every verb: from the command line, from Python, in torch and over HTTP."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from albertkit.artifact import Meta, read_artifact, write_artifact
from albertkit.cli import app
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.runtime.albert import Albert
from tests.conftest import tiny
from tests.runtime.test_albert import make

LINES = [f"text {i} speaks of cats and {'dogs' if i % 2 else 'trees'}" for i in range(40)]
PRUNED = {
    "heads": ["--heads", "2"],
    "ffn": ["--ffn", "1/2"],
    "layers": ["--layers", "2"],
    "vocabulary": ["--vocabulary", "lines.txt"],
    "all": ["--heads", "75%", "--ffn", "20", "--layers", "2", "--vocabulary", "lines.txt"],
}
VARIANTS = [*PRUNED, *(f"{name}-int{bits}" for name in ("heads", "all") for bits in (8, 4)), "static", "static-int8"]


def run(*arguments, code=0) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], standalone_mode=False)
    if code == 0 and done.exception is not None:
        raise done.exception
    return done.output


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A classifier that also fills masks, and its compressed forms, all made by the command line."""
    place = tmp_path_factory.mktemp("matrix")
    lines = place / "lines.txt"
    lines.write_text("\n".join(LINES) + "\n")
    meta = Meta(task="classify", labels=("animal", "plant"), details={"kind": "single"})
    write_artifact(dataclasses.replace(make(tiny(vocab_size=30000), ("mlm", "classify")), meta=meta), place / "whole")
    (place / "test.tsv").write_text(
        "text\tlabel\n" + "".join(f"{t}\t{('animal', 'plant')[i % 2]}\n" for i, t in enumerate(LINES[:6]))
    )
    for name, options in PRUNED.items():
        options = [str(lines) if o == "lines.txt" else o for o in options]
        run("prune", place / "whole", place / name, "-f", lines, *options)
    for name in ("heads", "all"):
        for bits in (8, 4):
            run("quantize", place / name, place / f"{name}-int{bits}", "--bits", bits, "-f", lines)
    run("static", place / "vocabulary", place / "static", "--texts", lines, "--dim", "16")
    run("quantize", place / "static", place / "static-int8")
    return place


@pytest.mark.parametrize("name", VARIANTS)
def test_vectors(models, name, tmp_path):
    folder = models / name
    assert len(json.loads(run("embed", "-m", folder, LINES[0]))["vector"]) == Albert(folder).dim
    assert run("similar", "-m", folder, *LINES[:3]).count("1.00") >= 3
    run("index", models / "lines.txt", "-o", tmp_path / "idx", "-m", folder)
    assert "cats" in run("search", tmp_path / "idx", "cats", "-m", folder, "-k", "2")
    assert "pieces" in run("info", folder) and run("tokenize", "-m", folder, "cats")
    run("export", folder, tmp_path / "m.onnx", "--head", "vector")
    assert json.loads(run("plan", folder, "--length", "8", "--json"))["parameters"]["total"] > 0
    if not name.endswith(("int8", "int4")):
        run("convert", folder, tmp_path / "again")
        assert np.array_equal(Albert(tmp_path / "again").embed(LINES), Albert(folder).embed(LINES))


@pytest.mark.parametrize("name", [n for n in VARIANTS if not n.startswith("static")])
def test_tasks_words_and_torch(models, name):
    folder = models / name
    albert = Albert(folder, threads=1)
    assert any(label in run("classify", folder, LINES[0], "--json") for label in albert.meta.labels)
    assert "6 examples" in run("evaluate", folder, models / "test.tsv")
    assert len(run("fill", "-m", folder, "cats and [MASK]", "-k", "2").splitlines()) == 2
    assert "norms" in run("profile", folder, "--length", "8", "--batch", "1", "--threads", "1")
    artifact = read_artifact(folder)
    model = AlbertModel.from_artifact(artifact)
    ids = [e.ids for e in artifact.tokenizer.encode_batch(LINES[:4])]
    scores = model(Batch.of(ids)).heads["classify"].logits.detach().numpy()
    with_runtime = [label.probabilities for label in albert.classify(LINES[:4])]
    softmax = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    close = 1e-4 if "int" not in name else 0.05
    assert np.abs(softmax - np.array([[p[label] for label in albert.meta.labels] for p in with_runtime])).max() < close


@pytest.mark.parametrize("name", ["heads", "all"])
def test_a_pruned_model_is_trained_on(models, name, tmp_path):
    (tmp_path / "train.tsv").write_text(
        "text\tlabel\n" + "".join(f"{t}\t{'animal' if 'dogs' in t else 'plant'}\n" for t in LINES)
    )
    from albertkit.cli_tasks import Reading, read_files
    from albertkit.train.tune import finetune
    from albertkit.train.tuning import Options

    examples = read_files("classify", {"train": tmp_path / "train.tsv"}, Reading())["train"]
    done = finetune(
        "classify", examples, examples, tmp_path / "out", models / name, Options(epochs=1, seeds=1), bar=False
    )
    config = read_artifact(done.model).config
    assert config.attention_size == read_artifact(models / name).config.attention_size
    assert Albert(done.model).classify("text of dogs").label in ("animal", "plant")


def test_served(models):
    pytest.importorskip("starlette")
    conftest = pytest.importorskip("tests.serve.conftest")
    names = ["heads", "all-int8", "all-int4", "static", "static-int8"]
    with conftest.Served(*(models / name for name in names), "--threads", 1) as server:
        for name in names:
            answer = server.post("/v1/embeddings", {"model": name, "input": LINES[:2]})
            assert answer.status_code == 200, answer.text
            vectors = np.array([row["embedding"] for row in answer.json()["data"]])
            assert (vectors * Albert(models / name, threads=1).embed(LINES[:2])).sum(1).min() > 0.9999
        answer = server.post("/classify", {"model": "all-int8", "texts": LINES[:2]})
        assert answer.status_code == 200, answer.text


def test_without_torch(models, tmp_path):
    """A process in which torch cannot be imported prunes, makes tables, exports, profiles and plans."""
    blocked = tmp_path / "blocked" / "torch"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    environment = {**os.environ, "PYTHONPATH": str(blocked.parent)}
    for arguments in (
        [
            "prune",
            models / "whole",
            tmp_path / "p",
            "--heads",
            "2",
            "--ffn",
            "1/2",
            "--vocabulary",
            models / "lines.txt",
        ],
        ["static", models / "vocabulary", tmp_path / "s"],
        ["export", models / "heads-int8", tmp_path / "m.onnx"],
        ["profile", models / "heads", "--length", "8"],
        ["plan", models / "heads", "--latency", "1s", "--count", "1", "--texts", models / "lines.txt"],
    ):
        command = [sys.executable, "-m", "albertkit.cli", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr


def test_static_tables_cannot_be_trained(models, tmp_path):
    with pytest.raises(AlbertkitError, match="no layers"):
        AlbertModel.from_artifact(models / "static")
