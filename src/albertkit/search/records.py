"""Files → records to index: lines, paragraphs or whole text files, and rows of tables (JSONL, CSV, TSV, Parquet).

In: paths. Out: `Record`s, whose id is `file:line` or the value of an id column. Before this file: `text_reader.py`;
after it: `index.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from albertkit.errors import AlbertkitError, nearest
from albertkit.text_reader import (
    TEXT_LIMIT,
    Record,
    TextFile,
    find_text_files,
    read_lines,
    read_records,
    replace_surrogates,
)

SPLITS = ("lines", "paragraphs", "file")
FOLDER_SUFFIXES = (".txt", ".md", ".rst", ".jsonl", ".ndjson")


def storable_record(record: Record) -> Record:
    """The record without lone surrogates, which SQLite cannot store."""
    id, text, source = map(replace_surrogates, (record.id, record.text, record.source))
    return Record(id, text, source, record.line)


def records_from(
    files: Iterable[Path | str], field: str | None = None, split: str = "lines", id_field: str | None = None
) -> Iterator[Record]:
    """Records of text files (one per line, paragraph or file) and of tables (one per row, the text in `field`).

    Folders are walked in order; hidden files and other kinds of files are skipped. A file that is named itself is
    always read. `field` makes text files JSONL; without it the field is `text`.
    """
    if split not in SPLITS:
        raise AlbertkitError(f"split is {split!r}{nearest(str(split), SPLITS)}; choose one of {', '.join(SPLITS)}")
    for file in find_text_files(files, field, folder_suffixes=FOLDER_SUFFIXES, allow_pipes=True):
        if file.format != "text" or split == "lines":
            yield from read_records(file, field, id_field, TEXT_LIMIT)
        else:
            yield from _join_lines(file, is_whole=split == "file")


def _join_lines(file: TextFile, is_whole: bool) -> Iterator[Record]:
    """Paragraphs, which blank lines divide, or all lines as one."""
    lines: list[str] = []
    first = length = 0
    for number, text in read_lines(file, TEXT_LIMIT):
        if not lines:
            first = number
        if text.strip() or (is_whole and lines):
            lines.append(text)
            length += len(text.encode()) + 1
        elif lines:
            yield _record(file, first, lines)
            lines, length = [], 0
        if length > TEXT_LIMIT + 1:
            raise AlbertkitError(
                f"the text that begins on line {first} of {file.name} has over {TEXT_LIMIT:,} bytes. "
                f"Index the file by {'paragraphs' if is_whole else 'lines'} (--split)."
            )
    if lines:
        yield _record(file, first, lines)


def _record(file: TextFile, first: int, lines: list[str]) -> Record:
    return Record(f"{file.name}:{first}", "\n".join(lines).strip(), file.name, first)
