"""A task by name, from examples (`make_task`) or from a finished model (`task_of`). No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from albertkit.artifact import Meta
from albertkit.errors import AlbertkitError, nearest
from albertkit.tasks.answer import Answer
from albertkit.tasks.choose import Choose
from albertkit.tasks.classify import Classify
from albertkit.tasks.dialogue import Dialogue
from albertkit.tasks.generation import Generate
from albertkit.tasks.match import Match
from albertkit.tasks.tag import Intent, Tag

TASKS: dict[str, Any] = {
    "classify": Classify,
    "tag": Tag,
    "answer": Answer,
    "choose": Choose,
    "intent": Intent,
    "match": Match,
    "dialogue": Dialogue,
    "generate": Generate,
}


def make_task(name: str, examples: Sequence[Any], **settings: Any) -> Any:
    """The task that the examples are about."""
    if name not in TASKS:
        raise AlbertkitError(f"unknown task {name!r}{nearest(name, TASKS)}; choose one of {', '.join(TASKS)}")
    kind = TASKS[name]
    return kind.of(examples, **settings) if hasattr(kind, "of") else kind(**settings)


def task_of(meta: Meta) -> Any:
    """The task a model was fine-tuned for, with its labels and settings."""
    if meta.task not in TASKS:
        raise AlbertkitError(f"this model was made for {meta.task!r}; fine-tune it for one of {', '.join(TASKS)} first")
    kind = TASKS[meta.task]
    fields = {f.name for f in dataclasses.fields(kind)}
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in meta.details.items() if k in fields}
    if "labels" in fields:
        given["labels"] = tuple(meta.labels)
    return kind(**given)
