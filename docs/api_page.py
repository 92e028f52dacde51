"""docs/reference/api.md, for `generate.py`: every public name with its signature, its description and an example.

In: the names of `albertkit` and of `GROUPS`, and their docstrings. Out: the text of the page.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from typing import Any

import albertkit

GROUPS = {
    "Training, with torch": (
        "albertkit.train.pretrain.PretrainTask",
        "albertkit.train.loop.train",
        "albertkit.train.train_settings.TrainSettings",
        "albertkit.sklearn.AlbertClassifier",
    ),
    "The model, with torch": (
        "albertkit.model.albert_model.AlbertModel",
        "albertkit.model.albert_model.build_head",
        "albertkit.model.packed_batch.Batch",
        "albertkit.model.albert_model.pool",
    ),
    "Search": (
        "albertkit.search.index.Index",
        "albertkit.search.index.Record",
        "albertkit.search.cluster.cluster",
    ),
    "Smaller and elsewhere": (
        "albertkit.compress.quantize.quantize",
        "albertkit.compress.prune.prune",
        "albertkit.compress.static_model.make_static_model",
        "albertkit.interop.onnx_export.export",
    ),
    "Data": (
        "albertkit.tasks.readers.read_examples",
        "albertkit.runtime.predict.predict",
        "albertkit.data.corpus.build_corpus",
        "albertkit.data.shards.Shards",
    ),
}
TEXT = """<!-- Written by `make docs`; do not edit. -->

# Python API

`from albertkit import …` gives you the names under *Public API*. They stay compatible within a major version. Each is imported when it is first used, so `import albertkit` is fast and needs no torch.
Names under the later headings may change; the [changelog](../../CHANGELOG.md) lists it when they do. `help(albertkit.Albert)` prints the complete documentation.

Most programs need four names: [`Albert`](#albert) to use a model, [`finetune`](#finetune) to train one, [`quantize`](#quantize) to make it small, [`serve`](#serve) to serve it.
Names that end in `Result` are what functions return, names that end in `Settings` are what they take, and names that end in `Example` are rows of labelled data.
"""


def page() -> str:
    """The whole page."""
    parts = [TEXT, "## Public API\n"]
    parts += [entry(f"albertkit.{name}", public(name)) for name in albertkit.__all__]
    for title, names in GROUPS.items():
        parts += [f"## {title}\n", *(entry(name, find(name)) for name in names)]
    return "\n".join(parts)


def public(name: str) -> Any:
    """A public name; `albertkit.serve` is a package that can be called, so its function is documented."""
    return importlib.import_module("albertkit.serve.server").serve if name == "serve" else getattr(albertkit, name)


def find(path: str) -> Any:
    """What a dotted path names."""
    if path == "albertkit.serve":
        return public("serve")
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


def entry(path: str, found: Any) -> str:
    """A heading, the signature, the description, the example, and the methods of a class."""
    description, example = split_example(inspect.getdoc(found) or "")
    is_error = isinstance(found, type) and issubclass(found, Exception)
    form = f"exception {found.__name__}" if is_error else signature(found)
    lines = [
        f"### {found.__name__}",
        "",
        "```text",
        f"from {path.rsplit('.', 1)[0]} import {found.__name__}",
        "",
        form,
        "```",
    ]
    lines += ["", paragraphs(description, "" if is_error else "|".join(inspect.signature(found).parameters))]
    if example:
        lines += ["", "```pycon", example, "```"]
    rows = methods(found) if isinstance(found, type) and not is_error else []
    if rows:
        lines += ["", "| method | |", "|---|---|", *rows]
    return "\n".join([*lines, ""])


def split_example(text: str) -> tuple[str, str]:
    """A docstring before its example, and the example without the marks of doctest."""
    description, mark, example = text.partition("\n>>> ")
    shown = re.sub(r" *# doctest: \+\w+", "", mark.strip("\n") + example)
    return description.strip(), shown.strip()


def paragraphs(text: str, names: str) -> str:
    """Lines joined to paragraphs; what the parameters `names` (a pattern) mean becomes a list."""
    joined = []
    for paragraph in text.split("\n\n"):
        is_list = names and re.match(rf"(?:{names})(?:, \w+)*: ", paragraph)
        parts = re.split(rf"(?:^|(?<=[.)])\s)(?=(?:{names})(?:, \w+)*: )", paragraph) if is_list else []
        named = [re.sub(r"^([\w, ]+):", r"- `\1`:", " ".join(part.split())) for part in parts if part.strip()]
        joined.append("\n".join(named) or " ".join(paragraph.split()))
    return "\n\n".join(joined)


def methods(found: type) -> list[str]:
    """Rows of a table: the public methods and properties that the class itself defines, with their first sentence."""
    rows = []
    fields = {field.name for field in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    for name, member in vars(found).items():
        inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        described = inspect.getdoc(inner) if callable(inner) or isinstance(inner, property) else None
        if name.startswith("_") or name in fields or not described:
            continue
        first = re.split(r"(?<=\.)\s", " ".join(described.split("\n\n")[0].split()))[0].replace("|", "\\|")
        rows.append(f"| `{name}{'' if isinstance(inner, property) else '()'}` | {first} |")
    return rows


def signature(found: Any) -> str:
    """`name(a: int, b: str = 'x') -> int`, one parameter per line where it is long; a default without a short form is `…`."""
    whole = inspect.signature(found)
    parts, keyword_only = [], False
    for one in whole.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
            keyword_only = True
        star = {one.VAR_KEYWORD: "**", one.VAR_POSITIONAL: "*"}.get(one.kind, "")
        kind = one.annotation if isinstance(one.annotation, str) else getattr(one.annotation, "__forward_arg__", "")
        shown = repr(one.default)
        default = (
            ""
            if one.default is one.empty
            else " = …"
            if " at 0x" in shown or "<" in shown or len(shown) > 30
            else f" = {shown}"
        )
        parts.append(f"{star}{one.name}{f': {kind}' if kind else ''}{default}")
    result = whole.return_annotation if isinstance(whole.return_annotation, str) else ""
    end = f") -> {result}" if result and not isinstance(found, type) else ")"
    line = f"{found.__name__}({', '.join(parts)}{end}"
    return line if len(line) <= 110 else f"{found.__name__}(\n" + "".join(f"    {part},\n" for part in parts) + end
