"""Integrated gradients over the word embeddings, with captum. The only file of this package that needs torch.

In: a model's weights, a subject and a target. Out: an `Attribution` whose values add up to the target's number for the text - that for
a text whose words are all [MASK] or [PAD]: the integral of the gradient on the straight way between the two (Sundararajan and
others, 2017). A token's value is the sum over the numbers of its word vector; position and segment stay. Weights in 8 or 4 bits are
used as the floats they stand for. Before this file: `target.py`; after it: `explainer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albertkit.albert import Albert
from albertkit.artifact import Artifact, Stored
from albertkit.errors import AlbertkitError, need
from albertkit.explain.attribution import Attribution
from albertkit.explain.explained_input import TokenizedInput
from albertkit.explain.target import ExplainTarget
from albertkit.explain.variants import filler_token
from albertkit.model import AlbertModel
from albertkit.model.encoder_options import text_means
from albertkit.model.packed_batch import Batch
from albertkit.model.pooling import pool
from albertkit.runtime.graph_builder import as_float

TOKENS = 4096  # computed at once; gradients hold what every layer made of them


def torch_model(stored: Stored) -> AlbertModel:
    """A model as its folder stores it, in float, ready for gradients with respect to its inputs."""
    floats = {name: np.asarray(as_float(weight), np.float32) for name, weight in stored.weights.items()}
    model = AlbertModel.from_artifact(Artifact(stored.config, floats, stored.tokenizer, stored.meta))
    return model.requires_grad_(False)


class TargetFunction:
    """The target's number as a function of the word vectors of all rows, one behind the other."""

    def __init__(
        self, albert: Albert, model: AlbertModel, subject: TokenizedInput, target: ExplainTarget, depth: int
    ) -> None:
        self.albert, self.model, self.target, self.depth = albert, model, target, depth
        self.one = Batch.of([row.ids for row in subject.rows], [row.segments for row in subject.rows])
        heads = {
            name: tuple(torch.from_numpy(np.array(part, np.float32)) for part in pair)
            for name, pair in albert.heads.items()
        }
        self.heads: dict[str, Any] = heads

    def __call__(self, vectors: Tensor) -> Tensor:
        """(copies, tokens, E) → (copies,)."""
        copies, tokens, _ = vectors.shape
        one = self.one
        batch = replace(
            one, ids=one.ids.repeat(copies), segments=one.segments.repeat(copies), positions=one.positions.repeat(copies),
            runs=tuple((1, length) for _ in range(copies) for length in one.lengths),
            vectors=vectors.flatten(0, 1), places=torch.arange(copies * tokens),
        )  # fmt: skip
        encoded = self.model.encoder(batch, depth=self.depth)
        read = self._read(encoded)
        rows = len(one.lengths)
        return torch.stack([self._value(read[copy * rows : (copy + 1) * rows]) for copy in range(copies)])

    def _read(self, encoded: Any) -> list[Any]:
        """What the target needs of each row."""
        target, details = self.target, self.albert.meta.details
        if target.form == "cosine":
            return list(pool(encoded, self.albert.meta.pooling))
        states = encoded.hidden.split(list(encoded.batch.lengths))
        if target.form == "word":
            head, size = self.model.heads["mlm"], self.albert.tokenizer.vocab_size
            starts = np.cumsum([0, *encoded.batch.lengths])[:-1]
            scores = head(encoded, torch.from_numpy(starts + target.tokens[0])).logits
            return list(scores[:, :size])
        if target.form in ("token", "span"):
            weight, bias = self.heads["tag" if target.form == "token" else "answer"]
            read = [state @ weight.T + bias for state in states]
            return [(None, scores) for scores in read] if target.number == 1 else read
        weight, bias = self.heads["choose" if target.form == "choice" else "classify"]
        vectors = encoded.pooled if encoded.pooled is not None else text_means(encoded.hidden, encoded.batch)
        if details.get("reads") == "vector":
            vectors = torch.nn.functional.normalize(pool(encoded, self.albert.meta.pooling), dim=-1)
        scores = vectors @ weight.T + bias
        return [(row, None) for row in scores] if target.number == 0 else list(scores)

    def _value(self, read: Sequence[Any]) -> Tensor:
        """As `ExplainTarget.odds`, summed, in torch."""
        target = self.target
        if target.form == "cosine":
            other = read[1] if target.reference is None else torch.from_numpy(np.array(target.reference, np.float32))
            return torch.nn.functional.cosine_similarity(read[0], other, dim=0)
        if target.form == "choice":
            read = [torch.cat([row.reshape(-1) for row in read])]
        picked = target.picked(read)
        if target.form in ("label", "number"):
            return torch.stack([target.middle + scores[index] / target.scale for scores, index in picked]).sum()
        return torch.stack([_log_odds(scores / target.scale, index) for scores, index in picked]).sum()


def _log_odds(scores: Tensor, index: int) -> Tensor:
    rest = torch.cat([scores[:index], scores[index + 1 :]])
    return scores[index] - torch.logsumexp(rest, 0)


def integrated_gradients(
    albert: Albert,
    model: AlbertModel,
    subject: TokenizedInput,
    target: ExplainTarget,
    depth: int,
    hide: str = "mask",
    steps: int = 64,
) -> Attribution:
    """Values of words, from `steps` points between the text and one whose words are hidden."""
    captum = need("captum.attr", "explain", "integrated gradients")
    if hide == "drop":
        raise AlbertkitError("hide is 'drop'; gradients go to a text of the same length, so choose mask or pad")
    if not 8 <= steps <= 1024:
        raise AlbertkitError(f"steps is {steps}; choose 8 to 1024")
    measured = TargetFunction(albert, model, subject, target, depth)
    owner = np.concatenate([row.owner for row in subject.rows])
    ids = measured.one.ids
    empty = ids.where(torch.from_numpy(owner < 0), torch.tensor(filler_token(albert, hide)))
    table = model.encoder.embeddings.word
    text, start = table(ids)[None], table(empty)[None]  # (1, tokens, E)
    size = max(1, TOKENS // len(ids))
    found = captum.IntegratedGradients(measured).attribute(text, start, n_steps=steps, internal_batch_size=size)
    with torch.no_grad():
        full, none = (float(measured(vectors)) for vectors in (text, start))
    by_token = found[0].sum(-1).double().numpy()
    values = np.zeros(len(subject.words))
    np.add.at(values, owner[owner >= 0], by_token[owner >= 0])
    return Attribution("gradients", values, full, none)
