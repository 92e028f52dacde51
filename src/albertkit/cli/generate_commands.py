"""The verbs that write: `generate` with a fine-tuned model, `infill` with a pre-trained one.

In: arguments. Out: calls of `Albert.generate` and `Albert.infill`, printed. With `cli/entry_point.py` and its other parts, the only files that print.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from albertkit.cli.task_commands import as_json, depth, folder, lines

bits = click.option("--bits", type=click.Choice(["8", "4"]), help="Quantise on opening.")


@click.command(
    epilog="Example:  albertkit generate questions/model 'Paris | The capital of France is Paris.' --beams 4"
)
@click.argument("model", type=folder)
@click.argument("texts", nargs=-1)
@click.option("--beams", default=1, show_default=True, type=click.IntRange(1, 100), help="Texts kept side by side.")
@click.option("--sample", is_flag=True, help="Draw words by their probability, instead of taking the likeliest.")
@click.option(
    "--temperature", default=1.0, show_default=True, help="With --sample: below 1 draws likely words more often."
)
@click.option(
    "--top-p", default=1.0, show_default=True, help="With --sample: draw among the likeliest words of this share."
)
@click.option("--seed", default=0, show_default=True, help="With --sample: decides what is drawn.")
@click.option(
    "--no-repeat",
    default=0,
    type=click.IntRange(0, 100),
    help="Write no run of so many tokens twice: 3 helps where a model goes in circles.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens to write  [default: as it was trained]")
@depth
@bits
@as_json
def generate(
    model: Path, texts: tuple[str, ...], depth: int | None, bits: str | None, as_json: bool, **style: Any
) -> None:
    """Write a text from each of TEXTS (or the lines of stdin), with a MODEL made by `albertkit finetune generate`."""
    from albertkit.albert import Albert

    given = lines(texts)
    albert = Albert(model, bits=None if bits is None else int(bits))
    for text, found in zip(given, albert.generate(given, depth=depth, **style), strict=True):
        if as_json:
            click.echo(json.dumps({"source": text, **asdict(found)}, ensure_ascii=False))
        else:
            click.echo(found.text)


@click.command(epilog="Example:  albertkit infill 'The [MASK:3] of France is Paris.'")
@click.argument("texts", nargs=-1)
@click.option("-m", "--model", type=folder, help="Model folder  [default: the built-in English model]")
@click.option("--length", help="Tokens of a [MASK] that says nothing itself: 3, or a range such as 1-4  [default: 1]")
@click.option("--rounds", default=10, show_default=True, help="Times that what is least sure is filled again, at most.")
@click.option("-k", default=1, show_default=True, type=click.IntRange(1, 256), help="Lengths to show, the best first.")
@depth
@bits
@as_json
def infill(
    texts: tuple[str, ...],
    model: Path | None,
    length: str | None,
    rounds: int,
    k: int,
    depth: int | None,
    bits: str | None,
    as_json: bool,
) -> None:
    """Fill blanks of several words in TEXTS (or the lines of stdin), without any training.

    [MASK:3] stands for three tokens, [MASK:1-4] for one to four, of which the best length is kept. All masks are filled at once; then
    those that are least sure are masked and filled again, fewer in each round (mask-predict).
    """
    from albertkit.albert import Albert

    albert = Albert(model, bits=None if bits is None else int(bits))
    for text in lines(texts):
        for one in albert.infill(text, length, rounds=rounds, k=k, depth=depth):
            if as_json:
                click.echo(json.dumps({"source": text, **asdict(one)}, ensure_ascii=False))
            else:
                click.echo(one.text if k == 1 else f"{one.score:8.3f}  {one.text}")


VERBS = (generate, infill)
