"""Vectors as float16, int8 and bits: the same rule in Python, in files and in bulk work."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from albertkit.albert import Albert
from albertkit.bulk.spark import embed_series
from albertkit.cli.entry_point import app
from albertkit.errors import AlbertkitError

TEXTS = ["a cat sat on the mat", "", "the train was late", "one two three"]
SMALL = ("float16", "int8", "binary")


@pytest.fixture(scope="module")
def albert() -> Albert:
    return Albert(depth=3)


def expected(vectors: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "binary":
        bits = (vectors > 0).reshape(len(vectors), -1, 8)
        return (bits * 2 ** np.arange(7, -1, -1)).sum(axis=2).astype(np.uint8)
    return vectors.astype(np.float16) if dtype == "float16" else np.round(vectors * 127).astype(np.int8)


@pytest.mark.parametrize("dim", [None, 64])
@pytest.mark.parametrize("dtype", SMALL)
def test_each_type_is_the_rounded_float32_vector(albert, dtype, dim):
    found, wanted = albert.embed(TEXTS, dtype=dtype, dim=dim), expected(albert.embed(TEXTS, dim=dim), dtype)
    assert found.dtype == wanted.dtype and (found == wanted).all()
    assert (albert.embed(TEXTS[0], dtype=dtype, dim=dim) == wanted[0]).all()
    assert (np.stack(list(albert.embed_iter(TEXTS, dtype=dtype, dim=dim))) == wanted).all()
    nothing = albert.embed([], dtype=dtype, dim=dim)
    assert (nothing.shape, nothing.dtype) == ((0, wanted.shape[1]), wanted.dtype)


def test_bits_of_a_width_that_is_no_multiple_of_8_are_padded_with_zeros(albert):
    found = albert.embed(TEXTS[0], dtype="binary", dim=13)
    assert found.shape == (2,) and (np.unpackbits(found)[:13] == (albert.embed(TEXTS[0], dim=13) > 0)).all()
    assert not np.unpackbits(found)[13:].any()


def test_early_exit_gives_the_same_types(albert):
    found = albert.embed_early_exit(TEXTS, "cosine:0.5", dtype="int8").vectors
    assert found.dtype == np.int8 and found.shape == (4, 384)


def test_what_a_type_does_not_fit_is_an_error(albert):
    with pytest.raises(AlbertkitError, match="did you mean 'int8'"):
        albert.embed(TEXTS, dtype="int")
    with pytest.raises(AlbertkitError, match="needs vectors of length 1"):
        albert.embed(TEXTS, dtype="int8", normalize=False)
    with pytest.raises(AlbertkitError, match="not available for cosines"):
        albert.similarity(TEXTS, dtype="int8")
    with pytest.raises(AlbertkitError, match="a Spark column has floats"):
        embed_series(dtype="binary")
    assert albert.embed(TEXTS, dtype="binary", normalize=False).tolist() == albert.embed(TEXTS, dtype="binary").tolist()


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("suffix", ["npy", "jsonl", "parquet"])
def test_files_have_the_type(albert, tmp_path, suffix, dtype):
    out, wanted = tmp_path / f"v.{suffix}", expected(albert.embed(TEXTS, dim=16), dtype)
    line = ["embed", *TEXTS, "-o", out, "--depth", 3, "--dim", 16, "--dtype", dtype]
    if suffix == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
    assert CliRunner().invoke(app, [str(part) for part in line]).exit_code == 0
    if suffix == "npy":
        found = np.load(out)
        assert found.dtype == wanted.dtype
    elif suffix == "jsonl":
        rows = [json.loads(row)["vector"] for row in out.read_text().splitlines()]
        found = np.array(rows).astype(wanted.dtype)
        assert dtype == "float16" or all(isinstance(number, int) for number in rows[0])
    else:
        column = parquet.read_table(out)["vector"]
        assert str(column.type.value_type) == {"float16": "halffloat", "int8": "int8", "binary": "uint8"}[dtype]
        found = np.array(column.to_pylist()).astype(wanted.dtype)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("format", ["npz", "jsonl", "parquet"])
def test_bulk_parts_have_the_type_also_for_rows_without_a_text(albert, tmp_path, format):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    rows = [json.dumps({"text": text}) for text in TEXTS[2:]]
    (tmp_path / "a.jsonl").write_text("\n".join([rows[0], '{"text": null}', rows[1]]) + "\n")
    line = ["embed", "--engine", "local", "--workers", "1", tmp_path / "a.jsonl", "-o", tmp_path / "out", "--depth", 3]
    line += ["--dtype", "binary", "--dim", 16, "--format", format, "--skip-bad"]
    done = CliRunner().invoke(app, [str(part) for part in line])
    assert done.exit_code == 0, done.output + repr(done.exception)
    part = tmp_path / "out" / f"part-000000.{format}"
    wanted = albert.embed(TEXTS[2:], dim=16, dtype="binary").tolist()
    if format == "npz":
        with np.load(part) as arrays:
            assert arrays["vector"].dtype == np.uint8
            found = [
                None if gone else row.tolist() for row, gone in zip(arrays["vector"], arrays["is_missing"], strict=True)
            ]
    elif format == "jsonl":
        found = [json.loads(row)["vector"] for row in part.read_text().splitlines()]
    else:
        from pyarrow.parquet import read_table

        found = read_table(part)["vector"].to_pylist()
    assert found == [wanted[0], None, wanted[1]]
