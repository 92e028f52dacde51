"""The runtime against torch on held-out examples (bench/precision.py): what is compared, what is kept, and its section of docs/results.md."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.artifact import Artifact, write_artifact
from albertkit.model import AlbertModel
from albertkit.tasks import make_task
from albertkit.tasks.answer import AnswerTask
from albertkit.tasks.choose import ChooseTask
from albertkit.tasks.dialogue import DialogueState, DialogueTask
from albertkit.tasks.examples import ChoiceExample, DialogueTurn, QuestionExample, TextExample
from albertkit.tasks.readers.read_examples import read
from albertkit.tasks.tag import IntentTask
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Tokenizer
from albertkit.train.checkpoint import TrainState as Progress
from albertkit.train.finetune_task import FinetuneTask
from albertkit.train.train_settings import TrainSettings
from tests.conftest import SPIECE, program, tiny


@pytest.fixture(scope="module")
def load():
    before = list(sys.path)
    yield program
    sys.path[:] = before


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.booleans())
@settings(max_examples=30)
def test_the_largest_difference_is_found_wherever_it_is(seed, count, two_heads):
    bench, rng = program("bench/precision"), np.random.default_rng(seed)
    rows = [rng.normal(size=(int(rng.integers(1, 5)), 3)) for _ in range(count)]
    at, gap = int(rng.integers(count)), float(rng.uniform(0.01, 2))
    moved = [row.copy() for row in rows]
    moved[at].flat[int(rng.integers(moved[at].size))] += gap * rng.choice([-1, 1])
    if two_heads:
        rows, moved = ([(row[0], row) for row in side] for side in (rows, moved))
    assert bench.gaps(rows, moved) == pytest.approx([gap if i == at else 0 for i in range(count)])


def test_scores_of_other_inputs_are_not_compared(load):
    with pytest.raises(ValueError, match="different inputs"):
        load("bench/precision").gaps([np.zeros(2)], [np.zeros((3, 2))])


def test_probabilities_are_those_of_the_task(load):
    bench, row = load("bench/precision"), np.array([0.0, np.log(3)])
    classes = make_task("classify", [TextExample("a", None, "x"), TextExample("b", None, "y")])
    assert bench.chances(classes, (), [row])[0] == pytest.approx(classes.probabilities(row[None])[0])
    several = make_task("classify", [TextExample("a", None, ("x",)), TextExample("b", None, ("y",))])
    assert bench.chances(several, (), [row])[0] == pytest.approx([0.5, 0.75])
    value = make_task("classify", [TextExample("a", None, 1.0), TextExample("b", None, 2.0)])
    assert bench.chances(value, (), [row[1:]])[0] == pytest.approx(row[1:])
    ends = np.stack([row, row[::-1]])  # (tokens, 2): either side sums to 1 over the tokens
    assert bench.chances(AnswerTask(), (), [ends])[0] == pytest.approx(np.array([[0.25, 0.75], [0.75, 0.25]]))
    both = bench.chances(IntentTask(("O", "B-a"), ("x", "y")), (), [(row, np.stack([row, -row]))])[0]
    assert both[0] == pytest.approx([0.25, 0.75]) and both[1].sum(1) == pytest.approx([1, 1])
    choices = [Feature([1], [0], example) for example in (0, 0, 1)]
    found = bench.chances(ChooseTask(), choices, [row[:1], row[1:], row[:1]])
    assert [list(one) for one in found] == [pytest.approx([0.25, 0.75]), [1.0]]


def test_every_kind_of_example_has_a_text_to_calibrate_with(load):
    bench = load("bench/precision")
    examples = [TextExample("a", "b"), QuestionExample("1", "who?", "c"), ChoiceExample("d", "what?", ("x",)), DialogueTurn("1", 0, "hi", "e"), TextExample(" ")]  # fmt: skip
    assert bench.texts_of(examples) == ["a", "c", "d", "e"]
    many = bench.texts_of([TextExample(str(i)) for i in range(1200)])
    assert len(many) == 500 == len(set(many)) and (many[0], many[-1]) == ("0", "1197")  # from all over the data


def test_states_of_dialogues_are_compared_whole(load):
    task = DialogueTask.of(
        [DialogueTurn("1", 0, "", "thai", (("food", "thai"),), (("food", "thai"), ("request", "area")))]
    )
    one, other = DialogueState({"food": "thai"}, frozenset({"area"})), DialogueState({"food": "thai"}, frozenset())
    assert load("bench/precision").unlike(task, [one, one], [one, other]) == 1


@pytest.fixture
def folders(tmp_path):
    """Data, and a model of two classes that was not trained, in the place where `elastic.py` leaves it."""
    words = ["good", "bad", "great", "poor", "fine", "sad", "calm", "loud", "warm", "cold"]
    rows = [f"a {words[n % 10]} film about {words[n * 7 % 9]} things\t{n % 2}" for n in range(40)]
    (tmp_path / "data" / "sst-2").mkdir(parents=True)
    for part in ("train", "dev"):
        (tmp_path / "data" / "sst-2" / f"{part}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    config = tiny(vocab_size=30000, initializer_range=0.2)
    start = Artifact(config, AlbertModel(config).weights(), Tokenizer.load(SPIECE.parent))
    known = read("classify", tmp_path / "data" / "sst-2" / "train.tsv").examples
    work = FinetuneTask(make_task("classify", known), start, known, (), TrainSettings(steps=1, device="cpu"), 32)
    write_artifact(work.artifact({}, Progress()), tmp_path / "models" / "sst-2" / "plain" / "model")
    return tmp_path


def test_a_model_is_measured_in_every_precision(load, folders, monkeypatch):
    bench, out = load("bench/precision"), folders / "precision.json"
    out.write_text(json.dumps({"sets": {"mrpc": {"kept": True}}}))
    given = ["precision.py", str(folders / "data"), "--models", str(folders / "models"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*given, "--most", "20"])
    bench.main()
    found = json.loads(out.read_text())
    assert found["sets"]["mrpc"] == {"kept": True} and found["machine"]["threads"] == 1
    one = found["sets"]["sst-2"]
    assert (one["examples"], one["of"], one["calibration_texts"]) == (20, 40, 40)
    gap = one["difference"]
    assert 0 < gap["logits_median"] <= gap["logits"] < 1e-4 and gap["texts_above"] == 0 == one["unlike"]["runtime"]
    assert 0 < gap["probabilities"] < gap["logits"] and 0 < gap["sway"] < 1e-3
    assert set(one["metrics"]) == {"torch", "runtime", "int8", "4-bit"} and one["cosine"]["int8"] > 0.99
    assert one["metrics"]["torch"] == one["metrics"]["runtime"]
    gained = one["metrics"]["int8"]["accuracy"] - one["metrics"]["runtime"]["accuracy"]
    assert one["points"]["int8"] == pytest.approx(100 * gained)
    assert str(folders) not in out.read_text()
    monkeypatch.setattr(sys, "argv", [*given, "--only", "cola"])
    with pytest.raises(SystemExit, match="no model of cola"):
        bench.main()


def test_the_first_place_that_holds_a_model_counts(load, tmp_path):
    bench = load("bench/precision")
    assert bench.model_of(tmp_path, "sst-2") is None
    for place in ("sst-2/plain/model", "sst-2/model"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "albertkit.json").write_text("{}")
        assert bench.model_of(tmp_path, "sst-2") == tmp_path / place


def test_the_page_has_a_section_where_it_was_measured(load, tmp_path):
    page = load("docs/results_page")
    shutil.copy(page.RESULTS / "published.json", tmp_path)
    title = "## The runtime against torch, and int8"
    assert title not in page.page(tmp_path)
    sides = {"torch": 0.9, "runtime": 0.9, "int8": 0.897, "4-bit": 0.88}
    gap = {
        "logits": 2.34e-5,
        "logits_median": 1e-6,
        "probabilities": 3e-6,
        "texts": 1001,
        "texts_above": 0,
        "sway": 5e-4,
    }
    one = {
        "task": "tag", "note": "dev", "metric": "f1", "examples": 1000, "of": 3250, "difference": gap, "calibration_texts": 500,
        "unlike": {"runtime": 0, "int8": 4, "4-bit": 9}, "metrics": {name: {"f1": value} for name, value in sides.items()},
        "points": {"int8": -0.3, "4-bit": -2.0},
    }  # fmt: skip
    kept = {"sets": {"conll2003": one}, "machine": {"processor": "a processor"}, "libraries": {"onnxruntime": "1", "torch": "2"}}  # fmt: skip
    (tmp_path / "precision.json").write_text(json.dumps(kept))
    text = page.page(tmp_path)
    assert title in text and "| CoNLL-2003 | 1,000 of 3,250 (dev) | 1.0e-06 | 2.3e-05 | 3.0e-06 | 0 |" in text
    assert (
        "| CoNLL-2003 | entity F1 | 90.00 | 90.00 | 89.70 | 88.00 | -0.30 | -2.00 |" in text
        and "with 500 texts" in text
    )
    assert "last bit" not in text
    gap |= {"texts_above": 2, "logits": 4e-4}
    (tmp_path / "precision.json").write_text(json.dumps(kept))
    assert "a logit of 2 of 1,001 texts differs by more than 1e-4" in page.page(tmp_path)
