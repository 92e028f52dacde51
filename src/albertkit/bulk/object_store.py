"""Names → files, on a disk or in an object store, through the filesystems of pyarrow.

In: paths, folders, patterns (`*`, `**`) and URLs (s3://, gs://, hdfs://, file://). Out: `TextFile`s, open input
files, and output files that are written atomically. After this file: `parts.py`.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from albertkit.errors import AlbertkitError, need
from albertkit.text_reader import DEFAULT_COLUMN, FORMATS, TextFile, TextFormat

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
WILDCARD = re.compile(r"[*?\[]")


def locate(name: str, root: str = "") -> tuple[Any, str]:
    """(filesystem, path in it) of a path or URL; relative paths start at `root`."""
    fs = need("pyarrow.fs", "parquet", "bulk work")
    if "://" not in name:
        return fs.LocalFileSystem(), str(Path(root or ".", name).absolute())
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(name)
    except (OSError, ValueError, NotImplementedError) as error:
        reason = short_reason(error)
        raise AlbertkitError(f"{name} cannot be reached: {reason}. Check the address and your permissions.") from None
    return found


def find_inputs(names: Iterable[str], text_column: str | None = None) -> list[TextFile]:
    """The files in the order of `names`; those of folders and patterns are sorted by name."""
    files = [_text_file(name, info, text_column) for given in names for name, info in _list(str(given))]
    if not files:
        raise AlbertkitError(f"no input file was found. Pass files, folders or patterns of {', '.join(FORMATS)}.")
    return files


def _list(given: str) -> Iterator[tuple[str, Any]]:
    """Names and descriptions of the files of a name, folder or pattern."""
    from pyarrow import fs

    system, path = locate(given)
    try:
        info = system.get_file_info(path)
        if info.type == fs.FileType.File:
            yield given, info
        elif info.type == fs.FileType.Directory:
            yield from _list_folder(given, True, lambda inner: posixpath.splitext(inner)[1].lower() in FORMATS)
        elif match := WILDCARD.search(given):
            cut = given.rfind("/", 0, match.start()) + 1
            pattern = _compile_pattern(given[cut:])
            is_match = lambda inner: pattern.fullmatch(inner) is not None  # noqa: E731
            yield from _list_folder(given[:cut], "/" in given[cut:], is_match)
        else:
            raise AlbertkitError(f"{given} does not exist. Pass files, folders or patterns of {', '.join(FORMATS)}.")
    except OSError as error:
        raise _unreadable(given, error) from None


def _list_folder(folder: str, recursive: bool, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """Files of a folder, by their name inside it; hidden ones are skipped."""
    from pyarrow import fs

    system, path = locate(folder)
    start = path.rstrip("/") + "/"
    infos = system.get_file_info(fs.FileSelector(path, recursive=recursive, allow_not_found=True))
    for info in sorted(infos, key=lambda one: one.path):
        inner = info.path[len(start) :]
        is_hidden = any(step.startswith((".", "_")) for step in inner.split("/"))
        if info.type == fs.FileType.File and not is_hidden and is_wanted(inner):
            yield posixpath.join(folder, inner), info


def _compile_pattern(text: str) -> re.Pattern[str]:
    """A pattern as a regular expression: `*` and `?` stay within a folder, `**/` matches any folders."""
    parts = re.split(r"(\*\*/|\*|\?|\[[^\]]+\])", text)
    kinds = {"**/": r"(?:[^/]+/)*", "*": r"[^/]*", "?": r"[^/]"}
    return re.compile("".join(kinds.get(p) or (p if p.startswith("[") else re.escape(p)) for p in parts))


def _text_file(name: str, info: Any, text_column: str | None) -> TextFile:
    suffix = posixpath.splitext(name)[1].lower()
    if suffix in COMPRESSED:
        raise AlbertkitError(f"{name} is compressed, so parts of it cannot be read. Decompress it first.")
    other: TextFormat = "jsonl" if text_column is not None or suffix == ".json" else "text"
    format = FORMATS.get(suffix, other)
    column = None if format == "text" else text_column or DEFAULT_COLUMN
    return TextFile(name, format, size=int(info.size or 0), modified_ns=int(info.mtime_ns or 0), column=column)


# Reading and writing ------------------------------------------------------------------------------------------------


def open_input(file: TextFile, root: str = "") -> io.BufferedReader:
    """The bytes of a file. Raises if it has changed since the run was planned."""
    system, path = locate(file.name, root)
    try:
        info = system.get_file_info(path)
        if (int(info.size or 0), int(info.mtime_ns or 0)) != (file.size, file.modified_ns):
            raise AlbertkitError(f"{file.name} has changed since the run was planned. Start again in another folder.")
        return io.BufferedReader(system.open_input_file(path), 1 << 20)
    except OSError as error:
        raise _unreadable(file.name, error) from None


@contextlib.contextmanager
def open_output(system: FileSystem, target: str) -> Iterator[IO[bytes]]:
    """A file to write to, which gets its name when it is complete.

    Its temporary name is unique, so a stale process cannot write into the file of its successor.
    """
    folder, name = posixpath.split(target)
    part = f"{folder}/.{name}.{uuid.uuid4().hex}.part"
    try:
        with system.open_output_stream(part) as file:
            yield file
        if system.type_name == "local":
            with open(part, "rb+") as done:  # noqa: PTH123  a path of pyarrow
                os.fsync(done.fileno())
        system.move(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            system.delete_file(part)
        raise


def short_reason(error: Exception) -> str:
    """The first line of an error."""
    return (getattr(error, "strerror", None) or str(error)).split("\n")[0][:160]


def _unreadable(name: str, error: OSError) -> AlbertkitError:
    return AlbertkitError(f"{name} cannot be read: {short_reason(error)}. Check the name and your permissions.")
