"""The one door: what is wrong with files, collected; limits; training data beside other data; real files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from albertkit.errors import AlbertkitError
from albertkit.tasks import make_task
from albertkit.tasks.dataset import check_labels
from albertkit.tasks.examples import ChoiceExample, DialogueTurn, QuestionExample, Span, TaggedExample, TextExample
from albertkit.tasks.readers import READERS, ReadOptions, read_examples
from albertkit.tasks.readers import labelled_files as files
from tests.conftest import SHARED


def refused(path, data, task="classify", **options):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(AlbertkitError) as caught:
        read_examples(task, path, ReadOptions(**options))
    return str(caught.value)


# Problems, collected -------------------------------------------------------------------------------------------------


def test_five_problems_in_one_error(tmp_path):
    rows = ["text\tlabel", "good\tx", "a\tb\tc", "alone", " \tx", "no label\t", *["wrong"] * 4, "fine\ty"]
    path = tmp_path / "train.tsv"
    message = refused(path, "\n".join(rows))
    assert message.split("\n") == [
        f"{path} has 8 problems that must be corrected, or skipped (--skip-bad), the first 5 here:",
        "  line 3: 3 cells where the header has 2; a text cannot contain the delimiter",
        "  line 4: 1 cell where the header has 2; write all 2, with a tab between them",
        "  line 7: 1 cell where the header has 2; write all 2, with a tab between them",
        "  line 8: 1 cell where the header has 2; write all 2, with a tab between them",
        "  line 9: 1 cell where the header has 2; write all 2, with a tab between them",
    ]
    data = read_examples("classify", path, ReadOptions(skip_bad=True))
    assert [e.text for e in data.examples] == ["good", "fine"]
    assert data.notes[-1].startswith(f"8 bad rows skipped in {path}; line 3: 3 cells")


def test_empty_texts_and_missing_labels(tmp_path):
    message = refused(tmp_path / "a.tsv", "sentence1\tsentence2\tlabel\n \tb\tx\na\t\tx\na\tb\t \n")
    assert "line 2: the text is empty; write one or delete the row" in message
    assert "line 3: the second text is empty" in message and "line 4: the label is missing" in message


def test_most_rows_say_how_many_cells_there_are(tmp_path):
    rows = "".join(f"text number {i}\t{'x' if i % 2 else 'y'}\n" for i in range(10))
    assert "line 1: 3 cells where most rows have 2" in refused(tmp_path / "a.tsv", f"a\tb\tc\n{rows}")


def test_missing_columns(tmp_path):
    message = refused(tmp_path / "a.csv", "text,label\na,x\n", text_column="txt")
    assert "has no column 'txt' (did you mean 'text'?); it has 1 'text', 2 'label'" in message
    message = refused(tmp_path / "a.csv", "text,label\na,x\n", label_column=3)
    assert (
        "has no column 3; it has 1 'text', 2 'label'. Pass one of these names, or a number from 1 (--label-column)."
        in message
    )
    assert "has no column '0'" in refused(tmp_path / "a.csv", "text,label\na,x\n", label_column="0")
    assert "has two roles" in refused(tmp_path / "a.csv", "text,label\na,x\n", text_column=2, label_column=2)
    assert "contains the second text" in refused(tmp_path / "a.csv", "text,label\na,x\n", "match")
    many = ",".join(f"c{i}" for i in range(30))
    assert "'c19' and 10 more. Name" in refused(tmp_path / "a.csv", f"{many}\n{many}\n", header="yes")


def test_wrong_encodings(tmp_path):
    rows = "text\tlabel\n房间太小\tx\nfine\ty\n"
    message = refused(tmp_path / "a.tsv", rows.encode("gb18030"))
    assert "line 2: byte 1 is 0xb7, which is not UTF-8; convert the file" in message and "iconv -f GB18030" in message
    data = read_examples("classify", tmp_path / "a.tsv", ReadOptions(skip_bad=True))
    assert [e.text for e in data.examples] == ["fine"] and "1 bad row" in data.notes[-1]
    for code in ("utf-16", "utf-16-be"):
        mark = b"\xfe\xff" if code.endswith("be") else b""
        assert "is UTF-16" in refused(tmp_path / "a.tsv", mark + rows.encode(code))
        assert "iconv -f UTF-16" in refused(tmp_path / "a.json", mark + rows.encode(code), "answer")
    assert "line 1: zero bytes; convert" in refused(tmp_path / "a.tsv", rows.encode("utf-16-le"))
    message = refused(tmp_path / "a.json", '{"data":\n "é"}'.encode("latin-1"), "answer")
    assert f"{tmp_path / 'a.json'}, line 2: byte 3 is 0xe9, which is not UTF-8" in message


def test_bad_bytes_inside_a_quoted_cell_spoil_only_its_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\n"one\n\xff two\nthree",x\nfour,y\n')
    data = read_examples("classify", path, ReadOptions(skip_bad=True))
    assert [e.text for e in data.examples] == ["four"] and "1 bad row" in data.notes[-1]


def test_wrong_quotes(tmp_path):
    message = refused(tmp_path / "a.csv", 'text,label\n"a" b,x\nc,y\n"never closed,z\nd,x\n')
    assert "2 problems" in message and "line 2: the quotes are wrong" in message
    assert "line 4: the quotes are wrong from here to line 5" in message
    assert len(read_examples("classify", tmp_path / "a.csv", ReadOptions(skip_bad=True)).examples) == 1


def test_bad_json(tmp_path):
    good = '{"text": "a", "label": "x"}\n'
    message = refused(tmp_path / "a.jsonl", good + "{broken\n[1]\n" + '{"label": "x"}\n{"text": 3, "label": "x"}\n')
    assert "line 2: '{broken' is not a JSON object" in message and "line 3: '[1]' is not a JSON object" in message
    message = refused(
        tmp_path / "a.jsonl", good + '{"label": "x"}\n{"text": 3, "label": "x"}\n{"text": "a", "label": {}}'
    )
    assert "line 2: the text is missing" in message and "line 3: the text is an int; write" in message
    assert "line 4: the label is a dict" in message
    assert "line 1: the text contains zero bytes" in refused(tmp_path / "a.jsonl", '{"text": "a\\u0000", "label": "x"}')
    for text in ('[{"text": "a"}, {"text"', '[{"text": "a"}', '{"a": 1} {"b"', '[{"a": 1}] 7'):
        assert "line 1 of" in refused(tmp_path / "a.json", text)
    assert "the JSON value is broken" in refused(tmp_path / "a.json", "[" * 100_000)
    deep = '{"text": ' + "[" * 100_000 + "}\n"
    assert "line 2" in refused(tmp_path / "a.jsonl", good + deep)


def test_bad_lines_of_json_files_are_passed_over(tmp_path):
    path = tmp_path / "a.json"
    text = '{"text": "a", "label": "x"}\n{broken\n\n{"text": "b", "label": "y"}\n'
    assert "line 2: '{broken' is not a JSON object" in refused(path, text)
    data = read_examples("classify", path, ReadOptions(skip_bad=True))
    assert [e.where for e in data.examples] == [f"{path}:1", f"{path}:4"] and "1 bad row skipped" in data.notes[-1]


def test_labels_that_are_no_numbers(tmp_path):
    rows = "".join(f"text {i}\t{i / 7:.2f}\n" for i in range(30))
    message = refused(tmp_path / "a.tsv", f"text\tscore\n{rows}bad\tN/A\n")
    assert "line 32: the label 'N/A' is not a number" in message
    assert "'nan' is not a number" in refused(tmp_path / "a.tsv", "text\tlabel\na\tnan\n", kind="regression")


def test_multi_label_faults(tmp_path):
    message = refused(
        tmp_path / "a.jsonl", '{"text": "a", "labels": ["x"]}\n{"text": "b"}\n{"text": "c", "labels": [{}]}'
    )
    assert "line 2: the label is missing" in message and "line 3: the label is a dict; write a text" in message


def test_nothing_there(tmp_path):
    assert "contains no example" in refused(tmp_path / "a.tsv", "")
    assert "contains no example" in refused(tmp_path / "a.tsv", "text\tlabel\n")
    assert "contains no example" in refused(tmp_path / "a.jsonl", "\n\n")
    assert "2 problems and no good row" in refused(tmp_path / "a.tsv", "text\tlabel\na\nb\n", skip_bad=True)
    with pytest.raises(AlbertkitError, match="cannot be read: No such file"):
        read_examples("classify", tmp_path / "none.tsv")
    with pytest.raises(AlbertkitError, match="cannot come from a pipe"):
        read_examples("classify", "-")
    assert "the format of" in refused(tmp_path / "a.txt", "just a text\n")
    (tmp_path / "seq.in").write_text("a")
    with pytest.raises(AlbertkitError, match=r"is a folder with .*seq\.in.*. Name one file"):
        read_examples("classify", tmp_path)
    assert "cannot be decompressed" in refused(tmp_path / "a.tsv.gz", "text\tlabel\n")


def test_limits(tmp_path, monkeypatch):
    assert "the text has over 1,000,000 characters" in refused(
        tmp_path / "a.tsv", f"text\tlabel\n{'a' * 1_000_001}\tx\n"
    )
    assert "the text has over 1,000,000" in refused(tmp_path / "a.conll", f"{'a' * 1_000_001} O\n", "tag")
    monkeypatch.setattr(files, "FILE_LIMIT", 100)
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pytest.importorskip("pyarrow").table({"text": ["a" * 200], "label": ["x"]}), tmp_path / "a.parquet"
    )
    with pytest.raises(AlbertkitError, match="has over 100 bytes"):
        read_examples("classify", tmp_path / "a.parquet")
    assert "has over 100 bytes, which are kept in memory" in refused(tmp_path / "a.tsv", "a\tb\n" * 50)


def test_options_are_checked():
    with pytest.raises(AlbertkitError, match=r"unknown task 'clasify' \(did you mean 'classify'\?\)"):
        read_examples("clasify", "x")
    for options, message in (
        ({"format": "jsn"}, "format is 'jsn' .did you mean"),
        ({"header": "maybe"}, "choose one of auto, yes, no"),
        ({"kind": "number"}, "choose one of auto, single, multi, regression"),
        ({"separator": ""}, "separator is empty"),
        ({"separator": "|", "kind": "single"}, "Omit one of them"),
    ):
        with pytest.raises(AlbertkitError, match=message):
            ReadOptions(**options)
    assert set(READERS) == {"classify", "tag", "answer", "choose", "match", "intent", "dialogue", "generate"}


def test_no_torch_and_no_pandas():
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['pandas'] = None\n"
        "import albertkit.tasks.readers\n"
        "assert 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Training data beside other data -------------------------------------------------------------------------------------


def texts(*labels, start=0):
    return [TextExample(f"text {i}", None, label, f"a.tsv:{i}") for i, label in enumerate(labels, start)]


def test_training_needs_two_values():
    for task, examples, message in (
        ("classify", texts("x", "x", "x"), "all 3 examples have the class 'x'. Training needs at least two"),
        ("classify", texts(2.5, 2.5), "all 2 examples have the value 2.5"),
        ("intent", [TaggedExample("a", ((0, 1),), (), "ask")] * 2, "all 2 examples have the intent 'ask'"),
        ("tag", [TaggedExample("a", ((0, 1),))], "none of the 1 examples contains an entity"),
        ("answer", [QuestionExample("1", "Who?", "He.", (), True)], "none of the 1 questions has an answer"),
        ("match", [TextExample("a", "b", 1.0)] * 2, "all 2 examples have the label 1.0"),
    ):
        with pytest.raises(AlbertkitError) as caught:
            make_task(task, examples)
        assert message in str(caught.value)
    assert make_task("classify", texts(("x",), ("x",))).kind == "multi"


def test_unknown_labels():
    train, dev = texts("good", "bad"), texts("god", "bad", "new", start=5)
    assert check_labels(train, dev) == (
        "2 labels of 3 unknown to training, counted as missed; the first: a.tsv:5: label 'god' (did you mean 'good'?)",
    )
    train = [TaggedExample("a b", ((0, 1), (2, 3)), (Span(0, 1, "X"),), i) for i in ("go", "stop")]
    with pytest.raises(AlbertkitError, match="intent 'gone'"):
        check_labels(train, [TaggedExample("c", ((0, 1),), (), "gone")])
    assert "entity 'Y'" in check_labels(train, [TaggedExample("c", ((0, 1),), (Span(0, 1, "Y"),), "go")])[0]
    turn = DialogueTurn("1", 0, "", "hi", (("food", "thai"),), (("food", "thai"),))
    with pytest.raises(AlbertkitError, match="slot 'area'"):
        check_labels([turn], [DialogueTurn("2", 0, "", "hi", (("area", "east"),))])


def test_examples_in_both():
    assert check_labels(texts("x", "y"), texts("y", "x", "x", start=1)) == (
        "1 of 3 held-out examples is in the training data too, the first a.tsv:1",
    )
    question = QuestionExample("1", "Who?", "He.")
    choice = ChoiceExample("a", "b", ("c", "d"), 0)
    turn = DialogueTurn("1", 0, "", "thanks")
    assert check_labels([question, choice, turn], [question, choice, turn]) == (
        "2 of 3 held-out examples are in the training data too",
    )


# Real files, where they are ------------------------------------------------------------------------------------------

REAL = [
    ("classify", "sst-2/train.tsv", {}, 67349, {"0": 29780, "1": 37569}),
    ("classify", "sst-2/dev.tsv", {}, 872, {"0": 428, "1": 444}),
    ("classify", "cola/train.tsv", {}, 8551, {"0": 2528, "1": 6023}),
    ("classify", "cola/dev.tsv", {}, 1043, {"0": 322, "1": 721}),
    ("match", "mrpc/train.tsv", {}, 3667, {"0": 1194, "1": 2473}),
    ("match", "mrpc/dev.tsv", {}, 408, {"0": 129, "1": 279}),
    ("match", "rte/train.tsv", {}, 2490, {"entailment": 1249, "not_entailment": 1241}),
    ("match", "sts-b/train.tsv", {}, 5749, None),
    ("match", "sts-b/dev.tsv", {}, 1500, None),
    ("classify", "chnsenticorp/train.tsv", {}, 9600, {"negative": 4801, "positive": 4799}),
    ("match", "afqmc/train.txt", {}, 34334, {"0": 23761, "1": 10573}),
    ("tag", "conll2003/eng.train", {}, 14041, {"LOC": 7140, "PER": 6600, "ORG": 6321, "MISC": 3438}),
    ("tag", "conll2003/eng.testa", {}, 3250, {"LOC": 1837, "PER": 1842, "ORG": 1341, "MISC": 922}),
    ("tag", "cluener/train.json", {"skip_bad": True}, 10747, None),
    ("tag", "cluener/dev.json", {}, 1343, None),
    ("intent", "atis", {"split": "train"}, 4478, None),
    ("intent", "snips", {"split": "dev"}, 700, None),
    ("intent", "clinc150/data_small.json", {}, 7600, None),
    ("answer", "squad/train-v1.1-44-articles.json", {}, 11877, None),
    ("answer", "cmrc2018/cmrc2018_trial.json", {"skip_bad": True}, 1000, None),
    ("choose", "race-middle/train.jsonl", {}, 6017, {1: 1539, 0: 1304, 2: 1637, 3: 1537}),
    ("dialogue", "woz2/woz_train_en.json", {}, 2536, None),
]


@pytest.mark.parametrize(("task", "name", "options", "count", "labels"), REAL, ids=[row[1] for row in REAL])
def test_real_files(task, name, options, count, labels):
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    data = read_examples(task, path, ReadOptions(**options))
    assert len(data.examples) == count
    first = data.examples[0]
    if labels is not None and isinstance(first, TextExample):
        assert Counter(e.label for e in data.examples) == labels
    elif labels is not None and isinstance(first, TaggedExample):
        assert Counter(s.label for e in data.examples for s in e.spans) == labels and data.notes == ()
    elif labels is not None:
        assert Counter(e.answer for e in data.examples) == labels
    if name.startswith("sts-b"):
        assert {type(e.label) for e in data.examples} == {float}
    if task == "answer":
        assert all(e.context[s : s + len(t)] == t for e in data.examples for s, t in e.answers)
    if name.startswith("cmrc"):
        assert data.notes[0].startswith("5 answers in") and "2 bad rows" in data.notes[1]
    if task == "match":
        assert all(e.pair for e in data.examples)
    json.dumps([e.__dict__ for e in data.examples[:50]], default=vars)  # plain values


# Anything at all -----------------------------------------------------------------------------------------------------

PIECES = [
    b"text\tlabel\n",
    b"a\tx\n",
    b"B-X",
    b" O\n",
    b"\n\n",
    b'"',
    b",",
    b"\xff",
    b"\0",
    b"{",
    b"}",
    b'"text": "a"',
    b"[",
]
PIECES += [
    b'{"text": "a", "label": {}}',
    b'{"data": []}',
    b'{"tokens": ["a"], "labels": ["O"]}',
    b"\xef\xbb\xbf",
    b"\r\n",
]


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=10),
    suffix=st.sampled_from(["csv", "tsv", "jsonl", "json", "txt", "parquet", "gz"]),
    task=st.sampled_from(sorted(READERS)),
    skip_bad=st.booleans(),
)
def test_any_file_is_read_or_refused(tmp_path, pieces, suffix, task, skip_bad):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"".join(pieces))
    try:
        assert read_examples(task, path, ReadOptions(skip_bad=skip_bad)).examples
    except AlbertkitError as error:
        assert str(path) in str(error)
