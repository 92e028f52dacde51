"""Recipes of fine-tuning that `albertkit finetune` does not have: which of them gain? Used by `curves.py --plan recipes`.

A recipe changes the settings of fine-tuning, those of the loop, or the loss, for the runs inside `Recipe.applied()`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.train import loop, task_heads
from albertkit.train.task_heads import LOSSES, distill_loss


@dataclass(frozen=True)
class Recipe:
    """What differs from the preset."""

    finetune: dict[str, Any] = field(default_factory=dict)  # settings of fine-tuning, such as the optimizer
    loop: dict[str, Any] = field(default_factory=dict)  # settings of the loop
    rate_factor: float = 1.0  # of the learning rate
    smoothing: float = 0.0  # of labels
    rdrop: float = 0.0  # weight of the KL between two passes with different dropout
    average: float = 0.0  # decay of the moving average of the weights, which is evaluated and kept
    freezes_embeddings: bool = False

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply to all runs of this process."""
        train, run, functions = loop.train, loop.TrainingRun, task_heads.F

        def changed(task: Any, settings: Any, *rest: Any, **named: Any) -> Any:
            task.settings = dataclasses.replace(settings, **self.loop)
            if self.rdrop:
                add_rdrop(task.objective, self.rdrop)
            if self.freezes_embeddings:
                task.model.encoder.embeddings.requires_grad_(False)
            return train(task, task.settings, *rest, **named)

        loop.train = changed
        if self.average:
            loop.TrainingRun = type("Run", (AveragedRun,), {"decay": self.average})
        if self.smoothing:
            task_heads.F = smoothed(self.smoothing)
        try:
            yield
        finally:
            loop.train, loop.TrainingRun, task_heads.F = train, run, functions


def smoothed(share: float) -> Any:
    """`torch.nn.functional` with label smoothing."""
    changed = types.SimpleNamespace(**vars(F))
    changed.cross_entropy = lambda *args, **named: F.cross_entropy(*args, **{**named, "label_smoothing": share})
    return changed


def add_rdrop(objective: Any, weight: float) -> None:
    """Two passes; the loss is the mean of both, plus the symmetric KL between them."""

    def forward(batch: Any, targets: list[Any], texts: int) -> tuple[Tensor, Tensor]:
        first, second = (objective.run(batch, targets) for _ in range(2))
        losses = [LOSSES[objective.heads](objective.task, out, targets) for out in (first, second)]
        apart = [distill_loss(objective.task, *pair, targets, 1.0) for pair in ((first, second), (second, first))]
        loss = sum(losses) / 2 + weight * sum(apart) / 2
        return loss, torch.stack([losses[0].detach() * texts, torch.full_like(loss, texts).detach()])[None]

    objective.forward = forward


class AveragedRun(loop.TrainingRun):
    """Evaluates and saves a moving average of the weights."""

    decay = 0.999

    def step(self, progress: float) -> None:
        super().step(progress)
        with torch.no_grad():
            weights = list(self.task.objective.parameters())
            if not hasattr(self, "averages"):
                self.averages, self.current = [w.clone() for w in weights], None
            decay = min(self.decay, (1 + self.state.step) / (10 + self.state.step))
            torch._foreach_lerp_(self.averages, weights, 1 - decay)

    def evaluate(self) -> None:
        if hasattr(self, "averages"):
            weights = list(self.task.objective.parameters())
            self.current = [w.detach().clone() for w in weights]
            with torch.no_grad():
                torch._foreach_copy_(weights, self.averages)
        super().evaluate()

    def save(self) -> None:
        super().save()
        if getattr(self, "current", None) is not None:
            with torch.no_grad():
                torch._foreach_copy_(list(self.task.objective.parameters()), self.current)
            self.current = None


ADAMW = {"optimizer": "adamw"}
MUON = {"optimizer": "muon"}
RECIPES = {
    "muon 2e-4": Recipe(MUON, rate_factor=2.0),
    "adamw": Recipe(ADAMW),
    "muon 1e-4": Recipe(MUON),
    "muon 3e-4": Recipe(MUON, rate_factor=3.0),
    "muon 5e-4": Recipe(MUON, rate_factor=5.0),
    "adamw, rate × 0.5": Recipe(ADAMW, rate_factor=0.5),
    "adamw, rate × 2": Recipe(ADAMW, rate_factor=2.0),
    "adamw, warm-up 0.3": Recipe(ADAMW, {"warmup_ratio": 0.3}),
    "adamw, average 0.998": Recipe(ADAMW, average=0.998),
    "adamw, frozen embeddings": Recipe(ADAMW, freezes_embeddings=True),
    "adamw, dropout 0.1": Recipe({**ADAMW, "dropout": 0.1}),
    "muon 2e-4, average 0.998": Recipe(MUON, rate_factor=2.0, average=0.998),
    "muon 2e-4, smoothing 0.1": Recipe(MUON, rate_factor=2.0, smoothing=0.1),
    "muon 2e-4, layer decay 0.8": Recipe({**MUON, "layer_decay": 0.8}, rate_factor=2.0),
    "muon 2e-4, R-Drop": Recipe({**MUON, "dropout": 0.1}, rate_factor=2.0, rdrop=1.0),
}
"""The factors are of AdamW's learning rate, 1e-4 for the built-in models."""
