"""Keyword search in Postgres: a query as `tsquery`, texts ranked by its rare words.

In: a function that runs SQL, and a query. Out: the slots of the best texts. `ts_rank` of Postgres counts a rare word no
more than a common one. So the score of a text is the sum of `ts_rank` for each word, times the rarity of the word (the
inverse document frequency of BM25). Before this file: `keywords.py`; after it: `pgvector.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from albertkit.search.keywords import COMMON, plain_terms, split_terms
from albertkit.search.vectors import Ranked

COUNTED = 10_000  # texts with a word are counted up to this number
TERM = "phraseto_tsquery('pg_catalog.simple', %s)"
LENGTH = 1  # divides a rank by the logarithm of a text's length
RunSql = Callable[[str, "list[object]"], Any]


def match_words(run: RunSql, query: str, k: int, rows: int) -> Ranked:
    """The k best of about `rows` texts with any word of the query. Common words only count if no other one matches."""
    words = plain_terms(query)
    if not words:
        return []
    limit = min(max(1000, rows // COMMON), COUNTED)
    count = f"(SELECT count(*) FROM (SELECT 1 FROM {{table}} WHERE words @@ {TERM} LIMIT {limit + 1}) AS found)"
    counts = dict(zip(words, run(f"SELECT {', '.join([count] * len(words))}", list(words)).fetchone(), strict=True))
    rare, common = split_terms(counts, limit)
    return _best(run, {word: counts[word] for word in rare if counts[word]}, k, rows) or _best(
        run, {word: counts[word] for word in common}, k, rows
    )


def _best(run: RunSql, counts: dict[str, int], k: int, rows: int) -> Ranked:
    if not counts:
        return []
    rarities = [math.log(1 + (max(rows, count) - count + 0.5) / (count + 0.5)) for count in counts.values()]
    score = " + ".join([f"%s::float8 * ts_rank(words, {TERM}, {LENGTH})"] * len(counts))
    statement = (
        f"SELECT {score} AS score, slot FROM {{table}} WHERE words @@ ({' || '.join([TERM] * len(counts))}) "
        "ORDER BY score DESC, slot LIMIT %s"
    )
    weighted = [value for pair in zip(rarities, counts, strict=True) for value in pair]
    return [(float(row[0]), int(row[1])) for row in run(statement, [*weighted, *counts, k])]
