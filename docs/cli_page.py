"""docs/reference/cli.md, for `generate.py`: the help of every command, as `albertkit COMMAND --help` prints it."""

from __future__ import annotations

import click

from albertkit.cli.entry_point import GROUPS, app

TEXT = """<!-- Written by `make docs`; do not edit. -->

# Commands

`albertkit COMMAND --help` prints what you find below. The [guides](../guides/vectors.md) show the commands at work.

- **Models.** `-m` takes a folder or the name of a built-in model (`albertkit models`). Without it, most commands use the built-in English model.
- **Texts** come from arguments, from files (`-f`) or from stdin, one per line. `.txt`, `.jsonl`, `.csv`, `.tsv` and `.parquet` files work, also compressed.
- **Output.** Results go to stdout, notes and progress to stderr. With `--json`, tables become JSON lines.
- **Interrupted?** Run the same command again: training, corpora, indexes and bulk work resume.
- **Errors** are one sentence on stderr, with exit code 2.

**Shell completion.** bash: add `eval "$(_ALBERTKIT_COMPLETE=bash_source albertkit)"` to `~/.bashrc`. zsh: add `eval "$(_ALBERTKIT_COMPLETE=zsh_source albertkit)"` to `~/.zshrc`.
fish: write the output of `_ALBERTKIT_COMPLETE=fish_source albertkit` to `~/.config/fish/completions/albertkit.fish`.

"""


def page() -> str:
    """The whole page."""
    context = click.Context(app, info_name="albertkit", **app.context_settings)
    lines = ["| command | |", "|---|---|"]
    commands = [
        (name, text) for modules in GROUPS.values() for group in modules.values() for name, text in group.items()
    ]
    lines += [f"| [{name}](#albertkit-{name}) | {text.rstrip('.')} |" for name, text in commands]
    for group, modules in GROUPS.items():
        lines += ["", f"## {group}"]
        for name in (name for names in modules.values() for name in names):
            command = app.get_command(context, name)
            assert command is not None
            shown = command.get_help(click.Context(command, info_name=name, parent=context, max_content_width=100))
            lines += ["", f"### albertkit {name}", "", "```text", *(row.rstrip() for row in shown.splitlines()), "```"]
    return TEXT + "\n".join(lines) + "\n"
