"""The base class `Task`, and `Feature`, one input of the encoder.

In: examples. Out: features; results and metrics from the scores of the heads. Training, evaluation and inference share
this code. Imports `examples.py`; each task is a module that imports this one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Encoding, Tokenizer

IGNORE_INDEX = -100  # a target that the loss ignores


@dataclass(frozen=True)
class Feature:
    """One input of the encoder. A long example may have several."""

    ids: list[int]
    segments: list[int]
    example: int
    """The index of its example."""
    target: Any = None
    """The target of the heads, as numbers: see `train/task_heads.py`. None if it is unknown."""
    offsets: list[tuple[int, int]] | None = None
    """The characters of each token, (0, 0) for special tokens; for tasks whose results are spans."""
    positions: list[int] | None = None
    """The position of each token; None: 0, 1, 2 …"""
    ranks: list[int] | None = None
    """Attention mask: a token attends to itself and to even ranks up to its own, not to other odd ranks. None: all."""


class TaskResult:
    """Base of the results of tasks."""

    depth: ClassVar[int | None] = None
    """Layers applied, if early exit was enabled; neither compared nor written."""


class Task:
    """Conversion between examples and tensors. Other packages use the attributes of a subclass, never its name."""

    name: ClassVar[str] = ""
    """Name of the task in `albertkit.json`, in commands and in URLs."""
    heads: ClassVar[tuple[str, ...]] = ()
    """The heads of `model/albert_model.py` whose scores it reads; "vector" is the mean of the token vectors."""
    example_types: ClassVar[tuple[type, ...]] = ()
    setting_names: ClassVar[tuple[str, ...]] = ()
    """Fields that a user may set in addition to the fine-tuning settings."""
    usage: ClassVar[str] = ""
    """The command for models of this task, as error messages show it."""
    can_exit_early: ClassVar[bool] = True
    can_train_on_frozen_vectors: ClassVar[bool] = False
    can_be_explained: ClassVar[bool] = True
    generates_text: ClassVar[bool] = False
    computes_vectors: ClassVar[bool] = False
    """Whether the result is computed from vectors that are useful without the task."""
    has_correct_results: ClassVar[bool] = True
    """Whether a result is either correct or wrong, unlike a cosine or a generated text."""
    truncates: ClassVar[bool] = False
    """Whether features contain only a part of a long text, instead of all of it in several windows."""
    has_independent_results: ClassVar[bool] = True
    """Whether a result depends on its own example alone; a dialogue state contains earlier turns."""

    kind: str = ""
    """Kind of a label: single (one class), multi (several classes), regression (a number) or empty."""
    labels: tuple[str, ...] = ()
    """The classes, in the order of the head's rows."""

    @property
    def uncertainty_measure(self) -> str:
        """Measure of uncertainty: entropy, or the change of a vector (cosine) or value (change) between depths."""
        if "vector" in self.heads:
            return "cosine"
        return "change" if self.kind == "regression" else "entropy"

    def outputs(self, head: str) -> int:
        """Rows of a head."""
        return {"answer": 2, "choose": 1}.get(head, max(1, len(self.labels)))

    def features(self, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Inputs of the encoder, in the order of the examples; with targets if the examples have labels."""
        raise NotImplementedError

    def text_room(self, max_length: int) -> int:
        """Tokens of a text that the features contain, special tokens included."""
        return max_length

    def find_truncated(
        self, examples: Sequence[Any], features: Sequence[Feature], tokenizer: Tokenizer, max_length: int
    ) -> list[int]:
        """The indexes of the examples of which `features` contain only a part."""
        full = sorted({f.example for f in features if len(f.ids) >= max_length}) if self.truncates else []
        if not full:
            return []
        longer = self.features([examples[index] for index in full], tokenizer, max_length + 1)
        return [full[index] for index in sorted({f.example for f in longer if len(f.ids) > max_length})]

    def find_truncated_targets(self, features: Sequence[Feature], tokenizer: Tokenizer) -> list[int]:
        """The indexes of the examples with a text to generate that is truncated."""
        return []

    def results(self, scores: Sequence[Any], features: Sequence[Feature], examples: Sequence[Any]) -> list[Any]:
        """One result per example, from the scores of each feature; for several heads, tuples of scores.

        Shapes: classify (classes,), tag (tokens, labels), answer (tokens, 2), choose (1,), vector (hidden,).
        """
        raise NotImplementedError

    def measure(self, results: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Metrics by name; the first one selects the best checkpoint (see `lower_is_better`)."""
        raise NotImplementedError


def group_features(features: Sequence[Feature], count: int) -> list[list[int]]:
    """The indexes of each example's features. count: number of examples."""
    groups: list[list[int]] = [[] for _ in range(count)]
    for index, feature in enumerate(features):
        groups[feature.example].append(index)
    return groups


def encode_once(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, Encoding]:
    """The encoding of each distinct text, without special tokens."""
    different = list(dict.fromkeys(texts))
    return dict(zip(different, tokenizer.encode_batch(different, add_specials=False), strict=True))


def check_variety(examples: Sequence[Any], values: Collection[Any], noun: str) -> None:
    """Raise an error if all examples have the same value (a class or a number)."""
    if len(values) == 1:
        raise AlbertkitError(
            f"all {len(examples)} examples have the {noun} {next(iter(values))!r}. Training needs at least two: "
            "add examples of another."
        )


def lower_is_better(metric: str) -> bool:
    """Whether a lower value of a metric is better: losses and the root mean squared error."""
    return "loss" in metric or metric == "rmse"


def softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis."""
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(scores / scores.sum(-1, keepdims=True))
