"""Presets of fine-tuning: optimizer, batch size, epochs and learning rate, from task, number of examples and model.

In: what is known before training. Out: a `Schedule`, which `finetune_runs.py` passes to the loop. Training needs a
number of steps, not of epochs: the numbers below come from learning curves of 13 data sets with 100 to 3,000 examples
(docs/results/data-size.md). Answers, choices, vectors and generation were not among them. The optimizer comes from
the recipes on the same page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from albertkit.config import AlbertConfig
from albertkit.train.train_settings import FinetuneSettings

FEW_EXAMPLES = 500
FEW_SENTENCES = 2_000  # entities, and intents with slots: every word is an example
FEW_PER_CLASS = 5
MIN_BATCH = 4
MUON_TASKS = ("classify", "tag", "intent", "dialogue")
MUON_WIDTH = 512


@dataclass(frozen=True)
class Schedule:
    """How long to train, and in which steps."""

    batch_size: int
    epochs: float
    learning_rate: float

    def steps(self, examples: int) -> int:
        """Training steps for a number of examples."""
        return max(1, round(-(-examples // self.batch_size) * self.epochs))


def preset_schedule(
    task: str, examples: int, config: AlbertConfig, settings: FinetuneSettings, classes: int = 0
) -> Schedule:
    """The schedule of a task. Values that `settings` has are kept, and the others fit them.

    Fewer epochs than the preset make the batch smaller, so that the number of steps stays as near as possible.
    classes: of a classifier with one class per text.
    """
    batch, steps = preset_steps(task, examples, classes)
    epochs, batch_size = settings.epochs, settings.batch_size
    if batch_size is None:
        batch_size = batch if epochs is None else nearest_power_of_two(epochs * examples / steps, MIN_BATCH, batch)
    if epochs is None:
        steps = max(steps // 2, steps * batch // batch_size) if batch_size > batch else steps
        epochs = max(preset_epochs(examples), steps / -(-examples // batch_size))
    learning_rate = settings.learning_rate or preset_learning_rate(config, settings.optimizer or "adamw")
    return Schedule(batch_size, epochs, learning_rate)


def preset_steps(task: str, examples: int, classes: int = 0) -> tuple[int, int]:
    """The batch size, and the least number of training steps."""
    if (task in ("tag", "intent") and examples <= FEW_SENTENCES) or (task == "dialogue" and examples <= FEW_EXAMPLES):
        return 8, 1600
    if task == "classify" and examples <= FEW_EXAMPLES:
        return (32, 1200) if examples < FEW_PER_CLASS * classes else (16, 800)
    if task in ("classify", "tag", "intent", "dialogue"):
        return 32, 2400
    return (32 if task == "match" or examples > FEW_EXAMPLES else 16), 400  # not measured


def nearest_power_of_two(size: float, lowest: int, highest: int) -> int:
    """The power of two nearest to a size, from `lowest` to `highest`.

    >>> nearest_power_of_two(13, 4, 32)
    16
    """
    return min(highest, max(lowest, 2 ** round(math.log2(max(size, 1.0)))))


def preset_optimizer(task: str, config: AlbertConfig) -> str:
    """Muon for the tasks and widths at which it was measured, otherwise AdamW."""
    return "muon" if task in MUON_TASKS and config.hidden_size <= MUON_WIDTH else "adamw"


def preset_learning_rate(config: AlbertConfig, optimizer: str = "adamw") -> float:
    """The learning rate for a width: wide shared layers collapse at the learning rates of narrow ones."""
    if optimizer == "muon" and config.hidden_size <= MUON_WIDTH:
        return 2e-4
    for width, rate in ((320, 2e-4), (512, 1e-4), (800, 3e-5), (1100, 2e-5)):
        if config.hidden_size <= width:
            return rate
    return 1e-5


def preset_epochs(examples: int) -> float:
    """More epochs for fewer examples: enough for a model that is trained already, the least for others."""
    for max_examples, epochs in ((5_000, 10.0), (20_000, 5.0), (100_000, 3.0)):
        if examples <= max_examples:
            return epochs
    return 2.0
