"""Self-attention inside each text of a packed batch.

In: hidden states (tokens, H) and the batch. Out: (tokens, H). A token attends to the tokens of its own text only.
Neighbouring texts of equal length are one call of torch's fused attention, without padding or mask, unless the batch
has an attention mask. After this file: `encoder.py`.
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
        h, a = config.hidden_size, config.attention_size  # equal, unless heads were pruned away
        self.query = nn.Linear(h, a)
        self.key = nn.Linear(h, a)
        self.value = nn.Linear(h, a)
        self.output = nn.Linear(a, h)
        self.heads = config.num_attention_heads
        self.weight_dropout = config.attention_probs_dropout_prob
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, batch: Batch, first: bool = False, local: bool = False) -> Tensor:
        """(tokens, H) → (tokens, H); with `first`, only the first token of each text attends: (texts, H).

        `local` is used with the option `window` only (`attention_options.py`).
        """
        tokens = hidden.shape[0]
        parts = (self.key, self.value) if first else (self.query, self.key, self.value)
        weight, bias = torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts])
        mixed = F.linear(hidden, weight, bias).view(tokens, len(parts), self.heads, -1)  # (tokens, 3 or 2, heads, d)
        dropout = self.weight_dropout if self.training else 0.0
        if first:
            query = self.query(batch.first(hidden)).view(-1, self.heads, 1, mixed.shape[-1])
            mixed = attend_first(query, mixed, batch, dropout)  # (texts, heads, d)
        else:
            mixed = attend(mixed, batch, dropout)  # (tokens, heads, d)
        out: Tensor = self.output_dropout(self.output(mixed.flatten(1)))
        return out


def attend(mixed: Tensor, batch: Batch, dropout: float = 0.0) -> Tensor:
    """Attention over packed queries, keys and values (tokens, 3, heads, d); one fused call per run of equal lengths.

    On a GPU, many runs are padded into one call, since starting many small calls takes longer.
    """
    if batch.attention_mask is not None or (mixed.is_cuda and len(batch.runs) > MAX_RUNS_ON_GPU):
        return attend_padded(mixed, batch, dropout)
    parts = []
    sizes = [texts * length for texts, length in batch.runs]
    for part, (texts, length) in zip(
        mixed.split(sizes), batch.runs, strict=True
    ):  # each slice would cost a backward pass
        query, key, value = part.view(texts, length, *mixed.shape[1:]).permute(2, 0, 3, 1, 4).unbind(0)
        context = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)  # (texts, heads, length, d)
        parts.append(context.transpose(1, 2).reshape(texts * length, *mixed.shape[2:]))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend_padded(mixed: Tensor, batch: Batch, dropout: float = 0.0) -> Tensor:
    """The same in one call over padded texts; no token attends to padding."""
    padding = batch.padding
    query, key, value = padding.pad(mixed).permute(2, 0, 3, 1, 4).unbind(0)  # (texts, heads, longest, d) each
    mask = padding.mask[:, None, None, :]
    if batch.attention_mask is not None:
        mask = mask & batch.attention_mask[:, None]
        mask = mask | ~mask.any(-1, keepdim=True)  # padding attends to all: an empty row would give NaN
    context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    return padding.unpad(context.transpose(1, 2))


def attend_first(query: Tensor, mixed: Tensor, batch: Batch, dropout: float = 0.0) -> Tensor:
    """One query per text (texts, heads, 1, d) over packed keys, values (tokens, 2, heads, d) → (texts, heads, d)."""
    if batch.attention_mask is not None or (mixed.is_cuda and len(batch.runs) > MAX_RUNS_ON_GPU):
        padding = batch.padding
        key, value = padding.pad(mixed).permute(2, 0, 3, 1, 4).unbind(0)
        mask = padding.mask[:, None, None, :]
        if batch.attention_mask is not None:
            mask = mask & batch.attention_mask[:, None, :1]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)[:, :, 0]
    parts = []
    tokens, texts = mixed.split([n * length for n, length in batch.runs]), query.split([n for n, _ in batch.runs])
    for part, part_query, (n, length) in zip(tokens, texts, batch.runs, strict=True):
        key, value = part.view(n, length, *mixed.shape[1:]).permute(2, 0, 3, 1, 4).unbind(0)
        parts.append(F.scaled_dot_product_attention(part_query, key, value, dropout_p=dropout)[:, :, 0])
    return parts[0] if len(parts) == 1 else torch.cat(parts)
