"""How far a corpus has come, on disk: what a killed run leaves for the next one, and the hashes of all texts seen.

In: after each finished shard, where reading stands and what is not yet in a shard. Out: the same, after a restart. Before
this file: nothing; after it: `corpus.py`.

One SQLite file in the corpus folder, deleted when the corpus is finished. Hashes and progress change together, in one
transaction for each finished shard, so that a kill loses what came after the last of them and nothing else. The hashes
take about 20 bytes each on disk, and SQLite's cache of 64 MB in memory, however many there are.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError

JOURNAL = "unfinished.sqlite"
_ASKED = 500  # hashes in one question


class Journal:
    """The open file; only one process can hold it."""

    def __init__(self, folder: Path):
        self.path = folder / JOURNAL
        self._db = sqlite3.connect(self.path, isolation_level=None, timeout=1)
        try:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA cache_size = -65536")
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, value BLOB)")
            self._db.execute("CREATE TABLE IF NOT EXISTS seen (hash INTEGER PRIMARY KEY)")
        except sqlite3.Error as error:
            self._db.close()
            if "locked" in str(error):
                why = "another albertkit is writing there: wait for it, or choose another folder"
            else:
                why = f"{error}: use --force to begin anew, or another folder"
            raise AlbertkitError(f"{self.path} cannot be used: {why}") from None

    def read(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """What was saved last: a JSON object and some arrays as bytes; both empty at the beginning."""
        rows = dict(self._db.execute("SELECT name, value FROM kept"))
        return json.loads(rows.pop("state", "{}")), rows

    def save(self, state: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Keep this in place of what was saved before, with the hashes seen meanwhile."""
        rows: list[tuple[str, Any]] = [("state", json.dumps(state))]
        rows += [(name, np.ascontiguousarray(array).tobytes()) for name, array in arrays.items()]
        self._db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)
        self._db.execute("COMMIT")
        self._db.execute("BEGIN IMMEDIATE")

    def forget(self) -> None:
        """Begin anew."""
        self._db.execute("DELETE FROM kept")
        self._db.execute("DELETE FROM seen")

    def first_seen(self, hashes: np.ndarray) -> np.ndarray:
        """True for each hash (uint64) that has not come before, here or in this array; all are remembered."""
        unique, first = np.unique(hashes.view(np.int64), return_index=True)
        values = unique.tolist()
        known: set[int] = set()
        for start in range(0, len(values), _ASKED):
            some = values[start : start + _ASKED]
            marks = ",".join("?" * len(some))
            known.update(row[0] for row in self._db.execute(f"SELECT hash FROM seen WHERE hash IN ({marks})", some))
        fresh = [(number, value) for number, value in zip(first.tolist(), values, strict=True) if value not in known]
        self._db.executemany("INSERT INTO seen VALUES (?)", [(value,) for _, value in fresh])
        result = np.zeros(len(hashes), bool)
        result[[number for number, _ in fresh]] = True
        return result

    def close(self) -> None:
        """Let go of the file; what was not saved is lost."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("ROLLBACK")
        self._db.close()

    def delete(self) -> None:
        """Let go of the file and remove it."""
        self.close()
        remove(self.path.parent)


def in_use(folder: Path) -> bool:
    """Whether another process holds the journal of a folder."""
    if not (folder / JOURNAL).is_file():
        return False
    with contextlib.closing(sqlite3.connect(folder / JOURNAL, isolation_level=None, timeout=0)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            return "locked" in str(error)
    return False


def remove(folder: Path) -> None:
    """Delete the journal of a folder."""
    for name in (JOURNAL, f"{JOURNAL}-journal"):
        (folder / name).unlink(missing_ok=True)
