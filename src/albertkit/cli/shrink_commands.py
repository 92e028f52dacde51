"""The verbs that make a model smaller and may train it: `prune` and `quantize`. As in `cli/entry_point.py`: arguments → calls → printed results, imports when they run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli.compress_commands import Amount, as_json, force, path
from albertkit.cli.pretrain_commands import of, options
from albertkit.cli.task_commands import Reading
from albertkit.errors import AlbertkitError, need
from albertkit.train.distill_settings import RecoverySettings

if TYPE_CHECKING:
    from albertkit.artifact import Artifact, Meta
    from albertkit.train.recover import DistillData

MOST = 500_000  # texts of a corpus that are learnt from
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")


def learn_options(flag: str, text: str) -> Callable[[Any], Any]:
    """The options of a training behind `flag`."""

    def add(command: Any) -> Any:
        command = options(RecoverySettings, Reading)(command)
        command = click.option("--dev", type=path, help=f"With {flag}: held-out examples; without, one in ten.")(
            command
        )
        return click.option(flag, "train", type=path, help=text)(command)

    return add


def given_training(train: Path | None, flag: str, given: dict[str, Any]) -> RecoverySettings:
    """The settings of the training; an error if there is none to set."""
    training = of(RecoverySettings, given)
    if train is None and (training != RecoverySettings() or given.get("dev") is not None):
        raise AlbertkitError(f"settings of a training were given without {flag}; name the examples to train on with it")
    found: RecoverySettings = training
    return found


def read_data(artifact: Artifact, train: Path, dev: Path | None, reading: Reading | None = None) -> DistillData:
    """Examples of the model's task; for a model without one, texts of a file (one a line) or of a corpus folder."""
    from albertkit.cli.task_commands import read_files
    from albertkit.tasks import TASKS
    from albertkit.tasks.splits import split_examples
    from albertkit.train.recover import distill_data

    if artifact.meta.task in TASKS:
        found = read_files(artifact.meta.task, {"train": train, **({"dev": dev} if dev else {})}, reading or Reading())
        if dev is None:
            found["train"], found["dev"] = split_examples(found["train"])
        known(artifact.meta, found["train"], "which cannot be learnt")
        known(artifact.meta, found["dev"], "counted as missed")
        return distill_data(artifact, found["train"], found["dev"])
    check_words(artifact, train)
    return distill_data(artifact, *texts_of(train, dev))


def known(meta: Meta, examples: list[Any], so: str) -> None:
    """A note on labels that a model does not know, and what becomes of them; an error if it knows none."""
    from albertkit.cli.entry_point import note
    from albertkit.tasks import load_task
    from albertkit.tasks.readers.read_examples import check_known_labels

    for text in check_known_labels(load_task(meta), examples, so):
        note(text)


def check_words(artifact: Artifact, train: Path) -> None:
    """Refuse a corpus that was cut into other pieces than the model's."""
    if not (train / "manifest.json").is_file():
        return
    from albertkit.data.shards import Shards

    mine = artifact.tokenizer
    if mine is None or Shards.open(train).tokenizer().vocabulary.ids != mine.vocabulary.ids:
        raise AlbertkitError(
            f"{train} was made with another vocabulary than the model's; make the corpus with that one"
        )


def texts_of(train: Path, dev: Path | None) -> tuple[list[Any], list[Any]]:
    """Texts to learn from and held-out ones; without a file for those, some of the first."""
    from albertkit.cli.entry_point import note, read_texts

    if (train / "manifest.json").is_file():
        found = passages_of(train)
    elif train.is_dir():
        raise AlbertkitError(
            f"{train} is no corpus folder; make one with  albertkit corpus, or give a file with a text a line"
        )
    else:
        plain(train)
        found = list(read_texts((), train))
    if len(found) > MOST:
        note(f"{train} holds {len(found):,} texts; every {-(-len(found) // MOST)}th is used")
        found = found[:: -(-len(found) // MOST)]
    if len(found) < 10:
        raise AlbertkitError(f"{train} holds {len(found)} texts; give at least 10, better many thousand")
    if dev is not None:
        plain(dev)
        return found, list(read_texts((), dev))
    held = found[::10][:1000]
    return [text for i, text in enumerate(found) if i % 10 or i >= 10 * len(held)], held


def plain(file: Path) -> None:
    """Refuse a table where lines are read as texts: its labels and commas would be learnt as words."""
    if file.suffix.lower() in TABLES:
        raise AlbertkitError(
            f"{file} is a table, and texts are read from plain lines here; write its texts to a .txt file, one a line"
        )


def passages_of(shards: Path) -> list[Any]:
    """Sentences and passages of a corpus, as token ids, shuffled."""
    import numpy as np

    from albertkit.data.passages import Shares, draw
    from albertkit.data.shards import Shards

    corpus = Shards.open(shards)
    drawn = draw(corpus.split("train"), corpus.tokenizer().id_of("?"), Shares(), 0)
    order = np.random.default_rng(0).permutation(len(drawn))[:MOST]
    return [np.array(drawn[int(i)]) for i in order]


def log(text: str) -> None:
    """A sentence beside the progress bar."""
    from tqdm import tqdm

    tqdm.write(text, file=sys.stderr)


def free(target: Path, force: bool) -> None:
    """Refuse a target that is taken, or that writing would refuse to replace, before an hour is spent on it."""
    from albertkit.artifact import META_FILE

    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not force:
        raise AlbertkitError(f"{target} exists and is not empty; choose another place or allow overwriting (--force)")
    if not (target / META_FILE).is_file():
        raise AlbertkitError(f"{target} is no model folder, so it is not replaced; choose another place")


def run_folder(target: Path) -> Path:
    """Where a training keeps its checkpoints, beside what it makes."""
    target = target.absolute()
    return target.with_name(f"{target.name}.run")


@click.command(
    epilog="Example:  albertkit prune sentiment/ smaller/ --ffn 1/2 --heads 2/3 --recover train.tsv --dev dev.tsv"
)
@click.argument("source", type=path)
@click.argument("target", type=path)
@click.option("--heads", type=Amount(), help="Attention heads to keep, as a number or a share.")
@click.option("--ffn", type=Amount(), help="Feed-forward columns to keep, as a number or a share.")
@click.option("--layers", type=click.IntRange(min=1), help="Keep the first layers only.")
@click.option("--vocabulary", type=path, help="Keep the pieces that the lines of this file use.")
@click.option("-f", "--file", type=path, help="Some hundred lines like those the model will read.")
@click.option("--fit/--no-fit", default=True, help="Fit what stays to what the whole layer gave  [default: fit]")
@learn_options("--recover", "Train what is left on these examples (texts, for a model without a task).")
@force
@as_json
def prune(
    source: Path, target: Path, vocabulary: Path | None, file: Path | None, force: bool, as_json: bool, **given: Any
) -> None:
    """Take heads, feed-forward columns, layers or words out of SOURCE and write what is left to TARGET.

    Matrices become smaller, so the model becomes faster, and stays a normal model for every verb. What a head or a column is worth is
    judged on --file (without one, on made-up text), summed over all uses of the shared layer.

    \b
    --ffn 1/2 --heads 2/3        half of the columns, two thirds of the heads
    --vocabulary domain.txt      the same vectors for such texts, with a smaller word table
    --layers 6                   the first six; for a model that was trained for it, or before training
    --recover train.tsv          train it again, with SOURCE as its teacher

    With --recover, the pruned model learns SOURCE's scores and hidden states, and the labels of the examples; a model without a task learns
    vectors and hidden states from a file with a text a line, or from a corpus folder. Needs torch. TARGET.run holds checkpoints: the same
    command goes on where it was stopped. Then quantize.
    """
    from albertkit.cli.entry_point import quiet_or_note, read_texts
    from albertkit.compress.prune import PruneSettings
    from albertkit.compress.prune import prune as run

    train, dev, reading = given.pop("train"), given.get("dev"), of(Reading, given)
    training = given_training(train, "--recover", given)
    given.pop("dev")
    free(target, force)
    texts = None if file is None else list(read_texts((), file))
    words = None if vocabulary is None else list(read_texts((), vocabulary))
    recovery = None
    if train is not None:
        need("torch", "train", "training")
        from albertkit.interop.convert import open_model
        from albertkit.train.recover import Recovery

        data = read_data(open_model(source), train, dev, reading)
        texts = texts or data.texts()[:512] or None
        asked = repr((sorted(given.items()), texts))
        recovery = Recovery(data, training, run_folder(target), log, progress_bar=True, asked=asked)
    report = run(source, target, PruneSettings(vocabulary=words, **given), texts, force, quiet_or_note, recovery)
    scores = {} if recovery is None else {name: asdict(score) for name, score in recovery.scores.items()}
    if as_json:
        click.echo(json.dumps({**asdict(report), "scores": scores}))
        return
    _show_pruned(target, report, scores, ", before words were cut" * (words is not None))


def _show_pruned(target: Path, report: Any, scores: dict[str, Any], when: str) -> None:
    from albertkit.cli.entry_point import megabytes

    click.echo(
        f"{target}: {report.layers} layers, {report.heads} heads, feed-forward {report.ffn}, {report.vocabulary:,} pieces"
    )
    click.echo(f"  parameters  {report.parameters:,} (before {report.parameters_before:,})")
    click.echo(f"  as float32  {megabytes(4 * report.parameters)} (before {megabytes(4 * report.parameters_before)})")
    click.echo(f"  operations  {report.operations / report.operations_before:.0%} of before, for a token")
    click.echo(f"  vectors agree with the whole model's{_agreement(report)}")
    if scores:
        shown = ", ".join(f"{name} {score['value']:.4f}" for name, score in scores.items())
        click.echo(f"  {next(iter(scores.values()))['metric']} on held-out examples{when}: {shown}")


def _agreement(report: Any) -> str:
    """Cosines, and of what kind of text they are where nobody gave any."""
    said = f"cosine {report.cosine_mean:.4f} on average, {report.cosine_least:.4f} at least"
    if report.text_kind == "texts":
        return f": {said}"
    return f", on {report.text_kind}: {said} (give texts like those it will read with -f)"


@click.command(
    epilog="Example:  albertkit quantize sentiment/ sentiment-4bit/ --bits 4 --train train.tsv --check dev.tsv"
)
@click.argument("source", type=path)
@click.argument("target", type=path)
@click.option("--bits", type=click.Choice(["8", "4"]), default="8", show_default=True, help="Bits for each weight.")
@click.option("-f", "--file", type=path, help="Some hundred lines like those the model will read.")
@click.option("--check", type=path, help="Measure the loss on these examples (or lines) before writing.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1),
    help="The most that --check may lose  [default: 0.01 of a task's score, 0.02 of cosine, 0.1 of masks]",
)
@click.option("--accept", is_flag=True, help="Write it even if --check loses more than --tolerance.")
@learn_options("--train", "Train for few bits on these examples (texts, for a model without a task).")
@force
@as_json
def quantize(
    source: Path, target: Path, bits: str, file: Path | None, force: bool, as_json: bool, **given: Any
) -> None:
    """Write SOURCE with its weights in 8 or 4 bits to TARGET, and compare the two.

    Weights are rounded so that errors cancel on text like that of --file; without one, the model writes its own, or reads plain
    English sentences if it cannot fill masks. Texts of your own are better.

    With --check, both are measured before anything is written: by their task's score on labelled examples; without a task, on a file with a
    text a line, by the cosine of their vectors or the share of masked words they guess alike. What loses more than --tolerance is
    refused with the numbers. Works without torch.

    With --train, the model is trained while it computes with rounded weights and inputs, with SOURCE as its teacher, and what is stored is what was trained.
    It is worth its time at 4 bits. Needs torch. TARGET.run holds checkpoints: the same command goes on where it was stopped.
    """
    from albertkit.cli.entry_point import quiet_or_note, read_texts
    from albertkit.compress.evaluate import QualityLimit
    from albertkit.compress.quantize import TrainedWeights, open_float_model, quantize

    train, dev, check, reading = given.pop("train"), given.get("dev"), given.pop("check"), of(Reading, given)
    training = given_training(train, "--train", given)
    tolerance, accept = given.pop("tolerance"), given.pop("accept")
    if tolerance is not None and not 0 <= tolerance <= 1:
        raise AlbertkitError(f"--tolerance is {tolerance}; it is a share, from 0 to 1")
    if check is None and (tolerance is not None or accept):
        raise AlbertkitError("--tolerance and --accept say what --check may lose; name examples with --check")
    free(target, force)
    texts = None if file is None else list(read_texts((), file))
    asked = None if check is None else QualityLimit(check_examples(source, check, reading), tolerance, accept)
    trained = None
    if train is not None:
        need("torch", "train", "training")
        from albertkit.train.qat import train_for_bits

        artifact, run = open_float_model(source), run_folder(target) / f"{bits}-bits"
        done = train_for_bits(
            artifact, int(bits), read_data(artifact, train, dev, reading), training, run, log, progress_bar=True
        )
        trained = TrainedWeights(source, done.artifact, done.smooth)
    report = quantize(trained or source, target, int(bits), texts, force, asked, quiet_or_note)
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return
    _show_quantised(target, report)


def check_examples(source: Path, check: Path, reading: Reading) -> list[Any]:
    """Labelled examples for a fine-tuned model, lines for any other."""
    from albertkit.cli.entry_point import read_texts
    from albertkit.cli.task_commands import read_files
    from albertkit.interop.convert import open_stored
    from albertkit.tasks import TASKS

    meta = open_stored(source).meta
    if meta.task in TASKS:
        found = read_files(meta.task, {"test": check}, reading)["test"]
        known(meta, found, "counted as missed before and after, so that a loss seems smaller than it is")
        return found
    plain(check)
    return list(read_texts((), check))


def _show_quantised(target: Path, report: Any) -> None:
    from albertkit.artifact import read_meta
    from albertkit.cli.entry_point import megabytes, note

    click.echo(f"{target}: {megabytes(report.bytes)} (before {megabytes(report.bytes_before)})")
    click.echo(f"vectors agree with the float model's{_agreement(report)}")
    if report.check is not None:
        click.echo(str(report.check))
        if not report.check.is_tolerable:
            note(f"that is more than the tolerance, {report.check.tolerance:g}")
    if "early_exit" in read_meta(target)[0].details:
        note(
            f"when texts may leave early was found for the float model; find it anew:  albertkit calibrate {target} DEV"
        )


VERBS = (prune, quantize)
