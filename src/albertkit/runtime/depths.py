"""At which depths a model's vectors mean something, by its history. No torch.

In: what `albertkit.json` says about how a model was made. Out: the depths its vectors were taught at, and a refusal of others: a model that learnt to give vectors after 3, 6, 9 and 12
layers gives numbers after 4, too, which say nothing about texts. Next: `albert.py`, `exits.py`, and `interop/onnx_export.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    from albertkit.artifact import Meta
    from albertkit.config import AlbertConfig


def trained_depths(made: Sequence[Mapping[str, Any]]) -> tuple[int, ...] | None:
    """Depths at which the vectors of a model with this history were taught; None where it does not say, or every depth may be good since.

    >>> trained_depths([{"step": "distill", "settings": {"depths": "3,6"}}, {"step": "quantize"}])
    (3, 6)
    >>> trained_depths([{"step": "distill", "settings": {"depths": "3,6"}}, {"step": "elastic"}])
    """
    for step in reversed(made):
        if step.get("step") in ("pretrain", "finetune", "elastic"):
            return None
        if step.get("step") == "distill":
            depths = step.get("settings", {}).get("depths")
            if not isinstance(depths, str) or not depths.replace(",", "").replace(" ", "").isdecimal():
                return None
            return tuple(sorted({int(depth) for depth in depths.split(",") if depth.strip()}))
    return None


def is_full_depth_only(made: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last training of a model taught a task at its full depth, and at no other.

    >>> is_full_depth_only([{"step": "elastic"}, {"step": "quantize"}]), is_full_depth_only([{"step": "elastic"}, {"step": "finetune"}])
    (False, True)
    """
    last: Mapping[str, Any] = next(
        (s for s in reversed(made) if s.get("step") in ("pretrain", "distill", "finetune", "elastic")), {}
    )
    depths = last.get("depths")
    return last.get("step") == "finetune" or (isinstance(depths, Mapping) and depths.get("elastic") is False)


def check_trained_depth(config: AlbertConfig, meta: Meta, depth: int, inside: str = "") -> None:
    """Refuse a depth at which a model's vectors mean nothing, where its history says which were taught; `inside` tells how to look there all the same."""
    taught = trained_depths(meta.made)
    if taught is None or depth in (*taught, meta.depth, config.num_hidden_layers):
        return
    raise AlbertkitError(
        f"depth is {depth}; this model learnt to give vectors after {', '.join(map(str, taught))} layers, and between them they mean nothing: "
        f"choose one of these depths{inside}"
    )
