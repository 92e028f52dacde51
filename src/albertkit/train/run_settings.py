"""The settings of a fine-tuning run, stored in its folder: another run in the same folder is an error.

In: a folder and `FinetuneSettings`. Out: OUTPUT/settings.json, or an error that names what changed. `check_output`
writes nothing. `begin_run` deletes the run before; it is called after all checks, before anything else is written.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from albertkit.artifact import METADATA_FILE, Artifact
from albertkit.data.shards import replace_json
from albertkit.errors import AlbertkitError
from albertkit.file_io import read_json
from albertkit.train.train_settings import FinetuneSettings, Log

SETTINGS_FILE = "settings.json"
RUN_FILES = ("runs", "model", "report.md", "confusion.png", "runs.json", SETTINGS_FILE)
WITHOUT_EFFECT = {  # on the weights of a run
    *("device", "progress_bar", "micro_batch_size", "gradient_checkpointing", "max_unknown"),
    *("seeds", "restarts", "keep_epochs", "resume", "overwrite"),
}


def check_output(output: Path, task: str, settings: FinetuneSettings, log: Log) -> None:
    """Raise if the folder contains a run with other settings, unless it may resume, or if it may not be deleted."""
    if settings.overwrite:
        check_deletable(output)
        return
    file = output / SETTINGS_FILE
    if not file.is_file():
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


def check_not_deleted(model: Artifact | Path | str | None, output: Path, settings: FinetuneSettings) -> None:
    """Raise if the model to train is in the folder whose run `overwrite` deletes."""
    if not settings.overwrite or model is None or isinstance(model, Artifact) or not Path(model).exists():
        return
    if Path(model).resolve().is_relative_to(output.resolve()):
        raise AlbertkitError(f"{model} is in {output}, whose run --overwrite deletes. Choose another --output.")


def begin_run(output: Path, task: str, settings: FinetuneSettings) -> None:
    """Delete the run before, if it is to be overwritten, and write the settings of a new one."""
    if settings.overwrite:
        delete_run(output)
    if not (output / SETTINGS_FILE).is_file():
        write_settings(output, task, settings)


def write_settings(output: Path, task: str, settings: FinetuneSettings) -> None:
    """Write the settings of a new run, or of one that ended with others than it began."""
    output.mkdir(parents=True, exist_ok=True)
    replace_json(output / SETTINGS_FILE, _stored(task, settings))


def _stored(task: str, settings: FinetuneSettings) -> dict[str, object]:
    fields = dataclasses.asdict(settings).items()
    return {"task": task, **{name: value for name, value in fields if name not in WITHOUT_EFFECT}}


def check_deletable(output: Path) -> None:
    """Raise if a folder contains files with the names of a run that fine-tuning did not write."""
    model, file = output / "model", output / SETTINGS_FILE
    path = next((output / name for name in RUN_FILES if (output / name).exists()), None)
    if path is None:
        return
    if file.is_file() and "task" in read_json(file):
        if not model.exists() or (model / METADATA_FILE).is_file():
            return
        path = model
    raise AlbertkitError(
        f"{path} was not written by finetune, so --overwrite does not delete it. Delete it, or choose another --output."
    )


def delete_run(output: Path) -> None:
    """Delete what fine-tuning wrote into a folder, and nothing else."""
    check_deletable(output)
    runs = output / "runs"
    if runs.is_dir() and not runs.is_symlink():
        for path in runs.glob("seed-*"):
            _delete(path)
        if not any(runs.iterdir()):
            runs.rmdir()
    for name in RUN_FILES:  # the settings last: they tell that the others may be deleted
        if name != "runs":
            _delete(output / name)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
