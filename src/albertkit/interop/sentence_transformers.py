"""sentence-transformers folders whose encoder is an ALBERT: read as an artifact, and their files written from one.

In: a folder with `modules.json` (Transformer, Pooling, optional Normalize). Out: an `Artifact` with its pooling,
normalisation and prompts; any other module is an error. After this file: `layouts.py` writes a folder.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

from albertkit.artifact import METADATA_FILE, Artifact, ArtifactMetadata, StoredModel, require_tokenizer
from albertkit.errors import AlbertkitError
from albertkit.file_io import JSON_LIMIT, read_file, read_json, write_json, write_tensors
from albertkit.interop import huggingface
from albertkit.transformers_folder import public_config, public_tensors

Model = TypeVar("Model", Artifact, StoredModel)

MODULES = "modules.json"
# sentence-transformers name of a pooling → our name.
POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}


def is_folder(folder: Path) -> bool:
    """Whether this is a sentence-transformers folder with sentence vectors and not an artifact."""
    is_artifact = (folder / METADATA_FILE).is_file()
    return (folder / MODULES).is_file() and not is_artifact and not huggingface.is_cross_encoder(folder)


def _list_modules(folder: Path) -> list[tuple[str, Path]]:
    """Type and folder of each module."""
    try:
        listed = json.loads(read_file(folder / MODULES, JSON_LIMIT))
    except AlbertkitError:
        raise
    except (ValueError, RecursionError, OSError):
        raise AlbertkitError(f"{folder / MODULES} is not valid JSON; copy it again") from None
    if not isinstance(listed, list) or not all(isinstance(m, dict) for m in listed):
        raise AlbertkitError(f"{folder / MODULES} must be a list of modules; copy it again")
    modules = []
    for module in listed:
        path = str(module.get("path", ""))
        if Path(path).name != path or path.startswith("."):
            raise AlbertkitError(f"{folder / MODULES} names the folder {path!r}; only plain names are allowed")
        modules.append((str(module.get("type", "")).split(".")[-1], folder / path if path else folder))
    return modules


def read_modules(folder: Path) -> tuple[Path, str, bool]:
    """The folder of the encoder, the pooling, and whether vectors are normalised to length 1."""
    modules = _list_modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise AlbertkitError(
            f"{folder} has the modules {', '.join(kinds)}; albertkit supports Transformer, Pooling and Normalize, "
            "in this order"
        )
    return modules[0][1], _pooling(read_json(modules[1][1] / "config.json"), folder), "Normalize" in kinds


def read_folder(folder: Path) -> Artifact:
    encoder, pooling, normalize = read_modules(folder)
    artifact = huggingface.read_folder(encoder)
    history = ({"step": "convert", "from": folder.name, "layout": "sentence-transformers"},)
    meta = ArtifactMetadata(
        task="embed", pooling=pooling, normalize=normalize, prompts=read_prompts(folder), history=history
    )
    config, weights = artifact.config, artifact.weights
    limit = folder / "sentence_bert_config.json"
    length = read_json(limit).get("max_seq_length") if limit.is_file() else None
    if isinstance(length, int) and 1 <= length < config.max_position_embeddings:
        # sentence-transformers truncates at this length; the same limit gives the same vectors
        config = config.replace(max_position_embeddings=length)
        table = "encoder.embeddings.position.weight"
        weights = {**weights, table: weights[table][:length]}
    return Artifact(config, weights, artifact.tokenizer, meta)


def read_prompts(folder: Path) -> dict[str, str]:
    """The prompts of a folder by name; the default prompt is named `default`."""
    path = folder / "config_sentence_transformers.json"
    settings: dict[str, Any] = read_json(path) if path.is_file() else {}
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise AlbertkitError(f"{path} has prompts that are not strings; correct it")
    default = settings.get("default_prompt_name")
    if default is not None:  # goes before every text, as the prompt named `default` does here
        prompts = {**prompts, "default": prompts.get(default, "")}
    return {name: text for name, text in prompts.items() if text}


def _pooling(settings: dict[str, Any], folder: Path) -> str:
    if settings.get("include_prompt") is False:
        raise AlbertkitError(
            f"{folder} excludes the prompt from pooling (include_prompt false), which albertkit does not support"
        )
    if settings.get("pooling_mode") in POOLINGS.values():
        return str(settings["pooling_mode"])
    enabled = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
    if len(enabled) != 1 or enabled[0] not in POOLINGS:
        pooling = settings.get("pooling_mode") or ", ".join(enabled) or "none"
        raise AlbertkitError(f"{folder} uses the pooling {pooling}; albertkit supports mean, cls and max")
    return POOLINGS[enabled[0]]


def encoder_only(model: Model) -> Model:
    """The model of the vectors, without the heads of a task."""
    weights: dict[str, Any] = {name: array for name, array in model.weights.items() if name.startswith("encoder.")}
    metadata = dataclasses.replace(model.metadata, task="embed", labels=(), details={})
    return dataclasses.replace(model, weights=weights, metadata=metadata, head_graphs={})


def check_pooling(model: Artifact | StoredModel) -> None:
    """Raise if sentence-transformers has no such pooling, or the model has no tokenizer."""
    if model.metadata.pooling not in POOLINGS.values():
        raise AlbertkitError(
            f"pooling {model.metadata.pooling!r} is unknown to sentence-transformers; choose mean, cls or max"
        )
    require_tokenizer(model)


def write_weights(artifact: Artifact, folder: Path) -> None:
    """Write the encoder for torch."""
    write_json(folder / "config.json", public_config(artifact))
    write_tensors(folder / "model.safetensors", public_tensors(artifact))


def write_modules(model: Artifact | StoredModel, folder: Path) -> None:
    """Write the tokenizer, and the modules around the encoder: pooling, normalisation, prompts and length."""
    meta, config = model.metadata, model.config
    assert model.tokenizer is not None
    model.tokenizer.save(folder, model_max_length=config.max_position_embeddings)
    steps = [("", "models.Transformer"), ("1_Pooling", "models.Pooling"), ("2_Normalize", "models.Normalize")]
    steps = steps if meta.normalize else steps[:2]
    modules = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.{kind}"}
        for i, (place, kind) in enumerate(steps)
    ]
    write_json(folder / MODULES, modules)
    write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": config.max_position_embeddings, "do_lower_case": False},
    )
    default = "default" if meta.prompts.get("default") else None  # before every text, as here
    settings = {"prompts": meta.prompts, "default_prompt_name": default, "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", settings)
    for place, _ in steps[1:]:
        (folder / place).mkdir()
    modes = {name: ours == meta.pooling for name, ours in POOLINGS.items()}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": config.hidden_size, **modes})
