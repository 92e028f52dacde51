"""Recovery of compressed models by training, on one task: after pruning, for 4 bits, and a student of two million
parameters.

    python studies/compression.py --trained RUNS                    # train missing variants in RUNS, measure, write
    studies/results/compression.json
    python studies/compression.py --trained RUNS --only train       # on a machine with a GPU; then --only measure where
    speed counts
    python studies/compression.py --trained RUNS --quick            # toy size, records nothing: a test run

Each variant is a folder under RUNS and is trained once; an interrupted run resumes. With --jobs, the variants of the
fine-tuned model are trained in parallel. The task is SST-2 (shared/data/sst-2): one training example in ten selects
checkpoints, and quality is accuracy on the dev file, by the torch-free runtime. With --texts, the student is first
distilled from hidden states of the pre-trained model. Speed: one short text, and texts per second, in interleaved
rounds over all variants. `carry.py` transfers the variants between machines.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from jobs import run_jobs

import tasks

KEEP = {"ffn": 0.5, "heads": 2 / 3}
BITS = 4
BATCH = 64
STUDENT = "mini"


@dataclasses.dataclass(frozen=True)
class Job:
    """What every variant is made from."""

    runs: Path
    shared: Path
    start: str | None
    device: str
    quick: bool
    texts: Path | None
    text_steps: int

    def read(self, part: str) -> list[Any]:
        """Examples of SST-2's train or dev."""
        from albertkit.tasks.readers import ReadOptions, read_examples

        path = self.shared / "data" / "sst-2" / f"{part}.tsv"
        examples: list[Any] = read_examples("classify", path, ReadOptions(split=part)).examples
        return examples[:64] if self.quick else examples

    def examples(self) -> tuple[list[Any], list[Any]]:
        """To learn from, and to choose checkpoints by."""
        from albertkit.tasks.dataset import split_examples

        if tasks.missing_libraries():  # checkpoints are then chosen by plain accuracy
            tasks.use_simple_metrics()
        split: tuple[list[Any], list[Any]] = split_examples(self.read("train"))
        return split

    def sample(self) -> list[str]:
        """Texts to calibrate with."""
        return [e.text for e in self.examples()[0][:500]]

    @property
    def settings(self) -> dict[str, Any]:
        """Options of every training."""
        return {"device": self.device, "batch_size": BATCH, **({"epochs": 1, "max_length": 32} if self.quick else {})}

    def place(self, name: str) -> Path:
        """The folder of a variant."""
        return self.runs / name

    def task_data(self) -> Any:
        """The examples, with the task of the fine-tuned model."""
        from albertkit.artifact import read_artifact
        from albertkit.train.distill_data import data_for_model

        return data_for_model(read_artifact(self.place("whole")), *self.examples())


NAMES = ("whole", "pruned", "recovered", "plain-4bit", "aware-4bit", "alone", "taught")


def is_finished(folder: Path) -> bool:
    return (folder / "albertkit.json").is_file()


def is_missing(folder: Path) -> bool:
    """Whether a variant is still to be made; says so."""
    print(f"{folder.name}: {'done before' if is_finished(folder) else 'to be made'}", flush=True)
    return not is_finished(folder)


def finish(model: Path, folder: Path) -> None:
    """A trained model to its place, whole or not at all."""
    from albertkit.artifact import read_artifact, write_artifact

    write_artifact(read_artifact(model), folder)


def student_config(quick: bool) -> Any:
    from albertkit.config import preset

    return preset(STUDENT).replace(num_hidden_layers=1) if quick else preset(STUDENT)


def make_whole(job: Job) -> None:
    """The fine-tuned model."""
    from albertkit.artifact import write_artifact
    from albertkit.tokenizer import Tokenizer
    from albertkit.train.distill import new_student
    from albertkit.train.finetune import finetune_examples
    from albertkit.train.train_settings import FinetuneSettings

    start = job.start
    if job.quick:  # a fresh small model is enough to see whether everything runs
        tokenizer = Tokenizer.load(Path(__file__).parent.parent / "src" / "albertkit" / "models" / "small")
        student = new_student(student_config(True), tokenizer, 0)
        start = str(write_artifact(student, job.runs / "start", overwrite=(job.runs / "start").exists()))
    options = FinetuneSettings(**job.settings)
    done = finetune_examples("classify", *job.examples(), job.runs / "finetune", start, options, log=print)
    finish(done.model, job.place("whole"))


def make_pruned(job: Job) -> None:
    """Fewer columns and heads."""
    from albertkit.compress.prune import PruneSettings, prune

    prune(job.place("whole"), job.place("pruned"), PruneSettings(**KEEP), job.sample())


def make_recovered(job: Job) -> None:
    """The same, trained afterwards."""
    from albertkit.compress.prune import PruneSettings, prune
    from albertkit.train.distill_data import RecoverySettings
    from albertkit.train.recover import Recovery

    recovery = Recovery(job.task_data(), RecoverySettings(**job.settings), job.runs / "recovered.run", print)
    prune(job.place("whole"), job.place("recovered"), PruneSettings(**KEEP), job.sample(), recovery=recovery)


def make_plain(job: Job) -> None:
    """Few bits."""
    from albertkit.compress.quantize import quantize

    quantize(job.place("whole"), job.place("plain-4bit"), BITS, job.sample())


def make_aware(job: Job) -> None:
    """Few bits, trained for them."""
    from albertkit.compress.quantize import quantize
    from albertkit.train.distill_data import RecoverySettings
    from albertkit.train.recover import train_for_bits

    data, settings = job.task_data(), RecoverySettings(**job.settings)
    trained = train_for_bits(job.place("whole"), BITS, data, settings, job.runs / "aware-4bit.run", print)
    quantize(trained, job.place("aware-4bit"), BITS, job.sample())


def make_student(job: Job) -> None:
    """A small model that knows nothing yet; with texts, after it has read them beside the pre-trained model."""
    from albertkit import builtin
    from albertkit.artifact import write_artifact
    from albertkit.interop.convert import open_model
    from albertkit.train.distill import DistillJob, distill, new_student
    from albertkit.train.distill_data import DistillData, DistillSettings
    from albertkit.train.teachers import TeacherMixture
    from albertkit.train.train_settings import TrainSettings

    start = builtin.resolve(job.start, builtin.PRETRAINED[builtin.DEFAULT])
    fresh = new_student(student_config(job.quick), open_model(start).tokenizer, 0)
    if job.texts is None:
        write_artifact(fresh, job.place("student"))
        return
    read_examples = job.texts.read_text(encoding="utf-8").splitlines()
    lines = [line for line in read_examples if line.strip()][: 64 if job.quick else 500_000]
    settings = TrainSettings(
        steps=2 if job.quick else job.text_steps, batch_size=64, learning_rate=1e-3, evaluations=5, device=job.device, compile="no", tensorboard=False
    )  # fmt: skip
    data = DistillData(None, [line for i, line in enumerate(lines) if i % 20], lines[::20][:1000])
    states = DistillSettings(hidden=1.0)
    distillation = DistillJob(TeacherMixture((start,), (1.0,)), fresh, data, states, settings)
    done = distill(distillation, job.runs / "student.run", resume=True, log=print)
    if done.model is None:
        raise SystemExit("stopped; the same command goes on")
    finish(done.model, job.place("student"))


def make_alone(job: Job) -> None:
    """A small student, from labels."""
    from albertkit.artifact import read_artifact
    from albertkit.train.finetune import finetune_examples
    from albertkit.train.train_settings import FinetuneSettings

    options = FinetuneSettings(**job.settings)
    done = finetune_examples(
        "classify", *job.examples(), job.runs / "alone.run", read_artifact(job.place("student")), options, log=print
    )
    finish(done.model, job.place("alone"))


def make_taught(job: Job) -> None:
    """The same student, from the fine-tuned model."""
    from albertkit.artifact import read_artifact
    from albertkit.train.distill import DistillJob, distill
    from albertkit.train.distill_data import DistillSettings
    from albertkit.train.teachers import TeacherMixture
    from albertkit.train.train_settings import TrainSettings

    data, epochs = job.task_data(), 1 if job.quick else 6
    settings = TrainSettings(
        steps=max(1, epochs * len(data.train) // BATCH), batch_size=BATCH, learning_rate=5e-4, evaluations=epochs, load_best=True, device=job.device,
        compile="no", tensorboard=False,
    )  # fmt: skip
    student, teachers = read_artifact(job.place("student")), TeacherMixture((job.place("whole"),), (1.0,))
    outputs = DistillSettings(logits=1.0, hidden=0.5, labels=0.5)
    distillation = DistillJob(teachers, student, data, outputs, settings)
    done = distill(distillation, job.runs / "taught.run", resume=True, log=print)
    if done.model is None:
        raise SystemExit("stopped; the same command goes on")
    finish(done.model, job.place("taught"))


MAKERS = {
    "whole": make_whole,
    "student": make_student,
    "recovered": make_recovered,
    "aware-4bit": make_aware,
    "taught": make_taught,
    "alone": make_alone,
    "pruned": make_pruned,
    "plain-4bit": make_plain,
}


def make(name: str, job: Job) -> None:
    """One variant, in a process of its own."""
    MAKERS[name](job)


def build(job: Job, jobs: int) -> None:
    """Every variant; those that exist are left alone. First the two that others are made from."""
    first = ("whole", "student")
    for names in (first, [name for name in MAKERS if name not in first]):
        failed = run_jobs(make, [(name, job) for name in names if is_missing(job.place(name))], jobs)
        if failed:
            raise SystemExit(f"not done: {'; '.join(failed)}")


def measure(models: dict[str, Path], dev: list[Any], threads: int | None, rounds: int) -> dict[str, dict[str, Any]]:
    """Accuracy, parameters, bytes and time of each variant."""
    from albertkit.albert import Albert
    from albertkit.compress.quantize import QualityCheck
    from albertkit.weights import encoder_shapes, size

    judge = QualityCheck(models["whole"], dev)
    alberts = {name: Albert(folder, threads=threads) for name, folder in models.items()}
    texts = [e.text for e in dev]
    times = {name: [np.inf, np.inf] for name in models}
    for _ in range(rounds):
        for name, albert in alberts.items():
            began = time.perf_counter()
            albert.classify(texts)
            many = (time.perf_counter() - began) / len(texts)
            single = []
            for text in texts[:20]:
                began = time.perf_counter()
                albert.classify(text)
                single.append(time.perf_counter() - began)
            times[name] = [min(times[name][0], many), min(times[name][1], float(np.median(single)))]
    out = {}
    for name, folder in models.items():
        score = judge.score(folder)
        out[name] = {
            "metric": score.metric,
            "score": score.value,
            "parameters": size(encoder_shapes(alberts[name].config)),
            "bytes": max(p.stat().st_size for p in folder.glob("*.safetensors")),
            "texts_per_second": 1 / times[name][0],
            "one_text_ms": 1e3 * times[name][1],
        }
        print(name, out[name], flush=True)
    return out


def run(args: argparse.Namespace, shared: Path) -> dict[str, Any] | None:
    """Train and measure; None where nothing is to be kept."""
    runs = Path(args.trained)
    runs.mkdir(parents=True, exist_ok=True)
    job = Job(runs, shared, args.start, args.device, args.quick, args.texts, args.text_steps)
    models = {name: job.place(name) for name in NAMES}
    if args.only != "measure":
        build(job, args.jobs)
    if args.only == "train":
        return None
    lacking = [name for name, folder in models.items() if not is_finished(folder)]
    if lacking:
        raise SystemExit(f"{', '.join(lacking)} not made yet; run --only train first")
    result = measure(models, job.read("dev"), args.threads, 1 if args.quick else 5)
    if args.quick:
        print(json.dumps(result, indent=2))
        return None
    return {"variants": result}
