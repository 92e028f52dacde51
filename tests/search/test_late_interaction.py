"""Late interaction: MaxSim as its formula, and the command's order."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from albertkit import Albert, AlbertkitError, Index, Record
from albertkit.cli.entry_point import app
from albertkit.runtime.embed import unit_length
from albertkit.search.index_records import SearchHit
from albertkit.search.late_interaction import max_similarity, rerank_hits

TEXTS = ["The doctor is in.", "The train was late.", "A nurse works in a hospital.", "Bread is made from flour.", ""]
QUERY = "where is a physician?"


@pytest.fixture(scope="module")
def albert():
    return Albert(threads=1)


@pytest.fixture
def index(albert, tmp_path):
    with Index.create(tmp_path / "notes.idx", albert) as made:
        made.add(Record(str(place), text) for place, text in enumerate(TEXTS))
    return tmp_path / "notes.idx"


def test_max_similarity_is_the_mean_of_each_query_tokens_best_cosine():
    query, text = unit_length(np.array([[1.0, 0], [0, 2]])), unit_length(np.array([[3.0, 0], [1, 1], [-1, 0]]))
    assert max_similarity(query, text) == pytest.approx((1 + np.sqrt(0.5)) / 2)
    assert max_similarity(query, text[:0]) == max_similarity(query[:0], text) == -1


def test_hits_are_ranked_by_cosine_plus_max_similarity(albert):
    """The formula, token by token."""
    cosines = albert.similarity(QUERY, TEXTS)
    hits = [SearchHit(str(i), text, float(cosines[i]), "", 0, "meaning") for i, text in enumerate(TEXTS)]
    asked = albert.token_vectors(QUERY).vectors[1:-1]
    expected = []
    for text, cosine in zip(TEXTS, cosines, strict=True):
        rows = albert.token_vectors(text).vectors[1:-1]
        best = [max((a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in rows), default=-1) for a in asked]
        expected.append(cosine + np.mean(best))
    found = rerank_hits(albert, QUERY, hits)
    assert [int(hit.id) for hit in found] == np.argsort(-np.array(expected)).tolist()
    assert {hit.id: hit for hit in found} == {hit.id: hit for hit in hits} and rerank_hits(albert, QUERY, []) == []
    with pytest.raises(AlbertkitError, match="the query is blank: ' '"):
        rerank_hits(albert, " ", hits)


def test_the_command_ranks_more_hits_than_it_prints(albert, index):
    with Index.open(index, albert) as opened:
        expected = [hit.id for hit in rerank_hits(albert, QUERY, opened.search(QUERY, 50, min_score=-1))]
    words = ["search", str(index), QUERY, "--min-score", "-1", "--rerank", "maxsim", "--json"]
    for k in (1, 3, 10):
        done = CliRunner().invoke(app, [*words, "-k", str(k)], catch_exceptions=False)
        assert [hit["id"] for hit in json.loads(done.stdout)["hits"]] == expected[:k]


def test_hits_without_cosines_are_refused(index):
    with pytest.raises(AlbertkitError, match="--rerank is not available with --mode keyword"):
        CliRunner().invoke(
            app, ["search", str(index), "doctor", "--mode", "keyword", "--rerank", "maxsim"], catch_exceptions=False
        )
