"""What every task must be able to do. `classify.py`, `tag.py`, `answer.py`, `choose.py`, `generate.py` do.

In: examples. Out: `Feature`s for the encoder, and from the head's scores results and metrics. The same code serves training,
evaluation and use, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from albertkit.tokenizer import Tokenizer


@dataclass(frozen=True)
class Feature:
    """One input of the encoder. A long example may give several."""

    ids: list[int]
    segments: list[int]
    example: int
    """Which example it belongs to."""
    target: Any = None
    """What the head should say, in numbers: see the task's `loss` in `train/finetune_task.py`; None where nothing is known."""
    offsets: list[tuple[int, int]] | None = None
    """Characters that each token stands for, (0, 0) for special ones; for tasks that answer with characters."""
    positions: list[int] | None = None
    """The position of each token; None counts them."""
    ranks: list[int] | None = None
    """Who may look at whom: a token sees itself and every even rank up to its own; odd ranks are seen by nobody else. None: all see all."""


class Task(Protocol):
    """Examples ↔ numbers."""

    @property
    def head(self) -> str:
        """The head of `model/heads.py` it uses."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in the order of the head's rows; empty where there are none."""

    def features(self, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Inputs of the encoder, in the order of the examples; with targets where the examples have labels."""

    def results(self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[Any]) -> list[Any]:
        """What the scores of each feature mean, one result for each example.

        classify: (classes,), tag: (tokens, labels), answer: (tokens, 2), choose: (1,) for each feature.
        """

    def measure(self, results: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Scores by name, from 0 to 1 where that makes sense; the first is the one that is reported and chosen by."""
