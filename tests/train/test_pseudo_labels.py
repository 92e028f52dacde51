"""Texts without labels: they get those the runtime would give them, are learnt with the labelled ones, and what cannot
be labelled is refused.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from albertkit.albert import Albert
from albertkit.artifact import read_artifact, write_artifact
from albertkit.cli.entry_point import app
from albertkit.compress.static_model import make_static_model
from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import TaggedExample, TextExample
from albertkit.train import finetune as tune
from albertkit.train.elastic import UnlabelledTexts, finetune_elastic, pseudo_label
from albertkit.train.train_settings import ElasticSettings, FinetuneSettings
from tests.train.test_elastic import QUICK, noisy
from tests.train.test_elastic import start as start  # the fixture
from tests.train.test_finetune import choices, tagged, texts

OPTIONS = FinetuneSettings(epochs=6, max_length=40, **QUICK)


@pytest.fixture(scope="module")
def plain(start, tmp_path_factory):
    """A model for two classes."""
    return tune.finetune_examples(
        "classify", texts(160), texts(40, 9), tmp_path_factory.mktemp("plain"), start, OPTIONS
    ).model


@pytest.fixture(scope="module")
def tags(start, tmp_path_factory):
    """A model that marks words."""
    return tune.finetune_examples(
        "tag", tagged(160), tagged(40, 9), tmp_path_factory.mktemp("tags"), start, OPTIONS
    ).model


def test_labels_are_those_of_the_runtime(plain):
    lines = [e.text for e in texts(30, 4)]
    found = pseudo_label(read_artifact(plain), lines, "cpu")
    assert [e.text for e in found] == lines and {e.label for e in found} == {"animal", "tree"}
    assert [e.label for e in found] == [r.label for r in Albert(plain).classify(lines)]


def test_a_tab_stands_between_the_two_of_a_pair(plain):
    (found,) = pseudo_label(read_artifact(plain), ["red cat\tgreen dog\tand more"], "cpu")
    assert isinstance(found, TextExample) and (found.text, found.pair) == ("red cat", "green dog\tand more")


def test_tags_are_those_of_the_runtime(tags):
    lines = [e.text for e in tagged(30, 4)]
    found = pseudo_label(read_artifact(tags), lines, "cpu")
    assert all(isinstance(e, TaggedExample) for e in found) and sum(len(e.spans) for e in found) > 5
    expected = [[(s.start, s.end, s.label) for s in r.spans] for r in Albert(tags).tag(lines)]
    assert [[(s.start, s.end, s.label) for s in e.spans] for e in found] == expected


@pytest.mark.slow
def test_another_model_may_be_the_teacher(plain, start, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("albertkit.train.elastic.pseudo_label", lambda model, lines, device: asked.append(model) or [])
    weak = tune.finetune_examples(
        "classify", noisy(40), noisy(20, 9), tmp_path / "weak", start, FinetuneSettings(epochs=1, **QUICK)
    ).model
    quick = ElasticSettings(epochs=1, **QUICK)
    finetune_elastic(weak, texts(16), texts(16, 3), tmp_path / "a", quick, UnlabelledTexts(["cat"], plain))
    finetune_elastic(weak, texts(16), texts(16, 3), tmp_path / "b", quick, UnlabelledTexts(["cat"]))
    assert [heads(m) for m in asked] == [heads(read_artifact(place)) for place in (plain, weak)]
    assert heads(asked[0]) != heads(asked[1])


def heads(model) -> bytes:
    """What tells two models of one task apart."""
    return b"".join(model.weights[n].tobytes() for n in sorted(model.weights) if n.startswith("heads."))


def test_a_model_without_a_task_learns_that_of_the_teacher(plain, start, tmp_path):
    lines = [e.text for e in texts(30, 4)]
    quick = ElasticSettings(epochs=4, **QUICK)
    done = finetune_elastic(start, texts(60), texts(40, 3), tmp_path / "out", quick, UnlabelledTexts(lines, plain))
    model, master = read_artifact(done.model), read_artifact(plain)
    assert start.metadata.task == "pretrain" and (model.metadata.task, model.metadata.labels) == (
        "classify",
        master.metadata.labels,
    )
    assert model.metadata.details["max_length"] == 40  # the teacher's
    assert model.metadata.history[-1]["examples"] == 90 and model.metadata.history[-1]["step"] == "elastic"
    assert heads(model) != heads(master)
    assert Albert(done.model).classify("a red cat", depth=1).label in master.metadata.labels


def test_a_model_without_a_task_and_without_texts_is_refused(plain, start, tmp_path):
    with pytest.raises(AlbertkitError, match="Pass texts as well"):
        finetune_elastic(
            start,
            texts(16),
            texts(16, 3),
            tmp_path / "x",
            ElasticSettings(epochs=1, **QUICK),
            UnlabelledTexts([], plain),
        )


def test_who_cannot_teach_or_learn_is_refused(plain, start, tmp_path):
    frozen = read_artifact(plain)
    frozen = replace(frozen, metadata=replace(frozen.metadata, details={**frozen.metadata.details, "reads": "vector"}))
    make_static_model(write_artifact(start, tmp_path / "start"), tmp_path / "static", dim=8)
    cases = ((start, start, "the teacher was made for"), (start, frozen, "the teacher is a head on frozen"), (plain, frozen, "the teacher is a head on frozen"),
             (frozen, plain, "this model is a head on frozen"), (tmp_path / "static", plain, "is static"))  # fmt: skip
    for model, teacher, words in cases:
        with pytest.raises(AlbertkitError, match=words):
            finetune_elastic(model, texts(16), texts(16, 3), tmp_path / "x", None, UnlabelledTexts(["cat"], teacher))
    assert not (tmp_path / "x").exists()


def test_labels_that_nobody_knows_are_refused(plain, start, tmp_path):
    odd = [replace(e, label="beast", where=f"train.tsv:{n}") if n == 5 else e for n, e in enumerate(texts(16), 1)]
    for model, more in ((plain, {}), (start, {"unlabelled": UnlabelledTexts(["cat"], plain)})):
        with pytest.raises(AlbertkitError, match=r"cannot be learnt; the first: train.tsv:5: label 'beast'"):
            finetune_elastic(model, odd, texts(16, 3), tmp_path / "x", ElasticSettings(epochs=1, **QUICK), **more)


@pytest.mark.parametrize(
    ("pairs", "line", "words"), [(True, "red cat", "has no tab"), (False, "red\tcat", "has a tab")]
)
def test_texts_have_the_form_of_the_examples(plain, tmp_path, pairs, line, words):
    examples = [replace(e, pair="green dog") if pairs else e for e in texts(16)]
    good = "a\tb" if pairs else "a b"
    with pytest.raises(AlbertkitError, match=f"unlabelled text 2 .* {words}"):
        finetune_elastic(
            plain, examples, examples, tmp_path / "x", ElasticSettings(epochs=1, **QUICK), UnlabelledTexts([good, line])
        )


@pytest.mark.parametrize(("teacher", "lines"), [("tags", ["cat"]), ("plain", [])])
def test_a_teacher_of_another_kind_or_without_texts_is_refused(teacher, lines, plain, tags, tmp_path):
    unlabelled = UnlabelledTexts(lines, {"tags": tags, "plain": plain}[teacher])
    with pytest.raises(AlbertkitError, match=r"teacher has task tag|Pass texts as well"):
        finetune_elastic(plain, texts(16), texts(16, 3), tmp_path / "x", ElasticSettings(epochs=1, **QUICK), unlabelled)
    assert not (tmp_path / "x").exists()


def test_a_line_is_no_question_with_choices(start, tmp_path):
    made = tune.finetune_examples(
        "choose", choices(24), choices(12, 3), tmp_path, start, FinetuneSettings(epochs=1, **QUICK)
    )
    with pytest.raises(AlbertkitError, match="this model is for choose"):
        pseudo_label(read_artifact(made.model), ["which one"], "cpu")


def test_the_verb_takes_them(plain, tmp_path):
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"{e.text}\t{e.label}\n" for e in texts(40)))
    (tmp_path / "more.txt").write_text("\n\n".join(e.text for e in texts(20, 5)))
    out = CliRunner().invoke(
        app, ["elastic", str(plain), str(tmp_path / "train.tsv"), "-o", str(tmp_path / "out"), "--texts", str(tmp_path / "more.txt"), "--epochs", "1", "--device", "cpu"]
    )  # fmt: skip
    assert out.exit_code == 0, out.output
    assert "labelling 20 texts" in out.output
    assert json.loads((tmp_path / "out" / "runs.json").read_text())
    assert read_artifact(tmp_path / "out" / "model").metadata.history[-1]["examples"] == 36 + 20


def test_the_verb_begins_with_a_model_without_a_task(plain, start, tmp_path):
    write_artifact(start, tmp_path / "start")
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"{e.text}\t{e.label}\n" for e in texts(40)))
    (tmp_path / "more.txt").write_text("\n".join(e.text for e in texts(20, 5)))
    given = ["elastic", str(tmp_path / "start"), str(tmp_path / "train.tsv"), "-o", str(tmp_path / "out"), "--epochs", "1", "--device", "cpu"]  # fmt: skip
    out = CliRunner().invoke(app, [*given, "--texts", str(tmp_path / "more.txt"), "--teacher", str(plain)])
    assert out.exit_code == 0, out.output
    assert read_artifact(tmp_path / "out" / "model").metadata.task == "classify"
    out = CliRunner().invoke(app, [*given, "--texts", str(tmp_path / "more.txt")])
    assert out.exit_code != 0 and "or name a --teacher" in str(out.exception)
    out = CliRunner().invoke(app, [*given, "--teacher", str(plain)])
    assert "Add --texts" in str(out.exception)
    (tmp_path / "none.txt").write_text("\n")
    out = CliRunner().invoke(app, [*given, "--teacher", str(plain), "--texts", str(tmp_path / "none.txt")])
    assert "none.txt contains no text" in str(out.exception)
