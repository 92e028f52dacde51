"""The benchmark of bulk work: its texts, its plain processes, and that it sees a row that is missing or there twice."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace

import numpy as np
import pytest

from tests.conftest import ROOT, program

pytest.importorskip("pyarrow")
from pyarrow import parquet


@pytest.fixture(scope="module")
def bench():
    before = list(sys.path)
    yield program("bench/bulk")
    sys.path[:] = before


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(" ".join(f"word{n}" for n in range(200)), encoding="utf-8")
    return path


def test_texts_are_numbered_and_the_same_when_they_are_made_again(bench, tmp_path, corpus):
    files = bench.make_texts(tmp_path, 95, corpus)
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(files) == 10 and [int(line.split()[0]) for line in lines] == list(range(95))
    assert all(3 <= len(line.split()) - 1 <= 12 for line in lines)
    before = [file.read_bytes() for file in files]
    files[3].unlink(), files[9].unlink()  # as if it had been stopped
    bench.make_texts(tmp_path, 95, corpus)
    assert [file.read_bytes() for file in files] == before


def test_plain_processes_give_every_row_once_and_a_change_is_seen(bench, tmp_path, corpus):
    files, model = bench.make_texts(tmp_path, 60, corpus), bench.make_model(tmp_path)
    out = tmp_path / "plain"
    out.mkdir()
    bench.plain(model, out, 4, files)
    rows, code = bench.check(out, 60)
    assert rows == 60 and len(list(out.glob("part-*"))) == 20
    first, second = sorted(out.glob("part-*"))[:2]
    kept = first.read_bytes()
    table = parquet.read_table(second)
    first.write_bytes(second.read_bytes())
    with pytest.raises(SystemExit, match="some of them twice"):
        bench.check(out, 60)
    first.unlink()
    with pytest.raises(SystemExit, match="rows of 60"):
        bench.check(out, 60)
    first.write_bytes(kept)
    assert bench.check(out, 60) == (60, code)
    vectors = np.array(table["vector"].combine_chunks().flatten())
    vectors[0] += 1
    changed = table.set_column(2, "vector", type(table["vector"].combine_chunks()).from_arrays(vectors, 64))
    parquet.write_table(changed, second)
    assert bench.check(out, 60)[1] != code


def test_it_goes_on_where_it_was_stopped(bench, tmp_path, corpus, monkeypatch, capsys):
    ran = []

    def embed(engine, model, files, out, args, kills):
        ran.append(engine)
        if len(ran) == 2:
            raise KeyboardInterrupt
        out.mkdir(parents=True)
        bench.plain(model, out, args.part_rows, files)
        return {"seconds": 1.0, "texts_per_second": 60.0, "killed": [{}] * kills}

    monkeypatch.setattr(bench, "embed", embed)
    given = {"texts": 60, "workers": 2, "part_rows": 6, "kills": 2, "file": corpus, "engines": "plain,ray"}
    args = Namespace(**given, scratch=tmp_path / "scratch", result=tmp_path / "bulk.json")
    with pytest.raises(KeyboardInterrupt):
        bench.measure(args)
    bench.measure(args)
    assert ran == ["plain", "ray", "ray"] and "plain: finished before" in capsys.readouterr().out
    found = json.loads(args.result.read_text())
    assert found["same"] and found["overhead_percent"] == 0 and not any(args.scratch.iterdir())
    args.texts = 70
    ran[:] = ["", ""]
    bench.measure(args)  # another size begins anew
    assert ran[2:] == ["plain", "ray"]


def test_engines_are_checked():
    line = [sys.executable, str(ROOT / "bench" / "bulk.py"), "--engines", "ray"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 2 and "give plain and ray" in done.stderr
