"""sentence-transformers folders whose encoder is an ALBERT: read for the runtime, and written from an artifact.

In: a folder with `modules.json` (Transformer, Pooling, perhaps Normalize). Out: an `Artifact`, with pooling, normalisation and
prompts honoured; a module we do not compute is an error, never passed over. `write_folder` makes such a folder from an
artifact, with equal vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from albertkit.artifact import META_FILE, Artifact, Meta, public_config, write_weights
from albertkit.errors import AlbertkitError
from albertkit.file_io import new_folder, read_json, write_json
from albertkit.interop import huggingface

MODULES = "modules.json"
# Their name for a pooling → ours.
POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
MODES = ("mean", "cls", "max")


def is_folder(folder: Path) -> bool:
    """Is this a sentence-transformers folder that albertkit did not write for itself?"""
    return (folder / MODULES).is_file() and not (folder / META_FILE).is_file()


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """Kind and place of each step."""
    import json

    try:
        listed = json.loads((folder / MODULES).read_bytes()[:65536])
    except (ValueError, RecursionError, OSError):
        raise AlbertkitError(f"{folder / MODULES} is not valid JSON") from None
    if not isinstance(listed, list) or not all(isinstance(m, dict) for m in listed):
        raise AlbertkitError(f"{folder / MODULES} must be a list of modules")
    out = []
    for module in listed:
        place = str(module.get("path", ""))
        if Path(place).name != place or place.startswith("."):
            raise AlbertkitError(f"{folder / MODULES} names the folder {place!r}; only plain names are allowed")
        out.append((str(module.get("type", "")).split(".")[-1], folder / place if place else folder))
    return out


def read_modules(folder: Path) -> tuple[Path, str, bool]:
    """Where the encoder lies, how its tokens become one vector, and whether that is brought to length 1."""
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise AlbertkitError(
            f"{folder} has the steps {', '.join(kinds)}; albertkit computes Transformer, Pooling and Normalize, and leaves out none"
        )
    return modules[0][1], _pooling(read_json(modules[1][1] / "config.json"), folder), "Normalize" in kinds


def read_folder(folder: Path) -> Artifact:
    """Open a sentence-transformers folder."""
    encoder, pooling, unit = read_modules(folder)
    artifact = huggingface.read_folder(encoder)
    made = ({"step": "convert", "from": folder.name, "layout": "sentence-transformers"},)
    meta = Meta(task="embed", pooling=pooling, normalise=unit, prompts=read_prompts(folder), made=made)
    config, weights = artifact.config, artifact.weights
    limit = folder / "sentence_bert_config.json"
    length = read_json(limit).get("max_seq_length") if limit.is_file() else None
    if isinstance(length, int) and 1 <= length < config.max_position_embeddings:
        # their models cut at this length; so that vectors are equal, ours end there too
        config = config.replace(max_position_embeddings=length)
        table = "encoder.embeddings.position.weight"
        weights = {**weights, table: weights[table][:length]}
    return Artifact(config, weights, artifact.tokenizer, meta)


def read_prompts(folder: Path) -> dict[str, str]:
    about = folder / "config_sentence_transformers.json"
    settings: dict[str, Any] = read_json(about) if about.is_file() else {}
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise AlbertkitError(f"{about} holds prompts that are no texts")
    usual = settings.get("default_prompt_name")
    if usual is not None:  # they put it before every text; here the name `default` does the same
        prompts = {**prompts, "default": prompts.get(usual, "")}
    return {name: text for name, text in prompts.items() if text}


def _pooling(settings: dict[str, Any], folder: Path) -> str:
    if settings.get("include_prompt") is False:
        raise AlbertkitError(
            f"{folder} leaves the prompt out of pooling (include_prompt false), which albertkit does not"
        )
    if settings.get("pooling_mode") in MODES:
        return str(settings["pooling_mode"])
    on = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
    if len(on) != 1 or on[0] not in POOLINGS:
        found = settings.get("pooling_mode") or ", ".join(on) or "none"
        raise AlbertkitError(f"{folder} pools by {found}; albertkit knows mean, cls and max")
    return POOLINGS[on[0]]


def write_folder(artifact: Artifact, folder: Path | str, overwrite: bool = False) -> Path:
    """Write a folder that sentence-transformers opens, with the same vectors."""
    meta, config = artifact.meta, artifact.config
    if config.options.active():
        raise AlbertkitError(
            f"this model uses {', '.join(config.options.active())}, which sentence-transformers cannot compute"
        )
    if meta.pooling not in MODES:
        raise AlbertkitError(f"pooling {meta.pooling!r} is unknown to sentence-transformers; choose mean, cls or max")
    if artifact.tokenizer is None:
        raise AlbertkitError("a sentence-transformers folder needs a tokenizer, and this artifact has none")
    steps = [("", "models.Transformer"), ("1_Pooling", "models.Pooling"), ("2_Normalize", "models.Normalize")]
    steps = steps if meta.normalise else steps[:2]
    with new_folder(Path(folder), overwrite) as scratch:
        write_json(scratch / "config.json", public_config(artifact))
        write_weights(artifact, scratch)
        artifact.tokenizer.save(scratch, model_max_length=config.max_position_embeddings)
        modules = [
            {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.{kind}"}
            for i, (place, kind) in enumerate(steps)
        ]
        write_json(scratch / MODULES, modules)
        write_json(
            scratch / "sentence_bert_config.json",
            {"max_seq_length": config.max_position_embeddings, "do_lower_case": False},
        )
        write_json(
            scratch / "config_sentence_transformers.json", {"prompts": meta.prompts, "similarity_fn_name": "cosine"}
        )
        for place, _ in steps[1:]:
            (scratch / place).mkdir()
        modes = {name: ours == meta.pooling for name, ours in POOLINGS.items()}
        write_json(scratch / "1_Pooling" / "config.json", {"word_embedding_dimension": config.hidden_size, **modes})
    return Path(folder)
