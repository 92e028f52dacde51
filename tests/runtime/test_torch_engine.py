"""Many texts at once on a device, here torch on the CPU: what the runtime computes, whatever the padding."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

from albertkit.albert import Albert
from albertkit.artifact import ArtifactMetadata, write_artifact
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch, pool
from albertkit.runtime.batching import token_batches
from albertkit.runtime.packed_texts import OutputRequest, PackedTexts, padded_groups, padded_length
from albertkit.runtime.torch_engine import TorchEngine
from tests.bulk.sample_texts import cosines
from tests.conftest import tiny
from tests.model.test_options import CASES
from tests.runtime.test_graph import by_torch, ids, make
from tests.test_albert import TEXTS
from tests.test_albert import make as make_english

LENGTHS = (40, 3, 22, 9, 2, 1, 17, 9, 40, 38)
POOLINGS = ("mean", "cls", "max", "pooler")


def opened(artifact, token_budget: int = 64, **options) -> TorchEngine:
    """An engine with small groups, so that some texts are padded and others are not."""
    engine = TorchEngine(artifact.config, dict(artifact.weights), "torch", **options)
    engine.token_budget = token_budget
    return engine


@pytest.mark.parametrize("case", CASES)
def test_padding_changes_no_hidden_state(case):
    groups = 1 if "ffn_groups" in CASES[case] else 2
    artifact = make(CASES[case], num_hidden_layers=4, num_hidden_groups=groups)
    texts = ids(LENGTHS)
    (found,) = opened(artifact).outputs(PackedTexts.of(texts), 4, [OutputRequest(None)])
    assert np.abs(found - np.concatenate(by_torch(artifact, texts, 4))).max() < 1e-4


def test_one_pass_gives_every_pooling_and_a_dense_layer():
    artifact, texts = make({}), ids(LENGTHS)
    weight, bias = np.random.default_rng(1).normal(size=(3, 32)).astype(np.float32), np.ones(3, np.float32)
    requests = [*map(OutputRequest, POOLINGS), OutputRequest(None, weight, bias)]
    *pooled, scores = opened(artifact).outputs(PackedTexts.of(texts), 3, requests)
    with torch.no_grad():
        encoded = AlbertModel.from_artifact(artifact).encoder(Batch.of(texts))
    for how, found in zip(POOLINGS, pooled, strict=True):
        assert np.abs(found - pool(encoded, how).numpy()).max() < 1e-4, how
    assert np.abs(scores - (encoded.hidden.numpy() @ weight.T + bias)).max() < 1e-3


def test_segments_reach_the_model():
    artifact, texts = make({}), ids((9, 5))
    segments = [[0] * 4 + [1] * 5, [0] * 5]
    (found,) = opened(artifact).outputs(PackedTexts.of(texts, segments), 3, [OutputRequest(None)])
    with torch.no_grad():
        expected = AlbertModel.from_artifact(artifact).encoder(Batch.of(texts, segments)).hidden.numpy()
    assert np.abs(found - expected).max() < 1e-4
    assert np.abs(found - np.concatenate(by_torch(artifact, texts, 3))).max() > 1e-2


@pytest.mark.parametrize("case", ["canonical", "relative bias", "pre_norm", "shared_heads"])
def test_layers_compile_to_few_graphs_for_all_lengths(case, monkeypatch):
    """A whole graph of what follows attention, for any number of tokens; another one for a single token."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter, fullgraph=True))
    artifact, texts = make(CASES.get(case, {})), ids(LENGTHS)
    engine = opened(artifact)
    engine.compile()
    torch._dynamo.reset()
    for rows in (texts, texts[:2], texts[3:4], texts[5:6], texts * 3):
        (found,) = engine.outputs(PackedTexts.of(rows), 3, [OutputRequest(None)])
        assert np.abs(found - np.concatenate(by_torch(artifact, rows, 3))).max() < 1e-4
    assert 1 <= counter.frame_count <= 2


def test_half_precision_is_close_to_float32():
    """float16, since bf16 products end the process on some virtual machines."""
    artifact, texts = make({"attention_bias": "relative"}), ids(LENGTHS)
    exact, rounded = opened(artifact), opened(artifact, precision="float16")
    packed, (batch, *_) = PackedTexts.of(texts), token_batches(texts)
    for first, second in (
        (engine.outputs(packed, 3, [OutputRequest("mean")])[0] for engine in (exact, rounded)),
        (engine.run(batch, 3)[:, 0] for engine in (exact, rounded)),
        (engine.apply_layers(engine.run(batch, 1), batch.lengths, 1, 3)[:, 0] for engine in (exact, rounded)),
        (engine.pooler(np.ones((2, 32), np.float32)) for engine in (exact, rounded)),
        (engine.mlm_logits(np.ones((2, 32), np.float32)) for engine in (exact, rounded)),
    ):
        assert cosines(first, second).min() > 0.9999 and second.dtype == np.float32
        assert not np.array_equal(first, second)


def test_groups_have_every_text_once_and_fit_the_budget():
    lengths = np.sort(np.random.default_rng(0).integers(1, 200, 500))[::-1]
    groups = list(padded_groups(lengths, 512, 200))
    assert [n for group in groups for n in range(group.first, group.last)] == list(range(500))
    for group in groups:
        assert lengths[group.first] <= group.length <= 200
        assert (group.last - group.first) * group.length <= 512
    assert all(n <= padded_length(n) <= max(8, n * 4 / 3 + 8) and padded_length(n) % 8 == 0 for n in range(1, 600))


def test_what_does_not_fit_the_model_is_an_error():
    engine = opened(make({}))
    for texts, rule in (
        (PackedTexts.of([[1, 999]]), "token id"),
        (PackedTexts.of([[1, -1]]), "token id"),
        (PackedTexts.of([[1] * 41]), "number of tokens"),
        (PackedTexts.of([[1], []]), "number of tokens"),
        (PackedTexts.of([[1, 2]], [[0, 2]]), "segment"),
        (dataclasses.replace(PackedTexts.of([[1, 2]]), lengths=np.array([1], np.int32)), "do not fit"),
    ):
        with pytest.raises(AlbertkitError, match=rule):
            engine.outputs(texts, 3, [OutputRequest("mean")])
    with pytest.raises(AlbertkitError, match="precision='bf16' is not available on the CPU"):
        Albert(precision="bf16")
    with pytest.raises(AlbertkitError, match="int3"):
        Albert(device="torch", precision="int3")


@pytest.mark.parametrize("task", ["embed", "classify", "tag"])
def test_a_device_gives_the_results_of_the_runtime(task, tmp_path):
    heads = () if task == "embed" else (task,)
    artifact = make_english(tiny(vocab_size=3000, max_position_embeddings=24), heads=heads)
    labels = {"classify": ("good", "bad"), "tag": ("O", "B-X")}.get(task, ())
    metadata = dataclasses.replace(ArtifactMetadata(), task=task, labels=labels)
    write_artifact(dataclasses.replace(artifact, metadata=metadata), tmp_path / "m")
    cpu, device = Albert(tmp_path / "m"), Albert(tmp_path / "m", device="torch")
    texts = [*TEXTS, " ".join(TEXTS)]  # the last one is split for `embed`, and truncated for others
    if task == "embed":
        assert (cpu.embed(texts) * device.embed(texts)).sum(1).min() > 0.9999
    elif task == "classify":
        expected, found = (model.classify(texts, texts[::-1]) for model in (cpu, device))
        assert [a.label for a in found] == [a.label for a in expected]
        assert np.allclose([a.probability for a in found], [a.probability for a in expected], atol=1e-4)
    else:
        spans = [[(s.start, s.end, s.label) for s in a.spans] for a in device.tag(texts)]
        assert spans == [[(s.start, s.end, s.label) for s in a.spans] for a in cpu.tag(texts)] and any(spans)
