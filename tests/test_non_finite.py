"""NaN and infinity are errors wherever a vector or a score leaves the package."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from albertkit import Albert, Index
from albertkit.artifact import MAX_WEIGHT, Artifact, ArtifactMetadata, read_artifact, read_stored, write_artifact
from albertkit.errors import AlbertkitError, NonFiniteError, check_finite
from albertkit.model import AlbertModel
from albertkit.model.albert_model import build_head
from albertkit.runtime.activation_moments import activation_moments
from albertkit.runtime.embed import unit_length
from albertkit.search.vectors import checksum
from albertkit.tasks.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample, split_words
from albertkit.text_reader import Record
from tests.conftest import change_metadata, english, tiny

LIMIT = np.float32(MAX_WEIGHT)
TEXT = "a cat sat on the mat"
DETAILS = {
    "classify": {"kind": "single"},
    "tag": {},
    "answer": {},
    "choose": {},
}


def overflow(weights: dict[str, np.ndarray]) -> None:
    """Change weights, within their limit, so that attention scores are infinite."""
    for name, array in weights.items():
        if name.endswith(("ffn_norm.weight", "query.weight", "key.weight")):
            array[:] = LIMIT


def overflowing(task: str, details: dict | None = None, heads: tuple[str, ...] = (), **config) -> Artifact:
    shape = tiny(vocab_size=3000, **config)
    chosen = {name: build_head(name, shape) for name in heads}
    weights = {name: array.copy() for name, array in AlbertModel(shape, chosen).weights().items()}
    overflow(weights)
    metadata = ArtifactMetadata(task=task, labels=("O", "B-X") if heads else (), details=details or {})
    return Artifact(shape, weights, english(), metadata)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory) -> Path:
    return write_artifact(overflowing("embed", heads=("mlm",)), tmp_path_factory.mktemp("nan") / "m")


def test_check_finite_looks_into_tuples_and_lists():
    check_finite("scores", [np.zeros(2), (np.zeros(1), np.ones(3)), 1.0])
    for bad in ([np.array([np.nan])], [(np.zeros(1), np.array([np.inf]))], [np.nan], np.array([[-np.inf]])):
        with pytest.raises(NonFiniteError, match="scores with NaN or infinity"):
            check_finite("scores", bad)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "pooler"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("early_exit", [None, "cosine:0.9"])
def test_vectors(vectors, pooling, normalize, early_exit):
    with np.errstate(all="ignore"), pytest.raises(NonFiniteError):
        Albert(vectors).embed([TEXT], pooling=pooling, normalize=normalize, early_exit=early_exit)


def test_a_vector_whose_length_overflows_is_no_zero_vector():
    """Each number is finite, and the sum of their squares is not."""
    vectors = unit_length(np.array([[1e30, 1e30], [3, 4]], np.float32))
    assert np.isnan(vectors[0]).all() and np.allclose(vectors[1], [0.6, 0.8])


def test_token_vectors_masks_and_similarity(vectors):
    albert = Albert(vectors)
    with np.errstate(all="ignore"):
        for call in (
            lambda: albert.token_vectors(TEXT),
            lambda: albert.fill_mask("a [MASK] sat"),
            lambda: albert.similarity(TEXT, TEXT),
            lambda: albert.explain(TEXT),
            lambda: albert.explain("a [MASK] sat"),
            lambda: albert.explain(TEXT, methods=("gradients",)),
        ):
            with pytest.raises(NonFiniteError):
                call()


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_every_task(tmp_path, device):
    words = TaggedExample(TEXT, split_words(TEXT))
    examples = {
        "classify": TextExample(TEXT),
        "tag": words,
        "answer": QuestionExample("0", "who sat?", TEXT),
        "choose": ChoiceExample(TEXT, "who sat?", ("a cat", "a dog")),
    }
    from albertkit.runtime.predict import predict
    from albertkit.train.finetune_task import predict_scores

    for task, example in examples.items():
        artifact = overflowing(task, DETAILS[task], heads=(task,))
        write_artifact(artifact, tmp_path / task)
        with np.errstate(all="ignore"), pytest.raises(NonFiniteError):
            predict(Albert(tmp_path / task, device=device), [example], task)
        with pytest.raises(NonFiniteError):
            predict_scores(artifact, [example], "cpu")


def test_early_exit_of_a_task(tmp_path):
    write_artifact(overflowing("classify", DETAILS["classify"], heads=("classify",)), tmp_path / "m")
    with np.errstate(all="ignore"), pytest.raises(NonFiniteError):
        Albert(tmp_path / "m").classify([TEXT], early_exit="entropy:0.1")


def test_generated_texts(tmp_path):
    artifact = overflowing("generate", {"target_length": 4}, heads=("mlm",))
    write_artifact(artifact, tmp_path / "m")
    with np.errstate(all="ignore"), pytest.raises(NonFiniteError):
        Albert(tmp_path / "m").generate(TEXT)


def run_command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "albertkit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def test_the_command_line_prints_no_nan(vectors):
    for arguments in (["embed", TEXT], ["fill", "a [MASK] sat"]):
        done = run_command(*arguments, "-m", str(vectors))
        assert (done.returncode, done.stdout) == (2, "") and "NaN or infinity" in done.stderr


# Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ffn.up.weight", "ffn.down.weight", "attention_norm.weight", "word.weight"])
def test_weights_near_the_float_limit_are_errors(tmp_path, name):
    """LayerNorm divides by an infinite variance, so that vectors would be zeros."""
    artifact = dataclasses.replace(overflowing("embed"), weights=AlbertModel(tiny(vocab_size=3000)).weights())
    write_artifact(artifact, tmp_path / "m")
    change_metadata(tmp_path / "m", files={})
    path = tmp_path / "m" / "model.safetensors"
    tensors = load_file(path)
    public = {
        "ffn.up.weight": ".ffn.weight",
        "ffn.down.weight": ".ffn_output.weight",
        "word.weight": "word_embeddings.weight",
        "attention_norm.weight": "attention.LayerNorm.weight",
    }[name]
    (key,) = (key for key in tensors if key.endswith(public))
    tensors[key].flat[7] = -1e25
    save_file(tensors, path)
    with pytest.raises(AlbertkitError, match=f"{name}' contains the number 1e.25; weights must be .* at most 1e.15"):
        Albert(tmp_path / "m")


def test_what_is_built_from_a_model_is_finite(vectors, tmp_path):
    """Indexes, bulk work, ONNX files and smaller models are not written."""
    texts = tmp_path / "texts.txt"
    texts.write_text("a cat\nthe dog\n" * 10)
    for arguments in (
        ["index", str(texts), "-o", "index.db"],
        ["cluster", str(texts)],
        ["embed", "-f", str(texts), "-o", "vectors.npy"],
        ["embed", str(tmp_path / "*.txt"), "-o", "bulk", "--engine", "local", "--workers", "1"],
        ["similar", "a cat", "a dog"],
    ):
        done = run_command(*arguments, "-m", str(vectors), cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "") and "NaN or infinity" in done.stderr, (arguments, done)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("part", ["smooth", "scale"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_factors_of_a_quantized_file_are_finite(tmp_path, bits, part, value):
    artifact = dataclasses.replace(overflowing("embed"), weights=AlbertModel(tiny(vocab_size=3000)).weights())
    moments = activation_moments(artifact, ["a text to look at"] * 20)
    write_artifact(artifact, tmp_path / "m", bits=bits, moments=moments)
    change_metadata(tmp_path / "m", files={})
    path = tmp_path / "m" / "quantized.safetensors"
    tensors = load_file(path)
    tensors[f"encoder.groups.0.0.ffn.up.weight.{part}"][3] = value
    save_file(tensors, path)
    with pytest.raises(AlbertkitError, match="ffn.up.weight' contains NaN or infinity"):
        read_stored(tmp_path / "m")


def test_scales_of_an_index_are_finite_even_if_checksums_fit(tmp_path):
    import sqlite3

    index = Index.create(tmp_path / "i", Albert())
    index.add([Record("1", "The doctor is in."), Record("2", "The train was late.")])
    index.close()
    sql = sqlite3.connect(tmp_path / "i")
    ((good,),) = sql.execute("SELECT data FROM scales")
    for bad in (np.nan, np.inf, -np.inf, 1e30):
        scales = np.frombuffer(good, "<f4").copy()
        scales[1] = bad
        with sql:
            sql.execute("UPDATE scales SET checksum = ?, data = ?", (checksum(0, scales.tobytes()), scales.tobytes()))
        with Index.open(tmp_path / "i", Albert()) as index, pytest.raises(AlbertkitError, match="no unit vector has"):
            index.search("a physician", mode="vector")


# The server ------------------------------------------------------------------------------------------------------


def test_the_server_answers_with_an_error(tmp_path):
    """A model whose first layer is finite, and whose second is not: the server starts, and other requests succeed."""
    from tests.serve.conftest import MADE, Served, make

    for name in ("words", "pairs"):
        artifact = read_artifact(make(tmp_path / name, *MADE[name]))
        overflow(artifact.weights)
        metadata = dataclasses.replace(artifact.metadata, depth=1)
        write_artifact(dataclasses.replace(artifact, metadata=metadata), tmp_path / name, overwrite=True)
    requests = {
        "/v1/embeddings": {"input": "a cat", "model": "words"},
        "/embed": {"inputs": "a cat", "model": "words"},
        "/fill": {"texts": "a cat [MASK]", "model": "words"},
        "/classify": {"texts": "a cat", "model": "pairs"},
        "/similar": {"texts": ["a cat", "a dog"], "model": "words"},
    }
    with Served(*(f"{name}={tmp_path / name}" for name in ("words", "pairs")), "--threads", 1) as server:
        for path, body in requests.items():
            answer = server.post(path, {**body, "depth": 3})
            assert answer.status_code == 500 and "NaN or infinity" in answer.text, (path, answer.text)
            answer = server.post(path, {**body, "depth": 1})
            assert answer.status_code == 200, (path, answer.text)


def test_the_server_does_not_start_with_a_model_that_overflows(vectors):
    done = run_command("serve", str(vectors), "--port", "0")
    assert done.returncode == 2 and "not finite" in done.stderr
