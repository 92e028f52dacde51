"""Tables of texts: csv, tsv, JSONL, Parquet, and the GLUE files as they come → `TextExample`s and `RewriteExample`s.

In: a file and `ReadOptions`. Out: texts or pairs with labels, or sources with targets, and notes. Before this file:
`labelled_files.py` and `column_roles.py`; after it: `read_examples.py`.

In tsv a quote is a character like any other, as in GLUE; in csv it encloses cells.
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
from albertkit.tasks.examples import RewriteExample, TextExample
from albertkit.tasks.readers.column_roles import (
    SAMPLE,
    SCORES,
    SOURCE_TARGET,
    Row,
    Table,
    find_column,
    find_roles,
    has_header,
    has_only_pairs,
    parse_number,
)
from albertkit.tasks.readers.labelled_files import (
    FILE_LIMIT,
    Problems,
    ReadOptions,
    clean,
    count_noun,
    file_format,
    file_lines,
    find_file,
    json_objects,
    text_problem,
)
from albertkit.text_reader import open_parquet, open_raw

MAX_FIELDS = 256  # of JSON objects; later ones are ignored
SIMPLE_TYPES = ("string", "large_string", "int", "uint", "float", "double", "bool", "list<", "dictionary<")


def read_texts(
    path: Path, options: ReadOptions, problems: Problems, needs_pair: bool = False
) -> tuple[list[TextExample], list[str]]:
    """The rows of a table as examples, and notes. needs_pair: whether a table of single texts is an error."""
    table = read_table(path, options, problems)
    if not table.rows:
        return [], []
    if needs_pair and options.labelled and has_only_pairs(table, options):
        options = replace(options, labelled=False)
    roles = find_roles(table, options, needs_pair)
    notes = [", ".join(f"{role} in column {table.title(c)}" for role, c in vars(roles).items() if c is not None)]
    if needs_pair and roles.label is None:
        notes.append("there is no label, so every pair matches (--label-column names one)")
    assert roles.text is not None
    raw = [None if roles.label is None else row[roles.label] for _, row in table.rows]
    is_score = roles.label is not None and table.names is not None and table.names[roles.label].casefold() in SCORES
    kind = _label_kind(raw, options, is_score)
    if kind == "regression" and options.kind == "auto":
        notes.append("the labels are numbers, so this is a regression (--kind single makes them classes)")
    examples = []
    for (line, row), cell in zip(table.rows, raw, strict=True):
        text, pair = row[roles.text], None if roles.pair is None else row[roles.pair]
        problem = text_problem(text, "text") or (None if roles.pair is None else text_problem(pair, "second text"))
        label, label_problem = _parse_label(cell, kind, options)
        if problem or label_problem:
            problems.add(line, problem or label_problem or "")
        else:
            examples.append(TextExample(clean(text), None if pair is None else clean(pair), label, f"{path}:{line}"))
    return examples, notes


def read_rewrites(path: Path, options: ReadOptions, problems: Problems) -> tuple[list[RewriteExample], list[str]]:
    """The rows of a table as sources (the text column) and targets (the label column), and notes."""
    table = read_table(path, replace(options, kind="single"), problems)
    if not table.rows:
        return [], []
    source, target = source_and_target(table, options)
    note = f"source in column {table.title(source)}"
    if target is not None:
        note += f", target in column {table.title(target)}"
    examples = []
    for line, row in table.rows:
        written = None if target is None else row[target]
        problem = text_problem(row[source], "source")
        if written is not None or options.labelled:
            problem = problem or text_problem(written, "target")
        if problem:
            problems.add(line, problem)
        else:
            text = None if written is None else clean(written)
            examples.append(RewriteExample(clean(row[source]), text, f"{path}:{line}"))
    return examples, [note]


def source_and_target(table: Table, options: ReadOptions) -> tuple[int, int | None]:
    """The columns of source and target: as given, by well-known names, or the first and the second of two."""
    source = find_column(table, "text", options.text_column)
    target = find_column(table, "label", options.label_column)
    places = {name.casefold(): place for place, name in reversed(list(enumerate(table.names or [])))}
    for one, other in SOURCE_TARGET:
        if source is None and target is None and one in places and other in places:
            source, target = places[one], places[other]
    if table.width == 2 and (source is None or target is None):
        source = (0 if target is None else 1 - target) if source is None else source
        target = 1 - source
    if source is None and target is None and not options.labelled:
        names = [one for one, _ in SOURCE_TARGET if one in places]
        source = places[names[0]] if names else 0 if table.width == 1 else None
    if source is None or (target is None and options.labelled) or source == target:
        raise AlbertkitError(
            f"it is not clear which columns of {table.name} contain source and target; it has {table.titles}: "
            "name both (--text-column for the source, --label-column for the target)"
        )
    return source, target


# Files → tables ----------------------------------------------------------------------------------------------------


def read_table(path: Path, options: ReadOptions, problems: Problems) -> Table:
    """Any table, all rows of one width."""
    format = file_format(path, options)
    if format == "parquet":
        return _parquet_table(path)
    if format in ("jsonl", "json"):
        return _json_table(path, format, problems)
    if format in ("csv", "tsv"):
        return _cell_table(path, format, options, problems)
    raise AlbertkitError(
        f"the format of {path} is not clear from its name or first line. Name it (--format csv, tsv, jsonl …)."
    )


def _json_table(path: Path, format: str, problems: Problems) -> Table:
    """JSON objects as a table; missing fields are None."""
    rows = list(json_objects(path, format, problems))
    names = list(dict.fromkeys(name for _, row in rows[:SAMPLE] for name in row))[:MAX_FIELDS]
    return Table(str(path), [(line, [row.get(name) for name in names]) for line, row in rows], names)


def _cell_table(path: Path, format: str, options: ReadOptions, problems: Problems) -> Table:
    """Lines of cells as a table; the header, or else most rows, determines the number of cells."""
    rows = list(_rows_of_cells(path, format, options, problems))
    header = options.header == "yes" or (options.header == "auto" and has_header(rows, options))
    names = [cell.strip() for cell in rows.pop(0)[1]] if header and rows else None
    widths = Counter(len(cells) for _, cells in rows).most_common(1)
    width = len(names) if names is not None else widths[0][0] if widths else 0
    more = "quote a cell that contains the delimiter" if format == "csv" else "a text cannot contain the delimiter"
    fewer = f"write all {width}, with {'a tab' if format == 'tsv' else 'the delimiter'} between them"
    expected = "the header has" if header else "most rows have"
    for line, cells in rows:
        if len(cells) != width:
            remedy = fewer if len(cells) < width else more
            problems.add(line, f"{count_noun(len(cells), 'cell')} where {expected} {width}; {remedy}")
    return Table(str(path), [row for row in rows if len(row[1]) == width], names)


def _rows_of_cells(path: Path, format: str, options: ReadOptions, problems: Problems) -> Iterator[Row]:
    """Lines split into cells, without blank rows."""
    lines = file_lines(path, problems)
    first = next(lines, None)
    if first is None:
        return
    delimiter = options.delimiter or ("\t" if format == "tsv" else _csv_delimiter(first[1]))
    lines = chain([first], lines)
    has_quotes = format == "csv" if options.quotes is None else options.quotes
    plain = ((line, text.split(delimiter)) for line, text in lines)
    for line, cells in _quoted_rows(lines, delimiter, problems) if has_quotes else plain:
        if line not in problems.lines and any(cell.strip() for cell in cells):
            yield line, cells


def _csv_delimiter(line: str) -> str:
    """A comma, or a tab or semicolon, which spreadsheets of some countries write."""
    return next((mark for mark in "\t,;" if mark in line), ",")


def _quoted_rows(lines: Iterable[tuple[int, str]], delimiter: str, problems: Problems) -> Iterator[Row]:
    """Rows whose cells may be quoted, and then contain line breaks."""
    reader = csv.reader((text + "\n" for _, text in lines), delimiter=delimiter, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            place = f"from here to line {reader.line_num} ({error})"
            problems.add(start, f"the quotes are wrong {place}; double the quotes inside a quoted cell")
            continue
        if cells is None:
            return
        if any(line in problems.lines for line in range(start, reader.line_num + 1)):
            problems.lines.add(start)
        yield start, cells


def _parquet_table(path: Path) -> Table:
    rows: list[Row] = []
    size = 0
    with open_raw(find_file(path)) as raw, open_parquet(str(path), raw) as file:
        names = [f.name for f in file.schema_arrow if str(f.type).startswith(SIMPLE_TYPES)]
        for batch in file.iter_batches(batch_size=1024, columns=names, use_threads=False):
            size += batch.nbytes
            if size > FILE_LIMIT:
                raise AlbertkitError(f"{path} has over {FILE_LIMIT:,} bytes. Use a part of it.")
            columns = [column.to_pylist() for column in batch.columns]
            rows += [(i, list(cells)) for i, cells in enumerate(zip(*columns, strict=True), len(rows) + 1)]
    return Table(str(path), rows, names)


# Cells → labels ------------------------------------------------------------------------------------------------------


def _label_kind(cells: Sequence[Any], options: ReadOptions, is_score: bool) -> str:
    """What labels are: numbers are a regression if some are fractions, and many differ or the column is a score."""
    if options.kind != "auto":
        return options.kind
    if options.separator is not None or any(isinstance(cell, (list, tuple)) for cell in cells):
        return "multi"
    values = [parse_number(cell) for cell in cells if cell is not None and cell != ""]
    numbers = {value for value in values if value is not None}
    mostly_numbers = values.count(None) <= 0.1 * len(values)
    has_fractions = any(value != int(value) for value in numbers)
    return "regression" if mostly_numbers and has_fractions and (is_score or len(numbers) > 10) else "single"


def _parse_label(cell: Any, kind: str, options: ReadOptions) -> tuple[str | float | tuple[str, ...] | None, str | None]:
    """A cell as a label, and the problem with it."""
    if isinstance(cell, str):
        cell = clean(cell)
    if kind == "multi" and (cell is not None or options.labelled):
        return _parse_labels(cell, options)
    if cell is None or cell == "":
        return None, "the label is missing; write one" if options.labelled else None
    if kind == "regression":
        number = parse_number(cell)
        return number, f"the label {cell!r:.40} is not a number; write one" if number is None else None
    if isinstance(cell, bool):
        return str(cell).lower(), None
    if not isinstance(cell, (str, int, float)):
        return None, f"the label is a {type(cell).__name__}; write a text or a number"
    return str(cell), None


def _parse_labels(cell: Any, options: ReadOptions) -> tuple[tuple[str, ...] | None, str | None]:
    """A cell as several labels, and the problem with it."""
    if cell is None:
        return None, "the label is missing; write [] for none"
    parts = cell.split(options.separator) if isinstance(cell, str) and options.separator is not None else cell
    parts = list(parts) if isinstance(parts, (list, tuple)) else [parts]
    if not all(isinstance(part, (str, int, float)) for part in parts):
        return None, "a label is neither text nor number; write a list of names"
    return tuple(dict.fromkeys(name for part in parts if (name := clean(str(part))))), None
