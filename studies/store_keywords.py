"""How good is keyword search in a vector store? The measurement behind the ranking of `stores/pgvector_words.py`.

    python studies/store_keywords.py DATA ADDRESS...     DATA contains the folders cisi and npl

For the index in a file and for each address: nDCG@10 of keyword search. For Postgres also with `ts_rank` alone.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from search_limit import Queries, read_cisi, read_npl

from albertkit import Index, Record

HITS = 10


class NoVectors:
    """An embedder for indexes that are searched by words only."""

    dim, name = 2, "none"

    def embed(self, texts: Iterable[str]) -> np.ndarray:
        return np.tile(np.array([1.0, 0.0], np.float32), (len(list(texts)), 1))


def main(data: Path, addresses: list[str]) -> None:
    """Print one line per set and place."""
    for name, read in {"cisi": read_cisi, "npl": read_npl}.items():
        texts, queries = read(data / name)
        with tempfile.TemporaryDirectory() as folder:
            for address in (str(Path(folder) / "t.idx"), *addresses):
                with Index.create(address, NoVectors(), overwrite=True) as index:
                    index.add(Record(str(place), text) for place, text in enumerate(texts))
                    print(f"{name}, {index.path}: nDCG@10 {gain(index, queries):.3f}", flush=True)
                    if address.startswith("pgvector:"):
                        print(f"{name}, ts_rank alone: nDCG@10 {plain_gain(index, queries):.3f}", flush=True)


def gain(index: Index, queries: Queries) -> float:
    found = index.search_many([query for query, _ in queries], HITS, "keyword")
    return mean_gain([[int(hit.id) for hit in hits] for hits in found], queries)


def plain_gain(index: Index, queries: Queries) -> float:
    """With the rarity of all words set to 1."""
    from unittest.mock import patch

    from albertkit.search.stores import pgvector_words

    with patch.object(pgvector_words.math, "log", lambda value: 1.0):
        return gain(index, queries)


def mean_gain(hits: list[list[int]], queries: Queries) -> float:
    total = 0.0
    for places, (_, right) in zip(hits, queries, strict=True):
        best = sum(1 / math.log2(2 + i) for i in range(min(HITS, len(right))))
        total += sum(1 / math.log2(2 + i) for i, place in enumerate(places) if place in right) / best
    return total / len(queries)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
