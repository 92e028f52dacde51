"""Bounded reading and atomic writing of files and folders.

In: paths. Out: open files, JSON objects, SHA-256 hashes. `new_folder` writes a folder atomically. Nothing is unpickled.
After this file: `tensor_file.py` reads weights.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from albertkit.errors import AlbertkitError, type_with_article
from albertkit.folder_replace import recover_folder, replace_folder

JSON_LIMIT = 16 * 2**20  # bytes
HOLES_FROM = 64 * 2**20  # bytes; smaller files may have holes
FILE_KINDS = {
    stat.S_ISDIR: "folder",
    stat.S_ISFIFO: "FIFO",
    stat.S_ISSOCK: "socket",
    stat.S_ISCHR: "character device",
    stat.S_ISBLK: "block device",
}
# a folder with one of them may be replaced
MODEL_FILES = ("albertkit.json", "modules.json", "onnx/model.onnx")
WRITTEN_FILES = "albertkit-files.json"  # of a folder to which users add files: the SHA-256 of each that was written
SHOWN_FILES = 5  # in an error
CHECKSUM = "checksum"  # key of the SHA-256 of the other content of a JSON file


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading. A FIFO, a socket or a device could block or have no end, so it is an error."""
    check_regular(path)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        _check_mode(path, os.fstat(file.fileno()).st_mode)  # it may have been replaced since
    except AlbertkitError:
        file.close()
        raise
    return file


def check_regular(path: Path) -> None:
    """Raise if a path, or the target of a link, is no regular file."""
    _check_mode(path, path.stat().st_mode)


def _check_mode(path: Path, mode: int) -> None:
    kind = next((kind for is_kind, kind in FILE_KINDS.items() if is_kind(mode)), None)
    if kind is not None:
        raise AlbertkitError(f"{path} is a {kind}; a model consists of regular files. Copy the model again.")


def check_model_files(path: Path) -> None:
    """Raise if a model is, or its folder contains, a FIFO, socket or device. Broken links count as missing files."""
    with contextlib.suppress(OSError):
        for entry in path.iterdir() if path.is_dir() else [path]:
            with contextlib.suppress(OSError):
                if not entry.is_dir():
                    check_regular(entry)


def file_size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def read_file(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    with open_file(path) as file:
        size = file_size(file)
        if size > limit:
            raise AlbertkitError(
                f"{path} has {size:,} bytes; at most {limit:,} are read. Check that it is the right file."
            )
        return file.read(size)


def open_weights(path: Path) -> BinaryIO:
    """Open a file of weights. One that is mostly holes is an error: it is small on disk and large in memory."""
    file = open_file(path)
    size, stored = file_size(file), _bytes_without_holes(file)
    if size > HOLES_FROM and stored < size // 2:
        file.close()
        raise AlbertkitError(
            f"{path} has {size:,} bytes, of which {stored:,} are stored and the others are holes; weights have no "
            "holes. Copy the model again."
        )
    return file


def _bytes_without_holes(file: BinaryIO) -> int:
    """Bytes of a file that are stored on disk; compressed bytes count in full."""
    size, position, total = file_size(file), 0, 0
    if not hasattr(os, "SEEK_DATA") or os.fstat(file.fileno()).st_blocks * 512 >= size // 2:
        return size
    try:
        while position < size:
            start = os.lseek(file.fileno(), position, os.SEEK_DATA)
            position = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            total += position - start
    except OSError as error:
        if error.errno != errno.ENXIO:  # no data after `at`
            total = size  # the file system does not tell
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    return total


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of bounded size."""
    try:
        data = json.loads(read_file(path, JSON_LIMIT))
    except FileNotFoundError:
        raise AlbertkitError(f"{path} does not exist. Check that {path.parent} is a model folder.") from None
    except OSError as error:
        raise AlbertkitError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, AlbertkitError):
            raise
        raise AlbertkitError(f"{path} is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(data, dict):
        raise AlbertkitError(f"{path} contains {type_with_article(data)}; it must be a JSON object")
    return data


def add_checksum(data: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with the SHA-256 of its content, for `take_checksum`."""
    return {**data, CHECKSUM: _content_hash(json.loads(json.dumps(data)))}


def take_checksum(path: Path | str, data: dict[str, Any]) -> dict[str, Any]:
    """The content of a JSON file without its checksum. Raises if the content has changed since it was written."""
    content = {key: value for key, value in data.items() if key != CHECKSUM}
    if data.get(CHECKSUM) != _content_hash(content):
        raise AlbertkitError(f"{path} has changed since it was written (its checksum differs). Copy the folder again.")
    return content


def _content_hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write a safetensors file that transformers can also read."""
    from safetensors.numpy import save_file

    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(contiguous, str(path), metadata={"format": "pt"})


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    total = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(2**20):
            total.update(block)
    return total.hexdigest()


def check_new_folder(
    target: Path, overwrite: bool = False, remedy: str = "Choose another folder, or overwrite it (--force)."
) -> None:
    """Raise an error unless a folder is new or empty, or is a model and `overwrite` is set.

    A folder with `WRITTEN_FILES` is not replaced if a user has added or changed files.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        if not overwrite:
            raise AlbertkitError(f"{target} exists and is not empty. {remedy}")
        if (target / WRITTEN_FILES).is_file():
            _check_unchanged(target)
        elif not any((target / name).is_file() for name in MODEL_FILES):
            raise AlbertkitError(f"{target} is not a model folder, so it is not replaced. Choose another folder.")


def list_files(folder: Path) -> list[Path]:
    """All files of a folder and its folders, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def list_written_files(folder: Path) -> None:
    """Write the hash of each file of a folder into it, so that only an unchanged folder is overwritten."""
    files = {path.relative_to(folder).as_posix(): digest(path) for path in list_files(folder)}
    write_json(folder / WRITTEN_FILES, {"files": files})


def _check_unchanged(folder: Path) -> None:
    """Raise if a folder has files that its list of written files does not have, or with other hashes."""
    written = read_json(folder / WRITTEN_FILES).get("files")
    written = written if isinstance(written, dict) else {}
    names = {path.relative_to(folder).as_posix(): path for path in list_files(folder)}
    del names[WRITTEN_FILES]
    changed = [
        name
        for name, path in names.items()
        if name not in written or path.is_symlink() or digest(path) != written[name]
    ]
    if changed:
        shown = ", ".join(changed[:SHOWN_FILES]) + (
            f" and {len(changed) - SHOWN_FILES} more" if len(changed) > SHOWN_FILES else ""
        )
        raise AlbertkitError(
            f"{folder} has files that were added or changed since it was written: {shown}. Overwriting would delete "
            "them. Choose another folder, or move these files elsewhere first."
        )


@contextlib.contextmanager
def new_folder(target: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder that is renamed to `target` when the block succeeds, and deleted when it fails."""
    from safetensors import SafetensorError

    recover_folder(target)
    check_new_folder(target, overwrite)
    target = Path(os.path.abspath(target))  # noqa: PTH100  keeps a symlinked parent as the user wrote it
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    except OSError as error:
        raise AlbertkitError(f"{target.parent} cannot be written: {error.strerror}. Choose another place.") from None
    try:
        yield scratch
        for path in scratch.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
            flush(path)
        flush(scratch)
        scratch.chmod(0o755)
        replace_folder(scratch, target)
        flush(target.parent)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or str(error)[:120]
        raise AlbertkitError(f"writing {target} failed: {why}. No file was changed.") from None
    except AlbertkitError as error:  # of a folder or file inside: its name is that of the finished folder
        raise type(error)(str(error).replace(str(scratch), str(target))) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_file(path: Path, data: bytes, overwrite: bool = False) -> Path:
    """Write a file atomically, and create its folder."""
    check_absent(path, overwrite)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(part).chmod(0o644)
            flush(Path(part))
            Path(part).replace(path)
        finally:
            Path(part).unlink(missing_ok=True)
    except OSError as error:
        raise AlbertkitError(f"writing {path} failed: {error.strerror}. No file was changed.") from None
    return path


def check_absent(path: Path, overwrite: bool) -> None:
    """Raise an error if a file may not be written."""
    if path.is_dir():
        raise AlbertkitError(f"{path} is a folder. Choose a file name.")
    if path.exists() and not overwrite:
        raise AlbertkitError(f"{path} exists. Choose another name or allow overwriting (--force).")


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, data: object) -> None:
    path.write_bytes(json_bytes(data))


def json_bytes(data: object) -> bytes:
    """Readable JSON with a newline at its end."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
