"""Readers of labelled files: `read_examples` turns any of them into examples.

In: the name of a task, a path, `ReadOptions`. Out: `LabelledData`, or one error that lists the problems and remedies.
`labelled_files.py` reads lines and JSON values. `tables.py` (texts), `tagged_files.py` (words with tags) and
`json_files.py` (questions, choices, turns) build on it. `dataset.py` compares the splits of a dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError, nearest
from albertkit.tasks.examples import QuestionExample
from albertkit.tasks.readers.json_files import (
    Rows,
    is_clinc,
    is_split,
    read_choices,
    read_clinc,
    read_questions,
    read_turns,
)
from albertkit.tasks.readers.labelled_files import LabelledFile, Problems, ReadOptions, count_noun, list_names
from albertkit.tasks.readers.tables import read_rewrites, read_texts
from albertkit.tasks.readers.tagged_files import FOLDER_FILES, read_tagged

__all__ = ["READERS", "LabelledData", "ReadOptions", "read_examples"]


@dataclass(frozen=True)
class LabelledData:
    """The examples of a file or list, and notes on how they were read."""

    examples: list[Any]
    notes: tuple[str, ...] = ()


def read_examples(task: str, path: Path | str, options: ReadOptions | None = None) -> LabelledData:
    """The examples in a file or folder, for a task such as classify or tag."""
    if task not in READERS:
        raise AlbertkitError(f"unknown task {task!r}{nearest(str(task), READERS)}. Pass one of {', '.join(READERS)}.")
    path, options = Path(path), options or ReadOptions()
    file = LabelledFile(_find_in_folder(path, options.split) if path.is_dir() else path, options)
    data = check_rows(task, READERS[task](file), file.problems)
    return LabelledData(data.examples, (*file.notes, *data.notes))


def check_rows(task: str, rows: Iterable[tuple[int | str, Any]], problems: Problems) -> LabelledData:
    """The valid examples of rows; answers at a wrong position of their context are moved.

    rows: the line or name of each row, and its example or its problem.
    """
    examples, moved = [], 0
    for place, row in rows:
        problem = row if isinstance(row, str) else row.problem()
        for name, is_needed in (("label", problems.needs_label), ("intent", task == "intent")):
            if is_needed and getattr(row, name, "") is None:
                problem = problem or f"the {name} is missing; write one or omit the example"
        if problem:
            problems.add(place, problem)
        elif place not in problems.lines:
            row, count = row.locate_answers() if isinstance(row, QuestionExample) else (row, 0)
            moved += count
            examples.append(row)
    notes = (
        [f"{count_noun(moved, 'answer')} in {problems.name} moved to the nearest matching position"] if moved else []
    )
    if none := sum(isinstance(example, QuestionExample) and example.is_impossible for example in examples):
        total = count_noun(len(examples), "question")
        notes.append(f"{none:,} of {total} taken as unanswerable (is_impossible, or no answers)")
    return LabelledData(examples, (*notes, *problems.finish(len(examples))))


def _find_in_folder(path: Path, split: str | None) -> Path:
    """A folder that is read as a whole, or the one file or folder in it that contains the split."""
    if (path / FOLDER_FILES[0]).exists():
        return path
    inside = sorted(p for p in path.iterdir() if not p.name.startswith("."))
    if not inside:
        raise AlbertkitError(f"{path} is an empty folder. Pass a file of examples, or a folder that contains one.")
    parts = [p for p in inside if is_split(p.name.split(".")[0], split)]
    if len(parts) != 1:
        names = list_names(p.name for p in inside)
        raise AlbertkitError(f"{path} is a folder with {names}. Name one of them, or pass a split (--split train).")
    return parts[0]


def _read_classes(file: LabelledFile) -> Rows:
    return read_clinc(file) if is_clinc(file) else read_texts(file)


def _read_intents(file: LabelledFile) -> Rows:
    """Words with tags and an intent, or texts with an intent."""
    is_tagged = file.path.is_dir() or (file.is_json and "tokens" in next(file.objects(), (0, {}))[1])
    return read_tagged(file) if is_tagged else _read_classes(file)


READERS: dict[str, Callable[[LabelledFile], Rows]] = {
    "classify": _read_classes,
    "tag": read_tagged,
    "answer": read_questions,
    "choose": read_choices,
    "match": partial(read_texts, needs_pair=True),
    "intent": _read_intents,
    "dialogue": read_turns,
    "generate": read_rewrites,
}
