"""What the tests of bulk work share. Imported by worker processes, too, so it stays light."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np

WORDS = (
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "red",
    "green",
    "blue",
    "cat",
    "dog",
    "tree",
    "house",
    "in",
    "the",
)


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of one to twelve words."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(count)]


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def vectors(out: Path) -> tuple[list[tuple[str, int]], np.ndarray]:
    """Keys and vectors of an output folder, part after part."""
    parts = [np.load(path, allow_pickle=False) for path in sorted(out.glob("part-*.npz"))]
    keys = [(str(part["source"]), row) for part in parts for row in part["row"].tolist()]
    return keys, np.concatenate([part["vector"] for part in parts])


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cosine of each row with the same row of another array."""
    return np.asarray((first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1))


def dies(pipe: object, job: object) -> None:
    """A worker that does not live long."""
    os._exit(1)


def run_bulk(task, inputs, output, engine=None, workers=1, progress=lambda stage, done, total: None, **options):
    """`bulk` with the fields of `BulkOptions` as keywords."""
    from albertkit.bulk.bulk_run import BulkOptions, bulk
    from albertkit.bulk.engines import run_local

    chosen = BulkOptions(**options)
    return bulk(task, inputs, output, chosen, engine=engine or run_local, workers=workers, progress=progress)
