"""One form for characters that keyword search does not distinguish.

In: a text or a query. Out: its letters without case, accents and compatibility forms, Chinese in simplified characters.
`simplified.txt` is made by `studies/simplified.py` from lists of OpenCC. After this file: `keywords.py`.

Both sides are folded, so a table with too few distinctions finds more, never less: 乾隆 is stored as 干隆 and found by
乾隆. Each character is folded alone. Words that differ between regions (軟體, 软件) stay different.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from pathlib import Path

# Symbols and fractions whose plain forms have letters or digits: ½ ℃ № ™ ① ㈱ ㎡. They stay words of their own, so that
# "mark" finds "Mark™", and "50" finds "50㎡".
SYMBOLS = (
    "\u00bc-\u00be\u20a8\u2100\u2101\u2103\u2105\u2106\u2109\u2116\u2120-\u2122\u213b\u2150-\u215f\u2189\u2460-\u24ea"
    "\u3200-\u33ff\ufdfc\U0001f100-\U0001f2ff"
)
MANY_MARKS = 32  # next to each other; no language needs as many
_symbol = re.compile(f"[{SYMBOLS}]")
_accent = re.compile("[\u0300-\u036f]")
_may_be_marks = re.compile(rf"[^\w\s]{{{MANY_MARKS},}}")


def fold(text: str) -> str:
    """The text in plain, simplified, lower-case letters without accents, for its words. Folding again changes nothing.

    >>> fold("ＣＡＦÉ ﬁne ｶﾞﾗｽ 臺灣")
    'cafe fine ガラス 台湾'
    """
    if text.isascii():
        return text.lower()
    text = _symbol.sub(r" \g<0> ", _may_be_marks.sub(_drop_marks, text))
    letters = unicodedata.normalize("NFKD", text)
    plain = unicodedata.normalize("NFKC", _accent.sub("", letters).casefold())
    return " ".join(plain.translate(simplified_characters()).split())


def _drop_marks(run: re.Match[str]) -> str:
    """The run without its combining marks, if it has many: to order them takes the square of their number.

    The voicing marks of kana (class 8) stay: half-width ones become such marks, and they are in order.
    """
    kept = [c for c in run[0] if unicodedata.combining(c) in (0, 8)]
    return run[0] if len(run[0]) - len(kept) < MANY_MARKS else "".join(kept)


@functools.cache
def simplified_characters() -> dict[int, str]:
    """Code points of traditional and variant characters, and the character that stands for each."""
    lines = Path(__file__).with_name("simplified.txt").read_text(encoding="utf-8").splitlines()
    return {ord(old): line[0] for line in lines for old in line[1:]}
