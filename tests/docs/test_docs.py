"""README, its Chinese twin and docs: in step with each other, with the program, and runnable."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
import torch
from matplotlib.figure import Figure

import albertkit
from albertkit.builtin import BUILTINS
from albertkit.cli.entry_point import app
from albertkit.compress import benchmark, planner
from albertkit.options import Options
from albertkit.serve import server as serving
from tests.conftest import ROOT, draw_nothing, program
from tests.docs.doc_commands import NOT_RUN, DocShell, here, joined, once, write_files
from tests.docs.shown_output import is_exact, missing_lines, shown_after
from tests.docs.test_twins import called_names, command_shapes, heading_levels, line_shapes

PAGES = sorted(p for p in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ELSEWHERE = {  # each section has its own namespace; that test runs them
    "docs/understand/albert.md": "tests/docs/test_tutorial.py",
    "docs/zh/understand/albert.md": "tests/docs/test_tutorial.py",
}
SHOWN = {  # kinds of blocks that are only looked at
    "py": "needs another program; the sentence before it says which",
    "text": "what a command prints",
    "pycon": "an example of a docstring, which test_api_examples.py runs",
    "json": "what a server answers",
    "js": "part of a web page; tests/web/test_browser.py makes the same calls in Chromium",
    "yaml": "a file of another program",
    "dockerfile": "a file of another program",
}


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.S | re.M)


SCRIPTS = sorted([*(ROOT / "runs").glob("*.sh"), *(ROOT / "studies").rglob("*.sh")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_commands_of_a_script_have_known_options(script):
    """Scripts that take hours are not run, but each of their commands is parsed."""
    text = script.read_text(encoding="utf-8").replace("\\\n", " ")
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)  # ${MINUTES:-25}
    text = re.sub(r"\$\{\w+:\+(--[a-z-]+) [^}]*\}", r"\1 1", text)  # ${EPOCHS:+--epochs "$EPOCHS"}
    text = re.sub(r'"\$\{\w+\[@\]\}"', "", text)  # "${model[@]}"
    for line in re.findall(r"^ *(?:show )?albertkit (\w+ .*)$", text, re.M):
        name, *words = itertools.takewhile(lambda word: word not in (">", "|", "&"), shlex.split(line))
        command = app.get_command(click.Context(app), name)
        assert command is not None, line
        command.make_context(name, words, parent=click.Context(app, **app.context_settings))


READMES = ("README.md", "README.zh-CN.md")


def test_the_two_readmes_are_in_step():
    """Headings, commands, calls, pictures and links are the same; a link may lead to the Chinese twin."""
    english, chinese = (ROOT / name for name in READMES)
    for shape_of in (heading_levels, called_names, command_shapes):
        assert shape_of(english) == shape_of(chinese)
    assert line_shapes(table_commands(READMES[0])) == line_shapes(table_commands(READMES[1]))
    texts = [page.read_text(encoding="utf-8") for page in (english, chinese)]
    links = [re.findall(r"\]\(([^)]+)\)", text.split("\n", 3)[3]) for text in texts]
    assert links[0] == [link.replace("docs/zh/", "docs/") for link in links[1]]
    assert all(text.count("\n") <= 120 for text in texts)


def table_commands(name: str) -> list[str]:
    """The commands of README's table of tasks."""
    return re.findall(r"^\|[^|]*\| `(albertkit [^|]*)` \|[^|]*\|$", (ROOT / name).read_text(encoding="utf-8"), re.M)


@pytest.fixture(scope="module")
def generate():
    return program("docs/generate")


def test_generated_pages_are_fresh(generate):
    for name, make in generate.PAGES.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == make(), f"{name} is stale; run  make docs"


def test_tables_in_pages_are_fresh(generate):
    pages = {path: path.read_text(encoding="utf-8") for path in generate.marked_pages()}
    for path, text in pages.items():
        assert generate.fill(text) == text, f"{path.name} is stale; run  make docs"
    used = [name for text in pages.values() for _, name, _ in generate.MARKED.findall(text)]
    assert set(used) == set(generate.TABLES), "tables that no page shows, or the other way round"


def test_tables_of_results_have_at_most_eight_columns():
    for path in sorted((ROOT / "docs" / "results").glob("*.md")):
        for line in re.findall(r"^\|.*\|$", path.read_text(encoding="utf-8"), re.M):
            assert len(re.findall(r"(?<!\\)\|", line)) <= 9, f"{path.name}: {line[:80]}"


@pytest.fixture(scope="session")
def doc_files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("docs") / "shell")


@pytest.fixture
def shell(doc_files, tmp_path, monkeypatch):
    """A folder of its own with all the pages name."""
    folder = tmp_path / "here"
    shutil.copytree(doc_files, folder, copy_function=os.link)  # whoever writes a file writes a new one
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr(Figure, "savefig", draw_nothing)
    monkeypatch.setattr(benchmark, "typical_seconds", once)
    monkeypatch.setattr(benchmark, "measure_folder", here)
    monkeypatch.setattr(planner, "measure_folder", here)
    monkeypatch.setattr(serving, "bind", lambda settings: [None])
    monkeypatch.setattr(serving, "address", lambda settings, listener: "http://127.0.0.1:8080")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    shell = DocShell()
    monkeypatch.setattr(serving, "listen", shell.served)
    yield shell
    shell.closing.close()
    torch.set_num_threads(threads)


def pages_with(kind: str) -> list:
    """Pages with blocks of a kind, but those that another test runs."""
    here = [p for p in PAGES if not any(p.is_relative_to(ROOT / folder) for folder in ELSEWHERE)]
    return [pytest.param(p, id=str(p.relative_to(ROOT))) for p in here if blocks(p.read_text(encoding="utf-8"), kind)]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("python"))
def test_python_in_the_docs_runs(page, shell):
    """Every Python block runs, in order, and prints what the page shows below it."""
    shutil.rmtree("shards")  # a page may make its own
    space: dict = {"__name__": "docs"}
    for block, shown in shown_after(page.read_text(encoding="utf-8"), "python"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, str(page), "exec"), space)
        assert missing_lines(shown, printed.getvalue(), tolerance(page)) == [], printed.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("bash"))
def test_commands_in_the_docs_run(page, shell):
    """Every line of every bash block is typed, in order; what cannot be is in NOT_RUN, with its reason. Blocks that run
    as they are written print what the page shows below them.
    """
    models = {*BUILTINS, "small-en-zh"}
    for block, shown in shown_after(page.read_text(encoding="utf-8"), "bash"):
        shell.printed = ""
        shell.block(block)
        if is_exact(block, models):
            assert missing_lines(shown, shell.printed, tolerance(page)) == [], shell.printed


def tolerance(page: Path) -> float:
    """How much numbers differ between processors: log-odds more than cosines and probabilities."""
    return 0.3 if page.stem == "explain" else 0.03


def test_shown_output_is_compared():
    text = "```bash\nalbertkit fill x -k 1\n```\nprints\n```text\n 47.1%  one\n…\n```\n```bash\nalbertkit models\n```\n"
    (fill, shown), (listing, nothing) = shown_after(text, "bash")
    assert is_exact(fill, {"small"}) and not is_exact(listing, {"small"}) and nothing == ""
    assert missing_lines(shown, "a note\n 46.7%  one\n", 0.03) == []
    assert missing_lines(shown, " 37.1%  one\n", 0.03) == missing_lines(shown, " 47.1%  two\n", 0.03) == [" 47.1%  one"]
    assert missing_lines("3  -1.7  one 15%  …", "3  -1.8  one 16%  two 2%", 0.3) == []
    models = {"small"}
    assert not is_exact("albertkit finetune classify a.tsv -o m", models) and not is_exact(
        "albertkit classify -m m x", models
    )
    assert is_exact("albertkit finetune classify a.tsv -o m --freeze\nalbertkit classify -m m x", models)


def test_what_is_run_elsewhere_is():
    for folder, test in ELSEWHERE.items():
        assert Path(folder).name in (ROOT / test).read_text(encoding="utf-8")


def test_blocks_have_a_kind_that_is_run_or_none():
    """A block in another language cannot hide a command from the tests."""
    for page in PAGES:
        kinds = set(re.findall(r"^```(\w+)", page.read_text(encoding="utf-8"), re.M))
        assert kinds <= {"bash", "python", *SHOWN}, f"{page.name}: {kinds - set(SHOWN)}"
        for name, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
            hidden = name != "bash" and re.search(r"^\$? ?albertkit ", block, re.M)
            assert page.name == "cli.md" or not hidden, f"{page.name}: a command in a block of kind {name!r}"


def test_commands_that_are_not_run_are_on_a_page():
    """The table of what is not run names nothing that no page has."""
    lines = [
        line for page in PAGES for block in blocks(page.read_text(encoding="utf-8"), "bash") for line in joined(block)
    ]
    for start in NOT_RUN:
        assert any(line.startswith(start) for line in lines), start


def test_a_command_that_fails_fails_the_test(shell):
    with pytest.raises(AssertionError, match="no test can type 'wget'"):
        shell.line("wget http://example.org")
    with pytest.raises(AssertionError, match="ended with an error: nowhere does not exist"):
        shell.line("albertkit classify -m nowhere 'a text'")
    shell.block("cat notes.txt | albertkit tokenize > out.txt && albertkit models")
    assert shell.count == 5 and Path("out.txt").read_text().startswith("[CLS]")


def test_commands_in_the_docs_exist():
    """Every `albertkit …` line in the docs parses: the verb and its options are real."""
    from albertkit.cli.entry_point import app

    seen = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for line in [line for block in blocks(text, "bash") for line in block.splitlines()] + re.findall(
            r"`([^`\n]+)`", text
        ):
            words = shlex.split(line.split("#")[0].split("|")[0], posix=True) if line.startswith("albertkit ") else []
            if len(words) < 2 or words[1].startswith("-") or words[1].isupper():
                continue
            command = app.get_command(click.Context(app), words[1])
            assert command is not None, f"{page.name}: {line}"
            try:
                parent = click.Context(app, info_name="albertkit", **app.context_settings)  # -h is click's to remember
                command.make_context(words[1], words[2:], parent=parent, resilient_parsing=False)
            except click.MissingParameter:
                pass
            except click.UsageError as error:
                raise AssertionError(f"{page.name}: {line}: {error.format_message()}") from None
            seen += 1
    assert seen >= 8


def plain(text: str) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))


def anchors(page: Path) -> set[str]:
    """What code hosts, and the site, call the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", title) for title in re.findall(r"^#+ (.+)$", text, re.M)]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> list[tuple[str, str]]:
    """(file, anchor) of the links that stay in the repository."""
    found = re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]+))?\)", plain(page.read_text(encoding="utf-8")))
    return [(target, anchor) for target, anchor in found if not target.startswith(("http://", "https://", "mailto:"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in links(page):
        file = (page.parent / target).resolve() if target else page
        assert file.exists() and file.is_relative_to(ROOT), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), (
                f"{page.name}: {target}#{anchor}; there are {', '.join(sorted(anchors(file)))}"
            )


def test_anchors_are_those_of_code_hosts(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# The page, `one`: [two](x.md)!\n```bash\n# none\n```\n## 从文本到模型\n")
    assert anchors(page) == {"the-page-one-two", "从文本到模型"}


def test_tests_that_pages_name_exist():
    """SECURITY.md promises what tests hold; a test that was renamed breaks the promise."""
    seen = 0
    for page in PAGES:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.M), (
                f"{page.name}: {file}::{name}"
            )
            seen += 1
    assert seen >= 30


def test_every_promise_of_the_security_page_names_its_test():
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.M)
    faults = [row for row in rows if row[0] != "fault"]
    assert len(faults) >= 25 and len({fault for fault, _, _ in faults}) == len(faults)
    for fault, _, tests in faults:
        assert re.fullmatch(r"`tests/[\w/]+\.py::\w+`(, `tests/[\w/]+\.py::\w+`)*", tests), fault


@pytest.mark.slow
@pytest.mark.parametrize("name", READMES)
def test_commands_of_the_readmes_table_run(name, shell):
    """Each in turn; what one makes, later ones use, but for OUT, which each makes anew."""
    commands = table_commands(name)
    assert len(commands) >= 12
    for command in commands:
        shutil.rmtree("OUT", ignore_errors=True)
        shell.line(command)


def test_the_public_door():
    """The names, all there; anything else is an error that lists them."""
    assert sorted(albertkit.__all__) == [n for n in dir(albertkit) if n != "__version__"]
    for name in albertkit.__all__:
        assert getattr(albertkit, name).__doc__, name
    with pytest.raises(AttributeError, match="it has Albert, AlbertConfig"):
        _ = albertkit.nothing


def test_each_option_has_its_document_formula_cost_and_test():
    text = (ROOT / "docs" / "reference" / "artifact.md").read_text(encoding="utf-8")
    sections = [part for part in text.split("\n### ") if re.search(r"\(document 00\d\)$", part.split("\n")[0])]
    assert len(sections) == 7
    for section in sections:
        for word in ("Claim", "Formula", "Cost", "Test"):
            assert section.count(f"\n**{word}:** ") == 1, (section.split("\n")[0], word)
        assert re.search(r"\*\*Test:\*\* `tests/[\w/]+\.py::\w+`", section)
    named = {name for section in sections for name in re.findall(r"`(\w+)", section.split("\n")[0])}
    blocks = [part for part in text.split("\n### ") if "\n**Formula:** " in part and part not in sections]
    for block in blocks:  # options that no document describes
        assert "\n**Cost:** " in block and re.search(r"\*\*Test:\*\* `tests/[\w/]+\.py::\w+`", block)
        named |= set(re.findall(r"`(\w+)`", block.split("\n")[0]))
    rest = re.findall(r"^\| `(\w+)` \(option\) \|.*`tests/[\w/.]+::\w+` \|$", text, re.M)
    others = {"brightmart_layout", "head_size", "static"}  # of other files and verbs, not of the documents
    assert named | set(rest) == {field.name for field in dataclasses.fields(Options)} - others
