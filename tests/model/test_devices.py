"""Every option away from the CPU, in half precision: torch's meta device computes shapes alone, and refuses tensors
that were left behind.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from albertkit.config import Options
from albertkit.data import masking
from albertkit.model import AlbertModel, Batch
from albertkit.model.albert_model import build_head
from albertkit.model.encoder import Encoder
from albertkit.model.packed_batch import Padding, length_runs
from albertkit.train.distributed import call_in_dtype
from albertkit.train.pretrain import PretrainObjective
from albertkit.train.train_settings import PretrainSettings
from tests.conftest import tiny
from tests.model.test_options import CASES

LENGTHS = (5, 30, 7, 16, 9)


@pytest.fixture
def away(monkeypatch):
    """Attention that minds where its masks are, and of what type: fused kernels on a GPU do."""
    plain = F.scaled_dot_product_attention

    def strict(query, key, value, attn_mask=None, **more):
        for other in (key, value, *(() if attn_mask is None else (attn_mask,))):
            assert other.device == query.device
        assert attn_mask is None or attn_mask.dtype in (torch.bool, query.dtype)
        return plain(query, key, value, attn_mask=attn_mask, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", strict)
    monkeypatch.setattr(Encoder, "check", lambda self, batch: None)  # asks for numbers
    return torch.device("meta")


@pytest.mark.parametrize(
    ("name", "goals"),
    [
        *((name, {}) for name in CASES if not name.startswith("gru")),
        ("canonical", {"consistency_weight": 0.1}),
        ("canonical", {"layer_decay": 0.9}),
    ],
)
def test_an_update_computes_where_its_tensors_are(away, name, goals):
    config = tiny().replace(options=Options(**CASES.get(name, {})))
    model = AlbertModel(config, {head: build_head(head, config) for head in ("mlm", "sop", "classify")})
    objective = PretrainObjective(
        model, masking.SpecialIds(2, 3, 4, torch.arange(5, 20)), PretrainSettings(lengths="32", **goals)
    )
    objective.to(away).train()
    objective.dtype = torch.bfloat16
    rows = (torch.zeros(3, 30, dtype=torch.int16), torch.zeros(3, dtype=torch.int16), torch.ones(3, dtype=torch.bool))
    place = (torch.zeros(2, dtype=torch.int64), torch.zeros((), dtype=torch.int64))
    loss, sums = objective(*(tensor.to(away) for tensor in (*rows, *place)))
    assert loss.device == away and loss.dtype == torch.float32 and sums.device == away
    loss.backward()
    ids = torch.zeros(sum(LENGTHS), dtype=torch.int64, device=away)
    places = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.int64, device=away)
    seen = torch.ones(len(LENGTHS), max(LENGTHS), max(LENGTHS), dtype=torch.bool, device=away)
    for batch in (
        Batch(ids, ids, ids, length_runs(LENGTHS)),
        Batch(ids, ids, ids, length_runs(LENGTHS), attention_mask=seen),
    ):
        vars(batch)["padding"] = Padding(places, places == 0, ids)  # which asks for numbers
        for first in (False, True):
            out = call_in_dtype(model, torch.bfloat16, batch, heads=["classify"], first_only=first)
            assert out.heads["classify"].logits.dtype == torch.bfloat16
            out.heads["classify"].logits.float().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.device == away, name
        assert parameter.grad.dtype == torch.float32


def test_a_tensor_left_behind_is_found(away):
    """What the test above relies on."""
    config = tiny().replace(options=Options(attention_bias="head"))
    model = AlbertModel(config).to(away)
    ids = torch.zeros(8, dtype=torch.int64, device=away)
    batch = Batch(ids, ids, ids, ((1, 8),))
    model(batch)
    attention = model.encoder.groups[0][0].attention
    attention.theta = torch.nn.Parameter(torch.zeros(attention.heads))
    with pytest.raises((RuntimeError, AssertionError)):
        model(dataclasses.replace(batch))
