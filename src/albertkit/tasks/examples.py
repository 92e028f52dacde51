"""Examples: one class per kind of labelled data, its validation, and the words of a text.

In: values from files (`readers/`) or from a program. Out: plain values with their file and line, so that errors can
name them. Each task module converts examples into features.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import isfinite
from numbers import Integral

from albertkit.errors import type_with_article
from albertkit.input_warnings import is_blank
from albertkit.text_reader import TEXT_LIMIT

TEXT_FIELDS = ("text", "pair", "question", "context", "source", "system", "user")


class Example:
    """Base of all examples."""

    where: str
    """File and line, for errors: `train.tsv:12`."""

    def problem(self) -> str | None:
        """What is wrong with the example, and the remedy; None if nothing is."""
        raise NotImplementedError

    def joined_text(self) -> str:
        """All texts that the model reads, joined by spaces."""
        parts = [getattr(self, name, None) for name in TEXT_FIELDS]
        return " ".join([*(part for part in parts if part), *getattr(self, "choices", ())])

    def is_blank(self) -> bool:
        """Whether a text that a prediction needs is blank."""
        parts = [getattr(self, name, None) for name in TEXT_FIELDS if name != "system"]
        return any(part is not None and is_blank(part) for part in parts)


@dataclass(frozen=True)
class TextExample(Example):
    """A text or a pair of texts with its label: a class, several classes, or a number.

    >>> from albertkit import TextExample
    >>> TextExample("Great coffee machine!", label="praise").label
    'praise'
    """

    text: str
    pair: str | None = None
    label: str | float | tuple[str, ...] | None = None
    where: str = ""

    def problem(self) -> str | None:
        """As in `Example`; a missing label is not a problem."""
        label, problem = self.label, text_problem(self.text, "text")
        if self.pair is not None:
            problem = problem or text_problem(self.pair, "second text")
        if not problem and not isinstance(label, str | float | tuple | Integral | None):
            problem = f"the label is {type_with_article(label)}; write a class (text), a number or a tuple of classes"
        odd = [name for name in label if not isinstance(name, str | Integral)] if isinstance(label, tuple) else []
        if not problem and odd:
            problem = f"one class of the label is {odd[0]!r:.40}; write every class as text"
        if not problem and isinstance(label, float) and not isfinite(label):
            problem = f"the label is {label}; write a finite number or omit the example"
        return problem


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a text, and their label."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class TaggedExample(Example):
    """A text, the character spans of its words, and its entities, which start and end at words.

    >>> from albertkit import TaggedExample
    >>> from albertkit.tasks.examples import Span
    >>> text = "Ada lives in London"
    >>> words = ((0, 3), (4, 9), (10, 12), (13, 19))
    >>> example = TaggedExample(text, words, spans=(Span(0, 3, "PER"), Span(13, 19, "LOC")))
    >>> [text[span.start : span.end] for span in example.spans]
    ['Ada', 'London']
    """

    text: str
    words: tuple[tuple[int, int], ...]
    spans: tuple[Span, ...] = ()
    intent: str | None = None
    """The class of the text, for intents with slots."""
    where: str = ""

    def problem(self) -> str | None:
        """As in `Example`; entities must not overlap."""
        problem = text_problem(self.text, "text")
        if self.intent is not None:
            problem = problem or text_problem(self.intent, "intent")
        if problem:
            return problem
        for span in self.spans:
            if not isinstance(span.label, str) or not span.label:
                place = f"the entity from {span.start} to {span.end} has the label {span.label!r}"
                return f"{place}; write a label such as 'PER', or omit it"
        for first, second in pairwise(sorted(self.spans, key=lambda span: (span.start, span.end))):
            if second.start < first.end:
                names = [f"{self.text[span.start : span.end]!r:.40} ({span.label})" for span in (first, second)]
                return f"the entities {names[0]} and {names[1]} overlap; keep one of them"
        return None


@dataclass(frozen=True)
class QuestionExample(Example):
    """A question about a context.

    >>> from albertkit import QuestionExample
    >>> example = QuestionExample("q1", "Who wrote it?", "Ada Lovelace wrote it.", answers=((0, "Ada Lovelace"),))
    >>> example.answers[0][1]
    'Ada Lovelace'
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[int, str], ...] = ()
    """The start of each correct answer in the context, and its text; empty if there is no (known) answer."""
    is_impossible: bool = False
    """Whether the question is marked as unanswerable."""
    where: str = ""

    def problem(self) -> str | None:
        """As in `Example`; an answer may be anywhere in the context."""
        problem = text_problem(self.context, "context") or text_problem(self.question, "question")
        for _, text in self.answers:
            problem = problem or text_problem(text, "answer")
            if not problem and text.strip() not in self.context:
                problem = f"the answer {text!r:.60} is not in the context; correct it"
        if not problem and not self.answers and not self.is_impossible:
            return "there is no answer; write one, or mark the question with is_impossible"
        return problem

    def locate_answers(self) -> tuple[QuestionExample, int]:
        """The example with each answer at its nearest position in the context, and the number of moved answers."""
        answers, moved = [], 0
        for start, text in self.answers:
            bare = text.strip()
            expected = int(start) + text.index(bare) if isinstance(start, Integral) else 0
            actual = nearest_occurrence(self.context, bare, expected)
            moved += actual != expected
            answers.append((expected if actual is None else actual, bare))
        return replace(self, answers=tuple(answers)), moved


@dataclass(frozen=True)
class ChoiceExample(Example):
    """A question about a context with several choices, of which one is correct.

    >>> from albertkit import ChoiceExample
    >>> example = ChoiceExample("Ann took the bus.", "How did Ann travel?", ("By bus.", "By car."), answer=0)
    >>> example.choices[example.answer]
    'By bus.'
    """

    context: str
    question: str
    choices: tuple[str, ...]
    answer: int | None = None
    """The number of the correct choice, from 0."""
    where: str = ""

    def problem(self) -> str | None:
        """As in `Example`; one of context and question may be empty."""
        count = len(self.choices)
        if count < 2:
            return "there must be at least two choices; write them as a list of texts"
        parts = [(name, text) for name in ("context", "question") if (text := getattr(self, name)) != ""]
        parts = [*(parts or [("question", "")]), *(("choice", choice) for choice in self.choices)]
        problem = next((problem for name, text in parts if (problem := text_problem(text, name))), None)
        if problem:
            return problem
        is_number = isinstance(self.answer, Integral) and not isinstance(self.answer, bool)
        if self.answer is None or not is_number or not 0 <= self.answer < count:
            last = chr(ord("A") + count - 1)
            return f"the answer must be a number from 0 to {count - 1}, in files also a letter up to {last}; correct it"
        return None

    def is_blank(self) -> bool:
        """As in `Example`; one of context and question may be empty."""
        return is_blank(self.context + self.question) or any(map(is_blank, self.choices))


@dataclass(frozen=True)
class RewriteExample(Example):
    """A text, and the text to generate from it: a summary, a question, a simpler sentence.

    >>> from albertkit import RewriteExample
    >>> RewriteExample(source="A long text about trains.", target="Trains.").target
    'Trains.'
    """

    source: str
    target: str | None = None
    where: str = ""

    def problem(self) -> str | None:
        return text_problem(self.source, "source") or text_problem(self.target, "target")


@dataclass(frozen=True)
class DialogueTurn(Example):
    """One turn of a dialogue: the system's text, the user's reply, and the state after it.

    >>> from albertkit import DialogueTurn
    >>> turn = DialogueTurn("d1", 0, system="", user="Thai food, please.", state=(("food", "thai"),))
    >>> dict(turn.state)["food"]
    'thai'
    """

    dialogue: str
    number: int
    system: str
    user: str
    state: tuple[tuple[str, str], ...] = ()
    """(slot, value) of all constraints so far."""
    updates: tuple[tuple[str, str], ...] = ()
    """(slot, value) that this turn adds; `request` is also a slot."""
    where: str = ""

    def problem(self) -> str | None:
        """As in `Example`; the system's text may be empty."""
        problem = text_problem(self.user, "user's text")
        return problem or (text_problem(self.system, "system's text") if self.system != "" else None)


def text_problem(text: object, name: str) -> str | None:
    """The problem with a text and its remedy; None if there is none."""
    if text is None:
        return f"the {name} is missing; write one"
    if not isinstance(text, str):
        return f"the {name} is {type_with_article(text)}; write a text in quotes"
    if not text.strip():
        return f"the {name} is empty; write one or delete the row"
    if len(text) > TEXT_LIMIT:
        return f"the {name} has over {TEXT_LIMIT:,} characters; split it into several texts"
    if "\0" in text:
        return f"the {name} contains zero bytes; delete them"
    return None


def nearest_occurrence(context: str, text: str, start: int) -> int | None:
    """The position of the text in the context: `start`, or the nearest one."""
    start = max(0, start)
    before, after = context.rfind(text, 0, start + len(text)), context.find(text, start)
    return min((place for place in (before, after) if place >= 0), key=lambda p: abs(p - start), default=None)


# Words ---------------------------------------------------------------------------------------------------------------

Words = Sequence[tuple[int, int]]
CJK = re.compile(
    "[\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_SAME = {"’": "'", "‐": "-", "‑": "-"}
_WORD = re.compile(  # over the classes of `word_class`
    r"(?:w\.){2,}(?![wd])"  # U.S.
    r"|w\.(?= +w)"  # George W. Bush
    r"|[wd][wdmz]*(?:(?:[-./&@']|(?<=d)[,:](?=d))[wd][wdmz]*)*"  # all-rounder, O'Brien, 1,000.5, 10:30
    r"|([-.'])\1+"  # ...
    r"|[^ ](?:m|zx)*"  # one Chinese character, one punctuation mark, one emoji with its modifiers
)
_CONTRACTION = re.compile("(?:n['’]t|['’](?:s|m|d|ll|ve|re))$", re.IGNORECASE)


def split_words(text: str) -> tuple[tuple[int, int], ...]:
    """The words of a text: runs of letters and digits, single punctuation marks, single Chinese characters.

    Punctuation inside a word stays in it (all-rounder, 1,000, O'Brien, U.S.). At its ends, punctuation marks are
    separate words, and so are 's and similar endings, as in most labelled English data. Only white space and control
    characters are omitted.

    >>> [text[a:b] for text in ["The U.S. beat 北京, 3-1."] for a, b in split_words(text)]
    ['The', 'U.S.', 'beat', '北', '京', ',', '3-1', '.']
    """
    words: list[tuple[int, int]] = []
    for match in _WORD.finditer("".join(map(word_class, text))):
        start, end = match.span()
        ending = _CONTRACTION.search(text[start:end]) if end - start > 2 else None
        cut = start + ending.start() if ending else start
        words += [(start, cut), (cut, end)] if cut > start else [(start, end)]
    return tuple(words)


@lru_cache(maxsize=65536)
def word_class(c: str) -> str:
    """w letter, d digit, c Chinese, m modifier of the previous one, z joiner, x other mark, or the mark itself."""
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
