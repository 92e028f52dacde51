"""The artifact folder: the one exchange format of the project, and a valid Hugging Face folder.

In: a folder, or an `Artifact` in memory. Out: the other one.

    config.json         public ALBERT names; our options under the key `albertkit`
    model.safetensors   each weight once, under the public names (float), or
    quantized.safetensors   in 8 or 4 bits, under our names (`quantized.py`)
    tokenizer.json      (+ spiece.model or vocab.txt if the original has one; or spiece.model alone, if quantised)
    albertkit.json      task, labels, pooling, depth, metrics, how it was made, and the hash of each file
    README.md           a model card, written here

Writing is atomic: everything goes into a folder beside the target, is flushed to disk, and is renamed. Reading never
unpickles, bounds every size before it allocates, and checks names, shapes and hashes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from albertkit import __version__, builtin
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, nearest
from albertkit.file_io import digest, new_folder, read_json, read_tensors, write_json
from albertkit.model_card import model_card
from albertkit.quantized import QuantizedMatrix, quantize_weights, unpack_weights
from albertkit.tensor_names import CLASSIFIERS, tensor_names
from albertkit.tokenizer import Tokenizer
from albertkit.weights import HEADS, Shapes, encoder_shapes, head_shapes, heads_in

FORMAT = 1
JSON_LIMIT = 16 * 2**20
WEIGHTS_FILE = "model.safetensors"
QUANTIZED_FILE = "quantized.safetensors"
METADATA_FILE = "albertkit.json"
QUANTIZATIONS = {"int8": 8, "int4": 4}
TASKS = ("pretrain", "classify", "tag", "answer", "choose", "intent", "match", "dialogue", "generate", "embed")
# Head → the class of transformers that reads the folder.
ARCHITECTURES = {
    "classify": "AlbertForSequenceClassification",
    "tag": "AlbertForTokenClassification",
    "choose": "AlbertForMultipleChoice",
    "answer": "AlbertForQuestionAnswering",
    "sop": "AlbertForPreTraining",
    "mlm": "AlbertForMaskedLM",
}


@dataclass(frozen=True)
class ArtifactMetadata:
    """`albertkit.json`: what the weights alone do not say."""

    task: str = "pretrain"
    """What the model was made for."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the head's rows."""
    pooling: str = "mean"
    """How token vectors become one vector."""
    normalize: bool = True
    """Whether sentence vectors are brought to length 1."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Texts to put before a text, by name (`query`, `passage`)."""
    depth: int | None = None
    """Layers to apply by default; None means all."""
    quantization: str | None = None
    """How the weights are stored, when not as floats."""
    details: dict[str, Any] = field(default_factory=dict)
    """Settings of the task: kind of labels, temperature, thresholds."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Scores, by name of the data they were measured on."""
    history: tuple[dict[str, Any], ...] = ()
    """What was done, first step first."""

    def __post_init__(self) -> None:
        for name, kind in (("task", str), ("pooling", str), ("details", dict), ("metrics", dict)):
            if not isinstance(getattr(self, name), kind):
                raise AlbertkitError(
                    f"{name} is {getattr(self, name)!r} in {METADATA_FILE}; it must be a {kind.__name__}"
                )
        if not all(isinstance(label, str) for label in self.labels) or not all(
            isinstance(s, dict) for s in self.history
        ):
            raise AlbertkitError(f"labels must be texts and the steps of 'history' objects in {METADATA_FILE}")
        if self.quantization is not None and not isinstance(self.quantization, str):
            raise AlbertkitError(f"quantization is {self.quantization!r} in {METADATA_FILE}; it must be a text or null")
        if self.task not in TASKS:
            raise AlbertkitError(
                f"task is {self.task!r}{nearest(str(self.task), TASKS)}; choose one of {', '.join(TASKS)}"
            )
        if self.quantization is not None and self.quantization not in QUANTIZATIONS:
            raise AlbertkitError(
                f"quantization is {self.quantization!r} in {METADATA_FILE}; "
                f"this albertkit knows {', '.join(QUANTIZATIONS)}"
            )
        prompts = self.prompts.items() if isinstance(self.prompts, dict) else [(0, 0)]
        if not isinstance(self.normalize, bool) or not all(isinstance(x, str) for pair in prompts for x in pair):
            raise AlbertkitError(f"normalize must be true or false and prompts an object of texts in {METADATA_FILE}")
        if self.depth is not None and (not isinstance(self.depth, int) or not 1 <= self.depth <= 1024):
            raise AlbertkitError(
                f"depth is {self.depth!r} in {METADATA_FILE}; it must be a whole number from 1 to 1024"
            )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ArtifactMetadata:
        """Read `albertkit.json`; unknown keys are errors."""
        known = {f.name for f in dataclasses.fields(cls)}
        for key in data:
            if key not in known:
                raise AlbertkitError(
                    f"unknown key {key!r} in {METADATA_FILE}{nearest(key, known)}; a newer albertkit may know it"
                )
        values = dict(data)
        for key in ("labels", "history"):
            if not isinstance(values.get(key, []), list):
                raise AlbertkitError(f"{key} is {values[key]!r} in {METADATA_FILE}; it must be a list")
            values[key] = tuple(values.get(key, ()))
        return cls(**values)


@dataclass(frozen=True)
class Artifact:
    """A model in memory: config, weights under our names, tokenizer, and what is known about it."""

    config: AlbertConfig
    weights: dict[str, np.ndarray]
    tokenizer: Tokenizer | None = None
    metadata: ArtifactMetadata = field(default_factory=ArtifactMetadata)

    def __post_init__(self) -> None:
        check_weights(self.config, self.weights)

    @property
    def heads(self) -> list[str]:
        """The heads the weights hold."""
        return heads_in(frozenset(self.weights))


def expected_shapes(config: AlbertConfig, names: frozenset[str], rows: dict[str, int]) -> Shapes:
    """What a file with these tensors must hold; `rows` counts the rows of task heads."""
    expected = encoder_shapes(config, pooler="encoder.pooler.weight" in names)
    for head in heads_in(names):
        if head in HEADS:
            expected |= head_shapes(config, head, labels=rows.get(f"heads.{head}.linear.weight", 2))
    return expected


def check_weights(
    config: AlbertConfig, weights: dict[str, np.ndarray] | dict[str, np.ndarray | QuantizedMatrix]
) -> None:
    """Refuse missing, odd, mis-shaped or non-finite tensors, by name."""
    arrays = {n: w.values if isinstance(w, QuantizedMatrix) else w for n, w in weights.items()}
    rows = {n: len(a) for n, a in arrays.items() if a.ndim == 2}
    expected = expected_shapes(config, frozenset(weights), rows)
    for name, shape in expected.items():
        if name not in arrays:
            raise AlbertkitError(f"tensor {name!r} is missing; a model of this config needs it with shape {shape}")
        if arrays[name].shape != shape:
            raise AlbertkitError(
                f"tensor {name!r} has shape {arrays[name].shape}; config.json asks for {shape}, so one of them is wrong"
            )
    for name, array in arrays.items():
        own_head = name.startswith("heads.") and name.split(".")[1] not in HEADS
        if name not in expected and not own_head:
            raise AlbertkitError(f"tensor {name!r} is not part of this model{nearest(name, expected)}")
        weight = weights[name]
        numbers = weight.scale if isinstance(weight, QuantizedMatrix) else array
        if numbers.dtype.kind != "f":
            raise AlbertkitError(f"tensor {name!r} holds {array.dtype}; weights must be floating point")
        if not np.isfinite(numbers).all():
            raise AlbertkitError(f"tensor {name!r} holds NaN or infinity; the file is damaged or the training failed")


def read_metadata(folder: Path) -> tuple[ArtifactMetadata, dict[str, str]]:
    """`albertkit.json` and the hashes it holds."""
    data = read_json(folder / METADATA_FILE)
    found = data.pop("format", None)
    data.pop("albertkit", None)
    files = data.pop("files", {})
    if found != FORMAT:
        raise AlbertkitError(
            f"{folder / METADATA_FILE} has format {found!r}; this albertkit reads {FORMAT}, so update it"
        )
    if not isinstance(files, dict) or not all(isinstance(v, str) for v in files.values()):
        raise AlbertkitError(f"'files' in {folder / METADATA_FILE} must map file names to hashes")
    return ArtifactMetadata.from_dict(data), files


def check_files(folder: Path, files: dict[str, str]) -> None:
    """Compare each file with the hash that was written with it."""
    for name, wanted in files.items():
        if Path(name).name != name:
            raise AlbertkitError(
                f"{METADATA_FILE} names the file {name!r}; only plain names inside the folder are allowed"
            )
        path = folder / name
        if not path.is_file():
            raise AlbertkitError(f"{path} is missing; {METADATA_FILE} lists it, so the folder is incomplete")
        if digest(path) != wanted:
            raise AlbertkitError(f"{path} has changed since it was written (its hash differs); copy the folder anew")


@dataclass(frozen=True)
class StoredModel:
    """A model as its folder stores it: quantised matrices stay quantised. What the runtime opens."""

    config: AlbertConfig
    weights: dict[str, np.ndarray | QuantizedMatrix]
    tokenizer: Tokenizer | None
    metadata: ArtifactMetadata
    identity: str
    """A hash that two models share only if they are the same."""


def model_folder(folder: Path | str | None) -> Path:
    """The folder itself, the `model` folder inside a training folder, or a built-in model by its name or None."""
    folder = builtin.resolve(folder)
    inner = folder / "model"
    return inner if (inner / METADATA_FILE).is_file() and not (folder / METADATA_FILE).is_file() else folder


def model_identity(artifact: Artifact) -> str:
    """A hash of a model's shape and weights."""
    total = hashlib.sha256(json.dumps(artifact.config.to_dict(), sort_keys=True).encode())
    for name in sorted(artifact.weights):
        total.update(name.encode() + np.ascontiguousarray(artifact.weights[name]).tobytes())
    return total.hexdigest()


def read_stored(folder: Path | str | None) -> StoredModel:
    """Open an artifact for running, quantised matrices as they are; None is the built-in model.

    `interop/convert.open_stored` opens other checkpoints, too.
    """
    folder = model_folder(folder)
    if not (folder / METADATA_FILE).is_file():
        raise AlbertkitError(f"{folder} holds no {METADATA_FILE}; run  albertkit convert {folder} OUT  first")
    meta, files = read_metadata(folder)
    check_files(folder, files)
    config = AlbertConfig.from_dict(read_json(folder / "config.json"))
    if meta.quantization:
        tensors = read_tensors(folder / QUANTIZED_FILE)
        rows = {n: len(a) for n, a in tensors.items() if a.ndim == 2}
        stored = unpack_weights(tensors, expected_shapes(config, frozenset(tensors), rows))
    else:
        public = json_architecture(folder) or _classifier(meta.task)
        ours = {name.torch: name.ours for name in tensor_names(config, classifier=public)}
        stored = {ours.get(name, name): array for name, array in read_tensors(folder / WEIGHTS_FILE).items()}
    check_weights(config, stored)
    tokenizer = None
    if any((folder / name).is_file() for name in ("tokenizer.json", "spiece.model")):
        tokenizer = Tokenizer.load(folder, vocab_size=config.vocab_size, trusted=True)
    main = QUANTIZED_FILE if meta.quantization else WEIGHTS_FILE
    identity = hashlib.sha256(f"{files.get(main) or digest(folder / main)}".encode()).hexdigest()
    return StoredModel(config, stored, tokenizer, meta, identity)


def read_artifact(folder: Path | str | None) -> Artifact:
    """Open a folder that albertkit wrote, with all weights as floats."""
    folder = model_folder(folder)
    if not folder.is_dir():
        raise AlbertkitError(f"{folder} is not a folder; give the folder of a model")
    if not (folder / METADATA_FILE).is_file():
        raise AlbertkitError(f"{folder} holds no {METADATA_FILE}; run  albertkit convert {folder} OUT  first")
    stored = read_stored(folder)
    weights = {name: w.floats() if isinstance(w, QuantizedMatrix) else w for name, w in stored.weights.items()}
    return Artifact(stored.config, weights, stored.tokenizer, stored.metadata)


def _classifier(task: str) -> str:
    return task if task in CLASSIFIERS else "classify"


def public_classifier(artifact: Artifact) -> str:
    """Which head is written under the public name `classifier`: the task's, else the first there is."""
    there = [head for head in CLASSIFIERS if head in artifact.heads]
    if artifact.metadata.task in there:
        return artifact.metadata.task
    return there[0] if there else "classify"


def json_architecture(folder: Path) -> str | None:
    """Which head the class named in config.json gives to `classifier`."""
    listed = read_json(folder / "config.json").get("architectures")
    found = listed[0] if isinstance(listed, list) and listed else None
    return next((head for head in CLASSIFIERS if ARCHITECTURES[head] == found), None)


def write_artifact(
    artifact: Artifact,
    folder: Path | str,
    overwrite: bool = False,
    bits: int | None = None,
    moments: dict[str, np.ndarray] | None = None,
    kept: dict[str, QuantizedMatrix] | None = None,
    smooths: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write the folder completely or not at all; with `bits`, quantised.

    moments, smooths: see `quantized.quantize_weights`.
    kept: matrices that are 8-bit already; they are written unchanged, and everything else as floats.
    """
    from safetensors.numpy import save_file

    folder = Path(folder)
    config, meta = artifact.config, artifact.metadata
    if artifact.tokenizer is not None and artifact.tokenizer.vocab_size > config.vocab_size:
        raise AlbertkitError(
            f"the tokenizer has {artifact.tokenizer.vocab_size} tokens and the model {config.vocab_size}; "
            f"they do not belong together. Use the tokenizer of the model"
        )
    file = WEIGHTS_FILE
    if bits is not None or kept:
        floats = artifact.weights
        packed = quantize_weights(floats, bits, moments, smooths) if bits is not None else pack_kept(floats, kept or {})
        file, tensors = QUANTIZED_FILE, {n: np.ascontiguousarray(a) for n, a in packed.items()}
        meta = dataclasses.replace(meta, quantization=f"int{bits or 8}")
        artifact = dataclasses.replace(artifact, metadata=meta)
    else:
        meta = dataclasses.replace(meta, quantization=None)
        tensors = public_tensors(artifact)
    with new_folder(folder, overwrite) as scratch:
        write_json(scratch / "config.json", public_config(artifact))
        save_file(tensors, str(scratch / file), metadata={"format": "pt"})
        if artifact.tokenizer is not None:
            whole = file == WEIGHTS_FILE  # nobody else reads quantised files, so nobody else needs tokenizer.json
            artifact.tokenizer.save(scratch, model_max_length=config.max_position_embeddings, compact=not whole)
        files = {path.name: digest(path) for path in sorted(scratch.iterdir())}
        about = {"format": FORMAT, "albertkit": __version__, **dataclasses.asdict(meta), "files": files}
        write_json(scratch / METADATA_FILE, about)
        (scratch / "README.md").write_text(model_card(artifact), encoding="utf-8")
    return folder


def pack_kept(weights: dict[str, np.ndarray], kept: dict[str, QuantizedMatrix]) -> dict[str, np.ndarray]:
    """The tensors of a quantised file: the matrices in `kept` unchanged, everything else as floats."""
    out: dict[str, np.ndarray] = {n: np.asarray(a, np.float32) for n, a in weights.items() if n not in kept}
    for name, matrix in kept.items():
        out |= {name: matrix.values, f"{name}.scale": matrix.scale}
        if matrix.smooth is not None:
            out[f"{name}.smooth"] = matrix.smooth
    return out


def public_tensors(artifact: Artifact) -> dict[str, np.ndarray]:
    """The weights under their public names."""
    theirs = {name.ours: name.torch for name in tensor_names(artifact.config, classifier=public_classifier(artifact))}
    return {theirs.get(n, n): np.ascontiguousarray(a) for n, a in artifact.weights.items()}


def write_weights(artifact: Artifact, folder: Path) -> None:
    """`model.safetensors` alone."""
    from safetensors.numpy import save_file

    save_file(public_tensors(artifact), str(folder / WEIGHTS_FILE), metadata={"format": "pt"})


def public_config(artifact: Artifact) -> dict[str, Any]:
    """`config.json` with what transformers wants to know: the class to open it with, and the labels."""
    data = artifact.config.to_dict()
    heads = artifact.heads
    first = public_classifier(artifact)
    order = [first, *ARCHITECTURES] if first in heads else list(ARCHITECTURES)
    data["architectures"] = [next((ARCHITECTURES[head] for head in order if head in heads), "AlbertModel")]
    if artifact.metadata.labels:
        data["id2label"] = {str(i): label for i, label in enumerate(artifact.metadata.labels)}
        data["label2id"] = {label: i for i, label in enumerate(artifact.metadata.labels)}
    return data
