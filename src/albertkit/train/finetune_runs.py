"""The runs of a fine-tuning job: one for each seed, restarted while they collapse. No torch until it is needed.

In: a `FinetuneJob`. Out: `FinetuneResult` and OUTPUT/runs, model, report. Before this file: `finetune.py` and
`elastic.py`, which make the job. `presets.py` chooses the schedule, `collapse.py` finds failures, `run_settings.py`
compares the settings with those of an earlier run in the folder, and `loop.py` trains.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from albertkit.artifact import Artifact, read_artifact, write_artifact
from albertkit.data.shards import replace_json
from albertkit.errors import AlbertkitError
from albertkit.file_io import read_json
from albertkit.input_warnings import check_training_texts
from albertkit.tasks.examples import Example
from albertkit.tasks.task import Task, lower_is_better
from albertkit.train.finetune_report import EvaluatedRun, FinetuneResult, write_report
from albertkit.train.presets import preset_learning_rate, preset_optimizer, preset_schedule
from albertkit.train.run_lock import lock_run
from albertkit.train.run_settings import begin_run, check_output, write_settings
from albertkit.train.train_settings import ElasticSettings, FinetuneSettings, Log, TrainSettings

if TYPE_CHECKING:
    from albertkit.train.collapse import Failure
    from albertkit.train.finetune_task import FinetuneTask
    from albertkit.train.loop import TrainResult

MAX_EVALUATIONS = 20  # of a run with preset epochs
FAILURES = {
    "collapsed": "collapsed",
    "too short": "was too short",
    "does not generalize": "learnt the training examples only",
}


@dataclass(frozen=True)
class FinetuneJob:
    """A fine-tuning job: the task, the initial model, the data, the folder and the settings."""

    task: Task
    model: Artifact
    examples: Sequence[Any]
    dev: Sequence[Any]
    output: Path
    settings: FinetuneSettings
    begin: Callable[[], None] = lambda: None  # called after all checks, before the folder is written


def run_seeds(job: FinetuneJob, log: Log) -> FinetuneResult:
    """Train once for each seed; the best run is the result."""
    with lock_run(job.output):
        return _run_seeds(job, log)


def _run_seeds(job: FinetuneJob, log: Log) -> FinetuneResult:
    from albertkit.train.checkpoint import raise_stopped

    settings, output = job.settings, job.output
    check_output(output, job.task.name, settings, log)
    job = dataclasses.replace(job, begin=cache(partial(begin_run, output, job.task.name, settings)))  # once
    dev_before = None if settings.overwrite else _dev_hash_before(output)
    if job.model.tokenizer is not None:
        texts = [example.joined_text() for example in job.examples if isinstance(example, Example)]
        check_training_texts(job.model.tokenizer, texts, settings.max_unknown)
    if settings.dropout is not None:
        dropout = {"hidden_dropout_prob": settings.dropout, "attention_probs_dropout_prob": settings.dropout}
        model = dataclasses.replace(job.model, config=job.model.config.replace(**dropout))
        job = dataclasses.replace(job, model=model)
    runs: list[dict[str, Any]] = []
    best: tuple[float, Artifact, FinetuneTask] | None = None
    for number in range(settings.seeds):
        attempt = _run_with_restarts(job, settings.seed + number, log)
        if number == 0 and dev_before not in (None, attempt.summary["dev"]):
            log("note: the best epoch was selected on other held-out examples; metrics are of the new ones")
        if attempt.result.model is None:
            raise_stopped(attempt.result.stopped_by)
        runs.append({**attempt.summary, "metrics": attempt.result.metrics})
        if best is None or attempt.score > best[0]:
            best = attempt.score, read_artifact(attempt.result.model), attempt.task
    assert best is not None
    _, artifact, task = best
    if len(runs) > 1:
        artifact = _with_spread(artifact, [run["metrics"] for run in runs])
    write_artifact(artifact, output / "model", overwrite=(output / "model").exists())
    replace_json(output / "runs.json", runs)
    write_settings(output, job.task.name, settings)
    evaluated = EvaluatedRun(task.features, task.dev, task.task, task.results)
    write_report(output, evaluated, artifact, runs)
    return FinetuneResult(output / "model", artifact.metadata.metrics.get("dev", {}), runs, len(job.dev))


def _with_spread(artifact: Artifact, metrics: list[dict[str, float]]) -> Artifact:
    """The artifact with the mean and the standard deviation of each metric over the seeds."""
    values = {name: [run[name] for run in metrics] for name in metrics[0]}
    spread = {name: [statistics.fmean(v), statistics.stdev(v)] for name, v in values.items()}
    meta = dataclasses.replace(artifact.metadata, metrics={**artifact.metadata.metrics, "dev over seeds": spread})
    return dataclasses.replace(artifact, metadata=meta)


def _dev_hash_before(output: Path) -> str | None:
    """The hash of the held-out examples of a finished run in this folder."""
    try:
        return str(json.loads((output / "runs.json").read_bytes())[0]["dev"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run: its task after training, the result, and the failure if it learnt nothing."""

    task: FinetuneTask
    result: TrainResult
    failure: Failure | None
    summary: dict[str, Any]

    @property
    def score(self) -> float:
        """The metric that selects the best checkpoint; higher is better."""
        name = self.task.selection_metric
        return (-1 if lower_is_better(name) else 1) * self.result.metrics.get(name, 0.0)


def _run_with_restarts(job: FinetuneJob, seed: int, log: Log) -> Attempt:
    """A run. While it collapses, restart it with another seed and half the learning rate. The best attempt counts."""
    began, attempts = time.perf_counter(), list[Attempt]()
    for number in range(job.settings.restarts + 1):
        attempt = _run_once(job, seed + 1000 * number, 0.5**number, log)
        attempts.append(attempt)
        if attempt.result.model is None:
            return attempt
        failure = attempt.failure
        if failure is None or not failure.is_collapse or number == job.settings.restarts:
            break
        rate = attempt.summary["rate"] / 2
        log(f"training collapsed ({failure.reason}); restarting with learning rate {rate:g} and another seed")
    best = max(attempts, key=lambda attempt: attempt.score)
    if best.failure is not None:
        left = "; no restart is left" if best.failure.is_collapse else ""
        log(f"the training {FAILURES[best.failure.kind]}: {best.failure.reason}{left}. {best.failure.remedy}")
        failed = {"failed": best.failure.reason, "failure": best.failure.kind, "remedy": best.failure.remedy}
        best = dataclasses.replace(best, summary={**best.summary, **failed})
    collapses = sum(one.failure is not None and one.failure.is_collapse for one in attempts[:-1])
    totals = {"seconds": time.perf_counter() - began, "collapsed": collapses}
    return dataclasses.replace(best, summary={**best.summary, **totals})


def _run_once(job: FinetuneJob, seed: int, rate_factor: float, log: Log) -> Attempt:
    """One attempt, with a share of the learning rate."""
    from albertkit.train.checkpoint import saved_steps
    from albertkit.train.collapse import find_failure
    from albertkit.train.loop import train

    optimizer = _optimizer(job, job.output / "runs" / f"seed-{seed}")
    settings = dataclasses.replace(job.settings, optimizer=optimizer)
    preset_rate = preset_learning_rate(job.model.config, optimizer)
    task = _build_training_task(job, loop_settings(settings, 1, preset_rate, seed))
    task.check_metric()
    classes = len(job.task.labels) if job.task.kind == "single" else 0
    schedule = preset_schedule(job.task.name, len(task.features), job.model.config, settings, classes)
    rate, steps = schedule.learning_rate * rate_factor, schedule.steps(len(task.features))
    settings = dataclasses.replace(settings, batch_size=schedule.batch_size)
    task.settings = loop_settings(settings, steps, rate, seed, _evaluations(job.settings, schedule.epochs))
    task.model.encoder.checkpointing = settings.gradient_checkpointing
    task.model.encoder.layer_decay = settings.layer_decay
    if seed == settings.seed and rate_factor == 1:  # the first start
        task.report_truncated()
    job.begin()
    folder = job.output / "runs" / f"seed-{seed}"
    done = max(saved_steps(folder), default=0)
    if done > steps:
        raise AlbertkitError(
            f"{folder} is at step {done:,}, and these settings end at step {steps:,}. Pass more --epochs, or "
            "--overwrite to start again."
        )
    log(
        f"{steps:,} steps of {schedule.batch_size} examples ({schedule.epochs:.3g} epochs), {optimizer}, "
        f"learning rate {rate:g}"
    )
    result = train(task, task.settings, folder, resume=True, log=log, progress_bar=settings.progress_bar)
    dev = hashlib.sha256(repr([(f.ids, f.target) for f in task.dev_features]).encode()).hexdigest()[:16]
    failure = find_failure(task, folder, preset_rate) if result.model is not None else None
    return Attempt(task, result, failure, {"seed": seed, "rate": rate, "dev": dev})


def _optimizer(job: FinetuneJob, folder: Path) -> str:
    """The optimizer that was passed, that of the run to resume, or the preset.

    The preset was not measured for training of every depth.
    """
    if job.settings.optimizer is not None:
        return job.settings.optimizer
    if (folder / "settings.json").is_file() and not job.settings.overwrite:
        return str(read_json(folder / "settings.json").get("optimizer", "adamw"))
    return "adamw" if job.settings.elastic else preset_optimizer(job.task.name, job.model.config)


def _evaluations(settings: FinetuneSettings, epochs: float) -> int:
    """One evaluation per epoch, but not more than `MAX_EVALUATIONS` if the epochs were not chosen by the user."""
    is_chosen = settings.epochs is not None or settings.patience or settings.keep_epochs
    return math.ceil(epochs) if is_chosen else min(math.ceil(epochs), MAX_EVALUATIONS)


def _build_training_task(job: FinetuneJob, loop: TrainSettings) -> FinetuneTask:
    """The task for the loop: training of the full depth, or of every depth."""
    from albertkit.train.elastic import ElasticTask
    from albertkit.train.finetune_task import FinetuneTask

    settings, data = job.settings, (job.task, job.model, job.examples, job.dev, loop)
    if not isinstance(settings, ElasticSettings) and not settings.elastic:
        return FinetuneTask(*data, settings.max_length, settings.metric)
    if not job.task.can_exit_early:
        raise AlbertkitError("generate needs the full depth for every token. Omit --elastic.")
    if not isinstance(settings, ElasticSettings):
        settings = ElasticSettings(**dataclasses.asdict(settings))
    return ElasticTask(*data, settings)


def loop_settings(
    settings: FinetuneSettings, steps: int, learning_rate: float, seed: int, evaluations: int = 1
) -> TrainSettings:
    """Settings of the loop for one run: an evaluation and a checkpoint per epoch. The best one is the result."""
    return TrainSettings(
        steps=steps,
        batch_size=settings.batch_size or 32,
        micro_batch_size=settings.micro_batch_size,
        optimizer=settings.optimizer or "adamw",
        learning_rate=learning_rate,
        warmup_ratio=0.1,
        seed=seed,
        evaluations=evaluations,
        patience=settings.patience,
        keep_checkpoints=1_000_000 if settings.keep_epochs else 2,
        load_best=True,
        device=settings.device,
        compile="no",
        tensorboard=False,
    )
