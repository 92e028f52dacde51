"""Tables of reference/artifact.md: fields, shapes, and what each option costs.

In: the dataclasses of the artifact and the config with the sentence below each field, and `compress/cost.py`. Out: one
Markdown table per name in `TABLES`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from albertkit.artifact import ArtifactMetadata
from albertkit.cli.console import format_megabytes
from albertkit.compress.cost import shape_cost
from albertkit.config import PRESETS, AlbertConfig, Options, preset
from tables import table

LENGTHS = (128, 512)
COSTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # row → options, fields of the config
    "none": ({}, {}),
    "`low_rank=32`": ({"low_rank": 32}, {}),
    "`value_size=32`": ({"value_size": 32}, {}),
    "`output_rank=128`": ({"output_rank": 128}, {}),
    "`window=64`": ({"window": 64}, {}),
    "`window=64 global_every=3`": ({"window": 64, "global_every": 3}, {}),
    "`shared_heads=true`": ({"shared_heads": True}, {}),
    "`attention_bias=head`": ({"attention_bias": "head"}, {}),
    "`attention_bias=relative`": ({"attention_bias": "relative"}, {}),
    "`gru=true`": ({"gru": True}, {}),
    "`gru=true gru_layers=2`": ({"gru": True, "gru_layers": 2}, {}),
    "`norm=document`": ({"norm": "document"}, {}),
    "`classifier=mean`": ({"classifier": "mean"}, {}),
    "`scale_embedding=true`": ({"scale_embedding": True}, {}),
    "`prelude_layers=1`": ({"prelude_layers": 1}, {}),
    "`prelude_layers=1 coda_layers=1`": ({"prelude_layers": 1, "coda_layers": 1}, {}),
    "`ffn_groups=3`": ({"ffn_groups": 3}, {}),
    "`pre_norm=true`": ({"pre_norm": True}, {}),
    "`gated_ffn=true`": ({"gated_ffn": True}, {}),
    "`gated_ffn=true`, 2/3 of F": ({"gated_ffn": True}, {"intermediate_size": 2_048}),
    "shape: 4 groups": ({}, {"num_hidden_groups": 4}),
    "shape: 12 groups (no sharing)": ({}, {"num_hidden_groups": 12}),
    "shape: k = 64": ({}, {"embedding_size": 64}),
    "shape: k = 256": ({}, {"embedding_size": 256}),
    "shape: k = H": ({}, {"embedding_size": 768}),
}


def field_docs(kind: type) -> dict[str, str]:
    """The sentence below each field of a dataclass."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    found = {}
    for field, text in pairwise(body):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            found[field.target.id] = inspect.cleandoc(text.value.value)  # type: ignore[attr-defined]
    return found


def fields(kind: type, special: dict[str, str]) -> str:
    """Name, default and meaning of each field."""
    docs = field_docs(kind)
    rows = []
    for field in dataclasses.fields(kind):
        factory = field.default_factory
        default = factory() if factory is not dataclasses.MISSING else field.default
        shown = "" if default in ((), {}, None) or isinstance(default, Options) else f"`{default}`"
        rows.append((f"`{field.name}`", shown, special.get(field.name) or docs[field.name]))
    return table(("field", "default", "meaning"), rows)


def metadata_fields() -> str:
    return fields(ArtifactMetadata, {})


def config_fields() -> str:
    ids = {"pad_token_id": "Id of `<pad>`.", "bos_token_id": "Id of `[CLS]`.", "eos_token_id": "Id of `[SEP]`."}
    return fields(
        AlbertConfig, {**ids, "options": "[Options beyond ALBERT](#options-beyond-albert), under the key `albertkit`."}
    )


def shapes() -> str:
    rows = []
    for name in PRESETS:
        config = preset(name)
        cost = shape_cost(config)
        sizes = [format_megabytes(cost.bytes[kind]) for kind in ("float32", "int8", "4-bit")]
        shape = f"{config.num_hidden_layers} × {config.hidden_size}"
        millions = [f"{cost.parameters['total'] / 1e6:,.1f} M", f"{cost.unshared / 1e6:,.1f} M"]
        rows.append((f"`{name}`", shape, *millions, f"{cost.operations['total'] / 1e6:,.1f} M", *sizes))
    heads = ("preset", "layers × hidden", "parameters", "BERT of this shape", "operations", "float32", "int8", "4-bit")
    return table(heads, rows)


def option_costs() -> str:
    base = preset("base")
    whole = shape_cost(base).parameters["total"]
    rows = []
    for name, (options, shape) in COSTS.items():
        config: AlbertConfig = base.replace(**shape, options=Options(**options))
        costs = [shape_cost(config, length) for length in LENGTHS]
        total = costs[0].parameters["total"]
        operations = [f"{cost.operations['total'] / 1e6:,.1f}" for cost in costs]
        rows.append((name, f"{total:,}", f"{total - whole:+,}", *operations, f"{costs[0].bytes['int8'] / 1e6:.2f} MB"))
    heads = ("option", "parameters", "difference", *(f"operations, {n} tokens" for n in LENGTHS), "int8")
    return table(heads, rows)


TABLES: dict[str, Callable[[], str]] = {
    "metadata-fields": metadata_fields,
    "config-fields": config_fields,
    "shapes": shapes,
    "option-costs": option_costs,
}
