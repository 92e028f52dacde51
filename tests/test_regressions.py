"""Things that once went wrong, or nearly did."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from albertkit.albert import Albert
from albertkit.artifact import ArtifactMetadata, read_artifact, write_artifact
from albertkit.compress.quantize import quantize
from albertkit.errors import AlbertkitError, short_reason
from albertkit.interop.convert import open_model
from albertkit.interop.layouts import export_layout
from albertkit.model import AlbertModel
from albertkit.model.albert_model import build_head
from albertkit.vector_writer import open_vector_writer
from tests.conftest import change_metadata, tiny
from tests.test_albert import TEXTS, make


def cli(*args, text=b""):
    return subprocess.run(
        [sys.executable, "-m", "albertkit.cli.entry_point", *map(str, args)], input=text, capture_output=True
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("review") / "m"
    write_artifact(make(tiny(vocab_size=3000)), path)
    return path


def test_force_replaces_models_and_nothing_else(folder, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(AlbertkitError, match="is not a model folder"):
        write_artifact(read_artifact(folder), precious, overwrite=True)
    assert (precious / "thesis.txt").read_text() == "years of work"


def test_a_finished_part_is_never_overwritten(tmp_path):
    with (
        pytest.raises(AlbertkitError, match="from number 3 on into another file"),
        open_vector_writer(tmp_path / "v.npy") as write,
    ):
        write("a", np.ones(4, np.float32))
        write("b", np.ones(4, np.float32))
        raise KeyboardInterrupt
    assert np.load(tmp_path / "v.npy.part").shape == (2, 4)
    with pytest.raises(AlbertkitError, match=r"v.npy.part exists"), open_vector_writer(tmp_path / "v.npy") as write:
        pass
    with pytest.raises(AlbertkitError, match="No space left"), open_vector_writer(tmp_path / "w.jsonl") as write:
        write("a", np.ones(4, np.float32))
        raise OSError(28, "No space left on device")
    assert (tmp_path / "w.jsonl.part").read_text().count("\n") == 1
    with pytest.raises(AlbertkitError, match="cannot be written"), open_vector_writer(tmp_path / "nowhere" / "v.npy"):
        pass


def test_vectors_flow_before_the_input_ends(folder):
    """The first vectors come after 64 texts, not after thousands."""
    albert = Albert(folder, threads=1)
    taken = 0

    def texts():
        nonlocal taken
        for i in range(5000):
            taken += 1
            yield f"text {i}"

    next(albert.embed_iter(texts()))
    assert taken <= 64


def test_similarity_is_a_cosine_for_every_model(tmp_path):
    artifact = make(tiny(vocab_size=3000))
    loud = dataclasses.replace(artifact, metadata=ArtifactMetadata(normalize=False))
    write_artifact(loud, tmp_path / "m")
    albert = Albert(tmp_path / "m")
    assert albert.similarity("a", "a") == pytest.approx(1, abs=1e-5) and np.linalg.norm(
        albert.embed("a")
    ) != pytest.approx(1)


def test_converting_a_sentence_transformers_folder_keeps_its_settings(tmp_path):
    meta = ArtifactMetadata(task="embed", pooling="cls", normalize=False, prompts={"query": "ask: "})
    artifact = dataclasses.replace(make(tiny(vocab_size=3000)), metadata=meta)
    write_artifact(artifact, tmp_path / "source")
    export_layout(tmp_path / "source", tmp_path / "st", "sentence-transformers")
    about = tmp_path / "st" / "config_sentence_transformers.json"
    about.write_text(json.dumps({"prompts": {"query": "ask: "}, "default_prompt_name": "query"}))
    quantize(tmp_path / "st", tmp_path / "small", 8)
    small = Albert(tmp_path / "small")
    assert (
        small.metadata.pooling == "cls"
        and small.metadata.normalize is False
        and small.metadata.prompts["query"] == "ask: "
    )
    whole = Albert(tmp_path / "st")
    assert np.array_equal(whole.embed("x"), whole.embed("x", prompt="query"))  # their default prompt is ours


@pytest.mark.parametrize("head", ["tag", "choose", "classify"])
def test_a_lone_head_is_written_where_transformers_looks(tmp_path, head):
    transformers = pytest.importorskip("transformers")
    config = tiny()
    model = AlbertModel(config, {head: build_head(head, config, labels=3)})
    model.save(tmp_path / "m")
    name = {"tag": "TokenClassification", "choose": "MultipleChoice", "classify": "SequenceClassification"}[head]
    extra = {} if head == "choose" else {"num_labels": 3}
    _, report = getattr(transformers, f"AlbertFor{name}").from_pretrained(
        tmp_path / "m", output_loading_info=True, **extra
    )
    assert not report["missing_keys"]
    assert read_artifact(tmp_path / "m").heads == [head]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([7.0]))
        self.step = nn.Linear(3, 2)


def test_an_own_head_survives_quantisation_whole(tmp_path):
    config = tiny()
    model = AlbertModel(config, {"mine": Scaled()})
    artifact = dataclasses.replace(make(tiny()), weights=model.weights(), config=config, tokenizer=None)
    write_artifact(artifact, tmp_path / "m", bits=8)
    again = AlbertModel.from_artifact(tmp_path / "m", heads={"mine": Scaled()})
    assert again.heads["mine"].scale.item() == 7.0
    assert torch.equal(again.heads["mine"].step.weight, model.heads["mine"].step.weight)
    partial = {n: a for n, a in model.weights().items() if n != "heads.mine.step.bias"}
    with pytest.raises(AlbertkitError, match=r"heads.mine.step.bias"):
        AlbertModel.from_artifact(dataclasses.replace(artifact, weights=partial), heads={"mine": Scaled()})


def test_the_name_of_a_model_says_how_it_pools(tmp_path):
    names = set()
    for pooling in ("mean", "cls"):
        artifact = dataclasses.replace(make(tiny(vocab_size=3000)), metadata=ArtifactMetadata(pooling=pooling))
        write_artifact(artifact, tmp_path / pooling)
        names |= {
            Albert(tmp_path / pooling).name,
            Albert(tmp_path / pooling, depth=1).name,
            Albert(tmp_path / pooling, bits=8).name,
        }
    assert len(names) == 6


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"hidden_act": []}),
        ("config.json", {"layer_norm_eps": 10**400}),
        ("config.json", {"architectures": 5}),
        ("albertkit.json", {"quantization": []}),
        ("albertkit.json", {"pooling": 3}),
        ("albertkit.json", {"history": [1]}),
        ("albertkit.json", {"metrics": [1]}),
        ("albertkit.json", {"labels": [1, 2]}),
        ("albertkit.json", {"prompts": ["x"]}),
        ("albertkit.json", {"task": {}}),
    ],
)
def test_values_of_the_wrong_kind(folder, tmp_path, file, change):
    import shutil

    shutil.copytree(folder, tmp_path / "m")
    if file == "config.json":
        data = json.loads((tmp_path / "m" / file).read_text())
        (tmp_path / "m" / file).write_text(json.dumps({**data, **change}))
        change_metadata(tmp_path / "m", files={})
    else:
        change_metadata(tmp_path / "m", **change)
    try:
        open_model(tmp_path / "m")
    except AlbertkitError as error:
        assert "\n" not in str(error)
    else:
        assert change == {"architectures": 5}


def test_inputs_of_the_wrong_kind(folder):
    albert = Albert(folder, threads=1)
    for call in (
        lambda: albert.embed(np.array([["a", "b"]])),
        lambda: albert.embed(np.array("a")),
        lambda: albert.embed("a", dim=1.5),
        lambda: albert.embed("a", layer=1.5),
        lambda: albert.fill_mask("[MASK]", k=2.5),
        lambda: Albert(folder, threads=1.5),
    ):
        with pytest.raises(AlbertkitError):
            call()
    assert len(list(albert.embed_iter("abc"))) == 1
    with pytest.raises(AlbertkitError, match="text 100 is missing"):
        albert.embed(["a"] * 100 + [None])
    long = [*TEXTS, "word " * 200]
    with pytest.raises(AlbertkitError, match="text 5 has"):
        albert.embed(long, long_texts="error")


@pytest.mark.slow
def test_arguments_that_are_not_utf8(folder, tmp_path):
    for name in ("s.jsonl", "s.parquet"):
        done = subprocess.run(
            [
                sys.executable.encode(),
                b"-m",
                b"albertkit.cli.entry_point",
                b"embed",
                b"caf\xe9",
                b"-m",
                str(folder).encode(),
                b"-o",
                str(tmp_path / name).encode(),
            ],
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr.decode()
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "albertkit.cli.entry_point", "embed", "x", "-m", folder],
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.returncode != 0 and b"Traceback" not in done.stderr


def test_an_onnx_file_cannot_point_elsewhere(tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(b"\0" * 64)
    tensor = onnx.TensorProto(name="encoder.bert.embeddings.word_embeddings.weight", data_type=1, dims=[4, 4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret.bin")
    graph = onnx.helper.make_graph([], "g", [], [], initializer=[tensor])
    (tmp_path / "evil.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(AlbertkitError, match="in other files"):
        open_model(tmp_path / "evil.onnx")


def test_what_left_the_files_leaves_the_index(folder, tmp_path):
    notes = tmp_path / "n"
    notes.mkdir()
    (notes / "a.txt").write_text("cats sleep all day\n")
    (notes / "b.txt").write_text("dogs bark at night\n")
    index = tmp_path / "n.idx"
    assert cli("index", notes, "-o", index, "-m", folder).returncode == 0
    (notes / "a.txt").write_text("")
    done = json.loads(cli("index", notes, "-o", index, "--json").stdout)
    assert done["deleted"] == 1 and done["total"] == 1
    (notes / "b.txt").unlink()
    (notes / "c.txt").write_text("birds sing\n")
    done = json.loads(cli("index", notes, "-o", index, "--json").stdout)
    assert done["deleted"] == 1 and done["total"] == 1


def test_reason_of_an_error_without_text_is_its_type():
    assert short_reason(MemoryError()) == "MemoryError"
    assert short_reason(ValueError("first\nsecond")) == "first"
    assert short_reason(OSError(28, "No space left")) == "No space left"
