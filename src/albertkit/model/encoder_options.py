"""Modules beyond canonical ALBERT, each behind a field of `config.Options` and off by default.

Each replaces one module of `encoder.py` or `heads.py` with the same signature; the code that builds the module chooses.
A canonical model uses none of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.model.packed_batch import Batch


class DocumentNorm(nn.Module):
    """(x − μ) / (σ + ε), scaled and shifted, with torch's σ (over n − 1), as document 003 writes it.

    LayerNorm adds ε to the variance, which also keeps the gradient of √ finite. Here the variance of equal numbers is
    0, so it is clamped to the smallest number that float32 divides by without overflow.
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


class GruFront(nn.Module):
    """x + GRU(x): one forward layer of width H between the embeddings and the first shared layer.

    One direction, as in document 003: attention sees both sides anyway, padding after a text has no effect, and tokens
    do not depend on later ones, which generation needs. The residual keeps an untrained model close to one without GRU.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        limit = size**-0.5
        self.input_weight = nn.Parameter(torch.empty(3 * size, size).uniform_(-limit, limit))
        self.state_weight = nn.Parameter(torch.empty(3 * size, size).uniform_(-limit, limit))
        self.input_bias = nn.Parameter(torch.zeros(3 * size))
        self.state_bias = nn.Parameter(torch.zeros(3 * size))

    def forward(self, hidden: Tensor, batch: Batch) -> Tensor:
        """(tokens, H) → (tokens, H), each text by itself."""
        if len(batch.runs) == 1:
            return hidden + self.read(hidden.unflatten(0, batch.runs[0])).flatten(0, 1)
        padding = batch.padding
        return hidden + padding.unpad(self.read(padding.pad(hidden)))

    def read(self, x: Tensor) -> Tensor:
        """(texts, length, H) → (texts, length, H)."""
        # float32 on a GPU: older cuDNN kernels do not support bf16 and would compute one token at a time
        dtype = torch.float32 if x.is_cuda else x.dtype
        weights = [w.to(dtype) for w in (self.input_weight, self.state_weight, self.input_bias, self.state_bias)]
        begin = x.new_zeros(1, len(x), x.shape[2], dtype=dtype)
        grad = torch.is_grad_enabled()
        out: Tensor = torch.gru(x.to(dtype).contiguous(), begin, weights, True, 1, 0.0, grad, False, True)[0]
        return out.to(x.dtype)


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
        self.gru = GruFront(h) if config.options.gru else None

    def forward(self, batch: Batch) -> Tensor:
        words = self.projection(batch.words(self.word) * self.scale)
        out: Tensor = self.dropout(self.norm(words + self.segment(batch.segments) + self.position(batch.positions)))
        return out if self.gru is None else self.gru(out, batch)
