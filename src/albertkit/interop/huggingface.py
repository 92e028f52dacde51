"""Hugging Face folders, old and new: config.json with safetensors (one file or shards) or pytorch_model.bin.

In: a folder. Out: an `Artifact`. A pickle is opened with torch's `weights_only=True` alone, which executes nothing; everything
else needs no torch.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.artifact import Artifact, Meta
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, need
from albertkit.file_io import read_json, read_tensors
from albertkit.interop.state_dict import Tensors, from_state
from albertkit.tokenizer import Tokenizer

CONFIG_FILES = ("config.json", "albert_config.json", "bert_config.json")
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
PICKLE_LIMIT = 16 * 2**30


def weight_file(folder: Path) -> Path | None:
    """The folder's weights, the safest kind first."""
    return next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)


def read_folder(folder: Path) -> Artifact:
    """Open a Hugging Face (or albert_zh) folder."""
    path = weight_file(folder)
    if path is None:
        raise AlbertkitError(f"{folder} holds none of {', '.join(WEIGHT_FILES)}; is it the folder of a model?")
    settings = read_config(folder)
    architecture = str(settings.get("architectures"))
    classifier, task = "classify", "pretrain"
    for word, head in (("TokenClassification", "tag"), ("MultipleChoice", "choose")):
        classifier = head if word in architecture else classifier
    config, weights = from_state(read_weights(path), settings, classifier)
    for head in ("answer", "choose", "tag", "classify"):
        task = head if f"heads.{head}.linear.weight" in weights else task
    made = ({"step": "convert", "from": path.name, "layout": layout_name(config)},)
    meta = Meta(task=task, labels=read_labels(settings), made=made)
    return Artifact(config, weights, Tokenizer.load(folder, vocab_size=config.vocab_size), meta)


def layout_name(config: AlbertConfig) -> str:
    """What to call the source's layout."""
    return "brightmart" if config.options.brightmart_layout else "hugging face"


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config under any of its usual names."""
    for name in CONFIG_FILES:
        if (folder / name).is_file():
            return read_json(folder / name)
    named = sorted(folder.glob("*config*.json"))
    plain = [p for p in named if "tokenizer" not in p.name]
    if len(plain) == 1:
        return read_json(plain[0])
    raise AlbertkitError(f"{folder} holds no config.json; a model needs one that states its shape")


def read_labels(settings: dict[str, Any]) -> tuple[str, ...]:
    """`id2label` in order of the ids, when it says more than the default names do."""
    table = settings.get("id2label")
    if not isinstance(table, dict) or not table:
        return ()
    try:
        rows = sorted((int(key), str(label)) for key, label in table.items())
    except ValueError:
        raise AlbertkitError(f"id2label in config.json has a key that is no number: {sorted(table)[:5]}") from None
    if [number for number, _ in rows] != list(range(len(rows))):
        raise AlbertkitError("id2label in config.json does not number its labels 0, 1, 2 …; correct it")
    if all(label == f"LABEL_{number}" for number, label in rows):
        return ()
    return tuple(label for _, label in rows)


def read_weights(path: Path) -> Tensors:
    """A state dict from one file, or from the shards an index file names."""
    if path.name.endswith(".index.json"):
        table = read_json(path).get("weight_map")
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
            raise AlbertkitError(f"{path} holds no 'weight_map' of tensor names to file names")
        tensors: Tensors = {}
        for name in sorted(set(table.values())):
            if Path(name).name != name or name.startswith(".") or Path(name).suffix not in (".safetensors", ".bin"):
                raise AlbertkitError(
                    f"{path} names the shard {name!r}; only plain file names in its folder are allowed (.safetensors, .bin)"
                )
            tensors |= read_weights(path.parent / name)
        return tensors
    if path.suffix == ".safetensors":
        return read_tensors(path)
    return {name: value for name, value in read_pickle(path).items() if isinstance(value, np.ndarray)}


def read_pickle(path: Path) -> dict[str, Any]:
    """A PyTorch file as nested dicts of arrays, through the loader that refuses everything but tensors and plain values."""
    torch = need("torch", "train", f"reading {path.name}")
    try:
        if path.stat().st_size > PICKLE_LIMIT:
            raise AlbertkitError(f"{path} has {path.stat().st_size:,} bytes; at most {PICKLE_LIMIT:,} are read")
        data = torch.load(str(path), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise AlbertkitError(f"{path} does not exist") from None
    except pickle.UnpicklingError as error:
        first = str(error).split("\n")[0][:120]
        raise AlbertkitError(
            f"{path} was refused, since it holds more than tensors and might run code: {first}"
        ) from None
    except AlbertkitError:
        raise
    except Exception as error:  # a damaged archive fails in many ways inside torch; all mean the same to the user
        raise AlbertkitError(f"{path} is not a whole PyTorch file: {str(error).splitlines()[0][:160]}") from None
    if not isinstance(data, dict):
        raise AlbertkitError(f"{path} holds a {type(data).__name__}; a state dict of tensors is needed")
    return {str(key): _arrays(value, torch) for key, value in data.items()}


def _arrays(value: Any, torch: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.is_sparse or value.is_quantized:
            raise AlbertkitError("the file holds sparse or quantised tensors; save it with plain float weights")
        return value.detach().to(torch.float32).numpy() if value.is_floating_point() else value.numpy()
    if isinstance(value, dict):
        return {str(key): _arrays(item, torch) for key, item in value.items()}
    return value
