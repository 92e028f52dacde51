"""How much each word contributes to a prediction: occlusion, Shapley values, attention and attention rollout.

In: a `TokenizedInput` and an `ExplainTarget`, or attention. Out: an `Attribution`. Before: `target.py`; next:
`explainer.py`.

occlusion   value of the text - value without the word. One variant per word, all in one call.
shapley     what a word adds on average when words are added in random orders (Castro et al., 2009); each order is
            also used in reverse. The values sum to value of the text - value with all words hidden.
rollout     attention multiplied through the layers (Abnar and Zuidema, 2020): the mean A of the heads of each layer
            with half of it on the residual path, (A + 1) / 2. It ignores values, feed-forward layers and sign.
attention   attention of the last layer, averaged over heads.
gradients   integrated gradients; in `gradients.py`, because they need torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.explain.explain_input import TokenizedInput, TokenRow
from albertkit.explain.target import ExplainTarget, log_odds
from albertkit.runtime.batching import token_batches
from albertkit.runtime.embed import pool
from albertkit.runtime.predict import read_heads

if TYPE_CHECKING:
    from albertkit.runtime.runtime_model import RuntimeModel

METHODS = ("occlusion", "shapley", "gradients", "rollout", "attention")
HIDE_MODES = ("mask", "drop", "pad")
MAX_VARIANTS = 20_000  # rows of tokens; with choices, a variant has one row per choice


@dataclass(frozen=True)
class Attribution:
    """How much each word contributes to the target's value. Positive values support the target, negative ones oppose
    it.

    Attention and rollout have no negative values.
    """

    method: str
    values: np.ndarray  # (words,)
    full: float | None = None
    """The value of the whole text; None for attention and rollout, which explain no value."""
    empty: float | None = None
    """The value with all words hidden. For shapley and gradients, the values sum to full - empty."""


# Words hidden ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputVariants:
    """An input whose words can be hidden. A token that the target reads is never dropped but masked."""

    albert: RuntimeModel
    input: TokenizedInput
    target: ExplainTarget
    hide: str = "mask"
    depth: int | None = None

    def values(self, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(variants, words) bool → the target's value and probability for each variant."""
        filler = filler_token(self.albert, self.hide)
        unique: dict[tuple[int, bytes], int] = {}
        rows: list[tuple[np.ndarray, np.ndarray, ExplainTarget]] = []
        row_numbers: list[list[int]] = []
        targets: list[ExplainTarget] = []
        for kept_words in np.asarray(kept, bool):
            numbers = []
            for number, row in enumerate(self.input.rows):
                read = self.target.tokens if number == 0 else ()
                ids, segments, positions = hide_words(row, kept_words, filler, self.hide, read)
                target = self.target.at_positions(positions) if number == 0 else self.target
                key = (number, np.append(ids, target.tokens).tobytes())
                if key not in unique:
                    unique[key] = len(rows)
                    rows.append((ids, segments, target))
                numbers.append(unique[key])
                if number == 0:
                    targets.append(target)
            row_numbers.append(numbers)
        scores = self._scores(rows)
        pairs = [(target, [scores[n] for n in numbers]) for target, numbers in zip(targets, row_numbers, strict=True)]
        return (
            np.array([target.value(read) for target, read in pairs]),
            np.array([target.probability(read) for target, read in pairs]),
        )

    def _scores(self, rows: Sequence[tuple[np.ndarray, np.ndarray, ExplainTarget]]) -> list[Any]:
        albert, scores = self.albert, [None] * len(rows)
        depth = albert.layers_to_apply(self.depth)
        ids, segments = [row[0].tolist() for row in rows], [row[1].tolist() for row in rows]
        for batch in token_batches(ids, segments, albert.token_budget):
            hidden = albert.engine.run(batch, depth)
            found = read_target(albert, hidden, batch.lengths, [rows[place][2] for place in batch.order])
            for place, score in zip(batch.order, found, strict=True):
                scores[place] = score
        return scores


def filler_token(albert: RuntimeModel, hide: str) -> int:
    """The id of the token that replaces a hidden one."""
    if hide not in HIDE_MODES:
        raise AlbertkitError(f"hide={hide!r} is unknown; choose one of {', '.join(HIDE_MODES)}")
    mask = albert.tokenizer.mask_id
    if hide == "mask" and mask is None:
        raise AlbertkitError("hide='mask' needs [MASK], which this vocabulary does not have; choose drop or pad")
    pad: int = albert.tokenizer.pad_id
    return pad if hide == "pad" or mask is None else mask


def hide_words(
    row: TokenRow, kept: np.ndarray, filler: int, hide: str, read: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids and segments of a row in which only some words are kept, and the new position of each old token."""
    ids, segments = np.array(row.ids), np.array(row.segments)
    is_hidden = (row.owner >= 0) & ~kept[row.owner]
    ids[is_hidden] = filler
    stays = np.ones(len(ids), bool)
    if hide == "drop":
        stays = ~is_hidden
        stays[list(read)] = True
    return ids[stays], segments[stays], np.cumsum(stays) - 1


def read_target(
    albert: RuntimeModel, hidden: np.ndarray, lengths: np.ndarray, targets: Sequence[ExplainTarget]
) -> Sequence[Any]:
    """What a target needs of each row of a batch: head scores, a vector, or the log-odds of a word."""
    form = targets[0].form
    if form == "cosine":
        return list(pool(albert, hidden, lengths, albert.metadata.pooling))
    if form != "word":
        return read_heads(albert, hidden, lengths)
    states = hidden[np.arange(len(targets)), [target.tokens[0] for target in targets]]
    scores = albert.engine.mlm_logits(states)[:, : albert.tokenizer.vocab_size].astype(np.float64)
    return [log_odds(row, target.index) for row, target in zip(scores, targets, strict=True)]


def occlusion(variants: InputVariants) -> Attribution:
    """Hide each word by itself."""
    words = len(variants.input.words)
    kept = np.concatenate([np.ones((1, words), bool), ~np.eye(words, dtype=bool), np.zeros((1, words), bool)])
    values, _ = variants.values(kept)
    return Attribution("occlusion", values[0] - values[1:-1], float(values[0]), float(values[-1]))


def shapley(variants: InputVariants, samples: int = 16, seed: int = 0) -> Attribution:
    """Add the words one by one, in `samples` random orders and their reverses."""
    words = len(variants.input.words)
    most = max(1, MAX_VARIANTS // (2 * words * len(variants.input.rows)))
    if not 1 <= samples <= most:
        raise AlbertkitError(f"samples={samples} is out of range: a text of {words} words allows 1 to {most}")
    rng = np.random.default_rng(seed)
    orders = [order for _ in range(samples) for one in [rng.permutation(words)] for order in (one, one[::-1])]
    ranks = np.argsort(np.array(orders), axis=1)  # the step at which each word is added
    kept = ranks[:, None, :] < np.arange(words + 1)[None, :, None]  # (orders, steps, words)
    values = variants.values(kept.reshape(-1, words))[0].reshape(len(orders), words + 1)
    gains = np.diff(values, axis=1)  # of the word added at each step
    means = np.take_along_axis(gains, ranks, axis=1).mean(axis=0)
    return Attribution("shapley", means, float(values[0, -1]), float(values[0, 0]))


# Attention -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionMap:
    """The attention in one row of tokens."""

    row: int
    tokens: tuple[str, ...]
    attention: np.ndarray  # (layers, heads, from token, to token); each row sums to 1
    rollout: np.ndarray  # (from token, to token); each row sums to 1
    owner: np.ndarray  # (tokens,) the word of each token, or -1
    reader: int = 0
    """The token that the target reads; the first if it reads several."""


def rollout(attention: np.ndarray) -> np.ndarray:
    """(layers, heads, tokens, tokens) → (tokens, tokens).

    >>> rollout(np.array([[[[1.0, 0.0], [1.0, 0.0]]]])).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    tokens = attention.shape[-1]
    flow = np.eye(tokens)
    for layer in attention:
        mixed = layer.mean(axis=0, dtype=np.float64) + np.eye(tokens)
        flow = mixed / mixed.sum(axis=-1, keepdims=True) @ flow
    return flow


def attention_by_word(table: np.ndarray, readers: Sequence[int], owner: np.ndarray, words: int) -> np.ndarray:
    """(words,) attention from some reading tokens, on average, to the tokens of each word."""
    sums = np.zeros(words)
    has_word = owner >= 0
    np.add.at(sums, owner[has_word], table[list(readers)].mean(axis=0)[has_word])
    return sums


def attention_attribution(
    method: str, maps: Sequence[AttentionMap], readers: Sequence[Sequence[int]], words: int
) -> Attribution:
    """Attention or rollout from the tokens that are read in each row."""
    values = np.zeros(words)
    for one, read in zip(maps, readers, strict=True):
        table = one.rollout if method == "rollout" else one.attention[-1].mean(axis=0)
        values += attention_by_word(table, read, one.owner, words)
    return Attribution(method, values)
