"""Hits by meaning are relevant: real queries find their texts, nonsense finds nothing, with any model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from albertkit.albert import Albert
from albertkit.cli.entry_point import app
from albertkit.errors import AlbertkitError
from albertkit.search.index import Index, Record
from albertkit.search.relevance import NONSENSE
from tests.conftest import ROOT
from tests.search.test_index import Toy, many

GIBBERISH = ["xqzv bnmpl wrtk", "asdfghjkl", "9f2c41d07be5a8836c", "kwpd ouhz", "zzzzzz qqqq", "龘靐齉爩麤灪"]
NOTES = {
    "small": ("notes.txt", {"how do I get my money back?": 2, "the display stays black": 4}),
    "small-zh": ("notes-zh.txt", {"怎么退钱？": 2, "屏幕不亮怎么办": 4}),
}


@pytest.fixture(scope="module", params=NOTES)
def notes(request, tmp_path_factory):
    """An index of the example notes, its path, and queries with the line that answers them."""
    name, queries = NOTES[request.param]
    path = tmp_path_factory.mktemp("notes") / "notes.idx"
    lines = (ROOT / "examples" / name).read_text(encoding="utf-8").splitlines()
    with Index.create(path, Albert(request.param), model_path=request.param) as index:
        index.add(Record(f"{number}", line, name, number) for number, line in enumerate(lines, 1))
        yield index, path, queries


@pytest.mark.filterwarnings("ignore::albertkit.UnreadableTextWarning")
def test_gibberish_finds_nothing_and_real_queries_find_their_text(notes):
    index, _, queries = notes
    for mode in ("hybrid", "vector"):
        assert not any(index.search_many(GIBBERISH, 10, mode))
        assert [hits[0].line for hits in index.search_many(list(queries), 10, mode)] == list(queries.values())
        assert len(index.search(GIBBERISH[0], 10, mode, min_score=-1)) == 10


def test_a_hit_by_words_stays_at_any_cosine(notes):
    index, *_ = notes
    index.add([Record("odd", "xqzv 4711", "odd", 1)])
    assert index.search("xqzv", 1)[0].id == "odd"
    assert [hit.id for hit in index.search("xqzv", min_score=1.0)] == ["odd"]
    assert index.search("xqzv", min_score=1.0)[0].matched == "words"
    index.delete(["odd"])


def test_the_command_says_that_texts_were_left_out_and_how_to_see_them(notes):
    _, path, queries = notes
    done = CliRunner().invoke(app, ["search", str(path), "asdfghjkl"])
    assert done.exit_code == 0 and not done.stdout
    assert done.stderr.strip() == (
        "no results: the texts are not similar enough to the query. Show all with  --min-score -1"
    )
    found = CliRunner().invoke(app, ["search", str(path), next(iter(queries)), "-k", "5"])
    assert 1 <= len(found.stdout.splitlines()) < 5 and "no further results: other texts are" in found.stderr
    full = CliRunner().invoke(app, ["search", str(path), next(iter(queries)), "-k", "1"])
    assert len(full.stdout.splitlines()) == 1 and not full.stderr  # there may be further results
    everything = CliRunner().invoke(app, ["search", str(path), "asdfghjkl", "--min-score", "-1", "--json"])
    assert len(json.loads(everything.stdout)["hits"]) == 10 and json.loads(everything.stdout)["left_out"] == 0
    nothing = json.loads(CliRunner().invoke(app, ["search", str(path), "asdfghjkl", "--json"]).stdout)
    assert (nothing["hits"], nothing["left_out"]) == ([], 10)


def test_one_text_of_nonsense_does_not_hide_the_others(notes):
    index, _, queries = notes
    index.add([Record("junk", NONSENSE[0]), Record("junk2", "asdf qwer yxcv")])
    found = index.search_many(list(queries), 10, "vector")
    assert [hits[0].line for hits in found] == list(queries.values())
    index.delete(["junk", "junk2"])


@pytest.mark.parametrize("offset", [0.0, 1.0, 10.0])
def test_an_equal_text_is_found_with_any_model(tmp_path, offset):
    """Also if all its cosines are high, as those of a model that was not trained for vectors."""

    class Shifted(Toy):
        def embed(self, texts):
            return super().embed(texts) + np.float32(offset) / self.dim**0.5

    records = many(300)
    with Index.create(tmp_path / "t.idx", Shifted()) as index:
        index.add(records)
        assert [index.search(record.text, 1, "vector")[0].id for record in records[::100]] == ["r0", "r100", "r200"]
        assert index.search("entirely different", 5, "vector") == []


def test_min_score_limits_hits_by_meaning_only(tmp_path):
    with Index.create(tmp_path / "t.idx", Toy()) as index:
        index.add([Record("both", "a b"), Record("near", "a a c")])
        hits = {hit.id: hit for hit in index.search("b b a", min_score=-1)}
        assert hits["both"].score > hits["near"].score
        kept = index.search_results(["b b a"], mode="vector", min_score=hits["both"].score - 1e-6)[0]
        assert [hit.id for hit in kept.hits] == ["both"] and kept.left_out == 1
        for value, mode in ((1.5, "hybrid"), (-2, "vector"), (0.5, "keyword"), (float("nan"), "vector")):
            with pytest.raises(AlbertkitError, match="from -1 to 1"):
                index.search("a", mode=mode, min_score=value)


def test_an_index_without_its_vectors_of_nonsense_is_damaged(tmp_path):
    with Index.create(tmp_path / "t.idx", Toy()) as index:
        assert index.search("a") == []  # no texts yet
        index.add(many(3))
        stored = index._sql.execute("SELECT value FROM meta WHERE key = 'nonsense'").fetchone()[0]
    for value in (None, "", stored[:-4], "1" + stored, stored.replace("A", "B", 1)):
        with Index.open(tmp_path / "t.idx", Toy()) as index:
            index._sql.execute("DELETE FROM meta WHERE key = 'nonsense'")
            if value is not None:
                index._sql.execute("INSERT INTO meta VALUES ('nonsense', ?)", (value,))
            with pytest.raises(AlbertkitError, match=r"t\.idx is damaged"):
                index.search("a", mode="vector")
