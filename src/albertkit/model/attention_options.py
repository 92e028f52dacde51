"""Attention as the documents describe it: of low rank, in a window, with shared keys and values, with a learnable bias.

In: hidden states (tokens, H) and the batch. Out: (tokens, H), as from `attention.py`, which stays canonical. Every option is off by
default, and all go together. `docs/options.md` has the formulas; `runtime/graph_options.py` is the same without torch.

    low rank      s = (QA)(KB)ᵀ/√d_a, and softmax(s)·(VC)·D: A, B, C (d, d_a) and D (d_a, d), the same for all heads. Since
                  XW·A = X·(WA), A is multiplied into the matrix of the queries, and so on: heads are d_a wide from there on.
    window        Each token sees the tokens at most `window` away and the first one, which sees all. Long texts are cut into blocks
                  of `window` tokens, each of which looks at itself and its two neighbours: the cost grows with the length, not its square.
    shared heads  One matrix of keys and one of values for all heads.
    θ             Added to the scores: for the first token, one number a head; or one a head and distance.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.model.attention import MAX_RUNS_ON_GPU, Attention
from albertkit.model.packed_batch import Batch


class LowRank(nn.Module):
    """The matrices that bring the queries, keys and values of a head down to d_a, and its result up again; for all heads."""

    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        # Rows at right angles, the same three times: queries and keys begin by meeting in one part of their space.
        first = nn.init.orthogonal_(torch.empty(narrow, wide))
        self.query, self.key, self.value = (nn.Parameter(first.clone()) for _ in range(3))
        self.lift = nn.Parameter(first.T.contiguous())


def compose_projection(matrix: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A dense layer whose outputs, head by head, go through `matrix` (narrow, wide), as one dense layer."""
    wide = matrix.shape[1]
    return (
        torch.matmul(matrix, weight.view(-1, wide, weight.shape[1])).flatten(0, 1),
        (bias.view(-1, wide) @ matrix.T).flatten(),
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
        """(tokens, H) → (tokens, H); with `first`, what the first token of each text sees: (texts, H); `local`: in the window."""
        parts = {"query": self.query, "key": self.key, "value": self.value}
        made: dict[str, tuple[Tensor, Tensor]] = {name: (part.weight, part.bias) for name, part in parts.items()}
        if self.low is not None:
            made = {name: compose_projection(getattr(self.low, name), *pair) for name, pair in made.items()}
        asked = batch.first(hidden) if first else hidden
        query, key, value = (
            F.linear(x, *made[name]).unflatten(-1, (-1, self.size))  # (tokens, heads or 1, size)
            for x, name in ((asked, "query"), (hidden, "key"), (hidden, "value"))
        )
        if self.shared:
            key, value = (x.expand(-1, self.heads, -1) for x in (key, value))
            if hidden.is_cuda:  # compiled attention does not expect heads that lie at the same place
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
            table = [padding.pad(x).transpose(1, 2) for x in (key, value)]
            asked = query[:, :, None] if first else padding.pad(query).transpose(1, 2)
            inside = padding.mask[:, None, None]  # (texts, 1, 1, longest)
            if batch.attention_mask is not None:
                inside = inside & batch.attention_mask[:, None, : 1 if first else None]
                inside = inside | ~inside.any(-1, keepdim=True)  # an empty place looks at all: else it is not a number
            context = self.attend_texts(asked, table[0], table[1], first, local, inside)
            return context[:, :, 0] if first else padding.unpad(context.transpose(1, 2))
        parts = []
        sizes = [n * length for n, length in batch.runs]
        asked_sizes = [n for n, _ in batch.runs] if first else sizes
        pieces = zip(query.split(asked_sizes), key.split(sizes), value.split(sizes), batch.runs, strict=True)
        for q, k, v, (n, _) in pieces:
            q, k, v = (x.unflatten(0, (n, -1)).transpose(1, 2) for x in (q, k, v))  # (texts, heads, length, size)
            parts.append(self.attend_texts(q, k, v, first, local, None).transpose(1, 2).flatten(0, 1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def attend_texts(
        self, query: Tensor, key: Tensor, value: Tensor, first: bool, local: bool, inside: Tensor | None
    ) -> Tensor:
        """Texts of one length: (texts, heads, asked, size) over (texts, heads, length, size); `inside`: who may be seen."""
        length = key.shape[2]
        if local and not first and length > self.window + 1:
            by_key = inside is None or inside.shape[2] == 1
            if by_key and length > 3 * self.window:
                return self.attend_blocks(query, key, value, inside)
            near = self.window_mask(length, key.device)
            inside = near if inside is None else inside & near
        mask = self.score_mask(self.bias(query.shape[2], length, key.device), inside, query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=self.dropout)

    @property
    def dropout(self) -> float:
        """Share of the attention weights that are dropped now."""
        return self.weight_dropout if self.training else 0.0

    def window_mask(self, length: int, device: torch.device) -> Tensor:
        """(length, length) bool: who sees whom in the window, the first token apart."""
        place = torch.arange(length, device=device)
        away = (place[None] - place[:, None]).abs()
        return (away <= self.window) | (place == 0) | (place == 0)[:, None]

    def bias(self, asked: int, length: int, device: torch.device) -> Tensor | None:
        """θ on the scores of the first `asked` tokens, (heads, asked, length)."""
        if self.theta is None:
            return None
        place = torch.arange(length, device=device)
        if self.theta.dim() == 1:
            return self.theta[:, None, None] * (place == 0)
        return self.relative_bias(asked, length)

    def relative_bias(self, asked: int, length: int) -> Tensor:
        """θ of the distance from each of the first `asked` tokens to every token, (heads, asked, length).

        Row i is a window of the same numbers, one step further left than row i - 1. Sliced and reshaped, its gradient is a plain
        sum; indexed by a table of distances, it is added up number by number, which takes a GPU seconds at 512 tokens.
        """
        assert self.theta is not None
        reach, most = self.reach, length - 1
        theta = self.theta[:, max(0, reach - most) : reach + most + 1]
        beyond = max(0, most - reach)
        sides = (theta[:, :1].expand(-1, beyond), theta, theta[:, -1:].expand(-1, beyond))
        line = torch.cat(sides, 1) if beyond else theta  # θ of the distances -most … most: (heads, 2·length - 1)
        if length == 1:
            return line[:, :, None]
        rows = line[:, None].expand(-1, asked + 1, -1).flatten(1)  # the same numbers again and again
        windows = rows[:, most : most + asked * 2 * most].unflatten(
            1, (asked, 2 * most)
        )  # 2·length - 2 apart: one step left
        return windows[:, :, :length]

    def distance_bias(self, away: Tensor) -> Tensor:
        """θ of distances, (heads, …)."""
        assert self.theta is not None
        return self.theta[:, away.clamp(-self.reach, self.reach) + self.reach]

    @staticmethod
    def score_mask(bias: Tensor | None, inside: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """What is added to scores: bias, and -∞ where nobody may look; or that alone, as a bool mask."""
        if bias is None:
            return inside
        bias = bias.to(dtype)[None]
        return bias if inside is None else bias.masked_fill(~inside, float("-inf"))

    def attend_blocks(self, query: Tensor, key: Tensor, value: Tensor, inside: Tensor | None) -> Tensor:
        """A window over long texts: blocks of `window` queries over three blocks of keys and the first token.

        The first token, which sees all, is computed apart. `inside` is (texts, 1, 1, length).
        """
        w, (texts, heads, length, size) = self.window, query.shape
        count = -(-length // w)
        rest = count * w - length
        # The fused kernel takes two axes before the last two. Without θ one mask serves all texts and heads, so these become one;
        # with it one mask serves all texts, and heads and blocks become one.
        joined = (0, 1) if self.theta is None else (1, 2)
        band = [
            torch.cat([x[:, :, None, :1].expand(-1, -1, count, -1, -1), cut_blocks(x, w, rest)], 3).flatten(*joined)
            for x in (key, value)
        ]  # (texts, heads, blocks, 1 + 3w, size), two of them joined
        asked = F.pad(query, (0, 0, 0, rest)).unflatten(2, (count, w)).flatten(*joined)
        device = key.device
        row, column, block = (torch.arange(n, device=device) for n in (w, 3 * w, count))
        away = column - w - row[:, None]  # (w, 3w)
        place = (block[:, None] - 1) * w + column  # (blocks, 3w) of the keys
        seen = (away.abs() <= w) & ((place > 0) & (place < length))[:, None]  # (blocks, w, 3w)
        allowed = F.pad(seen, (1, 0), value=True)[None, None]  # (1, 1, blocks, w, 1 + 3w)
        if inside is not None:
            known = cut_blocks(inside.transpose(2, 3).to(torch.uint8), w, rest)[..., 0].bool()  # (texts, 1, blocks, 3w)
            allowed = (allowed & F.pad(known, (1, 0), value=True)[:, :, :, None]).expand(-1, heads, -1, -1, -1)
        mask = allowed
        if self.theta is not None:
            mask = self._block_bias(away, block, row).to(query.dtype)[None].masked_fill(~allowed, float("-inf"))
        context = F.scaled_dot_product_attention(
            asked, band[0], band[1], attn_mask=mask.flatten(*joined), dropout_p=self.dropout
        )
        context = context.reshape(texts, heads, count * w, size)[:, :, 1:length]
        top = self.score_mask(self.bias(1, length, device), inside, query.dtype)
        whole = F.scaled_dot_product_attention(query[:, :, :1], key, value, attn_mask=top, dropout_p=self.dropout)
        return torch.cat([whole, context], 2)

    def _block_bias(self, away: Tensor, block: Tensor, row: Tensor) -> Tensor:
        """θ for every query of every block, (heads, blocks, w, 1 + 3w); the first column is the first token."""
        assert self.theta is not None
        if self.theta.dim() == 1:
            shape = (len(block), len(row), 1)
            first = self.theta[:, None, None, None].expand(-1, *shape)
            return F.pad(first, (0, away.shape[1]))
        first = self.distance_bias(-(block[:, None] * self.window + row))[..., None]  # (heads, blocks, w, 1)
        band = self.distance_bias(away)[:, None].expand(-1, len(block), -1, -1)
        return torch.cat([first, band], 3)


def cut_blocks(x: Tensor, w: int, rest: int) -> Tensor:
    """(texts, heads, length, size) → (texts, heads, blocks, 3w, size): each block with its neighbours, zeros outside."""
    return F.pad(x, (0, 0, w, w + rest)).unfold(2, 3 * w, w).transpose(3, 4)
