"""kill -9, twenty times each: the next run resumes, and the end is that of an uninterrupted run, to the bit."""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

from albertkit.albert import Albert
from albertkit.search.index import Index
from tests.bulk.sample_texts import texts, write_lines
from tests.conftest import tiny
from tests.faults.killed_command import KilledCommand
from tests.serve.conftest import MADE, make
from tests.train.conftest import write_shards

KILLS = 20
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("model") / "words", *MADE["words"])


def kill_often(command: KilledCommand, most: int, check=lambda: None) -> None:
    """Kill a command after 0 to `most` changes, `KILLS` times, then let it finish."""
    rng = random.Random(7)
    for _ in range(KILLS):
        command.kill(rng.randint(0, most))
        check()
    command.finish()


def test_a_killed_index_resumes_to_the_same_bits(model, tmp_path):
    lines = [f"{text} {i}" for i, text in enumerate(texts(4000))]
    file = write_lines(tmp_path / "a.txt", lines)
    killed, whole = tmp_path / "killed.idx", tmp_path / "whole.idx"

    def command(target: Path) -> KilledCommand:
        return KilledCommand(tmp_path / "errors", "index", file, "-o", target, "-m", model)

    sizes = [0]

    def check() -> None:
        if killed.exists():
            with Index.open(killed, None) as index:
                sizes.append(len(index))
                assert index._sql.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert sizes == sorted(sizes)

    kill_often(command(killed), 3600, check)
    command(whole).finish()
    assert len(set(sizes)) >= 5  # several runs resumed
    assert content(killed) == content(whole)
    with Index.open(killed, Albert(model, threads=1)) as one, Index.open(whole, Albert(model, threads=1)) as other:
        for mode in ("vector", "keyword", "hybrid"):
            assert one.search_many(lines[::400], 5, mode) == other.search_many(lines[::400], 5, mode)
    assert sorted(path.name for path in tmp_path.glob("*.idx*")) == ["killed.idx", "whole.idx"]


def content(path: Path) -> dict[str, list]:
    """The rows of all tables but those of the keyword index, whose blocks depend on when they were written."""
    with sqlite3.connect(path) as sql:
        names = [name for (name,) in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: sorted(sql.execute(f"SELECT * FROM {name}"), key=repr)
            for name in names
            if not name.startswith(("keywords", "words"))
        }


def test_killed_bulk_work_resumes_to_the_same_bits(model, tmp_path):
    files = [write_lines(tmp_path / f"{name}.txt", texts(150, seed)) for seed, name in enumerate("ab")]
    killed, whole = tmp_path / "killed", tmp_path / "whole"

    def command(target: Path) -> KilledCommand:
        line = ("embed", "-m", model, *files, "-o", target, "--engine=local", "--workers=1", "--part-rows=5")
        return KilledCommand(tmp_path / "errors", *line)

    counts = [0]

    def check() -> None:
        counts.append(len(list(killed.glob("part-*"))))
        assert counts == sorted(counts)

    kill_often(command(killed), 16, check)
    command(whole).finish()
    assert len(set(counts)) > 5 and counts[-1] < 60
    assert {path.name: path.read_bytes() for path in killed.glob("part-*")} == {
        path.name: path.read_bytes() for path in whole.glob("part-*")
    }
    assert {path.name for path in killed.iterdir()} == {path.name for path in whole.iterdir()}
    vectors = np.concatenate([np.load(path)["vector"] for path in sorted(killed.glob("part-*"))])
    assert len(vectors) == 300


def test_killed_pretraining_resumes_to_the_same_bits(tmp_path):
    shards, shape = write_shards(tmp_path / "shards"), tmp_path / "shape.json"
    shape.write_text(json.dumps(tiny(num_hidden_layers=2, max_position_embeddings=40).to_dict()))
    killed, whole = tmp_path / "killed", tmp_path / "whole"

    def command(target: Path) -> KilledCommand:
        line = ("pretrain", shards, "-o", target, "--shape", shape, "--steps=60", "--save-steps=2", "--batch-size=8")
        quick = ("--lengths=16", "--eval-rows=64", "--evaluations=2", "--log-every=1", "--device=cpu")
        return KilledCommand(tmp_path / "errors", *line, *quick, "--no-tensorboard", "--resume")

    kill_often(command(killed), 60)
    command(whole).finish()
    resumed = [line for line in (tmp_path / "errors").read_text().splitlines() if "resuming from step" in line]
    assert len(set(resumed)) > 5
    names = ("model.safetensors", "config.json")
    assert [(killed / "model" / n).read_bytes() for n in names] == [(whole / "model" / n).read_bytes() for n in names]
    assert metrics(killed) == metrics(whole)
    assert {path.name for path in (killed / "checkpoints").iterdir()} == {
        path.name for path in (whole / "checkpoints").iterdir()
    }


def metrics(run: Path) -> list[dict]:
    """The log without what the clock says."""
    clocks = ("seconds", "tokens_per_second")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in line.items() if name not in clocks} for line in lines]
