"""Learning again what compressing a model has cost, from the model it was: `prune --recover`, and the training behind `quantize --train`.

In: a compressed model, the whole one as its teacher, examples of its task or texts. Out: the same model, better. Before this file: `student.py`.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.artifact import Artifact, identity_of, read_artifact, write_artifact
from albertkit.compress.evaluate import QualityCheck, QualityScore
from albertkit.errors import AlbertkitError
from albertkit.tasks import TASKS, load_task
from albertkit.tokenizer import Tokenizer
from albertkit.train.distill_settings import DistillSettings, RecoverySettings
from albertkit.train.distill_task import DistillTask, TeacherOutputs, TextsOnly, without_projection
from albertkit.train.distributed import choose_device
from albertkit.train.loop import train
from albertkit.train.teacher_states import AlbertTeacher
from albertkit.train.train_settings import TrainSettings, preset_epochs, preset_learning_rate


@dataclass(frozen=True)
class DistillData:
    """What is learnt from, and what is held out: examples of a task, or texts (strings, or token ids of a corpus) and no task."""

    task: Any
    train: Sequence[Any]
    dev: Sequence[Any] = ()

    def texts(self) -> list[str]:
        """The texts to learn from, where they are known as such."""
        found = []
        for example in self.train[:4096]:
            text = (
                example
                if isinstance(example, str)
                else getattr(example, "text", None) or getattr(example, "context", None)
            )
            if isinstance(text, str) and text.strip():
                found.append(text)
        return found


def distill_data(artifact: Artifact, train: Sequence[Any], dev: Sequence[Any]) -> DistillData:
    """Data with the task the model was fine-tuned for, if it was."""
    if artifact.meta.details.get("reads") == "vector":
        raise AlbertkitError(
            "this model is a head on frozen vectors, so there are no layers to train; fine-tune without --freeze first"
        )
    return DistillData(load_task(artifact.meta) if artifact.meta.task in TASKS else None, train, dev)


def plain_text(example: Any, tokenizer: Tokenizer) -> str:
    """The text of an example, which has one."""
    if isinstance(example, str):
        return example
    if isinstance(example, np.ndarray):
        return tokenizer.decode(example.tolist())
    text, pair = getattr(example, "text", None), getattr(example, "pair", None)
    if not isinstance(text, str) or pair is not None:
        raise AlbertkitError(
            "vectors are of single texts; learn from logits or hidden where examples are pairs or questions"
        )
    return text


def length_of(artifact: Artifact, training: RecoverySettings) -> int:
    """Tokens of the longest input."""
    return training.max_length or int(artifact.meta.details.get("max_length", 128))


def settings_of(
    training: RecoverySettings, artifact: Artifact, steps: int, held: bool, evaluations: int = 1
) -> TrainSettings:
    """The loop's settings: an evaluation each epoch, and the best one is the result where anything is held out."""
    budget: dict[str, Any] = {"steps": steps} if training.minutes is None else {"minutes": training.minutes}
    return TrainSettings(
        **budget, batch_size=training.batch_size, micro_batch_size=training.micro_batch_size, learning_rate=training.learning_rate or preset_learning_rate(artifact.config),
        warmup_ratio=0.1, seed=training.seed, evaluations=evaluations, load_best=held, device=training.device, compile="no",
        tensorboard=False, keep_checkpoints=1,
    )  # fmt: skip


def train_from_teacher(
    artifact: Artifact,
    whole: Artifact,
    data: DistillData,
    lesson: DistillSettings,
    training: RecoverySettings,
    run: Path,
    prepare: Callable[[DistillTask], None] = lambda work: None,
    log: Callable[[str], None] = lambda text: None,
    progress_bar: bool = False,
    asked: str = "",
) -> tuple[Artifact, dict[str, float]]:
    """Train `artifact` with `whole` as its teacher, in the folder `run`, where the same call goes on; `prepare` changes the work.

    asked: what `artifact` was made by; without, its weights tell it from others (see `Recovery.asked`).
    """
    who = (identity_of(whole), asked or identity_of(artifact), f"seed {training.seed}")
    gives = TeacherOutputs(watched=AlbertTeacher(whole), logits=None, meta=whole.meta, identity=who)
    if lesson.logits:
        device = choose_device(training.device).type
        gives = dataclasses.replace(gives, logits=lambda features: scores_of(whole, features, device))
    held = len(data.dev) > 0
    given = (data.task or TextsOnly(), artifact, data.train, data.dev)
    work = DistillTask(*given, settings_of(training, artifact, 1, held), lesson, gives, length_of(artifact, training))
    epochs = training.epochs or preset_epochs(len(work.features)) / 2  # it knew all of it once
    steps = max(1, round(work.batches * epochs))
    work.settings = settings_of(training, artifact, steps, held, math.ceil(epochs) if training.minutes is None else 10)
    work.is_trained = True
    prepare(work)
    outcome = train(work, work.settings, run, resume=True, log=log, progress_bar=progress_bar)
    if outcome.model is None:
        raise AlbertkitError(f"stopped; the same command goes on from {run}")
    return without_projection(read_artifact(outcome.model)), outcome.metrics


def scores_of(teacher: Artifact, features: Sequence[Any], device: str = "cpu") -> list[Any]:
    """The teacher's scores for features, by the torch-free runtime (or torch, on a GPU)."""
    from albertkit.albert import Albert
    from albertkit.runtime.predict import task_scores

    with tempfile.TemporaryDirectory() as scratch:
        write_artifact(teacher, Path(scratch) / "teacher")
        return task_scores(Albert(Path(scratch) / "teacher", device=device), features)


@dataclass
class Recovery:
    """What `prune` calls between cutting and writing; afterwards `scores` says what was lost and what came back."""

    data: DistillData
    training: RecoverySettings
    run: Path
    log: Callable[[str], None] = lambda text: None
    progress_bar: bool = False
    scores: dict[str, QualityScore] = field(default_factory=dict)
    """`whole`, `pruned`, `recovered`: each on the held-out examples; empty without any."""
    asked: str = ""
    """How the model was pruned and on which texts, so that a run of another pruning is not gone on with. Without it the pruned weights
    themselves tell, whose last bits may be others on another machine."""

    def __call__(self, whole: Artifact, pruned: Artifact) -> Artifact:
        """The pruned model, trained."""
        lesson = DistillSettings(hidden=1.0, vectors=1.0 if whole.meta.task == "embed" else 0.0)
        if self.data.task is not None:
            lesson = DistillSettings(labels=0.5, logits=1.0, hidden=1.0)

        def prepare(work: DistillTask) -> None:
            work.step = "recover"

        given = (self.data, lesson, self.training, self.run, prepare, self.log, self.progress_bar, self.asked)
        made, _ = train_from_teacher(pruned, whole, *given)
        if len(self.data.dev):
            with tempfile.TemporaryDirectory() as scratch:
                folders = {name: Path(scratch) / name for name in ("whole", "pruned", "recovered")}
                for folder, artifact in zip(folders.values(), (whole, pruned, made), strict=True):
                    write_artifact(artifact, folder)
                dev = self.data.dev
                if self.data.task is None and whole.tokenizer is not None:
                    dev = [plain_text(text, whole.tokenizer) for text in dev]
                judge = QualityCheck(folders["whole"], dev)
                self.scores = {name: judge.score(folder) for name, folder in folders.items()}
            before, after = self.scores["pruned"], self.scores["recovered"]
            if after.value < before.value:
                self.log(
                    f"note: training made it worse: {after.metric} {before.value:.4f} pruned, {after.value:.4f} recovered; "
                    f"give more examples, or a lower --learning-rate (delete {self.run} first)"
                )
        return made
