"""The check of the methods: right on numbers made by hand, and on a model where what matters is known."""

from __future__ import annotations

import numpy as np
import pytest

from albertkit.errors import AlbertkitError
from albertkit.explain import Explainer, measure_faithfulness
from albertkit.explain.explain_input import ExplainInput
from albertkit.explain.explainer import ExplainSettings
from albertkit.explain.faithfulness import SHARES, _probability_decreases, read_inputs
from tests.train import test_finetune as lessons

METHODS = ("occlusion", "shapley", "gradients")


@pytest.fixture(scope="module")
def texts() -> list[ExplainInput]:
    return [ExplainInput(example.text) for example in lessons.texts(30, 5)]


def test_words_that_a_method_calls_important_are(learnt, texts):
    found = {
        one.method: one for one in measure_faithfulness(learnt, texts, ExplainSettings(METHODS, samples=4, steps=16))
    }
    for method, one in found.items():
        assert one.gain > 2 * one.gain_error > 0, found
        assert one.sufficiency < one.random_sufficiency and one.wins > 0.6, (method, one)
        assert one.comprehensiveness == pytest.approx(np.mean(one.curve)) and len(one.curve) == len(SHARES)
        assert one.gain == pytest.approx(one.comprehensiveness - one.random_comprehensiveness)
        assert one.texts == len(texts)


def test_the_reverse_of_a_method_is_worse_than_random(learnt, texts, monkeypatch):
    """A check that cannot fail would be none."""
    real = Explainer.attribute
    monkeypatch.setattr(Explainer, "attribute", lambda *a: type(r := real(*a))(r.method, -r.values))
    (one,) = measure_faithfulness(learnt, texts, ExplainSettings())
    assert one.gain < -2 * one.gain_error < 0


def test_probability_decreases_are_differences_of_probabilities(learnt):
    """One order of four words, by hand: half of them gone, and half of them alone."""
    ready = learnt.prepare(ExplainInput("cat dog red blue"), ExplainSettings(), every_depth=False)
    falls = _probability_decreases(learnt, ready, [np.array([0, 1, 2, 3])], "drop")
    label = ready.target.name
    chance = {
        text: learnt.albert.classify(text).probabilities[label]
        for text in ("cat dog red blue", "red blue", "cat dog", "dog red blue")
    }
    whole = chance["cat dog red blue"]
    assert falls.shape == (1, 2, 5)
    assert falls[0, 0, 4] == pytest.approx(whole - chance["red blue"], abs=1e-5)
    assert falls[0, 1, 4] == pytest.approx(whole - chance["cat dog"], abs=1e-5)
    assert falls[0, 0, 0] == pytest.approx(whole - chance["dog red blue"], abs=1e-5)


@pytest.mark.parametrize("model", ["words", "stars", "names"])
def test_vectors_values_and_tags_are_checked_too(explainers, model):
    texts = [
        ExplainInput("Angela Merkel visited Paris"),
        ExplainInput("one more text of six words"),
        ExplainInput("word"),
    ]
    (one,) = measure_faithfulness(explainers[model], texts, ExplainSettings(), orders=2)
    assert one.texts == 2 and np.isfinite(one.gain)


def test_files_of_texts(tmp_path):
    plain = tmp_path / "a.txt"
    plain.write_text("one text\n\nanother\n", encoding="utf-8")
    assert read_inputs(plain) == [ExplainInput("one text"), ExplainInput("another")] and len(read_inputs(plain, 1)) == 1
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "a", "question": "b", "choices": ["c", "d"]}\n', encoding="utf-8")
    assert read_inputs(lines) == [ExplainInput("a", None, "b", ("c", "d"))]
    for bad in ('{"text": 3}', "[]", "{", '{"text": "a", "pair": 1}', '{"text": "a", "choices": "b"}'):
        lines.write_text(bad + "\n", encoding="utf-8")
        with pytest.raises(AlbertkitError, match=r"a.jsonl:1 is not"):
            read_inputs(lines)
    with pytest.raises(AlbertkitError, match="cannot be read"):
        read_inputs(tmp_path / "none.txt")


def test_limits(learnt):
    for settings, why in (({}, "pass 1 to"), ({"orders": 0}, "orders=0"), ({"hide": "gone"}, "hide='gone'")):
        with pytest.raises(AlbertkitError, match=why):
            measure_faithfulness(learnt, [ExplainInput("cat dog")] if settings else [], **settings)
    with pytest.raises(AlbertkitError, match="text 2, 'cat cat.* must fit"):
        measure_faithfulness(learnt, [ExplainInput("cat dog"), ExplainInput("cat " * 100)])
    with pytest.raises(AlbertkitError, match="no text has two words"):
        measure_faithfulness(learnt, [ExplainInput("cat")])
