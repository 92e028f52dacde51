"""A column of texts in Spark → a column of vectors or labels.

In: a model. Out: a function for `df.withColumn("vector", embed_udf("model")("text"))`. Spark gives pandas Series to Python workers in batches
(spark.sql.execution.arrow.maxRecordsPerBatch); here each of them becomes one call of `Albert`, which packs it by tokens. The model is opened once in each
Python worker. Reading, writing and repeating what failed are Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from albertkit.errors import need


@lru_cache(maxsize=4)
def opened(model: str | None, bits: int | None, threads: int) -> Any:
    """A model, opened once in a process."""
    from albertkit.albert import Albert

    return Albert(model, bits=bits, threads=threads)


def embed_series(
    model: str | None = None, bits: int | None = None, threads: int = 1, **settings: Any
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The pandas function of `embed_udf`: Series of texts → Series of vectors; no text (null) gives no vector. settings: as `Albert.embed`."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        albert = opened(model, bits, threads)
        for texts in batches:
            found = iter(albert.embed(texts[texts.notna()].tolist(), **settings))
            yield series([next(found) if known else None for known in texts.notna()], texts.index)

    return run


def classify_series(
    model: str, bits: int | None = None, threads: int = 1, **settings: Any
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The pandas function of `classify_udf`: Series of texts → Series of labels."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        albert = opened(model, bits, threads)
        for texts in batches:
            found = iter(albert.classify(texts[texts.notna()].tolist(), **settings))
            yield series([str(next(found).label) if known else None for known in texts.notna()], texts.index)

    return run


def series(values: list[Any], index: Any) -> Any:
    """A pandas Series of objects."""
    pandas = need("pandas", "spark", "Spark")
    return pandas.Series(values, index=index, dtype=object)


def embed_udf(model: str | None = None, bits: int | None = None, threads: int = 1, **settings: Any) -> Any:
    """A Spark function: a column of texts to a column of vectors (array of float)."""
    return _udf(embed_series(model, bits, threads, **settings), "array<float>")


def classify_udf(model: str, bits: int | None = None, threads: int = 1, **settings: Any) -> Any:
    """A Spark function: a column of texts to a column of labels (string)."""
    return _udf(classify_series(model, bits, threads, **settings), "string")


def _udf(function: Callable[[Iterator[Any]], Iterator[Any]], kind: str) -> Any:
    functions, pandas = need("pyspark.sql.functions", "spark", "Spark"), need("pandas", "spark", "Spark")
    series = Iterator[pandas.Series]  # type: ignore[name-defined]
    function.__annotations__ = {
        "batches": series,
        "return": series,
    }  # by which Spark knows that it takes many, one by one
    return functions.pandas_udf(function, kind)
