"""Options that commands share, and options made from the fields of a settings dataclass.

In: click decorators above a command. Out: `TextInput` and `ModelOptions`, which the command receives instead of single
arguments; frequent options come first in `--help`, others under headings of their own at the end.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from albertkit.errors import AlbertkitError
from albertkit.settings import ADVANCED

if TYPE_CHECKING:
    from albertkit.albert import Albert
    from albertkit.tokenizer import Tokenizer

Function = Callable[..., Any]
OptionValue = Any  # what click has parsed and checked: a str, number, bool, Path, a tuple of these, or None
Settings = TypeVar("Settings")
PATH = click.Path(path_type=Path)
DEFAULT_MODEL = "[default: the built-in English model]"


class Option(click.Option):
    """An option that `--help` may list under a heading of its own."""

    def __init__(self, *args: Any, heading: str = "Options", **attributes: OptionValue) -> None:
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


def command(name: str | None = None, example: str = "") -> Callable[[Callable[..., Any]], Command]:
    """A command of the toolkit, with an example at the end of its help."""
    return click.command(
        name,
        cls=Command,
        epilog=f"Example:  {example}" if example else None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


option = functools.partial(click.option, cls=Option)
advanced_option = functools.partial(click.option, cls=Option, heading=ADVANCED)
json_option = option("--json", "as_json", is_flag=True, help="Print JSON.")
force_option = option("--force", is_flag=True, help="Replace an existing output.")
threads_option = advanced_option("--threads", type=click.IntRange(1, 1024), help="CPU threads  [default: all cores]")
bits_option = advanced_option("--bits", type=click.Choice(["8", "4"]), help="Quantize a float model when it is opened.")


@dataclasses.dataclass(frozen=True)
class TextInput:
    """Texts from the arguments, else from --file, else from stdin."""

    texts: tuple[str, ...]
    file: Path | None
    text_column: str | None = None

    def __iter__(self) -> Iterator[str]:
        """Each text, without blank ones."""
        from albertkit.text_reader import read_texts

        return iter(self.texts) if self.texts else read_texts(self._path(), self.text_column)

    def lines(self) -> Iterator[str]:
        """Each text as it stands, blank lines too."""
        from albertkit.text_reader import find_text_files, read_lines

        if self.texts or self.text_column is not None:
            return iter(self)
        return (line for _, line in read_lines(find_text_files([self._path()], allow_pipes=True)[0]))

    def _path(self) -> Path | str:
        if self.file is None and sys.stdin.isatty():
            raise AlbertkitError("No text was passed. Write it after the command, name a --file, or pipe it in.")
        return self.file or "-"


def text_input(function: Function) -> Function:
    """Add TEXTS, --file and --text-column; the command receives them as `texts: TextInput`."""

    @functools.wraps(function)
    def run(texts: tuple[str, ...], file: Path | None, text_column: str | None, **rest: OptionValue) -> None:
        if texts and file is not None:
            raise AlbertkitError(f"--file {file} was passed together with TEXTS. Pass one of them.")
        function(texts=TextInput(texts, file, text_column), **rest)

    column = option("--text-column", help="Column or JSON field of --file that contains the text  [default: text]")
    file = option("-f", "--file", type=PATH, help="Read texts from a file, one per line; - reads stdin.")
    return click.argument("texts", nargs=-1)(file(column(run)))


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """Which model to open, and how to run it."""

    model: str | None
    bits: int | None = None
    threads: int | None = None
    depth: int | None = None
    early_exit: str | None = None

    def open(self) -> Albert:
        """The model, ready to run."""
        from albertkit.albert import Albert

        return Albert(self.model, bits=self.bits, threads=self.threads)


def model_options(required: bool = False, early_exit: bool = False) -> Callable[[Function], Function]:
    """Add --model, --depth, --bits, --threads (and --early-exit); the command receives `model: ModelOptions`."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def run(model: str | None, bits: str | None, **rest: OptionValue) -> None:
            values = {name: rest.pop(name, None) for name in ("threads", "depth", "early_exit")}
            function(model=ModelOptions(model, int(bits) if bits else None, **values), **rest)

        decorated = bits_option(threads_option(run))
        if early_exit:
            decorated = option(
                "--early-exit",
                help="Stop when confident: 99% agrees with the full depth on 99 % of texts (see calibrate);"
                " or a rule such as entropy:0.1, patience:2, cosine:0.99.",
            )(decorated)
        decorated = option("--depth", type=click.IntRange(1, 1024), help="Layers to apply  [default: the model's]")(
            decorated
        )
        default = "" if required else f"  {DEFAULT_MODEL}"
        return option("-m", "--model", required=required, help=f"Model folder or name.{default}")(decorated)

    return decorate


def settings_options(*kinds: type, environment: str = "", heading: str | None = None) -> Callable[[Function], Function]:
    """One option per documented field of some dataclasses; with `environment`, a variable with that prefix as well."""

    def decorate(function: Function) -> Function:
        fields = [field for kind in kinds for field in dataclasses.fields(kind) if "help" in field.metadata]
        for field in reversed(fields):
            flag = f"--{field.name.replace('_', '-')}"
            kind = str(field.type)
            attributes: dict[str, Any] = {**field.metadata, "default": field.default}
            if heading is not None:
                attributes["heading"] = heading
            attributes["show_default"] = field.default not in (None, True, False)
            if kind == "bool":
                flag = f"{flag}/--no-{field.name.replace('_', '-')}"
            else:
                attributes["type"] = {"int": int, "float": float}.get(kind.removesuffix(" | None"), str)
            if environment:
                attributes["envvar"] = f"{environment}{field.name.upper()}"
            function = option(flag, field.name, **attributes)(function)
        return function

    return decorate


def take_settings(kind: type[Settings], values: dict[str, Any]) -> Settings:
    """A settings dataclass from a command's keyword arguments, which lose its fields."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return kind(**{field.name: values.pop(field.name) for field in fields if field.name in values})


def open_tokenizer(model: str | Path | None) -> Tokenizer:
    """The tokenizer of a model folder or name, or of a vocabulary file."""
    from albertkit.builtin import resolve
    from albertkit.tokenizer import Tokenizer

    path = resolve(model)
    if path.is_dir():
        return Tokenizer.load(path)
    if path.suffix == ".txt":
        return Tokenizer.from_vocab(path)
    return Tokenizer.from_spiece(path)
