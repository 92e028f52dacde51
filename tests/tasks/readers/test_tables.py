"""Texts and pairs with labels: csv, tsv, JSONL, Parquet, GLUE, and which column is which."""

from __future__ import annotations

import csv
import gzip
import json
import lzma

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import TextExample
from albertkit.tasks.readers import ReadOptions, read_examples


def put(path, text):
    path.write_bytes(text.encode())
    return path


def plain(data):
    return [(e.text, e.pair, e.label) for e in data.examples]


# GLUE and its Chinese relatives, as they come -------------------------------------------------------------------------


def test_sst2(tmp_path):
    path = put(tmp_path / "train.tsv", 'sentence\tlabel\nhide new secretions \t0\n\nno "wit" , only gags\t1\n')
    data = read_examples("classify", path)
    assert data.examples == [
        TextExample("hide new secretions", None, "0", f"{path}:2"),
        TextExample('no "wit" , only gags', None, "1", f"{path}:4"),
    ]
    assert data.notes == ("text in column 1 'sentence', label in column 2 'label'",)


def test_cola_has_no_header(tmp_path):
    rows = "gj04\t1\t\tOur friends won't buy this.\ngj04\t0\t*\tThe more we it.\nbc01\t1\t\tHe ran.\n"
    assert plain(read_examples("classify", put(tmp_path / "train.tsv", rows))) == [
        ("Our friends won't buy this.", None, "1"),
        ("The more we it.", None, "0"),
        ("He ran.", None, "1"),
    ]


def test_mrpc_mark_and_quotes(tmp_path):
    rows = (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        '1\t702876\t702977\t"He said so .\tShe said " so " .\n'
        '0\t2108705\t2108831\tOne\t" Two\n'
    )
    assert plain(read_examples("match", put(tmp_path / "train.tsv", rows))) == [
        ('"He said so .', 'She said " so " .', "1"),
        ("One", '" Two', "0"),
    ]


def test_rte_label_names(tmp_path):
    rows = "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tnot_entailment\n1\tC.\tD.\tentailment\n"
    assert plain(read_examples("match", put(tmp_path / "dev.tsv", rows)))[0] == ("A.", "B.", "not_entailment")


def test_stsb_is_a_regression(tmp_path):
    header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    row = "{}\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tAn air plane.\t{}\n"
    path = put(tmp_path / "train.tsv", header + row.format(0, "5.000") + row.format(1, "3.80"))
    data = read_examples("match", path)
    assert plain(data) == [("A plane.", "An air plane.", 5.0), ("A plane.", "An air plane.", 3.8)]
    assert all(type(e.label) is float for e in data.examples) and "regression" in data.notes[1]
    assert plain(read_examples("match", path, ReadOptions(kind="single")))[0][2] == "5.000"


def test_other_glue_headers(tmp_path):
    qqp = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWhy?\tHow?\t0\n"
    qnli = "index\tquestion\tsentence\tlabel\n0\tWho?\tHe did.\tentailment\n"
    mnli = "index\tgenre\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n0\tfiction\t(x)\tA\tB\tneutral\tentailment\n"
    for name, rows, right in (
        ("qqp", qqp, ("Why?", "How?", "0")),
        ("qnli", qnli, ("Who?", "He did.", "entailment")),
        ("mnli", mnli, ("A", "B", "entailment")),
    ):
        assert plain(read_examples("match", put(tmp_path / f"{name}.tsv", rows))) == [right]


def test_other_names_of_pairs(tmp_path):
    for one, two in (("sentence_a", "sentence_b"), ("query", "title")):
        rows = f"label\t{two}\tnote\t{one}\n0\tB\tx\tA\n1\tD\ty\tC\n"
        assert plain(read_examples("match", put(tmp_path / "a.tsv", rows))) == [("A", "B", "0"), ("C", "D", "1")]
    for source, target in (("src", "tgt"), ("passage", "question")):
        path = put(tmp_path / "b.tsv", f"{target}\tnote\t{source}\nB\tx\tA\n")
        (example,) = read_examples("generate", path).examples
        assert (example.source, example.target) == ("A", "B")


def test_chinese_without_header(tmp_path):
    one = "".join(f"这间酒店的环境很不错{i}\t{'positive' if i % 2 else 'negative'}\n" for i in range(12))
    assert plain(read_examples("classify", put(tmp_path / "train.tsv", one)))[1] == (
        "这间酒店的环境很不错1",
        None,
        "positive",
    )
    two = "".join(f"花呗提额在哪{i}\t里可以提花呗额度{i}\t{i % 2}\n" for i in range(12))
    assert plain(read_examples("match", put(tmp_path / "train.txt", two)))[3] == (
        "花呗提额在哪3",
        "里可以提花呗额度3",
        "1",
    )


# Formats -------------------------------------------------------------------------------------------------------------


def test_csv_quotes_and_lines_inside_cells(tmp_path):
    path = put(tmp_path / "a.csv", 'text,label\r\n"a, ""b""\nand c",x\r\nd,y\r\n,\r\n')
    data = read_examples("classify", path)
    assert plain(data) == [('a, "b"\nand c', None, "x"), ("d", None, "y")]
    assert [e.where for e in data.examples] == [f"{path}:2", f"{path}:4"]


def test_semicolons(tmp_path):
    assert plain(read_examples("classify", put(tmp_path / "a.csv", "text;label\na, b;x\nc;y\n")))[0] == (
        "a, b",
        None,
        "x",
    )


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=[".gz", ".xz"])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.json", "a.txt"])
def test_packed(tmp_path, name, pack):
    rows = {
        "a.csv": "text,label\na,x\nb,y\n",
        "a.jsonl": '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n',
        "a.json": '[{"text": "a", "label": "x"},\n {"text": "b", "label": "y"}]',
    }.get(name, "text\tlabel\na\tx\nb\ty\n")
    path = tmp_path / f"{name}{'.gz' if pack is gzip.compress else '.xz'}"
    path.write_bytes(pack(rows.encode()))
    assert plain(read_examples("classify", path)) == [("a", None, "x"), ("b", None, "y")]


def test_a_column_name_that_occurs_twice_needs_a_number(tmp_path):
    """Otherwise the first of both would be used without a word."""
    path = put(tmp_path / "a.csv", "text,Label,label\nA,x,1\nB,y,2\n")
    with pytest.raises(AlbertkitError, match="2 columns .* 2 'Label', 3 'label'. .*--label-column 2"):
        read_examples("classify", path)
    assert plain(read_examples("classify", path, ReadOptions(label_column="3")))[0] == ("A", None, "1")
    assert plain(read_examples("classify", path, ReadOptions(label_column="Label")))[0] == ("A", None, "x")
    path = put(tmp_path / "b.csv", "source,source,target\nA,x,1\nB,y,2\n")
    with pytest.raises(AlbertkitError, match="--text-column 1"):
        read_examples("generate", path)


def test_scores_with_a_decimal_comma_are_not_classes(tmp_path):
    """As spreadsheets of many languages write them."""
    path = put(tmp_path / "a.csv", "sentence1;sentence2;score\nA;B;1,5\nC;D;2\nE;F;0,25\n")
    with pytest.raises(AlbertkitError, match=r"a comma, such as '1,5'. Write '1.5', or pass --separator"):
        read_examples("classify", path)
    assert plain(read_examples("classify", path, ReadOptions(kind="single")))[0] == ("A", "B", "1,5")
    assert plain(read_examples("classify", path, ReadOptions(separator=",")))[0] == ("A", "B", ("1", "5"))


def test_jsonl_values(tmp_path):
    rows = [{"text": " a ", "label": 1}, {"label": True, "text": "b", "other": [1]}, {"text": "c\ud800", "label": "x"}]
    path = put(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert plain(read_examples("classify", path)) == [("a", None, "1"), ("b", None, "true"), ("c?", None, "x")]


def test_json_over_many_lines_and_in_lists(tmp_path):
    rows = [{"sentence1": "a", "sentence2": "b", "label": "0"}, {"sentence1": "c", "sentence2": "d", "label": "1"}]
    right = [("a", "b", "0"), ("c", "d", "1")]
    for text in (
        json.dumps(rows),
        json.dumps(rows, indent=2),
        "\n".join(json.dumps(r, indent=2) for r in rows),
        "\n".join(map(json.dumps, rows)),
    ):
        data = read_examples("match", put(tmp_path / "a.json", text))
        assert plain(data) == right
    assert data.examples[1].where.endswith(":2")


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    table = {"idx": [0, 1], "sentence": ["a", "b"], "label": [1, 0], "picture": [b"x", b"y"], "tags": [["p", "q"], []]}
    parquet.write_table(arrow.table(table), path)
    data = read_examples("classify", path)
    assert plain(data) == [("a", None, "1"), ("b", None, "0")] and data.examples[1].where == f"{path}:2"
    assert plain(read_examples("classify", path, ReadOptions(label_column="tags"))) == [
        ("a", None, ("p", "q")),
        ("b", None, ()),
    ]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(AlbertkitError, match="not a complete Parquet file"):
        read_examples("classify", path)


def test_the_split_of_a_folder(tmp_path):
    for name in ("train.tsv", "dev.tsv"):
        put(tmp_path / name, f"text\tlabel\n{name}\tx\n")
    assert plain(read_examples("classify", tmp_path, ReadOptions(split="validation"))) == [("dev.tsv", None, "x")]
    with pytest.raises(AlbertkitError, match=r"is a folder with dev\.tsv, train\.tsv. Name one.*--split"):
        read_examples("classify", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(AlbertkitError, match="empty is an empty folder. Pass a file of examples"):
        read_examples("classify", tmp_path / "empty")


# Labels --------------------------------------------------------------------------------------------------------------


def test_several_labels(tmp_path):
    path = put(tmp_path / "a.jsonl", '{"text": "a", "labels": ["x", "y", "x"]}\n{"text": "b", "labels": []}\n')
    assert plain(read_examples("classify", path)) == [("a", None, ("x", "y")), ("b", None, ())]
    path = put(tmp_path / "a.tsv", "text\tlabel\na\tx| y\nb\t\nc\ty\n")
    right = [("a", None, ("x", "y")), ("b", None, ()), ("c", None, ("y",))]
    assert plain(read_examples("classify", path, ReadOptions(separator="|"))) == right


@pytest.mark.parametrize(
    ("name", "labels", "kind"),
    [
        ("label", [f"{i / 10}" for i in range(20)], float),  # many, not whole
        ("label", [f"{i}" for i in range(20)], str),  # whole
        ("label", ["1.0", "0.5", "0.0"], str),  # few
        ("score", ["1.0", "0.5", "0.0"], float),  # few, but it says score
        ("score", ["1", "5", "3"], str),  # stars
        ("label", ["1.5", "x"] * 20, str),
    ],
)
def test_numbers_that_are_labels_or_values(tmp_path, name, labels, kind):
    rows = "".join(f"text {i}\t{label}\n" for i, label in enumerate(labels))
    data = read_examples("classify", put(tmp_path / "a.tsv", f"text\t{name}\n{rows}"))
    assert {type(e.label) for e in data.examples} == {kind}


def test_a_missing_label_column_is_named(tmp_path):
    path = put(tmp_path / "test.tsv", "index\tsentence\n0\ta\n1\tb\n")
    with pytest.raises(
        AlbertkitError, match="not clear which column .* contains the label; it has 1 'index', 2 'sentence'"
    ):
        read_examples("classify", path)


# Columns -------------------------------------------------------------------------------------------------------------


def test_columns_by_name_and_number(tmp_path):
    path = put(tmp_path / "a.csv", "Body,Mood,Title,id\nlong one,good,t1,1\nlong two,bad,t2,2\n")
    with pytest.raises(AlbertkitError, match="not clear which column .* it has 1 'Body', 2 'Mood', 3 'Title', 4 'id'"):
        read_examples("classify", path)
    named = ReadOptions(text_column="body", label_column="Mood")
    assert plain(read_examples("classify", path, named)) == [("long one", None, "good"), ("long two", None, "bad")]
    numbered = ReadOptions(text_column=1, pair_column="3", label_column=2)
    assert plain(read_examples("match", path, numbered))[0] == ("long one", "t1", "good")


def test_a_first_text_that_was_asked_for(tmp_path):
    path = put(tmp_path / "a.tsv", "sentence1\tsentence2\tlabel\na\tb\tx\n")
    options = ReadOptions(text_column="sentence1")
    assert plain(read_examples("classify", path, options)) == [("a", None, "x")]
    assert plain(read_examples("match", path, options)) == [("a", "b", "x")]


def test_headers_with_unknown_names(tmp_path):
    rows = "".join(f"una frase {i}\t{'bien' if i % 3 else 'mal'}\n" for i in range(30))
    data = read_examples("classify", put(tmp_path / "a.tsv", f"frase\tetiqueta\n{rows}"))
    assert len(data.examples) == 30 and {e.label for e in data.examples} == {"bien", "mal"}
    assert len(read_examples("classify", tmp_path / "a.tsv", ReadOptions(header="no")).examples) == 31
    numbers = "".join(f"una frase {i}\t{i % 3}\n" for i in range(5))
    assert len(read_examples("classify", put(tmp_path / "b.tsv", f"frase\tclase\n{numbers}")).examples) == 5


def test_labels_that_look_like_names_of_columns(tmp_path):
    """A class called `question` or `score` in the first row does not make it a header."""
    rows = "".join(f"some text {i}\t{'question' if i % 2 == 0 else 'score'}\n" for i in range(10))
    data = read_examples("classify", put(tmp_path / "a.tsv", rows))
    assert len(data.examples) == 10 and data.examples[0].label == "question"


def test_the_label_may_come_first(tmp_path):
    rows = "".join(f"{'pos' if i % 2 else 'neg'}\tthis is text number {i}\n" for i in range(20))
    assert plain(read_examples("classify", put(tmp_path / "a.tsv", rows)))[1] == ("this is text number 1", None, "pos")
    rows = "".join(f"{i}\tthis is text number {i}\t{'pos' if i % 2 else 'neg'}\n" for i in range(20))
    assert plain(read_examples("classify", put(tmp_path / "b.tsv", rows)))[1] == ("this is text number 1", None, "pos")


def test_named_columns_are_not_guessed_among_several(tmp_path):
    """`lang` is no label, although it repeats."""
    rows = "".join(f'{{"id": {i}, "text": "text {i}", "lang": "en"}}\n' for i in range(20))
    with pytest.raises(AlbertkitError, match="contains the label; it has 1 'id', 2 'text', 3 'lang'"):
        read_examples("classify", put(tmp_path / "a.jsonl", rows))


# Round trips ---------------------------------------------------------------------------------------------------------

CELL = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=12).map(str.strip)
ROWS = st.lists(
    st.tuples(CELL.filter(bool), CELL.filter(bool), st.sampled_from(["x", "y", "z z"])), min_size=1, max_size=8
)
FAST = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FAST
@given(rows=ROWS, form=st.sampled_from(["csv", "tsv", "jsonl", "json", "csv.gz"]))
def test_what_is_written_is_read(tmp_path, rows, form):
    names = ("sentence1", "sentence2", "label")
    path = tmp_path / f"a.{form}"
    if form.startswith("json"):
        text = "\n".join(
            json.dumps(dict(zip(names, row, strict=True)), indent=1 if form == "json" else None) for row in rows
        )
    elif form == "tsv":
        text = "\n".join("\t".join(row) for row in [names, *rows])
    else:
        with (tmp_path / "plain").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([names, *rows])
        text = (tmp_path / "plain").read_bytes().decode()
    path.write_bytes(gzip.compress(text.encode()) if form.endswith("gz") else text.encode())
    assert plain(read_examples("match", path)) == rows


@FAST
@given(rows=st.lists(st.tuples(st.text(max_size=20).filter(str.strip), st.sampled_from("xy")), min_size=1, max_size=6))
def test_csv_with_anything_in_its_cells(tmp_path, rows):
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("text", "label"), *rows])
    try:
        found = plain(read_examples("classify", path))
    except AlbertkitError as error:
        assert "zero bytes" in str(error)
        return
    assert [(t.replace("\r", "").strip(), y) for t, y in rows] == [
        (t.replace("\r", "").strip(), y) for t, _, y in found
    ]


@pytest.mark.parametrize("task", ["classify", "match", "intent", "generate"])
@pytest.mark.parametrize(("name", "delimiter"), [("words.conll", " "), ("words.conll", "\t"), ("words.tsv", "\t")])
def test_words_with_tags_are_refused_with_the_name_of_their_task(tmp_path, task, name, delimiter):
    rows = [("EU", "B-ORG"), ("rejects", "O"), (), ("Peter", "B-PER"), ("Blackburn", "I-PER")]
    (tmp_path / name).write_text("\n".join(map(delimiter.join, rows)))
    with pytest.raises(AlbertkitError, match=f"{name} contains words with tags such as 'B-ORG'.*Use the task tag"):
        read_examples(task, tmp_path / name)


def test_classes_that_look_like_some_tags_are_classes(tmp_path):
    (tmp_path / "blood.tsv").write_text("text\tlabel\na donor\tO\nanother donor\tB-\na third one\tA\n")
    (tmp_path / "sizes.tsv").write_text("text\tlabel\na shirt\tL-1\na jacket\tM-2\na coat\tS-3\n")
    for name in ("blood.tsv", "sizes.tsv"):
        assert len(read_examples("classify", tmp_path / name).examples) == 3


def test_quotes_in_tsv_are_named(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('文本\t标签\n"很好"\t好\n"很坏"\t坏\n"不错"\t好\n')
    data = read_examples("classify", path)
    assert data.examples[0].text == '"很好"'
    assert [note for note in data.notes if "quotes" in note] == [
        "most cells of column 1 '文本' are in double quotes, which are part of the text in tsv; "
        "remove them, or save the file as .csv"
    ]
    path.write_text("文本\t标签\n很好\t好\n很坏\t坏\n")
    assert not any("quotes" in note for note in read_examples("classify", path).notes)
