"""`distill --what`: a teacher's vectors, scores, hidden states or attention to a student of any shape.

In: teachers, a student, a `DistillSettings`, examples of the teacher's task or texts. Out: the folder of a training, with the student in `model/`. What a teacher gives once
for each text (vectors, scores) is kept in `OUT/teacher/`, so that it reads every text once, however often the training starts; hidden states and
attention are computed as they are needed. Before this file: `student.py`, `teachers.py`, `watching.py`. (Sentence vectors at several depths and
widths from a corpus are `distill.py`'s.)
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from albertkit.albert import Albert
from albertkit.artifact import Artifact, Meta, model_folder, read_artifact, write_artifact
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.file_io import digest
from albertkit.interop.convert import open_stored
from albertkit.model import AlbertModel
from albertkit.runtime.predict import task_scores
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Tokenizer
from albertkit.train.distill_settings import DistillSettings
from albertkit.train.distill_task import PROJECTION, DistillTask, TeacherOutputs, TextsOnly, without_projection
from albertkit.train.distributed import choose_device
from albertkit.train.loop import TrainResult, train
from albertkit.train.pretrain import fit
from albertkit.train.recover import DistillData, plain_text
from albertkit.train.teacher_states import open_state_teacher, require_plain_attention
from albertkit.train.teachers import TeacherMixture, find_encoder, find_reading_rules, is_albert, text_targets
from albertkit.train.train_settings import TrainSettings


def fresh_student(config: AlbertConfig, tokenizer: Tokenizer, seed: int, meta: Meta | None = None) -> Artifact:
    """A student that knows nothing yet, with a vocabulary."""
    torch.manual_seed(seed)
    config = fit(config, tokenizer)
    return Artifact(config, AlbertModel(config).weights(), tokenizer, meta or Meta())


def teacher_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a teacher."""
    if is_albert(folder):
        found = open_stored(folder).tokenizer
        if found is None:
            raise AlbertkitError(f"{folder} holds no tokenizer; give --start with a student that has one")
        return found
    return Tokenizer.load(find_encoder(folder)[0])


def distill(
    teachers: TeacherMixture,
    student: Artifact,
    data: DistillData,
    lesson: DistillSettings,
    settings: TrainSettings,
    out: Path,
    max_length: int = 128,
    resume: bool = False,
    log: Callable[[str], None] = lambda text: None,
    progress_bar: bool = False,
) -> TrainResult:
    """Train a student in `out`; with `resume`, go on where it was stopped."""
    if len(teachers.folders) > 1 and (lesson.logits or lesson.watches):
        raise AlbertkitError(
            f"{len(teachers.folders)} teachers were given; several teach vectors alone, so give one for logits, hidden and attention"
        )
    if student.tokenizer is None:
        raise AlbertkitError("the student has no tokenizer, so it cannot read text; give one with a tokenizer")
    if lesson.attention:
        require_plain_attention(student, "student")
    first, work_device = teachers.folders[0], choose_device(settings.device)
    who = (*map(teacher_identity, teachers.folders), repr(teachers.weights))
    gives = TeacherOutputs(meta=open_stored(first).meta if is_albert(first) else None, identity=who)
    limit = min(max_length, student.config.max_position_embeddings)
    if lesson.watches:
        watched = open_state_teacher(first, student.tokenizer, data.texts(), bool(lesson.attention))
        limit = min(limit, watched.longest)
        gives = dataclasses.replace(gives, watched=watched)
    if lesson.logits:
        gives = dataclasses.replace(
            gives, logits=lambda features: teacher_scores(first, student, data, features, out, work_device)
        )
    if lesson.vectors:
        gives = dataclasses.replace(gives, vectors=teacher_vectors(teachers, student, data, out, work_device))
    task = data.task or TextsOnly()
    work = DistillTask(task, student, data.train, data.dev, settings, lesson, gives, limit)
    outcome = train(work, settings, out, resume=resume, log=log, progress_bar=progress_bar)
    if outcome.model is not None and PROJECTION in read_artifact(outcome.model).weights:
        write_artifact(without_projection(read_artifact(outcome.model)), outcome.model, overwrite=True)
    return outcome


# What a teacher gives once -----------------------------------------------------------------------------------------


def load_or_compute(
    folder: Path, name: str, about: Sequence[Any], compute: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """What was computed before for the same things, or is now; written whole or not at all."""
    total = hashlib.sha256()
    for thing in about:
        total.update(repr(thing).encode() + b"\0")
    path = folder / "teacher" / f"{name}-{total.hexdigest()[:16]}.npz"
    if not path.is_file():
        made = compute()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, **made)  # type: ignore[arg-type]
        os.replace(part, path)  # noqa: PTH105  whole or not at all
    try:
        with np.load(path, allow_pickle=False) as found:
            return {key: found[key] for key in found.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise AlbertkitError(f"{path} is damaged ({error}); delete it, and the teacher reads again") from None


def teacher_identity(folder: Path) -> str:
    """What tells a teacher from others: its weights, and how it reads and pools."""
    about: tuple[Any, ...]
    if is_albert(folder):
        stored = open_stored(folder)
        meta = stored.meta
        about = (stored.identity, stored.config, meta.pooling, meta.normalise, meta.depth, meta.prompts)
    else:
        place, pooling = find_encoder(model_folder(folder))
        files = [place / name for name in ("config.json", "model.safetensors", "tokenizer.json")]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise AlbertkitError(
                f"{place} holds no {missing[0]}; give a model of ours, or one with config.json, model.safetensors and tokenizer.json"
            )
        about = (*map(digest, files), pooling, find_reading_rules(model_folder(folder)))
    return hashlib.sha256(repr(about).encode()).hexdigest()


def teacher_vectors(
    teachers: TeacherMixture, student: Artifact, data: DistillData, out: Path, device: torch.device
) -> np.ndarray:
    """One vector for each text to learn from, then for each held-out one; each chunk is kept as it comes, so that a kill costs one chunk."""
    assert student.tokenizer is not None
    texts = [plain_text(example, student.tokenizer) for example in (*data.train, *data.dev)]
    dim = student.config.hidden_size
    who = [teacher_identity(folder) for folder in teachers.folders]

    def part(chunk: Sequence[str], compute: Callable[[], np.ndarray]) -> np.ndarray:
        return load_or_compute(out, "part", [*who, *chunk], lambda: {"vectors": compute()})["vectors"]

    about = [*who, teachers.weights, dim, *texts]
    found = load_or_compute(
        out, "vectors", about, lambda: {"vectors": text_targets(texts, teachers, dim, device, part)}
    )["vectors"]
    for path in (out / "teacher").glob("part-*"):  # they are in the whole now
        path.unlink()
    return found


def teacher_scores(
    folder: Path, student: Artifact, data: DistillData, features: Sequence[Feature], out: Path, device: torch.device
) -> list[Any]:
    """The teacher's scores for each feature of the examples to learn from."""
    heads = data.task.heads
    about = [teacher_identity(folder), heads, *(f.ids for f in features)]
    found = load_or_compute(
        out, "logits", about, lambda: pack_scores(compute_scores(folder, student, data, features, device), len(heads))
    )
    by_head = []
    for number in range(len(heads)):
        flat, ends = found[f"scores{number}"], found[f"ends{number}"]
        rows = np.split(flat, ends[:-1])
        by_head.append([row[0] if flat.ndim == 2 and not found[f"deep{number}"] else row for row in rows])
    return by_head[0] if len(heads) == 1 else list(zip(*by_head, strict=True))


def pack_scores(rows: list[Any], heads: int) -> dict[str, np.ndarray]:
    """Ragged scores as arrays: all rows below each other, and where each text's end."""
    made = {}
    for number in range(heads):
        arrays = [np.asarray(row[number] if heads > 1 else row, np.float32) for row in rows]
        deep = arrays[0].ndim == 2  # a row for each token, not for each text
        made[f"scores{number}"] = np.concatenate([a if deep else a[None] for a in arrays])
        made[f"ends{number}"] = np.cumsum([len(a) if deep else 1 for a in arrays])
        made[f"deep{number}"] = np.array(deep)
    return made


def compute_scores(
    folder: Path, student: Artifact, data: DistillData, features: Sequence[Feature], device: torch.device
) -> list[Any]:
    """The teacher's scores, by the torch-free runtime (or torch, on a GPU). A teacher with another vocabulary reads the examples its own way."""
    albert, heads = Albert(folder, device=device.type), data.task.heads
    assert student.tokenizer is not None
    same = albert.tokenizer.vocabulary.ids == student.tokenizer.vocabulary.ids
    if same and max(len(f.ids) for f in features) <= albert.max_tokens:
        return task_scores(albert, features)
    if {"tag", "answer"} & set(heads):
        raise AlbertkitError(
            f"{folder} cuts text otherwise than the student, and its scores are of tokens; take a student with its vocabulary (--shape does)"
        )
    length = min(int(albert.meta.details.get("max_length", albert.max_tokens)), albert.max_tokens)
    theirs: dict[int, list[Feature]] = {}
    for feature in data.task.features(data.train, albert.tokenizer, length):
        theirs.setdefault(feature.example, []).append(feature)
    order = [theirs[f.example].pop(0) for f in features if theirs.get(f.example)]
    if len(order) != len(features):
        raise AlbertkitError(
            f"{folder} reads the examples in other parts than the student; take a student with its vocabulary"
        )
    return task_scores(albert, order)
