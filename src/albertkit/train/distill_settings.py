"""What a student learns from a teacher, and for how long: the settings of `prune --recover`, `quantize --train` and `distill --what`. No torch.

In: words and numbers from the command line. Out: `DistillSettings` and `RecoverySettings`, checked. Next: `imitate.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from albertkit.errors import AlbertkitError, nearest
from albertkit.settings import setting
from albertkit.train.train_settings import parse_integers

TEACHER_OUTPUTS = ("vectors", "logits", "hidden", "attention")


@dataclass(frozen=True)
class DistillSettings:
    """How much each of a teacher's outputs counts in the loss; 0 leaves it out."""

    vectors: float = 0.0
    """The vector of a text."""
    logits: float = 0.0
    """The scores of a task's head."""
    hidden: float = 0.0
    """Hidden states after every layer."""
    attention: float = 0.0
    """Attention of the last layer."""
    labels: float = 0.0
    """No teacher at all: the right answers."""
    soften: float = 2.0
    """Scores are divided by it before they are compared."""

    def __post_init__(self) -> None:
        weights = {name: getattr(self, name) for name in (*TEACHER_OUTPUTS, "labels")}
        for name, weight in weights.items():
            if not 0 <= weight < 1e6:
                raise AlbertkitError(f"the weight of {name} is {weight}; it must be 0 or above")
        if not any(weights.values()):
            raise AlbertkitError(f"nothing is to be learnt; give one of {', '.join(TEACHER_OUTPUTS)} a weight above 0")
        if not 0 < self.soften < 1e3:
            raise AlbertkitError(f"soften is {self.soften}; it must be above 0, such as 2")

    @property
    def watches(self) -> bool:
        """Whether the teacher must be looked into while the student learns."""
        return bool(self.hidden or self.attention)


def parse_distill_settings(what: str, labels: float = 0.0, soften: float = 2.0) -> DistillSettings:
    """From words such as `logits,hidden:0.5`; a weight is 1 where none is given."""
    weights: dict[str, float] = {}
    for part in what.split(","):
        name, colon, number = part.strip().partition(":")
        if name not in TEACHER_OUTPUTS:
            more = (
                "; vectors are of whole texts, and hidden begins with those of tokens" if name == "embeddings" else ""
            )
            raise AlbertkitError(
                f"{name!r} is nothing a teacher gives{nearest(name, TEACHER_OUTPUTS)}; choose among {', '.join(TEACHER_OUTPUTS)}{more}"
            )
        if name in weights:
            raise AlbertkitError(f"{name} stands twice in {what!r}; name it once")
        try:
            weights[name] = float(number) if colon else 1.0
        except ValueError:
            raise AlbertkitError(f"{part.strip()!r} has no weight behind the colon; write it like hidden:0.5") from None
    return DistillSettings(**weights, labels=labels, soften=soften)


@dataclass(frozen=True)
class RecoverySettings:
    """How long and how fast a model learns again what compressing it has cost."""

    epochs: float | None = setting(None, "Times through the examples [default: half of what finetune takes].")
    minutes: float | None = setting(None, "Budget in minutes instead of epochs.")
    batch_size: int = setting(32, "Examples for one update.")
    micro_batch_size: int | None = setting(None, "Examples at once, if a batch does not fit into memory.")
    learning_rate: float | None = setting(None, "Highest learning rate [default: by the size of the model].")
    max_length: int = setting(0, "Longest input in tokens; 0 takes what the model was fine-tuned with, or 128.")
    seed: int = setting(0, "Every draw follows from it.")
    device: str = setting("auto", "cpu or cuda; auto takes a GPU if there is one.")

    def __post_init__(self) -> None:
        if self.epochs is not None and self.minutes is not None:
            raise AlbertkitError("both epochs and minutes were given; choose one budget")
        for name in ("epochs", "minutes", "batch_size", "micro_batch_size", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e9:
                raise AlbertkitError(f"{name} is {value}; it must be above 0")
        if self.max_length != 0 and not 8 <= self.max_length <= 1_000_000:
            raise AlbertkitError(f"max_length is {self.max_length}; choose 8 or more, or 0 for the model's own")


MOST_EVERYDAY = 5_000_000


@dataclass(frozen=True)
class VectorDistillSettings:
    """What sentence vectors are trained for, from a corpus folder."""

    depths: str = setting("3,6,9,12", "Depths at which the vectors should be good.")
    widths: str = setting("64,128,256,384", "Widths to which a vector may be cut.")
    text_tokens: int = setting(262_144, "Tokens of texts in one batch; a GPU waits for the processor with much fewer.")
    most_texts: int = setting(4_096, "Most texts in one batch.")
    words: float = setting(
        0.0, "Weight of masked words, so that they are not forgotten; 0 makes a model for vectors alone."
    )
    scale: float = setting(20.0, "Similarities are multiplied with it before their rows are compared.")
    near: float = setting(
        0.0, "Share of a batch that comes in runs of texts of like meaning, which are hard to tell apart."
    )
    shallow: float = setting(0.0, "Share of the updates that stop at half of the depths, and so cost less.")
    everyday: int = setting(0, "Sentences of everyday life to add to those of the corpus, made by a grammar.")

    def __post_init__(self) -> None:
        for name in ("near", "shallow"):
            if not 0 <= getattr(self, name) <= 1:
                raise AlbertkitError(f"{name} is {getattr(self, name)}; it is a share, from 0 to 1")
        if not 0 <= self.everyday <= MOST_EVERYDAY:
            raise AlbertkitError(f"everyday is {self.everyday}; it must be 0 to {MOST_EVERYDAY:,}")

    def numbers(self, name: str) -> tuple[int, ...]:
        """`depths` or `widths` as numbers."""
        return parse_integers(name, getattr(self, name))
