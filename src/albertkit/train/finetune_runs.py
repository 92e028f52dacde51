"""`finetune`: examples to a finished model, with presets by size, several seeds, and a new start when a training collapses.

In: a task's name, examples, a model to start from. Out: a folder:

    OUT/model/          the artifact of the best run
    OUT/report.md       metrics, worst errors, time and memory; confusion.png or reliability.png beside it
    OUT/runs/seed-0/    each run as `loop.py` leaves it (metrics, checkpoints)
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp

from albertkit import builtin
from albertkit.artifact import Artifact, read_artifact, write_artifact
from albertkit.data.shard_writer import write_json
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import open_model
from albertkit.tasks import TASKS, load_task, make_task
from albertkit.tasks.choose import ChooseTask
from albertkit.tasks.examples import TextExample
from albertkit.tasks.tag import TagTask
from albertkit.tasks.task import IGNORE_INDEX, lower_is_better
from albertkit.tasks.validate import check_known_labels
from albertkit.train.finetune_report import truth, write_report
from albertkit.train.finetune_task import FinetuneTask
from albertkit.train.frozen_head import FinetuneResult, few, freeze
from albertkit.train.loop import TrainResult, train
from albertkit.train.start_model import beginning
from albertkit.train.train_settings import (
    ElasticSettings,
    FinetuneSettings,
    TrainSettings,
    preset_epochs,
    preset_learning_rate,
)

REMEDY = "Give more examples or epochs, a lower --learning-rate, or --freeze"
SOME, ENOUGH = 20, 100  # held-out examples, below which their values, and their loss, say little
CHANCE = 0.995  # share of the loss by chance, from which on nothing was learnt
HEATS = (1.0, 2.0, 4.0, 8.0, 16.0)
EVEN = 0.02  # mean difference of the likeliest and the least likely choice, below which nothing was learnt


@dataclass(frozen=True)
class FinetuneJob:
    """What is to be learnt, from what, and where it goes."""

    task: Any
    model: Artifact
    examples: Sequence[Any]
    dev: Sequence[Any]
    output: Path
    options: FinetuneSettings


def finetune(
    task: str,
    examples: Sequence[Any],
    dev: Sequence[Any],
    output: Path | str,
    model: Artifact | Path | str | None = None,
    options: FinetuneSettings | None = None,
    log: Callable[[str], None] = lambda text: None,
    progress_bar: bool = False,
    **settings: Any,
) -> FinetuneResult:
    """Train a model for a task; run again, it goes on where it stopped. `settings` go to the task (kind, stride …).

    model: without it, the built-in model.
    """
    options, output = options or FinetuneSettings(), Path(output)
    if options.freeze:
        if isinstance(model, Artifact):
            raise AlbertkitError("a head on frozen vectors is learnt from a model folder; write the model first")
        return freeze(task, examples, dev, output, model, options)
    if task == "intent" and all(isinstance(e, TextExample) for e in examples):
        task = "classify"  # intents without slots
        if "overlap" in settings:
            raise AlbertkitError("overlap is about slots in long texts, and these intents have none; leave it away")
    if model is None:
        name, why = beginning(task, examples, options.max_length)
        log(f"begins with {name}: {why}")
        model = builtin.resolve(name)
    artifact = model if isinstance(model, Artifact) else open_model(model)
    if options.shots and task != "classify":
        raise AlbertkitError("shots are examples of each class; only classes have them")
    if options.shots:
        examples = few(examples, options.shots, options.seed)
    if task == "generate":
        settings = {"target_length": options.target_length, "label_smoothing": options.label_smoothing, **settings}
    made = make_task(task, examples, **settings)
    if options.class_weights:
        made = weighted(made, examples)
    return tuned(FinetuneJob(made, artifact, examples, dev, output, options), log, progress_bar)


def elastic(
    model: Artifact | Path | str,
    examples: Sequence[Any],
    dev: Sequence[Any],
    output: Path | str,
    options: ElasticSettings | None = None,
    log: Callable[[str], None] = lambda text: None,
    progress_bar: bool = False,
    texts: Sequence[str] = (),
    teacher: Artifact | Path | str | None = None,
) -> FinetuneResult:
    """Train a fine-tuned model until every depth is a good one, and find when texts may leave early (`train/elastic.py`).

    texts: more of them, without labels; what `teacher`, or the model itself, says of them at its full depth is learnt as well (`train/pseudo_labels.py`).
    With a teacher, `model` may be a model without a task, which then learns that of the teacher.
    """
    artifact = model if isinstance(model, Artifact) else open_model(model)
    master = teacher if isinstance(teacher, Artifact) or teacher is None else open_model(teacher)
    if master is not None and not texts:
        raise AlbertkitError("a teacher labels texts, and none were given; give texts, too")
    knows, options = knowing(artifact, master), options or ElasticSettings()
    task, fresh = load_task(knows.meta), knows is not artifact
    unknown = check_known_labels(task, examples, "which cannot be learnt")
    if unknown:
        raise AlbertkitError(f"{unknown[0]}; leave these examples out, or fine-tune a model that knows them first")
    for note in check_known_labels(task, dev):
        log(note)
    if texts:
        from albertkit.train.pseudo_labels import labelled, same_form

        same_form(task, examples, texts)
        log(f"labels {len(texts):,} texts")
        examples = [*examples, *labelled(master or artifact, texts, options.device)]
    known = 1 if fresh else 2  # it knows the task already
    length = options.max_length or int(knows.meta.details.get("max_length", 128))
    epochs = options.epochs or max(1.0, preset_epochs(len(examples)) / known)
    options = dataclasses.replace(options, epochs=epochs, max_length=length)
    return tuned(FinetuneJob(task, artifact, examples, dev, Path(output), options), log, progress_bar)


def knowing(model: Artifact, teacher: Artifact | None) -> Artifact:
    """Who knows the task that all depths of `model` are to learn: itself, or its teacher; refuses what cannot learn or teach."""
    if teacher is not None and teacher.meta.task not in TASKS:
        raise AlbertkitError(
            f"the teacher is not fine-tuned (it was made for {teacher.meta.task!r}), so it cannot label; name one that is"
        )
    if teacher is not None and teacher.meta.details.get("reads") == "vector":
        raise AlbertkitError(
            "the teacher is a head on frozen vectors, which cannot label here; name one that was fine-tuned without --freeze"
        )
    if model.config.options.static:
        raise AlbertkitError("this model is a static table, so there are no layers to train; choose one with layers")
    if model.meta.task not in TASKS and teacher is not None:
        return teacher
    if model.meta.task == "embed":
        raise AlbertkitError(
            "this model gives vectors, which `albertkit distill` already makes good at several depths; use depth=, or run  albertkit calibrate MODEL TEXTS  for early_exit="
        )
    if model.meta.details.get("reads") == "vector":
        raise AlbertkitError(
            "this model is a head on frozen vectors, so there are no layers to train; fine-tune without --freeze first"
        )
    if teacher is not None:
        same_answers(teacher, model)
    return model


def same_answers(teacher: Artifact, model: Artifact) -> None:
    """Refuse a teacher that answers in other words."""
    theirs, mine = (
        {"task": m.meta.task, "labels": sorted(m.meta.labels), "intents": sorted(m.meta.details.get("intents", ()))}
        for m in (teacher, model)
    )
    for name, value in mine.items():
        if theirs[name] != value:
            raise AlbertkitError(
                f"the teacher's {name} is {theirs[name]}, and that of the model {value}; take one that was fine-tuned on the same examples"
            )


def tuned(job: FinetuneJob, log: Callable[[str], None], progress_bar: bool) -> FinetuneResult:
    """A run for each seed; the best one is the result."""
    options, output, before = job.options, job.output, held_before(job.output)
    if options.dropout is not None:
        changed = {"hidden_dropout_prob": options.dropout, "attention_probs_dropout_prob": options.dropout}
        job = dataclasses.replace(job, model=dataclasses.replace(job.model, config=job.model.config.replace(**changed)))
    runs: list[dict[str, Any]] = []
    best: tuple[float, Artifact, FinetuneTask] | None = None
    for number in range(options.seeds):
        work, outcome, notes = _one(job, options.seed + number, log, progress_bar)
        if number == 0 and before not in (None, notes["dev"]):
            log("the best epoch of this folder was chosen on other held-out examples; scores are of the new ones")
        if outcome.model is None:
            raise AlbertkitError(f"stopped; the same command goes on from {output}")
        finished = read_artifact(outcome.model)
        runs.append({**notes, "metrics": outcome.metrics})
        score = outcome.metrics.get(work.selection_metric, 0.0)
        score = -score if lower_is_better(work.selection_metric) else score
        if best is None or score > best[0]:
            best = score, finished, work
    assert best is not None
    _, finished, work = best
    if len(runs) > 1:
        spread = summary([run["metrics"] for run in runs])
        meta = dataclasses.replace(finished.meta, metrics={**finished.meta.metrics, "dev over seeds": spread})
        finished = dataclasses.replace(finished, meta=meta)
    write_artifact(finished, output / "model", overwrite=(output / "model").exists())
    write_json(output / "runs.json", runs)
    write_report(output, work, finished, runs)
    return FinetuneResult(output / "model", finished.meta.metrics.get("dev", {}), runs)


def held_before(output: Path) -> str | None:
    """What tells the held-out examples of a finished training from others, if there is one."""
    try:
        return str(json.loads((output / "runs.json").read_bytes())[0]["dev"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def summary(metrics: list[dict[str, float]]) -> dict[str, list[float]]:
    """Mean and standard deviation of each metric."""
    return {
        name: [statistics.fmean(m[name] for m in metrics), statistics.stdev(m[name] for m in metrics)]
        for name in metrics[0]
    }


def weighted(task: Any, examples: Sequence[Any]) -> Any:
    """The task with a weight for each class: the rarer, the more."""
    if task.kind != "single":
        raise AlbertkitError("class weights are for texts with one class each; leave --class-weights away here")
    counts = Counter(str(e.label) for e in examples)
    weights = tuple(len(examples) / (len(task.labels) * counts[label]) for label in task.labels)
    return dataclasses.replace(task, class_weights=weights)


def work_of(job: FinetuneJob, settings: TrainSettings) -> FinetuneTask:
    """The work: at the full depth, or at every depth."""
    options = job.options
    given = job.task, job.model, job.examples, job.dev, settings
    if not isinstance(options, ElasticSettings) and not options.elastic:
        return FinetuneTask(*given, options.max_length, options.metric)
    if not job.task.can_exit_early:
        raise AlbertkitError("a model that writes needs its full depth for every word; leave elastic away")
    from albertkit.train.elastic import ElasticTask

    return ElasticTask(
        *given, options if isinstance(options, ElasticSettings) else ElasticSettings(**dataclasses.asdict(options))
    )


def _one(
    job: FinetuneJob, seed: int, log: Callable[[str], None], progress_bar: bool
) -> tuple[FinetuneTask, TrainResult, dict[str, Any]]:
    """One run, begun anew with another seed and half the rate as long as it collapses."""
    options, model = job.options, job.model
    rate = options.learning_rate or preset_learning_rate(model.config)
    collapsed, began = 0, time.perf_counter()
    while True:
        this = seed + 1000 * collapsed
        work = work_of(job, plan_of(options, model, 1, rate, this))
        work.check_metric()
        epochs = options.epochs or preset_epochs(len(work.features))
        work.settings = plan_of(options, model, max(1, round(work.batches * epochs)), rate, this, math.ceil(epochs))
        work.model.encoder.checkpointing = options.gradient_checkpointing
        outcome = train(
            work, work.settings, job.output / "runs" / f"seed-{this}", resume=True, log=log, progress_bar=progress_bar
        )
        seconds = time.perf_counter() - began
        held = hashlib.sha256(repr([(f.ids, f.target) for f in work.dev_features]).encode()).hexdigest()[:16]
        notes = {"seed": this, "rate": rate, "seconds": seconds, "collapsed": collapsed, "dev": held}
        why = collapse(work) if outcome.model is not None else None
        if why is None:
            return work, outcome, notes
        if collapsed >= options.restarts:
            log(f"{why}: collapsed, and no new start is left. {REMEDY}")
            return work, outcome, {**notes, "failed": why}
        collapsed += 1
        rate /= 2
        log(f"{why}: collapsed. Starting again with rate {rate:g} and another seed")


def plan_of(
    options: FinetuneSettings, model: Artifact, steps: int, rate: float, seed: int, evaluations: int = 1
) -> TrainSettings:
    """The loop's settings for one run: an evaluation and a checkpoint each epoch, the best one is the result."""
    return TrainSettings(
        steps=steps, batch_size=options.batch_size, micro_batch_size=options.micro_batch_size, learning_rate=rate, warmup_ratio=0.1, seed=seed,
        evaluations=evaluations, patience=options.patience, load_best=True, device=options.device, compile="no",
        tensorboard=False, keep_checkpoints=1,
    )  # fmt: skip


def collapse(work: FinetuneTask) -> str | None:
    """Why nothing was learnt, if so: every held-out example got the same answer, though they differ (of choices: all are as likely), or a chance one.

    Of intents with slots, the intents alone may be all the same.
    """
    if len(work.dev) <= 4 or len({repr(truth(example)) for example in work.dev}) < 2:
        return None
    if isinstance(work.task, ChooseTask):  # the likeliest of equal choices is chance, and looks like an answer
        chances: list[Any] = [result.probabilities for result in work.results]
        same = statistics.fmean(max(row) - min(row) for row in chances) < EVEN
    else:
        same = len({repr(work_answer(result)) for result in work.results}) == 1
    if same:
        return "the model answers the same to everything"
    if same_intent(work):
        return "the model gives every text the same intent"
    if work.task.kind == "regression":
        return "values are no nearer to the right ones than their mean" if only_the_mean(work) else None
    return "right answers are no likelier than by chance" if at_chance(work) else None


def same_intent(work: FinetuneTask) -> bool:
    """Whether results have intents, and all the same one, though those of the examples differ."""
    found = {result.intent for result in work.results if hasattr(result, "intent")}
    return len(found) == 1 < len({getattr(example, "intent", None) for example in work.dev})


def only_the_mean(work: FinetuneTask) -> bool:
    """Whether values found on held-out examples are as far from the right ones as their mean is, at the best of some sizes.

    Both are taken from their own mean, so that values that are all too high, yet in the right order, are no collapse.
    """
    known = [i for i, feature in enumerate(work.dev_features) if feature.target is not None]
    if len(known) < SOME:
        return False
    found = np.array([np.ravel(work.last_scores[i])[0] for i in known], np.float64)
    right = np.array([work.dev_features[i].target for i in known], np.float64)
    found, right = found - found.mean(), right - right.mean()
    nearest = min(((found / heat - right) ** 2).mean() for heat in HEATS)
    return bool(right.any() and nearest >= CHANCE * (right**2).mean())


def at_chance(work: FinetuneTask) -> bool:
    """Whether the loss on held-out examples is that of the shares of classes alone (one class a text, labels of words), or of equal choices; for several labels a text, see `only_shares`.

    The loss is that of the best of some temperatures, since a model that is too sure of itself may yet know much. The shares
    are those of the examples learnt from, with the weights of classes: what a head says that cannot tell texts apart.
    """
    task, choices = work.task, isinstance(work.task, ChooseTask)
    if len(work.dev) >= ENOUGH and task.kind == "multi":
        return only_shares(work)
    if len(work.dev) < ENOUGH or not (choices or isinstance(task, TagTask) or task.kind == "single"):
        return False
    rows, right = scored(work.last_scores, [f.target for f in work.dev_features], choices)
    chance = np.log(np.isfinite(rows).sum(1))
    if not choices:
        learnt = np.concatenate([np.ravel(f.target) for unit in work.features for f in unit])
        shares = np.bincount(learnt[learnt != IGNORE_INDEX], minlength=rows.shape[1]) + 1.0
        shares *= getattr(task, "class_weights", None) or 1.0
        chance = -np.log(shares / shares.sum())[right]
    places = np.arange(len(rows))
    losses = [(logsumexp(rows / heat, axis=1) - rows[places, right] / heat).mean() for heat in HEATS]
    return bool(min(losses) >= CHANCE * chance.mean())


def only_shares(work: FinetuneTask) -> bool:
    """Of texts with several labels: whether the loss on held-out examples is that of how frequent each label is.

    What scores say beyond their mean is added to the shares; else a model that knows much, and is too sure, would be above it.
    """
    known = [i for i, feature in enumerate(work.dev_features) if feature.target is not None]
    right = np.array([work.dev_features[i].target for i in known], np.float64)
    scores = np.array([work.last_scores[i] for i in known], np.float64)
    learnt = np.array([f.target for unit in work.features for f in unit], np.float64)
    often = (learnt.sum(0) + 1) / (len(learnt) + 2)
    shares, beyond = np.log(often / (1 - often)), scores - scores.mean(0)

    def loss(table: np.ndarray) -> float:
        return float((np.logaddexp(0, table) - right * table).mean())

    return min(loss(shares + beyond / heat) for heat in HEATS) >= CHANCE * loss(shares + 0 * beyond)


def scored(scores: Sequence[Any], targets: Sequence[Any], choices: bool) -> tuple[np.ndarray, np.ndarray]:
    """(n, classes) scores of what has a right answer, and the class of it; choices that a question does not have score -inf."""
    if choices:  # the first of each question has the target
        firsts = [i for i, target in enumerate(targets) if target is not None]
        parts = [np.ravel(scores[a:b]) for a, b in pairwise([*firsts, len(targets)])]
        wide = max(map(len, parts))
        rows = np.stack([np.pad(part, (0, wide - len(part)), constant_values=-np.inf) for part in parts])
        return rows.astype(np.float64), np.array([targets[i] for i in firsts])
    kept = [i for i, target in enumerate(targets) if target is not None]
    rows = np.concatenate([np.atleast_2d(scores[i]) for i in kept]).astype(np.float64)
    right = np.concatenate([np.ravel(targets[i]) for i in kept])
    return rows[right != IGNORE_INDEX], right[right != IGNORE_INDEX]


def work_answer(result: Any) -> Any:
    """What a result says, without how sure it is."""
    if hasattr(result, "intent"):
        return result.intent, tuple((s.start, s.end, s.label) for s in result.spans)
    for name in ("label", "index", "spans", "text"):
        if hasattr(result, name):
            value = getattr(result, name)
            return round(value, 4) if isinstance(value, float) else value
    return result
