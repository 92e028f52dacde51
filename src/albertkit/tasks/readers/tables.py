"""Tables → `TextExample` examples: csv, tsv, JSONL, Parquet, and the GLUE files as they come.

In: a file and `ReadOptions`. Out: texts or pairs, with a class, several classes or a number each. Before this file: `files.py`;
after it: `reading.py`.

Which column holds what: as the options say, else by well-known names, else by what the cells look like. In tsv a quote is a
character like any other, as in GLUE; in csv it encloses cells.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import TextExample
from albertkit.tasks.readers.column_roles import SAMPLE, SCORES, Row, Table, find_roles, has_header, number, only_pairs
from albertkit.tasks.readers.labelled_files import (
    FILE_LIMIT,
    Problems,
    ReadOptions,
    counted,
    fault,
    form_of,
    lines,
    objects,
    source_of,
    whole,
)
from albertkit.text_reader import open_parquet, open_raw

FIELDS = 256  # of JSON objects; later ones are not looked at


def read_texts(
    path: Path, options: ReadOptions, problems: Problems, paired: bool = False
) -> tuple[list[TextExample], list[str]]:
    """The rows of a table as examples, and notes; with `paired`, a table of single texts is an error."""
    table = load(path, options, problems)
    if not table.rows:
        return [], []
    if paired and options.labelled and only_pairs(table, options):
        options = replace(options, labelled=False)
    roles = find_roles(table, options, paired)
    titles = [f"{role} in column {table.title(c)}" for role, c in vars(roles).items() if c is not None]
    notes = [", ".join(titles)]
    if paired and roles.label is None:
        notes.append("there is no label, so every pair belongs together (--label-column names one)")
    assert roles.text is not None
    raw = [None if roles.label is None else row[roles.label] for _, row in table.rows]
    score = roles.label is not None and table.names is not None and table.names[roles.label].casefold() in SCORES
    kind = _kind(raw, options, score)
    if kind == "regression" and options.kind == "auto":
        notes.append("the labels are numbers, so this is a regression (--kind single makes them classes)")
    examples = []
    for (line, row), label in zip(table.rows, raw, strict=True):
        text, pair = row[roles.text], None if roles.pair is None else row[roles.pair]
        wrong = fault(text, "text") or (None if roles.pair is None else fault(pair, "second text"))
        value, complaint = _label(label, kind, options)
        if wrong or complaint:
            problems.add(line, wrong or complaint or "")
            continue
        pair = None if pair is None else whole(pair).strip()
        examples.append(TextExample(whole(text).strip(), pair, value, f"{path}:{line}"))
    return examples, notes


# Files → tables ----------------------------------------------------------------------------------------------------


def load(path: Path, options: ReadOptions, problems: Problems) -> Table:
    """Any table, all rows of one width."""
    form = form_of(path, options)
    if form == "parquet":
        return _parquet(path)
    if form in ("jsonl", "json"):
        return _fields(path, form, problems)
    if form in ("csv", "tsv"):
        return _rows(path, form, options, problems)
    raise AlbertkitError(
        f"the format of {path} cannot be told from its name or first line; name it (--format csv, tsv, jsonl …)"
    )


def _fields(path: Path, form: str, problems: Problems) -> Table:
    """JSON objects as a table; what an object lacks is None."""
    rows = list(objects(path, form, problems))
    names = list(dict.fromkeys(name for _, row in rows[:SAMPLE] for name in row))[:FIELDS]
    return Table(str(path), [(line, [row.get(name) for name in names]) for line, row in rows], names)


def _rows(path: Path, form: str, options: ReadOptions, problems: Problems) -> Table:
    """Lines of cells as a table; the header, or else most rows, says how many cells are right."""
    rows = list(_cells(path, form, options, problems))
    header = options.header == "yes" or (options.header == "auto" and has_header(rows, options))
    names = [cell.strip() for cell in rows.pop(0)[1]] if header and rows else None
    width = len(names) if names is not None else _common(len(cells) for _, cells in rows)
    more = "quote a cell that holds the delimiter" if form == "csv" else "a text cannot hold the delimiter"
    fewer = f"write all {width}, with {'a tab' if form == 'tsv' else 'the delimiter'} between them"
    there = "the header has" if header else "most rows have"
    for line, cells in rows:
        if len(cells) != width:
            problems.add(
                line, f"{counted(len(cells), 'cell')} where {there} {width}; {fewer if len(cells) < width else more}"
            )
    return Table(str(path), [row for row in rows if len(row[1]) == width], names)


def _common(widths: Iterable[int]) -> int:
    counts = Counter(widths).most_common(1)
    return counts[0][0] if counts else 0


def _cells(path: Path, form: str, options: ReadOptions, problems: Problems) -> Iterator[Row]:
    """Lines cut into cells; rows without any content are left out."""
    numbered = lines(path, problems)
    first = next(numbered, None)
    if first is None:
        return
    delimiter = options.delimiter or ("\t" if form == "tsv" else _delimiter(first[1]))
    numbered = chain([first], numbered)
    quotes = form == "csv" if options.quotes is None else options.quotes
    plain = ((line, text.split(delimiter)) for line, text in numbered)
    for line, cells in _quoted(numbered, delimiter, problems) if quotes else plain:
        if line not in problems.lines and any(cell.strip() for cell in cells):
            yield line, cells


def _delimiter(line: str) -> str:
    """What a csv file uses: a comma, or a tab or semicolon as spreadsheets of some countries write."""
    return next((mark for mark in "\t,;" if mark in line), ",")


def _quoted(numbered: Iterable[tuple[int, str]], delimiter: str, problems: Problems) -> Iterator[Row]:
    """Rows whose cells may be quoted and then run over lines."""
    reader = csv.reader((text + "\n" for _, text in numbered), delimiter=delimiter, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            problems.add(
                start,
                f"the quotes are wrong from here to line {reader.line_num} ({error}); double the quotes inside a quoted cell",
            )
            continue
        if cells is None:
            return
        if any(line in problems.lines for line in range(start, reader.line_num + 1)):
            problems.lines.add(start)
        yield start, cells


def _parquet(path: Path) -> Table:
    rows: list[Row] = []
    size = 0
    with open_raw(source_of(path)) as raw, open_parquet(str(path), raw) as file:
        simple = ("string", "large_string", "int", "uint", "float", "double", "bool", "list<", "dictionary<")
        names = [f.name for f in file.schema_arrow if str(f.type).startswith(simple)]
        for batch in file.iter_batches(batch_size=1024, columns=names, use_threads=False):
            size += batch.nbytes
            if size > FILE_LIMIT:
                raise AlbertkitError(f"{path} holds over {FILE_LIMIT:,} bytes: use a part of it")
            columns = [column.to_pylist() for column in batch.columns]
            rows += [(i, list(cells)) for i, cells in enumerate(zip(*columns, strict=True), len(rows) + 1)]
    return Table(str(path), rows, names)


# Cells → labels ------------------------------------------------------------------------------------------------------


def _kind(values: Sequence[Any], options: ReadOptions, score: bool) -> str:
    """What the labels are. Numbers are a regression if some are not whole, and if many differ or the column says score."""
    if options.kind != "auto":
        return options.kind
    if options.separator is not None or any(isinstance(value, (list, tuple)) for value in values):
        return "multi"
    there = [value for value in values if value is not None and value != ""]
    found = [number(value) for value in there]
    numbers = {value for value in found if value is not None}
    mostly = found.count(None) <= 0.1 * len(found)
    broken = any(value != int(value) for value in numbers)
    return "regression" if mostly and broken and (score or len(numbers) > 10) else "single"


def _label(value: Any, kind: str, options: ReadOptions) -> tuple[str | float | tuple[str, ...] | None, str | None]:
    """A cell as a label, or what is wrong with it."""
    if isinstance(value, str):
        value = whole(value).strip()
    if kind == "multi" and (value is not None or options.labelled):
        return _several(value, options)
    if value is None or value == "":
        return None, "the label is missing; write one" if options.labelled else None
    if kind == "regression":
        found = number(value)
        return found, f"the label {value!r:.40} is not a number; write one" if found is None else None
    if isinstance(value, bool):
        return str(value).lower(), None
    if not isinstance(value, (str, int, float)):
        return None, f"the label is a {type(value).__name__}; write a text or a number"
    return str(value), None


def _several(value: Any, options: ReadOptions) -> tuple[tuple[str, ...] | None, str | None]:
    if value is None:
        return None, "the label is missing; write [] for none"
    parts = value.split(options.separator) if isinstance(value, str) and options.separator is not None else value
    parts = list(parts) if isinstance(parts, (list, tuple)) else [parts]
    if not all(isinstance(part, (str, int, float)) for part in parts):
        return None, "a label is neither text nor number; write a list of names"
    return tuple(dict.fromkeys(name for part in parts if (name := whole(str(part)).strip()))), None
