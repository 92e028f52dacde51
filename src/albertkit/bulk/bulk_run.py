"""A bulk run: starts, resumes, completes and checks a folder of output files.

In: a task, input files, `BulkOptions`. Out: a folder with _manifest.json (everything the output depends on: model hash,
options, input files), _parts.npy (the table of `parts.py`), one file per part, such as part-000000.npz, and the SHA-256
of each in _checksums/. The same command on the same folder resumes, and computes damaged parts again; a command with
other output is an error. Before this file: `engines.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from albertkit.albert import Albert
from albertkit.bulk.engines import run_local
from albertkit.bulk.object_store import find_inputs, is_intact, locate, open_output
from albertkit.bulk.part_files import choose_format
from albertkit.bulk.parts import WorkPart, get_part, plan_parts
from albertkit.bulk.worker import (
    CHECKSUMS,
    TASKS,
    BulkJob,
    BulkOptions,
    PartResult,
    PartWorker,
    checksum_name,
    hash_model,
    part_name,
)
from albertkit.errors import AlbertkitError, check_choice, short_reason
from albertkit.file_io import add_checksum, take_checksum
from albertkit.folder_replace import LOCK, lock_file
from albertkit.input_warnings import InputProblems, collect_problems, report_problems
from albertkit.runtime.torch_engine import check_device, check_precision
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
    unreadable_rows: int  # texts that the model cannot read, in this run
    damaged_parts: int  # of an earlier run, computed again
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
    input_files = find_inputs(inputs, options.text_column)
    format = choose_format(task, input_files, options.format)
    job = BulkJob(task, output, options, hash_model(options.model), format, root=str(Path.cwd()))
    check_job(job)
    if engine is run_local and options.device != "cpu":  # a cluster has its devices on other machines
        check_device(options.device)
    with OutputFolder(job, input_files) as folder:
        table, files = folder.open(progress)
        total, (finished, damaged) = int(table["rows"].sum()), folder.earlier_parts(table)
        rows = before = int(table["rows"][finished].sum())
        bad_rows, done_parts, problems = 0, 0, InputProblems()
        progress("parts", rows, total)
        numbers = np.setdiff1d(np.arange(len(table)), finished).tolist()
        parts = (get_part(table, files, number) for number in numbers)
        for result in engine(job, parts, min(workers, len(numbers))) if numbers else ():
            rows, bad_rows, done_parts = rows + result.rows, bad_rows + result.bad_rows, done_parts + 1
            problems += result.problems
            progress("parts", rows, total)
        folder.check_complete(table)
    report_problems(problems)
    seconds = time.perf_counter() - began
    done_rows = rows - before
    rate = done_rows / seconds
    return BulkSummary(
        total, len(table), done_rows, done_parts, bad_rows, problems.unreadable, len(damaged), seconds, rate
    )


def check_job(job: BulkJob) -> None:
    """Raise before the run starts if the model does not support the task."""
    albert, options = PartWorker(job).albert, job.options.task_options
    check_precision(job.options.device, job.options.precision)
    if job.options.device != "cpu":
        check_device_job(job, albert)
    if job.task == "embed":
        albert.embed_options(**{name: value for name, value in options.items() if name != "early_exit"})
    else:
        pairs = {} if options.get("pair") is None else {"pairs": [options["pair"]]}
        options = {name: value for name, value in options.items() if name != "pair"}
        with collect_problems():  # it is not one of the user's texts
            getattr(albert, job.task)(["a text"], **pairs, **options)


def check_device_job(job: BulkJob, albert: Albert) -> None:
    """Raise if a device cannot run the job, or would leave part of it to the CPU."""
    device = job.options.device
    unsupported = {
        "a static model": albert.config.options.static,
        "a custom head": bool(albert.custom_heads),
        "early exit": job.options.task_options.get("early_exit") is not None,
    }
    for name in (name for name, is_used in unsupported.items() if is_used):
        raise AlbertkitError(
            f"device={device!r} is not available with {name}, which runs on the CPU. Omit one of them."
        )


class OutputFolder:
    """The output folder of a run."""

    def __init__(self, job: BulkJob, files: list[TextFile]) -> None:
        self.job, self.options, self.files = job, job.options, files
        self.storage, self.path = locate(job.output, job.root)
        self.lock: TextIO | None = None

    def __enter__(self) -> OutputFolder:
        try:
            self.storage.create_folder(self.path)
            if self.storage.is_local:
                self.lock = Path(self.path, LOCK).open("a+", encoding="utf-8")
                lock_file(self.lock, Path(self.job.output))
        except OSError as error:
            raise AlbertkitError(
                f"{self.job.output} cannot be written: {short_reason(error)}. Choose another folder."
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self.lock is not None:
            self.lock.close()

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
        return table, [replace(file, column=c, width=w) for file, (c, w) in zip(self.files, columns, strict=True)]

    def _read_plan(self) -> tuple[np.ndarray, list[Any]]:
        """The plan of an earlier run of the same command."""
        with self.storage.open_input(f"{self.path}/{MANIFEST}") as file:
            manifest = json.loads(file.read().decode())
        check_same_job(self.identity(), manifest, self.job.output)
        manifest = take_checksum(f"{self.job.output}/{MANIFEST}", manifest)
        with self.storage.open_input(f"{self.path}/{PARTS}") as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != manifest["parts_sha256"]:
            raise AlbertkitError(f"{self.job.output}/{PARTS} is damaged. Delete the folder and start again.")
        table = np.load(io.BytesIO(data), allow_pickle=False)
        return table, list(zip(manifest["columns"], manifest["widths"], strict=True))

    def _write_plan(self, progress: Progress) -> tuple[np.ndarray, list[Any]]:
        """A new plan; the manifest is written last."""
        other = [name for name in self._list() if not name.startswith(".") and name != PARTS]
        if other:
            raise AlbertkitError(
                f"{self.job.output} contains {other[0]!r} but no {MANIFEST}. Choose a new or empty folder."
            )
        size = sum(file.size for file in self.files)
        files, table = plan_parts(self.files, self.options.part_rows, lambda done: progress("plan", done, size))
        columns = {"columns": [file.column for file in files], "widths": [file.width for file in files]}
        manifest = {**self.identity(), "rows": int(table["rows"].sum()), "parts": len(table), **columns}
        with open_output(self.storage, f"{self.path}/{PARTS}") as file:
            np.lib.format.write_array(file, table, allow_pickle=False)
        manifest = add_checksum({**manifest, "parts_sha256": file.hash.hexdigest()})
        with open_output(self.storage, f"{self.path}/{MANIFEST}") as file:
            file.write(json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n")
        return table, [(file.column, file.width) for file in files]

    def identity(self) -> dict[str, Any]:
        """Everything that the output depends on."""
        options = self.options
        is_cpu = options.device == "cpu"
        return {
            "format": 2,
            "task": self.job.task,
            "model": self.job.model_hash,
            "bits": options.bits,
            "device": None if is_cpu else options.device,
            "precision": None if is_cpu else options.precision,
            "options": {name: value for name, value in sorted(options.task_options.items()) if value is not None},
            "output": self.job.format,
            "skip_bad": options.skip_bad,
            "part_rows": options.part_rows,
            "inputs": [[f.name, f.format, f.size, f.modified_ns, f.column] for f in self.files],
        }

    def _list(self) -> list[str]:
        return [posixpath.basename(entry.path) for entry in self.storage.list_folder(self.path)]

    def earlier_parts(self, table: np.ndarray) -> tuple[list[int], list[int]]:
        """Numbers of the finished parts, and of the damaged ones. Leftovers of killed runs are deleted."""
        names = set(self._list())
        self.storage.create_folder(f"{self.path}/{CHECKSUMS}")
        checksums = self.storage.list_folder(f"{self.path}/{CHECKSUMS}")
        for path in [*(f"{self.path}/{name}" for name in names), *(entry.path for entry in checksums)]:
            if posixpath.basename(path).startswith(".part-") and path.endswith(".part"):
                with contextlib.suppress(OSError):
                    self.storage.delete(path)
        numbers = [n for n in range(len(table)) if self._name(n) in names]
        with ThreadPoolExecutor(8) as threads:
            intact = dict(zip(numbers, threads.map(self._is_intact, numbers), strict=True))
        return [n for n in numbers if intact[n]], [n for n in numbers if not intact[n]]

    def _is_intact(self, number: int) -> bool:
        name = self._name(number)
        return is_intact(self.storage, f"{self.path}/{name}", f"{self.path}/{checksum_name(name)}")

    def _name(self, number: int) -> str:
        return part_name(number, self.job.format)

    def check_complete(self, table: np.ndarray) -> None:
        """Raise unless the folder has exactly the expected parts."""
        names = {name for name in self._list() if name.startswith("part-")}
        expected = {self._name(n) for n in range(len(table))}
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
