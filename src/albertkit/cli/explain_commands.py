"""The verb `explain`: arguments → an explanation as a readable view, JSON, a page or a picture; or a check of the methods.

Before this file: `explain/`. With `cli/entry_point.py` and its parts, the only files that print.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    from albertkit.explain import Explanation, Faithfulness

folder = click.Path(path_type=Path)
BAR = 24  # characters of the longest bar
METHODS = ["occlusion", "shapley", "gradients", "rollout", "attention"]


@click.command(epilog="Example:  albertkit explain sentiment 'what a lovely film' -o film.html")
@click.argument("model", type=folder)
@click.argument("text", required=False)
@click.option("--pair", help="The second text: of a pair to classify, or to compare by vectors.")
@click.option("--question", help="For a model that answers or chooses: the question about the text.")
@click.option("--choice", "choices", multiple=True, help="For a model that chooses: one of the choices; repeat it.")
@click.option("--target", help="Class, label, choice or word to explain  [default: what the model says]")
@click.option("--at", help="tag: a word or its number from 1; masks: their number; answer: start or end.")
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS), help="How words get their values; repeat it for several  [default: occlusion]")  # fmt: skip
@click.option("--hide", type=click.Choice(["mask", "drop", "pad"]), help="How words are hidden  [default: mask; drop for vectors and for --check]")  # fmt: skip
@click.option("--samples", default=16, show_default=True, type=click.IntRange(1, 10_000), help="Orders of words for shapley.")  # fmt: skip
@click.option("--steps", default=64, show_default=True, type=click.IntRange(8, 1024), help="Points on the way for gradients.")  # fmt: skip
@click.option("--depth", type=click.IntRange(1, 1024), help="Layers to apply  [default: the model's]")
@click.option("-k", default=3, show_default=True, type=click.IntRange(1, 1000), help="Words for each mask.")
@click.option("-o", "--output", type=folder, help="Write a page (.html) or a picture (.png).")
@click.option("--check", type=folder, help="Check the methods on a file of texts, one a line, or .jsonl with text, pair, question, choices.")  # fmt: skip
@click.option(
    "--most", default=200, show_default=True, type=click.IntRange(1, 10_000), help="Texts of --check to read."
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Processors to use  [default: all]")
@click.option("--attention", is_flag=True, help="With --json or a picture: what every head attends to, too.")
@click.option("--force", is_flag=True, help="Replace what is there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of a table.")
def explain(
    model: Path,
    text: str | None,
    output: Path | None,
    check: Path | None,
    most: int,
    threads: int | None,
    attention: bool,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Look inside MODEL while it reads TEXT: which words carry the prediction, how it forms layer by layer, and (with -o or --json)
    what each head attends to.

    \b
    occlusion   what is lost when a word is hidden
    shapley     what a word adds on average, in random orders
    gradients   integrated gradients; needs  pip install 'albertkit[explain]'
    rollout     attention followed through all layers
    attention   attention of the last layer

    Values are in log-odds (0.7 doubles the odds), or in cosines for vectors. --check measures, on texts of yours, whether hiding the
    words that a method calls important changes the prediction more than hiding random ones. Without TEXT, it is read from stdin.
    """
    from albertkit.albert import Albert
    from albertkit.explain import Explainer, ExplainInput, ExplainSettings

    methods = given.pop("methods") or ("occlusion",)
    if check is not None:
        if text is not None or output is not None:
            raise AlbertkitError("--check reads its texts from a file and prints a table; leave the text and -o away")
        checked(Explainer(Albert(model, threads=threads)), check, most, methods, given, as_json)
        return
    if output is not None:
        from albertkit.explain.explanation import check_writable

        if output.suffix not in (".html", ".png"):
            raise AlbertkitError(f"{output} ends with {output.suffix!r}; choose .html or .png")
        check_writable(output, force)
    texts = {name: given.pop(name) for name in ("pair", "question", "choices")}
    settings = ExplainSettings(methods=methods, **given)
    found = Explainer(Albert(model, threads=threads)).explain(ExplainInput(read_text(text), **texts), settings)
    if output is not None:
        if output.suffix == ".html":
            found.to_html(output, overwrite=force)
        else:
            found.to_png(output, overwrite=force, attention=attention)
    if as_json:
        click.echo(json.dumps(found.to_dict(attention), ensure_ascii=False))
    elif output is None:
        show(found)
    else:
        click.echo(f"{output}: {found.target}, {number(found)}")


def read_text(text: str | None) -> str:
    """The argument, or all of stdin."""
    if text is not None:
        return text
    if sys.stdin.isatty():
        raise AlbertkitError("no text was given; write it behind the model, or pipe it in")
    return sys.stdin.read().strip()


def number(found: Explanation) -> str:
    """The value that is explained."""
    if found.unit != "log-odds":
        return f"{found.unit} {found.value:.4f}"
    return f"{found.probability:.1%} (log-odds {found.value:+.2f})"


def show(found: Explanation) -> None:
    """Words with bars, then the layers."""
    click.echo(f"{found.kind}: {found.target}, {number(found)}")
    width = max(min(24, len(word.text)) for word in found.words)
    for one in found.attributions:
        sums = (
            ""
            if one.full is None or one.empty is None
            else f", {one.full:+.2f} whole, {one.empty:+.2f} with all words hidden"
        )
        click.echo(f"\n{one.method}{sums}")
        top = max(float(abs(one.values).max()), 1e-9)
        part = ""
        for word, value in zip(found.words, one.values.tolist(), strict=True):
            if word.part != part and len(found.parts) > 1:
                click.echo(f"  [{word.part}]")
            part = word.part
            size = math.ceil(BAR * abs(value) / top) if abs(value) > top / 200 else 0
            bar = click.style(("█" if value > 0 else "░") * size, fg="green" if value > 0 else "red")
            name = "".join(c if c.isprintable() else "�" for c in word.text[:24])  # nothing that moves the cursor
            click.echo(f"  {name:<{width}}  {value:+7.3f}  {bar}")
    uncertainty = found.uncertainty
    click.echo(
        "\nlayer by layer"
        + (f" (doubt: {found.early_exit.kind}, as early_exit= compares it)" if found.early_exit and uncertainty else "")
    )
    for layer in found.layers:
        said = "  ".join(name if chance is None else f"{name} {chance:.0%}" for name, chance in layer.summary)
        doubt = f"  doubt {uncertainty[layer.depth]:.3f}" if layer.depth in uncertainty else ""
        click.echo(f"  {layer.depth:>3}  {layer.value:+7.3f}{doubt}  {said}".rstrip())
    if found.stable_depth is not None:
        click.echo(f"  stays what it is from layer {found.stable_depth} on")
    if found.early_exit is not None and found.early_exit.exit_depth_99 is not None:
        click.echo(f"  early_exit='99%' leaves after layer {found.early_exit.exit_depth_99}")


def checked(
    explainer: Any, path: Path, most: int, methods: tuple[str, ...], given: dict[str, Any], as_json: bool
) -> None:
    """The check over a file of texts."""
    from albertkit.explain import ExplainSettings, measure_faithfulness
    from albertkit.explain.faithfulness import read_inputs

    for name in ("pair", "question", "choices", "target", "at"):
        if given.pop(name):
            raise AlbertkitError(
                f"--{name} belongs to one text; for --check put it into a .jsonl file, or leave it away"
            )
    hide = given.pop("hide") or "drop"
    settings = ExplainSettings(methods=methods, **given)
    results = measure_faithfulness(explainer, read_inputs(path, most), settings, hide)
    if as_json:
        told = [dataclasses.asdict(one) for one in results]
        for one in told:  # of one text there is no error, and JSON has no number for that
            one["gain_error"] = None if math.isnan(one["gain_error"]) else one["gain_error"]
        click.echo(json.dumps({"hide": hide, "methods": told}))
        return
    table(results, hide)


def table(results: list[Faithfulness], hide: str) -> None:
    """What the check found, a line for each method."""
    click.echo(
        f"{results[0].texts} texts; words are hidden by {hide}; means over the best {', '.join(f'{s:.0%}' for s in results[0].shares)} of the words"
    )
    click.echo(
        f"{'method':<12}{'without them':>14}{'random':>10}{'gain':>18}{'wins':>7}{'them alone':>13}{'random':>10}"
    )
    for one in results:
        gain = f"{one.gain:+.3f}" + ("" if math.isnan(one.gain_error) else f" ± {one.gain_error:.3f}")
        click.echo(
            f"{one.method:<12}{one.comprehensiveness:>14.3f}{one.random_comprehensiveness:>10.3f}{gain:>18}{one.wins:>7.0%}"
            f"{one.sufficiency:>13.3f}{one.random_sufficiency:>10.3f}"
        )
    click.echo("without them: how far the probability falls (higher is better); them alone: the same (lower is better)")


VERBS = (explain,)
