"""An index in one SQLite file.

In: the path of a file. Out: a `LocalIndex`. Before this file: `index_file.py`, `vectors.py`, `keywords.py`, and
`index.py` with what all kinds of indexes share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.search.index import Embedder, Index, index_facts
from albertkit.search.index_file import IndexFile, create_index_file
from albertkit.search.index_records import SearchHit, text_hash
from albertkit.search.keywords import KeywordTable
from albertkit.search.vectors import Ranked, StoredVector, VectorBlock, VectorTable, checksum, damage_error, rotate
from albertkit.text_reader import Record

KEYWORD_CHECKSUM = "keywords"  # its key in the table of facts
COLUMNS = "slot, id, source, line, text, checksum"


@dataclass(frozen=True)
class LocalOpener:
    """Opens the index in a file."""

    path: Path

    def create(self, embedder: Embedder, overwrite: bool, model_path: str) -> LocalIndex:
        is_taken = self.path.exists() and (self.path.is_dir() or not overwrite)
        if is_taken or not create_index_file(self.path, index_facts(embedder, model_path), overwrite):
            raise AlbertkitError(f"{self.path} already exists. Choose another path, or overwrite it (--force).")
        return self.open(embedder)

    def open_or_create(self, embedder: Embedder, model_path: str) -> LocalIndex:
        facts = index_facts(embedder, model_path)
        is_new = not self.path.exists() and create_index_file(self.path, facts, overwrite=False)
        index = self.open(embedder)
        index.is_new = is_new
        return index

    def open(self, embedder: Embedder | None) -> LocalIndex:
        path = self.path
        if path.is_dir():
            raise AlbertkitError(
                f"{path} is a folder, but an index is a file. Pass a file, or an address such as qdrant://./FOLDER."
            )
        if not path.is_file():
            raise AlbertkitError(f"{path} is not a file. Build an index with  albertkit index FILES -o {path}")
        index = LocalIndex(path, embedder)
        try:
            index._check()
        except BaseException:
            index._sql.close()
            raise
        return index

    def exists(self) -> bool:
        return self.path.exists()


class LocalIndex(Index):
    """An index in one SQLite file. Other processes may read while one writes."""

    path: Path

    def __init__(self, path: Path, embedder: Embedder | None) -> None:
        super().__init__(embedder)
        self.path = path
        self._file = IndexFile(path)
        self._sql, self._transaction, self._value = self._file.sql, self._file.transaction, self._file.value
        self._has_written = False

    def _check(self) -> None:
        """Raise unless this is an index of this model."""
        self._check_model(self._file.read_facts())
        with self._file.errors():
            self._words, self._blocks = KeywordTable(self._sql, self.path), VectorTable(self._sql, self.path, self.dim)

    def __del__(self) -> None:
        if hasattr(self, "_sql"):
            self._sql.close()

    def close(self) -> None:
        """Close the file."""
        with self._file.lock:
            if self._has_written:
                self._store_checksum()
            self._has_written = False
            self._sql.close()

    def drop(self) -> None:
        """Close the index and delete its file."""
        with self._file.lock:
            self._has_written = False
            self._sql.close()
        self.path.unlink(missing_ok=True)

    def _read(self) -> contextlib.AbstractContextManager[None]:
        return self._transaction("DEFERRED")

    def _count(self) -> int:
        return int(self._value("SELECT count(*) FROM texts"))

    def _fact(self, key: str) -> str | None:
        row = self._sql.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def _set_fact(self, key: str, value: str) -> None:
        self._sql.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    # Writing ------------------------------------------------------------------------------------------------------

    def _missing_texts(self, texts: Iterable[str]) -> list[str]:
        return [text for text in texts if self._find_text(text) is None]

    def _stored_vectors(self, rows: np.ndarray) -> list[StoredVector]:
        return StoredVector.all_from(rows)

    def _unit_vectors(self, texts: list[str], vectors: np.ndarray | None = None) -> np.ndarray:
        """The rotated unit vectors of texts; computed if they are not passed."""
        return rotate(super()._unit_vectors(texts, vectors))

    def _find_text(self, text: str) -> int | None:
        query = "SELECT slot FROM texts WHERE hash = ? AND text = ? LIMIT 1"
        row = self._sql.execute(query, (text_hash(text), text)).fetchone()
        return None if row is None else int(row[0])

    def _add(self, group: dict[str, Record], new_vectors: dict[str, StoredVector]) -> int:
        query = "SELECT slot, text, source, line FROM texts WHERE id = ?"
        stored_rows = {id: row for id in group if (row := self._sql.execute(query, (id,)).fetchone())}
        changed_texts = (r.text for r in group.values() if r.id not in stored_rows or stored_rows[r.id][1] != r.text)
        vectors = self._vectors(changed_texts, new_vectors)
        slots = self._slots(len(group) - len(stored_rows))
        changed_vectors, changed = {}, 0
        for record in group.values():
            slot, *old = stored_rows.get(record.id) or (next(slots), None, None, None)
            if old == [record.text, record.source, record.line]:
                continue
            changed += 1
            content = (slot, record.id, record.source, record.line)
            row = (*content, text_hash(record.text), record.text, checksum(*content, record.text))
            self._sql.execute("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            if old[0] != record.text:
                if old[0] is not None:
                    self._words.remove(slot, old[0])
                self._words.add(slot, record.text)
                changed_vectors[slot] = vectors[record.text]
        self._blocks.write(changed_vectors)
        mark_seen = "INSERT OR IGNORE INTO seen SELECT slot FROM texts WHERE id = ?"
        self._sql.executemany(mark_seen, [(id,) for id in group])
        return changed

    def _vectors(self, texts: Iterable[str], new_vectors: dict[str, StoredVector]) -> dict[str, StoredVector]:
        """The vector of each text: from the index if it contains an equal text, otherwise a new one."""
        slots = {text: self._find_text(text) for text in texts}
        stored = self._blocks.read(slot for slot in slots.values() if slot is not None)
        missing = [text for text, slot in slots.items() if slot is None and text not in new_vectors]
        if missing:  # deleted by another program
            new_vectors = new_vectors | self._embed(missing)
        return {text: new_vectors[text] if slot is None else stored[slot] for text, slot in slots.items()}

    def _slots(self, count: int) -> Iterator[int]:
        """Slots for new rows: first those of deleted rows, then new ones at the end."""
        top = self._slots_used()
        old = [slot for (slot,) in self._sql.execute("SELECT slot FROM free LIMIT ?", (count,))]
        self._sql.executemany("DELETE FROM free WHERE slot = ?", [(slot,) for slot in old])
        return iter([*old, *range(top, top + count - len(old))])

    def _slots_used(self) -> int:
        """The number of slots, with those of deleted rows."""
        return 1 + max(int(self._value(f"SELECT coalesce(max(slot), -1) FROM {table}")) for table in ("texts", "free"))

    def _delete_ids(self, ids: list[str]) -> int:
        return self._delete("id = ?", [(id,) for id in ids])

    def _delete_source(self, source: str) -> int:
        return self._delete("source = ?", [(source,)])

    def _delete_unseen(self, places: list[tuple[str, str]]) -> int:
        inside = "(source = ? OR substr(source, 1, length(?)) = ?) AND slot NOT IN seen"
        return self._delete(inside, [(name, folder, folder) for name, folder in places])

    @contextlib.contextmanager
    def _write(self) -> Iterator[None]:
        """A transaction that writes. It deletes the checksum of the keywords, which no longer holds."""
        with self._transaction("IMMEDIATE"):
            self._sql.execute("DELETE FROM meta WHERE key = ?", (KEYWORD_CHECKSUM,))
            yield
        self._has_written = True

    def _store_checksum(self) -> None:
        """Store the checksum of the keywords, unless another program writes; then that program will."""
        self._sql.execute("PRAGMA busy_timeout = 0")
        with contextlib.suppress(AlbertkitError), self._transaction("IMMEDIATE"):
            row = (KEYWORD_CHECKSUM, str(self._words.checksum()))
            self._sql.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", row)

    def _delete(self, where: str, values: Sequence[tuple[str, ...]]) -> int:
        with self._write():
            query = f"SELECT slot FROM texts WHERE {where}"
            deleted = sorted({slot for value in values for (slot,) in self._sql.execute(query, value)})
            for start in range(0, len(deleted), 1000):
                slots = [(slot,) for slot in deleted[start : start + 1000]]
                for (slot,) in slots:
                    self._words.remove(slot, self._value(f"SELECT text FROM texts WHERE slot = {slot}"))
                self._sql.executemany("DELETE FROM texts WHERE slot = ?", slots)
                self._sql.executemany("DELETE FROM seen WHERE slot = ?", slots)
                self._sql.executemany("INSERT INTO free VALUES (?)", slots)
                self._blocks.write({slot: StoredVector() for (slot,) in slots})
            return len(deleted)

    # Searching ----------------------------------------------------------------------------------------------------

    def _match_words(self, queries: Sequence[str], k: int) -> list[Ranked]:
        self._words.verify(self._sql.execute("SELECT value FROM meta WHERE key = ?", (KEYWORD_CHECKSUM,)).fetchone())
        rows = self._value("SELECT coalesce(max(slot), 0) FROM texts")
        return [self._words.best(query, k, rows) for query in queries]

    def _nearest(self, queries: np.ndarray, k: int, exact: bool) -> list[Ranked]:
        return self._blocks.nearest(queries, k, self._slots_used(), exact)

    def _read_vectors(self, slots: Iterable[int]) -> dict[int, StoredVector]:
        return self._blocks.read(slots)

    def _oldest_vectors(self) -> VectorBlock | None:
        return self._blocks.first()

    def _hits(self, ranked: Ranked, matched: str) -> list[SearchHit]:
        hits = []
        for score, slot in ranked:
            row = self._sql.execute(f"SELECT {COLUMNS} FROM texts WHERE slot = ?", (slot,)).fetchone()
            if row is None or row[5] != checksum(*row[:5]):
                raise damage_error(self.path, f"the checksum of text {slot} differs")
            hits.append(SearchHit(row[1], row[4], float(score), row[2], row[3], matched))
        return hits
