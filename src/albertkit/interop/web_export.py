"""A model as a static web folder: `albertkit export MODEL --web OUT`.

In: any ALBERT checkpoint, and onnxruntime-web's files from npm. Out: a folder that a static host serves. `model/` has
the runtime's own graphs (`runtime/graph.py`) and one file of weights that they share, so each weight is stored once,
and depth is the number of calls of the layer. Next to it are the JavaScript files of `web/`. Before this file:
`web_tokenizer.py` writes the vocabulary. After it: `web/worker.js` opens the folder in a browser.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from albertkit import __version__
from albertkit.artifact import StoredModel
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.file_io import (
    WRITTEN_FILES,
    check_new_folder,
    digest,
    list_files,
    list_written_files,
    new_folder,
    read_json,
    write_json,
)
from albertkit.interop.character_tables import word_classes
from albertkit.interop.convert import open_stored
from albertkit.interop.web_tokenizer import tokenizer_data
from albertkit.onnx_model import ModelProto, StringStringEntryProto, TensorProto
from albertkit.runtime import graph as graphs
from albertkit.runtime.early_exit import ExitCalibration
from albertkit.runtime.graph_builder import MAX_LEVEL, Builder, Graph, as_float
from albertkit.runtime.runtime_model import quantize_stored, trained_depths
from albertkit.tasks import TASKS, load_task
from albertkit.transformers_folder import max_tokens
from albertkit.weights import TOKEN_HEADS

FORMAT = 1
WEB = Path(__file__).parents[1] / "web"
PAGE_FILES = ("*.js", "*.d.ts", "*.html", "*.css")
DEMO_FILES = ("index.html", "demo.js", "demo.css")  # which users may change
PACKAGE_FILES = ("albertkit.d.ts", "package.json", "LICENSE.txt", WRITTEN_FILES)  # a page does not read them
RUNTIME_FOLDER = "onnxruntime"
RUNTIME_VARIABLE = "ALBERTKIT_ONNXRUNTIME_WEB"
CLONE_FOLDER = Path(__file__).parents[3] / ".cache" / "web" / "onnxruntime-web"  # written by `make web`
WEIGHTS_FILE = "weights.bin"
LAYER = "encoder.groups.0.0"  # the one shared layer
ALIGNMENT = 64  # bytes
WEB_TASKS = ("embed", "pretrain", "match", "classify", "tag")
# Settings of a task that its results depend on (`tasks/classify.py`, `tasks/tag.py`).
TASK_SETTINGS = (
    "labels",
    "kind",
    "temperature",
    "threshold",
    "min_probability",
    "mean",
    "std",
    "overlap",
    "score_scale",
)


@dataclass(frozen=True)
class WebExportResult:
    """The folder that `export_web` wrote.

    >>> from albertkit import export_web
    >>> export_web("small", "site").model_bytes  # doctest: +SKIP
    """

    path: str
    files: dict[str, int]
    """Bytes of each file."""
    model_bytes: int
    """Of the files in `model/`."""
    transfer_bytes: int
    """Bytes that a visitor of the page downloads, where the host compresses them with gzip."""
    depths: tuple[int, ...]
    """Depths that the page can apply; empty for a static model."""


def export_web(
    source: Path | str | None,
    target: Path | str,
    onnxruntime_web: Path | str | None = None,
    overwrite: bool = False,
) -> WebExportResult:
    """Write a folder with the model, its tokenizer, `albertkit.js`, onnxruntime-web and a demo page.

    onnxruntime_web: the npm package's folder. Default: $ALBERTKIT_ONNXRUNTIME_WEB, node_modules, or that of `make web`.
    A float model is quantized to int8 (`albertkit quantize` gives a better one). overwrite: replace an earlier export,
    unless files were added or changed since.

    >>> from albertkit import export_web
    >>> export_web("small", "site").depths  # doctest: +SKIP
    (3, 6, 9, 12)
    """
    target = Path(target)
    check_new_folder(target, overwrite)
    runtime = runtime_files(onnxruntime_web)
    stored = open_stored(source)
    check_supported(stored)
    stored = quantize_to_int8(stored)
    name = Path(source or "small").resolve().name
    with new_folder(target, overwrite) as scratch:
        files = write_model(scratch / "model", stored, name)
        for file in [file for pattern in PAGE_FILES for file in WEB.glob(pattern)]:
            shutil.copyfile(file, scratch / file.name)
        (scratch / RUNTIME_FOLDER).mkdir()
        for path in runtime:
            shutil.copyfile(path, scratch / RUNTIME_FOLDER / path.name)
        shutil.copyfile(WEB / "onnxruntime-LICENSE.txt", scratch / RUNTIME_FOLDER / "LICENSE.txt")
        write_json(scratch / "package.json", package_json(name, stored))
        write_service_worker(scratch)
        list_written_files(scratch)
        sizes = {path.relative_to(scratch).as_posix(): path.stat().st_size for path in list_files(scratch)}
        transfer = sum(len(gzip.compress(path.read_bytes(), 6)) for path in list_files(scratch) if is_served(path))
    return WebExportResult(str(target), sizes, sum(files.values()), transfer, model_depths(stored))


def check_supported(stored: StoredModel) -> None:
    """Raise if the browser cannot compute the results of a model."""
    config, task = stored.config, stored.metadata.task
    if stored.tokenizer is None or stored.tokenizer.kind == "phoneme":
        raise AlbertkitError("the browser needs a model that reads text, but this one has no tokenizer for text.")
    if task not in WEB_TASKS:
        raise AlbertkitError(
            f"task {task!r} is not available in the browser: {', '.join(WEB_TASKS)} are. Serve the model with "
            "albertkit serve, or export it as one ONNX file (albertkit export MODEL)."
        )
    if stored.head_graphs:
        raise AlbertkitError("custom heads are not available in the browser. Serve the model with albertkit serve.")
    options = config.options
    is_one_layer = config.layer_groups * config.inner_group_num == 1 and not options.ffn_groups
    if not is_one_layer or options.window or options.coda_layers:
        raise AlbertkitError(
            "the browser applies one shared layer, but this model has several layers, or the option window or "
            "coda_layers. Export it as one ONNX file (albertkit export MODEL)."
        )


def quantize_to_int8(stored: StoredModel) -> StoredModel:
    """The model in int8, unless it is quantized already."""
    return stored if stored.metadata.quantization else replace(stored, weights=quantize_stored(stored, 8))


def model_depths(stored: StoredModel) -> tuple[int, ...]:
    """The depths at which the model's vectors may be used; none for a static model."""
    return () if stored.config.options.static else trained_depths(stored.config, stored.metadata)


# onnxruntime-web -------------------------------------------------------------------------------------------------


def runtime_files(folder: Path | str | None = None) -> list[Path]:
    """The files of onnxruntime-web that a page needs, of the pinned version."""
    pinned = read_json(WEB / "onnxruntime-web.json")
    version = pinned["version"]
    path = folder or os.environ.get(RUNTIME_VARIABLE)
    places = [Path(path)] if path else [Path("node_modules", "onnxruntime-web"), CLONE_FOLDER]
    remedy = (
        f"Run  npm install onnxruntime-web@{version}  in the current folder, or pass the package with "
        "--onnxruntime-web FOLDER."
    )
    place = next((place for place in places if place.is_dir()), None)
    if place is None:
        raise AlbertkitError(f"{places[0]} does not exist, but a web page needs onnxruntime-web {version}. {remedy}")
    place = place / "dist" if (place / "dist").is_dir() else place
    files = {place / name: expected for name, expected in pinned["files"].items()}
    for file, expected in files.items():
        if not file.is_file():
            raise AlbertkitError(f"{file} does not exist, but onnxruntime-web {version} has this file. {remedy}")
        if digest(file) != expected:
            raise AlbertkitError(f"{file} differs from the file of onnxruntime-web {version}. {remedy}")
    return list(files)


# The model -------------------------------------------------------------------------------------------------------


def write_model(folder: Path, stored: StoredModel, name: str) -> dict[str, int]:
    """Write the graphs, the weights, the vocabulary and `model.json`; the bytes of each file."""
    assert stored.tokenizer is not None
    folder.mkdir()
    weights, parts = WeightFile(), dict(model_graphs(stored))
    for part, graph in parts.items():
        (folder / f"{part}.onnx").write_bytes(weights.add(graph))
    (folder / WEIGHTS_FILE).write_bytes(weights.data())
    vocabulary = json.dumps(tokenizer_data(stored.tokenizer), ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_bytes(vocabulary.encode())
    files = {path.name: {"bytes": path.stat().st_size, "sha256": digest(path)} for path in list_files(folder)}
    write_json(folder / "model.json", {**model_json(stored, name), "parts": list(parts), "files": files})
    return {path.name: path.stat().st_size for path in list_files(folder)}


def model_graphs(stored: StoredModel) -> Iterator[tuple[str, Graph]]:
    """The graphs of a model by name. WebAssembly sums 8-bit products in 32 bits, so activations have all 8 bits."""
    config, weights = stored.config, stored.weights
    yield "embedding", graphs.embedding_graph(config, weights, MAX_LEVEL)
    if not config.options.static:
        yield "layer", graphs.layer_graph(config, weights, [LAYER], MAX_LEVEL)
        yield "attention", attention_graph(config, weights)
    if config.options.pre_norm:
        yield "norm", graphs.norm_graph(config, weights)
    if "encoder.pooler.weight" in weights and "pooler" in (stored.metadata.pooling, head_input(stored)):
        yield "pooler", graphs.dense_graph(weights, "encoder.pooler", tanh=True)
    if "heads.mlm.bias" in weights:
        b = UntransposedBuilder(MAX_LEVEL)  # the word table is stored once, for the embedding and for this head
        x = b.input("x", TensorProto.FLOAT, ["n", config.hidden_size])
        yield "mlm", b.graph(graphs.mlm_head(b, config, weights, x), ["n", config.vocab_size])
    for head in task_heads(stored):
        yield head, graphs.dense_graph(weights, f"heads.{head}.linear")


def attention_graph(config: AlbertConfig, weights: graphs.Weights) -> Graph:
    """The attention of one text: `hidden` (1, length, H) → (1, heads, length, length), with the layer's weights."""
    heads, few, size = config.num_attention_heads, config.key_heads, config.score_size
    b = Builder(MAX_LEVEL)
    hidden = b.input("hidden", TensorProto.FLOAT, [1, "length", config.hidden_size])
    normed = graphs.input_norm(b, config, weights, f"{LAYER}.attention_norm", hidden)
    mixed, bias = graphs.input_product(b, config, weights, LAYER, normed)
    query, key, _ = b.split(b.node("Add", mixed, bias), [heads * size, few * size, few * config.context_size])
    if few != heads:
        key = b.node("Tile", key, b.constant([1, 1, heads], np.int64))
    shape = b.constant([0, 0, heads, size], np.int64)
    rows = b.node("Transpose", b.node("Reshape", query, shape), perm=[0, 2, 1, 3])
    columns = b.node("Transpose", b.node("Reshape", key, shape), perm=[0, 2, 3, 1])
    scores = b.node("Mul", b.node("MatMul", rows, columns), b.constant(size**-0.5, np.float32))
    if config.options.attention_bias:
        theta = as_float(weights[f"{LAYER}.attention.theta"])
        scores = b.node("Add", scores, graphs.theta_scores(b, config, theta, query))
    return b.graph(b.node("Softmax", scores, axis=-1), [1, heads, "length", "length"])


def task_heads(stored: StoredModel) -> list[str]:
    """The heads with weights that the model's task reads."""
    task = stored.metadata.task
    return [head for head in TASKS[task].heads if head != "vector"] if task in TASKS else []


def head_input(stored: StoredModel) -> str | None:
    """What the head of the task reads: tokens, the pooler, the mean, or the sentence vector; None without a head."""
    heads = task_heads(stored)
    if not heads:
        return None
    if heads[0] in TOKEN_HEADS:
        return "tokens"
    if stored.metadata.details.get("reads") == "vector":
        return "vector"
    return "mean" if stored.config.options.classifier == "mean" else "pooler"


def model_json(stored: StoredModel, name: str) -> dict[str, Any]:
    """What `web/model.js` needs besides the files."""
    config, meta = stored.config, stored.metadata
    task = load_task(meta) if meta.task in TASKS else None
    settings = {key: getattr(task, key) for key in TASK_SETTINGS if hasattr(task, key)}
    depth = 0 if config.options.static else meta.depth or config.num_hidden_layers
    calibration = meta.details.get("early_exit")
    exits, full = model_depths(stored), depth
    if calibration is not None:  # as `last_exit_depth` of `runtime/early_exit.py`
        exit_calibration = ExitCalibration.from_dict(calibration)
        exits, full = exit_calibration.exit_depths, exit_calibration.depth
    return {
        "format": FORMAT,
        "albertkit": __version__,
        "name": name,
        "id": stored.identity,
        "task": meta.task,
        "dim": config.hidden_size,
        "depth": depth,
        "depths": model_depths(stored),
        "exit_depths": [depth for depth in exits if depth < full],
        "full_depth": full,
        "heads": config.num_attention_heads,
        "max_tokens": config.max_position_embeddings,
        "max_task_tokens": max_tokens(stored),
        "pooling": meta.pooling,
        "normalize": meta.normalize,
        "prompts": meta.prompts,
        "head": head_input(stored),
        "pairs": bool(meta.details.get("pairs")),
        "settings": settings,
        "word_classes": word_classes() if meta.task == "tag" else None,
        "licence": meta.details.get("licence"),
        "language": meta.details.get("language"),
    }


class WeightFile:
    """One file of weights for several graphs; equal arrays are stored once."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.size = 0
        self.offsets: dict[bytes, int] = {}

    def add(self, graph: Graph) -> bytes:
        """The serialised graph, whose weights refer to this file."""
        model = ModelProto.decode(graph.model)
        for tensor in model.graph.initializer:
            if tensor.name in graph.weights:
                data = graph.weights[tensor.name].tobytes()
                places = {"location": WEIGHTS_FILE, "offset": str(self.place(data)), "length": str(len(data))}
                tensor.external_data = [StringStringEntryProto(key, value) for key, value in places.items()]
        return model.encode()

    def place(self, data: bytes) -> int:
        """The offset of some bytes."""
        key = hashlib.sha256(data).digest()
        if key not in self.offsets:
            padding = -self.size % ALIGNMENT
            self.offsets[key] = self.size + padding
            self.blocks += [b"\0" * padding, data]
            self.size += padding + len(data)
        return self.offsets[key]

    def data(self) -> bytes:
        """The content of the file."""
        return b"".join(self.blocks)


class UntransposedBuilder(Builder):
    """A builder that stores matrices as they are, and transposes them in the graph when it is opened."""

    def transpose(self, name: str, array: np.ndarray) -> str:
        """The transpose of an array."""
        return self.node("Transpose", self.weight(name, array), perm=[1, 0])


# Files of the folder ---------------------------------------------------------------------------------------------


def is_served(path: Path) -> bool:
    """Whether a page reads a file."""
    return path.name not in PACKAGE_FILES


def package_json(name: str, stored: StoredModel) -> dict[str, Any]:
    """The description of the folder as an npm package."""
    licence = stored.metadata.details.get("licence")
    return {
        "name": f"albertkit-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-') or 'model'}",
        "version": __version__,
        "description": "An ALBERT model for the browser: vectors, search and predictions without a server.",
        "type": "module",
        "main": "./albertkit.js",
        "types": "./albertkit.d.ts",
        "exports": {".": {"types": "./albertkit.d.ts", "default": "./albertkit.js"}, "./*": "./*"},
        **({"license": licence} if licence else {}),
        "keywords": ["albert", "embeddings", "semantic-search", "onnx", "wasm"],
    }


def write_service_worker(folder: Path) -> None:
    """Write the files of this export and their version into the service worker, so that a new export replaces them."""
    path = folder / "service-worker.js"
    served = [file for file in list_files(folder) if file != path and is_served(file)]
    names = [file.relative_to(folder).as_posix() for file in served if file.name not in DEMO_FILES]
    hashes = "".join(f"{file.relative_to(folder).as_posix()} {digest(file)}\n" for file in served)
    version = hashlib.sha256(hashes.encode()).hexdigest()[:16]
    text = path.read_text(encoding="utf-8").replace("VERSION_OF_THIS_EXPORT", version)
    path.write_text(text.replace('["FILES_OF_THIS_EXPORT"]', json.dumps(names)), encoding="utf-8")
