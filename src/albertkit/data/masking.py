"""Rows → masked rows, on the device: sentence order and dynamic n-gram masking.

In: `SegmentPairs` as tensors (`row_stream.py`). Out: `MaskedRows`, with the targets of both objectives, for
`train/pretrain.py`. Random numbers are a hash of (seed, step, row, column). They are the same on every device and for
any number of processes, and a resumed run needs no saved state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

IGNORED = -100


@dataclass(frozen=True)
class SpecialIds:
    """The ids that masking needs: three special tokens, and the ids that random tokens are drawn from."""

    cls: int
    sep: int
    mask: int
    words: Tensor  # (n,) int64, on the device


@dataclass(frozen=True)
class MaskedRows:
    """Masked rows and their targets."""

    ids: Tensor  # (rows, length) int64
    segments: Tensor  # (rows, length) int64
    positions: Tensor  # (n,) flat positions of the masked tokens; 0 where there are fewer
    words: Tensor  # (n,) int64, the original tokens, or -100
    order: Tensor  # (rows,) 0 in order, 1 swapped, or -100


def random_key(seed: int, step: int, device: torch.device | str) -> Tensor:
    """Two 32-bit numbers derived from a seed and a step."""
    mixed = mix_seed(seed, step)
    return to_device([mixed & 0xFFFFFFFF, mixed >> 32], device)


def to_device(numbers: np.ndarray | list[int] | int, device: torch.device | str) -> Tensor:
    """Integers on a device, copied without synchronization."""
    array = torch.as_tensor(numbers, dtype=torch.int64)
    if torch.device(device).type == "cuda":
        return array.pin_memory().to(device, non_blocking=True)
    return array.to(device)


def mix_seed(seed: int, step: int) -> int:
    """64 random bits derived from a seed and a step."""
    return _mix64(_mix64(seed & (2**64 - 1)) ^ (step & (2**64 - 1)))


def _mix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & (2**64 - 1)
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return x ^ (x >> 31)


def _mix32(x: Tensor) -> Tensor:
    """A hash of 32-bit numbers in int64; only the low half of each product is used."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def uniform(key: Tensor, rows: Tensor, columns: int, purpose: int) -> Tensor:
    """Numbers in [0, 1), (rows, columns), float32; each `purpose` gives other numbers."""
    column = torch.arange(columns, device=rows.device)
    x = _mix32((rows[:, None] + key[0]) & 0xFFFFFFFF) ^ _mix32((column[None] + key[1] + (purpose << 20)) & 0xFFFFFFFF)
    x = _mix32((_mix32(x) + key[0]) & 0xFFFFFFFF)
    return (x >> 8).float() * 2.0**-24


def arrange_segments(
    tokens: Tensor, first: Tensor, ordered: Tensor, swap: Tensor, specials: SpecialIds
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Put special tokens around the segments: ids, segments, where words start, which tokens are special.

    The rows are [CLS] one [SEP] other [SEP], or [CLS] one [SEP] where `first` counts all tokens. Each result is
    (rows, length).
    """
    width = tokens.shape[1] - 1  # tokens of a row of two segments; a row of one segment has one more
    bit = 1 << (8 * tokens.element_size() - 1)
    plain = tokens.long() & (2 * bit - 1)  # (rows, width); removes the sign extension
    place = torch.arange(width + 3, device=tokens.device)[None]  # (1, length)
    first, swap = first.long()[:, None], (swap & ordered)[:, None]
    ahead = torch.where(swap, width - first, first)  # tokens before the middle [SEP]
    read = torch.where(place <= ahead, place - 1, place - 2)  # the token of the row at each place, after swapping
    source = torch.where(swap, torch.where(read < ahead, read + first, read - ahead), read)
    marked = plain.gather(1, source.clamp(0, width))
    special = (place == 0) | (place == ahead + 1) | (place == width + 2)
    fixed = torch.where(place == 0, specials.cls, specials.sep)
    ids = torch.where(special, fixed, marked & (bit - 1))
    starts = ((marked & bit) != 0) | (place == 1) | (place == ahead + 2)
    return ids, (place > ahead + 1).long(), starts & ~special, special


def choose_masks(starts: Tensor, special: Tensor, edges: Tensor, draw: tuple[Tensor, Tensor], rate: float) -> Tensor:
    """Which tokens to mask, (rows, length) bool. `edges`: starts of segments, which no n-gram crosses.

    N-grams of one to three words partition the words of a segment, with p(n) ∝ 1/n. N-grams are masked in random order
    until the share `rate` of the row is reached. The last one is masked with the probability that gives `rate` on
    average.
    """
    key, rows = draw
    length = starts.shape[1]
    drawn = uniform(key, rows, length, 1)
    sizes = 1 + (drawn >= 6 / 11).long() + (drawn >= 9 / 11).long()  # words of each n-gram: p(n) = 6/11, 3/11, 2/11
    ends = sizes.cumsum(1).clamp(max=length)  # word at which the next n-gram starts
    begins = torch.zeros(len(rows), length + 1, dtype=torch.bool, device=starts.device).scatter_(1, ends, True)
    word = starts.long().cumsum(1) - 1
    tile = (starts & (begins.gather(1, word.clamp(min=0)) | edges)).long().cumsum(1) - 1
    tile = torch.where(special, length, tile)  # the last index collects tokens that are never masked
    counts = torch.zeros(len(rows), length + 1, dtype=torch.long, device=starts.device)
    counts = counts.scatter_add_(1, tile, torch.ones_like(tile))[:, :length]
    empty = counts == 0
    order = (uniform(key, rows, length, 2) + 2 * empty).argsort(1)
    sizes = counts.gather(1, order)
    before = sizes.cumsum(1) - sizes
    room = (length - 3) * rate - before
    taken = (uniform(key, rows, length, 3) * sizes < room) & (sizes > 0)
    chosen = torch.zeros(len(rows), length + 1, dtype=torch.bool, device=starts.device).scatter_(1, order, taken)
    return chosen.gather(1, tile)


def _positions(chosen: Tensor, room: int) -> Tensor:
    """The positions where `chosen` is true, in order, in a tensor of fixed size; -1 where there are fewer."""
    slot = chosen.long().cumsum(0) - 1
    slot = torch.where(chosen & (slot < room), slot, room)
    places = torch.full((room + 1,), -1, dtype=torch.long, device=chosen.device)
    return places.scatter_(0, slot, torch.arange(len(chosen), device=chosen.device))[:room]


def mask_rows(
    tokens: Tensor,
    first: Tensor,
    ordered: Tensor,
    key: Tensor,
    offset: Tensor | int,
    specials: SpecialIds,
    rate: float = 0.15,
) -> MaskedRows:
    """Mask some rows and swap segments; `offset` is the number of the first row in the whole batch."""
    rows = torch.arange(len(tokens), device=tokens.device) + offset
    swap = uniform(key, rows, 1, 0)[:, 0] < 0.5
    ids, segments, starts, special = arrange_segments(tokens, first, ordered, swap, specials)
    length = ids.shape[1]
    edges = torch.zeros_like(starts)
    edges[:, 1:] = special[:, :-1]
    chosen = choose_masks(starts, special, edges, (key, rows), rate)
    action = uniform(key, rows, length, 4)
    words = specials.words
    other = words[(uniform(key, rows, length, 5) * len(words)).long()]
    shown = torch.where(chosen & (action < 0.8), specials.mask, torch.where(chosen & (action >= 0.9), other, ids))
    room = int(len(tokens) * (length - 3) * rate * 1.03) + 64  # further masks have no target
    places = _positions(chosen.flatten(), room)
    targets = torch.where(places >= 0, ids.flatten()[places.clamp(min=0)], IGNORED)
    places = places.clamp(min=0)
    order = torch.where(ordered, (swap & ordered).long(), IGNORED)
    return MaskedRows(shown, segments, places, targets, order)
