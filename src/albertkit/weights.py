"""The table of a model's tensors: every name, its shape, and the part of the model it belongs to.

In: an `AlbertConfig` and the heads on top. Out: `{name: shape}`, the single place where shapes are written down.
The torch model has exactly these parameters (tested), `artifact.py` checks files against them, and the planner
counts them. Names here are the names of the torch `state_dict`; `tensor_names.py` maps them to everybody else's.
"""

from __future__ import annotations

from albertkit.config import AlbertConfig

Shapes = dict[str, tuple[int, ...]]


def linear(name: str, outputs: int, inputs: int) -> Shapes:
    """A dense layer, stored as torch stores it: (outputs, inputs)."""
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
    if config.options.gru:
        for part in ("input", "state"):
            shapes[f"encoder.embeddings.gru.{part}_weight"] = (3 * h, h)
            shapes[f"encoder.embeddings.gru.{part}_bias"] = (3 * h,)
    return shapes


def attention_shapes(config: AlbertConfig, prefix: str) -> Shapes:
    """Queries, keys, values and output; with options, shared keys and values, low rank or a bias θ."""
    h, a, d, options = config.hidden_size, config.attention_size, config.head_size, config.options
    few = d * config.key_heads
    shapes = {
        **linear(f"{prefix}.query", a, h),
        **linear(f"{prefix}.key", few, h),
        **linear(f"{prefix}.value", few, h),
        **linear(f"{prefix}.output", h, a),
    }
    if options.low_rank:
        shapes |= {f"{prefix}.low.{part}": (options.low_rank, d) for part in ("query", "key", "value")}
        shapes[f"{prefix}.low.lift"] = (d, options.low_rank)
    if options.attention_bias:
        heads = config.num_attention_heads
        relative = options.attention_bias == "relative"
        shapes[f"{prefix}.theta"] = (heads, 2 * options.relative_reach + 1) if relative else (heads,)
    return shapes


def layer_shapes(config: AlbertConfig, prefix: str) -> Shapes:
    """One set of layer weights: attention, feed-forward and their two norms."""
    h, f = config.hidden_size, config.intermediate_size
    return {
        **attention_shapes(config, f"{prefix}.attention"),
        **norm(f"{prefix}.attention_norm", h),
        **linear(f"{prefix}.ffn.up", f, h),
        **linear(f"{prefix}.ffn.down", h, f),
        **norm(f"{prefix}.ffn_norm", h),
    }


def encoder_shapes(config: AlbertConfig, pooler: bool = True) -> Shapes:
    """Everything below the heads."""
    shapes = embedding_shapes(config)
    if config.options.static:
        return shapes
    for group in range(config.num_hidden_groups):
        for inner in range(config.inner_group_num):
            shapes |= layer_shapes(config, f"encoder.groups.{group}.{inner}")
    if pooler and config.options.classifier != "mean":
        shapes |= linear("encoder.pooler", config.hidden_size, config.hidden_size)
    return shapes


def head_shapes(config: AlbertConfig, head: str, labels: int = 2) -> Shapes:
    """The tensors of one built-in head; `labels` counts the classes of `classify` and `tag`."""
    h, e = config.hidden_size, config.embedding_size
    wide = h if config.options.brightmart_layout else e
    table: dict[str, Shapes] = {
        "mlm": {
            **linear("heads.mlm.dense", wide, h),
            **norm("heads.mlm.norm", wide),
            "heads.mlm.bias": (config.vocab_size,),
        },
        "sop": linear("heads.sop.linear", 2, h),
        "classify": linear("heads.classify.linear", labels, h),
        "tag": linear("heads.tag.linear", labels, h),
        "answer": linear("heads.answer.linear", 2, h),
        "choose": linear("heads.choose.linear", 1, h),
    }
    return table[head]


def heads_in(names: set[str] | frozenset[str]) -> list[str]:
    """The heads a set of tensor names holds, in the order of `HEADS`, then foreign ones by name."""
    found = {name.split(".")[1] for name in names if name.startswith("heads.")}
    return [head for head in HEADS if head in found] + sorted(found - set(HEADS))


HEADS = ("mlm", "sop", "classify", "tag", "answer", "choose")


def size(shapes: Shapes) -> int:
    """How many numbers the tensors hold."""
    total = 0
    for shape in shapes.values():
        count = 1
        for n in shape:
            count *= n
        total += count
    return total
