"""Distillation: the public `distill`, and `CorpusDistillation` of sentence vectors at several depths and widths.

In: a `DistillJob` (teachers, a student of any shape, data, settings), or teachers and a corpus folder. Out: a training
folder with the student in `model/`. The vectors and logits of a teacher are stored in the folder, so that each text is
computed once, however often the training is started; hidden states and attention are computed during training. Before
this file: `distill_task.py`, `distill_vectors.py`, `teachers.py`.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, write_artifact
from albertkit.config import AlbertConfig
from albertkit.data.passages import Passages, PassageShares, distinct_words, draw_passages, everyday_sentences
from albertkit.data.shard_writer import write_array, write_json
from albertkit.data.shards import Shards
from albertkit.errors import AlbertkitError
from albertkit.file_io import digest, read_json
from albertkit.interop.convert import open_stored
from albertkit.model import AlbertModel
from albertkit.runtime.predict import task_scores
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Tokenizer
from albertkit.train.distill_data import DistillData, text_of
from albertkit.train.distill_losses import open_state_teacher, require_plain_attention
from albertkit.train.distill_settings import DistillSettings, VectorDistillSettings
from albertkit.train.distill_task import PROJECTION, DistillTask, TeacherOutputs, without_projection
from albertkit.train.distill_vectors import VectorDistillTask, check_widths, student_vectors
from albertkit.train.distributed import choose_device
from albertkit.train.loop import TrainResult, train
from albertkit.train.pretrain import fit
from albertkit.train.teachers import TeacherMixture, is_albert, passage_targets, teacher_identity, text_targets
from albertkit.train.train_settings import TrainSettings

MAX_PASSAGE = 254  # tokens
TARGETS = "targets.npy"  # the vectors of teachers for the passages of a corpus


@dataclass(frozen=True)
class DistillJob:
    """Who is trained on what: teachers, a student, data and settings."""

    teachers: TeacherMixture
    student: Artifact
    data: DistillData
    distill: DistillSettings
    settings: TrainSettings
    max_length: int = 128
    """Longest input in tokens."""

    @property
    def teacher(self) -> Path:
        """The only teacher, or the first one."""
        return self.teachers.folders[0]

    @property
    def tokenizer(self) -> Tokenizer:
        """The student's."""
        if self.student.tokenizer is None:
            raise AlbertkitError("the student has no tokenizer, so it cannot read text. Pass one that has.")
        return self.student.tokenizer

    @property
    def device(self) -> torch.device:
        """Where teacher and student run."""
        return choose_device(self.settings.device)


def new_student(
    config: AlbertConfig, tokenizer: Tokenizer, seed: int, meta: ArtifactMetadata | None = None
) -> Artifact:
    """An untrained student with a vocabulary."""
    torch.manual_seed(seed)
    config = fit(config, tokenizer)
    return Artifact(config, AlbertModel(config).weights(), tokenizer, meta or ArtifactMetadata())


def distill(
    job: DistillJob,
    output: Path,
    resume: bool = False,
    log: Callable[[str], None] = lambda text: None,
    progress_bar: bool = False,
) -> TrainResult:
    """Train a student in the folder `output`; with `resume`, from its last checkpoint."""
    settings = job.distill
    if len(job.teachers.folders) > 1 and (settings.logits or settings.needs_states):
        raise AlbertkitError(
            f"{len(job.teachers.folders)} teachers were passed, but only vectors can be distilled from several. Pass "
            "one for logits, hidden and attention."
        )
    identity = (*map(teacher_identity, job.teachers.folders), repr(job.teachers.weights))
    max_length = min(job.max_length, job.student.config.max_position_embeddings)
    states = logits = vectors = None
    if settings.attention:
        require_plain_attention(job.student, "student")
    if settings.needs_states:
        states = open_state_teacher(job.teacher, job.tokenizer, job.data.texts(), bool(settings.attention))
        max_length = min(max_length, states.max_length)
    if settings.logits:

        def logits(features: Sequence[Feature]) -> list[Any]:
            return teacher_scores(job, features, output)

    if settings.vectors:
        vectors = teacher_vectors(job, output)
    outputs = TeacherOutputs(
        states=states,
        logits=logits,
        vectors=vectors,
        metadata=open_stored(job.teacher).metadata if is_albert(job.teacher) else None,
        identity=identity,
    )
    task = DistillTask(job.data, job.student, job.settings, settings, outputs, max_length)
    result = train(task, job.settings, output, resume=resume, log=log, progress_bar=progress_bar)
    if result.model is not None and PROJECTION in read_artifact(result.model).weights:
        write_artifact(without_projection(read_artifact(result.model)), result.model, overwrite=True)
    return result


@dataclass(frozen=True)
class CorpusDistillation:
    """Teachers, a corpus, and how a student is trained on them."""

    teachers: TeacherMixture
    corpus: Path
    settings: TrainSettings
    goals: VectorDistillSettings
    workers: int = 1
    """Processes that decode the ids of the corpus."""

    def run(
        self, student: Artifact, output: Path, resume: bool = False, log: Callable[[str], None] = lambda text: None
    ) -> TrainResult:
        """Train the student, with the teachers' vectors computed once."""
        check_widths(self.goals, student.config.hidden_size)
        texts = output / "texts"
        self.check_targets(texts)
        if not (texts / TARGETS).is_file():
            self.prepare_targets(student, texts)
        task = VectorDistillTask(student, texts, self.corpus, self.settings, self.goals)
        return train(task, self.settings, output, resume=resume, log=log, progress_bar=True)

    def prepare_targets(self, student: Artifact, texts: Path) -> None:
        """Draw passages from the corpus and store them with the teachers' vectors."""
        corpus, seed = Shards.open(self.corpus), self.settings.seed
        tokenizer, shards = corpus.tokenizer(), corpus.split("train")
        known = [tokenizer.decode(ids) for ids in distinct_words(shards, seed)] if self.goals.everyday else []
        sentences = tokenizer.ids_batch(list(everyday_sentences(self.goals.everyday, seed, known)))
        shares = PassageShares(longest=min(MAX_PASSAGE, student.config.max_position_embeddings - 2))
        draw_passages(shards, tokenizer.id_of("?"), shares, seed, [ids for ids in sentences if ids]).save(texts)
        passages, device = Passages.open(texts), choose_device(self.settings.device)
        own = student_vectors(student, passages, device) if student.metadata.task == "embed" else None
        dim = student.config.hidden_size
        targets = passage_targets(passages, self.corpus / "tokenizer", self.teachers, dim, device, self.workers, own)
        write_array(texts / TARGETS, targets)

    def check_targets(self, texts: Path) -> None:
        """Record which teachers and corpus the vectors come from; refuse a folder with those of others."""
        record = texts / "teachers.json"
        weights = zip(self.teachers.folders, self.teachers.weights, strict=True)
        wanted = {
            "teachers": [[teacher_identity(folder), weight] for folder, weight in weights],
            "corpus": digest(self.corpus / "manifest.json"),
        }
        has_targets = (texts / TARGETS).is_file()
        if record.is_file() and has_targets:
            stored = read_json(record)
            causes = {"teachers": "of other teachers, or with other weights", "corpus": "of another corpus"}
            different = [causes[name] for name, value in wanted.items() if stored.get(name) != value]
            if different:
                raise AlbertkitError(
                    f"{texts} contains vectors {' and '.join(different)}. "
                    f"Choose another --output, or remove {texts} to compute them again."
                )
        if not has_targets:
            texts.mkdir(parents=True, exist_ok=True)
            write_json(record, wanted)


# StoredModel outputs of a teacher -------------------------------------------------------------------------------------


def load_or_compute(
    folder: Path, name: str, key: Sequence[Any], compute: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Arrays that were computed before for the same key, or are computed and stored now, atomically."""
    digest = hashlib.sha256()
    for part in key:
        digest.update(repr(part).encode() + b"\0")
    path = folder / "teacher" / f"{name}-{digest.hexdigest()[:16]}.npz"
    if not path.is_file():
        arrays = compute()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        with partial.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(partial, path)  # noqa: PTH105  atomic
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise AlbertkitError(f"{path} is damaged ({error}). Delete it, and it is computed again.") from None


def teacher_vectors(job: DistillJob, output: Path) -> np.ndarray:
    """One vector for each training text, then for each held-out one; each chunk is stored as soon as it is computed."""
    texts = [text_of(example, job.tokenizer) for example in (*job.data.train, *job.data.dev)]
    dim, teachers = job.student.config.hidden_size, job.teachers
    identities = [teacher_identity(folder) for folder in teachers.folders]

    def keep(chunk: Sequence[str], compute: Callable[[], np.ndarray]) -> np.ndarray:
        return load_or_compute(output, "part", [*identities, *chunk], lambda: {"vectors": compute()})["vectors"]

    key = [*identities, teachers.weights, dim, *texts]
    vectors = load_or_compute(
        output, "vectors", key, lambda: {"vectors": text_targets(texts, teachers, dim, job.device, keep)}
    )["vectors"]
    for path in (output / "teacher").glob("part-*"):  # all chunks are in `vectors` now
        path.unlink()
    return vectors


def teacher_scores(job: DistillJob, features: Sequence[Feature], output: Path) -> list[Any]:
    """The teacher's scores for each feature of the training examples."""
    assert job.data.task is not None
    heads = job.data.task.heads
    key = [teacher_identity(job.teacher), heads, *(f.ids for f in features)]
    stored = load_or_compute(output, "logits", key, lambda: pack_scores(compute_scores(job, features), len(heads)))
    by_head = []
    for number in range(len(heads)):
        flat, ends = stored[f"scores{number}"], stored[f"ends{number}"]
        rows = np.split(flat, ends[:-1])
        by_head.append([row[0] if flat.ndim == 2 and not stored[f"deep{number}"] else row for row in rows])
    return by_head[0] if len(heads) == 1 else list(zip(*by_head, strict=True))


def pack_scores(rows: list[Any], heads: int) -> dict[str, np.ndarray]:
    """Ragged scores as arrays: all rows concatenated, and where those of each text end."""
    packed = {}
    for number in range(heads):
        arrays = [np.asarray(row[number] if heads > 1 else row, np.float32) for row in rows]
        deep = arrays[0].ndim == 2  # one row per token, not per text
        packed[f"scores{number}"] = np.concatenate([a if deep else a[None] for a in arrays])
        packed[f"ends{number}"] = np.cumsum([len(a) if deep else 1 for a in arrays])
        packed[f"deep{number}"] = np.array(deep)
    return packed


def compute_scores(job: DistillJob, features: Sequence[Feature]) -> list[Any]:
    """The teacher's scores by the torch-free runtime (or torch, on a GPU), in its own vocabulary if that differs."""
    albert, task = Albert(job.teacher, device=job.device.type), job.data.task
    assert task is not None
    has_same_tokens = albert.tokenizer.vocabulary.ids == job.tokenizer.vocabulary.ids
    if has_same_tokens and max(len(f.ids) for f in features) <= albert.max_tokens:
        return task_scores(albert, features)
    if {"tag", "answer"} & set(task.heads):
        raise AlbertkitError(
            f"{job.teacher} splits text differently from the student, but its scores are per token. Use a student with "
            "its vocabulary (--shape does)."
        )
    length = min(int(albert.metadata.details.get("max_length", albert.max_tokens)), albert.max_tokens)
    by_example: dict[int, list[Feature]] = {}
    for feature in task.features(job.data.train, albert.tokenizer, length):
        by_example.setdefault(feature.example, []).append(feature)
    matching = [by_example[f.example].pop(0) for f in features if by_example.get(f.example)]
    if len(matching) != len(features):
        raise AlbertkitError(
            f"{job.teacher} splits the examples into other windows than the student. Use a student with its vocabulary."
        )
    return task_scores(albert, matching)
