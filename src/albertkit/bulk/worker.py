"""The worker of every engine: one part → one output file. No torch.

In: a `BulkJob`, and a part of `parts.py`. Out: a file such as `part-000123.npz` in the output folder, written by
`part_files.py`. The same part always gives the same file. Before this file: `part_files.py`; after it: `engines.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, tee
from typing import Any

from albertkit.albert import Albert
from albertkit.artifact import model_folder
from albertkit.bulk.object_store import locate, open_output
from albertkit.bulk.part_files import OutputFormat, PartContent, open_part
from albertkit.bulk.parts import WorkPart, read_part
from albertkit.errors import AlbertkitError
from albertkit.file_io import digest
from albertkit.input_warnings import InputProblems, collect_problems
from albertkit.runtime.packed_texts import PackedOutputs
from albertkit.text_reader import BadRow

GROUP_ROWS = 16_384  # rows written at once
TASKS = ("embed", "classify", "tag")
CHECKSUMS = "_checksums"  # Parquet readers skip names that start with "_"


@dataclass(frozen=True)
class BulkOptions:
    """Options of bulk processing."""

    model: str | None = None
    """Folder or name of the model, by default the built-in English one."""
    task_options: dict[str, Any] = field(default_factory=dict)
    """Arguments of `Albert.embed_iter`, `classify` or `tag`."""
    bits: int | None = None
    """8 or 4: quantize a float model on opening."""
    threads: int = 1
    """Threads of each worker."""
    text_column: str | None = None
    """Field or column of the text; a number (from 1) for a csv or tsv file without header."""
    part_rows: int = 50_000
    """Maximum rows of an output file."""
    skip_bad: bool = False
    """Write an empty result for rows without a text, instead of stopping."""
    format: str | None = None
    """Format of the output: npz (embed only), jsonl or parquet; by default as `choose_format` says."""
    device: str = "cpu"
    """cpu, or cuda: one process computes on a GPU, and the workers read, tokenize and write."""
    precision: str = "float32"
    """float32, bf16 or float16, on a GPU."""

    def __post_init__(self) -> None:
        if not 1 <= self.part_rows <= 10_000_000:
            raise AlbertkitError(f"part_rows={self.part_rows} is out of range. Pass 1 to 10,000,000.")


@dataclass(frozen=True)
class BulkJob:
    """The job of all workers."""

    task: str  # embed, classify or tag
    output: str
    options: BulkOptions
    model_hash: str
    format: OutputFormat
    root: str = ""  # start of relative paths
    device_address: str = ""  # of the process that computes for local workers


@dataclass(frozen=True)
class PartResult:
    """A finished part."""

    rows: int
    bad_rows: int
    problems: InputProblems


def part_name(number: int, format: OutputFormat) -> str:
    return f"part-{number:06d}.{format}"


def checksum_name(part: str) -> str:
    """The file with the SHA-256 of a part's output file."""
    return f"{CHECKSUMS}/{part}.sha256"


def hash_model(model: str | None) -> str:
    """One hash of all files of a model, so that a change of tokenizer or labels is detected."""
    folder = model_folder(model)
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.suffix != ".md") if folder.is_dir() else [folder]
    try:
        hashes = "\n".join(f"{path.name} {digest(path)}" for path in files)
    except OSError as error:
        raise AlbertkitError(f"{folder} cannot be read: {error.strerror}. Pass the folder of a model.") from None
    return hashlib.sha256(hashes.encode()).hexdigest()


def check_model(job: BulkJob) -> None:
    """Raise if this machine has another model under the name of the job's model."""
    if hash_model(job.options.model) != job.model_hash:
        raise AlbertkitError(
            f"the model {job.options.model or 'built in'} differs here. Copy the same model to every machine."
        )


class PartWorker:
    """A model, opened once, that runs parts one after the other. `outputs` computes for it on a device."""

    def __init__(self, job: BulkJob, outputs: PackedOutputs | None = None) -> None:
        self.task, self.options, self.format, self.root = job.task, job.options, job.format, job.root
        check_model(job)
        self.albert = Albert(self.options.model, bits=self.options.bits, threads=self.options.threads)
        self.albert.packed_outputs = outputs
        self.storage, self.folder = locate(job.output, job.root)

    def __call__(self, part: WorkPart) -> PartResult:
        name = part_name(part.number, self.format)
        target = f"{self.folder}/{name}"
        try:
            with open_output(self.storage, target, f"{self.folder}/{checksum_name(name)}") as file:
                with collect_problems() as problems:
                    rows, bad_rows = self._write(file, part)
                if rows != part.rows:
                    raise AlbertkitError(
                        f"{part.file.name} has {rows} rows, but {part.rows} were planned. Copy it again."
                    )
        except OSError as error:
            raise AlbertkitError(
                f"writing {target} failed: {error.strerror or error}. Fix this, then rerun the command to resume "
                "after the finished parts."
            ) from None
        return PartResult(rows, bad_rows, sum(problems, InputProblems()))

    def _write(self, file: Any, part: WorkPart) -> tuple[int, int]:
        """(rows, bad rows) written."""
        options = self.options.task_options
        width = options.get("dim") or self.albert.dim
        kind = self.albert.task.kind if self.task == "classify" else ""
        content = PartContent(self.task, part.file.name, part.first, part.rows, width, kind, options.get("dtype"))
        rows = bad_rows = 0
        with open_part(file, self.format, content) as writer:
            for group in split_groups(self._results(self._texts(part))):
                writer.write(group)
                rows += len(group)
                bad_rows += sum(result is None for result in group)
        return rows, bad_rows

    def _texts(self, part: WorkPart) -> Iterator[str | None]:
        """The text of each row of a part; None where there is none and bad rows are skipped."""
        any_length = self.options.task_options.get("long_texts") == "truncate"
        for number, text in read_part(part, self.root, any_length):
            if not isinstance(text, BadRow):
                yield text
            elif self.options.skip_bad:
                yield None
            else:
                raise AlbertkitError(
                    f"row {number} of {part.file.name} {text}. Correct it, or skip such rows (--skip-bad)."
                )

    def _results(self, texts: Iterator[str | None]) -> Iterator[Any]:
        """The results of the rows, in order; None for a row without a text. Rows are read lazily."""
        rows, ahead = tee(texts)
        results = self._compute(text for text in ahead if text is not None)
        yield from (None if text is None else next(results) for text in rows)

    def _compute(self, texts: Iterator[str]) -> Iterator[Any]:
        options = dict(self.options.task_options)
        if self.task == "embed":
            yield from self.albert.embed_iter(texts, **options)
            return
        pair = options.pop("pair", None)
        for group in split_groups(texts):
            if self.task == "tag":
                yield from self.albert.tag(group, **options)
            else:
                yield from self.albert.classify(group, None if pair is None else [pair] * len(group), **options)


def split_groups(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Lists of `GROUP_ROWS` items."""
    remaining = iter(items)
    while group := list(islice(remaining, GROUP_ROWS)):
        yield group
