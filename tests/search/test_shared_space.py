"""English and Chinese vectors in one space."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from albertkit import Albert, AlbertkitError, Index, Record, SharedSpace
from albertkit.cli.entry_point import app
from albertkit.runtime.shared_map import read_shared_maps

PAIRS = [
    ("Where is the station?", "车站在哪里？"),
    ("I would like to return these shoes.", "我想退掉这双鞋。"),
    ("The doctor is not here today.", "医生今天不在。"),
    ("How much does this book cost?", "这本书多少钱？"),
    ("It will rain tomorrow.", "明天会下雨。"),
    ("My sister plays the piano.", "我妹妹弹钢琴。"),
]


@pytest.fixture(scope="module")
def space() -> SharedSpace:
    return SharedSpace()


def test_a_translation_is_the_nearest_text_at_every_trained_depth():
    for depth in (3, 6, 12):
        space = SharedSpace(depth=depth)
        english, chinese = (space.embed([pair[side] for pair in PAIRS]) for side in (0, 1))
        scores = english @ chinese.T
        assert (scores.argmax(1) == np.arange(len(PAIRS))).all() and (scores.argmax(0) == np.arange(len(PAIRS))).all()


def test_each_text_has_the_vector_of_the_model_of_its_language(space):
    texts = ["a cat", "一只猫", "12", ""]
    found = space.embed(texts)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    for text, vector in zip(texts, found, strict=True):
        name = "small-zh" if text == "一只猫" else "small"
        assert np.array_equal(vector, Albert(name).embed(text, space="shared"))
    assert np.array_equal(space.embed("a cat"), found[0]) and space.embed([]).shape == (0, 384)


def test_most_of_a_text_decides_its_model(space):
    plain, mixed = space.embed(["My order arrived damaged today", "My order 订单 arrived damaged today"])
    assert plain @ mixed > 0.7
    assert np.array_equal(space.embed("我的 iPhone 坏了"), Albert("small-zh").embed("我的 iPhone 坏了", space="shared"))


def test_the_map_of_chinese_vectors_is_a_rotation_of_centred_vectors():
    english, chinese = read_shared_maps().values()
    assert english.rotation is None and chinese.rotation is not None
    assert np.abs(chinese.rotation @ chinese.rotation.T - np.eye(384)).max() < 1e-3


def test_other_models_and_other_pooling_have_no_shared_space():
    with pytest.raises(AlbertkitError, match="space='shared' is not available for this model: only the built-in"):
        Albert("small-pretrained").embed("a cat", space="shared")
    with pytest.raises(AlbertkitError, match="mean pooling, no layer"):
        Albert().embed("a cat", space="shared", pooling="cls")
    with pytest.raises(AlbertkitError, match="space"):
        Albert().embed("a cat", space="other")


def test_an_index_with_both_languages_is_searched_in_both(space, tmp_path):
    with Index.create(tmp_path / "both.idx", space) as index:
        index.add([Record(str(n), text) for n, pair in enumerate(PAIRS) for text in pair[n % 2 : n % 2 + 1]])
        for n, pair in enumerate(PAIRS):
            query = pair[1 - n % 2]  # the language that the index does not have
            assert index.search(query, k=1, mode="vector")[0].id == str(n)
    with pytest.raises(AlbertkitError, match="was built with model small-en-zh"):
        Index.open(tmp_path / "both.idx", Albert())


def test_similarity_compares_two_texts():
    assert SharedSpace(depth=3).similarity(*PAIRS[0]) > 0.5
    with pytest.raises(AlbertkitError, match="second=.* is a list; pass a text in quotes"):
        SharedSpace(depth=3).similarity("rain", ["雨", "雪"])


@pytest.mark.parametrize("command", [["embed", "hi", "-m"], ["info"], ["serve"]])
def test_its_name_is_no_model_of_other_commands(command):
    with pytest.raises(AlbertkitError, match="small-en-zh is not one model.*index, search and cluster.*SharedSpace"):
        CliRunner().invoke(app, [*command, "small-en-zh"], catch_exceptions=False)


def test_the_command_line_indexes_and_searches_both_languages(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("\n".join(pair[n % 2] for n, pair in enumerate(PAIRS)) + "\n", encoding="utf-8")
    index = str(tmp_path / "notes.idx")
    assert CliRunner().invoke(app, ["index", str(notes), "-o", index, "-m", "small-en-zh"]).exit_code == 0
    done = CliRunner().invoke(app, ["search", index, "明天下雨吗？", "-k", "1", "--json"])
    assert json.loads(done.stdout)["hits"][0]["text"] == "It will rain tomorrow."


def test_held_out_translations_are_found_as_the_study_recorded():
    file = Path(__file__).parents[2] / "studies" / "results" / "shared-space.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    for depth in (3, 6, 12):
        recalls = found[f"depth {depth}"]["recall@1 en→zh, zh→en, by width"]["384"]
        assert min(recalls) >= 80
        for name in ("small", "small-zh"):
            scores = found[f"depth {depth}"][name]
            assert scores["shared"] >= scores["own"] - 0.5
