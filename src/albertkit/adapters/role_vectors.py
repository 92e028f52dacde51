"""Vectors of queries and of passages, for the adapters of frameworks that distinguish the two.

In: an `Albert` and texts. Out: their vectors, computed with the model's prompt for this role if it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from albertkit.albert import Albert
from albertkit.runtime.embed import report_untrained_vectors


def embed_role(
    albert: Albert, texts: Sequence[str], role: Literal["query", "passage"], dim: int | None = None
) -> np.ndarray:
    """Sentence vectors (texts, dim) of queries, or of the passages that queries search."""
    report_untrained_vectors(albert)  # frameworks compare them
    return albert.embed(list(texts), prompt=role if role in albert.metadata.prompts else None, dim=dim)
