"""Output files of bulk work in each format, and local work without pyarrow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from albertkit.albert import Albert
from albertkit.bulk.part_files import FORMATS, PART_WRITERS, PartContent, choose_format
from albertkit.errors import AlbertkitError
from albertkit.text_reader import TextFile
from tests.bulk.sample_texts import run_bulk, texts, vectors, write_lines
from tests.bulk.test_engines import in_process
from tests.bulk.test_tasks import tasks  # noqa: F401  a fixture


@pytest.fixture
def without_pyarrow(tmp_path):
    """The environment of a process that cannot import pyarrow."""
    blocked = tmp_path / "blocked" / "pyarrow"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError('blocked', name='pyarrow')")
    path = os.pathsep.join([str(blocked.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def albertkit(environment, *arguments):
    line = [sys.executable, "-m", "albertkit", *map(str, arguments)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)


def test_local_work_on_text_needs_no_pyarrow(models, tasks, tmp_path, without_pyarrow):  # noqa: F811
    lines = ["", *texts(9)]
    files = [write_lines(tmp_path / "a.txt", lines), tmp_path / "b.jsonl"]
    files[1].write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    out = tmp_path / "vectors"
    done = albertkit(
        without_pyarrow, "embed", "-m", models / "int8", "--engine=local", "--workers=1", *files, "-o", out
    )
    assert done.returncode == 0, done.stderr
    found, computed = vectors(out)
    assert found == [(str(file), row) for file in files for row in range(10)]
    assert np.array_equal(computed, np.tile(Albert(models / "int8", threads=1).embed(lines), (2, 1)))
    for task, field in (("classify", "label"), ("tag", "spans")):
        out = tmp_path / task
        done = albertkit(without_pyarrow, task, "-m", tasks / task, "--engine=local", "--workers=1", *files, "-o", out)
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for part in sorted(out.glob("part-*.jsonl")) for line in part.open()]
        assert [(row["source"], row["row"]) for row in rows] == found and all(row[field] is not None for row in rows)


def test_parquet_without_pyarrow_names_the_extra(models, tmp_path, without_pyarrow):
    file = write_lines(tmp_path / "a.txt", texts(3))
    line = ("embed", "-m", models / "int8", "--engine=local", file, "-o", tmp_path / "out", "--format=parquet")
    done = albertkit(without_pyarrow, *line)
    assert done.returncode == 2 and "pip install 'albertkit[parquet]'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_default_format_depends_on_the_inputs_only():
    text, table = TextFile("a.txt", "text"), TextFile("b.parquet", "parquet")
    assert [choose_format(task, [text]) for task in FORMATS] == ["npz", "jsonl", "jsonl"]
    assert [choose_format(task, [text], "jsonl") for task in FORMATS] == ["jsonl"] * 3
    pytest.importorskip("pyarrow")
    assert [choose_format(task, [text, table]) for task in FORMATS] == ["parquet"] * 3
    with pytest.raises(AlbertkitError, match="tag cannot write 'npz'. Choose one of jsonl, parquet"):
        choose_format("tag", [text], "npz")


@pytest.mark.parametrize("format", FORMATS["embed"])
def test_every_format_contains_the_same_vectors(models, tmp_path, format):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    file, out = write_lines(tmp_path / "a.txt", texts(7)), tmp_path / format
    done = run_bulk(
        "embed", [str(file)], str(out), engine=in_process, model=str(models / "int8"), part_rows=3, format=format
    )
    assert done.parts == 3 and sorted(path.suffix for path in out.glob("part-*")) == [f".{format}"] * 3
    found = [row for part in sorted(out.glob("part-*")) for row in read_rows(part)]
    assert [row["row"] for row in found] == list(range(7)) and {row["source"] for row in found} == {str(file)}
    expected = Albert(models / "int8", threads=1).embed(texts(7))
    assert np.allclose([row["vector"] for row in found], expected, atol=1e-6)


def read_rows(part: Path) -> list[dict]:
    if part.suffix == ".npz":
        with np.load(part, allow_pickle=False) as arrays:
            columns = zip(arrays["row"].tolist(), arrays["vector"], strict=True)
            return [{"source": str(arrays["source"]), "row": row, "vector": vector} for row, vector in columns]
    if part.suffix == ".jsonl":
        return [json.loads(line) for line in part.open()]
    from pyarrow.parquet import read_table

    return read_table(part).to_pylist()


@pytest.mark.parametrize("format", FORMATS["embed"])
def test_a_part_is_the_same_bytes_each_time(tmp_path, format):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    files = [tmp_path / "one", tmp_path / "two"]
    for path in files:
        with path.open("wb") as file:
            writer = PART_WRITERS[format](file, PartContent("embed", "a.txt", 5, 3, width=2))
            writer.write([np.ones(2, np.float32), None])
            writer.write([np.zeros(2, np.float32)])
            writer.close()
    assert files[0].read_bytes() == files[1].read_bytes()


def damages(data: bytes) -> list[bytes]:
    """Content with one flipped bit at its begin, in its middle and at its end; shorter content; none."""
    flipped = [bytearray(data) for _ in range(3)]
    for content, at in zip(flipped, (0, len(data) // 2, -1), strict=True):
        content[at] ^= 1
    return [*map(bytes, flipped), data[:-5], b""]


@pytest.mark.parametrize("format", FORMATS["embed"])
def test_a_flipped_bit_in_a_finished_part_is_found_and_the_part_computed_again(models, tmp_path, format):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    file, out = write_lines(tmp_path / "a.txt", texts(9)), tmp_path / "out"
    run = partial(run_bulk, "embed", [str(file)], str(out), engine=in_process, part_rows=3, format=format)
    run(model=str(models / "int8"))
    whole = {part.name: part.read_bytes() for part in out.glob("part-*")}
    checksum = out / "_checksums" / f"part-000002.{format}.sha256"
    for target in (out / f"part-000001.{format}", checksum):
        for content in damages(target.read_bytes()):
            target.write_bytes(content)
            again = run(model=str(models / "int8"))
            assert (again.done_parts, again.damaged_parts) == (1, 1)
            assert {part.name: part.read_bytes() for part in out.glob("part-*")} == whole
    checksum.unlink()
    assert run(model=str(models / "int8")).damaged_parts == 1
    assert run(model=str(models / "int8")).done_parts == 0
    if shutil.which("sha256sum"):
        lines = "".join(path.read_text() for path in sorted((out / "_checksums").iterdir()))
        done = subprocess.run(["sha256sum", "-c"], cwd=out, input=lines, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.count(": OK") == 3


def test_a_flipped_bit_in_the_plan_is_an_error(models, tmp_path):
    file, out = write_lines(tmp_path / "a.txt", texts(9)), tmp_path / "out"
    run = partial(run_bulk, "embed", [str(file)], str(out), engine=in_process, part_rows=3)
    run(model=str(models / "int8"))
    for name in ("_parts.npy", "_manifest.json"):
        data = (out / name).read_bytes()
        for at in range(0, len(data), 29):
            (out / name).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises(AlbertkitError):
                run(model=str(models / "int8"))
        (out / name).write_bytes(data)
    assert run(model=str(models / "int8")).done_parts == 0
