"""What the indexes in vector stores share: opening by address, and which records are new or changed.

In: a `StoreAddress`, and batches of records. Out: a `StoreIndex`. Before this file: `store_address.py`, `index.py`;
after it: `pgvector.py`, `lancedb.py`, `qdrant.py`. Vectors are stored as they are, without a rotation, so that others
can use them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.search.index import LIMIT, Embedder, Index, index_facts
from albertkit.search.relevance import RelevanceLimit
from albertkit.search.store_address import StoreAddress
from albertkit.search.vectors import StoredVector, VectorBlock
from albertkit.text_reader import Record

FORMAT = "2"
REPEATED_TEXTS = 10_000  # texts whose vectors are not read again; a text may be in very many records


@dataclass(frozen=True)
class StoreOpener:
    """Opens the index at an address."""

    address: StoreAddress
    kind: type[StoreIndex]

    def create(self, embedder: Embedder, overwrite: bool, model_path: str) -> StoreIndex:
        index = self.kind(self.address, embedder)
        try:
            index.create_table(index.new_facts(embedder, model_path), overwrite)
            index.check()
        except BaseException:
            index.close()
            raise
        return index

    def open_or_create(self, embedder: Embedder, model_path: str) -> StoreIndex:
        if self.exists():
            return self.open(embedder)
        try:
            index = self.create(embedder, False, model_path)
        except TableExistsError:  # another program created it at this moment
            return self.open(embedder)
        index.is_new = True
        return index

    def open(self, embedder: Embedder | None) -> StoreIndex:
        index = self.kind(self.address, embedder)
        try:
            index.check()
        except BaseException:
            index.close()
            raise
        return index

    def exists(self) -> bool:
        index = self.kind(self.address, None)
        try:
            return index.has_table()
        finally:
            index.close()


class TableExistsError(AlbertkitError):
    """A table is there already."""


class StoreIndex(Index):
    """An index in a table of a vector store."""

    path: str

    def __init__(self, address: StoreAddress, embedder: Embedder | None) -> None:
        super().__init__(embedder)
        self.path, self.address = address.name, address
        self._has_written = False  # whether `close` has something to finish
        self._oldest: VectorBlock | None = None
        self._facts: dict[str, str] = {}
        self._repeated: dict[str, StoredVector] = {}  # texts that were found in the store, with their vectors

    def __exit__(self, *problem: object) -> None:
        if problem and problem[0] is not None:
            self._has_written = False  # close at once; the next command finishes the work
        self.close()

    def new_facts(self, embedder: Embedder, model_path: str) -> dict[str, str]:
        """What the index stores about itself, with the vectors of nonsense of the model."""
        self.dim = embedder.dim
        return {"format": FORMAT, **index_facts(embedder, model_path), LIMIT: self._embed_limit().to_text()}

    def check(self) -> None:
        """Raise unless the table is an index of this model."""
        facts = self.read_facts()
        if facts.get("format") != FORMAT:
            raise AlbertkitError(
                f"{self.path} has format {facts.get('format')}, not {FORMAT}. Update albertkit, or index the files "
                "again (--force)."
            )
        self._check_model(facts)
        self._facts = facts

    def _read_limit(self) -> RelevanceLimit | None:
        return self._limit or super()._read_limit()  # of the model, so it never changes

    def _fact(self, key: str) -> str | None:
        return self._facts.get(key)

    def _set_fact(self, key: str, value: str) -> None:
        """Nothing: `create` stores all facts."""

    def replaced_error(self) -> AlbertkitError:
        return AlbertkitError(f"{self.path} was replaced since it was opened. Open it again.")

    def missing_error(self) -> AlbertkitError:
        return AlbertkitError(f"{self.path} has no index. Build one with  albertkit index FILES -o '{self.path}'")

    def exists_error(self) -> TableExistsError:
        return TableExistsError(f"{self.path} already exists. Choose another table, or overwrite it (--force).")

    @abstractmethod
    def has_table(self) -> bool: ...
    @abstractmethod
    def create_table(self, facts: Mapping[str, str], overwrite: bool) -> None:
        """Create an empty index with these facts, or replace one. Other programs see the old one or the new one."""

    @abstractmethod
    def read_facts(self) -> dict[str, str]: ...

    # Writing ------------------------------------------------------------------------------------------------------

    def _add(self, group: dict[str, Record], new_vectors: dict[str, StoredVector]) -> int:
        records = {clean.id: clean for clean in map(self._clean, group.values())}
        stored_records = self._find_records(list(records))
        changed = [record for record in records.values() if stored_records.get(record.id) != record]
        vectors = self._vectors({record.text for record in changed}, new_vectors)
        self._upsert(changed, [vectors[record.text] for record in changed])
        self._mark_seen(records)
        return len(changed)

    def _vectors(self, texts: Iterable[str], new_vectors: dict[str, StoredVector]) -> dict[str, StoredVector]:
        """The vector of each text: a new one, or that of an equal text in the store."""
        new_vectors = {self._clean_text(text): vector for text, vector in new_vectors.items()}
        stored = [text for text in texts if text not in new_vectors]
        vectors = {text: self._repeated[text] for text in stored if text in self._repeated}
        vectors |= self._text_vectors([text for text in stored if text not in vectors])
        missing = [text for text in stored if text not in vectors]  # deleted by another program
        if len(self._repeated) > REPEATED_TEXTS:
            self._repeated = {}
        self._repeated |= vectors
        return {**vectors, **new_vectors, **(self._embed(missing) if missing else {})}

    def _missing_texts(self, texts: Iterable[str]) -> list[str]:
        by_clean = {self._clean_text(text): text for text in texts}
        unknown = [clean for clean in by_clean if clean not in self._repeated]
        stored = self._known_texts(unknown)
        return [by_clean[clean] for clean in unknown if clean not in stored]

    def _clean(self, record: Record) -> Record:
        id, text, source = map(self._clean_text, (record.id, record.text, record.source))
        return Record(id, text, source, record.line)

    def _clean_text(self, text: str) -> str:
        """The text without characters that the store does not accept."""
        return text

    @abstractmethod
    def _find_records(self, ids: list[str]) -> dict[str, Record]: ...
    @abstractmethod
    def _known_texts(self, texts: list[str]) -> set[str]:
        """Those of the texts that the store contains."""

    @abstractmethod
    def _text_vectors(self, texts: list[str]) -> dict[str, StoredVector]:
        """The vectors of those of the texts that the store contains."""

    @abstractmethod
    def _upsert(self, records: list[Record], vectors: list[StoredVector]) -> None:
        """Insert records, or replace those of equal ids."""

    @abstractmethod
    def _mark_seen(self, ids: Iterable[str]) -> None:
        """Remember ids for `delete_unseen`."""


def block_of(vectors: list[StoredVector]) -> VectorBlock | None:
    """Vectors as a block; None if there are none."""
    if not vectors:
        return None
    rows = np.stack([vector.floats() for vector in vectors])
    return VectorBlock((len(rows), hash(rows.tobytes())), np.ones(len(rows), np.float32), rows)
