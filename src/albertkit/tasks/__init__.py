"""Tasks, without torch: examples to features, scores to results, results to metrics.

`TASKS` has the class of each task by name; `make_task` makes one from examples, `load_task` from a finished model. Before this
package: `tokenizer`; after it: `runtime` applies tasks, `train` trains them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from albertkit.artifact import Meta
from albertkit.errors import AlbertkitError, nearest
from albertkit.tasks.answer import AnswerTask
from albertkit.tasks.choose import ChooseTask
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.dialogue import DialogueTask
from albertkit.tasks.generation import GenerateTask
from albertkit.tasks.match import MatchTask
from albertkit.tasks.tag import IntentTask, TagTask

TASKS: dict[str, Any] = {
    "classify": ClassifyTask,
    "tag": TagTask,
    "answer": AnswerTask,
    "choose": ChooseTask,
    "intent": IntentTask,
    "match": MatchTask,
    "dialogue": DialogueTask,
    "generate": GenerateTask,
}


def make_task(name: str, examples: Sequence[Any], **settings: Any) -> Any:
    """The task that the examples are about."""
    if name not in TASKS:
        raise AlbertkitError(f"unknown task {name!r}{nearest(name, TASKS)}; choose one of {', '.join(TASKS)}")
    kind = TASKS[name]
    return kind.from_examples(examples, **settings)


def load_task(meta: Meta) -> Any:
    """The task a model was fine-tuned for, with its labels and settings."""
    if meta.task not in TASKS:
        raise AlbertkitError(f"this model was made for {meta.task!r}; fine-tune it for one of {', '.join(TASKS)} first")
    kind = TASKS[meta.task]
    fields = {f.name for f in dataclasses.fields(kind)}
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in meta.details.items() if k in fields}
    if "labels" in fields:
        given["labels"] = tuple(meta.labels)
    return kind(**given)
