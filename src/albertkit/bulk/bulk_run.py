"""A folder of output files that follows from a command: begun, gone on with, finished, checked.

In: what to do, with which model, on which files. Out: the folder

    _manifest.json       everything that the output depends on: model hash, options, input files with their sizes and times; the counts
    _parts.npy           the table of `parts.py`
    part-000000.parquet  one file a part, as `work.py` describes them
    …

The same command on the same folder does what is missing. A command that would give other output is refused with the difference. No row ever comes to this
process: it hands out numbers and gets counts back. Before this file: `work.py`; after it: the engines, which `cli/bulk_options.py` names.
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

from albertkit.bulk import local
from albertkit.bulk.object_store import Source, appearing, find, place
from albertkit.bulk.parts import TABLE, Part, part_of, plan
from albertkit.bulk.worker import FORMATS, TASKS, Done, Job, Worker, model_hash, name_of
from albertkit.errors import AlbertkitError

PART_ROWS = 50_000
MANIFEST, PARTS = "_manifest.json", "_parts.npy"  # readers of a folder of Parquet files pass over names that begin so
Engine = Callable[[Job, Iterable[Part], int], Iterator[Done]]
Progress = Callable[[str, int, int], object]  # what is being done, how much of it, of how much


@dataclass(frozen=True)
class Summary:
    """What a run did."""

    rows: int  # in the whole output
    parts: int
    done_rows: int  # by this run; the others were there
    done_parts: int
    bad: int  # rows without a text, of this run
    seconds: float
    rows_per_second: float


def bulk(
    task: str,
    inputs: Sequence[str],
    out: str,
    *,
    model: str | None = None,
    field: str | None = None,
    engine: Engine = local.run,
    workers: int = 1,
    part_rows: int = PART_ROWS,
    progress: Progress = lambda what, done, total: None,
    **settings: Any,
) -> Summary:
    """Do a task for every row of the inputs, or what is missing of it.

    task: embed, classify or tag. settings: fields of `Job`: options, bits, threads, format, skip_bad.
    """
    began = time.perf_counter()
    if task not in TASKS or settings.get("format", "parquet") not in FORMATS:
        raise AlbertkitError(f"task is {task!r} and format {settings.get('format')!r}; choose {TASKS} and {FORMATS}")
    if not 1 <= part_rows <= 10_000_000:
        raise AlbertkitError(f"part_rows is {part_rows}; choose 1 to 10,000,000")
    job = Job(task, model, model_hash(model), out, root=str(Path.cwd()), **settings)
    check_options(job)
    with Folder(job, find(inputs, field), part_rows) as folder:
        table, sources = folder.open(progress)
        total, there = int(table["rows"].sum()), folder.finished(table)
        missing = np.ones(len(table), bool)
        missing[there] = False
        rows = before = int(table["rows"][there].sum())
        bad = parts = 0
        progress("parts", rows, total)
        numbers = np.flatnonzero(missing).tolist()
        given = (part_of(table, sources, number) for number in numbers)
        for done in engine(job, given, min(workers, len(numbers))) if len(numbers) else ():
            rows, bad, parts = rows + done.rows, bad + done.bad, parts + 1
            progress("parts", rows, total)
        folder.check(table)
    if rows != total:
        raise AlbertkitError(f"{rows:,} rows were written and {total:,} planned; run the same command again")
    seconds = time.perf_counter() - began
    return Summary(total, len(table), rows - before, parts, bad, seconds, (rows - before) / seconds)


def check_options(job: Job) -> None:
    """Find out before the work that a model cannot do it."""
    albert = Worker(job).albert
    if job.task == "embed":
        given = {name: value for name, value in job.options.items() if name != "early_exit"}
        albert.embed_options(**given)
    else:
        getattr(albert, job.task)(["a text"], **{k: v for k, v in job.options.items() if k != "pair"})


class Folder:
    """The output folder."""

    def __init__(self, job: Job, sources: list[Source], part_rows: int) -> None:
        self.job, self.sources, self.part_rows = job, sources, part_rows
        self.system, self.path = place(job.out, job.root)
        self.lock: Any = None

    def __enter__(self) -> Folder:
        try:
            self.system.create_dir(self.path, recursive=True)
            if self.system.type_name == "local":
                self._lock()
        except OSError as error:
            raise AlbertkitError(f"{self.job.out} cannot be written: {_why(error)}; choose another folder") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self.lock is not None:
            self.lock.close()

    def _lock(self) -> None:
        """Keep another run out of a folder on a disk; the system lets go of the lock when this process ends, however it ends."""
        with contextlib.suppress(ImportError):
            import fcntl

            self.lock = Path(self.path, ".lock").open("w")  # noqa: SIM115  closed with the folder
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlbertkitError(f"another run is writing {self.job.out}; wait for its end, or stop it") from None

    def open(self, progress: Progress) -> tuple[np.ndarray, list[Source]]:
        """The table of parts, read or made, and the sources with the columns of their texts."""
        try:
            table, columns = self._read() if self._exists(MANIFEST) else self._begin(progress)
        except AlbertkitError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AlbertkitError(
                f"{self.job.out} cannot be used: {_why(error)}; put that right or choose another folder"
            ) from None
        return table, [replace(source, column=c) for source, c in zip(self.sources, columns, strict=True)]

    def _read(self) -> tuple[np.ndarray, list[Any]]:
        """The plan of an earlier run of the same command."""
        with self.system.open_input_file(f"{self.path}/{MANIFEST}") as file:
            manifest = json.loads(file.read().decode())
        same(self.identity(), manifest, self.job.out)
        with self.system.open_input_file(f"{self.path}/{PARTS}") as file:
            table = np.load(io.BytesIO(file.read()), allow_pickle=False)
        if table.dtype != TABLE or len(table) != manifest["parts"]:
            raise AlbertkitError(f"{self.job.out}/{PARTS} is damaged; delete the folder and begin anew")
        return table, manifest["columns"]

    def _begin(self, progress: Progress) -> tuple[np.ndarray, list[Any]]:
        """A new plan, written down; the manifest comes last."""
        other = [name for name in self._listed() if not name.startswith(".") and name != PARTS]
        if other:
            raise AlbertkitError(f"{self.job.out} holds {other[0]!r} and no {MANIFEST}; choose a new or empty folder")
        size = sum(source.size for source in self.sources)
        sources, table = plan(self.sources, self.part_rows, lambda done: progress("plan", done, size))
        columns = [source.column for source in sources]
        about = {**self.identity(), "rows": int(table["rows"].sum()), "parts": len(table), "columns": columns}
        with appearing(self.system, f"{self.path}/{PARTS}") as file:
            np.lib.format.write_array(file, table, allow_pickle=False)
        with appearing(self.system, f"{self.path}/{MANIFEST}") as file:
            file.write(json.dumps(about, indent=1, ensure_ascii=False).encode() + b"\n")
        return table, columns

    def identity(self) -> dict[str, Any]:
        """Everything that the output depends on."""
        job = self.job
        return {
            "format": 1,
            "task": job.task,
            "model": job.hash,
            "bits": job.bits,
            "options": {name: value for name, value in sorted(job.options.items()) if value is not None},
            "output": job.format,
            "skip_bad": job.skip_bad,
            "part_rows": self.part_rows,
            "inputs": [[s.name, s.form, s.size, s.stamp, s.column] for s in self.sources],
        }

    def _exists(self, name: str) -> bool:
        from pyarrow import fs

        return bool(self.system.get_file_info(f"{self.path}/{name}").type == fs.FileType.File)

    def _listed(self) -> list[str]:
        from pyarrow import fs

        return [info.base_name for info in self.system.get_file_info(fs.FileSelector(self.path))]

    def finished(self, table: np.ndarray) -> list[int]:
        """Numbers of the parts that are there and whole; leftovers of killed runs are deleted."""
        listed = set(self._listed())
        for name in listed:
            if name.startswith(".part-") and name.endswith(".part"):
                with contextlib.suppress(OSError):
                    self.system.delete_file(f"{self.path}/{name}")
        numbers = [n for n in range(len(table)) if name_of(n, self.job.format) in listed]
        with ThreadPoolExecutor(8) as threads:
            counts = list(threads.map(self._rows, numbers))
        return [n for n, count in zip(numbers, counts, strict=True) if count == int(table["rows"][n])]

    def _rows(self, number: int) -> int:
        """Rows of a part's output, or -1 if it is damaged."""
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile

        try:
            with self.system.open_input_file(f"{self.path}/{name_of(number, self.job.format)}") as file:
                if self.job.format == "parquet":
                    return int(ParquetFile(file).metadata.num_rows)
                return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        except (OSError, ArrowInvalid):
            return -1

    def check(self, table: np.ndarray) -> None:
        """Every part is there, and no other."""
        listed = {name for name in self._listed() if name.startswith("part-")}
        wanted = {name_of(n, self.job.format) for n in range(len(table))}
        if listed != wanted:
            strange = sorted(listed ^ wanted)[0]
            raise AlbertkitError(
                f"{self.job.out} should hold {len(wanted):,} parts, and {strange} differs; run the same command again"
            )


def same(mine: dict[str, Any], manifest: dict[str, Any], out: str) -> None:
    """Refuse to mix what two different commands give."""
    for name, value in mine.items():
        before = manifest.get(name)
        if before == value:
            continue
        if name == "inputs":
            known, now = ({entry[0]: entry for entry in entries} for entries in (before or [], value))
            changed = next((n for n in [*now, *known] if known.get(n) != now.get(n)), None)
            what = (
                f"the input {changed} has changed"
                if changed in known and changed in now
                else f"the inputs differ by {changed}"
            )
            what = what if changed else "the inputs are in another order"
        else:
            what = f"{name} was {_shown(before)} and is {_shown(value)}"
        raise AlbertkitError(
            f"{out} was begun by another command: {what}; give the same again, or choose another folder"
        )


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _why(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).split("\n")[0][:160]
