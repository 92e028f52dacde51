"""Write what is generated in docs/: run by `make docs`, checked by a test.

`PAGES` are whole files: the command line, the Python API, the files of the built-in models. `TABLES` are tables inside
pages that are written by hand: a page contains `<!-- table: NAME -->` and `<!-- /table -->`, and the text between them is
replaced by what the function NAME returns. The functions are in `docs/tables/`, one module per page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from albertkit.builtin import BUILTINS
from albertkit.cli.console import format_megabytes
from albertkit.cli.entry_point import GROUPS, app
from albertkit.compress.cost import shape_cost
from albertkit.config import PRESETS, preset

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

import api_page
import benchmarks_page
import options_page
from tables import benchmarks, compression, elastic, http_api, ideas, models, tasks

DOCS = Path(__file__).parent
NOTE = "<!-- Written by `make docs`; do not edit. -->\n"
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- /table -->)", re.S)


def cli_page() -> str:
    lines = [
        NOTE,
        "# The command line",
        "",
        "Commands that print a table print JSON with `--json`. Commands that take texts read them from arguments, `--file`",
        "or stdin. When something is wrong, a command prints one sentence on stderr and exits with code 2.",
        "",
        'Shell completion: add `eval "$(_ALBERTKIT_COMPLETE=bash_source albertkit)"` to `~/.bashrc`, or',
        '`eval "$(_ALBERTKIT_COMPLETE=zsh_source albertkit)"` to `~/.zshrc`; for fish, write the output of',
        "`_ALBERTKIT_COMPLETE=fish_source albertkit` to `~/.config/fish/completions/albertkit.fish`.",
        "",
    ]
    context = click.Context(app, info_name="albertkit", **app.context_settings)
    for group, modules in GROUPS.items():
        lines += [f"## {group}", ""]
        for name in (name for commands in modules.values() for name in commands):
            command = app.get_command(context, name)
            assert command is not None
            shown = command.get_help(click.Context(command, info_name=name, parent=context, max_content_width=100))
            lines += [f"### albertkit {name}", "", "```text", *(row.rstrip() for row in shown.splitlines()), "```", ""]
    return "\n".join(lines)


def shapes_page() -> str:
    lines = [NOTE, "# Shapes", "", "`albertkit plan SHAPE` tells more about one of them. Operations count multiplications and additions",
             "for a token in a text of 128; bytes are the encoder's weights; activations are for 32 texts of 128 tokens.", "",
             "| preset | layers × hidden | parameters | without sharing | M operations / token | float32 | int8 | 4-bit | activations, inference |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name in PRESETS:
        config = preset(name)
        made = shape_cost(config)
        lines.append(
            f"| {name} | {config.num_hidden_layers} × {config.hidden_size} | {made.parameters['total']:,} | {made.unshared:,} "
            f"| {made.operations['total'] / 1e6:,.1f} | {format_megabytes(made.bytes['float32'])} | {format_megabytes(made.bytes['int8'])} "
            f"| {format_megabytes(made.bytes['4-bit'])} | {format_megabytes(made.memory['inference'])} |"
        )
    return "\n".join([*lines, ""])


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "api.md": api_page.page,
    "shapes.md": shapes_page,
    "options.md": options_page.page,
    **{f"../src/albertkit/models/{name}/albertkit.json": partial(models.meta_text, name) for name in BUILTINS},
    **{f"../src/albertkit/models/{name}/README.md": partial(models.card, name) for name in BUILTINS},
}
TABLES: dict[str, Callable[[], str]] = {
    **benchmarks.TABLES,
    **models.TABLES,
    **tasks.TABLES,
    **compression.TABLES,
    **elastic.TABLES,
    **ideas.TABLES,
    **http_api.TABLES,
}


def fill(text: str) -> str:
    """A page with its tables as they are now. A name that is not in `TABLES` is an error."""
    return MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


def marked_pages() -> list[Path]:
    """The pages that contain a table."""
    return [path for path in sorted(DOCS.rglob("*.md")) if MARKED.search(path.read_text(encoding="utf-8"))]


def main() -> None:
    report = benchmarks_page.load()
    elastic.picture()
    if report is not None:
        benchmarks_page.picture(report)
        for name in benchmarks_page.README_WORDS:
            readme = DOCS.parent / name
            text = readme.read_text(encoding="utf-8")
            readme.write_text(benchmarks_page.readme(text, report, name), encoding="utf-8")
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
    for path in marked_pages():
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in [*(DOCS / name for name in PAGES), *marked_pages()]:
        print(path.resolve().relative_to(DOCS.parent.resolve()))


if __name__ == "__main__":
    main()
