"""Write the pages of docs/ that show what the program itself says: run by `make docs`, checked by a test.

cli.md      the help of every verb
shapes.md   what each preset costs
"""

from __future__ import annotations

from pathlib import Path

import click

from albertkit.cli import app, megabytes
from albertkit.compress.plan import plan
from albertkit.config import PRESETS, preset

DOCS = Path(__file__).parent
NOTE = "<!-- Written by `make docs`; do not edit. -->\n"


def cli_page() -> str:
    lines = [NOTE, "# The command line", "", "Every verb prints JSON with `--json`, reads texts from arguments, `--file` or stdin where it",
             "takes texts, and ends with one sentence on stderr and code 2 when something is wrong.", ""]  # fmt: skip
    context = click.Context(app, info_name="albertkit")
    for name in sorted(app.commands):
        command = app.commands[name]
        shown = command.get_help(click.Context(command, info_name=name, parent=context, max_content_width=100))
        lines += [
            f"## albertkit {name}",
            "",
            "```text",
            *(row.rstrip() for row in shown.splitlines()),
            "```",
            "",
        ]
    return "\n".join(lines)


def shapes_page() -> str:
    lines = [NOTE, "# Shapes", "", "`albertkit plan SHAPE` tells more about one of them. Operations count multiplications and additions",
             "for a token in a text of 128; bytes are the encoder's weights; activations are for 32 texts of 128 tokens.", "",
             "| preset | layers × hidden | parameters | without sharing | M operations / token | float32 | int8 | 4-bit | activations, inference |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name in PRESETS:
        config = preset(name)
        made = plan(config)
        lines.append(
            f"| {name} | {config.num_hidden_layers} × {config.hidden_size} | {made.parameters['total']:,} | {made.unshared:,} "
            f"| {made.operations['total'] / 1e6:,.1f} | {megabytes(made.bytes['float32'])} | {megabytes(made.bytes['int8'])} "
            f"| {megabytes(made.bytes['4-bit'])} | {megabytes(made.memory['inference'])} |"
        )
    return "\n".join([*lines, ""])


PAGES = {"cli.md": cli_page, "shapes.md": shapes_page}


def main() -> None:
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
