"""Files → blocks: a megabyte or so of whole documents, as bytes, with the place each came from.

In: `TextFile`s. Out: the `Block`s of each. Before this file: `text_reader.py`; after it: `documents.py`, which looks inside a block.

Where a block ends depends only on where it begins and on what follows, never on how the bytes arrived. So reading can
start again at any block, and gives the same blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from albertkit.errors import AlbertkitError
from albertkit.text_reader import (
    FORMATS,
    TextFile,
    TextFormat,
    check_parquet_column,
    open_parquet,
    open_raw,
    open_text_file,
)

# csv and tsv files are no corpora: their names mean plain text
CORPUS_FORMATS = {suffix: format for suffix, format in FORMATS.items() if format not in ("csv", "tsv")}
BLOCK = 1 << 20  # bytes read at a time
LIMIT = 16 << 20  # bytes of a line, and of a document: a longer document becomes several


@dataclass(frozen=True)
class Place:
    """Where a block begins: in which source, behind how many unpacked bytes (or rows), on which line."""

    source: int = 0
    offset: int = 0
    line: int = 1
    inside: bool = False  # within a document that was too long for one block


@dataclass(frozen=True)
class Block:
    """Some documents as they were read: the bytes of lines, or the texts of rows."""

    source: str
    form: TextFormat
    field: str
    at: Place
    next: Place
    read: int  # bytes of the source on disk read so far
    data: bytes | tuple[str, ...]


START = Place()


def blocks(sources: list[TextFile], field: str | None = None, start: Place = START) -> Iterator[Block]:
    """The blocks of all sources, from a place on."""
    for number in range(start.source, len(sources)):
        place = start if number == start.source else Place(number)
        source = sources[number]
        if source.format == "parquet":
            yield from _row_blocks(source, field or "text", place)
        else:
            yield from _byte_blocks(source, field or "text", place)


def _byte_blocks(source: TextFile, field: str, place: Place) -> Iterator[Block]:
    with open_text_file(source) as (stream, counted):
        _skip(stream, place.offset)
        held, size, more = b"", BLOCK, True
        while more or held:
            parts, have = [held], len(held)
            while more and have < size:
                part = stream.read(size - have)
                more = bool(part)
                parts.append(part)
                have += len(part)
            held = b"".join(parts)
            cut, inside = _cut(held, source.format) if more else (len(held), False)
            if not cut and len(held) >= LIMIT:
                raise AlbertkitError(giant(source.name, place.line))
            size = BLOCK if cut else size + BLOCK
            if cut:
                data, held = held[:cut], held[cut:]
                after = Place(place.source, place.offset + cut, place.line + data.count(b"\n"), inside)
                yield Block(source.name, source.format, field, place, after, counted.count, data)
                place = after


def giant(name: str, line: int) -> str:
    """What to say of a line that is too long."""
    return f"line {line} of {name} has over {LIMIT:,} bytes: put one paragraph on a line, and an empty line between documents"


def _skip(stream: Any, count: int) -> None:
    while count > 0:
        part = stream.read(min(count, BLOCK))
        if not part:
            raise AlbertkitError("an input is shorter than when the corpus was begun: use --force or another folder")
        count -= len(part)


def _cut(held: bytes, form: TextFormat) -> tuple[int, bool]:
    """How many bytes make a block (0: read more), and whether it ends inside a document."""
    if form == "jsonl":
        return held.rfind(b"\n") + 1, False
    blank = max(
        held.rfind(b"\n\n") + 2 if b"\n\n" in held else 0, held.rfind(b"\n\r\n") + 3 if b"\n\r\n" in held else 0
    )
    if blank or len(held) < LIMIT:
        return blank, False
    return held.rfind(b"\n") + 1, True


def _row_blocks(source: TextFile, field: str, place: Place) -> Iterator[Block]:
    """Blocks of a Parquet file: rows, about a megabyte at a time."""
    with open_raw(source) as raw, open_parquet(source.name, raw) as file:
        check_parquet_column(file, source.name, field)
        kind = str(file.schema_arrow.field(field).type)
        if kind not in ("string", "large_string", "string_view"):
            raise AlbertkitError(
                f"column {field!r} of {source.name} contains {kind}. Pass one that contains texts (--text-column)."
            )
        total, held, size, row = max(file.metadata.num_rows, 1), [], 0, 0
        for batch in file.iter_batches(batch_size=64, columns=[field], use_threads=False):
            for text in batch.column(0).to_pylist():
                row += 1
                if row <= place.offset:
                    continue
                held.append(text or "")
                size += len(held[-1])
                if size >= BLOCK or row == total:
                    after = Place(place.source, row, row + 1)
                    read = source.size * row // total
                    yield Block(source.name, "parquet", field, place, after, read, tuple(held))
                    held, size, place = [], 0, after
