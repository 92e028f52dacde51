"""Multiple choice and reading comprehension: which of several choices answers a question about a context.

In: `ChoiceExample` examples. Out: `ChoiceResult`. Before this file: `examples.py`. Each choice is one input of the encoder, in the
order of the choices: the context as first text, the question with the choice as second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import ChoiceExample
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Tokenizer

_BLANK = re.compile("_+")


@dataclass(frozen=True)
class ChoiceResult:
    """The choice taken, its place among the choices, and the probability of each."""

    index: int
    text: str
    probabilities: tuple[float, ...]
    depth: ClassVar[int | None] = None
    """Layers applied, on results of texts that may leave early (`early_exit=`); no part of what is compared or written."""


@dataclass(frozen=True)
class ChooseTask:
    """Multiple choice; questions may have different numbers of choices."""

    name = "choose"
    head = "choose"
    labels: ClassVar[tuple[str, ...]] = ()
    outputs = 1

    @classmethod
    def from_examples(cls, examples: Sequence[ChoiceExample], **settings: Any) -> ChooseTask:
        """The task; the examples must say which choice is right."""
        for example in examples:
            if example.answer is None:
                raise AlbertkitError(
                    f"{example.where or 'an example'} does not say which choice is right; training needs it"
                )
        return cls(**settings)

    def features(self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """One for each choice; the first of an example has the place of the right one as target.

        The context loses its end where not all fits. A question so long that it leaves no room for the context loses
        its beginning, since the choice is mostly at the end.
        """
        cls, sep = tokenizer.encode("", "", max_length=max_length).ids[:2]
        for example in examples:
            _check(example)
        firsts = list(dict.fromkeys(example.context for example in examples))
        contexts = dict(zip(firsts, tokenizer.encode_batch(firsts, add_specials=False), strict=True))
        seconds = [join_choice(example.question, choice) for example in examples for choice in example.choices]
        asked = iter(tokenizer.encode_batch(seconds, add_specials=False))
        out: list[Feature] = []
        for number, example in enumerate(examples):
            context = contexts[example.context].ids
            for place in range(len(example.choices)):
                room = max_length - 3
                second = next(asked).ids[-(room - bool(context)) :]
                first = context[: room - len(second)]
                ids = [cls, *first, sep, *second, sep]
                segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
                out.append(Feature(ids, segments, number, None if place else example.answer))
        return out

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[ChoiceExample]
    ) -> list[ChoiceResult]:
        """The likeliest choice of each example, from the (1,) score of each feature."""
        rows: list[list[float]] = [[] for _ in examples]
        for score, feature in zip(scores, features, strict=True):
            rows[feature.example].append(float(np.asarray(score).reshape(())))
        out = []
        for row, example in zip(rows, examples, strict=True):
            probabilities = np.exp(np.array(row) - max(row))
            probabilities /= probabilities.sum()
            best = int(probabilities.argmax())
            out.append(ChoiceResult(best, example.choices[best], tuple(probabilities.tolist())))
        return out

    def measure(self, results: Sequence[ChoiceResult], examples: Sequence[ChoiceExample]) -> dict[str, float]:
        """The share of right choices, among examples that say which is right."""
        hits = [r.index == e.answer for r, e in zip(results, examples, strict=True) if e.answer is not None]
        return {"accuracy": sum(hits) / max(1, len(hits))}


def join_choice(question: str, choice: str) -> str:
    """Question and choice as one text: the choice goes into the blanks, or behind the question.

    >>> join_choice("Tom lives in _ .", "Leeds"), join_choice("Where does Tom live?", "Leeds")
    ('Tom lives in Leeds .', 'Where does Tom live? Leeds')
    """
    if "_" not in question:
        return f"{question} {choice}" if question else choice
    return _BLANK.sub(lambda _: choice, question)


def _check(example: ChoiceExample) -> None:
    count, right = len(example.choices), example.answer
    if not count or (right is not None and not 0 <= right < count):
        raise AlbertkitError(
            f"{example.where or 'an example'} has {count} choices and number {right} is right, counted from 0; give at "
            "least one choice, and a number that exists"
        )
