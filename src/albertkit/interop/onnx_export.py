"""A model as one ONNX file that plain onnxruntime, OpenVINO and others run: the verb `export`.

In: a model folder of any kind. Out: a file with the embedding, the shared layer (stored once: every use refers to the same weights, or
a `Loop` applies it), pooling and the task's head; and a `Report`. Before this file: `portable.py` has the standard operators; `onnx_check.py` compares.

    inputs    input_ids, attention_mask, token_type_ids        (texts, length) int64, both dynamic
    outputs   sentence_embedding, last_hidden_state            vectors
              logits                                           classify, choose: (texts, labels); tag, mlm: (texts, length, n)
              start_logits, end_logits                         answer: (texts, length)
              logits, tag_logits                               intent and slots

Before the file is written, its outputs are compared with the artifact's own runtime, on texts of several lengths in one batch.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from albertkit.artifact import Stored
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.file_io import flush
from albertkit.interop.convert import open_stored
from albertkit.interop.onnx_check import compare
from albertkit.interop.onnx_operators import HIDDEN, PortableBuilder
from albertkit.runtime import graph as graphs
from albertkit.runtime.runtime_model import check_trained_depth
from albertkit.tasks import TASKS
from albertkit.tokenizer.tokenizer_json import to_json

HEADS = ("vector", "mlm", "classify", "tag", "answer", "choose")
LARGEST = 2_000_000_000  # bytes that one protobuf message may have
# Relative differences that are allowed: for floats; for one layer of int8; for all layers of int8. A number between two levels may
# fall to either side, and each layer makes such a difference larger, up to what int8 itself differs from floats.
FLOAT_ERROR, LAYER_ERROR, INT8_ERROR = 1e-4, 0.02, 0.5


@dataclass(frozen=True)
class Settings:
    """What the file is to be."""

    head: str | None = None
    """What comes out: vector, mlm, classify, tag, answer or choose; None takes the task's."""
    depth: int | None = None
    """Layers to apply; None takes the model's."""
    loop: bool = False
    """Apply the layer in a Loop instead of writing its nodes once for each use; the weights are stored once in both."""
    tokenizer: bool = False
    """Write tokenizer.json beside the file, for the `tokenizers` library and others."""
    full_range: bool = False
    """8-bit activations instead of 7: for ARM, and x86 with VNNI instructions. Others would overflow in silence."""


@dataclass(frozen=True)
class Report:
    """What was written."""

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
    source: Path | str | None, target: Path | str, settings: Settings | None = None, overwrite: bool = False
) -> Report:
    """Write a model as one ONNX file, after comparing it with the model."""
    target, settings = Path(target), settings or Settings()
    if target.is_dir():
        raise AlbertkitError(f"{target} is a folder; name a file, such as {target / 'model.onnx'}")
    if target.exists() and not overwrite:
        raise AlbertkitError(f"{target} exists; choose another name or allow overwriting (--force)")
    stored = open_stored(source)
    beside = target.parent / "tokenizer.json"
    if settings.tokenizer and target.resolve() == beside.resolve():
        raise AlbertkitError(f"{target} is where --tokenizer writes; choose another name, such as model.onnx")
    if settings.tokenizer and beside.is_dir():
        raise AlbertkitError(f"{beside} is a folder, and --tokenizer writes a file of that name; choose another folder")
    if settings.tokenizer and beside.exists() and not overwrite:
        raise AlbertkitError(f"{beside} exists; choose another folder or allow overwriting (--force)")
    heads = heads_of(stored, settings.head)
    depth = settings.depth or stored.meta.depth or stored.config.num_hidden_layers
    if "vector" in heads:
        check_trained_depth(stored.config, stored.meta, depth)
    levels = graphs.Levels(255 if settings.full_range else 127)
    model = build(stored, heads, depth, levels, settings.loop)
    data = model.SerializeToString()
    if len(data) > LARGEST:
        raise AlbertkitError(
            f"the file would have {len(data):,} bytes; ONNX allows {LARGEST:,}, so quantise the model first"
        )
    error = check(data, source, heads, depth, levels)
    write(data, target)
    if settings.tokenizer and stored.tokenizer is not None:
        write(to_json(stored.tokenizer.vocabulary).encode(), beside)
    weights = sum(len(t.raw_data) for t in model.graph.initializer)
    outputs = [output.name for output in model.graph.output]
    bits = 8 if stored.meta.quantisation else 32
    return Report(str(target), len(data), weights, outputs, bits, 0 if stored.config.options.static else depth, error)


def heads_of(stored: Stored, wanted: str | None) -> tuple[str, ...]:
    """The heads that the file computes."""
    there = {name.split(".")[1] for name in stored.weights if name.startswith("heads.")}
    task = stored.meta.task
    if wanted is not None:
        heads: tuple[str, ...] = (wanted,)
    elif task == "pretrain":
        heads = ("mlm",) if "mlm" in there else ("vector",)
    elif task in TASKS and TASKS[task].generates_text:
        heads = (task,)  # which cannot be exported
    else:
        heads = TASKS[task].heads if task in TASKS else ("vector",)
    for head in heads:
        if head not in HEADS or (head != "vector" and head not in there):
            shown = ", ".join(["vector", *sorted(there & set(HEADS))])
            raise AlbertkitError(f"this model has no head {head!r} to export; choose one of {shown}")
    return heads


# Building --------------------------------------------------------------------------------------------------------


def build(stored: Stored, heads: tuple[str, ...], depth: int, levels: graphs.Levels, loop: bool = False) -> ModelProto:
    """The whole model as an onnx message."""
    config, weights, meta = stored.config, stored.weights, stored.meta
    b = PortableBuilder(levels)
    ids, mask, segments = (
        b.input(name, TensorProto.INT64, ["texts", "length"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    b.prefix = "embedding."
    hidden = graphs.embedding(b, config, weights, ids, segments)
    inside = b.node("Cast", mask, to=TensorProto.FLOAT)  # (texts, length)
    if not config.options.static:
        away = b.node("Mul", b.node("Sub", b.constant(1.0, np.float32), inside), b.constant(HIDDEN, np.float32))
        away = b.node("Unsqueeze", away, b.constant([1, 2], np.int64))  # (texts, 1, 1, length)
        hidden = layers(b, config, weights, hidden, away, depth, loop)
    outputs: dict[str, list[Any]] = {}
    for head in heads:
        outputs |= _head(b, stored, head, hidden, inside, heads)
    room = config.max_position_embeddings
    about = {
        "task": meta.task,
        "labels": json.dumps(list(meta.labels), ensure_ascii=False),
        "max_length": str(min(meta.details.get("max_length", room), room)),
        "details": json.dumps({k: v for k, v in meta.details.items() if k != "early_exit"}, ensure_ascii=False),
        "prompts": json.dumps(meta.prompts, ensure_ascii=False),
    }
    return b.model(outputs, about)


def layers(
    b: PortableBuilder, config: AlbertConfig, weights: graphs.Weights, hidden: str, mask: str, depth: int, loop: bool
) -> str:
    """The shared layers, `depth` times: all uses one after the other, or one Loop for each stretch of equal uses."""

    def group(number: int, local: bool, x: str) -> str:
        for inner in range(config.inner_group_num):
            b.prefix = f"group{number}.{inner}."
            x = graphs.layer(b, config, weights, f"encoder.groups.{number}.{inner}", x, mask, local).result
        return x

    uses = groupby((config.group_of(i), config.options.local(i)) for i in range(depth))
    shape = ["texts", "length", config.hidden_size]
    for stretch, ((number, local), same) in enumerate(uses):
        times = len(list(same))
        if not loop or times == 1:
            for _ in range(times):
                hidden = group(number, local, hidden)
            continue
        start = f"hidden_{stretch}"
        with b.body() as nodes:
            end = group(number, local, start)
        hidden = b.repeat(times, hidden, nodes, (start, end), shape)
    return hidden


def _named(b: PortableBuilder, tensor: str, name: str) -> None:
    """Give an output its public name."""
    b.nodes.append(helper.make_node("Identity", [tensor], [name], name=name))


def _head(
    b: PortableBuilder, stored: Stored, head: str, hidden: str, inside: str, heads: tuple[str, ...]
) -> dict[str, list[Any]]:
    """The nodes of one head; names and shapes of its outputs."""
    config, weights, meta = stored.config, stored.weights, stored.meta
    b.prefix = f"{head}."
    if head == "vector":
        vector = pooled(b, stored, hidden, inside, meta.pooling)
        _named(b, unit(b, vector) if meta.normalise else vector, "sentence_embedding")
        found: dict[str, list[Any]] = {"sentence_embedding": ["texts", config.hidden_size]}
        if not config.options.static:
            _named(b, hidden, "last_hidden_state")
            found["last_hidden_state"] = ["texts", "length", config.hidden_size]
        return found
    if head == "mlm":
        _named(b, graphs.mlm_head(b, config, weights, hidden), "logits")
        return {"logits": ["texts", "length", config.vocab_size]}
    name = f"heads.{head}.linear"
    labels = len(graphs.as_float(weights[f"{name}.bias"]))
    if head == "answer":
        start, end = b.split(graphs.dense(b, weights, name, hidden), 2)
        for part, called in ((start, "start_logits"), (end, "end_logits")):
            _named(b, b.node("Squeeze", part, b.constant([-1], np.int64)), called)
        return {"start_logits": ["texts", "length"], "end_logits": ["texts", "length"]}
    if head == "tag":
        called = "logits" if heads == ("tag",) else "tag_logits"
        _named(b, graphs.dense(b, weights, name, hidden), called)
        return {called: ["texts", "length", labels]}
    if meta.details.get("reads") == "vector":
        text = unit(b, pooled(b, stored, hidden, inside, meta.pooling))
    else:
        text = pooled(b, stored, hidden, inside, "mean" if config.options.classifier == "mean" else "pooler")
    b.prefix = f"{head}."
    _named(b, graphs.dense(b, weights, name, text), "logits")
    return {"logits": ["texts", labels]}


def pooled(b: PortableBuilder, stored: Stored, hidden: str, inside: str, how: str) -> str:
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
        away = b.node("Mul", b.node("Sub", b.constant(1.0, np.float32), wide), b.constant(HIDDEN, np.float32))
        return b.node("ReduceMax", b.node("Add", hidden, away), axes=[1], keepdims=0)
    axis = b.constant([1], np.int64)
    total = b.node("ReduceSum", b.node("Mul", hidden, wide), axis, keepdims=0)
    count = b.node("Max", b.node("ReduceSum", inside, axis, keepdims=1), b.constant(1.0, np.float32))
    return b.node("Div", total, count)


def unit(b: PortableBuilder, vector: str) -> str:
    """A vector brought to length 1."""
    length = b.node("ReduceL2", vector, axes=[-1], keepdims=1)
    return b.node("Div", vector, b.node("Max", length, b.constant(1e-12, np.float32)))


# Checking and writing --------------------------------------------------------------------------------------------


def check(data: bytes, source: Path | str | None, heads: tuple[str, ...], depth: int, levels: graphs.Levels) -> float:
    """The file's difference to the model; an error where it is too large."""
    stored = open_stored(source)
    trials = [(data, depth, FLOAT_ERROR)]
    if stored.meta.quantisation:
        one = build(stored, heads, 1, levels).SerializeToString()
        trials = [(one, 1, LAYER_ERROR), (data, depth, INT8_ERROR)]
    for made, layers_applied, allowed in trials:
        error = compare(made, source, heads, layers_applied, levels)
        if not error <= allowed:
            raise AlbertkitError(
                f"the file's outputs differ from the model's by {error:.2g} after {layers_applied} layers, and {allowed} "
                f"is allowed; it was not written"
            )
    return error


def write(data: bytes, target: Path) -> None:
    """A file, whole or not at all."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).chmod(0o644)
            flush(Path(name))
            Path(name).replace(target)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise AlbertkitError(f"writing {target} failed: {error.strerror}; it is as it was") from None
