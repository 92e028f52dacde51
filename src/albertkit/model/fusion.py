"""Features of images, sounds or sensors as extra tokens of a text.

In: a `Batch` and `ExtraFeatures` of any width. Out: a `Batch` in which each text has k more tokens, for the encoder.
Before this file: `packed_batch.py`, whose `vectors` replace word vectors. `docs/guides/own-layers.md` has an example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, nearest
from albertkit.model.packed_batch import Batch, length_runs


@dataclass(frozen=True)
class ExtraFeatures:
    """Features that belong to the texts of a batch: k vectors of one kind for each text."""

    kind: str
    """The name of their projection in `Fusion`, such as "image" or "sound"."""
    vectors: Tensor  # (texts, k, D)
    segment: int = 0
    """The segment that the extra tokens belong to."""


class Fusion(nn.Module):
    """A projection from D to E for each kind of features; calling it inserts the results into texts.

    sizes: D of each kind. The extra tokens follow the first token ([CLS]), and positions are renumbered. As a head of
    an `AlbertModel`, `Fusion` is saved and loaded with the model. Then pass `heads` when you call the model, since
    `Fusion` is not run as a head.
    """

    def __init__(self, config: AlbertConfig, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.config = config
        # The name in weight files: extra tokens are at the start of a text.
        self.start = nn.ModuleDict({kind: nn.Linear(size, config.embedding_size) for kind, size in sizes.items()})
        for linear in self.start.values():
            nn.init.normal_(linear.weight, std=config.initializer_range)  # type: ignore[arg-type]
            nn.init.zeros_(linear.bias)  # type: ignore[arg-type]

    def forward(self, batch: Batch, extras: Sequence[ExtraFeatures] | ExtraFeatures) -> Batch:
        """The batch with the extra tokens of each text, in the order of `extras`."""
        extras = [extras] if isinstance(extras, ExtraFeatures) else extras
        if batch.attention_mask is not None or batch.vectors is not None:
            raise AlbertkitError("this batch already has an attention mask or vectors. Pass a batch without them.")
        texts = len(batch.lengths)
        projected = [self.project(extra, texts) for extra in extras]  # (texts, k, E) each
        if not projected:
            return batch
        device = batch.ids.device
        vectors = torch.cat(projected, 1).to(device)
        count = vectors.shape[1]
        kinds = torch.cat([torch.full((extra.vectors.shape[1],), extra.segment) for extra in extras]).to(device)
        lengths = [length + count for length in batch.lengths]
        if max(lengths) > self.config.max_position_embeddings:
            raise AlbertkitError(
                f"with {count} extra tokens a text has {max(lengths)} tokens: this model supports at most "
                f"{self.config.max_position_embeddings}. Shorten the text."
            )
        is_word, begins = torch.ones(sum(lengths), dtype=torch.bool), torch.tensor([0, *lengths[:-1]]).cumsum(0)
        places = begins[:, None] + 1 + torch.arange(count)  # (texts, k)
        is_word[places.flatten()] = False
        is_word, places = is_word.to(device), places.to(device)
        ids, segments = (values.new_zeros(len(is_word)) for values in (batch.ids, batch.segments))
        ids[is_word], segments[is_word] = batch.ids, batch.segments
        segments[places] = kinds.to(segments.dtype)
        positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
        return Batch(
            ids, segments, positions, length_runs(lengths), vectors=vectors.flatten(0, 1), places=places.flatten()
        )

    def project(self, extra: ExtraFeatures, texts: int) -> Tensor:
        """Features of one kind at size E."""
        if extra.kind not in self.start:
            known = ", ".join(self.start) or "none"
            raise AlbertkitError(f"there is no kind {extra.kind!r}{nearest(extra.kind, self.start)}. Choose {known}.")
        linear, shape = self.start[extra.kind], tuple(extra.vectors.shape)
        if len(shape) != 3 or shape[0] != texts or shape[1] < 1 or shape[2] != linear.in_features:
            raise AlbertkitError(
                f"the features {extra.kind!r} have shape {shape}: for {texts} texts it must be "
                f"({texts}, k, {linear.in_features})."
            )
        if not 0 <= extra.segment < self.config.type_vocab_size:
            raise AlbertkitError(
                f"segment={extra.segment} is not available: this model has 0 to {self.config.type_vocab_size - 1}."
            )
        weight: Tensor = linear.weight  # type: ignore[assignment]
        out: Tensor = linear(extra.vectors.to(weight.device, weight.dtype))
        return out
