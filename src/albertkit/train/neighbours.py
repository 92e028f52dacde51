"""An order in which texts of like meaning stand side by side, so that a batch can hold texts that are hard to tell apart.

In: the vectors of texts. Out: their order. The texts are halved along the direction in which they differ most, and each half again, down to a few texts: a
balanced tree, whose leaves are read from left to right. Next: `distill.py` takes runs of neighbours into a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 4  # of power iteration: a direction that is only roughly the widest does as well


def neighbour_order(vectors: Tensor, leaf: int = 8, seed: int = 0) -> Tensor:
    """The order of (texts, width) vectors; all parts of one level are halved together."""
    count, width = vectors.shape
    generator = torch.Generator().manual_seed(seed)
    order = torch.arange(count, device=vectors.device)
    size = count
    while size > leaf:
        parts = -(-count // size)
        room = parts * size - count
        table = torch.cat([order, order.new_full((room,), -1)]).view(parts, size)  # the last part may be short
        here = (table >= 0).unsqueeze(-1)
        found = vectors[table.clamp(min=0)].float() * here
        middle = found.sum(1, keepdim=True) / here.sum(1, keepdim=True).clamp(min=1)
        found = (found - middle) * here
        along = torch.randn(parts, width, 1, generator=generator).to(vectors.device)
        for _ in range(ROUNDS):
            along = found.transpose(1, 2) @ (found @ along)
            along = along / along.norm(dim=1, keepdim=True).clamp(min=1e-12)
        places = (found @ along).squeeze(-1).masked_fill(table < 0, float("inf"))
        order = table.gather(1, places.argsort(1)).flatten()
        order = order[order >= 0]
        size = -(-size // 2)
    return order
