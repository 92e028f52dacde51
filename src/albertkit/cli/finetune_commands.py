"""Commands that train and evaluate task models: finetune, evaluate, elastic, calibrate, distill.

In: arguments. Out: printed results of `train/` and `runtime/`. Commands that apply the models are in `use_commands.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli import arguments as cli
from albertkit.cli.console import echo, format_table, log, note, print_json, print_result, round_metrics
from albertkit.cli.pretrain_commands import default_budget, print_trained, read_shape, resume_option, run_output_option
from albertkit.errors import AlbertkitError, need
from albertkit.tasks.dataset import read_splits, split_examples
from albertkit.tasks.readers.labelled_files import ReadOptions
from albertkit.train.distill_data import VectorDistillSettings, parse_distill_settings
from albertkit.train.train_settings import ElasticSettings, FinetuneSettings, TrainSettings

if TYPE_CHECKING:
    from albertkit.artifact import Artifact, ArtifactMetadata
    from albertkit.runtime.calibration import ExitCalibration
    from albertkit.tokenizer import Tokenizer
    from albertkit.train.finetune_report import FinetuneResult

TASK_NAMES = ["classify", "tag", "answer", "choose", "match", "intent", "dialogue", "generate"]
AGREEMENTS = (0.9, 0.95, 0.98, 0.99, 0.995)
dev_option = cli.path_option("--dev", help="Held-out examples  [default: 10 % of TRAIN]")


@cli.command("albertkit finetune classify train.tsv --dev dev.tsv -o sentiment")
@click.argument("task", type=click.Choice(TASK_NAMES))
@cli.path_argument("train")
@run_output_option
@dev_option
@cli.option("-m", "--model", help="Folder or name of the base model  [default: a built-in English model]")
@cli.settings_options(settings=FinetuneSettings)
@cli.advanced_option(
    "--loss",
    help="match: cosent (scores or classes), contrastive (classes) or mnrl (positive pairs)"
    "  [default: cosent, or mnrl without labels].",
)
@cli.advanced_option("--stride", type=int, help="answer: tokens by which windows of a context overlap  [default: 128].")
@cli.advanced_option("--n-best", type=int, help="answer: candidate answers kept per question  [default: 20].")
@cli.settings_options(reading=ReadOptions)
def finetune(
    task: str, train: Path, settings: FinetuneSettings, reading: ReadOptions, **values: cli.OptionValue
) -> None:
    """Fine-tune a model for TASK on the labelled examples in TRAIN.

    \b
    classify   texts or pairs with a class, several classes or a number (csv, tsv, jsonl, parquet)
    tag        words with labels (CoNLL columns, CLUENER, jsonl)
    answer     questions about a text (SQuAD, CMRC)
    choose     multiple choice (RACE)
    match      vectors for search, from pairs with scores or classes, or from positive pairs
    intent     intents and slots (ATIS and SNIPS folders), or intents alone (CLINC150, tables)
    dialogue   dialogue state after each turn (WOZ)
    generate   target texts from source texts (csv, tsv, jsonl, parquet with columns source, target)

    The output folder contains model/, report.md and runs/. Rerun the command to resume. Other settings need --resume
    or --overwrite, or another folder.
    """
    from albertkit.train.finetune import finetune as run

    passed = {name: value for name, value in values.items() if value is not None}
    result = run(task, train, **passed, settings=replace(settings, progress_bar=True), log=log, **vars(reading))
    print_finetuned(result)


def print_finetuned(result: FinetuneResult) -> None:
    """The finished model, its metrics, and the number of examples that they were measured on."""
    size = {"dev_examples": result.dev_examples} if result.dev_examples else {}
    print_json({"model": str(result.model), **size, **round_metrics(result.metrics)})


@cli.command("albertkit evaluate -m sentiment test.tsv")
@cli.path_argument("test")
@cli.model_options(required=True, early_exit=True)
@cli.json_option
@cli.settings_options(reading=ReadOptions)
def evaluate(test: Path, model: cli.ModelOptions, as_json: bool, reading: ReadOptions) -> None:
    """Evaluate a fine-tuned model on the labelled examples in TEST. Runs without torch."""
    from albertkit.train.finetune import evaluate as run

    albert = model.open()
    result = run(albert, test, **model.depth_options(), options=reading, log=log)
    table = format_table([(name, f"{value:.4f}") for name, value in result.metrics.items()], indent=2)
    described = {"examples": result.examples, **result.metrics}
    print_result(as_json, described, f"{result.examples:,} examples", table)


@cli.command("albertkit elastic sentiment train.tsv --dev dev.tsv -o sentiment-elastic")
@cli.path_argument("model")
@cli.path_argument("train")
@run_output_option
@dev_option
@cli.path_option(
    "--texts",
    help="Unlabelled texts, one per line (a tab separates the texts of a pair). MODEL labels them at full depth.",
)
@cli.path_option("--teacher", help="A better model of the same task, to label --texts. MODEL may then be pre-trained.")
@cli.settings_options(settings=ElasticSettings, reading=ReadOptions)
def elastic(
    model: Path, train: Path, output: Path, settings: ElasticSettings, reading: ReadOptions, **files: cli.OptionValue
) -> None:
    """Train MODEL on TRAIN for every depth, with one head for all depths.

    The result accepts `--depth 4`, which applies four layers, and `--early-exit 99%`, which stops when the prediction
    is confident. The exit thresholds are calibrated on held-out examples, so that 99 of 100 predictions agree with
    those of the full depth. The output folder contains model/, report.md and runs/. Rerun the command to resume.

    MODEL must be fine-tuned, or pre-trained if you pass a --teacher. For an elastic MLM use
    `albertkit pretrain --depths 3,6,9`. For elastic vectors use `albertkit distill`.
    """
    need("torch", "train", "training")
    from albertkit.artifact import model_folder, read_metadata
    from albertkit.interop.convert import open_model
    from albertkit.runtime.calibration import ExitCalibration
    from albertkit.train.elastic import UnlabelledTexts, finetune_elastic, task_source

    dev, texts, teacher = files["dev"], files["texts"], files["teacher"]
    start = open_model(model)
    if start.metadata.task in ("pretrain", "embed") and teacher is None:
        raise AlbertkitError(
            f"{model} is not fine-tuned for a task. Fine-tune it, or name a --teacher. For an elastic MLM use  "
            f"albertkit pretrain SHARDS -m {model} --depths 3,6,9.  For elastic vectors use  albertkit "
            f"distill TEACHER SHARDS -m {model} --depths 3,6,9,12,  and then  albertkit calibrate."
        )
    if teacher is not None and texts is None:
        raise AlbertkitError(f"--teacher {teacher} was passed without texts to label. Add --texts.")
    labeller = None if teacher is None else open_model(teacher)
    unlabelled = (
        None if texts is None else UnlabelledTexts(list(cli.read_file(texts, reading.text_column) or []), labeller)
    )
    if unlabelled is not None and not unlabelled.texts:
        raise AlbertkitError(f"{texts} contains no text. Write one text per line.")
    task = task_source(start, labeller).metadata.task
    parts = read_splits(task, {"train": train, **({"dev": dev} if dev else {})}, reading, log)
    if dev is None:
        parts["train"], parts["dev"] = split_examples(parts["train"])
    output.mkdir(parents=True, exist_ok=True)
    settings = replace(settings, progress_bar=True)
    result = finetune_elastic(start, parts["train"], parts["dev"], output, settings, unlabelled, log)
    print_finetuned(result)
    stored = read_metadata(model_folder(result.model))[0].details.get("early_exit")
    if stored is None:
        note("too few held-out examples to calibrate early exit. Run  albertkit calibrate  with more examples.")
    else:
        echo("\n".join(describe_calibration(ExitCalibration.from_dict(stored))))


@cli.command("albertkit calibrate sentiment-int8 dev.tsv")
@cli.path_argument("model")
@cli.path_argument("dev")
@cli.option("--exit-depths", help="Depths at which texts may exit, such as 3,6,9  [default: all, or those of distill]")
@cli.json_option
@cli.settings_options(reading=ReadOptions)
def calibrate(model: Path, dev: Path, exit_depths: str | None, as_json: bool, reading: ReadOptions) -> None:
    """Calibrate the early exit of MODEL on the held-out examples in DEV.

    The thresholds are chosen so that early predictions agree with those of the full depth. They are written to MODEL's
    albertkit.json and used by `--early-exit 99%`. For a model that computes vectors, DEV is a file with texts.
    Calibrate again after `quantize`.
    """
    from albertkit.artifact import model_folder, read_metadata
    from albertkit.runtime.calibration import calibrate as run
    from albertkit.tasks import TASKS
    from albertkit.train.train_settings import parse_integers

    folder = model_folder(model)
    task = read_metadata(folder)[0].task
    if task in TASKS:
        examples = read_splits(task, {"dev": dev}, reading, note)["dev"]
    else:
        examples = cli.read_file(dev, reading.text_column) or []
    calibration = run(folder, examples, parse_integers("exit_depths", exit_depths) if exit_depths else None)
    print_result(as_json, calibration.to_dict(), *describe_calibration(calibration))


def describe_calibration(calibration: ExitCalibration) -> Iterator[str]:
    """One line per agreement with the full depth."""
    yield f"{calibration.texts:,} held-out texts, compared with depth {calibration.depth}; {calibration.about}"
    for agreement in AGREEMENTS:
        risk = calibration.risk(agreement)
        if risk is None:
            yield f"  --early-exit {agreement:.1%}  is not available: too few texts, or too low agreement"
            continue
        depth = next(mean for other, _, mean in calibration.risks if other == risk)
        yield f"  --early-exit {agreement:.1%}  {depth:.2f} layers per text, {calibration.depth / depth:.2f} × fewer"


@cli.command("albertkit distill sentiment/ train.tsv --what logits,hidden:0.5 --shape mini -o small")
@click.argument("sources", nargs=-1, required=True, metavar="TEACHER... DATA")
@run_output_option
@cli.option("-m", "--model", help="The student's base model, a folder or name.")
@cli.option("--shape", help="Shape of a new student: a preset, folder or JSON file.")
@cli.option("--what", default="vectors", help="Objectives: vectors, logits, hidden; with weights: logits,hidden:0.5.")
@cli.option("--labels", default=0.5, help="With logits: weight of the loss on the labels.")
@cli.option("--temperature", default=2.0, help="With logits: softmax temperature of the distillation loss.")
@cli.path_option("--dev", help="Held-out examples or texts  [default: 10 % of DATA]")
@cli.option("--max-length", default=128, type=click.IntRange(8, 100_000), help="Longest input, in tokens.")
@cli.option("--max-unknown", default=0.1, help="Largest share of texts that the student cannot read; 1 accepts all.")
@resume_option
@cli.advanced_option("--workers", default=1, help="Processes that decode the ids of a corpus.")
@default_budget
@cli.settings_options(training=TrainSettings, goals=VectorDistillSettings, reading=ReadOptions)
def distill(
    sources: tuple[str, ...],
    output: Path,
    training: TrainSettings,
    goals: VectorDistillSettings,
    reading: ReadOptions,
    **values: cli.OptionValue,
) -> None:
    """Distil one or more TEACHERs into a student on DATA. The student is --model, or a new model of --shape.

    \b
    --what vectors     sentence vectors of one or more teachers (gte:1.5 sets a teacher's weight)
    --what logits      logits of a fine-tuned ALBERT; DATA are examples of its task
    --what hidden      hidden states: the token embeddings and the output of every layer

    DATA is a file with texts. For vectors it may also be a corpus folder; the student is then trained at
    every depth of --depths and every width of --widths. For logits, DATA is labelled examples as for finetune. If the
    task is to classify single texts, a .txt file without labels also works.

    Teachers are ALBERT models. For vectors, BERT-like encoders with config.json, model.safetensors and tokenizer.json
    also work; they need transformers. For hidden, the student must have the teacher's vocabulary. The teacher's
    vectors are cached in OUTPUT/teacher.

    The budget is one of --steps, --tokens and --minutes (default: 10 minutes).
    """
    need("torch", "train", "distillation")
    from albertkit.artifact import ArtifactMetadata
    from albertkit.data.shards import Shards
    from albertkit.interop.convert import open_stored
    from albertkit.train.distill import CorpusDistillation, DistillJob
    from albertkit.train.distill import distill as run
    from albertkit.train.distill_data import is_corpus, read_teacher_data
    from albertkit.train.teachers import TeacherMixture, is_albert, teacher_tokenizer

    if len(sources) < 2:
        raise AlbertkitError(f"Only {sources[0]} was passed: distill needs a teacher and data. Name both.")
    data, resume = Path(sources[-1]), values["resume"]
    teachers = TeacherMixture(*zip(*map(parse_teacher, sources[:-1]), strict=True))
    labels = values["labels"] if "logits" in values["what"] else 0.0
    settings = parse_distill_settings(values["what"], labels, values["temperature"])
    if is_corpus(data) and settings.vectors and not settings.logits and not settings.hidden:
        student = open_student(values, training.seed, Shards.open(data).tokenizer)
        work = CorpusDistillation(teachers, data, training, goals, values["workers"])
        print_trained(work.run(student, output, resume, log))
        return
    if goals != VectorDistillSettings():
        raise AlbertkitError("--depths and --widths need --what vectors and a corpus folder. Omit them.")
    teacher = teachers.folders[0]
    metadata = open_stored(teacher).metadata if is_albert(teacher) else ArtifactMetadata()
    task = "embed" if metadata.task == "embed" else "pretrain"
    student_metadata = ArtifactMetadata(task=task, pooling=metadata.pooling, normalize=metadata.normalize)
    student = open_student(values, training.seed, lambda: teacher_tokenizer(teacher), student_metadata)
    settings, examples = read_teacher_data(teacher, metadata, (data, values["dev"]), settings, reading, log)
    job = DistillJob(teachers, student, examples, settings, training, values["max_length"], values["max_unknown"])
    print_trained(run(job, output, resume, log, progress_bar=sys.stderr.isatty()))


def parse_teacher(name: str) -> tuple[Path, float]:
    """FOLDER or FOLDER:WEIGHT."""
    path, colon, number = name.rpartition(":")
    if not colon or Path(name).exists():
        return Path(name), 1.0
    try:
        weight = float(number)
    except ValueError:
        raise AlbertkitError(
            f"teacher {name!r} is neither a folder nor FOLDER:WEIGHT. Pass a teacher such as gte or gte:1.5."
        ) from None
    if not 0 < weight < 1e6:
        raise AlbertkitError(f"teacher {name!r} has weight {weight:g}: the weight must be above 0. Pass {path}:1.5.")
    return Path(path), weight


def open_student(
    values: dict[str, Any], seed: int, tokenizer: Callable[[], Tokenizer], metadata: ArtifactMetadata | None = None
) -> Artifact:
    """The model of --model, or a new model of --shape with a tokenizer."""
    if (values["model"] is None) == (values["shape"] is None):
        raise AlbertkitError("The student is either --model or --shape. Pass one of them.")
    if values["model"] is not None:
        from albertkit.builtin import resolve
        from albertkit.interop.convert import open_model

        return open_model(resolve(values["model"]))
    from albertkit.train.distill import new_student

    return new_student(read_shape(values["shape"]), tokenizer(), seed, metadata)
