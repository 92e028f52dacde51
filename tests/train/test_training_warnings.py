"""What a training must say: texts that it truncates, scores of few examples, and that a signal stopped it."""

from __future__ import annotations

import json
import os
import signal
import warnings
from dataclasses import replace

import pytest

from albertkit import RewriteExample, SmallDevSetWarning, TextExample, TruncatedTextWarning, finetune, open_model
from albertkit.cli.finetune_commands import finetune as verb
from albertkit.tasks.dataset import TRAIN, report_truncated
from albertkit.tasks.examples import DialogueTurn
from albertkit.tasks.generation import GenerateTask
from albertkit.train.finetune_report import FEW_DEV_EXAMPLES, error_points
from albertkit.train.loop import TrainingRun
from tests.train.test_finetune import choices, tagged, texts
from tests.train.test_finetune_api import QUICK
from tests.train.test_first_use import run
from tests.train.test_first_use import start as start  # a model's folder

LONG = "cat " * 70
SHORT = {**QUICK, "max_length": 16}


def unlabelled(examples):
    return [replace(example, where="") for example in examples]


def long_texts(count):
    return unlabelled([*texts(count), TextExample(LONG, label="animal"), TextExample(LONG, label="tree")])


def pairs(count):
    made = [TextExample(e.text, f"cat {n}", float(n % 3)) for n, e in enumerate(texts(count))]
    return unlabelled([*made, TextExample("cat", LONG, 1.0), TextExample(LONG, "cat", 2.0)])


def many_choices(count):
    return [*choices(count), *(replace(e, context=LONG) for e in choices(2))]


def rewrites(count):
    return [*(RewriteExample(f"cat {n}", "red") for n in range(count)), *[RewriteExample(LONG, "red")] * 2]


def turns(count):
    state = (("food", "thai"),)
    made = [DialogueTurn(str(n), 0, "", f"cat {n}", state[: n % 2], state[: n % 2]) for n in range(count)]
    return [*made, *(DialogueTurn(name, 0, "", LONG, state, state) for name in ("x", "y"))]


def truncation_messages(found):
    return [str(w.message) for w in found if issubclass(w.category, TruncatedTextWarning)]


@pytest.mark.parametrize(
    ("task", "examples", "options"),
    [
        ("classify", long_texts(18), {}),
        ("match", pairs(18), {}),
        ("choose", many_choices(18), {}),
        ("dialogue", turns(18), {}),
        ("classify", long_texts(18), {"elastic": True}),
    ],
)
def test_training_warns_once_of_texts_that_it_truncates(start, tmp_path, task, examples, options):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        finetune(task, examples, examples[:3], output=tmp_path, model=start, **{**SHORT, **options})
    (message,) = truncation_messages(found)
    assert "the training examples: 2 of 20 texts are longer than the 16 tokens" in message
    assert "larger --max-length (at most " in message


def test_long_sources_of_generation_are_found(start):
    task, tokenizer = GenerateTask(target_length=4), open_model(start).tokenizer
    examples = rewrites(18)
    assert task.text_room(32) == 25
    assert task.find_truncated(examples, task.features(examples, tokenizer, 32), tokenizer, 32) == [18, 19]


def test_truncated_targets_of_generation_have_a_warning(start):
    task, tokenizer = GenerateTask(target_length=4), open_model(start).tokenizer
    examples = [*rewrites(18)[:18], *[RewriteExample("cat", LONG)] * 2]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        report_truncated(task, {TRAIN: (examples, task.features(examples, tokenizer, 32))}, tokenizer, 32, 64)
    (message,) = truncation_messages(found)
    assert message.startswith("the training examples: 2 of 20 targets are longer than the target length, so the rest")
    assert message.endswith("Shorten long targets, or train with a larger --target-length.")


def test_tasks_that_read_windows_do_not_warn(start, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", TruncatedTextWarning)
        finetune("tag", tagged(20), tagged(3), output=tmp_path, model=start, **{**QUICK, "max_length": 8})


@pytest.mark.parametrize("freeze", [False, True])
def test_each_file_has_one_warning(start, tmp_path, freeze):
    for name, count in (("train.tsv", 2), ("dev.tsv", 1)):
        rows = [f"{e.text}\t{e.label}\n" for e in texts(30)] + [f"{LONG}{n}\tanimal\n" for n in range(count)]
        (tmp_path / name).write_text("".join(rows))
    options = {"max_length": 16, "freeze": True} if freeze else SHORT
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        files = str(tmp_path / "train.tsv"), str(tmp_path / "dev.tsv")
        finetune("classify", *files, output=tmp_path / "two", model=start, **options)
    first, second = truncation_messages(found)
    assert "train.tsv: 2 of 32 texts are" in first and "dev.tsv: 1 of 31 texts is" in second
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        finetune("classify", files[0], output=tmp_path / "one", model=start, **options)
    (only,) = truncation_messages(found)
    assert "train.tsv: 2 of 32 texts are" in only  # the held-out examples are from the same file


def test_at_the_maximum_of_the_model_the_remedy_is_to_split(start, tmp_path):
    with pytest.warns(TruncatedTextWarning, match=r"64 tokens .* Split long texts\.$"):
        finetune("classify", long_texts(18), output=tmp_path, model=start, **{**QUICK, "max_length": 512})


# Scores of few examples ----------------------------------------------------------------------------------------------


def test_scores_name_the_number_of_held_out_examples(start, tmp_path):
    said: list[str] = []
    with pytest.warns(SmallDevSetWarning, match=r"those of 6 held-out examples, and fewer than 30 .*--dev"):
        done = finetune("classify", texts(60), output=tmp_path, model=start, log=said.append, **QUICK)
    assert done.dev_examples == 6
    assert all("(6 held-out examples)" in line for line in said if "accuracy" in line)
    assert any("accuracy" in line for line in said)
    assert "6 held-out examples" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("freeze", [False, True])
def test_enough_held_out_examples_give_no_warning(start, tmp_path, freeze):
    with warnings.catch_warnings():
        warnings.simplefilter("error", SmallDevSetWarning)
        dev = texts(FEW_DEV_EXAMPLES, 9)
        done = finetune(
            "classify", texts(40), dev, output=tmp_path, model=start, **({"freeze": True} if freeze else QUICK)
        )
    assert done.dev_examples == FEW_DEV_EXAMPLES


def test_the_command_prints_the_number_of_held_out_examples(start, tmp_path):
    (tmp_path / "train.tsv").write_text("".join(f"{e.text}\t{e.label}\n" for e in texts(40)))
    with pytest.warns(SmallDevSetWarning):
        done = run(verb, "classify", tmp_path / "train.tsv", "-m", start, "-o", tmp_path / "out", "--freeze")
    assert json.loads(done.stdout)["dev_examples"] == 4


def test_the_interval_of_the_threshold_is_about_eleven_points():
    assert error_points(FEW_DEV_EXAMPLES) == pytest.approx(10.7, abs=0.1)


def test_without_a_log_notes_on_labels_are_warnings(start, tmp_path):
    with pytest.warns(UserWarning, match="50 of 50 held-out examples are in the training data too"):
        same = unlabelled(texts(50))
        finetune("classify", same, same, output=tmp_path / "files", model=start, freeze=True)
    with pytest.warns(UserWarning, match="10 of 10 held-out examples are in the training data too"):
        finetune("classify", same * 2, output=tmp_path / "split", model=start, freeze=True)


# Signals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_ends_a_training_as_it_ends_a_program(start, tmp_path, monkeypatch, number, expected):
    step = TrainingRun.step

    def stopped(self, progress):
        step(self, progress)
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patch, pytest.raises(expected) as ended:
        patch.setattr(TrainingRun, "step", stopped)
        finetune("classify", texts(40), texts(50, 9), output=tmp_path, model=start, **QUICK)
    assert expected is KeyboardInterrupt or ended.value.code == 143
    done = finetune("classify", texts(40), texts(50, 9), output=tmp_path, model=start, **QUICK)
    assert done.metrics  # resumed from the checkpoint


def test_a_handler_of_the_program_is_called(start, tmp_path, monkeypatch):
    step, seen = TrainingRun.step, []

    def stopped(self, progress):
        step(self, progress)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        monkeypatch.setattr(TrainingRun, "step", stopped)
        with pytest.raises(SystemExit):
            finetune("classify", texts(40), texts(50, 9), output=tmp_path, model=start, **QUICK)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
