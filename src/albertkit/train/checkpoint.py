"""The files of a training run: checkpoints to resume from, and a log of metrics.

    run/checkpoints/step-00001000/
      model/                 an artifact folder
      training.safetensors   the optimizer state
      training.json          step, tokens, seconds, position in the data, best score
    run/metrics.jsonl        one object per line: step, kind, tokens, seconds, then the numbers
    run/tensorboard/         the same for TensorBoard

Checkpoints are written atomically, so the one with the highest step is complete. If its files are damaged later, the
run resumes from the one before. `stop_on_signals` lets `loop.py` save a checkpoint before the process ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from albertkit.artifact import Artifact, read_artifact, write_artifact
from albertkit.errors import AlbertkitError
from albertkit.file_io import CHECKSUM, add_checksum, digest, new_folder, read_json, take_checksum, write_json
from albertkit.train.train_settings import TrainSettings

MIN_KEPT = 2  # checkpoints; if the newest is damaged, the run resumes from the one before
MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
FOLDER_NAME = re.compile(r"step-(\d{8,})")


@dataclass
class TrainState:
    """The progress of a training run."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    backoff: float = 1.0  # factor of the learning rate; each rewind halves it
    best: dict[str, Any] = field(default_factory=dict)  # `step` and `score` of the best evaluation
    evaluations_since_best: int = 0
    sums: list[list[float]] = field(default_factory=list)  # running sums of the next line of metrics
    data: dict[str, Any] = field(default_factory=dict)  # the task's position in its data

    @property
    def minutes(self) -> float:
        """Time spent, for the history of a model."""
        return round(self.seconds / 60, 2)


def optimizer_tensors(optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The state of all optimizers as a flat dict: `optimizer.parameter.name`."""
    flat = {}
    for number, optimizer in enumerate(optimizers):
        for parameter, values in optimizer.state_dict()["state"].items():
            for name, value in values.items():
                flat[f"{number}.{parameter}.{name}"] = torch.as_tensor(value).detach().cpu().contiguous().clone()
    return flat


def restore_optimizers(optimizers: list[torch.optim.Optimizer], flat: dict[str, Tensor]) -> None:
    """Load the state that `optimizer_tensors` collected."""
    states: dict[int, dict[int, dict[str, Tensor]]] = {number: {} for number in range(len(optimizers))}
    try:
        for key, value in flat.items():
            owner, parameter, name = key.split(".", 2)
            states[int(owner)].setdefault(int(parameter), {})[name] = value
        for optimizer, state in zip(optimizers, states.values(), strict=True):
            if flat and not state:
                raise ValueError("an optimizer has no state")
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (ValueError, KeyError, RuntimeError) as error:
        raise AlbertkitError(
            f"the checkpoint's optimizer state does not match ({error}). Resume with the optimizer that wrote it."
        ) from None


class DamagedCheckpoint(AlbertkitError):
    """A checkpoint that differs from what was written."""


def save(run: Path, artifact: Artifact, tensors: dict[str, Tensor], state: TrainState) -> Path:
    """Write a checkpoint atomically."""
    target = checkpoint_folder(run, state.step)
    if target.exists():
        return target
    with new_folder(target) as scratch:
        write_artifact(artifact, scratch / "model")
        save_file(tensors, str(scratch / "training.safetensors"))
        content = {**asdict(state), "sha256": digest(scratch / "training.safetensors")}
        write_json(scratch / "training.json", add_checksum(content))
    return target


def load(folder: Path) -> tuple[Artifact, dict[str, Tensor], TrainState]:
    """Read a checkpoint and verify its hashes. One that cannot be read now, for lack of memory say, is not damaged."""
    file = folder / "training.safetensors"
    try:
        stored = read_json(folder / "training.json")
        if CHECKSUM not in stored:
            raise DamagedCheckpoint(
                f"{folder} has no checksum: an earlier version of albertkit made it, and such runs cannot be resumed."
            )
        content = take_checksum(folder / "training.json", stored)
        data = file.read_bytes()  # not mapped into memory: another program may overwrite the file
        if hashlib.sha256(data).hexdigest() != content.pop("sha256", None):
            raise AlbertkitError(f"{file.name} has changed since it was written")
        return read_artifact(folder / "model"), load_tensors(data), TrainState(**content)
    except DamagedCheckpoint:
        raise
    except (AlbertkitError, *MISSING, SafetensorError, TypeError) as error:
        cause = error.__context__  # what an `AlbertkitError` was raised for
        if isinstance(cause, OSError | MemoryError) and not isinstance(cause, MISSING):
            raise
        raise DamagedCheckpoint(f"{folder} is damaged ({str(error).rstrip('.')}).") from None


def saved_steps(run: Path) -> list[int]:
    """Steps of the existing checkpoints, in order."""
    folder = run / "checkpoints"
    matches = [FOLDER_NAME.fullmatch(path.name) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(match[1]) for match in matches if match)


def checkpoint_folder(run: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return run / "checkpoints" / f"step-{step:08d}"


def delete_old(run: Path, keep: int, best: int | None) -> None:
    """Delete all but the last `keep` checkpoints and the best one, and incomplete folders."""
    for step in saved_steps(run)[: -max(keep, MIN_KEPT)]:
        if step != best:
            _delete(run, step)
    delete_incomplete(run)


def delete_after(run: Path, step: int) -> None:
    """Delete the checkpoints after a step."""
    for later in saved_steps(run):
        if later > step:
            _delete(run, later)


def delete_incomplete(run: Path) -> None:
    """Delete folders that a killed process left incomplete."""
    folder = run / "checkpoints"
    for path in folder.glob(".step-*") if folder.is_dir() else ():
        shutil.rmtree(path, ignore_errors=True)


def _delete(run: Path, step: int) -> None:
    """Rename first, so that a half-deleted folder is never mistaken for a checkpoint."""
    renamed = checkpoint_folder(run, step).rename(run / "checkpoints" / f".step-{step:08d}.old")
    shutil.rmtree(renamed, ignore_errors=True)


@dataclass
class StopRequest:
    """Whether a signal requested a stop. Not an `Event`, whose lock can deadlock in a signal handler."""

    is_set: bool = False
    number: int = 0
    """The signal."""


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """SIGTERM and Ctrl-C set the request; the loop saves after the current step. A second Ctrl-C interrupts at once."""
    stop = StopRequest()

    def request(number: int, frame: object) -> None:
        if stop.is_set and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.is_set, stop.number = True, number

    try:
        before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # only the main thread receives signals
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_stopped(number: int) -> NoReturn:
    """End the program as a signal would have without the training, which has saved a checkpoint.

    The program's own handler is called first. Ctrl-C is then a `KeyboardInterrupt`, and SIGTERM an exit with code 143.
    """
    handler = signal.getsignal(number) if number else None
    if callable(handler) and handler is not signal.default_int_handler:
        handler(number, None)
    if number == signal.SIGINT:
        raise KeyboardInterrupt("training was stopped after a checkpoint was saved. Repeat the call to resume.")
    raise SystemExit(128 + signal.SIGTERM)


# The log of metrics --------------------------------------------------------------------------------------------------


class TrainLog:
    """The log of a training run. On resume, lines after the resumed step are deleted."""

    def __init__(self, run: Path, settings: TrainSettings, step: int, progress_bar: bool) -> None:
        self.path = run / "metrics.jsonl"
        self._delete_after(step)
        self.file = self.path.open("a", encoding="utf-8")
        self.board = _open_tensorboard(run / "tensorboard", step) if settings.tensorboard else None
        form = "{desc}{percentage:3.0f}%|{bar}| {elapsed}{postfix}"
        self.bar = tqdm(total=1.0, bar_format=form, disable=None if progress_bar else True, mininterval=0.5)

    def _delete_after(self, step: int) -> None:
        """Truncate the file after the last complete line with a step up to `step`."""
        if not self.path.exists():
            return
        size = 0
        with self.path.open("rb") as file:
            for line in file:
                try:
                    if not line.endswith(b"\n") or json.loads(line)["step"] > step:
                        break
                except (ValueError, KeyError, TypeError):
                    break
                size += len(line)
        os.truncate(self.path, size)

    def write(self, step: int, kind: str, numbers: Mapping[str, float]) -> None:
        """Add one line of metrics."""
        values = {k: round(v, 6) if isinstance(v, float) else v for k, v in numbers.items()}
        self.file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        self.file.flush()
        if self.board is not None:
            for name, value in numbers.items():
                self.board.add_scalar(f"{kind}/{name}", value, step)

    def show_progress(self, progress: float, text: str) -> None:
        """Move the progress bar."""
        self.bar.n = min(1.0, progress)
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(0)

    def close(self) -> None:
        """Close all files."""
        self.bar.close()
        self.file.close()
        if self.board is not None:
            self.board.close()


def _open_tensorboard(folder: Path, step: int) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)
