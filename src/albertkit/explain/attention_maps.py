"""Attention of one row, by layer and head, and rolled out through the layers.

In: what `explain/activations.py` computed. Out: a `AttentionMap`. Rollout (Abnar and Zuidema, 2020) takes the mean A of the heads of each layer, adds the
residual path as half of every token, (A + 1) / 2, and multiplies through the layers: how much of each first token could have
reached each last one, if attention were all that moves things. It leaves out values, feed-forward and sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class AttentionMap:
    """What the tokens of one row look at."""

    row: int
    tokens: tuple[str, ...]
    attention: np.ndarray  # (layers, heads, from token, to token); each line of the last axis sums to 1
    rollout: np.ndarray  # (from token, to token); the same
    owner: np.ndarray  # (tokens,) the word each token belongs to, or -1
    reader: int = 0
    """The token that the target reads, the first if it reads several."""


def rollout(attention: np.ndarray) -> np.ndarray:
    """(layers, heads, tokens, tokens) → (tokens, tokens).

    >>> rollout(np.array([[[[1.0, 0.0], [1.0, 0.0]]]])).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    tokens = attention.shape[-1]
    flow = np.eye(tokens)
    for layer in attention:
        mixed = layer.mean(axis=0, dtype=np.float64) + np.eye(tokens)
        flow = mixed / mixed.sum(axis=-1, keepdims=True) @ flow
    return flow


def attention_by_word(table: np.ndarray, readers: Sequence[int], owner: np.ndarray, words: int) -> np.ndarray:
    """(words,) what reaches some reading tokens, on average, from the tokens of each word."""
    out = np.zeros(words)
    there = owner >= 0
    np.add.at(out, owner[there], table[list(readers)].mean(axis=0)[there])
    return out
