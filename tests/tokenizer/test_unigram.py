"""Unigram tokens are those of the `tokenizers` library."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models

from albertkit import builtin
from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.normalizer import SPACE
from albertkit.tokenizer.unigram import MANY_CHARACTERS, Unigram
from albertkit.tokenizer.vocabulary import SPECIALS, Vocabulary

LETTERS = "abc" + SPACE
SCORES = st.sampled_from(
    [0.0, -1.0, -2.5, -2.5000002, -7.0, 30.0]
)  # ties, and scores that an unknown character exceeds


@st.composite
def vocabularies(draw):
    tokens = draw(st.lists(st.text(LETTERS, min_size=1, max_size=4), unique=True, max_size=20))
    names = [*SPECIALS["unigram"], *tokens]
    scores = [draw(SCORES) for _ in names]
    return Vocabulary("unigram", names, scores, frozenset(range(5)), 1, lower=True, strip_accents=True)


@given(vocabularies(), st.lists(st.text(LETTERS + "xy", max_size=12), max_size=8))
@settings(max_examples=300, deadline=None)
def test_tokens_of_any_vocabulary_equal_those_of_the_library(vocabulary, units):
    names = [*(" " + name for name in vocabulary.tokens[:5]), *vocabulary.tokens[5:]]  # no word contains a space
    library = RustTokenizer(models.Unigram(list(zip(names, vocabulary.scores, strict=True)), 1, False))
    few, many = Unigram(vocabulary), Unigram(vocabulary)
    many._find(["abc" * MANY_CHARACTERS])
    found = few._find(units)
    assert set(many._longest_from) == {token[0] for token in vocabulary.tokens[5:]} and found == many._find(units)
    for unit, (ids, ends) in found.items():
        expected = library.encode([unit], is_pretokenized=True)
        assert (ids, ends) == (expected.ids, [end for _, end in expected.offsets])


@pytest.mark.parametrize("name", ["small", "small-zh"])
def test_few_texts_and_many_have_equal_tokens(name):
    rng = random.Random(5)
    alphabet = [
        chr(c) for c in (*range(32, 0x250), *range(0x300, 0x370), *range(0x3000, 0x3200), *range(0x4E00, 0x5000))
    ]
    texts = ["".join(rng.choices([*alphabet, " ", ",", "7", SPACE], k=rng.randint(0, 40))) for _ in range(1500)]
    few, many = (Tokenizer.load(builtin.MODELS / name, trusted=True) for _ in range(2))
    assert sum(map(len, texts)) > MANY_CHARACTERS
    assert [few.ids_batch([text])[0] for text in texts] == many.ids_batch(texts)
    assert [few.encode(text) for text in texts] == many.encode_batch(texts)
    assert many.model._longest_from and not few.model._longest_from
