"""The explained value, and the contribution of each word to it.

In: a `TokenizedInput` and its scores at full depth. Out: an `ExplainTarget`, one value of the prediction, and an
`Attribution` of it by occlusion: value of the text - value without the word. The value is the log-odds ln(p / (1 - p))
of a class, word or token (for an answer, the sum over its first and last token), a regression's value, or a cosine.
Imports `explain_input.py`. `gradients.py`, the other method, and `explainer.py` use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.errors import AlbertkitError, check_choice, check_finite, nearest
from albertkit.explain.explain_input import HIDE_MODES, ExplainSettings, Prediction, TokenizedInput, TokenRow
from albertkit.runtime.batching import token_batches
from albertkit.runtime.embed import pool
from albertkit.runtime.mask_filling import likeliest_tokens
from albertkit.runtime.predict import read_heads
from albertkit.tasks.answer import AnswerResult
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.confidence import cosines
from albertkit.tasks.tag import IntentTask
from albertkit.tasks.task import Task

if TYPE_CHECKING:
    from albertkit.runtime.runtime_model import Depth, RuntimeModel


@dataclass(frozen=True)
class ExplainTarget:
    """One value about a prediction."""

    name: str
    form: str
    """class, label (of a multi-label task), number, token, span, word, cosine."""
    index: int = 0
    """The class, label or word."""
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
        """Unit of the value: log-odds, value or cosine."""
        return {"number": "value", "cosine": "cosine"}.get(self.form, "log-odds")

    def select(self, outputs: Sequence[Any]) -> list[tuple[Any, int]]:
        """(scores, index) of each distribution, from the scores of each row; numpy or torch."""
        scores = outputs[0] if self.head is None else outputs[0][self.head]
        if self.form == "token":
            return [(scores[self.tokens[0]], self.index)]
        if self.form == "span":
            return [(scores[:, c], t) for c, t in zip(self.columns, self.tokens, strict=True)]
        return [(scores, self.index)]

    def terms(self, outputs: Sequence[Any]) -> np.ndarray:
        """The value's summands (two for an answer), from the scores of each row."""
        if self.form == "cosine":
            other = self.reference if self.reference is not None else outputs[1]
            return cosines(outputs[0][None], np.asarray(other)[None])
        if self.form == "word":  # already computed by `read_target`, because the scores of all words need much memory
            return np.asarray(outputs[0], np.float64)[None]
        selected = self.select(outputs)
        if self.form in ("label", "number"):
            return np.array([self.offset + float(scores[index]) / self.scale for scores, index in selected])
        return np.array([log_odds(np.asarray(scores, np.float64) / self.scale, index) for scores, index in selected])

    def value(self, outputs: Sequence[Any]) -> float:
        return float(self.terms(outputs).sum())

    def probability(self, outputs: Sequence[Any]) -> float:
        """The value as a probability; values and cosines are not converted."""
        terms = self.terms(outputs)
        if self.unit != "log-odds":
            return float(terms.sum())
        return float(np.prod(1 / (1 + np.exp(-np.clip(terms, -700, 700)))))


def log_odds(scores: np.ndarray, index: int) -> float:
    """ln(p / (1 - p)) of one of several scores.

    >>> round(log_odds(np.array([2.0, 0.0]), 0), 6)
    2.0
    """
    others = np.delete(scores, index)
    top = others.max()
    return float(scores[index] - top - np.log(np.exp(others - top).sum()))


# Choosing the target ---------------------------------------------------------------------------------------------


def choose_target(
    albert: RuntimeModel,
    tokenized: TokenizedInput,
    outputs: Sequence[Any],
    result: Prediction,
    settings: ExplainSettings,
) -> ExplainTarget:
    """The target of an input, from the scores of its rows at full depth and their result."""
    kind = tokenized.kind
    if settings.at is not None and kind not in ("tag", "intent", "answer", "fill"):
        raise AlbertkitError(
            f"at={settings.at!r} is not used for {kind!r}: it selects a word, a mask or an end of an answer. Omit it."
        )
    if kind in ("similar", "embed"):
        return _cosine_target(tokenized, outputs, settings)
    if kind == "fill":
        return _word_target(albert, tokenized, outputs[0], settings)
    if kind == "answer":
        return _span_target(tokenized, result, settings)
    task = albert.task
    if isinstance(task, ClassifyTask):
        return _class_target(task, outputs[0], settings)
    if not isinstance(task, IntentTask):
        return _token_target(task, tokenized, outputs[0], settings, head=None)
    if settings.at is not None:
        return _token_target(task, tokenized, outputs[0][1], settings, head=1)
    index = _index_of(settings.target, task.intents, int(np.argmax(outputs[0][0])))
    return ExplainTarget(task.intents[index], "class", index, head=0)


def _index_of(name: str | None, names: Sequence[str], default: int) -> int:
    if name is None:
        return default
    if name not in names:
        raise AlbertkitError(f"target={name!r} is unknown{nearest(name, names)}; choose one of {', '.join(names[:20])}")
    return list(names).index(name)


def _class_target(task: ClassifyTask, scores: np.ndarray, settings: ExplainSettings) -> ExplainTarget:
    if task.kind == "regression":
        _check_unused(settings.target, "a regression has no classes")
        return ExplainTarget("value", "number", scale=1 / task.std, offset=task.mean)
    index = _index_of(settings.target, task.labels, int(np.argmax(scores)))
    form = "label" if task.kind == "multi" else "class"
    return ExplainTarget(task.labels[index], form, index, scale=task.temperature)


def _token_target(
    task: Task, tokenized: TokenizedInput, scores: np.ndarray, settings: ExplainSettings, head: int | None
) -> ExplainTarget:
    """The label of a word; by default of the word with the most confident label other than O."""
    owner = tokenized.rows[0].owner
    firsts = [int(np.argmax(owner == word)) for word in range(len(tokenized.words))]
    if settings.at is None:
        labels = [i for i, label in enumerate(task.labels) if label != "O"]
        best = [max(log_odds(scores[token].astype(np.float64), i) for i in labels) for token in firsts]
        word = int(np.argmax(best))
    else:
        word = _position_of(str(settings.at), [explained.text for explained in tokenized.words])
    token = firsts[word]
    index = _index_of(settings.target, task.labels, int(scores[token].argmax()))
    name = f"{task.labels[index]} at {tokenized.words[word].text!r}"
    return ExplainTarget(name, "token", index, (token,), head=head)


def _position_of(at: str, words: Sequence[str]) -> int:
    """A word by its text or by its number from 1."""
    if at in words:
        return list(words).index(at)
    if at.isdecimal() and 1 <= int(at) <= len(words):
        return int(at) - 1
    raise AlbertkitError(
        f"at={at!r} is not a word of the text{nearest(at, words)}; pass a word, or its number from 1 to {len(words)}"
    )


def _span_target(tokenized: TokenizedInput, result: Prediction, settings: ExplainSettings) -> ExplainTarget:
    """The answer's first and last token; [CLS] if there is no answer."""
    _check_unused(settings.target, "the position of the answer is explained")
    if settings.at not in (None, "start", "end"):
        raise AlbertkitError(f"at={settings.at!r} is unknown; choose start or end, or omit it to explain both")
    assert isinstance(result, AnswerResult)
    tokens, name = (0, 0), "no answer"
    if result.text:
        inside = [
            token
            for token, place in enumerate(tokenized.rows[0].places)
            if place and place[0] == "text" and place[1] < result.end and place[2] > result.start
        ]
        tokens, name = (inside[0], inside[-1]), repr(result.text)
    columns = {None: (0, 1), "start": (0,), "end": (1,)}[settings.at]
    suffix = "" if settings.at is None else f", its {settings.at}"
    return ExplainTarget(name + suffix, "span", tokens=tuple(tokens[c] for c in columns), columns=columns)


def _word_target(
    albert: RuntimeModel, tokenized: TokenizedInput, hidden: np.ndarray, settings: ExplainSettings
) -> ExplainTarget:
    """A word for a mask; `hidden` (tokens, H)."""
    masks = [place for place, token in enumerate(tokenized.rows[0].ids) if token == albert.tokenizer.mask_id]
    at = str(settings.at or 1)
    if not at.isdecimal() or not 1 <= int(at) <= len(masks):
        raise AlbertkitError(f"at={settings.at!r} is not a mask; pass its number, from 1 to {len(masks)}")
    place, word = masks[int(at) - 1], settings.target
    if word is None:
        token: int | None = int(likeliest_tokens(albert, hidden[[place]], 1)[0].ids[0])
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


def _cosine_target(tokenized: TokenizedInput, outputs: Sequence[Any], settings: ExplainSettings) -> ExplainTarget:
    _check_unused(settings.target, "vectors have no classes")
    if tokenized.kind == "similar":
        return ExplainTarget("similarity of the two texts", "cosine")
    return ExplainTarget("direction of the text's vector", "cosine", reference=np.asarray(outputs[0]))


def _check_unused(target: str | None, reason: str) -> None:
    if target is not None:
        raise AlbertkitError(f"target={target!r} is not used: {reason}; omit it")


# Values of words -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attribution:
    """The contribution of each word to the target's value. Positive values support the target, negative oppose it."""

    method: str
    values: np.ndarray  # (words,)
    full: float
    """The value of the whole text."""
    empty: float
    """The value with all words hidden. For gradients, the values sum to full - empty."""


@dataclass(frozen=True)
class InputVariants:
    """An input whose words can be hidden. A token that the target reads is masked, never dropped."""

    albert: RuntimeModel
    input: TokenizedInput
    target: ExplainTarget
    hide: str = "mask"
    depth: Depth | None = None

    def values(self, kept: np.ndarray) -> np.ndarray:
        """(variants, words) bool → the target's value for each variant."""
        return np.array([target.value(outputs) for target, outputs in self.read(kept)])

    def read(self, kept: np.ndarray) -> list[tuple[ExplainTarget, list[Any]]]:
        """For each variant the target, at its new positions, and what it reads of each row."""
        filler = filler_token(self.albert, self.hide)
        numbers: dict[tuple[int, bytes], int] = {}  # equal rows are computed once
        rows: list[tuple[np.ndarray, np.ndarray, ExplainTarget]] = []
        variants = []
        for kept_words in np.asarray(kept, bool):
            target, row_numbers = self.target, []
            for place, row in enumerate(self.input.rows):
                protected = self.target.tokens if place == 0 else ()
                ids, segments, positions = hide_words(row, kept_words, filler, self.hide, protected)
                if place == 0:  # where its tokens are after others were dropped
                    target = replace(target, tokens=tuple(int(positions[token]) for token in target.tokens))
                key = (place, np.append(ids, target.tokens).tobytes())
                if key not in numbers:
                    numbers[key] = len(rows)
                    rows.append((ids, segments, target))
                row_numbers.append(numbers[key])
            variants.append((target, row_numbers))
        scores = self._scores(rows)
        return [(target, [scores[number] for number in row_numbers]) for target, row_numbers in variants]

    def _scores(self, rows: Sequence[tuple[np.ndarray, np.ndarray, ExplainTarget]]) -> list[Any]:
        albert, scores = self.albert, [None] * len(rows)
        depth = albert.layers_to_apply(self.depth)
        ids, segments = [row[0].tolist() for row in rows], [row[1].tolist() for row in rows]
        for batch in token_batches(ids, segments, albert.token_budget):
            hidden = albert.engine.run(batch, depth)
            outputs = read_target(albert, hidden, batch.lengths, [rows[number][2] for number in batch.order])
            for number, score in zip(batch.order, outputs, strict=True):
                scores[number] = score
        check_finite("scores", scores)
        return scores


def filler_token(albert: RuntimeModel, hide: str) -> int:
    """The id of the token that replaces a hidden one."""
    check_choice("hide", hide, HIDE_MODES)
    mask = albert.tokenizer.mask_id
    if hide == "mask" and mask is None:
        raise AlbertkitError("hide='mask' needs [MASK], which this vocabulary does not have; choose drop or pad")
    pad: int = albert.tokenizer.pad_id
    return pad if hide == "pad" or mask is None else mask


def hide_words(
    row: TokenRow, kept: np.ndarray, filler: int, hide: str, protected: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids and segments of a row in which only some words are kept, and the new position of each old token.

    protected: tokens that the target reads, which are never dropped.
    """
    ids, segments = np.array(row.ids), np.array(row.segments)
    is_hidden = (row.owner >= 0) & ~kept[row.owner]
    ids[is_hidden] = filler
    stays = np.ones(len(ids), bool)
    if hide == "drop":
        stays = ~is_hidden
        stays[list(protected)] = True
    return ids[stays], segments[stays], np.cumsum(stays) - 1


def read_target(
    albert: RuntimeModel, hidden: np.ndarray, lengths: np.ndarray, targets: Sequence[ExplainTarget]
) -> Sequence[Any]:
    """What a target needs of each row of a batch: head scores, a vector, or the log-odds of a word."""
    form = targets[0].form
    if form == "cosine":
        return list(pool(albert, hidden, lengths, albert.metadata.pooling))
    if form != "word":
        return read_heads(albert, hidden, lengths)
    states = hidden[np.arange(len(targets)), [target.tokens[0] for target in targets]]
    scores = albert.engine.mlm_logits(states)[:, : albert.tokenizer.vocab_size].astype(np.float64)
    return [log_odds(row, target.index) for row, target in zip(scores, targets, strict=True)]


def occlusion(variants: InputVariants) -> Attribution:
    """Attribution by hiding one word at a time."""
    words = len(variants.input.words)
    kept = np.concatenate([np.ones((1, words), bool), ~np.eye(words, dtype=bool), np.zeros((1, words), bool)])
    values = variants.values(kept)
    return Attribution("occlusion", values[0] - values[1:-1], float(values[0]), float(values[-1]))
