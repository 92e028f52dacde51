"""What the benches that train are made of: work in several processes, lines that are kept, speeds of their own, models that travel."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given as given_

from albertkit.artifact import Artifact, Meta, read_artifact, write_artifact
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.train.checkpoint import TrainState
from albertkit.train.training_task import TrainResult
from tests.conftest import ROOT, program, tiny
from tests.pieces import endless, noted
from tests.train.conftest import write_shards
from tests.waiting import wait_until

PAGES = program("bench/ablation_page")
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
        wait_until((tmp_path / "a").exists)
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
        learning_rate=None, optimizer="adamw", device="cpu", compile="no", keep=False, results=tmp_path / "lines.jsonl", steps=2, warm=1, rounds=1,
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
        return (
            TrainResult(None, TrainState(), {"accuracy": 0.5})
            if "task-" in out.name
            else real(work, settings, out, **more)
        )

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


def test_the_best_of_several_rounds_counts_and_an_older_one_does_not(bench, given, monkeypatch):
    ablation, rates = bench("ablation"), iter([9.0, 3.0, 5.0, 4.0, 2.0])
    monkeypatch.setattr(ablation, "timed", lambda name, args: next(rates))
    given.only = "canonical"
    ablation.speed(given)
    given.only, given.rounds = "canonical;window", 2
    ablation.speed(given)
    (record,) = json.loads(given.results.read_text())
    assert record["tokens_per_second"] == {"canonical": 4.0, "window": 5.0}


def test_the_page_says_where_nobody_learnt_sentence_order(bench):
    pages = bench("ablation_page")
    lines = [{**line, "sop_accuracy": 0.52} for line in lines_of("canonical", "gru")]
    assert "Nobody learnt sentence order" in pages.page(lines, {})
    lines[-1]["sop_accuracy"] = lines[-2]["sop_accuracy"] = 0.7
    assert "Nobody learnt sentence order" not in pages.page(lines, {})


@pytest.mark.parametrize(("window", "said"), [((2.0, 0.97), "does not pay"), ((2.0, 0.9), "pays from 64 tokens")])
def test_a_window_pays_where_it_is_clearly_faster(bench, window, said):
    rows = [{"length": n, "texts": 1, "full": 1.0, "window": w} for n, w in zip((32, 64), window, strict=True)]
    where = {"device": "CPU", "torch": "2", "threads": "2"}
    text = bench("ablation_page").page(
        [], {"torch, CPU": {"shape": "tiny", "window": 4, "machine": where, "rows": rows}}
    )
    assert said in text


def lines_of(*variants: str) -> list[dict]:
    machine = {"device": "CPU", "torch": "2"}
    return [
        {"variant": name, "seed": seed, "recipe": RECIPE, "machine": machine, "parameters": 10, "operations_per_token": 5, "mlm_accuracy": 0.5}
        for name in variants for seed in (0, 1)
    ]  # fmt: skip


def row_of(page: str, words: str) -> list[str]:
    """The cells of the one row with these words."""
    (row,) = [line for line in page.splitlines() if words in line]
    return [cell.strip() for cell in row.split("|")[1:-1]]


def test_the_page_takes_speeds_of_the_same_shape_and_says_when_there_are_none(bench):
    pages = bench("ablation_page")
    lines = lines_of("canonical", "window")
    assert (
        row_of(pages.page(lines, {}), "lowers the cost")[-1]
        == "cannot tell: worse; does not hold: fewer; not measured: faster"
    )
    machine = {"device": "H", "torch": "2", "threads": "4"}

    def record(window: float, **recipe) -> dict:
        given = {"shape": "tiny", "layers": None, "length": 16, "batch": 8, **recipe}
        return {"machine": machine, "recipe": given, "tokens_per_second": {"canonical": 2e5, "window": window}}

    updates = record(1e5, what="updates", compile="no")
    row = row_of(pages.page(lines, {}, [updates]), "lowers the cost")
    assert row[-1].endswith("not measured: faster")  # of updates, which are not what the document speaks of
    text = pages.page(lines, {}, [updates, record(3e5, what="reading"), record(1e5, what="reading", length=32)])
    row = row_of(text, "lowers the cost")
    assert "tokens per second × 1.5 (reading, H, 8 rows)" in row[-2] and row[-1].startswith(
        "holds: faster; cannot tell: worse"
    )
    assert "| 300.0 |" in text and "| 100.0 |" in text and "updates, H, 8 rows, compile no" in text


def test_every_claim_has_a_row_whatever_was_measured(bench):
    """Also those whose variant did not train, or was not tried."""
    pages = bench("ablation_page")
    lines = lines_of("canonical", "gru")
    lines += [{**line, "failed": "it has diverged"} for line in lines_of("consistency dot")]
    lines += [{**lines_of("gru")[0], "seed": 2, "failed": "it fell asleep"}]
    text = pages.page(lines, {})
    for claim in pages.CLAIMS:
        assert row_of(text, f"| {claim.says} |")[-1]
    assert row_of(text, "may be a dot product")[-2:] == [
        "no training came to its end: it has diverged",
        "not seen: no worse",
    ]
    assert row_of(text, "recurrent network")[-2].startswith("1 trainings failed")
    assert row_of(text, "layer_decay_rate speeds")[-2:] == ["", "not measured"]


def scored(variant: str, losses: tuple[float, float], skill: tuple[float, float], right: float = 0.7) -> list[dict]:
    """Two seeds with a loss and a task each."""
    return [
        {**line, "mlm_loss": loss, "tasks": {"toy": {"accuracy": right, "mcc": mcc}}}
        for line, loss, mcc in zip(lines_of(variant), losses, skill, strict=True)
    ]


@pytest.mark.parametrize(
    ("losses", "skill", "verdict"),
    [
        ((1.0, 1.01), (0.2, 0.21), "holds: better"),
        ((3.0, 3.01), (0.2, 0.21), "does not hold: better"),
        ((1.0, 1.01), (0.1, 0.11), "partly: better"),
        ((2.0, 2.01), (0.2, 0.21), "cannot tell: better"),
    ],
)
def test_a_lower_loss_is_better_and_skill_is_not_how_often_the_frequent_class_is_right(bench, losses, skill, verdict):
    pages = bench("ablation_page")
    lines = scored("canonical", (2.0, 2.01), (0.2, 0.21)) + scored("gru", losses, skill, right=0.9)
    lines += scored("window", (2.0, 2.01), (0.2, 0.21))  # for the spread
    assert row_of(pages.page(lines, {}), "recurrent network")[-1] == verdict


def test_one_seed_is_said(bench):
    pages = bench("ablation_page")
    lines = scored("canonical", (2.0, 2.01), (0.2, 0.21)) + scored("gru", (1.0, 1.0), (0.2, 0.2))[:1]
    assert row_of(pages.page(lines, {}), "recurrent network")[-1].endswith(" (one seed)")


def test_faster_on_one_machine_of_two_is_partly_so(bench):
    pages = bench("ablation_page")
    given = {"shape": "tiny", "layers": None, "length": 16, "what": "reading"}
    machine = {"device": "H", "torch": "2", "threads": "4"}
    speeds = [
        {"machine": machine, "recipe": {**given, "batch": n}, "tokens_per_second": {"canonical": 1.0, "low_rank": fast}}
        for n, fast in ((8, 2.0), (16, 1.0))
    ]
    page = pages.page(lines_of("canonical", "low_rank"), {}, speeds)
    assert "partly: faster" in row_of(page, "Attention factorised")[-1]
    assert page.count("`python bench/ablation.py reading --shape tiny --length 16 --batch") == 2


def test_every_variant_is_compared_with_something(bench):
    ablation, pages = bench("ablation"), bench("ablation_page")
    named = {name for claim in pages.CLAIMS for name in (claim.variant, claim.against)}
    assert named == set(ablation.VARIANTS)


def test_the_page_says_how_to_do_it_again(bench):
    lines = lines_of("canonical")
    for line in lines:
        line["recipe"] = {**RECIPE, "learning_rate": 0.001, "tasks": ["mrpc", "sst-2"], "corpus": "5 tokens (ab)"}
    text = bench("ablation_page").page(lines, {})
    assert (
        "`python bench/ablation.py run SHARDS --task mrpc=TRAIN,DEV --task sst-2=TRAIN,DEV --shape tiny --length 16 "
        "--tokens 512 --learning-rate 0.001 --seeds 0,1` The corpus: 5 tokens (ab)."
    ) in text


@given_(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), st.integers(-1000, 1000))
def test_two_seeds_that_happen_to_agree_prove_nothing(other, shift):
    """The spread of the other variants counts: two equal numbers do not make a small difference one that counts."""
    lines = [
        {"variant": name, "seed": seed, "mlm_accuracy": value}
        for name, values in (("a", (500, 500)), ("b", (500 + shift, 500 + shift)), ("c", other))
        for seed, value in enumerate(values)
    ]
    spread, free = PAGES.spreads(lines)["mlm_accuracy"]
    assert free == 3 and spread == pytest.approx(abs(other[0] - other[1]) / 6**0.5)
    found = PAGES.differs([500, 500], [500 + shift] * 2, (spread, free))
    if abs(shift) > 5.81 * spread:
        assert found == ("lower" if shift > 0 else "higher")
    elif abs(shift) < 5.79 * spread or not shift:
        assert found == "same"


def test_lines_of_two_corpora_are_not_compared(here, given, tmp_path):
    ablation, done = here
    given.only, given.seeds, given.task = "canonical", "0", []
    ablation.run(given)
    before, given.shards = given.shards, write_shards(tmp_path / "others", train=64, held=20)
    ablation.run(given)
    first, second = ablation.kept(given.results)
    assert len(done) == 2 and first["recipe"]["corpus"] != second["recipe"]["corpus"] == ablation.corpus(given.shards)
    given.shards = before
    ablation.run(given)
    assert len(done) == 2


def test_speeds_of_reading_go_beside_those_of_updates(bench, given):
    ablation = bench("ablation")
    given.only, given.seconds = "canonical;gru;layer_decay 0.9;no sharing", 0.0
    ablation.reading(given)
    given.only = "canonical"
    ablation.speed(given)
    reading, updates = json.loads(given.results.read_text())
    assert reading["recipe"]["what"] == "reading" and updates["recipe"]["what"] == "updates"
    assert set(reading["tokens_per_second"]) == {
        "canonical",
        "gru",
        "no sharing",
    }  # with the decay it reads the same way
    assert min(reading["tokens_per_second"].values()) > 0


def test_lengths_are_timed_with_weights_as_models_have_them(bench, tmp_path, monkeypatch):
    """Large ones make attention so sharp that it computes with denormal numbers, which is another time."""
    ablation, path = bench("ablation"), tmp_path / "lengths.json"
    monkeypatch.setattr(ablation, "usual", lambda call, seconds: calls.append(call()) or 0.5)
    calls: list = []
    given = argparse.Namespace(shape="tiny", window=4, lengths="8,32", tokens=32, device="cpu", threads=1, seconds=0.0)
    given.results = path
    ablation.lengths(given)
    found = json.loads(path.read_text())
    assert [(row["length"], row["texts"]) for row in found["runtime, CPU"]["rows"]] == [(8, 4), (32, 1)]
    full, window = [call[0] for call in calls if call is not None][-2:]  # of the runtime, at the longer length
    assert np.isfinite(full).all() and not np.allclose(full, window) and np.abs(full - window).max() < 1
    text = bench("ablation_page").page([], found)
    assert "### runtime, CPU" in text and "| 32 | 1 | 500.00 | 500.00 | 1.00 |" in text
    assert "It does not pay at these lengths." in text


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
