"""Commands that apply a pre-trained model to texts: embed, similar, fill, infill; and generate.

In: arguments. Out: calls of `Albert`, printed. Commands for fine-tuned models are in `task_commands.py`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import click

from albertkit.cli.arguments import (
    PATH,
    ModelOptions,
    OptionValue,
    TextInput,
    advanced_option,
    command,
    force_option,
    json_option,
    model_options,
    option,
    text_input,
)
from albertkit.cli.bulk_options import BulkInput, bulk_options
from albertkit.cli.console import print_json, print_table, shorten, track_progress
from albertkit.errors import AlbertkitError

T = TypeVar("T")
MAX_COMPARED = 1000


@command(example="cat notes.txt | albertkit embed -o notes.npy")
@text_input
@model_options(early_exit=True)
@option("-o", "--output", type=PATH, help="Write .npy, .jsonl or .parquet  [default: JSON lines on stdout]")
@option("--dim", type=click.IntRange(min=1), help="Keep only the first dimensions of each vector.")
@option("--prompt", help="Text, or name of one of the model's prompts, to put before each text.")
@option("--pooling", type=click.Choice(["mean", "cls", "pooler", "max"]), help="Pooling  [default: the model's]")
@force_option
@advanced_option("--layer", type=int, help="Hidden state to use: 0 the embeddings, -1 the last.")
@advanced_option(
    "--long-texts",
    type=click.Choice(["split", "truncate", "error"]),
    default="split",
    show_default=True,
    help="What to do with texts longer than the model's maximum.",
)
@bulk_options
def embed(
    texts: TextInput,
    model: ModelOptions,
    output: Path | None,
    force: bool,
    bulk: BulkInput,
    **embed_options: OptionValue,
) -> None:
    """Compute sentence vectors of TEXTS, or of the lines of --file or stdin.

    Works in a pipe and in bounded memory. If you stop it with Ctrl-C, the finished vectors are in OUTPUT.part.

    With --engine, many files in several processes:

      albertkit embed --engine local 'texts/*.jsonl' -o vectors
    """
    options = {**embed_options, "depth": model.depth, "early_exit": model.early_exit}
    if bulk.run("embed", texts, model, output, options):
        return
    from albertkit.vector_writer import open_vector_writer, vector_json

    albert = model.open()
    exit_depths: Counter[int] = Counter()
    vectors = pair_with_input(
        texts, lambda given: albert.embed_iter(given, **options, on_exit=lambda depth: exit_depths.update([depth]))
    )
    if output is None:
        for text, vector in vectors:
            click.echo(vector_json(text, vector))
    else:
        with open_vector_writer(output, force) as write:
            for text, vector in track_progress(vectors, "texts"):
                write(text, vector)
    report_exits(list(exit_depths.elements()), model.depth or albert.depth)


def pair_with_input(texts: Iterable[str], compute: Callable[[Iterator[str]], Iterable[T]]) -> Iterator[tuple[str, T]]:
    """Each text with its result, from a function that reads ahead."""
    pending: deque[str] = deque()

    def remember() -> Iterator[str]:
        for text in texts:
            pending.append(text)
            yield text

    for result in compute(remember()):
        yield pending.popleft(), result


def report_exits(depths: list[int], full_depth: int) -> None:
    """How many layers texts took with early exit, on stderr."""
    if depths:
        mean = sum(depths) / len(depths)
        click.echo(
            f"{mean:.2f} layers per text on average, {full_depth / mean:.2f} × fewer than {full_depth}", err=True
        )


@command(example="albertkit similar 'a cat sat' 'the dog stood'")
@text_input
@model_options()
@json_option
def similar(texts: TextInput, model: ModelOptions, as_json: bool) -> None:
    """Compare TEXTS, or the lines of --file or stdin: the cosine similarity of each pair."""
    compared = list(texts)
    if not 2 <= len(compared) <= MAX_COMPARED:
        raise AlbertkitError(
            f"{len(compared)} texts were passed; similar compares 2 to {MAX_COMPARED:,}. "
            "For more, use index and search."
        )
    scores = model.open().similarity(compared, depth=model.depth)
    if as_json:
        print_json({"texts": compared, "scores": [[round(float(score), 6) for score in row] for row in scores]})
        return
    numbers = [str(number) for number in range(1, len(compared) + 1)]
    print_table(
        [
            (number, shorten(text, 40), *(f"{score:.2f}" for score in row))
            for number, text, row in zip(numbers, compared, scores, strict=True)
        ],
        header=("", "", *numbers),
    )


@command(example="albertkit fill 'the capital of france is [MASK].'")
@text_input
@model_options()
@option("-k", default=5, show_default=True, type=click.IntRange(1, 1000), help="Predictions per mask.")
@json_option
def fill(texts: TextInput, model: ModelOptions, k: int, as_json: bool) -> None:
    """Predict the word behind each [MASK] in TEXTS, or in the lines of --file or stdin."""
    albert = model.open()
    for text in texts:
        for predictions in albert.fill_mask(text, k=k, depth=model.depth):
            if as_json:
                print_json({"text": text, "predictions": predictions})
                continue
            for prediction in predictions:
                click.echo(f"{prediction.score:6.1%}  {prediction.word}\t{prediction.text}")


@command(example="albertkit infill 'The [MASK:3] of France is Paris.'")
@text_input
@model_options()
@option("--length", help="Tokens of a plain [MASK]: 3, or a range such as 1-4  [default: 1]")
@option("-k", default=1, show_default=True, type=click.IntRange(1, 256), help="Lengths to show, the best first.")
@advanced_option("--rounds", default=10, show_default=True, help="Most rounds in which uncertain tokens are refilled.")
@json_option
def infill(texts: TextInput, model: ModelOptions, length: str | None, k: int, rounds: int, as_json: bool) -> None:
    """Fill blanks of several words in TEXTS, or in the lines of --file or stdin, without any training.

    [MASK:3] stands for three tokens, [MASK:1-4] for one to four, of which the best length is kept. All masks are filled
    at once; the least confident ones are then masked and filled again, fewer in each round (mask-predict).
    """
    albert = model.open()
    for text in texts:
        for filled in albert.infill(text, length, rounds=rounds, k=k, depth=model.depth):
            if as_json:
                print_json({"source": text, **vars(filled)})
            else:
                click.echo(filled.text if k == 1 else f"{filled.score:8.3f}  {filled.text}")


@command(example="albertkit generate -m questions/model 'Paris | The capital of France is Paris.' --beams 4")
@text_input
@model_options(required=True)
@option("--beams", default=1, show_default=True, type=click.IntRange(1, 100), help="Width of the beam search.")
@option("--max-tokens", type=click.IntRange(min=1), help="Most tokens to generate  [default: as in training]")
@option("--no-repeat", default=0, type=click.IntRange(0, 100), help="Generate no n-gram of this length twice.")
@option("--sample", is_flag=True, help="Sample tokens by their probability instead of taking the likeliest.")
@advanced_option("--temperature", default=1.0, show_default=True, help="With --sample: below 1 prefers likely tokens.")
@advanced_option("--top-p", default=1.0, show_default=True, help="With --sample: nucleus sampling.")
@advanced_option("--seed", default=0, show_default=True, help="With --sample: random seed.")
@json_option
def generate(texts: TextInput, model: ModelOptions, as_json: bool, **settings: OptionValue) -> None:
    """Generate a text from each of TEXTS, or from the lines of --file or stdin.

    The model comes from `albertkit finetune generate`.
    """
    sources = list(texts)
    for text, result in zip(sources, model.open().generate(sources, depth=model.depth, **settings), strict=True):
        if as_json:
            print_json({"source": text, **vars(result)})
        else:
            click.echo(result.text)
