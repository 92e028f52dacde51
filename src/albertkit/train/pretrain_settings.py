"""What pre-training asks of a model: row lengths, masking, sentence order, extra losses.

No torch here, so that `--help` is quick.
"""

from __future__ import annotations

from dataclasses import dataclass

from albertkit.errors import AlbertkitError
from albertkit.settings import setting

LIKENESSES = ("cosine", "dot")


@dataclass(frozen=True)
class PretrainSettings:
    """What the model is asked to learn."""

    lengths: str = setting("128", "Tokens a row; '128:0.9,512:0.1' spends the last tenth of the budget on longer rows.")
    short_ratio: float = setting(
        0.1, "Share of the updates that see rows of a quarter of the length, as short texts are."
    )
    single_ratio: float = setting(0.3, "Share of the rows that are one text instead of two segments.")
    mask_ratio: float = setting(0.15, "Share of the tokens that are masked.")
    sop_weight: float = setting(1.0, "Weight of the sentence-order loss; 0 leaves it out.")
    consistency_weight: float = setting(0.0, "Weight λ of the loss that makes the layers' hidden states alike.")
    consistency_similarity: str = setting(
        "cosine", "What the consistency loss compares layers by: cosine, or dot (the plain product)."
    )
    layer_decay: float = setting(1.0, "Below 1, earlier uses of the shared layer weigh less in its gradient.")
    depths: str = setting(
        "",
        "Shallower depths to learn at, too, such as 3,6,9: each update draws one or, every second time, the full depth.",
    )
    eval_rows: int = setting(1024, "Held-out rows to evaluate on.")

    def __post_init__(self) -> None:
        for name in ("short_ratio", "single_ratio"):
            if not 0 <= getattr(self, name) < 1:
                raise AlbertkitError(f"{name} is {getattr(self, name)}; it must be from 0 up to, not including, 1")
        if not 0 < self.mask_ratio < 0.9:
            raise AlbertkitError(f"mask_ratio is {self.mask_ratio}; it must be between 0 and 0.9")
        if not 0 < self.layer_decay <= 1:
            raise AlbertkitError(f"layer_decay is {self.layer_decay}; it must be above 0 and at most 1")
        if self.sop_weight < 0 or self.consistency_weight < 0:
            raise AlbertkitError("sop_weight and consistency_weight must be 0 or above")
        if self.consistency_similarity not in LIKENESSES:
            raise AlbertkitError(
                f"consistency_similarity is {self.consistency_similarity!r}; choose one of {', '.join(LIKENESSES)}"
            )
        self.phases()
        self.shallow()

    def phases(self) -> list[tuple[int, float]]:
        """(length, share of the budget) in order; the shares add up to 1."""
        try:
            parts = [part.split(":") for part in self.lengths.split(",")]
            found = [(int(p[0]), float(p[1]) if len(p) > 1 else 1.0) for p in parts]
        except (ValueError, IndexError):
            raise AlbertkitError(f"lengths is {self.lengths!r}; write it like 128 or 128:0.9,512:0.1") from None
        total = sum(share for _, share in found)
        if min(length for length, _ in found) < 8 or min(share for _, share in found) <= 0 or abs(total - 1) > 1e-6:
            raise AlbertkitError(f"lengths is {self.lengths!r}; a row has 8 tokens or more, and shares add up to 1")
        return found

    def shallow(self) -> tuple[int, ...]:
        """`depths` as numbers, the shallowest first."""
        return whole_numbers("depths", self.depths) if self.depths.strip() else ()

    def length_at(self, progress: float) -> int:
        """Tokens a row at a share of the budget."""
        spent = 0.0
        for length, share in self.phases():
            spent += share
            if progress < spent:
                return length
        return self.phases()[-1][0]


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """A setting such as 3,6,12 as numbers, the smallest first."""
    try:
        found = tuple(sorted(int(n) for n in text.split(",")))
    except ValueError:
        found = ()
    if not found or found[0] < 1:
        raise AlbertkitError(f"{name} is {text!r}; write whole numbers with commas: 3,6,12")
    return found
