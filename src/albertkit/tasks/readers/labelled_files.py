"""Labelled files, opened: their lines or JSON values, and what is wrong with them, collected.

In: a path and `ReadOptions`. Out: numbered lines, numbered JSON values, and `Problems` that become one error or one note. After
this file: `tables.py`, `columns.py` and `reading.py`, which make examples of them. Unpacking and cutting is `data/`'s work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from albertkit.data.documents import DOCUMENT_LIMIT, read_blocks
from albertkit.errors import AlbertkitError, nearest
from albertkit.settings import setting
from albertkit.text_reader import (
    COMPRESSIONS,
    TEXT_LIMIT,
    TextFile,
    find_text_files,
    open_text_file,
    replace_surrogates,
)

FORMATS = ("auto", "csv", "tsv", "jsonl", "json", "parquet", "columns")
HEADERS = ("auto", "yes", "no")
KINDS = ("auto", "single", "multi", "regression")
SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}
JSON = re.compile(r"\s*[\[{]\s*($|[\[{\"}])")  # how JSON begins, and a word that is a bracket does not
SHOWN = 5  # problems in one error
TREE_LIMIT = 256 << 20  # unpacked bytes of a JSON file that is read at once
FILE_LIMIT = 1 << 30  # unpacked bytes of any labelled file, since all of it is kept in memory
TOLD = 2000  # characters of a list in an error


@dataclass(frozen=True)
class ReadOptions:
    """How to read a labelled file. Everything is found out from the file where nothing is said."""

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
            raise AlbertkitError("separator is empty; give what stands between two labels, such as |")
        if self.separator is not None and self.kind not in ("auto", "multi"):
            raise AlbertkitError(f"separator is for several labels, and kind is {self.kind}; leave one of them out")


@dataclass(frozen=True)
class LabelledData:
    """The examples of a file, and what a person should know about how they were read."""

    examples: list[Any]
    notes: tuple[str, ...] = ()


@dataclass
class Problems:
    """What is wrong with a file: one error with the first few, or with `skip_bad` a count."""

    name: str
    skip_bad: bool = False
    count: int = 0
    shown: list[str] = field(default_factory=list)
    lines: set[int] = field(default_factory=set)  # those that must not become examples

    def add(self, place: int | str, what: str) -> None:
        """A line (or a row with a name of its own) is bad; what is said of it ends with the remedy."""
        if isinstance(place, int):
            if place in self.lines:
                return
            self.lines.add(place)
        self.count += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"{f'line {place}' if isinstance(place, int) else place}: {what}")

    def include(self, other: Problems) -> None:
        """Those of a file whose lines belong to the lines of this one."""
        self.lines |= other.lines
        self.count += other.count
        self.shown = [*self.shown, *(f"{other.name}, {shown}" for shown in other.shown)][:SHOWN]

    def finish(self, kept: int) -> tuple[str, ...]:
        """Raise what was found, or say in a note how much was passed over."""
        if self.count and not (self.skip_bad and kept):
            more = f", the first {SHOWN} here" if self.count > SHOWN else ""
            what = "and no good row" if self.skip_bad else "that must be corrected, or passed over (--skip-bad)"
            raise AlbertkitError(
                f"{self.name} has {counted(self.count, 'problem')} {what}{more}:\n  " + "\n  ".join(self.shown)
            )
        if not kept:
            raise AlbertkitError(f"{self.name} holds no example: give a file with at least one row")
        if self.count:
            return (f"{counted(self.count, 'bad row')} passed over in {self.name}; {self.shown[0]}",)
        return ()


def counted(count: int, what: str) -> str:
    """1 row, 2 rows."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def fault(text: Any, what: str) -> str | None:
    """What is wrong with a text; None if nothing is."""
    if text is None:
        return f"the {what} is missing; write one"
    if not isinstance(text, str):
        return f"the {what} is a {type(text).__name__}; write a text in quotes"
    if not text.strip():
        return f"the {what} is empty; write one or delete the row"
    if len(text) > TEXT_LIMIT:
        return f"the {what} has over {TEXT_LIMIT:,} characters; cut it into several"
    if "\0" in text:
        return f"the {what} holds zero bytes; delete them"
    return None


def whole(text: str) -> str:
    """The text without halves of characters, which JSON can hold and UTF-8 cannot; its length stays."""
    return replace_surrogates(text)


def told(names: Iterable[Any]) -> str:
    """Names for an error, not too many of them."""
    names = [whole(str(name)) for name in names]
    return ", ".join(names[:20])[:TOLD] + (f" and {len(names) - 20:,} more" if len(names) > 20 else "") or "none"


# Bytes → lines -----------------------------------------------------------------------------------------------------


def source_of(path: Path) -> TextFile:
    """The file, if it is one."""
    if path.is_dir():
        raise AlbertkitError(f"{path} is a folder with {told(sorted(p.name for p in path.iterdir()))}; name one file")
    if str(path) == "-":
        raise AlbertkitError("labelled data is read twice, so it cannot come from a pipe; name a file")
    return find_text_files([path])[0]


def form_of(path: Path, options: ReadOptions) -> str:
    """The format of a file: what the options say, else by its name, else by its first line."""
    if options.format != "auto":
        return options.format
    bare = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    known = SUFFIXES.get(bare.suffix.lower())
    if known:
        return known
    quiet = Problems(str(path), skip_bad=True)
    first = next((text for _, text in lines(path, quiet) if text.strip()), "")
    if JSON.match(first):
        return "json"
    return "tsv" if "\t" in first or options.delimiter else "columns"


def lines(path: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    """Every line with its number. One that is no text is added to the problems, and comes with `�` in place of bytes."""
    source = replace(source_of(path), format="jsonl")  # so that blocks end with lines
    for block in read_blocks([source]):
        data, number = block.data, block.start.line
        assert isinstance(data, bytes)
        if block.end.offset > FILE_LIMIT:
            raise AlbertkitError(
                f"{path} has over {FILE_LIMIT:,} bytes, and all of it is kept in memory: use a part of it"
            )
        if block.start.offset == 0:
            data = _unmarked(data, path)
        if data.endswith(b"\n"):
            data = data[:-1]
        try:
            if b"\0" in data or len(data) > DOCUMENT_LIMIT:
                raise ValueError
            texts = data.decode("utf-8").split("\n")
        except ValueError:  # look at each line, to name it
            texts = [_line(raw, i, problems) for i, raw in enumerate(data.split(b"\n"), number)]
        for i, text in enumerate(texts, number):
            yield i, text[:-1] if text.endswith("\r") else text


def _unmarked(data: bytes, path: Path) -> bytes:
    """The bytes without the mark of UTF-8; another mark is an error."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise AlbertkitError(f"{path} is UTF-16; it must be UTF-8: run  iconv -f UTF-16 -t UTF-8 {path.name} > new")
    return data[3:] if data.startswith(b"\xef\xbb\xbf") else data


def _line(raw: bytes, number: int, problems: Problems) -> str:
    try:
        if b"\0" in raw:
            problems.add(number, "holds zero bytes; convert the file if it is UTF-16, else delete them")
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        problems.add(number, _not_utf8(raw, error))
        return raw.decode("utf-8", "replace")


def _not_utf8(raw: bytes, error: UnicodeDecodeError) -> str:
    place = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
    return (
        f"byte {place} is 0x{raw[error.start]:02x}, which is not UTF-8; convert the file from what it is, "
        "such as  iconv -f GB18030 -t UTF-8  (Chinese), or from WINDOWS-1252 or ISO-8859-1 (Western Europe)"
    )


# Lines → JSON values -------------------------------------------------------------------------------------------------


def text_of(path: Path) -> str:
    """A whole file, for JSON that runs over lines."""
    with open_text_file(source_of(path)) as (stream, _):
        parts, size = [], 0
        while part := stream.read(1 << 20):
            parts.append(part)
            size += len(part)
            if size > TREE_LIMIT:
                raise AlbertkitError(f"{path} has over {TREE_LIMIT:,} bytes; write it as JSONL, or use a part of it")
    data = _unmarked(b"".join(parts), path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise AlbertkitError(f"line {line} of {path}: {_not_utf8(data, error)}") from None


def objects(path: Path, form: str, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each JSON object with its line: one on a line, or in `json` files over many lines, in a list or one after another."""
    if form == "jsonl":
        yield from _objects_in_lines(lines(path, problems), problems)
        return
    text = text_of(path)
    first, _, rest = text.lstrip().partition("\n")
    if rest.strip() and loads(first) is not None:
        yield from _objects_in_lines(enumerate(text.split("\n"), 1), problems)
        return
    for line, value in _values(text, path):
        if isinstance(value, dict):
            yield line, value
        else:
            problems.add(line, f"holds a {type(value).__name__}; write an object in braces")


def loads(text: str) -> dict[str, Any] | None:
    """The one object that a text is; None if it is something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _objects_in_lines(numbered: Iterable[tuple[int, str]], problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in numbered:
        if not line.strip() or number in problems.lines:
            continue
        row = loads(line)
        if row is None:
            problems.add(number, f"{line.strip()[:40]!r} is not a JSON object; write one object on a line")
        else:
            yield number, row


def _values(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """JSON values one after another, or those of one list."""
    decoder, place, line, seen = json.JSONDecoder(), 0, 1, 0
    in_list = text.lstrip().startswith("[")
    between = " \t\r\n," if in_list else " \t\r\n"
    if in_list:
        place = text.index("[") + 1
    while True:
        while place < len(text) and text[place] in between:
            place += 1
        line, seen = line + text.count("\n", seen, place), place
        done = text.startswith("]", place) and not text[place + 1 :].strip() if in_list else place == len(text)
        if done:
            return
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise AlbertkitError(
                f"line {line} of {path}: the JSON value is broken ({str(error)[:80]}): correct it"
            ) from None
        yield line, value
