"""A block → its documents: lists of paragraphs, each a text without line breaks.

In: a `Block`. Out: `Documents`. Before this file: `reading.py`; after it: `pieces.py`, which turns them into ids, and the
trainer of tokenizers.

In a text file an empty line stands between documents and each line is a paragraph. In JSONL and Parquet each row is a
document, and the lines of its text are paragraphs. A line that is no text (not UTF-8, zero bytes, not JSON, without the
field) is an error that names it, or is counted and passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from albertkit.data.block_reader import LIMIT, Block, blocks, giant
from albertkit.errors import AlbertkitError
from albertkit.text_reader import BOM, BadRow, TextFile, column_value, parse_json_line


@dataclass
class Documents:
    """The documents of a block."""

    paragraphs: list[list[str]] = field(default_factory=list)  # of each document, none of them empty
    inside: bool = False  # the first one goes on with the last of the block before
    bad: int = 0  # lines passed over


def documents(block: Block, skip_bad: bool = False) -> Documents:
    """What a block holds; with `skip_bad`, lines that are no text are counted instead of being an error."""
    made = Documents()
    if block.form == "text":
        _read_text(block, made, skip_bad)
        return made
    for number, row in enumerate(_rows(block, made, skip_bad), block.at.line):
        if row is None:
            continue
        try:
            text = row if block.form == "parquet" else _field(row, block, number)
            if "\0" in text:
                raise AlbertkitError(f"row {number} of {block.source} holds zero bytes: {_BINARY}")
        except AlbertkitError:
            if not skip_bad:
                raise
            made.bad += 1
            continue
        if len(text) > LIMIT:
            raise AlbertkitError(f"row {number} of {block.source} has over {LIMIT:,} characters: cut it into several")
        lines = [line for line in map(str.strip, text.split("\n")) if line]
        if lines:
            made.paragraphs.append(lines)
    return made


def paragraphs(sources: list[TextFile], field: str | None, budget: int | None = None) -> Iterator[tuple[str, int]]:
    """Each paragraph of some sources, with the bytes of the sources read so far; at most `budget` bytes of text.

    The budget is shared evenly: a source gives its part and is left.
    """
    before = 0
    for number, source in enumerate(sources):
        left = None if budget is None else budget // len(sources)
        for block in blocks(sources[number : number + 1], field):
            for document in documents(block).paragraphs:
                for text in document:
                    yield text, before + block.read
            if left is not None:
                left -= sum(map(len, block.data)) if isinstance(block.data, tuple) else len(block.data)
                if left <= 0:
                    break
        before += source.size


_BINARY = "it is no text, so leave the file out, convert it to UTF-8, or pass over such lines (--skip-bad)"


def _lines(block: Block, made: Documents, skip_bad: bool) -> list[str | None]:
    """The lines of a block of bytes; None where one is passed over."""
    data = block.data
    assert isinstance(data, bytes)
    if block.at.line == 1 and data.startswith(BOM):
        data = data[3:]
    try:
        if b"\0" in data or len(data) > LIMIT:
            raise ValueError
        return [*data.decode("utf-8").split("\n")]
    except ValueError:  # look at each line, to name it or to pass it over
        return [
            _line(line, block, number, made, skip_bad) for number, line in enumerate(data.split(b"\n"), block.at.line)
        ]


def _line(line: bytes, block: Block, number: int, made: Documents, skip_bad: bool) -> str | None:
    if len(line) > LIMIT:
        raise AlbertkitError(giant(block.source, number))
    try:
        if b"\0" not in line:
            return line.decode("utf-8")
        what = "holds zero bytes"
    except UnicodeDecodeError:
        what = "is not UTF-8"
    if not skip_bad:
        raise AlbertkitError(f"line {number} of {block.source} {what}: {_BINARY}")
    made.bad += 1
    return None


def _read_text(block: Block, made: Documents, skip_bad: bool) -> None:
    lines = _lines(block, made, skip_bad)
    made.inside = block.at.inside and bool(lines[0] is None or lines[0].strip())
    held: list[str] = []
    for line in lines:
        text = None if line is None else line.strip()
        if text:
            held.append(text)
        elif text == "" and held:
            made.paragraphs.append(held)
            held = []
    if held:
        made.paragraphs.append(held)


def _rows(block: Block, made: Documents, skip_bad: bool) -> list[Any]:
    """The texts of a Parquet block, or the lines of a JSONL block; None where there is nothing."""
    if isinstance(block.data, tuple):
        return list(block.data)
    return [line if line and line.strip() else None for line in _lines(block, made, skip_bad)]


def _field(line: str, block: Block, number: int) -> str:
    """The text in one line of JSONL."""
    try:
        text = column_value(parse_json_line(line), block.field)
        if text is not None and not isinstance(text, str):
            raise BadRow(f"contains a {type(text).__name__} as {block.field!r}, which must be a text (--text-column)")
    except BadRow as bad:
        raise AlbertkitError(f"line {number} of {block.source} {bad}, or skip such lines (--skip-bad).") from None
    return text or ""
