"""The log of a training: a progress bar, metrics as JSON lines and for TensorBoard, and a plot at the end.

In: numbers by step, from `loop.py`. Out: `metrics.jsonl` (one object per line: step, kind, tokens, seconds, then
the numbers), `tensorboard/`, `loss.png`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from albertkit.train.train_settings import TrainSettings


class TrainLog:
    """Writes while the training runs. Lines after the step it resumes from are deleted first."""

    def __init__(self, run: Path, settings: TrainSettings, step: int, progress_bar: bool) -> None:
        self.path = run / "metrics.jsonl"
        self._delete_after(step)
        self.file = self.path.open("a", encoding="utf-8")
        self.board = _open_tensorboard(run / "tensorboard", step) if settings.tensorboard else None
        form = "{desc}{percentage:3.0f}%|{bar}| {elapsed}{postfix}"
        self.bar = tqdm(total=1.0, bar_format=form, disable=None if progress_bar else True, mininterval=0.5)

    def _delete_after(self, step: int) -> None:
        """Truncate the file behind the last complete line of a step up to `step`."""
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


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def plot_metrics(metrics: Path, target: Path) -> bool:
    """Plot losses and accuracies over tokens; False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    all_lines = read_metrics(metrics)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, group in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for kind, style in (("train", "-"), ("eval", "o--")):
            lines = [line for line in all_lines if line["kind"] == kind]
            for name in sorted({n for line in lines for n in line if group in n}):
                points = [(line["tokens"] / 1e6, line[name]) for line in lines if name in line]
                axes.plot(*zip(*points, strict=True), style, lw=1, ms=3, label=f"{kind} {name.replace('_', ' ')}")
        axes.set_xlabel("million tokens")
        axes.set_ylabel(group)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)
    figure.savefig(target, dpi=110)
    return True
