"""What about a prediction is explained: one number, computed from the scores of the heads.

In: a `TokenizedInput` and its scores at full depth. Out: a `ExplainTarget`, whose `value` is that number. Where the model chooses among classes,
words, tokens or choices, the number is the log-odds of one of them, ln(p / (1 - p)); of an answer, the sum of those of its first and its
last token. A regression's number is its value, that of vectors their cosine. The same selection serves numpy and torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError, nearest
from albertkit.explain.explained_input import TokenizedInput
from albertkit.tasks.confidence import cosines


@dataclass(frozen=True)
class ExplainTarget:
    """One number about a prediction."""

    name: str
    """What it is about, for people."""
    form: str
    """class, label (one of several at once), number, token, span, choice, word, cosine."""
    index: int = 0
    """The class, label, choice or word."""
    tokens: tuple[int, ...] = ()
    """Tokens that are read: of a tagged word, of a mask; first and last of an answer."""
    columns: tuple[int, ...] = ()
    """Of an answer: 0 for its first token, 1 for its last."""
    number: int | None = None
    """Which of two heads is read, for intents with slots."""
    scale: float = 1.0
    """Scores are divided by it: the temperature; of a regression, 1 / spread."""
    middle: float = 0.0
    reference: np.ndarray | None = None
    """The vector that a text is compared with, where there is no second text."""

    @property
    def unit(self) -> str:
        """What the number is."""
        return {"number": "value", "cosine": "cosine"}.get(self.form, "log-odds")

    def picked(self, read: Sequence[Any]) -> list[tuple[Any, int]]:
        """(scores, index) of each distribution, from the scores of each row; of numpy or of torch."""
        scores = read[0] if self.number is None else read[0][self.number]
        if self.form == "token":
            return [(scores[self.tokens[0]], self.index)]
        if self.form == "span":
            return [(scores[:, c], t) for c, t in zip(self.columns, self.tokens, strict=True)]
        return [(scores, self.index)]

    def odds(self, read: Sequence[Any]) -> np.ndarray:
        """The number, or its two summands, from the scores of each row."""
        if self.form == "cosine":
            other = self.reference if self.reference is not None else read[1]
            return cosines(read[0][None], np.asarray(other)[None])
        if self.form == "word":  # `variants.read` has done it, since the scores of all words are many
            return np.asarray(read[0], np.float64)[None]
        if self.form == "choice":
            read = [np.concatenate([np.ravel(row) for row in read])]
        picked = self.picked(read)
        if self.form in ("label", "number"):
            return np.array([self.middle + float(scores[index]) / self.scale for scores, index in picked])
        return np.array([log_odds(np.asarray(scores, np.float64) / self.scale, index) for scores, index in picked])

    def value(self, read: Sequence[Any]) -> float:
        """The number itself."""
        return float(self.odds(read).sum())

    def chance(self, read: Sequence[Any]) -> float:
        """The number as a probability; values and cosines stay what they are."""
        odds = self.odds(read)
        return (
            float(odds.sum())
            if self.unit != "log-odds"
            else float(np.prod(1 / (1 + np.exp(-np.clip(odds, -700, 700)))))
        )

    def moved(self, places: np.ndarray) -> ExplainTarget:
        """The same target where tokens have gone; `places` gives the new place of each old one."""
        return replace(self, tokens=tuple(int(places[token]) for token in self.tokens)) if self.tokens else self


def log_odds(scores: np.ndarray, index: int) -> float:
    """ln(p / (1 - p)) of one of several scores.

    >>> round(log_odds(np.array([2.0, 0.0]), 0), 6)
    2.0
    """
    rest = np.delete(scores, index)
    top = rest.max()
    return float(scores[index] - top - np.log(np.exp(rest - top).sum()))


# Choosing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TargetChoice:
    """What the user wants explained; None: what the model says."""

    target: str | None = None
    """A class, label, choice or word."""
    at: str | None = None
    """Of a text with several things to explain: a word or its number from 1 (tag), the number of a mask, start or end (answer)."""


def target_of(
    albert: Albert, subject: TokenizedInput, read: Sequence[Any], result: Any, wanted: TargetChoice
) -> ExplainTarget:
    """The target of a subject, from the scores of its rows at full depth and the result they give."""
    kind = subject.kind
    if wanted.at is not None and kind not in ("tag", "intent", "answer", "fill"):
        raise AlbertkitError(
            f"at is {wanted.at!r}; it chooses a word, a mask or an end of an answer, and {kind!r} has none"
        )
    if kind in ("similar", "embed"):
        return _cosine(subject, read, wanted)
    if kind == "fill":
        return _word(albert, subject, read[0], wanted)
    task = albert.task
    if kind == "classify":
        return _class(task, read[0], wanted)
    if kind == "choose":
        return _choice(subject, result, wanted)
    if kind == "answer":
        return _span(subject, result, wanted)
    if kind == "intent" and wanted.at is None:
        index = _named(wanted.target, task.intents, int(np.argmax(read[0][0])))
        return ExplainTarget(task.intents[index], "class", index, number=0)
    return _token(task, subject, read[0] if kind == "tag" else read[0][1], wanted, None if kind == "tag" else 1)


def _named(name: str | None, names: Sequence[str], default: int) -> int:
    if name is None:
        return default
    if name not in names:
        raise AlbertkitError(f"target is {name!r}{nearest(name, names)}; this model knows {', '.join(names[:20])}")
    return list(names).index(name)


def _class(task: Any, scores: np.ndarray, wanted: TargetChoice) -> ExplainTarget:
    if task.kind == "regression":
        _none(wanted.target, "a value has no classes")
        return ExplainTarget("value", "number", scale=1 / task.spread, middle=task.middle)
    index = _named(wanted.target, task.labels, int(np.argmax(scores)))
    return ExplainTarget(
        task.labels[index], "label" if task.kind == "multi" else "class", index, scale=task.temperature
    )


def _token(
    task: Any, subject: TokenizedInput, scores: np.ndarray, wanted: TargetChoice, number: int | None
) -> ExplainTarget:
    """A word of a tagged text; default the one that is most surely something."""
    owner = subject.rows[0].owner
    firsts = [int(np.argmax(owner == word)) for word in range(len(subject.words))]
    if wanted.at is None:
        rest = [i for i, label in enumerate(task.labels) if label != "O"]
        sure = [max(log_odds(scores[token].astype(np.float64), i) for i in rest) for token in firsts]
        word = int(np.argmax(sure))
    else:
        word = _place(wanted.at, [one.text for one in subject.words])
    token = firsts[word]
    index = _named(wanted.target, task.labels, int(scores[token].argmax()))
    return ExplainTarget(
        f"{task.labels[index]} at {subject.words[word].text!r}", "token", index, (token,), number=number
    )


def _place(at: str, words: Sequence[str]) -> int:
    """A word by itself or by its number from 1."""
    if at in words:
        return list(words).index(at)
    if at.isdigit() and 1 <= int(at) <= len(words):
        return int(at) - 1
    raise AlbertkitError(
        f"at is {at!r}{nearest(at, words)}; give a word of the text, or its number from 1 to {len(words)}"
    )


def _span(subject: TokenizedInput, result: Any, wanted: TargetChoice) -> ExplainTarget:
    """The answer's first and last token; where there is none, [CLS] stands for it."""
    _none(wanted.target, "what is explained is where the answer is")
    if wanted.at not in (None, "start", "end"):
        raise AlbertkitError(f"at is {wanted.at!r}; of an answer choose start or end, or leave it away for both")
    tokens, name = (0, 0), "no answer"
    if result.text:
        own = [
            token
            for token, place in enumerate(subject.rows[0].places)
            if place and place[0] == "text" and place[1] < result.end and place[2] > result.start
        ]
        tokens, name = (own[0], own[-1]), repr(result.text)
    columns = {None: (0, 1), "start": (0,), "end": (1,)}[wanted.at]
    ends = {None: "", "start": ", its start", "end": ", its end"}[wanted.at]
    return ExplainTarget(name + ends, "span", tokens=tuple(tokens[c] for c in columns), columns=columns)


def _choice(subject: TokenizedInput, result: Any, wanted: TargetChoice) -> ExplainTarget:
    choices = subject.example.choices
    index = result.index if wanted.target is None else _place(wanted.target, choices)
    return ExplainTarget(f"choice {index + 1}, {choices[index]!r}", "choice", index)


def _word(albert: Albert, subject: TokenizedInput, hidden: np.ndarray, wanted: TargetChoice) -> ExplainTarget:
    """A word for a mask; `hidden` are the states of the tokens."""
    masks = [place for place, token in enumerate(subject.rows[0].ids) if token == albert.tokenizer.mask_id]
    at = wanted.at or "1"
    if not at.isdigit() or not 1 <= int(at) <= len(masks):
        raise AlbertkitError(f"at is {wanted.at!r}; choose a mask by its number from 1 to {len(masks)}")
    place, word = masks[int(at) - 1], wanted.target
    if word is None:
        token: int | None = albert.best_words(hidden[[place]], 1)[0][0][0]
    else:
        forms = (f"▁{word}", word, f"##{word}")
        token = next((i for i in map(albert.tokenizer.id_of, forms) if i is not None), None)
        if token is None:  # as a text is read: in lower case, for instance
            pieces = albert.tokenizer.encode(word, add_specials=False).ids
            token = pieces[0] if len(pieces) == 1 and pieces[0] != albert.tokenizer.unk_id else None
    if token is None:
        raise AlbertkitError(
            f"target is {word!r}, which this vocabulary does not have as one piece; choose another word"
        )
    shown = word or albert.tokenizer.tokens([token])[0].removeprefix("##").replace("▁", "")
    return ExplainTarget(f"{shown!r} at mask {at}", "word", token, (place,))


def _cosine(subject: TokenizedInput, read: Sequence[Any], wanted: TargetChoice) -> ExplainTarget:
    _none(wanted.target, "vectors have no classes")
    if subject.kind == "similar":
        return ExplainTarget("how alike the two texts are", "cosine")
    return ExplainTarget("the direction of the text's vector", "cosine", reference=np.asarray(read[0]))


def _none(target: str | None, why: str) -> None:
    if target is not None:
        raise AlbertkitError(f"target is {target!r}, and {why}; leave it away")
