"""How many candidates does a search in pgvector's graph need at each size? Recall and time of each number.

    python studies/pgvector_candidates.py --rows 1000000 --vectors real.npy [--graph-memory 4GB] [--candidates 100,200,400]

As `bench/stores.py`, for Postgres alone; the same 300 queries for each number, in turn. Prints one line per number.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / name) for name in ("src", "bench")]

import stores  # noqa: E402

import search  # noqa: E402
from albertkit.search.index import Index  # noqa: E402
from albertkit.search.stores import pgvector  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--graph-memory", default="1GB")
    parser.add_argument("--candidates", default="100,200,400,800")
    options = parser.parse_args()
    numbers = [int(number) for number in options.candidates.split(",")]
    with tempfile.TemporaryDirectory() as name:
        data, folder = Path(name) / "data", Path(name) / "postgres"
        data.mkdir()
        search.take(data, options.rows, options.vectors)
        queries, truth = np.load(data / "queries.npy")[: stores.QUERIES], np.load(data / "truth.npy")[: stores.QUERIES]
        with stores.address("pgvector", folder, options.graph_memory) as address:
            print(stores.build("pgvector", address, data), flush=True)
            with Index.open(address, search.Rows(np.zeros((0, search.DIM), np.float32))) as index:
                index.search_many([""], search.K, "vector", queries[:1], -1, True)  # reads the table
                recall: dict[int, int] = dict.fromkeys(numbers, 0)
                seconds: dict[int, list[float]] = {number: [] for number in numbers}
                for query, nearest in zip(queries, truth, strict=True):
                    for number in numbers:
                        pgvector.CANDIDATES = (number, pgvector.CANDIDATES[1])
                        began = time.perf_counter()
                        (hits,) = index.search_many([""], search.K, "vector", query[None], -1)
                        seconds[number].append(time.perf_counter() - began)
                        recall[number] += len({int(hit.id) for hit in hits} & set(nearest.tolist()))
    for number in numbers:
        share = recall[number] / (search.K * len(queries))
        print(
            f"{options.rows:,} rows, {number} candidates: recall@10 {share:.4f}, {1000 * np.median(seconds[number]):.1f} ms"
        )


if __name__ == "__main__":
    main()
