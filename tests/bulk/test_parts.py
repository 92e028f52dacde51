"""Parts cover every row of every kind of file exactly once, whatever the file holds."""

from __future__ import annotations

import csv
import io
import json

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from albertkit.bulk import parts
from albertkit.bulk.object_store import find_inputs
from albertkit.errors import AlbertkitError
from albertkit.text_reader import BadRow, read_rows

pyarrow = pytest.importorskip("pyarrow")
PIECES = [
    b"\n",
    b"\r\n",
    b"\r",
    b"",
    b"a",
    b"some words",
    "\u2028\x85\x0b\x0c".encode(),
    "猫".encode(),
    b"\xff",
    b'"',
    b"\t",
    b",",
]
quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
sizes = {"most": st.integers(1, 5), "room": st.integers(1, 40)}
cells = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def all_rows(
    path, most: int, room: int, field: str | None = None, block: int = parts.BLOCK_BYTES
) -> list[str | BadRow]:
    """The rows of a file, part by part; checks the parts on the way."""
    before, parts.PART_BYTES, parts.BLOCK_BYTES = (parts.PART_BYTES, parts.BLOCK_BYTES), room, block
    try:
        sources, table = parts.plan_parts(find_inputs([str(path)], field), most)
        return _rows(sources, table, most)
    finally:
        parts.PART_BYTES, parts.BLOCK_BYTES = before


def _rows(sources, table, most: int) -> list[str | BadRow]:
    found: list[str | BadRow] = []
    for number in range(len(table)):
        part = parts.get_part(table, sources, number)
        assert part.first == len(found) and 1 <= part.rows <= most
        assert number == 0 or part.start == table["stop"][number - 1]
        mine = list(parts.read_part(part))
        assert [row for row, _ in mine] == list(range(len(found), len(found) + part.rows))
        found += [text for _, text in mine]
    return found


def known(rows: list[str | BadRow]) -> list[str | None]:
    return [None if isinstance(row, BadRow) else row for row in rows]


@quick
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=30), mark=st.booleans(), most=st.integers(1, 30),
       room=st.integers(1, 200), block=st.integers(1, 60))  # fmt: skip
def test_parts_cover_every_line_once(tmp_path, pieces, mark, block, most, room):
    data = b"".join(pieces)
    path = tmp_path / "a.txt"
    path.write_bytes((b"\xef\xbb\xbf" if mark and data else b"") + data)
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    wanted = []
    for number, line in enumerate(lines):
        ended = number < data.count(b"\n")  # a lone \r at the end of the last line goes as well
        assert ended or number == len(lines) - 1
        try:
            wanted.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError:
            wanted.append(None)
    assert known(all_rows(path, most, room, block=block)) == wanted


@quick
@given(texts=st.lists(cells, max_size=12), end=st.sampled_from(["\n", "\r\n"]), header=st.booleans(), **sizes)
def test_parts_cover_every_csv_record_once(tmp_path, texts, end, header, most, room):
    file = io.StringIO(newline="")
    lone = any("\r" in text for text in texts)  # which Python's writer leaves without quotes where lines end with \n
    writer = csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL if lone else csv.QUOTE_MINIMAL)
    if header:
        writer.writerow(["id", "words"])
    writer.writerows(enumerate(texts))
    path = tmp_path / "a.csv"
    path.write_bytes(file.getvalue().encode())
    assert known(all_rows(path, most, room, "words" if header else "2")) == texts


@quick
@given(texts=st.lists(st.one_of(cells, st.just(None)), max_size=12), final=st.booleans(), **sizes)
def test_parts_cover_every_jsonl_and_tsv_row_once(tmp_path, texts, final, most, room):
    lines = [" \r\n" if text is None else json.dumps({"text": text, "n": 1}) + "\n" for text in texts]
    data = "".join(lines)
    (tmp_path / "a.jsonl").write_text(data if final else data.removesuffix("\n"), newline="")
    wanted = [text for text in texts if text is not None]
    assert known(all_rows(tmp_path / "a.jsonl", most, room)) == wanted
    plain = [text.translate({9: " ", 10: " ", 13: " "}) for text in wanted]
    (tmp_path / "a.tsv").write_text(
        "n\ttext\n" + "".join(f"1\t{text}\n" for text in plain), newline="", encoding="utf-8"
    )
    assert known(all_rows(tmp_path / "a.tsv", most, room)) == plain


@quick
@given(st.lists(st.one_of(cells, st.just(None)), max_size=30), st.integers(1, 9), st.integers(1, 7), st.integers(1, 5))
def test_parts_cover_every_parquet_row_once(tmp_path, texts, group, most, batch):
    from pyarrow.parquet import write_table

    path = tmp_path / "a.parquet"
    write_table(
        pyarrow.table({"n": range(len(texts)), "text": pyarrow.array(texts, pyarrow.string())}),
        path,
        row_group_size=group,
    )
    before, parts.PARQUET_ROWS = parts.PARQUET_ROWS, batch
    try:
        assert known(all_rows(path, most, 1)) == texts
    finally:
        parts.PARQUET_ROWS = before


def test_long_lines_are_bad_rows_or_errors(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 300_000 + b"\nshort\n" + b"y" * (parts.TEXT_LIMIT + 1) + b"\nlast")
    rows = all_rows(path, 5, 1000)
    assert [len(row) for row in known(rows) if row is not None] == [300_000, 5, 4]
    assert "characters" in str(rows[2])
    sources, table = parts.plan_parts(find_inputs([str(path)]), 5)
    whole = parts.WorkPart(0, sources[0], *(int(table[0][name]) for name in ("start", "stop", "first", "rows")))
    assert len(dict(parts.read_part(whole, any_length=True))[2]) == parts.TEXT_LIMIT + 1  # to be truncated later
    monkeypatch.setattr(parts, "LINE_LIMIT", 299_999)
    with pytest.raises(AlbertkitError, match="line of over 299,999 bytes at byte 0"):
        all_rows(path, 5, 1000)


def test_bad_rows_say_why(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": 3}\n{"body": "x"}\n[1]\n{\n{"text": "\\ud800"}\n')
    rows = all_rows(tmp_path / "a.jsonl", 2, 1000)
    for row, why in zip(
        rows, ["contains an int", "no field 'text'", "contains a list", "not JSON", "not UTF-8"], strict=True
    ):
        assert why in str(row)


def test_files_folders_patterns_and_urls_are_found(tmp_path, monkeypatch):
    for name in ("a/x.txt", "a/b/y.jsonl", "a/b/z.csv", "a/.hidden.txt", "a/_SUCCESS", "a/other.bin", "w.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\n")
    monkeypatch.chdir(tmp_path)

    def names(*given: str) -> list[str]:
        return [source.name for source in find_inputs(given)]

    assert names("a") == ["a/b/y.jsonl", "a/b/z.csv", "a/x.txt"]
    assert names("*.txt", "a/*.txt") == ["w.txt", "a/x.txt"]
    assert names("**/*.txt") == ["a/x.txt", "w.txt"]
    assert names(f"{tmp_path}/a/?/[yz].*") == [f"{tmp_path}/a/b/y.jsonl", f"{tmp_path}/a/b/z.csv"]
    assert names(f"file://{tmp_path}/a/*.txt") == [f"file://{tmp_path}/a/x.txt"]
    for name, why in (
        ("nothing.txt", "does not exist"),
        ("no*.txt", "no input file"),
        ("strange://x/y", "cannot be reached"),
    ):
        with pytest.raises(AlbertkitError, match=why):
            find_inputs([name])
    (tmp_path / "p.txt.gz").write_bytes(b"")
    with pytest.raises(AlbertkitError, match="Decompress it first"):
        find_inputs(["p.txt.gz"])


def test_a_changed_file_is_noticed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    (source,), table = parts.plan_parts(find_inputs([str(path)]), 10)
    path.write_text("one\ntwo\nthree\n")
    with pytest.raises(AlbertkitError, match="changed since"):
        list(parts.read_part(parts.get_part(table, [source], 0)))


def test_a_lone_carriage_return_outside_quotes_is_an_error(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,x\n2,y\rz\n")
    with pytest.raises(AlbertkitError, match=r"row 1 of .*a\.csv is not CSV"):
        parts.plan_parts(find_inputs([str(tmp_path / "a.csv")]), 10)


def test_missing_columns_are_errors_or_bad_rows(tmp_path):
    (tmp_path / "a.csv").write_text("id,body\n1,x\n")
    with pytest.raises(AlbertkitError, match="no column 'text'.*id, body"):
        parts.plan_parts(find_inputs([str(tmp_path / "a.csv")]), 10)
    (tmp_path / "a.csv").write_text("text\nx\n", encoding="utf-16")
    with pytest.raises(AlbertkitError, match="a.csv is UTF-16"):
        parts.plan_parts(find_inputs([str(tmp_path / "a.csv")]), 10)
    (tmp_path / "a.csv").write_text('text\nx\n"y\nz\n')
    with pytest.raises(AlbertkitError, match="row 1 of .*a.csv is not CSV .unexpected end of data"):
        parts.plan_parts(find_inputs([str(tmp_path / "a.csv")]), 10)
    (tmp_path / "e.csv").write_text("")
    assert all_rows(tmp_path / "e.csv", 3, 10) == []
    (tmp_path / "a.csv").write_text("id,text\n1,x\n2\n")
    rows = all_rows(tmp_path / "a.csv", 3, 10)
    assert rows[0] == "x" and "has 1 cells" in str(rows[1])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "one\n\ntwo\n"),
        ("a.csv", 'id,text\n1,one\n\n2,\n,\n3,"a\nb"\n'),
        ("b.csv", 'text\none\n\n""\n"a, b"\n'),
        ("a.tsv", "id\ttext\n1\tone\n\n2\t\n\t\n"),
        ("b.tsv", "text\none\n\ntwo\n"),
        ("a.jsonl", '{"text": "one"}\n\n{"text": ""}\n'),
    ],
)
@pytest.mark.parametrize("most", [1, 2, 100])
def test_bulk_work_reads_the_rows_of_the_one_reader(tmp_path, name, content, most):
    (tmp_path / name).write_bytes(content.encode())
    assert all_rows(tmp_path / name, most, 10) == list(read_rows(tmp_path / name))
