"""The command line: verbs, and nothing but reading arguments and printing.

Every verb imports what it needs when it runs, so that `albertkit --help` stays quick and a torch-free install works. This is
the only file that prints, with the other files of this package. Results go to stdout, notes and errors to stderr; an error is one sentence and exit code 2.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from albertkit import __version__
from albertkit.cli import (
    compress_commands,
    corpus_commands,
    distill_commands,
    elastic_commands,
    explain_commands,
    generate_commands,
    models_command,
    pretrain_commands,
    search_commands,
    serve_command,
    shrink_commands,
    task_commands,
)
from albertkit.cli.bulk_options import PREFIX, bulk_options, run_bulk
from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    from albertkit.albert import Albert
    from albertkit.tokenizer import Tokenizer

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of a table.")
force = click.option("--force", is_flag=True, help="Replace what is there.")
path = click.Path(path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def app() -> None:
    """The ALBERT toolkit: one compact transformer, from raw text to a deployed service.

    \b
    albertkit embed 'a text'                sentence vectors
    albertkit fill 'a [MASK] text'          the word that is missing
    albertkit index notes/ -o notes.idx     then: albertkit search notes.idx 'a question'
    albertkit plan base                     what a shape costs
    albertkit convert FOLDER OUT            any ALBERT checkpoint to an artifact
    """


@app.command(epilog="Example:  cat notes.txt | albertkit tokenize --json")
@click.argument("texts", nargs=-1)
@click.option(
    "-m", "--model", type=path, help="Model, spiece.model or vocab.txt  [default: the built-in English model]"
)
@click.option("-f", "--file", type=path, help="Read texts from a file, one a line.")
@click.option("--pair", help="A second text, put behind each text as segment 1.")
@click.option("--max-length", type=click.IntRange(min=1), help="Cut to this many tokens.")
@as_json
def tokenize(
    texts: tuple[str, ...],
    model: Path | None,
    file: Path | None,
    pair: str | None,
    max_length: int | None,
    as_json: bool,
) -> None:
    """Show the pieces of TEXTS: ids, segments and the characters each one covers.

    Without TEXTS, each line of --file or of stdin is one text.
    """
    tokenizer = open_tokenizer(model)
    for text in read_texts(texts, file):
        encoding = tokenizer.encode(text, pair, max_length=max_length)
        pieces = tokenizer.tokens(encoding.ids)
        if as_json:
            row = {
                "text": text,
                "tokens": pieces,
                "ids": encoding.ids,
                "segments": encoding.segments,
                "offsets": encoding.offsets,
            }
            click.echo(json.dumps(row, ensure_ascii=False))
        else:
            click.echo(" ".join(pieces))
            click.echo(" ".join(str(i) for i in encoding.ids))
        if encoding.unknown_fraction > 0.5:
            note(f"more than half of the pieces of {text[:30]!r} are unknown to this vocabulary; is it the right one?")


@app.command(epilog="Example:  albertkit info albert_tiny_zh/")
@click.argument("source", type=path)
@as_json
def info(source: Path, as_json: bool) -> None:
    """Describe a model of any kind: its layout, shape, heads, tokenizer and history.

    SOURCE is an artifact, a Hugging Face folder, a TensorFlow checkpoint, an albert_zh folder or a PL-BERT file.
    """
    from albertkit.interop.convert import open_model
    from albertkit.weights import size

    artifact = open_model(source)
    meta, tokenizer = artifact.meta, artifact.tokenizer
    encoder = {n: a.shape for n, a in artifact.weights.items() if n.startswith("encoder.")}
    about: dict[str, Any] = {
        "path": str(source),
        "parameters": size(encoder),
        "heads": artifact.heads,
        "task": meta.task,
        "labels": list(meta.labels),
        "tokenizer": None if tokenizer is None else {"kind": tokenizer.kind, "pieces": tokenizer.vocab_size},
        "metrics": meta.metrics,
        "config": artifact.config.to_dict(),
        "made": list(meta.made),
    }
    if as_json:
        click.echo(json.dumps(about, indent=2, ensure_ascii=False))
        return
    table("model", [(key, show(value)) for key, value in about.items() if key not in ("config", "made")])
    table("config", [(key, show(value)) for key, value in about["config"].items()])
    if meta.made:
        table("how it was made", [(str(i), show(step)) for i, step in enumerate(meta.made, 1)])


@app.command(epilog="Example:  albertkit convert albert_base/model.ckpt-best my-albert/")
@click.argument("source", type=path)
@click.argument("target", type=path)
@force
@as_json
def convert(source: Path, target: Path, force: bool, as_json: bool) -> None:
    """Read any ALBERT checkpoint and write it as an artifact folder, which transformers opens too.

    SOURCE is a Hugging Face folder, a TensorFlow checkpoint, an albert_zh folder or a PL-BERT file; TARGET the
    folder to write.
    """
    from albertkit.interop.convert import convert as run

    artifact = run(source, target, overwrite=force)
    step = artifact.meta.made[-1] if artifact.meta.made else {}
    if as_json:
        click.echo(json.dumps({"source": str(source), "target": str(target), "heads": artifact.heads, **step}))
        return
    click.echo(f"{target}: {step.get('layout', 'artifact')}, heads: {', '.join(artifact.heads) or 'none'}")
    if artifact.config.options.active():
        note("this layout is not transformers' own, so transformers will refuse the folder; albertkit reads it")


model = click.option(
    "-m", "--model", type=path, help="A folder of any kind, or a name  [default: the built-in English model]"
)
bits = click.option("--bits", type=click.Choice(["8", "4"]), help="Quantise a float model on opening.")
threads = click.option("--threads", type=click.IntRange(1, 1024), help="Processors to use  [default: all]")
depth = click.option("--depth", type=click.IntRange(1, 1024), help="Layers to apply  [default: the model's]")


@app.command(epilog="Example:  cat notes.txt | albertkit embed -o notes.npy")
@click.argument("texts", nargs=-1)
@model
@click.option("-f", "--file", type=path, help="Read texts from a file, one a line.")
@click.option("-o", "--output", type=path, help="Write .npy, .jsonl or .parquet  [default: JSON lines on stdout]")
@click.option("--pooling", type=click.Choice(["mean", "cls", "pooler", "max"]), help="[default: the model's]")
@click.option("--layer", type=int, help="Hidden state to use: 0 the embeddings, -1 the last.")
@depth
@click.option("--dim", type=click.IntRange(min=1), help="Keep only the first numbers of each vector.")
@click.option(
    "--long-texts",
    type=click.Choice(["split", "truncate", "error"]),
    default="split",
    show_default=True,
    help="Texts beyond the model's length.",
)
@click.option("--prompt", help="Text, or name of one of the model's prompts, to put before each text.")
@click.option("--early-exit", help="Leave when the vector stops moving: 99% (after calibrate), or cosine:0.99.")
@bits
@threads
@force
@bulk_options
def embed(
    texts: tuple[str, ...],
    model: Path | None,
    file: Path | None,
    output: Path | None,
    bits: str | None,
    threads: int | None,
    force: bool,
    **settings: Any,
) -> None:
    """Sentence vectors of TEXTS, or of each line of --file or stdin.

    Works in a pipe and in bounded memory. Stopped by Ctrl-C, it leaves the vectors finished so far in OUTPUT.part and says
    how to go on.

    With --engine, many files in several processes:  albertkit embed --engine local 'texts/*.jsonl' --out vectors
    """
    from albertkit.vector_writer import open_vector_writer, vector_json

    bulk = {name: settings.pop(name) for name in list(settings) if name.startswith(PREFIX)}
    if bulk[f"{PREFIX}engine"] and (file or output):
        raise AlbertkitError(
            "--file and --output do not go with --engine; name files behind the verb, and a folder with --out"
        )
    if run_bulk("embed", texts, model, settings, bulk, bits, threads):
        return
    albert = open_albert(model, bits, threads)
    left: Counter[int] = Counter()
    found = paired(
        read_texts(texts, file), lambda t: albert.embed_iter(t, **settings, on_exit=lambda at: left.update([at]))
    )
    if output is None:
        for text, vector in found:
            click.echo(vector_json(text, vector))
    else:
        with open_vector_writer(output, force) as write:
            for text, vector in progress(found, "texts"):
                write(text, vector)
    if left:
        mean, full = sum(at * count for at, count in left.items()) / left.total(), settings["depth"] or albert.depth
        click.echo(f"{mean:.2f} layers a text on average, {full / mean:.2f} times fewer than {full}", err=True)


@app.command(epilog="Example:  albertkit similar 'a cat sat' 'the dog stood'")
@click.argument("texts", nargs=-1)
@model
@click.option("-f", "--file", type=path, help="Read texts from a file, one a line.")
@depth
@bits
@threads
@as_json
def similar(
    texts: tuple[str, ...],
    model: Path | None,
    file: Path | None,
    depth: int | None,
    bits: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """A table of the similarities (cosine) of TEXTS, all with all."""
    found = list(read_texts(texts, file))
    if not 2 <= len(found) <= 1000:
        raise AlbertkitError(f"{len(found)} texts were given; give 2 to 1,000, or use index and search for more")
    scores = open_albert(model, bits, threads).similarity(found, depth=depth)
    if as_json:
        click.echo(
            json.dumps(
                {"texts": found, "scores": [[round(float(x), 6) for x in row] for row in scores]}, ensure_ascii=False
            )
        )
        return
    width = max(len(text[:40]) for text in found)
    click.echo(" " * (width + 6) + "  ".join(f"{i:>5}" for i in range(1, len(found) + 1)))
    for number, (text, row) in enumerate(zip(found, scores, strict=True), 1):
        click.echo(f"{number:>2}  {text[:40]:<{width}}  " + "  ".join(f"{x:5.2f}" for x in row))


@app.command(epilog="Example:  albertkit fill 'the capital of france is [MASK].'")
@click.argument("texts", nargs=-1)
@model
@click.option("-f", "--file", type=path, help="Read texts from a file, one a line.")
@click.option("-k", default=5, show_default=True, type=click.IntRange(1, 1000), help="Words for each mask.")
@depth
@bits
@threads
@as_json
def fill(
    texts: tuple[str, ...],
    model: Path | None,
    file: Path | None,
    k: int,
    depth: int | None,
    bits: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """The likeliest words for each [MASK] in TEXTS."""
    albert = open_albert(model, bits, threads)
    for text in read_texts(texts, file):
        for guesses in albert.fill_mask(text, k=k, depth=depth):
            if as_json:
                click.echo(json.dumps({"text": text, "guesses": [asdict(g) for g in guesses]}, ensure_ascii=False))
                continue
            for guess in guesses:
                click.echo(f"{guess.score:6.1%}  {guess.word}\t{guess.text}")


# `static`, `export`, `profile` and `plan` stand in cli/compress_commands.py, `prune` and `quantize` in cli/shrink_commands.py, `distill` in cli/distill_commands.py, `corpus` and `tokenizer` in cli/corpus_commands.py, `index`, `search` and `cluster` in cli/search_commands.py, `pretrain` in cli/pretrain_commands.py,
# those of the tasks in cli/task_commands.py, `elastic` and `calibrate` in cli/elastic_commands.py, `explain` in cli/explain_commands.py, `generate` and `infill` in cli/generate_commands.py, `models` in cli/models_command.py, `serve` in cli/serve_command.py.
for _verb in (
    *compress_commands.VERBS,
    *shrink_commands.VERBS,
    corpus_commands.corpus,
    corpus_commands.tokenizer,
    search_commands.index,
    search_commands.search,
    search_commands.cluster,
    pretrain_commands.pretrain,
    distill_commands.distill,
    *task_commands.VERBS,
    *elastic_commands.VERBS,
    *explain_commands.VERBS,
    *generate_commands.VERBS,
    models_command.models,
    serve_command.serve,
):
    _verb.context_settings.setdefault("help_option_names", ["-h", "--help"])  # also where a verb is called by itself
    app.add_command(_verb)


# What the verbs share --------------------------------------------------------------------------------------------


def open_tokenizer(model: Path | None) -> Tokenizer:
    """A tokenizer from a model, a vocabulary file, or the built-in model."""
    from albertkit.builtin import resolve
    from albertkit.tokenizer import Tokenizer

    model = resolve(model)
    if model.is_dir():
        return Tokenizer.load(model)
    if model.suffix == ".txt":
        return Tokenizer.from_vocab(model)
    return Tokenizer.from_spiece(model)


def open_albert(model: Path | None, bits: str | None = None, threads: int | None = None) -> Albert:
    """A model ready to run."""
    from albertkit.albert import Albert

    return Albert(model, bits=None if bits is None else int(bits), threads=threads)


def paired(texts: Iterator[str], work: Any) -> Iterator[tuple[str, Any]]:
    """Each text with its result, from a function that reads ahead."""
    held: deque[str] = deque()

    def remember() -> Iterator[str]:
        for text in texts:
            held.append(text)
            yield text

    for result in work(remember()):
        yield held.popleft(), result


def progress(items: Any, unit: str) -> Any:
    """A progress bar on stderr, on a terminal only."""
    from tqdm import tqdm

    return tqdm(items, unit=f" {unit}", disable=not sys.stderr.isatty(), leave=False)


def quiet_or_note(text: str) -> None:
    """What a long step is doing, on a terminal only."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", err=True, nl=False)


def read_texts(texts: tuple[str, ...], file: Path | None, text_column: str | None = None) -> Iterator[str]:
    """Texts from the arguments, else from a file, else from stdin, without blank ones."""
    from albertkit import text_reader

    if not texts:
        return text_reader.read_texts(input_name(file), text_column)
    if file is not None:
        raise AlbertkitError("texts were given both as arguments and with --file. Use one of them.")
    return iter(texts)


def read_lines(file: Path | None) -> Iterator[str]:
    """The lines of a file, else of stdin, blank ones too, without their ends."""
    from albertkit import text_reader

    return (
        line for _, line in text_reader.read_lines(text_reader.find_text_files([input_name(file)], allow_pipes=True)[0])
    )


def input_name(file: Path | None) -> str:
    """The file to read, or "-" for stdin if something is piped in."""
    if file is None and sys.stdin.isatty():
        raise AlbertkitError("no text was given. Pass it as an argument, with --file, or pipe it in.")
    return "-" if file is None else str(file)


def table(title: str, rows: list[tuple[str, str]]) -> None:
    """A titled list of names and values; click drops the colour when stdout is no terminal."""
    click.echo("\n" + click.style(title, bold=True))
    width = max(len(name) for name, _ in rows)
    numbers = all(value[:1].isdigit() for _, value in rows)
    reach = max(len(value) for _, value in rows) if numbers else 0
    for name, value in rows:
        click.echo(f"  {name:<{width}}  {value:>{reach}}")


def megabytes(count: int) -> str:
    """Bytes in MB with two digits."""
    return f"{count / 1e6:,.2f} MB"


def show(value: Any) -> str:
    """A value in one short line."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items()) or "–"
    if isinstance(value, list):
        return ", ".join(str(v) for v in value) or "–"
    return "–" if value is None else str(value)


def note(text: str) -> None:
    """A remark for people, on stderr."""
    click.echo(f"note: {text}", err=True)


def main() -> NoReturn:
    """The entry point: run a verb, and turn every error into one sentence on stderr and exit code 2."""
    code = 0
    try:
        code = app(standalone_mode=False) or 0
    except AlbertkitError as error:
        click.echo(f"albertkit: {error}", err=True)
        code = 2
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        place = context.command_path if context is not None else "albertkit"
        click.echo(f"{place}: {error.format_message()} (see {place} --help)", err=True)
        code = 2
    except (OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):
            sys.stderr.close()  # the reader has gone; python would complain about stdout at exit
        else:
            why = getattr(error, "strerror", None) or "out of memory"
            click.echo(f"albertkit: {why}: {getattr(error, 'filename', None) or 'the output'}", err=True)
            code = 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("albertkit: stopped", err=True)
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
