"""Self-attention inside each text of a packed batch.

In: hidden states (tokens, H) and the batch. Out: (tokens, H). A token attends to the tokens of its own text only. Texts of
equal length that stand side by side are one call of torch's fused attention; no padding is computed on and no mask is built.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.model.batch import Batch


class Attention(nn.Module):
    """Multi-head attention, softmax(QKᵀ/√d)·V, with its output projection; dropout on the weights and on the output."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        h = config.hidden_size
        self.query = nn.Linear(h, h)
        self.key = nn.Linear(h, h)
        self.value = nn.Linear(h, h)
        self.output = nn.Linear(h, h)
        self.heads = config.num_attention_heads
        self.weight_dropout = config.attention_probs_dropout_prob
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, batch: Batch) -> Tensor:
        tokens = hidden.shape[0]
        weight = torch.cat([self.query.weight, self.key.weight, self.value.weight])
        bias = torch.cat([self.query.bias, self.key.bias, self.value.bias])
        mixed = F.linear(hidden, weight, bias).view(tokens, 3, self.heads, -1)  # (tokens, 3, heads, d)
        dropout = self.weight_dropout if self.training else 0.0
        mixed = attend(mixed, batch.runs, dropout)  # (tokens, heads, d)
        out: Tensor = self.output_dropout(self.output(mixed.reshape(tokens, -1)))
        return out


def attend(mixed: Tensor, runs: tuple[tuple[int, int], ...], dropout: float = 0.0) -> Tensor:
    """Attention over packed queries, keys and values (tokens, 3, heads, d); one fused call for each run of equal lengths."""
    parts = []
    start = 0
    for texts, length in runs:
        part = mixed[start : start + texts * length].view(texts, length, *mixed.shape[1:])
        query, key, value = part.permute(2, 0, 3, 1, 4).unbind(0)  # (texts, heads, length, d) each
        context = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        parts.append(context.transpose(1, 2).reshape(texts * length, *mixed.shape[2:]))
        start += texts * length
    return parts[0] if len(parts) == 1 else torch.cat(parts)
