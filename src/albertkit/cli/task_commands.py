"""Commands that apply a fine-tuned model to texts: classify, tag, intent, track, answer, choose.

In: arguments. Out: calls of `Albert`, printed. `finetune` and `evaluate` are in `finetune_commands.py`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli.arguments import (
    PATH,
    ModelOptions,
    TextInput,
    command,
    json_option,
    model_options,
    option,
    text_input,
)
from albertkit.cli.bulk_options import BulkInput, bulk_options
from albertkit.cli.console import note, print_json, result_fields
from albertkit.cli.embed_commands import report_exits
from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    from albertkit.albert import Albert
    from albertkit.tasks.examples import DialogueTurn

context_option = option("--context", type=PATH, help="File with the text to read  [default: stdin]")
output_option = option("-o", "--output", type=PATH, help="With --engine: folder of the output.")


@command(example="albertkit classify -m sentiment 'what a lovely film'")
@text_input
@model_options(required=True, early_exit=True)
@option("--pair", help="The second text of each pair.")
@json_option
@output_option
@bulk_options
def classify(
    texts: TextInput, model: ModelOptions, pair: str | None, as_json: bool, output: Path | None, bulk: BulkInput
) -> None:
    """Predict the class of TEXTS, or of the lines of --file or stdin, with its probability.

    With --engine, many files in several processes:

      albertkit classify -m sentiment --engine local 'texts/*.jsonl' -o labels
    """
    options: dict[str, Any] = {"depth": model.depth, "early_exit": model.early_exit}
    if bulk.run("classify", texts, model, output, {"pair": pair, **options}):
        return
    inputs, albert = list(texts.lines()), model.open()
    results = albert.classify(inputs, [pair] * len(inputs) if pair else None, **options)
    for text, result in zip(inputs, results, strict=True):
        if as_json:
            print_json({"text": text, **result_fields(result)})
        else:
            label = ", ".join(result.label) if isinstance(result.label, tuple) else result.label
            shown = f"{label:.4f}" if isinstance(label, float) else f"{label}\t{result.probability:.1%}"
            click.echo(f"{shown}\t{text}")
    report_depths(albert, results, model)


@command(example="albertkit tag -m ner 'Angela Merkel visited Paris.'")
@text_input
@model_options(required=True, early_exit=True)
@json_option
@output_option
@bulk_options
def tag(texts: TextInput, model: ModelOptions, as_json: bool, output: Path | None, bulk: BulkInput) -> None:
    """Find the entities in TEXTS, or in the lines of --file or stdin.

    With --engine, many files in several processes:

      albertkit tag -m ner --engine local 'texts/*.jsonl' -o entities
    """
    options: dict[str, Any] = {"depth": model.depth, "early_exit": model.early_exit}
    if bulk.run("tag", texts, model, output, options):
        return
    inputs, albert = list(texts.lines()), model.open()
    results = albert.tag(inputs, **options)
    for text, result in zip(inputs, results, strict=True):
        if as_json:
            print_json(result)
        else:
            for span in result.spans:
                click.echo(f"{span.label}\t{text[span.start : span.end]}\t{span.start}:{span.end}\t{span.score:.1%}")
    report_depths(albert, results, model)


@command(example="albertkit intent -m atis 'flights from boston to denver on monday'")
@text_input
@model_options(required=True, early_exit=True)
@json_option
def intent(texts: TextInput, model: ModelOptions, as_json: bool) -> None:
    """Predict the intent of TEXTS, or of the lines of --file or stdin, and the slots they fill."""
    inputs, albert = list(texts.lines()), model.open()
    results = albert.understand(inputs, depth=model.depth, early_exit=model.early_exit)
    for text, result in zip(inputs, results, strict=True):
        if as_json:
            print_json({"text": text, **result_fields(result)})
        else:
            slots = ", ".join(f"{span.label}={text[span.start : span.end]}" for span in result.spans)
            click.echo(f"{result.intent}\t{result.probability:.1%}\t{slots}")
    report_depths(albert, results, model)


@command(example="albertkit track -m restaurants 'a cheap place' 'thai food, please'")
@text_input
@model_options(required=True, early_exit=True)
@json_option
def track(texts: TextInput, model: ModelOptions, as_json: bool) -> None:
    """Track what a user wants after each turn of a dialogue.

    TEXTS, or the lines of --file or stdin, are what the user says, in order. A line may start with what the system said
    before, followed by a tab. An empty line starts a new dialogue.

    \b
    printf 'a cheap place\\nwhich food?\\tthai, and the phone number\\n' | albertkit track -m restaurants
    price=cheap             –      a cheap place
    food=thai, price=cheap  phone  thai, and the phone number

    The output has the state so far, what this turn requests, and the user's words, separated by tabs. With --json it
    also has what this turn adds to the state.
    """
    turns, albert = list(parse_dialogues(texts.lines())), model.open()
    results = albert.track(turns, depth=model.depth, early_exit=model.early_exit)
    for number, (turn, result) in enumerate(zip(turns, results, strict=True)):
        if as_json:
            place = {"dialogue": int(turn.dialogue), "turn": turn.number, "system": turn.system, "user": turn.user}
            print_json({**place, **result_fields(result)})
            continue
        if number and not turn.number:
            click.echo()
        state = ", ".join(f"{slot}={value}" for slot, value in sorted(result.goal.items()))
        click.echo(f"{state or '–'}\t{', '.join(sorted(result.requests)) or '–'}\t{turn.user}")
    report_depths(albert, results, model)


def parse_dialogues(lines: Iterable[str]) -> Iterator[DialogueTurn]:
    """Turns from lines: the user's words, or system, tab, user; an empty line starts a new dialogue."""
    from albertkit.tasks.examples import DialogueTurn

    dialogue = number = 0
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            dialogue, number = dialogue + (number > 0), 0
            continue
        system, tab, user = line.partition("\t")
        system, user = (system.strip(), user.strip()) if tab else ("", line.strip())
        if not user or "\t" in user:
            raise AlbertkitError(
                f"line {line_number} is {line!r:.60}; a turn has at most one tab and ends with the user's words. "
                "Write the user's words, or the system's words, a tab and the user's words."
            )
        yield DialogueTurn(str(dialogue), number, system, user)
        number += 1


@command(example="albertkit answer -m qa 'Who wrote it?' --context book.txt")
@click.argument("question")
@context_option
@model_options(required=True, early_exit=True)
@json_option
def answer(question: str, context: Path | None, model: ModelOptions, as_json: bool) -> None:
    """Answer QUESTION with words of a text of any length."""
    text, albert = read_whole(context), model.open()
    result = albert.answer(question, text, depth=model.depth, early_exit=model.early_exit)
    if as_json:
        print_json(result)
    elif result.text:
        click.echo(f"{result.text}\t{result.probability:.1%}\t{result.start}:{result.end}")
    else:
        click.echo("no answer")
    report_depths(albert, [result], model)


@command(example="albertkit choose -m race 'What is it about?' rain sun snow --context story.txt")
@click.argument("question")
@click.argument("choices", nargs=-1, required=True)
@context_option
@model_options(required=True, early_exit=True)
@json_option
def choose(question: str, choices: tuple[str, ...], context: Path | None, model: ModelOptions, as_json: bool) -> None:
    """Choose the right one of CHOICES for QUESTION about a text."""
    text, albert = read_whole(context), model.open()
    result = albert.choose(text, question, choices, depth=model.depth, early_exit=model.early_exit)
    if as_json:
        print_json(result)
    else:
        for choice, probability in zip(choices, result.probabilities, strict=True):
            click.echo(f"{'→' if choice == result.text else ' '} {probability:.1%}\t{choice}")
    report_depths(albert, [result], model)


def read_whole(file: Path | None) -> str:
    """The text of a file, or all of stdin."""
    try:
        return file.read_text("utf-8") if file else io.TextIOWrapper(sys.stdin.buffer, "utf-8").read()
    except (OSError, UnicodeDecodeError) as error:
        raise AlbertkitError(f"{file or 'stdin'} cannot be read as UTF-8 text: {error}") from None


def report_depths(albert: Albert, results: Sequence[Any], model: ModelOptions) -> None:
    """On stderr: the layers that early exit took; a note where a depth was never trained."""
    from albertkit.runtime.runtime_model import is_full_depth_only

    report_exits([result.depth for result in results if result.depth is not None], model.depth or albert.depth)
    is_shallow = model.depth is not None and model.depth != albert.depth
    has_rule = model.early_exit is not None and ":" in model.early_exit
    if (is_shallow or has_rule) and is_full_depth_only(albert.metadata.history):
        note(
            "this model was fine-tuned at its full depth only, so predictions of other depths may be wrong; "
            "train every depth with  albertkit elastic"
        )
