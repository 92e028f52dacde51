"""Early exit: texts leave when they are sure, and the rest is packed again. No torch.

In: features of a task, or texts for vectors, and `exit=`. Out: `Left`: the scores each text left with, and the depth it left at. Before this file: `engine.py` applies layers,
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
from albertkit.runtime.batching import groups, packed
from albertkit.runtime.calibration import Exits
from albertkit.runtime.depths import taught_depths
from albertkit.tasks.confidence import Judge, cosines

if TYPE_CHECKING:
    from albertkit.albert import Albert, Recipe
    from albertkit.tasks.task import Feature

HELD = 8  # batches whose hidden states are held at once
Exit = str | float
FORMS = "exit='99%' (agree with the full depth on 99 % of texts)"


@dataclass(frozen=True)
class Rule:
    """When a text may leave."""

    depth: int
    """Where the last ones leave."""
    looks: tuple[int, ...] = ()
    """Depths before it, at which texts may leave."""
    limits: tuple[float, ...] = ()
    """The highest doubt to leave with, at each of them."""
    patience: int = 0
    """Or: looks in a row that say the same as the one before."""


@dataclass(frozen=True)
class Left:
    """How texts left."""

    scores: list[Any]
    """Of each feature, or the vectors of texts."""
    depths: np.ndarray
    """(examples,) layers applied to each."""
    full: int
    """Layers applied without an exit."""

    @property
    def mean(self) -> float:
        """Layers applied to a text, on average."""
        return float(self.depths.mean()) if len(self.depths) else float(self.full)

    @property
    def saving(self) -> float:
        """How many times fewer layers were applied."""
        return self.full / self.mean


class Doubting(Protocol):
    """Who knows how sure texts are: `sure.Judge` for tasks, `Still` for vectors."""

    moves: bool

    def doubts(self, units: Sequence[int], now: Sequence[Any], before: Sequence[Any] | None) -> np.ndarray:
        """(units,) doubts from what was read at this look and at the last one."""

    def says(self, units: Sequence[int], now: Sequence[Any]) -> list[Any]:
        """What was read, in a form that can be compared."""


# What `exit=` means ----------------------------------------------------------------------------------------------


def rule_of(albert: Albert, exit: Exit, depth: int | None, kind: str) -> Rule:
    """`exit=` as a rule for a model; `kind` is what its doubt is: entropy, change or cosine."""
    last = albert._layers_to_apply(None, depth, "pooler")
    if albert.config.options.static:
        raise AlbertkitError("exit is given; a static model has no layers to leave, so leave it away")
    name, value = parsed(exit)
    stored = albert.meta.details.get("exit")
    if name == "agreement":
        if stored is None:
            raise AlbertkitError(
                f"exit={exit!r} needs limits found on held-out texts, and this model has none; run  albertkit calibrate MODEL DEV  "
                f"(or albertkit elastic, which also makes shallow depths good)"
            )
        if kind != calibrated_kind(albert):
            raise AlbertkitError(
                f"exit={exit!r} was calibrated for this model's results ({albert.meta.task}), and says nothing about its vectors; choose cosine:NUMBER, or depth"
            )
        exits = Exits.from_dict(stored)
        if last != exits.depth:
            raise AlbertkitError(
                f"exit={exit!r} is about agreeing with depth {exits.depth}, and depth {last} was asked for; leave depth away, choose {kind}:NUMBER, or calibrate anew"
            )
        return agreeing(exits, value, moves=kind != "entropy")
    looks = tuple(look for look in looks_of(albert) if look < last)
    if name == "patience":
        if kind != "entropy":
            raise AlbertkitError("patience counts answers that stay the same; for values and vectors choose " + FORMS)
        if value != int(value) or value < 1:
            raise AlbertkitError(f"patience is {value:g}; choose 1 or more looks")
        return Rule(last, looks, patience=int(value))
    if name != kind:
        raise AlbertkitError(f"exit is {exit!r}; this model's results have no {name}: choose {kind}:NUMBER, or {FORMS}")
    return Rule(last, looks, (1 - value if name == "cosine" else value,) * len(looks))


def agreeing(exits: Exits, share: float, moves: bool) -> Rule:
    """The rule that promises a share of agreement; looks at which nobody may leave are left out, unless the next one compares with them."""
    pairs = [(k, limit) for k, limit in zip(exits.looks, exits.limits(share), strict=True) if moves or limit >= 0]
    return Rule(exits.depth, tuple(look for look, _ in pairs), tuple(limit for _, limit in pairs))


def parsed(exit: Exit) -> tuple[str, float]:
    """`0.99`, `"99%"`, `"entropy:0.1"`, `"patience:2"`, `"cosine:0.99"`, `"change:0.05"` as a name and a number."""
    name, colon, rest = str(exit).strip().lower().rpartition(":")
    name = name if colon else "agreement"
    percent = rest.endswith("%")
    try:
        value = float(rest.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if (
        isinstance(exit, bool)
        or name not in ("agreement", "entropy", "patience", "cosine", "change")
        or not math.isfinite(value)
    ):
        raise AlbertkitError(
            f"exit is {exit!r}; write {FORMS}, entropy:0.1, patience:2, cosine:0.99 (vectors) or change:0.05 (values)"
        )
    if name == "agreement" and not 0.5 <= value < 1:
        raise AlbertkitError(f"exit is {exit!r}; a share of agreement is from 50% up to, not including, 100%")
    if name != "agreement" and value < 0:
        raise AlbertkitError(f"exit is {exit!r}; the number must be 0 or above")
    return name, value


def looks_of(albert: Albert) -> tuple[int, ...]:
    """Depths at which this model says something: those it was calibrated at, those it was distilled at, or every one."""
    stored = albert.meta.details.get("exit")
    if stored is not None:
        return Exits.from_dict(stored).looks
    taught = taught_depths(albert.meta.made)
    return tuple(range(1, albert.depth)) if taught is None else taught


def kind_of(task: Any) -> str:
    """What the doubt of a task's results is."""
    if task.head == "vector":
        return "cosine"
    return "change" if getattr(task, "kind", "") == "regression" else "entropy"


def calibrated_kind(albert: Albert) -> str:
    """What the doubt is that a model's stored limits were found for: that of its task, else of its vectors."""
    from albertkit.tasks.make import TASKS

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
    rule: Rule
    read: Callable[[np.ndarray, np.ndarray], Sequence[Any]]
    """Hidden states and lengths of a batch to what is looked at, for each feature."""
    judge: Doubting
    units: list[list[int]]
    """Features that leave together."""

    def run(self, ids: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None) -> Left:
        """All features, stretch by stretch, the longest units first."""
        read: list[Any] = [None] * len(ids)
        depths = np.full(len(self.units), self.rule.depth)
        longest = [max(len(ids[place]) for place in unit) for unit in self.units]
        order, most = sorted(range(len(self.units)), key=lambda u: -longest[u]), HELD * self.albert.budget
        start = 0
        while start < len(order):
            end, held = start, 0
            while end < len(order) and (end == start or held < most):
                held += sum(len(ids[place]) for place in self.units[order[end]])
                end += 1
            self._stretch(order[start:end], ids, segments, read, depths)
            start = end
        return Left(read, depths, self.rule.depth)

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
        for number, depth in enumerate((*self.rule.looks, self.rule.depth)):
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
                packs = repacked(packs, {place for u in leaving for place in self.units[u]}, self.albert.budget)
            before = list(now) if self.judge.moves else None

    def _begin(
        self, places: list[int], ids: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None
    ) -> Iterator[Pack]:
        """Batches of features, embedded."""
        for group in groups([len(ids[place]) for place in places], self.albert.budget):
            rows = packed(ids, segments, [places[at] for at in group])
            yield Pack(self.albert.engine.run(rows, 0), rows.lengths, rows.order)

    def _leaving(
        self, number: int, units: list[int], now: list[Any], before: list[Any] | None, said: dict[int, Any]
    ) -> set[int]:
        """Which units may leave at a look; `said` counts, for patience, how often each has said the same."""
        if not self.rule.patience:
            doubts = self.judge.doubts(units, now, before)
            return {unit for unit, doubt in zip(units, doubts, strict=True) if doubt <= self.rule.limits[number]}
        for unit, answer in zip(units, self.judge.says(units, now), strict=True):
            last, times = said.get(unit, (None, 0))
            said[unit] = (answer, times + 1 if number and answer == last else 0)
        return {unit for unit in units if said[unit][1] >= self.rule.patience}


def repacked(packs: list[Pack], gone: set[int], budget: int) -> list[Pack]:
    """Batches without the features that are gone: whole ones stay, what is left of broken ones is put together."""
    kept = [np.array([place not in gone for place in pack.order.tolist()]) for pack in packs]
    whole = [pack for pack, stays in zip(packs, kept, strict=True) if stays.all()]
    rest = [
        (pack.hidden[at, : pack.lengths[at]], pack.order[at])
        for pack, stays in zip(packs, kept, strict=True)
        if not stays.all()
        for at in np.flatnonzero(stays)
    ]
    for group in groups([len(hidden) for hidden, _ in rest], budget):
        lengths = np.array([len(rest[at][0]) for at in group], np.int32)
        table = np.zeros((len(group), int(lengths[0]), rest[group[0]][0].shape[1]), np.float32)
        for row, at in enumerate(group):
            table[row, : lengths[row]] = rest[at][0]
        whole.append(Pack(table, lengths, np.array([rest[at][1] for at in group])))
    return whole


# Tasks and vectors -----------------------------------------------------------------------------------------------


def leave_task(
    albert: Albert, features: Sequence[Feature], examples: Sequence[Any], exit: Exit, depth: int | None = None
) -> Left:
    """Scores of features, each from where its example left; `depths` are by example."""
    from albertkit.runtime.predict import layers_of, read_heads

    task = albert.task
    layers_of(albert, depth)  # or says what is wrong with it
    rule = rule_of(albert, exit, depth, kind_of(task))
    judge = Judge(task, features, examples)
    walk = Walk(albert, rule, lambda hidden, lengths: read_heads(albert, hidden, lengths), judge, judge.units)
    left = walk.run([f.ids for f in features], [f.segments for f in features])
    if len(judge.units) == len(examples):
        return left
    deepest = np.zeros(len(examples), left.depths.dtype)  # two texts of a pair leave by themselves
    np.maximum.at(deepest, [f.example for f in features], left.depths)
    return Left(left.scores, deepest, left.full)


class Still:
    """Vectors of texts: their doubt is how far they moved, 1 - cosine with the last look."""

    moves = True

    def __init__(self, units: list[list[int]], lengths: Sequence[int], pooling: str = "mean") -> None:
        self.units, self.lengths, self.pooling = units, lengths, pooling

    def doubts(self, units: Sequence[int], now: Sequence[Any], before: Sequence[Any] | None) -> np.ndarray:
        """See the class; before the first look everything moves."""
        if before is None:
            return np.full(len(units), np.inf)
        return 1 - cosines(*(np.stack([self._whole(u, rows) for u in units]) for rows in (now, before)))

    def says(self, units: Sequence[int], now: Sequence[Any]) -> list[Any]:
        """Vectors say nothing that could stay the same."""
        raise AlbertkitError("patience counts answers that stay the same; for vectors choose " + FORMS)

    def _whole(self, unit: int, rows: Sequence[Any]) -> np.ndarray:
        """A text's vector from those of its pieces."""
        from albertkit.albert import merged

        places = self.units[unit]
        vectors = np.stack([rows[place] for place in places])
        return next(merged(vectors, [self.lengths[place] for place in places], [len(places)], self.pooling))


def embed_windows(
    albert: Albert, texts: Iterable[str], recipe: Recipe, exit: Exit, layer: int | None, depth: int | None
) -> Iterator[Left]:
    """Vectors of texts, window by window; `scores` are vectors, one for each text."""
    from albertkit.albert import joined, windows

    if layer is not None:
        raise AlbertkitError(
            f"layer={layer} and exit={exit!r} were both given; one chooses where all stop, so leave one away"
        )
    rule = rule_of(albert, exit, depth, "cosine")
    start = 0
    for window in windows(texts):
        pieces, owners = albert.pieces([recipe.before + text for text in window], recipe.long, start)
        left = leave_vectors(albert, pieces, owners, recipe, rule)
        vectors = joined(np.stack(left.scores), [len(piece) for piece in pieces], owners, recipe)
        yield Left(list(vectors), left.depths, left.full)
        start += len(window)


def leave_vectors(
    albert: Albert, pieces: Sequence[Sequence[int]], owners: Sequence[int], recipe: Recipe, rule: Rule
) -> Left:
    """The vector of each piece (not yet joined), from where its text left; `depths` are by text."""
    ends = np.cumsum([0, *owners]).tolist()
    units = [list(range(a, b)) for a, b in pairwise(ends)]
    judge = Still(units, [len(piece) for piece in pieces], recipe.pooling)
    walk = Walk(albert, rule, lambda hidden, lengths: albert._pool(hidden, lengths, recipe.pooling), judge, units)  # type: ignore[arg-type,return-value]
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
    for group in groups([len(row) for row in ids], albert.budget):
        rows = packed(ids, segments, group)
        hidden, here = albert.engine.run(rows, 0), 0
        for depth in sorted(depths):
            hidden, here = albert.engine.layers(hidden, rows.lengths, here, depth), depth
            for place, one in zip(rows.order, read(hidden, rows.lengths), strict=True):
                found[depth][place] = one
    return found
