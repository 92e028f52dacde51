"""The options of a fine-tuning, and what they are by default for a size of model and of data. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.train.settings import setting


@dataclass(frozen=True)
class Options:
    """How to fine-tune. What is not given follows from the size of the model and of the data."""

    epochs: float | None = setting(None, "Times through the examples [default: 3 to 10, fewer for more examples].")
    batch: int = setting(32, "Examples for one update.")
    micro: int | None = setting(None, "Examples at once, if a batch does not fit into memory.")
    learning_rate: float | None = setting(None, "Highest learning rate [default: by the size of the model].")
    max_length: int = setting(128, "Longest input in tokens; longer texts are cut, or read in windows.")
    metric: str | None = setting(None, "The metric that chooses the best checkpoint [default: the task's first].")
    seeds: int = setting(1, "Runs with different seeds; mean and spread are reported, the best is kept.")
    seed: int = setting(0, "The first seed.")
    restarts: int = setting(2, "New starts with another seed and half the rate, if a run collapses.")
    patience: int = setting(0, "Stop after this many epochs without a better one; 0 never does.")
    freeze: bool = setting(False, "Learn only a head on the model's sentence vectors: seconds instead of minutes.")
    shots: int | None = setting(None, "Use so many examples of each class.")
    class_weights: bool = setting(False, "Rare classes weigh more in the loss.")
    checkpointing: bool = setting(False, "Keep less in memory and compute it again (about a third slower).")
    device: str = setting("auto", "cpu or cuda; auto takes a GPU if there is one.")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "micro", "learning_rate", "seeds", "shots"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e9:
                raise AlbertkitError(f"{name} is {value}; it must be above 0")
        if not 8 <= self.max_length <= 1_000_000 or self.restarts < 0:
            raise AlbertkitError(f"max_length is {self.max_length}; it must be 8 or more, and restarts 0 or more")


def preset_rate(config: AlbertConfig) -> float:
    """The rate that fits the width: large shared layers collapse at rates that small ones need."""
    for width, rate in ((320, 2e-4), (512, 1e-4), (800, 3e-5), (1100, 2e-5)):
        if config.hidden_size <= width:
            return rate
    return 1e-5


def preset_epochs(examples: int) -> float:
    """Few examples are seen more often."""
    for most, epochs in ((5_000, 10.0), (20_000, 5.0), (100_000, 3.0)):
        if examples <= most:
            return epochs
    return 2.0
