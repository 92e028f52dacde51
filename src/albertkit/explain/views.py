"""Views of an explanation: one HTML page, or one PNG.

In: an `Explanation`. Out: HTML or the bytes of a PNG, and files. Before: `explainer.py`. The page inlines `page.css`
and `page.js`; texts are escaped, and a content security policy forbids every request. Its attention is rounded to
1/255; if all heads of all layers are too much data, it shows the mean of the heads, and then only some layers. The
picture needs matplotlib.
"""

from __future__ import annotations

import base64
import io
import json
import os
import tempfile
import warnings
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.errors import AlbertkitError, need

if TYPE_CHECKING:
    from albertkit.explain.attribution import AttentionMap, Attribution
    from albertkit.explain.explain_input import ExplainedWord
    from albertkit.explain.explainer import Explanation

MAX_NUMBERS = 1_000_000  # of attention in a page, one byte each before base64
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
MAX_OPACITY = 0.6  # keeps colored words readable
DESCRIPTIONS = {
    "occlusion": "How much the value decreases if the word is hidden.",
    "shapley": "What the word adds on average, when words are added in random orders.",
    "gradients": "Integrated gradients: what the word adds on the straight line from a text of hidden words.",
    "rollout": "How much of the word can reach the tokens that are read, by attention alone; never negative.",
    "attention": "Attention of the last layer, averaged over heads; never negative, and not an explanation by itself.",
}
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


# The page ----------------------------------------------------------------------------------------------------------


def render_page(explanation: Explanation) -> str:
    folder = files("albertkit.explain")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    maps = [pack_map(one, MAX_NUMBERS // len(explanation.maps)) for one in explanation.maps]
    title = escape(f"{explanation.kind}: {explanation.target}")
    body = [
        f"<h1>{title}</h1>",
        f'<p>{escape(value_text(explanation))}</p><p class="soft">model {escape(explanation.model)}</p>',
        "<h2>Words</h2>",
        '<p>Colors: words that <span class="word" style="--share:.4">support</span> and '
        '<span class="word against" style="--share:.4">oppose</span> the target; stronger for larger values.</p>',
        *(part for one in explanation.attributions for part in words_section(explanation, one)),
        values_table(explanation),
        "<h2>Layer by layer</h2>",
        layers_section(explanation),
        "<h2>Attention</h2>",
        '<p class="soft">Rows attend to columns. Attention shows where information can flow; only the values above '
        "show what the prediction depends on.</p>",
        *(attention_section(explanation, place, one) for place, one in enumerate(explanation.maps)),
        *(f'<p class="soft">{escape(one.note)}</p>' for one in maps if one.note),
    ]
    data = json.dumps([one.data for one in maps]).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{style}</style></head>\n"
        f'<body><main>{"".join(body)}</main><script type="application/json" id="data">{data}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def value_text(explanation: Explanation) -> str:
    if explanation.unit != "log-odds":
        return f"{explanation.unit} {explanation.value:.4f}"
    return f"probability {explanation.probability:.1%}, log-odds {explanation.value:+.2f}"


def words_section(explanation: Explanation, attribution: Attribution) -> list[str]:
    """The texts, each word colored by its value."""
    values = attribution.values
    largest = max(float(np.abs(values).max()), 1e-12)
    sums = ""
    if attribution.full is not None and attribution.empty is not None:
        sums = (
            f" Whole text {attribution.full:+.3f}; all words hidden {attribution.empty:+.3f}; "
            f"sum of the words {values.sum():+.3f}."
        )
    texts = []
    for part, text in explanation.parts.items():
        spans, at = [], 0
        for word, value in zip(explanation.words, values.tolist(), strict=True):
            if word.part == part:
                spans += [escape(text[at : word.start]), colored_word(word, value, largest)]
                at = word.end
        name = f"<b>{escape(part)}</b>" if len(explanation.parts) > 1 else ""
        texts.append(f'<div class="text">{name}{"".join(spans)}{escape(text[at:])}</div>')
    method = attribution.method
    return [f"<h3>{method}</h3>", f'<p class="soft">{DESCRIPTIONS[method]}{sums}</p>', *texts]


def colored_word(word: ExplainedWord, value: float, largest: float) -> str:
    """One word, with its value as the title."""
    side = " against" if value < 0 else ""
    share = MAX_OPACITY * abs(value) / largest
    return f'<span class="word{side}" style="--share:{share:.3f}" title="{value:+.4f}">{escape(word.text)}</span>'


def values_table(explanation: Explanation) -> str:
    heads = "".join(f'<th scope="col" class="number">{one.method}</th>' for one in explanation.attributions)
    rows = []
    for place, word in enumerate(explanation.words):
        cells = "".join(f'<td class="number">{one.values[place]:+.4f}</td>' for one in explanation.attributions)
        position = f"{escape(word.part)} {word.start}–{word.end}"
        rows.append(f'<tr><th scope="row">{escape(word.text)}</th><td>{position}</td>{cells}</tr>')
    return (
        f"<details><summary>All values as numbers ({escape(explanation.unit)})</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Values of words">'
        f'<table><thead><tr><th scope="col">word</th><th scope="col">characters</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def layers_section(explanation: Explanation) -> str:
    """The prediction after each layer."""
    uncertainty, exits = explanation.uncertainty, explanation.early_exit
    column = ""
    if exits is not None and uncertainty:
        column = f'<th scope="col" class="number">uncertainty ({escape(exits.kind)})</th>'
    rows = []
    for layer in explanation.layers:
        number = f"{uncertainty[layer.depth]:.3f}" if layer.depth in uncertainty else "–"
        cell = f'<td class="number">{number}</td>' if column else ""
        summary = ", ".join(name if p is None else f"{name} {p:.1%}" for name, p in layer.summary)
        probability = f"{layer.probability:.1%}" if explanation.unit == "log-odds" else f"{layer.probability:.4f}"
        rows.append(
            f'<tr class="{"same" if layer.matches_full_depth else "other"}"><th scope="row">{layer.depth}</th>'
            f'<td>{escape(summary)}</td><td class="number">{probability}</td><td class="number">{layer.value:+.3f}</td>'
            f"{cell}</tr>"
        )
    notes = []
    if explanation.stable_depth is not None:
        notes.append(f"The prediction stays the same from layer {explanation.stable_depth} on.")
    if exits is not None and exits.exit_depth_99 is not None:
        notes.append(f"early_exit='99%' exits after layer {exits.exit_depth_99}.")
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Layer by layer"><table><thead><tr>'
        '<th scope="col">layer</th><th scope="col">prediction</th>'
        f'<th scope="col" class="number">{escape(explanation.target)}</th>'
        f'<th scope="col" class="number">{escape(explanation.unit)}</th>{column}</tr></thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div><p class="soft">{escape(" ".join(notes))}</p>'
    )


def attention_section(explanation: Explanation, place: int, one: AttentionMap) -> str:
    """The frame of one map; `page.js` fills it."""
    name = f"<h3>{escape(list(explanation.parts)[one.row])}</h3>" if len(explanation.maps) > 1 else ""
    selects = "".join(f"<label>{label}<select></select></label>" for label in ("layer", "head", "token"))
    return (
        f'<section id="map-{place}">{name}'
        '<canvas class="all" role="img" aria-label="All maps: one row per layer, one column per head"></canvas>'
        f'<div class="choose">{selects}</div>'
        '<canvas role="img" aria-label="One row per token that attends, one column per token attended to"></canvas>'
        '<p role="status"></p><ul class="pieces"></ul></section>'
    )


@dataclass(frozen=True)
class PackedMap:
    """A map as JSON, and a note about what was left out."""

    data: dict[str, Any]
    note: str


def pack_map(one: AttentionMap, max_numbers: int) -> PackedMap:
    """Attention as bytes; heads and layers are reduced if there are too many numbers."""
    layers, heads, tokens, _ = one.attention.shape
    attention, kept, names, note = one.attention, list(range(layers)), [str(h + 1) for h in range(heads)], ""
    max_numbers -= tokens**2  # the rollout
    if attention.size > max_numbers:
        attention, names = attention.mean(axis=1, keepdims=True), ["mean of all"]
        note = f"The text has {tokens} tokens, so heads are shown as their mean"
        most = max(1, max_numbers // tokens**2)
        if layers > most:
            kept = sorted({round(x) for x in np.linspace(0, layers - 1, most).tolist()})
            note += f", and {len(kept)} of {layers} layers"
        note += "."
    data = {
        "tokens": list(one.tokens),
        "layers": [str(layer + 1) for layer in kept],
        "heads": names,
        "data": encode_bytes(attention[kept]),
        "rollout": encode_bytes(one.rollout),
        "from": one.reader,
    }
    return PackedMap(data, note)


def encode_bytes(shares: np.ndarray) -> str:
    return base64.b64encode(np.rint(np.clip(shares, 0, 1) * 255).astype(np.uint8).tobytes()).decode("ascii")


# The picture -------------------------------------------------------------------------------------------------------


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


# Files -------------------------------------------------------------------------------------------------------------


def check_writable(path: Path, overwrite: bool) -> None:
    """An error if a file exists or its folder does not."""
    if path.exists() and not overwrite:
        raise AlbertkitError(f"{path} exists; choose another name or allow overwriting (--force)")
    if not path.parent.is_dir():
        raise AlbertkitError(f"{path} cannot be written: {path.parent} is not a folder; choose an existing folder")


def write_file(path: Path, data: bytes, overwrite: bool) -> Path:
    check_writable(path, overwrite)
    try:
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(part).chmod(0o644)
            Path(part).replace(path)
        finally:
            Path(part).unlink(missing_ok=True)
    except OSError as error:
        raise AlbertkitError(f"{path} cannot be written: {error.strerror}; choose another folder") from None
    return path
