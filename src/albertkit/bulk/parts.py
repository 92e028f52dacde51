"""Input files → numbered parts, and the rows of each part.

In: `TextFile`s. Out: a table of parts that depends on the files only, and the texts of a part with their row numbers.
A row is a line of a text file (blank ones too), a line of a .jsonl file that is not blank, a record of a .csv or .tsv
file, or a row of a Parquet file, as for `text_reader.py`. Before this file: `object_store.py`; after it: `worker.py`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from typing import Any

import numpy as np

from albertkit.bulk.object_store import locate, open_input
from albertkit.errors import AlbertkitError, type_with_article
from albertkit.text_reader import (
    LINE_LIMIT,
    TEXT_LIMIT,
    BadRow,
    TextFile,
    column_index,
    column_value,
    decode,
    get_cell,
    is_blank_line,
    open_parquet,
    parse_json_line,
    remove_bom,
    table_width,
)

PART_BYTES = 64 << 20
PARQUET_ROWS = 4096  # rows read at once
BLOCK_BYTES = 1 << 18  # bytes of lines read at once
Record = bytes | list[str]  # a line, or the cells of a csv record
PART_TABLE = np.dtype([("source", "<i4"), ("start", "<i8"), ("stop", "<i8"), ("first", "<i8"), ("rows", "<i8")])


@dataclass(frozen=True)
class WorkPart:
    """Bytes of one file, or rows of a Parquet file, from `start` to before `stop`; one row of the table of parts."""

    number: int
    file: TextFile
    start: int
    stop: int
    first: int  # the number of its first row in the file
    rows: int


# Planning -----------------------------------------------------------------------------------------------------------


def get_part(table: np.ndarray, files: Sequence[TextFile], number: int) -> WorkPart:
    file, start, stop, first, rows = (int(value) for value in table[number])
    return WorkPart(number, files[file], start, stop, first, rows)


def plan_parts(
    files: Sequence[TextFile], max_rows: int, progress: Callable[[int], object] = lambda done: None
) -> tuple[list[TextFile], np.ndarray]:
    """The files with their text columns, and the table of parts; `progress` is called with the bytes read so far."""
    tables: list[np.ndarray] = []
    planned, done = [], 0
    for number, input_file in enumerate(files):
        file, begin = _find_column(input_file)
        parts = _parquet_parts(file, max_rows) if file.format == "parquet" else _line_parts(file, begin, max_rows)
        tables.append(np.array([(number, *part) for part in parts], PART_TABLE))
        planned.append(file)
        done += file.size
        progress(done)
    return planned, np.concatenate(tables) if tables else np.zeros(0, PART_TABLE)


def _line_parts(file: TextFile, begin: int, max_rows: int) -> Iterator[tuple[int, int, int, int]]:
    """(start, stop, first row, rows) of each part of a file of lines or records."""
    start, first, count, end = begin, 0, 0, begin
    with open_input(file) as stream:
        for _, end in _read_records(WorkPart(0, file, begin, file.size, 0, 0), stream):
            count += 1
            if count == max_rows or end - start >= PART_BYTES:
                yield start, end, first, count
                start, first, count = end, first + count, 0
    if count:
        yield start, end, first, count


def _parquet_parts(file: TextFile, max_rows: int) -> Iterator[tuple[int, int, int, int]]:
    with _open_parquet_input(file) as parquet:
        total = parquet.metadata.num_rows
    for start in range(0, total, max_rows):
        stop = min(start + max_rows, total)
        yield start, stop, start, stop - start


def _find_column(file: TextFile) -> tuple[TextFile, int]:
    """The file with the index of its text's column, and the byte after its header, if it has one."""
    if file.format not in ("csv", "tsv"):
        return file, 0
    column = str(file.column)
    if not file.size:
        return replace(file, column=0), 0
    with open_input(file) as stream:
        first, end = next(_read_records(WorkPart(0, file, 0, file.size, 0, 0), stream), ([], file.size))
    if isinstance(first, bytes):
        first = _split_line(first.decode("utf-8", "replace"))
    has_header = not column.isdigit()
    result = replace(file, column=column_index(first, column, file.name), width=table_width(first, column))
    return result, end if has_header else 0


# Reading ------------------------------------------------------------------------------------------------------------


def read_part(part: WorkPart, root: str = "", any_length: bool = False) -> Iterator[tuple[int, str | BadRow]]:
    """Row numbers and texts, or a `BadRow` with the reason."""
    texts = _parquet_texts(part, root) if part.file.format == "parquet" else _texts(part, root)
    for number, text in enumerate(texts, part.first):
        if isinstance(text, str):
            if len(text) > TEXT_LIMIT and not any_length:
                text = BadRow(
                    f"has {len(text):,} characters, more than {TEXT_LIMIT:,} (--long-texts truncate truncates it)"
                )
        elif not isinstance(text, BadRow):
            text = BadRow("contains no text" if text is None else f"contains {type_with_article(text)}, not a text")
        yield number, text


def _texts(part: WorkPart, root: str) -> Iterator[object]:
    with open_input(part.file, root) as stream:
        if part.file.format == "text":
            yield from _line_texts(part, stream)
        else:
            yield from (_parse_record(part.file, record) for record, _ in _read_records(part, stream))


def _read_records(part: WorkPart, stream: BufferedReader) -> Iterator[tuple[Record, int]]:
    """Each record, not yet parsed, and the byte after it."""
    lines = _read_lines(part, stream)
    if part.file.format == "csv":
        yield from _csv_records(part, lines)
    else:
        for line, end in lines:
            if part.file.format == "tsv":
                is_blank = is_blank_line(_split_line(line.decode("utf-8", "replace")), part.file.width)
            else:
                is_blank = part.file.format == "jsonl" and not line.strip()
            if not is_blank:
                yield line, end


def _read_lines(part: WorkPart, stream: BufferedReader) -> Iterator[tuple[bytes, int]]:
    position = part.start
    stream.seek(position)
    while position < part.stop:
        line = stream.readline(LINE_LIMIT + 1)
        if not line or len(line) > LINE_LIMIT:
            reason = f"has a line of over {LINE_LIMIT:,} bytes" if line else "ends early"
            raise AlbertkitError(f"{part.file.name} {reason} at byte {position:,}. Break its lines, or copy it again.")
        is_first, position = position == 0, position + len(line)
        yield (remove_bom(line, part.file.name) if is_first else line), position


def _line_texts(part: WorkPart, stream: BufferedReader) -> Iterator[object]:
    """The texts of a text file, decoded in blocks for speed."""
    position = part.start
    while position < part.stop:
        stream.seek(position)
        block = stream.read(min(BLOCK_BYTES, part.stop - position))
        block = block[: block.rfind(b"\n") + 1] if position + len(block) < part.stop else block
        try:
            if not block or position == 0:  # a very long line; or a byte order mark
                raise ValueError
            lines = block.decode("utf-8").removesuffix("\n").split("\n")
        except ValueError:
            begin = position
            for line, position in _read_lines(replace(part, start=begin), stream):
                yield _parse_record(part.file, line)
                if position >= begin + len(block):
                    break
        else:
            position += len(block)
            yield from (line.removesuffix("\r") for line in lines)


def _csv_records(part: WorkPart, lines: Iterator[tuple[bytes, int]]) -> Iterator[tuple[list[str], int]]:
    end, number = part.start, part.first

    def text_lines() -> Iterator[str]:
        nonlocal end
        for line, end in lines:  # noqa: B007  the reader below takes as many lines as a record needs
            yield line.decode("utf-8", "surrogateescape")

    csv.field_size_limit(TEXT_LIMIT)
    try:
        for record in csv.reader(text_lines(), strict=True):
            if not is_blank_line(record, part.file.width):
                number += 1
                yield record, end
    except csv.Error as error:
        raise AlbertkitError(f"row {number} of {part.file.name} is not CSV ({error}). Correct it.") from None


def _parse_record(file: TextFile, record: Record) -> object:
    """The text of a record, or a `BadRow` with the reason."""
    try:
        if isinstance(record, bytes):
            line = decode(record).removesuffix("\n").removesuffix("\r")
            if file.format == "text":
                return line
            if file.format == "jsonl":
                return _check_utf8(column_value(parse_json_line(line), str(file.column)))
            record = _split_line(line)
        return _check_utf8(get_cell(record, int(file.column or 0), file.width))
    except BadRow as bad:
        return bad


def _split_line(line: str) -> list[str]:
    """The cells of a line of a tsv file."""
    return line.removesuffix("\n").removesuffix("\r").split("\t")


def _check_utf8(text: object) -> object:
    """The value, if UTF-8 can store it: without undecodable bytes and lone surrogates."""
    try:
        if isinstance(text, str):
            text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow("is not UTF-8") from None
    return text


@contextmanager
def _open_parquet_input(file: TextFile, root: str = "") -> Iterator[Any]:
    open_input(file, root).close()  # raises if the file has changed
    storage, path = locate(file.name, root)
    with storage.open_input(path) as raw, open_parquet(file.name, raw, [str(file.column)]) as parquet:
        yield parquet


def _parquet_texts(part: WorkPart, root: str) -> Iterator[object]:
    with _open_parquet_input(part.file, root) as parquet:
        group_start = 0
        for group in range(parquet.num_row_groups):
            count = parquet.metadata.row_group(group).num_rows
            if group_start + count <= part.start or group_start >= part.stop:
                group_start += count
                continue
            for batch in parquet.iter_batches(PARQUET_ROWS, row_groups=[group], columns=[part.file.column]):
                low, high = max(part.start - group_start, 0), min(part.stop - group_start, len(batch))
                if low < high:
                    yield from batch.column(0)[low:high].to_pylist()
                group_start += len(batch)
