"""Names → files, on a disk or in an object store, through the filesystems of pyarrow.

In: paths, folders, patterns (`*`, `**`) and URLs (s3://, gs://, hdfs://, file://). Out: `Source`s, and files that are opened for reading or appear whole
under their name. After this file: `parts.py`.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError, need

FILES = 100_000
FORMS = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Source:
    """One input file."""

    name: str  # as the user wrote it
    form: str
    size: int
    stamp: int  # when it was last changed
    column: int | str | None = None  # where the text stands: a number in csv and tsv, a name in jsonl and parquet


def place(name: str, root: str = "") -> tuple[Any, str]:
    """(filesystem, path in it) of a path or URL; relative paths begin at `root`."""
    fs = need("pyarrow.fs", "parquet", "bulk work")
    if "://" not in name:
        return fs.LocalFileSystem(), str(Path(root or ".", name).absolute())
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(name)
    except (OSError, ValueError, NotImplementedError) as error:
        raise AlbertkitError(f"{name} cannot be reached: {_short(error)}; check the address and the access") from None
    return found


def find(names: Iterable[str], field: str | None = None) -> list[Source]:
    """The files that are meant, in the order given; those of folders and patterns sorted by name."""
    found = [_source(name, info, field) for given in names for name, info in _listed(str(given))]
    if not found:
        raise AlbertkitError(f"no input file was found; name files, folders or patterns of {', '.join(FORMS)}")
    if len(found) > FILES:
        raise AlbertkitError(f"there are {len(found):,} input files and at most {FILES:,} are taken: join some of them")
    return found


def _listed(given: str) -> Iterator[tuple[str, Any]]:
    """Names and descriptions of the files that a name, folder or pattern means."""
    from pyarrow import fs

    system, path = place(given)
    try:
        info = system.get_file_info(path)
        if info.type == fs.FileType.File:
            yield given, info
        elif info.type == fs.FileType.Directory:
            yield from _under(given, True, lambda inner: posixpath.splitext(inner)[1].lower() in FORMS)
        elif match := MAGIC.search(given):
            cut = given.rfind("/", 0, match.start()) + 1
            inside = _pattern(given[cut:])
            yield from _under(given[:cut], "/" in given[cut:], lambda inner: inside.fullmatch(inner) is not None)
        else:
            raise AlbertkitError(f"{given} does not exist; name files, folders or patterns of {', '.join(FORMS)}")
    except OSError as error:
        raise AlbertkitError(f"{given} cannot be read: {_short(error)}; check the name and the access") from None


def _under(folder: str, deep: bool, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """Files of a folder whose name inside it is wanted; hidden ones are passed over."""
    from pyarrow import fs

    system, path = place(folder)
    start = path.rstrip("/") + "/"
    infos = system.get_file_info(fs.FileSelector(path, recursive=deep, allow_not_found=True))
    for info in sorted(infos, key=lambda one: one.path):
        inner = info.path[len(start) :]
        hidden = any(step.startswith((".", "_")) for step in inner.split("/"))
        if info.type == fs.FileType.File and not hidden and wanted(inner):
            yield posixpath.join(folder, inner), info


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern as a regular expression: `*` and `?` stay within a folder, `**/` goes through all of them."""
    parts = re.split(r"(\*\*/|\*|\?|\[[^\]]+\])", text)
    kinds = {"**/": r"(?:[^/]+/)*", "*": r"[^/]*", "?": r"[^/]"}
    return re.compile("".join(kinds.get(p) or (p if p.startswith("[") else re.escape(p)) for p in parts))


def _source(name: str, info: Any, field: str | None) -> Source:
    suffix = posixpath.splitext(name)[1].lower()
    if suffix in PACKED:
        raise AlbertkitError(f"{name} is packed, and a packed file cannot be read from its middle: unpack it first")
    form = FORMS.get(suffix, "jsonl" if field is not None or suffix == ".json" else "text")
    column: int | str | None = None if form == "text" else field or "text"
    return Source(name, form, int(info.size or 0), int(info.mtime_ns or 0), column)


# Reading and writing ---------------------------------------------------------------------------------------------


def opened(source: Source, root: str = "") -> Any:
    """The bytes of a source, if it is still the file that was planned with."""
    system, path = place(source.name, root)
    try:
        info = system.get_file_info(path)
        if (int(info.size or 0), int(info.mtime_ns or 0)) != (source.size, source.stamp):
            raise AlbertkitError(f"{source.name} was changed since the work was planned: begin anew in another folder")
        return io.BufferedReader(system.open_input_file(path), 1 << 20)
    except OSError as error:
        raise AlbertkitError(f"{source.name} cannot be read: {_short(error)}; check the name and the access") from None


@contextlib.contextmanager
def appearing(system: Any, target: str) -> Iterator[Any]:
    """A file to write to, which appears under its name when it is whole, and otherwise not at all.

    The name meanwhile is another one each time, so that a process that was given up for dead cannot write into what its successor writes.
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


def _short(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).split("\n")[0][:160]
