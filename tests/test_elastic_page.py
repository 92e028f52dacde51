"""The page about elastic depth: what is put beside other people's numbers is what the results say."""

from __future__ import annotations

import pytest

from albertkit.tasks.examples import TextExample
from tests.conftest import program

elastic_page = program("docs/elastic_page")


def row(score: float, fewer: float) -> dict[str, float]:
    return {"f1": score, "times_fewer_layers": fewer}


def test_the_way_that_saves_most_for_one_point():
    ways = {"depth 2": row(0.80, 6.0), "depth 4": row(0.891, 3.0), "exit 99%": row(0.90, 2.0)}
    assert elastic_page.most_saved(ways, "f1", 0.9)[0] == "depth 4"
    assert elastic_page.most_saved(ways, "f1", 0.95)[0] == "exit 99%"  # all lose more, and this one least


def test_ours_and_others_stand_side_by_side_against_the_better_full_depth():
    depth = {"2": row(0.85, 2.0), "4": row(0.86, 1.0)}
    one = {
        "metric": "f1", "examples": 10, "plain": {"layers": 4, "depth": {"2": row(0.1, 2.0), "4": row(0.88, 1.0)}},
        "elastic": {"layers": 4, "depth": depth, "exit": {"0.9": row(0.871, 1.5), "0.99": None}, "rules": {}},
        "seconds": {"elastic, full depth": {"seconds": 3.0}, "elastic, exit 90%": {"seconds": 2.0}},
    }  # fmt: skip
    said = "\n".join(elastic_page.beside({"sets": {"mrpc": one}}))
    assert "| MRPC | exit 90% | 1.50 | 1.50 | f1 88.0 → 87.1 |" in said
    page = elastic_page.page()
    assert page.index("## Beside what others report") < page.index("| FastBERT") and "times faster" in page


def seed(full: float, early_exit: float | None, layers: float) -> dict:
    last = None if exit is None else {"f1": exit, "mean_depth": layers, "times_fewer_layers": 4 / layers}
    return {
        "plain": row(full, 1.0),
        "elastic": {"depth": {"3": row(0.5, 4 / 3), "4": row(full, 1.0)}, "exit": {"0.9": last}},
    }


def test_seeds_are_shown_and_their_mean_is_what_counts():
    first = seed(0.9, 0.8, 1.0)
    one = {
        "metric": "f1",
        "elastic": {"layers": 4, **first["elastic"]},
        "seconds": {"elastic, full depth": {"seconds": 1}},
    }
    one["seeds"] = [first | {"fixed-2": row(0.7, 2.0)}, seed(0.8, 0.886, 2.0)]
    said = elastic_page.seeds(one)
    assert (
        "| 0 | 90.0 | 70.0 | 90.0 | 50.0 | 80.0 (1.00) |" in said
        and "| 1 | 80.0 |  | 80.0 | 50.0 | 88.6 (2.00) |" in said
    )
    assert "| mean f1 | 85.0 | 70.0 | 85.0 | 50.0 | 84.3 (1.50) |" in said
    assert "| exit 90% | 2.67 |  | f1 85.0 → 84.3 |" in "\n".join(elastic_page.beside({"sets": {"mrpc": one}}))
    assert elastic_page.seeds({**one, "seeds": one["seeds"][:1]}) == []


def test_a_promise_that_one_seed_cannot_make_has_no_mean():
    mean = elastic_page.averaged([seed(0.9, 0.8, 1.0), seed(0.8, None, 2.0)])
    assert mean["elastic"]["exit"] == {} and mean["plain"]["f1"] == pytest.approx(0.85)


def test_ways_are_named_or_written_out():
    bench = program("bench/elastic")
    assert bench.mixture("answers") == {"distill_weight": 0.0}
    assert bench.mixture("shallow_weight=3+elastic=false") == {"shallow_weight": 3, "elastic": False}
    with pytest.raises(SystemExit, match="there is no way 'odd'"):
        bench.mixture("odd")


def test_examples_among_the_texts_are_left_out(tmp_path):
    bench = program("bench/elastic")
    (tmp_path / "mrpc.txt").write_text("A cat  sat .\tOne more\nthird\n")
    examples = [
        TextExample("a Cat sat.", "new"),
        TextExample("new", "THIRD"),
        TextExample("new", "newer"),
        TextExample("alone"),
    ]
    assert bench.unseen(examples, tmp_path / "mrpc.txt") == examples[2:]
    assert bench.unseen(examples, tmp_path / "none.txt") == examples


def test_what_lacks_a_model_is_not_measured(tmp_path):
    (tmp_path / "plain" / "model").mkdir(parents=True)
    (tmp_path / "elastic").mkdir()
    with pytest.raises(SystemExit, match="no finished elastic/model"):
        program("bench/elastic").measurable(tmp_path)
