"""The page of the Python interface: for `generate.py`, and for `make_site.py`, which puts each name's whole
documentation in its place.

In: the names below, and what the code says about itself. Out: the text of docs/api.md: each name with its signature and
its first sentence.
"""

from __future__ import annotations

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

# The Python interface

The names of `albertkit` itself are the public API: they stay as they are within a major version. Each is imported when it is first used, so `import albertkit` costs nothing and needs no torch.
What stands under other headings may still move; the [changelog](../CHANGELOG.md) says so when it does. The site shows all methods of each; `help(albertkit.Albert)` does so too.
"""


def page() -> str:
    """The whole page."""
    parts = [TEXT, "## The public API\n"]
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


def home(path: str) -> str:
    """Where it is defined: what a reader of sources must be told."""
    found = find(path)
    return f"{found.__module__}.{found.__name__}"


def entry(path: str, found: Any) -> str:
    """A heading, the signature, the first paragraph, and a mark for `make_site.py`."""
    if isinstance(found, type) and issubclass(found, Exception):
        form = "exception"
    else:
        form = signature(found)
    first = inspect.getdoc(found).split("\n\n")[0].replace("\n", " ")
    return f"### {found.__name__}\n\n<!-- site: {home(path)} -->\n\n```text\nfrom {path.rsplit('.', 1)[0]} import {found.__name__}\n\n{form}\n```\n\n{first}\n"


def signature(found: Any) -> str:
    """`Name(a, b=1)`, without annotations, and without defaults that have no short form."""
    kept = []
    for one in inspect.signature(found).parameters.values():
        default = one.default if one.default is one.empty or len(repr(one.default)) < 30 else ...
        if re.search(r" at 0x|<", repr(default)) and default is not one.empty:
            default = ...
        kept.append(one.replace(annotation=one.empty, default=default))
    return f"{found.__name__}{inspect.Signature(kept)}".replace("Ellipsis", "…")
