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

from albertkit.albert import Albert
from albertkit.artifact import ArtifactMetadata, read_artifact, read_stored, write_artifact
from albertkit.cli.entry_point import app
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.tasks.dataset import read_splits
from albertkit.tasks.readers.labelled_files import ReadOptions
from tests.conftest import ROOT, tiny
from tests.test_albert import make

LINES = [f"text {i} speaks of cats and {'dogs' if i % 2 else 'trees'}" for i in range(40)]
PRUNED = {
    "heads": ["--heads", "2"],
    "ffn": ["--ffn", "1/2"],
    "layers": ["--layers", "2"],
    "vocabulary": ["--vocabulary", "lines.txt"],
    "all": ["--heads", "75%", "--ffn", "20", "--layers", "2", "--vocabulary", "lines.txt"],
}
# whose models are smaller, and were trained with the whole one as their teacher; the elastic one taught itself
TRAINED = {
    "recovered": ["prune", "whole", "recovered", "--heads", "2", "--ffn", "1/2", "--train", "train.tsv", "--epochs", "1"],
    "aware-int4": ["quantize", "whole", "aware-int4", "--bits", "4", "--train", "train.tsv", "--epochs", "1"],
    "student/model": ["distill", "whole", "train.tsv", "--what", "logits,hidden", "--shape", "shape.json", "--steps", "4", "-o", "student"],
    "elastic/model": ["elastic", "whole", "train.tsv", "--epochs", "1", "-o", "elastic"],
}  # fmt: skip
QUANTISED = [f"{name}-int{bits}" for name in ("heads", "all") for bits in (8, 4)]
VARIANTS = [*PRUNED, *QUANTISED, *TRAINED, "static", "static-int8"]


def run(*arguments, code=0) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], standalone_mode=False)
    if code == 0 and done.exception is not None:
        raise done.exception
    return done.output


def table(texts) -> str:
    """Labelled examples as a file."""
    return "text\tlabel\n" + "".join(f"{text}\t{'animal' if 'dogs' in text else 'plant'}\n" for text in texts)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A classifier that also fills masks, and its compressed forms, all made by the command line."""
    place = tmp_path_factory.mktemp("matrix")
    other = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    for name, text in {
        "lines.txt": "\n".join(LINES) + "\n",
        "words.txt": "\n".join([*LINES, *(line for line in other if line)]),
        "train.tsv": table(LINES),
        "test.tsv": table(LINES[:6]),
        "shape.json": json.dumps(tiny(vocab_size=3000, hidden_size=16, num_hidden_layers=2).to_dict()),
    }.items():
        (place / name).write_text(text, encoding="utf-8")
    meta = ArtifactMetadata(task="classify", labels=("animal", "plant"), details={"kind": "single"})
    write_artifact(
        dataclasses.replace(make(tiny(vocab_size=3000), ("mlm", "classify")), metadata=meta), place / "large"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        run("prune", "large", "whole", "--vocabulary", "words.txt", "-f", "lines.txt")  # what follows takes less time
        for name, options in PRUNED.items():
            run("prune", "whole", name, "-f", "lines.txt", *options)
        for name in QUANTISED:
            run("quantize", name[:-5], name, "--bits", name[-1], "-f", "lines.txt")
        for arguments in TRAINED.values():
            run(*arguments, "--dev", "test.tsv", "--batch-size", "8", "--device", "cpu")
        run("static", "vocabulary", "static", "-f", "lines.txt", "--dim", "16")
        run("quantize", "static", "static-int8")
    return place


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_vectors(models, name, tmp_path, monkeypatch):
    folder = models / name
    monkeypatch.chdir(tmp_path)
    assert len(json.loads(run("embed", "-m", folder, LINES[0]))["vector"]) == Albert(folder).dim
    assert run("similar", "-m", folder, *LINES[:3]).count("1.00") >= 3
    run("index", models / "lines.txt", "-o", tmp_path / "idx", "-m", folder)
    assert "cats" in run("search", tmp_path / "idx", "cats", "-m", folder, "-k", "2")
    assert "tokens" in run("info", folder) and run("tokenize", "-m", folder, "cats")
    run("export", folder, "--head", "vector")
    assert (tmp_path / f"{folder.name}.onnx").is_file()
    assert json.loads(run("plan", folder, "--length", "8", "--json"))["parameters"]["total"] > 0
    if not name.endswith(("int8", "int4")):
        run("convert", folder, tmp_path / "again")
        assert np.array_equal(Albert(tmp_path / "again").embed(LINES), Albert(folder).embed(LINES))


@pytest.mark.parametrize("name", [n for n in VARIANTS if not n.startswith("static")])
def test_tasks_words_and_torch(models, name):
    folder = models / name
    albert = Albert(folder, threads=1)
    assert any(label in run("classify", "-m", folder, LINES[0], "--json") for label in albert.metadata.labels)
    assert "6 examples" in run("evaluate", "-m", folder, models / "test.tsv")
    if name in TRAINED:  # on the examples of a task, with its head alone
        with pytest.raises(AlbertkitError, match="no masked-language-model head"):
            run("fill", "-m", folder, "cats and [MASK]")
    else:
        assert len(run("fill", "-m", folder, "cats and [MASK]", "-k", "2").splitlines()) == 2
    artifact = read_artifact(folder)
    model = AlbertModel.from_artifact(artifact)
    ids = [e.ids for e in artifact.tokenizer.encode_batch(LINES[:4])]
    scores = model(Batch.of(ids)).heads["classify"].logits.detach().numpy() / albert.task.temperature
    with_runtime = [label.probabilities for label in albert.classify(LINES[:4])]
    softmax = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    close = 1e-4 if "int" not in name else 0.05
    assert (
        np.abs(softmax - np.array([[p[label] for label in albert.metadata.labels] for p in with_runtime])).max() < close
    )


def test_each_variant_is_what_it_is_called(models):
    """Smaller where it says so, in the bits it says, at every depth: a verb that gave the whole model back would pass
    all the rest.
    """
    whole = read_artifact(models / "whole").config
    found = {name: read_stored(models / name) for name in VARIANTS}
    assert {found[name].config.num_attention_heads for name in ("heads", "recovered")} == {2}
    assert found["recovered"].config.intermediate_size == whole.intermediate_size // 2
    assert found["vocabulary"].config.vocab_size < whole.vocab_size < 3000
    assert (found["student/model"].config.hidden_size, found["student/model"].config.num_hidden_layers) == (16, 2)
    for name, stored in found.items():
        assert (stored.metadata.quantization or "float") == next(
            (bits for bits in ("int8", "int4") if bits in name), "float"
        )
    steps = {name: [step["step"] for step in found[name].metadata.history] for name in TRAINED}
    assert [steps[name][-1] for name in ("aware-int4", "student/model", "elastic/model")] == [
        "quantize",
        "distill",
        "elastic",
    ]
    assert "training for 4 bits" in steps["aware-int4"]
    albert = Albert(models / "elastic/model", threads=1)
    assert all(albert.classify(LINES[0], depth=depth).label in albert.metadata.labels for depth in (1, 2, 3))


@pytest.mark.parametrize("name", ["heads", "all"])
def test_a_pruned_model_is_trained_on(models, name, tmp_path):
    from albertkit.train.finetune import finetune_examples
    from albertkit.train.train_settings import FinetuneSettings

    examples = read_splits("classify", {"train": models / "train.tsv"}, ReadOptions(), print)["train"]
    done = finetune_examples(
        "classify",
        examples,
        examples,
        tmp_path / "out",
        models / name,
        FinetuneSettings(epochs=1, seeds=1),
    )
    config = read_artifact(done.model).config
    assert config.attention_size == read_artifact(models / name).config.attention_size
    assert Albert(done.model).classify("text of dogs").label in ("animal", "plant")


def test_served(models):
    pytest.importorskip("starlette")
    conftest = pytest.importorskip("tests.serve.conftest")
    called = {name: name.removesuffix("/model") for name in VARIANTS}
    given = [f"{short}={models / name}" for name, short in called.items()]
    with conftest.Served(*given, "--threads", 1) as server:
        for name in VARIANTS:
            answer = server.post("/v1/embeddings", {"model": called[name], "input": LINES[:2]})
            assert answer.status_code == 200, answer.text
            albert = Albert(models / name, threads=1)
            vectors = np.array([row["embedding"] for row in answer.json()["data"]])
            assert (vectors * albert.embed(LINES[:2])).sum(1).min() > 0.9999
            if name.startswith("static"):
                continue
            answer = server.post("/classify", {"model": called[name], "texts": LINES[:2]})
            assert answer.status_code == 200, answer.text
            assert [row["label"] for row in answer.json()["results"]] == [r.label for r in albert.classify(LINES[:2])]


def test_unknown_labels_are_logged(models, tmp_path):
    rows = table(LINES[:20]).replace("\tanimal", "\tmineral")
    (tmp_path / "half.tsv").write_text(rows, encoding="utf-8")
    (tmp_path / "none.tsv").write_text(rows.replace("\tplant", "\tfungus"), encoding="utf-8")
    said = run("quantize", models / "whole", tmp_path / "q", "--check", tmp_path / "half.tsv", "--tolerance", "1")
    assert "10 labels of 20 unknown to the model, counted as missed before and after" in said
    short = ["--epochs", "1", "--batch-size", "8", "--device", "cpu"]
    said = run("prune", models / "whole", tmp_path / "p", "--ffn", "1/2", "--train", tmp_path / "half.tsv", "--dev", models / "test.tsv", *short)  # fmt: skip
    assert "10 labels of 20 unknown to the model, which cannot be learnt" in said
    for arguments in (["quantize", "--check"], ["prune", "--ffn", "1/2", "--train"]):
        verb, *flags = arguments
        with pytest.raises(AlbertkitError, match="has none of the labels"):
            run(verb, models / "whole", tmp_path / "x", *flags, tmp_path / "none.tsv")
    with pytest.raises(AlbertkitError, match="tolerance is nan"):
        run("quantize", models / "whole", tmp_path / "x", "--check", models / "test.tsv", "--tolerance", "nan")
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_without_torch(models, tmp_path):
    """A process in which torch cannot be imported prunes, makes tables, exports and plans; so does the
    process that `plan` measures in.
    """
    blocked = tmp_path / "blocked" / "torch"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    cut = ["--heads", "2", "--ffn", "1/2", "--vocabulary", models / "lines.txt"]
    lines = [
        ["prune", models / "whole", tmp_path / "p", *cut],
        ["static", models / "vocabulary", tmp_path / "s"],
        ["export", models / "heads-int8", tmp_path / "m.onnx"],
        ["plan", models / "heads", "--latency", "1s", "--count", "1", "-f", models / "lines.txt"],
    ]
    code = (
        "import json, sys; from albertkit.cli.entry_point import app; from albertkit.compress import benchmark\n"
        "benchmark.SECONDS, benchmark.STRETCH = 0.01, 0.001\n"  # how well it measures is not asked here
        "for line in json.load(sys.stdin): app(line, standalone_mode=False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([[str(word) for word in line] for line in lines]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(blocked.parent)},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p").is_dir() and (tmp_path / "s").is_dir() and (tmp_path / "m.onnx").is_file()
    assert done.stdout.splitlines()[-1].split()[:3] == ["*", "heads,", "float32,"]


def test_static_tables_cannot_be_trained(models, tmp_path):
    with pytest.raises(AlbertkitError, match="no layers"):
        AlbertModel.from_artifact(models / "static")
