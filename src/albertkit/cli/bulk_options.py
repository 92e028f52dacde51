"""`--engine` of embed, classify and tag: many files in, a folder of numbered output files out.

In: arguments. Out: `BulkInput`, which runs `bulk/` where an engine was named and prints its summary.
"""

from __future__ import annotations

import functools
import os
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from albertkit.cli.arguments import Function, ModelOptions, OptionValue, TextInput, option
from albertkit.cli.console import print_json, stage_progress_bar
from albertkit.errors import AlbertkitError, need

bulk_option = functools.partial(option, heading="Many files (TEXTS are files, patterns, folders or URLs)")


@dataclass(frozen=True)
class BulkInput:
    """The options of bulk work."""

    engine: str | None
    workers: int | None
    address: str | None
    part_rows: int
    format: str
    skip_bad: bool

    def run(
        self, task: str, texts: TextInput, model: ModelOptions, output: Path | None, options: dict[str, Any]
    ) -> bool:
        """Do the work if an engine was named; False where it was not."""
        if self.engine is None:
            for name in ("workers", "address"):
                if getattr(self, name) is not None:
                    raise AlbertkitError(f"--{name} is an option of bulk work. Add --engine local or --engine ray.")
            return False
        if not texts.texts or output is None or texts.file is not None:
            raise AlbertkitError(
                f"--engine {self.engine} reads the files named as TEXTS and writes a folder. "
                "Name input files after the command and an output folder with -o, without --file."
            )
        if self.address is not None and self.engine != "ray":
            raise AlbertkitError(
                f"--address {self.address} is an option of --engine ray, not of {self.engine}. Omit it."
            )
        need("pyarrow", "ray" if self.engine == "ray" else "parquet", f"--engine {self.engine}")
        self._run(task, texts, model, output, options)
        return True

    def _run(self, task: str, texts: TextInput, model: ModelOptions, output: Path, options: dict[str, Any]) -> None:
        from albertkit.bulk.bulk_run import BulkOptions, bulk
        from albertkit.bulk.engines import run_local, run_ray

        engine = functools.partial(run_ray, address=self.address) if self.engine == "ray" else run_local
        work_options = BulkOptions(
            model=model.model,
            task_options=options,
            bits=model.bits,
            threads=model.threads or 1,
            text_column=texts.text_column,
            part_rows=self.part_rows,
            format=self.format,
            skip_bad=self.skip_bad,
        )
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        try:
            # Ray reports what happened to a worker on stdout.
            with redirect_stdout(sys.stderr), stage_progress_bar() as progress:
                summary = bulk(
                    task, texts.texts, str(output), work_options, engine=engine, workers=self.workers or cores,
                    progress=lambda stage, done, total: progress(stage, done, total, 0),
                )  # fmt: skip
        except KeyboardInterrupt:
            raise AlbertkitError("Stopped; finished parts are kept. Rerun the command to resume.") from None
        print_json({"output": str(output), **asdict(summary)})


def bulk_options(function: Function) -> Function:
    """Add the options of bulk work; the command receives them as `bulk: BulkInput`."""

    @functools.wraps(function)
    def run(engine: str | None, workers: int | None, address: str | None, **rest: OptionValue) -> None:
        values = {name: rest.pop(name) for name in ("part_rows", "format", "skip_bad")}
        function(bulk=BulkInput(engine, workers, address, **values), **rest)

    decorators = (
        bulk_option("--engine", type=click.Choice(["local", "ray"]), help="Local processes, or a Ray cluster."),
        bulk_option("--workers", type=click.IntRange(1, 100_000), help="Processes  [default: one per core]"),
        bulk_option("--format", type=click.Choice(["parquet", "jsonl"]), default="parquet", show_default=True,
                    help="Format of the output files."),
        bulk_option("--part-rows", type=click.IntRange(1, 10_000_000), default=50_000, show_default=True,
                    help="Most rows per output file."),
        bulk_option("--skip-bad", is_flag=True, help="Give rows without a text no result instead of stopping."),
        bulk_option("--address", help="With --engine ray: a running cluster, such as auto or HEAD:6379."),
    )  # fmt: skip
    return functools.reduce(lambda decorated, decorator: decorator(decorated), reversed(decorators), run)
