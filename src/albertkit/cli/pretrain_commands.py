"""Commands from raw text to a pre-trained model: tokenizer, corpus, pretrain.

In: arguments. Out: calls of `tokenizer/`, `data/` and `train/`, printed.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli.arguments import (
    PATH,
    OptionValue,
    advanced_option,
    command,
    force_option,
    json_option,
    open_tokenizer,
    option,
    settings_options,
    take_settings,
)
from albertkit.cli.console import log, print_json, print_table, stage_progress_bar
from albertkit.data.corpus_settings import CorpusSettings
from albertkit.errors import AlbertkitError, need
from albertkit.train.train_settings import PretrainSettings, TrainSettings

if TYPE_CHECKING:
    from albertkit.config import AlbertConfig
    from albertkit.data.corpus import BuildResult, CorpusEstimate
    from albertkit.data.workers import BlockTokenizer

DEFAULT_MINUTES = 10.0
text_column_option = option("--text-column", help="JSON field or Parquet column with the text  [default: text]")
config_option = option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option beyond ALBERT; see docs/options.md."
)
resume_option = option("--resume", is_flag=True, help="Resume from the last checkpoint in --output, if there is one.")


@command(example="albertkit tokenizer wiki/ -o vocabulary/ --vocab-size 30000 --max-mb 200")
@click.argument("texts", nargs=-1, required=True)
@option("-o", "--output", type=PATH, required=True, help="A new folder for the tokenizer.")
@option("--vocab-size", default=30_000, show_default=True, help="Most tokens in the vocabulary.")
@option(
    "--kind",
    type=click.Choice(["unigram", "wordpiece"]),
    default="unigram",
    show_default=True,
    help="Kind of subwords.",
)
@option("--cased", is_flag=True, help="Keep capital letters.")
@option("--accents", is_flag=True, help="Keep accents.")
@option("--max-mb", type=click.IntRange(min=1), help="Train on this many MB, evenly over TEXTS  [default: all]")
@text_column_option
@advanced_option("--min-count", default=2, show_default=True, help="WordPiece: least count of a pair that is merged.")
@json_option
def tokenizer(texts: tuple[str, ...], output: Path, max_mb: int | None, as_json: bool, **options: OptionValue) -> None:
    """Train a tokenizer on TEXTS: SentencePiece unigram (English ALBERT) or WordPiece (Chinese ALBERT).

    TEXTS are what `corpus` reads. A hundred megabytes are plenty; memory grows with the number of different words.
    """
    from albertkit.data.documents import CORPUS_FORMATS, read_paragraphs
    from albertkit.file_io import new_folder
    from albertkit.text_reader import find_text_files
    from albertkit.tokenizer import Tokenizer

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise AlbertkitError(f"{output} exists and is not empty. Name a new folder.")
    text_column = options["text_column"]
    sources = find_text_files(texts, text_column, CORPUS_FORMATS)
    total = sum(source.size for source in sources)
    with stage_progress_bar("B") as progress:

        def read() -> Iterator[str]:
            for text, done in read_paragraphs(sources, text_column, None if max_mb is None else max_mb * 10**6):
                progress("read", done, total, 0)
                yield text
            progress("train", total, total, 0)

        trained = Tokenizer.train(
            read(),
            options["kind"],
            options["vocab_size"],
            lower=not options["cased"],
            keep_accents=options["accents"],
            min_count=options["min_count"],
        )
    with new_folder(output) as scratch:
        trained.save(scratch)
    if as_json:
        print_json({"tokenizer": str(output), "kind": trained.kind, "vocab_size": trained.vocab_size})
    else:
        click.echo(f"{output}: {trained.kind}, {trained.vocab_size:,} tokens")


@command(example="albertkit corpus wiki/ books.jsonl.zst -o shards/ --tokenizer vocabulary/")
@click.argument("texts", nargs=-1, required=True)
@option("-o", "--output", type=PATH, required=True, help="Folder of the corpus.")
@option("--tokenizer", help="Model folder or name, spiece.model or vocab.txt  [default: English]")
@option("--workers", type=click.IntRange(1, 256), help="Processes  [default: one per core]")
@force_option
@option("--dry-run", is_flag=True, help="Estimate the corpus and write nothing.")
@json_option
@settings_options(CorpusSettings)
@advanced_option("--engine", type=click.Choice(["local", "ray"]), default="local", help="Local processes, or Ray.")
@advanced_option("--address", help="With --engine ray: a running cluster  [default: one on this machine]")
def corpus(texts: tuple[str, ...], output: Path, as_json: bool, **options: OptionValue) -> None:
    """Tokenize TEXTS into shards for pre-training: token ids with the ends of sentences and documents.

    TEXTS are files or folders of plain text (one paragraph per line, an empty line between documents), JSONL or
    Parquet, also compressed (.gz, .xz, .zst), or - for stdin. If it is stopped or killed, rerun the command to resume.
    """
    from albertkit.data.corpus import build_corpus, estimate_corpus

    settings, vocabulary = take_settings(CorpusSettings, options), open_tokenizer(options["tokenizer"])
    if options["dry_run"]:
        print_estimate(estimate_corpus(texts, vocabulary, settings), output, as_json)
        return
    start = time.perf_counter()
    with stage_progress_bar("B") as progress, tokenize_workers(options) as workers:
        built = build_corpus(
            texts, output, vocabulary, settings, workers=workers, force=options["force"], progress=progress
        )
    print_corpus(built, time.perf_counter() - start, as_json)


@contextmanager
def tokenize_workers(options: dict[str, Any]) -> Iterator[int | BlockTokenizer | None]:
    """The number of local processes that tokenize, or a function that tokenizes on Ray."""
    workers, address = options["workers"], options["address"]
    if options["engine"] == "local":
        if address is not None:
            raise AlbertkitError(f"--address {address} is an option of --engine ray. Add it, or omit the address.")
        yield workers
        return
    from albertkit.bulk.engines import tokenize_on_ray
    from albertkit.data.workers import worker_count

    with redirect_stdout(sys.stderr):  # Ray reports what happened to a worker on stdout
        yield functools.partial(tokenize_on_ray, workers=worker_count(workers), address=address)


def print_estimate(estimate: CorpusEstimate, output: Path, as_json: bool) -> None:
    """What --dry-run prints."""
    if as_json:
        print_json({"corpus": str(output), **asdict(estimate)})
        return
    click.echo(
        f"{output}: about {estimate.tokens:,} tokens from {estimate.inputs:,} files of {estimate.bytes / 1e6:,.1f} MB, "
        f"in {estimate.shards:,} shards of {estimate.corpus_bytes / 1e6:,.1f} MB together; nothing was written"
    )


def print_corpus(built: BuildResult, seconds: float, as_json: bool) -> None:
    """What a corpus contains, and what was dropped."""
    manifest, folder = built.shards.manifest, built.shards.folder
    counts, splits = manifest["counts"], manifest["splits"]
    shards = sum(map(len, splits.values()))
    if as_json:
        documents = {name: sum(entry["documents"] for entry in entries) for name, entries in splits.items()}
        state = {
            "corpus": str(folder),
            "is_complete": built.was_complete,
            "resumed": built.was_resumed,
            "counts": counts,
        }
        print_json({**state, "documents": documents, "shards": shards})
        return
    if built.was_complete:
        click.echo(f"{folder} is complete: {counts['tokens']:,} tokens; nothing was done")
        return
    click.echo(
        f"{folder}: {counts['tokens']:,} tokens, {counts['sentences']:,} sentences, "
        f"{counts['documents_kept']:,} documents in {shards:,} shards"
    )
    click.echo(
        f"dropped: {counts['duplicates']:,} duplicate documents, {counts['too_short']:,} short documents, "
        f"{counts['paragraph_duplicates']:,} duplicate paragraphs, {counts['bad_lines']:,} bad lines"
    )
    if not built.was_resumed and seconds > 1:
        click.echo(f"{counts['tokens_read'] / seconds / 1e6:.2f} million tokens per second", err=True)


@command(example="albertkit pretrain shards -o run --shape small --minutes 30")
@click.argument("shards", type=PATH)
@option("-o", "--output", type=PATH, required=True, help="Folder for checkpoints, metrics and the model.")
@option("-m", "--model", help="Continue from this model's weights instead of random ones.")
@option("--shape", default="small", show_default=True, help="A preset, or a folder or JSON file with a config.")
@config_option
@resume_option
@option("--dry-run", is_flag=True, help="Print the plan of the training and stop.")
@settings_options(TrainSettings, PretrainSettings)
def pretrain(shards: Path, output: Path, model: str | None, dry_run: bool, **values: OptionValue) -> None:
    """Pre-train a model on SHARDS, the folder that `albertkit corpus` wrote.

    The budget is one of --steps, --tokens and --minutes (default: 10 minutes). On several GPUs or machines:

      torchrun --nproc-per-node 8 -m albertkit pretrain SHARDS -o RUN --minutes 60 --resume

    --option switches on an extension of ALBERT; repeat it for several:

      --option low_rank=32 --option gru=true --option window=64 --option global_every=3

    The output folder then has checkpoints/, metrics.jsonl, tensorboard/, loss.png, and the finished model in model/.
    Ctrl-C saves a checkpoint; the same command with --resume continues, and ends with the same weights as an
    uninterrupted run (bit-identical on a CPU, unless the budget is in minutes).
    """
    need("torch", "train", "pre-training")
    set_default_budget(values)
    settings, goals = take_settings(TrainSettings, values), take_settings(PretrainSettings, values)
    from albertkit.artifact import read_artifact
    from albertkit.builtin import resolve
    from albertkit.train.loop import train
    from albertkit.train.pretrain import PretrainTask, describe

    start = read_artifact(resolve(model)) if model else None
    if start and values["options"]:
        raise AlbertkitError("--option was passed with --model; a model keeps its own options. Omit one of the two.")
    config = start.config if start else read_shape(values["shape"], values["options"])
    task = PretrainTask(shards, config, settings, goals, start)
    if dry_run:
        print_table(
            [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in describe(task).items()]
        )
        return
    result = train(task, settings, output, resume=values["resume"], log=log, progress_bar=True)
    if result.model is not None and os.environ.get("RANK", "0") == "0":
        print_json({"model": str(result.model), "tokens": result.state.tokens, **result.metrics})


def set_default_budget(values: dict[str, Any]) -> None:
    """Give a training without a budget ten minutes, and say so."""
    if all(values[name] is None for name in ("steps", "tokens", "minutes")):
        values["minutes"] = DEFAULT_MINUTES
        click.echo(f"no budget was passed: training for {DEFAULT_MINUTES:g} minutes", err=True)


def read_shape(shape: str, options: Sequence[str] = ()) -> AlbertConfig:
    """A config by preset name, or from a model folder or a JSON file; with options such as low_rank=32."""
    from albertkit.config import AlbertConfig, preset
    from albertkit.file_io import read_json
    from albertkit.options import given_options

    path = Path(shape)
    try:
        if path.is_dir() or path.suffix == ".json":
            config = AlbertConfig.from_dict(read_json(path / "config.json" if path.is_dir() else path))
        else:
            config = preset(shape)
    except AlbertkitError as error:
        hint = "" if path.suffix == ".json" or path.is_dir() else " Or pass a folder or a .json file."
        raise AlbertkitError(f"{error}{hint}") from None
    return config.replace(options=given_options(options, config.options)) if options else config
