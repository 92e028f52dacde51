"""Examples: one class for each kind of labelled data.

In: files, through `readers/`, or lists of a program, through `validate.py`. Out: plain values with the file and line
they come from, so that errors can name them. After this file: one module per task turns examples into features.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextExample:
    """A text or a pair of texts with its label: a class, several classes, or a number."""

    text: str
    pair: str | None = None
    label: str | float | tuple[str, ...] | None = None
    where: str = ""
    """File and line, for errors: `train.tsv:12`."""


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of a text, and their label."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class TaggedExample:
    """A text, the characters of its words, and its entities, which begin and end with words."""

    text: str
    words: tuple[tuple[int, int], ...]
    spans: tuple[Span, ...] = ()
    intent: str | None = None
    """The class of the text, for intents with slots."""
    where: str = ""


@dataclass(frozen=True)
class QuestionExample:
    """A question about a context."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[int, str], ...] = ()
    """The start of each correct answer in the context, and its text; empty if there is none or none is known."""
    is_impossible: bool = False
    """Whether the question is marked as unanswerable."""
    where: str = ""


@dataclass(frozen=True)
class ChoiceExample:
    """A question about a context with several choices, of which one is correct."""

    context: str
    question: str
    choices: tuple[str, ...]
    answer: int | None = None
    """The number of the correct choice, from 0."""
    where: str = ""


@dataclass(frozen=True)
class RewriteExample:
    """A text, and the text to generate from it: a summary, a question, a simpler sentence."""

    source: str
    target: str | None = None
    where: str = ""


@dataclass(frozen=True)
class DialogueTurn:
    """One turn of a dialogue: the system's text, the user's reply, and the state after it."""

    dialogue: str
    number: int
    system: str
    user: str
    state: tuple[tuple[str, str], ...] = ()
    """(slot, value) of all constraints so far."""
    updates: tuple[tuple[str, str], ...] = ()
    """(slot, value) that this turn adds; `request` is a slot, too."""
    where: str = ""
