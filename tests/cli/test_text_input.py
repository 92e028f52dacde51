"""Every command reads files by their suffix, each row has one result, and a file name is not a text."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import lzma
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from albertkit import Albert, BlankTextWarning
from albertkit.artifact import ArtifactMetadata, write_artifact
from albertkit.cli.entry_point import app
from albertkit.errors import AlbertkitError
from tests.conftest import tiny
from tests.test_albert import make

ROWS = ["a cat", "", "a dog, and a cat", "  two  ", "日本 cat", "last"]
NAMES = ["t.txt", "t.csv", "t.tsv", "t.jsonl", "t.ndjson", "t.parquet", "one.csv", "one.tsv", "crlf.csv", "bom.txt"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Tiny models for vectors, classes and entities."""
    folder = tmp_path_factory.mktemp("models")
    for task, labels in {"embed": (), "classify": ("good", "bad"), "tag": ("O", "B-X")}.items():
        artifact = make(tiny(vocab_size=3000, max_position_embeddings=64), heads=() if task == "embed" else (task,))
        metadata = dataclasses.replace(ArtifactMetadata(), task=task, labels=labels)
        write_artifact(dataclasses.replace(artifact, metadata=metadata), folder / task)
    return folder


@pytest.fixture
def files(tmp_path):
    """The same rows in every format."""
    quoted = [f'"{row}"' for row in ROWS]
    contents = {
        "t.txt": "\n".join(ROWS) + "\n",
        "t.csv": "id,text\n" + "".join(f"{n},{row}\n" for n, row in enumerate(quoted)),
        "t.tsv": "id\ttext\n" + "".join(f"{n}\t{row}\n" for n, row in enumerate(ROWS)),
        "t.jsonl": "".join(json.dumps({"text": row}) + "\n" for row in ROWS),
        "t.ndjson": "\n\n".join(json.dumps({"text": row}, ensure_ascii=False) for row in ROWS),
        "one.csv": "text\n" + "".join(f"{row}\n" if row else "\n" for row in (r and f'"{r}"' for r in ROWS)),
        "one.tsv": "text\n" + "\n".join(ROWS) + "\n",
        "crlf.csv": "\ufeffid,text\r\n" + "".join(f"{n},{row}\r\n" for n, row in enumerate(quoted)),
        "bom.txt": "\ufeff" + "\r\n".join(ROWS) + "\r\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content.encode())
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "t.txt.xz").write_bytes(lzma.compress(contents["t.txt"].encode()))
    return tmp_path


def parquet(files):
    pyarrow, tables = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    tables.write_table(pyarrow.table({"text": ROWS}), files / "t.parquet")


def run(*arguments, **options):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], **options)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.mark.parametrize("name", [*NAMES, *(f"{name}.gz" for name in NAMES if name != "t.parquet"), "t.txt.xz"])
def test_each_row_of_a_file_has_one_result(models, files, name):
    if name == "t.parquet":
        parquet(files)
    with pytest.warns(BlankTextWarning, match="1 of 6 texts is blank"):
        done = run("embed", "-m", models / "embed", "-f", files / name)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["text"] for row in found] == ROWS
    expected = Albert(models / "embed").embed(ROWS)
    assert np.allclose([row["vector"] for row in found], expected, atol=1e-5)


@pytest.mark.parametrize("suffix", [".npy", ".jsonl"])
def test_each_row_has_one_row_in_the_output_file(models, files, suffix):
    run("embed", "-m", models / "embed", "-f", files / "t.txt", "-o", files / f"out{suffix}")
    rows = np.load(files / "out.npy") if suffix == ".npy" else (files / "out.jsonl").read_text().splitlines()
    assert len(rows) == len(ROWS)


@pytest.mark.parametrize("task", ["classify", "tag"])
@pytest.mark.parametrize("name", ["t.txt", "t.csv", "t.tsv", "t.jsonl", "one.csv.gz"])
def test_each_row_has_one_prediction(models, files, task, name):
    done = run(task, "-m", models / task, "-f", files / name, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(ROWS)
    assert task == "tag" or [row["text"] for row in found] == ROWS


@pytest.mark.parametrize("command", [["tokenize", "--json"], ["embed"], ["similar", "--json"]])
def test_stdin_is_read_like_a_text_file(models, files, command):
    done = run(*command, "-m", models / "embed", input=(files / "t.txt").read_bytes())
    found = [json.loads(line) for line in done.stdout.splitlines()]
    texts = found[0]["texts"] if command[0] == "similar" else [row["text"] for row in found]
    assert texts == ROWS


@pytest.mark.parametrize("command", ["embed", "similar", "fill", "classify", "tag", "intent", "track", "generate"])
def test_a_file_name_is_not_a_text(models, files, monkeypatch, command):
    monkeypatch.chdir(files)
    with pytest.raises(AlbertkitError, match=r"'t.txt' is a file.* pass  -f t.txt .*echo t.txt \|"):
        run(command, "-m", models / "tag", "t.txt")


def test_a_file_name_is_not_a_text_of_commands_without_a_file_option(models, files, monkeypatch):
    monkeypatch.chdir(files)
    run("index", "t.txt", "-o", "t.idx", "-m", models / "embed")
    for command in (
        ["search", "t.idx", "t.csv"],
        ["explain", "-m", models / "classify", "t.txt"],
        ["answer", "-m", models / "tag", "t.txt", "--context", "one.tsv"],
        ["tokenize", "t.txt"],
    ):
        with pytest.raises(AlbertkitError, match="is a file, but a text is expected"):
            run(*command)
    assert json.loads(run("embed", "-m", models / "embed", input=b"t.txt\n").stdout)["text"] == "t.txt"
    assert len(run("embed", "-m", models / "embed", "x" * 5000).stdout) > 5000


@pytest.mark.parametrize("name", ["t.txt", "t.csv", "t.tsv", "t.jsonl", "one.csv.gz"])
def test_index_and_cluster_read_by_suffix(models, files, name):
    output = files / "notes.idx"
    counts = json.loads(run("index", files / name, "-o", output, "-m", models / "embed", "--json").stdout)
    assert counts["total"] == 5
    hits = json.loads(run("search", output, "cat", "-k", "10", "--mode", "keyword", "--json").stdout)["hits"]
    assert sorted(hit["text"] for hit in hits) == sorted(["a cat", "a dog, and a cat", "日本 cat"])
    clusters = run("cluster", files / name, "-k", "1", "-m", models / "embed", "--json").stdout
    assert {one["text"] for one in json.loads(clusters)["texts"]} == {row.strip() for row in ROWS if row}


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_files_without_texts_leave_no_index(models, tmp_path, content):
    (tmp_path / "notes.txt").write_text(content)
    with pytest.raises(AlbertkitError, match=r"contain no texts\. Name files with texts"):
        run("index", tmp_path / "notes.txt", "-o", tmp_path / "notes.idx", "-m", models / "embed")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_queries_are_read_by_suffix(models, files):
    run("index", files / "t.txt", "-o", files / "notes.idx", "-m", models / "embed")
    queries = [row for row in ROWS if row.strip()]
    (files / "q.jsonl").write_text("".join(json.dumps({"text": query}) + "\n" for query in queries))
    done = run("search", files / "notes.idx", "-f", files / "q.jsonl", "--mode", "keyword", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["query"] for row in found] == queries and found[0]["hits"]
    with pytest.raises(AlbertkitError, match=f"query 2 of {len(ROWS)} is blank"):
        run("search", files / "notes.idx", "-f", files / "t.csv", "--mode", "keyword")


def test_prune_reads_its_vocabulary_from_a_column(models, files):
    (files / "v.tsv").write_text("sentence\tlabel\na cat\t1\nthe dog\t0\n")
    line = ["prune", models / "embed", files / "small", "--vocabulary", files / "v.tsv"]
    with pytest.raises(AlbertkitError, match="has no column 'text'.*--text-column"):
        run(*line)
    run(*line, "--text-column", "sentence")
    assert (files / "small" / "model.safetensors").is_file()


def test_both_texts_of_a_pair_are_printed(models):
    done = run("classify", "-m", models / "classify", "a cat", "--pair", "a dog")
    assert done.stdout.rstrip("\n").split("\t")[2:] == ["a cat", "a dog"]
    done = run("classify", "-m", models / "classify", "a cat", "--pair", "a dog", "--json")
    assert json.loads(done.stdout)["pair"] == "a dog"


def test_a_text_column_needs_columns(models, files):
    with pytest.raises(AlbertkitError, match="t.txt is plain text.*Omit --text-column"):
        run("embed", "-m", models / "embed", "-f", files / "t.txt", "--text-column", "body")
    done = run("embed", "-m", models / "embed", "--text-column", "body", input=b'{"body": "one"}\n')
    assert json.loads(done.stdout)["text"] == "one"


@pytest.mark.parametrize(
    "command", [["static", "MODEL", "out"], ["export", "MODEL", "out.onnx"], ["plan", "MODEL", "--memory", "64MB"]]
)
def test_a_text_column_of_sample_texts_needs_a_file_with_columns(models, files, command):
    line = [models / "embed" if word == "MODEL" else word for word in command]
    with pytest.raises(AlbertkitError, match="t.txt is plain text.*Omit --text-column"):
        run(*line, "-f", files / "t.txt", "--text-column", "body")
    with pytest.raises(AlbertkitError, match="--text-column body was passed without --file"):
        run(*line, "--text-column", "body")


def test_a_folder_with_a_column_keeps_its_text_files(models, files):
    folder = files / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("a plain line\n")
    (folder / "b.jsonl").write_text('{"question": "a question"}\n')
    (folder / "c.csv").write_text("question,answer\nwhy,so\n")
    line = ["index", folder, "-o", files / "n.idx", "-m", models / "embed", "--text-column", "question", "--json"]
    assert json.loads(run(*line).stdout)["total"] == 3


def test_context_is_one_text(monkeypatch, files):
    from albertkit.cli.arguments import read_whole

    assert read_whole(files / "bom.txt") == "\n".join(ROWS)
    with pytest.raises(AlbertkitError, match="t.jsonl contains many texts"):
        read_whole(files / "t.jsonl")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("über\n北".encode())))
    assert read_whole(None) == "über\n北"
