"""Masks filled with the masked-language-model head: `fill_mask` for single words, `infill` for blanks of several
tokens. No torch.

In: a `RuntimeModel` with that head, and a text with `[MASK]`, or for `infill` also `[MASK:3]` or `[MASK:1-4]`. Out:
`MaskPrediction`s or `Infilling`s, the best first. Before this file: `runtime_model.py`. After it: `albert.py`, the
server.

`infill` is mask-predict (Ghazvininejad et al. 2019), without any training: all masks are filled at once; then the
least certain ones are masked again and filled beside what stands there now, fewer in each round. Where a length is a
range, each length is tried, and the mean log-probability of the tokens decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.runtime.batching import token_batches
from albertkit.runtime.embed import MAX_CHARACTERS
from albertkit.runtime.runtime_model import RuntimeModel
from albertkit.tokenizer import Encoding

BLANK = re.compile(r"\[MASK(?::([^\[\]]*))?\]")
MAX_BLANK_TOKENS = 64  # tokens of one blank
MAX_LENGTHS = 256  # combinations of lengths
MAX_ROUNDS = 1000


@dataclass(frozen=True)
class MaskPrediction:
    """One word for a mask."""

    word: str
    score: float
    """Its probability."""
    text: str
    """The text with the word in its place."""


@dataclass(frozen=True)
class Infilling:
    """A text with its blanks filled."""

    text: str
    parts: tuple[str, ...]
    """What fills each blank."""
    lengths: tuple[int, ...]
    """Tokens of each blank."""
    score: float
    """Mean log-probability of the tokens filled in, each as it was chosen."""


# Single masks ----------------------------------------------------------------------------------------------------


def fill_mask(model: RuntimeModel, text: str, k: int, depth: int | None = None) -> list[list[MaskPrediction]]:
    """The `k` likeliest words for each [MASK] of a text."""
    encoding, places = encode_masks(model, text, k)
    (batch,) = token_batches([encoding.ids], [encoding.segments])
    hidden = model.engine.run(batch, model.layers_to_apply(depth))[0, places]
    return mask_predictions(model, text, likeliest_tokens(model, hidden, k))


def encode_masks(model: RuntimeModel, text: str, k: int) -> tuple[Encoding, list[int]]:
    """A text with [MASK] as the model reads it, and the places of its masks."""
    if model.tokenizer.mask_id is None:
        raise AlbertkitError("this vocabulary has no [MASK]; use a model whose tokenizer has one")
    if not isinstance(k, int) or not 1 <= k <= model.config.vocab_size:
        raise AlbertkitError(f"k is {k}; choose 1 to {model.config.vocab_size}")
    if len(text) > MAX_CHARACTERS:
        raise AlbertkitError(
            f"the text has {len(text):,} characters; with a mask it must fit into {model.max_tokens} tokens. Shorten it"
        )
    encoding = model.tokenizer.encode(text, recognize_mask=True)
    places = [i for i, token in enumerate(encoding.ids) if token == model.tokenizer.mask_id]
    if not places:
        raise AlbertkitError(f"{text[:40]!r} has no [MASK]; write [MASK] where a word is missing")
    if len(encoding.ids) > model.max_tokens:
        raise AlbertkitError(
            f"the text has {len(encoding.ids)} tokens; with a mask it must fit into {model.max_tokens}. Shorten it"
        )
    return encoding, places


def likeliest_tokens(model: RuntimeModel, hidden: np.ndarray, k: int) -> list[list[tuple[int, float]]]:
    """The `k` likeliest tokens and their probabilities for hidden states (n, H)."""
    scores = model.engine.mlm_logits(hidden)[:, : model.tokenizer.vocab_size]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    best = np.argsort(-scores, axis=1)[:, :k]
    return [[(int(i), float(row[i])) for i in top] for row, top in zip(scores, best, strict=True)]


def mask_predictions(
    model: RuntimeModel, text: str, tokens: list[list[tuple[int, float]]]
) -> list[list[MaskPrediction]]:
    """The tokens of `likeliest_tokens`, for each mask of a text, as words in that text."""
    parts = text.split("[MASK]")

    def predict(mask: int, token: int, score: float) -> MaskPrediction:
        shown = model.tokenizer.tokens([token])[0]
        word = shown.removeprefix("##").replace("▁", "")
        filled = "[MASK]".join(parts[: mask + 1]) + word + "[MASK]".join(parts[mask + 1 :])
        return MaskPrediction(word or shown, score, filled)

    return [[predict(mask, token, score) for token, score in top] for mask, top in enumerate(tokens)]


# Blanks of several tokens ----------------------------------------------------------------------------------------


def infill(
    model: RuntimeModel,
    text: str,
    length: str | int | None = None,
    rounds: int = 10,
    k: int = 1,
    depth: int | None = None,
) -> list[Infilling]:
    """The `k` best ways to fill the blanks of a text, one for each combination of lengths."""
    if not 1 <= rounds <= MAX_ROUNDS or not 1 <= k <= MAX_LENGTHS:
        raise AlbertkitError(
            f"rounds is {rounds} and k {k}; choose 1 to {MAX_ROUNDS} rounds, and k from 1 to {MAX_LENGTHS}"
        )
    trials = blank_lengths(text, parse_length(str(length)) if length is not None else (1, 1))
    longest = max(map(sum, trials))
    if longest > model.max_tokens:  # before a text of that size is made
        raise AlbertkitError(
            f"the blanks have {longest:,} tokens; they must fit into {model.max_tokens}. Make them fewer or shorter"
        )
    encodings = [encode_masks(model, expand_blanks(text, trial), 1) for trial in trials]
    ids = [np.array(encoding.ids) for encoding, _ in encodings]
    places = [np.array(masks) for _, masks in encodings]
    scores = mask_predict(model, ids, places, rounds, model.layers_to_apply(depth))
    made = []
    for row, masks, trial, score in zip(ids, places, trials, scores, strict=True):
        parts, begin = [], 0
        for count in trial:
            parts.append(model.tokenizer.decode(row[masks[begin : begin + count]].tolist()))
            begin += count
        made.append(Infilling(fill_blanks(text, parts), tuple(parts), trial, score))
    return sorted(made, key=lambda found: -found.score)[:k]


def parse_length(length: str) -> tuple[int, int]:
    """A length such as 3, or a range such as 1-4."""
    found = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", length)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= low <= high <= MAX_BLANK_TOKENS:
        raise AlbertkitError(
            f"the length of a blank is {length[:40]!r}; write a number of tokens from 1 to {MAX_BLANK_TOKENS}, "
            f"or a range such as 1-4"
        )
    return low, high


def blank_lengths(text: str, default: tuple[int, int]) -> list[tuple[int, ...]]:
    """Every combination of lengths that the blanks of a text may have."""
    ranges = [default if match[1] is None else parse_length(match[1]) for match in BLANK.finditer(text)]
    if not ranges:
        raise AlbertkitError(f"{text[:40]!r} has no [MASK]; write [MASK:3] where three tokens are missing")
    count = 1
    for low, high in ranges:
        count = min(count * (high - low + 1), 10**9)  # a text of many blanks has more than a number can hold
    if count > MAX_LENGTHS:
        more = " or more" if count == 10**9 else ""
        raise AlbertkitError(
            f"the blanks have {count:,}{more} combinations of lengths; at most {MAX_LENGTHS} are tried. "
            f"Give some a fixed length ([MASK:3])"
        )
    return list(product(*(range(low, high + 1) for low, high in ranges)))


def expand_blanks(text: str, lengths: tuple[int, ...]) -> str:
    """The text with as many [MASK] in each blank as it has tokens."""
    counts = iter(lengths)
    return BLANK.sub(lambda _: "[MASK]" * next(counts), text)


def fill_blanks(text: str, parts: list[str]) -> str:
    """The text with words in its blanks."""
    words = iter(parts)
    return BLANK.sub(lambda _: next(words), text)


def mask_predict(
    model: RuntimeModel, ids: list[np.ndarray], places: list[np.ndarray], rounds: int, depth: int
) -> list[float]:
    """Fill the masks of some texts in place; returns the mean log-probability of what was filled in."""
    mask = model.tokenizer.mask_id or 0
    scores = [np.zeros(len(masks)) for masks in places]
    is_masked = [np.ones(len(masks), np.bool_) for masks in places]
    for turn in range(1, min(rounds, max(map(len, places))) + 1):
        waiting = [i for i, now in enumerate(is_masked) if now.any()]
        for batch in token_batches([ids[i].tolist() for i in waiting], token_budget=model.token_budget):
            hidden = model.engine.run(batch, depth)
            for own, nth in zip(hidden, batch.order.tolist(), strict=True):
                i = waiting[nth]
                where = places[i][is_masked[i]]
                ids[i][where], scores[i][is_masked[i]] = likeliest_word(model, own[where])
        for i, masks in enumerate(places):
            total = min(rounds, len(masks))
            again = len(masks) * max(0, total - turn) // total
            is_masked[i][:] = False
            is_masked[i][np.argsort(scores[i], kind="stable")[:again]] = True
            ids[i][masks[is_masked[i]]] = mask
    return [float(row.mean()) for row in scores]


def likeliest_word(model: RuntimeModel, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest token that is not special for each of some hidden states (n, H), and its log-probability."""
    t = model.tokenizer
    scores = model.engine.mlm_logits(hidden)[:, : t.vocab_size].astype(np.float64)
    scores[:, [i for i in (t.pad_id, t.cls_id, t.sep_id, t.mask_id, t.unk_id) if i is not None]] = -np.inf
    scores -= scores.max(axis=1, keepdims=True)
    return scores.argmax(axis=1), -np.log(np.exp(scores).sum(axis=1))
