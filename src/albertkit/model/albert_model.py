"""`AlbertModel`: one encoder and any number of named heads, the built-in heads, and pooling.

In: a config or a folder. Out: a `ModelOutput`. The parameters have the names of `weights.py`. A head is any `nn.Module`
whose `forward` takes an `EncoderOutput`; `CustomHead` wraps a module that takes padded hidden states (see
`docs/guides/own-layers.md`). Before this file: `encoder.py`; the losses are in `train/task_heads.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, write_artifact
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, check_choice
from albertkit.model.encoder import ACTIVATION, Encoder, EncoderOutput
from albertkit.model.head_export import check_scores, compare_graph, export_head
from albertkit.model.optional_modules import make_norm, text_means
from albertkit.model.packed_batch import Batch
from albertkit.tokenizer import Tokenizer
from albertkit.weights import HEADS, TOKEN_HEADS, heads_in

POOLINGS = ("mean", "cls", "pooler", "max")


@dataclass(frozen=True)
class ModelOutput:
    """The outputs of the encoder and, by name, of each head."""

    encoded: EncoderOutput
    heads: dict[str, Any]


class AlbertModel(nn.Module):
    """An encoder with heads on top.

    >>> model = AlbertModel(preset("tiny-zh"), heads={"mlm": build_head("mlm", preset("tiny-zh"))})  # doctest: +SKIP
    >>> model(batch).heads["mlm"].logits  # doctest: +SKIP
    """

    def __init__(self, config: AlbertConfig, heads: Mapping[str, nn.Module] | None = None, pooler: bool = True) -> None:
        super().__init__()
        if config.options.static:
            raise AlbertkitError("a static model has no layers to train. Start from the model it was distilled from.")
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
        names = list(self.heads) if heads is None else list(heads)
        for name in names:
            if name not in self.heads:
                raise AlbertkitError(f"this model has no head {name!r}. It has: {', '.join(self.heads) or 'none'}.")
        extra = inputs or {}
        return ModelOutput(encoded, {name: self.heads[name](encoded, **extra.get(name, {})) for name in names})

    @classmethod
    def from_artifact(
        cls, artifact: Artifact | Path | str, heads: Mapping[str, nn.Module] | None = None
    ) -> AlbertModel:
        """Load an artifact or its folder. Custom heads in the file need a module of the same name in `heads`."""
        if not isinstance(artifact, Artifact):
            artifact = read_artifact(artifact)
        modules, width = dict(heads or {}), artifact.config.hidden_size
        for name in heads_in(artifact.weights):
            if name in modules and name in artifact.head_graphs and not isinstance(modules[name], CustomHead):
                modules[name] = CustomHead(name, modules[name], width)
            if name in modules:
                continue
            if name not in HEADS or name in artifact.head_graphs:
                raise AlbertkitError(
                    f"the model has a custom head {name!r}, whose Python class is not stored: it cannot run in torch. "
                    f"Pass an object of the class to AlbertModel.from_artifact: heads={{{name!r}: module}}."
                )
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
                f"the weights do not fit the model: {len(mismatched)} tensors differ, for example {mismatched[0]!r}. "
                "Check config.json and the heads."
            )
        return model.eval()

    def weights(self) -> dict[str, np.ndarray]:
        """All parameters as numpy arrays under the names of `weights.py`."""
        return {name: value.detach().cpu().numpy() for name, value in self.state_dict().items()}

    def head_graphs(self) -> dict[str, bytes]:
        """The ONNX graphs of the custom heads by name, compared with the heads as they are now."""
        heads = {name: head for name, head in self.heads.items() if isinstance(head, CustomHead)}
        for name, head in heads.items():
            compare_graph(name, head.module, head.graph, self.config.hidden_size)
        return {name: head.graph for name, head in heads.items()}

    def save(
        self,
        folder: Path | str,
        tokenizer: Tokenizer | None = None,
        metadata: ArtifactMetadata | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write an artifact folder."""
        metadata = metadata or ArtifactMetadata()
        artifact = Artifact(self.config, self.weights(), tokenizer, metadata, self.head_graphs())
        return write_artifact(artifact, folder, overwrite=overwrite)


def to_tensors(weights: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Copies of arrays as tensors, for `load_state_dict`."""
    return {name: torch.from_numpy(np.array(array, copy=True)) for name, array in weights.items()}


# Heads ---------------------------------------------------------------------------------------------------------------


def build_head(name: str, config: AlbertConfig, labels: int = 2) -> nn.Module:
    """A new built-in head; `labels` is the number of classes of `classify` and `tag`."""
    heads: dict[str, Callable[[], nn.Module]] = {
        "mlm": lambda: MlmHead(config),
        "sop": lambda: ClassifyHead(config, 2),  # 0: the two segments are in order, 1: they are swapped
        "classify": lambda: ClassifyHead(config, labels),
        "tag": lambda: TagHead(config, labels),
        "answer": lambda: AnswerHead(config),
        "choose": lambda: ChooseHead(config),
    }
    check_choice("head", name, HEADS)
    return heads[name]()


@dataclass(frozen=True)
class MlmLogits:
    """Scores over the vocabulary for some tokens."""

    logits: Tensor  # (n, V)
    positions: Tensor  # (n,) indices into the packed tokens


@dataclass(frozen=True)
class ClassLogits:
    """Scores over classes: one row per text, per token (tagging) or per question (multiple choice)."""

    logits: Tensor  # (rows, classes)


@dataclass(frozen=True)
class SpanLogits:
    """Scores of each token as the first and as the last of the answer."""

    start: Tensor  # (tokens,)
    end: Tensor  # (tokens,)


class Head(nn.Module):
    """Base of the heads: dropout, then one dense layer."""

    def __init__(self, config: AlbertConfig, outputs: int, dropout: bool = True) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.classifier_dropout_prob if dropout else 0.0)
        self.linear = nn.Linear(config.hidden_size, outputs)
        self.reads_mean = config.options.classifier == "mean"
        nn.init.normal_(self.linear.weight, std=config.initializer_range)
        nn.init.zeros_(self.linear.bias)

    def scores(self, vectors: Tensor) -> Tensor:
        """(n, H) → (n, outputs)."""
        out: Tensor = self.linear(self.dropout(vectors))
        return out

    def text(self, encoded: EncoderOutput) -> Tensor:
        """The vector of each text, (texts, H): the pooler output, or with `classifier="mean"` the mean of tokens."""
        if self.reads_mean:
            return text_means(encoded.hidden, encoded.batch)
        if encoded.pooled is None:
            raise AlbertkitError(
                "this head needs a pooler, but the encoder has none. Build the model with pooler=True."
            )
        return encoded.pooled


class MlmHead(nn.Module):
    """Masked language model: H → E, activation, LayerNorm, then the (tied) word embeddings plus a bias.

    `positions` selects the tokens to score: in pre-training, the masked ones.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.bare_projection = config.options.brightmart_layout
        width = config.hidden_size if self.bare_projection else config.embedding_size
        self.dense = nn.Linear(config.hidden_size, width)
        self.norm = make_norm(config, width)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.activation = ACTIVATION[config.hidden_act]
        nn.init.trunc_normal_(self.dense.weight, std=config.initializer_range)
        nn.init.zeros_(self.dense.bias)

    def forward(self, encoded: EncoderOutput, positions: Tensor | None = None) -> MlmLogits:
        if positions is None:
            positions = torch.arange(len(encoded.hidden), device=encoded.hidden.device)
        vectors = self.norm(self.activation(self.dense(encoded.hidden[positions])))
        if self.bare_projection:  # albert_zh normalises at H and projects to E with the transposed embedding projection
            vectors = vectors @ encoded.projection
        return MlmLogits(F.linear(vectors, encoded.word_table, self.bias), positions)


class ClassifyHead(Head):
    """One row of class scores for each text (one column for a regression)."""

    def forward(self, encoded: EncoderOutput) -> ClassLogits:
        return ClassLogits(self.scores(self.text(encoded)))


class TagHead(Head):
    """One row of label scores for each token."""

    def forward(self, encoded: EncoderOutput) -> ClassLogits:
        return ClassLogits(self.scores(encoded.hidden))


class AnswerHead(Head):
    """Start and end of an answer; no dropout, as in the original."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, 2, dropout=False)

    def forward(self, encoded: EncoderOutput) -> SpanLogits:
        start, end = self.scores(encoded.hidden).unbind(-1)
        return SpanLogits(start, end)


class ChooseHead(Head):
    """Multiple choice: a text is a question with one of its choices; `choices` consecutive texts form a question."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, 1)

    def forward(self, encoded: EncoderOutput, choices: int) -> ClassLogits:
        texts = len(encoded.batch.lengths)
        if texts % choices:
            raise AlbertkitError(
                f"{texts} texts cannot be split into questions of {choices} choices. Pass all choices of each question."
            )
        return ClassLogits(self.scores(self.text(encoded)).view(-1, choices))


class CustomHead(nn.Module):
    """A module of the user in place of a built-in head. The artifact stores it as an ONNX graph.

    module: takes `hidden` (texts, length, H), which is 0 at padding, and `mask` (texts, length), which is False there.
    Returns scores: (texts, outputs) for classify and choose, (texts, length, outputs) for tag and answer.
    outputs: the number of scores that the task needs; None: any.
    """

    def __init__(self, name: str, module: nn.Module, hidden_size: int, outputs: int | None = None) -> None:
        super().__init__()
        self.graph = export_head(name, module, hidden_size, outputs)
        self.name, self.module = name, module

    def forward(self, encoded: EncoderOutput, choices: int = 1) -> ClassLogits | SpanLogits:
        mask = encoded.batch.padding.mask
        scores = self.module(encoded.batch.pad(encoded.hidden), mask)
        check_scores(self.name, self.module, scores, mask)
        if self.name in TOKEN_HEADS:
            scores = scores[mask]  # (tokens, outputs)
        if self.name == "answer":
            return SpanLogits(*scores.unbind(-1))
        return ClassLogits(scores.view(-1, choices) if self.name == "choose" else scores)


def pool(encoded: EncoderOutput, how: str = "mean") -> Tensor:
    """Sentence vectors (texts, H)."""
    check_choice("pooling", how, POOLINGS)
    if how == "pooler":
        if encoded.pooled is None:
            raise AlbertkitError("pooling='pooler' is not available: there is no pooler. Choose mean, cls or max.")
        return encoded.pooled
    if how == "cls":
        return encoded.batch.first(encoded.hidden)
    texts = encoded.hidden.split(list(encoded.batch.lengths))
    if how == "mean":
        return torch.stack([text.mean(0) for text in texts])
    return torch.stack([text.amax(0) for text in texts])
