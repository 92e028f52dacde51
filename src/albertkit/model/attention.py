"""Self-attention inside each text of a packed batch.

In: hidden states (tokens, H) and the batch. Out: (tokens, H). A token attends to the tokens of its own text only.
Neighbouring texts of equal length share one call of torch's fused attention. It needs no padding, and a mask only if
the batch has one. After this file: `optional_modules.py`, `encoder.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.model.packed_batch import Batch

MAX_RUNS_ON_GPU = 4  # with more runs of equal lengths, one padded call is faster on a GPU


class Attention(nn.Module):
    """Multi-head attention, softmax(QKᵀ/√d)·V, with its output projection; dropout on the weights and on the output."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        h, a = config.hidden_size, config.attention_size  # equal, unless heads were pruned
        self.query = nn.Linear(h, a)
        self.key = nn.Linear(h, a)
        self.value = nn.Linear(h, a)
        self.output = nn.Linear(a, h)
        self.heads = config.num_attention_heads
        self.weight_dropout = config.attention_probs_dropout_prob
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, batch: Batch, first: bool = False, local: bool = False) -> Tensor:
        """(tokens, H) → (tokens, H); with `first`, only the first token of each text attends: (texts, H).

        `local` is used with the option `window` only (`optional_modules.py`).
        """
        query, key, value = self.project(hidden, batch, first)
        mixed = self.attend(query, key, value, batch, first, local)
        out: Tensor = self.output_dropout(self.project_output(mixed.flatten(1)))
        return out

    def project(self, hidden: Tensor, batch: Batch, first: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (tokens, heads, d), or with `first` (texts, heads, d); keys and values (tokens, heads, d)."""
        parts = (self.key, self.value) if first else (self.query, self.key, self.value)
        weight, bias = torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts])
        mixed = F.linear(hidden, weight, bias).unflatten(-1, (len(parts), self.heads, -1))
        if first:
            key, value = mixed.unbind(1)
            return self.query(batch.first(hidden)).unflatten(-1, (self.heads, -1)), key, value
        query, key, value = mixed.unbind(1)
        return query, key, value

    def project_output(self, mixed: Tensor) -> Tensor:
        """(tokens or texts, heads · d) → (tokens or texts, H)."""
        out: Tensor = self.output(mixed)
        return out

    def attend(self, query: Tensor, key: Tensor, value: Tensor, batch: Batch, first: bool, local: bool) -> Tensor:
        """Packed queries, keys and values → (tokens or texts, heads, d); one fused call per run of equal lengths.

        On a GPU, many runs are padded into one call, since launching many small kernels takes longer.
        """
        if batch.attention_mask is not None or (query.is_cuda and len(batch.runs) > MAX_RUNS_ON_GPU):
            return self.attend_padded(query, key, value, batch, first, local)
        parts = []
        inside = None if batch.key_mask is None else batch.key_mask[:, None, None]  # (texts, 1, 1, length)
        sizes = [n * length for n, length in batch.runs]
        query_sizes = [n for n, _ in batch.runs] if first else sizes
        runs = zip(query.split(query_sizes), key.split(sizes), value.split(sizes), batch.runs, strict=True)
        for q, k, v, (n, _) in runs:
            q, k, v = (x.unflatten(0, (n, -1)).transpose(1, 2) for x in (q, k, v))  # (texts, heads, length, d)
            parts.append(self.attend_texts(q, k, v, first, local, inside).transpose(1, 2).flatten(0, 1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def attend_padded(
        self, query: Tensor, key: Tensor, value: Tensor, batch: Batch, first: bool, local: bool
    ) -> Tensor:
        """`attend` in one call over padded texts; no token attends to padding."""
        padding = batch.padding
        keys, values = (padding.pad(x).transpose(1, 2) for x in (key, value))  # (texts, heads, longest, d)
        queries = query[:, :, None] if first else padding.pad(query).transpose(1, 2)
        inside = padding.mask[:, None, None]  # (texts, 1, 1, longest)
        if batch.attention_mask is not None:
            inside = inside & batch.attention_mask[:, None, : 1 if first else None]
            inside = inside | ~inside.any(-1, keepdim=True)  # padding attends to all: an empty row would give NaN
        context = self.attend_texts(queries, keys, values, first, local, inside)
        return context[:, :, 0] if first else padding.unpad(context.transpose(1, 2))

    def attend_texts(
        self, query: Tensor, key: Tensor, value: Tensor, first: bool, local: bool, inside: Tensor | None
    ) -> Tensor:
        """Texts of one length: (texts, heads, queries, d) over (texts, heads, length, d); `inside`: the mask."""
        return F.scaled_dot_product_attention(query, key, value, attn_mask=inside, dropout_p=self.dropout)

    @property
    def dropout(self) -> float:
        """Dropout of the attention weights; 0 outside training."""
        return self.weight_dropout if self.training else 0.0
