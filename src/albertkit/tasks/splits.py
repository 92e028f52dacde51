"""What is held out of examples, where nothing else is given to judge a model on. No torch.

In: examples. Out: (train, dev).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from albertkit.errors import AlbertkitError


def split_examples(examples: list[Any]) -> tuple[list[Any], list[Any]]:
    """(train, dev): one in ten is held out; turns of a dialogue and questions about one text and one source's rewrites stay together.

    The last example of a class, an intent or a kind of entity is never held out.
    """
    groups: dict[str, list[Any]] = {}
    for number, example in enumerate(examples):
        name = getattr(example, "dialogue", None) or getattr(example, "context", None)
        name = name or getattr(example, "source", None) or str(number)
        groups.setdefault(name, []).append(example)
    if len(groups) < 2:
        raise AlbertkitError(
            f"all {len(examples)} examples belong together, so that none can be held out; give some with --dev"
        )
    held = set(range(0, len(groups), 10))
    if _alike([group for number, group in enumerate(groups.values()) if number in held], list(groups.values())):
        held = set(range(0, len(groups), 11))  # classes take turns in this file
    held = _spared(held, list(groups.values()))
    parts: tuple[list[Any], list[Any]] = [], []
    for number, group in enumerate(groups.values()):
        parts[number in held].extend(group)
    return parts


def _spared(held: set[int], groups: Sequence[Sequence[Any]]) -> set[int]:
    """Those to hold out without the ones that would take a class with them; the first that does not, where none is left."""
    names = [{name for example in group for name in _names(example)} for group in groups]
    left = Counter(name for number, own in enumerate(names) if number not in held for name in own)
    kept = set()
    for number in sorted(held):
        if names[number] <= left.keys():
            kept.add(number)
        else:
            left.update(names[number])
    if not kept:
        kept = {n for n, own in enumerate(names) if all(left[name] > 1 for name in own)}
        kept = {min(kept)} if kept else kept
    if not kept:
        raise AlbertkitError(
            f"each of the {len(groups)} examples is the only one of a class, so that none can be held out; "
            "add examples of the same classes, or give some with --dev"
        )
    return kept


def _names(example: Any) -> set[tuple[str, Any]]:
    """What a model can only know from an example that has it: its one class, its intent, the kinds of its entities."""
    label, intent = getattr(example, "label", None), getattr(example, "intent", None)
    return {
        *([("label", str(label))] if isinstance(label, str | Integral) else []),
        *([("intent", intent)] if intent is not None else []),
        *(("entity", span.label) for span in getattr(example, "spans", ())),
    }


def _alike(held: Sequence[Sequence[Any]], groups: Sequence[Sequence[Any]]) -> bool:
    """Whether several held-out examples have one class, though there are others."""
    few, all_ = ({repr(getattr(e, "label", None)) for group in part for e in group} for part in (held, groups))
    return len(held) > 1 and len(few) == 1 < len(all_)
