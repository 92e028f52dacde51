"""Answers found in a context: windows over long contexts, and the best span of all of them.

In: `QuestionExample` examples. Out: `AnswerResult`, whose text is `context[start:end]`. Before this file: `examples.py`; after it:
`squad.py`, which grades answers.

Which window is right? Without a threshold (every question has an answer, as in SQuAD 1.1) the highest sum of start and
end score wins, as in the original. With a threshold (SQuAD 2.0) the sum that a window gives to its [CLS], which stands
for "not here", is taken off first: so a window that is sure of nothing cannot win by loud scores, and the same number
decides whether there is an answer at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.tasks.answer_metrics import best_threshold, grade
from albertkit.tasks.examples import QuestionExample
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Tokenizer


@dataclass(frozen=True)
class AnswerResult:
    """An answer: characters [start, end) of the context; an empty text means that there is none."""

    text: str
    start: int
    end: int
    score: float
    """See the top of this file; that of no answer is the threshold."""
    probability: float
    """Among the answers that were kept, no answer included where there may be none."""
    others: tuple[AnswerResult, ...] = ()
    """The next best, all with different texts."""
    depth: ClassVar[int | None] = None
    """Layers applied, on results of texts that may leave early (`early_exit=`); no part of what is compared or written."""


@dataclass(frozen=True)
class AnswerTask:
    """Extractive question answering."""

    stride: int = 128
    """Tokens that two windows of a context share; at most half a window."""
    max_answer: int = 30
    """Tokens of the longest answer given."""
    n_best: int = 20
    """Answers kept for each question."""
    threshold: float | None = None
    """An answer must score more than this, or there is none; None: every question has an answer."""

    name = "answer"
    head = "answer"
    labels: ClassVar[tuple[str, ...]] = ()
    outputs = 2

    def __post_init__(self) -> None:
        for name, least in (("stride", 0), ("max_answer", 1), ("n_best", 1)):
            if getattr(self, name) < least:
                raise AlbertkitError(f"{name} is {getattr(self, name)}; choose {least} or more")

    @classmethod
    def from_examples(cls, examples: Sequence[QuestionExample], **settings: Any) -> AnswerTask:
        """The task that these examples are about: with a threshold (of 0) if some questions have no answer."""
        default = 0.0 if any(example.is_impossible for example in examples) else None
        return cls(**{"threshold": default, **settings})

    def features(self, examples: Sequence[QuestionExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Question and one window of the context each; a question of more than half the length loses its end.

        A target is (first token, last token), (0, 0) in a window that does not hold the whole of the first answer, None
        where no answer is known or its text is not in the context.
        """
        cls, sep = tokenizer.encode("", "", max_length=max_length).ids[:2]
        longest = min(max_length // 2, max_length - 4)  # one token of context at least
        texts = list(dict.fromkeys(example.context for example in examples))
        contexts = dict(zip(texts, tokenizer.encode_batch(texts, add_specials=False), strict=True))
        questions = tokenizer.encode_batch([example.question for example in examples], add_specials=False)
        out: list[Feature] = []
        for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
            context = contexts[example.context]
            before = [cls, *question.ids[:longest], sep]
            room = max_length - len(before) - 1
            overlap = min(self.stride, room // 2)
            tokens = None if example.is_impossible else _covering(context.offsets, answer_span(example))
            known = example.is_impossible or tokens is not None
            for start in range(0, max(len(context.ids) - overlap, 1), room - overlap):
                ids = context.ids[start : start + room]
                shift = len(before) - start
                held = tokens is not None and start <= tokens[0] and tokens[1] < start + len(ids)
                out.append(
                    Feature(
                        [*before, *ids, sep],
                        [0] * len(before) + [1] * (len(ids) + 1),
                        number,
                        None if not known else (tokens[0] + shift, tokens[1] + shift) if tokens and held else (0, 0),
                        [(0, 0)] * len(before) + context.offsets[start : start + room] + [(0, 0)],
                    )
                )
        return out

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[QuestionExample]
    ) -> list[AnswerResult]:
        """The best answer to each question, from (tokens, 2) scores of each window: as first and as last token."""
        spans: list[list[tuple[float, int, int]]] = [[] for _ in examples]
        for table, feature in zip(scores, features, strict=True):
            spans[feature.example] += self._spans(np.asarray(table, np.float64), feature.offsets or [])
        return [self._found(own, example.context) for own, example in zip(spans, examples, strict=True)]

    def _spans(self, scores: np.ndarray, places: Sequence[tuple[int, int]]) -> list[tuple[float, int, int]]:
        """The best (score, start, end) of one window; all pairs of tokens are looked at."""
        edges = np.array(places, np.int64).reshape(-1, 2)
        real = edges[:, 1] > edges[:, 0]
        width = min(self.max_answer, len(edges))
        first = np.where(real, scores[:, 0], -inf)
        last = np.concatenate([np.where(real, scores[:, 1], -inf), np.full(width - 1, -inf)])
        sums = first[:, None] + np.lib.stride_tricks.sliding_window_view(
            last, width
        )  # (tokens, width): from i to i + j
        flat = sums.ravel()
        kept = np.argpartition(-flat, self.n_best)[: self.n_best] if len(flat) > self.n_best else np.arange(len(flat))
        none = 0.0 if self.threshold is None else float(scores[0].sum())
        return [
            (float(flat[i]) - none, int(edges[i // width, 0]), int(edges[i // width + i % width, 1]))
            for i in kept
            if flat[i] > -inf
        ]

    def _found(self, spans: list[tuple[float, int, int]], context: str) -> AnswerResult:
        """The best of all windows, and the others."""
        kept: dict[str, AnswerResult] = {}
        for score, start, end in sorted(spans, key=lambda span: (-span[0], span[1], span[2])):
            if len(kept) == self.n_best:
                break
            text = context[start:end]
            kept.setdefault(text, AnswerResult(text, start, end, score, 0.0))
        found = list(kept.values())
        if self.threshold is not None or not found:
            least = self.threshold or 0.0
            at = sum(answer.score > least for answer in found)
            found.insert(at, AnswerResult("", 0, 0, least, 0.0))
        weights = np.exp(np.array([answer.score - found[0].score for answer in found]))
        probabilities = (weights / weights.sum()).tolist()
        found = [replace(answer, probability=chance) for answer, chance in zip(found, probabilities, strict=True)]
        return replace(found[0], others=tuple(answer for answer in found[1:] if answer.text))

    def fit_threshold(self, results: Sequence[AnswerResult], examples: Sequence[QuestionExample]) -> AnswerTask:
        """Where questions may have no answer: the task with the threshold that is best on held-out examples."""
        best = None if self.threshold is None else self.measure(results, examples).get("best_threshold")
        return self if best is None else replace(self, threshold=best)

    def measure(self, results: Sequence[AnswerResult], examples: Sequence[QuestionExample]) -> dict[str, float]:
        """F1 and exact match as in SQuAD or, for Chinese, CMRC 2018. Questions without a known answer do not count.

        Where some have none: the share of those for which none was given, F1 and exact match of the others, and the
        threshold at which F1 would have been best here.
        """
        pairs = [(r, e) for r, e in zip(results, examples, strict=True) if e.is_impossible or e.answers]
        grades = np.array([grade(r.text, e) for r, e in pairs]).reshape(-1, 2)
        empty = np.array([e.is_impossible for _, e in pairs], bool)
        exact, f1 = grades.mean(0) if len(grades) else (0.0, 0.0)
        out = {"f1": float(f1), "exact": float(exact)}
        if empty.any():
            if not empty.all():
                out["exact_answerable"], out["f1_answerable"] = map(float, grades[~empty].mean(0))
            out["right_unanswerable"] = float(grades[empty, 0].mean())
            if self.threshold is not None:
                best = [r if r.text or not r.others else r.others[0] for r, _ in pairs]
                given = [grade(r.text, e)[1] for r, (_, e) in zip(best, pairs, strict=True)]
                out["best_f1"], out["best_threshold"] = best_threshold(
                    [r.score if r.text else -inf for r in best], given, empty.astype(float).tolist()
                )
        return out


def answer_span(example: QuestionExample) -> tuple[int, int] | None:
    """Characters of the first answer. Where its text is not where the data says: the nearest place that has it."""
    if not example.answers or not example.answers[0][1]:
        return None
    start, text = example.answers[0]
    if start < 0 or example.context[start : start + len(text)] != text:
        found = [match.start() for match in re.finditer(f"(?={re.escape(text)})", example.context)]
        if not found:
            return None
        start = min(found, key=lambda at: abs(at - start))
    return start, start + len(text)


def _covering(offsets: Sequence[tuple[int, int]], place: tuple[int, int] | None) -> tuple[int, int] | None:
    """The first and last of the tokens that touch some characters; None when none does."""
    if place is None:
        return None
    inside = [i for i, (a, b) in enumerate(offsets) if a < b and a < place[1] and b > place[0]]
    return (inside[0], inside[-1]) if inside else None
