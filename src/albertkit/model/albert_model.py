"""`AlbertModel`: one encoder and any number of named heads, to and from an artifact folder.

In: a config or a folder. Out: a `ModelOutput`. The parameters have the names of `weights.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, write_artifact
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, nearest
from albertkit.model.encoder import Encoder, EncoderOutput
from albertkit.model.heads import (
    AnswerHead,
    ChooseHead,
    ClassifyHead,
    MlmHead,
    SentenceOrderHead,
    TagHead,
)
from albertkit.model.packed_batch import Batch
from albertkit.tokenizer import Tokenizer
from albertkit.weights import HEADS, heads_in


@dataclass(frozen=True)
class ModelOutput:
    """The outputs of the encoder and, by name, of each head."""

    encoded: EncoderOutput
    heads: dict[str, Any]


def to_tensors(weights: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Copies of arrays as tensors, for `load_state_dict`."""
    return {name: torch.from_numpy(np.array(array, copy=True)) for name, array in weights.items()}


def build_head(name: str, config: AlbertConfig, labels: int = 2) -> nn.Module:
    """A fresh built-in head; `labels` counts the classes of `classify` and `tag`."""
    if name in ("classify", "tag"):
        return (ClassifyHead if name == "classify" else TagHead)(config, labels)
    classes = {"mlm": MlmHead, "sop": SentenceOrderHead, "answer": AnswerHead, "choose": ChooseHead}
    if name not in classes:
        raise AlbertkitError(f"unknown head {name!r}{nearest(name, HEADS)}; built in are {', '.join(HEADS)}")
    return classes[name](config)


class AlbertModel(nn.Module):
    """An encoder with heads on top.

    >>> model = AlbertModel(preset("tiny-zh"), heads={"mlm": build_head("mlm", preset("tiny-zh"))})  # doctest: +SKIP
    >>> model(batch).heads["mlm"].logits  # doctest: +SKIP
    """

    def __init__(self, config: AlbertConfig, heads: Mapping[str, nn.Module] | None = None, pooler: bool = True) -> None:
        super().__init__()
        if config.options.static:
            raise AlbertkitError("a static model has no layers to train; start from the model it was distilled from")
        self.config = config
        self.encoder = Encoder(config, pooler=pooler)
        self.heads = nn.ModuleDict(dict(heads or {}))

    def forward(
        self,
        batch: Batch,
        *,
        depth: int | None = None,
        keep_layers: bool = False,
        heads: Collection[str] | None = None,
        inputs: Mapping[str, Mapping[str, Any]] | None = None,
        first_only: bool = False,
    ) -> ModelOutput:
        """Encode the batch, then run `heads` (default: all).

        inputs: more arguments of a head, such as `inputs={"mlm": {"positions": masked}}`.
        first_only: see `Encoder.forward`; for heads that read the pooler.
        """
        encoded = self.encoder(batch, depth=depth, keep_layers=keep_layers, first_only=first_only)
        chosen = list(self.heads) if heads is None else list(heads)
        for name in chosen:
            if name not in self.heads:
                raise AlbertkitError(f"this model has no head {name!r}; it has {', '.join(self.heads) or 'none'}")
        extra = inputs or {}
        return ModelOutput(encoded, {name: self.heads[name](encoded, **extra.get(name, {})) for name in chosen})

    @classmethod
    def from_artifact(
        cls, artifact: Artifact | Path | str, heads: Mapping[str, nn.Module] | None = None
    ) -> AlbertModel:
        """Load an artifact or its folder. Custom heads in the file need a module of the same name in `heads`."""
        if not isinstance(artifact, Artifact):
            artifact = read_artifact(artifact)
        modules = dict(heads or {})
        for name in heads_in(frozenset(artifact.weights)):
            if name in modules:
                continue
            if name not in HEADS:
                raise AlbertkitError(f"the file has a custom head {name!r}; pass heads={{{name!r}: module}} to load it")
            rows = artifact.weights.get(f"heads.{name}.linear.weight")
            modules[name] = build_head(name, artifact.config, labels=2 if rows is None else len(rows))
        model = cls(artifact.config, modules, pooler="encoder.pooler.weight" in artifact.weights)
        stored_heads = {name.split(".")[1] for name in artifact.weights if name.startswith("heads.")}
        fresh = {n for n in model.state_dict() if n.startswith("heads.") and n.split(".")[1] not in stored_heads}
        state = to_tensors(artifact.weights)
        missing, unexpected = model.load_state_dict(state, strict=False)
        mismatched = sorted(set(missing) - fresh) + sorted(unexpected)
        if mismatched:
            raise AlbertkitError(
                f"the weights do not fit the model: {len(mismatched)} tensors do not match, first {mismatched[0]!r}"
            )
        return model.eval()

    def weights(self) -> dict[str, np.ndarray]:
        """All parameters as numpy arrays under the names of `weights.py`."""
        return {name: value.detach().cpu().numpy() for name, value in self.state_dict().items()}

    def save(
        self,
        folder: Path | str,
        tokenizer: Tokenizer | None = None,
        metadata: ArtifactMetadata | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write an artifact folder."""
        artifact = Artifact(self.config, self.weights(), tokenizer, metadata or ArtifactMetadata())
        return write_artifact(artifact, folder, overwrite=overwrite)
