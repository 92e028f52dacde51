"""Checks of examples: those that a program passes in a list, and the parts of a data set beside each other.

In: a task's name and files or lists of examples. Out: the examples of each part and notes, or one error that names the
example. Before this file: `readers/`; after it: `train/` and the commands that read labelled data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from math import isfinite
from numbers import Integral
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError, nearest
from albertkit.tasks import TASKS
from albertkit.tasks.classify import OUT_OF_SCOPE, label_kind
from albertkit.tasks.examples import (
    ChoiceExample,
    DialogueTurn,
    QuestionExample,
    RewriteExample,
    TaggedExample,
    TextExample,
)
from albertkit.tasks.readers.json_files import locate_answers
from albertkit.tasks.readers.labelled_files import MAX_SHOWN, LabelledData, ReadOptions, count_noun, list_names
from albertkit.tasks.readers.read_examples import read_examples
from albertkit.tasks.readers.tagged_files import overlap_problem
from albertkit.tasks.task import Task

CONSTRUCTORS = {
    TextExample: "TextExample('lovely', label='good')",
    TaggedExample: "TaggedExample('Ann sings', ((0, 3), (4, 9)), (Span(0, 3, 'PER'),))",
    QuestionExample: "QuestionExample('1', 'Who sings?', 'Ann sings.', ((0, 'Ann'),))",
    ChoiceExample: "ChoiceExample('Ann sings.', 'Who sings?', ('Ann', 'Bob'), 0)",
    DialogueTurn: "DialogueTurn('1', 0, '', 'thai food', (('food', 'thai'),), (('food', 'thai'),))",
    RewriteExample: "RewriteExample('a long text', 'a short one')",
}
LABEL_FLAGS = "(--label-column, --separator, --kind)"


def read_parts(
    task: str, sources: Mapping[str, Path | str | Sequence[Any]], options: ReadOptions, log: Callable[[str], None]
) -> dict[str, list[Any]]:
    """The examples of each part (train, dev, test): read from a file, or taken from a list that is checked."""
    parts: dict[str, list[Any]] = {}
    for name, source in sources.items():
        if isinstance(source, str | Path):
            kind = _kind_of_part(parts.get("train", ()), options)
            data = read_examples(task, source, replace(options, split=options.split or name, kind=kind))
            notes = [f"{source}: {text}" for text in data.notes]
        else:
            data = validate_examples(task, name, source)
            notes = list(data.notes)
        for text in notes:
            log(text)
        parts[name] = data.examples
    if "train" in parts:
        for text in check_labels(parts["train"], parts.get("dev", ()), unseen="note"):
            log(text)
    return parts


def _kind_of_part(train: Sequence[Any], options: ReadOptions) -> str:
    """What the labels of another part are: as in the options, else as in training."""
    label = next((e.label for e in train if isinstance(e, TextExample) and e.label is not None), None)
    if options.kind != "auto" or options.separator is not None or label is None:
        return options.kind
    return label_kind(label)


# Lists of examples ---------------------------------------------------------------------------------------------------


def validate_examples(task: str, name: str, examples: Sequence[Any]) -> LabelledData:
    """The examples of a part, checked for a task; answers at a wrong place of their context are moved."""
    examples = list(examples)
    if not examples:
        raise AlbertkitError(f"there are no examples in {name}. Pass some, or a file.")
    odd = next((example for example in examples if not is_dataclass(example)), None)
    if odd is not None:
        raise AlbertkitError(
            f"{name} contains a {type(odd).__name__}, which is no example; write  {CONSTRUCTORS[TextExample]}  of "
            "albertkit.tasks.examples (TaggedExample, QuestionExample, ChoiceExample …), or pass a file"
        )
    types = TASKS[task].example_types
    expected = next((kind for kind in types if isinstance(examples[0], kind)), types[0])
    moved = 0
    for number, example in enumerate(examples, 1):
        problem = _example_problem(task, expected, example, examples[0])
        if not problem and isinstance(example, QuestionExample) and not example.is_impossible:
            located = locate_answers(example.context, example.answers)
            if isinstance(located, str):
                problem = located
            elif located[1]:
                examples[number - 1] = replace(example, answers=located[0])
                moved += located[1]
        if problem:
            raise AlbertkitError(f"example {number} of {name}: {problem}")
    notes = (f"{count_noun(moved, 'answer')} not where {name} says, but nearby",) if moved else ()
    return LabelledData(examples, notes)


def _example_problem(task: str, expected: type, example: Any, first: Any) -> str | None:
    """The problem with an example and its remedy; None if there is none."""
    if not isinstance(example, expected):
        found = f"{task} learns from {expected.__name__}, and this is a {type(example).__name__}"
        return f"{found}; write  {CONSTRUCTORS[expected]}"
    if isinstance(example, TextExample):
        needs_label = not TASKS[task].gives_vectors or first.label is not None or example.label is not None
        return _label_problem(example.label, first.label) if needs_label else None
    if isinstance(example, TaggedExample):
        return _tags_problem(task, example)
    if isinstance(example, QuestionExample) and not example.answers and not example.is_impossible:
        return "there is no answer; give one, or mark the question with is_impossible=True"
    if isinstance(example, ChoiceExample):
        count = len(example.choices)
        if example.answer is None or not 0 <= example.answer < count:
            return f"the answer is {example.answer}; give its number from 0 to {count - 1}"
    if isinstance(example, RewriteExample) and example.target is None:
        return "the target is None; give the text to generate"
    return None


def _label_problem(label: Any, first: Any) -> str | None:
    if label is None:
        return "the label is None; give one, or omit the example"
    if not isinstance(label, str | float | tuple | Integral):
        types = "a str (a class), a float (a value) or a tuple of str (several classes)"
        return f"the label is a {type(label).__name__}; write {types}"
    if isinstance(label, float) and not isfinite(label):
        return f"the label is {label}; give a finite number, or omit the example"
    is_same = isinstance(label, float | Integral) if isinstance(first, float) else not isinstance(label, float)
    if (isinstance(label, tuple) and not isinstance(first, tuple)) or not is_same:
        rule = "give all of them classes (str), or all several (tuple), or all values (float)"
        return f"the label is {label!r:.40}, and the first example has {first!r:.40}; {rule}"
    return None


def _tags_problem(task: str, example: TaggedExample) -> str | None:
    if "classify" in TASKS[task].heads and example.intent is None:
        return "the intent is None; give one, or omit the example"
    for span in example.spans:
        if not isinstance(span.label, str) or not span.label:
            place = f"the entity from {span.start} to {span.end} has the label {span.label!r}"
            return f"{place}; give it a name, such as 'PER', or omit it"
    return overlap_problem(sorted(example.spans, key=lambda span: (span.start, span.end)), example.text)


# Training data beside other data -------------------------------------------------------------------------------------


def check_labels(train: Sequence[Any], dev: Sequence[Any] = (), unseen: str = "error") -> tuple[str, ...]:
    """Raise for training data that cannot be learnt from, and for labels in `dev` that do not fit it; return notes.

    Errors: only one class or value, no entity, no answer; numbers in one part and classes in the other; labels in `dev`
    that training does not contain (with unseen="note" a note, and an error only if it contains none of them). Notes:
    examples of `dev` that are in the training data, too.
    """
    if unseen not in ("error", "note"):
        raise AlbertkitError(f"unseen={unseen!r} is not known. Pass error or note.")
    known = Counter(label for example in train for label in _labels(example))
    _check_variety(train, known)
    _check_same_kind(train, dev)
    notes = []
    labels = [(example, label) for example in dev for label in _labels(example)]
    new = [(example, label) for example, label in labels if label not in known]
    if new:
        shown = [
            f"{e.where or 'an example'}: {kind} {label!r}{_suggestion(kind, label, known)}"
            for e, (kind, label) in new[:MAX_SHOWN]
        ]
        message = f"{count_noun(len(new), 'label')} unseen in training; correct it, or add training data that has it"
        if unseen == "error":
            raise AlbertkitError(f"{message}:\n  " + "\n  ".join(shown))
        if known and len(new) == len(labels):
            raise AlbertkitError(
                f"training contains none of the {count_noun(len(new), 'label')} held out; {shown[0]}, and training has "
                f"{list_names(name for _, name in known)}: pass held-out data with the same labels, and how labels are "
                f"written {LABEL_FLAGS}"
            )
        notes.append(f"{message}; the first: {shown[0]}")
    seen = {key for example in train if (key := _identity(example)) is not None}
    twice = [example for example in dev if _identity(example) in seen]
    if twice:
        where = f", the first {twice[0].where}" if twice[0].where else ""
        notes.append(f"{len(twice):,} of {count_noun(len(dev), 'held-out example')} in the training data too{where}")
    return tuple(notes)


def check_known_labels(task: Task, examples: Sequence[Any], effect: str = "counted as missed") -> tuple[str, ...]:
    """Notes on labels that a model does not know, and their effect; an error if it knows none of them."""
    names = {"label": task.labels, "intent": getattr(task, "intents", ())}
    if isinstance(examples[0] if examples else None, TaggedExample):
        names["entity"] = [label[2:] for label in task.labels if label != "O"]
    known = Counter((kind, name) for kind, own in names.items() for name in own)
    if getattr(task, "min_probability", 0):
        known["label", OUT_OF_SCOPE] += 1
    kinds = {kind for kind, _ in known}
    labels = [(example, pair) for example in examples for pair in _labels(example) if pair[0] in kinds]
    new = [(example, pair) for example, pair in labels if pair not in known]
    if not new:
        return ()
    first, (kind, label) = new[0]
    if len(new) == len(labels):
        raise AlbertkitError(
            f"the model knows none of the labels; {first.where} has the {kind} {label!r}, and it knows "
            f"{list_names(name for _, name in known)}: pass data with its labels, and how labels are written "
            f"{LABEL_FLAGS}"
        )
    count = f"{count_noun(len(new), 'label')} of {len(labels):,} unknown to the model, {effect}"
    return (f"{count}; the first: {first.where}: {kind} {label!r}{_suggestion(kind, label, known)}",)


def _check_variety(train: Sequence[Any], known: Counter[tuple[str, str]]) -> None:
    """Training needs two classes or values, an entity, or an answer."""
    if not train:
        return
    start = f"{len(train):,} %s from {train[0].where or 'the training data'} on"
    examples, questions = start % "examples", start % "questions"
    classes = [label for kind, label in known if kind in ("label", "intent")]
    is_multi = any(isinstance(e, TextExample) and isinstance(e.label, tuple) for e in train)
    values = {e.label if isinstance(e, TextExample) and isinstance(e.label, float) else None for e in train}
    one = f"the class {classes[0]!r}" if len(classes) == 1 and not is_multi else ""
    if len(values) == 1 and None not in values:
        one = f"the value {values.pop():g}"
    if one:
        raise AlbertkitError(f"all {examples} have {one}; training needs at least two: add examples of another")
    if not known and isinstance(train[0], TaggedExample):
        raise AlbertkitError(f"none of the {examples} contains an entity: label some")
    if all(isinstance(e, QuestionExample) and not e.answers for e in train):
        raise AlbertkitError(
            f"none of the {questions} has an answer; training needs some: write them in 'answers', like "
            '[{"text": "Ann", "answer_start": 0}]'
        )


def _check_same_kind(train: Sequence[Any], dev: Sequence[Any]) -> None:
    """Held-out labels must be numbers if those of training are, and classes if those are."""
    labelled = [e for e in train if isinstance(e, TextExample) and e.label is not None]
    if not labelled:
        return
    has_numbers = isinstance(labelled[0].label, float)
    for example in dev:
        if not isinstance(example, TextExample) or example.label is None:
            continue
        is_number = isinstance(example.label, float) or (has_numbers and isinstance(example.label, Integral))
        if is_number != has_numbers:
            found, rule = ("values", "a number") if has_numbers else ("classes", "one of them")
            raise AlbertkitError(
                f"{example.where or 'a held-out example'} has the label {example.label!r:.40}, and training has "
                f"{found}; write {rule}, or pass what labels are (--kind single, multi or regression)"
            )


def _labels(example: Any) -> Iterator[tuple[str, str]]:
    """(kind, name) of everything in an example that a model chooses among."""
    if isinstance(example, TextExample) and isinstance(example.label, (str, tuple, Integral)):
        for name in example.label if isinstance(example.label, tuple) else (str(example.label),):
            yield "label", name
    elif isinstance(example, TaggedExample):
        if example.intent is not None:
            yield "intent", example.intent
        for span in example.spans:
            yield "entity", span.label
    elif isinstance(example, DialogueTurn):
        for slot, _ in (*example.state, *example.updates):
            yield "slot", slot


def _suggestion(kind: str, label: str, known: Counter[tuple[str, str]]) -> str:
    return nearest(label, [other for other_kind, other in known if other_kind == kind])


def _identity(example: Any) -> tuple[Any, ...] | None:
    """What makes two examples the same; None for turns, since people repeat themselves."""
    if isinstance(example, TextExample):
        return example.text, example.pair
    if isinstance(example, QuestionExample):
        return example.question, example.context
    if isinstance(example, RewriteExample):
        return example.source, example.target
    if isinstance(example, ChoiceExample):
        return example.context, example.question, example.choices
    return (example.text,) if isinstance(example, TaggedExample) else None
