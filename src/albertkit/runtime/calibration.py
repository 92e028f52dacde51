"""When texts may leave early without changing what is said: `early_exit="99%"`, found on held-out texts. No torch.

In: for each held-out text and each depth, how doubtful it is (`tasks/confidence.py`) and whether it says there what it says at the full depth. Out: `ExitCalibration`, which goes into
`albertkit.json`, and gives for a share of agreement the highest doubt at which a text may leave each depth.

How: a quarter of the texts draws, for each depth, the line log-odds(disagree) = a + b · log(doubt). Leaving wherever that chance is at most r is then one rule
for each r. The other texts test these rules from the most careful one on, in an order that was fixed before, and the last one counts before the first whose agreement is
not above the share wanted with 95 % confidence (Clopper and Pearson's lower bound). So the share is promised for texts like the held-out ones, with 95 %
confidence in the draw of those, whatever the lines are worth (fixed-sequence testing, as in "Learn then Test", arXiv 2110.01052).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.tasks.confidence import MIN_COSINE, UncertaintyEstimator, cosines, results_agree
from albertkit.tasks.dialogue import DialogueTask

CONFIDENCE = 0.95
SHAPING = 4  # one text in so many draws the lines; the others test
FEWEST = 40  # texts below which nothing is promised
RISKS = tuple(10 ** (step / 20) for step in range(-80, 0))  # chances of disagreeing, the most careful first
SMALL = 1e-5  # added to a doubt before its logarithm is taken


@dataclass(frozen=True)
class ExitCalibration:
    """What held-out texts say about leaving early."""

    depth: int
    """The full depth, which others are compared with."""
    exit_depths: tuple[int, ...]
    """Depths at which a text may leave."""
    lines: tuple[tuple[float, float] | None, ...]
    """a and b for each of them; None where nobody may leave."""
    risks: tuple[tuple[float, float, float], ...]
    """For each chance r: r, the agreement that is sure, the mean depth."""
    texts: int
    """That tested."""
    about: str = ""
    """What agreeing means."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "confidence": CONFIDENCE}

    @classmethod
    def from_dict(cls, data: Any) -> ExitCalibration:
        """From `albertkit.json`, checked."""
        try:
            lines = tuple(None if line is None else (float(line[0]), float(line[1])) for line in data["lines"])
            exit_depths = tuple(int(look) for look in data["exit_depths"])
            risks = tuple((float(r), float(a), float(d)) for r, a, d in data["risks"])
            made = cls(int(data["depth"]), exit_depths, lines, risks, int(data["texts"]), str(data.get("about", "")))
        except (TypeError, ValueError, KeyError, IndexError):
            raise AlbertkitError(
                "'early_exit' in albertkit.json is damaged; write it anew with  albertkit calibrate MODEL DEV"
            ) from None
        if (
            len(made.lines) != len(exit_depths)
            or not all(0 < r < 1 for r, _, _ in risks)
            or min(exit_depths, default=0) < 1
        ):
            raise AlbertkitError(
                "'early_exit' in albertkit.json is damaged; write it anew with  albertkit calibrate MODEL DEV"
            )
        return made

    def risk(self, share: float) -> float | None:
        """The chance of disagreeing up to which a text may leave, for a share of agreement; None where no rule keeps it."""
        found = None
        for risk, sure, _ in self.risks:
            if sure < share:
                break
            found = risk
        return found

    def limits(self, share: float) -> tuple[float, ...]:
        """The highest doubt with which a text may leave each depth; below 0 where none may."""
        risk = self.risk(share)
        if risk is None:
            most = self.risks[0][1] if self.risks else 0.0
            testing = math.ceil(math.log(1 - CONFIDENCE) / math.log(share)) + 1
            more = (
                f"at least {math.ceil(testing * SHAPING / (SHAPING - 1)):,}"
                if testing > self.texts
                else "some of these disagree under the most careful rule"
            )
            raise AlbertkitError(
                f"early_exit={share:g} is more than the held-out texts can promise, which is {most:.4f} ({self.texts} texts); choose less, or "
                f"run  albertkit calibrate MODEL DEV  with more texts ({more})"
            )
        return limits_of(self.lines, risk)


def limits_of(lines: Sequence[tuple[float, float] | None], risk: float) -> tuple[float, ...]:
    """The doubt at which each line reaches a risk; below 0 where it is above it everywhere."""
    odds, found = math.log(risk / (1 - risk)), []
    for line in lines:
        if line is None:
            found.append(-1.0)
        elif line[1] < 0.05:  # the doubt says nothing: all or nobody
            found.append(math.inf if line[0] <= odds else -1.0)
        else:
            found.append(math.exp(min(50.0, (odds - line[0]) / line[1])) - SMALL)
    return tuple(found)


def fit(
    uncertainty: np.ndarray, agrees: np.ndarray, exit_depths: Sequence[int], depth: int, about: str = ""
) -> ExitCalibration | None:
    """`ExitCalibration` from (texts, exit_depths) uncertainty and whether each agrees with the full depth; None for too few texts."""
    count = len(uncertainty)
    if count < FEWEST or not exit_depths:
        return None
    order = np.random.default_rng(0).permutation(count)
    shaping, testing = order[: count // SHAPING], order[count // SHAPING :]
    lines = tuple(line(uncertainty[shaping, i], agrees[shaping, i]) for i in range(len(exit_depths)))
    depths = np.array([*exit_depths, depth])
    held, right = uncertainty[testing], np.concatenate([agrees[testing], np.ones((len(testing), 1), bool)], 1)
    risks = []
    for risk in RISKS:
        leaves = np.concatenate([held <= np.array(limits_of(lines, risk)), np.ones((len(testing), 1), bool)], 1)
        at = leaves.argmax(1)
        kept = int(right[np.arange(len(testing)), at].sum())
        risks.append((risk, at_least(kept, len(testing)), float(depths[at].mean())))
    return ExitCalibration(depth, tuple(exit_depths), lines, tuple(risks), len(testing), about)


def line(uncertainty: np.ndarray, agrees: np.ndarray) -> tuple[float, float] | None:
    """a and b of log-odds(disagree) = a + b · log(doubt), by Newton's method with a little ridge; None where uncertainty are not finite."""
    if not np.isfinite(uncertainty).all():
        return None
    table = np.stack([np.ones(len(uncertainty)), np.log(uncertainty + SMALL)], 1)
    wrong, found, ridge = 1.0 - agrees, np.zeros(2), np.array([0.1, 0.1])
    for _ in range(50):
        chances = 1 / (1 + np.exp(-np.clip(table @ found, -30, 30)))
        slope = table.T @ (chances - wrong) + ridge * found
        curve = (table * (chances * (1 - chances))[:, None]).T @ table + np.diag(ridge)
        step = np.linalg.solve(curve, slope)
        step *= min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-12))
        found = found - step
        if np.abs(step).max() < 1e-6:
            break
    return float(found[0]), float(found[1])


def at_least(right: int, count: int, confidence: float = CONFIDENCE) -> float:
    """Clopper and Pearson's lower bound of a share, of which `right` out of `count` were seen.

    >>> round(at_least(299, 299), 4), round(at_least(290, 300), 4)
    (0.99, 0.9441)
    """
    if right <= 0:
        return 0.0
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    misses = np.arange(count - right + 1)
    ways = logs[count] - logs[misses] - logs[count - misses]
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        terms = ways + misses * math.log1p(-middle) + (count - misses) * math.log(middle)
        top = float(terms.max())
        likely = math.exp(top) * float(np.exp(terms - top).sum())  # of as many hits or more
        low, high = (middle, high) if likely < 1 - confidence else (low, middle)
    return low


# From scores -----------------------------------------------------------------------------------------------------


def calibrated(
    task: Any,
    scores: Mapping[int, Sequence[Any]],
    features: Sequence[Any],
    examples: Sequence[Any],
    results: Mapping[int, Sequence[Any]] | None = None,
) -> dict[str, Any] | None:
    """`ExitCalibration` as JSON, from the heads' scores of held-out examples after every look, the full depth last; None for too few."""
    judge = UncertaintyEstimator(task, features, examples)
    depths = sorted(scores)
    *exit_depths, full = depths
    units = range(len(judge.units))
    if len(units) < FEWEST or not exit_depths:
        return None
    uncertainty = [
        judge.uncertainty(units, scores[look], scores[depths[at - 1]] if at else None)
        for at, look in enumerate(exit_depths)
    ]
    if judge.heads == ("vector",):
        last = np.stack(scores[full])
        agrees = [cosines(np.stack(scores[look]), last) >= MIN_COSINE for look in exit_depths]
        about = f"the cosine with the full depth's vector is at least {MIN_COSINE}"
    elif isinstance(task, DialogueTask):  # a state holds earlier turns, too; each turn is compared by itself
        said = judge.predictions(units, scores[full])
        agrees = [
            np.array([a == b for a, b in zip(judge.predictions(units, scores[look]), said, strict=True)])
            for look in exit_depths
        ]
        about = "the turn says the same"
    else:
        found = results or {depth: task.results(rows, features, examples) for depth, rows in scores.items()}
        agrees = [results_agree(task, found[look], found[full]) for look in exit_depths]
        about = "the result is the same" if not judge.moves else "the value is nearly the same"
    made = fit(np.stack(uncertainty, 1), np.stack(agrees, 1), exit_depths, full, about)
    return None if made is None else made.to_dict()
