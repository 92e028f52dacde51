"""The page about elastic depth: what is put beside other people's numbers is what the results say."""

from __future__ import annotations

import importlib.util

from tests.conftest import ROOT

spec = importlib.util.spec_from_file_location("elastic_page", ROOT / "docs" / "elastic_page.py")
elastic_page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(elastic_page)


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
