"""A folder of fine-tuning and the settings of its run; checkpoints of every epoch; layer decay; models of pairs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from albertkit import Albert, folder_replace
from albertkit.artifact import read_artifact, write_artifact
from albertkit.cli.entry_point import app
from albertkit.errors import AlbertkitError
from albertkit.folder_replace import lock_folder
from albertkit.input_warnings import UnreadableTextError
from albertkit.train.checkpoint import saved_steps
from albertkit.train.elastic import finetune_elastic
from albertkit.train.finetune import finetune, finetune_examples
from albertkit.train.finetune_report import FinetuneResult
from albertkit.train.run_lock import lock_run
from albertkit.train.train_settings import ElasticSettings, FinetuneSettings
from tests.train.test_finetune import start as start  # the fixture
from tests.train.test_finetune import texts

QUICK = FinetuneSettings(epochs=1, batch_size=16, learning_rate=1e-3, max_length=16, restarts=0, device="cpu")


def tuned(folder: Path, start, settings: FinetuneSettings = QUICK, pair: str | None = None) -> FinetuneResult:
    examples = [replace(example, pair=pair) for example in texts(32)]
    return finetune_examples("classify", examples, examples[:8], folder, start, settings)


def weights(result: FinetuneResult) -> bytes:
    return (result.model / "model.safetensors").read_bytes()


# The same folder with other settings ---------------------------------------------------------------------------------


def test_other_settings_in_the_same_folder_are_an_error_that_names_them(start, tmp_path):
    first = weights(tuned(tmp_path, start))
    for name, value in {"epochs": 3, "learning_rate": 1e-4, "batch_size": 8, "metric": "f1"}.items():
        with pytest.raises(AlbertkitError, match=f"other settings: .*{name} .* → {value}.*--resume.*--overwrite"):
            tuned(tmp_path, start, replace(QUICK, **{name: value}))
    assert weights(tuned(tmp_path, start)) == first  # the same settings go on, and this run was finished
    assert weights(tuned(tmp_path, start, replace(QUICK, device="auto", micro_batch_size=4))) == first


@pytest.mark.parametrize("freeze", [False, True])
def test_a_folder_of_other_files_is_refused_and_stays_as_it_was(start, tmp_path, freeze):
    write_artifact(start, tmp_path / "start")
    settings = FinetuneSettings(freeze=True, max_length=16, device="cpu") if freeze else QUICK
    for name in ("thesis", "model"):
        folder = tmp_path / name
        write_artifact(start, folder) if name == "model" else folder.mkdir()
        (folder / "A thesis.txt").write_text("mine")
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        for changes in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(AlbertkitError, match=f"{name} contains A thesis.txt and no training run.*Choose a new"):
                finetune(
                    "classify", texts(32), texts(8), output=folder, model=tmp_path / "start",
                    settings=replace(settings, **changes),
                )  # fmt: skip
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".gitkeep").touch()
    options = {"output": tmp_path / "empty", "model": tmp_path / "start", "settings": settings}
    finetune("classify", texts(32), texts(8), **options)
    (tmp_path / "empty" / ".lock").unlink(missing_ok=True)  # as a copy without hidden files
    finetune("classify", texts(32), texts(8), **options)


def test_every_training_command_refuses_a_folder_of_other_files(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(AlbertkitError, match="out contains mine.txt and no training run"), lock_run(tmp_path / "out"):
        pass


def test_resume_continues_and_overwrite_starts_again(start, tmp_path):
    tuned(tmp_path / "a", start)
    run = tmp_path / "a" / "runs" / "seed-0"
    assert saved_steps(run)[-1] == 2
    tuned(tmp_path / "a", start, replace(QUICK, epochs=3, batch_size=8, resume=True))
    assert saved_steps(run)[-1] == 12
    tuned(tmp_path / "a", start, replace(QUICK, epochs=3, batch_size=8))  # these are its settings now
    with pytest.raises(AlbertkitError, match=r"is at step 12, and these settings end at step 2. Pass more --epochs"):
        tuned(tmp_path / "a", start, replace(QUICK, resume=True))
    (tmp_path / "a" / "notes.txt").write_text("mine")
    again = tuned(tmp_path / "a", start, replace(QUICK, overwrite=True))
    assert weights(again) == weights(tuned(tmp_path / "b", start))
    assert saved_steps(run)[-1] == 2 and (tmp_path / "a" / "notes.txt").exists()
    with pytest.raises(AlbertkitError, match="exclude each other"):
        replace(QUICK, resume=True, overwrite=True)


@pytest.mark.parametrize("freeze", [False, True])
def test_a_command_that_fails_deletes_and_writes_nothing(start, tmp_path, freeze):
    write_artifact(start, tmp_path / "start")
    base, out = tmp_path / "start", tmp_path / "out"
    unreadable = [replace(example, text="\U0001f9ff \U0001fae0") for example in texts(32)]
    plain = FinetuneSettings(freeze=True, max_length=16, device="cpu") if freeze else QUICK
    with pytest.raises(UnreadableTextError):
        finetune_examples("classify", unreadable, texts(8), out, base, plain)
    assert not (out / "settings.json").exists()  # so the corrected command is not refused
    first = weights(finetune_examples("classify", texts(32), texts(8), out, base, replace(plain, max_length=12)))
    over = replace(plain, overwrite=True)
    with pytest.raises(UnreadableTextError):
        finetune_examples("classify", unreadable, texts(8), out, base, over)
    with pytest.raises(AlbertkitError, match="is in .*out, whose run --overwrite deletes. Choose another --output"):
        finetune_examples("classify", texts(32), texts(8), out, out / "model", over)
    assert (out / "model" / "model.safetensors").read_bytes() == first and (out / "report.md").exists()
    finetune_examples("classify", texts(32), texts(8), out, base, over)
    assert json.loads((out / "settings.json").read_text())["max_length"] == QUICK.max_length


def test_an_unknown_metric_deletes_nothing(start, tmp_path):
    first = weights(tuned(tmp_path, start))
    with pytest.raises(AlbertkitError, match="no metric 'acuracy'"):
        tuned(tmp_path, start, replace(QUICK, metric="acuracy", overwrite=True))
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == first


def test_overwrite_deletes_only_what_finetune_wrote(start, tmp_path):
    over = replace(QUICK, overwrite=True)
    for name, content in (("settings.json", '{"steps": 3}'), ("report.md", "mine"), ("model/notes.txt", "mine")):
        file = tmp_path / name.replace("/", "-") / name
        file.parent.mkdir(parents=True)
        file.write_text(content)
        (tmp_path / name.replace("/", "-") / ".lock").touch()  # a run was begun there
        with pytest.raises(AlbertkitError, match="was not written by finetune.*Delete it, or choose another --output"):
            tuned(tmp_path / name.replace("/", "-"), start, over)
        assert file.read_text() == content
    tuned(tmp_path / "run", start)
    (tmp_path / "run" / "runs" / "notes.txt").write_text("mine")
    tuned(tmp_path / "run", start, over)
    assert (tmp_path / "run" / "runs" / "notes.txt").read_text() == "mine"
    (tmp_path / "run" / "model" / "albertkit.json").unlink()
    with pytest.raises(AlbertkitError, match="model was not written by finetune"):
        tuned(tmp_path / "run", start, over)


def test_elastic_training_locks_its_folder(start, tmp_path, monkeypatch):
    model = tuned(tmp_path / "model", start).model
    out = tmp_path / "out"
    out.mkdir()
    with lock_folder(out):
        monkeypatch.setattr(folder_replace, "_locks", set())  # as another process sees it
        with pytest.raises(AlbertkitError, match="out is in use"):
            finetune_elastic(model, texts(32), texts(8), out, ElasticSettings(epochs=1, device="cpu"))
        monkeypatch.undo()
    assert [path.name for path in out.iterdir()] == [".lock"]


def test_the_command_has_these_options(start, tmp_path):
    write_artifact(start, tmp_path / "start")
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{e.text}\t{e.label}\n" for e in texts(40)))
    command = ["finetune", "classify", str(path), "-o", str(tmp_path / "out"), "-m", str(tmp_path / "start")]
    command += ["--device", "cpu", "--batch-size", "16", "--restarts", "0"]
    assert CliRunner().invoke(app, [*command, "--epochs", "1", "--keep-epochs"]).exit_code == 0
    changed = CliRunner().invoke(app, [*command, "--epochs", "2", "--layer-decay", "0.9"])
    assert changed.exit_code != 0 and "epochs 1.0 → 2.0, layer_decay 1.0 → 0.9" in changed.output + str(
        changed.exception
    )
    assert CliRunner().invoke(app, [*command, "--epochs", "2", "--overwrite"]).exit_code == 0


def test_elastic_training_has_the_same_rule(start, tmp_path):
    model, settings = tuned(tmp_path / "model", start).model, ElasticSettings(epochs=1, batch_size=16, device="cpu")
    finetune_elastic(model, texts(32), texts(8), tmp_path / "out", settings)
    with pytest.raises(AlbertkitError, match="distill_weight 0.5 → 0.25"):
        finetune_elastic(model, texts(32), texts(8), tmp_path / "out", replace(settings, distill_weight=0.25))


# Checkpoints and layer decay -----------------------------------------------------------------------------------------


def test_keep_epochs_keeps_a_model_of_every_epoch(start, tmp_path):
    for name, keep in (("few", False), ("all", True)):
        tuned(tmp_path / name, start, replace(QUICK, epochs=5, keep_epochs=keep))
    kept = tmp_path / "all" / "runs" / "seed-0"
    assert saved_steps(kept) == [0, 2, 4, 6, 8, 10] and len(saved_steps(tmp_path / "few" / "runs" / "seed-0")) <= 3
    assert Albert(kept / "checkpoints" / "step-00000004" / "model").classify("cat dog").label in ("animal", "tree")


def test_layer_decay_changes_the_shared_layer_and_1_does_not(start, tmp_path):
    found = [
        read_artifact(tuned(tmp_path / str(decay), start, replace(QUICK, layer_decay=decay)).model).weights
        for decay in (1.0, 0.5)
    ]
    plain = read_artifact(tuned(tmp_path / "plain", start).model).weights
    name = next(name for name in plain if "groups" in name and name.endswith("ffn.up.weight"))
    assert np.array_equal(found[0][name], plain[name]) and not np.array_equal(found[1][name], plain[name])
    with pytest.raises(AlbertkitError, match="layer_decay is 1.5; it must be above 0 and at most 1"):
        replace(QUICK, layer_decay=1.5)


# Pairs ---------------------------------------------------------------------------------------------------------------


def test_a_model_of_pairs_refuses_a_single_text(start, tmp_path):
    model = tuned(tmp_path, start, pair="oak elm").model
    albert = Albert(model)
    assert albert.classify("cat dog", "oak").label in ("animal", "tree")
    with pytest.raises(AlbertkitError, match="'cat dog' is a single text.*trained on pairs.*--pair"):
        albert.classify("cat dog")
    shown = CliRunner().invoke(app, ["classify", "-m", str(model), "cat dog", "--pair", "oak", "--json"])
    assert shown.exit_code == 0 and json.loads(shown.stdout)["label"] in ("animal", "tree")
    assert CliRunner().invoke(app, ["classify", "-m", str(model), "cat dog"]).exit_code != 0


def test_bulk_work_with_a_model_of_pairs_needs_the_pair(start, tmp_path):
    model = tuned(tmp_path / "run", start, pair="oak elm").model
    (tmp_path / "in.txt").write_text("cat dog\nelm oak\n")
    command = ["classify", "-m", str(model), "--engine", "local", "--workers", "1", str(tmp_path / "in.txt"), "-o"]
    assert CliRunner().invoke(app, [*command, str(tmp_path / "a"), "--pair", "oak"]).exit_code == 0
    assert CliRunner().invoke(app, [*command, str(tmp_path / "b")]).exit_code != 0
