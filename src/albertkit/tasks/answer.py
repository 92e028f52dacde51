"""Extractive question answering: windows over long contexts, the best span of all windows, and its metrics.

In: `QuestionExample`s. Out: `AnswerResult`s, whose text is `context[start:end]`, and exact match and F1 as in the
official scripts of SQuAD 2.0 and CMRC 2018. Imports `task.py`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from math import inf
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import QuestionExample, nearest_occurrence
from albertkit.tasks.task import Feature, Task, TaskResult, encode_once
from albertkit.tokenizer import Tokenizer

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
MAX_WORD = 50  # characters by which an answer is extended
_IN_WORD = re.compile("[^\\W_\u0e00-\u10ff\u1100-\u1dff\u2e80-\U0003ffff]")  # of scripts with spaces between words
_CHINESE = re.compile("[\u4e00-\u9fff]")
# As in the official script.
_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CMRC_SEGMENT = re.compile(r"[\u4e00-\u9fa5]|[^\W\u4e00-\u9fa5]+(?:[.,][^\W\u4e00-\u9fa5]+)*|[^\w\s]")


@dataclass(frozen=True)
class AnswerResult(TaskResult):
    """An answer: characters [start, end) of the context. An empty text means no answer.

    >>> from albertkit import AnswerResult
    >>> context = "Ada Lovelace was born in London."
    >>> answer = AnswerResult("London", 25, 31, score=7.1, probability=0.98)
    >>> context[answer.start : answer.end] == answer.text
    True
    """

    text: str
    start: int
    end: int
    score: float
    """Sum of start and end score, see `AnswerTask.threshold`. The score of no answer is the threshold."""
    probability: float
    """Probability among the candidate answers; with a threshold, no answer is one of the candidates."""
    others: tuple[AnswerResult, ...] = ()
    """The next best answers, all with different texts."""


@dataclass(frozen=True)
class AnswerTask(Task):
    """Extractive question answering."""

    stride: int = 128
    """Overlap of two windows of a context, in tokens; at most half a window."""
    max_answer: int = 30
    """Maximum length of an answer, in tokens."""
    n_best: int = 20
    """Candidate answers kept per question."""
    threshold: float | None = None
    """Minimum score of an answer; below it the result is no answer. None: every question has an answer.

    With a threshold (SQuAD 2.0), the score at the window's [CLS], which means "no answer in this window", is subtracted
    from each sum of start and end score. This makes the scores of windows comparable.
    """

    name = "answer"
    heads = ("answer",)
    usage = "answer"
    example_types = (QuestionExample,)
    setting_names = ("stride", "n_best", "max_answer", "threshold")

    def __post_init__(self) -> None:
        for name, least in (("stride", 0), ("max_answer", 1), ("n_best", 1)):
            if getattr(self, name) < least:
                raise AlbertkitError(f"{name}={getattr(self, name)} is too small. Pass {least} or more.")

    @classmethod
    def from_examples(cls, examples: Sequence[QuestionExample], **settings: float | None) -> AnswerTask:
        """The task of these examples: with a threshold of 0 if some questions have no answer."""
        if not any(example.answers for example in examples):
            raise AlbertkitError(
                f"none of the {len(examples)} questions has an answer. Training needs some: write them in 'answers', "
                'like [{"text": "Ann", "answer_start": 0}].'
            )
        default = 0.0 if any(example.is_impossible for example in examples) else None
        values: dict[str, Any] = {"threshold": default, **settings}
        return cls(**values)

    def features(self, examples: Sequence[QuestionExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """The question with each window of the context; a question longer than half the input is truncated.

        A target is (first token, last token) of the first answer. It is (0, 0) if the window does not contain the
        whole answer, and None if no answer is known or its text is not in the context.
        """
        cls, sep = tokenizer.encode("", "", max_length=max_length).ids[:2]
        longest = min(max_length // 2, max_length - 4)  # at least one token of context
        contexts = encode_once((example.context for example in examples), tokenizer)
        questions = tokenizer.encode_batch([example.question for example in examples], add_specials=False)
        features: list[Feature] = []
        for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
            context = contexts[example.context]
            before = [cls, *question.ids[:longest], sep]
            room = max_length - len(before) - 1
            overlap = min(self.stride, room // 2)
            tokens = _tokens_of_answer(context.offsets, example)
            is_known = example.is_impossible or tokens is not None
            for start in range(0, max(len(context.ids) - overlap, 1), room - overlap):
                ids = context.ids[start : start + room]
                shift = len(before) - start
                target = (0, 0) if is_known else None
                if tokens is not None and start <= tokens[0] and tokens[1] < start + len(ids):
                    target = (tokens[0] + shift, tokens[1] + shift)
                offsets = [(0, 0)] * len(before) + context.offsets[start : start + room] + [(0, 0)]
                segments = [0] * len(before) + [1] * (len(ids) + 1)
                features.append(Feature([*before, *ids, sep], segments, number, target, offsets))
        return features

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[QuestionExample]
    ) -> list[AnswerResult]:
        """The best answer to each question, from the (tokens, 2) start and end scores of each window."""
        spans: list[list[tuple[float, int, int]]] = [[] for _ in examples]
        for table, feature in zip(scores, features, strict=True):
            spans[feature.example] += self._best_spans(np.asarray(table, np.float64), feature.offsets or [])
        return [self._result(indices, example.context) for indices, example in zip(spans, examples, strict=True)]

    def _best_spans(self, scores: np.ndarray, offsets: Sequence[tuple[int, int]]) -> list[tuple[float, int, int]]:
        """The best (score, start, end) of one window, over all pairs of tokens."""
        edges = np.array(offsets, np.int64).reshape(-1, 2)
        is_context = edges[:, 1] > edges[:, 0]
        width = min(self.max_answer, len(edges))
        first = np.where(is_context, scores[:, 0], -inf)
        last = np.concatenate([np.where(is_context, scores[:, 1], -inf), np.full(width - 1, -inf)])
        windows = np.lib.stride_tricks.sliding_window_view(last, width)
        flat = (first[:, None] + windows).ravel()  # (tokens, width): from token i to i + j
        best = np.argpartition(-flat, self.n_best)[: self.n_best] if len(flat) > self.n_best else np.arange(len(flat))
        none = 0.0 if self.threshold is None else float(scores[0].sum())
        return [
            (float(flat[i]) - none, int(edges[i // width, 0]), int(edges[i // width + i % width, 1]))
            for i in best
            if flat[i] > -inf
        ]

    def _result(self, spans: list[tuple[float, int, int]], context: str) -> AnswerResult:
        """The best of all windows, and the others."""
        by_text: dict[str, AnswerResult] = {}
        for score, start, end in sorted(spans, key=lambda span: (-span[0], span[1], span[2])):
            if len(by_text) == self.n_best:
                break
            start, end = whole_words(context, start, end)
            text = context[start:end]
            by_text.setdefault(text, AnswerResult(text, start, end, score, 0.0))
        answers = list(by_text.values())
        if self.threshold is not None or not answers:
            threshold = self.threshold or 0.0
            rank = sum(answer.score > threshold for answer in answers)
            answers.insert(rank, AnswerResult("", 0, 0, threshold, 0.0))
        weights = np.exp(np.array([answer.score - answers[0].score for answer in answers]))
        probabilities = (weights / weights.sum()).tolist()
        answers = [replace(answer, probability=p) for answer, p in zip(answers, probabilities, strict=True)]
        return replace(answers[0], others=tuple(answer for answer in answers[1:] if answer.text))

    def fit_threshold(self, results: Sequence[AnswerResult], examples: Sequence[QuestionExample]) -> AnswerTask:
        """The task with the best threshold on held-out examples, if questions may have no answer."""
        best = None if self.threshold is None else self.measure(results, examples).get("best_threshold")
        return self if best is None else replace(self, threshold=best)

    def measure(self, results: Sequence[AnswerResult], examples: Sequence[QuestionExample]) -> dict[str, float]:
        """F1 and exact match over the questions whose answer is known.

        If some questions are unanswerable, also: F1 and exact match over the answerable questions, the share of
        unanswerable questions that get no answer, and the threshold with the best F1.
        """
        pairs = [(r, e) for r, e in zip(results, examples, strict=True) if e.is_impossible or e.answers]
        grades = np.array([grade(r.text, e) for r, e in pairs]).reshape(-1, 2)
        empty = np.array([e.is_impossible for _, e in pairs], bool)
        exact, f1 = grades.mean(0) if len(grades) else (0.0, 0.0)
        metrics = {"f1": float(f1), "exact": float(exact)}
        if empty.any():
            if not empty.all():
                metrics["exact_answerable"], metrics["f1_answerable"] = map(float, grades[~empty].mean(0))
            metrics["right_unanswerable"] = float(grades[empty, 0].mean())
            if self.threshold is not None:
                best = [r if r.text or not r.others else r.others[0] for r, _ in pairs]
                f1_if_given = [grade(r.text, e)[1] for r, (_, e) in zip(best, pairs, strict=True)]
                metrics["best_f1"], metrics["best_threshold"] = best_threshold(
                    [r.score if r.text else -inf for r in best], f1_if_given, empty.astype(float).tolist()
                )
        return metrics


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """The span extended to the ends of its first and last word, by `MAX_WORD` characters at most.

    >>> whole_words("In 1999, Denver won", 11, 18)
    (9, 19)
    """
    for _ in range(MAX_WORD):
        start -= _is_inside_word(text, start)
        end += _is_inside_word(text, end)
    return start, end


def _is_inside_word(text: str, position: int) -> bool:
    """Whether a position is between letters or digits of one word. Scripts without spaces have no such words."""
    return 0 < position < len(text) and bool(_IN_WORD.match(text, position - 1) and _IN_WORD.match(text, position))


def _tokens_of_answer(offsets: Sequence[tuple[int, int]], example: QuestionExample) -> tuple[int, int] | None:
    """The first and last token that overlap the first answer, at its nearest position in the context."""
    start, text = example.answers[0] if example.answers and not example.is_impossible else (0, "")
    position = nearest_occurrence(example.context, text, start) if text else None
    if position is None:
        return None
    inside = [i for i, (a, b) in enumerate(offsets) if a < b and a < position + len(text) and b > position]
    return (inside[0], inside[-1]) if inside else None


# Metrics ---------------------------------------------------------------------------------------------------------
#
# The script of SQuAD 1.1 differs only for answers that consist of articles and punctuation. The F1 of CMRC 2018 uses
# the longest common substring, which is what its `find_lcs` computes. The script splits text between Chinese characters
# with NLTK; the pattern here gives the same words and numbers.


def is_chinese(text: str) -> bool:
    """Whether one character in five is Chinese (CMRC 2018: at least one in three; SQuAD: at most one in 17)."""
    return 5 * len(_CHINESE.findall(text)) >= max(1, len("".join(text.split())))


def grade(text: str, question: QuestionExample) -> tuple[float, float]:
    """Exact match and F1 of an answer, the maximum over the correct answers; as in CMRC 2018 for Chinese contexts."""
    chinese = is_chinese(question.context)
    normalize, f1 = (normalize_chinese, f1_chinese) if chinese else (normalize_english, f1_english)
    correct = [] if question.is_impossible else [answer for _, answer in question.answers if normalize(answer)]
    exact = max(float(normalize(text) == normalize(answer)) for answer in correct or [""])
    return exact, max(f1(text, answer) for answer in correct or [""])


def normalize_english(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces.

    >>> normalize_english("The  Broncos' win!")
    'broncos win'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def f1_english(text: str, correct: str) -> float:
    """F1 over words, with their counts."""
    predicted, expected = normalize_english(text).split(), normalize_english(correct).split()
    return _f1(sum((Counter(predicted) & Counter(expected)).values()), len(predicted), len(expected))


def normalize_chinese(text: str) -> str:
    """Lower case, without the punctuation of CMRC 2018."""
    return text.lower().strip().translate(_CMRC_PUNCTUATION)


def f1_chinese(text: str, correct: str) -> float:
    """F1 over Chinese characters and other words, by the longest common substring."""
    predicted, expected = (_CMRC_SEGMENT.findall(normalize_chinese(each)) for each in (text, correct))
    match = SequenceMatcher(None, predicted, expected, autojunk=False).find_longest_match()
    return _f1(match.size, len(predicted), len(expected))


def _f1(common: int, predicted: int, expected: int) -> float:
    if not predicted or not expected:
        return float(predicted == expected)  # both without an answer
    return 2 * common / (predicted + expected)


def best_threshold(scores: Sequence[float], given: Sequence[float], none: Sequence[float]) -> tuple[float, float]:
    """The best mean metric and its threshold; an answer counts if its score is above the threshold.

    scores: score of the best answer to each question. given: its metric. none: the metric of no answer.
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
