"""Text files → blocks of about a megabyte → documents: lists of paragraphs, each a text without line breaks.

In: `TextFile`s. Out: `Block`s of whole documents, and the `Documents` in a block. In a text file a blank line separates
documents and each line is a paragraph. In JSONL, CSV, TSV and Parquet each row is a document, and the lines of its text
are paragraphs. The end of a block depends only on its start and the following text, so reading can resume at any block.
Before this file: `text_reader.py`; after it: `document_tokenizer.py`, and the training of tokenizers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from albertkit.errors import AlbertkitError, type_with_article
from albertkit.text_reader import (
    DEFAULT_COLUMN,
    BadRow,
    TextFile,
    TextFormat,
    column_value,
    decode,
    open_parquet,
    open_raw,
    open_text_file,
    parse_json_line,
    read_cells,
    remove_bom,
)

BLOCK_BYTES = 1 << 20  # bytes read at a time
DOCUMENT_LIMIT = 16 << 20  # maximum bytes of a line or a document; longer documents are split


@dataclass(frozen=True)
class BlockPosition:
    """The start of a block: the file, the offset in decompressed bytes (or rows), and the line."""

    source: int = 0
    offset: int = 0
    line: int = 1
    is_inside: bool = False  # inside a document that was too long for one block


@dataclass(frozen=True)
class Block:
    """Unparsed documents: the bytes of lines, or the texts of rows."""

    source: str
    format: TextFormat
    text_column: str
    start: BlockPosition
    end: BlockPosition
    bytes_read: int  # of the file on disk, so far
    data: bytes | tuple[str, ...]


@dataclass
class Documents:
    """The documents of a block."""

    paragraphs: list[list[str]] = field(default_factory=list)  # of each document; no paragraph is empty
    is_inside: bool = False  # the first document continues the last one of the previous block
    bad_lines: int = 0  # skipped

    def skip(self, problem: str, skip_bad: bool | None) -> None:
        """Count a bad line, or raise."""
        if not skip_bad:
            hint = "" if skip_bad is None else " --skip-bad skips such lines."
            raise AlbertkitError(f"{problem}.{hint}")
        self.bad_lines += 1


# Files → blocks -----------------------------------------------------------------------------------------------------


def read_blocks(
    files: list[TextFile], text_column: str | None = None, start: BlockPosition | None = None
) -> Iterator[Block]:
    first = start or BlockPosition()
    for number in range(first.source, len(files)):
        position = first if number == first.source else BlockPosition(number)
        read = _row_blocks if files[number].format in ("parquet", "csv", "tsv") else _byte_blocks
        yield from read(files[number], text_column or DEFAULT_COLUMN, position)


def _byte_blocks(file: TextFile, text_column: str, start: BlockPosition) -> Iterator[Block]:
    with open_text_file(file) as (stream, position):
        _skip_bytes(stream, start.offset)
        data, size, has_more = b"", BLOCK_BYTES, True
        while has_more or data:
            parts, length = [data], len(data)
            while has_more and length < size:
                part = stream.read(size - length)
                has_more = bool(part)
                parts.append(part)
                length += len(part)
            data = b"".join(parts)
            cut, is_inside = _block_end(data, file.format) if has_more else (len(data), False)
            if not cut and len(data) >= DOCUMENT_LIMIT:
                raise AlbertkitError(_long_line(file.name, start.line))
            size = BLOCK_BYTES if cut else size + BLOCK_BYTES
            if cut:
                block, data = data[:cut], data[cut:]
                line = start.line + block.count(b"\n")
                end = BlockPosition(start.source, start.offset + cut, line, is_inside)
                yield Block(file.name, file.format, text_column, start, end, position(), block)
                start = end


def _long_line(name: str, line: int) -> str:
    return (
        f"line {line} of {name} has over {DOCUMENT_LIMIT:,} bytes. Write one paragraph per line, and a blank line "
        "between documents."
    )


def _skip_bytes(stream: Any, count: int) -> None:
    while count > 0:
        part = stream.read(min(count, BLOCK_BYTES))
        if not part:
            raise AlbertkitError("an input is shorter than when the build started. Use --force or another folder.")
        count -= len(part)


def _block_end(data: bytes, format: TextFormat) -> tuple[int, bool]:
    """The number of bytes of a block (0: read more), and whether it ends inside a document."""
    if format == "jsonl":
        return data.rfind(b"\n") + 1, False
    blank = max(data.rfind(end) + len(end) if end in data else 0 for end in (b"\n\n", b"\n\r\n"))
    if blank or len(data) < DOCUMENT_LIMIT:
        return blank, False
    return data.rfind(b"\n") + 1, True


def _row_blocks(file: TextFile, text_column: str, start: BlockPosition) -> Iterator[Block]:
    """Blocks of a table: rows, about a megabyte at a time."""
    texts: list[str] = []
    size = row = 0
    read = _parquet_texts if file.format == "parquet" else _table_texts
    for row, (text, done) in enumerate(read(file, text_column), 1):
        if row <= start.offset:
            continue
        texts.append(text)
        size += len(text)
        if size >= BLOCK_BYTES:
            end = BlockPosition(start.source, row, row + 1)
            yield Block(file.name, file.format, text_column, start, end, done, tuple(texts))
            texts, size, start = [], 0, end
    if texts:
        end = BlockPosition(start.source, row, row + 1)
        yield Block(file.name, file.format, text_column, start, end, file.size, tuple(texts))


def _table_texts(file: TextFile, text_column: str) -> Iterator[tuple[str, int]]:
    """Each text of a csv or tsv file, with the bytes of the file read so far."""
    done = 0

    def count(position: int) -> None:
        nonlocal done
        done = position

    for _, (text,) in read_cells(file, [text_column], DOCUMENT_LIMIT, count):
        yield text, done


def _parquet_texts(file: TextFile, text_column: str) -> Iterator[tuple[str, int]]:
    """Each text of a Parquet file, with its share of the bytes of the file."""
    with open_raw(file) as raw, open_parquet(file.name, raw, [text_column]) as parquet:
        kind = str(parquet.schema_arrow.field(text_column).type)
        if kind not in ("string", "large_string", "string_view"):
            raise AlbertkitError(
                f"column {text_column!r} of {file.name} contains {kind}. Pass one that contains texts (--text-column)."
            )
        total = max(parquet.metadata.num_rows, 1)
        batches = parquet.iter_batches(batch_size=64, columns=[text_column], use_threads=False)
        texts = (text for batch in batches for text in batch.column(0).to_pylist())
        yield from ((text or "", file.size * row // total) for row, text in enumerate(texts, 1))


# Blocks → documents -------------------------------------------------------------------------------------------------


def parse_documents(block: Block, skip_bad: bool | None = None) -> Documents:
    """The documents of a block. With `skip_bad`, lines that are not text are skipped and counted instead of raising.

    skip_bad: None if the caller has no such option, so that the error does not name it.
    """
    result = Documents()
    rows: Sequence[str | None] = block.data if isinstance(block.data, tuple) else _lines(block, result, skip_bad)
    if block.format == "text":
        result.is_inside = block.start.is_inside and (rows[0] is None or bool(rows[0].strip()))
        lines = [line.strip() for line in rows if line is not None]
        result.paragraphs = [list(group) for has_text, group in itertools.groupby(lines, bool) if has_text]
        return result
    for number, row in enumerate(rows, block.start.line):
        if row is None or not row.strip():
            continue
        try:
            text = _json_text(row, block.text_column) if block.format == "jsonl" else row
            if "\0" in text:
                raise BadRow("contains zero bytes. Convert it to UTF-8")
        except BadRow as bad:
            result.skip(f"line {number} of {block.source} {bad}", skip_bad)
            continue
        if len(text) > DOCUMENT_LIMIT:
            raise AlbertkitError(
                f"row {number} of {block.source} has over {DOCUMENT_LIMIT:,} characters. Split it into several."
            )
        lines = [line for line in map(str.strip, text.split("\n")) if line]
        if lines:
            result.paragraphs.append(lines)
    return result


def _lines(block: Block, result: Documents, skip_bad: bool | None) -> list[str | None]:
    """The lines of a block of bytes; None where one is skipped."""
    data = block.data
    assert isinstance(data, bytes)
    if block.start.line == 1:
        data = remove_bom(data, block.source)
    try:
        if b"\0" in data or len(data) > DOCUMENT_LIMIT:
            raise ValueError
        return [*data.decode("utf-8").split("\n")]
    except ValueError:  # check each line, to name or skip the bad ones
        lines: list[str | None] = []
    for number, line in enumerate(data.split(b"\n"), block.start.line):
        if len(line) > DOCUMENT_LIMIT:
            raise AlbertkitError(_long_line(block.source, number))
        try:
            if b"\0" in line:
                raise BadRow("contains zero bytes")
            lines.append(decode(line))
        except BadRow as bad:
            result.skip(f"line {number} of {block.source} {bad}. Omit the file, or convert it to UTF-8", skip_bad)
            lines.append(None)
    return lines


def _json_text(line: str, text_column: str) -> str:
    text = column_value(parse_json_line(line), text_column)
    if text is not None and not isinstance(text, str):
        raise BadRow(f"contains {type_with_article(text)} as {text_column!r}, which must be a text (--text-column)")
    return text or ""


def read_paragraphs(
    files: list[TextFile], text_column: str | None, max_bytes: int | None = None
) -> Iterator[tuple[str, int]]:
    """Each paragraph of some files, with the bytes of the files read so far; at most `max_bytes` of text.

    Each file contributes an equal share of `max_bytes`.
    """
    before = 0
    for file in files:
        budget = None if max_bytes is None else max_bytes // len(files)
        for block in read_blocks([file], text_column):
            for document in parse_documents(block).paragraphs:
                for text in document:
                    yield text, before + block.bytes_read
            if budget is not None:
                budget -= sum(map(len, block.data)) if isinstance(block.data, tuple) else len(block.data)
                if budget <= 0:
                    break
        before += file.size
