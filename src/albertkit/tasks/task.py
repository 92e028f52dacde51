"""What every task declares and computes: the base class `Task`, and `Feature`, one input of the encoder.

In: examples. Out: features, and from the scores of the heads results and metrics. Training, evaluation and use share
this code. Before this file: `examples.py`; after it: one module per task.
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
    """The number of its example."""
    target: Any = None
    """What the heads should predict, as numbers: see `train/task_heads.py`. None if it is not known."""
    offsets: list[tuple[int, int]] | None = None
    """The characters of each token, (0, 0) for special tokens; for tasks whose results are spans."""
    positions: list[int] | None = None
    """The position of each token; None: 0, 1, 2 …"""
    ranks: list[int] | None = None
    """Attention: a token sees itself and every even rank up to its own; nothing else sees an odd rank. None: all."""


class TaskResult:
    """Base of the results of tasks."""

    depth: ClassVar[int | None] = None
    """Layers applied, if the text could exit early; neither compared nor written."""


class Task:
    """Examples ↔ numbers. A subclass declares once what it is; other packages read these attributes, not its name."""

    name: ClassVar[str] = ""
    """As in `albertkit.json`, in commands and in URLs."""
    heads: ClassVar[tuple[str, ...]] = ()
    """The heads of `model/albert_model.py` whose scores it reads; "vector" is the mean of the token vectors."""
    example_types: ClassVar[tuple[type, ...]] = ()
    result_type: ClassVar[type[TaskResult]]
    setting_names: ClassVar[tuple[str, ...]] = ()
    """Fields that a user may set beside the settings of fine-tuning."""
    usage: ClassVar[str] = ""
    """The command for models of this task, as error messages show it."""
    can_exit_early: ClassVar[bool] = True
    can_train_on_frozen_vectors: ClassVar[bool] = False
    can_be_explained: ClassVar[bool] = True
    generates_text: ClassVar[bool] = False
    gives_vectors: ClassVar[bool] = False
    """Whether the result comes from vectors that are useful without the task."""
    has_correct_results: ClassVar[bool] = True
    """Whether one result is correct or wrong; a cosine or a generated text is neither."""
    has_independent_results: ClassVar[bool] = True
    """Whether a result depends on its own example alone; a dialogue state contains earlier turns."""

    kind: str = ""
    """What a label of a text is: single (one class), multi (several classes), regression (a number) or nothing."""
    labels: tuple[str, ...] = ()
    """The classes, in the order of the head's rows."""

    @property
    def uncertainty_measure(self) -> str:
        """How uncertainty is measured: entropy, or how far a vector (cosine) or value (change) moved."""
        if "vector" in self.heads:
            return "cosine"
        return "change" if self.kind == "regression" else "entropy"

    def outputs(self, head: str) -> int:
        """Rows of a head."""
        return max(1, len(self.labels))

    def features(self, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Inputs of the encoder, in the order of the examples; with targets if the examples have labels."""
        raise NotImplementedError

    def results(self, scores: Sequence[Any], features: Sequence[Feature], examples: Sequence[Any]) -> list[Any]:
        """One result per example, from the scores of each feature; for several heads, tuples of scores.

        Shapes: classify (classes,), tag (tokens, labels), answer (tokens, 2), choose (1,), vector (hidden,).
        """
        raise NotImplementedError

    def measure(self, results: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Metrics by name; the first one selects the best checkpoint (see `lower_is_better`)."""
        raise NotImplementedError


def group_features(features: Sequence[Feature], count: int) -> list[list[int]]:
    """The places of each example's features. count: of the examples."""
    groups: list[list[int]] = [[] for _ in range(count)]
    for place, feature in enumerate(features):
        groups[feature.example].append(place)
    return groups


def encode_once(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, Encoding]:
    """The encoding of each different text, without special tokens."""
    different = list(dict.fromkeys(texts))
    return dict(zip(different, tokenizer.encode_batch(different, add_specials=False), strict=True))


def check_variety(examples: Sequence[Any], values: Collection[Any], noun: str) -> None:
    """Raise if all examples have the same value (a class, a number), since there is nothing to learn."""
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
    probabilities: np.ndarray = scores / scores.sum(-1, keepdims=True)
    return probabilities
