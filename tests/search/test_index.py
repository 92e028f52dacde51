"""Search: the index on disk, records from files, clusters, and the three verbs."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import warnings
import zlib
from enum import Enum

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from albertkit.cli import search_commands as cli_search
from albertkit.errors import AlbertkitError
from albertkit.search import index_file as module
from albertkit.search.cluster import cluster
from albertkit.search.index import Index, Record
from albertkit.search.index_records import records_from
from albertkit.search.keywords import plain_terms
from albertkit.search.relevance import NONSENSE
from albertkit.search.vectors import BLOCK
from albertkit.text_reader import TEXT_LIMIT
from tests.conftest import ROOT


class Toy:
    """Each word has its own random direction; a text is the sum of its words."""

    def __init__(self, dim=32, name="toy"):
        self.dim, self.name, self.count = dim, name, 0

    def embed(self, texts):
        rows = []
        for text in texts:
            self.count += text not in NONSENSE
            words = text.lower().split() or [""]
            rows.append(sum(np.random.default_rng(zlib.crc32(w.encode())).standard_normal(self.dim) for w in words))
        rows = np.array(rows, np.float32).reshape(-1, self.dim)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def many(count, start=0, words=6):
    rng = np.random.default_rng(7)
    table = rng.integers(0, 500, (start + count, words))
    return [
        Record(f"r{i}", " ".join(f"w{w}" for w in table[i]) + f" n{i}", "history", i)
        for i in range(start, start + count)
    ]


def names(results):
    return [[hit.id for hit in hits] for hits in results]


@pytest.fixture
def index(tmp_path):
    with Index.create(tmp_path / "t.idx", Toy()) as made:
        yield made


# Adding, replacing, deleting --------------------------------------------------------------------------------------


class Name(str, Enum):
    """A string of another type."""

    FILE = "notes.txt"


def test_strings_and_numbers_of_other_types_are_stored_as_plain_ones(index):
    index.add([Record(np.str_("a"), np.str_("the cat"), Name.FILE, True), Record("b", "the 猫", "", np.int64(7))])
    for mode in ("hybrid", "keyword"):
        hit = index.search("cat", 1, mode)[0]
        assert (hit.id, hit.text, hit.source, hit.line) == ("a", "the cat", "notes.txt", 1)
        assert [type(value) for value in (hit.id, hit.text, hit.source, hit.line)] == [str, str, str, int]
    assert index.search("猫", 1, "keyword")[0].line == 7 and index.add([Record("a", "the cat", "notes.txt", 1)]) == 0


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(1, "a text"), "id=1 is not a string"),
        (Record("1", None), "text=None is not a string"),
        (Record("1", "a text", 2.5), "source=2.5 is not a string"),
        (Record("1", "a text", "", 2**70), r"line=1180591620717411303424 is not a whole number of 64 bits"),
        (Record("1", "a text", "", "7"), "line='7' is not a whole number"),
    ],
)
def test_what_an_index_cannot_store_is_an_error(index, record, reason):
    with pytest.raises(AlbertkitError, match=reason):
        index.add([record])


def test_all_hits_of_a_query_are_read_at_once(index, monkeypatch):
    """A table in another program answers one question per query, not one per hit."""
    index.add([*many(20), Record("code", "E1234 zzz"), Record("both", "w1 alpha")])
    calls, hits = [], index._hits
    monkeypatch.setattr(index, "_hits", lambda ranked, matched: calls.append(len(ranked)) or hits(ranked, matched))
    found = index.search_many(["alpha w1", "n3 zzz"], 10, min_score=0.8)
    assert calls == [len(hits) for hits in found]
    assert [(hit.id, hit.matched) for hit in found[0]] == [("both", "both"), ("r12", "words")]
    assert sorted((hit.id, hit.matched) for hit in found[1]) == [("code", "words"), ("r3", "words")]


def test_what_is_added_is_found_after_reopening(index, tmp_path):
    records = many(3000)
    assert index.add(records) == 3000 and len(index) == 3000
    index.close()
    with Index.open(tmp_path / "t.idx", Toy()) as again:
        for record in records[:3000:500]:
            for mode in ("vector", "hybrid"):
                hit = again.search(record.text, 3, mode)[0]
                assert (hit.id, hit.text, hit.source, hit.line) == (record.id, record.text, "history", record.line)
        assert again.search(records[5].text, 1, "vector")[0].score == pytest.approx(1, abs=0.01)
    assert [p.name for p in tmp_path.iterdir()] == ["t.idx"]  # one plain file, nothing beside it


def test_vector_search_is_exact_up_to_rounding(index):
    records = many(3000)
    index.add(records)
    vectors = Toy().embed(r.text for r in records)
    queries = [f"w{i} w{2 * i} w{3 * i}" for i in range(40)]
    wanted = np.argsort(-(Toy().embed(queries) @ vectors.T), axis=1)[:, :10]
    found = index.search_many(queries, 10, "vector", min_score=-1)
    agree = [len({h.line for h in hits} & set(row)) for hits, row in zip(found, wanted.tolist(), strict=True)]
    assert np.mean(agree) > 9.7
    assert names([index.search(queries[3], 10, "vector", min_score=-1)]) == names(found[3:4])  # alone or among others
    assert names(index.search_many(queries * 8, 10, "vector", min_score=-1)[-40:]) == names(
        found
    )  # more than one pass takes
    scores = [h.score for h in found[0]]
    assert scores == sorted(scores, reverse=True)


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


def test_one_string_is_one_id_or_one_place(tmp_path):
    with Index.create(tmp_path / "i", Toy()) as index:
        index.add(Record(name, f"text {name}", source="/srv/notes.txt") for name in ("1", "2", "12"))
    with Index.open(tmp_path / "i", Toy()) as index:
        assert index.delete_unseen("/other") == 0 and len(index) == 3
        assert index.delete("12") == 1 and len(index) == 2
        for wrong in (None, 5):
            with pytest.raises(AlbertkitError, match=f"the id {wrong} is not a string"):
                index.delete([wrong])
        with pytest.raises(AlbertkitError, match="single text"):
            index.search_many("text 1")


def test_delete_leaves_no_trace_and_frees_the_place(index):
    records = many(2500)
    index.add(records)
    assert index.delete(["r10", "r2400", "nosuch", "r10"]) == 2 and len(index) == 2498
    for mode in ("vector", "keyword", "hybrid"):
        assert "r10" not in [h.id for h in index.search(records[10].text, 50, mode)]
    assert index.delete(r.id for r in records) == 2498 and len(index) == 0
    assert index.search("w1", 5) == []
    index.add(many(2500, start=5000))
    blocks = index._sql.execute("SELECT count(*) FROM vectors").fetchone()[0]
    assert blocks == -(-2500 // BLOCK) and index._sql.execute("SELECT count(*) FROM free").fetchone() == (0,)
    record = many(1, start=7000)[0]
    assert index.search(record.text, 1)[0].id == "r7000"
    index._sql.execute("INSERT INTO words (words) VALUES ('integrity-check')")


def test_files_that_shrank_lose_their_lines(index):
    index.add([Record(f"{f}:{i}", f"{f} line {i}", f, i) for f in "ab" for i in range(5)])
    index.close()
    with Index.open(index.path, Toy()) as again:
        again.add([Record(f"a:{i}", f"a line {i}", "a", i) for i in range(2)])
        assert again.delete_unseen(["a"]) == 3 and len(again) == 7
        assert again.delete_source("b") == 5 and len(again) == 2


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["add", "delete"]), st.sampled_from("abcde")), max_size=25)
)
def test_any_order_of_changes_equals_a_dictionary(tmp_path_factory, steps):
    with Index.create(tmp_path_factory.mktemp("i") / "x", Toy(dim=8)) as index:
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
            assert {
                h.id: h.text for h in index.search("text", 20, mode, min_score=None if mode == "keyword" else -1)
            } == wanted
        assert len(index) == len(wanted)


FORMS = [
    ("台灣", "臺灣", "台湾"),
    ("發現頭髮", "发现头发"),
    ("皇后在後面", "皇后在后面"),
    ("維修手冊", "维修手册"),
    ("什麼裡面", "什么里面", "什麽裏面"),
    ("錢鍾書", "钱锺书", "钱钟书"),
    ("ＡＢＣ１２３", "abc123", "ABC123", "𝐀𝐁𝐂𝟏𝟐𝟑"),
    ("ﾃﾞｰﾀ", "データ", "デ\u30fcタ", "テ\u3099ータ"),
    ("ﬁnal ofﬃce", "final office", "FINAL OFFICE"),
    ("Straße", "STRASSE", "ＳＴＲＡẞＥ"),
    ("ΟΔΌΣ", "οδος", "οδός", "οδοσ"),
    ("Ёлка", "елка"),
    ("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8"),
    ("⼭⽔", "山水", "⼭水"),
    ("㍿", "株式会社"),
    ("東京都", "东京都"),
]


# Keywords and hybrid ----------------------------------------------------------------------------------------------


def test_chinese_japanese_and_accents_by_keyword(index):
    texts = [
        "我在北京大学读书",
        "上海的天气很好",
        "东京の天気は晴れ",
        "Café Zürich opens",
        "กรุงเทพมหานคร",
        "𠮷野家の牛丼",
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
    }.items():
        assert [h.id for h in index.search(query, mode="keyword")] == wanted, query


def test_every_form_of_a_word_finds_every_form_by_keyword_and_hybrid(index):
    check_forms_find_each_other(index)


def check_forms_find_each_other(index):
    """Each group is stored in all its forms, and each form finds all of them, but no text of another group."""
    index.add(Record(f"{i}.{j}", f"x{i} {form}") for i, group in enumerate(FORMS) for j, form in enumerate(group))
    for i, group in enumerate(FORMS):
        wanted = {f"{i}.{j}" for j in range(len(group))}
        for form in group:
            for mode in ("keyword", "hybrid"):
                hits = index.search(form, 20, mode)
                assert {hit.id for hit in hits if hit.matched != "meaning"} == wanted, form
    found = {hit.text for hit in index.search("臺灣", 20, "keyword")}
    assert found == {f"x0 {form}" for form in FORMS[0]}  # texts themselves are unchanged


def test_hybrid_takes_from_both(index):
    index.add(many(300))
    index.add([Record("code", "error E1234 zzz yyy xxx"), Record("near", "alpha beta gamma")])
    assert index.search("what is E1234", 1)[0].id == "code"
    hits = index.search("alpha beta delta", 5)
    assert hits[0].id == "near" and hits[0].matched == "both"
    assert len(index.search("alpha", 100, min_score=-1)) == 100  # vectors fill what words do not find
    assert index.search("!!! ???", 3, "keyword") == []


def test_scores_are_cosines_and_hits_name_what_matched(index):
    """Also for a text that only its words found, since 100 others are nearer."""
    long = "E1234 " + " ".join(f"far{i}" for i in range(60))
    index.add([*many(300), Record("code", long), Record("same", "alpha beta gamma")])
    query = "alpha beta gamma E1234"
    hits = {hit.id: hit for hit in index.search(query, 50, min_score=-1)}
    assert {hits[name].matched for name in ("same", "code")} == {"both", "words"}
    assert {hit.matched for name, hit in hits.items() if name not in ("same", "code")} == {"meaning"}
    cosines = Toy().embed(hit.text for hit in hits.values()) @ Toy().embed([query])[0]
    assert [hit.score for hit in hits.values()] == pytest.approx(cosines, abs=0.02)
    assert index.search("alpha beta gamma", 1)[0].score <= 1
    assert index.search("alpha", 1, "keyword")[0].matched == "words"
    assert {hit.matched for hit in index.search("alpha", 5, "vector", min_score=-1)} == {"meaning"}


@settings(max_examples=150)
@given(st.text(max_size=60) | st.text('"*()^:-+{}AND OR NOT NEAR,北京', max_size=40))
def test_no_query_breaks_the_syntax(shared, query):
    assume(query.strip())
    shared.search(query, 3, "keyword")
    assert len(shared.search(query, 3, min_score=-1)) == 3


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Index.create(tmp_path_factory.mktemp("shared") / "s.idx", Toy()) as made:
        made.add(many(50))
        yield made


@settings(max_examples=60)
@given(text=st.text(max_size=40))
def test_every_text_can_be_kept_and_deleted(shared, text):
    shared.add([Record("odd", text + " oddity", "\udc80", 1)])
    found = shared.search("oddity", 1, "keyword")
    assert [h.id for h in found] == ["odd"] and found[0].text == text + " oddity"
    assert shared.delete(["odd"]) == 1 and shared.search("oddity", 1, "keyword") == []


def test_surrogates_become_question_marks(index):
    index.add([Record("\ud800", "half \udfff character")])
    assert index.search("half \ud800", 1)[0].text == "half ? character"


def test_common_words_do_not_slow_a_query_down(index):
    index.add([Record(str(i), f"the cat number{i}" if i % 2 else f"the dog number{i} 的 好") for i in range(2500)])
    ask = []
    index._sql.set_trace_callback(ask.append)
    assert [h.id for h in index.search("the number7", 3, "keyword")] == ["7"]
    assert any('"number7"' in line and '"the"' not in line for line in ask)
    assert len(index.search("the", 3, "keyword")) == 3 == len(index.search("the dog", 3, "keyword"))
    assert len(index.search("的好", 3, "keyword")) == 3 == len(index.search("nosuch the", 3, "keyword"))


def test_terms_are_bounded():
    for query in (" ".join(f"w{i}" for i in range(1000)), "".join(map(chr, range(0x4E00, 0x5000)))):
        assert len(plain_terms(query)) == 64
    assert plain_terms('tea AND "北京站') == ["tea", "and", "北 京", "京 站"]


# Crashes, threads, processes --------------------------------------------------------------------------------------

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
@pytest.mark.parametrize("after", [1, 4, 9])
def test_killed_while_adding_keeps_finished_batches_and_goes_on(tmp_path, after):
    path = tmp_path / "t.idx"
    Index.create(path, Toy()).close()
    line = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as writer:
        done = 0
        for _ in range(after):
            done = int(writer.stdout.readline())
            writer.stdin.write(b"\n")  # it works on the next batch
            writer.stdin.flush()
        writer.send_signal(signal.SIGKILL)
    with Index.open(path, Toy()) as index:
        kept = len(index)
        assert kept >= done == 50 * after and kept % 50 == 0
        assert index._sql.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        records = many(1000)
        assert index.add(records) == 1000 - kept and index.embedder.count == 1000 - kept
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
    assert index.add(many(1000)) == 800


def test_threads_and_a_second_writer(index):
    index.add(many(500))
    problems = []

    def work(number):
        try:
            if number % 2:
                with Index.open(index.path, Toy()) as other:
                    other.add(many(100, start=1000 * number), batch=10)
            else:
                for record in many(20):
                    assert index.search(record.text, 1)[0].id == record.id
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems and len(index) == 700


# What can be wrong with the file ----------------------------------------------------------------------------------


def test_each_wrong_file_is_one_sentence(index, tmp_path):
    index.add(many(2000))
    index.close()
    whole = index.path.read_bytes()

    def fails(sentence, path=tmp_path / "bad", embedder=None):
        with pytest.raises(AlbertkitError, match=sentence) as caught, Index.open(path, embedder or Toy()) as opened:
            opened.search_many([r.text for r in many(20)])
        assert "\n" not in str(caught.value)

    fails("is not a file. Build an index with", tmp_path / "nowhere")
    fails("is a folder, but an index is a file", tmp_path)
    fails("built with model toy .*, not other .*Use the model of the index", index.path, Toy(name="other"))
    fails(r"built with model toy \(32 dimensions\)", index.path, Toy(dim=16))
    for content in (b"", b"some text\n" * 1000):
        (tmp_path / "bad").write_bytes(content)
        fails("not an index|not a database")
    foreign = sqlite3.connect(tmp_path / "foreign")
    foreign.execute("CREATE TABLE t (x)")
    foreign.close()
    fails("is not an index", tmp_path / "foreign")
    (tmp_path / "bad").write_bytes(whole[: len(whole) // 2])
    fails("cannot be used|damaged")
    for where in (40_000, len(whole) // 2):
        (tmp_path / "bad").write_bytes(whole[:where] + b"\xa5" * (len(whole) - where))
        fails("cannot be used|damaged")
    for change, sentence in {
        "PRAGMA user_version = 6": "has format 6, not 5. Update albertkit",
        "PRAGMA user_version = 4": r"has format 4, not 5. Index the files again \(--force\)",
        "DELETE FROM meta": "does not name its model",
        "UPDATE meta SET value = '-3' WHERE key = 'dim'": "does not name its model",
        "UPDATE vectors SET data = x'00'": "has a wrong size or checksum",
        "UPDATE vectors SET data = 7": "has a wrong size or checksum",
        "DROP TABLE texts": "no such table",
    }.items():
        (tmp_path / "bad").write_bytes(whole)
        connection = sqlite3.connect(tmp_path / "bad", isolation_level=None)
        connection.execute(change)
        connection.close()
        fails(sentence)


def test_create_is_careful(index, tmp_path):
    index.add(many(10))
    with pytest.raises(AlbertkitError, match="already exists"):
        Index.create(index.path, Toy())
    with pytest.raises(AlbertkitError, match="already exists"):
        Index.create(tmp_path, Toy(), overwrite=True)
    with Index.create(index.path, Toy(), overwrite=True) as fresh:
        assert len(fresh) == 0
    (tmp_path / "file").write_text("x")
    with pytest.raises(AlbertkitError, match="cannot be written"):
        Index.create(tmp_path / "file" / "t.idx", Toy())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "t.idx"]


def test_a_read_only_index_can_be_searched(index, tmp_path):
    index.add(many(10))
    index.close()
    index.path.chmod(0o444)
    with Index.open(index.path, Toy()) as opened:
        assert opened.search("w1", 2, min_score=-1)
        if os.geteuid():
            with pytest.raises(AlbertkitError, match="is read-only"):
                opened.delete(["r1"])


def test_odd_arguments(index):
    index.add(many(3))
    with pytest.raises(AlbertkitError, match="did you mean 'hybrid'"):
        index.search("x", mode="hybird")
    for k in (0, -1, 10**9):
        with pytest.raises(AlbertkitError, match="k="):
            index.search("x", k=k)
    for query in ("", " \u3000\n"):
        for mode in ("hybrid", "vector", "keyword"):
            with pytest.raises(AlbertkitError, match="query 2 of 2 is blank"):
                index.search_many(["n1", query], mode=mode)
    assert len(index.search_many([""], 2, "vector", vectors=index.embedder.embed(["n1"]), min_score=-1)[0]) == 2
    assert index.search_many([]) == [] and len(index.search("x", 10_000, "vector", min_score=-1)) == 3
    assert index.delete([]) == 0 and index.add([]) == 0
    with Index.open(index.path, None) as bare:
        assert bare.search("n1", mode="keyword")[0].id == "r1"
        with pytest.raises(AlbertkitError, match="opened without a model"):
            bare.search("n1")
    index.embedder = Toy(dim=5)
    with pytest.raises(AlbertkitError, match="vectors of shape"):
        index.add([Record("new", "new")])
    index.close()
    with pytest.raises(AlbertkitError, match="closed database.*Open it with  Index.open"):
        index.search("x")
    with pytest.raises(AlbertkitError, match=r"Call Index.open\(PATH, ALBERT\)"):
        Index(index.path)


def test_memory_does_not_grow_with_the_index(index):
    import tracemalloc

    def peak(work):
        tracemalloc.start()
        work()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    def records(count):
        return (Record(str(i), f"w{i % 997} n{i}") for i in range(count))

    index.embedder.embed = lambda texts: np.ones((len(list(texts)), 32), np.float32) / np.sqrt(32)
    small = peak(lambda: index.add(records(3000)))
    large = peak(lambda: index.add(records(15000)))
    assert large < 1.5 * small + 1e6
    assert peak(lambda: index.search("w5", 5)) < 3e6  # 15,000 rows of 32 floats would be 2 MB, of bytes 0.5


# Records from files -----------------------------------------------------------------------------------------------


def test_lines_paragraphs_files_and_jsonl(tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_bytes("\ufeffOne line\r\n\r\n  \nTwo 二\nThree\n\n\nFour".encode())
    made = [(r.line, r.text, r.source, r.id) for r in records_from([notes])]
    texts = [(1, "One line"), (4, "Two 二"), (5, "Three"), (8, "Four")]
    assert made == [(n, t, str(notes), f"{notes}:{n}") for n, t in texts]
    parts = [(r.line, r.text) for r in records_from([notes], split="paragraphs")]
    assert parts == [(1, "One line"), (4, "Two 二\nThree"), (8, "Four")]
    (whole,) = records_from([notes], split="file")
    assert whole.line == 1 and whole.text.startswith("One line\n") and whole.text.endswith("Four")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a", "key": 7, "n": 1}\n\n{"text": "  ", "key": 8}\n{"text": "b", "key": "x"}\n')
    assert [(r.line, r.text) for r in records_from([rows])] == [(1, "a"), (4, "b")]
    assert [r.id for r in records_from([rows], field="text", id_field="key")] == ["7", "x"]


def test_folders_are_walked_in_order(tmp_path):
    for name in ("b.txt", "a/z.md", "a/.hidden.txt", ".git/x.txt", "a/picture.png", "c.rst"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\xff" if name.endswith("png") else name.encode())
    assert [r.text for r in records_from([tmp_path])] == ["b.txt", "c.rst", "a/z.md"]
    assert [r.text for r in records_from([tmp_path / "a" / ".hidden.txt"])] == ["a/.hidden.txt"]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.txt", b"good\n\xff\xfe bad\n", {}, "line 2 of .*a.txt is not UTF-8"),
        ("a.txt", b"x" * (TEXT_LIMIT + 1), {}, "line 1 of .* has over"),
        ("a.txt", b"some text\n" * 200_000, {"split": "paragraphs"}, "begins on line 1 .* by lines"),
        ("a.txt", b"some text\n\n" * 200_000, {"split": "file"}, "by paragraphs"),
        ("a.txt", b"x", {"split": "line"}, "did you mean 'lines'"),
        ("a.jsonl", b'{"text": "x"}\n{"text": ', {}, "line 2 of .* is not JSON"),
        ("a.jsonl", b"[" * 100_000, {}, "line 1 of .* is not JSON"),
        ("a.jsonl", b"[1]", {}, "contains a list"),
        ("a.jsonl", b'{"txt": "x", "n": 1}', {}, r"has no field 'text' \(did you mean 'txt'\?\); its fields: txt, n"),
        ("a.jsonl", b'{"text": 5}', {}, "contains an int"),
        ("a.jsonl", b'{"text": "x"}', {"id_field": "id"}, "has no field 'id'"),
        ("nowhere", None, {}, "nowhere cannot be read"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path, name, content, options, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AlbertkitError, match=message):
        list(records_from([tmp_path / name], **options))


def test_records_are_read_as_they_are_needed(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"first\n" + b"x" * 100 + b"\n\xff\n")
    assert next(records_from([tmp_path / "a.txt"])).text == "first"


# Clusters ---------------------------------------------------------------------------------------------------------


def blobs(sizes, dim=24, noise=0.15, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.linalg.qr(rng.standard_normal((dim, dim)))[0][: len(sizes)]
    truth = np.repeat(np.arange(len(sizes)), sizes)
    truth = rng.permutation(truth)
    rows = centres[truth] + noise * rng.standard_normal((len(truth), dim)) / np.sqrt(dim) * 2
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), truth


def test_separable_groups_are_found():
    vectors, truth = blobs([200, 150, 80, 40, 10])
    found = cluster(vectors, 5)
    assert found.sizes.tolist() == [200, 150, 80, 40, 10]
    assert (found.labels == truth).all()  # sizes fall, so that the numbers agree too
    for number in range(5):
        rows = np.flatnonzero(truth == number)
        mean = vectors[rows].mean(axis=0)
        assert found.central[number] == rows[np.argmax(vectors[rows] @ mean)] == found.members(number)[0]
        assert set(found.members(number)) == set(rows)


def test_clusters_are_the_same_every_time():
    vectors, _ = blobs([50] * 6, noise=0.6)
    first, again = cluster(vectors), cluster(vectors)
    assert (first.labels == again.labels).all() and (first.central == again.central).all()
    assert len(first.sizes) <= round(np.sqrt(300 / 2)) and first.sizes.sum() == 300
    assert (first.labels[first.central] == np.arange(len(first.sizes))).all()


def test_few_or_equal_rows():
    assert cluster(np.eye(3, dtype=np.float32)[:1]).sizes.tolist() == [1]
    same = np.tile(np.eye(4, dtype=np.float32)[:2], (10, 1))
    assert cluster(same, 7).sizes.tolist() == [10, 10]
    assert cluster(np.zeros((5, 3), np.float32), 2).sizes.sum() == 5
    assert len(cluster(np.eye(6, dtype=np.float32), 99).sizes) == 6
    for bad in (np.zeros((0, 3)), np.zeros(3), np.full((2, 2), np.nan)):
        with pytest.raises(AlbertkitError):
            cluster(bad)
    with pytest.raises(AlbertkitError, match="k=0"):
        cluster(same, 0)


# The verbs --------------------------------------------------------------------------------------------------------


def run(command, *args, ok=True, text=None):
    done = CliRunner().invoke(command, [str(a) for a in args], input=text)
    if ok:
        assert done.exit_code == 0, done.output + repr(done.exception)
    return done


@pytest.fixture
def toy_model(tmp_path, monkeypatch):
    made = Toy()
    monkeypatch.setattr("albertkit.albert.Albert", lambda model: made)
    (tmp_path / "model").mkdir()
    return made


def test_index_search_and_forget(tmp_path, toy_model):
    notes, out = tmp_path / "n.txt", tmp_path / "n.idx"
    notes.write_text("the cat sat\na dog ran\n北京的天气\n", encoding="utf-8")
    model = ("-m", tmp_path / "model")
    first = run(cli_search.index, notes, "-o", out, *model, "--json")
    assert json.loads(first.stdout) == {"index": str(out), "changed": 3, "deleted": 0, "total": 3} and not first.stderr
    notes.write_text("the cat sat\na dog ran fast\n", encoding="utf-8")
    again = run(cli_search.index, notes, "-o", out)  # the index knows its model
    assert "2 texts, 1 new or changed, 1 deleted" in again.stdout and toy_model.count == 4
    row = json.loads(run(cli_search.search, out, "cat", "--json", "-k", 1).stdout)
    assert row["query"] == "cat" and row["hits"][0]["text"] == "the cat sat" and row["hits"][0]["line"] == 1
    shown = run(cli_search.search, out, "--mode", "keyword", text="dog\ncat\n").stdout
    assert "a dog ran fast" in shown and "the cat sat" in shown
    assert "1 deleted" in run(cli_search.index, "-o", out, "--delete", f"{notes}:1").stdout
    assert "1 deleted" in run(cli_search.index, "-o", out, "--delete", notes).stdout
    run(cli_search.index, notes, "-o", out, *model, "--force")
    for args, message in {
        ("-o", out): "No file was passed",
        (tmp_path / "nofile", "-o", tmp_path / "new.idx", *model): "nofile does not exist",
    }.items():
        assert message in str(run(cli_search.index, *args, ok=False).exception)
    assert not (tmp_path / "new.idx").exists()
    (tmp_path / "model").rmdir()
    assert "no longer at" in str(run(cli_search.search, out, "x", ok=False).exception)


def test_an_error_names_the_model_of_an_index(tmp_path):
    for place in ("small-zh", ""):
        Index.create(tmp_path / "t.idx", Toy(), overwrite=True, model_path=place).close()
        named = "small-zh, toy" if place else "toy"
        with pytest.raises(AlbertkitError, match=rf"with model {named} \(32 dimensions\), not other \(32\)"):
            Index.open(tmp_path / "t.idx", Toy(name="other"))


def test_the_command_warns_of_repeated_ids(tmp_path, toy_model):
    file = tmp_path / "dup.jsonl"
    file.write_text('{"id": "1", "text": "the cat"}\n{"id": "2", "text": "a dog"}\n{"id": "1", "text": "the train"}\n')
    line = (file, "--id-column", "id", "-o", tmp_path / "d.idx", "-m", tmp_path / "model")
    with pytest.warns(UserWarning, match=r"1 id occurs more than once, such as '1' \(.*dup\.jsonl:3\)"):
        assert "2 texts" in run(cli_search.index, *line).stdout


def test_cluster_verb(tmp_path, toy_model):
    file = tmp_path / "t.txt"
    file.write_text("red apple\nred apple pie\nred apple\nblue sea\nblue sea fish\n")
    rows = [json.loads(r) for r in run(cli_search.cluster, file, "-k", 2, "-m", "x", "--json").stdout.splitlines()]
    assert [(r["size"], r["central"]) for r in rows] == [(3, "red apple"), (2, rows[1]["central"])]
    assert {t["line"] for t in rows[1]["texts"]} == {4, 5}
    assert "red apple pie" in run(cli_search.cluster, file, "-k", 2, "-m", "x").stdout
    (tmp_path / "e.txt").write_text("\n")
    assert "contains no text" in str(run(cli_search.cluster, tmp_path / "e.txt", "-m", "x", ok=False).exception)


@pytest.mark.parametrize("command", [cli_search.index, cli_search.search, cli_search.cluster])
def test_help_has_an_example(command):
    assert f"Example:  albertkit {command.name}" in run(command, "--help").stdout


def test_search_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import albertkit.cli.search_commands, albertkit.search.index"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert module.FORMAT == 5
