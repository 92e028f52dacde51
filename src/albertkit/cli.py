"""The command line: verbs, and nothing but reading arguments and printing.

Every verb imports what it needs when it runs, so that `albertkit --help` stays quick and a torch-free install works. This is
the only file that prints. Results go to stdout, notes and errors to stderr; an error is one sentence and exit code 2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from albertkit import __version__
from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    from albertkit.tokenizer import Tokenizer

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of a table.")
force = click.option("--force", is_flag=True, help="Replace what is there.")
path = click.Path(path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def app() -> None:
    """The ALBERT toolkit: one compact transformer, from raw text to a deployed service.

    \b
    albertkit plan base                     what a shape costs
    albertkit tokenize 'this is a test'     the pieces of a text
    albertkit info FOLDER                   describe any ALBERT checkpoint
    albertkit convert FOLDER OUT            turn it into an artifact
    """


@app.command(epilog="Example:  cat notes.txt | albertkit tokenize --json")
@click.argument("texts", nargs=-1)
@click.option("-m", "--model", type=path, help="Model folder, spiece.model or vocab.txt  [default: English]")
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


@app.command(epilog="Example:  albertkit plan xlarge --length 512 --batch 8")
@click.argument("shape", default="base")
@click.option("--length", default=128, show_default=True, help="Tokens in a text.")
@click.option("--batch", default=32, show_default=True, help="Texts at a time.")
@as_json
def plan(shape: str, length: int, batch: int, as_json: bool) -> None:
    """Tell what a SHAPE costs: parameters, operations, bytes, memory.

    SHAPE is a preset (tiny-zh, small-zh, small, base, large, xlarge, xxlarge; base-v1 for version 1) or a model
    folder.
    """
    from albertkit.compress.plan import plan as make_plan
    from albertkit.config import AlbertConfig, preset

    if Path(shape).is_dir():
        from albertkit.artifact import read_json

        config = AlbertConfig.from_dict(read_json(Path(shape) / "config.json"))
    else:
        config = preset(shape)
    made = make_plan(config, length, batch)
    if as_json:
        click.echo(json.dumps({"config": config.to_dict(), **asdict(made)}, indent=2))
        return
    click.echo(
        f"{shape}: {made.parameters['total']:,} parameters ({made.unshared:,} without sharing and factorisation)"
    )
    table("parameters", [(part, f"{n:,}") for part, n in made.parameters.items()])
    table(
        f"operations for a token (length {length})",
        [(part, f"{n / 1e6:,.2f} M") for part, n in made.operations.items()],
    )
    table("weights", [(kind, megabytes(n)) for kind, n in made.bytes.items()])
    table(
        f"memory beside the weights ({batch} texts of {length} tokens, float32)",
        [(part, megabytes(n)) for part, n in made.memory.items()],
    )


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


# What the verbs share --------------------------------------------------------------------------------------------


def open_tokenizer(model: Path | None) -> Tokenizer:
    """A tokenizer from a model folder, a vocabulary file, or the English vocabulary in the package."""
    from albertkit.tokenizer import Tokenizer

    if model is None:
        return Tokenizer.from_spiece(Path(__file__).parent / "models" / "spiece.model")
    if model.is_dir():
        return Tokenizer.load(model)
    if model.suffix == ".txt":
        return Tokenizer.from_vocab(model)
    return Tokenizer.from_spiece(model)


def read_texts(texts: tuple[str, ...], file: Path | None) -> Iterator[str]:
    """Texts from the arguments, else lines of a file, else lines of stdin; empty lines are passed over."""
    if texts:
        if file is not None:
            raise AlbertkitError("texts were given both as arguments and with --file; choose one")
        yield from texts
        return
    if file is None and sys.stdin.isatty():
        raise AlbertkitError("no text was given; write it behind the command, name a --file, or pipe it in")
    name = "stdin" if file is None else str(file)
    try:
        source = sys.stdin.buffer if file is None else file.open("rb")
    except OSError as error:
        raise AlbertkitError(f"{name} cannot be read: {error.strerror}") from None
    with source:
        for number, line in enumerate(source, 1):
            try:
                text = line.decode("utf-8").strip()
            except UnicodeDecodeError:
                raise AlbertkitError(f"line {number} of {name} is not UTF-8; convert the file first") from None
            if text:
                yield text


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
    except (click.Abort, KeyboardInterrupt):
        click.echo("albertkit: stopped", err=True)
        code = 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; python would complain about stdout at exit
    sys.exit(code)


if __name__ == "__main__":
    main()
