"""`finetune`: examples to a finished model, with presets by size, several seeds, and a new start when a training collapses.

In: a task's name, examples, a model to start from. Out: a folder:

    OUT/model/          the artifact of the best run
    OUT/report.md       metrics, worst errors, time and memory; confusion.png or reliability.png beside it
    OUT/runs/seed-0/    each run as `loop.py` leaves it (metrics, checkpoints)
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit import builtin
from albertkit.artifact import Artifact, read_artifact, write_artifact
from albertkit.data.writing import write_json
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import open_model
from albertkit.tasks.choose import Choose
from albertkit.tasks.examples import Text
from albertkit.tasks.make import make_task, task_of
from albertkit.train.finetune import Finetuning
from albertkit.train.frozen import Tuned, few, freeze
from albertkit.train.loop import Outcome, train
from albertkit.train.settings import Settings
from albertkit.train.summary import truth, write_report
from albertkit.train.tuning import Depths, Options, preset_epochs, preset_rate

EVEN = 0.02  # mean difference of the likeliest and the least likely choice, below which nothing was learnt


@dataclass(frozen=True)
class Job:
    """What is to be learnt, from what, and where it goes."""

    task: Any
    start: Artifact
    examples: Sequence[Any]
    dev: Sequence[Any]
    out: Path
    options: Options


def finetune(
    task: str,
    examples: Sequence[Any],
    dev: Sequence[Any],
    out: Path | str,
    start: Artifact | Path | str | None = None,
    options: Options | None = None,
    say: Callable[[str], None] = lambda text: None,
    bar: bool = False,
    **settings: Any,
) -> Tuned:
    """Train a model for a task; run again, it goes on where it stopped. `settings` go to the task (kind, stride …).

    start: without it, the built-in model.
    """
    options, out = options or Options(), Path(out)
    if options.freeze:
        if isinstance(start, Artifact):
            raise AlbertkitError("a head on frozen vectors is learnt from a model folder; write the model first")
        return freeze(task, examples, dev, out, start, options)
    if task == "intent" and all(isinstance(e, Text) for e in examples):
        task = "classify"  # intents without slots
    if start is None:
        start = builtin.resolve(None, beginning(task, examples, options.max_length))
    artifact = start if isinstance(start, Artifact) else open_model(start)
    if options.shots and task != "classify":
        raise AlbertkitError("shots are examples of each class; only classes have them")
    if options.shots:
        examples = few(examples, options.shots, options.seed)
    if task == "generate":
        settings = {"target_length": options.target_length, "smoothing": options.smoothing, **settings}
    made = make_task(task, examples, **settings)
    if options.class_weights and getattr(made, "kind", "") == "single":
        made = weighted(made, examples)
    return tuned(Job(made, artifact, examples, dev, out, options), say, bar)


def beginning(task: str, examples: Sequence[Any], max_length: int) -> str:
    """The built-in model to begin with: for vectors, and for single texts with labels, the one that knows what whole texts mean (LOG.md has
    numbers); for words, two texts read together, and what is longer than it reads, the one that knows words in their places.
    """
    short = max_length <= builtin.about(builtin.DEFAULT).shape["length"]
    whole = task == "match" or (task == "classify" and not any(e.pair for e in examples))
    return builtin.DEFAULT if whole and short else builtin.START


def elastic(
    start: Artifact | Path | str,
    examples: Sequence[Any],
    dev: Sequence[Any],
    out: Path | str,
    options: Depths | None = None,
    say: Callable[[str], None] = lambda text: None,
    bar: bool = False,
) -> Tuned:
    """Train a fine-tuned model until every depth is a good one, and find when texts may leave early (`train/elastic.py`)."""
    artifact = start if isinstance(start, Artifact) else open_model(start)
    options, meta = options or Depths(), artifact.meta
    if meta.task == "embed":
        raise AlbertkitError(
            "this model gives vectors, which `albertkit distill` already makes good at several depths; use depth=, or run  albertkit calibrate MODEL TEXTS  for exit="
        )
    task = task_of(meta)
    if meta.details.get("reads") == "vector":
        raise AlbertkitError(
            "this model is a head on frozen vectors, so there are no layers to train; fine-tune without --freeze first"
        )
    epochs = options.epochs or max(1.0, preset_epochs(len(examples)) / 2)  # it knows the task already
    options = dataclasses.replace(options, epochs=epochs)
    return tuned(Job(task, artifact, examples, dev, Path(out), options), say, bar)


def tuned(job: Job, say: Callable[[str], None], bar: bool) -> Tuned:
    """A run for each seed; the best one is the result."""
    options, out = job.options, job.out
    runs: list[dict[str, Any]] = []
    best: tuple[float, Artifact, Finetuning] | None = None
    for number in range(options.seeds):
        work, outcome, notes = _one(job, options.seed + number, say, bar)
        if outcome.model is None:
            raise AlbertkitError(f"stopped; the same command goes on from {out}")
        finished = read_artifact(outcome.model)
        runs.append({**notes, "metrics": outcome.metrics})
        score = sign(work.better) * outcome.metrics.get(work.better, 0.0)
        if best is None or score > best[0]:
            best = score, finished, work
    assert best is not None
    _, finished, work = best
    if len(runs) > 1:
        spread = summary([run["metrics"] for run in runs])
        meta = dataclasses.replace(finished.meta, metrics={**finished.meta.metrics, "dev over seeds": spread})
        finished = dataclasses.replace(finished, meta=meta)
    write_artifact(finished, out / "model", overwrite=(out / "model").exists())
    write_json(out / "runs.json", runs)
    write_report(out, work, finished, runs)
    return Tuned(out / "model", finished.meta.metrics.get("dev", {}), runs)


def sign(metric: str) -> int:
    """Whether more is better."""
    return -1 if "loss" in metric or metric == "rmse" else 1


def summary(metrics: list[dict[str, float]]) -> dict[str, list[float]]:
    """Mean and standard deviation of each metric."""
    return {
        name: [statistics.fmean(m[name] for m in metrics), statistics.stdev(m[name] for m in metrics)]
        for name in metrics[0]
    }


def weighted(task: Any, examples: Sequence[Any]) -> Any:
    """The task with a weight for each class: the rarer, the more."""
    counts = Counter(str(e.label) for e in examples)
    weights = tuple(len(examples) / (len(task.labels) * counts[label]) for label in task.labels)
    return dataclasses.replace(task, weights=weights)


def work_of(job: Job, settings: Settings) -> Finetuning:
    """The work: at the full depth, or at every depth."""
    options = job.options
    given = job.task, job.start, job.examples, job.dev, settings
    if not isinstance(options, Depths) and not options.elastic:
        return Finetuning(*given, options.max_length, options.metric)
    if job.task.head == "mlm":
        raise AlbertkitError("a model that writes needs its full depth for every word; leave elastic away")
    from albertkit.train.elastic import Elastic

    return Elastic(*given, options if isinstance(options, Depths) else Depths(**dataclasses.asdict(options)))


def _one(job: Job, seed: int, say: Callable[[str], None], bar: bool) -> tuple[Finetuning, Outcome, dict[str, Any]]:
    """One run, begun anew with another seed and half the rate as long as it collapses."""
    options, start = job.options, job.start
    rate = options.learning_rate or preset_rate(start.config)
    collapsed = 0
    while True:
        this = seed + 1000 * collapsed
        work = work_of(job, plan_of(options, start, 1, rate, this))
        epochs = options.epochs or preset_epochs(len(work.features))
        work.settings = plan_of(options, start, max(1, round(work.batches * epochs)), rate, this, math.ceil(epochs))
        work.model.encoder.checkpointing = options.checkpointing
        began = time.perf_counter()
        outcome = train(work, work.settings, job.out / "runs" / f"seed-{this}", resume=True, say=say, bar=bar)
        notes = {"seed": this, "rate": rate, "seconds": time.perf_counter() - began, "collapsed": collapsed}
        if outcome.model is None or not collapse(work) or collapsed >= options.restarts:
            return work, outcome, notes
        collapsed += 1
        rate /= 2
        say(f"the model answers the same to everything: collapsed. Starting again with rate {rate:g} and another seed")


def plan_of(options: Options, start: Artifact, steps: int, rate: float, seed: int, evaluations: int = 1) -> Settings:
    """The loop's settings for one run: an evaluation and a checkpoint each epoch, the best one is the result."""
    return Settings(
        steps=steps, batch=options.batch, micro=options.micro, learning_rate=rate, warmup=0.1, seed=seed,
        evaluations=evaluations, patience=options.patience, take_best=True, device=options.device, compile="no",
        tensorboard=False, keep=1,
    )  # fmt: skip


def collapse(work: Finetuning) -> bool:
    """Whether every held-out example got the same answer, though they differ; of choices, whether all are as likely."""
    if not len(work.dev):
        return False
    if isinstance(work.task, Choose):  # the likeliest of equal choices is chance, and looks like an answer
        chances: list[Any] = [result.probabilities for result in work.results]
        same = statistics.fmean(max(row) - min(row) for row in chances) < EVEN
    else:
        same = len({repr(work_answer(result)) for result in work.results}) == 1
    return len(work.results) > 4 and same and len({repr(truth(example)) for example in work.dev}) > 1


def work_answer(result: Any) -> Any:
    """What a result says, without how sure it is."""
    for name in ("label", "index", "spans", "text"):
        if hasattr(result, name):
            value = getattr(result, name)
            return round(value, 4) if isinstance(value, float) else value
    return result
