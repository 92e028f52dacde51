"""Reader of text files: .txt, .jsonl, .csv, .tsv, .parquet and stdin, also compressed.

In: paths, folders, or "-" for stdin. Out: every row (`read_rows`), texts that are not blank (`read_texts`) or records
(`read_records`). `data/documents.py`, `bulk/parts.py`, `search/index_records.py` and `tasks/readers/` use the functions
below them. Lines and rows are streamed, so memory use is bounded. `vector_writer.py` writes results.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import lzma
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from stat import S_ISREG
from typing import IO, TYPE_CHECKING, Any, Literal

from albertkit.errors import AlbertkitError, nearest, need, type_with_article

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

TextFormat = Literal["text", "jsonl", "csv", "tsv", "parquet"]
FORMATS: Mapping[str, TextFormat] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
PLAIN_TEXT = (".txt", ".md", ".rst")  # one text per line, whatever the text column is
COMPRESSIONS = (".gz", ".xz")
LINE_LIMIT = 64 << 20  # bytes of one line
TEXT_LIMIT = 1_000_000  # characters of one text in indexes, labelled files and bulk processing
MAX_FILES = 100_000
BOM = b"\xef\xbb\xbf"  # some editors write it at the start of a UTF-8 file
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
DEFAULT_COLUMN = "text"
ENCODING_REMEDY = (
    "convert the file from its encoding, such as  iconv -f GB18030 -t UTF-8  (Chinese), or from WINDOWS-1252 or "
    "ISO-8859-1 (Western Europe)"
)


class BadRow(ValueError):
    """The reason why a row contains no text, as the end of a sentence: "is not UTF-8"."""


@dataclass(frozen=True)
class TextFile:
    """One input file."""

    name: str  # as the user wrote it; "-" is stdin
    format: TextFormat
    compression: str = ""  # "", ".gz" or ".xz"
    size: int = 0  # bytes on disk
    modified_ns: int = 0
    column: str | int | None = None  # where the text is, if known: a name, or in csv and tsv an index
    width: int = 0  # cells of a row in csv and tsv, if known


@dataclass(frozen=True)
class Record:
    """One text with its id: the value of the id column, or `file:line`.

    >>> from albertkit import Record
    >>> Record(id="notes.txt:1", text="The doctor is in.").text
    'The doctor is in.'
    """

    id: str
    text: str
    source: str = ""
    line: int = 0


def read_texts(path: Path | str, text_column: str | None = None) -> Iterator[str]:
    """The texts of a file, a folder or stdin ("-"), without blank texts.

    Text files have one text per line. In .jsonl, .csv, .tsv and .parquet files the text is in `text_column`; the
    default is "text". If `text_column` is passed, stdin and files with an unknown suffix are read as JSON lines.
    """
    for file in find_text_files([path], text_column, allow_pipes=True):
        yield from (record.text for record in read_records(file, text_column))


def read_rows(path: Path | str, text_column: str | None = None) -> Iterator[str]:
    """Every text of a file, a folder or stdin ("-"), unchanged: one per row, also blank ones."""
    files = find_text_files([path], text_column, allow_pipes=True)
    check_text_column(files, text_column)
    for file in files:
        yield from (text for _, text, _ in _read_texts(file, text_column))


def read_records(
    file: TextFile, text_column: str | None = None, id_column: str | None = None, limit: int = LINE_LIMIT
) -> Iterator[Record]:
    """The records of a file, without blank texts. limit: bytes of one line."""
    for number, text, id in _read_texts(file, text_column, id_column, limit):
        if text.strip():
            yield Record(f"{file.name}:{number}" if id is None else id, text.strip(), file.name, number)


def _read_texts(
    file: TextFile, text_column: str | None = None, id_column: str | None = None, limit: int = LINE_LIMIT
) -> Iterator[tuple[int, str, str | None]]:
    """(line, text, id) of each row."""
    if file.format == "text":
        rows: Iterator[tuple[int, list[Any]]] = ((number, [line]) for number, line in read_lines(file, limit))
    else:
        columns = [text_column or DEFAULT_COLUMN, *([] if id_column is None else [id_column])]
        rows = read_cells(file, columns, limit)
    for number, (text, *ids) in rows:
        if not isinstance(text, str):
            kind = "null" if text is None else type_with_article(text)
            problem = f"{_place(file, number)} contains {kind} as {text_column or DEFAULT_COLUMN!r}"
            raise AlbertkitError(f"{problem}, which must be a text. Correct it, or pass another --text-column.")
        if number == 1 and file.format == "text":
            _warn_of_json(file, text)
        yield number, text, str(ids[0]) if ids else None


def _warn_of_json(file: TextFile, line: str) -> None:
    """Warn if the first text of a file is a JSON object."""
    with contextlib.suppress(BadRow):
        if line.startswith("{") and parse_json_line(line):
            remedy = "Pass --text-column to read one field" if file.name == "-" else "Rename the file to .jsonl"
            warnings.warn(f"{_place(file, 1)} is a JSON object, which is read as a text. {remedy}.", stacklevel=2)


# Paths → files ------------------------------------------------------------------------------------------------------


def find_text_files(
    paths: Iterable[Path | str],
    text_column: str | None = None,
    folder_suffixes: Collection[str] = (),
    allow_pipes: bool = False,
) -> list[TextFile]:
    """The files in the order of `names`; folders contribute their files with `folder_suffixes`, sorted.

    Files with unknown suffixes are text, or JSONL if there is a text column. folder_suffixes: the default is the
    suffixes of `FORMATS`. allow_pipes: the caller reads the files only once.
    """
    names = [name for path in paths for name in _walk(str(path), folder_suffixes or FORMATS)]
    files = [_text_file(name, text_column) for name in names]
    pipe = next((file.name for file in files if file.name != "-" and not Path(file.name).is_file()), None)
    if pipe is not None and not allow_pipes:
        raise AlbertkitError(f"{pipe} is not a regular file: inputs are read twice. Pipe it to stdin and pass '-'.")
    if not files:
        raise AlbertkitError(f"no text file was found. Pass files or folders with {', '.join(FORMATS)} (.gz, .xz).")
    if len(files) > MAX_FILES:
        raise AlbertkitError(f"{len(files):,} files were passed; the maximum is {MAX_FILES:,}. Merge some of them.")
    if sum(file.name == "-" for file in files) > 1:
        raise AlbertkitError("stdin was passed twice: it can be read only once. Pass '-' once.")
    return files


def check_text_column(files: Sequence[TextFile], text_column: str | None) -> None:
    """Raise if a text column was passed and no file has columns."""
    if text_column is not None and files and all(file.format == "text" for file in files):
        raise AlbertkitError(
            f"text column {text_column!r} was passed, but {files[0].name} is plain text: one text per line, without "
            "columns. Omit --text-column, or rename the file to .jsonl, .csv or .tsv."
        )


def _walk(path: str, suffixes: Collection[str]) -> Iterator[str]:
    if path == "-" or not Path(path).is_dir():
        yield path
        return
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and content_suffix(name) in suffixes:
                yield str(Path(folder, name))


def content_suffix(name: str) -> str:
    """The suffix in lower case, without .gz or .xz: `a.JSONL.gz` → `.jsonl`."""
    path = Path(name)
    return Path(path.stem if path.suffix.lower() in COMPRESSIONS else path.name).suffix.lower()


def _text_file(name: str, text_column: str | None) -> TextFile:
    if name == "-":
        return TextFile("-", "text" if text_column is None else "jsonl")
    try:
        stat = Path(name).stat()
    except OSError as error:
        raise AlbertkitError(f"{name} cannot be read: {error.strerror}. Pass files or folders of text.") from None
    suffix, inner = Path(name).suffix.lower(), content_suffix(name)
    compression = suffix if suffix in COMPRESSIONS else ""
    if suffix in (".bz2", ".zip", ".zst"):
        raise AlbertkitError(f"{name} is compressed; only {', '.join(COMPRESSIONS)} are supported. Decompress it.")
    format = format_of(inner, text_column)
    if format == "parquet" and compression:
        raise AlbertkitError(f"{name} is a compressed Parquet file, which cannot be read in parts. Decompress it.")
    return TextFile(name, format, compression, stat.st_size, stat.st_mtime_ns)


def format_of(suffix: str, text_column: str | None) -> TextFormat:
    """The format of a file, by its suffix without compression."""
    if suffix in PLAIN_TEXT:
        return "text"
    return FORMATS.get(suffix, "jsonl" if text_column is not None or suffix == ".json" else "text")


# Files → bytes ------------------------------------------------------------------------------------------------------


@contextmanager
def open_text_file(file: TextFile) -> Iterator[tuple[Any, Callable[[], int]]]:
    """The decompressed bytes of a file, and a function that returns how many bytes were read from the disk."""
    try:
        with open_raw(file) as raw:
            stream: Any = io.BufferedReader(raw, 1 << 14) if isinstance(raw, io.RawIOBase) else raw
            if file.compression == ".gz":
                stream = gzip.GzipFile(fileobj=stream)
            elif file.compression == ".xz":
                stream = lzma.LZMAFile(stream)  # noqa: SIM115  need not be closed
            yield stream, raw.tell if raw.seekable() else lambda: 0
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        reason = str(error)[:100]
        raise AlbertkitError(f"{file.name} cannot be decompressed ({reason}): it is damaged. Copy it again.") from None
    except OSError as error:
        raise AlbertkitError(f"{file.name} cannot be read: {error.strerror or error}. Check the disk.") from None


def open_raw(file: TextFile) -> AbstractContextManager[IO[bytes] | io.FileIO]:
    """The bytes on disk, if the file is still the one that was found."""
    if file.name == "-":
        return nullcontext(sys.stdin.buffer)
    raw = Path(file.name).open("rb", buffering=0)  # noqa: SIM115  the caller closes it
    stat = os.fstat(raw.fileno())
    if S_ISREG(stat.st_mode) and (stat.st_size, stat.st_mtime_ns) != (file.size, file.modified_ns):
        raw.close()
        raise AlbertkitError(f"{file.name} changed while it was read. Rerun the command when the file is complete.")
    return raw


# Bytes → lines and rows ---------------------------------------------------------------------------------------------


def _place(file: TextFile, number: int) -> str:
    return f"line {number} of {'stdin' if file.name == '-' else file.name}"


def read_lines(
    file: TextFile, limit: int = LINE_LIMIT, on_read: Callable[[int], object] | None = None
) -> Iterator[tuple[int, str]]:
    """Each line with its number, without its newline. A line that is too long or not UTF-8 is an error.

    on_read: called with the bytes read from the disk so far, before each line.
    """
    with open_text_file(file) as (stream, position):
        for number, line in enumerate(iter(lambda: stream.readline(limit + 3), b""), 1):
            if len(line.rstrip(b"\r\n")) > limit:
                raise AlbertkitError(f"{_place(file, number)} has over {limit:,} bytes. Break it into several lines.")
            if on_read is not None:
                on_read(position())
            try:
                yield number, decode(remove_bom(line, file.name) if number == 1 else line).rstrip("\r\n")
            except BadRow as bad:
                raise AlbertkitError(f"{_place(file, number)} {bad}; {ENCODING_REMEDY}.") from None


def read_cells(
    file: TextFile, columns: Sequence[str], limit: int, on_read: Callable[[int], object] | None = None
) -> Iterator[tuple[int, list[Any]]]:
    """The values of some columns of a .jsonl, .csv, .tsv or .parquet file, with the line (or row) number."""
    if file.format == "parquet":
        with open_raw(file) as raw, open_parquet(file.name, raw, columns) as parquet:
            batches = parquet.iter_batches(batch_size=64, columns=list(columns), use_threads=False)
            tables = ([batch.column(column).to_pylist() for column in columns] for batch in batches)
            yield from enumerate((list(row) for table in tables for row in zip(*table, strict=True)), 1)
    elif file.format == "jsonl":
        for number, line in read_lines(file, limit):
            if line.strip():
                try:
                    row = parse_json_line(line)
                    yield number, [column_value(row, column) for column in columns]
                except BadRow as bad:
                    raise AlbertkitError(f"{_place(file, number)} {bad}.") from None
    else:
        yield from _table_rows(file, columns, (line + "\n" for _, line in read_lines(file, limit, on_read)))


def _table_rows(file: TextFile, columns: Sequence[str], lines: Iterator[str]) -> Iterator[tuple[int, list[Any]]]:
    """Quotes enclose cells in csv, also over several lines. In tsv they are ordinary characters."""
    csv.field_size_limit(LINE_LIMIT)
    is_tsv = file.format == "tsv"
    reader = csv.reader(lines, "excel-tab", quoting=csv.QUOTE_NONE) if is_tsv else csv.reader(lines, strict=True)
    indexes: list[int] = []
    line = width = 0
    try:
        for cells in reader:
            first, line = line + 1, reader.line_num
            if is_blank_line(cells, width):
                continue
            if not indexes:
                indexes = [column_index(cells, column, file.name) for column in columns]
                width = table_width(cells, columns[0])
                if not columns[0].isdigit():  # a number means that there is no header
                    continue
            yield first, [get_cell(cells, index, width) for index in indexes]
    except BadRow as bad:
        raise AlbertkitError(f"{_place(file, line)} {bad}. Correct it.") from None
    except csv.Error as error:  # in the row after `line`
        raise AlbertkitError(f"{_place(file, line + 1)} is not valid {file.format}: {error}. Correct it.") from None


def table_width(first_row: Sequence[str], column: str) -> int:
    """The cells that every row has; 0 if there is no header to tell."""
    return len(first_row) if len(first_row) == 1 or not column.isdigit() else 0


def is_blank_line(cells: Sequence[str], width: int) -> bool:
    """Whether a line of a table contains no row. In a table of one column, a blank line is a row with a blank text."""
    return width != 1 and not "".join(cells).strip() and len(cells) < 2


def get_cell(cells: Sequence[str], index: int, width: int) -> str:
    """A cell of a row. A row with more cells than the header is an error: its text would be cut at the separator."""
    if width and any(map(str.strip, cells[width:])):
        raise BadRow(f"has {len(cells)} cells, but the first row has {width}: quote a cell that contains the separator")
    if index >= max(len(cells), width == 1):
        raise BadRow(f"has {len(cells)} cells, but column {index + 1} is needed")
    return cells[index] if cells else ""


def column_index(header: Sequence[str], column: str, name: str) -> int:
    """The index of a column: by its number from 1, else by its name in the first row."""
    if column.isdigit() and int(column) > 0:
        return int(column) - 1
    names = [cell.strip() for cell in header]
    if names.count(column) > 1:
        raise AlbertkitError(f"{name} has {names.count(column)} columns {column!r}. Rename all but one.")
    if len(names) == 1 and names != [column] and ";" in names[0]:
        raise AlbertkitError(f"{name} has semicolons between its cells. Save it as .csv with commas.")
    if column not in names:
        raise AlbertkitError(f"{name} {_missing('column', column, names)}, or a number from 1 if there is no header.")
    return names.index(column)


def _missing(what: str, column: str, names: Iterable[str]) -> str:
    """The end of an error message about a file or line that lacks a column or field."""
    listed = ", ".join(list(names)[:20]) or "none"
    return f"has no {what} {column!r}{nearest(column, names)}; its {what}s: {listed}. Pass one (--text-column)"


def remove_bom(start: bytes, name: str) -> bytes:
    """The start of a file without a byte-order mark. That of UTF-16 is an error."""
    if start.startswith(UTF16_BOMS):
        new = "new" + Path(name).suffix
        raise AlbertkitError(f"{name} is UTF-16; it must be UTF-8. Run  iconv -f UTF-16 -t UTF-8 {quote(name)} > {new}")
    return start.removeprefix(BOM)


def decode(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRow("is not UTF-8") from None


def parse_json_line(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"is not JSON ({str(error)[:100]}). Correct it") from None
    if not isinstance(row, dict):
        raise BadRow(f"contains {type_with_article(row)}; each line must be a JSON object with a text")
    return row


def column_value(row: Mapping[str, Any], column: str) -> object:
    """The value of a field of a JSON object."""
    if column not in row:
        raise BadRow(_missing("field", column, row))
    return row[column]


@contextmanager
def open_parquet(name: str, raw: IO[bytes] | io.FileIO, columns: Sequence[str] = ()) -> Iterator[ParquetFile]:
    """An open binary file as a `pyarrow.parquet.ParquetFile` with the required columns; damage raises one error."""
    pyarrow: Any = need("pyarrow", "parquet", f"reading {name}")
    parquet: Any = need("pyarrow.parquet", "parquet", f"reading {name}")
    try:
        with parquet.ParquetFile(raw, pre_buffer=False) as file:
            names = file.schema_arrow.names
            for column in columns:
                if column not in names:
                    raise AlbertkitError(f"{name} {_missing('column', column, names)}.")
            yield file
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error)[:100]
        raise AlbertkitError(f"{name} is not a complete Parquet file ({reason}). Copy or write it again.") from None


def replace_surrogates(text: str) -> str:
    """A text that UTF-8 can encode: lone surrogates, which JSON and arguments may contain, become "?"."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
