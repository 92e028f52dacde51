"""The verb `models`: what comes with the package. As in `cli/entry_point.py`: arguments → calls → printed results, imports when it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click


@click.command(epilog="Example:  albertkit models --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines, one model a line.")
def models(as_json: bool) -> None:
    """List the built-in models: what each is for, its size, shape, licence, language and scores.

    Their names stand wherever a model folder may (-m, --start, Albert("small")), unless a path of that name exists.
    """
    from albertkit.builtin import BUILTINS, about
    from albertkit.cli.entry_point import megabytes

    for number, found in enumerate(map(about, BUILTINS)):
        if as_json:
            click.echo(json.dumps(asdict(found), ensure_ascii=False))
            continue
        if number:
            click.echo()
        click.echo(click.style(found.name, bold=True) + f"  {found.purpose}")
        rows = {
            "language": found.language or "not stated",
            "licence": found.licence or "not stated",
            "size": f"{megabytes(found.bytes)} ({found.quantisation or 'float32'})",
            "shape": ", ".join(f"{name} {value:,}" for name, value in found.shape.items()),
            "path": found.path,
        }
        scores = [("scores" if not i else "", line) for i, line in enumerate(score_lines(found.scores))]
        for name, value in [*rows.items(), *scores]:
            click.echo(f"  {name:10}{value}")


def score_lines(scores: dict[str, Any]) -> Iterator[str]:
    """A line for each set of data; numbers only."""
    for data, values in scores.items():
        numbers = {k: v for k, v in values.items() if isinstance(v, int | float)} if isinstance(values, dict) else {}
        if numbers:
            yield f"{data}: " + ", ".join(f"{name} {value:.3f}" for name, value in numbers.items())
