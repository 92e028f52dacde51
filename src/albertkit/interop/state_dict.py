"""A foreign PyTorch state dict into ours: find the layout by its names, the shape by its tensors, and map.

In: `{foreign name: array}` and what the folder's config said. Out: weights under our names, and the config that fits.
Before this file: `huggingface.py` and `plbert.py` read files; `google_tf.py` does the same for TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from albertkit.config import AlbertConfig, Options
from albertkit.errors import AlbertkitError
from albertkit.tensor_names import BRIGHTMART, PUBLIC, TensorName, tensor_names

Tensors = dict[str, np.ndarray]

WORDS = "embeddings.word_embeddings.weight"
# What files carry and a model does not need: buffers, and copies of tied weights (in albert_zh, mere noise in their place).
PASSED_OVER = (
    "albert.embeddings.position_ids",
    "predictions.decoder.weight",
    "predictions.decoder.bias",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "cls.predictions.project_layer.weight",
)


def is_brightmart(tensors: Mapping[str, Any]) -> bool:
    """Does a state dict have the layout of albert_zh?"""
    return any(".layer_shared." in name for name in tensors)


def encoder_prefix(tensors: Mapping[str, Any]) -> str:
    """What stands before `embeddings.word_embeddings.weight` in the one ALBERT encoder of a state dict."""
    layers = "encoder.albert_layer_groups."
    prefixes = [name.removesuffix(WORDS) for name in tensors if name.endswith(WORDS)]
    prefixes = [p for p in prefixes if any(name.startswith(p + layers) for name in tensors)]
    if len(prefixes) != 1:
        found = "no ALBERT encoder" if not prefixes else f"{len(prefixes)} ALBERT encoders"
        some = ", ".join(sorted(tensors)[:3])
        raise AlbertkitError(f"the file holds {found} (its first tensors: {some} …); exactly one is needed")
    return prefixes[0]


def with_public_prefix(tensors: Tensors) -> Tensors:
    """Rename `encoder.bert.embeddings…`, `module.encoder.embeddings…` or `embeddings…` to `albert.embeddings…`.

    Heads are kept only where transformers puts them, beside a top-level encoder; other parts of a larger model
    (a speech synthesiser around PL-BERT) are not ALBERT's.
    """
    prefix = encoder_prefix(tensors)
    parts = ("embeddings.", "encoder.embedding_hidden_mapping_in.", "encoder.albert_layer_groups.", "pooler.")
    out: Tensors = {}
    for name, array in tensors.items():
        tail = name.removeprefix(prefix)
        if name.startswith(prefix) and tail.startswith(parts):
            out["albert." + tail] = array
        elif prefix in ("", "albert."):
            out[name] = array
    return out


def translate(
    tensors: Tensors, table: list[TensorName], column: Callable[[TensorName], str], passed_over: tuple[str, ...] = ()
) -> Tensors:
    """Foreign names to ours; a name nobody knows is an error, since dropping it would change the model in silence."""
    ours = {column(name): name for name in table}
    out: Tensors = {}
    for foreign, array in tensors.items():
        if foreign in ours:
            out[ours[foreign].ours] = array
        elif foreign not in passed_over:
            raise AlbertkitError(
                f"tensor {foreign!r} is unknown in an ALBERT file, so it cannot be converted faithfully"
            )
    return out


def from_state(
    tensors: Tensors, config: Mapping[str, Any], classifier: str = "classify"
) -> tuple[AlbertConfig, Tensors]:
    """Recognise the layout of a PyTorch state dict and return config and weights in ours."""
    tensors = {n.replace(".gamma", ".weight").replace(".beta", ".bias"): a for n, a in tensors.items()}
    settings = dict(config)
    if is_brightmart(tensors):
        # albert_zh was trained with the tanh form, which its code calls `gelu`.
        settings["hidden_act"] = (
            "gelu_new" if settings.get("hidden_act") == "gelu" else settings.get("hidden_act", "gelu_new")
        )
        fitted = AlbertConfig.from_dict(settings).replace(options=Options(brightmart_layout=True))
        return fitted, translate(tensors, tensor_names(fitted, BRIGHTMART), lambda n: n.torch, PASSED_OVER)
    tensors = with_public_prefix(tensors)
    fitted = AlbertConfig.from_dict(settings)
    table = tensor_names(fitted, PUBLIC, classifier=classifier)
    own = {name: array for name, array in tensors.items() if name.startswith("heads.")}
    rest = {name: array for name, array in tensors.items() if name not in own}
    return fitted, {**translate(rest, table, lambda n: n.torch, PASSED_OVER), **own}
