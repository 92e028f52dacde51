"""Input files → numbered parts: which rows of which file, bounded in rows and in bytes.

In: `Source`s. Out: a table of parts that follows from the files alone, so that every run of the same command has the same parts, and a part's number is a name
for its output. A part never goes beyond its file. Text files are read once from end to end for this (rows are counted, and a row number is known for every
part); of Parquet files only the footer is read. After this file: `work.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from albertkit.bulk.object_store import Source, opened
from albertkit.bulk.part_reader import Stretch, parquet, records
from albertkit.errors import AlbertkitError, nearest

PART_BYTES = 64 * 2**20
PARTS = 5_000_000
TABLE = np.dtype([("source", "<i4"), ("start", "<i8"), ("stop", "<i8"), ("first", "<i8"), ("rows", "<i8")])


@dataclass(frozen=True)
class Part:
    """A row of the table, as a worker gets it."""

    number: int
    source: Source
    stretch: Stretch
    rows: int


def part_of(table: np.ndarray, sources: Sequence[Source], number: int) -> Part:
    """The part of a number."""
    source, start, stop, first, rows = (int(value) for value in table[number])
    return Part(number, sources[source], Stretch(start, stop, first), rows)


def plan(
    sources: Sequence[Source], most_rows: int, progress: Callable[[int], object] = lambda done: None
) -> tuple[list[Source], np.ndarray]:
    """The sources, with the column of their text, and the table of parts; `progress` gets the bytes that were looked at."""
    table: list[np.ndarray] = []
    known, done, count = [], 0, 0
    for number, given in enumerate(sources):
        source, begin = _column(given)
        cut = _parquet_parts(source, most_rows) if source.form == "parquet" else _parts(source, begin, most_rows)
        found = np.array([(number, *part) for part in cut], TABLE)
        table.append(found)
        known.append(source)
        count += len(found)
        done += source.size
        progress(done)
        if count > PARTS:
            raise AlbertkitError(f"there are over {PARTS:,} parts; give them more rows (--part-rows)")
    return known, np.concatenate(table) if table else np.zeros(0, TABLE)


def _parts(source: Source, begin: int, most_rows: int) -> Iterator[tuple[int, int, int, int]]:
    """(start, stop, first row, rows) of each part of a file of lines or records."""
    start, first, count, end = begin, 0, 0, begin
    with opened(source) as file:
        for _, end in records(source, file, Stretch(begin, source.size)):
            count += 1
            if count == most_rows or end - start >= PART_BYTES:
                yield start, end, first, count
                start, first, count = end, first + count, 0
    if count:
        yield start, end, first, count


def _parquet_parts(source: Source, most_rows: int) -> Iterator[tuple[int, int, int, int]]:
    with parquet(source) as file:
        total = file.metadata.num_rows
    for start in range(0, total, most_rows):
        stop = min(start + most_rows, total)
        yield start, stop, start, stop - start


def _column(source: Source) -> tuple[Source, int]:
    """The source with the number of its text's column, and the byte behind its header; a column given as a number means that there is no header."""
    if source.form not in ("csv", "tsv"):
        return source, 0
    wanted = str(source.column)
    if wanted.isdigit() and int(wanted) > 0:
        return dataclasses.replace(source, column=int(wanted) - 1), 0
    if not source.size:
        return dataclasses.replace(source, column=0), 0
    with opened(source) as file:
        header, begin = next(records(source, file, Stretch(0, source.size)), ([], source.size))
    if isinstance(header, bytes):
        header = header.decode("utf-8", "replace").rstrip("\r\n").split("\t")
    names = [name.strip() for name in header]
    if wanted not in names:
        raise AlbertkitError(
            f"{source.name} has no column {wanted!r}{nearest(wanted, names)}; its first row has {', '.join(names[:20])}: name one, "
            "or give its number from 1 if there is no header (--field)"
        )
    return dataclasses.replace(source, column=names.index(wanted)), begin
