"""Which words carry a prediction: values of words, by several methods. No torch here; gradients are in `gradients.py`.

In: `InputVariants` or attention `AttentionMap`s. Out: an `Attribution`. Positive values speak for the target, negative ones against it; attention and
rollout know no against.

occlusion   value of the text - value without the word. As many variants as words, in one call.
shapley     the mean of what a word adds when words come one by one in a random order (Castro and others, 2009); each order is used backwards too. The
            values add up to the value of the text - that of a text whose words are all hidden.
rollout     what of a word could have reached the tokens that are read (`attention.py`).
attention   what these look at in the last layer, on average over heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.explain.attention_maps import AttentionMap, attention_by_word
from albertkit.explain.variants import InputVariants

METHODS = ("occlusion", "shapley", "gradients", "rollout", "attention")
MOST_VARIANTS = 20_000  # rows of tokens; with choices, a variant has one for each


@dataclass(frozen=True)
class Attribution:
    """What each word adds to a target's number."""

    method: str
    values: np.ndarray  # (words,)
    full: float | None = None
    """The number for the whole text; None for attention, which explains no number."""
    empty: float | None = None
    """The number with all words hidden. For shapley and gradients, the values add up to full - empty."""


def occlusion(variants: InputVariants) -> Attribution:
    """Each word hidden by itself."""
    words = len(variants.subject.words)
    kept = np.concatenate([np.ones((1, words), bool), ~np.eye(words, dtype=bool), np.zeros((1, words), bool)])
    values, _ = variants.values(kept)
    return Attribution("occlusion", values[0] - values[1:-1], float(values[0]), float(values[-1]))


def shapley(variants: InputVariants, samples: int = 16, seed: int = 0) -> Attribution:
    """Words that come one by one, in `samples` random orders and their reverses."""
    words = len(variants.subject.words)
    most = max(1, MOST_VARIANTS // (2 * words * len(variants.subject.rows)))
    if not 1 <= samples <= most:
        raise AlbertkitError(f"samples is {samples}; for a text of {words} words choose 1 to {most}")
    rng = np.random.default_rng(seed)
    orders = [order for _ in range(samples) for one in [rng.permutation(words)] for order in (one, one[::-1])]
    ranks = np.argsort(np.array(orders), axis=1)  # when each word comes
    kept = ranks[:, None, :] < np.arange(words + 1)[None, :, None]  # (orders, steps, words)
    values = variants.values(kept.reshape(-1, words))[0].reshape(len(orders), words + 1)
    gains = np.diff(values, axis=1)  # of the word that comes at each step
    found = np.take_along_axis(gains, ranks, axis=1).mean(axis=0)
    return Attribution("shapley", found, float(values[0, -1]), float(values[0, 0]))


def attention_attribution(
    method: str, maps: Sequence[AttentionMap], readers: Sequence[Sequence[int]], words: int
) -> Attribution:
    """Attention or rollout of the tokens that are read in each row."""
    found = np.zeros(words)
    for one, read in zip(maps, readers, strict=True):
        table = one.rollout if method == "rollout" else one.attention[-1].mean(axis=0)
        found += attention_by_word(table, read, one.owner, words)
    return Attribution(method, found)
