"""The name of a model changes with everything that changes a vector, and a changed byte of its files is an error."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from albertkit import Albert, Index
from albertkit.artifact import Artifact, ArtifactMetadata, model_identity, read_artifact, read_stored, write_artifact
from albertkit.builtin import BUILTINS, MODELS
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import open_stored
from albertkit.model import AlbertModel
from albertkit.model.albert_model import build_head
from albertkit.text_reader import Record
from albertkit.tokenizer import Tokenizer
from tests.conftest import change_metadata, tiny
from tests.test_artifact import PIECES


def tokenizer(lower: bool = True, pieces: tuple[str, ...] = tuple(PIECES)) -> Tokenizer:
    from albertkit.tokenizer.vocabulary import wordpiece_vocabulary

    return Tokenizer(wordpiece_vocabulary(list(pieces), "vocab.txt", lower, lower))


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    config = tiny()
    model = AlbertModel(config, {"mlm": build_head("mlm", config)})
    metadata = ArtifactMetadata(
        task="embed",
        labels=("yes", "no"),
        prompts={"query": "search: "},
        details={"licence": "MIT"},
        metrics={"dev": {"Spearman": 0.5}},
        history=({"step": "pretrain", "steps": 10},),
    )
    return Artifact(config, model.weights(), tokenizer(), metadata)


def name_of(artifact: Artifact, folder: Path, **options: int) -> str:
    """The name after writing and opening the model."""
    write_artifact(artifact, folder, overwrite=True)
    return Albert(folder, **options).name


def with_config(artifact: Artifact, **changes) -> Artifact:
    return dataclasses.replace(artifact, config=artifact.config.replace(**changes))


def with_metadata(artifact: Artifact, **changes) -> Artifact:
    return dataclasses.replace(artifact, metadata=dataclasses.replace(artifact.metadata, **changes))


def with_one_weight_changed(artifact: Artifact) -> Artifact:
    weights = {name: array.copy() for name, array in artifact.weights.items()}
    weights["encoder.embeddings.norm.bias"][0] += 1e-3
    return dataclasses.replace(artifact, weights=weights)


CHANGES = {
    "activation": lambda a: with_config(a, hidden_act="relu"),
    "heads": lambda a: with_config(a, num_attention_heads=8),
    "eps": lambda a: with_config(a, layer_norm_eps=1e-5),
    "layers": lambda a: with_config(a, num_hidden_layers=4),
    "options": lambda a: with_config(a, options=Options(scale_embedding=True)),
    "window": lambda a: with_config(a, options=Options(window=2)),
    "default prompt": lambda a: with_metadata(a, prompts={"query": "search: ", "default": "text: "}),
    "query prompt": lambda a: with_metadata(a, prompts={"query": "question: "}),
    "pooling": lambda a: with_metadata(a, pooling="cls"),
    "normalize": lambda a: with_metadata(a, normalize=False),
    "depth": lambda a: with_metadata(a, depth=2),
    "casing": lambda a: dataclasses.replace(a, tokenizer=tokenizer(lower=False)),
    "vocabulary": lambda a: dataclasses.replace(a, tokenizer=tokenizer(pieces=(*PIECES[:-1], "##q"))),
    "weights": with_one_weight_changed,
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_a_vector_changes_the_name(artifact, tmp_path, what):
    assert name_of(CHANGES[what](artifact), tmp_path / "b") != name_of(artifact, tmp_path / "a")


def test_an_index_refuses_vectors_of_a_changed_model(artifact, tmp_path):
    write_artifact(artifact, tmp_path / "m")
    Index.create(tmp_path / "i", Albert(tmp_path / "m")).close()
    write_artifact(with_metadata(artifact, prompts={"default": "text: "}), tmp_path / "m", overwrite=True)
    with pytest.raises(AlbertkitError, match="index the files again"):
        Index.open(tmp_path / "i", Albert(tmp_path / "m"))


def test_an_index_of_the_same_model_elsewhere_is_accepted(artifact, tmp_path):
    write_artifact(artifact, tmp_path / "m")
    Index.create(tmp_path / "i", Albert(tmp_path / "m")).close()
    shutil.move(tmp_path / "m", tmp_path / "other")
    with Index.open(tmp_path / "i", Albert(tmp_path / "other")) as index:
        assert index.add([Record("1", "abc")]) == 1


def test_labels_metrics_and_history_keep_the_name(artifact, tmp_path):
    changed = with_metadata(artifact, labels=("a", "b"), metrics={}, history=(), details={})
    assert name_of(changed, tmp_path / "b") == name_of(artifact, tmp_path / "a")


def test_quantizing_changes_the_name(artifact, tmp_path):
    names = {
        name_of(artifact, tmp_path / "m"),
        Albert(tmp_path / "m", bits=8).name,
        Albert(tmp_path / "m", bits=4).name,
    }
    for bits in (8, 4):
        write_artifact(artifact, tmp_path / str(bits), bits=bits)
        names.add(Albert(tmp_path / str(bits)).name)
        assert Albert(tmp_path / str(bits), bits=bits).name in names  # already stored so: nothing changes
    assert len(names) == 5


def test_depth_at_opening_changes_the_name(artifact, tmp_path):
    write_artifact(artifact, tmp_path / "m")
    assert len({Albert(tmp_path / "m", depth=depth).name for depth in (1, 2, 3)}) == 3
    assert Albert(tmp_path / "m").name == Albert(tmp_path / "m", depth=3).name


def test_one_identity_for_every_way_to_open(artifact, tmp_path):
    """In memory, in a folder, and as a folder of transformers, a model has one identity."""
    write_artifact(with_metadata(artifact, labels=()), tmp_path / "m")
    stored, read = read_stored(tmp_path / "m"), read_artifact(tmp_path / "m")
    assert stored.identity == model_identity(read) == model_identity(artifact)
    (tmp_path / "m" / "albertkit.json").unlink()
    plain = with_metadata(artifact, prompts={}, task="pretrain")
    assert open_stored(tmp_path / "m").identity == model_identity(plain)


# Changed bytes ---------------------------------------------------------------------------------------------------


def is_refused(folder: Path) -> bool:
    try:
        read_artifact(folder)
    except AlbertkitError as error:
        assert "\n" not in str(error)
        return True
    return False


@pytest.mark.parametrize("name", ["albertkit.json", "config.json", "tokenizer_config.json", "vocab.txt"])
def test_a_flipped_bit_in_any_byte_is_an_error(artifact, tmp_path, name):
    write_artifact(artifact, tmp_path / "m")
    path = tmp_path / "m" / name
    good = path.read_bytes()
    generator = np.random.default_rng(0)
    for place in range(len(good)):
        bit = generator.integers(0, 8)
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << bit]) + good[place + 1 :])
        assert is_refused(tmp_path / "m"), (place, bit)
    path.write_bytes(good)
    assert not is_refused(tmp_path / "m")


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_flipped_bits_of_large_files_are_errors(artifact, tmp_path, name):
    write_artifact(artifact, tmp_path / "m")
    path = tmp_path / "m" / name
    good = path.read_bytes()
    generator = np.random.default_rng(0)
    for place in generator.integers(0, len(good), 200):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << generator.integers(0, 8)]) + good[place + 1 :])
        assert is_refused(tmp_path / "m"), place


def test_changed_values_of_albertkit_json_are_errors(artifact, tmp_path):
    write_artifact(artifact, tmp_path / "m")
    path = tmp_path / "m" / "albertkit.json"
    good = json.loads(path.read_text())
    for change in ({"pooling": "cls"}, {"metrics": {}}, {"albertkit": "9.9"}, {"checksum": "0" * 64}, {"files": {}}):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(AlbertkitError, match="has changed since it was written"):
            read_artifact(tmp_path / "m")
    path.write_text(json.dumps({key: good[key] for key in sorted(good)}))  # the same content, written otherwise
    read_artifact(tmp_path / "m")


def test_folders_of_format_1_are_read(artifact, tmp_path):
    write_artifact(artifact, tmp_path / "m")
    data = json.loads((tmp_path / "m" / "albertkit.json").read_text())
    del data["checksum"]
    (tmp_path / "m" / "albertkit.json").write_text(json.dumps({**data, "format": 1}))
    assert read_stored(tmp_path / "m").identity == model_identity(artifact)
    (tmp_path / "m" / "albertkit.json").write_text(json.dumps(data))
    with pytest.raises(AlbertkitError, match="has changed"):  # format 2 needs a checksum
        read_artifact(tmp_path / "m")
    change_metadata(tmp_path / "m", format=3)
    with pytest.raises(AlbertkitError, match="format 3"):
        read_artifact(tmp_path / "m")


@pytest.mark.parametrize("name", BUILTINS)
def test_builtin_models_have_a_checksum(name):
    assert json.loads((MODELS / name / "albertkit.json").read_text())["format"] == 2
    read_stored(name)


def test_a_flipped_bit_in_any_byte_of_a_training_state_is_an_error(artifact, tmp_path):
    from albertkit.train import checkpoint

    state = checkpoint.TrainState(7, 512, 3.5, best={"step": 6, "score": 0.25}, data={"epoch": 1, "file": "a.txt"})
    folder = checkpoint.save(tmp_path, artifact, {}, state)
    assert checkpoint.load(folder)[2] == state
    path = folder / "training.json"
    good, generator = path.read_bytes(), np.random.default_rng(0)
    for place in range(len(good)):
        bit = generator.integers(0, 8)
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << bit]) + good[place + 1 :])
        with pytest.raises(AlbertkitError):
            checkpoint.load(folder)
