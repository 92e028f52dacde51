"""Pruning: what is left is what a masked model computes, torch computes the same, and fitting brings it nearer to the
whole.
"""

from __future__ import annotations

import dataclasses
import json

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, read_stored, write_artifact
from albertkit.compress.cost import resolve_count
from albertkit.compress.prune import (
    PruneSettings,
    importance,
    input_moments,
    prune,
    prune_heads_and_ffn,
    truncate_layers,
)
from albertkit.compress.quantize import mean_vectors, quantize
from albertkit.config import AlbertConfig, Options
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.runtime.activation_moments import random_tokens
from albertkit.runtime.batching import token_batches
from albertkit.runtime.engine import Engine
from tests.conftest import tiny
from tests.test_albert import TEXTS, make, torch_vectors

LINES = [f"text number {i} speaks of cats, dogs and {i * 37} other things" for i in range(40)]


def hidden(artifact: Artifact, ids, depth=None) -> np.ndarray:
    """Hidden states of the real tokens, one after the other."""
    config = artifact.config
    engine = Engine(config, dict(artifact.weights), 1)
    found = [
        engine.run(b, depth or config.num_hidden_layers)[at, :n]
        for b in token_batches(ids)
        for at, n in enumerate(b.lengths)
    ]
    return np.concatenate(found)


def masked(whole: Artifact, small: Artifact) -> Artifact:
    """The whole model in which the matrices that read heads and columns are zero where those are gone."""
    weights = dict(whole.weights)
    for name, array in small.weights.items():
        if not name.startswith("encoder.groups."):
            continue
        prefix, _, part = name.partition(".attention.") if ".attention." in name else name.partition(".ffn.")
        if part in ("output.weight", "down.weight"):
            source = f"{prefix}.attention.value.weight" if part == "output.weight" else f"{prefix}.ffn.up.weight"
            stay = [int(np.flatnonzero((whole.weights[source] == row).all(1))[0]) for row in small.weights[source]]
            full = np.zeros_like(whole.weights[name])
            full[:, stay] = array
            weights[name] = full
        elif part in ("output.bias", "down.bias"):
            weights[name] = array
    return Artifact(whole.config, weights, whole.tokenizer)


@given(
    st.sampled_from([1, 2, 3, 4]),
    st.integers(1, 48),
    st.booleans(),
    st.sampled_from([{}, {"num_hidden_groups": 2}, {"inner_group_num": 2}, {"hidden_act": "relu"}]),
)
@settings(max_examples=25)
def test_pruned_model_equals_masked_model(heads, columns, fit, shape):
    whole = make(tiny(**shape), heads=())
    ids = random_tokens(whole.config, 6)
    small = prune_heads_and_ffn(whole, PruneSettings(heads=heads, ffn=columns, fit=fit), ids)
    assert small.config.num_attention_heads == heads and small.config.intermediate_size == columns
    assert small.config.head_size == whole.config.head_size == 8
    assert np.abs(hidden(small, ids) - hidden(masked(whole, small), ids)).max() <= 1e-5


def test_keeping_everything_changes_nothing():
    whole = make(tiny(), heads=())
    assert prune_heads_and_ffn(whole, PruneSettings(heads=4, ffn=1.0), random_tokens(whole.config, 4)) is whole


def test_useless_heads_and_columns_are_removed_first():
    """A column that never changes its contribution is removed, and its constant stays in the bias."""
    whole = make(tiny(num_hidden_layers=2), heads=())
    prefix, weights = "encoder.groups.0.0", dict(whole.weights)
    up, bias, out = (
        weights[f"{prefix}.{n}"].copy() for n in ("ffn.up.weight", "ffn.up.bias", "attention.output.weight")
    )
    up[[5, 9]], bias[[5, 9]] = 0, [2.0, 3.0]  # constant columns
    out[:, 16:24] = 0  # the third head is not read
    weights |= {f"{prefix}.ffn.up.weight": up, f"{prefix}.ffn.up.bias": bias, f"{prefix}.attention.output.weight": out}
    whole = Artifact(whole.config, weights, whole.tokenizer)
    ids = random_tokens(whole.config, 8)
    moments = input_moments(whole, ids)
    attention, ffn = (moments[f"{prefix}.{part}"] for part in ("attention.output", "ffn.down"))
    assert importance(out, attention, 8).argmin() == 2
    assert set(np.argsort(importance(weights[f"{prefix}.ffn.down.weight"], ffn, 1))[:2]) == {5, 9}
    small = prune_heads_and_ffn(whole, PruneSettings(heads=3, ffn=46), ids)
    assert np.abs(hidden(small, ids) - hidden(whole, ids)).max() < 2e-3
    plain = prune_heads_and_ffn(whole, PruneSettings(heads=3, ffn=46, fit=False), ids)
    assert np.abs(hidden(plain, ids) - hidden(whole, ids)).max() > 0.05


def test_fit_is_closer_to_the_full_model():
    whole = make(tiny(vocab_size=500, num_hidden_layers=4), heads=())
    ids, other = random_tokens(whole.config, 64), random_tokens(whole.config, 16, seed=1)
    wanted = mean_vectors(whole.config, dict(whole.weights), other)
    cosines = []
    for fit in (False, True):
        small = prune_heads_and_ffn(whole, PruneSettings(heads=0.75, ffn=0.5, fit=fit), ids)
        cosines.append(float((wanted * mean_vectors(small.config, dict(small.weights), other)).sum(1).mean()))
    assert cosines[1] > cosines[0]


@pytest.mark.parametrize(
    "shape", [{}, {"num_hidden_groups": 2, "inner_group_num": 2}, {"options": Options(brightmart_layout=True)}]
)
def test_torch_and_runtime_agree_on_a_pruned_model(shape, tmp_path):
    artifact = make(tiny(vocab_size=3000, **shape))
    write_artifact(artifact, tmp_path / "whole")
    report = prune(tmp_path / "whole", tmp_path / "small", PruneSettings(heads=3, ffn=20), LINES)
    assert (report.heads, report.ffn) == (3, 20) and report.parameters < report.parameters_before
    assert report.operations < report.operations_before and report.texts == 4
    small = read_artifact(tmp_path / "small")
    albert = Albert(tmp_path / "small", threads=1)
    for how in ("mean", "cls", "pooler"):
        assert np.abs(albert.embed(TEXTS, pooling=how) - torch_vectors(small, TEXTS, how)).max() <= 1e-5
    other = Albert(tmp_path / "small", device="torch")
    assert np.abs(albert.embed(TEXTS, depth=2) - other.embed(TEXTS, depth=2)).max() <= 1e-5
    first, second = albert.fill_mask("this is a [MASK]")[0], other.fill_mask("this is a [MASK]")[0]
    assert [g.word for g in first] == [g.word for g in second]
    model = AlbertModel.from_artifact(small).train()
    model(Batch.of([[2, 5, 9, 3]])).heads["mlm"].logits.sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
    model.save(tmp_path / "again", small.tokenizer)
    assert np.abs(Albert(tmp_path / "again", threads=1).embed(TEXTS) - albert.embed(TEXTS)).max() < 1e-6
    for bits in (8, 4):
        quantize(tmp_path / "small", tmp_path / f"int{bits}", bits, LINES)
        cosine = (Albert(tmp_path / f"int{bits}", threads=1).embed(TEXTS) * albert.embed(TEXTS)).sum(1)
        assert cosine.min() > (0.99 if bits == 8 else 0.8)


def test_transformers_opens_pruned_models_it_can_express(tmp_path):
    transformers = pytest.importorskip("transformers")
    artifact = make(tiny(vocab_size=3000))
    write_artifact(artifact, tmp_path / "whole")
    prune(tmp_path / "whole", tmp_path / "ffn", PruneSettings(ffn=20, layers=2), LINES)
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "ffn").eval()
    assert type(theirs).__name__ == "AlbertModel" and theirs.config.intermediate_size == 20
    ids = artifact.tokenizer.encode(TEXTS[1]).ids
    with torch.no_grad():
        want = theirs(torch.tensor([ids])).last_hidden_state[0].numpy()
    assert np.abs(Albert(tmp_path / "ffn").token_vectors(TEXTS[1]).vectors - want).max() < 1e-5
    prune(tmp_path / "whole", tmp_path / "heads", PruneSettings(heads=2), LINES)
    about = json.loads((tmp_path / "heads" / "config.json").read_text())
    assert about["model_type"] == "albertkit" and about["albertkit"] == {"head_size": 8}
    with pytest.raises((ValueError, KeyError)):
        transformers.AutoModel.from_pretrained(tmp_path / "heads")


def test_truncated_model_equals_depth(tmp_path):
    artifact = make(tiny(vocab_size=3000, num_hidden_layers=5))
    write_artifact(
        dataclasses.replace(artifact, metadata=ArtifactMetadata(depth=4, metrics={"dev": 1.0})), tmp_path / "whole"
    )
    prune(tmp_path / "whole", tmp_path / "two", PruneSettings(layers=2))
    small, whole = Albert(tmp_path / "two", threads=1), Albert(tmp_path / "whole", threads=1)
    assert small.depth == 2 and whole.depth == 4
    assert np.array_equal(small.embed(TEXTS), whole.embed(TEXTS, depth=2))
    meta = read_stored(tmp_path / "two").metadata
    assert meta.metrics == {} and meta.history[-1]["scores before"] == {"dev": 1.0}
    assert meta.history[-1]["num_hidden_layers"] == "5 → 2"


@given(st.integers(1, 12), st.integers(1, 6), st.data())
@settings(max_examples=40)
def test_truncation_keeps_the_groups_of_its_layers(layers, groups, data):
    groups = min(layers, groups)
    config = tiny(num_hidden_layers=layers, num_hidden_groups=groups)
    artifact = make(config, heads=())
    wanted = data.draw(st.integers(1, layers))
    try:
        small = truncate_layers(artifact, wanted)
    except AlbertkitError as error:
        assert groups > 1 and "can be cut to" in str(error)
        return
    assert [small.config.group_of(i) for i in range(wanted)] == [config.group_of(i) for i in range(wanted)]
    ids = random_tokens(config, 2)
    assert np.array_equal(hidden(small, ids), hidden(artifact, ids, depth=wanted))


def test_resolve_count():
    assert [resolve_count(x, 12, "heads") for x in (None, 5, 0.5, 2 / 3, 0.01, 1.0)] == [12, 5, 6, 8, 1, 12]
    assert [resolve_count(x, 3072, "ffn") for x in (0.5, 1 / 3, 0.0001, 1000)] == [1536, 1024, 16, 1000]
    for bad in (0, 13, 1.5, -0.5, True):
        with pytest.raises(AlbertkitError, match="heads="):
            resolve_count(bad, 12, "heads")


def test_bad_requests(tmp_path):
    write_artifact(make(tiny(vocab_size=3000)), tmp_path / "m")
    write_artifact(make(tiny(vocab_size=3000)), tmp_path / "int8", bits=8)
    for source, keep, texts, message in (
        ("m", PruneSettings(), None, "there is nothing to prune"),
        ("m", PruneSettings(heads=9), None, "this model has 4"),
        ("m", PruneSettings(layers=4), None, "can be cut to 1 to 3"),
        ("m", PruneSettings(ffn=0.5), ["few"], "at least 10"),
        ("int8", PruneSettings(ffn=0.5), None, "Prune its float model"),
    ):
        with pytest.raises(AlbertkitError, match=message):
            prune(tmp_path / source, tmp_path / "out", keep, texts)
    assert not (tmp_path / "out").exists()


def test_head_size_in_a_config():
    config = tiny(num_attention_heads=3, options=Options(head_size=8))
    assert config.attention_size == 24 and AlbertConfig.from_dict(config.to_dict()) == config
    assert tiny().attention_size == 32 and "albertkit" not in tiny().to_dict()
    for size in (-1, 10**6):
        with pytest.raises(AlbertkitError, match="head_size"):
            tiny(options=Options(head_size=size))
