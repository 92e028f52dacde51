"""Commands that make a model smaller: quantize, prune, static.

In: arguments. Out: printed results of `compress/`, and of `train/` when a compressed model is trained again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

from albertkit.cli import arguments as cli
from albertkit.cli.console import format_megabytes, log, note, print_result, show_status, to_json
from albertkit.errors import AlbertkitError, need
from albertkit.file_io import check_new_folder
from albertkit.tasks.readers.labelled_files import ReadOptions
from albertkit.train.distill_data import RecoverySettings

if TYPE_CHECKING:
    from albertkit.artifact import Artifact
    from albertkit.compress.prune import PruneResult
    from albertkit.compress.quantize import QualityCheck
    from albertkit.train.distill_data import DistillData

file_option = cli.path_option("-f", "--file", help="A file with a few hundred typical texts.")


def parse_amount(text: str) -> int | float:
    """A number to keep (8), or a share (0.5, 50%, 2/3) as a float."""
    try:
        if text.endswith("%"):
            return float(Fraction(text[:-1]) / 100)
        return int(text) if text.isdigit() else float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise click.BadParameter(
            f"{text!r} is neither a count nor a share. Pass a count such as 8, or a share such as 0.5, 50% or 2/3."
        ) from None


@dataclass(frozen=True)
class TrainingInput:
    """Examples and settings for training a compressed model."""

    train: Path | None
    dev: Path | None
    settings: RecoverySettings
    reading: ReadOptions

    def __post_init__(self) -> None:
        if self.train is not None:
            need("torch", "train", "training")
        elif self.settings != RecoverySettings() or self.dev is not None:
            raise AlbertkitError(
                "Training options were passed without --train. Name the training examples with --train."
            )

    def read(self, model: Artifact) -> DistillData:
        """The examples in the format of the model's task."""
        from albertkit.train.distill_data import read_training_data

        assert self.train is not None
        return read_training_data(model, self.train, self.dev, self.reading, log)


def training_options(function: cli.Function) -> cli.Function:
    """Add --train and its options; the command receives them as `training: TrainingInput`."""
    heading = "Training (--train)"
    return cli.add_options(
        cli.gather(function, training=TrainingInput),
        cli.path_option("--train", help="Train the result on these examples (texts, for a model without a task)."),
        cli.path_option("--dev", help="Held-out examples  [default: one in ten]", heading=heading),
        cli.settings_options(heading, settings=RecoverySettings, reading=ReadOptions),
    )


def run_folder(output: Path) -> Path:
    """The folder of training checkpoints, next to the output."""
    output = output.absolute()
    return output.with_name(f"{output.name}.run")


@cli.command("albertkit quantize sentiment/ sentiment-4bit/ --bits 4 --train train.tsv --check dev.tsv")
@cli.source_argument
@cli.output_argument
@cli.option("--bits", type=click.Choice(["8", "4"]), default="8", help="Bits per weight.")
@file_option
@cli.path_option("--check", help="Measure the loss on these examples (or texts) before writing.")
@cli.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="Largest loss that --check allows  [default: 0.01 of the task's score, 0.02 of cosine, 0.1 of MLM agreement]",
)
@training_options
@cli.force_option
@cli.json_option
def quantize(
    source: Path, output: Path, bits: str, training: TrainingInput, as_json: bool, **values: cli.OptionValue
) -> None:
    """Quantize the weights of SOURCE to 8 or 4 bits, write the model to OUTPUT and compare the two.

    Rounding is calibrated on the texts of --file. Without --file, an MLM generates texts, and other models use
    built-in English sentences. Texts from your domain give better results.

    The loss is measured in the model's own metric: the accuracy of MLM predictions, or the ranking of similarities. The
    last line is the verdict: the cosine of the vectors of both models, on held-out texts of --file or on built-in
    English or Chinese sentences. It is good from 0.98 on average and 0.9 at least, and poor below 0.9 and 0.7.

    With --check, both models are evaluated before OUTPUT is written. A task model is scored on labelled examples.
    For other models, pass a file with texts: vectors are compared by cosine, MLM predictions by agreement.
    If the loss is above --tolerance, the command reports the scores and writes nothing.

    With --train, the model is trained with quantized weights and inputs, and SOURCE is its teacher
    (quantization-aware training). This helps mainly at 4 bits. Only --train needs torch. Checkpoints are in OUTPUT.run;
    rerun the command to resume.
    """
    from albertkit.artifact import read_metadata
    from albertkit.compress.quantize import QualityLimit, loss_remedy, open_float_model
    from albertkit.compress.quantize import quantize as run
    from albertkit.interop.convert import open_stored
    from albertkit.runtime.agreement import Agreement

    check, tolerance, force = (values[name] for name in ("check", "tolerance", "force"))
    if check is None and tolerance is not None:
        raise AlbertkitError("--tolerance was passed without --check. Name examples with --check, or omit --tolerance.")
    check_new_folder(output, force)  # before an hour is spent on it
    limit = trained = None
    if check is not None:
        from albertkit.train.distill_data import read_check_examples

        examples = read_check_examples(open_stored(source).metadata, check, training.reading, log)
        limit = QualityLimit(examples, tolerance)
    if training.train is not None:
        from albertkit.train.recover import train_for_bits

        data = training.read(open_float_model(source))
        folder = run_folder(output) / f"{bits}-bits"
        trained = train_for_bits(source, int(bits), data, training.settings, folder, log, progress_bar=True)
    report = run(
        trained or source,
        output,
        int(bits),
        cli.read_file(values["file"], training.reading.text_column),
        force,
        limit,
        show_status,
    )
    agreement = Agreement(report.cosine_mean, report.cosine_least, report.texts, report.text_kind)
    print_result(
        as_json,
        report,
        f"{output}: {format_megabytes(report.bytes)} (before {format_megabytes(report.bytes_before)})",
        *([] if report.metric_loss is None else [str(report.metric_loss)]),
        f"agreement of {bits}-bit vectors with those of the float model: cosine {agreement}",
        *([] if report.check is None else [str(report.check)]),
        *(f"the custom head {head} stays in float" for head in report.float_heads),
    )
    if report.verdict != "good":
        remedy = loss_remedy(int(bits), values["file"] is not None, trained is not None)
        note(f"the vectors differ from those of {source}. Measure the loss on your data with --check. {remedy}.")
    if not as_json and "early_exit" in read_metadata(output)[0].details:
        note(f"early exit was calibrated for the float model. Calibrate again:  albertkit calibrate {output} DEV")


def format_agreement(report: PruneResult) -> str:
    """The cosines, and the kind of text they were measured on if no --file was passed."""
    cosines = f"cosine {report.cosine_mean:.4f} on average, {report.cosine_least:.4f} at least"
    if report.text_kind == "texts":
        return f": {cosines}"
    return f", on {report.text_kind}: {cosines} (pass typical texts with -f)"


@cli.command("albertkit prune sentiment/ smaller/ --ffn 1/2 --heads 2/3 --train train.tsv --dev dev.tsv")
@cli.source_argument
@cli.output_argument
@cli.option("--heads", type=parse_amount, metavar="N|SHARE", help="Attention heads to keep, as a number or a share.")
@cli.option("--ffn", type=parse_amount, metavar="N|SHARE", help="Feed-forward columns to keep, as a number or a share.")
@cli.option("--layers", type=click.IntRange(min=1), help="Number of layers to keep, from the first.")
@cli.path_option("--vocabulary", help="Keep only the tokens that occur in this file.")
@file_option
@cli.option("--fit/--no-fit", default=True, help="Fit the remaining weights to the full layer's output  [default: fit]")
@cli.path_option("--check", help="Measure the loss on these labelled examples (or texts).")
@training_options
@cli.force_option
@cli.json_option
def prune(source: Path, output: Path, training: TrainingInput, as_json: bool, **values: cli.OptionValue) -> None:
    """Remove heads, feed-forward columns, layers or vocabulary from SOURCE and write the rest to OUTPUT.

    The matrices become smaller, so the model is faster. It works with every command. The importance of a head or
    column is measured on --file, or on generated text, and summed over all uses of the shared layer.

    \b
    --ffn 1/2 --heads 2/3        keep half of the columns and two thirds of the heads
    --vocabulary domain.txt      smaller embedding table; the same vectors for texts with these tokens
    --layers 6                   keep six layers of an elastic model, or train afterwards
    --train train.tsv            train the pruned model with SOURCE as its teacher

    With --train, a task model is trained on the labels and on SOURCE's logits and hidden states. Other models are
    trained on vectors and hidden states, from a file with texts. Training needs torch. Checkpoints are in
    OUTPUT.run; rerun the command to resume. Quantize after pruning.

    The loss is measured in the model's own metric: the accuracy of MLM predictions, or the ranking of similarities, on
    held-out texts of --file or on built-in sentences. With --check, a task model is also scored on labelled examples.
    """
    from albertkit.compress.prune import PruneSettings
    from albertkit.compress.prune import prune as run

    force, vocabulary, check = (values.pop(name) for name in ("force", "vocabulary", "check"))
    check_new_folder(output, force)  # before an hour is spent on it
    quality = None if check is None else open_quality_check(source, check, training.reading, vocabulary is not None)
    texts = cli.read_file(values.pop("file"), training.reading.text_column)
    settings = PruneSettings(vocabulary=cli.read_file(vocabulary, training.reading.text_column), **values)
    recovery = None
    if training.train is not None:
        from albertkit.interop.convert import open_model
        from albertkit.train.recover import Recovery

        data = training.read(open_model(source))
        texts = texts or data.texts()[:512] or None
        identity = repr((sorted(values.items()), texts))
        recovery = Recovery(data, training.settings, run_folder(output), log, progress_bar=True, identity=identity)
    report = run(source, output, settings, texts, force, show_status, recovery)
    scores = {} if recovery is None else {name: asdict(score) for name, score in recovery.scores.items()}
    lines = describe_pruned(output, report)
    if scores:
        when = ", before the vocabulary was cut" if vocabulary else ""
        shown = ", ".join(f"{name} {score['value']:.4f}" for name, score in scores.items())
        lines.append(f"  {next(iter(scores.values()))['metric']} on held-out examples{when}: {shown}")
    loss = None if quality is None else quality.loss(output)
    lines += [] if loss is None else [f"  {loss}"]
    print_result(as_json, {**to_json(report), "scores": scores, "check": to_json(loss)}, *lines)


def open_quality_check(source: Path, path: Path, reading: ReadOptions, has_other_vocabulary: bool) -> QualityCheck:
    """The examples of --check, and the full model to compare with."""
    from albertkit.compress.quantize import QualityCheck
    from albertkit.interop.convert import open_stored
    from albertkit.train.distill_data import read_check_examples

    quality = QualityCheck(source, read_check_examples(open_stored(source).metadata, path, reading, log))
    if quality.task is None and quality.metric == "masks" and has_other_vocabulary:
        raise AlbertkitError(
            "--check compares MLM predictions, which models with different vocabularies do not share. "
            "Omit --check or --vocabulary."
        )
    return quality


def describe_pruned(output: Path, report: PruneResult) -> list[str]:
    """The new shape, sizes and agreement."""
    sizes = [format_megabytes(4 * parameters) for parameters in (report.parameters, report.parameters_before)]
    return [
        f"{output}: {report.layers} layers, {report.heads} heads, feed-forward {report.ffn}, "
        f"{report.vocabulary:,} tokens",
        f"  parameters  {report.parameters:,} (before {report.parameters_before:,})",
        f"  as float32  {sizes[0]} (before {sizes[1]})",
        f"  operations  {report.operations / report.operations_before:.0%} of before, per token",
        f"  {report.metric_loss or f'vectors agree with those of the full model{format_agreement(report)}'}",
    ]


@cli.command("albertkit static my-albert/ table/ -f texts.txt --dim 256")
@cli.source_argument
@cli.output_argument
@cli.path_option("-f", "--file", help="A file with typical texts, to count how often each token occurs.")
@cli.text_column_option
@cli.option("--dim", type=click.IntRange(min=1), help="Dimensions of a vector  [default: 256, or the model's]")
@cli.force_option
@cli.json_option
def static(
    source: Path, output: Path, file: Path | None, text_column: str | None, dim: int | None, force: bool, as_json: bool
) -> None:
    """Distil SOURCE into a table with one vector per token, to embed texts in microseconds.

    The result works with embed, similar, index, search and cluster, but not with commands that need layers, such as
    fill and finetune. Word order and context are lost. `albertkit quantize OUTPUT SMALLER` makes the table four times
    smaller.
    """
    from albertkit.compress.static_model import make_static_model

    report = make_static_model(
        source, output, cli.read_text_file(file, text_column), dim, overwrite=force, progress=show_status
    )
    print_result(
        as_json,
        report,
        f"{output}: {report.tokens:,} tokens, {report.dim} dimensions, {format_megabytes(report.bytes)}",
        f"  explained variance {report.explained_variance:.1%}",
        *([] if report.metric_loss is None else [f"  {report.metric_loss}"]),
    )
    if not as_json and not report.has_frequencies:
        note("token frequencies are unknown, so all tokens have the same weight. Pass --file for better vectors.")
