"""What goes into an index and what comes out: records of files, and the hits of a search.

In: files and folders. Out: `Record`, one per line, paragraph, file or row of a table. `index.py` stores them, and makes
the hits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import dropwhile, groupby
from pathlib import Path

from albertkit.errors import AlbertkitError, check_choice
from albertkit.text_reader import (
    FORMATS,
    PLAIN_TEXT,
    TEXT_LIMIT,
    Record,
    TextFile,
    check_text_column,
    find_text_files,
    read_lines,
    read_records,
    replace_surrogates,
)

SPLITS = ("lines", "paragraphs", "file")
FOLDER_SUFFIXES = (*PLAIN_TEXT, *FORMATS)


def records_from(
    files: Iterable[Path | str], field: str | None = None, split: str = "lines", id_field: str | None = None
) -> Iterator[Record]:
    """Records of text files (one per line, paragraph or file) and of tables (one per row, the text in `field`).

    Folders are walked in order; hidden files and other kinds of files are skipped. A file that is passed explicitly is
    always read. Lines and rows without a text are no records. The default field is `text`.
    """
    check_choice("split", split, SPLITS)
    found = find_text_files(files, field, folder_suffixes=FOLDER_SUFFIXES, allow_pipes=True)
    check_text_column(found, field)
    for file in found:
        if file.format != "text" or split == "lines":
            yield from read_records(file, field, id_field, TEXT_LIMIT)
            continue
        lines = dropwhile(lambda line: not line[1].strip(), read_lines(file, TEXT_LIMIT))
        for has_text, group in groupby(lines, lambda line: split == "file" or bool(line[1].strip())):
            if has_text:
                yield _join_lines(file, group, "paragraphs" if split == "file" else "lines")


def _join_lines(file: TextFile, lines: Iterable[tuple[int, str]], smaller_unit: str) -> Record:
    numbers, texts, length = [], [], 0
    for number, text in lines:
        numbers.append(number)
        texts.append(text)
        length += len(text.encode()) + 1
        if length > TEXT_LIMIT + 1:
            raise AlbertkitError(
                f"the text that begins on line {numbers[0]} of {file.name} has over {TEXT_LIMIT:,} bytes. "
                f"Index the file by {smaller_unit} (--split)."
            )
    return Record(f"{file.name}:{numbers[0]}", "\n".join(texts).strip(), file.name, numbers[0])


def without_surrogates(record: Record) -> Record:
    """The record without lone surrogates, which SQLite cannot store."""
    id, text, source = map(replace_surrogates, (record.id, record.text, record.source))
    return Record(id, text, source, record.line)


@dataclass(frozen=True)
class SearchHit:
    """A search result.

    >>> from albertkit import Albert, Index, Record
    >>> index = Index.create("notes.idx", Albert())
    >>> index.add([Record("1", "The doctor is in."), Record("2", "The train was late.")])
    2
    >>> hit = index.search("where is a physician?", k=1)[0]
    >>> hit.id, hit.text
    ('1', 'The doctor is in.')
    >>> index.close()
    """

    id: str
    text: str
    score: float
    """The cosine of query and text, at most 1; in keyword mode, which needs no model, BM25."""
    source: str
    line: int
    matched: str
    """What matched: "meaning" (the vector), "words" (words of the query), or "both"."""


@dataclass(frozen=True)
class SearchResult:
    """The hits of a query, the best first.

    >>> from albertkit import SearchResult
    >>> SearchResult(hits=[], left_out=3).left_out
    3
    """

    hits: list[SearchHit]
    left_out: int
    """Texts among the k best that were left out, because they match by meaning only and are below the limit."""
