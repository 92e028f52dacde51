"""Hugging Face folders (config.json with safetensors or pytorch_model.bin) and PyTorch state dicts.

In: a folder, or a state dict and its config. Out: an `Artifact`, or weights under our names and the config that fits.
A pickle is opened with torch's `weights_only=True`, which executes nothing; everything else needs no torch.
After this file: `plbert.py`, `google_tf.py` and `sentence_transformers.py` use its parts.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.artifact import Artifact, ArtifactMetadata
from albertkit.config import AlbertConfig, Options
from albertkit.errors import AlbertkitError, need
from albertkit.file_io import read_json, read_tensors
from albertkit.tokenizer import Tokenizer
from albertkit.transformers_folder import PROBLEM_TYPES
from albertkit.weights import BRIGHTMART, PUBLIC, TensorName, tensor_names

Tensors = dict[str, np.ndarray]

CONFIG_FILES = ("config.json", "albert_config.json", "bert_config.json")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
MAX_PICKLE_BYTES = 16 * 2**30
WORD_TABLE = "embeddings.word_embeddings.weight"
# Tensors that a model does not need: buffers, and copies of tied weights (in albert_zh, random numbers).
UNUSED_TENSORS = (
    "albert.embeddings.position_ids",
    "predictions.decoder.weight",
    "predictions.decoder.bias",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "cls.predictions.project_layer.weight",
)


def weight_file(folder: Path) -> Path | None:
    """The weight file of a folder, the safest format first."""
    return next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)


def read_folder(folder: Path) -> Artifact:
    """Open a Hugging Face (or albert_zh) folder."""
    path = weight_file(folder)
    if path is None:
        raise AlbertkitError(f"{folder} contains none of {', '.join(WEIGHT_FILES)}; pass the folder of a model")
    settings = read_config(folder)
    architecture = str(settings.get("architectures"))
    classifier, task = "classify", "pretrain"
    for word, head in (("TokenClassification", "tag"), ("MultipleChoice", "choose")):
        classifier = head if word in architecture else classifier
    config, weights = from_state_dict(read_weights(path), settings, classifier)
    for head in ("answer", "choose", "tag", "classify"):
        task = head if f"heads.{head}.linear.weight" in weights else task
    made = ({"step": "convert", "from": path.name, "layout": layout_name(config)},)
    labels, details = read_labels(settings), {}
    if task == "classify":
        rows = len(weights["heads.classify.linear.bias"])
        details["kind"] = read_kind(settings, rows)
        if not labels and details["kind"] != "regression":
            labels = tuple(f"LABEL_{row}" for row in range(rows))
    meta = ArtifactMetadata(task=task, labels=labels, details=details, history=made)
    return Artifact(config, weights, Tokenizer.load(folder, vocab_size=config.vocab_size), meta)


def layout_name(config: AlbertConfig) -> str:
    """The name of the layout, for the history of the model."""
    return "brightmart" if config.options.brightmart_layout else "hugging face"


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a folder, under any of its common names."""
    for name in CONFIG_FILES:
        if (folder / name).is_file():
            return read_json(folder / name)
    others = [path for path in sorted(folder.glob("*config*.json")) if "tokenizer" not in path.name]
    if len(others) == 1:
        return read_json(others[0])
    raise AlbertkitError(f"{folder} contains no config.json; a model needs one that states its shape")


def read_labels(settings: dict[str, Any]) -> tuple[str, ...]:
    """`id2label` in the order of the ids; empty if it has the default names only."""
    table = settings.get("id2label")
    if not isinstance(table, dict) or not table:
        return ()
    numbers = [str(number) for number in range(len(table))]
    if set(table) != set(numbers):
        raise AlbertkitError(
            f"id2label in config.json must number its labels 0, 1, 2 …, not {sorted(table)[:5]}; correct it"
        )
    labels = tuple(str(table[number]) for number in numbers)
    return () if labels == tuple(f"LABEL_{number}" for number in numbers) else labels


def read_kind(settings: dict[str, Any], rows: int) -> str:
    """The kind of labels of a classifier, as transformers decides it."""
    found = next((kind for kind, name in PROBLEM_TYPES.items() if settings.get("problem_type") == name), None)
    return found or ("regression" if rows == 1 else "single")


def read_weights(path: Path) -> Tensors:
    """A state dict from a file."""
    if path.suffix == ".safetensors":
        return read_tensors(path)
    return {name: value for name, value in read_pickle(path).items() if isinstance(value, np.ndarray)}


def read_pickle(path: Path) -> dict[str, Any]:
    """A PyTorch file as nested dicts of arrays; torch loads tensors and plain values only."""
    torch = need("torch", "train", f"reading {path.name}")
    try:
        if path.stat().st_size > MAX_PICKLE_BYTES:
            raise AlbertkitError(f"{path} has {path.stat().st_size:,} bytes; at most {MAX_PICKLE_BYTES:,} are read")
        data = torch.load(str(path), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise AlbertkitError(f"{path} does not exist") from None
    except pickle.UnpicklingError as error:
        first = str(error).split("\n")[0][:120]
        raise AlbertkitError(
            f"{path} contains more than tensors and could run code, so it was not loaded: {first}"
        ) from None
    except AlbertkitError:
        raise
    except Exception as error:  # a damaged archive fails in many ways inside torch; all mean the same to the user
        raise AlbertkitError(f"{path} is not a complete PyTorch file: {str(error).splitlines()[0][:160]}") from None
    if not isinstance(data, dict):
        raise AlbertkitError(f"{path} contains a {type(data).__name__}; a state dict of tensors is needed")
    return {str(key): _to_arrays(value, torch) for key, value in data.items()}


def _to_arrays(value: Any, torch: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.is_sparse or value.is_quantized:
            raise AlbertkitError("the file contains sparse or quantised tensors; save it with plain float weights")
        return value.detach().to(torch.float32).numpy() if value.is_floating_point() else value.numpy()
    if isinstance(value, dict):
        return {str(key): _to_arrays(item, torch) for key, item in value.items()}
    return value


# State dicts ------------------------------------------------------------------------------------------------------


def encoder_prefix(tensors: Mapping[str, Any]) -> str:
    """The prefix of `embeddings.word_embeddings.weight` in the only ALBERT encoder of a state dict."""
    layers = "encoder.albert_layer_groups."
    prefixes = [name.removesuffix(WORD_TABLE) for name in tensors if name.endswith(WORD_TABLE)]
    prefixes = [p for p in prefixes if any(name.startswith(p + layers) for name in tensors)]
    if len(prefixes) != 1:
        found = "no ALBERT encoder" if not prefixes else f"{len(prefixes)} ALBERT encoders"
        first = ", ".join(sorted(tensors)[:3])
        raise AlbertkitError(f"the file contains {found} (first tensors: {first} …); exactly one is needed")
    return prefixes[0]


def add_public_prefix(tensors: Tensors) -> Tensors:
    """Rename `encoder.bert.embeddings…`, `module.encoder.embeddings…` or `embeddings…` to `albert.embeddings…`.

    Heads are kept only where transformers puts them, beside a top-level encoder. Other parts of a larger model, such as
    a speech synthesiser around PL-BERT, are dropped.
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
    tensors: Tensors, table: list[TensorName], column: Callable[[TensorName], str], unused: tuple[str, ...] = ()
) -> Tensors:
    """Rename tensors to our names; an unknown name is an error, since dropping a tensor would change the model."""
    ours = {column(name): name for name in table}
    out: Tensors = {}
    for foreign, array in tensors.items():
        if foreign in ours:
            out[ours[foreign].ours] = array
        elif foreign not in unused:
            raise AlbertkitError(
                f"tensor {foreign!r} is not part of ALBERT, so the file cannot be converted without changing the model"
            )
    return out


def from_state_dict(
    tensors: Tensors, config: Mapping[str, Any], classifier: str = "classify"
) -> tuple[AlbertConfig, Tensors]:
    """Recognise the layout of a PyTorch state dict; returns the config and the weights under our names."""
    tensors = {n.replace(".gamma", ".weight").replace(".beta", ".bias"): a for n, a in tensors.items()}
    settings = dict(config)
    if any(".layer_shared." in name for name in tensors):  # the layout of albert_zh
        if settings.get("hidden_act", "gelu") == "gelu":
            settings["hidden_act"] = "gelu_new"  # the tanh form, which its code calls `gelu`
        full_config = AlbertConfig.from_dict(settings).replace(options=Options(brightmart_layout=True))
        return full_config, translate(tensors, tensor_names(full_config, BRIGHTMART), lambda n: n.torch, UNUSED_TENSORS)
    tensors = add_public_prefix(tensors)
    full_config = AlbertConfig.from_dict(settings)
    table = tensor_names(full_config, PUBLIC, classifier=classifier)
    custom_heads = {name: array for name, array in tensors.items() if name.startswith("heads.")}
    rest = {name: array for name, array in tensors.items() if name not in custom_heads}
    return full_config, {**translate(rest, table, lambda n: n.torch, UNUSED_TENSORS), **custom_heads}
