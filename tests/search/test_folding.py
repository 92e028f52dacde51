"""Folding: one form for characters that keyword search does not distinguish."""

from __future__ import annotations

import re
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.search.folding import fold, simplified_characters
from albertkit.search.keywords import plain_terms, plain_words
from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.normalizer import Normalizer
from tests.conftest import ROOT

TABLE = {chr(old): new for old, new in simplified_characters().items()}
ANY = st.text() | st.text("".join(TABLE) + "か゛゙ﾞｶﾊぱＡﬁßΣςİı\u0301\u0345\u1100\u1161½㎡™ 12ab", max_size=30)
ANY |= st.text("\u0301\u0316\u05b0\u0591\u064b\u3099ﾞ…!a", min_size=20, max_size=90)


@settings(deadline=None, max_examples=300)
@given(ANY)
def test_folding_again_changes_nothing(text):
    assert fold(fold(text)) == fold(text)
    assert plain_words(plain_words(text)) == plain_words(text)


def test_folding_a_character_again_changes_nothing():
    characters = [chr(c) for c in range(sys.maxunicode + 1) if not 0xAC00 <= c < 0xE000]
    changed = [c for c in characters if unicodedata.decomposition(c) or c.casefold() != c or c in TABLE]
    assert len(changed) > 9000
    assert [c for c in changed if fold(fold(c)) != fold(c)] == []


@settings(deadline=None, max_examples=300)
@given(ANY)
def test_a_text_has_each_term_of_itself(text):
    words = f" {plain_words(text)} "
    assert all(f" {term} " in words for term in plain_terms(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ＡＢＣ１２３，ｘ", "abc123 x"),
        ("Café-Bar, 北京!", "cafe bar 北 京"),
        ("臺灣 / 台灣 / 台湾", "台 湾 台 湾 台 湾"),
        ("頭髮發現", "头 发 发 现"),
        ("乾隆喝乾淨的水", "干 隆 喝 干 净 的 水"),
        ("ﾌﾟﾛｸﾞﾗﾑ", "プ ロ グ ラ ム"),
        ("ﬁancé ŉ ĳs", "fiance ʼn ijs"),
        ("𠮷野家", "𠮷 野 家"),
        ("⼀⾳ 神", "一 音 神"),
        ("한국어", "한국어"),
        ("Word™ №50", "word tm no 50"),
        ("50㎡ 1½ 25℃", "50 m2 1 1 2 25 c"),
        ("①② ㈱", "1 2 株"),
        ("", ""),
        ("!!!", ""),
    ],
)
def test_words_of_a_text(text, words):
    assert plain_words(text) == words


def test_no_symbol_joins_its_neighbours():
    """So "mark" finds "Mark™", and "50" finds "50㎡"."""
    symbols = (c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c)[0] in "SPZ" and c != "_")
    joined = [c for c in symbols if not re.match(r"x\b.*\by$", plain_words(f"x{c}y"))]
    assert all("_" in unicodedata.normalize("NFKC", c) for c in joined)


@pytest.mark.parametrize("marks", ["\u064b\u05b0", "\u0301\u0316", "\u3099\u05b0\u0591"])
def test_a_long_run_of_marks_does_not_take_its_square(marks):
    """Such a run of half a million marks would take minutes."""
    words = plain_words("ab" + marks * 250_000 + "cd")
    assert words.replace("\u3099", "").split() in (["abcd"], ["ab", "cd"])


def test_table_has_single_characters_that_are_folded_already():
    assert 2900 < len(TABLE) < 3100
    for old, new in TABLE.items():
        assert len(new) == 1 and new not in TABLE and fold(old) == fold(new) == new
        assert unicodedata.normalize("NFKC", old + new) == old + new


def test_keywords_fold_the_characters_that_the_chinese_model_folds():
    vocabulary = Tokenizer.load(ROOT / "src" / "albertkit" / "models" / "small-zh").vocabulary
    normalizer = Normalizer(vocabulary.charsmap, lower=True, strip_accents=True)
    ideographs = map(chr, [*range(0x3400, 0x4DC0), *range(0x4E00, 0xA000)])
    changed = {c: new for c in ideographs if (new := normalizer(c)[0]) != c}
    assert len(changed) > 2900
    assert [c for c, new in changed.items() if fold(c) != fold(new)] == []
