"""The options of a fine-tuning, and what they are by default for a size of model and of data. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.settings import setting


@dataclass(frozen=True)
class FinetuneSettings:
    """How to fine-tune. What is not given follows from the size of the model and of the data."""

    epochs: float | None = setting(None, "Times through the examples [default: 3 to 10, fewer for more examples].")
    batch_size: int = setting(32, "Examples for one update.")
    micro_batch_size: int | None = setting(None, "Examples at once, if a batch does not fit into memory.")
    learning_rate: float | None = setting(None, "Highest learning rate [default: by the size of the model].")
    dropout: float | None = setting(
        None, "Dropout inside the layers [default: as the model's config says; heads have their own]."
    )
    max_length: int = setting(128, "Longest input in tokens; longer texts are cut, or read in windows.")
    metric: str | None = setting(None, "The metric that chooses the best checkpoint [default: the task's first].")
    seeds: int = setting(1, "Runs with different seeds; mean and spread are reported, the best is kept.")
    seed: int = setting(0, "The first seed.")
    restarts: int = setting(2, "New starts with another seed and half the rate, if a run collapses.")
    patience: int = setting(0, "Stop after this many epochs without a better one; 0 never does.")
    freeze: bool = setting(False, "Learn only a head on the model's sentence vectors: seconds instead of minutes.")
    shots: int | None = setting(None, "Use so many examples of each class.")
    class_weights: bool = setting(False, "Rare classes weigh more in the loss.")
    gradient_checkpointing: bool = setting(False, "Keep less in memory and compute it again (about a third slower).")
    elastic: bool = setting(
        False, "Make every depth a good model, so that texts may leave early (see albertkit elastic)."
    )
    target_length: int = setting(32, "generate: most tokens to write; the source gets the rest of --max-length.")
    label_smoothing: float = setting(
        0.0, "generate: label smoothing, the share of the loss that is spread over all words."
    )
    device: str = setting("auto", "cpu or cuda; auto takes a GPU if there is one.")

    shortest: ClassVar[int] = 8

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "micro_batch_size", "learning_rate", "seeds", "shots"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e9:
                raise AlbertkitError(f"{name} is {value}; it must be above 0")
        if not self.shortest <= self.max_length <= 1_000_000 or self.restarts < 0:
            raise AlbertkitError(f"max_length is {self.max_length}; it must be 8 or more, and restarts 0 or more")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise AlbertkitError(f"dropout is {self.dropout}; it must be 0 or above, and below 1")
        if self.freeze and self.seeds > 1:
            raise AlbertkitError(
                f"seeds is {self.seeds}, and a head on frozen vectors comes out the same with every seed; leave --seeds "
                "away, or --freeze (with --shots, --seed 1 draws other examples)"
            )


@dataclass(frozen=True)
class ElasticSettings(FinetuneSettings):
    """How to make every depth a good model: the options of a fine-tuning, and what goes into the loss of each depth."""

    elastic: bool = setting(True, "Learn at every depth; --no-elastic trains the full depth alone, to compare with.")
    epochs: float | None = setting(
        None, "Times through the examples [default: half of what finetune takes, all of it for a model without a task]."
    )
    max_length: int = setting(
        0, "Longest input in tokens; 0 takes what the model, or its teacher, was fine-tuned with."
    )
    freeze: bool = False  # without a sentence these are no options of the verb
    shots: int | None = None
    target_length: int = 32
    label_smoothing: float = 0.0
    sampled_depths: int = setting(
        0, "Depths drawn at random for each update, besides the full one; 0 takes all of them."
    )
    shallow_weight: float = setting(1.0, "Weight of all shallower depths together; the full depth has 1.")
    distill_weight: float = setting(
        0.5, "What shallower depths learn from: 0 the right answers, 1 what the full depth says."
    )
    temperature: float = setting(
        2.0, "Scores are divided by it before shallower depths are compared with the full one."
    )
    consistency_weight: float = setting(0.0, "Weight λ of the loss that makes the layers' hidden states alike.")

    shortest: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampled_depths < 0 or self.shallow_weight < 0 or self.consistency_weight < 0:
            raise AlbertkitError("sampled_depths, shallow_weight and consistency_weight must be 0 or above")
        if not 0 <= self.distill_weight <= 1 or self.temperature <= 0:
            raise AlbertkitError(
                f"distill_weight is {self.distill_weight} and temperature {self.temperature}; "
                "distill_weight goes from 0 to 1, and temperature is above 0"
            )


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
