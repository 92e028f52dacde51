"""Which column of a table contains the text, the second text and the label.

In: a `Table`. Out: `ColumnRoles`. Before this file: `tables.py` reads the table; after it, `tables.py` makes examples.

The options come first, then well-known names, then the cells: labels repeat, texts are long and differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from albertkit.errors import AlbertkitError, nearest
from albertkit.tasks.readers.labelled_files import ReadOptions, list_names

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

Row = tuple[int, list[Any]]  # line, cells


@dataclass
class Table:
    """Rows of equal width, and the names of the columns where there are any."""

    name: str
    rows: list[Row]
    names: list[str] | None

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.names) if self.names is not None else len(self.rows[0][1]) if self.rows else 0

    def title(self, column: int) -> str:
        """A column in messages: 1 'text'."""
        return f"{column + 1} {self.names[column]!r}" if self.names is not None else str(column + 1)

    @property
    def titles(self) -> str:
        """All columns in messages."""
        return list_names(map(self.title, range(self.width)))


@dataclass
class ColumnRoles:
    """The column of each role, from 0."""

    text: int | None
    pair: int | None
    label: int | None


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
    columns_given = (options.text_column, options.pair_column, options.label_column)
    if any(isinstance(column, str) and not column.isdigit() for column in columns_given):
        return True
    if not rows:
        return False
    first, below = [cell.strip() for cell in rows[0][1]], [cells for _, cells in rows[1 : SAMPLE + 1]]
    below = [cells for cells in below if len(cells) == len(first)]
    columns = [[cells[i].strip() for cells in below] for i in range(len(first))]
    if any(cell.casefold() in KNOWN and cell not in column for cell, column in zip(first, columns, strict=True)):
        return True
    if len(below) < 2 or len(set(first)) < len(first) or not all(0 < len(cell) <= 40 for cell in first):
        return False
    for cell, column in zip(first, columns, strict=True):
        if parse_number(cell) is None and all(parse_number(other) is not None for other in column):
            return True
        if len(below) >= 10 and cell not in column and len(set(column)) <= len(below) // 5:
            return True
    return False


def find_roles(table: Table, options: ReadOptions, needs_pair: bool = False) -> ColumnRoles:
    """The columns to use. needs_pair: whether there must be a second text."""
    roles = ColumnRoles(
        *(find_column(table, role, getattr(options, f"{role}_column")) for role in ("text", "pair", "label"))
    )
    _fill_by_name(table, roles, needs_pair)
    if roles.text is None or (roles.label is None and options.labelled):
        guess = replace(roles)
        _fill_by_content(table, guess, options)
        if table.names is None or table.width == sum(column is not None for column in vars(guess).values()):
            roles = guess  # if columns have names, a guess must use all of them
    needed = {"text": True, "pair": needs_pair, "label": options.labelled}
    missing = [role for role, found in vars(roles).items() if found is None and needed[role]]
    if missing:
        what = " and the ".join("second text" if role == "pair" else role for role in missing)
        flags = ", ".join(f"--{role}-column" for role in missing)
        raise AlbertkitError(
            f"it is not clear which column of {table.name} contains the {what}; it has {table.titles}: "
            f"name it ({flags})"
        )
    used = [column for column in vars(roles).values() if column is not None]
    if len(set(used)) < len(used):
        raise AlbertkitError(
            f"one column of {table.name} cannot be two things; it has {table.titles}: name others (--text-column …)"
        )
    return roles


def has_only_pairs(table: Table, options: ReadOptions) -> bool:
    """Whether a table of pairs has no label: two columns, or both texts given and no column named like a label."""
    if options.label_column is not None:
        return False
    has_label_name = any(name.casefold() in LABELS for name in table.names or ())
    return table.width == 2 or (
        options.text_column is not None and options.pair_column is not None and not has_label_name
    )


def find_column(table: Table, role: str, column: str | int | None) -> int | None:
    """The index of a column given by name or number."""
    if column is None:
        return None
    names = table.names or []
    lower = [name.casefold() for name in names]
    if isinstance(column, str):
        if column in names:
            return names.index(column)
        if column.casefold() in lower:
            return lower.index(column.casefold())
    if (isinstance(column, int) or column.isdecimal()) and 1 <= int(column) <= table.width:
        return int(column) - 1
    raise AlbertkitError(
        f"{table.name} has no column {column!r}{nearest(str(column), names)}; it has {table.titles}: "
        f"name one, or give its number from 1 (--{role}-column)"
    )


def _fill_by_name(table: Table, roles: ColumnRoles, needs_pair: bool) -> None:
    """Fill in roles by well-known names; no second text if only the first one is given."""
    places: dict[str, int] = {}
    for place, name in enumerate(table.names or []):
        places.setdefault(name.casefold(), place)
    if roles.label is None:
        taken = (roles.text, roles.pair)
        roles.label = next((places[n] for n in LABELS if n in places and places[n] not in taken), None)
    if roles.pair is None and (needs_pair or roles.text is None):
        for one, other in PAIRS:
            both = places.get(one), places.get(other)
            if None not in both and roles.label not in both and roles.text in (None, both[0]):
                roles.text, roles.pair = both
                return
    if roles.text is None:
        taken = (roles.label, roles.pair)
        roles.text = next((places[n] for n in TEXTS if n in places and places[n] not in taken), None)


def _fill_by_content(table: Table, roles: ColumnRoles, options: ReadOptions) -> None:
    """Fill in the other roles by the cells."""
    rows = table.rows[:SAMPLE]
    columns = [["" if row[i] is None else str(row[i]).strip() for _, row in rows] for i in range(table.width)]
    if len(columns) == 4 and set(columns[1]) <= {"0", "1"} and set(columns[2]) <= {"", "*"}:  # CoLA
        roles.label = 1 if roles.label is None else roles.label
        roles.text = 3 if roles.text is None else roles.text
        return
    distinct = [len(set(column)) for column in columns]
    length = [sum(map(len, column)) for column in columns]
    indexes = range(len(columns))
    if roles.label is None and options.labelled:
        full = [i for i in indexes if "" not in columns[i] and i not in (roles.text, roles.pair)]
        full = [i for i in full if table.names is None or table.names[i].casefold() not in ID_NAMES]
        repeated = [i for i in full if 1 < distinct[i] <= len(rows) / 2]
        roles.label = min(repeated or full, key=lambda i: (distinct[i], length[i], -i), default=None)
    if roles.text is None:
        texts = [i for i in indexes if i not in (roles.label, roles.pair)]
        texts = [i for i in texts if any(parse_number(cell) is None for cell in columns[i])]
        texts = [i for i in texts if distinct[i] > len(rows) / 2 or len(rows) < 10]
        texts = [i for i in texts if length[i] >= max(length[j] for j in texts) / 4]
        if len(texts) == 1:
            roles.text = texts[0]
        elif len(texts) == 2 and roles.pair is None:
            roles.text, roles.pair = texts
