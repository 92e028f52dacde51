"""Words of a text: finding them, their labels, their pieces, and windows of them.

In: a text, or a `TaggedExample` example. Out: characters (start, end) of each word; an IOB2 label for each word; which window
of a long text reads which word. After this file: `tag.py`. Left out: scripts without spaces other than Chinese and Japanese (Thai, Lao, Khmer: a run of letters is
one word).
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import Protocol

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import TaggedExample
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Tokenizer

Words = Sequence[tuple[int, int]]
CJK = re.compile(
    "[\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]"
)
_SAME = {"’": "'", "‐": "-", "‑": "-"}
# On the kinds of characters, see `_kind`.
_WORD = re.compile(
    r"(?:w\.){2,}(?![wd])"  # U.S.
    r"|w\.(?= +w)"  # George W. Bush
    r"|[wd][wdmz]*(?:(?:[-./&@']|(?<=d)[,:](?=d))[wd][wdmz]*)*"  # all-rounder, O'Brien, 1,000.5, 10:30
    r"|([-.'])\1+"  # ...
    r"|[^ ](?:m|zx)*"  # one character of Chinese, one mark, one emoji with what changes it
)
_SHORT = re.compile("(?:n['’]t|['’](?:s|m|d|ll|ve|re))$", re.IGNORECASE)


class Marked(Protocol):
    """What `Span` and `Entity` share."""

    @property
    def start(self) -> int:
        """The first character."""

    @property
    def end(self) -> int:
        """The character after the last."""

    @property
    def label(self) -> str:
        """What it is."""


def split_words(text: str, cuts: Iterable[int] = ()) -> tuple[tuple[int, int], ...]:
    """The words of a text that nobody has cut: runs of letters and digits, single marks, single Chinese characters.

    Marks inside a word stay in it (all-rounder, 1,000, O'Brien, U.S.), those at its ends are words of their own, and so are
    's and its like, as in most labelled English data. No character but white space and controls is left out. `cuts` are
    further places where a word must end, for entities that end inside a word.

    >>> [text[a:b] for text in ["The U.S. beat 北京, 3-1."] for a, b in split_words(text)]
    ['The', 'U.S.', 'beat', '北', '京', ',', '3-1', '.']
    """
    found = [match.span() for match in _WORD.finditer("".join(map(_kind, text)))]
    cuts = [*cuts, *(a + match.start() for a, b in found if b - a > 2 and (match := _SHORT.search(text[a:b])))]
    starts = [a for a, _ in found]
    inside: dict[int, set[int]] = {}
    for cut in cuts:
        at = bisect_right(starts, cut) - 1
        if at >= 0 and found[at][0] < cut < found[at][1]:
            inside.setdefault(at, set()).add(cut)
    if not inside:
        return tuple(found)
    out: list[tuple[int, int]] = []
    for at, (a, b) in enumerate(found):
        edges = [a, *sorted(inside.get(at, ())), b]
        out += pairwise(edges)
    return tuple(out)


@lru_cache(maxsize=65536)
def _kind(c: str) -> str:
    """One letter for what a character does: w letter, d digit, m changes the one before, z joins, x any other mark."""
    kind = unicodedata.category(c)
    if c.isspace() or kind in ("Cc", "Cs", "Zs"):
        return " "
    if c == "\u200d":
        return "z"
    if kind[0] == "M" or kind == "Cf" or "\U0001f3fb" <= c <= "\U0001f3ff":
        return "m"
    if CJK.match(c):
        return "c"
    if kind[0] in "LN" or c == "_":
        return "d" if c.isdigit() else "w"
    c = _SAME.get(c, c)
    return c if c in "-./&@',:" else "x"


def example_words(example: TaggedExample) -> Words:
    """The words of an example: those given, or those of its text."""
    if not example.words:
        return split_words(example.text)
    before = 0
    for a, b in example.words:
        if not before <= a < b <= len(example.text):
            raise AlbertkitError(
                f"{example.where or 'an example'} has a word from {a} to {b} in a text of {len(example.text)} characters, after "
                f"one that ends at {before}; words must be in order, not empty, and inside the text"
            )
        before = b
    return example.words


def iob2_tags(words: Words, spans: Iterable[Marked], where: str = "") -> list[str]:
    """The IOB2 label of each word. Of entities that overlap, the one that begins first is kept, then the longer one."""
    tags = ["O"] * len(words)
    first = {a: i for i, (a, _) in enumerate(words)}
    last = {b: i for i, (_, b) in enumerate(words)}
    for span in sorted(spans, key=lambda s: (s.start, -s.end)):
        i, j = first.get(span.start), last.get(span.end)
        if i is None or j is None or j < i:
            raise AlbertkitError(
                f"{where or 'an example'} has the entity {span.label!r} from {span.start} to {span.end}, which does not begin "
                "and end with a word; give words that do (split_words can cut at both ends)"
            )
        if all(tag == "O" for tag in tags[i : j + 1]):
            tags[i : j + 1] = [f"B-{span.label}"] + [f"I-{span.label}"] * (j - i)
    return tags


def word_tokens(words: Iterable[str], tokenizer: Tokenizer) -> dict[str, list[tuple[int, tuple[int, int]]]]:
    """(id, characters) of the pieces of each word: those that stand for no character go, but no word is without a piece."""
    texts = sorted(words)
    unknown = tokenizer.pad_id if tokenizer.unk_id is None else tokenizer.unk_id
    found = {}
    for text, encoding in zip(texts, tokenizer.encode_batch(texts, add_specials=False), strict=True):
        real = [(i, (a, b)) for i, (a, b) in zip(encoding.ids, encoding.offsets, strict=True) if b > a]
        found[text] = real or [(unknown, (0, len(text)))]
    return found


def word_windows(sizes: Sequence[int], room: int, overlap: int) -> list[range]:
    """Stretches of words that fit into `room` pieces and share at most `overlap`; all words are in one.

    The next word fits behind the overlap, whatever its size, since no size is above room - overlap.
    """
    out, start = [], 0
    while True:
        end, held = start, 0
        while end < len(sizes) and held + sizes[end] <= room:
            held += sizes[end]
            end += 1
        out.append(range(start, end))
        if end == len(sizes):
            return out
        start, held = end, sizes[end - 1]
        while held <= overlap:
            start -= 1
            held += sizes[start - 1]


def label_tokens(features: Sequence[Feature], words: Words) -> list[tuple[int, int]]:
    """For each word the window and the token that reads it: its first piece, where the nearer edge is farthest.

    The beginning and the end of the text are no edges.
    """
    starts = [a for a, _ in words]
    if len(features) == 1:  # most texts have one window, in which words begin in order
        places, token, found = features[0].offsets or [], 0, []
        for start in starts:
            token += 1
            while places[token][0] < start:
                token += 1
            found.append((0, token))
        return found
    best: list[tuple[float, int, int]] = [(-1, 0, 0)] * len(words)
    for number, feature in enumerate(features):
        places, last = feature.offsets or [], len(feature.ids) - 1
        owners = [bisect_right(starts, a) - 1 for a, _ in places[1:last]]
        for token, (before, word) in enumerate(pairwise([-1, *owners]), start=1):
            if before != word:
                left = inf if owners[0] == 0 else token
                right = inf if owners[-1] == len(words) - 1 else last - token
                best[word] = max(best[word], (min(left, right), -number, token))
    return [(-number, token) for _, number, token in best]
