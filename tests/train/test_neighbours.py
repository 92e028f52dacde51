"""The order in which texts of like meaning stand side by side."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from albertkit.train.neighbours import neighbour_order


@given(st.integers(1, 300), st.integers(1, 12), st.integers(0, 99))
@settings(max_examples=40)
def test_every_text_once(count, leaf, seed):
    vectors = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
    assert sorted(neighbour_order(vectors, leaf, seed).tolist()) == list(range(count))


def test_neighbours_are_alike():
    torch.manual_seed(0)
    middles = torch.randn(40, 16)
    kind = torch.randint(0, 40, (2000,))
    vectors = middles[kind] + 0.2 * torch.randn(2000, 16)
    order = neighbour_order(vectors)
    ordered, drawn = vectors[order], vectors[torch.randperm(2000)]
    near, far = (F.cosine_similarity(v[:-1], v[1:]).mean() for v in (ordered, drawn))
    assert near > 0.8 and abs(far) < 0.1
    assert torch.equal(order, neighbour_order(vectors))
