"""Datasets: reads the splits from files or lists, validates them, compares them, and holds out examples.

In: a task's name and files or lists of examples. Out: the examples of each split and notes, or one error that names the
examples. Imports `readers/`. `train/` and the commands that read labelled data use it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any
from unicodedata import normalize

from albertkit.errors import AlbertkitError, check_type, nearest, type_with_article
from albertkit.input_warnings import InputProblems, TruncatedTextWarning, report_problems
from albertkit.tasks import TASKS
from albertkit.tasks.classify import OUT_OF_SCOPE, label_kind
from albertkit.tasks.examples import DialogueTurn, TaggedExample, TextExample
from albertkit.tasks.readers import LabelledData, ReadOptions, check_rows, read_examples
from albertkit.tasks.readers.labelled_files import Problems, count_noun, list_names
from albertkit.tasks.task import Feature, Task
from albertkit.tokenizer import Tokenizer

Label = str | float | tuple[str, ...] | None  # of a `TextExample`
TRAIN, HELD_OUT = "the training examples", "the held-out examples"  # names of examples without a file
SEPARATORS = ",;|/，、；"  # with which people join several classes of one text
LabelName = tuple[str, str]  # its kind (label, intent, entity, slot) and its name


def read_splits(
    task: str, sources: Mapping[str, Path | str | Sequence[Any]], options: ReadOptions, log: Callable[[str], None]
) -> dict[str, list[Any]]:
    """The examples of each split (train, dev, test), from a file or from a list that is validated."""
    splits: dict[str, list[Any]] = {}
    for name, source in sources.items():
        if isinstance(source, str | Path):
            kind = _split_label_kind(splits.get("train", ()), options)
            data = read_examples(task, source, replace(options, split=options.split or name, kind=kind))
        else:
            data = validate_examples(task, name, source, options.skip_bad)
            data = replace(data, examples=_with_text_labels(data.examples, splits.get("train", data.examples)))
        for note in data.notes:
            log(f"{source}: {note}" if isinstance(source, str | Path) else note)
        splits[name] = data.examples
    if "train" in splits:
        for note in check_labels(splits["train"], splits.get("dev", ())):
            log(note)
    return splits


def _split_label_kind(train: Sequence[Any], options: ReadOptions) -> str:
    """The kind of the labels of another split: from the options, else as in training."""
    label = next((e.label for e in train if isinstance(e, TextExample) and e.label is not None), None)
    if options.kind != "auto" or options.separator is not None or label is None:
        return options.kind
    return label_kind(label)


def validate_examples(task: str, name: str, examples: Sequence[Any], skip_bad: bool = False) -> LabelledData:
    """The examples of a list, validated like those of files; all must have one type and one kind of label."""
    types = TASKS[task].example_types
    check_type(name, examples, (Sequence,), f"a file, or a list of {types[0].__name__} examples")
    if not examples:
        raise AlbertkitError(f"{name} contains no examples. Pass some examples or a file.")
    first = examples[0]
    expected = next((kind for kind in types if isinstance(first, kind)), types[0])
    has_labels = not TASKS[task].computes_vectors or getattr(first, "label", None) is not None

    def rows() -> Iterator[tuple[str, Any]]:
        for number, example in enumerate(examples, 1):
            result: Any = example
            if not isinstance(example, expected):
                result = f"{task} needs {expected.__name__} examples, and this is {type_with_article(example)}"
                result += f"; write  {expected.__name__}({', '.join(field.name for field in fields(expected))})"
            elif isinstance(example, TextExample) and example.label is not None:
                result = example.problem() or _kind_problem(example.label, first.label) or example
            yield f"example {number}", result

    return check_rows(task, rows(), Problems(name, skip_bad, has_labels))


def _with_text_labels(examples: list[Any], train: Sequence[Any]) -> list[Any]:
    """The examples with integer classes as text; integers among the values of a regression stay numbers."""
    if any(isinstance(getattr(example, "label", None), float) for example in (train[0], examples[0])):
        return examples
    return [replace(e, label=_as_text(e.label)) if isinstance(e, TextExample) else e for e in examples]


def _as_text(label: Label) -> Label:
    if isinstance(label, tuple):
        return tuple(map(str, label))
    return str(label) if isinstance(label, Integral) else label


def _kind_problem(label: Any, first: Any) -> str | None:
    """The problem of a label whose kind differs from that of the first label."""
    kind = "regression" if isinstance(first, float) and isinstance(label, Integral) else label_kind(label)
    if first is None or kind == label_kind(first):
        return None
    rule = "use one kind for all: a class (str), several classes (tuple), or a value (float)"
    return f"the label is {label!r:.40}, but the first example has {first!r:.40}; {rule}"


# Comparison of the labels of two splits, and long texts --------------------------------------------------------------


def check_labels(train: Sequence[Any], dev: Sequence[Any] = ()) -> tuple[str, ...]:
    """Notes on labels in `dev` that are not in training, on labels that may be mistakes, and on examples in both.

    Errors: one split has numbers and the other classes; training contains none of the labels in `dev`.
    """
    known = Counter(label for example in train for label in label_names(example))
    with_label = [e for e in (*train, *dev) if isinstance(e, TextExample) and e.label is not None]
    for example in with_label:
        if problem := _kind_problem(example.label, with_label[0].label):
            raise AlbertkitError(f"{example.where or 'a held-out example'}: {problem}")
    labels = [(example, label) for example in dev for label in label_names(example)]
    notes = _unknown_labels(labels, known, "training") if known else []
    notes += [*_similar_labels(known), *_joined_labels(train), *_several_labels(train)]
    return (*notes, *check_overlap(train, dev))


def check_overlap(train: Sequence[Any], dev: Sequence[Any]) -> tuple[str, ...]:
    """A note if held-out examples are also in the training data, so that their scores are too high."""
    seen = {key for example in train if (key := _identity(example)) is not None}
    repeated = [example for example in dev if _identity(example) in seen]
    where = f", the first {repeated[0].where}" if repeated and repeated[0].where else ""
    verb = "is" if len(repeated) == 1 else "are"
    note = f"{len(repeated):,} of {count_noun(len(dev), 'held-out example')} {verb} in the training data too{where}"
    return (note,) if repeated else ()


def _similar_labels(known: Iterable[LabelName]) -> list[str]:
    """A note if two labels differ only in case, width or spaces."""
    spellings: dict[LabelName, str] = {}
    for kind, label in known:
        other = spellings.setdefault((kind, " ".join(normalize("NFKC", label).casefold().split())), label)
        if other != label:
            return [f"the labels {other!r} and {label!r} are different classes. Write both alike if they are one"]
    return []


def _joined_labels(train: Sequence[Any]) -> list[str]:
    """A note if a label consists of other labels with a separator between them."""
    labels = {example.label for example in train if isinstance(example, TextExample) and isinstance(example.label, str)}
    for label in sorted(labels):
        for mark in SEPARATORS:
            parts = {part.strip() for part in label.split(mark)}
            if len(parts) > 1 and parts <= labels:
                return [f"the label {label!r} is one class. Pass --separator '{mark}' if it means several classes"]
    return []


def _several_labels(train: Sequence[Any]) -> list[str]:
    """A note if a text has different labels in different examples."""
    labels: dict[Any, Any] = {}
    conflicting = []
    for example in train:
        if isinstance(example, TextExample) and labels.setdefault(_identity(example), example.label) != example.label:
            conflicting.append(example)
    if not conflicting:
        return []
    first, count = conflicting[0], count_noun(len(conflicting), "example")
    shown = f"{first.text!r:.60} has {first.label!r:.40} and {labels[_identity(first)]!r:.40}"
    return [f"{count} with another label than the same text before; the first: {first.where or 'an example'}: {shown}"]


def check_known_labels(task: Task, examples: Sequence[Any], effect: str = "counted as missed") -> tuple[str, ...]:
    """Notes on labels that a model does not have, and their effect; an error if it has none of them."""
    names = {"label": task.labels, "intent": getattr(task, "intents", ())}
    if isinstance(examples[0] if examples else None, TaggedExample):
        names["entity"] = tuple(label[2:] for label in task.labels if label != "O")
    known = Counter((kind, name) for kind, label_set in names.items() for name in label_set)
    if getattr(task, "min_probability", 0):
        known["label", OUT_OF_SCOPE] += 1
    kinds = {kind for kind, _ in known}
    labels = [(example, pair) for example in examples for pair in label_names(example) if pair[0] in kinds]
    return tuple(_unknown_labels(labels, known, "the model", effect))


def report_truncated(
    task: Task,
    parts: Mapping[str, tuple[Sequence[Any], Sequence[Feature]]],
    tokenizer: Tokenizer,
    max_length: int,
    longest: int,
) -> None:
    """Warn once for each file with texts of which training uses only a part.

    parts: examples and their features, by a name for examples that have no file. longest: tokens of the model.
    """
    total, cut, cut_targets = Counter[str](), Counter[str](), Counter[str]()
    for name, (examples, features) in parts.items():
        files = [str(getattr(example, "where", "")).rpartition(":")[0] or name for example in examples]
        total.update(files)
        cut.update(files[index] for index in task.find_truncated(examples, features, tokenizer, max_length))
        cut_targets.update(files[index] for index in task.find_truncated_targets(features, tokenizer))
    limit = task.text_room(max_length)
    for file, count in cut.items():
        longer = longest - max_length + limit
        report_problems(InputProblems(0, total[file], truncated=count, limit=limit, longest=longer, where=file))
    for file, count in cut_targets.items():
        subject = f"{file}: {count:,} of {count_noun(total[file], 'target')}"
        text = f"{subject} {'is' if count == 1 else 'are'} longer than the target length, so the rest is not learnt"
        warnings.warn(f"{text}. Shorten long targets, or train with a larger --target-length.", TruncatedTextWarning, 2)


def _unknown_labels(
    labels: Sequence[tuple[Any, LabelName]], known: Counter[LabelName], owner: str, effect: str = "counted as missed"
) -> list[str]:
    """A note on unknown labels; an error if all are unknown. owner: the name of what has the known labels."""
    unknown = [(example, label) for example, label in labels if label not in known]
    if not unknown:
        return []
    example, (kind, label) = unknown[0]
    hint = nearest(label, [name for other, name in known if other == kind])
    first = f"{example.where or 'an example'}: {kind} {label!r}{hint}"
    if len(unknown) == len(labels):
        raise AlbertkitError(
            f"{owner} has none of the labels; the first is {first}, and {owner} has "
            f"{list_names(name for _, name in known)}. Pass data with the same labels, or set the label format "
            "(--label-column, --separator, --kind)."
        )
    count = f"{count_noun(len(unknown), 'label')} of {len(labels):,} unknown to {owner}, {effect}"
    return [f"{count}; the first: {first}"]


def label_names(example: object) -> Iterator[LabelName]:
    """(kind, name) of each label of an example."""
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


def _identity(example: Any) -> tuple[Any, ...] | None:
    """The key by which duplicate examples are found; None for dialogue turns, which often repeat."""
    if isinstance(example, DialogueTurn):
        return None
    inputs = ("text", "pair", "context", "question", "choices", "source", "target")
    return tuple(getattr(example, name, None) for name in inputs)


# Held-out examples ---------------------------------------------------------------------------------------------------


def split_examples(examples: list[Any]) -> tuple[list[Any], list[Any]]:
    """(train, dev): 10 % are held out. Turns of a dialogue, and examples about the same text, stay together.

    The last example of a class, an intent or an entity label is never held out.
    """
    by_key: dict[str, list[Any]] = {}
    for number, example in enumerate(examples):
        names = ("dialogue", "context", "source")
        key = next((value for name in names if (value := getattr(example, name, None))), str(number))
        by_key.setdefault(key, []).append(example)
    groups = list(by_key.values())
    if len(examples) == 1:
        raise AlbertkitError("1 example was found, so none can be held out. Add examples, or pass some with --dev.")
    if len(groups) < 2:
        raise AlbertkitError(
            f"all {len(examples)} examples are about the same text or dialogue, so none can be held out. "
            "Pass held-out examples with --dev."
        )
    held_out = set(range(0, len(groups), 10))
    if _has_one_class([groups[number] for number in held_out], groups):
        held_out = set(range(0, len(groups), 11))  # the classes alternate in this file
    held_out = _keep_every_class(held_out, groups)
    train = [example for number, group in enumerate(groups) if number not in held_out for example in group]
    return train, [example for number in sorted(held_out) for example in groups[number]]


def _keep_every_class(held_out: set[int], groups: Sequence[Sequence[Any]]) -> set[int]:
    """The groups to hold out without those that contain the last example of a class; at least one."""
    names = [{name for example in group for name in _learnable_names(example)} for group in groups]
    remaining = Counter(name for number, labels in enumerate(names) if number not in held_out for name in labels)
    kept = set()
    for number in sorted(held_out):
        if names[number] <= remaining.keys():
            kept.add(number)
        else:
            remaining.update(names[number])
    if not kept:
        possible = [number for number, labels in enumerate(names) if all(remaining[name] > 1 for name in labels)]
        kept = set(possible[:1])
    if not kept:
        raise AlbertkitError(
            f"each of the {len(groups)} examples is the only one of a class, so none can be held out. "
            "Add examples of the same classes, or pass some with --dev."
        )
    return kept


def _learnable_names(example: Any) -> set[LabelName]:
    """The labels that must occur in training: the single class, the intent, the entity labels."""
    if isinstance(example, DialogueTurn) or isinstance(getattr(example, "label", None), tuple):
        return set()
    return set(label_names(example))


def _has_one_class(held_out: Sequence[Sequence[Any]], groups: Sequence[Sequence[Any]]) -> bool:
    """Whether all held-out groups have the same label, although there are other labels."""
    labels = [{repr(getattr(e, "label", None)) for group in part for e in group} for part in (held_out, groups)]
    return len(held_out) > 1 and len(labels[0]) == 1 < len(labels[1])
