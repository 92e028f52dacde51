"""Tables of texts: csv, tsv, JSONL, Parquet, and the original GLUE files → `TextExample`s and `RewriteExample`s.

In: a `LabelledFile`. Out: for each row its line, and its example or its problem. Imports `labelled_files.py`.

In tsv a quote is an ordinary character, as in GLUE; in csv it encloses cells. Columns are found by the options, then by
well-known names, then by their cells: labels repeat, texts are long and distinct.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError, nearest, type_with_article
from albertkit.tasks.examples import RewriteExample, TextExample, text_problem
from albertkit.tasks.readers.json_files import Rows
from albertkit.tasks.readers.labelled_files import LabelledFile, ReadOptions, Row, clean, count_noun, list_names
from albertkit.tasks.readers.tagged_files import PREFIXED_TAG

PAIRS = (
    ("sentence1", "sentence2"),
    ("#1 string", "#2 string"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
    ("query", "passage"),
    ("query", "document"),
    ("query", "title"),
)
TEXTS = (
    *("sentence", "text", "review", "content", "comment", "utterance", "query", "question", "description", "title"),
    *("text_a", "sentence1", "文本", "内容", "评论", "句子"),
)
SOURCE_TARGET = (
    ("source", "target"),
    ("src", "tgt"),
    ("input", "output"),
    ("document", "summary"),
    ("article", "summary"),
    ("article", "highlights"),
    ("text", "summary"),
    ("context", "question"),
    ("passage", "question"),
    ("question", "answer"),
    ("原文", "摘要"),
)
SCORES = ("score", "similarity", "similarity_score", "relatedness_score")
LABELS = (
    *("label", "labels", "gold_label", "quality", "is_duplicate", *SCORES, "class", "category", "intent", "sentiment"),
    *("target", "rating", "stars", "class index", "标签", "类别"),
)
ID_NAMES = {"index", "id", "idx", "guid", "uid", "编号"}
KNOWN = {*(name for pair in (*PAIRS, *SOURCE_TARGET) for name in pair), *TEXTS, *LABELS, *ID_NAMES}
SAMPLE = 2000  # rows from which the roles of columns are guessed
TEXT_ROLES = {"text": "text", "pair": "second text", "label": "label"}
REWRITE_ROLES = {"text": "source", "label": "target"}

Roles = dict[str, int]  # the column of text, pair and label, from 0, if it exists


@dataclass
class Table:
    """Rows of equal width, and the names of the columns, if any."""

    path: Path
    names: list[str] | None
    rows: list[Row]

    @property
    def width(self) -> int:
        """Number of columns."""
        if self.names is not None:
            return len(self.names)
        return len(self.rows[0][1]) if self.rows else 0

    @property
    def places(self) -> dict[str, int]:
        """The first column of each name, in lower case."""
        return {name.casefold(): place for place, name in reversed(list(enumerate(self.names or [])))}

    def title(self, column: int) -> str:
        """The name of a column in messages: 1 'text'."""
        return f"{column + 1} {self.names[column]!r}" if self.names is not None else str(column + 1)

    @property
    def titles(self) -> str:
        """The names of all columns in messages."""
        return list_names(map(self.title, range(self.width)))


def read_texts(file: LabelledFile, needs_pair: bool = False) -> Rows:
    """The rows of a table as texts or pairs. needs_pair: whether a table of single texts is an error."""
    table, options = read_table(file), file.options
    if not table.rows:
        return
    file.problems.needs_label = not (needs_pair and has_only_pairs(table, options))
    roles = find_roles(table, options, needs_pair, file.problems.needs_label)
    text, pair, label = roles["text"], roles.get("pair"), roles.get("label")
    file.notes.append(_roles_note(table, roles, TEXT_ROLES))
    if needs_pair and label is None:
        file.notes.append("there is no label column, so every pair matches (pass --label-column to name one)")
    labels = [None if label is None else clean(row[label]) for _, row in table.rows]
    is_score = label is not None and table.names is not None and table.names[label].casefold() in SCORES
    kind = _label_kind(labels, options, is_score)
    if kind == "single" and options.kind == "auto":
        _check_decimal_commas(table, labels)
    if kind == "regression" and options.kind == "auto":
        file.notes.append("the labels are numbers, so this is a regression (for classes, pass --kind single)")
    for (line, row), cell in zip(table.rows, labels, strict=True):
        second = None if pair is None else clean(row[pair])
        problem = None if pair is None else text_problem(second, "second text")
        problem = problem or _label_problem(cell, kind)
        if problem:
            yield line, problem
        else:
            parsed = _parse_label(cell, kind, options.separator)
            yield line, TextExample(clean(row[text]), second, parsed, f"{file.path}:{line}")


def read_rewrites(file: LabelledFile) -> Rows:
    """The rows of a table as sources (the text column) and targets (the label column)."""
    table = read_table(file)
    if not table.rows:
        return
    roles = find_source_and_target(table, file.options)
    file.notes.append(_roles_note(table, roles, REWRITE_ROLES))
    for line, row in table.rows:
        source, target = row[roles["text"]], row[roles["label"]]
        yield line, RewriteExample(clean(source), clean(target), f"{file.path}:{line}")


# Columns -------------------------------------------------------------------------------------------------------------


def find_roles(table: Table, options: ReadOptions, needs_pair: bool, needs_label: bool) -> Roles:
    """The columns to use. needs_pair: whether there must be a second text."""
    roles = _given_roles(table, options)
    _add_by_name(table, roles, needs_pair)
    if "text" not in roles or (needs_label and "label" not in roles):
        guess = _guess_by_content(table, roles, needs_label)
        if table.names is None or len(guess) == table.width:
            roles = guess  # a guess must use all named columns
    needed = {"text": True, "pair": needs_pair, "label": needs_label}
    _check_roles(table, roles, {role: name for role, name in TEXT_ROLES.items() if needed[role]})
    _check_unique(table, roles, options)
    return roles


def find_source_and_target(table: Table, options: ReadOptions) -> Roles:
    """The columns of source and target: from the options, by well-known names, or the first and second of two."""
    roles, places = _given_roles(table, options), table.places
    pairs = [names for names in SOURCE_TARGET if names[0] in places and names[1] in places]
    if not roles and pairs:
        roles = {"text": places[pairs[0][0]], "label": places[pairs[0][1]]}
    if table.width == 2:
        free = [column for column in (0, 1) if column not in roles.values()]
        roles |= zip([role for role in REWRITE_ROLES if role not in roles], free, strict=False)
    _check_roles(table, roles, REWRITE_ROLES)
    _check_unique(table, roles, options)
    return roles


def has_only_pairs(table: Table, options: ReadOptions) -> bool:
    """Whether a table of pairs has no label: two columns, or options for both texts and no column name of a label."""
    if options.label_column is not None:
        return False
    has_label_name = any(name.casefold() in LABELS for name in table.names or ())
    return table.width == 2 or (
        options.text_column is not None and options.pair_column is not None and not has_label_name
    )


def _given_roles(table: Table, options: ReadOptions) -> Roles:
    """The columns in the options, by name or by number from 1."""
    roles = {}
    for role in TEXT_ROLES:
        column, names = getattr(options, f"{role}_column"), table.names or []
        if column is None:
            continue
        number = int(column) - 1 if isinstance(column, int) or column.isdecimal() else -1
        if column in names:
            roles[role] = names.index(column)
        elif str(column).casefold() in table.places:
            roles[role] = table.places[str(column).casefold()]
        elif 0 <= number < table.width:
            roles[role] = number
        else:
            raise AlbertkitError(
                f"{table.path} has no column {column!r}{nearest(str(column), names)}; it has {table.titles}. "
                f"Pass one of these names, or a number from 1 (--{role}-column)."
            )
    return roles


def _check_roles(table: Table, roles: Roles, needed: dict[str, str]) -> None:
    """Raise an error for a missing role, and for two roles of one column. needed: the roles and their names."""
    missing = [role for role in needed if role not in roles]
    if missing:
        names = " and the ".join(needed[role] for role in missing)
        raise AlbertkitError(
            f"it is not clear which column of {table.path} contains the {names}; it has {table.titles}. "
            f"Name the column ({', '.join(f'--{role}-column' for role in missing)})."
        )
    if len(set(roles.values())) < len(roles):
        raise AlbertkitError(
            f"one column of {table.path} has two roles; the file has {table.titles}. "
            "Name different columns (--text-column, --pair-column, --label-column)."
        )


def _check_unique(table: Table, roles: Roles, options: ReadOptions) -> None:
    """Raise if a role was found by a name that several columns have."""
    for role, column in roles.items():
        passed = getattr(options, f"{role}_column")
        if table.names is None or isinstance(passed, int) or (passed or "").isdecimal():
            continue
        name = table.names[column]
        same = [table.title(i) for i, other in enumerate(table.names) if other.casefold() == name.casefold()]
        if len(same) > 1 and (passed != name or table.names.count(name) > 1):
            raise AlbertkitError(
                f"{len(same)} columns of {table.path} have the same name: {list_names(same)}. "
                f"Pass the number of one of them (--{role}-column {column + 1})."
            )


def _roles_note(table: Table, roles: Roles, names: dict[str, str]) -> str:
    return ", ".join(f"{name} in column {table.title(roles[role])}" for role, name in names.items() if role in roles)


def _add_by_name(table: Table, roles: Roles, needs_pair: bool) -> None:
    """Assign roles by well-known names; no second text if the options name only the first."""
    places = table.places
    if "label" not in roles:
        _add_first(roles, "label", LABELS, places)
    if "pair" not in roles and (needs_pair or "text" not in roles):
        for first, second in PAIRS:
            if first not in places or second not in places:
                continue
            text, pair = places[first], places[second]
            if roles.get("label") not in (text, pair) and roles.get("text", text) == text:
                roles["text"], roles["pair"] = text, pair
                return
    if "text" not in roles:
        _add_first(roles, "text", TEXTS, places)


def _add_first(roles: Roles, role: str, names: Sequence[str], places: dict[str, int]) -> None:
    free = [places[name] for name in names if name in places and places[name] not in roles.values()]
    if free:
        roles[role] = free[0]


def _guess_by_content(table: Table, roles: Roles, needs_label: bool) -> Roles:
    """The roles, with the missing ones guessed from the cells."""
    rows = table.rows[:SAMPLE]
    columns = [["" if row[i] is None else str(row[i]).strip() for _, row in rows] for i in range(table.width)]
    if len(columns) == 4 and set(columns[1]) <= {"0", "1"} and set(columns[2]) <= {"", "*"}:  # CoLA
        return {"label": 1, "text": 3} | roles
    roles = dict(roles)
    if "label" not in roles and needs_label:
        ids = [i for i, name in enumerate(table.names or ()) if name.casefold() in ID_NAMES]
        label = _guess_label(columns, excluded=[*roles.values(), *ids])
        roles |= {} if label is None else {"label": label}
    if "text" not in roles:
        texts = _guess_texts(columns, excluded=[*roles.values()])
        if len(texts) == 1:
            roles["text"] = texts[0]
        elif len(texts) == 2 and "pair" not in roles:
            roles["text"], roles["pair"] = texts
    return roles


def _guess_label(columns: Sequence[Sequence[str]], excluded: Sequence[int]) -> int | None:
    """The column with the fewest values, of those without an empty cell; None if there is no such column."""
    distinct = [len(set(column)) for column in columns]
    full = [i for i, column in enumerate(columns) if "" not in column and i not in excluded]
    repeated = [i for i in full if 1 < distinct[i] <= len(columns[i]) / 2]
    return min(repeated or full, key=lambda i: (distinct[i], sum(map(len, columns[i])), -i), default=None)


def _guess_texts(columns: Sequence[Sequence[str]], excluded: Sequence[int]) -> list[int]:
    """The columns of texts: not only numbers, mostly distinct, and at least a quarter as long as the longest."""
    texts = [i for i in range(len(columns)) if i not in excluded]
    texts = [i for i in texts if any(parse_number(cell) is None for cell in columns[i])]
    texts = [i for i in texts if len(set(columns[i])) > len(columns[i]) / 2 or len(columns[i]) < 10]
    length = {i: sum(map(len, columns[i])) for i in texts}
    return [i for i in texts if length[i] >= max(length.values()) / 4]


# Files → tables ------------------------------------------------------------------------------------------------------


def read_table(file: LabelledFile) -> Table:
    """Any table, all rows of one width."""
    if file.format == "parquet":
        return Table(file.path, *file.parquet_columns())
    if file.is_json:  # missing fields are None
        objects = list(file.objects())
        names = list(dict.fromkeys(name for _, row in objects[:SAMPLE] for name in row))
        return Table(file.path, names, [(line, [row.get(name) for name in names]) for line, row in objects])
    if file.format in ("csv", "tsv"):
        return _cell_table(file)
    _check_not_tagged(file.path, [line.rpartition(" ")[2] for _, line in file.lines() if line.strip()])
    raise AlbertkitError(
        f"the format of {file.path} is not clear from its name or first line. Pass --format (csv, tsv, jsonl …)."
    )


def _cell_table(file: LabelledFile) -> Table:
    """Lines of cells as a table; the header, or else most rows, determines the number of cells."""
    rows = list(file.cells())
    header = file.options.header == "yes" or (file.options.header == "auto" and has_header(rows, file.options))
    names = [cell.strip() for cell in rows.pop(0)[1]] if header and rows else None
    widths = Counter(len(cells) for _, cells in rows).most_common(1)
    width = len(names) if names is not None else widths[0][0] if widths else 0
    is_csv = file.format == "csv"
    remedy_for_more = "quote a cell that contains the delimiter" if is_csv else "a text cannot contain the delimiter"
    fewer = f"write all {width}, with {'the delimiter' if is_csv else 'a tab'} between them"
    expected = "the header has" if header else "most rows have"
    for line, cells in rows:
        if len(cells) != width:
            remedy = fewer if len(cells) < width else remedy_for_more
            file.problems.add(line, f"{count_noun(len(cells), 'cell')} where {expected} {width}; {remedy}")
    table = Table(file.path, names, [row for row in rows if len(row[1]) == width])
    _check_not_tagged(file.path, [cells[-1].strip() for _, cells in table.rows])
    if not is_csv:
        file.notes.extend(_quote_notes(table))
    return table


def _check_not_tagged(path: Path, last_cells: Sequence[str]) -> None:
    """Raise if the last cells are tags of words, as in a CoNLL file."""
    tags = set(last_cells)
    prefixed = sorted(tag for tag in tags if PREFIXED_TAG.fullmatch(tag))
    if prefixed and "O" in tags and len(tags) == len(prefixed) + 1:
        raise AlbertkitError(
            f"{path} contains words with tags such as {prefixed[0]!r:.40}, but this task reads texts. Use the task tag "
            "(albertkit finetune tag), or pass a table of texts."
        )


def _quote_notes(table: Table) -> Iterator[str]:
    """A note on each column of a tsv file in which most cells are in quotes."""
    for column in range(table.width):
        cells = [row[column].strip() for _, row in table.rows]
        if 2 * sum(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells) > len(cells):
            yield (
                f"most cells of column {table.title(column)} are in double quotes, which are part of the text in tsv; "
                "remove them, or save the file as .csv"
            )


def parse_number(value: object) -> float | None:
    """A finite number, or the number in a text."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def has_header(rows: Sequence[Row], options: ReadOptions) -> bool:
    """Whether the first row names the columns: it contains a well-known name, or differs from all rows below it."""
    passed = (options.text_column, options.pair_column, options.label_column)
    if any(isinstance(column, str) and not column.isdigit() for column in passed):
        return True
    if not rows:
        return False
    first, below = [cell.strip() for cell in rows[0][1]], [cells for _, cells in rows[1 : SAMPLE + 1]]
    below = [cells for cells in below if len(cells) == len(first)]
    pairs = [(cell, [cells[i].strip() for cells in below]) for i, cell in enumerate(first)]
    if any(cell.casefold() in KNOWN and cell not in column for cell, column in pairs):
        return True
    if len(below) < 2 or len(set(first)) < len(first) or not all(0 < len(cell) <= 40 for cell in first):
        return False
    return any(_differs(cell, column) for cell, column in pairs)


def _differs(cell: str, column: Sequence[str]) -> bool:
    """Whether a cell is of another type than those of a column: not a number, or not one of a few classes."""
    is_above_numbers = parse_number(cell) is None and all(parse_number(other) is not None for other in column)
    return is_above_numbers or (len(column) >= 10 and cell not in column and len(set(column)) <= len(column) // 5)


# Cells → labels ------------------------------------------------------------------------------------------------------


def _label_kind(cells: Sequence[Any], options: ReadOptions, is_score: bool) -> str:
    """The kind of labels: a regression if some are fractions, and many differ or the column is a score."""
    if options.kind != "auto":
        return options.kind
    if options.separator is not None or any(isinstance(cell, (list, tuple)) for cell in cells):
        return "multi"
    values = [parse_number(cell) for cell in cells if cell is not None and cell != ""]
    numbers = {value for value in values if value is not None}
    mostly_numbers = values.count(None) <= 0.1 * len(values)
    has_fractions = any(value != int(value) for value in numbers)
    return "regression" if mostly_numbers and has_fractions and (is_score or len(numbers) > 10) else "single"


def _check_decimal_commas(table: Table, cells: Sequence[Any]) -> None:
    """Raise if all labels are numbers, some with a comma: scores as spreadsheets of many languages write them."""
    texts = [str(cell) for cell in cells if cell is not None and cell != ""]
    comma = next((text for text in texts if "," in text), None)
    if comma is not None and all(parse_number(text.replace(",", ".")) is not None for text in texts):
        raise AlbertkitError(
            f"{table.path} has labels with a comma, such as {comma!r:.40}. Write "
            f"{comma.replace(',', '.')!r:.40}, or pass --separator , for several classes, or --kind single for one."
        )


def _label_problem(cell: Any, kind: str) -> str | None:
    """The problem of a label cell; an empty cell has none."""
    if cell is None or cell == "":
        return None
    parts = cell if kind == "multi" and isinstance(cell, list | tuple) else [cell]
    odd = [part for part in parts if not isinstance(part, str | int | float)]
    if odd:
        return f"the label is {type_with_article(odd[0])}; write a text or a number"
    if kind == "regression" and parse_number(cell) is None:
        return f"the label {cell!r:.40} is not a number; write one"
    return None


def _parse_label(cell: Any, kind: str, separator: str | None) -> str | float | tuple[str, ...] | None:
    """A cell without problems as a label; None if it is missing."""
    if kind == "multi" and cell is not None:
        parts = cell.split(separator) if isinstance(cell, str) and separator is not None else cell
        parts = parts if isinstance(parts, list | tuple) else [parts]
        return tuple(dict.fromkeys(name for part in parts if (name := str(part).strip())))
    if cell is None or cell == "":
        return None
    if kind == "regression":
        return parse_number(cell)
    return str(cell).lower() if isinstance(cell, bool) else str(cell)
