"""The built-in model, opened once, and an index in a folder of the test."""

from __future__ import annotations

import pytest

from albertkit import Albert, Index

TEXTS = ["The doctor is in.", "The train was late.", "Bread is made from flour."]
QUERY = "where is a physician?"


@pytest.fixture(scope="session")
def albert() -> Albert:
    return Albert(threads=1)


@pytest.fixture
def index(albert, tmp_path):
    with Index.create(tmp_path / "notes.idx", albert) as made:
        yield made
