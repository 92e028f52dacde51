"""Attention with options: low rank, a window, shared keys and values, a learnable bias on the scores.

In: hidden states (tokens, H) and the batch. Out: (tokens, H), as from `attention.py`. Every option is off by default,
and all can be combined. `docs/options.md` has the formulas; `runtime/graph_options.py` computes the same without torch.

    low rank      s = (QA)(KB)ᵀ/√d_a and softmax(s)·(VC)·D, with A, B, C (d, d_a) and D (d_a, d) for all heads. Since
                  XW·A = X·(WA), A is multiplied into the matrix of the queries, and so on: heads then are d_a wide.
    window        Each token attends to tokens at most `window` away and to the first one, which attends to all. Long
                  texts are cut into blocks of `window` tokens that attend to themselves and their two neighbours,
                  so the cost grows linearly with the length.
    shared heads  One matrix of keys and one of values for all heads.
    θ             Added to the scores: one number per head for the first token, or one per head and distance.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.model.attention import MAX_RUNS_ON_GPU, Attention
from albertkit.model.packed_batch import Batch


class LowRank(nn.Module):
    """Projections of queries, keys and values from d to d_a, and of the result back; shared by all heads."""

    def __init__(self, head_size: int, rank: int) -> None:
        super().__init__()
        # Orthogonal rows, equal for all three: queries and keys start in the same subspace.
        first = nn.init.orthogonal_(torch.empty(rank, head_size))
        self.query, self.key, self.value = (nn.Parameter(first.clone()) for _ in range(3))
        self.lift = nn.Parameter(first.T.contiguous())


def compose_projection(matrix: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A dense layer followed, head by head, by `matrix` (rank, head_size), as one dense layer."""
    size = matrix.shape[1]
    return (
        torch.matmul(matrix, weight.view(-1, size, weight.shape[1])).flatten(0, 1),
        (bias.view(-1, size) @ matrix.T).flatten(),
    )


class ConfigurableAttention(Attention):
    """Multi-head attention with the options of a config."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        options, d = config.options, config.head_size
        self.size, self.window, self.shared = config.score_size, options.window, options.shared_heads
        if self.shared:
            self.key, self.value = nn.Linear(config.hidden_size, d), nn.Linear(config.hidden_size, d)
        self.low = LowRank(d, options.low_rank) if options.low_rank else None
        self.theta: nn.Parameter | None = None
        self.reach = options.relative_reach
        if options.attention_bias:
            columns = (2 * self.reach + 1,) if options.attention_bias == "relative" else ()
            self.theta = nn.Parameter(torch.zeros(self.heads, *columns))

    def forward(self, hidden: Tensor, batch: Batch, first: bool = False, local: bool = False) -> Tensor:
        """(tokens, H) → (tokens, H); with `first`, only first tokens attend: (texts, H); `local`: inside the window."""
        parts = {"query": self.query, "key": self.key, "value": self.value}
        projections: dict[str, tuple[Tensor, Tensor]] = {n: (part.weight, part.bias) for n, part in parts.items()}
        if self.low is not None:
            projections = {n: compose_projection(getattr(self.low, n), *pair) for n, pair in projections.items()}
        query_input = batch.first(hidden) if first else hidden
        query, key, value = (
            F.linear(x, *projections[name]).unflatten(-1, (-1, self.size))  # (tokens, heads or 1, size)
            for x, name in ((query_input, "query"), (hidden, "key"), (hidden, "value"))
        )
        if self.shared:
            key, value = (x.expand(-1, self.heads, -1) for x in (key, value))
            if hidden.is_cuda:  # compiled attention does not support heads that share memory
                key, value = key.contiguous(), value.contiguous()
        mixed = self.attend(query, key, value, batch, first, local).flatten(1)
        weight = self.output.weight
        if self.low is not None:
            weight = (weight.unflatten(1, (self.heads, -1)) @ self.low.lift).flatten(1)  # (H, heads · d_a)
        out: Tensor = self.output_dropout(F.linear(mixed, weight, self.output.bias))
        return out

    def attend(self, query: Tensor, key: Tensor, value: Tensor, batch: Batch, first: bool, local: bool) -> Tensor:
        """Packed queries, keys and values (tokens, heads, size) → (tokens or texts, heads, size)."""
        if batch.attention_mask is not None or (query.is_cuda and len(batch.runs) > MAX_RUNS_ON_GPU):
            padding = batch.padding
            padded = [padding.pad(x).transpose(1, 2) for x in (key, value)]
            queries = query[:, :, None] if first else padding.pad(query).transpose(1, 2)
            inside = padding.mask[:, None, None]  # (texts, 1, 1, longest)
            if batch.attention_mask is not None:
                inside = inside & batch.attention_mask[:, None, : 1 if first else None]
                inside = inside | ~inside.any(-1, keepdim=True)  # padding attends to all, else it gives NaN
            context = self.attend_texts(queries, padded[0], padded[1], first, local, inside)
            return context[:, :, 0] if first else padding.unpad(context.transpose(1, 2))
        parts = []
        sizes = [n * length for n, length in batch.runs]
        query_sizes = [n for n, _ in batch.runs] if first else sizes
        runs = zip(query.split(query_sizes), key.split(sizes), value.split(sizes), batch.runs, strict=True)
        for q, k, v, (n, _) in runs:
            q, k, v = (x.unflatten(0, (n, -1)).transpose(1, 2) for x in (q, k, v))  # (texts, heads, length, size)
            parts.append(self.attend_texts(q, k, v, first, local, None).transpose(1, 2).flatten(0, 1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def attend_texts(
        self, query: Tensor, key: Tensor, value: Tensor, first: bool, local: bool, inside: Tensor | None
    ) -> Tensor:
        """Texts of one length: (texts, heads, queries, size) over (texts, heads, length, size); `inside`: the mask."""
        length = key.shape[2]
        if local and not first and length > self.window + 1:
            by_key = inside is None or inside.shape[2] == 1
            if by_key and length > 3 * self.window:
                return self.attend_blocks(query, key, value, inside)
            window = self.window_mask(length, key.device)
            inside = window if inside is None else inside & window
        mask = self.score_mask(self.bias(query.shape[2], length, key.device), inside, query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=self.dropout)

    @property
    def dropout(self) -> float:
        """Dropout of the attention weights; 0 outside training."""
        return self.weight_dropout if self.training else 0.0

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

        Row i is a window of the same numbers, one step further left than row i - 1. The gradient of slices is a plain
        sum; the gradient of an index by distance adds number by number, which takes a GPU seconds at 512 tokens.
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
        # windows begin 2·length - 2 apart: each one step further left
        windows = rows[:, most : most + queries * 2 * most].unflatten(1, (queries, 2 * most))
        return windows[:, :, :length]

    def distance_bias(self, distance: Tensor) -> Tensor:
        """θ of distances, (heads, …)."""
        assert self.theta is not None
        return self.theta[:, distance.clamp(-self.reach, self.reach) + self.reach]

    @staticmethod
    def score_mask(bias: Tensor | None, inside: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """The mask that is added to scores: bias, and -∞ where `inside` is False; without bias, the bool mask."""
        if bias is None:
            return inside
        bias = bias.to(dtype)[None]
        return bias if inside is None else bias.masked_fill(~inside, float("-inf"))

    def attend_blocks(self, query: Tensor, key: Tensor, value: Tensor, inside: Tensor | None) -> Tensor:
        """A window over long texts: blocks of `window` queries over three blocks of keys and the first token.

        The first token, which attends to all, is computed separately. `inside` is (texts, 1, 1, length).
        """
        w, (texts, heads, length, size) = self.window, query.shape
        count = -(-length // w)
        rest = count * w - length
        # The fused kernel has two axes before the last two. Without θ, one mask serves all texts and heads: join them.
        # With θ, one mask serves all texts: join heads and blocks.
        joined = (0, 1) if self.theta is None else (1, 2)
        band = [
            torch.cat([x[:, :, None, :1].expand(-1, -1, count, -1, -1), cut_blocks(x, w, rest)], 3).flatten(*joined)
            for x in (key, value)
        ]  # (texts, heads, blocks, 1 + 3w, size), two of them joined
        queries = F.pad(query, (0, 0, 0, rest)).unflatten(2, (count, w)).flatten(*joined)
        device = key.device
        row, column, block = (torch.arange(n, device=device) for n in (w, 3 * w, count))
        distance = column - w - row[:, None]  # (w, 3w)
        position = (block[:, None] - 1) * w + column  # (blocks, 3w) of the keys
        in_window = (distance.abs() <= w) & ((position > 0) & (position < length))[:, None]  # (blocks, w, 3w)
        allowed = F.pad(in_window, (1, 0), value=True)[None, None]  # (1, 1, blocks, w, 1 + 3w)
        if inside is not None:
            not_padding = cut_blocks(inside.transpose(2, 3).to(torch.uint8), w, rest)[
                ..., 0
            ].bool()  # (texts, 1, blocks, 3w)
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


def cut_blocks(x: Tensor, w: int, rest: int) -> Tensor:
    """(texts, heads, length, size) → (texts, heads, blocks, 3w, size): blocks with their neighbours, zeros outside."""
    return F.pad(x, (0, 0, w, w + rest)).unfold(2, 3 * w, w).transpose(3, 4)
