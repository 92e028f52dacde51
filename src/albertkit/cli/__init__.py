"""The command line: one file per group of commands; the only package that prints."""

from __future__ import annotations


def main() -> None:
    """Run the command line: the console script `albertkit`."""
    from albertkit.cli.entry_point import main as run

    run()
