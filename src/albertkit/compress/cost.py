"""The cost of a shape, computed without building it, and the smaller variants of a shape.

In: an `AlbertConfig`, a length and a batch size. Out: `ShapeCost` and `PlanCandidate`s. Counts come from the tables in
`weights.py`. `benchmark.py` has the measurements, and `planner.py` combines both. No torch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from albertkit.config import PRESETS, AlbertConfig, Options, preset
from albertkit.errors import AlbertkitError
from albertkit.quantized import BLOCK, SMOOTHED, QuantizedMatrix, is_quantizable, uses_four_bits
from albertkit.weights import Shapes, embedding_shapes, encoder_shapes, head_shapes, layer_shapes, size

FORMATS = {32: "float32", 8: "int8", 4: "4-bit"}
DEPTH_SHARES = (1.0, 0.75, 0.5, 1 / 3, 0.25)
PRUNING_SHARES = ((1.0, 1.0), (1.0, 0.5), (2 / 3, 0.5), (0.5, 0.25))  # shares of heads and of feed-forward columns
ROUNDING_LOSS = {32: 0.0, 8: 0.1, 4: 0.8}  # estimated, in the unit of `PlanCandidate.loss`
SESSION_BYTES = 10e6  # overhead of onnxruntime
STATIC_DIM, STATIC_LENGTH = 256, 8192  # width of a static vector; tokens averaged at once
MULTIPLE = 16  # a share of many columns is rounded to a multiple of this, for speed

Amount = int | float  # a number to keep, or a share as a float above 0 and up to 1


@dataclass(frozen=True)
class ShapeCost:
    """The cost of a shape: parameters, operations, bytes."""

    parameters: dict[str, int]
    """By part; `total` is the encoder with its pooler, without heads."""
    unshared: int
    """Parameters of the same encoder if layers shared no weights and the embedding were not factorised."""
    operations: dict[str, float]
    """Multiplications and additions per token in a text of `length` tokens, by part."""
    bytes: dict[str, int]
    """Size of the weights by number format: of the encoder, and of the heads if they were passed."""
    memory: dict[str, int]
    """Bytes besides the weights for `batch` texts of `length` tokens, float32."""
    length: int
    batch: int


def shape_cost(config: AlbertConfig, length: int = 128, batch: int = 32, heads: Shapes | None = None) -> ShapeCost:
    """The cost of a shape for `batch` texts of `length` tokens.

    heads: the tensors besides the encoder's that are stored with it (`stored_heads`); by default only a pooler.

    >>> from albertkit import preset, shape_cost
    >>> shape_cost(preset("base")).parameters["total"]
    11683584
    """
    if not 1 <= length <= config.max_position_embeddings:
        raise AlbertkitError(
            f"length={length} is not available: this shape supports 1 to {config.max_position_embeddings} tokens. "
            "Pass a length in this range."
        )
    if not 1 <= batch <= 1_000_000:
        raise AlbertkitError(f"batch={batch} is out of range. Pass 1 to 1,000,000.")
    return ShapeCost(
        parameters=parameter_counts(config),
        unshared=unshared_parameters(config),
        operations=operations(config, length),
        bytes=weight_bytes(stored_shapes(config, heads)),
        memory=activation_memory(config, length, batch),
        length=length,
        batch=batch,
    )


def parameter_counts(config: AlbertConfig) -> dict[str, int]:
    embedding = embedding_shapes(config)
    projection = {name: shape for name, shape in embedding.items() if ".projection." in name}
    gru = {name: shape for name, shape in embedding.items() if ".gru." in name}
    tables = size(embedding) - size(projection) - size(gru) - config.vocab_size * config.embedding_size
    core = config.replace(options=replace(config.options, prelude_layers=0, coda_layers=0, outer_intermediate_size=0))
    layers = stored_layers(core)
    attention = {name: shape for name, shape in layers.items() if "attention" in name}
    outer = size(stored_layers(config)) - size(layers)
    total = size(encoder_shapes(config))
    return {
        "word embedding": config.vocab_size * config.embedding_size,
        "position, segment, norm": tables,
        "projection E→H": size(projection),
        **({"GRU": size(gru)} if gru else {}),
        **({"prelude and coda": outer} if outer else {}),
        "shared attention": size(attention),
        "shared feed-forward": size(layers) - size(attention),
        **({"output norm": 2 * config.hidden_size} if config.options.pre_norm else {}),
        "pooler": total - size(encoder_shapes(config, pooler=False)),
        "total": total,
        "heads (masked word, order)": size(head_shapes(config, "mlm")) + size(head_shapes(config, "sop")),
    }


def stored_layers(config: AlbertConfig) -> Shapes:
    """The tensors of all layers, each stored once."""
    return {name: shape for name, shape in encoder_shapes(config).items() if name.startswith("encoder.groups.")}


def ffn_sizes(config: AlbertConfig) -> list[int]:
    """The size of the feed-forward part of each layer that is applied."""
    return [config.ffn_size(config.group_of(layer)) for layer in range(config.num_hidden_layers)]


def unshared_parameters(config: AlbertConfig) -> int:
    """Parameters of BERT in the same shape: a V·H embedding, and the weights of a layer L times."""
    if config.options.static:
        return size(encoder_shapes(config))
    unfactorized = config.replace(embedding_size=config.hidden_size)
    layers = sum(size(layer_shapes(config, "layer", wide)) for wide in ffn_sizes(config)) * config.inner_group_num
    tables = {n: s for n, s in embedding_shapes(unfactorized).items() if ".projection." not in n}
    return size(tables) + layers + size(encoder_shapes(config)) - size(encoder_shapes(config, pooler=False))


def operations(config: AlbertConfig, length: int) -> dict[str, float]:
    """A matrix of r×c costs 2·r·c per token; attention over S tokens costs 4·S·A per token and layer.

    With options: at low rank, queries and contexts have width heads · d_a, because the low-rank matrices are multiplied
    into their neighbours once. Shared keys and values have the width of one head. With a window and texts longer than
    three windows, S is 3 · window + 1 for the keys of a block, and one more for the row of the first token. θ costs one
    addition per score, a GRU 12·H² per token and layer. Values of size d_v and an output of rank r change the widths of
    the context and of the output: heads · d_v, and r · (heads · d_v + H) instead of heads · d_v · H. A gate costs one
    more matrix of H×F.
    """
    h, e = config.hidden_size, config.embedding_size
    if config.options.static:
        return {"mean of vectors": 1.0 * h, "total": 1.0 * h}
    queries, context = (width * config.num_attention_heads for width in (config.score_size, config.context_size))
    keys = (config.score_size + config.context_size) * config.key_heads  # keys and values
    rank = config.options.output_rank
    output = rank * (context + h) if rank else context * h
    uses = config.num_hidden_layers * config.inner_group_num
    window = config.options.window
    keys_by_layer = [
        3 * window + 2 if config.options.local(layer) and length > 3 * window else length
        for layer in range(config.num_hidden_layers)
    ]
    attended = config.inner_group_num * sum(keys_by_layer)
    parts = {
        "projection E→H": 2.0 * e * h,
        **({"GRU": 2.0 * 6 * h * h * config.options.gru_layers} if config.options.gru else {}),
        "attention matrices": 2.0 * (h * (queries + keys) + output) * uses,
        "attention over the text": 2.0 * (queries + context) * attended,
        **({"attention bias": 1.0 * config.num_attention_heads * attended} if config.options.attention_bias else {}),
        "feed-forward": 2.0 * config.ffn_matrices * h * sum(ffn_sizes(config)) * config.inner_group_num,
        **({"mean of tokens": 1.0 * h} if config.options.classifier else {"pooler": 2.0 * h * h / length}),
    }
    return {**parts, "total": sum(parts.values())}


def stored_heads(weights: Mapping[str, np.ndarray | QuantizedMatrix]) -> Shapes:
    """The shapes of a model's tensors besides embeddings and layers: its pooler and heads."""
    arrays = {name: w.values if isinstance(w, QuantizedMatrix) else w for name, w in weights.items()}
    return {name: array.shape for name, array in arrays.items() if name.startswith(("encoder.pooler.", "heads."))}


def stored_shapes(config: AlbertConfig, heads: Shapes | None = None) -> Shapes:
    """All tensors of a model: its encoder, and `heads` (`stored_heads`); by default a pooler and no heads."""
    return encoder_shapes(config) if heads is None else encoder_shapes(config, pooler=False) | heads


def weight_bytes(shapes: Shapes) -> dict[str, int]:
    """The bytes that `quantized.quantize_weights` stores for tensors of these names, by number format.

    int8: one byte per weight, one float scale per row and, for most matrices of a layer, one float per column. 4-bit:
    half a byte per weight and a byte per block of 32, in layers and pooler only: embeddings stay at 8 bits. Vectors,
    task heads and the small matrices of the options stay float32 in both.
    """
    sizes = {"float32": 4 * size(shapes), "float16": 2 * size(shapes), "int8": 0, "4-bit": 0}
    for name, shape in shapes.items():
        floats = 4 * math.prod(shape)
        if not is_quantizable(name, np.broadcast_to(np.float32(0), shape)):
            sizes["int8"] += floats
            sizes["4-bit"] += floats
            continue
        rows, columns = shape
        factors = 4 * rows + (4 * columns if name.removesuffix(".weight").endswith(SMOOTHED) else 0)
        sizes["int8"] += rows * columns + factors
        packed = rows * -(-columns // BLOCK) * (BLOCK // 2 + 1)
        sizes["4-bit"] += (packed if uses_four_bits(name) else rows * columns) + factors
    return sizes


def activation_memory(config: AlbertConfig, length: int, batch: int) -> dict[str, int]:
    """Bytes of activations, float32, besides the weights.

    Inference needs the peak of one layer: input and sum, with either queries, keys, values and context (4·A, the width
    of all heads) or the feed-forward width twice. Training stores, for each use of a layer and each token, the tensors
    of the backward pass: its input, Q, K and V, the context, the inputs of both norms, the output of the first norm
    (8·H), the feed-forward before and after the activation (2·F; with a gate twice this), one number per head and four
    for the norms. With one checkpoint per use it stores the inputs only, and one layer while it recomputes.
    """
    h, wide = config.hidden_size, [(4 if config.options.gated_ffn else 2) * f for f in ffn_sizes(config)]
    heads = config.num_attention_heads + config.key_heads
    attended = (config.score_size + config.context_size) * heads  # queries and context, keys and values
    tokens = length * batch
    uses = config.num_hidden_layers * config.inner_group_num
    per_use = 4 * h + attended + config.options.output_rank + config.num_attention_heads + 4
    # input, three gates, two kinds of new state, state
    gru = 7 * h * config.options.gru_layers if config.options.gru else 0
    weights = size(encoder_shapes(config))
    if config.options.static:
        return {"inference": 4 * tokens * h}
    return {
        "inference": 4 * tokens * (2 * h + max(attended, *wide)),
        "training": 4 * tokens * (uses * per_use + sum(wide) * config.inner_group_num + gru),
        "training, checkpointed": 4 * tokens * (uses * h + per_use + max(wide) + gru),
        "gradients and AdamW state": 4 * 3 * weights,
    }


# Variants ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanCandidate:
    """A shape in a number format: a smaller variant of another shape."""

    shape: str
    config: AlbertConfig
    """As it would be stored."""
    bits: int
    full: AlbertConfig
    """The full shape."""
    loss: float
    """A rough estimate of the loss of quality, for ranking; about 1 for half of the operations."""
    heads: Shapes | None = None
    """The pooler and heads that are stored with it (`stored_heads`)."""

    @property
    def is_static(self) -> bool:
        """Whether it is a static model, without layers."""
        return self.config.options.static

    @property
    def name(self) -> str:
        """A short description."""
        if self.is_static:
            return f"{self.shape}, static, {self.config.hidden_size} numbers"
        layers = self.config.num_hidden_layers
        parts = [self.shape, FORMATS[self.bits], f"{layers} layer{'s' if layers > 1 else ''}"]
        if self.config.num_attention_heads != self.full.num_attention_heads:
            parts.append(f"{self.config.num_attention_heads} of {self.full.num_attention_heads} heads")
        if self.config.intermediate_size != self.full.intermediate_size:
            parts.append(f"FFN {self.config.intermediate_size}")
        return ", ".join(parts)

    @functools.cached_property
    def file_bytes(self) -> int:
        """Bytes of its weights on disk."""
        shapes = encoder_shapes(self.config) if self.is_static else stored_shapes(self.config, self.heads)
        return weight_bytes(shapes)[FORMATS[self.bits]]

    def memory(self, length: int, tokenizer_bytes: float) -> float:
        """Bytes it adds to a process. onnxruntime copies each weight, and the matrices of layers twice."""
        kind = "float32" if self.bits == 32 else "int8"
        weights = weight_bytes(encoder_shapes(self.config))[kind]
        if self.is_static:
            return tokenizer_bytes + weights
        layers = weight_bytes(stored_layers(self.config))[kind]
        activations = activation_memory(self.config, min(length, self.config.max_position_embeddings), 1)["inference"]
        return tokenizer_bytes + 2 * weights + layers + activations + SESSION_BYTES


def shape_candidates(name: str, config: AlbertConfig) -> list[PlanCandidate]:
    """For a shape without weights: the shape and all cheaper presets, at every depth and in all formats."""
    shapes = {name: config} | {other: preset(other) for other in PRESETS if other != name and not other.endswith("-zh")}
    plans = []
    for other, shape in shapes.items():
        if _total_operations(shape) <= _total_operations(config):
            for depth in DEPTH_SHARES:
                smaller = _shallower(shape, depth)
                loss = math.log2(_total_operations(config) / _total_operations(smaller))
                plans += [PlanCandidate(other, smaller, bits, shape, loss + ROUNDING_LOSS[bits]) for bits in FORMATS]
    return _distinct(plans)


def model_candidates(
    name: str,
    config: AlbertConfig,
    quality: Mapping[int, float] | None = None,
    static: bool = True,
    heads: Shapes | None = None,
) -> list[PlanCandidate]:
    """For a model with weights: its depths, prunings and formats, and its static model.

    heads: the tensors besides the encoder's that are stored with it (`stored_heads`).
    quality: by depth, the agreement of the output with that of all layers, which is low at untrained depths.
    static: False for a model with a task, which a static model cannot replace.
    """
    plans = []
    for depth in DEPTH_SHARES:
        shallow = _shallower(config, depth)
        layers = shallow.num_hidden_layers
        depth_loss = math.log2(config.num_hidden_layers / layers) if quality is None else 8 * (1 - quality[layers])
        for share, ffn in PRUNING_SHARES:
            if config.options.shared_heads or config.options.attention_bias:
                share = 1.0  # such heads cannot be removed (`prune.py`)
            if config.options.outer_intermediate_size:
                ffn = 1.0
            pruned = pruned_config(shallow, share, ffn)
            loss = depth_loss + 0.5 * math.log2(_total_operations(shallow) / _total_operations(pruned))
            plans += [PlanCandidate(name, pruned, bits, config, loss + ROUNDING_LOSS[bits], heads) for bits in FORMATS]
    if static:
        table = static_config(config, config.vocab_size, min(STATIC_DIM, config.hidden_size))
        plans.append(PlanCandidate(name, table, 32, config, 9.0))
    return _distinct(plans)


def static_config(config: AlbertConfig, vocab_size: int, dim: int) -> AlbertConfig:
    """The config of a static model; the sizes of layers are placeholders."""
    return AlbertConfig(
        vocab_size=vocab_size,
        embedding_size=dim,
        hidden_size=dim,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=1,
        max_position_embeddings=STATIC_LENGTH,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        options=Options(static=True),
    )


def depths_below(config: AlbertConfig) -> list[int]:
    """The candidate depths of a model, the full depth last."""
    return sorted({_shallower(config, share).num_hidden_layers for share in DEPTH_SHARES})


def resolve_count(amount: Amount | None, total: int, what: str) -> int:
    """The number of heads or columns to keep, out of `total`."""
    if amount is None:
        return total
    number = amount
    if isinstance(amount, float):
        if not 0 < amount <= 1:
            raise AlbertkitError(
                f"{what}={amount} is not a share: a share is above 0 and at most 1. Pass a share, or a whole number."
            )
        number = max(1, round(total * amount))
        if total >= 8 * MULTIPLE:
            number = min(total, max(MULTIPLE, round(number / MULTIPLE) * MULTIPLE))
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= total:
        raise AlbertkitError(f"{what}={amount} is out of range: this model has {total}. Pass 1 to {total}, or a share.")
    return number


def _total_operations(config: AlbertConfig) -> float:
    return operations(config, 64)["total"]


def pruned_config(config: AlbertConfig, heads: Amount | None, ffn: Amount | None) -> AlbertConfig:
    """A shape with fewer heads and feed-forward columns."""
    options, head_count = config.options, resolve_count(heads, config.num_attention_heads, "heads")
    if head_count != config.num_attention_heads:
        options = replace(options, head_size=config.head_size)
    columns = resolve_count(ffn, config.intermediate_size, "ffn")
    return config.replace(num_attention_heads=head_count, intermediate_size=columns, options=options)


def _shallower(config: AlbertConfig, share: float) -> AlbertConfig:
    """A shape with a share of its layers; with several groups, all of them."""
    if config.num_hidden_groups > 1 or config.options.ffn_groups:
        return config
    return config.replace(num_hidden_layers=max(config.layer_groups, round(config.num_hidden_layers * share)))


def _distinct(candidates: Sequence[PlanCandidate]) -> list[PlanCandidate]:
    return list({(c.name, c.bits): c for c in candidates}.values())
