"""The runs behind docs/results.md: what bench/tasks.py keeps and measures, and the page made of it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys

import numpy as np
import pytest

from albertkit.artifact import Artifact, write_artifact
from albertkit.model import AlbertModel
from albertkit.tasks import make_task
from albertkit.tasks.answer import AnswerResult
from albertkit.tasks.classify import Classification, ClassifyTask
from albertkit.tasks.dialogue import DialogueState
from albertkit.tasks.examples import DialogueTurn, QuestionExample, Span, TaggedExample, TextExample
from albertkit.tasks.tag import Entity, IntentResult, IntentTask, TagResult, TagTask
from albertkit.tokenizer import Tokenizer
from tests.conftest import SPIECE, program, tiny


@pytest.fixture(scope="module")
def load():
    before = list(sys.path)
    yield program
    sys.path[:] = before


WORDS = ((0, 3), (4, 7), (8, 11))
TAGGED = [TaggedExample("abc def ghi", WORDS, (Span(0, 7, "PER"),), "a"), TaggedExample("abc def ghi", WORDS, (Span(8, 11, "LOC"),), "b")]  # fmt: skip
SPANS = (Entity("abc def", 0, 7, "PER", 0.9), Entity("ghi", 8, 11, "LOC", 0.5))
CASES = {
    "classify": ([TextExample(c, None, label) for c, label in zip("uvwx", "abab", strict=True)], [Classification(c, 0.5, {"a": 0.5}) for c in "aabb"]),
    "tag": (TAGGED, [TagResult(e.text, SPANS) for e in TAGGED]),
    "intent": (TAGGED, [IntentResult("a", 0.9, SPANS) for _ in TAGGED]),
    "answer": ([QuestionExample("1", "who?", "abc def", ((0, "abc"),))], [AnswerResult("abc def", 0, 7, 1.0, 0.5, (AnswerResult("def", 4, 7, 0.1, 0.2),))]),
    "dialogue": ([DialogueTurn("1", 0, "", "hi", (("food", "thai"),), (("food", "thai"), ("request", "area")))], [DialogueState({"food": "thai"}, frozenset({"area"}))]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_kept_predictions_measure_the_same(load, tmp_path, name):
    tasks = load("bench/tasks")
    examples, results = CASES[name]
    tasks.keep(tmp_path / "kept.jsonl", results)
    found = [tasks.revive(json.loads(line)) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    task = make_task(name, examples)
    assert task.measure(found, examples) == task.measure(results, examples)
    assert '"abc def ghi"' not in (tmp_path / "kept.jsonl").read_text()  # texts stay where they are


def test_plain_metrics_are_those_of_the_libraries(load, monkeypatch):
    tasks = load("bench/tasks")
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 3, (2, 50))
    texts = [TextExample("t", None, f"class {i}") for i in drawn[0]]
    labels = [Classification(f"class {i}") for i in drawn[1]]
    values = [TextExample("t", None, float(v)) for v in rng.normal(size=20)]
    numbers = [Classification(float(v)) for v in rng.normal(size=20)]
    right = [
        make_task("classify", texts).measure(labels, texts),
        make_task("classify", values).measure(numbers, values),
    ]
    entities = make_task("tag", TAGGED).measure(CASES["tag"][1], TAGGED)
    for kind, name in (
        (ClassifyTask, "measure"),
        (ClassifyTask, "calibrated"),
        (TagTask, "measure"),
        (IntentTask, "measure"),
    ):
        monkeypatch.setattr(kind, name, getattr(kind, name))  # put back afterwards
    tasks.stand_in()
    for measured, (rows, found) in zip(right, ((texts, labels), (values, numbers)), strict=True):
        plain = make_task("classify", rows).measure(found, rows)
        assert plain == pytest.approx({name: measured[name] for name in plain})
    assert make_task("tag", TAGGED).measure(CASES["tag"][1], TAGGED) == pytest.approx({"f1": entities["f1"]})


@pytest.mark.parametrize("libraries", [True, False])
def test_a_run_is_recorded_and_scored(load, tmp_path, monkeypatch, libraries):
    """From files to a record, with the libraries that measure and without; `score` then gives the same."""
    tasks = load("bench/tasks")
    rows = [f"{word} film\t{label}" for word, label in (("good", 1), ("bad", 0)) for _ in range(8)]
    (tmp_path / "sst-2").mkdir()
    for part in ("train", "dev"):
        (tmp_path / "sst-2" / f"{part}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    config = tiny(vocab_size=30000)
    write_artifact(Artifact(config, AlbertModel(config).weights(), Tokenizer.load(SPIECE.parent)), tmp_path / "model")
    args = argparse.Namespace(
        data=tmp_path, start=tmp_path / "model", start_zh=None, name="tiny", out=tmp_path, seeds=2, device="cpu",
        predictions=True, keep=False, examples=None, epochs=1, jobs=1, runs=None,
    )  # fmt: skip
    if not libraries:
        for kind, name in (
            (ClassifyTask, "measure"),
            (ClassifyTask, "calibrated"),
            (TagTask, "measure"),
            (IntentTask, "measure"),
        ):
            monkeypatch.setattr(kind, name, getattr(kind, name))
        monkeypatch.setattr(tasks, "missing", lambda: ["sklearn"])
    with monkeypatch.context() as killed:  # after the training; the same command then goes on with what is trained
        killed.setattr(tasks, "predictions", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tasks.run("sst-2", args)
    checkpoints = list((tmp_path / "tiny" / "runs" / "sst-2" / "runs").glob("*/checkpoints/*"))
    assert checkpoints and not (tmp_path / "tiny" / "sst-2.json").exists()
    before = {path: path.stat().st_mtime_ns for path in checkpoints}
    with monkeypatch.context() as watched:
        seen = []
        watched.setattr(
            tasks.shutil, "rmtree", lambda place, **_: seen.append({p: p.stat().st_mtime_ns for p in before})
        )
        record = tasks.run("sst-2", args)
    assert before in seen  # nothing was trained again
    monkeypatch.undo()
    assert record["examples"] == {"train": 16, "dev": 16}
    tasks.score(tmp_path / "tiny", tmp_path)
    scored = json.loads((tmp_path / "tiny" / "sst-2.json").read_text())
    assert all(0 <= one["metrics"]["accuracy"] <= 1 for one in scored["runs"])
    assert not libraries or scored == record
    assert str(tmp_path) not in json.dumps(scored)


def test_texts_out_of_scope_are_scored(load):
    tasks = load("bench/tasks")
    held = [TextExample("a", None, "x"), TextExample("b", None, "oos"), TextExample("c", None, "oos")]
    found = [Classification(label, 0.9, {}) for label in ("x", "oos", "x")]
    scores = tasks.measure(tasks.SETS["clinc150-small"], found, {"train": held, "test": held})
    assert scores["out_of_scope_recall"] == 0.5 and scores["in_scope_accuracy"] == 1.0


def test_every_data_set_has_a_place_on_the_page(load):
    sets, page = load("bench/tasksets").SETS, load("docs/results_page")
    assert {name for titles in page.TITLES.values() for name in titles} == set(sets)
    assert {name for name, one in sets.items() if one.chinese} == set(page.TITLES["zh"])
    published = json.loads((page.RESULTS / "published.json").read_text(encoding="utf-8"))
    for name, scores in published["scores"].items():
        assert set(scores) <= set(sets[name].metrics), name
        for models in scores.values():
            assert set(models) <= set(published["models"])
    assert all(about["source"] for about in published["models"].values())


def test_the_page_shows_what_was_measured(load, tmp_path):
    page = load("docs/results_page")
    shutil.copy(page.RESULTS / "published.json", tmp_path)
    assert "No run has been recorded yet." in page.page(tmp_path)
    run = {"seed": 0, "seconds": 10.0, "metrics": {"accuracy": 0.88}}
    record = {
        "data": "sst-2", "task": "classify", "note": "dev", "metrics": ["accuracy"], "cap": None, "held": "dev", "jobs": 1,
        "start": {"name": "ours", "parameters": 5_900_000, "layers": 12, "hidden": 384}, "examples": {"train": 67349, "dev": 872},
        "runs": [run, {**run, "metrics": {"accuracy": 0.9}}], "device": "a GPU", "versions": {"torch": "2"},
    }  # fmt: skip
    (tmp_path / "tasks" / "ours").mkdir(parents=True)
    (tmp_path / "tasks" / "ours" / "sst-2.json").write_text(json.dumps(record))
    text = page.page(tmp_path)
    assert "| SST-2 | accuracy | **89.0** ± 1.4 | 83.2 | 85.9 |" in text
    assert "3 are above ours: ALBERT-base v2 on SST-2 accuracy by 3.9" in text
    (tmp_path / "tasks" / "ours" / "sst-2.json").write_text(json.dumps({**record, "cap": 64}))
    assert "SST-2 |" not in page.page(tmp_path)  # a trial run is not a result
