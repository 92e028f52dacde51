"""States of dialogues, from what turns say."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from albertkit.tasks.dialogue import (
    NAMED,
    DialogueState,
    DialogueTask,
    track_states,
    true_state,
    turn_labels,
    values_in_text,
)
from albertkit.tasks.examples import DialogueTurn

TURNS = [
    DialogueTurn("600", 0, "", "An expensive place in the south.", (("area", "south"), ("price range", "expensive")),
         (("price range", "expensive"), ("area", "south")), "woz.json:1"),
    DialogueTurn("600", 1, "There is Chiquito.", "Its phone? Any area is fine.", (("area", "dontcare"), ("price range", "expensive")),
         (("request", "phone"), ("request", "address"), ("area", "dontcare"))),
    DialogueTurn("600", 2, "01223 400170.", "Thank you.", (("area", "dontcare"), ("price range", "expensive")), ()),
    DialogueTurn("601", 0, "", "Tuscan food.", (("food", "tuscan"),), (("food", "tuscan"),)),
]  # fmt: skip


def oracle(turns):
    return [dict.fromkeys(turn_labels(turn), 0.9) for turn in turns]


def measure(states, turns):
    return DialogueTask(("a=b",)).measure(states, turns)


def test_labels_of_a_turn_are_sorted_pairs_of_slot_and_value():
    assert turn_labels(TURNS[0]) == ["area=south", "price range=expensive"]
    assert (
        turn_labels(TURNS[1]) == ["area=dontcare", "request=address", "request=phone"] and turn_labels(TURNS[2]) == []
    )


def test_track_by_hand():
    states = track_states(TURNS, oracle(TURNS))
    assert states == [true_state(turn) for turn in TURNS]
    assert states[1] == DialogueState({"price range": "expensive", "area": "dontcare"}, frozenset({"phone", "address"}))
    assert states[2].requests == frozenset() and states[3].goal == {"food": "tuscan"}
    assert measure(states, TURNS) == {
        "joint_goal": 1,
        "requests": 1,
        "slot_area": 1,
        "slot_food": 1,
        "slot_price range": 1,
    }


def test_the_likeliest_value_above_the_threshold():
    turns = [DialogueTurn("1", i, "", "") for i in range(3)]
    found = track_states(
        turns,
        [
            {"area=south": 0.6, "area=north": 0.7, "food=thai": 0.4, "request=phone": 0.49},
            {"area=south": 0.3, "food=thai": 0.5, "request=phone": 0.5},
            {"area=east": 0.51, "area=dontcare": 0.9, "food=a=b": 0.8},
        ],
    )
    assert [s.goal for s in found] == [
        {"area": "north"},
        {"area": "north", "food": "thai"},
        {"area": "dontcare", "food": "a=b"},
    ]
    assert [set(s.requests) for s in found] == [set(), {"phone"}, set()]
    assert track_states(turns[:1], [{"area=south": 0.6}], threshold=0.7)[0].goal == {}


def test_dialogues_do_not_mix():
    a, b = DialogueTurn("a", 0, "", ""), DialogueTurn("b", 0, "", "")
    found = track_states([a, b, DialogueTurn("a", 1, "", ""), a], [{"x=1": 1.0}, {"x=2": 1.0}, {}, {}])
    assert [s.goal for s in found] == [{"x": "1"}, {"x": "2"}, {"x": "1"}, {}]  # the last begins anew


def test_measure_by_hand():
    guesses = oracle(TURNS)
    guesses[0].pop("area=south")  # wrong in the first turn only: the second says it anew
    guesses[1].pop("request=phone")
    guesses[3] = {"food=thai": 0.9}  # "tuscan" was not seen in training
    found = measure(track_states(TURNS, guesses), TURNS)
    assert next(iter(found)) == "joint_goal"
    assert found == {"joint_goal": 0.5, "requests": 0.75, "slot_area": 0.75, "slot_food": 0.75, "slot_price range": 1.0}
    assert measure([], []) == {"joint_goal": 0.0, "requests": 0.0}


def test_values_that_the_words_name_share_a_label():
    task = DialogueTask.from_examples(TURNS)
    assert task.known_labels == ("area=dontcare", "area=south", "food=tuscan", "price range=expensive", "request=address",
                          "request=phone")  # fmt: skip
    assert task.labels == (f"area={NAMED}", "area=dontcare", f"food={NAMED}", f"price range={NAMED}",
                           "request=address", "request=phone")  # fmt: skip
    assert task.training_labels(TURNS)[:2] == [
        (f"area={NAMED}", f"price range={NAMED}"),
        ("area=dontcare", "request=address", "request=phone"),
    ]


def test_a_value_is_read_from_the_words():
    task = dataclasses.replace(
        DialogueTask.from_examples(TURNS), known_labels=(*DialogueTask.from_examples(TURNS).known_labels, "food=thai")
    )
    turns = [
        DialogueTurn("1", 0, "", "Thai, please."),
        DialogueTurn("1", 1, "", "Something else."),
        DialogueTurn("1", 2, "", "The south."),
    ]
    rows = [np.where(np.array(task.labels) == f"food={NAMED}", 5.0, -5.0)] * 2 + [np.full(6, -5.0)]
    found = task.results(rows, [], turns)
    assert [state.goal for state in found] == [{"food": "thai"}] * 3  # no other turn names a value of food


def test_which_value_the_words_name():
    known = ("area=north", "food=american", "food=north american", "food=中餐", "price range=cheap", "request=food")
    users = ["North American food in the NORTH", "american, or rather north american", "cheaper food", "想吃中餐吗"]
    found = values_in_text([DialogueTurn("1", n, "cheap", user) for n, user in enumerate(users)], known)
    assert found == [{"food": "north american", "area": "north"}, {"food": "north american"}, {}, {"food": "中餐"}]
    assert values_in_text([DialogueTurn("1", 0, "", "food")], ("request=food",)) == [{}]


said = st.dictionaries(st.sampled_from(["food", "area"]), st.sampled_from(["x", "y", "dontcare"]))


@given(st.lists(st.tuples(st.sampled_from("ab"), said, st.sets(st.sampled_from(["phone", "address"]))), max_size=10))
def test_what_turns_say_adds_up(drawn):
    goals: dict[str, dict[str, str]] = {}
    turns = []
    for number, (name, new, requests) in enumerate(drawn):
        goals[name] = {**goals.get(name, {}), **new}
        says = (*new.items(), *(("request", slot) for slot in requests))
        turns.append(DialogueTurn(name, number, "", "", tuple(goals[name].items()), says))
    states = track_states(turns, oracle(turns))
    assert states == [true_state(turn) for turn in turns]
    assert set(measure(states, turns).values()) <= {1.0} or not turns


@given(st.lists(st.tuples(said, st.sampled_from(["x", "x or y", "y y", "none"])), min_size=1, max_size=8))
def test_sure_scores_give_back_what_turns_say(drawn):
    """Folding and reading lose nothing, whatever the words name."""
    state: dict[str, str] = {}
    turns = []
    for number, (new, user) in enumerate(drawn):
        state = {**state, **new}
        turns.append(DialogueTurn("1", number, "", user, tuple(state.items()), (*new.items(), ("request", "x"))))
    task = DialogueTask.from_examples(turns)
    rows = [np.array([9.0 if label in row else -9.0 for label in task.labels]) for row in task.training_labels(turns)]
    assert task.results(rows, [], turns) == [true_state(turn) for turn in turns]
