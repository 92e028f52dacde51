"""Texts to batches of similar length.

In: token ids of many texts of any length. Out: `TokenBatch`es. A batch has at most `token_budget` tokens, including
padding, so that its activations fit into the processor's cache. At most `waste` of them are padding. After this file:
`engine.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TOKEN_BUDGET = 1024
WASTE = 48  # tokens of padding in a batch


@dataclass(frozen=True)
class TokenBatch:
    """A padded batch, and the indices of its texts in the input."""

    ids: np.ndarray  # (texts, length) int64
    segments: np.ndarray  # (texts, length) int64
    lengths: np.ndarray  # (texts,) int32
    order: np.ndarray  # (texts,) index of each text in the input


def group_by_length(
    lengths: Sequence[int], token_budget: int = TOKEN_BUDGET, waste: int = WASTE
) -> Iterator[list[int]]:
    """Indices of the texts of each batch, longest first."""
    batch: list[int] = []
    longest = wasted = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padding = longest - lengths[index]
        if batch and ((len(batch) + 1) * longest > token_budget or wasted + padding > waste):
            yield batch
            batch, wasted = [], 0
        if not batch:
            longest, padding = lengths[index], 0
        batch.append(index)
        wasted += padding
    if batch:
        yield batch


def token_batches(
    ids: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None, token_budget: int = TOKEN_BUDGET
) -> Iterator[TokenBatch]:
    """Batches of token ids; segments default to 0."""
    lengths = [len(row) for row in ids]
    for indices in group_by_length(lengths, token_budget):
        yield pad_batch(ids, segments, indices)


def pad_batch(ids: Sequence[Any], segments: Sequence[Any] | None, indices: list[int]) -> TokenBatch:
    """The texts at some indices, the longest first, as one batch. Ids and segments are lists or arrays."""
    lengths = [len(ids[index]) for index in indices]
    padded_ids = np.zeros((len(indices), lengths[0]), np.int64)
    padded_segments = np.zeros((len(indices), lengths[0]), np.int64)
    for row, index in enumerate(indices):
        padded_ids[row, : lengths[row]] = ids[index]
        if segments is not None:
            padded_segments[row, : lengths[row]] = segments[index]
    return TokenBatch(padded_ids, padded_segments, np.array(lengths, np.int32), np.array(indices))
