"""What a training consists of, for the loop: the `TrainingTask` that pre-training, fine-tuning and distilling are, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from albertkit.artifact import Artifact
from albertkit.train.checkpoint import TrainState
from albertkit.train.distributed import ProcessGroup


class TrainingTask(Protocol):
    """What a training consists of."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the numbers that the objective sums up."""

    @property
    def selection_metric(self) -> str:
        """The evaluation by which the best checkpoint is chosen; lower is better if it names a loss."""

    @property
    def has_fixed_shape(self) -> bool:
        """Whether all batches have one shape, or a few."""

    @property
    def flops_per_token(self) -> float:
        """Operations for a token of training, for the share of peak."""

    @property
    def objective(self) -> nn.Module:
        """Holds the model; called with one of the parts below, gives (loss, sums): `sums` is (n, 2), a total and a count
        for each of `metric_names`.
        """

    def compile(self) -> None:
        """Let torch compile the parts that are worth it."""

    def next_batch(self, step: int, progress: float, processes: ProcessGroup) -> tuple[list[tuple[Any, ...]], int]:
        """This process's parts of the next batch, and the tokens of the whole batch."""

    def evaluate(self) -> dict[str, float]:
        """Scores on held-out data."""

    def check_metrics(self, numbers: dict[str, float], progress: float, step: int) -> Alarm | None:
        """What to do, if the numbers say that nothing is being learnt, or that what was learnt is lost."""

    def data_position(self) -> dict[str, Any]:
        """Where the data stands, as JSON."""

    def restore(self, artifact: Artifact, data: dict[str, Any]) -> None:
        """Go back to saved weights and a place in the data."""

    def to_artifact(self, metrics: dict[str, float], state: TrainState) -> Artifact:
        """The model as it is now."""


@dataclass(frozen=True)
class Alarm:
    """Something is wrong with the training."""

    text: str
    rewind: bool = False
    """Go back to the last checkpoint at half the rate, instead of stopping."""


@dataclass(frozen=True)
class TrainResult:
    """How a training ended."""

    model: Path | None
    """The finished model's folder, or None if it was stopped before its end."""
    state: TrainState
    metrics: dict[str, float]
