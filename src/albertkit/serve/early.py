"""Early exit for /explain: how doubtful one text is at each depth at which it could leave.

In: a text that is ready to be computed. Out: `ExitAnswer`, in the numbers that `exit=` compares with. Before this file:
`runtime/exits.py` knows where a model may be left, `tasks/sure.py` what doubt is; after it: `look.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import numpy as np
from msgspec import Meta

from albertkit.errors import AlbertkitError
from albertkit.runtime.agreement import Exits
from albertkit.runtime.exits import Still, by_depth, kind_of, looks_of
from albertkit.runtime.predict import features_of, read_heads
from albertkit.serve.explain import Looking
from albertkit.tasks.sure import Judge

SHARE = 0.99  # what a calibrated model promises, where it can


class ExitAnswer(TypedDict):
    """How doubtful a text is: `exit="KIND:NUMBER"` leaves at the first of `looks` whose doubt is at most the number (for a cosine,
    1 minus it). promised: where `exit="99%"` leaves, for a model that was calibrated.
    """

    kind: Literal["entropy", "change", "cosine"]
    looks: list[int]
    doubts: Annotated[
        list[float | None], Meta(description="At each of `looks`, then at full depth; null before anything moved.")
    ]
    promised: int | None


def early(look: Looking) -> dict[str, Any] | None:
    """Where a text could leave; None for masks, which always read the full depth. On the engine's thread."""
    albert = look.albert
    looks = [depth for depth in looks_of(albert) if depth < albert.depth]
    judge: Any
    if look.kind == "fill":
        return None
    if look.kind is None:
        ids, segments = [look.batch.ids[0]], [look.batch.segments[0]]
        judge, kind = Still([[0]], [len(ids[0])]), "cosine"
    else:
        features = features_of(albert, [look.example], look.kind)
        ids, segments = [np.array(f.ids) for f in features], [np.array(f.segments) for f in features]
        judge, kind = Judge(albert.task, features, [look.example]), kind_of(albert.task)

    def read(hidden: np.ndarray, lengths: np.ndarray) -> list[Any]:
        if look.kind is None:
            return list(albert._pool(hidden, lengths, albert.meta.pooling))
        return read_heads(albert, hidden, lengths)

    found = by_depth(albert, ids, segments, [*looks, albert.depth], read)
    doubts, before = [], None
    for depth in (*looks, albert.depth):
        (doubt,) = judge.doubts([0], found[depth], before)
        doubts.append(float(doubt) if np.isfinite(doubt) else None)
        before = found[depth]
    return {"kind": kind, "looks": looks, "doubts": doubts, "promised": promised(albert, looks, doubts)}


def promised(albert: Any, looks: list[int], doubts: list[float | None]) -> int | None:
    """Where `exit="99%"` leaves, if the model was calibrated and can promise as much."""
    stored = albert.meta.details.get("exit")
    if stored is None:
        return None
    try:
        exits = Exits.from_dict(stored)
        limits = dict(zip(exits.looks, exits.limits(SHARE), strict=True))
    except AlbertkitError:
        return None
    leaves = [at for at, doubt in zip(looks, doubts, strict=False) if doubt is not None and doubt <= limits.get(at, -1)]
    return min(leaves, default=albert.depth)
