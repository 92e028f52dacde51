"""Any labelled file → examples, with one function: `read_examples`.

In: the name of a task, a path, `ReadOptions`. Out: `LabelledData`, or one error that lists the problems and remedies.
Before this file: `tables.py` (texts), `tagged_files.py` (words with tags), `json_files.py` (questions, choices, turns);
after it: `validate.py`, which compares the parts of a data set.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError, nearest
from albertkit.tasks.classify import OUT_OF_SCOPE
from albertkit.tasks.examples import TextExample
from albertkit.tasks.readers.json_files import read_choices, read_questions, read_turns
from albertkit.tasks.readers.labelled_files import (
    LabelledData,
    Problems,
    ReadOptions,
    clean,
    file_format,
    file_text,
    json_objects,
    list_names,
    parse_object,
    text_problem,
)
from albertkit.tasks.readers.tables import read_rewrites, read_texts
from albertkit.tasks.readers.tagged_files import FOLDER_FILES, read_tagged

__all__ = ["READERS", "LabelledData", "ReadOptions", "read_examples"]

DEV_NAMES = {"dev", "val", "valid", "validation", "validate"}
Examples = tuple[list[Any], list[str]]  # and notes


def read_examples(task: str, path: Path | str, options: ReadOptions | None = None) -> LabelledData:
    """The examples in a file or folder, for a task such as classify or tag."""
    if task not in READERS:
        raise AlbertkitError(f"unknown task {task!r}{nearest(str(task), READERS)}. Pass one of {', '.join(READERS)}.")
    path, options = Path(path), options or ReadOptions()
    if path.is_dir():
        path = _find_in_folder(task, path, options.split)
    problems = Problems(str(path), options.skip_bad)
    examples, notes = READERS[task](path, options, problems)
    return LabelledData(examples, (*notes, *problems.finish(len(examples))))


def _find_in_folder(task: str, path: Path, split: str | None) -> Path:
    """A folder that is read as a whole, or the one file or folder in it that contains the split."""
    inside = sorted(p for p in path.iterdir() if not p.name.startswith("."))
    parts = [p for p in inside if _is_split(p.name.split(".")[0], split)]
    is_race = task == "choose" and not parts and any(path.rglob("*.txt"))
    if (path / FOLDER_FILES[0]).exists() or is_race:
        return path
    if len(parts) == 1:
        return parts[0]
    names = list_names(p.name for p in inside)
    raise AlbertkitError(f"{path} is a folder with {names}; name one of them, or the part to read (--split train)")


def _is_split(name: str, split: str | None) -> bool:
    return name == split or (name in DEV_NAMES and split in DEV_NAMES)


def _read_classes(path: Path, options: ReadOptions, problems: Problems) -> Examples:
    parts = _clinc_parts(path, file_format(path, options))
    return _read_clinc(path, parts, options, problems) if parts else read_texts(path, options, problems)


def _read_pairs(path: Path, options: ReadOptions, problems: Problems) -> Examples:
    return read_texts(path, options, problems, needs_pair=True)


def _read_intents(path: Path, options: ReadOptions, problems: Problems) -> Examples:
    """Words with tags and an intent, or texts with an intent."""
    if path.is_dir():
        return read_tagged(path, options, problems)
    format = file_format(path, options)
    if format not in ("json", "jsonl"):
        return read_texts(path, options, problems)
    if parts := _clinc_parts(path, format):
        return _read_clinc(path, parts, options, problems)
    first = next(json_objects(path, format, Problems(str(path))), (0, {}))[1]
    if "tokens" not in first:
        return read_texts(path, options, problems)
    examples, notes = read_tagged(path, options, problems)
    if not options.labelled:
        return examples, notes
    for example in examples:
        if example.intent is None:
            problems.add(int(example.where.rpartition(":")[2]), "the intent is missing; write one in 'intent'")
    return [example for example in examples if example.intent is not None], notes


# CLINC150: {"train": [[text, intent], …], "oos_train": …} ---------------------------------------------------------


def _clinc_parts(path: Path, format: str) -> dict[str, Any] | None:
    """The parts of a CLINC150 file; None if it is something else."""
    parts = parse_object(file_text(path)) if format == "json" else None
    if parts and all(isinstance(rows, list) and all(isinstance(row, list) for row in rows) for rows in parts.values()):
        return parts
    return None


def _read_clinc(path: Path, parts: dict[str, Any], options: ReadOptions, problems: Problems) -> Examples:
    """A split with its texts that are out of scope."""
    split = options.split or "train"
    names = [name for name in parts if _is_split(name.removeprefix(f"{OUT_OF_SCOPE}_"), split) or name == split]
    if not names:
        raise AlbertkitError(f"{path} has no part {split!r}; it has {list_names(parts)}: choose one (--split)")
    examples = []
    for name in sorted(names, key=lambda name: name.startswith(OUT_OF_SCOPE)):
        for number, row in enumerate(parts[name], 1):
            problem: str | None = "write a text and an intent"
            if len(row) == 2:
                problem = text_problem(row[0], "text") or text_problem(row[1], "intent")
            if problem:
                problems.add(f"{name} {number}", problem)
            else:
                examples.append(TextExample(clean(row[0]), None, clean(row[1]), f"{path}:{name} {number}"))
    outside = sum(example.label == OUT_OF_SCOPE for example in examples)
    note = f"{' and '.join(names)}: {len(examples):,} texts, {outside:,} of them out of scope ({OUT_OF_SCOPE})"
    return examples, [note]


READERS: dict[str, Callable[[Path, ReadOptions, Problems], Examples]] = {
    "classify": _read_classes,
    "tag": read_tagged,
    "answer": read_questions,
    "choose": read_choices,
    "match": _read_pairs,
    "intent": _read_intents,
    "dialogue": read_turns,
    "generate": read_rewrites,
}
