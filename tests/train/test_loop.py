"""The loop: it learns, it resumes to the bit, it stops when it should, and it survives what goes wrong."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import math
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
import torch

from albertkit import file_io, folder_replace, tensor_file
from albertkit.albert import Albert
from albertkit.artifact import ArtifactMetadata
from albertkit.errors import AlbertkitError
from albertkit.file_io import add_checksum, take_checksum
from albertkit.folder_replace import lock_folder
from albertkit.train import checkpoint, loop, pretrain
from albertkit.train.checkpoint import TrainLog
from albertkit.train.distributed import ProcessGroup
from albertkit.train.loop import TrainingRun
from albertkit.train.pretrain import PretrainObjective, PretrainTask, known_positions
from albertkit.train.train_settings import PretrainSettings, TrainSettings
from tests.conftest import tiny
from tests.train.conftest import Bench, write_shards
from tests.waiting import wait_until

CLOCKS = ("seconds", "tokens_per_second")


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def read_metrics(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def lines(run: Path, kind: str | None = None) -> list[dict]:
    """The metrics without what the clock says."""
    found = [{k: v for k, v in line.items() if k not in CLOCKS} for line in read_metrics(run / "metrics.jsonl")]
    return [line for line in found if kind in (None, line["kind"])]


class Died(Exception):
    """Stands for the power cut."""


def die_at(monkeypatch, step: int) -> None:
    """The process ends right before an update."""
    before = TrainingRun.step

    def fatal(self, progress):
        if self.state.step == step:
            raise Died
        before(self, progress)

    monkeypatch.setattr(TrainingRun, "step", fatal)


# Learning --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_learns_words_and_order(bench, corpus, tmp_path, monkeypatch):
    """Well below what counting words gives, and the order of numbered sentences is found out; no alarm on the way."""
    monkeypatch.setattr(pretrain, "STUCK_STEPS", 50)
    config = tiny(hidden_size=64, embedding_size=32, intermediate_size=128, num_hidden_layers=2, initializer_range=0.1)
    goals = PretrainSettings(lengths="32", eval_rows=256)
    outcome = Bench(bench.shards, config).train(
        tmp_path, goals, steps=220, batch_size=32, learning_rate=3e-3, log_every=20, evaluations=4
    )
    share = corpus.unigrams() / corpus.unigrams().sum()
    entropy = -float((share[share > 0] * np.log(share[share > 0])).sum())
    found = outcome.metrics
    assert found["mlm_loss"] < entropy - 0.7
    assert found["mlm_accuracy"] > 1.2 * share.max()
    assert found["sop_accuracy"] > 0.8 and found["sop_loss"] < 0.5
    train = lines(tmp_path, "train")
    assert train[-1]["mlm_loss"] < train[0]["mlm_loss"] - 0.7
    losses = [line["mlm_loss"] for line in lines(tmp_path, "eval")]
    assert len(losses) == 4 and losses == sorted(losses, reverse=True)
    assert outcome.state.best["score"] == pytest.approx(losses[-1]) and outcome.model == tmp_path / "model"
    assert [line["learning_rate"] for line in train][-1] < 0.1 * max(line["learning_rate"] for line in train)
    words = {guess.word for guess in Albert(outcome.model).fill_mask("one red green [MASK] white . two")[0][:8]}
    assert words <= {"red", "green", "blue", "white", "black", "grey", "pink", "brown", "."}


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_optimizers_bring_the_loss_down(bench, tmp_path, optimizer):
    rate = {"lamb": 5e-2, "adamw": 5e-3}[optimizer]
    bench.train(tmp_path, steps=40, batch_size=32, optimizer=optimizer, learning_rate=rate, evaluations=0)
    found = lines(tmp_path, "train")
    assert found[-1]["mlm_loss"] < found[0]["mlm_loss"] - 0.25


def test_parts_do_not_change_the_training(bench, tmp_path):
    for micro in (None, 2):
        bench.train(tmp_path / str(micro), steps=6, batch_size=8, micro_batch_size=micro, log_every=1, evaluations=0)
    for one, other in zip(lines(tmp_path / "None"), lines(tmp_path / "2"), strict=True):
        assert one.pop("kind") == other.pop("kind") and one == pytest.approx(other, rel=1e-4)


# Resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_dying_anywhere_and_resuming_gives_the_same_bits(bench, tmp_path, monkeypatch, optimizer):
    """With dropout, too: thirty updates at once, or killed four times at random."""
    dropout = tiny(num_hidden_layers=2, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    given = {"steps": 30, "save_steps": 5, "optimizer": optimizer}
    fitted = Bench(bench.shards, dropout)
    fitted.train(tmp_path / "straight", **given)
    for step in sorted(np.random.default_rng(1).choice(np.arange(1, 30), 4, replace=False).tolist()):
        with monkeypatch.context() as patch:
            die_at(patch, step)
            with pytest.raises(Died):
                fitted.train(tmp_path / "killed", resume=True, **given)
    fitted.train(tmp_path / "killed", resume=True, **given)
    assert weights(tmp_path / "killed") == weights(tmp_path / "straight")
    assert lines(tmp_path / "killed") == lines(tmp_path / "straight")
    one, other = (json.loads((tmp_path / r / "model" / "albertkit.json").read_text()) for r in ("killed", "straight"))
    assert one["metrics"] == other["metrics"] != {}


def test_rows_of_two_lengths_switch_and_resume(bench, tmp_path, monkeypatch):
    goals = PretrainSettings(lengths="16:0.5,32:0.5", eval_rows=64, short_ratio=0.0)
    given = {"steps": 16, "save_steps": 3, "log_every": 1}
    seen = []
    inner = PretrainObjective.forward
    monkeypatch.setattr(
        PretrainObjective,
        "forward",
        lambda self, tokens, *rest: seen.append(tokens.shape) or inner(self, tokens, *rest),
    )
    bench.train(tmp_path / "straight", goals, **given, evaluations=0)
    assert seen == [(8, 14)] * 8 + [(4, 30)] * 8  # as many tokens, in fewer rows
    assert lines(tmp_path / "straight")[-1]["tokens"] == 16 * 128
    for step in (5, 8, 11):
        with monkeypatch.context() as patch:
            die_at(patch, step)
            with pytest.raises(Died):
                bench.train(tmp_path / "killed", goals, resume=True, **given, evaluations=0)
    bench.train(tmp_path / "killed", goals, resume=True, **given, evaluations=0)
    assert weights(tmp_path / "killed") == weights(tmp_path / "straight")
    assert lines(tmp_path / "killed") == lines(tmp_path / "straight")


def test_a_share_of_the_updates_sees_short_rows(bench, tmp_path, monkeypatch):
    seen = []
    inner = PretrainObjective.forward
    monkeypatch.setattr(
        PretrainObjective,
        "forward",
        lambda self, tokens, *rest: seen.append(tokens.shape) or inner(self, tokens, *rest),
    )
    bench.train(
        tmp_path / "straight", PretrainSettings(lengths="32", short_ratio=0.5), steps=40, evaluations=0, save_steps=7
    )
    assert set(seen) == {(8, 30), (32, 6)} and 10 < seen.count((32, 6)) < 30  # eight tokens a row, four times the rows
    with monkeypatch.context() as patch:
        die_at(patch, 20)
        with pytest.raises(Died):
            bench.train(
                tmp_path / "killed",
                PretrainSettings(lengths="32", short_ratio=0.5),
                steps=40,
                evaluations=0,
                save_steps=7,
            )
    bench.train(
        tmp_path / "killed",
        PretrainSettings(lengths="32", short_ratio=0.5),
        resume=True,
        steps=40,
        evaluations=0,
        save_steps=7,
    )
    assert weights(tmp_path / "killed") == weights(tmp_path / "straight")


def test_a_finished_training_resumed_stays_as_it_is(bench, tmp_path):
    first = bench.train(tmp_path, steps=6)
    before = {p.name: p.read_bytes() for p in (tmp_path / "model").iterdir()}
    again = bench.train(tmp_path, resume=True, steps=6)
    assert again.metrics == first.metrics and again.state.step == 6
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before["model.safetensors"]
    metrics = [
        json.loads(text)["metrics"]
        for text in (before["albertkit.json"], (tmp_path / "model" / "albertkit.json").read_bytes())
    ]
    assert metrics[0] == metrics[1] != {}


def test_a_longer_budget_goes_on_and_says_what_changed(bench, tmp_path):
    said: list[str] = []
    bench.train(tmp_path, steps=4)
    outcome = bench.train(tmp_path, resume=True, steps=8, learning_rate=0.01, log=said.append)
    assert outcome.state.step == 8
    assert any("steps 4 → 8" in text and "learning_rate None → 0.01" in text for text in said)
    assert any("resuming from step 4 (512 tokens)" in text for text in said)
    assert json.loads((tmp_path / "settings.json").read_text())["steps"] == 8


def test_settings_are_replaced_in_one_stroke(bench, tmp_path):
    """A kill while they are written must not leave half a file, which no resume could read."""
    bench.train(tmp_path, steps=2)
    with (tmp_path / "settings.json").open() as held:
        bench.train(tmp_path, resume=True, steps=3)
        assert json.load(held)["steps"] == 2  # the old file was not written into


def test_resume_without_a_checkpoint_starts(bench, tmp_path):
    assert bench.train(tmp_path / "new", resume=True, steps=2).state.step == 2


def test_a_folder_that_holds_a_training_is_not_overwritten(bench, tmp_path):
    bench.train(tmp_path, steps=2)
    with pytest.raises(AlbertkitError, match="contains a run at step 2. Resume it with --resume, or choose another"):
        bench.train(tmp_path, steps=2)


def test_another_shape_cannot_resume(bench, tmp_path):
    bench.train(tmp_path, steps=2)
    with pytest.raises(AlbertkitError, match="different shape.*same --shape"):
        Bench(bench.shards, tiny(hidden_size=64)).train(tmp_path, resume=True, steps=4)


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["training.safetensors", "training.json", "model/model.safetensors"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(bench, tmp_path, name):
    straight = bench.train(tmp_path / "straight", steps=9, save_steps=3, evaluations=0)
    bench.train(tmp_path / "m", steps=9, save_steps=3, evaluations=0)
    newest, lines = tmp_path / "m" / "checkpoints" / "step-00000009", []
    flip(newest / name)
    done = bench.train(tmp_path / "m", resume=True, steps=9, save_steps=3, evaluations=0, log=lines.append)
    assert "step-00000009 is damaged" in lines[0] and "Trying the one before" in lines[0]
    assert any("resuming from step 6 " in line for line in lines)
    assert (done.model / "model.safetensors").read_bytes() == (straight.model / "model.safetensors").read_bytes()
    checkpoint.load(newest)  # written again


def test_without_a_whole_checkpoint_the_error_names_the_remedy(bench, tmp_path):
    bench.train(tmp_path, steps=2)
    for file in tmp_path.glob("checkpoints/*/training.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(AlbertkitError, match="No earlier one exists. Start again in another folder"):
        bench.train(tmp_path, resume=True, steps=4)


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "Input/output error"), MemoryError()])
def test_a_checkpoint_that_cannot_be_read_now_is_not_damaged(bench, tmp_path, monkeypatch, failure):
    def fail(*given):
        raise failure

    bench.train(tmp_path, steps=4, save_steps=2, evaluations=0)
    for module, name in ((file_io, "read_file"), (Path, "read_bytes"), (tensor_file.np, "empty")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises((OSError, MemoryError, AlbertkitError)) as caught:
                bench.train(tmp_path, resume=True, steps=6)
        assert not isinstance(caught.value, checkpoint.DamagedCheckpoint) and "damaged" not in str(caught.value)
        assert checkpoint.saved_steps(tmp_path) == [2, 4]


@pytest.mark.parametrize("name", ["training.safetensors", "training.json", "model/model.safetensors"])
def test_a_missing_file_is_damage(bench, tmp_path, name):
    bench.train(tmp_path, steps=2)
    folder = checkpoint.checkpoint_folder(tmp_path, 2)
    (folder / name).unlink()
    with pytest.raises(checkpoint.DamagedCheckpoint, match="step-00000002 is damaged"):
        checkpoint.load(folder)


def test_a_run_of_an_earlier_version_is_not_called_changed(bench, tmp_path):
    bench.train(tmp_path, steps=2)
    for file in tmp_path.glob("checkpoints/*/training.json"):
        file.write_text(json.dumps(take_checksum(file, json.loads(file.read_text()))))
    with pytest.raises(
        AlbertkitError, match="an earlier version .* cannot be resumed.*Start again in another"
    ) as error:
        bench.train(tmp_path, resume=True, steps=4)
    assert "changed" not in str(error.value)


def test_a_damaged_best_checkpoint_is_told_and_the_last_is_the_result(bench, tmp_path, monkeypatch):
    scores, said = iter([3.0, 1.0, 2.0, 2.5]), []

    def evaluate(self):
        best = checkpoint.checkpoint_folder(tmp_path, 4)
        if (score := next(scores, 9.0)) == 2.5:
            flip(best / "training.safetensors")
        return {"mlm_loss": score}

    monkeypatch.setattr(pretrain.PretrainTask, "evaluate", evaluate)
    bench.train(tmp_path, steps=8, evaluations=4, load_best=True, log=said.append)
    assert said[-1] == "the best checkpoint is damaged; the result is the last one, of step 8"


def test_no_checkpoint_to_return_to_is_an_error(bench, tmp_path):
    run = SimpleNamespace(output=tmp_path)
    with pytest.raises(AlbertkitError, match="no checkpoint to return to"):
        TrainingRun.restore_newest(run, [])  # type: ignore[arg-type]


def test_at_least_two_checkpoints_are_kept(bench, tmp_path):
    bench.train(tmp_path, steps=6, save_steps=1, evaluations=0, keep_checkpoints=1)
    assert checkpoint.saved_steps(tmp_path) == [5, 6]


def test_a_second_run_in_the_same_folder_is_an_error_that_names_the_first(bench, tmp_path):
    with lock_folder(tmp_path), pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_replace, "_locks", set())  # as another process sees it
        with pytest.raises(AlbertkitError, match=rf"in use: process {os.getpid()} on "):
            bench.train(tmp_path, steps=2)
    assert checkpoint.saved_steps(tmp_path) == []
    assert bench.train(tmp_path, steps=2).state.step == 2


def test_what_a_kill_left_half_written_is_swept_away(bench, tmp_path):
    bench.train(tmp_path, steps=2)
    left = [tmp_path / "checkpoints" / name for name in (".step-00000009.abc.part", ".step-00000001.old")]
    for path in left:
        path.mkdir()
        (path / "training.json").write_text("{")
    bench.train(tmp_path, resume=True, steps=4)
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize("rest", ['{"step": 9', "garbage\n", '{"kind": "train"}\n', "[1]\n", ""])
def test_metrics_behind_the_checkpoint_are_cut_off(tmp_path, rest):
    """Whole lines of later steps, and a line that a kill broke off."""
    line = lambda step: json.dumps({"step": step, "kind": "train"}) + "\n"  # noqa: E731
    file = tmp_path / "metrics.jsonl"
    file.write_text(line(2) + line(4) + line(7) * (rest == "") + rest + line(3))
    report = TrainLog(tmp_path, TrainSettings(steps=9, tensorboard=False), step=4, progress_bar=False)
    report.write(5, "train", {"mlm_loss": 1.23456789})
    report.close()
    assert file.read_text() == line(2) + line(4) + '{"step": 5, "kind": "train", "mlm_loss": 1.234568}\n'
    assert [found["step"] for found in read_metrics(file)] == [2, 4, 5]


# Stopping --------------------------------------------------------------------------------------------------------

main_thread = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread alone"
)


@main_thread
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_rest_is_the_same(bench, tmp_path, monkeypatch, number):
    said: list[str] = []
    inner = TrainingRun.step

    def step(self, progress):
        inner(self, progress)
        if self.state.step == 7:
            os.kill(os.getpid(), number)

    given = {"steps": 12, "log_every": 1, "evaluations": 1}
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "step", step)
        outcome = bench.train(tmp_path / "stopped", log=said.append, **given)
    assert outcome.model is None and outcome.state.step == 7 and checkpoint.saved_steps(tmp_path / "stopped")[-1] == 7
    assert said[-1].startswith("stopped at step 7 and saved") and "--resume" in said[-1]
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    bench.train(tmp_path / "stopped", resume=True, **given)
    bench.train(tmp_path / "straight", **given)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "straight")
    assert lines(tmp_path / "stopped") == lines(tmp_path / "straight")


@main_thread
def test_a_second_interrupt_breaks_off():
    with loop.stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_set
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            wait_until(lambda: False, "the second interrupt had no effect")


def test_training_works_beside_the_main_thread(bench, tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(bench.train(tmp_path, steps=2)))
    thread.start()
    thread.join()
    assert found[0].state.step == 2


# Budgets ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """The loop's clock, which advances by a hundredth of a second whenever it is read."""
    ticks = itertools.count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 100))


def test_a_budget_in_minutes_ends_near_its_time(bench, tmp_path, clock):
    outcome = bench.train(tmp_path, minutes=0.025, log_every=1000)
    assert 1.5 <= outcome.state.seconds < 1.6
    rates = [line["learning_rate"] for line in lines(tmp_path, "train")]
    assert outcome.state.step > 10 and rates[-1] < 1e-4  # the schedule went to its end


def test_minutes_go_on_counting_after_a_resume(bench, tmp_path, clock):
    """A checkpoint that says 100 seconds were spent: half a second of 100.5 is left."""
    bench.train(tmp_path, steps=4)
    file = checkpoint.checkpoint_folder(tmp_path, 4) / "training.json"
    content = take_checksum(file, json.loads(file.read_text()))
    file.write_text(json.dumps(add_checksum({**content, "seconds": 100.0})))
    outcome = bench.train(tmp_path, resume=True, minutes=100.5 / 60)
    assert 100.5 <= outcome.state.seconds < 100.6


def test_a_budget_in_tokens(bench, tmp_path):
    outcome = bench.train(tmp_path, tokens=1000)
    assert outcome.state.step == 8 and outcome.state.tokens == 1024  # 8 rows of 16 at a time


# What goes wrong -------------------------------------------------------------------------------------------------


def spoil(monkeypatch, when) -> list[torch.Tensor]:
    """The loss is not a number where `when(call)` says so; the rows of each call are kept."""
    inner = PretrainObjective.forward
    rows: list[torch.Tensor] = []

    def forward(self, *given):
        loss, sums = inner(self, *given)
        if not self.training:
            return loss, sums
        rows.append(given[0])
        bad = math.nan if when(len(rows) - 1) else 1.0
        return loss * bad, sums * bad

    monkeypatch.setattr(PretrainObjective, "forward", forward)
    return rows


def test_not_a_number_rewinds_to_the_last_checkpoint_at_half_the_rate(bench, tmp_path, monkeypatch):
    said: list[str] = []
    rows = spoil(monkeypatch, lambda call: call == 12)
    outcome = bench.train(
        tmp_path, steps=20, save_steps=5, schedule="constant", warmup_ratio=0.0, log=said.append, evaluations=0
    )
    assert outcome.state.step == 20 and outcome.state.backoff == 0.5
    assert any("rewinding to step 10 with 0.5 × the learning rate" in text for text in said)
    assert torch.equal(rows[15], rows[10]) and not torch.equal(rows[15], rows[14])  # the data went back as well
    rates = {line["step"]: line["learning_rate"] for line in lines(tmp_path, "train")}
    assert rates == {5: 1e-3, 10: 1e-3, 15: 5e-4, 20: 5e-4}
    assert [(line["step"], line["to"]) for line in lines(tmp_path, "rewind")] == [(15, 10)]
    assert all(
        np.isfinite(t).all() for t in safetensors.numpy.load_file(tmp_path / "model" / "model.safetensors").values()
    )


def test_not_a_number_is_never_saved(bench, tmp_path, monkeypatch):
    """A checkpoint falls due between the accident and the line of metrics that shows it."""
    spoil(monkeypatch, lambda call: call == 12)
    outcome = bench.train(tmp_path, steps=20, save_steps=1, keep_checkpoints=30, log_every=10, evaluations=6)
    assert outcome.state.step == 20 and outcome.state.backoff == 0.5
    for step in checkpoint.saved_steps(tmp_path):
        checkpoint.load(checkpoint.checkpoint_folder(tmp_path, step))  # refuses what is not finite


def test_three_rewinds_are_enough(bench, tmp_path, monkeypatch):
    spoil(monkeypatch, lambda call: call >= 7)
    with pytest.raises(AlbertkitError, match=r"mlm_loss nan.*after 3 rewinds. Lower --learning-rate.*step-00000005"):
        bench.train(tmp_path, steps=20, save_steps=5)
    assert [line["backoff"] for line in lines(tmp_path, "rewind")] == [0.5, 0.25, 0.125]
    monkeypatch.undo()
    assert bench.train(tmp_path, resume=True, steps=20).state.step == 20


def test_a_rate_beyond_all_reason_is_found_out(bench, tmp_path):
    with pytest.raises(AlbertkitError, match="after 3 rewinds. Lower --learning-rate"):
        bench.train(
            tmp_path, steps=30, learning_rate=1e14, max_grad_norm=0, warmup_ratio=0.0, save_steps=2, log_every=3
        )


def test_collapse_is_told_with_what_to_change(bench, tmp_path, monkeypatch):
    """A rate of nothing: masked words are guessed worse than by counting words."""
    monkeypatch.setattr(pretrain, "STUCK_STEPS", 10)
    monkeypatch.setattr(pretrain, "STUCK_LINES", 4)
    with pytest.raises(
        AlbertkitError,
        match=r"stopped at step 30: .* is 4\.\d\d, above the 3\.55 of .*: .*half the --learning-rate.*--no-alarm.* last checkpoint",
    ):
        bench.train(tmp_path, steps=30, learning_rate=1e-9, evaluations=0)
    assert checkpoint.saved_steps(tmp_path) == [0]  # what has collapsed is not what a resume should go on from


def test_a_loss_that_jumps_is_an_alarm_that_rewinds(bench):
    work = bench.work(TrainSettings(steps=60, device="cpu"))
    assert work.check_metrics({"mlm_loss": 2.0}, 0.2, 60) is None
    alarm = work.check_metrics({"mlm_loss": 2.6}, 0.5, 80)
    assert alarm is not None and alarm.rewind and "was 2.00 and is 2.60" in alarm.text
    assert (
        work.check_metrics({"mlm_loss": 2.4}, 0.5, 80) is None
        and work.check_metrics({"mlm_loss": 9.0}, 0.5, 10) is None
    )
    assert work.data_position()["lowest"] == {"16": 2.0}


def test_longer_rows_may_start_with_a_higher_loss(bench):
    """When the rows grow, positions that were never seen make the loss jump: no divergence."""
    work = bench.work(TrainSettings(steps=60, device="cpu"), PretrainSettings(lengths="16:0.5,32:0.5"))
    assert (
        work.check_metrics({"mlm_loss": 2.0}, 0.4, 60) is None
        and work.check_metrics({"mlm_loss": 7.0}, 0.6, 80) is None
    )
    assert work.check_metrics({"mlm_loss": 9.0}, 0.7, 90) is not None
    again = bench.work(TrainSettings(steps=60, device="cpu"), PretrainSettings(lengths="16:0.5,32:0.5"))
    again.restore(work.to_artifact({}, checkpoint.TrainState()), work.data_position())
    assert again.lowest == {16: 2.0, 32: 7.0}


def test_positions_that_longer_rows_need_begin_as_those_that_are_known(bench):
    processes, goals = (
        ProcessGroup(0, 1, torch.device("cpu")),
        PretrainSettings(lengths="16:0.5,32:0.5", short_ratio=0.0),
    )
    work = bench.work(TrainSettings(steps=60, device="cpu"), goals)
    table = work.model.encoder.embeddings.position.weight
    before = table.detach().clone()
    work.next_batch(0, 0.0, processes)
    assert torch.equal(table, before) and work.data_position()["positions"] == 16
    again = bench.work(TrainSettings(steps=60, device="cpu"), goals)
    again.restore(work.to_artifact({}, checkpoint.TrainState()), work.data_position())
    for one in (work, again):
        one.next_batch(40, 0.6, processes)
        table = one.model.encoder.embeddings.position.weight
        assert torch.equal(table[:16], before[:16])
        assert torch.equal(table[16:31], before[1:16]) and torch.equal(table[31], before[1])
    made = work.to_artifact({}, checkpoint.TrainState())
    assert made.metadata.history[-1]["positions"] == 32
    assert known_positions(made) == 32 and known_positions(dataclasses.replace(made, metadata=ArtifactMetadata())) == 40
    whole = PretrainTask(
        work.shards,
        made.config,
        work.settings,
        PretrainSettings(lengths="40"),
        dataclasses.replace(made, metadata=ArtifactMetadata()),
    )
    last = whole.model.encoder.embeddings.position.weight.detach().clone()
    whole.next_batch(0, 0.0, processes)
    assert torch.equal(whole.model.encoder.embeddings.position.weight, last)  # nothing is known to be missing


def test_a_training_that_diverges_goes_back_and_learns_on(bench, tmp_path, monkeypatch):
    """The weights are shaken once, at update 62: the next line of metrics sees it and goes back to step 60."""
    before, said = TrainingRun.step, []

    def shaken(self, progress):
        before(self, progress)
        if self.state.step == 62 and not self.rewinds:
            with torch.no_grad():
                for weight in self.task.objective.parameters():
                    weight.mul_(20)

    monkeypatch.setattr(TrainingRun, "step", shaken)
    outcome = bench.train(tmp_path, steps=80, save_steps=20, learning_rate=3e-3, evaluations=0, log=said.append)
    assert any("has diverged" in text and "rewinding to step 60" in text for text in said), said
    assert outcome.state.step == 80 and lines(tmp_path, "train")[-1]["mlm_loss"] < 4


def test_the_alarm_waits_and_keeps_quiet_when_words_are_learnt(bench):
    def told(losses, progress=0.5, step=1000, **given):
        work = bench.work(TrainSettings(steps=2000, device="cpu", **given))
        return [work.check_metrics({"mlm_loss": work.entropy + loss}, progress, step) for loss in losses]

    stuck = [0.1, 0.0] * 10
    assert "collapsed" in str(told(stuck)[19]) and told(stuck)[:19] == [None] * 19
    assert told([0.1] * 12 + [-0.01] + [0.1] * 19) == [None] * 32  # one line below the entropy is not stuck
    assert told([-0.2] * 30) == told([0.1] * 30, progress=0.3) == told([0.1] * 30, step=400) == [None] * 30
    assert told([0.1] * 30, warmup_ratio=0.3) == [None] * 30
    assert told([0.1] * 30, 0.7, warmup_ratio=0.3)[19] is not None


def test_a_slow_run_is_not_stopped_and_the_alarm_can_be_switched_off(bench):
    slow = bench.work(TrainSettings(steps=2000, device="cpu"))
    losses = [slow.entropy + 3 - 0.003 * line + 0.05 * (line % 2) for line in range(100)]
    assert not any(slow.check_metrics({"mlm_loss": loss}, 0.5, 1000) for loss in losses)
    quiet = bench.work(TrainSettings(steps=2000, device="cpu"), PretrainSettings(lengths="16", alarm=False))
    assert not any(quiet.check_metrics({"mlm_loss": loss}, 0.5, 1000) for loss in [2.0, *[9.0] * 40])


@pytest.mark.parametrize("file", ["model", "training"])
def test_a_full_disk_leaves_the_earlier_checkpoint_and_a_resume_works(bench, tmp_path, monkeypatch, file):
    def full(*given, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bench.train(tmp_path / "straight", steps=12, evaluations=0)
    with monkeypatch.context() as patch:
        die_at(patch, 6)
        with pytest.raises(Died):
            bench.train(tmp_path / "full", steps=12, save_steps=4, evaluations=0)
    before = {p: p.read_bytes() for p in (tmp_path / "full" / "checkpoints").rglob("*") if p.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(*((safetensors.numpy, "save_file", full) if file == "model" else (checkpoint, "save_file", full)))
        with pytest.raises(
            AlbertkitError, match="step-00000008 failed: No space left on device|/model failed: No space"
        ):
            bench.train(tmp_path / "full", resume=True, steps=12, save_steps=4, evaluations=0)
    after = {p: p.read_bytes() for p in (tmp_path / "full" / "checkpoints").rglob("*") if p.is_file()}
    assert before == after and checkpoint.saved_steps(tmp_path / "full")[-1] == 4
    bench.train(tmp_path / "full", resume=True, steps=12, save_steps=4, evaluations=0)
    assert weights(tmp_path / "full") == weights(tmp_path / "straight")


def test_a_folder_that_cannot_be_written_says_so(bench, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AlbertkitError, match="cannot be written: Not a directory. Choose another folder"):
        bench.train(tmp_path / "file" / "run", steps=2)
    if os.getuid() == 0:
        return  # root may write anywhere
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(AlbertkitError, match="cannot be written: Permission denied. Choose another folder"):
        bench.train(tmp_path / "locked" / "run", steps=2)


def test_out_of_memory_names_the_remedy(bench, tmp_path, monkeypatch):
    def full(self, *given):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(PretrainObjective, "forward", full)
    with pytest.raises(AlbertkitError, match="out of memory with 8 rows. Set --micro-batch-size to half"):
        bench.train(tmp_path, steps=2)


# Files -----------------------------------------------------------------------------------------------------------


def test_the_last_checkpoints_and_the_best_remain(bench, tmp_path, monkeypatch):
    scores = iter([3.0, 1.0, 2.0, 2.5, 2.6, 2.7])
    monkeypatch.setattr(pretrain.PretrainTask, "evaluate", lambda self: {"mlm_loss": next(scores)})
    outcome = bench.train(tmp_path, steps=12, evaluations=6, save_steps=1, keep_checkpoints=3)
    assert outcome.state.best == {"step": 4, "score": 1.0}
    assert checkpoint.saved_steps(tmp_path) == [4, 10, 11, 12]
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [f"step-{n:08d}" for n in (4, 10, 11, 12)]


def test_a_checkpoint_opens_as_a_model(bench, tmp_path):
    bench.train(tmp_path, steps=4, save_steps=2)
    for folder in (tmp_path / "checkpoints" / "step-00000002" / "model", tmp_path / "model"):
        guesses = Albert(folder).fill_mask("one cat [MASK] cow .")
        assert len(guesses[0]) >= 1 and 0 < guesses[0][0].score <= 1
        made = json.loads((folder / "albertkit.json").read_text())["history"]
        assert made[-1]["step"] == "pretrain" and made[-1]["settings"]["batch_size"] == 8


def test_tensorboard_is_written(bench, tmp_path):
    bench.train(tmp_path, steps=6, log_every=2, tensorboard=True)
    events = list((tmp_path / "tensorboard").glob("events.*"))
    data = b"".join(path.read_bytes() for path in events)
    assert b"train/mlm_loss" in data and b"eval/sop_accuracy" in data


def test_lines_of_metrics_hold_what_the_page_promises(bench, tmp_path):
    bench.train(tmp_path, steps=7, log_every=3)
    found = read_metrics(tmp_path / "metrics.jsonl")
    train = [line for line in found if line["kind"] == "train"]
    assert [line["step"] for line in train] == [3, 6, 7]  # and the last one, wherever it falls
    names = {"mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy", "grad_norm", "learning_rate", *CLOCKS}
    assert names | {"step", "kind", "tokens"} == set(train[0])
    assert [line["tokens"] for line in train] == [384, 768, 896]
    assert [line["step"] for line in found if line["kind"] == "eval"] == [4, 7]


@pytest.mark.parametrize("held", [0, 1])
def test_a_corpus_with_hardly_any_held_out_text_trains(tmp_path, held):
    """Nothing to evaluate on is no score of zero."""
    shards = write_shards(tmp_path / "shards", train=40, held=held, parts=1)
    goals = PretrainSettings(lengths="128", eval_rows=64)
    outcome = Bench(shards, tiny(max_position_embeddings=128)).train(tmp_path / "run", goals, steps=3, batch_size=2)
    assert outcome.metrics == {} and outcome.state.best == {} and lines(tmp_path / "run", "eval") == []


def test_a_held_out_split_that_happens_to_give_no_row_is_no_score(bench, monkeypatch):
    """Short documents give a row by chance, and few of them perhaps none."""
    work = bench.work(TrainSettings(steps=1, device="cpu"))
    monkeypatch.setattr(pretrain.RowStream, "rows_in_group", property(lambda self: 0))
    assert work.evaluate() == {}
