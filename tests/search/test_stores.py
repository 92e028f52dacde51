"""Indexes in vector stores: each behaves as the index in a file does, with a real Postgres, LanceDB and Qdrant."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from albertkit.cli import search_commands
from albertkit.errors import AlbertkitError
from albertkit.search.index import Index, Record
from albertkit.search.store_address import parse_address
from albertkit.serve.served_indexes import ServedIndexes
from tests.conftest import ROOT
from tests.search.test_index import Toy, check_forms_find_each_other, many

KINDS = ("pgvector", "lancedb", "qdrant")


@pytest.fixture
def index(store):
    with Index.create(store, Toy()) as made:
        yield made


# Adding, replacing, deleting --------------------------------------------------------------------------------------


def test_what_is_added_is_found_after_reopening(index, store):
    records = many(600)
    assert index.add(records) == 600 and len(index) == 600
    index.close()
    with Index.open(store, Toy()) as again:
        for record in records[::200]:
            for mode in ("vector", "hybrid", "keyword"):
                hit = again.search(record.text, 3, mode)[0]
                assert (hit.id, hit.text, hit.source, hit.line) == (record.id, record.text, "history", record.line)
        assert again.search(records[5].text, 1, "vector")[0].score == pytest.approx(1, abs=0.001)


def test_upsert_embeds_only_what_changed(index):
    records = many(100)
    index.add(records)
    toy = index.embedder
    assert toy.count == 100
    assert index.add(records) == 0 and toy.count == 100
    changed = [Record("r3", "entirely different words", "history", 3), *records[4:]]
    assert index.add(changed) == 1 and toy.count == 101 and len(index) == 100
    assert index.search("n3", mode="keyword") == [] and index.search("entirely", 1, "keyword")[0].id == "r3"
    moved = [Record(f"r{i}", records[i - 1].text, "history", i) for i in range(1, 100)]  # a line was put in above
    assert index.add(moved) == 99 and toy.count == 102  # only the text that record 3 had lost
    assert index.add([Record("r5", moved[4].text, "elsewhere", 9)]) == 1 and toy.count == 102
    assert index.search(records[50].text, 1, "vector")[0].id == "r51"
    assert index.search("n4", 1, "keyword")[0].source == "elsewhere"


def test_the_last_of_equal_ids_stands(index):
    with pytest.warns(UserWarning, match="1 id occurs more than once, such as 'a'; only the last text"):
        assert index.add([Record("a", "first"), Record("b", "same"), Record("a", "second"), Record("c", "same")]) == 3
    assert index.embedder.count == 2
    assert [h.text for h in index.search("first second", mode="keyword")] == ["second"]


def test_repeated_ids_of_one_run_are_counted(index):
    """In one batch or in several; a record that is read twice, or is replaced by another run, is not repeated."""
    records = [Record(id, f"text {n}", "t.jsonl", n) for n, id in enumerate("abacbd", 1)]
    for batch in (2, 100):
        with pytest.warns(UserWarning, match=r"2 ids occur more than once, such as 'a' \(t.jsonl:3\); only the last"):
            index.add(records, batch=batch)
        assert len(index) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index.add([records[0], records[1], records[0]], batch=2)
        index.add([Record("a", "another")])


def test_files_that_shrank_lose_their_lines(index, store):
    index.add(
        [Record(f"{f}:{i}", f"{f} line {i}", f, i) for f in ("a", "b", "folder/c", "folder2/d") for i in range(5)]
    )
    index.close()
    with Index.open(store, Toy()) as again:
        again.add([Record(f"a:{i}", f"a line {i}", "a", i) for i in range(2)])
        assert again.delete_unseen(["a"]) == 3 and len(again) == 17
        assert again.delete_unseen(["folder"]) == 5 and again.delete_source("b") == 5
        assert again.delete(["a:0", "a:0", "nosuch"]) == 1 and again.delete([]) == 0 and len(again) == 6


def test_a_text_in_many_records_is_read_once(index, monkeypatch):
    """Else indexing would take the square of the number of records."""
    index.add(Record(f"a{i}", "ok") for i in range(50))
    asked, rows, toy = [], [], index.embedder
    for name in ("_known_texts", "_text_vectors"):
        method = getattr(index, name)
        monkeypatch.setattr(index, name, lambda texts, method=method: asked.extend(texts) or method(texts))
    if index.path.startswith("qdrant"):
        scroll = index._collection.scroll

        def count(*arguments, **parts):
            for page in scroll(*arguments, **parts):
                rows.append(len(page))
                yield page

        monkeypatch.setattr(index._collection, "scroll", count)
    elif index.path.startswith("pgvector"):
        run = index._run

        def count(text, values=None):
            cursor = run(text, values)
            rows.extend([cursor.rowcount] * ("hash = ANY" in text))
            return cursor

        monkeypatch.setattr(index, "_run", count)
    else:
        take = index._take

        def count(slots, *columns):
            found = take(slots, *columns)
            rows.append(len(found))
            return found

        monkeypatch.setattr(index, "_take", count)
    assert index.add((Record(f"b{i}", "ok") for i in range(50)), batch=10) == 50
    assert asked == ["ok", "ok"] and max(rows) == 1 and toy.count == 1
    assert len(index) == 100 and index.search("ok", 1, "vector")[0].score == pytest.approx(1, abs=0.001)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["add", "delete"]), st.sampled_from("abc")), max_size=12))
def test_any_order_of_changes_equals_a_dictionary(store, steps):
    with Index.create(store, Toy(dim=8), overwrite=True) as index:
        wanted = {}
        for number, action, word in steps:
            key = f"k{number}"
            if action == "add":
                index.add([Record(key, f"text {word}")])
                wanted[key] = f"text {word}"
            else:
                assert index.delete([key]) == (key in wanted)
                wanted.pop(key, None)
        for mode in ("vector", "keyword"):
            hits = index.search("text", 20, mode, min_score=None if mode == "keyword" else -1)
            assert {hit.id: hit.text for hit in hits} == wanted
        assert len(index) == len(wanted)


# Searching --------------------------------------------------------------------------------------------------------


def test_hits_are_those_of_the_index_in_a_file(index, tmp_path):
    """Also which texts the relevance limit leaves out."""
    records = [*many(400), Record("code", "error E1234 zzz yyy xxx"), Record("near", "alpha beta gamma")]
    queries = ["what is E1234", "alpha beta delta", "nothing like it", *(record.text for record in records[:20])]
    index.add(records)
    with Index.create(tmp_path / "t.idx", Toy()) as local:
        local.add(records)
        for limit in (None, -1, 0.5):
            ours, theirs = (i.search_results(queries, 5, "vector", min_score=limit) for i in (index, local))
            assert [r.left_out for r in ours] == [r.left_out for r in theirs]
            for mine, other in zip(ours, theirs, strict=True):  # bytes round the cosines of a file
                assert [h.score for h in mine.hits] == pytest.approx([h.score for h in other.hits], abs=0.01)
                assert [h.id for h in mine.hits[:1]] == [h.id for h in other.hits[:1]]
        ours, theirs = (i.search_results(queries, 5) for i in (index, local))
        assert [r.hits[0].id for r in ours if r.hits] == [r.hits[0].id for r in theirs if r.hits]
        for mine, other in zip(ours, theirs, strict=True):
            assert [h.matched for h in mine.hits[:1]] == [h.matched for h in other.hits[:1]]
            assert [h.score for h in mine.hits[:1]] == pytest.approx([h.score for h in other.hits[:1]], abs=0.02)
    assert {hit.matched for hit in index.search("alpha zzz", 400, min_score=-1)} == {"both", "meaning"}


def test_chinese_japanese_and_accents_by_keyword(index):
    texts = [
        "我在北京大学读书",
        "上海的天气很好",
        "东京の天気は晴れ",
        "Café Zürich opens",
        "กรุงเทพมหานคร",
        "𠮷野家の牛丼",
        "a_b.c@d.org/e-f",
    ]
    index.add([Record(str(i), t) for i, t in enumerate(texts)])
    for query, wanted in {
        "北京": ["0"],
        "北京大学": ["0"],
        "天气": ["1"],
        "好": ["1"],
        "今天上海天气怎么样": ["1"],
        "天気": ["2"],
        "cafe": ["3"],
        "ZURICH": ["3"],
        "กรุงเทพ": ["4"],
        "𠮷野": ["5"],
        "南京": [],
        "京大": ["0"],
        "org": ["6"],
        "!!! ???": [],
    }.items():
        assert [h.id for h in index.search(query, mode="keyword")] == wanted, query


def test_every_form_of_a_word_finds_every_form_by_keyword_and_hybrid(index):
    check_forms_find_each_other(index)


def test_an_index_with_words_of_an_older_version_is_an_error(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("albertkit.search.stores.store_index.FORMAT", "1")
        Index.create(store, Toy()).close()
    with pytest.raises(AlbertkitError, match=r"has format 1, not 2. .* index the files again \(--force\)"):
        Index.open(store, None)
    with Index.create(store, Toy(), overwrite=True) as index:
        assert index.add([Record("a", "臺灣")]) == 1 and index.search("台湾", 1, "keyword")[0].id == "a"


def test_rare_words_count_more_than_common_ones(index):
    index.add(Record(str(i), f"the cat number{i}" if i % 2 else f"the dog number{i}") for i in range(300))
    assert index.search("the cat number8", 1, "keyword")[0].id == "8"
    assert len(index.search("the", 3, "keyword")) == 3 == len(index.search("nosuch the", 3, "keyword"))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(max_size=60) | st.text("\"*()^:-+{}&|!<>\\'%AND OR NOT NEAR,北京", max_size=40))
def test_any_text_is_kept_searched_and_deleted(index, query):
    assume(query.strip())
    index.add([Record("odd " + query, query + " oddity", query, 1)])
    assert (
        query + " oddity" == index.search("oddity " + query, 1, "keyword")[0].text.replace("\ufffd", "\0")
        or "\ufffd" in query
    )
    assert len(index.search(query, 1, min_score=-1)) == 1
    assert index.delete(["odd " + query]) == 1 and len(index) == 0


def test_odd_arguments(index, store):
    index.add(many(3))
    for k in (0, -1, 10**9):
        with pytest.raises(AlbertkitError, match="k="):
            index.search("x", k=k)
    assert index.search_many([]) == [] and len(index.search("x", 10_000, "vector", min_score=-1)) == 3
    assert index.add([]) == 0
    with Index.open(store, None) as bare:
        assert bare.search("n1", mode="keyword")[0].id == "r1"
        with pytest.raises(AlbertkitError, match="opened without a model"):
            bare.search("n1")
    index.embedder = Toy(dim=5)
    with pytest.raises(AlbertkitError, match="vectors of shape"):
        index.add([Record("new", "new")])


def test_a_graph_of_vectors_is_built_and_finds_nearly_what_an_exact_search_finds(store, monkeypatch):
    for kind in ("pgvector", "lancedb"):  # Qdrant decides by itself
        monkeypatch.setattr(f"albertkit.search.stores.{kind}.GRAPH_ROWS", 1500, raising=kind in store)
    records, queries = many(2000), [f"w{i} w{2 * i} w{3 * i}" for i in range(20)]
    with Index.create(store, Toy()) as index:
        index.add(records)
    with Index.open(store, Toy()) as index:
        exact = index.search_many(queries, 10, "vector", min_score=-1, exact=True)
        vectors = Toy().embed(record.text for record in records)
        wanted = np.argsort(-(Toy().embed(queries) @ vectors.T), axis=1)[:, :10]
        assert (
            np.mean([len({h.line for h in hits} & set(row)) for hits, row in zip(exact, wanted.tolist(), strict=True)])
            > 9.8
        )
        near = index.search_many(queries, 10, "vector", min_score=-1)
        assert np.mean([len({h.id for h in a} & {h.id for h in b}) for a, b in zip(near, exact, strict=True)]) > 9
        index.add([Record("late", "w1 w2 w3")])
        assert index.search(queries[1], 1, "vector")[0].id == "late"
        assert len(index.search("w1", 1800, "vector", min_score=-1)) == 1800
        index.delete(record.id for record in records[5:])
        assert len(index.search("w1", 10, "vector", min_score=-1)) == 6  # deleted neighbours hide no others
        assert has_graph(index)


def has_graph(index):
    if index.path.startswith("qdrant"):
        return True  # a folder needs none, and a server builds it at any time
    if index.path.startswith("pgvector"):
        return (
            index._value(
                "SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%%hnsw%%' AND tablename = %s",
                (index.address.table,),
            )
            == 1
        )
    return ["vector"] in [found.columns for found in index._table.list_indices()]


# Crashes, threads, other programs ---------------------------------------------------------------------------------

WRITER = """
import sys
from tests.search.test_index import Toy, many
from albertkit.search.index import Index
index = Index.open(sys.argv[1], Toy())
def tell(count):
    print(len(index), flush=True)
    sys.stdin.readline()
index.add(many(20000), batch=50, progress=tell)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_while_adding_keeps_finished_batches_and_resumes(store):
    Index.create(store, Toy()).close()
    line = [sys.executable, "-c", WRITER, store]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as writer:
        for _ in range(3):
            done = int(writer.stdout.readline())
            writer.stdin.write(b"\n")  # it works on the next batch
            writer.stdin.flush()
        writer.send_signal(signal.SIGKILL)
    with Index.open(store, Toy()) as index:
        kept = len(index)
        assert kept >= done == 150 and (kept % 50 == 0 or store.startswith("qdrant"))  # which writes point by point
        records = many(400)
        assert index.add(records) == 400 - kept and index.embedder.count == 400 - kept
        for record in records[::97]:
            assert index.search(record.text, 1)[0].id == record.id


def test_an_error_in_the_model_loses_only_its_batch(index):
    class Broken(Toy):
        def embed(self, texts):
            if self.count > 150:
                raise RuntimeError("out of order")
            return super().embed(texts)

    index.embedder = Broken()
    with pytest.raises(RuntimeError):
        index.add(many(1000), batch=100)
    assert len(index) == 200
    index.embedder = Toy()
    assert index.add(many(300)) == 100


def test_changes_that_were_not_committed_are_not_searched(index):
    if not index.path.startswith("pgvector"):
        pytest.skip("LanceDB commits a batch in one step, Qdrant a text")
    index.add(many(5))
    new = index._embed_new(["entirely new"])
    with pytest.raises(KeyboardInterrupt), index._write():
        index._add({"r0": Record("r0", "entirely new")}, new)
        raise KeyboardInterrupt
    assert index.search("entirely", mode="keyword") == [] and len(index) == 5


def test_threads_and_a_second_writer(index, store):
    index.add(many(200))
    problems = []

    def work(number):
        try:
            if number % 2:
                with Index.open(store, Toy()) as other:
                    other.add(many(40, start=1000), batch=10)  # both write the same ids
            else:
                for record in many(10):
                    assert index.search(record.text, 1)[0].id == record.id
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems and len(index) == 240


def test_programs_that_create_it_at_the_same_time_share_it(store):
    problems, new = [], []

    def work():
        try:
            with Index.open_or_create(store, Toy()) as index:
                new.append(index.is_new)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems and len(new) == 3 and any(new)
    if store.startswith("pgvector"):
        assert sum(new) == 1


def test_changes_of_another_program_are_seen(index, store):
    with Index.open(store, Toy()) as other:
        index.add(many(10))
        assert index.search("w1", 1, min_score=-1)
        other.add([Record("r3", "entirely new")])
        assert index.search("entirely new", 1, "vector")[0].id == "r3"


# What can be wrong ------------------------------------------------------------------------------------------------


def test_another_model_and_a_missing_or_existing_table_are_errors(store):
    with Index.create(store, Toy()) as index:
        index.add(many(3))
    with pytest.raises(AlbertkitError, match=r"built with model toy \(32 dimensions\), not other"):
        Index.open(store, Toy(name="other"))
    with pytest.raises(AlbertkitError, match="has no index. Build one with"):
        Index.open(store + "2", Toy())
    assert not Index.exists(store + "2")
    with pytest.raises(AlbertkitError, match="already exists"):
        Index.create(store, Toy())
    with Index.create(store, Toy(dim=16), overwrite=True) as fresh:
        assert len(fresh) == 0 and fresh.dim == 16
        fresh.drop()
    assert not Index.exists(store)


def test_a_table_that_was_replaced_with_another_model_is_neither_searched_nor_changed(store):
    with Index.create(store, Toy()) as old:
        old.add(many(3))
        with Index.create(store, Toy(name="other"), overwrite=True) as new:
            new.add(many(3))
            for work in (lambda: old.search("w1"), lambda: old.add(many(9)), lambda: old.delete(["r1"])):
                with pytest.raises(AlbertkitError, match="was replaced|cannot be used"):
                    work()
            assert len(new) == 3
        old._has_written = False  # so that `close` has nothing to finish


def test_a_table_of_lancedb_is_replaced_in_one_step(tmp_path, monkeypatch):
    pytest.importorskip("lancedb", reason="LanceDB is not installed: pip install 'albertkit[lancedb]'")
    from albertkit.search.stores.lancedb import LancedbIndex

    store, found, schema = f"lancedb://{tmp_path / 'lance'}", [], LancedbIndex._schema
    with Index.create(store, Toy()) as old:
        old.add(many(3))
    monkeypatch.setattr(
        LancedbIndex, "_schema", lambda self, facts: found.append(Index.exists(store)) or schema(self, facts)
    )
    with Index.create(store, Toy(dim=16, name="other"), overwrite=True) as new:
        assert found == [True] and len(new) == 0 and new.dim == 16
        new.add(many(2))
        assert new.search("n1", 1, "keyword")[0].id == "r1" and {
            hit.id for hit in new.search("w1", 9, min_score=-1)
        } == {"r0", "r1"}
    assert Index.open(store, None).model == "other"


def test_indexes_of_a_new_table_of_lancedb_are_built_again_after_a_conflict(tmp_path, monkeypatch):
    pytest.importorskip("lancedb", reason="LanceDB is not installed: pip install 'albertkit[lancedb]'")
    from albertkit.search.stores.lancedb import LancedbIndex

    conflicts, build = [ValueError("Retryable commit conflict for version 2")], LancedbIndex._build_indexes

    def fail_first(self):
        if conflicts:
            raise conflicts.pop()
        build(self)

    monkeypatch.setattr(LancedbIndex, "_build_indexes", fail_first)
    with Index.create(f"lancedb://{tmp_path / 'lance'}", Toy()) as index:
        assert {"words"} <= {column for one in index._table.list_indices() for column in one.columns}


def test_looking_for_an_index_creates_nothing(tmp_path):
    pytest.importorskip("lancedb", reason="LanceDB is not installed: pip install 'albertkit[lancedb]'")
    assert not Index.exists(f"lancedb://{tmp_path / 'typo'}")
    with pytest.raises(AlbertkitError, match="has no index"):
        Index.open(f"lancedb://{tmp_path / 'typo'}", None)
    assert list(tmp_path.iterdir()) == []


def test_the_table_of_another_program_is_never_overwritten(store, tmp_path):
    if store.startswith("pgvector"):
        import psycopg

        connection = psycopg.connect("postgresql" + store.removeprefix("pgvector").partition("&")[0], autocommit=True)
        name = parse_address(store).table
        connection.execute(f"CREATE TABLE {name} (x int)")
        connection.execute(f"INSERT INTO {name} VALUES (7)")
    elif store.startswith("qdrant"):
        client, name = qdrant_client_of(store), parse_address(store).table
        client.create_collection(name, vectors_config={})
        client.close()
    else:
        import lancedb

        table = lancedb.connect(tmp_path / "lance").create_table("notes", [{"x": 7}])
    for overwrite in (False, True):
        with pytest.raises(AlbertkitError, match="already exists"):
            Index.create(store, Toy(), overwrite=overwrite)
    with pytest.raises(AlbertkitError, match="has no index|another program's"):
        Index.open(store, Toy())
    if store.startswith("pgvector"):
        assert connection.execute(f"SELECT x FROM {name}").fetchone() == (7,)
        connection.execute(f"DROP TABLE {name}")
        connection.close()
    elif store.startswith("qdrant"):
        client = qdrant_client_of(store)
        assert client.get_collection(name).config.params.vectors == {} and client.delete_collection(name)
        client.close()
    else:
        assert table.count_rows() == 1


def qdrant_client_of(store):
    from qdrant_client import QdrantClient

    place = parse_address(store).location
    return QdrantClient(path=place) if place.startswith("/") else QdrantClient(url=f"http://{place}")


def test_a_text_that_postgres_cannot_store_is_an_error_with_a_remedy(postgres):
    with Index.create(f"{postgres}&table=long_texts", Toy()) as index:
        index.embedder.embed = lambda texts: np.ones((len(list(texts)), 32), np.float32)
        with pytest.raises(AlbertkitError, match=r"too long .*--split"):
            index.add([Record("a", "short"), Record("b", " ".join(f"{i}" for i in range(150_000)))])
        assert len(index) == 0 and index.add([Record("a", "short")]) == 1
        index.drop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_client_names_the_command_that_installs_it(kind, monkeypatch):
    monkeypatch.setitem(
        sys.modules, {"pgvector": "psycopg", "lancedb": "lancedb", "qdrant": "qdrant_client"}[kind], None
    )
    with pytest.raises(AlbertkitError, match=rf"pip install 'albertkit\[{kind}\]'"):
        Index.open(f"{kind}://somewhere", None)


# Addresses --------------------------------------------------------------------------------------------------------


def test_no_message_contains_a_password():
    pytest.importorskip("psycopg", reason="psycopg is not installed; make test installs it")
    for address in (
        "ada:pa%40ss@127.0.0.1:1/db",
        "ada:pa@ss@127.0.0.1:1/db",
        "127.0.0.1:1/db?password=pa%40ss&user=ada",
    ):
        text = f"pgvector://{address}"
        with pytest.raises(AlbertkitError) as caught:
            Index.open(text, None)
        shown = f"{caught.value} {parse_address(text)!r} {parse_address(text).name}"
        assert "***" in shown and not any(secret in shown for secret in ("pa%40ss", "pa@ss", "ss@"))


@pytest.mark.parametrize("place", ["ada:pa?ss@h/db", "ada:pa?table=ss@h/db", "ada:x@h?ss@h/db?table=notes"])
def test_a_password_with_a_question_mark_must_be_quoted(place):
    with pytest.raises(AlbertkitError, match="Write \\? in a user name or password as %3F") as caught:
        parse_address(f"pgvector://{place}")
    assert "ss" not in str(caught.value).replace("address", "").replace("password", "")
    assert parse_address("pgvector://ada:pa%3Fss@h/db?options=a%40b").location == "ada:pa%3Fss@h/db?options=a%40b"


@pytest.mark.parametrize("table", ["notes;", 'a"b', "", "1a", "a b", "x" * 41, "notes%20--", "é"])
def test_a_table_has_a_plain_name(table):
    with pytest.raises(AlbertkitError, match="is not a table name"):
        parse_address(f"pgvector://host/db?table={table}")


def test_addresses_and_paths_are_told_apart(tmp_path):
    assert parse_address(tmp_path) is parse_address("notes.idx") is parse_address("C:/notes.idx") is None
    assert parse_address("lancedb://a/b?table=c").location == "a/b"
    assert parse_address("pgvector://h/d?sslmode=require&table=c").location == "h/d?sslmode=require"
    with pytest.raises(AlbertkitError, match="Pass a string"):
        parse_address(Path("pgvector://host/db"))
    with pytest.raises(AlbertkitError, match="Write pgvector://"):
        parse_address("postgresql://host/db")
    with pytest.raises(AlbertkitError, match="the store is 'pgvektor' .did you mean 'pgvector'"):
        parse_address("pgvektor://host/db")


def test_the_server_says_that_it_serves_files_only():
    with pytest.raises(AlbertkitError, match="serves index files, not vector stores"):
        ServedIndexes([Path("pgvector://host/db")], [])


# The commands -----------------------------------------------------------------------------------------------------


def test_index_and_search_commands(store, tmp_path, monkeypatch):
    monkeypatch.setattr("albertkit.albert.Albert", lambda model: Toy())
    (tmp_path / "model").mkdir()
    notes = tmp_path / "n.txt"
    notes.write_text("the cat sat\na dog ran\n北京的天气\n", encoding="utf-8")

    def run(command, *args):
        done = CliRunner().invoke(command, [str(arg) for arg in args])
        assert done.exit_code == 0, done.output + repr(done.exception)
        return done.stdout

    def told(command, *args):
        return json.loads(run(command, *args, "--json"))

    name = parse_address(store).name
    first = told(search_commands.index, notes, "-o", store, "-m", tmp_path / "model")
    assert first == {"index": name, "changed": 3, "deleted": 0, "total": 3}
    notes.write_text("the cat sat\na dog ran fast\n", encoding="utf-8")
    again = told(search_commands.index, notes, "-o", store)  # the index knows its model
    assert again == {"index": name, "changed": 1, "deleted": 1, "total": 2}
    assert told(search_commands.search, store, "cat", "-k", 1)["hits"][0]["text"] == "the cat sat"
    assert "a dog ran fast" in run(search_commands.search, store, "dog", "--mode", "keyword")
    assert told(search_commands.index, "-o", store, "--delete", f"{notes}:1")["total"] == 1
    assert told(search_commands.index, notes, "-o", store, "-m", tmp_path / "model", "--force")["total"] == 2


def test_a_new_table_whose_texts_are_refused_is_removed(store, tmp_path):
    (tmp_path / "zh.txt").write_text("北京的天气\n我们去图书馆\n", encoding="utf-8")
    done = CliRunner().invoke(search_commands.index, [str(tmp_path / "zh.txt"), "-o", store, "-m", "small"])
    assert isinstance(done.exception, AlbertkitError) and not Index.exists(store)
