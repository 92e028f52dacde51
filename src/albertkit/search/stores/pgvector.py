"""An index in a Postgres table, with the extension pgvector: vectors as `halfvec`, words as `tsvector`.

In: a `StoreAddress`. Out: a `PgvectorIndex`. Before this file: `store_index.py`. `pgvector_words.py` ranks by words.
The client is psycopg. Names in SQL are `sql.Identifier`, and values are parameters.

Postgres builds its graph of vectors (HNSW) faster for a full table than row by row. So `close` builds it, as soon as
the table has `GRAPH_ROWS` texts. Smaller tables are compared exactly.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError, need
from albertkit.search.index import Embedder
from albertkit.search.index_records import SearchHit, text_hash
from albertkit.search.keywords import plain_words
from albertkit.search.store_address import StoreAddress
from albertkit.search.stores.pgvector_words import match_words
from albertkit.search.stores.store_index import StoreIndex, block_of
from albertkit.search.vectors import BLOCK, Ranked, StoredVector, VectorBlock
from albertkit.text_reader import Record

GRAPH_ROWS = 10_000  # from so many texts on, a table has a graph of vectors
TIMEOUT = 60  # seconds to wait for another program's transaction
GRAPH_WIDTHS = 4_000  # numbers of the widest halfvec in such a graph
CANDIDATES = (400, 1_000)  # of a search in the graph: at least, and at most, which is pgvector's limit
CONNECTION = {
    "connect_timeout": "10",
    "tcp_user_timeout": "60000",
    "client_encoding": "UTF8",
}  # unless the address has others
TIMEOUTS = f"SET LOCAL lock_timeout = '{TIMEOUT}s'; SET LOCAL statement_timeout = '600s'"
SCHEMA = """
CREATE TABLE {facts} (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE {table} (slot bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL UNIQUE,
    source text NOT NULL, line bigint NOT NULL, hash bigint NOT NULL, text text NOT NULL, words tsvector NOT NULL,
    embedding halfvec({dim}) NOT NULL);
CREATE INDEX ON {table} (hash);
CREATE INDEX ON {table} (source text_pattern_ops);
CREATE INDEX ON {table} USING gin (words);
"""
UPSERT = """
INSERT INTO {table} (id, source, line, hash, text, words, embedding)
VALUES (%s, %s, %s, %s, %s, to_tsvector('pg_catalog.simple', %s), %s)
ON CONFLICT (id) DO UPDATE SET source = excluded.source, line = excluded.line, hash = excluded.hash,
    text = excluded.text, words = excluded.words, embedding = excluded.embedding
"""
# one of the rows of each text, since a text may be in very many of them
ONE_PER_HASH = "{table} WHERE slot IN (SELECT min(slot) FROM {table} WHERE hash = ANY(%s) GROUP BY hash)"
REMEDIES = {  # beginnings of SQLSTATE, the longest first
    "55P03": "Another program is writing to it: wait until it is done, then rerun the command.",
    "57014": "It took too long. Rerun the command to resume.",
    "54": "A text, or an id of over 2,000 bytes, is too long for Postgres. Index by lines or paragraphs (--split).",
    "53": "Free some memory or disk space of the server, then rerun the command.",
    "42501": "Use a role that may do this.",
    "0A000": "Install the extension pgvector 0.7 or later in the server.",
    "58P01": "Install the extension pgvector 0.7 or later in the server.",
    "42704": "Install the extension pgvector 0.7 or later in the server.",
    "28": "Check the user and the password.",
    "3D000": "Create the database, or name another one.",
}


class PgvectorIndex(StoreIndex):
    """An index in a Postgres table. Programs may write at the same time; each batch waits for the others'."""

    def __init__(self, address: StoreAddress, embedder: Embedder | None) -> None:
        super().__init__(address, embedder)
        try:
            self._psycopg: Any = need("psycopg", "pgvector", "an index in Postgres")
        except ImportError as error:  # psycopg without a library for the protocol
            raise AlbertkitError(f"psycopg cannot be used ({error}): run  pip install 'albertkit[pgvector]'") from None
        self._lock = threading.RLock()
        self._depth, self._has_seen = 0, False
        names = self._psycopg.sql
        self._names = {
            "table": names.Identifier(address.table),
            "facts": names.Identifier(f"{address.table}_facts"),
            "seen": names.Identifier("pg_temp", f"{address.table}_seen"),
        }
        parameters: dict[str, Any] = {key: value for key, value in CONNECTION.items() if key not in address.location}
        with self._errors():
            self._connection = self._psycopg.connect(
                f"postgresql://{address.location}", autocommit=True, prepare_threshold=None, **parameters
            )
        encoding = self._connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            self._connection.close()
            raise AlbertkitError(
                f"{self.path} is in a database with encoding {encoding}, not UTF8. Use another database."
            )

    # The table ----------------------------------------------------------------------------------------------------

    def has_table(self) -> bool:
        with self._read():
            return bool(self._value("SELECT to_regclass(%s) IS NOT NULL", (self._names["facts"].as_string(None),)))

    def create_table(self, facts: Mapping[str, str], overwrite: bool) -> None:
        with self._transaction():
            self._run("CREATE EXTENSION IF NOT EXISTS vector")
            if overwrite and self.has_table() and "model" in self.read_facts():  # no other program's table
                self._run("DROP TABLE {table}, {facts}")
            try:
                with self._connection.transaction():
                    self._run(SCHEMA.replace("{dim}", str(int(facts["dim"]))))
            except (self._psycopg.errors.DuplicateTable, self._psycopg.errors.UniqueViolation):
                raise self.exists_error() from None
            with self._connection.cursor() as cursor:
                cursor.executemany(self._sql("INSERT INTO {facts} VALUES (%s, %s)"), list(facts.items()))

    def read_facts(self) -> dict[str, str]:
        if not self.has_table():
            raise self.missing_error()
        with self._read():
            return {str(key): str(value) for key, value in self._run("SELECT key, value FROM {facts}")}

    def close(self) -> None:
        """Build what makes searches fast, if texts were added, and close the connection."""
        with self._lock:
            try:
                if self._has_written and not self._connection.closed:
                    self._build_graph()
            finally:
                self._has_written = False
                self._connection.close()

    def _build_graph(self) -> None:
        with self._write():
            rows = self._value("SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT %s) AS first", (GRAPH_ROWS,))
            if rows >= GRAPH_ROWS and self.dim <= GRAPH_WIDTHS:
                self._run("SET LOCAL statement_timeout = 0")
                self._run("CREATE INDEX IF NOT EXISTS {graph} ON {table} USING hnsw (embedding halfvec_cosine_ops)")
            self._run("ANALYZE {table}")

    def drop(self) -> None:
        """Delete the table with all its texts, and close the connection."""
        with self._write():
            self._run("DROP TABLE {table}, {facts}")
        self._has_written = False
        self.close()

    # Statements and transactions ----------------------------------------------------------------------------------

    def _sql(self, text: str) -> Any:
        graph = self._psycopg.sql.Identifier(f"{self.address.table}_graph")
        return self._psycopg.sql.SQL(text).format(**self._names, graph=graph)

    def _run(self, text: str, values: Sequence[object] | None = None) -> Any:
        return self._connection.execute(self._sql(text), values, binary=values is not None)

    def _value(self, text: str, values: Sequence[object] = ()) -> Any:
        """The first value of the first row."""
        return self._run(text, values).fetchone()[0]

    @contextlib.contextmanager
    def _transaction(self, kind: str = "ISOLATION LEVEL READ COMMITTED") -> Iterator[None]:
        """A transaction, for one thread at a time; a part of the outer one if there is one."""
        with self._lock, self._errors():
            if self._depth:
                yield
                return
            self._depth += 1
            try:
                with self._connection.transaction():
                    self._run(f"SET TRANSACTION {kind}; {TIMEOUTS}")
                    yield
            finally:
                self._depth -= 1

    @contextlib.contextmanager
    def _read(self) -> Iterator[None]:
        with self._transaction("ISOLATION LEVEL REPEATABLE READ READ ONLY"):
            self._check_replaced()
            yield

    def _check_replaced(self) -> None:
        """Raise if the table now has the vectors of another model."""
        if self._facts and self._value("SELECT value FROM {facts} WHERE key = %s", ("model",)) != self.model:
            raise self.replaced_error()

    @contextlib.contextmanager
    def _write(self) -> Iterator[None]:
        with self._transaction():
            self._run("LOCK TABLE {facts} IN SHARE ROW EXCLUSIVE MODE")  # one writer at a time; all may read
            self._check_replaced()
            yield
        self._has_written = True

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the errors of Postgres as `AlbertkitError`."""
        try:
            yield
        except self._psycopg.Error as error:
            state = error.sqlstate or ""
            remedies = [remedy for start, remedy in REMEDIES.items() if state.startswith(start)]
            remedy = remedies[0] if remedies else "Check the address and the server, then rerun the command to resume."
            message = self.address.hide_secrets("; ".join(line.strip() for line in str(error).splitlines()))
            raise AlbertkitError(f"{self.path} cannot be used ({message}). {remedy}") from None

    # Writing ------------------------------------------------------------------------------------------------------

    def _count(self) -> int:
        return int(self._value("SELECT count(*) FROM {table}"))

    def _slots_used(self) -> int:
        return int(self._value("SELECT coalesce(max(slot), 0) FROM {table}"))

    def _clean_text(self, text: str) -> str:
        return text.replace("\0", "\ufffd")  # Postgres has no NUL

    def _find_records(self, ids: list[str]) -> dict[str, Record]:
        rows = self._run("SELECT id, text, source, line FROM {table} WHERE id = ANY(%s)", (ids,))
        return {row[0]: Record(*row) for row in rows}

    def _known_texts(self, texts: list[str]) -> set[str]:
        return {row[0] for row in self._run(f"SELECT text FROM {ONE_PER_HASH}", (hashes(texts),))}

    def _text_vectors(self, texts: list[str]) -> dict[str, StoredVector]:
        query = f"SELECT text, halfvec_send(embedding) FROM {ONE_PER_HASH}"
        vectors = {row[0]: row[1] for row in self._run(query, (hashes(texts),))}
        return {text: self._vector(vectors[text]) for text in texts if text in vectors}

    def _upsert(self, records: list[Record], vectors: list[StoredVector]) -> None:
        rows = [
            (r.id, r.source, r.line, text_hash(r.text), r.text, plain_words(r.text), to_text(vector.floats()))
            for r, vector in zip(records, vectors, strict=True)
        ]
        with self._connection.cursor() as cursor:
            cursor.executemany(self._sql(UPSERT), rows)

    def _mark_seen(self, ids: Iterable[str]) -> None:
        if not self._has_seen:
            self._run("CREATE TEMP TABLE IF NOT EXISTS {seen} (slot bigint PRIMARY KEY)")
        mark = "INSERT INTO {seen} SELECT slot FROM {table} WHERE id = ANY(%s) ON CONFLICT DO NOTHING"
        self._run(mark, (list(ids),))
        self._has_seen = True

    def _delete(self, where: str, values: Sequence[object]) -> int:
        with self._write():
            return int(self._run(f"DELETE FROM {{table}} WHERE {where}", values).rowcount)

    def _delete_ids(self, ids: list[str]) -> int:
        return self._delete("id = ANY(%s)", ([self._clean_text(id) for id in ids],))

    def _delete_source(self, source: str) -> int:
        return self._delete("source = %s", (self._clean_text(source),))

    def _delete_unseen(self, places: list[tuple[str, str]]) -> int:
        unseen = "(source = %s OR starts_with(source, %s))"
        if self._has_seen:
            unseen += " AND NOT EXISTS (SELECT 1 FROM {seen} AS s WHERE s.slot = {table}.slot)"
        with self._write():
            return sum(self._delete(unseen, [self._clean_text(name) for name in place]) for place in places)

    # Searching ----------------------------------------------------------------------------------------------------

    def _match_words(self, queries: Sequence[str], k: int) -> list[Ranked]:
        rows = self._slots_used()
        return [match_words(self._run, query, k, rows) for query in queries]

    def _nearest(self, queries: np.ndarray, k: int, exact: bool) -> list[Ranked]:
        candidates = max(CANDIDATES[0], 2 * k)
        if not exact and candidates <= CANDIDATES[1]:
            self._run(f"SET LOCAL hnsw.ef_search = {int(candidates)}")
            ranked_lists = self._nearest_rows(queries, k)
            if all(len(ranked) == k for ranked in ranked_lists):
                return ranked_lists
        self._run("SET LOCAL enable_indexscan = off")  # fewer than k texts, or many deleted ones in the graph
        ranked_lists = self._nearest_rows(queries, k)
        self._run("SET LOCAL enable_indexscan = on")
        return ranked_lists

    def _nearest_rows(self, queries: np.ndarray, k: int) -> list[Ranked]:
        statement = "SELECT embedding <=> %s::halfvec AS distance, slot FROM {table} ORDER BY distance LIMIT %s"
        results = (self._run(statement, (to_text(query), k)) for query in queries)
        return [[(1 - float(distance), int(slot)) for distance, slot in rows] for rows in results]

    def _read_vectors(self, slots: Iterable[int]) -> dict[int, StoredVector]:
        query = "SELECT slot, halfvec_send(embedding) FROM {table} WHERE slot = ANY(%s)"
        return {row[0]: self._vector(row[1]) for row in self._run(query, (list(slots),))}

    def _oldest_vectors(self) -> VectorBlock | None:
        if self._oldest is None or len(self._oldest.vectors) < BLOCK:
            query = "SELECT slot, halfvec_send(embedding) FROM {table} ORDER BY slot LIMIT %s"
            self._oldest = block_of([self._vector(data) for _, data in self._run(query, (BLOCK,))])
        return self._oldest

    def _vector(self, data: bytes) -> StoredVector:
        """A vector as pgvector sends it: two numbers of 16 bits, then those of the vector."""
        return StoredVector(1.0, np.frombuffer(data, ">f2", offset=4).astype(np.float32))

    def _hits(self, ranked: Ranked, matched: str) -> list[SearchHit]:
        query = "SELECT slot, id, text, source, line FROM {table} WHERE slot = ANY(%s)"
        rows = {row[0]: row[1:] for row in self._run(query, ([slot for _, slot in ranked],))}
        scored_rows = [(score, rows[slot]) for score, slot in ranked]
        return [SearchHit(id, text, score, source, line, matched) for score, (id, text, source, line) in scored_rows]


def hashes(texts: Iterable[str]) -> list[int]:
    return [text_hash(text) for text in texts]


def to_text(vector: np.ndarray) -> str:
    """A vector as pgvector reads it."""
    return f"[{','.join(map(str, vector.astype(np.float16).tolist()))}]"
