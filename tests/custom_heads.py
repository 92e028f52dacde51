"""Custom heads as users write them, and tiny models that have them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from albertkit.artifact import Artifact, ArtifactMetadata, write_artifact
from albertkit.model import AlbertModel
from albertkit.model.albert_model import CustomHead
from tests.conftest import english, tiny

TAGS = ("O", "B-PER", "I-PER")


class AttentionHead(nn.Module):
    """Attention pooling, then two layers. Its two norms are equal at first: an exporter must not merge them."""

    def __init__(self, hidden_size: int, outputs: int) -> None:
        super().__init__()
        self.weigh, self.before = nn.Linear(hidden_size, 1), nn.LayerNorm(hidden_size)
        self.inner, self.after = nn.Linear(hidden_size, hidden_size), nn.LayerNorm(hidden_size)
        self.drop, self.linear = nn.Dropout(0.1), nn.Linear(hidden_size, outputs)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        shares = self.weigh(hidden).squeeze(-1).masked_fill(~mask, -1e4).softmax(-1)  # (texts, length)
        pooled = self.before(torch.einsum("tl,tlh->th", shares, hidden))
        out: Tensor = self.linear(self.drop(self.after(torch.relu(self.inner(pooled)))))
        return out


class TokenHead(nn.Module):
    """Each token with its two neighbours, then a dense layer."""

    def __init__(self, hidden_size: int, outputs: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(hidden_size, hidden_size, 3, padding=1)
        self.dense = nn.Linear(hidden_size, outputs)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.dense(torch.relu(self.mix(hidden.transpose(1, 2)).transpose(1, 2)) + hidden)
        return out


MODELS = {
    "classify": (AttentionHead, ArtifactMetadata(task="classify", labels=("bad", "fine", "good"))),
    "tag": (TokenHead, ArtifactMetadata(task="tag", labels=TAGS)),
}


def save(folder: Path, head: str, seed: int = 3, **details: object) -> AlbertModel:
    """A model with a custom head of random weights, in a folder; and the model in torch."""
    make, metadata = MODELS[head]
    config = tiny(vocab_size=3000, max_position_embeddings=64, initializer_range=0.1)
    torch.manual_seed(seed)
    module = make(config.hidden_size, len(metadata.labels))
    model = AlbertModel(config, {head: CustomHead(head, module, config.hidden_size, len(metadata.labels))}).eval()
    with torch.no_grad():
        for parameter in model.heads.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    metadata = ArtifactMetadata(task=metadata.task, labels=metadata.labels, details=details)
    artifact = Artifact(config, model.weights(), english(), metadata, model.head_graphs())
    write_artifact(artifact, folder, overwrite=True)
    return model
