"""Fill-mask: predictions of the masked-language-model head. No torch.

In: a `RuntimeModel` with that head, and a text with `[MASK]`. Out: `MaskPrediction`s, the best first. Before this file:
`runtime_model.py`. After it: `albert.py`; the server calls `encode_masks` and `likeliest_tokens` around its queue.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from albertkit.errors import AlbertkitError, check_count, check_finite, check_string
from albertkit.input_warnings import find_problems, report_problems
from albertkit.runtime.batching import token_batches
from albertkit.runtime.embed import MAX_CHARACTERS
from albertkit.runtime.runtime_model import Depth, RuntimeModel
from albertkit.tokenizer import Encoding

MASKS_PER_STEP = 16  # each has the scores of the whole vocabulary


@dataclass(frozen=True, slots=True)
class MaskPrediction:
    """A predicted word for a mask.

    >>> from albertkit import Albert
    >>> Albert("small-pretrained").fill_mask("She drank a cup of [MASK].")[0][0].word
    'wine'
    """

    word: str
    score: float
    """Its probability."""


class TokenProbabilities(NamedTuple):
    """The likeliest tokens for a mask, the best first."""

    ids: np.ndarray  # (k,)
    probabilities: np.ndarray  # (k,)


def fill_mask(model: RuntimeModel, text: str, k: int, depth: Depth | None = None) -> list[list[MaskPrediction]]:
    """The `k` likeliest words for each [MASK] of a text."""
    encoding, positions = encode_masks(model, text, k)
    (batch,) = token_batches([encoding.ids], [encoding.segments])
    hidden = model.engine.run(batch, model.layers_to_apply(depth))[0, positions]
    return mask_predictions(model, likeliest_tokens(model, hidden, k))


def encode_masks(model: RuntimeModel, text: str, k: int) -> tuple[Encoding, list[int]]:
    """The encoding of a text with [MASK], and the positions of its masks."""
    if model.tokenizer.mask_id is None:
        raise AlbertkitError("this vocabulary has no [MASK]. Use a model whose tokenizer has one.")
    check_string("text", text)
    check_count("k", k, 1, model.config.vocab_size)
    if len(text) > MAX_CHARACTERS:
        raise AlbertkitError(
            f"the text has {len(text):,} characters; with a mask it must fit into {model.max_tokens} tokens. Shorten it"
        )
    encoding = model.tokenizer.encode(text, recognize_mask=True)
    positions = [i for i, token in enumerate(encoding.ids) if token == model.tokenizer.mask_id]
    if not positions:
        raise AlbertkitError(f"{text[:40]!r} has no [MASK]. Write [MASK] where a word is missing.")
    if len(encoding.ids) > model.max_tokens:
        raise AlbertkitError(
            f"the text has {len(encoding.ids)} tokens; with a mask it must fit into {model.max_tokens}. Shorten it"
        )
    bare = text.replace("[MASK]", " ")
    report_problems(replace(find_problems(model.tokenizer, [bare], [encoding.ids]), blank=0))
    return encoding, positions


def likeliest_tokens(model: RuntimeModel, hidden: np.ndarray, k: int) -> list[TokenProbabilities]:
    """The `k` likeliest tokens for each of the hidden states (n, H); NaN if a score is not finite."""
    predictions: list[TokenProbabilities] = []
    for start in range(0, len(hidden), MASKS_PER_STEP):
        scores = model.engine.mlm_logits(hidden[start : start + MASKS_PER_STEP])
        scores = np.where(np.isfinite(scores).all(axis=1, keepdims=True), scores, np.nan)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores = (scores / scores.sum(axis=1, keepdims=True))[:, : model.tokenizer.vocab_size]
        best = np.argpartition(-scores, min(k, scores.shape[1] - 1), axis=1)[:, :k].astype(np.int32)
        values = np.take_along_axis(scores, best, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        ranked = (np.take_along_axis(array, order, axis=1) for array in (best, values))
        predictions += map(TokenProbabilities, *ranked)
    return predictions


def mask_predictions(model: RuntimeModel, tokens: list[TokenProbabilities]) -> list[list[MaskPrediction]]:
    """The tokens of `likeliest_tokens` as words, for each mask of a text."""
    check_finite("probabilities", [top.probabilities for top in tokens])

    def predict(token: str, score: float) -> MaskPrediction:
        word = token.removeprefix("##").replace("▁", "") or token
        return MaskPrediction(sys.intern(word), score)  # predictions for other masks share it

    return [list(map(predict, model.tokenizer.tokens(top.ids), top.probabilities.tolist())) for top in tokens]
