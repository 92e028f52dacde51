"""What a compressed model loses in its own metric, on real sentences. No torch.

In: the full and the compressed model. Out: `MetricLoss`, printed by `quantize`, `prune` and `static`. The metric of a
pre-trained model is the accuracy of its MLM predictions, that of any other model the ranking of the similarities of all
pairs of sentences. The cosine of each vector with that of the full model says less: in a pre-trained model, vectors of
different sentences have a cosine of 0.9, too. The score of a task needs labelled examples (`quantize.QualityCheck`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from albertkit.artifact import Artifact, StoredModel
from albertkit.errors import AlbertkitError
from albertkit.runtime.agreement import ComparedTexts, compared_texts
from albertkit.runtime.batching import token_batches
from albertkit.runtime.embed import embed_options, embed_texts
from albertkit.runtime.runtime_model import RuntimeModel

MASKED_SHARE, ROUNDS = 0.15, 3
MIN_TEXTS = 16  # fewer texts of the user say too little: built-in sentences are used
MAX_TEXTS = 1_000  # all pairs of them are compared
MLM, RANKING = "MLM accuracy", "similarity ranking"


@dataclass(frozen=True)
class MetricLoss:
    """The metric of a model before and after compression, and what a model without knowledge would score."""

    metric: str
    """`MLM accuracy`: the share of masked tokens that are predicted as in the text. `similarity ranking`: Spearman's
    correlation of the cosines of all pairs of texts with those of the full model."""
    before: float
    after: float
    baseline: float
    """For MLM accuracy, that of always predicting the most frequent token; for a ranking, 0."""
    count: int
    """The number of masked tokens, or of pairs of texts."""
    texts: int
    kind: str
    """The kind of texts."""

    def __str__(self) -> str:
        where = f"{self.texts} {self.kind}"
        if self.metric == MLM:
            return (
                f"MLM accuracy {self.before:.1%} before, {self.after:.1%} after, on {self.count} masked tokens of "
                f"{where} (always the most frequent token: {self.baseline:.1%})"
            )
        return f"ranking of the similarities of {where}: Spearman {self.after:.3f} (as before: 1, unrelated: 0)"


def metric_loss(
    before: RuntimeModel, after: RuntimeModel, texts: Sequence[str] | None = None, kind: str = "texts"
) -> MetricLoss | None:
    """The loss on texts; if there are few, on built-in sentences. None if the model can read neither."""
    if texts is not None and len(texts) >= MIN_TEXTS:
        sample = [text for text in texts if text.strip()][:MAX_TEXTS]
        compared: ComparedTexts | None = ComparedTexts(sample, kind)
    else:
        compared = compared_texts(before.tokenizer)
    if compared is None:
        return None
    number, masks = len(compared.texts), before.tokenizer.mask_id
    if before.metadata.task == "pretrain" and before.can_fill_masks and after.can_fill_masks and masks is not None:
        (full, originals), (small, small_originals) = (
            masked_predictions(model, compared.texts) for model in (before, after)
        )
        baseline = np.unique(originals, return_counts=True)[1].max() / len(originals)
        scores = float((full == originals).mean()), float((small == small_originals).mean())
        return MetricLoss(MLM, *scores, float(baseline), len(originals), number, compared.kind)
    first, second = (pairwise_cosines(model, compared.texts) for model in (before, after))
    return MetricLoss(RANKING, 1.0, spearman(first, second), 0.0, len(first), number, compared.kind)


def open_in_memory(model: Artifact | StoredModel, name: str) -> RuntimeModel:
    """A model that is not in a folder, ready to run."""
    return RuntimeModel(StoredModel(model.config, dict(model.weights), model.tokenizer, model.metadata), source=name)


def masked_predictions(model: RuntimeModel, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The predicted and the original token at masked positions: the same ones for each model with this vocabulary.

    Each text is read `ROUNDS` times, with other tokens masked.
    """
    limit, mask = min(128, model.max_tokens), model.tokenizer.mask_id
    rows: list[list[int]] = []
    chosen: list[np.ndarray] = []
    for number, encoding in enumerate(model.tokenizer.encode_batch(list(texts), max_length=limit)):
        inside = len(encoding.ids) - 2  # without [CLS] and [SEP]
        order = 1 + np.random.default_rng(number).permutation(max(0, inside))
        each = max(1, round(MASKED_SHARE * inside))
        for start in range(0, min(ROUNDS * each, len(order)), each):
            rows.append(list(encoding.ids))
            chosen.append(order[start : start + each])
    if not rows or mask is None:
        raise AlbertkitError("the texts have no tokens to mask. Pass other texts.")
    originals = [np.array(row)[at] for row, at in zip(rows, chosen, strict=True)]
    for row, positions in zip(rows, chosen, strict=True):
        for position in positions:
            row[position] = mask
    predicted: list[np.ndarray] = [np.empty(0, np.int64)] * len(rows)
    for batch in token_batches(rows):
        hidden = model.engine.run(batch, model.depth)
        masked = np.concatenate([hidden[at, chosen[number]] for at, number in enumerate(batch.order)])
        tokens = model.engine.mlm_logits(masked).argmax(axis=1)
        for number in batch.order:
            predicted[number], tokens = np.split(tokens, [len(chosen[number])])
    return np.concatenate(predicted), np.concatenate(originals)


def pairwise_cosines(model: RuntimeModel, texts: Sequence[str]) -> np.ndarray:
    """The cosines of all pairs of texts, in the model's own pooling and depth."""
    options = embed_options(model, normalize=True, long_texts="truncate")
    vectors = np.stack(list(embed_texts(model, texts, options)))
    return np.asarray((vectors @ vectors.T)[np.triu_indices(len(vectors), 1)])


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's rank correlation; 0 if one side has equal numbers only. (scipy is not installed with the runtime.)

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 90.0]))
    1.0
    """
    ranks = []
    for values in (first, second):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts + 1) / 2)[inverse])  # equal numbers share their mean rank
    centred = [rank - rank.mean() for rank in ranks]
    size = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum() / size) if size else 0.0
