"""The SQLite file of an index: its tables, its creation and its transactions.

In: a path. Out: an `IndexFile` with an open connection. The file is not mapped into memory, so a reader survives when
another program truncates or overwrites it. Before this file: `vectors.py`, `keywords.py`; after it: `local_index.py`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError
from albertkit.search import keywords, vectors

FORMAT = 5
MAGIC = 0x414C4258  # "ALBX", in the header of the file
TIMEOUT = 60.0  # seconds to wait for another program's transaction
PAUSE = 0.005  # seconds
REMEDIES = {
    "locked": "Another program is writing to it: wait until it is done.",
    "readonly": "It is read-only: choose another path.",
    "fts5": "Use a Python whose SQLite has FTS5.",
    "full": "Free some disk space and rerun the command.",
    "disk I/O error": "Check the disk and its free space, then rerun the command.",
    "not a database": "Build an index with  albertkit index FILES -o OUT",
    "unable to open": "Check its permissions.",
    "closed": "Open it with  Index.open",
}
SCHEMA = f"""
PRAGMA page_size = 16384; PRAGMA application_id = {MAGIC}; PRAGMA user_version = {FORMAT};
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE texts (slot INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source TEXT NOT NULL, line INTEGER NOT NULL,
                    hash INTEGER NOT NULL, text TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE INDEX texts_hash ON texts (hash);
CREATE TABLE free (slot INTEGER PRIMARY KEY);
{vectors.SCHEMA}{keywords.SCHEMA}"""


def create_index_file(path: Path, facts: Mapping[str, str], overwrite: bool) -> bool:
    """Create a file without texts, atomically; False if there is one that may not be overwritten."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise AlbertkitError(f"{path} cannot be written: {error.strerror}. Choose another path.") from None
    scratch = Path(name)
    try:
        connection = sqlite3.connect(scratch, isolation_level=None)
        connection.executescript(SCHEMA)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", facts.items())
        connection.close()
        scratch.chmod(0o644)
        if overwrite or not path.exists():
            # Left by a killed writer of a file that is replaced or was deleted. SQLite would apply it to the new file.
            Path(f"{path}-journal").unlink(missing_ok=True)
        if overwrite:
            scratch.replace(path)
        else:
            _rename_new(scratch, path)
    except FileExistsError:
        return False
    except (OSError, sqlite3.Error) as error:
        raise AlbertkitError(explain_error(path, error)) from None
    finally:
        scratch.unlink(missing_ok=True)
    return True


def _rename_new(source: Path, target: Path) -> None:
    """Rename a file; `FileExistsError` if the target exists, also if another process creates it at this moment."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a disk without hard links
        if target.exists():
            raise FileExistsError(target) from None
        source.rename(target)


class IndexFile:
    """An open file. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, threading.RLock()
        self._place = Path(os.path.abspath(path))  # noqa: PTH100  keeps links as they are
        self._identity = _file_identity(self._place)
        uri = f"{self._place.as_uri()}?mode=rw"
        with self.errors():
            self.sql = sqlite3.connect(uri, uri=True, timeout=TIMEOUT, isolation_level=None, check_same_thread=False)
            self.sql.execute("PRAGMA trusted_schema = OFF")  # an index may come from anywhere
            self.sql.execute("PRAGMA cache_size = -32000")
            self.sql.execute("PRAGMA mmap_size = 0")  # a build of SQLite may have another default
            self.sql.execute("CREATE TEMP TABLE seen (slot INTEGER PRIMARY KEY)")

    def read_facts(self) -> dict[str, str]:
        """The content of the table `meta`. Raises if the file is not an index of this version."""
        with self.errors():
            magic, version = (self.value(f"PRAGMA {name}") for name in ("application_id", "user_version"))
            if magic != MAGIC:
                raise AlbertkitError(f"{self.path} is not an index. Build one with  albertkit index FILES -o OUT")
            if version != FORMAT:
                remedy = "Update albertkit." if version > FORMAT else "Index the files again (--force)."
                raise AlbertkitError(f"{self.path} has format {version}, not {FORMAT}. {remedy}")
            return {str(key): str(value) for key, value in self.sql.execute("SELECT key, value FROM meta")}

    def value(self, sql: str) -> Any:
        """The first value of the first row."""
        return self.sql.execute(sql).fetchone()[0]

    @contextlib.contextmanager
    def transaction(self, kind: str) -> Iterator[None]:
        """A transaction, for one thread at a time; `kind` is DEFERRED to read and IMMEDIATE to write."""
        with self.lock, self.errors():
            self._check_place(kind == "IMMEDIATE")
            self.sql.execute(f"BEGIN {kind}")
            try:
                yield
                self.sql.execute("COMMIT")
            except BaseException:
                if self.sql.in_transaction:
                    self.sql.execute("ROLLBACK")
                raise

    def _check_place(self, is_write: bool) -> None:
        """Protect a new file that has the path of this one. Reading this one is still possible.

        SQLite finds the journal of a transaction by the path. While another program writes to the new file, SQLite
        would undo that transaction here, and delete its journal.
        """
        if _file_identity(self._place) == self._identity:
            return
        end = time.monotonic() + TIMEOUT
        while is_write or Path(f"{self._place}-journal").exists():
            if is_write or time.monotonic() > end:
                raise AlbertkitError(f"{self.path} was replaced since it was opened. Open it again.")
            time.sleep(PAUSE)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise the errors of SQLite as `AlbertkitError`."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # UnicodeDecodeError: a damaged text
            raise AlbertkitError(explain_error(self.path, error)) from None


def explain_error(path: Path, error: Exception) -> str:
    """An error of SQLite or of the system, with a remedy."""
    message = "".join(c if c.isprintable() else "?" for c in str(error))
    remedies = [remedy for sign, remedy in REMEDIES.items() if sign in message]
    return f"{path} cannot be used ({message}). {remedies[0] if remedies else 'Index the files again.'}"


def _file_identity(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino
