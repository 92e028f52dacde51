"""Foreign layouts made in memory: TensorFlow (Google's and albert_zh's), old PyTorch names, PL-BERT files."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from albertkit.artifact import Artifact
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.interop import plbert
from albertkit.interop.convert import convert, open_model
from albertkit.interop.huggingface import from_state_dict
from albertkit.model import AlbertModel, Batch
from albertkit.model.albert_model import build_head
from albertkit.weights import BRIGHTMART, PUBLIC, tensor_names
from tests.conftest import SPIECE, tiny
from tests.interop.bundle_writer import to_variables, write_bundle


def model_of(config, heads=("mlm", "sop")) -> AlbertModel:
    torch.manual_seed(5)
    model = AlbertModel(config, {name: build_head(name, config) for name in heads})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model.eval()


def google_config(config) -> dict:
    drop = (
        "model_type",
        "albertkit",
        "layer_norm_eps",
        "classifier_dropout_prob",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
    )
    public = {k: v for k, v in config.to_dict().items() if k not in drop}
    return {
        **public,
        "hidden_act": "gelu",
        "net_structure_type": 0,
        "gap_size": 0,
        "num_memory_blocks": 0,
        "down_scale_factor": 1,
    }


@pytest.mark.parametrize("root", ["", "module/"])
@pytest.mark.parametrize("brightmart", [False, True])
def test_tensorflow_checkpoint(tmp_path, brightmart, root):
    """Written under Google's names with optimizer slots beside them, read back without TensorFlow: equal, bit for bit."""
    config = tiny(vocab_size=30000, classifier_dropout_prob=0.1, options=Options(brightmart_layout=brightmart))
    if not brightmart:
        config = config.replace(num_hidden_groups=2, inner_group_num=2)
    model = model_of(config)
    variables = {root + n: a for n, a in to_variables(Artifact(config, model.weights())).items()}
    if not root:
        word = "bert/embeddings/word_embeddings"
        variables |= {
            f"{word}/adam_m": variables[word],
            f"{word}/adam_v": variables[word],
            "global_step": np.array(7),
        }
    write_bundle(tmp_path / "model.ckpt-best", variables)
    (tmp_path / "albert_config.json").write_text(json.dumps(google_config(config)))
    shutil.copy(SPIECE, tmp_path / ("30k-clean.model" if root else "spiece.model"))
    for path in (tmp_path, tmp_path / "model.ckpt-best", tmp_path / "model.ckpt-best.index"):
        artifact = open_model(path)
        assert artifact.config == config and artifact.heads == ["mlm", "sop"]
        assert all((array == artifact.weights[name]).all() for name, array in model.weights().items())
    convert(tmp_path, tmp_path / "out")
    assert open_model(tmp_path / "out").config == config


def test_a_bert_checkpoint_is_refused(tmp_path):
    write_bundle(tmp_path / "bert.ckpt", {"bert/embeddings/word_embeddings": np.zeros((3, 2), np.float32)})
    with pytest.raises(AlbertkitError, match="not an ALBERT"):
        open_model(tmp_path)


def test_unknown_variables_are_not_dropped(tmp_path):
    config = tiny(vocab_size=30000)
    variables = to_variables(Artifact(config, model_of(config).weights()))
    write_bundle(tmp_path / "m", {**variables, "bert/encoder/adapter/kernel": np.zeros((2, 2), np.float32)})
    (tmp_path / "albert_config.json").write_text(json.dumps(google_config(config)))
    shutil.copy(SPIECE, tmp_path / "spiece.model")
    with pytest.raises(AlbertkitError, match="bert/encoder/adapter/kernel"):
        open_model(tmp_path)


@pytest.mark.parametrize("rows", [PUBLIC, BRIGHTMART], ids=["public", "brightmart"])
def test_the_tables_are_reversible(rows):
    config = tiny(options=Options(brightmart_layout=rows is BRIGHTMART))
    table = tensor_names(config, rows, classifier="tag")
    for column in ("ours", "torch", "tf"):
        found = [getattr(name, column) for name in table]
        assert len(found) == len(set(found))
    assert {n.ours for n in table if n.ours.startswith("encoder.")} == set(model_of(config, ()).state_dict())


def test_old_layer_norm_names_and_tied_copies():
    config = tiny()
    model = model_of(config)
    table = {name.ours: name.torch for name in tensor_names(config)}
    state = {table[n].replace("LayerNorm.weight", "LayerNorm.gamma"): a for n, a in model.weights().items()}
    state["predictions.decoder.weight"] = np.zeros((97, 16), np.float32)
    state["albert.embeddings.position_ids"] = np.arange(40)[None]
    _, weights = from_state_dict(state, config.to_dict())
    assert all((weights[n] == a).all() for n, a in model.weights().items()) and set(weights) == set(model.weights())
    bare = {
        n.removeprefix("albert."): a
        for n, a in state.items()
        if n.startswith("albert.embed") or n.startswith("albert.en")
    }
    _, encoder = from_state_dict(
        {n.replace("position_ids", "x"): a for n, a in bare.items() if "position_ids" not in n},
        config.to_dict(),
    )
    assert set(encoder) == {n for n in model.weights() if n.startswith("encoder.") and ".pooler." not in n}


def plbert_model() -> AlbertModel:
    shape = {"vocab_size": 178, "hidden_size": 48, "num_attention_heads": 12, "num_hidden_layers": 12}
    return model_of(tiny(**shape, classifier_dropout_prob=0.1), heads=())


@pytest.mark.parametrize("nest", ["net", "bert", None])
def test_pl_bert_files(tmp_path, nest):
    model = plbert_model()
    table = {name.ours: name.torch for name in tensor_names(model.config)}
    state = {
        f"module.encoder.{table[n].removeprefix('albert.')}": torch.from_numpy(a) for n, a in model.weights().items()
    }
    state["module.mask_predictor.weight"] = torch.zeros(3)
    torch.save({nest: state, "step": 5} if nest else state, tmp_path / "step_1000.t7")
    for path in (tmp_path, tmp_path / "step_1000.t7"):
        artifact = open_model(path)
        assert artifact.config == model.config and artifact.tokenizer.kind == "phoneme"
        assert all((a == artifact.weights[n]).all() for n, a in model.weights().items())
    convert(tmp_path, tmp_path / "out")
    back = open_model(tmp_path / "out")
    ids = back.tokenizer.encode("həlˈoʊ", add_specials=False).ids
    assert ids == [plbert.SYMBOLS.index(c) for c in "həlˈoʊ"]
    with torch.no_grad():
        a = AlbertModel.from_artifact(back)(Batch.of([ids])).encoded.hidden
        assert torch.equal(a, model(Batch.of([ids])).encoded.hidden)


def test_damaged_onnx_is_refused(tmp_path):
    for data in (b"", b"\x08\x07junk" * 50, bytes(range(256))):
        (tmp_path / "x.onnx").write_bytes(data)
        with pytest.raises(AlbertkitError):
            open_model(tmp_path / "x.onnx")
