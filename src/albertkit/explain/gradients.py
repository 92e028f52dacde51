"""Integrated gradients over the word embeddings, with captum. The only file of this package that needs torch.

In: `InputVariants` and the model in torch. Out: an `Attribution` whose values sum to the target's value for the text
- that for a text of [MASK] or [PAD]: the integral of the gradient along the straight line between the two
(Sundararajan et al., 2017). A token's value is the sum over its word vector; position and segment embeddings stay.
Quantized weights are dequantized to floats. Imports `attribution.py`; `explainer.py` uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albertkit.artifact import Artifact, StoredModel
from albertkit.errors import AlbertkitError, need
from albertkit.explain.attribution import Attribution, InputVariants, filler_token
from albertkit.model import AlbertModel, EncoderOutput, pool
from albertkit.model.packed_batch import Batch
from albertkit.runtime.graph_builder import as_float
from albertkit.runtime.predict import has_frozen_head

TOKENS_AT_ONCE = 4096  # gradients keep the activations of every layer


def torch_model(stored: StoredModel) -> AlbertModel:
    """A stored model in float, for gradients with respect to its inputs."""
    if stored.head_graphs:
        raise AlbertkitError(
            "gradients are not available: this model has a custom head, which is stored as an ONNX graph. "
            "Choose the method occlusion."
        )
    floats = {name: np.asarray(as_float(weight), np.float32) for name, weight in stored.weights.items()}
    model = AlbertModel.from_artifact(Artifact(stored.config, floats, stored.tokenizer, stored.metadata))
    return model.requires_grad_(False)


class TargetFunction:
    """The target's value as a function of the word vectors of all rows, concatenated."""

    def __init__(self, variants: InputVariants, model: AlbertModel, depth: int) -> None:
        self.albert, self.target, self.model, self.depth = variants.albert, variants.target, model, depth
        rows = variants.input.rows
        self.batch = Batch.of([row.ids for row in rows], [row.segments for row in rows])

    def __call__(self, vectors: Tensor) -> Tensor:
        """(copies, tokens, E) → (copies,)."""
        copies, tokens, _ = vectors.shape
        one = self.batch
        batch = replace(
            one,
            ids=one.ids.repeat(copies),
            segments=one.segments.repeat(copies),
            positions=one.positions.repeat(copies),
            runs=tuple((1, length) for _ in range(copies) for length in one.lengths),
            vectors=vectors.flatten(0, 1),
            places=torch.arange(copies * tokens),
        )
        encoded = self.model.encoder(batch, depth=self.depth)
        outputs = self._read(encoded)
        rows = len(one.lengths)
        return torch.stack([self._value(outputs[copy * rows : (copy + 1) * rows]) for copy in range(copies)])

    def _read(self, encoded: EncoderOutput) -> list[Any]:
        """What the target reads of each row, as `attribution.read_target` does."""
        target, heads, lengths = self.target, self.model.heads, list(encoded.batch.lengths)
        if target.form == "cosine":
            return list(pool(encoded, self.albert.metadata.pooling))
        if target.form == "word":
            starts = np.cumsum([0, *lengths])[:-1]
            scores = heads["mlm"](encoded, torch.from_numpy(starts + target.tokens[0])).logits
            return list(scores[:, : self.albert.tokenizer.vocab_size])
        if target.form == "token":
            outputs = heads["tag"](encoded).logits.split(lengths)
        elif target.form == "span":
            answer = heads["answer"](encoded)
            outputs = torch.stack([answer.start, answer.end], -1).split(lengths)
        elif has_frozen_head(self.albert):
            vectors = torch.nn.functional.normalize(pool(encoded, self.albert.metadata.pooling), dim=-1)
            outputs = heads["classify"].linear(vectors)  # type: ignore[operator]
        else:
            outputs = heads["classify"](encoded).logits
        if target.head is None:
            return list(outputs)
        return [(None, scores) if target.head else (scores, None) for scores in outputs]

    def _value(self, outputs: Sequence[Any]) -> Tensor:
        """`ExplainTarget.value` in torch."""
        target = self.target
        if target.form == "cosine":
            other = outputs[1] if target.reference is None else torch.from_numpy(np.array(target.reference, np.float32))
            return torch.nn.functional.cosine_similarity(outputs[0], other, dim=0)
        selected = target.select(outputs)
        if target.form in ("label", "number"):
            return torch.stack([target.offset + scores[index] / target.scale for scores, index in selected]).sum()
        return torch.stack([_log_odds(scores / target.scale, index) for scores, index in selected]).sum()


def _log_odds(scores: Tensor, index: int) -> Tensor:
    others = torch.cat([scores[:index], scores[index + 1 :]])
    return scores[index] - torch.logsumexp(others, 0)


def integrated_gradients(variants: InputVariants, model: AlbertModel, steps: int = 64) -> Attribution:
    """Values of words, from `steps` points between the text and one whose words are hidden."""
    captum = need("captum.attr", "explain", "integrated gradients")
    if variants.hide == "drop":
        raise AlbertkitError("hide='drop' changes the length of the text. For gradients choose mask or pad.")
    if not 8 <= steps <= 1024:
        raise AlbertkitError(f"steps={steps} is out of range. Choose 8 to 1024.")
    albert = variants.albert
    function = TargetFunction(variants, model, albert.layers_to_apply(variants.depth))
    owner = np.concatenate([row.owner for row in variants.input.rows])
    ids = function.batch.ids
    hidden_ids = ids.where(torch.from_numpy(owner < 0), torch.tensor(filler_token(albert, variants.hide)))
    table = model.encoder.embeddings.word
    text, baseline = table(ids)[None], table(hidden_ids)[None]  # (1, tokens, E)
    batch_size = max(1, TOKENS_AT_ONCE // len(ids))
    method = captum.IntegratedGradients(function)
    gradients = method.attribute(text, baseline, n_steps=steps, internal_batch_size=batch_size)
    with torch.no_grad():
        full, empty = (float(function(vectors)) for vectors in (text, baseline))
    token_values = gradients[0].sum(-1).double().numpy()
    values = np.zeros(len(variants.input.words))
    np.add.at(values, owner[owner >= 0], token_values[owner >= 0])
    return Attribution("gradients", values, full, empty)
