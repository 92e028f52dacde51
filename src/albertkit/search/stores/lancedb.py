"""An index in a table of LanceDB: a folder with vectors, texts, and an index of words (BM25).

In: a `StoreAddress`. Out: a `LancedbIndex`. Before this file: `store_index.py`. A slot is a row id of one version of
the table, so each search uses one version. The id of a record is the key of the table: of two programs that write an
equal id at the same time, one writes again.

A batch is a version, and so is a table that replaces another one. `_optimize` joins the files of versions, adds new
rows to the indexes, and builds a graph of vectors as soon as the table has `GRAPH_ROWS` texts. Rows that are not in an
index yet are compared exactly.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from albertkit.errors import AlbertkitError, need
from albertkit.search.index import Embedder
from albertkit.search.index_records import SearchHit, text_hash
from albertkit.search.keywords import plain_terms, plain_words
from albertkit.search.store_address import StoreAddress
from albertkit.search.stores.store_index import StoreIndex, block_of
from albertkit.search.vectors import BLOCK, Ranked, StoredVector, VectorBlock
from albertkit.text_reader import Record

GRAPH_ROWS = 10_000  # from so many texts on, a table has a graph of vectors
REFINED = 4  # times as many rows as wanted are compared with their full vectors
PROBES = 20  # parts of the graph that a search visits
OPTIMIZE_BATCHES = 100  # batches between two calls of `_optimize`
OLD_VERSIONS = timedelta(hours=1)  # kept for searches that run
DELETED = 1_000  # ids in one condition
WORDS = {  # how LanceDB reads what `plain_words` wrote
    "base_tokenizer": "whitespace", "with_position": True, "lower_case": False, "stem": False,
    "remove_stop_words": False, "ascii_folding": False, "max_token_length": None,
}  # fmt: skip
KEY = {b"lance-schema:unenforced-primary-key": b"true"}  # of two writes of an equal value, one is a conflict
METADATA = b"albertkit"  # key of the facts in the schema of the table
ERRORS = (ValueError, RuntimeError, OSError)  # that LanceDB raises
CONFLICT = "commit conflict"  # in the message if another program wrote at the same time
PAUSES = [0.02 * 2**i for i in range(9)]  # seconds before a change is tried again: ten in all
MESSAGE = 300  # characters of an error of LanceDB

Result = TypeVar("Result")


class LancedbIndex(StoreIndex):
    """An index in a table of LanceDB. One program should write at a time; others may read."""

    def __init__(self, address: StoreAddress, embedder: Embedder | None) -> None:
        super().__init__(address, embedder)
        self._lancedb: Any = need("lancedb", "lancedb", "an index in LanceDB")
        self._kinds: Any = need("lancedb.index", "lancedb", "an index in LanceDB")
        self._arrow: Any = need("pyarrow", "lancedb", "an index in LanceDB")
        self._lock = threading.RLock()
        self._depth, self._batches = 0, 0
        self._seen: set[str] = set()
        self._store: Any = None
        self._table: Any = None
        self._metadata: dict[bytes, bytes] = {}

    # The table ----------------------------------------------------------------------------------------------------

    def has_table(self) -> bool:
        if not Path(self.address.location).is_dir():  # LanceDB would create it
            return False
        with self._errors():
            self._store = self._lancedb.connect(self.address.location)
            page = self._store.list_tables()
            while self.address.table not in page.tables and page.page_token:
                page = self._store.list_tables(page_token=page.page_token)
            return self.address.table in page.tables

    def create_table(self, facts: Mapping[str, str], overwrite: bool) -> None:
        mode = "create"
        if self.has_table():
            if not overwrite or METADATA not in self._open_table():  # or another program's table
                raise self.exists_error()
            mode = "overwrite"  # one new version of the table, so that no program finds none
        with self._errors():
            self._store = self._lancedb.connect(self.address.location)
            try:
                self._table = self._store.create_table(self.address.table, schema=self._schema(facts), mode=mode)
            except ValueError as error:
                if "already exists" in str(error):
                    raise self.exists_error() from None
                raise
            self._commit(self._build_indexes)

    def _build_indexes(self) -> None:
        """Build what is missing of the indexes of words, ids, texts, and of the vectors of many texts."""
        indexed = {column for index in self._table.list_indices() for column in index.columns}
        configs = {"words": self._kinds.FTS(**WORDS), "id": self._kinds.BTree(), "hash": self._kinds.BTree()}
        if self._table.count_rows() >= GRAPH_ROWS:
            configs["vector"] = self._kinds.HnswSq(distance_type="cosine")
        for column in configs.keys() - indexed:
            self._table.create_index(column, config=configs[column])

    def _schema(self, facts: Mapping[str, str]) -> Any:
        arrow = self._arrow
        columns = {"id": arrow.string(), "source": arrow.string(), "line": arrow.int64(), "hash": arrow.int64(),
                   "text": arrow.string(), "words": arrow.string(),
                   "vector": arrow.list_(arrow.float16(), int(facts["dim"]))}  # fmt: skip
        fields = [arrow.field(name, kind, nullable=False) for name, kind in columns.items()]
        fields[0] = fields[0].with_metadata(KEY)
        return arrow.schema(fields, metadata={METADATA: json.dumps(dict(facts)).encode()})

    def _open_table(self) -> dict[bytes, bytes]:
        """Open the table; returns the metadata of its schema."""
        with self._errors():
            self._table = self._store.open_table(self.address.table)
            self._metadata = dict(self._table.schema.metadata or {})
            return self._metadata

    def read_facts(self) -> dict[str, str]:
        if not self.has_table():
            raise self.missing_error()
        stored = self._open_table().get(METADATA)
        if stored is None:
            raise AlbertkitError(f"{self.path} is another program's table. Choose another table.")
        return {str(key): str(value) for key, value in json.loads(stored).items()}

    def close(self) -> None:
        """Make searches fast, if texts were added."""
        with self._lock, self._errors():
            if self._has_written:
                self._has_written = False
                self._optimize()

    def _optimize(self) -> None:
        try:
            self._build_indexes()
            self._table.optimize(cleanup_older_than=OLD_VERSIONS)
        except ERRORS as error:
            if CONFLICT not in str(error):  # then another program does it
                raise

    def drop(self) -> None:
        """Delete the table with all its texts."""
        with self._lock, self._errors():
            self._has_written = False
            self._store.drop_table(self.address.table)

    # Transactions -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _read(self) -> Iterator[None]:
        """The newest version of the table, for one thread at a time."""
        with self._lock, self._errors():
            if not self._depth:
                self._table.checkout_latest()
                if self._table.schema.metadata != self._metadata:  # of another model
                    raise self.replaced_error()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    @contextlib.contextmanager
    def _write(self) -> Iterator[None]:
        with self._read():
            yield
            self._has_written = True
            self._batches += 1
            if self._batches % OPTIMIZE_BATCHES == 0:
                self._optimize()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the errors of LanceDB as `AlbertkitError`."""
        try:
            yield
        except AlbertkitError:
            raise
        except ERRORS as error:
            why = str(error).split("\n")[0][:MESSAGE]
            raise AlbertkitError(
                f"{self.path} cannot be used ({why}). Check its folder and its disk, then rerun the command to resume."
            ) from None

    # Writing ------------------------------------------------------------------------------------------------------

    def _count(self) -> int:
        return int(self._table.count_rows())

    def _slots_used(self) -> int:
        return self._count()

    def _rows(self, where: str, *columns: str) -> list[dict[str, Any]]:
        """These columns of all rows that meet a condition."""
        rows = self._table.search().where(where).select(list(columns)).limit(self._count()).to_arrow()
        return list(rows.to_pylist())

    def _find_records(self, ids: list[str]) -> dict[str, Record]:
        rows = self._rows(f"id IN ({quote_all(ids)})", "id", "text", "source", "line") if ids else []
        return {row["id"]: Record(row["id"], row["text"], row["source"], row["line"]) for row in rows}

    def _known_texts(self, texts: list[str]) -> set[str]:
        return {row["text"] for row in self._one_per_hash(texts, "text")}

    def _text_vectors(self, texts: list[str]) -> dict[str, StoredVector]:
        vectors = {row["text"]: row["vector"] for row in self._one_per_hash(texts, "text", "vector")}
        return {text: stored_vector(vectors[text]) for text in texts if text in vectors}

    def _one_per_hash(self, texts: list[str], *columns: str) -> Iterable[dict[str, Any]]:
        """These columns of one row of each text, since a text may be in very many of them."""
        if not texts:
            return []
        where = f"hash IN ({', '.join(str(text_hash(text)) for text in texts)})"
        rows = self._table.search().where(where).select(["hash"]).with_row_id(True).limit(self._count()).to_arrow()
        _, first = np.unique(rows["hash"].to_numpy(), return_index=True)
        return self._take(rows["_rowid"].to_numpy()[first].tolist(), *columns).values()

    def _commit(self, change: Callable[[], Result]) -> Result:
        """Apply a change to the newest version; again if another program wrote a version at the same time."""
        for pause in PAUSES:
            try:
                return change()
            except ERRORS as error:
                if CONFLICT not in str(error):
                    raise
            time.sleep(pause * random.uniform(0.5, 1))
            self._table.checkout_latest()
        return change()

    def _upsert(self, records: list[Record], vectors: list[StoredVector]) -> None:
        if not records:
            return
        rows = np.stack([vector.floats() for vector in vectors]).astype(np.float16)
        flat = self._arrow.array(rows.reshape(-1))
        columns = {
            "id": [r.id for r in records],
            "source": [r.source for r in records],
            "line": [r.line for r in records],
            "hash": [text_hash(r.text) for r in records],
            "text": [r.text for r in records],
            "words": [plain_words(r.text) for r in records],
            "vector": self._arrow.FixedSizeListArray.from_arrays(flat, self.dim),
        }
        table = self._arrow.table(columns, schema=self._schema(self._facts))
        merge = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        self._commit(lambda: merge.execute(table))

    def _mark_seen(self, ids: Iterable[str]) -> None:
        self._seen.update(ids)

    def _delete(self, where: str) -> int:
        return self._commit(lambda: int(self._table.delete(where).num_deleted_rows))

    def _delete_ids(self, ids: list[str]) -> int:
        with self._write():
            parts = (ids[start : start + DELETED] for start in range(0, len(ids), DELETED))
            return sum(self._delete(f"id IN ({quote_all(part)})") for part in parts)

    def _delete_source(self, source: str) -> int:
        with self._write():
            return self._delete(f"source = {quote_all([source])}")

    def _delete_unseen(self, places: list[tuple[str, str]]) -> int:
        deleted = 0
        for place, folder in places:
            inside = f"source = {quote_all([place])} OR starts_with(source, {quote_all([folder])})"
            with self._write():
                ids = [row["id"] for row in self._rows(inside, "id") if row["id"] not in self._seen]
                deleted += self._delete_ids(ids) if ids else 0
        return deleted

    # Searching ----------------------------------------------------------------------------------------------------

    def _match_words(self, queries: Sequence[str], k: int) -> list[Ranked]:
        return [self._best(plain_terms(query), k) for query in queries]

    def _best(self, terms: list[str], k: int) -> Ranked:
        if not terms:
            return []
        query: Any = need("lancedb.query", "lancedb", "an index in LanceDB")
        parts = [(query.PhraseQuery if " " in term else query.MatchQuery)(term, "words") for term in terms]
        either = query.BooleanQuery([(query.Occur.SHOULD, part) for part in parts])
        rows = self._table.search(either, query_type="fts").with_row_id(True).select(["_score"]).limit(k).to_arrow()
        return ranked_rows(rows["_score"].to_numpy(), rows["_rowid"].to_numpy())

    def _nearest(self, queries: np.ndarray, k: int, exact: bool) -> list[Ranked]:
        return [self._nearest_rows(query, k, exact) for query in queries]

    def _nearest_rows(self, query: np.ndarray, k: int, exact: bool) -> Ranked:
        search = self._table.search(query.astype(np.float32)).distance_type("cosine").with_row_id(True)
        search = search.bypass_vector_index() if exact else search.nprobes(PROBES).refine_factor(REFINED)
        rows = search.select(["_distance"]).limit(k).to_arrow()
        return ranked_rows(1 - rows["_distance"].to_numpy(), rows["_rowid"].to_numpy())

    def _read_vectors(self, slots: Iterable[int]) -> dict[int, StoredVector]:
        return {slot: stored_vector(row["vector"]) for slot, row in self._take(slots, "vector").items()}

    def _take(self, slots: Iterable[int], *columns: str) -> dict[int, dict[str, Any]]:
        """These columns of rows."""
        row_ids = list(slots)
        rows = self._table.take_row_ids(row_ids).select(list(columns)).with_row_id().to_arrow() if row_ids else None
        return {} if rows is None else {row["_rowid"]: row for row in rows.to_pylist()}

    def _oldest_vectors(self) -> VectorBlock | None:
        if self._oldest is None or len(self._oldest.vectors) < BLOCK:
            rows = self._table.search().select(["vector"]).limit(BLOCK).to_arrow().to_pylist()
            self._oldest = block_of([stored_vector(row["vector"]) for row in rows])
        return self._oldest

    def _hits(self, ranked: Ranked, matched: str) -> list[SearchHit]:
        rows = self._take([slot for _, slot in ranked], "id", "text", "source", "line")
        scored = [(score, rows[slot]) for score, slot in ranked]
        return [SearchHit(row["id"], row["text"], score, row["source"], row["line"], matched) for score, row in scored]


def stored_vector(numbers: list[float]) -> StoredVector:
    """A vector as LanceDB returns it."""
    return StoredVector(1.0, np.asarray(numbers, np.float32))


def ranked_rows(scores: np.ndarray, rows: np.ndarray) -> Ranked:
    """Rows by descending score; equal ones in the order of the table."""
    order = np.lexsort((rows, -scores))
    return [(float(scores[i]), int(rows[i])) for i in order]


def quote_all(texts: Iterable[str]) -> str:
    """Texts as strings of SQL. LanceDB has no parameters."""
    return ", ".join("'" + text.replace("'", "''") + "'" for text in texts)
