"""What someone meets who fine-tunes for the first time: files as they come, odd data, the report, the verbs that use
the result.
"""

from __future__ import annotations

import copy
import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from albertkit.albert import Albert
from albertkit.artifact import Artifact, read_artifact, write_artifact
from albertkit.cli.finetune_commands import evaluate, finetune
from albertkit.cli.use_commands import intent
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.sklearn import AlbertClassifier
from albertkit.tasks.answer import AnswerTask
from albertkit.tasks.classify import Classification, ClassifyTask
from albertkit.tasks.dataset import check_known_labels, split_examples
from albertkit.tasks.examples import ChoiceExample, DialogueTurn, QuestionExample, Span, TaggedExample, TextExample
from albertkit.tasks.match import MatchResult, MatchTask, partner_ranks
from albertkit.tasks.readers import ReadOptions, read_examples
from albertkit.tasks.tag import Entity, IntentResult, IntentTask, TagResult, TagTask
from albertkit.tasks.task import Task
from albertkit.tokenizer import Tokenizer
from albertkit.train import finetune_report
from albertkit.train.collapse import find_reason
from albertkit.train.finetune import _with_class_weights
from albertkit.train.finetune import finetune_examples as tune
from albertkit.train.finetune_report import EvaluatedRun, draw_confusion, errors_table, metrics_table
from albertkit.train.finetune_task import FinetuneTask
from albertkit.train.train_settings import FinetuneSettings, TrainSettings
from tests.conftest import tiny
from tests.train.conftest import TOPICS, VOCAB

ANIMALS, TREES = TOPICS[1], TOPICS[2]


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> str:
    """A model's folder."""
    path = tmp_path_factory.mktemp("start")
    (path / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    torch.manual_seed(0)
    config = tiny(vocab_size=len(VOCAB), initializer_range=0.1, max_position_embeddings=64)
    write_artifact(
        Artifact(config, AlbertModel(config).weights(), Tokenizer.from_vocab(path / "vocab.txt")), path / "model"
    )
    return str(path / "model")


def labelled(count: int) -> tuple[list[str], list[str]]:
    """Texts about animals and about trees, which take turns."""
    rng = np.random.default_rng(0)
    rings = [ANIMALS if n % 2 else TREES for n in range(count)]
    return [" ".join(rng.choice(ring, 4)) for ring in rings], ["animal" if n % 2 else "tree" for n in range(count)]


def run(verb, *arguments: str):
    return CliRunner().invoke(verb, [str(argument) for argument in arguments])


# Intents without slots -----------------------------------------------------------------------------------------------


@pytest.fixture
def clinc(tmp_path):
    """A file as CLINC150 has it."""
    texts, labels = labelled(40)
    rows = [list(pair) for pair in zip(texts, labels, strict=True)]
    strange = [["red green blue", "oos"], ["gold zinc tin", "oos"], ["pink white", "oos"]]
    parts = {"train": rows, "val": rows[:10], "test": rows[10:20]}
    path = tmp_path / "data.json"
    path.write_text(json.dumps(parts | {f"oos_{name}": strange for name in parts}))
    return path


@pytest.mark.parametrize("how", [["--freeze"], ["--epochs", "1", "--restarts", "0"]])
def test_intents_without_slots_from_a_file_to_use(clinc, start, tmp_path, how):
    out = tmp_path / "out"
    made = run(finetune, "intent", clinc, "--dev", clinc, "-o", out, "--model", start, *how)
    assert made.exit_code == 0, made.output
    shown = json.loads(made.stdout.splitlines()[-1])
    assert 0 <= shown["in_scope_accuracy"] <= 1 and 0 <= shown["out_of_scope_f1"] <= 1
    assert all(value == round(value, 4) for value in shown.values() if isinstance(value, float))
    measured = run(evaluate, "-m", out / "model", clinc, "--json")
    assert measured.exit_code == 0, measured.output
    assert json.loads(measured.stdout.splitlines()[-1])["examples"] == 13
    said = run(intent, "-m", out / "model", "cat dog")
    assert said.exit_code == 0 and said.output.split("\t")[0] in ("animal", "tree", "oos")
    found = Albert(out / "model").understand(["cat dog", "oak elm"])
    labels = Albert(out / "model").classify(["cat dog", "oak elm"])
    assert [(f.intent, f.probability, f.spans) for f in found] == [(r.label, r.probability, ()) for r in labels]
    report = (out / "report.md").read_text()
    assert "out_of_scope_f1" in report and "errors" in report and (out / "confusion.png").exists()


def test_several_classes_are_no_intent(start, tmp_path):
    artifact = read_artifact(start)
    task = ClassifyTask(("a", "b"), "multi")
    work = FinetuneTask(
        task, artifact, [TextExample("cat", label=("a",)), TextExample("oak", label=("b",))], (), TrainSettings(steps=1)
    )
    write_artifact(
        Artifact(artifact.config, work.model.weights(), artifact.tokenizer, meta(artifact, task)), tmp_path / "m"
    )
    with pytest.raises(AlbertkitError, match="Use classify"):
        Albert(tmp_path / "m").understand("cat")


def meta(artifact: Artifact, task: ClassifyTask):
    import dataclasses

    return dataclasses.replace(artifact.metadata, task="classify", labels=task.labels, details={"kind": task.kind})


# Pairs ----------------------------------------------------------------------------------------------------------------


def test_pairs_without_labels_belong_together(start, tmp_path):
    path = tmp_path / "pairs.tsv"
    texts, _ = labelled(40)
    path.write_text("".join(f"{n} {a}\t{b} {n}\n" for n, (a, b) in enumerate(zip(texts, texts[::-1], strict=True))))
    data = read_examples("match", path)
    assert all(e.label is None and e.pair for e in data.examples) and "every pair matches" in data.notes[-1]
    made = run(finetune, "match", path, "-o", tmp_path / "out", "--model", start, "--epochs", "1", "--restarts", "0")
    assert made.exit_code == 0, made.output
    shown = json.loads(made.stdout.splitlines()[-1])
    assert (
        list(shown)[:3] == ["model", "dev_examples", "nearest"]
        and 0 <= shown["nearest"] <= shown["reciprocal_rank"] <= 1
    )
    assert Albert(tmp_path / "out" / "model").task.loss == "mnrl"


def test_named_pairs_need_no_label_and_a_table_of_texts_is_still_refused(tmp_path):
    (tmp_path / "a.tsv").write_text("id\tasked\tfound\n1\tone cat\tred cat\n2\ttwo dogs\tblue dogs\n")
    named = read_examples("match", tmp_path / "a.tsv", ReadOptions(text_column="asked", pair_column="found"))
    assert [e.label for e in named.examples] == [None, None]
    (tmp_path / "b.tsv").write_text("text\tlabel\none cat\tyes\ntwo dogs\tno\n")
    with pytest.raises(AlbertkitError, match="second text"):
        read_examples("match", tmp_path / "b.tsv")


def test_the_loss_is_chosen_and_what_belongs_apart_is_not_learnt_as_together(start):
    pairs = [TextExample(f"cat {w}", "dog", label) for w, label in zip(ANIMALS, ["1", "0"] * 4, strict=True)]
    task = MatchTask.from_examples(pairs, loss="mnrl")
    features = task.features(pairs, read_artifact(start).tokenizer, 16)
    assert [f.target for f in features[0::2]] == [1.0, None] * 4 and task.target(pairs[1]) == 0
    with pytest.raises(AlbertkitError, match="cosent"):
        MatchTask.from_examples([TextExample("a", "b", 3.5), TextExample("c", "d", 1.0)], loss="mnrl")
    for arguments, said in (
        (["classify", "--loss", "mnrl"], "classify has no option 'loss'"),
        (["match", "--loss", "triplet"], "cosent"),
    ):
        made = run(finetune, arguments[0], __file__, "-o", "out", *arguments[1:])
        assert made.exit_code and (said in str(made.exception) or arguments[0] == "match")


def test_ranks_count_equal_vectors_against_the_partner():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(700, 8))
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    assert partner_ranks(table, table) == [1] * 700
    assert partner_ranks(table[:3] * 0 + 1, table[:3] * 0 + 1) == [3, 3, 3]
    task = MatchTask(loss="mnrl")
    two = task.measure([MatchResult(0.9, 1), MatchResult(0.8, 2)], [TextExample("a", "b"), TextExample("c", "d")])
    assert two == pytest.approx({"nearest": 0.5, "reciprocal_rank": 0.75, "mean_cosine": 0.85})


# Data
# ------------------------------------------------------------------------------------------------------------------


def test_classes_that_take_turns_are_both_held_out():
    texts, labels = labelled(60)
    examples = [TextExample(text, label=label) for text, label in zip(texts, labels, strict=True)]
    train, dev = split_examples(examples)
    assert {e.label for e in dev} == {"animal", "tree"} and len(train) + len(dev) == 60 and 5 <= len(dev) <= 7
    with pytest.raises(AlbertkitError, match="--dev"):
        split_examples(examples[:1])


def test_labels_that_a_model_does_not_know():
    task = ClassifyTask(("good", "bad"))
    known, odd = TextExample("a", label="good", where="t:1"), TextExample("b", label="goood", where="t:2")
    assert check_known_labels(task, [known]) == () and check_known_labels(task, []) == ()
    assert "t:2: label 'goood' (did you mean 'good'?)" in check_known_labels(task, [known, odd])[0]
    with pytest.raises(AlbertkitError, match="none of the labels.*--separator"):
        check_known_labels(task, [odd])
    tags = TagTask(("O", "B-PER", "I-PER"))
    one = TaggedExample("a b", ((0, 1), (2, 3)), (Span(0, 1, "PER"),), "ask")
    assert check_known_labels(tags, [one]) == ()  # intents are nothing to it
    assert "unknown" in check_known_labels(tags, [one, TaggedExample("a", ((0, 1),), (Span(0, 1, "LOC"),))])[0]
    assert (
        "'buy'"
        in check_known_labels(IntentTask(("ask",), tags.labels), [one, TaggedExample("a", ((0, 1),), (), "buy")])[0]
    )
    assert (
        check_known_labels(ClassifyTask(("good", "bad"), min_probability=0.5), [TextExample("a", label="oos"), known])
        == ()
    )


def test_a_regression_is_evaluated_on_numbers_only(start, tmp_path):
    path = tmp_path / "n.csv"
    path.write_text("text,score\n" + "".join(f"cat {w},{n / 3}\n" for n, w in enumerate(ANIMALS * 3)))
    run(finetune, "classify", path, "-o", tmp_path / "out", "--model", start, "--epochs", "1", "--restarts", "0")
    path.write_text("text,label\ncat,good\ndog,bad\n")
    made = run(evaluate, "-m", tmp_path / "out" / "model", path)
    assert isinstance(made.exception, AlbertkitError) and "line 2: the label 'good' is not a number" in str(
        made.exception
    )
    texts, labels = labelled(20)
    path.write_text("text,label\n" + "".join(f"{t},{label}\n" for t, label in zip(texts, labels, strict=True)))
    run(finetune, "classify", path, "-o", tmp_path / "two", "--model", start, "--epochs", "1", "--restarts", "0")
    path.write_text("text,score\n" + "".join(f"cat {w},{n / 3}\n" for n, w in enumerate(ANIMALS * 3)))
    made = run(evaluate, "-m", tmp_path / "two" / "model", path)
    assert "has none of the labels" in str(made.exception)
    with pytest.raises(AlbertkitError, match=r"t:1 has the label 'good'"):
        ClassifyTask((), "regression").target(TextExample("a", label="good", where="t:1"))


def test_errors_name_all_columns_and_the_right_remedy(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("id\tbody\tauthor\tmood\n" + "".join(f"{n}\tsome text {n}\tJohn {n}\tgood\n" for n in range(9)))
    with pytest.raises(AlbertkitError, match=r"text and the label.*--text-column, --label-column"):
        read_examples("classify", path)
    path.write_text("text\tlabel\na\tb\nc\nd\te\tf\n")
    with pytest.raises(AlbertkitError, match=r"line 3: 1 cell.*write all 2.*\n  line 4: 3 cells.*cannot contain"):
        read_examples("classify", path)
    for task, what in (("answer", "SQuAD"), ("choose", "RACE"), ("dialogue", "WOZ")):
        with pytest.raises(AlbertkitError, match=f"is not JSON; this task reads .*{what}"):
            read_examples(task, path)


def test_one_class_among_held_out_texts_gives_no_warning(recwarn):
    found = ClassifyTask(("a", "b")).measure([Classification("a")] * 3, [TextExample("t", label="a")] * 3)
    assert found["mcc"] == 0 and "in_scope_accuracy" not in found and not recwarn.list


# Training
# ----------------------------------------------------------------------------------------------------------------


def test_class_weights_are_refused_where_they_mean_nothing(start, tmp_path):
    with pytest.raises(AlbertkitError, match="one class each"):
        _with_class_weights(TagTask(("O", "B-X", "I-X")), [])
    texts, labels = labelled(20)
    examples = [TextExample(t, label=label) for t, label in zip(texts, labels, strict=True)] + [
        TextExample("oak elm", label="tree")
    ] * 30
    even = tune("classify", examples, examples, tmp_path / "a", start, FinetuneSettings(freeze=True))
    weighed = tune(
        "classify", examples, examples, tmp_path / "b", start, FinetuneSettings(freeze=True, class_weights=True)
    )
    one, two = (Albert(done.model).classify("cat dog").probabilities["animal"] for done in (even, weighed))
    assert two > one


@pytest.mark.parametrize(
    ("task", "examples", "known"),
    [
        ("classify", [TextExample("cat", label="a"), TextExample("oak", label="b")], "accuracy"),
        ("classify", [TextExample("cat", label=1.5), TextExample("oak", label=2.0)], "rmse"),
        ("classify", [TextExample("cat", label=("a",)), TextExample("oak", label=("b", "a"))], "exact"),
        ("match", [TextExample("cat", "dog"), TextExample("oak", "elm")], "nearest"),
        ("tag", [TaggedExample("cat oak", ((0, 3), (4, 7)), (Span(0, 3, "X"),))], "f1_X"),
        ("intent", [TaggedExample("cat", ((0, 3),), (Span(0, 3, "X"),), name) for name in ("ask", "buy")], "exact"),
        ("answer", [QuestionExample("1", "red", "cat oak", ((0, "cat"),))], "f1"),
        ("choose", [ChoiceExample("cat", "red", ("oak", "elm"), 0)], "accuracy"),
        ("dialogue", [DialogueTurn("1", 0, "red", "cat", (("food", "cat"),), (("food", "cat"),))], "joint_goal"),
    ],
)
def test_a_metric_that_there_is_not_is_refused_before_anything_is_learnt(start, tmp_path, task, examples, known):
    with pytest.raises(AlbertkitError, match=f"no metric 'fi'.*{known}"):
        tune(task, examples, examples, tmp_path, start, FinetuneSettings(metric="fi", max_length=32))
    assert not (tmp_path / "runs").exists()


def test_intents_that_differ_are_no_collapse():
    dev = [TaggedExample("a", ((0, 1),), (), str(n)) for n in range(6)]
    differ = [IntentResult(str(n), 0.9, ()) for n in range(6)]
    same = [IntentResult("1", 0.9 - n / 10, ()) for n in range(6)]
    assert not find_reason(SimpleNamespace(task=Task(), dev=dev, results=differ))
    assert find_reason(SimpleNamespace(task=Task(), dev=dev, results=same))


def test_the_threshold_is_found_on_held_out_questions(start):
    """Two questions with an answer of score 3 and 2, and two without whose best score is 1: above 1 is right, above 0
    is not.
    """
    task = AnswerTask(threshold=0.0, stride=2)
    asked = [QuestionExample(str(n), "red", "cat dog", ((0, "cat"),) if n < 2 else (), n >= 2) for n in range(4)]
    features = task.features(asked, read_artifact(start).tokenizer, 16)
    scores = []
    for feature, best in zip(features, (3.0, 2.0, 1.0, 1.0), strict=True):
        table = np.full((len(feature.ids), 2), -9.0)
        at = next(i for i, place in enumerate(feature.offsets or ()) if place == (0, 3))
        table[at], table[0] = best / 2, 0.0
        scores.append(table)
    before = task.results(scores, features, asked)
    better = task.fit_threshold(before, asked)
    after = better.results(scores, features, asked)
    assert [found.text for found in before] == ["cat"] * 4 and [found.text for found in after] == ["cat", "cat", "", ""]
    assert task.measure(before, asked)["f1"] == 0.5 and better.measure(after, asked)["f1"] == 1
    assert AnswerTask().fit_threshold(before, asked) == AnswerTask()


def test_the_threshold_goes_into_the_model(start, tmp_path):
    asked = [
        QuestionExample(str(n), "red", " ".join(ANIMALS), ((0, "cat"),) if n % 3 else (), not n % 3) for n in range(12)
    ]
    done = tune("answer", asked, asked, tmp_path, start, FinetuneSettings(epochs=1, restarts=0, max_length=32))
    assert Albert(done.model).task.threshold == pytest.approx(done.metrics["best_threshold"]) != 0
    assert done.metrics["f1"] == pytest.approx(done.metrics["best_f1"])


# The report
# --------------------------------------------------------------------------------------------------------------


def seen(example, result) -> EvaluatedRun:
    return EvaluatedRun((), [example], None, [result])


@pytest.mark.parametrize(
    ("example", "result", "line"),
    [
        (
            TaggedExample("Ann saw Rome", ((0, 3), (4, 7), (8, 12)), (Span(8, 12, "LOC"),)),
            TagResult("Ann saw Rome", (Entity("Ann", 0, 3, "PER", 0.75),)),
            "| 0.75 | LOC: Rome | PER: Ann | Ann saw Rome |",
        ),
        (
            TaggedExample("fly to Rome", ((0, 3), (4, 6), (7, 11)), (Span(7, 11, "city"),), "flight"),
            IntentResult("fare", 0.5, (Entity("Rome", 7, 11, "city", 0.9),)),
            "| 0.50 | flight; city: Rome | fare; city: Rome | fly to Rome |",
        ),
        (
            ChoiceExample("It rained.", "What fell?", ("rain", "snow"), 0),
            type("ChoiceResult", (), {"index": 1, "text": "snow", "probabilities": (0.25, 0.75)})(),
            "| 0.75 | rain | snow | What fell? |",
        ),
        (TextExample("x", label=("a", "b")), Classification((), 0.5), "| 0.50 | a, b | none | x |"),
    ],
)
def test_errors_are_shown_as_words(example, result, line):
    assert line in errors_table(seen(example, result))


def test_entities_alone_are_not_wrong_for_an_intent():
    assert "No errors" in errors_table(seen(TaggedExample("a", ((0, 1),), (), "ask"), TagResult("a", ())))[0]


def test_the_confusion_of_classes_is_drawn(tmp_path, recwarn):
    dev = [TextExample("x", label=label) for label in ["a", "b"] * 20]
    task = ClassifyTask.from_examples(dev, "single")
    rows = [np.random.default_rng(n).normal(size=2) for n in range(len(dev))]
    lines = draw_confusion(tmp_path / "confusion.png", EvaluatedRun((), dev, task, task.results(rows, (), dev)))
    assert (tmp_path / "confusion.png").is_file() and "confusion.png" in lines[0] and not recwarn.list


@pytest.mark.parametrize("has_font", [True, False])
def test_chinese_classes_are_drawn_without_a_warning(tmp_path, recwarn, monkeypatch, has_font):
    """Without a Chinese font the picture has numbers, and the line below it has the names."""
    monkeypatch.setattr(finetune_report, "CHINESE_FONTS", ("DejaVu Sans",) if has_font else ())
    labels = ["\u7269\u6d41", "\u9000\u6b3e"]
    dev = [TextExample("x", label=label) for label in labels * 20]
    task = ClassifyTask.from_examples(dev, "single")
    rows = [np.random.default_rng(n).normal(size=2) for n in range(len(dev))]
    run = EvaluatedRun((), dev, task, task.results(rows, (), dev))
    lines = draw_confusion(tmp_path / "confusion.png", run)
    assert (f"1 {task.labels[0]} · 2 {task.labels[1]}" in lines) is not has_font
    assert has_font or not recwarn.list


def test_many_metrics_stand_below_each_other():
    runs = [{"seed": 0, "rate": 1e-4, "seconds": 1, "collapsed": 0, "metrics": {f"m{n}": n / 100 for n in range(60)}}]
    lines = metrics_table(runs)
    assert max(line.count("|") for line in lines) < 15 and "| m59 | 0.5900 |" in lines


# scikit-learn's way
# --------------------------------------------------------------------------------------------------------


def test_the_classifier_behaves_as_scikit_learn_expects(start, tmp_path):
    texts, labels = labelled(40)
    whole = make_pipeline(
        FunctionTransformer(lambda rows: [row.lower() for row in rows]), AlbertClassifier(model=start)
    )
    assert whole.fit(texts, labels).score(texts, labels) > 0.9
    search = GridSearchCV(AlbertClassifier(model=start), {"max_length": [8, 16]}, cv=2).fit(texts, labels)
    model = search.best_estimator_
    assert model.albert_.metadata.details["max_length"] == search.best_params_["max_length"]
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(again.predict_proba(texts), model.predict_proba(texts))
    saved = Albert(model.save(tmp_path / "saved")).classify(texts)
    assert [found.label for found in saved] == model.predict(texts).tolist()
    with pytest.raises(AlbertkitError):
        model.save(tmp_path / "saved")


@pytest.mark.parametrize(
    ("texts", "labels", "said"),
    [
        (["a", "b"], ["x"], "2 texts and labels of shape"),
        (["a", "b"], [["x", "y"], ["x", "z"]], "one label per text"),
        ("ab", ["x", "y"], "1 texts and labels of shape"),
        (["a", None], ["x", "y"], "text 1 is missing"),
        (["a", "b"], [None, "y"], "one label is None"),
        (["a", "b", "c"], [0.1, 0.25, 3.3], "continuous"),
    ],
)
def test_the_classifier_says_what_is_wrong(start, texts, labels, said):
    with pytest.raises(ValueError, match=said):
        AlbertClassifier(model=start).fit(texts, np.array(labels, object) if None in labels else labels)
    with pytest.raises(NotFittedError):
        AlbertClassifier(model=start).predict(["a"])
