"""The artifact folder: the model format of the project, and a valid Hugging Face folder.

In: a folder, or an `Artifact` in memory. Out: the other one.

    config.json         public ALBERT names; our options under the key `albertkit`
    model.safetensors   each weight once, under the public names (float), or
    quantized.safetensors   in 8 or 4 bits, under our names (`quantized.py`)
    head-NAME.onnx      the graph of each custom head (`head_graph.py`); its weights are in the files above
    tokenizer.json      (+ spiece.model or vocab.txt if the original has one; or spiece.model alone, if quantised)
    albertkit.json      task, labels, pooling, depth, metrics, history, and the hash of each file
    README.md           a model card

Writing is atomic. Reading never unpickles, bounds every size, and checks names, shapes and hashes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from albertkit import __version__, builtin
from albertkit.config import MAX_PARAMETERS, AlbertConfig
from albertkit.errors import AlbertkitError, check_choice, check_keys, check_path, nearest
from albertkit.file_io import (
    add_checksum,
    check_model_files,
    digest,
    json_bytes,
    new_folder,
    read_json,
    take_checksum,
    write_file,
    write_json,
    write_tensors,
)
from albertkit.folder_replace import recover_folder
from albertkit.head_graph import check_has_graphs, head_file, read_head_graphs
from albertkit.quantized import QuantizedMatrix, float_shapes, pack_kept, quantize_weights, unpack_weights
from albertkit.tensor_file import StoredTensor, check_separate, open_tensors
from albertkit.tokenizer import Tokenizer
from albertkit.transformers_folder import (
    ARCHITECTURES,
    max_tokens,
    model_card,
    public_config,
    public_tensors,
)
from albertkit.weights import (
    CLASSIFIERS,
    HEADS,
    Shapes,
    expected_shapes,
    heads_in,
    is_custom_tensor,
    size,
    tensor_names,
)

FORMAT = 2
WEIGHTS_FILE = "model.safetensors"
QUANTIZED_FILE = "quantized.safetensors"
METADATA_FILE = "albertkit.json"
MAX_WEIGHT = 1e15  # squares of larger numbers overflow in LayerNorm, which then returns zeros
QUANTIZATIONS = {"int8": 8, "int4": 4}
TASKS = ("pretrain", "classify", "tag", "answer", "choose", "intent", "match", "dialogue", "generate", "embed")


@dataclass(frozen=True)
class ArtifactMetadata:
    """The content of `albertkit.json`: all metadata that config and weights do not contain."""

    task: str = "pretrain"
    """The task of the model."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the head's rows."""
    pooling: str = "mean"
    """Pooling of token vectors into one vector: mean, cls, max or pooler."""
    normalize: bool = True
    """Whether sentence vectors are normalised to length 1."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Prefixes for texts, by name (`query`, `passage`)."""
    depth: int | None = None
    """Layers to apply by default; null means all."""
    quantization: str | None = None
    """`int8` or `int4`; null means float weights."""
    details: dict[str, Any] = field(default_factory=dict)
    """Settings of the task: kind of labels, temperature, thresholds."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Metrics, by name of the dataset."""
    history: tuple[dict[str, Any], ...] = ()
    """The steps that produced the model, from the first to the last."""

    def __post_init__(self) -> None:
        for name, (kind, rule) in _FIELD_TYPES.items():
            value: Any = getattr(self, name)
            if not isinstance(value, kind):
                raise AlbertkitError(f"{name} is {value!r} in {METADATA_FILE}; it must be {rule}. Use another copy.")
        texts = [*self.labels, *self.prompts, *self.prompts.values()]
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(s, dict) for s in self.history):
            raise AlbertkitError(f"labels, prompts or history in {METADATA_FILE} contain values of the wrong type")
        check_choice("task", self.task, TASKS)
        if self.quantization is not None:
            check_choice("quantization", self.quantization, QUANTIZATIONS)
        if self.depth is not None and not 1 <= self.depth <= 1024:
            raise AlbertkitError(f"depth is {self.depth} in {METADATA_FILE}; it must be from 1 to 1024")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ArtifactMetadata:
        """Read `albertkit.json`; unknown keys are errors."""
        check_keys("key", data, _FIELD_TYPES, f" in {METADATA_FILE}")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**values)


_FIELD_TYPES: dict[str, tuple[Any, str]] = {
    "task": (str, "a text"),
    "labels": (tuple | list, "a list of texts"),
    "pooling": (str, "a text"),
    "normalize": (bool, "true or false"),
    "prompts": (dict, "an object of texts"),
    "depth": (int | None, "a whole number or null"),
    "quantization": (str | None, "a text or null"),
    "details": (dict, "an object"),
    "metrics": (dict, "an object"),
    "history": (tuple | list, "a list of objects"),
}


@dataclass(frozen=True)
class Artifact:
    """A model in memory: config, weights, tokenizer and metadata.

    >>> from albertkit import open_model
    >>> artifact = open_model("small")
    >>> artifact.config.hidden_size, artifact.metadata.pooling
    (384, 'mean')
    """

    config: AlbertConfig
    weights: dict[str, np.ndarray]
    tokenizer: Tokenizer | None = None
    metadata: ArtifactMetadata = field(default_factory=ArtifactMetadata)
    head_graphs: dict[str, bytes] = field(default_factory=dict)
    """The ONNX graph of each custom head, by name."""

    def __post_init__(self) -> None:
        check_weights(self.config, self.weights)
        check_has_graphs(self.weights, self.head_graphs)

    @property
    def heads(self) -> list[str]:
        """The heads that the weights contain."""
        return heads_in(self.weights)


def check_shapes(config: AlbertConfig, shapes: Shapes) -> None:
    """Raise an error that names a tensor if it is missing, unknown or of the wrong shape."""
    expected = expected_shapes(config, shapes)
    for name, shape in expected.items():
        if name not in shapes:
            raise AlbertkitError(f"tensor {name!r} is missing; a model of this config needs it with shape {shape}")
        if shapes[name] != shape:
            raise AlbertkitError(f"tensor {name!r} has shape {shapes[name]}; config.json requires {shape}")
    for name in shapes:
        has_free_shape = name.startswith("heads.") and (name.split(".")[1] not in HEADS or is_custom_tensor(name))
        if name not in expected and not has_free_shape:
            raise AlbertkitError(f"tensor {name!r} is not part of this model{nearest(name, expected)}")
    if size(shapes) > MAX_PARAMETERS:
        raise AlbertkitError(f"the model has {size(shapes):,} parameters; at most {MAX_PARAMETERS:,} are read")


def load_weights(config: AlbertConfig, tensors: Mapping[str, StoredTensor]) -> dict[str, np.ndarray]:
    """Read tensors under our names, after a check that they are those of the config and share no bytes."""
    check_shapes(config, {name: tensor.shape for name, tensor in tensors.items()})
    check_separate(tensors)
    return {name: tensor.read() for name, tensor in tensors.items()}


def check_weights(config: AlbertConfig, weights: Mapping[str, np.ndarray | QuantizedMatrix]) -> None:
    """Raise an error that names a tensor if it is missing, unknown, non-finite, too large or of the wrong shape."""
    check_shapes(
        config, {name: w.values.shape if isinstance(w, QuantizedMatrix) else w.shape for name, w in weights.items()}
    )
    for name, weight in weights.items():
        for numbers in weight.arrays()[1:] if isinstance(weight, QuantizedMatrix) else (weight,):
            if numbers.dtype.kind != "f":
                raise AlbertkitError(f"tensor {name!r} has type {numbers.dtype}; weights must be floating point")
            largest = float(np.abs(numbers).max(initial=0))
            if not largest <= MAX_WEIGHT:
                value = f"the number {largest:g}" if np.isfinite(largest) else "NaN or infinity"
                raise AlbertkitError(
                    f"tensor {name!r} contains {value}; weights must be finite and at most {MAX_WEIGHT:g}. The file is "
                    "damaged or training failed: use another copy of the model."
                )


def read_metadata(folder: Path) -> tuple[ArtifactMetadata, dict[str, str]]:
    """The metadata and the file hashes in `albertkit.json`."""
    data = read_json(folder / METADATA_FILE)
    version = data.get("format")
    if version not in (1, FORMAT) or isinstance(version, bool | float):
        raise AlbertkitError(
            f"{folder / METADATA_FILE} has format {version!r}; albertkit reads up to {FORMAT}. Update albertkit."
        )
    if version == FORMAT:  # format 1 had no checksum
        data = take_checksum(folder / METADATA_FILE, data)
    data = {key: value for key, value in data.items() if key not in ("format", "albertkit")}
    files = data.pop("files", {})
    if not isinstance(files, dict) or not all(isinstance(v, str) for v in files.values()):
        raise AlbertkitError(f"'files' in {folder / METADATA_FILE} must map file names to hashes")
    return ArtifactMetadata.from_dict(data), files


def write_metadata(folder: Path, metadata: ArtifactMetadata, files: dict[str, str]) -> None:
    """Write `albertkit.json` atomically; `files` are the hashes of the other files."""
    about = {"format": FORMAT, "albertkit": __version__, **dataclasses.asdict(metadata), "files": files}
    write_file(folder / METADATA_FILE, json_bytes(add_checksum(about)), overwrite=True)


def check_files(folder: Path, files: dict[str, str]) -> None:
    """Compare each file with its stored hash."""
    for name, expected in files.items():
        if Path(name).name != name:
            raise AlbertkitError(f"{METADATA_FILE} names the file {name!r}; only plain names are allowed")
        path = folder / name
        if not path.is_file():
            raise AlbertkitError(f"{path} is missing, but {METADATA_FILE} lists it. Copy the folder again.")
        if digest(path) != expected:
            raise AlbertkitError(f"{path} has changed since it was written (its hash differs). Copy the folder again.")


@dataclass(frozen=True)
class StoredModel:
    """A model as stored in its folder, with quantised matrices. The runtime opens this class."""

    config: AlbertConfig
    weights: dict[str, np.ndarray | QuantizedMatrix]
    tokenizer: Tokenizer | None
    metadata: ArtifactMetadata
    head_graphs: dict[str, bytes] = field(default_factory=dict)

    @cached_property
    def identity(self) -> str:
        """See `model_identity`."""
        return model_identity(self)


def require_tokenizer(model: Artifact | StoredModel, name: str = "this model") -> Tokenizer:
    """The tokenizer of a model; an error if it has none."""
    if model.tokenizer is None:
        raise AlbertkitError(f"{name} has no tokenizer, so it cannot read text. Copy tokenizer.json into its folder.")
    return model.tokenizer


def model_folder(folder: Path | str | None) -> Path:
    """The folder itself, the `model` folder inside a training folder, or a built-in model for a name or None."""
    folder = builtin.resolve(folder)
    recover_folder(folder)
    inner = folder / "model"
    if (inner / METADATA_FILE).is_file() and not (folder / METADATA_FILE).is_file():
        folder = inner
    check_model_files(folder)
    return folder


def model_identity(model: Artifact | StoredModel) -> str:
    """A hash of everything that changes a vector. Names, labels, metrics and history are not part of it."""
    config, metadata, tokenizer = model.config, model.metadata, model.tokenizer
    about = {
        "config": config.to_dict(),
        "tokenizer": None if tokenizer is None else tokenizer.fingerprint(),
        "pooling": metadata.pooling,
        "normalize": metadata.normalize,
        "prompts": metadata.prompts,
        "depth": config.num_hidden_layers,  # the depth that is applied is part of the name of an opened model
        "quantization": metadata.quantization,
    }
    total = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, weight in sorted(model.weights.items()):
        for array in weight.arrays() if isinstance(weight, QuantizedMatrix) else (weight,):
            total.update(f"{name} {array.dtype} {array.shape}".encode())
            total.update(np.ascontiguousarray(array).data)
    for name, graph in sorted(model.head_graphs.items()):
        total.update(name.encode() + graph)
    return total.hexdigest()


def read_stored(folder: Path | str | None) -> StoredModel:
    """Open an artifact for inference without dequantising its matrices; None is the built-in model.

    `interop/convert.open_stored` also opens other checkpoints.
    """
    folder = model_folder(folder)
    if not folder.is_dir():
        raise AlbertkitError(f"{folder} is not a folder; pass the folder of a model")
    if not (folder / METADATA_FILE).is_file():
        raise AlbertkitError(f"{folder} contains no {METADATA_FILE}; run  albertkit convert {folder} OUT  first")
    meta, files = read_metadata(folder)
    check_files(folder, files)
    data = read_json(folder / "config.json")
    config = AlbertConfig.from_dict(data)
    weights: dict[str, np.ndarray | QuantizedMatrix]
    with open_tensors(folder / (QUANTIZED_FILE if meta.quantization else WEIGHTS_FILE)) as tensors:
        if meta.quantization:
            shapes = expected_shapes(config, {name: tensor.shape for name, tensor in tensors.items()})
            check_shapes(config, float_shapes(tensors, shapes))
            weights = unpack_weights({name: tensor.read() for name, tensor in tensors.items()}, shapes)
        else:
            task = meta.task if meta.task in CLASSIFIERS else "classify"
            classifier = next((h for h in CLASSIFIERS if [ARCHITECTURES[h]] == data.get("architectures")), task)
            ours = {name.torch: name.ours for name in tensor_names(config, classifier=classifier)}
            weights = {**load_weights(config, {ours.get(name, name): tensor for name, tensor in tensors.items()})}
    check_weights(config, weights)
    tokenizer = None
    if any((folder / name).is_file() for name in ("tokenizer.json", "spiece.model")):
        tokenizer = Tokenizer.load(folder, vocab_size=config.vocab_size, trusted=True)
    return StoredModel(config, weights, tokenizer, meta, read_head_graphs(folder, files, weights))


def read_artifact(folder: Path | str | None) -> Artifact:
    """Open an artifact folder, with all weights as floats.

    >>> from albertkit import convert, read_artifact
    >>> artifact = convert("small", "my-model")
    >>> read_artifact("my-model").config == artifact.config
    True
    """
    stored = read_stored(folder)
    weights = {name: w.floats() if isinstance(w, QuantizedMatrix) else w for name, w in stored.weights.items()}
    return Artifact(stored.config, weights, stored.tokenizer, stored.metadata, stored.head_graphs)


def write_artifact(
    artifact: Artifact,
    folder: Path | str,
    overwrite: bool = False,
    bits: int | None = None,
    moments: dict[str, np.ndarray] | None = None,
    kept: dict[str, QuantizedMatrix] | None = None,
    smooths: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write the folder atomically; with `bits`, quantised.

    moments, smooths: see `quantized.quantize_weights`.
    kept: matrices that are already 8-bit; they are written unchanged, and all other weights as floats.

    >>> from albertkit import open_model, write_artifact
    >>> write_artifact(open_model("small"), "my-model", bits=8).name
    'my-model'
    """
    check_path("folder", folder)
    folder = Path(folder)
    config = artifact.config
    if artifact.tokenizer is not None and artifact.tokenizer.vocab_size > config.vocab_size:
        tokens = artifact.tokenizer.vocab_size
        raise AlbertkitError(
            f"the tokenizer has {tokens} tokens, the model has {config.vocab_size}. Use its tokenizer."
        )
    if bits is not None:
        file, tensors = QUANTIZED_FILE, quantize_weights(artifact.weights, bits, moments, smooths)
    elif kept:
        file, tensors = QUANTIZED_FILE, pack_kept(artifact.weights, kept)
    else:
        file, tensors = WEIGHTS_FILE, public_tensors(artifact)
    is_quantized = file == QUANTIZED_FILE
    meta = dataclasses.replace(artifact.metadata, quantization=f"int{bits or 8}" if is_quantized else None)
    with new_folder(folder, overwrite) as scratch:
        write_json(scratch / "config.json", public_config(artifact, is_quantized))
        write_tensors(scratch / file, tensors)
        for head, graph in artifact.head_graphs.items():
            write_file(scratch / head_file(head), graph)
        if artifact.tokenizer is not None:  # other programs cannot read quantised files and need no tokenizer.json
            artifact.tokenizer.save(scratch, model_max_length=max_tokens(artifact), compact=is_quantized)
        files = {path.name: digest(path) for path in sorted(scratch.iterdir())}
        write_metadata(scratch, meta, files)
        (scratch / "README.md").write_text(model_card(dataclasses.replace(artifact, metadata=meta)), encoding="utf-8")
    return folder
