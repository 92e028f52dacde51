"""Held-out examples, if none are given to evaluate a model on.

In: examples. Out: (train, dev). Before this file: `readers/`; after it: `train/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from albertkit.errors import AlbertkitError


def split_examples(examples: list[Any]) -> tuple[list[Any], list[Any]]:
    """(train, dev): one in ten is held out. Turns of a dialogue, and examples about one text, stay together.

    The last example of a class, an intent or an entity label is never held out.
    """
    by_key: dict[str, list[Any]] = {}
    for number, example in enumerate(examples):
        names = ("dialogue", "context", "source")
        key = next((value for name in names if (value := getattr(example, name, None))), str(number))
        by_key.setdefault(key, []).append(example)
    groups = list(by_key.values())
    if len(groups) < 2:
        raise AlbertkitError(
            f"all {len(examples)} examples belong together, so none can be held out. Pass some with --dev."
        )
    held_out = set(range(0, len(groups), 10))
    if _has_one_class([groups[number] for number in held_out], groups):
        held_out = set(range(0, len(groups), 11))  # the classes alternate in this file
    held_out = _keep_every_class(held_out, groups)
    parts: tuple[list[Any], list[Any]] = [], []
    for number, group in enumerate(groups):
        parts[number in held_out].extend(group)
    return parts


def _keep_every_class(held_out: set[int], groups: Sequence[Sequence[Any]]) -> set[int]:
    """The groups to hold out without those that contain the last example of a class; at least one."""
    names = [{name for example in group for name in _class_names(example)} for group in groups]
    left = Counter(name for number, own in enumerate(names) if number not in held_out for name in own)
    kept = set()
    for number in sorted(held_out):
        if names[number] <= left.keys():
            kept.add(number)
        else:
            left.update(names[number])
    if not kept:
        possible = [number for number, own in enumerate(names) if all(left[name] > 1 for name in own)]
        kept = set(possible[:1])
    if not kept:
        raise AlbertkitError(
            f"each of the {len(groups)} examples is the only one of a class, so none can be held out. "
            "Add examples of the same classes, or pass some with --dev."
        )
    return kept


def _class_names(example: Any) -> set[tuple[str, str]]:
    """What a model can only learn from an example that has it: its one class, its intent, its entity labels."""
    label, intent = getattr(example, "label", None), getattr(example, "intent", None)
    return {
        *([("label", str(label))] if isinstance(label, str | Integral) else []),
        *([("intent", intent)] if intent is not None else []),
        *(("entity", span.label) for span in getattr(example, "spans", ())),
    }


def _has_one_class(held_out: Sequence[Sequence[Any]], groups: Sequence[Sequence[Any]]) -> bool:
    """Whether several held-out groups have one label, though there are others."""
    some, every = ({repr(getattr(e, "label", None)) for group in part for e in group} for part in (held_out, groups))
    return len(held_out) > 1 and len(some) == 1 < len(every)
