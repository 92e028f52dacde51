"""A stretch of an input file → its rows. Planning and working read with the same functions, so that they cannot disagree.

In: a `Source` and where to begin and stop: bytes, or rows of a Parquet file. Out: records with the place where they end, and texts with their row numbers.

A row is a line of a text file (ended by \\n or \\r\\n; other characters that some call line ends are part of the text; empty lines are rows, too), a line of a
.jsonl file that is not blank, a record of a .csv file (quotes may hold line ends) or of a .tsv file (no quotes), or a row of a Parquet file.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from albertkit.bulk.object_store import Source, opened, place
from albertkit.errors import AlbertkitError, nearest

LINE_LIMIT = 64 * 2**20
TEXT_LIMIT = 1_000_000  # characters; as `albert.py`
BOM = b"\xef\xbb\xbf"  # some editors begin a file with it
PARQUET_ROWS = 4096  # read at once
BLOCK = 1 << 18  # bytes of lines read at once


class Bad(ValueError):
    """Why a row holds no text."""


@dataclass(frozen=True)
class Stretch:
    """Part of a file: bytes, or rows of a Parquet file, from `start` to before `stop`; `first` is the number of its first row."""

    start: int
    stop: int
    first: int = 0


def records(source: Source, file: Any, stretch: Stretch) -> Iterator[tuple[Any, int]]:
    """Each record, not yet understood, and the byte behind it. (Parquet files know their rows by themselves.)"""
    lines = _lines(source, file, stretch)
    if source.form == "csv":
        yield from _csv(source, lines, stretch)
    elif source.form == "text":
        yield from lines
    else:
        yield from ((line, end) for line, end in lines if line.strip())


def _lines(source: Source, file: Any, stretch: Stretch) -> Iterator[tuple[bytes, int]]:
    at = stretch.start
    file.seek(at)
    while at < stretch.stop:
        line = file.readline(LINE_LIMIT + 1)
        if not line or len(line) > LINE_LIMIT:
            why = f"has a line of over {LINE_LIMIT:,} bytes" if line else "ends before it should"
            raise AlbertkitError(f"{source.name} {why} at byte {at:,}; break its lines, or copy it anew")
        begins, at = at == 0, at + len(line)
        yield (line.removeprefix(BOM) if begins else line), at


def _csv(source: Source, lines: Iterator[tuple[bytes, int]], stretch: Stretch) -> Iterator[tuple[list[str], int]]:
    end, number = stretch.start, stretch.first

    def feed() -> Iterator[str]:
        nonlocal end
        for line, end in lines:  # noqa: B007  the reader below takes as many lines as a record needs
            yield line.decode("utf-8", "surrogateescape")

    csv.field_size_limit(TEXT_LIMIT)
    try:
        for record in csv.reader(feed()):
            if record:
                number += 1
                yield record, end
    except csv.Error as error:
        raise AlbertkitError(f"row {number} of {source.name} is no CSV ({error}); correct it") from None


def rows(source: Source, stretch: Stretch, root: str = "", any_length: bool = False) -> Iterator[tuple[int, str | Bad]]:
    """Row numbers and texts; where there is no text, why."""
    if source.form == "parquet":
        found: Iterator[Any] = _parquet(source, stretch, root)
    else:
        found = _texts(source, stretch, root)
    for number, text in enumerate(found, stretch.first):
        if type(text) is str:
            if len(text) > TEXT_LIMIT and not any_length:
                text = Bad(
                    f"has {len(text):,} characters, and at most {TEXT_LIMIT:,} are read (--long-texts truncate cuts)"
                )
        elif not isinstance(text, Bad):
            text = Bad("holds no text" if text is None else f"holds a {type(text).__name__} instead of a text")
        yield number, text


def _texts(source: Source, stretch: Stretch, root: str) -> Iterator[Any]:
    with opened(source, root) as file:
        if source.form == "text":
            yield from _plain(source, file, stretch)
            return
        for record, _ in records(source, file, stretch):
            yield _understood(source, record)


def _understood(source: Source, record: Any) -> Any:
    try:
        return _text(source, record)
    except Bad as bad:
        return bad


def _plain(source: Source, file: Any, stretch: Stretch) -> Iterator[Any]:
    """As the records of a text file, understood: many lines at a time, since most blocks are whole and in order."""
    at = stretch.start
    while at < stretch.stop:
        file.seek(at)
        block = file.read(min(BLOCK, stretch.stop - at))
        block = block[: block.rfind(b"\n") + 1] if at + len(block) < stretch.stop else block
        try:
            if not block or at == 0:  # a very long line; or a mark that some editors begin a file with
                raise ValueError
            lines = block.decode("utf-8").removesuffix("\n").split("\n")
        except ValueError:
            begin = at
            for line, at in _lines(source, file, Stretch(begin, stretch.stop)):
                yield _understood(source, line)
                if at >= begin + len(block):
                    break
        else:
            at += len(block)
            yield from (line.removesuffix("\r") for line in lines)


def _text(source: Source, record: Any) -> Any:
    if source.form == "csv":
        return _checked(_cell(record, source.column))
    line = _checked(record.decode("utf-8", "surrogateescape")).removesuffix("\n").removesuffix("\r")
    if source.form == "text":
        return line
    if source.form == "tsv":
        return _cell(line.split("\t"), source.column)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Bad(f"is not JSON ({str(error)[:100]})") from None
    if not isinstance(row, dict) or source.column not in row:
        has = f"it has {', '.join(list(row)[:20])}" if isinstance(row, dict) else "it is no object"
        raise Bad(f"has no field {source.column!r}; {has} (--field)")
    text = row[source.column]
    return _checked(text) if isinstance(text, str) else text


def _cell(record: list[str], column: Any) -> str:
    if not isinstance(column, int) or column >= len(record):
        raise Bad(f"has {len(record)} columns, and the text is in column {int(column) + 1}")
    return record[column]


def _checked(text: str) -> str:
    """The text, if it is one: no bytes that are not UTF-8, no halves of characters."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Bad("is not UTF-8") from None
    return text


def _parquet(source: Source, stretch: Stretch, root: str) -> Iterator[Any]:
    with parquet(source, root) as file:
        at = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if at + count > stretch.start and at < stretch.stop:
                for batch in file.iter_batches(PARQUET_ROWS, row_groups=[group], columns=[source.column]):
                    low, high = max(stretch.start - at, 0), min(stretch.stop - at, len(batch))
                    if low < high:
                        yield from batch.column(0)[low:high].to_pylist()
                    at += len(batch)
            else:
                at += count


def parquet(source: Source, root: str = "") -> Any:
    """A Parquet file, opened, which has the column it should."""
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    opened(source, root).close()  # which checks that it is the same
    system, path = place(source.name, root)
    try:
        file = ParquetFile(system.open_input_file(path))
    except (OSError, ArrowInvalid) as error:
        raise AlbertkitError(f"{source.name} is no Parquet file ({str(error)[:100]}); correct or rename it") from None
    if source.column not in (names := file.schema_arrow.names):
        hint = nearest(str(source.column), names)
        raise AlbertkitError(
            f"{source.name} has no column {source.column!r}{hint}; it has {', '.join(names)} (--field)"
        )
    return file
