"""Streaming writer of vectors and results: .npy, .npz, .jsonl and .parquet.

In: texts with their vectors (`open_vector_writer`) or with the vectors of their tokens (`open_token_writer`), or tables
of results (`ParquetTables`, for `bulk/worker.py`). Out: a file, written as NAME.part and renamed when it is complete.
After an interruption, NAME.part is usable and the error explains how to resume. Memory use is bounded, except that
NAME.npz keeps the words of its tokens. `text_reader.py` reads texts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from albertkit.errors import AlbertkitError, need
from albertkit.text_reader import replace_surrogates

if TYPE_CHECKING:
    from pyarrow import Table

ROW_GROUP = 4096  # rows of a Parquet row group


class Tokens(Protocol):
    """What is written of `runtime.embed.TokenVectors`."""

    @property
    def tokens(self) -> Sequence[str]: ...
    @property
    def offsets(self) -> Sequence[tuple[int, int]]: ...
    @property
    def vectors(self) -> np.ndarray: ...


def open_vector_writer(
    target: Path, overwrite: bool = False
) -> contextlib.AbstractContextManager[Callable[[str, np.ndarray], None]]:
    """A function that writes one text with its vector; the suffix of the target selects the format."""
    return _open_writer(target, VECTOR_WRITERS, overwrite)


def open_token_writer(
    target: Path, overwrite: bool = False
) -> contextlib.AbstractContextManager[Callable[[str, Tokens], None]]:
    """A function that writes one text with its tokens; the suffix of the target selects the format."""
    return _open_writer(target, TOKEN_WRITERS, overwrite)


@contextlib.contextmanager
def _open_writer(target: Path, writers: Mapping[str, Any], overwrite: bool) -> Iterator[Callable[[str, Any], None]]:
    if target.suffix not in writers:
        ending = f"ends with {target.suffix!r}" if target.suffix else "has no suffix"
        raise AlbertkitError(f"{target} {ending}. Use one of {', '.join(writers)}.")
    part = target.with_name(target.name + ".part")
    for path in (target, part):
        if path.exists() and not overwrite:
            raise AlbertkitError(f"{path} exists. Move it, choose another name, or allow overwriting (--force).")
    if target.suffix == ".parquet":
        need("pyarrow", "parquet", "writing Parquet")
    try:
        file = part.open("wb")
    except OSError as error:
        raise AlbertkitError(f"{target} cannot be written: {error.strerror}. Choose another place.") from None
    with file:
        writer = writers[target.suffix](file)
        try:
            yield writer.write
        except (KeyboardInterrupt, OSError, AlbertkitError) as error:
            try:
                writer.close()
                file.close()
            except OSError:  # a full disk: the part is not complete
                part.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    file.close()
                raise _stopped(error, 0, part) from None
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
    row = {"text": replace_surrogates(text), "vector": vector_numbers(vector)}
    return json.dumps(row, ensure_ascii=False)


def vector_numbers(vector: np.ndarray) -> list[float]:
    """The numbers of a vector for JSON: floats with seven digits, or integers."""
    numbers: list[float] = vector.tolist()
    return numbers if vector.dtype.kind in "iu" else [round(number, 7) for number in numbers]


def token_json(text: str, tokens: Tokens) -> str:
    """A text, its tokens, the characters they cover and their vectors as one line of JSON."""
    vectors = [[round(value, 7) for value in row] for row in tokens.vectors.tolist()]
    row = {"text": replace_surrogates(text), "tokens": tokens.tokens, "offsets": tokens.offsets, "vectors": vectors}
    return json.dumps(row, ensure_ascii=False)


class JsonlVectors:
    """One JSON object per line, with text and vector."""

    as_json: Callable[[str, Any], str] = staticmethod(vector_json)

    def __init__(self, file: Any) -> None:
        self.file, self.rows = file, 0

    def write(self, text: str, vector: Any) -> None:
        self.file.write(self.as_json(text, vector).encode() + b"\n")
        self.rows += 1

    def close(self) -> None:
        """Do nothing: every line is already written."""


class JsonlTokens(JsonlVectors):
    """One JSON object per line, with text, tokens, offsets and vectors."""

    as_json = staticmethod(token_json)


class NpyVectors:
    """A matrix of the vectors' type; the number of rows in its header is corrected at the end."""

    def __init__(self, file: Any) -> None:
        self.file, self.rows, self.width, self.dtype = file, 0, 0, "<f4"
        self.file.write(self._header())

    def _header(self) -> bytes:
        header = f"{{'descr': '{self.dtype}', 'fortran_order': False, 'shape': ({self.rows}, {self.width}), }}"
        return b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117).encode() + b"\n"

    def write(self, text: str, vector: np.ndarray) -> None:
        self.width, self.dtype = len(vector), vector.dtype.newbyteorder("<").str
        self.file.write(np.ascontiguousarray(vector, self.dtype).tobytes())
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


class NpzTokens:
    """Arrays for the tokens of all texts: vectors (tokens, H), tokens (tokens,), offsets (tokens, 2); and counts
    (texts,), the number of tokens of each text.

    The vectors wait in a file, because an archive needs their number first.
    """

    def __init__(self, file: Any) -> None:
        self.file, self.rows, self.width = file, 0, 0
        self.vectors = tempfile.TemporaryFile(dir=Path(file.name).parent)  # noqa: SIM115  closed in `close`
        self.counts: list[int] = []
        self.tokens, self.offsets = [np.empty(0, np.str_)], [np.empty((0, 2), np.int64)]

    def write(self, text: str, tokens: Tokens) -> None:
        self.width = tokens.vectors.shape[1]
        self.vectors.write(np.ascontiguousarray(tokens.vectors, "<f4").tobytes())
        self.counts.append(len(tokens.tokens))
        self.tokens.append(np.array(tokens.tokens, np.str_))
        self.offsets.append(np.array(tokens.offsets, np.int64).reshape(-1, 2))
        self.rows += 1

    def close(self) -> None:
        tokens, offsets = np.concatenate(self.tokens), np.concatenate(self.offsets)
        arrays = {"tokens": tokens, "offsets": offsets, "counts": np.array(self.counts, np.int64)}
        with self.vectors, zipfile.ZipFile(self.file, "w") as archive:
            with archive.open("vectors.npy", "w", force_zip64=True) as member:
                header = {"descr": "<f4", "fortran_order": False, "shape": (len(tokens), self.width)}
                np.lib.format.write_array_header_1_0(member, header)
                self.vectors.seek(0)
                shutil.copyfileobj(self.vectors, member)
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


TOKEN_WRITERS: dict[str, type[JsonlTokens] | type[NpzTokens]] = {".jsonl": JsonlTokens, ".npz": NpzTokens}
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
        if self.writer is None:  # no dictionary or statistics for vectors, whose values rarely repeat
            self.writer = self.parquet.ParquetWriter(
                self.file, table.schema, use_dictionary=["source"], write_statistics=["row"]
            )
        self.writer.write_table(table)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
