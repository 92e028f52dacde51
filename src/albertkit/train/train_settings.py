"""The settings of a training, each with the sentence that documents it, here and in `--help`.

In: numbers from the command line or from Python. Out: `TrainSettings`, frozen and checked, and the schedule they mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from albertkit.errors import AlbertkitError
from albertkit.settings import setting

RATES = {"adamw": 1e-3, "lamb": 1.76e-3, "muon": 1e-3}
SCHEDULES = ("linear", "wsd", "constant")
PRECISIONS = ("auto", "bf16", "float32")
COMPILING = ("auto", "layer", "whole", "no")


@dataclass(frozen=True)
class TrainSettings:
    """How to train. One of steps, tokens and minutes is the budget."""

    steps: int | None = setting(None, "Budget in updates of the weights.")
    tokens: int | None = setting(None, "Budget in tokens seen.")
    minutes: float | None = setting(None, "Budget in minutes of this machine, everything included.")
    batch_size: int = setting(256, "Rows for one update, over all processes.")
    micro_batch_size: int | None = setting(
        None, "Rows at once on a device, if the batch does not fit; the rest is accumulated."
    )
    optimizer: str = setting("adamw", "adamw, lamb or muon.")
    learning_rate: float | None = setting(None, "Highest learning rate [default: 1e-3 adamw, 1.76e-3 lamb, 1e-3 muon].")
    weight_decay: float = setting(0.01, "Weight decay of matrices; biases and norms have none.")
    warmup_ratio: float = setting(0.05, "Share of the budget in which the rate rises from 0.")
    schedule: str = setting("linear", "linear (down to 0), wsd (warm-up, stable, decay) or constant.")
    decay_ratio: float = setting(0.2, "Share of the budget in which wsd decays.")
    max_grad_norm: float = setting(1.0, "Longest gradient; 0 does not clip.")
    precision: str = setting("auto", "bf16 or float32; auto is bf16 on a GPU that has it.")
    compile: str = setting(
        "auto",
        "torch.compile: layer (the shared layer; starts quickly), whole (everything; a minute to start, runs faster), no, or auto (layer on a GPU).",
    )
    device: str = setting("auto", "cpu, cuda, mps; auto takes a GPU if there is one.")
    shard_optimizer: bool = setting(
        False, "Several processes: each keeps a part of the optimizer's moments (ZeRO-1), not all."
    )
    seed: int = setting(0, "Every draw follows from it.")
    log_every: int = setting(20, "Updates between two lines of metrics.jsonl.")
    evaluations: int = setting(10, "Evaluations over the whole budget; the best checkpoint is kept.")
    save_minutes: float = setting(5.0, "Minutes between two checkpoints.")
    save_steps: int | None = setting(None, "Updates between two checkpoints, as well.")
    keep_checkpoints: int = setting(2, "Checkpoints to keep, besides the best.")
    patience: int = setting(0, "Stop after this many evaluations without a better one; 0 never does.")
    load_best: bool = setting(False, "The finished model is the best checkpoint instead of the last.")
    tensorboard: bool = setting(True, "Write metrics for TensorBoard, if tensorboardX is installed.")

    def __post_init__(self) -> None:
        budgets = [name for name in ("steps", "tokens", "minutes") if getattr(self, name) is not None]
        if len(budgets) != 1:
            found = " and ".join(budgets) or "none"
            raise AlbertkitError(f"a training needs one budget of steps, tokens or minutes; given: {found}")
        positive = (
            "steps",
            "tokens",
            "minutes",
            "batch_size",
            "micro_batch_size",
            "learning_rate",
            "log_every",
            "save_minutes",
        )
        for name in (*positive, "save_steps", "keep_checkpoints"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e15:
                raise AlbertkitError(f"{name} is {value}; it must be above 0")
        if not 0 <= self.seed < 2**63:
            raise AlbertkitError(f"seed is {self.seed}; it must be 0 or above, and below 2^63")
        for name in ("warmup_ratio", "decay_ratio"):
            if not 0 <= getattr(self, name) < 1:
                raise AlbertkitError(f"{name} is {getattr(self, name)}; it must be from 0 up to, not including, 1")
        for name in ("weight_decay", "max_grad_norm", "evaluations", "patience"):
            if not 0 <= getattr(self, name) < 1e6:
                raise AlbertkitError(f"{name} is {getattr(self, name)}; it must be 0 or above")
        choices = (("optimizer", tuple(RATES)), ("schedule", SCHEDULES), ("precision", PRECISIONS))
        for name, allowed in (*choices, ("compile", COMPILING)):
            if getattr(self, name) not in allowed:
                raise AlbertkitError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(allowed)}")

    @property
    def rate(self) -> float:
        """The highest learning rate."""
        return RATES[self.optimizer] if self.learning_rate is None else self.learning_rate

    def progress(self, step: int, tokens: int, seconds: float) -> float:
        """Share of the budget that is spent, from 0; 1 or more is the end."""
        if self.steps is not None:
            return step / self.steps
        if self.tokens is not None:
            return tokens / self.tokens
        return seconds / 60 / (self.minutes or 1)

    def factor(self, progress: float) -> float:
        """What the highest learning rate is multiplied with, at a share of the budget."""
        if progress < self.warmup_ratio:
            return progress / self.warmup_ratio
        if self.schedule == "constant":
            return 1.0
        start = self.warmup_ratio if self.schedule == "linear" else max(self.warmup_ratio, 1 - self.decay_ratio)
        return min(1.0, max(0.0, (1 - progress) / max(1 - start, 1e-9)))
