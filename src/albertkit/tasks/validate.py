"""Examples that a program gives in a list, checked once as the readers check files. No torch.

In: a task's name, the name of the part, examples. Out: the examples as a list with notes, or one error that names the number
of the example. Before this file: `examples.py`; after it: `train/finetune.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from math import isfinite
from numbers import Integral
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import (
    ChoiceExample,
    DialogueTurn,
    QuestionExample,
    RewriteExample,
    TaggedExample,
    TextExample,
)
from albertkit.tasks.readers.json_files import placed
from albertkit.tasks.readers.labelled_files import LabelledData, counted
from albertkit.tasks.readers.read_examples import ReadOptions, check_labels, read_examples
from albertkit.tasks.readers.tagged_files import overlap

KINDS: dict[str, tuple[type, ...]] = {
    "classify": (TextExample,),
    "tag": (TaggedExample,),
    "answer": (QuestionExample,),
    "choose": (ChoiceExample,),
    "match": (TextExample,),
    "intent": (TaggedExample, TextExample),
    "dialogue": (DialogueTurn,),
    "generate": (RewriteExample,),
}
WRITTEN = {
    TextExample: "TextExample('lovely', label='good')",
    TaggedExample: "TaggedExample('Ann sings', ((0, 3), (4, 9)), (Span(0, 3, 'PER'),))",
    QuestionExample: "QuestionExample('1', 'Who sings?', 'Ann sings.', ((0, 'Ann'),))",
    ChoiceExample: "ChoiceExample('Ann sings.', 'Who sings?', ('Ann', 'Bob'), 0)",
    DialogueTurn: "DialogueTurn('1', 0, '', 'thai food', (('food', 'thai'),), (('food', 'thai'),))",
    RewriteExample: "RewriteExample('a long text', 'a short one')",
}


def validate_examples(task: str, name: str, examples: Sequence[Any]) -> LabelledData:
    """The examples of a part, if they are some of the task; answers that stand elsewhere in their context are moved."""
    found = list(examples)
    if not found:
        raise AlbertkitError(f"there are no examples in {name}; give some, or the file that holds them")
    odd = next((one for one in found if not is_dataclass(one)), None)
    if odd is not None:
        raise AlbertkitError(
            f"{name} holds a {type(odd).__name__}, which is no example; write  TextExample('lovely', label='good')  of "
            "albertkit.tasks.examples (TaggedExample, QuestionExample, ChoiceExample …), or name a file"
        )
    kind = next((kind for kind in KINDS[task] if isinstance(found[0], kind)), KINDS[task][0])
    moved = 0
    for number, example in enumerate(found, 1):
        wrong = _wrong(task, kind, example, found[0])
        if not wrong and isinstance(example, QuestionExample) and not example.is_impossible:
            answers = placed(example.context, example.answers)
            if isinstance(answers, str):
                wrong = answers
            elif answers[1]:
                found[number - 1] = replace(example, answers=answers[0])
                moved += answers[1]
        if wrong:
            raise AlbertkitError(f"example {number} of {name}: {wrong}")
    return LabelledData(found, (f"{counted(moved, 'answer')} not where {name} says, but nearby",) if moved else ())


def _wrong(task: str, kind: type, example: Any, first: Any) -> str | None:
    """What is wrong with an example, and the remedy; None if nothing is."""
    if not isinstance(example, kind):
        return f"{task} learns from {kind.__name__}, and this is a {type(example).__name__}; write  {WRITTEN[kind]}"
    if isinstance(example, TextExample):
        free = task == "match" and first.label is None
        return _wrong_label(example.label, first.label) if not free or example.label is not None else None
    if isinstance(example, TaggedExample):
        return _wrong_tags(task, example)
    if isinstance(example, QuestionExample) and not example.answers and not example.is_impossible:
        return "there is no answer; give one, or mark the question with is_impossible=True"
    if isinstance(example, ChoiceExample) and (
        example.answer is None or not 0 <= example.answer < len(example.choices)
    ):
        return f"the right choice is {example.answer}; give its number from 0 to {len(example.choices) - 1}"
    if isinstance(example, RewriteExample) and example.target is None:
        return "the target is None; give the text that should be written"
    return None


def _wrong_label(label: Any, first: Any) -> str | None:
    if label is None:
        return "the label is None; give one, or leave the example away"
    if not isinstance(label, str | float | tuple | Integral):
        return f"the label is a {type(label).__name__}; write a str (a class), a float (a value) or a tuple of str (several classes)"
    if isinstance(label, float) and not isfinite(label):
        return f"the label is {label}, which is no value to learn; give a number, or leave the example away"
    alike = isinstance(label, float | Integral) if isinstance(first, float) else not isinstance(label, float)
    if (isinstance(label, tuple) and not isinstance(first, tuple)) or not alike:
        return f"the label is {label!r:.40}, and the first example has {first!r:.40}; give all of them classes (str), or all several (tuple), or all values (float)"
    return None


def _wrong_tags(task: str, example: TaggedExample) -> str | None:
    if task == "intent" and example.intent is None:
        return "the intent is None; give one, or leave the example away"
    for span in example.spans:
        if not isinstance(span.label, str) or not span.label:
            return f"the entity from {span.start} to {span.end} has the label {span.label!r}; give it a name, such as 'PER', or leave it away"
    return overlap(sorted(example.spans, key=lambda span: (span.start, span.end)), example.text)


def read_parts(
    task: str, sources: Mapping[str, Path | str | Sequence[Any]], options: ReadOptions, log: Callable[[str], None]
) -> dict[str, list[Any]]:
    """The examples of each part (train, dev, test): read from a file, or taken from a list that is checked."""
    parts: dict[str, list[Any]] = {}
    for name, source in sources.items():
        if isinstance(source, str | Path):
            split, kind = options.split or name, label_kind(parts.get("train", ()), options)
            data = read_examples(task, source, dataclasses.replace(options, split=split, kind=kind))
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


def label_kind(train: Sequence[Any], options: ReadOptions) -> str:
    """The kind of labels in other parts: what the options say, else the kind in the training part."""
    label = next((e.label for e in train if isinstance(e, TextExample) and e.label is not None), None)
    if options.kind != "auto" or options.separator is not None or label is None:
        return options.kind
    return "regression" if isinstance(label, float) else "multi" if isinstance(label, tuple) else "single"
