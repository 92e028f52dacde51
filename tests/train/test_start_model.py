"""What a fine-tuning begins with where no model is named: by the task, by the length, and for classes of single texts by a trial."""

from __future__ import annotations

import numpy as np

from albertkit import builtin
from albertkit.tasks.examples import TextExample
from albertkit.train.start_model import FEWEST, beginning, told_apart

PLACES = ("the kitchen", "our garden", "a hotel", "the old school", "my office")
FOOD = ("soup", "bread", "a salad", "rice with beans", "chocolate cake", "an apple")
MACHINES = ("a tractor", "the engine", "a laptop", "his bicycle", "the printer", "a truck")


def sentences(count: int) -> list[tuple[str, str]]:
    """Sentences about food or machines."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        topic, things = (("food", FOOD), ("machines", MACHINES))[rng.integers(2)]
        found.append((f"they talked about {rng.choice(things)} in {rng.choice(PLACES)}", topic))
    return found


def test_by_task_and_length():
    single, pair = [TextExample("a", label="x")], [TextExample("a", label="x"), TextExample("a", "b", "y")]
    assert beginning("classify", single, 128)[0] == beginning("match", pair, 128)[0] == builtin.DEFAULT
    assert beginning("classify", pair, 128)[0] == beginning("tag", single, 128)[0] == builtin.FINETUNE_MODEL
    assert beginning("classify", single, 512)[0] == builtin.FINETUNE_MODEL


def test_classes_that_vectors_do_not_tell_apart_begin_with_the_model_that_knows_words():
    by_chance = np.random.default_rng(1)
    drawn = [TextExample(text, label=str(by_chance.integers(2))) for text, _ in sentences(FEWEST)]
    name, why = beginning("classify", drawn, 128)
    assert name == builtin.FINETUNE_MODEL and f"{FEWEST} vectors" in why
    few = drawn[: FEWEST - 1]
    assert beginning("classify", few, 128)[0] == builtin.DEFAULT  # too few to say


def test_classes_by_meaning_are_told_apart_by_vectors_and_those_by_chance_are_not():
    from albertkit.albert import Albert

    found = sentences(120)
    vectors = Albert().embed([text for text, _ in found])
    by_topic = np.array([topic == "food" for _, topic in found]).astype(int)
    assert told_apart(vectors, by_topic) > 0.9
    assert told_apart(vectors, np.random.default_rng(2).integers(0, 2, 120)) < 0.8


def test_least_squares_finds_classes_that_lie_apart():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    vectors = np.eye(3, 16)[labels] + 0.1 * rng.normal(size=(300, 16))
    assert told_apart(vectors.astype(np.float32), labels) == 1.0
    assert told_apart(rng.normal(size=(300, 16)).astype(np.float32), labels) < 0.6
