"""Several texts as one row of tokens, without padding: the form the model computes on.

In: lists of token ids, or a padded (texts, length) batch with a mask. Out: `Batch`, whose tensors are all
(tokens,) long, plus the length of each text. No padding is computed on, ever; `unpad`/`pad` go to and from the padded
form for those who need it. Next: `encoder.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

import torch
from torch import Tensor

from albertkit.errors import AlbertkitError


@dataclass(frozen=True)
class Batch:
    """Packed texts. `lengths` are plain numbers, since they shape the computation."""

    ids: Tensor  # (tokens,) int64
    segments: Tensor  # (tokens,) int64
    positions: Tensor  # (tokens,) int64
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        tokens = sum(self.lengths)
        for name in ("ids", "segments", "positions"):
            shape = tuple(getattr(self, name).shape)
            if shape != (tokens,):
                raise AlbertkitError(f"{name} has shape {shape}; the lengths of the texts add up to ({tokens},)")
        if not self.lengths or min(self.lengths) < 1:
            raise AlbertkitError("a batch needs at least one text, and a text at least one token")

    @classmethod
    def of(cls, ids: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None) -> Batch:
        """Pack lists of token ids (segments default to 0)."""
        lengths = tuple(len(row) for row in ids)
        if segments is not None and tuple(len(row) for row in segments) != lengths:
            raise AlbertkitError("segments and ids differ in length; give one segment for each token")
        flat = torch.tensor([token for row in ids for token in row], dtype=torch.long)
        kinds = torch.zeros_like(flat)
        if segments is not None:
            kinds = torch.tensor([kind for row in segments for kind in row], dtype=torch.long)
        places = torch.cat([torch.arange(n) for n in lengths]) if lengths else flat
        return cls(flat, kinds, places, lengths)

    @classmethod
    def unpad(
        cls,
        ids: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Batch:
        """Pack a padded (texts, length) batch: only tokens whose mask is not 0 are kept, at their own positions."""
        if ids.dim() != 2:
            raise AlbertkitError(f"ids has shape {tuple(ids.shape)}; a padded batch is (texts, length)")
        texts, length = ids.shape
        if segments is None:
            segments = torch.zeros_like(ids)
        if positions is None:
            positions = torch.arange(length, device=ids.device).expand(texts, length)
        if mask is None:
            return cls(ids.reshape(-1), segments.reshape(-1), positions.reshape(-1), (length,) * texts)
        kept = mask != 0  # (texts, length)
        lengths = tuple(int(n) for n in kept.sum(1).tolist())
        return cls(ids[kept], segments[kept], positions.expand_as(ids)[kept], lengths)

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """(tokens, …) → (texts, longest, …), each text at the left, `fill` after its end."""
        longest = max(self.lengths)
        out = values.new_full((len(self.lengths), longest, *values.shape[1:]), fill)
        for row, part in enumerate(values.split(list(self.lengths))):
            out[row, : len(part)] = part
        return out

    @property
    def starts(self) -> list[int]:
        """Index of the first token of each text."""
        return [0, *accumulate(self.lengths)][:-1]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Neighbouring texts of equal length as (texts, length); sorted batches have few."""
        return [(len(list(group)), length) for length, group in groupby(self.lengths)]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return replace(
            self,
            ids=self.ids.to(device),
            segments=self.segments.to(device),
            positions=self.positions.to(device),
        )
