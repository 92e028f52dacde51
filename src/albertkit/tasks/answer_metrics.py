"""Grades of answers: exact match and F1, as the official scripts of SQuAD 2.0 and CMRC 2018 count them.

In: a text and the `QuestionExample` it answers. Out: two numbers from 0 to 1. Before this file: `examples.py`; after it: `answer.py`.

SQuAD 1.1 counts alike, except where nothing but articles and punctuation is left of an answer (F1 0 there, 1 here when it
is right). The F1 of CMRC 2018 is over the longest common stretch without gaps, for that is what its `find_lcs` finds. It
cuts text between Chinese characters with NLTK; here that is a pattern that agrees on words and numbers.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from math import inf

from albertkit.tasks.examples import QuestionExample

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_HAN = re.compile("[\u4e00-\u9fff]")
_MARKS = str.maketrans(
    "", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"
)  # those of the script, and no others
_SEGMENT = re.compile(r"[\u4e00-\u9fa5]|[^\W\u4e00-\u9fa5]+(?:[.,][^\W\u4e00-\u9fa5]+)*|[^\w\s]")


def is_chinese(text: str) -> bool:
    """Whether one character in five is Chinese (in CMRC 2018 one in three is at least, in SQuAD one in seventeen at most)."""
    return 5 * len(_HAN.findall(text)) >= max(1, len("".join(text.split())))


def grade(text: str, question: QuestionExample) -> tuple[float, float]:
    """Exact match and F1 of an answer: the best over the right answers; for Chinese contexts the way of CMRC 2018."""
    chinese = is_chinese(question.context)
    normal = normalize_chinese if chinese else normalize_english
    right = [] if question.is_impossible else [answer for _, answer in question.answers if normal(answer)]
    exact = max(float(normal(text) == normal(answer)) for answer in right or [""])
    f1 = f1_chinese if chinese else f1_english
    return exact, max(f1(text, answer) for answer in right or [""])


def normalize_english(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces.

    >>> normalize_english("The  Broncos' win!")
    'broncos win'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def f1_english(text: str, right: str) -> float:
    """Over words, each counted as often as it stands there."""
    one, two = normalize_english(text).split(), normalize_english(right).split()
    return _f1(sum((Counter(one) & Counter(two)).values()), len(one), len(two))


def normalize_chinese(text: str) -> str:
    """Lower case, without the punctuation of CMRC 2018."""
    return text.lower().strip().translate(_MARKS)


def f1_chinese(text: str, right: str) -> float:
    """Over Chinese characters and other words: the longest stretch that both have."""
    one, two = _SEGMENT.findall(normalize_chinese(text)), _SEGMENT.findall(normalize_chinese(right))
    same = SequenceMatcher(None, one, two, autojunk=False).find_longest_match(0, len(one), 0, len(two)).size
    return _f1(same, len(one), len(two))


def _f1(same: int, one: int, two: int) -> float:
    if not one or not two:
        return float(one == two)  # no answer, and none to give
    return 2 * same / (one + two)


def best_threshold(scores: Sequence[float], given: Sequence[float], none: Sequence[float]) -> tuple[float, float]:
    """The best mean grade, and the threshold for it, where an answer is given if its score is above the threshold.

    scores: of the best answer to each question. given: its grade. none: the grade of giving no answer.
    """
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    total = sum(none)
    best, threshold = total, max((s for s in scores if s > -inf), default=0.0)  # no answer at all
    for n, i in enumerate(order):
        total += given[i] - none[i]
        after = scores[order[n + 1]] if n + 1 < len(order) else -inf
        if scores[i] > after and total > best:
            middle = (scores[i] + after) / 2 if after > -inf else scores[i] - 1.0
            best, threshold = total, middle if middle < scores[i] else after
    return best / max(1, len(scores)), threshold
