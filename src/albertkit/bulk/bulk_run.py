"""A bulk run: starts, resumes, completes and checks a folder of output files.

In: a task, input files, `BulkOptions`. Out: a folder with _manifest.json (everything the output depends on: model hash,
options, input files), _parts.npy (the table of `parts.py`) and one part-000000.parquet per part. The same command on
the same folder resumes; a command with other output is an error. Before this file: `engines.py`.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.bulk.engines import run_local
from albertkit.bulk.object_store import find_inputs, locate, open_output, short_reason
from albertkit.bulk.parts import PART_TABLE, WorkPart, get_part, plan_parts
from albertkit.bulk.worker import TASKS, BulkJob, BulkOptions, PartResult, PartWorker, hash_model, part_name
from albertkit.errors import AlbertkitError, check_choice
from albertkit.text_reader import TextFile

MANIFEST, PARTS = "_manifest.json", "_parts.npy"  # Parquet readers skip names that start with "_"
Engine = Callable[[BulkJob, Iterable[WorkPart], int], Iterator[PartResult]]
Progress = Callable[[str, int, int], object]  # stage, done, total


@dataclass(frozen=True)
class BulkSummary:
    """The summary of a run."""

    rows: int  # in the whole output
    parts: int
    done_rows: int  # by this run
    done_parts: int
    bad_rows: int  # rows without a text, in this run
    seconds: float
    rows_per_second: float


def bulk(
    task: str,
    inputs: Sequence[str],
    output: str,
    options: BulkOptions = BulkOptions(),  # noqa: B008  frozen
    *,
    engine: Engine = run_local,
    workers: int = 1,
    progress: Progress = lambda stage, done, total: None,
) -> BulkSummary:
    """Run a task (embed, classify or tag) for every input row that the output folder does not contain yet."""
    began = time.perf_counter()
    check_choice("task", task, TASKS)
    job = BulkJob(task, output, options, hash_model(options.model), root=str(Path.cwd()))
    check_job(job)
    with OutputFolder(job, find_inputs(inputs, options.text_column)) as folder:
        table, files = folder.open(progress)
        total, finished = int(table["rows"].sum()), folder.finished_parts(table)
        rows = before = int(table["rows"][finished].sum())
        bad_rows = done_parts = 0
        progress("parts", rows, total)
        numbers = np.setdiff1d(np.arange(len(table)), finished).tolist()
        parts = (get_part(table, files, number) for number in numbers)
        for result in engine(job, parts, min(workers, len(numbers))) if numbers else ():
            rows, bad_rows, done_parts = rows + result.rows, bad_rows + result.bad_rows, done_parts + 1
            progress("parts", rows, total)
        folder.check_complete(table)
    seconds = time.perf_counter() - began
    return BulkSummary(total, len(table), rows - before, done_parts, bad_rows, seconds, (rows - before) / seconds)


def check_job(job: BulkJob) -> None:
    """Raise before the run starts if the model does not support the task."""
    albert, options = PartWorker(job).albert, job.options.task_options
    if job.task == "embed":
        albert.embed_options(**{name: value for name, value in options.items() if name != "early_exit"})
    else:
        getattr(albert, job.task)(["a text"], **{name: value for name, value in options.items() if name != "pair"})


class OutputFolder:
    """The output folder of a run."""

    def __init__(self, job: BulkJob, files: list[TextFile]) -> None:
        self.job, self.options, self.files = job, job.options, files
        self.system, self.path = locate(job.output, job.root)
        self.lock: Any = None

    def __enter__(self) -> OutputFolder:
        try:
            self.system.create_dir(self.path, recursive=True)
            if self.system.type_name == "local":
                self._lock()
        except OSError as error:
            raise AlbertkitError(
                f"{self.job.output} cannot be written: {short_reason(error)}. Choose another folder."
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self.lock is not None:
            self.lock.close()

    def _lock(self) -> None:
        """Lock a local folder against other runs. The system releases the lock when this process ends."""
        with contextlib.suppress(ImportError):
            import fcntl

            self.lock = Path(self.path, ".lock").open("w")  # noqa: SIM115  closed with the folder
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlbertkitError(f"another run is writing {self.job.output}. Wait for it, or stop it.") from None

    def open(self, progress: Progress) -> tuple[np.ndarray, list[TextFile]]:
        """The table of parts, read or planned, and the files with the columns of their texts."""
        try:
            table, columns = self._read_plan() if MANIFEST in self._list() else self._write_plan(progress)
        except AlbertkitError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AlbertkitError(
                f"{self.job.output} cannot be used: {short_reason(error)}. Fix this, or choose another folder."
            ) from None
        return table, [replace(file, column=column) for file, column in zip(self.files, columns, strict=True)]

    def _read_plan(self) -> tuple[np.ndarray, list[Any]]:
        """The plan of an earlier run of the same command."""
        with self.system.open_input_file(f"{self.path}/{MANIFEST}") as file:
            manifest = json.loads(file.read().decode())
        check_same_job(self.identity(), manifest, self.job.output)
        with self.system.open_input_file(f"{self.path}/{PARTS}") as file:
            table = np.load(io.BytesIO(file.read()), allow_pickle=False)
        if table.dtype != PART_TABLE or len(table) != manifest["parts"]:
            raise AlbertkitError(f"{self.job.output}/{PARTS} is damaged. Delete the folder and start again.")
        return table, manifest["columns"]

    def _write_plan(self, progress: Progress) -> tuple[np.ndarray, list[Any]]:
        """A new plan; the manifest is written last."""
        other = [name for name in self._list() if not name.startswith(".") and name != PARTS]
        if other:
            raise AlbertkitError(
                f"{self.job.output} contains {other[0]!r} but no {MANIFEST}. Choose a new or empty folder."
            )
        size = sum(file.size for file in self.files)
        files, table = plan_parts(self.files, self.options.part_rows, lambda done: progress("plan", done, size))
        columns = [file.column for file in files]
        manifest = {**self.identity(), "rows": int(table["rows"].sum()), "parts": len(table), "columns": columns}
        with open_output(self.system, f"{self.path}/{PARTS}") as file:
            np.lib.format.write_array(file, table, allow_pickle=False)
        with open_output(self.system, f"{self.path}/{MANIFEST}") as file:
            file.write(json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n")
        return table, columns

    def identity(self) -> dict[str, Any]:
        """Everything that the output depends on."""
        options = self.options
        return {
            "format": 1,
            "task": self.job.task,
            "model": self.job.model_hash,
            "bits": options.bits,
            "options": {name: value for name, value in sorted(options.task_options.items()) if value is not None},
            "output": "parquet",
            "skip_bad": options.skip_bad,
            "part_rows": options.part_rows,
            "inputs": [[f.name, f.format, f.size, f.modified_ns, f.column] for f in self.files],
        }

    def _list(self) -> list[str]:
        from pyarrow import fs

        return [info.base_name for info in self.system.get_file_info(fs.FileSelector(self.path))]

    def finished_parts(self, table: np.ndarray) -> list[int]:
        """Numbers of the complete parts. Leftovers of killed runs are deleted."""
        names = set(self._list())
        for name in names:
            if name.startswith(".part-") and name.endswith(".part"):
                with contextlib.suppress(OSError):
                    self.system.delete_file(f"{self.path}/{name}")
        numbers = [n for n in range(len(table)) if part_name(n) in names]
        with ThreadPoolExecutor(8) as threads:
            counts = list(threads.map(self._count_rows, numbers))
        return [n for n, count in zip(numbers, counts, strict=True) if count == int(table["rows"][n])]

    def _count_rows(self, number: int) -> int:
        """Rows of a part's output, or -1 if it is damaged."""
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile

        try:
            with self.system.open_input_file(f"{self.path}/{part_name(number)}") as file:
                return int(ParquetFile(file).metadata.num_rows)
        except (OSError, ArrowInvalid):
            return -1

    def check_complete(self, table: np.ndarray) -> None:
        """Raise unless the folder has exactly the expected parts."""
        names = {name for name in self._list() if name.startswith("part-")}
        expected = {part_name(n) for n in range(len(table))}
        if names != expected:
            raise AlbertkitError(
                f"{self.job.output} should contain {len(expected):,} parts, but {sorted(names ^ expected)[0]} differs. "
                "Rerun the command."
            )


def check_same_job(identity: dict[str, Any], manifest: dict[str, Any], output: str) -> None:
    """Raise if a folder was started by a command with other output."""
    changed = next((name for name, value in identity.items() if manifest.get(name) != value), None)
    if changed is None:
        return
    before, now = manifest.get(changed), identity[changed]
    difference = f"{changed} was {json.dumps(before)[:80]} and is {json.dumps(now)[:80]}"
    if changed == "inputs":
        old, new = ({entry[0]: entry for entry in entries} for entries in (before or [], now))
        name = next((name for name in [*new, *old] if old.get(name) != new.get(name)), "their order")
        difference = f"the input {name} has changed" if name in old and name in new else f"the inputs differ by {name}"
    raise AlbertkitError(
        f"{output} was started by another command: {difference}. Rerun that command, or choose another folder."
    )
