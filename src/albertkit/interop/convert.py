"""`open_model` reads any ALBERT checkpoint; `convert` writes it as an artifact folder.

In: a path of any supported format. Out: an `Artifact`. The other files of this package are the readers.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from albertkit.artifact import (
    METADATA_FILE,
    Artifact,
    StoredModel,
    model_folder,
    read_artifact,
    read_stored,
    write_artifact,
)
from albertkit.builtin import BUILTINS
from albertkit.errors import AlbertkitError
from albertkit.runtime.runtime_model import distilled_depths
from albertkit.transformers_folder import for_transformers

RUN_SETTINGS = "settings.json"  # training writes it at its start, and the model at its end
FORMATS = (
    "an albertkit artifact, a Hugging Face folder, a TensorFlow checkpoint, an albert_zh folder, "
    f"a PL-BERT file (.t7, .pth, .onnx), or the name of a built-in model ({', '.join(BUILTINS)})"
)


def open_model(path: Path | str | None = None) -> Artifact:
    """Open any ALBERT checkpoint; the files decide the format. None is the built-in model.

    >>> from albertkit import open_model
    >>> open_model("small").config.num_hidden_layers
    12
    """
    from albertkit.interop import google_tf, huggingface, plbert, sentence_transformers

    path = model_folder(path)
    if path.is_file() and path.suffix in (".onnx", ".t7", ".pth", ".pt"):
        return plbert.read_file(path)
    if path.is_file() and path.name in huggingface.WEIGHT_FILES:
        path = path.parent
    if path.is_dir() and (path / METADATA_FILE).is_file():
        return read_artifact(path)
    if sentence_transformers.is_folder(path):
        return sentence_transformers.read_folder(path)
    if path.is_dir() and huggingface.weight_file(path) is not None:
        return huggingface.read_folder(path)
    bundle = google_tf.find_bundle(path)
    if bundle is not None:
        return google_tf.read_checkpoint(bundle)
    if path.is_dir():
        candidates = [p for p in sorted(path.iterdir()) if p.suffix in (".onnx", ".t7", ".pth")]
        if len(candidates) == 1:
            return plbert.read_file(candidates[0])
    if path.is_dir() and (path / RUN_SETTINGS).is_file():
        raise AlbertkitError(f"{path} contains a training run without a model yet. Rerun its command to finish it.")
    problem = "does not exist" if not path.exists() else "is in no format that albertkit knows"
    raise AlbertkitError(f"{path} {problem}; pass {FORMATS}")


def open_stored(path: Path | str | None = None) -> StoredModel:
    """Open any ALBERT checkpoint for running: an artifact as it is stored, anything else through its reader."""
    if (model_folder(path) / METADATA_FILE).is_file():
        return read_stored(path)
    artifact = open_model(path)
    return StoredModel(artifact.config, dict(artifact.weights), artifact.tokenizer, artifact.metadata)


def convert(source: Path | str, target: Path | str, overwrite: bool = False) -> Artifact:
    """Read any ALBERT checkpoint and write it as an artifact folder, if possible in a form that transformers computes.

    A model of vectors that were trained at more depths than its default keeps all layers, as `small` does;
    `albertkit export` writes such a model for transformers.

    >>> from albertkit import convert
    >>> convert("small", "my-model").metadata.task
    'embed'
    """
    artifact = open_model(source)
    artifact = dataclasses.replace(artifact, metadata=dataclasses.replace(artifact.metadata, quantization=None))
    depths = distilled_depths(artifact.metadata.history) or ()
    if artifact.metadata.depth is None or artifact.metadata.depth >= max(depths, default=0):
        artifact = for_transformers(artifact)
    write_artifact(artifact, target, overwrite=overwrite)
    return artifact
