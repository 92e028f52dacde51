"""From token vectors to one vector a text: mean, cls, pooler or max, over any layer."""

from __future__ import annotations

import torch
from torch import Tensor

from albertkit.errors import AlbertkitError, nearest
from albertkit.model.encoder import Encoded

POOLINGS = ("mean", "cls", "pooler", "max")


def pool(encoded: Encoded, how: str = "mean", layer: int | None = None) -> Tensor:
    """Sentence vectors (texts, H). `layer` picks a kept hidden state (0: embeddings, -1: last); default the last one."""
    if how not in POOLINGS:
        raise AlbertkitError(f"unknown pooling {how!r}{nearest(how, POOLINGS)}; choose one of {', '.join(POOLINGS)}")
    if how == "pooler":
        if encoded.pooled is None or layer is not None:
            why = "this encoder has none" if encoded.pooled is None else "it reads the last layer only"
            raise AlbertkitError(f"pooling 'pooler' is not possible here: {why}; choose mean, cls or max")
        return encoded.pooled
    hidden = encoded.hidden
    if layer is not None:
        if not -len(encoded.layers) <= layer < len(encoded.layers):
            raise AlbertkitError(
                f"layer {layer} was not kept ({len(encoded.layers)} were); encode with keep_layers=True, "
                f"and count from 0, the embeddings"
            )
        hidden = encoded.layers[layer]
    if how == "cls":
        return encoded.batch.first(hidden)
    texts = hidden.split(list(encoded.batch.lengths))
    if how == "mean":
        return torch.stack([text.mean(0) for text in texts])
    return torch.stack([text.amax(0) for text in texts])
