"""Hugging Face folders (config.json with safetensors or pytorch_model.bin) and PyTorch state dicts.

In: a folder, or a state dict and its config. Out: an `Artifact`, or weights under our names and the config that fits.
Shapes are compared with the config before numbers are read. Nothing is executed, and no torch is needed.
Before this file: `pickle_file.py`. After it: `plbert.py`, `google_tf.py` and `sentence_transformers.py` use its parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from albertkit.artifact import Artifact, ArtifactMetadata, load_weights
from albertkit.config import CROSS_ENCODER_KEYS, AlbertConfig, Options
from albertkit.errors import AlbertkitError
from albertkit.file_io import read_json
from albertkit.interop.pickle_file import open_pickle
from albertkit.tensor_file import StoredTensor, open_tensors
from albertkit.tokenizer import Tokenizer
from albertkit.transformers_folder import PROBLEM_TYPES
from albertkit.weights import BRIGHTMART, PUBLIC, TensorName, tensor_names

Tensor = TypeVar("Tensor")  # an array, or a tensor that has not been read

CONFIG_FILES = ("config.json", "albert_config.json", "bert_config.json")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
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
    with open_state_dict(path) as tensors:
        config, stored = from_state_dict(tensors, settings, classifier)
        weights = load_weights(config, stored)
    for head in ("answer", "choose", "tag", "classify"):
        task = head if f"heads.{head}.linear.weight" in weights else task
    history = ({"step": "convert", "from": path.name, "layout": layout_name(config)},)
    labels = read_labels(settings)
    details: dict[str, Any] = {}
    if task == "classify":
        rows = len(weights["heads.classify.linear.bias"])
        details["kind"] = read_kind(settings, rows)
        if is_cross_encoder(folder):
            details["pairs"] = True
        if not labels and details["kind"] != "regression":
            labels = tuple(f"LABEL_{row}" for row in range(rows))
    meta = ArtifactMetadata(task=task, labels=labels, details=details, history=history)
    return Artifact(config, weights, Tokenizer.load(folder, vocab_size=config.vocab_size), meta)


def is_cross_encoder(folder: Path) -> bool:
    """Whether sentence-transformers wrote this folder for a model of pairs. Its versions have different keys."""
    files = [folder / name for name in ("config.json", "config_sentence_transformers.json")]
    configs = [read_json(path) for path in files if path.is_file()]
    return any(c.get("model_type") == "CrossEncoder" or any(key in c for key in CROSS_ENCODER_KEYS) for c in configs)


def layout_name(config: AlbertConfig) -> str:
    """The name of the layout, for the history of the model."""
    return "brightmart" if config.options.brightmart_layout else "hugging face"


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a folder, under any of its common names."""
    for name in CONFIG_FILES:
        if (folder / name).is_file():
            return read_json(folder / name)
    configs = [path for path in sorted(folder.glob("*config*.json")) if "tokenizer" not in path.name]
    if len(configs) == 1:
        return read_json(configs[0])
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
    kinds = {name: kind for kind, name in PROBLEM_TYPES.items()}
    return kinds.get(str(settings.get("problem_type"))) or ("regression" if rows == 1 else "single")


@contextlib.contextmanager
def open_state_dict(path: Path) -> Iterator[dict[str, StoredTensor]]:
    """The tensors of a safetensors or PyTorch file. Read their numbers inside the block."""
    if path.suffix == ".safetensors":
        with open_tensors(path) as tensors:
            yield tensors
    else:
        with open_pickle(path) as data:
            yield {name: value for name, value in data.items() if isinstance(value, StoredTensor)}


# State dicts ------------------------------------------------------------------------------------------------------


def encoder_prefix(tensors: Mapping[str, Any]) -> str:
    """The prefix of `embeddings.word_embeddings.weight` in the only ALBERT encoder of a state dict."""
    layers = "encoder.albert_layer_groups."
    prefixes = [name.removesuffix(WORD_TABLE) for name in tensors if name.endswith(WORD_TABLE)]
    prefixes = [p for p in prefixes if any(name.startswith(p + layers) for name in tensors)]
    if len(prefixes) != 1:
        count = "no ALBERT encoder" if not prefixes else f"{len(prefixes)} ALBERT encoders"
        first = ", ".join(sorted(tensors)[:3])
        raise AlbertkitError(f"the file contains {count} (first tensors: {first} …); exactly one is needed")
    return prefixes[0]


def add_public_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename `encoder.bert.embeddings…`, `module.encoder.embeddings…` or `embeddings…` to `albert.embeddings…`.

    Heads are kept only where transformers puts them, beside a top-level encoder. Other parts of a larger model, such as
    a speech synthesiser around PL-BERT, are dropped.
    """
    prefix = encoder_prefix(tensors)
    parts = ("embeddings.", "encoder.embedding_hidden_mapping_in.", "encoder.albert_layer_groups.", "pooler.")
    renamed: dict[str, Tensor] = {}
    for name, array in tensors.items():
        tail = name.removeprefix(prefix)
        if name.startswith(prefix) and tail.startswith(parts):
            renamed["albert." + tail] = array
        elif prefix in ("", "albert."):
            renamed[name] = array
    return renamed


def translate(
    tensors: dict[str, Tensor],
    table: list[TensorName],
    column: Callable[[TensorName], str],
    unused: tuple[str, ...] = (),
) -> dict[str, Tensor]:
    """Rename tensors to our names; an unknown name is an error, since dropping a tensor would change the model."""
    ours = {column(name): name for name in table}
    translated: dict[str, Tensor] = {}
    for foreign, array in tensors.items():
        if foreign in ours:
            translated[ours[foreign].ours] = array
        elif foreign not in unused:
            raise AlbertkitError(
                f"tensor {foreign!r} is not part of ALBERT, so the file cannot be converted without changing the model"
            )
    return translated


def from_state_dict(
    tensors: dict[str, Tensor], config: Mapping[str, Any], classifier: str = "classify"
) -> tuple[AlbertConfig, dict[str, Tensor]]:
    """Recognise the layout of a PyTorch state dict; returns the config and the tensors under our names."""
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
    encoder_tensors = {name: array for name, array in tensors.items() if name not in custom_heads}
    return full_config, {**translate(encoder_tensors, table, lambda n: n.torch, UNUSED_TENSORS), **custom_heads}
