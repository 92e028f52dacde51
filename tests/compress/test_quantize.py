"""Weights in few bits: exact where they promise to be, close where they cannot."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from safetensors.numpy import load_file, save_file

from albertkit.artifact import QUANTIZED_FILE, read_artifact, read_stored, write_artifact
from albertkit.compress.quantize import QualityCheck, loss_remedy, quantize
from albertkit.errors import AlbertkitError
from albertkit.quantized import (
    QuantizedMatrix,
    quantize_blocks,
    quantize_rows,
    quantize_weights,
    unpack_blocks,
    unpack_weights,
)
from albertkit.runtime.activation_moments import activation_moments, random_tokens, synthetic_tokens
from tests.conftest import change_metadata, tiny
from tests.test_albert import make

shapes = st.tuples(st.integers(1, 9), st.integers(1, 80))


@given(shapes, st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_eight_bits_are_within_half_a_step(shape, seed):
    weight = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    matrix = quantize_rows(weight)
    assert np.abs(matrix.floats() - weight).max() <= (matrix.scale / 2 * 1.001).max()


@given(shapes, st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_four_bits_unpack_into_eight_exactly(shape, seed):
    weight = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    packed, steps, scale = quantize_blocks(weight)
    matrix = unpack_blocks(packed, steps, scale, shape[1])
    assert matrix.values.shape == shape and matrix.values.dtype == np.int8
    assert np.abs(matrix.values.astype(int)).max() <= 120
    for row in range(shape[0]):
        for column in range(shape[1]):
            nibble = int(packed[row, column // 2] >> (4 * (column % 2)) & 15) - 8
            assert matrix.values[row, column] == nibble * int(steps[row, column // 32])
    assert np.square(matrix.floats() - weight).mean() <= 0.03 * np.square(weight).mean()


@pytest.mark.parametrize("bits", [8, 4])
def test_moments_improve_rounding(bits):
    """On correlated inputs the output's error falls clearly below plain rounding's."""
    rng = np.random.default_rng(0)
    inputs = (rng.normal(size=(4000, 24)) @ rng.normal(size=(24, 96)) + 0.1 * rng.normal(size=(4000, 96))).astype(
        np.float32
    )
    weight = rng.normal(size=(64, 96)).astype(np.float32)
    errors = []
    for seen in (None, inputs.T @ inputs / len(inputs)):
        matrix = quantize_rows(weight, seen) if bits == 8 else unpack_blocks(*quantize_blocks(weight, seen), 96)
        errors.append(np.square(inputs @ (matrix.floats() - weight).T).mean())
    assert errors[1] < 0.5 * errors[0]


def test_without_cancel_errors_weights_are_rounded_to_nearest():
    artifact, name = make(tiny(vocab_size=3000)), "encoder.groups.0.0.ffn.down.weight"  # which is not smoothed
    seen = activation_moments(artifact, ["a text to look at"] * 20)
    plain = quantize_rows(artifact.weights[name]).values
    np.testing.assert_array_equal(quantize_weights(artifact.weights, 8, seen, cancel_errors=False)[name], plain)
    careful = quantize_weights(artifact.weights, 8, seen)[name]
    assert (careful != plain).any() and np.abs(careful.astype(int) - plain).max() < 20


def test_zeros_and_single_values_survive():
    for weight in (
        np.zeros((3, 40), np.float32),
        np.eye(3, 40, dtype=np.float32),
        np.full((2, 33), -1e-30, np.float32),
    ):
        assert np.abs(quantize_rows(weight).floats() - weight).max() < 1e-2
        assert np.isfinite(unpack_blocks(*quantize_blocks(weight), weight.shape[1]).floats()).all()


def test_quantized_weights_keep_names_and_smooth():
    artifact = make(tiny(vocab_size=3000))
    seen = activation_moments(artifact, ["a text to look at"] * 20)
    for bits in (8, 4):
        packed = quantize_weights(artifact.weights, bits, seen)
        opened = unpack_weights(packed, {n: a.shape for n, a in artifact.weights.items()})
        assert set(opened) == set(artifact.weights)
        up = opened["encoder.groups.0.0.ffn.up.weight"]
        assert isinstance(up, QuantizedMatrix) and up.smooth is not None and up.smooth.shape == (32,)
        assert isinstance(opened["encoder.embeddings.word.weight"], QuantizedMatrix)
        original = artifact.weights["encoder.groups.0.0.ffn.up.weight"]
        assert np.corrcoef(up.floats().ravel(), original.ravel())[0, 1] > (0.999 if bits == 8 else 0.98)
    with pytest.raises(AlbertkitError, match="8 or 4 bits"):
        quantize_weights(artifact.weights, 3)


def test_own_text_and_moments():
    artifact = make(tiny(vocab_size=3000, num_hidden_groups=2))
    ids = synthetic_tokens(artifact, texts=8)
    assert len(ids) == 8 and {row[0] for row in ids} == {artifact.tokenizer.cls_id}
    assert synthetic_tokens(artifact, texts=8) == ids
    seen = activation_moments(artifact, ["some text to look at", "and another one"] * 8)
    assert seen["encoder.groups.1.0.ffn.down.weight"].shape == (48, 48) and len(seen) == 12
    for square in seen.values():
        assert np.allclose(square, square.T, atol=1e-4) and np.linalg.eigvalsh(square).min() > -1e-3


@pytest.mark.parametrize("room", [40, 4, 3, 1])
def test_own_text_is_what_the_head_finds_likely_beside_random_words(room):
    """A head that wants twenty pieces and no others fills with these; three places in ten keep the words that were
    given.
    """
    artifact = make(tiny(vocab_size=3000, max_position_embeddings=room))
    wanted = np.arange(1000, 1020)
    bias = np.full(3000, -100, np.float32)
    bias[wanted] = 100
    bias[: artifact.tokenizer.mask_id + 1] = 200  # special tokens are never written
    artifact = dataclasses.replace(artifact, weights={**artifact.weights, "heads.mlm.bias": bias})
    ids = np.array(synthetic_tokens(artifact, texts=20))
    assert ids.shape == (20, room)
    inside = ids[:, 1:-1]
    given = np.array(random_tokens(artifact.config, 20))[:, 1:-1]
    filled = inside != given
    assert np.isin(inside[filled], wanted).all()
    if room == 40:
        assert 0.6 < filled.mean() < 0.8 and len(set(inside[filled].tolist())) == 20


@pytest.mark.parametrize(
    ("bits", "texts", "trained", "said", "unsaid"),
    [
        (4, False, False, ("(-f)", "--bits 8", "--train"), ()),
        (4, True, False, ("--bits 8", "--train"), ("(-f)",)),
        (8, True, False, ("--train",), ("(-f)", "--bits 8")),
        (4, True, True, ("longer", "--bits 8"), ("(-f)",)),
        (8, False, True, ("longer",), ("(-f)", "--bits 8")),
    ],
)
def test_the_remedy_is_one_that_was_not_tried(bits, texts, trained, said, unsaid):
    found = loss_remedy(bits, texts, trained)
    assert found[0].isupper() and all(part in found for part in said) and not any(part in found for part in unsaid)


def test_masked_predictions_are_compared_with_full_model_and_text(tmp_path):
    """A model that says `cat` everywhere, and another one: what they agree on, and what stood in the text."""
    tokenizer = make(tiny(vocab_size=3000)).tokenizer
    (cat,), (dog,) = tokenizer.ids_batch(["cat", "dog"])
    for name, word in (("cat", cat), ("dog", dog)):
        artifact = make(tiny(vocab_size=3000))
        bias = np.zeros(3000, np.float32)
        bias[word] = 1e4
        write_artifact(
            dataclasses.replace(artifact, weights={**artifact.weights, "heads.mlm.bias": bias}), tmp_path / name
        )
    judge = QualityCheck(tmp_path / "cat", ["cat dog dog dog"] * 60)
    same, other = judge.loss(tmp_path / "cat"), judge.loss(tmp_path / "dog")
    assert same.loss == 0 and same.accuracy[0] == same.accuracy[1]
    assert other.loss == 1 and sum(other.accuracy) == 1  # so that no place held [CLS] or [SEP]
    assert 0.1 < other.accuracy[0] < 0.4 and "predicted as in the text: 0." in str(other)


def test_quantized_artifacts_open_as_floats(tmp_path):
    artifact = make(tiny(vocab_size=3000))
    write_artifact(artifact, tmp_path / "float")
    sizes = [(tmp_path / "float" / "model.safetensors").stat().st_size]
    for bits in (8, 4):
        report = quantize(tmp_path / "float", tmp_path / str(bits), bits, [f"text {i} is here" for i in range(40)])
        assert report.texts == 4 and report.cosine_least > (0.99 if bits == 8 else 0.9)
        sizes.append(report.bytes)
        back = read_artifact(tmp_path / str(bits))
        assert back.heads == ["mlm"] and back.metadata.history[-1]["bits"] == bits
        assert all(a.dtype == np.float32 for a in back.weights.values())
    assert sizes[0] > 2.5 * sizes[1] > 2.5 * sizes[2]
    with pytest.raises(AlbertkitError, match="at least 10"):
        quantize(tmp_path / "float", tmp_path / "x", 8, ["few"])


def test_arrays_in_any_memory_order_are_written_right(tmp_path):
    artifact = make(tiny(vocab_size=3000))
    turned = {n: np.asfortranarray(a) for n, a in artifact.weights.items()}
    for bits in (None, 8, 4):
        write_artifact(artifact, tmp_path / f"a{bits}", bits=bits)
        write_artifact(type(artifact)(artifact.config, turned, artifact.tokenizer), tmp_path / f"b{bits}", bits=bits)
        first, second = read_artifact(tmp_path / f"a{bits}"), read_artifact(tmp_path / f"b{bits}")
        assert all(np.array_equal(first.weights[n], second.weights[n]) for n in first.weights)


@pytest.mark.parametrize("bits", [8, 4])
def test_damaged_quantised_files(tmp_path, bits):
    artifact = make(tiny(vocab_size=3000))
    write_artifact(
        artifact, tmp_path / "m", bits=bits, moments=activation_moments(artifact, ["a text to look at"] * 20)
    )
    change_metadata(tmp_path / "m", files={})
    path = tmp_path / "m" / QUANTIZED_FILE
    good = load_file(path)
    name = "encoder.groups.0.0.ffn.up.weight"
    for change in (
        {name: good[name].astype(np.float32)},
        {f"{name}.scale": good[f"{name}.scale"][:-1].copy()},
        {f"{name}.scale": np.full_like(good[f"{name}.scale"], np.nan)},
        {f"{name}.smooth": good[f"{name}.smooth"][:-1].copy()},
        {name: good[name][:-1].copy()},
        {"odd": good[name], "odd.scale": good[f"{name}.scale"]},
        {f"{name}.step": np.full((48, 1), 99, np.uint8)},
    ):
        save_file({**good, **change}, path)
        with pytest.raises(AlbertkitError):
            read_stored(tmp_path / "m")
    save_file({n: a for n, a in good.items() if n != name}, path)
    with pytest.raises(AlbertkitError):
        read_stored(tmp_path / "m")


@pytest.mark.slow
def test_the_check_runs_without_torch_and_refuses(tmp_path):
    """`quantize --check` where torch cannot be imported: numbers in the error, nothing written; then accepted."""
    import json
    import subprocess
    import sys

    write_artifact(make(tiny(vocab_size=3000, num_hidden_layers=12)), tmp_path / "float")
    (tmp_path / "lines.txt").write_text("\n".join(f"text {i} is here to be read" for i in range(20)))
    given = [
        "quantize",
        str(tmp_path / "float"),
        str(tmp_path / "small"),
        "--bits",
        "4",
        "-f",
        str(tmp_path / "lines.txt"),
    ]
    given += ["--check", str(tmp_path / "lines.txt"), "--tolerance", "0", "--json"]
    code = "import sys; sys.modules['torch'] = None; from albertkit.cli.entry_point import main; main()"
    refused = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "masks 1.0000 before" in refused.stderr, refused.stderr
    assert "--bits 8" in refused.stderr and "(-f)" not in refused.stderr  # the texts were given
    assert not (tmp_path / "small").exists()
    given[given.index("--tolerance") + 1] = "1"
    accepted = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, check=False)
    assert accepted.returncode == 0, accepted.stderr
    verdict = json.loads(accepted.stdout)["check"]
    assert verdict["metric"] == "masks" and 0 < verdict["loss"] == pytest.approx(1 - verdict["after"])


def test_weights_trained_for_few_bits_are_rounded_as_they_are():
    """With `smooth`, nothing is rounded to cancel errors, and the smoothing is the one that was given."""
    artifact = make(tiny(vocab_size=3000))
    name = "encoder.groups.0.0.ffn.up.weight"
    smooth = np.linspace(0.5, 2, 32).astype(np.float32)
    for bits in (8, 4):
        packed = quantize_weights(artifact.weights, bits, None, {name: smooth})
        np.testing.assert_array_equal(packed[f"{name}.smooth"], smooth)
        assert f"{name.replace('up', 'down')}.smooth" not in packed
        found = unpack_weights(packed, {n: a.shape for n, a in artifact.weights.items()})[name].floats()
        plain = artifact.weights[name] / smooth
        made = quantize_rows(plain) if bits == 8 else unpack_blocks(*quantize_blocks(plain), 32)
        np.testing.assert_array_equal(found, made.floats() * smooth)
