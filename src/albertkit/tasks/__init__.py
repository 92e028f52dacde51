"""Tasks, without torch: examples to features, scores to results, results to metrics.

`TASKS` has the class of each task by name. `make_task` makes a task from examples, `load_task` from a fine-tuned model.
The package imports `tokenizer`. `runtime` applies tasks, and `train` trains them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from albertkit.artifact import ArtifactMetadata
from albertkit.errors import AlbertkitError, nearest
from albertkit.tasks.answer import AnswerTask
from albertkit.tasks.choose import ChooseTask
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.dialogue import DialogueTask
from albertkit.tasks.generation import GenerateTask
from albertkit.tasks.match import MatchTask
from albertkit.tasks.tag import IntentTask, TagTask
from albertkit.tasks.task import Task

TASKS: dict[str, Any] = {
    task.name: task
    for task in (ClassifyTask, TagTask, AnswerTask, ChooseTask, IntentTask, MatchTask, DialogueTask, GenerateTask)
}


def make_task(name: str, examples: Sequence[Any], **settings: object) -> Task:
    """The task of these examples. settings: those in `Task.setting_names`."""
    if name not in TASKS:
        raise AlbertkitError(f"unknown task {name!r}{nearest(name, TASKS)}. Pass one of {', '.join(TASKS)}.")
    task: Task = TASKS[name].from_examples(examples, **settings)
    return task


def load_task(metadata: ArtifactMetadata) -> Task:
    """The task that a model was fine-tuned for, with its labels and settings."""
    if metadata.task not in TASKS:
        raise AlbertkitError(
            f"this model was trained for {metadata.task!r}. Fine-tune it for one of {', '.join(TASKS)} first."
        )
    task_type = TASKS[metadata.task]
    fields = {f.name for f in dataclasses.fields(task_type)}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in metadata.details.items() if k in fields}
    if "labels" in fields:
        values["labels"] = tuple(metadata.labels)
    task: Task = task_type(**values)
    return task


def computes_vectors(metadata: ArtifactMetadata) -> bool:
    """Whether a model computes vectors: it was not fine-tuned, or was fine-tuned for a task that compares vectors."""
    return metadata.task not in TASKS or bool(TASKS[metadata.task].computes_vectors)
