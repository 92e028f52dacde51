"""Control characters of texts, labels and names never reach a terminal: they are printed as escapes."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pty
import re
import subprocess
import sys

import pytest

from albertkit import Albert, Index, Record
from albertkit.artifact import ArtifactMetadata, write_artifact
from albertkit.cli import console, entry_point
from albertkit.printable import escape_controls, escape_json
from albertkit.serve.server import JsonFormatter
from tests.conftest import ROOT, tiny
from tests.test_albert import make

HOSTILE = "\x1b]0;title\x07 \x1b[2J\x1b[31mred\r\x08\x7f \x9b31m\x85 \u202eetad\u2066 cat \udcff end"
NAME = "a\x1b[31mb\u202ec"  # a file name may not have every character
STORED = HOSTILE.replace("\udcff", "")  # files are UTF-8
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tiny models with hostile labels and history, an index and files with hostile texts, all with hostile names."""
    folder = tmp_path_factory.mktemp(NAME)
    for task, labels in {
        "embed": (),
        "classify": (STORED, "bad"),
        "tag": ("O", f"B-{STORED}"),
        "pretrain": (),
    }.items():
        head = {"embed": (), "pretrain": ("mlm",)}.get(task, (task,))
        artifact = make(tiny(vocab_size=3000, max_position_embeddings=64), heads=head)
        metadata = dataclasses.replace(ArtifactMetadata(), task=task, labels=labels, history=({"step": STORED},))
        write_artifact(dataclasses.replace(artifact, metadata=metadata), folder / task)
    (folder / "texts.jsonl").write_text(json.dumps({"text": HOSTILE, "id": HOSTILE}) + "\n", encoding="utf-8")
    (folder / f"{NAME}.txt").write_bytes(f"{HOSTILE} one\n{HOSTILE} two\n".encode("utf-8", "replace"))
    with Index.create(folder / f"{NAME}.idx", Albert(folder / "embed"), model_path=str(folder / "embed")) as index:
        index.add([Record(STORED, STORED)])
    return folder


COMMANDS = {
    "similar": ["similar", HOSTILE, f"{HOSTILE} b", "-m", "embed"],
    "embed": ["embed", HOSTILE, "-m", "embed"],
    "fill": ["fill", f"{HOSTILE} [MASK] b", "-m", "pretrain"],
    "tokenize": ["tokenize", HOSTILE],
    "classify": ["classify", HOSTILE, "-m", "classify"],
    "tag": ["tag", HOSTILE, "-m", "tag"],
    "explain": ["explain", HOSTILE, "-m", "classify"],
    "explain-tag": ["explain", HOSTILE, "-m", "tag"],
    "info": ["info", "classify"],
    "index": ["index", "texts.jsonl", f"{NAME}.txt", "--id-column", "id", "-m", "embed", "-o", f"{NAME}.idx"],
    "search": ["search", f"{NAME}.idx", "-f", "texts.jsonl"],
    "cluster": ["cluster", f"{NAME}.txt", "-m", "embed"],
}


def run(capfd, monkeypatch, folder, *arguments):
    """Run the real entry point in this process; stdout, stderr and the exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["albertkit", *arguments])
    with pytest.raises(SystemExit) as stopped:
        entry_point.main()
    return *capfd.readouterr(), stopped.value.code


@pytest.mark.parametrize("name", COMMANDS)
def test_results_show_control_characters_as_escapes(capfd, monkeypatch, folder, name):
    out, err, code = run(capfd, monkeypatch, folder, *COMMANDS[name])
    assert code == 0, err
    assert not RAW.search(out + err), RAW.search(out + err)
    assert name == "tokenize" or r"\x1b" in out or r"\u001b" in out


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("embed", "index")])
def test_json_has_escapes_and_the_same_text(capfd, monkeypatch, folder, name):
    out, err, code = run(capfd, monkeypatch, folder, *COMMANDS[name], "--json")
    assert code == 0, err
    assert not RAW.search(out + err), RAW.search(out + err)
    first = json.loads(out.splitlines()[0])
    if name in ("similar", "tokenize", "classify"):
        assert HOSTILE in (first.get("text"), *first.get("texts", ()))


@pytest.mark.parametrize(
    "arguments",
    [
        ["embed", "-f", f"{NAME}.missing"],
        ["search", f"{NAME}.missing", "cat"],
        ["embed", "a", "-m", f"{NAME}\n{HOSTILE}"],
        ["embed", f"--{HOSTILE}"],
        [HOSTILE],
        ["cluster", f"{NAME}.txt", "-m", "embed", "-k", HOSTILE],
        ["index", f"{NAME}.txt", "-o", f"{NAME}.txt/{NAME}"],
    ],
)
def test_an_error_is_one_line_with_escapes(capfd, monkeypatch, folder, arguments):
    out, err, code = run(capfd, monkeypatch, folder, *arguments)
    assert code == 2 and not out
    assert not RAW.search(err) and r"\x1b" in err
    assert err.count("\n") == 1


def test_an_error_of_several_lines_has_line_breaks_and_quotes_are_escaped(capfd, monkeypatch, folder):
    rows = [{"text": "a\nb", "label": "x"}, {"text": f"{HOSTILE}\nc", "label": ["\n", 5]}, {"text": 5, "label": "y"}]
    name = f"{NAME}\n.jsonl"
    (folder / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    out, err, code = run(capfd, monkeypatch, folder, "finetune", "classify", name, "-o", "out", "--freeze")
    assert code == 2 and not out and not RAW.search(err)
    first, *others = err.splitlines()
    assert first.startswith("albertkit: ") and r"\n.jsonl has " in first and first.endswith(":")
    assert others and all(line.startswith("  line ") for line in others)


def test_a_warning_of_another_library_is_one_line(capfd):
    entry_point.show_warning(type("Foreign", (UserWarning,), {"__module__": "sklearn.x"})("too few\n\n  steps"))
    entry_point.show_warning(UserWarning("quoted: a\nb"))
    assert capfd.readouterr().err == "warning: too few steps\nwarning: quoted: a\\nb\n"


def test_a_terminal_gets_our_styles_and_no_sequence_of_a_text(folder):
    command = [sys.executable, "-m", "albertkit", "cluster", f"{NAME}.txt", "-m", "embed"]
    reader, writer = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(command, cwd=folder, stdout=writer, stderr=subprocess.PIPE, env=environment) as process:
        os.close(writer)
        seen = b""
        try:
            while chunk := os.read(reader, 65536):
                seen += chunk
        except OSError:  # Linux reports the end of a terminal as an error
            pass
        assert process.wait() == 0
    os.close(reader)
    text = seen.decode().replace("\r\n", "\n")
    assert "\x1b[1m" in text  # a title in bold
    assert not RAW.search(re.sub(r"\x1b\[[01]m", "", text))


def test_a_line_of_the_server_log_has_escapes():
    record = logging.LogRecord("albertkit.serve", logging.ERROR, "", 0, STORED, (), None)
    record.facts = {"index": NAME, "reason": STORED}
    line = JsonFormatter().format(record)
    assert not RAW.search(line)
    assert json.loads(line)["reason"] == json.loads(line)["event"] == STORED


def test_a_text_cannot_imitate_a_style():
    styled = console.style(f"{HOSTILE}\x1b[1m", bold=True)
    assert console.MARK not in HOSTILE and len(console.MARK) >= 32
    assert styled.count(console.MARK) == 2  # the beginning and the end of the style


def test_only_the_console_prints():
    for path in sorted((ROOT / "src" / "albertkit" / "cli").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name != "console.py":
            assert not re.search(r"click\.(echo|secho|style)|\bprint\(|sys\.std(out|err)\.write", text), path.name


def test_escapes_keep_lines_tabs_and_letters_of_every_script():
    plain = "a\tb\nÄ 北京 \u200d👩‍🚀 עברית العربية \u00ad"
    assert escape_controls(plain) == plain
    assert escape_controls("a\tb\nc", keep="") == r"a\tb\nc"
    assert escape_controls("\x1b\x85\u202e\udcff") == r"\x1b\x85\u202e\udcff"
    assert json.loads(escape_json(json.dumps("\x7f\x9b\u202e\udcff", ensure_ascii=False))) == "\x7f\x9b\u202e\udcff"
