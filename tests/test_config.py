"""The config: presets, validation, and reading other people's files."""

from __future__ import annotations

import dataclasses
import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from albertkit.config import PRESETS, AlbertConfig, Options, preset
from albertkit.errors import AlbertkitError
from albertkit.weights import encoder_shapes, size
from tests.conftest import CHECKPOINTS, tiny

# The published counts, with pooler.
COUNTS = {
    "base": 11_683_584,
    "large": 17_683_968,
    "xlarge": 58_724_864,
    "xxlarge": 222_595_584,
    "tiny-zh": 4_080_520,
    "small-zh": 4_742_272,
}


@pytest.mark.parametrize("name", COUNTS)
def test_presets_have_the_published_counts(name):
    assert size(encoder_shapes(preset(name))) == COUNTS[name]


def test_preset_versions_differ_in_dropout():
    for name in PRESETS:
        assert preset(name) == preset(f"{name}-v2") and preset(name).hidden_dropout_prob == 0.0
        first = preset(f"{name}-v1")
        assert first.hidden_dropout_prob == first.attention_probs_dropout_prob == (0.0 if name == "xxlarge" else 0.1)
        assert first.classifier_dropout_prob == 0.1
    with pytest.raises(AlbertkitError, match="did you mean 'xlarge'"):
        preset("xlrge")


@given(st.integers(1, 12), st.integers(1, 12))
def test_groups_follow_the_published_rule(layers, groups):
    if groups > layers:
        with pytest.raises(AlbertkitError, match="exceeds num_hidden_layers"):
            tiny(num_hidden_layers=layers, num_hidden_groups=groups)
        return
    config = tiny(num_hidden_layers=layers, num_hidden_groups=groups)
    found = [config.group_of(i) for i in range(layers)]
    assert found == [int(i / layers * groups) for i in range(layers)]
    assert found == [int(i / (layers / groups)) for i in range(layers)]
    assert set(found) == set(range(groups)) and config.group_of(layers + 3) == groups - 1


def test_every_group_is_used_where_floats_would_skip_one():
    config = tiny(num_hidden_layers=22, num_hidden_groups=22)
    assert [config.group_of(i) for i in range(22)] == list(range(22))
    assert int(15 / 22 * 22) == 14  # why whole numbers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 5}, "not a multiple of num_attention_heads 5"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": 2**40}, "from 1 to 65,536"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"vocab_size": "30000"}, "vocab_size is '30000'"),
        ({"hidden_act": "gelu_nw"}, "did you mean 'gelu_new'"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0"),
        ({"hidden_dropout_prob": float("nan")}, "must be a number"),
        ({"layer_norm_eps": 0}, "layer_norm_eps is 0"),
        ({"pad_token_id": -1}, "pad_token_id is -1"),
        (
            {"hidden_size": 65_536, "num_attention_heads": 1, "intermediate_size": 262_144},
            "parameters; the limit",
        ),
    ],
)
def test_bad_values_are_one_clear_sentence(changes, message):
    with pytest.raises(AlbertkitError, match=message):
        tiny(**changes)


def test_config_is_frozen_and_replace_checks():
    config = tiny()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.hidden_size = 3
    assert config.replace(num_hidden_layers=9).num_hidden_layers == 9
    with pytest.raises(AlbertkitError, match="did you mean 'hidden_size'"):
        config.replace(hiden_size=3)


def test_round_trip_and_unknown_keys():
    for config in (preset("base"), tiny(options=Options(brightmart_layout=True)), preset("xlarge-v1")):
        assert AlbertConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    data = preset("base").to_dict()
    with pytest.raises(AlbertkitError, match="unknown key 'num_hiden_groups'.*did you mean 'num_hidden_groups'"):
        AlbertConfig.from_dict({**data, "num_hiden_groups": 1})
    with pytest.raises(AlbertkitError, match="unknown option 'brightmart'"):
        AlbertConfig.from_dict({**data, "albertkit": {"brightmart": True}})
    with pytest.raises(AlbertkitError, match="lacks hidden_size"):
        AlbertConfig.from_dict({k: v for k, v in data.items() if k != "hidden_size"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "bert"),
        ("position_embedding_type", "relative_key"),
        ("down_scale_factor", 2),
        ("ln_type", "preln"),
    ],
)
def test_what_changes_the_computation_is_refused(key, value):
    with pytest.raises(AlbertkitError, match=f"{key} is {value!r}"):
        AlbertConfig.from_dict({**preset("base").to_dict(), key: value})


def test_files_of_other_programs_are_read():
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)
    assert AlbertConfig.from_dict(json.loads(theirs.to_json_string(use_diff=False))) == preset("base")
    google = """{"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "embedding_size": 128, "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 4096,
        "max_position_embeddings": 512, "num_attention_heads": 16, "num_hidden_layers": 24, "num_hidden_groups": 1,
        "net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0, "inner_group_num": 1, "down_scale_factor": 1,
        "type_vocab_size": 2, "vocab_size": 30000}"""
    assert AlbertConfig.from_dict(json.loads(google)) == preset("large-v1").replace(hidden_act="gelu")
    for path in sorted(CHECKPOINTS.glob("*/config.json")):
        AlbertConfig.from_dict(json.loads(path.read_text()))
