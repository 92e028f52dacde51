"""The one reader of texts: every format, compressed or not, gives the same texts with their places."""

import gzip
import io
import lzma
import sys

import pytest

from albertkit import text_reader
from albertkit.errors import AlbertkitError
from albertkit.text_reader import find_text_files, read_lines, read_rows, read_texts

ROWS = [("a", "first text"), ("b", "日本語, with a comma"), ("c", "third")]


def read_records(paths, text_column=None, id_column=None):
    files = find_text_files(paths, text_column)
    return [record for file in files for record in text_reader.read_records(file, text_column, id_column)]


def write_all(folder):
    (folder / "a.txt").write_text("\n".join(["", *(text for _, text in ROWS), " "]))
    (folder / "a.jsonl").write_text("".join(f'{{"id": "{id}", "text": "{text}"}}\n' for id, text in ROWS))
    (folder / "a.csv").write_text("id,text\n" + "".join(f'{id},"{text}"\n' for id, text in ROWS))
    (folder / "a.tsv").write_text("id\ttext\n" + "".join(f"{id}\t{text}\n" for id, text in ROWS))
    (folder / "b.txt.gz").write_bytes(gzip.compress((folder / "a.txt").read_bytes()))
    (folder / "b.jsonl.xz").write_bytes(lzma.compress((folder / "a.jsonl").read_bytes()))


def test_every_format_gives_the_same_texts(tmp_path):
    write_all(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        assert list(read_texts(path)) == [text for _, text in ROWS], path


def test_parquet_gives_the_same_texts(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pyarrow.table(dict(zip(("id", "text"), zip(*ROWS, strict=True), strict=True))), tmp_path / "a.parquet"
    )
    assert [(r.id, r.text, r.line) for r in read_records([tmp_path / "a.parquet"], id_column="id")] == [
        (id, text, row) for row, (id, text) in enumerate(ROWS, 1)
    ]


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    write_all(tmp_path)
    assert len(list(read_texts(tmp_path))) == 6 * len(ROWS)
    assert [record.source for record in read_records([tmp_path])][:: len(ROWS)] == sorted(map(str, tmp_path.iterdir()))


def test_records_have_ids_and_lines(tmp_path):
    write_all(tmp_path)
    assert [(r.id, r.line) for r in read_records([tmp_path / "a.jsonl"], id_column="id")] == [
        ("a", 1),
        ("b", 2),
        ("c", 3),
    ]
    assert [(r.id, r.line) for r in read_records([tmp_path / "a.csv"], id_column="id")] == [
        ("a", 2),
        ("b", 3),
        ("c", 4),
    ]
    assert [r.id for r in read_records([tmp_path / "a.txt"])] == [f"{tmp_path}/a.txt:{line}" for line in (2, 3, 4)]


def test_a_quoted_cell_may_contain_line_ends_and_a_number_means_no_header(tmp_path):
    (tmp_path / "a.csv").write_text('1,"two\nlines"\n2,last\n')
    assert [(r.text, r.line) for r in read_records([tmp_path / "a.csv"], "2")] == [("two\nlines", 1), ("last", 3)]


def test_stdin_is_text_or_with_a_column_json(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfone\r\n\r\ntwo")))
    assert list(read_texts("-")) == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"body": "one"}\n')))
    assert list(read_texts("-", "body")) == ["one"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"ok\n\xff\n", r"line 2 of .*a\.txt is not UTF-8"),
        ("a.jsonl", b'{"txt": "x"}\n', r"line 1 of .* has no field 'text' \(did you mean 'txt'\?\)"),
        ("a.jsonl", b'{"text": 3}\n', "line 1 of .* contains an int as 'text'"),
        ("a.csv", b"id,txt\n1,x\n", r"has no column 'text' \(did you mean 'txt'\?\)"),
        ("a.csv", b"id,text\n1,x\n2\n", "line 3 of .* has 1 cells"),
        ("a.csv", b'text\na\n"b\nc\n', "line 3 of .* is not valid csv: unexpected end of data"),
        ("a.csv", b"text,text\na,b\n", "has 2 columns 'text'. Rename all but one"),
        ("a.csv", b"text;label\na;b\n", "has semicolons between its cells. Save it as .csv with commas"),
        (
            "a b.csv",
            "\ufefftext\na\n".encode("utf-16-le"),
            "is UTF-16; .* iconv -f UTF-16 -t UTF-8 '.*a b.csv' > new.csv",
        ),
        ("a.txt", "\ufeffa\n".encode("utf-16-be"), "is UTF-16"),
        ("a.parquet", b"nothing", "not a complete Parquet file"),
        ("a.txt.gz", b"nothing", "cannot be decompressed"),
    ],
)
def test_errors_name_the_line_and_the_remedy(tmp_path, name, content, message):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AlbertkitError, match=message):
        list(read_texts(tmp_path / name))


def test_json_lines_that_are_read_as_texts_give_a_warning(tmp_path, monkeypatch):
    line = '{"text": "a"}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line.encode())))
    with pytest.warns(UserWarning, match="line 1 of stdin is a JSON object.*Pass --text-column"):
        assert list(read_texts("-")) == [line.strip()]
    (tmp_path / "a.txt").write_text(line)
    with pytest.warns(UserWarning, match="line 1 of .*a.txt is a JSON object.*Rename the file to .jsonl"):
        list(read_texts(tmp_path / "a.txt"))


def test_a_line_over_the_limit_is_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("short\n" + "x" * 11)
    (file,) = find_text_files([tmp_path / "a.txt"])
    assert [line for _, line in read_lines(file, 11)] == ["short", "x" * 11]
    with pytest.raises(AlbertkitError, match="line 2 of .* has over 10 bytes"):
        list(read_lines(file, 10))


def test_a_row_with_more_cells_than_the_header_is_an_error(tmp_path):
    """Otherwise a text with a comma that is not quoted would be cut."""
    (tmp_path / "a.csv").write_text("id,text\n1,one, two\n")
    with pytest.raises(AlbertkitError, match="line 2 of .* has 3 cells, but the first row has 2: quote"):
        list(read_texts(tmp_path / "a.csv"))
    (tmp_path / "a.csv").write_text("id,text\n1,one,\n")
    assert list(read_texts(tmp_path / "a.csv")) == ["one"]


def test_blank_rows_are_rows_and_blank_lines_of_wide_tables_are_not(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n1,one\n\n2,\n,\n")
    assert list(read_rows(tmp_path / "a.csv")) == ["one", "", ""]
    (tmp_path / "b.tsv").write_text("text\none\n\ntwo\n")
    assert list(read_rows(tmp_path / "b.tsv")) == ["one", "", "two"]
