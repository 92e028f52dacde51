"""Files → records to index.

Files are read a line at a time, so that memory does not grow with them. A record's id is `file:line`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from albertkit.errors import AlbertkitError, nearest

TEXT_LIMIT = 1_000_000  # bytes in one record
SPLITS = ("lines", "paragraphs", "file")
JSONL = (".jsonl", ".ndjson")
WALKED = (".txt", ".md", ".rst", *JSONL)


@dataclass(frozen=True)
class Record:
    """A text to index. The id is its identity: adding another text under it replaces the first."""

    id: str
    text: str
    source: str = ""
    line: int = 0

    def valid(self) -> Record:
        """The same without halves of characters."""
        return Record(valid(self.id), valid(self.text), valid(self.source), self.line)


def valid(text: str) -> str:
    """The text without halves of characters, which UTF-8 and so SQLite cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def records_from(
    files: Iterable[Path | str], field: str | None = None, split: str = "lines", id_field: str | None = None
) -> Iterator[Record]:
    """Records of text files (a line, a paragraph or the whole file each) and of JSONL files (one field of each line).

    Folders are walked in order; hidden files and files that are neither text nor JSONL by their name are passed over.
    A file that is named itself is always read. `field` makes every file JSONL; without it the field is `text`.
    """
    if split not in SPLITS:
        raise AlbertkitError(f"split is {split!r}{nearest(str(split), SPLITS)}; choose one of {', '.join(SPLITS)}")
    for path in walk(files):
        if field is not None or path.suffix.lower() in JSONL:
            yield from _json_records(path, field or "text", id_field)
        elif split == "lines":
            for number, text in lines(path):
                if text.strip():
                    yield Record(f"{path}:{number}", text.strip(), str(path), number)
        else:
            yield from _joined(path, whole=split == "file")


def walk(files: Iterable[Path | str]) -> Iterator[Path]:
    """The files themselves, and in sorted order those of the folders."""
    for path in map(Path, files):
        if not path.is_dir():
            yield path
            continue
        for folder, inner, names in os.walk(path):
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            for name in sorted(names):
                if not name.startswith(".") and Path(name).suffix.lower() in WALKED:
                    yield Path(folder, name)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends; a line that is too long or not UTF-8 is an error that names it."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(TEXT_LIMIT + 3):
                number += 1
                if len(line.rstrip(b"\r\n")) > TEXT_LIMIT:
                    raise AlbertkitError(f"line {number} of {path} has over {TEXT_LIMIT:,} bytes; break it into lines")
                try:
                    yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError:
                    raise AlbertkitError(f"line {number} of {path} is not UTF-8; convert the file first") from None
    except OSError as error:
        raise AlbertkitError(
            f"{path} cannot be read: {error.strerror}; check the name and that you may read it"
        ) from None


def _joined(path: Path, whole: bool) -> Iterator[Record]:
    """Paragraphs, which empty lines divide, or all lines as one."""
    held: list[str] = []
    first = length = 0
    for number, text in lines(path):
        if not held:
            first = number
        if text.strip() or (whole and held):
            held.append(text)
            length += len(text.encode()) + 1
        elif held:
            yield Record(f"{path}:{first}", "\n".join(held).strip(), str(path), first)
            held, length = [], 0
        if length > TEXT_LIMIT + 1:
            raise AlbertkitError(
                f"the text that begins on line {first} of {path} has over {TEXT_LIMIT:,} bytes; "
                f"index the file by {'paragraphs' if whole else 'lines'} (--split)"
            )
    if held:
        yield Record(f"{path}:{first}", "\n".join(held).strip(), str(path), first)


def _json_records(path: Path, field: str, id_field: str | None) -> Iterator[Record]:
    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise AlbertkitError(f"line {number} of {path} is not JSON ({str(error)[:100]}); correct it") from None
        if not isinstance(row, dict):
            raise AlbertkitError(f"line {number} of {path} holds a {type(row).__name__}; each line must be an object")
        values = []
        for key in (field, *([] if id_field is None else [id_field])):
            if key not in row:
                has = ", ".join(list(row)[:20]) or "nothing"
                hint = nearest(key, row)
                raise AlbertkitError(f"line {number} of {path} has no field {key!r}{hint}; it has {has} (--field)")
            values.append(row[key])
        if not isinstance(values[0], str):
            kind = type(values[0]).__name__
            raise AlbertkitError(f"field {field!r} on line {number} of {path} is a {kind}; it must be a text")
        if values[0].strip():
            yield Record(
                f"{path}:{number}" if id_field is None else str(values[1]), values[0].strip(), str(path), number
            )
