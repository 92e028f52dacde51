"""Output of commands: JSON lines, aligned tables, notes, progress bars.

In: results. Out: text on stdout, notes and progress on stderr. Colour and progress bars appear on a terminal only;
click removes the colour in a pipe. Wide characters count as two columns. Control characters of texts, labels and names
are printed as escapes; only `style` and `show_status` send sequences to a terminal.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from albertkit.printable import escape_controls, escape_json

T = TypeVar("T")
JsonValue = Any  # a dict, list, str, number, bool or None
MARK = os.urandom(16).hex()  # stands for ESC in styled text; random, so that no text can contain it


def echo(text: str, err: bool = False) -> None:
    """Print lines with control characters as escapes, to stdout or stderr."""
    click.echo(_render(text), err=err)


def echo_line(*lines: str) -> None:
    """Lines on stderr, whatever they quote."""
    click.echo("\n".join(escape_controls(line, keep="") for line in lines), err=True)


def style(text: str, *, bold: bool | None = None, dim: bool | None = None, fg: str | None = None) -> str:
    """One line in a style, for `echo`."""
    return click.style(escape_controls(text, keep=""), bold=bold, dim=dim, fg=fg).replace("\x1b", MARK)


def _render(text: str) -> str:
    """The text for a terminal: escapes for control characters, then the sequences of `style`."""
    return escape_controls(text).replace(MARK, "\x1b")


def to_json(value: object) -> JsonValue:
    """A result as plain lists and dicts, including the depth of an early exit."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        depth = getattr(value, "depth", None)
        return fields if depth is None else {**fields, "depth": depth}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return value


def print_json(value: object) -> None:
    """One JSON value, on one line."""
    echo_json(json.dumps(to_json(value), ensure_ascii=False))


def echo_json(text: str) -> None:
    """Print a JSON value with control characters as JSON escapes."""
    click.echo(escape_json(text))


def print_result(as_json: bool, value: object, *lines: str) -> None:
    """Print a result as JSON or as readable lines."""
    if as_json:
        print_json(value)
        return
    for line in lines:
        echo(line)


def round_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in metrics.items()}


def display_width(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters take two, combining marks none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def pad(text: str, width: int, right: bool = False) -> str:
    """A text padded with spaces to a display width."""
    spaces = " " * (width - display_width(text))
    return spaces + text if right else text + spaces


def shorten(text: str, width: int) -> str:
    """A text on one line of at most `width` columns, with an ellipsis where it was cut."""
    line = escape_controls(" ".join(text.split()))
    if display_width(line) <= width:
        return line
    while display_width(line) > width - 1:
        line = line[:-1]
    return line + "…"


def format_table(rows: Iterable[Sequence[str]], header: Sequence[str] = (), indent: int = 0) -> str:
    """Rows in aligned columns; columns of numbers are aligned to the right."""
    cells = [[escape_controls(cell, keep="") for cell in row] for row in ([header] if header else []) + list(rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(display_width, column)) for column in columns]
    numeric = [all(not c or c.lstrip("+-−")[:1].isdigit() for c in column[bool(header) :]) for column in columns]
    lines = ["  ".join(pad(*cell) for cell in zip(row, widths, numeric, strict=True)).rstrip() for row in cells]
    if header:
        lines[0] = style(lines[0], bold=True)
    return "\n".join(" " * indent + line for line in lines)


def format_properties(title: str, values: dict[str, Any]) -> str:
    """A titled list of names and values."""
    rows = [(name, format_value(value)) for name, value in values.items()]
    return f"\n{style(title, bold=True)}\n{format_table(rows, indent=2)}"


def format_value(value: object) -> str:
    """A value in one short line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)


def format_megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB"


def note(text: str) -> None:
    """A remark on stderr."""
    echo_line(f"note: {text}")


def log(text: str) -> None:
    """A line on stderr, printed above a progress bar."""
    from tqdm import tqdm

    tqdm.write(_render(text), file=sys.stderr)


def show_status(text: str) -> None:
    """The status of a long step: one line on stderr that the next status replaces, on a terminal only."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{escape_controls(text, keep='')}", err=True, nl=False)


def track_progress(items: Iterable[T], unit: str) -> Iterable[T]:
    """Items with a progress bar on stderr, on a terminal only."""
    from tqdm import tqdm

    bar: Iterable[T] = tqdm(items, unit=f" {unit}", disable=not sys.stderr.isatty(), leave=False)
    return bar


@contextmanager
def stage_progress_bar(unit: str = "") -> Iterator[Callable[..., None]]:
    """A function (stage, done, total, tokens=0) that updates a progress bar; each stage restarts the bar."""
    from tqdm import tqdm

    bar = tqdm(unit=unit, unit_scale=True, disable=not sys.stderr.isatty(), leave=False)
    stages: set[str] = set()

    def update(stage: str, done: int, total: int, tokens: int = 0) -> None:
        if bar.disable:
            return
        if stage not in stages:
            stages.add(stage)
            bar.reset(total or None)
            bar.set_description(stage)
            bar.initial = bar.n = done
        if tokens:
            bar.set_postfix_str(f"{tokens / 1e6:,.1f} M tokens", refresh=False)
        bar.update(done - bar.n)

    with bar:
        yield update
