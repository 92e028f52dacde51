"""The folder: round trips, atomic writing, and everything a hostile or damaged one can be."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
from itertools import product

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.numpy import load_file, save_file

from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, write_artifact
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.file_io import new_folder
from albertkit.interop.convert import open_model
from albertkit.model import AlbertModel
from albertkit.model.albert_model import build_head
from albertkit.tokenizer import Tokenizer
from albertkit.weights import HEADS
from tests.conftest import SPIECE, change_metadata, tiny

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz",
    *(f"##{c}" for c in "abcxyz"),
]


def small_tokenizer(tmp_path) -> Tokenizer:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return Tokenizer.from_vocab(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("artifact")
    config = tiny()
    model = AlbertModel(config, {name: build_head(name, config) for name in ("mlm", "sop")})
    model.save(base / "one", small_tokenizer(base))
    return base / "one"


def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def forget_hashes(folder):
    """Turn an artifact into a plain Hugging Face folder, so that nothing but its content is checked."""
    (folder / "albertkit.json").unlink()


def refused(path, *words, reader=open_model):
    with pytest.raises(AlbertkitError) as caught:
        reader(path)
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message


def test_round_trip_of_everything(tmp_path):
    for options, depth in product((Options(), Options(brightmart_layout=True)), (None, 2)):
        config = tiny(options=options, num_hidden_groups=2, inner_group_num=2)
        model = AlbertModel(config, {name: build_head(name, config, labels=3) for name in HEADS})
        meta = ArtifactMetadata(
            task="tag", labels=("x", "y", "中"), depth=depth, metrics={"dev": {"f1": 0.5}}, history=({"step": "t"},)
        )
        target = model.save(tmp_path / f"{options.brightmart_layout}{depth}", small_tokenizer(tmp_path), meta)
        back = read_artifact(target)
        assert back.config == config and back.metadata == meta and back.heads == list(HEADS)
        assert back.tokenizer.encode("abc").ids == small_tokenizer(tmp_path).encode("abc").ids
        weights = model.weights()
        assert set(weights) == set(back.weights)
        assert all((weights[name] == array).all() for name, array in back.weights.items())
        is_public = not options.active() and depth is None
        assert json.loads((target / "config.json").read_text())["model_type"] == (
            "albert" if is_public else "albertkit"
        )
        assert (
            "Labels" not in (target / "README.md").read_text()
            and "labels: x, y, 中" in (target / "README.md").read_text()
        )


def test_transformers_refuses_what_it_would_compute_wrongly(tmp_path):
    transformers = pytest.importorskip("transformers")
    AlbertModel(tiny(options=Options(brightmart_layout=True))).save(tmp_path / "m")
    with pytest.raises((ValueError, KeyError)):
        transformers.AutoModel.from_pretrained(tmp_path / "m")


def test_half_precision_is_read(folder, tmp_path):
    path = copy(folder, tmp_path)
    forget_hashes(path)
    tensors = {n: torch.from_numpy(a) for n, a in load_file(path / "model.safetensors").items()}
    from safetensors.torch import save_file as save

    for dtype in (torch.float16, torch.bfloat16):
        save(
            {n: t.to(dtype) for n, t in tensors.items()},
            path / "model.safetensors",
            metadata={"format": "pt"},
        )
        for name, array in open_model(path).weights.items():
            assert array.dtype == np.float32, name


def test_writing_is_all_or_nothing(folder, tmp_path):
    artifact = read_artifact(folder)
    target = tmp_path / "deep" / "m"
    write_artifact(artifact, target)
    with pytest.raises(AlbertkitError, match="exists and is not empty"):
        write_artifact(artifact, target)
    with pytest.raises(RuntimeError), new_folder(target, overwrite=True) as scratch:
        (scratch / "half").write_text("x")
        raise RuntimeError
    assert read_artifact(target).config == artifact.config
    write_artifact(artifact, target, overwrite=True)
    assert [p.name for p in target.parent.iterdir()] == ["m"]
    (tmp_path / "file").write_text("")
    with pytest.raises(AlbertkitError, match="cannot be written"):
        write_artifact(artifact, tmp_path / "file" / "m")
    with pytest.raises(AlbertkitError, match="exists and is not empty"):
        write_artifact(artifact, tmp_path / "file")


def test_disk_full_leaves_the_old_folder(folder, tmp_path, monkeypatch):
    artifact = read_artifact(folder)
    target = tmp_path / "m"
    write_artifact(artifact, target)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(AlbertkitError, match="No space left on device. No file was changed"):
        write_artifact(artifact, target, overwrite=True)
    assert read_artifact(target).heads == artifact.heads and [p.name for p in tmp_path.iterdir()] == ["m"]


def test_killed_while_writing(folder, tmp_path):
    """SIGKILL before some file operation: the target is the old whole folder or the new whole one, and reads."""
    code = (
        "import os, signal, sys; from albertkit.artifact import read_artifact, write_artifact\n"
        "a, left = read_artifact(sys.argv[1]), int(sys.argv[3])\n"
        "def count(event, arguments):\n"
        "    global left\n"
        "    left -= event == 'open' or event.startswith(('os.', 'shutil.'))\n"
        "    if left == -1: left = -2; os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.addaudithook(count)\n"
        "while True: write_artifact(a, sys.argv[2], overwrite=True)"
    )
    target = tmp_path / "m"
    missing = 0
    for operations in (3, 100, 111, 125, 142):
        child = subprocess.run([sys.executable, "-c", code, folder, target, str(operations)], capture_output=True)
        assert child.returncode == -signal.SIGKILL, child.stderr.decode()
        if target.exists():
            read_artifact(target)
        else:  # killed between two renames: both the old and the new folder lie beside it, whole
            missing += 1
            kept = [p for p in tmp_path.glob(".m.*") if (p / "m").exists() or (p / "albertkit.json").exists()]
            assert kept or operations == 3
    assert missing < 5


# Damaged and hostile folders -------------------------------------------------------------------------------------


def test_a_flipped_bit_is_seen(folder, tmp_path):
    path = copy(folder, tmp_path)
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (path / "model.safetensors").write_bytes(data)
    refused(path, "has changed since it was written")


def test_missing_and_odd_tensors_are_named(folder, tmp_path):
    path = copy(folder, tmp_path)
    forget_hashes(path)
    good = load_file(path / "model.safetensors")
    word = "albert.embeddings.word_embeddings.weight"

    def write(tensors):
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    write({n: a for n, a in good.items() if n != "albert.pooler.bias"})
    refused(path, "'encoder.pooler.bias' is missing", "(32,)")
    write({**good, word: good[word][:, :8].copy()})
    refused(path, "encoder.embeddings.word.weight", "(97, 8)", "(97, 16)")
    write({**good, word: good[word].astype(np.int32)})
    refused(path, "int32", "floating point")
    write({**good, word: np.full_like(good[word], np.nan)})
    refused(path, "NaN or infinity")
    write({**good, "albert.extra.weight": good[word]})
    refused(path, "albert.extra.weight", "not part of ALBERT")
    write({"x": good[word]})
    refused(path, "no ALBERT encoder")


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<Q", 2**40) + b"{}",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 10**7) + b"{",
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[99999999999,99999999],"data_off',
        b"",
        b"\x00" * 7,
    ],
)
def test_hostile_safetensors_headers(folder, tmp_path, header):
    path = copy(folder, tmp_path)
    forget_hashes(path)
    (path / "model.safetensors").write_bytes(header)
    refused(path, "not a complete safetensors file")


class Bomb:
    """A pickle that would create a file when loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("make", ["pickle", "zip"])
def test_a_pickle_with_code_runs_nothing(folder, tmp_path, make):
    path = copy(folder, tmp_path)
    forget_hashes(path)
    (path / "model.safetensors").unlink()
    mark = tmp_path / "executed"
    if make == "pickle":
        (path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Bomb(mark)}, protocol=2))
    else:
        torch.save({"a": Bomb(mark)}, path / "pytorch_model.bin")
    refused(path, "pytorch_model.bin")
    assert not mark.exists()


def test_the_list_of_files_cannot_leave_its_folder(folder, tmp_path):
    path = copy(folder, tmp_path)
    change_metadata(path, files={"../../etc/passwd": "0" * 64})
    refused(path, "only plain names")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["not valid JSON"]),
        ("[" * 200_000, ["not valid JSON"]),
        ("[1]", ["JSON object"]),
        ('{"a": 1}', ["unknown key 'a'"]),
        ('{"hidden_size": 1e999}', ["lacks vocab_size"]),
        ("\x00\xff", ["not valid JSON"]),
    ],
)
def test_hostile_config(folder, tmp_path, text, words):
    path = copy(folder, tmp_path)
    forget_hashes(path)
    (path / "config.json").write_text(text, encoding="latin-1")
    refused(path, *words)


def test_absurd_shapes(folder, tmp_path):
    path = copy(folder, tmp_path)
    forget_hashes(path)
    data = json.loads((path / "config.json").read_text())
    for change in (
        {"hidden_size": 2**40},
        {"vocab_size": 2**62},
        {"num_hidden_layers": 10**9},
        {"vocab_size": -1},
    ):
        (path / "config.json").write_text(json.dumps({**data, **change}))
        refused(path, "must be a whole number")
    (path / "config.json").write_text(" " * (17 * 2**20))
    refused(path, "16,777,216")


def test_the_wrong_vocabulary(folder, tmp_path):
    path = copy(folder, tmp_path)
    forget_hashes(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        (path / name).unlink(missing_ok=True)
    refused(path, "tokenizer.json", "spiece.model", "vocab.txt")
    shutil.copy(SPIECE, path / "spiece.model")
    refused(path, "30000", "97")
    (path / "spiece.model").unlink()
    shutil.copy(SPIECE, path / "vocab.txt")
    refused(path, "vocab.txt")


def test_meta_is_checked(folder, tmp_path):
    path = copy(folder, tmp_path)
    good = (path / "albertkit.json").read_bytes()
    for change, word in (
        ({"format": 9}, "format 9"),
        ({"taskk": "x"}, "did you mean 'task'"),
        ({"task": "sing"}, "task is 'sing'"),
        ({"depth": 0}, "depth is 0"),
        ({"labels": "ab"}, "must be a list"),
        ({"files": 3}, "must map"),
    ):
        (path / "albertkit.json").write_bytes(good)
        change_metadata(path, **change)
        refused(path, word)


FUZZED = ("config.json", "model.safetensors", "tokenizer.json", "albertkit.json")


@given(data=st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fuzzed_folders_read_or_say_why(folder, tmp_path_factory, data):
    """Truncate or flip bytes of any file, with hashes and without: one AlbertkitError or a whole model, nothing else."""
    path = tmp_path_factory.mktemp("fuzz") / "m"
    shutil.copytree(folder, path)
    name = data.draw(st.sampled_from(FUZZED))
    raw = bytearray((path / name).read_bytes())
    if name != "albertkit.json" and data.draw(st.booleans()):
        forget_hashes(path)
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw)))]
    for _ in range(data.draw(st.integers(0, 6))):
        if raw:
            raw[data.draw(st.integers(0, min(len(raw) - 1, 4000)))] = data.draw(st.integers(0, 255))
    (path / name).write_bytes(raw)
    try:
        assert isinstance(open_model(path), Artifact)
    except AlbertkitError as error:
        assert "\n" not in str(error)
    shutil.rmtree(path)


def test_fuzzed_pickles_read_or_say_why(folder, tmp_path):
    path = copy(folder, tmp_path)
    forget_hashes(path)
    tensors = {n: torch.from_numpy(a) for n, a in load_file(path / "model.safetensors").items()}
    (path / "model.safetensors").unlink()
    torch.save(tensors, path / "pytorch_model.bin")
    whole = (path / "pytorch_model.bin").read_bytes()
    assert open_model(path).heads == ["mlm", "sop"]
    generator = np.random.default_rng(0)
    for _ in range(60):
        raw = bytearray(whole[: generator.integers(0, len(whole))] if generator.random() < 0.3 else whole)
        for _ in range(generator.integers(1, 8)):
            if raw:
                raw[generator.integers(0, len(raw))] = generator.integers(0, 256)
        (path / "pytorch_model.bin").write_bytes(raw)
        try:
            open_model(path)
        except AlbertkitError as error:
            assert "\n" not in str(error)
