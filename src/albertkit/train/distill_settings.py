"""Settings of distillation: what a student is trained on, for how long. No torch, so that `--help` is quick.

In: values from the command line or from Python. Out: frozen, checked dataclasses. `distill.py` takes `DistillSettings`,
`recover.py` and `recover.py` take `RecoverySettings`, `distill_vectors.py` takes `VectorDistillSettings`.
"""

from __future__ import annotations

from dataclasses import dataclass

from albertkit.errors import AlbertkitError, nearest
from albertkit.settings import setting
from albertkit.train.train_settings import parse_integers

TEACHER_OUTPUTS = ("vectors", "logits", "hidden", "attention")
MAX_EVERYDAY = 5_000_000


@dataclass(frozen=True)
class DistillSettings:
    """The weight of each output of a teacher in the loss; 0 omits it."""

    vectors: float = 0.0
    """The vector of a text."""
    logits: float = 0.0
    """The logits of a task's head."""
    hidden: float = 0.0
    """Hidden states after every layer."""
    attention: float = 0.0
    """Attention of the last layer."""
    labels: float = 0.0
    """The labels of the examples, without a teacher."""
    temperature: float = 2.0
    """Logits are divided by it before they are compared."""

    def __post_init__(self) -> None:
        weights = {name: getattr(self, name) for name in (*TEACHER_OUTPUTS, "labels")}
        for name, weight in weights.items():
            if not 0 <= weight < 1e6:
                raise AlbertkitError(f"the weight of {name} is {weight}. It must be 0 or above.")
        if not any(weights.values()):
            raise AlbertkitError(f"all weights are 0. Give one of {', '.join(TEACHER_OUTPUTS)} a weight above 0.")
        if not 0 < self.temperature < 1e3:
            raise AlbertkitError(
                f"temperature={self.temperature} is out of range: it must be above 0. Pass 2, for example."
            )

    @property
    def needs_states(self) -> bool:
        """Whether the teacher runs during training, for its hidden states."""
        return bool(self.hidden or self.attention)


def parse_distill_settings(what: str, labels: float = 0.0, temperature: float = 2.0) -> DistillSettings:
    """From text such as `logits,hidden:0.5`; the default weight is 1."""
    weights: dict[str, float] = {}
    for part in what.split(","):
        name, colon, number = part.strip().partition(":")
        if name not in TEACHER_OUTPUTS:
            more = ""
            if name == "embeddings":
                more = " For a whole text use vectors; hidden includes the embeddings of tokens."
            raise AlbertkitError(
                f"{name!r} is no output of a teacher{nearest(name, TEACHER_OUTPUTS)}. Choose from "
                f"{', '.join(TEACHER_OUTPUTS)}.{more}"
            )
        if name in weights:
            raise AlbertkitError(f"{name} occurs twice in {what!r}. Name it once.")
        try:
            weights[name] = float(number) if colon else 1.0
        except ValueError:
            raise AlbertkitError(
                f"{part.strip()!r} has no number after the colon. Write a weight like hidden:0.5."
            ) from None
    return DistillSettings(**weights, labels=labels, temperature=temperature)


@dataclass(frozen=True)
class RecoverySettings:
    """How long and how fast a compressed model is trained to recover what it lost."""

    epochs: float | None = setting(None, "Passes over the examples [default: half of finetune's].")
    minutes: float | None = setting(None, "Budget in minutes instead of epochs.")
    batch_size: int = setting(32, "Examples per training step.")
    micro_batch_size: int | None = setting(None, "Examples at once, if a batch does not fit into memory.")
    learning_rate: float | None = setting(None, "Peak learning rate [default: by the size of the model].")
    max_length: int = setting(0, "Longest input in tokens; 0 takes that of the fine-tuning, or 128.")
    seed: int = setting(0, "Seed of all random numbers.")
    device: str = setting("auto", "cpu or cuda; auto takes a GPU if there is one.")

    def __post_init__(self) -> None:
        if self.epochs is not None and self.minutes is not None:
            raise AlbertkitError("both epochs and minutes were passed. Choose one budget.")
        for name in ("epochs", "minutes", "batch_size", "micro_batch_size", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e9:
                raise AlbertkitError(f"{name}={value} is out of range: it must be above 0.")
        if self.max_length != 0 and not 8 <= self.max_length <= 1_000_000:
            raise AlbertkitError(
                f"max_length={self.max_length} is out of range. Pass 8 or more, or 0 for the model's own."
            )


@dataclass(frozen=True)
class VectorDistillSettings:
    """What sentence vectors are trained for, from a corpus folder."""

    depths: str = setting("3,6,9,12", "Depths at which vectors are trained.")
    widths: str = setting("64,128,256,384", "Widths to which vectors can be cut.")
    batch_tokens: int = setting(262_144, "Tokens per batch of texts; a GPU waits for the processor with far fewer.")
    max_texts: int = setting(4_096, "Most texts per batch.")
    mlm_weight: float = setting(0.0, "Weight of masked language modelling, to preserve it; 0 trains vectors alone.")
    similarity_scale: float = setting(20.0, "Factor of similarities before their rows are compared.")
    neighbor_share: float = setting(0.0, "Share of a batch that comes in runs of texts with similar meaning.")
    shallow_share: float = setting(0.0, "Share of the training steps that stop at half of the depths, to save time.")
    everyday: int = setting(0, "Sentences about everyday life, made by a grammar, to add to those of the corpus.")

    def __post_init__(self) -> None:
        for name in ("neighbor_share", "shallow_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise AlbertkitError(f"{name}={getattr(self, name)} is no share. Pass a number from 0 to 1.")
        if not 0 <= self.everyday <= MAX_EVERYDAY:
            raise AlbertkitError(f"everyday={self.everyday} is out of range. Pass 0 to {MAX_EVERYDAY:,}.")

    def numbers(self, name: str) -> tuple[int, ...]:
        """`depths` or `widths` as numbers."""
        return parse_integers(name, getattr(self, name))
