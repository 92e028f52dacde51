"""What a student learns from a teacher, and for how long: the settings of `prune --recover`, `quantize --train` and `distill --what`. No torch.

In: words and numbers from the command line. Out: `Lesson` and `Training`, checked. Next: `imitate.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from albertkit.errors import AlbertkitError, nearest
from albertkit.settings import setting

KINDS = ("vectors", "logits", "hidden", "attention")


@dataclass(frozen=True)
class Lesson:
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
        weights = {name: getattr(self, name) for name in (*KINDS, "labels")}
        for name, weight in weights.items():
            if not 0 <= weight < 1e6:
                raise AlbertkitError(f"the weight of {name} is {weight}; it must be 0 or above")
        if not any(weights.values()):
            raise AlbertkitError(f"nothing is to be learnt; give one of {', '.join(KINDS)} a weight above 0")
        if not 0 < self.soften < 1e3:
            raise AlbertkitError(f"soften is {self.soften}; it must be above 0, such as 2")

    @property
    def watches(self) -> bool:
        """Whether the teacher must be looked into while the student learns."""
        return bool(self.hidden or self.attention)


def lesson(what: str, labels: float = 0.0, soften: float = 2.0) -> Lesson:
    """From words such as `logits,hidden:0.5`; a weight is 1 where none is given."""
    weights: dict[str, float] = {}
    for part in what.split(","):
        name, colon, number = part.strip().partition(":")
        if name not in KINDS:
            more = (
                "; vectors are of whole texts, and hidden begins with those of tokens" if name == "embeddings" else ""
            )
            raise AlbertkitError(
                f"{name!r} is nothing a teacher gives{nearest(name, KINDS)}; choose among {', '.join(KINDS)}{more}"
            )
        if name in weights:
            raise AlbertkitError(f"{name} stands twice in {what!r}; name it once")
        try:
            weights[name] = float(number) if colon else 1.0
        except ValueError:
            raise AlbertkitError(f"{part.strip()!r} has no weight behind the colon; write it like hidden:0.5") from None
    return Lesson(**weights, labels=labels, soften=soften)


@dataclass(frozen=True)
class Training:
    """How long and how fast a model learns again what compressing it has cost."""

    epochs: float | None = setting(None, "Times through the examples [default: half of what finetune takes].")
    minutes: float | None = setting(None, "Budget in minutes instead of epochs.")
    batch: int = setting(32, "Examples for one update.")
    micro: int | None = setting(None, "Examples at once, if a batch does not fit into memory.")
    learning_rate: float | None = setting(None, "Highest learning rate [default: by the size of the model].")
    max_length: int = setting(0, "Longest input in tokens; 0 takes what the model was fine-tuned with, or 128.")
    seed: int = setting(0, "Every draw follows from it.")
    device: str = setting("auto", "cpu or cuda; auto takes a GPU if there is one.")

    def __post_init__(self) -> None:
        if self.epochs is not None and self.minutes is not None:
            raise AlbertkitError("both epochs and minutes were given; choose one budget")
        for name in ("epochs", "minutes", "batch", "micro", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e9:
                raise AlbertkitError(f"{name} is {value}; it must be above 0")
        if self.max_length != 0 and not 8 <= self.max_length <= 1_000_000:
            raise AlbertkitError(f"max_length is {self.max_length}; choose 8 or more, or 0 for the model's own")
