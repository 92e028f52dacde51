"""A column of texts in Spark → a column of vectors or labels.

In: a model. Out: a function for `df.withColumn("vector", embed_udf("model")("text"))`. Each batch of rows that Spark
passes to a Python worker (spark.sql.execution.arrow.maxRecordsPerBatch) becomes one call of `Albert`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError, need

if TYPE_CHECKING:
    from pyspark.sql import Column
    from typing_extensions import Unpack

    from albertkit.runtime.embed import EmbedKeywords
    from albertkit.runtime.predict import PredictKeywords

SeriesFunction = Callable[[Iterator[Any]], Iterator[Any]]  # pandas Series to pandas Series


@lru_cache(maxsize=4)
def open_once(model: str | None, bits: int | None) -> Albert:
    """A model, opened once in a process; Spark runs one process per core."""
    return Albert(model, bits=bits, threads=1)


def embed_series(
    model: str | None = None, bits: int | None = None, **keywords: Unpack[EmbedKeywords]
) -> SeriesFunction:
    """The pandas function of `embed_udf`: texts → vectors; null gives null. keywords: those of `Albert.embed`."""
    if keywords.get("dtype") not in (None, "float32"):
        raise AlbertkitError(f"dtype={keywords['dtype']!r} is not available: a Spark column has floats. Omit it.")
    return _series(lambda texts: open_once(model, bits).embed(texts, **keywords))


def classify_series(model: str, bits: int | None = None, **keywords: Unpack[PredictKeywords]) -> SeriesFunction:
    """The pandas function of `classify_udf`: texts → labels; null gives null."""

    def labels(texts: list[str]) -> list[str]:
        results = open_once(model, bits).classify(texts, **keywords)
        return [str(result.label) for result in results]

    return _series(labels)


def _series(compute: Callable[[list[str]], Iterable[Any]]) -> SeriesFunction:
    """A function from pandas Series to Series, which computes for the texts that are not null."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        pandas = need("pandas", "spark", "Spark")
        for texts in batches:
            results = iter(compute(texts[texts.notna()].tolist()))
            values = [next(results) if is_text else None for is_text in texts.notna()]
            yield pandas.Series(values, index=texts.index, dtype=object)

    return run


def embed_udf(
    model: str | None = None, bits: int | None = None, **keywords: Unpack[EmbedKeywords]
) -> Callable[..., Column]:
    """A Spark function: a column of texts to a column of vectors (array of float)."""
    return _udf(embed_series(model, bits, **keywords), "array<float>")


def classify_udf(model: str, bits: int | None = None, **keywords: Unpack[PredictKeywords]) -> Callable[..., Column]:
    """A Spark function: a column of texts to a column of labels (string)."""
    return _udf(classify_series(model, bits, **keywords), "string")


def _udf(function: SeriesFunction, kind: str) -> Any:
    functions, pandas = need("pyspark.sql.functions", "spark", "Spark"), need("pandas", "spark", "Spark")
    series = Iterator[pandas.Series]  # type: ignore[name-defined]
    # by these annotations Spark recognizes a function from an iterator of batches
    function.__annotations__ = {"batches": series, "return": series}
    return functions.pandas_udf(function, kind)
