"""Twelve kinds of damage to every file that is read back: an error that names the file, never a wrong answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, write_artifact
from albertkit.compress.quantize import quantize
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.search.index import Index, Record
from albertkit.tokenizer import Tokenizer
from albertkit.train import checkpoint
from albertkit.train.checkpoint import TrainState
from tests.bulk.sample_texts import run_bulk, write_lines
from tests.bulk.test_engines import in_process
from tests.conftest import tiny
from tests.train.conftest import NUMBERS, TOPICS, VOCAB

TEXTS = [f"{number} {word} ." for number, word in zip(NUMBERS, TOPICS[1] * 2, strict=False)]
Read = Callable[[Path], Any]


def double_keys(data: bytes) -> bytes:
    """The first key of a JSON object again, with another value; other files with their first part twice."""
    if not data.lstrip().startswith(b"{"):
        return data[:64] + data
    key = next(iter(json.loads(data)))
    return data.rstrip()[:-1] + f', "{key}": 7}}'.encode()


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "empty": lambda data: b"",
    "missing": lambda data: None,
    "a flipped bit": lambda data: (
        data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 4]) + data[len(data) // 3 + 1 :]
    ),
    "zeros at its end": lambda data: data[: 2 * len(data) // 3] + bytes(len(data) - 2 * len(data) // 3),
    "zeros": lambda data: bytes(len(data)),
    "wrong magic": lambda data: b"MZ\x90\x00" + data[4:],
    "a huge length": lambda data: b"\xff\xff\xff\xff\xff\xff\xff\x7f" + data[8:],
    "not UTF-8": lambda data: data[:20] + b"\xff\xfe\x80" + data[23:],
    "more bytes": lambda data: data + b"\x00garbage",
    "keys twice": double_keys,
}


def read_model(folder: Path) -> bytes:
    return Albert(folder, threads=1).embed(TEXTS).tobytes()


def read_index(path: Path) -> Any:
    queries = np.eye(32, dtype=np.float32)[:4]
    with Index.open(path / "notes.idx", None) as index:
        found = index.search_many(TEXTS[:4], 5, "hybrid", queries)
    return [[(hit.id, hit.text, round(hit.score, 5)) for hit in hits] for hits in found]


def read_checkpoint(folder: Path) -> Any:
    artifact, tensors, state = checkpoint.load(folder)
    weights = {name: np.asarray(array).tobytes() for name, array in artifact.weights.items()}
    return weights, {name: value.tolist() for name, value in tensors.items()}, state


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory) -> dict[str, tuple[Path, Read]]:
    """A float model, an int8 model, an index and a checkpoint, each with its reader."""
    place = tmp_path_factory.mktemp("artefacts")
    (place / "vocab.txt").write_text("\n".join(VOCAB))
    tokenizer = Tokenizer.from_vocab(place / "vocab.txt")
    config = tiny(vocab_size=tokenizer.vocab_size)
    artifact = Artifact(config, AlbertModel(config).weights(), tokenizer, ArtifactMetadata(task="embed"))
    model = write_artifact(artifact, place / "float")
    quantize(model, place / "int8", 8, TEXTS)
    (place / "index").mkdir()
    with Index.create(place / "index" / "notes.idx", Albert(model, threads=1)) as index:
        index.add([Record(str(i), text) for i, text in enumerate(TEXTS)])
    made = checkpoint.save(place, artifact, {"0.0.step": torch.ones(5)}, TrainState(step=3))
    return {
        "float": (model, read_model),
        "int8": (place / "int8", read_model),
        "index": (place / "index", read_index),
        "checkpoint": (made, read_checkpoint),
    }


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["float", "int8", "index", "checkpoint"])
def test_a_damaged_file_is_an_error_that_names_it(artefacts, tmp_path, kind, damage):
    source, read = artefacts[kind]
    right, refused = read(source), 0
    for file in sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file()):
        folder = tmp_path / source.name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        changed = DAMAGES[damage]((source / file).read_bytes())
        (folder / file).unlink()
        if changed is not None:
            (folder / file).write_bytes(changed)
        try:
            assert read(folder) == right, file
        except AlbertkitError as error:
            refused += 1
            assert file.name in str(error) or file.parent.name in str(error), (file, str(error))
            assert "\n" not in str(error)
    assert kind == "index" or refused >= 3, "no damage was noticed"  # an index has bytes that nothing reads


@pytest.mark.parametrize("kind", ["float", "int8", "checkpoint"])
def test_swapped_files_are_an_error_that_names_one(artefacts, tmp_path, kind):
    source, read = artefacts[kind]
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.suffix in (".json", ".safetensors"))
    for one, other in pairwise(files):
        folder = tmp_path / source.name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        shutil.copy(source / one, folder / other)
        shutil.copy(source / other, folder / one)
        with pytest.raises(AlbertkitError) as caught:
            read(folder)
        assert any(str(name) in str(caught.value) for name in (one.name, other.name, folder.name)), str(caught.value)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_bulk_work_is_an_error_or_done_again(artefacts, tmp_path, damage):
    model, out = artefacts["int8"][0], tmp_path / "out"
    file = write_lines(tmp_path / "a.txt", TEXTS[:9])
    run = partial(run_bulk, "embed", [str(file)], str(out), engine=in_process, part_rows=3, model=str(model))
    run()
    whole = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    for path, data in whole.items():
        changed = DAMAGES[damage](data)
        path.unlink()
        if changed is not None:
            path.write_bytes(changed)
        try:
            assert run().done_parts <= 1 or path.name.startswith("_"), path
        except AlbertkitError as error:
            assert path.name in str(error) or out.name in str(error), str(error)
            path.write_bytes(data)
        assert {part: part.read_bytes() for part in whole if part.suffix == ".npz"} == {
            part: content for part, content in whole.items() if part.suffix == ".npz"
        }
