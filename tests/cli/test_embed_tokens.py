"""`embed --tokens`, `--no-normalize`, and `--device` of every command that has it."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from albertkit.albert import Albert
from albertkit.artifact import ArtifactMetadata, write_artifact
from albertkit.cli.entry_point import app
from albertkit.errors import AlbertkitError
from albertkit.input_warnings import UnreadableTextWarning
from albertkit.serve.serve_settings import ServeSettings
from tests.conftest import tiny
from tests.test_albert import make

TEXTS = ["a cat", "", "hôtel dogs, and a cat"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Tiny models for vectors, classes and entities."""
    folder = tmp_path_factory.mktemp("models")
    for task, labels in {"embed": (), "classify": ("good", "bad"), "tag": ("O", "B-X")}.items():
        artifact = make(tiny(vocab_size=3000, max_position_embeddings=24), heads=() if task == "embed" else (task,))
        metadata = dataclasses.replace(ArtifactMetadata(), task=task, labels=labels)
        write_artifact(dataclasses.replace(artifact, metadata=metadata), folder / task)
    return folder


def run(*arguments, **options):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], **options)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


# Token vectors ---------------------------------------------------------------------------------------------------


def test_tokens_are_written_with_their_characters_and_vectors(models):
    done = run("embed", "-m", models / "embed", "--tokens", input="\n".join(TEXTS) + "\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row, text, found in zip(rows, TEXTS, Albert(models / "embed").token_vectors(TEXTS), strict=True):
        assert row["text"] == text and row["tokens"] == found.tokens
        assert row["offsets"] == [list(span) for span in found.offsets]
        np.testing.assert_allclose(row["vectors"], found.vectors, atol=1e-6)
    start, end = rows[2]["offsets"][1]
    assert TEXTS[2][start:end] == "hôtel"


def test_tokens_in_an_npz_file_are_those_of_the_json_lines(models, tmp_path):
    run("embed", "-m", models / "embed", "--tokens", "-o", tmp_path / "t.jsonl", input="\n".join(TEXTS) + "\n")
    run("embed", "-m", models / "embed", "--tokens", "-o", tmp_path / "t.npz", input="\n".join(TEXTS) + "\n")
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text(encoding="utf-8").splitlines()]
    found = np.load(tmp_path / "t.npz")  # no pickle
    assert found["counts"].tolist() == [len(row["tokens"]) for row in rows]
    assert found["tokens"].tolist() == [token for row in rows for token in row["tokens"]]
    assert found["offsets"].tolist() == [span for row in rows for span in row["offsets"]]
    np.testing.assert_allclose(found["vectors"], [vector for row in rows for vector in row["vectors"]], atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.jsonl", "t.npz"]


def test_an_npz_file_of_no_text_is_readable(models, tmp_path):
    run("embed", "-m", models / "embed", "--tokens", "-o", tmp_path / "t.npz", input="")
    found = np.load(tmp_path / "t.npz")
    assert found["counts"].tolist() == [] and found["vectors"].shape[0] == 0


def test_truncated_texts_are_counted(models):
    done = run("embed", "-m", models / "embed", "--tokens", "short", "many words " * 40, "also short")
    assert [len(json.loads(line)["tokens"]) for line in done.stdout.splitlines()] == [3, 24, 4]
    assert "1 of 3 texts is longer than the model's 24 tokens and truncated; the first is number 2" in done.stderr


def test_tokens_of_a_stream_appear_before_its_end(models):
    """A generator of texts is read in groups, so memory is bounded."""
    read = []

    def texts():
        for number in range(1000):
            read.append(number)
            yield "a cat"

    found = next(Albert(models / "embed").token_vectors_iter(texts()))
    assert found.tokens[1] == "▁a" and len(read) < 200


@pytest.mark.parametrize(
    "option",
    [
        ("--pooling", "cls"),
        ("--dim", 4),
        ("--prompt", "x"),
        ("--no-normalize",),
        ("--long-texts", "split"),
        ("--early-exit", "99%"),
        ("--engine", "local"),
    ],
)
def test_options_of_sentence_vectors_are_refused_with_tokens(models, option):
    with pytest.raises(AlbertkitError, match=rf"{option[0].replace('no-', '(no-)?')}.* --tokens.*Omit"):
        run("embed", "-m", models / "embed", "--tokens", "a cat", *option)


def test_tokens_have_no_npy_file(models, tmp_path):
    with pytest.raises(AlbertkitError, match=r"'\.npy'. Use one of \.jsonl, \.npz"):
        run("embed", "-m", models / "embed", "--tokens", "a cat", "-o", tmp_path / "t.npy")


# Normalization ---------------------------------------------------------------------------------------------------


def test_no_normalize_keeps_the_length_of_vectors(models):
    albert = Albert(models / "embed")
    for flag, normalize in (("--no-normalize", False), ("--normalize", True)):
        done = run("embed", "-m", models / "embed", flag, "a cat")
        vector = json.loads(done.stdout)["vector"]
        np.testing.assert_allclose(vector, albert.embed("a cat", normalize=normalize), atol=1e-5)
    assert abs(np.linalg.norm(albert.embed("a cat", normalize=False)) - 1) > 0.1


# Devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["embed", "classify", "tag"])
def test_cpu_is_accepted_and_torch_computes_the_same(models, command):
    outputs = {
        device: run(command, "-m", models / command, "--device", device, *(("--json",) * (command != "embed")), "a cat")
        for device in ("cpu", "torch")
    }
    plain = run(command, "-m", models / command, *(("--json",) * (command != "embed")), "a cat")
    assert outputs["cpu"].stdout == plain.stdout
    rows = [json.loads(outputs[device].stdout) for device in ("cpu", "torch")]
    if command == "embed":
        np.testing.assert_allclose(rows[0]["vector"], rows[1]["vector"], atol=1e-5)
    elif command == "classify":
        assert rows[0]["probabilities"] == pytest.approx(rows[1]["probabilities"], abs=1e-5)
    else:
        assert [span["label"] for span in rows[0]["spans"]] == [span["label"] for span in rows[1]["spans"]]


@pytest.mark.parametrize("command", ["embed", "classify", "tag"])
def test_cuda_without_a_gpu_is_an_error_that_says_so(models, command):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(AlbertkitError, match="'cuda' is not available: torch finds no GPU on this machine"):
        run(command, "-m", models / command, "--device", "cuda", "a cat")


@pytest.mark.parametrize("command", ["embed", "classify", "tag"])
def test_cuda_without_torch_names_the_install(models, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    with pytest.raises(AlbertkitError, match=r"device='cuda' needs 'torch'.*pip install 'albertkit\[train\]'"):
        run(command, "-m", models / command, "--device", "cuda", "a cat")


def test_bulk_work_checks_the_device_first(models, tmp_path):
    (tmp_path / "a.txt").write_text("a cat\n", encoding="utf-8")
    out = tmp_path / "out"
    with pytest.raises(AlbertkitError, match=r"'cuda' is not available: torch finds no GPU.*Omit device"):
        run("embed", "-m", models / "embed", "--device", "cuda", "--engine", "local", tmp_path / "a.txt", "-o", out)
    assert not out.exists()


def test_several_workers_need_the_cpu():
    with pytest.raises(AlbertkitError, match=r"workers=2 .*device='cuda'.* Omit"):
        ServeSettings(workers=2, device="cuda")
    assert ServeSettings(workers=2, device="cpu").device == "cpu"


def test_unreadable_texts_of_a_stream_are_reported_once(models):
    with pytest.warns(UnreadableTextWarning) as found:
        list(Albert(models / "embed").token_vectors_iter(["我在北京", "a cat"] * 100))
    assert len(found) == 1 and "32 of the first 64 texts" in str(found[0].message)
