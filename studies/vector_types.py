"""What do smaller vectors lose? Each type and width of the built-in English model, on pairs and on retrieval.

    python studies/vector_types.py DATA        DATA contains the folders sts-b, cisi and npl

For each width and type: Spearman's correlation on STS-B dev, and nDCG@10 on CISI and NPL. A `+` after a type means that
the 100 nearest texts are ranked again by the float32 query and their int8 vectors. `rotated` bits are the signs after
the rotation of the index. The result is in studies/results/vector-types.json.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr
from search_limit import read_cisi, read_npl

from albertkit import Albert
from albertkit.search.vectors import rotate
from albertkit.vector_dtype import DTYPES, convert_vectors

RESULT = Path(__file__).parent / "results" / "vector-types.json"
WIDTHS, RERANKED = (384, 256, 128, 64), 100


def main(data: Path) -> None:
    """Write one row per width and type."""
    albert, rows = Albert(), []
    with (data / "sts-b" / "dev.tsv").open(encoding="utf-8") as file:
        pairs = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    one, other = (albert.embed([pair[f"sentence{i}"] for pair in pairs]) for i in (1, 2))
    sets = {}
    for name, read in (("cisi", read_cisi), ("npl", read_npl)):
        texts, queries = read(data / name)
        sets[name] = albert.embed([query for query, _ in queries]), albert.embed(texts), [right for _, right in queries]
    for width in WIDTHS:
        for kind in (*DTYPES, "binary, rotated", "binary+", "binary, rotated+"):
            dtype, is_rotated = kind.rstrip("+").split(",")[0], "rotated" in kind
            shown = [cut(vectors, width, is_rotated) for vectors in (one, other)]
            row = {"width": width, "type": kind, "bytes": convert_vectors(shown[0][:1], dtype).nbytes}
            if not kind.endswith("+"):
                gold = [float(pair["score"]) for pair in pairs]
                row["sts-b"] = round(100 * float(spearmanr(np.diag(scores(*shown, dtype)), gold).statistic), 1)
            for name, (queries, texts, right) in sets.items():
                similarities = scores(cut(queries, width, is_rotated), cut(texts, width, is_rotated), dtype)
                if kind.endswith("+"):
                    similarities = rerank(similarities, cut(queries, width), convert_vectors(cut(texts, width), "int8"))
                row[name] = round(100 * ndcg(similarities, right), 1)
            rows.append(row)
            print(row, flush=True)
    RESULT.write_text(json.dumps({"depth": albert.depth, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def cut(vectors: np.ndarray, width: int, is_rotated: bool = False) -> np.ndarray:
    """The first numbers of each vector, with length 1."""
    short = vectors[:, :width] / np.linalg.norm(vectors[:, :width], axis=1, keepdims=True)
    return rotate(short) if is_rotated else short


def scores(queries: np.ndarray, texts: np.ndarray, dtype: str) -> np.ndarray:
    """Similarity of each query with each text, both of this type: cosine, or the share of equal bits."""
    if dtype == "binary":
        signs = [np.where(rows > 0, np.float32(1), np.float32(-1)) for rows in (queries, texts)]
        return np.asarray(signs[0] @ signs[1].T / queries.shape[1])
    one, other = (convert_vectors(rows, dtype).astype(np.float32) for rows in (queries, texts))
    return np.asarray(cut(one, one.shape[1]) @ cut(other, other.shape[1]).T)


def rerank(similarities: np.ndarray, queries: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """The scores of the best texts by the vectors of another type; the others come after them."""
    best = np.argsort(-similarities, axis=1, kind="stable")[:, :RERANKED]
    exact = np.take_along_axis(queries @ texts.astype(np.float32).T, best, axis=1)
    again = np.full(similarities.shape, -np.inf)
    np.put_along_axis(again, best, exact, axis=1)
    return again


def ndcg(similarities: np.ndarray, relevant: Sequence[set[int]], k: int = 10) -> float:
    """The mean of nDCG@k over queries."""
    gains = 1 / np.log2(np.arange(2, k + 2))
    values = []
    for row, places in zip(np.argsort(-similarities, axis=1, kind="stable")[:, :k].tolist(), relevant, strict=True):
        values.append(sum(gains[i] for i, place in enumerate(row) if place in places) / gains[: len(places)].sum())
    return float(np.mean(values))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
