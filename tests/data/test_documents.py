"""Files into blocks and documents: formats, places, limits, and what is wrong with a file."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sys

import pytest

from albertkit.data import documents as documents_module
from albertkit.data import documents as reading
from albertkit.data.documents import parse_documents, read_blocks, read_paragraphs
from albertkit.errors import AlbertkitError
from albertkit.text_reader import find_text_files
from tests.data.sample_texts import text


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 2000)


@pytest.fixture
def limit(monkeypatch):
    monkeypatch.setattr(reading, "DOCUMENT_LIMIT", 6000)
    monkeypatch.setattr(documents_module, "DOCUMENT_LIMIT", 6000)


def read(paths, field=None, skip_bad=False):
    return [
        d
        for block in read_blocks(find_text_files(paths, field), field)
        for d in parse_documents(block, skip_bad).paragraphs
    ]


def plain(whole: str) -> list[list[str]]:
    return [document.split("\n") for document in whole.split("\n\n")]


PACKS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", PACKS)
def test_compressed_text_gives_the_same_documents(tmp_path, suffix):
    whole = text(40)
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACKS[suffix](whole.encode()))
    found = list(read_blocks(find_text_files([path])))
    assert len(found) > 5 and read([path]) == plain(whole)
    assert found[-1].bytes_read == path.stat().st_size


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_and_marks_at_the_beginning(tmp_path, end):
    whole = text(30)
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + (whole + "\n\n").replace("\n", end).encode())
    assert read([tmp_path / "a.txt"]) == plain(whole)


def test_jsonl_documents_are_in_the_text_column(tmp_path):
    rows = plain(text(40))
    lines = [json.dumps({"id": i, "body": "\n\n".join(row), "n": None}) for i, row in enumerate(rows)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + '\n\n{"body": null}\n{"body": " "}', encoding="utf-8")
    assert read([tmp_path / "a.jsonl"], "body") == rows
    (tmp_path / "b.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert read([tmp_path / "b.gz"], "body") == rows  # with a column, files without a known suffix are JSONL
    with pytest.raises(AlbertkitError, match=r"line 1 of .* has no field 'bodi' \(did you mean 'body'\?\)"):
        read([tmp_path / "a.jsonl"], "bodi")
    with pytest.raises(AlbertkitError, match="contains an int as 'id'"):
        read([tmp_path / "a.jsonl"], "id")


@pytest.mark.parametrize("line", ["{", "[1]", '{"text": 3}', '{"a": "b"}', "[" * 5000, '{"text": "a\\u0000b"}'])
def test_bad_json_lines_are_errors_or_skipped(tmp_path, line):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "good"}}\n{line}\n{{"text": "too"}}\n')
    with pytest.raises(AlbertkitError, match=r"2 of .*a\.jsonl"):
        read([tmp_path / "a.jsonl"])
    assert read([tmp_path / "a.jsonl"], skip_bad=True) == [["good"], ["too"]]


def test_lone_surrogates_in_json_are_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b"}\n')
    assert len(read([tmp_path / "a.jsonl"])) == 1


def test_parquet_rows_are_documents(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    rows = plain(text(300))
    table = pyarrow.table({"body": ["\n".join(r) for r in rows] + [None, ""], "n": list(range(302))})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=37)
    found = list(read_blocks(find_text_files([tmp_path / "a.parquet"]), "body"))
    assert len(found) > 5 and read([tmp_path / "a.parquet"], "body") == rows
    assert list(read_blocks(find_text_files([tmp_path / "a.parquet"]), "body", found[3].end)) == found[4:]
    with pytest.raises(AlbertkitError, match="has no column 'text'; its columns: body, n"):
        read([tmp_path / "a.parquet"])
    with pytest.raises(AlbertkitError, match="column 'n' of .* contains int64"):
        read([tmp_path / "a.parquet"], "n")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(AlbertkitError, match="is not a complete Parquet file"):
        read([tmp_path / "b.parquet"])
    (tmp_path / "c.parquet.gz").write_bytes(b"")
    with pytest.raises(AlbertkitError, match="compressed Parquet"):
        find_text_files([tmp_path / "c.parquet.gz"])


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_reading_can_begin_at_any_block(tmp_path, name, limit):
    whole = text(30) + "\n\n" + "\n".join(f"line {i} of a long document" for i in range(900)) + "\n\nend"
    if name == "a.jsonl":
        whole = "\n".join(json.dumps({"text": "\n".join(d)}) for d in plain(text(30)))
    for copy in (name, f"b{name}"):
        (tmp_path / copy).write_text(whole, encoding="utf-8")
    sources = find_text_files([tmp_path / name, tmp_path / f"b{name}"])
    found = list(read_blocks(sources))
    assert [b.end for b in found if b.start.source == 0][:-1] == [b.start for b in found if b.start.source == 0][1:]
    for number, block in enumerate(found):
        assert [b.data for b in read_blocks(sources, None, block.start)] == [b.data for b in found[number:]]
    assert b"".join(b.data for b in found if b.start.source == 1).decode() == whole


def test_blocks_do_not_depend_on_how_bytes_arrive(tmp_path, monkeypatch):
    whole = text(30).encode()
    (tmp_path / "a.txt").write_bytes(whole)
    wanted = [block.data for block in read_blocks(find_text_files([tmp_path / "a.txt"]))]

    class Dripping(io.BytesIO):
        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[:7])

    monkeypatch.setattr(sys, "stdin", type("In", (), {"buffer": Dripping(whole)}))
    assert [block.data for block in read_blocks(find_text_files(["-"]))] == wanted


def test_a_long_document_becomes_several_marked_parts(tmp_path, limit):
    lines = [f"paragraph {i} of one document" for i in range(800)]
    (tmp_path / "a.txt").write_text("short\n\n" + "\n".join(lines) + "\n\nlast")
    made = [parse_documents(block) for block in read_blocks(find_text_files([tmp_path / "a.txt"]))]
    assert [d.is_inside for d in made][:2] == [False, False] and sum(d.is_inside for d in made) >= 3
    flat = [d for part in made for d in part.paragraphs]
    assert flat[0] == ["short"] and flat[-1] == ["last"] and [p for d in flat[1:-1] for p in d] == lines


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz"])
def test_a_line_over_the_limit_is_an_error(tmp_path, limit, name):
    whole = b'{"text": "one"}\n' + b"x" * 20_000 + b"\n"
    (tmp_path / name).write_bytes(gzip.compress(whole) if name.endswith("gz") else whole)
    with pytest.raises(AlbertkitError, match=r"line 2 of .* has over 6,000 bytes. Write one paragraph per line"):
        read([tmp_path / name], skip_bad=True)


@pytest.mark.parametrize("junk", [b"\xff\xfe\x00\x01", b"a\0b", "ünïcode".encode("latin-1"), "text".encode("utf-16")])
def test_binary_lines_are_errors_or_skipped(tmp_path, junk):
    (tmp_path / "a.txt").write_bytes(b"good\n\n" + junk + b"\nalso good\n")
    with pytest.raises(AlbertkitError, match=r"line 3 of .* (is not UTF-8|contains zero bytes)"):
        read([tmp_path / "a.txt"])
    made = [parse_documents(b, skip_bad=True) for b in read_blocks(find_text_files([tmp_path / "a.txt"]))]
    assert made[0].bad_lines == 1 and made[0].paragraphs == [["good"], ["also good"]]


def test_errors_name_skip_bad_only_to_callers_that_have_it(tmp_path):
    """`albertkit tokenizer` has no such option."""
    (tmp_path / "a.txt").write_bytes("好".encode("gb18030"))
    with pytest.raises(AlbertkitError, match="convert it to UTF-8.$"):
        list(read_paragraphs(find_text_files([tmp_path / "a.txt"]), None))
    with pytest.raises(AlbertkitError, match="convert it to UTF-8. --skip-bad skips such lines.$"):
        read([tmp_path / "a.txt"])
    (tmp_path / "a.txt").write_text("good", encoding="utf-16")
    with pytest.raises(AlbertkitError, match="is UTF-16"):
        read([tmp_path / "a.txt"], skip_bad=True)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_damaged_compressed_files_are_errors(tmp_path, suffix):
    whole = PACKS[suffix](text(200).encode())
    for name, data in (("cut", whole[:-40]), ("junk", b"not packed at all"), ("flip", _flip(whole))):
        path = tmp_path / f"{name}.txt{suffix}"
        path.write_bytes(data)
        with pytest.raises(AlbertkitError, match="cannot be decompressed|is not UTF-8|contains zero bytes"):
            read([path])


def _flip(data: bytes) -> bytes:
    at = len(data) * 2 // 3
    return data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]


def test_other_compressions_are_an_error_with_the_remedy(tmp_path):
    (tmp_path / "a.txt.zst").write_bytes(b"")
    with pytest.raises(AlbertkitError, match="only .gz, .xz are supported. Decompress it"):
        read([tmp_path / "a.txt.zst"])


def test_folders_are_walked_in_order(tmp_path):
    for name in ("b/z.txt", "b/a.jsonl", "a.txt.xz", ".hidden.txt", ".git/x.txt", "picture.png", "c.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    names = [source.name[len(str(tmp_path)) + 1 :] for source in find_text_files([tmp_path])]
    assert names == ["a.txt.xz", "c.parquet", "b/a.jsonl", "b/z.txt"]
    forms = [(source.format, source.compression) for source in find_text_files([tmp_path])]
    assert forms == [("text", ".xz"), ("parquet", ""), ("jsonl", ""), ("text", "")]


def test_inputs_that_are_no_files_are_errors(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(AlbertkitError, match="no text file was found"):
        find_text_files([tmp_path / "empty"])
    with pytest.raises(AlbertkitError, match="cannot be read: No such file"):
        find_text_files([tmp_path / "nothing.txt"])
    with pytest.raises(AlbertkitError, match="not a regular file"):
        find_text_files(["/dev/null"])
    with pytest.raises(AlbertkitError, match="stdin was passed twice"):
        find_text_files(["-", "-"])


def test_a_file_that_changes_is_noticed(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    sources = find_text_files([tmp_path / "a.txt"])
    (tmp_path / "a.txt").write_text("another")
    with pytest.raises(AlbertkitError, match="changed while"):
        list(read_blocks(sources))


def test_paragraphs_stop_at_the_byte_limit(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(text(60, seed=ord(name[0])), encoding="utf-8")
    sources = find_text_files([tmp_path])
    whole = list(read_paragraphs(sources, None))
    some = [t for t, _ in read_paragraphs(sources, None, max_bytes=8000)]
    assert len(some) < len(whole) / 2 and any("Document 98" in t for t in some)
    assert whole[-1][1] == sum(source.size for source in sources)
