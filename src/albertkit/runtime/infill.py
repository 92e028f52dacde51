"""Blanks of several words filled without any training: mask-predict (Ghazvininejad et al. 2019). No torch.

In: an `Albert` with a masked-word head, and a text with `[MASK]`, `[MASK:3]` or `[MASK:1-4]` in it. Out: `Infilled`, the best first.

All masks are filled at once; then those the model was least sure of are masked again and filled beside what stands by now, fewer in each of T rounds. Where a
length is a range, each length is tried, and the mean log-probability of the tokens decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.runtime.batching import token_batches

if TYPE_CHECKING:
    from albertkit.albert import Albert

BLANK = re.compile(r"\[MASK(?::([^\[\]]*))?\]")
MOST = 64  # tokens of one blank
TRIALS = 256  # combinations of lengths
ROUNDS = 1000


@dataclass(frozen=True)
class Infilled:
    """A text with its blanks filled."""

    text: str
    parts: tuple[str, ...]
    """What stands in each blank."""
    lengths: tuple[int, ...]
    """Tokens of each blank."""
    score: float
    """Mean log-probability of the tokens filled in, each as it was chosen."""


def infill(
    albert: Albert, text: str, length: str | int | None = None, rounds: int = 10, k: int = 1, depth: int | None = None
) -> list[Infilled]:
    """The `k` best ways to fill the blanks of a text, one for each combination of lengths."""
    if not 1 <= rounds <= ROUNDS or not 1 <= k <= TRIALS:
        raise AlbertkitError(f"rounds is {rounds} and k {k}; choose 1 to {ROUNDS} rounds, and k from 1 to {TRIALS}")
    trials = lengths_of(text, span_of(str(length)) if length is not None else (1, 1))
    if max(map(sum, trials)) > albert.max_tokens:  # before a text of that size is made
        raise AlbertkitError(
            f"the blanks have {max(map(sum, trials)):,} tokens; they must fit into {albert.max_tokens}, so make them fewer or shorter"
        )
    encodings = [albert.masked(widened(text, trial), 1) for trial in trials]
    ids = [np.array(encoding.ids) for encoding, _ in encodings]
    places = [np.array(found) for _, found in encodings]
    scores = predict(albert, ids, places, rounds, albert._layers_to_apply(None, depth, "mean"))
    made = []
    for row, at, trial, score in zip(ids, places, trials, scores, strict=True):
        parts, begin = [], 0
        for count in trial:
            parts.append(albert.tokenizer.decode(row[at[begin : begin + count]].tolist()))
            begin += count
        made.append(Infilled(filled(text, parts), tuple(parts), trial, score))
    return sorted(made, key=lambda found: -found.score)[:k]


def span_of(given: str) -> tuple[int, int]:
    """A length such as 3, or a range such as 1-4."""
    found = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", given)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= low <= high <= MOST:
        raise AlbertkitError(
            f"the length of a blank is {given[:40]!r}; write a number of tokens from 1 to {MOST}, or a range such as 1-4"
        )
    return low, high


def lengths_of(text: str, default: tuple[int, int]) -> list[tuple[int, ...]]:
    """Every combination of lengths that the blanks of a text may have."""
    spans = []
    for match in BLANK.finditer(text):
        spans.append(default if match[1] is None else span_of(match[1]))
    if not spans:
        raise AlbertkitError(f"{text[:40]!r} holds no [MASK]; write [MASK:3] where three tokens are missing")
    count = 1
    for low, high in spans:
        count = min(count * (high - low + 1), 10**9)  # a text of many blanks has more than a number can hold
    if count > TRIALS:
        raise AlbertkitError(
            f"the blanks have {count:,}{' or more' if count == 10**9 else ''} combinations of lengths; at most {TRIALS} are tried, so give some a length of their own ([MASK:3])"
        )
    return list(product(*(range(low, high + 1) for low, high in spans)))


def widened(text: str, lengths: tuple[int, ...]) -> str:
    """The text with as many [MASK] in each blank as it has tokens."""
    counts = iter(lengths)
    return BLANK.sub(lambda _: "[MASK]" * next(counts), text)


def filled(text: str, parts: list[str]) -> str:
    """The text with words in its blanks."""
    words = iter(parts)
    return BLANK.sub(lambda _: next(words), text)


def predict(albert: Albert, ids: list[np.ndarray], places: list[np.ndarray], rounds: int, depth: int) -> list[float]:
    """Fill the masks of some texts in place; the mean log-probability of what was filled in."""
    mask = albert.tokenizer.mask_id or 0
    sure = [np.zeros(len(masks)) for masks in places]
    asked = [np.ones(len(masks), np.bool_) for masks in places]  # what is masked now
    for turn in range(1, min(rounds, max(map(len, places))) + 1):
        waiting = [i for i, now in enumerate(asked) if now.any()]
        for batch in token_batches([ids[i].tolist() for i in waiting], token_budget=albert.token_budget):
            hidden = albert.engine.run(batch, depth)
            for own, nth in zip(hidden, batch.order.tolist(), strict=True):
                i = waiting[nth]
                where = places[i][asked[i]]
                ids[i][where], sure[i][asked[i]] = likeliest(albert, own[where])
        for i, masks in enumerate(places):
            total = min(rounds, len(masks))
            again = len(masks) * max(0, total - turn) // total
            asked[i][:] = False
            asked[i][np.argsort(sure[i], kind="stable")[:again]] = True
            ids[i][masks[asked[i]]] = mask
    return [float(row.mean()) for row in sure]


def likeliest(albert: Albert, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest token for each of some hidden states (n, H), and its log-probability; special tokens are no words."""
    t = albert.tokenizer
    scores = albert.engine.words(hidden)[:, : t.vocab_size].astype(np.float64)
    scores[:, [i for i in (t.pad_id, t.cls_id, t.sep_id, t.mask_id, t.unk_id) if i is not None]] = -np.inf
    scores -= scores.max(axis=1, keepdims=True)
    return scores.argmax(axis=1), -np.log(np.exp(scores).sum(axis=1))
