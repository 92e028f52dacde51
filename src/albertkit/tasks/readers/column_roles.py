"""A table → which of its columns holds the text, the second text and the label.

In: a `Table`. Out: `Roles`. Before this file: `tables.py` loads the table; after it, `tables.py` makes examples.

First what the options say, then well-known names, then what the cells look like: labels repeat, texts are long and differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from albertkit.errors import AlbertkitError, nearest
from albertkit.tasks.readers.labelled_files import ReadOptions, told

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
WRITTEN = (  # a text, and what is to be written from it
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
NUMBERS = {"index", "id", "idx", "guid", "uid", "编号"}  # columns that only count
KNOWN = {*(name for pair in (*PAIRS, *WRITTEN) for name in pair), *TEXTS, *LABELS, *NUMBERS}
SAMPLE = 2000  # rows looked at to tell what a column holds

Row = tuple[int, list[Any]]  # line, cells


@dataclass
class Table:
    """Rows of equal width, and the names of the columns where there are any."""

    name: str
    rows: list[Row]
    names: list[str] | None

    @property
    def width(self) -> int:
        """Columns."""
        return len(self.names) if self.names is not None else len(self.rows[0][1]) if self.rows else 0

    def title(self, column: int) -> str:
        """A column for people: 1 'text'."""
        return f"{column + 1} {self.names[column]!r}" if self.names is not None else str(column + 1)

    @property
    def titles(self) -> str:
        """All columns for people."""
        return told(map(self.title, range(self.width)))


@dataclass
class Roles:
    """Which column holds what, counted from 0."""

    text: int | None
    pair: int | None
    label: int | None


def number(value: Any) -> float | None:
    """A finite number, or a text that is one."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def has_header(rows: Sequence[Row], options: ReadOptions) -> bool:
    """Whether the first row names the columns: it holds a well-known name, or differs from all rows below it."""
    asked = (options.text_column, options.pair_column, options.label_column)
    if any(isinstance(column, str) and not column.isdigit() for column in asked):
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
        if number(cell) is None and all(number(other) is not None for other in column):
            return True
        if len(below) >= 10 and cell not in column and len(set(column)) <= len(below) // 5:
            return True
    return False


def find_roles(table: Table, options: ReadOptions, paired: bool = False) -> Roles:
    """Which columns to use; with `paired`, there must be a second text."""
    roles = Roles(*(asked(table, role, getattr(options, f"{role}_column")) for role in ("text", "pair", "label")))
    _by_name(table, roles, paired)
    if roles.text is None or (roles.label is None and options.labelled):
        guess = replace(roles)
        _by_content(table, guess, options)
        if table.names is None or table.width == sum(column is not None for column in vars(guess).values()):
            roles = guess  # where columns have names, a guess must leave none over
    needed = {"text": True, "pair": paired, "label": options.labelled}
    lacking = [role for role, found in vars(roles).items() if found is None and needed[role]]
    if lacking:
        what = " and the ".join("second text" if role == "pair" else role for role in lacking)
        flags = ", ".join(f"--{role}-column" for role in lacking)
        raise AlbertkitError(
            f"it is not clear which column of {table.name} holds the {what}; it has {table.titles}: name it ({flags})"
        )
    used = [column for column in vars(roles).values() if column is not None]
    if len(set(used)) < len(used):
        raise AlbertkitError(
            f"one column of {table.name} cannot be two things; it has {table.titles}: name others (--text-column …)"
        )
    return roles


def only_pairs(table: Table, options: ReadOptions) -> bool:
    """Whether a table of pairs has no label: it has two columns, or both texts were asked for and nothing is called a label."""
    if options.label_column is not None:
        return False
    named = any(name.casefold() in LABELS for name in table.names or ())
    return table.width == 2 or (options.text_column is not None and options.pair_column is not None and not named)


def asked(table: Table, role: str, column: str | int | None) -> int | None:
    """The place of a column that was named or numbered."""
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


def _by_name(table: Table, roles: Roles, paired: bool) -> None:
    """Fill in what well-known names tell. A second text is not looked for where only the first was asked for."""
    places: dict[str, int] = {}
    for place, name in enumerate(table.names or []):
        places.setdefault(name.casefold(), place)
    if roles.label is None:
        taken = (roles.text, roles.pair)
        roles.label = next((places[n] for n in LABELS if n in places and places[n] not in taken), None)
    if roles.pair is None and (paired or roles.text is None):
        for one, other in PAIRS:
            both = places.get(one), places.get(other)
            if None not in both and roles.label not in both and roles.text in (None, both[0]):
                roles.text, roles.pair = both
                return
    if roles.text is None:
        taken = (roles.label, roles.pair)
        roles.text = next((places[n] for n in TEXTS if n in places and places[n] not in taken), None)


def _by_content(table: Table, roles: Roles, options: ReadOptions) -> None:
    """Fill in what names did not tell."""
    rows = table.rows[:SAMPLE]
    columns = [["" if row[i] is None else str(row[i]).strip() for _, row in rows] for i in range(table.width)]
    if len(columns) == 4 and set(columns[1]) <= {"0", "1"} and set(columns[2]) <= {"", "*"}:  # CoLA
        roles.label = 1 if roles.label is None else roles.label
        roles.text = 3 if roles.text is None else roles.text
        return
    several = [len(set(column)) for column in columns]
    length = [sum(map(len, column)) for column in columns]
    everything = range(len(columns))
    if roles.label is None and options.labelled:
        full = [i for i in everything if "" not in columns[i] and i not in (roles.text, roles.pair)]
        full = [i for i in full if table.names is None or table.names[i].casefold() not in NUMBERS]
        repeated = [i for i in full if 1 < several[i] <= len(rows) / 2]
        roles.label = min(repeated or full, key=lambda i: (several[i], length[i], -i), default=None)
    if roles.text is None:
        texts = [i for i in everything if i not in (roles.label, roles.pair)]
        texts = [i for i in texts if any(number(cell) is None for cell in columns[i])]
        texts = [i for i in texts if several[i] > len(rows) / 2 or len(rows) < 10]
        texts = [i for i in texts if length[i] >= max(length[j] for j in texts) / 4]
        if len(texts) == 1:
            roles.text = texts[0]
        elif len(texts) == 2 and roles.pair is None:
            roles.text, roles.pair = texts
