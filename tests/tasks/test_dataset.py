"""Bad data is named before an epoch is spent: held-out labels, rare classes, lists of examples, one value only."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albertkit.errors import AlbertkitError
from albertkit.tasks import make_task
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.dataset import check_labels, read_splits, split_examples, validate_examples
from albertkit.tasks.examples import ChoiceExample, QuestionExample, RewriteExample, Span, TaggedExample, TextExample
from albertkit.tasks.readers import ReadOptions, read_examples


def texts(*labels):
    return [TextExample(f"text {n}", label=label, where=f"t:{n}") for n, label in enumerate(labels)]


def parts(tmp_path, train, dev):
    found = {}
    for name, labels in (("train", train), ("dev", dev)):
        found[name] = tmp_path / f"{name}.csv"
        rows = "".join(f"{name} text {n},{label}\n" for n, label in enumerate(labels))
        found[name].write_text(f"text,stars\n{rows}")
    return found


# Held-out labels -----------------------------------------------------------------------------------------------------


def test_held_out_labels_that_training_never_shows():
    with pytest.raises(
        AlbertkitError,
        match=r"training has none of the labels; the first is t:0: label 'pos', and training has good",
    ):
        check_labels(texts("good", "bad"), texts("pos", "neg"))
    with pytest.raises(AlbertkitError, match="none of the labels.*label '3'"):
        check_labels(texts(1, 2), texts(3))
    assert "1 label of 2 unknown" in check_labels(texts("good", "bad"), texts("good", "neg"))[0]
    unlabelled = [TextExample("a", "b"), TextExample("c", "d")]
    assert check_labels(unlabelled, [TextExample("e", "f", "1")]) == ()  # pairs alone


@pytest.mark.parametrize(("train", "dev"), [((1.5, 2.0), ("good",)), (("good", "bad"), (1.5,))])
def test_numbers_beside_classes(train, dev):
    with pytest.raises(
        AlbertkitError, match="t:0: the label is .*, but the first example has .*; use one kind for all"
    ):
        check_labels(texts(*train), texts(*dev))


def test_held_out_files_are_read_as_training_is(tmp_path):
    said: list[str] = []
    files = parts(tmp_path, [n / 4 for n in range(30)], range(5))
    found = read_splits("classify", files, ReadOptions(label_column="stars"), said.append)
    assert [e.label for e in found["dev"]] == [0.0, 1.0, 2.0, 3.0, 4.0] and not any("unknown" in text for text in said)
    files = parts(tmp_path, [1, 2, 3] * 5, [n / 16 for n in range(1, 15)])
    with pytest.raises(AlbertkitError, match="none of the labels.*--kind"):
        read_splits("classify", files, ReadOptions(label_column="stars"), said.append)
    found = read_splits("classify", files, ReadOptions(label_column="stars", kind="regression"), said.append)
    assert found["train"][0].label == 1.0 and found["dev"][0].label == 1 / 16


def test_no_known_label_leaves_the_temperature():
    task = ClassifyTask(("a", "b"))
    assert task.fit_temperature(np.zeros((2, 2)), texts("c", "d")) == 1.0
    assert task.fit_temperature(np.array([[3.0, 0.0]] * 2), texts("a", "b")) > 1.0


# What is held out ----------------------------------------------------------------------------------------------------


def spans(*labels):
    return [TaggedExample("a b", ((0, 1), (2, 3)), (Span(0, 1, label),), "ask") for label in labels]


def test_one_example_cannot_be_held_out():
    with pytest.raises(AlbertkitError, match="1 example was found, so none can be held out. Add examples"):
        split_examples(texts("a"))


@given(st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=60), st.booleans())
def test_no_class_goes_away_and_what_needs_no_change_has_none(labels, entities):
    examples = spans(*labels) if entities else texts(*labels)
    if len(set(labels)) == len(labels):
        with pytest.raises(AlbertkitError, match="only one of a class.*--dev"):
            split_examples(examples)
        return
    train, dev = split_examples(examples)
    name = (lambda e: e.spans[0].label) if entities else (lambda e: e.label)
    assert {name(e) for e in train} == set(labels) and dev and len(train) + len(dev) == len(labels)
    held = range(0, len(labels), 10)
    if not entities and len(held) > 1 and len({labels[n] for n in held}) == 1 < len(set(labels)):
        held = range(0, len(labels), 11)  # as it always was
    usual = [examples[n] for n in held]
    if {label for n, label in enumerate(labels) if n not in held} == set(labels):
        assert dev == usual
    else:
        assert len(dev) == 1 or all(e in usual for e in dev)


def test_a_rare_class_stays_and_another_is_held_out():
    train, dev = split_examples(texts("rare", *"ab" * 3))
    assert train[0].label == "rare" and [e.text for e in dev] == ["text 1"]
    train, dev = split_examples(texts(*"ababaababarbabaababaabab"))
    assert [e.text for e in dev] == ["text 0", "text 20"] and any(e.label == "r" for e in train)
    intents = [replace(e, intent="rare" if n == 10 else "ask") for n, e in enumerate(spans(*"x" * 21))]
    assert [e.intent for e in split_examples(intents)[1]] == ["ask", "ask"]


# Lists of examples ---------------------------------------------------------------------------------------------------

TAGGED = TaggedExample("Ann sings", ((0, 3), (4, 9)), (Span(0, 3, "PER"),), "tell")
QUESTION = QuestionExample("1", "Who?", "Ann sings to Ann.", ((0, "Ann"),))
BAD = [
    (
        "tag",
        TAGGED,
        TextExample("a", label="x"),
        "tag needs TaggedExample examples, and this is a TextExample; write  TaggedExample",
    ),
    ("intent", TextExample("a", label="x"), TAGGED, "intent needs TextExample examples, and this is a TaggedExample"),
    ("classify", TextExample("a", label="x"), TextExample("b"), "the label is missing; write one"),
    ("classify", TextExample("a", label="x"), TextExample("b", label=["x"]), "the label is a list; write a class"),
    (
        "classify",
        TextExample("a", label="x"),
        TextExample("b", label=2.5),
        "the label is 2.5, but the first example has 'x'; use",
    ),
    (
        "classify",
        TextExample("a", label="x"),
        TextExample("b", label=("x",)),
        "the label is ('x',), but the first example has 'x'; use",
    ),
    ("classify", TextExample("a", label=1.0), TextExample("b", label=float("nan")), "the label is nan"),
    (
        "classify",
        TextExample("a", label=("x",)),
        TextExample("b", label=("x", None)),
        "one class of the label is None; write every class as text",
    ),
    ("match", TextExample("a", "b", 1.0), TextExample("a", "b"), "the label is missing"),
    ("intent", TAGGED, replace(TAGGED, intent=None), "the intent is missing"),
    (
        "tag",
        TAGGED,
        replace(TAGGED, spans=(Span(0, 3, None),)),
        "the entity from 0 to 3 has the label None; write a label",
    ),
    (
        "tag",
        TAGGED,
        replace(TAGGED, spans=(Span(4, 9, "X"), Span(0, 9, "Y"))),
        "the entities 'Ann sings' (Y) and 'sings' (X) overlap; keep one of them",
    ),
    ("answer", QUESTION, replace(QUESTION, answers=((0, "Bob"),)), "the answer 'Bob' is not in the context; correct"),
    ("answer", QUESTION, replace(QUESTION, answers=()), "there is no answer; write one, or mark"),
    (
        "choose",
        ChoiceExample("a", "b", ("c", "d"), 0),
        ChoiceExample("a", "b", ("c", "d")),
        "the answer must be a number from 0 to 1",
    ),
    ("generate", RewriteExample("a", "b"), RewriteExample("a"), "the target is missing; write"),
]


@pytest.mark.parametrize(("task", "good", "bad", "told"), BAD)
def test_lists_are_checked(task, good, bad, told):
    assert validate_examples(task, "train", [good]).examples == [good]
    with pytest.raises(AlbertkitError) as caught:
        validate_examples(task, "train", [good, bad])
    assert "train has 1 problem" in str(caught.value) and f"example 2: {told}" in str(caught.value)


def test_answers_nearby_are_moved_as_in_files():
    data = validate_examples("answer", "dev", [QUESTION, replace(QUESTION, answers=((12, "Ann"),)), replace(QUESTION, answers=(), is_impossible=True)])  # fmt: skip
    assert [e.answers for e in data.examples] == [((0, "Ann"),), ((13, "Ann"),), ()]
    assert data.notes[0] == "1 answer in dev moved to the nearest matching position"
    pairs = [TextExample("a", "b"), TextExample("c", "d")]
    assert validate_examples("match", "train", pairs).examples == pairs  # pairs alone


# Files ---------------------------------------------------------------------------------------------------------------


def test_questions_without_any_answer(tmp_path):
    path = tmp_path / "q.jsonl"
    row = {"question": "Who?", "context": "Ann sings.", "answers": []}
    path.write_text(json.dumps(row))
    data = read_examples("answer", path)
    assert data.notes == ("1 of 1 question taken as unanswerable (is_impossible, or no answers)",)
    with pytest.raises(AlbertkitError, match="none of the 1 questions has an answer.* write them in 'answers'"):
        make_task("answer", data.examples)
    known = row | {"answers": [{"text": "Ann", "answer_start": 0}]}
    path.write_text(json.dumps(row) + "\n" + json.dumps(known))
    data = read_examples("answer", path)
    assert (
        make_task("answer", data.examples).threshold == 0 and "1 of 2 questions taken as unanswerable" in data.notes[0]
    )


@pytest.mark.parametrize("labels", ["B_PER I_PER O", "B_PER O O", "B_PER I_PER MISC"])
def test_labels_with_an_underscore(tmp_path, labels):
    path = tmp_path / "a.conll"
    path.write_text("".join(f"word {label}\n" for label in labels.split()))
    with pytest.raises(AlbertkitError, match="has the label 'B_PER'; .*hyphen, as in B-PER. Write 'B-PER'"):
        read_examples("tag", path)


def test_names_that_only_look_like_it(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("me@x E_MAIL\n12 PHONE\nand O\n")
    assert [span.label for span in read_examples("tag", path).examples[0].spans] == ["E_MAIL", "PHONE"]


def test_other_encodings_are_named(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes("text\tlabel\ncafé\tx\n".encode("latin-1"))
    with pytest.raises(AlbertkitError, match="iconv -f GB18030 .*WINDOWS-1252 or ISO-8859-1"):
        read_examples("classify", path)


def test_integer_classes_become_text_and_integer_values_stay_numbers():
    def labels(*values):
        given = {name: texts(*part) for name, part in zip(("train", "dev"), values, strict=False)}
        found = read_splits("classify", given, ReadOptions(), print)
        return [[example.label for example in part] for part in found.values()]

    assert labels([1, 2, 1], [2, 1]) == [["1", "2", "1"], ["2", "1"]]
    assert labels([(1, 2), (), ("x",)]) == [[("1", "2"), (), ("x",)]]
    assert labels([1.5, 2, 3], [2, 1]) == [[1.5, 2, 3], [2, 1]]


def test_labels_that_may_be_mistakes_are_noted():
    examples = [TextExample(f"text {n}", label="ab"[n % 2]) for n in range(20)]
    assert check_labels(examples) == ()
    (note,) = check_labels([*examples, TextExample("new", label="A")])
    assert "'a' and 'A' are different classes" in note
    (note,) = check_labels([*examples, TextExample("new", label="a, b"), TextExample("newer", label="a,c")])
    assert "the label 'a, b' is one class. Pass --separator ','" in note
    (note,) = check_labels([*examples, TextExample("text 0", label="b", where="t.tsv:21")])
    assert "1 example with another label than the same text before" in note and "t.tsv:21: 'text 0'" in note
