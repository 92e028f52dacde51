"""Text normalisation for unigram models.

In: a text or a word. Out: the normalised text, and for each of its characters the span it came from. `Charsmap` is the
normalisation table of a `spiece.model`. After this file: `unigram.py` splits the normalised text into tokens.
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
SPACE = "▁"  # SentencePiece's mark of a word start
NODE_LIMIT = 1_000_000
MAX_CACHED_CHARACTERS = 65_536  # about 15 MB; texts of one language have a few thousand
Spans = list[tuple[int, int]]
_SURROGATE = re.compile("[\ud800-\udfff]")
LETTER = rf"(?:(?![{CJK}])[^\W_])"  # a letter or digit of the scripts that put spaces between words
LETTER_RUN = re.compile(f"{LETTER}+")


class Charsmap:
    """SentencePiece's compiled normalisation table: strings and their replacements.

    The blob is a double-array trie (`darts-clone`), then the replacements, each terminated by a zero byte. Branches
    share suffixes, so the trie has few nodes for very many strings. Visiting all nodes takes a tenth of a second. The
    constructor checks only the ASCII nodes; the first non-ASCII character triggers the full check.
    """

    def __init__(self, blob: bytes):
        try:
            (size,) = struct.unpack_from("<I", blob)
            if size % 4 or size + 4 > len(blob) or not size or blob[-1:] != b"\0":
                raise ValueError("it is cut off")
            self.units = struct.unpack_from(f"<{size // 4}I", blob, 4)
            self.texts = blob[4 + size :]
            self.changed = frozenset(c for c in map(chr, range(32, 127)) if self._is_replaced(c))
        except (ValueError, IndexError, struct.error) as error:
            raise _damaged_table(error) from None

    def _is_replaced(self, c: str) -> bool:
        """Whether a printable ASCII character is replaced, or begins a longer string of such characters."""
        units = self.units
        position = self.jump(units[0]) ^ ord(c)
        if position >= len(units) or units[position] & 0x800000FF != ord(c):
            return False
        below = position ^ self.jump(units[position])
        after = ((below ^ byte, byte) for byte in range(32, 127))
        return units[position] >> 8 & 1 == 1 or any(i < len(units) and units[i] & 0x800000FF == b for i, b in after)

    @staticmethod
    def jump(unit: int) -> int:
        return (unit >> 10) << ((unit & 512) >> 6)

    @functools.cached_property
    def continuations(self) -> frozenset[str]:
        """The characters at the second or a later position of some string in the table. Visits every node."""
        try:
            return frozenset(self._find_continuations())
        except (ValueError, IndexError) as error:
            raise _damaged_table(error) from None

    def _find_continuations(self) -> set[str]:
        continuations: set[str] = set()
        children: dict[int, list[int]] = {}  # a unit at j with label l is a child of the node with base j ^ l
        for index, unit in enumerate(self.units):
            if unit < 1 << 31 and unit & 255:
                children.setdefault(index ^ (unit & 255), []).append(index)
        todo = [(self.jump(self.units[0]), b"", True)]  # base, bytes of the unfinished character, is it the first
        seen = set(todo)
        while todo:
            base, prefix, is_first = todo.pop()
            for index in children.get(base, ()):
                unit = self.units[index]
                below, character = index ^ self.jump(unit), prefix + bytes((unit & 255,))
                if unit >> 8 & 1:
                    self.replacement(self.units[below])
                width = 1 + sum(character[0] >= least for least in (0xC0, 0xE0, 0xF0))
                is_complete = len(character) == width
                if is_complete and not is_first:
                    continuations.add(character.decode())
                if is_complete and character == b" " and (not is_first or below in children):
                    raise ValueError("it replaces strings that contain spaces")
                state = (below, b"" if is_complete else character, is_first and not is_complete)
                if state not in seen:
                    seen.add(state)
                    todo.append(state)
            if len(seen) > NODE_LIMIT:
                raise ValueError("its trie is too large")
        return continuations

    def replacement(self, unit: int) -> str:
        start = unit & 0x7FFFFFFF
        new = self.texts[start : self.texts.index(b"\0", start)].decode()
        if SPACE in new:
            raise ValueError(f"a replacement contains {SPACE!r}")
        return new

    def longest_match(self, text: str, at: int) -> tuple[int, str]:
        """The longest match at position `at`: its length in characters, and its replacement."""
        units, size, new = self.units, 1, text[at]
        position = self.jump(units[0])
        for count, c in enumerate(text[at : at + 64], start=1):
            for byte in c.encode():
                position ^= byte
                if position >= len(units) or units[position] & 0x800000FF != byte:
                    return size, new
                leaf = units[position] >> 8 & 1
                position ^= self.jump(units[position])
            if leaf:
                size, new = count, self.replacement(units[position])
        return size, new


def _damaged_table(error: Exception) -> AlbertkitError:
    return AlbertkitError(f"the tokenizer's normalisation table is damaged ({error}). Copy the original file again.")


class Normalizer:
    """Normalises a text and maps each character of the result to its span in the text.

    This is the original `preprocess_text` (white space, NFKD, no combining characters, lower case) followed by
    SentencePiece's own normalisation (longest match in its table). The result of most characters does not depend on
    the context and is cached. A text with other characters (a final sigma, combining Hangul letters, a literal "▁")
    is normalised by `_normalize_in_context`.
    """

    _MARK = "\uffff"  # the result depends on the neighbours

    def __init__(self, charsmap: bytes, lower: bool, strip_accents: bool, split_scripts: bool = False):
        self.lower, self.strip, self.split_scripts = lower, strip_accents, split_scripts
        self.table = Charsmap(charsmap) if charsmap else None
        self._cache: dict[str, str] = {}
        changed = self.table.changed if self.table else frozenset()
        self.plain_ascii = all(c.isupper() and lower for c in changed)  # whether only the case of ASCII changes

    def __call__(self, text: str) -> tuple[str, Spans | None]:
        """The normalised text, and the source span of each of its characters (None: the same position).

        There is one space between words, and none at the ends. With `split_scripts`, runs of letters and digits are
        separate words: "使用Python3." becomes "使用 python3 .".
        """
        normalized, spans = self._normalize(text)
        return _split_scripts(normalized, spans) if self.split_scripts else (normalized, spans)

    def _normalize(self, text: str) -> tuple[str, Spans | None]:
        if self.plain_ascii and text.isascii() and text.isprintable():
            return self._collapse_spaces(text.lower() if self.lower else text, None)
        cache, parts = self._cache, []
        for c in text:
            part = cache.get(c)
            parts.append(self._normalize_character(c) if part is None else part)
        joined = "".join(parts)
        if self._MARK in joined:
            return self._normalize_in_context(text)
        if len(joined) == len(text) and all(parts):
            return self._collapse_spaces(joined, None)
        spans: Spans = []
        for i, part in enumerate(parts):
            if part:
                spans += [(i, i + 1)] * len(part)
            elif spans and unicodedata.combining(text[i]):
                spans[-1] = (spans[-1][0], i + 1)  # an accent belongs to the previous letter
        return self._collapse_spaces(joined, spans)

    @staticmethod
    def _collapse_spaces(text: str, spans: Spans | None) -> tuple[str, Spans | None]:
        """One space between words and none at the ends."""
        if "  " not in text and text[:1] != " " and text[-1:] != " ":
            return text, spans
        indices = [i for i, c in enumerate(text) if c != " " or (i and text[i - 1] != " ")]
        while indices and text[indices[-1]] == " ":
            indices.pop()
        return "".join([text[i] for i in indices]), [spans[i] if spans else (i, i + 1) for i in indices]

    def _normalize_character(self, c: str) -> str:
        """The normalised form of one character, or the mark if it depends on its neighbours."""
        prepared = self.prepare(c)
        continuations = self.table.continuations if self.table else frozenset()
        if SPACE in prepared or (self.lower and "Σ" in prepared) or not continuations.isdisjoint(prepared):
            result = self._MARK
        else:
            result = prepared.lower() if self.lower else prepared
            if self.table:
                result = "".join(self.table.longest_match(x, 0)[1] for x in result)
        if len(self._cache) >= MAX_CACHED_CHARACTERS:
            self._cache.clear()
        self._cache[c] = result
        return result

    def prepare(self, c: str) -> str:
        """Normalise white space, compatibility forms and accents. SentencePiece's table is applied later."""
        if c.isspace():
            return " "
        if self.strip:
            c = "".join(x for x in unicodedata.normalize("NFKD", c) if not unicodedata.combining(x))
        if self.table is None:  # a vocabulary trained by albertkit: drop control characters, and compose
            c = unicodedata.normalize("NFKC", "".join(x for x in c if unicodedata.category(x) not in ("Cc", "Cf")))
        return c

    def _normalize_in_context(self, text: str) -> tuple[str, Spans | None]:
        characters: list[str] = []
        sources: Spans = []
        for i, c in enumerate(text):
            part = self.prepare(c)
            characters += part
            sources += [(i, i + 1)] * sum(len(x.lower()) if self.lower else 1 for x in part)
            if not part and sources and unicodedata.combining(c):
                sources[-1] = (sources[-1][0], i + 1)  # an accent belongs to the previous letter
        joined = "".join(characters)
        joined = joined.lower() if self.lower else joined  # the whole text, since a final sigma depends on the context
        at = 0
        out: list[str] = []
        spans: Spans = []
        while at < len(joined):
            size, new = self.table.longest_match(joined, at) if self.table else (1, joined[at])
            out += new
            end = sources[at + size - 1][1]
            spans += [(sources[at][0], end)] * len(new)
            if not new and spans and unicodedata.combining(text[end - 1]):
                spans[-1] = (spans[-1][0], end)
            at += size
        length = len("".join(out).rstrip(" " + SPACE))  # SentencePiece treats a literal ▁ at the end as a space
        normalized, places = self._collapse_spaces("".join(out)[:length], spans[:length])
        if normalized.startswith(SPACE) and places:  # a literal ▁ at the start has the text's own ▁ before it
            normalized, places = SPACE + normalized, [places[0], *places]
        return normalized, places


def _split_scripts(text: str, spans: Spans | None) -> tuple[str, Spans | None]:
    """Insert a space on both sides of each run of letters and digits; inserted spaces have empty spans."""
    ends = {at for run in LETTER_RUN.finditer(text) for at in run.span()}
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
    """Check that a text is a str; lone surrogates become U+FFFD."""
    if isinstance(text, str):
        return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
    raise AlbertkitError(f"the text is {type(text).__name__} ({text!r:.40}), not str. Convert or decode it.")
