"""`export`: a model as one ONNX file for onnxruntime, OpenVINO and others.

In: any ALBERT checkpoint or artifact. Out: a file with the embedding, the shared layer (each weight stored once),
pooling and the task's head; and an `ExportResult`. Before this file: `onnx_operators.py` has the standard operators.

    inputs    input_ids, attention_mask, token_type_ids        (texts, length) int64, both dynamic
    outputs   sentence_embedding, last_hidden_state            vectors
              logits                                 classify, choose: (texts, labels); tag, mlm: (texts, length, n)
              start_logits, end_logits                         answer: (texts, length)
              logits, tag_logits                               intent and slots

The softmax of the logits (for several labels, the sigmoid) is the probability that `classify` returns, and the logit of
a regression is its value: temperature, mean and standard deviation are in the weights.

Before the file is written, its outputs are compared with the runtime's, on texts of several lengths in one batch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from albertkit.artifact import StoredModel
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.file_io import check_absent, write_file
from albertkit.interop.convert import open_stored
from albertkit.interop.onnx_operators import PortableBuilder
from albertkit.runtime import graph as graphs
from albertkit.runtime.batching import TokenBatch
from albertkit.runtime.embed import pool
from albertkit.runtime.engine import Engine
from albertkit.runtime.graph_builder import HIDDEN, as_float
from albertkit.runtime.predict import head_scores
from albertkit.runtime.runtime_model import RuntimeModel, check_trained_depth
from albertkit.tasks import TASKS
from albertkit.tokenizer.tokenizer_files import to_json
from albertkit.transformers_folder import fold_scores, max_tokens

HEADS = ("vector", "mlm", "classify", "tag", "answer", "choose")
MAX_FILE_BYTES = 2_000_000_000  # bytes that one protobuf message may have
# Largest allowed relative differences: floats, one int8 layer, all int8 layers. Rounding between two int8 levels may go
# either way, and each layer enlarges the difference, up to the difference of int8 from floats.
FLOAT_ERROR, LAYER_ERROR, INT8_ERROR = 1e-4, 0.02, 0.5


@dataclass(frozen=True)
class ExportSettings:
    """Settings of `export`.

    >>> from albertkit import ExportSettings
    >>> ExportSettings(depth=6, tokenizer=True).depth
    6
    """

    head: str | None = None
    """The output: vector, mlm, classify, tag, answer or choose; None: the heads of the task."""
    depth: int | None = None
    """Layers to apply; None: those of the model."""
    tokenizer: bool = False
    """Write tokenizer.json beside the file, for the `tokenizers` library and others."""
    full_range: bool = False
    """8-bit activations instead of 7: for ARM, and x86 with VNNI instructions; others overflow without an error."""


@dataclass(frozen=True)
class ExportResult:
    """The file that `export` wrote.

    >>> from albertkit import ExportSettings, export
    >>> export("small", "model.onnx", ExportSettings(depth=3)).outputs  # doctest: +SKIP
    """

    path: str
    bytes: int
    weight_bytes: int
    """Of the tensors in the file."""
    outputs: list[str]
    bits: int
    depth: int
    error: float
    """Largest relative difference to the artifact's own outputs, by text and output."""


def export(
    source: Path | str | None, target: Path | str, settings: ExportSettings | None = None, overwrite: bool = False
) -> ExportResult:
    """Write a model as one ONNX file, after comparing it with the model.

    >>> from albertkit import export
    >>> export("small", "model.onnx").bytes  # doctest: +SKIP
    """
    target, settings = Path(target), settings or ExportSettings()
    tokenizer_file = target.parent / "tokenizer.json"
    if settings.tokenizer and target.resolve() == tokenizer_file.resolve():
        raise AlbertkitError(f"{target} is the file that --tokenizer writes; choose another name, such as model.onnx")
    for path in [target, tokenizer_file][: 1 + settings.tokenizer]:
        check_absent(path, overwrite)
    stored = fold_scores(open_stored(source))
    heads = exported_heads(stored, settings.head)
    depth = settings.depth or stored.metadata.depth or stored.config.num_hidden_layers
    if "vector" in heads:
        check_trained_depth(stored.config, stored.metadata, depth)
    max_level = 255 if settings.full_range else 127
    model = build(stored, heads, depth, max_level)
    data = model.SerializeToString()
    if len(data) > MAX_FILE_BYTES:
        raise AlbertkitError(
            f"the file would have {len(data):,} bytes; ONNX allows {MAX_FILE_BYTES:,}, so quantize the model first"
        )
    error = check_difference(data, stored, heads, depth, max_level)
    write_file(target, data, overwrite)
    if settings.tokenizer and stored.tokenizer is not None:
        write_file(tokenizer_file, to_json(stored.tokenizer.vocabulary).encode(), overwrite)
    weights = sum(len(t.raw_data) for t in model.graph.initializer)
    outputs = [output.name for output in model.graph.output]
    bits, applied = 8 if stored.metadata.quantization else 32, 0 if stored.config.options.static else depth
    return ExportResult(str(target), len(data), weights, outputs, bits, applied, error)


def exported_heads(stored: StoredModel, requested: str | None) -> tuple[str, ...]:
    """The heads that the file computes."""
    stored_heads = {name.split(".")[1] for name in stored.weights if name.startswith("heads.")}
    task = stored.metadata.task
    if requested is not None:
        heads: tuple[str, ...] = (requested,)
    elif task == "pretrain":
        heads = ("mlm",) if "mlm" in stored_heads else ("vector",)
    elif task in TASKS and TASKS[task].generates_text:
        heads = (task,)  # which cannot be exported
    else:
        heads = TASKS[task].heads if task in TASKS else ("vector",)
    for head in heads:
        if head not in HEADS or (head != "vector" and head not in stored_heads):
            choices = ", ".join(["vector", *sorted(stored_heads & set(HEADS))])
            raise AlbertkitError(f"this model has no head {head!r} to export; choose one of {choices}")
    return heads


# Building --------------------------------------------------------------------------------------------------------


def build(stored: StoredModel, heads: tuple[str, ...], depth: int, max_level: int) -> ModelProto:
    """The model as an onnx message."""
    config, weights, meta = stored.config, stored.weights, stored.metadata
    b = PortableBuilder(max_level)
    ids, mask, segments = (
        b.input(name, TensorProto.INT64, ["texts", "length"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    b.prefix = "embedding."
    hidden = graphs.embedding(b, config, weights, ids, segments)
    inside = b.node("Cast", mask, to=TensorProto.FLOAT)  # (texts, length)
    if not config.options.static:
        masked = b.node("Mul", b.node("Sub", b.constant(1.0, np.float32), inside), b.constant(HIDDEN, np.float32))
        masked = b.node("Unsqueeze", masked, b.constant([1, 2], np.int64))  # (texts, 1, 1, length)
        for layer in range(depth):
            for inner in range(config.inner_group_num):
                name, local = f"{config.group_of(layer)}.{inner}", config.options.local(layer)
                b.prefix = f"group{name}."
                hidden, _ = graphs.layer(b, config, weights, f"encoder.groups.{name}", hidden, masked, local)
    outputs: dict[str, list[Any]] = {}
    for head in heads:
        outputs |= _head(b, stored, head, hidden, inside, heads)
    metadata = {
        "task": meta.task,
        "labels": json.dumps(list(meta.labels), ensure_ascii=False),
        "max_length": str(max_tokens(stored)),
        "details": json.dumps({k: v for k, v in meta.details.items() if k != "early_exit"}, ensure_ascii=False),
        "prompts": json.dumps(meta.prompts, ensure_ascii=False),
    }
    return b.model(outputs, metadata)


def _name_output(b: PortableBuilder, tensor: str, name: str) -> None:
    """Set the public name of an output."""
    b.nodes.append(helper.make_node("Identity", [tensor], [name], name=name))


def _head(
    b: PortableBuilder, stored: StoredModel, head: str, hidden: str, inside: str, heads: tuple[str, ...]
) -> dict[str, list[Any]]:
    """The nodes of one head; names and shapes of its outputs."""
    config, weights, meta = stored.config, stored.weights, stored.metadata
    b.prefix = f"{head}."
    if head == "vector":
        vector = pool_nodes(b, stored, hidden, inside, meta.pooling)
        _name_output(b, normalize_nodes(b, vector) if meta.normalize else vector, "sentence_embedding")
        found: dict[str, list[Any]] = {"sentence_embedding": ["texts", config.hidden_size]}
        if not config.options.static:
            _name_output(b, hidden, "last_hidden_state")
            found["last_hidden_state"] = ["texts", "length", config.hidden_size]
        return found
    if head == "mlm":
        _name_output(b, graphs.mlm_head(b, config, weights, hidden), "logits")
        return {"logits": ["texts", "length", config.vocab_size]}
    name = f"heads.{head}.linear"
    labels = len(as_float(weights[f"{name}.bias"]))
    if head == "answer":
        start, end = b.split(graphs.dense(b, weights, name, hidden), 2)
        for part, called in ((start, "start_logits"), (end, "end_logits")):
            _name_output(b, b.node("Squeeze", part, b.constant([-1], np.int64)), called)
        return {"start_logits": ["texts", "length"], "end_logits": ["texts", "length"]}
    if head == "tag":
        called = "logits" if heads == ("tag",) else "tag_logits"
        _name_output(b, graphs.dense(b, weights, name, hidden), called)
        return {called: ["texts", "length", labels]}
    if meta.details.get("reads") == "vector":
        text = normalize_nodes(b, pool_nodes(b, stored, hidden, inside, meta.pooling))
    else:
        text = pool_nodes(b, stored, hidden, inside, "mean" if config.options.classifier == "mean" else "pooler")
    b.prefix = f"{head}."
    _name_output(b, graphs.dense(b, weights, name, text), "logits")
    return {"logits": ["texts", labels]}


def pool_nodes(b: PortableBuilder, stored: StoredModel, hidden: str, inside: str, how: str) -> str:
    """Hidden states of each text to one vector."""
    if how in ("cls", "pooler"):
        first = b.node("Gather", hidden, b.constant(0, np.int64), axis=1)
        if how == "cls":
            return first
        if "encoder.pooler.weight" not in stored.weights:
            raise AlbertkitError("this model has no pooler, so its vector cannot be exported with this pooling")
        b.prefix = "pooler."
        return b.node("Tanh", graphs.dense(b, stored.weights, "encoder.pooler", first))
    wide = b.node("Unsqueeze", inside, b.constant([2], np.int64))  # (texts, length, 1)
    if how == "max":
        masked = b.node("Mul", b.node("Sub", b.constant(1.0, np.float32), wide), b.constant(HIDDEN, np.float32))
        return b.node("ReduceMax", b.node("Add", hidden, masked), axes=[1], keepdims=0)
    axis = b.constant([1], np.int64)
    total = b.node("ReduceSum", b.node("Mul", hidden, wide), axis, keepdims=0)
    count = b.node("Max", b.node("ReduceSum", inside, axis, keepdims=1), b.constant(1.0, np.float32))
    return b.node("Div", total, count)


def normalize_nodes(b: PortableBuilder, vector: str) -> str:
    """Normalise a vector to length 1."""
    length = b.node("ReduceL2", vector, axes=[-1], keepdims=1)
    return b.node("Div", vector, b.node("Max", length, b.constant(1e-12, np.float32)))


# Checking and writing --------------------------------------------------------------------------------------------


def check_difference(data: bytes, stored: StoredModel, heads: tuple[str, ...], depth: int, max_level: int) -> float:
    """The difference of the file to the model; an error if it is too large."""
    checks = [(data, depth, FLOAT_ERROR)]
    if stored.metadata.quantization:
        one_layer = build(stored, heads, 1, max_level).SerializeToString()
        checks = [(one_layer, 1, LAYER_ERROR), (data, depth, INT8_ERROR)]
    for file, layers_applied, allowed in checks:
        error = largest_difference(file, stored, heads, layers_applied, max_level)
        if not error <= allowed:
            raise AlbertkitError(
                f"the file's outputs differ from the model's by {error:.2g} after {layers_applied} layers, and "
                f"{allowed} is allowed; the file was not written"
            )
    return error


def random_batch(config: AlbertConfig, texts: int = 4) -> TokenBatch:
    """A batch of random token ids of different lengths, the longest first."""
    rng = np.random.default_rng(0)
    longest = min(48, config.max_position_embeddings)
    lengths = np.array([max(1, longest * (texts - i) // texts) for i in range(texts)], np.int32)
    ids = rng.integers(min(5, config.vocab_size - 1), config.vocab_size, (texts, longest))
    segments = rng.integers(0, config.type_vocab_size, (texts, longest))
    inside = np.arange(longest)[None] < lengths[:, None]
    return TokenBatch(np.where(inside, ids, 0), np.where(inside, segments, 0), lengths, np.arange(texts))


def largest_difference(data: bytes, stored: StoredModel, heads: tuple[str, ...], depth: int, max_level: int) -> float:
    """Largest relative difference between the outputs of an exported file and the runtime's, for one batch."""
    import onnxruntime as ort

    albert = RuntimeModel(replace(stored, weights=dict(stored.weights)), source="the model", threads=1)
    rows = random_batch(albert.config)
    if not albert.config.options.static:
        albert.engine = Engine(albert.config, dict(stored.weights), 1, max_level)
    hidden = albert.engine.run(rows, depth)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    inside = (np.arange(rows.ids.shape[1])[None] < rows.lengths[:, None]).astype(np.int64)
    inputs = {"input_ids": rows.ids, "attention_mask": inside, "token_type_ids": rows.segments}
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))
    worst = 0.0
    for name, outputs in runtime_outputs(albert, hidden, rows, heads).items():
        least = max(1e-6, typical_norm(stored, name, heads))
        for text, length in enumerate(rows.lengths):
            expected, actual = outputs[text], found[name][text]
            if expected.ndim and len(expected) == length:
                actual = actual[:length]
            error = float(np.linalg.norm(actual - expected)) / max(float(np.linalg.norm(expected)), least)
            worst = max(worst, error if np.isfinite(error) else np.inf)
    return worst


def typical_norm(stored: StoredModel, output: str, heads: tuple[str, ...]) -> float:
    """The typical norm of the scores of one text; one score may be near 0, where any rounding looks large."""
    head = next((name for name in heads if name in ("classify", "choose")), None)
    if output != "logits" or head is None:
        return 0.0
    read = stored.metadata.details.get("reads") == "vector"  # a vector of length 1; else numbers from -1 to 1
    weight = as_float(stored.weights[f"heads.{head}.linear.weight"])
    return float(np.linalg.norm(weight)) / (weight.shape[1] ** 0.5 if read else 1.0)


def runtime_outputs(
    albert: RuntimeModel, hidden: np.ndarray, rows: TokenBatch, heads: tuple[str, ...]
) -> dict[str, list[np.ndarray]]:
    """The outputs of the runtime for each text; token outputs without padding."""
    found: dict[str, list[np.ndarray]] = {}
    for head in heads:
        if head == "vector":
            vectors = pool(albert, hidden, rows.lengths, albert.metadata.pooling)
            lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            found["sentence_embedding"] = list(vectors / lengths if albert.metadata.normalize else vectors)
            if not albert.config.options.static:
                found["last_hidden_state"] = [row[:n] for row, n in zip(hidden, rows.lengths, strict=True)]
        elif head == "mlm":
            found["logits"] = [albert.engine.mlm_logits(row[:n]) for row, n in zip(hidden, rows.lengths, strict=True)]
        else:
            scores = head_scores(albert, head, hidden, rows.lengths)
            if head == "answer":
                found["start_logits"] = [s[:, 0] for s in scores]
                found["end_logits"] = [s[:, 1] for s in scores]
            else:
                found["tag_logits" if head == "tag" and heads != ("tag",) else "logits"] = scores
    return found
