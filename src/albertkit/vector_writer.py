"""Streaming writer of vectors and results: .npy, .jsonl and .parquet.

In: texts with their vectors (`open_vector_writer`), or tables of results (`ParquetTables`, for `bulk/worker.py`).
Out: a file, written as NAME.part and renamed when it is complete. After an interruption, NAME.part is usable and the
error explains how to resume. Memory use is bounded. `text_reader.py` reads texts.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.errors import AlbertkitError, need
from albertkit.text_reader import replace_surrogates

if TYPE_CHECKING:
    from pyarrow import Table

ROW_GROUP = 4096  # rows of a Parquet row group


@contextlib.contextmanager
def open_vector_writer(target: Path, overwrite: bool = False) -> Iterator[Callable[[str, np.ndarray], None]]:
    """A function that writes one text with its vector; the suffix of the target selects the format."""
    if target.suffix not in VECTOR_WRITERS:
        raise AlbertkitError(f"{target} ends with {target.suffix!r}. Use one of {', '.join(VECTOR_WRITERS)}.")
    part = target.with_name(target.name + ".part")
    for path in (target, part):
        if path.exists() and not overwrite:
            raise AlbertkitError(f"{path} exists. Move it, choose another name, or allow overwriting (--force).")
    if target.suffix == ".parquet":
        need("pyarrow", "parquet", "writing Parquet")
    try:
        file = part.open("wb")
    except OSError as error:
        raise AlbertkitError(f"{part} cannot be written: {error.strerror}. Choose another place.") from None
    with file:
        writer = VECTOR_WRITERS[target.suffix](file)
        try:
            yield writer.write
        except (KeyboardInterrupt, OSError, AlbertkitError) as error:
            with contextlib.suppress(OSError):
                writer.close()
                file.close()
            raise _stopped(error, writer.rows, part) from None
        writer.close()
    os.replace(part, target)  # noqa: PTH105  atomic on every system


def _stopped(error: BaseException, rows: int, part: Path) -> AlbertkitError:
    """The error for an interrupted run; a part without rows is deleted."""
    reason = "stopped" if isinstance(error, KeyboardInterrupt) else getattr(error, "strerror", None) or str(error)
    if not rows:
        part.unlink(missing_ok=True)
        return AlbertkitError(reason)
    remedy = f"To resume, move it and embed the texts from number {rows + 1} on into another file."
    return AlbertkitError(f"{reason}; the first {rows} vectors are in {part}. {remedy}")


def vector_json(text: str, vector: np.ndarray) -> str:
    """A text and its vector as one line of JSON."""
    row = {"text": replace_surrogates(text), "vector": [round(float(x), 7) for x in vector]}
    return json.dumps(row, ensure_ascii=False)


class JsonlVectors:
    """One JSON object per line, with text and vector."""

    def __init__(self, file: Any) -> None:
        self.file, self.rows = file, 0

    def write(self, text: str, vector: np.ndarray) -> None:
        self.file.write(vector_json(text, vector).encode() + b"\n")
        self.rows += 1

    def close(self) -> None:
        """Do nothing: every line is already written."""


class NpyVectors:
    """A float32 matrix; the number of rows in its header is corrected at the end."""

    def __init__(self, file: Any) -> None:
        self.file, self.rows, self.width = file, 0, 0
        self.file.write(self._header())

    def _header(self) -> bytes:
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({self.rows}, {self.width}), }}"
        return b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117).encode() + b"\n"

    def write(self, text: str, vector: np.ndarray) -> None:
        self.width = len(vector)
        self.file.write(np.ascontiguousarray(vector, "<f4").tobytes())
        self.rows += 1

    def close(self) -> None:
        self.file.seek(0)
        self.file.write(self._header())


class ParquetVectors:
    """Columns `text` and `vector`."""

    def __init__(self, file: Any) -> None:
        self.arrow = need("pyarrow", "parquet", "writing Parquet")
        self.tables, self.rows = ParquetTables(file), 0
        self.texts: list[str] = []
        self.vectors: list[np.ndarray] = []

    def write(self, text: str, vector: np.ndarray) -> None:
        self.texts.append(replace_surrogates(text))
        self.vectors.append(vector)
        self.rows += 1
        if len(self.texts) >= ROW_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        matrix = np.stack(self.vectors) if self.vectors else np.zeros((0, 1), np.float32)
        vectors = self.arrow.FixedSizeListArray.from_arrays(self.arrow.array(matrix.ravel()), matrix.shape[1])
        self.tables.write(self.arrow.table({"text": self.texts, "vector": vectors}))
        self.texts, self.vectors = [], []

    def close(self) -> None:
        if self.texts or self.tables.writer is None:
            self._write_group()
        self.tables.close()


VECTOR_WRITERS: dict[str, type[NpyVectors] | type[JsonlVectors] | type[ParquetVectors]] = {
    ".npy": NpyVectors,
    ".jsonl": JsonlVectors,
    ".parquet": ParquetVectors,
}


class ParquetTables:
    """Arrow tables to a Parquet file, one row group each."""

    def __init__(self, file: Any) -> None:
        self.parquet = need("pyarrow.parquet", "parquet", "writing Parquet")
        self.file = file
        self.writer: Any = None

    def write(self, table: Table) -> None:
        """Add a table."""
        if self.writer is None:  # no dictionary or statistics for vectors, whose values rarely repeat
            self.writer = self.parquet.ParquetWriter(
                self.file, table.schema, use_dictionary=["source"], write_statistics=["row"]
            )
        self.writer.write_table(table)

    def close(self) -> None:
        """Write the footer."""
        if self.writer is not None:
            self.writer.close()
