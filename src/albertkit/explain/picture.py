"""An explanation as a picture: values of words, the target layer by layer, and the rolled-out attention. Needs matplotlib.

In: an `Explanation`. Out: the bytes of a PNG. Before this file: `explanation.py`. Chinese needs a font that has it; of those that
are installed, one is taken.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from albertkit.errors import need
from albertkit.explain.explanation import Explanation

FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "PingFang SC", "Microsoft YaHei", "SimHei", "Droid Sans Fallback")  # fmt: skip
MOST_WORDS = 60  # with the largest values; more cannot be read
MOST_LABELS = 40


def picture(found: Explanation) -> bytes:
    """The picture of one text; of several methods, each has its bars."""
    need("matplotlib", "explain", "a picture")
    from matplotlib import font_manager, rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    there = {font.name for font in font_manager.fontManager.ttflist}
    fonts = ["DejaVu Sans", *(name for name in FONTS if name in there)]
    methods = len(found.attributions)
    shown = _shown(found)
    with rc_context({"font.family": fonts, "axes.unicode_minus": False, "text.parse_math": False}):
        figure = Figure(figsize=(4 * methods + 8, max(4.0, 0.24 * len(shown) + 1.5)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, methods + 2)
        figure.suptitle(f"{found.kind}: {found.target}"[:120])
        for place, one in enumerate(found.attributions):
            _bars(axes[place], found, one.method, one.values, shown)
        _layers(axes[-2], found)
        _map(axes[-1], found)
        out = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # no font here has it; a box is drawn
            figure.savefig(out, format="png", dpi=120)
    return out.getvalue()


def _shown(found: Explanation) -> np.ndarray:
    """The words with the largest values, in the order of the text."""
    sizes = np.max(
        [np.abs(one.values) / max(float(np.abs(one.values).max()), 1e-12) for one in found.attributions], axis=0
    )
    return np.sort(np.argsort(-sizes, kind="stable")[:MOST_WORDS])


def _bars(axes: Any, found: Explanation, method: str, values: np.ndarray, shown: np.ndarray) -> None:
    places = np.arange(len(shown))
    axes.barh(places, values[shown], color=["tab:green" if value >= 0 else "tab:red" for value in values[shown]])
    axes.set_yticks(places, [found.words[place].text[:24] for place in shown])
    axes.invert_yaxis()
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.margins(y=0.01)
    axes.set_title(method if len(shown) == len(found.words) else f"{method}, {len(shown)} of {len(found.words)} words")
    axes.set_xlabel("share" if method in ("rollout", "attention") else found.unit)


def _layers(axes: Any, found: Explanation) -> None:
    depths = [layer.depth for layer in found.layers]
    axes.plot(depths, [layer.value for layer in found.layers], marker="o")
    axes.set_title("layer by layer")
    axes.set_xlabel("layers applied")
    axes.set_ylabel(found.unit)


def _map(axes: Any, found: Explanation) -> None:
    one = found.maps[0]
    axes.imshow(np.sqrt(one.rollout), cmap="GnBu", vmin=0)
    which = f" ({list(found.parts)[one.row]})" if len(found.maps) > 1 else ""
    axes.set_title(f"attention, rolled out{which}")
    if len(one.tokens) <= MOST_LABELS:
        names = [token.replace("▁", "").removeprefix("##") or "_" for token in one.tokens]
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)
