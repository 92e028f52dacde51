"""A subject with words hidden, many at once: the engine reads all variants in batches.

In: a subject, a target, and for each variant which words are kept. Out: the target's number for each. Words are hidden by putting [MASK]
or [PAD] in the place of each of their tokens, or by dropping the tokens; a token that the target reads is never dropped but masked.
Before this file: `target.py`; after it: `attribute.py` and `faithful.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError
from albertkit.explain.explained_input import TokenizedInput, TokenRow
from albertkit.explain.target import ExplainTarget, log_odds
from albertkit.runtime.batching import token_batches
from albertkit.runtime.predict import read_heads

HIDE_MODES = ("mask", "drop", "pad")


def filler_token(albert: Albert, hide: str) -> int:
    """The token that stands for a hidden one."""
    if hide not in HIDE_MODES:
        raise AlbertkitError(f"hide is {hide!r}; choose one of {', '.join(HIDE_MODES)}")
    mask = albert.tokenizer.mask_id
    if hide == "mask" and mask is None:
        raise AlbertkitError("hide is 'mask', and this vocabulary has no [MASK]; choose drop or pad")
    pad: int = albert.tokenizer.pad_id
    return pad if hide == "pad" or mask is None else mask


def hide_words(
    row: TokenRow, kept: np.ndarray, filler: int, hide: str, read: Sequence[int]
) -> tuple[Any, Any, np.ndarray]:
    """Ids and segments of a row where only some words are kept, and the new place of each old token."""
    ids, segments = np.array(row.ids), np.array(row.segments)
    gone = (row.owner >= 0) & ~kept[row.owner]
    ids[gone] = filler
    stays = np.ones(len(ids), bool)
    if hide == "drop":
        stays = ~gone
        stays[list(read)] = True
    return ids[stays], segments[stays], np.cumsum(stays) - 1


@dataclass(frozen=True)
class InputVariants:
    """A subject and a target, ready to be computed with any words hidden."""

    albert: Albert
    subject: TokenizedInput
    target: ExplainTarget
    hide: str = "mask"
    depth: int | None = None

    def values(self, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(variants, words) bool → the target's number of each variant, and the same as a probability."""
        filler = filler_token(self.albert, self.hide)
        unique: dict[tuple[int, bytes], int] = {}
        made: list[tuple[Any, Any, ExplainTarget]] = []
        uses: list[list[int]] = []
        targets: list[ExplainTarget] = []
        for which in np.asarray(kept, bool):
            own = []
            for number, row in enumerate(self.subject.rows):
                read = self.target.tokens if number == 0 else ()
                ids, segments, places = hide_words(row, which, filler, self.hide, read)
                moved = self.target.moved(places) if number == 0 else self.target
                key = (number, np.append(ids, moved.tokens).tobytes())
                if key not in unique:
                    unique[key] = len(made)
                    made.append((ids, segments, moved))
                own.append(unique[key])
                if number == 0:
                    targets.append(moved)
            uses.append(own)
        found = self._read(made)
        reads = [[found[place] for place in own] for own in uses]
        return (
            np.array([target.value(read) for target, read in zip(targets, reads, strict=True)]),
            np.array([target.chance(read) for target, read in zip(targets, reads, strict=True)]),
        )

    def _read(self, made: Sequence[tuple[Any, Any, ExplainTarget]]) -> list[Any]:
        """What the target needs of each row."""
        albert, found = self.albert, [None] * len(made)
        depth = albert._layers_to_apply(None, self.depth, "mean")
        for batch in token_batches(
            [ids for ids, _, _ in made], [segments for _, segments, _ in made], albert.token_budget
        ):
            hidden = albert.engine.run(batch, depth)
            one = read_target(albert, hidden, batch.lengths, [made[place][2] for place in batch.order])
            for place, scores in zip(batch.order, one, strict=True):
                found[place] = scores
        return found


def read_target(
    albert: Albert, hidden: np.ndarray, lengths: np.ndarray, targets: Sequence[ExplainTarget]
) -> Sequence[Any]:
    """What a target needs of each row of a batch: head scores, a vector, or the log-odds of a word."""
    form = targets[0].form
    if form == "cosine":
        return list(albert._pool(hidden, lengths, albert.meta.pooling))
    if form != "word":
        return read_heads(albert, hidden, lengths)
    states = hidden[np.arange(len(targets)), [target.tokens[0] for target in targets]]
    scores = albert.engine.words(states)[:, : albert.tokenizer.vocab_size].astype(np.float64)
    return [log_odds(row, target.index) for row, target in zip(scores, targets, strict=True)]
