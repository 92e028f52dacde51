"""Paths → input files, and each of them opened and unpacked.

In: paths of text, JSONL and Parquet files, folders of them, or "-" for stdin. Out: `Source`s, and the bytes in each; .gz,
.xz and .zst are unpacked on the way. Before this file: nothing; after it: `reading.py`, which cuts the bytes into blocks.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, Literal

from albertkit.errors import AlbertkitError, need

Form = Literal["text", "jsonl", "parquet"]
FILES = 100_000
FORMS: dict[str, Form] = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
PACKED = (".gz", ".xz", ".zst")


@dataclass(frozen=True)
class Source:
    """One input file."""

    name: str  # as the user wrote it; "-" is stdin
    form: Form
    packed: str  # "", ".gz", ".xz" or ".zst"
    size: int  # bytes on disk
    stamp: int  # when it was last changed


def find(paths: Iterable[Path | str], field: str | None = None) -> list[Source]:
    """The sources in the order given, folders walked in sorted order; with a field, plain files are read as JSONL."""
    found = [_source(name, field) for path in paths for name in _walk(str(path))]
    if not found:
        raise AlbertkitError(
            f"no text file was found; name files or folders with {', '.join(FORMS)}, also packed ({', '.join(PACKED)})"
        )
    if len(found) > FILES:
        raise AlbertkitError(f"there are {len(found):,} files and at most {FILES:,} make a corpus: join some of them")
    if sum(source.name == "-" for source in found) > 1:
        raise AlbertkitError("stdin was named twice and can be read once: name '-' once")
    return found


def _walk(path: str) -> Iterator[str]:
    """A file itself; of a folder, the files whose names say that they hold text."""
    if path == "-" or not Path(path).is_dir():
        yield path
        return
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and Path(_unpacked(name)).suffix.lower() in FORMS:
                yield str(Path(folder, name))


def _unpacked(name: str) -> str:
    """A name without .gz, .xz or .zst."""
    return name[: -len(Path(name).suffix)] if Path(name).suffix.lower() in PACKED else name


def _source(name: str, field: str | None) -> Source:
    if name == "-":
        return Source("-", "text" if field is None else "jsonl", "", 0, 0)
    try:
        stat = Path(name).stat()
    except OSError as error:
        raise AlbertkitError(f"{name} cannot be read: {error.strerror}; name files or folders of text") from None
    if not S_ISREG(stat.st_mode):
        raise AlbertkitError(f"{name} is no regular file, and inputs are read twice; pipe it in and name '-' instead")
    suffix = Path(name).suffix.lower()
    form = {**FORMS, ".json": "jsonl"}.get(
        Path(_unpacked(name)).suffix.lower(), "text"
    )  # read where it is named itself
    if field is not None and form == "text":
        form = "jsonl"
    if form == "parquet" and suffix in PACKED:
        raise AlbertkitError(f"{name} is a packed Parquet file, which cannot be read in pieces: unpack it first")
    return Source(name, form, suffix if suffix in PACKED else "", stat.st_size, stat.st_mtime_ns)


# Opening them -----------------------------------------------------------------------------------------------------


class _Counted(io.RawIOBase):
    """A file that counts the bytes read from it."""

    def __init__(self, file: Any):
        self.file, self.count = file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self.file.readinto(buffer) or 0
        self.count += size
        return size


class _Zst(io.RawIOBase):
    """A .zst file unpacked; unlike the library's own reader it notices when the end is missing."""

    def __init__(self, file: Any, library: Any):
        self.file, self.library, self.frame = file, library, library.decompressobj()
        self.begun, self.packed, self.held = False, b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.held:
            packed = self.packed or self.file.read(1024)  # a little at a time, since it may be a thousand times as much
            if not packed:
                if self.begun:
                    raise EOFError("its end is missing")
                return 0
            self.held, self.begun, self.packed = self.frame.decompress(packed), True, b""
            if self.frame.eof:
                self.packed, self.frame, self.begun = self.frame.unused_data, self.library.decompressobj(), False
        size = min(len(self.held), len(buffer))
        buffer[:size], self.held = self.held[:size], self.held[size:]
        return size


@contextmanager
def opened(source: Source) -> Iterator[tuple[Any, _Counted]]:
    """The unpacked bytes of a source, and the count of what was read on disk; every failure is one sentence."""
    damaged = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)
    try:
        with open_raw(source) as file:
            counted = _Counted(file)
            buffered = io.BufferedReader(counted, 1 << 14)
            yield _unpack(buffered, source), counted
    except AlbertkitError:
        raise
    except damaged as error:
        raise AlbertkitError(_damage(source, error)) from None
    except OSError as error:
        raise AlbertkitError(f"{source.name} cannot be read: {error.strerror or error}; check the disk") from None
    except Exception as error:
        if type(error).__name__ == "ZstdError":  # the module may not be installed
            raise AlbertkitError(_damage(source, error)) from None
        raise


def _damage(source: Source, error: Exception) -> str:
    return f"{source.name} cannot be unpacked ({str(error)[:100]}): it is damaged or cut off, so copy it anew"


def open_raw(source: Source) -> Any:
    """The file as it lies on disk, if it is still the one that was found."""
    if source.name == "-":
        return nullcontext(sys.stdin.buffer)
    file = Path(source.name).open("rb", buffering=0)  # noqa: SIM115  the caller closes it
    stat = os.fstat(file.fileno())
    if (stat.st_size, stat.st_mtime_ns) != (source.size, source.stamp):
        file.close()
        raise AlbertkitError(f"{source.name} was changed while the corpus was made: start again when it is finished")
    return file


def _unpack(file: Any, source: Source) -> Any:
    if source.packed == ".gz":
        return gzip.GzipFile(fileobj=file)
    if source.packed == ".xz":
        return lzma.LZMAFile(file)
    if source.packed == ".zst":
        zstandard: Any = need("zstandard", "zst", f"reading {source.name}")
        return io.BufferedReader(_Zst(file, zstandard.ZstdDecompressor()), 1 << 16)
    return file
