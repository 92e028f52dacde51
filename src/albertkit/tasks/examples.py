"""Examples: what a file of labelled data holds, one class for each kind of task.

In: files, through `reading.py` and its neighbours. Out: plain values that know the file and line they came from, so that an
error can name them. After this file: one module a task turns examples into features.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextExample:
    """A text or a pair with what is known about it: a class, several classes, or a number."""

    text: str
    pair: str | None = None
    label: str | float | tuple[str, ...] | None = None
    where: str = ""
    """File and line, for errors: `train.tsv:12`."""


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a text, and what they are."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class TaggedExample:
    """A text, the characters of its words, and the entities in it. Words are what metrics count in; entities begin and
    end with them.
    """

    text: str
    words: tuple[tuple[int, int], ...]
    spans: tuple[Span, ...] = ()
    intent: str | None = None
    """The class of the whole text, for joint intents and slots."""
    where: str = ""


@dataclass(frozen=True)
class QuestionExample:
    """A question about a context; no answers means that it cannot be answered (or, in use, that none is known)."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[int, str], ...] = ()
    """Where each right answer starts, and its text."""
    is_impossible: bool = False
    """Marked as not answerable."""
    where: str = ""


@dataclass(frozen=True)
class ChoiceExample:
    """A question about a context with several choices, of which one is right."""

    context: str
    question: str
    choices: tuple[str, ...]
    answer: int | None = None
    where: str = ""


@dataclass(frozen=True)
class RewriteExample:
    """A text, and the text to be written from it: a summary, a question, a plainer sentence."""

    source: str
    target: str | None = None
    where: str = ""


@dataclass(frozen=True)
class DialogueTurn:
    """One turn of a dialogue: what the system said before, what the user says, and what holds after it."""

    dialogue: str
    number: int
    system: str
    user: str
    state: tuple[tuple[str, str], ...] = ()
    """(slot, value) of everything asked for so far."""
    updates: tuple[tuple[str, str], ...] = ()
    """(slot, value) this turn adds; `request` is a slot too."""
    where: str = ""
