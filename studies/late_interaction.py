"""Do token vectors rank search results better? Late interaction, and the masked-word head as sparse vectors, untrained for both.

    python studies/late_interaction.py DATA PART SET QUERIES TEXTS      DATA contains the folders cisi, npl and squad

PART is maxsim or sparse, SET is the name of a folder. QUERIES are drawn, and TEXTS are theirs and others up to a count.
`maxsim`: the 50 best texts of a search are ranked again by MaxSim, the mean over the query's tokens of the best cosine
with a token of the text: alone, added to the cosine of the vectors, and fused with the search by reciprocal ranks.
`sparse`: each text has the weight of each token that `small-pretrained` predicts anywhere in it, beside keywords (BM25)
on the same texts. nDCG@10; the result is in studies/results/late-interaction.json.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from search_limit import Queries, read_cisi, read_npl
from vector_types import ndcg

from albertkit import Albert, Index, Record
from albertkit.runtime.batching import token_batches
from albertkit.search.index import Embedder

RESULT = Path(__file__).parent / "results" / "late-interaction.json"
QUESTIONS, CANDIDATES, RRF = 300, 50, 60
LAYERS = (6, 0)
MOST_TOKENS, TERMS = 128, 256  # of a text, and of a sparse vector
KINDS = ("logits", "probabilities")


@dataclass(frozen=True)
class Collection:
    """Texts, queries, and the places of the texts that answer each query."""

    texts: list[str]
    queries: list[str]
    right: list[set[int]]

    def sample(self, queries: int, count: int) -> Collection:
        """Some queries with all their relevant texts, and others up to a count."""
        sampled = sorted(random.Random(1).sample(range(len(self.queries)), min(queries, len(self.queries))))
        relevant = sorted(set().union(*(self.right[number] for number in sampled)))
        others = [place for place in range(len(self.texts)) if place not in set(relevant)]
        random.Random(0).shuffle(others)
        text_numbers = sorted([*relevant, *others[: max(0, count - len(relevant))]])
        places = {place: new for new, place in enumerate(text_numbers)}
        right = [{places[place] for place in self.right[number]} for number in sampled]
        return Collection(
            [self.texts[place] for place in text_numbers], [self.queries[number] for number in sampled], right
        )


def main(data: Path, part: str, name: str, queries: int, texts: int) -> None:
    """Write the scores of one set; the others stay as they are."""
    rows = {"maxsim": rerank, "sparse": expand}[part](read(data, name).sample(queries, texts))
    results = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    results.setdefault(part, {})[name] = rows
    print(part, name, rows, flush=True)
    RESULT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def read(data: Path, name: str) -> Collection:
    texts, queries = (
        read_paragraphs(data / name) if name == "squad" else {"cisi": read_cisi, "npl": read_npl}[name](data / name)
    )
    answered = [(query, places) for query, places in queries if places]
    return Collection(texts, [query for query, _ in answered], [places for _, places in answered])


def read_paragraphs(folder: Path) -> tuple[list[str], Queries]:
    """Paragraphs, and questions that their own paragraph answers."""
    texts: list[str] = []
    questions: Queries = []
    for article in json.loads(sorted(folder.glob("dev*.json"))[0].read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            questions += [(item["question"], {len(texts)}) for item in paragraph["qas"]]
            texts.append(paragraph["context"])
    random.Random(0).shuffle(questions)
    return texts, questions[:QUESTIONS]


class KnownVectors:
    """The vectors of an `Albert`, of which those of some texts are known."""

    def __init__(self, albert: Albert, vectors: dict[str, np.ndarray]) -> None:
        self.albert, self.known, self.dim, self.name = albert, vectors, albert.dim, albert.name

    def embed(self, texts: Iterable[str]) -> np.ndarray:
        rows = [self.known[text] if text in self.known else self.albert.embed(text) for text in texts]
        return np.stack(rows)


def search_scores(embedder: Embedder, collection: Collection, mode: str, k: int) -> np.ndarray:
    """Scores (queries, texts) that rank as a search of the index does; texts that were not found have -inf."""
    with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "t.idx", embedder) as index:
        index.add(Record(str(place), text) for place, text in enumerate(collection.texts))
        limit = {} if mode == "keyword" else {"min_score": -1.0}
        scores = np.full((len(collection.queries), len(collection.texts)), -np.inf)
        for row, hits in zip(scores, index.search_many(collection.queries, k, mode, **limit), strict=True):
            row[[int(hit.id) for hit in hits]] = 1 / (RRF + np.arange(1, len(hits) + 1))
        return scores


# Late interaction ------------------------------------------------------------------------------------------------


def rerank(collection: Collection) -> dict[str, float]:
    """nDCG@10 of the hybrid search, and of its best texts ranked again."""
    albert = Albert()
    inputs = [*collection.texts, *collection.queries]
    tokens = {layer: list(albert.token_vectors_iter(inputs, layer=layer)) for layer in LAYERS}
    vectors = np.stack([token_vectors.vectors.mean(axis=0) for token_vectors in tokens[LAYERS[0]]])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    first = search_scores(
        KnownVectors(albert, dict(zip(inputs, vectors, strict=True))), collection, "hybrid", CANDIDATES
    )
    count = len(collection.texts)
    cosines = np.where(np.isfinite(first), vectors[count:] @ vectors[:count].T, -np.inf)
    scores = {"hybrid": ndcg(first, collection.right), "cosine": ndcg(cosines, collection.right)}
    for layer in LAYERS:
        units = [unit_rows(token_vectors.vectors[1:-1]) for token_vectors in tokens[layer]]
        similar = max_similarity(units[count:], units[:count], np.isfinite(first))
        scores[f"maxsim, layer {layer}"] = ndcg(similar, collection.right)
        scores[f"cosine + maxsim, layer {layer}"] = ndcg(cosines + similar, collection.right)
        fused = np.where(np.isfinite(first), first + reciprocal_ranks(similar), -np.inf)
        scores[f"hybrid fused with maxsim, layer {layer}"] = ndcg(fused, collection.right)
    rounded = {name: round(100 * value, 1) for name, value in scores.items()}
    return {"texts": count, "queries": len(collection.queries), **rounded}


def max_similarity(queries: list[np.ndarray], texts: list[np.ndarray], is_candidate: np.ndarray) -> np.ndarray:
    """MaxSim (queries, texts) of the candidates; -inf elsewhere."""
    scores = np.full(is_candidate.shape, -np.inf)
    for number, place in zip(*np.nonzero(is_candidate), strict=True):
        scores[number, place] = (queries[number] @ texts[place].T).max(axis=1).mean()
    return scores


def unit_rows(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def reciprocal_ranks(scores: np.ndarray) -> np.ndarray:
    ranks = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    return np.where(np.isfinite(scores), 1 / (RRF + 1 + ranks), 0.0)


# Sparse vectors of the masked-word head --------------------------------------------------------------------------


def expand(collection: Collection) -> dict[str, float]:
    """nDCG@10 of keywords and of sparse vectors."""
    albert, small = Albert("small-pretrained"), Albert()
    empty = KnownVectors(small, dict.fromkeys(collection.texts, np.ones(small.dim, np.float32)))  # keywords need none
    words = search_scores(empty, collection, "keyword", 100)
    scores = {"texts": len(collection.texts), "queries": len(collection.queries)}
    scores["keywords (BM25)"] = round(100 * ndcg(words, collection.right), 1)
    ids = [Counter(encoding.ids[1:-1]) for encoding in albert.tokenizer.encode_batch(collection.texts)]
    frequencies = Counter(token for row in ids for token in row)
    size = albert.config.vocab_size
    idf = np.log(1 + len(ids) / (1 + np.array([frequencies[token] for token in range(size)], np.float32)))
    asked_ids = [encoding.ids[1:-1] for encoding in albert.tokenizer.encode_batch(collection.queries)]
    query_weights = np.zeros((len(asked_ids), size), np.float32)
    for row, tokens in zip(query_weights, asked_ids, strict=True):
        row[tokens] = 1
    texts, queries = predict_tokens(albert, collection.texts), predict_tokens(albert, collection.queries)
    for kind in KINDS:
        for weight, factor in (("", np.float32(1)), (" with idf", idf)):
            for name, query in (("both expanded", queries[kind]), ("texts expanded", query_weights)):
                row = (query * factor) @ texts[kind].T
                scores[f"{kind}{weight}, {name}"] = round(100 * ndcg(row, collection.right), 1)
    return scores


def predict_tokens(albert: Albert, texts: list[str]) -> dict[str, np.ndarray]:
    """For each of `KINDS`, the largest weight (texts, tokens) of each token at any place; the `TERMS` largest are kept."""
    encodings = albert.tokenizer.encode_batch(texts, max_length=MOST_TOKENS)
    weights = {kind: np.zeros((len(texts), albert.config.vocab_size), np.float32) for kind in KINDS}
    for batch in token_batches([e.ids for e in encodings], [e.segments for e in encodings], albert.token_budget):
        hidden = albert.engine.run(batch, albert.layers_to_apply("full"))
        for place, row, length in zip(batch.order, hidden, batch.lengths, strict=True):
            logits = albert.engine.mlm_logits(np.ascontiguousarray(row[1 : length - 1]))
            if not len(logits):
                continue
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            for kind, best in zip(
                KINDS, (np.log1p(np.maximum(logits.max(axis=0), 0)), shares.max(axis=0)), strict=True
            ):
                likeliest = np.argpartition(-best, TERMS)[:TERMS]
                weights[kind][place, likeliest] = best[likeliest]
    return weights


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4], *map(int, sys.argv[4:6]))
