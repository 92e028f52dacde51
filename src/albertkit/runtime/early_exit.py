"""Early exit: texts leave when they are sure, and the rest is packed again. No torch.

In: features of a task, or texts for vectors, and `early_exit=`. Out: `ExitStats`: the scores each text left with, and the depth it left at. Before this file: `engine.py` applies layers,
`agreement.py` says when one may leave; after it: `predict.py` and `albert.py`.

Between two looks every batch goes through some layers; then the heads are read, texts that may leave do, and those of broken batches are put into full batches again. Texts
are held in stretches of a bounded number of tokens, so that memory is, too. What a text says never depends on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.runtime.batching import group_by_length, pad_batch
from albertkit.runtime.calibration import ExitCalibration
from albertkit.runtime.depths import trained_depths
from albertkit.tasks.confidence import UncertaintyEstimator, cosines

if TYPE_CHECKING:
    from albertkit.albert import Albert, EmbedOptions
    from albertkit.tasks.task import Feature

HELD = 8  # batches whose hidden states are held at once
EarlyExit = str | float
FORMS = "early_exit='99%' (agree with the full depth on 99 % of texts)"


@dataclass(frozen=True)
class ExitRule:
    """When a text may leave."""

    depth: int
    """Where the last ones leave."""
    exit_depths: tuple[int, ...] = ()
    """Depths before it, at which texts may leave."""
    limits: tuple[float, ...] = ()
    """The highest doubt to leave with, at each of them."""
    patience: int = 0
    """Or: exit depths in a row that say the same as the one before."""


@dataclass(frozen=True)
class ExitStats:
    """How texts left."""

    scores: list[Any]
    """Of each feature, or the vectors of texts."""
    depths: np.ndarray
    """(examples,) layers applied to each."""
    full: int
    """Layers applied without early exit."""

    @property
    def mean(self) -> float:
        """Layers applied to a text, on average."""
        return float(self.depths.mean()) if len(self.depths) else float(self.full)

    @property
    def saving(self) -> float:
        """How many times fewer layers were applied."""
        return self.full / self.mean


class Doubting(Protocol):
    """Who knows how sure texts are: `UncertaintyEstimator` for tasks, `Still` for vectors."""

    moves: bool

    def uncertainty(self, units: Sequence[int], now: Sequence[Any], before: Sequence[Any] | None) -> np.ndarray:
        """(units,) uncertainty from what was read at this look and at the last one."""

    def predictions(self, units: Sequence[int], now: Sequence[Any]) -> list[Any]:
        """What was read, in a form that can be compared."""


# What `early_exit=` means ----------------------------------------------------------------------------------------------


def rule_of(albert: Albert, early_exit: EarlyExit, depth: int | None, kind: str) -> ExitRule:
    """`early_exit=` as a rule for a model; `kind` is what its doubt is: entropy, change or cosine."""
    last = albert._layers_to_apply(None, depth, "pooler")
    if albert.config.options.static:
        raise AlbertkitError("early_exit is given; a static model has no layers to leave, so leave it away")
    name, value = parsed(early_exit)
    stored = albert.meta.details.get("early_exit")
    if name == "agreement":
        if stored is None:
            raise AlbertkitError(
                f"early_exit={early_exit!r} needs limits found on held-out texts, and this model has none; run  albertkit calibrate MODEL DEV  "
                f"(or albertkit elastic, which also makes shallow depths good)"
            )
        if kind != calibrated_kind(albert):
            raise AlbertkitError(
                f"early_exit={early_exit!r} was calibrated for this model's results ({albert.meta.task}), and says nothing about its vectors; choose cosine:NUMBER, or depth"
            )
        exits = ExitCalibration.from_dict(stored)
        if last != exits.depth:
            raise AlbertkitError(
                f"early_exit={early_exit!r} is about agreeing with depth {exits.depth}, and depth {last} was asked for; leave depth away, choose {kind}:NUMBER, or calibrate anew"
            )
        return agreeing(exits, value, moves=kind != "entropy")
    exit_depths = tuple(look for look in available_exit_depths(albert) if look < last)
    if name == "patience":
        if kind != "entropy":
            raise AlbertkitError("patience counts answers that stay the same; for values and vectors choose " + FORMS)
        if value != int(value) or value < 1:
            raise AlbertkitError(f"patience is {value:g}; choose 1 or more exit depths")
        return ExitRule(last, exit_depths, patience=int(value))
    if name != kind:
        raise AlbertkitError(
            f"early_exit is {early_exit!r}; this model's results have no {name}: choose {kind}:NUMBER, or {FORMS}"
        )
    return ExitRule(last, exit_depths, (1 - value if name == "cosine" else value,) * len(exit_depths))


def agreeing(exits: ExitCalibration, share: float, moves: bool) -> ExitRule:
    """The rule that promises a share of agreement; looks at which nobody may leave are left out, unless the next one compares with them."""
    pairs = [(k, limit) for k, limit in zip(exits.exit_depths, exits.limits(share), strict=True) if moves or limit >= 0]
    return ExitRule(exits.depth, tuple(look for look, _ in pairs), tuple(limit for _, limit in pairs))


def parsed(early_exit: EarlyExit) -> tuple[str, float]:
    """`0.99`, `"99%"`, `"entropy:0.1"`, `"patience:2"`, `"cosine:0.99"`, `"change:0.05"` as a name and a number."""
    name, colon, rest = str(early_exit).strip().lower().rpartition(":")
    name = name if colon else "agreement"
    percent = rest.endswith("%")
    try:
        value = float(rest.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if (
        isinstance(early_exit, bool)
        or name not in ("agreement", "entropy", "patience", "cosine", "change")
        or not math.isfinite(value)
    ):
        raise AlbertkitError(
            f"early_exit is {early_exit!r}; write {FORMS}, entropy:0.1, patience:2, cosine:0.99 (vectors) or change:0.05 (values)"
        )
    if name == "agreement" and not 0.5 <= value < 1:
        raise AlbertkitError(
            f"early_exit is {early_exit!r}; a share of agreement is from 50% up to, not including, 100%"
        )
    if name != "agreement" and value < 0:
        raise AlbertkitError(f"early_exit is {early_exit!r}; the number must be 0 or above")
    return name, value


def available_exit_depths(albert: Albert) -> tuple[int, ...]:
    """Depths at which this model says something: those it was calibrated at, those it was distilled at, or every one."""
    stored = albert.meta.details.get("early_exit")
    if stored is not None:
        return ExitCalibration.from_dict(stored).exit_depths
    taught = trained_depths(albert.meta.made)
    return tuple(range(1, albert.depth)) if taught is None else taught


def kind_of(task: Any) -> str:
    """What the doubt of a task's results is."""
    if task.head == "vector":
        return "cosine"
    return "change" if getattr(task, "kind", "") == "regression" else "entropy"


def calibrated_kind(albert: Albert) -> str:
    """What the doubt is that a model's stored limits were found for: that of its task, else of its vectors."""
    from albertkit.tasks import TASKS

    return kind_of(albert.task) if albert.meta.task in TASKS else "cosine"


# The walk --------------------------------------------------------------------------------------------------------


@dataclass
class Pack:
    """A batch on its way: hidden states (texts, length, H), and the features they belong to."""

    hidden: np.ndarray
    lengths: np.ndarray
    order: np.ndarray


@dataclass(frozen=True)
class Walk:
    """Features through the layers, with a rule."""

    albert: Albert
    rule: ExitRule
    read: Callable[[np.ndarray, np.ndarray], Sequence[Any]]
    """Hidden states and lengths of a batch to what is looked at, for each feature."""
    judge: Doubting
    units: list[list[int]]
    """Features that leave together."""

    def run(self, ids: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None) -> ExitStats:
        """All features, stretch by stretch, the longest units first."""
        read: list[Any] = [None] * len(ids)
        depths = np.full(len(self.units), self.rule.depth)
        longest = [max(len(ids[place]) for place in unit) for unit in self.units]
        order, most = sorted(range(len(self.units)), key=lambda u: -longest[u]), HELD * self.albert.token_budget
        start = 0
        while start < len(order):
            end, held = start, 0
            while end < len(order) and (end == start or held < most):
                held += sum(len(ids[place]) for place in self.units[order[end]])
                end += 1
            self._stretch(order[start:end], ids, segments, read, depths)
            start = end
        return ExitStats(read, depths, self.rule.depth)

    def _stretch(
        self,
        units: list[int],
        ids: Sequence[Sequence[int]],
        segments: Sequence[Sequence[int]] | None,
        now: list[Any],
        depths: np.ndarray,
    ) -> None:
        """Some units from the embeddings to where each leaves; fills `now` by feature and `depths` by unit."""
        engine, here = self.albert.engine, 0
        packs = list(self._begin([place for u in units for place in self.units[u]], ids, segments))
        said: dict[int, tuple[Any, int]] = {}
        before: list[Any] | None = None
        for number, depth in enumerate((*self.rule.exit_depths, self.rule.depth)):
            for pack in packs:
                pack.hidden = engine.layers(pack.hidden, pack.lengths, here, depth)
                for place, found in zip(pack.order, self.read(pack.hidden, pack.lengths), strict=True):
                    now[place] = found
            here = depth
            if depth == self.rule.depth:
                return
            leaving = self._leaving(number, units, now, before, said)
            for unit in leaving:
                depths[unit] = depth
            if leaving:
                units = [unit for unit in units if unit not in leaving]
                if not units:
                    return
                packs = repacked(packs, {place for u in leaving for place in self.units[u]}, self.albert.token_budget)
            before = list(now) if self.judge.moves else None

    def _begin(
        self, places: list[int], ids: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None
    ) -> Iterator[Pack]:
        """Batches of features, embedded."""
        for group in group_by_length([len(ids[place]) for place in places], self.albert.token_budget):
            rows = pad_batch(ids, segments, [places[at] for at in group])
            yield Pack(self.albert.engine.run(rows, 0), rows.lengths, rows.order)

    def _leaving(
        self, number: int, units: list[int], now: list[Any], before: list[Any] | None, said: dict[int, Any]
    ) -> set[int]:
        """Which units may leave at a look; `said` counts, for patience, how often each has said the same."""
        if not self.rule.patience:
            uncertainty = self.judge.uncertainty(units, now, before)
            return {unit for unit, doubt in zip(units, uncertainty, strict=True) if doubt <= self.rule.limits[number]}
        for unit, answer in zip(units, self.judge.predictions(units, now), strict=True):
            last, times = said.get(unit, (None, 0))
            said[unit] = (answer, times + 1 if number and answer == last else 0)
        return {unit for unit in units if said[unit][1] >= self.rule.patience}


def repacked(packs: list[Pack], gone: set[int], token_budget: int) -> list[Pack]:
    """Batches without the features that are gone: whole ones stay, what is left of broken ones is put together."""
    kept = [np.array([place not in gone for place in pack.order.tolist()]) for pack in packs]
    whole = [pack for pack, stays in zip(packs, kept, strict=True) if stays.all()]
    rest = [
        (pack.hidden[at, : pack.lengths[at]], pack.order[at])
        for pack, stays in zip(packs, kept, strict=True)
        if not stays.all()
        for at in np.flatnonzero(stays)
    ]
    for group in group_by_length([len(hidden) for hidden, _ in rest], token_budget):
        lengths = np.array([len(rest[at][0]) for at in group], np.int32)
        table = np.zeros((len(group), int(lengths[0]), rest[group[0]][0].shape[1]), np.float32)
        for row, at in enumerate(group):
            table[row, : lengths[row]] = rest[at][0]
        whole.append(Pack(table, lengths, np.array([rest[at][1] for at in group])))
    return whole


# Tasks and vectors -----------------------------------------------------------------------------------------------


def leave_task(
    albert: Albert,
    features: Sequence[Feature],
    examples: Sequence[Any],
    early_exit: EarlyExit,
    depth: int | None = None,
) -> ExitStats:
    """Scores of features, each from where its example left; `depths` are by example."""
    from albertkit.runtime.predict import layers_of, read_heads

    task = albert.task
    layers_of(albert, depth)  # or says what is wrong with it
    rule = rule_of(albert, early_exit, depth, kind_of(task))
    judge = UncertaintyEstimator(task, features, examples)
    walk = Walk(albert, rule, lambda hidden, lengths: read_heads(albert, hidden, lengths), judge, judge.units)
    left = walk.run([f.ids for f in features], [f.segments for f in features])
    if len(judge.units) == len(examples):
        return left
    deepest = np.zeros(len(examples), left.depths.dtype)  # two texts of a pair leave by themselves
    np.maximum.at(deepest, [f.example for f in features], left.depths)
    return ExitStats(left.scores, deepest, left.full)


class Still:
    """Vectors of texts: their doubt is how far they moved, 1 - cosine with the last look."""

    moves = True

    def __init__(self, units: list[list[int]], lengths: Sequence[int], pooling: str = "mean") -> None:
        self.units, self.lengths, self.pooling = units, lengths, pooling

    def uncertainty(self, units: Sequence[int], now: Sequence[Any], before: Sequence[Any] | None) -> np.ndarray:
        """See the class; before the first look everything moves."""
        if before is None:
            return np.full(len(units), np.inf)
        return 1 - cosines(*(np.stack([self._whole(u, rows) for u in units]) for rows in (now, before)))

    def predictions(self, units: Sequence[int], now: Sequence[Any]) -> list[Any]:
        """Vectors say nothing that could stay the same."""
        raise AlbertkitError("patience counts answers that stay the same; for vectors choose " + FORMS)

    def _whole(self, unit: int, rows: Sequence[Any]) -> np.ndarray:
        """A text's vector from those of its pieces."""
        from albertkit.albert import merged

        places = self.units[unit]
        vectors = np.stack([rows[place] for place in places])
        return next(merged(vectors, [self.lengths[place] for place in places], [len(places)], self.pooling))


def embed_windows(
    albert: Albert,
    texts: Iterable[str],
    options: EmbedOptions,
    early_exit: EarlyExit,
    layer: int | None,
    depth: int | None,
) -> Iterator[ExitStats]:
    """Vectors of texts, window by window; `scores` are vectors, one for each text."""
    from albertkit.albert import joined, windows

    if layer is not None:
        raise AlbertkitError(
            f"layer={layer} and early_exit={early_exit!r} were both given; one chooses where all stop, so leave one away"
        )
    rule = rule_of(albert, early_exit, depth, "cosine")
    start = 0
    for window in windows(texts):
        pieces, owners = albert.pieces([options.prompt + text for text in window], options.long_texts, start)
        left = leave_vectors(albert, pieces, owners, options, rule)
        vectors = joined(np.stack(left.scores), [len(piece) for piece in pieces], owners, options)
        yield ExitStats(list(vectors), left.depths, left.full)
        start += len(window)


def leave_vectors(
    albert: Albert, pieces: Sequence[Sequence[int]], owners: Sequence[int], options: EmbedOptions, rule: ExitRule
) -> ExitStats:
    """The vector of each piece (not yet joined), from where its text left; `depths` are by text."""
    ends = np.cumsum([0, *owners]).tolist()
    units = [list(range(a, b)) for a, b in pairwise(ends)]
    judge = Still(units, [len(piece) for piece in pieces], options.pooling)
    walk = Walk(albert, rule, lambda hidden, lengths: albert._pool(hidden, lengths, options.pooling), judge, units)  # type: ignore[arg-type,return-value]
    return walk.run(pieces, None)


def by_depth(
    albert: Albert,
    ids: Sequence[Sequence[int]],
    segments: Sequence[Sequence[int]] | None,
    depths: Sequence[int],
    read: Callable[[np.ndarray, np.ndarray], Sequence[Any]],
) -> dict[int, list[Any]]:
    """What is read at each of some depths, of every feature: what `calibrate` and the bench look at."""
    found: dict[int, list[Any]] = {depth: [None] * len(ids) for depth in depths}
    for group in group_by_length([len(row) for row in ids], albert.token_budget):
        rows = pad_batch(ids, segments, group)
        hidden, here = albert.engine.run(rows, 0), 0
        for depth in sorted(depths):
            hidden, here = albert.engine.layers(hidden, rows.lengths, here, depth), depth
            for place, one in zip(rows.order, read(hidden, rows.lengths), strict=True):
                found[depth][place] = one
    return found
