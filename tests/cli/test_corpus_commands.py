"""The verbs `corpus` and `tokenizer`."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from albertkit.cli.console import stage_progress_bar
from albertkit.cli.entry_point import app
from albertkit.data.shards import Shards
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer
from tests.data.sample_texts import contents, text


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "a.txt").write_text(text(150), encoding="utf-8")
    run("tokenizer", folder / "a.txt", "-o", folder / "vocabulary", "--vocab-size", 150)
    return folder


def run(*args, **options):
    result = CliRunner().invoke(app, [str(arg) for arg in args], **options)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_corpus_says_what_it_did(place, tmp_path):
    args = ("corpus", place / "a.txt", "-o", tmp_path / "out", "--tokenizer", place / "vocabulary", "--workers", 1)
    said = run(*args, "--min-tokens", 5)
    assert "150 documents in" in said and "dropped: 0 duplicate documents" in said
    shards = Shards.open(tmp_path / "out", verify=True)
    assert shards.manifest["settings"]["min_tokens"] == 5
    assert shards.manifest["inputs"][0]["bytes"] == (place / "a.txt").stat().st_size
    assert "is complete" in run(*args, "--min-tokens", 5)
    with pytest.raises(AlbertkitError, match=r"min_tokens \(5 there, 6 now\)"):
        run(*args, "--min-tokens", 6)
    data = json.loads(run(*args, "--min-tokens", 6, "--force", "--json"))
    assert data["counts"]["documents_read"] == 150 and not data["is_complete"] and data["shards"] >= 1


def test_dry_run_writes_nothing(place, tmp_path):
    args = ("corpus", place, "-o", tmp_path / "out", "--tokenizer", place / "vocabulary", "--dry-run")
    assert "nothing was written" in run(*args) and not (tmp_path / "out").exists()
    data = json.loads(run(*args, "--json"))
    run(*args[:-1], "--workers", 1)
    real = Shards.open(tmp_path / "out").manifest["counts"]["tokens_read"]
    assert data["inputs"] == 1 and 0.8 < data["tokens"] / real < 1.2


def test_stdin(place, tmp_path):
    """A pipe gives the shards that the file gives."""
    vocabulary = str(place / "vocabulary")
    command = [sys.executable, "-m", "albertkit.cli.entry_point", "corpus", "-", "-o", str(tmp_path / "piped")]
    with (place / "a.txt").open("rb") as file:
        done = subprocess.run([*command, "--tokenizer", vocabulary, "--workers", "1"], stdin=file, capture_output=True)
    assert done.returncode == 0, done.stderr
    run("corpus", place / "a.txt", "-o", tmp_path / "file", "--tokenizer", vocabulary, "--workers", 1)
    piped, file = contents(tmp_path / "piped"), contents(tmp_path / "file")
    assert piped.pop("manifest.json") != file.pop("manifest.json") and piped == file
    done = subprocess.run(
        [*command, "--tokenizer", vocabulary], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 2 and "stdin" in done.stderr and done.stderr.count("\n") == 1


def test_an_error_is_one_sentence(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\x00\x01\x02")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "albertkit.cli.entry_point",
            "corpus",
            str(tmp_path / "a.txt"),
            "-o",
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("albertkit: line 1 of ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_tokenizer(tmp_path, kind):
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps({"body": line}) for line in text(80).split("\n")), encoding="utf-8"
    )
    args = ("tokenizer", tmp_path / "a.jsonl", "--text-column", "body", "--vocab-size", 200, "--kind", kind)
    data = json.loads(run(*args, "-o", tmp_path / "one", "--json"))
    made = Tokenizer.load(tmp_path / "one")
    assert data == {"tokenizer": str(tmp_path / "one"), "kind": kind, "vocab_size": made.vocab_size}
    assert made.kind == kind and made.lower and 50 < made.vocab_size <= 200
    assert made.decode(made.ids_batch(["The old river."])[0]) == "the old river."
    assert "tokens" in run(*args, "-o", tmp_path / "two", "--cased", "--accents", "--max-mb", 1)
    assert not Tokenizer.load(tmp_path / "two").lower
    with pytest.raises(AlbertkitError, match="exists and is not empty. Choose another folder.$"):
        run(*args, "-o", tmp_path / "one")
    assert json.loads(run("corpus", tmp_path / "a.jsonl", "--text-column", "body", "--min-tokens", 1, "--workers", 1, "-o",
                          tmp_path / "corpus", "--tokenizer", tmp_path / "one", "--json"))["counts"]["tokens"]  # fmt: skip


def test_tokenizer_of_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(AlbertkitError, match="no vocabulary could be trained"):
        run("tokenizer", tmp_path / "a.txt", "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with stage_progress_bar("B") as step:
        step("inputs", 100, 100, 0)
        step("corpus", 10, 100, 5_000_000)
        step("corpus", 100, 100, 9_000_000)
    assert "corpus" in shown.getvalue()
