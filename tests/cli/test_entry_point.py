"""The command line as people and pipes use it: real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.numpy import load_file

from albertkit.model import AlbertModel
from tests.conftest import english, tiny


def run(*args: str, text: str | bytes = "", ok: bool = True) -> subprocess.CompletedProcess:
    data = text.encode() if isinstance(text, str) else text
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-m", "albertkit", *args], input=data, capture_output=True, env=environment)
    if ok:
        assert done.returncode == 0, done.stderr.decode()
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "one"
    AlbertModel(tiny(vocab_size=3000)).save(path, english())
    return path


def test_plan_prints_the_published_counts():
    out = run("plan", "base").stdout.decode()
    assert "11,683,584 parameters" in out and "\x1b" not in out  # no colour in a pipe
    data = json.loads(run("plan", "xxlarge", "--json").stdout)
    assert data["parameters"]["total"] == 222_595_584 and data["config"]["hidden_size"] == 4096


def test_plan_reads_a_folder(folder):
    assert json.loads(run("plan", str(folder), "--length", "16", "--json").stdout)["config"]["hidden_size"] == 32


@pytest.mark.slow
def test_tokenize_takes_arguments_files_and_pipes(tmp_path):
    want = "[CLS] ▁this ▁is ▁a ▁test [SEP]\n2 48 25 21 1289 3\n"
    assert run("tokenize", "this is a test").stdout.decode() == want
    assert run("tokenize", text="this is a test\n").stdout.decode() == want
    (tmp_path / "t.txt").write_text("This  is a TEST\r\n", encoding="utf-8")
    assert run("tokenize", "--file", str(tmp_path / "t.txt")).stdout.decode() == want
    row = json.loads(run("tokenize", "--json", "--pair", "yes", "naïve").stdout)
    assert row["segments"] == [0] * (len(row["ids"]) - 2) + [1, 1]
    assert [row["text"][a:b] for a, b in row["offsets"][1:2]] == ["naïve"]


def test_tokenize_warns_of_the_wrong_vocabulary():
    done = run("tokenize", "你好世界")
    assert b"cannot read the text" in done.stderr and b"warning" not in done.stdout


@pytest.mark.slow
def test_info_and_convert(folder, tmp_path):
    about = json.loads(run("info", str(folder), "--json").stdout)
    assert about["config"]["hidden_size"] == 32 and about["tokenizer"] == {"kind": "unigram", "tokens": 3000}
    assert b"hidden_size" in run("info", str(folder)).stdout
    run("convert", str(folder), str(tmp_path / "two"))
    again = run("convert", str(folder), str(tmp_path / "two"), ok=False)
    assert again.returncode == 2 and b"exists and is not empty" in again.stderr
    run("convert", str(folder), str(tmp_path / "two"), "--force")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["two"]


@pytest.mark.parametrize(
    ("args", "text", "message"),
    [
        (["plan", "bas"], "", "unknown preset 'bas' (did you mean 'base'?)"),
        (["plan", "--nosuch"], "", "No such option"),
        (["plan", "base", "--length", "513"], "", "length=513 is not available"),
        (["nosuch"], "", "No such command 'nosuch'."),
        (["embde", "x"], "", "No such command 'embde' (did you mean 'embed'?)."),
        (["similar", "x"], "", "1 text passed: similar compares 2 to"),
        (["embed", "x", "-o", "none/x.npy"], "", "none/x.npy cannot be written"),
        (["embed", "x", "-o", "none"], "", "none has no suffix. Use one of .npy"),
        (["info", "nowhere"], "", "nowhere does not exist"),
        (["tokenize", "--file", "nowhere"], "", "nowhere cannot be read"),
        (["tokenize", "--model", "nowhere", "x"], "", "nowhere"),
        (["tokenize", "--file", "x", "text"], "", "Pass one of them"),
        (["tokenize"], b"good\n\xff\xfe\n", "line 2 of stdin is not UTF-8"),
    ],
)
def test_errors_are_one_sentence_and_code_2(args, text, message):
    done = run(*args, text=text, ok=False)
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode == 2 and len(lines) == 1 and message in lines[0], done.stderr.decode()


def test_an_error_of_the_system_names_the_file_and_a_remedy():
    from albertkit.cli.entry_point import system_reason

    denied = PermissionError(13, "Permission denied", "model/config.json")
    assert system_reason(denied) == (
        "model/config.json cannot be read or written: Permission denied. Check its permissions and its disk."
    )
    full = OSError(28, "No space left on device")
    assert system_reason(full).startswith("the output cannot be read or written: No space left on device.")
    assert system_reason(MemoryError()) == "out of memory. Pass fewer or shorter texts."


def test_an_unfinished_training_run_is_named_as_such(tmp_path):
    (tmp_path / "settings.json").write_text("{}")
    done = run("info", str(tmp_path), ok=False)
    assert done.returncode == 2 and b"contains a training run without a model yet. Rerun its command" in done.stderr


def test_every_command_has_help_with_an_example():
    import click

    from albertkit.cli.entry_point import MODULES, app

    for name in MODULES:
        command = app.get_command(click.Context(app), name)
        assert command is not None and command.name == name
        shown = command.get_help(click.Context(command, info_name=name, **app.context_settings))
        assert "Example:" in shown and f"albertkit {name}" in shown, name
        assert all(p.help for p in command.params if isinstance(p, click.Option)), name


def test_help_shows_every_command_in_one_untruncated_line():
    from albertkit.cli.entry_point import MODULES

    shown = run("--help").stdout.decode().splitlines()
    commands = {line.split()[0]: line for line in shown if line.startswith("  ") and line.split()[0] in MODULES}
    assert set(commands) == set(MODULES)
    assert all(line.endswith(".") and not line.endswith("...") for line in commands.values())


def test_tables_align_wide_characters(capsys):
    from albertkit.cli.console import display_width, echo, format_table, shorten

    echo(format_table([("猫", "1"), ("cat", "12")], header=("word", "n")))
    assert capsys.readouterr().out.splitlines() == ["word   n", "猫     1", "cat   12"]
    assert shorten("我想退货 " * 10, 12) == "我想退货 我…" and display_width("我…") == 3


def test_import_is_light():
    """The seam: what runs a model, and the command line, never import torch."""
    code = (
        "import sys, albertkit, albertkit.cli.entry_point, albertkit.artifact, albertkit.tokenizer, albertkit.compress.cost, "
        "albertkit.interop.convert, albertkit.interop.huggingface, albertkit.interop.plbert\n"
        "print([m for m in ('torch', 'transformers', 'onnxruntime') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
    code = (
        "import sys, albertkit.cli.entry_point; print([m for m in ('numpy', 'tokenizers', 'onnx') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_help_imports_no_large_library():
    """So that it is there at once, on any machine."""
    large = "torch numpy scipy sklearn onnx onnxruntime tokenizers transformers matplotlib pyarrow starlette uvicorn"
    code = (
        "import sys; sys.argv = ['albertkit', '--help']\n"
        "from albertkit.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Usage: albertkit" in done.stdout and not set(done.stderr.split()) & set(large.split()), done.stderr


@pytest.mark.slow
def test_without_torch_everything_that_runs_works(folder, tmp_path):
    """A process in which torch cannot be imported still plans, tokenises, describes and converts."""
    blocked = tmp_path / "blocked" / "torch"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    environment = {**os.environ, "PYTHONPATH": str(blocked.parent)}

    def albertkit(*args):
        return subprocess.run(
            [sys.executable, "-m", "albertkit", *args], capture_output=True, text=True, env=environment
        )

    assert albertkit("plan").returncode == 0
    assert albertkit("tokenize", "this is a test").stdout.endswith("1289 3\n")
    assert albertkit("info", str(folder)).returncode == 0
    assert albertkit("convert", str(folder), str(tmp_path / "out")).returncode == 0
    (tmp_path / "old").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "old" / name).write_bytes((folder / name).read_bytes())
    weights = {name: torch.from_numpy(array) for name, array in load_file(folder / "model.safetensors").items()}
    torch.save(weights, tmp_path / "old" / "pytorch_model.bin")
    assert albertkit("convert", str(tmp_path / "old"), str(tmp_path / "out2")).returncode == 0
    done = albertkit("finetune", "classify", "train.tsv", "-o", str(tmp_path / "trained"))
    assert done.returncode == 2 and "pip install 'albertkit[train]'" in done.stderr
