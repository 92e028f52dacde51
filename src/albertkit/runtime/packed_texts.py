"""Many texts as a few arrays, and what to compute from them: the input of a device such as a GPU.

In: lists of token ids. Out: `PackedTexts` and `OutputRequest`s, small enough to send to another process. No torch here.
After it: `torch_engine.py` computes the outputs, in this process or in that of `bulk/device.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from albertkit.errors import AlbertkitError

SHORTEST = 8  # of the padded lengths


@dataclass(frozen=True)
class PackedTexts:
    """The tokens of texts, one text after the other."""

    ids: np.ndarray  # (tokens,) int32
    lengths: np.ndarray  # (texts,) int32, tokens of each text
    segments: np.ndarray | None = None  # (tokens,) uint8; None: all are 0

    @classmethod
    def of(cls, ids: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None) -> PackedTexts:
        """Pack lists of token ids.

        >>> PackedTexts.of([[2, 7, 3], [2, 3]]).lengths.tolist()
        [3, 2]
        """
        lengths = np.fromiter(map(len, ids), np.int32, len(ids))
        tokens = int(lengths.sum())
        packed_segments = None
        if segments is not None and any(map(any, segments)):
            packed_segments = np.fromiter(chain.from_iterable(segments), np.uint8, tokens)
        return cls(np.fromiter(chain.from_iterable(ids), np.int32, tokens), lengths, packed_segments)

    @property
    def starts(self) -> np.ndarray:
        """The first token of each text (texts,)."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    def check(self, ids: int, segments: int, positions: int) -> None:
        """Raise unless all values are below these numbers; a device would read other memory."""
        for name, values, lowest, highest in (
            ("token id", self.ids, 0, ids - 1),
            ("segment", self.segments, 0, segments - 1),
            ("number of tokens", self.lengths, 1, positions),
        ):
            if values is not None and len(values) and not lowest <= int(values.min()) <= int(values.max()) <= highest:
                invalid = int(values.min()) if int(values.min()) < lowest else int(values.max())
                raise AlbertkitError(
                    f"a {name} is {invalid}, but this model has {lowest} to {highest}. "
                    "Encode the texts with its tokenizer, truncated to its maximum."
                )
        if len(self.ids) != int(self.lengths.sum()) or (
            self.segments is not None and len(self.segments) != len(self.ids)
        ):
            raise AlbertkitError(f"{len(self.ids)} tokens do not fit the lengths of the texts. Pass all tokens.")


@dataclass(frozen=True)
class OutputRequest:
    """What to compute from the hidden states: one row per text, or without `pooling` one row per token; then, with
    `weight`, a dense layer.
    """

    pooling: str | None
    weight: np.ndarray | None = None  # (outputs, H)
    bias: np.ndarray | None = None  # (outputs,)


PackedOutputs = Callable[[PackedTexts, int, Sequence[OutputRequest]], list[np.ndarray]]
"""Texts, depth and requests to one array per request: (texts, H or outputs) or (tokens, H or outputs), float32."""


@dataclass(frozen=True)
class PaddedGroup:
    """Neighbours in a list of texts sorted by length, to be padded to `length`."""

    first: int
    last: int
    length: int


def padded_groups(lengths: np.ndarray, token_budget: int, longest: int) -> Iterator[PaddedGroup]:
    """Groups of texts, sorted from long to short. All but the last have nearly `token_budget` tokens with padding, so
    that every group keeps a GPU busy.

    >>> list(padded_groups(np.array([17, 9, 9, 3]), 64, 256))
    [PaddedGroup(first=0, last=2, length=24), PaddedGroup(first=2, last=4, length=16)]
    """
    first = 0
    while first < len(lengths):
        length = min(padded_length(int(lengths[first])), longest)
        last = min(first + max(1, token_budget // length), len(lengths))
        yield PaddedGroup(first, last, length)
        first = last


def padded_length(length: int) -> int:
    """The padded length, a multiple of 8, since fused attention reads masks in steps of 8. Steps grow with the length,
    so that there are few shapes.

    >>> [padded_length(n) for n in (3, 29, 49, 100, 129)]
    [8, 32, 56, 112, 160]
    """
    step = SHORTEST
    while 8 * step < length:
        step *= 2
    return -(-length // step) * step
