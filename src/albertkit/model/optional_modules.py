"""Modules beyond canonical ALBERT. A field of `config.Options` enables each; all are off by default and combine.

Each replaces a module of the same signature. docs/reference/artifact.md has the formulas; `runtime/graph.py` computes
the same without torch. Before this file: `attention.py`; after it: `encoder.py`.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.backends import cudnn

from albertkit.config import AlbertConfig
from albertkit.model.attention import Attention
from albertkit.model.packed_batch import Batch
from albertkit.weights import gru_name

KINDS = ("weight", "bias")


class DocumentNorm(nn.Module):
    """(x − μ) / (σ + ε), scaled and shifted, with torch's σ (over n − 1), as in document 003.

    LayerNorm adds ε to the variance, so the gradient of √ is finite. Here the variance of equal numbers is 0, so it is
    clamped to the smallest number by which float32 divides without overflow.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x.float(), dim=-1, keepdim=True)
        spread = variance.clamp(min=1e-36).sqrt() + self.eps
        return ((x.float() - mean) / spread * self.weight + self.bias).type_as(x)


def make_norm(config: AlbertConfig, size: int) -> nn.Module:
    """The norm that a config chooses, for vectors of `size` numbers."""
    kind = DocumentNorm if config.options.norm == "document" else nn.LayerNorm
    return kind(size, eps=config.layer_norm_eps)


class EmbeddingGru(nn.Module):
    """x + GRU(x), or with several layers x + GRUₙ(… GRU₁(x)), between the embeddings and the first shared layer.

    Each layer has width H and one direction, as in document 003: padding after a text has no effect, and tokens do not
    depend on later ones, as generation requires. The residual keeps an untrained model close to one without GRU; the
    document has none: its layers read GRU(x) only (`residual=False`).
    """

    def __init__(self, size: int, layers: int = 1, residual: bool = True) -> None:
        super().__init__()
        self.residual = residual
        self.names = [[gru_name(p, kind, n) for kind in KINDS for p in ("input", "state")] for n in range(layers)]
        limit = size**-0.5
        for input_weight, state_weight, *biases in self.names:
            for name in (input_weight, state_weight):
                self.register_parameter(name, nn.Parameter(torch.empty(3 * size, size).uniform_(-limit, limit)))
            for name in biases:
                self.register_parameter(name, nn.Parameter(torch.zeros(3 * size)))

    def forward(self, hidden: Tensor, batch: Batch) -> Tensor:
        """(tokens, H) → (tokens, H), separately for each text."""
        if len(batch.runs) == 1:
            out = self.read(hidden.unflatten(0, batch.runs[0])).flatten(0, 1)
        else:
            out = batch.padding.unpad(self.read(batch.padding.pad(hidden)))
        return hidden + out if self.residual else out

    def read(self, x: Tensor) -> Tensor:
        """(texts, length, H) → (texts, length, H)."""
        # float32 on a GPU: older cuDNN kernels do not support bf16 and would compute one token at a time
        dtype = torch.float32 if x.is_cuda else x.dtype
        weights = [getattr(self, name).to(dtype) for names in self.names for name in names]
        layers, grad = len(self.names), torch.is_grad_enabled()
        begin = x.new_zeros(layers, len(x), x.shape[2], dtype=dtype)
        # by default, cuDNN rounds float32 to TF32
        exact = x.is_cuda and x.dtype == torch.float32
        with cudnn.flags(enabled=True, allow_tf32=False) if exact else nullcontext():
            out: Tensor = torch.gru(x.to(dtype).contiguous(), begin, weights, True, layers, 0.0, grad, False, True)[0]
        return out.to(x.dtype)


def make_gru(config: AlbertConfig) -> EmbeddingGru | None:
    """The GRU that a config chooses."""
    options = config.options
    return EmbeddingGru(config.hidden_size, options.gru_layers, options.gru_residual) if options.gru else None


def text_means(hidden: Tensor, batch: Batch) -> Tensor:
    """(tokens, H) → (texts, H): the mean of each text's tokens."""
    if len(batch.runs) == 1:
        return hidden.unflatten(0, batch.runs[0]).mean(1)
    return torch.stack([text.mean(0) for text in hidden.split(list(batch.lengths))])


class BrightmartEmbeddings(nn.Module):
    """Embeddings of the albert_zh checkpoints: the word table is projected to H first, without bias; position, segment
    and LayerNorm have size H. They cannot be converted to the layout of the official Chinese models.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        e, h = config.embedding_size, config.hidden_size
        self.word = nn.Embedding(config.vocab_size, e)
        self.projection = nn.Linear(e, h, bias=False)
        self.position = nn.Embedding(config.max_position_embeddings, h)
        self.segment = nn.Embedding(config.type_vocab_size, h)
        self.norm = make_norm(config, h)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.scale = e**0.5 if config.options.scale_embedding else 1.0
        self.gru = make_gru(config)

    def forward(self, batch: Batch) -> Tensor:
        words = self.projection(batch.words(self.word) * self.scale)
        out: Tensor = self.dropout(self.norm(words + self.segment(batch.segments) + self.position(batch.positions)))
        return out if self.gru is None else self.gru(out, batch)


class LowRank(nn.Module):
    """Projections of queries, keys and values from d (values: d_v) to d_a, and of the result back; shared by all
    heads.
    """

    def __init__(self, head_size: int, value_size: int, rank: int) -> None:
        super().__init__()
        # Orthogonal rows, equal for all three: queries and keys start in the same subspace.
        first = nn.init.orthogonal_(torch.empty(rank, head_size))
        values = first if value_size == head_size else nn.init.orthogonal_(torch.empty(rank, value_size))
        self.query, self.key, self.value = (nn.Parameter(x.clone()) for x in (first, first, values))
        self.lift = nn.Parameter(values.T.contiguous())


class OutputDown(nn.Module):
    """The projection of all heads' context to r numbers, without bias. Its rows start orthogonal, so that the output
    starts at the size of canonical attention.
    """

    def __init__(self, size: int, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(rank, size)))


def compose_projection(matrix: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A dense layer followed, head by head, by `matrix` (rank, head_size), as one dense layer."""
    size = matrix.shape[1]
    return (
        torch.matmul(matrix, weight.view(-1, size, weight.shape[1])).flatten(0, 1),
        (bias.view(-1, size) @ matrix.T).flatten(),
    )


class ConfigurableAttention(Attention):
    """Multi-head attention with options:

    low rank      s = (QA)(KB)ᵀ/√d_a and softmax(s)·(VC)·D, with A, B, C (d, d_a) and D (d_a, d) for all heads. Since
                  XW·A = X·(WA), A is multiplied into the query matrix, and so on. Heads then have width d_a.
    value size    V has d_v numbers per head, so the context of all heads has heads · d_v.
    output rank   context·A·B + b with A (heads · d_v, r) and B (r, H), where canonical attention has context·W + b. It
                  equals W = A·B, with fewer parameters and operations.
    window        Each token attends to the first token and to tokens at most `window` away. The first token attends
                  to all. Long texts are split into blocks of `window` tokens, which attend to themselves and their
                  two neighbours, so the cost is linear in the length.
    shared heads  One matrix of keys and one of values for all heads.
    θ             Added to the scores: one number per head for the first token, or one per head and distance.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        options, h, d, d_v = config.options, config.hidden_size, config.head_size, config.value_size
        self.sizes = {"query": config.score_size, "key": config.score_size, "value": config.context_size}
        self.window, self.shared = options.window, options.shared_heads
        if self.shared:
            self.key, self.value = nn.Linear(h, d), nn.Linear(h, d_v)
        elif options.value_size:
            self.value = nn.Linear(h, d_v * self.heads)
        self.output_down = OutputDown(d_v * self.heads, options.output_rank) if options.output_rank else None
        if options.output_rank or options.value_size:
            self.output = nn.Linear(options.output_rank or d_v * self.heads, h)
        self.low = LowRank(d, d_v, options.low_rank) if options.low_rank else None
        self.theta: nn.Parameter | None = None
        self.reach = options.relative_reach
        if options.attention_bias:
            columns = (2 * self.reach + 1,) if options.attention_bias == "relative" else ()
            self.theta = nn.Parameter(torch.zeros(self.heads, *columns))

    def project(self, hidden: Tensor, batch: Batch, first: bool) -> tuple[Tensor, Tensor, Tensor]:
        parts = {"query": self.query, "key": self.key, "value": self.value}
        projections: dict[str, tuple[Tensor, Tensor]] = {n: (part.weight, part.bias) for n, part in parts.items()}
        if self.low is not None:
            projections = {n: compose_projection(getattr(self.low, n), *pair) for n, pair in projections.items()}
        query_input = batch.first(hidden) if first else hidden
        query, key, value = (
            F.linear(x, *projections[name]).unflatten(-1, (-1, self.sizes[name]))  # (tokens, heads or 1, size)
            for x, name in ((query_input, "query"), (hidden, "key"), (hidden, "value"))
        )
        if self.shared:
            key, value = (x.expand(-1, self.heads, -1) for x in (key, value))
            if hidden.is_cuda:  # compiled attention does not support heads that share memory
                key, value = key.contiguous(), value.contiguous()
        return query, key, value

    def project_output(self, mixed: Tensor) -> Tensor:
        first = (self.output if self.output_down is None else self.output_down).weight
        if self.low is not None:
            first = (first.unflatten(1, (self.heads, -1)) @ self.low.lift).flatten(1)  # (H or r, heads · d_a)
        if self.output_down is None:
            return F.linear(mixed, first, self.output.bias)
        return super().project_output(F.linear(mixed, first))

    def attend_texts(
        self, query: Tensor, key: Tensor, value: Tensor, first: bool, local: bool, inside: Tensor | None
    ) -> Tensor:
        length = key.shape[2]
        if local and not first and length > self.window + 1:
            by_key = inside is None or inside.shape[2] == 1
            if by_key and length > 3 * self.window:
                return self.attend_blocks(query, key, value, inside)
            window = self.window_mask(length, key.device)
            inside = window if inside is None else inside & window
        mask = self.score_mask(self.bias(query.shape[2], length, key.device), inside, query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=self.dropout)

    def window_mask(self, length: int, device: torch.device) -> Tensor:
        """(length, length) bool: which tokens attend to which, inside the window or with the first token."""
        position = torch.arange(length, device=device)
        distance = (position[None] - position[:, None]).abs()
        return (distance <= self.window) | (position == 0) | (position == 0)[:, None]

    def bias(self, queries: int, length: int, device: torch.device) -> Tensor | None:
        """θ on the scores of the first `queries` tokens, (heads, queries, length)."""
        if self.theta is None:
            return None
        if self.theta.dim() == 1:
            return self.theta[:, None, None] * (torch.arange(length, device=device) == 0)
        return self.relative_bias(queries, length)

    def relative_bias(self, queries: int, length: int) -> Tensor:
        """θ of the distance from each of the first `queries` tokens to every token, (heads, queries, length).

        Row i is a slice of the same numbers, one step to the left of row i - 1. The gradient of slices is a plain sum.
        The gradient of indexing by distance adds number by number, which takes seconds on a GPU at 512 tokens.
        """
        assert self.theta is not None
        reach, most = self.reach, length - 1
        theta = self.theta[:, max(0, reach - most) : reach + most + 1]
        beyond = max(0, most - reach)
        sides = (theta[:, :1].expand(-1, beyond), theta, theta[:, -1:].expand(-1, beyond))
        line = torch.cat(sides, 1) if beyond else theta  # θ of the distances -most … most: (heads, 2·length - 1)
        if length == 1:
            return line[:, :, None]
        rows = line[:, None].expand(-1, queries + 1, -1).flatten(1)  # the same numbers repeated
        # slices start 2·length - 2 apart, so each is one step further left
        windows = rows[:, most : most + queries * 2 * most].unflatten(1, (queries, 2 * most))
        return windows[:, :, :length]

    def distance_bias(self, distance: Tensor) -> Tensor:
        """θ of distances, (heads, …)."""
        assert self.theta is not None
        return self.theta[:, distance.clamp(-self.reach, self.reach) + self.reach]

    @staticmethod
    def score_mask(bias: Tensor | None, inside: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """The mask that is added to scores: the bias, with -∞ where `inside` is False; without bias, the bool mask."""
        if bias is None:
            return inside
        bias = bias.to(dtype).contiguous()[None]  # overlapping rows are not aligned as a GPU's kernels need them
        return bias if inside is None else bias.masked_fill(~inside, float("-inf"))

    def attend_blocks(self, query: Tensor, key: Tensor, value: Tensor, inside: Tensor | None) -> Tensor:
        """A window over long texts: blocks of `window` queries over three blocks of keys and the first token.

        The first token, which attends to all, is computed separately. `inside` is (texts, 1, 1, length).
        """
        w, (texts, heads, length, size) = self.window, value.shape
        count = -(-length // w)
        padding = count * w - length
        # The fused kernel has two axes before the last two. Without θ, texts and heads share one mask: join them. With
        # θ, texts share one mask: join heads and blocks.
        joined = (0, 1) if self.theta is None else (1, 2)
        band = [
            torch.cat([x[:, :, None, :1].expand(-1, -1, count, -1, -1), cut_blocks(x, w, padding)], 3).flatten(*joined)
            for x in (key, value)
        ]  # (texts, heads, blocks, 1 + 3w, size), two of them joined
        queries = F.pad(query, (0, 0, 0, padding)).unflatten(2, (count, w)).flatten(*joined)
        device = key.device
        row, column, block = (torch.arange(n, device=device) for n in (w, 3 * w, count))
        distance = column - w - row[:, None]  # (w, 3w)
        position = (block[:, None] - 1) * w + column  # (blocks, 3w) of the keys
        in_window = (distance.abs() <= w) & ((position > 0) & (position < length))[:, None]  # (blocks, w, 3w)
        allowed = F.pad(in_window, (1, 0), value=True)[None, None]  # (1, 1, blocks, w, 1 + 3w)
        if inside is not None:
            blocks = cut_blocks(inside.transpose(2, 3).to(torch.uint8), w, padding)
            not_padding = blocks[..., 0].bool()  # (texts, 1, blocks, 3w)
            allowed = (allowed & F.pad(not_padding, (1, 0), value=True)[:, :, :, None]).expand(-1, heads, -1, -1, -1)
        mask = allowed
        if self.theta is not None:
            mask = self._block_bias(distance, block, row).to(query.dtype)[None].masked_fill(~allowed, float("-inf"))
        context = F.scaled_dot_product_attention(
            queries, band[0], band[1], attn_mask=mask.flatten(*joined), dropout_p=self.dropout
        )
        context = context.reshape(texts, heads, count * w, size)[:, :, 1:length]
        first_mask = self.score_mask(self.bias(1, length, device), inside, query.dtype)
        first = F.scaled_dot_product_attention(
            query[:, :, :1], key, value, attn_mask=first_mask, dropout_p=self.dropout
        )
        return torch.cat([first, context], 2)

    def _block_bias(self, distance: Tensor, block: Tensor, row: Tensor) -> Tensor:
        """θ for every query of every block, (heads, blocks, w, 1 + 3w); the first column is the first token."""
        assert self.theta is not None
        if self.theta.dim() == 1:
            shape = (len(block), len(row), 1)
            first = self.theta[:, None, None, None].expand(-1, *shape)
            return F.pad(first, (0, distance.shape[1]))
        first = self.distance_bias(-(block[:, None] * self.window + row))[..., None]  # (heads, blocks, w, 1)
        band = self.distance_bias(distance)[:, None].expand(-1, len(block), -1, -1)
        return torch.cat([first, band], 3)


def cut_blocks(x: Tensor, w: int, padding: int) -> Tensor:
    """(texts, heads, length, size) → (texts, heads, blocks, 3w, size): blocks with their neighbours, zeros outside."""
    return F.pad(x, (0, 0, w, w + padding)).unfold(2, 3 * w, w).transpose(3, 4)
