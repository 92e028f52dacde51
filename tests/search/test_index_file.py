"""The file of an index: damaged, truncated, replaced, and created by several processes at once."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from albertkit.errors import AlbertkitError
from albertkit.search import vectors
from albertkit.search.index import Index, Record
from tests.conftest import ROOT
from tests.search.test_index import Toy, many, names

READER = """
import sys
from tests.search.test_index import Toy, many
from albertkit.errors import AlbertkitError
from albertkit.search.index import Index
index = Index.open(sys.argv[1], Toy())
index.search("w1", 3)
open(sys.argv[1], sys.argv[2]).close()
for mode in ("vector", "keyword", "hybrid"):
    try:
        print(len(index.search(many(1)[0].text, 3, mode)))
    except AlbertkitError as error:
        print("error", sys.argv[1] in str(error))
"""


@pytest.mark.parametrize("keeps", [0, vectors.KEPT_BYTES])
def test_truncating_an_open_index_is_an_error_and_not_a_crash(tmp_path, keeps):
    with Index.create(tmp_path / "t.idx", Toy()) as made:
        made.add(many(3000))
    code = f"from albertkit.search import vectors\nvectors.KEPT_BYTES = {keeps}{READER}"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "t.idx"), "w"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split("\n")) <= {"3", "error True", ""}


def flips(data: bytes, count: int, seed: int = 3) -> list[bytes]:
    rng = random.Random(seed)
    places = [rng.randrange(8 * len(data)) for _ in range(count)]
    return [data[: p // 8] + bytes([data[p // 8] ^ (1 << p % 8)]) + data[p // 8 + 1 :] for p in places]


def test_a_flipped_bit_anywhere_is_an_error_or_changes_no_hit(tmp_path):
    path, queries = tmp_path / "t.idx", [record.text for record in many(20)]
    with Index.create(path, Toy()) as made:
        made.add(many(1100))
    known = Toy().embed(queries)

    def search(mode):
        with Index.open(path, None) as index:
            found = index.search_many(queries, 10, mode, None if mode == "keyword" else known)
        return [[(hit.id, hit.text, hit.source, hit.line, round(hit.score, 4)) for hit in hits] for hits in found]

    right, refused = {mode: search(mode) for mode in ("vector", "keyword", "hybrid")}, 0
    for changed in flips(path.read_bytes(), 40):
        path.write_bytes(changed)
        for mode, hits in right.items():
            try:
                assert search(mode) == hits
            except AlbertkitError as error:
                refused += 1
                assert str(path) in str(error) and "\n" not in str(error)
    assert refused > 10


def test_a_changed_vector_block_is_an_error_that_names_the_file(tmp_path):
    with Index.create(tmp_path / "t.idx", Toy()) as index:
        index.add(many(2000))
        index._sql.execute("UPDATE vectors SET data = zeroblob(length(data)) WHERE block = 1")
        with pytest.raises(AlbertkitError, match=r"t.idx is damaged: block 1 of its vectors .*--force"):
            index.search("w1", 3, "vector")


def test_large_indexes_are_read_block_by_block_with_the_same_hits(tmp_path, monkeypatch):
    queries = [record.text for record in many(20)]
    with Index.create(tmp_path / "t.idx", Toy()) as index:
        index.add(many(4000))
        kept = index.search_many(queries, 5)
        assert len(index._blocks.kept) == 4
    monkeypatch.setattr(vectors, "KEPT_BYTES", 2 * vectors.BLOCK * 44)
    with Index.open(tmp_path / "t.idx", Toy()) as index:
        assert names(index.search_many(queries, 5)) == names(kept) == names(index.search_many(queries, 5))
        assert len(index._blocks.kept) == 2


def test_changes_of_another_process_are_seen(tmp_path):
    with Index.create(tmp_path / "t.idx", Toy()) as index, Index.open(tmp_path / "t.idx", Toy()) as other:
        index.add(many(10))
        assert index.search("w1", 1, min_score=-1)
        other.add([Record("r3", "entirely new")])
        assert index.search("entirely new", 1, "vector")[0].id == "r3"


def test_a_replaced_index_can_be_read_and_not_written(tmp_path):
    """Also while the new file has a journal, which belongs to its writer."""
    path, journal = tmp_path / "t.idx", tmp_path / "t.idx-journal"
    with Index.create(path, Toy()) as old:
        old.add(many(10))
        with Index.create(path, Toy(), overwrite=True) as new:
            with new._transaction("IMMEDIATE"):
                new._sql.execute("DELETE FROM free")
                new._sql.execute("INSERT INTO free VALUES (7)")
                assert journal.exists()
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("albertkit.search.index_file.TIMEOUT", 0)
                    with pytest.raises(AlbertkitError, match="was replaced since it was opened. Open it again"):
                        old.search("w1", 1)
                assert journal.exists()
            assert old.search(many(1)[0].text, 1)[0].id == "r0"
            with pytest.raises(AlbertkitError, match="was replaced"):
                old.delete(["r0"])
            assert len(new) == 0


FIRST = """
import sys
from tests.search.test_index import Toy, many
from albertkit.search.index import Index
print("ready", flush=True)
sys.stdin.readline()
with Index.open_or_create(sys.argv[1], Toy()) as index:
    index.add(many(200, start=int(sys.argv[2])), batch=20)
"""


def test_first_runs_at_once_lose_no_record(tmp_path):
    path, starts = tmp_path / "new" / "t.idx", (0, 1000, 2000, 3000)
    line = [sys.executable, "-c", FIRST, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen([*line, str(start)], cwd=ROOT, **pipes) for start in starts]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
    with Index.open(path, Toy()) as index:
        assert len(index) == 800
        for start in starts:
            assert names([index.search(r.text, 1) for r in many(200, start=start)[::50]]) == [
                [r.id] for r in many(200, start=start)[::50]
            ]
    assert [p.name for p in path.parent.iterdir()] == ["t.idx"]


def test_a_text_is_embedded_while_other_programs_write(tmp_path):
    class Meanwhile(Toy):
        def embed(self, texts):
            with Index.open(tmp_path / "t.idx", Toy()) as other:
                other.add([Record("other", "of another program")])
            return super().embed(texts)

    with Index.create(tmp_path / "t.idx", Meanwhile()) as index:
        index.add([Record("own", "of this one")])
        assert len(index) == 2


def test_journal_of_a_deleted_index_is_not_applied_to_a_new_one(tmp_path):
    path, embedder = tmp_path / "notes.idx", Toy()
    with Index.create(path, embedder) as index:
        index.add([Record("a", "a cat sat", "notes", 0)])
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE texts SET text = hex(zeroblob(200000))")
    journal = Path(f"{path}-journal").read_bytes()
    connection.rollback()
    connection.close()
    path.unlink()
    Path(f"{path}-journal").write_bytes(journal)  # as a killed writer leaves it
    with Index.open_or_create(path, embedder) as index:
        assert index.is_new and index.add([Record("b", "the dog ran", "notes", 0)]) == 1
        assert [hit.id for hit in index.search("the dog ran", k=1, mode="keyword")] == ["b"]


def test_changes_that_were_rolled_back_are_not_searched(index_of_notes):
    index = index_of_notes
    before = index.search("entirely new", 3, "vector", min_score=-1)
    new = index._embed_new(["entirely new"])
    with pytest.raises(KeyboardInterrupt), index._write():
        index._add({"r0": Record("r0", "entirely new")}, new)
        assert index._blocks.read([0])[0].dot(index._unit_vectors(["entirely new"])[0]) > 0.99
        raise KeyboardInterrupt
    assert index.search("entirely new", 3, "vector", min_score=-1) == before


@pytest.fixture
def index_of_notes(tmp_path):
    with Index.create(tmp_path / "t.idx", Toy()) as index:
        index.add(many(50))
        index.search("w1", 3)
        yield index
