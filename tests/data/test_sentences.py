"""Paragraphs into sentences: splits checked by hand, and what must hold for any text."""

from __future__ import annotations

import doctest
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.data import sentences
from albertkit.data.sentences import split_sentences

# "|" stands where a sentence ends.
ENGLISH = [
    "It rained.| We stayed in.| Nobody minded!| Did you?",
    "Mr. Hill met Mrs. Dale and Dr. A. B. Stone in St. Louis.| They left.",
    "The U.S. Army left the U.S. in May.| The rest stayed.",
    "He lived in the U.S.| The house was small.",
    "She arrived at 3.15 p.m. and paid $2.50.| Then she slept.",
    "We met at 5 p.m.| She was late.",
    "George W. Bush and J. R. R. Tolkien never met.",
    "Fruit, e.g. apples, i.e. the red ones, cf. Smith, is cheap.",
    "He paid Acme Inc. a lot.| It was too much for Acme Inc.| He said so.",
    "See Fig. 3 and pp. 5 to 9 of vol. 2, no. 7.| No.| That is wrong.",
    '"Why?" she asked. |"I don\'t know," he said. |"Nobody does."| They left.',
    '"Stop!" he cried.| "I will not stop!"| She ran (very fast.)| He did not.',
    "(This is one.)| [This is two.]| “This is three.”| ‘Four.’| Five.",
    "Pi is 3.14159 and e is 2.71828.| Visit example.com today.",
    "Wait... what?| No!!| Really?!| Yes…| Good.",
    "It ended in 1984.| The war had begun in 1980.| 35 people came.",
    "1. Introduction to the subject.| 2. The subject itself.",
    "Plan B.| We need it.",  # a single letter may be an initial, but "We" opens a sentence
    "The company (est. 1990) has 12.5 million users, etc.| It grows.",
    "He has a Ph.D. from Yale, and an M.A. in art.| He paints.",
    "Smith et al. found it in Sept. 1999.| However, nobody cared.",
    "iPhone sales rose. iPad sales fell.",  # a small letter follows: left whole
    "Éric est là.| Élodie aussi.| ¿Qué?| ¡Sí!",
    "Это А. С. Пушкин.| Он поэт.",
    "Hello",
    "...",
    "A.| The B.",
]
CHINESE = [
    "今天下雨。|我们没出门。|没人在意！|你呢？",
    "他说：“你好！”|她笑了。|“为什么？”|没人知道。",
    "他問：「真的嗎？」|她說：『是的。』|（完。）|好",
    "第一条；|第二条；|第三条。",
    "我不知道……|也许吧。|真的？！|是的。",
    "圆周率是3.14，价格为2.50元。|很便宜。",
    "Yahoo!奇摩是网站。|你用Node.js吗?|我用.|好的!|行。",
    "他在2019年毕业。|2020年工作。",
    "今日は雨です。|出かけません。|そうですか？",
    "全角。　|空格。 |半角",
    "GDP增长6.5%。|It is high. |很高。",
    "魔法咖哩是台灣的餐廳，由李明乾於2004年創辦",
]


@pytest.mark.parametrize("marked", ENGLISH + CHINESE)
def test_splits_checked_by_hand(marked):
    wanted = [part.strip() for part in marked.split("|")]
    assert split_sentences(marked.replace("|", "")) == wanted


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\u3000"])
def test_no_text_has_no_sentence(text):
    assert split_sentences(text) == []


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(max_size=200),
        st.text(alphabet="aB1 .!?…。！？；\"'”）)(“「 \u3000\n中文Mr,", max_size=80),
        st.lists(st.sampled_from([*ENGLISH, *CHINESE, " ", "U.S. ", "\x1f", "\u00a0"]), max_size=5).map("".join),
    )
)
def test_nothing_but_white_space_is_lost(text):
    found = split_sentences(text)
    assert re.sub(r"\s+", "", "".join(found)) == re.sub(r"\s+", "", text)
    assert all(sentence and sentence == sentence.strip() for sentence in found)
    at = 0
    for sentence in found:  # each is a piece of the text, in order
        at = text.index(sentence, at) + len(sentence)


@settings(max_examples=100)
@given(st.text(alphabet="aB1 .!?\"')(]}\n\tM,", max_size=60))
def test_the_pattern_for_ascii_says_what_the_general_one_says(text):
    quick = split_sentences(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "_ASCII_STOP", sentences._STOP)
        assert split_sentences(text) == quick


def test_example():
    assert doctest.testmod(sentences).failed == 0


def test_a_long_paragraph_takes_no_long_time():
    for text in ("." * 200_000, "a. " * 60_000, "。" * 100_000 + "”" * 100_000, "中." * 100_000, "Mr. " * 50_000):
        assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
