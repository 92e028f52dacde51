"""The command `albertkit`: its groups of commands and its error handling.

In: arguments. Out: one call of a command. A command's module is imported only when the command runs. Therefore
`albertkit --help` is fast and works without torch. Results go to stdout, notes and errors to stderr. An error has exit
code 2, and one line unless it lists problems.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import NoReturn

import click

from albertkit import __version__
from albertkit.cli.console import echo, echo_line
from albertkit.errors import AlbertkitError, nearest

# Group → module → command → one line for `albertkit --help`.
GROUPS: dict[str, dict[str, dict[str, str]]] = {
    "Use": {
        "use_commands": {
            "embed": "Compute sentence vectors.",
            "similar": "Compare texts by cosine similarity.",
            "fill": "Predict the word at each [MASK].",
            "generate": "Generate a text from each input text with a fine-tuned model.",
            "classify": "Classify texts or pairs of texts.",
            "tag": "Find entities in texts.",
            "intent": "Predict the intent of a request and its slots.",
            "track": "Track the dialogue state turn by turn.",
            "answer": "Answer a question from a text.",
            "choose": "Choose the right answer among several.",
        },
    },
    "Search": {
        "search_commands": {
            "index": "Index files for search, or update an index.",
            "search": "Search an index by meaning and by keywords.",
            "cluster": "Group texts by meaning.",
        },
    },
    "Train": {
        "pretrain_commands": {
            "tokenizer": "Train a tokenizer on texts.",
            "corpus": "Tokenize texts into shards for pre-training.",
            "pretrain": "Pre-train a model on a corpus.",
        },
        "finetune_commands": {
            "finetune": "Fine-tune a model for a task.",
            "evaluate": "Evaluate a fine-tuned model on labelled examples.",
            "elastic": "Train a model for every depth and for early exit.",
            "calibrate": "Calibrate the thresholds of early exit.",
            "distill": "Distil larger models into a small one.",
        },
    },
    "Compress": {
        "compress_commands": {
            "quantize": "Store weights in 8 or 4 bits.",
            "prune": "Remove heads, FFN columns, layers or vocabulary.",
            "static": "Distil a model into a table of token vectors.",
        },
    },
    "Deploy": {
        "deploy_commands": {
            "plan": "Find models that meet memory and latency limits on this machine.",
            "convert": "Convert any ALBERT checkpoint into an artifact folder.",
            "export": "Export a model as one ONNX file, or as a web page.",
            "serve": "Serve models over HTTP.",
        },
    },
    "Inspect": {
        "inspect_commands": {
            "models": "List the built-in models.",
            "info": "Describe a model: shape, heads, tokenizer, history.",
            "tokenize": "Show the tokens of texts.",
            "explain": "Explain a prediction: words, layers, attention.",
        },
    },
}
MODULES = {name: module for group in GROUPS.values() for module, commands in group.items() for name in commands}


class GroupedCommands(click.Group):
    """The commands of `GROUPS`, each imported when it is needed."""

    def list_commands(self, context: click.Context) -> list[str]:
        """All names, in the order of `--help`."""
        return list(MODULES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in MODULES:
            return None
        module = importlib.import_module(f"albertkit.cli.{MODULES[name]}")
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names; an error suggests the most similar name."""
        name = args[0]
        if name not in MODULES and not name.startswith("-"):
            context.fail(f"No such command {name!r}{nearest(name, MODULES)}.")
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per command, under the headings of the groups."""
        for group, modules in GROUPS.items():
            with formatter.section(group):
                lines = [line for commands in modules.values() for line in commands.items()]
                formatter.write_dl([(name.ljust(9), text) for name, text in lines])


@click.group(cls=GroupedCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def app() -> None:
    """The ALBERT toolkit: one compact transformer, from raw text to a deployed service."""


def show_warning(message: Warning | str, *_: object) -> None:
    """A warning as one line on stderr. Those of other libraries may have several."""
    text, is_foreign = str(message), type(message).__module__.split(".")[0] not in ("builtins", "albertkit")
    echo_line(f"warning: {' '.join(text.split()) if is_foreign else text}")


def system_reason(error: OSError | MemoryError) -> str:
    """An error of the system as one line."""
    if isinstance(error, MemoryError):
        return "out of memory. Pass fewer or shorter texts."
    name = error.filename or "the output"
    return f"{name} cannot be read or written: {error.strerror or error}. Check its permissions and its disk."


def main() -> NoReturn:
    """Run a command. An error is printed to stderr, with exit code 2."""
    code = 0
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning  # type: ignore[assignment]
            code = app(standalone_mode=False) or 0
    except AlbertkitError as error:
        first, *others = error.lines
        echo_line(f"albertkit: {first}", *others)
        code = 2
    except click.exceptions.NoArgsIsHelpError as error:
        echo(error.format_message())
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "albertkit"
        echo_line(f"{path}: {' '.join(error.format_message().split())} (see {path} --help)")
        code = 2
    except (OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):
            sys.stderr.close()  # the pipe's reader has exited; otherwise Python reports an error about stdout at exit
        else:
            echo_line(f"albertkit: {system_reason(error)}")
            code = 2
    except (click.Abort, KeyboardInterrupt) as error:
        if not str(error.__cause__ or error):  # training has already reported how to resume
            echo_line("albertkit: stopped")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
