"""Any file of labelled data → examples: the one door is `read_examples`.

In: the name of a task, a path, `ReadOptions`. Out: `LabelledData`, or one error that lists what is wrong and what to do. Before this
file: `tables.py` (texts), `columns.py` (words with labels), `trees.py` (questions, choices, turns); after it: one module a task.

Here are also CLINC150, `check_labels`, which compares training data with other data, and `check_known_labels`, which compares a model with data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError, nearest
from albertkit.tasks.examples import (
    ChoiceExample,
    DialogueTurn,
    QuestionExample,
    RewriteExample,
    TaggedExample,
    TextExample,
)
from albertkit.tasks.readers.json_files import read_choices, read_questions, read_turns
from albertkit.tasks.readers.labelled_files import (
    SHOWN,
    LabelledData,
    Problems,
    ReadOptions,
    counted,
    fault,
    form_of,
    loads,
    objects,
    text_of,
    told,
    whole,
)
from albertkit.tasks.readers.rewrites import read_rewrites
from albertkit.tasks.readers.tables import read_texts
from albertkit.tasks.readers.tagged_files import FOLDER, read_tagged

__all__ = ["TASKS", "LabelledData", "ReadOptions", "check_known_labels", "check_labels", "read_examples"]

DEV = {"dev", "val", "valid", "validation", "validate"}  # names of one split
OUT = "oos"  # what CLINC150 calls texts that no intent fits
Examples = tuple[list[Any], list[str]]


def read_examples(task: str, path: Path | str, options: ReadOptions | None = None) -> LabelledData:
    """The examples in a file or folder, for one of `TASKS`."""
    if task not in TASKS:
        raise AlbertkitError(f"unknown task {task!r}{nearest(str(task), TASKS)}; choose one of {', '.join(TASKS)}")
    path, options = Path(path), options or ReadOptions()
    if path.is_dir():
        path = _in_folder(task, path, options.split)
    problems = Problems(str(path), options.skip_bad)
    examples, notes = TASKS[task](path, options, problems)
    return LabelledData(examples, (*notes, *problems.finish(len(examples))))


def _in_folder(task: str, path: Path, split: str | None) -> Path:
    """A folder that is read as a whole, or the one file or folder in it that holds the split."""
    inside = sorted(p for p in path.iterdir() if not p.name.startswith("."))
    parts = [p for p in inside if _is_split(p.name.split(".")[0], split)]
    if (path / FOLDER[0]).exists() or (task == "choose" and not parts and any(path.rglob("*.txt"))):
        return path
    if len(parts) == 1:
        return parts[0]
    has = told(p.name for p in inside)
    raise AlbertkitError(f"{path} is a folder with {has}; name one of them, or say which part to read (--split train)")


def _is_split(name: str, split: str | None) -> bool:
    return name == split or (name in DEV and split in DEV)


def _texts(path: Path, options: ReadOptions, problems: Problems) -> Examples:
    parts = _clinc_parts(path, form_of(path, options))
    return _clinc(path, parts, options, problems) if parts else read_texts(path, options, problems)


def _pairs(path: Path, options: ReadOptions, problems: Problems) -> Examples:
    return read_texts(path, options, problems, paired=True)


# Intents -------------------------------------------------------------------------------------------------------------


def _intents(path: Path, options: ReadOptions, problems: Problems) -> Examples:
    """Words with labels and an intent, or texts with one."""
    if path.is_dir():
        return read_tagged(path, options, problems)
    form = form_of(path, options)
    if form not in ("json", "jsonl"):
        return read_texts(path, options, problems)
    if parts := _clinc_parts(path, form):
        return _clinc(path, parts, options, problems)
    first = next(objects(path, form, Problems(str(path))), (0, {}))[1]
    if "tokens" not in first:
        return read_texts(path, options, problems)
    examples, notes = read_tagged(path, options, problems)
    good = [e for e in examples if e.intent is not None or not options.labelled]
    for example in examples:
        if example.intent is None and options.labelled:
            problems.add(int(example.where.rpartition(":")[2]), "the intent is missing; write one in 'intent'")
    return good, notes


def _clinc_parts(path: Path, form: str) -> dict[str, Any] | None:
    """The parts of a CLINC150 file; None if it is something else."""
    parts = loads(text_of(path)) if form == "json" else None
    if parts and all(isinstance(rows, list) and all(isinstance(row, list) for row in rows) for rows in parts.values()):
        return parts
    return None


def _clinc(path: Path, parts: dict[str, Any], options: ReadOptions, problems: Problems) -> Examples:
    """{"train": [[text, intent], …], "oos_train": …}: a split with the texts that belong to none of its intents."""
    split = options.split or "train"
    names = [name for name in parts if _is_split(name.removeprefix(f"{OUT}_"), split) or name == split]
    if not names:
        raise AlbertkitError(f"{path} has no part {split!r}; it has {told(parts)}: choose one (--split)")
    examples = []
    for name in sorted(names, key=lambda name: name.startswith(OUT)):
        for number, row in enumerate(parts[name], 1):
            wrong = fault(row[0], "text") or fault(row[1], "intent") if len(row) == 2 else "write a text and an intent"
            if wrong:
                problems.add(f"{name} {number}", wrong)
            else:
                text, label = whole(row[0]).strip(), whole(row[1]).strip()
                examples.append(TextExample(text, None, label, f"{path}:{name} {number}"))
    out = sum(example.label == OUT for example in examples)
    return examples, [f"{' and '.join(names)}: {len(examples):,} texts, {out:,} of them out of scope ({OUT})"]


TASKS: dict[str, Callable[[Path, ReadOptions, Problems], Examples]] = {
    "classify": _texts,
    "tag": read_tagged,
    "answer": read_questions,
    "choose": read_choices,
    "match": _pairs,
    "intent": _intents,
    "dialogue": read_turns,
    "generate": read_rewrites,
}


# Training data beside other data -------------------------------------------------------------------------------------


def check_labels(train: Sequence[Any], dev: Sequence[Any] = (), unseen: str = "error") -> tuple[str, ...]:
    """Errors of training data as a whole, and of `dev` beside it; notes on what is only odd.

    Errors: one class or value only, no entity, no answer; numbers on one side and classes on the other; labels in `dev` that
    training never shows (with unseen="note", a note, and an error only if it shows none of them). Notes: examples of `dev`
    that are in the training data too.
    """
    if unseen not in ("error", "note"):
        raise AlbertkitError(f"unseen is {unseen!r}; choose error or note")
    known = Counter(label for example in train for label in _labels(example))
    _check_variety(train, known)
    _check_numbers(train, dev)
    notes = []
    asked = [(example, label) for example in dev for label in _labels(example)]
    new = [(example, label) for example, label in asked if label not in known]
    if new:
        shown = [
            f"{e.where or 'an example'}: {kind} {label!r}{_hint(kind, label, known)}"
            for e, (kind, label) in new[:SHOWN]
        ]
        message = f"{counted(len(new), 'label')} unseen in training; correct it, or add training data that has it"
        if unseen == "error":
            raise AlbertkitError(f"{message}:\n  " + "\n  ".join(shown))
        if known and len(new) == len(asked):
            raise AlbertkitError(
                f"training shows none of the {counted(len(new), 'label')} held out; {shown[0]}, and training has "
                f"{told(name for _, name in known)}: give held-out data with the same labels, and say how labels are "
                "written (--label-column, --separator, --kind)"
            )
        notes.append(f"{message}; the first: {shown[0]}")
    seen = {key for example in train if (key := _key(example)) is not None}
    twice = [example for example in dev if _key(example) in seen]
    if twice:
        where = f", the first {twice[0].where}" if twice[0].where else ""
        notes.append(f"{len(twice):,} of {counted(len(dev), 'held-out example')} in the training data too{where}")
    return tuple(notes)


def check_known_labels(task: Any, examples: Sequence[Any], so: str = "counted as missed") -> tuple[str, ...]:
    """Notes on labels that a finished model does not know, and what becomes of them; an error if it knows none of them."""
    names = {"label": getattr(task, "labels", ()), "intent": getattr(task, "intents", ())}
    if isinstance(examples[0] if examples else None, TaggedExample):
        names["entity"] = [label[2:] for label in task.labels if label != "O"]
    known = Counter((kind, name) for kind, own in names.items() for name in own)
    if getattr(task, "min_probability", 0):
        known["label", OUT] += 1
    kinds = {kind for kind, _ in known}
    asked = [(example, pair) for example in examples for pair in _labels(example) if pair[0] in kinds]
    new = [(example, pair) for example, pair in asked if pair not in known]
    if not new:
        return ()
    first, (kind, label) = new[0]
    there = told(name for _, name in known)
    if len(new) == len(asked):
        raise AlbertkitError(
            f"the model knows none of the labels; {first.where} has the {kind} {label!r}, and it knows {there}: "
            "give data with its labels, and say how labels are written (--label-column, --separator, --kind)"
        )
    return (
        f"{counted(len(new), 'label')} of {len(asked):,} unknown to the model, {so}; the first: {first.where}: {kind} {label!r}"
        f"{_hint(kind, label, known)}",
    )


def _check_variety(train: Sequence[Any], known: Counter[tuple[str, str]]) -> None:
    """Training needs two classes, or an entity."""
    classes = [label for kind, label in known if kind in ("label", "intent")]
    several = any(isinstance(example, TextExample) and isinstance(example.label, tuple) for example in train)
    first = train[0].where if train else ""
    if len(classes) == 1 and not several:
        raise AlbertkitError(
            f"all {len(train):,} examples from {first or 'the training data'} on have the class {classes[0]!r}; "
            "training needs two at least: add examples of another"
        )
    if train and not known and isinstance(train[0], TaggedExample):
        raise AlbertkitError(
            f"none of the {len(train):,} examples from {first or 'the training data'} on holds an entity: label some"
        )

    values = {
        example.label for example in train if isinstance(example, TextExample) and isinstance(example.label, float)
    }
    if len(values) == 1 and all(isinstance(example, TextExample) and example.label in values for example in train):
        raise AlbertkitError(
            f"all {len(train):,} examples from {first or 'the training data'} on have the value {values.pop():g}; "
            "training needs two at least: add examples of another"
        )
    if train and all(isinstance(example, QuestionExample) and not example.answers for example in train):
        raise AlbertkitError(
            f"none of the {len(train):,} questions from {first or 'the training data'} on has an answer; training needs "
            'some: write them in \'answers\', like [{"text": "Ann", "answer_start": 0}]'
        )


def _check_numbers(train: Sequence[Any], dev: Sequence[Any]) -> None:
    """Numbers are held out where numbers are learnt, and classes where classes are."""
    kinds = [
        [(e, isinstance(e.label, float)) for e in part if isinstance(e, TextExample) and e.label is not None]
        for part in (train, dev)
    ]
    if not kinds[0]:
        return
    _, numbers = kinds[0][0]
    odd = next(
        (e for e, other in kinds[1] if other != numbers and not (numbers and isinstance(e.label, Integral))), None
    )
    if odd is not None:
        has, rule = ("values", "a number") if numbers else ("classes", "one of them")
        raise AlbertkitError(
            f"{odd.where or 'a held-out example'} has the label {odd.label!r:.40}, and training has {has}; write {rule}, or "
            "say what labels are (--kind single, multi or regression)"
        )


def _labels(example: Any) -> list[tuple[str, str]]:
    """(kind, name) of everything in an example that a model chooses among."""
    if isinstance(example, TextExample) and isinstance(example.label, (str, tuple, Integral)):
        return [("label", n) for n in (example.label if isinstance(example.label, tuple) else (str(example.label),))]
    if isinstance(example, TaggedExample):
        intent = [] if example.intent is None else [("intent", example.intent)]
        return [*intent, *(("entity", span.label) for span in example.spans)]
    if isinstance(example, DialogueTurn):
        return [("slot", slot) for slot, _ in (*example.state, *example.updates)]
    return []


def _hint(kind: str, label: str, known: Counter[tuple[str, str]]) -> str:
    return nearest(label, [other for other_kind, other in known if other_kind == kind])


def _key(example: Any) -> tuple[Any, ...] | None:
    """What makes two examples the same; None for turns, since people say the same thing again and again."""
    if isinstance(example, TextExample):
        return example.text, example.pair
    if isinstance(example, QuestionExample):
        return example.question, example.context
    if isinstance(example, RewriteExample):
        return example.source, example.target
    if isinstance(example, ChoiceExample):
        return example.context, example.question, example.choices
    return (example.text,) if isinstance(example, TaggedExample) else None
