"""The newcomer's path: README has it, and the program that walks it can fail."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT, program


@pytest.fixture(scope="module")
def bench():
    return program("bench/newcomer")


@pytest.fixture
def shell(bench, tmp_path):
    found = bench.Shell(tmp_path, bench.environment(None))
    yield found
    found.close()


def test_readme_has_the_whole_path(bench):
    stages = bench.path(ROOT / "README.md")
    assert stages["first vector"][0] == "make run"
    assert any(line.startswith("albertkit finetune ") for line in stages["first classifier"])
    serve, *asks = stages["served model"]
    assert serve.startswith("albertkit serve ") and asks and all(line.startswith("curl ") for line in asks)
    for line in stages["first classifier"]:  # the data is in the clone
        assert all((ROOT / word).is_file() for word in line.split() if word.startswith("runs/")), line
    install, tune = bench.whole(ROOT / "README.md", stages["first classifier"])
    assert "train" in install and "--freeze" not in tune and "-o messages-whole" in tune


def test_a_heading_that_is_gone_is_told(bench, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text(encoding="utf-8").replace("### A server", "### Serving"))
    with pytest.raises(SystemExit, match="no heading '### A server'"):
        bench.path(readme)


def test_only_lines_of_bash_blocks_count(bench):
    text = "\n### A server\n\nwords\n\n```bash\n# a remark\none 'x#y'   # why\n```\n```python\nno\n```\n```bash\ntwo\n```\n## Next\n```bash\nthree\n```\n"
    assert bench.commands(text, "### A server") == ["one 'x#y'", "two"]


def test_the_shell_keeps_its_folder_and_tells_failures(bench, shell, tmp_path):
    assert shell.line("mkdir here && cd here") == ""
    assert shell.line("pwd").strip() == str(tmp_path / "here")
    assert shell.line("printf no-line-end") == "no-line-end"
    with pytest.raises(SystemExit, match="ended with 3"):
        shell.line("echo why && (exit 3)")


def test_a_line_that_takes_too_long_ends(bench, shell, monkeypatch):
    monkeypatch.setattr(bench, "LIMIT", 0.2)
    with pytest.raises(SystemExit, match="gone, or it took over"):
        shell.line("sleep 30")


def test_stages_add_up(bench, shell, tmp_path, capsys):
    found = bench.walk({"one": ["echo first", "echo second"], "two": ["echo third"]}, shell)
    assert [one["line"] for one in found["one"]["lines"]] == ["echo first", "echo second"]
    assert found["one"]["printed"] == "second" and "== two: third" in capsys.readouterr().out
    bench.keep(tmp_path / "n.json", {"clone": {"seconds": 1.0}, "one": {"seconds": 2.0}}, {"albertkit": "0"})
    assert '"one": 3.0' in (tmp_path / "n.json").read_text()
