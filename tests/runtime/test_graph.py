"""The documents' options without torch: the runtime, its 8 and 4 bits, the exported file and the plain view say what
torch says.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import onnxruntime as ort
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, read_stored, write_artifact
from albertkit.compress import benchmark
from albertkit.compress.prune import PruneSettings, prune, truncate_layers
from albertkit.compress.quantize import quantize
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.explain.activations import ActivationEncoder
from albertkit.interop.onnx_export import ExportSettings, export
from albertkit.model import AlbertModel, Batch
from albertkit.model.albert_model import build_head
from albertkit.runtime.batching import token_batches
from albertkit.runtime.early_exit import read_depths
from albertkit.runtime.engine import Engine, TorchEngine
from albertkit.runtime.graph import layer_feed, layer_graph, weight_choice
from albertkit.runtime.predict import predict
from albertkit.tasks.examples import TextExample
from albertkit.tokenizer import Tokenizer
from tests.conftest import tiny
from tests.model.test_options import CASES
from tests.train.conftest import VOCAB

TEXTS = [
    f"{number} {a} {b} {c} ."
    for number in ("one", "two", "six")
    for a, b, c in zip(*(VOCAB[at : at + 5] for at in (20, 28, 36)), strict=True)
]
LENGTHS = (40, 37, 22, 9, 2, 1)


@cache
def tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text("\n".join(VOCAB) + "\n")
        return Tokenizer.from_vocab(path)


def make(options: dict, heads=("mlm", "classify"), meta: ArtifactMetadata | None = None, **shape) -> Artifact:
    """An artifact with lively random weights."""
    config = tiny(options=Options(**options), vocab_size=len(VOCAB), **shape)
    torch.manual_seed(4)
    model = AlbertModel(config, {name: build_head(name, config) for name in heads})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(mean=1.0 if "norm.weight" in name else 0.0, std=0.15)
    return Artifact(config, model.weights(), tokenizer(), meta or ArtifactMetadata())


def ids(lengths=LENGTHS, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, len(VOCAB), n).tolist() for n in lengths]


def by_torch(artifact: Artifact, texts: list[list[int]], depth: int | None = None) -> list[np.ndarray]:
    with torch.no_grad():
        hidden = AlbertModel.from_artifact(artifact).encoder(Batch.of(texts), depth=depth).hidden
    return [part.numpy() for part in hidden.split([len(text) for text in texts])]


def by_engine(engine, texts: list[list[int]], depth: int) -> list[np.ndarray]:
    out: list = [None] * len(texts)
    for batch in token_batches(texts, token_budget=200):
        hidden = engine.run(batch, depth)
        for at, place in enumerate(batch.order):
            out[place] = hidden[at, : batch.lengths[at]]
    return out


def worst(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_runtime_says_what_torch_says(case, tmp_path):
    groups = 1 if "ffn_groups" in CASES[case] else 2
    artifact = make(CASES[case], num_hidden_layers=5, num_hidden_groups=groups, inner_group_num=2)
    write_artifact(artifact, tmp_path / "m")
    stored = read_stored(tmp_path / "m")
    assert stored.config == artifact.config and set(stored.weights) == set(artifact.weights)
    texts = ids()
    wanted = by_torch(artifact, texts)
    engine = Engine(stored.config, dict(stored.weights), 1)
    assert worst(by_engine(engine, texts, 5), wanted) < 1e-4
    alone = [by_engine(engine, [text], 5)[0] for text in texts]
    assert worst(alone, wanted) < 1e-4
    (batch,) = token_batches(texts[:1])
    for runner in (engine, TorchEngine(artifact.config, dict(artifact.weights), "torch")):
        state = runner.run(batch, 0)
        for depth in range(1, 6):  # from depth to depth, as early exit goes
            state = runner.apply_layers(state, batch.lengths, depth - 1, depth)
            result = runner.read_out(state, batch.lengths, depth)
            assert np.abs(result[0] - by_torch(artifact, texts[:1], depth)[0]).max() < 1e-4
        assert np.abs(result[0] - wanted[0]).max() < 1e-4


@pytest.mark.parametrize("case", CASES)
def test_looking_inside_says_what_the_engine_says(case):
    artifact = make(CASES[case])
    text, depth = ids((23,))[0], 4
    seen = ActivationEncoder(artifact.config, dict(artifact.weights)).run(text, depth=depth)
    engine = Engine(artifact.config, dict(artifact.weights), 1)
    assert np.abs(engine.normalize(seen.hidden[-1]) - by_engine(engine, [text], depth)[0]).max() < 1e-4
    if not artifact.config.options.coda_layers:
        (batch,) = token_batches([text])
        for layer in range(depth + 1):
            state = engine.apply_layers(engine.run(batch, 0), batch.lengths, 0, layer)
            assert np.abs(seen.hidden[layer] - state[0]).max() < 1e-4
    assert np.allclose(seen.attention.sum(-1), 1, atol=1e-5)
    window = artifact.config.options.window
    for layer in range(depth):
        if artifact.config.options.local(layer):
            assert seen.attention[layer, :, 5, window + 6 :].max(initial=0) == 0 < seen.attention[layer, :, 5, 0].min()
            assert seen.attention[layer, :, 0].min() > 0


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    "case",
    [
        "low_rank",
        "window, mixed",
        "shared_heads",
        "relative bias",
        "output_rank",
        "document 000",
        "gru",
        "gru, document 003",
        "norm",
        "gated_ffn",
        "pre_norm",
        "outer layers",
        "ffn_groups, prelude",
        "everything",
    ],
)
def test_few_bits_stay_close(case, bits, tmp_path):
    artifact = make(CASES[case])
    write_artifact(artifact, tmp_path / "m", bits=bits)
    stored = read_stored(tmp_path / "m")
    texts = ids()
    found = by_engine(Engine(stored.config, dict(stored.weights), 1), texts, stored.config.num_hidden_layers)
    wanted = by_torch(artifact, texts)
    cosines = [float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in zip(found, wanted, strict=True)]
    assert min(cosines) > (0.98 if bits == 8 else 0.85), cosines
    # what was stored is what runs: torch with the opened floats is nearer to it than rounding alone explains
    opened = by_torch(read_artifact(tmp_path / "m"), texts)
    near = [float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in zip(found, opened, strict=True)]
    assert min(near) > 0.97, near


def test_the_verb_quantize_watches_the_options(tmp_path):
    """Calibration reads what the output product reads, at the width it is stored with."""
    artifact = make(CASES["everything"])
    write_artifact(artifact, tmp_path / "m")
    report = quantize(tmp_path / "m", tmp_path / "q", 8, TEXTS)
    assert report.cosine_least > 0.97
    assert Albert(tmp_path / "q", threads=1).embed(["one cat .", "two dog"]).shape == (2, 32)


@pytest.mark.parametrize("case", CASES)
def test_the_exported_file_says_it_too(case, tmp_path):
    """`export` compares before it writes; here longer and shorter batches than it does."""
    write_artifact(make(CASES[case], num_hidden_layers=4), tmp_path / "m")
    report = export(tmp_path / "m", tmp_path / "m.onnx", ExportSettings(head="vector"))
    assert report.error < 1e-4
    session = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    stored = read_stored(tmp_path / "m")
    engine = Engine(stored.config, dict(stored.weights), 1)
    for length in (33, 3, 1):
        (batch,) = token_batches(ids((length,)))
        fed = {"input_ids": batch.ids, "attention_mask": np.ones_like(batch.ids), "token_type_ids": batch.segments}
        (hidden,) = session.run(["last_hidden_state"], fed)
        assert np.abs(hidden - engine.run(batch, 4)).max() < 1e-4


def test_the_exported_int8_file(tmp_path):
    write_artifact(make(CASES["everything"]), tmp_path / "m", bits=8)
    assert export(tmp_path / "m", tmp_path / "m.onnx", ExportSettings(head="classify")).bits == 8


@pytest.mark.parametrize("case", ["classifier", "everything", "window"])
def test_a_task_head_reads_the_same(case, tmp_path):
    """The torch model's scores, through the artifact, from the runtime and from the exported file."""
    artifact = make(CASES[case], meta=ArtifactMetadata(task="classify", labels=("a", "b"), details={"kind": "single"}))
    write_artifact(artifact, tmp_path / "m")
    albert = Albert(tmp_path / "m", threads=1)
    texts = ["one red green blue .", "two cat dog cow hen pig fox owl bee . oak elm ash"]
    found = predict(albert, [TextExample(text) for text in texts], "classify")
    encodings = tokenizer().encode_batch(texts)
    model = AlbertModel.from_artifact(artifact)
    with torch.no_grad():
        scores = model(Batch.of([e.ids for e in encodings]), heads=["classify"]).heads["classify"].logits.softmax(-1)
    for result, row in zip(found, scores.tolist(), strict=True):
        assert result.probability == pytest.approx(max(row), abs=1e-4)
    assert export(tmp_path / "m", tmp_path / "m.onnx", ExportSettings(head="classify")).error < 1e-4


@pytest.mark.parametrize("case", ["pre_norm", "outer layers"])
@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_texts_that_exit_early_have_the_result_of_their_depth(case, device, tmp_path):
    """The walk from depth to depth keeps what continues, and reads what the depth alone gives."""
    write_artifact(make(CASES[case], num_hidden_layers=5), tmp_path / "m")
    albert, texts = Albert(tmp_path / "m", threads=1, device=device), ids((21, 21, 7))

    def read(hidden, lengths):
        return [row[:n].mean(0) for row, n in zip(hidden, lengths, strict=True)]

    found = read_depths(albert, texts, None, range(1, 6), read)
    for depth, outputs in found.items():
        wanted = [row.mean(0) for row in by_engine(albert.engine, texts, depth)]
        assert worst(outputs, wanted) < 1e-5
    assert worst(found[3], found[5]) > 1e-2


def test_one_session_serves_both_kinds_of_layers():
    """With a window the graph has an input that says which; its weights are there once."""
    artifact = make(CASES["window, mixed"])
    config = artifact.config
    graph = layer_graph(
        config, dict(artifact.weights), ["encoder.groups.0.0"], Engine(config, dict(artifact.weights), 1).max_level
    )
    plain = layer_graph(
        tiny(), dict(artifact.weights), ["encoder.groups.0.0"], Engine(config, dict(artifact.weights), 1).max_level
    )
    assert sum(a.nbytes for a in graph.weights.values()) == sum(a.nbytes for a in plain.weights.values())
    hidden, lengths = np.zeros((1, 30, 32), np.float32), np.array([30], np.int32)
    assert [bool(layer_feed(config, n, hidden, lengths)["local"]) for n in range(4)] == [True, False, True, False]
    assert [bool(layer_feed(config, 0, hidden[:, :n], lengths)["local"]) for n in (3, 4, 5, 9)] == [
        False,
        False,
        True,
        True,
    ]
    assert "local" not in layer_feed(tiny(), 0, hidden, lengths)


def test_one_session_has_each_weight_of_all_layers_once():
    artifact = make({"ffn_groups": 3, "coda_layers": 1}, num_hidden_layers=4)
    config, weights = artifact.config, dict(artifact.weights)
    graph = layer_graph(config, weights, ["encoder.groups.0.0", "encoder.groups.1.0"], 255)
    stored = sum(array.nbytes for name, array in weights.items() if name.startswith("encoder.groups."))
    assert sum(array.nbytes for array in graph.weights.values()) == stored
    chosen = [weight_choice(config, layer, 0, 5) for layer in range(5)]
    assert [(int(c["layer"]), int(c["ffn"])) for c in chosen] == [(0, 0), (0, 1), (0, 2), (0, 2), (1, 0)]
    assert weight_choice(tiny(), 2, 0, 3) == {}


def test_pruning_with_options(tmp_path):
    for case, why, kept in (
        ("shared_heads", "shared_heads", PruneSettings(heads=2)),
        ("relative bias", "attention_bias", PruneSettings(heads=2)),
        ("outer layers", "outer_intermediate_size", PruneSettings(ffn=24)),
        ("ffn_groups", "ffn_groups", PruneSettings(layers=2)),
    ):
        write_artifact(make(CASES[case]), tmp_path / why)
        with pytest.raises(AlbertkitError, match=why):
            prune(tmp_path / why, tmp_path / "p", kept, TEXTS)
    write_artifact(make(CASES["everything"]), tmp_path / "all")
    assert prune(tmp_path / "all", tmp_path / "few", PruneSettings(ffn=24, layers=2), TEXTS).ffn == 24
    write_artifact(
        make({"low_rank": 3, "gru": True, "value_size": 5, "output_rank": 9}),
        tmp_path / "low",
    )
    assert prune(tmp_path / "low", tmp_path / "less", PruneSettings(heads=3), TEXTS).heads == 3
    outer = make({"prelude_layers": 1, "coda_layers": 2}, num_hidden_layers=9, num_hidden_groups=3)
    write_artifact(outer, tmp_path / "outer")
    with pytest.raises(AlbertkitError, match="can be cut to 4, 5, 6, 7, 8, 9"):
        prune(tmp_path / "outer", tmp_path / "cut", PruneSettings(layers=3), TEXTS)
    assert prune(tmp_path / "outer", tmp_path / "cut", PruneSettings(layers=7, ffn=24, heads=3), TEXTS).layers == 7
    shallow = truncate_layers(outer, 7)
    assert shallow.config.num_hidden_groups == 2
    assert worst(by_torch(shallow, ids((30, 4))), by_torch(outer, ids((30, 4)), 7)) == 0
    write_artifact(make(CASES["ffn_groups, prelude"]), tmp_path / "ffns")
    assert prune(tmp_path / "ffns", tmp_path / "narrow", PruneSettings(ffn=24, heads=3), TEXTS).ffn == 24
    for folder in ("few", "less", "cut", "narrow"):
        small = read_artifact(tmp_path / folder)
        texts = ids((30, 4))
        engine = Engine(small.config, dict(small.weights), 1)
        layers = small.config.num_hidden_layers
        assert worst(by_engine(engine, texts, layers), by_torch(small, texts)) < 1e-4


@pytest.mark.parametrize("case", ["everything", "prelude", "outer layers", "ffn_groups, prelude"])
def test_machine_knows_the_options(case, monkeypatch):
    artifact = make(CASES[case])
    monkeypatch.setattr(benchmark, "SECONDS", 0.001)
    monkeypatch.setattr(benchmark, "STRETCH", 0.001)
    rates = benchmark.measure_machine([artifact.config], 30, 1, bits=(8,), rounds=1)
    assert rates.latency(artifact.config, 8) > 0


choices = st.fixed_dictionaries(
    {
        "brightmart_layout": st.booleans(),
        "scale_embedding": st.booleans(),
        "low_rank": st.sampled_from([0, 0, 1, 4, 7, 8, 20]),
        "window": st.sampled_from([0, 1, 2, 5, 11, 30, 2048]),
        "global_every": st.sampled_from([0, 0, 1, 2, 3]),
        "shared_heads": st.booleans(),
        "attention_bias": st.sampled_from(["", "head", "relative"]),
        "relative_reach": st.sampled_from([64, 64, 1, 7]),
        "value_size": st.sampled_from([0, 0, 3, 5, 11]),
        "output_rank": st.sampled_from([0, 0, 1, 9, 31, 32]),
        "gru": st.booleans(),
        "gru_layers": st.sampled_from([1, 1, 2]),
        "gru_residual": st.sampled_from([True, True, False]),
        "norm": st.sampled_from(["", "document"]),
        "classifier": st.sampled_from(["", "mean"]),
        "gated_ffn": st.booleans(),
        "pre_norm": st.booleans(),
        "prelude_layers": st.sampled_from([0, 0, 1]),
        "coda_layers": st.sampled_from([0, 0, 1, 2]),
        "outer_intermediate_size": st.sampled_from([0, 0, 7]),
        "ffn_groups": st.sampled_from([0, 0, 2, 3, 4]),
        "static": st.sampled_from([False] * 9 + [True]),
        "head_size": st.sampled_from([0, 0, 5]),
    }
)


@given(choices, st.integers(1, 3), st.integers(3, 5), st.lists(st.integers(1, 40), min_size=1, max_size=4))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_every_combination_is_refused_or_the_same_everywhere(options, groups, layers, lengths):
    try:
        config = tiny(options=Options(**options), num_hidden_groups=groups, num_hidden_layers=layers)
    except AlbertkitError:
        return
    if config.options.static:
        with pytest.raises(AlbertkitError):
            AlbertModel(config)
        return
    artifact = make(options, num_hidden_groups=groups, num_hidden_layers=layers, heads=())
    texts = ids(tuple(lengths))
    wanted = by_torch(artifact, texts)
    engine = Engine(config, dict(artifact.weights), 1)
    assert worst(by_engine(engine, texts, layers), wanted) < 1e-4
    inner = ActivationEncoder(config, dict(artifact.weights)).run(texts[0])
    assert np.abs(engine.normalize(inner.hidden[-1]) - wanted[0]).max() < 1e-4
