"""The target of an explanation: one value, computed from the scores of the heads.

In: a `TokenizedInput` and its scores at full depth. Out: an `ExplainTarget`. For classes, words, tokens and choices
the value is the log-odds ln(p / (1 - p)) of one of them; for an answer it is the sum over its first and last token;
for a regression the predicted value; for vectors a cosine. The same selection works with numpy and torch. Before:
`explain_input.py`; next: `attribution.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.errors import AlbertkitError, nearest
from albertkit.explain.explain_input import Prediction, TokenizedInput
from albertkit.runtime.mask_filling import likeliest_tokens
from albertkit.tasks.answer import AnswerResult
from albertkit.tasks.choose import ChoiceResult
from albertkit.tasks.confidence import cosines
from albertkit.tasks.examples import ChoiceExample

if TYPE_CHECKING:
    from albertkit.runtime.runtime_model import RuntimeModel


@dataclass(frozen=True)
class TargetChoice:
    """Which target to explain; None for what the model predicts."""

    target: str | None = None
    """A class, label, choice or word."""
    at: str | None = None
    """tag: a word or its number from 1; fill: the number of a mask; answer: start or end."""


@dataclass(frozen=True)
class ExplainTarget:
    """One value about a prediction."""

    name: str
    form: str
    """class, label (of a multi-label task), number, token, span, choice, word, cosine."""
    index: int = 0
    """The class, label, choice or word."""
    tokens: tuple[int, ...] = ()
    """Tokens that are read: of a tagged word or a mask; the first and last of an answer."""
    columns: tuple[int, ...] = ()
    """For an answer: 0 for its first token, 1 for its last."""
    head: int | None = None
    """For a model with two heads (intents and slots): which one is read."""
    scale: float = 1.0
    """Scores are divided by it: the temperature; for a regression, 1 / spread."""
    offset: float = 0.0
    reference: np.ndarray | None = None
    """The vector to compare with if there is no second text."""

    @property
    def unit(self) -> str:
        """What the value is: log-odds, value or cosine."""
        return {"number": "value", "cosine": "cosine"}.get(self.form, "log-odds")

    def select(self, read: Sequence[Any]) -> list[tuple[Any, int]]:
        """(scores, index) of each distribution, from the scores of each row; numpy or torch."""
        scores = read[0] if self.head is None else read[0][self.head]
        if self.form == "token":
            return [(scores[self.tokens[0]], self.index)]
        if self.form == "span":
            return [(scores[:, c], t) for c, t in zip(self.columns, self.tokens, strict=True)]
        return [(scores, self.index)]

    def terms(self, read: Sequence[Any]) -> np.ndarray:
        """The value's summands (two for an answer), from the scores of each row."""
        if self.form == "cosine":
            other = self.reference if self.reference is not None else read[1]
            return cosines(read[0][None], np.asarray(other)[None])
        if self.form == "word":  # already computed by `read_target`: the scores of all words are large
            return np.asarray(read[0], np.float64)[None]
        if self.form == "choice":
            read = [np.concatenate([np.ravel(row) for row in read])]
        selected = self.select(read)
        if self.form in ("label", "number"):
            return np.array([self.offset + float(scores[index]) / self.scale for scores, index in selected])
        return np.array([log_odds(np.asarray(scores, np.float64) / self.scale, index) for scores, index in selected])

    def value(self, read: Sequence[Any]) -> float:
        return float(self.terms(read).sum())

    def probability(self, read: Sequence[Any]) -> float:
        """The value as a probability; values and cosines are not converted."""
        terms = self.terms(read)
        if self.unit != "log-odds":
            return float(terms.sum())
        return float(np.prod(1 / (1 + np.exp(-np.clip(terms, -700, 700)))))

    def at_positions(self, positions: np.ndarray) -> ExplainTarget:
        """The same target after tokens were dropped; `positions` has the new position of each old token."""
        return replace(self, tokens=tuple(int(positions[token]) for token in self.tokens)) if self.tokens else self


def log_odds(scores: np.ndarray, index: int) -> float:
    """ln(p / (1 - p)) of one of several scores.

    >>> round(log_odds(np.array([2.0, 0.0]), 0), 6)
    2.0
    """
    rest = np.delete(scores, index)
    top = rest.max()
    return float(scores[index] - top - np.log(np.exp(rest - top).sum()))


# Choosing the target ---------------------------------------------------------------------------------------------


def choose_target(
    albert: RuntimeModel, tokenized: TokenizedInput, read: Sequence[Any], result: Prediction, choice: TargetChoice
) -> ExplainTarget:
    """The target of an input, from the scores of its rows at full depth and their result."""
    kind = tokenized.kind
    if choice.at is not None and kind not in ("tag", "intent", "answer", "fill"):
        raise AlbertkitError(
            f"at={choice.at!r} is not used for {kind!r}: it selects a word, a mask or an end of an answer; omit it"
        )
    if kind in ("similar", "embed"):
        return _cosine_target(tokenized, read, choice)
    if kind == "fill":
        return _word_target(albert, tokenized, read[0], choice)
    task = albert.task
    if kind == "classify":
        return _class_target(task, read[0], choice)
    if kind == "choose":
        return _choice_target(tokenized, result, choice)
    if kind == "answer":
        return _span_target(tokenized, result, choice)
    if kind == "intent" and choice.at is None:
        index = _index_of(choice.target, task.intents, int(np.argmax(read[0][0])))
        return ExplainTarget(task.intents[index], "class", index, head=0)
    scores, head = (read[0], None) if kind == "tag" else (read[0][1], 1)
    return _token_target(task, tokenized, scores, choice, head)


def _index_of(name: str | None, names: Sequence[str], default: int) -> int:
    if name is None:
        return default
    if name not in names:
        raise AlbertkitError(f"target={name!r} is unknown{nearest(name, names)}; choose one of {', '.join(names[:20])}")
    return list(names).index(name)


def _class_target(task: Any, scores: np.ndarray, choice: TargetChoice) -> ExplainTarget:
    if task.kind == "regression":
        _check_unused(choice.target, "a regression has no classes")
        return ExplainTarget("value", "number", scale=1 / task.std, offset=task.mean)
    index = _index_of(choice.target, task.labels, int(np.argmax(scores)))
    form = "label" if task.kind == "multi" else "class"
    return ExplainTarget(task.labels[index], form, index, scale=task.temperature)


def _token_target(
    task: Any, tokenized: TokenizedInput, scores: np.ndarray, choice: TargetChoice, head: int | None
) -> ExplainTarget:
    """The label of a word; by default of the word with the most confident label other than O."""
    owner = tokenized.rows[0].owner
    firsts = [int(np.argmax(owner == word)) for word in range(len(tokenized.words))]
    if choice.at is None:
        labels = [i for i, label in enumerate(task.labels) if label != "O"]
        best = [max(log_odds(scores[token].astype(np.float64), i) for i in labels) for token in firsts]
        word = int(np.argmax(best))
    else:
        word = _position_of(choice.at, [one.text for one in tokenized.words])
    token = firsts[word]
    index = _index_of(choice.target, task.labels, int(scores[token].argmax()))
    name = f"{task.labels[index]} at {tokenized.words[word].text!r}"
    return ExplainTarget(name, "token", index, (token,), head=head)


def _position_of(at: str, words: Sequence[str]) -> int:
    """A word by its text or by its number from 1."""
    if at in words:
        return list(words).index(at)
    if at.isdigit() and 1 <= int(at) <= len(words):
        return int(at) - 1
    raise AlbertkitError(
        f"at={at!r} is not a word of the text{nearest(at, words)}; pass a word, or its number from 1 to {len(words)}"
    )


def _span_target(tokenized: TokenizedInput, result: Prediction, choice: TargetChoice) -> ExplainTarget:
    """The answer's first and last token; [CLS] if there is no answer."""
    _check_unused(choice.target, "the position of the answer is explained")
    if choice.at not in (None, "start", "end"):
        raise AlbertkitError(f"at={choice.at!r} is unknown; choose start or end, or omit it to explain both")
    assert isinstance(result, AnswerResult)
    tokens, name = (0, 0), "no answer"
    if result.text:
        inside = [
            token
            for token, place in enumerate(tokenized.rows[0].places)
            if place and place[0] == "text" and place[1] < result.end and place[2] > result.start
        ]
        tokens, name = (inside[0], inside[-1]), repr(result.text)
    columns = {None: (0, 1), "start": (0,), "end": (1,)}[choice.at]
    suffix = "" if choice.at is None else f", its {choice.at}"
    return ExplainTarget(name + suffix, "span", tokens=tuple(tokens[c] for c in columns), columns=columns)


def _choice_target(tokenized: TokenizedInput, result: Prediction, choice: TargetChoice) -> ExplainTarget:
    assert isinstance(tokenized.example, ChoiceExample) and isinstance(result, ChoiceResult)
    choices = tokenized.example.choices
    index = result.index if choice.target is None else _position_of(choice.target, choices)
    return ExplainTarget(f"choice {index + 1}, {choices[index]!r}", "choice", index)


def _word_target(
    albert: RuntimeModel, tokenized: TokenizedInput, hidden: np.ndarray, choice: TargetChoice
) -> ExplainTarget:
    """A word for a mask; `hidden` (tokens, H)."""
    masks = [place for place, token in enumerate(tokenized.rows[0].ids) if token == albert.tokenizer.mask_id]
    at = choice.at or "1"
    if not at.isdigit() or not 1 <= int(at) <= len(masks):
        raise AlbertkitError(f"at={choice.at!r} is not a mask; pass its number, from 1 to {len(masks)}")
    place, word = masks[int(at) - 1], choice.target
    if word is None:
        token: int | None = likeliest_tokens(albert, hidden[[place]], 1)[0][0][0]
    else:
        forms = (f"▁{word}", word, f"##{word}")
        token = next((i for i in map(albert.tokenizer.id_of, forms) if i is not None), None)
        if token is None:  # as a text is tokenized: in lower case, for instance
            ids = albert.tokenizer.encode(word, add_specials=False).ids
            token = ids[0] if len(ids) == 1 and ids[0] != albert.tokenizer.unk_id else None
    if token is None:
        raise AlbertkitError(f"target={word!r} is not a single token of this vocabulary; choose another word")
    shown = word or albert.tokenizer.tokens([token])[0].removeprefix("##").replace("▁", "")
    return ExplainTarget(f"{shown!r} at mask {at}", "word", token, (place,))


def _cosine_target(tokenized: TokenizedInput, read: Sequence[Any], choice: TargetChoice) -> ExplainTarget:
    _check_unused(choice.target, "vectors have no classes")
    if tokenized.kind == "similar":
        return ExplainTarget("similarity of the two texts", "cosine")
    return ExplainTarget("direction of the text's vector", "cosine", reference=np.asarray(read[0]))


def _check_unused(target: str | None, reason: str) -> None:
    if target is not None:
        raise AlbertkitError(f"target={target!r} is not used: {reason}; omit it")
