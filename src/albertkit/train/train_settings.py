"""The settings of every training, as frozen dataclasses. No torch here.

In: values from the command line or from Python. Out: `TrainSettings`, `PretrainSettings`, `FinetuneSettings`,
`ElasticSettings`, checked. The sentence of a field is its documentation, here and in `--help`. A field without a
sentence has no flag. Next: `loop.py`, `pretrain.py`, `finetune.py`, `elastic.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from albertkit.errors import AlbertkitError, check_choice, check_fields
from albertkit.options import setting

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Log = Callable[[str], None]  # called with one line for the user
LEARNING_RATES = {"adamw": 1e-3, "lamb": 1.76e-3, "muon": 1e-3}
SCHEDULES = ("linear", "wsd", "constant")
PRECISIONS = ("auto", "bf16", "float32")
COMPILE_MODES = ("auto", "layer", "no")
SIMILARITIES = ("cosine", "dot")
RULES: dict[str, Callable[[float], bool]] = {
    "above 0": lambda value: 0 < value < 1e15,
    "0 or above": lambda value: 0 <= value < 1e15,
    "0 or above, and below 1": lambda value: 0 <= value < 1,
    "from 0 to 1": lambda value: 0 <= value <= 1,
    "8 or more, or 0 for the model's own": lambda value: value == 0 or 8 <= value <= 1_000_000,
}
"""Rules for numbers in the settings, worded for the error; see `check_numbers`."""


@dataclass(frozen=True)
class TrainSettings:
    """How to train. Exactly one of steps, tokens and minutes is the budget."""

    steps: int | None = setting(None, "Budget in training steps.")
    tokens: int | None = setting(None, "Budget in tokens.")
    minutes: float | None = setting(None, "Budget in minutes on this machine, everything included.")
    batch_size: int = setting(256, "Rows per training step, over all processes.")
    micro_batch_size: int | None = setting(None, "Rows per forward pass; gradients accumulate up to the batch size.")
    optimizer: str = setting("adamw", "adamw, lamb or muon.")
    learning_rate: float | None = setting(None, "Peak learning rate [default: 1e-3 adamw, 1.76e-3 lamb, 1e-3 muon].")
    weight_decay: float = setting(0.01, "Weight decay of matrices; biases and norms have none.")
    warmup_ratio: float = setting(0.05, "Share of the budget in which the learning rate rises from 0.")
    schedule: str = setting("linear", "linear (down to 0), wsd (warm-up, stable, decay) or constant.")
    decay_ratio: float = setting(0.2, "Share of the budget in which wsd decays.")
    max_grad_norm: float = setting(1.0, "Gradients are clipped to this norm; 0 does not clip.")
    precision: str = setting("auto", "bf16 or float32; auto is bf16 on a GPU that supports it.")
    compile: str = setting("auto", "torch.compile: layer (the shared layer), no, or auto (layer on a GPU).")
    device: str = setting("auto", "cpu, cuda, mps; auto takes a GPU if there is one.")
    seed: int = setting(0, "Seed of all random numbers.")
    log_every: int = setting(20, "Training steps between two lines of metrics.jsonl.")
    evaluations: int = setting(10, "Evaluations over the whole budget; the best checkpoint is kept.")
    save_minutes: float = setting(5.0, "Minutes between two checkpoints.")
    save_steps: int | None = setting(None, "Training steps between two checkpoints, in addition.")
    keep_checkpoints: int = setting(2, "Checkpoints to keep, at least 2, besides the best.")
    patience: int = setting(0, "Stop after this many evaluations without improvement; 0 never stops early.")
    load_best: bool = setting(False, "The finished model is the best checkpoint instead of the last.")
    tensorboard: bool = setting(True, "Write metrics for TensorBoard, if tensorboardX is installed.")

    def __post_init__(self) -> None:
        check_fields(self)
        budgets = [name for name in ("steps", "tokens", "minutes") if getattr(self, name) is not None]
        if len(budgets) != 1:
            names = " and ".join(budgets) or "none"
            raise AlbertkitError(f"the budget is set by {names}. Pass exactly one of steps, tokens and minutes.")
        numbers = ("steps", "tokens", "minutes", "batch_size", "micro_batch_size", "learning_rate")
        check_numbers(self, "above 0", *numbers, "log_every", "save_minutes", "save_steps", "keep_checkpoints")
        check_numbers(self, "0 or above", "weight_decay", "max_grad_norm", "evaluations", "patience")
        check_numbers(self, "0 or above, and below 1", "warmup_ratio", "decay_ratio")
        if not 0 <= self.seed < 2**63:
            raise AlbertkitError(f"seed is {self.seed}; it must be 0 or above, and below 2^63")
        check_choice("optimizer", self.optimizer, LEARNING_RATES)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("compile", self.compile, COMPILE_MODES)

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate after warm-up."""
        return LEARNING_RATES[self.optimizer] if self.learning_rate is None else self.learning_rate

    def progress(self, step: int, tokens: int, seconds: float) -> float:
        """The spent share of the budget, from 0; training ends at 1."""
        if self.steps is not None:
            return step / self.steps
        if self.tokens is not None:
            return tokens / self.tokens
        return seconds / 60 / (self.minutes or 1)

    def is_evaluation_due(self, before: float, progress: float) -> bool:
        """Whether to evaluate after a step that increased the spent share of the budget from `before`."""
        count = self.evaluations
        return count > 0 and (int(progress * count) > int(before * count) or progress >= 1)

    def is_save_due(self, step: int, seconds: float) -> bool:
        """Whether to write a checkpoint after a step, `seconds` after the last one."""
        return seconds > 60 * self.save_minutes or (self.save_steps is not None and step % self.save_steps == 0)

    def learning_rate_factor(self, progress: float) -> float:
        """The factor of the peak learning rate at a share of the budget."""
        if progress < self.warmup_ratio:
            return progress / self.warmup_ratio
        if self.schedule == "constant":
            return 1.0
        decays_from = self.warmup_ratio if self.schedule == "linear" else max(self.warmup_ratio, 1 - self.decay_ratio)
        return min(1.0, max(0.0, (1 - progress) / max(1 - decays_from, 1e-9)))


@dataclass(frozen=True)
class PretrainSettings:
    """Rows, masking and losses of pre-training."""

    lengths: str = setting("128", "Tokens per row; with shares of the budget: '128:0.9,512:0.1' ends with longer rows.")
    short_ratio: float = setting(0.1, "Share of the training steps with rows of a quarter of the length.")
    single_ratio: float = setting(0.3, "Share of the rows that are one segment instead of two.")
    mask_ratio: float = setting(0.15, "Share of the tokens that are masked.")
    sop_weight: float = setting(1.0, "Weight of the sentence-order loss; 0 omits it.")
    consistency_weight: float = setting(0.0, "Weight λ of the loss that makes the layers' hidden states similar.")
    consistency_similarity: str = setting("cosine", "Similarity in the consistency loss: cosine or dot.")
    layer_decay: float = setting(1.0, "Below 1, earlier uses of the shared layer count less in its gradient.")
    depths: str = setting(
        "",
        "Shallower depths to train, such as 3,6,9: every second step, on average, uses one of them.",
    )
    eval_rows: int = setting(1024, "Held-out rows to evaluate on.")
    alarm: bool = setting(True, "Rewind a run whose loss jumps, and stop one that has collapsed.")

    def __post_init__(self) -> None:
        check_fields(self)
        check_numbers(self, "0 or above, and below 1", "short_ratio", "single_ratio")
        check_numbers(self, "0 or above", "sop_weight", "consistency_weight")
        check_choice("consistency_similarity", self.consistency_similarity, SIMILARITIES)
        if not 0 < self.mask_ratio < 0.9:
            raise AlbertkitError(f"mask_ratio is {self.mask_ratio}; it must be between 0 and 0.9")
        check_layer_decay(self.layer_decay)
        self.phases()
        self.shallow_depths()

    def phases(self) -> list[tuple[int, float]]:
        """(length, share of the budget) in order; the shares add up to 1."""
        try:
            parts = [part.split(":") for part in self.lengths.split(",")]
            phases = [(int(p[0]), float(p[1]) if len(p) > 1 else 1.0) for p in parts]
        except (ValueError, IndexError):
            raise AlbertkitError(f"lengths is {self.lengths!r}. Write it like 128 or 128:0.9,512:0.1.") from None
        total = sum(share for _, share in phases)
        if min(length for length, _ in phases) < 8 or min(share for _, share in phases) <= 0 or abs(total - 1) > 1e-6:
            raise AlbertkitError(
                f"lengths is {self.lengths!r}: lengths must be 8 or more, and shares must add up to 1."
            )
        return phases

    def shallow_depths(self) -> tuple[int, ...]:
        """`depths` as numbers, the shallowest first."""
        return parse_integers("depths", self.depths) if self.depths.strip() else ()

    def length_at(self, progress: float) -> int:
        """Tokens per row at a share of the budget."""
        spent = 0.0
        for length, share in self.phases():
            spent += share
            if progress < spent:
                return length
        return self.phases()[-1][0]


STEP_SETTINGS = (  # of `FinetuneSettings`: without effect on a head on frozen vectors
    *("epochs", "batch_size", "micro_batch_size", "optimizer", "learning_rate", "dropout", "metric", "restarts"),
    *("patience", "layer_decay", "gradient_checkpointing", "keep_epochs", "elastic"),
)


@dataclass(frozen=True)
class FinetuneSettings:
    """How to fine-tune. Defaults of None depend on the size of the model and of the data."""

    epochs: float | None = setting(None, "Passes over the examples [default: by the task and the number of examples].")
    batch_size: int | None = setting(
        None, "Examples per training step [default: 4 to 32, by the task, the number of examples and --epochs]."
    )
    micro_batch_size: int | None = setting(None, "Examples per forward pass, if a batch does not fit into memory.")
    optimizer: str | None = setting(
        None, "adamw or muon [default: muon up to 512 wide for texts, tags, intents, dialogues; adamw with --elastic]."
    )
    learning_rate: float | None = setting(None, "Peak learning rate [default: by optimizer and size of the model].")
    dropout: float | None = setting(None, "Dropout inside the layers [default: from the model's config].")
    max_length: int = setting(128, "Longest input in tokens; longer texts are truncated, or read in windows.")
    metric: str | None = setting(None, "The metric that selects the best checkpoint [default: the task's first].")
    seeds: int = setting(1, "Runs with different seeds; mean and spread are reported, the best is kept.")
    seed: int = setting(0, "The first seed.")
    restarts: int = setting(2, "Restarts with another seed and half the learning rate, if a run collapses.")
    patience: int = setting(0, "Stop after this many epochs without improvement; 0 never stops early.")
    freeze: bool = setting(False, "Train only a head on the model's sentence vectors: seconds instead of minutes.")
    nearest: bool = setting(
        False, "No training: predict the class whose mean sentence vector is nearest. Holds out nothing."
    )
    shots: int | None = setting(None, "Use this many examples of each class.")
    class_weights: bool = setting(False, "Rare classes weigh more in the loss.")
    layer_decay: float = setting(1.0, "Below 1, earlier uses of the shared layer count less in its gradient.")
    gradient_checkpointing: bool = setting(False, "Recompute activations: less memory, about a third slower.")
    keep_epochs: bool = setting(False, "Keep the checkpoint of every epoch, in runs/seed-N/checkpoints.")
    resume: bool = setting(False, "Continue the run in --output with other settings, such as more --epochs.")
    overwrite: bool = setting(False, "Delete the run in --output and start again.")
    elastic: bool = setting(False, "Train every depth, so that texts may exit early (see albertkit elastic).")
    target_length: int = setting(32, "generate: most tokens to write; the source gets the rest of --max-length.")
    label_smoothing: float = setting(0.0, "generate: label smoothing.")
    max_unknown: float = setting(0.1, "Largest share of training texts that the model cannot read; 1 accepts all.")
    device: str = setting("auto", "cpu or cuda; auto takes a GPU if there is one.")
    progress_bar: bool = False  # no flag: the command line always shows one on a terminal

    shortest_input: ClassVar[int] = 8

    def __post_init__(self) -> None:
        check_fields(self)
        check_numbers(self, "above 0", "epochs", "batch_size", "micro_batch_size", "learning_rate", "seeds", "shots")
        check_numbers(self, "0 or above", "restarts")
        check_numbers(self, "0 or above, and below 1", "dropout")
        check_layer_decay(self.layer_decay)
        if self.optimizer is not None:
            check_choice("optimizer", self.optimizer, ("adamw", "muon"))
        if self.resume and self.overwrite:
            raise AlbertkitError("resume and overwrite exclude each other. Pass one of them.")
        if not self.shortest_input <= self.max_length <= 1_000_000:
            raise AlbertkitError(f"max_length is {self.max_length}; it must be 8 or more")
        if self.nearest and self.class_weights:
            raise AlbertkitError(
                "class_weights is not available with nearest, where every class has the same weight. Omit one of them."
            )
        passed = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        name = next((name for name in STEP_SETTINGS if name in passed), None)
        if self.is_frozen and name is not None:
            flag = "--nearest" if self.nearest else "--freeze"
            raise AlbertkitError(
                f"{name}={getattr(self, name)!r} is not available: a head on frozen vectors is not trained by steps. "
                f"Omit --{name.replace('_', '-')} or {flag} (frozen=False in AlbertClassifier)."
            )
        if self.is_frozen and self.seeds > 1:
            flag = "--nearest" if self.nearest else "--freeze"
            raise AlbertkitError(
                f"seeds={self.seeds} is not available: a head on frozen vectors does not depend on the seed. Omit "
                f"--seeds or {flag}. With --shots, --seed 1 draws other examples."
            )

    @property
    def is_frozen(self) -> bool:
        """Whether the model stays as it is and only a head on its sentence vectors is made."""
        return self.freeze or self.nearest


@dataclass(frozen=True)
class ElasticSettings(FinetuneSettings):
    """How to train every depth: the settings of fine-tuning, and the parts of the loss of each depth."""

    elastic: bool = setting(True, "Train every depth; --no-elastic trains the full depth only, for comparison.")
    epochs: float | None = setting(
        None, "Passes over the examples [default: half of what finetune takes, all for a model without a task]."
    )
    batch_size: int | None = setting(32, "Examples per training step.")
    max_length: int = setting(0, "Longest input in tokens; 0 takes that of the model, or of its teacher.")
    optimizer: str | None = setting(None, "adamw or muon [default: adamw].")
    freeze: bool = False  # fields without a sentence have no flag in `albertkit elastic`
    nearest: bool = False
    shots: int | None = None
    target_length: int = 32
    label_smoothing: float = 0.0
    sampled_depths: int = setting(0, "Depths drawn at random for each step, besides the full one; 0 takes all.")
    shallow_weight: float = setting(1.0, "Weight of all shallower depths together; the full depth has 1.")
    distill_weight: float = setting(
        0.5, "What shallower depths are trained on: 0 labels only, 1 predictions of the full depth only."
    )
    temperature: float = setting(2.0, "Softmax temperature when shallower depths are compared with the full one.")
    consistency_weight: float = setting(0.0, "Weight λ of the loss that makes the layers' hidden states similar.")

    shortest_input: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "0 or above", "sampled_depths", "shallow_weight", "consistency_weight")
        check_numbers(self, "from 0 to 1", "distill_weight")
        check_numbers(self, "above 0", "temperature")


def recorded_settings(*settings: DataclassInstance) -> dict[str, Any]:
    """The fields of some settings that are not None, for the history of a model."""
    return {name: value for group in settings for name, value in asdict(group).items() if value is not None}


def check_layer_decay(value: float) -> None:
    """Raise if the factor of earlier uses of the shared layer is not above 0 and at most 1."""
    if not 0 < value <= 1:
        raise AlbertkitError(f"layer_decay is {value}; it must be above 0 and at most 1")


def parse_integers(name: str, text: str) -> tuple[int, ...]:
    """A setting such as 3,6,12 as numbers, the smallest first."""
    try:
        numbers = tuple(sorted(int(n) for n in text.split(",")))
    except ValueError:
        numbers = ()
    if not numbers or numbers[0] < 1:
        raise AlbertkitError(f"{name} is {text!r}. Write whole numbers with commas: 3,6,12.")
    return numbers


def check_numbers(settings: object, rule: str, *names: str) -> None:
    """Raise `NAME is VALUE; it must be RULE` for the first of these fields that breaks one of the `RULES`."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not RULES[rule](value):
            raise AlbertkitError(f"{name} is {value}; it must be {rule}")
