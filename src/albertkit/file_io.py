"""Bounded reading and atomic writing of files and folders.

In: paths. Out: JSON objects, tensors, SHA-256 hashes. `new_folder` writes a folder atomically. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.folder_replace import recover_folder, replace_folder

JSON_LIMIT = 16 * 2**20  # bytes
MODEL_FILES = ("albertkit.json", "modules.json")  # a folder with one of them may be replaced
TENSOR_TYPES = {
    name: np.dtype(dtype)
    for name, dtype in {
        "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
        "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
    }.items()
}  # fmt: skip
CHECKSUM = "checksum"  # key of the SHA-256 of the other content of a JSON file


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of bounded size."""
    try:
        length = path.stat().st_size
        if length > JSON_LIMIT:
            raise AlbertkitError(f"{path} has {length:,} bytes; the limit for JSON files is {JSON_LIMIT:,}")
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise AlbertkitError(f"{path} does not exist. Check that {path.parent} is a model folder.") from None
    except OSError as error:
        raise AlbertkitError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, AlbertkitError):
            raise
        raise AlbertkitError(f"{path} is not valid JSON: {str(error)[:200]}") from None
    if not isinstance(data, dict):
        raise AlbertkitError(f"{path} contains a {type(data).__name__}; it must be a JSON object")
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


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file; float16 and bfloat16 become float32."""
    import ml_dtypes
    from safetensors import SafetensorError, deserialize

    dtypes = {**TENSOR_TYPES, "BF16": np.dtype(ml_dtypes.bfloat16)}
    try:
        data = path.read_bytes()  # not mapped into memory: another program may overwrite the file
        entries = deserialize(data)
        tensors = {
            name: np.frombuffer(entry["data"], dtypes[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in entries
        }
    except FileNotFoundError:
        raise AlbertkitError(f"{path} does not exist; a model folder contains model.safetensors") from None
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise AlbertkitError(f"{path} is not a complete safetensors file: {str(error)[:200]}") from None
    small = ("float16", "bfloat16")
    return {name: t.astype(np.float32) if t.dtype.name in small else t for name, t in tensors.items()}


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write a safetensors file that transformers can also read."""
    from safetensors.numpy import save_file

    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(contiguous, str(path), metadata={"format": "pt"})


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            total.update(block)
    return total.hexdigest()


def check_new_folder(
    target: Path, overwrite: bool = False, remedy: str = "Choose another folder, or overwrite it (--force)."
) -> None:
    """Raise an error unless a folder is new or empty, or is a model and `overwrite` is set."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        if not overwrite:
            raise AlbertkitError(f"{target} exists and is not empty. {remedy}")
        if not any((target / name).is_file() for name in MODEL_FILES):
            raise AlbertkitError(f"{target} is not a model folder, so it is not replaced. Choose another folder.")


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
    """Write readable JSON."""
    path.write_bytes(json_bytes(data))


def json_bytes(data: object) -> bytes:
    """Readable JSON with a newline at its end."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
