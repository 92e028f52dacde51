"""The exported file: the artifact's numbers in onnxruntime and in OpenVINO, standard operators, every weight once,
whole or not at all.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from albertkit.albert import Albert
from albertkit.artifact import ArtifactMetadata, read_stored, write_artifact
from albertkit.compress.prune import PruneSettings, prune
from albertkit.compress.static_model import make_static_model
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.interop import onnx_check
from albertkit.interop import onnx_export as onnx_file
from albertkit.interop.onnx_export import ExportSettings, export
from albertkit.quantized import QuantizedMatrix
from albertkit.runtime.activation_moments import random_tokens, token_moments
from albertkit.runtime.predict import task_scores
from albertkit.tokenizer import Tokenizer
from albertkit.weights import encoder_shapes, size
from tests.conftest import real, tiny
from tests.test_albert import TEXTS, make

WORDS = [t for t in TEXTS if t]
SHORT = ["a lovely film", "rather dull", "no"]


def feed(albert: Albert, texts, pairs=None) -> dict[str, np.ndarray]:
    """Texts padded to one length, some tokens more."""
    encodings = albert.tokenizer.encode_batch(texts, pairs, max_length=albert.max_tokens)
    longest = min(albert.max_tokens, max(len(e.ids) for e in encodings) + 3)
    made = {
        name: np.zeros((len(texts), longest), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    for row, e in enumerate(encodings):
        made["input_ids"][row, : len(e.ids)] = e.ids
        made["token_type_ids"][row, : len(e.ids)] = e.segments
        made["attention_mask"][row, : len(e.ids)] = 1
    return made


def by_onnxruntime(path, given) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, given), strict=True))


def by_openvino(path, given) -> dict[str, np.ndarray]:
    openvino = pytest.importorskip("openvino")
    model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = model(given)
    return {output.name: found[output.name] for output in onnx.load(path).graph.output}


SHAPES = {
    "plain": {},
    "groups": {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2},
    "brightmart": {"options": Options(brightmart_layout=True)},
    "pruned": {"num_attention_heads": 3, "options": Options(head_size=8), "intermediate_size": 20},
    **{act: {"hidden_act": act} for act in ("gelu", "relu", "silu", "tanh")},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_equal_the_artifact(shape, tmp_path):
    write_artifact(make(tiny(vocab_size=3000, **SHAPES[shape])), tmp_path / "m")
    albert = Albert(tmp_path / "m", threads=1)
    vectors, per_token, given = albert.embed(WORDS), albert.token_vectors(WORDS), feed(albert, WORDS)
    report = export(tmp_path / "m", tmp_path / "m.onnx", ExportSettings(head="vector"))
    assert report.error < 1e-5 and report.outputs == ["sentence_embedding", "last_hidden_state"]
    for runner in (by_onnxruntime, by_openvino):
        found = runner(tmp_path / "m.onnx", given)
        assert np.abs(found["sentence_embedding"] - vectors).max() <= 1e-5
        for row, tokens in zip(found["last_hidden_state"], per_token, strict=True):
            assert np.abs(row[: len(tokens.ids)] - tokens.vectors).max() <= 1e-4


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "pooler"])
@pytest.mark.parametrize("unit", [True, False])
def test_every_pooling(pooling, unit, tmp_path):
    artifact = make(tiny(vocab_size=3000), heads=())
    artifact = dataclasses.replace(
        artifact, metadata=ArtifactMetadata(task="embed", pooling=pooling, normalize=unit, depth=2)
    )
    write_artifact(artifact, tmp_path / "m")
    albert = Albert(tmp_path / "m", threads=1)
    assert export(tmp_path / "m", tmp_path / "m.onnx").depth == 2
    for runner in (by_onnxruntime, by_openvino):
        found = runner(tmp_path / "m.onnx", feed(albert, WORDS))["sentence_embedding"]
        assert np.abs(found - albert.embed(WORDS)).max() <= 2e-5


def test_words_and_pairs(tmp_path):
    write_artifact(make(tiny(vocab_size=3000)), tmp_path / "m")
    albert = Albert(tmp_path / "m", threads=1)
    assert export(tmp_path / "m", tmp_path / "m.onnx").outputs == ["logits"]
    given = feed(albert, WORDS, list(reversed(WORDS)))
    first, second = (run(tmp_path / "m.onnx", given)["logits"] for run in (by_onnxruntime, by_openvino))
    inside = given["attention_mask"].astype(bool)
    assert np.abs(first[inside] - second[inside]).max() < 1e-4 and first.shape[2] == 3000
    stored = {t.name for t in onnx.load(tmp_path / "m.onnx").graph.initializer}
    assert sum("word" in name for name in stored) == 1  # the table is read both ways and stored once


@pytest.mark.parametrize("task", ["classify", "tag", "answer", "choose", "intent", "frozen"])
def test_task_heads(task, tmp_path):
    heads = ("classify", "tag") if task == "intent" else ("classify",) if task == "frozen" else (task,)
    labels = () if task in ("answer", "choose") else ("O", "B-x") if task in ("tag", "intent") else ("a", "b")
    details = {"reads": "vector"} if task == "frozen" else {"intents": ["a", "b"]} if task == "intent" else {}
    meta = ArtifactMetadata(task="classify" if task == "frozen" else task, labels=labels, details=details)
    write_artifact(dataclasses.replace(make(tiny(vocab_size=3000), heads), metadata=meta), tmp_path / "m")
    albert = Albert(tmp_path / "m", threads=1)
    report = export(tmp_path / "m", tmp_path / "m.onnx")
    given = feed(albert, WORDS)
    from albertkit.tasks.task import Feature

    encodings = albert.tokenizer.encode_batch(WORDS)
    wanted = task_scores(albert, [Feature(e.ids, e.segments, i) for i, e in enumerate(encodings)])
    for runner in (by_onnxruntime, by_openvino):
        found = runner(tmp_path / "m.onnx", given)
        assert set(found) == set(report.outputs)
        for row, want in enumerate(wanted):
            if task == "answer":
                got = np.stack([found["start_logits"][row], found["end_logits"][row]], axis=1)[: len(want)]
            elif task == "intent":
                assert np.abs(found["tag_logits"][row][: len(want[1])] - want[1]).max() < 1e-4
                got, want = found["logits"][row], want[0]
            else:
                got = found["logits"][row][: len(want)]
            assert np.abs(got - want).max() < 1e-4


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("kind", ["single", "multi", "regression", "frozen"])
def test_logits_give_the_probabilities_of_the_model(kind, bits, tmp_path):
    """Temperature, mean and standard deviation are in the file."""
    details = {"kind": kind, "temperature": 2.7}
    if kind in ("regression", "frozen"):
        details = (
            {"kind": kind, "mean": 37.0, "std": 12.5}
            if kind == "regression"
            else {"reads": "vector", "temperature": 0.5}
        )
    labels = () if kind == "regression" else ("a", "b", "c")
    made = make(tiny(vocab_size=3000), ("classify",), labels=len(labels) or 1)
    meta = ArtifactMetadata(task="classify", labels=labels, details=details)
    write_artifact(dataclasses.replace(made, metadata=meta), tmp_path / "m", bits=bits)
    albert = Albert(tmp_path / "m", threads=1)
    export(tmp_path / "m", tmp_path / "m.onnx")
    logits = by_onnxruntime(tmp_path / "m.onnx", feed(albert, WORDS))["logits"].astype(np.float64)
    results = albert.classify(WORDS)
    allowed = 1e-4 if bits is None else 0.05  # activations of int8 files are rounded to 7 bits
    if kind == "regression":
        assert np.abs(logits[:, 0] - [r.label for r in results]).max() < allowed * 12.5
        return
    wanted = np.array([list(r.probabilities.values()) for r in results])
    powers = np.exp(logits)
    found = powers / (1 + powers) if kind == "multi" else powers / powers.sum(1, keepdims=True)
    assert np.abs(found - wanted).max() < allowed


@pytest.mark.parametrize("bits", [None, 8])
def test_a_score_that_happens_to_be_near_zero_is_no_difference(bits, tmp_path):
    artifact = make(tiny(vocab_size=3000), ("choose",))
    artifact = dataclasses.replace(artifact, metadata=ArtifactMetadata(task="choose"))
    write_artifact(artifact, tmp_path / "m", bits=bits)
    albert = Albert(tmp_path / "m", threads=1)
    batch = onnx_check.random_batch(albert.config)
    found = onnx_check.runtime_outputs(albert, albert.engine.run(batch, 1), batch, ("choose",))["logits"]
    bias = artifact.weights["heads.choose.linear.bias"] - np.float32(
        found[0][0]
    )  # the first text's is 0 after one layer
    weights = {**artifact.weights, "heads.choose.linear.bias": bias}
    write_artifact(dataclasses.replace(artifact, weights=weights), tmp_path / "zero", bits=bits)
    assert export(tmp_path / "zero", tmp_path / "m.onnx", ExportSettings(depth=1)).error < onnx_file.LAYER_ERROR


def test_what_scores_mean_stands_in_the_file(tmp_path):
    details = {"kind": "regression", "mean": 2.5, "std": 1.5, "max_length": 24, "early_exit": {"depth": 2}}
    artifact = make(tiny(vocab_size=3000), ("classify",), 1)
    write_artifact(
        dataclasses.replace(artifact, metadata=ArtifactMetadata(task="classify", details=details)), tmp_path / "m"
    )
    export(tmp_path / "m", tmp_path / "m.onnx")
    about = {p.key: p.value for p in onnx.load(tmp_path / "m.onnx").metadata_props}
    told = json.loads(about["details"])
    assert about["max_length"] == "24" and "early_exit" not in told and (told["mean"], told["std"]) == (0.0, 1.0)
    albert = Albert(tmp_path / "m", threads=1)
    logits = by_onnxruntime(tmp_path / "m.onnx", feed(albert, SHORT))["logits"][:, 0]
    values = [found.label for found in albert.classify(SHORT)]
    assert logits == pytest.approx(values, abs=1e-4)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8")
    artifact = make(tiny(vocab_size=3000, hidden_size=64, intermediate_size=128))
    seen = token_moments(artifact.config, dict(artifact.weights), random_tokens(artifact.config, 16))
    for bits in (8, 4):
        write_artifact(artifact, folder / str(bits), bits=bits, moments=seen)
    return folder


@pytest.mark.parametrize("bits", [8, 4])
def test_int8_is_int8(quantised, bits, tmp_path):
    albert = Albert(quantised / str(bits), threads=1)
    report = export(quantised / str(bits), tmp_path / "m.onnx", ExportSettings(head="vector"))
    assert report.bits == 8
    model = onnx.load(tmp_path / "m.onnx")
    assert [n.op_type for n in model.graph.node].count("MatMulInteger") == 4 * 3
    stored = read_stored(quantised / str(bits)).weights
    floats = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) == 2]
    assert all(min(t.dims) <= 2 for t in floats), [t.name for t in floats]  # segments and scales alone
    packed = sum(
        w.values.nbytes + w.scale.nbytes
        for n, w in stored.items()
        if isinstance(w, QuantizedMatrix) and n.startswith("encoder.") and "pooler" not in n
    )
    assert packed <= report.weight_bytes < 1.1 * packed
    for runner in (by_onnxruntime, by_openvino):
        found = runner(tmp_path / "m.onnx", feed(albert, WORDS))["sentence_embedding"]
        assert (found * albert.embed(WORDS)).sum(1).min() > 0.995


def test_one_int8_layer_is_equal_everywhere(quantised, tmp_path):
    """Without layers to carry a rounding on, all runtimes agree closely."""
    report = export(quantised / "8", tmp_path / "m.onnx", ExportSettings(head="vector", depth=1))
    albert = Albert(quantised / "8", threads=1)
    first, second = (
        run(tmp_path / "m.onnx", feed(albert, WORDS))["sentence_embedding"] for run in (by_onnxruntime, by_openvino)
    )
    assert report.error < 0.02 and (first * second).sum(1).min() > 0.9995


@pytest.mark.slow
def test_only_standard_operators_and_hardly_more_than_weights(tmp_path):
    config = tiny(vocab_size=3000, embedding_size=640, hidden_size=256, intermediate_size=1024, num_hidden_layers=12)
    write_artifact(make(config, heads=()), tmp_path / "m")
    write_artifact(make(config, heads=()), tmp_path / "int8", bits=8)
    for name in ("m", "int8"):
        report = export(tmp_path / name, tmp_path / f"{name}.onnx", ExportSettings(head="vector"))
        model = onnx.load(tmp_path / f"{name}.onnx")
        onnx.checker.check_model(model, full_check=True)
        assert [o.domain for o in model.opset_import] == [""]
        assert report.bytes <= 1.03 * report.weight_bytes
        assert all(not node.name and len(node.output[0]) < 20 for node in model.graph.node)
        assert (tmp_path / f"{name}.onnx").stat().st_size == report.bytes
    needed = 4 * size(encoder_shapes(config, pooler=False))
    assert needed <= (tmp_path / "m.onnx").stat().st_size <= 1.03 * needed


def test_pruned_small_vocabulary_and_static_models(tmp_path):
    write_artifact(make(tiny(vocab_size=3000)), tmp_path / "m")
    prune(tmp_path / "m", tmp_path / "small", PruneSettings(heads=2, ffn=20, layers=2, vocabulary=WORDS))
    make_static_model(tmp_path / "small", tmp_path / "static", dim=8)
    for name in ("small", "static"):
        export(tmp_path / name, tmp_path / f"{name}.onnx", ExportSettings(head="vector"))
        albert = Albert(tmp_path / name)
        for runner in (by_onnxruntime, by_openvino):
            found = runner(tmp_path / f"{name}.onnx", feed(albert, WORDS))["sentence_embedding"]
            assert np.abs(found - albert.embed(WORDS)).max() < 1e-5


def test_tokenizer_beside_and_facts_inside(tmp_path):
    from tokenizers import Tokenizer as Rust

    meta = ArtifactMetadata(task="classify", labels=("good", "böse"))
    write_artifact(dataclasses.replace(make(tiny(vocab_size=3000), ("classify",)), metadata=meta), tmp_path / "m")
    export(tmp_path / "m", tmp_path / "out" / "m.onnx", ExportSettings(tokenizer=True))
    ids = Rust.from_file(str(tmp_path / "out" / "tokenizer.json")).encode("this is a test").ids
    assert ids == Albert(tmp_path / "m").tokenizer.encode("this is a test").ids
    known = {p.key: p.value for p in onnx.load(tmp_path / "out" / "m.onnx").metadata_props}
    assert known["task"] == "classify" and known["labels"] == '["good", "böse"]' and known["max_length"] == "40"


def test_a_file_that_differs_is_not_written(tmp_path, monkeypatch):
    write_artifact(make(tiny(vocab_size=3000)), tmp_path / "m")
    build = onnx_file.build
    monkeypatch.setattr(onnx_file, "build", lambda stored, heads, depth, *rest: build(stored, heads, depth - 1, *rest))
    with pytest.raises(AlbertkitError, match="differ from the model's .* not written"):
        export(tmp_path / "m", tmp_path / "m.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_bad_requests(tmp_path):
    write_artifact(make(tiny(vocab_size=3000)), tmp_path / "m")
    (tmp_path / "there.onnx").write_bytes(b"mine")
    for target, settings, message in (
        ("there.onnx", ExportSettings(), "exists"),
        ("m", ExportSettings(), "is a folder"),
        ("x.onnx", ExportSettings(head="tag"), "choose one of vector, mlm"),
        ("tokenizer.json", ExportSettings(tokenizer=True), "is the file that --tokenizer writes"),
    ):
        with pytest.raises(AlbertkitError, match=message):
            export(tmp_path / "m", tmp_path / target, settings)
    assert (tmp_path / "there.onnx").read_bytes() == b"mine" and not (tmp_path / "x.onnx").exists()


@pytest.mark.parametrize("name", ["zh-tiny", "zh-tiny-brightmart"])
def test_real_checkpoints_pruned_and_exported(name, tmp_path):
    texts = [
        "北京是中国的首都。",
        "今天天气很好，我们去公园吧",
        "albert 是一个 2019 年的模型",
        "他说：“你好！”",
        "长江流经上海",
    ] * 3
    prune(real(name), tmp_path / "small", PruneSettings(ffn=0.75, heads=9, vocabulary=texts), texts)
    albert = Albert(tmp_path / "small", threads=1)
    whole = Tokenizer.load(real(name))
    assert albert.config.vocab_size < 3000
    assert [t.tokens for t in albert.token_vectors(texts)] == [whole.tokens(e.ids) for e in whole.encode_batch(texts)]
    report = export(tmp_path / "small", tmp_path / "m.onnx", ExportSettings(head="vector"))
    assert report.bytes <= 1.03 * report.weight_bytes
    for runner in (by_onnxruntime, by_openvino):
        found = runner(tmp_path / "m.onnx", feed(albert, texts))["sentence_embedding"]
        assert np.abs(found - albert.embed(texts)).max() <= 1e-5
