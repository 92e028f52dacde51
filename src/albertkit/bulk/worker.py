"""One part → one output file: what every engine lets its workers do. No torch.

In: a `Job`, and a `Part` of `parts.py`. Out: `part-000123.parquet` (or .jsonl) in the output folder, whole or not at all, with the columns

    source   the input file
    row      the row's number in it, from 0
    vector   for embed; for classify: label, probability; for tag: spans (start, end, label, score)

one row for each row of the input, in its order; the texts themselves are left out. A row without a text has no result (null), if bad rows may be passed over.
Doing a part twice gives the same file, which is why a worker may be killed at any time and its part given to another. Before this file: `parts.py`;
after it: the engines.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from albertkit.albert import Albert
from albertkit.artifact import model_folder
from albertkit.bulk.object_store import Source, appearing, place
from albertkit.bulk.part_reader import Bad, rows
from albertkit.bulk.parts import Part
from albertkit.errors import AlbertkitError
from albertkit.file_io import digest

GROUP = 16_384  # rows written at once
TASKS = ("embed", "classify", "tag")
FORMATS = ("parquet", "jsonl")


@dataclass(frozen=True)
class Job:
    """What is to be done, as a worker needs to know it."""

    task: str
    model: str | None
    hash: str  # of the model's files
    out: str
    options: dict[str, Any] = field(default_factory=dict)  # of `Albert.embed_iter`, `classify` or `tag`
    bits: int | None = None
    threads: int = 1
    format: str = "parquet"
    skip_bad: bool = False
    root: str = ""  # where relative paths begin


@dataclass(frozen=True)
class Done:
    """A finished part."""

    number: int
    rows: int
    bad: int


def name_of(number: int, format: str) -> str:
    """The output file of a part."""
    return f"part-{number:06d}.{format}"


def model_hash(model: str | None) -> str:
    """One hash of all files of a model, so that a changed tokenizer or label counts as another model."""
    folder = model_folder(model)
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.suffix != ".md") if folder.is_dir() else [folder]
    try:
        listed = "\n".join(f"{path.name} {digest(path)}" for path in files)
    except OSError as error:
        raise AlbertkitError(f"{folder} cannot be read: {error.strerror}; name the folder of a model") from None
    return hashlib.sha256(listed.encode()).hexdigest()


class Worker:
    """A model that does parts, one after the other; it is opened once."""

    def __init__(self, job: Job) -> None:
        if model_hash(job.model) != job.hash:
            raise AlbertkitError(
                f"the model {job.model or 'built in'} is another one on this worker; put the same model on every machine"
            )
        self.job = job
        self.albert = Albert(job.model, bits=job.bits, threads=job.threads)
        self.system, self.folder = place(job.out, job.root)

    def __call__(self, part: Part) -> Done:
        """Do one part."""
        target = f"{self.folder}/{name_of(part.number, self.job.format)}"
        try:
            with appearing(self.system, target) as file:
                count, bad = self._write(file, part)
                if count != part.rows:
                    raise AlbertkitError(
                        f"{part.source.name} gave {count} rows where {part.rows} were planned: copy it anew"
                    )
        except OSError as error:
            raise AlbertkitError(
                f"writing {target} failed: {error.strerror or error}; put that right and run the same command again, which keeps "
                "the finished parts"
            ) from None
        return Done(part.number, count, bad)

    def _write(self, file: Any, part: Part) -> tuple[int, int]:
        """(rows, bad rows) written."""
        sink = SINKS[self.job.format](file)
        count = bad = 0
        for group in grouped(self._results(self._texts(part))):
            sink.write(self._table(part.source, part.stretch.first + count, group))
            count += len(group)
            bad += sum(result is None for result in group)
        sink.close()
        return count, bad

    def _texts(self, part: Part) -> Iterator[str | None]:
        """The text of each row of a part; None where there is none and that may be."""
        any_length = self.job.options.get("long_texts") == "truncate"
        for number, text in rows(part.source, part.stretch, self.job.root, any_length):
            if not isinstance(text, Bad):
                yield text
            elif self.job.skip_bad:
                yield None
            else:
                raise AlbertkitError(
                    f"row {number} of {part.source.name} {text}; correct it, or pass such rows over (--skip-bad)"
                )

    def _results(self, given: Iterator[str | None]) -> Iterator[Any]:
        """The results of the rows, in order; None where there was no text. Reads ahead as far as the model does, no further."""
        missing: deque[int] = deque()

        def texts() -> Iterator[str]:
            for row, text in enumerate(given):
                if text is None:
                    missing.append(row)
                else:
                    yield text

        at = 0
        for result in self._compute(texts()):
            while missing and missing[0] == at:
                missing.popleft()
                yield None
                at += 1
            yield result
            at += 1
        yield from (None for _ in missing)

    def _compute(self, texts: Iterator[str]) -> Iterator[Any]:
        options = dict(self.job.options)
        if self.job.task == "embed":
            yield from self.albert.embed_iter(texts, **options)
            return
        pair = options.pop("pair", None)
        for group in grouped(texts):
            if self.job.task == "tag":
                yield from self.albert.tag(group, **options)
            else:
                yield from self.albert.classify(group, None if pair is None else [pair] * len(group), **options)

    def _table(self, source: Source, first: int, results: list[Any]) -> Any:
        import pyarrow as arrow

        count = len(results)
        numbers = arrow.array(np.arange(first, first + count, dtype=np.int64))
        names = arrow.DictionaryArray.from_arrays(arrow.array(np.zeros(count, np.int32)), [source.name])
        return arrow.table({"source": names, "row": numbers, **self._columns(results)})

    def _columns(self, results: list[Any]) -> dict[str, Any]:
        """The results as columns of a table."""
        import pyarrow as arrow

        if self.job.task == "embed":
            width = self.job.options.get("dim") or self.albert.dim
            none = np.zeros(width, np.float32)
            flat = np.concatenate([none if vector is None else vector for vector in results])
            absent = arrow.array([vector is None for vector in results], arrow.bool_())
            kind = arrow.list_(arrow.float32(), width)
            vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(flat), type=kind, mask=absent)
            return {"vector": vectors}
        if self.job.task == "tag":
            span = arrow.struct(
                {"start": arrow.int64(), "end": arrow.int64(), "label": arrow.string(), "score": arrow.float64()}
            )
            spans = [None if r is None else [{n: getattr(s, n) for n in span.names} for s in r.spans] for r in results]
            return {"spans": arrow.array(spans, arrow.list_(span))}
        kind = {"multi": arrow.list_(arrow.string()), "regression": arrow.float64()}.get(
            self.albert.task.kind, arrow.string()
        )
        labels = [None if r is None else list(r.label) if isinstance(r.label, tuple) else r.label for r in results]
        sure = [None if r is None else r.probability for r in results]
        return {"label": arrow.array(labels, kind), "probability": arrow.array(sure, arrow.float64())}


def grouped(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Stretches of `GROUP`."""
    held: list[Any] = []
    for item in items:
        held.append(item)
        if len(held) == GROUP:
            yield held
            held = []
    if held:
        yield held


class Parquet:
    """Tables to a Parquet file, each as a group of rows."""

    def __init__(self, file: Any) -> None:
        self.file: Any = file
        self.sink: Any = None

    def write(self, table: Any) -> None:
        """Add a table."""
        from pyarrow.parquet import ParquetWriter

        if self.sink is None:
            # numbers of vectors hardly repeat, and nobody looks for the smallest one
            self.sink = ParquetWriter(self.file, table.schema, use_dictionary=["source"], write_statistics=["row"])
        self.sink.write_table(table)

    def close(self) -> None:
        """Write the footer."""
        if self.sink is not None:
            self.sink.close()


class Jsonl:
    """Tables to lines of JSON."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, table: Any) -> None:
        """Add a table."""
        for row in table.to_pylist():
            self.file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")

    def close(self) -> None:
        """Nothing is left to do."""


SINKS: dict[str, type[Parquet] | type[Jsonl]] = {"parquet": Parquet, "jsonl": Jsonl}
