"""`from albertkit import finetune, evaluate`: train a model for a task, and measure it. No torch until it is needed.

In: a task's name, files or lists of examples, a folder. Out: `FinetuneResult`, and the folder:

    OUTPUT/model/          the artifact of the best run
    OUTPUT/report.md       metrics, worst errors, time and memory; confusion.png beside it
    OUTPUT/runs/seed-0/    each run's metrics and checkpoints (`loop.py`)

    OUTPUT/settings.json   the settings, which a later call in this folder is compared with

Next: `finetune_runs.py` trains for each seed; `finetune_task.py` is its task. `frozen_head.py` trains a head only.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from albertkit import builtin
from albertkit.albert import Albert
from albertkit.artifact import Artifact
from albertkit.errors import AlbertkitError, check_path, check_string, check_type, nearest, need
from albertkit.interop.convert import open_model
from albertkit.runtime.early_exit import EarlyExit, last_exit_depth
from albertkit.runtime.predict import predict
from albertkit.runtime.runtime_model import Depth
from albertkit.tasks import TASKS, make_task
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.dataset import check_known_labels, check_labels, check_overlap, read_splits, split_examples
from albertkit.tasks.examples import TextExample
from albertkit.tasks.readers import ReadOptions
from albertkit.tasks.task import Task
from albertkit.train.finetune_report import FinetuneResult, warn_of_few
from albertkit.train.finetune_runs import FAILURES, FinetuneJob, run_seeds
from albertkit.train.frozen_head import choose_base_model, draw_shots, train_frozen_head
from albertkit.train.presets import FEW_EXAMPLES
from albertkit.train.run_lock import lock_run
from albertkit.train.run_settings import check_not_deleted, check_output, write_settings
from albertkit.train.train_settings import FinetuneSettings, Log

if TYPE_CHECKING:
    from albertkit.train.task_heads import HeadClass

Examples = Path | str | Sequence[Any]
Option = str | float | bool | None


def _no_log(text: str) -> None:
    """The default of `log`. What must not be missed is then a warning."""


def finetune(
    task: str,
    train: Examples,
    dev: Examples | None = None,
    *,
    output: Path | str,
    model: Path | str | None = None,
    settings: FinetuneSettings | None = None,
    head: HeadClass | None = None,
    log: Log = _no_log,
    **options: Option,
) -> FinetuneResult:
    """Fine-tune a model for a task, as `albertkit finetune` does. Call it again to resume.

    A call with other settings and the same output is an error, unless you pass `resume=True` or `overwrite=True`.

    train, dev: files, or lists of examples (`albertkit.tasks.examples`); without dev, one in ten of train is held out.
    model: a folder or a name; the default is a built-in model. log: called with one line at a time.
    head: a `torch.nn.Module` class in place of the built-in head, called with the hidden size and the number of outputs
    (docs/guides/own-layers.md).
    options: fields of `FinetuneSettings` (instead of `settings`) and `ReadOptions`, and options of the task, by name.

    >>> from albertkit import Albert, finetune
    >>> result = finetune("classify", "examples/messages.tsv", output="messages", freeze=True)
    >>> Albert(result.model).classify("The best coffee machine I ever had!").label
    'praise'
    """
    check_path("output", output)
    check_type("settings", settings, (FinetuneSettings, type(None)), "FinetuneSettings, or each option by its name")
    check_type("log", log, (Callable,), "a function such as print")  # type: ignore[arg-type]
    learning, reading, task_options = _split_options(task, options)
    settings = dataclasses.replace(settings or FinetuneSettings(), **learning)
    need(*(("sklearn", "frozen") if settings.is_frozen else ("torch", "train")), "fine-tuning")
    sources = {"train": train} if dev is None else {"train": train, "dev": dev}
    if reading != ReadOptions() and not any(isinstance(source, str | Path) for source in sources.values()):
        raise AlbertkitError("an option for reading files was passed with lists of examples. Omit it, or pass files.")
    parts = read_splits(task, sources, reading, log)
    examples, held_out = parts["train"], parts.get("dev", [])
    notes = check_labels(examples, held_out) if log is _no_log else ()
    if dev is None:
        if not settings.nearest:
            examples, held_out = split_examples(examples)
        notes = (*notes, *check_overlap(examples, held_out))
    for note in notes:
        log(note)
        if log is _no_log:
            warnings.warn(note, stacklevel=2)
    if task == "classify" and not settings.is_frozen:
        if len(examples) < FEW_EXAMPLES and all(isinstance(e.label, str) and not e.pair for e in examples):
            log(f"{len(examples)} examples are few for training the whole model; --freeze may give better results")
        if reading.separator is not None:
            task_options["separator"] = reading.separator
    with lock_run(Path(output)):
        done = finetune_examples(task, examples, held_out, output, model, settings, log, head, **task_options)
    warn_of_few(done.dev_examples)
    failed = next((run for run in done.runs if run.get("failed")), None)
    if failed and log is _no_log:
        warnings.warn(
            f"the training {FAILURES[failed['failure']]}: {failed['failed']}. {failed['remedy']}", stacklevel=2
        )
    return done


def _split_options(task: str, options: Mapping[str, Option]) -> tuple[dict[str, Any], ReadOptions, dict[str, Any]]:
    """Fields of `FinetuneSettings`, `ReadOptions`, and options of the task."""
    check_string("task", task)
    if task not in TASKS:
        raise AlbertkitError(f"unknown task {task!r}{nearest(str(task), TASKS)}. Choose one of {', '.join(TASKS)}.")
    learning, reading = ({field.name for field in dataclasses.fields(c)} for c in (FinetuneSettings, ReadOptions))
    option_names = (*sorted(learning | reading), *TASKS[task].setting_names)
    unknown = next((name for name in options if name not in option_names), None)
    if unknown is not None:
        hint = nearest(unknown, option_names)
        raise AlbertkitError(f"{task} has no option {unknown!r}{hint}. Choose one of {', '.join(option_names)}.")
    settings, read = ({n: value for n, value in options.items() if n in names} for names in (learning, reading))
    task_options = {name: value for name, value in options.items() if name not in learning | reading}
    return settings, ReadOptions(**read), task_options  # type: ignore[arg-type]


def finetune_examples(
    task: str,
    train: Sequence[Any],
    dev: Sequence[Any],
    output: Path | str,
    model: Artifact | Path | str | None = None,
    settings: FinetuneSettings | None = None,
    log: Log = lambda text: None,
    head: HeadClass | None = None,
    **task_options: Option,
) -> FinetuneResult:
    """`finetune` for lists of checked examples; `dev` may be empty."""
    settings, output = settings or FinetuneSettings(), Path(output)
    output.mkdir(parents=True, exist_ok=True)
    check_not_deleted(model, output, settings)
    if settings.is_frozen:
        folder = _check_frozen(model, head, task_options)
        check_output(output, task, settings, log)
        result = train_frozen_head(task, train, dev, output, folder, settings)
        write_settings(output, task, settings)
        return result
    if task == "intent" and all(isinstance(e, TextExample) for e in train):
        task = "classify"  # intents without slots
        if "overlap" in task_options:
            raise AlbertkitError("overlap applies to slots in long texts, but these intents have no slots. Omit it.")
    if model is None:
        name, reason = choose_base_model(task, train, settings.max_length)
        log(f"starting from {name}: {reason}")
        model = builtin.resolve(name)
    artifact = model if isinstance(model, Artifact) else open_model(model)
    if settings.shots:
        if task != "classify":
            raise AlbertkitError(
                f"shots={settings.shots} is not available: {task} has no classes to draw from. Omit --shots."
            )
        train = draw_shots(train, settings.shots, settings.seed)
    training_task = _make_task(task, train, settings, head, task_options)
    return run_seeds(FinetuneJob(training_task, artifact, train, dev, output, settings), log)


def _check_frozen(
    model: Artifact | Path | str | None, head: HeadClass | None, task_options: Mapping[str, Option]
) -> Path | str | None:
    """The folder or name of the model, after a check that a head on its frozen vectors can be trained."""
    if head is not None:
        raise AlbertkitError("head and freeze exclude each other: a head on frozen vectors is linear. Omit one.")
    if task_options:
        raise AlbertkitError(f"{next(iter(task_options))} is not an option of a head on frozen vectors. Omit it.")
    if isinstance(model, Artifact):
        raise AlbertkitError(
            "a head on frozen vectors needs a model folder, not a model in memory. Write the model first."
        )
    return model


def _make_task(
    name: str,
    train: Sequence[Any],
    settings: FinetuneSettings,
    head: HeadClass | None,
    task_options: Mapping[str, Option],
) -> Task:
    """The task of the training examples, with class weights and a custom head where they were passed."""
    options = dict(task_options)
    if name == "generate":
        options = {"target_length": settings.target_length, "label_smoothing": settings.label_smoothing, **options}
    elif settings.label_smoothing or settings.target_length != FinetuneSettings.target_length:
        raise AlbertkitError(
            f"target_length and label_smoothing are for the task generate, not {name}. Omit --target-length and "
            "--label-smoothing."
        )
    task = make_task(name, train, **options)
    if settings.class_weights:
        task = _with_class_weights(task, train)
    if head is not None:
        from albertkit.train.task_heads import with_head

        task = with_head(task, head)
    return task


def _with_class_weights(task: Task, examples: Sequence[TextExample]) -> ClassifyTask:
    """The task with a weight for each class, larger for rarer ones."""
    if not isinstance(task, ClassifyTask) or task.kind != "single":
        raise AlbertkitError("class weights need texts with one class each. Omit --class-weights.")
    counts = Counter(str(e.label) for e in examples)
    weights = tuple(len(examples) / (len(task.labels) * counts[label]) for label in task.labels)
    return dataclasses.replace(task, class_weights=weights)


# Evaluating ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluationResult:
    """The metrics of a model on labelled examples.

    >>> from albertkit import EvaluationResult
    >>> EvaluationResult(examples=200, metrics={"accuracy": 0.91}).metrics["accuracy"]
    0.91
    """

    examples: int
    metrics: dict[str, float]


def evaluate(
    model: Albert | Path | str,
    test: Examples,
    *,
    depth: Depth | None = None,
    early_exit: EarlyExit = None,
    options: ReadOptions | None = None,
    log: Log = _no_log,
) -> EvaluationResult:
    """Measure a fine-tuned model on labelled examples: a file, or a list of `albertkit.tasks.examples`.

    >>> from albertkit import evaluate
    >>> evaluate("sentiment", "test.tsv").metrics["accuracy"]  # doctest: +SKIP
    """
    check_type("options", options, (ReadOptions, type(None)), "ReadOptions")
    albert = model if isinstance(model, Albert) else Albert(model)
    task, options = albert.metadata.task, options or ReadOptions()
    if task not in TASKS:
        raise AlbertkitError(f"this model was made for {task!r}, which has no metrics. Fine-tune it for a task first.")
    if task == "generate":  # fail before the predictions are computed
        need("rouge_score", "generate", "measuring generated texts")
        need("sacrebleu", "generate", "measuring generated texts")
    if isinstance(albert.task, ClassifyTask) and options.kind == "auto" and options.separator is None:
        options = dataclasses.replace(options, kind=albert.task.kind, separator=albert.task.separator)
    examples = read_splits(task, {"test": test}, options, log)["test"]
    for text in check_known_labels(albert.task, examples):
        log(text)
        if log is _no_log:
            warnings.warn(text, stacklevel=2)
    results = predict(albert, examples, task, depth, early_exit)
    metrics = dict(albert.task.measure(results, examples))
    if early_exit is not None and results:
        metrics["mean_depth"] = sum(result.depth for result in results) / len(results)
        metrics["speedup_in_layers"] = last_exit_depth(albert, depth) / metrics["mean_depth"]
    return EvaluationResult(len(examples), metrics)
