"""The verbs of pre-training's text: corpus, tokenizer. As in `cli/entry_point.py`: arguments → calls → printed results."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    from albertkit.data.corpus import Built
    from albertkit.data.estimate import Estimate
    from albertkit.data.workers import Cut

path = click.Path(path_type=Path)
texts_argument = click.argument("texts", nargs=-1, required=True)
field_option = click.option("--field", help="JSONL field or Parquet column with the text  [default: text]")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of sentences.")


@click.command(epilog="Example:  albertkit corpus wiki/ books.jsonl.zst -o shards/ --tokenizer vocabulary/")
@texts_argument
@click.option("-o", "--output", type=path, required=True, help="Folder of the corpus.")
@click.option("--tokenizer", type=path, help="Model folder, spiece.model or vocab.txt  [default: English]")
@field_option
@click.option("--workers", type=click.IntRange(1, 256), help="Processes  [default: one for each core]")
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", help="Where they run: here, or on Ray.")
@click.option("--address", help="With --engine ray: a running cluster  [default: one on this machine]")
@click.option("--dedupe", default="documents", show_default=True, help="Keep once: documents, paragraphs or none.")
@click.option("--min-tokens", default=16, show_default=True, help="Drop documents with fewer tokens.")
@click.option("--held-out", default=0.005, show_default=True, help="Share of documents kept out of training.")
@click.option("--max-sentence", default=512, show_default=True, help="Cut sentences with more tokens.")
@click.option("--shard-tokens", default=16_000_000, show_default=True, help="Most tokens in a shard.")
@click.option("--max-unknown", default=0.2, show_default=True, help="Stop when more of the tokens are unknown.")
@click.option("--skip-bad", is_flag=True, help="Pass over lines that are no text, instead of stopping.")
@click.option("--force", is_flag=True, help="Replace the corpus that is there.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@as_json
def corpus(
    texts: tuple[str, ...],
    output: Path,
    tokenizer: Path | None,
    workers: int | None,
    engine: str,
    address: str | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Make shards for pre-training out of TEXTS: token ids with the ends of sentences and documents.

    TEXTS are files or folders of plain text (a paragraph a line, an empty line between documents), JSONL or Parquet,
    also packed (.gz, .xz, .zst), or - for stdin. Stopped or killed, the same command goes on where it was.
    """
    from albertkit.cli.entry_point import open_tokenizer
    from albertkit.data.corpus import build
    from albertkit.data.corpus_settings import Settings
    from albertkit.data.estimate import estimate

    settings = Settings(**options)
    vocabulary = open_tokenizer(tokenizer)
    if dry_run:
        say_estimate(estimate(texts, vocabulary, settings), output, as_json)
        return
    start = time.perf_counter()
    with bar() as step, cutting(engine, address) as cut:
        built = build(texts, output, vocabulary, settings, workers=workers, force=force, progress=step, cut=cut)
    say_built(built, time.perf_counter() - start, as_json)


@contextmanager
def cutting(engine: str, address: str | None) -> Iterator[Cut]:
    """Who cuts text into tokens."""
    from albertkit.data.workers import cut_blocks

    if engine == "local":
        if address is not None:
            raise AlbertkitError(f"--address is {address!r}, and only Ray has one; add --engine ray")
        yield cut_blocks
        return
    from functools import partial

    from albertkit.bulk.ray_corpus import cut_on_ray

    with redirect_stdout(sys.stderr):  # where Ray says what happened to a worker
        yield partial(cut_on_ray, address=address)


def say_estimate(found: Estimate, output: Path, as_json: bool) -> None:
    """What --dry-run prints."""
    if as_json:
        click.echo(json.dumps({"corpus": str(output), **asdict(found)}))
        return
    click.echo(
        f"{output}: about {found.tokens:,} tokens from {found.inputs:,} inputs of {found.bytes / 1e6:,.1f} MB, in "
        f"{found.shards:,} shards of {found.corpus_bytes / 1e6:,.1f} MB together; nothing was written"
    )


def say_built(built: Built, seconds: float, as_json: bool) -> None:
    """What was made, or was there."""
    shards = built.shards
    counts, splits = shards.manifest["counts"], shards.manifest["splits"]
    if as_json:
        held = {name: sum(entry["documents"] for entry in entries) for name, entries in splits.items()}
        rows = {"corpus": str(shards.folder), "there": built.there, "resumed": built.resumed, "counts": counts}
        click.echo(json.dumps({**rows, "documents": held, "shards": sum(map(len, splits.values()))}))
        return
    if built.there:
        click.echo(f"{shards.folder} is finished: {counts['tokens']:,} tokens; nothing was done")
        return
    click.echo(
        f"{shards.folder}: {counts['tokens']:,} tokens, {counts['sentences']:,} sentences, "
        f"{counts['documents_kept']:,} documents in {sum(map(len, splits.values())):,} shards"
    )
    click.echo(
        f"dropped: {counts['duplicates']:,} documents that came before, {counts['too_short']:,} too short, "
        f"{counts['paragraph_duplicates']:,} paragraphs, {counts['bad_lines']:,} bad lines"
    )
    if not built.resumed and seconds > 1:
        click.echo(f"{counts['tokens_read'] / seconds / 1e6:.2f} million tokens a second", err=True)


@click.command(epilog="Example:  albertkit tokenizer wiki/ -o vocabulary/ --vocab-size 30000 --max-mb 200")
@texts_argument
@click.option("-o", "--output", type=path, required=True, help="A new folder for the tokenizer.")
@click.option("--vocab-size", default=30_000, show_default=True, help="The most tokens.")
@click.option(
    "--kind", type=click.Choice(["unigram", "wordpiece"]), default="unigram", show_default=True, help="Kind of pieces."
)
@click.option("--cased", is_flag=True, help="Keep capital letters.")
@click.option("--accents", is_flag=True, help="Keep accents.")
@click.option("--min-count", default=2, show_default=True, help="WordPiece: least count of a pair that is joined.")
@click.option("--max-mb", type=click.IntRange(min=1), help="Learn from so many MB, evenly over TEXTS  [default: all]")
@field_option
@as_json
def tokenizer(
    texts: tuple[str, ...],
    output: Path,
    vocab_size: int,
    kind: str,
    cased: bool,
    accents: bool,
    min_count: int,
    max_mb: int | None,
    field: str | None,
    as_json: bool,
) -> None:
    """Learn a vocabulary from TEXTS: SentencePiece unigram (English ALBERT) or WordPiece (Chinese ALBERT).

    TEXTS are what `corpus` takes. A hundred megabytes are plenty; memory grows with the number of different words.
    """
    from albertkit.artifact import new_folder
    from albertkit.data.block_reader import CORPUS_FORMATS
    from albertkit.data.documents import paragraphs
    from albertkit.text_reader import find_text_files
    from albertkit.tokenizer import Tokenizer

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise AlbertkitError(f"{output} exists and is not empty; name a new folder")
    sources = find_text_files(texts, field, CORPUS_FORMATS)
    total = sum(source.size for source in sources)
    with bar() as step:

        def read() -> Iterator[str]:
            for text, done in paragraphs(sources, field, None if max_mb is None else max_mb * 10**6):
                step("read", done, total, 0)
                yield text
            step("learn", total, total, 0)

        made = Tokenizer.train(
            read(),
            kind,  # type: ignore[arg-type]
            vocab_size,
            lower=not cased,
            keep_accents=accents,
            min_count=min_count,
        )
    with new_folder(output) as scratch:
        made.save(scratch)
    if as_json:
        click.echo(json.dumps({"tokenizer": str(output), "kind": made.kind, "vocabulary": made.vocab_size}))
    else:
        click.echo(f"{output}: {made.kind}, {made.vocab_size:,} tokens")


@contextmanager
def bar() -> Iterator[Callable[[str, int, int, int], None]]:
    """A bar on stderr where that is a terminal: bytes of input done, and tokens a second."""
    from tqdm import tqdm

    shown = tqdm(unit="B", unit_scale=True, disable=not sys.stderr.isatty(), leave=False)
    begun: dict[str, tuple[float, int]] = {}

    def step(stage: str, done: int, total: int, tokens: int) -> None:
        if shown.disable:
            return
        if stage not in begun:
            begun[stage] = (time.perf_counter(), tokens)
            shown.reset(total or None)
            shown.set_description(stage)
        start, first = begun[stage]
        if tokens > first:
            rate = (tokens - first) / max(time.perf_counter() - start, 1e-9)
            shown.set_postfix_str(f"{tokens / 1e6:,.1f} M tokens, {rate / 1e6:.2f} M/s", refresh=False)
        shown.update(done - shown.n)

    with shown:
        yield step
