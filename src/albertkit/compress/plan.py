"""An honest estimate of what a shape costs, before it is built: parameters, operations, bytes, activation memory.

In: an `AlbertConfig`, a length and a batch size. Out: `Plan`. Counts come from the table in `weights.py`; the formulas for
operations and memory stand beside their numbers. No torch; nothing is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.weights import Shapes, embedding_shapes, encoder_shapes, head_shapes, layer_shapes, size

BLOCK = 32  # weights that share one scale at 4 bits


@dataclass(frozen=True)
class Plan:
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


def plan(config: AlbertConfig, length: int = 128, batch: int = 32) -> Plan:
    """Work out what a shape costs for `batch` texts of `length` tokens."""
    if not 1 <= length <= config.max_position_embeddings:
        raise AlbertkitError(f"length is {length}; this shape reads 1 to {config.max_position_embeddings} tokens")
    if not 1 <= batch <= 1_000_000:
        raise AlbertkitError(f"batch is {batch}; choose 1 to 1,000,000 texts")
    return Plan(
        parameters=parameters(config),
        unshared=unshared(config),
        operations=operations(config, length),
        bytes=weight_bytes(encoder_shapes(config)),
        memory=memory(config, length, batch),
        length=length,
        batch=batch,
    )


def parameters(config: AlbertConfig) -> dict[str, int]:
    """Parameters by part."""
    embedding = embedding_shapes(config)
    projection = {name: shape for name, shape in embedding.items() if ".projection." in name}
    layer = layer_shapes(config, "layer")
    attention = {name: shape for name, shape in layer.items() if "attention" in name}
    copies = 0 if config.options.static else config.num_hidden_groups * config.inner_group_num
    total = size(encoder_shapes(config))
    return {
        "word embedding": config.vocab_size * config.embedding_size,
        "position, segment, norm": size(embedding) - size(projection) - config.vocab_size * config.embedding_size,
        "projection E→H": size(projection),
        "shared attention": size(attention) * copies,
        "shared feed-forward": (size(layer) - size(attention)) * copies,
        "pooler": total - size(encoder_shapes(config, pooler=False)),
        "total": total,
        "heads (masked word, order)": size(head_shapes(config, "mlm")) + size(head_shapes(config, "sop")),
    }


def unshared(config: AlbertConfig) -> int:
    """BERT of the same shape: V·H embedding, a layer's weights L times."""
    if config.options.static:
        return size(encoder_shapes(config))
    whole = config.replace(embedding_size=config.hidden_size)
    layers = size(layer_shapes(config, "layer")) * config.num_hidden_layers * config.inner_group_num
    tables = {n: s for n, s in embedding_shapes(whole).items() if ".projection." not in n}
    return size(tables) + layers + size(encoder_shapes(config)) - size(encoder_shapes(config, pooler=False))


def operations(config: AlbertConfig, length: int) -> dict[str, float]:
    """A matrix of r×c costs 2·r·c a token; attention over S tokens costs 4·S·A a token and layer."""
    h, f, e, a = config.hidden_size, config.intermediate_size, config.embedding_size, config.attention_size
    if config.options.static:
        return {"mean of vectors": 1.0 * h, "total": 1.0 * h}
    uses = config.num_hidden_layers * config.inner_group_num
    parts = {
        "projection E→H": 2.0 * e * h,
        "attention matrices": 2.0 * 4 * h * a * uses,
        "attention over the text": 4.0 * length * a * uses,
        "feed-forward": 2.0 * 2 * h * f * uses,
        "pooler": 2.0 * h * h / length,
    }
    return {**parts, "total": sum(parts.values())}


def weight_bytes(shapes: Shapes) -> dict[str, int]:
    """int8: one byte a weight and a float scale a row. 4-bit: half a byte and a float scale for each block of 32.

    Vectors (biases, norms) stay float32 in both.
    """
    matrices = [shape for shape in shapes.values() if len(shape) == 2]
    vectors = 4 * size({str(i): s for i, s in enumerate(s for s in shapes.values() if len(s) == 1)})
    blocks = [rows * -(-columns // BLOCK) for rows, columns in matrices]
    return {
        "float32": 4 * size(shapes),
        "float16": 2 * size(shapes),
        "int8": sum(rows * columns + 4 * rows for rows, columns in matrices) + vectors,
        "4-bit": sum(n * (BLOCK // 2 + 4) for n in blocks) + vectors,
    }


def memory(config: AlbertConfig, length: int, batch: int) -> dict[str, int]:
    """Activations, float32, beside the weights.

    Inference holds the widest moment of one layer: input and sum, with either queries, keys, values and context (4·H) or the
    feed-forward width twice (H read as A, the width of all heads, for these four). Training keeps, for each use of a layer and each token, what the backward pass reads:
    its input, Q, K and V, the context, both norms' inputs, the first norm's output (8·H), the feed-forward before
    and after the activation (2·F), a number a head and four for the norms. With a checkpoint per use it keeps the inputs alone,
    and one layer's worth while it recomputes.
    """
    h, f, a = config.hidden_size, config.intermediate_size, config.attention_size
    tokens = length * batch
    uses = config.num_hidden_layers * config.inner_group_num
    per_use = 4 * h + 4 * a + 2 * f + config.num_attention_heads + 4
    weights = size(encoder_shapes(config))
    if config.options.static:
        return {"inference": 4 * tokens * h}
    return {
        "inference": 4 * tokens * (2 * h + max(4 * a, 2 * f)),
        "training": 4 * tokens * uses * per_use,
        "training, checkpointed": 4 * tokens * (uses * h + per_use),
        "gradients and AdamW state": 4 * 3 * weights,
    }
