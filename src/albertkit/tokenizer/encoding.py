"""The tokens of one or two texts as a model input: truncation, windows, special tokens.

In: a `TokenSpans` for each text (ids, character offsets, words) and the lengths. Out: an `Encoding`.
Before this file: `unigram.py` and the `tokenizers` library find the tokens. After it: `tokenizer.py`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from albertkit.errors import AlbertkitError

Truncation = Literal["longest", "first", "second", "error"]


@dataclass(frozen=True)
class Encoding:
    """One text or pair as a model input; all lists have the same length."""

    ids: list[int]
    segments: list[int]  # 0 in the first text, 1 in the second
    offsets: list[tuple[int, int]]  # characters of the text of that segment; (0, 0) at special tokens
    specials: list[bool]  # True at [CLS] and [SEP]
    words: list[int | None]  # index of the word that the token belongs to; None at special tokens
    overflow: list[Encoding] = field(default_factory=list)  # the further windows, if a stride was passed
    unk_id: int | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def unknown_fraction(self) -> float:
        """The share of unknown tokens among the tokens that cover text; 0 for an empty text."""
        text_tokens = sum(end > start for start, end in self.offsets)
        return self.ids.count(self.unk_id) / text_tokens if text_tokens and self.unk_id is not None else 0.0


class TokenSpans(NamedTuple):
    """The tokens of one text, without special tokens."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    words: list[int]

    def slice(self, start: int, stop: int) -> TokenSpans:
        """The tokens from `start` to `stop`."""
        if start == 0 and stop >= len(self.ids):
            return self
        return TokenSpans(self.ids[start:stop], self.offsets[start:stop], self.words[start:stop])

    def append(self, other: TokenSpans, shift: int) -> None:
        """Append the tokens of a text that begins at character `shift`."""
        next_word = self.words[-1] + 1 if self.words else 0
        self.ids.extend(other.ids)
        self.offsets.extend([(start + shift, end + shift) for start, end in other.offsets])
        self.words.extend([word + next_word for word in other.words])


@dataclass(frozen=True)
class EncodingTemplate:
    """How tokens become an `Encoding`: special tokens at both ends (None: no special tokens), length limit, windows."""

    start_id: int | None
    end_id: int | None
    unk_id: int | None
    max_tokens: int | None  # without special tokens
    truncation: Truncation
    stride: int | None

    def __call__(self, first: TokenSpans, second: TokenSpans | None) -> Encoding:
        a, b = len(first.ids), len(second.ids) if second else 0
        if self.max_tokens is None or a + b <= self.max_tokens:
            return self._add_specials(first, second)
        if self.stride is None:
            a, b = truncated_lengths(a, b, self.max_tokens, self.truncation)
            return self._add_specials(first.slice(0, a), second.slice(0, b) if second else None)
        size = self.max_tokens if second is None else self.max_tokens - a
        if size <= self.stride:
            raise AlbertkitError(
                f"windows of {size} tokens cannot overlap by {self.stride} (the first text takes "
                f"{self.max_tokens - size} of {self.max_tokens}): raise max_length, lower stride or "
                "shorten the first text"
            )
        windowed = first if second is None else second
        starts = range(0, max(len(windowed.ids) - self.stride, 1), size - self.stride)
        windows = [windowed.slice(start, start + size) for start in starts]
        encodings = [self._add_specials(w, None) if second is None else self._add_specials(first, w) for w in windows]
        return dataclasses.replace(encodings[0], overflow=encodings[1:])

    def _add_specials(self, first: TokenSpans, second: TokenSpans | None) -> Encoding:
        """Put the special tokens around the texts."""
        ids: list[int] = []
        segments: list[int] = []
        offsets: list[tuple[int, int]] = []
        specials: list[bool] = []
        words: list[int | None] = []

        def add_special(token: int | None, segment: int) -> None:
            if token is not None:
                ids.append(token)
                segments.append(segment)
                offsets.append((0, 0))
                specials.append(True)
                words.append(None)

        add_special(self.start_id, 0)
        for segment, spans in enumerate((first, second)):
            if spans is not None:
                ids += spans.ids
                segments += [segment] * len(spans.ids)
                offsets += spans.offsets
                specials += [False] * len(spans.ids)
                words += spans.words
                add_special(self.end_id, segment)
        return Encoding(ids, segments, offsets, specials, words, unk_id=self.unk_id)


def check_lengths(max_length: int | None, truncation: str, stride: int | None, extra: int, pair: bool) -> None:
    """Check the length options of `Tokenizer.encode`; `extra` is the number of special tokens."""
    if truncation not in ("longest", "first", "second", "error"):
        raise AlbertkitError(f"truncation is {truncation!r}: choose 'longest', 'first', 'second' or 'error'")
    if truncation == "second" and not pair:
        raise AlbertkitError("truncation is 'second' and there is no second text: choose 'longest' or 'first'")
    if max_length is not None and (type(max_length) is not int or max_length < extra + 1 + pair):
        raise AlbertkitError(
            f"max_length is {max_length!r} and must be at least {extra + 1 + pair}: {extra} special tokens and one "
            "token of each text"
        )
    if stride is not None and (type(stride) is not int or stride < 0 or max_length is None):
        raise AlbertkitError(
            f"stride is {stride!r} with max_length {max_length!r}: pass a stride of 0 or more, and a max_length"
        )
    if stride is not None and max_length is not None and stride >= max_length - extra:
        raise AlbertkitError(
            f"stride is {stride} and must be below {max_length - extra}, the size of a window: lower it"
        )


def truncated_lengths(a: int, b: int, max_tokens: int, truncation: Truncation) -> tuple[int, int]:
    """The lengths of two texts of a and b tokens after truncation; ties are cut from the second, as in the original."""
    over = a + b - max_tokens
    if truncation == "longest":
        gap = min(over, abs(a - b))
        a, b, over = (a - gap, b, over - gap) if a > b else (a, b - gap, over - gap)
        return a - over // 2, b - (over + 1) // 2
    if truncation == "error":
        raise AlbertkitError(
            f"the text has {a + b} tokens and {max_tokens} fit: raise max_length, or choose truncation or a stride"
        )
    cut, kept = (a, b) if truncation == "first" else (b, a)
    if cut <= over:
        raise AlbertkitError(
            f"the {truncation} text has {cut} tokens and the other {kept}, and {max_tokens} fit: nothing of the "
            f"{truncation} text would be left. Choose truncation 'longest' or raise max_length"
        )
    return (a - over, b) if truncation == "first" else (a, b - over)
