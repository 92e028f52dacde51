"""Recovery after pruning: quality comes back, a killed one goes on to the same weights, and the verb tells what was
lost.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, write_artifact
from albertkit.cli.entry_point import app
from albertkit.compress.prune import PruneSettings, prune
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.tasks.readers.labelled_files import ReadOptions
from albertkit.tokenizer import Tokenizer
from albertkit.train import finetune as tune
from albertkit.train import loop, recover
from albertkit.train.distill_data import DistillSettings, RecoverySettings, data_for_model, parse_distill_settings
from albertkit.train.recover import Recovery, RecoveryJob, recover_model
from albertkit.train.train_settings import FinetuneSettings
from tests.conftest import tiny
from tests.train.conftest import VOCAB
from tests.train.test_finetune import tagged, texts

QUICK = {"batch_size": 16, "learning_rate": 2e-3, "device": "cpu"}
CUT = PruneSettings(ffn=8, heads=1, fit=False)


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Artifact:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    torch.manual_seed(0)
    config = tiny(vocab_size=len(VOCAB), initializer_range=0.15, max_position_embeddings=64)
    return Artifact(config, AlbertModel(config).weights(), Tokenizer.from_vocab(path))


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """How many animals: a model that pruning hurts."""
    options = FinetuneSettings(
        epochs=6, max_length=40, batch_size=16, optimizer="adamw", learning_rate=3e-3, device="cpu"
    )
    data = texts(240, 0, "regression"), texts(60, 9, "regression")
    return tune.finetune_examples("classify", *data, tmp_path_factory.mktemp("whole"), start, options).model


def test_recovery_improves_a_pruned_model(whole, tmp_path):
    data = data_for_model(read_artifact(whole), texts(240, 0, "regression"), texts(120, 21, "regression"))
    recovery = Recovery(data, RecoverySettings(epochs=5, **QUICK), tmp_path / "run")
    report = prune(whole, tmp_path / "small", CUT, [e.text for e in data.train], recovery=recovery)
    before, pruned, after = (recovery.scores[name].value for name in ("full", "pruned", "recovered"))
    assert before > 0.9 and pruned < before - 0.05 and after > pruned + 0.6 * (before - pruned), recovery.scores
    made = read_artifact(tmp_path / "small")
    assert (report.heads, report.ffn) == (1, 8) == (made.config.num_attention_heads, made.config.intermediate_size)
    assert [step["step"] for step in made.metadata.history[-2:]] == [
        "prune",
        "recover",
    ] and made.metadata.task == "classify"
    assert made.metadata.metrics["dev"]["spearman"] == pytest.approx(after, abs=1e-3)


def test_recovery_improves_vectors_without_a_task(start, tmp_path):
    lines, held = [e.text for e in texts(200, 5)], [e.text for e in texts(50, 6)]
    write_artifact(dataclasses.replace(start, metadata=ArtifactMetadata(task="embed")), tmp_path / "whole")
    artifact = read_artifact(tmp_path / "whole")
    recovery = Recovery(data_for_model(artifact, lines, held), RecoverySettings(epochs=5, **QUICK), tmp_path / "run")
    prune(tmp_path / "whole", tmp_path / "small", dataclasses.replace(CUT, vocabulary=lines), lines, recovery=recovery)
    scores = {name: score.value for name, score in recovery.scores.items()}
    assert scores["full"] == pytest.approx(1, abs=1e-5) and scores["recovered"] > scores["pruned"] + 0.05, scores
    made = read_artifact(tmp_path / "small")
    assert [step["step"] for step in made.metadata.history] == ["prune", "recover", "prune"]  # words go last
    assert made.config.vocab_size < artifact.config.vocab_size and made.metadata.task == "embed"


def test_killed_recovery_resumes_to_the_same_weights(whole, tmp_path, monkeypatch):
    artifact = read_artifact(whole)
    data = data_for_model(artifact, texts(80, 0, "regression"), ())
    job = RecoveryJob(artifact, artifact, data, RecoverySettings(epochs=3, **QUICK), "recover")
    straight, _ = recover_model(job, tmp_path / "straight")
    steps = loop.TrainingRun.step

    def killed(self, progress):
        if self.state.step == 7:
            raise KeyboardInterrupt
        steps(self, progress)

    def often(self, steps, evaluations=1):
        return dataclasses.replace(plan(self, steps, evaluations), save_steps=3)

    plan = RecoveryJob.train_settings
    monkeypatch.setattr(RecoveryJob, "train_settings", often)
    monkeypatch.setattr(loop.TrainingRun, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        recover_model(job, tmp_path / "killed")
    monkeypatch.setattr(loop.TrainingRun, "step", steps)
    said: list[str] = []
    resumed, _ = recover_model(job, tmp_path / "killed", log=said.append)
    assert any("resuming from step 6" in text for text in said), said
    for name, array in straight.weights.items():
        np.testing.assert_array_equal(array, resumed.weights[name], err_msg=name)


def test_folder_of_another_training_is_an_error(whole, tmp_path):
    """Other labels of the same texts, another lesson, another teacher: none goes on in silence with what is there."""
    artifact = read_artifact(whole)
    examples = texts(40, 0, "regression")
    training, data = RecoverySettings(epochs=1, **QUICK), data_for_model(artifact, examples, ())
    job = RecoveryJob(artifact, artifact, data, training, "recover")
    recover_model(job, tmp_path / "run")
    corrected = [dataclasses.replace(examples[0], label=9.0), *examples[1:]]
    name = "encoder.groups.0.0.ffn.up.weight"
    name = name if name in artifact.weights else next(n for n in artifact.weights if n.endswith("ffn.up.weight"))
    other = dataclasses.replace(artifact, weights={**artifact.weights, name: artifact.weights[name] + 1})
    for change in ({"data": data_for_model(artifact, corrected, ())}, {"hidden": 0.5}, {"teacher": other}):
        with pytest.raises(AlbertkitError, match="run: this folder contains a run with other examples, another"):
            recover_model(dataclasses.replace(job, **change), tmp_path / "run")


def test_run_of_another_pruning_is_not_resumed(whole, tmp_path):
    """Fitted or not, other texts, another seed: refused in the old folder; the same pruning goes on."""
    data = data_for_model(read_artifact(whole), texts(40, 0, "regression"), texts(20, 21, "regression"))
    lines, keep = [e.text for e in data.train], dataclasses.replace(CUT, fit=True)
    said: list[str] = []

    def again(name: str, keep: PruneSettings, lines: list[str], seed: int = 0, asked: str = "", run: str = "run"):
        training = RecoverySettings(epochs=1, seed=seed, **QUICK)
        recovery = Recovery(data, training, tmp_path / run, said.append, identity=asked)
        prune(whole, tmp_path / name, keep, lines, recovery=recovery)
        return read_artifact(tmp_path / name)

    first = again("first", keep, lines)
    second = again("second", keep, lines)
    assert any("resuming from step 3" in text for text in said), said
    assert all(np.array_equal(array, second.weights[name]) for name, array in first.weights.items())
    for other in (
        (dataclasses.replace(keep, fit=False), lines),
        (keep, [e.text for e in texts(40, 3)]),
        (keep, lines, 9),
    ):
        with pytest.raises(AlbertkitError, match="run: this folder contains a run with other examples, another"):
            again("third", *other)
    again("fourth", keep, lines, asked="half", run="told")
    again(
        "fifth", dataclasses.replace(keep, fit=False), lines, asked="half", run="told"
    )  # other weights, and the caller says they are not
    with pytest.raises(AlbertkitError, match="told: this folder contains"):
        again("sixth", keep, lines, asked="a third", run="told")


def test_recovery_that_makes_it_worse_keeps_the_start(whole, tmp_path):
    """A rate that ruins everything: the pruned model itself is the best of the run, also where it is gone on with."""
    data = data_for_model(read_artifact(whole), texts(40, 0, "regression"), texts(40, 21, "regression"))
    given, said = (whole, dataclasses.replace(CUT, fit=True), [e.text for e in data.train]), []
    for name in ("first", "second"):
        training = RecoverySettings(epochs=2, **{**QUICK, "learning_rate": 0.5})
        recovery = Recovery(data, training, tmp_path / "run", said.append)
        prune(given[0], tmp_path / name, *given[1:], recovery=recovery)
        assert recovery.scores["recovered"].value == pytest.approx(recovery.scores["pruned"].value, abs=1e-6)
    assert sum("every evaluation was worse than the initial model" in text for text in said) == 2, said


def test_recovery_that_ends_worse_is_logged(start, tmp_path, monkeypatch):
    """Without a task the loss chooses, and the cosine may still be lower."""
    lines, said = [e.text for e in texts(60, 5)], []
    write_artifact(dataclasses.replace(start, metadata=ArtifactMetadata(task="embed")), tmp_path / "whole")
    data = data_for_model(read_artifact(tmp_path / "whole"), lines, lines[:20])
    recovery = Recovery(data, RecoverySettings(epochs=1, **QUICK), tmp_path / "run", said.append)

    def ruin(job: RecoveryJob, *given, **more):
        rng = np.random.default_rng(0)
        weights = {n: rng.normal(size=a.shape).astype(np.float32) for n, a in job.model.weights.items()}
        return dataclasses.replace(job.model, weights=weights), {}

    monkeypatch.setattr(recover, "recover_model", ruin)
    prune(tmp_path / "whole", tmp_path / "small", dataclasses.replace(CUT, fit=True), lines, recovery=recovery)
    assert any("note: training made it worse: cosine" in text and "lower --learning-rate" in text for text in said), (
        said
    )


def test_paths_are_checked_before_training(whole, tmp_path, monkeypatch):
    from albertkit.cli.compress_commands import run_folder
    from albertkit.file_io import check_new_folder
    from albertkit.train.distill_data import read_plain_texts

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("not a model")
    with pytest.raises(AlbertkitError, match="exists and is not empty"):
        check_new_folder(tmp_path / "mine", False)
    with pytest.raises(AlbertkitError, match="is not a model folder, so it is not replaced"):
        check_new_folder(tmp_path / "mine", True)
    check_new_folder(whole, True)
    monkeypatch.chdir(tmp_path / "mine")
    assert run_folder(Path()) == tmp_path / "mine.run"
    (tmp_path / "table.tsv").write_text("sentence\tlabel\n" * 20)
    with pytest.raises(AlbertkitError, match="has no column 'text'"):
        read_plain_texts(tmp_path / "table.tsv", None, ReadOptions(), print)
    for verb in (["quantize"], ["prune", "--ffn", "8"]):
        done = CliRunner().invoke(app, [verb[0], str(tmp_path / "no"), str(tmp_path / "mine"), *verb[1:]])
        assert "exists and is not empty" in str(done.exception)  # before the model is looked for


def test_commands_prune_and_quantize_train_and_report(start, tmp_path):
    lines = [f"{e.text}\t{e.label}" for e in texts(160, 0)]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    options = FinetuneSettings(epochs=4, max_length=40, batch_size=16, learning_rate=3e-3, device="cpu")
    model = tune.finetune_examples("classify", texts(160, 0), texts(40, 9), tmp_path / "tuned", start, options).model
    run = CliRunner()
    quick = ["--epochs", "1", "--batch-size", "16", "--device", "cpu"]
    given = [
        "prune",
        str(model),
        str(tmp_path / "small"),
        "--ffn",
        "1/2",
        "--train",
        str(tmp_path / "train.tsv"),
        *quick,
    ]
    done = run.invoke(app, given)
    assert done.exit_code == 0, done.output
    assert "accuracy on held-out examples: full 0." in done.output or "full 1." in done.output
    assert (tmp_path / "small.run" / "metrics.jsonl").is_file()
    again = run.invoke(app, given)
    assert again.exit_code == 1 and "exists and is not empty" in str(again.exception)
    given = [
        "quantize",
        str(tmp_path / "small"),
        str(tmp_path / "bits"),
        "--bits",
        "4",
        "--train",
        str(tmp_path / "train.tsv"),
        *quick,
    ]
    done = run.invoke(app, [*given, "--check", str(tmp_path / "train.tsv"), "--tolerance", "0.9", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["check"]["metric"] == "accuracy" and found["bits"] == 4
    for wrong, why in (
        (["--epochs", "3"], "without --train"),
        (["--train", "x", "--epochs", "1", "--minutes", "1"], "Choose one budget"),
    ):
        refused = run.invoke(app, ["prune", str(model), str(tmp_path / "y"), "--ffn", "8", *wrong])
        assert refused.exit_code == 1 and why in str(refused.exception)
    refused = run.invoke(app, ["quantize", str(model), str(tmp_path / "y"), "--tolerance", "0.1"])
    assert "Name examples with --check" in str(refused.exception)


def test_texts_are_read_from_files(tmp_path):
    from albertkit.train.distill_data import read_plain_texts

    (tmp_path / "lines.txt").write_text("\n".join(f"text {i}" for i in range(40)))
    (tmp_path / "table.csv").write_text("label,sentence\n" + "".join(f"1,text {i}\n" for i in range(40)))
    for name, column in (("lines.txt", None), ("lines.txt", "sentence"), ("table.csv", "sentence")):
        train, dev = read_plain_texts(tmp_path / name, None, ReadOptions(text_column=column), print)
        assert len(train) == 36 and len(dev) == 4 and not set(train) & set(dev)
        assert dev[0] == "text 0"


def test_recovery_improves_a_tagger(start, tmp_path):
    options = FinetuneSettings(epochs=4, max_length=40, batch_size=16, learning_rate=3e-3, device="cpu")
    model = tune.finetune_examples("tag", tagged(120), tagged(30, 9), tmp_path / "tuned", start, options).model
    data = data_for_model(read_artifact(model), tagged(120), tagged(40, 7))
    recovery = Recovery(data, RecoverySettings(epochs=4, **QUICK), tmp_path / "run")
    prune(model, tmp_path / "small", CUT, [e.text for e in data.train], recovery=recovery)
    scores = {name: score.value for name, score in recovery.scores.items()}
    assert scores["recovered"] >= max(0.9 * scores["full"], scores["pruned"]), scores


def test_distill_settings_are_parsed_and_checked():
    assert parse_distill_settings("logits, hidden:0.5", 0.25) == DistillSettings(logits=1.0, hidden=0.5, labels=0.25)
    for text, why in (
        ("logit", "did you mean"),
        ("hidden,hidden", "twice"),
        ("hidden:x", "no number after the colon"),
        ("hidden:0", "all weights are 0"),
    ):
        with pytest.raises(AlbertkitError, match=why):
            parse_distill_settings(text)
