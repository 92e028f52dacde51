"""The compiled embedding computes what onnxruntime computes. Tests skip where the library or its processor is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from albertkit import Albert, AlbertConfig
from albertkit.model import AlbertModel
from albertkit.options import Options
from albertkit.quantized import quantize_rows
from albertkit.runtime import native_layers
from albertkit.runtime.engine import Engine, OnnxEmbedding
from albertkit.runtime.graph import Weights
from albertkit.runtime.graph_builder import MAX_LEVEL
from albertkit.runtime.native_embedding import PREFIX, NativeEmbedding, can_embed
from albertkit.runtime.native_layers import NativeLayers

# (E, H): below, at and above the blocks of 16 and 32 numbers.
SIZES = [(8, 24), (16, 32), (20, 72), (48, 64), (128, 100)]


@pytest.fixture(params=native_layers.LIBRARIES, autouse=True)
def kind(request, monkeypatch) -> str:
    """Each library in turn, so that a processor with AMX tests both."""
    if native_layers.load(request.param) is None:
        pytest.skip(f"layers_{request.param}.so is not built, or this processor cannot run it")
    monkeypatch.setenv(native_layers.CHOICE, request.param)
    return str(request.param)


def made_config(embedding: int = 16, hidden: int = 64, **options) -> AlbertConfig:
    return AlbertConfig(
        vocab_size=50, embedding_size=embedding, hidden_size=hidden, num_attention_heads=1, intermediate_size=32,
        num_hidden_layers=2, max_position_embeddings=300, options=Options(**options),
    )  # fmt: skip


def made_weights(config: AlbertConfig, bits: int = 32) -> Weights:
    import torch

    torch.manual_seed(0)
    model = AlbertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    weights: Weights = {name: np.asarray(array, np.float32) for name, array in model.weights().items()}
    names = ("word", "position", "segment", "projection") if bits == 8 else ()
    return weights | {f"{PREFIX}.{n}.weight": quantize_rows(weights[f"{PREFIX}.{n}.weight"]) for n in names}


def made_ids(texts: int, length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 50, (texts, length)), rng.integers(0, 2, (texts, length))


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", [{}, {"scale_embedding": True}])
def test_equals_onnxruntime_except_for_rounding(size, bits, options):
    config = made_config(*size, **options)
    weights = made_weights(config, bits)
    ours, theirs = NativeEmbedding(config, weights), OnnxEmbedding(config, weights, 1, MAX_LEVEL)
    for shape in ((1, 1), (1, 13), (3, 40), (2, 300)):
        made, expected = ours.embed(*made_ids(*shape)), theirs.embed(*made_ids(*shape))
        assert made.shape == expected.shape and made.dtype == expected.dtype == np.float32
        assert np.abs(made - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.parametrize("bits", [8, 32])
def test_text_has_the_same_bits_alone_and_in_any_batch(bits):
    config = made_config()
    embedding = NativeEmbedding(config, made_weights(config, bits))
    ids, segments = made_ids(40, 97)
    together = embedding.embed(ids, segments)
    for text in range(0, 40, 7):
        for length in (1, 2, 31, 96, 97):
            alone = embedding.embed(ids[text : text + 1, :length], segments[text : text + 1, :length])
            assert np.array_equal(alone[0], together[text, :length])


def test_empty_batches_pass():
    embedding = NativeEmbedding(made_config(), made_weights(made_config()))
    assert embedding.embed(*made_ids(0, 5)).shape == (0, 5, 64)
    assert embedding.embed(*made_ids(2, 0)).shape == (2, 0, 64)


def test_ids_outside_the_table_and_too_long_texts_are_errors():
    embedding = NativeEmbedding(made_config(), made_weights(made_config()))
    ids, segments = made_ids(1, 4)
    with pytest.raises(IndexError):
        embedding.embed(np.full_like(ids, 50), segments)
    with pytest.raises(IndexError):
        embedding.embed(ids, np.full_like(segments, 2))
    with pytest.raises(ValueError, match="broadcast"):
        embedding.embed(*made_ids(2, 301))


def test_nan_stays_nan():
    weights = made_weights(made_config())
    weights[f"{PREFIX}.word.weight"][7, 3] = np.nan
    hidden = NativeEmbedding(made_config(), weights).embed(np.array([[6, 7]]), np.zeros((1, 2), np.int64))
    assert np.isfinite(hidden[0, 0]).all() and np.isnan(hidden[0, 1]).all()


def test_matrices_of_another_shape_are_an_error():
    weights = made_weights(made_config())
    weights[f"{PREFIX}.projection.weight"] = np.zeros((64, 15), np.float32)
    with pytest.raises(ValueError, match=r"projection.weight is \(64, 15\), but the config has \(64, 16\)"):
        NativeEmbedding(made_config(), weights)


@pytest.mark.parametrize("options", [{"gru": True}, {"brightmart_layout": True}])
def test_other_embeddings_use_onnxruntime(options):
    config = made_config(**options)
    assert not can_embed(config)
    engine = Engine(config, made_weights(config), 1)
    assert isinstance(engine._embedding, OnnxEmbedding) and isinstance(engine._layers, NativeLayers)


def test_a_library_of_older_sources_uses_onnxruntime(kind, monkeypatch, tmp_path: Path):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    (tmp_path / "old.c").write_text("int albertkit_start(void) { return 1; }")
    subprocess.run([compiler, "-shared", "-o", tmp_path / f"layers_{kind}.so", tmp_path / "old.c"], check=True)
    native_layers.load.cache_clear()
    monkeypatch.setattr(native_layers, "FOLDER", tmp_path)
    assert native_layers.load(kind) is None
    native_layers.load.cache_clear()


def check_sizes() -> None:
    """Embeds batches of many sizes; `test_native_layers.py` calls it with checks of every access to memory."""
    for size in SIZES:
        embedding = NativeEmbedding(made_config(*size), made_weights(made_config(*size)))
        for shape in ((0, 3), (1, 1), (3, 11), (2, 97), (1, 300)):
            assert np.isfinite(embedding.embed(*made_ids(*shape))).all()


def test_all_sizes_are_finite():
    check_sizes()


def test_a_vector_of_a_built_in_model_needs_no_onnxruntime():
    code = (
        "import sys; sys.modules['onnxruntime'] = None\nfrom albertkit import Albert\n"
        "print(len(Albert('small').embed(['a cat'])[0]), len(Albert('small-zh').embed(['一只猫'])[0]))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["384", "384"]


def test_built_in_models_have_the_hidden_states_of_onnxruntime():
    for model in ("small", "small-zh", "small-pretrained"):
        albert = Albert(model, threads=1)
        assert isinstance(albert.engine, Engine)
        theirs = OnnxEmbedding(albert.config, albert.engine.weights, 1, MAX_LEVEL)
        ids, segments = made_ids(3, 50)
        made, expected = albert.engine._embedding.embed(ids * 500, segments), theirs.embed(ids * 500, segments)
        assert np.abs(made - expected).max() <= 2e-6 * np.abs(expected).max()
