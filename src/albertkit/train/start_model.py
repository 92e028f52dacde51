"""The built-in model that a fine-tuning begins with, where none is named. No torch.

In: a task, its examples, the longest input. Out: the model's name, and why. `tune.py` calls it.

One built-in model knows what whole texts mean, the other words in their places. Classes of single texts may be about either: what a review says is near at hand in the vectors of the
first, whether a sentence is grammatical is not (LOG.md has numbers). So both are tried on some of the examples, by least squares on their vectors; that takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from albertkit import builtin
from albertkit.albert import Albert
from albertkit.train.frozen_head import vectors_of

MOST, FEWEST = 1_200, 200
"""Examples that are tried; below the second number they say too little, and meaning is the better guess."""
FEWER = 0.8
"""The model of whole texts must make so many times as many mistakes as the other, or fewer."""
RIDGE = 1e-3


def beginning(task: str, examples: Sequence[Any], max_length: int) -> tuple[str, str]:
    """(name of a built-in model, why)."""
    if max_length > builtin.describe(builtin.DEFAULT).shape["length"]:
        return builtin.FINETUNE_MODEL, "it reads texts of that length"
    if task == "match":
        return builtin.DEFAULT, "its vectors are good as they are"
    if task != "classify" or any(e.pair for e in examples):
        return builtin.FINETUNE_MODEL, "it knows words in their places"
    if len(examples) < FEWEST or not all(isinstance(e.label, str) for e in examples):
        return builtin.DEFAULT, "it knows what whole texts mean"
    return tried(examples, max_length)


def tried(examples: Sequence[Any], max_length: int) -> tuple[str, str]:
    """The model whose vectors tell the classes apart, if one is ahead; else the one that knows words."""
    drawn = np.random.default_rng(0).permutation(len(examples))[:MOST]
    chosen = [examples[i] for i in drawn]
    labels = np.unique([e.label for e in chosen], return_inverse=True)[1]
    both = (builtin.DEFAULT, builtin.FINETUNE_MODEL)
    right = {name: told_apart(vectors_of(Albert(builtin.resolve(name)), chosen, max_length), labels) for name in both}
    ahead = 1 - right[builtin.DEFAULT] < FEWER * (1 - right[builtin.FINETUNE_MODEL])
    shown = " and ".join(f"{share:.1%} with {name}" for name, share in right.items())
    return (
        builtin.DEFAULT if ahead else builtin.FINETUNE_MODEL
    ), f"a line through {len(drawn):,} vectors is right for {shown}"


def told_apart(vectors: np.ndarray, labels: np.ndarray) -> float:
    """Share of held-out vectors (each third one) whose class least squares on the others finds."""
    held = np.arange(len(labels)) % 3 == 2
    spread = (vectors - vectors[~held].mean(0)) / (vectors[~held].std(0) + 1e-6)
    known, wanted = spread[~held], np.eye(labels.max() + 1)[labels[~held]]
    shares = wanted.mean(0)
    gram = known.T @ known + RIDGE * len(known) * vectors.shape[1] * np.eye(vectors.shape[1])
    lines = np.linalg.solve(gram, known.T @ (wanted - shares))
    return float(((spread[held] @ lines + shares).argmax(1) == labels[held]).mean())
