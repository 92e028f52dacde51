"""Vectors to a file, as they come: .npy, .jsonl or .parquet.

A file is written beside its target, as NAME.part, and renamed when it is whole; stopped half-way, the part stays usable and
the error says how to go on. Memory is bounded: rows are written as they come.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError, need

Write = Callable[[str, np.ndarray], None]
GROUP = 4096  # rows of a Parquet group


class Interrupted(AlbertkitError):
    """Stopped by the user, with something finished."""


@contextlib.contextmanager
def writer(target: Path, overwrite: bool = False) -> Iterator[Write]:
    """A function that takes a text and its vector."""
    if target.suffix not in SINKS:
        raise AlbertkitError(f"{target} ends with {target.suffix!r}; choose one of {', '.join(SINKS)}")
    part = target.with_name(target.name + ".part")
    for path in (target, part):
        if path.exists() and not overwrite:
            raise AlbertkitError(f"{path} exists; move it away, choose another name or allow overwriting (--force)")
    sink: Npy | Jsonl | Parquet = SINKS[target.suffix](part)
    try:
        yield sink.write
    except (KeyboardInterrupt, OSError, AlbertkitError) as error:
        with contextlib.suppress(OSError):
            sink.close()
        why = "stopped" if isinstance(error, KeyboardInterrupt) else getattr(error, "strerror", None) or str(error)
        if not sink.rows:
            part.unlink(missing_ok=True)
            raise AlbertkitError(why) from None
        raise Interrupted(
            f"{why}; the first {sink.rows} vectors are in {part}: to go on, move it away and embed the texts from number "
            f"{sink.rows + 1} on into another file"
        ) from None
    sink.close()
    os.replace(part, target)  # noqa: PTH105  atomic on every system


def json_line(text: str, vector: np.ndarray) -> str:
    """A text and its vector as one line of JSON."""
    return json.dumps({"text": valid(text), "vector": [round(float(x), 7) for x in vector]}, ensure_ascii=False)


def valid(text: str) -> str:
    """A text that can be written: halves of characters (from arguments that are not UTF-8) become U+FFFD."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


class Jsonl:
    """One JSON object a line: text and vector."""

    def __init__(self, path: Path) -> None:
        self.rows = 0
        self.file = _open(path, "w")

    def write(self, text: str, vector: np.ndarray) -> None:
        self.file.write(json_line(text, vector) + "\n")
        self.rows += 1

    def close(self) -> None:
        self.file.close()


class Npy:
    """A float32 matrix; the number of rows in its header is put right at the end."""

    def __init__(self, path: Path) -> None:
        self.rows = self.width = 0
        self.file = _open(path, "wb")
        self.file.write(self._header())

    def _header(self) -> bytes:
        about = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({self.rows}, {self.width}), }}"
        return b"\x93NUMPY\x01\x00\x76\x00" + about.ljust(117).encode() + b"\n"

    def write(self, text: str, vector: np.ndarray) -> None:
        self.width = len(vector)
        self.file.write(np.ascontiguousarray(vector, "<f4").tobytes())
        self.rows += 1

    def close(self) -> None:
        self.file.seek(0)
        self.file.write(self._header())
        self.file.close()


class Parquet:
    """Columns `text` and `vector`, through pyarrow."""

    def __init__(self, path: Path) -> None:
        self.arrow = need("pyarrow", "parquet", "writing Parquet")
        need("pyarrow.parquet", "parquet", "writing Parquet")
        self.path, self.rows = path, 0
        _open(path, "wb").close()  # an unwritable place is found out before the work
        self.texts: list[str] = []
        self.vectors: list[np.ndarray] = []
        self.sink: Any = None

    def write(self, text: str, vector: np.ndarray) -> None:
        self.texts.append(valid(text))
        self.vectors.append(vector)
        self.rows += 1
        if len(self.texts) >= GROUP:
            self._group()

    def _group(self) -> None:
        width = len(self.vectors[0]) if self.vectors else 0
        flat = self.arrow.array(np.concatenate(self.vectors) if self.vectors else np.zeros(0, np.float32))
        table = self.arrow.table(
            {"text": self.texts, "vector": self.arrow.FixedSizeListArray.from_arrays(flat, max(1, width))}
        )
        if self.sink is None:
            self.sink = self.arrow.parquet.ParquetWriter(str(self.path), table.schema)
        self.sink.write_table(table)
        self.texts, self.vectors = [], []

    def close(self) -> None:
        if self.texts or self.sink is None:
            self._group()
        self.sink.close()


def _open(path: Path, mode: str) -> Any:
    try:
        return path.open(mode, encoding=None if "b" in mode else "utf-8")
    except OSError as error:
        raise AlbertkitError(f"{path} cannot be written: {error.strerror}; choose another place") from None


SINKS: dict[str, type[Npy] | type[Jsonl] | type[Parquet]] = {".npy": Npy, ".jsonl": Jsonl, ".parquet": Parquet}
