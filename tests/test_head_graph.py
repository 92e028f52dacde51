"""The graph of a custom head: equal to torch without torch, the same everywhere, and refused if it is not what it
should be.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import TensorProto, helper

from albertkit.albert import Albert
from albertkit.artifact import Artifact, model_identity, read_artifact, read_stored, write_artifact
from albertkit.cli.entry_point import app
from albertkit.compress.prune import PruneSettings, prune
from albertkit.compress.quantize import quantize
from albertkit.errors import AlbertkitError
from albertkit.file_io import digest
from albertkit.head_graph import MAX_HEAD_BYTES, HeadSession
from albertkit.interop.convert import convert
from albertkit.interop.onnx_export import ExportSettings, export
from albertkit.model import AlbertModel, Batch
from albertkit.runtime.predict import task_features, task_scores, text_examples, word_examples
from albertkit.train.finetune_task import FinetuneObjective, compute_scores, pack_features
from tests.conftest import change_metadata
from tests.custom_heads import MODELS, AttentionHead, TokenHead, save
from tests.interop.test_onnx_export import by_onnxruntime, feed

TEXTS = ["a lovely film", "rather dull", "no", "what a long and winding story about nothing at all , he said"]
HEADS = {"classify": text_examples, "tag": word_examples}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, tuple[Path, AlbertModel]]:
    place = tmp_path_factory.mktemp("custom")
    return {head: (place / head, save(place / head, head)) for head in MODELS}


@pytest.fixture
def folder(models, tmp_path) -> Path:
    """A copy of the classifier, to damage."""
    write_artifact(read_artifact(models["classify"][0]), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("head", MODELS)
def test_scores_of_the_runtime_equal_those_of_torch(models, head):
    folder, model = models[head]
    albert = Albert(folder)
    features = task_features(albert, HEADS[head](TEXTS), head)
    expected = compute_scores(FinetuneObjective(model, albert.task), features, pack_features)
    for found, wanted in zip(task_scores(albert, features), expected, strict=True):
        assert np.abs(found - wanted).max() < 1e-5
    alone = task_scores(albert, features[2:3])[0]
    assert np.abs(alone - expected[2]).max() < 1e-5


def test_scores_in_train_mode_equal_those_of_the_module(models):
    _, model = models["tag"]  # without dropout
    batch = Batch.of([[5, 6, 7, 8], [9, 10]])
    encoded = model.eval()(batch).encoded
    one, other = model.heads["tag"].train()(encoded).logits, model.heads["tag"].eval()(encoded).logits
    assert torch.equal(one, other) and one.shape == (6, 3)


@pytest.mark.parametrize("head", MODELS)
def test_a_model_opens_again_in_torch_with_the_class_of_its_head(models, head):
    folder, model = models[head]
    with pytest.raises(AlbertkitError, match=f"custom head '{head}', whose Python class is not stored"):
        AlbertModel.from_artifact(folder)
    module = {"classify": AttentionHead, "tag": TokenHead}[head](model.config.hidden_size, 3)
    again = AlbertModel.from_artifact(folder, heads={head: module})
    batch = Batch.of([[5, 6, 7, 8], [9, 10]])
    with torch.no_grad():
        assert torch.equal(again(batch).heads[head].logits, model.eval()(batch).heads[head].logits)
    assert again.head_graphs() == read_artifact(folder).head_graphs


def test_a_model_runs_where_torch_cannot_be_imported(models):
    program = (
        "import sys, json; sys.modules['torch'] = None\n"
        "from albertkit import Albert\n"
        f"one, other = Albert({str(models['classify'][0])!r}), Albert({str(models['tag'][0])!r})\n"
        f"print(json.dumps([one.classify({TEXTS!r})[0].probabilities, len(other.tag({TEXTS!r}))]))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    found, count = json.loads(printed)
    assert found == pytest.approx(Albert(models["classify"][0]).classify(TEXTS)[0].probabilities) and count == 4


def test_each_weight_is_stored_once(models):
    folder, model = models["classify"]
    graph = onnx.load(folder / "head-classify.onnx").graph
    assert not graph.initializer and (folder / "head-classify.onnx").stat().st_size < 6000
    assert json.loads((folder / "albertkit.json").read_text())["files"]["head-classify.onnx"] == digest(
        folder / "head-classify.onnx"
    )
    assert set(read_stored(folder).weights) == set(model.weights())


@pytest.mark.parametrize("head", MODELS)
@pytest.mark.parametrize("bits", [None, 8])
def test_an_exported_file_has_the_same_scores(models, tmp_path, head, bits):
    folder = models[head][0]
    if bits:
        folder = tmp_path / "int8"
        assert quantize(models[head][0], folder, bits).float_heads == (head,)
    result = export(folder, tmp_path / "model.onnx")
    albert, file = Albert(folder), onnx.load(tmp_path / "model.onnx")
    names = [t.name for t in file.graph.initializer]
    assert len(names) == len(set(names)) and {one.domain for one in file.opset_import} == {""}
    weights = sum(w.nbytes for n, w in read_stored(folder).weights.items() if n.startswith("heads."))
    assert sum(len(t.raw_data) for t in file.graph.initializer if t.name.startswith(f"{head}.")) <= weights + 64
    assert result.outputs == ["logits"]
    if bits:
        return  # `export` has compared it; int8 products of other machines differ
    features = task_features(albert, HEADS[head](TEXTS), head)
    inputs = {name: np.zeros((4, 30), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    for row, feature in enumerate(features):
        inputs["input_ids"][row, : len(feature.ids)] = feature.ids
        inputs["attention_mask"][row, : len(feature.ids)] = 1
    found = by_onnxruntime(tmp_path / "model.onnx", inputs)["logits"]
    for row, wanted in zip(found, task_scores(albert, features), strict=True):
        assert np.abs((row[: len(wanted)] if head == "tag" else row) - wanted).max() < 1e-4


def test_an_exported_file_contains_temperature_mean_and_deviation(tmp_path):
    save(tmp_path / "model", "classify", temperature=2.0)
    export(tmp_path / "model", tmp_path / "model.onnx")
    albert = Albert(tmp_path / "model")
    logits = by_onnxruntime(tmp_path / "model.onnx", feed(albert, TEXTS))["logits"]
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert np.abs(chances[0] - [albert.classify(TEXTS[0]).probabilities[n] for n in albert.task.labels]).max() < 1e-5


def test_vectors_of_a_model_with_a_custom_head_can_be_exported(models, tmp_path):
    assert "sentence_embedding" in export(models["tag"][0], tmp_path / "v.onnx", ExportSettings(head="vector")).outputs


def test_pruning_and_quantizing_keep_the_head(models, tmp_path):
    folder = models["classify"][0]
    prune(folder, tmp_path / "pruned", PruneSettings(ffn=0.5, heads=2, layers=2))
    quantize(tmp_path / "pruned", tmp_path / "int8", 8)
    before, after = read_artifact(folder), read_stored(tmp_path / "int8")
    assert after.head_graphs == before.head_graphs
    heads = [name for name in before.weights if name.startswith("heads.")]
    assert heads and all(np.array_equal(before.weights[name], after.weights[name]) for name in heads)
    assert Albert(tmp_path / "int8").classify("a lovely film").label in ("bad", "fine", "good")
    assert "custom one, in float" in (tmp_path / "int8" / "README.md").read_text()


def test_the_command_says_that_the_head_stays_in_float(models, tmp_path):
    words = ["quantize", str(models["tag"][0]), str(tmp_path / "int8")]
    assert "the custom head tag stays in float" in CliRunner().invoke(app, words, catch_exceptions=False).stdout


def test_transformers_does_not_open_a_folder_with_a_custom_head(models, tmp_path):
    convert(models["classify"][0], tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "albertkit"
    assert "it has a custom head (classify)" in (tmp_path / "out" / "README.md").read_text()
    assert Albert(tmp_path / "out").classify("a lovely film") == Albert(models["classify"][0]).classify("a lovely film")


def test_gradients_need_the_class_of_the_head_and_occlusion_does_not(models):
    albert = Albert(models["classify"][0])
    assert albert.explain("a lovely film", methods=("occlusion",)).to_dict()
    with pytest.raises(AlbertkitError, match="gradients are not available: this model has a custom head"):
        albert.explain("a lovely film", methods=("gradients",))


def test_the_name_of_a_model_covers_the_graph(models):
    artifact = read_artifact(models["classify"][0])
    model = onnx.ModelProto.FromString(artifact.head_graphs["classify"])
    model.producer_name = "another"
    other = Artifact(
        artifact.config, artifact.weights, artifact.tokenizer, artifact.metadata,
        {"classify": model.SerializeToString()},
    )  # fmt: skip
    assert model_identity(other) != model_identity(artifact)


# Hostile files -------------------------------------------------------------------------------------------------------


def external(model: onnx.ModelProto) -> None:
    tensor = TensorProto(name="secret", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    model.graph.initializer.append(tensor)


def external_constant(model: onnx.ModelProto) -> None:
    tensor = TensorProto(name="secret", data_type=1, dims=[1])
    tensor.external_data.add(key="location", value="../weights")
    model.graph.node.append(helper.make_node("Constant", [], ["secret"], value=tensor))


def custom_domain(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.microsoft"


def custom_opset(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("evil", 1))


def function(model: onnx.ModelProto) -> None:
    model.functions.append(onnx.FunctionProto(name="Relu"))


def loop(model: onnx.ModelProto) -> None:
    body = helper.make_graph([helper.make_node("Identity", ["go"], ["again"])], "body", [], [])
    model.graph.node.append(helper.make_node("Loop", ["", ""], ["never"], body=body))


def random_numbers(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("RandomNormal", [], ["noise"], shape=[2]))


def too_many_nodes(model: onnx.ModelProto) -> None:
    model.graph.node.extend([helper.make_node("Relu", ["hidden"], [f"x{n}"]) for n in range(10_001)])


def unknown_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("encoder.secret", TensorProto.FLOAT, [2]))


def wrong_shape(model: onnx.ModelProto) -> None:
    model.graph.input[-1].type.tensor_type.shape.dim[0].dim_value += 1


def other_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "logits"


def sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add()


def unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "NoSuchOperator"


def too_large(model: onnx.ModelProto) -> None:
    array = np.zeros(MAX_HEAD_BYTES // 4 + 1, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, "large"))


HOSTILE: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "external data": (external, "refers to data in another file"),
    "external constant": (external_constant, "refers to data in another file"),
    "custom domain": (custom_domain, r"the operator com\.microsoft\."),
    "custom opset": (custom_opset, "uses the operator sets"),
    "function": (function, "defines functions"),
    "loop": (loop, "the operator Loop; loops and branches"),
    "random numbers": (random_numbers, "random numbers are not allowed"),
    "too many nodes": (too_many_nodes, "operators; 1 to 10,000"),
    "unknown input": (unknown_input, "the input 'encoder.secret'"),
    "wrong shape": (wrong_shape, "of shape"),
    "other output": (other_output, "has the outputs"),
    "sparse": (sparse, "sparse tensors"),
    "unknown operator": (unknown_operator, "cannot be computed by onnxruntime"),
    "too large": (too_large, "bytes; at most"),
}


def replace_graph(folder: Path, data: bytes) -> None:
    """Write another graph, with a hash that fits."""
    path = folder / "head-classify.onnx"
    path.write_bytes(data)
    files = json.loads((folder / "albertkit.json").read_text())["files"]
    change_metadata(folder, files={**files, path.name: digest(path)})


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_graph_is_an_error_that_names_the_file(folder, kind):
    change, reason = HOSTILE[kind]
    model = onnx.load(folder / "head-classify.onnx")
    change(model)
    replace_graph(folder, model.SerializeToString())
    with pytest.raises(AlbertkitError, match=rf"head-classify\.onnx .*{reason}"):
        Albert(folder)


def test_a_damaged_or_missing_graph_is_an_error_that_names_the_file(folder):
    path = folder / "head-classify.onnx"
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(AlbertkitError, match=r"head-classify\.onnx has changed since it was written"):
        Albert(folder)
    path.unlink()
    with pytest.raises(AlbertkitError, match=r"head-classify\.onnx is missing"):
        Albert(folder)
    files = json.loads((folder / "albertkit.json").read_text())["files"]
    change_metadata(folder, files={name: value for name, value in files.items() if name != path.name})
    with pytest.raises(AlbertkitError, match=r"head-classify\.onnx is not listed"):
        Albert(folder)


def test_scores_of_the_wrong_shape_are_an_error_that_names_the_file(folder):
    model = onnx.load(folder / "head-classify.onnx")
    model.graph.node.extend([helper.make_node("Identity", ["hidden"], ["other"])])
    for node in model.graph.node:
        node.output[:] = ["first" if name == "scores" else name for name in node.output]
        node.output[:] = ["scores" if name == "other" else name for name in node.output]
    replace_graph(folder, model.SerializeToString())
    with pytest.raises(AlbertkitError, match=r"head-classify\.onnx gives scores of shape \(1, .*; \(1, 3\) is needed"):
        Albert(folder).classify("a lovely film")


def expand(size: int) -> list[onnx.NodeProto]:
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [size])
    return [
        helper.make_node("Constant", [], ["size"], value=shape),
        helper.make_node("ConstantOfShape", ["size"], ["large"]),
    ]


def double(times: int) -> list[onnx.NodeProto]:
    """Twice as long with each operator, from constants: an optimizer would compute it when the file is opened."""
    names = ["one", *(f"double{n}" for n in range(times - 1)), "large"]
    one = helper.make_tensor("value", TensorProto.FLOAT, [1], [1.0])
    chain = [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in pairwise(names)]
    return [helper.make_node("Constant", [], ["one"], value=one), *chain]


@pytest.mark.parametrize("nodes", [expand(2**29), double(29)], ids=["one tensor", "many operators"])
def test_a_graph_cannot_take_much_memory(folder, nodes):
    model = onnx.load(folder / "head-classify.onnx")
    for node in model.graph.node:
        node.output[:] = ["first" if name == "scores" else name for name in node.output]
    sums = [
        helper.make_node("ReduceMax", ["large"], ["most"], keepdims=0),
        helper.make_node("Add", ["first", "most"], ["scores"]),
    ]
    model.graph.node.extend([*nodes, *sums])
    replace_graph(folder, model.SerializeToString())
    albert = Albert(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AlbertkitError, match=r"head-classify\.onnx cannot be computed by onnxruntime"):
        albert.classify("a lovely film")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1.5 * 2**20  # kilobytes


def test_any_flipped_bit_is_computed_or_refused(models):
    """Without the hash: no crash, and no error of another kind."""
    artifact = read_artifact(models["classify"][0])
    data, hidden = artifact.head_graphs["classify"], np.zeros((2, 5, artifact.config.hidden_size), np.float32)
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(data), 300).tolist():
        changed = data[:place] + bytes([data[place] ^ (1 << int(rng.integers(8)))]) + data[place + 1 :]
        try:
            HeadSession("classify", changed, artifact.weights).scores(hidden, np.array([5, 2]))
        except AlbertkitError as error:
            assert "head-classify.onnx" in str(error)


def test_weights_of_a_custom_head_need_its_graph(models):
    artifact = read_artifact(models["classify"][0])
    with pytest.raises(AlbertkitError, match=r"custom heads \['classify'\], but there are graphs of \[\]"):
        Artifact(artifact.config, artifact.weights, artifact.tokenizer, artifact.metadata)
