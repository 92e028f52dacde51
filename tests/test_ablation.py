"""What the benches that train are made of: work in several processes, lines that are kept, speeds of their own, models that travel."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from albertkit.artifact import Artifact, Meta, read_artifact, write_artifact
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.train.checkpoint import State
from albertkit.train.work import Outcome
from tests.conftest import ROOT, tiny
from tests.pieces import endless, noted
from tests.train.conftest import write_shards

RECIPE = {"shape": "tiny", "layers": None, "length": 16, "tokens": 512, "minutes": None}


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module


# Work in several processes ---------------------------------------------------------------------------------------


def test_one_that_fails_does_not_stop_the_others(bench, tmp_path, capfd):
    failed = bench("jobs").each(noted, [(name, str(tmp_path)) for name in ("a", "bad", "b")], 2)
    assert failed == ["bad (code 1)"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert "this one is bad" in capfd.readouterr().err


def test_being_asked_to_stop_reaches_what_runs_and_begins_nothing_new(bench, tmp_path):
    def ask() -> None:
        while not (tmp_path / "a").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=ask)
    thread.start()
    failed = bench("jobs").each(endless, [("a", str(tmp_path)), ("b", str(tmp_path))], 1)
    thread.join()
    assert failed == [f"a (code {-signal.SIGTERM})", "b (not begun)"]
    assert signal.getsignal(signal.SIGTERM) is before


# Lines -----------------------------------------------------------------------------------------------------------


def test_lines_of_many_writers_stay_whole(bench, tmp_path):
    ablation = bench("ablation")
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(lambda n: ablation.append(tmp_path / "x" / "lines.jsonl", {"n": n, "long": "x" * 5000}), range(64))
        )
    assert sorted(line["n"] for line in ablation.kept(tmp_path / "x" / "lines.jsonl")) == list(range(64))


@pytest.fixture
def given(tmp_path):
    """The arguments of `run` and `speed` at toy size."""
    (tmp_path / "labels.tsv").write_text("text\tlabel\n" + "red green\tgood\ncat dog\tbad\n" * 6)
    pair = f"toy={tmp_path / 'labels.tsv'},{tmp_path / 'labels.tsv'}"
    return argparse.Namespace(
        shards=write_shards(tmp_path / "shards", train=60, held=20), task=[pair], tasks={}, runs=tmp_path / "runs", shape="tiny", layers=1, length=16,
        batch=4, tokens=256, minutes=None, seeds="1,0", only="canonical;window", jobs=2, epochs=0.5, examples=None, eval_rows=8, log_every=2,
        learning_rate=None, optimizer="adamw", device="cpu", compile="no", keep=False, results=tmp_path / "lines.jsonl", steps=2, warm=1,
    )  # fmt: skip


@pytest.fixture
def here(bench, monkeypatch):
    """The bench, with its pieces done one after the other in this process; and their names."""
    ablation, done = bench("ablation"), []

    def each(call, pieces, jobs):
        for piece in pieces:
            done.append(piece[0])
            call(*piece)
        return []

    monkeypatch.setattr(ablation, "each", each)
    return ablation, done


def test_every_variant_comes_once_before_a_second_seed_and_is_done_once(here, given):
    ablation, done = here
    ablation.run(given)
    assert done == ["canonical, seed 1", "window, seed 1", "canonical, seed 0", "window, seed 0"]
    lines = ablation.kept(given.results)
    assert [(line["variant"], line["seed"]) for line in lines] == [(n.split(",")[0], int(n[-1])) for n in done]
    for line in lines:
        assert line["tokens"] == 256 and line["mlm_loss"] > 0 and "accuracy" in line["tasks"]["toy"]
        assert "tokens_per_second" not in line  # others ran beside it
    assert not list(given.runs.rglob("model"))
    ablation.run(given)
    assert len(done) == 4
    given.tokens = 512
    assert ablation.place("window", 0, given) != ablation.place(
        "window", 0, argparse.Namespace(**vars(given) | {"tokens": 256})
    )


def test_a_fine_tuning_that_was_stopped_gives_no_line(here, given, monkeypatch):
    ablation, _ = here
    from albertkit.train import loop

    real = loop.train

    def train(work, settings, out, **more):
        return Outcome(None, State(), {"accuracy": 0.5}) if "task-" in out.name else real(work, settings, out, **more)

    monkeypatch.setattr(loop, "train", train)
    given.only, given.seeds = "canonical", "0"
    with pytest.raises(SystemExit, match="the same command goes on"):
        ablation.run(given)
    assert not given.results.exists()


@pytest.mark.parametrize("whole", [True, False])
def test_a_training_that_diverges_is_a_result_and_a_wrong_file_is_not(here, given, monkeypatch, whole):
    ablation, _ = here
    from albertkit.train import loop

    def train(*given, **more):
        raise AlbertkitError("it has diverged")

    given.only, given.seeds = "canonical", "0"
    if whole:
        monkeypatch.setattr(loop, "train", train)
        ablation.run(given)
        assert [line["failed"] for line in ablation.kept(given.results)] == ["it has diverged"]
        return
    given.shards = given.shards / "not there"
    with pytest.raises(AlbertkitError):
        ablation.run(given)
    assert not given.results.exists()


# Speed -----------------------------------------------------------------------------------------------------------


def test_speeds_are_measured_alone_and_kept(bench, given, monkeypatch):
    ablation = bench("ablation")
    given.only = "window"
    ablation.speed(given)
    (record,) = json.loads(given.results.read_text())
    assert set(record["tokens_per_second"]) == {"window"} and record["tokens_per_second"]["window"] > 0
    monkeypatch.setattr(ablation, "timed", lambda name, args: 7.0)
    given.only = None
    ablation.speed(given)
    (record,) = json.loads(given.results.read_text())
    assert set(record["tokens_per_second"]) == set(ablation.VARIANTS)
    assert {n for n, value in record["tokens_per_second"].items() if value != 7.0} == {"window"}


def lines_of(*variants: str) -> list[dict]:
    machine = {"device": "CPU", "torch": "2"}
    return [
        {"variant": name, "seed": seed, "recipe": RECIPE, "machine": machine, "parameters": 10, "operations_per_token": 5, "mlm_accuracy": 0.5}
        for name in variants for seed in (0, 1)
    ]  # fmt: skip


def test_the_page_takes_speeds_of_the_same_shape_and_says_when_there_are_none(bench):
    pages = bench("ablation_page")
    lines = lines_of("canonical", "window")
    row = next(line for line in pages.page(lines, {}).splitlines() if "lowers the cost" in line)
    assert row.endswith("| holds: no worse; not seen: fewer; not measured: faster |")
    same = {"shape": "tiny", "layers": None, "length": 16, "batch": 8, "compile": "no"}
    machine = {"device": "H", "torch": "2", "threads": "4"}
    speeds = [
        {"machine": machine, "recipe": same, "tokens_per_second": {"canonical": 2e5, "window": 3e5}},
        {"machine": machine, "recipe": {**same, "length": 32}, "tokens_per_second": {"canonical": 9e5, "window": 1e5}},
    ]
    text = pages.page(lines, {}, speeds)
    row = next(line for line in text.splitlines() if "lowers the cost" in line)
    assert "tokens per second × 1.5 (H, 8 rows, compile no)" in row and "holds: faster, no worse" in row
    assert "| 300.0 |" in text and "900" not in text


# Models that travel ----------------------------------------------------------------------------------------------


def test_models_travel_as_halves_and_come_back_whole(bench, tmp_path, monkeypatch):
    carry, config = bench("carry"), tiny()
    monkeypatch.chdir(tmp_path)
    artifact = Artifact(config, AlbertModel(config).weights(), None, Meta(details={"max_length": 9}))
    for name in ("one", "two"):
        write_artifact(artifact, tmp_path / "runs" / name)
    write_artifact(artifact, tmp_path / "runs" / "few", bits=8)
    carry_names = [carry.Path("runs") / name for name in ("one", "not made", "two", "few")]
    parts = carry.pack(tmp_path / "out" / "all", carry_names, limit=10_000)
    assert len(parts) > 2 and max(part.stat().st_size for part in parts) <= 10_000
    carry.unpack(parts[::-1], tmp_path / "back")
    for name in ("one", "two", "few"):
        before, after = (read_artifact(tmp_path / place / name) for place in ("runs", "back/runs"))
        assert after.config == before.config and after.meta == before.meta
        for key, array in before.weights.items():
            assert after.weights[key].dtype == np.float32
            limit = 0 if name == "few" else 1e-3
            assert np.abs(after.weights[key] - array).max() <= limit * np.abs(array).max()
    assert not (tmp_path / "back" / "runs" / "not made").exists()
    assert carry.unpack(parts, tmp_path / "back") == []
    broken = dataclasses.replace(artifact, weights={n: a + 1e6 for n, a in artifact.weights.items()})
    write_artifact(broken, tmp_path / "runs" / "large")
    with pytest.raises(SystemExit, match="does not fit into halves"):
        carry.pack(tmp_path / "out" / "all", [carry.Path("runs/large")])
    with pytest.raises(SystemExit, match="not below"):
        carry.pack(tmp_path / "out" / "all", [tmp_path / "runs" / "one"])
