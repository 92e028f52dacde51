"""How a prediction forms: the model's own head after every layer, and where early exit would leave.

In: a subject and a target. Out: a `LayerPrediction` for each depth. Since all layers share their weights, so can the head: what it says after few layers
is what the model says when it is run with that `depth`. Before this file: `variants.py`; after it: `explainer.py`. The server's /explain uses
`choice`, `stable_depth` and `early_exit_of` too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError
from albertkit.explain.explained_input import TokenizedInput
from albertkit.explain.target import ExplainTarget
from albertkit.explain.variants import read_target
from albertkit.runtime.calibration import ExitCalibration
from albertkit.runtime.early_exit import Still, available_exit_depths, by_depth, calibrated_kind, kind_of
from albertkit.runtime.predict import features_of, read_heads
from albertkit.tasks.confidence import UncertaintyEstimator

SHARE = 0.99  # what a calibrated model promises, where it can
PredictionSummary = tuple[tuple[str, float | None], ...]


@dataclass(frozen=True)
class LayerPrediction:
    """The model with `depth` layers applied."""

    depth: int
    prediction: Any
    """What the task says; guesses for each mask; a cosine; None for the vector of one text."""
    said: PredictionSummary
    """The same in a few words, each with how likely it is."""
    value: float
    """The target's number."""
    chance: float
    """The same as a probability; values and cosines stay what they are."""
    same: bool
    """Whether it says what the full depth says."""


def states_of(albert: Albert, subject: TokenizedInput, depths: Sequence[int]) -> dict[int, list[Any]]:
    """What is read of each row at each depth: head scores, a vector, or for masks the hidden states themselves."""

    def read(hidden: np.ndarray, lengths: np.ndarray) -> Sequence[Any]:
        if subject.kind == "fill":
            return list(hidden)
        if subject.example is None:
            return list(albert._pool(hidden, lengths, albert.meta.pooling))
        return read_heads(albert, hidden, lengths)

    return by_depth(albert, [row.ids for row in subject.rows], [row.segments for row in subject.rows], depths, read)


def prediction_at(albert: Albert, subject: TokenizedInput, read: Sequence[Any], k: int = 5) -> Any:
    """What was read, as the runtime would say it."""
    if subject.kind == "fill":
        masks = [place for place, token in enumerate(subject.rows[0].ids) if token == albert.tokenizer.mask_id]
        return albert.mask_predictions(subject.parts["text"], albert.best_words(read[0][masks], k))
    if subject.kind == "similar":
        return ExplainTarget("", "cosine").value(read)
    if subject.kind == "embed":
        return None
    features = features_of(albert, [subject.example], subject.kind)
    return albert.task.results(read, features, [subject.example])[0]


def layers_of(
    albert: Albert, subject: TokenizedInput, target: ExplainTarget, states: dict[int, list[Any]], k: int
) -> tuple[LayerPrediction, ...]:
    """Every depth beside the last."""
    last = max(states)
    predictions = {depth: prediction_at(albert, subject, read, k) for depth, read in states.items()}
    full = choice(subject.kind, predictions[last])
    out = []
    for depth in sorted(states):
        read = states[depth]
        if target.form == "word":
            read = read_target(albert, read[0][None], np.array([len(subject.rows[0].ids)]), [target])  # type: ignore[assignment]
        said = summarize(subject.kind, predictions[depth])
        same = choice(subject.kind, predictions[depth]) == full
        out.append(LayerPrediction(depth, predictions[depth], said, target.value(read), target.chance(read), same))
    return tuple(out)


def stable_depth(same: Sequence[bool]) -> int:
    """The first depth from which on the prediction stays what it is at the last.

    >>> settled([True, False, True, True])
    3
    """
    return len(same) - next((i for i, right in enumerate(reversed(same)) if not right), len(same)) + 1


def choice(kind: str | None, prediction: Any) -> Any:
    """What counts as the same prediction: class, words, spans, place, or the first two digits of a cosine."""
    if kind == "fill":
        return [guesses[0].word for guesses in prediction]
    if kind == "classify":
        return round(prediction.label, 2) if isinstance(prediction.label, float) else prediction.label
    if kind == "answer":
        return prediction.start, prediction.end
    if kind == "choose":
        return prediction.index
    if kind == "similar":
        return round(prediction, 2)
    if kind in ("tag", "intent"):
        spans = [(span.start, span.end, span.label) for span in prediction.spans]
        return getattr(prediction, "intent", None), spans
    return None


def summarize(kind: str, prediction: Any) -> PredictionSummary:
    """A prediction in a few words, each with how likely it is."""
    if kind == "fill":
        most = 3 if len(prediction) == 1 else 1
        return tuple((guess.word, guess.score) for guesses in prediction for guess in guesses[:most])
    if kind == "classify":
        if isinstance(prediction.label, float):
            return ((f"{prediction.label:.4g}", None),)
        ranked = sorted(prediction.probabilities.items(), key=lambda pair: -pair[1])
        return tuple(ranked[:3])
    if kind == "answer":
        return ((prediction.text or "no answer", prediction.probability),)
    if kind == "choose":
        return tuple((f"{number}", p) for number, p in enumerate(prediction.probabilities, 1))
    if kind == "similar":
        return ((f"{prediction:.3f}", None),)
    if kind == "embed":
        return ()
    spans = tuple((f"{span.text} {span.label}", span.score) for span in prediction.spans)
    if kind == "intent":
        return ((prediction.intent, prediction.probability), *spans)
    return spans or (("nothing", None),)


# Early exit ------------------------------------------------------------------------------------------------------


def early_exit_of(albert: Albert, example: Any, ids: Sequence[int], segments: Sequence[int]) -> dict[str, Any]:
    """How doubtful a text is at each depth at which it could leave, in the numbers that `early_exit=` compares with.

    `example` as the model's task has it, else None; then the vector of the tokens is looked at.
    """
    exit_depths = [depth for depth in available_exit_depths(albert) if depth < albert.depth]
    judge: Any
    if example is None:
        rows, kinds = [list(ids)], [list(segments)]
        judge, kind = Still([[0]], [len(ids)]), "cosine"
    else:
        features = features_of(albert, [example], albert.meta.task)
        rows, kinds = [f.ids for f in features], [f.segments for f in features]
        judge, kind = UncertaintyEstimator(albert.task, features, [example]), kind_of(albert.task)

    def read(hidden: np.ndarray, lengths: np.ndarray) -> list[Any]:
        if example is None:
            return list(albert._pool(hidden, lengths, albert.meta.pooling))
        return read_heads(albert, hidden, lengths)

    found = by_depth(albert, rows, kinds, [*exit_depths, albert.depth], read)
    uncertainty, before = [], None
    for depth in (*exit_depths, albert.depth):
        (doubt,) = judge.uncertainty([0], found[depth], before)
        uncertainty.append(float(doubt) if np.isfinite(doubt) else None)
        before = found[depth]
    leaves = exit_depth(albert, exit_depths, uncertainty) if kind == calibrated_kind(albert) else None
    return {"kind": kind, "exit_depths": exit_depths, "uncertainty": uncertainty, "promised": leaves}


def exit_depth(albert: Any, exit_depths: list[int], uncertainty: list[float | None]) -> int | None:
    """Where `early_exit="99%"` leaves, if the model was calibrated and can promise as much."""
    stored = albert.meta.details.get("early_exit")
    if stored is None:
        return None
    try:
        exits = ExitCalibration.from_dict(stored)
        limits = dict(zip(exits.exit_depths, exits.limits(SHARE), strict=True))
    except AlbertkitError:
        return None
    leaves = [
        at
        for at, doubt in zip(exit_depths, uncertainty, strict=False)
        if doubt is not None and doubt <= limits.get(at, -1)
    ]
    return min(leaves, default=albert.depth)
