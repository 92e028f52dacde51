"""Words of a text: where they are, their IOB2 tags, their tokens, and windows of words for long texts.

In: a text, or a `TaggedExample`. Out: characters (start, end) of each word, its tag, and the window and token that
predicts it. After this file: `tag.py`. In scripts without spaces other than Chinese and Japanese (Thai, Lao, Khmer) a
run of letters is one word.
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
    "[\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_SAME = {"’": "'", "‐": "-", "‑": "-"}
_WORD = re.compile(  # over the classes of `_character_class`
    r"(?:w\.){2,}(?![wd])"  # U.S.
    r"|w\.(?= +w)"  # George W. Bush
    r"|[wd][wdmz]*(?:(?:[-./&@']|(?<=d)[,:](?=d))[wd][wdmz]*)*"  # all-rounder, O'Brien, 1,000.5, 10:30
    r"|([-.'])\1+"  # ...
    r"|[^ ](?:m|zx)*"  # one Chinese character, one punctuation mark, one emoji with its modifiers
)
_CONTRACTION = re.compile("(?:n['’]t|['’](?:s|m|d|ll|ve|re))$", re.IGNORECASE)


class LabelledSpan(Protocol):
    """What `Span` and `Entity` share: characters [start, end) and their label."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def label(self) -> str: ...


def split_words(text: str, cuts: Iterable[int] = ()) -> tuple[tuple[int, int], ...]:
    """The words of a text: runs of letters and digits, single punctuation marks, single Chinese characters.

    Marks inside a word stay in it (all-rounder, 1,000, O'Brien, U.S.), those at its ends are words, and so are 's and
    similar endings, as in most labelled English data. Only white space and control characters are left out. `cuts` are
    further places where a word must end, for entities that end inside a word.

    >>> [text[a:b] for text in ["The U.S. beat 北京, 3-1."] for a, b in split_words(text)]
    ['The', 'U.S.', 'beat', '北', '京', ',', '3-1', '.']
    """
    words = [match.span() for match in _WORD.finditer("".join(map(_character_class, text)))]
    endings = (a + match.start() for a, b in words if b - a > 2 and (match := _CONTRACTION.search(text[a:b])))
    starts = [a for a, _ in words]
    inside: dict[int, set[int]] = {}
    for cut in (*cuts, *endings):
        number = bisect_right(starts, cut) - 1
        if number >= 0 and words[number][0] < cut < words[number][1]:
            inside.setdefault(number, set()).add(cut)
    if not inside:
        return tuple(words)
    parts: list[tuple[int, int]] = []
    for number, (a, b) in enumerate(words):
        parts += pairwise([a, *sorted(inside.get(number, ())), b])
    return tuple(parts)


@lru_cache(maxsize=65536)
def _character_class(c: str) -> str:
    """w letter, d digit, c Chinese, m modifier of the one before, z joiner, x other mark, or the mark itself."""
    category = unicodedata.category(c)
    if c.isspace() or category in ("Cc", "Cs", "Zs"):
        return " "
    if c == "\u200d":
        return "z"
    if category[0] == "M" or category == "Cf" or "\U0001f3fb" <= c <= "\U0001f3ff":
        return "m"
    if CJK.match(c):
        return "c"
    if category[0] in "LN" or c == "_":
        return "d" if c.isdigit() else "w"
    c = _SAME.get(c, c)
    return c if c in "-./&@',:" else "x"


def example_words(example: TaggedExample) -> Words:
    """The words of an example: its own, or those of its text."""
    if not example.words:
        return split_words(example.text)
    before = 0
    for a, b in example.words:
        if not before <= a < b <= len(example.text):
            raise AlbertkitError(
                f"{example.where or 'an example'} has a word from {a} to {b} in a text of {len(example.text)} "
                f"characters, after a word that ends at {before}. Words must be in order, not empty, and in the text."
            )
        before = b
    return example.words


def iob2_tags(words: Words, spans: Iterable[LabelledSpan], where: str = "") -> list[str]:
    """The IOB2 tag of each word. Of overlapping entities the one that begins first is kept, then the longer one."""
    tags = ["O"] * len(words)
    first = {a: i for i, (a, _) in enumerate(words)}
    last = {b: i for i, (_, b) in enumerate(words)}
    for span in sorted(spans, key=lambda s: (s.start, -s.end)):
        i, j = first.get(span.start), last.get(span.end)
        if i is None or j is None or j < i:
            raise AlbertkitError(
                f"{where or 'an example'} has the entity {span.label!r} from {span.start} to {span.end}, which does "
                "not begin and end with a word. Pass words that do (split_words can cut at both ends)."
            )
        if all(tag == "O" for tag in tags[i : j + 1]):
            tags[i : j + 1] = [f"B-{span.label}"] + [f"I-{span.label}"] * (j - i)
    return tags


def word_tokens(words: Iterable[str], tokenizer: Tokenizer) -> dict[str, list[tuple[int, tuple[int, int]]]]:
    """(id, characters) of the tokens of each word, without tokens for no character; a word has at least one token."""
    texts = sorted(words)
    unknown = tokenizer.pad_id if tokenizer.unk_id is None else tokenizer.unk_id
    tokens = {}
    for text, encoding in zip(texts, tokenizer.encode_batch(texts, add_specials=False), strict=True):
        real = [(i, (a, b)) for i, (a, b) in zip(encoding.ids, encoding.offsets, strict=True) if b > a]
        tokens[text] = real or [(unknown, (0, len(text)))]
    return tokens


def word_windows(sizes: Sequence[int], room: int, overlap: int) -> list[range]:
    """Ranges of words that fit into `room` tokens and share at most `overlap` tokens.

    sizes: tokens of each word, at most room - overlap, so that a word always fits behind the overlap.
    """
    windows, start = [], 0
    while True:
        end, used = start, 0
        while end < len(sizes) and used + sizes[end] <= room:
            used += sizes[end]
            end += 1
        windows.append(range(start, end))
        if end == len(sizes):
            return windows
        start, shared = end, sizes[end - 1]
        while shared <= overlap:
            start -= 1
            shared += sizes[start - 1]


def label_tokens(features: Sequence[Feature], words: Words) -> list[tuple[int, int]]:
    """The (window, token) that predicts each word: its first token, in the window with the most context on both sides.

    The beginning and the end of the text do not count as missing context.
    """
    starts = [a for a, _ in words]
    if len(features) == 1:  # most texts have one window, in which words begin in order
        offsets, token, found = features[0].offsets or [], 0, []
        for start in starts:
            token += 1
            while offsets[token][0] < start:
                token += 1
            found.append((0, token))
        return found
    best: list[tuple[float, int, int]] = [(-1, 0, 0)] * len(words)
    for number, feature in enumerate(features):
        offsets, last = feature.offsets or [], len(feature.ids) - 1
        owners = [bisect_right(starts, a) - 1 for a, _ in offsets[1:last]]
        for token, (before, word) in enumerate(pairwise([-1, *owners]), start=1):
            if before != word:
                left = inf if owners[0] == 0 else token
                right = inf if owners[-1] == len(words) - 1 else last - token
                best[word] = max(best[word], (min(left, right), -number, token))
    return [(-number, token) for _, number, token in best]
