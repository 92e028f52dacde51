"""Checkpoints: a model anyone can open, and beside it what only the training needs to go on.

    run/checkpoints/step-00001000/
      model/                 an artifact folder
      training.safetensors   the optimizers' moments
      training.json          step, tokens, seconds, place in the data, best score

A folder appears whole or not at all, so that the one with the highest number can always be trusted.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from albertkit.artifact import Artifact, digest, new_folder, read_artifact, read_json, write_artifact, write_json
from albertkit.errors import AlbertkitError

NAME = re.compile(r"step-(\d{8,})")


@dataclass
class TrainState:
    """Where a training stands."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    backoff: float = 1.0
    """The learning rate is multiplied with it; halved by each rewind."""
    best: dict[str, Any] = field(default_factory=dict)
    """`step` and `score` of the best evaluation."""
    worse: int = 0
    """Evaluations since then."""
    sums: list[list[float]] = field(default_factory=list)
    """What the next line of metrics has summed up so far."""
    data: dict[str, Any] = field(default_factory=dict)
    """The work's own place in its data."""


def optimizer_tensors(optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """All state of the optimizers, flat: `optimizer.parameter.name`."""
    flat = {}
    for number, optimizer in enumerate(optimizers):
        for place, values in optimizer.state_dict()["state"].items():
            for name, value in values.items():
                flat[f"{number}.{place}.{name}"] = torch.as_tensor(value).detach().cpu().contiguous().clone()
    return flat


def restore_optimizers(optimizers: list[torch.optim.Optimizer], flat: dict[str, Tensor]) -> None:
    """Put the state back."""
    if flat and {int(key.split(".")[0]) for key in flat} != set(range(len(optimizers))):
        raise AlbertkitError(
            "the checkpoint's optimizer state does not fit; resume with the optimizer it was made with"
        )
    for number, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in flat.items():
            home, place, name = key.split(".", 2)
            if int(home) == number:
                state.setdefault(int(place), {})[name] = value
        try:
            groups = torch.optim.Optimizer.state_dict(optimizer)[
                "param_groups"
            ]  # a parted one has not gathered its own
            optimizer.load_state_dict({"state": state, "param_groups": groups})
        except (ValueError, KeyError, RuntimeError) as error:
            raise AlbertkitError(
                f"the checkpoint's optimizer state does not fit ({error}); resume with the optimizer it was made with"
            ) from None


def save(run: Path, artifact: Artifact, tensors: dict[str, Tensor], state: TrainState) -> Path:
    """Write a checkpoint, whole or not at all."""
    target = run / "checkpoints" / f"step-{state.step:08d}"
    if target.exists():
        return target
    with new_folder(target) as scratch:
        write_artifact(artifact, scratch / "model")
        save_file(tensors, str(scratch / "training.safetensors"))
        about = {**asdict(state), "sha256": digest(scratch / "training.safetensors")}
        write_json(scratch / "training.json", about)
    return target


def load(folder: Path) -> tuple[Artifact, dict[str, Tensor], TrainState]:
    """Read a checkpoint, checked against its hashes."""
    about = read_json(folder / "training.json")
    file = folder / "training.safetensors"
    try:
        if digest(file) != about.pop("sha256", None):
            raise AlbertkitError(
                f"{file} has changed since it was written; delete {folder} to go on from the one before"
            )
        tensors = load_file(str(file))
        state = TrainState(**about)
    except (OSError, SafetensorError, TypeError) as error:
        raise AlbertkitError(f"{folder} is damaged ({error}); delete it to go on from the one before") from None
    return read_artifact(folder / "model"), tensors, state


def steps(run: Path) -> list[int]:
    """Steps of the checkpoints there are, in order."""
    folder = run / "checkpoints"
    found = [NAME.fullmatch(path.name) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(match[1]) for match in found if match)


def place(run: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return run / "checkpoints" / f"step-{step:08d}"


def prune(run: Path, keep: int, best: int | None) -> None:
    """Delete all but the last `keep` checkpoints and the best one, and what a kill left half-written."""
    for step in steps(run)[:-keep]:
        if step != best:
            gone = place(run, step).rename(run / "checkpoints" / f".step-{step:08d}.old")
            shutil.rmtree(gone, ignore_errors=True)
    sweep(run)


def forget(run: Path, step: int) -> None:
    """Delete the checkpoints after a step."""
    for later in steps(run):
        if later > step:
            shutil.rmtree(place(run, later).rename(run / "checkpoints" / f".step-{later:08d}.old"), ignore_errors=True)


def sweep(run: Path) -> None:
    """Delete scratch folders that a kill left behind."""
    folder = run / "checkpoints"
    for path in folder.glob(".step-*") if folder.is_dir() else ():
        shutil.rmtree(path, ignore_errors=True)
