"""The planner: its counts equal the table, and its memory equals what torch keeps."""

from __future__ import annotations

import pytest
import torch

from albertkit.artifact import Artifact
from albertkit.compress.cost import (
    activation_memory,
    operations,
    parameter_counts,
    shape_cost,
    unshared_parameters,
    weight_bytes,
)
from albertkit.config import PRESETS, preset
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.weights import encoder_shapes, size
from tests.conftest import tiny


@pytest.mark.parametrize("name", PRESETS)
def test_parameter_counts_add_up(name):
    parts = parameter_counts(preset(name))
    total = parts.pop("total")
    parts.pop("heads (masked word, order)")
    assert sum(parts.values()) == total == size(encoder_shapes(preset(name)))
    ops = operations(preset(name), 128)
    assert ops.pop("total") == pytest.approx(sum(ops.values()))


def test_unshared_base_is_bert_base():
    """BERT-base with ALBERT's 30,000 pieces: the published 109,482,240 with 30,522 of them."""
    assert unshared_parameters(preset("base").replace(vocab_size=30_522)) == 109_482_240
    made = shape_cost(preset("base"))
    assert pytest.approx(5.85, abs=0.01) == 30_000 * 768 / (30_000 * 128 + 128 * 768)
    assert made.bytes["float32"] == 4 * 11_683_584 and made.bytes["int8"] < 12.5e6 and made.bytes["4-bit"] < 8.5e6


def test_training_memory_is_what_torch_keeps():
    """Count the bytes autograd holds, each storage once, without weights: the formula is within 12 %."""
    config = tiny(hidden_size=96, intermediate_size=384, num_hidden_layers=6, num_attention_heads=4)
    model = AlbertModel(config).train()
    for checkpointing, name in ((False, "training"), (True, "training, checkpointed")):
        model.encoder.checkpointing = checkpointing
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept: dict[int, int] = {}

        def keep(tensor, own=own, kept=kept):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own and tensor.dim() > 0:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        batch = Batch.of([[1] * 32] * 24)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            out = model(batch).encoded.hidden
        estimate = activation_memory(config, 32, 24)[name]
        if checkpointing:  # the part that lives between the passes; one layer more is built up while recomputing
            estimate -= 4 * 32 * 24 * (8 * 96 + 2 * 384 + 4 + 4)
        assert sum(kept.values()) == pytest.approx(estimate, rel=0.12), name
        del out


def test_weight_bytes_equal_those_of_a_file(tmp_path):
    model = AlbertModel(tiny())
    model.save(tmp_path / "m")
    written = (tmp_path / "m" / "model.safetensors").stat().st_size
    assert written == pytest.approx(weight_bytes(encoder_shapes(tiny()))["float32"], rel=0.2)
    assert isinstance(Artifact(tiny(), model.weights()), Artifact)


def test_bad_requests():
    for length, batch in ((0, 1), (513, 1), (1, 0)):
        with pytest.raises(AlbertkitError):
            shape_cost(preset("base"), length, batch)
