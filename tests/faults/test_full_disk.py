"""A full disk, as the limit of a file's size: one sentence, no half file under a good name, and the old one still opens."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from albertkit.albert import Albert
from albertkit.search.index import Index
from tests.bulk.sample_texts import texts, write_lines
from tests.serve.conftest import MADE, make

LINES = texts(400)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("model") / "words", *MADE["words"])


def fail_to_write(most: int, *line: object) -> str:
    """Run a command that cannot write files over `most` bytes; its error."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
    command = [sys.executable, "-m", "albertkit", *map(str, line)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr[-2000:]
    return done.stderr.splitlines()[-1]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_index_keeps_what_it_had(model, tmp_path):
    path, file = tmp_path / "notes.idx", write_lines(tmp_path / "a.txt", LINES)
    assert str(path) in fail_to_write(20_000, "index", file, "-o", path, "-m", model)
    assert names(tmp_path) in (["a.txt"], ["a.txt", "notes.idx"])
    albert = Albert(model, threads=1)
    path.unlink(missing_ok=True)
    subprocess.run(
        [sys.executable, "-m", "albertkit", "index", str(file), "-o", str(path), "-m", str(model)], check=True
    )
    with Index.open(path, albert) as index:
        right = index.search_many(LINES[:5], 3)
    more = write_lines(tmp_path / "b.txt", texts(3000, 5))
    error = fail_to_write(path.stat().st_size + 8192, "index", more, "-o", path, "-m", model, "--keep")
    assert str(path) in error
    with Index.open(path, albert) as index:
        assert len(index) == len(set(LINES)) or len(index) == len(LINES)
        assert index.search_many(LINES[:5], 3) == right
        assert index._sql.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert names(tmp_path) == ["a.txt", "b.txt", "notes.idx"]


def test_a_model_keeps_its_old_folder(model, tmp_path):
    target = make(tmp_path / "target", *MADE["words"], seed=9)
    right = Albert(target, threads=1).embed(LINES[:5])
    assert str(target) in fail_to_write(100_000, "quantize", model, target, "--force")
    assert names(tmp_path) == ["target"]
    assert np.array_equal(Albert(target, threads=1).embed(LINES[:5]), right)
    assert str(tmp_path / "new") in fail_to_write(100_000, "quantize", model, tmp_path / "new")
    assert names(tmp_path) == ["target"]


@pytest.mark.parametrize("suffix", ["npy", "npz", "jsonl"])
def test_vectors_keep_the_old_file(model, tmp_path, suffix):
    file, target = write_lines(tmp_path / "a.txt", LINES), tmp_path / f"vectors.{suffix}"
    target.write_bytes(b"old")
    error = fail_to_write(10_000, "embed", "-m", model, "--file", file, "-o", target)
    assert str(target) in error
    assert target.read_bytes() == b"old" and names(tmp_path) == ["a.txt", target.name]
