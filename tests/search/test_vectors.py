"""Search of vectors: the first pass by signs, its recall, and exact scores."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from albertkit.search import vectors
from albertkit.search.vectors import BLOCK, SCHEMA, StoredVector, VectorTable, rotate

ROWS, DIM = 5 * BLOCK + 100, 96


def texts(rows: int, seed: int = 0) -> np.ndarray:
    """Vectors like those of a model: in groups, and with most of their length in a few numbers."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((200, DIM)) * np.linspace(1, 0.05, DIM)
    found = centres[rng.integers(0, 200, rows)] + 0.5 * rng.standard_normal((rows, DIM)) * np.linspace(1, 0.05, DIM)
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def fill(table: VectorTable, rows: np.ndarray, start: int = 0) -> None:
    table.write(dict(enumerate(StoredVector.all_from(rotate(rows)), start)))


@pytest.fixture
def table(monkeypatch):
    """A table with several segments, whose first pass keeps 500 rows."""
    monkeypatch.setattr(vectors, "SEGMENT", 2 * BLOCK)
    monkeypatch.setattr(vectors, "SIGN_WORDS", 3000)
    monkeypatch.setattr(vectors, "EXACT_BYTES", (500 * DIM, 500 * DIM))
    sql = sqlite3.connect(":memory:", isolation_level=None)
    sql.executescript(SCHEMA)
    made = VectorTable(sql, Path("t.idx"), DIM)
    fill(made, texts(ROWS))
    return made


def slots(found):
    return [[slot for _, slot in ranked] for ranked in found]


def overlap(one, other):
    pairs = zip(slots(one), slots(other), strict=True)
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in pairs])


def test_first_pass_finds_the_neighbours_of_an_exact_search_with_the_same_scores(table):
    queries = rotate(texts(60, seed=1))
    found, exact = table.nearest(queries, 10, ROWS), table.nearest(queries, 10, ROWS, exact=True)
    assert overlap(found, exact) > 0.99
    scores = [{slot: score for score, slot in ranked} for ranked in exact]
    for ranked, known in zip(found, scores, strict=True):
        assert all(known.get(slot, score) == score for score, slot in ranked)
        assert ranked == sorted(ranked, key=lambda pair: (-pair[0], pair[1]))
    true = np.argsort(-(texts(60, seed=1) @ texts(ROWS).T), axis=1)[:, :10]
    assert overlap(exact, [[(0.0, slot) for slot in row] for row in true.tolist()]) > 0.98


def test_result_does_not_depend_on_other_queries_or_on_memory(table, monkeypatch):
    queries = rotate(texts(20, seed=2))
    found = table.nearest(queries, 10, ROWS, exact=True)
    assert [table.nearest(query[None], 10, ROWS, exact=True)[0] for query in queries] == found
    for kept in (0, 1, 3):  # blocks
        monkeypatch.setattr(vectors, "KEPT_BYTES", kept * BLOCK * (DIM + 4 + 16))
        other = VectorTable(table.sql, table.path, DIM)
        assert other.nearest(queries, 10, ROWS, exact=True) == found and len(other.kept) == kept
        assert overlap(other.nearest(queries, 10, ROWS), found) > 0.99


def test_deleted_rows_take_no_place_in_the_first_pass(table):
    query = rotate(texts(1, seed=3))
    gone = slots(table.nearest(query, 1500, ROWS, exact=True))[0]
    table.write({slot: StoredVector() for slot in gone})
    left = sorted(set(range(ROWS)) - set(gone))
    found = table.nearest(query, 5, ROWS)
    assert len(found[0]) == 5 and set(slots(found)[0]) <= set(left)
    assert found[0][0][0] == pytest.approx(table.nearest(query, 1, ROWS, exact=True)[0][0][0], abs=0.01)
    table.write({slot: StoredVector() for slot in left})
    assert table.nearest(query, 5, ROWS) == [[]]


def test_equal_vectors_are_ranked_by_slot(table):
    fill(table, np.repeat(texts(1), 3000, axis=0), start=1000)
    (found,) = table.nearest(rotate(texts(1)), 10, ROWS)
    assert [slot for _, slot in found] == [*range(1000, 1010)] and len({score for score, _ in found}) == 1


def test_changed_and_added_blocks_are_read_again_and_no_others(table, monkeypatch):
    query = rotate(texts(1, seed=5))
    table.nearest(query, 1, ROWS)
    read, numbers = table._read_block, []
    monkeypatch.setattr(table, "_read_block", lambda number, *sums: numbers.append(number) or read(number, *sums))
    assert table.nearest(query, 1, ROWS) and numbers == []
    fill(table, texts(1, seed=5), start=2 * BLOCK + 7)
    fill(table, texts(1, seed=6), start=6 * BLOCK)
    numbers.clear()
    assert slots(table.nearest(query, 1, 6 * BLOCK + 1)) == [[2 * BLOCK + 7]] and numbers == [2, 6]
    assert slots(table.nearest(rotate(texts(1, seed=6)), 1, 6 * BLOCK + 1)) == [[6 * BLOCK]]


@pytest.mark.parametrize("dim", [1, 2, 3, 64, 65, 300])
def test_rotation_keeps_dot_products_and_does_not_depend_on_other_rows(dim):
    rows = np.random.default_rng(0).standard_normal((50, dim)).astype(np.float32)
    turned = rotate(rows)
    assert turned.dtype == np.float32 and np.allclose(turned @ turned.T, rows @ rows.T, atol=1e-4)
    assert (np.concatenate([rotate(row[None]) for row in rows]) == turned).all()


def test_rotation_is_the_same_in_every_version():
    """Indexes contain rotated vectors."""
    expected = [0.46444, 0.78863, -0.16186, 0.2113, -0.30251]
    assert rotate(np.eye(5, dtype=np.float32))[0].tolist() == pytest.approx(expected, abs=1e-4)
