"""Windows over contexts, spans of answers, and the grades of SQuAD and CMRC 2018."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.errors import AlbertkitError
from albertkit.tasks.answer import (
    AnswerResult,
    AnswerTask,
    best_threshold,
    grade,
    is_chinese,
    normalize_english,
    whole_words,
)
from albertkit.tasks.examples import QuestionExample
from albertkit.tokenizer import Tokenizer
from tests.conftest import SPIECE

ENGLISH = Tokenizer.from_spiece(SPIECE)
CONTEXT = "The Denver Broncos defeated the Carolina Panthers 24–10 to earn their third Super Bowl title."
BRONCOS = QuestionExample("1", "Who won?", CONTEXT, ((4, "Denver Broncos"),))
ZH = "生命数耗完即算为踢爆。若游戏中离，则4分钟内不得进行配对。"


@pytest.fixture(scope="module")
def chinese(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("zh") / "vocab.txt"
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(ZH) - set("配对")), "nexon", "##s"]
    path.write_text("\n".join(known) + "\n", encoding="utf-8")
    return Tokenizer.from_vocab(path)


def oracle(features, high: float = 9.0) -> list[np.ndarray]:
    """Scores that say what the targets say."""
    tables = [np.zeros((len(f.ids), 2)) for f in features]
    for table, feature in zip(tables, features, strict=True):
        for side in (0, 1):
            table[feature.target[side], side] = high
    return tables


def ask(task: AnswerTask, examples, tokenizer=ENGLISH, max_length: int = 64):
    features = task.features(examples, tokenizer, max_length)
    return task.results(oracle(features), features, examples)


# Features ------------------------------------------------------------------------------------------------------------


def test_features_english():
    (feature,) = AnswerTask().features([BRONCOS], ENGLISH, 64)
    tokens = ENGLISH.tokens(feature.ids)
    first = tokens.index("[SEP]") + 1
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and tokens.count("[SEP]") == 2
    assert feature.segments == [0] * first + [1] * (len(tokens) - first)
    assert feature.offsets[:first] == [(0, 0)] * first and feature.offsets[-1] == (0, 0)
    a, b = feature.target
    assert CONTEXT[feature.offsets[a][0] : feature.offsets[b][1]] == "Denver Broncos"
    whole = ENGLISH.encode("Who won?", CONTEXT)
    assert (feature.ids, feature.segments) == (whole.ids, whole.segments)


def test_windows_overlap_by_the_stride():
    long = replace(BRONCOS, context=" ".join([CONTEXT] * 5))
    features = AnswerTask(stride=10).features([long], ENGLISH, 40)
    question, context = (ENGLISH.encode(text, add_specials=False).ids for text in (long.question, long.context))
    size = 40 - 3 - len(question)
    starts = range(0, len(context) - 10, size - 10)
    assert [f.ids for f in features] == [[2, *question, 3, *context[start : start + size], 3] for start in starts]
    assert all(f.segments == [0] * (len(question) + 2) + [1] * (len(f.ids) - len(question) - 2) for f in features)
    assert [f.target == (0, 0) for f in features] == [False] + [True] * (len(starts) - 1)


def test_targets():
    def targets(**changes):
        return [f.target for f in AnswerTask().features([replace(BRONCOS, **changes)], ENGLISH, 64)]

    assert targets(answers=()) == [None]  # nothing known
    assert targets(answers=(), is_impossible=True) == [(0, 0)]
    assert targets(answers=((3, "Leeds"),)) == [None]  # not there
    assert targets(answers=((4, ""),)) == [None]
    assert targets(answers=((3, " "),)) == [None]  # no token stands for it
    for start in (-1, 0, 9, 999):  # not at its place
        assert targets(answers=((start, "Denver Broncos"),)) == targets()
    assert targets(answers=((4, "Denver Broncos"), (0, "The Denver Broncos"))) == targets()  # the first counts


def test_place_of_the_nearest():
    question = QuestionExample("1", "?", "a bb a bb a", ((6, "a"),))
    assert question.locate_answers() == (replace(question, answers=((5, "a"),)), 1)
    question = replace(question, context="aaaa", answers=((9, "aa"),))
    assert question.locate_answers()[0].answers == ((2, "aa"),)


def test_answers_are_snapped_to_tokens():
    question = QuestionExample("1", "Colour?", "It was the golden anniversary.", ((11, "gold"),))
    (found,) = ask(AnswerTask(), [question])
    assert (found.text, found.start, found.end) == ("golden", 11, 17)


def test_long_questions_lose_their_end():
    question = replace(BRONCOS, question="Who won? " * 30)
    features = AnswerTask(stride=4).features([question], ENGLISH, 20)
    start = features[0].ids.index(ENGLISH.sep_id)
    assert start == 11 and features[0].ids[1:11] == ENGLISH.encode(question.question).ids[1:11]
    assert all(len(f.ids) <= 20 for f in features)
    places = {p for f in features for p in f.offsets}
    assert places - {(0, 0)} == set(ENGLISH.encode(CONTEXT, add_specials=False).offsets)
    assert ask(AnswerTask(stride=4), [question], max_length=20)[0].text == "Denver Broncos"
    with pytest.raises(AlbertkitError, match="max_length=4"):
        AnswerTask().features([question], ENGLISH, 4)
    assert all(len(f.ids) <= 5 for f in AnswerTask().features([question], ENGLISH, 5))


@pytest.mark.parametrize("context", ["", "   ", "\u200b"])
def test_nothing_to_find(context):
    question = QuestionExample("1", "Who?", context, (), is_impossible=True)
    for task in (AnswerTask(), AnswerTask(threshold=0.0)):
        (found,) = ask(task, [question])
        assert (found.text, found.start, found.end, found.probability) == ("", 0, 0, 1.0)
        assert all(o.text.strip(" ") == "" or o.text == context[o.start : o.end] for o in found.others)
    empty = QuestionExample("1", "", context)
    feature = AnswerTask().features([empty], ENGLISH, 32)[0]
    assert feature.ids[:2] == [ENGLISH.cls_id, ENGLISH.sep_id]


@settings(max_examples=80)
@given(st.data())
def test_what_targets_say_comes_back(data):
    """In long contexts with any stride: the tokens that cover the answer, if a window holds all of them."""
    part = st.sampled_from(
        ["London", " ", "unbelievable", ". ", "naïve ", "北京", "👍🏽", "e\u0301", "\u200b", "24–10 ", "ﬁne "]
    )
    context = "".join(data.draw(st.lists(part, min_size=1, max_size=80)))
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, min(len(context), start + 40)))
    max_length = data.draw(st.integers(5, 60))
    question = QuestionExample(
        "1", "what is it? " * data.draw(st.integers(0, 4)), context, ((start, context[start:end]),)
    )
    task = AnswerTask(
        stride=data.draw(st.integers(0, 40)), max_answer=200, threshold=data.draw(st.sampled_from([None, 0.0]))
    )
    features = task.features([question, BRONCOS], ENGLISH, max_length)
    assert all(len(f.ids) == len(f.segments) == len(f.offsets) <= max_length for f in features)
    real = [place for place in ENGLISH.encode(context, add_specials=False).offsets if place[1] > place[0]]
    own = [f for f in features if f.example == 0]
    assert {p for f in own for p in f.offsets if p[1] > p[0]} == set(real)
    covering = [place for place in real if place[0] < end and place[1] > start]
    if not covering:
        assert all(f.target is None for f in own)
        return
    features = [f for f in features if f.target is not None]
    found, broncos = task.results(oracle(features), features, [question, BRONCOS])
    assert found.text == context[found.start : found.end]
    if any(f.target != (0, 0) for f in own):
        # two tokens may stand for the same characters (ﬁ is two letters), so compare characters
        assert (found.start, found.end) == whole_words(context, covering[0][0], covering[-1][1])
    elif task.threshold is not None:
        assert found.text == ""
    assert broncos.text in ("Denver Broncos", "") or task.threshold is None


@pytest.mark.parametrize("place", [(0, 3), (len(CONTEXT) - 1, len(CONTEXT)), (0, len(CONTEXT)), (50, 55)])
def test_at_the_very_start_and_end(place):
    question = replace(BRONCOS, answers=((place[0], CONTEXT[place[0] : place[1]]),))
    (found,) = ask(AnswerTask(max_answer=60), [question])
    assert (found.start, found.end, found.text) == (*place, CONTEXT[place[0] : place[1]])


def test_chinese(chinese):
    questions = [
        QuestionExample("1", "生命数耗完即算为什么？", ZH, ((ZH.index("踢爆", 6), "踢爆"),)),
        QuestionExample("2", "多少分钟？", ZH, ((ZH.index("4分钟"), "4分钟"),)),
        QuestionExample("3", "？", ZH, ((ZH.index("配对"), "配对"),)),  # unknown to the vocabulary
    ]
    for max_length in (64, 20):
        found = ask(AnswerTask(stride=6), questions, chinese, max_length)
        assert [f.text for f in found] == ["踢爆", "4分钟", "配对"]
        assert AnswerTask().measure(found, questions) == {"f1": 1.0, "exact": 1.0}


# Results -------------------------------------------------------------------------------------------------------------


def scored(
    task: AnswerTask, starts: dict[str, float], ends: dict[str, float], none: float = 0.0, context: str = CONTEXT
):
    """Scores by the text of a token."""
    question = QuestionExample("1", "Who?", context)
    (feature,) = task.features([question], ENGLISH, 64)
    table = np.full((len(feature.ids), 2), -9.0)
    table[0] = none / 2
    for i, (a, b) in enumerate(feature.offsets):
        if b > a:
            table[i] = starts.get(context[a:b], -9.0), ends.get(context[a:b], -9.0)
    return task.results([table], [feature], [question])[0]


def test_best_and_others():
    found = scored(AnswerTask(), {"Denver": 5, "Carolina": 4}, {"Broncos": 5, "Panthers": 3})
    assert (found.text, found.score) == ("Denver Broncos", 10)
    assert [(o.text, o.score) for o in found.others[:2]] == [
        ("Denver Broncos defeated the Carolina Panthers", 8),
        ("Carolina Panthers", 7),
    ]
    assert len(found.others) == 19 and all(CONTEXT[o.start : o.end] == o.text for o in found.others)
    assert found.probability + sum(o.probability for o in found.others) == pytest.approx(1)
    assert found.probability / found.others[0].probability == pytest.approx(np.exp(2))
    few = scored(AnswerTask(n_best=2), {"Denver": 5, "Carolina": 4}, {"Broncos": 5, "Panthers": 3})
    assert [o.text for o in few.others] == ["Denver Broncos defeated the Carolina Panthers"]


def test_an_end_before_its_start_and_long_answers_do_not_count():
    found = scored(AnswerTask(), {"Carolina": 9}, {"Broncos": 9, "Panthers": 1})
    assert found.text == "Carolina Panthers"
    short = scored(AnswerTask(max_answer=1), {"Denver": 5}, {"Denver": 0, "Broncos": 9, "Panthers": 3})
    assert short.text == "Denver"


def test_an_answer_does_not_start_or_end_inside_a_word():
    """Tokens inside a word have the highest scores; Chinese has no spaces, so there any character may be an end."""
    context = "The uncharacteristically loud Broncos won in 1999 by 24-10."
    inside = {context[a:b] for a, b in ENGLISH.encode(context, add_specials=False).offsets}
    tokens = [token for token in sorted(inside) if token in "uncharacteristically"]
    assert len(tokens) > 1
    for first in tokens:
        for last in tokens:
            found = scored(AnswerTask(), {first: 9}, {last: 9}, context=context)
            assert all(
                not (context[place - 1].isalnum() and context[place].isalnum())
                for one in (found, *found.others)
                for place in (one.start, one.end)
                if 0 < place < len(context)
            )
    assert whole_words("\u4e39\u4f5b\u91ce\u9a6c\u961f", 1, 3) == (1, 3)
    assert whole_words("a" * 10_000, 5000, 5001) == (4950, 5051)  # bounded


def test_no_duplicates():
    found = scored(AnswerTask(), {"Leeds": 5}, {"Leeds": 5}, context="Leeds or Leeds or Leeds")
    assert (found.text, found.start, found.score) == ("Leeds", 0, 10)
    texts = [found.text, *(o.text for o in found.others)]
    assert len(texts) == len(set(texts)) > 3


def test_threshold():
    starts, ends = {"Denver": 5}, {"Broncos": 5}
    assert scored(AnswerTask(threshold=None), starts, ends, none=20).text == "Denver Broncos"
    yes = scored(AnswerTask(threshold=0.0), starts, ends, none=8)
    assert (yes.text, yes.score) == ("Denver Broncos", 2) and all(o.text for o in yes.others)
    assert scored(AnswerTask(threshold=2.0), starts, ends, none=8).text == ""  # must be above it
    no = scored(AnswerTask(threshold=3.0), starts, ends, none=8)
    assert (no.text, no.start, no.end, no.score) == ("", 0, 0, 3)
    assert (no.others[0].text, no.others[0].score) == ("Denver Broncos", 2)
    assert no.probability / no.others[0].probability == pytest.approx(np.e)


def test_loud_windows():
    """With a threshold a window is measured against its own [CLS]; without, the highest sum wins."""
    words = [f"w{i}" for i in range(40)]
    question = QuestionExample("1", "?", " ".join(words))
    task = AnswerTask(stride=0)
    features = task.features([question], ENGLISH, 40)
    assert len(features) > 1
    tables = [np.zeros((len(f.ids), 2)) for f in features]
    places = [next(i for i, (a, b) in enumerate(f.offsets) if b > a) for f in features]
    tables[0][places[0]], tables[0][0] = 10, 11  # loud, but more sure that nothing is here
    tables[1][places[1]], tables[1][0] = 6, 1
    first, second = (
        question.context[slice(*whole_words(question.context, *f.offsets[i]))]
        for f, i in zip(features[:2], places, strict=False)
    )
    assert task.results(tables, features, [question])[0].text == first
    found = replace(task, threshold=0.0).results(tables, features, [question])[0]
    assert (found.text, found.score) == (second, 10)


def test_of_and_settings():
    assert AnswerTask.from_examples([BRONCOS]) == AnswerTask() and AnswerTask().threshold is None
    assert AnswerTask.from_examples(
        [BRONCOS, replace(BRONCOS, answers=(), is_impossible=True)], stride=5
    ) == AnswerTask(stride=5, threshold=0.0)
    assert AnswerTask.from_examples([BRONCOS], threshold=1.5).threshold == 1.5
    for bad in ({"stride": -1}, {"max_answer": 0}, {"n_best": 0}):
        with pytest.raises(AlbertkitError, match=next(iter(bad))):
            AnswerTask(**bad)


# Grades --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "right", "exact", "f1"),
    [
        ("Denver Broncos", ["Denver Broncos"], 1, 1),
        ("the  DENVER broncos!", ["Denver Broncos"], 1, 1),
        ("Carolina Panthers team", ["the Carolina Panthers"], 0, 0.8),  # 2 of 3, 2 of 2
        ("Panthers", ["Denver Broncos", "Carolina Panthers"], 0, 2 / 3),  # the best of all
        ("no no yes", ["no yes yes"], 0, 2 / 3),  # words count as often as they stand there
        ("24-10", ["24–10"], 0, 0),  # only ASCII punctuation goes: 2410 is not 24–10
        ("U.S.", ["us"], 1, 1),
        ("theatre", ["atre"], 0, 0),  # articles are words
        ("", ["Denver"], 0, 0),
        ("Denver", [], 0, 0),
        ("", [], 1, 1),
        ("the", [], 1, 1),  # nothing is left of it
    ],
)
def test_squad(text, right, exact, f1):
    question = QuestionExample("1", "?", CONTEXT, tuple((0, r) for r in right), is_impossible=not right)
    assert grade(text, question) == pytest.approx((exact, f1))


@pytest.mark.parametrize(
    ("text", "right", "exact", "f1"),
    [
        ("踢爆", ["踢爆"], 1, 1),
        ("“踢爆”。", ["踢爆"], 1, 1),
        ("即算为踢爆", ["踢爆"], 0, 4 / 7),  # 2 of 5, 2 of 2
        ("水枪小刀锤子", ["水枪锤子"], 0, 0.4),  # one stretch of 2, not both
        ("由韩国Nexon开发", ["nexon"], 0, 2 / 7),  # a foreign word is one
        ("4.5分钟", ["5分钟", "4.5分"], 0, 4 / 5),
        ("锤", ["水枪"], 0, 0),
        ("", ["水枪"], 0, 0),
        ("", [], 1, 1),
    ],
)
def test_cmrc(text, right, exact, f1):
    question = QuestionExample("1", "？", ZH, tuple((0, r) for r in right), is_impossible=not right)
    assert grade(text, question) == pytest.approx((exact, f1))


def test_what_is_chinese():
    assert is_chinese(ZH) and is_chinese("NPC在2014年") and not is_chinese("") and not is_chinese(CONTEXT)
    assert not is_chinese("Beijing (北京) is the capital of China, and it lies in the north.")
    assert normalize_english("An  apple, a day") == "apple day"


def test_measure_by_hand():
    def found(text):
        return AnswerResult(text, 0, 0, 1.0, 1.0)

    unknown = QuestionExample("3", "?", CONTEXT)
    questions = [BRONCOS, replace(BRONCOS, id="2"), unknown]
    measured = AnswerTask().measure([found("Broncos"), found("Denver Broncos"), found("x")], questions)
    assert list(measured) == ["f1", "exact"] and measured == pytest.approx({"f1": (2 / 3 + 1) / 2, "exact": 0.5})
    assert AnswerTask().measure([found("x")], [unknown]) == AnswerTask().measure([], []) == {"f1": 0.0, "exact": 0.0}


def test_measure_with_no_answers():
    none = replace(BRONCOS, answers=(), is_impossible=True)

    def found(text, score, *others):
        return AnswerResult(text, 0, 0, score, 0.5, tuple(others))

    results = [
        found("Denver Broncos", 5.0),
        found("", 0.0, found("Denver Broncos", -1.0)),
        found("Leeds", 2.0),
        found("", 0.0, found("Leeds", -3.0)),
    ]
    measured = AnswerTask(threshold=0.0).measure(results, [BRONCOS, BRONCOS, none, none])
    expected = {"f1": 0.5, "exact": 0.5, "f1_answerable": 0.5, "exact_answerable": 0.5, "right_unanswerable": 0.5}
    # giving the answers above -2 is right in 3 of 4; so is giving none but the first, and that comes first
    assert measured == pytest.approx({**expected, "best_f1": 0.75, "best_threshold": 3.5})
    assert "best_f1" not in AnswerTask().measure(results, [BRONCOS, BRONCOS, none, none])
    alone = AnswerTask(threshold=0.0).measure([found("", 0.0)], [none])
    assert alone == {"f1": 1.0, "exact": 1.0, "right_unanswerable": 1.0, "best_f1": 1.0, "best_threshold": 0.0}


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0])), max_size=12)
)
def test_best_threshold_is_the_best(rows):
    scores, given_, none = ([float(r[i]) for r in rows] for i in range(3))
    best, threshold = best_threshold(scores, given_, none)

    def at(limit):
        return sum(g if s > limit else n for s, g, n in zip(scores, given_, none, strict=True)) / max(1, len(rows))

    assert at(threshold) == pytest.approx(best) and best == pytest.approx(max(at(x / 2) for x in range(-9, 9)))
