"""Tables of a model's tensors: their shapes, and their names here, in PyTorch files and in TensorFlow files.

In: an `AlbertConfig` and the heads. Out: `{name: shape}`, and `TensorName`s to read and write other layouts. The torch
model has exactly these parameters (tested). `artifact.py` checks files against them, and the planner counts them. Our
names are those of the torch `state_dict`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from albertkit.config import AlbertConfig

Shapes = dict[str, tuple[int, ...]]
HEADS = ("mlm", "sop", "classify", "tag", "answer", "choose")
TOKEN_HEADS = ("tag", "answer")  # one row of scores per token; `classify` and `choose`: one per text
CUSTOM_HEADS = ("classify", "choose", *TOKEN_HEADS)  # heads that a module of the user may replace


def linear(name: str, outputs: int, inputs: int) -> Shapes:
    """A dense layer in the layout of torch: (outputs, inputs)."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name: str, size: int) -> Shapes:
    """A LayerNorm's scale and shift."""
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def embedding_shapes(config: AlbertConfig) -> Shapes:
    """Tables at size E and the projection to H (or, in the brightmart layout, tables at H after a bare projection)."""
    v, e, h = config.vocab_size, config.embedding_size, config.hidden_size
    if config.options.static:
        return {"encoder.embeddings.word.weight": (v, h)}
    wide = h if config.options.brightmart_layout else e
    shapes = {
        "encoder.embeddings.word.weight": (v, e),
        "encoder.embeddings.position.weight": (config.max_position_embeddings, wide),
        "encoder.embeddings.segment.weight": (config.type_vocab_size, wide),
        **norm("encoder.embeddings.norm", wide),
        **linear("encoder.embeddings.projection", h, e),
    }
    if config.options.brightmart_layout:
        del shapes["encoder.embeddings.projection.bias"]
    for layer in range(config.options.gru_layers if config.options.gru else 0):
        for part in ("input", "state"):
            shapes[f"encoder.embeddings.gru.{gru_name(part, 'weight', layer)}"] = (3 * h, h)
            shapes[f"encoder.embeddings.gru.{gru_name(part, 'bias', layer)}"] = (3 * h,)
    return shapes


def gru_name(part: str, kind: str, layer: int) -> str:
    """The name of a GRU's tensor: `input_weight` in its first layer, `input_weight_1` in its second, and so on."""
    return f"{part}_{kind}_{layer}" if layer else f"{part}_{kind}"


def attention_shapes(config: AlbertConfig, prefix: str) -> Shapes:
    """Queries, keys, values and output; with options, shared keys and values, low rank or a bias θ."""
    h, d, d_v, options = config.hidden_size, config.head_size, config.value_size, config.options
    context = d_v * config.num_attention_heads
    shapes = {
        **linear(f"{prefix}.query", config.attention_size, h),
        **linear(f"{prefix}.key", d * config.key_heads, h),
        **linear(f"{prefix}.value", d_v * config.key_heads, h),
        **linear(f"{prefix}.output", h, options.output_rank or context),
    }
    if options.output_rank:
        shapes[f"{prefix}.output_down.weight"] = (options.output_rank, context)
    if options.low_rank:
        shapes |= {f"{prefix}.low.{part}": (options.low_rank, d) for part in ("query", "key")}
        shapes |= {f"{prefix}.low.value": (options.low_rank, d_v), f"{prefix}.low.lift": (d_v, options.low_rank)}
    if options.attention_bias:
        heads = config.num_attention_heads
        relative = options.attention_bias == "relative"
        shapes[f"{prefix}.theta"] = (heads, 2 * options.relative_reach + 1) if relative else (heads,)
    return shapes


def layer_shapes(config: AlbertConfig, prefix: str, ffn_size: int = 0, ffns: int = 1) -> Shapes:
    """One set of layer weights: attention, `ffns` feed-forward parts (by default of size F), and their norms."""
    h, f = config.hidden_size, ffn_size or config.intermediate_size
    shapes = attention_shapes(config, f"{prefix}.attention") | norm(f"{prefix}.attention_norm", h)
    for part in ffn_prefixes(prefix, ffns):
        shapes |= {
            **(linear(f"{part}.ffn.gate", f, h) if config.options.gated_ffn else {}),
            **linear(f"{part}.ffn.up", f, h),
            **linear(f"{part}.ffn.down", h, f),
            **norm(f"{part}.ffn_norm", h),
        }
    return shapes


def ffn_prefixes(prefix: str, ffns: int) -> list[str]:
    """What the names of the feed-forward parts of a layer begin with: the layer's name, or with the option `ffn_groups`
    one for each part.
    """
    return [prefix] if ffns == 1 else [f"{prefix}.ffn_groups.{number}" for number in range(ffns)]


def encoder_shapes(config: AlbertConfig, pooler: bool = True) -> Shapes:
    """All tensors of the encoder, without heads."""
    shapes = embedding_shapes(config)
    if config.options.static:
        return shapes
    for group in range(config.layer_groups):
        for inner in range(config.inner_group_num):
            prefix, ffns = f"encoder.groups.{group}.{inner}", config.ffn_count(group)
            shapes |= layer_shapes(config, prefix, config.ffn_size(group), ffns)
    if config.options.pre_norm:
        shapes |= norm("encoder.output_norm", config.hidden_size)
    if pooler and config.options.classifier != "mean":
        shapes |= linear("encoder.pooler", config.hidden_size, config.hidden_size)
    return shapes


def head_shapes(config: AlbertConfig, head: str, labels: int = 2) -> Shapes:
    """The tensors of one built-in head; `labels` is the number of classes of `classify` and `tag`."""
    hidden = config.hidden_size
    if head == "mlm":
        wide = hidden if config.options.brightmart_layout else config.embedding_size
        bias: Shapes = {"heads.mlm.bias": (config.vocab_size,)}
        return linear("heads.mlm.dense", wide, hidden) | norm("heads.mlm.norm", wide) | bias
    outputs = {"sop": 2, "classify": labels, "tag": labels, "answer": 2, "choose": 1}
    return linear(f"heads.{head}.linear", outputs[head], hidden)


def heads_in(names: Iterable[str]) -> list[str]:
    """The heads in a set of tensor names, in the order of `HEADS`, then other heads by name."""
    heads = {name.split(".")[1] for name in names if name.startswith("heads.")}
    return [head for head in HEADS if head in heads] + sorted(heads - set(HEADS))


def is_custom_tensor(name: str) -> bool:
    """Whether a tensor is one of a custom head: `heads.NAME.module.…`, the parameters of a module of the user."""
    parts = name.split(".")
    return len(parts) > 3 and parts[0] == "heads" and parts[1] in CUSTOM_HEADS and parts[2] == "module"


def custom_heads(names: Iterable[str]) -> list[str]:
    """The custom heads in a set of tensor names. Their shapes are free, and a graph computes them (`head_graph.py`)."""
    return sorted({name.split(".")[1] for name in names if is_custom_tensor(name)})


def expected_shapes(config: AlbertConfig, shapes: Shapes) -> Shapes:
    """The shapes that a file with tensors of these names must have; task heads may have any number of rows."""
    expected = encoder_shapes(config, pooler="encoder.pooler.weight" in shapes)
    custom = custom_heads(shapes)
    for head in heads_in(shapes):
        shape = shapes.get(f"heads.{head}.linear.weight", ())
        if head in HEADS and head not in custom:
            expected |= head_shapes(config, head, labels=shape[0] if len(shape) == 2 else 2)
    return expected


def size(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


# Names of other programs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorName:
    """The three names of one tensor."""

    ours: str
    torch: str
    """In a PyTorch file."""
    tf: str
    """The variable in a TensorFlow checkpoint."""
    transpose: bool
    """Whether the TensorFlow array is the transpose of ours, as kernels are."""


# kind, ours, torch, tf. A `dense` has a kernel and a bias, a `norm` gamma and beta, a `table` is a bare matrix.
_Row = tuple[str, str, str, str]

_TABLES, _ZH_TABLES, _TF_TABLES = "albert.embeddings", "bert.embeddings", "bert/embeddings"
_OUR_TABLES = "encoder.embeddings"
_PROJECTION = "embedding_hidden_mapping_in"
_OURS = "encoder.groups.{g}.{i}"
_GROUP = "albert.encoder.albert_layer_groups.{g}.albert_layers.{i}"
_TF_GROUP = "bert/encoder/transformer/group_{g}/inner_group_{i}"

# Hugging Face transformers and Google's original code.
PUBLIC: list[_Row] = [
    ("table", f"{_OUR_TABLES}.word", f"{_TABLES}.word_embeddings", f"{_TF_TABLES}/word_embeddings"),
    ("table", f"{_OUR_TABLES}.position", f"{_TABLES}.position_embeddings", f"{_TF_TABLES}/position_embeddings"),
    ("table", f"{_OUR_TABLES}.segment", f"{_TABLES}.token_type_embeddings", f"{_TF_TABLES}/token_type_embeddings"),
    ("norm", f"{_OUR_TABLES}.norm", f"{_TABLES}.LayerNorm", f"{_TF_TABLES}/LayerNorm"),
    ("dense", f"{_OUR_TABLES}.projection", f"albert.encoder.{_PROJECTION}", f"bert/encoder/{_PROJECTION}"),
    ("dense", f"{_OURS}.attention.query", f"{_GROUP}.attention.query", f"{_TF_GROUP}/attention_1/self/query"),
    ("dense", f"{_OURS}.attention.key", f"{_GROUP}.attention.key", f"{_TF_GROUP}/attention_1/self/key"),
    ("dense", f"{_OURS}.attention.value", f"{_GROUP}.attention.value", f"{_TF_GROUP}/attention_1/self/value"),
    ("dense", f"{_OURS}.attention.output", f"{_GROUP}.attention.dense", f"{_TF_GROUP}/attention_1/output/dense"),
    ("norm", f"{_OURS}.attention_norm", f"{_GROUP}.attention.LayerNorm", f"{_TF_GROUP}/LayerNorm"),
    ("dense", f"{_OURS}.ffn.up", f"{_GROUP}.ffn", f"{_TF_GROUP}/ffn_1/intermediate/dense"),
    ("dense", f"{_OURS}.ffn.down", f"{_GROUP}.ffn_output", f"{_TF_GROUP}/ffn_1/intermediate/output/dense"),
    ("norm", f"{_OURS}.ffn_norm", f"{_GROUP}.full_layer_layer_norm", f"{_TF_GROUP}/LayerNorm_1"),
    ("dense", "encoder.pooler", "albert.pooler", "bert/pooler/dense"),
    ("dense", "heads.mlm.dense", "predictions.dense", "cls/predictions/transform/dense"),
    ("norm", "heads.mlm.norm", "predictions.LayerNorm", "cls/predictions/transform/LayerNorm"),
    ("bias", "heads.mlm.bias", "predictions.bias", "cls/predictions/output_bias"),
    ("output", "heads.sop.linear", "sop_classifier.classifier", "cls/seq_relationship"),
    ("output", "heads.answer.linear", "qa_outputs", "cls/squad"),
]  # fmt: skip

# One PyTorch name is used for three heads; config.json or albertkit.json of the folder identifies the head.
CLASSIFIERS = ("classify", "tag", "choose")

# The Chinese albert_zh checkpoints. Tables and the first norm have size H; the head projects to E with the matrix of
# the embedding.
_SHARED = "bert.encoder.layer_shared"
_TF_SHARED = "bert/encoder/layer_shared"
BRIGHTMART: list[_Row] = [
    ("table", f"{_OUR_TABLES}.word", f"{_ZH_TABLES}.word_embeddings", f"{_TF_TABLES}/word_embeddings"),
    ("transposed", f"{_OUR_TABLES}.projection", f"{_ZH_TABLES}.word_embeddings_2", f"{_TF_TABLES}/word_embeddings_2"),
    ("table", f"{_OUR_TABLES}.position", f"{_ZH_TABLES}.position_embeddings", f"{_TF_TABLES}/position_embeddings"),
    ("table", f"{_OUR_TABLES}.segment", f"{_ZH_TABLES}.token_type_embeddings", f"{_TF_TABLES}/token_type_embeddings"),
    ("norm", f"{_OUR_TABLES}.norm", f"{_ZH_TABLES}.LayerNorm", f"{_TF_TABLES}/LayerNorm"),
    ("dense", f"{_OURS}.attention.query", f"{_SHARED}.attention.self.query", f"{_TF_SHARED}/attention/self/query"),
    ("dense", f"{_OURS}.attention.key", f"{_SHARED}.attention.self.key", f"{_TF_SHARED}/attention/self/key"),
    ("dense", f"{_OURS}.attention.value", f"{_SHARED}.attention.self.value", f"{_TF_SHARED}/attention/self/value"),
    ("dense", f"{_OURS}.attention.output", f"{_SHARED}.attention.output.dense", f"{_TF_SHARED}/attention/output/dense"),
    ("norm", f"{_OURS}.attention_norm",
     f"{_SHARED}.attention.output.LayerNorm", f"{_TF_SHARED}/attention/output/LayerNorm"),
    ("dense", f"{_OURS}.ffn.up", f"{_SHARED}.intermediate.dense", f"{_TF_SHARED}/intermediate/dense"),
    ("dense", f"{_OURS}.ffn.down", f"{_SHARED}.output.dense", f"{_TF_SHARED}/output/dense"),
    ("norm", f"{_OURS}.ffn_norm", f"{_SHARED}.output.LayerNorm", f"{_TF_SHARED}/output/LayerNorm"),
    ("dense", "encoder.pooler", "bert.pooler.dense", "bert/pooler/dense"),
    ("dense", "heads.mlm.dense", "cls.predictions.transform.dense", "cls/predictions/transform/dense"),
    ("norm", "heads.mlm.norm", "cls.predictions.transform.LayerNorm", "cls/predictions/transform/LayerNorm"),
    ("bias", "heads.mlm.bias", "cls.predictions.bias", "cls/predictions/output_bias"),
    ("output", "heads.sop.linear", "cls.seq_relationship", "cls/seq_relationship"),
]  # fmt: skip

# kind → (suffix of ours and of torch, suffix of tf, transposed in tf)
_PARTS: dict[str, list[tuple[str, str, bool]]] = {
    "table": [(".weight", "", False)],
    "transposed": [(".weight", "", True)],
    "bias": [("", "", False)],
    "norm": [(".weight", "/gamma", False), (".bias", "/beta", False)],
    "dense": [(".weight", "/kernel", True), (".bias", "/bias", False)],
    "output": [(".weight", "/output_weights", False), (".bias", "/output_bias", False)],
}


def tensor_names(config: AlbertConfig, rows: list[_Row] = PUBLIC, classifier: str | None = None) -> list[TensorName]:
    """The names of all tensors of a config; `classifier` is the head that has the public name `classifier`.

    Artifacts always use the public names, with any options. `BRIGHTMART` is for reading files of other projects.
    """
    if classifier is not None:
        rows = [*rows, ("output", f"heads.{classifier}.linear", "classifier", "classifier")]
    out: list[TensorName] = []
    for kind, ours, torch, tf in rows:
        repeated = "{g}" in ours
        for g in range(config.layer_groups if repeated else 1):
            for i in range(config.inner_group_num if repeated else 1):
                a, b, c = (name.format(g=g, i=i) for name in (ours, torch, tf))
                out += [TensorName(a + part, b + part, c + tf_part, swap) for part, tf_part, swap in _PARTS[kind]]
    return out
