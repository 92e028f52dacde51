"""A picture of proposals: latency against quality (or work), memory as size, and the line of those that nothing quicker equals.

In: tried `Proposal`s and the limits. Out: a PNG. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from albertkit.compress.cost import operations
from albertkit.compress.fit import Limits, Proposal
from albertkit.errors import AlbertkitError, need


def check_plot_path(path: Path) -> None:
    """Say what would keep a picture from being written, before anything is measured for it."""
    need("matplotlib", "train", "a picture")
    if not path.resolve().parent.is_dir() or path.is_dir():
        raise AlbertkitError(f"{path} cannot be written; name a .png file in a folder that exists")


def plot_proposals(proposals: Sequence[Proposal], limits: Limits, path: Path, quality: str = "quality") -> None:
    """Write the picture."""
    need("matplotlib", "train", "a picture")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    tried = [p for p in proposals if p.trial is not None]
    if not tried:
        raise AlbertkitError("nothing was measured, so there is nothing to draw; allow measuring")
    known = any(p.trial.quality is not None for p in tried if p.trial)
    figure, axes = plt.subplots(figsize=(9, 5))
    points = [(_point(p, known), p.candidate.name) for p in tried]
    shown = sorted(((x, y, size), name) for (x, y, size), name in points if y is not None)
    for (x, y, size), name in shown:
        axes.scatter([x], [y], s=size, alpha=0.6, color="tab:blue")
        axes.annotate(name, (x, y), fontsize=7, xytext=(6, 4), textcoords="offset points")
    best: list[tuple[float, float]] = []
    for (x, y, _), _ in shown:  # quickest first: what is slower must be better
        if not best or y > best[-1][1]:
            best.append((x, y))
    axes.plot([x for x, _ in best], [y for _, y in best], color="tab:blue", linewidth=1)
    axes.margins(x=0.25, y=0.1)
    if limits.latency is not None:
        axes.axvline(limits.latency * 1e3, color="tab:red", linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("latency of one text, ms (measured)")
    axes.set_ylabel(quality if known else "operations for a token, millions")
    axes.set_title("Proposals: a larger dot takes more memory; the line joins the best for their time")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise AlbertkitError(f"{path} cannot be written: {error}; name a .png file in a folder that exists") from None
    finally:
        plt.close(figure)


def _point(proposal: Proposal, known: bool) -> tuple[float, float | None, float]:
    """Place and size of a dot."""
    trial = proposal.trial
    assert trial is not None
    height = trial.quality if known else operations(proposal.candidate.config, 64)["total"] / 1e6
    return trial.latency * 1e3, height, 20 + trial.memory / 1e6
