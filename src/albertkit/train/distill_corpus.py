"""Sentence vectors distilled from a corpus folder: passages are drawn, teachers embed them, a student is trained.

In: teachers, a corpus folder, a student. Out: a training folder; `OUTPUT/texts` keeps the passages and the teachers'
vectors, so that a training resumes. Before this file: `teachers.py`; after it: `distill_vectors.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from albertkit.artifact import Artifact
from albertkit.data.passages import Passages, PassageShares, distinct_words, draw_passages, everyday_sentences
from albertkit.data.shard_writer import write_array, write_json
from albertkit.data.shards import Shards
from albertkit.errors import AlbertkitError
from albertkit.file_io import digest, read_json
from albertkit.train.distill import teacher_identity
from albertkit.train.distill_settings import VectorDistillSettings
from albertkit.train.distill_vectors import VectorDistillTask, check_widths, student_vectors
from albertkit.train.distributed import choose_device
from albertkit.train.loop import TrainResult, train
from albertkit.train.teachers import TeacherMixture, passage_targets
from albertkit.train.train_settings import TrainSettings

MAX_PASSAGE = 254  # tokens
TARGETS = "targets.npy"


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
        own = student_vectors(student, passages, device) if student.meta.task == "embed" else None
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
