"""Late interaction: the hits of a search, ranked again by the vectors of their tokens.

In: an `Albert`, a query and hits of `index.py` with cosines. Out: the same hits, ranked by the cosine plus MaxSim: the
mean, over the tokens of the query, of the highest cosine with a token of the text. docs/results/models.md has numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from albertkit.albert import Albert
from albertkit.runtime.embed import unit_length
from albertkit.search.index_records import SearchHit, check_queries


def rerank_hits(albert: Albert, query: str, hits: Sequence[SearchHit]) -> list[SearchHit]:
    """The hits of a search by meaning or of a hybrid search, in the order of cosine plus MaxSim. Scores stay cosines.

    >>> from albertkit import Albert
    >>> rerank_hits(Albert(), "a cat", [SearchHit("1", "a train", 0.1, "", 0, "meaning")])[0].id
    '1'
    """
    check_queries([query])
    if not hits:
        return []
    encoded = albert.token_vectors([query, *(hit.text for hit in hits)])
    query_vectors, *texts = (unit_length(text.vectors[1:-1]) for text in encoded)  # without [CLS] and [SEP]
    scores = [hit.score + max_similarity(query_vectors, tokens) for hit, tokens in zip(hits, texts, strict=True)]
    return [hits[place] for place in np.argsort(-np.array(scores), kind="stable")]


def max_similarity(query: np.ndarray, text: np.ndarray) -> float:
    """MaxSim of two texts from their token vectors (tokens, H) of length 1; -1 if one has no token."""
    return float((query @ text.T).max(axis=1).mean()) if len(query) and len(text) else -1.0
