"""An honest estimate of what a shape costs, before it is built: parameters, operations, bytes, activation memory.

In: an `AlbertConfig`, a length and a batch size. Out: `ShapeCost`. Counts come from the table in `weights.py`; the formulas for
operations and memory stand beside their numbers. No torch; nothing is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.weights import Shapes, embedding_shapes, encoder_shapes, head_shapes, layer_shapes, size

BLOCK = 32  # weights that share one scale at 4 bits


@dataclass(frozen=True)
class ShapeCost:
    """What a shape costs."""

    parameters: dict[str, int]
    """By part; `total` is the encoder with its pooler, `heads` come on top."""
    unshared: int
    """What the same encoder would hold if every layer had weights of its own and the embedding were not factorised."""
    operations: dict[str, float]
    """Multiplications and additions for one token in a text of `length` tokens, by part."""
    bytes: dict[str, int]
    """Size of the encoder's weights by number format."""
    memory: dict[str, int]
    """Bytes besides the weights for `batch` texts of `length` tokens, float32."""
    length: int
    batch: int


def shape_cost(config: AlbertConfig, length: int = 128, batch: int = 32) -> ShapeCost:
    """Work out what a shape costs for `batch` texts of `length` tokens."""
    if not 1 <= length <= config.max_position_embeddings:
        raise AlbertkitError(f"length is {length}; this shape reads 1 to {config.max_position_embeddings} tokens")
    if not 1 <= batch <= 1_000_000:
        raise AlbertkitError(f"batch is {batch}; choose 1 to 1,000,000 texts")
    return ShapeCost(
        parameters=parameter_counts(config),
        unshared=unshared_parameters(config),
        operations=operations(config, length),
        bytes=weight_bytes(encoder_shapes(config)),
        memory=activation_memory(config, length, batch),
        length=length,
        batch=batch,
    )


def parameter_counts(config: AlbertConfig) -> dict[str, int]:
    """Parameters by part."""
    embedding = embedding_shapes(config)
    projection = {name: shape for name, shape in embedding.items() if ".projection." in name}
    front = {name: shape for name, shape in embedding.items() if ".gru." in name}
    tables = size(embedding) - size(projection) - size(front) - config.vocab_size * config.embedding_size
    layer = layer_shapes(config, "layer")
    attention = {name: shape for name, shape in layer.items() if "attention" in name}
    copies = 0 if config.options.static else config.num_hidden_groups * config.inner_group_num
    total = size(encoder_shapes(config))
    return {
        "word embedding": config.vocab_size * config.embedding_size,
        "position, segment, norm": tables,
        "projection E→H": size(projection),
        **({"GRU": size(front)} if front else {}),
        "shared attention": size(attention) * copies,
        "shared feed-forward": (size(layer) - size(attention)) * copies,
        "pooler": total - size(encoder_shapes(config, pooler=False)),
        "total": total,
        "heads (masked word, order)": size(head_shapes(config, "mlm")) + size(head_shapes(config, "sop")),
    }


def unshared_parameters(config: AlbertConfig) -> int:
    """BERT of the same shape: V·H embedding, a layer's weights L times."""
    if config.options.static:
        return size(encoder_shapes(config))
    whole = config.replace(embedding_size=config.hidden_size)
    layers = size(layer_shapes(config, "layer")) * config.num_hidden_layers * config.inner_group_num
    tables = {n: s for n, s in embedding_shapes(whole).items() if ".projection." not in n}
    return size(tables) + layers + size(encoder_shapes(config)) - size(encoder_shapes(config, pooler=False))


def operations(config: AlbertConfig, length: int) -> dict[str, float]:
    """A matrix of r×c costs 2·r·c a token; attention over S tokens costs 4·S·A a token and layer.

    With options: queries and contexts are heads · d_a wide at low rank, since its matrices are multiplied into those around them once for all
    tokens; keys and values are one head wide where heads share them. In a window, beyond three of them, S is 3 · window + 1, one for each key of a block, and one
    more for the first token's own row. θ costs one addition for each score, a GRU 12·H² a token.
    """
    h, f, e = config.hidden_size, config.intermediate_size, config.embedding_size
    if config.options.static:
        return {"mean of vectors": 1.0 * h, "total": 1.0 * h}
    a, few = config.score_size * config.num_attention_heads, config.score_size * config.key_heads
    uses, inner = config.num_hidden_layers * config.inner_group_num, config.inner_group_num
    seen = inner * sum(attended_keys(config, layer, length) for layer in range(config.num_hidden_layers))
    parts = {
        "projection E→H": 2.0 * e * h,
        **({"GRU": 2.0 * 6 * h * h} if config.options.gru else {}),
        "attention matrices": 2.0 * (2 * h * a + 2 * h * few) * uses,
        "attention over the text": 4.0 * a * seen,
        **({"attention bias": 1.0 * config.num_attention_heads * seen} if config.options.attention_bias else {}),
        "feed-forward": 2.0 * 2 * h * f * uses,
        **({"mean of tokens": 1.0 * h} if config.options.classifier else {"pooler": 2.0 * h * h / length}),
    }
    return {**parts, "total": sum(parts.values())}


def attended_keys(config: AlbertConfig, layer: int, length: int) -> int:
    """Keys that are computed for each token of a text, in layer number `layer`."""
    window = config.options.window
    return 3 * window + 2 if config.options.local(layer) and length > 3 * window else length


def weight_bytes(shapes: Shapes) -> dict[str, int]:
    """int8: one byte a weight and a float scale a row. 4-bit: half a byte and a float scale for each block of 32.

    Vectors (biases, norms) and the small matrices of the options stay float32 in both.
    """
    small = {name: shape for name, shape in shapes.items() if len(shape) == 1 or ".low." in name or ".theta" in name}
    matrices = [shape for name, shape in shapes.items() if name not in small]
    vectors = 4 * size(small)
    blocks = [rows * -(-columns // BLOCK) for rows, columns in matrices]
    return {
        "float32": 4 * size(shapes),
        "float16": 2 * size(shapes),
        "int8": sum(rows * columns + 4 * rows for rows, columns in matrices) + vectors,
        "4-bit": sum(n * (BLOCK // 2 + 4) for n in blocks) + vectors,
    }


def activation_memory(config: AlbertConfig, length: int, batch: int) -> dict[str, int]:
    """Activations, float32, beside the weights.

    Inference holds the widest moment of one layer: input and sum, with either queries, keys, values and context (4·H) or the
    feed-forward width twice (H read as A, the width of all heads, for these four). Training keeps, for each use of a layer and each token, what the backward pass reads:
    its input, Q, K and V, the context, both norms' inputs, the first norm's output (8·H), the feed-forward before
    and after the activation (2·F), a number a head and four for the norms. With a checkpoint per use it keeps the inputs alone,
    and one layer's worth while it recomputes.
    """
    h, f = config.hidden_size, config.intermediate_size
    a = config.score_size * (config.num_attention_heads + config.key_heads) / 2  # queries and context, keys and values
    tokens = length * batch
    uses = config.num_hidden_layers * config.inner_group_num
    per_use = int(4 * h + 4 * a + 2 * f + config.num_attention_heads + 4)
    front = 7 * h if config.options.gru else 0  # its input, three gates, two kinds of new state, its state
    weights = size(encoder_shapes(config))
    if config.options.static:
        return {"inference": 4 * tokens * h}
    return {
        "inference": int(4 * tokens * (2 * h + max(4 * a, 2 * f))),
        "training": 4 * tokens * (uses * per_use + front),
        "training, checkpointed": 4 * tokens * (uses * h + per_use + front),
        "gradients and AdamW state": 4 * 3 * weights,
    }
