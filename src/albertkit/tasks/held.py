"""What is held out of examples, where nothing else is given to judge a model on. No torch.

In: examples. Out: (train, dev).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from albertkit.errors import AlbertkitError


def parted(examples: list[Any]) -> tuple[list[Any], list[Any]]:
    """(train, dev): one in ten is held out; turns of a dialogue and questions about one text and one source's rewrites stay together."""
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
    parts: tuple[list[Any], list[Any]] = [], []
    for number, group in enumerate(groups.values()):
        parts[number in held].extend(group)
    return parts


def _alike(held: Sequence[Sequence[Any]], groups: Sequence[Sequence[Any]]) -> bool:
    """Whether several held-out examples have one class, though there are others."""
    few, all_ = ({repr(getattr(e, "label", None)) for group in part for e in group} for part in (held, groups))
    return len(held) > 1 and len(few) == 1 < len(all_)
