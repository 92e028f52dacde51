"""Commands from raw text to a pre-trained model: tokenizer, corpus, pretrain.

In: arguments. Out: printed results of `tokenizer/`, `data/` and `train/`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from albertkit.cli import arguments as cli
from albertkit.cli.console import (
    echo,
    echo_line,
    format_table,
    log,
    print_json,
    print_result,
    round_metrics,
    stage_progress_bar,
    to_json,
)
from albertkit.data.corpus_folder import CorpusSettings
from albertkit.errors import AlbertkitError, need
from albertkit.train.train_settings import PretrainSettings, TrainSettings

if TYPE_CHECKING:
    from albertkit.config import AlbertConfig
    from albertkit.data.corpus import BuildResult
    from albertkit.train.loop import TrainResult

DEFAULT_MINUTES = 10.0
run_output_option = cli.path_option(
    "-o", "--output", required=True, help="Folder for checkpoints, reports and the model."
)
config_option = cli.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An extension of ALBERT; see docs/reference/artifact.md. Repeatable.",
)
resume_option = cli.option(
    "--resume", is_flag=True, help="Resume from the last checkpoint in --output, if there is one."
)


@cli.command("albertkit tokenizer wiki/ -o vocabulary/ --vocab-size 30000 --max-mb 200")
@click.argument("texts", nargs=-1, required=True)
@cli.path_option("-o", "--output", required=True, help="A new folder for the tokenizer.")
@cli.option("--vocab-size", default=30_000, help="Maximum size of the vocabulary.")
@cli.option("--kind", type=click.Choice(["unigram", "wordpiece"]), default="unigram", help="Tokenizer algorithm.")
@cli.option("--cased", is_flag=True, help="Keep capital letters.")
@cli.option("--accents", "keep_accents", is_flag=True, help="Keep accents.")
@cli.option("--max-mb", type=click.IntRange(min=1), help="Train on a sample of this many MB  [default: all]")
@cli.text_column_option
@cli.json_option
def tokenizer(
    texts: tuple[str, ...],
    output: Path,
    max_mb: int | None,
    text_column: str | None,
    as_json: bool,
    **values: cli.OptionValue,
) -> None:
    """Train a tokenizer on TEXTS: SentencePiece unigram (English ALBERT) or WordPiece (Chinese ALBERT).

    TEXTS have the formats of `albertkit corpus`. 100 MB are enough. Memory use grows with the number of distinct words.
    """
    from albertkit.data.documents import read_paragraphs
    from albertkit.file_io import check_new_folder, new_folder
    from albertkit.text_reader import check_text_column, find_text_files
    from albertkit.tokenizer import Tokenizer

    check_new_folder(output, remedy="Choose another folder.")
    sources = find_text_files(texts, text_column)
    check_text_column(sources, text_column)
    total = sum(source.size for source in sources)
    with stage_progress_bar("B") as progress:

        def read() -> Iterator[str]:
            for text, done in read_paragraphs(sources, text_column, None if max_mb is None else max_mb * 10**6):
                progress("read", done, total)
                yield text
            progress("train", total, total)

        trained = Tokenizer.train(read(), lower=not values.pop("cased"), **values)
    with new_folder(output) as scratch:
        trained.save(scratch)
    described = {"tokenizer": str(output), "kind": trained.kind, "vocab_size": trained.vocab_size}
    print_result(as_json, described, f"{output}: {trained.kind}, {trained.vocab_size:,} tokens")


@cli.command("albertkit corpus wiki/ books.jsonl.gz -o shards/ --tokenizer vocabulary/")
@click.argument("texts", nargs=-1, required=True)
@cli.path_option("-o", "--output", required=True, help="Folder of the corpus.")
@cli.option("--tokenizer", help="Model folder or name, spiece.model or vocab.txt  [default: English]")
@cli.option("--workers", type=click.IntRange(1, 256), help="Worker processes  [default: one per core]")
@cli.force_option
@cli.option("--dry-run", is_flag=True, help="Estimate the corpus and write nothing.")
@cli.json_option
@cli.settings_options(settings=CorpusSettings)
def corpus(
    texts: tuple[str, ...], output: Path, settings: CorpusSettings, as_json: bool, **options: cli.OptionValue
) -> None:
    """Tokenize TEXTS into shards for pre-training: token ids with sentence and document boundaries.

    TEXTS are files or folders of plain text, JSONL, CSV, TSV or Parquet, also compressed (.gz, .xz), or - for stdin.
    Plain text has one paragraph per line and an empty line between documents. In other files each row is a document.
    If the command is interrupted, rerun it to resume.
    """
    from albertkit.data.corpus import build_corpus, estimate_corpus

    vocabulary = cli.open_tokenizer(options["tokenizer"])
    if options["dry_run"]:
        estimate = estimate_corpus(texts, vocabulary, settings)
        print_result(
            as_json,
            {"corpus": str(output), **to_json(estimate)},
            f"{output}: about {estimate.tokens:,} tokens from {estimate.inputs:,} files of "
            f"{estimate.bytes / 1e6:,.1f} MB, in {estimate.shards:,} shards of {estimate.corpus_bytes / 1e6:,.1f} MB "
            "together; nothing was written",
        )
        return
    with stage_progress_bar("B") as progress:
        workers, force = options["workers"], options["force"]
        built = build_corpus(texts, output, vocabulary, settings, workers=workers, force=force, progress=progress)
    print_corpus(built, as_json)


def print_corpus(built: BuildResult, as_json: bool) -> None:
    """The contents of a corpus, and counts of dropped documents and lines."""
    manifest, folder = built.shards.manifest, built.shards.folder
    counts, splits = manifest["counts"], manifest["splits"]
    described = {
        "corpus": str(folder),
        "is_complete": built.was_complete,
        "resumed": built.was_resumed,
        "counts": counts,
        "documents": {name: sum(entry["documents"] for entry in entries) for name, entries in splits.items()},
        "shards": sum(map(len, splits.values())),
    }
    lines = [
        f"{folder}: {counts['tokens']:,} tokens, {counts['sentences']:,} sentences, "
        f"{counts['documents_kept']:,} documents in {described['shards']:,} shards",
        f"dropped: {counts['duplicates']:,} duplicate documents, {counts['too_short']:,} short documents, "
        f"{counts['bad_lines']:,} bad lines",
    ]
    if built.was_complete:
        lines = [f"{folder} is complete: {counts['tokens']:,} tokens; nothing to do"]
    print_result(as_json, described, *lines)


def default_budget(function: cli.Function) -> cli.Function:
    """Set a budget of ten minutes if none was passed, with a message."""

    @functools.wraps(function)
    def run(**values: cli.OptionValue) -> None:
        if all(values[name] is None for name in ("steps", "tokens", "minutes")):
            values["minutes"] = DEFAULT_MINUTES
            echo_line(f"no budget was passed: training for {DEFAULT_MINUTES:g} minutes")
        function(**values)

    return run


@cli.command("albertkit pretrain shards -o run --shape small --minutes 30")
@cli.path_argument("shards")
@run_output_option
@cli.option("-m", "--model", help="Continue from this model's weights instead of random weights.")
@cli.option("--shape", default="small", help="A preset, or a folder or JSON file with a config.")
@config_option
@resume_option
@cli.option("--dry-run", is_flag=True, help="Print the training plan and stop.")
@default_budget
@cli.settings_options(settings=TrainSettings, pretrain_settings=PretrainSettings)
def pretrain(
    shards: Path, output: Path, settings: TrainSettings, pretrain_settings: PretrainSettings, **values: cli.OptionValue
) -> None:
    """Pre-train a model on SHARDS, the folder that `albertkit corpus` wrote.

    The budget is one of --steps, --tokens and --minutes (default: 10 minutes). On several GPUs or machines:

      torchrun --nproc-per-node 8 -m albertkit pretrain SHARDS -o RUN --minutes 60 --resume

    --option enables an extension of ALBERT. Repeat it for several extensions:

      --option low_rank=32 --option gru=true --option window=64 --option global_every=3

    The output folder contains checkpoints/, metrics.jsonl, tensorboard/ and the finished model in model/.
    Ctrl-C saves a checkpoint. Add --resume to the same command to continue. A resumed run ends with the same weights
    as an uninterrupted run: bit-identical on a CPU, unless the budget is in minutes.
    """
    need("torch", "train", "pre-training")
    from albertkit.artifact import read_artifact
    from albertkit.builtin import resolve
    from albertkit.train.loop import train
    from albertkit.train.pretrain import PretrainTask, training_plan

    start = read_artifact(resolve(values["model"])) if values["model"] else None
    if start and values["options"]:
        raise AlbertkitError("--option was passed with --model: a model keeps its own options. Omit one of the two.")
    config = start.config if start else read_shape(values["shape"], values["options"])
    task = PretrainTask(shards, config, settings, pretrain_settings, start)
    if values["dry_run"]:
        rows = [
            (name, f"{value:,}" if isinstance(value, int) else str(value))
            for name, value in training_plan(task).items()
        ]
        echo(format_table(rows))
        return
    print_trained(train(task, settings, output, resume=values["resume"], log=log, progress_bar=True))


def print_trained(result: TrainResult) -> None:
    """The finished model and its metrics, once for all processes of a training."""
    if result.model is None:
        from albertkit.train.checkpoint import raise_stopped

        raise_stopped(result.stopped_by)
    if os.environ.get("RANK", "0") == "0":
        size = {"dev_examples": result.dev_size} if result.dev_size else {}
        print_json({"model": str(result.model), "tokens": result.state.tokens, **size, **round_metrics(result.metrics)})


def read_shape(shape: str, options: Sequence[str] = ()) -> AlbertConfig:
    """The config of a preset, model or JSON file; with options such as low_rank=32."""
    from albertkit.artifact import model_folder
    from albertkit.compress.planner import config_of, is_model
    from albertkit.options import given_options

    config = config_of(str(model_folder(shape) / "config.json") if is_model(shape) else shape)
    return config.replace(options=given_options(options, config.options)) if options else config
