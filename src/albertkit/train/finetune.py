"""`from albertkit import finetune`: files or lists of examples to a finished model, as the verb does it. No torch until it is needed.

In: a task's name, files or examples, a folder. Out: `FinetuneResult`. `tasks/readers/read_examples.py` reads, `frozen.py` or `tune.py` learns; the verb in `cli/task_commands.py` calls the parts below.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from albertkit.errors import AlbertkitError, nearest, need
from albertkit.tasks import TASKS
from albertkit.tasks.readers.read_examples import ReadOptions
from albertkit.tasks.splits import split_examples
from albertkit.tasks.validate import read_parts
from albertkit.train.train_settings import FinetuneSettings

if TYPE_CHECKING:
    from albertkit.train.frozen_head import FinetuneResult

Examples = Path | str | Sequence[Any]
Log = Callable[[str], None]
FEW = 500  # examples


def finetune(
    task: str,
    train: Examples,
    dev: Examples | None = None,
    *,
    output: Path | str,
    model: Path | str | None = None,
    log: Log = lambda text: None,
    progress_bar: bool = False,
    **options: Any,
) -> FinetuneResult:
    """Teach a model a task from examples, as `albertkit finetune` does; run again, it goes on where it stopped.

    train, dev: files, or lists of examples (`albertkit.tasks.examples`); without dev, one in ten of train is held out.
    model: without it, a built-in model. log: is told what happens, line by line. options: those of the verb by name
    (`epochs=3`, `freeze=True`, `label_column="stars"`), and further settings of the task (`overlap`, `max_answer`).
    """
    how, reading, settings = told_apart(task, options)
    need_for(how)
    parts = {"train": train} if dev is None else {"train": train, "dev": dev}
    if reading != ReadOptions() and not any(isinstance(part, str | Path) for part in parts.values()):
        raise AlbertkitError(
            "an option says how to read a file, and lists of examples were given; leave it away, or name files"
        )
    data = read_parts(task, parts, reading, log)
    return learn(task, data, Path(output), model, how, log, progress_bar, **settings)


def told_apart(task: str, given: Mapping[str, Any]) -> tuple[FinetuneSettings, ReadOptions, dict[str, Any]]:
    """What says how to learn, how to read, and what only the task knows."""
    if task not in TASKS:
        raise AlbertkitError(f"unknown task {task!r}{nearest(str(task), TASKS)}; choose one of {', '.join(TASKS)}")
    learning, reading = ({field.name for field in dataclasses.fields(kind)} for kind in (FinetuneSettings, ReadOptions))
    known = (*sorted(learning | reading), *TASKS[task].setting_names)
    odd = next((name for name in given if name not in known), None)
    if odd is not None:
        raise AlbertkitError(f"{task} has no option {odd!r}{nearest(odd, known)}; there are {', '.join(known)}")
    parts = [{name: value for name, value in given.items() if name in names} for names in (learning, reading)]
    rest = {name: value for name, value in given.items() if name not in learning | reading}
    return FinetuneSettings(**parts[0]), ReadOptions(**parts[1]), rest


def need_for(options: FinetuneSettings) -> None:
    """Log which packages are missing, before anything is read."""
    need(*(("sklearn", "frozen") if options.freeze else ("torch", "train")), "fine-tuning")


def learn(
    task: str,
    data: dict[str, list[Any]],
    output: Path,
    model: Path | str | None,
    options: FinetuneSettings,
    log: Log,
    progress_bar: bool,
    **settings: Any,
) -> FinetuneResult:
    """A model from the examples in `train` and `dev`; without the second, some of the first are held out."""
    train, dev = (data["train"], data["dev"]) if "dev" in data else split_examples(data["train"])
    output.mkdir(parents=True, exist_ok=True)
    if options.freeze:
        from albertkit.train.frozen_head import freeze

        if settings:
            raise AlbertkitError(f"{next(iter(settings))} means nothing to a head on frozen vectors; leave it away")
        return freeze(task, train, dev, output, model, options)
    from albertkit.train import finetune_runs as tune

    if task == "classify" and len(train) < FEW and not any(e.pair for e in train):
        log(f"{len(train)} examples are few for a whole model; --freeze may do better")
    return tune.finetune(task, train, dev, output, model, options, log, progress_bar, **settings)
