"""An explanation as a picture: values of words, the target layer by layer, and attention, rolled out and of every head. Needs matplotlib.

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
MOST_PLACES = 64  # of a head's map; longer texts are shown by the largest of several tokens


def picture(found: Explanation, attention: bool = False) -> bytes:
    """The picture of one text; of several methods, each has its bars. With `attention`, what every head looks at stands below."""
    need("matplotlib", "explain", "a picture")
    from matplotlib import font_manager, rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    there = {font.name for font in font_manager.fontManager.ttflist}
    fonts = ["DejaVu Sans", *(name for name in FONTS if name in there)]
    methods = len(found.attributions)
    shown = _shown(found)
    with rc_context({"font.family": fonts, "axes.unicode_minus": False, "text.parse_math": False}):
        wide, high = 4.0 * methods + 8, max(4.0, 0.24 * len(shown) + 1.5)
        layers, heads = found.maps[0].attention.shape[:2]
        below = min(max(3.0, wide * layers / heads), wide) if attention else 0.0  # inches
        figure = Figure(figsize=(wide, high + below), layout="constrained")
        FigureCanvasAgg(figure)
        parts = figure.subfigures(2 if attention else 1, 1, squeeze=False, height_ratios=[high, below][: 1 + attention])
        axes = parts[0, 0].subplots(1, methods + 2)
        parts[0, 0].suptitle(f"{found.kind}: {found.target}"[:120])
        if attention:
            _heads(parts[1, 0].subplots(), found)
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
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title("layer by layer")
    axes.set_xlabel("layers applied")
    axes.set_ylabel(found.unit)


def _map(axes: Any, found: Explanation) -> None:
    one = found.maps[0]
    axes.imshow(np.sqrt(one.rollout), cmap="GnBu", vmin=0)
    axes.set_title(f"attention, rolled out{_which(found)}")
    if len(one.tokens) <= MOST_LABELS:
        names = [token.replace("▁", "").removeprefix("##") or "_" for token in one.tokens]
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)


def _which(found: Explanation) -> str:
    """Which text's attention is shown, where there are several."""
    return f" ({list(found.parts)[found.maps[0].row]})" if len(found.maps) > 1 else ""


def tile_maps(attention: np.ndarray) -> np.ndarray:
    """(layers, heads, tokens, tokens) → one map, layers below each other and heads side by side, with a line between them."""
    layers, heads, tokens, _ = attention.shape
    starts = np.arange(0, tokens, -(-tokens // MOST_PLACES))
    small = np.maximum.reduceat(np.maximum.reduceat(attention, starts, axis=2), starts, axis=3)
    size = len(starts)
    made = np.full((layers, size + 1, heads, size + 1), np.nan, np.float32)
    made[:, :size, :, :size] = small.transpose(0, 2, 1, 3)
    flat: np.ndarray = made.reshape(layers * (size + 1), heads * (size + 1))[:-1, :-1]
    return flat


def _heads(axes: Any, found: Explanation) -> None:
    one = found.maps[0]
    layers, heads = one.attention.shape[:2]
    shown = tile_maps(one.attention)
    axes.imshow(np.sqrt(shown), cmap="GnBu", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    for ticks, count, length in ((axes.set_yticks, layers, len(shown)), (axes.set_xticks, heads, shown.shape[1])):
        each = (length + 1) / count
        ticks([each * place + (each - 2) / 2 for place in range(count)], [str(place + 1) for place in range(count)])
    axes.set_xlabel("heads")
    axes.set_ylabel("layers")
    axes.set_title(f"attention of every head: rows look at columns{_which(found)}")
