"""`--engine` of the verbs embed, classify and tag: files in, a folder of numbered output files out.

In: arguments. Out: a call of `bulk/bulk_run.py`, and its summary printed. With `cli/entry_point.py` and its other parts, the only files that print.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import click

from albertkit.errors import AlbertkitError, need

PREFIX = "bulk_"


def bulk_options(command: Any) -> Any:
    """The options of bulk work, as arguments that begin with `bulk_`."""
    given: list[tuple[str, dict[str, Any]]] = [
        ("engine", {"type": click.Choice(["local", "ray"]), "help": "TEXTS are files, patterns, folders or URLs (.txt, .jsonl, .csv, .tsv, .parquet), and --out a folder of parts: local processes, or Ray. See docs/bulk.md."}),
        ("out", {"help": "With --engine: folder or URL of the output. The same command goes on where it was stopped."}),
        ("field", {"help": "With --engine: field or column of the text; a number (from 1) for a csv or tsv file without header  [default: text]"}),
        ("workers", {"type": click.IntRange(1, 100_000), "help": "With --engine: processes, each with a model of its own  [default: one for each core]"}),
        ("address", {"help": "With --engine ray: a running cluster, such as auto or HEAD:6379  [default: one on this machine]"}),
        ("part_rows", {"type": click.IntRange(1, 10_000_000), "default": 50_000, "show_default": True, "help": "With --engine: most rows of an output file."}),
        ("format", {"type": click.Choice(["parquet", "jsonl"]), "default": "parquet", "show_default": True, "help": "With --engine: kind of the output files."}),
        ("skip_bad", {"is_flag": True, "help": "With --engine: rows that hold no text get no result, instead of stopping."}),
    ]  # fmt: skip
    for name, about in reversed(given):
        command = click.option(f"--{name.replace('_', '-')}", PREFIX + name, **about)(command)
    return command


def run_bulk(
    task: str,
    inputs: tuple[str, ...],
    model: Path | None,
    options: dict[str, Any],
    given: dict[str, Any],
    bits: str | None = None,
    threads: int | None = None,
) -> bool:
    """Do the work in bulk if an engine was named, and say so. `given` holds the options above."""
    bulk = {name.removeprefix(PREFIX): value for name, value in given.items()}
    name, out = bulk.pop("engine"), bulk.pop("out")
    workers, address = bulk.pop("workers"), bulk.pop("address")
    if name is None:
        strange = [
            n
            for n, v in (("out", out), ("workers", workers), ("address", address), ("field", bulk["field"]))
            if v is not None
        ]
        if strange:
            raise AlbertkitError(f"--{strange[0]} belongs to bulk work; add --engine local or --engine ray")
        return False
    if not inputs or out is None:
        raise AlbertkitError(f"--engine {name} needs input files behind the verb and a folder for the output (--out)")
    if address is not None and name != "ray":
        raise AlbertkitError(f"--address was given with --engine {name}; only Ray has one")
    need("pyarrow", "ray" if name == "ray" else "parquet", f"--engine {name}")
    from albertkit.bulk import bulk_run as run
    from albertkit.bulk import local

    engine: Any = local.run
    if name == "ray":
        from albertkit.bulk import ray_engine

        engine = partial(ray_engine.run, address=address)
    try:
        with redirect_stdout(sys.stderr), bar() as step:  # where Ray says what happened to a worker
            done = run.bulk(
                task, inputs, out, model=None if model is None else str(model), engine=engine, workers=workers or cores(),
                progress=step, options=options, bits=int(bits) if bits else None, threads=threads or 1, **bulk,
            )  # fmt: skip
    except KeyboardInterrupt:
        raise AlbertkitError("stopped; the finished parts stay, and the same command goes on") from None
    click.echo(json.dumps({"out": out, **dataclasses.asdict(done)}))
    return True


def cores() -> int:
    """Processors that this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr where that is a terminal: bytes while planning, then rows."""
    from tqdm import tqdm

    shown = tqdm(unit_scale=True, disable=not sys.stderr.isatty(), leave=False)
    stages: list[str] = []

    def step(what: str, done: int, total: int) -> None:
        if shown.disable:
            return
        if what not in stages:
            stages.append(what)
            shown.reset(total)
            shown.set_description("looking at the files" if what == "plan" else "rows")
            shown.initial = shown.n = done
        shown.update(done - shown.n)

    with shown:
        yield step
