"""Tracking what a user wants: `Albert.track`, `albertkit track`, and how verbs read their lines."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.albert import Albert
from albertkit.artifact import Artifact, write_artifact
from albertkit.cli.use_commands import parse_dialogues
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.runtime.predict import predict
from albertkit.tasks.examples import DialogueTurn
from albertkit.tokenizer import Tokenizer
from albertkit.train import finetune as tune
from albertkit.train.train_settings import FinetuneSettings
from tests.conftest import tiny
from tests.test_albert import cli
from tests.train.conftest import TOPICS, VOCAB

PETS, PLANTS = TOPICS[1][:3], TOPICS[2][:3]
TURNS = [("one", "cat two"), ("one", "elm two"), ("one", "three"), ("one", "dog two")]


def lessons(count: int, seed: int) -> list[DialogueTurn]:
    """A pet or a plant is named in each turn, or "three" asks for the price."""
    rng = np.random.default_rng(seed)
    made = []
    for dialogue in range(count):
        state: dict[str, str] = {}
        for number in range(4):
            slot, ring = (("pet", PETS), ("plant", PLANTS), ("request", ["price"]))[int(rng.integers(0, 3))]
            value = str(rng.choice(ring))
            if slot != "request":
                state[slot] = value
            words = "three" if slot == "request" else f"{value} two"
            made.append(DialogueTurn(str(dialogue), number, "one", words, tuple(state.items()), ((slot, value),)))
    return made


def model_of(path):
    """A model that has learnt nothing."""
    vocab = path / "vocab.txt"
    vocab.write_text("\n".join(VOCAB) + "\n")
    torch.manual_seed(0)
    config = tiny(vocab_size=len(VOCAB), initializer_range=0.1, max_position_embeddings=64)
    return write_artifact(Artifact(config, AlbertModel(config).weights(), Tokenizer.from_vocab(vocab)), path / "start")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that learnt the lessons."""
    path = tmp_path_factory.mktemp("dialogue")
    options = FinetuneSettings(epochs=20, batch_size=16, learning_rate=5e-3, device="cpu")
    done = tune.finetune_examples("dialogue", lessons(60, 0), lessons(20, 9), path / "out", model_of(path), options)
    assert done.metrics["joint_goal"] > 0.9 and done.metrics["requests"] > 0.9, done.metrics
    return done.model


@pytest.fixture(scope="module")
def albert(folder):
    return Albert(folder)


# Python ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_track_carries_the_state_and_says_what_was_added(albert):
    found = albert.track(TURNS)
    assert [s.goal for s in found] == [
        {"pet": "cat"},
        {"pet": "cat", "plant": "elm"},
        {"pet": "cat", "plant": "elm"},
        {"pet": "dog", "plant": "elm"},
    ]
    assert [s.added for s in found] == [{"pet": "cat"}, {"plant": "elm"}, {}, {"pet": "dog"}]
    assert [set(s.requests) for s in found] == [set(), set(), {"price"}, set()]
    assert albert.track([("one", "elm two")])[0].goal == {"plant": "elm"}  # a call begins anew


def test_track_is_predict(albert):
    turns = lessons(20, 9)
    assert albert.track(turns) == predict(albert, turns, "dialogue")
    asked = [DialogueTurn("x", n, system, user) for n, (system, user) in enumerate(TURNS)]
    assert albert.track(iter(TURNS)) == albert.track([list(t) for t in TURNS]) == albert.track(asked)
    assert albert.track(["cat two"]) == [albert.track("cat two")] == albert.track([("", "cat two")])
    assert albert.track([]) == []


def test_track_at_a_depth_and_leaving_early(albert):
    asked = [DialogueTurn("x", n, system, user) for n, (system, user) in enumerate(TURNS)]
    assert albert.track(TURNS, depth=1) == predict(albert, asked, "dialogue", 1)
    found = albert.track(TURNS, early_exit="entropy:0.5")
    assert found == predict(albert, asked, "dialogue", early_exit="entropy:0.5")
    assert all(1 <= s.depth <= albert.depth for s in found) and albert.track("cat")
    assert albert.track("cat").depth is None


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        ([("a", "b", "c")], "turn 0 is .*Pass the user's text, or a pair"),
        (["a", None], "turn 1 is None"),
        ([("a", 3)], "turn 0 is"),
        ([b"cat"], "turn 0 is b'cat'"),
        (b"cat", "turns is a bytes. Pass the turns of a dialogue in a list"),
        (3, "turns is an int"),
        (DialogueTurn("1", 0, "", "a"), "turns is a DialogueTurn"),
    ],
)
def test_what_is_no_turn_is_refused(albert, turns, why):
    with pytest.raises(AlbertkitError, match=why):
        albert.track(turns)


# The verb ----------------------------------------------------------------------------------------------------------


def test_the_verb_prints_the_state_after_each_turn(folder, tmp_path):
    typed = "one\tcat two\none\telm two\r\none\tthree\n\n \none\telm two\n"
    want = [
        "pet=cat\t–\tcat two",
        "pet=cat, plant=elm\t–\telm two",
        "pet=cat, plant=elm\tprice\tthree",
        "",
        "plant=elm\t–\telm two",
    ]
    done = cli("track", "-m", folder, text=typed)
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, want, "")
    (tmp_path / "turns.txt").write_bytes(typed.encode())
    assert cli("track", "-m", folder, "--file", tmp_path / "turns.txt").stdout == done.stdout
    given = ["one\tcat two", "one\telm two", "one\tthree", "", "one\telm two"]
    assert cli("track", "-m", folder, *given).stdout == done.stdout
    assert cli("track", "-m", folder, text="").stdout == ""


def test_the_verb_for_machines(folder, albert):
    done = cli("track", "-m", folder, "--json", "--early-exit", "entropy:0.5", text="one\tcat two\none\tthree\n\ndog\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["dialogue"], r["turn"], r["system"], r["user"]) for r in rows] == [
        (0, 0, "one", "cat two"),
        (0, 1, "one", "three"),
        (1, 0, "", "dog"),
    ]
    states = [
        *albert.track(TURNS[:1] + TURNS[2:3], early_exit="entropy:0.5"),
        albert.track("dog", early_exit="entropy:0.5"),
    ]
    for row, state in zip(rows, states, strict=True):
        assert (row["goal"], row["added"], row["requests"]) == (state.goal, state.added, sorted(state.requests))
        assert row["depth"] == state.depth
    assert "layers per text on average" in done.stderr


@pytest.mark.parametrize(
    ("given", "text", "why"),
    [
        (
            (),
            b"cat\n\xff\n",
            "line 2 of stdin is not UTF-8; convert the file from its encoding, such as  iconv -f GB18030 -t UTF-8 ",
        ),
        ((), "cat\n\none\t \n", "line 3 is 'one\\t ': a turn has at most one tab"),
        ((), "one\ttwo\tthree\n", "line 1 is 'one\\ttwo\\tthree'"),
        (("--file", "nowhere.txt"), "", "nowhere.txt cannot be read: No such file"),
        (("cat", "--file", "nowhere.txt"), "", "was passed together with TEXTS"),
    ],
)
def test_bad_lines_are_refused_in_a_sentence(folder, given, text, why):
    done = cli("track", "-m", folder, *given, text=text)
    assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1 and not done.stdout


@pytest.mark.parametrize("verb", ["classify", "tag", "intent"])
def test_a_model_of_another_task_is_refused_with_its_verb(folder, verb):
    done = cli(verb, "-m", folder, "cat")
    assert done.returncode == 2 and "is not available: this model was made for 'dialogue'" in done.stderr
    assert done.stderr.endswith(". Use track.\n")


def test_track_needs_a_model_for_dialogues(tmp_path):
    done = cli("track", "-m", model_of(tmp_path), "cat")
    assert done.returncode == 2 and "Fine-tune it first" in done.stderr


@pytest.mark.parametrize("verb", ["classify", "tag", "intent", "generate"])
def test_bytes_that_are_no_text_are_refused(folder, verb):
    done = cli(verb, "-m", folder, text=b"[MASK]\nb \xe9\n")
    assert done.returncode == 2 and done.stderr.startswith("albertkit: line 2 of stdin is not UTF-8; convert the file")


def test_a_context_that_is_no_text_is_refused(folder):
    done = cli("answer", "-m", folder, "who?", text=b"caf\xe9")
    assert done.returncode == 2 and "line 1 of stdin is not UTF-8" in done.stderr


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(lambda t: bool(t.strip()))


@settings(max_examples=60)
@given(st.lists(st.lists(st.tuples(WORDS | st.just(""), WORDS), min_size=1), min_size=1), st.integers(1, 3))
def test_every_dialogue_is_read_as_it_was_written(written, gap):
    lines = [line for turns in written for line in [*(f"{a}\t{b}" for a, b in turns), *[""] * gap]]
    want = [(str(d), n, a.strip(), b.strip()) for d, turns in enumerate(written) for n, (a, b) in enumerate(turns)]
    assert [(t.dialogue, t.number, t.system, t.user) for t in parse_dialogues(lines)] == want
