"""Commands that inspect models: models, info, tokenize, explain.

In: arguments. Out: descriptions, tables and explanations, printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli import arguments as cli
from albertkit.cli.console import (
    display_width,
    echo,
    format_megabytes,
    format_properties,
    pad,
    print_json,
    print_result,
    shorten,
    style,
)
from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    from albertkit.explain import Explanation

BAR_WIDTH = 24  # columns of the longest bar
WORD_WIDTH = 24  # columns of the longest word
METHODS = ["occlusion", "gradients"]


@cli.command("albertkit models --json")
@cli.json_option
def models(as_json: bool) -> None:
    """List the built-in models: purpose, language, size, licence and scores.

    Use a name wherever a model folder is expected: -m small, Albert("small"). With --json, print one line per model
    with all its metadata.
    """
    from albertkit.builtin import BUILTINS, describe

    width = max(map(len, BUILTINS)) + 2
    for model in map(describe, BUILTINS):
        size = f"{format_megabytes(model.bytes)} {model.quantization or 'float32'}"
        title = style(f"{model.name:{width}}", bold=True) + model.purpose
        about = " · ".join(filter(None, [model.language, size, model.licence]))
        scores = "; ".join(format_scores(model.scores, model.depth))
        print_result(as_json, model, title, *(" " * width + line for line in (about, scores) if line))


def format_scores(scores: dict[str, Any], depth: int) -> Iterator[str]:
    """The score at a depth for each dataset, in percent; without datasets, the MLM accuracy.

    Losses and training metrics are in --json only.
    """
    measured = {data: depths for data, depths in scores.items() if any(key.startswith("depth ") for key in depths)}
    for data, depths in measured.items():
        yield f"{data} {100 * depths.get(f'depth {depth}', next(iter(depths.values()))):.1f}"
    accuracy = scores.get("held-out", {}).get("mlm_accuracy")
    if accuracy is not None and not measured:
        yield f"MLM accuracy {accuracy:.1%}"


@cli.command("albertkit info albert_tiny_zh/")
@cli.source_argument
@cli.json_option
def info(source: Path, as_json: bool) -> None:
    """Describe any ALBERT checkpoint or artifact: its layout, shape, heads, tokenizer and history.

    SOURCE is an artifact, a Hugging Face folder, a TensorFlow checkpoint, an albert_zh folder or a PL-BERT file.
    """
    from albertkit.interop.convert import open_model
    from albertkit.weights import size

    artifact = open_model(source)
    metadata, tokenizer = artifact.metadata, artifact.tokenizer
    encoder = {name: array.shape for name, array in artifact.weights.items() if name.startswith("encoder.")}
    description: dict[str, Any] = {
        "path": str(source),
        "parameters": size(encoder),
        "heads": artifact.heads,
        "task": metadata.task,
        "depth": metadata.depth or artifact.config.num_hidden_layers,
        "pooling": metadata.pooling,
        "quantization": metadata.quantization,
        "labels": list(metadata.labels),
        "tokenizer": None if tokenizer is None else {"kind": tokenizer.kind, "tokens": tokenizer.vocab_size},
        "metrics": metadata.metrics,
    }
    config, history = artifact.config.to_dict(), list(metadata.history)
    shown = [format_properties("model", description), format_properties("config", config)]
    if history:
        shown.append(format_properties("history", {str(number): step for number, step in enumerate(history, 1)}))
    print_result(as_json, {**description, "config": config, "history": history}, *shown)


@cli.command("cat notes.txt | albertkit tokenize --json")
@cli.text_input
@cli.option("-m", "--model", help=f"Model folder or name, spiece.model or vocab.txt.  {cli.DEFAULT_MODEL}")
@cli.option("--pair", help="A second text, appended to each text as segment 1.")
@cli.option("--max-length", type=click.IntRange(min=1), help="Truncate to this many tokens.")
@cli.json_option
def tokenize(texts: cli.TextInput, model: str | None, pair: str | None, max_length: int | None, as_json: bool) -> None:
    """Show the tokens of TEXTS, or of the lines of --file or stdin: ids, segments and character offsets."""
    from albertkit.input_warnings import find_problems, report_problems

    tokenizer = cli.open_tokenizer(model)
    for text in texts:
        encoding = tokenizer.encode(text, pair, max_length=max_length)
        tokens = tokenizer.tokens(encoding.ids)
        ids = {"ids": encoding.ids, "segments": encoding.segments, "offsets": encoding.offsets}
        lines = (" ".join(tokens), " ".join(map(str, encoding.ids)))
        print_result(as_json, {"text": text, "tokens": tokens, **ids}, *lines)
        report_problems(find_problems(tokenizer, [text]))


@cli.command("albertkit explain -m sentiment 'what a lovely film' -o film.html")
@click.argument("text", required=False)
@cli.model_options(required=True)
@cli.option("--pair", help="Second text of a pair to classify, or to compare by vectors.")
@cli.option("--question", help="For a question-answering model: the question about the text.")
@cli.option("--target", help="Class, label or word to explain  [default: the prediction]")
@cli.option("--at", help="Position. tag: a word or its number from 1; MLM: number of the mask; answer: start or end.")
@cli.option("--method", "methods", multiple=True, type=click.Choice(METHODS), help="Repeatable.  [default: occlusion]")
@cli.path_option("-o", "--output", help="Write an HTML page.")
@cli.force_option
@cli.json_option
@cli.advanced_option(
    "--hide", type=click.Choice(["mask", "drop", "pad"]), help="How words are hidden  [default: mask; drop for vectors]"
)
@cli.advanced_option("--steps", default=64, type=click.IntRange(8, 1024), help="gradients: integration steps.")
@cli.advanced_option("-k", default=3, type=click.IntRange(1, 1000), help="Predictions per mask.")
@cli.advanced_option("--attention", is_flag=True, help="With --json: include the attention of every head.")
def explain(
    text: str | None, model: cli.ModelOptions, output: Path | None, as_json: bool, **options: cli.OptionValue
) -> None:
    """Explain what a model predicts for TEXT: the effect of each word and the prediction after each layer.

    With -o or --json, the explanation includes what each head attends to.

    \b
    occlusion   the effect of hiding a word
    gradients   integrated gradients; needs  pip install 'albertkit[explain]'

    Values are log-odds (0.7 doubles the odds), or cosines for vectors. Without TEXT, stdin is read.
    """
    from albertkit.explain import Explainer, ExplainInput, ExplainSettings
    from albertkit.file_io import check_absent

    methods, force, attention = options.pop("methods") or ("occlusion",), options.pop("force"), options.pop("attention")
    if output is not None:
        if output.suffix != ".html":
            raise AlbertkitError(
                f"{output} ends with {output.suffix!r}: an explanation is an .html page. Rename the file."
            )
        check_absent(output, force)
    if text is not None:
        cli.refuse_file(text, f"< {text}")
    text = cli.read_whole(None).strip() if text is None else text
    texts = {name: options.pop(name) for name in ("pair", "question")}
    settings = ExplainSettings(methods=methods, depth=model.depth, **options)
    explanation = Explainer(model.open()).explain(ExplainInput(text, **texts), settings)
    if output is not None:
        explanation.to_html(output, overwrite=force)
    if as_json:
        print_json(explanation.to_dict(attention))
    elif output is None:
        print_explanation(explanation)
    else:
        echo(f"{output}: {explanation.target}, {format_target(explanation)}")


def format_target(explanation: Explanation) -> str:
    """The value that is explained."""
    if explanation.unit != "log-odds":
        return f"{explanation.unit} {explanation.value:.4f}"
    return f"{explanation.probability:.1%} (log-odds {explanation.value:+.2f})"


def print_explanation(explanation: Explanation) -> None:
    """Words with bars, then the layers."""
    echo(f"{explanation.kind}: {explanation.target}, {format_target(explanation)}")
    for attribution in explanation.attributions:
        ends = f"{attribution.full:+.2f} for the full text, {attribution.empty:+.2f} with all words hidden"
        echo(f"\n{attribution.method}, {ends}")
        print_word_bars(explanation, attribution.values.tolist())
    print_layers(explanation)


def print_word_bars(explanation: Explanation, values: list[float]) -> None:
    """One line per word: its value, and a bar as long as its absolute value."""
    names = [shorten(word.text, WORD_WIDTH) for word in explanation.words]
    width = max(map(display_width, names))
    largest = max(*(abs(value) for value in values), 1e-9)
    part = ""
    for word, name, value in zip(explanation.words, names, values, strict=True):
        if word.part != part and len(explanation.parts) > 1:
            echo(f"  [{word.part}]")
        part = word.part
        size = math.ceil(BAR_WIDTH * abs(value) / largest) if abs(value) > largest / 200 else 0
        bar = style(("█" if value > 0 else "░") * size, fg="green" if value > 0 else "red")
        echo(f"  {pad(name, width)}  {value:+7.3f}  {bar}")


def print_layers(explanation: Explanation) -> None:
    """The prediction after each layer, and where early exit would stop."""
    uncertainty, early_exit = explanation.uncertainty, explanation.early_exit
    heading = f" (uncertainty: {early_exit.kind}, as --early-exit compares it)" if early_exit and uncertainty else ""
    echo(f"\nlayer by layer{heading}")
    for layer in explanation.layers:
        predictions = "  ".join(
            name if probability is None else f"{name} {probability:.0%}" for name, probability in layer.summary
        )
        shown = f"  uncertainty {uncertainty[layer.depth]:.3f}" if layer.depth in uncertainty else ""
        echo(f"  {layer.depth:>3}  {layer.value:+7.3f}{shown}  {predictions}".rstrip())
    if explanation.stable_depth is not None:
        echo(f"  unchanged from layer {explanation.stable_depth} on")
    if early_exit is not None and early_exit.exit_depth_99 is not None:
        echo(f"  --early-exit 99% exits after layer {early_exit.exit_depth_99}")
