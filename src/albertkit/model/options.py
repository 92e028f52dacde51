"""Pieces that go beyond canonical ALBERT, each behind a field of `config.Options` and off by default.

A piece replaces one module of `encoder.py` or `heads.py` and keeps its signature; the one line that chooses it stands where
the module is built. Nothing here is used by a canonical model.
"""

from __future__ import annotations

from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.model.batch import Batch


class BrightmartEmbeddings(nn.Module):
    """Embeddings of the albert_zh checkpoints: the word table is projected to H first, without bias; position, segment and
    LayerNorm are at size H. (Published before the official Chinese models, and not convertible into their form.)
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        e, h = config.embedding_size, config.hidden_size
        self.word = nn.Embedding(config.vocab_size, e)
        self.projection = nn.Linear(e, h, bias=False)
        self.position = nn.Embedding(config.max_position_embeddings, h)
        self.segment = nn.Embedding(config.type_vocab_size, h)
        self.norm = nn.LayerNorm(h, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.scale = e**0.5 if config.options.scale_embedding else 1.0

    def forward(self, batch: Batch) -> Tensor:
        words = self.projection(batch.words(self.word) * self.scale)
        out: Tensor = self.dropout(self.norm(words + self.segment(batch.segments) + self.position(batch.positions)))
        return out
