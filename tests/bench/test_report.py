"""The report of all benchmarks: what it takes from each, what it says of those that fail, and that README shows what
was measured.
"""

from __future__ import annotations

import json
import re
import sys
from timeit import timeit
from types import SimpleNamespace

import pytest

from tests.conftest import ROOT, program

RESULTS = ROOT / "bench" / "results"


@pytest.fixture(scope="module")
def bench():
    before = list(sys.path)
    yield program("bench/report")
    sys.path[:] = before


@pytest.fixture(scope="module")
def pages():
    return program("bench/benchmarks_page")


@pytest.fixture(scope="module")
def peaks(bench):
    return program("bench/inference")


@pytest.fixture
def whole(bench):
    """A report of what was recorded, of one benchmark that failed and of one that took too long."""
    found = {
        name: {
            "command": f"python bench/{name}.py", "seconds": 3.0, "limit_seconds": 60.0, "status": "done",
            "rows": [{**vars(row), "ratio": row.ratio} for row in bench.PARTS[name].rows(json.loads((RESULTS / f"{name}.json").read_text()))],
        }
        for name in ("inference", "memory", "search")
    }  # fmt: skip
    about = {"command": "python bench/x.py", "seconds": 1.0, "limit_seconds": 60.0}
    found["server"] = {**about, "status": "failed", "code": 1, "output": "one\nValueError: no such thing"}
    found["fine-tuning"] = {**about, "status": "out of time", "output": ""}
    recorded = json.loads((RESULTS / "inference.json").read_text())
    return {"mode": "full", "machine": recorded["machine"], "libraries": recorded["libraries"], "parts": found}


def test_rows_are_what_was_recorded(bench, whole):
    rows = whole["parts"]["inference"]["rows"]
    found = json.loads((RESULTS / "inference.json").read_text())
    row = next(r for r in rows if r["what"] == "mixed texts, float32" and r["peer"] == "onnxruntime, export")
    speeds = found["workloads"]["mixed texts"]
    assert row["value"] == speeds["albertkit, float32"]["texts_per_second"]
    peer = max(speeds[name]["texts_per_second"] for name in ("onnxruntime, export", "onnxruntime, export, tuned"))
    assert row["ratio"] == row["value"] / peer
    cold = next(r for r in rows if r["what"] == "cold start" and r["peer"] == "transformers")
    assert cold["ratio"] == found["cold"]["transformers"]["seconds"] / found["cold"]["albertkit, int8"]["seconds"] > 1
    shares = found["peak"]["shares_at_128_tokens"]
    assert next(r for r in rows if r["what"] == "128 tokens, float32")["share"] == shares["albertkit, float32"]


def tuned_results():
    """Results of `inference.py` with one peer for each precision: one is tuned well, the other in vain."""
    speeds = {
        "albertkit, float32": 6.0, "transformers (SDPA)": 2.0, "transformers (SDPA), tuned": 3.0,
        "albertkit, int8": 9.0, "OpenVINO, NNCF int8": 8.0, "OpenVINO, NNCF int8, tuned": 4.0,
    }  # fmt: skip
    work = {name: {"texts_per_second": speed} for name, speed in speeds.items()}
    shares = {"albertkit, float32": 0.5, "albertkit, int8": 0.7}
    peak = {"shares_at_128_tokens": shares, "shares_of_one_text": {}}
    return {"workloads": {"128 tokens": work, "mixed texts": work}, "peak": peak, "cold": {}, "bytes": {}}


def test_a_peer_is_compared_at_its_best_and_shown_with_its_defaults(bench):
    rows = {(row.what, row.peer): row for row in bench.inference(tuned_results())}
    first, second = rows["128 tokens, float32", "transformers (SDPA)"], rows["128 tokens", "OpenVINO, NNCF int8"]
    assert (first.theirs, first.default, first.ratio, first.share) == (3.0, 2.0, 2.0, 0.5)
    assert (second.theirs, second.default, second.ratio, second.share) == (8.0, 8.0, 9 / 8, 0.7)
    assert rows["mixed texts, float32", "transformers (SDPA)"].share is None


def test_each_precision_is_compared_with_peers_of_its_own(bench, pages):
    rows = [{**vars(row), "ratio": row.ratio} for row in bench.inference(tuned_results())]
    found = {row["what"]: row["peer"] for row in pages.nearest({"parts": {"inference": {"rows": rows}}})}
    assert found["128 tokens"] == "OpenVINO, NNCF int8" and found["128 tokens, float32"] == "transformers (SDPA)"


def test_built_in_model_is_compared_with_the_best_of_each_peer(bench, pages):
    speeds = {"MiniLM": 2.0, "MiniLM, tuned": 4.0, "small, albertkit": 8.0}
    found = {"workloads": {"mixed texts": {name: {"texts_per_second": speed} for name, speed in speeds.items()}}}
    (row,) = bench.encoders(found)
    assert (row.value, row.theirs, row.default, row.ratio) == (8.0, 4.0, 2.0, 2.0)
    assert row.what in pages.TITLES


def test_readme_shows_the_defaults_of_a_peer_in_both_languages(bench, pages):
    rows = [{**vars(row), "ratio": row.ratio} for row in bench.inference(tuned_results())]
    machine = {"processor": "CPU", "threads": 2, "date": "2026-01-01"}
    report = {"machine": machine, "parts": {"inference": {"rows": rows}}}
    assert "| OpenVINO, NNCF int8: 8 texts/s (defaults: 8) | 1.1× |" in pages.table(report, "README.md")
    assert "| OpenVINO, NNCF int8: 8 texts/s（默认设置：8） | 1.1× |" in pages.table(report, "README.zh-CN.md")


def test_shares_are_of_the_peak_of_the_same_precision(peaks, monkeypatch):
    peak = {"float32": {"numpy": 1.0, "torch": 2.0}, "int8": {"onnxruntime": 8.0}}  # GFLOP/s
    seconds = {"albertkit, float32": 2.0, "albertkit, int8": 0.5, "albertkit, 4-bit": 1.0}
    assert peaks.peak_shares(peak, 2e9, seconds) == {"albertkit, float32": 0.5, "albertkit, int8": 0.5}
    monkeypatch.setattr(peaks, "best", lambda work, rounds: timeit(work, number=1))
    found = peaks.matrix_peak(1)
    assert set(found) == {"float32", "int8"} and all(v > 0 for of in found.values() for v in of.values())


def test_rounds_wait_for_other_programs_until_patience_ends(peaks, monkeypatch):
    shares = iter([0.5, 0.0, 0.0])
    monkeypatch.setattr(peaks, "busy_share", lambda: next(shares))
    rounds = peaks.QuietRounds()
    rounds.begin()
    rounds.begin()
    assert (rounds.all, rounds.quiet) == (2, 2)
    monkeypatch.setattr(peaks, "busy_share", lambda: 1.0)
    rounds.patience = 0.0
    rounds.begin()
    assert (rounds.all, rounds.quiet) == (3, 2)


def test_tuning_takes_the_fastest_setting(peaks, monkeypatch):
    peers, clock = sys.modules["peers"], [0.0]
    monkeypatch.setattr(peers, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def work(choice: int) -> None:
        clock[0] += choice

    assert peers.fastest((3, 1, 2), work) == 1
    assert {name + peers.TUNED for name in peers.PEERS} <= set(peers.RUNNERS)


def test_rows_of_the_server_compare_ours_with_others_only(bench):
    found = json.loads((RESULTS / "server.json").read_text())
    rows = list(bench.server(found))
    limits, sides = [r for r in rows if r.peer is None], [r for r in rows if r.peer is not None]
    assert [r.share for r in limits] == [run["ratio"] for run in found["throughput"]]
    assert sides and all(r.ours.startswith("albertkit") and not r.peer.startswith("albertkit") for r in sides)
    assert {r.what for r in sides} == {"server, one text a request", "server, 8 texts a request"}


def test_a_fine_tuning_of_another_day_is_no_part_of_the_report(bench):
    run = {"runs": {"albertkit": [{"seconds": 2.0}], "another": [{"seconds": 3.0}, {"seconds": 5.0}]}}
    (row,) = bench.finetuning(
        {bench.FINETUNING_DATA: run, "SST-2": {"runs": {"albertkit": [{"seconds": 9.0}], "b": [{"seconds": 1.0}]}}}
    )
    assert (row.value, row.theirs, row.ratio) == (2.0, 4.0, 2.0)


def test_a_run_sees_no_earlier_results(bench, tmp_path):
    place = bench.workplace(tmp_path / "place")
    assert list((place / "bench" / "results").iterdir()) == []
    assert (place / "bench" / "search.py").is_file() and (place / "src" / "albertkit").is_dir()
    assert (place / "shared" / "corpus" / "enwiki-00.txt.xz").is_file()  # the repository's own texts


def test_the_peers_are_pinned():
    """`make bench` installs exact versions, torch's the one that the tests use."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "bench" / "constraints.txt").read_text(), re.M))
    names = {name.lower().replace("_", "-") for name in pins}
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    group = re.search(r"^bench = \[(.*?)^\]", text, re.S | re.M).group(1)
    assert {name.lower() for name in re.findall(r'"([\w-]+)', group)} <= names
    assert f"torch=={pins['torch']}\n" in (ROOT / "constraints.txt").read_text()
    assert "bench/constraints.txt" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_part_names_a_program_and_its_flags(bench):
    for part in bench.PARTS.values():
        text = (ROOT / "bench" / part.script).read_text(encoding="utf-8")
        for flag in (word for word in (*part.quick, *part.full) if word.startswith("--")):
            assert f'"{flag}"' in text, f"{part.script} has no {flag}"
        assert part.result in text or part.result.removesuffix(".json") in text


def toy(folder, text: str) -> str:
    path = folder / "bench"
    (path / "results").mkdir(parents=True, exist_ok=True)
    (path / "it.py").write_text(text, encoding="utf-8")
    return "it.py"


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("import json, pathlib\npathlib.Path(__file__).parent.joinpath('results/it.json').write_text('[1, 2]')", "done", ""),
        ("print('before'); raise ValueError('no such thing')", "failed", "ValueError: no such thing"),
        ("print('wrote nothing')", "failed", "wrote nothing"),
        ("import pathlib\npathlib.Path(__file__).parent.joinpath('results/it.json').write_text('{}')", "failed", "lack"),
        ("import time\nprint('slow', flush=True)\ntime.sleep(60)", "out of time", "slow"),
    ],
    ids=("done", "raises", "writes nothing", "writes something else", "slow"),
)  # fmt: skip
def test_failures_are_told(bench, tmp_path, text, status, said):
    def rows(found):
        yield bench.Row("thing", "s", "albertkit", found[0], "another", found[1], False)

    part = bench.Part(toy(tmp_path, text), (), (), "it.json", (1, 1), rows)
    found = bench.run(part, True, tmp_path, 3 / 60 if status == "out of time" else 1.0)
    assert found["status"] == status and said in found.get("output", "")
    assert str(tmp_path) not in json.dumps(found)
    if status == "done":
        assert found["rows"][0]["ratio"] == 2.0


def test_what_was_found_before_stays(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(
        bench, "run", lambda part, quick, place, minutes: {"status": "done", "seconds": 0.0, "rows": []}
    )
    out = tmp_path / "report.json"
    bench.report(["memory"], True, out)
    bench.report(["search"], True, out)
    assert set(json.loads(out.read_text())["parts"]) == {"memory", "search"}
    bench.report(["search"], False, out)
    assert set(json.loads(out.read_text())["parts"]) == {"search"}  # quick and full are not mixed


def test_the_nearest_program_is_the_hardest(pages, whole):
    for row in pages.nearest(whole):
        same = [r for r in pages.rows(whole) if r["what"] == row["what"] and r["ratio"] is not None]
        same = [r for r in same if pages.recall(r["peer"]) >= 0.95]
        values = [r["value"] for r in same]
        assert row["value"] == (max(values) if row["more_is_better"] else min(values))
        assert row["ratio"] == min(r["ratio"] for r in same if r["value"] == row["value"])


def test_a_program_that_finds_less_is_no_peer_in_the_table(pages):
    assert [pages.recall(name) for name in ("x (recall 0.81)", "y", None, "z (recall 1.00)")] == [0.81, 1.0, 1.0, 1.0]
    row = {"what": "search", "unit": "ms", "ours": "albertkit", "value": 5.0, "more_is_better": False, "share": None}
    peers = [
        row | {"peer": "quick (recall 0.50)", "theirs": 1.0, "ratio": 0.2},
        row | {"peer": "exact (recall 1.00)", "theirs": 2.0, "ratio": 0.4},
    ]
    assert [r["peer"] for r in pages.nearest({"parts": {"search": {"rows": peers}}})] == ["exact (recall 1.00)"]


def test_readme_is_left_alone_without_a_report(pages):
    for name in pages.README_WORDS:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert pages.readme(text, None, name) == text


def test_both_readmes_get_the_same_numbers(pages, whole):
    texts = {name: pages.readme((ROOT / name).read_text(encoding="utf-8"), whole, name) for name in pages.README_WORDS}
    parts = [pages.MARKS.search(text).group() for text in texts.values()]
    numbers = [re.findall(r"\| ([^|]+) \| [^|]+?: ([\d.,]+)[^|]*\| ([\d.]+)× \|\n", part) for part in parts]
    assert numbers[0] == numbers[1] and 1 <= len(numbers[0]) <= 7
    assert {row["what"] for row in pages.nearest(whole)} <= set(pages.TITLES)
    for name, text in texts.items():  # a second time changes nothing
        assert pages.readme(text, whole, name) == text


def test_readme_names_what_a_peer_does_better(pages, whole):
    """A row in which a peer is ahead is not in the table of speedups, but in the sentence below it."""
    parts = whole["parts"]
    slow = {
        "what": "mixed texts",
        "unit": "texts/s",
        "ours": "albertkit, int8",
        "peer": "a peer",
        "more_is_better": True,
    }
    parts["inference"]["rows"] = [slow | {"value": 2.0, "theirs": 4.0, "ratio": 0.5, "share": None}]
    behind = [row for row in pages.nearest(whole) if row["ratio"] < 1]
    assert "mixed texts" in [row["what"] for row in behind]
    for language, name in enumerate(pages.README_WORDS):
        rows, _, below = pages.table(whole, name).rpartition("×")
        for row in behind:
            title = pages.TITLES[row["what"]][language]
            assert title in below and f"| {title} |" not in rows


def test_readme_shows_what_was_measured(pages):
    report = pages.load()
    for name in pages.README_WORDS:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert pages.readme(text, report, name) == text, f"{name} is stale; run  make docs"
        assert report is not None or pages.MARKS.search(text).group().count("\n") == 1


def test_a_report_that_is_put_elsewhere_has_its_picture_beside_it(bench, whole, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    bench.show(whole, tmp_path / "report.json")
    assert (tmp_path / "benchmarks.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "× compared with transformers (SDPA)" in printed
    assert "server: failed" in printed and "no such thing" in printed and "fine-tuning: out of time" in printed


def test_the_picture(pages, whole, tmp_path):
    pytest.importorskip("matplotlib")
    assert pages.picture(whole, tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
