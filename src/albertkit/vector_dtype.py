"""The numbers of a vector: float32, float16, int8 or one bit each. One rule for Python, files and the server.

In: float32 vectors and the name of a type. Out: smaller vectors. The rule is fixed and needs no calibration, so a text
has the same vector in every program and at any time. docs/results/models.md has what each type loses.
"""

from __future__ import annotations

import numpy as np

from albertkit.errors import AlbertkitError, check_choice

DTYPES = ("float32", "float16", "int8", "binary")
INT8_SCALE = 127  # of a number from -1 to 1, which all numbers of a vector of length 1 are


def check_dtype(dtype: str, normalize: bool) -> None:
    """Raise for an unknown type, and for int8 without a length of 1."""
    check_choice("dtype", dtype, DTYPES)
    if dtype == "int8" and not normalize:
        raise AlbertkitError("dtype='int8' needs vectors of length 1, whose numbers are from -1 to 1. Normalize them.")


def convert_vectors(vectors: np.ndarray, dtype: str) -> np.ndarray:
    """Rows of another type. int8: 127 times each number, rounded. binary: one bit per number, 1 if it is positive,
    packed into uint8 as by `numpy.packbits`.

    >>> rows = np.array([[0.6, -0.8, 0.0]], np.float32)
    >>> convert_vectors(rows, "int8").tolist(), convert_vectors(rows, "binary").tolist()
    ([[76, -102, 0]], [[128]])
    """
    if dtype == "binary":
        return np.packbits(vectors > 0, axis=1)
    if dtype == "int8":
        return np.clip(np.rint(vectors * INT8_SCALE), -INT8_SCALE, INT8_SCALE).astype(np.int8)
    return vectors.astype(dtype, copy=False)


def empty_vectors(dim: int, dtype: str | None = None, rows: int = 0) -> np.ndarray:
    """Rows of zeros of a type, for `dim` numbers each."""
    return convert_vectors(np.zeros((rows, dim), np.float32), dtype or "float32")
