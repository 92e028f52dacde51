"""Training for few bits: torch rounds to the bit as the file stores, computes as the runtime does, and what it trains
is better than plain rounding.
"""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, read_stored, write_artifact
from albertkit.compress.quantize import QualityCheck, QualityLimit, quantize
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.model.albert_model import build_head
from albertkit.quantized import (
    QuantizedMatrix,
    quantize_blocks,
    quantize_rows,
    quantize_weights,
    unpack_blocks,
    unpack_weights,
)
from albertkit.runtime.batching import token_batches
from albertkit.runtime.engine import Engine, machine_max_level
from albertkit.runtime.predict import predict
from albertkit.tokenizer import Tokenizer
from albertkit.train import finetune as tune
from albertkit.train.distill_data import RecoverySettings, data_for_model
from albertkit.train.recover import (
    FakeQuantizedModel,
    RecoveryJob,
    calibrate_smoothing,
    fake_quantize_blocks,
    fake_quantize_rows,
    fake_quantize_tokens,
    fake_quantize_weight,
    recover_model,
    train_for_bits,
)
from albertkit.train.train_settings import FinetuneSettings
from tests.conftest import tiny
from tests.train.conftest import VOCAB
from tests.train.test_finetune import texts


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Artifact:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    torch.manual_seed(0)
    config = tiny(vocab_size=len(VOCAB), initializer_range=0.3, max_position_embeddings=64)
    model = AlbertModel(config, {"mlm": build_head("mlm", config)})
    return Artifact(config, model.weights(), Tokenizer.from_vocab(path))


@given(st.tuples(st.integers(1, 9), st.integers(1, 80)), st.integers(0, 2**32 - 1), st.sampled_from([1e-6, 1.0, 300.0]))
@settings(max_examples=60)
def test_torch_rounds_exactly_as_the_file(shape, seed, size):
    weight = (size * np.random.default_rng(seed).standard_t(3, shape)).astype(np.float32)
    weight[0] *= seed % 2  # a row of zeros now and then
    tensor = torch.from_numpy(weight)
    np.testing.assert_array_equal(fake_quantize_rows(tensor).numpy(), quantize_rows(weight).floats())
    np.testing.assert_array_equal(
        fake_quantize_blocks(tensor).numpy(), unpack_blocks(*quantize_blocks(weight), shape[1]).floats()
    )


@pytest.mark.parametrize("bits", [8, 4])
def test_stored_weights_are_the_trained_ones(start, tmp_path, bits):
    """Every matrix, smoothing included, and biases untouched."""
    smooth = calibrate_smoothing(start, [e.text for e in texts(40)], bits)
    assert any(name.endswith("ffn.up.weight") for name in smooth)
    wanted = FakeQuantizedModel(AlbertModel.from_artifact(start), bits, smooth).weights()
    write_artifact(start, tmp_path / "made", bits=bits, smooths=smooth)
    stored = read_stored(tmp_path / "made").weights
    matrices = {name for name, value in stored.items() if isinstance(value, QuantizedMatrix)}
    assert matrices == set(wanted) and "encoder.embeddings.word.weight" in matrices
    for name in matrices:
        np.testing.assert_array_equal(stored[name].floats(), wanted[name].detach().numpy(), err_msg=name)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("top", [255, 127])
def test_fake_quantized_model_equals_the_runtime(start, bits, top):
    if top > machine_max_level():
        pytest.skip("this processor sums pairs of 8-bit products in 16 bits, so 255 levels overflow")
    smooth = calibrate_smoothing(start, [e.text for e in texts(40)], bits)
    weights = unpack_weights(
        quantize_weights(start.weights, bits, None, smooth), {n: a.shape for n, a in start.weights.items()}
    )
    engine = Engine(start.config, weights, 1, top)
    ids = [e.ids for e in start.tokenizer.encode_batch([e.text for e in texts(12, 3)])]
    model = FakeQuantizedModel(AlbertModel.from_artifact(start), bits, smooth, top).eval()
    plain = AlbertModel.from_artifact(start)
    far, near, apart = [], [], []
    with torch.no_grad():
        for batch in token_batches(ids):
            want = engine.run(batch, start.config.num_hidden_layers)
            packed = Batch.of([row[:n].tolist() for row, n in zip(batch.ids, batch.lengths, strict=True)])
            inside = np.arange(batch.ids.shape[1])[None] < batch.lengths[:, None]
            out = model(packed)
            near.append(np.abs(out.encoded.hidden.numpy() - want[inside]))
            far.append(np.abs(plain(packed).encoded.hidden.numpy() - want[inside]))
            apart.append(np.abs(out.heads["mlm"].logits.numpy() - engine.mlm_logits(want[inside])))
    # a number on the edge between two levels may fall to either side, so: close nearly everywhere, and far closer than
    # without rounding
    near, far, apart = np.concatenate(near), np.concatenate(far), np.concatenate(apart)
    assert np.median(near) < 1e-5 and near.mean() < 0.1 * far.mean() and np.median(apart) < 1e-3


@given(st.integers(0, 2**32 - 1), st.sampled_from([None, 0.17]))
@settings(max_examples=30)
def test_tokens_are_rounded_alone_and_gradients_pass(seed, floor):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 16, generator=generator)
    x = x.clamp(min=-0.17) if floor else x
    x.requires_grad_()
    y = fake_quantize_tokens(x, 255, None, floor)
    assert torch.equal(y[2:3], fake_quantize_tokens(x[2:3], 255, None, floor))  # whatever its neighbours are
    reach = (x.detach() + floor).amax(1) / 255 if floor else x.detach().abs().amax(1) / 127
    assert ((y - x).abs().amax(1) <= 0.5001 * reach + 1e-6).all()
    y.backward(torch.full_like(y, 3.0))
    assert torch.equal(x.grad, torch.full_like(x, 3.0))


def test_the_gradient_of_a_shared_matrix_is_the_sum_over_its_uses(start):
    """The matrix is rounded once and used three times: each use's gradient, found by giving every use a copy, adds up."""
    model = AlbertModel.from_artifact(start).train()
    wrapped = FakeQuantizedModel(model, 4, {})
    batch = Batch.of([[2, 8, 9, 10, 3], [2, 11, 3]])
    wrapped(batch).encoded.hidden.square().sum().backward()
    whole = model.encoder.groups[0][0].ffn.up.weight.grad.clone()
    torch.manual_seed(0)
    unshared = start.config.replace(num_hidden_groups=3)
    weights = dict(start.weights)
    for name, array in start.weights.items():
        if name.startswith("encoder.groups.0."):
            weights |= {name.replace("groups.0.", f"groups.{g}."): array for g in (1, 2)}
    copies = AlbertModel.from_artifact(Artifact(unshared, weights, None)).train()
    FakeQuantizedModel(copies, 4, {})(batch).encoded.hidden.square().sum().backward()
    parts = torch.stack([group[0].ffn.up.weight.grad for group in copies.encoder.groups])
    assert torch.allclose(whole, parts.sum(0), rtol=1e-4, atol=1e-4) and parts.abs().amax(dim=(1, 2)).min() > 0
    weight = torch.randn(4, 40, requires_grad=True)
    fake_quantize_weight("encoder.groups.0.0.ffn.up.weight", weight, 4).sum().backward()
    assert torch.equal(weight.grad, torch.ones_like(weight))


def graded(count: int, seed: int) -> list:
    """How many animals: a number feels every bit that is lost."""
    return texts(count, seed, "regression")


@pytest.fixture(scope="module")
def tuned(start, tmp_path_factory):
    """Its layers begin with a few large weights among many small ones, which is what 4 bits find hard."""
    torch.manual_seed(2)
    rng = np.random.default_rng(2)
    config = start.config.replace(initializer_range=0.1)
    weights = AlbertModel(config).weights()
    for name, array in weights.items():
        if ".groups." in name and array.ndim == 2:
            weights[name] = (0.06 * np.clip(rng.standard_t(1.2, array.shape), -25, 25)).astype(np.float32)
    start = Artifact(config, weights, start.tokenizer)
    options = FinetuneSettings(epochs=6, batch_size=16, learning_rate=3e-3, max_length=32, device="cpu")
    return tune.finetune_examples(
        "classify", graded(240, 0), graded(60, 9), tmp_path_factory.mktemp("tuned"), start, options
    ).model


def test_training_for_four_bits_beats_rounding(tuned, tmp_path):
    """Also rounding after the same training without any: what helps is to know of the rounding, not to train for
    longer.
    """
    fresh, artifact = graded(300, 11), read_artifact(tuned)
    lines = [e.text for e in graded(240, 0)]
    data = data_for_model(artifact, graded(240, 0), graded(60, 9))
    training = RecoverySettings(epochs=4, batch_size=16, learning_rate=1e-3, device="cpu")
    trained = train_for_bits(tuned, 4, data, training, tmp_path / "run")
    check = QualityLimit(fresh, tolerance=1.0)
    report = quantize(trained, tmp_path / "aware", 4, lines, check=check)
    longer, _ = recover_model(RecoveryJob(artifact, artifact, data, training, "longer", 0.5), tmp_path / "longer")
    write_artifact(longer, tmp_path / "float")
    quantize(tuned, tmp_path / "plain", 4, lines)
    quantize(tmp_path / "float", tmp_path / "after", 4, lines)
    errors = {}
    for name in ("plain", "after", "aware"):
        albert = Albert(tmp_path / name)
        errors[name] = albert.task.measure(predict(albert, fresh, "classify"), fresh)["rmse"]
    assert errors["aware"] < min(errors["plain"], errors["after"]), errors
    assert report.check.after == QualityCheck(tuned, fresh).score(tmp_path / "aware").value
    steps = [step["step"] for step in read_stored(tmp_path / "aware").metadata.history]
    assert steps[-2:] == ["training for 4 bits", "quantize"]


def test_loss_above_the_tolerance_is_an_error(tuned, tmp_path):
    fresh = graded(200, 11)
    with pytest.raises(
        AlbertkitError,
        match=r"spearman 0\.\d{4} before, 0\.\d{4} after: 0\.\d{4} lost, but the tolerance is 0\.0001. Nothing was",
    ) as caught:
        quantize(tuned, tmp_path / "no", 4, check=QualityLimit(fresh, tolerance=0.0001))
    assert not (tmp_path / "no").exists() and "or raise the tolerance (--tolerance 0." in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == []
    report = quantize(tuned, tmp_path / "yes", 4, check=QualityLimit(fresh, tolerance=1.0))
    assert report.check.loss > 0.0001 and (tmp_path / "yes").is_dir()
    assert quantize(tuned, tmp_path / "eight", 8, check=QualityLimit(fresh, tolerance=0.05)).check.loss <= 0.05


def test_examples_with_score_zero_are_an_error(start, tmp_path):
    """A check by examples of another task would let everything pass."""
    options = FinetuneSettings(epochs=1, max_length=40, batch_size=16, device="cpu")
    model = tune.finetune_examples("classify", texts(40), texts(20, 9), tmp_path / "tuned", start, options).model
    strange = [dataclasses.replace(e, label="strange") for e in texts(20, 9)]
    with pytest.raises(AlbertkitError, match="accuracy of the full model is 0 on these examples"):
        quantize(model, tmp_path / "no", 8, check=QualityLimit(strange))
    assert not (tmp_path / "no").exists()


def test_quality_of_vectors_and_masks(start, tmp_path):
    lines = [e.text for e in texts(60, 5)]
    write_artifact(start, tmp_path / "words")
    vectors = dataclasses.replace(start, metadata=ArtifactMetadata(task="embed"))
    write_artifact(vectors, tmp_path / "vectors")
    for name, metric in (("words", "masks"), ("vectors", "cosine")):
        verdict = quantize(
            tmp_path / name, tmp_path / f"{name}8", 8, lines, check=QualityLimit(lines, tolerance=0.5)
        ).check
        assert verdict.metric == metric and verdict.before == 1.0 and 0.5 < verdict.after < 1.0
    with pytest.raises(AlbertkitError, match="cosine 1.0000 before"):
        quantize(tmp_path / "vectors", tmp_path / "x", 4, lines, check=QualityLimit(lines, tolerance=0.0))


def test_texts_alone_train_vectors_for_four_bits(start, tmp_path):
    lines, held = [e.text for e in texts(160, 5)], [e.text for e in texts(60, 6)]
    vectors = dataclasses.replace(start, metadata=ArtifactMetadata(task="embed"))
    write_artifact(vectors, tmp_path / "float")
    training = RecoverySettings(epochs=12, batch_size=16, learning_rate=1e-3, device="cpu")
    trained = train_for_bits(tmp_path / "float", 4, data_for_model(vectors, lines, held), training, tmp_path / "run")
    quantize(trained, tmp_path / "aware", 4, lines)
    quantize(tmp_path / "float", tmp_path / "plain", 4, lines)
    judge = QualityCheck(tmp_path / "float", held)
    assert judge.score(tmp_path / "aware").value > judge.score(tmp_path / "plain").value


def test_unsupported_options_are_an_error(start):
    with pytest.raises(AlbertkitError, match="8 or 4 bits"):
        FakeQuantizedModel(AlbertModel.from_artifact(start), 3, {})
