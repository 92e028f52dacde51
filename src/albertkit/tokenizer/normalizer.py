"""What happens to a text before a unigram model sees it.

In: a text or a word. Out: the normalised text, and for each of its characters the place it came from. `Charsmap` is the
table that a `spiece.model` carries. Before this file: nothing; after it: `unigram.py`, which cuts the normalised text
into pieces, and `training.py`.
"""

from __future__ import annotations

import functools
import re
import struct
import unicodedata

from albertkit.errors import AlbertkitError

# Ideographs, kana and the marks between them: scripts that put no space between words. Hangul has spaces.
CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3041-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U000323af"
)
SPACE = "▁"  # how SentencePiece writes the beginning of a word
NODE_LIMIT = 1_000_000
Spans = list[tuple[int, int]]
_SURROGATE = re.compile("[\ud800-\udfff]")
_LETTERS = re.compile(
    rf"(?:(?![{CJK}])[^\W_])+"
)  # a run of letters and digits of scripts that put spaces between words


class Charsmap:
    """SentencePiece's compiled normalisation: strings, and what replaces them.

    The blob is a double-array trie (`darts-clone`) followed by the replacements, each ended by a zero byte. Branches
    share their ends, so that the trie has few nodes and very many strings: we walk it and never list it. The walk takes
    a tenth of a second, and plain English needs none: so a damaged trie is noticed here only as far as it touches ASCII,
    and the rest at the first other character.
    """

    def __init__(self, blob: bytes):
        try:
            (size,) = struct.unpack_from("<I", blob)
            if size % 4 or size + 4 > len(blob) or not size or blob[-1:] != b"\0":
                raise ValueError("it is cut off")
            self.units = struct.unpack_from(f"<{size // 4}I", blob, 4)
            self.texts = blob[4 + size :]
            self.changed = frozenset(c for c in map(chr, range(32, 127)) if self._changes(c))
        except (ValueError, IndexError, struct.error) as error:
            raise _damaged(error) from None

    def _changes(self, c: str) -> bool:
        """Whether a printable ASCII character is replaced, or begins a longer string of such characters."""
        units = self.units
        here = self._jump(units[0]) ^ ord(c)
        if here >= len(units) or units[here] & 0x800000FF != ord(c):
            return False
        below = here ^ self._jump(units[here])
        after = ((below ^ byte, byte) for byte in range(32, 127))
        return units[here] >> 8 & 1 == 1 or any(i < len(units) and units[i] & 0x800000FF == b for i, b in after)

    @staticmethod
    def _jump(unit: int) -> int:
        return (unit >> 10) << ((unit & 512) >> 6)

    @functools.cached_property
    def joins(self) -> frozenset[str]:
        """The characters that stand second or later in some string of the table; every node is checked for it."""
        try:
            return frozenset(self._survey())
        except (ValueError, IndexError) as error:
            raise _damaged(error) from None

    def _survey(self) -> set[str]:
        joins: set[str] = set()
        children: dict[int, list[int]] = {}  # a unit at j with label l is a child of the node with base j ^ l
        for index, unit in enumerate(self.units):
            if unit < 1 << 31 and unit & 255:
                children.setdefault(index ^ (unit & 255), []).append(index)
        todo = [(self._jump(self.units[0]), b"", True)]  # base, bytes of the unfinished character, is it the first
        seen = set(todo)
        while todo:
            base, begun, first = todo.pop()
            for index in children.get(base, ()):
                unit = self.units[index]
                below, character = index ^ self._jump(unit), begun + bytes((unit & 255,))
                if unit >> 8 & 1:
                    self._replacement(self.units[below])
                width = 1 + sum(character[0] >= least for least in (0xC0, 0xE0, 0xF0))
                done = len(character) == width
                if done and not first:
                    joins.add(character.decode())
                if done and character == b" " and (not first or below in children):
                    raise ValueError("it replaces strings that go from word to word")
                state = (below, b"" if done else character, first and not done)
                if state not in seen:
                    seen.add(state)
                    todo.append(state)
            if len(seen) > NODE_LIMIT:
                raise ValueError("its trie is too large")
        return joins

    def _replacement(self, unit: int) -> str:
        start = unit & 0x7FFFFFFF
        new = self.texts[start : self.texts.index(b"\0", start)].decode()
        if SPACE in new:
            raise ValueError(f"it makes {SPACE!r} of something")
        return new

    def longest(self, text: str, at: int) -> tuple[int, str]:
        """How many characters of the text from `at` on are replaced together, and by what."""
        units, size, new = self.units, 1, text[at]
        here = self._jump(units[0])
        for count, c in enumerate(text[at : at + 64], start=1):
            for byte in c.encode():
                here ^= byte
                if here >= len(units) or units[here] & 0x800000FF != byte:
                    return size, new
                leaf = units[here] >> 8 & 1
                here ^= self._jump(units[here])
            if leaf:
                size, new = count, self._replacement(units[here])
        return size, new


def _damaged(error: Exception) -> AlbertkitError:
    return AlbertkitError(f"the tokenizer's normalisation table is damaged ({error}): copy the original file again")


class Normalizer:
    """What happens to a text before a unigram model sees it, with the way back to the characters of the text.

    This is the original `preprocess_text` (white space, NFKD, no combining characters, lower case) followed by
    SentencePiece's own normalisation (longest match in its table). Almost every character is changed the same way
    wherever it stands, so its result is remembered; the few that depend on their neighbours (a final sigma, Hangul
    letters that join, a literal "▁") send the text through `_in_context`, which does it by the book.
    """

    _MARK = "\uffff"  # stands for "look at the neighbours"

    def __init__(self, charsmap: bytes, lower: bool, strip_accents: bool, split_scripts: bool = False):
        self.lower, self.strip, self.split_scripts = lower, strip_accents, split_scripts
        self.table = Charsmap(charsmap) if charsmap else None
        self.known: dict[str, str] = {}
        changed = self.table.changed if self.table else frozenset()
        self.plain_ascii = all(c.isupper() and lower for c in changed)  # does ASCII stay as it is, but for case?

    def __call__(self, text: str) -> tuple[str, Spans | None]:
        """The normalised text, and for each of its characters the span it came from (None: its own place).

        There is one space between words, and none at the ends. With `split_scripts`, runs of letters and digits are words
        of their own: "使用Python3." becomes "使用 python3 .".
        """
        made, spans = self._normalised(text)
        return _split_scripts(made, spans) if self.split_scripts else (made, spans)

    def _normalised(self, text: str) -> tuple[str, Spans | None]:
        if self.plain_ascii and text.isascii() and text.isprintable():
            return self._spaces(text.lower() if self.lower else text, None)
        known, parts = self.known, []
        for c in text:
            part = known.get(c)
            parts.append(self._alone(c) if part is None else part)
        joined = "".join(parts)
        if self._MARK in joined:
            return self._in_context(text)
        if len(joined) == len(text) and all(parts):
            return self._spaces(joined, None)
        spans: Spans = []
        for i, part in enumerate(parts):
            if part:
                spans += [(i, i + 1)] * len(part)
            elif spans and unicodedata.combining(text[i]):
                spans[-1] = (spans[-1][0], i + 1)  # an accent belongs to the letter before it
        return self._spaces(joined, spans)

    @staticmethod
    def _spaces(text: str, spans: Spans | None) -> tuple[str, Spans | None]:
        """One space between words and none at the ends."""
        if "  " not in text and text[:1] != " " and text[-1:] != " ":
            return text, spans
        kept = [i for i, c in enumerate(text) if c != " " or (i and text[i - 1] != " ")]
        while kept and text[kept[-1]] == " ":
            kept.pop()
        return "".join([text[i] for i in kept]), [spans[i] if spans else (i, i + 1) for i in kept]

    def _alone(self, c: str) -> str:
        """What one character becomes, or the mark when that depends on its neighbours."""
        prepared = self._prepare(c)
        joins = self.table.joins if self.table else frozenset()
        if SPACE in prepared or (self.lower and "Σ" in prepared) or not joins.isdisjoint(prepared):
            result = self._MARK
        else:
            result = prepared.lower() if self.lower else prepared
            if self.table:
                result = "".join(self.table.longest(x, 0)[1] for x in result)
        self.known[c] = result
        return result

    def _prepare(self, c: str) -> str:
        """White space, compatibility forms and accents; a table of SentencePiece's does the rest later."""
        if c.isspace():
            return " "
        if self.strip:
            c = "".join(x for x in unicodedata.normalize("NFKD", c) if not unicodedata.combining(x))
        if self.table is None:  # a vocabulary trained here: controls vanish, what can be one character is one
            c = unicodedata.normalize("NFKC", "".join(x for x in c if unicodedata.category(x) not in ("Cc", "Cf")))
        return c

    def _in_context(self, text: str) -> tuple[str, Spans | None]:
        prepared = [(x, i) for i, c in enumerate(text) for x in self._prepare(c)]
        whole = "".join(x for x, _ in prepared)
        origin = [i for x, i in prepared for _ in (x.lower() if self.lower else x)]
        whole = whole.lower() if self.lower else whole  # of the whole text, since a final sigma is another letter
        at = 0
        out: list[str] = []
        spans: Spans = []
        while at < len(whole):
            size, new = self.table.longest(whole, at) if self.table else (1, whole[at])
            out += new
            spans += [(origin[at], origin[at + size - 1] + 1)] * len(new)
            at += size
        kept = len("".join(out).rstrip(" " + SPACE))  # SentencePiece takes a literal ▁ at the end for a space
        made, places = self._spaces("".join(out)[:kept], spans[:kept])
        if made.startswith(SPACE) and places:  # a literal ▁ at the start has the text's own ▁ before it
            made, places = SPACE + made, [places[0], *places]
        return made, places


def _split_scripts(text: str, spans: Spans | None) -> tuple[str, Spans | None]:
    """A space on both sides of each run of letters and digits; inserted spaces stand for no character."""
    ends = {at for run in _LETTERS.finditer(text) for at in run.span()}
    places = sorted(at for at in ends if 0 < at < len(text) and text[at] != " " and text[at - 1] != " ")
    if not places:
        return text, spans
    spans = [(i, i + 1) for i in range(len(text))] if spans is None else spans
    parts: list[str] = []
    origin: Spans = []
    for start, stop in zip([0, *places], [*places, len(text)], strict=True):
        if start:
            parts.append(" ")
            origin.append((spans[start][0], spans[start][0]))
        parts.append(text[start:stop])
        origin += spans[start:stop]
    return "".join(parts), origin


def check_text(text: object) -> str:
    """A text that rust can take: a str, in which lone surrogates became U+FFFD."""
    if isinstance(text, str):
        return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
    if isinstance(text, bytes):
        raise AlbertkitError("the text is bytes and must be str: decode it first, for example text.decode('utf-8')")
    raise AlbertkitError(f"the text is {type(text).__name__} ({text!r:.40}) and must be str: pass a string")
