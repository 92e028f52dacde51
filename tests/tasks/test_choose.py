"""Choices: texts put together, cut, and chosen from."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError
from albertkit.tasks.choose import ChooseTask, join_choice
from albertkit.tasks.examples import ChoiceExample
from albertkit.tokenizer import Tokenizer
from tests.conftest import SPIECE

ENGLISH = Tokenizer.from_spiece(SPIECE)
TASK = ChooseTask()
CONTEXT = "Many Chinese people like American country music, such as the songs of John Denver."
SINGER = ChoiceExample(CONTEXT, "John Denver is a great  _  singer.", ("English", "American", "folk"), 1)


@pytest.mark.parametrize(
    ("question", "choice", "text"),
    [
        ("Who sings?", "Denver", "Who sings? Denver"),
        ("He lives in _ .", "Leeds", "He lives in Leeds ."),
        ("He lives in ____.", "Leeds", "He lives in Leeds."),
        ("_ and _ sing", r"\1 a_b", r"\1 a_b and \1 a_b sing"),
        ("", "Leeds", "Leeds"),
        ("谁？", "丹佛", "谁？ 丹佛"),
    ],
)
def test_question_and_choice(question, choice, text):
    assert join_choice(question, choice) == text


def test_features():
    features = TASK.features([SINGER, SINGER], ENGLISH, 64)
    assert [f.target for f in features] == [1, None, None] * 2 and [f.example for f in features] == [0] * 3 + [1] * 3
    whole = ENGLISH.encode(CONTEXT, "John Denver is a great  American  singer.")
    assert (features[1].ids, features[1].segments) == (whole.ids, whole.segments)


def test_the_context_loses_its_end():
    whole = ENGLISH.encode(CONTEXT).ids
    for feature, choice in zip(TASK.features([SINGER], ENGLISH, 20), SINGER.choices, strict=True):
        second = ENGLISH.encode(join_choice(SINGER.question, choice)).ids[1:]
        first = feature.ids.index(ENGLISH.sep_id)
        assert len(feature.ids) == len(feature.segments) == 20 and feature.ids[first + 1 :] == second
        assert feature.ids[:first] == whole[:first] and feature.segments == [0] * (first + 1) + [1] * len(second)


def test_a_long_question_keeps_the_choice():
    long = ChoiceExample(CONTEXT, "why " * 50, ("because", "never"), 0)
    one, two = TASK.features([long], ENGLISH, 12)
    assert len(one.ids) == len(two.ids) == 12 and one.ids != two.ids
    assert one.ids[1:3] == [ENGLISH.encode(CONTEXT).ids[1], ENGLISH.sep_id]
    assert ENGLISH.tokens(one.ids)[-2] == "▁because" and ENGLISH.tokens(two.ids)[-2] == "▁never"
    with pytest.raises(AlbertkitError, match="max_length=4"):
        TASK.features([long], ENGLISH, 4)
    assert [len(f.ids) for f in TASK.features([long], ENGLISH, 5)] == [5, 5]


def test_empty_texts():
    one, two = TASK.features([ChoiceExample("", "", ("yes", ""))], ENGLISH, 8)
    assert ENGLISH.tokens(one.ids) == ["[CLS]", "[SEP]", "▁yes", "[SEP]"] and one.segments == [0, 0, 1, 1]
    assert ENGLISH.tokens(two.ids) == ["[CLS]", "[SEP]", "[SEP]"] and one.target is None


def test_a_question_without_choices():
    with pytest.raises(AlbertkitError, match="has no choices"):
        TASK.features([ChoiceExample("c", "q", (), None)], ENGLISH, 32)


def test_of():
    assert ChooseTask.from_examples([SINGER]) == TASK and TASK.labels == () and TASK.heads == ("choose",)


def test_results_by_hand():
    features = TASK.features([SINGER], ENGLISH, 64)
    (found,) = TASK.results([np.array([x]) for x in np.log([0.2, 0.5, 0.3])], features, [SINGER])
    assert (found.index, found.text) == (1, "American") and found.probabilities == pytest.approx((0.2, 0.5, 0.3))


@settings(max_examples=50)
@given(
    st.lists(st.integers(1, 5).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))), max_size=8),
    st.integers(5, 40),
)
def test_what_targets_say_comes_back(drawn, max_length):
    examples = [
        ChoiceExample(CONTEXT[: 9 * i], "which? " * i, ("a", "é", "北", "👍🏽", "e f g h")[:n], right)
        for i, (n, right) in enumerate(drawn)
    ]
    features = TASK.features(examples, ENGLISH, max_length)
    assert all(len(f.ids) == len(f.segments) <= max_length for f in features)
    assert [sum(f.example == i for f in features) for i in range(len(examples))] == [n for n, _ in drawn]
    firsts = {f.example: i for i, f in reversed(list(enumerate(features)))}
    scores = [
        np.array([4.0 if i - firsts[f.example] == features[firsts[f.example]].target else 0.0])
        for i, f in enumerate(features)
    ]
    found = TASK.results(scores, features, examples)
    assert [f.index for f in found] == [right for _, right in drawn]
    assert [f.text for f in found] == [e.choices[e.answer] for e in examples]
    assert TASK.measure(found, examples) == {"accuracy": 1.0 if examples else 0.0}


def test_measure_by_hand():
    examples = [SINGER, ChoiceExample(CONTEXT, "q", ("a", "b"), 0), ChoiceExample(CONTEXT, "q", ("a", "b"))]
    features = TASK.features(examples, ENGLISH, 64)
    found = TASK.results([np.array([x]) for x in (0.0, 1.0, 0.5, 0.0, 1.0, 0.0, 1.0)], features, examples)
    assert TASK.measure(found, examples) == {"accuracy": 0.5}  # the third says nothing of what is right


@pytest.mark.parametrize(
    ("choices", "told"), [("home", "choices is one text, 'home'"), (["a", None], "text 1 is missing")]
)
def test_choices_that_are_no_list_of_texts_are_an_error(choices, told):
    with pytest.raises(AlbertkitError, match=told):
        Albert().choose("Where?", "Tom went.", choices)


def test_choose_takes_question_and_context_in_the_order_of_answer():
    """Swapped texts give another result without an error."""
    names = [list(signature(method).parameters)[1:3] for method in (Albert.choose, Albert.answer)]
    assert names == [["question", "context"]] * 2
