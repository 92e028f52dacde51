"""The settings of a fine-tuning run, stored in its folder: another run in the same folder is an error.

In: a folder and `FinetuneSettings`. Out: OUTPUT/settings.json, or an error that names what changed. `finetune.py` uses
it before anything is trained.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

from albertkit.data.shards import write_json
from albertkit.errors import AlbertkitError
from albertkit.file_io import read_json
from albertkit.train.train_settings import FinetuneSettings

SETTINGS_FILE = "settings.json"
RUN_FILES = ("runs", "model", "report.md", "confusion.png", "runs.json", SETTINGS_FILE)
WITHOUT_EFFECT = {  # on the weights of a run
    *("device", "progress_bar", "micro_batch_size", "gradient_checkpointing", "max_unknown"),
    *("seeds", "restarts", "keep_epochs", "resume", "overwrite"),
}


def prepare_output(output: Path, task: str, settings: FinetuneSettings, log: Callable[[str], None]) -> None:
    """Raise if the folder contains a run with other settings, unless it may resume. Write those of a new run."""
    if settings.overwrite:
        delete_run(output)
    file = output / SETTINGS_FILE
    if not file.is_file():
        write_settings(output, task, settings)
        return
    before, now = read_json(file), _stored(task, settings)
    changed = [name for name, value in now.items() if before.get(name, value) != value]
    changes = ", ".join(f"{name} {before[name]} → {now[name]}" for name in changed)
    if changes and not settings.resume:
        raise AlbertkitError(
            f"{output} contains a run with other settings: {changes}. Pass --resume to continue it with the new "
            "settings, --overwrite to delete it and start again, or another --output."
        )
    if changes:
        log(f"continuing with other settings: {changes}")


def write_settings(output: Path, task: str, settings: FinetuneSettings) -> None:
    """Write the settings of a new run, or of one that ended with others than it began."""
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / SETTINGS_FILE, _stored(task, settings))


def _stored(task: str, settings: FinetuneSettings) -> dict[str, object]:
    fields = dataclasses.asdict(settings).items()
    return {"task": task, **{name: value for name, value in fields if name not in WITHOUT_EFFECT}}


def delete_run(output: Path) -> None:
    """Delete what fine-tuning wrote into a folder, and nothing else."""
    for name in RUN_FILES:
        path = output / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
