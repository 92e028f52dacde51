"""Labelled files: their lines or JSON objects, and the problems found in them, collected.

In: a path and `ReadOptions`. Out: numbered lines, numbered JSON objects, and `Problems`, which become one error or one
note. Before this file: `text_reader.py` opens files; after it: `tables.py`, `tagged_files.py` and `json_files.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError, nearest
from albertkit.options import setting
from albertkit.text_reader import (
    BOM,
    LINE_LIMIT,
    TEXT_LIMIT,
    BadRow,
    TextFile,
    content_suffix,
    find_text_files,
    open_text_file,
    parse_json_line,
    replace_surrogates,
)

FORMATS = ("auto", "csv", "tsv", "jsonl", "json", "parquet", "columns")
HEADERS = ("auto", "yes", "no")
KINDS = ("auto", "single", "multi", "regression")
SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}
JSON_BEGIN = re.compile(r"\s*[\[{]\s*($|[\[{\"}])")  # not a word that is a bracket
MAX_SHOWN = 5  # problems in one error
JSON_LIMIT = 256 << 20  # decompressed bytes of a JSON file, which is parsed at once
FILE_LIMIT = 1 << 30  # decompressed bytes of any labelled file, which is kept in memory
MAX_NAMES, MAX_CHARACTERS = 20, 2000  # of a list in an error

Numbered = Iterator[tuple[int, str]]  # line number, line
JsonRows = Iterator[tuple[int, dict[str, Any]]]  # line number, object


@dataclass(frozen=True)
class ReadOptions:
    """How to read a labelled file; what is not given is detected."""

    text_column: str | int | None = setting(None, "Column of the text (or word): its name, or its number from 1.")
    pair_column: str | int | None = setting(None, "Column of the second text.")
    label_column: str | int | None = setting(None, "Column of the label.")
    header: str = setting("auto", "Whether the first row names the columns: auto, yes, no.", advanced=True)
    format: str = setting(
        "auto", "csv, tsv, jsonl, json, parquet or columns; auto goes by name, then content.", advanced=True
    )
    separator: str | None = setting(None, "What separates several labels of one text, such as |.", advanced=True)
    kind: str = setting("auto", "What labels are: single, multi, regression, auto.", advanced=True)
    split: str | None = setting(None, "Part of a file or folder that has several: train, dev, test.", advanced=True)
    skip_bad: bool = setting(False, "Skip and count bad rows instead of stopping.", advanced=True)
    delimiter: str | None = None
    """Character between two cells, if it is neither a comma (csv) nor a tab (tsv)."""
    quotes: bool | None = None
    """Whether double quotes may enclose a cell; by default they may in csv and not in tsv."""
    labelled: bool = True
    """Whether every row must have a label."""

    def __post_init__(self) -> None:
        for name, allowed in (("header", HEADERS), ("format", FORMATS), ("kind", KINDS)):
            value = getattr(self, name)
            if value not in allowed:
                raise AlbertkitError(
                    f"{name} is {value!r}{nearest(str(value), allowed)}; choose one of {', '.join(allowed)}"
                )
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '\n\r"'):
            raise AlbertkitError(f"delimiter is {self.delimiter!r}; it must be one character, such as ;")
        if self.separator == "":
            raise AlbertkitError("separator is empty; pass what separates two labels, such as |")
        if self.separator is not None and self.kind not in ("auto", "multi"):
            raise AlbertkitError(f"separator is for several labels, and kind is {self.kind}; omit one of them")


@dataclass(frozen=True)
class LabelledData:
    """The examples of a file, and notes on how they were read."""

    examples: list[Any]
    notes: tuple[str, ...] = ()


@dataclass
class Problems:
    """The problems of a file: one error with the first few or, with `skip_bad`, a count."""

    name: str
    skip_bad: bool = False
    count: int = 0
    shown: list[str] = field(default_factory=list)
    lines: set[int] = field(default_factory=set)
    """Lines that must not become examples."""

    def add(self, place: int | str, problem: str) -> None:
        """Record a bad line, or a row with a name of its own. problem: with its remedy."""
        if isinstance(place, int):
            if place in self.lines:
                return
            self.lines.add(place)
        self.count += 1
        if len(self.shown) < MAX_SHOWN:
            self.shown.append(f"{f'line {place}' if isinstance(place, int) else place}: {problem}")

    def include(self, other: Problems) -> None:
        """Add those of a file whose lines belong to the lines of this one."""
        self.lines |= other.lines
        self.count += other.count
        self.shown = [*self.shown, *(f"{other.name}, {shown}" for shown in other.shown)][:MAX_SHOWN]

    def finish(self, kept: int) -> tuple[str, ...]:
        """Raise the problems, or return a note on skipped rows."""
        if self.count and not (self.skip_bad and kept):
            more = f", the first {MAX_SHOWN} here" if self.count > MAX_SHOWN else ""
            what = "and no good row" if self.skip_bad else "that must be corrected, or skipped (--skip-bad)"
            raise AlbertkitError(
                f"{self.name} has {count_noun(self.count, 'problem')} {what}{more}:\n  " + "\n  ".join(self.shown)
            )
        if not kept:
            raise AlbertkitError(f"{self.name} contains no example. Pass a file with at least one row.")
        if self.count:
            return (f"{count_noun(self.count, 'bad row')} skipped in {self.name}; {self.shown[0]}",)
        return ()


def count_noun(count: int, noun: str) -> str:
    """1 row, 2 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def list_names(names: Iterable[Any]) -> str:
    """Names for an error, not too many of them."""
    texts = [replace_surrogates(str(name)) for name in names]
    more = f" and {len(texts) - MAX_NAMES:,} more" if len(texts) > MAX_NAMES else ""
    return ", ".join(texts[:MAX_NAMES])[:MAX_CHARACTERS] + more or "none"


def text_problem(text: object, name: str) -> str | None:
    """The problem with a text and its remedy; None if there is none."""
    if text is None:
        return f"the {name} is missing; write one"
    if not isinstance(text, str):
        return f"the {name} is a {type(text).__name__}; write a text in quotes"
    if not text.strip():
        return f"the {name} is empty; write one or delete the row"
    if len(text) > TEXT_LIMIT:
        return f"the {name} has over {TEXT_LIMIT:,} characters; cut it into several"
    if "\0" in text:
        return f"the {name} contains zero bytes; delete them"
    return None


def clean(text: str) -> str:
    """The text without lone surrogates, which JSON can contain, and without white space at its ends."""
    return replace_surrogates(text).strip()


# Bytes → lines -----------------------------------------------------------------------------------------------------


def find_file(path: Path) -> TextFile:
    """The file, if it is one."""
    if path.is_dir():
        names = list_names(sorted(p.name for p in path.iterdir()))
        raise AlbertkitError(f"{path} is a folder with {names}; name one file")
    if str(path) == "-":
        raise AlbertkitError("labelled data is read twice, so it cannot come from a pipe. Pass a file.")
    return find_text_files([path])[0]


def file_format(path: Path, options: ReadOptions) -> str:
    """The format of a file: from the options, else from its name, else from its first line."""
    if options.format != "auto":
        return options.format
    if known := SUFFIXES.get(content_suffix(path.name)):
        return known
    lines = file_lines(path, Problems(str(path), skip_bad=True))
    first = next((text for _, text in lines if text.strip()), "")
    if JSON_BEGIN.match(first):
        return "json"
    return "tsv" if "\t" in first or options.delimiter else "columns"


def file_lines(path: Path, problems: Problems) -> Numbered:
    """Every line with its number. One that is not UTF-8 is added to the problems, and contains `�` instead of bytes."""
    size = 0
    with open_text_file(find_file(path)) as (stream, _):
        for number, line in enumerate(iter(lambda: stream.readline(LINE_LIMIT), b""), 1):
            size += len(line)
            if size > FILE_LIMIT:
                raise AlbertkitError(
                    f"{path} has over {FILE_LIMIT:,} bytes, which are kept in memory. Use a part of it."
                )
            if len(line) == LINE_LIMIT:
                raise AlbertkitError(f"line {number} of {path} has over {LINE_LIMIT:,} bytes. Break it into several.")
            raw = _without_bom(line, path) if number == 1 else line
            yield number, _decode_line(raw.removesuffix(b"\n").removesuffix(b"\r"), number, problems)


def _without_bom(data: bytes, path: Path) -> bytes:
    """The bytes without the mark of UTF-8; that of UTF-16 is an error."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise AlbertkitError(f"{path} is UTF-16; it must be UTF-8. Run  iconv -f UTF-16 -t UTF-8 {path.name} > new")
    return data.removeprefix(BOM)


def _decode_line(raw: bytes, number: int, problems: Problems) -> str:
    if b"\0" in raw:
        problems.add(number, "contains zero bytes; convert the file if it is UTF-16, else delete them")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        problems.add(number, _encoding_problem(raw, error))
        return raw.decode("utf-8", "replace")


def _encoding_problem(raw: bytes, error: UnicodeDecodeError) -> str:
    place = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
    return (
        f"byte {place} is 0x{raw[error.start]:02x}, which is not UTF-8; convert the file from its encoding, such as  "
        "iconv -f GB18030 -t UTF-8  (Chinese), or from WINDOWS-1252 or ISO-8859-1 (Western Europe)"
    )


# Lines → JSON ------------------------------------------------------------------------------------------------------


def file_text(path: Path) -> str:
    """A whole file, for JSON over several lines."""
    with open_text_file(find_file(path)) as (stream, _):
        data = stream.read(JSON_LIMIT + 1)
    if len(data) > JSON_LIMIT:
        raise AlbertkitError(f"{path} has over {JSON_LIMIT:,} bytes. Write it as JSONL, or use a part of it.")
    data = _without_bom(data, path)
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise AlbertkitError(f"line {line} of {path}: {_encoding_problem(data, error)}") from None


def json_objects(path: Path, format: str, problems: Problems) -> JsonRows:
    """Each JSON object with its line: one per line or, in .json files, in a list or one after another."""
    if format == "jsonl":
        yield from _objects_in_lines(file_lines(path, problems), problems)
        return
    text = file_text(path)
    first, _, rest = text.lstrip().partition("\n")
    if rest.strip() and parse_object(first) is not None:
        yield from _objects_in_lines(enumerate(text.split("\n"), 1), problems)
        return
    for line, value in _json_values(text, path):
        if isinstance(value, dict):
            yield line, value
        else:
            problems.add(line, f"contains a {type(value).__name__}; write an object in braces")


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; None if it is something else."""
    try:
        return parse_json_line(text)
    except BadRow:
        return None


def _objects_in_lines(lines: Iterable[tuple[int, str]], problems: Problems) -> JsonRows:
    for number, line in lines:
        if not line.strip() or number in problems.lines:
            continue
        row = parse_object(line)
        if row is None:
            problems.add(number, f"{line.strip()[:40]!r} is not a JSON object; write one object per line")
        else:
            yield number, row


def _json_values(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """JSON values one after another, or those of one list."""
    decoder, place, line, seen = json.JSONDecoder(), 0, 1, 0
    is_list = text.lstrip().startswith("[")
    between = " \t\r\n," if is_list else " \t\r\n"
    if is_list:
        place = text.index("[") + 1
    while True:
        while place < len(text) and text[place] in between:
            place += 1
        line, seen = line + text.count("\n", seen, place), place
        if text.startswith("]", place) and not text[place + 1 :].strip() if is_list else place == len(text):
            return
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise AlbertkitError(
                f"line {line} of {path}: the JSON value is broken ({str(error)[:80]}). Correct it."
            ) from None
        yield line, value
