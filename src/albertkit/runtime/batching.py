"""Texts to batches of similar length.

In: token ids of many texts of any length. Out: `TokenBatch`es. A batch has at most `token_budget` tokens, including
padding, so that its activations fit into the processor's cache. At most the share `waste` of them is padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TOKEN_BUDGET = 1024
WASTE = 48


@dataclass(frozen=True)
class TokenBatch:
    """A padded batch, and the input positions of its texts."""

    ids: np.ndarray  # (texts, length) int64
    segments: np.ndarray  # (texts, length) int64
    lengths: np.ndarray  # (texts,) int32
    order: np.ndarray  # (texts,) position of each text in the input


def group_by_length(
    lengths: Sequence[int], token_budget: int = TOKEN_BUDGET, waste: int = WASTE
) -> Iterator[list[int]]:
    """Positions of the texts of each batch, longest first."""
    batch: list[int] = []
    longest = spent = 0
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padding = longest - lengths[place]
        if batch and ((len(batch) + 1) * longest > token_budget or spent + padding > waste):
            yield batch
            batch, spent = [], 0
        if not batch:
            longest, padding = lengths[place], 0
        batch.append(place)
        spent += padding
    if batch:
        yield batch


def token_batches(
    ids: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None, token_budget: int = TOKEN_BUDGET
) -> Iterator[TokenBatch]:
    """Batches of token ids; segments default to 0."""
    lengths = [len(row) for row in ids]
    for places in group_by_length(lengths, token_budget):
        yield pad_batch(ids, segments, places)


def pad_batch(ids: Sequence[Any], segments: Sequence[Any] | None, places: list[int]) -> TokenBatch:
    """The texts at some positions, the longest first, as one batch. Ids and segments are lists or arrays."""
    lengths = [len(ids[place]) for place in places]
    table = np.zeros((len(places), lengths[0]), np.int64)
    kinds = np.zeros((len(places), lengths[0]), np.int64)
    for at, place in enumerate(places):
        table[at, : lengths[at]] = ids[place]
        if segments is not None:
            kinds[at, : lengths[at]] = segments[place]
    return TokenBatch(table, kinds, np.array(lengths, np.int32), np.array(places))
