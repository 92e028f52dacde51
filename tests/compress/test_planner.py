"""Planning for a machine: the arithmetic of predictions, limits that are kept, and small real runs."""

from __future__ import annotations

import math
from dataclasses import replace
from timeit import timeit

import click
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from albertkit.artifact import write_artifact
from albertkit.cli.compress_commands import parse_amount
from albertkit.cli.deploy_commands import DURATION, SIZE
from albertkit.compress.benchmark import (
    Machine,
    measure_folder,
    measure_machine,
    random_weights,
    timed_shape,
    typical_seconds,
)
from albertkit.compress.cost import PlanCandidate, model_candidates, shape_candidates
from albertkit.compress.planner import (
    Measurement,
    PlanRequest,
    Proposal,
    build_commands,
    config_of,
    is_model,
    pareto_front,
    plan,
    propose,
)
from albertkit.config import preset
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import open_model
from albertkit.weights import layer_shapes
from tests.conftest import tiny
from tests.test_albert import make


class Rates(dict):
    """Seconds of any shape, in proportion to its weights."""

    def __init__(self, rate: float, start: float = 0.0) -> None:
        super().__init__()
        self.rate, self.start = rate, start

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key):
        config, bits = key
        work = config.hidden_size * (config.attention_size + config.intermediate_size)
        return self.start + self.rate * work * (1 if bits == 32 else 0.25)


def machine(rate=1e-9, call=1e-5) -> Machine:
    return Machine(2, 32, Rates(rate, call), Rates(rate / 100, 1e-4), 1e-4)


def test_latency_adds_up():
    m, config = machine(), preset("base")
    layer, front = 1e-9 * 768 * (768 + 3072) + 1e-5, 1e-11 * 768 * (768 + 3072) + 1e-4
    assert m.latency(config) == pytest.approx(front + 12 * layer)
    assert m.latency(config, depth=3) < m.latency(config, bits=8) < m.latency(config)
    assert m.latency(config, bits=4) == m.latency(config, bits=8)


def test_shapes_of_equal_layers_are_timed_once():
    base, groups = preset("base"), preset("base").replace(num_hidden_groups=2)
    assert (
        timed_shape(base)
        == timed_shape(base.replace(num_hidden_layers=3, vocab_size=50))
        != timed_shape(preset("small"))
    )
    assert timed_shape(base).num_hidden_layers == 1 and timed_shape(groups).num_hidden_layers == 12
    window = base.replace(options=replace(base.options, window=8, global_every=3))
    assert (
        timed_shape(window).num_hidden_layers == 3
        and timed_shape(window.replace(num_hidden_layers=2)).num_hidden_layers == 2
    )


def test_faster_of_two_rounds_counts(monkeypatch):
    rounds = iter([(2.0, 5.0), (1.0, 6.0)])
    monkeypatch.setattr("albertkit.compress.benchmark._layer_seconds", lambda *given: next(rounds))
    found = measure_machine([preset("tiny")], 8, 1, bits=(32,))
    assert found.latency(preset("tiny"), depth=3) == 8.0
    with pytest.raises(AlbertkitError, match="not measured for this shape"):
        found.latency(preset("tiny"), bits=8)


def test_short_calls_are_timed_together(monkeypatch):
    """A clock on which every tenth call takes ten times as long: the mean is found, not the usual single call."""
    now, calls = [0.0], [0]

    def call():
        calls[0] += 1
        now[0] += 0.01 if calls[0] % 10 == 0 else 0.001

    monkeypatch.setattr("albertkit.compress.benchmark.time.perf_counter", lambda: now[0])
    assert typical_seconds(call, 1.0) == pytest.approx(0.0019, rel=0.2)


CANDIDATES = shape_candidates("base", preset("base")), model_candidates("mine", preset("small"))


@given(st.floats(1e-4, 0.2), st.floats(5e7, 1e9))
@settings(max_examples=50)
def test_proposals_keep_the_limits(latency, memory):
    limits = PlanRequest(latency, memory)
    for candidates in CANDIDATES:
        found = propose(candidates, machine(), limits, tokenizer_bytes=4e7)
        assert found
        if any(p.fits for p in found):
            assert all(p.fits and p.latency <= latency and p.memory <= memory for p in found)
            losses = [p.candidate.loss for p in found]
            assert losses == sorted(losses)
        else:
            assert all(p.latency > latency or p.memory > memory for p in found)


def test_full_model_comes_first_without_tight_limits():
    best = propose(model_candidates("mine", preset("base")), machine(), PlanRequest(latency=10.0), 4e7)[0].candidate
    assert best.config == preset("base") and best.bits == 32 and best.name == "mine, float32, 12 layers"
    tight = propose(model_candidates("mine", preset("base")), machine(), PlanRequest(latency=2e-4, memory=2e8), 4e7)
    assert [p.candidate.is_static for p in tight] == [True]
    grouped = {
        c.config.num_hidden_layers for c in model_candidates("mine", tiny(num_hidden_groups=3)) if not c.is_static
    }
    assert grouped == {3}


def test_pareto_front_keeps_unbeaten_proposals():
    candidate = model_candidates("mine", preset("base"))[0]

    def tried(latency, memory, quality):
        return Proposal(candidate, latency, memory, True, Measurement(latency, memory, memory, quality, 0.0))

    best, slow, small, worse = tried(1, 5, 0.9), tried(2, 5, 0.95), tried(3, 1, 0.5), tried(3, 6, 0.9)
    assert pareto_front([best, slow, small, worse]) == [best, slow, small]


def test_commands_build_the_candidate():
    model = make(tiny(), heads=())
    config = preset("base").replace(num_hidden_layers=6, intermediate_size=1536)
    made = build_commands(PlanCandidate("m", config, 8, preset("base"), 0.0), "m", model)
    assert made == (
        "albertkit prune m PRUNED --ffn 1536 --layers 6 -f TEXTS",
        "albertkit quantize PRUNED OUT --bits 8 -f TEXTS",
    )
    assert build_commands(PlanCandidate("m", preset("base"), 32, preset("base"), 0.0), "m", model) == ()
    assert build_commands(PlanCandidate("m", config, 8, preset("base"), 0.0), "m", None) == ()


@pytest.mark.parametrize("more", [{}, {"num_hidden_groups": 2}, {"inner_group_num": 2}])
def test_the_machine_is_measured(more, monkeypatch):
    monkeypatch.setattr("albertkit.compress.benchmark.SECONDS", 0.01)
    monkeypatch.setattr("albertkit.compress.benchmark.STRETCH", 0.001)
    config = tiny(hidden_size=64, num_attention_heads=2, **more)
    found = measure_machine([config], 8, threads=1)
    assert (
        found.layer_seconds.keys() == found.text_seconds.keys() == {(timed_shape(config), 32), (timed_shape(config), 8)}
    )
    for bits in (32, 8, 4):
        assert 0 < found.latency(config, bits, depth=1) < found.latency(config, bits, depth=50) < 5


def test_random_weights_leave_attention_soft():
    """Weights as large as 1 make nearly all shares of attention denormal numbers, which take several times as long."""
    config = tiny(hidden_size=64, num_attention_heads=2)
    made = random_weights(layer_shapes(config, "layer"), 32)
    states = np.random.default_rng(0).normal(size=(128, 64))
    query, key = (states @ made[f"layer.attention.{n}.weight"].T for n in ("query", "key"))
    scores = query[:, :32] @ key[:, :32].T / 32**0.5
    assert np.ptp(scores, axis=1).max() < 20  # exp(-87) is the smallest normal float32
    shapes = {n: getattr(w, "values", w).shape for n, w in random_weights(layer_shapes(config, "layer"), 8).items()}
    assert shapes["layer.ffn.up.weight"] == (48, 64)


def test_folder_is_measured_in_a_new_process(tmp_path):
    write_artifact(make(tiny(vocab_size=3000)), tmp_path / "m")
    empty, full = measure_folder(None, 16, 1), measure_folder(tmp_path / "m", 16, 1)
    assert 0 < full["latency"] < 1 and empty["latency"] == 0
    assert 5e6 < full["memory"] < 5e8 and full["process"] > empty["process"] > 2e7
    with pytest.raises(AlbertkitError, match="in a separate process failed"):
        measure_folder(tmp_path / "nowhere", 16, 1)


@pytest.mark.slow
def test_plan_of_a_folder_measures_proposals(tmp_path, monkeypatch):
    def once(call, *_):  # how well it measures is not asked here
        return timeit(call, number=1)

    monkeypatch.setattr("albertkit.compress.benchmark.typical_seconds", once)
    write_artifact(make(tiny(vocab_size=3000)), tmp_path / "m")
    texts = [f"text {i} has some words" for i in range(30)]
    found = plan(tmp_path / "m", PlanRequest(latency=1.0, memory=1e9, texts=texts, count=2, threads=1))
    assert found.metric == "cosine" and found.machine.length < 20 and len(found.proposals) == 2
    first = found.proposals[0]
    assert first.fits and first.measured.quality > 0.99 and first.measured.loss < 0.01 and first.measured.latency > 0
    assert found.as_dict()["proposals"][0]["measured"]["latency"] == first.measured.latency


@pytest.mark.parametrize(("text", "value"), [("8", 8), ("0.5", 0.5), ("50%", 0.5), ("2/3", 2 / 3)])
def test_amounts_are_parsed(text, value):
    assert parse_amount(text) == pytest.approx(value)
    assert isinstance(parse_amount(text), type(value))


def test_units_are_parsed():
    assert DURATION.convert("20ms", None, None) == pytest.approx(0.02) == DURATION.convert("20", None, None)
    assert DURATION.convert("1.5 s", None, None) == 1.5 and SIZE.convert("64MB", None, None) == 64e6
    for kind, bad in ((DURATION, "20 apples"), (SIZE, "-3MB"), (SIZE, "MB"), (DURATION, "nan")):
        with pytest.raises(click.BadParameter):
            kind.convert(bad, None, None)
    with pytest.raises(click.BadParameter):
        parse_amount("half")


def test_shapes_of_names():
    assert config_of("base") == preset("base")
    assert math.isclose(model_candidates("m", preset("base"))[0].loss, 0.0)
    with pytest.raises(AlbertkitError, match="unknown preset"):
        config_of("bas")
    assert is_model("small-pretrained") and not is_model("small")


def test_quantized_source_is_converted_before_pruning(tmp_path):
    """What is stored in few bits can be neither pruned nor quantised, so it is made floats first."""
    write_artifact(make(tiny(vocab_size=3000)), tmp_path / "m", bits=8)
    model = open_model(tmp_path / "m")
    smaller = next(c for c in model_candidates("m", model.config) if c.bits == 4 and c.config.intermediate_size < 48)
    first, second, third = build_commands(smaller, "m", model)
    assert first == "albertkit convert m FLOAT" and second.startswith("albertkit prune FLOAT PRUNED ")
    assert third.startswith("albertkit quantize PRUNED OUT --bits 4")
