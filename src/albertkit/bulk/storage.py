"""Files on a disk, and in an object store through pyarrow, with the same methods.

In: paths. Out: `FileEntry`s and open files. Work on local files needs no pyarrow. After this file: `object_store.py`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem


@dataclass(frozen=True)
class FileEntry:
    """A file or folder."""

    path: str
    is_folder: bool
    size: int
    modified_ns: int


class Storage(Protocol):
    """What bulk work needs of a filesystem. Every method may raise an `OSError`."""

    is_local: bool

    def find(self, path: str) -> FileEntry | None: ...
    def list_folder(self, folder: str, recursive: bool = False) -> list[FileEntry]: ...  # sorted
    def create_folder(self, path: str) -> None: ...  # and its parents
    def open_input(self, path: str) -> IO[bytes]: ...
    def open_output(self, path: str) -> IO[bytes]: ...
    def move(self, source: str, target: str) -> None: ...  # an existing target is replaced
    def delete(self, path: str) -> None: ...


class LocalStorage:
    """The disks of this machine."""

    is_local = True

    def find(self, path: str) -> FileEntry | None:
        if not Path(path).is_file() and not Path(path).is_dir():
            return None
        stat = Path(path).stat()
        return FileEntry(path, Path(path).is_dir(), stat.st_size, stat.st_mtime_ns)

    def list_folder(self, folder: str, recursive: bool = False) -> list[FileEntry]:

        def fail(error: OSError) -> None:
            raise error

        if not Path(folder).is_dir():
            return []
        inside: list[str] = []
        for place, folders, files in os.walk(folder, onerror=fail, followlinks=False):
            inside += [str(Path(place) / name) for name in (*folders, *files)]
            if not recursive:
                break
        entries = [self.find(path) for path in sorted(inside)]
        return [entry for entry in entries if entry is not None]

    def create_folder(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def open_input(self, path: str) -> IO[bytes]:
        return Path(path).open("rb")

    def open_output(self, path: str) -> IO[bytes]:
        return Path(path).open("wb")

    def move(self, source: str, target: str) -> None:
        Path(source).replace(target)

    def delete(self, path: str) -> None:
        Path(path).unlink()


class ArrowStorage:
    """An object store (S3, Google Cloud, HDFS), through a filesystem of pyarrow."""

    is_local = False

    def __init__(self, system: FileSystem) -> None:
        self.system = system

    def find(self, path: str) -> FileEntry | None:
        return _entry(self.system.get_file_info(path))

    def list_folder(self, folder: str, recursive: bool = False) -> list[FileEntry]:
        from pyarrow.fs import FileSelector

        infos = self.system.get_file_info(FileSelector(folder, recursive=recursive, allow_not_found=True))
        entries = [_entry(info) for info in sorted(infos, key=lambda info: info.path)]
        return [entry for entry in entries if entry is not None]

    def create_folder(self, path: str) -> None:
        self.system.create_dir(path, recursive=True)

    def open_input(self, path: str) -> IO[bytes]:
        return cast("IO[bytes]", self.system.open_input_file(path))

    def open_output(self, path: str) -> IO[bytes]:
        return cast("IO[bytes]", self.system.open_output_stream(path))

    def move(self, source: str, target: str) -> None:
        self.system.move(source, target)

    def delete(self, path: str) -> None:
        self.system.delete_file(path)


def _entry(info: FileInfo) -> FileEntry | None:
    from pyarrow.fs import FileType

    if info.type not in (FileType.File, FileType.Directory):
        return None
    size, modified = (cast(Any, value) or 0 for value in (info.size, info.mtime_ns))
    return FileEntry(info.path, info.type == FileType.Directory, int(size), int(modified))
