"""The prediction at every trained depth, and the depth at which early exit would stop.

In: a `TokenizedInput` and an `ExplainTarget`, or one text for `DepthTrace`. Out: a `LayerPrediction` or `DepthState`
per depth. All layers share their weights, so the head applied after few layers gives the prediction of the model run
with that `depth`. Imports `attribution.py`. `explainer.py` uses it for Python and the CLI, `serve/explain_api.py` for
the server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError, check_finite
from albertkit.explain.attribution import ExplainTarget, read_target
from albertkit.explain.explain_input import (
    Example,
    ExplainInput,
    Prediction,
    TokenizedInput,
    prediction_kind,
    task_example,
)
from albertkit.input_warnings import collect_problems, find_problems, report_problems
from albertkit.runtime.batching import TokenBatch, token_batches
from albertkit.runtime.early_exit import (
    available_exit_depths,
    calibrated_kind,
    last_exit_depth,
    stored_calibration,
)
from albertkit.runtime.early_exit import read_depths as read_outputs
from albertkit.runtime.embed import VectorConvergence, pool, unit_length
from albertkit.runtime.mask_filling import encode_masks, fill_mask, likeliest_tokens, mask_predictions
from albertkit.runtime.predict import predict, read_heads, task_features
from albertkit.runtime.runtime_model import RuntimeModel, trained_depths
from albertkit.tasks.answer import AnswerResult
from albertkit.tasks.classify import Classification
from albertkit.tasks.confidence import UncertaintyEstimator, prediction_of
from albertkit.tasks.tag import IntentResult

AGREEMENT = 0.99  # of `EarlyExitTrace.exit_depth_99`
PredictionSummary = tuple[tuple[str, float | None], ...]
"""Labels or words, each with its probability."""


@dataclass(frozen=True)
class LayerPrediction:
    """The prediction with `depth` layers applied."""

    depth: int
    prediction: Prediction
    summary: PredictionSummary
    value: float
    """The target's value."""
    probability: float
    """The value as a probability; values and cosines are not converted."""
    matches_full_depth: bool
    """Whether the prediction is that of the full depth."""


@dataclass(frozen=True)
class EarlyExitTrace:
    """The depths at which a text could exit, and its uncertainty at each.

    `early_exit="KIND:NUMBER"` exits at the first of `exit_depths` whose uncertainty is at most the number (for a
    cosine, at most 1 minus the number).
    """

    kind: str
    """entropy, change or cosine."""
    exit_depths: list[int]
    last_depth: int
    """The depth at which all remaining texts exit."""
    uncertainty: list[float | None]
    """At each of `exit_depths`, then at `last_depth`; None at the first depth if it compares with the one before."""
    exit_depth_99: int | None
    """Where `early_exit="99%"` exits; None if the model is not calibrated for it."""


# Tokens with words, for an explanation ---------------------------------------------------------------------------


def read_depths(albert: RuntimeModel, tokenized: TokenizedInput, depths: Sequence[int]) -> dict[int, list[Any]]:
    """What is read from each row at each depth: head scores, a vector, or for masks the hidden states."""

    def read(hidden: np.ndarray, lengths: np.ndarray) -> Sequence[Any]:
        return list(hidden) if tokenized.kind == "fill" else _read_rows(albert, tokenized.example, hidden, lengths)

    rows = tokenized.rows
    return read_outputs(albert, [row.ids for row in rows], [row.segments for row in rows], depths, read)


def _read_rows(albert: RuntimeModel, example: Example | None, hidden: np.ndarray, lengths: np.ndarray) -> list[Any]:
    """The scores of the heads for each row; without an example, its vector."""
    if example is None:
        return list(pool(albert, hidden, lengths, albert.metadata.pooling))
    return read_heads(albert, hidden, lengths)


def prediction_from(albert: RuntimeModel, tokenized: TokenizedInput, outputs: Sequence[Any], k: int = 5) -> Prediction:
    """The prediction from what was read at one depth."""
    if tokenized.kind == "fill":
        masks = [place for place, token in enumerate(tokenized.rows[0].ids) if token == albert.tokenizer.mask_id]
        return mask_predictions(albert, likeliest_tokens(albert, outputs[0][masks], k))
    if tokenized.kind == "similar":
        return ExplainTarget("", "cosine").value(outputs)
    if tokenized.kind == "embed":
        return None
    features = task_features(albert, [tokenized.example], tokenized.kind)
    result: Prediction = albert.task.results(outputs, features, [tokenized.example])[0]
    return result


def layer_predictions(
    albert: RuntimeModel, tokenized: TokenizedInput, target: ExplainTarget, by_depth: dict[int, list[Any]], k: int
) -> tuple[LayerPrediction, ...]:
    """The prediction at every depth, compared with that of the last."""
    lengths = np.array([len(tokenized.rows[0].ids)])
    predictions = {depth: prediction_from(albert, tokenized, outputs, k) for depth, outputs in by_depth.items()}
    final = first_choice(predictions[max(by_depth)])
    layers = []
    for depth in sorted(by_depth):
        outputs: Sequence[Any] = by_depth[depth]
        if target.form == "word":
            outputs = read_target(albert, outputs[0][None], lengths, [target])
        prediction, value, probability = predictions[depth], target.value(outputs), target.probability(outputs)
        matches = first_choice(prediction) == final
        layers.append(LayerPrediction(depth, prediction, summarize(prediction), value, probability, matches))
    return tuple(layers)


def stable_depth(matches: Mapping[int, bool]) -> int:
    """The first depth from which on the prediction no longer changes; `matches` is by depth, in ascending order.

    >>> stable_depth({3: True, 6: False, 9: True, 12: True})
    9
    """
    return min(takewhile(lambda depth: matches[depth], reversed(matches)))


def first_choice(prediction: Prediction) -> object:
    """What is compared between depths: class, words, spans, position, or a cosine to two digits."""
    if isinstance(prediction, list):
        return [words[0].word for words in prediction]
    if isinstance(prediction, AnswerResult):
        return prediction.start, prediction.end
    return prediction_of(prediction, digits=2)


def summarize(prediction: Prediction) -> PredictionSummary:
    """A prediction as a few labels or words with their probabilities."""
    if isinstance(prediction, list):
        count = 3 if len(prediction) == 1 else 1
        return tuple((p.word, p.score) for words in prediction for p in words[:count])
    if isinstance(prediction, Classification):
        if isinstance(prediction.label, float):
            return ((f"{prediction.label:.4g}", None),)
        ranked = sorted((prediction.probabilities or {}).items(), key=lambda pair: -pair[1])
        return tuple(ranked[:3])
    if isinstance(prediction, AnswerResult):
        return ((prediction.text or "no answer", prediction.probability),)
    if prediction is None or isinstance(prediction, float):
        return () if prediction is None else ((f"{prediction:.3f}", None),)
    spans = tuple((f"{span.text} {span.label}", span.score) for span in prediction.spans)
    if isinstance(prediction, IntentResult):
        return ((prediction.intent, prediction.probability), *spans)
    return spans or (("nothing", None),)


# Early exit ------------------------------------------------------------------------------------------------------


def trace_early_exit(
    albert: RuntimeModel, example: Example | None, ids: Sequence[int], segments: Sequence[int]
) -> EarlyExitTrace:
    """The uncertainty of a text at each depth at which it could exit.

    `example` is that of the model's task; if None, the vector of the tokens is used.
    """
    last = last_exit_depth(albert, None)
    exit_depths = [depth for depth in available_exit_depths(albert) if depth < last]
    estimator: UncertaintyEstimator | VectorConvergence
    if example is None:
        rows, row_segments = [list(ids)], [list(segments)]
        estimator, kind = VectorConvergence([[0]], [len(ids)]), "cosine"
    else:
        features = task_features(albert, [example], albert.metadata.task)
        rows, row_segments = [f.ids for f in features], [f.segments for f in features]
        estimator, kind = UncertaintyEstimator(albert.task, features, [example]), albert.task.uncertainty_measure
    depths = [*exit_depths, last]
    states = read_outputs(albert, rows, row_segments, depths, partial(_read_rows, albert, example))
    uncertainty: list[float | None] = []
    previous = None
    for depth in depths:
        (value,) = estimator.uncertainty([0], states[depth], previous)
        uncertainty.append(float(value) if np.isfinite(value) else None)
        previous = states[depth]
    is_calibrated = kind == calibrated_kind(albert)
    depth_99 = calibrated_exit_depth(albert, exit_depths, uncertainty) if is_calibrated else None
    return EarlyExitTrace(kind, exit_depths, last, uncertainty, depth_99)


def calibrated_exit_depth(
    albert: RuntimeModel, exit_depths: Sequence[int], uncertainty: Sequence[float | None]
) -> int | None:
    """Where `early_exit="99%"` exits; None if the model is not calibrated, or not for as much agreement."""
    try:
        calibration = stored_calibration(albert.metadata)
        if calibration is None:
            return None
        limits = dict(zip(calibration.exit_depths, calibration.limits(AGREEMENT), strict=True))
    except AlbertkitError:
        return None
    exits = [
        depth
        for depth, value in zip(exit_depths, uncertainty, strict=False)
        if value is not None and value <= limits.get(depth, -1)
    ]
    return min(exits, default=calibration.depth)


# One row of tokens, depth by depth, for the server ---------------------------------------------------------------


@dataclass(frozen=True)
class DepthState:
    """One text with `depth` layers applied."""

    depth: int
    seconds: float
    vector: np.ndarray  # (H,), of length 1
    tokens: np.ndarray  # (tokens, H), each of length 1
    prediction: Prediction
    choice: object
    """The part of the prediction that is compared between depths."""


@dataclass(frozen=True)
class DepthTrace:
    """One text as one row of tokens, computed to any depth on request: the server computes one depth at a time."""

    albert: RuntimeModel
    batch: TokenBatch
    kind: str | None
    """Which task's result is predicted; None if the model predicts nothing about the text."""
    text: str
    example: Example | None
    k: int

    @property
    def depths(self) -> tuple[int, ...]:
        """The depths for which the model was trained, and the one it uses."""
        return tuple(sorted({*trained_depths(self.albert.config, self.albert.metadata), self.albert.depth}))

    @property
    def tokens(self) -> int:
        """Tokens of the text, special ones included."""
        return int(self.batch.ids.size)

    @classmethod
    def of(cls, albert: RuntimeModel, text: str, pair: str | None, question: str | None, k: int) -> DepthTrace:
        """Tokenize a text. `question` is that of a model for answers; `k` is the number of words for each mask."""
        kind = prediction_kind(albert, text)
        if kind == "answer" and question is None:
            kind = None
        if kind == "fill":
            encode_masks(albert, text, k)  # checks the text and k
        example = task_example(kind, ExplainInput(text, pair, question))
        encoding = albert.tokenizer.encode(text, pair, recognize_mask=kind == "fill")
        if len(encoding.ids) > albert.max_tokens:
            raise AlbertkitError(
                f"the text has {len(encoding.ids)} tokens; an explained text has at most {albert.max_tokens}."
            )
        if kind != "fill":
            report_problems(find_problems(albert.tokenizer, [f"{text} {pair or ''}"], [encoding.ids]))
        (batch,) = token_batches([encoding.ids], [encoding.segments], max(1, len(encoding.ids)))
        return cls(albert, batch, kind, text, example, k)

    def run(self, depth: int) -> DepthState:
        began = time.perf_counter()
        hidden = self.albert.engine.run(self.batch, depth)
        seconds = time.perf_counter() - began
        vector = pool(self.albert, hidden, self.batch.lengths, self.albert.metadata.pooling)[0]
        check_finite("hidden states", (hidden, vector))
        prediction: Prediction = None
        if self.kind == "fill":
            prediction = fill_mask(self.albert, self.text, self.k, depth)
        elif self.kind is not None:
            with collect_problems():  # the text was reported before, and other depths are the purpose
                (prediction,) = predict(self.albert, [self.example], self.kind, depth)
        unit, tokens = unit_length(vector[None])[0], unit_length(hidden[0])
        return DepthState(depth, seconds, unit, tokens, prediction, first_choice(prediction))

    def trace_early_exit(self) -> EarlyExitTrace | None:
        """Where the text could exit early; None for masks, which are always computed to the full depth."""
        if self.kind == "fill":
            return None
        return trace_early_exit(self.albert, self.example, self.batch.ids[0], self.batch.segments[0])
