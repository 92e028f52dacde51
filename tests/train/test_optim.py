"""Optimizers against plain restatements, their groups, and the schedules."""

from __future__ import annotations

import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.model.albert_model import build_head
from albertkit.train.checkpoint import optimizer_tensors, restore_optimizers
from albertkit.train.optim import Lamb, Muon, build_optimizers, orthogonalize
from albertkit.train.train_settings import LEARNING_RATES, PretrainSettings, TrainSettings
from tests.conftest import tiny


def lamb_of_the_paper(w, gradients, rate, decay, adapt, betas=(0.9, 0.999), eps=1e-6):
    """Algorithm 2 of arXiv 1904.00962 with φ(x) = x, in numpy and double precision."""
    w = w.astype(np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, gradient in enumerate(gradients, 1):
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        update = (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps) + decay * w
        sizes = np.linalg.norm(w), np.linalg.norm(update)
        ratio = sizes[0] / sizes[1] if adapt and sizes[0] > 0 and sizes[1] > 0 else 1.0
        w = w - rate * ratio * update
    return w


@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lamb_is_the_paper_s(decay, adapt):
    rng = np.random.default_rng(0)
    shapes = [(5, 7), (3,), (2, 3)]
    begin = [
        rng.normal(size=shape) * size for shape, size in zip(shapes, (3.0, 0.1, 0.0), strict=True)
    ]  # one is all zero
    gradients = [[rng.normal(size=shape) * 10 ** rng.uniform(-3, 1) for shape in shapes] for _ in range(20)]
    params = [torch.nn.Parameter(torch.from_numpy(w.copy())) for w in begin]
    optimizer = Lamb([{"params": params, "adapt": adapt}], lr=0.02, weight_decay=decay)
    for step in gradients:
        for p, gradient in zip(params, step, strict=True):
            p.grad = torch.from_numpy(gradient)
        optimizer.step()
    for number, (p, w) in enumerate(zip(params, begin, strict=True)):
        wanted = lamb_of_the_paper(w, [step[number] for step in gradients], 0.02, decay, adapt)
        assert np.abs(p.detach().numpy() - wanted).max() <= 1e-12 * max(1.0, np.abs(wanted).max())


def test_lamb_equals_pytorch_optimizer():
    """Theirs has no bias correction, which the ratio cancels when nothing decays, and cuts ‖w‖ at 10."""
    other = pytest.importorskip("pytorch_optimizer")
    torch.manual_seed(0)
    mine = [torch.nn.Parameter(torch.randn(6, 5).double()), torch.nn.Parameter(torch.randn(4).double())]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in mine]
    optimizer = Lamb(mine, lr=0.03, weight_decay=0.0, eps=1e-14)
    reference = other.Lamb(theirs, lr=0.03, weight_decay=0.0, eps=1e-14, adam_debias=True)
    for _ in range(20):
        for p, q in zip(mine, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        optimizer.step()
        reference.step()
    for p, q in zip(mine, theirs, strict=True):
        assert (p - q).abs().max() <= 1e-10


def test_lamb_leaves_what_has_no_gradient():
    used, unused = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2, 2))
    optimizer = Lamb([used, unused])
    used.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(unused, torch.ones(2, 2)) and not torch.equal(used, torch.ones(2, 2))


@pytest.fixture
def plain_products():
    """Muon multiplies in bf16, for which oneDNN has instructions that some processors claim and lack."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            yield


# Groups ----------------------------------------------------------------------------------------------------------


def model() -> AlbertModel:
    torch.manual_seed(0)
    config = tiny(num_hidden_layers=2)
    return AlbertModel(config, {name: build_head(name, config) for name in ("mlm", "sop")})


@pytest.mark.parametrize("name", list(LEARNING_RATES))
def test_matrices_decay_and_biases_and_norms_do_not(name):
    made = model()
    found = build_optimizers(made, TrainSettings(steps=1, optimizer=name, weight_decay=0.2))
    decays = {p: g["weight_decay"] for o in found for g in o.param_groups for p in g["params"]}
    names = dict(made.named_parameters())
    assert len(decays) == len(names) == sum(len(g["params"]) for o in found for g in o.param_groups)
    for title, p in names.items():
        flat = title.endswith("bias") or "norm" in title
        assert decays[p] == (0.0 if flat else 0.2), title
    if name == "lamb":
        adapts = {p: g["adapt"] for g in found[0].param_groups for p in g["params"]}
        assert all(adapts[p] == (decays[p] > 0) for p in adapts)


def test_weights_that_get_no_gradient_direction_shrink_by_decay_alone():
    """One step with a zero gradient: a matrix loses rate · decay of itself, a norm nothing."""
    made = model()
    before = {name: p.detach().clone() for name, p in made.named_parameters()}
    for p in made.parameters():
        p.grad = torch.zeros_like(p)
    [optimizer] = build_optimizers(made, TrainSettings(steps=1, learning_rate=0.1, weight_decay=0.5))
    optimizer.step()
    for name, p in made.named_parameters():
        factor = 1.0 if p.dim() < 2 else 0.95
        assert torch.allclose(p, before[name] * factor, rtol=1e-6), name


def test_muon_takes_the_layers_matrices_and_adamw_the_rest(plain_products):
    made = model()
    muon, adamw = build_optimizers(made, TrainSettings(steps=1, optimizer="muon"))
    inner = {id(p) for g in muon.param_groups for p in g["params"]}
    assert inner == {id(p) for name, p in made.named_parameters() if ".groups." in name and p.dim() == 2}
    assert (
        muon.param_groups[0]["lr"] == LEARNING_RATES["muon"] and adamw.param_groups[0]["lr"] == LEARNING_RATES["adamw"]
    )
    before = [p.detach().clone() for p in made.parameters()]
    for p in made.parameters():
        p.grad = torch.randn_like(p)
    for optimizer in (muon, adamw):
        optimizer.step()
    assert all(
        (p - old).abs().max() > 0 and p.isfinite().all() for p, old in zip(made.parameters(), before, strict=True)
    )


@pytest.mark.parametrize("shape", [(24, 24), (48, 16), (16, 48)])
def test_muon_equals_torch_s_up_to_bf16(shape, plain_products):
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon to compare with")
    torch.manual_seed(1)
    first = torch.randn(shape)
    ours, theirs = (torch.nn.Parameter(first.clone()) for _ in range(2))
    mine = Muon([ours], lr=0.01, weight_decay=0.1)
    other = torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        mine.step()
        other.step()
    moved = (ours - first).norm()
    assert (ours - theirs).norm() < 0.02 * moved  # bf16 has eight bits


def test_orthogonal_brings_singular_values_near_one():
    torch.manual_seed(0)
    found = torch.linalg.svdvals(orthogonalize(torch.randn(20, 50) * 7))
    assert found.min() > 0.6 and found.max() < 1.3


@pytest.mark.parametrize("shape", [(64, 256), (256, 64)])
@pytest.mark.parametrize("rank", [64, 5])
def test_orthogonal_of_a_wide_matrix_is_the_polynomial_applied_step_by_step(shape, rank):
    """In double precision, with singular values over four orders of magnitude, or most of them 0."""
    torch.manual_seed(0)
    left, right = torch.randn(shape[0], rank), torch.randn(rank, shape[1])
    matrix = left @ torch.diag(torch.logspace(0, -4, rank)) @ right
    x = matrix.double() / matrix.double().norm()
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    assert (orthogonalize(matrix) - x).norm() < 1e-3 * x.norm()
    assert torch.equal(orthogonalize(torch.zeros(shape)), torch.zeros(shape))


@pytest.mark.parametrize("name", list(LEARNING_RATES))
def test_state_survives_a_round_trip(name, plain_products):
    """Two more steps after saving and putting back give the same bits."""
    settings_ = TrainSettings(steps=1, optimizer=name)

    def step(made, found, seed):
        torch.manual_seed(seed)
        for p in made.parameters():
            p.grad = torch.randn_like(p)
        for optimizer in found:
            optimizer.step()

    one, other = model(), model()
    first, second = build_optimizers(one, settings_), build_optimizers(other, settings_)
    step(one, first, 1)
    flat = optimizer_tensors(first)
    other.load_state_dict(one.state_dict())
    restore_optimizers(second, flat)
    for seed in (2, 3):
        step(one, first, seed)
        step(other, second, seed)
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_state_of_another_optimizer_is_refused(plain_products):
    """Muon is two optimizers and AdamW one: what one saved, the other does not take."""
    saved = {}
    for name in ("muon", "adamw"):
        made = model()
        found = build_optimizers(made, TrainSettings(steps=1, optimizer=name))
        for p in made.parameters():
            p.grad = torch.ones_like(p)
        for optimizer in found:
            optimizer.step()
        saved[name] = optimizer_tensors(found)
    for name, other in (("muon", "adamw"), ("adamw", "muon")):
        with pytest.raises(AlbertkitError, match="Resume with the optimizer that wrote it"):
            restore_optimizers(build_optimizers(model(), TrainSettings(steps=1, optimizer=other)), saved[name])
    fewer = {key: value for key, value in saved["adamw"].items() if not key.startswith("0.0.")}
    restore_optimizers(
        build_optimizers(model(), TrainSettings(steps=1)), fewer
    )  # a weight that had no gradient yet has no state


# Schedules -------------------------------------------------------------------------------------------------------


def test_schedules_by_hand():
    linear = TrainSettings(steps=100, warmup_ratio=0.1)
    assert [linear.learning_rate_factor(p) for p in (0, 0.05, 0.1, 0.55, 1.0, 1.3)] == pytest.approx(
        [0, 0.5, 1, 0.5, 0, 0]
    )
    wsd = TrainSettings(steps=100, warmup_ratio=0.1, schedule="wsd", decay_ratio=0.2)
    assert [wsd.learning_rate_factor(p) for p in (0.05, 0.1, 0.5, 0.8, 0.9, 1.0)] == pytest.approx(
        [0.5, 1, 1, 1, 0.5, 0]
    )
    constant = TrainSettings(steps=100, warmup_ratio=0.1, schedule="constant")
    assert [constant.learning_rate_factor(p) for p in (0, 0.05, 0.1, 0.99, 1.5)] == pytest.approx([0, 0.5, 1, 1, 1])
    assert TrainSettings(steps=1, warmup_ratio=0).learning_rate_factor(0) == 1.0


shares = st.floats(0, 0.999)


@given(
    st.sampled_from(["linear", "wsd", "constant"]), shares, shares, st.lists(st.floats(0, 2), min_size=2, max_size=20)
)
@settings(max_examples=200, derandomize=True)
def test_factors_stay_between_0_and_1_and_rise_then_fall(schedule, warmup, decay, places):
    made = TrainSettings(steps=10, schedule=schedule, warmup_ratio=warmup, decay_ratio=decay)
    found = [(p, made.learning_rate_factor(p)) for p in sorted(places)]
    assert all(0 <= f <= 1 for _, f in found)
    rising = [f for p, f in found if p < warmup]
    falling = [f for p, f in found if p >= warmup]
    assert rising == sorted(rising) and falling == sorted(falling, reverse=True)
    assert schedule == "constant" or made.learning_rate_factor(1.0) == 0.0


def test_progress_counts_the_budget_that_was_given():
    assert TrainSettings(steps=200).progress(50, 10**9, 10**9) == 0.25
    assert TrainSettings(tokens=1000).progress(10**9, 250, 10**9) == 0.25
    assert TrainSettings(minutes=2).progress(10**9, 10**9, 30) == 0.25


def test_settings_are_checked():
    for given_, text in [
        ({}, "set by none. Pass exactly one of steps, tokens and minutes"),
        ({"steps": 1, "minutes": 2}, "set by steps and minutes"),
        ({"steps": 0}, "steps is 0; it must be above 0"),
        ({"steps": 1, "batch_size": 0}, "batch_size is 0"),
        ({"steps": 1, "warmup_ratio": 1.0}, "warmup_ratio is 1.0; it must be 0 or above, and below 1"),
        ({"steps": 1, "weight_decay": -1}, "weight_decay is -1"),
        ({"steps": 1, "optimizer": "sgd"}, "optimizer is 'sgd'; choose one of adamw, lamb, muon"),
        ({"steps": 1, "schedule": "cosine"}, "schedule is 'cosine'"),
        ({"steps": 1, "seed": -1}, "seed is -1"),
    ]:
        with pytest.raises(AlbertkitError, match=text):
            TrainSettings(**given_)
    assert (
        TrainSettings(steps=1).peak_learning_rate == 1e-3
        and TrainSettings(steps=1, optimizer="lamb").peak_learning_rate == 1.76e-3
    )
    assert TrainSettings(steps=1, learning_rate=0.5).peak_learning_rate == 0.5


def test_goals_are_checked():
    assert PretrainSettings(lengths="16:0.25,32:0.75").phases() == [(16, 0.25), (32, 0.75)]
    goals = PretrainSettings(lengths="16:0.25,32:0.75")
    assert [goals.length_at(p) for p in (0, 0.24, 0.25, 0.99, 1.0)] == [16, 16, 32, 32, 32]
    for given_, text in [
        ({"lengths": "16:0.5,32:0.6"}, "shares must add up to 1"),
        ({"lengths": "4"}, "must be 8 or more"),
        ({"lengths": "long"}, "Write it like 128"),
        ({"mask_ratio": 0.0}, "mask_ratio is 0.0"),
        ({"layer_decay": 0.0}, "layer_decay is 0.0"),
        ({"sop_weight": -1.0}, "must be 0 or above"),
    ]:
        with pytest.raises(AlbertkitError, match=text):
            PretrainSettings(**given_)


def test_muon_trains_every_parameter_of_a_convolution_too():
    layers = torch.nn.ModuleDict({"groups": torch.nn.ModuleList([torch.nn.Linear(4, 4)])})
    model = torch.nn.ModuleDict({"encoder": layers, "head": torch.nn.Conv1d(4, 4, 3)})
    optimizers = build_optimizers(model, TrainSettings(steps=1, optimizer="muon"))
    owned = [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert sorted(owned) == sorted(id(p) for p in model.parameters())
