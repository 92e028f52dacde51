"""Early exit: texts with confident predictions stop after few layers, and the others are batched again. No torch.

In: token ids, and `early_exit=` of `Albert`. Out: `ExitStats`, the output of each text and the depth at which it
exited. Before this file: `engine.py` applies layers, `calibration.py` computes the thresholds. After it: `embed.py`
for vectors, `predict.py` for tasks. The prediction for a text never depends on other texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Protocol

import numpy as np

from albertkit.artifact import ArtifactMetadata
from albertkit.errors import AlbertkitError, check_finite
from albertkit.runtime.batching import group_by_length, pad_batch
from albertkit.runtime.runtime_model import Depth, RuntimeModel, trained_depths

MAX_BATCHES = 8  # batches whose hidden states are in memory at once
EarlyExit = str | float | None
FORMS = "early_exit='99%' (agree with the full depth on 99 % of texts)"
DAMAGED = "'early_exit' in albertkit.json is damaged. Write it again with  albertkit calibrate MODEL DEV"

CONFIDENCE = 0.95
SMALL = 1e-5  # added to an uncertainty before its logarithm is taken
FIT_SHARE = 4  # one in this many held-out texts fits the lines; the others test the rules

TokenIds = Sequence[Sequence[int]]
ReadOutputs = Callable[[np.ndarray, np.ndarray], Sequence[Any]]
"""Hidden states (texts, length, H) and lengths of a batch to the output of each text."""


@dataclass(frozen=True)
class ExitRule:
    """When a text may exit."""

    depth: int
    """The depth at which the remaining texts exit."""
    exit_depths: tuple[int, ...] = ()
    """Earlier depths at which texts may exit."""
    limits: tuple[float, ...] = ()
    """The highest uncertainty to exit with, at each exit depth."""


@dataclass(frozen=True)
class ExitStats:
    """The outputs and exit depths of texts."""

    outputs: list[Any]
    """Head scores of each feature, or the vectors of texts."""
    depths: np.ndarray
    """(examples,) layers applied to each."""


class Confidence(Protocol):
    """How certain predictions are: `tasks/confidence.py` for tasks, `embed.VectorConvergence` for vectors."""

    units: list[list[int]]
    """The features of each unit; they exit together."""

    def uncertainty(self, units: Sequence[int], now: Sequence[Any], before: Sequence[Any] | None) -> np.ndarray:
        """(units,) uncertainty from the outputs at this exit depth and at the previous one."""


@dataclass(frozen=True)
class ExitCalibration:
    """The result of `calibrate`: when texts may exit early. It is stored in `albertkit.json`.

    >>> from albertkit import calibrate
    >>> texts = open("texts.txt").read().splitlines()  # doctest: +SKIP
    >>> calibrate("my-model", texts).exit_depths  # doctest: +SKIP
    """

    depth: int
    """The full depth, with which others are compared."""
    exit_depths: tuple[int, ...]
    """Depths at which a text may exit."""
    lines: tuple[tuple[float, float] | None, ...]
    """a and b of log-odds(disagree) = a + b · log(uncertainty) at each exit depth; None if no text may exit there."""
    risks: tuple[tuple[float, float, float], ...]
    """For each probability r of disagreement: r, the guaranteed agreement, the mean depth."""
    texts: int
    """Texts that tested the rules."""
    about: str = ""
    """The definition of agreement."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "confidence": CONFIDENCE}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExitCalibration:
        """From `albertkit.json`, checked."""
        try:
            lines = tuple(None if line is None else (float(line[0]), float(line[1])) for line in data["lines"])
            exit_depths = tuple(int(depth) for depth in data["exit_depths"])
            risks = tuple((float(r), float(a), float(d)) for r, a, d in data["risks"])
            if len(lines) != len(exit_depths) or min(exit_depths) < 1 or not all(0 < r < 1 for r, _, _ in risks):
                raise ValueError
            return cls(int(data["depth"]), exit_depths, lines, risks, int(data["texts"]), str(data.get("about", "")))
        except (TypeError, ValueError, KeyError, IndexError):
            raise AlbertkitError(DAMAGED) from None

    def risk(self, share: float) -> float | None:
        """The highest probability of disagreement with which a text may exit, for a share of agreement; None if no rule
        guarantees it.
        """
        rules = list(takewhile(lambda row: row[1] >= share, self.risks))
        return rules[-1][0] if rules else None

    def limits(self, share: float) -> tuple[float, ...]:
        """The highest uncertainty with which a text may exit at each depth; below 0 if none may exit."""
        risk = self.risk(share)
        if risk is not None:
            return risk_limits(self.lines, risk)
        bound = self.risks[0][1] if self.risks else 0.0
        testing = math.ceil(math.log(1 - CONFIDENCE) / math.log(share)) + 1
        reason = "some of these disagree under the most conservative rule"
        if testing > self.texts:
            reason = f"at least {math.ceil(testing * FIT_SHARE / (FIT_SHARE - 1)):,}"
        raise AlbertkitError(
            f"early_exit={share:g} is not available: the {self.texts} held-out texts guarantee at most {bound:.4f}. "
            f"Pass a smaller share, or run  albertkit calibrate MODEL DEV  with more texts ({reason})."
        )


def risk_limits(lines: Sequence[tuple[float, float] | None], risk: float) -> tuple[float, ...]:
    """The uncertainty at which each line reaches a risk; below 0 if the line is always above the risk."""
    odds, limits = math.log(risk / (1 - risk)), list[float]()
    for line in lines:
        if line is None:
            limits.append(-1.0)
        elif line[1] < 0.05:  # uncertainty is not informative: all texts exit or none
            limits.append(math.inf if line[0] <= odds else -1.0)
        else:
            limits.append(math.exp(min(50.0, (odds - line[0]) / line[1])) - SMALL)
    return tuple(limits)


# Parsing of `early_exit=` ----------------------------------------------------------------------------------------


def exit_rule(model: RuntimeModel, early_exit: EarlyExit, depth: Depth | None, kind: str) -> ExitRule:
    """`early_exit=` as a rule for a model; `kind` is its uncertainty: entropy, change or cosine."""
    last = last_exit_depth(model, depth)
    if model.config.options.static:
        raise AlbertkitError(f"early_exit={early_exit!r} is not available: a static model has no layers. Omit it.")
    name, value = parse_early_exit(early_exit)
    if name == "agreement":
        calibration = _calibration(model, early_exit, kind)
        if last != calibration.depth:
            raise AlbertkitError(
                f"early_exit={early_exit!r} was calibrated for depth {calibration.depth}, but depth is {last}. "
                f"Omit depth, pass {kind}:NUMBER, or calibrate again."
            )
        return agreement_rule(calibration, value, compares_depths=kind != "entropy")
    if name != kind:
        raise AlbertkitError(
            f"early_exit is {early_exit!r}; this model's results have no {name}: choose {kind}:NUMBER, or {FORMS}"
        )
    exit_depths = tuple(depth for depth in available_exit_depths(model) if depth < last)
    return ExitRule(last, exit_depths, (1 - value if name == "cosine" else value,) * len(exit_depths))


def last_exit_depth(model: RuntimeModel, depth: Depth | None) -> int:
    """The depth at which all remaining texts exit: `depth`, else the calibrated one, else the model's default."""
    if depth is None and model.depth == model.check_depth(model.metadata.depth):
        calibration = stored_calibration(model.metadata)
        if calibration is not None:
            return calibration.depth
    return model.layers_to_apply(depth)


def stored_calibration(metadata: ArtifactMetadata) -> ExitCalibration | None:
    """The calibration in `albertkit.json`, if the model has one."""
    stored = metadata.details.get("early_exit")
    return None if stored is None else ExitCalibration.from_dict(stored)


def _calibration(model: RuntimeModel, early_exit: EarlyExit, kind: str) -> ExitCalibration:
    calibration = stored_calibration(model.metadata)
    if calibration is None:
        raise AlbertkitError(
            f"early_exit={early_exit!r} needs a calibration, but this model has none. "
            f"Run  albertkit calibrate MODEL DEV  (or albertkit elastic, which also trains shallow depths)"
        )
    if kind != calibrated_kind(model):
        raise AlbertkitError(
            f"early_exit={early_exit!r} was calibrated for this model's results ({model.metadata.task}), not for its "
            f"vectors. Choose cosine:NUMBER, or depth"
        )
    return calibration


def agreement_rule(calibration: ExitCalibration, share: float, compares_depths: bool) -> ExitRule:
    """The rule that guarantees a share of agreement. Depths at which no text may exit are omitted, unless the next
    depth is compared with them.
    """
    limits = zip(calibration.exit_depths, calibration.limits(share), strict=True)
    pairs = [(depth, limit) for depth, limit in limits if compares_depths or limit >= 0]
    return ExitRule(calibration.depth, tuple(depth for depth, _ in pairs), tuple(limit for _, limit in pairs))


def parse_early_exit(early_exit: EarlyExit) -> tuple[str, float]:
    """`0.99`, `"99%"`, `"entropy:0.1"`, `"cosine:0.99"`, `"change:0.05"` as a name and a number."""
    name, colon, number = str(early_exit).strip().lower().rpartition(":")
    name = name if colon else "agreement"
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = math.nan
    is_known = name in ("agreement", "entropy", "cosine", "change")
    if isinstance(early_exit, bool) or not is_known or not math.isfinite(value):
        raise AlbertkitError(
            f"early_exit is {early_exit!r}; write {FORMS}, entropy:0.1, cosine:0.99 (vectors) or change:0.05 (values)"
        )
    if name == "agreement" and not 0.5 <= value < 1:
        raise AlbertkitError(f"early_exit is {early_exit!r}; a share of agreement is from 50% to below 100%")
    if name == "change" and value < 0:
        raise AlbertkitError(f"early_exit is {early_exit!r}; a change is 0 or above. Pass such a number.")
    if name in ("entropy", "cosine") and not 0 <= value <= 1:
        raise AlbertkitError(f"early_exit is {early_exit!r}; {name} is from 0 to 1. Pass such a number.")
    return name, value


def available_exit_depths(model: RuntimeModel) -> tuple[int, ...]:
    """Depths at which texts may exit: those of the calibration, those the model was distilled for, or every one."""
    calibration = stored_calibration(model.metadata)
    if calibration is not None:
        return calibration.exit_depths
    return tuple(depth for depth in trained_depths(model.config, model.metadata) if depth != model.depth)


def calibrated_kind(model: RuntimeModel) -> str:
    """The kind of uncertainty of a model's stored thresholds: that of its task, or of its vectors."""
    from albertkit.tasks import TASKS

    return model.task.uncertainty_measure if model.metadata.task in TASKS else "cosine"


# Layer by layer --------------------------------------------------------------------------------------------------


@dataclass
class HiddenBatch:
    """Hidden states (texts, length, H) between layers, and their features."""

    hidden: np.ndarray
    lengths: np.ndarray
    order: np.ndarray


@dataclass(frozen=True)
class EarlyExitRunner:
    """Runs features through the layers, with an exit rule.

    After the layers between two exit depths, the heads are computed and confident texts exit. The texts left in
    incomplete batches are batched again. The number of tokens in memory is bounded.
    """

    model: RuntimeModel
    rule: ExitRule
    read: ReadOutputs
    confidence: Confidence

    def run(self, ids: TokenIds, segments: TokenIds | None = None) -> ExitStats:
        """All features, some units at a time, the longest first."""
        outputs: list[Any] = [None] * len(ids)
        depths = np.full(len(self.confidence.units), self.rule.depth)
        longest = [max(len(ids[index]) for index in unit) for unit in self.confidence.units]
        order = sorted(range(len(self.confidence.units)), key=lambda u: -longest[u])
        start = 0
        while start < len(order):
            end, tokens = start, 0
            while end < len(order) and (end == start or tokens < MAX_BATCHES * self.model.token_budget):
                tokens += sum(len(ids[index]) for index in self.confidence.units[order[end]])
                end += 1
            self._run_units(order[start:end], ids, segments, outputs, depths)
            start = end
        return ExitStats(outputs, depths)

    def _run_units(
        self, units: list[int], ids: TokenIds, segments: TokenIds | None, outputs: list[Any], depths: np.ndarray
    ) -> None:
        """Run some units until all have exited; fills `outputs` by feature and `depths` by unit."""
        applied = 0
        indices = [index for unit in units for index in self.confidence.units[unit]]
        batches: list[HiddenBatch] = []
        for group in group_by_length([len(ids[index]) for index in indices], self.model.token_budget):
            batch = pad_batch(ids, segments, [indices[i] for i in group])
            batches.append(HiddenBatch(self.model.engine.run(batch, 0), batch.lengths, batch.order))
        before: list[Any] | None = None
        for depth, limit in zip(self.rule.exit_depths, self.rule.limits, strict=True):
            self._advance(batches, applied, depth, outputs)
            applied = depth
            uncertainty = self.confidence.uncertainty(units, outputs, before)
            exiting = {unit for unit, value in zip(units, uncertainty, strict=True) if value <= limit}
            if exiting:
                depths[list(exiting)] = depth
                units = [unit for unit in units if unit not in exiting]
                if not units:
                    return
                exited = {index for unit in exiting for index in self.confidence.units[unit]}
                batches = rebatch(batches, exited, self.model.token_budget)
            before = list(outputs)
        self._advance(batches, applied, self.rule.depth, outputs)

    def _advance(self, batches: list[HiddenBatch], first: int, last: int, outputs: list[Any]) -> None:
        """Apply the layers from depth `first` to depth `last`, and read the outputs there."""
        engine = self.model.engine
        for batch in batches:
            batch.hidden = engine.apply_layers(batch.hidden, batch.lengths, first, last)
            result = engine.read_out(batch.hidden, batch.lengths, last)
            for index, output in zip(batch.order, self.read(result, batch.lengths), strict=True):
                outputs[index] = output


def rebatch(batches: list[HiddenBatch], exited: set[int], token_budget: int) -> list[HiddenBatch]:
    """Batches without the exited features: complete batches stay, and the remaining texts of others are merged."""
    result: list[HiddenBatch] = []
    texts: list[tuple[np.ndarray, int]] = []  # of incomplete batches: hidden states (length, H), index of the feature
    for batch in batches:
        stays = np.array([index not in exited for index in batch.order.tolist()])
        if stays.all():
            result.append(batch)
        else:
            texts += [(batch.hidden[i, : batch.lengths[i]], batch.order[i]) for i in np.flatnonzero(stays)]
    for group in group_by_length([len(hidden) for hidden, _ in texts], token_budget):
        hidden, order = zip(*(texts[i] for i in group), strict=True)
        lengths = np.array([len(states) for states in hidden], np.int32)
        table = np.zeros((len(group), int(lengths[0]), hidden[0].shape[1]), np.float32)
        for row, states in enumerate(hidden):
            table[row, : len(states)] = states
        result.append(HiddenBatch(table, lengths, np.array(order)))
    return result


def read_depths(
    model: RuntimeModel, ids: TokenIds, segments: TokenIds | None, depths: Sequence[int], read: ReadOutputs
) -> dict[int, list[Any]]:
    """The outputs of every feature at each of some depths, for calibration and explanations."""
    by_depth: dict[int, list[Any]] = {depth: [None] * len(ids) for depth in depths}
    for group in group_by_length([len(row) for row in ids], model.token_budget):
        batch = pad_batch(ids, segments, group)
        hidden, applied = model.engine.run(batch, 0), 0
        for depth in sorted(depths):
            hidden, applied = model.engine.apply_layers(hidden, batch.lengths, applied, depth), depth
            result = model.engine.read_out(hidden, batch.lengths, depth)
            for index, output in zip(batch.order, read(result, batch.lengths), strict=True):
                by_depth[depth][index] = output
    check_finite("outputs", (output for outputs in by_depth.values() for output in outputs))
    return by_depth
