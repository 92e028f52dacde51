"""The command distill: a student of any shape is trained to imitate one or more teachers.

In: arguments. Out: calls of `train/distill.py` or `train/distill.py`, printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli.arguments import PATH, OptionValue, advanced_option, command, option, settings_options, take_settings
from albertkit.cli.console import log, print_json
from albertkit.cli.pretrain_commands import read_shape, resume_option, set_default_budget
from albertkit.errors import AlbertkitError, need
from albertkit.tasks.readers.labelled_files import ReadOptions
from albertkit.train.distill_settings import VectorDistillSettings, parse_distill_settings
from albertkit.train.train_settings import TrainSettings

if TYPE_CHECKING:
    from albertkit.artifact import Artifact, ArtifactMetadata
    from albertkit.tokenizer import Tokenizer
    from albertkit.train.distill_settings import DistillSettings
    from albertkit.train.loop import TrainResult
    from albertkit.train.teachers import TeacherMixture


@command(example="albertkit distill sentiment/ train.tsv --what logits,hidden:0.5 --shape mini -o small")
@click.argument("sources", nargs=-1, required=True, metavar="TEACHER... DATA")
@option("-o", "--output", type=PATH, required=True, help="Folder for checkpoints, metrics and the model.")
@option("-m", "--model", help="The student: a model folder or name to start from.")
@option("--shape", help="The student: a new model of this preset, folder or JSON file.")
@option(
    "--what",
    default="vectors",
    show_default=True,
    help="vectors, logits, hidden, attention; with weights: logits,hidden:0.5.",
)
@option("--labels", default=0.5, show_default=True, help="With logits: weight of the labels.")
@option("--temperature", default=2.0, show_default=True, help="With logits: softmax temperature of the comparison.")
@option("--dev", type=PATH, help="Held-out examples or texts  [default: one in ten of DATA]")
@option(
    "--max-length", default=128, show_default=True, type=click.IntRange(8, 100_000), help="Longest input, in tokens."
)
@resume_option
@advanced_option("--workers", default=1, show_default=True, help="Processes that decode the ids of a corpus.")
@settings_options(TrainSettings, VectorDistillSettings, ReadOptions)
def distill(sources: tuple[str, ...], output: Path, **values: OptionValue) -> None:
    """Train a student to imitate TEACHERs on DATA. The student is --model, or a new one of --shape.

    \b
    --what vectors     sentence vectors of one or several teachers (gte:1.5 has a higher weight)
    --what logits      logits of a fine-tuned ALBERT; DATA are examples of its task
    --what hidden      hidden states: token embeddings, then after every layer
    --what attention   attention of the last layer, and relations of its values

    DATA is a file with one text per line, or a corpus folder; for logits, labelled examples as for finetune, or (for
    classes of single texts) a .txt file without labels. Vectors from a corpus folder are trained at every depth of
    --depths and every width of --widths, with masked language modelling beside them if --mlm-weight is above 0.

    Teachers are ALBERT models, or BERT-like encoders with config.json, model.safetensors and tokenizer.json, which need
    transformers. For hidden and attention the student must have the teacher's vocabulary. The teacher's outputs are
    kept in OUTPUT/teacher.

    The budget is one of --steps, --tokens and --minutes (default: 10 minutes).
    """
    need("torch", "train", "distillation")
    set_default_budget(values)
    from albertkit.artifact import METADATA_FILE
    from albertkit.train.teachers import TeacherMixture

    if (output / METADATA_FILE).is_file():
        raise AlbertkitError(
            f"{output} is a finished model, and a training writes its own folder. Choose another --output."
        )
    *teachers, data = sources
    if not teachers:
        raise AlbertkitError(f"Only {data} was passed; a teacher comes before the data. Name its folder.")
    folders, weights = zip(*map(parse_teacher, teachers), strict=True)
    mixture = TeacherMixture(folders, weights)
    labels = values["labels"] if "logits" in values["what"] else 0.0
    settings = parse_distill_settings(values["what"], labels, values["temperature"])
    result = run_distillation(mixture, Path(data), output, settings, values)
    if result.model is not None:
        print_json({"model": str(result.model), "tokens": result.state.tokens, **result.metrics})


def parse_teacher(name: str) -> tuple[Path, float]:
    """FOLDER or FOLDER:WEIGHT."""
    path, colon, number = name.rpartition(":")
    if not colon or Path(name).exists():
        return Path(name), 1.0
    try:
        weight = float(number)
    except ValueError:
        raise AlbertkitError(f"teacher {name!r} is neither a folder nor FOLDER:WEIGHT, such as gte:1.5.") from None
    if not 0 < weight < 1e6:
        raise AlbertkitError(f"teacher {name!r} has the weight {weight:g}; it must be above 0, such as {path}:1.5.")
    return Path(path), weight


def run_distillation(
    teachers: TeacherMixture, data: Path, output: Path, settings: DistillSettings, values: dict[str, Any]
) -> TrainResult:
    """Train on vectors of a corpus at several depths and widths, or on outputs of a teacher for texts or examples."""
    from albertkit.artifact import ArtifactMetadata
    from albertkit.data.shards import Shards
    from albertkit.interop.convert import open_stored
    from albertkit.train.distill import CorpusDistillation, DistillJob, distill
    from albertkit.train.distill_data import check_vocabulary, is_corpus, read_teacher_data
    from albertkit.train.teachers import is_albert, teacher_tokenizer

    training, goals = take_settings(TrainSettings, values), take_settings(VectorDistillSettings, values)
    reading, resume = take_settings(ReadOptions, values), values["resume"]
    if is_corpus(data) and settings.vectors and not settings.logits and not settings.needs_states:
        student = open_student(values, training.seed, Shards.open(data).tokenizer)
        return CorpusDistillation(teachers, data, training, goals, values["workers"]).run(student, output, resume, log)
    if goals != VectorDistillSettings():
        raise AlbertkitError(
            "--depths, --widths and --mlm-weight are for vectors from a corpus folder alone. Omit them."
        )
    teacher = teachers.folders[0]
    metadata = open_stored(teacher).metadata if is_albert(teacher) else ArtifactMetadata()
    task = "embed" if metadata.task == "embed" else "pretrain"
    own = ArtifactMetadata(task=task, pooling=metadata.pooling, normalize=metadata.normalize)
    student = open_student(values, training.seed, lambda: teacher_tokenizer(teacher), own)
    settings, examples = read_teacher_data(teacher, metadata, (data, values["dev"]), settings, reading, log)
    if examples.task is None:
        check_vocabulary(student, data)
    job = DistillJob(teachers, student, examples, settings, training, values["max_length"])
    return distill(job, output, resume, log, progress_bar=sys.stderr.isatty())


def open_student(
    values: dict[str, Any], seed: int, tokenizer: Callable[[], Tokenizer], metadata: ArtifactMetadata | None = None
) -> Artifact:
    """The model of --model, or a new one of --shape with a tokenizer."""
    if (values["model"] is None) == (values["shape"] is None):
        raise AlbertkitError("The student is either --model or --shape. Pass one of them.")
    if values["model"] is not None:
        from albertkit.builtin import resolve
        from albertkit.interop.convert import open_model

        return open_model(resolve(values["model"]))
    from albertkit.train.distill import new_student

    return new_student(read_shape(values["shape"]), tokenizer(), seed, metadata)
