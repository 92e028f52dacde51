"""The verbs that make another form of a model or tell what it costs: static, export, profile, plan. As in `cli/entry_point.py`: arguments → calls →
printed results, imports when they run. (`prune` and `quantize` stand in `cli/shrink_commands.py`.)
"""

from __future__ import annotations

import json
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    from albertkit.compress.planner import Limits, Proposal

path = click.Path(path_type=Path)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of a table.")
force = click.option("--force", is_flag=True, help="Replace what is there.")
threads = click.option("--threads", type=click.IntRange(1, 1024), help="Processors to use  [default: all]")


class Amount(click.ParamType):
    """A number to keep (8), or a share (0.5, 50%, 2/3)."""

    name = "N|SHARE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        """The number as an int, a share as a float."""
        if isinstance(value, int | float):
            return value
        try:
            if value.endswith("%"):
                return float(Fraction(value[:-1]) / 100)
            return int(value) if value.isdigit() else float(Fraction(value))
        except (ValueError, ZeroDivisionError):
            self.fail(f"{value!r} is neither a number to keep, such as 8, nor a share, such as 0.5, 50% or 2/3")


class Unit(click.ParamType):
    """A number with a unit, from a table of units; without one, in the table's first unit."""

    def __init__(self, name: str, units: dict[str, float]) -> None:
        self.name, self.units = name, units

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number in seconds or bytes."""
        if isinstance(value, int | float):
            return float(value)
        text = value.strip().lower()
        digits = text.rstrip("abcdefghijklmnopqrstuvwxyzµ ")
        unit = text[len(digits) :].strip() or next(iter(self.units))
        try:
            number = float(digits) * self.units[unit]
        except (ValueError, KeyError):
            number = 0.0
        if not 0 < number < 1e18:
            self.fail(f"{value!r} is not a number above 0 with one of the units {', '.join(self.units)}")
        return number


DURATION = Unit("TIME", {"ms": 1e-3, "s": 1.0, "us": 1e-6, "µs": 1e-6})
SIZE = Unit("SIZE", {"mb": 1e6, "kb": 1e3, "gb": 1e9, "b": 1.0})


@click.command(epilog="Example:  albertkit static my-albert/ table/ --texts texts.txt --dim 256")
@click.argument("source", type=path)
@click.argument("target", type=path)
@click.option("--texts", type=path, help="Lines like those it will read, to count how often each piece occurs.")
@click.option("--dim", type=click.IntRange(min=1), help="Numbers in a vector  [default: 256, or the model's]")
@force
@as_json
def static(source: Path, target: Path, texts: Path | None, dim: int | None, force: bool, as_json: bool) -> None:
    """Distil SOURCE into a table with one vector a piece, for vectors in microseconds.

    The result is a model like any other for embed, similar, index, search and cluster; what needs layers (fill, finetune) refuses.
    Word order and context are lost. `albertkit quantize TARGET SMALLER` makes the table four times smaller.
    """
    from albertkit.cli.entry_point import megabytes, note, quiet_or_note, read_texts
    from albertkit.compress.static_model import make_static_model

    lines = None if texts is None else list(read_texts((), texts))
    report = make_static_model(source, target, lines, dim, overwrite=force, progress=quiet_or_note)
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return
    click.echo(f"{target}: {report.tokens:,} tokens, {report.dim} numbers each, {megabytes(report.bytes)}")
    click.echo(f"  the kept directions hold {report.explained_variance:.1%} of the variance")
    if not report.has_frequencies:
        note("how often pieces occur is unknown, so all count the same; give --texts for better vectors")


@click.command(epilog="Example:  albertkit export sentiment/ sentiment.onnx")
@click.argument("source", type=path)
@click.argument("target", type=path, required=False)
@click.option(
    "--to", "kind", type=click.Choice(["onnx"]), default="onnx", show_default=True, help="Format of the file."
)
@click.option(
    "--head",
    type=click.Choice(["vector", "mlm", "classify", "tag", "answer", "choose"]),
    help="What comes out  [default: by the model's task]",
)
@click.option("--depth", type=click.IntRange(1, 1024), help="Layers to apply  [default: the model's]")
@click.option("--loop", is_flag=True, help="Apply the layer in a Loop: less memory in OpenVINO, slower in onnxruntime.")
@click.option("--tokenizer", is_flag=True, help="Write tokenizer.json beside the file too.")
@click.option("--full-range", is_flag=True, help="8-bit activations in int8 files: for ARM, and x86 with VNNI only.")
@force
@as_json
def export(source: Path, target: Path | None, kind: str, force: bool, as_json: bool, **settings: Any) -> None:
    """Write SOURCE as one ONNX file that plain onnxruntime, OpenVINO and others run, after comparing the two.

    Standard operators only; every weight is stored once. Inputs are input_ids, attention_mask and token_type_ids, of any number and
    length; outputs are sentence_embedding and last_hidden_state, or the logits of the task. A quantised SOURCE gives an int8 file.
    Text becomes ids by the tokenizer.json that --tokenizer writes. Without a TARGET, the file is called SOURCE.onnx, in this folder.
    """
    from albertkit.cli.entry_point import megabytes
    from albertkit.interop.onnx_export import Settings
    from albertkit.interop.onnx_export import export as run

    target = target or Path(f"{source.resolve().name}.onnx")
    report = run(source, target, Settings(**settings), overwrite=force)
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return
    over = report.bytes / max(1, report.weight_bytes) - 1
    click.echo(f"{target}: {megabytes(report.bytes)}, {over:.2%} more than its weights")
    click.echo(f"  outputs  {', '.join(report.outputs)}")
    click.echo(f"  differs from the model by {report.error:.1e} of a vector's length at most, on random pieces")


@click.command(epilog="Example:  albertkit profile my-albert/ --length 32 --batch 1")
@click.argument("model", type=path)
@click.option("-f", "--file", type=path, help="Texts to run, one a line  [default: random tokens]")
@click.option("--length", default=128, show_default=True, type=click.IntRange(min=1), help="Tokens in a random text.")
@click.option("--batch", default=8, show_default=True, type=click.IntRange(1, 10_000), help="Random texts.")
@threads
@as_json
def profile(model: Path, file: Path | None, length: int, batch: int, threads: int | None, as_json: bool) -> None:
    """Show where the time of MODEL goes, part by part, against the machine's fastest matrix product.

    A product near 100 % of the peak cannot become faster here; only less work helps (prune, quantize, fewer layers).
    """
    from albertkit.cli.entry_point import read_texts
    from albertkit.compress.profile import profile_model as run

    texts = None if file is None else list(read_texts((), file))[:1000]
    found = run(model, texts, (length, batch), threads)
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    kinds = ", ".join(f"{kind} {rate / 1e9:,.0f}" for kind, rate in found.peaks.items())
    click.echo(
        f"{found.texts} texts, {found.tokens:,} tokens, {found.depth} layers, {found.threads} threads: {found.seconds * 1e3:.2f} ms"
    )
    click.echo(f"fastest matrix product, G operations/s: {kinds}; the whole model reaches {found.of_peak:.0%} of it\n")
    click.echo(f"  {'part':<30}  {'ms':>9}  {'time':>6}  {'G ops/s':>8}  {'of peak':>7}")
    for part in found.parts:
        rate = f"{part.operations / part.seconds / 1e9:,.0f}" if part.operations and part.seconds else ""
        share = "" if part.of_peak is None else f"{part.of_peak:.0%}"
        click.echo(f"  {part.name:<30}  {part.seconds * 1e3:>9.3f}  {part.share:>6.1%}  {rate:>8}  {share:>7}")


@click.command(epilog="Example:  albertkit plan my-albert/ --latency 20ms --memory 64MB --texts texts.txt")
@click.argument("shape", default="base")
@click.option(
    "--option", "extras", multiple=True, metavar="NAME=VALUE", help="An option beyond ALBERT; see docs/options.md."
)
@click.option("--length", type=int, help="Tokens in a text  [default: 128, or the most that SHAPE reads]")
@click.option("--batch", default=32, show_default=True, help="Texts at a time, for the memory of a shape.")
@click.option("--latency", type=DURATION, help="Propose what answers one text within this time, such as 20ms.")
@click.option("--memory", type=SIZE, help="Propose what adds no more than this to a process, such as 64MB.")
@click.option("--texts", type=path, help="Lines like those to be read: their usual length, and vectors to compare.")
@click.option("--task", type=path, help="Labelled examples, to measure a fine-tuned model's loss of quality.")
@click.option("--count", default=6, show_default=True, type=click.IntRange(1, 50), help="Proposals to try out.")
@click.option("--plot", type=path, help="Draw latency against quality as this PNG.")
@threads
@as_json
def plan(shape: str, extras: tuple[str, ...], length: int | None, batch: int, as_json: bool, **limits: Any) -> None:
    """Tell what a SHAPE costs; with a limit, find what fits this machine.

    SHAPE is a preset (tiny, mini, small, base, large, xlarge, xxlarge; tiny-zh, small-zh; base-v1 for version 1), a
    model folder, a config in a .json file, or small-pretrained, the built-in model with weights. Without --latency and --memory: parameters, operations, bytes.

    With one of them the machine is measured for some seconds, and variants that are predicted to fit (shapes, bits, depths; for a
    folder also prunings and a static table) are built and measured, each in a process of its own. Those marked * are beaten by no
    other one. For a folder, what is lost is measured too: on --task if there is one, else as the cosine with the whole model's vectors.
    """
    if limits["latency"] is None and limits["memory"] is None:
        for name in ("texts", "task", "plot", "threads"):
            if limits[name] is not None:
                raise AlbertkitError(f"--{name} needs a limit to plan for; give --latency or --memory")
        _costs(shape, extras, length, batch, as_json)
        return
    if extras:
        raise AlbertkitError(
            "--option counts what a shape costs; with a limit, give a folder, whose own options are used"
        )
    from albertkit.compress.planner import PlanRequest, check_plot_path, plan, plot_proposals

    if limits["plot"] is not None:
        check_plot_path(limits["plot"])
    from albertkit.cli.entry_point import quiet_or_note, read_texts

    request = PlanRequest(
        length=length,
        texts=None if limits["texts"] is None else list(read_texts((), limits["texts"])),
        examples=None if limits["task"] is None else _plan_examples(shape, limits["task"]),
        **{name: limits[name] for name in ("latency", "memory", "count", "threads")},
    )
    found = plan(shape, request, quiet_or_note)
    if as_json:
        click.echo(json.dumps(found.as_dict()))
    else:
        _show_proposals(found)
    if limits["plot"] is not None:
        plot_proposals(found, limits["plot"])


def _plan_examples(shape: str, path: Path) -> list[Any]:
    """The labelled examples of a fine-tuned model."""
    from albertkit.cli.task_commands import Reading, read_files
    from albertkit.compress.planner import is_model
    from albertkit.interop.convert import open_stored
    from albertkit.tasks import TASKS

    task = open_stored(shape).meta.task if is_model(shape) else "embed"
    if task not in TASKS:
        raise AlbertkitError(
            f"--task cannot score {shape}: it is no fine-tuned model. Name the folder of one, or omit --task."
        )
    return read_files(task, {"test": path}, Reading())["test"]


def _costs(shape: str, extras: tuple[str, ...], length: int | None, batch: int, as_json: bool) -> None:
    """What a shape costs, by counting alone."""
    from albertkit.cli.entry_point import megabytes, table
    from albertkit.compress.cost import shape_cost as make_plan
    from albertkit.compress.planner import config_of
    from albertkit.options import given_options

    config = config_of(shape)
    config = config.replace(options=given_options(extras, config.options)) if extras else config
    length = min(128, config.max_position_embeddings) if length is None else length
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


def _show_proposals(found: Any) -> None:
    """A table of what was tried."""
    machine = found.machine
    kinds = ", ".join(f"{'float32' if b == 32 else 'int8'} {r / 1e9:,.0f}" for b, r in machine.peaks.items())
    click.echo(
        f"one text of {machine.length} tokens, {machine.threads} threads; matrix products reach {kinds} G operations/s"
    )
    click.echo(
        f"Python and its libraries take {found.process / 1e6:.0f} MB; memory below comes on top, tokenizer included"
    )
    if not any(p.fits for p in found.proposals):
        click.echo(click.style("nothing fits these limits; the nearest are", bold=True))
    width = max(len(p.candidate.name) for p in found.proposals)
    last = f"  {found.metric:>9}  {'loss':>7}" if found.metric else ""
    click.echo(f"\n    {'':<{width}}  {'ms':>8}  {'measured':>8}  {'MB':>6}  {'measured':>8}  {'file MB':>7}{last}")
    for proposal in found.proposals:
        click.echo(_row(proposal, found.limits, width, proposal in found.best, bool(found.metric)))
    for proposal in found.proposals:
        if proposal.commands:
            click.echo(click.style(f"\n{proposal.candidate.name}", bold=True))
            for step in proposal.commands:
                click.echo(f"  {step}")


def _row(proposal: Proposal, limits: Limits, width: int, best: bool, judged: bool) -> str:
    """One proposal as a line."""
    measured, candidate = proposal.measured, proposal.candidate
    assert measured is not None
    cells = [
        f"  {'*' if best else ' '} {candidate.name:<{width}}",
        f"{proposal.latency * 1e3:>8.2f}",
        f"{measured.latency * 1e3:>8.2f}",
        f"{proposal.memory / 1e6:>6.0f}",
        f"{measured.memory / 1e6:>8.0f}",
        f"{candidate.file_bytes / 1e6:>7.1f}",
    ]
    if judged:
        cells += [
            "" if measured.quality is None else f"{measured.quality:>9.4f}",
            "" if measured.loss is None else f"{measured.loss:>7.4f}",
        ]
    over = not proposal.fits and limits.allow(proposal.latency, proposal.memory)
    return "  ".join(cells).rstrip() + "  over the limit when measured" * over


VERBS = (static, export, profile, plan)
