"""The output file of a part, as .npz, .jsonl or .parquet: one row per row of the input.

In: results of `Albert`, group by group. Out: a file with source (the input file), row (its number in that file), and
vector (embed), label and probability (classify) or spans (tag). Only .parquet needs pyarrow. Before this file:
`parts.py`; after it: `worker.py`.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal

import numpy as np

from albertkit.errors import AlbertkitError, need
from albertkit.tasks.classify import Classification
from albertkit.tasks.tag import TagResult
from albertkit.text_reader import TextFile, replace_surrogates
from albertkit.vector_dtype import empty_vectors
from albertkit.vector_writer import ParquetTables, vector_numbers

OutputFormat = Literal["npz", "jsonl", "parquet"]
FORMATS: dict[str, tuple[OutputFormat, ...]] = {  # of each task; the first is the default
    "embed": ("npz", "jsonl", "parquet"),
    "classify": ("jsonl", "parquet"),
    "tag": ("jsonl", "parquet"),
}
FIELDS = {"embed": ("vector",), "classify": ("label", "probability"), "tag": ("spans",)}  # of each task
SPAN_FIELDS = ("start", "end", "label", "score")
PartRow = np.ndarray | Classification | TagResult | None
"""The result of a row; None for a row without a text."""


def choose_format(task: str, files: Iterable[TextFile], name: str | None = None) -> OutputFormat:
    """The chosen format. The default is Parquet if an input is Parquet, else .npz for vectors and .jsonl for others.

    >>> choose_format("tag", [TextFile("notes.txt", "text")])
    'jsonl'
    """
    default: OutputFormat = "parquet" if any(file.format == "parquet" for file in files) else FORMATS[task][0]
    result = next((format for format in FORMATS[task] if format == (name or default)), None)
    if result is None:
        raise AlbertkitError(f"{task} cannot write {name!r}. Choose one of {', '.join(FORMATS[task])} (--format).")
    if result == "parquet":
        need("pyarrow", "parquet", "writing Parquet")
    return result


@dataclass(frozen=True)
class PartContent:
    """What a part contains."""

    task: str  # embed, classify or tag
    source: str  # the input file
    first: int  # the number of its first row in the input
    rows: int
    width: int = 0  # embed: dimensions of a vector
    label_kind: str = "single"  # classify: single, multi or regression
    dtype: str | None = None  # embed: type of a vector

    def empty_vector(self) -> np.ndarray:
        """The vector of a row without a text."""
        return np.asarray(empty_vectors(self.width, self.dtype, rows=1)[0])

    def fields(self, result: PartRow) -> dict[str, Any]:
        """The fields of a result of `Albert`; None everywhere for a row without a text."""
        if result is None:
            return dict.fromkeys(FIELDS[self.task])
        if isinstance(result, TagResult):
            return {"spans": [{name: getattr(span, name) for name in SPAN_FIELDS} for span in result.spans]}
        if isinstance(result, Classification):
            label = list(result.label) if isinstance(result.label, tuple) else result.label
            return {"label": label, "probability": result.probability}
        return {"vector": result}


class NpzPart:
    """Arrays vector, row, source, and is_missing for rows without a text, whose vector is 0.

    The arrays are streamed into the archive without compression.
    """

    def __init__(self, file: IO[bytes], content: PartContent) -> None:
        self.content = content
        self.is_missing: list[bool] = []
        self.archive = zipfile.ZipFile(file, "w")
        # A ZipInfo without a date: the same part gives the same bytes.
        self.member = self.archive.open(zipfile.ZipInfo("vector.npy"), "w", force_zip64=True)
        empty = content.empty_vector()
        header = {"descr": empty.dtype.str, "fortran_order": False, "shape": (content.rows, len(empty))}
        np.lib.format.write_array_header_1_0(self.member, header)

    def write(self, results: Sequence[Any]) -> None:
        empty = self.content.empty_vector()
        vectors = np.stack([empty if result is None else result for result in results])
        self.member.write(vectors.astype(empty.dtype, copy=False).tobytes())
        self.is_missing += [result is None for result in results]

    def close(self) -> None:
        self.member.close()
        content = self.content
        rows = np.arange(content.first, content.first + len(self.is_missing), dtype=np.int64)
        arrays = {"row": rows, "source": np.array(content.source), "is_missing": np.array(self.is_missing)}
        for name, array in arrays.items():
            with self.archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        self.archive.close()

    def abandon(self) -> None:
        """Close the archive of a file that will be deleted; otherwise Python closes it later, with a message."""
        for part in (self.member, self.archive):
            with contextlib.suppress(Exception):
                part.close()


class JsonlPart:
    """One JSON object per row."""

    def __init__(self, file: IO[bytes], content: PartContent) -> None:
        self.file, self.content, self.row = file, content, content.first
        self.source = replace_surrogates(content.source)

    def write(self, results: Sequence[Any]) -> None:
        lines = []
        for result in results:
            fields = self.content.fields(result)
            if fields.get("vector") is not None:
                fields["vector"] = vector_numbers(fields["vector"])
            lines.append(json.dumps({"source": self.source, "row": self.row, **fields}, ensure_ascii=False) + "\n")
            self.row += 1
        self.file.write("".join(lines).encode())

    def close(self) -> None:
        """Do nothing: every line is already written."""


class ParquetPart:
    """Columns with the names of the fields."""

    def __init__(self, file: IO[bytes], content: PartContent) -> None:
        self.tables, self.content, self.row = ParquetTables(file), content, content.first

    def write(self, results: Sequence[Any]) -> None:
        """Add a group of results as one row group."""
        import pyarrow as arrow

        rows = arrow.array(self.row + np.arange(len(results), dtype=np.int64))
        zeros = arrow.array(np.zeros(len(results), np.int32))
        names = arrow.DictionaryArray.from_arrays(zeros, [self.content.source])
        self.tables.write(arrow.table({"source": names, "row": rows, **self._columns(results)}))
        self.row += len(results)

    def _columns(self, results: Sequence[Any]) -> dict[str, Any]:
        import pyarrow as arrow

        content = self.content
        if content.task == "embed":
            empty = content.empty_vector()
            flat = np.concatenate([empty if vector is None else vector for vector in results])
            is_missing = arrow.array([vector is None for vector in results], arrow.bool_())
            kind = arrow.list_(arrow.from_numpy_dtype(empty.dtype), len(empty))
            return {"vector": arrow.FixedSizeListArray.from_arrays(arrow.array(flat), type=kind, mask=is_missing)}
        integer, real, text = arrow.int64(), arrow.float64(), arrow.string()
        span = arrow.struct({"start": integer, "end": integer, "label": text, "score": real})
        label = {"multi": arrow.list_(text), "regression": real}.get(content.label_kind, text)
        kinds = {"spans": arrow.list_(span), "label": label, "probability": real}
        fields = [content.fields(result) for result in results]
        return {name: arrow.array([row[name] for row in fields], kinds[name]) for name in fields[0]}

    def close(self) -> None:
        self.tables.close()


PartWriter = NpzPart | JsonlPart | ParquetPart
PART_WRITERS: dict[OutputFormat, type[NpzPart] | type[JsonlPart] | type[ParquetPart]] = {
    "npz": NpzPart,
    "jsonl": JsonlPart,
    "parquet": ParquetPart,
}


@contextlib.contextmanager
def open_part(file: IO[bytes], format: OutputFormat, content: PartContent) -> Iterator[PartWriter]:
    """A writer of results, which is closed at the end of the block."""
    writer = PART_WRITERS[format](file, content)
    try:
        yield writer
        writer.close()
    except BaseException:
        if isinstance(writer, NpzPart):
            writer.abandon()
        raise
