"""The built-in models: ordinary artifact folders under `models/`.

In: a name, a path or None. Out: a folder, or the description of a built-in model. `artifact.py` resolves all models
with this module, so every function that opens a model accepts these names. A model's files contain its shape, licence,
language and scores.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError, check_choice, check_path

MODELS = Path(__file__).parent / "models"
BUILTINS = {
    "small": "sentence vectors; the start for classifying texts",
    "small-pretrained": "masked-word predictions; the start for fine-tuning other tasks",
    "small-zh": "Chinese sentence vectors; the start for classifying Chinese texts",
    "small-zh-pretrained": "Chinese masked-word predictions; the start for fine-tuning other tasks on Chinese texts",
}
SHARED_SPACE = "small-en-zh"  # the space of both models of vectors; no model (`search/shared_space.py`)
DEFAULT = "small"  # the model of `Albert()`
PRETRAINED = {DEFAULT: "small-pretrained", "small-zh": "small-zh-pretrained"}
"""For each model of vectors, the one that fills masks and is the start for fine-tuning on tokens."""
CHINESE = re.compile(r"[\u4e00-\u9fff]")
KANA = re.compile(r"[\u3040-\u30ff]")  # Japanese texts contain Chinese characters too
LATIN = re.compile("[A-Za-z]")
LATIN_WORD = re.compile("[A-Za-z]+")


def base_models(examples: Sequence[object]) -> tuple[str, str]:
    """The built-in models for the language of most examples: for vectors, and for tokens in context."""
    is_chinese = 2 * sum(bool(CHINESE.search(repr(example))) for example in examples) > len(examples)
    vectors = "small-zh" if is_chinese else DEFAULT
    return vectors, PRETRAINED[vectors]


def language_model(text: str) -> str | None:
    """The built-in model of vectors for the language of a text; None if there is none.

    >>> language_model("我想退货"), language_model("a cat"), language_model("кошка")
    ('small-zh', 'small', None)
    """
    if CHINESE.search(text) and not KANA.search(text):
        return "small-zh"
    return DEFAULT if LATIN.search(text) else None


def mask_model(model: Path | str | None) -> str | None:
    """The built-in model that fills masks for a built-in model without an MLM head; None for other models."""
    return next((other for name, other in PRETRAINED.items() if resolve(name) == resolve(model)), None)


def resolve(model: Path | str | None, default: str = DEFAULT) -> Path:
    """The folder of a model: an existing path, or a built-in model for None or a name of `BUILTINS`."""
    if model is None:
        return MODELS / default
    check_path("model", model)
    if is_shared_space(model):
        raise AlbertkitError(
            f"{SHARED_SPACE} is not one model: it is for the commands index, search and cluster. Use SharedSpace in "
            f"Python, embed --space shared, or one of the models {', '.join(BUILTINS)}."
        )
    if str(model) in BUILTINS and not Path(model).exists():
        return MODELS / str(model)
    return Path(model)


def is_shared_space(model: Path | str | None) -> bool:
    """Whether both models of vectors are meant; an existing folder of this name goes first."""
    return str(model) == SHARED_SPACE and not Path(SHARED_SPACE).exists()


@dataclass(frozen=True)
class BuiltinModel:
    """The description of a built-in model; its weights are not read."""

    name: str
    purpose: str
    path: str
    bytes: int
    """Size of all files in the folder."""
    shape: dict[str, int]
    depth: int
    """Layers that are applied by default."""
    quantization: str | None
    language: str | None
    licence: str | None
    scores: dict[str, Any]
    """Metrics, by name of the dataset."""
    hash: str
    """See `fingerprint`."""


def describe(name: str) -> BuiltinModel:
    """The descriptions of all built-in models, from their folders."""
    from albertkit.artifact import read_metadata
    from albertkit.config import AlbertConfig
    from albertkit.file_io import read_json

    check_choice("built-in model", name, BUILTINS)
    folder = MODELS / name
    meta, _ = read_metadata(folder)
    config = AlbertConfig.from_dict(read_json(folder / "config.json"))
    shape = {
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "vocabulary": config.vocab_size,
        "length": config.max_position_embeddings,
    }
    return BuiltinModel(
        name, BUILTINS[name], str(folder), sum(p.stat().st_size for p in folder.iterdir()), shape,
        meta.depth or config.num_hidden_layers, meta.quantization,
        meta.details.get("language"), meta.details.get("licence"), meta.metrics, fingerprint(folder),
    )  # fmt: skip


def fingerprint(folder: Path) -> str:
    """One hash of the weights, config and vocabulary of an artifact, from the hashes in its albertkit.json."""
    from albertkit.artifact import read_metadata

    _, files = read_metadata(folder)
    return hashlib.sha256("".join(f"{name} {files[name]}\n" for name in sorted(files)).encode()).hexdigest()
