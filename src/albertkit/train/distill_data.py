"""Settings and data of distillation and recovery training. No torch.

In: values and paths from the commands `distill`, `prune --train` and `quantize --train`. Out: frozen, checked
settings, and `DistillData`: examples of a task, or lines of text. After this file: `distill.py`,
`distill_vectors.py`, `recover.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.artifact import Artifact, ArtifactMetadata
from albertkit.errors import AlbertkitError, nearest
from albertkit.options import setting
from albertkit.tasks import TASKS, load_task
from albertkit.tasks.dataset import check_known_labels, read_splits, split_examples
from albertkit.tasks.examples import TextExample
from albertkit.tasks.readers import ReadOptions
from albertkit.tasks.task import Task
from albertkit.text_reader import content_suffix, read_texts
from albertkit.train.train_settings import Log, check_numbers, parse_integers

TEACHER_OUTPUTS = ("vectors", "logits", "hidden")
MAX_TEXTS = 500_000  # most texts used from one file
MIN_TEXTS = 10
MAX_DEV_TEXTS = 1000


# Settings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DistillSettings:
    """The weight of each teacher output in the loss; 0 omits it."""

    vectors: float = 0.0
    """The vector of a text."""
    logits: float = 0.0
    """The logits of a task's head."""
    hidden: float = 0.0
    """Hidden states after every layer."""
    labels: float = 0.0
    """The labels of the examples, without a teacher."""
    temperature: float = 2.0
    """Softmax temperature: logits are divided by it before the comparison."""

    def __post_init__(self) -> None:
        check_numbers(self, "0 or above", *TEACHER_OUTPUTS, "labels")
        check_numbers(self, "above 0", "temperature")
        if not any(getattr(self, name) for name in (*TEACHER_OUTPUTS, "labels")):
            raise AlbertkitError(f"all weights are 0. Give one of {', '.join(TEACHER_OUTPUTS)} a weight above 0.")


def parse_distill_settings(what: str, labels: float = 0.0, temperature: float = 2.0) -> DistillSettings:
    """From text such as `logits,hidden:0.5`; the default weight is 1."""
    weights: dict[str, float] = {}
    for part in what.split(","):
        name, colon, number = part.strip().partition(":")
        if name not in TEACHER_OUTPUTS:
            raise AlbertkitError(
                f"{name!r} is not an output of a teacher{nearest(name, TEACHER_OUTPUTS)}. Choose from "
                f"{', '.join(TEACHER_OUTPUTS)}."
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
    """How to train a compressed model to recover its accuracy."""

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
        check_numbers(self, "above 0", "epochs", "minutes", "batch_size", "micro_batch_size", "learning_rate")
        check_numbers(self, "8 or more, or 0 for the model's own", "max_length")


@dataclass(frozen=True)
class VectorDistillSettings:
    """How to distil sentence vectors on a corpus folder."""

    depths: str = setting("3,6,9,12", "Depths at which vectors are trained.")
    widths: str = setting("64,128,256,384", "Widths to which vectors can be cut.")
    batch_tokens: int = setting(262_144, "Tokens per batch of texts; a GPU waits for the processor with far fewer.")
    max_texts: int = setting(4_096, "Most texts per batch.")
    neighbor_share: float = setting(0.0, "Share of a batch that comes in runs of texts with similar meaning.")
    shallow_share: float = setting(0.0, "Share of the training steps that stop at half of the depths, to save time.")
    sampled_depths: int = setting(0, "Depths drawn at random for each step, besides the deepest; 0 takes all.")
    everyday: int = setting(0, "Sentences about everyday life, made by a grammar, to add to those of the corpus.")

    def __post_init__(self) -> None:
        check_numbers(self, "from 0 to 1", "neighbor_share", "shallow_share")
        check_numbers(self, "0 or above", "everyday", "sampled_depths")

    def numbers(self, name: str) -> tuple[int, ...]:
        """`depths` or `widths` as numbers."""
        return parse_integers(name, getattr(self, name))


# Data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DistillData:
    """Training and held-out data: examples of a task, or texts without one."""

    task: Task | None
    train: Sequence[Any]
    dev: Sequence[Any] = ()

    def texts(self) -> list[str]:
        """The first training texts, where examples contain one."""
        texts = []
        for example in self.train[:4096]:
            text = example
            if not isinstance(example, str):
                text = getattr(example, "text", None) or getattr(example, "context", None)
            if isinstance(text, str) and text.strip():
                texts.append(text)
        return texts


def data_for_model(artifact: Artifact, train: Sequence[Any], dev: Sequence[Any]) -> DistillData:
    """Data with the task of a fine-tuned model; without a task for any other model."""
    if artifact.metadata.details.get("reads") == "vector":
        raise AlbertkitError(
            "this model is a head on frozen vectors, so it has no layers to train. Fine-tune without --freeze first."
        )
    return DistillData(load_task(artifact.metadata) if artifact.metadata.task in TASKS else None, train, dev)


def text_of(example: object) -> str:
    """The text of an example that has one."""
    if isinstance(example, str):
        return example
    text, pair = getattr(example, "text", None), getattr(example, "pair", None)
    if not isinstance(text, str) or pair is not None:
        raise AlbertkitError(
            "these examples are pairs or questions, but vectors need single texts. Distill logits or hidden."
        )
    return text


def read_training_data(
    artifact: Artifact, train: Path, dev: Path | None, options: ReadOptions, log: Log
) -> DistillData:
    """Examples of the model's task; for a model without one, the lines of a file."""
    if artifact.metadata.task in TASKS:
        return data_for_model(artifact, *read_labelled(artifact.metadata, train, dev, options, log))
    return data_for_model(artifact, *read_plain_texts(train, dev, options, log))


def read_labelled(
    metadata: ArtifactMetadata, train: Path, dev: Path | None, options: ReadOptions, log: Log
) -> tuple[list[Any], list[Any]]:
    """Training and held-out examples of a fine-tuned model's task; without a held-out file, one in ten is held out."""
    parts = read_splits(metadata.task, {"train": train, **({"dev": dev} if dev else {})}, options, log)
    log_unknown_labels(metadata, parts["train"], "which cannot be learnt", log)
    if dev is None:
        return split_examples(parts["train"])
    log_unknown_labels(metadata, parts["dev"], "counted as missed", log)
    return parts["train"], parts["dev"]


def read_check_examples(metadata: ArtifactMetadata, path: Path, options: ReadOptions, log: Log) -> list[Any]:
    """The data for `quantize --check`: labelled examples for a fine-tuned model, texts for any other."""
    if metadata.task not in TASKS:
        return _texts(path, options)
    examples = read_splits(metadata.task, {"test": path}, options, log)["test"]
    consequence = "counted as missed before and after, so the measured loss is too small"
    log_unknown_labels(metadata, examples, consequence, log)
    return examples


def read_teacher_data(
    teacher: Path, metadata: ArtifactMetadata, paths: tuple[Path, Path | None], settings: DistillSettings,
    options: ReadOptions, log: Log,
) -> tuple[DistillSettings, DistillData]:  # fmt: skip
    """Training data for a teacher's outputs; texts without labels set the weight of labels to 0."""
    data, dev = paths
    if not settings.logits:
        return settings, DistillData(None, *read_plain_texts(data, dev, options, log))
    if metadata.task not in TASKS:
        raise AlbertkitError(
            f"{teacher} was made for {metadata.task!r} and has no task logits. "
            "Pass a fine-tuned model, or distil vectors or hidden."
        )
    task: Any = load_task(metadata)
    if content_suffix(data.name) != ".txt" or metadata.task != "classify":
        return settings, DistillData(task, *read_labelled(metadata, data, dev, options, log))
    if metadata.details.get("pairs"):
        raise AlbertkitError(
            f"{teacher} was fine-tuned for pairs of texts, and {data} contains single lines. "
            "Pass a table with both texts, as for finetune."
        )
    held_out = [] if dev is None else read_splits(metadata.task, {"dev": dev}, options, log)["dev"]
    log_unknown_labels(metadata, held_out, "counted as missed", log)
    label: Any = {"single": (task.labels or ("",))[0], "multi": ()}.get(task.kind, 0.0)
    examples = [TextExample(text, label=label) for text in read_texts(data)]
    return dataclasses.replace(settings, labels=0.0), DistillData(task, examples, held_out)


def log_unknown_labels(metadata: ArtifactMetadata, examples: list[Any], consequence: str, log: Log) -> None:
    """Log the labels that a model does not have, and the consequence. Raise if it has none of the labels."""
    for text in check_known_labels(load_task(metadata), examples, consequence):
        log(f"note: {text}")


def is_corpus(path: Path) -> bool:
    """Whether `albertkit corpus` wrote this folder."""
    return (path / "manifest.json").is_file()


def _texts(path: Path, options: ReadOptions) -> list[str]:
    column = options.text_column
    return list(read_texts(path, None if column is None else str(column)))


def read_plain_texts(train: Path, dev: Path | None, options: ReadOptions, log: Log) -> tuple[list[str], list[str]]:
    """Training and held-out texts; without a held-out file, one in ten is held out."""
    texts = _texts(train, options)
    if len(texts) > MAX_TEXTS:
        step = -(-len(texts) // MAX_TEXTS)
        log(f"note: {train} contains {len(texts):,} texts; every {step}th is used")
        texts = texts[::step]
    if len(texts) < MIN_TEXTS:
        raise AlbertkitError(f"{train} contains {len(texts)} texts. Pass at least {MIN_TEXTS}, better many thousands.")
    if dev is not None:
        return texts, _texts(dev, options)
    held_out = texts[::10][:MAX_DEV_TEXTS]
    return [text for i, text in enumerate(texts) if i % 10 or i >= 10 * len(held_out)], held_out
