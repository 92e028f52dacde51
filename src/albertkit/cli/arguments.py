"""Options that commands share, and options generated from the fields of a settings dataclass.

In: click decorators on a command. Out: objects that the command receives instead of single arguments: `TextInput`,
`ModelOptions`, settings dataclasses. `--help` lists frequent options first and the others under headings.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli.console import print_json, stage_progress_bar, to_json
from albertkit.errors import AlbertkitError
from albertkit.options import ADVANCED

if TYPE_CHECKING:
    from albertkit.albert import Albert
    from albertkit.runtime.runtime_model import Depth
    from albertkit.tokenizer import Tokenizer

Function = Callable[..., Any]
OptionValue = Any  # a value parsed and checked by click: a str, number, bool, Path, a tuple of these, or None
PATH = click.Path(path_type=Path)
BULK_OPTIONS = ("workers", "part_rows", "format", "skip_bad", "address")  # beside --engine
DEFAULT_MODEL = "[default: the built-in English model]"
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Option(click.Option):
    """An option that `--help` lists under `heading`, with its default unless it is a flag."""

    def __init__(self, *args: Any, heading: str = "Options", **attributes: OptionValue) -> None:
        default = attributes.get("default")
        attributes["show_default"] = default is not None and not isinstance(default, bool)
        super().__init__(*args, **attributes)
        self.heading = heading


class Command(click.Command):
    """A command whose `--help` groups options by heading."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options: frequent ones, then each heading."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "heading", "Options"), []).append(record)
        advanced = sections.pop(ADVANCED, [])
        for heading, records in [*sections.items(), (ADVANCED, advanced)]:
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def command(example: str) -> Callable[[Function], Command]:
    """A command of the toolkit, with an example at the end of its help."""
    return click.command(cls=Command, epilog=f"Example:  {example}", context_settings=CONTEXT)


def add_options(function: Function, *decorators: Callable[[Function], Function]) -> Function:
    """A command with options, listed in this order."""
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def gather(function: Function, **kinds: type) -> Function:
    """A command that receives the fields of each dataclass as one object; the keyword is its argument name."""

    @functools.wraps(function)
    def run(**values: OptionValue) -> None:
        for name, kind in kinds.items():
            fields = [field.name for field in dataclasses.fields(kind) if field.name in values]
            values[name] = kind(**{field: values.pop(field) for field in fields})
        function(**values)

    return run


def settings_options(
    heading: str | None = None, environment: str = "", **kinds: type
) -> Callable[[Function], Function]:
    """Add one option per documented field of each dataclass; the keyword is the command's argument name.

    heading: heading of all these options. environment: prefix of each option's environment variable.
    """

    def setting_option(field: dataclasses.Field[Any]) -> Callable[[Function], Function]:
        flag, kind = f"--{field.name.replace('_', '-')}", str(field.type).removesuffix(" | None")
        attributes: dict[str, Any] = {"heading": heading} if heading else {}
        if kind == "bool":
            flag = f"{flag}/--no-{flag[2:]}"
        else:
            attributes["type"] = {"int": int, "float": float}.get(kind, str)
        if environment:
            attributes["envvar"] = f"{environment}{field.name.upper()}"
        return option(flag, field.name, default=field.default, **{**field.metadata, **attributes})

    fields = [field for kind in kinds.values() for field in dataclasses.fields(kind) if "help" in field.metadata]
    return lambda function: add_options(gather(function, **kinds), *map(setting_option, fields))


class DepthType(click.IntRange):
    """A number of layers, or `full`."""

    def __init__(self) -> None:
        super().__init__(1, 1024)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value if value == "full" else super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not a number of layers. Pass 1 to {self.max}, or full for all layers.", param, ctx)


class IndexType(click.Path):
    """The path of an index file, or the address of an index in a vector store, which stays a string."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        return value if isinstance(value, str) and "://" in value else super().convert(value, param, ctx)


option = functools.partial(click.option, cls=Option)
advanced_option = functools.partial(option, heading=ADVANCED)
path_option = functools.partial(option, type=PATH)
path_argument = functools.partial(click.argument, type=PATH)
source_argument = path_argument("source")
output_argument = path_argument("output")
json_option = option("--json", "as_json", is_flag=True, help="Print JSON.")
force_option = option("--force", is_flag=True, help="Replace an existing output.")
depth_option = option("--depth", type=DepthType(), help="Layers to apply, or full for all  [default: the model's]")
precision_option = option(
    "--precision",
    type=click.Choice(["float32", "bf16", "float16"]),
    default="float32",
    help="With --device cuda: bf16 and float16 are much faster on a GPU.",
)
device_option = option("--device", default="cpu", help="cpu, or cuda to run on a GPU with torch.")
threads_option = advanced_option("--threads", type=click.IntRange(1, 1024), help="CPU threads  [default: all cores]")
text_column_option = option(
    "--text-column", help="Column (.csv, .tsv, .parquet) or field (.jsonl, stdin) with the text  [default: text]"
)


@dataclasses.dataclass(frozen=True)
class TextInput:
    """Texts from the arguments, else from --file, else from stdin."""

    texts: tuple[str, ...]
    file: Path | None
    text_column: str | None = None

    def __post_init__(self) -> None:
        if self.texts and self.file is not None:
            raise AlbertkitError(f"--file {self.file} was passed together with TEXTS. Pass one of them.")

    def __iter__(self) -> Iterator[str]:
        """The text of every row. Blank ones have a result too; `input_warnings.py` warns of them."""
        return self.rows()

    def rows(self) -> Iterator[str]:
        """The text of every row, unchanged."""
        from albertkit.text_reader import read_rows

        for text in self.texts:
            refuse_file(text, f"-f {shlex.quote(text)}")
        return iter(self.texts) if self.texts else read_rows(self._path(), self.text_column)

    def _path(self) -> Path | str:
        if self.file is None and sys.stdin.isatty():
            raise AlbertkitError("No text was passed. Pass texts as arguments, name a --file, or pipe texts to stdin.")
        return self.file or "-"


def refuse_file(text: str, option: str) -> None:
    """Raise if a text is the name of an existing file or folder. option: what to pass to read the file."""
    if os.path.exists(text):  # noqa: PTH110  Path.exists raises for long texts
        kind = "folder" if os.path.isdir(text) else "file"  # noqa: PTH112
        raise AlbertkitError(
            f"{text!r} is a {kind}, but a text is expected here. To read the {kind}, pass  {option} ; "
            f"to use its name as a text, write it differently or pipe it:  echo {shlex.quote(text)} | albertkit ..."
        )


def text_input(function: Function) -> Function:
    """Add TEXTS, --file and --text-column; the command receives them as `texts: TextInput`."""
    file_option = path_option(
        "-f",
        "--file",
        help="Read texts from a file: .txt (one per line), .csv, .tsv, .jsonl, .parquet, also .gz; - reads stdin.",
    )
    gathered = gather(function, texts=TextInput)
    return add_options(gathered, click.argument("texts", nargs=-1), file_option, text_column_option)


def read_whole(file: Path | None) -> str:
    """The text of a file, or all of stdin."""
    if file is None and sys.stdin.isatty():
        raise AlbertkitError("No text was passed. Name a file, or pipe the text to stdin.")
    from albertkit.text_reader import find_text_files, read_lines

    (source, *others) = find_text_files([file or "-"], allow_pipes=True)
    if others or source.format != "text":
        raise AlbertkitError(f"{file} contains many texts, but one text is expected. Pass a text file such as .txt.")
    return "\n".join(line for _, line in read_lines(source))


def read_file(path: Path | None, text_column: str | int | None = None) -> list[str] | None:
    from albertkit.text_reader import read_texts

    return None if path is None else list(read_texts(path, None if text_column is None else str(text_column)))


def read_text_file(path: Path | None, text_column: str | None) -> list[str] | None:
    """`read_file` where --text-column can only be a column of this file."""
    from albertkit.text_reader import check_text_column, find_text_files

    if path is None and text_column is not None:
        raise AlbertkitError(f"--text-column {text_column} was passed without --file. Add --file, or omit the column.")
    if path is not None:
        check_text_column(find_text_files([path], text_column, allow_pipes=True), text_column)
    return read_file(path, text_column)


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """Which model to open, and how to run it."""

    model: str | None
    bits: str | None = None
    threads: int | None = None
    depth: Depth | None = None
    early_exit: str | None = None
    device: str = "cpu"
    precision: str = "float32"

    def open(self) -> Albert:
        """The model, ready to run."""
        from albertkit.albert import Albert

        return Albert(
            self.model, bits=self.quantize_bits, threads=self.threads, device=self.device, precision=self.precision
        )

    def depth_options(self) -> dict[str, Any]:
        """The keywords depth and early_exit of `Albert`."""
        return {"depth": self.depth, "early_exit": self.early_exit}

    @property
    def quantize_bits(self) -> int | None:
        return int(self.bits) if self.bits else None


def model_options(
    required: bool = False, early_exit: bool = False, device: bool = False
) -> Callable[[Function], Function]:
    """Add --model, --depth, --bits, --threads (and --early-exit, --device) as `model: ModelOptions` of the command."""
    default = "" if required else f"  {DEFAULT_MODEL}"
    exit_option = option(
        "--early-exit",
        help="Exit when confident: 99% means agreement with the full depth on 99 % of texts (see calibrate)."
        " A rule such as entropy:0.1 or cosine:0.99 also works.",
    )
    options = (
        option("-m", "--model", required=required, help=f"Model folder or name.{default}"),
        depth_option,
        *([exit_option] if early_exit else []),
        *([device_option, precision_option] if device else []),
        advanced_option("--bits", type=click.Choice(["8", "4"]), help="Quantize a float model when it is opened."),
        threads_option,
    )
    return lambda function: add_options(gather(function, model=ModelOptions), *options)


bulk_option = functools.partial(option, heading="Many files (TEXTS are files, patterns, folders or URLs)")


@dataclasses.dataclass(frozen=True)
class BulkInput:
    """The options of bulk processing: many input files, and an output folder of numbered files."""

    engine: str | None
    workers: int | None
    address: str | None
    part_rows: int | None
    format: str | None
    skip_bad: bool

    def run(
        self, task: str, texts: TextInput, model: ModelOptions, output: Path | None, options: dict[str, Any]
    ) -> bool:
        """Process the files and print a summary. Without --engine, do nothing and return False."""
        if self.engine is None:
            self._check_unused(output is not None and task != "embed")
            return False
        if not texts.texts or output is None:
            raise AlbertkitError(
                f"--engine {self.engine} needs input files as TEXTS and an output folder. "
                "Pass the files as arguments instead of --file, and name the folder with -o."
            )
        if self.address is not None and self.engine != "ray":
            raise AlbertkitError(f"--address {self.address} needs --engine ray. Pass this engine, or omit --address.")
        from albertkit.bulk.bulk_run import BulkOptions, bulk
        from albertkit.bulk.engines import run_local, run_ray
        from albertkit.data.document_tokenizer import worker_count

        work = BulkOptions(
            model.model,
            options,
            model.quantize_bits,
            model.threads or 1,
            texts.text_column,
            self.part_rows or BulkOptions.part_rows,
            self.skip_bad,
            self.format,
            model.device,
            model.precision,
        )
        engine = functools.partial(run_ray, address=self.address) if self.engine == "ray" else run_local
        cores = worker_count(None) - (model.device != "cpu")  # one is for the process of the device
        workers = self.workers or max(1, cores)
        try:
            # Ray writes worker messages to stdout.
            with redirect_stdout(sys.stderr), stage_progress_bar() as progress:
                summary = bulk(task, texts.texts, str(output), work, engine=engine, workers=workers, progress=progress)
        except KeyboardInterrupt:
            raise AlbertkitError("Stopped; finished parts are kept. Rerun the command to resume.") from None
        print_json({"output": str(output), **to_json(summary)})
        return True

    def _check_unused(self, has_output: bool) -> None:
        """Raise if options of bulk processing were passed without --engine."""
        passed = {name for name in BULK_OPTIONS if getattr(self, name) not in (None, False)}
        passed |= {"output"} if has_output else set()
        if passed:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(passed))
            verb = "need" if len(passed) > 1 else "needs"
            raise AlbertkitError(f"{names} {verb} --engine. Add --engine local or --engine ray.")


def bulk_options(function: Function) -> Function:
    """Add the options of bulk processing; the command receives them as `bulk: BulkInput`."""
    return add_options(
        gather(function, bulk=BulkInput),
        bulk_option("--engine", type=click.Choice(["local", "ray"]), help="Use local processes or a Ray cluster."),
        bulk_option("--workers", type=click.IntRange(1, 100_000), help="Worker processes  [default: one per core]"),
        bulk_option(
            "--part-rows",
            type=click.IntRange(1, 10_000_000),
            help="Maximum rows per output file  [default: 50,000]",
        ),
        bulk_option(
            "--format",
            type=click.Choice(["npz", "jsonl", "parquet"]),
            help="Format of the output files  [default: parquet for Parquet inputs, else npz (embed) or jsonl]",
        ),
        bulk_option("--skip-bad", is_flag=True, help="Leave the result of a row without text empty; do not stop."),
        bulk_option("--address", help="With --engine ray: address of a running cluster, such as auto or HEAD:6379."),
    )


def open_tokenizer(model: str | Path | None) -> Tokenizer:
    """The tokenizer of a model folder or name, or of a vocabulary file."""
    from albertkit.builtin import resolve
    from albertkit.tokenizer import Tokenizer

    path = resolve(model)
    if path.is_dir():
        return Tokenizer.load(path)
    return Tokenizer.from_vocab(path) if path.suffix == ".txt" else Tokenizer.from_spiece(path)
