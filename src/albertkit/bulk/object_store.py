"""Names → files, on a disk or in an object store.

In: paths, folders, patterns (`*`, `**`) and URLs (s3://, gs://, hdfs://, file://). Out: `TextFile`s, open input
files, and output files that are written atomically. Before this file: `storage.py`; after it: `parts.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import posixpath
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from albertkit.bulk.storage import ArrowStorage, FileEntry, LocalStorage, Storage
from albertkit.errors import AlbertkitError, need, short_reason
from albertkit.text_reader import DEFAULT_COLUMN, FORMATS, TextFile, format_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
WILDCARD = re.compile(r"[*?\[]")


def locate(name: str, root: str = "") -> tuple[Storage, str]:
    """(storage, path in it) of a path or URL; relative paths start at `root`."""
    if "://" not in name:
        return LocalStorage(), str(Path(root or ".", name).absolute())
    fs = need("pyarrow.fs", "parquet", f"{name.partition('://')[0]}://")
    try:
        system, path = fs.FileSystem.from_uri(name)
    except (OSError, ValueError, NotImplementedError) as error:
        reason = short_reason(error)
        raise AlbertkitError(f"{name} cannot be reached: {reason}. Check the address and your permissions.") from None
    return (LocalStorage() if system.type_name == "local" else ArrowStorage(system)), path


def find_inputs(names: Iterable[str], text_column: str | None = None) -> list[TextFile]:
    """The files in the order of `names`; those of folders and patterns are sorted by name."""
    files = [_text_file(name, entry, text_column) for address in names for name, entry in _list(str(address))]
    if not files:
        raise AlbertkitError(f"no input file was found. Pass files, folders or patterns of {', '.join(FORMATS)}.")
    return files


def _list(address: str) -> Iterator[tuple[str, FileEntry]]:
    """Names and descriptions of the files of a name, folder or pattern."""
    storage, path = locate(address)
    try:
        entry = storage.find(path)
        if entry is not None and not entry.is_folder:
            yield address, entry
        elif entry is not None:
            yield from _list_folder(address, True, lambda inner: posixpath.splitext(inner)[1].lower() in FORMATS)
        elif match := WILDCARD.search(address):
            cut = address.rfind("/", 0, match.start()) + 1
            pattern = _compile_pattern(address[cut:])
            is_match = lambda inner: pattern.fullmatch(inner) is not None  # noqa: E731
            yield from _list_folder(address[:cut], "/" in address[cut:], is_match)
        else:
            raise AlbertkitError(f"{address} does not exist. Pass files, folders or patterns of {', '.join(FORMATS)}.")
    except OSError as error:
        raise _unreadable(address, error) from None


def _list_folder(folder: str, recursive: bool, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, FileEntry]]:
    """Files of a folder, by their name inside it; hidden ones are skipped."""
    storage, path = locate(folder)
    start = path.rstrip("/") + "/"
    for entry in storage.list_folder(path, recursive):
        inner = entry.path[len(start) :]
        is_hidden = any(step.startswith((".", "_")) for step in inner.split("/"))
        if not entry.is_folder and not is_hidden and is_wanted(inner):
            yield posixpath.join(folder, inner), entry


def _compile_pattern(text: str) -> re.Pattern[str]:
    """A pattern as a regular expression: `*` and `?` stay within a folder, `**/` matches any folders."""
    parts = re.split(r"(\*\*/|\*|\?|\[[^\]]+\])", text)
    kinds = {"**/": r"(?:[^/]+/)*", "*": r"[^/]*", "?": r"[^/]"}
    return re.compile("".join(kinds.get(p) or (p if p.startswith("[") else re.escape(p)) for p in parts))


def _text_file(name: str, entry: FileEntry, text_column: str | None) -> TextFile:
    suffix = posixpath.splitext(name)[1].lower()
    if suffix in COMPRESSED:
        raise AlbertkitError(f"{name} is compressed, so parts of it cannot be read. Decompress it first.")
    format = format_of(suffix, text_column)
    column = None if format == "text" else text_column or DEFAULT_COLUMN
    return TextFile(name, format, size=entry.size, modified_ns=entry.modified_ns, column=column)


# Reading and writing ------------------------------------------------------------------------------------------------


def open_input(file: TextFile, root: str = "") -> io.BufferedReader:
    """The bytes of a file. Raises if it has changed since the run was planned."""
    storage, path = locate(file.name, root)
    try:
        entry = storage.find(path)
        if entry is None or (entry.size, entry.modified_ns) != (file.size, file.modified_ns):
            raise AlbertkitError(f"{file.name} has changed since the run was planned. Start again in another folder.")
        raw = storage.open_input(path)
        return raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast(Any, raw), 1 << 20)
    except OSError as error:
        raise _unreadable(file.name, error) from None


class HashingFile(io.RawIOBase):
    """A file that is written from begin to end, with the SHA-256 of its content."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.hash = file, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        """Add some bytes."""
        self.file.write(data)
        self.hash.update(data)
        return memoryview(data).nbytes


@contextlib.contextmanager
def open_output(storage: Storage, target: str, checksum: str | None = None) -> Iterator[HashingFile]:
    """A file to write to, which gets its name when it is complete.

    Its temporary name is unique, so a stale process cannot write into the file of its successor. `checksum` is a file
    for its SHA-256. It is written first, so a complete file always has one.
    """
    folder, name = posixpath.split(target)
    part = f"{folder}/.{name}.{uuid.uuid4().hex}.part"
    try:
        with storage.open_output(part) as file:
            hashing = HashingFile(file)
            yield hashing
            if storage.is_local:
                file.flush()
                os.fsync(file.fileno())
        if checksum is not None:
            with open_output(storage, checksum) as line:
                line.write(checksum_line(hashing.hash.hexdigest(), name))
        storage.move(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            storage.delete(part)
        raise


def checksum_line(sha256: str, name: str) -> bytes:
    """The content of a checksum file, which `sha256sum -c` reads."""
    return f"{sha256}  {name}\n".encode()


def is_intact(storage: Storage, target: str, checksum: str) -> bool:
    """Whether a file is as it was written."""
    sha256 = hashlib.sha256()
    try:
        with storage.open_input(checksum) as file:
            expected = file.read()
        with storage.open_input(target) as file:
            while block := file.read(1 << 20):
                sha256.update(block)
    except OSError:
        return False
    return expected == checksum_line(sha256.hexdigest(), posixpath.basename(target))


def _unreadable(name: str, error: OSError) -> AlbertkitError:
    return AlbertkitError(f"{name} cannot be read: {short_reason(error)}. Check the name and your permissions.")
