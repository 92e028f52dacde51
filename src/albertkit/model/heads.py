"""Task heads and pooling.

In: an `EncoderOutput`. Out: `MlmLogits`, `ClassLogits` or `SpanLogits`, or sentence vectors. A head is any `nn.Module`
whose `forward` takes an `EncoderOutput` (`docs/own-head.md`). Before this file: `encoder.py`. After it:
`albert_model.py`; the losses are in `train/task_losses.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, nearest
from albertkit.model.encoder import ACTIVATION, EncoderOutput
from albertkit.model.encoder_options import make_norm, text_means


@dataclass(frozen=True)
class MlmLogits:
    """Scores over the vocabulary at some tokens."""

    logits: Tensor  # (n, V)
    positions: Tensor  # (n,) indices into the packed tokens


@dataclass(frozen=True)
class ClassLogits:
    """Scores over classes: a row for each text (or each token, for tagging; or each question, for multiple choice)."""

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
        """The vector of each text, (texts, H): the pooler's, or with `classifier="mean"` the mean of the tokens."""
        if self.reads_mean:
            return text_means(encoded.hidden, encoded.batch)
        if encoded.pooled is None:
            raise AlbertkitError(
                "this head reads the pooler, and this encoder has no pooler; build it with pooler=True"
            )
        return encoded.pooled


class MlmHead(nn.Module):
    """Masked language model: H → E, activation, LayerNorm, then the (tied) word table plus a bias.

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


class SentenceOrderHead(Head):
    """Whether the two segments are in order (0) or swapped (1)."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, 2)

    def forward(self, encoded: EncoderOutput) -> ClassLogits:
        return ClassLogits(self.scores(self.text(encoded)))


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
    """Multiple choice: each text is one question with one of its choices; `choices` texts in a row belong together."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, 1)

    def forward(self, encoded: EncoderOutput, choices: int) -> ClassLogits:
        texts = len(encoded.batch.lengths)
        if texts % choices:
            raise AlbertkitError(
                f"{texts} texts cannot be split into questions of {choices} choices; pass all choices of each question"
            )
        return ClassLogits(self.scores(self.text(encoded)).view(-1, choices))


POOLINGS = ("mean", "cls", "pooler", "max")


def pool(encoded: EncoderOutput, how: str = "mean", layer: int | None = None) -> Tensor:
    """Sentence vectors (texts, H). `layer` picks a kept hidden state (0: embeddings, -1: last); default: the last."""
    if how not in POOLINGS:
        raise AlbertkitError(f"unknown pooling {how!r}{nearest(how, POOLINGS)}; choose one of {', '.join(POOLINGS)}")
    if how == "pooler":
        if encoded.pooled is None or layer is not None:
            reason = "this encoder has none" if encoded.pooled is None else "it reads the last layer only"
            raise AlbertkitError(f"pooling 'pooler' is not possible here: {reason}; choose mean, cls or max")
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
