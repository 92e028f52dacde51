"""The grammar of everyday sentences."""

from __future__ import annotations

import re

from albertkit.data.passages import NAME, everyday_grammar, everyday_sentences


def test_every_name_of_the_grammar_is_defined_and_used():
    asked = {name for found in everyday_grammar().values() for text in found for name in NAME.findall(text)}
    assert asked == set(everyday_grammar()) - {"text"}
    for found in everyday_grammar().values():
        assert all(text and text == text.strip() for text in found)


def test_everyday_sentences_are_complete_different_and_seeded():
    made = list(everyday_sentences(3000, seed=4))
    assert len(set(made)) == 3000
    assert made == list(everyday_sentences(3000, seed=4)) != list(everyday_sentences(3000, seed=5))
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9 ,']*[.?]?", text) for text in made)
    assert 4 < sum(len(text.split()) for text in made) / len(made) < 12


def test_everyday_sentences_take_another_grammar():
    grammar = {"text": ["我想{act}", "怎么{act}"], "act": ["退货", "换货"]}
    assert sorted(everyday_sentences(10, grammar=grammar)) == ["怎么换货", "怎么退货", "我想换货", "我想退货"]
