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

Before the file is written, its outputs are compared with the runtime's: on random tokens, whose difference must be
small, and on real sentences, for the verdict (`runtime/agreement.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.artifact import StoredModel
from albertkit.errors import AlbertkitError, check_fields, check_path
from albertkit.file_io import check_absent, write_file
from albertkit.head_graph import HeadSession, check_head_graph, head_file
from albertkit.interop.convert import open_stored
from albertkit.interop.onnx_check import compared_batches, output_differences, random_batch
from albertkit.interop.onnx_operators import PortableBuilder
from albertkit.onnx_model import ModelProto, TensorProto, make_node
from albertkit.runtime import graph as graphs
from albertkit.runtime.agreement import Agreement
from albertkit.runtime.graph_builder import HIDDEN, as_float
from albertkit.runtime.runtime_model import Depth, check_trained_depth
from albertkit.tasks import TASKS, load_task
from albertkit.tokenizer.tokenizer_json import to_json
from albertkit.transformers_folder import fold_scores, max_tokens, score_scale
from albertkit.weights import TOKEN_HEADS

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
    depth: Depth | None = None
    """Layers to apply, "full" for all; None: those of the model."""
    tokenizer: bool = False
    """Write tokenizer.json beside the file, for the `tokenizers` library and others."""
    full_range: bool = False
    """8-bit activations instead of 7: for ARM, and x86 with VNNI instructions; others overflow without an error."""
    unsigned: bool = False
    """8-bit activations and unsigned weights, which overflow nowhere; on x86 they are slower than signed ones."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def max_level(self) -> int:
        """The largest 8-bit activation."""
        return 255 if self.full_range or self.unsigned else 127


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
    agreement_mean: float
    """Of the first output with the artifact's own: 1 less half the squared difference; for vectors, the cosine."""
    agreement_least: float
    texts: int
    """The number of compared texts."""
    text_kind: str
    """The kind of these texts: the `texts` argument, built-in sentences, or random tokens."""
    verdict: str
    """`good`, `fair` or `poor`."""


def export(
    source: Path | str | None,
    target: Path | str,
    settings: ExportSettings | None = None,
    overwrite: bool = False,
    texts: Sequence[str] | None = None,
) -> ExportResult:
    """Write a model as one ONNX file, after comparing it with the model.

    texts: typical texts to compare on; without them, built-in English or Chinese sentences.

    >>> from albertkit import export
    >>> export("small", "model.onnx").bytes  # doctest: +SKIP
    """
    check_path("target", target)
    target, settings = Path(target), settings or ExportSettings()
    tokenizer_file = target.parent / "tokenizer.json"
    if settings.tokenizer and target.resolve() == tokenizer_file.resolve():
        raise AlbertkitError(f"{target} is the file that --tokenizer writes; choose another name, such as model.onnx")
    for path in [target, tokenizer_file][: 1 + settings.tokenizer]:
        check_absent(path, overwrite)
    stored = open_stored(source)
    result = export_stored(stored, target, settings, overwrite, texts)
    if settings.tokenizer and stored.tokenizer is not None:
        write_file(tokenizer_file, to_json(stored.tokenizer.vocabulary).encode(), overwrite)
    return result


def export_stored(
    stored: StoredModel,
    target: Path,
    settings: ExportSettings,
    overwrite: bool = False,
    texts: Sequence[str] | None = None,
    reference: StoredModel | None = None,
) -> ExportResult:
    """`export` for a model in memory. reference: the model for the verdict, if it is another one, such as floats."""
    stored = fold_scores(stored)
    heads = exported_heads(stored, settings.head)
    layers = stored.config.num_hidden_layers
    depth = layers if settings.depth == "full" else settings.depth or stored.metadata.depth or layers
    if "vector" in heads:
        check_trained_depth(stored.config, stored.metadata, depth)
    model = build(stored, heads, depth, settings)
    data = model.encode()
    if len(data) > MAX_FILE_BYTES:
        raise AlbertkitError(
            f"the file would have {len(data):,} bytes; ONNX allows {MAX_FILE_BYTES:,}, so quantize the model first"
        )
    check_difference(data, stored, heads, depth, settings)
    batches, text_kind = compared_batches(stored, texts)
    errors = output_differences(data, reference or stored, heads, depth, settings.max_level, batches)
    agreement = Agreement.of(1 - errors[:, 0] ** 2 / 2, text_kind)  # for vectors of length 1, the cosine
    write_file(target, data, overwrite)
    weights = sum(len(t.raw_data or b"") for t in model.graph.initializer)
    outputs = [output.name for output in model.graph.output]
    bits, applied = 8 if stored.metadata.quantization else 32, 0 if stored.config.options.static else depth
    return ExportResult(
        str(target), len(data), weights, outputs, bits, applied, float(errors.max()),
        agreement.mean, agreement.least, agreement.texts, agreement.kind, agreement.verdict,
    )  # fmt: skip


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


def build(stored: StoredModel, heads: tuple[str, ...], depth: int, settings: ExportSettings) -> ModelProto:
    config, weights, meta = stored.config, stored.weights, stored.metadata
    b = PortableBuilder(settings.max_level, unsigned=settings.unsigned)
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
                name, local = f"{config.group_of(layer, depth)}.{inner}", config.options.local(layer)
                b.prefix, ffn = f"group{name}.", config.ffn_of(layer, depth)
                builder = graphs.LayerBuilder(b, config, weights, f"encoder.groups.{name}")
                hidden, _ = builder.layer(hidden, masked, local, ffn)
    if config.options.pre_norm:
        b.prefix = "output."
        hidden = graphs.norm(b, config, weights, "encoder.output_norm", hidden)
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
    b.nodes.append(make_node("Identity", [tensor], [name], name=name))


def _head(
    b: PortableBuilder, stored: StoredModel, head: str, hidden: str, inside: str, heads: tuple[str, ...]
) -> dict[str, list[Any]]:
    """The nodes of one head; names and shapes of its outputs."""
    config, weights, meta = stored.config, stored.weights, stored.metadata
    b.prefix = f"{head}."
    if head == "vector":
        vector = pool_nodes(b, stored, hidden, inside, meta.pooling)
        _name_output(b, normalize_nodes(b, vector) if meta.normalize else vector, "sentence_embedding")
        shapes: dict[str, list[Any]] = {"sentence_embedding": ["texts", config.hidden_size]}
        if not config.options.static:
            _name_output(b, hidden, "last_hidden_state")
            shapes["last_hidden_state"] = ["texts", "length", config.hidden_size]
        return shapes
    if head == "mlm":
        _name_output(b, graphs.mlm_head(b, config, weights, hidden), "logits")
        return {"logits": ["texts", "length", config.vocab_size]}
    scores = score_nodes(b, stored, head, hidden, inside)
    if head == "answer":
        start, end = b.split(scores, 2)
        for part, called in ((start, "start_logits"), (end, "end_logits")):
            _name_output(b, b.node("Squeeze", part, b.constant([-1], np.int64)), called)
        return {"start_logits": ["texts", "length"], "end_logits": ["texts", "length"]}
    called = "tag_logits" if head == "tag" and heads != ("tag",) else "logits"
    _name_output(b, scores, called)
    rows = ["texts", "length"] if head == "tag" else ["texts"]
    bias = weights.get(f"heads.{head}.linear.bias")
    return {called: [*rows, load_task(meta).outputs(head) if bias is None else len(as_float(bias))]}


def score_nodes(b: PortableBuilder, stored: StoredModel, head: str, hidden: str, inside: str) -> str:
    config, meta, name = stored.config, stored.metadata, f"heads.{head}.linear"
    if head in stored.head_graphs:
        return custom_head_nodes(b, stored, head, hidden, inside)
    if head in TOKEN_HEADS:
        return graphs.dense(b, stored.weights, name, hidden)
    if meta.details.get("reads") == "vector":
        text = normalize_nodes(b, pool_nodes(b, stored, hidden, inside, meta.pooling))
    else:
        text = pool_nodes(b, stored, hidden, inside, "mean" if config.options.classifier == "mean" else "pooler")
    b.prefix = f"{head}."
    return graphs.dense(b, stored.weights, name, text)


def custom_head_nodes(b: PortableBuilder, stored: StoredModel, head: str, hidden: str, inside: str) -> str:
    """The nodes of a custom head's graph, with its weights; then the temperature, mean and standard deviation."""
    data, width = stored.head_graphs[head], stored.config.hidden_size
    session = HeadSession(head, data, stored.weights)
    session.scores(np.zeros((1, 2, width), np.float32), np.array([2]))  # raises if it needs too much memory
    graph = check_head_graph(head_file(head), data, stored.weights).graph
    wide = b.node("Cast", b.node("Unsqueeze", inside, b.constant([2], np.int64)), to=TensorProto.BOOL)
    names = {"": "", "hidden": b.node("Where", wide, hidden, b.constant(0.0, np.float32))}
    names["mask"] = b.node("Cast", inside, to=TensorProto.BOOL)
    for entry in graph.input:
        if entry.name not in names:
            names[entry.name] = b.weight(entry.name, as_float(stored.weights[entry.name]))
    for tensor in graph.initializer:
        names[tensor.name] = b.weight(tensor.name, tensor.array())
    for node in graph.node:
        names |= {output: b.fresh(node.op_type) for output in node.output if output}
        inputs, outputs = [names[name] for name in node.input], [names[name] for name in node.output]
        b.nodes.append(replace(node, input=inputs, output=outputs))
    factor, offset = score_scale(stored.metadata)
    if (factor, offset) == (1.0, 0.0):
        return names["scores"]
    scaled = b.node("Mul", names["scores"], b.constant(factor, np.float32))
    return b.node("Add", scaled, b.constant(offset, np.float32))


def pool_nodes(b: PortableBuilder, stored: StoredModel, hidden: str, inside: str, pooling: str) -> str:
    """Hidden states of each text to one vector."""
    if pooling in ("cls", "pooler"):
        first = b.node("Gather", hidden, b.constant(0, np.int64), axis=1)
        if pooling == "cls":
            return first
        if "encoder.pooler.weight" not in stored.weights:
            raise AlbertkitError("this model has no pooler, so its vector cannot be exported with this pooling")
        b.prefix = "pooler."
        return b.node("Tanh", graphs.dense(b, stored.weights, "encoder.pooler", first))
    wide = b.node("Unsqueeze", inside, b.constant([2], np.int64))  # (texts, length, 1)
    if pooling == "max":
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


def check_difference(
    data: bytes, stored: StoredModel, heads: tuple[str, ...], depth: int, settings: ExportSettings
) -> None:
    """Raise if the outputs of the file and of the model differ on random tokens."""
    checks = [(data, depth, FLOAT_ERROR)]
    if stored.metadata.quantization:
        one_layer = build(stored, heads, 1, settings).encode()
        checks = [(one_layer, 1, LAYER_ERROR), (data, depth, INT8_ERROR)]
    for file, layers_applied, allowed in checks:
        batch = random_batch(stored.config)
        error = output_differences(file, stored, heads, layers_applied, settings.max_level, [batch]).max()
        if not error <= allowed:
            raise AlbertkitError(
                f"the file's outputs differ from the model's by {error:.2g} after {layers_applied} layers, and "
                f"{allowed} is allowed; the file was not written"
            )
