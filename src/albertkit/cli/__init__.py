"""The command line: one module per group of commands. No other package prints."""

from __future__ import annotations


def main() -> None:
    """Run the command line: the console script `albertkit`."""
    from albertkit.cli.entry_point import main as run

    run()
