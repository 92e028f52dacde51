"""Distillation: the public `distill`, and `CorpusDistillation` of sentence vectors at several depths and widths.

In: a `DistillJob` (teachers, a student of any shape, data, settings), or teachers and a corpus folder. Out: a training
folder with the student in `model/`. Teacher vectors are computed once and stored in the folder. Logits are computed at
the start, hidden states during training. Before this file: `distill_task.py`, `distill_vectors.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, require_tokenizer, write_artifact
from albertkit.config import AlbertConfig
from albertkit.data.passages import Passages, PassageShares, distinct_words, draw_passages, everyday_sentences
from albertkit.data.shards import Shards, replace_json, write_array
from albertkit.errors import AlbertkitError
from albertkit.file_io import digest, read_json
from albertkit.input_warnings import MAX_UNREADABLE_TEXTS, check_training_texts
from albertkit.interop.convert import open_stored
from albertkit.model import AlbertModel
from albertkit.runtime.predict import task_scores
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Tokenizer
from albertkit.train.distill_data import DistillData, DistillSettings, VectorDistillSettings, text_of
from albertkit.train.distill_task import PROJECTION, DistillTask, TeacherOutputs, without_projection
from albertkit.train.distill_vectors import TARGETS, VectorDistillTask, check_widths
from albertkit.train.distributed import choose_device
from albertkit.train.finetune_report import warn_of_few
from albertkit.train.loop import TrainResult, train
from albertkit.train.pretrain import fit_vocabulary
from albertkit.train.run_lock import lock_run
from albertkit.train.teachers import (
    TeacherMixture,
    is_albert,
    open_state_teacher,
    passage_targets,
    teacher_identity,
    text_targets,
)
from albertkit.train.train_settings import Log, TrainSettings

MAX_PASSAGE = 254  # tokens


@dataclass(frozen=True)
class DistillJob:
    """A distillation run: teachers, a student, data and settings."""

    teachers: TeacherMixture
    student: Artifact
    data: DistillData
    distill: DistillSettings
    settings: TrainSettings
    max_length: int = 128
    """Longest input in tokens."""
    max_unknown: float = MAX_UNREADABLE_TEXTS
    """Largest share of training texts that the student cannot read."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The student's tokenizer."""
        return require_tokenizer(self.student, "the student")

    @property
    def device(self) -> torch.device:
        """The device of teacher and student."""
        return choose_device(self.settings.device)


def new_student(
    config: AlbertConfig, tokenizer: Tokenizer, seed: int, meta: ArtifactMetadata | None = None
) -> Artifact:
    """An untrained student with a vocabulary."""
    torch.manual_seed(seed)
    config = fit_vocabulary(config, tokenizer)
    return Artifact(config, AlbertModel(config).weights(), tokenizer, meta or ArtifactMetadata())


def distill(
    job: DistillJob,
    output: Path,
    resume: bool = False,
    log: Log = lambda text: None,
    progress_bar: bool = False,
) -> TrainResult:
    """Train a student in the folder `output`. `resume` continues from its last checkpoint."""
    settings, teacher = job.distill, job.teachers.folders[0]
    if len(job.teachers.folders) > 1 and (settings.logits or settings.hidden):
        raise AlbertkitError(
            f"{len(job.teachers.folders)} teachers were passed, but only vectors can be distilled from several. Pass "
            "one for logits and hidden."
        )
    check_training_texts(job.tokenizer, job.data.texts(), job.max_unknown)
    with lock_run(output):
        vectors = teacher_vectors(job, output) if settings.vectors else None
    states = open_state_teacher(teacher, job.tokenizer, job.data.texts()) if settings.hidden else None
    outputs = TeacherOutputs(
        states=states,
        logits=partial(teacher_scores, job) if settings.logits else None,
        vectors=vectors,
        pooling=open_stored(teacher).metadata.pooling if is_albert(teacher) else None,
        identity=(*map(teacher_identity, job.teachers.folders), repr(job.teachers.weights)),
    )
    max_length = job.max_length if states is None else min(job.max_length, states.max_length)
    task = DistillTask(job.data, job.student, job.settings, settings, outputs, max_length)
    task.report_truncated()
    warn_of_few(task.dev_size)
    result = train(task, job.settings, output, resume=resume, log=log, progress_bar=progress_bar)
    if result.model is not None and PROJECTION in read_artifact(result.model).weights:
        write_artifact(without_projection(read_artifact(result.model)), result.model, overwrite=True)
    return result


@dataclass(frozen=True)
class CorpusDistillation:
    """Teachers, a corpus, and the settings of the training."""

    teachers: TeacherMixture
    corpus: Path
    settings: TrainSettings
    distill: VectorDistillSettings
    workers: int = 1
    """Processes that decode the ids of the corpus."""

    def run(self, student: Artifact, output: Path, resume: bool = False, log: Log = lambda text: None) -> TrainResult:
        """Train the student, with the teachers' vectors computed once."""
        check_widths(self.distill, student.config.hidden_size)
        texts = output / "texts"
        with lock_run(output):
            self.check_targets(texts)
            if not (texts / TARGETS).is_file():
                self.prepare_targets(student, texts)
            task = VectorDistillTask(student, texts, self.settings, self.distill)
            return train(task, self.settings, output, resume=resume, log=log, progress_bar=True)

    def prepare_targets(self, student: Artifact, texts: Path) -> None:
        """Draw passages from the corpus and store them with the teachers' vectors."""
        corpus, seed = Shards.open(self.corpus), self.settings.seed
        tokenizer, shards = corpus.tokenizer(), corpus.split("train")
        words = [tokenizer.decode(ids) for ids in distinct_words(shards, seed)] if self.distill.everyday else []
        sentences = tokenizer.ids_batch(list(everyday_sentences(self.distill.everyday, seed, words)))
        shares = PassageShares(longest=min(MAX_PASSAGE, student.config.max_position_embeddings - 2))
        draw_passages(shards, tokenizer.id_of("?"), shares, seed, [ids for ids in sentences if ids]).save(texts)
        passages, device = Passages.open(texts), choose_device(self.settings.device)
        dim = student.config.hidden_size
        targets = passage_targets(passages, self.corpus / "tokenizer", self.teachers, dim, device, self.workers)
        write_array(texts / TARGETS, targets)

    def check_targets(self, texts: Path) -> None:
        """Record the teachers and the corpus of the vectors. Raise if the folder has vectors of others."""
        record = texts / "teachers.json"
        weights = zip(self.teachers.folders, self.teachers.weights, strict=True)
        expected = {
            "teachers": [[teacher_identity(folder), weight] for folder, weight in weights],
            "corpus": digest(self.corpus / "manifest.json"),
        }
        if not (texts / TARGETS).is_file():
            texts.mkdir(parents=True, exist_ok=True)
            replace_json(record, expected)
        elif record.is_file() and read_json(record) != expected:
            raise AlbertkitError(
                f"{texts} contains vectors of other teachers, with other weights, or of another corpus. "
                f"Choose another --output, or remove {texts} to compute them again."
            )


# Outputs of a teacher --------------------------------------------------------------------------------------------


def teacher_vectors(job: DistillJob, output: Path) -> np.ndarray:
    """One vector for each training text, then for each held-out text; computed once and stored in `output`."""
    texts = [text_of(example) for example in (*job.data.train, *job.data.dev)]
    dim, teachers = job.student.config.hidden_size, job.teachers
    key = repr((*map(teacher_identity, teachers.folders), teachers.weights, dim, *texts))
    path = output / "teacher" / f"vectors-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_array(path, text_targets(texts, teachers, dim, job.device))
    try:
        vectors: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise AlbertkitError(f"{path} is damaged ({error}). Delete it to compute it again.") from None
    return vectors


def teacher_scores(job: DistillJob, features: Sequence[Feature]) -> list[Any]:
    """The teacher's scores, by the torch-free runtime or by torch on a GPU. The teacher uses its own vocabulary."""
    folder, task = job.teachers.folders[0], job.data.task
    albert = Albert(folder, device=job.device.type)
    assert task is not None
    has_same_tokens = albert.tokenizer.vocabulary.ids == job.tokenizer.vocabulary.ids
    if has_same_tokens and max(len(f.ids) for f in features) <= albert.max_tokens:
        return task_scores(albert, features)
    if {"tag", "answer"} & set(task.heads):
        raise AlbertkitError(
            f"{folder} splits text differently from the student, but its scores are per token. Use a student with "
            "its vocabulary (--shape does)."
        )
    length = min(int(albert.metadata.details.get("max_length", albert.max_tokens)), albert.max_tokens)
    by_example: dict[int, list[Feature]] = {}
    for feature in task.features(job.data.train, albert.tokenizer, length):
        by_example.setdefault(feature.example, []).append(feature)
    matching = [by_example[f.example].pop(0) for f in features if by_example.get(f.example)]
    if len(matching) != len(features):
        raise AlbertkitError(
            f"{folder} splits the examples into other windows than the student. Use a student with its vocabulary."
        )
    return task_scores(albert, matching)
