"""The verb `distill`: what teachers give to a student of any shape. As in `cli/entry_point.py`: arguments → calls → printed results, imports when they run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli.pretrain_commands import DEFAULT_MINUTES, of, options, shape_of
from albertkit.cli.task_commands import Reading
from albertkit.errors import AlbertkitError, need
from albertkit.train.distill_settings import DistillSettings, VectorDistillSettings
from albertkit.train.distill_settings import parse_distill_settings as parsed
from albertkit.train.train_settings import TrainSettings

if TYPE_CHECKING:
    from albertkit.artifact import Artifact
    from albertkit.train.loop import TrainResult
    from albertkit.train.recover import DistillData
    from albertkit.train.teachers import TeacherMixture

folder = click.Path(path_type=Path)


@click.command(epilog="Example:  albertkit distill sentiment/ train.tsv --what logits,hidden:0.5 --shape mini -o small")
@click.argument("given", nargs=-1, required=True, metavar="[TEACHER]... DATA")
@click.option("-o", "--out", type=folder, required=True, help="Folder for checkpoints, metrics and the model.")
@click.option("--start", type=folder, help="The student: a model to begin with.")
@click.option("--shape", help="The student: a fresh model of this preset, folder or JSON file.")
@click.option(
    "--teacher", "teachers", multiple=True, help="A teacher, as if it stood before DATA; FOLDER or FOLDER:WEIGHT."
)
@click.option(
    "--what",
    default="vectors",
    show_default=True,
    help="vectors, logits, hidden, attention; with weights: logits,hidden:0.5.",
)
@click.option("--labels", default=0.5, show_default=True, help="With logits: weight of the right answers beside them.")
@click.option(
    "--soften", default=2.0, show_default=True, help="With logits: scores are divided by it before they are compared."
)
@click.option("--dev", type=folder, help="Held-out examples or texts; without, one in ten of DATA.")
@click.option(
    "--max-length", default=128, show_default=True, type=click.IntRange(8, 100_000), help="Longest input in tokens."
)
@click.option("--workers", default=1, show_default=True, help="Processes that turn ids of a corpus into text.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --out, if there is one.")
@options(TrainSettings, VectorDistillSettings, Reading)
def distill(given: tuple[str, ...], out: Path, teachers: tuple[str, ...], resume: bool, **more: Any) -> None:
    """Teach a student what TEACHERs know, on DATA. The student is --start, or fresh in a --shape.

    \b
    --what vectors     sentence vectors, of one teacher or a mixture (gte:1.5 counts more)
    --what logits      scores of a fine-tuned teacher of ours; DATA are examples of its task
    --what hidden      hidden states: token embeddings, then after every layer
    --what attention   attention of the last layer, and relations of its values

    DATA is a file with a text a line, or a corpus folder; for logits, labelled examples as for finetune, or (for classes of single texts) a .txt file of lines without labels.
    Vectors from a corpus folder are learnt at every depth of --depths and every width of --widths, with masked words beside them if --words says so.

    Teachers are models of ours, or BERT-like encoders with config.json, model.safetensors and tokenizer.json, which need transformers. For hidden
    and attention the student must have the teacher's vocabulary. Vectors and scores are kept in OUT/teacher.

    The budget is one of --steps, --tokens and --minutes (default: 10 minutes).
    """
    need("torch", "train", "distilling")
    if not any(more[name] is not None for name in ("steps", "tokens", "minutes")):
        more["minutes"] = DEFAULT_MINUTES
    settings, aims, more["reading"] = of(TrainSettings, more), of(VectorDistillSettings, more), of(Reading, more)
    from albertkit.artifact import META_FILE

    if (out / META_FILE).is_file():
        raise AlbertkitError(
            f"{out} is a finished model, and a training writes a folder of its own; choose another --out"
        )
    *named, data = given
    names = [*named, *teachers]
    if not names:
        raise AlbertkitError("no teacher was given; name its folder before the data, or with --teacher")
    from albertkit.train.teachers import TeacherMixture

    weighed_names = [weighed(name) for name in names]
    known = TeacherMixture(tuple(a for a, _ in weighed_names), tuple(b for _, b in weighed_names))
    labels = more["labels"] if "logits" in more["what"] else 0.0
    lesson = parsed(more["what"], labels, more["soften"])
    alone = lesson.vectors and not lesson.logits and not lesson.watches
    if alone and (Path(data) / "manifest.json").is_file():
        outcome = sentence_vectors(known, Path(data), out, settings, aims, resume, more)
    else:
        if aims != VectorDistillSettings():
            raise AlbertkitError(
                "depths, widths, words and the like are for vectors from a corpus folder alone; leave them away here"
            )
        outcome = taught(known, Path(data), out, settings, lesson, resume, more)
    if outcome.model is not None:
        click.echo(json.dumps({"model": str(outcome.model), "tokens": outcome.state.tokens, **outcome.metrics}))


def student_of(more: dict[str, Any], seed: int, tokenizer: Any, meta: Any = None) -> Artifact:
    """The model to begin with, or a fresh one with a vocabulary (`tokenizer()`)."""
    if (more["start"] is None) == (more["shape"] is None):
        raise AlbertkitError("give the student with --start (a model) or --shape (a preset such as mini), one of them")
    if more["start"] is not None:
        from albertkit.interop.convert import open_model

        return open_model(more["start"])
    from albertkit.train.distill import fresh_student

    return fresh_student(shape_of(more["shape"]), tokenizer(), seed, meta)


def sentence_vectors(
    teachers: TeacherMixture,
    shards: Path,
    out: Path,
    settings: TrainSettings,
    aims: VectorDistillSettings,
    resume: bool,
    more: dict[str, Any],
) -> TrainResult:
    """Vectors from a corpus: `train/distill_vectors.py`."""
    from albertkit.cli.shrink_commands import log
    from albertkit.data.everyday_sentences import everyday
    from albertkit.data.passages import Passages, Shares, draw, words
    from albertkit.data.shard_writer import write_array
    from albertkit.data.shards import Shards
    from albertkit.train.distill_vectors import VectorDistillTask, check_widths, student_vectors
    from albertkit.train.distributed import choose_device
    from albertkit.train.loop import train
    from albertkit.train.teachers import passage_targets

    corpus = Shards.open(shards)
    artifact, texts = student_of(more, settings.seed, corpus.tokenizer), out / "texts"
    check_widths(aims, artifact.config.hidden_size)
    same_teachers(texts, teachers, shards)
    if not (texts / "targets.npy").is_file():
        longest = artifact.config.max_position_embeddings - 2
        tokenizer, train_shards = corpus.tokenizer(), corpus.split("train")
        known = [tokenizer.decode(ids) for ids in words(train_shards, settings.seed)] if aims.everyday else []
        made = tokenizer.ids_batch(list(everyday(aims.everyday, settings.seed, known)))
        shares = Shares(longest=min(254, longest))
        draw(train_shards, tokenizer.id_of("?"), shares, settings.seed, [ids for ids in made if ids]).save(texts)
        device = choose_device(settings.device)
        passages = Passages.open(texts)
        own = student_vectors(artifact, passages, device) if artifact.meta.task == "embed" else None
        dim = artifact.config.hidden_size
        targets = passage_targets(passages, shards / "tokenizer", teachers, dim, device, more["workers"], own)
        write_array(texts / "targets.npy", targets)
    work = VectorDistillTask(artifact, texts, shards, settings, aims)
    return train(work, settings, out, resume=resume, log=log, progress_bar=True)


def same_teachers(texts: Path, teachers: TeacherMixture, shards: Path) -> None:
    """Write down whose vectors of which corpus a folder holds, and refuse one with those of others."""
    from albertkit.artifact import digest, read_json
    from albertkit.data.shard_writer import write_json
    from albertkit.train.distill import teacher_identity

    note = texts / "teachers.json"
    asked = {
        "teachers": [
            [teacher_identity(folder), w] for folder, w in zip(teachers.folders, teachers.weights, strict=True)
        ],
        "corpus": digest(shards / "manifest.json"),
    }
    if note.is_file() and (texts / "targets.npy").is_file():
        before = read_json(note)
        words = {"teachers": "of other teachers, or with other weights", "corpus": "of another corpus"}
        other = [words[what] for what, value in asked.items() if before.get(what) != value]
        if other:
            raise AlbertkitError(
                f"{texts} holds vectors {' and '.join(other)}; choose another --out, or remove {texts} to make them anew"
            )
    if not (texts / "targets.npy").is_file():
        texts.mkdir(parents=True, exist_ok=True)
        write_json(note, asked)


def taught(
    teachers: TeacherMixture,
    data: Path,
    out: Path,
    settings: TrainSettings,
    lesson: DistillSettings,
    resume: bool,
    more: dict[str, Any],
) -> TrainResult:
    """Everything else: `train/distill.py`."""
    from albertkit.artifact import Meta
    from albertkit.cli.shrink_commands import check_words, log
    from albertkit.interop.convert import open_stored
    from albertkit.train.distill import distill, teacher_tokenizer
    from albertkit.train.teachers import is_albert

    first = teachers.folders[0]
    meta = open_stored(first).meta if is_albert(first) else Meta()
    kind = "embed" if meta.task == "embed" else "pretrain"
    own = Meta(task=kind, pooling=meta.pooling, normalise=meta.normalise)
    student = student_of(more, settings.seed, lambda: teacher_tokenizer(first), own)
    lesson, found = read_lesson(first, meta, data, more["dev"], lesson, more["reading"])
    if found.task is None:
        check_words(student, data)
    return distill(
        teachers,
        student,
        found,
        lesson,
        settings,
        out,
        more["max_length"],
        resume,
        log,
        progress_bar=sys.stderr.isatty(),
    )


def read_lesson(
    teacher: Path, meta: Any, data: Path, dev: Path | None, lesson: DistillSettings, reading: Reading
) -> tuple[DistillSettings, DistillData]:
    """The examples or texts; lines without labels teach no labels."""
    import dataclasses

    from albertkit.cli.entry_point import read_texts
    from albertkit.cli.shrink_commands import known, texts_of
    from albertkit.cli.task_commands import read_files
    from albertkit.tasks import TASKS, load_task
    from albertkit.tasks.examples import TextExample
    from albertkit.tasks.splits import split_examples
    from albertkit.train.recover import DistillData

    if not lesson.logits:
        return lesson, DistillData(None, *texts_of(data, dev))
    if meta.task not in TASKS:
        raise AlbertkitError(
            f"{teacher} was made for {meta.task!r}, and gives no scores; give a fine-tuned model, or learn vectors or hidden"
        )
    task = load_task(meta)
    held = [] if dev is None else read_files(meta.task, {"dev": dev}, reading)["dev"]
    known(meta, held, "counted as missed")
    if data.suffix == ".txt" and meta.task == "classify":
        if meta.details.get("pairs"):
            raise AlbertkitError(
                f"{teacher} was fine-tuned for pairs of texts, and {data} holds single lines; give a table with both texts, as for finetune"
            )
        label: Any = {"single": (task.labels or ("",))[0], "multi": ()}.get(task.kind, 0.0)
        return dataclasses.replace(lesson, labels=0.0), DistillData(
            task, [TextExample(t, label=label) for t in read_texts((), data)], held
        )
    examples = read_files(meta.task, {"train": data}, reading)["train"]
    known(meta, examples, "not learnt from")
    if dev is None:
        examples, held = split_examples(examples)
    return lesson, DistillData(task, examples, held)


def weighed(name: str) -> tuple[Path, float]:
    """FOLDER or FOLDER:WEIGHT."""
    path, colon, number = name.rpartition(":")
    if not colon or Path(name).exists():
        return Path(name), 1.0
    try:
        weight = float(number)
    except ValueError:
        raise AlbertkitError(f"teacher {name!r} is neither a folder nor FOLDER:WEIGHT, such as gte:1.5") from None
    if not 0 < weight < 1e6:
        raise AlbertkitError(f"teacher {name!r} has the weight {weight:g}; it must be above 0, such as {path}:1.5")
    return Path(path), weight
