"""Questions, choices, dialogues and intents from JSON: SQuAD, CMRC 2018, RACE, WOZ 2.0, CLINC150."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import ChoiceExample, DialogueTurn, QuestionExample, TextExample, nearest_occurrence
from albertkit.tasks.readers import ReadOptions, read_examples


def put(path, value, indent=None):
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=indent)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    return path


def refused(task, path, **options):
    with pytest.raises(AlbertkitError) as caught:
        read_examples(task, path, ReadOptions(**options))
    return str(caught.value)


# SQuAD and CMRC ------------------------------------------------------------------------------------------------------

CONTEXT = "The Broncos beat the Panthers 24–10. The Broncos won."


def squad(*questions, context=CONTEXT, **paragraph):
    return {
        "version": "1.1",
        "data": [{"title": "x", "paragraphs": [{"context": context, "qas": list(questions), **paragraph}]}],
    }


def ask(*answers, id="q1", question="Who?", **more):
    return {"id": id, "question": question, "answers": [{"text": t, "answer_start": s} for t, s in answers], **more}


@pytest.mark.parametrize("indent", [None, 2])
def test_squad(tmp_path, indent):
    path = put(tmp_path / "dev.json", squad(ask(("Broncos", 4), ("The Broncos", 37))), indent)
    data = read_examples("answer", path)
    answers = ((4, "Broncos"), (37, "The Broncos"))
    assert data.examples == [QuestionExample("q1", "Who?", CONTEXT, answers, False, f"{path}:question q1")]
    assert data.notes == ()
    packed = tmp_path / "dev.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_examples("answer", packed).examples[0].answers == answers


def test_squad_2(tmp_path):
    path = put(
        tmp_path / "a.json",
        squad(
            ask(("Panthers", 21), is_impossible=False),
            ask(id="q2", is_impossible=True, plausible_answers=[{"text": "Panthers", "answer_start": 21}]),
            ask(id="q3"),
        ),
    )
    found = [(e.id, e.answers, e.is_impossible) for e in read_examples("answer", path).examples]
    assert found == [("q1", ((21, "Panthers"),), False), ("q2", (), True), ("q3", (), True)]


def test_cmrc_with_wrong_offsets(tmp_path):
    context = "踢爆数计分。生命数耗完即算为踢爆。"
    path = put(
        tmp_path / "trial.json",
        squad(
            ask(("踢爆", 15), id="T_0_Q_0"),
            ask((" 生命数 ", 5), id="T_0_Q_1"),
            ask(("踢爆", 0), id="T_0_Q_2"),
            context=context,
            id="T_0",
        ),
    )
    data = read_examples("answer", path)
    assert [e.answers for e in data.examples] == [((14, "踢爆"),), ((6, "生命数"),), ((0, "踢爆"),)]
    assert data.notes == (f"1 answer in {path} moved to the nearest matching position",)


def test_flat_questions(tmp_path):
    rows = [
        {"id": "a", "context": CONTEXT, "question": "Who?", "answers": {"text": ["Broncos"], "answer_start": [4]}},
        {"context": CONTEXT, "question": "When?", "answers": {"text": [], "answer_start": []}},
        {"context": CONTEXT, "question": "Whom?", "answers": [{"text": "Panthers"}]},
    ]
    path = put(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    found = [(e.id, e.answers, e.is_impossible) for e in read_examples("answer", path).examples]
    assert found == [("a", ((4, "Broncos"),), False), ("2", (), True), ("3", ((21, "Panthers"),), False)]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (squad(ask(("Bears", 4))), "question q1: the answer 'Bears' is not in the context; correct it"),
        (squad(ask(("Broncos", 4), question=" ")), "question q1: the question is empty"),
        (squad(ask()), "there is no answer; write one, or mark the question with is_impossible"),
        (squad(ask(("", 4))), "the answer is empty"),
        (squad({"id": "q1", "question": "Who?"}), "'answers' is missing or has another form"),
        (squad({"id": "q1", "question": "Who?", "answers": ["x"]}), "'answers' is missing or has another form"),
        (squad(ask(("a", 0)), context=""), "data[0].paragraphs[0]: the context is empty"),
        (squad("who"), "qas[0]: contains a str"),
        ({"data": [{"title": "x"}]}, "data[0].paragraphs: this list is missing"),
        ({"data": [{"paragraphs": [{"context": "x"}]}]}, "data[0].paragraphs[0].qas: this list is missing"),
        ({"context": " ", "question": "Who?", "answers": []}, "line 1: the context is empty"),
        ({"version": "1.1"}, "needs 'question' and 'context', but has version"),
    ],
)
def test_bad_questions(tmp_path, file, message):
    assert message in refused("answer", put(tmp_path / "a.json", file))


def test_bad_questions_are_passed_over(tmp_path):
    path = put(tmp_path / "a.json", squad(ask(("Bears", 4)), ask(("Broncos", 4), id="q2"), ask(id="q3")))
    data = read_examples("answer", path, ReadOptions(skip_bad=True))
    assert [e.id for e in data.examples] == ["q2"] and data.notes[0].startswith("2 bad rows skipped")


@given(st.text("ab", max_size=20), st.text("ab", min_size=1, max_size=3), st.integers(-3, 25))
def test_the_nearest_place(context, text, start):
    right = [i for i in range(len(context)) if context.startswith(text, i)]
    found = nearest_occurrence(context, text, start)
    near = min((abs(i - max(start, 0)) for i in right), default=None)
    assert (found is None) == (not right)
    assert found is None or (found in right and abs(found - max(start, 0)) == near)


# RACE ----------------------------------------------------------------------------------------------------------------

RACE = {
    "id": "middle1.txt",
    "article": "It rains.",
    "questions": ["What does it do?", "It is _ ."],
    "options": [["snow", "rain"], ["dry", "wet"]],
    "answers": ["B", "A"],
}
RIGHT = [
    ChoiceExample("It rains.", "What does it do?", ("snow", "rain"), 1),
    ChoiceExample("It rains.", "It is _ .", ("dry", "wet"), 0),
]


def test_race(tmp_path):
    path = put(tmp_path / "train.jsonl", json.dumps(RACE) + "\n")
    found = read_examples("choose", path).examples
    assert [ChoiceExample(e.context, e.question, e.choices, e.answer) for e in found] == RIGHT and found[
        1
    ].where == f"{path}:1"


def test_plain_choices(tmp_path):
    rows = [
        {"context": "It rains.", "question": "What?", "choices": ["snow", "rain", "hail"], "right": 2},
        {"question": "1 + 1?", "choices": ["1", "2"], "right": "b"},
    ]
    found = read_examples("choose", put(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))).examples
    assert [(e.context, e.question, e.answer) for e in found] == [("It rains.", "What?", 2), ("", "1 + 1?", 1)]
    rows[0].pop("right")
    path = put(tmp_path / "b.jsonl", json.dumps(rows[0]))
    assert "the answer must be a number from 0 to 2, in files also a letter up to C" in refused("choose", path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"choices": ["a", "b"], "right": 2, "question": "x"}, "a number from 0 to 1"),
        ({"choices": ["a", "b"], "right": True, "question": "x"}, "a number from 0 to 1"),
        ({"choices": ["a", "b"], "answer": "ß", "question": "x"}, "a number from 0 to 1"),
        ({"choices": ["a"], "right": 0, "question": "x"}, "at least two choices"),
        ({"choices": ["a", " "], "right": 0, "question": "x"}, "the choice is empty"),
        ({"choices": ["a", 2], "right": 0, "question": "x"}, "the choice is an int"),
        ({"choices": ["a", "b"], "right": 0}, "the question is empty"),
        ({"context": "x"}, "needs question, choices and answer, or the fields of RACE, but has context"),
        ({**RACE, "answers": ["A"]}, "needs question, choices and answer, or the fields of RACE"),
        ({**RACE, "options": "AB"}, "needs question, choices and answer, or the fields of RACE"),
        ({**RACE, "article": " "}, "line 1, question 1: the context is empty"),
    ],
)
def test_bad_choices(tmp_path, row, message):
    assert message in refused("choose", put(tmp_path / "a.jsonl", row))


# WOZ 2.0 -------------------------------------------------------------------------------------------------------------


def turn(**changes):
    return {
        "turn_idx": 0,
        "system_transcript": "",
        "transcript": "Cheap thai food? What is the phone number?",
        "turn_label": [["food", "thai"], ["price range", "cheap"], ["request", "phone"]],
        "belief_state": [
            {"act": "request", "slots": [["slot", "phone"]]},
            {"act": "inform", "slots": [["food", "thai"]]},
            {"act": "inform", "slots": [["price range", "cheap"]]},
            {"act": "inform", "slots": [["food", "thai"]]},
        ],
        "asr": [],
        "system_acts": [],
        **changes,
    }


def test_woz(tmp_path):
    later = turn(
        system_transcript="It is 01223. ", transcript="Bye", turn_label=[], belief_state=turn()["belief_state"][1:]
    )
    path = put(tmp_path / "woz.json", [{"dialogue_idx": 7, "dialogue": [turn(), later]}], indent=4)
    state = (("food", "thai"), ("price range", "cheap"))
    assert read_examples("dialogue", path).examples == [
        DialogueTurn("7", 0, "", turn()["transcript"], state, (*state, ("request", "phone")), f"{path}:2"),
        DialogueTurn("7", 1, "It is 01223.", "Bye", state, (), f"{path}:2"),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transcript": ""}, "line 1, turn 0: the user's text is empty"),
        ({"turn_label": [["food"]]}, "must be lists like"),
        ({"belief_state": [{"act": "inform", "slots": [["food", 1]]}]}, "must be lists like"),
        ({"belief_state": None}, "needs a list of acts in 'belief_state', but has turn_idx"),
    ],
)
def test_bad_turns(tmp_path, changes, message):
    assert message in refused("dialogue", put(tmp_path / "a.json", [{"dialogue": [turn(**changes)]}]))


def test_other_bad_dialogues(tmp_path):
    assert "needs a list of turns in 'dialogue'" in refused("dialogue", put(tmp_path / "a.json", [{"turns": []}]))
    assert "contains no object" in refused("dialogue", put(tmp_path / "a.json", [{"dialogue": ["hello"]}]))
    assert "'3' is not a JSON object; write one in braces" in refused("dialogue", put(tmp_path / "a.json", [3]))


# CLINC150 ------------------------------------------------------------------------------------------------------------


def test_clinc(tmp_path):
    file = {
        "oos_train": [["a show on broadway", "oos"]],
        "train": [["book a flight ", "book_flight"], ["what is up", "greeting"]],
        "val": [["hi", "greeting"]],
    }
    path = put(tmp_path / "data_small.json", file, indent=4)
    data = read_examples("intent", path)
    assert [(e.text, e.label) for e in data.examples] == [
        ("book a flight", "book_flight"),
        ("what is up", "greeting"),
        ("a show on broadway", "oos"),
    ]
    assert data.notes == ("read from oos_train and train; oos is the label of out-of-scope texts",)
    assert read_examples("intent", path, ReadOptions(split="dev")).examples == [
        TextExample("hi", None, "greeting", f"{path}:val 1")
    ]
    assert len(read_examples("intent", path, ReadOptions(split="oos_train")).examples) == 1
    assert "has no split 'test'; it has oos_train, train, val" in refused("intent", path, split="test")


def test_bad_clinc(tmp_path):
    path = put(tmp_path / "a.json", {"train": [["a", "x"], ["b"], ["", "x"], ["c", 3]]})
    message = refused("intent", path)
    assert "3 problems" in message and "train 2: write a text and an intent" in message
    assert "train 3: the text is empty" in message and "train 4: the intent is an int" in message


def test_intents_in_a_table(tmp_path):
    path = put(tmp_path / "a.csv", "text,intent\nhi,greeting\nbye,parting\n")
    assert [e.label for e in read_examples("intent", path).examples] == ["greeting", "parting"]
    path = put(tmp_path / "a.jsonl", '{"text": "hi", "intent": "greeting"}\n')
    assert read_examples("intent", path).examples[0].label == "greeting"
    path = put(tmp_path / "a.json", [{"text": "hi", "intent": "greeting"}])
    assert read_examples("intent", path).examples[0].label == "greeting"
