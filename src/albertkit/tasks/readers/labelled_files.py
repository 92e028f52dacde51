"""Labelled files: lines, cells and JSON values, and a list of the problems in them.

In: a path and `ReadOptions`. Out: numbered lines or rows, and `Problems`, which become one error or one note.
`text_reader.py` opens files. `tables.py`, `tagged_files.py` and `json_files.py` build on this module.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError, check_choice, check_fields
from albertkit.options import setting
from albertkit.text_reader import (
    ENCODING_REMEDY,
    TextFile,
    content_suffix,
    find_text_files,
    open_parquet,
    open_raw,
    open_text_file,
    remove_bom,
    replace_surrogates,
)

Row = tuple[int, list[Any]]  # line, cells
FORMATS = ("auto", "csv", "tsv", "jsonl", "json", "parquet", "columns")
HEADERS = ("auto", "yes", "no")
KINDS = ("auto", "single", "multi", "regression")
SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}
SIMPLE_TYPES = ("string", "large_string", "int", "uint", "float", "double", "bool", "list<", "dictionary<")
JSON_BEGIN = re.compile(r"\s*[\[{]\s*($|[\[{\"}])")  # not a word that is a bracket
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
SPACE, TEXT_END = re.compile(r"\s*"), re.compile(r"\Z")
LIST_SPACE, LIST_END = re.compile(r"[\s,]*"), re.compile(r"\]\s*\Z")
MAX_SHOWN = 5  # problems in one error
FILE_LIMIT = 1 << 30  # decompressed bytes of a labelled file, which is kept in memory
MAX_NAMES, MAX_CHARACTERS = 20, 2000  # of a list in an error


@dataclass(frozen=True)
class ReadOptions:
    """How to read a labelled file. Options that are not passed are detected."""

    text_column: str | int | None = setting(None, "Name or number (from 1) of the column with the text (or word).")
    pair_column: str | int | None = setting(None, "Column with the second text.")
    label_column: str | int | None = setting(None, "Column with the label.")
    header: str = setting("auto", "Whether the first row is a header: auto, yes, no.", advanced=True)
    format: str = setting(
        "auto", "File format: auto (by name, then content), csv, tsv, jsonl, json, parquet, columns.", advanced=True
    )
    separator: str | None = setting(None, "Separator between several labels of one text, such as |.", advanced=True)
    kind: str = setting("auto", "Kind of labels: auto, single, multi or regression.", advanced=True)
    split: str | None = setting(None, "Split to read, if there are several: train, dev, test.", advanced=True)
    skip_bad: bool = setting(False, "Skip and count bad rows instead of stopping.", advanced=True)

    def __post_init__(self) -> None:
        check_fields(self)
        for name, allowed in (("header", HEADERS), ("format", FORMATS), ("kind", KINDS)):
            check_choice(name, getattr(self, name), allowed)
        if self.separator == "":
            raise AlbertkitError("separator is empty. Pass a separator such as |.")
        if self.separator is not None and self.kind not in ("auto", "multi"):
            raise AlbertkitError(f"separator needs kind=multi, but kind is {self.kind}. Omit one of them.")


@dataclass
class Problems:
    """The problems of a file: one error with the first few or, with `skip_bad`, a count."""

    name: str
    skip_bad: bool = False
    needs_label: bool = True
    """Whether a text without a label is a problem."""
    count: int = 0
    shown: list[str] = field(default_factory=list)
    lines: set[int] = field(default_factory=set)
    """Lines that must not become examples."""

    def add(self, place: int | str, problem: str) -> None:
        """Record a bad line, or a bad row by its name. problem: the problem and its remedy."""
        if isinstance(place, int):
            if place in self.lines:
                return
            self.lines.add(place)
        self.count += 1
        if len(self.shown) < MAX_SHOWN:
            self.shown.append(f"{f'line {place}' if isinstance(place, int) else place}: {problem}")

    def finish(self, rows: int) -> tuple[str, ...]:
        """Raise the problems, or return a note on skipped rows."""
        if self.count and not (self.skip_bad and rows):
            more = f", the first {MAX_SHOWN} here" if self.count > MAX_SHOWN else ""
            rule = "and no good row" if self.skip_bad else "that must be corrected, or skipped (--skip-bad)"
            raise AlbertkitError(f"{self.name} has {count_noun(self.count, 'problem')} {rule}{more}:", *self.shown)
        if not rows:
            raise AlbertkitError(f"{self.name} contains no example. Pass a file with at least one row.")
        if self.count:
            return (f"{count_noun(self.count, 'bad row')} skipped in {self.name}; {self.shown[0]}",)
        return ()


@dataclass
class LabelledFile:
    """A labelled file, or a folder of files with one line per example, while it is read."""

    path: Path
    options: ReadOptions
    notes: list[str] = field(default_factory=list)
    """Notes on how the file was read."""

    def __post_init__(self) -> None:
        self.problems = Problems(str(self.path), self.options.skip_bad)

    @cached_property
    def format(self) -> str:
        """One of `FORMATS`: from the options, else from the name of the file, else from its first line.

        JSON whose first line is an object, with more lines below it, is jsonl: its bad lines can be skipped.
        """
        named = SUFFIXES.get(content_suffix(self.path.name), "auto")
        format = named if self.options.format == "auto" else self.options.format
        if format not in ("auto", "json"):
            return format
        lines = (line for line in self._bytes().split(b"\n") if line.strip())
        first, has_more = next(lines, b"").decode("utf-8", "replace"), any(lines)
        if format == "json" or JSON_BEGIN.match(first):
            return "jsonl" if has_more and isinstance(_parse_json(first), dict) else "json"
        return "tsv" if "\t" in first else "columns"

    @property
    def is_json(self) -> bool:
        """Whether the file contains JSON values."""
        return self.format in ("json", "jsonl")

    def regular_file(self, name: str = "") -> TextFile:
        """The file, or the file with this name in the folder."""
        path = self.path / name if name else self.path
        if path.is_dir():
            names = list_names(sorted(p.name for p in path.iterdir()))
            raise AlbertkitError(f"{path} is a folder with {names}. Name one file.")
        if str(path) == "-":
            raise AlbertkitError("labelled data cannot come from a pipe, because it is read twice. Pass a file.")
        return find_text_files([path])[0]

    def _bytes(self, name: str = "") -> bytes:
        """The content of a file without a byte-order mark; UTF-16 is an error."""
        file = self.regular_file(name)
        with open_text_file(file) as (stream, _):
            data: bytes = stream.read(FILE_LIMIT + 1)
        if len(data) > FILE_LIMIT:
            raise AlbertkitError(
                f"{file.name} has over {FILE_LIMIT:,} bytes, which are kept in memory. Use a smaller file."
            )
        return remove_bom(data, file.name)

    def lines(self, name: str = "") -> Iterator[tuple[int, str]]:
        """Every line with its number, without its newline. A line that is not UTF-8 is a problem, and contains `�`.

        name: name of a file in the folder. A bad line in one file invalidates this line number in all files.
        """
        start = f"{name}: " if name else ""
        for number, raw in enumerate(self._bytes(name).removesuffix(b"\n").split(b"\n"), 1):
            line = raw.removesuffix(b"\r")
            if b"\0" in line:
                self.problems.add(number, f"{start}zero bytes; convert the file if it is UTF-16, otherwise delete them")
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                byte = f"{start}byte {error.start + 1} is 0x{line[error.start]:02x}, which is not UTF-8"
                self.problems.add(number, f"{byte}; {ENCODING_REMEDY}")
                yield number, line.decode("utf-8", "replace")

    def cells(self) -> Iterator[Row]:
        """The rows of a csv or tsv file, without blank rows."""
        rows = self._csv_rows() if self.format == "csv" else ((line, text.split("\t")) for line, text in self.lines())
        for line, cells in rows:
            if line not in self.problems.lines and any(cell.strip() for cell in cells):
                yield line, cells

    def _csv_rows(self) -> Iterator[Row]:
        """Rows of csv: quoted cells may contain line breaks; the delimiter may also be a tab or semicolon."""
        lines = [text for _, text in self.lines()]
        delimiter = next((mark for mark in "\t,;" if mark in lines[0]), ",")
        reader = csv.reader((text + "\n" for text in lines), delimiter=delimiter, strict=True)
        while True:
            start = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                place = f"from here to line {reader.line_num} ({error})"
                self.problems.add(start, f"the quotes are wrong {place}; double the quotes inside a quoted cell")
                continue
            if cells is None:
                return
            if not self.problems.lines.isdisjoint(range(start, reader.line_num + 1)):
                self.problems.lines.add(start)
            yield start, cells

    def parquet_columns(self) -> tuple[list[str], list[Row]]:
        """The names of the columns with texts, numbers or lists, and the rows."""
        with open_raw(self.regular_file()) as raw, open_parquet(str(self.path), raw) as parquet:
            names = [f.name for f in parquet.schema_arrow if str(f.type).startswith(SIMPLE_TYPES)]
            table = parquet.read(columns=names, use_threads=False)
            if table.nbytes > FILE_LIMIT:
                raise AlbertkitError(f"{self.path} has over {FILE_LIMIT:,} bytes. Use a smaller file.")
            rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
            return names, [(number, list(cells)) for number, cells in enumerate(rows, 1)]

    @cached_property
    def json_values(self) -> list[tuple[int, Any]]:
        """The values of a .json file with their lines: the items of one list, or a sequence of values."""
        text = "\n".join(line for _, line in self.lines())
        if self.problems.shown:
            raise AlbertkitError(f"{self.path}, {self.problems.shown[0]}")
        is_list = text.lstrip().startswith("[")
        between, end = (LIST_SPACE, LIST_END) if is_list else (SPACE, TEXT_END)
        place = text.index("[") + 1 if is_list else 0
        values: list[tuple[int, Any]] = []
        line, line_place, has_surrogates = 1, 0, SURROGATE.search(text)
        while True:
            place = between.match(text, place).end()  # type: ignore[union-attr]  # it matches nothing, too
            line, line_place = line + text.count("\n", line_place, place), place
            if end.match(text, place):
                return values
            try:
                value, place = json.JSONDecoder().raw_decode(text, place)
            except (ValueError, RecursionError) as error:
                raise AlbertkitError(
                    f"line {line} of {self.path}: the JSON value is broken ({str(error)[:80]}). Correct it."
                ) from None
            values.append((line, _without_surrogates(value) if has_surrogates else value))

    @property
    def json_object(self) -> dict[str, Any]:
        """The object in a .json file; empty if the file contains anything else."""
        values = self.json_values if self.format == "json" else []
        return values[0][1] if len(values) == 1 and isinstance(values[0][1], dict) else {}

    def objects(self, expected: str = "JSON") -> Iterator[tuple[int, dict[str, Any]]]:
        """Each JSON object with its line; any other value is a problem. expected: the supported formats, for errors."""
        if not self.is_json:
            raise AlbertkitError(f"{self.path} is not JSON; this task reads {expected}. Pass --format jsonl if it is.")
        if self.format == "json":
            values: Iterable[tuple[int, Any]] = self.json_values
        else:
            lines = (line for line in self.lines() if line[1].strip() and line[0] not in self.problems.lines)
            values = ((number, _parse_json(line)) for number, line in lines)
        for number, value in values:
            if isinstance(value, dict):
                yield number, value
            else:
                self.problems.add(number, f"{str(value)[:40]!r} is not a JSON object; write one in braces")


def _parse_json(line: str) -> Any:
    """The value of a line; the line itself if it is not JSON."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return line.strip()
    return _without_surrogates(value) if SURROGATE.search(line) else value


def _without_surrogates(value: Any) -> Any:
    """A JSON value with "?" for lone surrogates, which JSON can contain and UTF-8 cannot."""
    return json.loads(replace_surrogates(json.dumps(value, ensure_ascii=False)))


def clean(value: Any) -> Any:
    """A text without white space at its ends; other values unchanged."""
    return value.strip() if isinstance(value, str) else value


def count_noun(count: int, noun: str) -> str:
    """1 row, 2 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def list_names(names: Iterable[Any]) -> str:
    """Names for an error message; a long list is shortened."""
    texts = [replace_surrogates(str(name)) for name in names]
    more = f" and {len(texts) - MAX_NAMES:,} more" if len(texts) > MAX_NAMES else ""
    return ", ".join(texts[:MAX_NAMES])[:MAX_CHARACTERS] + more or "none"
