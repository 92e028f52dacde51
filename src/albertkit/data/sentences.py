"""A paragraph → its sentences, in English and Chinese.

A sentence ends at . ! ? … and closing quotes or brackets, if white space follows and the next word does not start with
a lower-case letter. It also ends at 。 ！ ？ ； and similar marks, without a space. A full stop does not end a sentence
after a title (Mr.), an initial, an abbreviation, or the number of a list item. After some abbreviations (U.S., Inc.,
p.m.) it depends on the next word. Quotes are not matched. Scripts with other stops (Thai, Devanagari) are not split.
"""

from __future__ import annotations

import re

from albertkit.tokenizer.normalizer import CJK

_CLOSE = "\"'”’»›)\\]}」』）】》〉］｝〕〗"
_OPEN = "\"'“‘„«‹([{「『（【《〈［｛〔〖¿¡*_–—-"
_WIDE = "。！？；｡"
# A leading character class lets `re` scan quickly. The lookbehind prevents a match attempt at each stop of a long run.
# The context of a stop is checked afterwards.
_STOP = re.compile(
    rf"[.!?…{_WIDE}](?<![.!?…{_WIDE}]{{2}})[.!?…{_WIDE}]*[{_CLOSE}]*"
    rf"(?:\s+|(?=[^\x00-\x7f])|(?<=[^\x00-\x7f])(?![{_CLOSE}]))"
)
_ASCII_STOP = re.compile(r"[.!?](?<![.!?]{2})[.!?]*[\"')\]}]*\s+")  # the same for ASCII, at twice the speed
_IDEOGRAPH = re.compile(f"[{CJK}]")
_NEXT = re.compile(f"[{CJK}“‘「『（《]")
_OPENERS = re.compile(f"[{re.escape(_OPEN)}]+")
_WORD = re.compile(r"[^\W\d_]+")
_DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")  # U.S, Ph.D, p.m


def _word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Lower case, without the final stop.
TITLES = _word_set(
    "mr mrs ms mx messrs mme mlle dr drs prof rev fr hon gen lt col maj capt cmdr cdr sgt cpl pvt adm gov sen rep pres "
    "supt st ste mt ft vs cf viz ca e.g i.e approx resp incl esp"
)
NUMBERED = _word_set("no nos vol vols fig figs p pp ch chap sec sect art op ed pt par eq ref cap ver")
ENDING = _word_set(
    "inc ltd co cos corp bros llc plc jr sr esq etc al est dept univ assn ave blvd rd ed eds trans jan feb mar apr jun "
    "jul aug sep sept oct nov dec mon tue tues wed thu thurs fri sat sun b d fl r"
)
# Words that start sentences and do not follow an initial: "in the U.S. The", but "George W. Bush".
STARTERS = _word_set(
    "The This That These Those He She It They We You His Her Its Their Our My In On At By For From With As After "
    "Before During When While Where Although Though However But And If There Since Until Both Some Many Most Other "
    "One Two Among According Also Such To Under Then Thus Here Not What Who How Why Which Each Every Several An All"
)
LOOKBACK = 40  # most characters searched backwards for the start of a word
LONGEST_ABBREVIATION = max(map(len, TITLES | NUMBERED | ENDING))


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, stripped of white space; none is empty.

    >>> split_sentences('Mr. Hill left. "Why?" she asked (at 3.15 p.m.). 他走了。她问：“为什么？”')
    ['Mr. Hill left.', '"Why?" she asked (at 3.15 p.m.).', '他走了。', '她问：“为什么？”']
    """
    sentences, start = [], 0
    for stop in (_ASCII_STOP if paragraph.isascii() else _STOP).finditer(paragraph):
        stop_start, after = stop.span()
        if _is_end(paragraph, start, stop_start, after):
            sentence = paragraph[start:after].strip()
            if sentence:
                sentences.append(sentence)
            start = after
    rest = paragraph[start:].strip()
    if rest:
        sentences.append(rest)
    return sentences


def _is_end(text: str, start: int, at: int, after: int) -> bool:
    """Whether the sentence from `start` ends at the stop from `at` to `after`."""
    if after == len(text):
        return True
    first = text[after]
    if not text[after - 1].isspace():  # no space after the stop: it is 。 or similar, or between ideographs
        return text[at] in _WIDE or (at > start and bool(_IDEOGRAPH.match(text, at - 1) and _NEXT.match(first)))
    if first in _OPEN:
        opened = _OPENERS.match(text, after)
        after = opened.end() if opened else after
        first = text[after : after + 1]
    if first.islower() and text[at] not in _WIDE:
        return False
    if text[at] != "." or not text[at + 1].isspace():  # several stops, or a closing mark: not an abbreviation
        return True
    begin = max(start, text.rfind(" ", max(start, at - LOOKBACK), at) + 1, at - LOOKBACK)
    word = text[begin:at]
    if len(word) > LONGEST_ABBREVIATION and word.isalpha():
        return True
    word = word.lstrip(_OPEN)
    return not word or not _is_abbreviation(word, text, after, begin == start)


def _is_abbreviation(word: str, text: str, after: int, leads: bool) -> bool:
    """Whether the stop after `word` belongs to the word; the following text starts at `after`."""
    if word.isdigit():
        return leads and len(word) <= 2  # "1. Introduction"
    lower = word.lower()
    if lower in TITLES:
        return True
    if lower in NUMBERED and text[after : after + 1].isdigit():
        return True
    initial = len(word) == 1 and lower != word.upper()
    if initial or lower in ENDING or _DOTTED.fullmatch(word):
        following = _WORD.match(text, after)
        return following is None or following.group() not in STARTERS
    return False
