"""An explanation as a PNG: values of words, the target layer by layer, and attention. Needs matplotlib.

In: an `Explanation`. Out: the bytes of a PNG. Before: `explanation.py`. Chinese text needs a font that has it; an
installed one is chosen.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from albertkit.errors import need
from albertkit.explain.explanation import Explanation

CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Microsoft YaHei",
    "SimHei",
    "Droid Sans Fallback",
)
MAX_WORDS = 60  # those with the largest values
MAX_LABELS = 40
MAX_TILE = 64  # pixels of a head's map; in longer texts, each pixel is the maximum of several tokens


def render_png(explanation: Explanation, attention: bool = False) -> bytes:
    """One bar chart per method, the layers and the rollout; optionally the attention of every head below."""
    need("matplotlib", "explain", "a picture")
    from matplotlib import font_manager, rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    installed = {font.name for font in font_manager.fontManager.ttflist}
    fonts = ["DejaVu Sans", *(name for name in CHINESE_FONTS if name in installed)]
    methods = len(explanation.attributions)
    words = _largest_words(explanation)
    with rc_context({"font.family": fonts, "axes.unicode_minus": False, "text.parse_math": False}):
        width, height = 4.0 * methods + 8, max(4.0, 0.24 * len(words) + 1.5)
        layers, heads = explanation.maps[0].attention.shape[:2]
        below = min(max(3.0, width * layers / heads), width) if attention else 0.0  # inches
        figure = Figure(figsize=(width, height + below), layout="constrained")
        FigureCanvasAgg(figure)
        ratios = [height, below][: 1 + attention]
        parts = figure.subfigures(2 if attention else 1, 1, squeeze=False, height_ratios=ratios)
        axes = parts[0, 0].subplots(1, methods + 2)
        parts[0, 0].suptitle(f"{explanation.kind}: {explanation.target}"[:120])
        if attention:
            _draw_heads(parts[1, 0].subplots(), explanation)
        for place, one in enumerate(explanation.attributions):
            _draw_bars(axes[place], explanation, one.method, one.values, words)
        _draw_layers(axes[-2], explanation)
        _draw_rollout(axes[-1], explanation)
        image = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # no installed font has it
            figure.savefig(image, format="png", dpi=120)
    return image.getvalue()


def _largest_words(explanation: Explanation) -> np.ndarray:
    """The words with the largest values, in the order of the text."""
    sizes = [np.abs(one.values) / max(float(np.abs(one.values).max()), 1e-12) for one in explanation.attributions]
    return np.sort(np.argsort(-np.max(sizes, axis=0), kind="stable")[:MAX_WORDS])


def _draw_bars(axes: Any, explanation: Explanation, method: str, values: np.ndarray, words: np.ndarray) -> None:
    places, count = np.arange(len(words)), len(explanation.words)
    axes.barh(places, values[words], color=["tab:green" if value >= 0 else "tab:red" for value in values[words]])
    axes.set_yticks(places, [explanation.words[word].text[:24] for word in words])
    axes.invert_yaxis()
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.margins(y=0.01)
    axes.set_title(method if len(words) == count else f"{method}, {len(words)} of {count} words")
    axes.set_xlabel("share" if method in ("rollout", "attention") else explanation.unit)


def _draw_layers(axes: Any, explanation: Explanation) -> None:
    axes.plot([layer.depth for layer in explanation.layers], [layer.value for layer in explanation.layers], marker="o")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title("layer by layer")
    axes.set_xlabel("layers applied")
    axes.set_ylabel(explanation.unit)


def _draw_rollout(axes: Any, explanation: Explanation) -> None:
    one = explanation.maps[0]
    axes.imshow(np.sqrt(one.rollout), cmap="GnBu", vmin=0)
    axes.set_title(f"attention rollout{_part_name(explanation)}")
    if len(one.tokens) <= MAX_LABELS:
        names = [token.replace("▁", "").removeprefix("##") or "_" for token in one.tokens]
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)


def _draw_heads(axes: Any, explanation: Explanation) -> None:
    one = explanation.maps[0]
    layers, heads = one.attention.shape[:2]
    image = tile_maps(one.attention)
    axes.imshow(np.sqrt(image), cmap="GnBu", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    for set_ticks, count, length in ((axes.set_yticks, layers, len(image)), (axes.set_xticks, heads, image.shape[1])):
        size = (length + 1) / count
        set_ticks([size * place + (size - 2) / 2 for place in range(count)], [str(n + 1) for n in range(count)])
    axes.set_xlabel("heads")
    axes.set_ylabel("layers")
    axes.set_title(f"attention of every head: rows attend to columns{_part_name(explanation)}")


def _part_name(explanation: Explanation) -> str:
    """Which text's attention is shown, if there are several."""
    return f" ({list(explanation.parts)[explanation.maps[0].row]})" if len(explanation.maps) > 1 else ""


def tile_maps(attention: np.ndarray) -> np.ndarray:
    """(layers, heads, tokens, tokens) → one image: a row per layer, a column per head, lines of NaN between."""
    layers, heads, tokens, _ = attention.shape
    starts = np.arange(0, tokens, -(-tokens // MAX_TILE))
    small = np.maximum.reduceat(np.maximum.reduceat(attention, starts, axis=2), starts, axis=3)
    size = len(starts)
    tiles = np.full((layers, size + 1, heads, size + 1), np.nan, np.float32)
    tiles[:, :size, :, :size] = small.transpose(0, 2, 1, 3)
    return np.asarray(tiles.reshape(layers * (size + 1), heads * (size + 1))[:-1, :-1])
