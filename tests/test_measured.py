"""Measured tables inside pages written by hand, and what the page of options must say about each."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from albertkit.options import Options
from tests.conftest import ROOT, program

measured = program("docs/measured_page")

GENERATION = {
    "sets": {
        "questions": {
            "start": "small-pretrained",
            "examples": {"train": 1200, "test": 30},
            "minutes": 1.25,
            "ways": {
                "greedy": {"rouge_l": 0.372, "bleu": 0.114, "length_ratio": 0.83, "finished": 1.0},
                "copy of the first words": {"rouge_l": 0.163, "bleu": 0.015},
            },
            "shown": [{"source": "Paris | The <capital>", "target": "what\nis it?", "written": "`who`"}] * 9,
        }
    }
}
ROW = {"hide": "drop", "method": "occlusion", "texts": 40, "comprehensiveness": 0.417, "random_comprehensiveness": 0.107, "sufficiency": 0.005,
       "random_sufficiency": 0.262, "gain": 0.31, "gain_error": 0.045, "wins": 0.88}  # fmt: skip
RUN = {"accuracy": 0.9, "seconds": 100.0, "memory": 800e6, "rate": 1e-4, "backoff": 1.0, "collapsed": False, "trained": 5845890, "bytes": 6786369, "dev": 900}  # fmt: skip
LORA = RUN | {"accuracy": 0.88, "seconds": 95.0, "memory": 760e6, "trained": 203906, "bytes": 817472}
FAST = LORA | {"accuracy": 0.5, "seconds": 97.0, "memory": 790e6, "rate": 1e-3, "backoff": 0.5, "collapsed": True}
ADAPTERS = {
    "data": "sst-2",
    "start": "small",
    "examples": 6000,
    "epochs": 1,
    "ways": {
        "everything": {"rank": 0, "runs": [RUN, RUN | {"accuracy": 0.92}]},
        "LoRA of rank 8, rate × 1": {"rank": 8, "runs": [LORA, LORA]},
        "LoRA of rank 8, rate × 10": {"rank": 8, "runs": [LORA | {"rate": 1e-3}, FAST]},
    },
}


@pytest.mark.parametrize("name", measured.TABLES)
def test_a_page_without_results_is_left_as_it_is_and_one_with_gets_its_table(name, tmp_path):
    plain = measured.page(name, tmp_path)
    assert measured.MARKS.search(plain)[0].count("\n") == 2
    films = {"films": {"samples": 8, "steps": 64, "rows": [ROW]}}
    found = {"generation.md": GENERATION, "explain.md": films, "finetuning.md": ADAPTERS}[name]
    (tmp_path / measured.TABLES[name][0]).write_text(json.dumps(found))
    page = measured.page(name, tmp_path)
    row = {
        "generation.md": "| greedy | 37.2 | 11.4 | 0.83 | 100% |\n| copy of the first words | 16.3 | 1.5 |  |  |\n",
        "explain.md": "| occlusion | drop | 0.417 | 0.107 | +0.310 ± 0.045 | 88% | 0.005 | 0.262 |\n",
        "finetuning.md": "| everything | 0.0001 | 91.0 | 100 | 800 MB | 5,845,890 | 6.79 MB |\n"
        "| LoRA of rank 8, rate × 1 | 0.0001 | 88.0 | 95 | 760 MB | 203,906 | 0.82 MB |\n"
        "| LoRA of rank 8, rate × 10, collapsed, rate halved | 0.001 | 69.0 | 96 | 775 MB | 203,906 | 0.82 MB |\n",
    }[name]
    assert row in page and measured.MARKS.sub(r"\1\2", page) == plain


def test_adapters_are_judged_by_what_was_measured():
    text = measured.adapters(ADAPTERS)
    assert (
        "(LoRA of rank 8, rate × 1; the best of 2 on the same texts, which flatters them) are -3.0 points from training everything, in 0.95 times the time, with -40 MB."
        in text
    )
    assert "differ by up to 1 s and 15 MB" in text and "standard error of 1.0 points" in text


def test_texts_of_others_do_not_break_the_table():
    rows = [line for line in measured.generation(GENERATION).splitlines() if "capital" in line]
    assert rows == [r"| Paris \| The \<capital\> | what is it? | \`who\` |"] * measured.SHOWN


def test_each_option_has_its_document_formula_cost_and_test():
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    sections = [part for part in text.split("\n## ") if re.search(r"\(document 00\d\)$", part.split("\n")[0])]
    assert len(sections) == 7
    for section in sections:
        for word in ("Said", "Here", "Cost", "Test"):
            assert section.count(f"\n**{word}:** ") == 1, (section.split("\n")[0], word)
        assert re.search(r"\*\*Test:\*\* `tests/[\w/]+\.py::\w+`", section)
    named = {name for section in sections for name in re.findall(r"`(\w+)", section.split("\n")[0])}
    rest = re.findall(r"^\| `(\w+)` \(option\) \|.*`tests/[\w/.]+::\w+` \|$", text, re.M)
    others = {"brightmart_layout", "head_size", "static"}  # of other files and verbs, not of the documents
    assert named | set(rest) == {field.name for field in dataclasses.fields(Options)} - others


def test_variants_that_do_the_same_work_show_one_time():
    row = {"metric": "accuracy", "score": 0.9, "parameters": 5e6, "bytes": 2e7}
    times = {"whole": (100, 8.0), "pruned": (150, 6.0), "recovered": (140, 5.0)}
    result = {name: {**row, "texts_per_second": many, "one_text_ms": one} for name, (many, one) in times.items()}
    lines = program("bench/compression_trained").table(result)
    assert all("| 150 | 5.000 | 62% |" in line for line in lines[-2:]) and "| 100 | 8.000 | 100% |" in lines[2]
