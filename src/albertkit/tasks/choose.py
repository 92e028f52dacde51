"""Multiple choice: selects the choice that answers a question about a context.

In: `ChoiceExample`s. Out: `ChoiceResult`s. Each choice is one input of the encoder: the context is the first text, the
question with the choice is the second. Imports `task.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import ChoiceExample
from albertkit.tasks.task import Feature, Task, TaskResult, encode_once, group_features, softmax
from albertkit.tokenizer import Tokenizer

_BLANK = re.compile("_+")


@dataclass(frozen=True)
class ChoiceResult(TaskResult):
    """The predicted choice: its number, its text, and the probability of every choice.

    >>> from albertkit import ChoiceResult
    >>> ChoiceResult(index=0, text="By bus.", probabilities=(0.9, 0.1)).text
    'By bus.'
    """

    index: int
    text: str
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class ChooseTask(Task):
    """Multiple choice; questions may have different numbers of choices."""

    name = "choose"
    heads = ("choose",)
    usage = "choose"
    example_types = (ChoiceExample,)
    truncates = True
    can_be_explained = False

    @classmethod
    def from_examples(cls, examples: Sequence[ChoiceExample]) -> ChooseTask:
        return cls()

    def features(self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """One per choice; the first one of an example has the number of the correct choice as target.

        A long context is truncated at its end. A question that leaves no room for the context is truncated at its
        start, because the choice is usually at the end.
        """
        cls, sep = tokenizer.encode("", "", max_length=max_length).ids[:2]
        if not all(example.choices for example in examples):
            raise AlbertkitError("a question has no choices. Pass at least one.")
        contexts = encode_once((example.context for example in examples), tokenizer)
        seconds = [join_choice(example.question, choice) for example in examples for choice in example.choices]
        encodings = iter(tokenizer.encode_batch(seconds, add_specials=False))
        features: list[Feature] = []
        for number, example in enumerate(examples):
            context = contexts[example.context].ids
            for choice in range(len(example.choices)):
                room = max_length - 3
                second = next(encodings).ids[-(room - bool(context)) :]
                first = context[: room - len(second)]
                ids = [cls, *first, sep, *second, sep]
                segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
                features.append(Feature(ids, segments, number, None if choice else example.answer))
        return features

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[ChoiceExample]
    ) -> list[ChoiceResult]:
        """The most likely choice of each example, from the (1,) score of each feature."""
        results = []
        for example, indices in zip(examples, group_features(features, len(examples)), strict=True):
            probabilities = softmax(np.array([float(np.asarray(scores[index]).reshape(())) for index in indices]))
            best = int(probabilities.argmax())
            results.append(ChoiceResult(best, example.choices[best], tuple(probabilities.tolist())))
        return results

    def measure(self, results: Sequence[ChoiceResult], examples: Sequence[ChoiceExample]) -> dict[str, float]:
        """Accuracy over the examples with an answer."""
        correct = [r.index == e.answer for r, e in zip(results, examples, strict=True) if e.answer is not None]
        return {"accuracy": sum(correct) / max(1, len(correct))}


def join_choice(question: str, choice: str) -> str:
    """Question and choice as one text: the choice replaces the blanks, or follows the question.

    >>> join_choice("Tom lives in _ .", "Leeds"), join_choice("Where does Tom live?", "Leeds")
    ('Tom lives in Leeds .', 'Where does Tom live? Leeds')
    """
    if "_" not in question:
        return f"{question} {choice}" if question else choice
    return _BLANK.sub(lambda _: choice, question)
