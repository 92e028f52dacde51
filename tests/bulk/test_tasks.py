"""Labels and entities in bulk are those of `Albert`; the function for Spark, called as Spark does."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial

import numpy as np
import pytest

from albertkit.albert import Albert
from albertkit.artifact import ArtifactMetadata, write_artifact
from tests.bulk.sample_texts import run_bulk, texts, write_lines
from tests.bulk.test_engines import in_process
from tests.conftest import tiny
from tests.test_albert import make

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A classifier and a tagger, with random weights."""
    folder = tmp_path_factory.mktemp("tasks")
    kinds = {"classify": ("good", "bad"), "tag": ("O", "B-X")}
    for task, labels in kinds.items():
        artifact = make(tiny(vocab_size=3000, max_position_embeddings=64), heads=(task,))
        meta = dataclasses.replace(ArtifactMetadata(), task=task, labels=labels)
        write_artifact(dataclasses.replace(artifact, metadata=meta), folder / task)
    return folder


def test_labels_and_spans_equal_those_of_albert(tasks, tmp_path):
    lines = texts(30)
    file = write_lines(tmp_path / "a.txt", lines)
    run = partial(run_bulk, inputs=[str(file)], engine=in_process, part_rows=10, format="parquet")
    run("classify", output=str(tmp_path / "labels"), model=str(tasks / "classify"), task_options={"pair": None})
    run("tag", output=str(tmp_path / "spans"), model=str(tasks / "tag"))
    found = parquet.read_table(tmp_path / "labels").to_pylist()
    albert = Albert(tasks / "classify", threads=1)
    expected = [label for at in range(0, 30, 10) for label in albert.classify(lines[at : at + 10])]
    assert [(row["row"], row["label"], row["probability"]) for row in found] == [
        (number, label.label, label.probability) for number, label in enumerate(expected)
    ]
    spans = [row["spans"] for row in parquet.read_table(tmp_path / "spans").to_pylist()]
    tagger = Albert(tasks / "tag", threads=1)
    entities = [found for at in range(0, 30, 10) for found in tagger.tag(lines[at : at + 10])]
    assert any(spans)
    assert spans == [
        [{"start": s.start, "end": s.end, "label": s.label, "score": s.score} for s in one.spans] for one in entities
    ]


def test_the_pandas_functions_equal_albert(models, tasks):
    pandas = pytest.importorskip("pandas")
    from albertkit.bulk.spark import classify_series, embed_series

    lines = texts(20)
    batches = [
        pandas.Series(lines[:12]),
        pandas.Series([None, *lines[12:], None], index=range(5, 15)),
        pandas.Series([], dtype=object),
    ]
    found = list(embed_series(str(models / "int8"))(iter(batches)))
    assert [len(one) for one in found] == [12, 10, 0] and list(found[1].index) == list(range(5, 15))
    assert found[1].iloc[0] is None and found[1].iloc[-1] is None
    expected = Albert(models / "int8", threads=1).embed(lines)
    assert np.array_equal(np.stack([*found[0], *found[1].iloc[1:-1]]), expected)
    labels = list(classify_series(str(tasks / "classify"))(iter(batches[:2])))
    assert set(labels[0]) <= {"good", "bad"} and labels[1].iloc[0] is None


def test_a_spark_column_equals_albert(models, monkeypatch):
    """A real session, where Spark and Java are installed."""
    sql = pytest.importorskip("pyspark.sql")
    from albertkit.bulk.spark import embed_udf

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    lines = texts(5)
    spark = sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
    try:
        frame = spark.createDataFrame([(line,) for line in lines], "text string")
        rows = frame.withColumn("vector", embed_udf(str(models / "int8"))("text")).collect()
    finally:
        spark.stop()
    expected = Albert(models / "int8", threads=1).embed(lines)
    assert [row["text"] for row in rows] == lines
    assert np.array_equal(np.array([row["vector"] for row in rows], np.float32), expected)
