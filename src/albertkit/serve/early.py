"""Early exit for /explain: how doubtful one text is at each depth at which it could leave.

In: a text that is ready to be computed. Out: `EarlyExitItem`, in the numbers that `early_exit=` compares with. Before this file:
`explain/layer_predictions.py` computes it; after it: `look.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from albertkit.explain.layer_predictions import early_exit_of as doubts_of
from albertkit.serve.explain_api import Looking


class EarlyExitItem(TypedDict):
    """How doubtful a text is: `early_exit="KIND:NUMBER"` leaves at the first of `exit_depths` whose doubt is at most the number (for a cosine,
    1 minus it). promised: where `early_exit="99%"` leaves, for a model that was calibrated.
    """

    kind: Literal["entropy", "change", "cosine"]
    exit_depths: list[int]
    uncertainty: Annotated[
        list[float | None],
        Meta(description="At each of `exit_depths`, then at full depth; null before anything moved."),
    ]
    promised: int | None


def early(look: Looking) -> dict[str, Any] | None:
    """Where a text could leave; None for masks, which always read the full depth. On the engine's thread."""
    if look.kind == "fill":
        return None
    return doubts_of(look.albert, look.example, look.batch.ids[0], look.batch.segments[0])
