"""Commands that apply a model to texts: embed, similar, fill, generate; and for one task each: classify, tag, intent,
track, answer, choose.

In: arguments. Out: printed results of `Albert`, or of `bulk/` with --engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli import arguments as cli
from albertkit.cli.console import (
    echo_json,
    echo_line,
    format_table,
    note,
    print_result,
    shorten,
    to_json,
    track_progress,
)
from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    from albertkit.albert import Albert
    from albertkit.runtime.embed import TokenVectors
    from albertkit.tasks.examples import DialogueTurn

MAX_COMPARED = 1000
context_option = cli.path_option("--context", help="File with the text to read  [default: stdin]")
bulk_output_option = cli.path_option("-o", "--output", help="With --engine: output folder.")


@cli.command("cat notes.txt | albertkit embed -o notes.npy")
@cli.text_input
@cli.model_options(early_exit=True, device=True)
@cli.path_option("-o", "--output", help="Output file: .npy, .jsonl or .parquet  [default: JSON lines on stdout]")
@cli.option("--tokens", is_flag=True, help="Compute the vector of each token. Output files are .jsonl or .npz.")
@cli.option("--dim", type=click.IntRange(min=1), help="Keep only the first dimensions of each vector.")
@cli.option("--prompt", help="Prefix of each text: a text, or the name of one of the model's prompts.")
@cli.option("--pooling", type=click.Choice(["mean", "cls", "pooler", "max"]), help="Pooling  [default: the model's]")
@cli.option("--normalize/--no-normalize", default=None, help="Scale vectors to length 1  [default: the model's]")
@cli.option(
    "--space",
    type=click.Choice(["own", "shared"]),
    help="shared: one space for the English and Chinese vectors of small and small-zh  [default: own]",
)
@cli.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "int8", "binary"]),
    help="Type of the numbers. int8 is 127 times each; binary is one bit each, packed into uint8  [default: float32]",
)
@cli.force_option
@cli.advanced_option("--layer", type=int, help="Hidden state to use: 0 for the embeddings, -1 for the last layer.")
@cli.advanced_option(
    "--long-texts",
    type=click.Choice(["split", "truncate", "error"]),
    default="split",
    help="What to do with texts longer than the model's maximum.",
)
@cli.bulk_options
def embed(
    texts: cli.TextInput,
    model: cli.ModelOptions,
    output: Path | None,
    tokens: bool,
    force: bool,
    bulk: cli.BulkInput,
    **embed_options: cli.OptionValue,
) -> None:
    """Compute sentence vectors of TEXTS, or of the lines of --file or stdin.

    The command streams its input, so memory use is bounded. After Ctrl-C, OUTPUT.part contains the finished vectors.

    With --tokens, the output has the tokens of each text, the characters [start, end) that each covers, and one vector
    per token. Special tokens cover [0, 0). Texts longer than the model's maximum are truncated. A .npz file has the
    arrays vectors, tokens and offsets of all texts, and counts, the number of tokens of each text.

    Add --engine to process many files in parallel:

      albertkit embed --engine local 'texts/*.jsonl' -o vectors
    """
    if tokens:
        embed_tokens(texts, model, output, force, embed_options["layer"])
        return
    options = {**embed_options, **model.depth_options()}
    if bulk.run("embed", texts, model, output, options):
        return
    from albertkit.runtime.early_exit import last_exit_depth
    from albertkit.vector_writer import open_vector_writer, vector_json

    albert = model.open()
    exit_depths: Counter[int] = Counter()
    shown, embedded = tee(texts)  # the model reads ahead
    vector_stream = albert.embed_iter(embedded, **options, on_exit=lambda depth: exit_depths.update([depth]))
    vectors = zip(shown, vector_stream, strict=True)
    if output is None:
        for text, vector in vectors:
            echo_json(vector_json(text, vector))
    else:
        with open_vector_writer(output, force) as write:
            for text, vector in track_progress(vectors, "texts"):
                write(text, vector)
    report_exits(list(exit_depths.elements()), last_exit_depth(albert, model.depth))


def embed_tokens(
    texts: cli.TextInput, model: cli.ModelOptions, output: Path | None, force: bool, layer: int | None
) -> None:
    from albertkit.vector_writer import open_token_writer, token_json

    context = click.get_current_context()
    for name in (
        "pooling",
        "dim",
        "prompt",
        "normalize",
        "space",
        "dtype",
        "long_texts",
        "early_exit",
        "engine",
        *cli.BULK_OPTIONS,
    ):
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            raise AlbertkitError(
                f"--{name.replace('_', '-')} is not available with --tokens, which writes hidden states unchanged. "
                "Omit one of them."
            )
    albert = model.open()
    truncated = list[int]()
    shown, embedded = tee(texts)

    def results() -> Iterator[tuple[str, TokenVectors]]:
        token_stream = albert.token_vectors_iter(embedded, layer=layer, depth=model.depth)
        for number, (text, result) in enumerate(zip(shown, token_stream, strict=True), 1):
            if len(result.ids) == albert.max_tokens and max(end for _, end in result.offsets) < len(text.rstrip()):
                truncated.append(number)
            yield text, result
        if truncated:
            count = f"{len(truncated):,} of {number:,} texts {'is' if len(truncated) == 1 else 'are'}"
            note(
                f"{count} longer than the model's {albert.max_tokens} tokens and truncated; "
                f"the first is number {truncated[0]:,}. Split long texts first."
            )

    if output is None:
        for text, result in results():
            echo_json(token_json(text, result))
        return
    with open_token_writer(output, force) as write:
        for text, result in track_progress(results(), "texts"):
            write(text, result)


def report_exits(depths: list[int], full_depth: int) -> None:
    """Print the mean depth of early exit to stderr."""
    if depths:
        mean = sum(depths) / len(depths)
        echo_line(f"{mean:.2f} layers per text on average, {full_depth / mean:.2f} × fewer than {full_depth}")


@cli.command("albertkit similar 'a cat sat' 'the dog stood'")
@cli.text_input
@cli.model_options()
@cli.json_option
def similar(texts: cli.TextInput, model: cli.ModelOptions, as_json: bool) -> None:
    """Print the cosine similarity of each pair of TEXTS, or of the lines of --file or stdin."""
    from albertkit.tasks.readers.labelled_files import count_noun

    compared = list(texts)
    if not 2 <= len(compared) <= MAX_COMPARED:
        raise AlbertkitError(
            f"{count_noun(len(compared), 'text')} passed: similar compares 2 to {MAX_COMPARED:,} texts. "
            "For more texts, use index and search."
        )
    scores = model.open().similarity(compared, depth=model.depth).tolist()
    numbers = [str(number) for number in range(1, len(compared) + 1)]
    rows = [
        (number, shorten(text, 40), *(f"{score:.2f}" for score in row))
        for number, text, row in zip(numbers, compared, scores, strict=True)
    ]
    rounded = [[round(score, 6) for score in row] for row in scores]
    print_result(as_json, {"texts": compared, "scores": rounded}, format_table(rows, ("", "", *numbers)))


@cli.command("albertkit fill 'the capital of france is [MASK].'")
@cli.text_input
@cli.model_options()
@cli.option("-k", default=5, type=click.IntRange(1, 1000), help="Predictions per mask.")
@cli.json_option
def fill(texts: cli.TextInput, model: cli.ModelOptions, k: int, as_json: bool) -> None:
    """Predict the word at each [MASK] in TEXTS, or in the lines of --file or stdin."""
    albert = model.open()
    for number, text in enumerate(texts.rows(), 1):
        if not text.strip():
            raise AlbertkitError(f"text {number} is blank, but each text needs a [MASK]. Delete this line.")
        parts = text.split("[MASK]")
        for mask, predictions in enumerate(albert.fill_mask(text, k=k, depth=model.depth), 1):
            before, after = "[MASK]".join(parts[:mask]), "[MASK]".join(parts[mask:])
            lines = (f"{p.score:6.1%}  {p.word}\t{before}{p.word}{after}" for p in predictions)
            print_result(as_json, {"text": text, "predictions": predictions}, *lines)


@cli.command("albertkit generate -m questions/model 'Paris | The capital of France is Paris.' --beams 4")
@cli.text_input
@cli.model_options(required=True)
@cli.option("--beams", default=1, type=click.IntRange(1, 100), help="Number of beams; 1 is greedy search.")
@cli.option("--max-tokens", type=click.IntRange(min=1), help="Maximum tokens to generate  [default: as in training]")
@cli.option("--no-repeat", default=0, type=click.IntRange(0, 100), help="Generate no n-gram of this length twice.")
@cli.json_option
def generate(texts: cli.TextInput, model: cli.ModelOptions, as_json: bool, **settings: cli.OptionValue) -> None:
    """Generate a text from each of TEXTS, or from the lines of --file or stdin.

    Train the model with `albertkit finetune generate`.
    """
    sources = list(texts)
    for text, result in zip(sources, model.open().generate(sources, depth=model.depth, **settings), strict=True):
        print_result(as_json, {"source": text, **vars(result)}, result.text)


# Fine-tuned models --------------------------------------------------------------------------------------------------


@cli.command("albertkit classify -m sentiment 'what a lovely film'")
@cli.text_input
@cli.model_options(required=True, early_exit=True, device=True)
@cli.option("--pair", help="Second text, paired with each of TEXTS.")
@cli.json_option
@bulk_output_option
@cli.bulk_options
def classify(
    texts: cli.TextInput,
    model: cli.ModelOptions,
    pair: str | None,
    as_json: bool,
    output: Path | None,
    bulk: cli.BulkInput,
) -> None:
    """Predict the class of TEXTS, or of the lines of --file or stdin, with its probability.

    Add --engine to process many files in parallel:

      albertkit classify -m sentiment --engine local 'texts/*.jsonl' -o labels
    """
    options = model.depth_options()
    if bulk.run("classify", texts, model, output, {"pair": pair, **options}):
        return
    inputs, albert = list(texts), model.open()
    results = albert.classify(inputs, None if pair is None else [pair] * len(inputs), **options)
    second = {} if pair is None else {"pair": pair}
    for text, result in zip(inputs, results, strict=True):
        label = ", ".join(result.label) if isinstance(result.label, tuple) else result.label
        shown = f"{label:.4f}" if isinstance(label, float) else f"{label}\t{result.probability:.1%}"
        print_result(as_json, {"text": text, **second, **to_json(result)}, "\t".join([shown, text, *second.values()]))
    report_depths(albert, results, model)


@cli.command("albertkit tag -m ner 'Angela Merkel visited Paris.'")
@cli.text_input
@cli.model_options(required=True, early_exit=True, device=True)
@cli.json_option
@bulk_output_option
@cli.bulk_options
def tag(texts: cli.TextInput, model: cli.ModelOptions, as_json: bool, output: Path | None, bulk: cli.BulkInput) -> None:
    """Find the entities in TEXTS, or in the lines of --file or stdin.

    Add --engine to process many files in parallel:

      albertkit tag -m ner --engine local 'texts/*.jsonl' -o entities
    """
    if bulk.run("tag", texts, model, output, model.depth_options()):
        return
    inputs, albert = list(texts), model.open()
    results = albert.tag(inputs, **model.depth_options())
    for text, result in zip(inputs, results, strict=True):
        lines = [f"{s.label}\t{text[s.start : s.end]}\t{s.start}:{s.end}\t{s.score:.1%}" for s in result.spans]
        print_result(as_json, result, *lines)
    report_depths(albert, results, model)


@cli.command("albertkit intent -m atis 'flights from boston to denver on monday'")
@cli.text_input
@cli.model_options(required=True, early_exit=True)
@cli.json_option
def intent(texts: cli.TextInput, model: cli.ModelOptions, as_json: bool) -> None:
    """Predict the intent of TEXTS, or of the lines of --file or stdin, and the slots they fill."""
    inputs, albert = list(texts), model.open()
    results = albert.understand(inputs, **model.depth_options())
    for text, result in zip(inputs, results, strict=True):
        slots = ", ".join(f"{span.label}={text[span.start : span.end]}" for span in result.spans)
        line = f"{result.intent}\t{result.probability:.1%}\t{slots}"
        print_result(as_json, {"text": text, **to_json(result)}, line)
    report_depths(albert, results, model)


@cli.command("albertkit track -m restaurants 'a cheap place' 'thai food, please'")
@cli.text_input
@cli.model_options(required=True, early_exit=True)
@cli.json_option
def track(texts: cli.TextInput, model: cli.ModelOptions, as_json: bool) -> None:
    """Predict the dialogue state after each turn: what the user wants.

    TEXTS, or the lines of --file or stdin, are the user's turns in order. A line may start with the preceding system
    turn and a tab. An empty line starts a new dialogue.

    \b
    printf 'a cheap place\\nwhich food?\\tthai, and the phone number\\n' | albertkit track -m restaurants
    price=cheap             –      a cheap place
    food=thai, price=cheap  phone  thai, and the phone number

    Each output line has the state so far, the slots that this turn requests, and the user's words, separated by tabs.
    With --json it also has what this turn adds to the state.
    """
    turns, albert = list(parse_dialogues(texts.rows())), model.open()
    results = albert.track(turns, **model.depth_options())
    for number, (turn, result) in enumerate(zip(turns, results, strict=True)):
        place = {"dialogue": int(turn.dialogue), "turn": turn.number, "system": turn.system, "user": turn.user}
        state = ", ".join(f"{slot}={value}" for slot, value in sorted(result.goal.items()))
        line = f"{state or '–'}\t{', '.join(sorted(result.requests)) or '–'}\t{turn.user}"
        gap = [""] if number and not turn.number else []
        print_result(as_json, {**place, **to_json(result)}, *gap, line)
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
                f"line {line_number} is {line!r:.60}: a turn has at most one tab and ends with the user's words. "
                "Write the user's words, or the system's words, a tab and the user's words."
            )
        yield DialogueTurn(str(dialogue), number, system, user)
        number += 1


@cli.command("albertkit answer -m qa 'Who wrote it?' --context book.txt")
@click.argument("question")
@context_option
@cli.model_options(required=True, early_exit=True)
@cli.json_option
def answer(question: str, context: Path | None, model: cli.ModelOptions, as_json: bool) -> None:
    """Answer QUESTION with a span of a text of any length."""
    cli.refuse_file(question, f"--context {question}")
    text, albert = cli.read_whole(context), model.open()
    result = albert.answer(question, text, **model.depth_options())
    line = f"{result.text}\t{result.probability:.1%}\t{result.start}:{result.end}" if result.text else "no answer"
    print_result(as_json, result, line)
    report_depths(albert, [result], model)


@cli.command("albertkit choose -m race 'What is it about?' rain sun snow --context story.txt")
@click.argument("question")
@click.argument("choices", nargs=-1, required=True)
@context_option
@cli.model_options(required=True, early_exit=True)
@cli.json_option
def choose(
    question: str, choices: tuple[str, ...], context: Path | None, model: cli.ModelOptions, as_json: bool
) -> None:
    """Choose the answer to QUESTION about a text among CHOICES."""
    cli.refuse_file(question, f"--context {question}")
    text, albert = cli.read_whole(context), model.open()
    result = albert.choose(question, text, choices, **model.depth_options())
    pairs = zip(choices, result.probabilities, strict=True)
    lines = [f"{'→' if choice == result.text else ' '} {chance:.1%}\t{choice}" for choice, chance in pairs]
    print_result(as_json, result, *lines)
    report_depths(albert, [result], model)


def report_depths(albert: Albert, results: Sequence[Any], model: cli.ModelOptions) -> None:
    """Print the mean depth of early exit to stderr."""
    from albertkit.runtime.early_exit import last_exit_depth

    report_exits([result.depth for result in results if result.depth is not None], last_exit_depth(albert, model.depth))
