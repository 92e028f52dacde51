"""Deployment commands: plan, convert, export, serve.

In: arguments. Out: printed results of `compress/`, `interop/` and `serve/`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli import arguments as cli
from albertkit.cli.console import (
    echo,
    format_megabytes,
    format_properties,
    format_table,
    note,
    print_result,
    show_status,
    style,
    to_json,
)
from albertkit.cli.pretrain_commands import config_option, read_shape
from albertkit.errors import AlbertkitError, need
from albertkit.serve.serve_settings import PREFIX, ServeSettings
from albertkit.tasks.dataset import read_splits
from albertkit.tasks.readers.labelled_files import ReadOptions
from albertkit.transformers_folder import LAYOUTS

if TYPE_CHECKING:
    from albertkit.compress.planner import PlanResult
    from albertkit.interop.layouts import LayoutResult


class Quantity(click.ParamType):
    """A number with a unit; without one, in the first unit of the table."""

    def __init__(self, name: str, units: dict[str, float]) -> None:
        self.name, self.units = name, units

    def convert(self, value: cli.OptionValue, param: click.Parameter | None, ctx: click.Context | None) -> float:
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
            self.fail(f"{value!r} is not a number above 0 with a unit. Use one of these units: {', '.join(self.units)}")
        return number


DURATION = Quantity("TIME", {"ms": 1e-3, "s": 1.0, "us": 1e-6, "µs": 1e-6})
SIZE = Quantity("SIZE", {"mb": 1e6, "kb": 1e3, "gb": 1e9, "b": 1.0})


@cli.command("albertkit plan my-albert/ --latency 20ms --memory 64MB -f texts.txt")
@click.argument("shape", default="base")
@cli.option("--latency", type=DURATION, help="Maximum time for one text, such as 20ms.")
@cli.option("--memory", type=SIZE, help="Maximum memory that the model adds to a process, such as 64MB.")
@cli.path_option("-f", "--file", help="A file with typical texts, to measure text length and vector quality.")
@cli.text_column_option
@cli.path_option("--check", help="Labelled examples, to measure the quality of a fine-tuned model.")
@cli.option("--length", type=int, help="Tokens per text  [default: 128, or SHAPE's maximum length if shorter]")
@cli.option("--batch-size", default=32, help="Texts per batch, to compute the memory of a shape.")
@config_option
@cli.option("--count", default=6, type=click.IntRange(1, 50), help="Candidates to measure.")
@cli.threads_option
@cli.json_option
def plan(shape: str, length: int | None, batch_size: int, as_json: bool, **limits: cli.OptionValue) -> None:
    """Show the cost of SHAPE, or find models that meet a latency or memory limit on this machine.

    SHAPE is a preset (tiny, mini, small, base, large, xlarge, xxlarge; tiny-zh, small-zh; base-v1 for version 1), a
    model folder, a config in a .json file, or small-pretrained, the built-in model with weights. Without --latency and
    --memory, the command prints parameters, operations and bytes.

    With a limit, the command measures the machine for a few seconds. Then it builds variants that are predicted to fit,
    and measures each in a separate process. Variants differ in shape, bits and depth; those of a folder may also be
    pruned, or a static table. Variants marked * are Pareto-optimal. For a folder, quality is measured too: on --check,
    or as the cosine with the full model's vectors.
    """
    options = limits.pop("options")
    if limits["latency"] is None and limits["memory"] is None:
        for name in ("file", "text_column", "check", "threads"):
            if limits[name] is not None:
                raise AlbertkitError(
                    f"--{name.replace('_', '-')} was passed without a limit. Add --latency or --memory."
                )
        print_cost(shape, options, length, batch_size, as_json)
        return
    if options:
        raise AlbertkitError("--option cannot be combined with a limit. Pass a model folder that has these options.")
    from albertkit.compress.planner import PlanRequest
    from albertkit.compress.planner import plan as run

    texts = cli.read_text_file(limits.pop("file"), limits.pop("text_column"))
    check = limits.pop("check")
    examples = None if check is None else read_plan_examples(shape, check)
    result = run(shape, PlanRequest(length=length, texts=texts, examples=examples, **limits), show_status)
    print_result(as_json, result.as_dict(), *describe_plan(result))


def read_plan_examples(shape: str, path: Path) -> list[Any]:
    """The labelled examples of a fine-tuned model."""
    from albertkit.compress.planner import is_model
    from albertkit.interop.convert import open_stored
    from albertkit.tasks import TASKS

    task = open_stored(shape).metadata.task if is_model(shape) else "embed"
    if task not in TASKS:
        raise AlbertkitError(
            f"--check cannot score {shape}: it is not a fine-tuned model. Pass a fine-tuned model, or omit --check."
        )
    return read_splits(task, {"test": path}, ReadOptions(), note)["test"]


def print_cost(shape: str, options: tuple[str, ...], length: int | None, batch_size: int, as_json: bool) -> None:
    """The cost of a shape, computed from its config; of a model, with the heads that it has."""
    from albertkit.compress.cost import shape_cost, stored_heads
    from albertkit.compress.planner import is_model
    from albertkit.interop.convert import open_stored
    from albertkit.weights import heads_in

    config = read_shape(shape, options)
    length = min(128, config.max_position_embeddings) if length is None else length
    heads = stored_heads(open_stored(shape).weights) if is_model(shape) else None
    cost = shape_cost(config, length, batch_size, heads)
    names = heads_in(heads or ())
    what = f"weights with the heads {', '.join(names)}" if names else "weights of the encoder"
    operations = {part: f"{count / 1e6:,.2f} M" for part, count in cost.operations.items()}
    sizes, memory = (
        {name: format_megabytes(size) for name, size in part.items()} for part in (cost.bytes, cost.memory)
    )
    print_result(
        as_json,
        {"config": config.to_dict(), **to_json(cost)},
        f"{shape}: {cost.parameters['total']:,} parameters ({cost.unshared:,} without sharing and factorisation)",
        format_properties("parameters", {part: f"{count:,}" for part, count in cost.parameters.items()}),
        format_properties(f"operations per token (length {length})", operations),
        format_properties(what, sizes),
        format_properties(f"memory besides the weights ({batch_size} texts of {length} tokens, float32)", memory),
    )


def describe_plan(result: PlanResult) -> Iterator[str]:
    """A table of the measurements, and the commands that make each proposed model."""
    machine = result.machine
    yield f"one text of {machine.length} tokens, {machine.threads} threads"
    yield f"Python and its libraries use {result.process / 1e6:.0f} MB, in addition to the memory below"
    if not any(proposal.fits for proposal in result.proposals):
        yield style("no model meets these limits; the closest are", bold=True)
    rows = []
    for proposal in result.proposals:
        measured = proposal.measured
        assert measured is not None
        row = [
            "*" if proposal in result.best else "",
            proposal.candidate.name,
            f"{proposal.latency * 1e3:.2f}",
            f"{measured.latency * 1e3:.2f}",
            f"{proposal.memory / 1e6:.0f}",
            f"{measured.memory / 1e6:.0f}",
            f"{proposal.candidate.file_bytes / 1e6:.1f}",
        ]
        if result.metric:
            row += ["" if value is None else f"{value:.4f}" for value in (measured.quality, measured.loss)]
        is_over = not proposal.fits and result.request.allows(proposal.latency, proposal.memory)
        rows.append([*row, "over the limit when measured" if is_over else ""])
    quality = [result.metric, "loss"] if result.metric else []
    yield "\n" + format_table(rows, ["", "", "ms", "measured", "MB", "measured", "file MB", *quality, ""], indent=2)
    for proposal in result.proposals:
        if proposal.commands:
            yield "\n" + style(proposal.candidate.name, bold=True)
            yield from (f"  {step}" for step in proposal.commands)


@cli.command("albertkit convert albert_base/model.ckpt-best my-albert/")
@cli.source_argument
@cli.output_argument
@cli.force_option
@cli.json_option
def convert(source: Path, output: Path, force: bool, as_json: bool) -> None:
    """Convert any ALBERT checkpoint or artifact into an artifact folder with float weights.

    SOURCE is an artifact, a Hugging Face folder, a TensorFlow checkpoint, an albert_zh folder or a PL-BERT file.

    transformers opens the folder and computes the same probabilities. If it would compute something else, as for a head
    on frozen vectors, the command prints the reason, and transformers refuses to open the folder.
    """
    from albertkit.interop.convert import convert as run
    from albertkit.transformers_folder import describe_transformers

    artifact = run(source, output, overwrite=force)
    step = artifact.metadata.history[-1] if artifact.metadata.history else {}
    print_result(
        as_json,
        {"source": str(source), "output": str(output), "heads": artifact.heads, **step},
        f"{output}: {step.get('layout', 'artifact')}, heads: {', '.join(artifact.heads) or 'none'}",
    )
    if not as_json:
        note(f"transformers: {describe_transformers(artifact)}")


@cli.command("albertkit export sentiment/ sentiment.onnx")
@cli.source_argument
@cli.path_argument("output", required=False)
@cli.option(
    "--head",
    type=click.Choice(["vector", "mlm", "classify", "tag", "answer", "choose"]),
    help="Output of the ONNX graph  [default: the output of the model's task]",
)
@cli.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    help="Write a folder with sentence vectors that this library opens, instead of one ONNX file.",
)
@cli.depth_option
@cli.option("--tokenizer", is_flag=True, help="Write tokenizer.json next to the ONNX file.")
@cli.path_option("-f", "--file", help="A file with typical texts to compare on  [default: built-in sentences]")
@cli.text_column_option
@cli.path_option("--web", help="Write a static folder for browsers instead of OUTPUT.")
@cli.path_option(
    "--onnxruntime-web", help="The npm package for --web  [default: node_modules/onnxruntime-web, or that of make web]"
)
@cli.force_option
@cli.json_option
@cli.advanced_option(
    "--full-range", is_flag=True, help="Use 8-bit activations in int8 files; only for ARM, and x86 with VNNI."
)
def export(
    source: Path, output: Path | None, layout: str | None, force: bool, as_json: bool, **settings: cli.OptionValue
) -> None:
    """Export SOURCE as one ONNX file, as a folder for another library (--layout), or as a web page (--web FOLDER).

    The file uses only standard operators and stores every weight once. Inputs are input_ids, attention_mask and
    token_type_ids, of any batch size and length. Outputs are sentence_embedding and last_hidden_state, or the task's
    logits. A quantized SOURCE becomes an int8 file. OUTPUT defaults to SOURCE.onnx in the current folder.

    The last line is the verdict: how well the file's first output agrees with SOURCE's, on the texts of --file or on
    built-in English or Chinese sentences. For vectors it is the cosine. It is good from 0.98 on average and 0.9 at
    least, and poor below 0.9 and 0.7.

    --layout writes a folder for transformers.js (JavaScript) or sentence-transformers (Python), which then compute the
    vectors of SOURCE. OUTPUT defaults to SOURCE-LAYOUT. The command prints the code to use it, and what the library
    does differently; README.md in the folder repeats both.

    With --web, the folder contains the model in int8, albertkit.js and a demo page. Any static host can serve it, for
    example python -m http.server, and it then works offline. It needs the npm package onnxruntime-web.
    """
    web, runtime = settings.pop("web"), settings.pop("onnxruntime_web")
    if web is not None:
        export_web_folder(source, web, runtime, force, as_json, {"output": output, "layout": layout, **settings})
        return
    if runtime is not None:
        raise AlbertkitError("--onnxruntime-web was passed without --web. Add --web FOLDER.")
    from albertkit.interop.layouts import export_layout
    from albertkit.interop.onnx_export import ExportSettings
    from albertkit.interop.onnx_export import export as run
    from albertkit.runtime.agreement import Agreement

    texts = cli.read_text_file(settings.pop("file"), settings.pop("text_column"))
    if layout is not None:
        folder = output or Path(f"{source.resolve().name}-{layout}")
        print_layout(export_layout(source, folder, layout, ExportSettings(**settings), force, texts), as_json)
        return
    output = output or Path(f"{source.resolve().name}.onnx")
    result = run(source, output, ExportSettings(**settings), overwrite=force, texts=texts)
    agreement = Agreement(result.agreement_mean, result.agreement_least, result.texts, result.text_kind)
    overhead = result.bytes / max(1, result.weight_bytes) - 1
    print_result(
        as_json,
        result,
        f"{output}: {format_megabytes(result.bytes)}, {overhead:.2%} more than its weights",
        f"  outputs  {', '.join(result.outputs)}",
        f"  agreement of {result.outputs[0]} with the model's: {agreement}",
    )
    if result.verdict != "good":
        note(
            f"the outputs differ from those of {source}. Evaluate the file before you use it, or export a float model."
        )


def print_layout(result: LayoutResult, as_json: bool) -> None:
    """A folder for another library: sizes, agreement, and the code to use it; the differences go to stderr."""
    from albertkit.runtime.agreement import Agreement

    lines = []
    for name, model in result.models.items():
        agreement = Agreement(model.agreement_mean, model.agreement_least, model.texts, model.text_kind)
        lines.append(f"  {name}  {format_megabytes(model.bytes)}, agreement of vectors with the model's: {agreement}")
    total = format_megabytes(sum(result.files.values()))
    print_result(as_json, result, f"{result.path}: {total}, for {result.layout}", *lines, "", result.usage.rstrip())
    for text in result.notes:
        note(text)


def export_web_folder(
    source: Path, folder: Path, runtime: Path | None, force: bool, as_json: bool, others: dict[str, cli.OptionValue]
) -> None:
    """Write the folder of `export --web`. others: the arguments that this form does not have."""
    from albertkit.interop.web_export import export_web

    for name, value in others.items():
        if value not in (None, False):
            what = f"OUTPUT {value}" if name == "output" else f"--{name.replace('_', '-')}"
            raise AlbertkitError(f"{what} cannot be combined with --web, which writes a folder. Omit it.")
    result = export_web(source, folder, runtime, overwrite=force)
    depths = ", ".join(map(str, result.depths)) or "none: the model is static"
    print_result(
        as_json,
        result,
        f"{folder}: {len(result.files)} files, {format_megabytes(sum(result.files.values()))}",
        f"  model     {format_megabytes(result.model_bytes)}, depths {depths}",
        f"  download  {format_megabytes(result.transfer_bytes)} compressed with gzip, as a static host sends it",
    )
    if not as_json:
        note(f"to open it: python -m http.server --directory {shlex.quote(str(folder))}")


@cli.command("albertkit serve sentiment=runs/sentiment my-albert --port 8080")
@click.argument("folders", nargs=-1, envvar=f"{PREFIX}MODELS")
@cli.path_option("--index", "indexes", multiple=True, help="Serve this index at /search. Repeatable.")
@cli.settings_options(environment=PREFIX, settings=ServeSettings)
def serve(folders: tuple[str, ...], indexes: tuple[Path, ...], settings: ServeSettings) -> None:
    """Serve the models in FOLDERS, or the built-in English model, over HTTP.

    Name a model with NAME=FOLDER. Clients for OpenAI and text-embeddings-inference work. Open / for a page to try the
    models, and /docs for a list of all endpoints.

    Environment variables can replace arguments: ALBERTKIT_SERVE_PORT is --port, and ALBERTKIT_SERVE_MODELS is FOLDERS.
    Pass API keys in ALBERTKIT_SERVE_KEYS or with --keys-file. On SIGHUP the server reopens models that changed on disk.
    On SIGTERM it finishes open requests and stops.
    """
    for module in ("httptools", "msgspec", "orjson", "starlette", "uvicorn"):
        need(module, "serve", "serving")
    from albertkit.serve import server

    server.serve(folders, settings, indexes, on_ready=lambda address: echo(f"serving on {address}"))
