"""Commands that train and measure task models: finetune, evaluate, elastic, calibrate.

In: arguments. Out: calls of `train/` and `runtime/`, printed. Commands that use the models are in `task_commands.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli.arguments import (
    PATH,
    ModelOptions,
    OptionValue,
    command,
    json_option,
    model_options,
    option,
    settings_options,
    take_settings,
)
from albertkit.cli.console import log, note, print_json, print_table
from albertkit.cli.pretrain_commands import DEFAULT_MINUTES
from albertkit.cli.task_commands import report_depths
from albertkit.errors import AlbertkitError, need
from albertkit.settings import setting
from albertkit.tasks.readers.labelled_files import ReadOptions
from albertkit.tasks.splits import split_examples
from albertkit.tasks.validate import read_parts
from albertkit.text_reader import read_texts
from albertkit.train.train_settings import ElasticSettings, FinetuneSettings

if TYPE_CHECKING:
    from albertkit.artifact import Artifact
    from albertkit.runtime.calibration import ExitCalibration

TASK_NAMES = ["classify", "tag", "answer", "choose", "match", "intent", "dialogue", "generate"]
AGREEMENTS = (0.9, 0.95, 0.98, 0.99, 0.995)
dev_option = option("--dev", type=PATH, help="Held-out examples  [default: one in ten of TRAIN]")
run_output_option = option("-o", "--output", type=PATH, required=True, help="Folder for runs, report and model.")


@dataclass(frozen=True)
class TaskSettings:
    """Settings that only some tasks have; None keeps the task's default."""

    loss: str | None = setting(
        None,
        "match: cosent (scores or classes), contrastive (classes) or mnrl (positive pairs)"
        "  [default: cosent, or mnrl without labels].",
        advanced=True,
    )
    stride: int | None = setting(
        None, "answer: tokens shared by two windows of a long context  [default: 128].", advanced=True
    )
    n_best: int | None = setting(None, "answer: answers kept per question  [default: 20].", advanced=True)


@command(example="albertkit finetune classify train.tsv --dev dev.tsv -o sentiment")
@click.argument("task", type=click.Choice(TASK_NAMES))
@click.argument("train", type=PATH)
@run_output_option
@dev_option
@option("-m", "--model", help="Model to start from, a folder or a name  [default: a built-in English model]")
@settings_options(FinetuneSettings, TaskSettings, ReadOptions)
def finetune(
    task: str, train: Path, dev: Path | None, output: Path, model: str | None, **settings: OptionValue
) -> None:
    """Fine-tune a model for TASK on the labelled examples in TRAIN.

    \b
    classify   texts or pairs with a class, several classes or a number (csv, tsv, jsonl, parquet)
    tag        words with labels (CoNLL columns, CLUENER, jsonl)
    answer     questions about a text (SQuAD, CMRC)
    choose     multiple choice (RACE)
    match      pairs with scores or classes, or positive pairs, to vectors for search
    intent     intents and slots (ATIS and SNIPS folders), or intents alone (CLINC150, tables)
    dialogue   dialogue turns (WOZ), to the state after each
    generate   a source and the text to generate (csv, tsv, jsonl, parquet with columns source, target)

    The output folder then has model/, report.md and runs/. Rerun the command to resume.
    """
    from albertkit.train.finetune import finetune as run

    unset = [field.name for field in fields(TaskSettings) if settings[field.name] is None]
    for name in unset:
        del settings[name]
    result = run(task, train, dev, output=output, model=model, log=log, progress_bar=True, **settings)
    print_json({"model": str(result.model), **result.metrics})


@command(example="albertkit evaluate -m sentiment test.tsv")
@click.argument("test", type=PATH)
@model_options(required=True, early_exit=True)
@json_option
@settings_options(ReadOptions)
def evaluate(test: Path, model: ModelOptions, as_json: bool, **reading: OptionValue) -> None:
    """Measure a fine-tuned model on the labelled examples in TEST, on the torch-free runtime."""
    from albertkit.train.evaluation import evaluate as run

    albert, options = model.open(), take_settings(ReadOptions, reading)
    result = run(albert, test, depth=model.depth, early_exit=model.early_exit, options=options, log=log)
    if as_json:
        print_json({"examples": result.examples, **result.metrics})
        return
    click.echo(f"{result.examples:,} examples")
    print_table([(name, f"{value:.4f}") for name, value in result.metrics.items()], indent=2)
    report_depths(albert, (), model)


@command(example="albertkit elastic sentiment train.tsv --dev dev.tsv -o sentiment-elastic")
@click.argument("model", type=PATH)
@click.argument("train", type=PATH)
@run_output_option
@dev_option
@option(
    "--texts",
    type=PATH,
    help="Unlabelled texts, one per line (a tab between the texts of a pair); MODEL labels them at full depth.",
)
@option("--teacher", type=PATH, help="A better model for the same task, to label --texts. MODEL may then have no task.")
@option("--minutes", type=float, help="For a pre-trained MODEL: budget in minutes  [default: 10]")
@settings_options(ElasticSettings, ReadOptions)
def elastic(
    model: Path, train: Path, output: Path, dev: Path | None, minutes: float | None, **values: OptionValue
) -> None:
    """Train MODEL on TRAIN until every depth is a good model, with one head for all depths.

    Afterwards `--depth 4` applies four layers, and `--early-exit 99%` stops as soon as the prediction is confident: the
    thresholds are chosen on held-out examples so that 99 of 100 agree with the full depth. The output folder then has
    model/, report.md and runs/. Rerun the command to resume.

    MODEL is fine-tuned, or pre-trained if there is a --teacher. For a pre-trained MODEL without a teacher, TRAIN is the
    folder that `albertkit corpus` wrote, and masked language modelling is trained at every depth. Models for vectors
    become elastic with `albertkit distill`.
    """
    need("torch", "train", "training")
    from albertkit.interop.convert import open_model
    from albertkit.train.elastic import task_source

    settings, reading = take_settings(ElasticSettings, values), take_settings(ReadOptions, values)
    start, texts, teacher = open_model(model), values["texts"], values["teacher"]
    if start.metadata.task == "pretrain" and teacher is None:
        if dev is not None or texts is not None or settings.epochs is not None:
            raise AlbertkitError(
                "--dev, --texts and --epochs are for tasks, and this model is pre-trained. "
                "Omit them and pass --minutes, or name a fine-tuned --teacher."
            )
        pretrain_all_depths(start, train, output, settings, minutes)
        return
    if minutes is not None:
        raise AlbertkitError("--minutes is for masked language modelling; a task is trained for --epochs. Omit it.")
    if start.metadata.task == "embed" and teacher is None:
        raise AlbertkitError(
            f"{model} computes vectors, which become elastic from a teacher:  albertkit distill TEACHER SHARDS "
            f"-m {model} --depths 3,6,9,12. Then  albertkit calibrate  finds when texts may exit."
        )
    if teacher is not None and texts is None:
        raise AlbertkitError(f"--teacher {teacher} labels texts, and there are none. Add --texts.")
    labeller = None if teacher is None else open_model(teacher)
    unlabelled = list(read_texts(texts)) if texts else []
    if texts is not None and not unlabelled:
        raise AlbertkitError(f"{texts} contains no text. Write one text per line.")
    task = task_source(start, labeller).metadata.task
    parts = read_parts(task, {"train": train, **({"dev": dev} if dev else {})}, reading, log)
    if dev is None:
        parts["train"], parts["dev"] = split_examples(parts["train"])
    train_elastic(start, parts, output, settings, unlabelled, labeller)


def train_elastic(
    start: Artifact,
    parts: dict[str, list[Any]],
    output: Path,
    settings: ElasticSettings,
    texts: list[str],
    teacher: Artifact | None,
) -> None:
    """Every depth of a task, with unlabelled texts that a teacher labels."""
    from albertkit.artifact import model_folder, read_metadata
    from albertkit.runtime.calibration import ExitCalibration
    from albertkit.train.elastic import UnlabelledTexts, finetune_elastic

    output.mkdir(parents=True, exist_ok=True)
    unlabelled = UnlabelledTexts(texts, teacher) if texts else None
    settings = replace(settings, progress_bar=True)
    result = finetune_elastic(start, parts["train"], parts["dev"], output, settings, unlabelled, log)
    print_json({"model": str(result.model), **result.metrics})
    stored = read_metadata(model_folder(result.model))[0].details.get("early_exit")
    if stored is None:
        note("too few held-out examples to calibrate early exit; run  albertkit calibrate  with more")
    else:
        print_calibration(ExitCalibration.from_dict(stored))


def pretrain_all_depths(
    start: Artifact, shards: Path, output: Path, elastic: ElasticSettings, minutes: float | None
) -> None:
    """Masked language modelling at every depth: a depth is drawn for every second training step."""
    from albertkit.train.loop import train
    from albertkit.train.pretrain import PretrainTask
    from albertkit.train.train_settings import PretrainSettings, TrainSettings

    if not (shards / "manifest.json").is_file():
        raise AlbertkitError(
            f"{shards} is not a corpus folder, which a pre-trained model needs. "
            "Make one with  albertkit corpus, or fine-tune the model first."
        )
    depths = ",".join(str(depth) for depth in range(1, start.config.num_hidden_layers))
    length = str(min(128, start.config.max_position_embeddings))
    goals = PretrainSettings(lengths=length, depths=depths, consistency_weight=elastic.consistency_weight)
    settings = TrainSettings(
        minutes=minutes or DEFAULT_MINUTES,
        batch_size=elastic.batch_size,
        micro_batch_size=elastic.micro_batch_size,
        learning_rate=elastic.learning_rate,
        seed=elastic.seed,
        device=elastic.device,
    )
    task = PretrainTask(shards, start.config, settings, goals, start)
    result = train(task, settings, output, resume=True, log=log, progress_bar=True)
    if result.model is not None:
        print_json({"model": str(result.model), **result.metrics})


@command(example="albertkit calibrate sentiment-int8 dev.tsv")
@click.argument("model", type=PATH)
@click.argument("dev", type=PATH)
@option("--exit-depths", help="Depths at which texts may exit, such as 3,6,9  [default: all, or those of distill]")
@json_option
@settings_options(ReadOptions)
def calibrate(model: Path, dev: Path, exit_depths: str | None, as_json: bool, **values: OptionValue) -> None:
    """Find when texts may exit MODEL early and still agree with its full depth, on the held-out examples in DEV.

    For a model that computes vectors, DEV is a file with one text per line. The thresholds are written into MODEL's
    albertkit.json, for `--early-exit 99%`. Calibrate again after `quantize`.
    """
    from albertkit.artifact import model_folder, read_metadata
    from albertkit.runtime.calibration import calibrate as run
    from albertkit.tasks import TASKS
    from albertkit.train.train_settings import parse_integers

    folder = model_folder(model)
    task = read_metadata(folder)[0].task
    if task in TASKS:
        examples = read_parts(task, {"dev": dev}, take_settings(ReadOptions, values), note)["dev"]
    else:
        examples = list(read_texts(dev))
    calibration = run(folder, examples, parse_integers("exit_depths", exit_depths) if exit_depths else None)
    if as_json:
        print_json(calibration.to_dict())
    else:
        print_calibration(calibration)


def print_calibration(calibration: ExitCalibration) -> None:
    """One line per agreement with the full depth."""
    click.echo(f"{calibration.texts:,} held-out texts, compared with depth {calibration.depth}; {calibration.about}")
    for agreement in AGREEMENTS:
        risk = calibration.risk(agreement)
        if risk is None:
            click.echo(f"  --early-exit {agreement:.1%}  is not possible: too few texts, or too few agree")
            continue
        depth = next(mean for other, _, mean in calibration.risks if other == risk)
        fewer = calibration.depth / depth
        click.echo(f"  --early-exit {agreement:.1%}  {depth:.2f} layers per text, {fewer:.2f} × fewer")
