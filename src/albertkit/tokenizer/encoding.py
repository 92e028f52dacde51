"""From the pieces of one or two texts to what a model takes: cutting to length, windows, special tokens.

In: a `TokenSpans` for each text (ids, character offsets, words), and the lengths wished for. Out: an `Encoding`. Before this
file: `unigram.py` and the rust library, which find the pieces; after it: `tokenizer.py`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from albertkit.errors import AlbertkitError

Truncation = Literal["longest", "first", "second", "error"]


@dataclass(frozen=True)
class Encoding:
    """One text or pair as the model takes it; all lists have the same length."""

    ids: list[int]
    segments: list[int]  # 0 in the first text, 1 in the second
    offsets: list[tuple[int, int]]  # characters of the text of that segment; (0, 0) at special tokens
    specials: list[bool]  # True at [CLS] and [SEP]
    words: list[int | None]  # the word of its text that a piece belongs to; None at special tokens
    overflow: list[Encoding] = field(default_factory=list)  # the further windows, when a stride was given
    unk_id: int | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def unknown_fraction(self) -> float:
        """The share of unknown pieces among those that stand for text; 0 for an empty text."""
        real = sum(b > a for a, b in self.offsets)
        return self.ids.count(self.unk_id) / real if real and self.unk_id is not None else 0.0


class TokenSpans(NamedTuple):
    """The pieces of one text, before special tokens."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    words: list[int]

    def cut(self, start: int, stop: int) -> TokenSpans:
        """The pieces from `start` to `stop`."""
        if start == 0 and stop >= len(self.ids):
            return self
        return TokenSpans(self.ids[start:stop], self.offsets[start:stop], self.words[start:stop])

    def append(self, other: TokenSpans, shift: int) -> None:
        """Add the pieces of a text that begins `shift` characters further on."""
        word = self.words[-1] + 1 if self.words else 0
        self.ids.extend(other.ids)
        self.offsets.extend([(a + shift, b + shift) for a, b in other.offsets])
        self.words.extend([w + word for w in other.words])


@dataclass(frozen=True)
class EncodingTemplate:
    """How pieces become an `Encoding`: the tokens at both ends (None: no special tokens), lengths and windows."""

    start_id: int | None
    end_id: int | None
    unk_id: int | None
    room: int | None  # the most pieces, without special tokens
    truncation: Truncation
    stride: int | None

    def __call__(self, first: TokenSpans, second: TokenSpans | None) -> Encoding:
        a, b = len(first.ids), len(second.ids) if second else 0
        if self.room is None or a + b <= self.room:
            return self._finish(first, second)
        if self.stride is None:
            a, b = shorten(a, b, self.room, self.truncation)
            return self._finish(first.cut(0, a), second.cut(0, b) if second else None)
        size = self.room if second is None else self.room - a
        if size <= self.stride:
            raise AlbertkitError(
                f"windows of {size} tokens cannot overlap by {self.stride} (the first text takes {self.room - size} of "
                f"{self.room}): raise max_length, lower stride or shorten the first text"
            )
        long = first if second is None else second
        starts = range(0, max(len(long.ids) - self.stride, 1), size - self.stride)
        views = [long.cut(start, start + size) for start in starts]
        made = [self._finish(view, None) if second is None else self._finish(first, view) for view in views]
        return dataclasses.replace(made[0], overflow=made[1:])

    def _finish(self, first: TokenSpans, second: TokenSpans | None) -> Encoding:
        """Put the special tokens around the pieces."""
        ids: list[int] = []
        segments: list[int] = []
        offsets: list[tuple[int, int]] = []
        specials: list[bool] = []
        words: list[int | None] = []

        def special(token: int | None, segment: int) -> None:
            if token is not None:
                ids.append(token)
                segments.append(segment)
                offsets.append((0, 0))
                specials.append(True)
                words.append(None)

        special(self.start_id, 0)
        for segment, part in enumerate((first, second)):
            if part is not None:
                ids += part.ids
                segments += [segment] * len(part.ids)
                offsets += part.offsets
                specials += [False] * len(part.ids)
                words += part.words
                special(self.end_id, segment)
        return Encoding(ids, segments, offsets, specials, words, unk_id=self.unk_id)


def check_lengths(max_length: int | None, truncation: str, stride: int | None, extra: int, pair: bool) -> None:
    """The options of `Tokenizer.encode` that have to do with lengths; `extra` is the number of special tokens."""
    if truncation not in ("longest", "first", "second", "error"):
        raise AlbertkitError(f"truncation is {truncation!r}: choose 'longest', 'first', 'second' or 'error'")
    if truncation == "second" and not pair:
        raise AlbertkitError("truncation is 'second' and there is no second text: choose 'longest' or 'first'")
    if max_length is not None and (type(max_length) is not int or max_length < extra + 1 + pair):
        raise AlbertkitError(
            f"max_length is {max_length!r} and must be at least {extra + 1 + pair}: {extra} special tokens and one token "
            "of each text"
        )
    if stride is not None and (type(stride) is not int or stride < 0 or max_length is None):
        raise AlbertkitError(
            f"stride is {stride!r} with max_length {max_length!r}: give a stride of 0 or more, and a max_length"
        )
    if stride is not None and max_length is not None and stride >= max_length - extra:
        raise AlbertkitError(f"stride is {stride} and must be below {max_length - extra}, the pieces in a window")


def shorten(a: int, b: int, room: int, truncation: Truncation) -> tuple[int, int]:
    """The lengths that two texts of a and b pieces keep; ties go against the second, as in the original."""
    over = a + b - room
    if truncation == "longest":
        gap = min(over, abs(a - b))
        a, b, over = (a - gap, b, over - gap) if a > b else (a, b - gap, over - gap)
        return a - over // 2, b - (over + 1) // 2
    if truncation == "error":
        raise AlbertkitError(
            f"the text has {a + b} pieces and {room} fit: raise max_length, or choose truncation or a stride"
        )
    cut, kept = (a, b) if truncation == "first" else (b, a)
    if cut <= over:
        raise AlbertkitError(
            f"the {truncation} text has {cut} pieces and the other {kept}, and {room} fit: cutting the {truncation} leaves "
            "nothing of it, so choose truncation 'longest' or raise max_length"
        )
    return (a - over, b) if truncation == "first" else (a, b - over)
