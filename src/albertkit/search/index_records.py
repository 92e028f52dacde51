"""What goes into an index and what comes out: records of files, and the hits of a search.

In: files and folders. Out: `Record`, one per line, paragraph, file or row of a table. `index.py` stores them, and makes
the hits.
"""

from __future__ import annotations

import hashlib
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, groupby
from numbers import Real
from pathlib import Path

import numpy as np

from albertkit.errors import AlbertkitError, check_choice, check_count, check_string, check_type
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

MODES = ("hybrid", "vector", "keyword")
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
    text_files = find_text_files(files, field, folder_suffixes=FOLDER_SUFFIXES, allow_pipes=True)
    check_text_column(text_files, field)
    for file in text_files:
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


def plain_record(record: Record) -> Record:
    """The record as SQLite returns it: plain strings without lone surrogates, and a plain integer."""
    check_type("record", record, (Record,), "records such as Record('1', 'a text')")
    for name in ("id", "text", "source"):
        value = getattr(record, name)
        if not isinstance(value, str):
            raise AlbertkitError(f"{name}={value!r:.80} is not a string. Pass a record with a string.")
    if not isinstance(record.line, int | np.integer) or not -(2**63) <= int(record.line) < 2**63:
        raise AlbertkitError(f"line={record.line!r:.80} is not a whole number of 64 bits. Pass a record with one.")
    id, text, source = (str.__str__(replace_surrogates(part)) for part in (record.id, record.text, record.source))
    return Record(id, text, source, int(record.line))


class RepeatedIds:
    """The ids of one `Index.add`, in a temporary file of SQLite: which of them occur again, in another record."""

    def __init__(self) -> None:
        self._sql = sqlite3.connect("")
        self._sql.execute(
            "CREATE TABLE ids (id TEXT PRIMARY KEY, hash INTEGER, source TEXT, line INTEGER, is_repeated INTEGER) "
            "WITHOUT ROWID"
        )

    def add(self, records: Iterable[Record]) -> None:
        """Remember the ids of these records. A record that was read twice, from the same line, is not repeated."""
        upsert = (
            "INSERT INTO ids VALUES (?, ?, ?, ?, 0) ON CONFLICT DO UPDATE SET hash = excluded.hash, "
            "source = excluded.source, line = excluded.line, is_repeated = 1 "
            "WHERE (hash, source, line) != (excluded.hash, excluded.source, excluded.line)"
        )
        self._sql.executemany(upsert, [(r.id, text_hash(r.text), r.source, r.line) for r in records])

    def report(self) -> None:
        """Warn about repeated ids."""
        count, id = self._sql.execute("SELECT count(*), min(id) FROM ids WHERE is_repeated").fetchone()
        if not count:
            return
        source, line = self._sql.execute("SELECT source, line FROM ids WHERE id = ?", (id,)).fetchone()
        place = f" ({source}:{line})" if source else ""
        subject = "1 id occurs" if count == 1 else f"{count:,} ids occur"
        warnings.warn(
            f"{subject} more than once, such as {id!r:.80}{place}; only the last text of each was kept. Make the ids "
            "unique, or omit --id-column.",
            stacklevel=3,
        )

    def close(self) -> None:
        self._sql.close()


def check_embedder(embedder: object) -> None:
    """Raise unless a value is an open model, or None."""
    if embedder is not None and not hasattr(embedder, "embed"):
        check_type("embedder", embedder, (), "an open model such as Albert()")


def check_search(k: int, mode: str, min_score: float | None, exact: bool) -> None:
    """Raise if an argument of a search is not available."""
    check_choice("mode", mode, MODES)
    check_count("k", k, 1, 10_000)
    check_type("min_score", min_score, (Real, type(None)), "a cosine from -1 to 1")
    check_type("exact", exact, (bool,), "True or False")
    if min_score is not None and (mode == "keyword" or not -1 <= min_score <= 1):
        raise AlbertkitError(
            f"min_score={min_score} in mode {mode} is not available: it is a cosine from -1 to 1, and keyword "
            "search has none. Pass such a number with another mode, or omit it."
        )


def check_queries(queries: Sequence[str]) -> None:
    """Raise if a query is blank: it has no words, and the vector of an empty text has no meaning."""
    if isinstance(queries, str):
        raise AlbertkitError(f"queries is the single text {queries!r:.60}. Use search, or pass a list of texts.")
    check_type("queries", queries, (Iterable,), "a list of texts")
    for number, query in enumerate(queries, 1):
        check_string("query", query)
        if not query.strip():
            subject = "the query" if len(queries) == 1 else f"query {number} of {len(queries):,}"
            raise AlbertkitError(f"{subject} is blank: {query!r:.80}. Pass a text with words.")


def text_hash(text: str) -> int:
    """64 bits of a text, by which an index finds equal texts."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big", signed=True)


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
    """How many of the k best texts were left out: they have no word of the query, and are below the limit."""
