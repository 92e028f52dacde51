"""The encoder, top to bottom: embeddings at E, projection to H, one shared layer applied L times, the pooler.

In: a `Batch`. Out: an `EncoderOutput`. Post-LN, or pre-LN as an option; dropout as in the original code: after the
embeddings, on the attention weights, after the attention output and after the feed-forward output. Before this file:
`packed_batch.py`, and `optional_modules.py` with the options beyond canonical ALBERT. After it: `albert_model.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.model.attention import Attention
from albertkit.model.optional_modules import BrightmartEmbeddings, ConfigurableAttention, make_gru, make_norm
from albertkit.model.packed_batch import Batch

ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class EncoderOutput:
    """The result of the encoder for a batch."""

    hidden: Tensor
    """Last hidden states, (tokens, H); with `first_only`, of the first tokens only, (texts, H)."""
    pooled: Tensor | None
    """tanh of a dense layer over each text's first token, (texts, H); None for an encoder without pooler."""
    layers: tuple[Tensor, ...]
    """With `keep_layers`, the embeddings, then the result at each depth: L + 1 tensors of (tokens, H)."""
    batch: Batch
    word_table: Tensor
    """The word embedding table (V, E), which the MLM head shares."""
    projection: Tensor
    """The matrix from E to H, (H, E)."""


class Embeddings(nn.Module):
    """Word, position and segment tables at size E, their sum normalised, then projected to H."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        e = config.embedding_size
        self.word = nn.Embedding(config.vocab_size, e)
        self.position = nn.Embedding(config.max_position_embeddings, e)
        self.segment = nn.Embedding(config.type_vocab_size, e)
        self.norm = make_norm(config, e)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.projection = nn.Linear(e, config.hidden_size)
        self.scale = e**0.5 if config.options.scale_embedding else 1.0
        self.gru = make_gru(config)

    def forward(self, batch: Batch) -> Tensor:
        words = batch.words(self.word)
        words = words * self.scale if self.scale != 1.0 else words
        summed = words + self.segment(batch.segments) + self.position(batch.positions)
        out: Tensor = self.projection(self.dropout(self.norm(summed)))
        return out if self.gru is None else self.gru(out, batch)


class FeedForward(nn.Module):
    """Two dense layers with the activation between them, then dropout (which some ports of ALBERT lack).

    With the option `gated_ffn`, the activation of a third dense layer, the gate, multiplies the output of the first.
    """

    def __init__(self, config: AlbertConfig, size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, size) if config.options.gated_ffn else None
        self.up = nn.Linear(config.hidden_size, size)
        self.down = nn.Linear(size, config.hidden_size)
        self.activation = ACTIVATION[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor) -> Tensor:
        up: Tensor = self.up(hidden)
        wide = self.activation(up) if self.gate is None else self.activation(self.gate(hidden)) * up
        out: Tensor = self.dropout(self.down(wide))
        return out


class FeedForwardHalf(nn.Module):
    """A feed-forward part with its norm; a layer with the option `ffn_groups` has several."""

    def __init__(self, config: AlbertConfig, size: int) -> None:
        super().__init__()
        self.ffn = FeedForward(config, size)
        self.ffn_norm = make_norm(config, config.hidden_size)


class Layer(nn.Module):
    """One post-LN transformer layer (pre-LN with the option `pre_norm`); ALBERT applies the same one several times."""

    def __init__(self, config: AlbertConfig, ffn_size: int = 0, ffns: int = 1) -> None:
        super().__init__()
        self.attention = (ConfigurableAttention if config.options.has_attention_options else Attention)(config)
        self.attention_norm = make_norm(config, config.hidden_size)
        halves = [FeedForwardHalf(config, ffn_size or config.intermediate_size) for _ in range(ffns)]
        self.ffn_groups = nn.ModuleList(halves) if ffns > 1 else None
        if ffns == 1:
            self.ffn, self.ffn_norm = halves[0].ffn, halves[0].ffn_norm
        self.pre_norm = config.options.pre_norm

    def forward(
        self, hidden: Tensor, batch: Batch, first: bool = False, local: bool = False, ffn_group: int = 0
    ) -> Tensor:
        residual = batch.first(hidden) if first else hidden
        attended = self.attention(self.attention_norm(hidden) if self.pre_norm else hidden, batch, first, local)
        return self.after_attention(residual, attended, ffn_group)

    def after_attention(self, residual: Tensor, attended: Tensor, ffn_group: int = 0) -> Tensor:
        """The result of the layer, from its input and the output of attention, (tokens, H) both."""
        half = self if self.ffn_groups is None else self.ffn_groups[ffn_group]
        if self.pre_norm:
            residual = residual + attended
            return residual + half.ffn(half.ffn_norm(residual))  # type: ignore[operator]
        hidden = self.attention_norm(residual + attended)
        out: Tensor = half.ffn_norm(hidden + half.ffn(hidden))  # type: ignore[operator]
        return out

    def compile_after_attention(self) -> None:
        """Compile what can be fused, for any number of tokens. Attention has fused kernels of its own."""
        self.after_attention = torch.compile(self.after_attention, dynamic=True)  # type: ignore[method-assign]


def _apply(layer: nn.Module, share: float, *inputs: Tensor | Batch | int) -> Tensor:
    """Apply a layer. Its weights get `share` of the gradient."""
    if share == 1.0:
        out: Tensor = layer(*inputs)
        return out
    weights = {name: p.detach() + share * (p - p.detach()) for name, p in layer.named_parameters()}
    return torch.func.functional_call(layer, weights, inputs)


class Encoder(nn.Module):
    """Embeddings, the shared layers, and the pooler.

    `checkpointing = True` saves memory in training: each *use* of a shared layer stores only its input and recomputes
    the rest in the backward pass. `layer_decay` below 1 weights the gradient of each use of the shared layer: the last
    use has weight 1, and each earlier use `layer_decay` times the weight of the next.
    """

    def __init__(self, config: AlbertConfig, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        self.layer_decay = 1.0
        embeddings = BrightmartEmbeddings if config.options.brightmart_layout else Embeddings
        self.embeddings = embeddings(config)
        self.groups = nn.ModuleList(
            nn.ModuleList(
                Layer(config, config.ffn_size(group), config.ffn_count(group)) for _ in range(config.inner_group_num)
            )
            for group in range(config.layer_groups)
        )
        self.output_norm = make_norm(config, config.hidden_size) if config.options.pre_norm else None
        pooler = pooler and config.options.classifier != "mean"
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None
        self.apply(self.initialize)

    def initialize(self, module: nn.Module) -> None:
        """Initial weights as in the original: normal, truncated at two standard deviations; biases 0, norms 1."""
        if isinstance(module, nn.Linear | nn.Embedding):
            std = self.config.initializer_range
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def check(self, batch: Batch) -> None:
        """Raise if ids, segments or positions are out of range (torch would crash or read other memory)."""
        for name, values, rows in (
            ("token id", batch.ids, self.config.vocab_size),
            ("segment", batch.segments, self.config.type_vocab_size),
            ("position", batch.positions, self.config.max_position_embeddings),
        ):
            low, high = (int(v) for v in values.aminmax())
            if low < 0 or high >= rows:
                raise AlbertkitError(f"{name} {low if low < 0 else high} is outside the range 0 to {rows - 1}.")

    def apply_layer(self, layer: int, hidden: Tensor, batch: Batch, depth: int, first: bool = False) -> Tensor:
        """Apply layer number `layer` (0-based) of `depth`: every inner layer of its group, once.

        first: return only the first tokens.
        """
        share = self.layer_decay ** (depth - 1 - layer) if self.training else 1.0
        group = list(self.groups[self.config.group_of(layer, depth)])  # type: ignore[call-overload]
        local, ffn_group = self.config.options.local(layer), self.config.ffn_of(layer, depth)
        for number, inner in enumerate(group, 1):
            inputs = (inner, share, hidden, batch, first and number == len(group), local, ffn_group)
            if self.checkpointing and self.training and torch.is_grad_enabled():
                hidden = checkpoint(_apply, *inputs, use_reentrant=False)
            else:
                hidden = _apply(*inputs)
        return hidden

    def read_out(self, hidden: Tensor, batch: Batch, depth: int, first: bool = False) -> Tensor:
        """The result at a depth, from the hidden states before the coda: coda and output norm, with these options."""
        for layer in range(self.config.coda_start(depth), depth):
            hidden = self.apply_layer(layer, hidden, batch, depth, first and layer == depth - 1)
        return hidden if self.output_norm is None else self.output_norm(hidden)

    def forward(
        self, batch: Batch, depth: int | None = None, keep_layers: bool = False, first_only: bool = False
    ) -> EncoderOutput:
        """Encode a batch. `depth` applies this many layers instead of L; `keep_layers` keeps all hidden states.

        `first_only` computes the last layer for the first token of each text only, which saves most of its time. It is
        ignored if heads use the mean of all tokens.
        """
        depth = self.config.num_hidden_layers if depth is None else depth
        if depth < 1:
            raise AlbertkitError(f"depth={depth} is not available: at least one layer is needed. Pass 1 or more.")
        if not torch.compiler.is_compiling() and not (self.training and batch.ids.is_cuda):  # would synchronize
            self.check(batch)
        first_only = first_only and self.config.options.classifier != "mean"
        hidden = self.embeddings(batch)  # (tokens, H)
        layers = [hidden]
        for applied in range(1, depth + 1):
            for layer in range(self.config.coda_start(applied - 1), self.config.coda_start(applied)):
                hidden = self.apply_layer(layer, hidden, batch, depth, first_only and layer == depth - 1)
            if keep_layers and applied < depth:
                layers.append(self.read_out(hidden, batch, applied))
        hidden = self.read_out(hidden, batch, depth, first_only)
        layers.append(hidden)
        pooled = None
        if self.pooler is not None:
            pooled = torch.tanh(self.pooler(hidden if first_only else batch.first(hidden)))  # (texts, H)
        return EncoderOutput(
            hidden=hidden,
            pooled=pooled,
            layers=tuple(layers) if keep_layers else (),
            batch=batch,
            word_table=self.embeddings.word.weight,
            projection=self.embeddings.projection.weight,
        )
