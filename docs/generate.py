"""Write the pages of docs/ that show what the program itself says: run by `make docs`, checked by a test.

cli.md                the help of every verb api.md                the public names of Python, with their signatures
(see api_page.py) shapes.md             what each preset costs pretraining-cost.md   measured training speed, and what
follows for many GPUs results.md            fine-tuning on real data, beside published numbers (see
studies/results_page.py) scale.md              what large jobs would cost (see studies/scale_page.py) benchmarks.md
every benchmark in one report; also benchmarks.png and README's table (see bench/benchmarks_page.py) elastic.md
quality and time at every depth and with early exit; also elastic.png (see studies/elastic_page.py) options.md
what goes beyond canonical ALBERT, and what it costs (see options_page.py) generation.md, explain.md, finetuning.md   by
hand, but for the tables of what was measured (see studies/measured_page.py) ablation.md           the documents' ideas,
measured (see studies/ablation_page.py) model-card.md         the built-in model; also README.md and albertkit.json in
the folders of both (see model_card.py)
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import click

from albertkit.cli.console import format_megabytes
from albertkit.cli.entry_point import GROUPS, app
from albertkit.compress.cost import shape_cost
from albertkit.config import PRESETS, preset

sys.path.insert(0, str(Path(__file__).parent.parent / "studies"))
sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
sys.path.insert(0, str(Path(__file__).parent))

import ablation_page
import api_page
import benchmarks_page
import elastic_page
import measured_page
import model_card
import options_page
import results_page
import scale_page
from scale_page import BUDGET, LINKS, STEP, cost_row

DOCS = Path(__file__).parent
STUDIES = DOCS.parent / "studies"
NOTE = "<!-- Written by `make docs`; do not edit. -->\n"


def cli_page() -> str:
    lines = [
        NOTE,
        "# The command line",
        "",
        "Commands that print a table print JSON with `--json`. Commands that take texts read them from arguments, `--file`",
        "or stdin. When something is wrong, a command prints one sentence on stderr and exits with code 2.",
        "",
        'Shell completion: add `eval "$(_ALBERTKIT_COMPLETE=bash_source albertkit)"` to `~/.bashrc`, or',
        '`eval "$(_ALBERTKIT_COMPLETE=zsh_source albertkit)"` to `~/.zshrc`; for fish, write the output of',
        "`_ALBERTKIT_COMPLETE=fish_source albertkit` to `~/.config/fish/completions/albertkit.fish`.",
        "",
    ]
    context = click.Context(app, info_name="albertkit", **app.context_settings)
    for group, modules in GROUPS.items():
        lines += [f"## {group}", ""]
        for name in (name for commands in modules.values() for name in commands):
            command = app.get_command(context, name)
            assert command is not None
            shown = command.get_help(click.Context(command, info_name=name, parent=context, max_content_width=100))
            lines += [f"### albertkit {name}", "", "```text", *(row.rstrip() for row in shown.splitlines()), "```", ""]
    return "\n".join(lines)


def shapes_page() -> str:
    lines = [NOTE, "# Shapes", "", "`albertkit plan SHAPE` tells more about one of them. Operations count multiplications and additions",
             "for a token in a text of 128; bytes are the encoder's weights; activations are for 32 texts of 128 tokens.", "",
             "| preset | layers × hidden | parameters | without sharing | M operations / token | float32 | int8 | 4-bit | activations, inference |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name in PRESETS:
        config = preset(name)
        made = shape_cost(config)
        lines.append(
            f"| {name} | {config.num_hidden_layers} × {config.hidden_size} | {made.parameters['total']:,} | {made.unshared:,} "
            f"| {made.operations['total'] / 1e6:,.1f} | {format_megabytes(made.bytes['float32'])} | {format_megabytes(made.bytes['int8'])} "
            f"| {format_megabytes(made.bytes['4-bit'])} | {format_megabytes(made.memory['inference'])} |"
        )
    return "\n".join([*lines, ""])


def cost_page() -> str:
    found = json.loads((STUDIES / "results" / "pretraining.json").read_text(encoding="utf-8"))
    machine = found["machine"]
    lines = [NOTE, "# What pre-training costs", "",
             f"Measured on one {machine['gpu']}, torch {machine['torch']}, rows of {machine['length']} tokens, bf16, by `studies/pretraining.py`: tokens a second",
             "end to end (reading shards, drawing masks and order, forward, backward, optimizer, losses read every twenty updates), share of the",
             "measured bf16 matrix-product peak, and peak memory for a token of the batch. transformers computes on tokens that lie ready on the device.", "",
             "| shape | rows | program | thousand tokens / s | ours ÷ it | share of peak | kB / token |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for shape, runs in found["shapes"].items():
        ours = runs["albertkit"]
        for name, run in runs.items():
            if name == "rows":
                continue
            share = f"{run['share_of_peak']:.0%}" if "share_of_peak" in run else ""
            lines.append(
                f"| {shape} | {runs['rows']} | {name} | {run['tokens_per_second'] / 1e3:,.0f} "
                f"| {ours['tokens_per_second'] / run['tokens_per_second']:.2f} | {share} "
                f"| {run['bytes_per_token'] / 1e3:,.0f} |"
            )
    lines += ["", "## Many GPUs", "",
              "A model, not a measurement: time of an update = tokens of a GPU ÷ the speed above + the time to add up the gradients (float32, a ring, nothing hidden",
              f"behind computing). {BUDGET / 1e9:,.0f} G tokens in updates of {STEP / 1e6:.1f} M tokens. Since layers share their weights, gradients are small; "
              "memory is what one GPU needs for",
              "the rows of the table above, weights and optimizer included.", "",
              "| shape | gradients | memory | GPU hours, 1 GPU | " + " | ".join(f"hours on {n} GPUs ({link[0]})" for n, link in LINKS.items()) + " |",
              "|---|---|---|---|" + "---|" * len(LINKS)]  # fmt: skip
    for shape, runs in found["shapes"].items():
        lines.append(cost_row(shape, runs))
    return "\n".join([*lines, ""])


BUILT_IN = f"../src/albertkit/models/{model_card.DEFAULT}"
PAGES = {
    "cli.md": cli_page,
    "api.md": api_page.page,
    "shapes.md": shapes_page,
    "pretraining-cost.md": cost_page,
    "results.md": results_page.page,
    "elastic.md": elastic_page.page,
    "scale.md": scale_page.page,
    "benchmarks.md": lambda: benchmarks_page.page(benchmarks_page.load()),
    "options.md": options_page.page,
    **{name: partial(measured_page.page, name) for name in measured_page.TABLES},
    "ablation.md": ablation_page.written,
    f"{BUILT_IN}/albertkit.json": model_card.meta_text,
    f"{BUILT_IN}/README.md": model_card.readme,
    f"../src/albertkit/models/{model_card.FINETUNE_MODEL}/albertkit.json": model_card.start_meta,
    f"../src/albertkit/models/{model_card.FINETUNE_MODEL}/README.md": model_card.start_readme,
    "model-card.md": model_card.page,
}


def main() -> None:
    report = benchmarks_page.load()
    if elastic_page.picture():
        print("docs/elastic.png")
    if report is not None:
        print(benchmarks_page.picture(report).relative_to(DOCS.parent))
        for name in benchmarks_page.README_WORDS:
            readme = DOCS.parent / name
            text = readme.read_text(encoding="utf-8")
            readme.write_text(benchmarks_page.readme(text, report, name), encoding="utf-8")
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
        print((DOCS / name).resolve().relative_to(DOCS.parent.resolve()))


if __name__ == "__main__":
    main()
