"""Several texts as one row of tokens, without padding: the input of the model.

In: lists of token ids, or a padded (texts, length) batch with a mask. Out: a `Batch`, whose tensors have the length
(tokens,), and the lengths of the texts. `unpad` and `pad` convert from and to the padded form. After: `encoder.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor, nn

from albertkit.errors import AlbertkitError


def length_runs(lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Run-length encoding of lengths: (5, 5, 3) → ((2, 5), (1, 3))."""
    return tuple((len(list(group)), length) for length, group in groupby(lengths))


@dataclass(frozen=True)
class Padding:
    """Positions of packed tokens in a padded (texts, longest) table, and the reverse."""

    tokens: Tensor  # (texts, longest) indices of packed tokens; 0 at padding
    mask: Tensor  # (texts, longest) bool: False at padding
    positions: Tensor  # (tokens,) indices into the flattened table

    # index_select, since the gradient of values[indices] sorts the indices first, which is slow on a GPU
    def pad(self, values: Tensor) -> Tensor:
        """(tokens, …) → (texts, longest, …); padding has the values of the first token."""
        return values.index_select(0, self.tokens.flatten()).unflatten(0, self.tokens.shape)

    def unpad(self, values: Tensor) -> Tensor:
        """(texts, longest, …) → (tokens, …)."""
        return values.flatten(0, 1).index_select(0, self.positions)


@dataclass(frozen=True)
class Batch:
    """Packed texts. `runs` lists neighbouring texts of equal length as (texts, length): few in sorted batches, one if
    all texts have the same length. They are Python numbers, since they determine tensor shapes.
    """

    ids: Tensor  # (tokens,) int64
    segments: Tensor  # (tokens,) int64
    positions: Tensor  # (tokens,) int64
    runs: tuple[tuple[int, int], ...]
    attention_mask: Tensor | None = None
    """Tokens (columns) to which a token (row) attends, (texts, longest, longest) bool; None: all of its text."""
    key_mask: Tensor | None = None
    """For texts padded to one length, (texts, length) bool: False at padding, to which no token attends."""
    vectors: Tensor | None = None
    """Vectors that replace word embeddings, such as features of an image, (extra, E)."""
    places: Tensor | None = None
    """Indices of the packed tokens that `vectors` replace, (extra,) int64; the ids of these tokens are not read."""

    def __post_init__(self) -> None:
        tokens = sum(texts * length for texts, length in self.runs)
        for name in ("ids", "segments", "positions"):
            shape = tuple(getattr(self, name).shape)
            if shape != (tokens,):
                raise AlbertkitError(f"{name} has shape {shape}: by the lengths of the texts it must be ({tokens},).")
        if not self.runs or min(min(run) for run in self.runs) < 1:
            raise AlbertkitError("a batch needs at least one text, and each text at least one token.")
        self._check_masks()
        if (self.vectors is None) != (self.places is None):
            raise AlbertkitError("only one of vectors and places was passed. Pass both or neither.")
        if self.vectors is not None and self.places is not None and self.places.shape != self.vectors.shape[:-1]:
            raise AlbertkitError(
                f"vectors has shape {tuple(self.vectors.shape)} and places {tuple(self.places.shape)}: "
                "they must be (extra, E) and (extra,)."
            )

    def _check_masks(self) -> None:
        longest = max(length for _, length in self.runs)
        expected = (sum(texts for texts, _ in self.runs), longest, longest)
        if self.attention_mask is not None and tuple(self.attention_mask.shape) != expected:
            raise AlbertkitError(
                f"attention_mask has shape {tuple(self.attention_mask.shape)}: for these texts it must be {expected}."
            )
        padded = {expected[:2]} if len(self.runs) == 1 and self.attention_mask is None else set()
        if self.key_mask is not None and tuple(self.key_mask.shape) not in padded:
            raise AlbertkitError(
                f"key_mask has shape {tuple(self.key_mask.shape)}, but it is for texts of one length without "
                "attention_mask. Pass a mask of the shape (texts, length)."
            )

    @classmethod
    def of(cls, ids: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None) -> Batch:
        """Pack lists of token ids (segments default to 0)."""
        lengths = tuple(len(row) for row in ids)
        if segments is not None and tuple(len(row) for row in segments) != lengths:
            raise AlbertkitError("segments and ids differ in length. Pass one segment for each token.")
        flat = torch.tensor([token for row in ids for token in row], dtype=torch.long)
        kinds = torch.zeros_like(flat)
        if segments is not None:
            kinds = torch.tensor([kind for row in segments for kind in row], dtype=torch.long)
        places = torch.cat([torch.arange(n) for n in lengths]) if lengths else flat
        return cls(flat, kinds, places, length_runs(lengths))

    @classmethod
    def unpad(cls, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Batch:
        """Pack a padded (texts, length) batch: tokens whose mask is not 0 are kept, with their positions."""
        if ids.dim() != 2:
            raise AlbertkitError(f"ids has shape {tuple(ids.shape)}: a padded batch must be (texts, length).")
        texts, length = ids.shape
        if segments is None:
            segments = torch.zeros_like(ids)
        positions = torch.arange(length, device=ids.device).expand(texts, length)
        if mask is None:
            return cls(ids.reshape(-1), segments.reshape(-1), positions.reshape(-1), ((texts, length),))
        inside = mask != 0  # (texts, length)
        lengths = tuple(int(n) for n in inside.sum(1).tolist())
        return cls(ids[inside], segments[inside], positions[inside], length_runs(lengths))

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """(tokens, …) → (texts, longest, …), right-padded with `fill`."""
        texts = list(values.split(list(self.lengths)))
        return nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=fill)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each text."""
        return tuple(length for texts, length in self.runs for _ in range(texts))

    @cached_property
    def padding(self) -> Padding:
        """The indices for padding and unpadding, computed once for all layers."""
        lengths = torch.tensor(self.lengths)
        inside = torch.arange(int(lengths.max())) < lengths[:, None]
        begins = lengths.cumsum(0) - lengths
        tokens = (begins[:, None] + torch.arange(inside.shape[1])).where(inside, 0)
        device = self.ids.device
        return Padding(tokens.to(device), inside.to(device), inside.flatten().nonzero()[:, 0].to(device))

    def first(self, values: Tensor) -> Tensor:
        """(tokens, …) → (texts, …): the values of the first token of each text."""
        if len(self.runs) == 1:
            return values[:: self.runs[0][1]].contiguous()  # a view would keep all of `values` in memory
        return values[[0, *accumulate(self.lengths)][:-1]]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        moved: dict[str, Any] = {k: value.to(device) for k, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **moved)

    def words(self, table: nn.Embedding) -> Tensor:
        """The word embedding of each token, (tokens, E), or the vector that replaces it."""
        words: Tensor = table(self.ids)
        if self.vectors is None or self.places is None:
            return words
        return words.index_copy(0, self.places, self.vectors.to(words.dtype))
