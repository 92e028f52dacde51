"""What a fine-tuning begins with where no model is named: by the task, by the length, and for classes of single texts
by a trial.
"""

from __future__ import annotations

import numpy as np

from albertkit import builtin
from albertkit.tasks.examples import TaggedExample, TextExample
from albertkit.train.frozen_head import MIN_TRIAL_EXAMPLES, choose_base_model, linear_accuracy

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
    assert choose_base_model("classify", single, 128)[0] == choose_base_model("match", pair, 128)[0] == builtin.DEFAULT
    assert (
        choose_base_model("classify", pair, 128)[0]
        == choose_base_model("tag", single, 128)[0]
        == builtin.PRETRAINED[builtin.DEFAULT]
    )
    assert choose_base_model("classify", single, 512)[0] == builtin.PRETRAINED[builtin.DEFAULT]


def test_classes_that_vectors_do_not_tell_apart_begin_with_the_model_that_knows_words():
    by_chance = np.random.default_rng(1)
    drawn = [TextExample(text, label=str(by_chance.integers(2))) for text, _ in sentences(MIN_TRIAL_EXAMPLES)]
    name, why = choose_base_model("classify", drawn, 128)
    assert name == builtin.PRETRAINED[builtin.DEFAULT] and f"{MIN_TRIAL_EXAMPLES} vectors" in why
    few = drawn[: MIN_TRIAL_EXAMPLES - 1]
    assert choose_base_model("classify", few, 128)[0] == builtin.DEFAULT  # too few to say


def test_classes_by_meaning_are_told_apart_by_vectors_and_those_by_chance_are_not():
    from albertkit.albert import Albert

    found = sentences(120)
    vectors = Albert().embed([text for text, _ in found])
    by_topic = np.array([topic == "food" for _, topic in found]).astype(int)
    assert linear_accuracy(vectors, by_topic) > 0.9
    assert linear_accuracy(vectors, np.random.default_rng(2).integers(0, 2, 120)) < 0.8


def test_least_squares_finds_classes_that_lie_apart():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    vectors = np.eye(3, 16)[labels] + 0.1 * rng.normal(size=(300, 16))
    assert linear_accuracy(vectors.astype(np.float32), labels) == 1.0
    assert linear_accuracy(rng.normal(size=(300, 16)).astype(np.float32), labels) < 0.6


def test_language_of_the_examples_decides_between_the_built_in_models():
    english, chinese = TextExample("a fine film", label="good"), TextExample("\u597d\u770b", label="good")
    assert builtin.base_models([english, english, chinese]) == ("small", "small-pretrained")
    assert builtin.base_models([chinese, chinese, english]) == ("small-zh", "small-zh-pretrained")
    assert choose_base_model("classify", [chinese] * 4, 128)[0] == "small-zh"
    assert choose_base_model("tag", [TaggedExample("\u5317\u4eac", ((0, 2),), ())] * 4, 128)[0] == "small-zh-pretrained"
