"""`from albertkit import finetune`: files or lists in, a model out; what it refuses; when a training is at chance; what
an epoch says.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albertkit import Albert, evaluate, finetune
from albertkit.cli.finetune_commands import finetune as verb
from albertkit.errors import AlbertkitError
from albertkit.tasks.choose import ChooseTask
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.examples import TextExample
from albertkit.tasks.readers import ReadOptions
from albertkit.tasks.tag import TagTask
from albertkit.tasks.task import IGNORE_INDEX
from albertkit.train import finetune as tune
from albertkit.train.collapse import is_at_chance
from albertkit.train.finetune_report import FinetuneResult
from albertkit.train.loop import LOGGED_SCORES
from albertkit.train.train_settings import FinetuneSettings
from tests.train.test_finetune import choices, tagged, texts
from tests.train.test_first_use import run
from tests.train.test_first_use import start as start  # a model's folder

QUICK = {"epochs": 1, "batch_size": 16, "learning_rate": 1e-3, "restarts": 0, "device": "cpu"}


def table(path, examples: list[TextExample]):
    path.write_text("".join(f"{e.text}\t{e.label}\n" for e in examples))
    return path


# The door ------------------------------------------------------------------------------------------------------------


def test_files_and_lists_give_the_same_model(start, tmp_path):
    train, dev = texts(60), texts(30, 9)
    names = str(table(tmp_path / "train.tsv", train)), table(tmp_path / "dev.tsv", dev)
    found = [
        finetune("classify", names[0], dev=names[1], output=str(tmp_path / "a"), model=start, **QUICK),
        finetune("classify", train, dev=dev, output=tmp_path / "b", model=start, **QUICK),
    ]
    one, two = ((done.model / "model.safetensors").read_bytes() for done in found)
    assert one == two and found[0].metrics == found[1].metrics and found[0].model == tmp_path / "a" / "model"
    assert Albert(found[0].model).classify("cat dog").label in ("animal", "tree")


def test_one_in_ten_is_held_out_and_it_is_told_what_happens(start, tmp_path):
    said: list[str] = []
    finetune("classify", texts(50), output=tmp_path, model=start, log=said.append, **QUICK)
    assert "45 training inputs, 5 examples held out" in (tmp_path / "report.md").read_text()
    assert "45 examples are few" in said[0] and any(text.startswith("step ") for text in said)


def test_options_go_where_they_belong(start, tmp_path, monkeypatch):
    seen = {}

    def record(*given, **settings):
        seen.update(options=given[5], settings=settings)
        return FinetuneResult(tmp_path, {}, ())

    monkeypatch.setattr(tune, "finetune_examples", record)
    path = tmp_path / "odd.tsv"
    path.write_text("stars\twords\n" + "".join(f"{e.label}\t{e.text}\n" for e in texts(20)))
    finetune(
        "classify", path, output=tmp_path / "out", model=start, epochs=2, text_column="words", label_column="stars"
    )
    assert seen["options"] == FinetuneSettings(epochs=2) and seen["settings"] == {}
    finetune("tag", tagged(20), tagged(5), output=tmp_path / "out", model=start, overlap=3)
    assert seen["options"] == FinetuneSettings() and seen["settings"] == {"overlap": 3}


@pytest.mark.parametrize(
    ("task", "train", "options", "told"),
    [
        ("clasify", [TextExample("a", label="x")], {}, "unknown task 'clasify'.*did you mean 'classify'"),
        ("classify", [TextExample("a", label="x")], {"epoch": 3}, "no option 'epoch'.*did you mean 'epochs'"),
        ("classify", [TextExample("a", label="x")], {"overlap": 3}, "classify has no option 'overlap'"),
        ("classify", [TextExample("a", label="x")], {"label_column": "y"}, "passed with lists of examples"),
        ("classify", [], {}, "train contains no examples. Pass some"),
        (
            "classify",
            ["lovely"],
            {},
            "example 1: classify needs TextExample examples, and this is a str; write  TextExample.text, pair, label, where",
        ),
        ("classify", "nowhere.tsv", {}, "nowhere.tsv"),
        (
            "classify",
            texts(20),
            {"dev": [TextExample("a", label="x")]},
            "training has none of the labels",
        ),
        ("tag", texts(20), {}, "example 1: tag needs TaggedExample examples, and this is a TextExample"),
        ("intent", texts(20), {"freeze": True, "overlap": 3}, "overlap is not an option of a head on frozen vectors"),
    ],
)
def test_what_is_refused(start, tmp_path, task, train, options, told):
    with pytest.raises(AlbertkitError, match=told):
        finetune(task, train, output=tmp_path / "out", model=start, **options)
    assert not (tmp_path / "out" / "model").exists()


def test_the_name_costs_no_torch_and_frozen_vectors_need_none(start, tmp_path):
    path = table(tmp_path / "train.tsv", texts(40))
    code = (
        "import sys, albertkit; assert not any(n.startswith('albertkit.') for n in sys.modules); "
        "from albertkit import finetune; "
        f"finetune('classify', {str(path)!r}, output={str(tmp_path / 'out')!r}, model={start!r}, freeze=True); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model" / "albertkit.json").is_file()


def test_the_verb_goes_through_the_same_door(start, tmp_path, monkeypatch):
    calls = []
    before = tune.finetune
    monkeypatch.setattr(
        tune, "finetune", lambda *given, **settings: calls.append(given[0]) or before(*given, **settings)
    )
    made = run(
        verb, "classify", table(tmp_path / "t.tsv", texts(40)), "-o", tmp_path / "out", "--model", start, "--freeze"
    )
    assert made.exit_code == 0 and calls == ["classify"], made.output
    assert json.loads(made.stdout.splitlines()[-1])["model"] == str(tmp_path / "out" / "model")


def test_a_head_on_frozen_vectors_takes_integer_classes(start, tmp_path):
    numbers = {"animal": 1, "tree": 2}
    train, dev = ([replace(e, label=numbers[e.label]) for e in part] for part in (texts(60), texts(30, 9)))
    done = finetune("classify", train, dev, output=tmp_path, model=start, freeze=True)
    assert Albert(done.model).metadata.labels == ("1", "2")


def test_integers_in_tuples_become_classes_of_the_model(start, tmp_path):
    numbers = {"animal": 1, "tree": 2}
    train = [replace(e, label=tuple(numbers[name] for name in e.label)) for e in texts(20, kind="multi")]
    done = finetune("classify", train, output=tmp_path, model=start, **QUICK)
    assert Albert(done.model).metadata.labels == ("1", "2")


def test_several_seeds_on_frozen_vectors_are_refused(start, tmp_path):
    with pytest.raises(AlbertkitError, match="seeds=3 is not available.*Omit --seeds or --freeze"):
        FinetuneSettings(freeze=True, seeds=3)
    given = "classify", table(tmp_path / "t.tsv", texts(40)), "-o", tmp_path / "out", "--freeze", "--seeds", "3"
    made = run(verb, *given)
    assert made.exit_code != 0 and "Omit --seeds" in str(made.exception) and not (tmp_path / "out").exists()


# Loss at chance ------------------------------------------------------------------------------------------------------


def work(task, scores, targets, learnt=None) -> SimpleNamespace:
    features = [SimpleNamespace(target=target) for target in targets]
    learnt = features if learnt is None else [SimpleNamespace(target=target) for target in learnt]
    count = sum(target is not None for target in targets)
    return SimpleNamespace(
        task=task, dev=range(count), dev_features=features, last_scores=list(scores), features=[[f] for f in learnt]
    )


def noise(count: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, classes)).astype(np.float32)


@given(st.integers(0, 1000), st.integers(2, 6), st.sampled_from([1.0, 10.0]))
def test_scores_that_tell_nothing_are_chance_and_those_that_do_are_not(seed, classes, size):
    """However sure of itself a model is: ten times the scores are a loss far above chance, and know as much."""
    targets = np.tile(np.arange(classes), 120)
    task = ClassifyTask(tuple("abcdef"[:classes]))
    blind = noise(120, classes, seed).repeat(classes, 0)  # each row once for every class
    assert is_at_chance(work(task, size * blind, targets.tolist()))
    knows = size * (blind + np.eye(classes)[targets])
    assert not is_at_chance(work(task, knows, targets.tolist()))


def test_chance_is_what_the_shares_of_classes_give():
    """Nine in ten are of one class: saying so to everybody is chance, though it is likelier right than a coin."""
    targets = [int(n % 10 == 0) for n in range(500)]
    shares = np.log([[0.9, 0.1]]).repeat(500, 0) + 0.01 * noise(500, 2)
    plain, even = ClassifyTask(("a", "b")), ClassifyTask(("a", "b"), class_weights=(5 / 9, 5.0))
    assert is_at_chance(work(plain, shares, targets))
    weighed = noise(500, 2) + np.eye(2)[targets]  # it tells them apart, and thinks both as frequent
    assert is_at_chance(work(plain, weighed, targets)) and not is_at_chance(work(even, weighed, targets))
    assert not is_at_chance(work(plain, shares[:99], targets[:99]))  # too few to tell
    several, both = ClassifyTask(("a", "b"), kind="multi"), np.eye(2)[targets].tolist()
    assert is_at_chance(work(several, shares, both)) and not is_at_chance(work(several, weighed, both))


def test_choices_and_labels_of_words_at_chance():
    rng = np.random.default_rng(0)
    sizes = [2 + n % 3 for n in range(300)]
    right = [int(rng.integers(size)) for size in sizes]
    targets = [r if place == 0 else None for r, size in zip(right, sizes, strict=True) for place in range(size)]
    hit = np.array([[place == r] for r, size in zip(right, sizes, strict=True) for place in range(size)])
    assert is_at_chance(work(ChooseTask(), noise(len(hit), 1), targets))
    assert not is_at_chance(work(ChooseTask(), noise(len(hit), 1) + hit, targets))
    task = TagTask(("O", "B-X", "I-X"))
    rows = [[IGNORE_INDEX, *rng.choice(3, 5, p=[0.8, 0.1, 0.1]).tolist(), IGNORE_INDEX] for _ in range(200)]
    blind = [np.log([[0.8, 0.1, 0.1]]) + 0.1 * noise(7, 3, n) for n in range(200)]
    assert is_at_chance(work(task, blind, rows))
    seeing = [b + 2 * np.eye(3)[np.maximum(row, 0)] for b, row in zip(blind, rows, strict=True)]
    assert not is_at_chance(work(task, seeing, rows))


# What an epoch says --------------------------------------------------------------------------------------------------


def test_an_epoch_says_six_scores_and_keeps_all(start, tmp_path):
    examples = [
        replace(e, spans=tuple(replace(span, label=f"{span.label}{n % 6}") for span in e.spans))
        for n, e in enumerate(tagged(24))
    ]
    said: list[str] = []
    done = finetune(
        "tag", examples, examples, output=tmp_path, model=start, log=said.append, metric="f1_tree5", **QUICK
    )
    (line,) = [text for text in said if text.startswith("step ")]
    assert line.count(",") == LOGGED_SCORES - 1 == 5 and "f1 tree5" in line and line.split(": ")[1].startswith("f1 ")
    assert len(done.metrics) == 15 and "f1_animal3" in (tmp_path / "report.md").read_text()


def test_overlap_of_intents_without_slots_is_refused(tmp_path):
    texts = [TextExample("play a song", label="music"), TextExample("how warm is it", label="weather")] * 10
    with pytest.raises(AlbertkitError, match="these intents have no slots"):
        finetune("intent", texts, output=tmp_path / "out", overlap=3)


def test_a_training_that_learnt_nothing_is_a_warning_without_a_log(start, tmp_path):
    train, dev = choices(40), choices(30, 9)
    with pytest.warns(UserWarning, match="the training was too short: .* Pass a higher --learning-rate"):
        finetune("choose", train, dev, output=tmp_path, model=start, **(QUICK | {"learning_rate": 1e-9}))


def test_evaluate_splits_labels_as_in_training_and_warns_of_unknown_ones(start, tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{e.text}\t{'+'.join(e.label)}\n" for e in texts(40, kind="multi")))
    model = finetune("classify", path, output=tmp_path / "out", model=start, separator="+", **QUICK).model
    assert Albert(model).task.separator == "+"
    assert evaluate(model, path).metrics == evaluate(model, path, options=ReadOptions(separator="+")).metrics
    with pytest.warns(UserWarning, match="1 label of 2 unknown to the model.*'ship'"):
        evaluate(model, [TextExample("a", label=("animal", "ship"))])
